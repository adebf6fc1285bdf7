//! The ready-made tool loop.
//!
//! An [`Agent`] asks the model, runs the tools that it calls, appends the results and
//! asks again, until the model stops or a limit is reached. Every message is pushed to
//! the sample as it comes, so a rollout that is cut short still has its history.

use std::cell::OnceCell;

use serde_json::{Map, Value};

use crate::Result;
use crate::chat::{ChatError, ChatRequest, Usage};
use crate::message::{Message, last_assistant_text};
use crate::sample::Sample;
use crate::tool::{Tool, ToolResult};
use crate::toolbox::Toolbox;

/// The tool loop, to be set up and [run](Self::run).
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
    /// So many messages at the beginning are the host's alone: a long conversation is in no guest's memory.
    left: usize,
    /// Those after them.
    messages: Vec<Message>,
    /// How many of all are in the sample's history.
    pushed: usize,
    /// How often that had been replaced when it began with them.
    epoch: u32,
    toolbox: Toolbox,
    turns_max: u32,
    params: Map<String, Value>,
}

impl Agent {
    /// The most calls of the model in one run, where [`max_turns`](Self::max_turns)
    /// says nothing else.
    pub const TURNS_MAX: u32 = 16;

    /// An agent that records in this sample and starts from these messages, which are
    /// pushed when it runs. [`Context::agent`](crate::Context::agent) starts from the
    /// prompt.
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

    /// Gives the model instructions: after those that the conversation starts with, or
    /// as a first message where it has none. Instructions that were recorded already
    /// stay as they are; these become a message at the end then.
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

    /// Adds what the user says next.
    pub fn user(self, text: impl Into<String>) -> Self {
        self.message(Message::user(text))
    }

    /// Adds any message.
    pub fn message(mut self, message: Message) -> Self {
        self.messages.push(message);
        self
    }

    /// Offers a tool, in place of one of the same name.
    pub fn tool(mut self, tool: Tool) -> Self {
        self.toolbox.add(tool);
        self
    }

    /// Offers the tools that the operator provides as well.
    pub fn with_host_tools(mut self) -> Self {
        self.toolbox.add_host_tools();
        self
    }

    /// The most calls of the model in one run, at least 1.
    pub fn max_turns(mut self, count: u32) -> Self {
        self.turns_max = count.max(1);
        self
    }

    /// How freely the model chooses its words; 0 for the likeliest ones.
    pub fn temperature(self, value: f64) -> Self {
        self.param("temperature", value)
    }

    /// The most tokens of each reply.
    pub fn max_tokens(self, count: u32) -> Self {
        self.param("max_tokens", count)
    }

    /// Any other sampling parameter, as for
    /// [`ChatRequest::param`](crate::ChatRequest::param).
    pub fn param(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.params.insert(name.into(), value.into());
        self
    }

    /// Runs the loop. A budget that is spent ends it like any other stop; the history
    /// is complete then up to that point.
    ///
    /// # Errors
    ///
    /// If the model cannot be asked, or the sample takes no more messages.
    pub fn run(mut self) -> Result<AgentRun> {
        let mut turns = 0;
        let mut tool_calls = 0;
        let mut usage = Usage::default();
        let tools: Vec<String> = self.toolbox.schemas().map(Value::to_string).collect();
        let stop = loop {
            self.leave();
            let request = self.request()?.params(&self.params);
            let asked = request.tools_as_json(&tools).send();
            self.pushed = self.left + self.messages.len();
            let reply = match asked {
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
                // Tool calls in it would be cut off too.
                break Stop::Length;
            }
            if calls.is_empty() {
                break Stop::Stopped;
            }
            if turns == self.turns_max {
                // Nobody would read the results.
                break Stop::TurnLimit;
            }
            let results = self.toolbox.execute(&calls);
            self.messages.extend(results.into_iter().map(ToolResult::into_message));
            tool_calls += calls.len();
        };
        Ok(AgentRun { agent: self, whole: OnceCell::new(), stop, turns, tool_calls, usage })
    }

    /// Whether the sample's history is this conversation, as far as it was pushed.
    fn is_recorded(&self) -> bool {
        self.sample.has_recorded(self.pushed, self.epoch)
    }

    /// Leaves to the host what it has, and takes it back once the sample's history is another.
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

    /// The whole conversation.
    fn whole(&self) -> Vec<Message> {
        let mut whole = self.sample.left(self.left);
        whole.extend_from_slice(&self.messages);
        whole
    }

    /// A request with the whole conversation, whose reply is kept. Where the sample's history
    /// is this conversation, only what is new in it is given to the host.
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

/// Why an agent stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stop {
    /// The model wrote an answer and called no more tools.
    Stopped,
    /// The model was asked as often as allowed, and still called tools.
    TurnLimit,
    /// The model's reply was cut off at its token limit.
    Length,
    /// A budget of this rollout is spent.
    BudgetSpent,
}

/// What an agent did.
#[derive(Debug)]
pub struct AgentRun {
    agent: Agent,
    /// The whole conversation, once somebody asked for it.
    whole: OnceCell<Vec<Message>>,
    stop: Stop,
    turns: u32,
    tool_calls: usize,
    usage: Usage,
}

impl AgentRun {
    /// Why the agent stopped.
    pub fn stop(&self) -> Stop {
        self.stop
    }

    /// The text of the model's last message, empty where it has none.
    pub fn text(&self) -> String {
        let here = &self.agent.messages;
        let is_here = self.agent.left == 0 || here.iter().any(|message| message.role() == "assistant");
        last_assistant_text(if is_here { here } else { self.messages() }).unwrap_or_default()
    }

    /// The whole conversation, the prompt included. What of it the host alone has is asked for once.
    pub fn messages(&self) -> &[Message] {
        match self.agent.left {
            0 => &self.agent.messages,
            _ => self.whole.get_or_init(|| self.agent.whole()),
        }
    }

    /// How often the model was asked and answered, in this run.
    pub fn turns(&self) -> u32 {
        self.turns
    }

    /// How many tool calls were made, in this run.
    pub fn tool_calls(&self) -> usize {
        self.tool_calls
    }

    /// What this run cost, as far as the server said.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// The sample that holds the conversation.
    pub fn sample(&self) -> &Sample {
        &self.agent.sample
    }

    /// The agent, to say more to it and run it again with the limits it had.
    pub fn resume(self) -> Agent {
        self.agent
    }
}
