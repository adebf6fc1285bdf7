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
    /// The connection is against the network rules.
    #[error("{host} may not be reached: {reason}")]
    Forbidden {
        /// Host and port.
        host: String,
        /// The rule.
        reason: String,
    },
    /// A connection without TLS to another machine.
    #[error("{0} is not on this machine: --plain-http is for registries on loopback addresses only")]
    PlainHttp(String),
    /// The registry asks for credentials, or refuses those that it got.
    #[error("{host} refuses access to {repository}{}: {hint}", shown(.message))]
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
    /// The registry answers with an error, or not as a registry does.
    #[error("{host} answers {what} with {answer}")]
    Unexpected {
        /// Host and port.
        host: String,
        /// The request.
        what: String,
        /// The answer, shortened.
        answer: String,
    },
    /// The answer is longer than permitted.
    #[error("{what} has more than {bytes_max} bytes")]
    TooLarge {
        /// Manifest, component or the like.
        what: String,
        /// Limit in bytes.
        bytes_max: u64,
    },
    /// Bytes do not have the digest that they were requested by.
    #[error(
        "{what} has digest {found} instead of {expected}: the registry, or something before it, changed it"
    )]
    DigestMismatch {
        /// Manifest, component or the like.
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

/// Returns the registry's message as an addition, if there is one.
fn shown(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(" ({message})") }
}
