//! The first answers of requests, so that a repeated request gets the same answer.
//!
//! The first request with a key is the leader. Every other request with that key, during the leader's work or later, gets
//! the leader's answer. A leader that fails frees the key. The answer is stored for some time after the end of its rollout,
//! and its key is in use until then.

use std::sync::Arc;

use axum::body::Bytes;
use tokio::sync::watch;

use super::{HeldBody, Ledger, LedgerEntry, Name};
use rollout_rollout::{AdmitError, RolloutLog};

/// Bytes of memory of an answer's entry, in addition to its key and its body.
const RECORD_BYTES: usize = 512;

/// The answer to a request.
pub(crate) type Answer = Result<Arc<HeldBody>, NoAnswer>;

/// The reason why a request has no answer.
#[derive(Clone, Debug)]
pub(crate) enum NoAnswer {
    /// The rollout was not admitted.
    Admit(AdmitError),
    /// The answer could not be created.
    Failed(String),
    /// The leader's work was interrupted.
    Crashed,
}

/// The role of a request.
pub(crate) enum Role {
    /// The request is the leader and does the work for the answer.
    Leader(LedgerEntry, AnswerSender),
    /// The request gets the answer of an earlier one.
    Follower(Following),
}

/// A stored answer.
pub(super) struct StoredAnswer {
    key: Arc<str>,
    answer: watch::Receiver<Option<Answer>>,
    pub(super) is_given: bool,
    /// The rollout's journal, until the answer has expired.
    pub(super) log: Option<RolloutLog>,
}

impl StoredAnswer {
    pub(super) fn name(&self) -> Name {
        Name::Request(self.key.clone())
    }
}

/// Publishes the answer to a request. If it is dropped before that, all waiting requests learn that the work was
/// interrupted.
pub(crate) struct AnswerSender(watch::Sender<Option<Answer>>);

impl AnswerSender {
    /// Returns another receiver of the answer.
    pub(crate) fn following(&self) -> Following {
        Following(self.0.subscribe())
    }

    /// Publishes that there is no answer. Drop the rollout's [`LedgerEntry`] first, so that the key is free.
    pub(crate) fn fail(self, why: NoAnswer) {
        self.0.send_replace(Some(Err(why)));
    }
}

/// A request that gets the answer of another one.
pub(crate) struct Following(watch::Receiver<Option<Answer>>);

impl Following {
    /// Waits for the answer.
    pub(crate) async fn answer(mut self) -> Answer {
        match self.0.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(answer)) => answer.clone(),
            Ok(None) | Err(_) => Err(NoAnswer::Crashed),
        }
    }
}

impl Ledger {
    /// Returns the role of a request with this key.
    pub(crate) fn join(self: &Arc<Self>, key: &str) -> Role {
        let mut inner = self.lock();
        let name = Name::Request(key.into());
        let stored = inner.named(&name).and_then(|(_, slot)| slot.answer.as_ref());
        if let Some(stored) = stored {
            return Role::Follower(Following(stored.answer.clone()));
        }
        let (sender, answer) = watch::channel(None);
        let number = inner.add(name);
        inner.activate(number);
        if let Some(slot) = inner.slots.get_mut(&number) {
            slot.answer = Some(StoredAnswer { key: key.into(), answer, is_given: false, log: None });
        }
        drop(inner);
        Role::Leader(LedgerEntry::new(self.clone(), number), AnswerSender(sender))
    }
}

impl LedgerEntry {
    /// Answers the waiting requests, and stores the answer until its time to live, which starts at the entry's end, is over.
    pub(crate) fn answer(&self, sender: AnswerSender, body: Bytes, log: Option<RolloutLog>) {
        let mut inner = self.ledger.lock();
        let stored = inner.slots.get_mut(&self.number).and_then(|slot| slot.answer.as_mut());
        let mut bytes = RECORD_BYTES + body.len();
        if let Some(stored) = stored {
            (stored.is_given, stored.log) = (true, log);
            bytes += 2 * stored.key.len();
        }
        let charge = self.ledger.budget.charge_result(bytes);
        drop(inner);
        sender.0.send_replace(Some(Ok(Arc::new(HeldBody::new(body, charge)))));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::tests::{TTL, ledger, ledger_with};
    use super::*;
    use rollout_core::budget::Budget;

    fn lead(ledger: &Arc<Ledger>, key: &str) -> (LedgerEntry, AnswerSender) {
        match ledger.join(key) {
            Role::Leader(entry, sender) => (entry, sender),
            Role::Follower(_) => panic!("'{key}' is in use"),
        }
    }

    fn answer(ledger: &Arc<Ledger>, key: &str, body: Bytes) -> LedgerEntry {
        let (entry, sender) = lead(ledger, key);
        entry.answer(sender, body, None);
        entry
    }

    fn follow(ledger: &Arc<Ledger>, key: &str) -> Following {
        match ledger.join(key) {
            Role::Follower(following) => following,
            Role::Leader(..) => panic!("'{key}' is free"),
        }
    }

    #[tokio::test]
    async fn all_requests_with_a_key_get_the_answer_of_the_first() {
        let ledger = ledger();
        let (entry, sender) = lead(&ledger, "k");
        let during = follow(&ledger, "k");

        entry.answer(sender, Bytes::from_static(b"tools"), None);
        let after = follow(&ledger, "k");

        for following in [during, after] {
            assert_eq!(following.answer().await.unwrap().body, Bytes::from_static(b"tools"));
        }
        assert_eq!(ledger.counts(), (1, 0));
        drop(entry);
        assert_eq!(ledger.counts(), (0, 1));
    }

    #[tokio::test]
    async fn a_failed_leader_fails_all_waiting_requests_and_frees_the_key() {
        let ledger = ledger();
        let (entry, sender) = lead(&ledger, "k");
        let during = follow(&ledger, "k");

        drop(entry);
        sender.fail(NoAnswer::Failed("no".to_owned()));

        assert!(matches!(during.answer().await, Err(NoAnswer::Failed(why)) if why == "no"));
        let broken_off = lead(&ledger, "k").1.following();
        assert!(matches!(broken_off.answer().await, Err(NoAnswer::Crashed)));
        lead(&ledger, "k");
        assert!(ledger.is_empty());
    }

    #[tokio::test]
    async fn a_key_is_free_when_the_time_to_live_after_its_rollout_is_over() {
        let ledger = ledger();
        let now = ledger.clock.now();
        drop(answer(&ledger, "over", Bytes::new()));
        let _alive = answer(&ledger, "alive", Bytes::new());

        drop(ledger.lock_at(now + TTL - Duration::from_secs(2)));
        follow(&ledger, "over");
        drop(ledger.lock_at(now + 2 * TTL));
        assert_eq!(ledger.counts_at(now + 2 * TTL), (1, 0));
        follow(&ledger, "alive");
        lead(&ledger, "over");
    }

    #[tokio::test]
    async fn answers_are_charged_and_the_oldest_of_finished_rollouts_are_dropped_when_memory_is_short() {
        let budget = Budget::new(100_000);
        let ledger = ledger_with(budget.clone());
        let body = || Bytes::from(vec![b' '; 30_000]);
        for key in ["first", "second"] {
            drop(answer(&ledger, key, body()));
        }
        let alive = answer(&ledger, "alive", body());
        assert!(budget.used() > 90_000 && budget.check_new_work(0).is_err());

        ledger.sweep();

        assert!(budget.check_new_work(0).is_ok());
        lead(&ledger, "first");
        follow(&ledger, "second");
        follow(&ledger, "alive");
        drop(alive);
        ledger.sweep();
        follow(&ledger, "alive");
    }
}
