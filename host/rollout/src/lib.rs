//! Rollouts, each from its admission to its outcome.
//!
//! [`Host::admit`] admits a [`RolloutRequest`] or fails immediately. [`drive`] takes the admitted [`Rollout`] through
//! its steps: workflow (or agent loop), optionally grader, and the end, which returns the [`Finished`] rollout with its
//! outcome. A protocol or an evaluation implements [`Steps`] to act at them, for example to notify its caller. Dropping
//! a rollout at any point stops its guest and frees its slot.
//!
//! The modules are layers, each of which uses only those below it. From the bottom: `model`, the data of a rollout; its
//! trajectory and journal, and the slots; the resources of a process ([`Runtime`]) and a version of a plugin ready to
//! run ([`Deployment`]); the [`Host`] of both; one rollout; admission and driver.
//!
//! A [`Session`] is the counterpart for environments, in which a caller's model acts.
//!
//! This crate knows no protocol and none of the JSON of protocols.

mod activity;
mod admission;
mod deployment;
mod drive;
mod episode;
mod events;
mod fork;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
#[doc(hidden)]
pub mod generated;
mod groups;
mod host;
mod journal;
mod limit_table;
mod model;
mod moves;
mod outcome_counter;
mod run;
mod runtime;
pub mod seal;
mod session;
mod slots;
mod trajectory;

pub use activity::{Activity, EndedCounts, EndedRollout, FailureCause, FailureCount, LiveFacts, LiveRollout};
pub use admission::Replay;
pub use deployment::{Deployment, DeploymentError, DeploymentSettings, Started};
pub use drive::{AfterWorkflow, Next, RolloutEnd, Steps, drive};
pub use episode::{Observed, reset_arguments, take_label};
pub use fork::{ForkError, StoredForkError};
pub use groups::GroupRefused;
pub use host::Host;
pub use journal::{
    Continuation, Damage as JournalDamage, DeploymentId, Failed, ForkPast, FoundRollout, Journal,
    JournalRefused, JournalRest, JournalSettings, JournaledSecrets, OpenError as JournalError,
    RepairError as JournalRepairError, Repaired as RepairedJournal, ReplicaSettings, ResultOf,
    Retention as JournalRetention, RolloutLog, RunClock, ServedAs, StoredOutcome, StoredResult,
    StoredResults, StoredRollout, Sync as JournalSync, TooFewTurns, Unfinished, UnfinishedRollout,
    repair as repair_journal,
};
pub use model::{
    AgentForm, EnvironmentFacts, ExtraFact, ExtraMember, FailedMember, Failure, FailureKind, Finished,
    FinishedSample, ForkOrigin, ForkPoint, GROUP_SIZE_MAX, GroupOutcome, GroupReport, GroupSeat, InvalidSeat,
    JOIN_SECS, LimitUse, LoopOptions, LoopReport, ModelAddress, Outcome, Phase, RequestSecrets,
    RolloutRequest, Stage, TrajectoryExtra, TrajectoryFile,
};
pub use moves::Moves;
pub use run::{ReplayEnd, Resources, Rollout};
pub use runtime::{Runtime, RuntimeSettings};
pub use session::{
    DescribeError, EpisodeAction, OpenSessionError, Reset, Session, SessionError, SplitKind, StoredSession,
    TaskSplit,
};
pub use slots::{
    AdmissionQuotas, AdmitError, ForkMember, ForkState, Handle, LeaseDemand, Load, OverQuota, QuotaOwner,
    Share, SlotPool, Slots, StoredBytes, TenantSlots,
};
pub use trajectory::{
    Amendable, AmendedDocument, Amendment, ArtifactBounds, ArtifactRoot, Member, NoTrajectory, ReplyTokens,
    SampleTokens, StepAmendment, StoredDocument, StoredTrajectories, TakeStep,
};
