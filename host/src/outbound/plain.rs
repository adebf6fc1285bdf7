//! Calls over HTTP without TLS, which is how a model in the same cluster is reached, and
//! how thousands of rollouts wait for it at once.
//!
//! A connection is a call's own until it is answered, and is kept for the next one then.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use reqwest::Url;
use reqwest::header::HeaderMap;

use crate::http1::{Broken, Connection};

/// Servers close connections that are idle for longer; the usual one after five seconds.
const IDLE_MAX: Duration = Duration::from_secs(4);

/// Idle connections that are kept, of all servers together.
const IDLE_CONNECTIONS_MAX: usize = 4096;

/// Time for finding the address and connecting.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);

/// Where such a call goes.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// Host and port, for connecting.
    address: Box<str>,
    /// The beginning of every request, up to the fields that differ.
    head: Box<str>,
}

impl Place {
    /// The place of an address without TLS and without a user's name in it.
    pub fn of(url: &Url) -> Option<Self> {
        if url.scheme() != "http" || !url.username().is_empty() || url.password().is_some() {
            return None;
        }
        let (host, port) = (url.host_str()?, url.port_or_known_default()?);
        let authority = match url.port() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        };
        let query = url.query().map(|query| format!("?{query}")).unwrap_or_default();
        let head = format!(
            "POST {}{query} HTTP/1.1\r\nhost: {authority}\r\nuser-agent: {}\r\naccept: */*\r\n",
            url.path(),
            super::USER_AGENT,
        );
        Some(Self { address: format!("{host}:{port}").into(), head: head.into() })
    }

    /// The bytes of a request with these headers and this body.
    pub fn request(&self, headers: &HeaderMap, body: &[u8]) -> Vec<u8> {
        let mut request = Vec::with_capacity(self.head.len() + 256 + body.len());
        request.extend_from_slice(self.head.as_bytes());
        for (name, value) in headers {
            for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
                request.extend_from_slice(part);
            }
        }
        request.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
        request.extend_from_slice(body);
        request
    }
}

/// What a server answered.
pub(super) struct Answer {
    pub status: u16,
    /// The wait that it asks for before the next try.
    pub retry_after: Option<Duration>,
    pub body: Bytes,
}

/// The process's connections of this kind that wait for a call.
#[derive(Debug, Default)]
pub(super) struct PlainClient {
    idle: Mutex<HashMap<Box<str>, VecDeque<Connection>>>,
}

impl PlainClient {
    fn idle(&self) -> MutexGuard<'_, HashMap<Box<str>, VecDeque<Connection>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a [request](Place::request) and reads the answer, up to so many bytes of it.
    pub async fn post(
        &self,
        place: &Place,
        request: Vec<u8>,
        answer_bytes_max: usize,
    ) -> Result<Answer, Broken> {
        let mut connection = self.connection(place).await?;
        connection.limit_bodies(answer_bytes_max);
        connection.send(&request).await?;
        // The answer may take minutes.
        drop(request);
        let message = connection.receive_response().await?;
        if !message.ends_connection() {
            self.keep(place, connection);
        }
        let (status, retry_after) = (message.status()?, message.retry_after());
        Ok(Answer { status, retry_after, body: message.into_body() })
    }

    /// The connection that was used last and is still good, or a new one.
    async fn connection(&self, place: &Place) -> Result<Connection, Broken> {
        loop {
            let idle = self.idle().get_mut(&place.address).and_then(VecDeque::pop_back);
            match idle {
                Some(connection) if connection.is_good(IDLE_MAX) => return Ok(connection),
                Some(_) => {}
                None => break,
            }
        }
        let opening = Connection::open(&*place.address);
        match tokio::time::timeout(CONNECT_TIME_MAX, opening).await {
            Ok(opened) => Ok(opened?),
            Err(late) => Err(Broken::Io(late.into())),
        }
    }

    fn keep(&self, place: &Place, mut connection: Connection) {
        connection.rest();
        let mut idle = self.idle();
        let kept: usize = idle.values().map(VecDeque::len).sum();
        if kept >= IDLE_CONNECTIONS_MAX {
            // Those that nobody will take any more make room. Each place's are in the order
            // in which they came to rest, so that only they are looked at.
            for connections in idle.values_mut() {
                while connections.front().is_some_and(|oldest| oldest.has_rested(IDLE_MAX)) {
                    connections.pop_front();
                }
            }
            idle.retain(|_, connections| !connections.is_empty());
            if idle.values().map(VecDeque::len).sum::<usize>() >= IDLE_CONNECTIONS_MAX {
                return;
            }
        }
        match idle.get_mut(&place.address) {
            Some(connections) => connections.push_back(connection),
            None => {
                idle.insert(place.address.clone(), VecDeque::from([connection]));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_what_a_request_begins_with() {
        fn check(url: &str, expected: Option<(&str, &str)>) {
            let place = Place::of(&Url::parse(url).unwrap());
            let seen =
                place.as_ref().map(|place| (&*place.address, place.head.split("\r\nuser").next().unwrap()));
            assert_eq!(seen, expected, "{url}");
        }
        check("http://h/v1?x=1", Some(("h:80", "POST /v1?x=1 HTTP/1.1\r\nhost: h")));
        check("http://h:81/", Some(("h:81", "POST / HTTP/1.1\r\nhost: h:81")));
        check("http://[::1]:81/a%20b", Some(("[::1]:81", "POST /a%20b HTTP/1.1\r\nhost: [::1]:81")));
        check("http://user@h/", None);
        check("https://h/", None);
    }
}
