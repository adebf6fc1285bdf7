//! Calls of the model, the judge and the tools as the host observed them.

use std::time::UNIX_EPOCH;

use serde::ser::{Error, SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use super::millis;
use rollout_core::telemetry::{Label, ModelRole, ToolOutcome};
use rollout_transcript::{ChatFailure, Exchange, Lists, Part, ToolUse, in_common};
use rollout_wire as wire;
use rollout_wire::id::SampleId;
use rollout_wire::stream::members;

/// All calls of the model. A request repeats the conversation, so only its new messages are written.
pub(super) struct Observed<'a> {
    pub lists: Lists<'a>,
    pub exchanges: &'a [&'a Exchange],
    /// For each answered call, the index of the claimed message that is its reply.
    pub message_of_reply: &'a [Option<usize>],
}

impl Serialize for Observed<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut before = Vec::new();
        let mut places = self.message_of_reply.iter();
        let mut list = to.serialize_seq(None)?;
        for exchange in self.exchanges {
            let reply_at = exchange.completion().and_then(|_| *places.next()?);
            let messages = self.lists.messages(exchange);
            list.serialize_element(&Seen {
                lists: self.lists,
                exchange,
                messages: &messages,
                before: &before,
                reply_at,
            })?;
            before = messages;
        }
        list.end()
    }
}

struct Seen<'a> {
    lists: Lists<'a>,
    exchange: &'a Exchange,
    messages: &'a [Part<'a>],
    before: &'a [Part<'a>],
    reply_at: Option<usize>,
}

impl Serialize for Seen<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut seen = to.serialize_map(None)?;
        seen.serialize_entry("sample_id", &self.exchange.sample.as_ref().map(SampleId::as_str))?;
        serialize_times::<S>(&mut seen, self.exchange)?;
        seen.serialize_entry("request", &Request(self))?;
        serialize_result::<S>(&mut seen, self.exchange, ModelRole::Policy)?;
        if let Some(reply_at) = self.reply_at {
            seen.serialize_entry("reply_at", &reply_at)?;
        }
        seen.end()
    }
}

fn serialize_times<S: Serializer>(seen: &mut S::SerializeMap, exchange: &Exchange) -> Result<(), S::Error> {
    let at = exchange.started_at.duration_since(UNIX_EPOCH).unwrap_or_default();
    seen.serialize_entry("started_at_unix_ms", &(millis(at).round() as u64))?;
    seen.serialize_entry("duration_ms", &millis(exchange.duration))
}

/// Writes the result of a call, with an unchanged reply. A reply that the parsers of callers would refuse is written
/// as null.
fn serialize_result<S: Serializer>(
    seen: &mut S::SerializeMap,
    exchange: &Exchange,
    role: ModelRole,
) -> Result<(), S::Error> {
    match &exchange.result {
        Ok(reply) => {
            seen.serialize_entry("attempts", &reply.attempts)?;
            seen.serialize_entry("reply", &as_value(reply.completion.body()))
        }
        Err(ChatFailure::Abandoned) => seen.serialize_entry("abandoned", &true),
        Err(failure) => seen.serialize_entry("error", &failure.message(role)),
    }
}

fn as_value(body: &[u8]) -> Option<&RawValue> {
    wire::value(std::str::from_utf8(body).ok()?).ok()
}

struct Request<'a>(&'a Seen<'a>);

impl Serialize for Request<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Seen { lists, exchange, messages, before, .. } = self.0;
        let repeated = in_common(before, messages);
        let mut request = to.serialize_map(Some(3))?;
        request.serialize_entry("messages_repeated", &repeated)?;
        request.serialize_entry("messages_new", &New { messages, repeated })?;
        request.serialize_entry("rest", &Rest(&lists.rest(exchange)))?;
        request.end()
    }
}

/// The messages of a list after the first ones.
struct New<'a> {
    messages: &'a [Part<'a>],
    repeated: usize,
}

impl Serialize for New<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut list = to.serialize_seq(None)?;
        for message in self.messages.iter().flat_map(Part::iter).skip(self.repeated) {
            // The message was checked when it was sent.
            let message: &RawValue = serde_json::from_str(message).map_err(S::Error::custom)?;
            list.serialize_element(message)?;
        }
        list.end()
    }
}

/// The fields of a request except its messages, unchanged.
struct Rest<'a>(&'a [u8]);

impl Serialize for Rest<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut rest = to.serialize_map(None)?;
        let request = std::str::from_utf8(self.0).unwrap_or("{}");
        let read = members(request, |name, value: &RawValue| match &*name {
            "messages" => Ok(()),
            name => rest.serialize_entry(name, value),
        });
        match read {
            Err(wire::stream::Stopped::Taker(error)) => return Err(error),
            // Every request of the host is an object.
            Err(wire::stream::Stopped::Json(_)) | Ok(()) => {}
        }
        rest.end()
    }
}

/// All calls of the judge, in full.
pub(super) struct Judged<'a>(pub Lists<'a>);

impl Serialize for Judged<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.0.exchanges().iter().map(|exchange| SeenByJudge(self.0, exchange)))
    }
}

struct SeenByJudge<'a>(Lists<'a>, &'a Exchange);

impl Serialize for SeenByJudge<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Self(lists, exchange) = self;
        let mut seen = to.serialize_map(None)?;
        serialize_times::<S>(&mut seen, exchange)?;
        seen.serialize_entry("request", &as_value(&lists.body(exchange)))?;
        serialize_result::<S>(&mut seen, exchange, ModelRole::Judge)?;
        seen.end()
    }
}

/// All calls of host-provided tools with arguments, result or error, and time.
pub(super) struct ToolCalls<'a>(pub &'a [&'a ToolUse]);

impl Serialize for ToolCalls<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.0.iter().map(|call| SeenTool(call)))
    }
}

struct SeenTool<'a>(&'a ToolUse);

impl Serialize for SeenTool<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let call = self.0;
        let at = call.started_at.duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut seen = to.serialize_map(None)?;
        seen.serialize_entry("tool_call_id", &call.call_id)?;
        seen.serialize_entry("function_name", &call.name)?;
        seen.serialize_entry("arguments", &call.arguments)?;
        seen.serialize_entry("kind", call.kind.as_str())?;
        seen.serialize_entry("outcome", call.answer.outcome.as_str())?;
        seen.serialize_entry("started_at_unix_ms", &(millis(at).round() as u64))?;
        seen.serialize_entry("duration_ms", &millis(call.duration))?;
        match call.answer.outcome {
            ToolOutcome::Answered => seen.serialize_entry("content", &call.answer.content)?,
            ToolOutcome::Abandoned => {}
            ToolOutcome::Failed | ToolOutcome::Unavailable | ToolOutcome::OverLimit => {
                seen.serialize_entry("error", &call.answer.content)?;
            }
        }
        seen.end()
    }
}
