//! Idle connections. Each is stored until another call to the same server takes it, its server closes it, its idle time
//! is over, or its descriptor is needed for another connection.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;

use super::Open;

/// Maximum idle time. Servers close connections that are idle for longer, the most common one after five seconds.
const PLAIN_IDLE_MAX: Duration = Duration::from_secs(4);

/// Maximum idle time of an encrypted connection. Replacing one costs two round trips and signatures, and TLS servers
/// keep idle connections for a minute or more.
const TLS_IDLE_MAX: Duration = Duration::from_secs(30);

/// Maximum number of idle connections to all servers together.
const CONNECTIONS_MAX: usize = 4096;

/// Interval between two searches for expired connections.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Idle connections by scope and origin.
#[derive(Debug, Default)]
pub(super) struct Idle {
    resting: Mutex<Resting>,
    /// Number of calls that wait for a permit of the budget.
    waiting: AtomicUsize,
}

#[derive(Debug, Default)]
struct Resting {
    /// For each scope and origin, in the order in which they became idle.
    by_scope: HashMap<u64, HashMap<Box<str>, VecDeque<Open>>>,
    count: usize,
    is_swept: bool,
}

/// While this exists, connections are closed instead of becoming idle.
pub(super) struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn idle_max(origin: &str) -> Duration {
    if origin.starts_with("https") { TLS_IDLE_MAX } else { PLAIN_IDLE_MAX }
}

impl Idle {
    fn lock(&self) -> MutexGuard<'_, Resting> {
        self.resting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the most recently used connection of a scope to an origin that is still open.
    pub(super) fn take(&self, scope: u64, origin: &str) -> Option<Open> {
        let mut resting = self.lock();
        loop {
            let mut open = resting.by_scope.get_mut(&scope)?.get_mut(origin)?.pop_back()?;
            resting.count -= 1;
            if open.connection.is_good(idle_max(origin)) {
                return Some(open);
            }
        }
    }

    /// Stores an idle connection, or closes it if its descriptor is needed.
    pub(super) fn rest(self: &Arc<Self>, scope: u64, origin: &str, mut open: Open) {
        open.connection.rest();
        let mut resting = self.lock();
        if self.waiting.load(Ordering::SeqCst) > 0 {
            return;
        }
        if resting.count >= CONNECTIONS_MAX {
            drop(resting.take_oldest());
        }
        let by_origin = resting.by_scope.entry(scope).or_default();
        match by_origin.get_mut(origin) {
            Some(connections) => connections.push_back(open),
            None => {
                by_origin.insert(origin.into(), VecDeque::from([open]));
            }
        }
        resting.count += 1;
        if !std::mem::replace(&mut resting.is_swept, true) {
            tokio::spawn(sweep(Arc::downgrade(self)));
        }
    }

    /// Makes connections close instead of becoming idle until the returned guard is dropped.
    pub(super) fn wait(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        Waiting(&self.waiting)
    }

    /// Closes the connection that has been idle longest, and returns its permit.
    pub(super) fn close_oldest(&self) -> Option<OwnedSemaphorePermit> {
        let Open { connection, permit } = self.lock().take_oldest()?;
        drop(connection);
        Some(permit)
    }

    /// Closes the connections of a scope that no longer exists. One in use may still become idle; no call takes it, and
    /// it expires.
    pub(super) fn close_scope(&self, scope: u64) {
        let mut resting = self.lock();
        let closed = resting.by_scope.remove(&scope).unwrap_or_default();
        resting.count -= closed.values().map(VecDeque::len).sum::<usize>();
    }

    /// Closes all connections and returns their number.
    pub(super) fn close_all(&self) -> usize {
        let mut resting = self.lock();
        resting.by_scope.clear();
        std::mem::take(&mut resting.count)
    }
}

impl Resting {
    fn take_oldest(&mut self) -> Option<Open> {
        let first = |connections: &VecDeque<Open>| connections.front().map(|open| open.connection.used());
        let all = self.by_scope.iter().flat_map(|(scope, by_origin)| {
            by_origin.iter().map(move |(origin, connections)| (*scope, origin, connections))
        });
        let oldest =
            all.filter_map(|(scope, origin, connections)| Some((first(connections)?, scope, origin)));
        let (scope, origin) = oldest.min().map(|(_, scope, origin)| (scope, origin.clone()))?;
        let by_origin = self.by_scope.get_mut(&scope)?;
        let connections = by_origin.get_mut(&origin)?;
        let open = connections.pop_front()?;
        if connections.is_empty() {
            by_origin.remove(&origin);
        }
        if by_origin.is_empty() {
            self.by_scope.remove(&scope);
        }
        self.count -= 1;
        Some(open)
    }

    /// Closes expired connections and those that their servers have closed.
    fn sweep(&mut self) {
        for by_origin in self.by_scope.values_mut() {
            for (origin, connections) in &mut *by_origin {
                let idle_max = idle_max(origin);
                connections.retain_mut(|open| open.connection.is_good(idle_max));
            }
            by_origin.retain(|_, connections| !connections.is_empty());
        }
        self.by_scope.retain(|_, by_origin| !by_origin.is_empty());
        self.count = self.by_scope.values().flat_map(HashMap::values).map(VecDeque::len).sum();
    }
}

/// Closes expired connections, even if no call uses their servers again. Ends when there are no idle connections.
async fn sweep(idle: Weak<Idle>) {
    loop {
        tokio::time::sleep(SWEEP_INTERVAL).await;
        let Some(idle) = idle.upgrade() else { return };
        let mut resting = idle.lock();
        resting.sweep();
        if resting.count == 0 {
            resting.is_swept = false;
            return;
        }
    }
}
