//! Errors of requests to registries.

use rollout_wire::digest::Digest;

/// Error of a push, a pull or the search for signatures.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// The registry or the store that it redirects to cannot be reached.
    #[error("{host} cannot be reached: {reason}")]
    Unreachable {
        /// Host and port.
        host: String,
        /// Reason, without the URL.
        reason: String,
    },
    /// The network rules forbid the connection.
    #[error("{host} may not be reached: {reason}")]
    Forbidden {
        /// Host and port.
        host: String,
        /// The rule that forbids it.
        reason: String,
    },
    /// Plain HTTP was requested for a registry on another machine.
    #[error("{0} is not on this machine: --plain-http is for registries on loopback addresses only")]
    PlainHttp(String),
    /// The registry requires credentials, or refuses those that it received.
    #[error("{host} refuses access to {repository}{}: {hint}", in_parentheses(.message))]
    Denied {
        /// Host and port.
        host: String,
        /// Repository.
        repository: String,
        /// The registry's own message.
        message: String,
        /// Advice.
        hint: String,
    },
    /// There is no such manifest or blob.
    #[error("{host} has no {what} in {repository}")]
    NotFound {
        /// Host and port.
        host: String,
        /// Repository.
        repository: String,
        /// The tag or digest.
        what: String,
    },
    /// The registry responds with an error, or in a way that no registry does.
    #[error("{host} answers {what} with {answer}")]
    Unexpected {
        /// Host and port.
        host: String,
        /// The request.
        what: String,
        /// The response, shortened.
        answer: String,
    },
    /// A response or an artifact is larger than permitted.
    #[error("{what} has more than {bytes_max} bytes")]
    TooLarge {
        /// Name of the object, such as `the manifest`.
        what: String,
        /// Limit in bytes.
        bytes_max: u64,
    },
    /// The received bytes do not have the requested digest.
    #[error(
        "{what} has digest {found} instead of {expected}: the registry, or something before it, changed it"
    )]
    DigestMismatch {
        /// Name of the object, such as `the manifest`.
        what: String,
        /// The requested digest.
        expected: Digest,
        /// Digest of the received bytes.
        found: Digest,
    },
    /// The artifact is not a component in the CNCF's format.
    #[error("not a component: {0}")]
    NotComponent(String),
    /// A file with credentials cannot be read.
    #[error(transparent)]
    Credentials(#[from] crate::credentials::CredentialsError),
    /// The HTTP client cannot be set up.
    #[error(transparent)]
    Client(#[from] rollout_outbound::ClientError),
}

/// Returns the registry's message in parentheses, or an empty text if there is none.
fn in_parentheses(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(" ({message})") }
}
