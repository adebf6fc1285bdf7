//! The open files of plugins in use: each component has one with its code and initial memory.
//!
//! They are planned beside connections and journals, and shared: a tenant may have as many as it leaves to others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rollout_catalog::TenantId;

/// Open files that are there for plugins. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct PluginFiles(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    max: u64,
    held: Mutex<HashMap<TenantId, u64>>,
}

/// Open files of one component, given back when this is dropped.
#[derive(Debug)]
pub(super) struct HeldFiles {
    files: PluginFiles,
    tenant: TenantId,
    count: u64,
}

/// There are too few open files for one more component.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "plugins in use take the open files that there are for them: those of this tenant {own}, those of all {all} of {max}; \
     plugins that are idle are unloaded, so retry later, or have the operator raise 'ulimit -n'"
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

    /// What a tenant holds.
    pub(super) fn of(&self, tenant: TenantId) -> u64 {
        self.held().get(&tenant).copied().unwrap_or(0)
    }

    /// Takes so many for a component of a tenant. A tenant may have as many as are left then, and one component in
    /// any case while there are any.
    pub(super) fn take(&self, tenant: TenantId, count: u64) -> Result<HeldFiles, NoFiles> {
        let max = self.0.max;
        let mut held = self.held();
        let all: u64 = held.values().sum();
        let own = held.get(&tenant).copied().unwrap_or(0);
        let left = max.saturating_sub(all.saturating_add(count));
        let has_room = all.saturating_add(count) <= max && (own == 0 || own.saturating_add(count) <= left);
        // A component with more memories than there are files for is the only one then.
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
    fn a_tenant_has_as_many_files_as_it_leaves_to_others() {
        let files = PluginFiles::new(16);
        let [a, b, c] = [1, 2, 3].map(TenantId);
        let all_of =
            |tenant| std::iter::repeat_with(|| files.take(tenant, 1)).map_while(Result::ok).collect();
        let of_a: Vec<_> = all_of(a);
        assert_eq!(of_a.len(), 8);
        assert_eq!(files.take(a, 1).unwrap_err(), NoFiles { own: 8, all: 8, max: 16 });
        let of_b: Vec<_> = all_of(b);
        assert_eq!(of_b.len(), 4);
        assert!(files.take(c, 5).is_err(), "there are not so many");
        let of_c = files.take(c, 4).unwrap();
        assert_eq!((files.of(a), files.of(b), files.of(c)), (8, 4, 4));
        drop((of_a, of_b, of_c));
        assert!(files.held().is_empty());
        // What is larger than all of it can be there alone.
        let _large = files.take(a, 20).unwrap();
        assert!(files.take(b, 1).is_err());
    }
}
