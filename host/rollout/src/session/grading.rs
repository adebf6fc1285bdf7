//! Rates episodes that have ended.

use std::sync::Arc;

use tokio::time::Instant;

use super::call::AnswerLine;
use super::{History, Rated, Session, SessionError, run_error_text};
use crate::episode::Observed;
use rollout_guest::imports::{Imports, Live, Record, Role};
use rollout_guest::instance::{self, SampleToGrade};

impl Session {
    /// Returns the result of a reset or a step, with the grader's reward if the episode has ended and there is a grader. The
    /// reward of a call that is repeated is the stored one.
    pub(super) async fn rated(
        &mut self,
        observed: Observed,
        stored: Option<&AnswerLine>,
    ) -> Result<Observed, SessionError> {
        let Some(Rated { label, history }) = self.episode.as_mut().and_then(|episode| match observed.done {
            true => episode.rated.take(),
            false => None,
        }) else {
            // The grader rates the whole episode, so the steps before its end have no reward.
            let reward = observed.reward.filter(|_| self.host.grader().is_none());
            return Ok(Observed { reward, ..observed });
        };
        match stored {
            Some(AnswerLine::Observed { reward, .. }) => Ok(Observed { reward: *reward, ..observed }),
            // The grader failed.
            Some(stored) => stored.answer().and_then(super::observed),
            None => {
                let graded = self.grade(label, history).await.inspect_err(|_| self.episode = None);
                Ok(Observed { reward: Some(graded?), ..observed })
            }
        }
    }

    /// Runs the grader on the episode.
    async fn grade(&mut self, label: Option<String>, history: History) -> Result<f64, SessionError> {
        let Some(grader) = self.host.grader() else { return Err(failed("is missing")) };
        let deployment = &self.host.0.deployment;
        let limits = deployment.limits.clone();
        let deadline = Instant::now() + limits.grader_time_max.min(self.limits.call_time_max);
        let outside = Live { judge: deployment.judge.clone(), ..Live::until(Some(deadline)) };
        let record = Arc::new(Record::without_rollout(self.holder.clone()));
        let run = self.context(deployment.config_of_grader().cloned());
        let imports = Imports::new(Role::Grader, run, limits, outside, record.clone());
        let id = self.id.as_str().to_owned();
        let sample = SampleToGrade { id: id.clone(), messages: history.into_messages(), metrics: Vec::new() };
        let bounds = self.bounds(Some(deadline));
        let grading = instance::run_grader(grader.linked(), imports, bounds, label.as_deref(), vec![sample]);
        let verdicts = tokio::select! {
            biased;
            () = self.handle.cancel.cancelled() => {
                return Err(SessionError::SessionOver(self.end_reason()));
            }
            verdicts = grading => verdicts,
        };
        let verdicts = verdicts.map_err(|error| {
            let reason = format!("the grader {}", run_error_text(&record, &error));
            SessionError::EpisodeOver { reason, fault: error.fault() }
        })?;
        let [verdict] = &verdicts[..] else {
            return Err(failed(format!("gave {} verdicts on one episode", verdicts.len())));
        };
        if verdict.sample_id != id {
            return Err(failed("rated a sample that it was not given"));
        }
        match verdict.reward {
            Some(reward) if reward.is_finite() => Ok(reward),
            Some(reward) => Err(failed(format!("gave the reward {reward}, which is not a finite number"))),
            None => Err(failed("gave the episode no reward")),
        }
    }
}

/// Creates the error of a grader that has rated nothing.
fn failed(reason: impl std::fmt::Display) -> SessionError {
    SessionError::of_plugin(format!("the grader {reason}"))
}
