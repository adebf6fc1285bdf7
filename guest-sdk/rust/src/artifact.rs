//! Named files that are stored with the rollout.
//!
//! A workflow writes files, and its grader can read them. A name has one or more path segments of letters,
//! digits, `.`, `_` and `-`, joined by `/`.

use std::fmt;

use crate::bindings::imports::artifacts;

/// Stores a file, replacing an earlier one of this name.
///
/// # Errors
///
/// Fails if the name is invalid or a limit of this rollout is reached.
pub fn write(name: &str, content: impl AsRef<[u8]>) -> Result<(), ArtifactError> {
    Ok(artifacts::write(name, content.as_ref())?)
}

/// Reads a file of this rollout.
///
/// # Errors
///
/// Fails if the name is invalid or there is no file with this name.
pub fn read(name: &str) -> Result<Vec<u8>, ArtifactError> {
    Ok(artifacts::read(name)?)
}

/// Returns the sorted names of this rollout's files.
pub fn names() -> Vec<String> {
    artifacts::names()
}

/// Error of writing or reading a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ArtifactError {
    /// The name is invalid, for this reason.
    InvalidName(String),
    /// No file has this name.
    NotFound,
    /// A limit of this rollout is reached. The text names the limit and its value.
    OverLimit(String),
}

impl fmt::Display for ArtifactError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidName(reason) => write!(out, "not a name of an artifact: {reason}"),
            Self::NotFound => out.write_str("there is no artifact of this name"),
            Self::OverLimit(limit) => write!(out, "artifact not kept, a limit is reached: {limit}"),
        }
    }
}

impl std::error::Error for ArtifactError {}

impl From<artifacts::Error> for ArtifactError {
    fn from(error: artifacts::Error) -> Self {
        match error {
            artifacts::Error::InvalidName(reason) => Self::InvalidName(reason),
            artifacts::Error::NotFound => Self::NotFound,
            artifacts::Error::OverLimit(limit) => Self::OverLimit(limit),
        }
    }
}
