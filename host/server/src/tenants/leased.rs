//! Quotas of running rollouts that the workers of a cluster lease from each other.

use std::sync::atomic::Ordering;

use super::Tenants;
use rollout_catalog::TenantId;
use rollout_rollout::SlotPool;
use rollout_wire::quota::{Quota, Quotas};

impl Tenants {
    /// Returns this process's part of a tenant's quotas. Running rollouts are leased instead of divided.
    pub(super) fn own_part_of_tenant(&self, quotas: &Quotas) -> Quotas {
        let mut part = self.own_part(quotas);
        if let Some(running) = quotas.get(Quota::Running).filter(|_| self.0.catalog.is_shared()) {
            // The value is in range, because it was before.
            let _ = part.set(Quota::Running, running);
        }
        part
    }

    /// Returns the key of a tenant's lease; none if it may run any number of rollouts, or if this process is alone.
    pub(super) fn lease_key(&self, id: TenantId, quotas: &Quotas) -> Option<i64> {
        let is_leased = self.0.catalog.is_shared() && quotas.get(Quota::Running).is_some();
        is_leased.then_some(id.0)
    }

    /// Returns whether the rollouts of a tenant that an earlier process admitted have been resumed.
    pub fn is_resumed(&self, tenant: i64) -> bool {
        // A tenant is found when its rollouts are in the queue.
        self.0.is_resumed.load(Ordering::Acquire) || self.find_open(TenantId(tenant)).is_some()
    }

    /// Returns the slots that tenants share.
    pub fn pool(&self) -> SlotPool {
        self.0.pool.clone()
    }
}
