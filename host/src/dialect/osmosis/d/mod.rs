//! Generation D: the caller polls for the result under a lease.

mod registry;
mod run_clock;

use std::panic::AssertUnwindSafe;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use serde::Serialize;
use serde_json::{Value, json};
use tracing::Instrument;

use super::error::ApiError;
use super::fields::Problem;
use super::reports::Due;
use super::request::{Asked, Polled};
use super::sample::{WireSample, category};
use super::statuses::{Known, Over, word};
use super::{Osmosis, id_in_path};
use crate::connection::WhenWritten;
use crate::id::RolloutId;
use crate::rollout::{Failure, FailureKind, Finished, Outcome, Rollout, Stage};
use crate::telemetry::{Refusal, TraceParent};
use registry::{Entry, Status};

pub(super) use registry::Registry;

const LEASE_HEADER: &str = "X-Osmosis-Rollout-Lease";

/// What an accepted rollout is told.
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
        // Text, numbers that were checked, and JSON that was parsed before.
        serde_json::to_vec(self).map(Bytes::from).unwrap_or_default()
    }

    /// The result, with the word that anybody may know.
    fn ended(&self, known: &Known) -> Bytes {
        known.ends(Over::word(self.status));
        self.bytes()
    }
}

/// Takes a rollout on and leaves it to a task of its own.
pub(super) fn start(
    osmosis: &Osmosis,
    request: Polled,
    parent: Option<TraceParent>,
) -> Result<Admission, ApiError> {
    let inner = &osmosis.0;
    let Polled { asked: Asked { rollout, resources, gradable, label }, grade } = request;
    let id = rollout.id.clone();
    // A result that is kept keeps its id, so that no caller reads another's.
    let place =
        inner.polled.reserve(&id).inspect_err(|_| inner.host.metrics().refused(Refusal::Duplicate))?;
    let rollout = inner.host.admit(rollout, resources)?;
    rollout.traced_below(parent);
    let due = inner.reports.promise(id.as_str());
    let entry = place.fill(rollout.handle());
    let times = inner.polled.times();
    let admission = Admission {
        rollout_id: id.clone(),
        status: "queued",
        polling_lease_token: entry.lease().to_owned(),
        result_wait_timeout_sec: times.result_wait.as_secs_f64(),
        polling_lease_timeout_sec: times.lease.as_secs_f64(),
    };
    let known = inner.statuses.begins(id.clone(), rollout.handle());
    let plan = Plan { grade, gradable: gradable && inner.host.grader().is_some(), label, known };
    let osmosis = osmosis.clone();
    let span = rollout.span();
    let task = async move {
        let body = drive(&entry, rollout, &plan, &due).await;
        osmosis.0.polled.end(&entry, body, due, osmosis.0.host.budget());
    };
    inner.tasks.spawn(task.instrument(span));
    Ok(admission)
}

/// What is to be done after the workflow.
struct Plan {
    grade: bool,
    gradable: bool,
    label: Option<String>,
    known: Known,
}

/// Runs a rollout to its result. The lease is watched meanwhile.
async fn drive(entry: &Entry, mut rollout: Box<Rollout>, plan: &Plan, due: &Due) -> Bytes {
    let handle = rollout.handle();
    let mut phases = handle.phases();
    let run = async {
        let ran = rollout.run_workflow().await;
        if ran.is_ok() && plan.grade && plan.gradable {
            // The error is in the outcome.
            let _ = rollout.grade().await;
        }
        rollout.finish().await
    };
    let run = AssertUnwindSafe(run).catch_unwind();
    let mut run = std::pin::pin!(run);
    let mut lease_over = std::pin::pin!(entry.lease_over());
    let mut expired = false;
    let finished = loop {
        tokio::select! {
            finished = &mut run => break finished,
            Ok(()) = phases.changed() => entry.set(Status::Under(*phases.borrow_and_update())),
            () = &mut lease_over, if !expired => {
                expired = true;
                handle.cancel();
            }
        }
    };
    if expired {
        // Nobody polls for it.
        due.kept();
        let id = entry.id();
        let lease = "polling lease expired";
        return ResultBody {
            err_message: Some(lease),
            err_category: Some("lease_expired"),
            ..ResultBody::bare(id, "failure")
        }
        .ended(&plan.known);
    }
    match finished {
        Ok(finished) => {
            if matches!(&finished.outcome, Outcome::Unscored(failure) if failure.kind == FailureKind::Cancelled)
            {
                due.cancelled();
            }
            body(&finished, plan)
        }
        Err(_) => {
            tracing::error!("the host panicked in a rollout, which ends unscored");
            let crashed = Failure::host(Stage::Workflow, "rollout task crashed");
            failure(entry.id(), &crashed, None).ended(&plan.known)
        }
    }
}

fn body(finished: &Finished, plan: &Plan) -> Bytes {
    let id = &finished.id;
    let label = plan.label.as_deref();
    let failed = match &finished.outcome {
        Outcome::Scored { .. } => None,
        Outcome::Unscored(failure) => Some(failure),
    };
    let sample = |graded| WireSample::only(finished, label, graded);
    match failed {
        None => ResultBody { sample: sample(true), ..ResultBody::bare(id, "success") },
        Some(reason) => match reason.kind {
            FailureKind::Withdrawn => ResultBody { sample: sample(true), ..ResultBody::bare(id, "success") },
            FailureKind::NotGraded if !plan.grade => {
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
    .ended(&plan.known)
}

fn failure<'a>(id: &'a RolloutId, failure: &'a Failure, sample: Option<WireSample<'a>>) -> ResultBody<'a> {
    let category = if failure.kind == FailureKind::Host { "internal_error" } else { category(failure) };
    let (err_message, err_category) = (Some(failure.reason.as_str()), Some(category));
    ResultBody { sample, err_message, err_category, ..ResultBody::bare(id, "failure") }
}

/// Renews the lease and tells the result, or waits for news and tells those.
pub(super) async fn result(
    State(osmosis): State<Osmosis>,
    path: Path<String>,
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
    let (body, is_over) = match entry.news(polled.times().result_wait).await {
        Status::Ended(body) => (body, true),
        Status::Under(phase) => (ResultBody::bare(entry.id(), word(phase)).bytes(), false),
    };
    let mut response = ([(header::CONTENT_TYPE, "application/json")], body).into_response();
    if is_over {
        // A result of which a part was read is to be read again.
        let osmosis = osmosis.clone();
        let told = WhenWritten::new(move || osmosis.0.polled.told(&entry));
        response.extensions_mut().insert(told);
    }
    Ok(response)
}
