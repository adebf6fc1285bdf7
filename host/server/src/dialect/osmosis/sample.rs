//! Samples and failures in the forms of this protocol.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use rollout_rollout::{
    ExtraFact, ExtraMember, Failure, FailureKind, Finished, FinishedSample, TrajectoryExtra,
};
use rollout_wire::atif::SchemaVersion;
use rollout_wire::messages::Messages;

/// The samples of a grader's callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Form {
    /// `samples`, by id: generation B.
    Map,
    /// `sample`: generation C.
    One,
    /// Both, for a caller of B or C: each ignores the other's field.
    Both,
}

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
    /// Creates the sample with a label and a reward.
    pub(crate) fn new(sample: &'a FinishedSample, label: Option<&'a str>, reward: Option<f64>) -> Self {
        Self {
            messages: &sample.record.messages,
            label,
            reward,
            remove_sample: sample.record.withdrawn,
            metrics: &sample.record.metrics,
            extra_fields: &sample.record.fields,
        }
    }

    /// Returns the size of its messages in bytes.
    pub(crate) fn message_bytes(&self) -> usize {
        self.messages.text_bytes()
    }

    /// Creates the rollout's sample, if the rollout has exactly one. The sample has the label only if the workflow returned
    /// its messages itself, and the reward only if the grader succeeded and the sample was not withdrawn.
    pub(crate) fn only(finished: &'a Finished, label: Option<&'a str>, graded: bool) -> Option<Self> {
        let [sample] = finished.samples.as_slice() else { return None };
        let reward = sample.public_reward().filter(|_| graded);
        Some(Self::new(sample, label.filter(|_| finished.returned_messages), reward))
    }
}

/// Returns the category of a failure. All generations have the same categories.
pub(super) fn category(failure: &Failure) -> &'static str {
    match failure.kind {
        FailureKind::Timeout => "timeout",
        FailureKind::Invalid | FailureKind::NoSample | FailureKind::NoReward => "validation_error",
        FailureKind::Model => "http_error",
        _ => "agent_error",
    }
}

/// Name of the member with the metrics of calls to which no step corresponds. The host and callers' reports both set it.
pub(super) const UNMATCHED: &str = "unmatched_llm_call_metrics";

/// Fields for this protocol's evaluators in a trajectory, if callers know samples by name.
const MEMBERS_WITH_SAMPLE_ID: &[ExtraMember] = &[
    ExtraMember::of("rollout_id", ExtraFact::RolloutId),
    ExtraMember::of("label", ExtraFact::Label),
    ExtraMember::of("sample_id", ExtraFact::SampleId),
    ExtraMember::of("reward", ExtraFact::Reward),
    ExtraMember::of("sample_metrics", ExtraFact::SampleMetrics),
    ExtraMember::of("sample_extra_fields", ExtraFact::SampleFields),
    ExtraMember::of("request_metadata", ExtraFact::Metadata),
    ExtraMember::of("request_extra_fields", ExtraFact::RequestFields),
    ExtraMember::of(UNMATCHED, ExtraFact::UnmatchedMetrics),
];

/// Fields for this protocol's evaluators in a trajectory, if callers do not know samples by name.
static MEMBERS: LazyLock<Vec<ExtraMember>> = LazyLock::new(|| {
    let is_known = |member: &&ExtraMember| member.fact != ExtraFact::SampleId;
    MEMBERS_WITH_SAMPLE_ID.iter().filter(is_known).cloned().collect()
});

/// Returns the extra data of this protocol's trajectories: the request's own fields, and the sample's name for callers
/// that know samples by name.
pub(super) fn extra(request_fields: Option<Box<RawValue>>, samples_have_names: bool) -> TrajectoryExtra {
    TrajectoryExtra {
        // The newest release of this protocol's package, 0.3.8, does not upload newer versions.
        schema_version: SchemaVersion::V1_7,
        key: "osmosis".into(),
        members: if samples_have_names { MEMBERS_WITH_SAMPLE_ID } else { &MEMBERS }.into(),
        request_fields,
    }
}
