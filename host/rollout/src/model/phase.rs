//! How far a rollout is, and where it stood when it failed.

use serde::{Deserialize, Serialize};

/// Where a live rollout stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It waits for a slot.
    Queued,
    /// Its workflow runs, or its caller is notified of what came of that.
    Running,
    /// Its grader runs, or what came of all is being written down.
    Grading,
}

impl Phase {
    /// Where a rollout failed that went away in this phase.
    pub(crate) fn stage(self) -> Stage {
        match self {
            Self::Queued => Stage::Queue,
            Self::Running => Stage::Workflow,
            Self::Grading => Stage::Grader,
        }
    }
}

/// Where a rollout stood when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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
