//! Generation D: the caller polls for the result under a lease.

use std::sync::Arc;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::error::ApiError;
use super::fields::Problem;
use super::kept::{self, Facts};
use super::request::{ParsedRequest, Polled as PolledRequest};
use super::sample::{WireSample, category};
use super::{Osmosis, id_in_path};
use crate::connection::{Caller, WhenWritten};
use crate::dialect::delivery::{Delivery, Message};
use crate::dialect::driver::{Addresses, Renderer, Source};
use crate::dialect::ledger::{HeldBody, Lease, Over, PollStatus, Polled, word};
use crate::{random, worker};
use rollout_core::telemetry::{Refusal, TraceParent};
use rollout_rollout::{
    Failure, FailureKind, Finished, Host, KeptResult, Outcome, Stage, UnfinishedRollout, drive,
};
use rollout_wire as wire;
use rollout_wire::id::RolloutId;

/// Category of a failure that is the host's.
const INTERNAL_ERROR: &str = "internal_error";

/// Header with the lease of a poll.
pub(crate) const LEASE_HEADER: &str = "X-Osmosis-Rollout-Lease";

/// The response to the caller of an admitted rollout.
#[derive(Serialize)]
pub(super) struct Admission {
    rollout_id: RolloutId,
    status: &'static str,
    polling_lease_token: String,
    result_wait_timeout_sec: f64,
    polling_lease_timeout_sec: f64,
}

/// A result, or the status of a rollout without one.
#[derive(Serialize)]
struct ResultBody<'a> {
    rollout_id: &'a RolloutId,
    status: &'static str,
    sample: Option<WireSample<'a>>,
    err_message: Option<&'a str>,
    err_category: Option<&'a str>,
}

impl<'a> ResultBody<'a> {
    fn bare(rollout_id: &'a RolloutId, status: &'static str) -> Self {
        Self { rollout_id, status, sample: None, err_message: None, err_category: None }
    }

    fn bytes(&self) -> Bytes {
        wire::json_with(self, self.sample.as_ref().map_or(0, WireSample::message_bytes))
    }

    /// Returns its approximate size in bytes.
    fn memory_bytes(&self) -> usize {
        self.sample.as_ref().map_or(0, WireSample::message_bytes)
    }
}

/// Returns the response to a poll whose rollout has no result yet, for a gateway that cannot ask the rollout's worker.
pub(crate) fn unfinished(id: &RolloutId) -> Response {
    json_response(ResultBody::bare(id, "running").bytes())
}

/// Returns the response to a poll whose rollout was lost with its worker.
pub(crate) fn lost(id: &RolloutId, reason: &str) -> Response {
    let (err_message, err_category) = (Some(reason), Some(INTERNAL_ERROR));
    json_response(ResultBody { err_message, err_category, ..ResultBody::bare(id, "failure") }.bytes())
}

fn json_response(body: Bytes) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// Admits a rollout and starts a task for it. A gateway chooses the token of the lease, and the same request with the same
/// token is the same rollout.
pub(super) async fn start(
    osmosis: &Osmosis,
    request: PolledRequest,
    (parent, chosen_token): (Option<TraceParent>, Option<String>),
) -> Result<Admission, ApiError> {
    let inner = &osmosis.0;
    let PolledRequest { parsed, grade } = request;
    let id = parsed.rollout.id.clone();
    let host = inner.serving.host();
    host.may_keep()?;
    // A stored result reserves its id, so that no caller reads another's result.
    let is_repeated = chosen_token.is_some();
    let token = chosen_token.unwrap_or_else(random::token);
    let token = inner.log.as_ref().map_or_else(|| token.clone(), |log| worker::lease(log, &token));
    let times = inner.ledger.times();
    let admission = Admission {
        rollout_id: id.clone(),
        status: "queued",
        polling_lease_token: token,
        result_wait_timeout_sec: times.result_wait.as_secs_f64(),
        polling_lease_timeout_sec: times.lease.as_secs_f64(),
    };
    let token = &admission.polling_lease_token;
    let mut entry = match inner.ledger.reserve(&id) {
        Ok(entry) => entry,
        // The gateway did not receive the first answer.
        Err(_) if is_repeated && inner.ledger.find(&id).is_some_and(|polled| polled.is_lease(token)) => {
            return Ok(admission);
        }
        Err(_) => {
            host.metrics().refused(Refusal::Duplicate);
            return Err(ApiError::Registered);
        }
    };
    let parsed = parsed.forked(&host).await?;
    let ParsedRequest { rollout, resources, gradable, label, fork_of: _ } = parsed;
    let lease = Lease::of(token);
    let form = kept::Form::Polled { lease: lease.clone(), grade };
    let facts = Facts { delivery: Delivery::polled(), gradable: gradable && grade, form };
    let rollout = kept::admit(&host, (rollout, resources), &facts, &Addresses::default())?;
    let trace = rollout.traced_below(parent);
    let handle = rollout.handle();
    let log = handle.log().cloned();
    entry.fill(&id, lease, log.clone());
    entry.begin(id.clone(), id.as_str(), Some(rollout.handle()));
    let renderer = Polling { id, form: Form { grade, is_expired: false, label } };
    let client = (&inner.callbacks, Addresses::default());
    let driver = kept::driver(&host, entry, &facts, client, (log.clone(), trace), renderer);
    inner.tasks.spawn(drive(rollout, driver));
    kept::wait_until_stored(log.as_ref()).await.inspect_err(|_| handle.cancel())?;
    Ok(admission)
}

/// Continues a rollout of an earlier process, or stores its result.
pub(super) fn resume(
    (osmosis, host): (&Osmosis, &Host),
    unfinished: UnfinishedRollout,
    facts: Facts,
) -> Result<(), String> {
    let kept::Form::Polled { lease, grade } = &facts.form else {
        return Err("no caller polls for the rollout".to_owned());
    };
    let inner = &osmosis.0;
    let (id, label) = (unfinished.request.id.clone(), unfinished.request.label.clone());
    // An earlier process may have died between storing the result and ending the rollout in the journal, so a
    // stored result with this id is the rollout's own.
    let mut entry = inner.ledger.reserve_anyway(&id).map_err(|_| "its id is taken")?;
    let log = unfinished.log().clone();
    let renderer = Polling { id: id.clone(), form: Form { grade: *grade, is_expired: false, label } };
    let client = (&inner.callbacks, Addresses::default());
    kept::continue_rollout((osmosis, host), unfinished, id.as_str(), Ok, |_| {
        entry.fill(&id, lease.clone(), Some(log.clone()));
        kept::driver(host, entry, &facts, client, (Some(log), Default::default()), renderer)
    })
}

/// Parts of a result in addition to the rollout's outcome.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Form {
    /// Whether the caller asked for a reward.
    grade: bool,
    /// Whether the lease expired, so that no caller polls.
    is_expired: bool,
    label: Option<String>,
}

/// The result of one rollout.
struct Polling {
    id: RolloutId,
    form: Form,
}

impl Renderer for Polling {
    type Form = Form;

    fn body(&self, _message: Message, source: &Source<'_>, delivery: &Delivery) -> Bytes {
        match source {
            Source::Finished(finished) => self.form(delivery).result(finished).bytes(),
            // Nothing is posted after the workflow.
            Source::Workflow(_) => Bytes::new(),
            Source::Crashed(crashed) => failure(&self.id, crashed, None).bytes(),
        }
    }

    fn result_bytes(&self, finished: &Finished, delivery: &Delivery) -> usize {
        self.form(delivery).result(finished).memory_bytes()
    }

    fn over(&self, finished: &Finished, delivery: &Delivery) -> Over {
        Over::word(self.form(delivery).result(finished).status)
    }

    fn form(&self, delivery: &Delivery) -> Form {
        Form { is_expired: delivery.is_expired(), ..self.form.clone() }
    }
}

impl Form {
    /// Creates the caller's view of a finished rollout.
    fn result<'a>(&'a self, finished: &'a Finished) -> ResultBody<'a> {
        let id = &finished.id;
        if self.is_expired {
            return ResultBody {
                err_message: Some("polling lease expired"),
                err_category: Some("lease_expired"),
                ..ResultBody::bare(id, "failure")
            };
        }
        let failed = match &finished.outcome {
            Outcome::Scored { .. } => None,
            Outcome::Unscored(failure) => Some(failure),
        };
        let sample = |graded| WireSample::only(finished, self.label.as_deref(), graded);
        match failed {
            None => ResultBody { sample: sample(true), ..ResultBody::bare(id, "success") },
            Some(reason) => match reason.kind {
                FailureKind::Withdrawn => {
                    ResultBody { sample: sample(true), ..ResultBody::bare(id, "success") }
                }
                FailureKind::NotGraded if !self.grade => {
                    ResultBody { sample: sample(false), ..ResultBody::bare(id, "success") }
                }
                // The caller asked for a reward, and no grader ran.
                FailureKind::NotGraded => ResultBody::bare(id, "failure"),
                FailureKind::Cancelled => {
                    ResultBody { err_message: Some("cancelled"), ..ResultBody::bare(id, "cancelled") }
                }
                _ if reason.stage == Stage::Grader => failure(id, reason, sample(false)),
                _ => failure(id, reason, None),
            },
        }
    }
}

fn failure<'a>(id: &'a RolloutId, failure: &'a Failure, sample: Option<WireSample<'a>>) -> ResultBody<'a> {
    let category = if failure.kind == FailureKind::Host { INTERNAL_ERROR } else { category(failure) };
    let (err_message, err_category) = (Some(failure.reason.as_str()), Some(category));
    ResultBody { sample, err_message, err_category, ..ResultBody::bare(id, "failure") }
}

/// Renews the lease and returns the result, or waits for it and returns the status.
pub(super) async fn result(
    State(osmosis): State<Osmosis>,
    path: Path<String>,
    caller: Option<Extension<Caller>>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let ledger = &osmosis.0.ledger;
    let lease = headers.get(LEASE_HEADER).map(|value| String::from_utf8_lossy(value.as_bytes()));
    let at = || vec![json!("header"), json!(LEASE_HEADER)];
    let lease = match lease.as_deref() {
        None => {
            return Err(ApiError::Invalid(vec![Problem::new(
                "missing",
                at(),
                "Field required",
                Value::Null,
            )]));
        }
        Some("") => {
            let problem =
                Problem::new("string_too_short", at(), "String should have at least 1 character", "".into());
            return Err(ApiError::Invalid(vec![problem.with(json!({"min_length": 1}))]));
        }
        Some(lease) => lease,
    };
    let id = id_in_path(path).ok_or(ApiError::UnknownRollout)?;
    let polled = ledger.find(&id);
    if let Some(polled) = &polled {
        if !polled.is_lease(lease) {
            return Err(ApiError::WrongLease);
        }
        match ledger.news(polled, caller.as_deref()).await {
            PollStatus::Ended(copy) => {
                return Ok(result_response(&osmosis, Read::Here(polled.clone()), copy));
            }
            PollStatus::Under(phase) => {
                return Ok(json_response(ResultBody::bare(polled.id(), word(phase)).bytes()));
            }
            PollStatus::Journaled => {}
        }
    }
    let kept = polled.and_then(|polled| polled.kept_result()).or_else(|| ledger.kept_result(&id));
    let kept = kept.ok_or(ApiError::UnknownRollout)?;
    let render = |form: &Form, finished: &Finished| form.result(finished).bytes();
    let copy = ledger.read_stored(&id, kept, Lease::of(lease), render).await?;
    Ok(result_response(&osmosis, Read::Journaled(kept), Arc::new(copy)))
}

/// A result for a poll.
enum Read {
    /// A result with a copy in memory.
    Here(Arc<Polled>),
    /// A result in the journal alone.
    Journaled(KeptResult),
}

/// Returns the response with a result, which counts as read when all of it was sent.
fn result_response(osmosis: &Osmosis, read: Read, copy: Arc<HeldBody>) -> Response {
    let body = copy.body.clone();
    let mut response = json_response(body);
    // A partially sent result stays unread.
    let osmosis = osmosis.clone();
    let when_written = WhenWritten::new(move || {
        // The copy is charged until the response is written.
        let _ = &copy;
        match &read {
            Read::Here(polled) => osmosis.0.ledger.was_read(polled),
            Read::Journaled(kept) => osmosis.0.ledger.was_read_from_journal(*kept),
        }
    });
    response.extensions_mut().insert(when_written);
    response
}
