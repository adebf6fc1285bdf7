//! Converts conversations between the Responses form and chat messages.

use serde::Serialize;
use serde::ser::{SerializeMap, SerializeSeq};
use serde_json::value::{RawValue, to_raw_value};

use crate::dialect::row::{field, message, rest, text_of};
use rollout_rollout::ReplyTokens;
use rollout_wire as wire;
use rollout_wire::messages::Messages;
use rollout_wire::openai::{WireCall, content_text};
use rollout_wire::stream;

/// Maximum number of items of an input.
const ITEMS_MAX: usize = 100_000;

/// Reads `responses_create_params` as a prompt: its instructions and its input.
pub(super) fn prompt(params: &str) -> Result<Messages, String> {
    let mut prompt = Messages::default();
    if let Some(instructions) = field(params, "instructions") {
        let text = stream::text(instructions.get()).ok_or("'instructions' must be a text")?;
        prompt.push(&message("system", &text));
    }
    let input = field(params, "input").ok_or("'responses_create_params' has no 'input'")?.get();
    if let Some(text) = stream::text(input) {
        prompt.push(&message("user", &text));
        return Ok(prompt);
    }
    if !input.starts_with('[') {
        return Err(format!("'input' must be a text or a list of items, not {}", wire::kind(input)));
    }
    push_items(&mut prompt, "'input'", input)?;
    if prompt.is_empty() { Err("'input' has no message".to_owned()) } else { Ok(prompt) }
}

/// Returns a whole conversation: the prompt, followed by the output of the response.
pub(super) fn conversation(prompt: &Messages, output: &str) -> Result<Messages, String> {
    if !output.starts_with('[') {
        return Err(format!("'response.output' must be a list of items, not {}", wire::kind(output)));
    }
    let mut all = prompt.clone();
    push_items(&mut all, "'response.output'", output)?;
    Ok(all)
}

/// Appends items in the chat form.
fn push_items(messages: &mut Messages, what: &str, list: &str) -> Result<(), String> {
    let mut items = 0;
    // A message and the calls that follow it are one message of the assistant.
    let mut turn = Turn::default();
    let read = stream::each(list, |item: &RawValue| {
        let at = items;
        items += 1;
        if items > ITEMS_MAX {
            return Err(format!("{what} has more than {ITEMS_MAX} items"));
        }
        let item = wire::object(item.get()).map_err(|wrong| format!("{what}[{at}] is {wrong}"))?.get();
        let text = |name: &str| field(item, name).and_then(text_of);
        let missing = |name: &str| text(name).ok_or_else(|| format!("{what}[{at}] has no '{name}'"));
        let kind = text("type").unwrap_or_else(|| "message".to_owned());
        match &*kind {
            "function_call" => {
                turn.calls.push(call(&missing("call_id")?, &missing("name")?, &missing("arguments")?));
            }
            "message" => {
                let role = missing("role")?;
                let content = field(item, "content").map_or("\"\"", RawValue::get);
                let message = chat_message(&role, content).map_err(|why| format!("{what}[{at}]: {why}"))?;
                turn.push_to(messages);
                if role == "assistant" {
                    turn.message = Some(message);
                } else {
                    messages.push(&message);
                }
            }
            "function_call_output" => {
                let id = missing("call_id")?;
                let output = text("output").unwrap_or_default();
                turn.push_to(messages);
                messages.push(&raw(&ToolMessage { role: "tool", tool_call_id: &id, content: &output }));
            }
            // The chat form has no reasoning items.
            "reasoning" => {}
            other => {
                return Err(format!(
                    "{what}[{at}] has the type '{other}', which the chat form does not have"
                ));
            }
        }
        Ok(())
    });
    read.map_err(String::from)?;
    turn.push_to(messages);
    Ok(())
}

/// Returns the tools in the chat form, without those that the model's server runs itself.
pub(super) fn chat_tools(list: &str) -> Option<Box<RawValue>> {
    let mut tools = Vec::new();
    let read = stream::each(list, |tool: &RawValue| {
        let is_function = field(tool.get(), "type").and_then(text_of).is_none_or(|kind| kind == "function");
        if let Some(function) = rest(tool.get(), &["type"]).filter(|_| is_function) {
            tools.push(raw(&serde_json::json!({"type": "function", "function": function})));
        }
        Ok::<(), String>(())
    });
    (read.is_ok() && !tools.is_empty()).then(|| raw(&tools))
}

/// A turn of the assistant that is being read.
#[derive(Default)]
struct Turn {
    message: Option<Box<RawValue>>,
    calls: Vec<Box<RawValue>>,
}

impl Turn {
    fn push_to(&mut self, messages: &mut Messages) {
        #[derive(Serialize)]
        struct CallsMessage<'a> {
            role: &'a str,
            content: Option<&'a RawValue>,
            tool_calls: &'a [Box<RawValue>],
        }
        let message = self.message.take();
        if self.calls.is_empty() {
            if let Some(message) = message {
                messages.push(&message);
            }
            return;
        }
        let content = message.as_deref().and_then(|message| field(message.get(), "content"));
        messages.push(&raw(&CallsMessage { role: "assistant", content, tool_calls: &self.calls }));
        self.calls.clear();
    }
}

#[derive(Serialize)]
struct ToolMessage<'a> {
    role: &'a str,
    tool_call_id: &'a str,
    content: &'a str,
}

fn raw(value: &impl Serialize) -> Box<RawValue> {
    // Texts and JSON that was parsed before cannot fail to serialize.
    to_raw_value(value).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

fn call(id: &str, name: &str, arguments: &str) -> Box<RawValue> {
    raw(
        &serde_json::json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}),
    )
}

/// Returns a chat message with this content in the Responses form.
fn chat_message(role: &str, content: &str) -> Result<Box<RawValue>, String> {
    #[derive(Serialize)]
    struct PartsMessage<'a> {
        role: &'a str,
        content: Vec<serde_json::Value>,
    }
    if let Some(text) = stream::text(content) {
        return Ok(message(role, &text));
    }
    let mut parts = Vec::new();
    let mut is_text = true;
    let read = stream::each(content, |part: &RawValue| {
        let text = |name: &str| field(part.get(), name).and_then(text_of);
        match text("type").as_deref() {
            Some("input_text" | "output_text" | "text") => {
                parts.push(serde_json::json!({"type": "text", "text": text("text").unwrap_or_default()}));
            }
            Some("input_image") => {
                is_text = false;
                let url = text("image_url").ok_or("an image without 'image_url'")?;
                parts.push(serde_json::json!({"type": "image_url", "image_url": {"url": url}}));
            }
            Some(other) => {
                return Err(format!("a part of the type '{other}', which the chat form does not have"));
            }
            None => return Err("a part without 'type'".to_owned()),
        }
        Ok(())
    });
    read.map_err(String::from)?;
    if is_text {
        let all: String = parts.iter().filter_map(|part| part["text"].as_str()).collect();
        return Ok(message(role, &all));
    }
    Ok(raw(&PartsMessage { role, content: parts }))
}

/// The output of a response: the messages of a sample after its prompt, with the tokens of the model's replies.
pub(super) struct Output<'a> {
    pub messages: &'a Messages,
    /// Index of the first message after the prompt.
    pub from: usize,
    pub tokens: &'a [ReplyTokens],
}

/// Returns the index of the first message of a sample after its prompt. In a sample that does not begin with the prompt, that
/// is the model's first message.
pub(super) fn first_after_prompt(messages: &Messages, prompt: &Messages) -> usize {
    let same = messages.iter().zip(prompt.iter()).take_while(|(a, b)| a == b).count();
    if same == prompt.len() {
        return same;
    }
    let is_assistant = |text: &str| field(text, "role").is_some_and(|role| role.get() == r#""assistant""#);
    messages.iter().position(is_assistant).unwrap_or(messages.len())
}

#[derive(Serialize)]
struct TokenMembers<'a> {
    prompt_token_ids: &'a RawValue,
    generation_token_ids: &'a RawValue,
    generation_log_probs: &'a RawValue,
}

impl<'a> TokenMembers<'a> {
    fn of(tokens: &'a ReplyTokens) -> Self {
        Self {
            prompt_token_ids: &tokens.prompt_ids,
            generation_token_ids: &tokens.completion_ids,
            generation_log_probs: &tokens.logprobs,
        }
    }
}

#[derive(Serialize)]
struct MessageItem<'a> {
    r#type: &'static str,
    id: String,
    role: &'static str,
    status: &'static str,
    content: [TextPart<'a>; 1],
    #[serde(flatten)]
    tokens: Option<TokenMembers<'a>>,
}

#[derive(Serialize)]
struct TextPart<'a> {
    r#type: &'static str,
    text: &'a str,
    annotations: [(); 0],
}

#[derive(Serialize)]
struct CallItem<'a> {
    r#type: &'static str,
    id: String,
    call_id: &'a str,
    name: &'a str,
    arguments: &'a str,
    status: &'static str,
    #[serde(flatten)]
    tokens: Option<TokenMembers<'a>>,
}

#[derive(Serialize)]
struct CallOutputItem<'a> {
    r#type: &'static str,
    call_id: &'a str,
    output: &'a str,
}

/// A message of the user that the workflow added between turns.
#[derive(Serialize)]
struct InputItem<'a> {
    r#type: &'static str,
    role: &'a str,
    content: &'a str,
}

impl Serialize for Output<'_> {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut items = to.serialize_seq(None)?;
        for (at, text) in self.messages.iter().enumerate().skip(self.from) {
            let role = field(text, "role").and_then(text_of).unwrap_or_default();
            let content = field(text, "content").map_or("\"\"", RawValue::get);
            let content = content_text(content);
            match &*role {
                "assistant" => {
                    let tokens = self.tokens.iter().find(|tokens| tokens.message == at);
                    let calls = calls_of(text);
                    if !content.is_empty() || calls.is_empty() {
                        items.serialize_element(&MessageItem {
                            r#type: "message",
                            id: format!("msg_{at}"),
                            role: "assistant",
                            status: "completed",
                            content: [TextPart { r#type: "output_text", text: &content, annotations: [] }],
                            tokens: tokens.filter(|_| calls.is_empty()).map(TokenMembers::of),
                        })?;
                    }
                    for (place, (id, name, arguments)) in calls.iter().enumerate() {
                        // The last item of a model call has the tokens of the call.
                        let is_last = place + 1 == calls.len();
                        items.serialize_element(&CallItem {
                            r#type: "function_call",
                            id: format!("fc_{at}_{place}"),
                            call_id: id,
                            name,
                            arguments,
                            status: "completed",
                            tokens: tokens.filter(|_| is_last).map(TokenMembers::of),
                        })?;
                    }
                }
                "tool" => {
                    let id = field(text, "tool_call_id").and_then(text_of).unwrap_or_default();
                    items.serialize_element(&CallOutputItem {
                        r#type: "function_call_output",
                        call_id: &id,
                        output: &content,
                    })?;
                }
                role => items.serialize_element(&InputItem { r#type: "message", role, content: &content })?,
            }
        }
        items.end()
    }
}

/// Returns the tool calls of a message: id, name, arguments.
fn calls_of(message: &str) -> Vec<(String, String, String)> {
    let mut calls = Vec::new();
    let list = field(message, "tool_calls").map_or("[]", RawValue::get);
    let _ = stream::each(list, |call: WireCall<'_>| {
        let arguments = call.arguments().and_then(text_of).unwrap_or_else(|| "{}".to_owned());
        let id = call.id(calls.len()).into_owned();
        calls.push((id, call.name().unwrap_or_default().to_owned(), arguments));
        Ok::<(), ()>(())
    });
    calls
}

impl Output<'_> {
    /// Returns whether the tokens of some of the assistant's messages are unknown.
    pub(super) fn lacks_tokens(&self) -> bool {
        let is_assistant =
            |text: &str| field(text, "role").is_some_and(|role| role.get() == r#""assistant""#);
        let has_tokens = |at: usize| self.tokens.iter().any(|tokens| tokens.message == at);
        let messages = self.messages.iter().enumerate().skip(self.from);
        messages.filter(|(_, text)| is_assistant(text)).any(|(at, _)| !has_tokens(at))
    }
}

/// A response object.
pub(super) struct ResponseObject<'a> {
    pub id: &'a str,
    pub created_at: u64,
    pub model: &'a str,
    pub params: &'a str,
    pub output: Output<'a>,
    pub input_tokens: u64,
    pub output_tokens: u64,
}

impl Serialize for ResponseObject<'_> {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut response = to.serialize_map(None)?;
        response.serialize_entry("id", &format!("resp_{}", self.id))?;
        response.serialize_entry("created_at", &self.created_at)?;
        response.serialize_entry("model", self.model)?;
        response.serialize_entry("object", "response")?;
        response.serialize_entry("status", "completed")?;
        response.serialize_entry("output", &self.output)?;
        response.serialize_entry("parallel_tool_calls", &true)?;
        match field(self.params, "tool_choice") {
            Some(choice) => response.serialize_entry("tool_choice", choice)?,
            None => response.serialize_entry("tool_choice", "auto")?,
        }
        match field(self.params, "tools") {
            Some(tools) => response.serialize_entry("tools", tools)?,
            None => response.serialize_entry("tools", &[(); 0])?,
        }
        response.serialize_entry(
            "usage",
            &serde_json::json!({
                "input_tokens": self.input_tokens,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": self.output_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": self.input_tokens + self.output_tokens,
            }),
        )?;
        response.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_becomes_chat_messages() {
        fn check(params: &str, expected: &[&str]) {
            let prompt = prompt(params).unwrap();
            let parsed = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
            let prompt: Vec<_> = prompt.iter().map(parsed).collect();
            let expected: Vec<_> = expected.iter().map(|text| parsed(text)).collect();
            assert_eq!(prompt, expected, "{params}");
        }
        let user = r#"{"role":"user","content":"x"}"#;
        check(r#"{"input":"x"}"#, &[user]);
        check(r#"{"input":"x","instructions":"s"}"#, &[r#"{"role":"system","content":"s"}"#, user]);
        check(
            r#"{"input":[{"role":"developer","content":"d"},{"type":"message","role":"user","content":[{"type":"input_text","text":"x"}],"phase":null}]}"#,
            &[r#"{"role":"developer","content":"d"}"#, user],
        );
        check(
            r#"{"input":[{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"7"}]}"#,
            &[
                r#"{"role":"assistant","content":null,"tool_calls":[{"function":{"arguments":"{}","name":"f"},"id":"c","type":"function"}]}"#,
                r#"{"role":"tool","tool_call_id":"c","content":"7"}"#,
            ],
        );
    }

    #[test]
    fn an_invalid_input_is_refused_with_the_reason() {
        fn check(params: &str, expected: &str) {
            let error = prompt(params).unwrap_err();
            assert!(error.contains(expected), "{params}: {error}");
        }
        check("{}", "has no 'input'");
        check(r#"{"input":7}"#, "'input' must be a text or a list of items, not a number");
        check(r#"{"input":[]}"#, "'input' has no message");
        check(
            r#"{"input":[{"role":"user","content":"x"},{"type":"computer_call"}]}"#,
            "'input'[1] has the type",
        );
        check(r#"{"input":[{"content":"x"}]}"#, "'input'[0] has no 'role'");
    }
}
