//! The connections that are open, and which of them is the first to go.
//!
//! A connection that asks for nothing costs a descriptor, of which there are few, and a caller that
//! opens hundreds of them must not keep out callers that ask for something. So the table knows what
//! each connection is at, and where a new one finds no room, the one that has been silent for the
//! longest makes it.
//!
//! The table also knows whose key a connection's last request carried. An owner may have more
//! connections than its share while there is room. Where there is none, the owner with the most
//! connections makes it: by an idle connection, or by a poll that waits for news and is answered
//! early. See `docs/adr/0107`.

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

/// How long a caller may take over the head of a request, from the connection or from the
/// first byte. A head is one packet; a minute of them is an attack.
const HEAD_TIME_MAX: Duration = Duration::from_secs(10);

/// How long a connection may be idle between two requests. Callers keep some open for the next
/// request, and open another where one is gone.
const IDLE_TIME_MAX: Duration = Duration::from_secs(120);

/// How long a caller may read nothing of its response.
const UNREAD_TIME_MAX: Duration = Duration::from_secs(30);

/// How long a connection that was asked to close may take over what it still sends, and how long
/// where others wait for its descriptor.
const CLOSING_TIME_MAX: Duration = Duration::from_secs(30);
const CLOSING_TIME_HURRIED: Duration = Duration::from_millis(250);

/// The part of all connections that those without a verified key may have before they make room
/// first: a head takes a moment to come, and callers without a key must not keep out those with one.
const UNKNOWN_PART: usize = 4;

/// Time that a new connection has for its head before it makes room for others. In a burst the server reads heads late, and a
/// connection that is closed before has no answer.
const HEAD_GRACE: Duration = Duration::from_millis(500);

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
    /// The handler of a request waits for news, and can be answered early.
    Waiting,
    /// It speaks another protocol by now, and is its handler's until the server stops.
    Upgraded,
}

impl Stage {
    /// In the order in which they make room for others; a connection whose request is worked on never
    /// does, nor one that speaks another protocol, nor one that had no chance to speak. A poll that is
    /// answered early comes again, so it goes before an answer or a body that would be cut off.
    const BY_WORTH: [Self; 5] = [Self::Head, Self::Idle, Self::Waiting, Self::Sending, Self::Receiving];

    /// How long it may last without progress. Bodies have rules of their own.
    fn time_max(self) -> Option<Duration> {
        match self {
            Self::Head => Some(HEAD_TIME_MAX),
            Self::Idle => Some(IDLE_TIME_MAX),
            Self::Sending => Some(UNREAD_TIME_MAX),
            Self::New | Self::Receiving | Self::Working | Self::Waiting | Self::Upgraded => None,
        }
    }

    /// Its place in the order.
    fn place(self) -> Option<usize> {
        Self::BY_WORTH.iter().position(|known| *known == self)
    }
}

/// All connections of a server.
pub(super) struct Table {
    inner: Mutex<Inner>,
    left: Notify,
}

struct Inner {
    /// Connections that may be open at once.
    max: usize,
    /// Those that have not been asked to close.
    open: usize,
    /// Those that have, and are not gone yet, by when they were asked.
    closing: BTreeMap<(Instant, u64), Arc<Close>>,
    opened: u64,
    /// The owners of open connections. None owns those whose key is not known.
    owners: HashMap<Option<Owner>, Owned>,
}

/// The open connections of one owner.
#[derive(Default)]
struct Owned {
    open: usize,
    /// Since when each is at its stage, the longest first.
    at: [BTreeMap<(Instant, u64), Arc<Close>>; Stage::BY_WORTH.len()],
}

/// The word to a connection that it has to close.
#[derive(Default)]
struct Close {
    word: Notify,
    /// The word to the handler of its request that it has to answer, where it waits for news.
    answer: Notify,
    /// When it was asked. Changed under the table's lock.
    since: Mutex<Option<Instant>>,
}

impl Close {
    fn since(&self) -> Option<Instant> {
        *self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Owned {
    /// Takes out the connection that is worth the least of those that have been at one of these stages since `until`.
    fn pop(&mut self, stages: &[Stage], until: Instant) -> Option<(u64, Arc<Close>)> {
        let places = stages.iter().filter_map(|stage| stage.place());
        let mut found = places.filter_map(|place| {
            let first = self.at[place].first_entry()?;
            (first.key().0 <= until).then(|| first.remove_entry())
        });
        found.next().map(|((_, id), close)| (id, close))
    }
}

impl Inner {
    fn at(
        &mut self,
        owner: Option<Owner>,
        stage: Stage,
    ) -> Option<&mut BTreeMap<(Instant, u64), Arc<Close>>> {
        let place = stage.place()?;
        self.owners.get_mut(&owner).map(|owned| &mut owned.at[place])
    }

    /// Adds an open connection to an owner.
    fn add(&mut self, owner: Option<Owner>) {
        self.owners.entry(owner).or_default().open += 1;
    }

    /// Takes an open connection from an owner.
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

    /// Connections without a verified key that do not make room before others.
    fn unknown_max(&self) -> usize {
        self.max / UNKNOWN_PART
    }

    /// The connections that an owner has in any case.
    fn share(&self) -> usize {
        let owners = self.owners.keys().flatten().count();
        ((self.max - self.unknown_max()) / owners.max(1)).max(1)
    }

    /// Whether there is no room left, and this owner has more than its share.
    fn is_too_many(&self, owner: Owner) -> bool {
        self.open >= self.max && self.open_of(Some(owner)) > self.share()
    }

    /// Asks one to close that was taken out of its stage.
    fn close(&mut self, owner: Option<Owner>, id: u64, close: Arc<Close>) {
        let now = Instant::now();
        *close.since.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
        close.word.notify_one();
        close.answer.notify_one();
        self.open -= 1;
        self.remove(owner);
        self.closing.insert((now, id), close);
    }

    /// Asks connections again to close that were asked so long ago. Who is not worked for does at once.
    fn ask_again(&self, now: Instant, time_max: Duration) {
        let late = self.closing.iter().take_while(|((since, _), _)| is_over(now, *since, time_max));
        late.for_each(|(_, close)| close.word.notify_one());
    }

    /// Closes the connection that is worth the least, if any may be closed.
    fn make_room(&mut self) -> bool {
        const UNKNOWN: [Stage; 4] = [Stage::Head, Stage::Idle, Stage::Sending, Stage::Receiving];
        const IN_SHARE: [Stage; 2] = [Stage::Head, Stage::Idle];
        let (share, unknown_max) = (self.share(), self.unknown_max());
        let is_unknown_first = self.open_of(None) > unknown_max;
        let is_anybody_above = self.owners.iter().any(|(owner, of)| owner.is_some() && of.open > share);
        let mut owners: Vec<_> =
            self.owners.iter().filter_map(|(owner, owned)| Some(((*owner)?, owned.open))).collect();
        owners.sort_unstable_by_key(|(_, open)| std::cmp::Reverse(*open));
        let above = owners.iter().take_while(|(_, open)| *open > share);
        let above = above.map(|(owner, _)| (Some(*owner), &Stage::BY_WORTH[..]));
        // An owner within its share keeps its idle connections, unless nobody is above.
        let is_nobody_above = !is_unknown_first && !is_anybody_above;
        let idle = owners.iter().filter(|_| is_nobody_above);
        let idle = idle.map(|(owner, _)| (Some(*owner), &IN_SHARE[..]));
        let now = Instant::now();
        let until_now = |(owner, stages)| (owner, stages, now);
        let unknown = (None, &UNKNOWN[..]);
        let late = now.checked_sub(HEAD_GRACE).map(|until| (unknown.0, unknown.1, until));
        let first = late.filter(|_| is_unknown_first);
        let others = above.chain([unknown]).chain(idle).map(until_now);
        for (owner, stages, until) in first.into_iter().chain(others) {
            let owned = self.owners.get_mut(&owner);
            if let Some((id, close)) = owned.and_then(|owned| owned.pop(stages, until)) {
                self.close(owner, id, close);
                return true;
            }
        }
        false
    }
}

/// One connection, known to the table until it is dropped.
pub(super) struct Known {
    table: Arc<Table>,
    id: u64,
    /// Changed under the table's lock.
    place: Mutex<Place>,
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

/// Where a connection is in the table.
#[derive(Clone, Copy)]
struct Place {
    stage: Stage,
    since: Instant,
    owner: Option<Owner>,
}

impl Table {
    /// A table of so many connections.
    pub(crate) fn new(max: usize) -> Arc<Self> {
        let (closing, owners) = Default::default();
        let inner = Inner { max, open: 0, closing, opened: 0, owners };
        Arc::new(Self { inner: Mutex::new(inner), left: Notify::new() })
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
        inner.open + inner.closing.len()
    }

    /// Makes a new connection known.
    pub(crate) fn enter(self: &Arc<Self>) -> Arc<Known> {
        let mut inner = self.lock();
        inner.open += 1;
        inner.opened += 1;
        inner.add(None);
        let (id, close) = (inner.opened, Arc::<Close>::default());
        let place = Mutex::new(Place { stage: Stage::New, since: Instant::now(), owner: None });
        let (answered, left_unread, hung_up, reader) = Default::default();
        Arc::new(Known { table: self.clone(), id, place, close, answered, left_unread, hung_up, reader })
    }

    /// Closes the connection that is worth the least, if any may be closed.
    pub(crate) fn make_room(&self) -> bool {
        self.lock().make_room()
    }

    /// Waits until a connection is gone, or may be asked to go.
    pub(crate) async fn left(&self) {
        self.left.notified().await;
    }

    /// Asks connections again that take their time over closing.
    pub(crate) fn hurry(&self) {
        self.lock().ask_again(Instant::now(), CLOSING_TIME_HURRIED);
    }

    /// Closes what has been at the same for too long, and what was asked to close and does not end.
    pub(crate) fn sweep(&self) {
        let now = Instant::now();
        let mut inner = self.lock();
        inner.ask_again(now, CLOSING_TIME_MAX);
        let owners: Vec<_> = inner.owners.keys().copied().collect();
        for (owner, stage) in owners.into_iter().flat_map(|owner| Stage::BY_WORTH.map(|stage| (owner, stage)))
        {
            let Some(time_max) = stage.time_max() else { continue };
            while let Some(first) = inner.at(owner, stage).and_then(BTreeMap::first_entry)
                && is_over(now, first.key().0, time_max)
            {
                let ((_, id), close) = first.remove_entry();
                inner.close(owner, id, close);
            }
        }
    }
}

fn is_over(now: Instant, since: Instant, time_max: Duration) -> bool {
    now.saturating_duration_since(since) >= time_max
}

impl Known {
    fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It is at something else now, or goes on with the same.
    pub(crate) fn is_at(&self, stage: Stage) {
        let now = Instant::now();
        let mut place = self.place();
        let before = place.stage;
        if before == stage && now.saturating_duration_since(place.since) < PROGRESS_STEP {
            return;
        }
        let next = Place { stage, since: now, ..*place };
        self.moves(&mut self.table.lock(), &mut place, next);
        drop(place);
        if before == Stage::New {
            // From here on it may make room, for which somebody may wait.
            self.table.left.notify_one();
        }
    }

    /// Changes its place in the table.
    fn moves(&self, inner: &mut Inner, place: &mut Place, next: Place) {
        // One that has to close makes room no second time, and is counted for no owner.
        if self.close.since().is_none() {
            if let Some(connections) = inner.at(place.owner, place.stage) {
                connections.remove(&(place.since, self.id));
            }
            if place.owner != next.owner {
                inner.remove(place.owner);
                inner.add(next.owner);
            }
            if let Some(connections) = inner.at(next.owner, next.stage) {
                connections.insert((next.since, self.id), self.close.clone());
            }
        }
        *place = next;
    }

    /// Whether a request of it is worked on, which is answered before the connection closes.
    pub(crate) fn is_worked_for(&self) -> bool {
        matches!(self.stage(), Stage::Working | Stage::Waiting)
    }

    /// Whether more are open than are to be served.
    pub(crate) fn is_table_crowded(&self) -> bool {
        let inner = self.table.lock();
        inner.open > inner.max
    }

    /// Whether it was asked to close and others wait for its descriptor already.
    pub(crate) fn is_closing_late(&self) -> bool {
        let inner = self.table.lock();
        self.close.since().is_some() && inner.open + inner.closing.len() >= inner.max + CALLERS_SPARE / 2
    }

    /// Whether it closes after the answer that is being made: there is no room left, and its owner
    /// has more than its share.
    pub(crate) fn ends_after_answer(&self) -> bool {
        let place = self.place();
        place.owner.is_some_and(|owner| self.table.lock().is_too_many(owner))
    }

    /// What it is at.
    pub(crate) fn stage(&self) -> Stage {
        self.place().stage
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

impl Connection for Known {
    fn belongs_to(&self, owner: Owner) {
        let mut place = self.place();
        if place.owner != Some(owner) {
            let next = Place { owner: Some(owner), ..*place };
            self.moves(&mut self.table.lock(), &mut place, next);
        }
    }

    fn begin_wait(&self) -> bool {
        let mut place = self.place();
        let mut inner = self.table.lock();
        if self.close.since().is_some() || place.owner.is_some_and(|owner| inner.is_too_many(owner)) {
            return false;
        }
        // What serves the request may have gone on without the end of its body.
        if place.stage == Stage::Working {
            let next = Place { stage: Stage::Waiting, since: Instant::now(), ..*place };
            self.moves(&mut inner, &mut place, next);
        }
        true
    }

    fn must_answer(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.close.answer.notified())
    }

    fn end_wait(&self) {
        if self.stage() == Stage::Waiting {
            self.is_at(Stage::Working);
        }
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        let Place { stage, since, owner } = *self.place.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut inner = self.table.lock();
        match self.close.since() {
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
        let table = Table::new(5);
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
        let table = Table::new(5);
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

    fn polls(table: &Arc<Table>, owner: Owner, count: usize) -> Vec<Arc<Known>> {
        let poll = |_| {
            let known = table.enter();
            known.is_at(Stage::Working);
            known.belongs_to(owner);
            assert!(known.begin_wait());
            known
        };
        (0..count).map(poll).collect()
    }

    const A: Owner = Owner::Tenant(1);
    const B: Owner = Owner::Tenant(2);

    #[test]
    fn the_owner_with_the_most_connections_makes_room_by_its_longest_poll() {
        let table = Table::new(21);
        let idle = table.enter();
        idle.belongs_to(B);
        idle.is_at(Stage::Idle);
        let poll = polls(&table, B, 1).pop().unwrap();
        let unknown = table.enter();
        unknown.is_silent();
        let of_a = polls(&table, A, 17);
        for next in &of_a[..9] {
            assert!(table.make_room());
            assert!(is_closing(next) && next.must_answer().now_or_never().is_some());
        }
        assert!(table.make_room() && is_closing(&unknown), "nobody has more than a share of 8 now");
        assert!(table.make_room() && is_closing(&idle), "that makes room before a poll does");
        assert!(!table.make_room() && !is_closing(&poll) && !is_closing(&of_a[9]));
    }

    #[test]
    fn an_owner_above_its_share_waits_for_nothing_while_there_is_no_room() {
        let table = Table::new(8);
        let _of_b = polls(&table, B, 1);
        let of_a = polls(&table, A, 6);
        let more = table.enter();
        more.is_at(Stage::Working);
        more.belongs_to(A);
        assert!(!more.begin_wait() && more.ends_after_answer());
        more.belongs_to(B);
        assert!(more.begin_wait() && !more.ends_after_answer(), "the latest key's owner counts");
        more.end_wait();
        assert_eq!(more.stage(), Stage::Working);
        drop(of_a);
        assert_eq!((table.open(), table.lock().owners.len()), (2, 1));
    }

    #[test]
    fn connections_without_a_key_make_room_first_where_they_are_many() {
        let table = Table::new(8);
        let of_a = polls(&table, A, 5);
        let silent: [_; 3] = std::array::from_fn(|_| table.enter());
        silent.iter().for_each(|known| known.is_silent());
        assert!(table.make_room() && is_closing(&silent[0]), "more than a quarter");
        assert!(!of_a[0].ends_after_answer(), "there is room");
        let full = table.enter();
        full.is_at(Stage::Working);
        assert!(table.make_room() && is_closing(&silent[1]));
    }

    #[test]
    fn a_connection_that_does_not_close_is_asked_again() {
        let table = Table::new(1);
        let known = table.enter();
        known.is_at(Stage::Sending);
        assert!(table.make_room() && is_closing(&known));
        table.sweep();
        assert!(!is_closing(&known));
        let long_ago = Instant::now().checked_sub(CLOSING_TIME_MAX).unwrap();
        let mut inner = table.lock();
        let (_, close) = inner.closing.pop_first().unwrap();
        *close.since.lock().unwrap() = Some(long_ago);
        inner.closing.insert((long_ago, known.id), close);
        drop(inner);
        table.sweep();
        assert!(is_closing(&known));
    }
}
