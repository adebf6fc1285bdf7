//! OpenEnv: a trainer's model acts in the plugin's environment, over one WebSocket for each session.
//!
//! The routes are below `/openenv`, which the clients take as a base address, because both OpenEnv and this server have
//! a `/health` of their own. A session is one socket, or is made by `POST /mcp` and named by later requests. A request
//! without a session, such as `POST /reset`, has an environment of its own, as in the reference server.

mod detached;
mod frame;
mod http;
mod openapi;
mod play;
mod rpc;
mod socket;

use std::sync::Arc;

use axum::Router;
use axum::routing::{any, get, post};
use futures_util::future::BoxFuture;
use serde_json::Map;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Health, KeyRule, Routes};
use crate::random;
use crate::serving::Serving;
use detached::Detached;
use frame::Refusal;
use rollout_assembly::config::Config;
use rollout_core::budget::{Charge, Use};
use rollout_core::limits::SessionLimits;
use rollout_rollout::{EnvironmentFacts, Host, Session, UnfinishedRollout};
use rollout_wire::id::RolloutId;

/// Memory of a parsed request, in multiples of its bytes: a value takes up to 32 bytes and has at least two of text.
const PARSED_BYTES_PER_BYTE: usize = 16;

/// The dialect's server side. Cheap to clone.
#[derive(Clone)]
pub struct OpenEnv(Arc<Inner>);

struct Inner {
    serving: Serving,
    limits: SessionLimits,
    /// One task for each socket, and one for each session without one.
    tasks: TaskTracker,
    closing: CancellationToken,
    detached: Detached,
}

/// A session with the description of its environment.
struct OpenSession {
    session: Session,
    facts: Arc<EnvironmentFacts>,
}

/// A session that several requests may use, one after the other.
type SharedSession = Arc<tokio::sync::Mutex<OpenSession>>;

impl OpenEnv {
    /// Creates the dialect of a host.
    pub fn new(serving: Serving, limits: SessionLimits) -> Self {
        let (tasks, closing, detached) = (TaskTracker::new(), CancellationToken::new(), Detached::default());
        Self(Arc::new(Inner { serving, limits, tasks, closing, detached }))
    }

    /// Opens a session on the current host.
    async fn open(&self) -> Result<OpenSession, Refusal> {
        if self.0.closing.is_cancelled() {
            return Err(Refusal::session("the server is shutting down"));
        }
        let host = self.0.serving.host();
        let id = RolloutId::parse(random::uuid4()).map_err(|error| Refusal::session(error.to_string()))?;
        let session = host.open_session(id, self.0.limits).await?;
        let facts = host.environment().await.map_err(|error| self.no_factory(error.to_string()))?;
        Ok(OpenSession { session, facts })
    }

    /// Returns the description of the environment.
    async fn facts(&self) -> Result<Arc<EnvironmentFacts>, Refusal> {
        let host = self.0.serving.host();
        if !host.has_environment() {
            return Err(rollout_rollout::OpenSessionError::NoEnvironment.into());
        }
        host.environment().await.map_err(|error| self.no_factory(error.to_string()))
    }

    /// Returns the refusal of an environment that cannot be made.
    fn no_factory(&self, reason: String) -> Refusal {
        Refusal::factory(reason, &self.0.serving.now().agent_name)
    }

    /// Charges the memory of a request of this size.
    fn charge(&self, bytes: usize) -> Result<Charge, Refusal> {
        let charged = self.0.serving.host().budget().charge(Use::Request, bytes * PARSED_BYTES_PER_BYTE);
        charged.map_err(|over| Refusal::execution(over.to_string()))
    }
}

impl super::Dialect for OpenEnv {
    fn routes(&self) -> Vec<Routes> {
        let router = Router::new()
            .route("/openenv/ws", any(socket::connect))
            .route("/openenv/health", get(http::health))
            .route("/openenv/metadata", get(http::metadata))
            .route("/openenv/schema", get(http::schema))
            .route("/openenv/openapi.json", get(openapi::document))
            .route("/openenv/reset", post(http::reset))
            .route("/openenv/step", post(http::step))
            .route("/openenv/state", get(http::state))
            .route("/openenv/mcp", post(http::mcp))
            .route("/openenv/list_environments", get(http::list_environments))
            .route("/openenv/{name}/splits", get(http::splits))
            .route("/openenv/{name}/tasks", post(http::tasks))
            .route("/openenv/{name}/num_tasks", post(http::num_tasks))
            .route("/openenv/{name}/task", post(http::task))
            .route("/openenv/{name}/task_range", post(http::task_range))
            .with_state(self.clone());
        vec![Routes { router, key: KeyRule::Bearer, short: Vec::new() }]
    }

    fn health(&self) -> Health {
        Health { fields: Map::new(), is_all: false }
    }

    /// Returns one: each session has a socket.
    fn descriptors_per_rollout(_config: &Config) -> u64 {
        1
    }

    /// Returns no: a session ends with its process.
    fn drives(&self, _driver: &str) -> bool {
        false
    }

    fn resume(&self, _host: &Host, _unfinished: UnfinishedRollout) -> Result<(), String> {
        Err("a session of an environment is not resumed".to_owned())
    }

    fn is_idle(&self) -> bool {
        self.0.tasks.is_empty()
    }

    /// Ends the sessions without an episode. Episodes may end before the rest is cancelled.
    fn close(&self) {
        self.0.closing.cancel();
        self.0.tasks.close();
    }

    fn drain(&self, until: Instant) -> BoxFuture<'_, bool> {
        Box::pin(async move { tokio::time::timeout_at(until, self.0.tasks.wait()).await.is_ok() })
    }

    fn cancels_rest(&self) {}

    fn unreported(&self) -> Vec<String> {
        Vec::new()
    }
}
