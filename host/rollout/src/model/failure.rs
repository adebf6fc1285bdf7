//! Reasons why a rollout has no reward.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::phase::Stage;
use rollout_core::error::Fault;
use rollout_guest::instance::RunError;
use rollout_wire::text;

/// Maximum size of a stored reason, in bytes. A guest's text is limited by its memory only.
const REASON_BYTES_MAX: usize = 16 << 10;

/// Kind of a failure, one for each different reaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FailureKind {
    /// A deadline passed: the rollout's, or one of the guest.
    Timeout,
    /// The guest returned an error.
    Error,
    /// The input or the result of the guest is invalid.
    Invalid,
    /// The guest trapped.
    Trap,
    /// The guest called exit.
    Exit,
    /// The guest needed more memory than allowed.
    Memory,
    /// The guest used more CPU time than allowed.
    Cpu,
    /// The guest hit another limit that ends it.
    Limit,
    /// The guest violated the contract.
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
    /// No reward was requested, or there is no grader.
    NotGraded,
    /// The caller or the operator cancelled it.
    Cancelled,
    /// It was rerun after a crash of its process and diverged from its recorded history.
    Nondeterministic,
    /// It could not be resumed after a crash of its process.
    Resume,
    /// The host failed.
    Host,
}

impl FailureKind {
    /// Returns the word for reports.
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

/// Failure of a rollout, which has no reward.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The stage at which it failed.
    pub stage: Stage,
    /// The kind of failure.
    pub kind: FailureKind,
    /// The party that must act.
    pub fault: Fault,
    /// A description for people.
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

    /// Creates a failure of the host itself, for drivers.
    pub(crate) fn host(stage: Stage, reason: impl Into<String>) -> Self {
        Self::new(stage, FailureKind::Host, Fault::Host, reason)
    }

    /// Converts a run's error. Deadlines are converted before, because only the rollout knows which one passed.
    pub(crate) fn from_run_error(stage: Stage, error: &RunError) -> Self {
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
            // A guest's own message stands alone.
            RunError::Failed(_) | RunError::Invalid(_) | RunError::TimedOut(_) => error.to_string(),
            _ => format!("{} {error}", stage.as_str()),
        };
        Self::new(stage, kind, error.fault(), reason)
    }
}
