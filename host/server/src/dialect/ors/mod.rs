//! ORS, the Open Reward Standard: a trainer's model acts in the plugin's environment by tool calls over HTTP.
//!
//! The client of the package `openreward` drops the path of its base address, so the routes are at the root of the server. It
//! names its session in a header, and the environment in the path or not at all. On a server with tenants, the dispatcher
//! finds the plugin with `plugin_of`.
//!
//! A call is answered by a stream of events. The first event is the name of the call. A caller whose connection breaks passes
//! this name again and receives the answer of the same call, even from the server's next process.

mod call;
mod error;
mod routes;

use axum::Router;
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::routing::{get, post};
use futures_util::future::BoxFuture;
use serde_json::Map;
use subtle::ConstantTimeEq;
use tokio::time::Instant;

use super::sessions::Sessions;
use super::{Health, KeyRule, Routes};
use crate::serving::Serving;
use rollout_assembly::config::Config;
use rollout_core::limits::SessionLimits;
use rollout_outbound::Secret;
use rollout_rollout::{Host, UnfinishedRollout};

/// Name of the dialect in the journal.
const DRIVER: &str = "ors";

/// Header with the id of a session.
const SESSION_HEADER: &str = "x-session-id";

/// Header with a caller's key.
const KEY_HEADER: &str = "x-api-key";

/// Header with the name of the environment for which a client was created, with or without its owner and a slash in front.
const DEPLOYMENT_HEADER: &str = "x-deployment";

/// Error text for a missing or wrong key.
pub(crate) const KEY_REFUSAL: &str = "unauthorized: pass the server's key as the client's api_key";

/// Paths without an environment.
const ROOT: [&str; 7] =
    ["create_session", "create", "ping", "delete", "delete_session", "list_environments", "version"];

/// Paths that may follow the name of an environment.
const ENVIRONMENT_PATHS: [&str; 10] = [
    "tools",
    "task_tools",
    "splits",
    "tasks",
    "num_tasks",
    "task",
    "task_range",
    "prompt",
    "messages",
    "call",
];

/// The dialect's server side. Cheap to clone.
#[derive(Clone)]
pub struct Ors {
    sessions: Sessions,
}

impl Ors {
    /// Creates the dialect of a host. `log` is the log of a worker.
    pub fn new(serving: Serving, limits: SessionLimits, log: Option<String>) -> Self {
        Self { sessions: Sessions::new(serving, limits, DRIVER, log) }
    }
}

/// Returns whether a path below a plugin belongs to this protocol.
pub(crate) fn has_path(path: &str) -> bool {
    let mut parts = path.trim_start_matches('/').split('/');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(one), None, None) => ROOT.contains(&one) || ENVIRONMENT_PATHS.contains(&one),
        (Some(_), Some(two), None) => ENVIRONMENT_PATHS.contains(&two),
        _ => false,
    }
}

/// Returns the name of the plugin that a request at the root of a server with tenants addresses: the beginning of its
/// session's id, or else the name of the environment for which the client was created.
pub(crate) fn plugin_of(headers: &HeaderMap) -> Option<String> {
    if let Some((plugin, _)) = session_of(headers).and_then(|id| id.rsplit_once('.')) {
        return Some(plugin.to_owned());
    }
    let name = headers.get(DEPLOYMENT_HEADER)?.to_str().ok()?;
    Some(name.rsplit_once('/').map_or(name, |(_, name)| name).to_owned())
}

/// Returns the id of the session that a request names.
pub(crate) fn session_of(headers: &HeaderMap) -> Option<&str> {
    headers.get(SESSION_HEADER).and_then(|id| id.to_str().ok()).filter(|id| !id.is_empty())
}

/// Returns the key that a request passes in this protocol's way.
pub(crate) fn given_key(headers: &HeaderMap) -> Option<&str> {
    headers.get(KEY_HEADER)?.to_str().ok()
}

/// Returns whether a request has the server's key, in a header of this protocol or after `Bearer `.
pub(crate) fn is_given(key: &Secret, headers: &HeaderMap) -> bool {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    let is_key = |given: &str| bool::from(given.as_bytes().ct_eq(key.expose().as_bytes()));
    given_key(headers).is_some_and(is_key) || bearer.is_some_and(is_key)
}

impl super::Dialect for Ors {
    fn routes(&self) -> Vec<Routes> {
        let mut router = Router::new()
            .route("/create_session", post(routes::create_session))
            .route("/create", post(routes::create))
            .route("/ping", post(routes::ping))
            .route("/delete", post(routes::delete))
            .route("/delete_session", post(routes::delete))
            .route("/list_environments", get(routes::list_environments))
            .route("/version", get(routes::version));
        // A path without a name addresses the server's only environment.
        for prefix in ["", "/{env}"] {
            router = router
                .route(&format!("{prefix}/tools"), get(routes::tools))
                .route(&format!("{prefix}/task_tools"), get(routes::task_tools))
                .route(&format!("{prefix}/splits"), get(routes::splits))
                .route(&format!("{prefix}/tasks"), post(routes::tasks))
                .route(&format!("{prefix}/num_tasks"), post(routes::num_tasks))
                .route(&format!("{prefix}/task"), post(routes::task))
                .route(&format!("{prefix}/task_range"), post(routes::task_range))
                .route(&format!("{prefix}/prompt"), get(routes::prompt))
                .route(&format!("{prefix}/messages"), get(routes::messages))
                .route(&format!("{prefix}/call"), post(call::call));
        }
        let key = KeyRule::Own { is_given, refusal: KEY_REFUSAL };
        vec![Routes { router: router.with_state(self.clone()), key, short: Vec::new() }]
    }

    fn health(&self) -> Health {
        Health { fields: Map::new(), is_all: false }
    }

    /// Returns one: a session holds a connection during a call.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_paths_of_the_protocol_are_known() {
        let check = |path: &str, expected: bool| assert_eq!(has_path(path), expected, "{path}");
        check("/create_session", true);
        check("/tools", true);
        check("/number-hunt/call", true);
        check("/number-hunt/create", false);
        check("/a/b/call", false);
        check("/rollout", false);
        check("/health", false);
        check("/", false);
    }

    #[test]
    fn a_request_names_its_plugin_by_its_session_or_its_environment() {
        let check = |headers: &[(&'static str, &'static str)], expected: Option<&str>| {
            let pair = |(name, value): &(&'static str, &'static str)| {
                (name.parse().unwrap(), value.parse().unwrap())
            };
            assert_eq!(plugin_of(&headers.iter().map(pair).collect()).as_deref(), expected);
        };
        check(&[], None);
        check(&[("x-deployment", "hunt")], Some("hunt"));
        check(&[("x-deployment", "owner/hunt")], Some("hunt"));
        check(&[("x-deployment", "other"), ("x-session-id", "hunt.3f")], Some("hunt"));
        check(&[("x-deployment", "hunt"), ("x-session-id", "3f")], Some("hunt"));
        check(&[("x-session-id", "3f")], None);
    }
}
