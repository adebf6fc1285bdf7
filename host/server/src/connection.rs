//! What a server's connections and the handlers of their requests let each other know.
//!
//! Connections belong to the program that serves and handlers to a dialect, and neither names
//! the other. What passes between them travels with requests and responses: as an extension, or
//! as the error of a body.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

/// In a request: there are more connections than are to be served, and this one is beyond them.
/// Only what is short and has to work on a busy server is to be done for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crowded;

/// Whose key a request carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Owner {
    /// An operator's.
    Operators,
    /// That of the tenant with this number.
    Tenant(i64),
}

/// What a handler may tell a connection, and learn from it.
pub(crate) trait Connection: Send + Sync {
    /// Counts the connection among this owner's, until a request carries another's key.
    fn belongs_to(&self, owner: Owner);
    /// Begins to wait for news. Returns false where the request is to be answered at once.
    fn begin_wait(&self) -> bool;
    /// Waits until the request is to be answered, news or not.
    fn must_answer(&self) -> BoxFuture<'_, ()>;
    /// Ends the wait.
    fn end_wait(&self);
}

/// In a request: the connection that it came over.
#[derive(Clone)]
pub(crate) struct Caller(Arc<dyn Connection>);

impl Caller {
    pub(crate) fn new(connection: Arc<dyn Connection>) -> Self {
        Self(connection)
    }

    /// Counts the connection among this owner's, until a request carries another's key.
    pub(crate) fn belongs_to(&self, owner: Owner) {
        self.0.belongs_to(owner);
    }

    /// Waits for news until the connection is needed for another caller. Returns none then, and at
    /// once where its owner has too many. Cancel-safe.
    pub(crate) async fn wait<T>(&self, news: impl Future<Output = T>) -> Option<T> {
        /// Ends the wait, also of a request whose caller went away.
        struct Wait<'a>(&'a dyn Connection);
        impl Drop for Wait<'_> {
            fn drop(&mut self) {
                self.0.end_wait();
            }
        }
        if !self.0.begin_wait() {
            return None;
        }
        let _wait = Wait(&*self.0);
        tokio::select! {
            biased;
            news = news => Some(news),
            () = self.0.must_answer() => None,
        }
    }
}

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
    #[error("{received} bytes of the body came in {}, which is too slow", rollout_wire::text::time(*time))]
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
