//! The client of the measured server: each worker runs one rollout at a time.
//!
//! In generation D a worker starts a rollout and reads its result; in generation C it starts a rollout and
//! waits for the callback. Connections are pooled: a worker owns one while its request is in flight.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::endpoint::{CALLBACK_KEY, Endpoint, MODEL_KEY};
use super::outcome::{ErrorKind, Failure, Judgement, judge};
use super::settings::REQUESTS_AT_ONCE_C;
use super::tally::Tally;
use super::{BenchError, Generation};
use rollout_outbound::http1::{Connection, Message};

/// Wait after a 429 without `Retry-After`, and bounds of a `Retry-After`, as in the published package's
/// driver.
const RETRY_AFTER: Duration = Duration::from_secs(1);
const RETRY_AFTER_MIN: Duration = Duration::from_millis(50);
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// Maximum number of idle connections.
const IDLE_CONNECTIONS_MAX: usize = 1024;
/// Timeout of a cancellation.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);

/// Address of a measured server.
#[derive(Clone, Debug)]
pub(super) struct Address {
    socket: SocketAddr,
    /// Value of the host header.
    host: String,
    /// Prefix of every path: empty, or with a leading and without a trailing slash.
    base: String,
}

impl Address {
    /// Parses `http://HOST[:PORT][/BASE]` and resolves the host.
    pub(super) async fn resolve(url: &str) -> Result<Self, BenchError> {
        let invalid = || BenchError::Url { url: url.to_owned() };
        let (host, base) = split_url(url).ok_or_else(invalid)?;
        let with_port = match host.rsplit_once(':') {
            Some((_, port)) if port.parse::<u16>().is_ok() => host.to_owned(),
            _ => format!("{host}:80"),
        };
        let found = tokio::net::lookup_host(&with_port).await;
        let unresolved = |source| BenchError::Resolve { url: url.to_owned(), source };
        let socket = found.map_err(unresolved)?.next().ok_or_else(invalid)?;
        Ok(Self { socket, host: host.to_owned(), base: base.to_owned() })
    }
}

/// Splits a URL into host with port, and base path without a trailing slash.
fn split_url(url: &str) -> Option<(&str, &str)> {
    let rest = url.strip_prefix("http://")?;
    let (host, base) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let sound = !host.is_empty() && !url.contains(|c: char| c.is_whitespace() || c.is_control());
    (sound && !host.contains(['@', '?', '#']) && !base.contains(['?', '#']))
        .then(|| (host, base.trim_end_matches('/')))
}

/// Connection pool to the measured server.
#[derive(Debug)]
pub(super) struct Connections {
    idle: Mutex<Vec<Connection>>,
    gate: Semaphore,
}

impl Connections {
    pub(super) fn new(generation: Generation) -> Self {
        let at_once = match generation {
            Generation::C => REQUESTS_AT_ONCE_C,
            Generation::D => Semaphore::MAX_PERMITS,
        };
        Self { idle: Mutex::default(), gate: Semaphore::new(at_once) }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the most recently used idle connection that is still usable.
    fn take(&self) -> Option<Connection> {
        self.idle().pop().filter(Connection::is_fresh)
    }

    fn give_back(&self, connection: Connection) {
        let mut idle = self.idle();
        if idle.len() < IDLE_CONNECTIONS_MAX {
            idle.push(connection);
        }
    }
}

/// State that all workers of a measurement share.
#[derive(Debug)]
pub(super) struct TrainerContext {
    pub(super) connections: Connections,
    pub(super) address: Address,
    pub(super) generation: Generation,
    pub(super) api_key: Option<String>,
    pub(super) rollout_timeout: Duration,
    pub(super) endpoint: Arc<Endpoint>,
}

/// A worker, which runs one rollout after another.
#[derive(Debug)]
pub(super) struct Worker {
    context: Arc<TrainerContext>,
    /// User message, as JSON.
    prompt: String,
    /// Buffer of the current request, reused between requests.
    request: Vec<u8>,
    pub(super) tally: Tally,
}

#[derive(Debug, Deserialize)]
struct Admission<'a> {
    #[serde(borrow)]
    rollout_id: std::borrow::Cow<'a, str>,
    #[serde(borrow)]
    polling_lease_token: std::borrow::Cow<'a, str>,
}

impl Worker {
    pub(super) fn new(context: Arc<TrainerContext>) -> Self {
        Self::with_prompt(context, "Calculate 2 + 3.")
    }

    pub(super) fn with_prompt(context: Arc<TrainerContext>, prompt: &str) -> Self {
        let prompt = serde_json::Value::from(prompt).to_string();
        Self { context, prompt, request: Vec::new(), tally: Tally::default() }
    }

    /// Starts a rollout of generation D without reading its result. Returns its id.
    pub(super) async fn begin(&mut self) -> Result<String, Failure> {
        let id = self.context.endpoint.next_id();
        self.admit_under_lease(&id).await?;
        Ok(id)
    }

    /// Runs one rollout and adds its outcome to the tally. Returns whether the outcome was correct.
    pub(super) async fn rollout(&mut self) -> bool {
        let begun = Instant::now();
        let id = self.context.endpoint.next_id();
        let rollout_timeout = self.context.rollout_timeout;
        let outcome = match timeout(rollout_timeout, self.attempt(&id)).await {
            Ok(outcome) => outcome,
            Err(_) => {
                // The response to the cancellation does not matter.
                let _ = self.cancel(std::slice::from_ref(&id)).await;
                Err(Failure::new(
                    ErrorKind::Lost,
                    format!("not ended after {}", rollout_wire::text::time(rollout_timeout)),
                ))
            }
        };
        match outcome {
            Ok(()) => self.tally.latencies.push(begun.elapsed()),
            Err(failure) => {
                self.tally.errors.add(failure);
                return false;
            }
        }
        true
    }

    async fn attempt(&mut self, id: &str) -> Result<(), Failure> {
        match self.context.generation {
            Generation::D => {
                let lease = self.admit_under_lease(id).await?;
                self.poll(id, &lease).await
            }
            Generation::C => {
                let ending = self.context.endpoint.expect(id);
                self.admit(id).await?;
                ending.wait().await
            }
        }
    }

    /// Starts a rollout of generation D, retrying while the server is full. Returns the lease.
    async fn admit_under_lease(&mut self, id: &str) -> Result<String, Failure> {
        lease(self.admit(id).await?.body(), id)
    }

    /// Sends the admission, retrying while the server is full.
    async fn admit(&mut self, id: &str) -> Result<Message, Failure> {
        let mut is_first = true;
        loop {
            self.write_admission(id);
            let asked = Instant::now();
            let answer = self.exchange().await?;
            match answer.status()? {
                202 => {
                    if is_first {
                        self.tally.admissions.push(asked.elapsed());
                    }
                    return Ok(answer);
                }
                429 => {
                    is_first = false;
                    self.tally.refused += 1;
                    let wait = answer.retry_after().unwrap_or(RETRY_AFTER);
                    sleep(wait.clamp(RETRY_AFTER_MIN, RETRY_AFTER_MAX)).await;
                }
                other => return Err(Failure::from_body(ErrorKind::Admission(other), answer.body())),
            }
        }
    }

    /// Reads the result until it is final. The server blocks each read until there is progress.
    async fn poll(&mut self, id: &str, lease: &str) -> Result<(), Failure> {
        loop {
            self.write_head("GET", &["/rollout/", id, "/result"]);
            self.header("x-osmosis-rollout-lease", lease);
            self.request.extend_from_slice(b"\r\n");
            self.tally.polls += 1;
            let answer = self.exchange().await?;
            match answer.status()? {
                200 => match judge(answer.body(), id)? {
                    Judgement::Right => return Ok(()),
                    Judgement::NotYet => {}
                },
                other => return Err(Failure::from_body(ErrorKind::Result(other), answer.body())),
            }
        }
    }

    /// Cancels rollouts, so that the server frees their resources.
    pub(super) async fn cancel(&mut self, ids: &[String]) -> Result<Message, Failure> {
        self.write_head("POST", &["/rollout/cancel"]);
        let body = serde_json::json!({ "ids": ids }).to_string();
        self.body(body.as_bytes());
        let late = |_| {
            Failure::new(
                ErrorKind::Transport,
                format!("cancelling took over {}", rollout_wire::text::time(CANCEL_TIMEOUT)),
            )
        };
        timeout(CANCEL_TIMEOUT, self.exchange()).await.map_err(late)?
    }

    /// Sends the prepared request and reads the response.
    async fn exchange(&mut self) -> Result<Message, Failure> {
        let connections = &self.context.connections;
        let closed = |_| Failure::new(ErrorKind::Transport, "the bench is ending");
        let _turn = connections.gate.acquire().await.map_err(closed)?;
        let mut connection = match connections.take() {
            Some(connection) => connection,
            None => {
                let opened = Connection::open(self.context.address.socket).await;
                opened.map_err(|error| Failure::new(ErrorKind::Transport, format!("connecting: {error}")))?
            }
        };
        let sent = connection.send(&self.request).await;
        sent.map_err(|error| Failure::new(ErrorKind::Transport, format!("sending: {error}")))?;
        let answer = connection.receive_response().await?;
        if !answer.ends_connection() {
            connections.give_back(connection);
        }
        Ok(answer)
    }

    fn write_admission(&mut self, id: &str) {
        let url = self.context.endpoint.url(id);
        let mut body = Vec::with_capacity(512);
        push(&mut body, &[r#"{"rollout_id":""#, id, r#"","initial_messages":[{"role":"user","content":"#]);
        push(&mut body, &[&self.prompt, r#"}],"label":"5""#]);
        push(&mut body, &[r#","chat_completions_url":""#, &url, r#"","llm_api_key":""#, MODEL_KEY, r#"""#]);
        if self.context.generation == Generation::C {
            push(&mut body, &[r#","completion_callback_url":""#, &url, r#"/completion""#]);
            push(&mut body, &[r#","grader_callback_url":""#, &url, r#"/grader""#]);
            push(&mut body, &[r#","controller_api_key":""#, CALLBACK_KEY, r#"""#]);
        }
        body.push(b'}');
        self.write_head("POST", &["/rollout"]);
        self.body(&body);
    }

    /// Writes the head of a request with the headers of every request.
    fn write_head(&mut self, method: &str, path: &[&str]) {
        let context = &self.context;
        self.request.clear();
        push(&mut self.request, &[method, " ", &context.address.base]);
        push(&mut self.request, path);
        push(&mut self.request, &[" HTTP/1.1\r\nhost: ", &context.address.host, "\r\n"]);
        if let Some(key) = &context.api_key {
            push(&mut self.request, &["authorization: Bearer ", key, "\r\n"]);
        }
    }

    fn header(&mut self, name: &str, value: &str) {
        push(&mut self.request, &[name, ": ", value, "\r\n"]);
    }

    /// Completes a request with a JSON body.
    fn body(&mut self, body: &[u8]) {
        self.header("content-type", "application/json");
        write!(self.request, "content-length: {}\r\n\r\n", body.len()).expect("memory can be written to");
        self.request.extend_from_slice(body);
    }
}

/// Extracts the lease from the admission of rollout `id`.
fn lease(body: &[u8], id: &str) -> Result<String, Failure> {
    let wrong = |kind| Failure::from_body(kind, body);
    let admission: Admission<'_> = serde_json::from_slice(body).map_err(|_| wrong(ErrorKind::Malformed))?;
    if admission.rollout_id != id {
        return Err(wrong(ErrorKind::WrongId));
    }
    // The lease is sent as a header.
    let token = admission.polling_lease_token;
    if token.is_empty() || !token.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(wrong(ErrorKind::Malformed));
    }
    Ok(token.into_owned())
}

fn push(bytes: &mut Vec<u8>, parts: &[&str]) {
    for part in parts {
        bytes.extend_from_slice(part.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_host_and_base() {
        fn check(url: &str, expected: Option<(&str, &str)>) {
            assert_eq!(split_url(url), expected, "{url}");
        }
        check("http://127.0.0.1:8080", Some(("127.0.0.1:8080", "")));
        check("http://127.0.0.1:8080/", Some(("127.0.0.1:8080", "")));
        check("http://[::1]:80/a/b/", Some(("[::1]:80", "/a/b")));
        check("http://host", Some(("host", "")));
        check("https://host", None);
        check("http://", None);
        check("http://user@host", None);
        check("http://host/?q", None);
        check("http://host/a b", None);
        check("127.0.0.1:8080", None);
    }

    #[test]
    fn a_lease_must_exist_and_fit_in_a_header() {
        fn check(body: &str, expected: Result<&str, ErrorKind>) {
            let got = lease(body.as_bytes(), "r").map_err(|failure| failure.kind);
            assert_eq!(got, expected.map(str::to_owned), "{body}");
        }
        check(r#"{"rollout_id":"r","polling_lease_token":"a-b_c","status":"queued"}"#, Ok("a-b_c"));
        check(r#"{"rollout_id":"s","polling_lease_token":"t"}"#, Err(ErrorKind::WrongId));
        check(r#"{"rollout_id":"r","polling_lease_token":"a\r\nb"}"#, Err(ErrorKind::Malformed));
        check(r#"{"rollout_id":"r","polling_lease_token":""}"#, Err(ErrorKind::Malformed));
        check("{}", Err(ErrorKind::Malformed));
    }
}
