//! The operator's values for a plugin: a table of the file, overridden by `--set key=value`.

use std::str::FromStr;

use serde_json::{Map, Value};

/// One `--set key=value`.
#[derive(Clone, Debug, PartialEq)]
pub struct Assignment {
    /// Segments of the key.
    key: Vec<String>,
    value: Value,
}

impl FromStr for Assignment {
    type Err = String;

    /// Reads a dotted key and a value: JSON, or a value as in TOML, or else a text.
    fn from_str(text: &str) -> Result<Self, String> {
        let Some((key, value)) = text.split_once('=') else {
            return Err("must have the form KEY=VALUE, such as max_turns=3 or search.name=\"x\"".to_owned());
        };
        let key: Vec<String> = key.trim().split('.').map(str::to_owned).collect();
        if key.iter().any(String::is_empty) {
            return Err(
                "the key has an empty part; nested keys are joined by dots, as in search.depth".to_owned()
            );
        }
        Ok(Self { key, value: value_of(value) })
    }
}

/// Parses a value. JSON comes first, because only JSON has `null` and nested objects.
fn value_of(text: &str) -> Value {
    let trimmed = text.trim();
    if let Ok(value) = serde_json::from_str(trimmed) {
        return value;
    }
    // In TOML, a comment or a line break would not be part of the value; in a text, it is.
    let of_toml = (!trimmed.contains(['\n', '#'])).then(|| trimmed.parse::<toml::Value>().ok()).flatten();
    of_toml.and_then(|value| json_of(value).ok()).unwrap_or_else(|| text.into())
}

/// Applies the assignments to a table of the file, in their order.
pub(super) fn assigned(
    table: Option<toml::Table>,
    assignments: &[Assignment],
    of: &str,
    problems: &mut Vec<String>,
) -> Option<Map<String, Value>> {
    if table.is_none() && assignments.is_empty() {
        return None;
    }
    let mut values = Map::new();
    for (key, value) in table.into_iter().flatten() {
        match json_of(value) {
            Ok(value) => {
                values.insert(key, value);
            }
            Err(what) => problems.push(format!("{of}.{key}{what}")),
        }
    }
    for assignment in assignments {
        if let Err(problem) = assign(&mut values, &assignment.key, &assignment.value) {
            problems.push(problem);
        }
    }
    Some(values)
}

fn assign(values: &mut Map<String, Value>, key: &[String], value: &Value) -> Result<(), String> {
    let mut values = values;
    let Some((last, parents)) = key.split_last() else { return Ok(()) };
    for (depth, parent) in parents.iter().enumerate() {
        let entry = values.entry(parent.clone()).or_insert_with(|| Value::Object(Map::new()));
        values = match entry {
            Value::Object(nested) => nested,
            other => {
                let (whole, parent) = (key.join("."), parents[..=depth].join("."));
                return Err(format!("--set {whole}: {parent} is {other}, which has no fields"));
            }
        };
    }
    values.insert(last.clone(), value.clone());
    Ok(())
}

/// Converts a TOML value to JSON, dates to texts. The error of a value that JSON does not have begins with
/// the rest of its key.
fn json_of(value: toml::Value) -> Result<Value, String> {
    Ok(match value {
        toml::Value::String(text) => text.into(),
        toml::Value::Integer(number) => number.into(),
        toml::Value::Boolean(truth) => truth.into(),
        toml::Value::Datetime(time) => time.to_string().into(),
        toml::Value::Float(number) => match serde_json::Number::from_f64(number) {
            Some(number) => number.into(),
            None => {
                return Err(format!(": {number} is not a number in JSON, in which plugins are configured"));
            }
        },
        toml::Value::Array(items) => items
            .into_iter()
            .enumerate()
            .map(|(at, item)| json_of(item).map_err(|what| format!(".{at}{what}")))
            .collect::<Result<_, _>>()?,
        toml::Value::Table(table) => table
            .into_iter()
            .map(|(key, value)| match json_of(value) {
                Ok(value) => Ok((key, value)),
                Err(what) => Err(format!(".{key}{what}")),
            })
            .collect::<Result<Map<_, _>, _>>()?
            .into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_value_is_parsed_as_json_then_toml_then_text() {
        fn check(text: &str, expected: Value) {
            assert_eq!(format!("k={text}").parse::<Assignment>().unwrap().value, expected, "{text}");
        }
        check("3", json!(3));
        check("0.5", json!(0.5));
        check("null", Value::Null);
        check("true", json!(true));
        check("\"3\"", json!("3"));
        check("'3'", json!("3"));
        check("[1, \"a\"]", json!([1, "a"]));
        check("{\"a\": null}", json!({"a": null}));
        check("{a = 1}", json!({"a": 1}));
        check("1_000", json!(1000));
        check("0x10", json!(16));
        check("2025-01-02", json!("2025-01-02"));
        check("inf", json!("inf"));
        check("fast", json!("fast"));
        check("a b, c", json!("a b, c"));
        check("1 # one", json!("1 # one"));
        check("007", json!("007"));
        check("", json!(""));
        check(" a=b ", json!(" a=b "));
    }

    #[test]
    fn a_dotted_key_creates_its_parents_and_overrides_the_file() {
        let table = "a = 1\n[b]\nc = 2\nd = 1979-05-27".parse::<toml::Table>().unwrap();
        let assignments: Vec<Assignment> =
            ["b.c=3", "x.y.z=t", "b.e=null"].iter().map(|text| text.parse().unwrap()).collect();
        let mut problems = Vec::new();
        let values = assigned(Some(table), &assignments, "plugin", &mut problems);
        assert_eq!(problems, Vec::<String>::new());
        assert_eq!(
            Value::from(values.unwrap()),
            json!({"a": 1, "b": {"c": 3, "d": "1979-05-27", "e": null}, "x": {"y": {"z": "t"}}})
        );
        assert_eq!(assigned(None, &[], "plugin", &mut problems), None);
    }

    #[test]
    fn an_invalid_assignment_is_reported_with_its_key() {
        let mut problems = Vec::new();
        let table = "a = [1, nan]".parse::<toml::Table>().unwrap();
        let assignments = ["b=1".parse().unwrap(), "b.c=2".parse().unwrap()];
        assigned(Some(table), &assignments, "plugin", &mut problems);
        assert_eq!(
            problems,
            [
                "plugin.a.1: NaN is not a number in JSON, in which plugins are configured",
                "--set b.c: b is 1, which has no fields",
            ]
        );
        for wrong in ["x", "=1", "a..b=1", "a.=1"] {
            assert!(wrong.parse::<Assignment>().is_err(), "{wrong}");
        }
    }
}
