//! Tools as callers of this generation are told of them: through a schema that knows a
//! few fields and drops the others, with null for what is not said.

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// A tool on the wire.
#[derive(Debug, Serialize)]
pub(super) struct WireTool {
    r#type: String,
    function: Function,
}

#[derive(Debug, Serialize)]
struct Function {
    name: String,
    description: String,
    parameters: Parameters,
    strict: bool,
}

#[derive(Debug, Serialize)]
struct Parameters {
    r#type: String,
    #[serde(serialize_with = "in_order")]
    properties: Vec<(String, Property)>,
    required: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Property {
    r#type: String,
    description: Option<String>,
    r#enum: Option<Vec<String>>,
}

fn in_order<S: serde::Serializer>(
    properties: &[(String, Property)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(properties.iter().map(|(name, property)| (name, property)))
}

/// The tools as they are told, or what of them cannot be.
pub(super) fn typed(tools: &[Box<RawValue>]) -> Result<Vec<WireTool>, String> {
    let read = |(at, tool): (usize, &Box<RawValue>)| {
        let tool = serde_json::from_str(tool.get()).unwrap_or_default();
        wire_tool(&tool).map_err(|what| {
            format!("generation A cannot carry the tool {}: {what}", name_for_message(at, &tool))
        })
    };
    tools.iter().enumerate().map(read).collect()
}

fn name_for_message(at: usize, tool: &Value) -> String {
    match tool["function"]["name"].as_str() {
        Some(name) => format!("'{}'", name.chars().take(64).collect::<String>()),
        None => format!("at place {at}"),
    }
}

fn wire_tool(tool: &Value) -> Result<WireTool, String> {
    let kind = text(tool, "type")?;
    let function =
        tool.get("function").and_then(Value::as_object).ok_or("'function' is missing or no object")?;
    let function = Value::Object(function.clone());
    let parameters = match function.get("parameters") {
        None => Parameters { r#type: "object".to_owned(), properties: Vec::new(), required: Vec::new() },
        Some(parameters) => wire_parameters(parameters)?,
    };
    let strict = match function.get("strict") {
        None => false,
        Some(Value::Bool(strict)) => *strict,
        Some(_) => return Err("'function.strict' is no truth value".to_owned()),
    };
    let name = text(&function, "name").map_err(|what| format!("function: {what}"))?;
    let description = text(&function, "description").map_err(|what| format!("function: {what}"))?;
    Ok(WireTool { r#type: kind, function: Function { name, description, parameters, strict } })
}

fn wire_parameters(parameters: &Value) -> Result<Parameters, String> {
    let kind = text(parameters, "type").map_err(|what| format!("parameters: {what}"))?;
    let properties = parameters.get("properties").and_then(Value::as_object);
    let properties = properties.ok_or("parameters: 'properties' is missing or no object")?;
    let property = |(name, schema): (&String, &Value)| match wire_property(schema) {
        Ok(property) => Ok((name.clone(), property)),
        Err(what) => Err(format!("parameter '{name}': {what}")),
    };
    let properties = properties.iter().map(property).collect::<Result<_, _>>()?;
    let required = match parameters.get("required") {
        // Schemas made from types leave it out where nothing is required.
        None => Vec::new(),
        Some(names) => texts(names).ok_or("parameters: 'required' is no list of texts")?,
    };
    Ok(Parameters { r#type: kind, properties, required })
}

fn wire_property(schema: &Value) -> Result<Property, String> {
    let fields = schema.as_object().ok_or("it is no object")?;
    let description = match fields.get("description") {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text.clone()),
        Some(_) => return Err("'description' is no text".to_owned()),
    };
    let choices = match fields.get("enum") {
        None | Some(Value::Null) => None,
        Some(choices) => Some(texts(choices).ok_or("'enum' is no list of texts")?),
    };
    Ok(Property { r#type: property_type(fields)?, description, r#enum: choices })
}

/// One word. A type that allows null besides is the other one: the model may leave an
/// optional parameter out.
fn property_type(fields: &Map<String, Value>) -> Result<String, String> {
    match fields.get("type") {
        Some(Value::String(word)) => Ok(word.clone()),
        Some(Value::Array(words)) => {
            let mut words = words.iter().filter_map(Value::as_str).filter(|word| *word != "null");
            match (words.next(), words.next()) {
                (Some(only), None) => Ok(only.to_owned()),
                _ => Err("'type' is a list; this generation takes one type".to_owned()),
            }
        }
        _ => Err("'type' is missing or no text".to_owned()),
    }
}

fn text(value: &Value, name: &str) -> Result<String, String> {
    match value.get(name) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(_) => Err(format!("'{name}' is no text")),
        None => Err(format!("'{name}' is missing")),
    }
}

fn texts(value: &Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(|item| item.as_str().map(ToOwned::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use serde_json::value::to_raw_value;

    fn told(tool: &Value) -> Result<Value, String> {
        typed(&[to_raw_value(tool).unwrap()]).map(|tools| serde_json::to_value(&tools[0]).unwrap())
    }

    #[test]
    fn a_tool_is_told_with_the_fields_that_are_known_and_null_for_what_is_not_said() {
        let tool = json!({"type": "function", "extra": 1, "function": {
            "name": "search", "description": "Looks.", "parameters": {
                "type": "object", "additionalProperties": false, "required": ["query"],
                "properties": {
                    "query": {"type": "string", "description": "What.", "minLength": 1, "default": "x"},
                    "kinds": {"type": "array", "items": {"type": "string"}},
                    "order": {"type": ["string", "null"], "enum": ["up", "down"]},
                },
            },
        }});
        let expected = json!({"type": "function", "function": {
            "name": "search", "description": "Looks.", "parameters": {
                "type": "object", "required": ["query"],
                "properties": {
                    "query": {"type": "string", "description": "What.", "enum": null},
                    "kinds": {"type": "array", "description": null, "enum": null},
                    "order": {"type": "string", "description": null, "enum": ["up", "down"]},
                },
            },
            "strict": false,
        }});
        assert_eq!(told(&tool).unwrap(), expected);
    }

    #[test]
    fn a_tool_without_parameters_takes_none() {
        let tool =
            json!({"type": "function", "function": {"name": "now", "description": "", "strict": true}});
        let told = told(&tool).unwrap();
        assert_eq!(
            told["function"]["parameters"],
            json!({"type": "object", "properties": {}, "required": []})
        );
        assert_eq!(told["function"]["strict"], true);
    }

    #[test]
    fn a_tool_that_cannot_be_told_is_named_with_what_is_wrong() {
        let check = |function: Value, expected: &str| {
            let error = told(&json!({"type": "function", "function": function})).unwrap_err();
            assert_eq!(error, format!("generation A cannot carry the tool {expected}"));
        };
        check(json!({"description": ""}), "at place 0: function: 'name' is missing");
        check(json!({"name": "f"}), "'f': function: 'description' is missing");
        let with = |parameters: Value| json!({"name": "f", "description": "", "parameters": parameters});
        check(with(json!({})), "'f': parameters: 'type' is missing");
        check(with(json!({"type": "object"})), "'f': parameters: 'properties' is missing or no object");
        let property = |schema: Value| with(json!({"type": "object", "properties": {"p": schema}}));
        check(property(json!({})), "'f': parameter 'p': 'type' is missing or no text");
        check(
            property(json!({"type": "integer", "enum": [1]})),
            "'f': parameter 'p': 'enum' is no list of texts",
        );
        check(
            property(json!({"type": ["string", "integer"]})),
            "'f': parameter 'p': 'type' is a list; this generation takes one type",
        );
    }
}
