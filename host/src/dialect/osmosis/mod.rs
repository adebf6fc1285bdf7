//! The Osmosis rollout protocol: generation D (polling under a lease), C (callbacks, one
//! sample) and B (callbacks, a map of samples) on the same routes, and A (tools at the start,
//! one post at the end) beside them on its own.
//!
//! `generation` tells their requests apart. What they share is here, what is one
//! generation's alone in a folder each.

pub mod a;
mod b;
mod c;
mod callbacks;
mod cancel;
mod d;
mod error;
mod fields;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod generation;
mod random;
mod report;
mod request;
mod sample;

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, middleware};
use serde_json::{Value, json};
use subtle::ConstantTimeEq;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::config::{Dialect, OsmosisTimes};
use crate::id::RolloutId;
use crate::outbound::{CallbackClient, Secret};
use crate::rollout::Host;
use crate::telemetry::{Refusal, TEXT_FORMAT, TraceParent};
use error::ApiError;
use request::StartRollout;

/// The largest request in bytes. A prompt may carry images as text.
const BODY_BYTES_MAX: usize = 64 << 20;

/// What the dialect is made of.
pub struct Settings {
    /// Who runs the rollouts.
    pub host: Host,
    /// Who posts to callers.
    pub callbacks: CallbackClient,
    /// The generation that requests are of.
    pub dialect: Dialect,
    /// What generation A needs besides.
    pub init: a::Settings,
    /// Waits and leases of generation D.
    pub times: OsmosisTimes,
    /// The key that every request must carry, if there is one.
    pub server_key: Option<Secret>,
    /// What `/health` repeats, so that whoever started this process knows it again.
    pub instance_id: Option<String>,
}

/// The dialect's server side. Cheap to clone.
#[derive(Clone)]
pub struct Osmosis(Arc<Inner>);

struct Inner {
    host: Host,
    callbacks: CallbackClient,
    dialect: Dialect,
    init: a::Server,
    server_key: Option<Secret>,
    instance_id: Option<String>,
    process_id: String,
    polled: d::Registry,
    /// One task a rollout, alive until its caller was told, or gave up.
    tasks: TaskTracker,
}

impl Osmosis {
    /// A server of this host.
    pub fn new(settings: Settings) -> Self {
        let Settings { host, callbacks, dialect, init, times, server_key, instance_id } = settings;
        Self(Arc::new(Inner {
            host,
            callbacks,
            dialect,
            init: a::Server::new(init),
            server_key,
            instance_id,
            process_id: random::uuid4(),
            polled: d::Registry::new(times),
            tasks: TaskTracker::new(),
        }))
    }

    /// Its routes.
    pub fn router(&self) -> Router {
        Router::new()
            .route("/rollout", post(start_rollout))
            .route("/rollout/cancel", post(cancel::cancel))
            .route("/rollout/{id}/result", get(d::result))
            .route("/rollout/{id}/status", get(c::status))
            .route("/health", get(health))
            .route("/metrics", get(metrics))
            .fallback(async || ApiError::NoRoute)
            .method_not_allowed_fallback(async || ApiError::NoMethod)
            .layer(middleware::from_fn_with_state(self.clone(), check_key))
            .merge(a::router())
            .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
            .with_state(self.clone())
    }

    /// Waits until every rollout is over and every result was told, or until the time
    /// is. Admissions should be closed before. Says whether all of it was done.
    pub async fn drain(&self, until: Instant) -> bool {
        self.0.tasks.close();
        let done = async {
            self.0.tasks.wait().await;
            self.0.polled.all_told().await;
        };
        tokio::time::timeout_at(until, done).await.is_ok()
    }
}

/// Lets a request through that carries the server's key, compared in constant time.
async fn check_key(State(osmosis): State<Osmosis>, request: Request, next: Next) -> Response {
    if let Some(key) = &osmosis.0.server_key {
        let expected = format!("Bearer {}", key.expose());
        let given = request.headers().get(header::AUTHORIZATION).map_or(&[][..], |value| value.as_bytes());
        if !bool::from(given.ct_eq(expected.as_bytes())) {
            osmosis.0.host.metrics().unauthorized();
            return ApiError::Unauthorized.into_response();
        }
    }
    next.run(request).await
}

/// Takes a rollout on, or says at once why not.
async fn start_rollout(
    State(osmosis): State<Osmosis>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let parent = headers.get("traceparent").and_then(|value| TraceParent::parse(value.to_str().ok()?));
    let dialect = osmosis.0.dialect;
    let read = request::read(&headers, &body, dialect);
    match read.inspect_err(|_| osmosis.0.host.metrics().refused(Refusal::Invalid))? {
        StartRollout::Polled(request) => d::start(&osmosis, request, parent)
            .map(|admission| (StatusCode::ACCEPTED, Json(admission)).into_response()),
        StartRollout::CalledBack(request) => {
            // B's own servers said 200, C's callers take nothing but 202, and B's that are
            // known take any 2xx.
            let accepted = if dialect == Dialect::B { StatusCode::OK } else { StatusCode::ACCEPTED };
            callbacks::start(&osmosis, request, parent).map(|()| (accepted, Json(json!({}))).into_response())
        }
    }
}

/// Says that the host is alive, how busy it is, and which process it is.
async fn health(State(osmosis): State<Osmosis>) -> Json<Value> {
    let inner = &osmosis.0;
    let load = inner.host.load();
    let mut health = inner.init.health();
    // The other generations' callers read these; what generation A has besides stays.
    let Some(fields) = health.as_object_mut() else { return Json(health) };
    let others = json!({
        "status": "ok",
        "concurrency": {"max_concurrent": load.max_concurrent, "queued": load.queued, "running": load.running},
        "instance_id": inner.instance_id.as_ref().unwrap_or(&inner.process_id),
        "process_id": inner.process_id,
        "lifecycle": {"accepting_rollouts": load.accepting, "active_rollouts": load.queued + load.running},
    });
    if let Value::Object(others) = others {
        fields.extend(others);
    }
    Json(health)
}

/// What the host has counted, for Prometheus.
async fn metrics(State(osmosis): State<Osmosis>) -> Response {
    let host = osmosis.0.host.clone();
    // It reads what the system says of a process that may have tens of thousands of mappings.
    match tokio::task::spawn_blocking(move || host.metrics_text()).await {
        Ok(text) => ([(header::CONTENT_TYPE, TEXT_FORMAT)], text).into_response(),
        Err(error) => {
            tracing::error!(%error, "metrics could not be gathered");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// The id in a path. What is no id names nothing.
fn id_in_path(Path(id): Path<String>) -> Option<RolloutId> {
    RolloutId::parse(id).ok()
}
