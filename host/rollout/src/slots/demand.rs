//! Slots of tenants whose quota several processes share: a tenant runs only as many rollouts as this process has leased.
//!
//! The pool never waits for a lease. It grants slots within the lease of each tenant, and [notes](super::lease::LeaseChanges) the
//! tenants whose rollouts wait for a larger one, or that use less than before. A task outside takes and returns leases,
//! and reports them with [`SlotPool::set_lease`].

use std::collections::BTreeSet;

use super::lease::Lease;
use super::pool::{AllSlots, SlotPool, TenantMembership};

/// The demand of a tenant with a lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseDemand {
    /// The tenant's quota of running rollouts.
    pub quota: u32,
    /// Number of running rollouts.
    pub running: u32,
    /// Largest number of running rollouts since the last call.
    pub peak: u32,
    /// Number of rollouts for which there is a slot, and which wait for a lease only.
    pub waiting: u32,
}

impl TenantMembership {
    /// Sets or removes the key of the tenant's lease. A new lease is empty.
    pub(super) fn set_lease(&self, key: Option<i64>) {
        self.pool.change(|state| {
            let number = self.number();
            let Some(tenant) = state.tenants.get_mut(&number) else { return };
            let before = tenant.counts.lease.map(|lease| lease.key);
            if before == key {
                return;
            }
            let peak = tenant.counts.running;
            let empty = |key| Lease { key, granted: 0, reachable: u32::MAX, peak, is_waiting_known: false };
            tenant.counts.lease = key.map(empty);
            if let Some(before) = before {
                state.leases.remove(&before);
            }
            if let Some(key) = key {
                state.leases.insert(key, number);
            }
            for changed in before.into_iter().chain(key) {
                self.pool.lease_changes.note(changed);
            }
        });
    }
}

impl SlotPool {
    /// Waits until the demand of a tenant with a lease may have changed, and returns the keys of such tenants.
    /// Cancel-safe.
    pub async fn changed_leases(&self) -> BTreeSet<i64> {
        self.0.lease_changes.next().await
    }

    /// Returns the demand of a tenant; none if it is not open or needs no lease.
    pub fn lease_demand(&self, key: i64) -> Option<LeaseDemand> {
        let mut state = self.0.lock();
        let all = AllSlots::of(&state);
        let number = *state.leases.get(&key)?;
        let tenant = state.tenants.get_mut(&number)?;
        let (waiting, counts) = (tenant.runnable().min(all.usable(&tenant.counts)), &mut tenant.counts);
        let (quota, running) = (counts.share.running_max, counts.running);
        let lease = counts.lease.as_mut()?;
        let peak = std::mem::replace(&mut lease.peak, running).max(running);
        lease.is_waiting_known = waiting > 0;
        Some(LeaseDemand { quota, running, peak, waiting })
    }

    /// Returns the number of slots that all leases allow, and the number of these without a running rollout.
    pub fn leased(&self) -> (u64, u64) {
        let state = self.0.lock();
        let tenants = state.leases.values().filter_map(|number| state.tenants.get(number));
        let leases = tenants.filter_map(|tenant| Some((tenant.counts.lease?.granted, tenant.counts.running)));
        leases.fold((0, 0), |(held, free), (granted, running)| {
            (held + u64::from(granted), free + u64::from(granted.saturating_sub(running)))
        })
    }

    /// Sets the numbers of rollouts of a tenant that may run, and that could run with all leases that are free. Returns the
    /// number of its running rollouts, which may be larger; it only decreases then.
    pub fn set_lease(&self, key: i64, granted: u32, reachable: u32) -> u32 {
        self.0.change(|state| {
            let Some(number) = state.leases.get(&key) else { return 0 };
            let Some(tenant) = state.tenants.get_mut(number) else { return 0 };
            if let Some(lease) = &mut tenant.counts.lease {
                lease.is_waiting_known &= lease.granted == granted;
                (lease.granted, lease.reachable) = (granted, reachable);
            }
            tenant.counts.running
        })
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use super::super::Share;
    use super::super::pool::{RESERVE_PART, Slot};
    use super::*;
    use crate::slots::Slots;
    use rollout_wire::id::RolloutId;
    use rollout_wire::quota::Quota;

    const KEY: i64 = 7;

    fn leased(queue_max: u32) -> (SlotPool, Slots) {
        let pool = SlotPool::new(4, 100);
        let tenant = pool.tenant(Share { running_max: 3, queue_max, ..Share::default() });
        tenant.set_lease_key(Some(KEY));
        let plugin = tenant.plugin(Share::default());
        (pool, plugin)
    }

    async fn poll<F: Future<Output = Option<Slot>>>(slot: &mut Pin<Box<F>>) -> Option<Slot> {
        futures_util::future::poll_immediate(slot.as_mut()).await.flatten()
    }

    #[tokio::test]
    async fn a_tenant_runs_as_many_rollouts_as_it_has_leased() {
        let (pool, slots) = leased(10);
        let demand = |running, peak, waiting| LeaseDemand { quota: 3, running, peak, waiting };
        assert_eq!(pool.changed_leases().await, [KEY].into(), "the lease is new");
        pool.set_lease(KEY, 2, 2);
        assert_eq!(pool.leased(), (2, 2), "no rollout runs");
        pool.set_lease(KEY, 0, 0);
        let mut first = Box::pin(slots.first());
        let mut second = Box::pin(slots.first());
        assert!(poll(&mut first).await.is_none() && poll(&mut second).await.is_none());
        assert_eq!(pool.changed_leases().await, [KEY].into());
        assert_eq!(pool.lease_demand(KEY), Some(demand(0, 0, 2)));

        assert_eq!(pool.set_lease(KEY, 1, 1), 0);
        assert_eq!(pool.leased(), (1, 0), "the first one has it");
        let slot = poll(&mut first).await.expect("one may run");
        assert!(poll(&mut second).await.is_none());
        assert_eq!(pool.lease_demand(KEY), Some(demand(1, 1, 1)));

        // A smaller lease stops nothing that runs, and its end is reported.
        assert_eq!(pool.set_lease(KEY, 0, 0), 1);
        assert_eq!(pool.leased(), (0, 0), "it runs on without a lease");
        let _ = pool.changed_leases().await;
        drop(slot);
        assert_eq!(pool.changed_leases().await, [KEY].into());
        assert!(poll(&mut second).await.is_none());
        assert_eq!(pool.lease_demand(KEY), Some(demand(0, 1, 1)), "it was used since the last call");
        assert_eq!(pool.lease_demand(KEY), Some(demand(0, 0, 1)));

        slots.tenant().set_lease_key(None);
        assert!(poll(&mut second).await.is_some(), "no lease is needed any more");
        assert_eq!(pool.lease_demand(KEY), None);
    }

    #[tokio::test]
    async fn a_tenant_asks_for_no_lease_on_slots_that_are_reserved_for_others() {
        let pool = SlotPool::new(20, 100);
        let tenant = pool.tenant(Share { running_max: 30, queue_max: 50, ..Share::default() });
        tenant.set_lease_key(Some(KEY));
        let slots = tenant.plugin(Share::default());
        let other = pool.tenant(Share::default()).plugin(Share::default());
        let mut all: Vec<_> = (0..20).map(|_| Box::pin(slots.first())).collect();
        for slot in &mut all {
            assert!(poll(slot).await.is_none());
        }
        let waiting = || pool.lease_demand(KEY).unwrap().waiting;
        let reserve = 20 / RESERVE_PART;
        assert!(reserve > 0);
        assert_eq!(waiting(), 20 - reserve);

        pool.set_lease(KEY, 20 - reserve, 20);
        let mut running = Vec::new();
        for slot in &mut all {
            running.extend(poll(slot).await);
        }
        assert_eq!(running.len(), (20 - reserve) as usize);
        assert_eq!(waiting(), 0, "the free slots are reserved");
        drop(other);
        assert_eq!(waiting(), reserve, "there is no other tenant");
    }

    #[test]
    fn a_tenant_without_a_queue_is_refused_when_other_processes_have_the_rest() {
        let (pool, slots) = leased(0);
        let id = |text: &str| RolloutId::parse(text).unwrap();
        let first = slots.enter(&id("a"), false).expect("all may be free");
        pool.set_lease(KEY, 1, 1);
        let error = slots.enter(&id("b"), false).err().unwrap();
        let crate::slots::AdmitError::Quota(over) = error else { panic!("{error}") };
        assert_eq!((over.quota, over.used, over.max), (Quota::Running, 3, 3));
        drop(first);
        pool.set_lease(KEY, 0, 0);
        let error = slots.enter(&id("b"), false).err().unwrap().to_string();
        assert!(error.contains("3 of 3; try again in 5 s"), "{error}");
    }
}
