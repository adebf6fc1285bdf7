//! Additional members of the trajectories of an evaluation: the label of the row, and the reward and metrics
//! of each sample.

use rollout_rollout::{ExtraFact, ExtraMember, TrajectoryExtra};
use rollout_wire::atif::SchemaVersion;

/// The members, with the same names as in the trajectories of servers.
const MEMBERS: &[ExtraMember] = &[
    ExtraMember::of("rollout_id", ExtraFact::RolloutId),
    ExtraMember::of("label", ExtraFact::Label),
    ExtraMember::of("sample_id", ExtraFact::SampleId),
    ExtraMember::of("reward", ExtraFact::Reward),
    ExtraMember::of("sample_metrics", ExtraFact::SampleMetrics),
    ExtraMember::of("sample_extra_fields", ExtraFact::SampleFields),
    ExtraMember::of("request_metadata", ExtraFact::Metadata),
    ExtraMember::of("unmatched_llm_call_metrics", ExtraFact::UnmatchedMetrics),
];

/// Returns the members of `extra.evaluation`.
pub(crate) fn extra() -> TrajectoryExtra {
    TrajectoryExtra {
        schema_version: SchemaVersion::default(),
        key: "evaluation".into(),
        members: MEMBERS.into(),
        request_fields: None,
    }
}
