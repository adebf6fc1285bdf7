//! The journal of an evaluation's rollouts, from which another process resumes them.
//!
//! A rollout's outcome is written to the journal first, then its line to the results, and then its log in
//! the journal ends. So whenever a process dies, each rollout is in the results, has its outcome in the
//! journal, or can be resumed.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use super::results;
use rollout_rollout::{Continuation, Finished, Journal, Outcome, RolloutLog, Unfinished, UnfinishedRollout};

/// Name under which the journal stores the rollouts of an evaluation.
const DRIVER: &str = "eval";

/// The row and the number of an attempt, stored in the journal with its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Attempt {
    /// Index of the row in the data set.
    pub row: usize,
    /// Number of the attempt on the row, from 0.
    pub run: usize,
}

impl Attempt {
    /// Returns the data with which another process resumes the attempt. The model and its key are not
    /// part of it; the command that resumes the evaluation gets them again.
    pub(crate) fn continuation(self) -> Continuation {
        // Two numbers can always be serialized.
        let facts = to_raw_value(&self).unwrap_or_else(|_| RawValue::NULL.to_owned());
        Continuation { driver: DRIVER.into(), facts, secret: None }
    }
}

/// A rollout that an earlier process finished but did not write to the results.
pub(crate) struct UnreportedRollout {
    pub attempt: Attempt,
    pub log: RolloutLog,
}

/// The journal of an evaluation, with the rollouts that an earlier process left there.
pub struct RolloutJournal {
    journal: Arc<Journal>,
    unfinished: HashMap<Attempt, UnfinishedRollout>,
    unreported: Vec<UnreportedRollout>,
}

impl RolloutJournal {
    /// Sorts the rollouts that an earlier process left. Rollouts that are in `results` are finished. With
    /// `retry_unscored`, finished rollouts without a reward are dropped so that they run again.
    pub fn new(
        journal: Arc<Journal>,
        left: Unfinished,
        results: &results::ResultsDir,
        retry_unscored: bool,
    ) -> io::Result<Self> {
        let mut sorted = Self { journal, unfinished: HashMap::new(), unreported: Vec::new() };
        for rollout in left {
            let rollout = rollout?;
            let facts = serde_json::from_str::<Attempt>(rollout.facts.get());
            let (DRIVER, Ok(attempt)) = (rollout.driver.as_str(), facts) else {
                let id = rollout.request.id.as_str();
                tracing::warn!(
                    id,
                    driver = rollout.driver,
                    "ignoring a rollout in the journal that does not belong to an evaluation"
                );
                continue;
            };
            if results.is_finished(attempt.row, attempt.run) {
                rollout.log().end();
                continue;
            }
            if !rollout.is_over {
                sorted.unfinished.insert(attempt, rollout);
                continue;
            }
            let log = rollout.log().clone();
            // The outcome is read again when its line is written, so that not all are in memory at once.
            if retry_unscored && is_unscored(&read_outcome(&log)?) {
                log.end();
            } else {
                sorted.unreported.push(UnreportedRollout { attempt, log });
            }
        }
        Ok(sorted)
    }

    /// Returns the number of rollouts that have to be resumed.
    pub fn unfinished_count(&self) -> usize {
        self.unfinished.len()
    }

    /// Takes the finished rollouts that are not in the results.
    pub(crate) fn take_unreported(&mut self) -> Vec<UnreportedRollout> {
        std::mem::take(&mut self.unreported)
    }

    /// Takes the unfinished rollout of an attempt.
    pub(crate) fn take_unfinished(&mut self, attempt: Attempt) -> Option<UnfinishedRollout> {
        self.unfinished.remove(&attempt)
    }

    /// Closes the journal and waits: earlier events are stored, later ones are ignored.
    pub(crate) async fn close(&self) {
        let journal = self.journal.clone();
        // Closing does not panic. It is awaited so that the events are written.
        let _ = tokio::task::spawn_blocking(move || journal.close()).await;
    }
}

/// Reads the outcome of a finished rollout from the journal's files.
pub(crate) fn read_outcome(log: &RolloutLog) -> io::Result<Finished> {
    log.read_outcome()?.ok_or_else(|| io::Error::other("the journal lacks the outcome of a finished rollout"))
}

fn is_unscored(finished: &Finished) -> bool {
    matches!(finished.outcome, Outcome::Unscored(_))
}
