//! Tools: functions that the model may call.
//!
//! A [`Tool`] is a Rust function with a name and a description. The schema of its parameters is derived from
//! the type of its argument. An error of a call is reported to the model and never fails the rollout.
//!
//! Tools that the operator provides are in [`host_tools`](crate::host_tools).

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::message::{Message, ToolCall};
use crate::{Result, settings};

/// Result of a tool call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolResult {
    /// Id of the call.
    pub call_id: String,
    /// Text for the model.
    pub content: String,
    /// Whether the call failed.
    pub is_error: bool,
}

impl ToolResult {
    /// Returns the message with the result.
    pub fn message(&self) -> Message {
        self.clone().into_message()
    }

    /// Returns the message with the result.
    pub fn into_message(self) -> Message {
        Message::tool(self.call_id, self.content)
    }
}

/// Function from the arguments, as the model wrote them, to the text of the result.
type Run = dyn FnMut(&str) -> Result<String, String>;

/// A function that the model may call.
pub struct Tool {
    name: String,
    schema: Value,
    run: Box<Run>,
}

impl Tool {
    /// Creates a tool from a function with one argument: a type whose fields are the tool's parameters, or
    /// `()` for none. Doc comments on the fields become their descriptions.
    ///
    /// The model receives a returned string verbatim and any other value as JSON. It receives errors,
    /// including those of invalid arguments, as `error: …`.
    ///
    /// ```
    /// use rollout_sdk::{Result, Tool};
    ///
    /// #[derive(serde::Deserialize, schemars::JsonSchema)]
    /// struct Sum {
    ///     /// Numbers to add.
    ///     numbers: Vec<f64>,
    /// }
    ///
    /// fn sum(args: Sum) -> Result<f64> {
    ///     Ok(args.numbers.iter().sum())
    /// }
    ///
    /// let sum = Tool::new("sum", "Adds numbers.", sum);
    /// assert_eq!(sum.name(), "sum");
    /// ```
    pub fn new<A, R, F>(name: impl Into<String>, description: &str, mut function: F) -> Self
    where
        A: DeserializeOwned + JsonSchema,
        R: Serialize,
        F: FnMut(A) -> Result<R> + 'static,
    {
        let name = name.into();
        let schema = schema_of::<A>(&name, description);
        let run = move |arguments: &str| {
            let value = function(read_arguments(arguments)?).map_err(|error| error.to_string())?;
            match serde_json::to_value(value) {
                Ok(Value::String(text)) => Ok(text),
                Ok(value) => Ok(value.to_string()),
                Err(error) => Err(format!("the result is not JSON: {error}")),
            }
        };
        Self { name, schema, run: Box::new(run) }
    }

    /// Returns the name by which the model calls the tool.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the tool's schema in the form of OpenAI's function tools.
    pub fn schema(&self) -> &Value {
        &self.schema
    }

    /// Runs the function. The model receives the error.
    pub(crate) fn run(&mut self, arguments: &str) -> Result<String, String> {
        (self.run)(arguments)
    }

    /// Runs the function with the arguments that the model wrote.
    pub fn call(&mut self, call: &ToolCall) -> ToolResult {
        match self.run(&call.arguments) {
            Ok(content) => ToolResult { call_id: call.id.clone(), content, is_error: false },
            Err(error) => failed(call, &error),
        }
    }
}

/// A component whose tools other workflows may call. The operator provides it to them, and neither side needs
/// to know the other. Each call runs in an instance of its own, which has no model, no samples, no access to
/// the calling rollout and no state of earlier calls.
///
/// `C` is the type of the operator's configuration of this component, as for a
/// [`Workflow`](crate::Workflow).
///
/// ```
/// use rollout_sdk::{Result, Tool, ToolPlugin, tool};
///
/// #[derive(serde::Deserialize, schemars::JsonSchema)]
/// struct Text {
///     /// Text to reverse.
///     text: String,
/// }
///
/// fn reverse(args: Text) -> Result<String> {
///     Ok(args.text.chars().rev().collect())
/// }
///
/// struct Texts;
///
/// impl ToolPlugin for Texts {
///     fn tools((): ()) -> Result<Vec<Tool>> {
///         Ok(vec![tool!(reverse, "Reverses a text.")])
///     }
/// }
///
/// rollout_sdk::export!(tool = Texts);
/// ```
pub trait ToolPlugin<C: DeserializeOwned = ()> {
    /// Returns the tools, which must always be the same.
    ///
    /// # Errors
    ///
    /// An error, such as an invalid configuration, prevents the tools from being provided. During a call the
    /// model receives the error.
    fn tools(config: C) -> Result<Vec<Tool>>;
}

impl std::fmt::Debug for Tool {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Tool").field("schema", &self.schema).finish_non_exhaustive()
    }
}

/// Creates a [`Tool`] from a function, under the function's name.
///
/// `tool!(sum, "Adds numbers.")` is `Tool::new("sum", "Adds numbers.", sum)`.
#[macro_export]
macro_rules! tool {
    ($function:ident, $description:expr $(,)?) => {
        $crate::Tool::new(::core::stringify!($function), $description, $function)
    };
}

/// Returns the result of a failed call.
pub(crate) fn failed(call: &ToolCall, error: &str) -> ToolResult {
    ToolResult { call_id: call.id.clone(), content: format!("error: {error}"), is_error: true }
}

fn read_arguments<A: DeserializeOwned>(text: &str) -> Result<A, String> {
    // Models send empty arguments to a function without parameters.
    let text = Some(text).filter(|text| !text.trim().is_empty());
    settings::read("the arguments", text).map_err(|error| error.to_string())
}

/// Returns a tool in the form of OpenAI's function tools, with the parameters of a type.
pub(crate) fn schema_of<A: JsonSchema>(name: &str, description: &str) -> Value {
    json!({
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": parameters_of::<A>(),
        },
    })
}

/// Returns the JSON schema of a type with all references resolved and without keywords that model servers may
/// reject.
fn parameters_of<A: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.meta_schema = None;
        settings.inline_subschemas = true;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<A>();
    schema.remove("title");
    let mut schema = schema.to_value();
    let no_fields = json!({"type": "object", "properties": {}});
    match schema.get("type").and_then(Value::as_str) {
        Some("null") => no_fields,
        Some("object") if schema.get("properties").is_none() => {
            // Some servers reject an object schema without `properties`.
            schema["properties"] = json!({});
            schema
        }
        _ => schema,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[derive(serde::Deserialize, JsonSchema)]
    struct Range {
        /// Left end.
        from: Point,
        /// Right end.
        to: Option<Point>,
    }

    #[derive(serde::Deserialize, JsonSchema)]
    struct Point {
        x: i32,
    }

    #[derive(serde::Deserialize, JsonSchema)]
    struct Nothing {}

    fn width(range: Range) -> Result<i32> {
        let to = range.to.ok_or_else(|| Error::failed("there is no end"))?;
        Ok(to.x - range.from.x)
    }

    fn call(tool: &mut Tool, arguments: &str) -> (String, bool) {
        let result =
            tool.call(&ToolCall { id: "1".into(), name: tool.name().into(), arguments: arguments.into() });
        assert_eq!(result.call_id, "1");
        (result.content, result.is_error)
    }

    #[test]
    fn the_schema_has_the_argument_types_and_no_noise() {
        let tool = tool!(width, "Measures.");

        let schema = tool.schema();

        assert_eq!(schema["type"], "function");
        assert_eq!(schema["function"]["name"], "width");
        assert_eq!(schema["function"]["description"], "Measures.");
        let parameters = &schema["function"]["parameters"];
        assert_eq!(parameters["type"], "object");
        assert_eq!(parameters["required"], json!(["from"]));
        assert_eq!(parameters["properties"]["from"]["description"], "Left end.");
        assert_eq!(parameters["properties"]["from"]["properties"]["x"]["type"], "integer");
        for noise in ["$schema", "$defs", "$ref", "title"] {
            assert!(!parameters.to_string().contains(&format!("\"{noise}\"")), "{noise}");
        }
    }

    #[test]
    fn a_tool_without_parameters_accepts_an_empty_object_and_empty_arguments() {
        let empty = json!({"type": "object", "properties": {}});
        let mut unit = Tool::new("now", "Tells the time.", |(): ()| Ok("noon"));
        let mut fields = Tool::new("now", "Tells the time.", |_: Nothing| Ok("noon"));

        for tool in [&mut unit, &mut fields] {
            assert_eq!(tool.schema()["function"]["parameters"], empty);
            for arguments in ["", "{}", " {} "] {
                assert_eq!(call(tool, arguments), ("noon".to_owned(), false));
            }
        }
    }

    #[test]
    fn strings_are_returned_verbatim_and_other_values_as_json() {
        let mut text = Tool::new("a", "", |(): ()| Ok("a \"b\"".to_owned()));
        let mut list = Tool::new("b", "", |(): ()| Ok(vec![1, 2]));

        assert_eq!(call(&mut text, "{}").0, "a \"b\"");
        assert_eq!(call(&mut list, "{}").0, "[1,2]");
    }

    #[test]
    fn errors_of_a_call_are_reported_to_the_model() {
        let mut tool = tool!(width, "Measures.");
        let mut check = |arguments: &str, expected: &str| {
            let (content, is_error) = call(&mut tool, arguments);
            assert!(is_error);
            assert!(content.starts_with(expected), "{content}");
        };

        check("{", "error: the arguments: not valid JSON: ");
        check("", "error: the arguments: missing field `from`");
        check("[1]", "error: the arguments: not a JSON object");
        check(r#"{"from": {"x": "a"}}"#, "error: the arguments: field `from`: invalid type");
        check(r#"{"from": {"x": 1}}"#, "error: there is no end");
    }

    #[test]
    fn a_tool_can_have_state() {
        let mut calls = 0;
        let mut count = Tool::new("count", "", move |(): ()| {
            calls += 1;
            Ok(calls)
        });

        assert_eq!(call(&mut count, "").0, "1");
        assert_eq!(call(&mut count, "").0, "2");
    }
}
