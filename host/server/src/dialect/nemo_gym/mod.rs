//! NeMo Gym, version 0.7: environment server, head server and resources server in one.
//!
//! The collector reads the addresses of the servers from the head server, posts each row to `/run`, waits for as long as the
//! rollout takes, and finally posts all results to `/aggregate_metrics`. Agents of Gym post conversations to `/verify`, and
//! calls of an environment's tools to `/{tool}`.
//!
//! A request is held until its rollout ends. A caller that disconnects and does not come back cancels the rollout. A failure
//! never becomes a reward.

mod episode;
mod head;
mod meeting;
mod metrics;
mod outcome;
mod resources;
mod responses;
mod row;
mod run;
mod tools;

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::future::BoxFuture;
use serde_json::Map;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::body::{Bodies, BodyRefused, HoldsBodies};
use super::continued::Continued;
use super::ledger::{Ledger, LedgerTimes};
use super::row::RowFields;
use super::{Health, KeyRule, Routes};
use crate::serving::Serving;
use episode::Episodes;
use meeting::Meetings;
use rollout_assembly::config::{Config, NemoGymConfig};
use rollout_core::budget::Budget;
use rollout_core::limits::SessionLimits;
use rollout_outbound::{InvalidEndpoint, ModelEndpoint, Secret};
use rollout_rollout::{Host, ModelAddress, RequestSecrets, UnfinishedRollout};

/// The name of this protocol's driver.
const DRIVER: &str = "nemo-gym";

/// Time for which the status of a finished rollout is stored. No route reads it.
const STATUS_TTL: Duration = Duration::from_secs(60);

/// Time for which a request waits for room. The protocol has no answer that makes its caller wait.
const ADMISSION_TIME_MAX: Duration = Duration::from_secs(600);

/// Maximum pause between two attempts to be admitted.
const ADMISSION_PAUSE: Duration = Duration::from_millis(500);

/// Paths of requests that belong to no session, even if they have the cookie of one.
const WITHOUT_SESSION: [&str; 4] = ["rollout", "run", "aggregate_metrics", "seed_session"];

/// Field of a row with the id of a session that the caller chose.
const CHOSEN_SESSION: &str = "resources_session_id";

/// Returns the cookie of the session to which a request belongs. The path is below a tenant's plugin.
pub(crate) fn session_of(path: &str, headers: &HeaderMap) -> Option<String> {
    let name = path.strip_prefix('/')?;
    let is_in_session = !name.contains('/') && !WITHOUT_SESSION.contains(&name);
    is_in_session.then(|| episode::cookie_of(headers)).flatten()
}

/// Returns the field with the id of a session that the caller chose, if requests with this path may have one.
pub(crate) fn chosen_session_in(path: &str) -> Option<&'static str> {
    ["/seed_session", "/close_session"].contains(&path).then_some(CHOSEN_SESSION)
}

/// The settings of a plugin for this protocol.
#[derive(Default)]
pub struct Settings {
    model: Option<Model>,
    fields: RowFields,
    group_size: Option<u32>,
}

/// The model of all rollouts. Requests do not name one.
struct Model {
    address: ModelAddress,
    secrets: RequestSecrets,
    endpoint: ModelEndpoint,
}

impl Model {
    fn new(url: &str, name: &str, key: Option<Secret>) -> Result<Self, InvalidEndpoint> {
        let (address, secrets) = ModelAddress::split(url, name, key);
        let endpoint = secrets.endpoint(&address)?;
        Ok(Self { address, secrets, endpoint })
    }

    /// Returns a model for rollouts that never call one.
    fn unreachable() -> Self {
        Self::new("http://127.0.0.1:9/v1", "none", None).expect("the address is valid")
    }
}

impl Settings {
    /// Reads the settings from a configuration. `key` is that of the model's server.
    pub fn new(config: &NemoGymConfig, key: Option<Secret>) -> Result<Self, InvalidEndpoint> {
        let model = config.model_url.as_deref().map(|url| Model::new(url, &config.model, key)).transpose()?;
        // The configuration has been checked.
        let label = config.label_field.as_deref().and_then(|path| path.parse().ok());
        let fields = RowFields { prompt: None, label };
        Ok(Self { model, fields, group_size: config.group_size })
    }
}

/// The dialect. Cheap to clone.
#[derive(Clone)]
pub struct NemoGym(Arc<Inner>);

struct Inner {
    serving: Serving,
    settings: RwLock<Arc<Settings>>,
    /// Name of the server's log if it is a worker behind gateways. The cookies of episodes name it.
    log: Option<String>,
    budget: Budget,
    ledger: Arc<Ledger>,
    /// One task for each rollout until its caller has the result, and one for each episode.
    tasks: TaskTracker,
    bodies: Bodies,
    continued: Continued,
    meetings: Meetings,
    episodes: Episodes,
    /// Notified whenever a rollout or an episode ends.
    ended: Arc<Notify>,
}

impl NemoGym {
    /// Creates the dialect of a host. `limits` are those of the sessions of environments, and `log` is the log of
    /// a worker.
    pub fn new(serving: Serving, settings: Settings, limits: SessionLimits, log: Option<String>) -> Self {
        let host = serving.host();
        let times = LedgerTimes::without_polls(STATUS_TTL);
        Self(Arc::new(Inner {
            budget: host.budget().clone(),
            continued: Continued::of(host.budget()),
            ledger: Ledger::new(times, &host),
            serving,
            settings: RwLock::new(Arc::new(settings)),
            log,
            tasks: TaskTracker::new(),
            bodies: Bodies::default(),
            meetings: Meetings::default(),
            episodes: Episodes::new(limits),
            ended: Arc::default(),
        }))
    }

    /// Replaces the settings by those of another version of the plugin.
    pub(crate) fn set(&self, settings: Settings) {
        *self.0.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
    }

    fn settings(&self) -> Arc<Settings> {
        self.0.settings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl HoldsBodies for NemoGym {
    fn budget(&self) -> &Budget {
        &self.0.budget
    }

    fn bodies(&self) -> &Bodies {
        &self.0.bodies
    }
}

impl IntoResponse for BodyRefused {
    fn into_response(self) -> Response {
        let status = match &self {
            Self::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Slow(_) => StatusCode::REQUEST_TIMEOUT,
            Self::Unreadable => StatusCode::BAD_REQUEST,
            Self::NoMemory => StatusCode::SERVICE_UNAVAILABLE,
        };
        refused(status, self.to_string())
    }
}

/// Returns an error in Gym's form.
fn refused(status: StatusCode, detail: impl Into<String>) -> Response {
    (status, Json(serde_json::json!({"detail": detail.into()}))).into_response()
}

/// Returns the answer to an unknown path.
fn no_route() -> Response {
    refused(StatusCode::NOT_FOUND, "Not Found")
}

impl super::Dialect for NemoGym {
    fn routes(&self) -> Vec<Routes> {
        let router = Router::new()
            .route("/run", post(run::run))
            .route("/verify", post(run::verify))
            .route("/aggregate_metrics", post(metrics::aggregate))
            .route("/global_config_dict_yaml", get(head::configuration))
            .route("/seed_session", post(resources::seed_session))
            .route("/close_session", post(resources::close_session))
            .route("/reverify_mode", get(resources::reverify_mode))
            // The routes above take precedence: a tool cannot have one of their names.
            .route("/{tool}", post(tools::tool).fallback(async || no_route()))
            .with_state(self.clone());
        vec![Routes { router, key: KeyRule::Bearer, short: Vec::new() }]
    }

    fn health(&self) -> Health {
        Health { fields: Map::new(), is_all: false }
    }

    /// Returns one: each caller holds a connection while it waits.
    fn descriptors_per_rollout(_config: &Config) -> u64 {
        1
    }

    fn drives(&self, driver: &str) -> bool {
        driver == DRIVER
    }

    fn resume(&self, host: &Host, unfinished: UnfinishedRollout) -> Result<(), String> {
        run::resume(self, host, unfinished)
    }

    fn is_idle(&self) -> bool {
        self.0.tasks.is_empty() && self.0.ledger.is_empty()
    }

    fn close(&self) {
        self.0.episodes.close_all();
        self.0.ledger.close();
        if self.0.serving.host().is_kept() {
            self.0.meetings.wait_longer();
        }
    }

    fn drain(&self, until: Instant) -> BoxFuture<'_, bool> {
        self.0.tasks.close();
        Box::pin(async move { tokio::time::timeout_at(until, self.0.tasks.wait()).await.is_ok() })
    }

    fn announce_cancellation(&self) {
        self.0.ledger.cancel_rest();
    }

    fn unreported(&self) -> Vec<String> {
        self.0.ledger.unreported()
    }
}
