//! Errors of a cluster, of its logs and of claims.

use std::error::Error as StdError;

use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::{Error as ServerError, ErrorCode};

use crate::settings::WrongSetting;

/// Error of a cluster.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// A setting is wrong.
    #[error(transparent)]
    Setting(#[from] WrongSetting),
    /// A credentials or certificate file cannot be used.
    #[error("the NATS credentials in {path} cannot be used")]
    Credentials {
        /// Path of the file.
        path: String,
        /// Reason.
        #[source]
        source: std::io::Error,
    },
    /// The servers did not answer; a retry may succeed.
    #[error("NATS cannot be used: {0}")]
    Unavailable(String),
    /// The stream or the bucket differs from the settings.
    #[error("the {what} differs from the configuration: {}. Change the configuration of all processes, or edit it with the tool nats", .differences.join("; "))]
    Differs {
        /// The stream or bucket, by name.
        what: String,
        /// Each difference with both values.
        differences: Vec<String>,
    },
    /// The log is damaged.
    #[error(transparent)]
    Damaged(#[from] LogDamage),
    /// An entry of a bucket was not written by this program, or by another version.
    #[error("the entry {key} of the bucket {bucket} cannot be read: {reason}")]
    Unreadable {
        /// Name of the bucket.
        bucket: String,
        /// The key.
        key: String,
        /// Reason.
        reason: String,
    },
    /// A file cannot be read or written.
    #[error("a journal cannot be rebuilt")]
    Io(#[from] std::io::Error),
}

/// Damage of a log. A damaged log is refused as a whole.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the log '{log}' is damaged at {place}: {what}")]
pub struct LogDamage {
    /// Name of the log.
    pub log: String,
    /// Place of the damage, such as the sequence in the stream.
    pub place: String,
    /// Description.
    pub what: String,
}

/// Error of claiming a log.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// The name is not allowed.
    #[error("'{0}' cannot be the name of a log: use 1 to 64 letters, digits, '-' and '_'")]
    Name(String),
    /// Another process claimed the log first, or its owner is alive.
    #[error("the log '{log}' belongs to {owner}")]
    Lost {
        /// Name of the log.
        log: String,
        /// URL of the owner.
        owner: String,
    },
    /// Any other error.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
}

impl From<LogDamage> for ClaimError {
    fn from(damage: LogDamage) -> Self {
        Self::Cluster(damage.into())
    }
}

/// Describes an error with all its sources.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // The client's errors repeat their sources.
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

/// Converts a client's error to that of servers that did not answer.
pub(crate) fn unavailable(error: impl std::error::Error + 'static) -> ClusterError {
    ClusterError::Unavailable(chain(&error))
}

/// Returns whether the server refused a message because of the sequence that it expects. Servers have two codes for this
/// error, and the client recognizes one of them.
pub(crate) fn is_wrong_last(error: &(dyn StdError + 'static)) -> bool {
    let is_one = |error: &(dyn StdError + 'static)| {
        let kind = error.downcast_ref::<PublishError>().map(PublishError::kind);
        let code = error.downcast_ref::<ServerError>().map(ServerError::error_code);
        let is_code = |code| {
            [ErrorCode::STREAM_WRONG_LAST_SEQUENCE, ErrorCode::STREAM_WRONG_LAST_SEQUENCE_CONSTANT]
                .contains(&code)
        };
        kind == Some(PublishErrorKind::WrongLastSequence) || code.is_some_and(is_code)
    };
    std::iter::successors(Some(error), |error| (*error).source()).any(is_one)
}

#[cfg(test)]
mod tests {
    use async_nats::jetstream::kv::{UpdateError, UpdateErrorKind};

    use super::*;

    #[test]
    fn both_codes_of_a_wrong_last_sequence_are_recognized_wherever_they_are() {
        let check = |code: u64, expected: bool| {
            let text =
                format!(r#"{{"code": 400, "err_code": {code}, "description": "wrong last sequence"}}"#);
            let server = || serde_json::from_str::<ServerError>(&text).unwrap();
            assert_eq!(is_wrong_last(&server()), expected, "{code}");
            let publish = || PublishError::with_source(PublishErrorKind::Other, server());
            assert_eq!(is_wrong_last(&publish()), expected, "{code} of a message");
            let update = UpdateError::with_source(UpdateErrorKind::Other, publish());
            assert_eq!(is_wrong_last(&update), expected, "{code} of a bucket");
        };
        check(10071, true);
        check(10164, true);
        check(10077, false);
        assert!(is_wrong_last(&PublishError::new(PublishErrorKind::WrongLastSequence)));
    }
}
