//! The calls of models and tools in a rollout's stored events.

use std::time::SystemTime;

use bytes::Bytes;

use super::exchange::{ModelCalls, WrittenRequest};
use super::tools::WrittenToolCall;
use rollout_core::telemetry::ModelRole;

/// One call, as the event of its start has it.
#[derive(Debug)]
pub enum ReadCall<'a> {
    /// A request to a model, and its place among those to the same model, from 0.
    Model(ModelRole, usize),
    /// A call of a host-provided tool.
    Tool(WrittenToolCall<'a>),
}

/// The requests to the models of one rollout, put together from what is new in each.
#[derive(Debug, Default)]
pub struct ReadCalls {
    pub(super) policy: ModelCalls,
    pub(super) judge: ModelCalls,
}

impl ReadCalls {
    /// Reads what a guest asked ([`RunEvent::Asked`](super::RunEvent::Asked)), in the order of the events. The error says
    /// what of it cannot be read.
    pub fn add<'a>(&mut self, asked: &'a [u8], time: SystemTime) -> Result<ReadCall<'a>, String> {
        if let Ok(call) = serde_json::from_slice::<WrittenToolCall<'_>>(asked) {
            return Ok(ReadCall::Tool(call));
        }
        let request: WrittenRequest<'_> =
            serde_json::from_slice(asked).map_err(|error| format!("a request cannot be read: {error}"))?;
        let role = request.asked;
        let place = self.of_mut(role).add_written(request, time)?;
        Ok(ReadCall::Model(role, place))
    }

    /// The requests to one model.
    pub fn of(&self, role: ModelRole) -> &ModelCalls {
        match role {
            ModelRole::Policy => &self.policy,
            ModelRole::Judge => &self.judge,
        }
    }

    pub(super) fn of_mut(&mut self, role: ModelRole) -> &mut ModelCalls {
        match role {
            ModelRole::Policy => &mut self.policy,
            ModelRole::Judge => &mut self.judge,
        }
    }

    /// The body of a request as it was sent, and the id of its sample. `None` if there is no such request.
    pub fn request(&self, role: ModelRole, place: usize) -> Option<(Bytes, &str)> {
        let lists = self.of(role).among(&[]);
        let exchange = lists.exchanges().get(place)?;
        let sample = exchange.sample.as_ref().map_or("", |id| id.as_str());
        Some((lists.body(exchange).into(), sample))
    }
}
