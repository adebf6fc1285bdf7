//! The table of open connections, which decides which connection is closed to make room for a new one.
//!
//! A silent connection costs a descriptor, of which there are few, and a caller that opens hundreds of them must not keep
//! out callers with requests. The table knows the stage of each connection; when a new connection finds no room, the one
//! that has been silent for the longest is closed.
//!
//! The table also knows the owner of the key in a connection's last request. While there is room, an owner may have more
//! connections than its share. When there is none, the owner with the most connections makes room: an idle connection is
//! closed, or a waiting poll is answered early. See `docs/adr/0107`.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use futures_util::task::AtomicWaker;
use tokio::sync::Notify;

use crate::connection::{Connection, Owner};
use rollout_core::capacity::CALLERS_SPARE;

/// Timeout of the head of a request, from the connection or from the first byte. A head usually is one packet.
const HEAD_TIME_MAX: Duration = Duration::from_secs(10);

/// Timeout of a connection without a request. Callers that pool connections open another one when they need it.
const IDLE_TIME_MAX: Duration = Duration::from_secs(120);

/// Timeout of a response of which the caller reads nothing.
const UNREAD_TIME_MAX: Duration = Duration::from_secs(30);

/// Time after which a connection that was asked to close is asked again. If its handler is done by then, the connection is
/// closed even if the response is not written.
const CLOSING_TIME_MAX: Duration = Duration::from_secs(30);

/// The value of [`CLOSING_TIME_MAX`] while a new connection waits for a descriptor.
const CLOSING_TIME_HURRIED: Duration = Duration::from_millis(250);

/// Divisor of the maximum number of connections. Connections without a verified key are the first to be closed if they are
/// more than this part: a head takes a moment to arrive, but callers without a key must not keep out those with one.
const UNAUTHENTICATED_PART: usize = 4;

/// Time in which the head of a new connection may arrive before the connection is closed for others. In a burst the server
/// reads heads late, and a connection that is closed earlier gets no response.
const HEAD_GRACE: Duration = Duration::from_millis(500);

/// Minimum interval at which the progress of a connection is noted.
const PROGRESS_STEP: Duration = Duration::from_secs(1);

/// Stage of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The connection was not read yet; a request may have arrived.
    New,
    /// The head of a request is expected or has arrived in part.
    Head,
    /// No request is in progress.
    Idle,
    /// The body of a request is being read.
    Receiving,
    /// A response is being written.
    Sending,
    /// The handler of a request runs, without a time limit.
    Working,
    /// The handler of a poll waits for a change and can be made to answer early.
    Waiting,
    /// The connection speaks another protocol and belongs to its handler until the server stops.
    Upgraded,
}

impl Stage {
    /// The stages in the order in which connections are closed to make room. A new connection is never closed for another,
    /// nor one whose handler runs, nor an upgraded one. A poll that is answered early is repeated, so polls precede
    /// responses and bodies, which would be cut off.
    const CLOSE_ORDER: [Self; 5] = [Self::Head, Self::Idle, Self::Waiting, Self::Sending, Self::Receiving];

    /// Returns the maximum time without progress. Bodies have timeouts of their own.
    fn time_max(self) -> Option<Duration> {
        match self {
            Self::Head => Some(HEAD_TIME_MAX),
            Self::Idle => Some(IDLE_TIME_MAX),
            Self::Sending => Some(UNREAD_TIME_MAX),
            Self::New | Self::Receiving | Self::Working | Self::Waiting | Self::Upgraded => None,
        }
    }

    /// Returns the stage's index in the order.
    fn close_order(self) -> Option<usize> {
        Self::CLOSE_ORDER.iter().position(|stage| *stage == self)
    }
}

/// All connections of a server.
pub(super) struct Table {
    inner: Mutex<Inner>,
    changed: Notify,
}

struct Inner {
    /// Maximum number of open connections.
    max: usize,
    /// Number of connections that have not been asked to close.
    open: usize,
    /// Connections that have been asked to close and still exist, by the time of the first close request and id.
    closing: BTreeMap<(Instant, u64), Arc<CloseSignal>>,
    /// Number of connections since the start; the id of the latest one.
    opened: u64,
    /// The owners of open connections. The key `None` has the connections without a verified key.
    owners: HashMap<Option<Owner>, OwnerConnections>,
}

/// The open connections of one owner.
#[derive(Default)]
struct OwnerConnections {
    open: usize,
    /// For each stage of the close order its connections, by the start of the stage and by id.
    by_stage: [BTreeMap<(Instant, u64), Arc<CloseSignal>>; Stage::CLOSE_ORDER.len()],
}

/// Requests to a connection to close.
#[derive(Default)]
struct CloseSignal {
    /// Notifies the task of the connection.
    close: Notify,
    /// Notifies the handler of a waiting poll, which must answer then.
    answer: Notify,
    /// The time of the first close request. Changed under the table's lock.
    since: Mutex<Option<Instant>>,
}

impl CloseSignal {
    fn since(&self) -> Option<Instant> {
        *self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OwnerConnections {
    /// Removes and returns the first connection in the close order that entered one of these stages no later than `until`.
    fn pop(&mut self, stages: &[Stage], until: Instant) -> Option<(u64, Arc<CloseSignal>)> {
        let orders = stages.iter().filter_map(|stage| stage.close_order());
        let mut found = orders.filter_map(|order| {
            let first = self.by_stage[order].first_entry()?;
            (first.key().0 <= until).then(|| first.remove_entry())
        });
        found.next().map(|((_, id), signal)| (id, signal))
    }
}

impl Inner {
    /// Returns the connections of an owner at a stage of the close order.
    fn at(
        &mut self,
        owner: Option<Owner>,
        stage: Stage,
    ) -> Option<&mut BTreeMap<(Instant, u64), Arc<CloseSignal>>> {
        let order = stage.close_order()?;
        self.owners.get_mut(&owner).map(|owned| &mut owned.by_stage[order])
    }

    /// Adds an open connection to an owner.
    fn add(&mut self, owner: Option<Owner>) {
        self.owners.entry(owner).or_default().open += 1;
    }

    /// Removes an open connection of an owner.
    fn remove(&mut self, owner: Option<Owner>) {
        let Some(owned) = self.owners.get_mut(&owner) else { return };
        owned.open -= 1;
        if owned.open == 0 {
            self.owners.remove(&owner);
        }
    }

    fn open_of(&self, owner: Option<Owner>) -> usize {
        self.owners.get(&owner).map_or(0, |owned| owned.open)
    }

    /// Returns the number of connections without a verified key up to which they are not the first to be closed.
    fn unauthenticated_max(&self) -> usize {
        self.max / UNAUTHENTICATED_PART
    }

    /// Returns the number of connections that each owner may have on a full server.
    fn share(&self) -> usize {
        let owners = self.owners.keys().flatten().count();
        ((self.max - self.unauthenticated_max()) / owners.max(1)).max(1)
    }

    /// Returns whether the server is full and the owner has more than its share.
    fn is_above_share(&self, owner: Owner) -> bool {
        self.open >= self.max && self.open_of(Some(owner)) > self.share()
    }

    /// Asks a connection to close. The caller has removed it from its stage.
    fn close(&mut self, owner: Option<Owner>, id: u64, signal: Arc<CloseSignal>) {
        let now = Instant::now();
        *signal.since.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
        signal.close.notify_one();
        signal.answer.notify_one();
        self.open -= 1;
        self.remove(owner);
        self.closing.insert((now, id), signal);
    }

    /// Repeats the close requests that are at least `time_max` old. The connection closes at once if its handler is done.
    fn repeat_close(&self, now: Instant, time_max: Duration) {
        let late = self.closing.iter().take_while(|((since, _), _)| is_over(now, *since, time_max));
        late.for_each(|(_, signal)| signal.close.notify_one());
    }

    /// Asks the first connection in the close order to close. Returns false if none may be closed.
    fn make_room(&mut self) -> bool {
        const UNAUTHENTICATED: [Stage; 4] = [Stage::Head, Stage::Idle, Stage::Sending, Stage::Receiving];
        const IN_SHARE: [Stage; 2] = [Stage::Head, Stage::Idle];
        let (share, unauthenticated_max) = (self.share(), self.unauthenticated_max());
        let is_unauthenticated_first = self.open_of(None) > unauthenticated_max;
        let is_an_owner_above =
            self.owners.iter().any(|(owner, owned)| owner.is_some() && owned.open > share);
        let mut owners: Vec<_> =
            self.owners.iter().filter_map(|(owner, owned)| Some(((*owner)?, owned.open))).collect();
        owners.sort_unstable_by_key(|(_, open)| std::cmp::Reverse(*open));
        let above = owners.iter().take_while(|(_, open)| *open > share);
        let above = above.map(|(owner, _)| (Some(*owner), &Stage::CLOSE_ORDER[..]));
        // Owners within their share lose idle connections only if no owner is above its share.
        let are_all_in_share = !is_unauthenticated_first && !is_an_owner_above;
        let idle = owners.iter().filter(|_| are_all_in_share);
        let idle = idle.map(|(owner, _)| (Some(*owner), &IN_SHARE[..]));
        let now = Instant::now();
        let until_now = |(owner, stages)| (owner, stages, now);
        let unauthenticated = (None, &UNAUTHENTICATED[..]);
        let late = now.checked_sub(HEAD_GRACE).map(|until| (unauthenticated.0, unauthenticated.1, until));
        let first = late.filter(|_| is_unauthenticated_first);
        let others = above.chain([unauthenticated]).chain(idle).map(until_now);
        for (owner, stages, until) in first.into_iter().chain(others) {
            let owned = self.owners.get_mut(&owner);
            if let Some((id, signal)) = owned.and_then(|owned| owned.pop(stages, until)) {
                self.close(owner, id, signal);
                return true;
            }
        }
        false
    }
}

/// A connection in the table, which it leaves when this is dropped.
pub(super) struct TrackedConnection {
    table: Arc<Table>,
    id: u64,
    /// Changed under the table's lock.
    position: Mutex<Position>,
    signal: Arc<CloseSignal>,
    /// Whether the last byte of the response was handed to the protocol and is not flushed yet.
    is_response_complete: AtomicBool,
    /// Whether the body of a request was not read to its end.
    unread_body: AtomicBool,
    /// Whether the server stops, which ends an upgraded connection.
    hung_up: AtomicBool,
    /// The task that reads an upgraded connection.
    reader: AtomicWaker,
    /// Whether the next read looks into the socket if there seems to be nothing to read.
    looks: AtomicBool,
    /// Whether the socket had unread bytes at the last look.
    has_unread_bytes: AtomicBool,
}

/// Position of a connection in the table.
#[derive(Clone, Copy)]
struct Position {
    stage: Stage,
    since: Instant,
    owner: Option<Owner>,
}

impl Table {
    /// Creates a table for at most `max` open connections.
    pub(crate) fn new(max: usize) -> Arc<Self> {
        let (closing, owners) = Default::default();
        let inner = Inner { max, open: 0, closing, opened: 0, owners };
        Arc::new(Self { inner: Mutex::new(inner), changed: Notify::new() })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of open connections, without those that are closing.
    pub(crate) fn open(&self) -> usize {
        self.lock().open
    }

    /// Returns the number of connections with a descriptor: open and closing ones.
    pub(crate) fn descriptors(&self) -> usize {
        let inner = self.lock();
        inner.open + inner.closing.len()
    }

    /// Adds a new connection.
    pub(crate) fn enter(self: &Arc<Self>) -> Arc<TrackedConnection> {
        let mut inner = self.lock();
        inner.open += 1;
        inner.opened += 1;
        inner.add(None);
        let (id, signal) = (inner.opened, Arc::<CloseSignal>::default());
        let position = Mutex::new(Position { stage: Stage::New, since: Instant::now(), owner: None });
        let (is_response_complete, unread_body, hung_up, reader, looks, has_unread_bytes) =
            Default::default();
        Arc::new(TrackedConnection {
            table: self.clone(),
            id,
            position,
            signal,
            is_response_complete,
            unread_body,
            hung_up,
            reader,
            looks,
            has_unread_bytes,
        })
    }

    /// Asks the first connection in the close order to close. Returns false if none may be closed.
    pub(crate) fn make_room(&self) -> bool {
        self.lock().make_room()
    }

    /// Waits until a connection is gone, or one that was new may be closed to make room.
    pub(crate) async fn wait_for_change(&self) {
        self.changed.notified().await;
    }

    /// Repeats the close requests of connections that take long to close.
    pub(crate) fn hurry(&self) {
        self.lock().repeat_close(Instant::now(), CLOSING_TIME_HURRIED);
    }

    /// Closes the connections that exceeded the timeout of their stage, and those that were asked to close and do not end.
    pub(crate) fn sweep(&self) {
        let now = Instant::now();
        let mut inner = self.lock();
        inner.repeat_close(now, CLOSING_TIME_MAX);
        let owners: Vec<_> = inner.owners.keys().copied().collect();
        for (owner, stage) in
            owners.into_iter().flat_map(|owner| Stage::CLOSE_ORDER.map(|stage| (owner, stage)))
        {
            let Some(time_max) = stage.time_max() else { continue };
            while let Some(first) = inner.at(owner, stage).and_then(BTreeMap::first_entry)
                && is_over(now, first.key().0, time_max)
            {
                let ((_, id), signal) = first.remove_entry();
                inner.close(owner, id, signal);
            }
        }
    }
}

fn is_over(now: Instant, since: Instant, time_max: Duration) -> bool {
    now.saturating_duration_since(since) >= time_max
}

impl TrackedConnection {
    fn position(&self) -> MutexGuard<'_, Position> {
        self.position.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the stage, or notes progress at the same stage.
    pub(crate) fn set_stage(&self, stage: Stage) {
        let now = Instant::now();
        let mut position = self.position();
        let before = position.stage;
        if before == stage && now.saturating_duration_since(position.since) < PROGRESS_STEP {
            return;
        }
        let next = Position { stage, since: now, ..*position };
        self.move_to(&mut self.table.lock(), &mut position, next);
        drop(position);
        if before == Stage::New {
            // It may be closed from now on, for which a new connection may wait.
            self.table.changed.notify_one();
        }
    }

    /// Changes the position in the table.
    fn move_to(&self, inner: &mut Inner, position: &mut Position, next: Position) {
        // A connection that was asked to close is at no stage and is counted for no owner.
        if self.signal.since().is_none() {
            if let Some(connections) = inner.at(position.owner, position.stage) {
                connections.remove(&(position.since, self.id));
            }
            if position.owner != next.owner {
                inner.remove(position.owner);
                inner.add(next.owner);
            }
            if let Some(connections) = inner.at(next.owner, next.stage) {
                connections.insert((next.since, self.id), self.signal.clone());
            }
        }
        *position = next;
    }

    /// Returns whether the handler of a request runs. The request is answered before the connection closes.
    pub(crate) fn is_in_progress(&self) -> bool {
        matches!(self.stage(), Stage::Working | Stage::Waiting)
    }

    /// Returns whether more connections are open than the server serves.
    pub(crate) fn is_table_full(&self) -> bool {
        let inner = self.table.lock();
        inner.open > inner.max
    }

    /// Returns whether the connection was asked to close and descriptors are running out.
    pub(crate) fn is_overdue(&self) -> bool {
        let inner = self.table.lock();
        self.is_closing() && inner.open + inner.closing.len() >= inner.max + CALLERS_SPARE / 2
    }

    /// Returns whether the connection must close after the current response: the server is full, and the owner has more
    /// than its share.
    pub(crate) fn must_close_after_response(&self) -> bool {
        let position = self.position();
        position.owner.is_some_and(|owner| self.table.lock().is_above_share(owner))
    }

    /// Returns the stage.
    pub(crate) fn stage(&self) -> Stage {
        self.position().stage
    }

    /// Notes that bytes were read.
    pub(crate) fn on_read(&self) {
        if matches!(self.stage(), Stage::New | Stage::Idle) {
            self.set_stage(Stage::Head);
        }
    }

    /// Has the next reads look into the socket, until [`end_look`](Self::end_look).
    pub(crate) fn begin_look(&self) {
        self.has_unread_bytes.store(false, Ordering::Relaxed);
        self.looks.store(true, Ordering::Relaxed);
    }

    /// Returns whether a read has to look into the socket.
    pub(crate) fn looks(&self) -> bool {
        self.looks.load(Ordering::Relaxed)
    }

    /// Notes that the socket has unread bytes, although there seemed to be nothing to read.
    pub(crate) fn on_unread_bytes(&self) {
        self.has_unread_bytes.store(true, Ordering::Relaxed);
    }

    /// Ends a look. Returns whether the socket has unread bytes.
    pub(crate) fn end_look(&self) -> bool {
        self.looks.store(false, Ordering::Relaxed);
        self.has_unread_bytes.load(Ordering::Relaxed)
    }

    /// Returns whether the connection was asked to close.
    pub(crate) fn is_closing(&self) -> bool {
        self.signal.since().is_some()
    }

    /// Notes that there was nothing to read.
    pub(crate) fn on_read_pending(&self) {
        if self.stage() == Stage::New {
            self.set_stage(Stage::Head);
        }
    }

    /// Notes that the socket accepted bytes.
    pub(crate) fn on_written(&self) {
        if self.stage() == Stage::Sending {
            self.set_stage(Stage::Sending);
        }
    }

    /// Notes that the last byte of a response was handed to the protocol.
    pub(crate) fn on_response_complete(&self) {
        self.is_response_complete.store(true, Ordering::Relaxed);
    }

    /// Notes that all bytes handed to the protocol were written. Returns whether this completes a response.
    pub(crate) fn on_flushed(&self) -> bool {
        let is_complete = self.is_response_complete.swap(false, Ordering::Relaxed);
        // The next request may have arrived already.
        if is_complete && self.stage() == Stage::Sending {
            self.set_stage(Stage::Idle);
        }
        is_complete
    }

    /// Notes that a body is not read to its end, which ends the connection.
    pub(crate) fn set_unread_body(&self) {
        self.unread_body.store(true, Ordering::Relaxed);
    }

    /// Returns whether a body was not read to its end.
    pub(crate) fn has_unread_body(&self) -> bool {
        self.unread_body.load(Ordering::Relaxed)
    }

    /// Ends an upgraded connection: its handler reads an end of file, and writes fail.
    pub(crate) fn hang_up(&self) {
        self.hung_up.store(true, Ordering::Release);
        self.reader.wake();
    }

    /// Returns whether [`hang_up`](Self::hang_up) was called, which wakes the reader `waiting`.
    pub(crate) fn is_hung_up(&self, waiting: Option<&Waker>) -> bool {
        if let Some(waker) = waiting
            && self.stage() == Stage::Upgraded
        {
            self.reader.register(waker);
        }
        self.hung_up.load(Ordering::Acquire)
    }

    /// Waits until the connection is asked to close.
    pub(crate) async fn close_requested(&self) {
        self.signal.close.notified().await;
    }
}

impl Connection for TrackedConnection {
    fn set_owner(&self, owner: Owner) {
        let mut position = self.position();
        if position.owner != Some(owner) {
            let next = Position { owner: Some(owner), ..*position };
            self.move_to(&mut self.table.lock(), &mut position, next);
        }
    }

    fn begin_wait(&self) -> bool {
        let mut position = self.position();
        let mut inner = self.table.lock();
        if self.signal.since().is_some() || position.owner.is_some_and(|owner| inner.is_above_share(owner)) {
            return false;
        }
        // A handler may run before the end of its body; then the stage stays.
        if position.stage == Stage::Working {
            let next = Position { stage: Stage::Waiting, since: Instant::now(), ..*position };
            self.move_to(&mut inner, &mut position, next);
        }
        true
    }

    fn answer_requested(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.signal.answer.notified())
    }

    fn end_wait(&self) {
        if self.stage() == Stage::Waiting {
            self.set_stage(Stage::Working);
        }
    }
}

impl Drop for TrackedConnection {
    fn drop(&mut self) {
        let Position { stage, since, owner } =
            *self.position.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut inner = self.table.lock();
        match self.signal.since() {
            Some(since) => drop(inner.closing.remove(&(since, self.id))),
            None => {
                if let Some(connections) = inner.at(owner, stage) {
                    connections.remove(&(since, self.id));
                }
                inner.open -= 1;
                inner.remove(owner);
            }
        }
        drop(inner);
        self.table.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn is_closing(tracked: &TrackedConnection) -> bool {
        tracked.close_requested().now_or_never().is_some()
    }

    #[test]
    fn the_connection_that_is_silent_for_longest_is_closed_first() {
        let table = Table::new(5);
        let [silent, later, idle, body, working] = std::array::from_fn(|_| table.enter());
        assert!(!table.make_room(), "no connection was read yet");
        silent.on_read_pending();
        later.on_read();
        idle.set_stage(Stage::Idle);
        body.set_stage(Stage::Receiving);
        working.set_stage(Stage::Working);
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
        working.set_stage(Stage::Sending);
        working.on_response_complete();
        assert!(working.on_flushed() && !working.on_flushed());
        assert!(table.make_room() && is_closing(&working), "an answered connection is idle");
    }

    #[test]
    fn a_connection_is_asked_to_close_only_once_to_make_room() {
        let table = Table::new(5);
        let tracked = table.enter();
        tracked.on_read_pending();
        assert!(table.make_room());
        for stage in [Stage::Receiving, Stage::Working, Stage::Sending] {
            tracked.set_stage(stage);
            assert!(!table.make_room());
        }
        drop(tracked);
        assert_eq!((table.open(), table.descriptors()), (0, 0));
    }

    fn polls(table: &Arc<Table>, owner: Owner, count: usize) -> Vec<Arc<TrackedConnection>> {
        let poll = |_| {
            let tracked = table.enter();
            tracked.set_stage(Stage::Working);
            tracked.set_owner(owner);
            assert!(tracked.begin_wait());
            tracked
        };
        (0..count).map(poll).collect()
    }

    const A: Owner = Owner::Tenant(1);
    const B: Owner = Owner::Tenant(2);

    #[test]
    fn the_owner_with_the_most_connections_loses_its_longest_poll_first() {
        let table = Table::new(21);
        let idle = table.enter();
        idle.set_owner(B);
        idle.set_stage(Stage::Idle);
        let poll = polls(&table, B, 1).pop().unwrap();
        let unauthenticated = table.enter();
        unauthenticated.on_read_pending();
        let of_a = polls(&table, A, 17);
        for next in &of_a[..9] {
            assert!(table.make_room());
            assert!(is_closing(next) && next.answer_requested().now_or_never().is_some());
        }
        assert!(
            table.make_room() && is_closing(&unauthenticated),
            "no owner has more than its share of 8 now"
        );
        assert!(table.make_room() && is_closing(&idle), "an idle connection is closed before a poll");
        assert!(!table.make_room() && !is_closing(&poll) && !is_closing(&of_a[9]));
    }

    #[test]
    fn on_a_full_server_polls_of_an_owner_above_its_share_are_answered_at_once() {
        let table = Table::new(8);
        let _of_b = polls(&table, B, 1);
        let of_a = polls(&table, A, 6);
        let more = table.enter();
        more.set_stage(Stage::Working);
        more.set_owner(A);
        assert!(!more.begin_wait() && more.must_close_after_response());
        more.set_owner(B);
        assert!(more.begin_wait() && !more.must_close_after_response(), "the latest key's owner counts");
        more.end_wait();
        assert_eq!(more.stage(), Stage::Working);
        drop(of_a);
        assert_eq!((table.open(), table.lock().owners.len()), (2, 1));
    }

    #[test]
    fn connections_without_a_key_are_closed_first_when_they_are_many() {
        let table = Table::new(8);
        let of_a = polls(&table, A, 5);
        let silent: [_; 3] = std::array::from_fn(|_| table.enter());
        silent.iter().for_each(|tracked| tracked.on_read_pending());
        assert!(
            table.make_room() && is_closing(&silent[0]),
            "connections without a key are more than a quarter"
        );
        assert!(!of_a[0].must_close_after_response(), "the server is not full");
        let full = table.enter();
        full.set_stage(Stage::Working);
        assert!(table.make_room() && is_closing(&silent[1]));
    }

    #[test]
    fn the_close_request_of_a_connection_that_does_not_close_is_repeated() {
        let table = Table::new(1);
        let tracked = table.enter();
        tracked.set_stage(Stage::Sending);
        assert!(table.make_room() && is_closing(&tracked));
        table.sweep();
        assert!(!is_closing(&tracked));
        let long_ago = Instant::now().checked_sub(CLOSING_TIME_MAX).unwrap();
        let mut inner = table.lock();
        let (_, signal) = inner.closing.pop_first().unwrap();
        *signal.since.lock().unwrap() = Some(long_ago);
        inner.closing.insert((long_ago, tracked.id), signal);
        drop(inner);
        table.sweep();
        assert!(is_closing(&tracked));
    }
}
