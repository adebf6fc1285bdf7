//! The process that serves: it needs files, connections and children, and no privileges.
//!
//! Capabilities belong to a thread and go on to those that it starts, so they are given up
//! before there are others.

use std::io;

use caps::{CapSet, Capability};

use super::files::{self, Enforced, Folders};

/// Why privileges could not be given up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HardenError {
    /// The kernel refused it.
    #[error("privileges cannot be given up")]
    Privileges(#[source] io::Error),
    /// Its capabilities could not be read or set.
    #[error("capabilities cannot be given up: {0}")]
    Capabilities(String),
    /// The rules for files were refused.
    #[error("the rules for files cannot be set: {0}")]
    Files(String),
}

/// Gives up all privileges, in this thread and those that it starts, and the getting of others by
/// programs that have them.
pub fn drop_privileges() -> Result<(), HardenError> {
    super::no_new_privileges().map_err(HardenError::Privileges)?;
    drop_all_capabilities()
}

pub(super) fn drop_all_capabilities() -> Result<(), HardenError> {
    let fail = |error: caps::errors::CapsError| HardenError::Capabilities(error.to_string());
    // What a program that is started may have at the most. Who may not set it has nothing that
    // such a program could add to, since there are no new privileges.
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

/// Closes all files to this thread and those that it starts but these, which are not there yet
/// where nobody made them.
pub fn restrict_files(folders: &Folders) -> Result<Enforced, HardenError> {
    files::allow(folders).map_err(|error| HardenError::Files(error.to_string()))
}
