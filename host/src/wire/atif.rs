//! The trajectory document, ATIF v1.7.
//!
//! Absent values are left out; every key here is one that a reader of the format
//! knows, and what it has no place for goes under `extra`.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// The format's name and version.
pub const SCHEMA_VERSION: &str = "ATIF-v1.7";

/// One trajectory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Trajectory {
    /// [`SCHEMA_VERSION`].
    pub schema_version: Cow<'static, str>,
    /// The rollout.
    pub session_id: String,
    /// The rollout, and the sample where it has several.
    pub trajectory_id: String,
    /// What ran.
    pub agent: Agent,
    /// What happened, numbered from 1; never empty.
    pub steps: Vec<Step>,
    /// Sums over the steps.
    pub final_metrics: FinalMetrics,
    /// What the format has no place for, by whose it is.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
}

/// What ran.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Agent {
    /// The program that ran the agent.
    pub name: Cow<'static, str>,
    /// Its version.
    pub version: Cow<'static, str>,
    /// The model, as its server calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_name: Option<String>,
}

/// Who took a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Instructions.
    System,
    /// Whoever asked.
    User,
    /// The model.
    Agent,
}

/// One message with what belongs to it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Step {
    /// 1, 2, 3…
    pub step_id: usize,
    /// Who took it.
    pub source: Source,
    /// The text.
    pub message: String,
    /// The model that wrote it, where whoever asked for the rollout said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_name: Option<String>,
    /// What the model thought, where its server says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// The calls that the model wanted made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// What came of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observation: Option<Observation>,
    /// What the step cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Metrics>,
    /// Calls of the model behind this step, where the host saw them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub llm_call_count: Option<u32>,
    /// What the format has no place for.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
}

/// A call that the model wanted made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ToolCall {
    /// Its id, `call_<place>` where it has none.
    pub tool_call_id: String,
    /// The function, `unknown` where it has none.
    pub function_name: String,
    /// The arguments, an object; text that is none is under `_raw`.
    pub arguments: Value,
}

/// What came of a step's calls.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Observation {
    /// One for each tool message.
    pub results: Vec<ObservationResult>,
}

/// What came of one call.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ObservationResult {
    /// The call, where it is one of the same step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_call_id: Option<String>,
    /// What the model reads.
    pub content: String,
}

/// What one call of the model cost, as the host saw it or was told.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Metrics {
    /// Tokens of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<u64>,
    /// Tokens of the reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_tokens: Option<u64>,
    /// Tokens of the request that the server had met before, where it says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u64>,
    /// The price, where the server says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// The request as tokens, where the server says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Box<RawValue>>,
    /// The reply as tokens, where the server says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_token_ids: Option<Box<RawValue>>,
    /// The log-probability of each token of the reply, where the server says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Vec<f64>>,
    /// What the format has no place for.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
}

/// Sums over the steps.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct FinalMetrics {
    /// Tokens of all requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_prompt_tokens: Option<u64>,
    /// Tokens of all replies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_completion_tokens: Option<u64>,
    /// Tokens of all requests that the server had met before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_cached_tokens: Option<u64>,
    /// The price of all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_cost_usd: Option<f64>,
    /// Steps.
    pub total_steps: usize,
    /// What the format has no place for.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
}
