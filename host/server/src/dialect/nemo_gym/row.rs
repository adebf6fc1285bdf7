//! A row of a collection: the request for a rollout, or for the grade of a conversation.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use super::responses;
use crate::dialect::row::{RowFields, field, rest, text_of};
use rollout_rollout::{GroupSeat, JOIN_SECS, Reset, reset_arguments};
use rollout_wire as wire;
use rollout_wire::id::RolloutId;
use rollout_wire::messages::Messages;

/// The field with the label in Gym's own data sets. It takes precedence over the usual fields.
const LABEL_FIELD: &str = "verifier_metadata";

/// Fields of a row that make up the prompt.
const PROMPT_FIELDS: [&str; 2] = ["input", "instructions"];

/// Fields of a row that belong to its collection.
const COLLECTOR_FIELDS: [&str; 3] = ["responses_create_params", "response", "agent_ref"];

/// Fields of a seed in addition to those of its row.
const SEED_FIELDS: [&str; 3] = ["resources_session_id", "episode_id", "task_id"];

/// The form of a request and of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Form {
    /// A row as it is in the data set, posted to `/run`.
    Flat,
    /// An episode request, posted to `/run`.
    Task,
    /// A row with a response, posted to `/verify`.
    Verify,
}

/// A request in its original form. The answer repeats most of it.
#[derive(Serialize, Deserialize)]
pub(super) struct Row {
    pub form: Form,
    pub body: Box<RawValue>,
}

/// The rollout that a row requests.
pub(super) struct RequestedRollout {
    pub prompt: Messages,
    pub label: Option<String>,
    pub metadata: Option<Box<RawValue>>,
    pub completion_params: Box<RawValue>,
    /// The conversation that is only graded.
    pub conversation: Option<Messages>,
    pub attempt: u32,
    /// The name that the collection gave the rollout.
    pub name: String,
}

impl Row {
    /// Reads the body of a request to `/run`.
    pub(super) fn of_run(body: &[u8]) -> Result<Self, String> {
        let row = object(body)?;
        let form = if field(row, "episode_id").is_some() { Form::Task } else { Form::Flat };
        Ok(Self { form, body: owned(row) })
    }

    /// Reads the body of a request to `/verify`.
    pub(super) fn of_verify(body: &[u8]) -> Result<Self, String> {
        Ok(Self { form: Form::Verify, body: owned(object(body)?) })
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.body.get().len()
    }

    /// Returns both identities of an episode request.
    pub(super) fn episode(&self) -> Option<(&RawValue, &RawValue)> {
        if self.form != Form::Task {
            return None;
        }
        let null = RawValue::NULL;
        let of = |path| field(self.body.get(), path).unwrap_or(null);
        Some((of("episode_id"), of("task.task_id")))
    }

    /// Returns the object with the row's own members.
    pub(super) fn members(&self) -> &str {
        match self.form {
            Form::Flat | Form::Verify => self.body.get(),
            Form::Task => field(self.body.get(), "task.task_input").map_or("{}", RawValue::get),
        }
    }

    /// Returns the parameters of the response.
    pub(super) fn params(&self) -> &str {
        field(self.members(), "responses_create_params").map_or("{}", RawValue::get)
    }

    /// Reads the rollout that the row requests. The error describes the mistake.
    pub(super) fn requested(&self, fields: &RowFields) -> Result<RequestedRollout, String> {
        let (attempt, name) = self.name()?;
        let row = self.members();
        let params =
            field(row, "responses_create_params").ok_or("the row has no 'responses_create_params'")?;
        if !params.get().starts_with('{') {
            let kind = wire::kind(params.get());
            return Err(format!("'responses_create_params' must be an object, not {kind}"));
        }
        let prompt = responses::prompt(params.get())?;
        let conversation = match self.form {
            Form::Verify => {
                let output = field(row, "response.output").ok_or("the row has no 'response.output'")?;
                Some(responses::conversation(&prompt, output.get())?)
            }
            Form::Flat | Form::Task => None,
        };
        let (data, label, hidden) = data_and_label(row, fields)?;
        Ok(RequestedRollout {
            prompt,
            label,
            metadata: metadata(params.get(), data, &hidden)?,
            completion_params: completion_params(params.get()),
            conversation,
            attempt: attempt.saturating_add(1),
            name,
        })
    }

    /// Reads the body of a request to `/seed_session` or `/close_session`.
    pub(super) fn of_seed(body: &[u8]) -> Result<Self, String> {
        Ok(Self { form: Form::Flat, body: owned(object(body)?) })
    }

    /// Returns the session id that the caller chose.
    pub(super) fn session(&self) -> Option<String> {
        field(self.body.get(), super::CHOSEN_SESSION).and_then(text_of)
    }

    /// Returns the reset with which a seed begins its episode. The arguments are those of a rollout of the same row.
    pub(super) fn reset(&self, fields: &RowFields) -> Result<Reset, String> {
        let (data, label, mut hidden) = data_and_label(self.body.get(), fields)?;
        hidden.extend(SEED_FIELDS);
        let params = field(data, "responses_create_params").filter(|params| params.get().starts_with('{'));
        let prompt = params.map(|params| responses::prompt(params.get())).transpose()?.unwrap_or_default();
        let metadata = metadata(params.map_or("{}", RawValue::get), data, &hidden)?;
        let metadata = metadata.as_deref().map(RawValue::get);
        let (seed, arguments) = reset_arguments(prompt.iter(), metadata, label.as_deref());
        Ok(Reset { seed, episode_id: self.session(), arguments })
    }

    /// Returns the row's seat among the repetitions of its task, which are a group. A verification without a place in a
    /// collection has none. The error says why there is none.
    pub(super) fn seat(&self, size: u32) -> Result<Option<GroupSeat>, String> {
        let body = self.body.get();
        let number = |path: &str| field(body, path).and_then(|at| at.get().parse::<u32>().ok());
        let attempt = match self.form {
            Form::Task => number("episode_id.attempt"),
            Form::Flat | Form::Verify => number("_ng_attempt_index"),
        };
        let indices = match self.form {
            Form::Task => {
                let id = field(body, "episode_id.rollout_id").and_then(text_of).unwrap_or_default();
                id.split_once('-').and_then(|(task, member)| Some((task.parse().ok()?, member.parse().ok()?)))
            }
            Form::Flat | Form::Verify => number("_ng_task_index").zip(number("_ng_rollout_index")),
        };
        let (task, member): (u32, u32) = match indices {
            Some(indices) => indices,
            None if self.form == Form::Verify => return Ok(None),
            None => {
                let why = "the row does not say which repetition of its task it is, and group-size is set";
                let needed = "'_ng_task_index' and '_ng_rollout_index', or a rollout_id such as '4-1'";
                return Err(format!("{why}; it needs {needed}"));
            }
        };
        let id = RolloutId::parse(format!("task-{task}-attempt-{}", attempt.unwrap_or(0)))
            .map_err(|error| error.to_string())?;
        let seat = GroupSeat { id, size, member, join_secs: JOIN_SECS };
        let why = "group-size must be the collection's number of repetitions";
        seat.check().map_err(|wrong| format!("{wrong}; {why}"))?;
        Ok(Some(seat))
    }

    /// Returns the number of earlier attempts and the name that the collection gave the rollout.
    fn name(&self) -> Result<(u32, String), String> {
        let body = self.body.get();
        let number = |path: &str| field(body, path).and_then(|at| at.get().parse::<u32>().ok());
        if self.form == Form::Task {
            let name = field(body, "episode_id.rollout_id").and_then(text_of);
            let name = name.ok_or("the row has no 'episode_id.rollout_id'")?;
            for path in ["task.task_id", "task.task_input"] {
                field(body, path).ok_or_else(|| format!("the row has no '{path}'"))?;
            }
            return Ok((number("episode_id.attempt").unwrap_or(0), name));
        }
        let attempt = number("_ng_attempt_index").unwrap_or(0);
        if let Some(name) = field(body, "_ng_rollout_id").and_then(text_of) {
            return Ok((attempt, name));
        }
        let index = |name: &str| number(name).unwrap_or(0);
        Ok((attempt, format!("{}-{}", index("_ng_task_index"), index("_ng_rollout_index"))))
    }
}

/// Returns the object with the fields of a row, its label, and the names of the fields that contain the label.
fn data_and_label<'a>(
    row: &'a str,
    fields: &'a RowFields,
) -> Result<(&'a str, Option<String>, Vec<&'a str>), String> {
    // The fields of a task may be in an object of their own.
    let data = field(row, "task_data").filter(|data| data.get().starts_with('{'));
    let data = data.map_or(row, RawValue::get);
    let (mut label, mut hidden) = fields.label(data)?;
    if fields.label.is_none() {
        hidden.push(LABEL_FIELD);
        label = field(data, LABEL_FIELD).and_then(text_of).or(label);
    }
    Ok((data, label, hidden))
}

fn object(body: &[u8]) -> Result<&str, String> {
    let text = std::str::from_utf8(body).map_err(|_| "the row is not UTF-8".to_owned())?;
    Ok(wire::object(text).map_err(|wrong| format!("the row is {wrong}"))?.get())
}

fn owned(json: &str) -> Box<RawValue> {
    // The text is part of JSON that was parsed before.
    RawValue::from_string(json.to_owned()).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

/// Returns the metadata of a row for the guests: its data without prompt and label, and the parameters without the
/// prompt.
fn metadata(params: &str, data: &str, hidden: &[&str]) -> Result<Option<Box<RawValue>>, String> {
    let is_of_collector = |name: &str| name.starts_with("_ng_") || COLLECTOR_FIELDS.contains(&name);
    let mut of_collector: Vec<String> = Vec::new();
    let read = wire::stream::members(data, |name, _: &RawValue| {
        if is_of_collector(&name) {
            of_collector.push(name.into_owned());
        }
        Ok::<(), String>(())
    });
    read.map_err(String::from)?;
    let removed: Vec<&str> = of_collector.iter().map(String::as_str).chain(hidden.iter().copied()).collect();
    let (params, data) = (rest(params, &PROMPT_FIELDS), rest(data, &removed));
    let Some(params) = params else { return Ok(data) };
    let data = data.as_deref().map_or("{}", RawValue::get);
    let (_, members) = data.split_at(1);
    let comma = if members == "}" { "" } else { "," };
    let text = format!(r#"{{"responses_create_params":{}{comma}{members}"#, params.get());
    RawValue::from_string(text).map(Some).map_err(|error| error.to_string())
}

/// Returns the parameters of an agent loop in the chat form: sampling, and the tools.
fn completion_params(params: &str) -> Box<RawValue> {
    const NAMES: [(&str, &str); 3] =
        [("temperature", "temperature"), ("top_p", "top_p"), ("max_output_tokens", "max_tokens")];
    let raw = |value: &RawValue| value.to_owned();
    let mut given: BTreeMap<&str, Box<RawValue>> =
        NAMES.iter().filter_map(|(theirs, ours)| Some((*ours, raw(field(params, theirs)?)))).collect();
    if let Some(tools) = field(params, "tools").and_then(|tools| responses::chat_tools(tools.get())) {
        given.insert("tools", tools);
    }
    // Parsed JSON cannot fail to serialize.
    to_raw_value(&given).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requested(form: Form, body: &str) -> Result<RequestedRollout, String> {
        let row = match form {
            Form::Verify => Row::of_verify(body.as_bytes()),
            Form::Flat | Form::Task => Row::of_run(body.as_bytes()),
        }?;
        assert_eq!(row.form, form, "{body}");
        row.requested(&RowFields::default())
    }

    #[test]
    fn rows_of_both_forms_ask_for_the_same_rollout() {
        let params = r#"{"input":"1+1","temperature":0.5,"tools":[{"type":"function","name":"f","parameters":{},"strict":true}]}"#;
        let flat = format!(
            r#"{{"responses_create_params":{params},"answer":2,"verifier_metadata":{{"x":1}},"level":3,"agent_ref":{{"name":"a"}},"_ng_task_index":4,"_ng_rollout_index":1,"_ng_attempt_index":2}}"#
        );
        let ids = r#""episode_id":{"rollout_id":"4-1","attempt":2},"task":{"task_id":{"taskset":"s","task_id":"1"},"#;
        let inside = format!(
            r#"{{{ids}"task_input":{{"responses_create_params":{params},"answer":2,"verifier_metadata":{{"x":1}},"level":3}}}}}}"#
        );
        let apart = format!(
            r#"{{{ids}"task_input":{{"responses_create_params":{params},"task_data":{{"answer":2,"verifier_metadata":{{"x":1}},"level":3}}}}}}}}"#
        );
        for (form, body) in [(Form::Flat, flat), (Form::Task, inside), (Form::Task, apart)] {
            let requested = requested(form, &body).unwrap();
            assert_eq!((requested.attempt, &*requested.name), (3, "4-1"));
            assert_eq!(requested.label.as_deref(), Some(r#"{"x":1}"#));
            let metadata: serde_json::Value =
                serde_json::from_str(requested.metadata.unwrap().get()).unwrap();
            assert_eq!(metadata["level"], 3);
            assert_eq!(metadata["responses_create_params"]["temperature"], 0.5);
            assert_eq!(
                metadata.as_object().unwrap().len(),
                2,
                "the label and the collector's are hidden: {metadata}"
            );
            let loop_params: serde_json::Value =
                serde_json::from_str(requested.completion_params.get()).unwrap();
            assert_eq!(loop_params["tools"][0]["function"]["name"], "f");
        }
    }

    #[test]
    fn the_repetitions_of_a_task_have_seats_in_one_group() {
        let seat = |body: &str| Row::of_run(body.as_bytes()).unwrap().seat(4);
        let check = |body: &str, id: &str, member: u32| {
            let seat = seat(body).unwrap().unwrap();
            assert_eq!((seat.id.as_str(), seat.size, seat.member), (id, 4, member), "{body}");
        };
        check(r#"{"_ng_task_index":7,"_ng_rollout_index":3}"#, "task-7-attempt-0", 3);
        let again = r#"{"_ng_task_index":7,"_ng_rollout_index":0,"_ng_attempt_index":2}"#;
        check(again, "task-7-attempt-2", 0);
        check(r#"{"episode_id":{"rollout_id":"7-3","attempt":1}}"#, "task-7-attempt-1", 3);
        let refused = |body: &str, expected: &str| {
            let error = seat(body).unwrap_err();
            assert!(error.contains(expected), "{body}: {error}");
        };
        refused(r#"{"_ng_task_index":7,"_ng_rollout_index":4}"#, "numbered from 0 to 3, and member is 4");
        refused(r#"{"_ng_task_index":7}"#, "does not say which repetition");
        refused(r#"{"episode_id":{"rollout_id":"first"}}"#, "such as '4-1'");
        assert_eq!(Row::of_verify(b"{}").unwrap().seat(4), Ok(None));
    }

    #[test]
    fn an_invalid_row_is_refused_with_the_reason() {
        let check = |form, body: &str, expected: &str| {
            let error = requested(form, body).err().unwrap();
            assert!(error.contains(expected), "{body}: {error}");
        };
        check(Form::Flat, "{}", "no 'responses_create_params'");
        check(Form::Flat, r#"{"responses_create_params":7}"#, "must be an object, not a number");
        check(Form::Flat, r#"{"responses_create_params":{}}"#, "has no 'input'");
        check(Form::Task, r#"{"episode_id":{}}"#, "no 'episode_id.rollout_id'");
        check(Form::Task, r#"{"episode_id":{"rollout_id":"a"},"task":{}}"#, "no 'task.task_id'");
        check(Form::Verify, r#"{"responses_create_params":{"input":"x"}}"#, "no 'response.output'");
        assert!(Row::of_run(b"[1]").err().unwrap().contains("not a JSON object"));
    }
}
