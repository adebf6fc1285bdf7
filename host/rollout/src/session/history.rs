//! The history of an episode as messages, for its grader.

use serde_json::json;
use serde_json::value::RawValue;

use rollout_core::limits::Limits;
use rollout_guest::imports::Record;
use rollout_guest::instance::EpisodeAction;

/// The messages of an episode: observations of the user, actions of the assistant.
#[derive(Default)]
pub(super) struct History {
    messages: Vec<String>,
    calls: u64,
}

impl History {
    /// Adds an observation. The error names the limit that it exceeds.
    pub(super) fn observe(
        &mut self,
        observation: &RawValue,
        record: &Record,
        limits: &Limits,
    ) -> Result<(), String> {
        self.add(json!({"role": "user", "content": observation.get()}).to_string(), record, limits)
    }

    /// Adds an action and its observation. The error names the limit that they exceed.
    pub(super) fn step(
        &mut self,
        action: &EpisodeAction,
        observation: &RawValue,
        record: &Record,
        limits: &Limits,
    ) -> Result<(), String> {
        match action {
            EpisodeAction::Value(value) => {
                self.add(json!({"role": "assistant", "content": value}).to_string(), record, limits)?;
                self.observe(observation, record, limits)
            }
            EpisodeAction::Call { name, arguments } => {
                self.calls += 1;
                let id = format!("call-{}", self.calls);
                let function = json!({"name": name, "arguments": arguments});
                let call = json!({"id": id, "type": "function", "function": function});
                let asked = json!({"role": "assistant", "content": null, "tool_calls": [call]});
                self.add(asked.to_string(), record, limits)?;
                let answer = json!({"role": "tool", "tool_call_id": id, "content": observation.get()});
                self.add(answer.to_string(), record, limits)
            }
        }
    }

    fn add(&mut self, message: String, record: &Record, limits: &Limits) -> Result<(), String> {
        let charged = record.charge(message.len() + size_of::<String>(), limits);
        charged.map_err(|limit| format!("the episode cannot be stored for its grader: {limit}"))?;
        self.messages.push(message);
        Ok(())
    }

    /// Returns the messages.
    pub(super) fn into_messages(self) -> Vec<String> {
        self.messages
    }
}
