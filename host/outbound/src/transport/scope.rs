//! Whose requests they are, as far as connections go: where those may go, and which connections that rest
//! are theirs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use super::super::network::NetworkRules;

/// The requests of somebody who has rules of their own, which may change.
#[derive(Debug)]
pub(super) struct Scope(RwLock<Arc<Access>>);

/// Rules, and the number under which connections rest that were opened by them. Other rules have
/// another number, so that no connection is used again that would not be opened any more.
#[derive(Debug)]
pub(super) struct Access {
    pub id: u64,
    pub rules: Arc<NetworkRules>,
}

impl Scope {
    pub(super) fn new(rules: NetworkRules) -> Self {
        Self(RwLock::new(Access::new(rules)))
    }

    /// What holds at present.
    pub(super) fn access(&self) -> Arc<Access> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts other rules in their place; gives what held before.
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
