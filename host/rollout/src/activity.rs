//! Summaries of a tenant's rollouts, for pages: the live ones, and the latest that ended.
//!
//! An [`Activity`] holds no conversation. A live rollout's conversation is in its record, to which [`LiveFacts`] has a
//! weak reference; that of a finished one is in the journal. Summaries are limited in number, per tenant and in the
//! process, and the oldest go first.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use tokio::sync::watch;

use super::model::{Failure, FailureKind, ForkPoint, GroupSeat, Outcome, Phase, Stage};
use rollout_core::error::Fault;
use rollout_guest::imports::{Record, Remains, RolloutUsage};
use rollout_wire::id::RolloutId;
use rollout_wire::text::beginning;

/// Maximum number of summaries of finished rollouts of one tenant.
const ENDED_MAX: usize = 20_000;

/// Number of summaries of all tenants above which a tenant that adds one loses its oldest.
const ENDED_TOTAL_MAX: usize = 100_000;

/// Number of summaries that a tenant keeps even above [`ENDED_TOTAL_MAX`].
const ENDED_MIN: usize = 100;

/// Maximum number of bytes of a failure's reason in a summary.
const REASON_BYTES_MAX: usize = 200;

/// Maximum number of plugins of a tenant whose rollouts are counted one by one.
const PLUGINS_MAX: usize = 1000;

/// Maximum number of examples of a kind of failure.
const EXAMPLES_MAX: usize = 3;

/// Number of summaries of all tenants of a process.
#[derive(Debug, Default)]
pub(super) struct EndedTotal(AtomicUsize);

/// A rollout that has ended.
#[derive(Clone, Debug)]
pub struct EndedRollout {
    /// Its id.
    pub id: RolloutId,
    /// The plugin that ran it, if the process serves several.
    pub plugin: Option<Arc<str>>,
    /// The point at which it continues another rollout, if it is a fork.
    pub fork: Option<ForkPoint>,
    /// Its outcome. The reason of a failure is shortened.
    pub outcome: Outcome,
    /// Time of its end.
    pub ended_at: SystemTime,
    /// Time from its admission to its end.
    pub duration: Duration,
    /// Number of calls of the model.
    pub chat_calls: u64,
    /// Number of tokens of these calls, as the server reported.
    pub tokens: u64,
    /// CPU time of its guests.
    pub guest_cpu: Duration,
}

impl EndedRollout {
    /// Creates the summary of a rollout that ends now.
    #[expect(clippy::disallowed_methods, reason = "people read the time of the end")]
    pub(super) fn now(
        id: RolloutId,
        plugin: Option<Arc<str>>,
        fork: Option<ForkPoint>,
        outcome: &Outcome,
        duration: Duration,
        usage: &RolloutUsage,
    ) -> Self {
        let outcome = match outcome {
            Outcome::Scored { reward } => Outcome::Scored { reward: *reward },
            Outcome::Unscored(failure) => Outcome::Unscored(Failure {
                reason: beginning(&failure.reason, REASON_BYTES_MAX),
                ..failure.clone()
            }),
        };
        let tokens = usage.prompt_tokens + usage.completion_tokens;
        let (ended_at, chat_calls) = (SystemTime::now(), usage.chat_calls);
        let guest_cpu = usage.guest_cpu;
        Self { id, plugin, fork, outcome, ended_at, duration, chat_calls, tokens, guest_cpu }
    }
}

/// The failures of one stage, kind and party at fault.
#[derive(Clone, Debug, Default)]
pub struct FailureCount {
    /// Number of rollouts since the start of the process.
    pub count: u64,
    /// The latest of these rollouts.
    pub examples: VecDeque<RolloutId>,
}

/// Stage, kind and party at fault of a failure.
pub type FailureCause = (Stage, FailureKind, Fault);

/// Numbers of rollouts that ended since the start of the process.
#[derive(Clone, Copy, Debug, Default)]
pub struct EndedCounts {
    /// Rollouts with a reward.
    pub scored: u64,
    /// Sum of these rollouts' rewards.
    pub reward_sum: f64,
    /// Rollouts without a reward.
    pub unscored: u64,
    /// Number of tokens of all calls of the model.
    pub tokens: u64,
    /// CPU time of their guests.
    pub guest_cpu: Duration,
}

/// Summaries of the rollouts of one tenant that have ended.
#[derive(Debug)]
pub struct Activity {
    inner: Mutex<Inner>,
    changes: watch::Sender<u64>,
    total: Arc<EndedTotal>,
}

#[derive(Debug, Default)]
struct Inner {
    /// The summaries, the latest last.
    ended: VecDeque<EndedRollout>,
    failures: BTreeMap<FailureCause, FailureCount>,
    counts: EndedCounts,
    /// The counts by plugin, if the process serves several.
    plugins: BTreeMap<Arc<str>, EndedCounts>,
}

impl EndedCounts {
    fn add(&mut self, rollout: &EndedRollout) {
        self.tokens += rollout.tokens;
        self.guest_cpu += rollout.guest_cpu;
        match &rollout.outcome {
            Outcome::Scored { reward } => {
                self.scored += 1;
                self.reward_sum += reward;
            }
            Outcome::Unscored(_) => self.unscored += 1,
        }
    }
}

impl Activity {
    pub(super) fn new(total: Arc<EndedTotal>) -> Arc<Self> {
        Arc::new(Self { inner: Mutex::default(), changes: watch::Sender::new(0), total })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a rollout that has ended.
    pub(super) fn ended(&self, rollout: EndedRollout) {
        let mut inner = self.lock();
        inner.counts.add(&rollout);
        if let Some(plugin) = &rollout.plugin
            && (inner.plugins.len() < PLUGINS_MAX || inner.plugins.contains_key(plugin))
        {
            inner.plugins.entry(plugin.clone()).or_default().add(&rollout);
        }
        if let Outcome::Unscored(Failure { stage, kind, fault, .. }) = &rollout.outcome {
            let failures = inner.failures.entry((*stage, *kind, *fault)).or_default();
            failures.count += 1;
            failures.examples.push_front(rollout.id.clone());
            failures.examples.truncate(EXAMPLES_MAX);
        }
        self.push(&mut inner, rollout);
        drop(inner);
        self.changed();
    }

    fn push(&self, inner: &mut Inner, rollout: EndedRollout) {
        inner.ended.push_back(rollout);
        let total = self.total.0.fetch_add(1, Ordering::Relaxed) + 1;
        let own = inner.ended.len();
        if own > ENDED_MAX || (total > ENDED_TOTAL_MAX && own > ENDED_MIN) {
            inner.ended.pop_front();
            self.total.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Records that a live rollout was admitted or entered another phase.
    pub(super) fn changed(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Returns a receiver of the number of changes so far.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Returns finished rollouts that match, the latest first: at most `limit` after the first `skip`. The second value
    /// is the number of all that match.
    pub fn ended_page(
        &self,
        skip: usize,
        limit: usize,
        matches: impl Fn(&EndedRollout) -> bool,
    ) -> (Vec<EndedRollout>, usize) {
        let inner = self.lock();
        let (mut page, mut found) = (Vec::new(), 0);
        for rollout in inner.ended.iter().rev().filter(|rollout| matches(rollout)) {
            if found >= skip && page.len() < limit {
                page.push(rollout.clone());
            }
            found += 1;
        }
        (page, found)
    }

    /// Calls `show` for each listed rollout, the earliest first.
    pub(super) fn for_each_ended(&self, show: impl FnMut(&EndedRollout)) {
        self.lock().ended.iter().for_each(show);
    }

    /// Returns the failures by cause.
    pub fn failures(&self) -> Vec<(FailureCause, FailureCount)> {
        let mut failures: Vec<_> =
            self.lock().failures.iter().map(|(cause, count)| (*cause, count.clone())).collect();
        failures.sort_by_key(|(_, failures)| std::cmp::Reverse(failures.count));
        failures
    }

    /// Returns the numbers of rollouts that ended.
    pub fn counts(&self) -> EndedCounts {
        self.lock().counts
    }

    /// Returns the numbers of rollouts of one plugin that ended.
    pub fn counts_of(&self, plugin: &str) -> EndedCounts {
        self.lock().plugins.get(plugin).copied().unwrap_or_default()
    }
}

impl Drop for Activity {
    fn drop(&mut self) {
        let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.total.0.fetch_sub(inner.ended.len(), Ordering::Relaxed);
    }
}

/// Facts of a live rollout for pages, besides its phase.
#[derive(Clone, Debug)]
pub struct LiveFacts {
    /// The plugin that runs it, if the process serves several.
    pub plugin: Option<Arc<str>>,
    /// Time of its admission.
    pub admitted_at: SystemTime,
    /// The point at which it continues another rollout, if it is a fork.
    pub fork: Option<ForkPoint>,
    /// Its seat in a group, if it is a member of one.
    pub group: Option<GroupSeat>,
    pub(super) record: Weak<Record>,
}

impl LiveFacts {
    /// Passes the data that the rollout's guests have left so far to `show`, and holds the record's lock meanwhile.
    /// Returns `None` if the rollout is over.
    pub fn with_remains<T>(&self, show: impl FnOnce(&Remains<'_>) -> T) -> Option<T> {
        let record = self.record.upgrade()?;
        let mut shown = None;
        record.with_remains(|remains| shown = Some(show(remains)));
        shown
    }

    /// Returns the resources that the rollout has used so far, unless it is over.
    pub fn usage(&self) -> Option<RolloutUsage> {
        Some(self.record.upgrade()?.usage())
    }
}

/// A live rollout.
#[derive(Clone, Debug)]
pub struct LiveRollout {
    /// Its id.
    pub id: RolloutId,
    /// Its phase.
    pub phase: Phase,
    /// Its facts; `None` until its admission is complete.
    pub facts: Option<LiveFacts>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(number: usize, outcome: &Outcome) -> EndedRollout {
        let id = RolloutId::parse(format!("r{number}")).unwrap();
        EndedRollout::now(id, None, None, outcome, Duration::from_secs(1), &RolloutUsage::default())
    }

    #[test]
    fn the_latest_rollouts_are_listed_first_within_the_limits() {
        let total = Arc::<EndedTotal>::default();
        let activity = Activity::new(total.clone());
        let scored = Outcome::Scored { reward: 0.5 };
        let failure =
            Failure::new(Stage::Grader, FailureKind::NoReward, Fault::Plugin, "é".repeat(REASON_BYTES_MAX));
        for number in 0..ENDED_MAX + 10 {
            activity.ended(ended(number, &scored));
        }
        for number in 0..5 {
            activity.ended(ended(number, &Outcome::Unscored(failure.clone())));
        }

        let (page, found) = activity.ended_page(5, 2, |_| true);

        assert_eq!(found, ENDED_MAX);
        let ids: Vec<&str> = page.iter().map(|rollout| rollout.id.as_str()).collect();
        assert_eq!(ids, [format!("r{}", ENDED_MAX + 9), format!("r{}", ENDED_MAX + 8)]);
        let [(cause, failures)] = &activity.failures()[..] else { panic!("one cause") };
        assert_eq!(
            (cause.1, failures.count, failures.examples.len()),
            (FailureKind::NoReward, 5, EXAMPLES_MAX)
        );
        assert_eq!(failures.examples[0].as_str(), "r4");
        let (unscored, _) =
            activity.ended_page(0, 1, |rollout| matches!(rollout.outcome, Outcome::Unscored(_)));
        let Outcome::Unscored(shown) = &unscored[0].outcome else { panic!("unscored") };
        assert!(shown.reason.len() < 2 * REASON_BYTES_MAX, "{}", shown.reason.len());
        assert_eq!(total.0.load(Ordering::Relaxed), ENDED_MAX);
        drop(activity);
        assert_eq!(total.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_tenant_that_adds_rollouts_beyond_the_total_loses_its_own() {
        let total = Arc::new(EndedTotal(AtomicUsize::new(ENDED_TOTAL_MAX)));
        let activity = Activity::new(total);
        for number in 0..ENDED_MIN + 5 {
            activity.ended(ended(number, &Outcome::Scored { reward: 1.0 }));
        }
        assert_eq!(activity.ended_page(0, 0, |_| true).1, ENDED_MIN);
    }
}
