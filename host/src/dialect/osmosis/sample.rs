//! A sample and a failure as this protocol's callers read them.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::rollout::{Facts, Failure, FailureKind, Finished, FinishedSample};

/// A sample on the wire.
#[derive(Serialize)]
pub(super) struct WireSample<'a> {
    messages: &'a [Box<RawValue>],
    label: Option<&'a str>,
    reward: Option<f64>,
    remove_sample: bool,
    metrics: &'a BTreeMap<String, f64>,
    extra_fields: &'a BTreeMap<String, Box<RawValue>>,
}

impl<'a> WireSample<'a> {
    /// The sample with this label and this reward.
    pub fn new(sample: &'a FinishedSample, label: Option<&'a str>, reward: Option<f64>) -> Self {
        Self {
            messages: &sample.record.messages,
            label,
            reward,
            remove_sample: sample.record.withdrawn,
            metrics: &sample.record.metrics,
            extra_fields: &sample.record.fields,
        }
    }

    /// The rollout's one sample, if it has just one. `label` goes back only where the
    /// workflow returned its messages itself, and the reward only where the grader
    /// succeeded and the sample counts.
    pub fn only(finished: &'a Finished, label: Option<&'a str>, graded: bool) -> Option<Self> {
        let [sample] = finished.samples.as_slice() else { return None };
        let reward = sample.public_reward().filter(|_| graded);
        Some(Self::new(sample, label.filter(|_| finished.returned_messages), reward))
    }
}

/// The word under which a failure is filed. Every generation knows these.
pub(super) fn category(failure: &Failure) -> &'static str {
    match failure.kind {
        FailureKind::Timeout => "timeout",
        FailureKind::Invalid | FailureKind::NoSample | FailureKind::NoReward => "validation_error",
        FailureKind::Model => "http_error",
        _ => "agent_error",
    }
}

/// What this protocol's evaluators look for in a trajectory's `extra`.
pub(super) fn trajectory(
    facts: &Facts<'_>,
    extra_fields: Option<&RawValue>,
    samples_have_names: bool,
) -> (String, Value) {
    let raw = |raw: &RawValue| serde_json::from_str::<Value>(raw.get()).unwrap_or(Value::Null);
    let mut extra = Map::new();
    extra.insert("rollout_id".to_owned(), facts.rollout_id.as_str().into());
    if let Some(label) = facts.label {
        extra.insert("label".to_owned(), label.into());
    }
    if let Some(sample) = facts.sample {
        if samples_have_names {
            extra.insert("sample_id".to_owned(), sample.record.id.as_str().into());
        }
        if let Some(reward) = sample.reward {
            extra.insert("reward".to_owned(), reward.into());
        }
        if !sample.record.metrics.is_empty() {
            extra.insert("sample_metrics".to_owned(), json!(sample.record.metrics));
        }
        if !sample.record.fields.is_empty() {
            let fields: Map<String, Value> =
                sample.record.fields.iter().map(|(name, value)| (name.clone(), raw(value))).collect();
            extra.insert("sample_extra_fields".to_owned(), fields.into());
        }
    }
    if let Some(metadata) = facts.metadata {
        extra.insert("request_metadata".to_owned(), raw(metadata));
    }
    if let Some(fields) = extra_fields {
        extra.insert("request_extra_fields".to_owned(), raw(fields));
    }
    if !facts.unmatched_metrics.is_empty() {
        extra.insert("unmatched_llm_call_metrics".to_owned(), facts.unmatched_metrics.clone().into());
    }
    ("osmosis".to_owned(), extra.into())
}
