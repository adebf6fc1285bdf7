//! The fields of a chat completion request that the mock reads.
//!
//! Messages and schemas stay raw JSON until their text is needed: in a long conversation only the last few
//! messages matter.
//!
//! This module knows no reply.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// Names of properties that take an expression, whatever the tool's name.
const EXPRESSION_NAMES: [&str; 6] =
    ["expression", "expr", "formula", "equation", "calculation", "arithmetic"];
/// Names of properties that may take an expression if no tool has a better one.
const INPUT_NAMES: [&str; 4] = ["input", "query", "text", "problem"];
/// Words in a tool's name or description that mark its only string as an expression.
const TOOL_WORDS: [&str; 3] = ["calc", "arith", "eval"];

/// Reason why a request cannot be answered. The client must change the request.
#[derive(Debug, thiserror::Error)]
pub(super) enum BadRequest {
    #[error("the body is not a chat completion request: {0}")]
    Json(#[from] serde_json::Error),
    #[error("you must provide at least one message")]
    NoMessages,
    #[error("the mock returns one choice, not {0}")]
    Choices(u64),
}

impl BadRequest {
    /// Returns the field at fault, if a single field is.
    pub(super) fn param(&self) -> Option<&'static str> {
        match self {
            Self::Json(_) => None,
            Self::NoMessages => Some("messages"),
            Self::Choices(_) => Some("n"),
        }
    }

    pub(super) fn code(&self) -> &'static str {
        match self {
            Self::Json(_) => "invalid_json",
            Self::NoMessages => "missing_required_parameter",
            Self::Choices(_) => "unsupported_value",
        }
    }
}

/// A chat completion request.
#[derive(Debug, Deserialize)]
pub(super) struct ChatRequest<'a> {
    #[serde(borrow)]
    messages: Option<Vec<Message<'a>>>,
    #[serde(borrow)]
    tools: Option<Vec<Tool<'a>>>,
    #[serde(borrow)]
    tool_choice: Option<&'a RawValue>,
    #[serde(borrow)]
    response_format: Option<&'a RawValue>,
    n: Option<u64>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    logprobs: Option<bool>,
    return_token_ids: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct Message<'a> {
    role: String,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_calls: Option<&'a RawValue>,
}

#[derive(Debug, Deserialize)]
struct Tool<'a> {
    #[serde(borrow)]
    function: Option<Function<'a>>,
}

#[derive(Debug, Deserialize)]
struct Function<'a> {
    name: String,
    description: Option<String>,
    #[serde(borrow)]
    parameters: Option<&'a RawValue>,
}

#[derive(Debug, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

/// A tool that evaluates expressions.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Calculator {
    pub(super) name: String,
    /// The property that takes the expression.
    pub(super) property: String,
    /// Placeholder values for the other required properties.
    pub(super) placeholders: Map<String, Value>,
}

impl<'a> ChatRequest<'a> {
    pub(super) fn parse(body: &'a [u8]) -> Result<Self, BadRequest> {
        let request: Self = serde_json::from_slice(body)?;
        if request.messages().is_empty() {
            return Err(BadRequest::NoMessages);
        }
        match request.n {
            None | Some(1) => Ok(request),
            Some(choices) => Err(BadRequest::Choices(choices)),
        }
    }

    pub(super) fn streams(&self) -> bool {
        self.stream == Some(true)
    }

    pub(super) fn wants_usage_chunk(&self) -> bool {
        self.stream_options.as_ref().is_some_and(|options| options.include_usage == Some(true))
    }

    pub(super) fn wants_logprobs(&self) -> bool {
        self.logprobs == Some(true)
    }

    pub(super) fn wants_token_ids(&self) -> bool {
        self.return_token_ids == Some(true)
    }

    /// Returns the required format of the reply.
    pub(super) fn response_format(&self) -> Option<&'a RawValue> {
        self.response_format
    }

    pub(super) fn message_count(&self) -> usize {
        self.messages().len()
    }

    /// Returns whether the request offers any tool.
    pub(super) fn has_tools(&self) -> bool {
        self.tools.as_ref().is_some_and(|tools| !tools.is_empty()) && !self.forbids_tools()
    }

    /// Returns the text of the last user message, or an empty text.
    pub(super) fn last_user_text(&self) -> String {
        self.last_user().map(|at| text_of(self.messages()[at].content)).unwrap_or_default()
    }

    /// Returns the last tool result after the last user message.
    pub(super) fn tool_result(&self) -> Option<String> {
        let after = self.last_user().map_or(0, |at| at + 1);
        let result = self.messages()[after..].iter().rfind(|message| message.role == "tool")?;
        Some(text_of(result.content))
    }

    /// Returns the offered tool that most likely evaluates expressions.
    pub(super) fn calculator(&self) -> Option<Calculator> {
        if self.forbids_tools() {
            return None;
        }
        let wanted = self.named_tool();
        self.tools
            .iter()
            .flatten()
            .filter_map(|tool| tool.function.as_ref())
            .filter(|function| wanted.as_ref().is_none_or(|name| *name == function.name))
            .filter_map(read_tool)
            // `min_by_key` returns the first of equal tools.
            .min_by_key(|(rank, _)| *rank)
            .map(|(_, calculator)| calculator)
    }

    /// Returns the JSON texts of all contents and tool calls, which make up the prompt's length.
    pub(super) fn prompt_texts(&self) -> impl Iterator<Item = &'a str> {
        self.messages()
            .iter()
            .flat_map(|message| [message.content, message.tool_calls])
            .flatten()
            .map(RawValue::get)
    }

    fn messages(&self) -> &[Message<'a>] {
        self.messages.as_deref().unwrap_or_default()
    }

    fn last_user(&self) -> Option<usize> {
        self.messages().iter().rposition(|message| message.role == "user")
    }

    fn forbids_tools(&self) -> bool {
        self.tool_choice.is_some_and(|choice| choice.get() == r#""none""#)
    }

    /// Returns the tool that `tool_choice` names, if it names one.
    fn named_tool(&self) -> Option<String> {
        let choice: Value = serde_json::from_str(self.tool_choice?.get()).ok()?;
        Some(choice.pointer("/function/name")?.as_str()?.to_owned())
    }
}

/// Extracts the text from a content, which is a string or a list of parts.
fn text_of(content: Option<&RawValue>) -> String {
    let content = content.map(|content| serde_json::from_str(content.get()));
    match content {
        Some(Ok(Value::String(text))) => text,
        Some(Ok(Value::Array(parts))) => {
            parts.iter().filter_map(|part| part.get("text")?.as_str()).collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}

/// Returns how likely a tool evaluates expressions (0 is best) and how to call it.
fn read_tool(function: &Function<'_>) -> Option<(u8, Calculator)> {
    let parameters: Value = serde_json::from_str(function.parameters?.get()).ok()?;
    let properties = parameters.get("properties")?.as_object()?;
    let strings: Vec<&String> =
        properties.iter().filter(|(_, schema)| has_type(schema, "string")).map(|(name, _)| name).collect();
    let called =
        |names: &[&str]| strings.iter().find(|name| names.contains(&name.to_lowercase().as_str())).copied();
    let only = || match strings.as_slice() {
        [only] if sounds_like_arithmetic(function) => Some(*only),
        _ => None,
    };
    let (rank, property) = called(&EXPRESSION_NAMES)
        .map(|name| (0, name))
        .or_else(|| only().map(|name| (1, name)))
        .or_else(|| called(&INPUT_NAMES).map(|name| (2, name)))?;
    let calculator = Calculator {
        name: function.name.clone(),
        property: property.clone(),
        placeholders: required_except(property, &parameters, properties),
    };
    Some((rank, calculator))
}

fn sounds_like_arithmetic(function: &Function<'_>) -> bool {
    let description = function.description.as_deref().unwrap_or_default();
    let words = format!("{} {description}", function.name).to_lowercase();
    TOOL_WORDS.iter().any(|word| words.contains(word))
}

/// Returns placeholder values for the other required properties. A strict schema requires all of them.
fn required_except(
    property: &str,
    parameters: &Value,
    properties: &Map<String, Value>,
) -> Map<String, Value> {
    parameters
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .filter(|name| *name != property)
        .map(|name| (name.to_owned(), filler(properties.get(name))))
        .collect()
}

/// Returns a value that a property's schema most likely accepts.
fn filler(schema: Option<&Value>) -> Value {
    let Some(schema) = schema else {
        return Value::Null;
    };
    let given =
        schema.get("default").or_else(|| schema.get("const")).or_else(|| schema.pointer("/enum/0")).cloned();
    given.unwrap_or_else(|| match schema {
        _ if has_type(schema, "null") => Value::Null,
        _ if has_type(schema, "integer") || has_type(schema, "number") => {
            schema.get("minimum").cloned().unwrap_or_else(|| Value::from(0))
        }
        _ if has_type(schema, "boolean") => Value::Bool(false),
        _ if has_type(schema, "array") => Value::Array(Vec::new()),
        _ if has_type(schema, "object") => Value::Object(Map::new()),
        _ => Value::String(String::new()),
    })
}

/// Returns whether a schema allows the type, by `type` or in one of its alternatives.
fn has_type(schema: &Value, wanted: &str) -> bool {
    match schema.get("type") {
        Some(Value::String(name)) => name == wanted,
        Some(Value::Array(names)) => names.iter().any(|name| name == wanted),
        _ => ["anyOf", "oneOf"]
            .iter()
            .filter_map(|key| schema.get(key)?.as_array())
            .flatten()
            // Only one level: an alternative within an alternative is not a plain string.
            .any(|schema| schema.get("type").is_some_and(|name| name == wanted)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn calculator(tools: Value, choice: Value) -> Option<Calculator> {
        let body = json!({
            "messages": [{"role": "user", "content": "1 + 1"}],
            "tools": tools,
            "tool_choice": choice,
        });
        let body = body.to_string();
        ChatRequest::parse(body.as_bytes()).expect("a request").calculator()
    }

    fn tool(name: &str, description: &str, properties: Value) -> Value {
        json!({"type": "function", "function": {
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": properties},
        }})
    }

    #[track_caller]
    fn check(tools: Value, expected: Option<(&str, &str)>) {
        let found = calculator(tools.clone(), Value::Null);
        let found = found.as_ref().map(|found| (found.name.as_str(), found.property.as_str()));
        assert_eq!(found, expected, "{tools}");
    }

    #[test]
    fn the_tool_that_most_likely_evaluates_expressions_is_chosen() {
        let string = json!({"type": "string"});
        let number = json!({"type": "number"});
        check(json!([]), None);
        check(
            json!([tool("calculator", "", json!({"expression": string}))]),
            Some(("calculator", "expression")),
        );
        check(
            json!([tool("f", "", json!({"Formula": {"anyOf": [string, {"type": "null"}]}}))]),
            Some(("f", "Formula")),
        );
        check(
            json!([tool("f", "Evaluates arithmetic.", json!({"s": {"type": ["string", "null"]}}))]),
            Some(("f", "s")),
        );
        check(json!([tool("calc", "", json!({"left": string, "right": string}))]), None);
        check(json!([tool("add", "", json!({"a": number, "b": number}))]), None);
        check(json!([tool("weather", "", json!({"city": string}))]), None);
        check(
            json!([tool("search", "", json!({"query": string})), tool("math", "", json!({"expr": string})),]),
            Some(("math", "expr")),
        );
        check(json!([tool("ask", "", json!({"query": string}))]), Some(("ask", "query")));
        check(json!([{"type": "function", "function": {"name": "bare"}}]), None);
        check(json!([{"type": "web_search"}]), None);
    }

    #[test]
    fn a_tool_choice_is_obeyed() {
        let tools = json!([
            tool("one", "", json!({"expression": {"type": "string"}})),
            tool("two", "", json!({"expression": {"type": "string"}})),
        ]);
        let chosen = |choice| calculator(tools.clone(), choice).map(|found| found.name);
        assert_eq!(chosen(json!("auto")).as_deref(), Some("one"));
        assert_eq!(chosen(json!("required")).as_deref(), Some("one"));
        assert_eq!(chosen(json!("none")), None);
        let two = json!({"type": "function", "function": {"name": "two"}});
        assert_eq!(chosen(two).as_deref(), Some("two"));
    }

    #[test]
    fn required_properties_get_values_that_their_schemas_accept() {
        let parameters = json!({
            "required": ["expression", "unit", "digits", "exact", "note", "mode", "list"],
            "properties": {
                "expression": {"type": "string"},
                "unit": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "digits": {"type": "integer", "minimum": 2},
                "exact": {"type": "boolean"},
                "note": {"type": "string"},
                "mode": {"type": "string", "enum": ["plain", "fancy"]},
                "list": {"type": "array"},
                "optional": {"type": "string"},
            },
        });
        let tools = json!([{"function": {"name": "f", "parameters": parameters}}]);
        let found = calculator(tools, Value::Null).expect("a calculator");
        assert_eq!(
            Value::Object(found.placeholders),
            json!({"unit": null, "digits": 2, "exact": false, "note": "", "mode": "plain", "list": []})
        );
    }

    #[test]
    fn the_last_user_message_and_the_tool_result_after_it_are_read() {
        let check = |messages: Value, user: &str, result: Option<&str>| {
            let body = json!({ "messages": messages }).to_string();
            let request = ChatRequest::parse(body.as_bytes()).expect("a request");
            assert_eq!(request.last_user_text(), user, "{messages}");
            assert_eq!(request.tool_result().as_deref(), result, "{messages}");
        };
        let user = json!({"role": "user", "content": "hi"});
        let parts = json!({"role": "user", "content": [
            {"type": "text", "text": "one"}, {"type": "image_url"}, {"type": "text", "text": "two"},
        ]});
        let tool = json!({"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "42"}]});
        let call = json!({"role": "assistant", "tool_calls": []});
        let empty = json!({"role": "user", "content": null});
        check(json!([user]), "hi", None);
        check(json!([user, parts]), "one\ntwo", None);
        check(json!([user, call, tool]), "hi", Some("42"));
        check(json!([user, call, tool, parts]), "one\ntwo", None);
        check(json!([call]), "", None);
        check(json!([tool]), "", Some("42"));
        check(json!([empty]), "", None);
    }

    #[test]
    fn an_unanswerable_request_is_rejected_with_the_field_at_fault() {
        let check = |body: &str, code: &str, param: Option<&str>| {
            let error = ChatRequest::parse(body.as_bytes()).expect_err(body);
            assert_eq!((error.code(), error.param()), (code, param), "{body}");
        };
        check("", "invalid_json", None);
        check("[", "invalid_json", None);
        check(r#"{"messages": 1}"#, "invalid_json", None);
        check("{}", "missing_required_parameter", Some("messages"));
        check(r#"{"messages": []}"#, "missing_required_parameter", Some("messages"));
        check(r#"{"messages": [{"role": "user"}], "n": 2}"#, "unsupported_value", Some("n"));
    }
}
