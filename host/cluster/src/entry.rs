//! Entries of logs in the bucket: for each log, its owner.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Owner of a log, as its heartbeats report it. Its load is in its status, which gateways read every second.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerState {
    /// URL under which gateways reach the owner.
    pub url: String,
    /// Version of the program.
    pub version: String,
}

/// The value of a log in the bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LogEntry {
    pub(crate) owner: WorkerState,
    pub(crate) epoch: u64,
    /// Time of the heartbeat by the owner's clock, in milliseconds since 1970, for people only.
    pub(crate) heartbeat: u64,
    /// Random number of the claim. Two claims of one epoch differ by it.
    #[serde(default)]
    pub(crate) claim: u64,
    /// Whether the log has messages. From then on an empty log is damage.
    pub(crate) is_begun: bool,
    /// Number of the last message that was acknowledged by the time of the heartbeat. A log that ends before it is damaged.
    #[serde(default)]
    pub(crate) acknowledged: u64,
    /// Whether the owner loads versions before they are activated.
    #[serde(default)]
    pub(crate) is_staging: bool,
}

impl LogEntry {
    pub(crate) fn read(value: &[u8]) -> Option<Self> {
        serde_json::from_slice(value).ok()
    }

    pub(crate) fn write(&self) -> Bytes {
        // Strings and numbers always serialize.
        serde_json::to_vec(self).map(Bytes::from).unwrap_or_default()
    }
}
