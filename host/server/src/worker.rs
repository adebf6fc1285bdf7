//! A server as a worker of a cluster: gateways send it rollouts, and nothing else may reach it.
//!
//! A worker is an ordinary server with a name, a key that its gateways share, and a *log*: the identity of its journal.
//! Leases name the log, so every gateway finds the worker of a rollout without a lookup, also after a restart.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use subtle::ConstantTimeEq;

use rollout_outbound::Secret;

/// Header with the key that gateways and workers share.
pub(crate) const KEY_HEADER: &str = "x-rollout-host-cluster-key";

/// Header with the token of a lease. A gateway chooses it, so that it can repeat an admission whose answer was lost.
pub(crate) const ADMISSION_HEADER: &str = "x-rollout-host-admission";

/// Header of a request whose first answer was lost.
pub(crate) const REPEATED_HEADER: &str = "x-rollout-host-repeated";

/// Header with the name of a worker: of one with room in an admission, and of the one that takes a rollout in the answer
/// of a worker that does not.
pub(crate) const PLACE_HEADER: &str = "x-rollout-host-place";

/// Header of an answer with the owner of the caller's key: the number of a tenant, or [`OPERATOR`].
pub(crate) const OWNER_HEADER: &str = "x-rollout-host-owner";

/// The owner of an operator's key.
pub(crate) const OPERATOR: &str = "operator";

/// Maximum number of tenants in a status. For others, the room of the worker counts.
pub(crate) const TENANTS_MAX: usize = 4096;

/// Path of the status that gateways read.
pub(crate) const STATUS_PATH: &str = "/cluster/status";

/// Separator between the log and the token of a lease.
const LOG_END: char = '.';

/// Paths that probes of an orchestrator use without the key.
const OPEN_PATHS: [&str; 2] = ["/ready", "/health"];

/// The identity of a worker.
#[derive(Debug)]
pub struct WorkerIdentity {
    /// Name of the worker, unique in its cluster.
    pub name: String,
    /// Name of its log: that of its journal, or one for this start if it has none.
    pub log: String,
    /// Epoch of its claim of a replicated log; 0 without replication.
    pub epoch: u64,
    /// The key that its gateways send with every request.
    pub key: Secret,
}

/// Status of a worker for its gateways, the answer to `GET /cluster/status`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct WorkerStatus {
    /// Name of the worker.
    pub worker: String,
    /// The logs that it serves.
    pub logs: Vec<ServedLog>,
    /// Version of the host.
    pub version: String,
    /// Whether it admits rollouts.
    pub accepting: bool,
    /// Number of running rollouts.
    pub running: u32,
    /// Number of rollouts that wait for a slot.
    pub queued: u32,
    /// Maximum number of running rollouts.
    pub max_concurrent: u32,
    /// Whether it serves the plugins of tenants, whose keys it checks.
    #[serde(default)]
    pub has_tenants: bool,
    /// Number of further rollouts that would have a slot. Negative if rollouts wait. Older workers do not tell it.
    #[serde(default)]
    pub room: Option<i64>,
    /// The room of tenants that have less than that, at most [`TENANTS_MAX`].
    #[serde(default)]
    pub tenants: Vec<TenantRoom>,
    /// Its answer to `GET /health`.
    pub health: Map<String, Value>,
}

/// Number of further rollouts of a tenant that would have a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TenantRoom {
    /// The tenant.
    pub tenant: i64,
    /// Its room.
    pub room: i64,
}

/// A log that a worker serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServedLog {
    /// Name of the log.
    pub name: String,
    /// Epoch of the worker's claim. A worker with a smaller one than another's has lost the log and does not know it yet.
    pub epoch: u64,
}

/// Returns a lease that names its log.
pub(crate) fn lease(log: &str, token: &str) -> String {
    format!("{log}{LOG_END}{token}")
}

/// Returns the log that a lease names.
pub(crate) fn log_of(lease: &str) -> Option<&str> {
    lease.split_once(LOG_END).map(|(log, _)| log)
}

/// Choice of a gateway for a new rollout.
pub(crate) struct Chosen {
    /// The token of its lease.
    pub token: String,
    /// A worker that takes the rollout if this one has no room.
    pub other: Option<String>,
}

impl Chosen {
    /// Reads it from a request, if a gateway sent one.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let other = headers.get(PLACE_HEADER).and_then(|other| other.to_str().ok()).map(str::to_owned);
        Some(Self { token: chosen_token(headers)?.to_owned(), other })
    }
}

/// Returns the answer of a worker that does not take a rollout, with the name of the one that does. It is for gateways only.
pub(crate) fn elsewhere(worker: Option<&str>) -> Response {
    let name = HeaderValue::try_from(worker.unwrap_or_default()).unwrap_or(HeaderValue::from_static(""));
    (StatusCode::MISDIRECTED_REQUEST, [(HeaderName::from_static(PLACE_HEADER), name)]).into_response()
}

/// Returns the token that a gateway chose for the lease of a new rollout.
fn chosen_token(headers: &HeaderMap) -> Option<&str> {
    let token = headers.get(ADMISSION_HEADER)?.to_str().ok()?;
    let is_token = token.len() == 64 && token.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_token.then_some(token)
}

/// Returns whether a gateway repeats a request whose answer was lost.
pub(crate) fn is_repeated(headers: &HeaderMap) -> bool {
    headers.contains_key(REPEATED_HEADER)
}

/// Returns the route of the status.
pub(crate) fn router(status: impl Fn() -> WorkerStatus + Clone + Send + Sync + 'static) -> Router {
    Router::new().route(STATUS_PATH, get(async move || Json(status())))
}

impl WorkerIdentity {
    /// Returns whether a gateway of the cluster sent these headers.
    pub(crate) fn is_gateway(&self, headers: &HeaderMap) -> bool {
        let given = headers.get(KEY_HEADER).map_or(&[][..], |key| key.as_bytes());
        given.ct_eq(self.key.expose().as_bytes()).into()
    }

    /// Refuses requests without the key, except for those of probes.
    pub(crate) fn check_probe(&self, request: &Request) -> Result<(), String> {
        if OPEN_PATHS.contains(&request.uri().path()) {
            return Ok(());
        }
        Err(format!("{} is a worker and answers its gateways only; send requests to a gateway", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_names_its_log() {
        assert_eq!(log_of(&lease("w1-0a", "token")), Some("w1-0a"));
        assert_eq!(log_of("token"), None);
    }

    #[test]
    fn only_a_token_of_the_right_form_is_taken_from_a_gateway() {
        let check = |token: &str, is_taken: bool| {
            let headers = HeaderMap::from_iter([(ADMISSION_HEADER.parse().unwrap(), token.parse().unwrap())]);
            assert_eq!(chosen_token(&headers).is_some(), is_taken, "{token}");
        };
        check(&"a0".repeat(32), true);
        check(&"a0".repeat(31), false);
        check(&"g0".repeat(32), false);
        assert_eq!(chosen_token(&HeaderMap::new()), None);
    }
}
