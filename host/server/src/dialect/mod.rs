//! Wire protocols, one folder each. A dialect turns requests into core rollouts and outcomes into responses; nothing below
//! it knows the protocol.
//!
//! A server serves several dialects, which do not know each other. The server itself has the parts that belong to no
//! protocol: names and keys of callers, `/health`, `/metrics` and connections. A [`Dialect`] contributes to them.

pub mod agent_lightning;
pub(crate) mod body;
mod continued;
mod delivery;
mod driver;
mod ledger;
pub mod nemo_gym;
pub mod open_env;
pub mod ors;
pub mod osmosis;
mod pull;
mod row;
mod sessions;
mod tasks;

use axum::Router;
use axum::http::{HeaderMap, Method};
use futures_util::future::BoxFuture;
use serde_json::{Map, Value};
use tokio::time::Instant;

use rollout_assembly::config::Config;
use rollout_outbound::Secret;
use rollout_rollout::{Host, UnfinishedRollout};

/// A protocol's interface for the server.
pub trait Dialect: Send + Sync {
    /// Returns its routes.
    fn routes(&self) -> Vec<Routes>;

    /// Returns the fields that it adds to `/health`.
    fn health(&self) -> Health;

    /// Returns the maximum number of file descriptors that a live rollout holds for its callers. The number of rollouts is
    /// planned with it before the host exists.
    fn descriptors_per_rollout(config: &Config) -> u64
    where
        Self: Sized;

    /// Returns whether a stored rollout with this driver belongs to the dialect.
    fn drives(&self, driver: &str) -> bool;

    /// Continues a rollout that an earlier process admitted. Call it within the runtime and before the first request is
    /// answered. The error is the reason why it cannot continue.
    fn resume(&self, host: &Host, unfinished: UnfinishedRollout) -> Result<(), String>;

    /// Returns whether the dialect has no rollouts and stores nothing for callers, so that it may be dropped.
    fn is_idle(&self) -> bool;

    /// Closes the dialect: no rollout will be requested again. Close admission before.
    fn close(&self);

    /// Waits until every rollout has ended and every result is delivered, at most until `until`. Returns whether this was
    /// achieved.
    fn drain(&self, until: Instant) -> BoxFuture<'_, bool>;

    /// Answers all waiting polls at once; their callers continue at another process.
    fn answer_waiting(&self) {}

    /// Announces that the server cancels the remaining rollouts. Their callers must still receive results.
    fn announce_cancellation(&self);

    /// Returns the rollouts whose callers have not received a result.
    fn unreported(&self) -> Vec<String>;
}

/// Routes whose callers pass the server's key in the same way.
pub struct Routes {
    /// The routes.
    pub router: Router,
    /// The way in which the key is passed.
    pub key: KeyRule,
    /// The routes that are cheap and must work on a full server.
    pub short: Vec<(Method, &'static str)>,
}

/// The way in which a request passes the server's key.
#[derive(Clone, Copy)]
pub enum KeyRule {
    /// `Authorization: Bearer KEY`, case-sensitive, or the password of `Basic` credentials.
    Bearer,
    /// The protocol's own way.
    Own {
        /// Returns whether the request has the key; compares in constant time.
        is_given: fn(&Secret, &HeaderMap) -> bool,
        /// The response to a request without the key.
        refusal: &'static str,
    },
}

/// A protocol's part of `/health`.
pub struct Health {
    /// The fields. The server's own fields replace those of the same name.
    pub fields: Map<String, Value>,
    /// Whether callers expect only these fields and pass no key for them. Possible only if the server has no other protocol.
    pub is_all: bool,
}
