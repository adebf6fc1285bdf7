//! The data of rollouts: request, phase and outcome.
//!
//! Everything here can be serialized and deserialized without loss, and contains no client, connection or running task.
//! Secrets are separate, in [`RequestSecrets`]. The format is JSON, because messages and metadata keep their original
//! bytes.

mod address;
mod agent;
mod environment;
mod failure;
mod group;
mod limit_use;
mod outcome;
mod phase;
mod request;
mod trajectory;

pub use address::{ModelAddress, RequestSecrets};
pub use agent::{AgentForm, LoopOptions, LoopReport};
pub use environment::EnvironmentFacts;
pub use failure::{Failure, FailureKind};
pub use group::{FailedMember, GROUP_SIZE_MAX, GroupOutcome, GroupReport, GroupSeat, InvalidSeat, JOIN_SECS};
pub(crate) use group::{GroupDecision, GroupEvent, SampleRating};
pub use limit_use::LimitUse;
pub use outcome::{Finished, FinishedSample, Outcome};
pub use phase::{Phase, Stage};
pub use request::RolloutRequest;
pub use rollout_guest::imports::{ForkOrigin, ForkPoint};
pub use trajectory::{ExtraFact, ExtraMember, TrajectoryExtra, TrajectoryFile};
pub(super) use trajectory::{HOST_VERSION, Layout, StepOffsets};
