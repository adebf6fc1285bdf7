//! The plugin, the data and the settings of an evaluation.
//!
//! A [`Manifest`] is stored with the results. A run is resumed only with the same plugin, data and
//! settings; otherwise the error lists every change. Changes that do not affect existing results are
//! permitted: more attempts, more rows, another address of the same model, another threshold.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Version of the format of the files in a results directory. Results of another version are not resumed.
pub const FORMAT: u32 = 1;

/// Maximum number of characters of a value in a message.
const VALUE_SHOWN_CHARS: usize = 60;

/// Identity of an evaluation. Runs with equal manifests are the same run, except for the names of files,
/// which are informational.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`FORMAT`] of the host that wrote the manifest.
    pub format: u32,
    /// Version of the host that wrote the manifest.
    pub host_version: String,
    /// SHA-256 of the plugin, in hex.
    pub plugin_digest: String,
    /// Name of the plugin's file. Not compared.
    pub plugin_file: String,
    /// SHA-256 of the grader, in hex, if it is a component of its own.
    pub grader_digest: Option<String>,
    /// Name of the grader's file. Not compared.
    pub grader_file: Option<String>,
    /// SHA-256 of the data set, in hex.
    pub data_digest: String,
    /// Name of the data set's file. Not compared.
    pub data_file: String,
    /// All other settings: attempts, rows, model, endpoint, limits, configuration, pass threshold.
    /// Objects are compared field by field. Must not contain secrets, because it is written to disk and
    /// shown in errors.
    pub settings: Map<String, Value>,
}

/// A field that differs from the stored manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// Path of the field: `settings.config.temperature`.
    pub field: String,
    /// Stored value as JSON, shortened; `(absent)` if there is none.
    pub old: String,
    /// New value as JSON, shortened; `(absent)` if there is none.
    pub new: String,
    /// Description of the permitted changes, if some are.
    pub hint: Option<&'static str>,
}

impl fmt::Display for Changed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: was {}, is now {}", self.field, self.old, self.new)?;
        self.hint.map_or(Ok(()), |hint| write!(f, "; {hint}"))
    }
}

/// Returns the fields in which `new` differs from `old`, except permitted changes. The run may be resumed
/// if there are none.
#[must_use]
pub(crate) fn changes(old: &Manifest, new: &Manifest) -> Vec<Changed> {
    // A float may change in its last bit when it is written and read, as `old` was.
    let text = serde_json::to_string(new).expect("texts and JSON can be written as JSON");
    let new: Manifest = serde_json::from_str(&text).expect("JSON from serde_json can be read back");
    let mut found = Vec::new();
    compare("", &comparable(old), &comparable(&new), &mut found);
    found
}

/// Returns the fields that are compared.
fn comparable(manifest: &Manifest) -> Map<String, Value> {
    let Ok(Value::Object(mut fields)) = serde_json::to_value(manifest) else {
        unreachable!("a struct of texts and JSON is a JSON object");
    };
    for name in ["plugin_file", "grader_file", "data_file"] {
        fields.remove(name);
    }
    // Null means that a field of the manifest does not apply.
    fields.retain(|_, value| !value.is_null());
    fields
}

fn compare(prefix: &str, old: &Map<String, Value>, new: &Map<String, Value>, found: &mut Vec<Changed>) {
    let added = new.keys().filter(|&name| !old.contains_key(name));
    for name in old.keys().chain(added) {
        let field = format!("{prefix}{name}");
        match (old.get(name), new.get(name)) {
            (Some(Value::Object(old)), Some(Value::Object(new))) => {
                compare(&format!("{field}."), old, new, found);
            }
            (old, new) if old != new => match Change::of(&field) {
                Change::Any => {}
                Change::Moved if both(old, new, Value::is_string) => {}
                Change::Raised if is_raised(old, new) => {}
                rule => {
                    let (old, new) = shown(old, new);
                    let hint = (rule == Change::Raised).then_some("it may only be raised");
                    found.push(Changed { field, old, new, hint });
                }
            },
            _ => {}
        }
    }
}

/// Permitted change of a field.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    /// The field must not change.
    None,
    /// The number may grow or become unlimited.
    Raised,
    /// The address may change if there was one.
    Moved,
    /// The field may change freely, because results do not depend on it.
    Any,
}

impl Change {
    fn of(field: &str) -> Self {
        match field {
            "settings.n" | "settings.limit" => Self::Raised,
            "settings.base_url" | "settings.judge.url" => Self::Moved,
            "settings.pass_threshold" => Self::Any,
            _ => Self::None,
        }
    }
}

fn both(old: Option<&Value>, new: Option<&Value>, is: impl Fn(&Value) -> bool) -> bool {
    old.is_some_and(&is) && new.is_some_and(&is)
}

fn is_raised(old: Option<&Value>, new: Option<&Value>) -> bool {
    match (old.and_then(Value::as_u64), new) {
        (Some(old), Some(Value::Number(new))) => new.as_u64().is_some_and(|new| new > old),
        (Some(_), Some(Value::Null)) => true,
        _ => false,
    }
}

/// Returns excerpts of both values around the first difference.
fn shown(old: Option<&Value>, new: Option<&Value>) -> (String, String) {
    let text = |value: Option<&Value>| value.map_or("(absent)".to_owned(), Value::to_string);
    let (old, new) = (text(old), text(new));
    let same = old.chars().zip(new.chars()).take_while(|(old, new)| old == new).count();
    let longest = old.chars().count().max(new.chars().count());
    let start = if longest <= VALUE_SHOWN_CHARS { 0 } else { same.saturating_sub(VALUE_SHOWN_CHARS / 3) };
    (excerpt(&old, start), excerpt(&new, start))
}

fn excerpt(text: &str, start: usize) -> String {
    let part: String = text.chars().skip(start).take(VALUE_SHOWN_CHARS).collect();
    let before = if start > 0 { "…" } else { "" };
    let cut = text.chars().count() > start + VALUE_SHOWN_CHARS;
    let after = if cut { "…" } else { "" };
    format!("{before}{part}{after}")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::json;

    pub(in super::super) fn manifest(settings: Value) -> Manifest {
        let Value::Object(settings) = settings else {
            panic!("settings are an object");
        };
        Manifest {
            format: FORMAT,
            host_version: "0.1.0".to_owned(),
            plugin_digest: "aa".to_owned(),
            plugin_file: "plugin.wasm".to_owned(),
            grader_digest: None,
            grader_file: None,
            data_digest: "dd".to_owned(),
            data_file: "rows.jsonl".to_owned(),
            settings,
        }
    }

    fn check(old: &Manifest, new: &Manifest, expected: &[&str]) {
        let text = serde_json::to_string_pretty(old).unwrap();
        let old: Manifest = serde_json::from_str(&text).unwrap();
        let got: Vec<String> = changes(&old, new).iter().map(Changed::to_string).collect();
        assert_eq!(got, expected);
    }

    #[test]
    fn every_change_is_listed() {
        let old = manifest(json!({"n": 4, "config": {"t": 0.1, "deep": {"a": 1}}, "gone": true}));
        check(&old, &old.clone(), &[]);

        let mut moved = old.clone();
        moved.plugin_file = "elsewhere.wasm".to_owned();
        moved.data_file = "copy.jsonl".to_owned();
        check(&old, &moved, &[]);

        let mut new = manifest(json!({"n": 2, "config": {"t": 0.1, "deep": {"a": 2}}, "new": null}));
        new.plugin_digest = "bb".to_owned();
        new.grader_digest = Some("cc".to_owned());
        check(
            &old,
            &new,
            &[
                r#"plugin_digest: was "aa", is now "bb""#,
                "settings.n: was 4, is now 2; it may only be raised",
                "settings.config.deep.a: was 1, is now 2",
                "settings.gone: was true, is now (absent)",
                "settings.new: was (absent), is now null",
                r#"grader_digest: was (absent), is now "cc""#,
            ],
        );
    }

    #[test]
    fn changes_that_do_not_affect_results_are_permitted() {
        fn check(field: &str, old: Value, new: Value, may: bool) {
            let of = |value: Value| manifest(json!({"judge": {}, field: value}));
            assert_eq!(
                changes(&of(old.clone()), &of(new.clone())).is_empty(),
                may,
                "{field}: {old} to {new}"
            );
        }
        check("n", json!(4), json!(8), true);
        check("n", json!(8), json!(4), false);
        check("limit", json!(10), json!(11), true);
        check("limit", json!(10), Value::Null, true);
        check("limit", Value::Null, json!(10), false);
        check("limit", json!(11), json!(10), false);
        check("base_url", json!("http://a/v1"), json!("http://b/v1"), true);
        check("base_url", Value::Null, json!("http://b/v1"), false);
        check("pass_threshold", json!(1.0), json!(0.5), true);
        check("seed", json!(1), json!(2), false);
        check(
            "judge",
            json!({"url": "http://a", "model": "m"}),
            json!({"url": "http://b", "model": "m"}),
            true,
        );
        check(
            "judge",
            json!({"url": "http://a", "model": "m"}),
            json!({"url": "http://a", "model": "n"}),
            false,
        );
    }

    #[test]
    fn the_order_of_settings_and_the_notation_of_floats_do_not_matter() {
        let old = manifest(json!({"a": 0.1, "b": 1e-7, "c": 123456789.12345678}));
        let new = manifest(json!({"c": 123456789.12345678, "b": 1e-7, "a": 0.1}));
        check(&old, &new, &[]);
    }

    #[test]
    fn long_values_are_shortened_to_their_difference() {
        let long = |end: &str| json!({"prompt": format!("{}{end}{}", "x".repeat(500), "y".repeat(500))});
        let changed = changes(&manifest(long("old")), &manifest(long("new")));
        assert_eq!(changed.len(), 1);
        assert!(changed[0].old.starts_with("…xxx"), "{}", changed[0].old);
        assert!(changed[0].old.contains("xoldy"), "{}", changed[0].old);
        assert!(changed[0].new.contains("xnewy"), "{}", changed[0].new);
        assert!(changed[0].new.ends_with("y…"), "{}", changed[0].new);
        assert!(changed[0].new.chars().count() <= VALUE_SHOWN_CHARS + 2);
    }
}
