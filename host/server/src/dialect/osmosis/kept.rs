//! What is kept of this protocol's rollouts besides what is kept of every one, so that another
//! process goes on with them and their callers notice nothing.

use std::io;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Osmosis;
use super::error::ApiError;
use super::report::Report;
use super::statuses::{CountedBy, Known};
use rollout_core::budget::{Budget, Charge};
use rollout_core::id::RolloutId;
use rollout_core::outbound::{ModelEndpoint, Secret};
use rollout_core::rollout::{
    Continuation, Ended, Host, Rollout, RolloutLog, Steps, UnfinishedRollout, drive,
};

/// Who drives a rollout that is polled for.
pub(super) const POLLED: &str = "osmosis-polled";
/// Who drives one whose result is posted in two callbacks.
pub(super) const CALLED_BACK: &str = "osmosis-called-back";
/// Who drives one that is answered with its tools, and posted once.
pub(super) const INIT: &str = "osmosis-init";

/// All of them.
pub(super) const DRIVERS: [&str; 3] = [POLLED, CALLED_BACK, INIT];

/// What a driver needs to go on: facts, and what of them nobody may read on disk.
pub(super) fn continuation(
    driver: &'static str,
    facts: &impl Serialize,
    secret: Option<&impl Serialize>,
) -> Continuation {
    // Words, numbers and texts.
    let facts = to_raw_value(facts).unwrap_or_else(|_| RawValue::NULL.to_owned());
    let secret = secret.and_then(|secret| serde_json::to_string(secret).ok()).map(Secret::new);
    Continuation { driver: driver.into(), facts, secret }
}

/// The facts that a driver kept, or what is wrong with them.
pub(super) fn facts<'a, T: Deserialize<'a>>(unfinished: &'a UnfinishedRollout) -> Result<T, String> {
    serde_json::from_str(unfinished.facts.get()).map_err(|error| format!("its driver's facts: {error}"))
}

/// The same, of its secret.
pub(super) fn secret<'a, T: Deserialize<'a>>(unfinished: &'a UnfinishedRollout) -> Result<T, String> {
    let secret = unfinished.secrets.driver.as_ref().map_or("null", Secret::expose);
    serde_json::from_str(secret).map_err(|error| format!("its driver's secret: {error}"))
}

/// Waits until what came of a rollout is kept, where it is to be. Says whether anybody may hear of
/// it: what is not kept could be another result after the next start.
pub(super) async fn may_be_reported(log: Option<&RolloutLog>) -> bool {
    let Some(log) = log else { return true };
    let written = log.written().await;
    if let Err(error) = &written {
        tracing::error!(%error, "a result is not reported, because it cannot be kept");
    }
    written.is_ok()
}

/// Waits until an admission is safe, which is when it may be answered.
pub(super) async fn is_safe(log: Option<&RolloutLog>) -> Result<(), ApiError> {
    match log {
        None => Ok(()),
        Some(log) => log.admitted().await.map_err(|error| ApiError::NotKept(error.to_string())),
    }
}

/// Continues a rollout of an earlier process: runs it to its end, or delivers its outcome where it has one. `asked` says
/// how its model is asked, and `steps` makes its driver, with the rollout where that still runs.
pub(super) fn go_on<S: Steps<End = ()> + 'static>(
    (osmosis, host): (&Osmosis, &Host),
    unfinished: UnfinishedRollout,
    counted: CountedBy,
    asked: impl FnOnce(ModelEndpoint) -> Result<ModelEndpoint, String>,
    steps: impl FnOnce(Known, Option<&Rollout>) -> S,
) -> Result<(), String> {
    let inner = &osmosis.0;
    let id = unfinished.request.id.clone();
    if unfinished.is_over {
        let (osmosis, log) = (osmosis.clone(), unfinished.log().clone());
        let steps = Box::new(steps(inner.statuses.ended(id.clone(), counted), None));
        inner.tasks.spawn(async move {
            if let Some((ended, _held)) = outcome(&osmosis, &id, &log).await {
                steps.finished(ended).await;
            }
        });
        return Ok(());
    }
    let secrets = &unfinished.secrets.request;
    let model = secrets.endpoint(&unfinished.request.model).map_err(|error| error.to_string())?;
    let rollout = host.resume(unfinished, Arc::new(asked(model)?)).map_err(|error| error.to_string())?;
    let steps = steps(inner.statuses.begins(id, rollout.handle(), counted), Some(&rollout));
    inner.tasks.spawn(drive(rollout, Box::new(steps)));
    Ok(())
}

/// What an earlier process's outcomes take of the memory budget at once, at the most: a part of it, and so many bytes.
const OUTCOMES_PART: usize = 16;
const OUTCOMES_BYTES_MAX: usize = 64 << 20;

/// What turns are counted in, in bytes.
const TURN_BYTES: usize = 1 << 10;

/// The turns in which outcomes of an earlier process are read and reported.
pub(super) struct OutcomeTurns {
    turns: Arc<Semaphore>,
    count: usize,
}

impl OutcomeTurns {
    pub(super) fn of(budget: &Budget) -> Self {
        let count = ((budget.total() / OUTCOMES_PART).min(OUTCOMES_BYTES_MAX) / TURN_BYTES).max(1);
        Self { turns: Arc::new(Semaphore::new(count)), count }
    }
}

/// What an outcome holds while it is reported.
pub(super) struct OutcomeTurn {
    _turn: Option<OwnedSemaphorePermit>,
    _charge: Charge,
}

/// How a rollout ended that an earlier process came to the end with, once it is its turn: outcomes of a few bytes are read
/// together, long ones one after the other.
async fn outcome(osmosis: &Osmosis, id: &RolloutId, log: &RolloutLog) -> Option<(Ended, OutcomeTurn)> {
    /// What is read, and what that means.
    const COPIES: usize = 2;
    let inner = &osmosis.0;
    let read = async {
        let of = log.clone();
        let bytes =
            tokio::task::spawn_blocking(move || of.outcome_bytes()).await.map_err(io::Error::other)??;
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).saturating_mul(COPIES);
        let turns = &inner.outcomes;
        let count = (bytes / TURN_BYTES).clamp(1, turns.count);
        let turn =
            turns.turns.clone().acquire_many_owned(u32::try_from(count).unwrap_or(u32::MAX)).await.ok();
        let held = OutcomeTurn { _turn: turn, _charge: inner.budget.charge_result(bytes) };
        let of = log.clone();
        let finished =
            tokio::task::spawn_blocking(move || of.read_outcome()).await.map_err(io::Error::other)??;
        let finished = finished.ok_or_else(|| io::Error::other("it is not there"))?;
        Ok::<_, io::Error>((Ended::of(Box::new(finished)), held))
    };
    match read.await {
        Ok(read) => Some(read),
        Err(error) => {
            tracing::error!(rollout_id = %id, %error, "an outcome of the journal cannot be read, and is left there");
            None
        }
    }
}

/// What the caller of a rollout that this driver drove reported of the model's calls, by what was
/// noted of it.
pub(crate) fn reported(driver: &str, notes: &[Box<RawValue>]) -> Option<Report> {
    (driver == CALLED_BACK).then(|| super::callbacks::reported(notes)).flatten()
}

/// Goes on with a rollout of this protocol. The error is why that cannot be.
pub(super) fn resume(osmosis: &Osmosis, host: &Host, unfinished: UnfinishedRollout) -> Result<(), String> {
    osmosis.keep_swept();
    match unfinished.driver.as_str() {
        POLLED => super::d::resume(osmosis, host, unfinished),
        CALLED_BACK => super::callbacks::resume(osmosis, host, unfinished),
        _ => super::a::resume(osmosis, host, unfinished),
    }
}
