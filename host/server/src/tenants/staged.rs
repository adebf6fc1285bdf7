//! Versions that this worker has loaded and that are not active yet, within bounds for each tenant and in total.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rollout_catalog::TenantId;
use rollout_core::telemetry::StagedCount;

/// Maximum number of staged versions of a tenant, one for each plugin.
const STAGED_PER_TENANT_MAX: usize = 8;

/// Maximum number of staged versions of all tenants.
const STAGED_MAX: usize = 64;

/// Divisor of the maximum size of loaded code that gives the part for staged versions, and of that part for one tenant.
const CODE_PART: u64 = 2;

/// Factor of the maximum number and size of all staged versions for a tenant that has none. So tenants with several cannot take
/// all the room of those with none.
const FIRST_FACTOR: u32 = 2;

/// The staged versions of a worker, by tenant and plugin.
pub(super) struct StagedVersions<C> {
    slots: Mutex<HashMap<(TenantId, i64), Slot<C>>>,
    code_bytes_max: u64,
}

/// The place of a version, which it has from the beginning of loading.
struct Slot<C> {
    name: String,
    version: u32,
    code_bytes: u64,
    /// The loaded version; nothing while it is being loaded.
    code: Option<C>,
}

/// A version that is staged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StagedName {
    /// Id of the plugin.
    pub plugin: i64,
    /// Name of the plugin.
    pub name: String,
    /// Number of the version.
    pub version: u32,
}

impl<C> StagedVersions<C> {
    /// Creates an empty table of a worker with this maximum size of loaded code.
    pub(super) fn new(code_bytes_max: u64) -> Self {
        Self { slots: Mutex::default(), code_bytes_max: code_bytes_max / CODE_PART }
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<(TenantId, i64), Slot<C>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves a place before a version is loaded. The error is a message for the plugin's author.
    pub(super) fn begin(&self, tenant: TenantId, staged: StagedName) -> Result<(), String> {
        let mut slots = self.slots();
        let own = slots.keys().filter(|(owner, _)| *owner == tenant).count();
        let full = |what: &str, max: usize| {
            format!(
                "{max} versions of {what} are being activated, which is the maximum; activate again later"
            )
        };
        if own >= STAGED_PER_TENANT_MAX {
            return Err(full("this tenant", STAGED_PER_TENANT_MAX));
        }
        let all_max = if own == 0 { STAGED_MAX * FIRST_FACTOR as usize } else { STAGED_MAX };
        if slots.len() >= all_max {
            return Err(full("all tenants", all_max));
        }
        let StagedName { plugin, name, version } = staged;
        slots.insert((tenant, plugin), Slot { name, version, code_bytes: 0, code: None });
        Ok(())
    }

    /// Stores a loaded version in its place. A version that is the only one of all tenants may have any size. On error, the
    /// place is free again.
    pub(super) fn complete(
        &self,
        tenant: TenantId,
        plugin: i64,
        code: C,
        code_bytes: u64,
    ) -> Result<(), String> {
        let mut slots = self.slots();
        let sum = |of: &dyn Fn(TenantId) -> bool| {
            slots.iter().filter(|((owner, _), _)| of(*owner)).map(|(_, slot)| slot.code_bytes).sum::<u64>()
        };
        let (own, all) = (sum(&|owner| owner == tenant), sum(&|_| true));
        let is_beyond = |held: u64, max: u64| held > 0 && held + code_bytes > max;
        let own_max = self.code_bytes_max / CODE_PART;
        let factor = if own == 0 { FIRST_FACTOR } else { 1 };
        let all_max = self.code_bytes_max.saturating_mul(factor.into());
        let beyond = |what: &str, held: u64, max: u64| {
            format!(
                "it has {code_bytes} bytes of code, and other versions of {what} that are being activated have {held}; \
                 together they may have {max}; activate again later"
            )
        };
        let refused = if is_beyond(own, own_max) {
            Some(beyond("this tenant", own, own_max))
        } else if is_beyond(all, all_max) {
            Some(beyond("all tenants", all, all_max))
        } else {
            None
        };
        if let Some(reason) = refused {
            slots.remove(&(tenant, plugin));
            return Err(reason);
        }
        if let Some(slot) = slots.get_mut(&(tenant, plugin)) {
            (slot.code, slot.code_bytes) = (Some(code), code_bytes);
        }
        Ok(())
    }

    /// Takes a loaded version for its activation.
    pub(super) fn take(&self, tenant: TenantId, plugin: i64, version: u32) -> Option<C> {
        let mut slots = self.slots();
        let is_found = |slot: &Slot<C>| slot.version == version && slot.code.is_some();
        if slots.get(&(tenant, plugin)).is_some_and(is_found) {
            slots.remove(&(tenant, plugin))?.code
        } else {
            None
        }
    }

    /// Removes a version that was not activated, even if it is not loaded yet.
    pub(super) fn remove(&self, tenant: TenantId, plugin: i64, version: u32) -> Option<C> {
        let mut slots = self.slots();
        let is_found = slots.get(&(tenant, plugin)).is_some_and(|slot| slot.version == version);
        if is_found { slots.remove(&(tenant, plugin))?.code } else { None }
    }

    /// Counts the versions of all tenants.
    pub(super) fn count(&self) -> StagedCount {
        let slots = self.slots();
        let code_bytes = slots.values().map(|slot| slot.code_bytes).sum();
        StagedCount { versions: slots.len() as u64, code_bytes }
    }

    /// Returns the loaded versions of a tenant.
    pub(super) fn of(&self, tenant: TenantId) -> Vec<StagedName> {
        let slots = self.slots();
        let own = slots.iter().filter(|((owner, _), slot)| *owner == tenant && slot.code.is_some());
        let named = own.map(|((_, plugin), slot)| StagedName {
            plugin: *plugin,
            name: slot.name.clone(),
            version: slot.version,
        });
        named.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn staged(plugin: i64) -> StagedName {
        StagedName { plugin, name: format!("p{plugin}"), version: 1 }
    }

    #[test]
    fn staged_versions_are_bounded_by_number_for_a_tenant_and_for_all() {
        let table = StagedVersions::<()>::new(u64::MAX);
        let begin = |tenant: i64, plugin: i64| table.begin(TenantId(tenant), staged(plugin));
        for tenant in 0..8 {
            for plugin in 0..8 {
                begin(tenant, plugin).unwrap();
            }
            assert!(begin(tenant, 8).unwrap_err().starts_with("8 versions of this tenant"));
        }
        begin(8, 0).unwrap();
        assert!(begin(8, 1).unwrap_err().starts_with("64 versions of all tenants"), "it has one");
        assert_eq!(table.remove(TenantId(0), 0, 2), None, "another version has the place");
        assert_eq!(table.take(TenantId(0), 0, 1), None, "it is being loaded");
        table.complete(TenantId(0), 0, (), 1).unwrap();
        assert_eq!(table.take(TenantId(0), 0, 2), None);
        assert_eq!(table.take(TenantId(0), 0, 1), Some(()));
        assert_eq!(table.remove(TenantId(0), 1, 1), None);
        begin(8, 1).unwrap();
    }

    #[test]
    fn staged_code_is_bounded_and_a_tenant_without_any_may_use_more() {
        let table = StagedVersions::new(400);
        let stage = |tenant: i64, plugin: i64, bytes: u64| {
            table.begin(TenantId(tenant), staged(plugin))?;
            table.complete(TenantId(tenant), plugin, plugin, bytes)
        };
        stage(1, 1, 60).unwrap();
        stage(1, 2, 40).unwrap();
        let error = stage(1, 3, 1).unwrap_err();
        assert!(error.contains("versions of this tenant") && error.contains("have 100"), "{error}");
        stage(2, 1, 100).unwrap();
        stage(3, 1, 1).unwrap();
        let error = stage(3, 2, 1).unwrap_err();
        assert!(error.contains("versions of all tenants") && error.contains("have 201"), "{error}");
        let error = stage(4, 1, 200).unwrap_err();
        assert!(error.contains("have 201") && error.contains("may have 400"), "{error}");
        assert_eq!(
            (table.of(TenantId(1)).len(), table.count()),
            (2, StagedCount { versions: 4, code_bytes: 201 }),
            "a refused version has no place"
        );
        for (tenant, plugin) in [(1, 1), (1, 2), (2, 1), (3, 1)] {
            assert_eq!(table.remove(TenantId(tenant), plugin, 1), Some(plugin));
        }
        stage(4, 1, 1000).unwrap();
    }
}
