//! Tools behind HTTP endpoints, which a model calls within the operator's rules.
//!
//! The operator configures method, URL, headers and allowed hosts. The model supplies the values of the URL's
//! placeholders and the body. Arguments are encoded so that they cannot change the rest of the URL. Neither errors nor
//! results contain secrets or addresses of the host's network.

#![expect(
    clippy::disallowed_types,
    reason = "arguments of one call, of limited size, that a schema is checked against"
)]

use std::sync::{Arc, Mutex, PoisonError};

use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION};
use reqwest::{Client, Method, Response, StatusCode, Url};
use serde_json::{Map, Value};

use super::describe;
use super::environment::SecretText;
use super::network::{CheckedResolver, NetworkRules, NoAddress};
use super::secrets::Secrets;
use super::url_template::UrlTemplate;
use rollout_wire::text::beginning;

/// Maximum size of an error response that the model sees, in bytes.
const ERROR_BYTES_SHOWN: usize = 2048;

/// The port of nearly all endpoints.
const HTTPS_PORT: u16 = 443;

/// Configuration of an HTTP endpoint as a tool.
#[derive(Clone, Debug)]
pub struct HttpToolSettings {
    /// The method, such as `GET`.
    pub method: Method,
    /// The URL, with placeholders for arguments and secrets.
    pub url: UrlTemplate,
    /// Headers of every request, which may contain secrets.
    pub headers: Vec<(HeaderName, SecretText)>,
    /// Allowed hosts in addition to the one in the URL.
    pub hosts: Vec<AllowedHost>,
    /// Network rules for those hosts.
    pub network: Arc<NetworkRules>,
    /// Maximum number of redirects that are followed, each to an allowed host.
    pub redirects_max: u32,
    /// JSON Schema of the arguments.
    pub parameters: Value,
}

/// An allowed host, with a port or, without one, the default ports of the schemes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedHost {
    host: String,
    port: Option<u16>,
}

impl AllowedHost {
    /// Parses `host` or `host:port`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is not a host, such as api.example.com or api.example.com:8443");
        let url = Url::parse(&format!("http://{text}/")).map_err(|_| wrong())?;
        let plain = url.path() == "/" && url.query().is_none() && url.username().is_empty();
        let host =
            url.host_str().filter(|_| plain && !text.contains(['/', '?', '#', '@'])).ok_or_else(wrong)?;
        // The parser drops port 80 even if it was given.
        let port = if text.ends_with(":80") { Some(80) } else { url.port() };
        Ok(Self { host: host.to_owned(), port })
    }

    fn of(url: &Url) -> Option<Self> {
        Some(Self { host: url.host_str()?.to_owned(), port: url.port_or_known_default() })
    }

    fn allows(&self, url: &Url) -> bool {
        url.host_str() == Some(&self.host)
            && match self.port {
                Some(port) => url.port_or_known_default() == Some(port),
                None => url.port().is_none(),
            }
    }
}

/// Error of a call without a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemoteFailure {
    /// The tool returned an error, which the model should read.
    Failed(String),
    /// There was no usable response, with the reason.
    Unavailable(String),
    /// The result is too long.
    TooLong,
}

/// An HTTP endpoint that is ready for calls.
#[derive(Debug)]
pub struct HttpTool {
    /// One client for each port used so far; the allowed hosts have few.
    clients: Mutex<Vec<(u16, Client)>>,
    settings: HttpToolSettings,
    headers: HeaderMap,
    arguments: jsonschema::Validator,
    secrets: Secrets,
    url_secrets: Vec<(String, String)>,
}

impl HttpTool {
    /// Creates the tool, with the secrets of the environment. Every problem names its field.
    pub fn new(settings: HttpToolSettings) -> Result<Self, Vec<String>> {
        let (mut secrets, mut problems) = (Secrets::default(), Vec::new());
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/*;q=0.9, */*;q=0.1"));
        for (name, text) in &settings.headers {
            match text.resolve(&mut secrets).map(|value| HeaderValue::from_str(&value)) {
                Ok(Ok(mut value)) => {
                    value.set_sensitive(true);
                    headers.insert(name.clone(), value);
                }
                Ok(Err(_)) => problems.push(format!("headers.{name}: its value cannot be sent in a header")),
                Err(what) => problems.push(format!("headers.{name}: {what}")),
            }
        }
        let url_secrets = settings.url.resolve(&mut secrets).unwrap_or_else(|missing| {
            problems.extend(missing.into_iter().map(|what| format!("url: {what}")));
            Vec::new()
        });
        let arguments = jsonschema::draft202012::new(&settings.parameters);
        let client = client(&settings.network, HTTPS_PORT);
        match (arguments, client) {
            (Ok(arguments), Ok(client)) if problems.is_empty() => {
                let clients = Mutex::new(vec![(HTTPS_PORT, client)]);
                Ok(Self { clients, settings, headers, arguments, secrets, url_secrets })
            }
            (arguments, client) => {
                problems.extend(arguments.err().map(|error| format!("parameters: {error}")));
                problems.extend(client.err());
                Err(problems)
            }
        }
    }

    /// Calls the endpoint with the model's arguments. The result has at most `bytes_max` bytes.
    pub async fn call(&self, arguments: &str, bytes_max: usize) -> Result<String, RemoteFailure> {
        let arguments = self.read(arguments).map_err(RemoteFailure::Failed)?;
        let (url, rest) =
            self.settings.url.fill(&arguments, &self.url_secrets).map_err(RemoteFailure::Failed)?;
        let response = self.ask(url, rest).await?;
        let status = response.status();
        let body = read_body(response, bytes_max).await?;
        let text = self.secrets.cut_from(body);
        if status.is_success() {
            return Ok(text);
        }
        let shown = beginning(&text, ERROR_BYTES_SHOWN);
        Err(RemoteFailure::Failed(format!("the server answered {status}: {shown}")))
    }

    /// Parses the arguments and checks them against the schema.
    fn read(&self, arguments: &str) -> Result<Map<String, Value>, String> {
        let text = if arguments.trim().is_empty() { "{}" } else { arguments };
        let value: Value = serde_json::from_str(text)
            .map_err(|error| format!("the arguments are not valid JSON: {error}"))?;
        if let Err(error) = self.arguments.validate(&value) {
            return Err(format!(
                "the arguments do not match the schema: {error} (at '{}')",
                error.instance_path()
            ));
        }
        match value {
            Value::Object(fields) => Ok(fields),
            _ => Err("the arguments are not a JSON object".to_owned()),
        }
    }

    /// Sends the request and follows redirects within the operator's rules.
    async fn ask(&self, mut url: Url, rest: Map<String, Value>) -> Result<Response, RemoteFailure> {
        let mut method = self.settings.method.clone();
        let mut body = None;
        if matches!(method, Method::GET | Method::HEAD | Method::DELETE) {
            if !rest.is_empty() {
                let mut query = url.query_pairs_mut();
                for (name, value) in &rest {
                    query.append_pair(name, &super::url_template::plain(value));
                }
            }
        } else {
            body = Some(Value::Object(rest).to_string());
        }
        let origin = url.origin();
        let url_host = AllowedHost::of(&url).filter(|_| !self.settings.url.is_whole());
        let mut redirects = 0;
        loop {
            self.check(&url, url_host.as_ref())?;
            let port = url.port_or_known_default().unwrap_or(HTTPS_PORT);
            let client = self.client(port).map_err(|reason| self.unavailable(reason))?;
            let mut request = client.request(method.clone(), url.clone());
            // The configured headers, with keys, are for the original origin only.
            if url.origin() == origin {
                request = request.headers(self.headers.clone());
            }
            if let Some(body) = &body {
                request = request.header(CONTENT_TYPE, "application/json").body(body.clone());
            }
            let response = request.send().await.map_err(|error| self.unavailable(describe(error)))?;
            if !response.status().is_redirection() {
                return Ok(response);
            }
            if redirects == self.settings.redirects_max {
                let status = response.status();
                return Err(self.unavailable(format!(
                    "the server answered {status}, a redirect, which is not followed"
                )));
            }
            redirects += 1;
            let next = self.next(&url, &response)?;
            if matches!(
                response.status(),
                StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND | StatusCode::SEE_OTHER
            ) && method != Method::HEAD
            {
                (method, body) = (Method::GET, None);
            }
            url = next;
        }
    }

    /// Returns the target of a redirect.
    fn next(&self, from: &Url, response: &Response) -> Result<Url, RemoteFailure> {
        let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        let next = location.and_then(|location| from.join(location).ok());
        let next = next.ok_or_else(|| {
            self.unavailable("the server answered a redirect without a valid target".to_owned())
        })?;
        if from.scheme() == "https" && next.scheme() != "https" {
            return Err(self.unavailable(
                "the server answered a redirect away from https, which is not followed".to_owned(),
            ));
        }
        Ok(next)
    }

    /// Checks that a URL is allowed. The addresses of a name are checked when it is resolved; a URL with an address is
    /// never resolved, so it is checked here.
    fn check(&self, url: &Url, url_host: Option<&AllowedHost>) -> Result<(), RemoteFailure> {
        if !matches!(url.scheme(), "http" | "https") || !url.username().is_empty() || url.password().is_some()
        {
            return Err(self.unavailable("only plain http and https addresses are allowed".to_owned()));
        }
        if !url_host.into_iter().chain(&self.settings.hosts).any(|host| host.allows(url)) {
            return Err(self.unavailable("its host is not among the allowed hosts".to_owned()));
        }
        self.settings.network.check(url).map_err(|_| self.unavailable(NoAddress.to_string()))
    }

    /// Returns the client for a port.
    fn client(&self, port: u16) -> Result<Client, String> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, client)) = clients.iter().find(|(other, _)| *other == port) {
            return Ok(client.clone());
        }
        let client = client(&self.settings.network, port)?;
        clients.push((port, client.clone()));
        Ok(client)
    }

    fn unavailable(&self, reason: String) -> RemoteFailure {
        RemoteFailure::Unavailable(self.secrets.cut_from(reason))
    }
}

/// Creates a client that resolves names for this port. The resolver does not learn the port of a request.
fn client(rules: &Arc<NetworkRules>, port: u16) -> Result<Client, String> {
    let resolver = || CheckedResolver { rules: rules.clone(), port };
    super::build(|| super::client_builder().dns_resolver(resolver())).map_err(|error| describe(error.0))
}

/// Reads the body as text, up to the limit.
async fn read_body(mut response: Response, bytes_max: usize) -> Result<String, RemoteFailure> {
    let mut body = Vec::new();
    loop {
        match response.chunk().await {
            Ok(Some(bytes)) if body.len() + bytes.len() > bytes_max => return Err(RemoteFailure::TooLong),
            Ok(Some(bytes)) => body.extend_from_slice(&bytes),
            Ok(None) => break,
            Err(error) => return Err(RemoteFailure::Unavailable(describe(error))),
        }
    }
    String::from_utf8(body).map_err(|_| RemoteFailure::Unavailable("its answer is not text".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_allowed_with_its_port() {
        fn check(allowed: &str, url: &str, expected: bool) {
            let host = AllowedHost::parse(allowed).unwrap();
            assert_eq!(host.allows(&Url::parse(url).unwrap()), expected, "{allowed} {url}");
        }
        check("a.example", "https://a.example/x", true);
        check("a.example", "http://a.example:80/x", true);
        check("a.example", "https://a.example:8443/x", false);
        check("a.example:8443", "https://a.example:8443/x", true);
        check("a.example:80", "http://a.example/", true);
        check("a.example:80", "https://a.example/", false);
        check("A.Example", "https://a.example/", true);
        check("a.example", "https://b.a.example/", false);
        check("a.example", "https://a.example.evil/", false);
        check("127.0.0.1:5", "http://127.0.0.1:5/", true);
        for wrong in ["", "a b", "http://a", "a/b", "u@a", "a:99999", "a?b"] {
            assert!(AllowedHost::parse(wrong).is_err(), "{wrong}");
        }
    }
}
