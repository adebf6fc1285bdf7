//! Server-sent events of a streamed completion.
//!
//! This module builds the events and does not send them.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::completion::{Completion, MODEL, STAND_IN, tokens};

/// Approximate number of pieces of a text, so that a client has something to join.
const PIECES: usize = 4;

/// Returns the events of a completion in order, including the closing `[DONE]`.
pub(super) fn events(completion: &Completion, with_usage: bool) -> Vec<Bytes> {
    let mut chunks = vec![opening(completion)];
    let message = &completion.reply.message;
    if let Some(Value::String(content)) = message.get("content") {
        for piece in pieces(content) {
            let mut choice = completion.choice("delta", &[piece]);
            choice["delta"] = json!({"content": piece});
            chunks.push(chunk(completion, vec![choice]));
        }
    }
    let calls = message.get("tool_calls").and_then(Value::as_array);
    for (index, call) in calls.into_iter().flatten().enumerate() {
        tool_call(completion, index, call, &mut chunks);
    }
    let mut last = completion.choice("delta", &[]);
    last["finish_reason"] = completion.reply.finish_reason.as_str().into();
    chunks.push(chunk(completion, vec![last]));
    if with_usage {
        let mut usage = chunk(completion, Vec::new());
        usage["usage"] = completion.usage.clone();
        chunks.push(usage);
    }
    let mut events: Vec<Bytes> =
        chunks.into_iter().map(|chunk| Bytes::from(format!("data: {chunk}\n\n"))).collect();
    events.push(Bytes::from_static(b"data: [DONE]\n\n"));
    events
}

/// Returns the first chunk: the role and every field of the message that is not split.
fn opening(completion: &Completion) -> Value {
    let mut delta = Map::new();
    for (key, value) in &completion.reply.message {
        match (key.as_str(), value) {
            ("tool_calls", Value::Array(_)) => {}
            ("content", Value::String(_)) => {
                delta.insert(key.clone(), "".into());
            }
            _ => {
                delta.insert(key.clone(), value.clone());
            }
        }
    }
    let mut choice = completion.choice("delta", &[]);
    choice["delta"] = Value::Object(delta);
    let mut opening = chunk(completion, vec![choice]);
    if let Some(ids) = &completion.prompt_token_ids {
        opening["prompt_token_ids"] = ids.as_slice().into();
    }
    opening
}

/// Appends the chunks of one tool call: first everything but the arguments, then the arguments in pieces.
fn tool_call(completion: &Completion, index: usize, call: &Value, chunks: &mut Vec<Value>) {
    let mut first = json!({ "index": index });
    if let (Some(first), Some(call)) = (first.as_object_mut(), call.as_object()) {
        first.extend(call.clone());
    }
    let name = call.pointer("/function/name").and_then(Value::as_str);
    let arguments = call.pointer("/function/arguments").and_then(Value::as_str);
    if arguments.is_some() {
        first["function"]["arguments"] = "".into();
    }
    let mut push = |call: Value, texts: &[&str]| {
        let mut choice = completion.choice("delta", texts);
        choice["delta"] = json!({"tool_calls": [call]});
        chunks.push(chunk(completion, vec![choice]));
    };
    push(first, name.as_slice());
    for piece in arguments.into_iter().flat_map(pieces) {
        let call = json!({"index": index, "function": {"arguments": piece}});
        push(call, &[piece]);
    }
}

fn chunk(completion: &Completion, choices: Vec<Value>) -> Value {
    json!({
        "id": completion.id,
        "object": "chat.completion.chunk",
        "created": completion.created,
        "model": MODEL,
        "system_fingerprint": STAND_IN,
        "choices": choices,
    })
}

/// Splits a text between tokens, so that the pieces have the same tokens as the whole.
fn pieces(text: &str) -> Vec<&str> {
    let lengths: Vec<usize> = tokens(text).map(str::len).collect();
    let mut rest = text;
    lengths
        .chunks(lengths.len().div_ceil(PIECES).max(1))
        .map(|lengths| {
            let (piece, after) = rest.split_at(lengths.iter().sum());
            rest = after;
            piece
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reply::Reply;
    use crate::request::ChatRequest;

    fn streamed(extra: &str, message: Value, with_usage: bool) -> Vec<Value> {
        let body = format!(r#"{{"messages": [{{"role": "user", "content": "hi"}}]{extra}}}"#);
        let request = ChatRequest::parse(body.as_bytes()).expect("a request");
        let reply = Reply {
            message: message.as_object().cloned().expect("a message"),
            finish_reason: "stop".to_owned(),
        };
        let completion = Completion::new(&request, reply, None, "id".to_owned(), 7);
        let mut events = events(&completion, with_usage);
        assert_eq!(events.pop().as_deref(), Some(&b"data: [DONE]\n\n"[..]));
        let read = |event: &Bytes| {
            let text = std::str::from_utf8(event).expect("text");
            let data = text.strip_prefix("data: ").expect("data");
            serde_json::from_str(data).expect("JSON")
        };
        events.iter().map(read).collect()
    }

    #[test]
    fn content_is_split_between_role_and_finish() {
        let text = "The result is 42, as \u{20ac} shows.\n#### 42";
        let message = json!({"role": "assistant", "content": text, "reasoning": "none"});
        let chunks = streamed("", message, true);
        assert_eq!(
            chunks[0]["choices"][0]["delta"],
            json!({"role": "assistant", "content": "", "reasoning": "none"})
        );
        let joined: String =
            chunks.iter().filter_map(|chunk| chunk.pointer("/choices/0/delta/content")?.as_str()).collect();
        assert_eq!(joined, text);
        assert_eq!(chunks.len(), 1 + PIECES + 2);
        assert_eq!(chunks[5]["choices"][0]["finish_reason"], "stop");
        assert_eq!(chunks[6]["choices"], json!([]));
        assert!(chunks[6]["usage"]["total_tokens"].is_u64());
    }

    #[test]
    fn tool_calls_have_an_index_and_their_arguments_join() {
        let call = |id: &str| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": "{\"a\":\"1 + 1\"}"}});
        let message = json!({"role": "assistant", "content": null, "tool_calls": [call("a"), call("b")]});
        let chunks = streamed("", message, false);
        assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": null}));
        for (index, id) in ["a", "b"].into_iter().enumerate() {
            let deltas: Vec<&Value> = chunks
                .iter()
                .filter_map(|chunk| chunk.pointer("/choices/0/delta/tool_calls/0"))
                .filter(|call| call["index"] == index)
                .collect();
            assert_eq!(deltas[0]["id"], id);
            assert_eq!(deltas[0]["function"]["name"], "f");
            let joined: String =
                deltas.iter().filter_map(|call| call["function"]["arguments"].as_str()).collect();
            assert_eq!(joined, "{\"a\":\"1 + 1\"}");
        }
    }

    #[test]
    fn the_tokens_of_the_pieces_are_the_tokens_of_the_whole() {
        let extra = r#", "logprobs": true, "return_token_ids": true"#;
        let message = json!({"role": "assistant", "content": "hello", "tool_calls": [
            {"id": "c", "function": {"name": "calculator", "arguments": "{\"e\":\"1+1\"}"}},
        ]});
        let chunks = streamed(extra, message, true);
        assert_eq!(chunks[0]["prompt_token_ids"].as_array().map(Vec::len), Some(1));
        let count = |path: &str| -> usize {
            let lists = chunks.iter().filter_map(|chunk| chunk.pointer(path));
            lists.filter_map(Value::as_array).map(Vec::len).sum()
        };
        let usage = &chunks[chunks.len() - 1]["usage"]["completion_tokens"];
        assert_eq!(count("/choices/0/token_ids"), 8);
        assert_eq!(count("/choices/0/logprobs/content"), 8);
        assert_eq!(*usage, 8);
    }

    #[test]
    fn an_empty_text_has_no_pieces() {
        assert_eq!(pieces(""), Vec::<&str>::new());
        assert_eq!(pieces("ab"), ["ab"]);
    }
}
