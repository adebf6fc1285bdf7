//! `POST /rollout/cancel`: stops rollouts, whichever generation started them.

use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use futures_util::future::join_all;
use serde_json::{Map, Value, json};

use super::Osmosis;
use super::error::ApiError;
use super::fields::Fields;
use super::request::is_json;
use crate::id::RolloutId;
use crate::rollout::{Handle, Phase};

/// How long an answer waits for what it cancelled to be over. Clients wait 5 s for it.
const STOP_WAIT_MAX: Duration = Duration::from_secs(2);

/// Which rollouts are meant.
pub(super) enum Selector {
    Ids(Vec<String>),
    Prefix(String),
    All,
}

impl Selector {
    fn matches(&self, id: &RolloutId) -> bool {
        match self {
            Self::Ids(ids) => ids.iter().any(|wanted| wanted == id.as_str()),
            Self::Prefix(prefix) => id.as_str().starts_with(prefix),
            Self::All => true,
        }
    }
}

pub(super) fn read(headers: &HeaderMap, body: &[u8]) -> Result<Selector, ApiError> {
    let mut fields = Fields::of(body, is_json(headers)).map_err(ApiError::Invalid)?;
    let ids = fields.texts("ids").map(Selector::Ids);
    let prefix = fields.text("prefix").map(Selector::Prefix);
    let all = if fields.has("all") { fields.flag("all") } else { None };
    let all = all.filter(|all| *all).map(|_| Selector::All);
    let given: Vec<Selector> =
        fields.finish(Some([ids, prefix, all])).map_err(ApiError::Invalid)?.into_iter().flatten().collect();
    match <[Selector; 1]>::try_from(given) {
        Ok([selector]) => Ok(selector),
        Err(_) => Err(ApiError::Selector),
    }
}

/// Stops the rollouts that are meant and says of each what became of it.
pub(super) async fn cancel(
    State(osmosis): State<Osmosis>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Json<Value>, ApiError> {
    let selector = read(&headers, &body)?;
    let mut dispositions = Map::new();
    let named = match &selector {
        Selector::Ids(ids) => ids.clone(),
        Selector::Prefix(_) | Selector::All => osmosis.0.polled.ids(|id| selector.matches(id)),
    };
    for id in named {
        dispositions.insert(id, "not_found".into());
    }
    let mut stopping = Vec::new();
    for id in osmosis.0.host.live_ids(|id| selector.matches(id)) {
        let Some(handle) = osmosis.0.host.find(&id) else { continue };
        let disposition = match handle.phase() {
            Phase::Queued => "cancelled_queued",
            Phase::Running | Phase::Grading => "cancelled_running",
        };
        handle.cancel();
        dispositions.insert(id.into(), disposition.into());
        stopping.push(handle);
    }
    // Who is told that a rollout was cancelled may count on it. A rollout that is slow
    // to go, its trajectory on a slow disk, is not waited for.
    let over = join_all(stopping.iter().map(Handle::over));
    if tokio::time::timeout(STOP_WAIT_MAX, over).await.is_err() {
        tracing::warn!("cancelled rollouts are slow to end");
    }
    Ok(Json(json!({ "dispositions": dispositions })))
}
