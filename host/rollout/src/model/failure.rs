//! Why a rollout has no reward.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::phase::Stage;
use rollout_core::error::Fault;
use rollout_guest::instance::RunError;
use rollout_wire::text;

/// How much of a reason is kept, in bytes. A guest may write as much as it has memory.
const REASON_BYTES_MAX: usize = 16 << 10;

/// What sort of failure it was. One for each different reaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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
    /// It was begun again after its process had died, and did not do what it did before.
    Nondeterministic,
    /// It was to go on after its process had died, and could not.
    Resume,
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
            Self::Nondeterministic => "nondeterministic",
            Self::Resume => "resume",
            Self::Host => "host",
        }
    }
}

/// Why a rollout has no reward.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    pub(crate) fn new(stage: Stage, kind: FailureKind, fault: Fault, reason: impl Into<String>) -> Self {
        let reason: String = reason.into();
        let reason = text::printable(&text::both_ends(&reason, REASON_BYTES_MAX));
        Self { stage, kind, fault, reason }
    }

    pub(crate) fn cancelled(stage: Stage) -> Self {
        Self::new(stage, FailureKind::Cancelled, Fault::Caller, "rollout cancelled")
    }

    /// A failure of the host itself, for a rollout's driver and sees it die.
    pub(crate) fn host(stage: Stage, reason: impl Into<String>) -> Self {
        Self::new(stage, FailureKind::Host, Fault::Host, reason)
    }

    /// A run's error. Deadlines are told apart before, because only the rollout knows
    /// whose deadline it was.
    pub(crate) fn of_run(stage: Stage, error: &RunError) -> Self {
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
            RunError::Diverged(_) => FailureKind::Nondeterministic,
            RunError::Missing(_) | RunError::Host(_) | RunError::PastOver => FailureKind::Host,
        };
        let reason = match error {
            // A guest's own words stand for themselves.
            RunError::Failed(_) | RunError::Invalid(_) | RunError::TimedOut(_) => error.to_string(),
            _ => format!("{} {error}", stage.as_str()),
        };
        Self::new(stage, kind, error.fault(), reason)
    }
}
