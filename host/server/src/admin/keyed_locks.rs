//! Mutual exclusion by key.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{Mutex as Lock, OwnedMutexGuard};

/// A lock for each key. A lock exists while a task holds it or waits for it.
pub(super) struct KeyedLocks<K>(Mutex<HashMap<K, Weak<Lock<()>>>>);

impl<K> Default for KeyedLocks<K> {
    fn default() -> Self {
        Self(Mutex::new(HashMap::new()))
    }
}

impl<K: Eq + Hash> KeyedLocks<K> {
    /// Waits for the lock of a key. Waiting tasks receive it in order.
    pub(super) async fn lock(&self, key: K) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            locks.retain(|_, lock| lock.strong_count() > 0);
            let found = locks.get(&key).and_then(Weak::upgrade);
            found.unwrap_or_else(|| {
                let lock = Arc::new(Lock::new(()));
                locks.insert(key, Arc::downgrade(&lock));
                lock
            })
        };
        lock.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn only_tasks_with_the_same_key_wait_for_each_other() {
        let locks = KeyedLocks::default();
        let first = locks.lock("a").await;
        assert!(locks.lock("a").now_or_never().is_none());
        assert!(locks.lock("b").now_or_never().is_some());
        drop(first);
        assert!(locks.lock("a").now_or_never().is_some());
        drop(locks.lock("c").await);
        assert_eq!(locks.0.lock().unwrap().len(), 1, "unused locks are removed");
    }
}
