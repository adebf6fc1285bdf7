//! What a rollout has of another one.

use serde::{Deserialize, Serialize};

use rollout_wire::id::RolloutId;

/// The place in a rollout from which another one goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForkPoint {
    /// The rollout.
    pub rollout_id: RolloutId,
    /// How many calls of the model the other one has of it, with what came of them; none for a rollout
    /// that has nothing but its input.
    pub turn: u32,
}

/// Where a rollout comes from that is a fork.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkOrigin {
    /// The place.
    pub point: ForkPoint,
    /// Whose its past is, the oldest first. The first is the one whose id its workflow is told, so that
    /// it does what that one did.
    pub ancestors: Vec<Ancestor>,
}

/// A rollout that another one comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ancestor {
    /// Its id.
    pub id: RolloutId,
    /// What its caller calls it, where that could be no id.
    pub caller_id: Option<String>,
    /// Which try it was.
    pub attempt: u32,
    /// Up to so many events of the workflow's run random numbers are this one's.
    pub events: usize,
}

impl ForkOrigin {
    /// The bytes that it takes besides its place.
    pub fn memory_bytes(&self) -> usize {
        let of = |ancestor: &Ancestor| {
            let caller_id = ancestor.caller_id.as_ref().map_or(0, String::len);
            size_of::<Ancestor>() + ancestor.id.as_str().len() + caller_id
        };
        self.point.rollout_id.as_str().len() + self.ancestors.iter().map(of).sum::<usize>()
    }
}
