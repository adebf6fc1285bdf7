//! How far each rollout is, for whoever asks by its id: alive, or over and what came of it.
//!
//! What came of a rollout is kept for as long as a result is, but no more than
//! [`OVER_MAX`] of them. It is a word and a line; results are elsewhere.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use rollout_core::id::RolloutId;
use rollout_core::rollout::{Handle, Outcome, Phase};
use rollout_core::text::beginning;

/// Rollouts that are over and known. With the longest ids and messages they take 8 MiB.
const OVER_MAX: usize = 4096;

/// How much of a failure's reason is kept, in bytes.
const REASON_BYTES_MAX: usize = 512;

/// What came of a rollout.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Over {
    /// The word that was reported to its caller.
    pub status: &'static str,
    pub reward: Option<f64>,
    pub err_message: Option<String>,
}

impl Over {
    /// The word alone, where the rest is for the holder of a lease.
    pub(crate) fn word(status: &'static str) -> Self {
        Self { status, reward: None, err_message: None }
    }

    /// The word with what else is reported of an outcome.
    pub(crate) fn of(status: &'static str, outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Scored { reward } => {
                Self { reward: Some(*reward).filter(|_| status == "success"), ..Self::word(status) }
            }
            Outcome::Unscored(_) if status == "success" => Self::word(status),
            Outcome::Unscored(failure) => {
                let reason = beginning(&failure.reason, REASON_BYTES_MAX);
                Self { err_message: Some(reason), ..Self::word(status) }
            }
        }
    }
}

/// Parts of the time for which completed rollouts are counted. Each is forgotten as a whole.
const PARTS_OF_COUNT: u32 = 60;

/// Who counts a rollout for `/health`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CountedBy {
    /// The statuses do.
    Statuses,
    /// The records of generation A do.
    Records,
}

/// All rollouts that are known.
pub(super) struct Statuses {
    time_to_live: Duration,
    inner: Mutex<Inner>,
}

struct Inner {
    /// Rollouts that began and are not over.
    active: usize,
    completed: RecentCount,
    /// By id the newest rollout of that id, with its number.
    known: HashMap<RolloutId, (u64, Status)>,
    /// Those that are over, in the order in which they are forgotten.
    over: VecDeque<(Instant, u64, RolloutId)>,
    numbers: u64,
}

enum Status {
    Alive(Handle),
    /// Over, and what came of it is not known yet.
    Ending,
    Over(Over),
}

/// The word for a phase.
pub(super) fn word(phase: Phase) -> &'static str {
    match phase {
        Phase::Queued => "queued",
        Phase::Running => "running",
        Phase::Grading => "grading",
    }
}

impl Statuses {
    /// Statuses of rollouts that are over are kept for `time_to_live`, and such rollouts are
    /// counted for `counted`.
    pub(crate) fn new(time_to_live: Duration, counted: Duration) -> Self {
        let inner = Inner {
            active: 0,
            completed: RecentCount::new(counted),
            known: HashMap::new(),
            over: VecDeque::new(),
            numbers: 0,
        };
        Self { time_to_live, inner: Mutex::new(inner) }
    }

    /// Rollouts that began and are not over, and those that were over lately, of those that are
    /// [counted](CountedBy) here.
    pub(crate) fn counts(&self, now: Instant) -> (usize, u64) {
        let mut inner = self.lock();
        (inner.active, inner.completed.count(now))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a rollout known. It is forgotten when what is given back is dropped, unless it
    /// [ends](Known::ends) before.
    pub(crate) fn begins(self: &Arc<Self>, id: RolloutId, handle: Handle, by: CountedBy) -> Known {
        self.add(id, Status::Alive(handle), by)
    }

    /// A rollout was over before this process began; what came of it is still to be
    /// [said](Known::ends).
    pub(crate) fn ended(self: &Arc<Self>, id: RolloutId, by: CountedBy) -> Known {
        self.add(id, Status::Ending, by)
    }

    fn add(self: &Arc<Self>, id: RolloutId, status: Status, by: CountedBy) -> Known {
        let mut inner = self.lock();
        inner.numbers += 1;
        let number = inner.numbers;
        inner.known.insert(id.clone(), (number, status));
        let is_active = by == CountedBy::Statuses;
        inner.active += usize::from(is_active);
        Known { statuses: self.clone(), number, id, is_active: AtomicBool::new(is_active) }
    }

    /// Forgets what is due.
    pub(crate) fn sweep(&self) {
        self.lock().forget(Instant::now());
    }

    /// Whether none is known.
    pub(crate) fn is_empty(&self) -> bool {
        let mut inner = self.lock();
        inner.forget(Instant::now());
        inner.known.is_empty()
    }

    /// How far a rollout is, if it is known.
    pub(crate) fn of(&self, id: &RolloutId) -> Option<Over> {
        let mut inner = self.lock();
        inner.forget(Instant::now());
        inner.known.get(id).map(|(_, status)| match status {
            Status::Alive(handle) => Over::word(word(handle.phase())),
            Status::Ending => Over::word(word(Phase::Grading)),
            Status::Over(over) => over.clone(),
        })
    }
}

impl Inner {
    fn forget(&mut self, now: Instant) {
        while self.over.len() > OVER_MAX || self.over.front().is_some_and(|(due, ..)| *due <= now) {
            let Some((_, number, id)) = self.over.pop_front() else { return };
            self.remove(&id, number);
        }
    }

    /// A later rollout of the same id stays.
    fn remove(&mut self, id: &RolloutId, number: u64) {
        if self.known.get(id).is_some_and(|(known, _)| *known == number) {
            self.known.remove(id);
        }
    }
}

/// One rollout that is known.
pub(super) struct Known {
    statuses: Arc<Statuses>,
    number: u64,
    id: RolloutId,
    /// Whether it is counted as one that is not over.
    is_active: AtomicBool,
}

impl Known {
    /// Keeps what came of it.
    pub(crate) fn ends(&self, over: Over) {
        let mut inner = self.statuses.lock();
        if self.is_active.swap(false, Ordering::Relaxed) {
            inner.active -= 1;
            inner.completed.add(Instant::now());
        }
        let Some((number, status)) = inner.known.get_mut(&self.id) else { return };
        if *number != self.number || matches!(status, Status::Over(_)) {
            return;
        }
        *status = Status::Over(over);
        let now = Instant::now();
        inner.over.push_back((now + self.statuses.time_to_live, self.number, self.id.clone()));
        inner.forget(now);
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        let mut inner = self.statuses.lock();
        if *self.is_active.get_mut() {
            inner.active -= 1;
        }
        if let Some((number, Status::Alive(_) | Status::Ending)) = inner.known.get(&self.id)
            && *number == self.number
        {
            inner.known.remove(&self.id);
        }
    }
}

/// Counts what happened within a time.
struct RecentCount {
    time: Duration,
    /// When each part of the time began, and what happened in it.
    parts: VecDeque<(Instant, u64)>,
}

impl RecentCount {
    fn new(time: Duration) -> Self {
        Self { time, parts: VecDeque::new() }
    }

    fn add(&mut self, now: Instant) {
        self.forget(now);
        match self.parts.back_mut() {
            Some((began, count)) if now.saturating_duration_since(*began) < self.time / PARTS_OF_COUNT => {
                *count += 1;
            }
            _ => self.parts.push_back((now, 1)),
        }
    }

    fn count(&mut self, now: Instant) -> u64 {
        self.forget(now);
        self.parts.iter().map(|(_, count)| count).sum()
    }

    fn forget(&mut self, now: Instant) {
        let is_due = |began: &Instant| now.saturating_duration_since(*began) >= self.time;
        while self.parts.front().is_some_and(|(began, _)| is_due(began)) {
            self.parts.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happened_is_counted_for_its_time_in_few_parts() {
        let (start, secs) = (Instant::now(), Duration::from_secs);
        let mut count = RecentCount::new(secs(60));
        for at in 0..120 {
            count.add(start + secs(at) / 2);
        }
        assert_eq!(count.count(start + secs(59)), 120);
        assert_eq!(count.parts.len(), 60);
        assert_eq!(count.count(start + secs(60)), 118, "the first second is over");
        assert_eq!(count.count(start + secs(90)), 58);
        assert_eq!(count.count(start + secs(200)), 0);
        assert!(count.parts.is_empty());
    }

    #[test]
    fn a_rollout_is_active_until_it_ends_and_completed_then_once() {
        let statuses = Arc::new(Statuses::new(Duration::from_secs(60), Duration::from_secs(60)));
        let id = || RolloutId::parse("r").unwrap();
        let first = statuses.ended(id(), CountedBy::Statuses);
        let second = statuses.ended(id(), CountedBy::Statuses);
        let counted_elsewhere = statuses.ended(id(), CountedBy::Records);
        assert_eq!(statuses.counts(Instant::now()), (2, 0));

        first.ends(Over::word("success"));
        first.ends(Over::word("failure"));
        counted_elsewhere.ends(Over::word("success"));
        assert_eq!(statuses.counts(Instant::now()), (1, 1), "a later one of the same id is another");
        drop((first, second, counted_elsewhere));
        assert_eq!(statuses.counts(Instant::now()), (0, 1), "one without an outcome was not completed");
    }
}
