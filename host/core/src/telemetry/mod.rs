//! Observability: metrics for Prometheus, traces for OpenTelemetry, and limits on log lines.
//!
//! [`Metrics`] belongs to one host and is passed to all components that count. Every series of a closed set of labels
//! exists from the start and is found by index, so that counting is an atomic addition without a lock or an allocation.
//! Only the end of a rollout without a reward has to look up its series.
//!
//! This module knows no rollouts. Its parameters are words and durations.

mod labels;
mod lines;
mod meter;
mod one_line;
mod process;
mod replication;
mod series;
mod states;
mod traces;
mod under_way;

pub use labels::{
    CallbackOutcome, Label, Limit, LimitHits, ModelOutcome, Refusal, Step, ToolKind, ToolOutcome,
};
pub use lines::LineBudget;
pub use meter::{DayUse, Meter};
pub use one_line::OneLineFields;
pub use replication::{Lag, Replication};
pub use rollout_transcript::ModelRole;
pub use states::{CopyState, GaugedState, LeasedCount, StagedCount};
pub use traces::{InvalidOtlp, RolloutTrace, Span, TraceParent, Traces};
pub use under_way::{Callback, ModelCall, Timing, ToolCall};

use std::collections::HashMap;
use std::collections::btree_map::{BTreeMap, Entry};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::budget::{Budget, Use};
use prometheus::proto::MetricFamily;
use prometheus::{Histogram, Registry, TextEncoder};

use series::{BusySeries, CallbackSeries, Counters, GuestSeries, ModelSeries, RolloutSeries};
use states::StateGauges;

/// Content type of `Metrics::text`.
pub const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Outcome of an accepted rollout, as label values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutcomeLabels {
    /// The rollout has a reward.
    Scored,
    /// The rollout has no reward.
    Unscored {
        /// The stage that it had reached.
        stage: &'static str,
        /// The kind of failure.
        kind: &'static str,
        /// The party that must act.
        fault: &'static str,
    },
}

/// Resources that the guests of one rollout used.
#[derive(Clone, Copy, Debug, Default)]
pub struct Used {
    /// CPU time of both guests.
    pub guest_cpu: Duration,
    /// The larger memory peak of the two guests, in bytes.
    pub memory_bytes_peak: usize,
    /// Host calls of both guests.
    pub host_calls: u64,
    /// Limits that were hit.
    pub limits_hit: LimitHits,
    /// Log entries that were dropped.
    pub log_dropped: u64,
}

/// Load of the host at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy {
    /// Rollouts that have a slot.
    pub running: u32,
    /// Rollouts that wait for a slot.
    pub queued: u32,
    /// Number of slots.
    pub running_max: u32,
    /// Bytes held for rollouts and callers, by purpose.
    pub held_bytes: [(&'static str, usize); 4],
    /// Maximum number of bytes held for rollouts and callers.
    pub held_bytes_max: usize,
}

impl Busy {
    /// Returns the current load.
    pub fn now(running: u32, queued: u32, running_max: u32, budget: &Budget) -> Self {
        Self {
            running,
            queued,
            running_max,
            held_bytes: Use::ALL.map(|use_| (use_.as_str(), budget.used_for(use_))),
            held_bytes_max: budget.total(),
        }
    }
}

/// The metrics of one host.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    rollouts: RolloutSeries,
    busy: BusySeries,
    times: Vec<Histogram>,
    model: ModelSeries,
    judge: ModelSeries,
    callbacks: CallbackSeries,
    /// Duration and counters of outcomes for each kind of tool.
    tool_calls: Vec<(Histogram, Counters<ToolOutcome>)>,
    guests: GuestSeries,
    spans: traces::SpanCounts,
    traces: OnceLock<Traces>,
    meters: Vec<Arc<Meter>>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Creates metrics without any counts.
    pub fn new() -> Self {
        Self::registered(Registry::new(), true)
            .unwrap_or_else(|error| unreachable!("names, labels and buckets are constants: {error}"))
    }

    /// Creates metrics of one tenant without any counts. Each series has the given labels. `meters` count the daily
    /// usage as well.
    pub fn of(labels: HashMap<String, String>, meters: Vec<Arc<Meter>>) -> Self {
        let registry = Registry::new_custom(None, Some(labels));
        let registered = registry.and_then(|registry| Self::registered(registry, false));
        let metrics = registered
            .unwrap_or_else(|error| unreachable!("names, labels and buckets are constants: {error}"));
        Self { meters, ..metrics }
    }

    /// Sets the exporter of traces.
    pub fn trace_with(&self, traces: Traces) {
        // Only the first call has an effect; it precedes all counting.
        let _ = self.traces.set(traces);
    }

    /// Adds the metrics of a replicated log. Only the first call has an effect.
    pub fn add_replication(&self, replication: &Replication) {
        if let Err(error) = self.registry.register(Box::new(replication.clone())) {
            tracing::error!(%error, "the metrics of the log are not shown");
        }
    }

    /// Adds the gauges of a state, which is read when the metrics are. Only the first call for a state has an effect.
    pub fn add_state<S: GaugedState>(&self, read: impl Fn() -> S + Send + Sync + 'static) {
        let registered = StateGauges::new(read).and_then(|gauges| self.registry.register(Box::new(gauges)));
        if let Err(error) = registered {
            let first = S::GAUGES.first().map(|(name, _)| *name);
            tracing::error!(first, %error, "the gauges of a state are not shown");
        }
    }

    /// Sets the load of a process whose rollouts are counted separately for each tenant.
    pub fn process_is_busy(&self, load: [u32; 3], budget: &Budget) {
        let [running, queued, running_max] = load;
        self.note(Busy::now(running, queued, running_max, budget));
    }

    /// Returns the text of several metrics, each with its own labels.
    pub fn text_of(all: &[Arc<Self>]) -> String {
        let mut families: BTreeMap<String, MetricFamily> = BTreeMap::new();
        for family in all.iter().flat_map(|one| one.registry.gather()) {
            match families.entry(family.name().to_owned()) {
                Entry::Vacant(entry) => drop(entry.insert(family)),
                Entry::Occupied(mut entry) => {
                    let mut family = family;
                    entry.get_mut().mut_metric().extend(family.take_metric());
                }
            }
        }
        as_text(families.into_values().collect())
    }

    /// Starts the export of traces on the current runtime, once in a host's life. Later calls return the exporter of
    /// the first.
    pub fn trace_to(&self, url: &str, http: reqwest::Client) -> Result<Traces, InvalidOtlp> {
        if let Some(traces) = self.traces.get() {
            return Ok(traces.clone());
        }
        let traces = Traces::start(url, http, self.spans.clone())?;
        Ok(self.traces.get_or_init(|| traces).clone())
    }

    /// Returns the trace of a rollout that was just admitted. It is empty if traces are not exported.
    pub fn trace(&self, rollout_id: &str) -> RolloutTrace {
        self.traces.get().map(|traces| traces.rollout(rollout_id)).unwrap_or_default()
    }

    /// Counts an admitted rollout.
    pub fn accepted(&self) {
        self.rollouts.accepted.inc();
    }

    /// Counts a refused rollout.
    pub fn refused(&self, why: Refusal) {
        self.rollouts.refused.at(why).inc();
    }

    /// Counts a request without the server's key.
    pub fn unauthorized(&self) {
        self.rollouts.unauthorized.inc();
    }

    /// Counts a rollout whose files could not be written.
    pub fn trajectory_unwritten(&self) {
        self.rollouts.unwritten.inc();
    }

    /// Counts the end of an accepted rollout.
    pub fn rollout_ended(&self, outcome: OutcomeLabels) {
        match outcome {
            OutcomeLabels::Scored => self.rollouts.scored.inc(),
            OutcomeLabels::Unscored { stage, kind, fault } => {
                self.rollouts.ended.with_label_values(&["unscored", stage, kind, fault]).inc();
            }
        }
    }

    /// Records the duration of a step.
    pub fn took(&self, step: Step, time: Duration) {
        self.times[step.index()].observe(time.as_secs_f64());
    }

    /// Times a step until the returned guard is dropped.
    pub fn time(self: &Arc<Self>, step: Step) -> Timing {
        Timing { metrics: self.clone(), step, since: Instant::now() }
    }

    /// Records the start of a call of a model.
    pub fn model_call(&self, asked: ModelRole) -> ModelCall<'_> {
        let calls = match asked {
            ModelRole::Policy => &self.model,
            ModelRole::Judge => &self.judge,
        };
        calls.in_flight.inc();
        ModelCall { metrics: self, calls, since: Instant::now(), outcome: ModelOutcome::Abandoned }
    }

    /// Records the start of a callback.
    pub fn callback(&self) -> Callback<'_> {
        Callback { metrics: self, since: Instant::now(), outcome: CallbackOutcome::Abandoned }
    }

    /// Records the start of a call of a host-provided tool.
    pub fn tool_call(&self, kind: ToolKind) -> ToolCall<'_> {
        ToolCall { metrics: self, kind, since: Instant::now(), outcome: ToolOutcome::Abandoned }
    }

    /// Counts the usage of an instance of a component's tool that has ended.
    pub fn used_by_tool(&self, cpu: Duration, host_calls: u64) {
        self.meters.iter().for_each(|meter| meter.add_cpu(cpu));
        self.guests.cpu.inc_by(cpu.as_secs_f64());
        self.guests.host_calls.inc_by(host_calls);
    }

    /// Counts a hit of a limit.
    pub fn limit_hit(&self, limit: Limit) {
        self.guests.limits.at(limit).inc();
    }

    /// Counts the usage of the guests of a rollout that has ended.
    pub fn used(&self, used: &Used) {
        self.meters.iter().for_each(|meter| meter.add_cpu(used.guest_cpu));
        self.guests.cpu.inc_by(used.guest_cpu.as_secs_f64());
        self.guests.memory.observe(used.memory_bytes_peak as f64);
        self.guests.host_calls.inc_by(used.host_calls);
        used.limits_hit.iter().for_each(|(limit, times)| self.guests.limits.at(limit).inc_by(times));
        self.guests.log_dropped.inc_by(used.log_dropped);
    }

    /// Sets the numbers of running and queued rollouts and of slots.
    pub fn is_busy(&self, running: u32, queued: u32, running_max: u32) {
        self.busy.running.set(running.into());
        self.busy.queued.set(queued.into());
        self.busy.running_max.set(running_max.into());
    }

    /// Returns all metrics in Prometheus' text format, together with those of the process. Reads files, which takes
    /// milliseconds in a process with many mappings.
    pub fn text(&self, busy: Busy) -> String {
        self.note(busy);
        as_text(self.registry.gather())
    }

    fn note(&self, busy: Busy) {
        self.is_busy(busy.running, busy.queued, busy.running_max);
        let number = |bytes: usize| i64::try_from(bytes).unwrap_or(i64::MAX);
        for (use_, bytes) in busy.held_bytes {
            self.busy.held_bytes.with_label_values(&[use_]).set(number(bytes));
        }
        self.busy.held_bytes_max.set(number(busy.held_bytes_max));
    }
}

fn as_text(mut families: Vec<MetricFamily>) -> String {
    for metric in families.iter_mut().flat_map(|family| family.mut_metric()) {
        // Labels of the registry come last and in any order.
        let mut labels = metric.take_label();
        labels.sort_by(|one, other| one.name().cmp(other.name()));
        metric.set_label(labels);
    }
    TextEncoder::new().encode_to_string(&families).unwrap_or_else(|error| {
        tracing::error!(%error, "metrics could not be written as text");
        String::new()
    })
}

#[cfg(test)]
mod tests {
    use super::under_way::TOKENS_MAX;
    use super::*;

    const IDLE: Busy = Busy {
        running: 0,
        queued: 0,
        running_max: 8,
        held_bytes: [("request", 5), ("result", 0), ("record", 0), ("guest", 0)],
        held_bytes_max: 1 << 30,
    };

    #[test]
    fn series_of_closed_sets_exist_from_the_start() {
        let text = Metrics::new().text(IDLE);
        for line in [
            "rollout_host_rollouts_refused_total{reason=\"full\"} 0",
            "rollout_host_limit_hits_total{limit=\"memory-bytes-max\"} 0",
            "rollout_host_model_calls_total{outcome=\"abandoned\"} 0",
            "rollout_host_judge_calls_total{outcome=\"abandoned\"} 0",
            "rollout_host_tokens_total{kind=\"prompt\"} 0",
            "rollout_host_rollouts_running_max 8",
            "rollout_host_held_bytes{use=\"request\"} 5",
            "rollout_host_held_bytes_max 1073741824",
            "rollout_host_queue_seconds_count 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn a_dropped_call_counts_as_abandoned_and_is_not_in_flight() {
        let metrics = Metrics::new();
        let call = metrics.model_call(ModelRole::Policy);
        call.used_tokens(u64::MAX, 3);
        assert_eq!(metrics.model.in_flight.get(), 1);
        drop(call);
        metrics.model_call(ModelRole::Policy).ended(ModelOutcome::Replied);
        metrics.callback().ended(CallbackOutcome::Delivered);
        assert_eq!(metrics.model.in_flight.get(), 0);
        assert_eq!(metrics.model.ended.at(ModelOutcome::Abandoned).get(), 1);
        assert_eq!(metrics.model.ended.at(ModelOutcome::Replied).get(), 1);
        assert_eq!(metrics.judge.ended.at(ModelOutcome::Replied).get(), 0);
        assert_eq!(metrics.callbacks.ended.at(CallbackOutcome::Delivered).get(), 1);
        assert_eq!(metrics.model.prompt_tokens.get(), TOKENS_MAX);
    }

    #[test]
    fn the_metrics_of_several_tenants_are_one_text_with_their_labels() {
        let of = |tenant: &str| {
            Arc::new(Metrics::of(HashMap::from([("tenant".to_owned(), tenant.to_owned())]), Vec::new()))
        };
        let (one, two) = (of("a"), of("b"));
        one.accepted();
        let text = Metrics::text_of(&[one, two]);
        let name = "rollout_host_rollouts_accepted_total";
        for line in [format!("{name}{{tenant=\"a\"}} 1"), format!("{name}{{tenant=\"b\"}} 0")] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert_eq!(text.matches(&format!("# TYPE {name} ")).count(), 1);
        assert!(
            !text.contains("held_bytes") && !text.contains("process_"),
            "series of the process are not those of a tenant"
        );
    }
}
