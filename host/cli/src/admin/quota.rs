//! Quotas on the command line: `running=8`, or `running=none` to remove one.

use std::str::FromStr;

use rollout_wire::quota::{Quota, QuotasChange};
use serde_json::Value;

/// New value of a quota on a command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct QuotaArg(QuotasChange);

impl FromStr for QuotaArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').ok_or("a quota is NAME=NUMBER, or NAME=none")?;
        let quota = name.parse::<Quota>().map_err(|error| error.to_string())?;
        let value = match value {
            "none" => None,
            number => {
                Some(number.parse().map_err(|_| format!("'{number}' is neither a whole number nor 'none'"))?)
            }
        };
        let mut change = QuotasChange::default();
        change.insert(quota, value).map_err(|error| error.to_string())?;
        Ok(Self(change))
    }
}

/// Returns the change for the API. The last value of a quota applies.
pub(super) fn change(quotas: &[QuotaArg]) -> QuotasChange {
    let mut change = QuotasChange::default();
    quotas.iter().for_each(|QuotaArg(one)| change.merge(one));
    change
}

/// Renders quotas of the API in one line.
pub(super) fn line(quotas: &Value) -> String {
    let entries = quotas.as_object().into_iter().flatten();
    entries.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

/// Returns the help of an option for quotas.
pub(super) fn help(is_offered: impl Fn(Quota) -> bool) -> String {
    let names: Vec<_> =
        Quota::ALL.into_iter().filter(|quota| is_offered(*quota)).map(Quota::as_str).collect();
    format!("Sets a quota; `NAME=none` removes it. Quotas: {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn quotas_are_parsed_and_shown_in_the_same_form() {
        let read: Vec<QuotaArg> =
            ["running=8", "weight=none"].iter().map(|text| text.parse().unwrap()).collect();
        assert_eq!(json!(change(&read)), json!({"running": 8, "weight": null}));
        assert_eq!(line(&json!({"running": 8, "plugins": 2})), "running=8 plugins=2");
        for (wrong, expected) in [
            ("running", "NAME=NUMBER"),
            ("runing=8", "there is no quota 'runing'"),
            ("running=-1", "'-1'"),
            ("weight=0", "nonzero"),
        ] {
            let error = wrong.parse::<QuotaArg>().unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
