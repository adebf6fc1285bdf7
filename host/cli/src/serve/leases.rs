//! The slots of a worker with tenants, for which it leases parts of their quotas.

use std::collections::BTreeSet;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rollout_cluster::{LeasedSlots, SlotDemand};
use rollout_rollout::{LeaseDemand, SlotPool};
use rollout_server::tenants::Tenants;
use tokio::runtime::Handle;

/// The slots of a worker's tenants.
pub(super) struct TenantsSlots {
    tenants: Tenants,
    pool: SlotPool,
    runtime: Handle,
}

impl TenantsSlots {
    /// Returns the slots of these tenants. Must be called within the runtime on which they are served.
    pub(super) fn new(tenants: Tenants) -> Self {
        Self { pool: tenants.pool(), tenants, runtime: Handle::current() }
    }
}

impl LeasedSlots for TenantsSlots {
    fn changed(&self) -> BoxFuture<'_, BTreeSet<i64>> {
        self.pool.changed_leases().boxed()
    }

    fn demand(&self, tenant: i64) -> Option<SlotDemand> {
        let LeaseDemand { quota, running, peak, waiting } = self.pool.lease_demand(tenant)?;
        Some(SlotDemand { quota, running, peak, waiting })
    }

    fn is_resumed(&self, tenant: i64) -> bool {
        self.tenants.is_resumed(tenant)
    }

    fn set(&self, tenant: i64, granted: u32, reachable: u32) -> u32 {
        self.pool.set_lease(tenant, granted, reachable)
    }

    fn set_workers(&self, count: u32) {
        let _within = self.runtime.enter();
        self.tenants.set_workers(count);
    }
}
