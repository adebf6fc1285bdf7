//! Generation C: the result is posted in two callbacks, with one sample.
//!
//! The callbacks are in [`super::callbacks`], which generation B shares; this module has C's own part.

use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use super::{Osmosis, id_in_path};
use crate::dialect::ledger::PublicOutcome;

/// Returns the status or the outcome of a rollout, and the status `unknown` for an unknown id.
pub(super) async fn status(State(osmosis): State<Osmosis>, path: Path<String>) -> Json<Value> {
    let requested_id = path.0.clone();
    let id = id_in_path(path);
    let known = id.as_ref().and_then(|id| osmosis.0.ledger.status(id));
    let stored = match (&known, &id) {
        (None, Some(id)) => osmosis.0.ledger.stored_status(id).await,
        _ => None,
    };
    let PublicOutcome { status, reward, err_message } =
        known.unwrap_or_else(|| PublicOutcome::with_status("unknown"));
    let status = stored.as_deref().unwrap_or(status);
    Json(json!({"rollout_id": requested_id, "status": status, "reward": reward, "err_message": err_message}))
}
