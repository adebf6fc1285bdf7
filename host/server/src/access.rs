//! Who may ask at all, found out from a request's head, before anything of its body is read.
//!
//! Two things are asked. Whether a web page is behind the request: a page from anywhere may
//! have a browser post to this machine, and one whose name was pointed at this machine may read
//! the answers. Both follow from `Origin` and `Host`, which pages cannot choose. And whether it
//! carries the server's key, where there is one.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::prelude::{BASE64_STANDARD, Engine};
use subtle::ConstantTimeEq;

use super::error::Refused;
use crate::connection::Crowded;
use rollout_assembly::config::{AllowedHost, AllowedOrigin};
use rollout_core::telemetry::Metrics;
use rollout_outbound::Secret;
use rollout_wire::text::beginning;

/// The longest part of a name that is repeated.
const SHOWN_BYTES_MAX: usize = 100;

/// Who may ask.
pub struct Access {
    /// The key that every request must carry, if there is one.
    pub server_key: Option<Secret>,
    /// Whether every request must carry a key, this one or one of others.
    pub is_keyed: bool,
    /// Names, besides this machine's own, under which the server may be asked. None leaves
    /// it to the key, where there is one.
    pub allowed_hosts: Option<Vec<AllowedHost>>,
    /// Web pages that may ask.
    pub allowed_origins: Vec<AllowedOrigin>,
}

/// What a request's head is checked against.
pub(super) struct Gate {
    pub access: Arc<Access>,
    /// What takes no time and has to work on a server that is full.
    pub short: Vec<(Method, &'static str)>,
    pub metrics: Arc<Metrics>,
}

/// Lets a request through whose `Host` and `Origin` are known, and which is not too much for
/// a server that has no room.
pub(super) async fn check_names(State(gate): State<Arc<Gate>>, request: Request, next: Next) -> Response {
    if let Err(why) = gate.access.names(&request) {
        gate.metrics.unauthorized();
        return Refused::Forbidden(why).into_response();
    }
    let is_crowded = request.extensions().get::<Crowded>().is_some();
    if is_crowded && !gate.is_short(request.method(), request.uri().path()) {
        return Refused::Crowded.into_response();
    }
    next.run(request).await
}

/// The key that a request gives: after the word `Bearer`, to the letter, or as the password of `Basic`
/// credentials, whatever their user is called.
///
/// HTTP clients send the latter where a URL has a password, `https://rollout:KEY@host`. So the clients
/// that were published for generations B and C, which know no server key, can be given one.
pub(super) fn given_key(headers: &HeaderMap) -> Option<Cow<'_, str>> {
    // A key may have any text, and a header's own reading takes ASCII alone.
    let given = std::str::from_utf8(headers.get(AUTHORIZATION)?.as_bytes()).ok()?;
    if let Some(key) = given.strip_prefix("Bearer ") {
        return Some(Cow::Borrowed(key));
    }
    let credentials = BASE64_STANDARD.decode(given.strip_prefix("Basic ")?).ok()?;
    let credentials = String::from_utf8(credentials).ok()?;
    let (_, password) = credentials.split_once(':')?;
    Some(Cow::Owned(password.to_owned()))
}

/// Whether a request gives the server's key.
pub(super) fn is_given(key: &Secret, headers: &HeaderMap) -> bool {
    given_key(headers).is_some_and(|given| given.as_bytes().ct_eq(key.expose().as_bytes()).into())
}

impl Gate {
    pub(super) fn is_short(&self, method: &Method, path: &str) -> bool {
        self.short.iter().any(|(its, short)| its == method && *short == path)
    }
}

impl Access {
    /// Checks the names that a request gives: the server's, and the page's behind it.
    pub(super) fn names(&self, request: &Request) -> Result<(), String> {
        let host = given_host(request)?;
        if let Some(host) = &host {
            self.host(host)?;
        }
        self.origin(request.headers(), host.as_ref())
    }

    /// A name can be pointed at this machine by whoever owns it; an address cannot, nor can the
    /// names that every resolver keeps for the machine itself.
    fn host(&self, host: &Authority) -> Result<(), String> {
        let name = host.host();
        let is_checked = !self.is_keyed || self.allowed_hosts.is_some();
        let allowed = self.allowed_hosts.iter().flatten().any(|allowed| allowed.is(name));
        if !is_checked || allowed || is_address(name) || is_this_machine(name) {
            return Ok(());
        }
        let name = beginning(name, SHOWN_BYTES_MAX);
        Err(format!(
            "this server is not known as '{name}', the name in Host; --allow-host {name}, or allowed-hosts in \
             its configuration, makes it known"
        ))
    }

    /// Browsers say which page asks; nobody else does. The server's own pages, if it had any,
    /// would have its address.
    fn origin(&self, headers: &HeaderMap, host: Option<&Authority>) -> Result<(), String> {
        for origin in headers.get_all(ORIGIN) {
            let origin = String::from_utf8_lossy(origin.as_bytes());
            let own = host.is_some_and(|host| is_origin_of(&origin, host));
            if !own && !self.allowed_origins.iter().any(|allowed| allowed.is(&origin)) {
                let origin = beginning(&origin, SHOWN_BYTES_MAX);
                return Err(format!(
                    "web pages of '{origin}', the Origin of this request, may not ask this server; \
                     --allow-origin {origin}, or allowed-origins in its configuration, lets them"
                ));
            }
        }
        Ok(())
    }
}

/// The name under which a request asks: none where it says none, which no browser does.
fn given_host(request: &Request) -> Result<Option<Authority>, String> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let (first, second) = (hosts.next(), hosts.next());
    if second.is_some() {
        return Err("this request has several Host headers; it may have one".to_owned());
    }
    // A request to a proxy has it in its address, which counts more then.
    if let Some(authority) = request.uri().authority() {
        return Ok(Some(authority.clone()));
    }
    let Some(host) = first else { return Ok(None) };
    let parsed = Authority::try_from(host.as_bytes()).ok().filter(|host| !host.as_str().contains('@'));
    parsed.map(Some).ok_or_else(|| {
        let host = String::from_utf8_lossy(host.as_bytes());
        format!("Host is '{}', which is not a name with a port", beginning(&host, SHOWN_BYTES_MAX))
    })
}

fn is_origin_of(origin: &str, host: &Authority) -> bool {
    let rest = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    rest.is_some_and(|rest| rest.eq_ignore_ascii_case(host.as_str()))
}

fn is_address(name: &str) -> bool {
    let name = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.parse::<IpAddr>().is_ok()
}

fn is_this_machine(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    fn access(key: bool, hosts: Option<&[&str]>, origins: &[&str]) -> Access {
        Access {
            is_keyed: key,
            server_key: key.then(|| Secret::new("k")),
            allowed_hosts: hosts.map(|hosts| hosts.iter().map(|host| host.parse().unwrap()).collect()),
            allowed_origins: origins.iter().map(|origin| origin.parse().unwrap()).collect(),
        }
    }

    fn asked(access: &Access, headers: &[(&str, &str)]) -> Result<(), String> {
        let mut request = Request::builder().uri("/health");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        access.names(&request.body(Body::empty()).unwrap())
    }

    #[test]
    fn names_that_somebody_else_may_point_here_are_refused_with_the_option_that_allows_them() {
        let open = access(false, None, &[]);
        for host in [
            "localhost",
            "localhost:9000",
            "LOCALHOST.:9000",
            "a.localhost",
            "127.0.0.1:9000",
            "[::1]:9000",
            "192.168.1.7",
        ] {
            assert_eq!(asked(&open, &[("host", host)]), Ok(()), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:9000",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "2130706433",
        ] {
            let why = asked(&open, &[("host", host)]).unwrap_err();
            assert!(why.contains("--allow-host") && why.contains("allowed-hosts"), "{host}: {why}");
        }
        for host in ["", "a@localhost", "a b", "http://localhost"] {
            assert!(asked(&open, &[("host", host)]).is_err(), "{host}");
        }
        assert_eq!(asked(&open, &[]), Ok(()), "no browser leaves it out");
        assert!(asked(&open, &[("host", "localhost"), ("host", "evil.example")]).is_err());
    }

    #[test]
    fn a_key_is_given_after_bearer_or_as_a_password() {
        let check = |given: &str, expected: Option<&str>| {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, given.parse().unwrap())]);
            assert_eq!(given_key(&headers).as_deref(), expected, "{given}");
            assert_eq!(is_given(&Secret::new("k"), &headers), expected == Some("k"), "{given}");
        };
        let basic = |credentials: &str| format!("Basic {}", BASE64_STANDARD.encode(credentials));
        check("Bearer k", Some("k"));
        check("Bearer é", Some("é"));
        check("Bearer  k", Some(" k"));
        check("bearer k", None);
        check("k", None);
        check(&basic("anybody:k"), Some("k"));
        check(&basic(":k"), Some("k"));
        check(&basic("anybody:k:l"), Some("k:l"));
        check(&basic("k:"), Some(""));
        check(&basic("k"), None);
        check("Basic k", None);
        check("Basic k:k", None);
        assert_eq!(given_key(&HeaderMap::new()), None);
    }

    #[test]
    fn a_key_is_proof_enough_unless_names_were_given() {
        let service = [("host", "rollouts.prod.svc.cluster.local:9000")];
        assert_eq!(asked(&access(true, None, &[]), &service), Ok(()));
        assert!(asked(&access(true, Some(&[]), &[]), &service).is_err());
        assert_eq!(asked(&access(true, Some(&["rollouts.prod.svc.cluster.local"]), &[]), &service), Ok(()));
        assert_eq!(asked(&access(false, Some(&["*.svc.cluster.local"]), &[]), &service), Ok(()));
        assert!(asked(&access(false, Some(&["svc.cluster.local"]), &[]), &service).is_err());
    }

    #[test]
    fn pages_of_others_are_refused_whatever_the_key() {
        for access in [access(false, None, &[]), access(true, None, &[])] {
            let check = |origin: &str, expected: bool| {
                let asked = asked(&access, &[("host", "localhost:9000"), ("origin", origin)]);
                assert_eq!(asked.is_ok(), expected, "{origin}: {asked:?}");
            };
            check("http://localhost:9000", true);
            check("https://localhost:9000", true);
            check("http://localhost:9001", false);
            check("http://evil.example", false);
            check("null", false);
            check("", false);
        }
        let page = [("host", "localhost:9000"), ("origin", "https://board.example")];
        assert_eq!(asked(&access(false, None, &["https://board.example"]), &page), Ok(()));
        let why = asked(&access(false, None, &["https://other.example"]), &page).unwrap_err();
        assert!(why.contains("--allow-origin https://board.example"), "{why}");
    }
}
