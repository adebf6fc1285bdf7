//! The owners of callers' keys, as workers name them.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use axum::http::HeaderMap;
use rollout_core::budget::Budget;
use rollout_wire::digest::sha256_hex;

use crate::access::key_for;
use crate::worker::OWNER_HEADER;

/// Maximum number of keys. When there are more, all are forgotten and learned again.
const KEYS_MAX: usize = 16_384;

/// The tenants of keys that workers have accepted. The gateway needs them to choose a worker with room for the
/// tenant, and to charge memory and connections to it. Workers check the keys.
pub(super) struct Owners {
    keys: Mutex<HashMap<String, (i64, Budget)>>,
    /// The budget of requests whose key no worker has accepted yet.
    unknown: Budget,
}

/// Returns the digest of a request's key, however the request passes it. The path is below a tenant's plugin.
pub(super) fn digest_of(path: &str, headers: &HeaderMap) -> Option<String> {
    key_for(path, headers).map(|key| sha256_hex(key.as_bytes()))
}

impl Owners {
    /// Creates an empty table for a gateway whose requests are charged to this budget.
    pub(super) fn new(budget: &Budget) -> Self {
        Self { keys: Mutex::default(), unknown: budget.for_others() }
    }

    fn keys(&self) -> MutexGuard<'_, HashMap<String, (i64, Budget)>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the tenant of the key with this digest, if it is known.
    pub(super) fn tenant(&self, digest: Option<&str>) -> Option<i64> {
        self.keys().get(digest?).map(|(tenant, _)| *tenant)
    }

    /// Returns the budget of requests with this key: that of its tenant, or of all unknown keys.
    pub(super) fn budget(&self, digest: Option<&str>) -> Budget {
        let keys = self.keys();
        let known = digest.and_then(|digest| keys.get(digest));
        known.map_or_else(|| self.unknown.clone(), |(_, budget)| budget.clone())
    }

    /// Records the owner that a worker has named in its answer to a request with this key.
    pub(super) fn learn(&self, digest: Option<String>, answer: &HeaderMap) {
        let owner = answer.get(OWNER_HEADER).and_then(|owner| owner.to_str().ok()?.parse().ok());
        let (Some(digest), Some(owner)) = (digest, owner) else { return };
        let mut keys = self.keys();
        if keys.get(&digest).is_some_and(|(known, _)| *known == owner) {
            return;
        }
        if keys.len() >= KEYS_MAX {
            keys.clear();
        }
        // The keys of a tenant share a budget.
        let of_tenant = keys.values().find(|(known, _)| *known == owner);
        let budget = of_tenant.map_or_else(|| self.unknown.for_others(), |(_, budget)| budget.clone());
        keys.insert(digest, (owner, budget));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_core::budget::Use;

    #[test]
    fn a_key_has_one_digest_however_it_is_passed() {
        let of = |path: &str, name: &str, value: &str| {
            let headers = HeaderMap::from_iter([(
                name.parse::<axum::http::HeaderName>().unwrap(),
                value.parse().unwrap(),
            )]);
            digest_of(path, &headers)
        };
        let plain = of("/rollout", "authorization", "Bearer k");
        assert!(plain.is_some());
        // rollout:k and other:k
        for value in ["Basic cm9sbG91dDpr", "Basic b3RoZXI6aw=="] {
            assert_eq!(of("/rollout", "authorization", value), plain, "{value}");
        }
        assert_eq!(of("/call", "x-api-key", "k"), plain);
        assert_eq!(of("/call", "authorization", "Bearer k"), plain);
        assert_eq!(of("/v1/rollout/init", "authorization", "bearer  k "), plain);
        // No key, so no entry.
        for (path, name, value) in [
            ("/rollout", "authorization", "bearer k"),
            ("/rollout", "authorization", "Digest k"),
            ("/rollout", "x-api-key", "k"),
        ] {
            assert_eq!(of(path, name, value), None, "{value}");
        }
    }

    #[test]
    fn a_tenant_is_learnt_from_an_answer_and_operators_have_none() {
        let owners = Owners::new(&Budget::new(1000));
        let of =
            |value: &str| HeaderMap::from_iter([(OWNER_HEADER.parse().unwrap(), value.parse().unwrap())]);
        let learn = |key: String, owner: &str| owners.learn(Some(key), &of(owner));
        learn("a".to_owned(), "7");
        learn("b".to_owned(), "operator");
        assert_eq!(
            (owners.tenant(Some("a")), owners.tenant(Some("b")), owners.tenant(None)),
            (Some(7), None, None)
        );
        learn("c".to_owned(), "7");
        let held = owners.budget(Some("a")).charge(Use::Request, 240).unwrap();
        assert!(owners.budget(Some("c")).charge(Use::Request, 20).is_err(), "the tenant has no more");
        assert!(owners.budget(Some("unknown")).charge(Use::Request, 20).is_ok());
        drop(held);
        (0..KEYS_MAX).for_each(|number| learn(number.to_string(), "1"));
        assert!(owners.keys().len() <= KEYS_MAX);
    }
}
