//! Sessions of browsers that signed in with a key.
//!
//! A session has the key, which is checked again with each request: a session ends when its key is revoked or expires.
//! The browser has a random token in a cookie that scripts cannot read and that no other site can send. The server
//! stores the token's digest.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::header::{COOKIE, HOST};
use axum::http::{HeaderMap, HeaderValue};
use tokio::time::Instant;

use crate::random;
use rollout_outbound::Secret;
use rollout_wire::digest::sha256_hex;

/// Maximum time of a session.
const TIME_MAX: Duration = Duration::from_secs(12 * 3600);

/// Maximum number of sessions of all tenants. The oldest one of the tenant with the most sessions ends to make room for
/// a new one, so a tenant with many keys ends its own sessions only.
const SESSIONS_MAX: usize = 4096;

/// Maximum number of sessions of one key.
const PER_KEY_MAX: usize = 32;

/// The sessions of a server.
#[derive(Default)]
pub(crate) struct Sessions(Mutex<HashMap<String, Session>>);

struct Session {
    key: Secret,
    /// The key's tenant; `None` for operators and on a server of one plugin.
    tenant: Option<i64>,
    began: Instant,
}

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Session>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a session of a tenant's key and returns its token.
    pub(crate) fn begin(&self, key: &str, tenant: Option<i64>, now: Instant) -> String {
        let token = random::token();
        let mut sessions = self.lock();
        sessions.retain(|_, session| now < session.began + TIME_MAX);
        let oldest = |sessions: &HashMap<String, Session>, matches: &dyn Fn(&Session) -> bool| {
            let matching = sessions.iter().filter(|(_, session)| matches(session));
            matching.min_by_key(|(_, session)| session.began).map(|(digest, _)| digest.clone())
        };
        let is_of_key = |session: &Session| session.key.expose() == key;
        let is_over = [
            (sessions.values().filter(|session| is_of_key(session)).count() >= PER_KEY_MAX)
                .then(|| oldest(&sessions, &is_of_key)),
            (sessions.len() >= SESSIONS_MAX).then(|| {
                let largest = largest_tenant(&sessions);
                oldest(&sessions, &|session| session.tenant == largest)
            }),
        ];
        for digest in is_over.into_iter().flatten().flatten() {
            sessions.remove(&digest);
        }
        sessions.insert(sha256_hex(token.as_bytes()), Session { key: Secret::new(key), tenant, began: now });
        token
    }

    /// Returns the key of a session that has not ended.
    pub(crate) fn key(&self, token: &str, now: Instant) -> Option<Secret> {
        let sessions = self.lock();
        let session = sessions.get(&sha256_hex(token.as_bytes()))?;
        (now < session.began + TIME_MAX).then(|| session.key.clone())
    }

    /// Ends a session.
    pub(crate) fn end(&self, token: &str) {
        self.lock().remove(&sha256_hex(token.as_bytes()));
    }
}

/// Returns the tenant with the most sessions.
fn largest_tenant(sessions: &HashMap<String, Session>) -> Option<i64> {
    let mut counts: HashMap<Option<i64>, usize> = HashMap::new();
    for session in sessions.values() {
        *counts.entry(session.tenant).or_default() += 1;
    }
    counts.into_iter().max_by_key(|(_, count)| *count).and_then(|(tenant, _)| tenant)
}

/// Returns the name of the cookie. Browsers send the cookies of a host to all of its ports, so the name has the port.
fn cookie_name(headers: &HeaderMap) -> String {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let port = host
        .rsplit_once(':')
        .map(|(_, port)| port)
        .filter(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
    match port {
        Some(port) => format!("rollout-host-{port}"),
        None => "rollout-host".to_owned(),
    }
}

/// Returns the token in a request's cookies.
pub(crate) fn token_of(headers: &HeaderMap) -> Option<String> {
    let name = cookie_name(headers);
    let cookies = headers.get_all(COOKIE).iter().filter_map(|header| header.to_str().ok());
    let mut pairs =
        cookies.flat_map(|header| header.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(found, _)| *found == name).map(|(_, token)| token.to_owned())
}

/// Returns the header that sets or removes the token of a browser. With `is_encrypted`, the browser sends it over
/// TLS only.
pub(crate) fn set_cookie(headers: &HeaderMap, token: Option<&str>, is_encrypted: bool) -> HeaderValue {
    let secure = if is_encrypted { "; Secure" } else { "" };
    let age = if token.is_some() { TIME_MAX.as_secs() } else { 0 };
    let cookie = format!(
        "{}={}; Path={}; Max-Age={age}; HttpOnly; SameSite=Strict{secure}",
        cookie_name(headers),
        token.unwrap_or_default(),
        super::ROOT
    );
    // Name and token have visible ASCII only.
    HeaderValue::try_from(cookie).unwrap_or(HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_ends_on_request_after_its_time_or_for_a_newer_one() {
        let (sessions, began) = (Sessions::default(), Instant::now());
        let first = sessions.begin("a", Some(1), began);
        assert_eq!(sessions.key(&first, began).unwrap().expose(), "a");
        assert!(sessions.key("guessed", began).is_none());
        let later = began + Duration::from_secs(1);
        let others: Vec<String> = (0..PER_KEY_MAX).map(|_| sessions.begin("a", Some(1), later)).collect();
        assert!(sessions.key(&first, later).is_none(), "the oldest session of the key has ended");
        sessions.end(&others[0]);
        assert!(sessions.key(&others[0], later).is_none());
        let end = later + TIME_MAX;
        assert!(sessions.key(&others[1], end).is_none());
        sessions.begin("b", Some(2), end);
        assert_eq!(sessions.lock().len(), 1);
    }

    #[test]
    fn a_tenant_with_many_keys_ends_its_own_sessions() {
        let (sessions, began) = (Sessions::default(), Instant::now());
        let neighbour = sessions.begin("n", Some(2), began);
        let first = sessions.begin("0", Some(1), began);
        for number in 1..=SESSIONS_MAX {
            sessions.begin(&number.to_string(), Some(1), began + Duration::from_secs(1));
        }
        assert_eq!(sessions.lock().len(), SESSIONS_MAX);
        assert!(sessions.key(&neighbour, began).is_some());
        assert!(sessions.key(&first, began).is_none());
    }

    #[test]
    fn the_cookie_is_found_by_the_port() {
        let headers = |host: &str, cookie: &str| {
            HeaderMap::from_iter([(HOST, host.parse().unwrap()), (COOKIE, cookie.parse().unwrap())])
        };
        let both = "x=1; rollout-host-9000=one; rollout-host-9001=two;rollout-host=three";
        assert_eq!(token_of(&headers("localhost:9001", both)).unwrap(), "two");
        assert_eq!(token_of(&headers("localhost", both)).unwrap(), "three");
        assert_eq!(token_of(&headers("localhost:9002", both)), None);
        let set = set_cookie(&headers("localhost:9000", "x=1"), Some("t"), true);
        let set = set.to_str().unwrap();
        for part in
            ["rollout-host-9000=t;", "Path=/ui;", "Max-Age=43200;", "HttpOnly;", "SameSite=Strict;", "Secure"]
        {
            assert!(set.contains(part), "{set}: {part}");
        }
    }
}
