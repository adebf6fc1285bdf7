//! What an operator sees of the host: metrics for Prometheus, traces for OpenTelemetry,
//! and how many log lines are too many.
//!
//! [`Metrics`] belongs to one host and is handed down to whoever has something to
//! count. Every series of a closed set of labels exists from the start and is found by
//! an index, so that counting is an atomic addition: no lock, no allocation. Only a
//! rollout that ends unscored looks its series up.
//!
//! This module knows no rollout. It is told words and durations.

mod labels;
mod lines;
mod one_line;
mod process;
mod traces;

pub use labels::{
    CallbackOutcome, Label, Limit, LimitHits, ModelOutcome, Refusal, Step, ToolKind, ToolOutcome,
};
pub use lines::LineBudget;
pub use one_line::OneLineFields;
pub use traces::{InvalidOtlp, RolloutTrace, Span, TraceParent, Traces};

use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use prometheus::core::Collector;
use prometheus::{
    Counter, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder,
};

/// The content type of `Metrics::text`.
pub const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The word in a label that does not apply.
const NONE: &str = "none";

/// Tokens that one reply may add. The number is the model server's own word; a wrong one
/// must not turn the counter over.
const TOKENS_MAX: u64 = 1 << 32;

/// Buckets in seconds for what takes microseconds.
const SHORT: &[f64] = &[
    0.000_01, 0.000_02, 0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.05, 0.25, 1.0, 5.0,
];

/// Buckets in seconds for what may take from a millisecond to an hour.
const LONG: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
    900.0, 3600.0,
];

/// Buckets in bytes for a guest's memory, from 1 MiB to 1 GiB.
const MEMORY: &[f64] = &[
    1_048_576.0,
    2_097_152.0,
    4_194_304.0,
    8_388_608.0,
    16_777_216.0,
    33_554_432.0,
    67_108_864.0,
    134_217_728.0,
    268_435_456.0,
    536_870_912.0,
    1_073_741_824.0,
];

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

/// Which model is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelRole {
    /// The one that is trained or evaluated.
    Policy,
    /// The one that judges.
    Judge,
}

/// What is counted of the calls of one of them.
#[derive(Debug)]
struct ModelCalls {
    ended: Counters<ModelOutcome>,
    in_flight: IntGauge,
    retries: IntCounter,
    prompt_tokens: IntCounter,
    completion_tokens: IntCounter,
    step: Step,
}

/// Everything that one host counts.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    accepted: IntCounter,
    refused: Counters<Refusal>,
    ended: IntCounterVec,
    scored: IntCounter,
    unauthorized: IntCounter,
    running: IntGauge,
    queued: IntGauge,
    held_bytes: IntGaugeVec,
    held_bytes_max: IntGauge,
    running_max: IntGauge,
    times: Vec<Histogram>,
    model: ModelCalls,
    judge: ModelCalls,
    callbacks: Counters<CallbackOutcome>,
    callback_retries: IntCounter,
    /// For each kind of tool its times, and a counter for each outcome.
    tool_calls: Vec<(Histogram, Counters<ToolOutcome>)>,
    guest_cpu: Counter,
    guest_memory: Histogram,
    host_calls: IntCounter,
    limits: Counters<Limit>,
    log_dropped: IntCounter,
    spans: traces::SpanCounts,
    traces: OnceLock<Traces>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Metrics that have counted nothing yet.
    pub fn new() -> Self {
        Self::registered(Registry::new())
            .unwrap_or_else(|error| unreachable!("names, labels and buckets are constants: {error}"))
    }

    fn registered(registry: Registry) -> prometheus::Result<Self> {
        let counter = |name: &str, help: &str| added(&registry, IntCounter::new(name, help)?);
        let gauge = |name: &str, help: &str| added(&registry, IntGauge::new(name, help)?);
        let counters = |name: &str, help: &str, labels: &[&str]| {
            added(&registry, IntCounterVec::new(Opts::new(name, help), labels)?)
        };
        let times = |step: &Step| {
            let (buckets, what) = match step {
                Step::Queue => (LONG, "From admission to a slot"),
                Step::InstanceStart => (SHORT, "Making an instance of a plugin"),
                Step::Workflow => (LONG, "A run of a workflow, however it ended"),
                Step::ModelCall => (LONG, "A call of the model with its retries"),
                Step::Grader => (LONG, "A run of a grader, however it ended"),
                Step::JudgeCall => (LONG, "A call of the judge with its retries"),
                Step::Callback => (LONG, "A callback with its retries"),
                Step::TrajectoryWrite => (LONG, "Writing trajectory, artifacts and log of a rollout"),
                Step::Rollout => (LONG, "A rollout from admission until its trajectory is written"),
            };
            let name = format!("rollout_host_{}_seconds", step.as_str());
            let options = HistogramOpts::new(name, format!("{what}, in seconds.")).buckets(buckets.to_vec());
            added(&registry, Histogram::with_opts(options)?)
        };
        let ended = counters(
            "rollout_host_rollouts_ended_total",
            "Accepted rollouts that are over; stage, kind and fault say why one has no reward.",
            &["outcome", "stage", "kind", "fault"],
        )?;
        let calls_of = |names: [&str; 4], who: &str, step| -> prometheus::Result<ModelCalls> {
            let [ended, in_flight, retries, tokens] = names;
            let tokens = counters(
                tokens,
                &format!("Tokens of {who} calls, as far as the {who}'s server said."),
                &["kind"],
            )?;
            Ok(ModelCalls {
                ended: Counters::of(counters(
                    ended,
                    &format!("Calls of the {who} that are over, each with its retries."),
                    &["outcome"],
                )?),
                in_flight: gauge(in_flight, &format!("Calls of the {who} under way."))?,
                retries: counter(retries, &format!("Calls of the {who} that were repeated."))?,
                prompt_tokens: tokens.with_label_values(&["prompt"]),
                completion_tokens: tokens.with_label_values(&["completion"]),
                step,
            })
        };
        let build = added(
            &registry,
            IntGaugeVec::new(
                Opts::new("rollout_host_build_info", "Always 1; its label says what runs."),
                &["version"],
            )?,
        )?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        registry.register(Box::new(process::Process::new()?))?;
        Ok(Self {
            accepted: counter("rollout_host_rollouts_accepted_total", "Rollouts that were admitted.")?,
            refused: Counters::of(counters(
                "rollout_host_rollouts_refused_total",
                "Rollouts that were refused at once.",
                &["reason"],
            )?),
            scored: ended.with_label_values(&["scored", NONE, NONE, NONE]),
            ended,
            unauthorized: counter(
                "rollout_host_requests_unauthorized_total",
                "Requests of any kind without the server's key, answered 401.",
            )?,
            running: gauge("rollout_host_rollouts_running", "Rollouts that have a slot.")?,
            queued: gauge("rollout_host_rollouts_queued", "Rollouts that wait for a slot.")?,
            held_bytes: added(
                &registry,
                IntGaugeVec::new(
                    Opts::new(
                        "rollout_host_held_bytes",
                        "Bytes held for callers and guests, by what for, as the memory budget counts them.",
                    ),
                    &["use"],
                )?,
            )?,
            held_bytes_max: gauge(
                "rollout_host_held_bytes_max",
                "The memory budget: bytes that may be held for callers and guests.",
            )?,
            running_max: gauge("rollout_host_rollouts_running_max", "Slots: rollouts that run at once.")?,
            times: Step::ALL.iter().map(times).collect::<Result<_, _>>()?,
            model: calls_of(
                [
                    "rollout_host_model_calls_total",
                    "rollout_host_model_calls_in_flight",
                    "rollout_host_model_retries_total",
                    "rollout_host_tokens_total",
                ],
                "model",
                Step::ModelCall,
            )?,
            judge: calls_of(
                [
                    "rollout_host_judge_calls_total",
                    "rollout_host_judge_calls_in_flight",
                    "rollout_host_judge_retries_total",
                    "rollout_host_judge_tokens_total",
                ],
                "judge",
                Step::JudgeCall,
            )?,
            callbacks: Counters::of(counters(
                "rollout_host_callbacks_total",
                "Callbacks that are over, each with its retries.",
                &["outcome"],
            )?),
            callback_retries: counter(
                "rollout_host_callback_retries_total",
                "Callbacks that were repeated.",
            )?,
            tool_calls: tool_calls(&registry)?,
            guest_cpu: added(
                &registry,
                Counter::new(
                    "rollout_host_guest_cpu_seconds_total",
                    "CPU time of guests, with what the host did within their calls.",
                )?,
            )?,
            guest_memory: added(
                &registry,
                Histogram::with_opts(
                    HistogramOpts::new(
                        "rollout_host_guest_memory_peak_bytes",
                        "The most memory that either instance of a rollout had, in bytes.",
                    )
                    .buckets(MEMORY.to_vec()),
                )?,
            )?,
            host_calls: counter(
                "rollout_host_host_calls_total",
                "Calls of the contract's imports by guests.",
            )?,
            limits: Counters::of(counters(
                "rollout_host_limit_hits_total",
                "Times that a limit stopped or refused something, by its name in [limits].",
                &["limit"],
            )?),
            log_dropped: counter(
                "rollout_host_log_entries_dropped_total",
                "Guests' log entries that were dropped at a limit.",
            )?,
            spans: traces::SpanCounts {
                exported: counter(
                    "rollout_host_trace_spans_exported_total",
                    "Spans that the collector of traces took.",
                )?,
                dropped: counter(
                    "rollout_host_trace_spans_dropped_total",
                    "Spans that were dropped because the collector of traces was slow or gone.",
                )?,
            },
            traces: OnceLock::new(),
            registry,
        })
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
        self.accepted.inc();
    }

    /// A rollout was refused at once.
    pub fn refused(&self, why: Refusal) {
        self.refused.at(why).inc();
    }

    /// A request did not carry the server's key.
    pub fn unauthorized(&self) {
        self.unauthorized.inc();
    }

    /// An accepted rollout is over.
    pub(crate) fn ended(&self, how: Ended) {
        match how {
            Ended::Scored => self.scored.inc(),
            Ended::Unscored { stage, kind, fault } => {
                self.ended.with_label_values(&["unscored", stage, kind, fault]).inc();
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
        self.guest_cpu.inc_by(cpu.as_secs_f64());
        self.host_calls.inc_by(host_calls);
    }

    /// A limit was hit.
    pub(crate) fn limit_hit(&self, limit: Limit) {
        self.limits.at(limit).inc();
    }

    /// One rollout is over and its guests used this.
    pub(crate) fn used(&self, used: &Used) {
        self.guest_cpu.inc_by(used.guest_cpu.as_secs_f64());
        self.guest_memory.observe(used.memory_bytes_peak as f64);
        self.host_calls.inc_by(used.host_calls);
        used.limits_hit.iter().for_each(|(limit, times)| self.limits.at(limit).inc_by(times));
        self.log_dropped.inc_by(used.log_dropped);
    }

    /// All of it in Prometheus' text format, with what the system says of this process.
    /// Reads files, which takes milliseconds in a process of many mappings.
    pub(crate) fn text(&self, busy: Busy) -> String {
        self.running.set(busy.running.into());
        self.queued.set(busy.queued.into());
        self.running_max.set(busy.running_max.into());
        let number = |bytes: usize| i64::try_from(bytes).unwrap_or(i64::MAX);
        for (use_, bytes) in busy.held_bytes {
            self.held_bytes.with_label_values(&[use_]).set(number(bytes));
        }
        self.held_bytes_max.set(number(busy.held_bytes_max));
        TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap_or_else(|error| {
            tracing::error!(%error, "metrics could not be written as text");
            String::new()
        })
    }
}

fn added<C: Collector + Clone + 'static>(registry: &Registry, metric: C) -> prometheus::Result<C> {
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

fn tool_calls(registry: &Registry) -> prometheus::Result<Vec<(Histogram, Counters<ToolOutcome>)>> {
    let seconds = HistogramOpts::new(
        "rollout_host_tool_seconds",
        "A call of a host-provided tool with the wait for its turn, in seconds.",
    );
    let seconds = added(registry, HistogramVec::new(seconds.buckets(LONG.to_vec()), &["kind"])?)?;
    let ended = added(
        registry,
        IntCounterVec::new(
            Opts::new("rollout_host_tool_calls_total", "Calls of host-provided tools that are over."),
            &["kind", "outcome"],
        )?,
    )?;
    let of_kind = |kind: &ToolKind| {
        let each = ToolOutcome::ALL
            .iter()
            .map(|outcome| ended.with_label_values(&[kind.as_str(), outcome.as_str()]))
            .collect();
        (seconds.with_label_values(&[kind.as_str()]), Counters { each, labels: PhantomData })
    };
    Ok(ToolKind::ALL.iter().map(of_kind).collect())
}

/// A counter for each label of a closed set.
#[derive(Debug)]
struct Counters<L> {
    each: Vec<IntCounter>,
    labels: PhantomData<L>,
}

impl<L: Label> Counters<L> {
    fn of(family: IntCounterVec) -> Self {
        let each = L::ALL.iter().map(|label| family.with_label_values(&[label.as_str()])).collect();
        Self { each, labels: PhantomData }
    }

    fn at(&self, label: L) -> &IntCounter {
        &self.each[label.place()]
    }
}

/// A step that goes on. Dropping it says how long it took.
#[derive(Debug)]
pub(crate) struct Timing {
    metrics: Arc<Metrics>,
    step: Step,
    since: Instant,
}

impl Drop for Timing {
    fn drop(&mut self) {
        self.metrics.took(self.step, self.since.elapsed());
    }
}

/// A call of the model that goes on. Dropped without an outcome, it was abandoned.
#[derive(Debug)]
pub(crate) struct ModelCall<'a> {
    metrics: &'a Metrics,
    calls: &'a ModelCalls,
    since: Instant,
    outcome: ModelOutcome,
}

impl ModelCall<'_> {
    /// It is tried again.
    pub(crate) fn repeated(&self) {
        self.calls.retries.inc();
    }

    /// A reply cost so many tokens.
    pub(crate) fn used_tokens(&self, prompt: u64, completion: u64) {
        self.calls.prompt_tokens.inc_by(prompt.min(TOKENS_MAX));
        self.calls.completion_tokens.inc_by(completion.min(TOKENS_MAX));
    }

    /// It is over.
    pub(crate) fn ended(mut self, outcome: ModelOutcome) {
        self.outcome = outcome;
    }
}

impl Drop for ModelCall<'_> {
    fn drop(&mut self) {
        self.calls.in_flight.dec();
        self.metrics.took(self.calls.step, self.since.elapsed());
        self.calls.ended.at(self.outcome).inc();
    }
}

/// A call of a host-provided tool that goes on. Dropped without an outcome, it was abandoned.
#[derive(Debug)]
pub(crate) struct ToolCall<'a> {
    metrics: &'a Metrics,
    kind: ToolKind,
    since: Instant,
    outcome: ToolOutcome,
}

impl ToolCall<'_> {
    /// It is over.
    pub(crate) fn ended(mut self, outcome: ToolOutcome) {
        self.outcome = outcome;
    }
}

impl Drop for ToolCall<'_> {
    fn drop(&mut self) {
        let (seconds, ended) = &self.metrics.tool_calls[self.kind.place()];
        seconds.observe(self.since.elapsed().as_secs_f64());
        ended.at(self.outcome).inc();
    }
}

/// A callback that goes on. Dropped without an outcome, it was abandoned.
#[derive(Debug)]
pub(crate) struct Callback<'a> {
    metrics: &'a Metrics,
    since: Instant,
    outcome: CallbackOutcome,
}

impl Callback<'_> {
    /// It is posted again.
    pub(crate) fn repeated(&self) {
        self.metrics.callback_retries.inc();
    }

    /// It is over.
    pub(crate) fn ended(mut self, outcome: CallbackOutcome) {
        self.outcome = outcome;
    }
}

impl Drop for Callback<'_> {
    fn drop(&mut self) {
        self.metrics.took(Step::Callback, self.since.elapsed());
        self.metrics.callbacks.at(self.outcome).inc();
    }
}

#[cfg(test)]
mod tests {
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
        assert_eq!(metrics.callbacks.at(CallbackOutcome::Delivered).get(), 1);
        assert_eq!(metrics.model.prompt_tokens.get(), TOKENS_MAX);
    }
}
