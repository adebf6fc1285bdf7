//! The grader's part of a rollout: its run and its verdicts.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::deadline::Deadline;
use super::{Rollout, brief};
use crate::model::{AgentForm, Failure, FailureKind, Phase, Stage};
use rollout_core::error::Fault;
use rollout_core::telemetry::Step;
use rollout_guest::imports::{Imports, Live, Role, RunContext};
use rollout_guest::instance::{self, GuestVerdict, Permit, SampleToGrade};
use rollout_transcript::SampleRecord;
use rollout_wire::id::SampleId;

impl Rollout {
    /// Runs the grader on the workflow's samples. To be called only if the workflow succeeded. The error is stored for
    /// [`Rollout::finish`], too.
    pub(crate) async fn grade(&mut self) -> Result<(), Failure> {
        // Boxed, as in `finish`: both futures are large, and the driver's would contain them while the workflow waits.
        Box::pin(self.grade_and_store()).await
    }

    async fn grade_and_store(&mut self) -> Result<(), Failure> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        self.enter(Phase::Grading);
        let cancel = self.handle.cancel.clone();
        let mut span = self.record.trace().phase("grader");
        let result = tokio::select! {
            biased;
            () = cancel.cancelled() => Err(Failure::cancelled(Stage::Grader)),
            result = self.run_grader() => result,
        };
        let result = self.unless_evicted(Stage::Grader, result);
        let result = result.and_then(|()| self.check_refused_uses(Stage::Grader));
        let result = result.inspect_err(|failure| span.failed(failure.kind.as_str(), &failure.reason));
        drop(span);
        self.graded = self.host.grader().is_some();
        self.failure = result.clone().err();
        result
    }

    async fn run_grader(&mut self) -> Result<(), Failure> {
        let fail = |kind, reason: String| Failure::new(Stage::Grader, kind, Fault::Plugin, reason);
        let host = self.host.clone();
        let Some(grader) = host.grader() else { return self.without_grader() };
        let samples = self.record.samples();
        if let Some(reason) = self.nothing_to_grade(&samples) {
            return Err(fail(FailureKind::NoSample, reason.to_owned()));
        }
        if self.slot.is_none() {
            // The grader's time starts when it has the slot.
            self.slot = self.host.0.runtime.slots().next().await.map(Permit::counted);
            if self.slot.is_none() {
                return Err(Failure::host(Stage::Grader, "the host is shutting down"));
            }
        }
        let limits = self.host.0.deployment.limits.clone();
        let began = self.record_start(Role::Grader);
        let deadline = Deadline::new(self.request.grader_secs, began, began, limits.grader_time_max);
        let judge = self.host.0.deployment.judge.clone();
        let outside = Live { judge, ..Live::until(Some(deadline.at)) };
        let record = self.record.clone();
        let boundary = self.boundary(Role::Grader).await?;
        let imports = Imports::new(Role::Grader, self.grader_run(), limits.clone(), outside, record);
        let imports = imports.across(boundary.clone());
        let bounds = self.bounds(&deadline)?;
        let to_grade = samples.iter().map(to_grade).collect();
        let label = self.request.label.as_deref();
        let timing = self.host.metrics().time(Step::Grader);
        let ran = instance::run_grader(grader.linked(), imports, bounds, label, to_grade).await;
        let verdicts = match self.end_run(&boundary, ran) {
            Ok(verdicts) => verdicts,
            Err(error) if deadline.ended(&error) => {
                return Err(self.over_time(&deadline, Stage::Grader, Duration::ZERO));
            }
            Err(error) => return Err(self.blame_judge(&error)),
        };
        drop(timing);
        let named = verdicts.iter().flat_map(|verdict| &verdict.metrics);
        let bytes = named.map(|(name, _)| name.len() + size_of::<(String, f64)>()).sum();
        self.charge("grader gave metrics", bytes).map_err(|why| fail(FailureKind::Limit, why))?;
        self.apply(&samples, verdicts).map_err(|reason| fail(FailureKind::Invalid, reason))?;
        let unrated = self
            .record
            .samples()
            .into_iter()
            .find(|sample| !sample.withdrawn && !self.rewards.contains_key(&sample.id));
        match unrated {
            Some(sample) if samples.len() > 1 => {
                Err(fail(FailureKind::NoReward, format!("Sample {} has no reward after grading", sample.id)))
            }
            Some(_) => Err(fail(FailureKind::NoReward, "Sample has no reward after grading".to_owned())),
            None => Ok(()),
        }
    }

    /// Returns the outcome of grading without a grader.
    fn without_grader(&self) -> Result<(), Failure> {
        let (kind, fault, reason) = match self.host.form() {
            AgentForm::AgentLoop | AgentForm::Environment if self.own_reward.is_some() => return Ok(()),
            AgentForm::Environment => (
                FailureKind::NoReward,
                Fault::Plugin,
                "the environment gave the episode no reward, and this host has no grader",
            ),
            AgentForm::AgentLoop => (
                FailureKind::NoReward,
                Fault::Plugin,
                "the agent loop gave itself no reward, and this host has no grader",
            ),
            AgentForm::Workflow => (FailureKind::NotGraded, Fault::Caller, "this host has no grader"),
        };
        Err(Failure::new(Stage::Grader, kind, fault, reason))
    }

    /// Returns the reason why there is nothing to grade, if there is nothing.
    fn nothing_to_grade(&self, samples: &[SampleRecord]) -> Option<&'static str> {
        if samples.is_empty() {
            return Some(
                "No sample to grade. The workflow must return its messages or open a sample before it is graded.",
            );
        }
        let none_asked = self.request.samples_must_ask && self.record.samples_with_request().is_empty();
        none_asked.then_some(
            "No sample to grade. This caller takes only samples that asked the model, and none did.",
        )
    }

    /// Returns the grader's context of the rollout: the workflow's, with the ground truth and, for a separate
    /// component, its own configuration.
    pub(super) fn grader_run(&self) -> Arc<RunContext> {
        let config = self.host.0.deployment.config_of_grader().cloned();
        let metadata = self.request.metadata.as_ref().map(|metadata| metadata.whole().clone());
        Arc::new(RunContext { config, metadata, ..(*self.run).clone() })
    }

    /// Validates all verdicts, then applies them. An invalid one prevents all.
    fn apply(&mut self, samples: &[SampleRecord], verdicts: Vec<GuestVerdict>) -> Result<(), String> {
        let mut checked: HashMap<&SampleId, &GuestVerdict> = HashMap::new();
        for verdict in &verdicts {
            let name = &verdict.sample_id;
            let Some(sample) = samples.iter().find(|sample| sample.id.as_str() == name) else {
                return Err(format!("grader rated a sample '{}' that it was not given", brief(name)));
            };
            if checked.insert(&sample.id, verdict).is_some() {
                return Err(format!("grader gave two verdicts of sample '{name}'"));
            }
            if let Some(reward) = verdict.reward.filter(|reward| !reward.is_finite()) {
                return Err(format!(
                    "grader gave sample '{name}' the reward {reward}, which is not a finite number"
                ));
            }
            if let Some((metric, value)) = verdict.metrics.iter().find(|(_, value)| !value.is_finite()) {
                return Err(format!(
                    "grader gave metric '{}' the value {value}, which is not a finite number",
                    brief(metric)
                ));
            }
        }
        for (id, verdict) in checked {
            if let Some(reward) = verdict.reward {
                self.rewards.insert(id.clone(), reward);
            }
            self.record.with_samples(|kept| {
                if let Some(sample) = kept.iter_mut().find(|sample| sample.id == *id) {
                    sample.metrics.extend(verdict.metrics.iter().cloned());
                    sample.withdrawn |= verdict.withdraw;
                }
            });
        }
        Ok(())
    }
}

pub(super) fn to_grade(sample: &SampleRecord) -> SampleToGrade {
    SampleToGrade {
        id: sample.id.as_str().to_owned(),
        messages: sample.messages.iter().map(str::to_owned).collect(),
        metrics: sample.metrics.iter().map(|(name, value)| (name.clone(), *value)).collect(),
    }
}
