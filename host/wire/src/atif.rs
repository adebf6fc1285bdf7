//! The trajectory document, ATIF.
//!
//! Absent values are left out; every key here is one that a reader of the format
//! knows, and what it has no place for goes under `extra`. A document may be large, so its
//! parts are borrowed, and its steps are written one by one by whoever has the conversation.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The format's name and version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SchemaVersion {
    /// For readers that refuse what is newer. What the later version adds, audio, is in no
    /// document of this host.
    #[serde(rename = "ATIF-v1.7")]
    V1_7,
    /// The newest.
    #[default]
    #[serde(rename = "ATIF-v1.8")]
    V1_8,
}

/// Who took a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Instructions.
    System,
    /// Whoever asked.
    User,
    /// The model.
    Agent,
}

/// What one call of the model cost, as the host saw it or was given it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Metrics<'a> {
    /// Tokens of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<u64>,
    /// Tokens of the reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_tokens: Option<u64>,
    /// Tokens of the request that the server had met before, where it says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u64>,
    /// The price, where the server says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// The request as tokens, where the server says: a list of whole numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Cow<'a, RawValue>>,
    /// The reply as tokens, where the server says: a list of whole numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_token_ids: Option<Cow<'a, RawValue>>,
    /// The log-probability of each token of the reply, where the server says: a list of numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Cow<'a, RawValue>>,
    /// What the format has no place for: an object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extra: Option<Box<RawValue>>,
}

/// Sums over the steps.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FinalMetrics<'a> {
    /// Tokens of all requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_prompt_tokens: Option<u64>,
    /// Tokens of all replies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_completion_tokens: Option<u64>,
    /// Tokens of all requests that the server had met before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_cached_tokens: Option<u64>,
    /// The price of all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_cost_usd: Option<f64>,
    /// Steps.
    pub total_steps: usize,
    /// What the format has no place for: an object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extra: Option<&'a RawValue>,
}
