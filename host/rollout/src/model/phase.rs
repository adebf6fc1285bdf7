//! Phases of rollouts, and the stages at which they fail.

use serde::{Deserialize, Serialize};

/// Phase of a live rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The rollout waits for a slot.
    Queued,
    /// The workflow runs, or the caller is notified of its end.
    Running,
    /// The grader runs, or the results are being written.
    Grading,
}

impl Phase {
    /// Returns the stage of a rollout that failed in this phase.
    pub(crate) fn stage(self) -> Stage {
        match self {
            Self::Queued => Stage::Queue,
            Self::Running => Stage::Workflow,
            Self::Grading => Stage::Grader,
        }
    }
}

/// Stage at which a rollout failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Waiting for a slot.
    Queue,
    /// Running the agent.
    Workflow,
    /// Running the grader, or waiting between workflow and grader.
    Grader,
}

impl Stage {
    /// Returns the word for reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Workflow => "workflow",
            Self::Grader => "grader",
        }
    }
}
