//! Rollouts that belong to this worker by their ids, and that gateways send to another worker because this one has no
//! room.
//!
//! The id of a rollout determines its worker. That worker decides which other one takes the rollout in its place, and
//! remembers the decision, so that a second request for the id is also sent there, through any gateway. The gateway
//! confirms that the other worker has the rollout. If the gateway is killed before it confirms, the other worker may have the
//! rollout, and later requests for the id go there and nowhere else.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use rollout_core::budget::{Budget, Charge, Use};
use rollout_wire::id::RolloutId;

/// Maximum number of placed rollouts of a plugin. Beyond it, rollouts wait here.
const PLACED_MAX: usize = 100_000;

/// Memory of a placed rollout besides its id and the name of its worker.
const ENTRY_BYTES: usize = 256;

/// Time in which only the request that began to place a rollout is sent to a worker. Other requests for the id are refused and may be
/// repeated later. If no gateway has confirmed the place by then, the next request is sent to the same worker.
const PLACING_TIME: Duration = Duration::from_secs(10);

/// Rollouts that are sent to other workers.
#[derive(Default)]
pub(super) struct Placed(Mutex<HashMap<RolloutId, Entry>>);

struct Entry {
    worker: String,
    /// The token of the request that places it, and the time of that request.
    token: String,
    placing_since: Instant,
    since: Instant,
    /// Whether the worker is known to have the rollout.
    is_confirmed: bool,
    /// Whether the worker may have the rollout, because the request that placed it there is gone.
    may_be_there: bool,
    _charge: Charge,
}

/// The place of a new rollout.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// This worker.
    Here,
    /// Another worker.
    At {
        /// Its name.
        worker: String,
        /// Whether the request may choose again if this worker does not take the rollout.
        may_choose: bool,
    },
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
    /// Whether the answer to the same request was lost.
    pub is_repeated: bool,
}

impl Placed {
    fn all(&self) -> MutexGuard<'_, HashMap<RolloutId, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the place of a rollout that is not here. Must be called while its id is reserved.
    pub(super) fn place(&self, placing: &Placing<'_>, budget: &Budget, time_max: Duration) -> Place {
        let Placing { id, token, other, has_room, is_repeated } = *placing;
        let now = Instant::now();
        let mut placed = self.all();
        if placed.len() >= PLACED_MAX {
            placed.retain(|_, entry| now < entry.since + time_max);
        }
        if let Some(entry) = placed.get_mut(id).filter(|entry| now < entry.since + time_max) {
            if entry.is_confirmed {
                return Place::At { worker: entry.worker.clone(), may_choose: false };
            }
            if entry.token != token {
                if now < entry.placing_since + PLACING_TIME {
                    return Place::Undecided;
                }
                // The gateway that placed it is gone. It may have reached the worker.
                (entry.token, entry.placing_since, entry.may_be_there) = (token.to_owned(), now, true);
            }
            if entry.may_be_there {
                return Place::At { worker: entry.worker.clone(), may_choose: false };
            }
            if !is_repeated {
                // The worker that the request was sent to has refused it.
                let Some(other) = other else {
                    placed.remove(id);
                    return Place::Here;
                };
                other.clone_into(&mut entry.worker);
            }
            return Place::At { worker: entry.worker.clone(), may_choose: true };
        }
        let Some(other) = other.filter(|_| !has_room && placed.len() < PLACED_MAX) else {
            placed.remove(id);
            return Place::Here;
        };
        let bytes = ENTRY_BYTES + id.as_str().len() + other.len();
        let Ok(charge) = budget.charge(Use::Request, bytes) else { return Place::Here };
        let (worker, token) = (other.to_owned(), token.to_owned());
        let entry = Entry {
            worker,
            token,
            placing_since: now,
            since: now,
            is_confirmed: false,
            may_be_there: false,
            _charge: charge,
        };
        placed.insert(id.clone(), entry);
        Place::At { worker: other.to_owned(), may_choose: true }
    }

    /// Records that the worker has the rollout, for the request with this token. Returns whether the rollout is placed there.
    pub(super) fn confirm(&self, id: &RolloutId, token: &str, worker: &str) -> bool {
        let mut placed = self.all();
        let entry = placed.get_mut(id).filter(|entry| entry.token == token && entry.worker == worker);
        entry.map(|entry| entry.is_confirmed = true).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn check(
        placed: &Placed,
        budget: &Budget,
        (token, other, has_room): (&str, Option<&str>, bool),
    ) -> Place {
        let id = &RolloutId::parse("r").unwrap();
        placed.place(&Placing { id, token, other, has_room, is_repeated: false }, budget, HOUR)
    }

    fn at(worker: &str, may_choose: bool) -> Place {
        Place::At { worker: worker.to_owned(), may_choose }
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_request_that_placed_a_rollout_may_choose_again_and_others_follow_it() {
        let (placed, budget) = (Placed::default(), Budget::default());
        let id = RolloutId::parse("r").unwrap();
        let place = |token, other, has_room| check(&placed, &budget, (token, other, has_room));
        assert_eq!(place("a", None, false), Place::Here, "the gateway knows no worker with room");
        assert_eq!(place("a", Some("w2"), true), Place::Here);
        assert_eq!(place("a", Some("w2"), false), at("w2", true));
        let repeated = Placing { id: &id, token: "a", other: None, has_room: false, is_repeated: true };
        assert_eq!(placed.place(&repeated, &budget, HOUR), at("w2", true), "its answer was lost");
        assert_eq!(place("b", Some("w3"), true), Place::Undecided);
        assert_eq!(place("a", Some("w3"), false), at("w3", true), "w2 has refused it");
        assert!(!placed.confirm(&id, "b", "w3") && !placed.confirm(&id, "a", "w2"));
        assert!(placed.confirm(&id, "a", "w3"));
        tokio::time::advance(PLACING_TIME).await;
        assert_eq!(place("a", Some("w2"), false), at("w3", false), "the rollout is there");
        assert_eq!(place("b", None, true), at("w3", false));
        tokio::time::advance(HOUR).await;
        assert_eq!(place("b", None, true), Place::Here);
        assert_eq!(place("b", Some("w2"), false), at("w2", true));
        assert_eq!(place("b", None, false), Place::Here, "no worker has taken it");
        assert_eq!(place("c", None, false), Place::Here);
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_rollout_whose_place_no_gateway_confirmed_is_sent_to_no_other_worker() {
        let (placed, budget) = (Placed::default(), Budget::default());
        let id = RolloutId::parse("r").unwrap();
        let place = |token, other, has_room| check(&placed, &budget, (token, other, has_room));
        assert_eq!(place("a", Some("w2"), false), at("w2", true));
        tokio::time::advance(PLACING_TIME).await;
        // The gateway of the first request is gone. It may have reached the worker.
        assert_eq!(place("b", Some("w3"), true), at("w2", false));
        assert_eq!(place("c", Some("w3"), true), Place::Undecided, "the second request is on its way");
        assert!(!placed.confirm(&id, "a", "w2"));
        assert_eq!(place("b", Some("w3"), true), at("w2", false), "that w2 is away proves nothing");
        tokio::time::advance(PLACING_TIME).await;
        assert_eq!(place("d", None, true), at("w2", false));
        assert!(placed.confirm(&id, "d", "w2"));
        assert_eq!(place("e", Some("w3"), true), at("w2", false), "w2 is known to have it");
        tokio::time::advance(HOUR).await;
        assert_eq!(place("f", None, true), Place::Here, "it is over anywhere");
        assert_eq!(budget.used(), 0);
    }
}
