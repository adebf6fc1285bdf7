//! Limits on requests that are under way: those of each tenant, and those of all.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::error::ApiError;
use rollout_catalog::TenantId;

/// The requests of one kind that are under way, by tenant. Clones share the count.
#[derive(Clone)]
pub(super) struct Places(Arc<Shared>);

struct Shared {
    /// What is counted, in words for an error.
    what: &'static str,
    of_tenant_max: usize,
    of_all_max: usize,
    counts: Mutex<HashMap<TenantId, usize>>,
}

/// One request that is under way. Dropping it makes room for another.
pub(super) struct Place {
    places: Places,
    tenant: TenantId,
}

impl Places {
    /// Creates limits of this many requests a tenant, and of all tenants together.
    pub(super) fn new(what: &'static str, of_tenant_max: usize, of_all_max: usize) -> Self {
        Self(Arc::new(Shared { what, of_tenant_max, of_all_max, counts: Mutex::default() }))
    }

    /// Takes a place for a request of a tenant, or refuses at once: 429 where the tenant has too many under way, 503
    /// where all tenants together do.
    pub(super) fn begin(&self, tenant: TenantId) -> Result<Place, ApiError> {
        let Shared { what, of_tenant_max, of_all_max, counts } = &*self.0;
        let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
        let (own, all) = (counts.get(&tenant).copied().unwrap_or(0), counts.values().sum::<usize>());
        if own >= *of_tenant_max {
            let why = format!(
                "{of_tenant_max} {what} of this tenant are under way; retry when one of them is done"
            );
            return Err(ApiError::TooMany(why));
        }
        if all >= *of_all_max {
            let why = format!("{of_all_max} {what} are under way on this server; retry later");
            return Err(ApiError::NoRoom(why));
        }
        *counts.entry(tenant).or_default() += 1;
        Ok(Place { places: self.clone(), tenant })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.places.0.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_has_a_few_places_and_all_together_have_more() {
        let places = Places::new("uploads", 4, 6);
        let (a, b) = (TenantId(1), TenantId(2));
        let mut of_a: Vec<_> = (0..4).map(|_| places.begin(a).ok().unwrap()).collect();
        assert!(matches!(places.begin(a), Err(ApiError::TooMany(_))));
        let of_b: Vec<_> = (0..2).map(|_| places.begin(b).ok().unwrap()).collect();
        assert!(matches!(places.begin(b), Err(ApiError::NoRoom(_))));
        of_a.pop();
        of_a.push(places.begin(a).ok().unwrap());
        drop((of_a, of_b));
        assert!(places.0.counts.lock().unwrap().is_empty());
    }
}
