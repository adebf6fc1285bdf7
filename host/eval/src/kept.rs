//! The rollouts of an evaluation in a journal: what is kept of each, so that another process goes on
//! inside it, and what a process before left of them.
//!
//! A rollout's row is written to the results once its outcome is in the journal, and only then is it over
//! there. So whenever a process dies, a rollout is in the results, or its outcome is in the
//! journal, or it can go on.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use super::results;
use rollout_core::rollout::{
    Continuation, Finished, Journal, Outcome, RolloutLog, Unfinished, UnfinishedRollout,
};

/// Who drives the rollouts of an evaluation.
const DRIVER: &str = "eval";

/// What is known of one besides its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Attempt {
    /// The row of the data set, from 0.
    pub row: usize,
    /// Which of the attempts on it, from 0.
    pub run: usize,
}

impl Attempt {
    /// What another process needs to go on with it. Its model, and the key for that, are said again
    /// by whoever starts the evaluation again.
    pub(crate) fn continuation(self) -> Continuation {
        // Two numbers.
        let facts = to_raw_value(&self).unwrap_or_else(|_| RawValue::NULL.to_owned());
        Continuation { driver: DRIVER.into(), facts, secret: None }
    }
}

/// A rollout that was over, and is not in the results.
pub(crate) struct Unreported {
    pub attempt: Attempt,
    pub log: RolloutLog,
}

/// The journal of an evaluation, and the rollouts that a process before left in it.
pub struct Kept {
    journal: Arc<Journal>,
    unfinished: HashMap<Attempt, UnfinishedRollout>,
    unreported: Vec<Unreported>,
}

impl Kept {
    /// What a process before left, beside these results. Rollouts that are in them are over. Those
    /// without a reward are to be run again where that is said, and are over, too.
    pub fn new(
        journal: Arc<Journal>,
        left: Unfinished,
        results: &results::Journal,
        retry_unscored: bool,
    ) -> io::Result<Self> {
        let mut kept = Self { journal, unfinished: HashMap::new(), unreported: Vec::new() };
        for rollout in left {
            let rollout = rollout?;
            let facts = serde_json::from_str::<Attempt>(rollout.facts.get());
            let (DRIVER, Ok(attempt)) = (rollout.driver.as_str(), facts) else {
                let id = rollout.request.id.as_str();
                tracing::warn!(id, driver = rollout.driver, "the journal has a rollout of no evaluation");
                continue;
            };
            if results.is_finished(attempt.row, attempt.run) {
                rollout.log().end();
                continue;
            }
            if !rollout.is_over {
                kept.unfinished.insert(attempt, rollout);
                continue;
            }
            let log = rollout.log().clone();
            // It is read once more when its row is written: not all of them are in memory at once.
            if retry_unscored && is_unscored(&outcome(&log)?) {
                log.end();
            } else {
                kept.unreported.push(Unreported { attempt, log });
            }
        }
        Ok(kept)
    }

    /// Rollouts that go on inside.
    pub fn under_way(&self) -> usize {
        self.unfinished.len()
    }

    /// The rollouts that were over, and are not in the results. Given once.
    pub(crate) fn unreported(&mut self) -> Vec<Unreported> {
        std::mem::take(&mut self.unreported)
    }

    /// What a process before left of an attempt. Given once.
    pub(crate) fn left_of(&mut self, attempt: Attempt) -> Option<UnfinishedRollout> {
        self.unfinished.remove(&attempt)
    }

    /// Keeps what happened until now, and nothing of what happens from here on. Waits for that.
    pub(crate) async fn close(&self) {
        let journal = self.journal.clone();
        // It does not panic, and is waited for only so that what was kept is on its way to the disk.
        let _ = tokio::task::spawn_blocking(move || journal.close()).await;
    }
}

/// What came of a rollout that was over. Reads files.
pub(crate) fn outcome(log: &RolloutLog) -> io::Result<Finished> {
    log.read_outcome()?.ok_or_else(|| io::Error::other("an outcome of the journal is not there"))
}

fn is_unscored(finished: &Finished) -> bool {
    matches!(finished.outcome, Outcome::Unscored(_))
}
