//! Limits on the number of resources that pages hold at once, per tenant and in total.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Permits that are limited in number, per owner and in total.
pub(crate) struct Shares {
    used: Mutex<HashMap<i64, usize>>,
    each_max: usize,
    all_max: usize,
}

/// A permit, returned when it is dropped.
pub(crate) struct Held {
    shares: Arc<Shares>,
    owner: i64,
}

impl Shares {
    /// Creates permits: at most `each_max` of an owner, and `all_max` of all owners.
    pub(crate) fn new(each_max: usize, all_max: usize) -> Arc<Self> {
        Arc::new(Self { used: Mutex::default(), each_max, all_max })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<i64, usize>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a permit, unless the owner or all owners together have reached their limit.
    pub(crate) fn take(self: &Arc<Self>, owner: i64) -> Option<Held> {
        let mut used = self.lock();
        let own = used.get(&owner).copied().unwrap_or(0);
        if own >= self.each_max || used.values().sum::<usize>() >= self.all_max {
            return None;
        }
        used.insert(owner, own + 1);
        Some(Held { shares: self.clone(), owner })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut used = self.shares.lock();
        if let Some(own) = used.get_mut(&self.owner) {
            *own -= 1;
            if *own == 0 {
                used.remove(&self.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_leaves_room_for_others() {
        let shares = Shares::new(2, 3);
        let held = [shares.take(1), shares.take(1)];
        assert!(held.iter().all(Option::is_some) && shares.take(1).is_none());
        let other = shares.take(2);
        assert!(other.is_some() && shares.take(3).is_none());
        drop(held);
        assert!(shares.take(3).is_some());
        drop(other);
        assert!(shares.lock().is_empty());
    }
}
