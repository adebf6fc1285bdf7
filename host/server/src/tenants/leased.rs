//! Quotas that the workers of a cluster share: running rollouts, which they lease from each other, and usage by day, of which
//! each knows the sum.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::Tenants;
use rollout_catalog::{CatalogError, Day, TenantId, TenantUsage};
use rollout_cluster::SharedUsage;
use rollout_core::telemetry::{DayUse, Meter};
use rollout_rollout::SlotPool;
use rollout_wire::quota::{Quota, Quotas};

impl Tenants {
    /// Returns this process's part of a tenant's quotas. Those that are leased or summed are not divided.
    pub(super) fn own_part_of_tenant(&self, quotas: &Quotas) -> Quotas {
        let mut part = self.own_part(quotas);
        if self.0.catalog.is_shared() {
            for quota in [Quota::Running, Quota::ModelTokensPerDay, Quota::GuestCpuSecondsPerDay] {
                // The value is in range, because it was before.
                let _ = quotas.get(quota).map(|whole| part.set(quota, whole));
            }
        }
        part
    }

    /// Returns the meter of a tenant's usage at other workers.
    pub(super) fn usage_elsewhere(&self, id: TenantId) -> Arc<Meter> {
        let mut elsewhere = self.0.elsewhere.lock().unwrap_or_else(PoisonError::into_inner);
        elsewhere.entry(id).or_default().clone()
    }

    /// Sets the usage of a tenant in a day at other workers.
    pub fn set_usage_elsewhere(&self, tenant: i64, day: Day, usage: TenantUsage) {
        self.usage_elsewhere(TenantId(tenant)).set(DayUse {
            day: (day - Day::default()).num_days().unsigned_abs(),
            model_tokens: usage.model_tokens,
            guest_cpu: Duration::from_nanos(usage.guest_cpu_nanos),
        });
    }

    /// Returns the usage of all tenants at this worker in a day. Blocks on files.
    pub fn usage_of_all(&self, day: Day) -> Result<Vec<(TenantId, TenantUsage)>, CatalogError> {
        self.open_tenants().iter().for_each(|tenant| tenant.note_usage(&self.0.catalog));
        self.0.catalog.usage_of_all(day)
    }

    /// Returns today, by UTC.
    pub fn today(&self) -> Day {
        self.0.catalog.today()
    }

    /// Returns the name of this worker's count of usage.
    pub fn usage_count_name(&self) -> Result<String, CatalogError> {
        self.0.catalog.usage_count_name()
    }

    /// Forgets the usage of a tenant that was deleted.
    pub(super) fn forget_usage_elsewhere(&self, id: TenantId) {
        self.0.elsewhere.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }

    /// Sets the usage that workers share, for the admin API. Only the first call has an effect.
    pub fn share_usage(&self, usage: SharedUsage) {
        let _ = self.0.shared_usage.set(usage);
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
