//! Outcomes of rollouts.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::agent::LoopReport;
use super::failure::Failure;
use super::group::GroupOutcome;
use super::limit_use::{LimitUse, by_name};
use super::trajectory::TrajectoryFile;
use rollout_core::moments::Moments;
use rollout_guest::imports::{RefusedUses, RolloutUsage};
use rollout_transcript::SampleRecord;
use rollout_wire::data::{exact, exact_option};
use rollout_wire::id::RolloutId;

/// The outcome of an accepted rollout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The rollout has a reward.
    Scored {
        /// The mean of the samples that count, or the reward of the only one. Always finite.
        #[serde(with = "exact")]
        reward: f64,
    },
    /// The rollout has no reward, and none is invented.
    Unscored(Failure),
}

/// A sample with the grader's verdict.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FinishedSample {
    /// The sample as the workflow registered it, with the grader's metrics and withdrawal.
    pub record: SampleRecord,
    /// The reward. A withdrawn sample may have one, for the trajectory only.
    #[serde(with = "exact_option")]
    pub reward: Option<f64>,
    /// Whether the model was called for the sample at least once.
    #[serde(rename = "asked")]
    pub has_request: bool,
    /// Whether the model replied at least once. A sample without a reply shows nothing of the model's behaviour.
    #[serde(default = "default_true")]
    pub replied: bool,
}

/// The default for rollouts that an older host stored.
fn default_true() -> bool {
    true
}

impl FinishedSample {
    /// Returns whether the sample has no message of the model: it was not called, it did not reply, or its reply was
    /// dropped. The reward of such a sample says nothing about the model.
    pub fn lacks_reply(&self) -> bool {
        #[derive(Deserialize)]
        struct RoleOnly<'a> {
            #[serde(borrow)]
            role: std::borrow::Cow<'a, str>,
        }
        let is_models = |text: &str| {
            serde_json::from_str::<RoleOnly<'_>>(text).is_ok_and(|message| message.role == "assistant")
        };
        !self.replied || !self.record.messages.iter().any(is_models)
    }

    /// Returns the reward that is reported, which is `None` for a withdrawn sample.
    pub fn public_reward(&self) -> Option<f64> {
        self.reward.filter(|_| !self.record.withdrawn)
    }
}

/// A rollout that has ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Finished {
    /// The id.
    pub id: RolloutId,
    /// The outcome.
    pub outcome: Outcome,
    /// The samples of the workflow, as far as the grader graded them.
    pub samples: Vec<FinishedSample>,
    /// Whether the workflow returned its messages.
    pub returned_messages: bool,
    /// The report of an agent loop that ended.
    pub loop_report: Option<LoopReport>,
    /// The resources that it used.
    pub usage: RolloutUsage,
    /// Uses that its guests' language runtimes refused, by kind. A guest may have swallowed a refusal, and then its
    /// reward may be meaningless.
    #[serde(default, skip_serializing_if = "RefusedUses::is_empty")]
    pub refused_uses: RefusedUses,
    /// Every limit, with its usage and hits.
    #[serde(with = "by_name")]
    pub limits: Vec<LimitUse>,
    /// Time from admission to the end.
    pub duration: Duration,
    /// Time in the queue.
    pub queued: Duration,
    /// The trajectories that were written: one, or one for each of several samples.
    pub trajectories: Vec<TrajectoryFile>,
    /// The rollout's part of its group, if it is a member of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupOutcome>,
}

impl Finished {
    /// Returns the path of the first trajectory, if there is one.
    pub fn trajectory(&self) -> Option<&Path> {
        self.trajectories.first().map(TrajectoryFile::path)
    }

    /// Returns the metrics of the samples that count, averaged over them.
    pub fn metrics(&self) -> BTreeMap<String, f64> {
        let mut metrics: BTreeMap<String, Moments> = BTreeMap::new();
        for sample in self.samples.iter().filter(|sample| !sample.record.withdrawn) {
            for (name, value) in &sample.record.metrics {
                metrics.entry(name.clone()).or_default().add(*value);
            }
        }
        metrics.into_iter().filter_map(|(name, values)| Some((name, values.mean()?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::{FailedMember, GroupSeat};
    use crate::model::{FailureKind, Layout, Stage, StepOffsets};
    use rollout_core::error::Fault;
    use rollout_core::limits::Amount;
    use rollout_wire as wire;
    use rollout_wire::id::SampleId;

    fn finished(outcome: Outcome) -> Finished {
        let field = wire::value(r#"{"z": 1.10, "a":null}"#).unwrap().to_owned();
        let record = SampleRecord {
            id: SampleId::parse("main").unwrap(),
            messages: [wire::object(r#"{"role":"user",  "content":"\u00e9"}"#).unwrap()]
                .into_iter()
                .collect(),
            metrics: BTreeMap::from([("m".to_owned(), 0.1 + 0.2)]),
            fields: Arc::new(BTreeMap::from([("f".to_owned(), field)])),
            withdrawn: false,
        };
        let layout = Layout {
            model_name: 1..2,
            agent_steps: vec![StepOffsets { at: 3, metrics_end: 4, end: 5 }],
            final_metrics: 6..7,
            total_steps: 2,
            members: vec![("rollout_id".into(), 8..9)],
        };
        Finished {
            id: RolloutId::parse("r 1").unwrap(),
            outcome,
            samples: vec![FinishedSample {
                record,
                reward: Some(1.0 / 3.0),
                has_request: true,
                replied: true,
            }],
            returned_messages: true,
            loop_report: Some(LoopReport {
                finish_reason: "stop".to_owned(),
                tool_calls: 2,
                tool_time: Duration::from_nanos(1_000_000_007),
            }),
            usage: RolloutUsage {
                chat_calls: 3,
                guest_cpu: Duration::from_nanos(7),
                ..RolloutUsage::default()
            },
            refused_uses: RefusedUses::default(),
            limits: vec![
                LimitUse {
                    name: "z-max".into(),
                    max: Amount::Secs(60.0),
                    used: Some(Amount::Count(2)),
                    hits: 1,
                    requested_max: Some(9),
                },
                LimitUse {
                    name: "a-max".into(),
                    max: Amount::Count(1),
                    used: None,
                    hits: 0,
                    requested_max: None,
                },
            ],
            duration: Duration::from_millis(12),
            queued: Duration::ZERO,
            trajectories: vec![TrajectoryFile::new("/x/trajectory.json".into(), None, layout)],
            group: Some(GroupOutcome {
                seat: GroupSeat { id: RolloutId::parse("g 1").unwrap(), size: 3, member: 2, join_secs: 600 },
                graded: true,
                own_reward: Some(0.1 + 0.2),
                failed: vec![FailedMember { member: 0, rollout_id: None, reason: "never began".to_owned() }],
            }),
        }
    }

    #[test]
    fn a_finished_rollout_is_stored_without_loss() {
        let failure =
            Failure::new(Stage::Grader, FailureKind::NoReward, Fault::Plugin, "Sample has no reward");
        for outcome in [Outcome::Scored { reward: 0.1 + 0.2 }, Outcome::Unscored(failure)] {
            let written = finished(outcome);
            let text = serde_json::to_string(&written).unwrap();

            let read: Finished = serde_json::from_str(&text).unwrap();

            assert_eq!(serde_json::to_string(&read).unwrap(), text);
            assert_eq!((&read.outcome, &read.id), (&written.outcome, &written.id));
            assert_eq!((&read.limits, read.usage), (&written.limits, written.usage));
            assert_eq!(read.metrics(), written.metrics());
            assert_eq!(read.samples[0].record.messages, written.samples[0].record.messages);
            assert_eq!(read.trajectories[0].agent_steps(), 1);
        }
    }
}
