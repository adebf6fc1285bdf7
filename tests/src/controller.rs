//! The controller: the model that workflows call, and the trainer's callbacks.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde_json::{Map, Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::in_time;

/// A model and a trainer on loopback. It records every request. It gives the answers that a test has set, or else sums.
pub struct Controller {
    address: SocketAddr,
    shared: Arc<Shared>,
    server: JoinHandle<()>,
}

/// The key that generation B's callers send for chat calls and callbacks.
pub const KEY_OF_B: &str = "key-of-the-controller-of-b";

/// A received request.
#[derive(Clone, Debug)]
pub struct Received {
    /// Its path.
    pub path: String,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body; null if that is not JSON.
    pub body: Value,
}

impl Received {
    /// Returns a header's value, if it exists and is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// The answer to a request.
#[derive(Clone, Debug)]
pub enum Answer {
    /// A chat completion with this text.
    Say(&'static str),
    /// A status with a JSON body.
    Status(u16, Value),
    /// A status with `Retry-After: 0`, so that the host retries without a delay.
    Soon(u16),
    /// A body that is not JSON, with status 200.
    Text(&'static str),
    /// A JSON body sent unchanged, with status 200.
    Json(String),
}

#[derive(Default)]
struct Shared {
    chats: Mutex<Channel>,
    callbacks: Mutex<Channel>,
    /// Counts every change of the channels.
    changed: watch::Sender<u64>,
    /// Number of chat calls that are answered before the rest is held; `None` holds none.
    held_after: watch::Sender<Option<usize>>,
    chats_open: watch::Sender<usize>,
    /// Largest number of chat calls that were open at once.
    chats_open_max: AtomicUsize,
    /// Whether callbacks stay unanswered.
    callbacks_held: watch::Sender<bool>,
    callbacks_open: watch::Sender<usize>,
}

/// Received requests of one kind, and the answers to the next ones.
#[derive(Default)]
struct Channel {
    received: Vec<Received>,
    answers: VecDeque<Answer>,
}

impl Controller {
    /// Starts one on a free port.
    pub async fn start() -> Self {
        let shared = Arc::<Shared>::default();
        let routes = Router::new()
            .route("/rollouts/{id}/v1/chat/completions", post(chat))
            .route("/v1/chat/completions", post(chat))
            .route("/callbacks/{id}/completion", post(callback))
            .route("/callbacks/{id}/grader", post(callback))
            .route("/chat/completions", post(routed_chat))
            .route("/v1/rollout/completed", post(callback))
            .route("/v1/grader/completed", post(callback))
            .with_state(shared.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let address = listener.local_addr().expect("it is bound");
        let server = tokio::spawn(async move {
            axum::serve(listener, routes).await.expect("the listener continues");
        });
        Self { address, shared, server }
    }

    /// Returns the base URL of the model, which all rollouts share.
    pub fn model_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// Returns the base URL of all routes.
    pub fn base_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns a request for a rollout with a new id, whose prompt ends with this text.
    pub fn rollout(&self, text: &str) -> RolloutRequest {
        static COUNT: AtomicU64 = AtomicU64::new(1);
        let id = format!("r{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let mut fields = Map::new();
        fields.insert(
            "chat_completions_url".into(),
            format!("http://{}/rollouts/{id}/v1", self.address).into(),
        );
        fields.insert("rollout_id".into(), id.into());
        fields.insert("initial_messages".into(), json!([{"role": "user", "content": text}]));
        RolloutRequest { fields, address: self.address }
    }

    /// Sets the answers to the next chat calls, in order.
    pub fn answer_chats(&self, answers: impl IntoIterator<Item = Answer>) {
        self.shared.chats().answers.extend(answers);
    }

    /// Sets the answers to the next callbacks, in order.
    pub fn answer_callbacks(&self, answers: impl IntoIterator<Item = Answer>) {
        self.shared.callbacks().answers.extend(answers);
    }

    /// Leaves chat calls unanswered until [`Controller::release`].
    pub fn hold(&self) {
        self.hold_after(0);
    }

    /// Answers this many chat calls in total and holds the others.
    pub fn hold_after(&self, count: usize) {
        self.shared.held_after.send_replace(Some(count));
    }

    /// Answers the held chat calls, and later ones immediately.
    pub fn release(&self) {
        self.shared.held_after.send_replace(None);
    }

    /// Leaves callbacks unanswered until [`Controller::release_callbacks`].
    pub fn hold_callbacks(&self) {
        self.shared.callbacks_held.send_replace(true);
    }

    /// Answers the held callbacks, and later ones immediately.
    pub fn release_callbacks(&self) {
        self.shared.callbacks_held.send_replace(false);
    }

    /// Waits until this many callbacks are open, neither answered nor abandoned.
    pub async fn callbacks_open(&self, count: usize) {
        let mut open = self.shared.callbacks_open.subscribe();
        let reached = in_time(&format!("{count} open callbacks"), open.wait_for(|open| *open == count)).await;
        reached.expect("the sender is in `self`");
    }

    /// Returns the chat calls so far.
    pub fn chats(&self) -> Vec<Received> {
        self.shared.chats().received.clone()
    }

    /// Returns the callbacks so far.
    pub fn callbacks(&self) -> Vec<Received> {
        self.shared.callbacks().received.clone()
    }

    /// Waits until this many chat calls have arrived since the start.
    pub async fn chats_arrived(&self, count: usize) -> Vec<Received> {
        self.when(&format!("{count} chat calls"), || Some(self.chats()).filter(|all| all.len() >= count))
            .await
    }

    /// Waits until this many callbacks have arrived since the start.
    pub async fn callbacks_arrived(&self, count: usize) -> Vec<Received> {
        let arrived = || Some(self.callbacks()).filter(|all| all.len() >= count);
        self.when(&format!("{count} callbacks"), arrived).await
    }

    /// Waits until this many chat calls are open, neither answered nor abandoned.
    pub async fn chats_open(&self, count: usize) {
        let mut open = self.shared.chats_open.subscribe();
        let reached =
            in_time(&format!("{count} open chat calls"), open.wait_for(|open| *open == count)).await;
        reached.expect("the sender is in `self`");
    }

    /// Returns the largest number of chat calls that were open at once since the last call.
    pub fn chats_open_max(&self) -> usize {
        // Both are changed under this lock.
        let open = self.shared.chats_open.borrow();
        self.shared.chats_open_max.swap(*open, Ordering::SeqCst)
    }

    /// Returns the outcome of a rollout for a controller of generation B: the rewards by sample id, or the reason why
    /// it fails the row. Such a controller uses the first callback of each kind, and requires two successes, exactly
    /// the requested samples, and a reward for each that counts.
    pub fn outcome_of_b(&self, rollout_id: &str) -> Result<BTreeMap<String, Option<f64>>, String> {
        let callbacks = self.callbacks();
        let first = |path: &str| {
            let found = callbacks
                .iter()
                .find(|callback| callback.path == path && callback.body["rollout_id"] == rollout_id);
            found.map(|callback| callback.body.clone()).ok_or(format!("no callback to {path}"))
        };
        for path in ["/v1/rollout/completed", "/v1/grader/completed"] {
            let body = first(path)?;
            if body["status"] != "success" {
                return Err(format!("{path} says {}: {}", body["status"], body["err_message"]));
            }
        }
        let of_rollout = |chat: &&Received| chat.header("x-rollout-id") == Some(rollout_id);
        let called: BTreeSet<String> = self
            .chats()
            .iter()
            .filter(of_rollout)
            .filter_map(|chat| chat.header("x-sample-id").map(str::to_owned))
            .collect();
        let graded = first("/v1/grader/completed")?;
        let samples = graded["samples"].as_object().ok_or("samples is no object")?;
        let reported: BTreeSet<String> = samples.keys().cloned().collect();
        if reported != called || reported.is_empty() {
            return Err(format!(
                "the model was called for samples {called:?}, and {reported:?} were reported"
            ));
        }
        let mut rewards = BTreeMap::new();
        for (id, sample) in samples {
            if sample["id"] != id.as_str() {
                return Err(format!("sample {id} calls itself {}", sample["id"]));
            }
            let counts = sample["remove_sample"] != true;
            let reward = sample["reward"].as_f64();
            if counts && reward.is_none() {
                return Err(format!("sample {id} has no reward"));
            }
            rewards.insert(id.clone(), reward);
        }
        Ok(rewards)
    }

    async fn when<T>(&self, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        let mut changed = self.shared.changed.subscribe();
        let looking = async {
            loop {
                changed.mark_unchanged();
                if let Some(found) = look() {
                    return found;
                }
                changed.changed().await.expect("the sender is in `self`");
            }
        };
        in_time(what, looking).await
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// The body of a request to `/rollout`.
#[derive(Clone, Debug)]
pub struct RolloutRequest {
    fields: Map<String, Value>,
    address: SocketAddr,
}

impl RolloutRequest {
    /// Creates a request with this prompt for this model.
    pub(crate) fn of_model(address: SocketAddr, url: &str, id: &str, text: &str) -> Self {
        let request = Self { fields: Map::new(), address };
        let messages = json!([{"role": "user", "content": text}]);
        request.with("chat_completions_url", url).with("rollout_id", id).with("initial_messages", messages)
    }

    /// Sets the id.
    pub fn id(self, id: &str) -> Self {
        let url = format!("http://{}/rollouts/{id}/v1", self.address);
        self.with("rollout_id", id).with("chat_completions_url", url)
    }

    /// Sets the label.
    pub fn label(self, label: &str) -> Self {
        self.with("label", label)
    }

    /// Sets the deadline of the workflow.
    pub fn agent_secs(self, secs: f64) -> Self {
        self.with("agent_timeout_sec", secs)
    }

    /// Sets any field.
    pub fn with(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.fields.insert(field.to_owned(), value.into());
        self
    }

    /// Adds generation C's callbacks to the controller that created this request, and a key for them.
    pub fn with_callbacks(self, key: &str) -> Self {
        let base = format!("http://{}/callbacks/{}", self.address, self.rollout_id());
        self.with("completion_callback_url", format!("{base}/completion"))
            .with("grader_callback_url", format!("{base}/grader"))
            .with("controller_api_key", key)
            .with("llm_api_key", "key-of-the-model")
    }

    /// Makes it a request of generation B: all rollouts share the addresses and one key, and every field exists, null
    /// if empty. The model is strict then: it refuses a chat call that lacks a routing header or that key, and streams
    /// unless the call disables streaming.
    pub fn as_b(self) -> Self {
        let base = format!("http://{}", self.address);
        let mut request = self
            .with("completion_callback_url", format!("{base}/v1/rollout/completed"))
            .with("grader_callback_url", format!("{base}/v1/grader/completed"))
            .with("chat_completions_url", base)
            .with("controller_api_key", KEY_OF_B)
            .with("agent_timeout_sec", 450.0)
            .with("grader_timeout_sec", 150.0);
        for field in ["label", "metadata", "extra_fields"] {
            request.fields.entry(field).or_insert(Value::Null);
        }
        request
    }

    /// Removes a field.
    pub fn without(mut self, field: &str) -> Self {
        self.fields.remove(field);
        self
    }

    /// Returns its id.
    pub fn rollout_id(&self) -> &str {
        self.fields["rollout_id"].as_str().unwrap_or_default()
    }

    /// Returns the body.
    pub fn body(&self) -> Value {
        Value::Object(self.fields.clone())
    }
}

impl Shared {
    fn chats(&self) -> MutexGuard<'_, Channel> {
        self.chats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn callbacks(&self) -> MutexGuard<'_, Channel> {
        self.callbacks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Channel {
    fn take(&mut self, uri: &Uri, headers: HeaderMap, body: &Bytes) -> (Value, Option<Answer>) {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        self.received.push(Received { path: uri.path().to_owned(), headers, body: body.clone() });
        (body, self.answers.pop_front())
    }
}

/// Counts a call as open until it is answered or its caller disconnects.
struct Open<'a>(&'a watch::Sender<usize>);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|open| *open -= 1);
    }
}

async fn chat(State(shared): State<Arc<Shared>>, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    shared.chats_open.send_modify(|open| {
        *open += 1;
        shared.chats_open_max.fetch_max(*open, Ordering::SeqCst);
    });
    let _open = Open(&shared.chats_open);
    let (place, (body, answer)) = {
        let mut chats = shared.chats();
        (chats.received.len(), chats.take(&uri, headers, &body))
    };
    shared.changed.send_modify(|count| *count += 1);
    let answered = |after: &Option<usize>| after.is_none_or(|count| place < count);
    // The sender is in `shared`, so it lives during the wait.
    let _ = shared.held_after.subscribe().wait_for(answered).await;
    answer.map_or_else(|| completion(&sum(&body)), respond)
}

/// Serves generation B's chat route, as strict as its only published controller.
async fn routed_chat(shared: State<Arc<Shared>>, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    let has = |name: &str| headers.get(name).is_some_and(|value| !value.is_empty());
    let authorization = headers.get("authorization").map(|value| value.as_bytes().to_vec());
    if authorization.as_deref() != Some(format!("Bearer {KEY_OF_B}").as_bytes()) {
        return respond(Answer::Status(401, json!({"detail": "unauthorized"})));
    }
    if !has("x-rollout-id") || !has("x-sample-id") {
        return respond(Answer::Status(400, json!({"detail": "missing required header(s)"})));
    }
    let wants_no_stream = serde_json::from_slice::<Value>(&body).is_ok_and(|body| body["stream"] == false);
    let answer = chat(shared, uri, headers, body).await;
    if wants_no_stream {
        return answer;
    }
    ([("content-type", "text/event-stream")], ": ping\n\n").into_response()
}

async fn callback(State(shared): State<Arc<Shared>>, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    shared.callbacks_open.send_modify(|open| *open += 1);
    let _open = Open(&shared.callbacks_open);
    let (_, answer) = shared.callbacks().take(&uri, headers, &body);
    shared.changed.send_modify(|count| *count += 1);
    // The sender is in `shared`, so it lives during the wait.
    let _ = shared.callbacks_held.subscribe().wait_for(|held| !held).await;
    respond(answer.unwrap_or(Answer::Status(200, json!({}))))
}

fn respond(answer: Answer) -> Response {
    let status = |code| StatusCode::from_u16(code).expect("a test names a status that exists");
    match answer {
        Answer::Say(text) => completion(text),
        Answer::Status(code, body) => (status(code), axum::Json(body)).into_response(),
        Answer::Soon(code) => (status(code), [("retry-after", "0")], axum::Json(json!({}))).into_response(),
        Answer::Text(text) => text.into_response(),
        Answer::Json(text) => ([("content-type", "application/json")], text).into_response(),
    }
}

fn completion(text: &str) -> Response {
    axum::Json(json!({
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": "a-model",
        "choices": [{
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "finish_reason": "stop",
        }],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
    }))
    .into_response()
}

/// Returns the sum of the integers in the last message, as an answer.
fn sum(body: &Value) -> String {
    let last = body["messages"].as_array().and_then(|messages| messages.last());
    let text = last.and_then(|message| message["content"].as_str()).unwrap_or_default();
    let numbers = text.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse::<u64>().ok());
    format!("The sum is #### {}", numbers.fold(0, u64::saturating_add))
}
