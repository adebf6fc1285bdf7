//! Leases of tenants on slots, and notes of the tenants whose demand has changed.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The lease of a tenant in this process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lease {
    pub key: i64,
    /// Number of rollouts that may run.
    pub granted: u32,
    /// Number of rollouts that could run if this process took all that is free.
    pub reachable: u32,
    /// Largest number of running rollouts since the last [`LeaseDemand`](super::LeaseDemand).
    pub peak: u32,
    /// Whether the last [`LeaseDemand`](super::LeaseDemand) had waiting rollouts, so that further ones need no note.
    pub is_waiting_known: bool,
}

/// The tenants whose demand has changed.
#[derive(Debug, Default)]
pub(super) struct LeaseChanges {
    keys: Mutex<BTreeSet<i64>>,
    changed: Notify,
}

impl LeaseChanges {
    fn keys(&self) -> MutexGuard<'_, BTreeSet<i64>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the change of a tenant.
    pub(super) fn note(&self, key: i64) {
        self.keys().insert(key);
        self.changed.notify_one();
    }

    /// Waits for changes. Cancel-safe.
    pub(super) async fn next(&self) -> BTreeSet<i64> {
        loop {
            let keys = std::mem::take(&mut *self.keys());
            if !keys.is_empty() {
                return keys;
            }
            self.changed.notified().await;
        }
    }
}
