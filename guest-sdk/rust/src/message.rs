//! Chat messages.
//!
//! A [`Message`] is the JSON object that travels, with readers and constructors. It
//! keeps fields that nobody here has heard of, because they belong to the user and to
//! the model's server.
//!
//! This module does not know where messages come from or go to.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Error, OrError, Result};

/// One chat message in the form of OpenAI's chat completions: a JSON object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Message(Map<String, Value>);

/// A call that the model wants made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// The id that the result has to carry.
    pub id: String,
    /// The function's name.
    pub name: String,
    /// JSON text as the model wrote it, which may not be valid JSON.
    pub arguments: String,
}

impl Message {
    /// A message of any role.
    pub fn new(role: impl Into<String>, content: impl Into<Value>) -> Self {
        let mut fields = Map::new();
        fields.insert("role".into(), Value::String(role.into()));
        fields.insert("content".into(), content.into());
        Self(fields)
    }

    /// Instructions for the model.
    pub fn system(text: impl Into<String>) -> Self {
        Self::new("system", text.into())
    }

    /// What the user says.
    pub fn user(text: impl Into<String>) -> Self {
        Self::new("user", text.into())
    }

    /// What the model says.
    pub fn assistant(text: impl Into<String>) -> Self {
        Self::new("assistant", text.into())
    }

    /// The result of the tool call with this id.
    pub fn tool(call_id: impl Into<String>, text: impl Into<String>) -> Self {
        Self::new("tool", text.into()).with("tool_call_id", call_id.into())
    }

    /// The message that this JSON text holds.
    ///
    /// # Errors
    ///
    /// If the text is not one JSON object.
    pub fn from_json(text: &str) -> Result<Self> {
        serde_json::from_str(text).context("the message is not a JSON object")
    }

    /// The message as JSON text.
    pub fn to_json(&self) -> String {
        // A map of values is JSON, unlike what other types may give to a serializer.
        serde_json::to_string(&self.0).unwrap_or_default()
    }

    /// The same message with a field set, in place of one of that name.
    pub fn with(mut self, field: impl Into<String>, value: impl Into<Value>) -> Self {
        self.set(field, value);
        self
    }

    /// Sets a field, in place of one of that name.
    pub fn set(&mut self, field: impl Into<String>, value: impl Into<Value>) {
        self.0.insert(field.into(), value.into());
    }

    /// A field's value.
    pub fn get(&self, field: &str) -> Option<&Value> {
        self.0.get(field)
    }

    /// All fields, unknown ones included.
    pub fn fields(&self) -> &Map<String, Value> {
        &self.0
    }

    /// All fields, unknown ones included.
    pub fn into_fields(self) -> Map<String, Value> {
        self.0
    }

    /// `system`, `user`, `assistant`, `tool` or another word; empty where it is missing.
    pub fn role(&self) -> &str {
        self.get("role").and_then(Value::as_str).unwrap_or("")
    }

    /// The text: the content, or the text parts of it joined by line breaks. Empty
    /// where the message has none, as in a message that only calls tools.
    pub fn text(&self) -> String {
        match self.get("content") {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Array(parts)) => {
                let texts: Vec<&str> = parts.iter().filter_map(|part| part.get("text")?.as_str()).collect();
                texts.join("\n")
            }
            _ => String::new(),
        }
    }

    /// The tool calls in the message as they were written, for
    /// [`get_tool_call_info`](crate::get_tool_call_info) and
    /// [`execute_tool_calls`](crate::execute_tool_calls).
    pub fn raw_tool_calls(&self) -> &[Value] {
        self.get("tool_calls").and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    /// The tool calls in the message, in order. A call without a function's name is
    /// left out; a missing id or missing arguments are read as empty.
    pub fn tool_calls(&self) -> Vec<ToolCall> {
        let Some(Value::Array(calls)) = self.get("tool_calls") else {
            return Vec::new();
        };
        calls.iter().filter_map(read_tool_call).collect()
    }
}

impl TryFrom<Value> for Message {
    type Error = Error;

    /// Fails if the value is not an object.
    fn try_from(value: Value) -> Result<Self> {
        match value {
            Value::Object(fields) => Ok(Self(fields)),
            _ => Err(Error::failed("a message has to be a JSON object")),
        }
    }
}

/// The text of the last message that the model wrote, or `None` where it wrote none or
/// wrote no text there.
pub fn last_assistant_text(messages: &[Message]) -> Option<String> {
    let last = messages.iter().rfind(|message| message.role() == "assistant")?;
    Some(last.text()).filter(|text| !text.is_empty())
}

/// The messages that came from the host, which is where a wrong one is the caller's.
pub(crate) fn parse_messages(what: &str, texts: &[String]) -> Result<Vec<Message>> {
    let parse = |(place, text): (usize, &String)| {
        Message::from_json(text).or_invalid(format_args!("{what} message {place}"))
    };
    texts.iter().enumerate().map(parse).collect()
}

/// The messages as the host takes them.
pub(crate) fn to_json(messages: &[Message]) -> Vec<String> {
    messages.iter().map(Message::to_json).collect()
}

fn read_tool_call(call: &Value) -> Option<ToolCall> {
    let function = call.get("function")?;
    let text = |value: Option<&Value>| match value {
        Some(Value::String(text)) => text.clone(),
        None | Some(Value::Null) => String::new(),
        // Some servers give the arguments as an object.
        Some(value) => value.to_string(),
    };
    Some(ToolCall {
        id: text(call.get("id")),
        name: function.get("name")?.as_str()?.to_owned(),
        arguments: text(function.get("arguments")),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn message(value: Value) -> Message {
        Message::try_from(value).unwrap()
    }

    #[test]
    fn unknown_fields_and_their_order_are_kept() {
        let text = r#"{"zeta":1,"role":"assistant","content":null,"alpha":{"b":[1.5],"a":2}}"#;

        assert_eq!(Message::from_json(text).unwrap().to_json(), text);
    }

    #[test]
    fn text_is_read_from_a_string_and_from_parts() {
        let check = |content: Value, expected: &str| {
            assert_eq!(Message::new("user", content).text(), expected);
        };

        check(json!("hello"), "hello");
        check(json!(null), "");
        check(
            json!([{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "text", "text": "b"}]),
            "a\nb",
        );
    }

    #[test]
    fn tool_calls_are_read_in_order_and_incomplete_ones_are_tolerated() {
        let calls = message(json!({"role": "assistant", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{\"a\": 1}"}},
            {"id": "2", "function": {"name": "add", "arguments": {"a": 1}}},
            {"id": "3", "function": {"arguments": "{}"}},
            {"function": {"name": "now"}},
        ]}))
        .tool_calls();

        let read: Vec<_> = calls.iter().map(|call| (&*call.id, &*call.name, &*call.arguments)).collect();
        let expected = [("1", "add", "{\"a\": 1}"), ("2", "add", "{\"a\":1}"), ("", "now", "")];
        assert_eq!(read, expected);
    }

    #[test]
    fn the_last_assistant_text_is_the_last_ones_or_none() {
        let history = [
            Message::user("hi"),
            Message::assistant("first"),
            Message::assistant("second"),
            Message::tool("1", "result"),
        ];

        assert_eq!(last_assistant_text(&history).as_deref(), Some("second"));
        assert_eq!(last_assistant_text(&history[..1]), None);
        assert_eq!(last_assistant_text(&[Message::assistant("")]), None);
    }

    #[test]
    fn a_prompt_that_is_no_object_is_called_invalid_with_its_place() {
        let texts = ["{}".to_owned(), "[]".to_owned()];

        let error = parse_messages("prompt", &texts).unwrap_err();

        assert_eq!(error.kind(), crate::ErrorKind::Invalid);
        assert!(error.to_string().starts_with("prompt message 1: "));
    }
}
