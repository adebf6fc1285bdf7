//! The Osmosis rollout protocol: generations D (polling under a lease), C (callbacks, one sample) and B (callbacks, a
//! map of samples) on the same routes, and A (tools at the start, one post at the end) on its own routes.
//!
//! `generation` detects the generation of a request. Shared parts are here, each generation's own parts in its module.

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
mod journaled;
mod placed;
pub(crate) mod report;
mod request;
mod resume;
mod sample;

use std::sync::{Arc, Once, Weak};
use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use futures_util::future::BoxFuture;
use serde_json::{Map, Value, json};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::body::{Bodies, Body, BodyRefused, HoldsBodies};
use super::continued::Continued;
use super::ledger::{Ledger, LedgerTimes};
use super::{Health, KeyRule, Routes};
use crate::serving::Serving;
use crate::worker;
pub(crate) use d::{LEASE_HEADER, lost, unfinished};
use error::ApiError;
pub(crate) use journaled::reported;
use placed::Placed;
use request::{ForRollout, StartRollout};
use rollout_assembly::config::Config;
pub use rollout_assembly::config::{OsmosisGeneration, OsmosisTimes};
use rollout_core::budget::Budget;
use rollout_core::telemetry::{Refusal, TraceParent};
use rollout_outbound::CallbackClient;
use rollout_rollout::{Host, UnfinishedRollout};
use rollout_wire::id::RolloutId;

/// Maximum size of a request in bytes. A prompt may contain images as text.
const BODY_BYTES_MAX: usize = 64 << 20;

/// Interval at which expired entries of the ledger are removed.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// The parts of the dialect.
pub struct OsmosisSettings {
    /// The host that runs the rollouts.
    pub serving: Serving,
    /// The client that posts to callers.
    pub callbacks: CallbackClient,
    /// The generation of requests.
    pub generation: OsmosisGeneration,
    /// Additional settings of generation A.
    pub init: a::GenerationASettings,
    /// Waits and leases of generation D.
    pub times: OsmosisTimes,
    /// Whether the server requires a key.
    pub is_keyed: bool,
    /// Name of the server's log if it is a worker. Leases name it.
    pub log: Option<String>,
}

/// The dialect's server side. Cheap to clone.
#[derive(Clone)]
pub struct Osmosis(Arc<Inner>);

struct Inner {
    serving: Serving,
    budget: Budget,
    callbacks: Arc<CallbackClient>,
    generation: OsmosisGeneration,
    init: a::Server,
    is_keyed: bool,
    log: Option<String>,
    ledger: Arc<Ledger>,
    /// One task for each rollout, until its caller is notified or delivery is abandoned.
    tasks: TaskTracker,
    bodies: Bodies,
    continued: Continued,
    /// Rollouts that gateways send to another worker in this one's place.
    placed: Placed,
    sweeping: Once,
}

impl Osmosis {
    /// Creates the dialect of a host.
    pub fn new(settings: OsmosisSettings) -> Self {
        let OsmosisSettings { serving, callbacks, generation, init, times, is_keyed, log } = settings;
        let host = serving.host();
        let budget = host.budget().clone();
        let times = LedgerTimes {
            result_wait: times.result_wait,
            lease: times.lease,
            result_ttl: times.result_ttl,
            answer_ttl: init.init.record_ttl,
            answer_interval: init.init.cleanup_interval,
        };
        Self(Arc::new(Inner {
            continued: Continued::of(&budget),
            serving,
            budget,
            callbacks: Arc::new(callbacks),
            generation,
            init: a::Server::new(init),
            is_keyed,
            log,
            ledger: Ledger::new(times, &host),
            tasks: TaskTracker::new(),
            bodies: Bodies::default(),
            placed: Placed::default(),
            sweeping: Once::new(),
        }))
    }

    /// Starts the task that removes expired entries. Call it within the runtime.
    fn start_sweeping(&self) {
        self.0.sweeping.call_once(|| {
            self.0.ledger.start();
            drop(tokio::spawn(sweep(Arc::downgrade(&self.0))));
        });
    }

    /// Returns the fields of `/health` about the rollouts of all generations, with generation A's names.
    fn rollout_health(&self) -> Map<String, Value> {
        let (active, completed) = self.0.ledger.counts();
        let fields: [(&str, Value); 4] = [
            ("status", "healthy".into()),
            ("agent_loop", self.0.serving.now().agent_name.as_str().into()),
            ("active_rollouts", active.into()),
            ("completed_rollouts", completed.into()),
        ];
        fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// Parses a body as a request for a rollout, with a charge for its memory. A refusal is counted here, because the
    /// request never reaches admission.
    fn read_for_rollout<T: ForRollout>(
        &self,
        body: Result<Body<BODY_BYTES_MAX>, BodyRefused>,
        read: impl FnOnce(&[u8]) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let host = self.0.serving.host();
        let metrics = host.metrics();
        let no_room = |error: &ApiError| {
            if matches!(error, ApiError::NoMemory) {
                metrics.refused(Refusal::Memory);
            }
        };
        let mut body = body.map_err(ApiError::from).inspect_err(no_room)?;
        let read = body.parse(read).map_err(ApiError::from).inspect_err(no_room)?;
        let mut request = read.inspect_err(|_| metrics.refused(Refusal::Invalid))?;
        let charge = body.becomes(request.memory_bytes()).map_err(ApiError::from).inspect_err(no_room)?;
        request.resources().charge = Some(charge);
        Ok(request)
    }
}

impl HoldsBodies for Osmosis {
    fn budget(&self) -> &Budget {
        &self.0.budget
    }

    fn bodies(&self) -> &Bodies {
        &self.0.bodies
    }
}

impl super::Dialect for Osmosis {
    fn routes(&self) -> Vec<Routes> {
        let of_a = Routes {
            router: a::router().with_state(self.clone()),
            key: KeyRule::Own { is_given: a::is_authorised, refusal: a::KEY_REFUSAL },
            short: vec![(Method::GET, "/platform/health")],
        };
        if self.0.init.is_only_generation() {
            return vec![of_a];
        }
        let router = Router::new()
            .route("/rollout", post(start_rollout))
            .route("/rollout/cancel", post(cancel::cancel))
            .route("/rollout/{id}/result", get(d::result))
            .route("/rollout/{id}/status", get(c::status))
            .route(&worker::placed_path("/rollout", "{id}"), put(d::confirm_place))
            .with_state(self.clone());
        let short = vec![(Method::POST, "/rollout/cancel")];
        vec![Routes { router, key: KeyRule::Bearer, short }, of_a]
    }

    fn health(&self) -> Health {
        Health { fields: self.rollout_health(), is_all: self.0.init.is_only_generation() }
    }

    /// Returns one: a caller that polls holds a connection, and a caller with callbacks holds none.
    fn descriptors_per_rollout(config: &Config) -> u64 {
        let is_called_back = matches!(config.osmosis_generation, OsmosisGeneration::B | OsmosisGeneration::C)
            || config.osmosis_init.alone;
        if is_called_back { 0 } else { 1 }
    }

    fn drives(&self, driver: &str) -> bool {
        driver == journaled::DRIVER
    }

    fn resume(&self, host: &Host, unfinished: UnfinishedRollout) -> Result<(), String> {
        resume::resume(self, host, unfinished)
    }

    fn is_idle(&self) -> bool {
        self.0.tasks.is_empty() && self.0.ledger.is_empty()
    }

    fn close(&self) {
        self.0.ledger.close();
    }

    fn drain(&self, until: Instant) -> BoxFuture<'_, bool> {
        self.0.tasks.close();
        let done = async {
            self.0.tasks.wait().await;
            self.0.ledger.all_settled().await;
            // When the server cancels the remaining rollouts, it does not wait for results in the journal.
            if !self.0.ledger.is_cancelling() {
                self.0.ledger.all_read().await;
            }
        };
        Box::pin(async move { tokio::time::timeout_at(until, done).await.is_ok() })
    }

    fn answer_waiting(&self) {
        self.0.ledger.answer_waiting();
    }

    fn announce_cancellation(&self) {
        self.0.ledger.cancel_rest();
    }

    fn unreported(&self) -> Vec<String> {
        self.0.ledger.unreported()
    }
}

/// Removes expired entries until the server is dropped. Every use of the ledger removes them as well, but a full server may
/// refuse all requests that would use it.
async fn sweep(inner: Weak<Inner>) {
    let mut pause = tokio::time::interval(SWEEP_INTERVAL);
    loop {
        pause.tick().await;
        let Some(inner) = inner.upgrade() else { return };
        inner.ledger.sweep();
    }
}

/// Admits a rollout, or refuses it at once with the reason.
async fn start_rollout(
    State(osmosis): State<Osmosis>,
    headers: HeaderMap,
    body: Result<Body<BODY_BYTES_MAX>, BodyRefused>,
) -> Result<Response, ApiError> {
    match start(&osmosis, headers, body).await {
        // The gateway tries the next worker.
        Err(refused @ ApiError::NoParent(_)) if osmosis.0.log.is_some() => {
            let mut response = refused.into_response();
            *response.status_mut() = StatusCode::MISDIRECTED_REQUEST;
            Ok(response)
        }
        started => started,
    }
}

async fn start(
    osmosis: &Osmosis,
    headers: HeaderMap,
    body: Result<Body<BODY_BYTES_MAX>, BodyRefused>,
) -> Result<Response, ApiError> {
    osmosis.start_sweeping();
    let parent = headers.get("traceparent").and_then(|value| TraceParent::parse(value.to_str().ok()?));
    let configured = osmosis.0.generation;
    let rules = osmosis.0.callbacks.rules();
    // Only a gateway reaches a worker.
    let chosen = osmosis.0.log.as_ref().and_then(|_| worker::Chosen::of(&headers));
    match osmosis.read_for_rollout(body, |bytes| request::read(&headers, bytes, configured, &rules))? {
        StartRollout::Polled(request) => {
            if let Some(count) = request.continuations {
                let tree =
                    d::start_tree(osmosis, request, count, (parent, chosen.map(|chosen| chosen.token)))
                        .await?;
                return Ok((StatusCode::ACCEPTED, Json(tree)).into_response());
            }
            let admission = d::start(osmosis, request, (parent, chosen)).await?;
            Ok((StatusCode::ACCEPTED, Json(admission)).into_response())
        }
        // The id of a rollout with callbacks is free after its end, so the rollout of the first request may be over.
        StartRollout::CalledBack(_) if osmosis.0.log.is_some() && worker::is_repeated(&headers) => {
            Err(ApiError::Registered)
        }
        StartRollout::CalledBack(request) => {
            // B's servers responded 200, C's callers require 202, and B's known callers accept any 2xx.
            let accepted =
                if configured == OsmosisGeneration::B { StatusCode::OK } else { StatusCode::ACCEPTED };
            callbacks::start(osmosis, request, (parent, chosen)).await?;
            Ok((accepted, Json(json!({}))).into_response())
        }
    }
}

/// Returns the response to a request whose body could not be read.
pub(crate) fn body_refused(refused: BodyRefused) -> Response {
    ApiError::from(refused).into_response()
}

/// Returns the id in a path, or `None` for an invalid id, which no rollout has.
fn id_in_path(Path(id): Path<String>) -> Option<RolloutId> {
    RolloutId::parse(id).ok()
}
