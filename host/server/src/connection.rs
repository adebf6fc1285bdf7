//! What a server's connections and the handlers of their requests let each other know.
//!
//! Connections belong to the program that serves and handlers to a dialect, and neither names
//! the other. What passes between them travels with requests and responses: as an extension, or
//! as the error of a body.

use std::sync::Arc;
use std::time::Duration;

/// In a request: there are more connections than are to be served, and this one is beyond them.
/// Only what is short and has to work on a busy server is to be done for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crowded;

/// In a response: what to do when all of it was written to the caller's connection. A response
/// that breaks off never does it.
#[derive(Clone)]
pub(crate) struct WhenWritten(Arc<dyn Fn() + Send + Sync>);

impl WhenWritten {
    /// Does this.
    pub(crate) fn new(then: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(then))
    }

    /// All was written.
    pub(crate) fn written(&self) {
        (self.0)();
    }
}

/// Why the body of a request did not come.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum BodyError {
    /// Its sender took too long.
    #[error("{received} bytes of the body came in {}, which is too slow", rollout_core::text::time(*time))]
    TooSlow {
        /// Bytes that came.
        received: u64,
        /// The time they took.
        time: Duration,
    },
    /// The connection failed, or what came is no HTTP.
    #[error("the body broke off")]
    Broken(#[source] hyper::Error),
}
