//! Calls of the model, one or several at once.
//!
//! The host adds the model's name, the endpoint and the key, retries where that helps, and counts the cost.
//! This module knows only the schemas of tools; the loop that runs them is [`Agent`](crate::Agent).

use std::fmt;
use std::rc::Rc;

use serde_json::{Map, Value};

use crate::bindings::imports::calls;
use crate::bindings::imports::models::{self, Conversation, Role};
use crate::calls::UnderWay;
use crate::message::{self, Message, ToolCall};
use crate::sample::{Recorded, Sample};

/// A request to the model, created by [`Sample::chat`] or [`Sample::continue_chat`] and sent with
/// [`send`](Self::send), [`start`](Self::start) or [`chat_all`].
#[derive(Debug)]
#[must_use = "a request does nothing until it is sent"]
pub struct ChatRequest<'a> {
    sample: &'a Sample,
    messages: Vec<String>,
    /// Whether the messages follow the history.
    after_history: bool,
    keep_reply: bool,
    tools: Vec<String>,
    params: Map<String, Value>,
}

impl<'a> ChatRequest<'a> {
    pub(crate) fn explicit(sample: &'a Sample, messages: &[Message]) -> Self {
        Self {
            sample,
            messages: message::to_json(messages),
            after_history: false,
            keep_reply: false,
            tools: Vec::new(),
            params: Map::new(),
        }
    }

    pub(crate) fn history(sample: &'a Sample, messages: &[Message]) -> Self {
        Self { after_history: true, keep_reply: true, ..Self::explicit(sample, messages) }
    }

    /// Sets whether the reply is pushed to the sample's history when it is received.
    pub fn keep_reply(self, keep: bool) -> Self {
        Self { keep_reply: keep, ..self }
    }

    /// Offers a tool by its schema in OpenAI's form, as [`Tool::schema`](crate::Tool::schema) and
    /// [`host_tools::available`](crate::host_tools::available) return it.
    pub fn tool(mut self, schema: &Value) -> Self {
        self.tools.push(schema.to_string());
        self
    }

    /// Offers several tools.
    pub fn tools<'s>(self, schemas: impl IntoIterator<Item = &'s Value>) -> Self {
        schemas.into_iter().fold(self, Self::tool)
    }

    /// Offers several tools whose schemas are JSON text already.
    pub(crate) fn tools_as_json(mut self, schemas: &[String]) -> Self {
        self.tools.extend_from_slice(schemas);
        self
    }

    /// Sets the sampling temperature; 0 selects the most likely tokens.
    pub fn temperature(self, value: f64) -> Self {
        self.param("temperature", value)
    }

    /// Limits the number of tokens in the reply.
    pub fn max_tokens(self, count: u32) -> Self {
        self.param("max_tokens", count)
    }

    /// Sets any other sampling parameter, which is sent unchanged. Not allowed: `model`, `messages`, `tools`,
    /// `stream`, `stream_options` and `n`.
    pub fn param(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.params.insert(name.into(), value.into());
        self
    }

    pub(crate) fn params(mut self, params: &Map<String, Value>) -> Self {
        self.params.extend(params.clone());
        self
    }

    /// Calls the model and waits for the reply.
    ///
    /// # Errors
    ///
    /// See [`ChatError`].
    pub fn send(self) -> Result<Completion, ChatError> {
        let (sample, request, kept) = self.into_request();
        let outcome = models::complete(Role::Policy, Some(sample.handle()), &request);
        kept.note_request(outcome.as_ref().err());
        read(outcome, &kept)
    }

    /// Starts a call of the model without waiting.
    ///
    /// # Errors
    ///
    /// Fails if the request is invalid or a budget is spent. Errors of the model's server are reported by
    /// [`Pending::wait`].
    pub fn start(self) -> Result<Pending, ChatError> {
        let (sample, request, kept) = self.into_request();
        let started = models::start(Role::Policy, Some(sample.handle()), &request);
        kept.note_request(started.as_ref().err());
        Ok(Pending { call: started?, kept })
    }

    fn into_request(self) -> (&'a Sample, models::Request, HistoryState) {
        let Self { sample, messages, after_history, keep_reply, tools, params } = self;
        let params =
            Some(params).filter(|params| !params.is_empty()).map(|params| Value::Object(params).to_string());
        let pushed = if after_history { messages.len() } else { 0 };
        let conversation = match after_history {
            true => Conversation::History(messages),
            false => Conversation::Messages(messages),
        };
        let kept = HistoryState { recorded: sample.recorded().clone(), pushed, reply: keep_reply };
        (sample, models::Request { conversation, tools, params, keep_reply }, kept)
    }
}

/// Effect of a request on its sample's history.
#[derive(Debug)]
struct HistoryState {
    recorded: Rc<Recorded>,
    pushed: usize,
    reply: bool,
}

impl HistoryState {
    /// Records that the messages were pushed. After an invalid request or a spent budget, which may be the budget of
    /// messages, it is unknown whether they were.
    fn note_request(&self, error: Option<&models::Error>) {
        match error {
            _ if self.pushed == 0 => {}
            None | Some(models::Error::Refused(_) | models::Error::Unavailable(_)) => {
                self.recorded.add(self.pushed);
            }
            Some(_) => self.recorded.lose_count(),
        }
    }
}

/// Sends all requests at once and waits for every reply. Replies have the order of the requests; a failed
/// request does not affect the others.
pub fn chat_all<'a>(
    requests: impl IntoIterator<Item = ChatRequest<'a>>,
) -> Vec<Result<Completion, ChatError>> {
    // Collected first, so that all requests are started before the first reply is awaited.
    let started: Vec<_> = requests.into_iter().map(ChatRequest::start).collect();
    started.into_iter().map(|call| call?.wait()).collect()
}

/// A chat call in progress. Dropping it abandons the call.
#[derive(Debug)]
pub struct Pending {
    call: calls::Call,
    kept: HistoryState,
}

impl Pending {
    /// Waits for the reply.
    ///
    /// # Errors
    ///
    /// See [`ChatError`].
    pub fn wait(self) -> Result<Completion, ChatError> {
        read(models::finish(self.call), &self.kept)
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
    /// Returns the assistant's message, to be stored unchanged.
    pub fn message(&self) -> &Message {
        &self.message
    }

    /// Returns the assistant's message, to be stored unchanged.
    pub fn into_message(self) -> Message {
        self.message
    }

    /// Returns the reply's text, empty if there is none.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the tool calls that the model requests, in order.
    pub fn tool_calls(&self) -> &[ToolCall] {
        &self.tool_calls
    }

    /// Returns the reason why the model stopped, such as `stop`, `tool_calls` or `length`, if the server
    /// reported one.
    pub fn finish_reason(&self) -> Option<&str> {
        self.finish_reason.as_deref()
    }

    /// Returns the number of tokens, if the server reported it.
    pub fn usage(&self) -> Option<Usage> {
        self.usage
    }
}

/// Tokens of chat calls, as counted by the model's server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the requests.
    pub prompt_tokens: u64,
    /// Tokens of the replies.
    pub completion_tokens: u64,
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        self.prompt_tokens = self.prompt_tokens.saturating_add(other.prompt_tokens);
        self.completion_tokens = self.completion_tokens.saturating_add(other.completion_tokens);
    }
}

/// Error of a call of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChatError {
    /// The request is invalid. The text says what is wrong and where. Sending the request again does not help.
    InvalidRequest(String),
    /// A budget of this rollout is spent. The text names it. Stop and return the results so far.
    BudgetSpent(String),
    /// The model's server rejected the request.
    Refused {
        /// HTTP status code.
        status: u16,
        /// Beginning of the server's answer.
        answer: String,
    },
    /// The model's server was unreachable, or answered with something other than a chat completion, until the host
    /// stopped retrying.
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

impl From<models::Error> for ChatError {
    fn from(error: models::Error) -> Self {
        match error {
            models::Error::InvalidRequest(reason) => Self::InvalidRequest(reason),
            models::Error::BudgetSpent(budget) => Self::BudgetSpent(budget),
            models::Error::Refused((status, answer)) => Self::Refused { status, answer },
            models::Error::NotProvided(reason) | models::Error::Unavailable(reason) => {
                Self::Unavailable(reason)
            }
        }
    }
}

fn read(
    outcome: Result<models::Completion, models::Error>,
    kept: &HistoryState,
) -> Result<Completion, ChatError> {
    let models::Completion { message, text, tool_calls, finish_reason, usage } = outcome?;
    if kept.reply {
        kept.recorded.add(1);
    }
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
