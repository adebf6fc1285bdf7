//! Claiming of logs, and heartbeats of their owners.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use async_nats::jetstream::kv::{self, CreateErrorKind};
use rollout_journal::ReplicaError;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::task::AbortOnDropHandle;

use crate::connect::Cluster;
use crate::entry::{LogEntry, WorkerState};
use crate::error::{ClaimError, ClusterError, LogDamage, is_wrong_last, unavailable};
use crate::members::Member;
use crate::message::{Draft, Head};
use crate::settings::is_token;
use crate::writer::{self, End, Last, LastError, LogWriter, Publish};

/// Pause before a step of a claim is repeated.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Maximum number of repetitions of a step. They take longer than the election of a leader.
const RETRIES_MAX: u32 = 100;

/// Maximum number of repetitions while a server has an older end of the log than was acknowledged.
const OLDER_RETRIES_MAX: u32 = 20;

/// Number of heartbeats in succession without an entry of the log after which its owner stops.
const MISSING_MAX: u32 = 3;

/// A log to claim.
#[derive(Clone, Copy, Debug)]
pub enum Claim<'a> {
    /// The process's own log, by its configured name. An earlier process with this name is fenced.
    Own(&'a str),
    /// The log of another worker whose lease [has expired](crate::Members::expired). The claim fails if it has sent a
    /// heartbeat since.
    Expired(&'a Member),
    /// A log that another process has just claimed for this one. The claim fails if the log was claimed again since.
    Handed {
        /// Name of the log.
        log: &'a str,
        /// Epoch of the other process's claim.
        epoch: u64,
    },
}

/// The state of a log's entry for which it may be claimed.
#[derive(Clone, Copy, Debug)]
enum Condition {
    Any,
    Revision(u64),
    Epoch(u64),
}

impl Condition {
    fn is_met(self, found: Option<&(LogEntry, u64)>) -> bool {
        match self {
            Self::Any => true,
            Self::Revision(expected) => found.is_some_and(|(_, revision)| *revision == expected),
            Self::Epoch(expected) => found.is_some_and(|(entry, _)| entry.epoch == expected),
        }
    }
}

/// A log that belongs to this process until another one claims it.
pub struct ClaimedLog {
    cluster: Cluster,
    log: String,
    /// The end of the log at the time of the claim.
    end: End,
    /// The end of the acknowledged messages.
    ends: watch::Sender<End>,
    /// The log's entry in the bucket, as this process set it.
    entry: LogEntry,
    revision: u64,
    fenced: watch::Sender<Option<ReplicaError>>,
}

impl Cluster {
    /// Claims a log: sets its owner in the bucket, and appends a fence to it.
    pub async fn claim(&self, claim: Claim<'_>, owner: &WorkerState) -> Result<ClaimedLog, ClaimError> {
        let (log, condition) = match claim {
            Claim::Own(log) => (log.to_owned(), Condition::Any),
            Claim::Expired(member) => (member.log.clone(), Condition::Revision(member.revision)),
            Claim::Handed { log, epoch } => (log.to_owned(), Condition::Epoch(epoch)),
        };
        if !is_token(&log) {
            return Err(ClaimError::Name(log));
        }
        let (cluster, owner) = (self.clone(), owner.clone());
        self.run(async move { ClaimRun { cluster, log, owner }.run(condition).await }).await?
    }
}

struct ClaimRun {
    cluster: Cluster,
    log: String,
    owner: WorkerState,
}

impl ClaimRun {
    async fn run(self, condition: Condition) -> Result<ClaimedLog, ClaimError> {
        let before = self.entry().await?;
        if !condition.is_met(before.as_ref()) {
            return Err(self.lost_to(before.as_ref().map(|(entry, _)| entry)));
        }
        let last = self.last().await?;
        let is_begun = before.as_ref().is_some_and(|(entry, _)| entry.is_begun);
        if is_begun && last.is_none() {
            return Err(self.damage("its subject", "it has no messages, although it had some").into());
        }
        let acknowledged = before.as_ref().map_or(0, |(entry, _)| entry.acknowledged);
        self.require_end(acknowledged, last).await?;
        let epoch_before = before.as_ref().map_or(0, |(entry, _)| entry.epoch);
        // The log's own epoch counts too, so that no epoch is used twice after the bucket was lost.
        let epoch = epoch_before.max(last.map_or(0, |last| last.head.epoch)) + 1;
        let mut entry = LogEntry {
            owner: self.owner.clone(),
            epoch,
            heartbeat: writer::now(),
            claim: RandomState::new().build_hasher().finish(),
            is_begun: is_begun || last.is_some(),
            acknowledged,
            is_staging: false,
        };
        let is_own = matches!(condition, Condition::Any);
        let revision = self.set(&entry, before.as_ref().map(|(_, revision)| *revision), is_own).await?;
        let end = self.fence(epoch, entry.is_begun).await?;
        (entry.is_begun, entry.acknowledged) = (true, end.number);
        let revision = self.set(&entry, Some(revision), false).await?;
        let Self { cluster, log, .. } = self;
        let (ends, fenced) = (watch::Sender::new(end), watch::Sender::new(None));
        Ok(ClaimedLog { cluster, log, end, ends, entry, revision, fenced })
    }

    /// Checks that the log has the last message that an owner has seen acknowledged. A server that was elected a moment ago
    /// may answer with an older one.
    async fn require_end(&self, acknowledged: u64, mut last: Option<Last>) -> Result<(), ClaimError> {
        for _ in 0..OLDER_RETRIES_MAX {
            if last.is_none_or(|last| last.head.number >= acknowledged) {
                return Ok(());
            }
            tokio::time::sleep(RETRY_PAUSE).await;
            last = self.last().await?;
        }
        let Some(last) = last.filter(|last| last.head.number < acknowledged) else { return Ok(()) };
        let what = format!(
            "it ends with number {}, and number {acknowledged} was acknowledged; the servers lost the rest",
            last.head.number
        );
        Err(self.damage(&format!("sequence {}", last.sequence), &what).into())
    }

    fn bucket(&self) -> &kv::Store {
        &self.cluster.0.bucket
    }

    fn damage(&self, place: &str, what: &str) -> LogDamage {
        LogDamage { log: self.log.clone(), place: place.to_owned(), what: what.to_owned() }
    }

    fn lost_to(&self, owner: Option<&LogEntry>) -> ClaimError {
        let owner = owner.map_or("another worker".to_owned(), |entry| entry.owner.url.clone());
        ClaimError::Lost { log: self.log.clone(), owner }
    }

    /// Reads the log's entry and its revision. With an outdated revision, the claim fails later.
    async fn entry(&self) -> Result<Option<(LogEntry, u64)>, ClaimError> {
        read_entry(self.bucket(), &self.log).await
    }

    async fn last(&self) -> Result<Option<Last>, ClaimError> {
        let subject = self.cluster.0.settings.subject(&self.log);
        let mut retries = 0;
        loop {
            match writer::last_message(&self.cluster.0.stream, &subject).await {
                Ok(last) => return Ok(last),
                Err(LastError::Damaged { sequence, what }) => {
                    return Err(self.damage(&format!("sequence {sequence}"), what).into());
                }
                Err(LastError::Unavailable(why)) => pause(&mut retries, why).await?,
            }
        }
    }

    /// Sets the log's entry if it has this revision, or creates it if `revision` is `None`. Returns the new revision. If
    /// `outbids` is set, the claim wins over heartbeats of an earlier owner.
    async fn set(
        &self,
        entry: &LogEntry,
        mut revision: Option<u64>,
        outbids: bool,
    ) -> Result<u64, ClaimError> {
        let mut retries = 0;
        loop {
            let set = match revision {
                Some(revision) => match self.bucket().update(&self.log, entry.write(), revision).await {
                    Ok(revision) => return Ok(revision),
                    Err(error) if is_wrong_last(&error) => None,
                    Err(error) => Some(crate::error::chain(&error)),
                },
                None => match self.bucket().create(&self.log, entry.write()).await {
                    Ok(revision) => return Ok(revision),
                    Err(error) if error.kind() == CreateErrorKind::AlreadyExists => None,
                    Err(error) => Some(crate::error::chain(&error)),
                },
            };
            match set {
                Some(why) => pause(&mut retries, why).await?,
                // An attempt that was not answered may have succeeded.
                None => match self.entry().await? {
                    Some((is, revision)) if is == *entry => return Ok(revision),
                    Some((is, newer)) if outbids && is.epoch < entry.epoch => {
                        // Another server may answer with an older entry. A newer one is outbid at once, before the next
                        // heartbeat.
                        if revision.replace(newer).is_some_and(|before| before >= newer) {
                            pause(&mut retries, "its owner sends heartbeats".to_owned()).await?;
                        }
                    }
                    other => return Err(self.lost_to(other.as_ref().map(|(entry, _)| entry))),
                },
            }
        }
    }

    /// Appends the fence of this epoch and returns the end of the log.
    async fn fence(&self, epoch: u64, is_begun: bool) -> Result<End, ClaimError> {
        let subject = self.cluster.0.settings.subject(&self.log);
        let mut retries = 0;
        loop {
            let last = self.last().await?;
            if is_begun && last.is_none() {
                return Err(self.damage("its subject", "it has no messages, although it had some").into());
            }
            if let Some(last) = last
                && last.head.epoch >= epoch
            {
                // An earlier attempt, which was not answered, has appended this fence.
                if last.head.epoch == epoch && last.head.is_fence {
                    return Ok(End {
                        epoch,
                        number: last.head.number,
                        sequence: last.sequence,
                        time: last.time,
                    });
                }
                return Err(self.lost_to(self.entry().await?.as_ref().map(|(entry, _)| entry)));
            }
            let number = last.map_or(0, |last| last.head.number) + 1;
            let time_before = last.map_or(0, |last| last.time);
            let head = Head { is_fence: true, epoch, number, time_before };
            let message = Draft::of(self.owner.url.as_bytes()).finish(head);
            let after = last.map_or(0, |last| last.sequence);
            match writer::publish(&self.cluster.0.jetstream, &subject, after, &message).await {
                Ok(sequence) => return Ok(End { epoch, number, sequence, time: writer::now() }),
                // The former owner still appends.
                Err(Publish::WrongLast) => pause(&mut retries, "it is being appended to".to_owned()).await?,
                Err(Publish::Unknown(why)) => pause(&mut retries, why).await?,
            }
        }
    }
}

async fn read_entry(bucket: &kv::Store, log: &str) -> Result<Option<(LogEntry, u64)>, ClaimError> {
    let mut retries = 0;
    let found = loop {
        match bucket.entry(log).await {
            Ok(found) => break found,
            Err(error) => pause(&mut retries, crate::error::chain(&error)).await?,
        }
    };
    let Some(found) = found.filter(|found| found.operation == kv::Operation::Put) else { return Ok(None) };
    match LogEntry::read(&found.value) {
        Some(entry) => Ok(Some((entry, found.revision))),
        None => {
            let place = format!("revision {} of the bucket", found.revision);
            let what = "its entry cannot be read".to_owned();
            Err(LogDamage { log: log.to_owned(), place, what }.into())
        }
    }
}

/// Waits before a repetition. Fails after [`RETRIES_MAX`] repetitions.
async fn pause(retries: &mut u32, why: String) -> Result<(), ClusterError> {
    *retries += 1;
    if *retries > RETRIES_MAX {
        return Err(ClusterError::Unavailable(why));
    }
    tokio::time::sleep(RETRY_PAUSE).await;
    Ok(())
}

impl ClaimedLog {
    /// Returns the log's name.
    pub fn log(&self) -> &str {
        &self.log
    }

    /// Returns the epoch, which is greater than that of every earlier owner.
    pub fn epoch(&self) -> u64 {
        self.entry.epoch
    }

    pub(crate) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Returns the end of the log at the time of the claim.
    pub(crate) fn end(&self) -> End {
        self.end
    }

    /// Starts to append to the log. Called once, after the log was read.
    pub fn writer(&self) -> LogWriter {
        LogWriter::start(&self.cluster, &self.log, self.ends.clone(), self.fenced.clone())
    }

    /// Sends heartbeats until the returned guard is dropped. Called once, before the log is read, which may take longer than
    /// a lease.
    pub fn announce(&self) -> Heartbeats {
        let (retire, retires) = oneshot::channel();
        let (set_staging, staging_set) = mpsc::channel(1);
        let beating = Beating {
            cluster: self.cluster.clone(),
            log: self.log.clone(),
            entry: self.entry.clone(),
            ends: self.ends.subscribe(),
            revision: self.revision,
            stored: 0,
            missing: 0,
            fenced: self.fenced.clone(),
        };
        let task = self.cluster.handle().spawn(beating.run(retires, staging_set));
        Heartbeats { retire, set_staging, task: AbortOnDropHandle::new(task), cluster: self.cluster.clone() }
    }
}

/// The task that sends heartbeats.
struct Beating {
    cluster: Cluster,
    log: String,
    entry: LogEntry,
    ends: watch::Receiver<End>,
    /// Revision of the log's entry, which changes with each heartbeat.
    revision: u64,
    /// Number of heartbeats that were stored.
    stored: u64,
    /// Number of times in succession that the entry was missing.
    missing: u32,
    fenced: watch::Sender<Option<ReplicaError>>,
}

impl Beating {
    /// Sends heartbeats until the log is retired or its heartbeats are dropped. Returns an error if the entry of a retired log
    /// was not removed.
    async fn run(
        mut self,
        mut retires: oneshot::Receiver<()>,
        mut staging_set: mpsc::Receiver<(bool, oneshot::Sender<()>)>,
    ) -> Result<(), ClusterError> {
        let mut is_stored = None;
        let mut ticks = tokio::time::interval(self.cluster.0.settings.heartbeat());
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let stopped = tokio::select! {
                biased;
                stopped = &mut retires => Some(stopped),
                Some((is_staging, stored)) = staging_set.recv() => {
                    self.entry.is_staging = is_staging;
                    is_stored = Some(stored);
                    None
                }
                _ = ticks.tick() => None,
            };
            match stopped {
                None => {
                    let before = self.stored;
                    if !self.beat().await {
                        return Ok(());
                    }
                    if self.stored != before {
                        is_stored.take().map(|stored| stored.send(()));
                    }
                }
                Some(Ok(())) => {
                    let removing =
                        self.cluster.0.bucket.delete_expect_revision(&self.log, Some(self.revision));
                    return removing.await.map_err(unavailable);
                }
                // The process ends without retiring the log, so another process may claim it.
                Some(Err(_)) => return Ok(()),
            }
        }
    }

    /// Sends a heartbeat. Returns whether the log still belongs to this process.
    async fn beat(&mut self) -> bool {
        self.entry.heartbeat = writer::now();
        self.entry.acknowledged = self.ends.borrow().number;
        match self.cluster.0.bucket.update(&self.log, self.entry.write(), self.revision).await {
            Ok(revision) => (self.revision, self.stored, self.missing) = (revision, self.stored + 1, 0),
            Err(error) if is_wrong_last(&error) => return !self.is_claimed_by_another().await,
            Err(error) => tracing::warn!(%error, log = self.log, "a heartbeat was not stored"),
        }
        true
    }

    /// Returns whether another process has claimed the log, and reports the claim. If none has, an earlier heartbeat was
    /// stored although it was not answered.
    async fn is_claimed_by_another(&mut self) -> bool {
        match read_entry(&self.cluster.0.bucket, &self.log).await {
            Ok(Some((entry, revision))) if entry.epoch == self.entry.epoch => {
                self.revision = revision;
                false
            }
            Ok(None) if self.missing + 1 >= MISSING_MAX => {
                tracing::error!(log = self.log, "the log's entry is missing although this process owns it");
                let why = "its entry is missing: an operator has abandoned it, or the servers have lost it";
                self.fenced.send_replace(Some(ReplicaError::Fenced(why.to_owned())));
                true
            }
            // Another server may answer with an older entry, or none.
            Ok(found) if found.as_ref().is_none_or(|(entry, _)| entry.epoch < self.entry.epoch) => {
                tracing::warn!(log = self.log, "a heartbeat was refused, and the log has no newer owner");
                self.missing = if found.is_none() { self.missing + 1 } else { 0 };
                false
            }
            Ok(found) => {
                let by = found.map_or_else(String::new, |(entry, _)| {
                    format!("{} in epoch {}", entry.owner.url, entry.epoch)
                });
                tracing::error!(by, log = self.log, "the log was claimed by another process");
                self.fenced.send_replace(Some(ReplicaError::Fenced(format!("it belongs to {by}"))));
                true
            }
            Err(error) => {
                tracing::warn!(%error, log = self.log, "the log's owner cannot be read");
                false
            }
        }
    }
}

/// The heartbeats of a log's owner. They end when this value is dropped; then the lease expires.
pub struct Heartbeats {
    retire: oneshot::Sender<()>,
    set_staging: mpsc::Sender<(bool, oneshot::Sender<()>)>,
    task: AbortOnDropHandle<Result<(), ClusterError>>,
    cluster: Cluster,
}

impl Heartbeats {
    /// Announces whether this process takes part in [staged activations](crate::Staging), and waits until that is stored. As
    /// long as it does, no version becomes active that this process has not loaded.
    pub async fn set_staging(&self, is_staging: bool) {
        let (stored, is_stored) = oneshot::channel();
        // Without a task, the log belongs to another process, and this one ends.
        if self.set_staging.send((is_staging, stored)).await.is_ok() {
            let _ = is_stored.await;
        }
    }

    /// Removes the log from the list, when all its rollouts have ended and their results were read.
    pub async fn retire(self) -> Result<(), ClusterError> {
        let Self { retire, mut task, cluster, .. } = self;
        let _ = retire.send(());
        match tokio::time::timeout(cluster.0.settings.lease(), &mut task).await {
            Ok(ended) => ended.map_err(unavailable)?,
            Err(_) => Err(ClusterError::Unavailable("the log's entry was not removed".to_owned())),
        }
    }
}
