//! The endpoint that the measured server calls: a stub model and the receiver of generation C's callbacks.
//!
//! Every chat call gets the same prepared bytes after the configured latency. The call's key is checked; its
//! body is read only if there are several turns. Streaming is not supported: a workflow that requests a
//! stream gets a plain body.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinSet};

use super::outcome::{ErrorKind, Failure, Judgement, judge};
use rollout_outbound::http1::{Connection, Message};

/// API key of the stub model.
pub(super) const MODEL_KEY: &str = "bench-model-key";
/// API key of the callbacks.
pub(super) const CALLBACK_KEY: &str = "bench-callback-key";
/// Size of the accept queue; the system may limit it further.
const BACKLOG: u32 = 16 << 10;
/// Pause after a failure to accept, which is mostly a lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

const ANSWER: &str = "The result is 5.\n#### 5";
const ROUTES: &str = "/v1/rollouts/";

/// The listening endpoint. Dropping it closes the listener and all connections.
#[derive(Debug)]
pub(super) struct Endpoint {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: AbortHandle,
}

/// Behaviour of the stub model.
#[derive(Clone, Debug)]
pub(super) struct Script {
    /// Number of model calls, including the one that returns the final answer.
    turns: u32,
    /// Arguments of the tool calls before the final answer, as JSON text.
    arguments: String,
}

impl Script {
    pub(super) fn of(settings: &super::BenchSettings) -> Self {
        let arguments = match settings.tool_bytes {
            Some(bytes) => json!({"bytes": bytes}),
            None => json!({"expression": "2 + 3"}),
        };
        Self { turns: settings.turns, arguments: arguments.to_string() }
    }
}

/// State that all connections share.
#[derive(Debug)]
struct Shared {
    latency: Duration,
    script: Script,
    replies: Replies,
    /// Prefix of every id of this run.
    prefix: String,
    ids: AtomicU64,
    model_calls: AtomicU64,
    without_key: AtomicU64,
    doubled: AtomicU64,
    callbacks: Mutex<Callbacks>,
}

/// Complete responses with their heads.
#[derive(Debug)]
struct Replies {
    answer: Vec<u8>,
    noted: Vec<u8>,
    unauthorized: Vec<u8>,
    unknown: Vec<u8>,
}

/// Unfinished rollouts of generation C.
#[derive(Debug, Default)]
struct Callbacks {
    waiting: HashMap<String, Waiting>,
    /// Abandoned rollouts. One late result for each of them is not an error.
    lost: HashSet<String>,
}

#[derive(Debug)]
struct Waiting {
    completed: bool,
    ended: oneshot::Sender<Result<(), Failure>>,
}

/// Receiver of one rollout's grader callback. Dropping it counts the rollout as lost.
#[derive(Debug)]
pub(super) struct Ending {
    shared: Arc<Shared>,
    id: String,
    ended: oneshot::Receiver<Result<(), Failure>>,
}

/// Counters of the endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Counts {
    pub(super) model_calls: u64,
    /// Number of model calls without the key of their rollout.
    pub(super) without_key: u64,
    /// Number of results that arrived for a rollout that already had one.
    pub(super) doubled: u64,
}

impl Endpoint {
    pub(super) fn start(listen: SocketAddr, latency: Duration, script: Script) -> io::Result<Self> {
        let socket = if listen.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        socket.bind(listen)?;
        let listener = socket.listen(BACKLOG)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            latency,
            script,
            replies: Replies::new(),
            prefix: format!("bench-{:016x}-", RandomState::new().build_hasher().finish()),
            ids: AtomicU64::new(0),
            model_calls: AtomicU64::new(0),
            without_key: AtomicU64::new(0),
            doubled: AtomicU64::new(0),
            callbacks: Mutex::default(),
        });
        let accepting = tokio::spawn(accept(listener, shared.clone())).abort_handle();
        Ok(Self { address, shared, accepting })
    }

    /// Returns a unique id for a rollout.
    pub(super) fn next_id(&self) -> String {
        let number = self.shared.ids.fetch_add(1, Ordering::Relaxed);
        format!("{}{number}", self.shared.prefix)
    }

    /// Returns the URL of a rollout, to which `/chat/completions`, `/completion` and `/grader` are appended.
    pub(super) fn url(&self, id: &str) -> String {
        format!("http://{}{ROUTES}{id}", self.address)
    }

    /// Registers a rollout whose callbacks are expected from now on.
    pub(super) fn expect(&self, id: &str) -> Ending {
        let (sender, ended) = oneshot::channel();
        let waiting = Waiting { completed: false, ended: sender };
        self.shared.callbacks().waiting.insert(id.to_owned(), waiting);
        Ending { shared: self.shared.clone(), id: id.to_owned(), ended }
    }

    pub(super) fn counts(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            model_calls: read(&self.shared.model_calls),
            without_key: read(&self.shared.without_key),
            doubled: read(&self.shared.doubled),
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Ending {
    pub(super) async fn wait(mut self) -> Result<(), Failure> {
        let lost = |_| Failure::new(ErrorKind::Lost, "the callback receiver stopped");
        (&mut self.ended).await.map_err(lost)?
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let mut callbacks = self.shared.callbacks();
        if callbacks.waiting.remove(&self.id).is_some() {
            callbacks.lost.insert(std::mem::take(&mut self.id));
        }
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => { connections.spawn(serve(stream, shared.clone())); }
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Serves one connection until it ends. If the connection breaks, the caller's requests fail.
async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    let Ok(mut connection) = Connection::over(stream) else { return };
    while let Ok(Some(request)) = connection.receive_request().await {
        let is_last = request.ends_connection();
        let sent = match shared.route(&request) {
            Route::Chat => {
                if !shared.latency.is_zero() {
                    tokio::time::sleep(shared.latency).await;
                }
                if shared.script.turns > 1 {
                    let reply = turn(request.body(), &shared.script);
                    connection.send(&reply.unwrap_or_else(|| shared.replies.answer.clone())).await
                } else {
                    connection.send(&shared.replies.answer).await
                }
            }
            Route::Reply(reply) => connection.send(reply).await,
        };
        if sent.is_err() || is_last {
            return;
        }
    }
}

enum Route<'a> {
    Chat,
    Reply(&'a [u8]),
}

impl Shared {
    /// Selects the response to a request by its path, and counts calls of the model.
    fn route(&self, request: &Message) -> Route<'_> {
        let unknown = Route::Reply(&self.replies.unknown);
        let Some((id, what)) = request.target().strip_prefix(ROUTES).and_then(|rest| rest.split_once('/'))
        else {
            return unknown;
        };
        match what {
            "chat/completions" => {
                self.model_calls.fetch_add(1, Ordering::Relaxed);
                if !carries(request, MODEL_KEY) {
                    self.without_key.fetch_add(1, Ordering::Relaxed);
                }
                Route::Chat
            }
            "completion" | "grader" if !carries(request, CALLBACK_KEY) => {
                Route::Reply(&self.replies.unauthorized)
            }
            "completion" => {
                if let Some(waiting) = self.callbacks().waiting.get_mut(id) {
                    waiting.completed = true;
                }
                Route::Reply(&self.replies.noted)
            }
            "grader" if self.graded(id, request.body()) => Route::Reply(&self.replies.noted),
            _ => unknown,
        }
    }

    /// Handles a grader callback. Returns whether the rollout belongs to this run.
    fn graded(&self, id: &str, body: &[u8]) -> bool {
        let mut callbacks = self.callbacks();
        let Some(Waiting { completed, ended }) = callbacks.waiting.remove(id) else {
            let is_ours = id.starts_with(&self.prefix);
            if is_ours && !callbacks.lost.remove(id) {
                self.doubled.fetch_add(1, Ordering::Relaxed);
            }
            return is_ours;
        };
        drop(callbacks);
        let outcome = match judge(body, id) {
            Ok(Judgement::Right) if !completed => Err(Failure::from_body(ErrorKind::OutOfOrder, body)),
            Ok(Judgement::Right) => Ok(()),
            // A grader callback must have a final status.
            Ok(Judgement::NotYet) => Err(Failure::from_body(ErrorKind::Malformed, body)),
            Err(failure) => Err(failure),
        };
        // The receiver is closed if the rollout timed out at this moment.
        let _ = ended.send(outcome);
        true
    }

    fn callbacks(&self) -> MutexGuard<'_, Callbacks> {
        // The maps are consistent after every step, so a poisoned lock is safe to use.
        self.callbacks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Replies {
    fn new() -> Self {
        Self {
            answer: completion(&json!({"role": "assistant", "content": ANSWER}), "stop"),
            noted: respond("200 OK", "{}"),
            unauthorized: respond("401 Unauthorized", r#"{"detail":"unauthorized"}"#),
            unknown: respond("404 Not Found", r#"{"detail":"not a route of the bench's endpoint"}"#),
        }
    }
}

fn carries(request: &Message, key: &str) -> bool {
    request.authorization().and_then(|value| value.strip_prefix("Bearer ")) == Some(key)
}

/// Returns a tool call until the last turn, which it detects by the number of tool results. Returns `None` in
/// the last turn and if the call offers no tool.
fn turn(body: &[u8], script: &Script) -> Option<Vec<u8>> {
    #[derive(Deserialize)]
    struct Request<'a> {
        #[serde(borrow)]
        messages: Vec<ChatMessage<'a>>,
        tools: Option<Vec<Tool>>,
    }
    #[derive(Deserialize)]
    struct ChatMessage<'a> {
        role: std::borrow::Cow<'a, str>,
    }
    #[derive(Deserialize)]
    struct Tool {
        function: Function,
    }
    #[derive(Deserialize)]
    struct Function {
        name: String,
    }
    let request: Request<'_> = serde_json::from_slice(body).ok()?;
    let results = request.messages.iter().filter(|message| message.role == "tool").count();
    let tool = request.tools?.into_iter().next()?.function.name;
    if results + 1 >= script.turns as usize {
        return None;
    }
    let function = json!({"name": tool, "arguments": script.arguments});
    let call = json!({"id": format!("call_{results}"), "type": "function", "function": function});
    let message = json!({"role": "assistant", "content": null, "tool_calls": [call]});
    Some(completion(&message, "tool_calls"))
}

fn completion(message: &serde_json::Value, finish_reason: &str) -> Vec<u8> {
    let body = json!({
        "id": "chatcmpl-bench",
        "object": "chat.completion",
        "created": 0,
        "model": "bench",
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
        "usage": {"prompt_tokens": 12, "completion_tokens": 9, "total_tokens": 21},
    });
    respond("200 OK", &body.to_string())
}

fn respond(status: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}")
        .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_called_until_the_last_turn() {
        fn check(body: &str, turns: u32, expected: Option<&str>) {
            let settings = crate::BenchSettings { turns, ..crate::BenchSettings::new(Vec::new()) };
            let reply =
                turn(body.as_bytes(), &Script::of(&settings)).map(|bytes| String::from_utf8(bytes).unwrap());
            let found = reply.as_ref().zip(expected).is_some_and(|(reply, part)| reply.contains(part));
            assert!(found || (reply.is_none() && expected.is_none()), "{body}: {reply:?}");
        }
        let tools = r#""tools":[{"type":"function","function":{"name":"calc","parameters":{}}}]"#;
        let first = format!(r#"{{"messages":[{{"role":"user","content":"x"}}],{tools}}}"#);
        let second = format!(r#"{{"messages":[{{"role":"user"}},{{"role":"tool"}}],{tools}}}"#);
        check(&first, 2, Some(r#""name":"calc""#));
        check(&second, 3, Some("call_1"));
        check(&second, 2, None);
        check(&first, 1, None);
        check(r#"{"messages":[{"role":"user"}]}"#, 2, None);
        check("nonsense", 2, None);
    }
}
