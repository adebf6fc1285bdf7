//! The owners of all logs, as their heartbeats report them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_nats::jetstream::kv;
use futures_util::StreamExt;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use crate::connect::Cluster;
use crate::entry::{LogEntry, WorkerState};
use crate::error::{ClusterError, unavailable};

/// Pause before a watch that has ended is started again.
const WATCH_PAUSE: Duration = Duration::from_millis(200);

/// A log and its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Name of the log.
    pub log: String,
    /// The owner by its last heartbeat.
    pub owner: WorkerState,
    /// Epoch of the owner's claim.
    pub epoch: u64,
    /// Whether the owner loads versions before they are activated.
    pub(crate) is_staging: bool,
    pub(crate) revision: u64,
    /// Time when this process received the last heartbeat. Clocks of other machines are not compared.
    seen: Instant,
}

/// A watch of the owners of all logs, which ends when this value is dropped.
pub struct Members {
    state: Arc<Mutex<State>>,
    changes: watch::Receiver<u64>,
    heartbeat: Duration,
    lease: Duration,
    _task: AbortOnDropHandle<()>,
    _cluster: Cluster,
}

struct State {
    members: BTreeMap<String, Member>,
    /// Time of the last answer of the bucket's leader.
    reached: Option<Instant>,
    /// Beginning of the current time without a gap between the leader's answers. Leases do not run in a gap.
    reached_since: Option<Instant>,
}

impl State {
    /// Records that the leader has answered.
    fn note_reply(&mut self, now: Instant, gap_max: Duration) {
        let has_gap = self.reached.is_none_or(|reached| now.duration_since(reached) > gap_max);
        if has_gap || self.reached_since.is_none() {
            self.reached_since = Some(now);
        }
        self.reached = Some(now);
    }

    fn note_gap(&mut self) {
        self.reached_since = None;
    }

    /// Returns whether a lease has expired: no heartbeat arrived for the length of the lease, while the leader answered.
    fn is_expired(&self, member: &Member, now: Instant, lease: Duration, gap_max: Duration) -> bool {
        let (Some(since), Some(reached)) = (self.reached_since, self.reached) else { return false };
        if now.duration_since(reached) > gap_max {
            return false;
        }
        reached.duration_since(since.max(member.seen).min(reached)) >= lease
    }
}

fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cluster {
    /// Starts to watch the owners of all logs, and returns when they are known.
    pub async fn members(&self) -> Result<Members, ClusterError> {
        let state = State { members: BTreeMap::new(), reached: None, reached_since: None };
        let state = Arc::new(Mutex::new(state));
        let (changed, changes) = watch::channel(0);
        let (heartbeat, lease) = (self.0.settings.heartbeat(), self.0.settings.lease());
        let bucket = self.0.bucket.clone();
        let run = Watching { bucket, state: state.clone(), changed, heartbeat };
        let (known, is_known) = tokio::sync::oneshot::channel();
        let task = AbortOnDropHandle::new(self.handle().spawn(run.run(known)));
        is_known.await.map_err(unavailable)??;
        Ok(Members { state, changes, heartbeat, lease, _task: task, _cluster: self.clone() })
    }
}

impl Members {
    /// Returns all logs and their owners, by name.
    pub fn list(&self) -> Vec<Member> {
        locked(&self.state).members.values().cloned().collect()
    }

    /// Returns a log's owner.
    pub fn get(&self, log: &str) -> Option<Member> {
        locked(&self.state).members.get(log).cloned()
    }

    /// Returns the logs that may be claimed: those without a heartbeat for the length of a lease. Time in which this
    /// process cannot reach NATS does not count.
    pub fn expired(&self) -> Vec<Member> {
        let (state, now) = (locked(&self.state), Instant::now());
        let is_expired =
            |member: &&Member| state.is_expired(member, now, self.lease, gap_max(self.heartbeat));
        state.members.values().filter(is_expired).cloned().collect()
    }

    /// Returns whether a log has an owner with this epoch, whose lease has not expired.
    pub(crate) fn is_live(&self, log: &str, epoch: u64) -> bool {
        let (state, now) = (locked(&self.state), Instant::now());
        let found = state.members.get(log).filter(|member| member.epoch == epoch);
        found.is_some_and(|member| !state.is_expired(member, now, self.lease, gap_max(self.heartbeat)))
    }

    /// Returns the names of the logs with an owner whose lease has not expired.
    pub(crate) fn live_logs(&self) -> BTreeSet<String> {
        let (state, now) = (locked(&self.state), Instant::now());
        let is_live = |member: &&Member| !state.is_expired(member, now, self.lease, gap_max(self.heartbeat));
        state.members.values().filter(is_live).map(|member| member.log.clone()).collect()
    }

    /// Returns the logs and epochs of the live owners that load versions before they are activated.
    pub(crate) fn staging(&self) -> Vec<(String, u64)> {
        let (state, now) = (locked(&self.state), Instant::now());
        let takes_part = |member: &&Member| {
            member.is_staging && !state.is_expired(member, now, self.lease, gap_max(self.heartbeat))
        };
        state.members.values().filter(takes_part).map(|member| (member.log.clone(), member.epoch)).collect()
    }

    /// Returns whether the bucket's leader answers.
    pub fn is_reachable(&self) -> bool {
        locked(&self.state).reached.is_some_and(|reached| reached.elapsed() <= gap_max(self.heartbeat))
    }

    /// Returns a counter that changes with each heartbeat of any owner, and when it is time to look for expired leases.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.clone()
    }

    /// Waits for the next heartbeat of any owner, or for the next time to look for expired leases.
    pub async fn changed(&mut self) {
        let _ = self.changes.changed().await;
    }
}

/// Returns the longest time between two answers of the leader that is not a gap.
fn gap_max(heartbeat: Duration) -> Duration {
    heartbeat * 3
}

struct Watching {
    bucket: kv::Store,
    state: Arc<Mutex<State>>,
    changed: watch::Sender<u64>,
    heartbeat: Duration,
}

type Known = tokio::sync::oneshot::Sender<Result<(), ClusterError>>;

impl Watching {
    async fn run(self, known: Known) {
        let mut known = Some(known);
        let mut ticks = tokio::time::interval(self.heartbeat);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let mut watch = match self.begin().await {
                Ok((watch, is_empty)) => {
                    // The watch of an empty bucket delivers no entry.
                    if is_empty {
                        known.take().map(|known| known.send(Ok(())));
                    }
                    watch
                }
                Err(error) => {
                    if let Some(known) = known.take() {
                        let _ = known.send(Err(error));
                        return;
                    }
                    tokio::time::sleep(WATCH_PAUSE).await;
                    continue;
                }
            };
            loop {
                tokio::select! {
                    _ = ticks.tick() => self.probe().await,
                    entry = watch.next() => match entry {
                        Some(Ok(entry)) => {
                            let is_current = entry.delta == 0;
                            self.take(&entry);
                            if is_current {
                                known.take().map(|known| known.send(Ok(())));
                            }
                        }
                        Some(Err(error)) => {
                            tracing::warn!(%error, "the watch of workers has failed; beginning again");
                            break;
                        }
                        None => break,
                    },
                }
            }
            tokio::time::sleep(WATCH_PAUSE).await;
        }
    }

    /// Starts a watch, and returns it with whether the bucket is still empty.
    async fn begin(&self) -> Result<(kv::Watch, bool), ClusterError> {
        let watch = self.bucket.watch_with_history(">").await.map_err(unavailable)?;
        let info = self.bucket.stream.get_info().await.map_err(unavailable)?;
        Ok((watch, info.state.messages == 0))
    }

    fn take(&self, entry: &kv::Entry) {
        let mut state = locked(&self.state);
        let known = state.members.get(&entry.key).map(|member| member.revision);
        if known.is_some_and(|known| known >= entry.revision) {
            return;
        }
        match entry.operation {
            kv::Operation::Put => {
                let Some(LogEntry { owner, epoch, is_staging, .. }) = LogEntry::read(&entry.value) else {
                    tracing::warn!(
                        key = entry.key,
                        revision = entry.revision,
                        "a log's entry cannot be read"
                    );
                    return;
                };
                let member = Member {
                    log: entry.key.clone(),
                    owner,
                    epoch,
                    is_staging,
                    revision: entry.revision,
                    seen: Instant::now(),
                };
                state.members.insert(entry.key.clone(), member);
            }
            kv::Operation::Delete | kv::Operation::Purge => drop(state.members.remove(&entry.key)),
        }
        drop(state);
        self.changed.send_modify(|changes| *changes += 1);
    }

    /// Asks the bucket's leader for an answer.
    async fn probe(&self) {
        match self.bucket.stream.get_info().await {
            // Without a leader the answer comes from a server that does not know the state.
            Ok(info) if info.cluster.as_ref().is_none_or(|cluster| cluster.leader.is_some()) => {
                locked(&self.state).note_reply(Instant::now(), gap_max(self.heartbeat));
            }
            Ok(_) | Err(_) => locked(&self.state).note_gap(),
        }
        self.changed.send_modify(|changes| *changes += 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_lease_runs_only_while_nats_can_be_reached() {
        let start = Instant::now();
        let at = |seconds: u32| start + SECOND * seconds;
        let (log, owner) = ("a".to_owned(), WorkerState::default());
        let member = Member { log, owner, epoch: 1, is_staging: false, revision: 1, seen: at(0) };
        let mut state = State { members: BTreeMap::new(), reached: None, reached_since: None };
        let expired =
            |state: &State, seconds| state.is_expired(&member, at(seconds), SECOND * 30, SECOND * 15);
        assert!(!expired(&state, 100), "never reached");
        for second in (0..30).step_by(5) {
            state.note_reply(at(second), SECOND * 15);
            assert!(!expired(&state, second), "after {second} s");
        }
        state.note_reply(at(30), SECOND * 15);
        assert!(expired(&state, 30));
        assert!(!expired(&state, 46), "no answer for 16 s");
        // The gap of an outage, or of a process that was stopped.
        state.note_reply(at(60), SECOND * 15);
        assert!(!expired(&state, 60));
        for second in (65..90).step_by(5) {
            state.note_reply(at(second), SECOND * 15);
            assert!(!expired(&state, second), "after {second} s");
        }
        state.note_gap();
        assert!(!expired(&state, 90));
        state.note_reply(at(91), SECOND * 15);
        assert!(!expired(&state, 91));
    }
}
