//! Routes of the endpoint and the handling of a chat call.
//!
//! A call is parsed, then planned without waiting for anything ([`App::plan`]), then delayed by the latency,
//! then answered. The counters that planning needs are locked for microseconds.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::rejection::BytesRejection;
use axum::extract::{ConnectInfo, DefaultBodyLimit, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::middleware::map_response;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::stream;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::MockModelSettings;
use super::chance::{Counters, Dice};
use super::completion::{Completion, MODEL, STAND_IN};
use super::connection::Cut;
use super::reply::{self, Reply, Slip, Turn};
use super::request::{BadRequest, ChatRequest};
use super::rubric;
use super::script::{Action, CallContext, ScriptLine};
use super::sse;

/// Header of every response.
const STAND_IN_HEADER: HeaderName = HeaderName::from_static("x-rollout-host-mock");
/// Maximum size of a request, enough for a conversation of a million tokens.
const BODY_BYTES_MAX: usize = 32 << 20;

/// Returns the endpoint's routes. They need [`Cut`] as connect info.
pub(super) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat))
        .route("/chat/completions", post(chat))
        .route("/v1/models", get(models))
        .route("/models", get(models))
        .route("/health", get(health))
        .fallback(unknown_route)
        .method_not_allowed_fallback(unknown_method)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(map_response(mark_as_mock))
        .with_state(app)
}

/// State that all calls share.
#[derive(Debug)]
pub(super) struct App {
    settings: MockModelSettings,
    /// Whether replies depend on the number of the call within its rollout.
    needs_call_number: bool,
    counters: Mutex<CallCounters>,
    calls: AtomicU64,
    /// Aborts the waits of calls when the server stops.
    stop: CancellationToken,
}

/// Bounded counters of earlier calls.
#[derive(Debug)]
struct CallCounters {
    /// Calls by rollout and sample.
    calls: Counters<u128>,
    /// Calls that look the same: by rollout, sample, last user text and number of messages.
    alike: Counters<u128>,
    /// Plays of script lines, by line and rollout.
    played: Counters<(usize, u128)>,
}

/// Identity of the caller, from the request headers.
struct Caller<'a> {
    rollout_id: &'a str,
    sample_id: &'a str,
}

/// The planned outcome of a call and the delay before it.
struct Plan {
    delay: Duration,
    outcome: Outcome,
}

enum Outcome {
    Respond(Response),
    Hang,
    Disconnect,
}

/// Answers a chat call. A call that waits when the server stops is cut.
async fn chat(
    State(app): State<Arc<App>>,
    ConnectInfo(cut): ConnectInfo<Cut>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let number = app.calls.fetch_add(1, Ordering::Relaxed);
    let body = match body {
        Ok(body) => body,
        Err(rejection) => return refuse(rejection.status(), &rejection.body_text(), None, None),
    };
    let Plan { delay, outcome } = match ChatRequest::parse(&body) {
        Ok(request) => app.plan(&request, &Caller::from_headers(&headers), number),
        Err(error) => return error.into_response(),
    };
    drop(body);
    if !delay.is_zero() {
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            () = app.stop.cancelled() => return disconnect(&cut),
        }
    }
    match outcome {
        Outcome::Respond(response) => response,
        Outcome::Disconnect => disconnect(&cut),
        Outcome::Hang => {
            app.stop.cancelled().await;
            disconnect(&cut)
        }
    }
}

async fn models() -> Response {
    let model = json!({
        "id": MODEL,
        "object": "model",
        "created": 0,
        "owned_by": "rollout-host (stand-in, not a model)",
    });
    send_json(StatusCode::OK, &json!({"object": "list", "data": [model]}))
}

async fn health() -> Response {
    send_json(StatusCode::OK, &json!({"status": "ok", "note": STAND_IN}))
}

async fn unknown_route(uri: Uri) -> Response {
    let message = format!("no route {}; there is /v1/chat/completions", uri.path());
    refuse(StatusCode::NOT_FOUND, &message, None, Some("unknown_url"))
}

async fn unknown_method(uri: Uri) -> Response {
    let message = format!("{} does not support this method", uri.path());
    let code = Some("method_not_allowed");
    refuse(StatusCode::METHOD_NOT_ALLOWED, &message, None, code)
}

async fn mark_as_mock(mut response: Response) -> Response {
    response.headers_mut().insert(STAND_IN_HEADER, HeaderValue::from_static(STAND_IN));
    response
}

impl App {
    pub(super) fn new(settings: MockModelSettings, stop: CancellationToken) -> Self {
        let needs_call_number =
            settings.script.is_some() || settings.error_rate > 0.0 || settings.failure_rate > 0.0;
        let counters =
            CallCounters { calls: Counters::new(), alike: Counters::new(), played: Counters::new() };
        Self { settings, needs_call_number, counters: Mutex::new(counters), calls: AtomicU64::new(0), stop }
    }

    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Plans the outcome of a call. `number` makes completion ids unique.
    fn plan(&self, request: &ChatRequest<'_>, caller: &Caller<'_>, number: u64) -> Plan {
        let text = request.last_user_text();
        let call = self.count_call(caller);
        let id = format!("chatcmpl-mock-{number}");
        if let Some(line) = self.scripted(request, caller, &text, call) {
            return Plan {
                delay: line.delay.unwrap_or(self.settings.latency),
                outcome: play(line, request, id),
            };
        }
        let response = self.failure(caller, &text, call).unwrap_or_else(|| {
            let reply = self.reply(request, caller, &text);
            complete(request, reply, None, id)
        });
        Plan { delay: self.settings.latency, outcome: Outcome::Respond(response) }
    }

    /// Returns the number of the call within its rollout and sample, from 1.
    fn count_call(&self, caller: &Caller<'_>) -> u64 {
        if !self.needs_call_number {
            return 1;
        }
        let key = Dice::roll(0, "caller", &caller.about()).key();
        self.counters().calls.count(key) + 1
    }

    fn scripted(
        &self,
        request: &ChatRequest<'_>,
        caller: &Caller<'_>,
        text: &str,
        call: u64,
    ) -> Option<&ScriptLine> {
        let script = self.settings.script.as_ref()?;
        let call_context =
            CallContext { text, rollout_id: caller.rollout_id, call, has_tools: request.has_tools() };
        let rollout = Dice::roll(0, "rollout", &[caller.rollout_id.as_bytes()]).key();
        // One lock covers selection and count, so that `times` holds for concurrent calls.
        let mut counters = self.counters();
        let (index, line) = script.pick(&call_context, |line| counters.played.get(&(line, rollout)))?;
        counters.played.count((index, rollout));
        Some(line)
    }

    /// Returns the seeded failure, if there is one. A retry is another call, so it may succeed.
    fn failure(&self, caller: &Caller<'_>, text: &str, call: u64) -> Option<Response> {
        if self.settings.failure_rate <= 0.0 {
            return None;
        }
        let [rollout, sample] = caller.about();
        let about = [rollout, sample, text.as_bytes(), &call.to_le_bytes()];
        let dice = Dice::roll(self.settings.seed, "failure", &about);
        if !dice.happens(0, self.settings.failure_rate) {
            return None;
        }
        let message = "simulated failure of the mock model (failure rate)";
        let code = Some("seeded_failure");
        let mut response = refuse(StatusCode::SERVICE_UNAVAILABLE, message, None, code);
        let after = ["0", "1"][(dice.word(1) % 2) as usize];
        let after = HeaderValue::from_static(after);
        response.headers_mut().insert(header::RETRY_AFTER, after);
        Some(response)
    }

    fn reply(&self, request: &ChatRequest<'_>, caller: &Caller<'_>, text: &str) -> Reply {
        let [rollout, sample] = caller.about();
        let messages = request.message_count().to_le_bytes();
        let about = [rollout, sample, text.as_bytes(), &messages];
        if let Some(range) = rubric::requested_range(request.response_format()) {
            return rubric::rate(text, range, self.slip(about).is_some());
        }
        let calculator = request.calculator();
        let call_id = match calculator {
            Some(_) => format!("call_{:032x}", self.dice("tool call", &about).key()),
            None => String::new(),
        };
        let turn = Turn { text, calculator, tool_result: request.tool_result(), call_id };
        reply::answer(turn, self.slip(about))
    }

    /// Returns the seeded mistake, if there is one. Calls that look the same are numbered, so that concurrent
    /// calls differ and the first is the same in every run.
    fn slip(&self, about: [&[u8]; 4]) -> Option<Slip> {
        if self.settings.error_rate <= 0.0 {
            return None;
        }
        let alike = Dice::roll(0, "alike", &about).key();
        let before = self.counters().alike.count(alike);
        let [rollout, sample, text, messages] = about;
        let about = [rollout, sample, text, messages, &before.to_le_bytes()];
        let dice = self.dice("mistake", &about);
        dice.happens(0, self.settings.error_rate).then(|| Slip {
            kind: dice.word(1),
            size: dice.word(2),
            repeated: before > 0,
        })
    }

    fn dice(&self, purpose: &str, about: &[&[u8]]) -> Dice {
        Dice::roll(self.settings.seed, purpose, about)
    }

    fn counters(&self) -> MutexGuard<'_, CallCounters> {
        // Counters are consistent after every step, so a poisoned lock is safe to use.
        self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<'a> Caller<'a> {
    fn from_headers(headers: &'a HeaderMap) -> Self {
        let read = |name: &str| {
            let value = headers.get(name).and_then(|value| value.to_str().ok());
            value.unwrap_or_default()
        };
        Self { rollout_id: read("x-rollout-id"), sample_id: read("x-sample-id") }
    }

    fn about(&self) -> [&'a [u8]; 2] {
        [self.rollout_id.as_bytes(), self.sample_id.as_bytes()]
    }
}

/// Performs the action of a script line.
fn play(line: &ScriptLine, request: &ChatRequest<'_>, id: String) -> Outcome {
    let mut response = match &line.action {
        Action::Hang => return Outcome::Hang,
        Action::Disconnect => return Outcome::Disconnect,
        Action::Fail(status) => {
            let message = format!("scripted {status}");
            refuse(*status, &message, None, Some("scripted"))
        }
        Action::Send { status, content_type, body } => {
            let headers = [(header::CONTENT_TYPE, content_type.clone())];
            (*status, headers, body.clone()).into_response()
        }
        Action::Complete { status, reply, usage } => {
            let mut response = complete(request, reply.clone(), usage.clone(), id);
            *response.status_mut() = *status;
            response
        }
    };
    for (name, value) in &line.headers {
        response.headers_mut().insert(name, value.clone());
    }
    Outcome::Respond(response)
}

fn complete(request: &ChatRequest<'_>, reply: Reply, usage: Option<Value>, id: String) -> Response {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let created = now.unwrap_or_default().as_secs();
    let completion = Completion::new(request, reply, usage, id, created);
    if !request.streams() {
        return send_json(StatusCode::OK, &completion.into_json());
    }
    let events = sse::events(&completion, request.wants_usage_chunk());
    let events = events.into_iter().map(Ok::<_, std::convert::Infallible>);
    let headers =
        [(header::CONTENT_TYPE, "text/event-stream; charset=utf-8"), (header::CACHE_CONTROL, "no-cache")];
    (headers, Body::from_stream(stream::iter(events))).into_response()
}

/// Closes the connection. The returned response is never written.
fn disconnect(cut: &Cut) -> Response {
    cut.cut();
    StatusCode::INTERNAL_SERVER_ERROR.into_response()
}

impl IntoResponse for BadRequest {
    fn into_response(self) -> Response {
        let message = self.to_string();
        refuse(StatusCode::BAD_REQUEST, &message, self.param(), Some(self.code()))
    }
}

/// Returns a response with an error body. All error bodies are built here.
fn refuse(status: StatusCode, message: &str, param: Option<&str>, code: Option<&str>) -> Response {
    let kind = match status {
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        _ if status.is_server_error() => "server_error",
        _ => "invalid_request_error",
    };
    let body = json!({"error": {"message": message, "type": kind, "param": param, "code": code}});
    send_json(status, &body)
}

fn send_json(status: StatusCode, body: &Value) -> Response {
    let headers = [(header::CONTENT_TYPE, "application/json")];
    (status, headers, body.to_string()).into_response()
}
