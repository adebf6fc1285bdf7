//! Asking the model, once or several times at once.
//!
//! The host adds the model's name, the endpoint and the key, tries again where that
//! helps, and counts the cost. This module knows nothing of tools beyond their schema;
//! the loop that runs them is [`Agent`](crate::Agent).

use std::fmt;
use std::rc::Rc;

use serde_json::{Map, Value};

use crate::bindings::imports::calls;
use crate::bindings::imports::models::{self, Conversation, Role};
use crate::calls::UnderWay;
use crate::message::{self, Message, ToolCall};
use crate::sample::{Recorded, Sample};

/// A request to the model, made by [`Sample::chat`] or [`Sample::continue_chat`] and sent by
/// [`send`](Self::send), [`start`](Self::start) or [`chat_all`].
#[derive(Debug)]
#[must_use = "a request does nothing until it is sent"]
pub struct ChatRequest<'a> {
    sample: &'a Sample,
    messages: Vec<String>,
    /// Whether they come after the history.
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

    /// Whether the reply is pushed to the sample's history when it is given.
    pub fn keep_reply(self, keep: bool) -> Self {
        Self { keep_reply: keep, ..self }
    }

    /// Offers a tool by its schema in OpenAI's form, as
    /// [`Tool::schema`](crate::Tool::schema) and [`host_tools::available`](crate::host_tools::available)
    /// give it.
    pub fn tool(mut self, schema: &Value) -> Self {
        self.tools.push(schema.to_string());
        self
    }

    /// Offers several tools.
    pub fn tools<'s>(self, schemas: impl IntoIterator<Item = &'s Value>) -> Self {
        schemas.into_iter().fold(self, Self::tool)
    }

    /// Offers several tools whose schemas were written already.
    pub(crate) fn tools_as_json(mut self, schemas: &[String]) -> Self {
        self.tools.extend_from_slice(schemas);
        self
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
        let (sample, request, kept) = self.into_request();
        let outcome = models::complete(Role::Policy, Some(sample.handle()), &request);
        kept.note_request(outcome.as_ref().err());
        read(outcome, &kept)
    }

    /// Asks the model and goes on.
    ///
    /// # Errors
    ///
    /// If the request is wrong or a budget is spent; what the model's server does is
    /// known when the call is finished.
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

/// What a request adds to its sample's history.
#[derive(Debug)]
struct HistoryState {
    recorded: Rc<Recorded>,
    pushed: usize,
    reply: bool,
}

impl HistoryState {
    /// The messages were pushed, unless the request was wrong; where a budget is spent, it may
    /// be the one for messages.
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
