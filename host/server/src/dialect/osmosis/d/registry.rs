//! The rollouts that callers poll for, alive or over, each under its lease.
//!
//! Where there is a journal, a result is in it from the rollout's end on, and found there when it is asked for. What is
//! here of it is a copy that saves reading it, as long as copies take little; see `rollout::KeptResults`. Without a
//! journal results are here alone.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use axum::body::Bytes;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::super::error::ApiError;
use super::super::reports::Due;
use crate::connection::Caller;
use rollout_assembly::config::OsmosisTimes;
use rollout_core::budget::{Budget, Charge};
use rollout_core::digest::sha256_hex;
use rollout_core::id::RolloutId;
use rollout_core::rollout::{Host, Journal, KeptResult, Phase, ResultOf, RolloutLog, RunClock};

/// How long a result is kept that was read, for a caller that lost it on its way. Where the
/// host has no room for new work it goes sooner, the oldest first.
const READ_KEPT: Duration = Duration::from_secs(60);

/// What is kept of such results together, in bytes. A lost answer is asked for again at once; where
/// thousands of results a second are read, or large ones, they are kept for seconds.
const READ_BYTES_MAX: usize = 16 << 20;

/// A shorter result that was read is left here: it takes less than what it is made of.
const LEFT_BYTES_MIN: usize = 4 << 10;

/// What copies of results that the journal has take together, in bytes.
const COPIES_BYTES_MAX: usize = 32 << 20;

/// What an entry takes besides its result, in bytes.
const ENTRY_BYTES: usize = 1024;

/// Who reads results of the journal at once: each takes a thread.
const READERS_MAX: usize = 2;

/// How far a rollout is.
#[derive(Clone, Debug)]
pub(super) enum Status {
    /// Alive.
    Under(Phase),
    /// Over, with its result.
    Ended(Arc<ResultCopy>),
    /// Over, and its result is in the journal alone.
    Journaled,
}

/// The body of a result, charged for as long as anybody has it.
#[derive(Debug)]
pub(super) struct ResultCopy {
    pub body: Bytes,
    _charge: Charge,
}

impl ResultCopy {
    pub(super) fn new(body: Bytes, charge: Charge) -> Self {
        Self { body, _charge: charge }
    }
}

/// The digest of a lease's token, which only its holder has.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Lease(String);

impl Lease {
    pub(crate) fn of(token: &str) -> Self {
        Self(sha256_hex(token.as_bytes()))
    }

    /// Compared in constant time.
    pub(crate) fn is(&self, other: &Self) -> bool {
        bool::from(self.0.as_bytes().ct_eq(other.0.as_bytes()))
    }
}

/// One rollout that is polled for.
pub(super) struct Entry {
    id: RolloutId,
    lease: Lease,
    /// Where it is kept, until it is forgotten.
    log: Option<RolloutLog>,
    lease_time: Duration,
    clock: Arc<RunClock>,
    status: watch::Sender<Status>,
    polled: Mutex<Polled>,
    /// Its result in the journal, once it is kept there.
    kept: OnceLock<KeptResult>,
}

struct Polled {
    /// By the clock that stands still where the process does.
    last: Duration,
    /// The last phase that the lease's holder heard of; it was told "queued" on
    /// admission.
    heard: Option<Phase>,
    /// The poll that waits: dropped, it is answered.
    waiting: Option<oneshot::Sender<()>>,
}

impl Entry {
    pub(crate) fn id(&self) -> &RolloutId {
        &self.id
    }

    /// Where it is kept, if it is.
    pub(crate) fn log(&self) -> Option<&RolloutLog> {
        self.log.as_ref()
    }

    pub(crate) fn is_lease(&self, token: &str) -> bool {
        self.lease.is(&Lease::of(token))
    }

    pub(crate) fn lease(&self) -> &Lease {
        &self.lease
    }

    pub(crate) fn set(&self, status: Status) {
        self.status.send_replace(status);
    }

    /// Its result in the journal, if it is kept there.
    pub(crate) fn kept(&self) -> Option<KeptResult> {
        self.kept.get().copied()
    }

    /// The bytes of its result, if it is over and here.
    fn result_bytes(&self) -> usize {
        match &*self.status.borrow() {
            Status::Under(_) | Status::Journaled => 0,
            Status::Ended(copy) => copy.body.len(),
        }
    }

    fn polled(&self) -> MutexGuard<'_, Polled> {
        self.polled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Renews the lease, waits until there is something that its holder has not
    /// heard, or until the time is over, and gives how far the rollout is. One poll waits: the next
    /// one answers it, because its caller is most likely gone, and each holds a connection.
    pub(crate) async fn news(&self, wait: Duration) -> Status {
        let (waiting, next_poll) = oneshot::channel();
        let heard = {
            let mut polled = self.polled();
            polled.last = self.clock.now();
            polled.waiting = Some(waiting);
            polled.heard
        };
        let mut status = self.status.subscribe();
        let new = status.wait_for(|status| match status {
            Status::Ended(_) | Status::Journaled => true,
            Status::Under(phase) => heard != Some(*phase),
        });
        // The sender is in `self`; a timeout leaves what was known before.
        tokio::select! {
            _ = tokio::time::timeout(wait, new) => {}
            _ = next_poll => {}
        }
        let status = self.status.borrow().clone();
        let mut polled = self.polled();
        polled.last = self.clock.now();
        if let Status::Under(phase) = &status {
            polled.heard = Some(*phase);
        }
        status
    }

    /// Waits until nobody has asked for longer than the lease.
    pub(crate) async fn lease_over(&self) {
        loop {
            let left = (self.polled().last + self.lease_time).saturating_sub(self.clock.now());
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left).await;
        }
    }
}

/// All of them.
pub(in super::super) struct Registry {
    times: OsmosisTimes,
    inner: Mutex<Inner>,
    /// Where results are kept, if they are.
    journal: Option<Arc<Journal>>,
    /// The plugin whose they are, where there are several.
    plugin: Option<String>,
    clock: Arc<RunClock>,
    /// From here on nobody waits for news.
    leaving: CancellationToken,
    /// Who makes a result of what the journal has of it.
    readers: Arc<Semaphore>,
}

#[derive(Default)]
struct Inner {
    entries: HashMap<RolloutId, Slot>,
    /// Results that are here alone, in the order in which they are to be forgotten.
    ended: VecDeque<(Duration, Weak<Entry>)>,
    /// Those that were read, by when they first were, with their bytes.
    read: VecDeque<(Duration, usize, Weak<Entry>)>,
    read_bytes: usize,
    /// Copies of results that the journal has, the oldest first, with their bytes.
    copies: VecDeque<(usize, Weak<Entry>)>,
    copies_bytes: usize,
}

struct Slot {
    entry: Option<Arc<Entry>>,
    /// Its result is over, here alone, and was not read in full.
    due: Option<Due>,
}

impl Inner {
    /// The place of an entry, unless its id is another rollout's by now.
    fn slot(&mut self, entry: &Arc<Entry>) -> Option<&mut Slot> {
        let slot = self.entries.get_mut(&entry.id)?;
        slot.entry.as_ref().is_some_and(|known| Arc::ptr_eq(known, entry)).then_some(slot)
    }

    /// Forgets the result that was read first, if there is one.
    fn forget_read(&mut self) -> bool {
        let Some((_, bytes, entry)) = self.read.pop_front() else { return false };
        self.read_bytes -= bytes;
        self.forget(&entry);
        true
    }

    /// A result was read, and is kept for a while.
    fn keep_read(&mut self, now: Duration, bytes: usize, entry: &Arc<Entry>) {
        self.read.push_back((now, bytes, Arc::downgrade(entry)));
        self.read_bytes += bytes;
        // Never the one that was read just now, however large it is.
        while self.read_bytes > READ_BYTES_MAX && self.read.len() > 1 {
            self.forget_read();
        }
    }

    fn forget(&mut self, entry: &Weak<Entry>) {
        let Some(entry) = entry.upgrade() else { return };
        let Some(slot) = self.slot(&entry) else { return };
        if slot.due.is_some() {
            tracing::info!(rollout_id = %entry.id, "a result that nobody read in its time is forgotten");
        }
        self.entries.remove(&entry.id);
        if let Some(log) = &entry.log {
            log.end();
        }
    }

    /// Keeps a copy of a result that the journal has. Others go for it, the oldest first.
    fn keep_copy(&mut self, bytes: usize, entry: &Arc<Entry>) {
        self.copies.push_back((bytes, Arc::downgrade(entry)));
        self.copies_bytes += bytes;
        while self.copies_bytes > COPIES_BYTES_MAX && self.drop_copy() {}
    }

    /// Gives up the oldest copy of a result that the journal has.
    fn drop_copy(&mut self) -> bool {
        let Some((bytes, entry)) = self.copies.pop_front() else { return false };
        self.copies_bytes -= bytes;
        if let Some(entry) = entry.upgrade() {
            self.leave(&entry);
        }
        true
    }

    /// Leaves a result to the journal.
    fn leave(&mut self, entry: &Arc<Entry>) {
        if self.slot(entry).is_some() {
            self.entries.remove(&entry.id);
        }
        // Who waits for it has it still, and nobody else.
        entry.set(Status::Journaled);
    }
}

/// An id that is spoken for. Dropped unfilled, it is free again.
pub(super) struct Reserved<'a> {
    registry: &'a Registry,
    id: RolloutId,
    filled: bool,
}

impl Reserved<'_> {
    /// Makes the rollout known.
    pub(crate) fn fill(mut self, lease: Lease, log: Option<RolloutLog>) -> Arc<Entry> {
        let clock = self.registry.clock.clone();
        clock.start();
        let entry = Arc::new(Entry {
            id: self.id.clone(),
            lease,
            log,
            lease_time: self.registry.times.lease,
            status: watch::Sender::new(Status::Under(Phase::Queued)),
            polled: Mutex::new(Polled { last: clock.now(), heard: Some(Phase::Queued), waiting: None }),
            kept: OnceLock::new(),
            clock,
        });
        self.filled = true;
        let slot = Slot { entry: Some(entry.clone()), due: None };
        self.registry.lock().entries.insert(self.id.clone(), slot);
        entry
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if !self.filled {
            self.registry.lock().entries.remove(&self.id);
        }
    }
}

impl Registry {
    /// The registry of a host's rollouts, by its journal if it has one.
    pub(crate) fn new(times: OsmosisTimes, host: &Host) -> Self {
        let journal = host.journal().cloned();
        if let Some(journal) = &journal {
            journal.results().charge_to(host.budget());
        }
        let clock = journal.as_ref().map_or_else(RunClock::new, |journal| journal.results().clock().clone());
        Self {
            times,
            inner: Mutex::default(),
            journal,
            plugin: host.deployment().id().served_as.as_ref().map(|served| served.plugin.clone()),
            clock,
            leaving: CancellationToken::new(),
            readers: Arc::new(Semaphore::new(READERS_MAX)),
        }
    }

    /// Begins to measure time, within the runtime.
    pub(crate) fn starts(&self) {
        self.clock.start();
    }

    /// Where results are kept, if they are.
    pub(super) fn journal(&self) -> Option<&Arc<Journal>> {
        self.journal.as_ref()
    }

    /// Whose result it is.
    pub(super) fn result_of<'a>(&'a self, id: &'a RolloutId) -> ResultOf<'a> {
        ResultOf { id, plugin: self.plugin.as_deref() }
    }

    /// The result of this rollout in the journal, if one is kept there.
    pub(super) fn kept(&self, id: &RolloutId) -> Option<KeptResult> {
        let journal = self.journal.as_ref()?;
        journal.forget_results();
        journal.results().of(self.result_of(id))
    }

    /// Waits until every result that the journal keeps was read.
    pub(crate) async fn all_read(&self) {
        if let Some(journal) = &self.journal {
            journal.results().all_read().await;
        }
    }

    /// What is new of a rollout, as soon as something is, its waiting time is over, or its connection
    /// is wanted for another caller.
    pub(super) async fn news(&self, entry: &Entry, caller: Option<&Caller>) -> Status {
        let news = entry.news(self.times.result_wait);
        let news = async {
            match caller {
                Some(caller) => caller.wait(news).await,
                None => Some(news.await),
            }
        };
        let news = tokio::select! {
            news = news => news,
            () = self.leaving.cancelled() => None,
        };
        match news {
            Some(status) => status,
            None => entry.news(Duration::ZERO).await,
        }
    }

    /// From here on nobody waits for news.
    pub(crate) fn answer_waiting(&self) {
        self.leaving.cancel();
    }

    /// Waits for the turn to make a result of what the journal has of it. Nobody closes the semaphore.
    pub(super) async fn reader(&self) -> Option<OwnedSemaphorePermit> {
        self.readers.clone().acquire_owned().await.ok()
    }

    pub(super) fn times(&self) -> &OsmosisTimes {
        &self.times
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        // Each look at the registry forgets what is due.
        let now = self.clock.now();
        while inner.read.front().is_some_and(|(read, ..)| *read + READ_KEPT <= now) {
            inner.forget_read();
        }
        while let Some((_, entry)) = inner.ended.pop_front_if(|(due, _)| *due <= now) {
            inner.forget(&entry);
        }
        inner
    }

    /// Forgets what is due, and where the host has no room for new work, copies of results that the journal has, and
    /// results that were read, the oldest first, until it has.
    pub(crate) fn sweep(&self, budget: &Budget) {
        let mut inner = self.lock();
        while !budget.has_room() && (inner.drop_copy() || inner.forget_read()) {}
        drop(inner);
        let Some(journal) = self.journal.clone() else { return };
        journal.forget_results();
        let mut inner = self.lock();
        let is_kept = |slot: &Slot| {
            let kept = slot.entry.as_ref().and_then(|entry| entry.kept());
            kept.is_none_or(|kept| journal.results().has(kept))
        };
        inner.entries.retain(|_, slot| is_kept(slot));
        drop(inner);
        tokio::task::spawn_blocking(move || journal.note_results());
    }

    /// Whether it knows no rollout.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().entries.is_empty()
    }

    /// Speaks for an id that no known rollout has, and of which no result is kept.
    pub(super) fn reserve(&self, id: &RolloutId) -> Result<Reserved<'_>, ApiError> {
        if self.kept(id).is_some() {
            return Err(ApiError::Registered);
        }
        self.reserve_anyway(id)
    }

    /// The same where the result in the journal is this rollout's own.
    pub(super) fn reserve_anyway(&self, id: &RolloutId) -> Result<Reserved<'_>, ApiError> {
        let mut inner = self.lock();
        // What is forgotten in the journal is forgotten here.
        let is_forgotten = |slot: &Slot| {
            let kept = slot.entry.as_ref().and_then(|entry| entry.kept());
            kept.zip(self.journal.as_ref()).is_some_and(|(kept, journal)| !journal.results().has(kept))
        };
        if inner.entries.get(id).is_some_and(|slot| !is_forgotten(slot)) {
            return Err(ApiError::Registered);
        }
        inner.entries.insert(id.clone(), Slot { entry: None, due: None });
        Ok(Reserved { registry: self, id: id.clone(), filled: false })
    }

    /// A rollout that is alive, or whose result is here.
    pub(super) fn find(&self, id: &RolloutId) -> Option<Arc<Entry>> {
        let entry = self.lock().entries.get(id)?.entry.clone()?;
        let kept = entry.kept().zip(self.journal.as_ref());
        kept.is_none_or(|(kept, journal)| journal.results().has(kept)).then_some(entry)
    }

    /// The known ids that the test holds for.
    pub(crate) fn ids(&self, matches: impl Fn(&RolloutId) -> bool) -> Vec<String> {
        self.lock().entries.keys().filter(|id| matches(id)).map(|id| id.as_str().to_owned()).collect()
    }

    /// Keeps a result that is here alone for as long as results are kept.
    pub(super) fn end(&self, entry: &Arc<Entry>, body: Bytes, due: Due, budget: &Budget) {
        let charge = budget.charge_result(ENTRY_BYTES + body.len());
        let mut inner = self.lock();
        if let Some(slot) = inner.slot(entry) {
            slot.due = Some(due);
        }
        inner.ended.push_back((self.clock.now() + self.times.result_ttl, Arc::downgrade(entry)));
        drop(inner);
        entry.set(Status::Ended(Arc::new(ResultCopy { body, _charge: charge })));
    }

    /// A result is in the journal. A copy stays here where copies take little.
    pub(super) fn end_kept(&self, entry: &Arc<Entry>, kept: KeptResult, copy: Option<(Bytes, Charge)>) {
        let _ = entry.kept.set(kept);
        let mut inner = self.lock();
        let Some((body, charge)) = copy else { return inner.leave(entry) };
        let bytes = charge.bytes();
        entry.set(Status::Ended(Arc::new(ResultCopy { body, _charge: charge })));
        inner.keep_copy(bytes, entry);
    }

    /// A charge for a copy of a result of so many bytes, if it may stay here.
    pub(super) fn copy_charge(&self, bytes: usize, budget: &Budget) -> Option<Charge> {
        let bytes = ENTRY_BYTES + bytes;
        if bytes > COPIES_BYTES_MAX / 2 {
            return None;
        }
        budget.charge_copy(bytes)
    }

    /// Notes that a caller has read a result in full.
    pub(super) fn was_read(&self, entry: &Arc<Entry>) {
        let bytes = entry.result_bytes();
        if let Some((kept, journal)) = entry.kept().zip(self.journal.as_ref()) {
            if journal.was_read(kept) && bytes >= LEFT_BYTES_MIN {
                self.lock().leave(entry);
            }
            return;
        }
        let mut inner = self.lock();
        let due = inner.slot(entry).and_then(|slot| slot.due.take());
        if due.is_some() {
            let now = self.clock.now();
            inner.keep_read(now, ENTRY_BYTES + bytes, entry);
        }
        drop(inner);
        if let Some(due) = &due {
            due.kept();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_that_were_read_are_kept_while_they_are_few() {
        let mut inner = Inner::default();
        let mut read = |id: &str, bytes| {
            let entry = Arc::new(Entry {
                id: RolloutId::parse(id).unwrap(),
                lease: Lease::of(""),
                log: None,
                lease_time: Duration::ZERO,
                clock: RunClock::new(),
                status: watch::Sender::new(Status::Under(Phase::Queued)),
                polled: Mutex::new(Polled { last: Duration::ZERO, heard: None, waiting: None }),
                kept: OnceLock::new(),
            });
            let slot = Slot { entry: Some(entry.clone()), due: None };
            inner.entries.insert(entry.id.clone(), slot);
            inner.keep_read(Duration::ZERO, bytes, &entry);
            let mut ids: Vec<_> = inner.entries.keys().map(|id| id.as_str().to_owned()).collect();
            ids.sort();
            ids.concat()
        };
        let half = READ_BYTES_MAX / 2;
        assert_eq!(read("a", half), "a");
        assert_eq!(read("b", half), "ab");
        assert_eq!(read("c", 1), "bc", "the oldest went");
        assert_eq!(read("d", 2 * READ_BYTES_MAX), "d", "the last one stays, however large it is");
        assert_eq!(read("e", 1), "e");
    }
}
