//! How a rollout ends.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use super::limits::LimitUse;
use super::trajectory::TrajectoryFile;
use crate::error::Fault;
use crate::id::RolloutId;
use crate::imports::{SampleRecord, Spent};
use crate::instance::RunError;
use crate::moments::Moments;
use crate::text;

use super::run::LoopReport;

/// How much of a reason is kept, in bytes. A guest may write as much as it has memory.
const REASON_BYTES_MAX: usize = 16 << 10;

/// Where a rollout stood when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Waiting for a slot.
    Queue,
    /// In the agent loop.
    Workflow,
    /// In the reward function, or between the two.
    Grader,
}

impl Stage {
    /// The word that reports carry.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Workflow => "workflow",
            Self::Grader => "grader",
        }
    }
}

/// What sort of failure it was. One for each different reaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FailureKind {
    /// A deadline passed: the rollout's, or one that the guest set itself.
    Timeout,
    /// The guest returned an error.
    Error,
    /// The guest was given, or gave, something that is not what it has to be.
    Invalid,
    /// The guest trapped.
    Trap,
    /// The guest called exit.
    Exit,
    /// The guest needed more memory than it may have.
    Memory,
    /// The guest used more CPU time than it may.
    Cpu,
    /// The guest reached another limit that ends it.
    Limit,
    /// The guest broke the contract.
    Contract,
    /// The model's server failed the workflow.
    Model,
    /// There was no judge, or its server failed the grader.
    Judge,
    /// The workflow registered no sample.
    NoSample,
    /// The grader left a sample without a reward.
    NoReward,
    /// Every sample was withdrawn.
    Withdrawn,
    /// Nobody asked for a reward, or there is nothing to make one with.
    NotGraded,
    /// The caller or the operator ended it.
    Cancelled,
    /// The host failed.
    Host,
}

impl FailureKind {
    /// The word that reports carry.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Error => "error",
            Self::Invalid => "invalid",
            Self::Trap => "trap",
            Self::Exit => "exit",
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::Limit => "limit",
            Self::Contract => "contract",
            Self::Model => "model",
            Self::Judge => "judge",
            Self::NoSample => "no_sample",
            Self::NoReward => "no_reward",
            Self::Withdrawn => "withdrawn",
            Self::NotGraded => "not_graded",
            Self::Cancelled => "cancelled",
            Self::Host => "host",
        }
    }
}

/// Why a rollout has no reward.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Where it stood.
    pub stage: Stage,
    /// What sort of failure.
    pub kind: FailureKind,
    /// Whose move it is.
    pub fault: Fault,
    /// What happened, for a person.
    pub reason: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl Failure {
    pub(super) fn new(stage: Stage, kind: FailureKind, fault: Fault, reason: impl Into<String>) -> Self {
        let reason: String = reason.into();
        let reason = text::printable(&text::both_ends(&reason, REASON_BYTES_MAX));
        Self { stage, kind, fault, reason }
    }

    pub(super) fn cancelled(stage: Stage) -> Self {
        Self::new(stage, FailureKind::Cancelled, Fault::Caller, "rollout cancelled")
    }

    /// A failure of the host itself, for whoever drives a rollout and sees it die.
    pub fn host(stage: Stage, reason: impl Into<String>) -> Self {
        Self::new(stage, FailureKind::Host, Fault::Host, reason)
    }

    /// A run's error. Deadlines are told apart before, because only the rollout knows
    /// whose deadline it was.
    pub(super) fn of_run(stage: Stage, error: &RunError) -> Self {
        let kind = match error {
            RunError::Deadline | RunError::TimedOut(_) => FailureKind::Timeout,
            RunError::Failed(_) => FailureKind::Error,
            RunError::Invalid(_) => FailureKind::Invalid,
            RunError::Memory { .. } => FailureKind::Memory,
            RunError::Cpu(_) => FailureKind::Cpu,
            RunError::Limit(_) => FailureKind::Limit,
            RunError::Trapped { .. } => FailureKind::Trap,
            RunError::Exited(_) => FailureKind::Exit,
            RunError::Contract(_) => FailureKind::Contract,
            RunError::Missing(_) | RunError::Host(_) => FailureKind::Host,
        };
        let reason = match error {
            // A guest's own words stand for themselves.
            RunError::Failed(_) | RunError::Invalid(_) | RunError::TimedOut(_) => error.to_string(),
            _ => format!("{} {error}", stage.as_str()),
        };
        Self::new(stage, kind, error.fault(), reason)
    }
}

/// The one outcome of an accepted rollout.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It has a reward.
    Scored {
        /// Finite: the mean over the samples that count, or the one sample's own.
        reward: f64,
    },
    /// It has none, and none is made up.
    Unscored(Failure),
}

/// A sample with what the grader said of it.
#[derive(Clone, Debug)]
pub struct FinishedSample {
    /// What the workflow registered, with the grader's metrics and removal.
    pub record: SampleRecord,
    /// The reward; a withdrawn sample may have one, for the trajectory only.
    pub reward: Option<f64>,
    /// Whether the model was asked for it at least once.
    pub asked: bool,
}

impl FinishedSample {
    /// The reward that leaves the host: none for a withdrawn sample.
    pub fn public_reward(&self) -> Option<f64> {
        self.reward.filter(|_| !self.record.withdrawn)
    }
}

/// A rollout that is over.
#[derive(Clone, Debug)]
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
    pub spent: Spent,
    /// Every limit it ran under, with what it used of it and whether it fired.
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
