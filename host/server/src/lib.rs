//! A server of rollouts: the connections of callers, who of them may ask, what every server
//! answers, and how it stops. The protocols themselves are [`Dialect`]s.

mod access;
pub mod admin;
mod connection;
mod connections;
pub mod dialect;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod given_out;
mod random;
mod serves;
mod serving;
mod stopping;
pub mod tenants;
mod tls;
mod trajectories;

use std::io;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router, middleware};
use serde_json::{Map, Value, json};

use crate::dialect::osmosis::{self, Osmosis};
use crate::dialect::{Dialect, Health, KeyRule, Routes};
use rollout_assembly::config::Config;
use rollout_core::telemetry::TEXT_FORMAT;
use rollout_outbound::{CallbackClient, RetryPolicy, Secret};
use rollout_rollout::{Host, Load, Unfinished, UnfinishedRollout};

pub use access::Access;
pub use connections::{Bound, Listening, bind, listen, serve};
pub use serves::Serves;
pub use serving::Serving;
pub use stopping::Stopping;
pub use tls::{ServerTls, TlsError};
pub use trajectories::Trajectories;

use access::{Gate, is_given};
use error::Refused;
use given_out::GivenOut;

/// What a server is made of.
pub struct Settings {
    /// Who runs the rollouts.
    pub serving: Serving,
    /// The protocols that it serves.
    pub dialects: Vec<Arc<dyn Dialect>>,
    /// Who may ask.
    pub access: Access,
    /// What `/health` repeats, so that whoever started this process knows it again.
    pub instance_id: Option<String>,
}

/// Who a server is to its callers.
pub struct Identity {
    /// The agent's name where it says none itself.
    pub agent_name: String,
    /// What `/health` repeats, so that whoever started this process knows it again.
    pub instance_id: Option<String>,
    /// The key that every request must carry.
    pub server_key: Option<Secret>,
}

/// A server of a host. Cheap to clone.
#[derive(Clone)]
pub struct Server(Arc<Inner>);

struct Inner {
    serving: Serving,
    dialects: Vec<Arc<dyn Dialect>>,
    access: Arc<Access>,
    instance_id: Option<String>,
    process_id: String,
    given_out: GivenOut,
}

impl Server {
    /// A server of this host in the Osmosis protocol, as it is configured.
    pub fn of_host(host: &Host, config: &Config, identity: Identity) -> Self {
        let Identity { agent_name, instance_id, server_key } = identity;
        let serving = Serving::new(host.clone(), agent_name);
        let osmosis = Self::osmosis(&serving, config, server_key.is_some());
        let access = Access {
            is_keyed: server_key.is_some(),
            server_key,
            allowed_hosts: config.allowed_hosts.clone(),
            allowed_origins: config.allowed_origins.clone(),
        };
        let dialects: Vec<Arc<dyn Dialect>> = vec![Arc::new(osmosis)];
        Self::new(Settings { serving, dialects, access, instance_id })
    }

    /// A server of one plugin among many. Who may ask is found out before it is asked.
    pub(crate) fn of_plugin(serving: Serving, config: &Config) -> Self {
        let osmosis = Self::osmosis(&serving, config, true);
        let access =
            Access { server_key: None, is_keyed: true, allowed_hosts: None, allowed_origins: Vec::new() };
        let dialects: Vec<Arc<dyn Dialect>> = vec![Arc::new(osmosis)];
        Self::new(Settings { serving, dialects, access, instance_id: None })
    }

    fn osmosis(serving: &Serving, config: &Config, is_keyed: bool) -> Osmosis {
        let host = serving.host();
        let client = |retry: &RetryPolicy| {
            CallbackClient::new(host.runtime().transport().clone(), retry.clone(), host.metrics().clone())
        };
        Osmosis::new(osmosis::Settings {
            serving: serving.clone(),
            callbacks: client(&config.callback),
            generation: config.osmosis_generation,
            init: osmosis::a::Settings {
                init: config.osmosis_init.clone(),
                completions: client(&config.osmosis_init.completed),
            },
            times: config.osmosis,
            is_keyed,
        })
    }

    /// Descriptors that a live rollout of such a server holds on the side of its callers, at the
    /// most. Known before there is a host, because slots are planned by it.
    pub fn descriptors_per_rollout(config: &Config) -> u64 {
        Osmosis::descriptors_per_rollout(config)
    }

    /// A server of these protocols.
    pub fn new(settings: Settings) -> Self {
        let Settings { serving, dialects, access, instance_id } = settings;
        let process_id = crate::random::uuid4();
        let given_out = GivenOut::default();
        Self(Arc::new(Inner {
            serving,
            dialects,
            access: Arc::new(access),
            instance_id,
            process_id,
            given_out,
        }))
    }

    /// Goes on with what a process before admitted, before anything is answered. Gives how many
    /// rollouts those are. Reads them one after the other.
    pub fn resume(&self, unfinished: Unfinished) -> io::Result<usize> {
        let host = self.0.serving.host();
        let mut resumed = 0;
        for rollout in unfinished {
            resumed += usize::from(self.resume_by(&host, rollout?));
        }
        Ok(resumed)
    }

    /// The same of one, by this host, where it began with another deployment than new ones get. Says whether it goes on.
    pub(crate) fn resume_by(&self, host: &Host, rollout: UnfinishedRollout) -> bool {
        let (id, driver) = (rollout.request.id.clone(), rollout.driver.clone());
        let Some(dialect) = self.0.dialects.iter().find(|dialect| dialect.drives(&driver)) else {
            tracing::error!(rollout_id = %id, driver, "a rollout of the journal is left there: nobody here drives it");
            return false;
        };
        let resumed = dialect.resume(host, rollout);
        if let Err(why) = &resumed {
            tracing::error!(rollout_id = %id, why, "a rollout of the journal cannot go on, and is left there");
        }
        resumed.is_ok()
    }

    /// How busy it is.
    pub fn load(&self) -> Load {
        self.0.serving.host().load()
    }

    /// The host that new rollouts are admitted by.
    pub(crate) fn serving(&self) -> &Serving {
        &self.0.serving
    }

    /// From now on new rollouts are admitted by this host.
    pub(crate) fn become_host(&self, host: Host, agent_name: String) {
        self.0.serving.become_host(host, agent_name);
    }

    /// Whether nothing is under way or kept for callers.
    pub(crate) fn is_idle(&self) -> bool {
        self.0.dialects.iter().all(|dialect| dialect.is_idle())
    }

    /// All that it answers.
    pub fn router(&self) -> Router {
        let (keyed, open, short) = self.routes();
        // What is asked of a request's head comes before anything of its body.
        let metrics = self.0.serving.host().metrics().clone();
        let gate = Arc::new(Gate { access: self.0.access.clone(), short, metrics });
        self.asks_key(keyed, is_given, "unauthorized")
            .merge(open)
            .layer(middleware::from_fn_with_state(gate, access::check_names))
    }

    /// The same for one plugin among many: names and keys were asked for.
    pub(crate) fn plugin_router(&self) -> Router {
        let (keyed, open, _) = self.routes();
        keyed.merge(open)
    }

    /// What it answers: to those who give the server's key, and what asks for that in its own way or not at
    /// all. Besides, what takes no time and has to work on a server that is full.
    fn routes(&self) -> (Router, Router, Vec<(Method, &'static str)>) {
        let mut keyed = Router::new()
            .route("/metrics", get(metrics))
            .route("/rollout/{id}/trajectory", get(given_out::trajectory));
        let mut open = Router::new().route("/ready", get(ready)).with_state(self.clone());
        match self.0.dialects.iter().find(|dialect| dialect.health().is_all).cloned() {
            Some(alone) => open = open.route("/health", get(async move || Json(alone.health().fields))),
            None => keyed = keyed.route("/health", get(health)),
        }
        let mut keyed = keyed.with_state(self.clone());
        let mut short = vec![(Method::GET, "/health"), (Method::GET, "/ready"), (Method::GET, "/metrics")];
        for Routes { router, key, short: dialects } in self.0.dialects.iter().flat_map(|one| one.routes()) {
            short.extend(dialects);
            match key {
                KeyRule::Bearer => keyed = keyed.merge(router),
                KeyRule::Own { is_given, refusal } => {
                    open = open.merge(self.asks_key(router, is_given, refusal));
                }
            }
        }
        let keyed =
            keyed.fallback(async || Refused::NoRoute).method_not_allowed_fallback(async || Refused::NoMethod);
        (keyed, open, short)
    }

    /// Lets no request through that does not give the server's key, if there is one.
    fn asks_key(
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
                if refused { Refused::Unauthorized(refusal).into_response() } else { next.run(request).await }
            }
        }))
    }
}

/// Says that the host is alive, how busy it is, and which process it is.
async fn health(State(server): State<Server>) -> Json<Map<String, Value>> {
    let inner = &server.0;
    let load = inner.serving.host().load();
    let mut fields = Map::new();
    for dialect in &inner.dialects {
        let Health { fields: its, is_all: _ } = dialect.health();
        fields.extend(its);
    }
    // What a protocol has besides stays.
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
    Json(fields)
}

/// Whether rollouts are taken, for whoever sends them to one of several servers. That is said to
/// everybody, and why not to those who have the key.
async fn ready(State(server): State<Server>, headers: HeaderMap) -> Response {
    let inner = &server.0;
    let why = inner.serving.host().takes_rollouts().err();
    // Among many it is the process's own trouble, and not for one of them.
    let is_told = match &inner.access.server_key {
        Some(key) => is_given(key, &headers),
        None => !inner.access.is_keyed,
    };
    readiness(why.map(|why| why.to_string()), is_told)
}

/// The answer that rollouts are taken, or why they are not.
fn readiness(why: Option<String>, is_told: bool) -> Response {
    let status = if why.is_none() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let mut fields = Map::from_iter([("ready".to_owned(), why.is_none().into())]);
    fields.extend(why.filter(|_| is_told).map(|why| ("reason".to_owned(), why.into())));
    (status, Json(fields)).into_response()
}

/// What the host has counted, for Prometheus.
async fn metrics(State(server): State<Server>) -> Response {
    let host = server.0.serving.host();
    // It reads what the system says of a process that may have tens of thousands of mappings.
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
    }
}
