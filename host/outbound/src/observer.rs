//! Observers of calls of models in progress.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;

use super::ChatFailure;
use rollout_core::telemetry::ModelRole;

/// A call as an observer sees it.
#[derive(Clone, Copy, Debug)]
pub struct Watched<'a> {
    /// The role of the model.
    pub asked: ModelRole,
    /// The sample that the call belongs to, or an empty text for a judge.
    pub sample_id: &'a str,
    /// The body of the request.
    pub request: &'a Bytes,
}

/// A failed attempt of a call that is retried.
#[derive(Clone, Copy, Debug)]
pub struct Retry<'a> {
    /// Number of failed attempts so far.
    pub failures: u32,
    /// Maximum number of attempts.
    pub attempts_max: u32,
    /// Time until the next attempt.
    pub delay: Duration,
    /// The error of the last attempt.
    pub reason: &'a str,
}

/// Observes every call of a client's models, and may delay it or replace the server's reply. Tools for debugging
/// plugins implement it. A replacement counts as the server's reply, also in the record.
pub trait Observer: fmt::Debug + Send + Sync {
    /// Called before a call is sent. The call is sent when the returned future completes.
    fn asking<'a>(&'a self, call: Watched<'a>) -> BoxFuture<'a, ()>;

    /// Called when an attempt has failed and will be retried after a delay.
    fn retrying(&self, _call: Watched<'_>, _retry: &Retry<'_>) {}

    /// Called when a call has ended, before the guest gets the result. A returned body replaces the reply or the
    /// failure.
    fn answered<'a>(
        &'a self,
        call: Watched<'a>,
        outcome: Result<&'a Bytes, &'a ChatFailure>,
    ) -> BoxFuture<'a, Option<Bytes>>;
}
