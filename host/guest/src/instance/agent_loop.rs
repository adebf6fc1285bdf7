//! Requests to agent loops and their results, in the host's own types.

use crate::imports::bindings::exports::rollout::plugin::agent_loop::{Outcome, Request, Status};

/// Request of a rollout to an agent loop.
#[derive(Clone, Debug)]
pub struct LoopRequest {
    /// The prompt's messages, one JSON object each.
    pub messages: Vec<String>,
    /// The number of turns that the caller suggests.
    pub max_turns: u32,
    /// The number of tokens that the caller suggests.
    pub max_tokens_total: u32,
    /// Sampling parameters, a JSON object.
    pub completion_params: String,
}

/// Result of an agent loop as the guest returned it, unchecked.
#[derive(Debug)]
pub struct LoopOutcome {
    /// The reason of a failure that the guest reports.
    pub error: Option<String>,
    /// The conversation, one JSON object for each message.
    pub messages: Vec<String>,
    /// The reason why the loop stopped.
    pub finish_reason: String,
    /// The reward that the loop gives itself.
    pub reward: Option<f64>,
    /// The loop's metrics.
    pub metrics: Vec<(String, f64)>,
    /// Number of tool calls that the loop reports.
    pub tool_calls: u32,
    /// Total duration of the tool calls that the loop reports, in milliseconds.
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
            Status::Error(reason) => Some(reason),
        };
        let metrics = metrics.into_iter().map(|metric| (metric.name, metric.value)).collect();
        Self { error, messages, finish_reason, reward, metrics, tool_calls, tool_time_ms }
    }
}
