//! Open files that the plugins of tenants take.
//!
//! A tenant may have as many as are left for others, so that one tenant never has all of them: the
//! first may have half, and while it has, a second a third of all. The files belong to deployments, and are
//! released when the last rollout on one has ended.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rollout_catalog::TenantId;

/// The open files of all plugins.
pub(super) struct Descriptors {
    max: u64,
    taken: Mutex<HashMap<TenantId, u64>>,
}

/// Some of them, which are released when it is dropped.
pub(super) struct Permit {
    of: Arc<Descriptors>,
    tenant: TenantId,
    count: u64,
}

/// Why there are none for a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no open file left for this plugin: {own} are in use by plugins of this tenant and {all} by those of all \
     tenants, of {max}; retry when plugins that are in use now have been idle"
)]
pub(super) struct NoDescriptor {
    pub own: u64,
    all: u64,
    max: u64,
}

impl Descriptors {
    pub(super) fn new(max: u64) -> Arc<Self> {
        Arc::new(Self { max, taken: Mutex::default() })
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<TenantId, u64>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number that a tenant has.
    pub(super) fn of(&self, tenant: TenantId) -> u64 {
        self.taken().get(&tenant).copied().unwrap_or(0)
    }

    /// Takes so many for a tenant, if it may have them.
    pub(super) fn take(self: &Arc<Self>, tenant: TenantId, count: u64) -> Result<Permit, NoDescriptor> {
        let mut taken = self.taken();
        let (all, own) = (taken.values().sum::<u64>(), taken.get(&tenant).copied().unwrap_or(0));
        if own + count > self.max.saturating_sub(all) {
            return Err(NoDescriptor { own, all, max: self.max });
        }
        taken.insert(tenant, own + count);
        Ok(Permit { of: self.clone(), tenant, count })
    }

    /// Takes them whether it may or not.
    pub(super) fn take_always(self: &Arc<Self>, tenant: TenantId, count: u64) -> Permit {
        *self.taken().entry(tenant).or_default() += count;
        Permit { of: self.clone(), tenant, count }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut taken = self.of.taken();
        let Some(own) = taken.get_mut(&self.tenant) else { return };
        *own = own.saturating_sub(self.count);
        if *own == 0 {
            taken.remove(&self.tenant);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_may_have_as_many_as_are_left_for_others() {
        let all = Descriptors::new(12);
        let [a, b, c] = [1, 2, 3].map(TenantId);
        let of_a: Vec<_> = (0..6).map(|_| all.take(a, 1).ok().unwrap()).collect();
        assert_eq!(all.take(a, 1).err(), Some(NoDescriptor { own: 6, all: 6, max: 12 }));
        let _of_b: Vec<_> = (0..3).map(|_| all.take(b, 1).ok().unwrap()).collect();
        assert!(all.take(b, 1).is_err());
        assert!(all.take(c, 2).is_err() || all.of(c) == 2);
        let kept = all.take(c, 1).ok().unwrap();
        drop(of_a);
        assert!(all.take(a, 1).is_ok() && all.of(a) == 0);
        drop(all.take_always(a, 100));
        drop(kept);
        assert_eq!(all.of(c), 0);
    }
}
