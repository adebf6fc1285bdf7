//! The data of this protocol that the journal stores, with which the next process continues a rollout without a change
//! for its caller.

use std::io;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::ApiError;
use super::report::Report;
use super::{Osmosis, sample};
use crate::dialect::delivery::Delivery;
use crate::dialect::driver::{Addresses, Driver, Progress, Renderer};
use crate::dialect::ledger::{Lease, LedgerEntry};
use rollout_core::budget::{Budget, Charge};
use rollout_core::telemetry::RolloutTrace;
use rollout_outbound::{CallbackClient, ModelEndpoint};
use rollout_rollout::{
    AdmitError, Continuation, Host, Resources, Rollout, RolloutEnd, RolloutLog, RolloutRequest, Steps,
    UnfinishedRollout, drive,
};
use rollout_wire::id::RolloutId;

/// The name of this protocol's driver.
pub(super) const DRIVER: &str = "osmosis";

/// Facts that the journal stores with an admission. The addresses are sealed beside them.
#[derive(Serialize, Deserialize)]
pub(super) struct Facts {
    /// The initial state of the delivery.
    pub delivery: Delivery,
    /// Whether the request has a label or metadata, with which a grader can compare the answer.
    pub gradable: bool,
    /// Facts of its generation.
    pub form: Form,
}

/// Facts of one generation.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Form {
    /// Generation D.
    Polled {
        lease: Lease,
        /// Whether the caller asked for a reward.
        grade: bool,
    },
    /// Generations B and C.
    CalledBack(sample::Form),
    /// Generation A.
    Init {
        /// The caller's name of the rollout.
        id: String,
        /// The key of repeated requests.
        key: String,
    },
}

/// Admits a rollout with the facts that the next process needs to continue it.
pub(super) fn admit(
    host: &Host,
    (rollout, mut resources): (RolloutRequest, Resources),
    facts: &Facts,
    addresses: &Addresses,
) -> Result<Box<Rollout>, AdmitError> {
    // Words, numbers and texts cannot fail to serialize.
    let facts = to_raw_value(facts).unwrap_or_else(|_| RawValue::NULL.to_owned());
    resources.continuation = Some(Continuation { driver: DRIVER.into(), facts, secret: addresses.sealed() });
    host.admit(rollout, resources)
}

/// Creates the driver of a rollout.
pub(super) fn driver<R: Renderer>(
    host: &Host,
    entry: LedgerEntry,
    facts: &Facts,
    (client, addresses): (&Arc<CallbackClient>, Addresses),
    (log, trace): (Option<RolloutLog>, RolloutTrace),
    renderer: R,
) -> Box<Driver<R>> {
    Box::new(Driver {
        entry,
        log,
        is_gradable: facts.gradable && host.grader().is_some(),
        delivery: facts.delivery.clone().into(),
        client: client.clone(),
        addresses,
        trace,
        renderer,
    })
}

/// Waits until an admission is stored, so that it may be answered.
pub(super) async fn is_safe(log: Option<&RolloutLog>) -> Result<(), ApiError> {
    match log {
        None => Ok(()),
        Some(log) => log.admitted().await.map_err(|error| ApiError::NotKept(error.to_string())),
    }
}

/// Runs a rollout of an earlier process to its end, or delivers its stored outcome. `name` is the caller's name of the
/// rollout, `asked` adds the caller's profile to the model, and `driver` creates the driver, with the rollout if it
/// still runs.
pub(super) fn go_on<R: Renderer>(
    (osmosis, host): (&Osmosis, &Host),
    unfinished: UnfinishedRollout,
    name: &str,
    asked: impl FnOnce(ModelEndpoint) -> Result<ModelEndpoint, String>,
    driver: impl FnOnce(Option<&Rollout>) -> Box<Driver<R>>,
) -> Result<(), String> {
    let inner = &osmosis.0;
    let id = unfinished.request.id.clone();
    if unfinished.is_over {
        let (osmosis, log) = (osmosis.clone(), unfinished.log().clone());
        let driver = driver(None);
        driver.entry.begin(id.clone(), name, None);
        inner.tasks.spawn(async move {
            if let Some((ended, _held)) = outcome(&osmosis, &id, &log).await {
                driver.finished(ended).await;
            }
        });
        return Ok(());
    }
    let secrets = &unfinished.secrets.request;
    let model = secrets.endpoint(&unfinished.request.model).map_err(|error| error.to_string())?;
    let rollout = host.resume(unfinished, Arc::new(asked(model)?)).map_err(|error| error.to_string())?;
    let driver = driver(Some(&rollout));
    driver.entry.begin(id, name, Some(rollout.handle()));
    inner.tasks.spawn(drive(rollout, driver));
    Ok(())
}

/// Maximum memory of the outcomes of an earlier process that are read at once: a part of the budget, and a number of
/// bytes.
const OUTCOMES_PART: usize = 16;
const OUTCOMES_BYTES_MAX: usize = 64 << 20;

/// Unit of the turns in bytes.
const TURN_BYTES: usize = 1 << 10;

/// Turns in which outcomes of an earlier process are read and reported.
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

/// The turn of an outcome that is being reported.
pub(super) struct OutcomeTurn {
    _turn: Option<OwnedSemaphorePermit>,
    _charge: Charge,
}

/// Reads the stored outcome of an earlier process's rollout when it is its turn. Short outcomes are read together, long
/// ones one after the other.
async fn outcome(osmosis: &Osmosis, id: &RolloutId, log: &RolloutLog) -> Option<(RolloutEnd, OutcomeTurn)> {
    /// Copies of an outcome that exist at once: the stored bytes and the parsed outcome.
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
        Ok::<_, io::Error>((RolloutEnd::from_finished(Box::new(finished)), held))
    };
    match read.await {
        Ok(read) => Some(read),
        Err(error) => {
            tracing::error!(rollout_id = %id, %error, "an outcome in the journal cannot be read and stays there");
            None
        }
    }
}

/// Returns the caller's report of model calls from the notes of a rollout with this driver.
pub(crate) fn reported(driver: &str, notes: &[Box<RawValue>]) -> Option<Report> {
    let report = Progress::report(notes).filter(|_| driver == DRIVER);
    report.map(Report::from_stored)
}
