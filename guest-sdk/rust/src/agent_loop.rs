//! Agent loops: agents that say which tools they offer before they run, are told how far
//! they may go, and give back their final messages, with a reward of their own if they
//! have one.

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

/// The id of the one sample that an agent loop makes its chat calls for.
const SAMPLE: &str = "main";

/// An agent that says which tools it offers before it runs.
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
    /// The loop's name, the same every time.
    fn name() -> String;

    /// The tools of this rollout in OpenAI's form, as
    /// [`Tool::schema`](crate::Tool::schema) gives them; none by default. Called before
    /// the rollout runs, without a model, and again when it does: it has to say the
    /// same both times.
    ///
    /// # Errors
    ///
    /// An error keeps the rollout from starting.
    fn get_tools(request: &LoopRequest, config: &C) -> Result<Vec<Value>> {
        let _ = (request, config);
        Ok(Vec::new())
    }

    /// Runs one rollout.
    ///
    /// # Errors
    ///
    /// An error leaves the rollout without a reward, as [`LoopContext::error`] does with
    /// the messages so far.
    fn run(ctx: LoopContext<C>) -> Result<LoopOutput>;
}

/// What a rollout asks of an agent loop.
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

    /// The prompt.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// The turns that the caller has in mind. Nobody enforces it but the loop.
    pub fn max_turns(&self) -> u32 {
        self.max_turns
    }

    /// The tokens that the caller has in mind. Nobody enforces it but the loop.
    pub fn max_tokens_total(&self) -> u32 {
        self.max_tokens_total
    }

    /// The caller's sampling parameters. The host puts them into every chat request that
    /// does not say otherwise; a loop need not.
    pub fn completion_params(&self) -> &Map<String, Value> {
        &self.completion_params
    }

    /// The caller's metadata, read into a type. No metadata is read as an object without
    /// fields.
    ///
    /// # Errors
    ///
    /// An invalid one, if the metadata does not fit the type.
    pub fn metadata<T: DeserializeOwned>(&self) -> Result<T> {
        context::metadata()
    }

    /// The caller's metadata as it is, or `None`.
    ///
    /// # Errors
    ///
    /// An invalid one, if it is not JSON.
    pub fn metadata_json(&self) -> Result<Option<Value>> {
        context::metadata_json()
    }

    /// The rollout's id, as the caller chose it.
    pub fn rollout_id(&self) -> String {
        host::rollout_id()
    }
}

/// The rollout that an agent loop runs.
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

    /// What is asked for.
    pub fn request(&self) -> &LoopRequest {
        &self.request
    }

    /// The operator's configuration of this plugin.
    pub fn config(&self) -> &C {
        &self.config
    }

    /// The tools that [`AgentLoop::get_tools`] offers.
    pub fn tools(&self) -> &[Value] {
        &self.tools
    }

    /// Prepares a request to the model, with the loop's tools. The host adds the
    /// caller's sampling parameters where the request does not set them, and leaves the
    /// tools out where the caller has them from the start of the rollout.
    pub fn chat(&self, messages: &[Message]) -> ChatRequest<'_> {
        self.sample.chat(messages).tools(&self.tools)
    }

    /// The sample that the chat calls are made for, for measurements beside the
    /// messages, or to push messages to while the loop runs.
    pub fn sample(&self) -> &Sample {
        &self.sample
    }

    /// Counts a tool call and the time that it took.
    pub fn record_tool_call(&self, time: Duration) {
        self.tool_calls.set(self.tool_calls.get().saturating_add(1));
        self.tool_time.set(self.tool_time.get().saturating_add(time));
    }

    /// Writes an event for whoever debugs this rollout. Customary names are `pre_llm`,
    /// `llm_response`, `tool_results` and `rollout_complete`.
    pub fn log_event(&self, name: &str, data: impl Into<Value>) {
        log::event(name, data);
    }

    /// The loop did its work. The finish reason is `stop` unless
    /// [`LoopOutput::finish_reason`] says otherwise.
    pub fn complete(&self, messages: Vec<Message>) -> LoopOutput {
        self.output(None, messages, "stop")
    }

    /// The loop could not do its work: why, and the messages so far. There is no reward
    /// then.
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

    /// 1 for the first try, one more each time the rollout is started over.
    pub fn attempt(&self) -> u32 {
        host::attempt()
    }

    /// Time until the host ends this run; `None` where it has no deadline.
    pub fn time_left(&self) -> Option<Duration> {
        context::time_left()
    }
}

/// What an agent loop gives back, made by [`LoopContext::complete`] and
/// [`LoopContext::error`].
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
    /// Why the loop stopped: by custom `stop`, `tool_calls`, `length`, `max_turns`,
    /// `max_tokens` or `error`.
    pub fn finish_reason(mut self, reason: impl Into<String>) -> Self {
        self.finish_reason = reason.into();
        self
    }

    /// What the loop itself finds it worth. A grader, where one is run, has the last
    /// word.
    pub fn reward(mut self, reward: f64) -> Self {
        self.reward = Some(reward);
        self
    }

    /// A finite measurement.
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
