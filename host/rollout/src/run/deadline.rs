//! The wall time of one half of a rollout, its caller's or the host's own.

use std::time::Duration;

use tokio::time::Instant;

use crate::model::{Failure, FailureKind, Stage};
use rollout_core::error::Fault;
use rollout_core::telemetry::Limit;
use rollout_guest::instance::RunError;

/// A wall time with the words for the case that it passes.
pub(super) struct Deadline {
    pub at: Instant,
    limit_secs: f64,
    ours: bool,
}

impl Deadline {
    /// The caller's time from `from`, or the host's own limit since the run began first, whichever
    /// ends first.
    pub(super) fn new(asked_secs: Option<f64>, from: Instant, began: Instant, host_max: Duration) -> Self {
        let ours = Self { at: began + host_max, limit_secs: host_max.as_secs_f64(), ours: true };
        let Some(secs) = asked_secs else { return ours };
        // Zero, less, and what is no time at all are over at once; what is too long
        // for a clock is longer than the host's own limit.
        let time = match Duration::try_from_secs_f64(secs) {
            Ok(time) => time,
            Err(_) if secs > 0.0 => return ours,
            Err(_) => Duration::ZERO,
        };
        match from.checked_add(time) {
            Some(at) if at < ours.at => Self { at, limit_secs: secs, ours: false },
            _ => ours,
        }
    }

    /// Whether this deadline ended the run. A guest may give up for lack of time in the
    /// moment in which the host would have stopped it.
    pub(super) fn ended(&self, error: &RunError) -> bool {
        match error {
            RunError::Deadline => true,
            RunError::TimedOut(_) => Instant::now() >= self.at,
            _ => false,
        }
    }

    /// The limit that it is.
    pub(super) fn limit(&self, stage: Stage) -> Limit {
        match (self.ours, stage) {
            (false, _) => Limit::CallerTime,
            (true, Stage::Queue | Stage::Workflow) => Limit::WorkflowTime,
            (true, Stage::Grader) => Limit::GraderTime,
        }
    }

    pub(super) fn exceeded(&self, stage: Stage, queued: Duration) -> Failure {
        let who = if stage == Stage::Grader { "grader" } else { "workflow" };
        let mut reason =
            format!("{who} exceeded its {}s deadline", rollout_wire::text::decimal(self.limit_secs));
        if self.ours {
            reason += &format!(", {who}-secs-max of this host");
        } else if queued >= Duration::from_millis(100) {
            reason += &format!(" ({:.1}s of it spent queued)", queued.as_secs_f64());
        }
        // A rollout that never got to run is no fault of the plugin.
        let fault = if stage == Stage::Queue { Fault::Host } else { Fault::Plugin };
        Failure::new(stage, FailureKind::Timeout, fault, reason)
    }
}
