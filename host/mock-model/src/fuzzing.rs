//! Fuzz target of the mock: any body parses or is rejected, and the joined stream equals the reply.

use serde_json::Value;

use super::completion::Completion;
use super::reply::{self, Turn};
use super::request::ChatRequest;
use super::sse;

/// A fuzz target.
pub type Target = fn(&[u8]);

/// The crate's targets with the names of their programs and corpora.
pub const TARGETS: [(&str, Target); 1] = [("mock_model", streamed)];

/// Parses a body as `POST /chat/completions` does, answers and streams it.
fn streamed(body: &[u8]) {
    let Ok(request) = ChatRequest::parse(body) else { return };
    let text = request.last_user_text();
    let turn = Turn {
        text: &text,
        calculator: request.calculator(),
        tool_result: request.tool_result(),
        call_id: "call-1".to_owned(),
    };
    let reply = reply::answer(turn, None);
    let reply_text = reply.message.get("content").and_then(Value::as_str).unwrap_or_default().to_owned();
    let completion = Completion::new(&request, reply, None, "id".to_owned(), 7);
    let mut joined = String::new();
    let events = sse::events(&completion, request.wants_usage_chunk());
    let (done, chunks) = events.split_last().expect("a stream ends");
    assert_eq!(&done[..], b"data: [DONE]\n\n");
    for event in chunks {
        let event = std::str::from_utf8(event).expect("an event is text");
        let data = event.strip_prefix("data: ").and_then(|data| data.strip_suffix("\n\n")).expect("an event");
        assert!(!data.contains('\n'), "an event is a line: {data}");
        let chunk: Value = serde_json::from_str(data).expect("an event is JSON");
        joined += chunk["choices"][0]["delta"]["content"].as_str().unwrap_or_default();
    }
    assert_eq!(joined, reply_text);
}

#[cfg(test)]
#[path = "../../../fuzz/corpus.rs"]
mod corpus;
