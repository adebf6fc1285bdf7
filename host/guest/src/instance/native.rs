//! An agent that is the host's own code, such as the loop in which a model plays an environment.
//!
//! It uses the imports of a workflow, so its conversation and its calls of the policy are limited, recorded and
//! replayed like those of any other workflow.

use wasmtime::component::Resource;

use super::RunError;
use super::error::of_import;
use crate::imports::bindings::rollout::plugin::models::{
    self, Completion, Conversation, Error, Host, Request, Role,
};
use crate::imports::bindings::rollout::plugin::samples::{HostSample, OpenError, RecordError};
use crate::imports::{CallError, Imports, OpenSample};
use rollout_wire::openai::ToolCall;

/// A native agent with one sample.
pub struct NativeAgent {
    imports: Box<Imports>,
    sample: u32,
}

/// The policy's reply, which is in the sample already.
#[derive(Debug)]
pub struct NativeReply {
    /// Its tool calls, in order.
    pub tool_calls: Vec<ToolCall>,
}

/// Result of a call of the policy.
#[derive(Debug)]
pub enum NativeCall {
    /// The policy replied.
    Replied(NativeReply),
    /// A budget of the rollout is spent, and this is its name.
    BudgetSpent(String),
}

impl NativeAgent {
    /// Opens the agent's sample.
    pub fn new(mut imports: Box<Imports>) -> Result<Self, RunError> {
        let opened = imports.open(None).map_err(|error| match error {
            CallError::Reported(OpenError::TooMany(most)) => {
                RunError::Failed(format!("the caller accepts {most} samples"))
            }
            CallError::Reported(OpenError::Taken(name)) => {
                RunError::Failed(format!("the sample '{name}' exists"))
            }
            CallError::Reported(OpenError::Invalid(why)) => RunError::Failed(why),
            CallError::Fatal(error) => of_import(&error),
        })?;
        Ok(Self { sample: opened.rep(), imports })
    }

    /// Returns a handle of the sample for one call.
    fn sample(&self) -> Resource<OpenSample> {
        Resource::new_borrow(self.sample)
    }

    /// Appends messages, which are JSON objects, to the sample. If a budget is spent, appends nothing and returns the
    /// budget's name.
    pub fn push(&mut self, messages: Vec<String>) -> Result<Option<String>, RunError> {
        let sample = self.sample();
        match self.imports.push(sample, messages) {
            Ok(()) => Ok(None),
            Err(CallError::Reported(RecordError::OverLimit(budget))) => Ok(Some(budget)),
            Err(error) => Err(record_error(error)),
        }
    }

    /// Records a measurement in the sample.
    pub fn set_metric(&mut self, name: &str, value: f64) -> Result<(), RunError> {
        let sample = self.sample();
        self.imports.set_metric(sample, name.to_owned(), value).map_err(record_error)
    }

    /// Appends messages to the sample and calls the policy with all of them and with these tools.
    pub async fn complete(
        &mut self,
        messages: Vec<String>,
        tools: &[String],
    ) -> Result<NativeCall, RunError> {
        let request = Request {
            conversation: Conversation::History(messages),
            tools: tools.to_vec(),
            params: None,
            keep_reply: true,
        };
        let sample = self.sample();
        match Host::complete(&mut *self.imports, Role::Policy, Some(sample), request).await {
            Ok(Completion { tool_calls, .. }) => {
                let tool_calls = tool_calls
                    .into_iter()
                    .map(|models::ToolCall { id, name, arguments }| ToolCall { id, name, arguments });
                Ok(NativeCall::Replied(NativeReply { tool_calls: tool_calls.collect() }))
            }
            Err(CallError::Reported(Error::BudgetSpent(budget))) => Ok(NativeCall::BudgetSpent(budget)),
            Err(CallError::Reported(Error::Refused((status, answer)))) => {
                Err(RunError::Failed(format!("the model's server refused with {status}: {answer}")))
            }
            Err(CallError::Reported(Error::Unavailable(why))) => {
                Err(RunError::Failed(format!("the model's server is unavailable: {why}")))
            }
            Err(CallError::Reported(Error::NotProvided(why) | Error::InvalidRequest(why))) => {
                Err(RunError::Failed(why))
            }
            Err(CallError::Fatal(error)) => Err(of_import(&error)),
        }
    }
}

fn record_error(error: CallError<RecordError>) -> RunError {
    match error {
        CallError::Reported(RecordError::Invalid(why) | RecordError::OverLimit(why)) => RunError::Failed(why),
        CallError::Fatal(error) => of_import(&error),
    }
}
