//! Guards of operations in progress. Dropping a guard records the operation.

use std::sync::Arc;
use std::time::Instant;

use super::series::ModelSeries;
use super::{CallbackOutcome, Label, Metrics, ModelOutcome, Step, ToolKind, ToolOutcome};

/// Maximum number of tokens that one reply adds to the counters. The model's server reports the number; a wrong one
/// must not overflow a counter.
pub(super) const TOKENS_MAX: u64 = 1 << 32;

/// A step in progress. Dropping it records the duration.
#[derive(Debug)]
pub struct Timing {
    pub(super) metrics: Arc<Metrics>,
    pub(super) step: Step,
    pub(super) since: Instant,
}

impl Drop for Timing {
    fn drop(&mut self) {
        self.metrics.took(self.step, self.since.elapsed());
    }
}

/// A call of a model in progress. Dropping it without an outcome counts it as abandoned.
#[derive(Debug)]
pub struct ModelCall<'a> {
    pub(super) metrics: &'a Metrics,
    pub(super) calls: &'a ModelSeries,
    pub(super) since: Instant,
    pub(super) outcome: ModelOutcome,
}

impl ModelCall<'_> {
    /// Counts a retry.
    pub fn repeated(&self) {
        self.calls.retries.inc();
    }

    /// Counts the tokens of a reply.
    pub fn used_tokens(&self, prompt: u64, completion: u64) {
        self.calls.prompt_tokens.inc_by(prompt.min(TOKENS_MAX));
        self.calls.completion_tokens.inc_by(completion.min(TOKENS_MAX));
        let tokens = prompt.min(TOKENS_MAX) + completion.min(TOKENS_MAX);
        self.metrics.meters.iter().for_each(|meter| meter.add_tokens(tokens));
    }

    /// Ends the call with an outcome.
    pub fn ended(mut self, outcome: ModelOutcome) {
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

/// A call of a host-provided tool in progress. Dropping it without an outcome counts it as abandoned.
#[derive(Debug)]
pub struct ToolCall<'a> {
    pub(super) metrics: &'a Metrics,
    pub(super) kind: ToolKind,
    pub(super) since: Instant,
    pub(super) outcome: ToolOutcome,
}

impl ToolCall<'_> {
    /// Ends the call with an outcome.
    pub fn ended(mut self, outcome: ToolOutcome) {
        self.outcome = outcome;
    }
}

impl Drop for ToolCall<'_> {
    fn drop(&mut self) {
        let (seconds, ended) = &self.metrics.tool_calls[self.kind.index()];
        seconds.observe(self.since.elapsed().as_secs_f64());
        ended.at(self.outcome).inc();
    }
}

/// A callback in progress. Dropping it without an outcome counts it as abandoned.
#[derive(Debug)]
pub struct Callback<'a> {
    pub(super) metrics: &'a Metrics,
    pub(super) since: Instant,
    pub(super) outcome: CallbackOutcome,
}

impl Callback<'_> {
    /// Counts a retry.
    pub fn repeated(&self) {
        self.metrics.callbacks.retries.inc();
    }

    /// Ends the callback with an outcome.
    pub fn ended(mut self, outcome: CallbackOutcome) {
        self.outcome = outcome;
    }
}

impl Drop for Callback<'_> {
    fn drop(&mut self) {
        self.metrics.took(Step::Callback, self.since.elapsed());
        self.metrics.callbacks.ended.at(self.outcome).inc();
    }
}
