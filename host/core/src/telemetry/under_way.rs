//! What is counted when it ends, however it does.

use std::sync::Arc;
use std::time::Instant;

use super::series::ModelSeries;
use super::{CallbackOutcome, Label, Metrics, ModelOutcome, Step, ToolKind, ToolOutcome};

/// Tokens that one reply may add. The number is the model server's own word; a wrong one
/// must not turn the counter over.
pub(super) const TOKENS_MAX: u64 = 1 << 32;

/// A step that goes on. Dropping it says how long it took.
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

/// A call of the model that goes on. Dropped without an outcome, it was abandoned.
#[derive(Debug)]
pub struct ModelCall<'a> {
    pub(super) metrics: &'a Metrics,
    pub(super) calls: &'a ModelSeries,
    pub(super) since: Instant,
    pub(super) outcome: ModelOutcome,
}

impl ModelCall<'_> {
    /// It is tried again.
    pub fn repeated(&self) {
        self.calls.retries.inc();
    }

    /// A reply cost so many tokens.
    pub fn used_tokens(&self, prompt: u64, completion: u64) {
        self.calls.prompt_tokens.inc_by(prompt.min(TOKENS_MAX));
        self.calls.completion_tokens.inc_by(completion.min(TOKENS_MAX));
        let tokens = prompt.min(TOKENS_MAX) + completion.min(TOKENS_MAX);
        self.metrics.meters.iter().for_each(|meter| meter.add_tokens(tokens));
    }

    /// It is over.
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

/// A call of a host-provided tool that goes on. Dropped without an outcome, it was abandoned.
#[derive(Debug)]
pub struct ToolCall<'a> {
    pub(super) metrics: &'a Metrics,
    pub(super) kind: ToolKind,
    pub(super) since: Instant,
    pub(super) outcome: ToolOutcome,
}

impl ToolCall<'_> {
    /// It is over.
    pub fn ended(mut self, outcome: ToolOutcome) {
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
pub struct Callback<'a> {
    pub(super) metrics: &'a Metrics,
    pub(super) since: Instant,
    pub(super) outcome: CallbackOutcome,
}

impl Callback<'_> {
    /// It is posted again.
    pub fn repeated(&self) {
        self.metrics.callbacks.retries.inc();
    }

    /// It is over.
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
