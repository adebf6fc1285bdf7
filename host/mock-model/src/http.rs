//! The endpoint: what each route answers, and what a chat call leads to.
//!
//! A call is taken apart, its outcome decided without waiting for anything ([`App::plan`]),
//! then the latency waited, then answered. The counters that decide are locked for
//! microseconds.

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
use super::script::{Action, Line, Moment};
use super::sse;

/// Said by every response, whatever else it says.
const STAND_IN_HEADER: HeaderName = HeaderName::from_static("x-rollout-host-mock");
/// A conversation of a million tokens has room in it; more is a mistake of the client.
const BODY_BYTES_MAX: usize = 32 << 20;

/// The endpoint's routes. They need [`Cut`] as connect info.
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
        .layer(map_response(say_stand_in))
        .with_state(app)
}

/// What all calls share, until the server ends.
#[derive(Debug)]
pub(super) struct App {
    settings: MockModelSettings,
    /// Whether anything depends on which call of a rollout this is.
    counts: bool,
    memory: Mutex<Memory>,
    calls: AtomicU64,
    /// Ends waits that nothing else would end.
    stop: CancellationToken,
}

/// How often what was asked. Each map is bounded.
#[derive(Debug)]
struct Memory {
    /// Calls by rollout and sample.
    calls: Counters<u128>,
    /// Calls that look alike: rollout, sample, last user text, number of messages.
    alike: Counters<u128>,
    /// Lines of the script played, by line and rollout.
    played: Counters<(usize, u128)>,
}

/// Who calls, as far as the headers say.
struct Caller<'a> {
    rollout_id: &'a str,
    sample_id: &'a str,
}

/// What a call leads to, after a delay.
struct Plan {
    delay: Duration,
    outcome: Outcome,
}

enum Outcome {
    Respond(Response),
    Hang,
    Disconnect,
}

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
        Ok(request) => app.plan(&request, &Caller::of(&headers), number),
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
    let message = format!("{} takes another method", uri.path());
    let code = Some("method_not_allowed");
    refuse(StatusCode::METHOD_NOT_ALLOWED, &message, None, code)
}

async fn say_stand_in(mut response: Response) -> Response {
    response.headers_mut().insert(STAND_IN_HEADER, HeaderValue::from_static(STAND_IN));
    response
}

impl App {
    pub(super) fn new(settings: MockModelSettings, stop: CancellationToken) -> Self {
        let counts = settings.script.is_some() || settings.error_rate > 0.0 || settings.failure_rate > 0.0;
        let memory = Memory { calls: Counters::new(), alike: Counters::new(), played: Counters::new() };
        Self { settings, counts, memory: Mutex::new(memory), calls: AtomicU64::new(0), stop }
    }

    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Decides what a call leads to. `number` tells completions apart.
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

    /// Which call of this rollout and sample it is, from 1.
    fn count_call(&self, caller: &Caller<'_>) -> u64 {
        if !self.counts {
            return 1;
        }
        let key = Dice::roll(0, "caller", &caller.about()).key();
        self.memory().calls.count(key) + 1
    }

    fn scripted(
        &self,
        request: &ChatRequest<'_>,
        caller: &Caller<'_>,
        text: &str,
        call: u64,
    ) -> Option<&Line> {
        let script = self.settings.script.as_ref()?;
        let moment = Moment { text, rollout_id: caller.rollout_id, call, has_tools: request.has_tools() };
        let rollout = Dice::roll(0, "rollout", &[caller.rollout_id.as_bytes()]).key();
        // Picked and counted under one lock, so that `times` holds for calls at once.
        let mut memory = self.memory();
        let (index, line) = script.pick(&moment, |line| memory.played.get(&(line, rollout)))?;
        memory.played.count((index, rollout));
        Some(line)
    }

    /// The seeded failure. A retry is another call, so it may succeed.
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
        let message = "the stand-in fails now and then, as it was told to";
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
        if let Some(range) = rubric::range_asked_for(request.response_format()) {
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

    /// The seeded mistake. Calls that look alike are counted, so that several at once differ,
    /// and the first of them is the same whatever else goes on.
    fn slip(&self, about: [&[u8]; 4]) -> Option<Slip> {
        if self.settings.error_rate <= 0.0 {
            return None;
        }
        let alike = Dice::roll(0, "alike", &about).key();
        let before = self.memory().alike.count(alike);
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

    fn memory(&self) -> MutexGuard<'_, Memory> {
        // Counters are whole after every step, so a panic elsewhere does not spoil them.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<'a> Caller<'a> {
    fn of(headers: &'a HeaderMap) -> Self {
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

fn play(line: &Line, request: &ChatRequest<'_>, id: String) -> Outcome {
    let mut response = match &line.action {
        Action::Hang => return Outcome::Hang,
        Action::Disconnect => return Outcome::Disconnect,
        Action::Refuse(status) => {
            let message = format!("scripted {status}");
            refuse(*status, &message, None, Some("scripted"))
        }
        Action::Send { status, content_type, body } => {
            let headers = [(header::CONTENT_TYPE, content_type.clone())];
            (*status, headers, body.clone()).into_response()
        }
        Action::Say { status, reply, usage } => {
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

/// Ends the connection. The response is never written.
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

/// The only producer of error bodies.
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
