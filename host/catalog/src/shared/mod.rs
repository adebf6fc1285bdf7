//! A catalog that several processes share: each has a copy, and all changes are in one log.
//!
//! A change is the rows that a transaction has changed. It is appended to the log after the change that the copy has
//! applied last, and the transaction is committed when the log has it. If another process was faster, the copy applies its
//! changes, and the transaction runs again. So all copies have the same rows in the same order, and reading needs no
//! network.
//!
//! Last uses of keys and the usage of tenants are not shared: each copy has those of its own process.

mod apply;
mod capture;
mod change;
mod value;

use std::path::Path;

use rollout_wire::digest::Digest;

use crate::error::{AppendError, SharedError};

pub(crate) use apply::{Applied, NotApplied, apply};
pub(crate) use capture::{clear, install, rows};
pub(crate) use change::{Chained, Change};

/// The log of changes and the store of components that all copies of a catalog share. All functions block, for a few seconds
/// at most.
pub trait SharedLog: Send + Sync {
    /// Appends a change after the one with this sequence; 0 stands for the beginning. Returns the change's sequence.
    ///
    /// # Errors
    ///
    /// [`AppendError::Behind`] if another change was appended meanwhile.
    fn append(&self, after: u64, change: &[u8]) -> Result<u64, AppendError>;

    /// Returns the changes after the one with this sequence, in order, as many as fit into an answer. None are left if it
    /// returns none.
    ///
    /// # Errors
    ///
    /// [`SharedError::Damaged`] if the log ends before that sequence or has a hole.
    fn read(&self, after: u64) -> Result<Vec<(u64, Vec<u8>)>, SharedError>;

    /// Stores a component's file for all processes, unless it is there.
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

    /// Removes a component that no tenant has any more.
    ///
    /// # Errors
    ///
    /// An error of the store.
    fn remove_component(&self, digest: Digest) -> Result<(), SharedError>;
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
