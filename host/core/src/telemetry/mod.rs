//! What an operator sees of the host: metrics for Prometheus, traces for OpenTelemetry,
//! and how many log lines are too many.
//!
//! [`Metrics`] belongs to one host and is handed down to whoever has something to
//! count. Every series of a closed set of labels exists from the start and is found by
//! an index, so that counting is an atomic addition: no lock, no allocation. Only a
//! rollout that ends unscored looks its series up.
//!
//! This module knows no rollout. It is given words and durations.

mod labels;
mod lines;
mod meter;
mod one_line;
mod process;
mod series;
mod traces;
mod under_way;

pub use labels::{
    CallbackOutcome, Label, Limit, LimitHits, ModelOutcome, Refusal, Step, ToolKind, ToolOutcome,
};
pub use lines::LineBudget;
pub use meter::{DayUse, Meter};
pub use one_line::OneLineFields;
pub use rollout_transcript::ModelRole;
pub use traces::{InvalidOtlp, RolloutTrace, Span, TraceParent, Traces};
pub(crate) use under_way::{Callback, ModelCall, Timing, ToolCall};

use std::collections::HashMap;
use std::collections::btree_map::{BTreeMap, Entry};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::budget::{Budget, Use};
use prometheus::proto::MetricFamily;
use prometheus::{Histogram, Registry, TextEncoder};

use series::{BusySeries, CallbackSeries, Counters, GuestSeries, ModelSeries, RolloutSeries};

/// The content type of `Metrics::text`.
pub const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// How an accepted rollout ended, in words of closed sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It has a reward.
    Scored,
    /// It has none.
    Unscored {
        /// Where it stood.
        stage: &'static str,
        /// What sort of failure it was.
        kind: &'static str,
        /// Whose move it is.
        fault: &'static str,
    },
}

/// What the guests of one rollout used.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Used {
    /// CPU time of both.
    pub guest_cpu: Duration,
    /// The most memory that either had, in bytes.
    pub memory_bytes_peak: usize,
    /// Calls of the host by both.
    pub host_calls: u64,
    /// Limits that were hit.
    pub limits_hit: LimitHits,
    /// Log entries that were dropped.
    pub log_dropped: u64,
}

/// How busy the host is at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Busy {
    /// Rollouts that have a slot.
    pub running: u32,
    /// Rollouts that wait for one.
    pub queued: u32,
    /// Rollouts that may have one.
    pub running_max: u32,
    /// Bytes that are held for others, by what for.
    pub held_bytes: [(&'static str, usize); 4],
    /// Bytes that may be held for others.
    pub held_bytes_max: usize,
}

impl Busy {
    /// How busy it is now.
    pub(crate) fn now(running: u32, queued: u32, running_max: u32, budget: &Budget) -> Self {
        Self {
            running,
            queued,
            running_max,
            held_bytes: Use::ALL.map(|use_| (use_.as_str(), budget.used_for(use_))),
            held_bytes_max: budget.total(),
        }
    }
}

/// Everything that one host counts.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    rollouts: RolloutSeries,
    busy: BusySeries,
    times: Vec<Histogram>,
    model: ModelSeries,
    judge: ModelSeries,
    callbacks: CallbackSeries,
    /// For each kind of tool its times, and a counter for each outcome.
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
    /// Metrics that have counted nothing yet.
    pub fn new() -> Self {
        Self::registered(Registry::new(), true)
            .unwrap_or_else(|error| unreachable!("names, labels and buckets are constants: {error}"))
    }

    /// Metrics of a part of a process that have counted nothing yet, each with these labels, and what of
    /// them is counted by the day besides.
    pub fn of(labels: HashMap<String, String>, meters: Vec<Arc<Meter>>) -> Self {
        let registry = Registry::new_custom(None, Some(labels));
        let registered = registry.and_then(|registry| Self::registered(registry, false));
        let metrics = registered
            .unwrap_or_else(|error| unreachable!("names, labels and buckets are constants: {error}"));
        Self { meters, ..metrics }
    }

    /// Sends traces where these go.
    pub fn trace_with(&self, traces: Traces) {
        // It is said once, before anything is counted.
        let _ = self.traces.set(traces);
    }

    /// How busy a process is at present whose rollouts are counted elsewhere, by tenants.
    pub fn process_is_busy(&self, load: [u32; 3], budget: &Budget) {
        let [running, queued, running_max] = load;
        self.note(Busy::now(running, queued, running_max, budget));
    }

    /// The same text of several, each of which has labels of its own.
    pub fn text_of(all: &[Arc<Self>]) -> String {
        let mut families: BTreeMap<String, MetricFamily> = BTreeMap::new();
        for family in all.iter().flat_map(|one| one.registry.gather()) {
            match families.entry(family.name().to_owned()) {
                Entry::Vacant(place) => drop(place.insert(family)),
                Entry::Occupied(mut place) => {
                    let mut family = family;
                    place.get_mut().mut_metric().extend(family.take_metric());
                }
            }
        }
        as_text(families.into_values().collect())
    }

    /// Begins to export traces, on the runtime that this is called in. Once in a host's
    /// life; later calls give what the first one began.
    pub fn trace_to(&self, url: &str, http: reqwest::Client) -> Result<Traces, InvalidOtlp> {
        if let Some(traces) = self.traces.get() {
            return Ok(traces.clone());
        }
        let traces = Traces::start(url, http, self.spans.clone())?;
        Ok(self.traces.get_or_init(|| traces).clone())
    }

    /// The trace of a rollout that was just admitted; empty where traces go nowhere.
    pub(crate) fn trace(&self, rollout_id: &str) -> RolloutTrace {
        self.traces.get().map(|traces| traces.rollout(rollout_id)).unwrap_or_default()
    }

    /// A rollout was admitted.
    pub(crate) fn accepted(&self) {
        self.rollouts.accepted.inc();
    }

    /// A rollout was refused at once.
    pub fn refused(&self, why: Refusal) {
        self.rollouts.refused.at(why).inc();
    }

    /// A request did not carry the server's key.
    pub fn unauthorized(&self) {
        self.rollouts.unauthorized.inc();
    }

    /// The files of a rollout could not be written.
    pub(crate) fn trajectory_unwritten(&self) {
        self.rollouts.unwritten.inc();
    }

    /// An accepted rollout is over.
    pub(crate) fn ended(&self, how: Ended) {
        match how {
            Ended::Scored => self.rollouts.scored.inc(),
            Ended::Unscored { stage, kind, fault } => {
                self.rollouts.ended.with_label_values(&["unscored", stage, kind, fault]).inc();
            }
        }
    }

    /// A step took so long.
    pub(crate) fn took(&self, step: Step, time: Duration) {
        self.times[step.place()].observe(time.as_secs_f64());
    }

    /// Times a step from here until what is given back is dropped.
    pub(crate) fn time(self: &Arc<Self>, step: Step) -> Timing {
        Timing { metrics: self.clone(), step, since: Instant::now() }
    }

    /// A call of a model begins.
    pub(crate) fn model_call(&self, asked: ModelRole) -> ModelCall<'_> {
        let calls = match asked {
            ModelRole::Policy => &self.model,
            ModelRole::Judge => &self.judge,
        };
        calls.in_flight.inc();
        ModelCall { metrics: self, calls, since: Instant::now(), outcome: ModelOutcome::Abandoned }
    }

    /// A callback begins.
    pub(crate) fn callback(&self) -> Callback<'_> {
        Callback { metrics: self, since: Instant::now(), outcome: CallbackOutcome::Abandoned }
    }

    /// A call of a host-provided tool begins.
    pub(crate) fn tool_call(&self, kind: ToolKind) -> ToolCall<'_> {
        ToolCall { metrics: self, kind, since: Instant::now(), outcome: ToolOutcome::Abandoned }
    }

    /// One instance of a component's tool is over and used this.
    pub(crate) fn used_by_tool(&self, cpu: Duration, host_calls: u64) {
        self.meters.iter().for_each(|meter| meter.add_cpu(cpu));
        self.guests.cpu.inc_by(cpu.as_secs_f64());
        self.guests.host_calls.inc_by(host_calls);
    }

    /// A limit was hit.
    pub(crate) fn limit_hit(&self, limit: Limit) {
        self.guests.limits.at(limit).inc();
    }

    /// One rollout is over and its guests used this.
    pub(crate) fn used(&self, used: &Used) {
        self.meters.iter().for_each(|meter| meter.add_cpu(used.guest_cpu));
        self.guests.cpu.inc_by(used.guest_cpu.as_secs_f64());
        self.guests.memory.observe(used.memory_bytes_peak as f64);
        self.guests.host_calls.inc_by(used.host_calls);
        used.limits_hit.iter().for_each(|(limit, times)| self.guests.limits.at(limit).inc_by(times));
        self.guests.log_dropped.inc_by(used.log_dropped);
    }

    /// How many rollouts run and wait at present, and may run.
    pub fn is_busy(&self, running: u32, queued: u32, running_max: u32) {
        self.busy.running.set(running.into());
        self.busy.queued.set(queued.into());
        self.busy.running_max.set(running_max.into());
    }

    /// All of it in Prometheus' text format, with what the system says of this process.
    /// Reads files, which takes milliseconds in a process of many mappings.
    pub(crate) fn text(&self, busy: Busy) -> String {
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
        // Those of a registry come last, and in any order.
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
    fn series_of_closed_sets_are_there_before_anything_happened() {
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
    fn a_call_that_is_dropped_was_abandoned_and_is_not_in_flight() {
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
    fn what_several_count_is_one_text_in_which_each_has_its_labels() {
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
            "of the process, and not of a tenant"
        );
    }
}
