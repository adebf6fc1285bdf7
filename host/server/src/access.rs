//! Access control by a request's head, before its body is read.
//!
//! The first check is against web pages: any page can make a browser post to this machine (cross-site request forgery),
//! and a page whose host name resolves to this machine can also read the answers (DNS rebinding). `Origin` and `Host`
//! reveal both, and pages cannot choose them. The second check is the server's key, if it has one.

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

use super::error::RequestRefused;
use super::worker::WorkerIdentity;
use crate::connection::Crowded;
use crate::dialect::ors;
use crate::dialect::osmosis::a;
use rollout_assembly::config::{AllowedHost, AllowedOrigin, Config};
use rollout_core::telemetry::Metrics;
use rollout_outbound::Secret;
use rollout_wire::text::beginning;

/// Maximum number of bytes of a name that an error repeats.
const SHOWN_BYTES_MAX: usize = 100;

/// The rules that every request is checked against.
pub struct Access {
    /// The key that every request must carry, if there is one.
    pub server_key: Option<Secret>,
    /// Whether every request must carry a key: the server's, or one that the dispatcher has checked.
    pub is_keyed: bool,
    /// Host names of the server, besides those of this machine. With `None`, a keyed server answers under every name.
    pub allowed_hosts: Option<Vec<AllowedHost>>,
    /// Origins of web pages that may send requests.
    pub allowed_origins: Vec<AllowedOrigin>,
}

impl Access {
    /// Creates the rules of a configuration. `is_keyed` is whether every request must carry a key.
    pub fn new(config: &Config, is_keyed: bool, server_key: Option<Secret>) -> Self {
        Self {
            server_key,
            is_keyed,
            allowed_hosts: config.allowed_hosts.clone(),
            allowed_origins: config.allowed_origins.clone(),
        }
    }
}

/// State of [`check_head`].
pub(super) struct Gate {
    pub access: Arc<Access>,
    /// The identity of a worker, which only its gateways may reach.
    pub worker: Option<Arc<WorkerIdentity>>,
    /// Cheap routes that must work on a full server.
    pub short: Vec<(Method, &'static str)>,
    pub metrics: Arc<Metrics>,
}

/// Refuses requests with an unknown `Host` or `Origin`, on a worker those that no gateway sent, and on a full server all but
/// those for the short routes.
pub(super) async fn check_head(State(gate): State<Arc<Gate>>, request: Request, next: Next) -> Response {
    let checked = match &gate.worker {
        // The gateway has checked the names.
        Some(worker) if worker.is_gateway(request.headers()) => Ok(()),
        Some(worker) => worker.check_probe(&request).and_then(|()| gate.access.check_names(&request)),
        None => gate.access.check_names(&request),
    };
    if let Err(reason) = checked {
        gate.metrics.unauthorized();
        return RequestRefused::Forbidden(reason).into_response();
    }
    let is_crowded = request.extensions().get::<Crowded>().is_some();
    if is_crowded && !gate.is_short(request.method(), request.uri().path()) {
        return RequestRefused::Crowded.into_response();
    }
    next.run(request).await
}

/// Returns the key of a request: the text after `Bearer ` (case-sensitive), or the password of `Basic` credentials with
/// any user name.
///
/// HTTP clients send `Basic` credentials for a URL with a password, `https://rollout:KEY@host`. The published clients
/// of generations B and C, which know no server key, pass one this way.
pub(super) fn given_key(headers: &HeaderMap) -> Option<Cow<'_, str>> {
    // A key may have any text, and `HeaderValue::to_str` accepts only ASCII.
    let header = std::str::from_utf8(headers.get(AUTHORIZATION)?.as_bytes()).ok()?;
    if let Some(key) = header.strip_prefix("Bearer ") {
        return Some(Cow::Borrowed(key));
    }
    let credentials = BASE64_STANDARD.decode(header.strip_prefix("Basic ")?).ok()?;
    let credentials = String::from_utf8(credentials).ok()?;
    let (_, password) = credentials.split_once(':')?;
    Some(Cow::Owned(password.to_owned()))
}

/// Returns the key of a request, passed in the way of the protocol that has its path. The path is below a tenant's plugin.
pub(super) fn key_for<'h>(path: &str, headers: &'h HeaderMap) -> Option<Cow<'h, str>> {
    if a::has_path(path) {
        std::str::from_utf8(a::given_key(headers)).ok().map(Cow::Borrowed)
    } else if ors::has_path(path)
        && let Some(key) = ors::given_key(headers)
    {
        Some(Cow::Borrowed(key))
    } else {
        given_key(headers)
    }
}

/// Returns whether a request carries the server's key.
pub(super) fn is_given(key: &Secret, headers: &HeaderMap) -> bool {
    given_key(headers).is_some_and(|given| given.as_bytes().ct_eq(key.expose().as_bytes()).into())
}

impl Gate {
    pub(super) fn is_short(&self, method: &Method, path: &str) -> bool {
        self.short.iter().any(|(short_method, short_path)| short_method == method && *short_path == path)
    }
}

impl Access {
    /// Checks the server's name in a request and the origin of the web page that sent it.
    pub(super) fn check_names(&self, request: &Request) -> Result<(), String> {
        let host = given_host(request)?;
        if let Some(host) = &host {
            self.check_host(host)?;
        }
        self.check_origin(request.headers(), host.as_ref())
    }

    /// Checks the server's name. The owner of a name can make it resolve to this machine; addresses and the names that
    /// resolvers reserve for the machine itself are safe.
    fn check_host(&self, host: &Authority) -> Result<(), String> {
        let name = host.host();
        let is_checked = !self.is_keyed || self.allowed_hosts.is_some();
        let allowed = self.allowed_hosts.iter().flatten().any(|allowed| allowed.is(name));
        if !is_checked || allowed || is_address(name) || is_this_machine(name) {
            return Ok(());
        }
        let name = beginning(name, SHOWN_BYTES_MAX);
        Err(format!(
            "this server does not answer for the host '{name}' in the header Host; to allow it, start the server \
             with --allow-host {name}, or add it to allowed-hosts in the configuration"
        ))
    }

    /// Checks the origin, which only browsers send. An origin with the server's own address is allowed.
    fn check_origin(&self, headers: &HeaderMap, host: Option<&Authority>) -> Result<(), String> {
        for origin in headers.get_all(ORIGIN) {
            let origin = String::from_utf8_lossy(origin.as_bytes());
            let is_own = host.is_some_and(|host| is_origin_of(&origin, host));
            if !is_own && !self.allowed_origins.iter().any(|allowed| allowed.is(&origin)) {
                let origin = beginning(&origin, SHOWN_BYTES_MAX);
                return Err(format!(
                    "web pages of '{origin}', the header Origin of this request, may not use this server; to allow \
                     them, start the server with --allow-origin {origin}, or add it to allowed-origins in the \
                     configuration"
                ));
            }
        }
        Ok(())
    }
}

/// Returns the name and port under which a request addresses the server. Every browser sends them.
fn given_host(request: &Request) -> Result<Option<Authority>, String> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let (first, second) = (hosts.next(), hosts.next());
    if second.is_some() {
        return Err("the request has several Host headers; send one".to_owned());
    }
    // A request target in absolute form contains the name, and takes precedence over `Host`.
    if let Some(authority) = request.uri().authority() {
        return Ok(Some(authority.clone()));
    }
    let Some(host) = first else { return Ok(None) };
    let parsed = Authority::try_from(host.as_bytes()).ok().filter(|host| !host.as_str().contains('@'));
    parsed.map(Some).ok_or_else(|| {
        let host = String::from_utf8_lossy(host.as_bytes());
        format!(
            "invalid header Host '{}': it must be a name or an address, with a port or without",
            beginning(&host, SHOWN_BYTES_MAX)
        )
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

    fn check_headers(access: &Access, headers: &[(&str, &str)]) -> Result<(), String> {
        let mut request = Request::builder().uri("/health");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        access.check_names(&request.body(Body::empty()).unwrap())
    }

    #[test]
    fn unknown_host_names_are_refused_with_the_option_that_allows_them() {
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
            assert_eq!(check_headers(&open, &[("host", host)]), Ok(()), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:9000",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "2130706433",
        ] {
            let error = check_headers(&open, &[("host", host)]).unwrap_err();
            assert!(error.contains("--allow-host") && error.contains("allowed-hosts"), "{host}: {error}");
        }
        for host in ["", "a@localhost", "a b", "http://localhost"] {
            assert!(check_headers(&open, &[("host", host)]).is_err(), "{host}");
        }
        assert_eq!(check_headers(&open, &[]), Ok(()), "every browser sends Host");
        assert!(check_headers(&open, &[("host", "localhost"), ("host", "evil.example")]).is_err());
    }

    #[test]
    fn a_key_is_read_after_bearer_or_from_a_password() {
        let check = |header: &str, expected: Option<&str>| {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, header.parse().unwrap())]);
            assert_eq!(given_key(&headers).as_deref(), expected, "{header}");
            assert_eq!(is_given(&Secret::new("k"), &headers), expected == Some("k"), "{header}");
        };
        let basic = |credentials: &str| format!("Basic {}", BASE64_STANDARD.encode(credentials));
        check("Bearer k", Some("k"));
        check("Bearer é", Some("é"));
        check("Bearer  k", Some(" k"));
        check("bearer k", None);
        check("k", None);
        check(&basic("user:k"), Some("k"));
        check(&basic(":k"), Some("k"));
        check(&basic("user:k:l"), Some("k:l"));
        check(&basic("k:"), Some(""));
        check(&basic("k"), None);
        check("Basic k", None);
        check("Basic k:k", None);
        assert_eq!(given_key(&HeaderMap::new()), None);
    }

    #[test]
    fn a_keyed_server_answers_under_every_name_unless_names_are_configured() {
        let service = [("host", "rollouts.prod.svc.cluster.local:9000")];
        let check = |access: Access| check_headers(&access, &service);
        assert_eq!(check(access(true, None, &[])), Ok(()));
        assert!(check(access(true, Some(&[]), &[])).is_err());
        assert_eq!(check(access(true, Some(&["rollouts.prod.svc.cluster.local"]), &[])), Ok(()));
        assert_eq!(check(access(false, Some(&["*.svc.cluster.local"]), &[])), Ok(()));
        assert!(check(access(false, Some(&["svc.cluster.local"]), &[])).is_err());
    }

    #[test]
    fn pages_of_other_origins_are_refused_with_and_without_a_key() {
        for access in [access(false, None, &[]), access(true, None, &[])] {
            let check = |origin: &str, expected: bool| {
                let result = check_headers(&access, &[("host", "localhost:9000"), ("origin", origin)]);
                assert_eq!(result.is_ok(), expected, "{origin}: {result:?}");
            };
            check("http://localhost:9000", true);
            check("https://localhost:9000", true);
            check("http://localhost:9001", false);
            check("http://evil.example", false);
            check("null", false);
            check("", false);
        }
        let page = [("host", "localhost:9000"), ("origin", "https://board.example")];
        assert_eq!(check_headers(&access(false, None, &["https://board.example"]), &page), Ok(()));
        let error = check_headers(&access(false, None, &["https://other.example"]), &page).unwrap_err();
        assert!(error.contains("--allow-origin https://board.example"), "{error}");
    }
}
