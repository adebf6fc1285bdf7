//! One request, from admission to its one outcome.
//!
//! [`Host::admit`] admits a [`RolloutRequest`] or says at once why not. [`drive`] takes the
//! admitted [`Rollout`] through its steps: workflow (or agent loop), perhaps grader, and the end,
//! which gives the [`Finished`] rollout with its outcome. By [`Steps`] a protocol or an evaluation
//! says what it does at them, such as notifying its caller. Dropping a rollout at any point stops
//! its guest and frees its slot.
//!
//! What a rollout is, `model`, is data and at the bottom; above it are what is written of one,
//! slots, what a process has once ([`Runtime`]) and one version of a plugin ready to run
//! ([`Deployment`]), the [`Host`] of both, one rollout, and admission and driver, each naming only
//! what is below it.
//!
//! This module knows no protocol and no JSON of one.

mod admission;
mod deployment;
mod drive;
mod events;
mod fork;
mod host;
mod journal;
mod limits;
mod model;
mod outcome_counter;
mod run;
mod runtime;
mod slots;
mod trajectory;

pub use admission::Replay;
pub use deployment::{Deployment, DeploymentError, DeploymentSettings, Started};
pub use drive::{AfterWorkflow, Ended, Next, Steps, drive};
pub use fork::{ForkError, StoredForkError};
pub use host::Host;
pub use journal::{
    Continuation, Damage as JournalDamage, DeploymentId, Failed, ForkPast, FoundRollout, Journal,
    JournaledSecrets, KeptOutcome, KeptResult, KeptResults, OpenError as JournalError,
    Refused as JournalRefused, RepairError as JournalRepairError, Repaired as RepairedJournal, ResultOf,
    Retention as JournalRetention, RolloutLog, RunClock, ServedAs, Settings as JournalSettings,
    StoredRollout, Sync as JournalSync, TooFewTurns, Unfinished, UnfinishedRollout, repair as repair_journal,
};
pub use model::{
    AgentForm, ExtraFact, ExtraMember, Failure, FailureKind, Finished, FinishedSample, ForkOrigin, ForkPoint,
    LimitUse, LoopOptions, LoopReport, ModelAddress, Outcome, Phase, RequestSecrets, RolloutRequest, Stage,
    TrajectoryExtra, TrajectoryFile,
};
pub use run::{ReplayEnd, Resources, Rollout};
pub use runtime::{Runtime, RuntimeSettings};
pub use slots::{
    AdmissionQuotas, AdmitError, Handle, Load, OverQuota, Share, SlotPool, Slots, StoredBytes, TenantSlots,
    Whose,
};
pub use trajectory::{
    Amendable, AmendedDocument, Amendment, ArtifactBounds, ArtifactRoot, Member, NoTrajectory, StepAmendment,
    StoredDocument, StoredTrajectories, TakeStep,
};

/// The fuzz target of what is written down of a conversation.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use trajectory::fuzzing_trajectory;
