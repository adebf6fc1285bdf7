//! A catalog that several processes share: each has a copy, and all changes are in one log.
//!
//! A change consists of the rows that a transaction has changed. It is appended to the log after the last change that the
//! copy has applied, and the transaction is committed when the log has stored the change. If another process was
//! faster, the copy applies that process's changes, and the transaction runs again. So all copies have the same rows
//! in the same order, and reading needs no network.
//!
//! A change without rows is a checkpoint. If the log is long, a process appends a checkpoint, stores a snapshot of
//! its copy at this point, and then removes the changes before it. A copy that is behind the beginning of the log
//! applies the snapshot of the checkpoint with which the log begins. A process may die after each of these steps,
//! because the log is cut only at a checkpoint with a snapshot.
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
pub(crate) use snapshot::{
    Position, Preparation, Snapshot, SnapshotError, each_row, write as write_snapshot,
};

/// Extent of the log when it was last read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogExtent {
    /// Sequence of the first change that is in the log. Those before it are in a snapshot.
    pub first: u64,
    /// Sequence of the last change.
    pub last: u64,
    /// Whether the log is so long that it should be cut.
    pub is_long: bool,
}

/// Kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// Rows that a transaction has changed.
    Rows,
    /// A change without rows, at which a snapshot is stored.
    Checkpoint,
}

/// The log of changes and the store of components and snapshots that all copies of a catalog share. All functions
/// block: for a few seconds at most, or for as long as the transfer of a component or a snapshot takes.
pub trait SharedLog: Send + Sync {
    /// Appends a change after the one with this sequence; 0 stands for the beginning. Returns the change's sequence. A
    /// log that is full still takes a checkpoint.
    ///
    /// # Errors
    ///
    /// [`AppendError::Behind`] if another change was appended meanwhile.
    fn append(&self, after: u64, change: &[u8], kind: ChangeKind) -> Result<u64, AppendError>;

    /// Returns the changes after the one with this sequence, in order, as many as fit into an answer. An empty answer
    /// means that there are no more. If some of the changes were removed, the answer begins with the first one that
    /// is in the log.
    ///
    /// # Errors
    ///
    /// [`SharedError::Damaged`] if the log ends before that sequence or has a hole.
    fn read(&self, after: u64) -> Result<Vec<(u64, Vec<u8>)>, SharedError>;

    /// Returns the extent of the log when it was last read.
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

    /// Removes all changes before this checkpoint, whose snapshot is stored, and the objects that only those changes
    /// need.
    ///
    /// # Errors
    ///
    /// An error of the log. The changes may have been removed nevertheless.
    fn cut(&self, checkpoint: u64) -> Result<(), SharedError>;

    /// Stores a component's file for all processes, unless it is stored already. The component gets a new version in
    /// both cases.
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

    /// Removes a component that no tenant has any longer, if it still has this version.
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
    /// Columns that are not shared: each copy has its own values.
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

    /// Returns the SQL condition that selects a row by its key, whose values are the first parameters.
    fn condition(&self) -> String {
        let columns = self.key.iter().enumerate();
        columns.map(|(at, column)| format!("{column} = ?{}", at + 1)).collect::<Vec<_>>().join(" AND ")
    }
}
