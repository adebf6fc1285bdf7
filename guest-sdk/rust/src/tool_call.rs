//! Helpers for a loop that runs its tools itself: reading a call, making its result.
//!
//! They work on calls as the model's message has them, and what they make is the same
//! byte for byte wherever it is made, because it is trained on.

use std::fmt;

use serde_json::{Map, Value};

use crate::chat::Pending;
use crate::host_tools::PendingTool;
use crate::message::Message;
use crate::{Error, Result};

/// A tool call, read.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCallInfo {
    /// The id that the result has to carry; `unknown` where the call has none.
    pub id: String,
    /// The function's name, empty where the call has none.
    pub name: String,
    /// Its arguments; none where the call has none.
    pub arguments: Map<String, Value>,
}

/// The arguments of a call are no JSON object. To be told to the model:
/// `create_tool_error_result(&error.id, &error.reason)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolArgumentError {
    /// The call's id; `unknown` where it has none.
    pub id: String,
    /// The function's name, empty where the call has none.
    pub name: String,
    /// What is wrong with the arguments.
    pub reason: String,
}

impl fmt::Display for ToolArgumentError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "tool `{}`: {}", self.name, self.reason)
    }
}

impl std::error::Error for ToolArgumentError {}

/// Reads a call of a message's `tool_calls`.
///
/// # Errors
///
/// If the arguments are there and are no JSON object; an empty text is none.
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

/// Reads arguments: an object as it is, a text as the JSON object that it holds.
///
/// # Errors
///
/// What is wrong, for anything else.
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

/// The message that gives a call's result to the model.
pub fn create_tool_result(call_id: &str, content: impl Into<String>) -> Message {
    Message::tool(call_id, content)
}

/// The message that tells the model what went wrong with a call.
pub fn create_tool_error_result(call_id: &str, error: &str) -> Message {
    create_tool_result(call_id, format!("Error: {error}"))
}

/// A tool's result as the text that the model reads: a text as it is, a number or a truth
/// value in words, anything else as JSON. `3.0` stays `3.0`.
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

/// What making a call came to: a result, or something that is under way.
pub enum ToolWork {
    /// The result's text.
    Done(String),
    /// What waits for the result's text.
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
    /// A host-provided tool's result; a failure is its text, for the model to read.
    fn from(pending: PendingTool) -> Self {
        Self::UnderWay(Box::new(move || Ok(pending.wait().content)))
    }
}

impl From<Pending> for ToolWork {
    /// The text of the model's reply.
    fn from(pending: Pending) -> Self {
        Self::UnderWay(Box::new(move || Ok(pending.wait()?.text().to_owned())))
    }
}

/// Makes all the calls: each is begun before the first is waited for, so that host-provided tools
/// and calls of the model run side by side, and the results come in the order of the
/// calls. Arguments that are no object become an error result; the function is not
/// called for those.
///
/// # Errors
///
/// The first of the function's; the batch has no results then, and what is under way is
/// abandoned. A mistake that the model is to hear of is no error but a text:
/// `Ok(format!("Error: …").into())`.
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

/// A float with the fewest digits that tell it apart, a point or an exponent in it
/// always: the exponent below 1e-4 and from 1e16 on, with a sign and two digits.
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
    fn a_call_is_read_and_what_is_missing_has_a_stand_in() {
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
    fn arguments_that_are_no_object_are_an_error_that_says_why() {
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
    fn results_have_their_fields_in_one_order() {
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
    fn a_result_is_told_as_text() {
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
    fn calls_are_all_begun_before_one_is_waited_for_and_results_keep_their_order() {
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
    fn one_call_that_fails_fails_the_batch() {
        let calls = [call("1", json!({})), call("2", json!({}))];
        let error = execute_tool_calls(&calls, |info| match info.id.as_str() {
            "2" => Err(Error::failed("out of paper")),
            _ => Ok("fine".to_owned().into()),
        })
        .unwrap_err();
        assert_eq!(error.to_string(), "tool `add`: out of paper");
    }
}
