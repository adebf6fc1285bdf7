//! Groups of rollouts and their ratings, in the host's own types.

use super::SampleToGrade;
use crate::imports::bindings::exports::rollout::plugin::group_grader::{
    FailedMember, Group, GroupedSample, Member, Rating,
};
use crate::imports::bindings::rollout::plugin::types;

/// A group as its grader receives it.
pub struct GroupToGrade {
    /// The group's id.
    pub id: String,
    /// Number of members, including those that failed.
    pub size: u32,
    /// Members with samples, by number.
    pub members: Vec<MemberToGrade>,
    /// Numbers of the other members, each with the reason why it has no samples.
    pub failed: Vec<(u32, String)>,
}

/// A member of a group with its samples.
pub struct MemberToGrade {
    /// Its number in the group.
    pub number: u32,
    /// The id of its rollout.
    pub rollout_id: String,
    /// The ground truth.
    pub label: Option<String>,
    /// Its samples, each with its reward so far.
    pub samples: Vec<(SampleToGrade, Option<f64>)>,
}

/// A group grader's rating of one sample, unchecked.
#[derive(Debug)]
pub struct GuestRating {
    /// Number of the sample's member.
    pub member: u32,
    /// The id of the sample.
    pub sample_id: String,
    /// The reward.
    pub reward: f64,
    /// Its metrics.
    pub metrics: Vec<(String, f64)>,
}

impl From<GroupToGrade> for Group {
    fn from(GroupToGrade { id, size, members, failed }: GroupToGrade) -> Self {
        let failed = failed.into_iter().map(|(number, reason)| FailedMember { number, reason }).collect();
        Self { id, size, members: members.into_iter().map(Into::into).collect(), failed }
    }
}

impl From<MemberToGrade> for Member {
    fn from(MemberToGrade { number, rollout_id, label, samples }: MemberToGrade) -> Self {
        let sample = |(sample, reward): (SampleToGrade, Option<f64>)| {
            let SampleToGrade { id, messages, metrics } = sample;
            let metrics = metrics.into_iter().map(|(name, value)| types::Metric { name, value }).collect();
            GroupedSample { id, messages, metrics, reward }
        };
        Self { number, rollout_id, label, samples: samples.into_iter().map(sample).collect() }
    }
}

impl From<Rating> for GuestRating {
    fn from(Rating { member, sample_id, reward, metrics }: Rating) -> Self {
        let metrics = metrics.into_iter().map(|metric| (metric.name, metric.value)).collect();
        Self { member, sample_id, reward, metrics }
    }
}
