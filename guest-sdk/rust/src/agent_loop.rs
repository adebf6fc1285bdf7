//! Agent loops: agents that report their tools before they run, run within advisory limits, and return their
//! final messages, optionally with a reward.

use std::cell::Cell;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::bindings::agent_loop as contract;
use crate::bindings::imports::{context as host, types};
use crate::chat::ChatRequest;
use crate::message::{self, Message, parse_messages};
use crate::sample::Sample;
use crate::{Result, context, log, settings};

/// Id of the only sample of an agent loop.
const SAMPLE: &str = "main";

/// An agent that reports its tools before it runs.
///
/// `C` is the type of the operator's configuration, as for
/// [`Workflow`](crate::Workflow).
///
/// ```
/// use rollout_sdk::*;
///
/// struct Echo;
///
/// impl AgentLoop for Echo {
///     fn name() -> String {
///         "echo".to_owned()
///     }
///
///     fn run(ctx: LoopContext) -> Result<LoopOutput> {
///         let mut messages = ctx.request().messages().to_vec();
///         let reply = ctx.chat(&messages).send()?;
///         messages.push(reply.into_message());
///         Ok(ctx.complete(messages))
///     }
/// }
/// ```
pub trait AgentLoop<C: DeserializeOwned = ()> {
    /// Returns the loop's name, which must always be the same.
    fn name() -> String;

    /// Returns the tools of this rollout in OpenAI's form, as [`Tool::schema`](crate::Tool::schema) does;
    /// none by default. Called before the rollout runs, without a model, and again when it runs. Both calls
    /// must return the same tools.
    ///
    /// # Errors
    ///
    /// An error prevents the rollout from starting.
    fn get_tools(request: &LoopRequest, config: &C) -> Result<Vec<Value>> {
        let _ = (request, config);
        Ok(Vec::new())
    }

    /// Runs one rollout.
    ///
    /// # Errors
    ///
    /// An error leaves the rollout without a reward; [`LoopContext::error`] does the same and records the
    /// messages so far.
    fn run(ctx: LoopContext<C>) -> Result<LoopOutput>;
}

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct LoopRequest {
    messages: Vec<Message>,
    max_turns: u32,
    max_tokens_total: u32,
    completion_params: Map<String, Value>,
}

impl LoopRequest {
    pub(crate) fn read(request: contract::Request) -> Result<Self> {
        let contract::Request { messages, max_turns, max_tokens_total, completion_params } = request;
        Ok(Self {
            messages: parse_messages("prompt", &messages)?,
            max_turns,
            max_tokens_total,
            completion_params: settings::read("completion_params", Some(&completion_params))?,
        })
    }

    /// Returns the prompt.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Returns the number of turns that the caller intends. The host does not enforce it.
    pub fn max_turns(&self) -> u32 {
        self.max_turns
    }

    /// Returns the number of tokens that the caller intends. The host does not enforce it.
    pub fn max_tokens_total(&self) -> u32 {
        self.max_tokens_total
    }

    /// Returns the caller's sampling parameters. The host adds them to every chat request that does not set
    /// them, so the loop need not.
    pub fn completion_params(&self) -> &Map<String, Value> {
        &self.completion_params
    }

    /// Deserializes the caller's metadata. Missing metadata counts as an object without fields.
    ///
    /// # Errors
    ///
    /// Returns an invalid-input error if the metadata does not fit the type.
    pub fn metadata<T: DeserializeOwned>(&self) -> Result<T> {
        context::metadata()
    }

    /// Returns the caller's metadata, if there is any.
    ///
    /// # Errors
    ///
    /// Returns an invalid-input error if the metadata is not JSON.
    pub fn metadata_json(&self) -> Result<Option<Value>> {
        context::metadata_json()
    }

    /// Returns the rollout's id, which the caller chose.
    pub fn rollout_id(&self) -> String {
        host::rollout_id()
    }
}

/// The current rollout.
#[derive(Debug)]
pub struct LoopContext<C = ()> {
    request: LoopRequest,
    config: C,
    tools: Vec<Value>,
    sample: Sample,
    tool_calls: Cell<u32>,
    tool_time: Cell<Duration>,
}

impl<C> LoopContext<C> {
    pub(crate) fn new(request: LoopRequest, config: C, tools: Vec<Value>) -> Result<Self> {
        let sample = Sample::open(Some(SAMPLE))?;
        Ok(Self { request, config, tools, sample, tool_calls: Cell::default(), tool_time: Cell::default() })
    }

    /// Returns the parameters of the run.
    pub fn request(&self) -> &LoopRequest {
        &self.request
    }

    /// Returns the operator's configuration of this plugin.
    pub fn config(&self) -> &C {
        &self.config
    }

    /// Returns the tools from [`AgentLoop::get_tools`].
    pub fn tools(&self) -> &[Value] {
        &self.tools
    }

    /// Creates a request to the model with the loop's tools. The host adds sampling parameters that the
    /// request does not set, and omits the tools if the caller received them at the start of the rollout.
    pub fn chat(&self, messages: &[Message]) -> ChatRequest<'_> {
        self.sample.chat(messages).tools(&self.tools)
    }

    /// Returns the sample of the chat calls, for additional measurements or for pushing messages while the
    /// loop runs.
    pub fn sample(&self) -> &Sample {
        &self.sample
    }

    /// Counts a tool call and its duration.
    pub fn record_tool_call(&self, time: Duration) {
        self.tool_calls.set(self.tool_calls.get().saturating_add(1));
        self.tool_time.set(self.tool_time.get().saturating_add(time));
    }

    /// Logs an event for debugging this rollout. Customary names are `pre_llm`, `llm_response`,
    /// `tool_results` and `rollout_complete`.
    pub fn log_event(&self, name: &str, data: impl Into<Value>) {
        log::event(name, data);
    }

    /// Returns the output of a successful loop. The finish reason is `stop` unless
    /// [`LoopOutput::finish_reason`] sets another.
    pub fn complete(&self, messages: Vec<Message>) -> LoopOutput {
        self.output(None, messages, "stop")
    }

    /// Returns the output of a failed loop: the reason and the messages so far. The rollout has no reward.
    pub fn error(&self, why: impl Into<String>, messages: Vec<Message>) -> LoopOutput {
        self.output(Some(why.into()), messages, "error")
    }

    fn output(&self, error: Option<String>, messages: Vec<Message>, finish_reason: &str) -> LoopOutput {
        LoopOutput {
            error,
            messages,
            finish_reason: finish_reason.to_owned(),
            reward: None,
            metrics: Vec::new(),
            tool_calls: self.tool_calls.get(),
            tool_time: self.tool_time.get(),
        }
    }

    /// Returns the number of the attempt: 1 at first, one more each time the rollout restarts.
    pub fn attempt(&self) -> u32 {
        host::attempt()
    }

    /// Returns the time until the host ends this run, or `None` without a deadline.
    pub fn time_left(&self) -> Option<Duration> {
        context::time_left()
    }
}

/// Output of an agent loop, created by [`LoopContext::complete`] and [`LoopContext::error`].
#[derive(Clone, Debug)]
#[must_use = "an output says nothing until it is returned"]
pub struct LoopOutput {
    error: Option<String>,
    messages: Vec<Message>,
    finish_reason: String,
    reward: Option<f64>,
    metrics: Vec<(String, f64)>,
    tool_calls: u32,
    tool_time: Duration,
}

impl LoopOutput {
    /// Sets the finish reason: by convention `stop`, `tool_calls`, `length`, `max_turns`, `max_tokens` or
    /// `error`.
    pub fn finish_reason(mut self, reason: impl Into<String>) -> Self {
        self.finish_reason = reason.into();
        self
    }

    /// Sets the loop's own reward. If a grader runs, its reward takes precedence.
    pub fn reward(mut self, reward: f64) -> Self {
        self.reward = Some(reward);
        self
    }

    /// Adds a finite measurement.
    pub fn metric(mut self, name: impl Into<String>, value: f64) -> Self {
        self.metrics.push((name.into(), value));
        self
    }
}

impl From<LoopOutput> for contract::Outcome {
    fn from(output: LoopOutput) -> Self {
        let LoopOutput { error, messages, finish_reason, reward, metrics, tool_calls, tool_time } = output;
        Self {
            status: error.map_or(contract::Status::Completed, contract::Status::Error),
            messages: message::to_json(&messages),
            finish_reason,
            reward,
            metrics: metrics.into_iter().map(|(name, value)| types::Metric { name, value }).collect(),
            tool_calls,
            tool_time_ms: tool_time.as_secs_f64() * 1e3,
        }
    }
}
