//! The ready-made tool loop.
//!
//! An [`Agent`] calls the model, runs the requested tools, appends the results and repeats until the model
//! stops or a limit is reached. Every message is pushed to the sample as it arrives, so an aborted rollout
//! still has its history.

use std::cell::OnceCell;

use serde_json::{Map, Value};

use crate::Result;
use crate::chat::{ChatError, ChatRequest, Usage};
use crate::message::{Message, last_assistant_text};
use crate::sample::Sample;
use crate::tool::{Tool, ToolResult};
use crate::toolbox::Toolbox;

/// A tool loop to be configured and [run](Self::run).
///
/// ```no_run
/// # use rollout_sdk::{Context, Result, Tool};
/// # fn example(ctx: Context, calculator: Tool) -> Result<()> {
/// let run = ctx
///     .agent()?
///     .system("Use the calculator.")
///     .tool(calculator)
///     .max_turns(8)
///     .run()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "an agent does nothing until it is run"]
pub struct Agent {
    sample: Sample,
    /// Number of messages at the beginning that only the host stores, to save memory of the guest.
    left: usize,
    /// The messages after the first `left` messages.
    messages: Vec<Message>,
    /// Number of messages that were pushed to the sample's history.
    pushed: usize,
    /// Number of replacements of the sample's history when the agent started to push.
    epoch: u32,
    toolbox: Toolbox,
    turns_max: u32,
    params: Map<String, Value>,
}

impl Agent {
    /// Maximum number of model calls in a run, unless [`max_turns`](Self::max_turns) sets another.
    pub const TURNS_MAX: u32 = 16;

    /// Creates an agent that records into this sample and starts from these messages, which are pushed when
    /// it runs. [`Context::agent`](crate::Context::agent) starts from the prompt.
    pub fn new(sample: Sample, messages: Vec<Message>) -> Self {
        let epoch = sample.epoch();
        Self {
            sample,
            left: 0,
            messages,
            pushed: 0,
            epoch,
            toolbox: Toolbox::new(),
            turns_max: Self::TURNS_MAX,
            params: Map::new(),
        }
    }

    /// Adds instructions for the model: after the system message at the start of the conversation, or as a
    /// new first message. If the start was recorded already, the instructions are appended as a message.
    pub fn system(mut self, text: impl Into<String>) -> Self {
        let text = text.into();
        match self.messages.first_mut() {
            _ if self.pushed > 0 => self.messages.push(Message::system(text)),
            Some(first) if first.role() == "system" => {
                let joined = format!("{}\n\n{text}", first.text());
                first.set("content", joined);
            }
            _ => self.messages.insert(0, Message::system(text)),
        }
        self
    }

    /// Appends a user message.
    pub fn user(self, text: impl Into<String>) -> Self {
        self.message(Message::user(text))
    }

    /// Appends a message.
    pub fn message(mut self, message: Message) -> Self {
        self.messages.push(message);
        self
    }

    /// Offers a tool, replacing an earlier one of this name.
    pub fn tool(mut self, tool: Tool) -> Self {
        self.toolbox.add(tool);
        self
    }

    /// Offers the tools that the operator provides.
    pub fn with_host_tools(mut self) -> Self {
        self.toolbox.add_host_tools();
        self
    }

    /// Limits the number of model calls in one run, at least 1.
    pub fn max_turns(mut self, count: u32) -> Self {
        self.turns_max = count.max(1);
        self
    }

    /// Sets the sampling temperature; 0 selects the most likely tokens.
    pub fn temperature(self, value: f64) -> Self {
        self.param("temperature", value)
    }

    /// Limits the number of tokens in each reply.
    pub fn max_tokens(self, count: u32) -> Self {
        self.param("max_tokens", count)
    }

    /// Sets any other sampling parameter, see [`ChatRequest::param`](crate::ChatRequest::param).
    pub fn param(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.params.insert(name.into(), value.into());
        self
    }

    /// Runs the loop. A spent budget ends it like any other limit; the history is complete up to that point.
    ///
    /// # Errors
    ///
    /// Fails if the model cannot be called or the sample accepts no more messages.
    pub fn run(mut self) -> Result<AgentRun> {
        let mut turns = 0;
        let mut tool_calls = 0;
        let mut usage = Usage::default();
        let tools: Vec<String> = self.toolbox.schemas().map(Value::to_string).collect();
        let stop = loop {
            self.leave();
            let request = self.request()?.params(&self.params);
            let outcome = request.tools_as_json(&tools).send();
            self.pushed = self.left + self.messages.len();
            let reply = match outcome {
                Ok(reply) => reply,
                Err(ChatError::BudgetSpent(_)) => break Stop::BudgetSpent,
                Err(error) => return Err(error.into()),
            };
            turns += 1;
            usage += reply.usage().unwrap_or_default();
            let calls = reply.tool_calls().to_vec();
            let cut_off = reply.finish_reason() == Some("length");
            self.messages.push(reply.into_message());
            self.pushed += 1;
            if cut_off {
                // Tool calls in a truncated reply would be truncated too.
                break Stop::Length;
            }
            if calls.is_empty() {
                break Stop::Stopped;
            }
            if turns == self.turns_max {
                // The turns are used up, so the results would not be read.
                break Stop::TurnLimit;
            }
            let results = self.toolbox.execute(&calls);
            self.messages.extend(results.into_iter().map(ToolResult::into_message));
            tool_calls += calls.len();
        };
        Ok(AgentRun { agent: self, whole: OnceCell::new(), stop, turns, tool_calls, usage })
    }

    /// Returns whether the sample's history equals the pushed part of this conversation.
    fn is_recorded(&self) -> bool {
        self.sample.has_recorded(self.pushed, self.epoch)
    }

    /// Drops messages that the host stores, and restores them if the sample's history has been replaced.
    fn leave(&mut self) {
        if self.is_recorded() {
            self.messages.drain(..self.pushed - self.left);
            self.left = self.pushed;
            self.sample.leave(self.left);
        } else if self.left > 0 {
            self.messages = self.whole();
            self.left = 0;
        }
    }

    /// Returns the whole conversation.
    fn whole(&self) -> Vec<Message> {
        let mut whole = self.sample.left(self.left);
        whole.extend_from_slice(&self.messages);
        whole
    }

    /// Returns a request with the whole conversation whose reply is pushed. If the sample's history equals
    /// this conversation, only the new messages are sent to the host.
    fn request(&self) -> Result<ChatRequest<'_>> {
        let fresh = &self.messages[self.pushed - self.left..];
        if self.is_recorded() {
            return Ok(self.sample.continue_chat(fresh));
        }
        if !fresh.is_empty() {
            self.sample.push_all(fresh)?;
        }
        Ok(self.sample.chat(&self.messages).keep_reply(true))
    }
}

/// Reason why an agent stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stop {
    /// The model answered without further tool calls.
    Stopped,
    /// The limit on model calls was reached while the model still called tools.
    TurnLimit,
    /// The model's reply was truncated at its token limit.
    Length,
    /// A budget of this rollout is spent.
    BudgetSpent,
}

/// Result of an agent's run.
#[derive(Debug)]
pub struct AgentRun {
    agent: Agent,
    /// The whole conversation, fetched at the first request.
    whole: OnceCell<Vec<Message>>,
    stop: Stop,
    turns: u32,
    tool_calls: usize,
    usage: Usage,
}

impl AgentRun {
    /// Returns the reason why the agent stopped.
    pub fn stop(&self) -> Stop {
        self.stop
    }

    /// Returns the text of the model's last message, empty if there is none.
    pub fn text(&self) -> String {
        let here = &self.agent.messages;
        let is_here = self.agent.left == 0 || here.iter().any(|message| message.role() == "assistant");
        last_assistant_text(if is_here { here } else { self.messages() }).unwrap_or_default()
    }

    /// Returns the whole conversation including the prompt. Messages that only the host stores are fetched by the first
    /// call.
    pub fn messages(&self) -> &[Message] {
        match self.agent.left {
            0 => &self.agent.messages,
            _ => self.whole.get_or_init(|| self.agent.whole()),
        }
    }

    /// Returns the number of model calls in this run.
    pub fn turns(&self) -> u32 {
        self.turns
    }

    /// Returns the number of tool calls in this run.
    pub fn tool_calls(&self) -> usize {
        self.tool_calls
    }

    /// Returns the token usage of this run, as far as the server reported it.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// Returns the sample with the conversation.
    pub fn sample(&self) -> &Sample {
        &self.agent.sample
    }

    /// Returns the agent with the same limits, to continue the conversation.
    pub fn resume(self) -> Agent {
        self.agent
    }
}
