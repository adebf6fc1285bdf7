//! The result of a call of a model or a tool: one type from the connection to the trajectory.
//!
//! On disk a result is JSON without its text or body, which follows the JSON verbatim, so that a long text is neither
//! copied nor escaped.

use bytes::Bytes;
use rollout_wire::openai::Completion;
use serde::{Deserialize, Serialize};

use crate::labels::{Fault, Limit, ModelRole, ToolOutcome};

/// Result of a call. Its JSON omits the text or body, which follows it on disk.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallResult {
    /// Result of a call of a model.
    Model(Result<ChatReply, ChatFailure>),
    /// Result of a call of a host-provided tool.
    Tool(ToolAnswer),
}

/// A complete, parsed reply of a model.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChatReply {
    /// The completion for the guest. Its body does not contain the endpoint's secrets.
    #[serde(skip)]
    pub completion: Completion,
    /// Number of attempts.
    pub attempts: u32,
}

/// Error of a call of a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChatFailure {
    /// The server refused the request; a retry would not help.
    #[error("the model's server answered {status}: {body}")]
    Refused {
        /// Status of the response.
        status: u16,
        /// Beginning of the response.
        #[serde(skip)]
        body: String,
    },
    /// The server was not reached, or its responses were unusable, until the last retry.
    #[error("the model's server gave no completion in {attempts} attempts: {reason}")]
    Unavailable {
        /// Number of attempts.
        attempts: u32,
        /// The error of the last attempt.
        #[serde(skip)]
        reason: String,
    },
    /// The network rules forbid the address; no connection was opened.
    #[error("requests to the model's server are forbidden: {reason}")]
    Forbidden {
        /// The rule that forbids it, without the address.
        #[serde(skip)]
        reason: String,
    },
    /// The host could not send the request until the last retry. The server is not at fault.
    #[error("the host could not send the request to the model in {attempts} attempts: {reason}")]
    Host {
        /// Number of attempts.
        attempts: u32,
        /// The resource that the host lacks.
        #[serde(skip)]
        reason: String,
    },
    /// A reply arrived, but the rollout's record has no room for it.
    #[error("{reason}")]
    OverLimit {
        /// The limit, with its value.
        #[serde(skip)]
        reason: String,
    },
    /// The guest abandoned the call, or was stopped, before there was an answer.
    #[error("abandoned before there was an answer")]
    Abandoned,
}

impl ChatFailure {
    /// Returns the party that must act, or `None` if no server or host failed. The caller chooses the address of the
    /// policy, and the operator that of the judge.
    pub fn fault(&self, role: ModelRole) -> Option<Fault> {
        match (self, role) {
            (Self::Refused { .. } | Self::Unavailable { .. }, _) => Some(Fault::Model),
            (Self::Forbidden { .. }, ModelRole::Policy) => Some(Fault::Caller),
            (Self::Forbidden { .. }, ModelRole::Judge) | (Self::Host { .. }, _) => Some(Fault::Host),
            (Self::OverLimit { .. } | Self::Abandoned, _) => None,
        }
    }

    /// Returns the message of the failure of a model in this role.
    pub fn message(&self, role: ModelRole) -> String {
        match (role, self) {
            (ModelRole::Judge, Self::Refused { status, body }) => {
                format!("the judge's server answered {status}: {body}")
            }
            (ModelRole::Judge, Self::Unavailable { attempts, reason }) => {
                format!("the judge's server gave no completion in {attempts} attempts: {reason}")
            }
            (ModelRole::Judge, Self::Forbidden { reason }) => {
                format!("the judge's server may not be asked: {reason}")
            }
            (ModelRole::Judge, Self::Host { attempts, reason }) => {
                format!("the host could not ask the judge in {attempts} attempts: {reason}")
            }
            (ModelRole::Policy, _) | (ModelRole::Judge, Self::OverLimit { .. } | Self::Abandoned) => {
                self.to_string()
            }
        }
    }

    fn attempts(&self) -> u32 {
        match self {
            Self::Unavailable { attempts, .. } | Self::Host { attempts, .. } => *attempts,
            Self::Refused { .. } | Self::Forbidden { .. } | Self::OverLimit { .. } | Self::Abandoned => 1,
        }
    }

    fn text(&self) -> &str {
        match self {
            Self::Refused { body: text, .. }
            | Self::Unavailable { reason: text, .. }
            | Self::Forbidden { reason: text }
            | Self::Host { reason: text, .. }
            | Self::OverLimit { reason: text } => text,
            Self::Abandoned => "",
        }
    }

    fn set_text(&mut self, given: String) {
        match self {
            Self::Refused { body: text, .. }
            | Self::Unavailable { reason: text, .. }
            | Self::Forbidden { reason: text }
            | Self::Host { reason: text, .. }
            | Self::OverLimit { reason: text } => *text = given,
            Self::Abandoned => {}
        }
    }
}

/// Result of a call of a host-provided tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolAnswer {
    /// The text for the model.
    #[serde(skip)]
    pub content: String,
    /// Kind of the result.
    pub outcome: ToolOutcome,
    /// The limit that was reached, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
}

impl ToolAnswer {
    /// Creates the result of a tool that returned this content.
    pub fn answered(content: String) -> Self {
        Self { content, outcome: ToolOutcome::Answered, limit: None }
    }

    /// Creates the result of a tool that reported a failure.
    pub fn failed(content: String) -> Self {
        Self { content, outcome: ToolOutcome::Failed, limit: None }
    }

    /// Creates the result of a call for which the tool returned no result.
    pub fn unavailable(reason: impl std::fmt::Display) -> Self {
        Self { content: error_text(reason), outcome: ToolOutcome::Unavailable, limit: None }
    }

    /// Creates the result of a call that exceeded a limit, or whose result exceeded it.
    pub fn over_limit(limit: Limit, reason: impl std::fmt::Display) -> Self {
        Self { content: error_text(reason), outcome: ToolOutcome::OverLimit, limit: Some(limit) }
    }

    /// Creates the result of a call that was abandoned.
    pub fn abandoned() -> Self {
        Self { content: String::new(), outcome: ToolOutcome::Abandoned, limit: None }
    }

    /// Returns whether the content is an error for the model.
    pub fn is_error(&self) -> bool {
        self.outcome != ToolOutcome::Answered
    }
}

/// Returns the text of an error for a model, which reads it as the tool's result.
pub fn error_text(reason: impl std::fmt::Display) -> String {
    format!("Error: {reason}")
}

impl CallResult {
    /// Returns the number of attempts after the first. Calls of tools have none.
    pub fn retries(&self) -> u32 {
        let attempts = match self {
            Self::Model(Ok(reply)) => reply.attempts,
            Self::Model(Err(failure)) => failure.attempts(),
            Self::Tool(_) => 1,
        };
        attempts.saturating_sub(1)
    }

    /// Returns the size of the text or body in bytes.
    pub fn text_bytes(&self) -> usize {
        match self {
            Self::Model(Ok(reply)) => reply.completion.body().len(),
            Self::Model(Err(failure)) => failure.text().len(),
            Self::Tool(answer) => answer.content.len(),
        }
    }

    /// Returns the text or body that follows the JSON of the result on disk.
    pub(crate) fn text(&self) -> Bytes {
        match self {
            Self::Model(Ok(reply)) => reply.completion.body().clone(),
            Self::Model(Err(failure)) => Bytes::copy_from_slice(failure.text().as_bytes()),
            Self::Tool(answer) => Bytes::copy_from_slice(answer.content.as_bytes()),
        }
    }

    /// Adds the text or body to a result that was parsed from its JSON.
    pub(crate) fn set_text(&mut self, text: Bytes) -> Result<(), String> {
        let string = |text: Bytes| String::from_utf8(text.into()).map_err(|error| error.to_string());
        match self {
            Self::Model(Ok(reply)) => reply.completion = Completion::parse(&text)?,
            Self::Model(Err(failure)) => failure.set_text(string(text)?),
            Self::Tool(answer) => answer.content = string(text)?,
        }
        Ok(())
    }
}
