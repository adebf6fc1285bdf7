//! A server as a worker of a cluster: gateways send rollouts to it, and other callers are refused.
//!
//! A worker is an ordinary server with a name, a key that its gateways share, and a *log*: the identity of its journal.
//! Leases name the log, so every gateway finds the worker of a rollout without a lookup, even after a restart.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use subtle::ConstantTimeEq;

use crate::random;
use rollout_outbound::Secret;

/// Header with the key that gateways and workers share.
pub(crate) const KEY_HEADER: &str = "x-rollout-host-cluster-key";

/// Header with the token of a lease. A gateway chooses it, so that it can repeat an admission whose answer was lost.
pub(crate) const ADMISSION_HEADER: &str = "x-rollout-host-admission";

/// Header of a request whose first answer was lost.
pub(crate) const REPEATED_HEADER: &str = "x-rollout-host-repeated";

/// Header with the name of another worker. In an admission, this worker has room; in the answer of a worker that does
/// not take a rollout, it takes the rollout.
pub(crate) const PLACE_HEADER: &str = "x-rollout-host-place";

/// Header of an answer with [`PLACE_HEADER`]: the request may choose another worker if the named one does not take the rollout.
pub(crate) const CHOOSE_HEADER: &str = "x-rollout-host-choose";

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
    /// Number of further rollouts that would have a slot. Negative if rollouts wait. Older workers do not report it.
    #[serde(default)]
    pub room: Option<i64>,
    /// The room of at most [`TENANTS_MAX`] tenants that have less room than the worker.
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
    /// Epoch of the worker's claim. A worker with a smaller epoch than another one has lost the log without knowing
    /// it yet.
    pub epoch: u64,
}

/// Returns a lease that names the log of its worker.
pub(crate) fn lease(log: &str, token: &str) -> String {
    format!("{log}{LOG_END}{token}")
}

/// Returns the log that a lease names.
pub(crate) fn log_of(lease: &str) -> Option<&str> {
    lease.split_once(LOG_END).map(|(log, _)| log)
}

/// Separator between the name of a session and its log.
const SESSION_END: char = '@';

/// Returns a new id of a session. On a worker, the id names the worker's log.
pub(crate) fn new_session(log: Option<&str>) -> String {
    let id = random::uuid4();
    log.map_or_else(|| id.clone(), |log| format!("{id}{SESSION_END}{log}"))
}

/// Returns the log that the id of a session names; `None` if the caller chose the id. The name of a plugin may precede
/// the id.
pub(crate) fn log_of_session(id: &str) -> Option<&str> {
    let (name, log) = id.rsplit_once(SESSION_END)?;
    let own = name.rsplit_once('.').map_or(name, |(_, own)| own);
    let is_digit = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
    (own.len() == random::UUID_CHARS && own.bytes().all(is_digit)).then_some(log)
}

/// The part of a new rollout's admission that a gateway decides.
pub(crate) struct Chosen {
    /// The token of its lease.
    pub token: String,
    /// A worker that takes the rollout if this one has no room.
    pub other: Option<String>,
    /// Whether the answer to the same request was lost.
    pub is_repeated: bool,
}

impl Chosen {
    /// Reads the gateway's choice from a request, if a gateway sent the request.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let other = headers.get(PLACE_HEADER).and_then(|other| other.to_str().ok()).map(str::to_owned);
        let token = chosen_token(headers)?.to_owned();
        Some(Self { token, other, is_repeated: is_repeated(headers) })
    }
}

/// The place of a rollout that a worker does not take itself. As a response it is for gateways only.
#[derive(Debug)]
pub(crate) struct Elsewhere {
    /// Name of the worker that takes the rollout; `None` if another request has not found one yet.
    pub worker: Option<String>,
    /// Whether the request may choose another worker if the named one does not take the rollout.
    pub may_choose: bool,
}

impl IntoResponse for &Elsewhere {
    fn into_response(self) -> Response {
        let name = HeaderValue::try_from(self.worker.as_deref().unwrap_or_default());
        let name = name.unwrap_or(HeaderValue::from_static(""));
        let mut headers = HeaderMap::from_iter([(HeaderName::from_static(PLACE_HEADER), name)]);
        if self.may_choose {
            headers.insert(HeaderName::from_static(CHOOSE_HEADER), HeaderValue::from_static("1"));
        }
        (StatusCode::MISDIRECTED_REQUEST, headers).into_response()
    }
}

/// Returns the path at which the place of a rollout is confirmed, below that at which rollouts start.
pub(crate) fn placed_path(start: &str, id: &str) -> String {
    format!("{start}/{id}/placed")
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
    fn the_id_of_a_session_names_its_log() {
        let id = new_session(Some("w1-0a"));
        assert_eq!(log_of_session(&id), Some("w1-0a"), "{id}");
        assert_eq!(log_of_session(&format!("a.b.{id}")), Some("w1-0a"));
        assert_eq!(log_of_session(&new_session(None)), None);
        assert_eq!(log_of_session("me@home"), None);
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
