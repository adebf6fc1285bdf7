//! What a server refuses before a protocol sees it, in a body that all of them have in common.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// Seconds after which a caller that found no room should come again.
const RETRY_AFTER_SECS: &str = "5";

/// Why a request was not served.
#[derive(Debug)]
pub(super) enum Refused {
    /// No or the wrong key, in the protocol's words.
    Unauthorized(&'static str),
    /// Its sender may not ask, by the names in its head: why.
    Forbidden(String),
    /// Every connection is in use, and this is not for then.
    Crowded,
    /// There is nothing of this name: why.
    NotFound(String),
    /// It is not time for it: why.
    NotNow(String),
    /// There is no room for it now: why.
    NoRoom(String),
    /// What there is cannot be read.
    Unreadable,
    /// No such address.
    NoRoute,
    /// No such method at this address.
    NoMethod,
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let comes_again = matches!(self, Self::Crowded | Self::NoRoom(_));
        let (status, detail) = match self {
            Self::Unauthorized(words) => (StatusCode::UNAUTHORIZED, words.to_owned()),
            Self::Forbidden(why) => (StatusCode::FORBIDDEN, why),
            Self::Crowded => {
                (StatusCode::SERVICE_UNAVAILABLE, "every connection is in use; retry later".to_owned())
            }
            Self::NotFound(why) => (StatusCode::NOT_FOUND, why),
            Self::NotNow(why) => (StatusCode::CONFLICT, why),
            Self::NoRoom(why) => (StatusCode::SERVICE_UNAVAILABLE, why),
            Self::Unreadable => {
                let what = "it cannot be read; the server's log says why";
                (StatusCode::INTERNAL_SERVER_ERROR, what.to_owned())
            }
            Self::NoRoute => (StatusCode::NOT_FOUND, "Not Found".to_owned()),
            Self::NoMethod => (StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed".to_owned()),
        };
        let mut response = (status, Json(json!({ "detail": detail }))).into_response();
        if comes_again {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_SECS));
        }
        response
    }
}
