//! The trajectory document, ATIF.
//!
//! Absent values are omitted. Every key is known to readers of the format; other data goes under `extra`. A document may be
//! large, so its parts are borrowed, and the owner of the conversation writes its steps one by one.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The format's name and version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SchemaVersion {
    /// The version for readers that refuse the newest one, which adds only audio. No document of this host has audio.
    #[serde(rename = "ATIF-v1.7")]
    V1_7,
    /// The newest version.
    #[default]
    #[serde(rename = "ATIF-v1.8")]
    V1_8,
}

/// Source of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Instructions.
    System,
    /// The user.
    User,
    /// The model.
    Agent,
}

/// Cost of a model call, as observed by the host or reported to it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Metrics<'a> {
    /// Tokens of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<u64>,
    /// Tokens of the reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_tokens: Option<u64>,
    /// Cached tokens of the request, if the server reports them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u64>,
    /// Price, if the server reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// Token ids of the request, if the server reports them: a list of whole numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Cow<'a, RawValue>>,
    /// Token ids of the reply, if the server reports them: a list of whole numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_token_ids: Option<Cow<'a, RawValue>>,
    /// Log-probability of each token of the reply, if the server reports them: a list of numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Cow<'a, RawValue>>,
    /// Other data: an object.
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
    /// Cached tokens of all requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_cached_tokens: Option<u64>,
    /// Price of all steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_cost_usd: Option<f64>,
    /// Steps.
    pub total_steps: usize,
    /// Other data: an object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extra: Option<&'a RawValue>,
}
