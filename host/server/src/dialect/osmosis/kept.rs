//! What is kept of this protocol's rollouts besides what is kept of every one, so that another
//! process goes on with them and their callers notice nothing.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use super::Osmosis;
use super::error::ApiError;
use super::report::Report;
use rollout_core::outbound::{ModelEndpoint, Secret};
use rollout_core::rollout::{Continuation, Host, Rollout, RolloutLog, UnfinishedRollout};

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

/// The rollout itself, to be driven on, with its model asked as this says.
pub(super) fn rollout(
    host: &Host,
    unfinished: UnfinishedRollout,
    asked: impl FnOnce(ModelEndpoint) -> ModelEndpoint,
) -> Result<Box<Rollout>, String> {
    let secrets = &unfinished.secrets.request;
    let model = secrets.endpoint(&unfinished.request.model).map_err(|error| error.to_string())?;
    host.resume(unfinished, Arc::new(asked(model))).map_err(|error| error.to_string())
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
