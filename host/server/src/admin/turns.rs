//! One at a time, for each of many things.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{Mutex as Lock, OwnedMutexGuard};

/// The locks that somebody has or waits for.
pub(super) struct Turns<K>(Mutex<HashMap<K, Weak<Lock<()>>>>);

impl<K> Default for Turns<K> {
    fn default() -> Self {
        Self(Mutex::new(HashMap::new()))
    }
}

impl<K: Eq + Hash> Turns<K> {
    /// Waits until nobody else has the turn of this thing.
    pub(super) async fn take(&self, key: K) -> OwnedMutexGuard<()> {
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
    async fn one_waits_for_the_other_and_for_nobody_else() {
        let turns = Turns::default();
        let first = turns.take("a").await;
        assert!(turns.take("a").now_or_never().is_none());
        assert!(turns.take("b").now_or_never().is_some());
        drop(first);
        assert!(turns.take("a").now_or_never().is_some());
        drop(turns.take("c").await);
        assert_eq!(turns.0.lock().unwrap().len(), 1, "what nobody has is forgotten");
    }
}
