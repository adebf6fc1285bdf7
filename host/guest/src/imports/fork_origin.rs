//! The origin of a rollout that forks another one.

use serde::{Deserialize, Serialize};

use rollout_wire::id::RolloutId;

/// The point in a rollout at which a fork continues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForkPoint {
    /// The id of the rollout.
    pub rollout_id: RolloutId,
    /// Number of the rollout's model calls that the fork takes over, with their results; 0 if it takes over
    /// only the input.
    pub turn: u32,
}

/// Origin of a fork.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkOrigin {
    /// The point at which the fork continues.
    pub point: ForkPoint,
    /// Rollouts from which the fork's events come, the oldest first. The workflow sees the id of the first, so that it
    /// behaves as it did in that rollout.
    pub ancestors: Vec<Ancestor>,
}

/// A rollout that a fork descends from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ancestor {
    /// The id of the rollout.
    pub id: RolloutId,
    /// The caller's name for the rollout, if that is not a valid id.
    pub caller_id: Option<String>,
    /// Number of the attempt.
    pub attempt: u32,
    /// Number of events of the workflow's run up to which this rollout's random numbers apply.
    pub events: usize,
}

impl ForkOrigin {
    /// Returns the heap memory of the value in bytes.
    pub fn memory_bytes(&self) -> usize {
        let of = |ancestor: &Ancestor| {
            let caller_id = ancestor.caller_id.as_ref().map_or(0, String::len);
            size_of::<Ancestor>() + ancestor.id.as_str().len() + caller_id
        };
        self.point.rollout_id.as_str().len() + self.ancestors.iter().map(of).sum::<usize>()
    }
}
