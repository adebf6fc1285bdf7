//! Arguments and results of an episode of an environment.

#![expect(clippy::disallowed_types, reason = "a request is limited in size, and its arguments are changed")]

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use rollout_guest::instance::EpisodeOutcome;
use rollout_wire::openai::content_text;

/// Arguments of a reset that have a label, which only a grader may see.
const LABELS: [&str; 3] = ["ground_truth", "label", "answer"];

/// Result of a reset or a step, checked.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The observation: an object, or the result of a tool.
    pub observation: Box<RawValue>,
    /// The finite reward.
    pub reward: Option<f64>,
    /// Whether the episode has ended.
    pub done: bool,
    /// Data for people, an object.
    pub metadata: Option<Box<RawValue>>,
}

impl Observed {
    /// Returns the observation as text for a model or a person: a string as it is, the string `text` of an object
    /// without other members, and any other value as JSON.
    pub fn text(&self) -> String {
        let value = serde_json::from_str(self.observation.get());
        match value {
            Ok(Value::String(text)) => text,
            Ok(Value::Object(mut members)) if members.len() == 1 => match members.remove("text") {
                Some(Value::String(text)) => text,
                _ => self.observation.get().to_owned(),
            },
            _ => self.observation.get().to_owned(),
        }
    }
}

/// Fields of a message that the arguments of a reset are taken from.
#[derive(Deserialize)]
pub(crate) struct MessagePart<'a> {
    #[serde(borrow)]
    pub role: std::borrow::Cow<'a, str>,
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
}

impl<'a> MessagePart<'a> {
    pub(crate) fn read(message: &'a str) -> Option<Self> {
        serde_json::from_str(message).ok()
    }
}

/// Returns the seed and the arguments of a reset for a row of a data set. The arguments are the member `task` of the
/// metadata if there is one, and otherwise all metadata and `user_prompt`, the text of the user's last message. The
/// argument `ground_truth` is the label.
pub fn reset_arguments<'a>(
    prompt: impl DoubleEndedIterator<Item = &'a str>,
    metadata: Option<&str>,
    label: Option<&str>,
) -> (Option<u64>, Map<String, Value>) {
    let metadata = metadata.and_then(|metadata| serde_json::from_str(metadata).ok());
    let mut arguments: Map<String, Value> = metadata.unwrap_or_default();
    let seed = arguments.get("seed").and_then(Value::as_u64);
    if let Some(Value::Object(task)) = arguments.get_mut("task") {
        arguments = std::mem::take(task);
    } else {
        arguments.remove("seed");
        let mut messages = prompt.rev().filter_map(MessagePart::read);
        let last = messages.find(|message| message.role == "user").and_then(|message| message.content);
        if let Some(content) = last {
            let text = content_text(content.get()).into_owned();
            arguments.entry("user_prompt").or_insert(text.into());
        }
    }
    if let Some(label) = label {
        arguments.entry("ground_truth").or_insert(label.into());
    }
    (seed, arguments)
}

/// Removes the labels from the arguments of a reset, and returns the first.
pub fn take_label(arguments: &mut Map<String, Value>) -> Option<String> {
    let mut labels: Vec<Value> = LABELS.iter().filter_map(|name| arguments.remove(*name)).collect();
    if let Some(Value::Object(metadata)) = arguments.get_mut("metadata") {
        labels.extend(metadata.remove("ground_truth"));
    }
    labels.into_iter().find(|label| !label.is_null()).map(|label| match label {
        Value::String(text) => text,
        other => other.to_string(),
    })
}

/// Checks the result of a reset or a step.
pub(crate) fn checked(outcome: EpisodeOutcome, is_object: bool) -> Result<Observed, String> {
    let EpisodeOutcome { observation, reward, done, metadata } = outcome;
    let read = |what: &str, text: &str, is_object: bool| {
        let value = if is_object { rollout_wire::object(text) } else { rollout_wire::value(text) };
        value.map(ToOwned::to_owned).map_err(|error| format!("the environment gave {what} that is {error}"))
    };
    let observation = read("an observation", &observation, is_object)?;
    let metadata = metadata.map(|metadata| read("metadata", &metadata, true)).transpose()?;
    if let Some(reward) = reward.filter(|reward| !reward.is_finite()) {
        return Err(format!("the environment gave the reward {reward}, which is not a finite number"));
    }
    Ok(Observed { observation, reward, done, metadata })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_observation_is_shown_as_its_text_or_as_json() {
        let check = |observation: &str, expected: &str| {
            let observation = RawValue::from_string(observation.to_owned()).unwrap();
            let observed = Observed { observation, reward: None, done: false, metadata: None };
            assert_eq!(observed.text(), expected);
        };
        check(r#""a \"text\"""#, r#"a "text""#);
        check(r#"{"text": "a text"}"#, "a text");
        check(r#"{"text": "a text", "left": 2}"#, r#"{"text": "a text", "left": 2}"#);
        check(r#"{"text": 3}"#, r#"{"text": 3}"#);
        check("[1]", "[1]");
    }

    #[test]
    fn arguments_of_a_reset_come_from_the_task_or_the_row() {
        let check = |metadata: Value, label: Option<&str>, seed: Option<u64>, expected: Value| {
            let prompt = [r#"{"role": "system", "content": "s"}"#, r#"{"role": "user", "content": "u"}"#];
            let made = reset_arguments(prompt.into_iter(), Some(&metadata.to_string()), label);
            assert_eq!(made, (seed, expected.as_object().cloned().unwrap()));
        };
        check(json!({"id": 1, "seed": 7}), None, Some(7), json!({"id": 1, "user_prompt": "u"}));
        check(json!({"task": {"x": 1, "seed": 2}}), None, None, json!({"x": 1, "seed": 2}));
        check(json!({"task": {"x": 1}, "seed": 3}), Some("l"), Some(3), json!({"x": 1, "ground_truth": "l"}));
        check(
            json!({"task": "name"}),
            Some("l"),
            None,
            json!({"task": "name", "user_prompt": "u", "ground_truth": "l"}),
        );
        check(json!([]), None, None, json!({"user_prompt": "u"}));
    }

    #[test]
    fn the_label_is_taken_out_of_the_arguments() {
        let check = |arguments: Value, label: Option<&str>, left: Value| {
            let Value::Object(mut arguments) = arguments else { panic!("an object") };
            assert_eq!(take_label(&mut arguments).as_deref(), label);
            assert_eq!(Value::Object(arguments), left);
        };
        check(json!({"a": 1}), None, json!({"a": 1}));
        check(json!({"a": 1, "ground_truth": "7"}), Some("7"), json!({"a": 1}));
        check(json!({"label": 7, "answer": "8"}), Some("7"), json!({}));
        check(json!({"ground_truth": null, "answer": "8"}), Some("8"), json!({}));
        let row = json!({"metadata": {"ground_truth": "7", "id": "x"}});
        check(row, Some("7"), json!({"metadata": {"id": "x"}}));
    }

    #[test]
    fn results_of_environments_are_checked() {
        let check = |observation: &str, reward, is_object, expected: &str| {
            let outcome =
                EpisodeOutcome { observation: observation.to_owned(), reward, done: false, metadata: None };
            let error = checked(outcome, is_object).err().unwrap_or_default();
            assert!(error.contains(expected) && error.is_empty() == expected.is_empty(), "{error}");
        };
        check("{}", Some(1.0), true, "");
        check("3", None, false, "");
        check("3", None, true, "gave an observation that is not a JSON object but a number");
        check("{", None, true, "gave an observation that is not valid JSON");
        check("{}", Some(f64::NAN), true, "gave the reward NaN, which is not a finite number");
        check("{}", Some(f64::INFINITY), true, "not a finite number");
    }
}
