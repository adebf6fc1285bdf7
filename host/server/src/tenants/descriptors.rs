//! The open files of loaded plugins: each component has one for its code and initial memory.
//!
//! Their number is planned together with those of connections and journals. Tenants share them: a tenant may hold at most as
//! many as it leaves to others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rollout_catalog::TenantId;

/// The open files that are reserved for plugins. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct PluginFiles(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    max: u64,
    held: Mutex<HashMap<TenantId, u64>>,
}

/// The open files of one component, released when this is dropped.
#[derive(Debug)]
pub(super) struct HeldFiles {
    files: PluginFiles,
    tenant: TenantId,
    count: u64,
}

/// Error of loading a component for which too few open files are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "too few open files are left for another plugin: loaded plugins use {all} of {max}, those of this tenant {own}; idle \
     plugins are unloaded, so retry later, or have the operator raise 'ulimit -n'"
)]
pub(super) struct NoFiles {
    pub own: u64,
    pub all: u64,
    pub max: u64,
}

impl PluginFiles {
    pub(super) fn new(max: u64) -> Self {
        Self(Arc::new(Shared { max, held: Mutex::default() }))
    }

    fn held(&self) -> MutexGuard<'_, HashMap<TenantId, u64>> {
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of files that a tenant holds.
    pub(super) fn held_by(&self, tenant: TenantId) -> u64 {
        self.held().get(&tenant).copied().unwrap_or(0)
    }

    /// Takes files for a component of a tenant. The files of a tenant's first component only have to be free. With further
    /// components, a tenant may hold at most as many files as it leaves to others.
    pub(super) fn take(&self, tenant: TenantId, count: u64) -> Result<HeldFiles, NoFiles> {
        let max = self.0.max;
        let mut held = self.held();
        let all: u64 = held.values().sum();
        let own = held.get(&tenant).copied().unwrap_or(0);
        let left = max.saturating_sub(all.saturating_add(count));
        let has_room = all.saturating_add(count) <= max && (own == 0 || own.saturating_add(count) <= left);
        // A component that needs more files than `max` is loaded if it is the only one.
        if !has_room && all > 0 {
            return Err(NoFiles { own, all, max });
        }
        *held.entry(tenant).or_default() += count;
        Ok(HeldFiles { files: self.clone(), tenant, count })
    }
}

impl Drop for HeldFiles {
    fn drop(&mut self) {
        let mut held = self.files.held();
        if let Some(own) = held.get_mut(&self.tenant) {
            *own -= self.count;
            if *own == 0 {
                held.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_holds_at_most_as_many_files_as_it_leaves_to_others() {
        let files = PluginFiles::new(16);
        let [a, b, c] = [1, 2, 3].map(TenantId);
        let all_of =
            |tenant| std::iter::repeat_with(|| files.take(tenant, 1)).map_while(Result::ok).collect();
        let of_a: Vec<_> = all_of(a);
        assert_eq!(of_a.len(), 8);
        assert_eq!(files.take(a, 1).unwrap_err(), NoFiles { own: 8, all: 8, max: 16 });
        let of_b: Vec<_> = all_of(b);
        assert_eq!(of_b.len(), 4);
        assert!(files.take(c, 5).is_err(), "only 4 are left");
        let of_c = files.take(c, 4).unwrap();
        assert_eq!((files.held_by(a), files.held_by(b), files.held_by(c)), (8, 4, 4));
        drop((of_a, of_b, of_c));
        assert!(files.held().is_empty());
        // A component that needs more than all files can be loaded alone.
        let _large = files.take(a, 20).unwrap();
        assert!(files.take(b, 1).is_err());
    }
}
