//! The series that exist from the start, with their names and help texts.

use std::marker::PhantomData;
use std::sync::OnceLock;

use prometheus::core::Collector;
use prometheus::{
    Counter, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry,
};

use super::{
    CallbackOutcome, Label, Limit, Metrics, ModelOutcome, Refusal, Step, ToolKind, ToolOutcome, process,
    traces,
};

/// The value of a label that does not apply.
const NONE: &str = "none";

/// Buckets in seconds for durations of microseconds.
const SHORT: &[f64] = &[
    0.000_01, 0.000_02, 0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.05, 0.25, 1.0, 5.0,
];

/// Buckets in seconds for durations from a millisecond to an hour.
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

/// Series of rollouts.
#[derive(Debug)]
pub(super) struct RolloutSeries {
    pub(super) accepted: IntCounter,
    pub(super) refused: Counters<Refusal>,
    pub(super) ended: IntCounterVec,
    pub(super) scored: IntCounter,
    pub(super) unauthorized: IntCounter,
    pub(super) unwritten: IntCounter,
}

/// Series of the host's load.
#[derive(Debug)]
pub(super) struct BusySeries {
    pub(super) running: IntGauge,
    pub(super) queued: IntGauge,
    pub(super) running_max: IntGauge,
    pub(super) held_bytes: IntGaugeVec,
    pub(super) held_bytes_max: IntGauge,
}

/// Series of the calls of one model.
#[derive(Debug)]
pub(super) struct ModelSeries {
    pub(super) ended: Counters<ModelOutcome>,
    pub(super) in_flight: IntGauge,
    pub(super) retries: IntCounter,
    pub(super) prompt_tokens: IntCounter,
    pub(super) completion_tokens: IntCounter,
    pub(super) step: Step,
}

/// Series of callbacks.
#[derive(Debug)]
pub(super) struct CallbackSeries {
    pub(super) ended: Counters<CallbackOutcome>,
    pub(super) retries: IntCounter,
}

/// Series of guests' resource usage.
#[derive(Debug)]
pub(super) struct GuestSeries {
    pub(super) cpu: Counter,
    pub(super) memory: Histogram,
    pub(super) host_calls: IntCounter,
    pub(super) limits: Counters<Limit>,
    pub(super) log_dropped: IntCounter,
}

/// A counter for each label of a closed set.
#[derive(Debug)]
pub(super) struct Counters<L> {
    each: Vec<IntCounter>,
    labels: PhantomData<L>,
}

impl<L: Label> Counters<L> {
    pub(super) fn of(family: IntCounterVec) -> Self {
        let each = L::ALL.iter().map(|label| family.with_label_values(&[label.as_str()])).collect();
        Self { each, labels: PhantomData }
    }

    pub(super) fn at(&self, label: L) -> &IntCounter {
        &self.each[label.index()]
    }
}

impl Metrics {
    /// Registers all series. Those of the whole process are left out of the registry if `is_whole` is false, for a
    /// tenant.
    pub(super) fn registered(registry: Registry, is_whole: bool) -> prometheus::Result<Self> {
        let add = Add(&registry);
        let build = "Always 1; its label is the version.";
        let build = add.gauges("rollout_host_build_info", build, "version")?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        if is_whole {
            registry.register(Box::new(process::Process::new()?))?;
        }
        let elsewhere = Registry::new();
        let whole = if is_whole { add } else { Add(&elsewhere) };
        Ok(Self {
            rollouts: add.rollouts()?,
            busy: add.busy(whole)?,
            times: Step::ALL.iter().map(|step| add.times(*step)).collect::<Result<_, _>>()?,
            model: add.calls_of("model", "rollout_host_tokens_total", Step::ModelCall)?,
            judge: add.calls_of("judge", "rollout_host_judge_tokens_total", Step::JudgeCall)?,
            callbacks: add.callbacks()?,
            tool_calls: add.tool_calls()?,
            guests: add.guests()?,
            spans: traces::SpanCounts {
                exported: add.counter(
                    "rollout_host_trace_spans_exported_total",
                    "Spans that the trace collector accepted.",
                )?,
                dropped: add.counter(
                    "rollout_host_trace_spans_dropped_total",
                    "Spans dropped because the trace collector was slow or unreachable.",
                )?,
            },
            traces: OnceLock::new(),
            meters: Vec::new(),
            registry,
        })
    }
}

/// Adds series to a registry.
#[derive(Clone, Copy)]
struct Add<'a>(&'a Registry);

impl Add<'_> {
    fn added<C: Collector + Clone + 'static>(self, metric: C) -> prometheus::Result<C> {
        self.0.register(Box::new(metric.clone()))?;
        Ok(metric)
    }

    fn counter(self, name: &str, help: &str) -> prometheus::Result<IntCounter> {
        self.added(IntCounter::new(name, help)?)
    }

    fn gauge(self, name: &str, help: &str) -> prometheus::Result<IntGauge> {
        self.added(IntGauge::new(name, help)?)
    }

    fn gauges(self, name: &str, help: &str, label: &str) -> prometheus::Result<IntGaugeVec> {
        self.added(IntGaugeVec::new(Opts::new(name, help), &[label])?)
    }

    fn counters(self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntCounterVec> {
        self.added(IntCounterVec::new(Opts::new(name, help), labels)?)
    }

    fn histogram(self, name: &str, help: &str, buckets: &[f64]) -> prometheus::Result<Histogram> {
        self.added(Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec()))?)
    }

    fn rollouts(self) -> prometheus::Result<RolloutSeries> {
        let ended = self.counters(
            "rollout_host_rollouts_ended_total",
            "Accepted rollouts that have ended; stage, kind and fault tell why one has no reward.",
            &["outcome", "stage", "kind", "fault"],
        )?;
        Ok(RolloutSeries {
            accepted: self.counter("rollout_host_rollouts_accepted_total", "Admitted rollouts.")?,
            refused: Counters::of(self.counters(
                "rollout_host_rollouts_refused_total",
                "Rollouts refused instead of being admitted.",
                &["reason"],
            )?),
            scored: ended.with_label_values(&["scored", NONE, NONE, NONE]),
            ended,
            unauthorized: self.counter(
                "rollout_host_requests_unauthorized_total",
                "Requests of any kind without the server's key, answered 401.",
            )?,
            unwritten: self.counter(
                "rollout_host_trajectories_unwritten_total",
                "Reported rollouts whose files could not be written.",
            )?,
        })
    }

    fn busy(self, whole: Self) -> prometheus::Result<BusySeries> {
        Ok(BusySeries {
            running: self.gauge("rollout_host_rollouts_running", "Rollouts that have a slot.")?,
            queued: self.gauge("rollout_host_rollouts_queued", "Rollouts that wait for a slot.")?,
            running_max: self
                .gauge("rollout_host_rollouts_running_max", "Slots: rollouts that may run at once.")?,
            held_bytes: whole.gauges(
                "rollout_host_held_bytes",
                "Bytes held for callers and guests, by purpose, as the memory budget counts them.",
                "use",
            )?,
            held_bytes_max: whole.gauge(
                "rollout_host_held_bytes_max",
                "The memory budget: bytes that may be held for callers and guests.",
            )?,
        })
    }

    fn times(self, step: Step) -> prometheus::Result<Histogram> {
        let (buckets, subject) = match step {
            Step::Queue => (LONG, "Wait for a slot after admission"),
            Step::InstanceStart => (SHORT, "Creation of an instance of a plugin"),
            Step::Workflow => (LONG, "Run of a workflow with any outcome"),
            Step::ModelCall => (LONG, "Call of the model with its retries"),
            Step::Grader => (LONG, "Run of a grader with any outcome"),
            Step::JudgeCall => (LONG, "Call of the judge with its retries"),
            Step::Callback => (LONG, "Callback with its retries"),
            Step::TrajectoryWrite => (LONG, "Write of trajectory, artifacts and log of a rollout"),
            Step::Rollout => (LONG, "Rollout from admission until its trajectory is written"),
        };
        let name = format!("rollout_host_{}_seconds", step.as_str());
        self.histogram(&name, &format!("{subject}, in seconds."), buckets)
    }

    /// Creates the series of a model's calls. The name of the token counter is not derived from the model's.
    fn calls_of(self, model: &str, tokens: &str, step: Step) -> prometheus::Result<ModelSeries> {
        let name = |suffix: &str| format!("rollout_host_{model}_{suffix}");
        let tokens_help = format!("Tokens of {model} calls, as the {model}'s server reported them.");
        let tokens = self.counters(tokens, &tokens_help, &["kind"])?;
        let ended_help = format!("Calls of the {model} that have ended, counted once with their retries.");
        Ok(ModelSeries {
            ended: Counters::of(self.counters(&name("calls_total"), &ended_help, &["outcome"])?),
            in_flight: self.gauge(&name("calls_in_flight"), &format!("Calls of the {model} in progress."))?,
            retries: self.counter(&name("retries_total"), &format!("Retries of calls of the {model}."))?,
            prompt_tokens: tokens.with_label_values(&["prompt"]),
            completion_tokens: tokens.with_label_values(&["completion"]),
            step,
        })
    }

    fn callbacks(self) -> prometheus::Result<CallbackSeries> {
        Ok(CallbackSeries {
            ended: Counters::of(self.counters(
                "rollout_host_callbacks_total",
                "Callbacks that have ended, counted once with their retries.",
                &["outcome"],
            )?),
            retries: self.counter("rollout_host_callback_retries_total", "Retries of callbacks.")?,
        })
    }

    fn tool_calls(self) -> prometheus::Result<Vec<(Histogram, Counters<ToolOutcome>)>> {
        let seconds = HistogramOpts::new(
            "rollout_host_tool_seconds",
            "Call of a host-provided tool, including the wait for its start, in seconds.",
        );
        let seconds = self.added(HistogramVec::new(seconds.buckets(LONG.to_vec()), &["kind"])?)?;
        let ended = self.counters(
            "rollout_host_tool_calls_total",
            "Calls of host-provided tools that have ended.",
            &["kind", "outcome"],
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

    fn guests(self) -> prometheus::Result<GuestSeries> {
        Ok(GuestSeries {
            cpu: self.added(Counter::new(
                "rollout_host_guest_cpu_seconds_total",
                "CPU time of guests, including the host's work in their calls.",
            )?)?,
            memory: self.histogram(
                "rollout_host_guest_memory_peak_bytes",
                "The larger memory peak of the two instances of a rollout, in bytes.",
                MEMORY,
            )?,
            host_calls: self
                .counter("rollout_host_host_calls_total", "Calls of the contract's imports by guests.")?,
            limits: Counters::of(self.counters(
                "rollout_host_limit_hits_total",
                "Times that a limit stopped or refused something, by the key that raises it.",
                &["limit"],
            )?),
            log_dropped: self.counter(
                "rollout_host_log_entries_dropped_total",
                "Guests' log entries dropped because of a limit.",
            )?,
        })
    }
}
