//! Errors of requests that the server refuses before a protocol sees them. The body, `{"detail": …}`, is the same for all
//! protocols.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// Seconds of the header `Retry-After` of requests that found no room.
const RETRY_AFTER_SECS: &str = "5";

/// Reason why a request was refused.
#[derive(Debug)]
pub(super) enum RequestRefused {
    /// The key is missing or wrong. The text is the protocol's.
    Unauthorized(&'static str),
    /// The request is not allowed, for this reason.
    Forbidden(String),
    /// All connections are in use, and the route is not short.
    Crowded,
    /// The item does not exist, for this reason.
    NotFound(String),
    /// The item is not ready yet, for this reason.
    NotReady(String),
    /// There is no room at present, for this reason.
    NoRoom(String),
    /// The item cannot be read. The log has the reason.
    Unreadable,
    /// There is no such route.
    NoRoute,
    /// The route does not support the method.
    NoMethod,
}

impl IntoResponse for RequestRefused {
    fn into_response(self) -> Response {
        let is_retryable = matches!(self, Self::Crowded | Self::NoRoom(_));
        let (status, detail) = match self {
            Self::Unauthorized(text) => (StatusCode::UNAUTHORIZED, text.to_owned()),
            Self::Forbidden(reason) => (StatusCode::FORBIDDEN, reason),
            Self::Crowded => {
                (StatusCode::SERVICE_UNAVAILABLE, "every connection is in use; retry later".to_owned())
            }
            Self::NotFound(reason) => (StatusCode::NOT_FOUND, reason),
            Self::NotReady(reason) => (StatusCode::CONFLICT, reason),
            Self::NoRoom(reason) => (StatusCode::SERVICE_UNAVAILABLE, reason),
            Self::Unreadable => {
                let text = "the rollout cannot be read; the server's log has the reason";
                (StatusCode::INTERNAL_SERVER_ERROR, text.to_owned())
            }
            Self::NoRoute => (StatusCode::NOT_FOUND, "Not Found".to_owned()),
            Self::NoMethod => (StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed".to_owned()),
        };
        let mut response = (status, Json(json!({ "detail": detail }))).into_response();
        if is_retryable {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_SECS));
        }
        response
    }
}
