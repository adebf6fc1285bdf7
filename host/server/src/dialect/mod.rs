//! Wire protocols, one folder each. A dialect turns requests into core rollouts and
//! outcomes into what its callers read; nothing below it knows which one spoke.
//!
//! A server serves several of them, which know nothing of each other. What belongs to no protocol,
//! names and keys of callers, `/health`, `/metrics` and the connections, is the server's, and a
//! [`Dialect`] says what there is to it.

mod delivery;
mod driver;
mod ledger;
pub mod osmosis;

use axum::Router;
use axum::http::{HeaderMap, Method};
use futures_util::future::BoxFuture;
use serde_json::{Map, Value};
use tokio::time::Instant;

use rollout_assembly::config::Config;
use rollout_core::outbound::Secret;
use rollout_core::rollout::{Host, UnfinishedRollout};

/// A protocol as a server sees it.
pub trait Dialect: Send + Sync {
    /// Its routes.
    fn routes(&self) -> Vec<Routes>;

    /// What it has to say at `/health`.
    fn health(&self) -> Health;

    /// Descriptors that a live rollout of its holds on the side of its callers, at the most. How
    /// many rollouts a host has room for is found out by that, before there is a host to serve.
    fn descriptors_per_rollout(config: &Config) -> u64
    where
        Self: Sized;

    /// Whether rollouts of this driver are its.
    fn drives(&self, driver: &str) -> bool;

    /// Goes on by this host with a rollout of its that a process before admitted, within the runtime and
    /// before any request is answered. The error is why that cannot be.
    fn resume(&self, host: &Host, unfinished: UnfinishedRollout) -> Result<(), String>;

    /// Whether nothing of its is under way or kept for callers, so that it may be forgotten.
    fn is_idle(&self) -> bool;

    /// Takes note that no rollout will be asked for again. Admissions should be closed before.
    fn close(&self);

    /// Waits until every rollout is over and every result was delivered, or until the time
    /// is. Says whether all of it was done.
    fn drain(&self, until: Instant) -> BoxFuture<'_, bool>;

    /// Answers at once everybody who waits for news of a rollout: there are none yet, and they come
    /// to another process for them.
    fn answer_waiting(&self) {}

    /// What still runs is about to be cancelled by the server. Its callers are owed word of that.
    fn cancels_rest(&self);

    /// The rollouts whose callers have not heard what came of them.
    fn unreported(&self) -> Vec<String>;
}

/// Routes whose callers give the server's key in the same way.
pub struct Routes {
    /// The routes.
    pub router: Router,
    /// How the key is given.
    pub key: KeyRule,
    /// Those of them that take no time and have to work on a server that is full.
    pub short: Vec<(Method, &'static str)>,
}

/// How a request gives the server's key, where the server has one.
#[derive(Clone, Copy)]
pub enum KeyRule {
    /// As `Authorization: Bearer KEY`, to the letter, or as the password of `Basic` credentials.
    Bearer,
    /// In a way of the protocol's own.
    Own {
        /// Whether the key is given; compared in constant time.
        is_given: fn(&Secret, &HeaderMap) -> bool,
        /// What is said where it is not.
        refusal: &'static str,
    },
}

/// What a protocol has to say at `/health`.
pub struct Health {
    /// Its fields. Those of the server's own names are the server's.
    pub fields: Map<String, Value>,
    /// Whether its callers expect these fields and no others, and have no key for them. That
    /// can be of one protocol that is alone.
    pub is_all: bool,
}
