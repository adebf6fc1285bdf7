//! Rows of a trainer's data set: the prompt, the label and the metadata of a rollout.
//!
//! Some protocols pass a row exactly as it is in the data set, including the label. [`RowFields`] names the fields. The label
//! is removed from everything that the workflow sees.

use std::str::FromStr;

use serde_json::value::{RawValue, to_raw_value};

use rollout_rollout::{ExtraFact, ExtraMember};
use rollout_wire::messages::Messages;
use rollout_wire::metadata::RowMetadata;
use rollout_wire::{self as wire, stream};

/// The members of a trajectory that protocols with rows add.
pub(super) const TRAJECTORY_MEMBERS: &[ExtraMember] = &[
    ExtraMember::of("rollout_id", ExtraFact::RolloutId),
    ExtraMember::of("label", ExtraFact::Label),
    ExtraMember::of("reward", ExtraFact::Reward),
    ExtraMember::of("metrics", ExtraFact::SampleMetrics),
    ExtraMember::of("metadata", ExtraFact::Metadata),
];

/// Usual names of the prompt's field, in the order in which they are tried.
const PROMPT_FIELDS: [&str; 4] = ["prompt", "messages", "question", "problem"];

/// Usual names of the label's field, in the order in which they are tried.
const LABEL_FIELDS: [&str; 5] =
    ["ground_truth", "reward_model.ground_truth", "expected_answer", "answer", "label"];

/// Field with a system message that precedes the prompt.
const SYSTEM_FIELD: &str = "system_prompt";

/// Maximum number of messages of a prompt.
const MESSAGES_MAX: usize = 100_000;

/// The fields of a row. A field that is not configured is looked for under the usual names.
#[derive(Clone, Debug, Default)]
pub struct RowFields {
    /// The field with the prompt: a text or a list of messages.
    pub prompt: Option<FieldPath>,
    /// The field with the label.
    pub label: Option<FieldPath>,
}

/// The path of a field in a row, such as `reward_model.ground_truth`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldPath(String);

/// Error of a text that is not the path of a field.
#[derive(Clone, Debug, thiserror::Error)]
#[error("'{0}' has an empty name; write a path such as 'answer' or 'reward_model.ground_truth'")]
pub struct InvalidFieldPath(String);

impl FromStr for FieldPath {
    type Err = InvalidFieldPath;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split('.').any(str::is_empty) {
            true => Err(InvalidFieldPath(text.to_owned())),
            false => Ok(Self(text.to_owned())),
        }
    }
}

/// The parts of a rollout that a row has.
#[derive(Debug)]
pub(super) struct MappedRow {
    /// The prompt.
    pub prompt: Messages,
    /// The label.
    pub label: Option<String>,
    /// The rest of the row, without the prompt and the label.
    pub metadata: Option<RowMetadata>,
}

impl RowFields {
    /// Reads a row: an object, or a text that is only the prompt. The error describes the mistake.
    pub(super) fn read(&self, row: &str) -> Result<MappedRow, String> {
        let row = wire::value(row).map_err(|wrong| format!("the row is {wrong}"))?.get();
        if row.starts_with('"') {
            let prompt = messages("the row", row)?;
            return Ok(MappedRow { prompt, label: None, metadata: None });
        }
        if !row.starts_with('{') {
            return Err(format!("the row must be an object or a text, not {}", wire::kind(row)));
        }
        let prompt_field = self.prompt_field(row)?;
        let value = field(row, &prompt_field).map_or("null", RawValue::get);
        let prompt = with_system(row, messages(&format!("'{prompt_field}'"), value)?)?;
        let (label, hidden) = self.label(row)?;
        let removed: Vec<&str> = [&*prompt_field, SYSTEM_FIELD].into_iter().chain(hidden).collect();
        Ok(MappedRow { prompt, label, metadata: rest(row, &removed).map(RowMetadata::from) })
    }

    /// Returns the label of a row, and the fields that only the grader may see. Without a configured field, these are all
    /// usual fields of a label, because another one of them may contain the same answer.
    pub(super) fn label<'a>(&'a self, row: &str) -> Result<(Option<String>, Vec<&'a str>), String> {
        if let Some(FieldPath(path)) = &self.label {
            let label = field(row, path).and_then(text_of);
            let label = label.ok_or_else(|| format!("the row has no '{path}', the field of the label"))?;
            return Ok((Some(label), vec![path]));
        }
        let label = LABEL_FIELDS.iter().find_map(|path| field(row, path).and_then(text_of));
        Ok((label, LABEL_FIELDS.to_vec()))
    }

    fn prompt_field(&self, row: &str) -> Result<String, String> {
        if let Some(FieldPath(path)) = &self.prompt {
            return match field(row, path) {
                Some(_) => Ok(path.clone()),
                None => Err(format!("the row has no '{path}', the field of the prompt")),
            };
        }
        let found = PROMPT_FIELDS.iter().find(|path| field(row, path).is_some());
        found.map(|path| (*path).to_owned()).ok_or_else(|| {
            format!("the row has no prompt: none of {} is in it; name its field", PROMPT_FIELDS.join(", "))
        })
    }
}

/// Returns the value at a path, if it is not null. Of several members with the same name the last counts, as in other JSON
/// readers.
pub(super) fn field<'a>(object: &'a str, path: &str) -> Option<&'a RawValue> {
    let (first, deeper) = path.split_once('.').map_or((path, None), |(first, deeper)| (first, Some(deeper)));
    let mut found = None;
    let read = stream::members(object, |name, value: &RawValue| {
        if name == first {
            found = Some(value);
        }
        Ok::<(), std::convert::Infallible>(())
    });
    let found: &RawValue = found.filter(|_| read.is_ok())?;
    match deeper {
        Some(deeper) => field(found.get(), deeper),
        None => Some(found).filter(|value| value.get() != "null"),
    }
}

/// Returns a text as it is, and another value as its JSON.
pub(super) fn text_of(value: &RawValue) -> Option<String> {
    Some(stream::text(value.get()).map_or_else(|| value.get().to_owned(), |text| text.into_owned()))
}

/// Returns an object without the fields at these paths; `None` if nothing is left.
pub(super) fn rest(object: &str, removed: &[&str]) -> Option<Box<RawValue>> {
    let mut kept = String::from("{");
    let read = stream::members(object, |name, value: &RawValue| {
        if removed.contains(&&*name) {
            return Ok(());
        }
        let deeper: Vec<&str> =
            removed.iter().filter_map(|path| path.strip_prefix(&*name)?.strip_prefix('.')).collect();
        let is_searched = !deeper.is_empty() && value.get().starts_with('{');
        let inner = if is_searched { rest(value.get(), &deeper) } else { None };
        if is_searched && inner.is_none() {
            return Ok(());
        }
        if kept.len() > 1 {
            kept.push(',');
        }
        kept.push_str(to_raw_value(&name)?.get());
        kept.push(':');
        kept.push_str(inner.as_deref().unwrap_or(value).get());
        Ok::<(), serde_json::Error>(())
    });
    read.ok()?;
    kept.push('}');
    if kept.len() == 2 { None } else { RawValue::from_string(kept).ok() }
}

/// Reads a prompt: a text becomes one message of the user.
fn messages(what: &str, value: &str) -> Result<Messages, String> {
    let mut prompt = Messages::default();
    if let Some(text) = stream::text(value) {
        prompt.push(&message("user", &text));
        return Ok(prompt);
    }
    if !value.starts_with('[') {
        return Err(format!("{what} must be a text or a list of messages, not {}", wire::kind(value)));
    }
    let read = stream::each(value, |message: &RawValue| {
        let at = prompt.len();
        if at == MESSAGES_MAX {
            return Err(format!("{what} has more than {MESSAGES_MAX} messages"));
        }
        prompt.push(wire::object(message.get()).map_err(|wrong| format!("{what}[{at}] is {wrong}"))?);
        Ok(())
    });
    read.map_err(String::from)?;
    match prompt.is_empty() {
        true => Err(format!("{what} has no message")),
        false => Ok(prompt),
    }
}

/// Adds the row's system message, unless the prompt begins with one.
fn with_system(row: &str, prompt: Messages) -> Result<Messages, String> {
    let Some(system) = field(row, SYSTEM_FIELD) else { return Ok(prompt) };
    let text = stream::text(system.get())
        .ok_or_else(|| format!("'{SYSTEM_FIELD}' must be a text, not {}", wire::kind(system.get())))?;
    let is_system = |first: &str| field(first, "role").is_some_and(|role| role.get() == r#""system""#);
    if prompt.get(0).is_some_and(is_system) {
        return Ok(prompt);
    }
    let mut all = Messages::default();
    all.push(&message("system", &text));
    all.append(prompt);
    Ok(all)
}

/// Returns a message with this text.
pub(super) fn message(role: &str, text: &str) -> Box<RawValue> {
    #[derive(serde::Serialize)]
    struct Message<'a> {
        role: &'a str,
        content: &'a str,
    }
    // Texts cannot fail to serialize.
    to_raw_value(&Message { role, content: text }).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(prompt: Option<&str>, label: Option<&str>) -> RowFields {
        let path = |text: &str| text.parse().unwrap();
        RowFields { prompt: prompt.map(path), label: label.map(path) }
    }

    #[test]
    fn a_row_becomes_prompt_label_and_metadata() {
        fn check(
            fields: &RowFields,
            row: &str,
            prompt: &[&str],
            label: Option<&str>,
            metadata: Option<&str>,
        ) {
            let mapped = fields.read(row).unwrap();
            assert_eq!(mapped.prompt.iter().collect::<Vec<_>>(), prompt, "{row}");
            assert_eq!(mapped.label.as_deref(), label, "{row}");
            assert_eq!(mapped.metadata.as_ref().map(|metadata| metadata.public().get()), metadata, "{row}");
        }
        let usual = RowFields::default();
        let user = r#"{"role":"user","content":"1+1"}"#;
        check(&usual, r#""1+1""#, &[user], None, None);
        check(&usual, r#"{"prompt":"1+1","answer":2}"#, &[user], Some("2"), None);
        check(
            &usual,
            r#"{"question":"1+1","ground_truth":"2","answer":"2","data_id": 7}"#,
            &[user],
            Some("2"),
            Some(r#"{"data_id":7}"#),
        );
        check(
            &usual,
            r#"{"prompt":[{"role":"user","content":"1+1"}],"reward_model":{"style":"rule","ground_truth":"2"}}"#,
            &[user],
            Some("2"),
            Some(r#"{"reward_model":{"style":"rule"}}"#),
        );
        check(
            &usual,
            r#"{"system_prompt":"s","prompt":"1+1","x":null}"#,
            &[r#"{"role":"system","content":"s"}"#, user],
            None,
            Some(r#"{"x":null}"#),
        );
        check(
            &fields(Some("a.b"), Some("c.d")),
            r#"{"a":{"b":"1+1","e":1},"c":{"d":{"x":1}},"answer":"kept"}"#,
            &[user],
            Some(r#"{"x":1}"#),
            Some(r#"{"a":{"e":1},"answer":"kept"}"#),
        );
    }

    #[test]
    fn an_invalid_row_is_refused_with_the_reason() {
        fn check(fields: &RowFields, row: &str, expected: &str) {
            let error = fields.read(row).unwrap_err();
            assert!(error.contains(expected), "{row}: {error}");
        }
        let usual = RowFields::default();
        check(&usual, "7", "must be an object or a text, not a number");
        check(&usual, r#"{"x":1}"#, "none of prompt, messages, question, problem is in it");
        check(&usual, r#"{"prompt":7}"#, "'prompt' must be a text or a list of messages, not a number");
        check(&usual, r#"{"prompt":[]}"#, "'prompt' has no message");
        check(&usual, r#"{"prompt":["x"]}"#, "'prompt'[0] is not a JSON object but a string");
        check(&usual, r#"{"prompt":"x","system_prompt":1}"#, "'system_prompt' must be a text");
        check(&fields(Some("q"), None), r#"{"prompt":"x"}"#, "no 'q', the field of the prompt");
        check(&fields(None, Some("a.b")), r#"{"prompt":"x","a":{}}"#, "no 'a.b', the field of the label");
        assert!("a..b".parse::<FieldPath>().is_err() && "".parse::<FieldPath>().is_err());
    }
}
