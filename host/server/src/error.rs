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
    /// The key is missing or wrong. Contains the protocol's error text.
    Unauthorized(&'static str),
    /// The request is not allowed. Contains the reason.
    Forbidden(String),
    /// All connections are in use, and the route is not one of the short ones.
    Crowded,
    /// The item does not exist. Contains the reason.
    NotFound(String),
    /// The item is not ready yet. Contains the reason.
    NotReady(String),
    /// The server has no room at present. Contains the reason.
    NoRoom(String),
    /// No further rollout is admitted at present. Contains the reason. All clients repeat the request after this
    /// status; the published clients stop after any other.
    NotAdmitted(String),
    /// The server failed. The log has the reason.
    Internal,
    /// There is no such route.
    NoRoute,
    /// The route does not support the method.
    NoMethod,
}

impl IntoResponse for RequestRefused {
    fn into_response(self) -> Response {
        let is_retryable = matches!(self, Self::Crowded | Self::NoRoom(_) | Self::NotAdmitted(_));
        let (status, detail) = match self {
            Self::Unauthorized(text) => (StatusCode::UNAUTHORIZED, text.to_owned()),
            Self::Forbidden(reason) => (StatusCode::FORBIDDEN, reason),
            Self::Crowded => {
                (StatusCode::SERVICE_UNAVAILABLE, "every connection is in use; retry later".to_owned())
            }
            Self::NotFound(reason) => (StatusCode::NOT_FOUND, reason),
            Self::NotReady(reason) => (StatusCode::CONFLICT, reason),
            Self::NoRoom(reason) => (StatusCode::SERVICE_UNAVAILABLE, reason),
            Self::NotAdmitted(reason) => (StatusCode::TOO_MANY_REQUESTS, reason),
            Self::Internal => {
                let text = "the server failed; its log has the reason";
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
