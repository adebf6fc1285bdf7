//! Limits on concurrent requests, for each tenant and for all tenants together.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::error::ApiError;
use rollout_catalog::TenantId;

/// Limits of one kind of request. Clones share the count.
#[derive(Clone)]
pub(super) struct RequestLimits(Arc<Shared>);

struct Shared {
    /// The kind of request in the plural, for errors.
    kind: &'static str,
    tenant_max: usize,
    total_max: usize,
    /// Number of requests in progress by tenant.
    counts: Mutex<HashMap<TenantId, usize>>,
}

/// The permit of a request in progress, returned when it is dropped.
pub(super) struct RequestPermit {
    limits: RequestLimits,
    tenant: TenantId,
}

impl RequestLimits {
    /// Creates limits of `tenant_max` requests per tenant and `total_max` of all tenants together.
    pub(super) fn new(kind: &'static str, tenant_max: usize, total_max: usize) -> Self {
        Self(Arc::new(Shared { kind, tenant_max, total_max, counts: Mutex::default() }))
    }

    /// Returns a permit for a request of a tenant. Fails at once with status 429 if the tenant's limit is reached, and with
    /// 503 if the total limit is.
    pub(super) fn acquire(&self, tenant: TenantId) -> Result<RequestPermit, ApiError> {
        let Shared { kind, tenant_max, total_max, counts } = &*self.0;
        let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
        let (own, all) = (counts.get(&tenant).copied().unwrap_or(0), counts.values().sum::<usize>());
        if own >= *tenant_max {
            let message =
                format!("{tenant_max} {kind} of this tenant are in progress; retry when one of them is done");
            return Err(ApiError::TooMany(message));
        }
        if all >= *total_max {
            let message = format!("{total_max} {kind} are in progress on this server; retry later");
            return Err(ApiError::NoRoom(message));
        }
        *counts.entry(tenant).or_default() += 1;
        Ok(RequestPermit { limits: self.clone(), tenant })
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        let mut counts = self.limits.0.counts.lock().unwrap_or_else(PoisonError::into_inner);
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
    fn requests_are_limited_for_each_tenant_and_in_total() {
        let limits = RequestLimits::new("uploads", 4, 6);
        let (a, b) = (TenantId(1), TenantId(2));
        let mut of_a: Vec<_> = (0..4).map(|_| limits.acquire(a).ok().unwrap()).collect();
        assert!(matches!(limits.acquire(a), Err(ApiError::TooMany(_))));
        let of_b: Vec<_> = (0..2).map(|_| limits.acquire(b).ok().unwrap()).collect();
        assert!(matches!(limits.acquire(b), Err(ApiError::NoRoom(_))));
        of_a.pop();
        of_a.push(limits.acquire(a).ok().unwrap());
        drop((of_a, of_b));
        assert!(limits.0.counts.lock().unwrap().is_empty());
    }
}
