//! The resources server: sessions, which have no state for a grader and are episodes for an environment.
//!
//! Gym's agents open a session, identified by a cookie, before they post a conversation to `/verify`. A grader reads only the
//! conversation and needs no session. For an environment, the seed begins the session's episode.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::episode::COOKIE;
use super::row::Row;
use super::{NemoGym, episode, refused};
use crate::dialect::body::{Body, BodyRefused};
use crate::random;
use rollout_core::budget::Use;

/// Maximum size of a request in bytes. A seed contains the whole row.
const BODY_BYTES_MAX: usize = 64 << 20;

/// Memory of a seed's arguments, in multiples of the body's bytes: a value takes up to 32 bytes and has at least two of
/// text.
const PARSED_BYTES_PER_BYTE: usize = 16;

/// Opens a session.
pub(super) async fn seed_session(
    State(gym): State<NemoGym>,
    body: Result<Body<BODY_BYTES_MAX>, BodyRefused>,
) -> Response {
    let host = gym.0.serving.host();
    if host.grader().is_none() && !host.has_environment() {
        let why = "this plugin has no grader; a resources server needs one, or an environment: add it, or start the server \
                   with --grader";
        return refused(StatusCode::INTERNAL_SERVER_ERROR, why);
    }
    let seed = match seed_of(body) {
        Ok(seed) => seed,
        Err(response) => return *response,
    };
    let session = seed.session();
    let cookie = match host.has_environment() {
        true => {
            let bytes = seed.memory_bytes() * PARSED_BYTES_PER_BYTE;
            let _charge = match gym.0.budget.charge(Use::Request, bytes) {
                Ok(charge) => charge,
                Err(over) => return refused(StatusCode::SERVICE_UNAVAILABLE, over.to_string()),
            };
            let reset = match seed.reset(&gym.settings().fields) {
                Ok(reset) => reset,
                Err(why) => return refused(StatusCode::UNPROCESSABLE_ENTITY, why),
            };
            match episode::begin(&gym, session.as_deref(), reset).await {
                Ok(cookie) => cookie,
                Err(response) => return response,
            }
        }
        false => random::id(),
    };
    let answer = match session {
        Some(id) => json!({"resources_session_id": id, "resources_tools": null, "sandbox_access": null}),
        None => json!({}),
    };
    let mut response = Json(answer).into_response();
    let cookie = format!("{COOKIE}={cookie}; Path=/; HttpOnly; SameSite=Lax");
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

/// Closes a session. A session that does not exist counts as closed.
pub(super) async fn close_session(
    State(gym): State<NemoGym>,
    headers: HeaderMap,
    body: Result<Body<BODY_BYTES_MAX>, BodyRefused>,
) -> Response {
    match seed_of(body) {
        Ok(seed) => {
            let session = seed.session();
            gym.0.episodes.close(&headers, session.as_deref());
            let id = session.map(|id| ("resources_session_id".to_owned(), Value::String(id)));
            Json(Map::from_iter(id)).into_response()
        }
        Err(response) => *response,
    }
}

/// Answers whether stored rows can be verified again without a session, which only a grader can do.
pub(super) async fn reverify_mode(State(gym): State<NemoGym>) -> Json<&'static str> {
    let host = gym.0.serving.host();
    let is_episode = host.grader().is_none() && host.has_environment();
    Json(if is_episode { "unsupported" } else { "stateless" })
}

/// Reads the body of a request about a session, which may have the session's id.
fn seed_of(body: Result<Body<BODY_BYTES_MAX>, BodyRefused>) -> Result<Row, Box<Response>> {
    let mut body = body.map_err(|refused| Box::new(refused.into_response()))?;
    let row = body.parse(Row::of_seed).map_err(|refused| Box::new(refused.into_response()))?;
    row.map_err(|why| Box::new(refused(StatusCode::UNPROCESSABLE_ENTITY, why)))
}
