//! Rollouts that this worker would have, and that gateways send to another one because this one has no room.
//!
//! The id of a rollout determines its worker. That worker decides which other one takes the rollout in its place, and
//! remembers it, so that a second request for the id is sent there, too, through whichever gateway it comes.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use rollout_core::budget::{Budget, Charge, Use};
use rollout_wire::id::RolloutId;

/// Maximum number of placed rollouts of a plugin. Beyond it, rollouts wait here.
const PLACED_MAX: usize = 100_000;

/// Memory of one besides its id and the name of its worker.
const ENTRY_BYTES: usize = 256;

/// Time in which the gateway that began to place a rollout may choose another worker. Other requests for the id have to
/// come back later.
const PLACING_TIME: Duration = Duration::from_secs(10);

/// Rollouts that are sent to other workers.
#[derive(Default)]
pub(super) struct Placed(Mutex<HashMap<RolloutId, Entry>>);

struct Entry {
    worker: String,
    /// The token of the request that placed it.
    token: String,
    since: Instant,
    _charge: Charge,
}

/// The place of a new rollout.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// This worker.
    Here,
    /// Another one, by its name.
    At(String),
    /// Another request for the same id has not found a worker yet.
    Undecided,
}

/// A request that starts a rollout.
pub(super) struct Placing<'a> {
    /// The id of the rollout.
    pub id: &'a RolloutId,
    /// The token that the gateway chose.
    pub token: &'a str,
    /// The worker with room that the gateway knows.
    pub other: Option<&'a str>,
    /// Whether this worker has a free slot.
    pub has_room: bool,
}

impl Placed {
    /// Returns the place of a rollout that is not here. Must be called while its id is reserved.
    pub(super) fn place(&self, placing: &Placing<'_>, budget: &Budget, time_max: Duration) -> Place {
        let Placing { id, token, other, has_room } = *placing;
        let now = Instant::now();
        let mut placed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if placed.len() >= PLACED_MAX {
            placed.retain(|_, entry| now < entry.since + time_max);
        }
        if let Some(entry) = placed.get_mut(id).filter(|entry| now < entry.since + time_max) {
            if now >= entry.since + PLACING_TIME {
                return Place::At(entry.worker.clone());
            }
            if entry.token != token {
                return Place::Undecided;
            }
            // Its first choice has refused it.
            let Some(other) = other else {
                placed.remove(id);
                return Place::Here;
            };
            other.clone_into(&mut entry.worker);
            return Place::At(entry.worker.clone());
        }
        let Some(other) = other.filter(|_| !has_room && placed.len() < PLACED_MAX) else {
            placed.remove(id);
            return Place::Here;
        };
        let bytes = ENTRY_BYTES + id.as_str().len() + other.len();
        let Ok(charge) = budget.charge(Use::Request, bytes) else { return Place::Here };
        let entry = Entry { worker: other.to_owned(), token: token.to_owned(), since: now, _charge: charge };
        placed.insert(id.clone(), entry);
        Place::At(other.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[tokio::test(start_paused = true)]
    async fn only_the_request_that_placed_a_rollout_may_choose_again_and_others_follow_it() {
        let (placed, budget) = (Placed::default(), Budget::default());
        let id = RolloutId::parse("r").unwrap();
        let place = |token, other, has_room| {
            placed.place(&Placing { id: &id, token, other, has_room }, &budget, HOUR)
        };
        let at = |worker: &str| Place::At(worker.to_owned());
        assert_eq!(place("a", None, false), Place::Here, "the gateway knows no worker with room");
        assert_eq!(place("a", Some("w2"), true), Place::Here);
        assert_eq!(place("a", Some("w2"), false), at("w2"));
        assert_eq!(place("b", Some("w3"), true), Place::Undecided);
        assert_eq!(place("a", Some("w3"), false), at("w3"), "w2 has refused it");
        tokio::time::advance(PLACING_TIME).await;
        assert_eq!(place("a", Some("w2"), false), at("w3"), "too late to choose again");
        assert_eq!(place("b", None, true), at("w3"));
        tokio::time::advance(HOUR).await;
        assert_eq!(place("b", None, true), Place::Here);
        assert_eq!(place("b", Some("w2"), false), at("w2"));
        assert_eq!(place("b", None, false), Place::Here, "no worker has taken it");
        assert_eq!(place("c", None, false), Place::Here);
        assert_eq!(budget.used(), 0);
    }
}
