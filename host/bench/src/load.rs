//! Workers that run a number of rollouts concurrently.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use tokio::task::JoinSet;

use super::tally::{Amount, Tally};
use super::trainer::{TrainerContext, Worker};

/// Number of failures in a row, plus one per worker, after which a server is considered broken.
const FAILURES_IN_A_ROW_MAX: usize = 100;

/// The workers of one measurement with their open connections.
#[derive(Debug)]
pub(super) struct Workers {
    workers: Vec<Worker>,
    wave: bool,
}

impl Workers {
    pub(super) fn new(context: &Arc<TrainerContext>, in_flight: usize, wave: bool) -> Self {
        Self { workers: (0..in_flight).map(|_| Worker::new(context.clone())).collect(), wave }
    }

    /// Runs `amount` rollouts. Each worker starts its next rollout when its last one ended (steady), or all
    /// workers start together when all have ended (wave).
    pub(super) async fn run(&mut self, amount: Amount) -> Tally {
        let budget = Arc::new(Budget::new(amount, self.workers.len()));
        loop {
            let mut running = JoinSet::new();
            // All workers are admitted before any starts, so that a wave is complete.
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

/// The rollouts that remain to be started.
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

    /// Takes one rollout from the budget. Returns whether there was one.
    fn take(&self) -> bool {
        // The counter may exceed the maximum, which `is_open` handles.
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
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_budget_ends_by_number_or_time_or_repeated_failure() {
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
        assert!(budget.take(), "one more rollout may still succeed");
        budget.note(true);
        (0..=FAILURES_IN_A_ROW_MAX).for_each(|_| budget.note(false));
        assert!(!budget.take());
    }
}
