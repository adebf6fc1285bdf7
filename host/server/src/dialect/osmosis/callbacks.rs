//! Generations B and C: the result is posted back in two callbacks, the completion when the
//! workflow is done and the grader's when all is. The grader's is the terminal one.
//!
//! Both are notified here of what came of a rollout, to the last acknowledgement. They differ in [`Form`], what
//! the grader's callback carries, and in nothing else that a caller can see.

use std::borrow::Cow;
use std::sync::{Mutex, MutexGuard, PoisonError};

use axum::body::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::b::Samples;
use super::error::ApiError;
use super::report::{Report, Trajectories};
use super::reports::Due;
use super::request::{CalledBack, ParsedRequest};
use super::sample::{WireSample, category};
use super::statuses::{CountedBy, Known, Over};
use super::{Osmosis, kept};
use crate::dialect::delivery::{Action, Delivery, Event, Message};
use rollout_core::budget::{Charge, Use};
use rollout_core::id::RolloutId;
use rollout_core::outbound::{Acknowledged, Secret, Undelivered};
use rollout_core::rollout::{
    AfterWorkflow, Ended, Failure, FailureKind, Finished, Host, Next, Outcome, RolloutLog, Steps,
    UnfinishedRollout, drive,
};
use rollout_core::telemetry::{RolloutTrace, TraceParent};

/// What a grader's callback carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Form {
    /// `samples`, by id: generation B.
    Map,
    /// `sample`: generation C.
    One,
    /// Either, for a caller that may be of B or of C: each ignores what the other reads.
    Both,
}

/// Posted when the workflow is done.
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

/// Posted when all is done. A field that the caller's generation does not have is left
/// out; one that it has is null or empty where there is nothing to tell.
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
    /// A failure whose reason is on the completion, or nowhere.
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

    /// The status of this outcome.
    fn status(finished: &Finished) -> &'static str {
        match &finished.outcome {
            Outcome::Unscored(failure) if failure.kind != FailureKind::Withdrawn => "failure",
            Outcome::Scored { .. } | Outcome::Unscored(_) => "success",
        }
    }

    /// What came of the rollout, samples and all.
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

/// What is kept of such a rollout, so that its caller is called back.
#[derive(Serialize, Deserialize)]
struct Facts {
    form: Form,
    gradable: bool,
}

/// What of it nobody may read on disk: an address may have a key in it.
#[derive(Serialize, Deserialize)]
struct SecretFacts<'a> {
    #[serde(borrow)]
    completion_url: Cow<'a, str>,
    #[serde(borrow)]
    grader_url: Option<Cow<'a, str>>,
    #[serde(borrow)]
    key: Option<Cow<'a, str>>,
}

/// Progress of a delivery in the journal: noted after the last attempt to post the completion, and again where the
/// caller reported on the model's calls when it took the last callback.
#[derive(Serialize, Deserialize)]
struct Posted<'a> {
    /// None where the host ended it before.
    taken: Option<bool>,
    graded: bool,
    #[serde(borrow)]
    report: Option<&'a RawValue>,
}

/// What the caller of such a rollout reported last, by what was noted.
pub(super) fn reported(notes: &[Box<RawValue>]) -> Option<Report> {
    let report = notes.iter().rev().find_map(|note| {
        let Posted { report, .. } = serde_json::from_str(note.get()).ok()?;
        report
    });
    report.map(Report::kept)
}

/// Admits a rollout and leaves it to a task of its own.
pub(super) async fn start(
    osmosis: &Osmosis,
    request: CalledBack,
    parent: Option<TraceParent>,
) -> Result<(), ApiError> {
    let CalledBack { asked, form, completion_url, grader_url, controller_key: key } = request;
    let host = osmosis.0.serving.host();
    let asked = asked.forked(&host).await?;
    let ParsedRequest { rollout, mut resources, gradable, label, fork_of: _ } = asked;
    let id = rollout.id.clone();
    let secret = SecretFacts {
        completion_url: completion_url.as_str().into(),
        grader_url: grader_url.as_deref().map(Into::into),
        key: key.as_ref().map(|key| key.expose().into()),
    };
    let facts = Facts { form, gradable };
    resources.continuation = Some(kept::continuation(kept::CALLED_BACK, &facts, Some(&secret)));
    let rollout = host.admit(rollout, resources)?;
    let handle = rollout.handle();
    let log = handle.log().cloned();
    let task = Task {
        known: osmosis.0.statuses.begins(id.clone(), rollout.handle(), CountedBy::Statuses),
        due: osmosis.0.reports.promise(id.as_str()),
        osmosis: osmosis.clone(),
        id,
        form,
        completion_url,
        key,
        gradable: gradable && host.grader().is_some(),
        label,
        trace: rollout.traced_below(parent),
        log: log.clone(),
        progress: Mutex::new(Progress::of(grader_url.is_some(), None)),
        grader_url,
    };
    osmosis.0.tasks.spawn(drive(rollout, Box::new(task)));
    kept::is_safe(log.as_ref()).await.inspect_err(|_| handle.cancel())
}

/// Goes on with a rollout that a process before admitted, or with its callbacks.
pub(super) fn resume(osmosis: &Osmosis, host: &Host, unfinished: UnfinishedRollout) -> Result<(), String> {
    let inner = &osmosis.0;
    let Facts { form, gradable } = kept::facts(&unfinished)?;
    let SecretFacts { completion_url, grader_url, key } = kept::secret(&unfinished)?;
    let (completion_url, grader_url) = (completion_url.into_owned(), grader_url.map(Cow::into_owned));
    let key = key.map(Secret::new);
    let posted: Option<Posted<'_>> =
        unfinished.notes.last().and_then(|note| serde_json::from_str(note.get()).ok());
    let mut progress = Progress::of(grader_url.is_some(), posted.as_ref());
    progress.report = posted.and_then(|posted| posted.report).map(|report| Reported {
        _charge: inner.budget.charge_result(report.get().len()),
        report: Report::kept(report),
    });
    let (id, label) = (unfinished.request.id.clone(), unfinished.request.label.clone());
    let log = unfinished.log().clone();
    let counted = CountedBy::Statuses;
    kept::go_on((osmosis, host), unfinished, counted, Ok, |known, rollout| Task {
        known,
        due: inner.reports.promise(id.as_str()),
        osmosis: osmosis.clone(),
        id,
        form,
        completion_url,
        grader_url,
        key,
        gradable: gradable && host.grader().is_some(),
        label,
        trace: rollout.map(|rollout| rollout.traced_below(None)).unwrap_or_default(),
        log: Some(log),
        progress: progress.into(),
    })
}

/// One rollout that is being run and reported.
struct Task {
    osmosis: Osmosis,
    known: Known,
    id: RolloutId,
    form: Form,
    completion_url: String,
    grader_url: Option<String>,
    key: Option<Secret>,
    gradable: bool,
    label: Option<String>,
    due: Due,
    trace: RolloutTrace,
    /// Where it is kept, if it is.
    log: Option<RolloutLog>,
    progress: Mutex<Progress>,
}

/// How far the delivery is.
struct Progress {
    delivery: Delivery,
    /// What the caller reported in its last answer.
    report: Option<Reported>,
}

impl Progress {
    /// Progress from what an earlier process noted, if it noted anything.
    fn of(wants_result: bool, posted: Option<&Posted<'_>>) -> Self {
        let (taken, graded) = posted.map_or((None, false), |posted| (posted.taken, posted.graded));
        Self { delivery: Delivery::callbacks(wants_result, taken, graded), report: None }
    }

    /// Whether the caller's last callback has what came of the rollout.
    fn has_result(&self, is_scored: bool) -> bool {
        matches!(&self.delivery, Delivery::Callbacks(callbacks) if callbacks.has_result(is_scored))
    }

    /// Notes the progress in a rollout's journal.
    fn note(&self, log: &RolloutLog) {
        let Delivery::Callbacks(callbacks) = &self.delivery else { return };
        let report = self.report.as_ref().map(|reported| reported.report.as_raw());
        log.note(&Posted { taken: callbacks.taken, graded: callbacks.graded, report });
    }
}

/// The source of a message's body.
enum Source<'a> {
    /// The workflow's end.
    Workflow(Result<(), &'a Failure>),
    /// The rollout's outcome.
    Finished(&'a Finished),
    /// A failure of the host.
    Crashed(&'a Failure),
}

/// What a caller said of the model's calls.
struct Reported {
    report: Report,
    _charge: Charge,
}

impl Steps for Task {
    type End = ();

    fn after_workflow<'a>(&'a self, ran: Result<(), &'a Failure>) -> AfterWorkflow<'a> {
        let is_gradable = ran.is_ok() && self.gradable;
        let action = self.progress().delivery.advance(Event::WorkflowEnded { is_gradable });
        match action {
            Action::Continue { graded } => AfterWorkflow::Go(Next::graded(graded)),
            _ => AfterWorkflow::Notify(Box::pin(async move {
                if !kept::may_be_reported(self.log.as_ref()).await {
                    return Next::Finish;
                }
                let next = self.deliver(action, &Source::Workflow(ran)).await;
                if let Some(log) = &self.log {
                    self.progress().note(log);
                }
                Next::graded(next == Action::Continue { graded: true })
            })),
        }
    }

    /// Sends the one terminal callback.
    async fn finished(self: Box<Self>, ended: Ended) {
        if !kept::may_be_reported(self.log.as_ref()).await {
            return;
        }
        self.report_end(ended).await;
        // It was taken, or given up: nobody goes on with it.
        if let Some(log) = &self.log {
            log.end();
        }
    }
}

impl Task {
    async fn report_end(&self, ended: Ended) {
        match ended {
            Ended::Finished(finished) => self.end(&finished).await,
            // Whoever cancels a rollout wants to hear nothing more of it.
            Ended::Cancelled(_) => {
                self.known.ends(Over::word("cancelled"));
                self.due.cancelled();
            }
            Ended::Crashed(crashed) => {
                self.known.ends(Over::word("failure"));
                let action = self.progress().delivery.advance(Event::Crashed);
                self.deliver(action, &Source::Crashed(&crashed)).await;
            }
        }
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the terminal callback. A report of the model's calls is merged into the trajectory: the one that came
    /// with the completion before the callback is sent, a later one in place of it.
    async fn end(&self, finished: &Finished) {
        let (action, report) = {
            let is_scored = matches!(finished.outcome, Outcome::Scored { .. });
            let mut progress = self.progress();
            self.known.ends(self.over(finished, progress.has_result(is_scored)));
            (progress.delivery.advance(Event::Finished { is_scored }), progress.report.take())
        };
        let mut trajectories = Trajectories::of(finished);
        if let Some(report) = report {
            trajectories.merge(&report.report).await;
        }
        self.deliver(action, &Source::Finished(finished)).await;
        let report = {
            let mut progress = self.progress();
            if let (Some(log), Some(_)) = (&self.log, &progress.report) {
                progress.note(log);
            }
            progress.report.take()
        };
        if let Some(report) = report {
            trajectories.merge(&report.report).await;
        }
    }

    /// What this caller's last callback says of the rollout.
    fn over(&self, finished: &Finished, has_result: bool) -> Over {
        let status = match &finished.outcome {
            _ if has_result => Graded::status(finished),
            // The caller wanted no more than the completion.
            Outcome::Unscored(Failure { kind: FailureKind::NotGraded, .. }) if self.grader_url.is_none() => {
                "success"
            }
            _ => "failure",
        };
        Over::of(status, &finished.outcome)
    }

    /// Posts messages for as long as one is due, and returns what comes after them.
    async fn deliver(&self, mut action: Action, source: &Source<'_>) -> Action {
        while let Action::Post(message) = action {
            let posted = self.post_message(message, source).await;
            action = self.apply(&posted);
        }
        action
    }

    /// Applies the answer to a message and returns what comes next.
    fn apply(&self, posted: &Result<Acknowledged, Undelivered>) -> Action {
        let report = self.report(posted);
        let mut progress = self.progress();
        if report.is_some() {
            progress.report = report;
        }
        let event = if posted.is_ok() { Event::Acknowledged } else { Event::Undelivered };
        let action = progress.delivery.advance(event);
        if progress.delivery.is_acknowledged() {
            self.due.kept();
        }
        action
    }

    async fn post_message(&self, message: Message, source: &Source<'_>) -> Result<Acknowledged, Undelivered> {
        let is_last = matches!(message, Message::Result | Message::NoResult);
        let posted = match (message, source, &self.grader_url) {
            (Message::Result, Source::Finished(finished), Some(url)) => {
                self.post(url, &Graded::of(finished, self.form, self.label.as_deref())).await
            }
            (Message::Result | Message::NoResult, _, Some(url)) => {
                self.post(url, &Graded::bare(&self.id, self.form)).await
            }
            (_, source, _) => {
                let completion = match source {
                    Source::Workflow(Ok(())) if message == Message::Completion => {
                        Completion::success(&self.id)
                    }
                    Source::Workflow(Err(failure)) if message == Message::Completion => {
                        Completion::failure(&self.id, &failure.reason, Some(category(failure)))
                    }
                    Source::Crashed(crashed) => {
                        Completion::failure(&self.id, &crashed.reason, Some("agent_error"))
                    }
                    Source::Workflow(_) | Source::Finished(_) => {
                        Completion::failure(&self.id, "Internal server error", None)
                    }
                };
                self.post(&self.completion_url, &completion).await
            }
        };
        posted.inspect_err(|undelivered| match is_last {
            true => tracing::warn!(%undelivered, "grader callback not delivered"),
            false => tracing::warn!(%undelivered, "completion callback not delivered"),
        })
    }

    /// What the caller reports in its answer. It is held until the last callback was taken.
    fn report(&self, posted: &Result<Acknowledged, Undelivered>) -> Option<Reported> {
        let body = &posted.as_ref().ok()?.body;
        let report = Report::read(body)?;
        match self.osmosis.0.budget.charge(Use::Result, body.len()) {
            Ok(charge) => Some(Reported { report, _charge: charge }),
            Err(error) => {
                tracing::warn!(%error, "the caller's report of the model's calls is left out");
                None
            }
        }
    }

    async fn post(&self, url: &str, body: &impl Serialize) -> Result<Acknowledged, Undelivered> {
        // Text, numbers that were checked, and JSON that was parsed before.
        let body = serde_json::to_vec(body).map(Bytes::from).unwrap_or_default();
        let mut span = self.trace.request("callback");
        let posted = self.osmosis.0.callbacks.post(url, self.key.as_ref(), body).await;
        let (status, attempts) = match &posted {
            Ok(acknowledged) => (Some(acknowledged.status), acknowledged.attempts),
            Err(undelivered) => (undelivered.status, undelivered.attempts),
        };
        span.set("http.request.resend_count", i64::from(attempts) - 1);
        if let Some(status) = status {
            span.set("http.response.status_code", i64::from(status));
        }
        posted.inspect_err(|undelivered| span.failed("undelivered", &undelivered.reason))
    }
}
