//! The resources server for graders: sessions without state.
//!
//! Gym's agents open a session, which is a cookie, before they post a conversation to `/verify`. A grader needs none: it reads
//! the conversation alone.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::{NemoGym, refused};
use crate::dialect::body::{Body, BodyRefused};
use crate::dialect::row::{field, text_of};
use crate::random;
use rollout_wire as wire;

/// Maximum size of a request in bytes. A seed has the whole row.
const BODY_BYTES_MAX: usize = 64 << 20;

/// Name of the cookie of a session.
const COOKIE: &str = "rollout_host_session";

/// Opens a session.
pub(super) async fn seed_session(
    State(gym): State<NemoGym>,
    body: Result<Body<BODY_BYTES_MAX>, BodyRefused>,
) -> Response {
    if gym.0.serving.host().grader().is_none() {
        let why = "this plugin has no grader; a resources server needs one: add it, or start the server with --grader";
        return refused(StatusCode::INTERNAL_SERVER_ERROR, why);
    }
    let session = match session_of(body) {
        Ok(session) => session,
        Err(response) => return *response,
    };
    let answer = match session {
        Some(id) => json!({"resources_session_id": id, "resources_tools": null, "sandbox_access": null}),
        None => json!({}),
    };
    let mut response = Json(answer).into_response();
    let cookie = format!("{COOKIE}={}; Path=/; HttpOnly; SameSite=Lax", random::id());
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

/// Closes a session. A session that does not exist is closed.
pub(super) async fn close_session(
    State(_gym): State<NemoGym>,
    body: Result<Body<BODY_BYTES_MAX>, BodyRefused>,
) -> Response {
    match session_of(body) {
        Ok(session) => {
            let id = session.map(|id| ("resources_session_id".to_owned(), Value::String(id)));
            Json(Map::from_iter(id)).into_response()
        }
        Err(response) => *response,
    }
}

/// Answers that stored rows can be verified again, without a session.
pub(super) async fn reverify_mode() -> Json<&'static str> {
    Json("stateless")
}

/// Returns the id of a session in a body, if it has one.
fn session_of(body: Result<Body<BODY_BYTES_MAX>, BodyRefused>) -> Result<Option<String>, Box<Response>> {
    let body = body.map_err(|refused| Box::new(refused.into_response()))?;
    let text = std::str::from_utf8(body.bytes()).map_err(|_| "the body is not UTF-8".to_owned());
    let object = text.and_then(|text| wire::object(text).map_err(|wrong| format!("the body is {wrong}")));
    let object = object.map_err(|why| Box::new(refused(StatusCode::UNPROCESSABLE_ENTITY, why)))?;
    Ok(field(object.get(), "resources_session_id").and_then(text_of))
}
