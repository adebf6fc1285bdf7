//! Generation D: the caller polls for the result under a lease.

mod registry;
mod run_clock;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Extension;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::error::ApiError;
use super::fields::Problem;
use super::reports::Due;
use super::request::{ParsedRequest, Polled};
use super::sample::{WireSample, category};
use super::statuses::{Known, Over, word};
use super::{Osmosis, id_in_path, kept};
use crate::connection::{Caller, WhenWritten};
use crate::random;
use registry::{Entry, Journaled, Lease, Status};
use rollout_core::budget::{Charge, Use};
use rollout_core::id::RolloutId;
use rollout_core::rollout::{
    AfterWorkflow, Ended, Failure, FailureKind, Finished, Host, Next, Outcome, Phase, Stage, Steps,
    UnfinishedRollout, drive,
};
use rollout_core::telemetry::{Refusal, TraceParent};
use rollout_core::wire;

pub(super) use registry::Registry;

const LEASE_HEADER: &str = "X-Osmosis-Rollout-Lease";

/// What the caller of an admitted rollout is answered.
#[derive(Serialize)]
pub(super) struct Admission {
    rollout_id: RolloutId,
    status: &'static str,
    polling_lease_token: String,
    result_wait_timeout_sec: f64,
    polling_lease_timeout_sec: f64,
}

/// A result, or word of how far a rollout is.
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

    /// The result, with the word that anybody may know.
    fn ended(&self, known: &Known) -> Bytes {
        known.ends(Over::word(self.status));
        self.bytes()
    }
}

/// What is kept of such a rollout, so that its caller polls on.
#[derive(Serialize, Deserialize)]
struct Facts {
    lease: Lease,
    grade: bool,
    gradable: bool,
}

/// What happened to it since.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Note {
    /// Its lease ran out.
    Expired,
    /// Its result was read.
    Read,
}

/// Admits a rollout and leaves it to a task of its own.
pub(super) async fn start(
    osmosis: &Osmosis,
    request: Polled,
    parent: Option<TraceParent>,
) -> Result<Admission, ApiError> {
    let inner = &osmosis.0;
    let Polled { asked, grade } = request;
    let id = asked.rollout.id.clone();
    let host = inner.serving.host();
    host.may_keep()?;
    // A result that is kept keeps its id, so that no caller reads another's.
    let place = inner.polled.reserve(&id).inspect_err(|_| host.metrics().refused(Refusal::Duplicate))?;
    let asked = asked.forked(&host).await?;
    let ParsedRequest { rollout, mut resources, gradable, label, fork_of: _ } = asked;
    let token = random::token();
    let facts = Facts { lease: Lease::of(&token), grade, gradable };
    resources.continuation = Some(kept::continuation(kept::POLLED, &facts, None::<&()>));
    let rollout = host.admit(rollout, resources)?;
    rollout.traced_below(parent);
    let handle = rollout.handle();
    let log = handle.log().cloned();
    let entry = place.fill(facts.lease.clone(), log.clone());
    let times = inner.polled.times();
    let admission = Admission {
        rollout_id: id.clone(),
        status: "queued",
        polling_lease_token: token,
        result_wait_timeout_sec: times.result_wait.as_secs_f64(),
        polling_lease_timeout_sec: times.lease.as_secs_f64(),
    };
    let known = inner.statuses.begins(id, rollout.handle());
    let polling = facts.polling(osmosis, &host, entry, known, label);
    inner.tasks.spawn(drive(rollout, Box::new(polling)));
    kept::is_safe(log.as_ref()).await.inspect_err(|_| handle.cancel())?;
    Ok(admission)
}

/// Goes on with a rollout that a process before admitted, or with its result.
pub(super) fn resume(osmosis: &Osmosis, host: &Host, unfinished: UnfinishedRollout) -> Result<(), String> {
    let inner = &osmosis.0;
    let facts: Facts = kept::facts(&unfinished)?;
    let notes: Vec<Note> =
        unfinished.notes.iter().filter_map(|note| serde_json::from_str(note.get()).ok()).collect();
    let (id, label) = (unfinished.request.id.clone(), unfinished.request.label.clone());
    let place = inner.polled.reserve(&id).map_err(|_| "its id is taken")?;
    let (log, lease) = (unfinished.log().clone(), facts.lease.clone());
    match unfinished.outcome {
        Some(finished) => {
            let entry = place.fill(lease, Some(log));
            let polling = facts.polling(osmosis, host, entry.clone(), inner.statuses.ended(id), label);
            polling.is_expired.store(notes.contains(&Note::Expired), Ordering::Relaxed);
            let result = polling.result(Ended::of(finished));
            inner.polled.end(&entry, result, polling.due, &inner.budget);
            if notes.contains(&Note::Read) {
                inner.polled.was_read(&entry);
            }
        }
        None => {
            let rollout = kept::rollout(host, unfinished, |model| model)?;
            let known = inner.statuses.begins(id, rollout.handle());
            let polling = facts.polling(osmosis, host, place.fill(lease, Some(log)), known, label);
            polling.is_expired.store(notes.contains(&Note::Expired), Ordering::Relaxed);
            inner.tasks.spawn(drive(rollout, Box::new(polling)));
        }
    }
    Ok(())
}

impl Facts {
    /// What drives the rollout that these are of.
    fn polling(
        &self,
        osmosis: &Osmosis,
        host: &Host,
        entry: Arc<Entry>,
        known: Known,
        label: Option<String>,
    ) -> Polling {
        let inner = &osmosis.0;
        Polling {
            due: inner.reports.promise(entry.id().as_str()),
            osmosis: osmosis.clone(),
            entry,
            known,
            gradable: self.gradable && host.grader().is_some(),
            form: Form { grade: self.grade, label },
            is_expired: AtomicBool::new(false),
        }
    }
}

/// A rollout that is polled for.
struct Polling {
    osmosis: Osmosis,
    entry: Arc<Entry>,
    known: Known,
    due: Due,
    gradable: bool,
    form: Form,
    is_expired: AtomicBool,
}

/// What a result says besides what came of its rollout.
#[derive(Clone, Debug)]
struct Form {
    /// Whether a reward was asked for.
    grade: bool,
    label: Option<String>,
}

impl Steps for Polling {
    type End = ();

    fn after_workflow<'a>(&'a self, _ran: Result<(), &'a Failure>) -> AfterWorkflow<'a> {
        AfterWorkflow::Go(Next::graded(self.form.grade && self.gradable))
    }

    fn entered(&self, phase: Phase) {
        self.entry.set(Status::Under(phase));
    }

    async fn abandoned(&self) {
        self.entry.lease_over().await;
        self.is_expired.store(true, Ordering::Relaxed);
    }

    async fn finished(self: Box<Self>, ended: Ended) {
        let log = self.entry.log();
        if let Some(log) = log.filter(|_| self.is_expired.load(Ordering::Relaxed)) {
            log.note(&Note::Expired);
        }
        if !kept::may_be_reported(log).await {
            return;
        }
        let result = self.result(ended);
        let Self { osmosis, entry, due, .. } = *self;
        osmosis.0.polled.end(&entry, result, due, &osmosis.0.budget);
    }
}

impl Polling {
    /// The result, with the word that anybody may know, and how it is made where that may be done again.
    fn result(&self, ended: Ended) -> (Bytes, Option<Form>) {
        let id = self.entry.id();
        if self.is_expired.load(Ordering::Relaxed) {
            // Nobody polls for it.
            self.due.kept();
            let expired = ResultBody {
                err_message: Some("polling lease expired"),
                err_category: Some("lease_expired"),
                ..ResultBody::bare(id, "failure")
            };
            return (expired.ended(&self.known), None);
        }
        let finished = match ended {
            Ended::Finished(finished) => finished,
            Ended::Cancelled(finished) => {
                self.due.cancelled();
                finished
            }
            Ended::Crashed(crashed) => return (failure(id, &crashed, None).ended(&self.known), None),
        };
        (self.form.result(&finished).ended(&self.known), Some(self.form.clone()))
    }
}

impl Form {
    /// What the caller reads of this rollout.
    fn result<'a>(&'a self, finished: &'a Finished) -> ResultBody<'a> {
        let id = &finished.id;
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
                // A reward was wanted and there is nothing to make one with.
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

/// The body of a result that was read before and is in the journal alone, charged for as long as it is sent: whoever
/// asks for it again and again has a copy each time.
async fn read_again(
    osmosis: &Osmosis,
    entry: &Arc<Entry>,
    from: Arc<Journaled>,
) -> Result<(Bytes, Charge), ApiError> {
    /// What is read, and what that means, are there besides what is made of it.
    const COPIES: usize = 2;
    let log = entry.log().cloned().ok_or(ApiError::UnknownRollout)?;
    let budget = &osmosis.0.budget;
    let charge = budget.charge(Use::Result, from.bytes).map_err(|_| ApiError::NoMemory)?;
    // One at a time.
    let turn = osmosis.0.polled.reader().await;
    let while_made = budget.charge_result(COPIES * from.bytes);
    let read = tokio::task::spawn_blocking(move || {
        let _held = (turn, while_made);
        let finished = log.read_outcome()?;
        Ok::<_, io::Error>(finished.map(|finished| from.form.result(&finished).bytes()))
    });
    let unread = |why: String| ApiError::Internal(format!("the result cannot be read again: {why}"));
    let read = read.await.map_err(|error| unread(error.to_string()))?;
    // It may have been forgotten meanwhile.
    let body = read.map_err(|error| unread(error.to_string()))?.ok_or(ApiError::UnknownRollout)?;
    Ok((body, charge))
}

fn failure<'a>(id: &'a RolloutId, failure: &'a Failure, sample: Option<WireSample<'a>>) -> ResultBody<'a> {
    let category = if failure.kind == FailureKind::Host { "internal_error" } else { category(failure) };
    let (err_message, err_category) = (Some(failure.reason.as_str()), Some(category));
    ResultBody { sample, err_message, err_category, ..ResultBody::bare(id, "failure") }
}

/// Renews the lease and reports the result, or waits for news and reports those.
pub(super) async fn result(
    State(osmosis): State<Osmosis>,
    path: Path<String>,
    caller: Option<Extension<Caller>>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let polled = &osmosis.0.polled;
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
    let entry = id_in_path(path).and_then(|id| polled.find(&id)).ok_or(ApiError::UnknownRollout)?;
    if !entry.is_lease(lease) {
        return Err(ApiError::WrongLease);
    }
    let (body, charge, is_over) = match polled.news(&entry, caller.as_deref()).await {
        Status::Ended(body) => (body, None, true),
        Status::Journaled(from) => {
            let (body, charge) = read_again(&osmosis, &entry, from).await?;
            (body, Some(charge), true)
        }
        Status::Under(phase) => (ResultBody::bare(entry.id(), word(phase)).bytes(), None, false),
    };
    let mut response = ([(header::CONTENT_TYPE, "application/json")], body).into_response();
    if is_over {
        // A result of which a part was read is to be read again.
        let osmosis = osmosis.clone();
        let read = WhenWritten::new(move || {
            // It is held until then.
            let _ = &charge;
            if osmosis.0.polled.was_read(&entry)
                && let Some(log) = entry.log()
            {
                log.note(&Note::Read);
            }
        });
        response.extensions_mut().insert(read);
    }
    Ok(response)
}
