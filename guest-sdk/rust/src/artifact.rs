//! Named files that are kept with the rollout.
//!
//! A workflow writes them, and its grader can read them. A name is one or more path
//! segments of letters, digits, `.`, `_` and `-`, joined by `/`.

use std::fmt;

use crate::bindings::imports::artifacts;

/// Keeps a file, in place of one of the same name.
///
/// # Errors
///
/// If the name is not one, or a limit of this rollout is reached.
pub fn write(name: &str, content: impl AsRef<[u8]>) -> Result<(), ArtifactError> {
    Ok(artifacts::write(name, content.as_ref())?)
}

/// Reads a file of this rollout.
///
/// # Errors
///
/// If the name is not one, or there is no file of this name.
pub fn read(name: &str) -> Result<Vec<u8>, ArtifactError> {
    Ok(artifacts::read(name)?)
}

/// The names of this rollout's files, sorted.
pub fn names() -> Vec<String> {
    artifacts::names()
}

/// Why a file was not written or read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ArtifactError {
    /// The name is not one: the reason.
    InvalidName(String),
    /// There is no file of this name.
    NotFound,
    /// A limit of this rollout is reached: which, and its value.
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
