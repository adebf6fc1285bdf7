//! The agent of a rollout: its form, the options of an agent loop, and its report.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Form of a plugin's agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentForm {
    /// Receives a prompt and registers samples.
    Workflow,
    /// Offers tools and returns its conversation.
    AgentLoop,
    /// An environment, in which the host has the model play one episode by its tools.
    Environment,
}

/// Options of an agent loop that a protocol may set.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoopOptions {
    /// The number of turns that the caller suggests.
    pub max_turns: u32,
    /// Maximum number of replies of a model that plays an environment, if the caller gives one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turns_max: Option<u32>,
    /// The number of tokens that the caller suggests.
    pub max_tokens_total: u32,
    /// Sampling parameters, a JSON object. They apply to a workflow's requests as well.
    pub completion_params: Option<Box<RawValue>>,
}

impl Default for LoopOptions {
    fn default() -> Self {
        Self { max_turns: 10, turns_max: None, max_tokens_total: 8192, completion_params: None }
    }
}

/// Report of an agent loop, or of a model's episode in an environment, that has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoopReport {
    /// The reason why it stopped, in its own words.
    pub finish_reason: String,
    /// Number of tool calls.
    pub tool_calls: u32,
    /// Sum of the calls' durations.
    pub tool_time: Duration,
}
