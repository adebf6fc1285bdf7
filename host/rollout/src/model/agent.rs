//! The agent of a rollout: its form, what an agent loop is given, and what it says of its run.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The form of agent that a plugin has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentForm {
    /// It is given a prompt and registers samples.
    Workflow,
    /// It says which tools it offers, and gives back its conversation.
    AgentLoop,
}

/// What an agent loop is given besides the prompt, as far as a protocol carries it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoopOptions {
    /// The turns that the caller has in mind.
    pub max_turns: u32,
    /// The tokens that the caller has in mind.
    pub max_tokens_total: u32,
    /// Sampling parameters, a JSON object. They hold for a workflow's requests too.
    pub completion_params: Option<Box<RawValue>>,
}

impl Default for LoopOptions {
    fn default() -> Self {
        Self { max_turns: 10, max_tokens_total: 8192, completion_params: None }
    }
}

/// What an agent loop says of a run that came to an end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoopReport {
    /// Why it stopped, in its own words.
    pub finish_reason: String,
    /// Tool calls that it made.
    pub tool_calls: u32,
    /// How long they took, summed over the calls.
    pub tool_time: Duration,
}
