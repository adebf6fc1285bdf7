//! Errors in this protocol's form, which its client shows.

use axum::Json;
use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::dialect::sessions::SessionsError;
use crate::dialect::tasks::TasksError;
use rollout_rollout::{DescribeError, OpenSessionError, SessionError};

/// Seconds after which a client may try again. The client tries three times.
const RETRY_SECS: &str = "5";

/// Error of a request.
#[derive(Debug)]
pub(super) struct OrsError {
    status: StatusCode,
    detail: String,
}

impl OrsError {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into() }
    }

    /// Creates the error of an invalid request.
    pub(super) fn invalid(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }
}

impl IntoResponse for OrsError {
    fn into_response(self) -> Response {
        let body = Json(json!({"detail": self.detail}));
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            return (self.status, [(RETRY_AFTER, RETRY_SECS)], body).into_response();
        }
        (self.status, body).into_response()
    }
}

impl From<SessionsError> for OrsError {
    fn from(error: SessionsError) -> Self {
        let status = match &error {
            SessionsError::Unknown(_) => {
                let detail = format!("Active environment not found: {error}");
                return Self::new(StatusCode::NOT_FOUND, detail);
            }
            SessionsError::Closing | SessionsError::Describe(DescribeError::Closed) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            SessionsError::Open(OpenSessionError::NoEnvironment) => StatusCode::NOT_IMPLEMENTED,
            // The client knows by this status that its session is gone.
            SessionsError::Over => StatusCode::GONE,
            SessionsError::Open(_) | SessionsError::Busy => StatusCode::SERVICE_UNAVAILABLE,
            SessionsError::Describe(_) | SessionsError::Attached(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error.to_string())
    }
}

impl From<TasksError> for OrsError {
    fn from(error: TasksError) -> Self {
        let status = match &error {
            TasksError::NoSplit { .. } | TasksError::TooMany(_) => StatusCode::BAD_REQUEST,
            TasksError::Describe(DescribeError::Closed) => StatusCode::SERVICE_UNAVAILABLE,
            TasksError::Describe(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error.to_string())
    }
}

impl From<SessionError> for OrsError {
    fn from(error: SessionError) -> Self {
        let status = match &error {
            SessionError::Invalid(_) => StatusCode::BAD_REQUEST,
            // The client knows by this status that its session is gone.
            SessionError::SessionOver(_) => StatusCode::GONE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error.to_string())
    }
}
