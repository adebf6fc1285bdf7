//! The ledger of a dialect: its live and finished rollouts, and the results that callers have not received.
//!
//! A rollout has one entry from its admission until all of its parts have expired: its status, the result for which its
//! caller polls, the first answer for repeated requests, and whether its caller must still receive a result. The
//! rollout's driver changes the entry through a [`LedgerEntry`]. The parts that remain after the rollout's end expire
//! by [`retention`] and are charged to the tenant's budget.

mod answer;
mod poll;
mod retention;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use rollout_core::budget::{Budget, Charge};
use rollout_rollout::{Handle, Host, Journal, Outcome, Phase, RunClock};
use rollout_wire::id::RolloutId;
use rollout_wire::text::beginning;

pub(crate) use answer::{AnswerSender, NoAnswer, Role};
pub(crate) use poll::{Lease, PollStatus, Polled, ReadError};
pub(crate) use retention::LedgerTimes;

use answer::StoredAnswer;
use retention::{Expiring, RecentCount, Retention};

/// Maximum number of bytes stored of a failure's reason.
const REASON_BYTES_MAX: usize = 512;

/// Maximum number of results that are read from the journal at once. Each takes a thread.
const READERS_MAX: usize = 2;

/// The public part of a rollout's outcome.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PublicOutcome {
    /// The status that was reported to its caller.
    pub status: &'static str,
    pub reward: Option<f64>,
    pub err_message: Option<String>,
}

impl PublicOutcome {
    /// Creates an outcome that has only a status. The rest is for the holder of a lease.
    pub(crate) fn with_status(status: &'static str) -> Self {
        Self { status, reward: None, err_message: None }
    }

    /// Creates an outcome with a status, and with the reward or the reason of the failure.
    pub(crate) fn of(status: &'static str, outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Scored { reward } => {
                Self { reward: Some(*reward).filter(|_| status == "success"), ..Self::with_status(status) }
            }
            Outcome::Unscored(_) if status == "success" => Self::with_status(status),
            Outcome::Unscored(failure) => {
                let reason = beginning(&failure.reason, REASON_BYTES_MAX);
                Self { err_message: Some(reason), ..Self::with_status(status) }
            }
        }
    }
}

/// Returns the status of a rollout in this phase.
pub(crate) fn phase_status(phase: Phase) -> &'static str {
    match phase {
        Phase::Queued => "queued",
        Phase::Running => "running",
        Phase::Grading => "grading",
    }
}

/// The body of a result or of an answer, with the charge for its memory.
#[derive(Debug)]
pub(crate) struct HeldBody {
    pub body: Bytes,
    _charge: Charge,
}

impl HeldBody {
    fn new(body: Bytes, charge: Charge) -> Self {
        Self { body, _charge: charge }
    }
}

/// All rollouts of a dialect on one server.
pub(crate) struct Ledger {
    times: LedgerTimes,
    budget: Budget,
    /// The journal in which results are stored, if there is one.
    journal: Option<Arc<Journal>>,
    /// Name of the rollouts' plugin, if the server has several plugins.
    plugin: Option<String>,
    clock: Arc<RunClock>,
    inner: Mutex<Inner>,
    /// Cancelled when polls must no longer wait for changes.
    leaving: CancellationToken,
    readers: Arc<Semaphore>,
}

/// A name of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Name {
    /// The newest rollout of this id, for its status.
    Rollout(RolloutId),
    /// The rollout for whose result callers poll under this id.
    Polled(RolloutId),
    /// The rollout of requests with this key.
    Request(Arc<str>),
}

struct Inner {
    numbers: u64,
    slots: HashMap<u64, Slot>,
    names: HashMap<Name, u64>,
    /// Number of rollouts that have begun and are not completed.
    active: usize,
    completed: RecentCount,
    retentions: [Retention; 5],
    /// Number of results that callers have not received.
    owed: watch::Sender<usize>,
    /// Whether the ledger is closed. Abandoned results are then listed, because callers cannot request them again.
    is_closing: bool,
    /// Whether cancellations come from the server, not from callers.
    is_cancelling: bool,
    /// Rollouts whose results were abandoned after the ledger was closed.
    abandoned: Vec<String>,
}

/// One rollout.
#[derive(Default)]
struct Slot {
    /// Whether its [`LedgerEntry`] is held.
    is_live: bool,
    /// Whether it is counted as active.
    is_active: bool,
    id: Option<RolloutId>,
    status: Option<Status>,
    /// The id under which its caller polls.
    polled_as: Option<RolloutId>,
    polled: Option<Arc<Polled>>,
    /// Whether its result is in memory only and was not read in full.
    is_unread: bool,
    answer: Option<StoredAnswer>,
    /// The caller's name of the rollout, until the caller has received its result.
    owed: Option<Box<str>>,
}

enum Status {
    Alive(Handle),
    /// The rollout has ended, and its outcome is not known yet.
    Ending,
    Ended(PublicOutcome),
}

impl Inner {
    fn new(times: &LedgerTimes) -> Self {
        Self {
            numbers: 0,
            slots: HashMap::new(),
            names: HashMap::new(),
            active: 0,
            completed: RecentCount::new(times.answer_ttl),
            retentions: Expiring::ALL.map(|part| Retention::new(part, times)),
            owed: watch::Sender::new(0),
            is_closing: false,
            is_cancelling: false,
            abandoned: Vec::new(),
        }
    }

    /// Adds an entry under its first name.
    fn add(&mut self, name: Name) -> u64 {
        let number = self.add_unnamed();
        if let (Some(slot), Name::Polled(id)) = (self.slots.get_mut(&number), &name) {
            slot.polled_as = Some(id.clone());
        }
        self.names.insert(name, number);
        number
    }

    fn add_unnamed(&mut self) -> u64 {
        self.numbers += 1;
        self.slots.insert(self.numbers, Slot { is_live: true, ..Slot::default() });
        self.numbers
    }

    fn named(&self, name: &Name) -> Option<(u64, &Slot)> {
        let number = self.names.get(name)?;
        Some((*number, self.slots.get(number)?))
    }

    /// Removes a name, unless it now belongs to a later entry.
    fn remove_name(&mut self, name: &Name, number: u64) {
        if self.names.get(name) == Some(&number) {
            self.names.remove(name);
        }
    }

    fn remove_if_empty(&mut self, number: u64) {
        let is_empty = |slot: &Slot| {
            let Slot { is_live, status, polled, answer, .. } = slot;
            !is_live && status.is_none() && polled.is_none() && answer.is_none()
        };
        if self.slots.get(&number).is_some_and(is_empty) {
            self.slots.remove(&number);
        }
    }

    /// Counts a rollout as active.
    fn activate(&mut self, number: u64) {
        if let Some(slot) = self.slots.get_mut(&number)
            && !std::mem::replace(&mut slot.is_active, true)
        {
            self.active += 1;
        }
    }

    /// Counts a rollout as no longer active.
    fn deactivate(&mut self, number: u64, completed_at: Option<Duration>) {
        if let Some(slot) = self.slots.get_mut(&number)
            && std::mem::take(&mut slot.is_active)
        {
            self.active -= 1;
            if let Some(now) = completed_at {
                self.completed.add(now);
            }
        }
    }

    /// Marks a result as received, unwanted or abandoned.
    fn settle(&mut self, number: u64, is_abandoned: bool) {
        let Some(name) = self.slots.get_mut(&number).and_then(|slot| slot.owed.take()) else { return };
        if is_abandoned && self.is_closing {
            self.abandoned.push(name.into());
        }
        self.owed.send_modify(|owed| *owed -= 1);
    }

    /// Starts the retention of an entry's part, and drops the oldest parts above the limits.
    fn keep(&mut self, part: Expiring, now: Duration, bytes: usize, number: u64) {
        self.retentions[part as usize].push(now, bytes, number);
        while let Some(number) = self.retentions[part as usize].pop_excess() {
            self.forget(part, number);
        }
    }

    /// Drops the oldest of these parts. Returns whether there was one.
    fn forget_oldest(&mut self, part: Expiring) -> bool {
        let oldest = self.retentions[part as usize].pop();
        oldest.map(|number| self.forget(part, number)).is_some()
    }

    /// Drops all expired parts.
    fn sweep(&mut self, now: Duration) {
        for part in Expiring::ALL {
            if self.retentions[part as usize].begin_sweep(now) {
                self.forget_due(part, now);
            }
        }
    }

    fn forget_due(&mut self, part: Expiring, now: Duration) {
        while let Some(number) = self.retentions[part as usize].pop_due(now) {
            self.forget(part, number);
        }
    }

    /// Drops a part of an entry.
    fn forget(&mut self, part: Expiring, number: u64) {
        match part {
            Expiring::Status => self.forget_status(number),
            Expiring::Result | Expiring::Read | Expiring::Copy => self.forget_result(number),
            Expiring::Answer => self.forget_answer(number),
        }
        self.remove_if_empty(number);
    }

    fn forget_status(&mut self, number: u64) {
        let Some(slot) = self.slots.get_mut(&number) else { return };
        slot.status = None;
        if let Some(id) = slot.id.take() {
            self.remove_name(&Name::Rollout(id), number);
        }
    }

    fn forget_result(&mut self, number: u64) {
        let Some(slot) = self.slots.get_mut(&number) else { return };
        let (polled, is_unread) = (slot.polled.take(), std::mem::take(&mut slot.is_unread));
        if let Some(id) = slot.polled_as.take() {
            self.remove_name(&Name::Polled(id), number);
        }
        let Some(polled) = polled else { return };
        polled.forget();
        if is_unread {
            tracing::info!(rollout_id = %polled.id(), "an unread result has expired");
            self.settle(number, true);
        }
    }

    fn forget_answer(&mut self, number: u64) {
        let Some(answer) = self.slots.get_mut(&number).and_then(|slot| slot.answer.take()) else { return };
        self.remove_name(&answer.name(), number);
        if let Some(log) = &answer.log {
            log.end();
        }
    }
}

impl Ledger {
    /// Creates the ledger of a host's rollouts. It uses the host's journal, if there is one.
    pub(crate) fn new(times: LedgerTimes, host: &Host) -> Arc<Self> {
        let journal = host.journal().cloned();
        if let Some(journal) = &journal {
            journal.results().charge_to(host.budget());
        }
        let plugin = host.deployment().id().served_as.as_ref().map(|served| served.plugin.clone());
        Self::with(times, host.budget().clone(), journal, plugin)
    }

    fn with(
        times: LedgerTimes,
        budget: Budget,
        journal: Option<Arc<Journal>>,
        plugin: Option<String>,
    ) -> Arc<Self> {
        let clock = journal.as_ref().map_or_else(RunClock::new, |journal| journal.results().clock().clone());
        Arc::new(Self {
            inner: Mutex::new(Inner::new(&times)),
            times,
            budget,
            journal,
            plugin,
            clock,
            leaving: CancellationToken::new(),
            readers: Arc::new(Semaphore::new(READERS_MAX)),
        })
    }

    /// Locks the entries and drops all expired parts.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.lock_at(self.clock.now())
    }

    fn lock_at(&self, now: Duration) -> MutexGuard<'_, Inner> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.sweep(now);
        inner
    }

    /// Starts the clock. Must be called within the runtime.
    pub(crate) fn start(&self) {
        self.clock.start();
    }

    /// Returns the times of the ledger.
    pub(crate) fn times(&self) -> &LedgerTimes {
        &self.times
    }

    /// Adds an entry, which has no name until it [begins](LedgerEntry::begin).
    pub(crate) fn open(self: &Arc<Self>) -> LedgerEntry {
        let number = self.lock().add_unnamed();
        LedgerEntry::new(self.clone(), number)
    }

    /// Drops all expired parts. If the host has no room for new work, also drops the oldest dispensable parts until it
    /// has.
    pub(crate) fn sweep(&self) {
        let mut inner = self.lock();
        for part in Expiring::DROPPED_WHEN_FULL {
            while !self.budget.has_room() && inner.forget_oldest(part) {}
        }
        drop(inner);
        let Some(journal) = self.journal.clone() else { return };
        journal.forget_results();
        let mut inner = self.lock();
        let gone: Vec<u64> =
            inner.slots.iter().filter(|(_, slot)| !self.has(slot)).map(|(number, _)| *number).collect();
        for number in gone {
            inner.forget(Expiring::Copy, number);
        }
        drop(inner);
        tokio::task::spawn_blocking(move || journal.note_results());
    }

    /// Returns whether the ledger has no entries.
    pub(crate) fn is_empty(&self) -> bool {
        let now = self.clock.now();
        let mut inner = self.lock_at(now);
        inner.forget_due(Expiring::Answer, now);
        inner.slots.is_empty()
    }

    /// Returns the numbers of active and recently completed rollouts.
    pub(crate) fn counts(&self) -> (usize, u64) {
        self.counts_at(self.clock.now())
    }

    fn counts_at(&self, now: Duration) -> (usize, u64) {
        let mut inner = self.lock_at(now);
        (inner.active, inner.completed.count(now))
    }

    /// Returns the status of a rollout, if it is known.
    pub(crate) fn status(&self, id: &RolloutId) -> Option<PublicOutcome> {
        let inner = self.lock();
        let (_, slot) = inner.named(&Name::Rollout(id.clone()))?;
        slot.status.as_ref().map(|status| match status {
            Status::Alive(handle) => PublicOutcome::with_status(phase_status(handle.phase())),
            Status::Ending => PublicOutcome::with_status(phase_status(Phase::Grading)),
            Status::Ended(over) => over.clone(),
        })
    }

    /// Closes the ledger. Results that are abandoned from now on are listed by [`unreported`](Self::unreported).
    pub(crate) fn close(&self) {
        self.lock().is_closing = true;
    }

    /// Marks all further cancellations as the server's own. The callers must still receive results.
    pub(crate) fn cancel_rest(&self) {
        self.lock().is_cancelling = true;
    }

    /// Returns whether cancellations come from the server, not from callers.
    pub(crate) fn is_cancelling(&self) -> bool {
        self.lock().is_cancelling
    }

    /// Waits until every result was received by its caller or abandoned.
    pub(crate) async fn all_settled(&self) {
        let mut owed = self.lock().owed.subscribe();
        // The sender is in `self`, so it is not dropped.
        let _ = owed.wait_for(|owed| *owed == 0).await;
    }

    /// Returns the rollouts with results that were not received, or were abandoned after the ledger was closed.
    pub(crate) fn unreported(&self) -> Vec<String> {
        let inner = self.lock();
        let owed = inner.slots.values().filter_map(|slot| slot.owed.as_deref());
        let mut missing: Vec<String> =
            owed.map(str::to_owned).chain(inner.abandoned.iter().cloned()).collect();
        missing.sort_unstable();
        missing
    }
}

/// A rollout's entry, held by its driver. Dropping it removes a status without an outcome, a reserved id, and a key
/// without an answer, and abandons a result that was not received.
pub(crate) struct LedgerEntry {
    ledger: Arc<Ledger>,
    number: u64,
    polled: Option<Arc<Polled>>,
}

impl LedgerEntry {
    fn new(ledger: Arc<Ledger>, number: u64) -> Self {
        Self { ledger, number, polled: None }
    }

    /// Publishes the status of an admitted rollout, and counts a result that its caller must receive. `name` is the
    /// caller's name of the rollout. A rollout without a handle was finished by an earlier process.
    pub(crate) fn begin(&self, id: RolloutId, name: &str, handle: Option<Handle>) {
        let mut inner = self.ledger.lock();
        inner.activate(self.number);
        inner.names.insert(Name::Rollout(id.clone()), self.number);
        inner.owed.send_modify(|owed| *owed += 1);
        if let Some(slot) = inner.slots.get_mut(&self.number) {
            slot.id = Some(id);
            slot.status = Some(handle.map_or(Status::Ending, Status::Alive));
            slot.owed = Some(name.into());
        }
    }

    /// Stores the outcome. If a later rollout has the same id, the id keeps the status of the later one.
    pub(crate) fn end(&self, over: PublicOutcome) {
        let now = self.ledger.clock.now();
        let mut inner = self.ledger.lock_at(now);
        let Some(slot) = inner.slots.get_mut(&self.number) else { return };
        if slot.answer.is_none() {
            inner.deactivate(self.number, Some(now));
        }
        let Some(slot) = inner.slots.get_mut(&self.number) else { return };
        if !matches!(slot.status, Some(Status::Ended(_))) {
            slot.status = Some(Status::Ended(over));
            inner.keep(Expiring::Status, now, 0, self.number);
        }
    }

    /// Records that the caller received the result or does not want it.
    pub(crate) fn settle(&self) {
        self.ledger.lock().settle(self.number, false);
    }

    /// Records that the rollout was cancelled. If the caller cancelled it, the caller wants no result. Returns whether
    /// the server cancelled it, so that the caller must still receive the result.
    pub(crate) fn cancel(&self) -> bool {
        let mut inner = self.ledger.lock();
        if !inner.is_cancelling {
            inner.settle(self.number, false);
        }
        inner.is_cancelling
    }

    /// Returns whether the first answer and the rollout's journal stay after the rollout's end.
    pub(crate) fn is_answered(&self) -> bool {
        let inner = self.ledger.lock();
        let answer = inner.slots.get(&self.number).and_then(|slot| slot.answer.as_ref());
        answer.is_some_and(|answer| answer.is_given)
    }
}

impl Drop for LedgerEntry {
    fn drop(&mut self) {
        let (now, number) = (self.ledger.clock.now(), self.number);
        let mut inner = self.ledger.lock_at(now);
        let Some(slot) = inner.slots.get_mut(&number) else { return };
        slot.is_live = false;
        let is_over = matches!(slot.status, Some(Status::Ended(_)));
        let is_answered = slot.answer.as_ref().map(|answer| answer.is_given);
        let (is_unread, is_reserved) = (slot.is_unread, slot.polled.is_none());
        inner.deactivate(number, Some(now).filter(|_| is_answered == Some(true)));
        if !is_over {
            inner.forget_status(number);
        }
        match is_answered {
            Some(true) => inner.keep(Expiring::Answer, now, 0, number),
            Some(false) => inner.forget_answer(number),
            None => {}
        }
        if is_reserved {
            inner.forget_result(number);
        }
        if !is_unread {
            inner.settle(number, true);
        }
        inner.remove_if_empty(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    pub(super) const TTL: Duration = Duration::from_secs(100);

    pub(super) fn ledger() -> Arc<Ledger> {
        ledger_with(Budget::default())
    }

    pub(super) fn ledger_with(budget: Budget) -> Arc<Ledger> {
        let times = LedgerTimes {
            result_wait: Duration::from_secs(1),
            lease: Duration::from_secs(2),
            result_ttl: TTL,
            answer_ttl: TTL,
            answer_interval: Duration::from_secs(10),
        };
        Ledger::with(times, budget, None, None)
    }

    fn begin(ledger: &Arc<Ledger>, id: &str) -> LedgerEntry {
        let entry = ledger.open();
        entry.begin(RolloutId::parse(id).unwrap(), id, None);
        entry
    }

    #[test]
    fn a_rollout_is_active_until_it_ends_and_then_counts_as_completed_once() {
        let ledger = ledger();
        let (first, second) = (begin(&ledger, "r"), begin(&ledger, "r"));
        let Role::Leader(answered, sender) = ledger.join("r") else { panic!("the key is free") };
        answered.begin(RolloutId::parse("r").unwrap(), "r", None);
        assert_eq!(ledger.counts(), (3, 0));

        first.end(PublicOutcome::with_status("success"));
        first.end(PublicOutcome::with_status("failure"));
        answered.end(PublicOutcome::with_status("success"));
        assert_eq!(ledger.counts(), (2, 1), "a later rollout with the same id counts separately");
        answered.answer(sender, Bytes::new(), None);
        drop(answered);
        assert_eq!(
            ledger.counts(),
            (1, 2),
            "a rollout with an answer is completed when everything is delivered"
        );
        drop((first, second));
        assert_eq!(ledger.counts(), (0, 2), "a rollout without an outcome is not completed");
    }

    #[test]
    fn an_id_has_the_status_of_its_newest_rollout_until_it_expires() {
        let ledger = ledger();
        let now = ledger.clock.now();
        let id = RolloutId::parse("r").unwrap();
        let status = || ledger.status(&id).map(|over| over.status);
        let (first, second) = (begin(&ledger, "r"), begin(&ledger, "r"));
        first.end(PublicOutcome::with_status("failure"));
        assert_eq!(status(), Some("grading"));
        second.end(PublicOutcome::with_status("success"));
        drop((first, second));
        assert_eq!(status(), Some("success"));
        drop(ledger.lock_at(now + 2 * TTL));
        assert_eq!(status(), None);
        assert!(ledger.is_empty());
    }

    #[test]
    fn a_result_is_owed_until_its_caller_has_it_and_listed_if_it_is_abandoned() {
        let ledger = ledger();
        let [kept, due, broken, early, cancelled, ended] =
            ["kept", "due", "broken", "early", "cancelled", "ended"].map(|id| begin(&ledger, id));
        drop(early);
        ledger.close();
        kept.settle();
        drop(kept);
        drop(broken);
        cancelled.cancel();
        ledger.cancel_rest();
        ended.cancel();
        assert_eq!(ledger.unreported(), ["broken", "due", "ended"]);
        assert!(ledger.all_settled().now_or_never().is_none());
        due.settle();
        drop(ended);
        assert!(ledger.all_settled().now_or_never().is_some());
        assert_eq!(ledger.unreported(), ["broken", "ended"]);
    }
}
