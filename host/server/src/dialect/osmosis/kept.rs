//! The journal's part of a rollout of this protocol: what the next process needs to continue it, so that its caller
//! notices nothing.

use std::io;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::ApiError;
use super::report::Report;
use super::{Osmosis, a, callbacks, d};
use crate::dialect::delivery::Delivery;
use crate::dialect::driver::{Addresses, Driver, Progress, Renderer};
use crate::dialect::ledger::{Entry, Lease};
use rollout_core::budget::{Budget, Charge};
use rollout_core::id::RolloutId;
use rollout_core::outbound::{CallbackClient, ModelEndpoint};
use rollout_core::rollout::{
    AdmitError, Continuation, Ended, Host, Resources, Rollout, RolloutLog, RolloutRequest, Steps,
    UnfinishedRollout, drive,
};
use rollout_core::telemetry::RolloutTrace;

/// The name of this protocol's driver.
pub(super) const DRIVER: &str = "osmosis";

/// Facts that the journal stores with an admission. The addresses are sealed beside them.
#[derive(Serialize, Deserialize)]
pub(super) struct Facts {
    /// The delivery as it began.
    pub delivery: Delivery,
    /// Whether there is anything for a grader to compare with.
    pub gradable: bool,
    /// What its generation needs.
    pub form: Form,
}

/// Facts of one generation.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Form {
    /// Generation D.
    Polled {
        lease: Lease,
        /// Whether a reward was asked for.
        grade: bool,
    },
    /// Generations B and C.
    CalledBack(callbacks::Form),
    /// Generation A.
    Init {
        /// The caller's name of the rollout.
        id: String,
        /// The key by which a request that comes again is known.
        key: String,
    },
}

/// Admits a rollout, with what the next process needs to continue it.
pub(super) fn admit(
    host: &Host,
    (rollout, mut resources): (RolloutRequest, Resources),
    facts: &Facts,
    addresses: &Addresses,
) -> Result<Box<Rollout>, AdmitError> {
    // Words, numbers and texts.
    let facts = to_raw_value(facts).unwrap_or_else(|_| RawValue::NULL.to_owned());
    resources.continuation = Some(Continuation { driver: DRIVER.into(), facts, secret: addresses.sealed() });
    host.admit(rollout, resources)
}

/// Makes the driver of a rollout.
pub(super) fn driver<R: Renderer>(
    host: &Host,
    entry: Entry,
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

/// Waits until an admission is safe, which is when it may be answered.
pub(super) async fn is_safe(log: Option<&RolloutLog>) -> Result<(), ApiError> {
    match log {
        None => Ok(()),
        Some(log) => log.admitted().await.map_err(|error| ApiError::NotKept(error.to_string())),
    }
}

/// Continues a rollout of an earlier process: its journal's facts, and the delivery as far as it is noted. The error is
/// the reason why that cannot be.
pub(super) fn resume(osmosis: &Osmosis, host: &Host, unfinished: UnfinishedRollout) -> Result<(), String> {
    osmosis.keep_swept();
    let facts: Facts = serde_json::from_str(unfinished.facts.get())
        .map_err(|error| format!("its driver's facts: {error}"))?;
    let addresses = Addresses::open(unfinished.secrets.driver.as_ref())
        .map_err(|error| format!("its driver's secret: {error}"))?;
    let progress = Progress::read(facts.delivery, &unfinished.notes)
        .map_err(|error| format!("its driver's notes: {error}"))?;
    let facts = Facts { delivery: progress.delivery, ..facts };
    match facts.form {
        Form::Polled { .. } => d::resume((osmosis, host), unfinished, facts),
        Form::CalledBack(_) => {
            callbacks::resume((osmosis, host), unfinished, facts, (addresses, progress.body))
        }
        Form::Init { .. } => a::resume((osmosis, host), unfinished, facts, (addresses, progress.body)),
    }
}

/// Runs a rollout of an earlier process to its end, or delivers its outcome where it has one. `name` is its caller's,
/// `asked` sets how its model is asked, and `driver` makes its driver, with the rollout where that still runs.
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

/// Returns what the caller of a rollout of this driver reported of the model's calls, by what was noted.
pub(crate) fn reported(driver: &str, notes: &[Box<RawValue>]) -> Option<Report> {
    let report = Progress::report(notes).filter(|_| driver == DRIVER);
    report.map(Report::kept)
}
