//! Deadlines of workflow and grader, set by the caller or by the host's limit.

use std::time::Duration;

use tokio::time::Instant;

use crate::model::{Failure, FailureKind, Stage};
use rollout_core::error::Fault;
use rollout_core::telemetry::Limit;
use rollout_guest::instance::RunError;

/// A deadline, with the data for the error that reports that it has passed.
pub(super) struct Deadline {
    pub at: Instant,
    limit_secs: f64,
    is_host_limit: bool,
}

impl Deadline {
    /// Creates the earlier of two deadlines: the caller's, counted from `from`, and the host's limit, counted from the
    /// start of the run.
    pub(super) fn new(caller_secs: Option<f64>, from: Instant, began: Instant, host_max: Duration) -> Self {
        let host_limit =
            Self { at: began + host_max, limit_secs: host_max.as_secs_f64(), is_host_limit: true };
        let Some(secs) = caller_secs else { return host_limit };
        // With zero, a negative number or NaN the deadline has passed already. A time that is too long to represent is
        // longer than the host's limit.
        let time = match Duration::try_from_secs_f64(secs) {
            Ok(time) => time,
            Err(_) if secs > 0.0 => return host_limit,
            Err(_) => Duration::ZERO,
        };
        match from.checked_add(time) {
            Some(at) if at < host_limit.at => Self { at, limit_secs: secs, is_host_limit: false },
            _ => host_limit,
        }
    }

    /// Returns whether this deadline ended the run. A guest may return a timeout at the moment when the host would have
    /// stopped it.
    pub(super) fn ended(&self, error: &RunError) -> bool {
        match error {
            RunError::Deadline => true,
            RunError::TimedOut(_) => Instant::now() >= self.at,
            _ => false,
        }
    }

    /// Returns the limit that the deadline enforces.
    pub(super) fn limit(&self, stage: Stage) -> Limit {
        match (self.is_host_limit, stage) {
            (false, _) => Limit::CallerTime,
            (true, Stage::Queue | Stage::Workflow) => Limit::WorkflowTime,
            (true, Stage::Grader) => Limit::GraderTime,
        }
    }

    pub(super) fn exceeded(&self, stage: Stage, queued: Duration) -> Failure {
        let part = if stage == Stage::Grader { "grader" } else { "workflow" };
        let mut reason =
            format!("{part} exceeded its {}s deadline", rollout_wire::text::decimal(self.limit_secs));
        if self.is_host_limit {
            reason += &format!(", {part}-secs-max of this host");
        } else if queued >= Duration::from_millis(100) {
            reason += &format!(" ({:.1}s of it spent queued)", queued.as_secs_f64());
        }
        // If the rollout never started, the plugin is not at fault.
        let fault = if stage == Stage::Queue { Fault::Host } else { Fault::Plugin };
        Failure::new(stage, FailureKind::Timeout, fault, reason)
    }
}
