//! A catalog that several processes share: each has a copy, and all changes are in one log.
//!
//! A change is the rows that a transaction has changed. It is appended to the log after the change that the copy has
//! applied last, and the transaction is committed when the log has it. If another process was faster, the copy applies its
//! changes, and the transaction runs again. So all copies have the same rows in the same order, and reading needs no
//! network.
//!
//! A change without rows is a checkpoint. A process that finds the log long appends one, stores a snapshot of its copy as it is
//! there, and then removes the changes before it. A copy that is behind the beginning of the log takes the snapshot of the
//! checkpoint with which the log begins. A process may die after each of these steps: the log is only cut where there is a
//! snapshot, and until then nothing has changed.
//!
//! Last uses of keys and the usage of tenants are not shared: each copy has those of its own process.

mod apply;
mod capture;
mod change;
mod snapshot;
mod value;

use std::path::Path;

use rollout_wire::digest::Digest;

use crate::error::{AppendError, SharedError};

pub(crate) use apply::{Applied, NotApplied, apply};
pub(crate) use capture::{clear, install, rows};
pub(crate) use change::{Chained, Change};
pub(crate) use snapshot::{Position, Preparation, Snapshot, SnapshotError, write as write_snapshot};

/// The log as it was when it was read last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogExtent {
    /// Sequence of the first change that is in the log. Those before it are in a snapshot.
    pub first: u64,
    /// Sequence of the last change.
    pub last: u64,
    /// Whether the log is so long that it should be cut.
    pub is_long: bool,
}

/// The log of changes and the store of components and snapshots that all copies of a catalog share. All functions block: for a
/// few seconds at most, and for the transfer of a component or a snapshot.
pub trait SharedLog: Send + Sync {
    /// Appends a change after the one with this sequence; 0 stands for the beginning. Returns the change's sequence.
    ///
    /// # Errors
    ///
    /// [`AppendError::Behind`] if another change was appended meanwhile.
    fn append(&self, after: u64, change: &[u8]) -> Result<u64, AppendError>;

    /// Returns the changes after the one with this sequence, in order, as many as fit into an answer. None are left if it
    /// returns none. If some of them were removed, the answer begins with the first one that is in the log.
    ///
    /// # Errors
    ///
    /// [`SharedError::Damaged`] if the log ends before that sequence or has a hole.
    fn read(&self, after: u64) -> Result<Vec<(u64, Vec<u8>)>, SharedError>;

    /// Returns the extent of the log, as it was when it was read last.
    fn extent(&self) -> LogExtent;

    /// Stores the snapshot of the checkpoint with this sequence. Replaces an earlier file.
    ///
    /// # Errors
    ///
    /// An error of the store, or of reading the file.
    fn put_snapshot(&self, checkpoint: u64, file: &Path) -> Result<(), SharedError>;

    /// Returns whether there is a snapshot of the change with this sequence.
    ///
    /// # Errors
    ///
    /// An error of the store.
    fn has_snapshot(&self, checkpoint: u64) -> Result<bool, SharedError>;

    /// Writes a snapshot to a file. Returns false if there is none. The caller checks its contents.
    ///
    /// # Errors
    ///
    /// An error of the store, or of writing the file.
    fn fetch_snapshot(&self, checkpoint: u64, file: &Path) -> Result<bool, SharedError>;

    /// Removes all changes before this checkpoint, whose snapshot is stored, and everything that only they need.
    ///
    /// # Errors
    ///
    /// An error of the log. The changes may have been removed nevertheless.
    fn cut(&self, checkpoint: u64) -> Result<(), SharedError>;

    /// Stores a component's file for all processes, unless it is there. The component has another version then in either case.
    ///
    /// # Errors
    ///
    /// An error of the store, or of reading the file.
    fn put_component(&self, digest: Digest, file: &Path) -> Result<(), SharedError>;

    /// Writes a component to a file. The caller checks its digest.
    ///
    /// # Errors
    ///
    /// An error of the store, or of writing the file.
    fn fetch_component(&self, digest: Digest, file: &Path) -> Result<(), SharedError>;

    /// Returns the version of a component. Returns `None` if it is not stored.
    ///
    /// # Errors
    ///
    /// An error of the store.
    fn component_version(&self, digest: Digest) -> Result<Option<u64>, SharedError>;

    /// Removes a component that no tenant has any more, if it still has this version.
    ///
    /// # Errors
    ///
    /// An error of the store.
    fn remove_component(&self, digest: Digest, version: u64) -> Result<(), SharedError>;
}

/// A table whose rows are shared.
pub(crate) struct Table {
    name: &'static str,
    /// Columns of the primary key.
    key: &'static [&'static str],
    /// Columns of each copy's own.
    local: &'static [&'static str],
    /// Column with the tenant that a row belongs to.
    tenant: Option<&'static str>,
}

/// The shared tables.
const TABLES: [Table; 7] = [
    Table { name: "tenants", key: &["id"], local: &[], tenant: Some("id") },
    Table { name: "keys", key: &["id"], local: &["last_used_at"], tenant: Some("tenant") },
    Table { name: "components", key: &["tenant", "digest"], local: &[], tenant: Some("tenant") },
    Table { name: "plugins", key: &["id"], local: &[], tenant: Some("tenant") },
    Table { name: "deployments", key: &["id"], local: &[], tenant: Some("tenant") },
    // An activation changes its plugin, too.
    Table { name: "activations", key: &["id"], local: &[], tenant: None },
    Table { name: "secrets", key: &["tenant", "name"], local: &[], tenant: Some("tenant") },
];

impl Table {
    fn named(name: &str) -> Option<&'static Self> {
        TABLES.iter().find(|table| table.name == name)
    }

    /// Returns the condition for a row, with its key as parameters from the first one on.
    fn condition(&self) -> String {
        let columns = self.key.iter().enumerate();
        columns.map(|(at, column)| format!("{column} = ?{}", at + 1)).collect::<Vec<_>>().join(" AND ")
    }
}
