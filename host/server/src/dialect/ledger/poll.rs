//! Results for which callers poll, each protected by a lease.
//!
//! With a journal, a result is stored there when the rollout ends, and is read from there when its caller polls. A copy in
//! memory saves the read as long as all copies together are small; see `rollout::StoredResults`. Without a journal, results are
//! in memory only.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;
use tokio::sync::{OwnedSemaphorePermit, oneshot, watch};

use super::retention::{COPIES_BYTES_MAX, Expiring};
use super::{HeldBody, Inner, Ledger, LedgerEntry, Name, PublicOutcome, Slot};
use crate::connection::Caller;
use rollout_core::budget::Charge;
use rollout_rollout::{
    Failed, Finished, Journal, Phase, ResultOf, RolloutLog, RunClock, StoredOutcome, StoredResult,
};
use rollout_wire::digest::sha256_hex;
use rollout_wire::id::RolloutId;

/// Minimum size of a copy that is dropped after it was read. Rendering a smaller result again would take more memory than
/// its copy.
const LEFT_BYTES_MIN: usize = 4 << 10;

/// Bytes of an entry in addition to its result.
const ENTRY_BYTES: usize = 1024;

/// Status of a polled rollout.
#[derive(Clone, Debug)]
pub(crate) enum PollStatus {
    /// The rollout is live.
    Live(Phase),
    /// The rollout has ended; this is its result.
    Ended(Arc<HeldBody>),
    /// The rollout has ended, and its result is in the journal only.
    Journaled,
}

/// The digest of a lease's token. Only the holder of the lease has the token.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Lease(String);

impl Lease {
    pub(crate) fn of(token: &str) -> Self {
        Self(sha256_hex(token.as_bytes()))
    }

    /// Compares in constant time.
    pub(crate) fn is(&self, other: &Self) -> bool {
        bool::from(self.0.as_bytes().ct_eq(other.0.as_bytes()))
    }
}

/// Data that the journal stores with a result, so that it can be rendered again.
#[derive(Serialize, Deserialize)]
pub(crate) struct StoredForm<F> {
    pub lease: Lease,
    pub form: F,
    /// The public status.
    pub status: String,
}

/// Error of an id that is in use or whose result is still stored.
#[derive(Debug)]
pub(crate) struct Taken;

/// Error of reading a stored result.
#[derive(Debug)]
pub(crate) enum ReadError {
    /// No such result is stored.
    Unknown,
    /// The result belongs to another lease.
    WrongLease,
    /// Too much memory is held for others.
    NoMemory,
    /// The journal cannot be read.
    Unreadable(String),
}

/// A polled rollout.
pub(crate) struct Polled {
    number: u64,
    id: RolloutId,
    lease: Lease,
    /// The rollout's journal, until the rollout is forgotten.
    log: Option<RolloutLog>,
    lease_time: Duration,
    clock: Arc<RunClock>,
    status: watch::Sender<PollStatus>,
    polls: Mutex<Polls>,
    /// Its result in the journal, once it is stored there.
    kept: OnceLock<StoredResult>,
}

struct Polls {
    /// Time of the last poll, by a clock that stops while the process is stopped.
    last: Duration,
    /// The last phase that was reported to the lease's holder; admission reports "queued".
    last_reported: Option<Phase>,
    /// Sender that answers the waiting poll when it is dropped.
    waiting: Option<oneshot::Sender<()>>,
}

impl Polled {
    pub(crate) fn id(&self) -> &RolloutId {
        &self.id
    }

    /// Returns the rollout's log, if it is journaled.
    pub(crate) fn log(&self) -> Option<&RolloutLog> {
        self.log.as_ref()
    }

    pub(crate) fn is_lease(&self, token: &str) -> bool {
        self.lease.is(&Lease::of(token))
    }

    pub(super) fn set(&self, status: PollStatus) {
        self.status.send_replace(status);
    }

    /// Returns its result in the journal, if it is stored there.
    pub(crate) fn stored_result(&self) -> Option<StoredResult> {
        self.kept.get().copied()
    }

    /// Drops the copy of a result in the journal, or ends the rollout in the journal.
    pub(super) fn forget(&self) {
        match (self.stored_result(), &self.log) {
            // Waiting polls still receive the result; later ones do not.
            (Some(_), _) => self.set(PollStatus::Journaled),
            (None, Some(log)) => log.end(),
            (None, None) => {}
        }
    }

    /// Returns the size of its result in memory, or 0 if there is none.
    fn result_bytes(&self) -> usize {
        match &*self.status.borrow() {
            PollStatus::Live(_) | PollStatus::Journaled => 0,
            PollStatus::Ended(result) => result.body.len(),
        }
    }

    fn polls(&self) -> MutexGuard<'_, Polls> {
        self.polls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Renews the lease, waits until the status differs from the last reported one or the time is over, and returns the
    /// status. At most one poll waits: the next poll answers it, because its caller is probably gone, and each waiting poll
    /// holds a connection.
    async fn next_status(&self, wait: Duration) -> PollStatus {
        let (waiting, next_poll) = oneshot::channel();
        let last_reported = {
            let mut polls = self.polls();
            polls.last = self.clock.now();
            polls.waiting = Some(waiting);
            polls.last_reported
        };
        let mut status = self.status.subscribe();
        let new = status.wait_for(|status| match status {
            PollStatus::Ended(_) | PollStatus::Journaled => true,
            PollStatus::Live(phase) => last_reported != Some(*phase),
        });
        // The sender is in `self`, so only a timeout can end the wait early.
        tokio::select! {
            _ = tokio::time::timeout(wait, new) => {}
            _ = next_poll => {}
        }
        let status = self.status.borrow().clone();
        let mut polls = self.polls();
        polls.last = self.clock.now();
        if let PollStatus::Live(phase) = &status {
            polls.last_reported = Some(*phase);
        }
        status
    }

    /// Waits until the lease expires, which each poll delays.
    async fn lease_over(&self) {
        loop {
            let left = (self.polls().last + self.lease_time).saturating_sub(self.clock.now());
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left).await;
        }
    }
}

impl LedgerEntry {
    /// Lets callers poll for the rollout under this lease.
    pub(crate) fn fill(&mut self, id: &RolloutId, lease: Lease, log: Option<RolloutLog>) {
        let clock = self.ledger.clock.clone();
        clock.start();
        let polled = Arc::new(Polled {
            number: self.number,
            id: id.clone(),
            lease,
            log,
            lease_time: self.ledger.times.lease,
            status: watch::Sender::new(PollStatus::Live(Phase::Queued)),
            polls: Mutex::new(Polls { last: clock.now(), last_reported: Some(Phase::Queued), waiting: None }),
            kept: OnceLock::new(),
            clock,
        });
        if let Some(slot) = self.ledger.lock().slots.get_mut(&self.number) {
            slot.polled = Some(polled.clone());
        }
        self.polled = Some(polled);
    }

    /// Publishes the rollout's phase to polls.
    pub(crate) fn enter(&self, phase: Phase) {
        if let Some(polled) = &self.polled {
            polled.set(PollStatus::Live(phase));
        }
    }

    /// Waits until the lease has expired. For a rollout without a lease, waits forever.
    pub(crate) async fn lease_over(&self) {
        match &self.polled {
            Some(polled) => polled.lease_over().await,
            None => std::future::pending().await,
        }
    }

    /// Stores a result in memory only, until it expires. It counts as received once it was read in full.
    pub(crate) fn hold(&self, body: Bytes) {
        let Some(polled) = &self.polled else { return };
        let charge = self.ledger.budget.charge_result(ENTRY_BYTES + body.len());
        let now = self.ledger.clock.now();
        let mut inner = self.ledger.lock_at(now);
        if let Some(slot) = inner.slots.get_mut(&self.number) {
            slot.is_unread = true;
        }
        inner.keep(Expiring::Result, now, 0, self.number);
        drop(inner);
        polled.set(PollStatus::Ended(Arc::new(HeldBody::new(body, charge))));
    }

    /// Returns a charge for a copy of a result of this size, if the copy may stay in memory.
    pub(crate) fn copy_charge(&self, bytes: usize) -> Option<Charge> {
        let bytes = ENTRY_BYTES + bytes;
        if bytes > COPIES_BYTES_MAX / 2 {
            return None;
        }
        self.ledger.budget.charge_copy(bytes)
    }

    /// Stores in the journal the data from which the result is rendered, ends the rollout with this outcome, and stores a
    /// copy of the result in memory if there is room.
    pub(crate) async fn store(
        &self,
        (journal, log): (&Journal, &RolloutLog),
        (form, over): (&impl Serialize, PublicOutcome),
        is_awaited: bool,
        copy: Option<(Bytes, Charge)>,
    ) -> Result<(), Failed> {
        let Some(polled) = &self.polled else { return Ok(()) };
        let stored = StoredForm { lease: polled.lease.clone(), form, status: over.status.to_owned() };
        let (of, ttl) = (self.ledger.result_of(&polled.id), self.ledger.times.result_ttl);
        let kept = journal.store_result(log, of, &stored, (ttl, is_awaited)).await?;
        self.end(over);
        let _ = polled.kept.set(kept);
        let now = self.ledger.clock.now();
        let mut inner = self.ledger.lock_at(now);
        match copy {
            None => {
                inner.forget(Expiring::Copy, self.number);
                polled.forget();
            }
            Some((body, charge)) => {
                let bytes = charge.bytes();
                polled.set(PollStatus::Ended(Arc::new(HeldBody::new(body, charge))));
                inner.keep(Expiring::Copy, now, bytes, self.number);
            }
        }
        // From here on the journal tracks which results were not read.
        inner.settle(self.number, false);
        Ok(())
    }

    /// Returns the ledger's journal and the rollout's log in it, if callers poll for the rollout and it is journaled.
    pub(crate) fn journal(&self) -> Option<(Arc<Journal>, RolloutLog)> {
        let polled = self.polled.as_ref()?;
        self.ledger.journal.clone().zip(polled.log.clone())
    }
}

impl Inner {
    /// Returns the entry of a polled rollout, if the rollout can still be polled.
    fn polled(&mut self, polled: &Polled) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(&polled.number)?;
        slot.polled.is_some().then_some(slot)
    }
}

impl Ledger {
    /// Reserves an id. Fails if a known rollout has the id or a result with this id is stored.
    pub(crate) fn reserve(self: &Arc<Self>, id: &RolloutId) -> Result<LedgerEntry, Taken> {
        if self.stored_result(id).is_some() {
            return Err(Taken);
        }
        self.reserve_anyway(id)
    }

    /// Reserves an id for a rollout of the journal, which may have a result there.
    pub(crate) fn reserve_anyway(self: &Arc<Self>, id: &RolloutId) -> Result<LedgerEntry, Taken> {
        let mut inner = self.lock();
        let name = Name::Polled(id.clone());
        if let Some((number, slot)) = inner.named(&name) {
            // A result that expired in the journal is dropped here too.
            if self.has(slot) {
                return Err(Taken);
            }
            inner.forget(Expiring::Copy, number);
        }
        let number = inner.add(name);
        drop(inner);
        Ok(LedgerEntry::new(self.clone(), number))
    }

    /// Returns false if the result of an entry was stored in the journal and has expired there.
    pub(super) fn has(&self, slot: &Slot) -> bool {
        let kept = slot.polled.as_ref().and_then(|polled| polled.stored_result());
        kept.zip(self.journal.as_ref()).is_none_or(|(kept, journal)| journal.results().has(kept))
    }

    /// Returns a rollout that is live or has its result in memory.
    pub(crate) fn find(&self, id: &RolloutId) -> Option<Arc<Polled>> {
        let inner = self.lock();
        let (_, slot) = inner.named(&Name::Polled(id.clone()))?;
        if self.has(slot) { slot.polled.clone() } else { None }
    }

    /// Returns the matching ids of rollouts for which callers poll.
    pub(crate) fn polled_ids(&self, matches: impl Fn(&RolloutId) -> bool) -> Vec<String> {
        let inner = self.lock();
        let ids = inner.names.keys().filter_map(|name| match name {
            Name::Polled(id) if matches(id) => Some(id.as_str().to_owned()),
            _ => None,
        });
        ids.collect()
    }

    /// Waits until the status of a rollout changes, the waiting time is over, or the connection is needed for another
    /// caller.
    pub(crate) async fn next_status(&self, polled: &Polled, caller: Option<&Caller>) -> PollStatus {
        let next_status = polled.next_status(self.times.result_wait);
        let next_status = async {
            match caller {
                Some(caller) => caller.wait(next_status).await,
                None => Some(next_status.await),
            }
        };
        let next_status = tokio::select! {
            next_status = next_status => next_status,
            () = self.leaving.cancelled() => None,
        };
        match next_status {
            Some(status) => status,
            None => polled.next_status(Duration::ZERO).await,
        }
    }

    /// Answers all waiting polls, and further polls without a wait.
    pub(crate) fn answer_waiting(&self) {
        self.leaving.cancel();
    }

    /// Waits until every result in the journal has been read.
    pub(crate) async fn all_read(&self) {
        if let Some(journal) = &self.journal {
            journal.results().all_read().await;
        }
    }

    /// Returns the key of a rollout's result in the journal.
    fn result_of<'a>(&'a self, id: &'a RolloutId) -> ResultOf<'a> {
        ResultOf { id, plugin: self.plugin.as_deref() }
    }

    /// Returns the result of this rollout in the journal, if one is stored there.
    pub(crate) fn stored_result(&self, id: &RolloutId) -> Option<StoredResult> {
        let journal = self.journal.as_ref()?;
        journal.forget_results();
        journal.results().of(self.result_of(id))
    }

    /// Records that a caller has read a result in full.
    pub(crate) fn was_read(&self, polled: &Polled) {
        let bytes = polled.result_bytes();
        if let Some((kept, journal)) = polled.stored_result().zip(self.journal.as_ref()) {
            if journal.was_read(kept) && bytes >= LEFT_BYTES_MIN {
                self.lock().forget(Expiring::Copy, polled.number);
            }
            return;
        }
        let mut inner = self.lock();
        let Some(slot) = inner.polled(polled) else { return };
        if std::mem::take(&mut slot.is_unread) {
            inner.keep(Expiring::Read, self.clock.now(), ENTRY_BYTES + bytes, polled.number);
        }
        inner.settle(polled.number, false);
    }

    /// Records that a caller has read a result from the journal in full.
    pub(crate) fn was_read_from_journal(&self, kept: StoredResult) {
        if let Some(journal) = &self.journal {
            journal.was_read(kept);
        }
    }

    /// Waits for a permit to read a result from the journal. The number of concurrent readers is limited. The semaphore
    /// is never closed.
    async fn reader(&self) -> Option<OwnedSemaphorePermit> {
        self.readers.clone().acquire_owned().await.ok()
    }

    /// Reads a result from the journal for the holder of this lease. Its memory is charged from before the read until
    /// it is sent.
    pub(crate) async fn read_stored<F: DeserializeOwned + 'static>(
        self: &Arc<Self>,
        id: &RolloutId,
        kept: StoredResult,
        lease: Lease,
        render: fn(&F, &Finished) -> Bytes,
    ) -> Result<HeldBody, ReadError> {
        /// Number of copies in memory at once: the stored bytes, the parsed outcome, and the result.
        const COPIES: usize = 3;
        let journal = self.journal.clone().ok_or(ReadError::Unknown)?;
        let turn = self.reader().await;
        let (ledger, id) = (self.clone(), id.clone());
        let read = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let (stored, found) = ledger.stored::<F>(&journal, kept, &id)?.ok_or(ReadError::Unknown)?;
            if !stored.lease.is(&lease) {
                return Err(ReadError::WrongLease);
            }
            let bytes = usize::try_from(found.bytes().map_err(unreadable)?).unwrap_or(usize::MAX);
            let charge = ledger.budget.charge_read(bytes.saturating_mul(COPIES));
            let mut charge = charge.map_err(|_| ReadError::NoMemory)?;
            let finished = found.read().map_err(unreadable)?;
            let body = render(&stored.form, &finished);
            drop((finished, found));
            charge.shrink_to(body.len());
            Ok(HeldBody::new(body, charge))
        });
        read.await.unwrap_or_else(|error| Err(unreadable(error)))
    }

    /// Returns the status of a rollout whose result is in the journal.
    pub(crate) async fn stored_status(self: &Arc<Self>, id: &RolloutId) -> Option<String> {
        let (journal, kept) = self.journal.clone().zip(self.stored_result(id))?;
        let turn = self.reader().await;
        let (ledger, id) = (self.clone(), id.clone());
        let read = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let (stored, _) = ledger.stored::<IgnoredAny>(&journal, kept, &id).ok()??;
            Some(stored.status)
        });
        read.await.ok()?
    }

    /// Reads the data that is stored with a result. Blocks.
    fn stored<F: DeserializeOwned>(
        &self,
        journal: &Journal,
        kept: StoredResult,
        id: &RolloutId,
    ) -> Result<Option<(StoredForm<F>, StoredOutcome)>, ReadError> {
        let Some(found) = journal.read_result(kept, self.result_of(id)).map_err(unreadable)? else {
            return Ok(None);
        };
        let stored =
            serde_json::from_slice(&found.facts).map_err(|error| unreadable(io::Error::other(error)))?;
        Ok(Some((stored, found)))
    }
}

fn unreadable(why: impl std::fmt::Display) -> ReadError {
    tracing::error!(%why, "a result in the journal cannot be read");
    ReadError::Unreadable(format!("the result cannot be read: {why}"))
}

#[cfg(test)]
mod tests {
    use super::super::retention::READ_BYTES_MAX;
    use super::super::tests::{TTL, ledger};
    use super::*;

    #[tokio::test]
    async fn results_that_were_read_are_kept_up_to_a_total_size() {
        let ledger = ledger();
        let read = |id: &str, bytes| {
            let id = RolloutId::parse(id).unwrap();
            let mut entry = ledger.reserve(&id).unwrap();
            entry.fill(&id, Lease::of(""), None);
            ledger.lock().keep(Expiring::Read, ledger.clock.now(), bytes, entry.number);
            drop(entry);
            let mut ids = ledger.polled_ids(|_| true);
            ids.sort();
            ids.concat()
        };
        let half = READ_BYTES_MAX / 2;
        assert_eq!(read("a", half), "a");
        assert_eq!(read("b", half), "ab");
        assert_eq!(read("c", 1), "bc", "the oldest was dropped");
        assert_eq!(read("d", 2 * READ_BYTES_MAX), "d", "the last one stays, however large it is");
        assert_eq!(read("e", 1), "e");
    }

    #[tokio::test]
    async fn a_held_result_is_owed_until_it_is_read_and_abandoned_when_it_expires() {
        let ledger = ledger();
        let now = ledger.clock.now();
        let hold = |id: &str| {
            let id = RolloutId::parse(id).unwrap();
            let mut entry = ledger.reserve(&id).unwrap();
            entry.fill(&id, Lease::of(""), None);
            entry.begin(id.clone(), id.as_str(), None);
            assert!(ledger.reserve(&id).is_err(), "the id is taken");
            entry.end(PublicOutcome::with_status("success"));
            entry.hold(Bytes::from_static(b"{}"));
            drop(entry);
            ledger.find(&id).unwrap()
        };
        let (read, unread) = (hold("read"), hold("unread"));
        ledger.close();
        assert_eq!(ledger.unreported(), ["read", "unread"]);
        ledger.was_read(&read);
        assert_eq!(ledger.unreported(), ["unread"]);
        assert!(matches!(*unread.status.borrow(), PollStatus::Ended(_)));
        drop(ledger.lock_at(now + 2 * TTL));
        assert_eq!(ledger.polled_ids(|_| true), [""; 0]);
        assert_eq!(
            ledger.unreported(),
            ["unread"],
            "the result is listed, because it expired after the ledger was closed"
        );
        assert!(ledger.is_empty());
    }
}
