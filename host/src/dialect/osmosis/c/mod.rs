//! Generation C: the result is posted back in two callbacks, with one sample.
//!
//! The callbacks are in [`super::callbacks`], which generation B shares; what is here is
//! C's alone.

use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use super::{Osmosis, id_in_path};
use crate::rollout::Phase;

/// Says how far a rollout is; always answered, an unknown id among others.
pub(super) async fn status(State(osmosis): State<Osmosis>, path: Path<String>) -> Json<Value> {
    let asked = path.0.clone();
    let handle = id_in_path(path).and_then(|id| osmosis.0.host.find(&id));
    let status = match handle.map(|handle| handle.phase()) {
        None => "unknown",
        Some(Phase::Queued) => "queued",
        Some(Phase::Running) => "running",
        Some(Phase::Grading) => "grading",
    };
    Json(json!({"rollout_id": asked, "status": status, "reward": null, "err_message": null}))
}
