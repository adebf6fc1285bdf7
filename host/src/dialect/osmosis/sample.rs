//! A sample and a failure as this protocol's callers read them.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::value::RawValue;

use crate::rollout::{Facts, Failure, FailureKind, Finished, FinishedSample, Member, TrajectoryExtra};
use crate::wire::atif::SchemaVersion;
use crate::wire::messages::Messages;

/// A sample on the wire.
#[derive(Serialize)]
pub(super) struct WireSample<'a> {
    messages: &'a Messages,
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

/// What this protocol's evaluators look for in a trajectory.
pub(super) struct Extra {
    /// The request's own fields.
    pub fields: Option<Box<RawValue>>,
    /// Whether its callers know samples by name.
    pub samples_have_names: bool,
}

/// The member that the host's own account and a caller's report both have.
pub(super) const UNMATCHED: &str = "unmatched_llm_call_metrics";

impl TrajectoryExtra for Extra {
    /// The newest release of this protocol's package, 0.3.8, refuses to upload what is newer.
    fn schema_version(&self) -> SchemaVersion {
        SchemaVersion::V1_7
    }

    fn key(&self) -> &'static str {
        "osmosis"
    }

    fn members(&self, facts: &Facts<'_>, member: &mut dyn FnMut(&'static str, Member<'_>)) {
        member("rollout_id", Member::Text(facts.rollout_id.as_str()));
        if let Some(label) = facts.label {
            member("label", Member::Text(label));
        }
        if let Some(sample) = facts.sample {
            if self.samples_have_names {
                member("sample_id", Member::Text(sample.record.id.as_str()));
            }
            if let Some(reward) = sample.reward {
                member("reward", Member::Number(reward));
            }
            if !sample.record.metrics.is_empty() {
                member("sample_metrics", Member::Metrics(&sample.record.metrics));
            }
            if !sample.record.fields.is_empty() {
                member("sample_extra_fields", Member::Fields(&sample.record.fields));
            }
        }
        if let Some(metadata) = facts.metadata {
            member("request_metadata", Member::Raw(metadata));
        }
        if let Some(fields) = &self.fields {
            member("request_extra_fields", Member::Raw(fields));
        }
        if let Some(unmatched) = facts.unmatched_metrics {
            member(UNMATCHED, unmatched);
        }
    }
}
