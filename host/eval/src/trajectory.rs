//! What an evaluation puts into its trajectories beside what every trajectory has: what a row was graded against,
//! and what came of it for each sample.

use rollout_core::rollout::{ExtraFact, ExtraMember, TrajectoryExtra};
use rollout_core::wire::atif::SchemaVersion;

/// The names are those that callers of servers find in theirs.
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

/// What goes under `extra.evaluation`.
pub(crate) fn extra() -> TrajectoryExtra {
    TrajectoryExtra {
        schema_version: SchemaVersion::default(),
        key: "evaluation".into(),
        members: MEMBERS.into(),
        request_fields: None,
    }
}
