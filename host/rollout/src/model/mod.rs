//! What a rollout is, as data: what is asked for, how far it is and what came of it.
//!
//! Everything here can be written down and read again to the same thing, and holds no client,
//! no connection and nothing that runs. What must not be written as it is, a key, is kept
//! beside it in [`RequestSecrets`]. All of it is JSON, because messages and metadata stay the
//! bytes that they came as.

mod address;
mod agent;
mod failure;
mod limits;
mod outcome;
mod phase;
mod request;
mod trajectory;

pub use address::{ModelAddress, RequestSecrets};
pub use agent::{AgentForm, LoopOptions, LoopReport};
pub use failure::{Failure, FailureKind};
pub use limits::LimitUse;
pub use outcome::{Finished, FinishedSample, Outcome};
pub use phase::{Phase, Stage};
pub use request::RolloutRequest;
pub use rollout_guest::imports::{ForkOrigin, ForkPoint};
pub use trajectory::{ExtraFact, ExtraMember, TrajectoryExtra, TrajectoryFile};
pub(super) use trajectory::{HOST_VERSION, Layout, StepOffsets};
