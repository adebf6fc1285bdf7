//! Privileges of the process that serves: it needs files, connections and child processes, but no capabilities.
//!
//! Capabilities belong to a thread and are inherited by threads that it starts, so they are dropped before other
//! threads start.

use std::io;

use caps::{CapSet, Capability};

use super::files::{self, Enforced, Folders};

/// Error of dropping privileges.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HardenError {
    /// The kernel refused to forbid new privileges.
    #[error("cannot forbid new privileges")]
    Privileges(#[source] io::Error),
    /// The capabilities could not be read or set.
    #[error("cannot drop the capabilities: {0}")]
    Capabilities(String),
    /// The kernel refused the rules for files.
    #[error("cannot set the rules for files: {0}")]
    Files(String),
}

/// Drops all privileges of this thread and those that it starts, and prevents gaining others by executing programs.
pub fn drop_privileges() -> Result<(), HardenError> {
    super::no_new_privileges().map_err(HardenError::Privileges)?;
    drop_all_capabilities()
}

pub(super) fn drop_all_capabilities() -> Result<(), HardenError> {
    let fail = |error: caps::errors::CapsError| HardenError::Capabilities(error.to_string());
    // The bounding set limits the capabilities of programs that are started. A process that may not change it has none
    // that such a program could gain, since new privileges are forbidden.
    if caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP).map_err(fail)? {
        for capability in caps::runtime::thread_all_supported() {
            caps::drop(None, CapSet::Bounding, capability).map_err(fail)?;
        }
    }
    for set in [CapSet::Inheritable, CapSet::Effective, CapSet::Permitted] {
        caps::clear(None, set).map_err(fail)?;
    }
    Ok(())
}

/// Denies this thread, and those that it starts, access to all files except these. Folders that do not exist yet are
/// skipped.
pub fn restrict_files(folders: &Folders) -> Result<Enforced, HardenError> {
    files::allow(folders).map_err(|error| HardenError::Files(error.to_string()))
}
