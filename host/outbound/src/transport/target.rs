//! Targets of requests: the server, and the start of every request to it.

use std::fmt;

use base64::prelude::{BASE64_STANDARD, Engine};
use percent_encoding::percent_decode_str;
use reqwest::Url;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use rustls::pki_types::ServerName;

use super::super::USER_AGENT;
use super::super::network::{HostAndPort, literal};
use super::spare;

/// A target of requests.
#[derive(Clone)]
pub(crate) struct Target {
    /// Scheme, host and port, which identify reusable connections.
    origin: Box<str>,
    /// Index in `origin` where host and port begin.
    authority_at: usize,
    /// The port.
    port: u16,
    /// Whether the host is a name instead of an address.
    is_name: bool,
    /// The name that the server's certificate must prove, for an encrypted connection.
    server_name: Option<ServerName<'static>>,
    /// The start of every request, up to the fields that differ.
    head: Box<str>,
    /// User and password in the URL, for requests without other authorization.
    basic: Option<HeaderValue>,
}

/// Omits path and query, which may contain a key.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").field("origin", &self.origin).finish_non_exhaustive()
    }
}

impl Target {
    /// Returns the target of an http or https URL, or `None` for any other URL or one without a host.
    pub(crate) fn of(url: &Url) -> Option<Self> {
        let (host, port) = (url.host_str()?, url.port_or_known_default()?);
        let server_name = match url.scheme() {
            "http" => None,
            "https" => Some(ServerName::try_from(host.trim_matches(['[', ']']).to_owned()).ok()?),
            _ => return None,
        };
        let authority = match url.port() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        };
        let query = url.query().map(|query| format!("?{query}")).unwrap_or_default();
        let path = url.path();
        Some(Self {
            origin: format!("{}://{host}:{port}", url.scheme()).into(),
            authority_at: url.scheme().len() + "://".len(),
            port,
            is_name: literal(url).is_none(),
            server_name,
            head: format!(
                "POST {path}{query} HTTP/1.1\r\nhost: {authority}\r\nuser-agent: {USER_AGENT}\r\naccept: */*\r\n"
            )
            .into(),
            basic: basic(url),
        })
    }

    pub(crate) fn origin(&self) -> &str {
        &self.origin
    }

    /// Returns host and port for connecting.
    pub(crate) fn authority(&self) -> &str {
        &self.origin[self.authority_at..]
    }

    /// Returns host and port for a check against the network rules.
    pub(crate) fn host_and_port(&self) -> HostAndPort<'_> {
        let host = self.authority().rsplit_once(':').map_or("", |(host, _)| host);
        HostAndPort { name: self.is_name.then_some(host), port: self.port }
    }

    pub(crate) fn server_name(&self) -> Option<&ServerName<'static>> {
        self.server_name.as_ref()
    }

    /// Returns the bytes of a request with these headers and this body.
    pub(crate) fn request(&self, headers: &HeaderMap, body: &[u8]) -> Vec<u8> {
        let mut request = self.head(headers, body.len());
        request.extend_from_slice(body);
        request
    }

    /// Returns the head of a request with a body of `body_bytes` bytes, with room for the body.
    pub(crate) fn head(&self, headers: &HeaderMap, body_bytes: usize) -> Vec<u8> {
        let mut request = spare::take(self.head.len() + 512 + body_bytes);
        request.extend_from_slice(self.head.as_bytes());
        let mut field = |name: &str, value: &HeaderValue| {
            for part in [name.as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
                request.extend_from_slice(part);
            }
        };
        headers.iter().for_each(|(name, value)| field(name.as_str(), value));
        if let Some(basic) = self.basic.as_ref().filter(|_| !headers.contains_key(AUTHORIZATION)) {
            field(AUTHORIZATION.as_str(), basic);
        }
        request.extend_from_slice(format!("content-length: {body_bytes}\r\n\r\n").as_bytes());
        request
    }
}

/// Returns the header for user and password in a URL.
fn basic(url: &Url) -> Option<HeaderValue> {
    if url.username().is_empty() && url.password().is_none() {
        return None;
    }
    let decoded = |text: &str| percent_decode_str(text).collect::<Vec<u8>>();
    let mut both = decoded(url.username());
    both.push(b':');
    both.extend(decoded(url.password().unwrap_or_default()));
    let mut value = HeaderValue::from_str(&format!("Basic {}", BASE64_STANDARD.encode(both))).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_has_the_origin_and_the_start_of_a_request() {
        fn check(url: &str, expected: Option<(&str, &str, &str)>) {
            let target = Target::of(&Url::parse(url).unwrap());
            let seen = target.as_ref().map(|target| {
                (target.origin(), target.authority(), target.head.split("\r\nuser").next().unwrap())
            });
            assert_eq!(seen, expected, "{url}");
        }
        check("http://h/v1?x=1", Some(("http://h:80", "h:80", "POST /v1?x=1 HTTP/1.1\r\nhost: h")));
        check("http://h:81/", Some(("http://h:81", "h:81", "POST / HTTP/1.1\r\nhost: h:81")));
        check("https://h/", Some(("https://h:443", "h:443", "POST / HTTP/1.1\r\nhost: h")));
        check(
            "http://[::1]:81/a%20b",
            Some(("http://[::1]:81", "[::1]:81", "POST /a%20b HTTP/1.1\r\nhost: [::1]:81")),
        );
        check("https://[::1]/", Some(("https://[::1]:443", "[::1]:443", "POST / HTTP/1.1\r\nhost: [::1]")));
        check("ftp://h/", None);
    }

    #[test]
    fn a_user_in_the_url_is_sent_if_there_is_no_key() {
        let target = Target::of(&Url::parse("http://a%40b:c@h/").unwrap()).unwrap();
        let sent = |headers: &HeaderMap| String::from_utf8(target.request(headers, b"{}")).unwrap();
        let plain = sent(&HeaderMap::new());
        assert!(plain.contains("\r\nauthorization: Basic YUBiOmM=\r\n"), "{plain}");
        assert!(plain.ends_with("\r\ncontent-length: 2\r\n\r\n{}"), "{plain}");
        assert!(!plain.contains("a%40b"), "{plain}");
        let key = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static("Bearer k"))]);
        assert_eq!(sent(&key).matches("authorization").count(), 1);
        assert!(!format!("{target:?}").contains("YUBiOmM"), "{target:?}");
    }
}
