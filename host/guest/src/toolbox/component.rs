//! Tools of a component. Each call gets its own instance, which knows nothing of the rollout that makes the call.

use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;
use tokio::time::Instant;

use super::CallLimits;
use crate::imports::{ClockStart, Imports, Live, LogEntry, Record, Role, RunContext};
use crate::instance::{self, Bounds, Permit, RunError};
use crate::plugin::Plugin;
use rollout_core::budget::Holder;
use rollout_core::limits::Limits;
use rollout_core::telemetry::{Limit, Metrics};
use rollout_transcript::{ToolAnswer, error_text};
use rollout_wire::id::RolloutId;
use rollout_wire::openai::CallerParams;

/// Maximum number of log entries of one call, and of their bytes. The entries go to the host's own log.
const LOG_LINES_MAX: usize = 100;
const LOG_BYTES_MAX: usize = 16 << 10;

/// Maximum number of host calls in one call of a tool. A tool can only read the clock and write log lines.
const HOST_CALLS_MAX: u64 = 10_000;

/// Bytes that a call may pass to the host at once in addition to its result: a log line.
const HOST_CALL_BYTES_MIN: usize = 64 << 10;

/// A component that exports `tool`, with the limits on each call.
#[derive(Clone)]
pub struct ComponentTools {
    plugin: Plugin,
    config: Option<Arc<RawValue>>,
    limits: Arc<Limits>,
    clock_begins: ClockStart,
    metrics: Arc<Metrics>,
}

impl ComponentTools {
    /// Creates the tools of a component, with the limits on each call.
    pub fn new(
        plugin: Plugin,
        config: Option<Arc<RawValue>>,
        memory_bytes_max: usize,
        cpu_time_max: Duration,
        result_bytes_max: usize,
        clock_begins: ClockStart,
        metrics: Arc<Metrics>,
    ) -> Self {
        let limits = Limits {
            memory_bytes_max,
            guest_cpu_time_max: cpu_time_max,
            host_call_bytes_max: result_bytes_max.saturating_add(HOST_CALL_BYTES_MIN),
            host_calls_max: HOST_CALLS_MAX,
            log_lines_max: LOG_LINES_MAX,
            log_bytes_max: LOG_BYTES_MAX,
            ..Limits::default()
        };
        Self { plugin, config, limits: limits.into(), clock_begins, metrics }
    }

    /// Asks the component for its tools. The result is unchecked JSON text.
    pub async fn describe(&self, deadline: Instant, permit: Permit) -> Result<Vec<String>, String> {
        let record = Arc::<Record>::default();
        let imports = self.imports(Role::Declaration, "describe", Some(deadline), &record);
        let bounds = self.bounds(deadline, permit);
        let described = instance::describe_tools(self.plugin.linked(), imports, bounds).await;
        let described = described.map_err(|error| explain(&error, &record).content);
        self.account(&record);
        described
    }

    /// Calls a tool in its own instance.
    pub(super) async fn call(
        &self,
        name: &str,
        arguments: &str,
        seed: &str,
        holder: Option<&Holder>,
        limits: &CallLimits,
        bounds: Bounds,
    ) -> ToolAnswer {
        // The instance's memory is charged to the rollout that makes the call.
        let record = Arc::new(holder.cloned().map(Record::without_rollout).unwrap_or_default());
        let imports = self.imports(Role::Tool, seed, bounds.deadline, &record);
        let called =
            instance::call_tool(self.plugin.linked(), imports, bounds, name.to_owned(), arguments.to_owned())
                .await;
        let answer = match called {
            Ok(Ok(content)) => ToolAnswer::answered(content),
            Ok(Err(reason)) => ToolAnswer::failed(error_text(reason)),
            Err(RunError::Deadline) => limits.late(),
            Err(error) => explain(&error, &record),
        };
        self.account(&record);
        answer
    }

    /// Returns the bounds of an instance.
    pub(super) fn bounds(&self, deadline: Instant, permit: Permit) -> Bounds {
        Bounds { memory_bytes_max: self.limits.memory_bytes_max, deadline: Some(deadline), permit }
    }

    fn imports(&self, role: Role, seed: &str, deadline: Option<Instant>, record: &Arc<Record>) -> Imports {
        let id = RolloutId::parse(format!("tool-{seed}"));
        let run = RunContext {
            // A seed is hex digits, which form a valid id.
            rollout_id: id.unwrap_or_else(|error| unreachable!("a seed makes an id: {error}")),
            caller_id: None,
            attempt: 1,
            config: self.config.clone(),
            metadata: None,
            samples_max: 0,
            caller_params: CallerParams::default(),
            fork: None,
            clock_begins: self.clock_begins,
            metrics: self.metrics.clone(),
        };
        Imports::new(role, run.into(), self.limits.clone(), Live::until(deadline), record.clone())
    }

    /// Counts the usage of an instance, and forwards its log.
    fn account(&self, record: &Record) {
        let usage = record.usage();
        self.metrics.used_by_tool(usage.guest_cpu, usage.host_calls);
        for entry in record.take().log {
            match entry {
                LogEntry::Line { text, .. } => tracing::debug!(text, "log line of a tool"),
                LogEntry::Event { event, data } => {
                    tracing::debug!(event, data = data.get(), "log event of a tool");
                }
            }
        }
    }
}

/// Explains to the model, and to readers of the trajectory, why a call has no result. To be called before the record is
/// emptied.
fn explain(error: &RunError, record: &Record) -> ToolAnswer {
    let was_hit = |limit| record.limits_hit().0.iter().any(|(hit, _)| hit == limit);
    match error {
        RunError::Memory { max } => ToolAnswer::over_limit(
            Limit::ToolMemory,
            format!("the tool needed more memory than memory-bytes-max, {max} bytes"),
        ),
        RunError::Cpu(max) => ToolAnswer::over_limit(
            Limit::ToolCpu,
            format!("the tool used more CPU time than cpu-secs-max, {max} s"),
        ),
        RunError::Limit(_) if was_hit(Limit::HostCallBytes) => ToolAnswer::over_limit(
            Limit::ToolResultBytes,
            "the tool's result is far longer than result-bytes-max",
        ),
        RunError::Contract(_) if was_hit(Limit::HostCalls) => ToolAnswer::over_limit(
            Limit::HostCalls,
            format!("the tool made more than {HOST_CALLS_MAX} host calls"),
        ),
        RunError::Trapped { .. } => match record.last_panic() {
            Some(panic) => ToolAnswer::unavailable(format!("the tool {panic}")),
            None => ToolAnswer::unavailable(format!("the tool {error}")),
        },
        error => ToolAnswer::unavailable(format!("the tool {error}")),
    }
}
