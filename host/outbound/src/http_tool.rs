//! Asks an address over HTTP on behalf of a model, within what the operator allows.
//!
//! The operator says method, address, headers and which hosts may be reached; the model
//! says what goes into the address's holes and the body. Arguments are encoded so that
//! they stay in their holes. Nothing that comes back, error or answer, has a secret or an
//! address of ours in it.

#![expect(
    clippy::disallowed_types,
    reason = "arguments that a schema was held against, of one call and bounded"
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

/// How much of an answer that is an error is shown.
const ERROR_BYTES_SHOWN: usize = 2048;

/// The port of nearly every address.
const HTTPS_PORT: u16 = 443;

/// An address to be asked, as the operator describes it.
#[derive(Clone, Debug)]
pub struct HttpToolSettings {
    /// `GET` and so on.
    pub method: Method,
    /// The address, with holes for arguments and secrets.
    pub url: UrlTemplate,
    /// Headers of every request, perhaps with secrets.
    pub headers: Vec<(HeaderName, SecretText)>,
    /// The hosts that may be asked, the one in the address not among them.
    pub hosts: Vec<AllowedHost>,
    /// Where those hosts may lead.
    pub network: Arc<NetworkRules>,
    /// Redirects that are followed, each to an allowed host.
    pub redirects_max: u32,
    /// What the arguments have to be: a JSON Schema.
    pub parameters: Value,
}

/// A host that may be asked, with the port or, without one, those of the schemes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedHost {
    host: String,
    port: Option<u16>,
}

impl AllowedHost {
    /// Reads `host` or `host:port`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is no host, such as api.example.com or api.example.com:8443");
        let url = Url::parse(&format!("http://{text}/")).map_err(|_| wrong())?;
        let plain = url.path() == "/" && url.query().is_none() && url.username().is_empty();
        let host =
            url.host_str().filter(|_| plain && !text.contains(['/', '?', '#', '@'])).ok_or_else(wrong)?;
        // Port 80 is left out by the parser, also where it was written.
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

/// Why a call gave no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemoteFailure {
    /// It was answered with an error, which is for the model to read.
    Failed(String),
    /// There was no answer, or none that could be used: why.
    Unavailable(String),
    /// The answer is longer than it may be.
    TooLong,
}

/// An address that is ready to be asked.
#[derive(Debug)]
pub struct HttpTool {
    /// One for each port that was asked so far, of which the hosts that may be asked have few.
    clients: Mutex<Vec<(u16, Client)>>,
    settings: HttpToolSettings,
    headers: HeaderMap,
    arguments: jsonschema::Validator,
    secrets: Secrets,
    url_secrets: Vec<(String, String)>,
}

impl HttpTool {
    /// Takes the secrets out of the environment. Every problem names its field.
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

    /// Asks with the arguments that the model wrote. The result has at most so many bytes.
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
        Err(RemoteFailure::Failed(format!("it was answered {status}: {shown}")))
    }

    /// The arguments, which have to be what the schema says.
    fn read(&self, arguments: &str) -> Result<Map<String, Value>, String> {
        let text = if arguments.trim().is_empty() { "{}" } else { arguments };
        let value: Value = serde_json::from_str(text)
            .map_err(|error| format!("the arguments are not valid JSON: {error}"))?;
        if let Err(error) = self.arguments.validate(&value) {
            return Err(format!("the arguments do not fit: {error} (at '{}')", error.instance_path()));
        }
        match value {
            Value::Object(fields) => Ok(fields),
            _ => Err("the arguments are no JSON object".to_owned()),
        }
    }

    /// Sends the request and follows redirects as far as the operator allows.
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
        let asked = AllowedHost::of(&url).filter(|_| !self.settings.url.is_whole());
        let mut redirects = 0;
        loop {
            self.check(&url, asked.as_ref())?;
            let port = url.port_or_known_default().unwrap_or(HTTPS_PORT);
            let client = self.client(port).map_err(|reason| self.unavailable(reason))?;
            let mut request = client.request(method.clone(), url.clone());
            // A key must not travel to where nobody sent it.
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
                return Err(
                    self.unavailable(format!("it was answered {status}, a redirect, which is not followed"))
                );
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

    /// Where a redirect leads.
    fn next(&self, from: &Url, response: &Response) -> Result<Url, RemoteFailure> {
        let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        let next = location.and_then(|location| from.join(location).ok());
        let next =
            next.ok_or_else(|| self.unavailable("it was answered a redirect to nowhere".to_owned()))?;
        if from.scheme() == "https" && next.scheme() != "https" {
            return Err(self.unavailable(
                "it was answered a redirect away from https, which is not followed".to_owned(),
            ));
        }
        Ok(next)
    }

    /// Sees that the address may be asked. A name's addresses are checked when it is
    /// resolved; one that is an address already never is.
    fn check(&self, url: &Url, asked: Option<&AllowedHost>) -> Result<(), RemoteFailure> {
        if !matches!(url.scheme(), "http" | "https") || !url.username().is_empty() || url.password().is_some()
        {
            return Err(self.unavailable("only plain http and https addresses are asked".to_owned()));
        }
        if !asked.into_iter().chain(&self.settings.hosts).any(|host| host.allows(url)) {
            return Err(self.unavailable("its host is not among those that may be asked".to_owned()));
        }
        self.settings.network.check(url).map_err(|_| self.unavailable(NoAddress.to_string()))
    }

    /// The client for a port.
    fn client(&self, port: u16) -> Result<Client, String> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, client)) = clients.iter().find(|(of, _)| *of == port) {
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

/// A client that resolves names for this port. It is told no port when it does.
fn client(rules: &Arc<NetworkRules>, port: u16) -> Result<Client, String> {
    let resolver = CheckedResolver { rules: rules.clone(), port };
    super::client_builder().dns_resolver(resolver).build().map_err(describe)
}

/// The body as text, up to the limit.
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
    String::from_utf8(body).map_err(|_| RemoteFailure::Unavailable("its answer is no text".to_owned()))
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
