//! Tools in the form of this generation: a schema of few fields, in which absent fields are null and all others are left out.

use std::fmt;

use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

/// Maximum size of all tools of an agent in bytes. A caller puts them into each request to its model.
const TOOLS_BYTES_MAX: usize = 4 << 20;

/// Maximum number of parameters of a tool.
const PROPERTIES_MAX: usize = 512;

/// A tool in a response.
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

/// Returns the tools in this generation's form, or the tools that do not fit it.
pub(super) fn typed(tools: &[Box<RawValue>]) -> Result<Vec<WireTool>, String> {
    let bytes: usize = tools.iter().map(|tool| tool.get().len()).sum();
    if bytes > TOOLS_BYTES_MAX {
        return Err(format!(
            "the tools are {bytes} bytes of JSON together, more than the {TOOLS_BYTES_MAX} that are reported to a caller"
        ));
    }
    let read = |(at, tool): (usize, &RawValue)| {
        wire_tool(tool).map_err(|what| {
            format!("generation A cannot carry the tool {}: {what}", name_for_message(at, tool))
        })
    };
    tools.iter().map(AsRef::as_ref).enumerate().map(read).collect()
}

/// A tool of a guest.
#[derive(Deserialize)]
struct AnyTool<'a> {
    #[serde(borrow)]
    r#type: Option<&'a RawValue>,
    #[serde(borrow)]
    function: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct AnyFunction<'a> {
    #[serde(borrow)]
    name: Option<&'a RawValue>,
    #[serde(borrow)]
    description: Option<&'a RawValue>,
    #[serde(borrow)]
    parameters: Option<&'a RawValue>,
    #[serde(borrow)]
    strict: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct AnyParameters<'a> {
    #[serde(borrow)]
    r#type: Option<&'a RawValue>,
    #[serde(borrow)]
    properties: Option<&'a RawValue>,
    #[serde(borrow)]
    required: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct AnyProperty<'a> {
    #[serde(borrow)]
    r#type: Option<&'a RawValue>,
    #[serde(borrow)]
    description: Option<&'a RawValue>,
    #[serde(borrow)]
    r#enum: Option<&'a RawValue>,
}

fn name_for_message(at: usize, tool: &RawValue) -> String {
    let name = |tool: &RawValue| {
        let tool: AnyTool<'_> = serde_json::from_str(tool.get()).ok()?;
        let function: AnyFunction<'_> = serde_json::from_str(tool.function?.get()).ok()?;
        serde_json::from_str::<String>(function.name?.get()).ok()
    };
    match name(tool) {
        Some(name) => format!("'{}'", name.chars().take(64).collect::<String>()),
        None => format!("at index {at}"),
    }
}

fn wire_tool(tool: &RawValue) -> Result<WireTool, String> {
    let AnyTool { r#type, function } = object(Some(tool)).ok_or("it is not an object")??;
    let kind = text(r#type, "type")?;
    let AnyFunction { name, description, parameters, strict } =
        object(function).ok_or("'function' is missing or not an object")??;
    let parameters = match parameters {
        None => Parameters { r#type: "object".to_owned(), properties: Vec::new(), required: Vec::new() },
        Some(parameters) => wire_parameters(parameters)?,
    };
    let strict = match strict.map(RawValue::get) {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => return Err("'function.strict' is not a boolean".to_owned()),
    };
    let name = text(name, "name").map_err(|what| format!("function: {what}"))?;
    let description = text(description, "description").map_err(|what| format!("function: {what}"))?;
    Ok(WireTool { r#type: kind, function: Function { name, description, parameters, strict } })
}

fn wire_parameters(parameters: &RawValue) -> Result<Parameters, String> {
    let AnyParameters { r#type, properties, required } =
        object(Some(parameters)).ok_or("parameters: it is not an object")??;
    let kind = text(r#type, "type").map_err(|what| format!("parameters: {what}"))?;
    let Properties(properties) =
        object(properties).ok_or("parameters: 'properties' is missing or not an object")??;
    let required = match required {
        // Schemas that are generated from types omit it if nothing is required.
        None => Vec::new(),
        Some(names) => texts(names).ok_or("parameters: 'required' is not a list of strings")?,
    };
    Ok(Parameters { r#type: kind, properties, required })
}

/// Properties in order. Of several with the same name, the last counts.
struct Properties(Vec<(String, Property)>);

impl<'a> Deserialize<'a> for Properties {
    fn deserialize<D: Deserializer<'a>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ReadProperties)
    }
}

struct ReadProperties;

impl<'a> Visitor<'a> for ReadProperties {
    type Value = Properties;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut members: A) -> Result<Properties, A::Error> {
        let mut properties: Vec<(String, Property)> = Vec::new();
        while let Some((name, schema)) = members.next_entry::<String, &'a RawValue>()? {
            let property =
                wire_property(schema).map_err(|what| A::Error::custom(Parameter { name: &name, what }))?;
            let known = properties.iter().position(|(known, _)| *known == name);
            match known {
                Some(at) => properties[at].1 = property,
                None if properties.len() == PROPERTIES_MAX => {
                    return Err(A::Error::custom(format_args!("more than {PROPERTIES_MAX} properties")));
                }
                None => properties.push((name, property)),
            }
        }
        Ok(Properties(properties))
    }
}

/// Mistake in a parameter.
struct Parameter<'a> {
    name: &'a str,
    what: String,
}

impl fmt::Display for Parameter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name: String = self.name.chars().take(64).collect();
        write!(f, "parameter '{name}': {}", self.what)
    }
}

fn wire_property(schema: &RawValue) -> Result<Property, String> {
    let AnyProperty { r#type, description, r#enum } = object(Some(schema)).ok_or("it is not an object")??;
    let description = match description {
        None => None,
        Some(given) => Some(string(given).ok_or("'description' is not a string")?),
    };
    let choices = match r#enum {
        None => None,
        Some(choices) => Some(texts(choices).ok_or("'enum' is not a list of strings")?),
    };
    Ok(Property { r#type: property_type(r#type)?, description, r#enum: choices })
}

/// Returns a single type name. For a list of a type and null, that is the type: the model may omit an optional
/// parameter.
fn property_type(kind: Option<&RawValue>) -> Result<String, String> {
    let none = || "'type' is missing or not a string".to_owned();
    let kind = kind.ok_or_else(none)?;
    if !kind.get().starts_with('[') {
        return string(kind).ok_or_else(none);
    }
    let mut words = texts(kind).ok_or_else(none)?;
    words.retain(|word| word != "null");
    match <[String; 1]>::try_from(words) {
        Ok([only]) => Ok(only),
        Err(_) => Err("'type' is a list; this generation takes one type".to_owned()),
    }
}

/// Returns the members of an object. `None` for other values.
fn object<'a, T: Deserialize<'a>>(raw: Option<&'a RawValue>) -> Option<Result<T, String>> {
    let text = raw?.get();
    // The position is left out, because it is relative to a part of the guest's text.
    let why = |error: serde_json::Error| {
        let why = error.to_string();
        why.split(" at line ").next().unwrap_or_default().to_owned()
    };
    text.starts_with('{').then(|| serde_json::from_str(text).map_err(why))
}

fn string(raw: &RawValue) -> Option<String> {
    serde_json::from_str(raw.get()).ok()
}

fn text(raw: Option<&RawValue>, name: &str) -> Result<String, String> {
    let raw = raw.ok_or_else(|| format!("'{name}' is missing"))?;
    string(raw).ok_or_else(|| format!("'{name}' is not a string"))
}

fn texts(raw: &RawValue) -> Option<Vec<String>> {
    serde_json::from_str(raw.get()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::value::to_raw_value;
    use serde_json::{Value, json};

    fn reported(tool: &Value) -> Result<Value, String> {
        typed(&[to_raw_value(tool).unwrap()]).map(|tools| serde_json::to_value(&tools[0]).unwrap())
    }

    #[test]
    fn a_tool_is_reported_with_the_known_fields_and_null_for_absent_ones() {
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
        assert_eq!(reported(&tool).unwrap(), expected);
    }

    #[test]
    fn a_tool_without_parameters_takes_none() {
        let tool =
            json!({"type": "function", "function": {"name": "now", "description": "", "strict": true}});
        let reported = reported(&tool).unwrap();
        assert_eq!(
            reported["function"]["parameters"],
            json!({"type": "object", "properties": {}, "required": []})
        );
        assert_eq!(reported["function"]["strict"], true);
    }

    #[test]
    fn a_tool_that_does_not_fit_is_named_with_the_reason() {
        let check = |function: Value, expected: &str| {
            let error = reported(&json!({"type": "function", "function": function})).unwrap_err();
            assert_eq!(error, format!("generation A cannot carry the tool {expected}"));
        };
        check(json!({"description": ""}), "at index 0: function: 'name' is missing");
        check(json!({"name": "f"}), "'f': function: 'description' is missing");
        let with = |parameters: Value| json!({"name": "f", "description": "", "parameters": parameters});
        check(with(json!({})), "'f': parameters: 'type' is missing");
        check(with(json!({"type": "object"})), "'f': parameters: 'properties' is missing or not an object");
        let property = |schema: Value| with(json!({"type": "object", "properties": {"p": schema}}));
        check(property(json!({})), "'f': parameter 'p': 'type' is missing or not a string");
        check(
            property(json!({"type": "integer", "enum": [1]})),
            "'f': parameter 'p': 'enum' is not a list of strings",
        );
        check(
            property(json!({"type": ["string", "integer"]})),
            "'f': parameter 'p': 'type' is a list; this generation takes one type",
        );
    }
}
