//! Helpers for loops that run their tools themselves: parsing of calls and creation of results.
//!
//! The functions take calls as they are in the model's message. Their results are training data, so every SDK creates
//! them with the same bytes.

use std::fmt;

use serde_json::{Map, Value};

use crate::chat::Pending;
use crate::host_tools::PendingTool;
use crate::message::Message;
use crate::{Error, Result};

/// A parsed tool call.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCallInfo {
    /// The id that the result must carry; `unknown` if the call has none.
    pub id: String,
    /// The function's name, empty if the call has none.
    pub name: String,
    /// The arguments, empty if the call has none.
    pub arguments: Map<String, Value>,
}

/// Error of a call whose arguments are not a JSON object. Report it to the model with
/// `create_tool_error_result(&error.id, &error.reason)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolArgumentError {
    /// The call's id; `unknown` if it has none.
    pub id: String,
    /// The function's name, empty if the call has none.
    pub name: String,
    /// Mistake in the arguments.
    pub reason: String,
}

impl fmt::Display for ToolArgumentError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "tool `{}`: {}", self.name, self.reason)
    }
}

impl std::error::Error for ToolArgumentError {}

/// Parses a call of a message's `tool_calls`.
///
/// # Errors
///
/// Fails if the arguments are neither missing, nor empty, nor a JSON object.
pub fn get_tool_call_info(call: &Value) -> Result<ToolCallInfo, ToolArgumentError> {
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(ToOwned::to_owned);
    let function = &call["function"];
    let id = text(&call["id"]).unwrap_or_else(|| "unknown".to_owned());
    let name = text(&function["name"]).unwrap_or_default();
    let arguments = match function.get("arguments") {
        None => Ok(Map::new()),
        Some(arguments) => parse_tool_arguments(arguments),
    };
    match arguments {
        Ok(arguments) => Ok(ToolCallInfo { id, name, arguments }),
        Err(reason) => Err(ToolArgumentError { id, name, reason }),
    }
}

/// Parses arguments, which are an object or the JSON text of one.
///
/// # Errors
///
/// Returns the mistake in any other value.
pub fn parse_tool_arguments(arguments: &Value) -> Result<Map<String, Value>, String> {
    let object = |value: Value| match value {
        Value::Object(fields) => Ok(fields),
        other => Err(format!("the arguments have to be a JSON object, not {}", kind(&other))),
    };
    match arguments {
        Value::String(text) => match serde_json::from_str(text) {
            Ok(value) => object(value),
            Err(error) => Err(format!("the arguments are not valid JSON: {error}")),
        },
        other => object(other.clone()),
    }
}

/// Creates the message that reports a call's result to the model.
pub fn create_tool_result(call_id: &str, content: impl Into<String>) -> Message {
    Message::tool(call_id, content)
}

/// Creates the message that reports a call's error to the model.
pub fn create_tool_error_result(call_id: &str, error: &str) -> Message {
    create_tool_result(call_id, format!("Error: {error}"))
}

/// Formats a tool's result as text for the model: a string verbatim, anything else as JSON. `3.0` stays `3.0`.
pub fn serialize_tool_result(result: impl Into<Value>) -> String {
    match result.into() {
        Value::String(text) => text,
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(float) => float_text(float),
            None => number.to_string(),
        },
        other => other.to_string(),
    }
}

/// State of a call: finished or in progress.
pub enum ToolWork {
    /// Text of the result.
    Done(String),
    /// Function that waits for the text of the result.
    UnderWay(Box<dyn FnOnce() -> Result<String>>),
}

impl fmt::Debug for ToolWork {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done(text) => out.debug_tuple("Done").field(text).finish(),
            Self::UnderWay(_) => out.write_str("UnderWay(…)"),
        }
    }
}

impl From<String> for ToolWork {
    fn from(text: String) -> Self {
        Self::Done(text)
    }
}

impl From<PendingTool> for ToolWork {
    /// Waits for a host-provided tool. The model receives a failure as text.
    fn from(pending: PendingTool) -> Self {
        Self::UnderWay(Box::new(move || Ok(pending.wait().content)))
    }
}

impl From<Pending> for ToolWork {
    /// Waits for a model's reply and uses its text.
    fn from(pending: Pending) -> Self {
        Self::UnderWay(Box::new(move || Ok(pending.wait()?.text().to_owned())))
    }
}

/// Makes all the calls and returns their results in the order of the calls. Every call is started before the
/// first is waited for, so host-provided tools and model calls run concurrently. Arguments that are not an
/// object give an error result without a call of the function.
///
/// # Errors
///
/// Returns the first error of the function. The batch then has no results, and calls in progress are
/// abandoned. To report a mistake to the model, return a text instead: `Ok(format!("Error: …").into())`.
pub fn execute_tool_calls(
    calls: &[Value],
    mut begin: impl FnMut(&ToolCallInfo) -> Result<ToolWork>,
) -> Result<Vec<Message>> {
    let mut begun = Vec::with_capacity(calls.len());
    for call in calls {
        begun.push(match get_tool_call_info(call) {
            Ok(info) => (begin(&info).map_err(|error| in_call(&info.name, error))?, info.id, info.name),
            Err(error) => (ToolWork::Done(format!("Error: {}", error.reason)), error.id, error.name),
        });
    }
    let finish = |(work, id, name): (ToolWork, String, String)| {
        let text = match work {
            ToolWork::Done(text) => text,
            ToolWork::UnderWay(wait) => wait().map_err(|error| in_call(&name, error))?,
        };
        Ok(create_tool_result(&id, text))
    };
    begun.into_iter().map(finish).collect()
}

fn in_call(name: &str, error: Error) -> Error {
    error.context(format_args!("tool `{name}`"))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// Formats a float with the fewest digits that identify it, always with a point or an exponent. The exponent
/// is used below 1e-4 and from 1e16 on, with a sign and two digits.
fn float_text(float: f64) -> String {
    let magnitude = float.abs();
    if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        let text = format!("{float:e}");
        let Some((digits, exponent)) = text.split_once('e') else { return text };
        let (sign, exponent) = match exponent.strip_prefix('-') {
            Some(exponent) => ('-', exponent),
            None => ('+', exponent),
        };
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    format!("{float:?}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn call(id: &str, arguments: Value) -> Value {
        json!({"id": id, "type": "function", "function": {"name": "add", "arguments": arguments}})
    }

    #[test]
    fn missing_parts_of_a_call_have_placeholders() {
        let check = |call: Value, id: &str, name: &str, arguments: Value| {
            let info = get_tool_call_info(&call).unwrap();
            let read = (info.id.as_str(), info.name.as_str(), Value::Object(info.arguments));
            assert_eq!(read, (id, name, arguments), "{call}");
        };
        check(call("1", json!("{\"a\": 1}")), "1", "add", json!({"a": 1}));
        check(call("1", json!({"a": 1})), "1", "add", json!({"a": 1}));
        check(json!({"function": {}}), "unknown", "", json!({}));
        check(json!({"id": "", "function": {"name": null}}), "unknown", "", json!({}));
        check(json!({}), "unknown", "", json!({}));
    }

    #[test]
    fn arguments_that_are_not_an_object_are_an_error_with_the_reason() {
        let check = |arguments: Value, expected: &str| {
            let error = get_tool_call_info(&call("7", arguments)).unwrap_err();
            assert_eq!((&*error.id, &*error.name), ("7", "add"));
            assert!(error.reason.starts_with(expected), "{}", error.reason);
        };
        check(json!(""), "the arguments are not valid JSON: ");
        check(json!("{"), "the arguments are not valid JSON: ");
        check(json!("[1]"), "the arguments have to be a JSON object, not an array");
        check(json!("null"), "the arguments have to be a JSON object, not null");
        check(json!(null), "the arguments have to be a JSON object, not null");
        check(json!(3), "the arguments have to be a JSON object, not a number");
    }

    #[test]
    fn fields_of_results_have_a_fixed_order() {
        assert_eq!(
            create_tool_result("1", "5").to_json(),
            r#"{"role":"tool","content":"5","tool_call_id":"1"}"#
        );
        assert_eq!(
            create_tool_error_result("1", "no").to_json(),
            r#"{"role":"tool","content":"Error: no","tool_call_id":"1"}"#
        );
    }

    #[test]
    fn results_are_formatted_as_text() {
        let check = |result: Value, expected: &str| assert_eq!(serialize_tool_result(result), expected);
        check(json!(true), "true");
        check(json!(false), "false");
        check(json!(3), "3");
        check(json!(-7), "-7");
        check(json!(3.0), "3.0");
        check(json!(0.1), "0.1");
        check(json!(-0.0), "-0.0");
        check(json!(1e15), "1000000000000000.0");
        check(json!(1e16), "1e+16");
        check(json!(1.5e300), "1.5e+300");
        check(json!(0.0001), "0.0001");
        check(json!(0.00001), "1e-05");
        check(json!("as \"it\" is"), "as \"it\" is");
        check(json!(null), "null");
        check(json!({"b": [1, "x"], "a": null}), r#"{"b":[1,"x"],"a":null}"#);
    }

    #[test]
    fn all_calls_start_before_one_is_waited_for_and_results_keep_their_order() {
        use std::cell::RefCell;
        use std::rc::Rc;
        let order = Rc::new(RefCell::new(Vec::new()));
        let calls = [call("1", json!({"slow": true})), call("2", json!("{")), call("3", json!({}))];

        let results = execute_tool_calls(&calls, |info| {
            order.borrow_mut().push(format!("begin {}", info.id));
            if !info.arguments.contains_key("slow") {
                return Ok("at once".to_owned().into());
            }
            let (order, id) = (Rc::clone(&order), info.id.clone());
            Ok(ToolWork::UnderWay(Box::new(move || {
                order.borrow_mut().push(format!("wait {id}"));
                Ok("later".to_owned())
            })))
        })
        .unwrap();

        assert_eq!(*order.borrow(), ["begin 1", "begin 3", "wait 1"]);
        let read: Vec<(&Value, String)> =
            results.iter().map(|result| (&result.fields()["tool_call_id"], result.text())).collect();
        assert_eq!(read[0], (&json!("1"), "later".to_owned()));
        assert!(read[1].1.starts_with("Error: the arguments are not valid JSON"), "{read:?}");
        assert_eq!(read[2], (&json!("3"), "at once".to_owned()));
    }

    #[test]
    fn one_failed_call_fails_the_batch() {
        let calls = [call("1", json!({})), call("2", json!({}))];
        let error = execute_tool_calls(&calls, |info| match info.id.as_str() {
            "2" => Err(Error::failed("out of paper")),
            _ => Ok("fine".to_owned().into()),
        })
        .unwrap_err();
        assert_eq!(error.to_string(), "tool `add`: out of paper");
    }
}
