//! Scopes of requests: each has its own network rules and idle connections.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use super::super::network::NetworkRules;

/// Requests with the same network rules, which may change.
#[derive(Debug)]
pub(super) struct Scope(RwLock<Arc<Access>>);

/// Rules with the id of the idle connections that were opened under them. New rules have a new id, so that no
/// connection is reused that would no longer be allowed.
#[derive(Debug)]
pub(super) struct Access {
    pub id: u64,
    pub rules: Arc<NetworkRules>,
}

impl Scope {
    pub(super) fn new(rules: NetworkRules) -> Self {
        Self(RwLock::new(Access::new(rules)))
    }

    /// Returns the current rules.
    pub(super) fn access(&self) -> Arc<Access> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the rules and returns the previous ones.
    pub(super) fn set(&self, rules: NetworkRules) -> Arc<Access> {
        let mut access = self.0.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *access, Access::new(rules))
    }
}

impl Access {
    fn new(rules: NetworkRules) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Arc::new(Self { id: NEXT.fetch_add(1, Ordering::Relaxed), rules: Arc::new(rules) })
    }
}
