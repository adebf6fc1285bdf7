//! The routes of an Agent Lightning server, version 1, that a controller needs.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::Bytes;
use reqwest::{Method, Url};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::dialect::pull::SourceError;
use rollout_outbound::{InvalidService, NetworkRules, PauseSign, Secret, ServiceClient, ServiceError};
use rollout_wire::stream;
use rollout_wire::text::{beginning, printable};

/// The id of the only attempt. Readers of a rollout's events look for the events of this attempt.
pub(super) const ATTEMPT: &str = "0";

/// Responses of the gateway to the model while the trainer updates the weights, and while no model is registered.
pub(super) const PAUSES: &[PauseSign] = &[
    PauseSign { status: 429, part_of_body: "gateway paused" },
    PauseSign { status: 503, part_of_body: "No servers available" },
];

/// Maximum number of concurrent requests to the gateway, without model calls.
const REQUESTS_MAX: usize = 32;

/// Maximum size of a list of rollouts in bytes. A row may contain images as text.
const LIST_BYTES_MAX: usize = 64 << 20;

/// Maximum size of any other response in bytes. It repeats the rollout's row.
const REPLY_BYTES_MAX: usize = 64 << 20;

/// Number of bytes of a refusal that are shown.
const SHOWN_BYTES_MAX: usize = 500;

/// A server with rollouts.
pub(super) struct Gateway {
    client: ServiceClient,
    base: String,
    /// Whether the server has answered a list request. A refusal before the first answer is a mistake of the operator.
    has_listed: AtomicBool,
}

/// A waiting rollout.
#[derive(Debug)]
pub(in crate::dialect) struct Waiting {
    pub id: String,
    /// The row of the trainer's data set.
    pub input: Box<RawValue>,
    pub is_train: bool,
    /// Maximum time from the claim to the end, in seconds.
    pub timeout_secs: Option<f64>,
}

/// The state of a rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RolloutState {
    /// The rollout waits for a controller.
    Queuing,
    /// A controller runs the rollout. Contains the controller's name, if it has one.
    Running(Option<String>),
    /// The rollout has ended.
    Ended,
    /// The trainer deleted the rollout.
    Deleted,
}

/// The answer to a request to change a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The change was made.
    Made,
    /// The state of the rollout does not allow the change.
    Conflict,
    /// The trainer deleted the rollout.
    Deleted,
}

/// A change of a rollout's status.
#[derive(Serialize)]
pub(super) struct StatusChange<'a> {
    pub state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_attempt_id: Option<&'static str>,
    /// The field for the name of a Kubernetes job; it has the name of the controller that claimed the rollout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub k8s_job_name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_message: Option<Cow<'a, str>>,
}

impl<'a> StatusChange<'a> {
    /// Claims a rollout for this controller.
    pub(super) fn claim(owner: &'a str) -> Self {
        Self { k8s_job_name: Some(owner), ..Self::of("running") }
    }

    /// Ends a rollout that has a reward.
    pub(super) fn succeeded() -> Self {
        Self::of("succeeded")
    }

    /// Ends a rollout without a reward.
    pub(super) fn failed(reason: impl Into<Cow<'a, str>>) -> Self {
        Self { error_message: Some(reason.into()), ..Self::of("failed") }
    }

    fn of(state: &'static str) -> Self {
        Self { state, last_attempt_id: Some(ATTEMPT), k8s_job_name: None, error_message: None }
    }

    /// Returns the body of the request.
    pub(super) fn body(&self) -> Bytes {
        // Texts cannot fail to serialize.
        serde_json::to_vec(&serde_json::json!({ "status": self })).map(Bytes::from).unwrap_or_default()
    }
}

#[derive(Deserialize)]
struct ListedRollout<'a> {
    #[serde(borrow)]
    rollout_id: stream::Text<'a>,
    #[serde(borrow)]
    input: &'a RawValue,
    #[serde(default = "yes")]
    is_train: bool,
    #[serde(default)]
    config: Option<ListedConfig>,
}

#[derive(Deserialize)]
struct ListedConfig {
    #[serde(default)]
    timeout_seconds: Option<f64>,
}

fn yes() -> bool {
    true
}

#[derive(Deserialize)]
struct OneRollout {
    rollout: RolloutWithStatus,
}

#[derive(Deserialize)]
struct RolloutWithStatus {
    status: Status,
}

#[derive(Deserialize)]
struct Status {
    state: String,
    #[serde(default)]
    k8s_job_name: Option<String>,
}

#[derive(Deserialize)]
struct Detail<'a> {
    #[serde(borrow)]
    detail: &'a RawValue,
}

impl Gateway {
    /// Creates a client of the server at this address.
    pub(super) fn new(
        rules: &Arc<NetworkRules>,
        url: &str,
        key: Option<&Secret>,
    ) -> Result<Self, InvalidService> {
        let client = ServiceClient::new(rules, url, key, REQUESTS_MAX)?;
        // The query, the user and the password may be secrets.
        let mut shown = client.url(&[]);
        shown.set_query(None);
        // Removing them cannot fail, because the URL has a host.
        let _ = (shown.set_username(""), shown.set_password(None));
        let base = String::from(shown).trim_end_matches('/').to_owned();
        Ok(Self { client, base, has_listed: AtomicBool::new(false) })
    }

    /// Returns its address, without secrets.
    pub(super) fn base(&self) -> &str {
        &self.base
    }

    /// Returns the base URL of a rollout's model.
    pub(super) fn model_url(&self, id: &str, is_train: bool) -> String {
        let mode = if is_train { "train" } else { "val" };
        let path = ["proxy", "rollout", id, "attempt", ATTEMPT, "mode", mode, "openai", "v1"];
        self.client.url(&path).into()
    }

    fn rollouts(&self, more: &[&str]) -> Url {
        let path: Vec<&str> = ["api", "rollouts"].iter().chain(more).copied().collect();
        self.client.url(&path)
    }

    /// Lists waiting rollouts in the order of their creation. Running rollouts are not requested, because they would
    /// count towards the limit and hide waiting ones.
    pub(super) async fn waiting(&self, max: usize) -> Result<Vec<Waiting>, SourceError> {
        let mut url = self.rollouts(&[]);
        url.query_pairs_mut().append_pair("state_in", "queuing").append_pair("limit", &max.to_string());
        let reply = self.client.send(Method::GET, url, None, LIST_BYTES_MAX).await;
        let reply = reply.map_err(|error| SourceError::Away(error.to_string()))?;
        if reply.status != 200 {
            let why = format!("it answered {}: {}", reply.status, detail(&reply.body));
            let is_refusal = matches!(reply.status, 400..=499) && !matches!(reply.status, 408 | 429);
            return Err(match is_refusal && !self.has_listed.load(Ordering::Relaxed) {
                true => SourceError::Refused(why),
                false => SourceError::Away(why),
            });
        }
        let mut waiting = Vec::new();
        let text = std::str::from_utf8(&reply.body)
            .map_err(|_| SourceError::Away("its list of rollouts is not UTF-8".to_owned()))?;
        let read = stream::each(text, |listed: ListedRollout<'_>| {
            waiting.push(Waiting {
                id: listed.rollout_id.0.into_owned(),
                input: listed.input.to_owned(),
                is_train: listed.is_train,
                timeout_secs: listed.config.and_then(|config| config.timeout_seconds),
            });
            Ok::<(), String>(())
        });
        read.map_err(|stopped| {
            let why = String::from(stopped);
            SourceError::Refused(format!("its list of rollouts does not have the form of version 1: {why}"))
        })?;
        self.has_listed.store(true, Ordering::Relaxed);
        Ok(waiting)
    }

    /// Returns the state of a rollout.
    pub(super) async fn state(&self, id: &str) -> Result<RolloutState, SourceError> {
        let sent = self.client.send(Method::GET, self.rollouts(&[id]), None, REPLY_BYTES_MAX).await;
        let reply = sent.map_err(|error| SourceError::Away(error.to_string()))?;
        match reply.status {
            200 => {}
            404 => return Ok(RolloutState::Deleted),
            status => return Err(unexpected(status, &reply.body)),
        }
        let OneRollout { rollout: RolloutWithStatus { status } } = serde_json::from_slice(&reply.body)
            .map_err(|error| SourceError::Refused(format!("its answer cannot be parsed: {error}")))?;
        Ok(match &*status.state {
            "queuing" => RolloutState::Queuing,
            "running" => RolloutState::Running(status.k8s_job_name),
            _ => RolloutState::Ended,
        })
    }

    /// Changes the status of a rollout.
    pub(super) async fn change(&self, id: &str, body: Bytes) -> Result<Change, SourceError> {
        self.request(Method::PATCH, self.rollouts(&[id]), body).await
    }

    /// Adds an event to a rollout.
    pub(super) async fn add_event(&self, id: &str, body: Bytes) -> Result<Change, SourceError> {
        self.request(Method::POST, self.rollouts(&[id, "attempt", ATTEMPT, "events"]), body).await
    }

    /// Returns whether a rollout has an event of a type.
    pub(super) async fn has_event(&self, id: &str, kind: &str) -> Result<bool, SourceError> {
        let mut url = self.rollouts(&[id, "events"]);
        url.query_pairs_mut().append_pair("event_type", kind);
        let sent = self.client.send(Method::GET, url, None, REPLY_BYTES_MAX).await;
        let reply = sent.map_err(|error| SourceError::Away(error.to_string()))?;
        match reply.status {
            200 => {}
            // The next change reports that the rollout was deleted.
            404 => return Ok(false),
            status => return Err(unexpected(status, &reply.body)),
        }
        let events: Vec<IgnoredAny> = serde_json::from_slice(&reply.body)
            .map_err(|error| SourceError::Refused(format!("its list of events cannot be parsed: {error}")))?;
        Ok(!events.is_empty())
    }

    async fn request(&self, method: Method, url: Url, body: Bytes) -> Result<Change, SourceError> {
        let reply = match self.client.send(method, url, Some(body), REPLY_BYTES_MAX).await {
            Ok(reply) => reply,
            // The change was made, and its answer repeats a long row.
            Err(ServiceError::TooLong(_)) => return Ok(Change::Made),
            Err(error) => return Err(SourceError::Away(error.to_string())),
        };
        match reply.status {
            200..=299 => Ok(Change::Made),
            404 => Ok(Change::Deleted),
            409 => Ok(Change::Conflict),
            status => Err(unexpected(status, &reply.body)),
        }
    }
}

fn unexpected(status: u16, body: &[u8]) -> SourceError {
    let why = format!("it answered {status}: {}", detail(body));
    match status {
        408 | 429 | 500.. => SourceError::Away(why),
        _ => SourceError::Refused(why),
    }
}

/// Returns the text of an error of the gateway.
fn detail(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let read: Option<Detail<'_>> = serde_json::from_str(&text).ok();
    let detail = read.map_or(Cow::Borrowed(&*text), |Detail { detail }| {
        stream::text(detail.get()).unwrap_or(Cow::Borrowed(detail.get()))
    });
    printable(&beginning(&detail, SHOWN_BYTES_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_those_of_the_official_controller() {
        let check = |change: StatusChange<'_>, expected: &str| {
            assert_eq!(change.body(), expected.as_bytes());
        };
        let claim = StatusChange { k8s_job_name: None, ..StatusChange::claim("me") };
        check(claim, r#"{"status":{"state":"running","last_attempt_id":"0"}}"#);
        check(StatusChange::succeeded(), r#"{"status":{"state":"succeeded","last_attempt_id":"0"}}"#);
        check(
            StatusChange::failed("why"),
            r#"{"status":{"state":"failed","last_attempt_id":"0","error_message":"why"}}"#,
        );
    }

    #[test]
    fn addresses_are_below_the_base_and_show_no_secrets() {
        let gateway =
            Gateway::new(&Arc::new(NetworkRules::open()), "http://u:pa55@h:1/agl/?k=1", None).unwrap();
        assert_eq!(gateway.base(), "http://h:1/agl");
        let url = gateway.model_url("a b", false);
        assert!(url.contains("/agl/proxy/rollout/a%20b/attempt/0/mode/val/openai/v1"), "{url}");
        assert_eq!(detail(br#"{"detail":"Invalid or missing API key"}"#), "Invalid or missing API key");
        assert_eq!(detail(br#"{"detail":[{"msg":"x"}]}"#), r#"[{"msg":"x"}]"#);
        assert_eq!(detail(b"<html>"), "<html>");
    }
}
