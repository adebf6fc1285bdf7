//! The rollouts that callers poll for, alive or over, each under its lease.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use axum::body::Bytes;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::super::error::ApiError;
use super::super::reports::Due;
use super::Form;
use super::run_clock::RunClock;
use crate::connection::Caller;
use rollout_assembly::config::OsmosisTimes;
use rollout_core::budget::{Budget, Charge};
use rollout_core::digest::sha256_hex;
use rollout_core::id::RolloutId;
use rollout_core::rollout::{Phase, RolloutLog};

/// How long a result is kept that was read, for a caller that lost it on its way. Where the
/// host has no room for new work it goes sooner, the oldest first.
const READ_KEPT: Duration = Duration::from_secs(60);

/// What is kept of such results together, in bytes. A lost answer is asked for again at once; where
/// thousands of results a second are read, or large ones, they are kept for seconds.
const READ_BYTES_MAX: usize = 16 << 20;

/// A shorter result is kept as it is: it takes less than what it is made of.
const JOURNALED_BYTES_MIN: usize = 4 << 10;

/// What an entry takes besides its result, in bytes.
const ENTRY_BYTES: usize = 1024;

/// What the journal has in memory of a rollout that is not forgotten: where its records are.
const RECORDS_BYTES: usize = 512;

/// How far a rollout is.
#[derive(Clone, Debug)]
pub(super) enum Status {
    /// Alive.
    Under(Phase),
    /// Over, with the body of its result.
    Ended(Bytes),
    /// Over, and its result was read. Whoever asks for it once more gets what the journal has of it.
    Journaled(Arc<Journaled>),
}

/// A result that the journal has, so that it need not be in memory, too.
#[derive(Debug)]
pub(super) struct Journaled {
    /// How its body is made.
    pub form: Form,
    /// How long that is.
    pub bytes: usize,
}

/// The digest of a lease's token, which only its holder has.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Lease(String);

impl Lease {
    pub(crate) fn of(token: &str) -> Self {
        Self(sha256_hex(token.as_bytes()))
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

    /// Compared in constant time.
    pub(crate) fn is_lease(&self, token: &str) -> bool {
        bool::from(self.lease.0.as_bytes().ct_eq(Lease::of(token).0.as_bytes()))
    }

    pub(crate) fn set(&self, status: Status) {
        self.status.send_replace(status);
    }

    /// What it takes besides its result, in bytes.
    fn bytes(&self) -> usize {
        ENTRY_BYTES + if self.log.is_some() { RECORDS_BYTES } else { 0 }
    }

    /// The bytes of its result, if it is over.
    fn result_bytes(&self) -> usize {
        match &*self.status.borrow() {
            Status::Under(_) | Status::Journaled(_) => 0,
            Status::Ended(body) => body.len(),
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
            Status::Ended(_) | Status::Journaled(_) => true,
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
    clock: Arc<RunClock>,
    /// From here on nobody waits for news.
    leaving: CancellationToken,
    /// Who makes a result of what the journal has of it.
    reader: Arc<Semaphore>,
}

#[derive(Default)]
struct Inner {
    entries: HashMap<RolloutId, Slot>,
    /// Results in the order in which they are to be forgotten.
    ended: VecDeque<(Duration, Weak<Entry>)>,
    /// Those that were read, by when they first were, with their bytes.
    read: VecDeque<(Duration, usize, Weak<Entry>)>,
    read_bytes: usize,
}

struct Slot {
    entry: Option<Arc<Entry>>,
    /// Its result is over and was not read in full.
    due: Option<Due>,
    /// How its result is made of what the journal has of it, where that may be.
    form: Option<Form>,
    /// For a result that is kept.
    charge: Option<Charge>,
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

    /// Gives up the body of a result that the journal has, too, unless that is short.
    fn leave_to_journal(&mut self, entry: &Arc<Entry>) {
        let bytes = entry.result_bytes();
        if bytes < JOURNALED_BYTES_MIN || entry.log.is_none() {
            return;
        }
        let Some(slot) = self.slot(entry) else { return };
        let Some(form) = slot.form.take() else { return };
        if let Some(charge) = &mut slot.charge {
            charge.shrink_to(entry.bytes());
        }
        entry.set(Status::Journaled(Arc::new(Journaled { form, bytes })));
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
            clock,
        });
        self.filled = true;
        let slot = Slot { entry: Some(entry.clone()), due: None, form: None, charge: None };
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
    pub(crate) fn new(times: OsmosisTimes) -> Self {
        Self {
            times,
            inner: Mutex::default(),
            clock: RunClock::new(),
            leaving: CancellationToken::new(),
            reader: Arc::new(Semaphore::new(1)),
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
        self.reader.clone().acquire_owned().await.ok()
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

    /// Forgets what is due, and where the host has no room for new work, results that were
    /// read, the oldest first, until it has.
    pub(crate) fn sweep(&self, budget: &Budget) {
        let mut inner = self.lock();
        while !budget.has_room() && inner.forget_read() {}
    }

    /// Whether it knows no rollout.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().entries.is_empty()
    }

    /// Speaks for an id that no known rollout has.
    pub(super) fn reserve(&self, id: &RolloutId) -> Result<Reserved<'_>, ApiError> {
        let mut inner = self.lock();
        if inner.entries.contains_key(id) {
            return Err(ApiError::Registered);
        }
        inner.entries.insert(id.clone(), Slot { entry: None, due: None, form: None, charge: None });
        Ok(Reserved { registry: self, id: id.clone(), filled: false })
    }

    pub(super) fn find(&self, id: &RolloutId) -> Option<Arc<Entry>> {
        self.lock().entries.get(id)?.entry.clone()
    }

    /// The known ids that the test holds for.
    pub(crate) fn ids(&self, matches: impl Fn(&RolloutId) -> bool) -> Vec<String> {
        self.lock().entries.keys().filter(|id| matches(id)).map(|id| id.as_str().to_owned()).collect()
    }

    /// Keeps a result for as long as results are kept, with how it is made where it may be made again.
    pub(super) fn end(
        &self,
        entry: &Arc<Entry>,
        (body, form): (Bytes, Option<Form>),
        due: Due,
        budget: &Budget,
    ) {
        let charge = budget.charge_result(entry.bytes() + body.len());
        let mut inner = self.lock();
        if let Some(slot) = inner.slot(entry) {
            slot.due = Some(due);
            slot.form = form;
            slot.charge = Some(charge);
        }
        inner.ended.push_back((self.clock.now() + self.times.result_ttl, Arc::downgrade(entry)));
        drop(inner);
        entry.set(Status::Ended(body));
    }

    /// Notes that a caller has read a result in full; says whether it is the first time.
    pub(super) fn was_read(&self, entry: &Arc<Entry>) -> bool {
        let mut inner = self.lock();
        let due = inner.slot(entry).and_then(|slot| slot.due.take());
        if due.is_some() {
            inner.leave_to_journal(entry);
            let now = self.clock.now();
            inner.keep_read(now, entry.bytes() + entry.result_bytes(), entry);
        }
        drop(inner);
        if let Some(due) = &due {
            due.kept();
        }
        due.is_some()
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
            });
            let slot = Slot { entry: Some(entry.clone()), due: None, form: None, charge: None };
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
