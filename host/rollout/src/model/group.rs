//! Groups of rollouts whose samples are rated together.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::failure::Failure;
use rollout_wire::data::{exact, exact_option};
use rollout_wire::id::{RolloutId, SampleId};

/// Maximum number of members of a group.
pub const GROUP_SIZE_MAX: u32 = 128;

/// Default of [`GroupSeat::join_secs`].
pub const JOIN_SECS: u32 = 600;

/// Maximum of [`GroupSeat::join_secs`].
const JOIN_SECS_MAX: u32 = 3600;

/// Seat of a rollout in a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupSeat {
    /// The group's id, which is unique among the groups of a plugin.
    pub id: RolloutId,
    /// Number of members.
    pub size: u32,
    /// Number of the member, from 0.
    pub member: u32,
    /// Seconds for which the group waits for members that no request began. The first member's value applies to all.
    pub join_secs: u32,
}

/// Error of a seat that cannot exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidSeat {
    /// The size is out of range.
    #[error("a group has 1 to {GROUP_SIZE_MAX} members, and size is {0}")]
    Size(u32),
    /// The time to join is out of range.
    #[error("a group waits 1 to {JOIN_SECS_MAX} seconds for its members, and join_timeout_sec is {0}")]
    JoinSecs(u32),
    /// The member is outside of the group.
    #[error("members of a group of {size} are numbered from 0 to {last}, and member is {member}", last = size - 1)]
    Member {
        /// Number of members.
        size: u32,
        /// The requested seat.
        member: u32,
    },
}

impl GroupSeat {
    /// Checks size and member.
    pub fn check(&self) -> Result<(), InvalidSeat> {
        let Self { size, member, join_secs, .. } = *self;
        if !(1..=JOIN_SECS_MAX).contains(&join_secs) {
            return Err(InvalidSeat::JoinSecs(join_secs));
        }
        match size {
            1..=GROUP_SIZE_MAX if member < size => Ok(()),
            1..=GROUP_SIZE_MAX => Err(InvalidSeat::Member { size, member }),
            _ => Err(InvalidSeat::Size(size)),
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.id.as_str().len()
    }
}

/// A member that ended without samples to rate, or that never began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedMember {
    /// Number of the member.
    pub member: u32,
    /// Its rollout; `None` if no request took the seat.
    pub rollout_id: Option<RolloutId>,
    /// A description for people.
    pub reason: String,
}

/// The result of a group, which is stored before any member is reported.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct GroupDecision {
    /// The group grader's ratings by member; `None` if no group grader ran.
    pub ratings: Option<BTreeMap<u32, Vec<SampleRating>>>,
    /// The failure of the group grader, with which no member has a reward.
    pub failure: Option<Failure>,
    /// The failed members, by number.
    pub failed: Vec<FailedMember>,
}

/// An event of a group in the log of each member.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum GroupEvent {
    /// A member left before the group was decided.
    Left(FailedMember),
    /// The group was decided.
    Decided(GroupDecision),
}

/// A group grader's rating of one sample.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct SampleRating {
    pub sample: SampleId,
    #[serde(with = "exact")]
    pub reward: f64,
    #[serde(with = "rollout_wire::data::exact_map")]
    pub metrics: BTreeMap<String, f64>,
}

/// The part of a group in the outcome of a member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupOutcome {
    /// The member's seat.
    pub seat: GroupSeat,
    /// Whether a group grader rated the member.
    pub graded: bool,
    /// The member's reward before the group was graded, if it had one.
    #[serde(with = "exact_option")]
    pub own_reward: Option<f64>,
    /// The failed members of the group, by number; empty if this member left before the group was decided.
    pub failed: Vec<FailedMember>,
}

/// A group's part of a result, as callers and trajectories read it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct GroupReport<'a> {
    /// Id of the group.
    id: &'a RolloutId,
    /// Number of its members.
    size: u32,
    /// The member's number.
    member: u32,
    /// Whether a group grader rated the member.
    graded: bool,
    /// The member's reward before the group was graded, if it had one.
    own_reward: Option<f64>,
    /// The failed members of the group.
    failed: &'a [FailedMember],
}

impl<'a> From<&'a GroupOutcome> for GroupReport<'a> {
    fn from(GroupOutcome { seat, graded, own_reward, failed }: &'a GroupOutcome) -> Self {
        let GroupSeat { id, size, member, join_secs: _ } = seat;
        Self { id, size: *size, member: *member, graded: *graded, own_reward: *own_reward, failed }
    }
}
