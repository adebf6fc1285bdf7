//! Order in which workers are tried for a rollout: by weighted rendezvous hashing if it has an id, else by their room.
//!
//! Every gateway computes the same order from the id alone, so a second request for an id reaches the worker of the first,
//! and requests without a lease find their rollout. A worker that joins or leaves moves only its own share of the ids.

use std::cmp::Reverse;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::random;

/// Maximum number of workers that may take a rollout in the place of the one that its id prefers.
const OTHERS_MAX: usize = 2;

/// A worker as far as placement is concerned.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Candidate<T> {
    /// Name of the worker.
    pub name: String,
    /// Relative number of rollouts that it should have.
    pub weight: u32,
    /// Number of further rollouts that would have a slot, if the worker reports it.
    pub room: Option<i64>,
    /// The worker.
    pub worker: T,
}

/// Sorts the workers by their preference for this id, the best first.
pub(super) fn order<T>(id: &str, mut candidates: Vec<Candidate<T>>) -> Vec<Candidate<T>> {
    let score = |candidate: &Candidate<T>| {
        // `DefaultHasher::new` has fixed keys, but may change with the compiler. Gateways of different versions would then
        // disagree, which costs a second lookup and never a result, because leases name their log.
        let mut hasher = DefaultHasher::new();
        (id, &candidate.name).hash(&mut hasher);
        // A number between 0 and 1, exclusive, from the 53 upper bits.
        let unit = ((hasher.finish() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        -f64::from(candidate.weight.max(1)) / unit.ln()
    };
    candidates.sort_by(|a, b| score(b).total_cmp(&score(a)).then_with(|| a.name.cmp(&b.name)));
    candidates
}

/// Sorts the workers by their room, the one with the most room first. Workers with equal room are in the order of a
/// random id.
pub(super) fn by_room<T>(candidates: Vec<Candidate<T>>) -> Vec<Candidate<T>> {
    let mut sorted = order(&random::id(), candidates);
    sorted.sort_by_key(|candidate| Reverse(candidate.room.unwrap_or(0)));
    sorted
}

/// Returns the names of at most [`OTHERS_MAX`] workers that may take a rollout in the place of the first one, the one
/// with the most room first. Returns no names if the first worker has room.
pub(super) fn others<T>(order: &[Candidate<T>]) -> Vec<String> {
    match order.split_first() {
        Some((first, rest)) if first.room.is_some_and(|room| room <= 0) => most_room(rest, 1),
        _ => Vec::new(),
    }
}

/// Returns the names of at most [`OTHERS_MAX`] of these workers that have at least this room, the one with the most room
/// first. Those that do not report it come last, if any room suffices.
pub(super) fn most_room<T>(candidates: &[Candidate<T>], room_min: i64) -> Vec<String> {
    let has_room =
        |candidate: &&Candidate<T>| candidate.room.map_or(room_min == i64::MIN, |room| room >= room_min);
    let mut others: Vec<&Candidate<T>> = candidates.iter().filter(has_room).collect();
    // Stable, so that among equals the id decides.
    others.sort_by_key(|candidate| Reverse(candidate.room));
    others.into_iter().take(OTHERS_MAX).map(|candidate| candidate.name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_worker_without_room_is_replaced_by_those_with_most() {
        let with = |rooms: &[Option<i64>]| {
            let mut candidates = candidates(&[1; 4]);
            candidates.iter_mut().zip(rooms).for_each(|(candidate, room)| candidate.room = *room);
            candidates
        };
        let check = |rooms: [Option<i64>; 4], expected: &[&str]| {
            assert_eq!(others(&with(&rooms)), expected, "{rooms:?}");
        };
        check([Some(1), Some(5), Some(5), Some(5)], &[]);
        check([None, Some(5), Some(5), Some(5)], &[]);
        check([Some(0), Some(1), Some(5), Some(3)], &["worker-2", "worker-3"]);
        check([Some(-3), Some(0), Some(-1), None], &[]);
        assert_eq!(by_room(with(&[Some(0), None, Some(7), Some(-1)]))[0].name, "worker-2");
    }

    fn candidates(weights: &[u32]) -> Vec<Candidate<usize>> {
        let of = |(worker, weight): (usize, &u32)| Candidate {
            name: format!("worker-{worker}"),
            weight: *weight,
            room: None,
            worker,
        };
        weights.iter().enumerate().map(of).collect()
    }

    #[test]
    fn workers_get_rollouts_in_proportion_to_their_slots() {
        let mut counts = [0_u32; 3];
        for id in 0..30_000 {
            counts[order(&format!("rollout-{id}"), candidates(&[100, 100, 400]))[0].worker] += 1;
        }
        for (count, expected) in counts.into_iter().zip([5_000, 5_000, 20_000]) {
            assert!(count.abs_diff(expected) < expected / 10, "{counts:?}");
        }
    }

    #[test]
    fn a_worker_that_leaves_moves_only_its_own_rollouts() {
        for id in 0..1_000 {
            let id = format!("rollout-{id}");
            let all: Vec<usize> = order(&id, candidates(&[10; 4])).iter().map(|one| one.worker).collect();
            let mut fewer = candidates(&[10; 4]);
            fewer.remove(3);
            let fewer: Vec<usize> = order(&id, fewer).iter().map(|one| one.worker).collect();
            let expected: Vec<usize> = all.into_iter().filter(|worker| *worker != 3).collect();
            assert_eq!(fewer, expected, "{id}");
        }
    }

    #[test]
    fn the_order_depends_on_names_and_not_on_the_order_of_the_list() {
        let mut reversed = candidates(&[1, 2, 3]);
        reversed.reverse();
        assert_eq!(order("r", candidates(&[1, 2, 3])), order("r", reversed));
    }
}
