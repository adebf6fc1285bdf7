//! The logs of all workers as an operator sees them, and the removal of one that no worker can continue.

use std::time::{Duration, SystemTime};

use async_nats::jetstream::kv::{self, Operation};
use futures_util::StreamExt;

use crate::connect::Cluster;
use crate::entry::{LogEntry, WorkerState};
use crate::error::{ClusterError, is_wrong_last, unavailable};

/// A log and its last heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedLog {
    /// Name of the log.
    pub log: String,
    /// The owner.
    pub owner: WorkerState,
    /// Epoch of the owner's claim.
    pub epoch: u64,
    /// Time of the heartbeat by the owner's clock.
    pub heartbeat: SystemTime,
    /// Number of the last message that was acknowledged.
    pub acknowledged: u64,
    /// Whether the entry could be read. The other facts are missing if it could not.
    pub is_readable: bool,
}

/// Error of abandoning a log.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ForgetError {
    /// There is no log with this name.
    #[error("there is no log '{0}'")]
    Unknown(String),
    /// The log's owner has sent a heartbeat, or another worker has claimed the log.
    #[error(
        "the log '{log}' has an owner that sends heartbeats, at {url}, or a worker has just tried to continue it; try again if \
         there is no such owner"
    )]
    Owned {
        /// Name of the log.
        log: String,
        /// URL of the owner.
        url: String,
    },
    /// NATS could not be used.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
}

impl Cluster {
    /// Returns the logs of all workers, by name.
    pub async fn logs(&self) -> Result<Vec<ListedLog>, ClusterError> {
        let bucket = self.0.bucket.clone();
        self.run(async move {
            let mut names = bucket.keys().await.map_err(unavailable)?;
            let mut logs = Vec::new();
            while let Some(name) = names.next().await {
                let name = name.map_err(unavailable)?;
                let Some((entry, _)) = read(&bucket, &name).await? else { continue };
                let is_readable = entry.is_some();
                let (owner, epoch, heartbeat, acknowledged) = entry.map_or_else(Default::default, |entry| {
                    (entry.owner, entry.epoch, entry.heartbeat, entry.acknowledged)
                });
                let heartbeat = SystemTime::UNIX_EPOCH + Duration::from_millis(heartbeat);
                logs.push(ListedLog { log: name, owner, epoch, heartbeat, acknowledged, is_readable });
            }
            logs.sort_by(|a, b| a.log.cmp(&b.log));
            Ok(logs)
        })
        .await?
    }

    /// Abandons a log: its entry is removed, so that no worker tries to continue it and its parts of quotas are free. Its
    /// messages stay until they are too old. First waits for a lease, in which the log must have no heartbeat.
    ///
    /// # Errors
    ///
    /// [`ForgetError::Owned`] if there was a heartbeat.
    pub async fn forget_log(&self, log: &str) -> Result<(), ForgetError> {
        let (bucket, log) = (self.0.bucket.clone(), log.to_owned());
        let lease = self.0.settings.lease();
        self.run(async move {
            let found = read(&bucket, &log).await?;
            let (_, before) = found.ok_or_else(|| ForgetError::Unknown(log.clone()))?;
            tokio::time::sleep(lease).await;
            let owned = |entry: Option<LogEntry>| {
                let url = entry.map_or("an unknown address".to_owned(), |entry| entry.owner.url);
                ForgetError::Owned { log: log.clone(), url }
            };
            match read(&bucket, &log).await? {
                Some((entry, revision)) if revision != before => return Err(owned(entry)),
                Some(_) => {}
                None => return Err(ForgetError::Unknown(log.clone())),
            }
            match bucket.delete_expect_revision(&log, Some(before)).await {
                Ok(()) => Ok(()),
                // Claimed in this moment.
                Err(error) if is_wrong_last(&error) => match read(&bucket, &log).await? {
                    Some((entry, _)) => Err(owned(entry)),
                    None => Ok(()),
                },
                Err(error) => Err(ForgetError::Cluster(unavailable(error))),
            }
        })
        .await?
    }
}

/// Reads a log's entry, if it can be read, and its revision. Returns `None` if there is none.
async fn read(bucket: &kv::Store, log: &str) -> Result<Option<(Option<LogEntry>, u64)>, ClusterError> {
    let found = bucket.entry(log).await.map_err(unavailable)?;
    let Some(found) = found.filter(|found| found.operation == Operation::Put) else { return Ok(None) };
    Ok(Some((LogEntry::read(&found.value), found.revision)))
}
