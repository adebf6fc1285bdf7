//! `POST /rollout/cancel`: stops rollouts of any generation.

use std::collections::HashSet;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use futures_util::future::join_all;
use serde::{Serialize, Serializer};

use super::Osmosis;
use super::error::ApiError;
use super::fields::Fields;
use super::request::is_json;
use crate::dialect::body::{Body, BodyRefused};
use rollout_rollout::{Handle, Phase};
use rollout_wire::id::RolloutId;

/// Maximum time for which a response waits until the cancelled rollouts have ended. Clients wait 5 s for the response.
const STOP_WAIT_MAX: Duration = Duration::from_secs(2);

/// Maximum size of a request in bytes. All rollouts of a host fit, if their ids have the usual length.
const BODY_BYTES_MAX: usize = 4 << 20;

/// Number of ids that are looked up before the task yields.
const IDS_A_TURN: usize = 256;

/// The rollouts to cancel.
pub(super) enum Selector {
    Ids(Vec<String>),
    Prefix(String),
    All,
}

pub(super) fn read(headers: &HeaderMap, body: &[u8]) -> Result<Selector, ApiError> {
    let mut fields = Fields::of(body, is_json(headers))?;
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

/// The outcome for each rollout of a request.
#[derive(Serialize)]
pub(super) struct Cancelled {
    dispositions: Dispositions,
}

struct Dispositions(Vec<(String, &'static str)>);

impl Serialize for Dispositions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(id, disposition)| (id, disposition)))
    }
}

/// Stops the rollouts of a request and reports each of them.
pub(super) async fn cancel(
    State(osmosis): State<Osmosis>,
    headers: HeaderMap,
    body: Result<Body<BODY_BYTES_MAX>, BodyRefused>,
) -> Result<Json<Cancelled>, ApiError> {
    let body = body?;
    let selector = read(&headers, body.bytes())?;
    drop(body);
    let named = match selector {
        Selector::Ids(ids) => {
            let mut seen = HashSet::with_capacity(ids.len());
            let first: Vec<bool> = ids.iter().map(|id| seen.insert(id.as_str())).collect();
            ids.into_iter().zip(first).filter_map(|(id, is_first)| is_first.then_some(id)).collect()
        }
        Selector::Prefix(prefix) => known(&osmosis, |id| id.as_str().starts_with(&prefix)),
        Selector::All => known(&osmosis, |_| true),
    };
    let mut dispositions = Vec::with_capacity(named.len());
    let mut stopping = Vec::new();
    for (at, id) in named.into_iter().enumerate() {
        if at % IDS_A_TURN == IDS_A_TURN - 1 {
            tokio::task::yield_now().await;
        }
        let found =
            RolloutId::parse(id.as_str()).ok().and_then(|parsed| osmosis.0.serving.host().find(&parsed));
        let disposition = match found.as_ref().map(Handle::phase) {
            None => "not_found",
            Some(Phase::Queued) => "cancelled_queued",
            Some(Phase::Running | Phase::Grading) => "cancelled_running",
        };
        if let Some(handle) = found {
            handle.cancel();
            stopping.push(handle);
        }
        dispositions.push((id, disposition));
    }
    // An answered cancellation survives a crash of this process. One wait covers all rollouts.
    if let Some(log) = stopping.last().and_then(Handle::log) {
        log.written().await.map_err(|error| ApiError::NotKept(error.to_string()))?;
    }
    // A reported cancellation is final. The response does not wait for a rollout that ends slowly, such as one that writes
    // its trajectory to a slow disk.
    let ended = join_all(stopping.iter().map(Handle::wait_for_end));
    if tokio::time::timeout(STOP_WAIT_MAX, ended).await.is_err() {
        tracing::warn!("cancelled rollouts are slow to end");
    }
    Ok(Json(Cancelled { dispositions: Dispositions(dispositions) }))
}

/// Returns the known rollouts that match, each once, running ones first.
fn known(osmosis: &Osmosis, matches: impl Fn(&RolloutId) -> bool) -> Vec<String> {
    let mut named: Vec<String> =
        osmosis.0.serving.host().live_ids(&matches).into_iter().map(String::from).collect();
    let live: HashSet<&str> = named.iter().map(String::as_str).collect();
    let mut over = osmosis.0.ledger.polled_ids(&matches);
    over.retain(|id| !live.contains(id.as_str()));
    drop(live);
    named.append(&mut over);
    named
}
