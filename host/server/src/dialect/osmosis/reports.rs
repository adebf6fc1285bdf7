//! The results that callers have yet to hear of.
//!
//! A rollout is admitted with the promise that its caller hears what came of it. Where a server
//! ends before it kept one, the operator has to know which. So each promise is known here from
//! admission until it is kept, or until nobody wants it any more.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// All promises of a server.
#[derive(Default)]
pub(super) struct Reports {
    inner: Mutex<Inner>,
    due: watch::Sender<usize>,
    is_closing: AtomicBool,
    /// What is cancelled is cancelled by the server itself.
    is_cancelling: AtomicBool,
}

#[derive(Default)]
struct Inner {
    made: u64,
    due: HashMap<u64, String>,
    /// Broken while the server was closing.
    broken: Vec<String>,
}

/// The promise of one result. Dropped before it was kept, it is broken.
pub(super) struct Due {
    reports: Arc<Reports>,
    number: u64,
}

impl Reports {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Promises the result of a rollout.
    pub(crate) fn promise(self: &Arc<Self>, id: &str) -> Due {
        let mut inner = self.lock();
        inner.made += 1;
        let number = inner.made;
        inner.due.insert(number, id.to_owned());
        self.due.send_replace(inner.due.len());
        Due { reports: self.clone(), number }
    }

    /// From now on, promises that are broken are remembered: nothing can be asked again.
    pub(crate) fn close(&self) {
        self.is_closing.store(true, Ordering::Relaxed);
    }

    /// From now on, what is cancelled is cancelled by the server, and its caller is still to
    /// hear of it.
    pub(crate) fn cancel_rest(&self) {
        self.is_cancelling.store(true, Ordering::Relaxed);
    }

    /// Whether what is cancelled is cancelled by the server.
    pub(crate) fn is_cancelling(&self) -> bool {
        self.is_cancelling.load(Ordering::Relaxed)
    }

    /// Waits until every promise was kept.
    pub(crate) async fn all_kept(&self) {
        // The sender is in `self`, so it cannot be gone.
        let _ = self.due.subscribe().wait_for(|due| *due == 0).await;
    }

    /// The rollouts whose promise is not kept, or was broken since the server is closing.
    pub(crate) fn missing(&self) -> Vec<String> {
        let inner = self.lock();
        let mut missing: Vec<String> = inner.due.values().chain(&inner.broken).cloned().collect();
        missing.sort_unstable();
        missing
    }

    fn remove(&self, number: u64, is_broken: bool) {
        let mut inner = self.lock();
        let Some(id) = inner.due.remove(&number) else { return };
        if is_broken && self.is_closing.load(Ordering::Relaxed) {
            inner.broken.push(id);
        }
        self.due.send_replace(inner.due.len());
    }
}

impl Due {
    /// The caller heard of it, or wants to hear nothing more.
    pub(crate) fn kept(&self) {
        self.reports.remove(self.number, false);
    }

    /// The rollout was cancelled. Whoever cancels wants to hear nothing more, unless that is
    /// the server itself. Says whether the caller is still to hear of it.
    pub(crate) fn cancelled(&self) -> bool {
        let is_to_hear = self.reports.is_cancelling.load(Ordering::Relaxed);
        if !is_to_hear {
            self.kept();
        }
        is_to_hear
    }
}

impl Drop for Due {
    fn drop(&mut self) {
        self.reports.remove(self.number, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn what_was_promised_is_missing_until_it_is_kept() {
        let reports = Arc::<Reports>::default();
        let [kept, due, broken, early, cancelled, ended] =
            ["kept", "due", "broken", "early", "cancelled", "ended"].map(|id| reports.promise(id));
        drop(early);
        reports.close();
        kept.kept();
        drop(kept);
        drop(broken);
        cancelled.cancelled();
        reports.cancel_rest();
        ended.cancelled();
        assert_eq!(reports.missing(), ["broken", "due", "ended"]);
        assert!(reports.all_kept().now_or_never().is_none());
        due.kept();
        drop(ended);
        assert!(reports.all_kept().now_or_never().is_some());
        assert_eq!(reports.missing(), ["broken", "ended"]);
    }
}
