//! The data of this protocol in the journal. With it, the next process continues a rollout so that its caller notices
//! nothing.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use super::error::ApiError;
use super::report::Report;
use super::{Osmosis, sample};
use crate::dialect::delivery::Delivery;
use crate::dialect::driver::{Addresses, Driver, Progress, Renderer};
use crate::dialect::ledger::{Lease, LedgerEntry};
use rollout_core::telemetry::RolloutTrace;
use rollout_outbound::{CallbackClient, ModelEndpoint};
use rollout_rollout::{
    AdmitError, Continuation, ForkPoint, Host, Resources, Rollout, RolloutLog, RolloutRequest,
    UnfinishedRollout,
};

/// The name of this protocol's driver.
pub(super) const DRIVER: &str = "osmosis";

/// Facts that the journal stores with an admission. The addresses are sealed beside them.
#[derive(Serialize, Deserialize)]
pub(super) struct Facts {
    /// The initial state of the delivery.
    pub delivery: Delivery,
    /// Whether the request has a label or metadata with which a grader can compare the answer.
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
        /// The origin of a fork in a group.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fork_of: Option<ForkPoint>,
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
        client: Some(client.clone()),
        addresses,
        trace,
        renderer,
    })
}

/// Waits until an admission is stored, so that it may be answered.
pub(super) async fn wait_until_stored(log: Option<&RolloutLog>) -> Result<(), ApiError> {
    match log {
        None => Ok(()),
        Some(log) => log.admitted().await.map_err(|error| ApiError::NotKept(error.to_string())),
    }
}

/// Runs a rollout of an earlier process to its end, or delivers its stored outcome, as [`Continued::continue_rollout`]
/// does.
pub(super) fn continue_rollout<R: Renderer>(
    (osmosis, host): (&Osmosis, &Host),
    unfinished: UnfinishedRollout,
    name: &str,
    with_profile: impl FnOnce(ModelEndpoint) -> Result<ModelEndpoint, String>,
    driver: impl FnOnce(Option<&Rollout>) -> Box<Driver<R>>,
) -> Result<(), String> {
    osmosis.0.continued.continue_rollout((&osmosis.0.tasks, host), unfinished, name, with_profile, driver)
}

/// Returns the caller's report of model calls from the notes of a rollout with this driver.
pub(crate) fn reported(driver: &str, notes: &[Box<RawValue>]) -> Option<Report> {
    let report = Progress::report(notes).filter(|_| driver == DRIVER);
    report.map(Report::from_stored)
}
