//! The only producer of error bodies of the admin API.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::CheckError;
use super::wire::{ErrorBody, ErrorDetail};
use rollout_catalog::CatalogError;

/// Seconds after which somebody who found no room should come again.
const RETRY_AFTER_SECS: &str = "5";

/// Why a request was not served.
#[derive(Debug)]
pub(super) enum ApiError {
    /// It is wrong: how.
    Invalid(String),
    /// There is no good key.
    Unauthorized,
    /// The key is not for this, or a quota says no: which.
    Forbidden(String),
    /// It is not there, or not this tenant's: what.
    NotFound(String),
    /// No such address.
    NoRoute,
    /// No such method at this address.
    NoMethod,
    /// What is there does not allow it: what.
    Conflict(String),
    /// The body is larger than it may be: than what.
    TooLarge(String),
    /// The body came too slowly: how.
    Slow(String),
    /// Too much of this at once: of what.
    TooMany(String),
    /// There is no room now: for what.
    NoRoom(String),
    /// This machine's trouble, which the log has.
    Internal,
}

impl ApiError {
    /// What was asked for panicked, or was dropped when the server stopped.
    pub(super) fn panicked(error: tokio::task::JoinError) -> Self {
        tracing::error!(%error, "a request of the admin API came to no end");
        Self::Internal
    }
}

impl From<CatalogError> for ApiError {
    fn from(error: CatalogError) -> Self {
        let said = error.to_string();
        match error {
            CatalogError::NotFound { .. } | CatalogError::NoEarlierVersion(_) => Self::NotFound(said),
            CatalogError::Exists { .. }
            | CatalogError::ChecksFailed { .. }
            | CatalogError::UnknownComponent(_)
            | CatalogError::Revoked(_) => Self::Conflict(said),
            // Waiting does not help.
            CatalogError::Quota(_) | CatalogError::TooMany { .. } => Self::Forbidden(said),
            CatalogError::TooLarge { .. } => Self::TooLarge(said),
            CatalogError::DigestMismatch { .. }
            | CatalogError::MalformedKey
            | CatalogError::TenantMismatch => Self::Invalid(said),
            error => {
                let reason = std::error::Error::source(&error).map(ToString::to_string);
                tracing::error!(%error, reason, "the catalog failed");
                Self::Internal
            }
        }
    }
}

impl From<CheckError> for ApiError {
    fn from(error: CheckError) -> Self {
        match error {
            CheckError::Busy(why) => Self::NoRoom(why),
            CheckError::Failed(why) => {
                tracing::error!(why, "a deployment could not be checked");
                Self::Internal
            }
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (status, kind, message) = match self {
            Self::Invalid(why) => (StatusCode::BAD_REQUEST, "invalid", why),
            Self::Unauthorized => {
                let how = "a key is needed that is neither expired nor revoked: Authorization: Bearer rh_…";
                (StatusCode::UNAUTHORIZED, "unauthorized", how.to_owned())
            }
            Self::Forbidden(why) => (StatusCode::FORBIDDEN, "forbidden", why),
            Self::NotFound(what) => (StatusCode::NOT_FOUND, "not-found", what),
            Self::NoRoute => {
                let where_else = "there is no such address; /admin/v1/openapi.json lists those there are";
                (StatusCode::NOT_FOUND, "not-found", where_else.to_owned())
            }
            Self::NoMethod => {
                let what = "this address has no such method".to_owned();
                (StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", what)
            }
            Self::Conflict(why) => (StatusCode::CONFLICT, "conflict", why),
            Self::TooLarge(why) => (StatusCode::PAYLOAD_TOO_LARGE, "too-large", why),
            Self::Slow(why) => (StatusCode::REQUEST_TIMEOUT, "too-slow", why),
            Self::TooMany(what) => (StatusCode::TOO_MANY_REQUESTS, "too-many", what),
            Self::NoRoom(what) => (StatusCode::SERVICE_UNAVAILABLE, "no-room", what),
            Self::Internal => {
                let what = "the server failed; its log says why".to_owned();
                (StatusCode::INTERNAL_SERVER_ERROR, "internal", what)
            }
        };
        let body = ErrorBody { error: ErrorDetail { kind: kind.to_owned(), message } };
        let mut response = (status, Json(body)).into_response();
        if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_SECS));
        }
        response
    }
}
