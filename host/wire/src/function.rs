//! OpenAI's function tools: the description of a function that a model may call.

#![expect(
    clippy::disallowed_types,
    reason = "a schema of the host's own making, or one that is checked once a tool"
)]

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{kind, object};

/// Maximum length of a name that servers of this protocol accept.
pub const NAME_BYTES_MAX: usize = 64;

/// Maximum size of the description of a function in bytes, including its parameters. Every request to the model
/// contains it.
pub const FUNCTION_BYTES_MAX: usize = 256 << 10;

/// A checked function tool, as JSON text.
#[derive(Clone, Debug, PartialEq)]
pub struct FunctionTool {
    name: String,
    text: Box<str>,
}

impl FunctionTool {
    /// Reads the JSON text of a tool. The error names the invalid part.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > FUNCTION_BYTES_MAX {
            return Err(format!("longer than {FUNCTION_BYTES_MAX} bytes"));
        }
        // The schema check needs a tree. Its size is bounded by the check above, and it is dropped after the check.
        let tool: Map<String, Value> =
            serde_json::from_str(object(text)?.get()).map_err(|error| error.to_string())?;
        if tool.get("type") != Some(&json!("function")) {
            return Err("without 'type': \"function\", so not an OpenAI function tool".to_owned());
        }
        let Some(Value::Object(function)) = tool.get("function") else {
            return Err("without 'function', an object".to_owned());
        };
        let name = check(function)?.to_owned();
        Ok(Self { name, text: Value::Object(tool).to_string().into() })
    }

    /// Creates a tool from the parts of a function. The error names the invalid part.
    pub fn new(name: &str, description: Option<&str>, parameters: Value) -> Result<Self, String> {
        #[derive(Serialize)]
        struct Function<'a> {
            name: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            description: Option<&'a str>,
            parameters: Value,
        }
        let function = Function { name, description, parameters };
        Self::parse(&json!({"type": "function", "function": function}).to_string())
    }

    /// Returns the name that the model calls.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the same tool with a prefix to its name.
    pub fn prefixed(self, prefix: &str) -> Result<Self, String> {
        let name = format!("{prefix}{}", self.name);
        check_name(&name)?;
        let mut tool = Value::from(self);
        tool["function"]["name"] = name.as_str().into();
        Ok(Self { name, text: tool.to_string().into() })
    }

    /// Returns the JSON text.
    pub fn text(&self) -> String {
        self.text.as_ref().to_owned()
    }
}

impl From<FunctionTool> for Value {
    fn from(tool: FunctionTool) -> Self {
        // It was created from an object.
        serde_json::from_str(&tool.text).unwrap_or_default()
    }
}

/// Returns the name of a function, if it is valid.
fn check(function: &Map<String, Value>) -> Result<&str, String> {
    let name = match function.get("name") {
        Some(Value::String(name)) => name,
        Some(other) => return Err(format!("whose 'name' is {}, not a string", kind(&other.to_string()))),
        None => return Err("without a 'name'".to_owned()),
    };
    check_name(name)?;
    match function.get("description") {
        None | Some(Value::String(_)) => {}
        Some(other) => {
            return Err(format!("whose 'description' is {}, not a string", kind(&other.to_string())));
        }
    }
    match function.get("parameters") {
        None => {}
        Some(parameters) => check_parameters(parameters)?,
    }
    Ok(name)
}

fn check_name(name: &str) -> Result<(), String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(is_part) {
        let name: String = name.chars().take(NAME_BYTES_MAX).collect();
        return Err(format!(
            "named '{}', which is not 1 to {NAME_BYTES_MAX} letters, digits, '_' and '-'",
            name.escape_debug()
        ));
    }
    Ok(())
}

fn check_parameters(parameters: &Value) -> Result<(), String> {
    let Value::Object(schema) = parameters else {
        return Err(format!("whose 'parameters' is {}, not a JSON Schema", kind(&parameters.to_string())));
    };
    if schema.get("type") != Some(&json!("object")) {
        return Err("whose 'parameters' is not a JSON Schema of 'type': \"object\"".to_owned());
    }
    // A schema of any draft is read as the newest: the parts that a model's server uses are the same in all drafts, and
    // an unknown draft is no reason to fail.
    jsonschema::draft202012::meta::validate(parameters).map_err(|error| {
        format!("whose 'parameters' is not a JSON Schema: {error} (at '{}')", error.instance_path())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_function_tool_is_reported_with_the_reason() {
        fn check(text: &str, expected: &str) {
            let got = FunctionTool::parse(text).map_or_else(|what| what, |tool| tool.name().to_owned());
            assert!(got.contains(expected), "{got}");
        }
        let with = |function: &str| format!(r#"{{"type":"function","function":{function}}}"#);
        check(&with(r#"{"name":"a_b-1"}"#), "a_b-1");
        check(&with(r#"{"name":"f","parameters":{"type":"object","properties":{}}}"#), "f");
        check("[1]", "not a JSON object but an array");
        check(r#"{"name":"f","parameters":{}}"#, "without 'type'");
        check(r#"{"type":"function"}"#, "without 'function'");
        check(&with("{}"), "without a 'name'");
        check(&with(r#"{"name":3}"#), "whose 'name' is a number");
        check(&with(r#"{"name":"a.b"}"#), "named 'a.b', which is not 1 to 64 letters");
        check(&with(r#"{"name":""}"#), "named ''");
        check(&with(r#"{"name":"f","description":1}"#), "whose 'description' is a number");
        check(&with(r#"{"name":"f","parameters":[]}"#), "whose 'parameters' is an array");
        check(&with(r#"{"name":"f","parameters":{"type":"string"}}"#), "of 'type': \"object\"");
        check(
            &with(r#"{"name":"f","parameters":{"type":"object","properties":{"x":{"type":"strin"}}}}"#),
            "not a JSON Schema: ",
        );
    }

    #[test]
    fn a_prefix_is_part_of_the_name() {
        let tool = FunctionTool::new("f", Some("does it"), json!({"type": "object"})).unwrap();
        let text = tool.clone().prefixed("my_").unwrap().text();
        assert_eq!(
            text,
            r#"{"type":"function","function":{"name":"my_f","description":"does it","parameters":{"type":"object"}}}"#
        );
        assert!(tool.prefixed(&"x".repeat(64)).is_err());
    }
}
