//! A sample and a failure as this protocol's callers read them.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Serialize;
use serde_json::value::RawValue;

use rollout_core::rollout::{
    ExtraFact, ExtraMember, Failure, FailureKind, Finished, FinishedSample, TrajectoryExtra,
};
use rollout_core::wire::atif::SchemaVersion;
use rollout_core::wire::messages::Messages;

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

    /// The bytes of its messages.
    pub(crate) fn message_bytes(&self) -> usize {
        self.messages.text_bytes()
    }

    /// The rollout's one sample, if it has just one. `label` goes back only where the
    /// workflow returned its messages itself, and the reward only where the grader
    /// succeeded and the sample counts.
    pub(crate) fn only(finished: &'a Finished, label: Option<&'a str>, graded: bool) -> Option<Self> {
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

/// The member that the host's own account and a caller's report both have.
pub(super) const UNMATCHED: &str = "unmatched_llm_call_metrics";

/// What this protocol's evaluators look for in a trajectory, where callers know samples by name.
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

/// The same where they do not.
static MEMBERS: LazyLock<Vec<ExtraMember>> = LazyLock::new(|| {
    let is_theirs = |member: &&ExtraMember| member.fact != ExtraFact::SampleId;
    MEMBERS_WITH_SAMPLE_ID.iter().filter(is_theirs).cloned().collect()
});

/// What goes into the trajectories of this protocol's rollouts: the request's own fields among
/// it, and the sample's name for callers that know samples by it.
pub(super) fn extra(request_fields: Option<Box<RawValue>>, samples_have_names: bool) -> TrajectoryExtra {
    TrajectoryExtra {
        // The newest release of this protocol's package, 0.3.8, refuses to upload what is newer.
        schema_version: SchemaVersion::V1_7,
        key: "osmosis".into(),
        members: if samples_have_names { MEMBERS_WITH_SAMPLE_ID } else { &MEMBERS }.into(),
        request_fields,
    }
}
