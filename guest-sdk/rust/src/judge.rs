//! Calls of the judge, a model that the operator provides to graders.
//!
//! The judge has its own server, key and budget, separate from the trained model. [`rubric`](crate::rubric())
//! asks it for a score; a [`JudgeRequest`] sends it any messages.

use std::fmt;

use serde_json::{Map, Value};

use crate::bindings::imports::calls;
use crate::bindings::imports::models::{self, Conversation, Role};
use crate::calls::UnderWay;
use crate::chat::Usage;
use crate::message::{self, Message};

/// A request to the judge.
///
/// ```no_run
/// # use rollout_sdk::{JudgeRequest, Message, Result};
/// # fn example(answer: &str) -> Result<()> {
/// let question = format!("Is this polite? Say yes or no.\n\n{answer}");
/// let reply = JudgeRequest::new(&[Message::user(question)]).temperature(0.0).send()?;
/// let polite = reply.text().trim().eq_ignore_ascii_case("yes");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a request does nothing until it is sent"]
pub struct JudgeRequest {
    messages: Vec<String>,
    params: Map<String, Value>,
}

impl JudgeRequest {
    /// Creates a request with these messages.
    pub fn new(messages: &[Message]) -> Self {
        Self { messages: message::to_json(messages), params: Map::new() }
    }

    /// Sets the sampling temperature; 0 selects the most likely tokens.
    pub fn temperature(self, value: f64) -> Self {
        self.param("temperature", value)
    }

    /// Limits the number of tokens in the reply.
    pub fn max_tokens(self, count: u32) -> Self {
        self.param("max_tokens", count)
    }

    /// Sets any other parameter, such as `response_format`, which is sent unchanged. Not allowed: `model`,
    /// `messages`, `tools`, `stream`, `stream_options` and `n`.
    pub fn param(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.params.insert(name.into(), value.into());
        self
    }

    /// Calls the judge and waits for the reply.
    ///
    /// # Errors
    ///
    /// See [`JudgeError`].
    pub fn send(self) -> Result<JudgeReply, JudgeError> {
        read(models::complete(Role::Judge, None, &self.into_request()))
    }

    /// Starts a call of the judge without waiting.
    ///
    /// # Errors
    ///
    /// Fails if there is no judge, the request is invalid or a budget is spent. Errors of the judge's server
    /// are reported by [`PendingJudge::wait`].
    pub fn start(self) -> Result<PendingJudge, JudgeError> {
        Ok(PendingJudge { call: models::start(Role::Judge, None, &self.into_request())? })
    }

    fn into_request(self) -> models::Request {
        let params = Some(self.params)
            .filter(|params| !params.is_empty())
            .map(|params| Value::Object(params).to_string());
        let conversation = Conversation::Messages(self.messages);
        models::Request { conversation, tools: Vec::new(), params, keep_reply: false }
    }
}

/// A call of the judge in progress. Dropping it abandons the call.
#[derive(Debug)]
pub struct PendingJudge {
    call: calls::Call,
}

impl PendingJudge {
    /// Waits for the reply.
    ///
    /// # Errors
    ///
    /// See [`JudgeError`].
    pub fn wait(self) -> Result<JudgeReply, JudgeError> {
        read(models::finish(self.call))
    }
}

impl UnderWay for PendingJudge {
    fn call(&self) -> &calls::Call {
        &self.call
    }
}

/// The judge's reply.
#[derive(Clone, Debug)]
pub struct JudgeReply {
    message: Message,
    text: String,
    finish_reason: Option<String>,
    usage: Option<Usage>,
}

impl JudgeReply {
    #[cfg(test)]
    pub(crate) fn from_text(text: &str) -> Self {
        Self { message: Message::assistant(text), text: text.to_owned(), finish_reason: None, usage: None }
    }

    /// Returns the assistant's message.
    pub fn message(&self) -> &Message {
        &self.message
    }

    /// Returns the reply's text, empty if there is none.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the reason why the judge stopped, such as `stop` or `length`, if its server reported one.
    pub fn finish_reason(&self) -> Option<&str> {
        self.finish_reason.as_deref()
    }

    /// Returns the number of tokens, if the server reported it.
    pub fn usage(&self) -> Option<Usage> {
        self.usage
    }
}

/// Error of a call of the judge. If a grader returns it with `?`, the rollout has no reward.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JudgeError {
    /// The operator provides no judge.
    NotProvided,
    /// The request is invalid. The text names the mistake and its position. Sending the request again does not help.
    InvalidRequest(String),
    /// A budget of the judge for this rollout is spent. The text names the budget.
    BudgetSpent(String),
    /// The judge's server rejected the request.
    Refused {
        /// HTTP status code.
        status: u16,
        /// Beginning of the server's answer.
        answer: String,
    },
    /// The judge's server was unreachable, or answered with something other than a chat completion, until the host
    /// stopped retrying.
    Unavailable(String),
}

impl fmt::Display for JudgeError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotProvided => write!(
                out,
                "this grader needs a judge, and the operator provides none; [judge] in the host's configuration, \
                 or --judge-url and --judge-model, do"
            ),
            Self::InvalidRequest(reason) => write!(out, "wrong request to the judge: {reason}"),
            Self::BudgetSpent(budget) => write!(out, "a budget of the judge is spent: {budget}"),
            Self::Refused { status, answer } => {
                write!(out, "the judge's server refused with {status}: {answer}")
            }
            Self::Unavailable(reason) => write!(out, "the judge's server is unavailable: {reason}"),
        }
    }
}

impl std::error::Error for JudgeError {}

impl From<models::Error> for JudgeError {
    fn from(error: models::Error) -> Self {
        match error {
            models::Error::NotProvided(_) => Self::NotProvided,
            models::Error::InvalidRequest(reason) => Self::InvalidRequest(reason),
            models::Error::BudgetSpent(budget) => Self::BudgetSpent(budget),
            models::Error::Refused((status, answer)) => Self::Refused { status, answer },
            models::Error::Unavailable(reason) => Self::Unavailable(reason),
        }
    }
}

fn read(outcome: Result<models::Completion, models::Error>) -> Result<JudgeReply, JudgeError> {
    let models::Completion { message, text, finish_reason, usage, .. } = outcome?;
    let message = Message::from_json(&message).map_err(|error| JudgeError::Unavailable(error.to_string()))?;
    let usage = usage.map(|usage| Usage {
        prompt_tokens: usage.prompt_tokens,
        completion_tokens: usage.completion_tokens,
    });
    Ok(JudgeReply { message, text, finish_reason, usage })
}
