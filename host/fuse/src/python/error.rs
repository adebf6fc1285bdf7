//! Errors of Python components.

use wasmparser::BinaryReaderError;

/// Reason why the memory of a Python component cannot be prepared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The bytes are not WebAssembly.
    #[error("not WebAssembly")]
    NotWebAssembly(#[source] BinaryReaderError),
    /// A section is damaged.
    #[error(transparent)]
    Damaged(#[from] BinaryReaderError),
    /// The component was built with another version of the SDK, componentize-py or Python.
    #[error("{0}")]
    Unknown(String),
}

pub(super) type Result<T, E = ImageError> = std::result::Result<T, E>;

/// Returns the error for a component that was built with other tools.
pub(super) fn unknown(reason: impl Into<String>) -> ImageError {
    ImageError::Unknown(reason.into())
}
