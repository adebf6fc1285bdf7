//! How many rollouts, how many at a time, and what they came to.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::outcome::{ErrorKind, Failure};
use super::trainer::{TrainerContext, Worker};

/// After so many failures in a row, and one of every worker, a server is taken for broken.
const FAILURES_IN_A_ROW_MAX: usize = 100;

/// What some rollouts came to.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Of the right ones, from the first attempt at admission to the result.
    pub(super) latencies: Vec<Duration>,
    pub(super) errors: Errors,
    /// Answers 429. Each was waited out, and none is an error.
    pub(super) refused: u64,
    /// Reads of a result.
    pub(super) polls: u64,
    /// Whether it ended early because nothing worked any more.
    pub(super) gave_up: bool,
}

/// Errors by kind: how many, and what the first one looked like.
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
    fn add(&mut self, other: Self) {
        self.latencies.extend(other.latencies);
        for (kind, (count, first)) in other.errors.0 {
            self.errors.0.entry(kind).or_insert_with(|| (0, first)).0 += count;
        }
        self.refused += other.refused;
        self.polls += other.polls;
    }
}

/// How long rollouts are begun. Those that were begun are always ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Amount {
    /// So many at any rate.
    pub(super) at_least: usize,
    /// So many and no more.
    pub(super) at_most: usize,
    /// Between the two, while this lasts.
    pub(super) time: Duration,
}

/// The workers of one measurement, with their open connections.
#[derive(Debug)]
pub(super) struct Workers {
    workers: Vec<Worker>,
    wave: bool,
}

impl Workers {
    pub(super) fn new(context: &Arc<TrainerContext>, in_flight: usize, wave: bool) -> Self {
        Self { workers: (0..in_flight).map(|_| Worker::new(context.clone())).collect(), wave }
    }

    /// Runs `amount` rollouts: each worker begins its next one when its last ended (steady), or
    /// all begin together when all have ended (wave).
    pub(super) async fn run(&mut self, amount: Amount) -> Tally {
        let budget = Arc::new(Budget::new(amount, self.workers.len()));
        loop {
            let mut running = JoinSet::new();
            // Who goes along is settled before anyone goes, so that a wave is whole.
            for mut worker in self.workers.drain(..) {
                let (budget, again) = (budget.clone(), !self.wave);
                let takes_part = self.wave && budget.take();
                running.spawn(async move {
                    if takes_part {
                        budget.note(worker.rollout().await);
                    }
                    while again && budget.take() {
                        budget.note(worker.rollout().await);
                    }
                    worker
                });
            }
            while let Some(worker) = running.join_next().await {
                match worker {
                    Ok(worker) => self.workers.push(worker),
                    Err(error) => std::panic::resume_unwind(error.into_panic()),
                }
            }
            if !self.wave || !budget.is_open() {
                break;
            }
        }
        let mut tally = Tally { gave_up: budget.is_hopeless(), ..Tally::default() };
        self.workers.iter_mut().for_each(|worker| tally.add(std::mem::take(&mut worker.tally)));
        tally
    }
}

/// What is left to begin.
#[derive(Debug)]
struct Budget {
    amount: Amount,
    until: Instant,
    begun: AtomicUsize,
    failures_in_a_row: AtomicUsize,
    failures_max: usize,
}

impl Budget {
    fn new(amount: Amount, in_flight: usize) -> Self {
        Self {
            amount,
            until: Instant::now() + amount.time,
            begun: AtomicUsize::new(0),
            failures_in_a_row: AtomicUsize::new(0),
            failures_max: FAILURES_IN_A_ROW_MAX + in_flight,
        }
    }

    /// Whether one more may begin; if so, it counts as begun.
    fn take(&self) -> bool {
        // May count past the end, which is_open does not mind.
        self.is_open() && self.begun.fetch_add(1, Ordering::Relaxed) < self.amount.at_most
    }

    fn is_open(&self) -> bool {
        let begun = self.begun.load(Ordering::Relaxed);
        let enough = begun >= self.amount.at_least && Instant::now() >= self.until;
        begun < self.amount.at_most && !enough && !self.is_hopeless()
    }

    fn note(&self, right: bool) {
        if right {
            self.failures_in_a_row.store(0, Ordering::Relaxed);
        } else {
            self.failures_in_a_row.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn is_hopeless(&self) -> bool {
        self.failures_in_a_row.load(Ordering::Relaxed) >= self.failures_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_ends_by_number_or_time_or_despair() {
        fn check(at_least: usize, at_most: usize, time: Duration, expected: usize) {
            let budget = Budget::new(Amount { at_least, at_most, time }, 1);
            let begun = (0..50).filter(|_| budget.take()).count();
            assert_eq!(begun, expected, "{at_least}..={at_most} in {time:?}");
        }
        let hour = Duration::from_secs(3600);
        check(0, 7, hour, 7);
        check(3, 7, Duration::ZERO, 3);
        check(7, 7, Duration::ZERO, 7);
        check(0, 100, hour, 50);
        check(0, 100, Duration::ZERO, 0);

        let budget = Budget::new(Amount { at_least: 0, at_most: usize::MAX, time: hour }, 1);
        (0..FAILURES_IN_A_ROW_MAX).for_each(|_| budget.note(false));
        assert!(budget.take(), "one more may still turn it");
        budget.note(true);
        (0..=FAILURES_IN_A_ROW_MAX).for_each(|_| budget.note(false));
        assert!(!budget.take());
    }

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
