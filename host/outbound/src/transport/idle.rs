//! Connections that rest between two calls, each until another call to the same server takes
//! it, its server closes it, its time is over, or its descriptor is wanted for another.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;

use super::Open;

/// Servers close connections that are idle for longer; the usual one after five seconds.
const PLAIN_IDLE_MAX: Duration = Duration::from_secs(4);

/// An encrypted connection costs two round trips and signatures to replace, and what ends TLS
/// keeps connections for a minute and more.
const TLS_IDLE_MAX: Duration = Duration::from_secs(30);

/// Idle connections that are kept, of all servers together.
const CONNECTIONS_MAX: usize = 4096;

/// The time between two looks for connections whose rest is over.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Resting connections by whose they are and where they lead.
#[derive(Debug, Default)]
pub(super) struct Idle {
    resting: Mutex<Resting>,
    /// Calls that wait for a place in the budget.
    waiting: AtomicUsize,
}

#[derive(Debug, Default)]
struct Resting {
    /// For each scope and origin in the order in which they came to rest.
    by_scope: HashMap<u64, HashMap<Box<str>, VecDeque<Open>>>,
    count: usize,
    is_swept: bool,
}

/// While this is held, connections are closed instead of coming to rest.
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

    /// The connection of this scope to this origin that was used last and is still good.
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

    /// Lets a connection rest, unless its descriptor is wanted.
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

    /// From here on nothing comes to rest, until what this gives is dropped.
    pub(super) fn wait(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        Waiting(&self.waiting)
    }

    /// Closes the connection that has rested longest, and gives its place.
    pub(super) fn close_oldest(&self) -> Option<OwnedSemaphorePermit> {
        let Open { connection, permit } = self.lock().take_oldest()?;
        drop(connection);
        Some(permit)
    }

    /// Closes those of a scope that is no more. One that is in use may still come to rest; nobody
    /// takes it, and its time ends.
    pub(super) fn close_scope(&self, scope: u64) {
        let mut resting = self.lock();
        let closed = resting.by_scope.remove(&scope).unwrap_or_default();
        resting.count -= closed.values().map(VecDeque::len).sum::<usize>();
    }

    /// Closes all of them; says how many that were.
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

    /// Closes those whose rest is over and those that their servers have closed.
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

/// Gives every connection its end, whether or not anybody asks its server again. Ends when
/// nothing rests any more.
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
