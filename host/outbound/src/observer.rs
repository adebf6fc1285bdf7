//! Somebody who watches calls of a model while they are made.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;

use super::ChatFailure;
use rollout_core::telemetry::ModelRole;

/// One call, as far as a watcher is given it.
#[derive(Clone, Copy, Debug)]
pub struct Watched<'a> {
    /// Which model is asked.
    pub asked: ModelRole,
    /// The sample that the call is for; empty for a judge.
    pub sample_id: &'a str,
    /// The body of the request.
    pub request: &'a Bytes,
}

/// A try of a call that failed and is repeated.
#[derive(Clone, Copy, Debug)]
pub struct Retry<'a> {
    /// Tries so far.
    pub failures: u32,
    /// Tries that there are in all.
    pub attempts_max: u32,
    /// How long until the next.
    pub delay: Duration,
    /// What the last of them met.
    pub reason: &'a str,
}

/// Sees every call of a client's models while it is made, and may hold it up or put
/// another reply in place of the server's. For whoever tries a plugin out; what is put in
/// place counts as what the server said, in the record too.
pub trait Observer: fmt::Debug + Send + Sync {
    /// A call is about to be sent, and is not until this is over.
    fn asking<'a>(&'a self, call: Watched<'a>) -> BoxFuture<'a, ()>;

    /// A try failed, and the call is tried again after a while.
    fn retrying(&self, _call: Watched<'_>, _retry: &Retry<'_>) {}

    /// A call is over. The guest learns of it when this is; a body that this gives takes
    /// the place of the reply's, or of the failure.
    fn answered<'a>(
        &'a self,
        call: Watched<'a>,
        outcome: Result<&'a Bytes, &'a ChatFailure>,
    ) -> BoxFuture<'a, Option<Bytes>>;
}
