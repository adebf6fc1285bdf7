//! Amount of rollouts to start, and the tally of their outcomes.

use std::collections::BTreeMap;
use std::time::Duration;

use super::outcome::{ErrorKind, Failure};

/// Tally of some rollouts.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Latencies of correct rollouts, from the first attempt at admission to the result.
    pub(super) latencies: Vec<Duration>,
    /// Times of admissions without a 429, from the request to its answer.
    pub(super) admissions: Vec<Duration>,
    pub(super) errors: Errors,
    /// Number of 429 answers. Each was retried after a wait and is not an error.
    pub(super) refused: u64,
    /// Number of requests for a result.
    pub(super) polls: u64,
    /// Whether the run ended early because every rollout failed.
    pub(super) gave_up: bool,
}

/// Errors by kind: their number and the first example.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Errors(pub(super) BTreeMap<ErrorKind, (u64, String)>);

impl Errors {
    pub(super) fn add(&mut self, failure: Failure) {
        self.0.entry(failure.kind).or_insert_with(|| (0, failure.detail)).0 += 1;
    }

    pub(super) fn count(&self) -> u64 {
        self.0.values().map(|(count, _)| count).sum()
    }
}

impl Tally {
    /// Adds the tally of other rollouts.
    pub(super) fn add(&mut self, other: Self) {
        self.latencies.extend(other.latencies);
        self.admissions.extend(other.admissions);
        for (kind, (count, first)) in other.errors.0 {
            self.errors.0.entry(kind).or_insert_with(|| (0, first)).0 += count;
        }
        self.refused += other.refused;
        self.polls += other.polls;
    }
}

/// Amount of rollouts to start. Rollouts that were started are always completed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Amount {
    /// Minimum number.
    pub(super) at_least: usize,
    /// Maximum number.
    pub(super) at_most: usize,
    /// Time during which rollouts beyond the minimum are started.
    pub(super) time: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tallies_add_up_and_keep_the_first_example() {
        let failed = |kind, detail: &str| {
            let mut tally = Tally { refused: 1, polls: 2, ..Tally::default() };
            tally.errors.add(Failure::new(kind, detail));
            tally
        };
        let mut sum = failed(ErrorKind::Lost, "first");
        sum.add(failed(ErrorKind::Lost, "second"));
        sum.add(failed(ErrorKind::Transport, "third"));
        assert_eq!((sum.refused, sum.polls, sum.errors.count()), (3, 6, 3));
        assert_eq!(sum.errors.0[&ErrorKind::Lost], (2, "first".to_owned()));
    }
}
