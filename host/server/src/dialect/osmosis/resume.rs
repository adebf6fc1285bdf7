//! Continues rollouts of an earlier process, each by its generation.

use super::journaled::{Facts, Form};
use super::{Osmosis, a, callbacks, d};
use crate::dialect::driver::{Addresses, Progress};
use rollout_rollout::{Host, UnfinishedRollout};

/// Continues a rollout of an earlier process from its journal's facts and notes. The error is the reason why it cannot
/// continue.
pub(super) fn resume(osmosis: &Osmosis, host: &Host, unfinished: UnfinishedRollout) -> Result<(), String> {
    osmosis.start_sweeping();
    let facts: Facts = serde_json::from_str(unfinished.facts.get())
        .map_err(|error| format!("cannot parse the facts of its driver: {error}"))?;
    let addresses = Addresses::open(unfinished.secrets.driver.as_ref())
        .map_err(|error| format!("cannot parse the secret of its driver: {error}"))?;
    let progress = Progress::read(facts.delivery, &unfinished.notes)
        .map_err(|error| format!("cannot parse the notes of its driver: {error}"))?;
    let facts = Facts { delivery: progress.delivery, ..facts };
    match facts.form {
        Form::Polled { .. } => d::resume((osmosis, host), unfinished, facts),
        Form::CalledBack(_) => {
            callbacks::resume((osmosis, host), unfinished, facts, (addresses, progress.body))
        }
        Form::Init { .. } => a::resume((osmosis, host), unfinished, facts, (addresses, progress.body)),
    }
}
