//! One request, from admission to its one outcome.
//!
//! [`Host::admit`] takes a [`RolloutRequest`] on or says at once why not. Whoever
//! admitted it then drives the [`Rollout`]: [`Rollout::run_workflow`] (which runs an agent
//! loop where the plugin has that form), perhaps
//! [`Rollout::grade`], and [`Rollout::finish`], which gives the [`Finished`] rollout
//! with its outcome. Between the steps a protocol may tell its caller what came of
//! them. Dropping a rollout at any point stops its guest and frees its slot.
//!
//! This module knows no protocol and no JSON of one.

mod account;
mod admission;
mod events;
mod limits;
mod outcome;
mod run;
mod trajectory;

pub use admission::{AdmitError, Handle, Host, HostError, HostSettings, Load, Phase, Started};
pub use limits::LimitUse;
pub use outcome::{Failure, FailureKind, Finished, FinishedSample, Outcome, Stage};
pub use run::{AgentForm, LoopOptions, LoopReport, Rollout};
pub use trajectory::{
    Amendable, Amendment, Facts, Member, StepAmendment, TakeStep, TrajectoryExtra, TrajectoryFile,
};

use std::sync::Arc;

use crate::budget::Charge;
use crate::id::RolloutId;
use crate::outbound::ModelEndpoint;
use crate::wire::messages::Messages;
use crate::wire::metadata::RowMetadata;

/// What is asked for, in no protocol's terms.
pub struct RolloutRequest {
    /// Its name, unused by any rollout that is alive.
    pub id: RolloutId,
    /// What its caller calls it, where that could be no id.
    pub caller_id: Option<String>,
    /// 1 for the first try.
    pub attempt: u32,
    /// The prompt's messages.
    pub prompt: Messages,
    /// The ground truth, for the grader only.
    pub label: Option<String>,
    /// The row's metadata, for both guests, but for the truth in it.
    pub metadata: Option<RowMetadata>,
    /// What an agent loop is told besides.
    pub loop_options: LoopOptions,
    /// Where the model is.
    pub model: Arc<ModelEndpoint>,
    /// Samples that the caller takes; the host's own limit holds besides.
    pub samples_max: u32,
    /// Whether the caller takes only samples that asked the model. A rollout without one is
    /// not graded then.
    pub samples_must_ask: bool,
    /// Seconds from admission within which the workflow must be done, time in the
    /// queue among them. Zero or less is over at once.
    pub workflow_secs: Option<f64>,
    /// Seconds that the grader has.
    pub grader_secs: Option<f64>,
    /// What the protocol adds to the trajectory.
    pub trajectory_extra: Option<Arc<dyn TrajectoryExtra>>,
    /// What its bytes are charged to for as long as it lives, where anything is.
    pub charge: Option<Charge>,
}

impl RolloutRequest {
    /// The bytes that it takes, which is what it is charged for.
    pub fn bytes(&self) -> usize {
        // Whoever reports the result has the label once more.
        let label = self.label.as_ref().map_or(0, |label| 2 * label.len());
        let metadata = self.metadata.as_ref().map_or(0, RowMetadata::memory_bytes);
        self.prompt.memory_bytes() + label + metadata + size_of::<Self>()
    }
}

/// The fuzz target of what is written down of a conversation.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use trajectory::fuzzing_trajectory;
