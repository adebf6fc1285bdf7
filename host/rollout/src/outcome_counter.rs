//! Metrics, trace and log line of a rollout that has ended.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::activity::EndedRollout;
use super::host::Host;
use super::model::{Failure, ForkPoint, Outcome, Phase};
use rollout_core::error::Fault;
use rollout_core::telemetry::{OutcomeLabels, Step, Used};
use rollout_guest::imports::{Record, RolloutUsage};
use rollout_wire::id::RolloutId;
use rollout_wire::text::both_ends;

/// Maximum size of a reason in the log, in bytes. The result and the trajectory have the whole reason.
const REASON_BYTES_LOGGED: usize = 256;

/// Counts one rollout once: with its outcome, or as cancelled when it is dropped without one.
pub(super) struct OutcomeCounter {
    host: Host,
    record: Arc<Record>,
    phase: watch::Receiver<Phase>,
    admitted_at: Instant,
    id: RolloutId,
    fork: Option<ForkPoint>,
    settled: bool,
}

impl OutcomeCounter {
    pub(super) fn new(
        host: Host,
        record: Arc<Record>,
        phase: watch::Receiver<Phase>,
        admitted_at: Instant,
        id: RolloutId,
        fork: Option<ForkPoint>,
    ) -> Self {
        Self { host, record, phase, admitted_at, id, fork, settled: false }
    }

    /// Counts the outcome of a rollout. To be called before the record is emptied.
    ///
    /// A rerun that was cut, at the end of its history or where it diverged, is reported to its caller only: the
    /// operator cannot fix it.
    pub(super) fn settle(&mut self, outcome: &Outcome, is_replay_cut: bool) {
        self.settled = true;
        self.count(outcome);
        self.log(outcome, self.admitted_at.elapsed(), is_replay_cut);
    }

    fn count(&self, outcome: &Outcome) {
        let metrics = self.host.metrics();
        metrics.rollout_ended(match outcome {
            Outcome::Scored { .. } => OutcomeLabels::Scored,
            Outcome::Unscored(Failure { stage, kind, fault, .. }) => {
                OutcomeLabels::Unscored { stage: stage.as_str(), kind: kind.as_str(), fault: fault.as_str() }
            }
        });
        self.trace(outcome);
        let (limits_hit, log_dropped) = self.record.limits_hit();
        let usage = self.record.usage();
        let RolloutUsage { guest_cpu, memory_bytes_peak, host_calls, .. } = usage;
        metrics.used(&Used { guest_cpu, memory_bytes_peak, host_calls, limits_hit, log_dropped });
        let plugin = self.host.0.deployment.plugin_name();
        let time = self.admitted_at.elapsed();
        let ended = EndedRollout::now(self.id.clone(), plugin, self.fork.clone(), outcome, time, &usage);
        self.host.0.runtime.slots().tenant().activity().ended(ended);
    }

    /// Adds the outcome and the usage to the rollout's trace.
    fn trace(&self, outcome: &Outcome) {
        let trace = self.record.trace();
        if trace.is_empty() {
            return;
        }
        match outcome {
            Outcome::Scored { reward } => {
                trace.set("rollout.outcome", "scored");
                trace.set("rollout.reward", *reward);
            }
            Outcome::Unscored(failure) => {
                trace.set("rollout.outcome", "unscored");
                trace.set("rollout.stage", failure.stage.as_str());
                trace.set("rollout.fault", failure.fault.as_str());
                trace.failed(failure.kind.as_str(), &failure.reason);
            }
        }
        let usage = self.record.usage();
        let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        trace.set("rollout.chat_calls", count(usage.chat_calls));
        trace.set("rollout.host_calls", count(usage.host_calls));
        trace.set("rollout.guest_cpu_ms", usage.guest_cpu.as_secs_f64() * 1e3);
        trace.set("rollout.memory_bytes_peak", count(usage.memory_bytes_peak as u64));
        trace.set("gen_ai.usage.input_tokens", count(usage.prompt_tokens));
        trace.set("gen_ai.usage.output_tokens", count(usage.completion_tokens));
    }

    /// Logs the outcome. A reward is normal, and a caller knows what it cancelled: both are for debugging. Failures are
    /// logged for the operator, at a limited rate.
    fn log(&self, outcome: &Outcome, time: Duration, is_replay_cut: bool) {
        let secs = time.as_secs_f64();
        let failure = match outcome {
            Outcome::Scored { reward } => return tracing::debug!(reward, secs, "rollout scored"),
            Outcome::Unscored(failure) => failure,
        };
        let (stage, kind, fault) = (failure.stage.as_str(), failure.kind.as_str(), failure.fault.as_str());
        let line = match failure.fault {
            _ if is_replay_cut => None,
            Fault::Caller => None,
            Fault::Plugin | Fault::Model | Fault::Host => self.host.0.runtime.unscored_lines.take(),
        };
        let Some(left_out) = line else {
            return tracing::debug!(stage, kind, fault, reason = failure.reason, secs, "rollout unscored");
        };
        let reason = both_ends(&failure.reason, REASON_BYTES_LOGGED);
        if failure.fault == Fault::Host {
            tracing::warn!(stage, kind, fault, reason, secs, left_out, "rollout unscored");
        } else {
            tracing::info!(stage, kind, fault, reason, secs, left_out, "rollout unscored");
        }
    }
}

impl Drop for OutcomeCounter {
    fn drop(&mut self) {
        if !self.settled {
            let stage = self.phase.borrow().stage();
            // The driver reports a panic; otherwise the rollout's owner dropped it.
            let failure = if std::thread::panicking() {
                Failure::host(stage, "the host panicked")
            } else {
                Failure::cancelled(stage)
            };
            self.count(&Outcome::Unscored(failure));
        }
        self.host.metrics().took(Step::Rollout, self.admitted_at.elapsed());
    }
}
