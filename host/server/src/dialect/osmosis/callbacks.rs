//! Generations B and C: the result is posted in two callbacks, the completion at the end of the workflow and the grader's
//! callback at the end of the rollout. The grader's is the terminal one.
//!
//! This module renders both bodies. For a caller, the generations differ only in [`Form`], the samples in the grader's
//! callback.

use std::sync::{Mutex, MutexGuard, PoisonError};

use axum::body::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;

use super::Osmosis;
use super::b::Samples;
use super::d;
use super::error::ApiError;
use super::journaled::{self, Facts};
use super::report::{Report, Trajectories};
use super::request::{CalledBack, ParsedRequest};
use super::sample::{Form, WireSample, category};
use crate::dialect::delivery::{Action, Delivery, Message};
use crate::dialect::driver::{Addresses, Driver, Renderer, Source};
use crate::dialect::ledger::PublicOutcome;
use crate::worker::Chosen;
use rollout_core::budget::{Budget, Charge, Use};
use rollout_core::telemetry::{Refusal, TraceParent};
use rollout_rollout::{Failure, FailureKind, Finished, Host, Outcome, UnfinishedRollout, drive};
use rollout_wire::id::RolloutId;

/// The body that is posted at the end of the workflow.
#[derive(Serialize)]
struct Completion<'a> {
    status: &'static str,
    rollout_id: &'a RolloutId,
    extra_fields: Option<()>,
    err_message: Option<&'a str>,
    err_category: Option<&'static str>,
}

impl<'a> Completion<'a> {
    fn success(rollout_id: &'a RolloutId) -> Self {
        Self { status: "success", rollout_id, extra_fields: None, err_message: None, err_category: None }
    }

    fn failure(rollout_id: &'a RolloutId, message: &'a str, category: Option<&'static str>) -> Self {
        let (err_message, err_category) = (Some(message), category);
        Self { status: "failure", err_message, err_category, ..Self::success(rollout_id) }
    }
}

/// The body that is posted at the end of the rollout. Fields that the caller's generation lacks are omitted; its other fields
/// are null or empty if they have no value.
#[derive(Serialize)]
struct Graded<'a> {
    status: &'static str,
    rollout_id: &'a RolloutId,
    #[serde(skip_serializing_if = "Option::is_none")]
    sample: Option<Option<WireSample<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    samples: Option<Samples<'a>>,
    err_message: Option<&'a str>,
    err_category: Option<&'static str>,
}

impl<'a> Graded<'a> {
    /// Creates the body of a failure. Its reason is in the completion, or was not sent.
    fn bare(rollout_id: &'a RolloutId, form: Form) -> Self {
        Self {
            status: "failure",
            rollout_id,
            sample: (form != Form::Map).then_some(None),
            samples: (form != Form::One).then_some(Samples::None),
            err_message: None,
            err_category: None,
        }
    }

    /// Returns the status of an outcome.
    fn status(finished: &Finished) -> &'static str {
        match &finished.outcome {
            Outcome::Unscored(failure) if failure.kind != FailureKind::Withdrawn => "failure",
            Outcome::Scored { .. } | Outcome::Unscored(_) => "success",
        }
    }

    /// Creates the body of a result with samples.
    fn of(finished: &'a Finished, form: Form, label: Option<&'a str>) -> Self {
        let failure = match &finished.outcome {
            Outcome::Scored { .. } => None,
            Outcome::Unscored(failure) if failure.kind == FailureKind::Withdrawn => None,
            Outcome::Unscored(failure) => Some(failure),
        };
        Self {
            status: Self::status(finished),
            rollout_id: &finished.id,
            sample: (form != Form::Map).then(|| WireSample::only(finished, label, failure.is_none())),
            samples: (form != Form::One).then_some(Samples::Of(finished)),
            err_message: failure.map(|failure| failure.reason.as_str()),
            err_category: failure.map(category),
        }
    }
}

/// Admits a rollout and starts a task for it. A worker without room names the one that takes the rollout in its place.
pub(super) async fn start(
    osmosis: &Osmosis,
    request: CalledBack,
    (parent, chosen): (Option<TraceParent>, Option<Chosen>),
) -> Result<(), ApiError> {
    let CalledBack { parsed, form, completion_url, grader_url, controller_key } = request;
    let inner = &osmosis.0;
    let host = inner.serving.host();
    d::check_group(osmosis, &parsed)?;
    // Until the rollout has a place, its id belongs to this request.
    let id = parsed.rollout.id.clone();
    let reserved = chosen.as_ref().map(|_| inner.ledger.reserve(&id).map_err(|_| registered(&host)));
    let reserved = reserved.transpose()?;
    if reserved.is_some() && host.find(&id).is_some() {
        return Err(registered(&host));
    }
    d::place(osmosis, &host, (&id, chosen.as_ref()), host.room() > 0)?;
    let parsed = parsed.forked(&host).await?;
    let ParsedRequest { rollout, resources, gradable, label, fork_of: _ } = parsed;
    let delivery = Delivery::callbacks(grader_url.is_some());
    let facts = Facts { delivery, gradable, form: journaled::Form::CalledBack(form) };
    let addresses = Addresses { completion: Some(completion_url), result: grader_url, key: controller_key };
    let admitted = journaled::admit(&host, (rollout, resources), &facts, &addresses).map_err(ApiError::from);
    let rollout = admitted.map_err(|refused| {
        d::placed_or(refused, reserved.is_some(), || d::place(osmosis, &host, (&id, chosen.as_ref()), false))
    })?;
    // The rollout has its id now.
    drop(reserved);
    let handle = rollout.handle();
    let log = handle.log().cloned();
    let entry = inner.ledger.open();
    entry.begin(id.clone(), id.as_str(), Some(rollout.handle()));
    let renderer = Callbacks::new(osmosis, id, form, label);
    let work = (log.clone(), rollout.traced_below(parent));
    let driver = journaled::driver(&host, entry, &facts, (&inner.callbacks, addresses), work, renderer);
    inner.tasks.spawn(drive(rollout, driver));
    journaled::wait_until_stored(log.as_ref()).await.map_err(|error| {
        handle.cancel();
        if chosen.is_some() { error.after_admission() } else { error }
    })
}

fn registered(host: &Host) -> ApiError {
    host.metrics().refused(Refusal::Duplicate);
    ApiError::Registered
}

/// Continues a rollout of an earlier process, or delivers its remaining callbacks.
pub(super) fn resume(
    (osmosis, host): (&Osmosis, &Host),
    unfinished: UnfinishedRollout,
    facts: Facts,
    (addresses, report): (Addresses, Option<Box<RawValue>>),
) -> Result<(), String> {
    let journaled::Form::CalledBack(form) = facts.form else {
        return Err("the rollout has no callbacks".to_owned());
    };
    let inner = &osmosis.0;
    let (id, label) = (unfinished.request.id.clone(), unfinished.request.label.clone());
    let log = unfinished.log().clone();
    let renderer = Callbacks::new(osmosis, id.clone(), form, label);
    *renderer.report() = report.map(|report| Reported {
        _charge: inner.budget.charge_result(report.get().len()),
        report: Report::from_stored(&report),
    });
    let entry = inner.ledger.open();
    journaled::continue_rollout((osmosis, host), unfinished, id.as_str(), Ok, |rollout| {
        let trace = rollout.map(|rollout| rollout.traced_below(None)).unwrap_or_default();
        journaled::driver(host, entry, &facts, (&inner.callbacks, addresses), (Some(log), trace), renderer)
    })
}

/// The callbacks of one rollout.
struct Callbacks {
    budget: Budget,
    id: RolloutId,
    form: Form,
    label: Option<String>,
    /// The caller's last report.
    report: Mutex<Option<Reported>>,
}

/// A caller's report of its model calls, held until the last callback is accepted.
struct Reported {
    report: Report,
    _charge: Charge,
}

impl Callbacks {
    fn new(osmosis: &Osmosis, id: RolloutId, form: Form, label: Option<String>) -> Self {
        Self { budget: osmosis.0.budget.clone(), id, form, label, report: Mutex::new(None) }
    }

    fn report(&self) -> MutexGuard<'_, Option<Reported>> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn completion<'a>(&'a self, message: Message, source: &Source<'a>) -> Completion<'a> {
        match source {
            Source::Workflow(Ok(())) if message == Message::Completion => Completion::success(&self.id),
            Source::Workflow(Err(failure)) if message == Message::Completion => {
                Completion::failure(&self.id, &failure.reason, Some(category(failure)))
            }
            Source::Crashed(crashed) => Completion::failure(&self.id, &crashed.reason, Some("agent_error")),
            Source::Workflow(_) | Source::Finished(_) => {
                Completion::failure(&self.id, "Internal server error", None)
            }
        }
    }
}

impl Renderer for Callbacks {
    type Form = ();

    fn body(&self, message: Message, source: &Source<'_>, _delivery: &Delivery) -> Bytes {
        let body = match (message, source) {
            (Message::Result, Source::Finished(finished)) => {
                serde_json::to_vec(&Graded::of(finished, self.form, self.label.as_deref()))
            }
            (Message::Result | Message::NoResult, _) => {
                serde_json::to_vec(&Graded::bare(&self.id, self.form))
            }
            _ => serde_json::to_vec(&self.completion(message, source)),
        };
        // Text, checked numbers and parsed JSON cannot fail to serialize.
        body.map(Bytes::from).unwrap_or_default()
    }

    /// Returns the outcome of the caller's last callback.
    fn public_outcome(&self, finished: &Finished, delivery: &Delivery) -> PublicOutcome {
        let is_scored = matches!(finished.outcome, Outcome::Scored { .. });
        let (has_result, wants_result) = match delivery {
            Delivery::Callbacks(callbacks) => (callbacks.has_result(is_scored), callbacks.wants_result),
            Delivery::Polled { .. } | Delivery::OnePost { .. } => (false, false),
        };
        let status = match &finished.outcome {
            _ if has_result => Graded::status(finished),
            // The caller requested only the completion.
            Outcome::Unscored(Failure { kind: FailureKind::NotGraded, .. }) if !wants_result => "success",
            _ => "failure",
        };
        PublicOutcome::of(status, &finished.outcome)
    }

    fn form(&self, _delivery: &Delivery) {}

    fn acknowledged(&self, body: &Bytes) {
        let Some(report) = Report::read(body) else { return };
        match self.budget.charge(Use::Result, body.len()) {
            Ok(charge) => *self.report() = Some(Reported { report, _charge: charge }),
            Err(error) => {
                tracing::warn!(%error, "the caller's report of its model calls was ignored");
            }
        }
    }

    fn note(driver: &Driver<Self>) {
        driver.note(driver.renderer.report().as_ref().map(|reported| reported.report.as_raw()));
    }

    /// Sends the terminal callback, and merges the caller's report of its model calls into the trajectory. A report in the
    /// acknowledgement of the completion is merged before the callback is sent. A report in the acknowledgement of the
    /// callback replaces it.
    async fn deliver_result(driver: &Driver<Self>, finished: &Finished, action: Action) {
        let renderer = &driver.renderer;
        let mut trajectories = Trajectories::of(finished);
        let report = renderer.report().take();
        if let Some(reported) = report {
            trajectories.merge(&reported.report).await;
        }
        driver.deliver(action, &Source::Finished(finished)).await;
        if renderer.report().is_some() {
            Self::note(driver);
        }
        let report = renderer.report().take();
        if let Some(reported) = report {
            trajectories.merge(&reported.report).await;
        }
    }
}
