//! The answer to a row: its result or its failure.

use axum::body::Bytes;
use serde::Serialize;
use serde::ser::SerializeMap;
use serde_json::value::RawValue;

use super::responses::{self, Output, ResponseObject};
use super::row::{Form, Row};
use rollout_rollout::{Failure, FailureKind, Finished, Outcome, SampleTokens, Stage};
use rollout_wire::messages::Messages;
use rollout_wire::stream;
use rollout_wire::text::beginning;
use rollout_wire::{self as wire};

/// Maximum size of the text of a failure in bytes.
const REASON_BYTES_MAX: usize = 2000;

/// Members of a result that the row and the metrics cannot replace.
const RESULT_MEMBERS: [&str; 6] =
    ["reward", "response", "reward_components", "mask_sample", "failure_kind", "failure_reason"];

/// The failure of a row.
#[derive(Debug)]
pub(super) struct RowFailure {
    class: String,
    stage: &'static str,
    reason: String,
    /// Whether every other attempt would fail as well.
    is_terminal: bool,
}

impl RowFailure {
    /// Returns the failure of a row that cannot be read, or that this server cannot run.
    pub(super) fn of_row(reason: impl Into<String>) -> Self {
        Self {
            class: "agent_request_failed".to_owned(),
            stage: "admission",
            reason: reason.into(),
            is_terminal: true,
        }
    }

    /// Returns the failure of a row for which there was no room.
    pub(super) fn of_admission(reason: impl Into<String>) -> Self {
        Self { class: "admission".to_owned(), stage: "admission", reason: reason.into(), is_terminal: false }
    }

    /// Returns the failure of a row whose rollout was dropped.
    pub(super) fn of_host() -> Self {
        let reason = "the host aborted the rollout".to_owned();
        Self { class: "shutdown".to_owned(), stage: "agent", reason, is_terminal: false }
    }

    /// Returns the failure of a verification whose episode has no reward.
    pub(super) fn of_session(reason: impl Into<String>) -> Self {
        Self {
            class: "session_lost".to_owned(),
            stage: "verification",
            reason: reason.into(),
            is_terminal: false,
        }
    }

    pub(super) fn of(failure: &Failure) -> Self {
        let is_grader = failure.stage == Stage::Grader;
        let class = match failure.kind {
            FailureKind::Timeout if !is_grader => "agent_timeout".to_owned(),
            FailureKind::Judge => "judge_failed".to_owned(),
            FailureKind::Model => "provider_unavailable".to_owned(),
            FailureKind::Cancelled => "shutdown".to_owned(),
            FailureKind::Error if !is_grader => "agent_run_error".to_owned(),
            _ if is_grader => "verifier_error".to_owned(),
            kind => format!("rollout_host:{}", kind.as_str()),
        };
        let (reason, is_terminal) = match failure.kind {
            FailureKind::NotGraded => {
                let reason = "the plugin has no grader, so there is no reward; add one, or start the server with --grader";
                (reason.to_owned(), true)
            }
            kind => (format!("{}: {}", kind.as_str(), failure.reason), false),
        };
        Self { class, stage: if is_grader { "verification" } else { "agent" }, reason, is_terminal }
    }

    /// Returns the body of an answer with the status 200. Any other status would end the whole collection.
    pub(super) fn body(&self, row: Option<&Row>) -> Bytes {
        let reason = beginning(&self.reason, REASON_BYTES_MAX);
        if let Some(row) = row.filter(|row| row.form == Form::Verify) {
            let masked = Masked { row, failure: self, reason: &reason };
            return wire::json_with(&masked, row.memory_bytes());
        }
        let body = match row.and_then(Row::episode) {
            None => serde_json::to_vec(&serde_json::json!({
                "_ng_failure_class": self.class,
                "_ng_failure_terminal": self.is_terminal,
                "_ng_failure_message": reason,
            })),
            Some((episode_id, task_id)) => serde_json::to_vec(&TaskFailure {
                episode_id,
                task_id,
                failure: serde_json::json!({
                    "failure_reason": reason,
                    "terminal": self.is_terminal,
                    "failure_kind": self.class,
                    "stage": self.stage,
                }),
            }),
        };
        body.map(Bytes::from).unwrap_or_default()
    }
}

/// An episode without a result.
#[derive(Serialize)]
struct TaskFailure<'a> {
    episode_id: &'a RawValue,
    task_id: &'a RawValue,
    failure: serde_json::Value,
}

/// A verification without a reward. The form requires a reward, so the result is masked.
struct Masked<'a> {
    row: &'a Row,
    failure: &'a RowFailure,
    reason: &'a str,
}

impl Serialize for Masked<'_> {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut result = to.serialize_map(None)?;
        repeat(self.row, &mut result)?;
        result.serialize_entry("reward", &0.0)?;
        result.serialize_entry("mask_sample", &true)?;
        result.serialize_entry("failure_kind", &self.failure.class)?;
        result.serialize_entry("failure_reason", &self.reason)?;
        result.end()
    }
}

/// Renders the answer to the verification of an episode with a reward of its environment.
pub(super) fn rated_by_environment(row: &Row, reward: f64) -> Bytes {
    wire::json_with(&RatedByEnvironment { row, reward }, row.memory_bytes())
}

struct RatedByEnvironment<'a> {
    row: &'a Row,
    reward: f64,
}

impl Serialize for RatedByEnvironment<'_> {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut result = to.serialize_map(None)?;
        repeat(self.row, &mut result)?;
        result.serialize_entry("reward", &self.reward)?;
        result.serialize_entry("mask_sample", &false)?;
        result.serialize_entry("failure_kind", &None::<()>)?;
        result.serialize_entry("failure_reason", &None::<()>)?;
        result.end()
    }
}

/// The facts of an answer that are not in its row.
pub(super) struct Answered<'a> {
    pub row: &'a Row,
    pub id: &'a str,
    pub model: &'a str,
    pub tokens: &'a SampleTokens,
    pub at_secs: u64,
}

/// Renders the answer to the row of a finished rollout.
pub(super) fn body(answered: &Answered<'_>, finished: &Finished) -> Bytes {
    let row = answered.row;
    let withdrawn = finished.samples.first().filter(|sample| sample.record.withdrawn);
    let (reward, withdrawn) = match &finished.outcome {
        Outcome::Scored { reward } => (*reward, false),
        Outcome::Unscored(failure) => match withdrawn.filter(|_| failure.kind == FailureKind::Withdrawn) {
            Some(sample) => (sample.reward.unwrap_or(0.0), true),
            None => return RowFailure::of(failure).body(Some(row)),
        },
    };
    let none = Messages::default();
    let messages = finished.samples.first().map_or(&none, |sample| &sample.record.messages);
    let prompt = responses::prompt(row.params()).unwrap_or_default();
    let from = responses::first_after_prompt(messages, &prompt);
    let output = Output { messages, from, tokens: &answered.tokens.replies };
    // A trainer cannot use a sample that has the tokens of only some replies.
    let lacks_tokens = answered.tokens.is_observed && output.lacks_tokens();
    let reason = match (withdrawn, lacks_tokens) {
        (true, _) => Some("the grader withdrew the sample"),
        (false, true) => Some("the tokens of a reply are unknown, because the workflow changed it"),
        (false, false) => None,
    };
    let usage = &finished.usage;
    let response = ResponseObject {
        id: answered.id,
        created_at: answered.at_secs,
        model: answered.model,
        params: row.params(),
        output,
        input_tokens: usage.prompt_tokens,
        output_tokens: usage.completion_tokens,
    };
    let response = (row.form != Form::Verify).then_some(response);
    let result = RowResult { finished, row, reward, is_masked: reason.is_some(), reason, response };
    let bytes = messages.text_bytes() + row.memory_bytes() + answered.tokens.memory_bytes();
    match row.episode() {
        None => wire::json_with(&result, bytes),
        Some((episode_id, task_id)) => wire::json_with(&TaskResult { episode_id, task_id, result }, bytes),
    }
}

#[derive(Serialize)]
struct TaskResult<'a> {
    episode_id: &'a RawValue,
    task_id: &'a RawValue,
    result: RowResult<'a>,
}

/// The result of a row: its own members, the response, the reward and the metrics.
struct RowResult<'a> {
    finished: &'a Finished,
    row: &'a Row,
    reward: f64,
    is_masked: bool,
    reason: Option<&'static str>,
    /// The response. `None` for a verification, whose row contains it.
    response: Option<ResponseObject<'a>>,
}

/// Writes the row's members that a result repeats, and returns their names.
fn repeat<M: SerializeMap>(row: &Row, result: &mut M) -> Result<Vec<String>, M::Error> {
    let is_verify = row.form == Form::Verify;
    let mut names: Vec<String> = Vec::new();
    let written = stream::members(row.members(), |name, value: &RawValue| {
        // A verification repeats its response, and the collector adds its members again. A name may occur twice in a row,
        // but not in a result.
        let is_of_collector = name.starts_with("_ng_") || name.starts_with("ng_") || name == "agent_ref";
        let is_replaced = RESULT_MEMBERS.contains(&&*name) && !(is_verify && name == "response");
        if !is_replaced && (is_verify || !is_of_collector) && !names.iter().any(|other| *other == name) {
            result.serialize_entry(&name, value)?;
            names.push(name.into_owned());
        }
        Ok(())
    });
    written.map_err(stream::Stopped::ser)?;
    Ok(names)
}

impl Serialize for RowResult<'_> {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut result = to.serialize_map(None)?;
        let names = repeat(self.row, &mut result)?;
        let is_reserved = |name: &str| {
            RESULT_MEMBERS.contains(&name) || name.starts_with("_ng_") || name.starts_with("ng_")
        };
        for (name, value) in self.finished.metrics() {
            if !is_reserved(&name) && !names.contains(&name) {
                result.serialize_entry(&name, &value)?;
            }
        }
        result.serialize_entry("reward", &self.reward)?;
        result.serialize_entry("mask_sample", &self.is_masked)?;
        result.serialize_entry("failure_kind", &None::<()>)?;
        result.serialize_entry("failure_reason", &self.reason)?;
        if let Some(response) = &self.response {
            result.serialize_entry("response", response)?;
        }
        result.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_has_the_form_of_its_row_and_never_a_reward() {
        let failure = || RowFailure::of_admission("full");
        let json = |row: Option<&Row>| -> serde_json::Value {
            serde_json::from_slice(&failure().body(row)).unwrap()
        };
        let flat = json(None);
        assert_eq!(
            (&flat["_ng_failure_class"], &flat["_ng_failure_terminal"]),
            (&"admission".into(), &false.into())
        );
        assert!(flat.get("reward").is_none());
        let task = Row::of_run(br#"{"episode_id":{"rollout_id":"0-0"},"task":{"task_id":{"task_id":"1"}}}"#)
            .unwrap();
        let task = json(Some(&task));
        assert_eq!(
            (&task["episode_id"]["rollout_id"], &task["failure"]["stage"]),
            (&"0-0".into(), &"admission".into())
        );
        assert!(task.get("result").is_none());
        let verify = Row::of_verify(br#"{"response":{"id":"r"},"reward":7,"x":1,"x":2}"#).unwrap();
        let verify = json(Some(&verify));
        assert_eq!((&verify["mask_sample"], &verify["failure_reason"]), (&true.into(), &"full".into()));
        assert_eq!((&verify["response"]["id"], &verify["x"]), (&"r".into(), &1.into()));
    }
}
