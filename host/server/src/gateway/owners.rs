//! The owners of callers' keys, as workers name them.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use axum::http::{HeaderMap, header};
use rollout_wire::digest::sha256_hex;

use crate::worker::OWNER_HEADER;

/// Maximum number of keys. When there are more, all are forgotten and learnt again.
const KEYS_MAX: usize = 16_384;

/// The tenants of keys that workers have accepted. It only tells which worker has room; workers check the keys.
#[derive(Default)]
pub(super) struct Owners(Mutex<HashMap<String, i64>>);

/// Returns the digest of a request's key.
pub(super) fn digest_of(headers: &HeaderMap) -> Option<String> {
    headers.get(header::AUTHORIZATION).map(|key| sha256_hex(key.as_bytes()))
}

impl Owners {
    /// Returns the tenant of the key with this digest, if it is known.
    pub(super) fn tenant(&self, digest: Option<&str>) -> Option<i64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(digest?).copied()
    }

    /// Notes the owner that a worker has named in its answer to a request with this key.
    pub(super) fn learn(&self, digest: Option<String>, answer: &HeaderMap) {
        let owner = answer.get(OWNER_HEADER).and_then(|owner| owner.to_str().ok()?.parse().ok());
        let (Some(digest), Some(owner)) = (digest, owner) else { return };
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KEYS_MAX && !known.contains_key(&digest) {
            known.clear();
        }
        known.insert(digest, owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_is_learnt_from_an_answer_and_operators_have_none() {
        let owners = Owners::default();
        let of =
            |value: &str| HeaderMap::from_iter([(OWNER_HEADER.parse().unwrap(), value.parse().unwrap())]);
        let learn = |key: String, owner: &str| owners.learn(Some(key), &of(owner));
        learn("a".to_owned(), "7");
        learn("b".to_owned(), "operator");
        assert_eq!(
            (owners.tenant(Some("a")), owners.tenant(Some("b")), owners.tenant(None)),
            (Some(7), None, None)
        );
        (0..KEYS_MAX).for_each(|number| learn(number.to_string(), "1"));
        assert!(owners.0.lock().unwrap().len() <= KEYS_MAX);
    }
}
