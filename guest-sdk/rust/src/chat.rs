//! Asking the model, once or several times at once.
//!
//! The host adds the model's name, the endpoint and the key, tries again where that
//! helps, and counts the cost. This module knows nothing of tools beyond their schema;
//! the loop that runs them is [`Agent`](crate::Agent).

use std::fmt;

use serde_json::{Map, Value};

use crate::bindings::imports::{calls, chat};
use crate::calls::UnderWay;
use crate::message::{self, Message, ToolCall};
use crate::sample::Sample;

/// A request to the model, made by [`Sample::chat`] and sent by [`send`](Self::send),
/// [`start`](Self::start) or [`chat_all`].
#[derive(Debug)]
#[must_use = "a request does nothing until it is sent"]
pub struct ChatRequest<'a> {
    sample: &'a Sample,
    messages: Vec<String>,
    tools: Vec<String>,
    params: Map<String, Value>,
}

impl<'a> ChatRequest<'a> {
    pub(crate) fn new(sample: &'a Sample, messages: &[Message]) -> Self {
        Self { sample, messages: message::to_json(messages), tools: Vec::new(), params: Map::new() }
    }

    /// Offers a tool by its schema in OpenAI's form, as
    /// [`Tool::schema`](crate::Tool::schema) and [`lent::available`](crate::lent::available)
    /// give it.
    pub fn tool(mut self, schema: &Value) -> Self {
        self.tools.push(schema.to_string());
        self
    }

    /// Offers several tools.
    pub fn tools<'s>(self, schemas: impl IntoIterator<Item = &'s Value>) -> Self {
        schemas.into_iter().fold(self, Self::tool)
    }

    /// How freely the model chooses its words; 0 for the likeliest ones.
    pub fn temperature(self, value: f64) -> Self {
        self.param("temperature", value)
    }

    /// The most tokens of the reply.
    pub fn max_tokens(self, count: u32) -> Self {
        self.param("max_tokens", count)
    }

    /// Any other sampling parameter, sent as it is. Refused: `model`, `messages`,
    /// `tools`, `stream`, `stream_options` and `n`.
    pub fn param(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.params.insert(name.into(), value.into());
        self
    }

    pub(crate) fn params(mut self, params: &Map<String, Value>) -> Self {
        self.params.extend(params.clone());
        self
    }

    /// Asks the model and waits.
    ///
    /// # Errors
    ///
    /// See [`ChatError`].
    pub fn send(self) -> Result<Completion, ChatError> {
        let (sample, request) = self.into_request();
        read(chat::complete(sample.handle(), &request))
    }

    /// Asks the model and goes on.
    ///
    /// # Errors
    ///
    /// If the request is wrong or a budget is spent; what the model's server does is
    /// known when the call is finished.
    pub fn start(self) -> Result<Pending, ChatError> {
        let (sample, request) = self.into_request();
        let call = chat::start(sample.handle(), &request)?;
        Ok(Pending { call })
    }

    fn into_request(self) -> (&'a Sample, chat::Request) {
        let params = Some(self.params)
            .filter(|params| !params.is_empty())
            .map(|params| Value::Object(params).to_string());
        let request = chat::Request { messages: self.messages, tools: self.tools, params };
        (self.sample, request)
    }
}

/// Asks for all of the requests at once and waits for every reply. Replies come in the
/// order of the requests; one that fails leaves the others alone.
pub fn chat_all<'a>(
    requests: impl IntoIterator<Item = ChatRequest<'a>>,
) -> Vec<Result<Completion, ChatError>> {
    // Collected first, because each has to be under way before the first is waited for.
    let started: Vec<_> = requests.into_iter().map(ChatRequest::start).collect();
    started.into_iter().map(|call| call?.wait()).collect()
}

/// A chat call under way. Dropping it abandons the call.
#[derive(Debug)]
pub struct Pending {
    call: calls::Call,
}

impl Pending {
    /// Waits for the reply.
    ///
    /// # Errors
    ///
    /// See [`ChatError`].
    pub fn wait(self) -> Result<Completion, ChatError> {
        read(chat::finish(self.call))
    }
}

impl UnderWay for Pending {
    fn call(&self) -> &calls::Call {
        &self.call
    }
}

/// The model's reply.
#[derive(Clone, Debug)]
pub struct Completion {
    message: Message,
    text: String,
    tool_calls: Vec<ToolCall>,
    finish_reason: Option<String>,
    usage: Option<Usage>,
}

impl Completion {
    /// The assistant's message, to be kept as it is.
    pub fn message(&self) -> &Message {
        &self.message
    }

    /// The assistant's message, to be kept as it is.
    pub fn into_message(self) -> Message {
        self.message
    }

    /// The reply's text, empty where it has none.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The tool calls that the model wants made, in order.
    pub fn tool_calls(&self) -> &[ToolCall] {
        &self.tool_calls
    }

    /// Why the model stopped: `stop`, `tool_calls`, `length` or other words; `None`
    /// where the server did not say.
    pub fn finish_reason(&self) -> Option<&str> {
        self.finish_reason.as_deref()
    }

    /// What the call cost, where the server said.
    pub fn usage(&self) -> Option<Usage> {
        self.usage
    }
}

/// Tokens that chat calls cost, as the model's server counted them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the request.
    pub prompt_tokens: u64,
    /// Tokens of the reply.
    pub completion_tokens: u64,
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        self.prompt_tokens = self.prompt_tokens.saturating_add(other.prompt_tokens);
        self.completion_tokens = self.completion_tokens.saturating_add(other.completion_tokens);
    }
}

/// Why there is no reply.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChatError {
    /// The request is wrong: what and where. Sending it again will not help.
    InvalidRequest(String),
    /// A budget of this rollout is spent: which. Stop, and return what there is.
    BudgetSpent(String),
    /// The model's server refused.
    Refused {
        /// Its HTTP status code.
        status: u16,
        /// The beginning of its answer.
        answer: String,
    },
    /// The model's server stayed out of reach, or answered with something that is no
    /// chat completion, for as long as the host tried.
    Unavailable(String),
}

impl fmt::Display for ChatError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidRequest(reason) => write!(out, "wrong chat request: {reason}"),
            Self::BudgetSpent(budget) => write!(out, "a budget is spent: {budget}"),
            Self::Refused { status, answer } => {
                write!(out, "the model's server refused with {status}: {answer}")
            }
            Self::Unavailable(reason) => {
                write!(out, "the model's server is unavailable: {reason}")
            }
        }
    }
}

impl std::error::Error for ChatError {}

impl From<chat::Error> for ChatError {
    fn from(error: chat::Error) -> Self {
        match error {
            chat::Error::InvalidRequest(reason) => Self::InvalidRequest(reason),
            chat::Error::BudgetSpent(budget) => Self::BudgetSpent(budget),
            chat::Error::Refused((status, answer)) => Self::Refused { status, answer },
            chat::Error::Unavailable(reason) => Self::Unavailable(reason),
        }
    }
}

fn read(outcome: Result<chat::Completion, chat::Error>) -> Result<Completion, ChatError> {
    let chat::Completion { message, text, tool_calls, finish_reason, usage } = outcome?;
    let message = Message::from_json(&message)
        .map_err(|error| ChatError::Unavailable(format!("no chat completion: {error}")))?;
    Ok(Completion {
        message,
        text,
        tool_calls: tool_calls.into_iter().map(Into::into).collect(),
        finish_reason,
        usage: usage.map(|usage| Usage {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
        }),
    })
}
