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

    /// What came of the rollout, samples and all.
    fn of(finished: &'a Finished, form: Form, label: Option<&'a str>) -> Self {
        let failure = match &finished.outcome {
            Outcome::Scored { .. } => None,
            Outcome::Unscored(failure) if failure.kind == FailureKind::Withdrawn => None,
            Outcome::Unscored(failure) => Some(failure),
        };
        Self {
            status: if failure.is_none() { "success" } else { "failure" },
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

/// What happened to it since: the completion was posted, to the last try; and once more where its
/// caller reported something when it took the last callback.
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
        grader_url,
        key,
        gradable: gradable && host.grader().is_some(),
        label,
        trace: rollout.traced_below(parent),
        log: log.clone(),
        completed: Mutex::default(),
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
    let completed = posted.map(|Posted { taken, graded, report }| Completed {
        taken,
        graded,
        report: report.map(|report| Reported {
            _charge: inner.budget.charge_result(report.get().len()),
            report: Report::kept(report),
        }),
    });
    let (id, label) = (unfinished.request.id.clone(), unfinished.request.label.clone());
    let log = unfinished.log().clone();
    let task = |known, trace| {
        Box::new(Task {
            known,
            due: inner.reports.promise(id.as_str()),
            osmosis: osmosis.clone(),
            id: id.clone(),
            form,
            completion_url,
            grader_url,
            key,
            gradable: gradable && host.grader().is_some(),
            label,
            trace,
            log: Some(log),
            completed: completed.unwrap_or_default().into(),
        })
    };
    match unfinished.is_over {
        true => {
            let (osmosis, log) = (osmosis.clone(), unfinished.log().clone());
            let task = task(inner.statuses.ended(id.clone(), CountedBy::Statuses), RolloutTrace::default());
            inner.tasks.spawn(async move {
                if let Some((ended, _held)) = kept::outcome(&osmosis, &task.id, &log).await {
                    task.finished(ended).await;
                }
            });
        }
        false => {
            let rollout = kept::rollout(host, unfinished, |model| model)?;
            let task = task(
                inner.statuses.begins(id.clone(), rollout.handle(), CountedBy::Statuses),
                rollout.traced_below(None),
            );
            inner.tasks.spawn(drive(rollout, task));
        }
    }
    Ok(())
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
    completed: Mutex<Completed>,
}

/// What came of the completion.
#[derive(Default)]
struct Completed {
    /// Whether the caller took it, once that is known. One that did not is sent no more than
    /// that the rollout failed.
    taken: Option<bool>,
    /// Whether the grader was to run then.
    graded: bool,
    /// What the caller said of the model's calls in its answer.
    report: Option<Reported>,
}

/// What a caller said of the model's calls.
struct Reported {
    report: Report,
    _charge: Charge,
}

impl Steps for Task {
    type End = ();

    fn after_workflow<'a>(&'a self, ran: Result<(), &'a Failure>) -> AfterWorkflow<'a> {
        // A process before posted it, and knows what came of that.
        if let Completed { taken: Some(_), graded, .. } = *self.completed() {
            return AfterWorkflow::Go(Next::graded(graded));
        }
        AfterWorkflow::Notify(Box::pin(async move {
            if !kept::may_be_reported(self.log.as_ref()).await {
                return Next::Finish;
            }
            let completion = match ran {
                Err(failure) => Completion::failure(&self.id, &failure.reason, Some(category(failure))),
                Ok(()) => Completion::success(&self.id),
            };
            let posted = self.post_outcome(&completion).await;
            let taken = posted.is_ok();
            let graded = taken && ran.is_ok() && self.grader_url.is_some() && self.gradable;
            let report = posted.unwrap_or_else(|report| report);
            if let Some(log) = &self.log {
                let report = report.as_ref().map(|reported| reported.report.as_raw());
                log.note(&Posted { taken: Some(taken), graded, report });
            }
            *self.completed() = Completed { taken: Some(taken), graded, report };
            Next::graded(graded)
        }))
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
                let failure = Completion::failure(&self.id, &crashed.reason, Some("agent_error"));
                self.post_completion(&failure).await.ok();
                self.post_graded(None).await;
            }
        }
    }

    fn completed(&self) -> MutexGuard<'_, Completed> {
        self.completed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the terminal callback. What the caller reports of the model's calls goes into the
    /// trajectory: what it reported with the completion before this, what it reports now instead.
    async fn end(&self, finished: &Finished) {
        let Completed { taken, graded, report } = std::mem::take(&mut *self.completed());
        let was_graded = graded;
        let says_all = match taken {
            // The host ended it meanwhile, of which its caller is still to be notified.
            None => true,
            Some(false) => false,
            // An agent loop may have rated itself.
            Some(true) => graded || matches!(finished.outcome, Outcome::Scored { .. }),
        };
        let graded = says_all.then(|| Graded::of(finished, self.form, self.label.as_deref()));
        self.known.ends(self.over(finished, graded.as_ref()));
        let mut trajectories = Trajectories::of(finished);
        if let Some(report) = &report {
            trajectories.merge(&report.report).await;
        }
        if let Some(Reported { report, _charge }) = self.post_graded(graded).await {
            if let Some(log) = &self.log {
                log.note(&Posted { taken, graded: was_graded, report: Some(report.as_raw()) });
            }
            trajectories.merge(&report).await;
        }
    }

    /// What this caller's last callback says of the rollout.
    fn over(&self, finished: &Finished, graded: Option<&Graded<'_>>) -> Over {
        let status = match (graded, &finished.outcome) {
            (Some(graded), _) => graded.status,
            // Nobody asked for more than the completion.
            (None, Outcome::Unscored(Failure { kind: FailureKind::NotGraded, .. }))
                if self.grader_url.is_none() =>
            {
                "success"
            }
            (None, _) => "failure",
        };
        Over::of(status, &finished.outcome)
    }

    /// Posts the completion, and one that says that it was not taken where it was not: that is
    /// the error. Either is with what the caller reports in its answer.
    async fn post_outcome(&self, completion: &Completion<'_>) -> Result<Option<Reported>, Option<Reported>> {
        let posted = self.post_completion(completion).await;
        if posted.is_ok() {
            return Ok(self.report(&posted));
        }
        let failure = Completion::failure(&self.id, "Internal server error", None);
        Err(self.report(&self.post_completion(&failure).await))
    }

    async fn post_completion(&self, completion: &Completion<'_>) -> Result<Acknowledged, Undelivered> {
        let posted = self.post(&self.completion_url, completion).await;
        match &posted {
            // It is the last word where no reward is wanted.
            Ok(_) if self.grader_url.is_none() => self.due.kept(),
            Ok(_) => {}
            Err(undelivered) => tracing::warn!(%undelivered, "completion callback not delivered"),
        }
        posted
    }

    /// Posts the terminal callback, if the caller wants one: this, or that there is nothing.
    /// Gives what the caller reports in its answer.
    async fn post_graded(&self, graded: Option<Graded<'_>>) -> Option<Reported> {
        let url = self.grader_url.as_ref()?;
        let bare = Graded::bare(&self.id, self.form);
        let is_bare = graded.is_none();
        let posted = self.post(url, graded.as_ref().unwrap_or(&bare)).await;
        let Err(undelivered) = posted else {
            self.due.kept();
            return self.report(&posted);
        };
        tracing::warn!(%undelivered, "grader callback not delivered");
        if is_bare {
            return None;
        }
        // A caller that refused the result may still take the word that there is none.
        let posted = self.post(url, &bare).await;
        if posted.is_ok() {
            self.due.kept();
        }
        self.report(&posted)
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
