//! The interface between a connection and the handlers of its requests.
//!
//! Neither side names the other: the types of this module travel as extensions of requests and responses, or as the
//! error of a body.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

/// Extension of a request whose connection exceeds the number that the server serves. Only short routes, which must
/// work on a full server, answer it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crowded;

/// Extension of a request: the path below which its plugin has the routes, if it is not the root.
#[derive(Clone, Debug)]
pub(crate) struct Below(pub(crate) String);

/// Owner of the key in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Owner {
    /// The operators.
    Operators,
    /// The tenant with this id.
    Tenant(i64),
}

/// A connection as its handlers see it.
pub(crate) trait Connection: Send + Sync {
    /// Counts the connection for this owner, until a request carries the key of another one.
    fn set_owner(&self, owner: Owner);
    /// Records that the handler starts to wait for a change. Returns false if it must answer at once instead.
    fn begin_wait(&self) -> bool;
    /// Waits until the handler must answer, with a change or without.
    fn answer_requested(&self) -> BoxFuture<'_, ()>;
    /// Records that the handler no longer waits.
    fn end_wait(&self);
}

/// Extension of a request: its connection.
#[derive(Clone)]
pub(crate) struct Caller(Arc<dyn Connection>);

impl Caller {
    pub(crate) fn new(connection: Arc<dyn Connection>) -> Self {
        Self(connection)
    }

    /// Counts the connection for this owner, until a request carries the key of another one.
    pub(crate) fn set_owner(&self, owner: Owner) {
        self.0.set_owner(owner);
    }

    /// Waits for a change. Returns `None` as soon as the connection is needed for another caller, and at once if its
    /// owner has more than its share of a full server. Cancel-safe.
    pub(crate) async fn wait<T>(&self, news: impl Future<Output = T>) -> Option<T> {
        /// Ends the wait when it is dropped, also if the request is dropped because its caller disconnected.
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
            () = self.0.answer_requested() => None,
        }
    }
}

/// Extension of a response: a callback that runs when all of the response was written to the connection. It does not
/// run for a response that breaks off.
#[derive(Clone)]
pub(crate) struct WhenWritten(Arc<dyn Fn() + Send + Sync>);

impl WhenWritten {
    /// Creates the extension.
    pub(crate) fn new(callback: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(callback))
    }

    /// Runs the callback.
    pub(crate) fn call(&self) {
        (self.0)();
    }
}

/// Error of reading the body of a request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum BodyError {
    /// The caller sent the body too slowly.
    #[error("{received} bytes of the body arrived in {}, which is too slow", rollout_wire::text::time(*time))]
    TooSlow {
        /// Number of bytes received.
        received: u64,
        /// Time since the head of the request.
        time: Duration,
    },
    /// The connection failed, or the bytes are not valid HTTP.
    #[error("the body broke off")]
    Broken(#[source] hyper::Error),
}
