//! Generation D: the caller polls for the result under a lease.

mod registry;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
use super::statuses::{CountedBy, Known, Over, word};
use super::{Osmosis, id_in_path, kept};
use crate::connection::{Caller, WhenWritten};
use crate::dialect::delivery::{Action, Delivery, Event};
use crate::random;
use registry::{Entry, Lease, ResultCopy, Status};
use rollout_core::id::RolloutId;
use rollout_core::rollout::{
    AfterWorkflow, Ended, Failed, Failure, FailureKind, Finished, Host, Journal, KeptResult, Next, Outcome,
    Phase, Stage, Steps, UnfinishedRollout, drive,
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

    /// About what its bytes take.
    fn memory_bytes(&self) -> usize {
        self.sample.as_ref().map_or(0, WireSample::message_bytes)
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
    /// Its result was read, as earlier versions noted it.
    Read,
}

/// What is kept with a result, so that it can be given again.
#[derive(Serialize, Deserialize)]
struct KeptFacts {
    lease: Lease,
    form: Form,
    /// The word that anybody may know.
    status: String,
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
    let known = inner.statuses.begins(id, rollout.handle(), CountedBy::Statuses);
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
    let place = inner.polled.reserve_anyway(&id).map_err(|_| "its id is taken")?;
    let (log, lease) = (unfinished.log().clone(), facts.lease.clone());
    let delivery = Delivery::Polled { is_expired: notes.contains(&Note::Expired) };
    // One that is over died before its end was noted. A result that is kept already is this one.
    let counted = CountedBy::Statuses;
    kept::go_on((osmosis, host), unfinished, counted, Ok, |known, _| {
        let polling = facts.polling(osmosis, host, place.fill(lease, Some(log)), known, label);
        Polling { delivery: delivery.into(), ..polling }
    })
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
            form: Form { grade: self.grade, is_expired: false, label },
            delivery: Mutex::new(Delivery::Polled { is_expired: false }),
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
    delivery: Mutex<Delivery>,
}

/// What a result says besides what came of its rollout.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Form {
    /// Whether a reward was asked for.
    grade: bool,
    /// Whether the lease ran out, so that nobody polls for it.
    is_expired: bool,
    label: Option<String>,
}

impl Polling {
    fn delivery(&self) -> MutexGuard<'_, Delivery> {
        self.delivery.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
        self.delivery().advance(Event::LeaseExpired);
    }

    async fn finished(self: Box<Self>, ended: Ended) {
        let is_expired = matches!(*self.delivery(), Delivery::Polled { is_expired: true });
        if let Some(log) = self.entry.log().filter(|_| is_expired) {
            log.note(&Note::Expired);
        }
        let Self { osmosis, entry, due, known, mut form, delivery, .. } = *self;
        let inner = &osmosis.0;
        form.is_expired = is_expired;
        let event = match &ended {
            Ended::Finished(finished) => {
                Event::Finished { is_scored: matches!(finished.outcome, Outcome::Scored { .. }) }
            }
            Ended::Cancelled(_) => Event::Cancelled { by_server: !is_expired && due.cancelled() },
            Ended::Crashed(_) => Event::Crashed,
        };
        let mut delivery = delivery.into_inner().unwrap_or_else(PoisonError::into_inner);
        let is_awaited = delivery.advance(event) == Action::Keep { is_awaited: true };
        let finished = match ended {
            Ended::Finished(finished) | Ended::Cancelled(finished) => finished,
            Ended::Crashed(crashed) => {
                if !kept::may_be_reported(entry.log()).await {
                    return;
                }
                let body = failure(entry.id(), &crashed, None).ended(&known);
                return inner.polled.end(&entry, body, due, &inner.budget);
            }
        };
        let result = form.result(&finished);
        let Some((journal, log)) = inner.polled.journal().zip(entry.log()) else {
            if !is_awaited {
                due.kept();
            }
            let body = result.ended(&known);
            return inner.polled.end(&entry, body, due, &inner.budget);
        };
        let facts =
            KeptFacts { lease: entry.lease().clone(), form: form.clone(), status: result.status.to_owned() };
        let (of, ttl) = (inner.polled.result_of(entry.id()), inner.polled.times().result_ttl);
        let copy = inner.polled.copy_charge(result.memory_bytes(), &inner.budget);
        let copy = copy.map(|charge| (result.bytes(), charge));
        match journal.keep_result(log, of, &facts, (ttl, is_awaited)).await {
            Ok(kept) => {
                known.ends(Over::word(result.status));
                inner.polled.end_kept(&entry, kept, copy);
                // From here on the journal knows who has not heard.
                due.kept();
            }
            Err(error) => not_kept(&error),
        }
    }
}

fn not_kept(error: &Failed) {
    tracing::error!(%error, "a result is not reported, because it cannot be kept");
}

impl Form {
    /// What the caller reads of this rollout.
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

/// A result of the journal for whoever has this lease, charged before it is read and until it is sent. A few are read at
/// a time, apart from what answers others.
async fn read_kept(
    osmosis: &Osmosis,
    journal: &Arc<Journal>,
    kept: KeptResult,
    (id, lease): (&RolloutId, Lease),
) -> Result<ResultCopy, ApiError> {
    let turn = osmosis.0.polled.reader().await;
    let (osmosis, journal, id) = (osmosis.clone(), journal.clone(), id.clone());
    let read = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        read_kept_blocking(&osmosis, &journal, kept, (&id, &lease))
    });
    read.await.unwrap_or_else(|error| Err(unreadable(&error)))
}

fn unreadable(why: &dyn std::fmt::Display) -> ApiError {
    tracing::error!(%why, "a result of the journal cannot be read");
    ApiError::Internal(format!("the result cannot be read: {why}"))
}

fn read_kept_blocking(
    osmosis: &Osmosis,
    journal: &Journal,
    kept: KeptResult,
    (id, lease): (&RolloutId, &Lease),
) -> Result<ResultCopy, ApiError> {
    /// What is read, and what that means, are there besides what is made of it.
    const COPIES: usize = 3;
    let inner = &osmosis.0;
    let unreadable = |error: io::Error| unreadable(&error);
    let found = journal.read_kept(kept, inner.polled.result_of(id)).map_err(unreadable)?;
    let found = found.ok_or(ApiError::UnknownRollout)?;
    let facts: KeptFacts =
        serde_json::from_slice(&found.facts).map_err(|error| unreadable(io::Error::other(error)))?;
    if !facts.lease.is(lease) {
        return Err(ApiError::WrongLease);
    }
    let bytes = usize::try_from(found.bytes().map_err(unreadable)?).unwrap_or(usize::MAX);
    let charge = inner.budget.charge_read(bytes.saturating_mul(COPIES));
    let mut charge = charge.map_err(|_| ApiError::NoMemory)?;
    let finished = found.read().map_err(unreadable)?;
    let body = facts.form.result(&finished).bytes();
    drop((finished, found));
    charge.shrink_to(body.len());
    Ok(ResultCopy::new(body, charge))
}

/// The word for a rollout whose result the journal keeps.
pub(super) async fn kept_word(osmosis: &Osmosis, id: &RolloutId) -> Option<String> {
    let polled = &osmosis.0.polled;
    let (journal, kept) = polled.journal().cloned().zip(polled.kept(id))?;
    let turn = polled.reader().await;
    let (osmosis, id) = (osmosis.clone(), id.clone());
    let read = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        let found = journal.read_kept(kept, osmosis.0.polled.result_of(&id)).ok()??;
        serde_json::from_slice::<KeptFacts>(&found.facts).ok()
    });
    Some(read.await.ok()??.status)
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
    let id = id_in_path(path).ok_or(ApiError::UnknownRollout)?;
    let entry = polled.find(&id);
    if let Some(entry) = &entry {
        if !entry.is_lease(lease) {
            return Err(ApiError::WrongLease);
        }
        match polled.news(entry, caller.as_deref()).await {
            Status::Ended(copy) => return Ok(given(&osmosis, Read::Here(entry.clone()), copy)),
            Status::Under(phase) => {
                let body = ResultBody::bare(entry.id(), word(phase)).bytes();
                return Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response());
            }
            Status::Journaled => {}
        }
    }
    let kept = polled.journal().zip(entry.and_then(|entry| entry.kept()).or_else(|| polled.kept(&id)));
    let (journal, kept) = kept.ok_or(ApiError::UnknownRollout)?;
    let copy = read_kept(&osmosis, journal, kept, (&id, Lease::of(lease))).await?;
    Ok(given(&osmosis, Read::Journaled(kept), Arc::new(copy)))
}

/// Whose result is read.
enum Read {
    /// One of which a copy is here.
    Here(Arc<Entry>),
    /// One that is in the journal alone.
    Journaled(KeptResult),
}

/// The answer with a result, which counts as read when all of it was written.
fn given(osmosis: &Osmosis, read: Read, copy: Arc<ResultCopy>) -> Response {
    let body = copy.body.clone();
    let mut response = ([(header::CONTENT_TYPE, "application/json")], body).into_response();
    // A result of which a part was read is to be read again.
    let osmosis = osmosis.clone();
    let when_written = WhenWritten::new(move || {
        // It is charged until then.
        let _ = &copy;
        let polled = &osmosis.0.polled;
        match &read {
            Read::Here(entry) => polled.was_read(entry),
            Read::Journaled(kept) => drop(polled.journal().map(|journal| journal.was_read(*kept))),
        }
    });
    response.extensions_mut().insert(when_written);
    response
}
