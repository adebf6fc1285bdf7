//! A complete chat completion: ids, usage, tokens, JSON.
//!
//! Tokens follow a simple rule: [`TOKEN_BYTES`] bytes are one token, and a token's id and log-probability are
//! hashes of its bytes. The counts, ids and log-probabilities of a completion agree with each other.
//!
//! This module knows no HTTP; `sse` splits the same completion into events.

use serde_json::{Map, Value, json};

use super::reply::Reply;
use super::request::ChatRequest;

/// Name of the only model.
pub(super) const MODEL: &str = "rollout-host-mock";
/// Marker of the mock in every completion.
pub(super) const STAND_IN: &str = "stand-in, not a model";
/// Number of bytes in a token.
const TOKEN_BYTES: usize = 4;
/// Number of token ids, about the vocabulary of a large model.
const VOCABULARY: u32 = 150_000;

/// A reply with its metadata.
#[derive(Debug)]
pub(super) struct Completion {
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) reply: Reply,
    pub(super) usage: Value,
    pub(super) prompt_token_ids: Option<Vec<u32>>,
    pub(super) with_logprobs: bool,
}

impl Completion {
    /// Adds the metadata that the request asks for to a reply. Computes `usage` unless it is passed.
    pub(super) fn new(
        request: &ChatRequest<'_>,
        reply: Reply,
        usage: Option<Value>,
        id: String,
        created: u64,
    ) -> Self {
        let usage = usage.unwrap_or_else(|| {
            let prompt: usize = request.prompt_texts().map(|text| text.len().div_ceil(TOKEN_BYTES)).sum();
            let completion: usize =
                generated_texts(&reply.message).into_iter().map(|text| tokens(text).count()).sum();
            let (prompt, completion) = (prompt.max(1), completion.max(1));
            json!({
                "prompt_tokens": prompt,
                "completion_tokens": completion,
                "total_tokens": prompt + completion,
            })
        });
        let prompt_token_ids = request.wants_token_ids().then(|| {
            request
                .prompt_texts()
                .flat_map(|text| text.as_bytes().chunks(TOKEN_BYTES))
                .map(token_id)
                .collect()
        });
        Self { id, created, reply, usage, prompt_token_ids, with_logprobs: request.wants_logprobs() }
    }

    /// Returns the body of a reply that is not streamed.
    pub(super) fn into_json(self) -> Value {
        let mut choice = self.choice("message", &[]);
        self.add_tokens(&mut choice, &generated_texts(&self.reply.message));
        choice["finish_reason"] = self.reply.finish_reason.into();
        choice["message"] = Value::Object(self.reply.message);
        let mut body = json!({
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": MODEL,
            "system_fingerprint": STAND_IN,
            "choices": [choice],
            "usage": self.usage,
        });
        if let Some(ids) = self.prompt_token_ids {
            body["prompt_token_ids"] = ids.into();
        }
        body
    }

    /// Returns a choice with the tokens of `texts` and without a finish reason.
    pub(super) fn choice(&self, part: &str, texts: &[&str]) -> Value {
        let mut choice = json!({"index": 0, part: {}, "logprobs": null, "finish_reason": null});
        if !texts.is_empty() {
            self.add_tokens(&mut choice, texts);
        }
        choice
    }

    fn add_tokens(&self, choice: &mut Value, texts: &[&str]) {
        let tokens = || texts.iter().flat_map(|text| tokens(text));
        if self.with_logprobs {
            let content: Vec<Value> = tokens().map(logprob).collect();
            choice["logprobs"] = json!({"content": content, "refusal": null});
        }
        if self.prompt_token_ids.is_some() {
            let ids: Vec<u32> = tokens().map(|token| token_id(token.as_bytes())).collect();
            choice["token_ids"] = ids.into();
        }
    }
}

/// Returns the generated texts of a message: its content, then the name and arguments of each tool call.
fn generated_texts(message: &Map<String, Value>) -> Vec<&str> {
    let calls = message.get("tool_calls").and_then(Value::as_array);
    let content = message.get("content").and_then(Value::as_str);
    let calls = calls.into_iter().flatten().flat_map(|call| {
        ["/function/name", "/function/arguments"].into_iter().filter_map(|path| call.pointer(path)?.as_str())
    });
    content.into_iter().chain(calls).collect()
}

/// Splits a text into tokens of at most [`TOKEN_BYTES`] bytes, without splitting characters.
pub(super) fn tokens(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (token, after) = rest.split_at(rest.floor_char_boundary(TOKEN_BYTES));
        rest = after;
        Some(token)
    })
}

fn logprob(token: &str) -> Value {
    let logprob = -f64::from(hash(token.as_bytes()) % 1_000) / 1_000.0;
    json!({
        "token": token,
        "logprob": logprob,
        "bytes": token.as_bytes(),
        "top_logprobs": [],
    })
}

fn token_id(token: &[u8]) -> u32 {
    hash(token) % VOCABULARY
}

/// Computes an FNV-1a hash, which is short and the same on every machine.
fn hash(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completion(request: Value, message: Value) -> Value {
        let request = request.to_string();
        let request = ChatRequest::parse(request.as_bytes()).expect("a request");
        let Value::Object(message) = message else { panic!("a message") };
        let reply = Reply { message, finish_reason: "stop".to_owned() };
        Completion::new(&request, reply, None, "id".to_owned(), 7).into_json()
    }

    #[test]
    fn tokens_are_four_bytes_and_whole_characters() {
        let check = |text: &str, expected: &[&str]| {
            assert_eq!(tokens(text).collect::<Vec<_>>(), expected, "{text}");
        };
        check("", &[]);
        check("abc", &["abc"]);
        check("abcdefghi", &["abcd", "efgh", "i"]);
        check("\u{20ac}\u{20ac}", &["\u{20ac}", "\u{20ac}"]);
        check("\u{1f600}!", &["\u{1f600}", "!"]);
    }

    #[test]
    fn a_plain_completion_has_the_fields_that_every_client_reads() {
        let body = completion(
            json!({"messages": [{"role": "user", "content": "12345678"}]}),
            json!({"role": "assistant", "content": "hello"}),
        );
        assert_eq!(
            body,
            json!({
                "id": "id", "object": "chat.completion", "created": 7, "model": MODEL,
                "system_fingerprint": STAND_IN,
                "choices": [{
                    "index": 0, "message": {"role": "assistant", "content": "hello"},
                    "logprobs": null, "finish_reason": "stop",
                }],
                // The prompt's JSON text includes two quotes, so it has ten bytes.
                "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
            })
        );
    }

    #[test]
    fn counts_ids_and_log_probabilities_agree() {
        let body = completion(
            json!({
                "messages": [{"role": "user", "content": "12345678"}],
                "logprobs": true, "return_token_ids": true,
            }),
            json!({"role": "assistant", "content": null, "tool_calls": [
                {"id": "c", "function": {"name": "calculator", "arguments": "{\"e\":\"1+1\"}"}},
            ]}),
        );
        let length = |path: &str| body.pointer(path).and_then(Value::as_array).map(Vec::len);
        assert_eq!(length("/prompt_token_ids"), Some(3));
        assert_eq!(length("/choices/0/token_ids"), Some(6));
        assert_eq!(length("/choices/0/logprobs/content"), Some(6));
        assert_eq!(body["usage"]["completion_tokens"], 6);
        assert_eq!(body["choices"][0]["logprobs"]["content"][0]["token"], "calc");
    }
}
