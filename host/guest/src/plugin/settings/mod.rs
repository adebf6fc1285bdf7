//! The configuration that a plugin declares, and checks of the operator's values against it.
//!
//! [`Plugin::declaration`] calls the plugin once, in an instance without a rollout, and checks the declaration: it
//! comes from the guest and is untrusted. [`resolve`] merges the operator's values with the defaults and reports all
//! mistakes in them, with the names of the fields. The host itself reads three fields of the result; the guest gets all
//! of it.

#![expect(
    clippy::disallowed_types,
    reason = "settings are read once for each plugin, and schemas are checked as trees"
)]

mod schema;

use std::fmt;
use std::sync::Arc;

use jsonschema::{Draft, PatternOptions, Validator};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::Plugin;
use crate::imports::{ClockStart, Imports, Live, Role, RunContext};
use crate::instance::{self, Bounds, Permit, RunError};
use rollout_core::limits::{DECLARE_TIME_MAX, Limits};
use rollout_core::telemetry::Metrics;
use rollout_wire as wire;
use rollout_wire::id::RolloutId;

pub use schema::Field;

/// Maximum size of a schema in bytes. The defaults may have as much again.
const DECLARED_BYTES_MAX: usize = 256 << 10;

/// Maximum size of a compiled pattern of a schema, in bytes.
const PATTERN_BYTES_MAX: usize = 1 << 20;

/// The fields of a configuration that the host reads.
const HOSTS_FIELDS: [&str; 3] = ["name", "description", "concurrency"];

/// A validated declaration of a plugin's configuration.
#[derive(Debug)]
pub struct Declaration {
    schema: Value,
    /// The schema that values are checked against: it refuses properties that the declared one does not mention.
    closed: Value,
    defaults: Map<String, Value>,
    validator: Validator,
}

/// Error of a plugin's declaration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeclareError {
    /// The plugin failed to return a declaration.
    #[error("when asked for its settings, the plugin {0}")]
    Run(#[from] RunError),
    /// The declaration is invalid.
    #[error("its declared settings are invalid:{}", list(.0))]
    Wrong(Vec<String>),
}

/// All mistakes in an operator's values, each with its field.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the plugin's configuration does not fit:{}", list(.0))]
pub struct InvalidSettings(pub Vec<String>);

fn list(problems: &[String]) -> String {
    problems.iter().map(|problem| format!("\n  - {problem}")).collect()
}

/// A plugin's configuration as the guest gets it, with the fields that the host reads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PluginSettings {
    /// The whole configuration, or `None` if none is declared and none was set.
    pub values: Option<Map<String, Value>>,
    /// The plugin's name.
    pub name: Option<String>,
    /// The plugin's description.
    pub description: Option<String>,
    /// Number of rollouts of the plugin that may run at once.
    pub max_concurrent: Option<u32>,
}

impl PluginSettings {
    /// Returns the configuration as JSON text.
    pub fn to_raw(&self) -> Option<Box<RawValue>> {
        // Values that came from JSON can be written as JSON.
        self.values.as_ref().and_then(|values| serde_json::value::to_raw_value(values).ok())
    }
}

impl Plugin {
    /// Asks the plugin for its declaration, with the clock that its rollouts start with. Returns `None` if it declares
    /// nothing.
    ///
    /// # Errors
    ///
    /// Fails if the plugin fails or its declaration is invalid.
    pub async fn declaration(
        &self,
        limits: &Limits,
        clock_begins: ClockStart,
        metrics: &Arc<Metrics>,
    ) -> Result<Option<Declaration>, DeclareError> {
        if !self.about().settings {
            return Ok(None);
        }
        let limits = Arc::new(small(limits));
        let bounds = Bounds {
            memory_bytes_max: limits.memory_bytes_max,
            deadline: Some(Instant::now() + DECLARE_TIME_MAX),
            permit: Permit::alone(),
        };
        let id = RolloutId::parse("declare").map_err(|error| RunError::Host(error.to_string()))?;
        let run = RunContext { clock_begins, ..RunContext::without_rollout(id, None, metrics.clone()) };
        let outside = Live::until(bounds.deadline);
        let imports = Imports::new(Role::Declaration, Arc::new(run), limits, outside, Arc::default());
        let declared = instance::declare(self.linked(), imports, bounds).await?;
        Declaration::new(&declared.schema, &declared.defaults).map(Some)
    }
}

/// Returns limits for an instance that only declares.
fn small(limits: &Limits) -> Limits {
    Limits {
        guest_cpu_time_max: limits.guest_cpu_time_max.min(DECLARE_TIME_MAX),
        host_calls_max: limits.host_calls_max.min(1000),
        handles_max: limits.handles_max.min(100),
        artifacts_max: 0,
        log_lines_max: limits.log_lines_max.min(100),
        ..limits.clone()
    }
}

impl Declaration {
    /// Validates a plugin's declaration.
    fn new(schema: &str, defaults: &str) -> Result<Self, DeclareError> {
        let mut problems = Vec::new();
        let mut read = |part: &str, text: &str| match object(text) {
            Ok(object) => object,
            Err(reason) => {
                problems.push(format!("{part}: {reason}"));
                Map::new()
            }
        };
        let schema = read("schema", schema);
        let defaults = read("defaults", defaults);
        if !problems.is_empty() {
            return Err(DeclareError::Wrong(problems));
        }
        let wrong = |reason: String| DeclareError::Wrong(vec![format!("schema: {reason}")]);
        let mut schema = schema::expanded(Value::Object(schema)).map_err(wrong)?;
        if !schema::allows_objects(&schema) {
            return Err(wrong("a configuration is an object, and the schema allows none".to_owned()));
        }
        // A key that the plugin does not read is a mistake of the operator, unless the schema allows others.
        let declared = schema.clone();
        schema::close(&mut schema, &HOSTS_FIELDS);
        // The guest's pattern runs on the operator's values in this process, so it must not take exponential time.
        let patterns = PatternOptions::regex().size_limit(PATTERN_BYTES_MAX);
        let validator = jsonschema::options()
            .with_draft(Draft::Draft202012)
            .with_pattern_options(patterns)
            .offline()
            .build(&schema)
            .map_err(|error| wrong(schema::shown(&error.to_string())))?;
        let declaration = Self { schema: declared, closed: schema, defaults, validator };
        let unfit = declaration.mistakes(&declaration.defaults, Missing::IsLeftToTheOperator);
        if unfit.is_empty() {
            return Ok(declaration);
        }
        Err(DeclareError::Wrong(unfit.into_iter().map(|problem| format!("default of {problem}")).collect()))
    }

    /// Returns the JSON Schema, with all references resolved.
    pub fn schema(&self) -> &Value {
        &self.schema
    }

    /// Returns the defaults.
    pub fn defaults(&self) -> &Map<String, Value> {
        &self.defaults
    }

    /// Returns all fields, nested ones with dotted keys.
    pub fn fields(&self) -> Vec<Field> {
        schema::fields(&self.schema, &self.defaults)
    }

    /// Returns whether an operator may set undeclared properties.
    pub fn allows_others(&self) -> bool {
        schema::allows_others(&self.closed)
    }

    /// Returns whether the schema allows any value and names no properties.
    pub fn declares_nothing(&self) -> bool {
        let named = self.schema.get("properties").and_then(Value::as_object);
        self.allows_others() && named.is_none_or(Map::is_empty)
    }

    /// Returns this plugin's own values from those that it shares with another plugin.
    pub fn own_of(&self, shared: &Map<String, Value>) -> Map<String, Value> {
        let named = self.closed.get("properties").and_then(Value::as_object);
        let is_own =
            |key: &String| self.allows_others() || named.is_some_and(|named| named.contains_key(key));
        shared
            .iter()
            .filter(|(key, _)| is_own(key))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    }

    fn mistakes(&self, values: &Map<String, Value>, missing: Missing) -> Vec<String> {
        let values = Value::Object(values.clone());
        let mut found = Vec::new();
        for error in self.validator.iter_errors(&values) {
            for mistake in schema::mistakes(&self.closed, &error) {
                if !found.contains(&mistake) {
                    found.push(mistake);
                }
            }
        }
        let left =
            |mistake: &schema::Mistake| !(mistake.is_missing && missing == Missing::IsLeftToTheOperator);
        found.iter().filter(|mistake| left(mistake)).map(ToString::to_string).collect()
    }
}

/// Treatment of a missing required field.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Missing {
    IsAMistake,
    IsLeftToTheOperator,
}

/// Parses a text of limited size that must be a JSON object.
fn object(text: &str) -> Result<Map<String, Value>, String> {
    if text.len() > DECLARED_BYTES_MAX {
        return Err(format!("{} bytes, more than the maximum of {DECLARED_BYTES_MAX}", text.len()));
    }
    let raw = wire::object(text)?;
    serde_json::from_str(raw.get()).map_err(|error| error.to_string())
}

/// Merges the operator's values with the plugin's defaults, and checks the result.
///
/// # Errors
///
/// Returns every value that does not match the schema or that the host cannot read.
pub fn resolve(
    declaration: Option<&Declaration>,
    given: Option<&Map<String, Value>>,
) -> Result<PluginSettings, InvalidSettings> {
    let values = match (declaration, given) {
        (None, None) => return Ok(PluginSettings::default()),
        (None, Some(given)) => given.clone(),
        (Some(declaration), given) => {
            let mut values = declaration.defaults.clone();
            given.into_iter().for_each(|given| lay_over(&mut values, given));
            values
        }
    };
    let mut mistakes =
        declaration.map(|declaration| declaration.mistakes(&values, Missing::IsAMistake)).unwrap_or_default();
    let settings = PluginSettings {
        name: text(&values, "name", &mut mistakes),
        description: text(&values, "description", &mut mistakes),
        max_concurrent: max_concurrent(&values, &mut mistakes),
        values: Some(values),
    };
    if mistakes.is_empty() { Ok(settings) } else { Err(InvalidSettings(mistakes)) }
}

/// Merges objects recursively; any other value replaces the one below.
fn lay_over(under: &mut Map<String, Value>, over: &Map<String, Value>) {
    for (key, value) in over {
        match (under.get_mut(key), value) {
            (Some(Value::Object(under)), Value::Object(over)) => lay_over(under, over),
            _ => {
                under.insert(key.clone(), value.clone());
            }
        }
    }
}

/// Adds a mistake unless the field has one already.
fn add(mistakes: &mut Vec<String>, field: &str, mistake: impl fmt::Display) {
    let prefix = format!("{field}: ");
    if !mistakes.iter().any(|mistake| mistake.starts_with(&prefix)) {
        mistakes.push(format!("{prefix}{mistake}"));
    }
}

fn text(values: &Map<String, Value>, field: &str, mistakes: &mut Vec<String>) -> Option<String> {
    match values.get(field) {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text.clone()).filter(|text| !text.is_empty()),
        Some(other) => {
            add(
                mistakes,
                field,
                format_args!("{}, and the host reads a text here", schema::describe_value(other)),
            );
            None
        }
    }
}

fn max_concurrent(values: &Map<String, Value>, mistakes: &mut Vec<String>) -> Option<u32> {
    let value = values.get("concurrency")?.get("max_concurrent")?;
    if value.is_null() {
        return None;
    }
    let number = value.as_u64().and_then(|number| u32::try_from(number).ok()).filter(|number| *number > 0);
    if number.is_none() {
        let mistake =
            format!("{}, and not a number of rollouts, 1 or more, or null", schema::describe_value(value));
        add(mistakes, "concurrency.max_concurrent", mistake);
    }
    number
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn declaration() -> Declaration {
        let schema = json!({
            "type": "object",
            "additionalProperties": false,
            "required": ["mode"],
            "properties": {
                "max_turns": {"type": "integer", "minimum": 1, "description": "The most calls."},
                "mode": {"enum": ["fast", "slow"]},
                "search": {"$ref": "#/$defs/Search"},
                "concurrency": {"type": "object", "properties": {"max_concurrent": {"type": ["integer", "null"]}}},
            },
            "$defs": {"Search": {
                "type": "object",
                "additionalProperties": false,
                "properties": {"depth": {"type": "number"}, "name": {"type": ["string", "null"]}},
            }},
        });
        let defaults = json!({"max_turns": 8, "search": {"depth": 1.5, "name": null}});
        Declaration::new(&schema.to_string(), &defaults.to_string()).unwrap()
    }

    fn resolved(given: Value) -> Result<PluginSettings, Vec<String>> {
        let Value::Object(given) = given else { panic!("an object") };
        resolve(Some(&declaration()), Some(&given)).map_err(|error| error.0)
    }

    #[test]
    fn operator_values_override_the_defaults_field_by_field() {
        let settings =
            resolved(json!({"mode": "fast", "search": {"name": "x"}, "concurrency": {"max_concurrent": 3}}))
                .unwrap();
        assert_eq!(settings.max_concurrent, Some(3));
        assert_eq!(
            Value::from(settings.values.unwrap()),
            json!({
                "max_turns": 8,
                "search": {"depth": 1.5, "name": "x"},
                "mode": "fast",
                "concurrency": {"max_concurrent": 3},
            })
        );
    }

    #[test]
    fn all_mistakes_are_reported_with_their_fields() {
        let mistakes = resolved(json!({
            "max_turns": "eight",
            "max_turn": 3,
            "search": {"depth": [1], "deep": 2},
            "concurrency": {"max_concurrent": 0},
        }))
        .unwrap_err();
        let mut mistakes: Vec<&str> = mistakes.iter().map(String::as_str).collect();
        mistakes.sort_unstable();
        assert_eq!(
            mistakes,
            [
                "concurrency.max_concurrent: 0, and not a number of rollouts, 1 or more, or null",
                "max_turn: there is no such setting; did you mean max_turns?",
                "max_turns: the string \"eight\", and it has to be integer, at least 1",
                "mode: missing, and it has no default",
                "search.deep: there is no such setting; there are: depth, name",
                "search.depth: the array [1], and it has to be number",
            ]
        );
    }

    #[test]
    fn an_undeclared_key_is_refused_unless_the_schema_allows_others() {
        fn check(schema: Value, given: Value, expected: &[&str]) {
            let declaration = Declaration::new(&schema.to_string(), "{}").unwrap();
            let given = given.as_object().cloned().unwrap();
            let mistakes = resolve(Some(&declaration), Some(&given)).err().map(|error| error.0);
            assert_eq!(mistakes.unwrap_or_default(), expected);
        }
        let properties = json!({"max_turns": {"type": "integer"}, "search": {"properties": {"depth": {}}}});
        let silent = json!({"type": "object", "properties": properties});
        check(
            silent.clone(),
            json!({"max_turn": 6}),
            &["max_turn: there is no such setting; did you mean max_turns?"],
        );
        check(
            silent.clone(),
            json!({"search": {"dept": 6}}),
            &["search.dept: there is no such setting; did you mean depth?"],
        );
        check(silent, json!({"name": "n", "concurrency": {"max_concurrent": 2}}), &[]);
        let open = json!({"type": "object", "properties": properties, "additionalProperties": true});
        check(open, json!({"max_turn": 6}), &[]);
        let nothing = json!({"type": "object"});
        check(
            nothing,
            json!({"depth": 1}),
            &["depth: there is no such setting; there are: name, description, concurrency"],
        );
        let split = json!({"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]});
        check(split.clone(), json!({"a": 1, "b": 1}), &[]);
        check(
            split,
            json!({"a": 1, "c": 1}),
            &["c: there is no such setting; there are: name, description, concurrency"],
        );
    }

    #[test]
    fn a_plugin_gets_its_own_part_of_shared_values() {
        let shared = json!({"max_turns": 1, "marker": "####", "name": "n"});
        let own = |schema: Value| {
            let declaration = Declaration::new(&schema.to_string(), "{}").unwrap();
            Value::from(declaration.own_of(shared.as_object().unwrap()))
        };
        assert_eq!(own(json!({"properties": {"marker": {}}})), json!({"marker": "####", "name": "n"}));
        assert_eq!(own(json!({"additionalProperties": true})), shared);
    }

    #[test]
    fn values_are_checked_against_bounds_and_enumerations() {
        let mistakes = resolved(json!({"mode": "medium", "max_turns": 0})).unwrap_err();
        assert!(mistakes.iter().any(|it| it.starts_with("max_turns: 0 is less than")), "{mistakes:?}");
        assert!(mistakes.iter().any(|it| it.contains("has to be \"fast\" or \"slow\"")), "{mistakes:?}");
    }

    #[test]
    fn without_a_declaration_the_host_still_reads_its_own_fields() {
        let given = json!({"name": "n", "other": 1, "concurrency": {"max_concurrent": null}});
        let settings = resolve(None, given.as_object()).unwrap();
        assert_eq!((settings.name.as_deref(), settings.max_concurrent), (Some("n"), None));
        let given = json!({"name": 3, "concurrency": {"max_concurrent": -1}});
        assert_eq!(resolve(None, given.as_object()).unwrap_err().0.len(), 2);
        assert_eq!(resolve(None, None).unwrap(), PluginSettings::default());
    }

    #[test]
    fn an_invalid_declaration_is_refused() {
        fn check(schema: &Value, defaults: &Value, named: &str) {
            let error = Declaration::new(&schema.to_string(), &defaults.to_string()).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
        let none = json!({});
        check(&json!([]), &none, "schema: not a JSON object");
        check(&json!({"type": "string"}), &none, "a configuration is an object");
        check(&json!({"type": "strong"}), &none, "schema: ");
        check(&json!({"properties": {"a": {"$ref": "#/$defs/A"}}}), &none, "#/$defs/A");
        check(&json!({"$ref": "https://example.com/x.json"}), &none, "https://example.com/x.json");
        check(&json!({"$ref": "#"}), &none, "refers to itself");
        let recursive =
            json!({"$ref": "#/$defs/A", "$defs": {"A": {"properties": {"a": {"$ref": "#/$defs/A"}}}}});
        check(&recursive, &none, "refers to itself");
        check(&json!({"properties": {"a": {"pattern": "(a"}}}), &none, "schema: ");
        check(&json!({"properties": {"a": {"pattern": "(?=a)b"}}}), &none, "schema: ");
        check(&json!({"properties": {"a": {"type": "integer"}}}), &json!({"a": "x"}), "default of a: ");
        let long = json!({"description": "x".repeat(DECLARED_BYTES_MAX)});
        check(&long, &none, "more than the maximum of");
    }

    #[test]
    fn a_schema_that_grows_exponentially_by_references_is_refused() {
        let mut defs = Map::new();
        for at in 0..60 {
            let next = json!({"$ref": format!("#/$defs/d{}", at + 1)});
            defs.insert(format!("d{at}"), json!({"properties": {"a": next, "b": next}}));
        }
        defs.insert("d60".to_owned(), json!({}));
        let schema = json!({"$ref": "#/$defs/d0", "$defs": defs});
        let error = Declaration::new(&schema.to_string(), "{}").unwrap_err().to_string();
        assert!(error.contains("schema: "), "{error}");
    }
}
