//! JSON Schemas of configurations: resolves their references, describes them in words, and converts validation errors
//! to messages with the name of a field.
//!
//! A schema comes from a guest. Its references are resolved first, within limits, so that no document is fetched and no
//! cycle is followed.

use std::fmt;

use jsonschema::ValidationError;
use jsonschema::error::ValidationErrorKind;
use serde_json::{Map, Value};

use rollout_wire::text;

/// Maximum number of parts of a schema after its references are resolved.
const PARTS_MAX: usize = 20_000;

/// Maximum depth of a schema after its references are resolved.
const DEPTH_MAX: usize = 100;

/// Maximum size of a value in a message, in bytes.
const SHOWN_BYTES: usize = 120;

/// Keywords with data instead of schemas as their values.
const DATA: [&str; 4] = ["default", "const", "enum", "examples"];

/// Keywords that describe a field without constraining it.
const ANNOTATIONS: [&str; 5] = ["title", "description", "default", "examples", "deprecated"];

/// Resolves all references of a schema. The error names the reference that cannot be resolved.
pub(super) fn expanded(schema: Value) -> Result<Value, String> {
    let mut expansion = Expansion { root: &schema, following: Vec::new(), parts: 0 };
    let mut whole = expansion.expand(&schema, 0)?;
    if let Some(fields) = whole.as_object_mut() {
        for unused in ["$defs", "definitions", "$schema", "$id"] {
            fields.shift_remove(unused);
        }
    }
    Ok(whole)
}

struct Expansion<'a> {
    root: &'a Value,
    following: Vec<&'a str>,
    parts: usize,
}

impl<'a> Expansion<'a> {
    fn expand(&mut self, part: &'a Value, depth: usize) -> Result<Value, String> {
        self.parts += 1;
        if self.parts > PARTS_MAX || depth > DEPTH_MAX {
            return Err(format!("more than {PARTS_MAX} parts, or nested more than {DEPTH_MAX} deep"));
        }
        match part {
            Value::Array(items) => items
                .iter()
                .map(|item| self.expand(item, depth + 1))
                .collect::<Result<_, _>>()
                .map(Value::Array),
            Value::Object(fields) => self.object(fields, depth),
            other => Ok(other.clone()),
        }
    }

    fn object(&mut self, fields: &'a Map<String, Value>, depth: usize) -> Result<Value, String> {
        let mut own = Map::new();
        for (key, value) in fields {
            if ["$dynamicRef", "$recursiveRef"].contains(&key.as_str()) {
                return Err(format!("it uses {key}, which is not supported; use $ref"));
            }
            if key == "$ref" && value.is_string() || key == "$defs" || key == "definitions" {
                continue;
            }
            let is_data = DATA.contains(&key.as_str());
            own.insert(key.clone(), if is_data { value.clone() } else { self.expand(value, depth + 1)? });
        }
        let Some(reference) = fields.get("$ref").and_then(Value::as_str) else {
            return Ok(Value::Object(own));
        };
        let target = self.follow(reference, depth)?;
        Ok(join(target, own))
    }

    fn follow(&mut self, reference: &'a str, depth: usize) -> Result<Value, String> {
        if self.following.contains(&reference) || reference == "#" {
            return Err(format!("{reference} refers to itself, and a configuration is finite"));
        }
        let pointer = reference.strip_prefix('#');
        let Some(target) = pointer.and_then(|pointer| self.root.pointer(pointer)) else {
            return Err(format!("it refers to {}, which it does not contain", shown(reference)));
        };
        self.following.push(reference);
        let expanded = self.expand(target, depth + 1);
        self.following.pop();
        expanded
    }
}

/// Combines a resolved reference with the keywords beside it, which apply to the same value.
fn join(target: Value, own: Map<String, Value>) -> Value {
    let only_annotations = own.keys().all(|key| ANNOTATIONS.contains(&key.as_str()));
    match target {
        Value::Object(mut target) if only_annotations => {
            target.extend(own);
            Value::Object(target)
        }
        target => {
            let mut both = own;
            let others =
                both.shift_remove("allOf").and_then(|all| all.as_array().cloned()).unwrap_or_default();
            let all: Vec<Value> = std::iter::once(target).chain(others).collect();
            both.insert("allOf".to_owned(), all.into());
            Value::Object(both)
        }
    }
}

/// Keywords that allow or refuse properties other than those in `properties`.
const OTHERS: [&str; 3] = ["additionalProperties", "patternProperties", "unevaluatedProperties"];

/// Keywords with schemas that apply to the same object.
const IN_PLACE: [&str; 7] = ["allOf", "anyOf", "oneOf", "if", "then", "else", "dependentSchemas"];

/// Changes the schema of a configuration to refuse properties that it does not name, unless it defines itself whether
/// there may be others. The fields that the host reads are always allowed.
pub(super) fn close(schema: &mut Value, hosts_fields: &[&str]) {
    let Some(fields) = schema.as_object_mut() else { return };
    if !OTHERS.iter().any(|keyword| fields.contains_key(*keyword)) {
        let properties = fields.entry("properties").or_insert_with(|| Value::Object(Map::new()));
        if let Some(properties) = properties.as_object_mut() {
            for field in hosts_fields {
                properties.entry(*field).or_insert(Value::Bool(true));
            }
        }
        // Properties that in-place schemas name count as evaluated, but not as properties of this schema.
        let is_split = IN_PLACE.iter().any(|keyword| fields.contains_key(*keyword));
        let keyword = if is_split { "unevaluatedProperties" } else { "additionalProperties" };
        fields.insert(keyword.to_owned(), Value::Bool(false));
    }
    close_below(fields);
}

/// Closes the schemas of an object's properties and of an array's items.
fn close_below(fields: &mut Map<String, Value>) {
    for property in
        fields.get_mut("properties").and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut)
    {
        close_inner(property);
    }
    for keyword in ["items", "additionalProperties"] {
        fields.get_mut(keyword).into_iter().for_each(close_inner);
    }
    for item in fields.get_mut("prefixItems").and_then(Value::as_array_mut).into_iter().flatten() {
        close_inner(item);
    }
}

fn close_inner(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else { return };
    let is_split = IN_PLACE.iter().any(|keyword| fields.contains_key(*keyword));
    let is_open = OTHERS.iter().any(|keyword| fields.contains_key(*keyword));
    if fields.get("properties").is_some_and(Value::is_object) {
        if !is_split && !is_open {
            fields.insert("additionalProperties".to_owned(), Value::Bool(false));
        }
    } else {
        // One of several alternatives, each of which describes the whole object.
        for keyword in ["anyOf", "oneOf"] {
            for form in fields.get_mut(keyword).and_then(Value::as_array_mut).into_iter().flatten() {
                close_inner(form);
            }
        }
    }
    close_below(fields);
}

/// Returns whether the schema allows properties that it does not name.
pub(super) fn allows_others(schema: &Value) -> bool {
    OTHERS.iter().any(|keyword| schema.get(keyword).is_some_and(|others| *others != Value::Bool(false)))
}

/// Returns whether the schema allows objects at all.
pub(super) fn allows_objects(schema: &Value) -> bool {
    match schema.get("type") {
        None => true,
        Some(Value::String(name)) => name == "object",
        Some(Value::Array(names)) => names.iter().any(|name| name == "object"),
        // Not a type; the validator has a better message for it.
        Some(_) => true,
    }
}

/// A setting in a schema.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Field {
    /// Dotted key: the names of its parents and its own.
    pub key: String,
    /// The allowed values, in words.
    #[serde(rename = "type")]
    pub kind: String,
    /// The default, used if the operator sets no value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<Value>,
    /// Whether the operator must set a value.
    pub required: bool,
    /// The description in the schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// Returns all settings of a schema in its order.
pub(super) fn fields(schema: &Value, defaults: &Map<String, Value>) -> Vec<Field> {
    let mut found = Vec::new();
    collect(schema, Some(defaults), "", &mut found);
    found
}

fn collect(schema: &Value, defaults: Option<&Map<String, Value>>, before: &str, found: &mut Vec<Field>) {
    let required = schema.get("required").and_then(Value::as_array);
    for (name, schema) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let key = format!("{before}{name}");
        let default = defaults.and_then(|defaults| defaults.get(name));
        if schema.get("properties").is_some_and(Value::is_object) {
            collect(schema, default.and_then(Value::as_object), &format!("{key}."), found);
            continue;
        }
        let description = schema.get("description").and_then(Value::as_str).map(text::printable);
        found.push(Field {
            key: text::printable(&key),
            kind: text::printable(&type_of(schema)),
            default: default.cloned(),
            required: default.is_none()
                && required.is_some_and(|required| required.iter().any(|required| required == name)),
            description,
        });
    }
}

/// Describes the allowed values in words.
fn type_of(schema: &Value) -> String {
    if let Some(words) = schema.get("enum").and_then(Value::as_array) {
        return or(words.iter().map(ToString::to_string));
    }
    if let Some(word) = schema.get("const") {
        return word.to_string();
    }
    let forms = ["anyOf", "oneOf"].iter().find_map(|key| schema.get(*key)?.as_array());
    if let Some(forms) = forms {
        return or(forms.iter().map(type_of));
    }
    let named = |name: &str| match name {
        "array" => match schema.get("items") {
            Some(items) => format!("array of {}", type_of(items)),
            None => "array".to_owned(),
        },
        "integer" | "number" => format!("{name}{}", bounds(schema)),
        name => name.to_owned(),
    };
    match schema.get("type") {
        Some(Value::String(name)) => named(name),
        Some(Value::Array(names)) => or(names.iter().filter_map(Value::as_str).map(named)),
        _ => "anything".to_owned(),
    }
}

fn bounds(schema: &Value) -> String {
    let bound = |key: &str| schema.get(key).map(number);
    match (bound("minimum"), bound("maximum")) {
        (Some(min), Some(max)) => format!(", {min} to {max}"),
        (Some(min), None) => format!(", at least {min}"),
        (None, Some(max)) => format!(", at most {max}"),
        (None, None) => String::new(),
    }
}

/// Formats a number. A whole one has no fraction: some schemas contain 0.0 for 0.
fn number(value: &Value) -> String {
    match value.as_f64() {
        Some(float) if float.fract() == 0.0 && float.abs() < 1e15 => format!("{float:.0}"),
        _ => value.to_string(),
    }
}

fn or(forms: impl Iterator<Item = String>) -> String {
    let mut forms: Vec<String> = forms.collect();
    forms.dedup();
    forms.join(" or ")
}

/// A mistake in a configuration, with its field.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mistake {
    field: String,
    message: String,
    pub is_missing: bool,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let field = if self.field.is_empty() { "the whole" } else { &self.field };
        write!(f, "{}: {}", text::printable(field), shown(&self.message))
    }
}

/// Converts an error of the validator to one or several mistakes, each with its field.
pub(super) fn mistakes(schema: &Value, error: &ValidationError<'_>) -> Vec<Mistake> {
    let field = dotted(error.instance_path().as_str());
    let at = |name: &str| if field.is_empty() { name.to_owned() } else { format!("{field}.{name}") };
    let one = |message: String| vec![Mistake { field: field.clone(), message, is_missing: false }];
    let path = error.schema_path().as_str();
    let parent =
        schema.pointer(path.rsplit_once('/').map_or("", |(parent, _)| parent)).unwrap_or(&Value::Null);
    match error.kind() {
        ValidationErrorKind::AdditionalProperties { unexpected }
        | ValidationErrorKind::UnevaluatedProperties { unexpected } => unexpected
            .iter()
            .map(|name| Mistake { field: at(name), message: no_such(name, parent), is_missing: false })
            .collect(),
        ValidationErrorKind::Required { property } => vec![Mistake {
            field: at(property.as_str().unwrap_or_default()),
            message: "missing, and it has no default".to_owned(),
            is_missing: true,
        }],
        ValidationErrorKind::Type { .. }
        | ValidationErrorKind::Enum { .. }
        | ValidationErrorKind::Constant { .. }
        | ValidationErrorKind::AnyOf { .. }
        | ValidationErrorKind::OneOfNotValid { .. } => {
            one(format!("{}, and it has to be {}", describe_value(error.instance()), type_of(parent)))
        }
        _ => one(error.to_string()),
    }
}

fn no_such(name: &str, parent: &Value) -> String {
    let known: Vec<&str> = parent
        .get("properties")
        .and_then(Value::as_object)
        .map(|fields| fields.keys().map(String::as_str).collect())
        .unwrap_or_default();
    text::no_such(name, &known)
}

/// Formats a value with the name of its type.
pub(super) fn describe_value(value: &Value) -> String {
    let kind = match value {
        Value::Null | Value::Number(_) | Value::Bool(_) => return shown(&value.to_string()),
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    format!("the {kind} {}", shown(&value.to_string()))
}

/// Shortens and escapes a text of any size and content for a message.
pub(super) fn shown(text: &str) -> String {
    text::printable(&text::beginning(text, 4 * SHOWN_BYTES))
}

/// Converts a JSON pointer to a dotted key.
fn dotted(pointer: &str) -> String {
    let segments = pointer.split('/').skip(1).map(|segment| segment.replace("~1", "/").replace("~0", "~"));
    segments.collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn types_are_described_in_words() {
        fn check(schema: Value, expected: &str) {
            assert_eq!(type_of(&schema), expected);
        }
        check(json!({"type": "integer", "minimum": 0.0}), "integer, at least 0");
        check(json!({"type": ["integer", "null"], "minimum": 1, "maximum": 9}), "integer, 1 to 9 or null");
        check(json!({"type": "array", "items": {"type": "string"}}), "array of string");
        check(json!({"enum": ["a", "b"]}), "\"a\" or \"b\"");
        check(json!({"anyOf": [{"type": "object"}, {"type": "null"}]}), "object or null");
        check(json!({"oneOf": [{"const": "x"}, {"const": "y"}]}), "\"x\" or \"y\"");
        check(json!({}), "anything");
        check(json!(true), "anything");
    }

    #[test]
    fn a_schema_is_closed_unless_it_allows_other_properties() {
        fn check(mut schema: Value, expected: &Value) {
            close(&mut schema, &["name"]);
            assert_eq!(&schema, expected);
        }
        let open = json!({"properties": {"a": {}}, "additionalProperties": true});
        check(open.clone(), &open);
        check(
            json!({"properties": {"a": {"anyOf": [{"properties": {"b": {}}}, {"type": "null"}]}}}),
            &json!({
                "properties": {
                    "a": {"anyOf": [{"properties": {"b": {}}, "additionalProperties": false}, {"type": "null"}]},
                    "name": true,
                },
                "additionalProperties": false,
            }),
        );
        check(
            json!({"properties": {"a": {"properties": {}, "additionalProperties": {"type": "string"}}}, "oneOf": [{}]}),
            &json!({
                "properties": {
                    "a": {"properties": {}, "additionalProperties": {"type": "string"}},
                    "name": true,
                },
                "oneOf": [{}],
                "unevaluatedProperties": false,
            }),
        );
    }

    #[test]
    fn fields_have_dotted_keys_and_defaults() {
        let schema = json!({
            "required": ["a"],
            "properties": {
                "a": {"type": "string", "description": "An \u{1b}[31mA."},
                "b": {"properties": {"c": {"type": "integer"}}},
            },
        });
        let defaults = json!({"b": {"c": 3}});
        let found = fields(&schema, defaults.as_object().unwrap());
        let expected = [
            ("a", "string", None, true, Some("An \\u{1b}[31mA.")),
            ("b.c", "integer", Some(json!(3)), false, None),
        ];
        for (field, (key, kind, default, required, description)) in found.iter().zip(expected) {
            assert_eq!((field.key.as_str(), field.kind.as_str()), (key, kind));
            assert_eq!((&field.default, field.required), (&default, required));
            assert_eq!(field.description.as_deref(), description);
        }
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn keywords_beside_a_reference_are_kept() {
        let schema = json!({
            "properties": {
                "a": {"$ref": "#/$defs/A", "default": 3, "description": "mine"},
                "b": {"$ref": "#/$defs/A", "maximum": 2},
            },
            "$defs": {"A": {"type": "integer", "description": "theirs"}},
        });
        let expected = json!({"properties": {
            "a": {"type": "integer", "description": "mine", "default": 3},
            "b": {"maximum": 2, "allOf": [{"type": "integer", "description": "theirs"}]},
        }});
        assert_eq!(expanded(schema).unwrap(), expected);
    }
}
