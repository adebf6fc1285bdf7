//! What an agent loop is asked and what it gives back, in the host's own types.

use crate::imports::bindings::exports::rollout::plugin::agent_loop::{Outcome, Request, Status};

/// What a rollout asks of an agent loop.
#[derive(Clone, Debug)]
pub struct LoopRequest {
    /// The prompt's messages, one JSON object each.
    pub messages: Vec<String>,
    /// The turns that the caller has in mind.
    pub max_turns: u32,
    /// The tokens that the caller has in mind.
    pub max_tokens_total: u32,
    /// Sampling parameters, a JSON object.
    pub completion_params: String,
}

/// What came of an agent loop, in its own words. Nothing in it is checked yet.
#[derive(Debug)]
pub struct LoopOutcome {
    /// Why it could not do its work, if it says so.
    pub error: Option<String>,
    /// The conversation, one JSON object a message.
    pub messages: Vec<String>,
    /// Why it stopped.
    pub finish_reason: String,
    /// A reward of its own.
    pub reward: Option<f64>,
    /// Its measurements.
    pub metrics: Vec<(String, f64)>,
    /// Tool calls that it says it made.
    pub tool_calls: u32,
    /// Milliseconds that it says they took.
    pub tool_time_ms: f64,
}

impl From<LoopRequest> for Request {
    fn from(request: LoopRequest) -> Self {
        let LoopRequest { messages, max_turns, max_tokens_total, completion_params } = request;
        Self { messages, max_turns, max_tokens_total, completion_params }
    }
}

impl From<Outcome> for LoopOutcome {
    fn from(outcome: Outcome) -> Self {
        let Outcome { status, messages, finish_reason, reward, metrics, tool_calls, tool_time_ms } = outcome;
        let error = match status {
            Status::Completed => None,
            Status::Error(why) => Some(why),
        };
        let metrics = metrics.into_iter().map(|metric| (metric.name, metric.value)).collect();
        Self { error, messages, finish_reason, reward, metrics, tool_calls, tool_time_ms }
    }
}
