//! All error bodies of this protocol.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::fields::{NoFields, Problem};
use crate::dialect::body::BodyRefused;
use crate::dialect::ledger::{NoAnswer, ReadError};
use crate::worker::Elsewhere;
use rollout_rollout::{AdmitError, ForkError, JournalRefused, OverQuota};

/// Seconds of `Retry-After` in a refusal.
const RETRY_AFTER_SECS: u64 = 5;

/// Error of a request.
#[derive(Debug)]
pub(super) enum ApiError {
    /// An internal error, with the reason.
    Internal(String),
    /// The rollout has another lease.
    WrongLease,
    /// No rollout has this id.
    UnknownRollout,
    /// The body is larger than this number of bytes.
    TooLarge(usize),
    /// The body arrived too slowly, with details.
    Slow(String),
    /// The path is unknown.
    NoRoute,
    /// The body is not UTF-8 text.
    Unreadable,
    /// All missing and invalid fields.
    Invalid(Vec<Problem>),
    /// There is no rollout to continue, with the reason.
    NoParent(String),
    /// The request does not select the rollouts in exactly one way.
    Selector,
    /// The id is in use, or its result is still stored.
    Registered,

    /// All slots and queue places are taken.
    Full,
    /// A quota is used up.
    Quota(OverQuota),
    /// The memory budget is used up.
    NoMemory,
    /// The journal cannot store the rollout, for this reason.
    NotKept(String),
    /// The replicated log does not acknowledge records at present, for this reason.
    Late(String),
    /// Another caller needs the connection.
    Crowded,
    /// The host is shutting down.
    Closed,
    /// Another worker takes the rollout in this one's place.
    Elsewhere(Elsewhere),
}

impl ApiError {
    /// Returns the error for a gateway if an admission could not be stored after the rollout was started. It may be in a
    /// replicated log, whose next owner continues it, so no other worker must take it.
    pub(super) fn after_admission(self) -> Self {
        match self {
            Self::NotKept(why) => {
                Self::Internal(format!("it is not known whether the rollout was stored: {why}"))
            }
            other => other,
        }
    }

    /// Returns whether this worker has refused a rollout that another one may take.
    pub(super) fn is_by_this_worker(&self) -> bool {
        match self {
            Self::Full | Self::NoMemory | Self::NotKept(_) | Self::Late(_) | Self::Closed => true,
            // The usage of a day is that of all workers; of other quotas each worker has a part.
            Self::Quota(over) => !over.quota.is_of_a_day(),
            _ => false,
        }
    }
}

impl From<AdmitError> for ApiError {
    fn from(error: AdmitError) -> Self {
        match error {
            AdmitError::Full { .. } => Self::Full,
            AdmitError::Quota(over) => Self::Quota(over),
            AdmitError::NoMemory(_) => Self::NoMemory,
            AdmitError::Duplicate => Self::Registered,
            AdmitError::Group(refused) => {
                Self::Invalid(vec![Problem::invalid_value("group", &refused.to_string())])
            }
            AdmitError::NotKept(why @ JournalRefused::Late(_)) => Self::Late(why.to_string()),
            AdmitError::NotKept(why) => Self::NotKept(why.to_string()),
            AdmitError::Closed => Self::Closed,
        }
    }
}

impl From<BodyRefused> for ApiError {
    fn from(error: BodyRefused) -> Self {
        match error {
            BodyRefused::TooLarge(max) => Self::TooLarge(max),
            BodyRefused::NoMemory => Self::NoMemory,
            BodyRefused::Slow(how) => Self::Slow(how),
            BodyRefused::Unreadable => Self::Unreadable,
        }
    }
}

impl From<NoAnswer> for ApiError {
    fn from(error: NoAnswer) -> Self {
        match error {
            NoAnswer::Admit(error) => error.into(),
            NoAnswer::Failed(why) => Self::Internal(why),
            NoAnswer::Crashed => Self::Internal("Internal Server Error".to_owned()),
        }
    }
}

impl From<NoFields> for ApiError {
    fn from(error: NoFields) -> Self {
        match error {
            NoFields::NotText => Self::Unreadable,
            NoFields::Invalid(problems) => Self::Invalid(problems),
        }
    }
}

impl From<ReadError> for ApiError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Unknown => Self::UnknownRollout,
            ReadError::WrongLease => Self::WrongLease,
            ReadError::NoMemory => Self::NoMemory,
            ReadError::Unreadable(why) => Self::Internal(why),
        }
    }
}

impl From<ForkError> for ApiError {
    fn from(error: ForkError) -> Self {
        match error {
            ForkError::Refused(error) => error.into(),
            ForkError::Unreadable(why) => Self::Internal(why.to_string()),
            unknown @ ForkError::Unknown(_) => Self::NoParent(unknown.to_string()),
            wrong => Self::Invalid(vec![Problem::invalid_value("fork_of", &wrong.to_string())]),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let retry_after = match &self {
            Self::Full | Self::NoMemory | Self::NotKept(_) | Self::Late(_) | Self::Crowded => {
                Some(RETRY_AFTER_SECS)
            }
            Self::Quota(over) => over.retry_after.map(|time| time.as_secs_f64().ceil().max(1.0) as u64),
            _ => None,
        };
        if let Self::Elsewhere(elsewhere) = &self {
            return elsewhere.into_response();
        }
        let (status, detail): (_, Value) = match self {
            // Answered above.
            Self::Elsewhere(_) => (StatusCode::MISDIRECTED_REQUEST, Value::Null),
            Self::Internal(why) => (StatusCode::INTERNAL_SERVER_ERROR, why.into()),
            Self::WrongLease => (StatusCode::FORBIDDEN, "invalid polling lease".into()),
            Self::UnknownRollout => (StatusCode::NOT_FOUND, "unknown rollout_id".into()),
            Self::TooLarge(max) => {
                (StatusCode::PAYLOAD_TOO_LARGE, format!("the body has more than {max} bytes").into())
            }
            Self::Slow(how) => (StatusCode::REQUEST_TIMEOUT, how.into()),
            Self::NoRoute => (StatusCode::NOT_FOUND, "Not Found".into()),
            Self::Unreadable => (StatusCode::BAD_REQUEST, "There was an error parsing the body".into()),
            Self::Invalid(problems) => (StatusCode::UNPROCESSABLE_ENTITY, json!(problems)),
            Self::NoParent(why) => {
                (StatusCode::UNPROCESSABLE_ENTITY, json!([Problem::invalid_value("fork_of", &why)]))
            }
            Self::Selector => {
                (StatusCode::UNPROCESSABLE_ENTITY, "pass exactly one selector: ids, prefix, or all".into())
            }
            Self::Registered => (StatusCode::CONFLICT, "rollout_id is already registered".into()),
            Self::Full => (StatusCode::TOO_MANY_REQUESTS, "rollout queue is full; retry later".into()),
            Self::NoMemory => {
                let why = "the rollout server's memory budget is used up; retry later";
                (StatusCode::TOO_MANY_REQUESTS, why.into())
            }
            // Waiting does not help with a quota of zero.
            Self::Quota(over) => match over.retry_after {
                Some(_) => (StatusCode::TOO_MANY_REQUESTS, over.to_string().into()),
                None => (StatusCode::FORBIDDEN, over.to_string().into()),
            },
            Self::NotKept(why) => (StatusCode::SERVICE_UNAVAILABLE, why.into()),
            // Clients repeat after 429 only.
            Self::Late(why) => (StatusCode::TOO_MANY_REQUESTS, why.into()),
            Self::Crowded => {
                (StatusCode::SERVICE_UNAVAILABLE, "every connection is in use; retry later".into())
            }
            Self::Closed => (StatusCode::SERVICE_UNAVAILABLE, "rollout server is shutting down".into()),
        };
        let mut response = (status, Json(json!({ "detail": detail }))).into_response();
        if let Some(secs) = retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(secs));
        }
        response
    }
}
