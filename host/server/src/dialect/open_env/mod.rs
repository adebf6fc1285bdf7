//! OpenEnv: a trainer's model acts in the plugin's environment, over one WebSocket for each session.
//!
//! The routes are below `/openenv`, the base address for clients, because OpenEnv and this server each have a `/health` of
//! their own.
//!
//! There are three kinds of sessions. One belongs to a socket and ends with it. Another is created by `POST /mcp`, and later
//! requests name it. The third has a name that its caller chose, in the path. Sessions with names are in the journal. A
//! request without a session, such as `POST /reset`, has an environment of its own, as in the reference server.

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
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::sessions::{OpenSession, Sessions, SessionsError, SharedSession};
use super::{Health, KeyRule, Routes};
use crate::serving::Serving;
use frame::Refusal;
use rollout_assembly::config::Config;
use rollout_core::budget::{Charge, Use};
use rollout_core::limits::SessionLimits;
use rollout_rollout::{EnvironmentFacts, Host, UnfinishedRollout};

/// Name of the dialect in the journal.
const DRIVER: &str = "open-env";

/// Prefix of the protocol's paths.
pub(crate) const PREFIX: &str = "/openenv/";

/// Memory of a parsed request, in multiples of its bytes: a value takes up to 32 bytes and has at least two of text.
const PARSED_BYTES_PER_BYTE: usize = 16;

/// The dialect's server side. Cheap to clone.
#[derive(Clone)]
pub struct OpenEnv {
    sessions: Sessions,
    /// Permits of refused sockets that stay open for their callers.
    lingering: Arc<Semaphore>,
}

impl OpenEnv {
    /// Creates the dialect of a host. `log` is the log of a worker.
    pub fn new(serving: Serving, limits: SessionLimits, log: Option<String>) -> Self {
        let lingering = Arc::new(Semaphore::new(socket::LINGERING_MAX));
        Self { sessions: Sessions::new(serving, limits, DRIVER, log), lingering }
    }

    /// Opens a session on the current host that ends with its owner.
    async fn open(&self) -> Result<OpenSession, Refusal> {
        self.sessions.open().await.map_err(|error| self.refusal(error))
    }

    /// Returns the description of the environment.
    async fn facts(&self) -> Result<Arc<EnvironmentFacts>, Refusal> {
        self.sessions.facts().await.map_err(|error| self.refusal(error))
    }

    /// Converts the error of a session to this protocol's form.
    fn refusal(&self, error: SessionsError) -> Refusal {
        match error {
            SessionsError::Open(error) => error.into(),
            SessionsError::Describe(error) => {
                Refusal::factory(error.to_string(), &self.sessions.serving().now().agent_name)
            }
            SessionsError::Unknown(name) => Refusal::session(format!("Unknown session_id: {name}")),
            SessionsError::Attached(name) => {
                Refusal::session(format!("session_id {name} has a WebSocket already"))
            }
            // The session continues.
            SessionsError::Busy => Refusal::execution(error.to_string()),
            SessionsError::Closing | SessionsError::Over => Refusal::session(error.to_string()),
        }
    }

    /// Does the work of a request in a session with a name, for which the request has a [`Turn`](super::sessions::Turn). The
    /// work is completed even if the caller's connection breaks, so that the session has no call without an answer.
    async fn complete<T: Send + 'static, E: From<Refusal> + Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, E>> + Send + 'static,
    ) -> Result<T, E> {
        let done = self.sessions.tasks().spawn(work).await;
        done.unwrap_or_else(|_| Err(Refusal::session("the server failed in this request").into()))
    }

    /// Charges the memory of a request of this size.
    fn charge(&self, bytes: usize) -> Result<Charge, Refusal> {
        let charged =
            self.sessions.serving().host().budget().charge(Use::Request, bytes * PARSED_BYTES_PER_BYTE);
        charged.map_err(|over| Refusal::execution(over.to_string()))
    }
}

impl super::Dialect for OpenEnv {
    fn routes(&self) -> Vec<Routes> {
        let router = Router::new()
            .route("/openenv/ws", any(socket::connect))
            .route("/openenv/sessions/{name}/ws", any(socket::connect_named))
            .route("/openenv/health", get(http::health))
            .route("/openenv/metadata", get(http::metadata))
            .route("/openenv/schema", get(http::schema))
            .route("/openenv/sessions/{name}/health", get(http::health))
            .route("/openenv/sessions/{name}/metadata", get(http::metadata))
            .route("/openenv/sessions/{name}/schema", get(http::schema))
            .route("/openenv/openapi.json", get(openapi::document))
            .route("/openenv/reset", post(http::reset))
            .route("/openenv/step", post(http::step))
            .route("/openenv/state", get(http::state))
            .route("/openenv/mcp", post(http::mcp).get(socket::connect_mcp))
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

    /// Returns one: each session holds a socket.
    fn descriptors_per_rollout(_config: &Config) -> u64 {
        1
    }

    fn drives(&self, driver: &str) -> bool {
        driver == DRIVER
    }

    fn resume(&self, host: &Host, unfinished: UnfinishedRollout) -> Result<(), String> {
        self.sessions.resume(host, unfinished)
    }

    fn is_idle(&self) -> bool {
        self.sessions.tasks().is_empty()
    }

    /// Ends the sessions without an episode. Episodes may end before the rest is cancelled.
    fn close(&self) {
        self.sessions.close_all();
    }

    fn drain(&self, until: Instant) -> BoxFuture<'_, bool> {
        Box::pin(async move { tokio::time::timeout_at(until, self.sessions.tasks().wait()).await.is_ok() })
    }

    fn announce_cancellation(&self) {}

    fn unreported(&self) -> Vec<String> {
        Vec::new()
    }
}
