//! The HTTP server: connections, authentication, the routes of every server, and shutdown. Each protocol is a
//! [`Dialect`].

mod access;
pub mod admin;
mod any_server;
mod connection;
mod connections;
pub mod dialect;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod gateway;
mod pages;
mod random;
mod serving;
mod shutdown;
pub mod tenants;
mod tls;
mod trajectories;
mod trajectory_route;
mod ui;
mod viewed;
mod worker;

use std::io;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router, middleware};
use serde_json::{Map, Value, json};

use crate::dialect::nemo_gym::{self, NemoGym};
use crate::dialect::open_env::OpenEnv;
use crate::dialect::ors::Ors;
use crate::dialect::osmosis::{self, Osmosis};
use crate::dialect::{Dialect, Health, KeyRule, Routes};
use rollout_assembly::config::Config;
use rollout_core::limits::SessionLimits;
use rollout_core::telemetry::TEXT_FORMAT;
use rollout_outbound::{CallbackClient, RetryPolicy, Secret};
use rollout_rollout::{Host, Load, Unfinished, UnfinishedRollout};

pub use access::Access;
pub use any_server::AnyServer;
pub use connections::{Bound, Listening, bind, listen, serve};
pub use pages::{MadePage, PageMaker, pages};
pub use serving::Serving;
pub use shutdown::ShutdownDeadlines;
pub use tls::{ServerTls, TlsError};
pub use trajectories::Trajectories;
pub use worker::WorkerIdentity;

use access::{Gate, is_given};
use error::RequestRefused;
use trajectory_route::TrajectoryPermits;
use viewed::ViewedServer;
use worker::{ServedLog, WorkerStatus};

/// Maximum share of the slots for the sessions of one tenant, on a server of tenants. A session holds its slot while
/// its caller trains a model, and other tenants must not wait for that.
const TENANT_SHARE_MAX: f64 = 0.5;

/// The parts of a server.
pub struct ServerSettings {
    /// The host that runs the rollouts.
    pub serving: Serving,
    /// The protocols that the server speaks.
    pub dialects: Vec<Arc<dyn Dialect>>,
    /// The rules that every request is checked against.
    pub access: Access,
    /// The `instance_id` of `/health`, by which a supervisor recognizes the process that it started.
    pub instance_id: Option<String>,
    /// The server's identity as a worker of a cluster, if it is one.
    pub worker: Option<WorkerIdentity>,
    /// Whether callers connect by TLS.
    pub is_encrypted: bool,
}

/// The server's identity as callers see it.
pub struct ServerIdentity {
    /// The agent's name in `/health`.
    pub agent_name: String,
    /// The `instance_id` of `/health`, by which a supervisor recognizes the process that it started.
    pub instance_id: Option<String>,
    /// The key that every request must carry.
    pub server_key: Option<Secret>,
    /// The server's identity as a worker of a cluster, if it is one.
    pub worker: Option<WorkerIdentity>,
}

/// A server of one plugin. Cheap to clone.
#[derive(Clone)]
pub struct Server(Arc<Inner>);

struct Inner {
    serving: Serving,
    dialects: Vec<Arc<dyn Dialect>>,
    /// The dialect whose settings may differ between the versions of a plugin.
    nemo_gym: Option<NemoGym>,
    access: Arc<Access>,
    instance_id: Option<String>,
    worker: Option<Arc<WorkerIdentity>>,
    process_id: String,
    trajectory_permits: TrajectoryPermits,
    is_encrypted: bool,
}

impl Server {
    /// Creates a server that offers a host in the configured generation of the Osmosis protocol, and to NeMo Gym.
    pub fn for_host(
        host: &Host,
        config: &Config,
        identity: ServerIdentity,
        settings: nemo_gym::Settings,
    ) -> Self {
        let ServerIdentity { agent_name, instance_id, server_key, worker } = identity;
        let serving = Serving::new(host.clone(), agent_name);
        let log = worker.as_ref().map(|worker| worker.log.clone());
        let osmosis = Self::osmosis(&serving, config, server_key.is_some(), log.clone());
        let access = Access::new(config, server_key.is_some(), server_key);
        let open_env = OpenEnv::new(serving.clone(), config.sessions, log.clone());
        let mut dialects: Vec<Arc<dyn Dialect>> = vec![Arc::new(osmosis), Arc::new(open_env)];
        if !config.osmosis_init.alone {
            let gym = NemoGym::new(serving.clone(), settings, config.sessions, log.clone());
            dialects.push(Arc::new(gym));
            dialects.push(Arc::new(Ors::new(serving.clone(), config.sessions, log)));
        }
        let is_encrypted = config.tls.is_some();
        Self::new(ServerSettings { serving, dialects, access, instance_id, worker, is_encrypted })
    }

    /// Creates the server of one plugin of a tenant. The dispatcher authenticates requests before they reach it. `log` is the
    /// log of a worker.
    pub(crate) fn for_plugin(
        serving: Serving,
        config: &Config,
        settings: nemo_gym::Settings,
        log: Option<String>,
    ) -> Self {
        let osmosis = Self::osmosis(&serving, config, true, log.clone());
        let access =
            Access { server_key: None, is_keyed: true, allowed_hosts: None, allowed_origins: Vec::new() };
        let limits = SessionLimits {
            slots_share: config.sessions.slots_share.min(TENANT_SHARE_MAX),
            ..config.sessions
        };
        let gym = NemoGym::new(serving.clone(), settings, limits, log.clone());
        let open_env = OpenEnv::new(serving.clone(), limits, log.clone());
        let ors = Ors::new(serving.clone(), limits, log);
        let dialects: Vec<Arc<dyn Dialect>> =
            vec![Arc::new(osmosis), Arc::new(open_env), Arc::new(ors), Arc::new(gym.clone())];
        let settings = ServerSettings {
            serving,
            dialects,
            access,
            instance_id: None,
            worker: None,
            is_encrypted: false,
        };
        Self::of(settings, Some(gym))
    }

    /// Creates the Osmosis dialect. `is_keyed` is whether callers have a key, `log` the log of a worker.
    fn osmosis(serving: &Serving, config: &Config, is_keyed: bool, log: Option<String>) -> Osmosis {
        let host = serving.host();
        let client = |retry: &RetryPolicy| {
            CallbackClient::new(host.runtime().transport().clone(), retry.clone(), host.metrics().clone())
        };
        Osmosis::new(osmosis::OsmosisSettings {
            serving: serving.clone(),
            callbacks: client(&config.callback),
            generation: config.osmosis_generation,
            init: osmosis::a::GenerationASettings {
                init: config.osmosis_init.clone(),
                completions: client(&config.osmosis_init.completed()),
            },
            times: config.osmosis,
            is_keyed,
            log,
        })
    }

    /// Returns the maximum number of descriptors of callers that a live rollout holds. The number of slots is planned with
    /// it before the host exists.
    pub fn descriptors_per_rollout(config: &Config) -> u64 {
        let of_gym = config.nemo_gym.as_ref().map_or(0, |_| NemoGym::descriptors_per_rollout(config));
        Osmosis::descriptors_per_rollout(config).max(of_gym)
    }

    /// Creates a server from its parts.
    pub fn new(settings: ServerSettings) -> Self {
        Self::of(settings, None)
    }

    fn of(settings: ServerSettings, nemo_gym: Option<NemoGym>) -> Self {
        let ServerSettings { serving, dialects, access, instance_id, worker, is_encrypted } = settings;
        let process_id = crate::random::uuid4();
        let trajectory_permits = TrajectoryPermits::default();
        Self(Arc::new(Inner {
            serving,
            dialects,
            nemo_gym,
            access: Arc::new(access),
            instance_id,
            worker: worker.map(Arc::new),
            process_id,
            trajectory_permits,
            is_encrypted,
        }))
    }

    /// Continues the rollouts that an earlier process admitted, and returns their number. Call it before the first request
    /// is answered. The rollouts are read one after the other.
    pub fn resume(&self, unfinished: Unfinished) -> io::Result<usize> {
        let host = self.0.serving.host();
        let mut resumed = 0;
        for rollout in unfinished {
            resumed += usize::from(self.resume_by(&host, rollout?));
        }
        Ok(resumed)
    }

    /// Continues one rollout on the host of the deployment that it began with. Returns whether it continues.
    pub(crate) fn resume_by(&self, host: &Host, rollout: UnfinishedRollout) -> bool {
        let (id, driver) = (rollout.request.id.clone(), rollout.driver.clone());
        let Some(dialect) = self.0.dialects.iter().find(|dialect| dialect.drives(&driver)) else {
            tracing::error!(rollout_id = %id, driver, "a rollout stays in the journal: no protocol here drives it");
            return false;
        };
        let resumed = dialect.resume(host, rollout);
        if let Err(why) = &resumed {
            tracing::error!(rollout_id = %id, why, "a rollout cannot be continued and stays in the journal");
        }
        resumed.is_ok()
    }

    /// Returns the host's load.
    pub fn load(&self) -> Load {
        self.0.serving.host().load()
    }

    /// Returns the handle to the host that admits new rollouts.
    pub(crate) fn serving(&self) -> &Serving {
        &self.0.serving
    }

    /// Replaces the host that admits new rollouts.
    pub(crate) fn set_host(&self, host: Host, agent_name: String, settings: nemo_gym::Settings) {
        self.0.serving.set_host(host, agent_name);
        if let Some(gym) = &self.0.nemo_gym {
            gym.set(settings);
        }
    }

    /// Returns whether no rollout is alive and nothing is stored for callers.
    pub fn is_idle(&self) -> bool {
        self.0.dialects.iter().all(|dialect| dialect.is_idle())
    }

    /// Returns all routes, behind the checks of keys and names.
    pub fn router(&self) -> Router {
        let (keyed, open, short) = self.routes();
        // The layer checks a request's head before the handlers read its body.
        let metrics = self.0.serving.host().metrics().clone();
        let gate = Gate {
            access: self.0.access.clone(),
            worker: self.0.worker.clone(),
            short,
            metrics: metrics.clone(),
        };
        let pages =
            ui::router(ViewedServer { server: self.clone(), is_encrypted: self.0.is_encrypted, metrics });
        let mut all = self.require_key(keyed, is_given, "unauthorized").merge(open).merge(pages);
        if self.0.worker.is_some() {
            let server = self.clone();
            all = all.merge(worker::router(move || server.worker_status()));
        }
        all.layer(middleware::from_fn_with_state(Arc::new(gate), access::check_head))
    }

    /// Returns the status of this worker for gateways.
    fn worker_status(&self) -> WorkerStatus {
        let load = self.load();
        let worker = self.0.worker.as_ref();
        WorkerStatus {
            worker: worker.map(|worker| worker.name.clone()).unwrap_or_default(),
            logs: worker
                .map(|worker| ServedLog { name: worker.log.clone(), epoch: worker.epoch })
                .into_iter()
                .collect(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            accepting: self.0.serving.host().check_admission().is_ok(),
            running: load.running,
            queued: load.queued,
            max_concurrent: load.max_concurrent,
            has_tenants: false,
            room: Some(self.0.serving.host().room()),
            tenants: Vec::new(),
            health: self.health(),
        }
    }

    /// Returns the fields of `/health`.
    fn health(&self) -> Map<String, Value> {
        let inner = &self.0;
        let load = inner.serving.host().load();
        let mut fields = Map::new();
        for dialect in &inner.dialects {
            let Health { fields: of_dialect, is_all: _ } = dialect.health();
            fields.extend(of_dialect);
        }
        // The server's own fields replace those of the same name.
        let own = json!({
            "status": "ok",
            "concurrency": {"max_concurrent": load.max_concurrent, "queued": load.queued, "running": load.running},
            "instance_id": inner.instance_id.as_ref().unwrap_or(&inner.process_id),
            "process_id": inner.process_id,
            "lifecycle": {"accepting_rollouts": load.accepting, "active_rollouts": load.queued + load.running},
        });
        if let Value::Object(own) = own {
            fields.extend(own);
        }
        fields
    }

    /// Returns the routes of a tenant's plugin. The dispatcher has checked names and keys.
    pub(crate) fn plugin_router(&self) -> Router {
        let (keyed, open, _) = self.routes();
        keyed.merge(open)
    }

    /// Returns three parts: the routes that need the server's key, the routes that check it in their own way or need none,
    /// and the list of cheap routes that must work on a full server.
    fn routes(&self) -> (Router, Router, Vec<(Method, &'static str)>) {
        let mut keyed = Router::new()
            .route("/metrics", get(metrics))
            .route("/rollout/{id}/trajectory", get(trajectory_route::trajectory));
        let mut open = Router::new().route("/ready", get(ready)).with_state(self.clone());
        match self.0.dialects.iter().find(|dialect| dialect.health().is_all).cloned() {
            Some(alone) => open = open.route("/health", get(async move || Json(alone.health().fields))),
            None => keyed = keyed.route("/health", get(health)),
        }
        let mut keyed = keyed.with_state(self.clone());
        let mut short = vec![
            (Method::GET, "/health"),
            (Method::GET, "/ready"),
            (Method::GET, "/metrics"),
            (Method::GET, worker::STATUS_PATH),
        ];
        let routes = self.0.dialects.iter().flat_map(|dialect| dialect.routes());
        for Routes { router, key, short: short_of_dialect } in routes {
            short.extend(short_of_dialect);
            match key {
                KeyRule::Bearer => keyed = keyed.merge(router),
                KeyRule::Own { is_given, refusal } => {
                    open = open.merge(self.require_key(router, is_given, refusal));
                }
            }
        }
        let keyed = keyed
            .fallback(async || RequestRefused::NoRoute)
            .method_not_allowed_fallback(async || RequestRefused::NoMethod);
        (keyed, open, short)
    }

    /// Refuses the requests that do not carry the server's key, if the server has one.
    fn require_key(
        &self,
        router: Router,
        is_given: fn(&Secret, &HeaderMap) -> bool,
        refusal: &'static str,
    ) -> Router {
        let (access, metrics) = (self.0.access.clone(), self.0.serving.host().metrics().clone());
        router.layer(middleware::from_fn(move |request: axum::extract::Request, next: middleware::Next| {
            let refused = access.server_key.as_ref().is_some_and(|key| !is_given(key, request.headers()));
            if refused {
                metrics.unauthorized();
            }
            async move {
                if refused {
                    RequestRefused::Unauthorized(refusal).into_response()
                } else {
                    next.run(request).await
                }
            }
        }))
    }
}

/// Answers `GET /health` with the server's load, its ids, and the fields of the protocols.
async fn health(State(server): State<Server>) -> Json<Map<String, Value>> {
    Json(server.health())
}

/// Answers `GET /ready`: whether new rollouts are admitted. Load balancers poll it without a key. If the server has a key,
/// only callers with it receive the reason.
async fn ready(State(server): State<Server>, headers: HeaderMap) -> Response {
    let inner = &server.0;
    let refused = inner.serving.host().check_admission().err();
    // A tenant does not receive the reason, which is about the whole process.
    let shows_reason = match &inner.access.server_key {
        Some(key) => is_given(key, &headers),
        None => !inner.access.is_keyed,
    };
    readiness(refused.map(|reason| reason.to_string()), shows_reason)
}

/// Returns the response of `/ready`. `reason` is set if new rollouts are refused.
fn readiness(reason: Option<String>, shows_reason: bool) -> Response {
    let status = if reason.is_none() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let mut fields = Map::from_iter([("ready".to_owned(), reason.is_none().into())]);
    fields.extend(reason.filter(|_| shows_reason).map(|reason| ("reason".to_owned(), reason.into())));
    (status, Json(fields)).into_response()
}

/// Answers `GET /metrics` in the text format of Prometheus.
async fn metrics(State(server): State<Server>) -> Response {
    let host = server.0.serving.host();
    // It reads /proc/self/maps, which may have tens of thousands of lines.
    match tokio::task::spawn_blocking(move || host.metrics_text()).await {
        Ok(text) => ([(header::CONTENT_TYPE, TEXT_FORMAT)], text).into_response(),
        Err(error) => {
            tracing::error!(%error, "metrics could not be gathered");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use rollout_assembly::config::RawConfig;

    use super::*;

    #[test]
    fn a_rollout_holds_a_callers_connection_where_its_result_may_be_polled_for() {
        let check = |text: &str, expected| {
            let config = RawConfig::parse(text, "c.toml").resolve().unwrap();
            assert_eq!(Server::descriptors_per_rollout(&config), expected, "{text}");
        };
        check("", 1);
        check("[osmosis]\ngeneration = 'auto'", 1);
        check("[osmosis]\ngeneration = 'd'", 1);
        check("[osmosis]\ngeneration = 'c'", 0);
        check("[osmosis]\ngeneration = 'b'", 0);
        check("[osmosis.init]\nalone = true", 0);
        check("[osmosis]\ngeneration = 'b'\n[nemo-gym]\nmodel-url = 'http://h/v1'", 1);
    }
}
