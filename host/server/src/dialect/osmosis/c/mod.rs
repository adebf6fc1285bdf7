//! Generation C: the result is posted back in two callbacks, with one sample.
//!
//! The callbacks are in [`super::callbacks`], which generation B shares; what is here is
//! C's alone.

use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use super::statuses::Over;
use super::{Osmosis, id_in_path};

/// Says how far a rollout is, or what came of it; always answered, an unknown id among others.
pub(super) async fn status(State(osmosis): State<Osmosis>, path: Path<String>) -> Json<Value> {
    let asked = path.0.clone();
    let known = id_in_path(path).and_then(|id| osmosis.0.statuses.of(&id));
    let Over { status, reward, err_message } = known.unwrap_or_else(|| Over::word("unknown"));
    Json(json!({"rollout_id": asked, "status": status, "reward": reward, "err_message": err_message}))
}
