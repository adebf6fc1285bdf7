//! The calls of the model, the judge and the tools as the host saw them.

use std::time::UNIX_EPOCH;

use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use super::millis;
use crate::imports::{Exchange, ExchangeOutcome, JudgeExchange, ToolUse};
use crate::telemetry::{Label, ToolOutcome};
use crate::wire;
use crate::wire::stream::{each, members};

/// Every call of the model. A request repeats the conversation so far, so only the messages
/// that the one before did not have are written out.
pub(super) struct Observed<'a>(pub &'a [&'a Exchange]);

impl Serialize for Observed<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut before = "";
        let mut list = to.serialize_seq(None)?;
        for exchange in self.0 {
            let messages = sent_messages(&exchange.request);
            list.serialize_element(&Seen { exchange, messages, before })?;
            before = messages;
        }
        list.end()
    }
}

/// The list of messages in a request.
pub(super) fn sent_messages(request: &[u8]) -> &str {
    #[derive(serde::Deserialize)]
    struct Body<'a> {
        #[serde(borrow)]
        messages: &'a RawValue,
    }
    serde_json::from_slice::<Body<'_>>(request).map_or("[]", |body| body.messages.get())
}

struct Seen<'a> {
    exchange: &'a Exchange,
    messages: &'a str,
    before: &'a str,
}

impl Serialize for Seen<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Exchange { sample, started_at, duration, outcome, .. } = self.exchange;
        let at = started_at.duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut seen = to.serialize_map(None)?;
        seen.serialize_entry("sample_id", sample.as_str())?;
        seen.serialize_entry("started_at_unix_ms", &(millis(at).round() as u64))?;
        seen.serialize_entry("duration_ms", &millis(*duration))?;
        seen.serialize_entry("request", &Request(self))?;
        serialize_outcome::<S>(&mut seen, outcome)?;
        seen.end()
    }
}

/// What came of a call, with a reply as it came. What callers could not read is null.
fn serialize_outcome<S: Serializer>(
    seen: &mut S::SerializeMap,
    outcome: &ExchangeOutcome,
) -> Result<(), S::Error> {
    match outcome {
        ExchangeOutcome::Replied { body, attempts, .. } => {
            seen.serialize_entry("attempts", attempts)?;
            seen.serialize_entry("reply", &as_value(body))
        }
        ExchangeOutcome::Failed(reason) => seen.serialize_entry("error", reason),
        ExchangeOutcome::Abandoned => seen.serialize_entry("abandoned", &true),
    }
}

fn as_value(body: &[u8]) -> Option<&RawValue> {
    wire::value(std::str::from_utf8(body).ok()?).ok()
}

struct Request<'a>(&'a Seen<'a>);

impl Serialize for Request<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Seen { exchange, messages, before } = self.0;
        let (repeated, new) = split(before, messages);
        let mut request = to.serialize_map(Some(3))?;
        request.serialize_entry("messages_repeated", &repeated)?;
        request.serialize_entry("messages_new", &New { messages: new })?;
        request.serialize_entry("rest", &Rest(&exchange.request))?;
        request.end()
    }
}

/// How many messages a list has in common with the one before, and the text of all that
/// follow. The host wrote both lists, without space between objects, so that two lists have
/// an object in common where they have its text in common.
fn split<'a>(before: &str, messages: &'a str) -> (usize, &'a str) {
    let same_bytes = before.bytes().zip(messages.bytes()).take_while(|(a, b)| a == b).count();
    let start = messages.as_ptr() as usize;
    let (mut repeated, mut end) = (0, 1);
    let _ = each(messages, |message: &RawValue| {
        let message = message.get();
        let ends_at = message.as_ptr() as usize + message.len() - start;
        if ends_at > same_bytes {
            return Err(());
        }
        (repeated, end) = (repeated + 1, ends_at);
        Ok(())
    });
    // `]`, or `,` and more messages.
    let rest = messages.get(end..).unwrap_or("]").trim_start_matches(',');
    (repeated, rest)
}

/// Messages from the text after a list's beginning.
struct New<'a> {
    messages: &'a str,
}

impl Serialize for New<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut list = to.serialize_seq(None)?;
        let mut messages = serde_json::Deserializer::from_str(self.messages).into_iter::<&RawValue>();
        let mut at = 0;
        while let Some(Ok(message)) = messages.next() {
            list.serialize_element(message)?;
            at += messages.byte_offset();
            let Some(rest) = self.messages.get(at..).and_then(|rest| rest.strip_prefix(',')) else { break };
            at += 1;
            messages = serde_json::Deserializer::from_str(rest).into_iter();
        }
        list.end()
    }
}

/// A request's fields but for its messages, as they were written.
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
            // A request that is no object was never one of the host's.
            Err(wire::stream::Stopped::Json(_)) | Ok(()) => {}
        }
        rest.end()
    }
}

/// Every call of the judge, whole.
pub(super) struct Judged<'a>(pub &'a [JudgeExchange]);

impl Serialize for Judged<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.0.iter().map(SeenByJudge))
    }
}

struct SeenByJudge<'a>(&'a JudgeExchange);

impl Serialize for SeenByJudge<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let JudgeExchange { request, started_at, duration, outcome } = self.0;
        let at = started_at.duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut seen = to.serialize_map(None)?;
        seen.serialize_entry("started_at_unix_ms", &(millis(at).round() as u64))?;
        seen.serialize_entry("duration_ms", &millis(*duration))?;
        seen.serialize_entry("request", &as_value(request))?;
        serialize_outcome::<S>(&mut seen, outcome)?;
        seen.end()
    }
}

/// Every call of a host-provided tool with its arguments, its result or error, and its time.
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
        seen.serialize_entry("outcome", call.outcome.as_str())?;
        seen.serialize_entry("started_at_unix_ms", &(millis(at).round() as u64))?;
        seen.serialize_entry("duration_ms", &millis(call.duration))?;
        match call.outcome {
            ToolOutcome::Answered => seen.serialize_entry("content", &call.content)?,
            ToolOutcome::Abandoned => {}
            ToolOutcome::Failed | ToolOutcome::Unavailable | ToolOutcome::OverLimit => {
                seen.serialize_entry("error", &call.content)?;
            }
        }
        seen.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_two_requests_have_in_common_is_counted_in_whole_messages() {
        fn check(before: &str, messages: &str, repeated: usize, new: &str) {
            let (count, rest) = split(before, messages);
            let new_written = serde_json::to_string(&New { messages: rest }).unwrap();
            assert_eq!((count, new_written.as_str()), (repeated, new), "{before} {messages}");
        }
        check("", r#"[{"a":1}]"#, 0, r#"[{"a":1}]"#);
        check(r#"[{"a":1}]"#, r#"[{"a":1}]"#, 1, "[]");
        check(r#"[{"a":1}]"#, r#"[{"a":1},{},{"b":"],"}]"#, 1, r#"[{},{"b":"],"}]"#);
        check(r#"[{"a":1},{"b":2}]"#, r#"[{"a":1},{"b":3}]"#, 1, r#"[{"b":3}]"#);
        check(r#"[{"a":1},{"b":2}]"#, r#"[{"a":1}]"#, 1, "[]");
        check("[{}]", "[]", 0, "[]");
    }
}
