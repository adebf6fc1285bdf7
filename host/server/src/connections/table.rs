//! The connections that are open, and which of them is the first to go.
//!
//! A connection that asks for nothing costs a descriptor, of which there are few, and whoever
//! opens hundreds of them must not keep out those who ask for something. So each is known here
//! with what it is at, and where a new one finds no room, the one that has been silent for the
//! longest makes it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use futures_util::task::AtomicWaker;
use tokio::sync::Notify;

/// How long a caller may take over the head of a request, from the connection or from the
/// first byte. A head is one packet; a minute of them is an attack.
const HEAD_TIME_MAX: Duration = Duration::from_secs(10);

/// How long a connection may be idle between two requests. Callers keep some open for the next
/// request, and open another where one is gone.
const IDLE_TIME_MAX: Duration = Duration::from_secs(120);

/// How long a caller may read nothing of its response.
const UNREAD_TIME_MAX: Duration = Duration::from_secs(30);

/// A connection that goes on is noted this often and no more.
const PROGRESS_STEP: Duration = Duration::from_secs(1);

/// What a connection is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Nobody has looked yet whether it says something: it may have asked already.
    New,
    /// The head of a request is to come, or a part of it did.
    Head,
    /// Nothing is under way.
    Idle,
    /// The body of a request is being read.
    Receiving,
    /// A response is being written.
    Sending,
    /// A request is being worked on. Nobody has a say in how long that takes but its handler.
    Working,
    /// It speaks another protocol by now, and is its handler's until the server stops.
    Upgraded,
}

impl Stage {
    /// In the order in which they make room for others; who is worked for never does, nor who
    /// speaks another protocol, nor who had no chance to speak.
    const BY_WORTH: [Self; 4] = [Self::Head, Self::Idle, Self::Sending, Self::Receiving];

    /// How long it may last without progress. Bodies have rules of their own.
    fn time_max(self) -> Option<Duration> {
        match self {
            Self::Head => Some(HEAD_TIME_MAX),
            Self::Idle => Some(IDLE_TIME_MAX),
            Self::Sending => Some(UNREAD_TIME_MAX),
            Self::New | Self::Receiving | Self::Working | Self::Upgraded => None,
        }
    }
}

/// All connections of a server.
pub(super) struct Table {
    inner: Mutex<Inner>,
    left: Notify,
}

#[derive(Default)]
struct Inner {
    /// Those that have not been asked to close.
    open: usize,
    /// Those that have, and are not gone yet.
    closing: usize,
    opened: u64,
    /// Since when each is at its stage, the longest first.
    at: [BTreeMap<(Instant, u64), Arc<Close>>; 4],
}

/// The word to a connection that it has to close.
#[derive(Default)]
struct Close {
    word: Notify,
    /// Changed under the table's lock.
    notified: AtomicBool,
}

impl Inner {
    fn at(&mut self, stage: Stage) -> Option<&mut BTreeMap<(Instant, u64), Arc<Close>>> {
        let place = Stage::BY_WORTH.iter().position(|known| *known == stage)?;
        self.at.get_mut(place)
    }

    /// Asks one to close that was taken out of its stage.
    fn close(&mut self, close: &Close) {
        close.notified.store(true, Ordering::Relaxed);
        close.word.notify_one();
        self.open -= 1;
        self.closing += 1;
    }
}

/// One connection, known to the table until it is dropped.
pub(super) struct Known {
    table: Arc<Table>,
    id: u64,
    /// Changed under the table's lock.
    place: Mutex<(Stage, Instant)>,
    close: Arc<Close>,
    /// Its request was taken apart and the response was handed over in full.
    answered: AtomicBool,
    /// A body of it was not read to its end.
    left_unread: AtomicBool,
    /// The server stops, and with it what was made of this connection.
    hung_up: AtomicBool,
    /// Who waits for bytes of a connection that speaks another protocol.
    reader: AtomicWaker,
}

impl Table {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { inner: Mutex::default(), left: Notify::new() })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connections that are open and stay so.
    pub(crate) fn open(&self) -> usize {
        self.lock().open
    }

    /// All that have a descriptor, those that are closing among them.
    pub(crate) fn descriptors(&self) -> usize {
        let inner = self.lock();
        inner.open + inner.closing
    }

    /// Makes a new connection known.
    pub(crate) fn enter(self: &Arc<Self>) -> Arc<Known> {
        let mut inner = self.lock();
        inner.open += 1;
        inner.opened += 1;
        let (id, close) = (inner.opened, Arc::<Close>::default());
        let place = Mutex::new((Stage::New, Instant::now()));
        let (answered, left_unread, hung_up, reader) = Default::default();
        Arc::new(Known { table: self.clone(), id, place, close, answered, left_unread, hung_up, reader })
    }

    /// Closes the connection that is worth the least, if any may be closed.
    pub(crate) fn make_room(&self) -> bool {
        let mut inner = self.lock();
        match inner.at.iter_mut().find_map(BTreeMap::pop_first) {
            Some((_, close)) => inner.close(&close),
            None => return false,
        }
        true
    }

    /// Waits until a connection is gone, or may be asked to go.
    pub(crate) async fn left(&self) {
        self.left.notified().await;
    }

    /// Closes what has been at the same for too long.
    pub(crate) fn sweep(&self) {
        let now = Instant::now();
        let mut inner = self.lock();
        for stage in Stage::BY_WORTH {
            let Some(time_max) = stage.time_max() else { continue };
            while let Some(first) = inner.at(stage).and_then(BTreeMap::first_entry)
                && now.saturating_duration_since(first.key().0) >= time_max
            {
                let close = first.remove();
                inner.close(&close);
            }
        }
    }
}

impl Known {
    /// It is at something else now, or goes on with the same.
    pub(crate) fn is_at(&self, stage: Stage) {
        let now = Instant::now();
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        let (before, since) = *place;
        if before == stage && now.saturating_duration_since(since) < PROGRESS_STEP {
            return;
        }
        let mut inner = self.table.lock();
        if let Some(connections) = inner.at(before) {
            connections.remove(&(since, self.id));
        }
        // One that has to close makes room no second time.
        if !self.close.notified.load(Ordering::Relaxed)
            && let Some(connections) = inner.at(stage)
        {
            connections.insert((now, self.id), self.close.clone());
        }
        *place = (stage, now);
        drop(inner);
        if before == Stage::New {
            // From here on it may make room, for which somebody may wait.
            self.table.left.notify_one();
        }
    }

    /// What it is at.
    pub(crate) fn stage(&self) -> Stage {
        self.place.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    /// Bytes came.
    pub(crate) fn has_read(&self) {
        if matches!(self.stage(), Stage::New | Stage::Idle) {
            self.is_at(Stage::Head);
        }
    }

    /// There was nothing to read.
    pub(crate) fn is_silent(&self) {
        if self.stage() == Stage::New {
            self.is_at(Stage::Head);
        }
    }

    /// Bytes were taken by the other side.
    pub(crate) fn has_written(&self) {
        if self.stage() == Stage::Sending {
            self.is_at(Stage::Sending);
        }
    }

    /// The last byte of a response was handed over, to be written.
    pub(crate) fn has_answered(&self) {
        self.answered.store(true, Ordering::Relaxed);
    }

    /// Everything that was handed over has been written. Says whether that ends a response.
    pub(crate) fn has_flushed(&self) -> bool {
        let ends = self.answered.swap(false, Ordering::Relaxed);
        // Another request may have come by then.
        if ends && self.stage() == Stage::Sending {
            self.is_at(Stage::Idle);
        }
        ends
    }

    /// A body is not read to its end, which ends the connection.
    pub(crate) fn leaves_unread(&self) {
        self.left_unread.store(true, Ordering::Relaxed);
    }

    /// Whether that was so.
    pub(crate) fn has_left_unread(&self) -> bool {
        self.left_unread.load(Ordering::Relaxed)
    }

    /// Ends what speaks another protocol on this connection: it reads an end, and can write no
    /// more.
    pub(crate) fn hang_up(&self) {
        self.hung_up.store(true, Ordering::Release);
        self.reader.wake();
    }

    /// Whether that was so. Who waits for bytes is woken by it.
    pub(crate) fn is_hung_up(&self, waiting: Option<&Waker>) -> bool {
        if let Some(waker) = waiting
            && self.stage() == Stage::Upgraded
        {
            self.reader.register(waker);
        }
        self.hung_up.load(Ordering::Acquire)
    }

    /// Waits until it has to close.
    pub(crate) async fn must_close(&self) {
        self.close.word.notified().await;
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        let (stage, since) = *self.place.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut inner = self.table.lock();
        match self.close.notified.load(Ordering::Relaxed) {
            true => inner.closing -= 1,
            false => inner.open -= 1,
        }
        if let Some(connections) = inner.at(stage) {
            connections.remove(&(since, self.id));
        }
        drop(inner);
        self.table.left.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn is_closing(known: &Known) -> bool {
        known.must_close().now_or_never().is_some()
    }

    #[test]
    fn who_is_silent_makes_room_and_the_longest_silent_first() {
        let table = Table::new();
        let [silent, later, idle, body, working] = std::array::from_fn(|_| table.enter());
        assert!(!table.make_room(), "nobody has looked whether one of them says something");
        silent.is_silent();
        later.has_read();
        idle.is_at(Stage::Idle);
        body.is_at(Stage::Receiving);
        working.is_at(Stage::Working);
        assert_eq!(table.open(), 5);
        for (next, left) in [&silent, &later, &idle, &body].into_iter().zip((1..=4).rev()) {
            assert!(table.make_room());
            assert!(is_closing(next));
            assert_eq!((table.open(), table.descriptors()), (left, 5));
        }
        assert!(!table.make_room());
        assert!(!is_closing(&working));
        drop((silent, later, idle, body));
        assert_eq!((table.open(), table.descriptors()), (1, 1));
        working.is_at(Stage::Sending);
        working.has_answered();
        assert!(working.has_flushed() && !working.has_flushed());
        assert!(table.make_room() && is_closing(&working), "it is idle then");
    }

    #[test]
    fn a_connection_that_has_to_close_is_not_counted_again() {
        let table = Table::new();
        let known = table.enter();
        known.is_silent();
        assert!(table.make_room());
        for stage in [Stage::Receiving, Stage::Working, Stage::Sending] {
            known.is_at(stage);
            assert!(!table.make_room());
        }
        drop(known);
        assert_eq!((table.open(), table.descriptors()), (0, 0));
    }
}
