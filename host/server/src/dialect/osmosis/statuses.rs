//! How far each rollout is, for whoever asks by its id: alive, or over and what came of it.
//!
//! What came of a rollout is kept for as long as a result is, but no more than
//! [`OVER_MAX`] of them. It is a word and a line; results are elsewhere.

use std::collections::{HashMap, VecDeque};
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

/// All rollouts that are known.
pub(super) struct Statuses {
    time_to_live: Duration,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
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
    pub(crate) fn new(time_to_live: Duration) -> Self {
        Self { time_to_live, inner: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a rollout known. It is forgotten when what is given back is dropped, unless it
    /// [ends](Known::ends) before.
    pub(crate) fn begins(self: &Arc<Self>, id: RolloutId, handle: Handle) -> Known {
        let mut inner = self.lock();
        inner.numbers += 1;
        let number = inner.numbers;
        inner.known.insert(id.clone(), (number, Status::Alive(handle)));
        Known { statuses: self.clone(), number, id }
    }

    /// A rollout was over before this process began; what came of it is still to be
    /// [said](Known::ends).
    pub(crate) fn ended(self: &Arc<Self>, id: RolloutId) -> Known {
        let mut inner = self.lock();
        inner.numbers += 1;
        let number = inner.numbers;
        inner.known.insert(id.clone(), (number, Status::Ending));
        Known { statuses: self.clone(), number, id }
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
}

impl Known {
    /// Keeps what came of it.
    pub(crate) fn ends(&self, over: Over) {
        let mut inner = self.statuses.lock();
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
        if let Some((number, Status::Alive(_) | Status::Ending)) = inner.known.get(&self.id)
            && *number == self.number
        {
            inner.known.remove(&self.id);
        }
    }
}
