//! How a rollout ends.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::agent::LoopReport;
use super::failure::Failure;
use super::limits::{LimitUse, by_name};
use super::trajectory::TrajectoryFile;
use crate::id::RolloutId;
use crate::imports::{RefusedUses, RolloutUsage};
use crate::moments::Moments;
use crate::wire::data::{exact, exact_option};
use rollout_transcript::SampleRecord;

/// The one outcome of an accepted rollout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It has a reward.
    Scored {
        /// Finite: the mean over the samples that count, or the one sample's own.
        #[serde(with = "exact")]
        reward: f64,
    },
    /// It has none, and none is made up.
    Unscored(Failure),
}

/// A sample with what the grader said of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FinishedSample {
    /// What the workflow registered, with the grader's metrics and removal.
    pub record: SampleRecord,
    /// The reward; a withdrawn sample may have one, for the trajectory only.
    #[serde(with = "exact_option")]
    pub reward: Option<f64>,
    /// Whether the model was asked for it at least once.
    pub asked: bool,
    /// Whether it replied at least once. A sample without a reply is nothing that it did.
    #[serde(default = "yes")]
    pub replied: bool,
}

/// Of a rollout that an older host wrote down it is not known.
fn yes() -> bool {
    true
}

impl FinishedSample {
    /// Whether the model has no word in it: nobody asked it, it did not reply, or its reply was dropped. What
    /// such a sample earns says nothing of the model.
    pub fn lacks_reply(&self) -> bool {
        #[derive(Deserialize)]
        struct Said<'a> {
            #[serde(borrow)]
            role: std::borrow::Cow<'a, str>,
        }
        let is_models = |message: &str| {
            serde_json::from_str::<Said<'_>>(message).is_ok_and(|said| said.role == "assistant")
        };
        !self.replied || !self.record.messages.iter().any(is_models)
    }

    /// The reward that leaves the host: none for a withdrawn sample.
    pub fn public_reward(&self) -> Option<f64> {
        self.reward.filter(|_| !self.record.withdrawn)
    }
}

/// A rollout that is over.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Finished {
    /// Its name.
    pub id: RolloutId,
    /// How it ended.
    pub outcome: Outcome,
    /// What the workflow registered, graded as far as the grader came.
    pub samples: Vec<FinishedSample>,
    /// Whether the workflow returned its messages itself.
    pub returned_messages: bool,
    /// What an agent loop says of its run, if it came to an end.
    pub loop_report: Option<LoopReport>,
    /// What it used.
    pub usage: RolloutUsage,
    /// What its guests' own runtimes refused, by kind. A guest may have swallowed it, and then its reward
    /// may mean nothing.
    #[serde(default, skip_serializing_if = "RefusedUses::is_empty")]
    pub refused_uses: RefusedUses,
    /// Every limit it ran under, with what it used of it and whether it was hit.
    #[serde(with = "by_name")]
    pub limits: Vec<LimitUse>,
    /// From admission to here.
    pub duration: Duration,
    /// Of that, in the queue.
    pub queued: Duration,
    /// The trajectories that were written: one, or one a sample where there are several.
    pub trajectories: Vec<TrajectoryFile>,
}

impl Finished {
    /// Where its first trajectory was written, if it was.
    pub fn trajectory(&self) -> Option<&Path> {
        self.trajectories.first().map(TrajectoryFile::path)
    }

    /// The metrics of all samples that count; of several samples, the mean.
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
    use crate::error::Fault;
    use crate::id::SampleId;
    use crate::limits::Amount;
    use crate::rollout::model::{FailureKind, Layout, Stage, StepOffsets};
    use crate::wire;

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
            samples: vec![FinishedSample { record, reward: Some(1.0 / 3.0), asked: true, replied: true }],
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
                    asked: Some(9),
                },
                LimitUse { name: "a-max".into(), max: Amount::Count(1), used: None, hits: 0, asked: None },
            ],
            duration: Duration::from_millis(12),
            queued: Duration::ZERO,
            trajectories: vec![TrajectoryFile::new("/x/trajectory.json".into(), None, layout)],
        }
    }

    #[test]
    fn what_came_of_a_rollout_is_read_as_it_was_written() {
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
