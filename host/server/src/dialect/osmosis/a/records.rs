//! The requests that were answered, so that one that comes again has the same answer.
//!
//! The first request with a key leads; any other with that key, while it is answered or
//! later, has the leader's answer. A leader that fails frees the key. The record of a
//! rollout that is over is swept away some time after its end; until then its key is
//! taken.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use tokio::sync::watch;
use tokio::time::Instant;

use super::Refused;
use rollout_core::budget::{Budget, Charge};
use rollout_core::rollout::RolloutLog;

/// What a record takes besides its key and its answer, in bytes.
const RECORD_BYTES: usize = 512;

/// What a leader was answered.
pub(super) type Answer = Result<Bytes, Refused>;

/// All records of one server.
pub(in super::super) struct Records {
    ttl: Duration,
    sweep_interval: Duration,
    budget: Budget,
    inner: Mutex<Inner>,
}

struct Inner {
    records: HashMap<Arc<str>, Record>,
    /// Those whose rollout is over, in the order of their ends, so that nobody has to look
    /// at all of them while others wait for the lock.
    ended: VecDeque<(Instant, Arc<str>)>,
    swept_at: Instant,
}

struct Record {
    answer: watch::Receiver<Option<Answer>>,
    /// From the answer on; before, what is kept is the request's.
    charge: Option<Charge>,
    /// Where its rollout is kept, until it is forgotten.
    log: Option<RolloutLog>,
}

impl Drop for Inner {
    /// A server that ends forgets nothing.
    fn drop(&mut self) {
        self.records.values_mut().for_each(|record| drop(record.log.take()));
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if let Some(log) = &self.log {
            log.end();
        }
    }
}

/// Whose part a request has.
pub(super) enum Part {
    /// It is answered by its own work.
    Leader(Leading),
    /// It has an earlier one's answer.
    Follower(Following),
}

impl Records {
    pub(crate) fn new(ttl: Duration, sweep_interval: Duration, budget: Budget) -> Self {
        let inner = Inner { records: HashMap::new(), ended: VecDeque::new(), swept_at: Instant::now() };
        Self { ttl, sweep_interval, budget, inner: Mutex::new(inner) }
    }

    /// Sweeps what is due, and where the host has no room for new work, the oldest of what is
    /// over until it has.
    pub(in super::super) fn sweep(&self) {
        let mut inner = self.lock(Instant::now());
        while !self.budget.has_room()
            && let Some((_, key)) = inner.ended.pop_front()
        {
            inner.records.remove(&key);
        }
    }

    /// Every look sweeps what is due.
    fn lock(&self, now: Instant) -> MutexGuard<'_, Inner> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if now.saturating_duration_since(inner.swept_at) >= self.sweep_interval {
            inner.swept_at = now;
            while inner.ended.front().is_some_and(|(ended, _)| self.is_over(*ended, now)) {
                let Some((_, key)) = inner.ended.pop_front() else { break };
                inner.records.remove(&key);
            }
        }
        inner
    }

    fn is_over(&self, ended: Instant, now: Instant) -> bool {
        now.saturating_duration_since(ended) >= self.ttl
    }

    /// The part of a request with this key.
    pub(super) fn join(self: &Arc<Self>, key: &str, now: Instant) -> Part {
        let mut inner = self.lock(now);
        if let Some(record) = inner.records.get(key) {
            return Part::Follower(Following(record.answer.clone()));
        }
        let (sender, answer) = watch::channel(None);
        let key: Arc<str> = key.into();
        inner.records.insert(key.clone(), Record { answer, charge: None, log: None });
        let kept = StoredRecord { records: self.clone(), key, answered: false };
        Part::Leader(Leading { sender, kept })
    }

    /// Rollouts that began and are not over, and those that are over and kept.
    pub(super) fn counts(&self, now: Instant) -> (usize, usize) {
        let inner = self.lock(now);
        let over = inner.ended.partition_point(|(ended, _)| self.is_over(*ended, now));
        (inner.records.len() - inner.ended.len(), inner.ended.len() - over)
    }
}

/// A request that is answered by its own work. Dropped without an answer, it frees its
/// key, and whoever waits is told that the work broke off.
pub(super) struct Leading {
    sender: watch::Sender<Option<Answer>>,
    kept: StoredRecord,
}

impl Leading {
    /// One more that has the answer.
    pub(crate) fn following(&self) -> Following {
        Following(self.sender.subscribe())
    }

    /// Answers, and keeps the record for as long as what is given back lives and the
    /// time to live after it.
    pub(crate) fn answer(mut self, body: Bytes) -> StoredRecord {
        self.kept.answered = true;
        let StoredRecord { records, key, .. } = &self.kept;
        let charge = records.budget.charge_result(RECORD_BYTES + 2 * key.len() + body.len());
        if let Some(record) = records.lock(Instant::now()).records.get_mut(key) {
            record.charge = Some(charge);
        }
        self.sender.send_replace(Some(Ok(body)));
        self.kept
    }

    /// Answers that there is none. The key is free before anybody hears of it.
    pub(crate) fn fail(self, refused: Refused) {
        let Self { sender, kept } = self;
        drop(kept);
        sender.send_replace(Some(Err(refused)));
    }
}

/// The record of a rollout; its end begins when this is dropped.
pub(super) struct StoredRecord {
    records: Arc<Records>,
    key: Arc<str>,
    answered: bool,
}

impl StoredRecord {
    /// The same, of a rollout that is kept there.
    pub(crate) fn kept_in(self, log: Option<RolloutLog>) -> Self {
        if let Some(record) = self.records.lock(Instant::now()).records.get_mut(&self.key) {
            record.log = log;
        }
        self
    }
}

impl Drop for StoredRecord {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut inner = self.records.lock(now);
        if !self.answered {
            inner.records.remove(&self.key);
        } else {
            inner.ended.push_back((now, self.key.clone()));
        }
    }
}

/// A request that has another's answer.
pub(super) struct Following(watch::Receiver<Option<Answer>>);

impl Following {
    /// Waits for the answer.
    pub(crate) async fn answer(mut self) -> Answer {
        match self.0.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(answer)) => answer.clone(),
            Ok(None) | Err(_) => Err(Refused::Crashed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(100);

    fn records() -> Arc<Records> {
        with_budget(Budget::default())
    }

    fn with_budget(budget: Budget) -> Arc<Records> {
        Arc::new(Records::new(TTL, Duration::from_secs(10), budget))
    }

    fn lead(records: &Arc<Records>, key: &str, now: Instant) -> Leading {
        match records.join(key, now) {
            Part::Leader(leading) => leading,
            Part::Follower(_) => panic!("'{key}' is taken"),
        }
    }

    fn follow(records: &Arc<Records>, key: &str, now: Instant) -> Following {
        match records.join(key, now) {
            Part::Follower(following) => following,
            Part::Leader(_) => panic!("'{key}' is free"),
        }
    }

    #[tokio::test]
    async fn all_requests_with_a_key_have_the_first_ones_answer() {
        let (records, now) = (records(), Instant::now());
        let leading = lead(&records, "k", now);
        let during = follow(&records, "k", now);

        let kept = leading.answer(Bytes::from_static(b"tools"));
        let after = follow(&records, "k", now);

        for following in [during, after] {
            assert_eq!(following.answer().await.unwrap(), Bytes::from_static(b"tools"));
        }
        assert_eq!(records.counts(now), (1, 0));
        drop(kept);
        assert_eq!(records.counts(now), (0, 1));
    }

    #[tokio::test]
    async fn a_leader_that_fails_fails_all_who_wait_and_frees_the_key() {
        let (records, now) = (records(), Instant::now());
        let leading = lead(&records, "k", now);
        let during = follow(&records, "k", now);

        leading.fail(Refused::Tools("no".to_owned()));

        assert!(matches!(during.answer().await, Err(Refused::Tools(why)) if why == "no"));
        let broken_off = lead(&records, "k", now).following();
        assert!(matches!(broken_off.answer().await, Err(Refused::Crashed)));
        lead(&records, "k", now);
    }

    #[tokio::test]
    async fn a_key_is_free_again_when_its_rollout_was_over_for_the_time_to_live() {
        let (records, now) = (records(), Instant::now());
        drop(lead(&records, "over", now).answer(Bytes::new()));
        let _alive = lead(&records, "alive", now).answer(Bytes::new());

        follow(&records, "over", now + TTL - Duration::from_secs(2));
        let later = now + 2 * TTL;
        assert_eq!(records.counts(later), (1, 0));
        follow(&records, "alive", later);
        lead(&records, "over", later);
    }

    #[tokio::test]
    async fn records_are_charged_and_the_oldest_that_are_over_go_where_there_is_no_room() {
        let budget = Budget::new(100_000);
        let (records, now) = (with_budget(budget.clone()), Instant::now());
        let answer = || Bytes::from(vec![b' '; 30_000]);
        for key in ["first", "second"] {
            drop(lead(&records, key, now).answer(answer()));
        }
        let alive = lead(&records, "alive", now).answer(answer());
        assert!(budget.used() > 90_000 && budget.check_new_work(0).is_err());

        records.sweep();

        assert!(budget.check_new_work(0).is_ok());
        lead(&records, "first", now);
        follow(&records, "second", now);
        follow(&records, "alive", now);
        drop(alive);
        records.sweep();
        follow(&records, "alive", now);
    }
}
