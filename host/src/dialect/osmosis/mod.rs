//! The Osmosis rollout protocol: generation D (polling under a lease), C (callbacks, one
//! sample) and B (callbacks, a map of samples) on the same routes, and A (tools at the start,
//! one post at the end) beside them on its own.
//!
//! `generation` tells their requests apart. What they share is here, what is one
//! generation's alone in a folder each.

pub mod a;
mod b;
mod body;
mod c;
mod callbacks;
mod cancel;
mod d;
mod error;
mod fields;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod gate;
mod generation;
mod random;
mod report;
mod reports;
mod request;
mod sample;
mod statuses;

use std::sync::{Arc, Once, Weak};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, middleware};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::config::{Dialect, OsmosisTimes};
use crate::id::RolloutId;
use crate::outbound::CallbackClient;
use crate::rollout::Host;
use crate::telemetry::{Refusal, TEXT_FORMAT, TraceParent};
use body::{Body, Unfinished};
use error::ApiError;
pub use gate::Access;
use reports::Reports;
use request::{ForRollout, StartRollout};
use statuses::Statuses;

/// The largest request in bytes. A prompt may carry images as text.
const BODY_BYTES_MAX: usize = 64 << 20;

/// How often what is kept for callers is looked through for what is due.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

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
    /// Who may ask.
    pub access: Access,
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
    access: Access,
    instance_id: Option<String>,
    process_id: String,
    polled: d::Registry,
    statuses: Arc<Statuses>,
    /// One task a rollout, alive until its caller was told, or gave up.
    tasks: TaskTracker,
    reports: Arc<Reports>,
    unfinished: Unfinished,
    sweeping: Once,
}

impl Osmosis {
    /// A server of this host.
    pub fn new(settings: Settings) -> Self {
        let Settings { host, callbacks, dialect, init, times, access, instance_id } = settings;
        let init = a::Server::new(init, host.budget().clone());
        Self(Arc::new(Inner {
            host,
            callbacks,
            dialect,
            init,
            access,
            instance_id,
            process_id: random::uuid4(),
            statuses: Arc::new(Statuses::new(times.result_ttl)),
            polled: d::Registry::new(times),
            tasks: TaskTracker::new(),
            reports: Arc::default(),
            unfinished: Unfinished::default(),
            sweeping: Once::new(),
        }))
    }

    /// Begins to forget what is due, within the runtime. Before the first request there is
    /// nothing to forget.
    fn keep_swept(&self) {
        self.0.sweeping.call_once(|| drop(tokio::spawn(sweep(Arc::downgrade(&self.0)))));
    }

    /// Its routes.
    pub fn router(&self) -> Router {
        let others = Router::new()
            .route("/rollout", post(start_rollout))
            .route("/rollout/cancel", post(cancel::cancel))
            .route("/rollout/{id}/result", get(d::result))
            .route("/rollout/{id}/status", get(c::status))
            .route("/health", get(health));
        let (others, own_health) = match self.0.init.is_alone() {
            true => (Router::new(), a::health_router()),
            false => (others, Router::new()),
        };
        others
            .route("/metrics", get(metrics))
            .fallback(async || ApiError::NoRoute)
            .method_not_allowed_fallback(async || ApiError::NoMethod)
            .layer(middleware::from_fn_with_state(self.clone(), gate::check_key))
            .merge(a::router().layer(middleware::from_fn_with_state(self.clone(), gate::check_key_of_a)))
            .merge(own_health)
            // What is asked of a request's head comes before anything of its body, here and in
            // the layers above.
            .layer(middleware::from_fn_with_state(self.clone(), gate::check_origin))
            .with_state(self.clone())
    }

    /// Waits until every rollout is over and every result was told, or until the time
    /// is. Admissions should be closed before. Says whether all of it was done.
    pub async fn drain(&self, until: Instant) -> bool {
        self.0.tasks.close();
        let done = async {
            self.0.tasks.wait().await;
            self.0.reports.all_kept().await;
        };
        tokio::time::timeout_at(until, done).await.is_ok()
    }

    /// Takes note that no rollout will be asked for again. Admissions should be closed before.
    pub fn close(&self) {
        self.0.reports.close();
    }

    /// Cancels what still runs. Its callers are owed word of that.
    pub fn cancel_rest(&self) {
        self.0.reports.cancel_rest();
        self.0.host.cancel_all();
    }

    /// Makes of a body the request for a rollout that it is, with a charge for what that takes.
    /// What is refused here is counted, because it never comes to admission.
    fn read_for_rollout<T: ForRollout>(
        &self,
        body: Result<Body<BODY_BYTES_MAX>, ApiError>,
        read: impl FnOnce(&[u8]) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let metrics = self.0.host.metrics();
        let no_room = |error: &ApiError| {
            if matches!(error, ApiError::NoMemory) {
                metrics.refused(Refusal::Memory);
            }
        };
        let mut body = body.inspect_err(no_room)?;
        let read = body.parse(read).inspect_err(no_room)?;
        let mut request = read.inspect_err(|_| metrics.refused(Refusal::Invalid))?;
        let charge = body.becomes(request.memory_bytes()).inspect_err(no_room)?;
        request.resources().charge = Some(charge);
        Ok(request)
    }

    /// The rollouts whose callers have not heard what came of them.
    pub fn unreported(&self) -> Vec<String> {
        self.0.reports.missing()
    }
}

/// Forgets what is due, for as long as there is a server. A look at each part does so too, but
/// a server that has no room left is asked for nothing that looks.
async fn sweep(inner: Weak<Inner>) {
    let mut pause = tokio::time::interval(SWEEP_INTERVAL);
    loop {
        pause.tick().await;
        let Some(inner) = inner.upgrade() else { return };
        inner.polled.sweep(inner.host.budget());
        inner.init.sweep();
        inner.statuses.sweep();
    }
}

/// Takes a rollout on, or says at once why not.
async fn start_rollout(
    State(osmosis): State<Osmosis>,
    headers: HeaderMap,
    body: Result<Body<BODY_BYTES_MAX>, ApiError>,
) -> Result<Response, ApiError> {
    osmosis.keep_swept();
    let parent = headers.get("traceparent").and_then(|value| TraceParent::parse(value.to_str().ok()?));
    let dialect = osmosis.0.dialect;
    match osmosis.read_for_rollout(body, |bytes| request::read(&headers, bytes, dialect))? {
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
