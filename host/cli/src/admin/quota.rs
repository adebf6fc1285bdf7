//! Quotas on the command line: `running=8`, or `running=none` to remove one.

use serde_json::{Map, Value};

/// A quota on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Quota {
    name: String,
    value: Option<u64>,
}

/// Names of all quotas.
const NAMES: [&str; 9] = [
    "running",
    "queued",
    "requests-per-second",
    "model-tokens-per-day",
    "guest-cpu-seconds-per-day",
    "stored-bytes",
    "plugins",
    "component-bytes",
    "weight",
];

impl std::str::FromStr for Quota {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').ok_or("a quota is NAME=NUMBER, or NAME=none")?;
        if !NAMES.contains(&name) {
            return Err(format!("unknown quota '{name}'; the quotas are: {}", NAMES.join(", ")));
        }
        let value = match value {
            "none" => None,
            number => {
                Some(number.parse().map_err(|_| format!("'{number}' is neither a whole number nor 'none'"))?)
            }
        };
        Ok(Self { name: name.to_owned(), value })
    }
}

/// Returns the changes in the API's format.
pub(super) fn change(quotas: &[Quota]) -> Value {
    let entries = quotas.iter().map(|Quota { name, value }| (name.clone(), Value::from(*value)));
    Value::Object(entries.collect::<Map<_, _>>())
}

/// Renders quotas of the API in one line.
pub(super) fn line(quotas: &Value) -> String {
    let entries = quotas.as_object().into_iter().flatten();
    entries.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn quotas_are_parsed_and_shown_in_the_same_form() {
        let read: Vec<Quota> =
            ["running=8", "weight=none"].iter().map(|text| text.parse().unwrap()).collect();
        assert_eq!(change(&read), json!({"running": 8, "weight": null}));
        assert_eq!(line(&json!({"running": 8, "plugins": 2})), "running=8 plugins=2");
        for (wrong, expected) in
            [("running", "NAME=NUMBER"), ("runing=8", "unknown quota 'runing'"), ("running=-1", "'-1'")]
        {
            let error = wrong.parse::<Quota>().unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
