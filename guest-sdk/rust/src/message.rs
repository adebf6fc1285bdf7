//! Chat messages.
//!
//! A [`Message`] wraps the JSON object of a message with accessors and constructors. It preserves unknown
//! fields, because they belong to the user and to the model's server.
//!
//! This module does not know where messages come from or go to.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Error, OrError, Result};

/// One chat message of OpenAI's chat completions API: a JSON object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Message(Map<String, Value>);

/// A tool call that the model requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// The id that the result must carry.
    pub id: String,
    /// The function's name.
    pub name: String,
    /// Arguments as JSON text. The model wrote it, so it may be invalid JSON.
    pub arguments: String,
}

impl Message {
    /// Creates a message of any role.
    pub fn new(role: impl Into<String>, content: impl Into<Value>) -> Self {
        let mut fields = Map::new();
        fields.insert("role".into(), Value::String(role.into()));
        fields.insert("content".into(), content.into());
        Self(fields)
    }

    /// Creates a system message with instructions for the model.
    pub fn system(text: impl Into<String>) -> Self {
        Self::new("system", text.into())
    }

    /// Creates a user message.
    pub fn user(text: impl Into<String>) -> Self {
        Self::new("user", text.into())
    }

    /// Creates an assistant message.
    pub fn assistant(text: impl Into<String>) -> Self {
        Self::new("assistant", text.into())
    }

    /// Creates the message with the result of the tool call with this id.
    pub fn tool(call_id: impl Into<String>, text: impl Into<String>) -> Self {
        Self::new("tool", text.into()).with("tool_call_id", call_id.into())
    }

    /// Parses a message from JSON text.
    ///
    /// # Errors
    ///
    /// Fails if the text is not one JSON object.
    pub fn from_json(text: &str) -> Result<Self> {
        serde_json::from_str(text).context("the message is not a JSON object")
    }

    /// Returns the message as JSON text.
    pub fn to_json(&self) -> String {
        // A map of JSON values always serializes.
        serde_json::to_string(&self.0).unwrap_or_default()
    }

    /// Returns the message with a field set, replacing an earlier value.
    pub fn with(mut self, field: impl Into<String>, value: impl Into<Value>) -> Self {
        self.set(field, value);
        self
    }

    /// Sets a field, replacing an earlier value.
    pub fn set(&mut self, field: impl Into<String>, value: impl Into<Value>) {
        self.0.insert(field.into(), value.into());
    }

    /// Returns a field's value.
    pub fn get(&self, field: &str) -> Option<&Value> {
        self.0.get(field)
    }

    /// Returns all fields, including unknown ones.
    pub fn fields(&self) -> &Map<String, Value> {
        &self.0
    }

    /// Returns all fields, including unknown ones.
    pub fn into_fields(self) -> Map<String, Value> {
        self.0
    }

    /// Returns the role, such as `system`, `user`, `assistant` or `tool`; empty if it is missing.
    pub fn role(&self) -> &str {
        self.get("role").and_then(Value::as_str).unwrap_or("")
    }

    /// Returns the content, or its text parts joined by line breaks. Returns an empty text if the message has
    /// none, such as a message that only calls tools.
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

    /// Returns the tool calls as the model wrote them, for
    /// [`get_tool_call_info`](crate::get_tool_call_info) and
    /// [`execute_tool_calls`](crate::execute_tool_calls).
    pub fn raw_tool_calls(&self) -> &[Value] {
        self.get("tool_calls").and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    /// Returns the tool calls of the message, in order. Skips a call without a function name; a missing id
    /// and missing arguments become empty texts.
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

/// Returns the text of the model's last message, or `None` if it wrote no message or no text in it.
pub fn last_assistant_text(messages: &[Message]) -> Option<String> {
    let last = messages.iter().rfind(|message| message.role() == "assistant")?;
    Some(last.text()).filter(|text| !text.is_empty())
}

/// Parses messages from the host. A malformed one is an error of the caller.
pub(crate) fn parse_messages(what: &str, texts: &[String]) -> Result<Vec<Message>> {
    let parse = |(place, text): (usize, &String)| {
        Message::from_json(text).or_invalid(format_args!("{what} message {place}"))
    };
    texts.iter().enumerate().map(parse).collect()
}

/// Encodes messages for the host.
pub(crate) fn to_json(messages: &[Message]) -> Vec<String> {
    messages.iter().map(Message::to_json).collect()
}

fn read_tool_call(call: &Value) -> Option<ToolCall> {
    let function = call.get("function")?;
    let text = |value: Option<&Value>| match value {
        Some(Value::String(text)) => text.clone(),
        None | Some(Value::Null) => String::new(),
        // Some servers send the arguments as an object.
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
    fn unknown_fields_and_their_order_are_preserved() {
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
    fn a_prompt_message_that_is_not_an_object_is_reported_with_its_index() {
        let texts = ["{}".to_owned(), "[]".to_owned()];

        let error = parse_messages("prompt", &texts).unwrap_err();

        assert_eq!(error.kind(), crate::ErrorKind::Invalid);
        assert!(error.to_string().starts_with("prompt message 1: "));
    }
}
