//! Errors of the admin API, and their bodies.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::CheckError;
use super::wire::{ErrorBody, ErrorDetail};
use rollout_catalog::CatalogError;

/// Seconds of the header `Retry-After` of requests that found no room.
const RETRY_AFTER_SECS: &str = "5";

/// Reason why a request failed. Most variants carry the message of the response.
#[derive(Debug)]
pub(super) enum ApiError {
    /// The request is invalid.
    Invalid(String),
    /// The key is missing, wrong, expired or revoked.
    Unauthorized,
    /// The key lacks a right, or a quota is used up.
    Forbidden(String),
    /// The item does not exist for this tenant.
    NotFound(String),
    /// There is no such route.
    NoRoute,
    /// The route does not support the method.
    NoMethod,
    /// The state of the catalog does not allow the request.
    Conflict(String),
    /// The body is too large.
    TooLarge(String),
    /// The body arrived too slowly.
    Slow(String),
    /// The tenant has too many such requests in progress.
    TooMany(String),
    /// The server has no room at present.
    NoRoom(String),
    /// The server failed; the log has the reason.
    Internal,
}

impl ApiError {
    /// Returns the error of a task that panicked, or was dropped at shutdown.
    pub(super) fn panicked(error: tokio::task::JoinError) -> Self {
        tracing::error!(%error, "a request of the admin API panicked or was cancelled");
        Self::Internal
    }
}

impl From<CatalogError> for ApiError {
    fn from(error: CatalogError) -> Self {
        let message = error.to_string();
        match error {
            CatalogError::NotFound { .. } | CatalogError::NoEarlierVersion(_) => Self::NotFound(message),
            CatalogError::Exists { .. }
            | CatalogError::ChecksFailed { .. }
            | CatalogError::Untrusted { .. }
            | CatalogError::ActivatedMeanwhile { .. }
            | CatalogError::UnknownComponent(_)
            | CatalogError::Revoked(_) => Self::Conflict(message),
            // Not `TooMany`, because a retry does not help.
            CatalogError::Quota(_) | CatalogError::TooMany { .. } => Self::Forbidden(message),
            CatalogError::TooLarge { .. } => Self::TooLarge(message),
            CatalogError::DigestMismatch { .. }
            | CatalogError::MalformedKey
            | CatalogError::TenantMismatch => Self::Invalid(message),
            CatalogError::Unavailable(_) => Self::NoRoom(message),
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
            CheckError::Busy(message) => Self::NoRoom(message),
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
            Self::Invalid(message) => (StatusCode::BAD_REQUEST, "invalid", message),
            Self::Unauthorized => {
                let message = "send a key that is neither expired nor revoked: Authorization: Bearer rh_…";
                (StatusCode::UNAUTHORIZED, "unauthorized", message.to_owned())
            }
            Self::Forbidden(message) => (StatusCode::FORBIDDEN, "forbidden", message),
            Self::NotFound(message) => (StatusCode::NOT_FOUND, "not-found", message),
            Self::NoRoute => {
                let message = format!("there is no such route; {} lists all routes", super::DESCRIPTION);
                (StatusCode::NOT_FOUND, "not-found", message)
            }
            Self::NoMethod => {
                let message = format!("this route has no such method; {} lists all", super::DESCRIPTION);
                (StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", message)
            }
            Self::Conflict(message) => (StatusCode::CONFLICT, "conflict", message),
            Self::TooLarge(message) => (StatusCode::PAYLOAD_TOO_LARGE, "too-large", message),
            Self::Slow(message) => (StatusCode::REQUEST_TIMEOUT, "too-slow", message),
            Self::TooMany(message) => (StatusCode::TOO_MANY_REQUESTS, "too-many", message),
            Self::NoRoom(message) => (StatusCode::SERVICE_UNAVAILABLE, "no-room", message),
            Self::Internal => {
                let message = "the server failed; its log has the reason".to_owned();
                (StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
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
