//! Staged activations: all workers load a version of a plugin before it becomes active in the catalog that they share.
//!
//! The worker that serves an activation [reserves](Staging::reserve) the plugin in a bucket, which one worker at a time can
//! do. It then [publishes](Reservation::stage) the version there, and waits until all live workers have answered that they
//! have loaded it. Only then does it change the catalog. The reservation ends when it is dropped.
//!
//! ```text
//! request.TENANT.PLUGIN        the reservation: its id, its worker with the epoch, and the version to load
//! answer.TENANT.PLUGIN.LOG     the answer of the worker with this log and epoch: loaded, or the reason why not
//! ```
//!
//! A worker takes part from its first [heartbeat](crate::Heartbeats::set_staging) that says so. It keeps a loaded version until
//! the reservation ends: when its entry is removed, when the lease of its worker expires, or after its time. A reservation
//! whose worker died is removed by any other worker, and the bucket drops entries after two hours in any case.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::kv::{self, CreateErrorKind};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::claim::ClaimedLog;
use crate::connect::Cluster;
use crate::error::{ClusterError, chain, is_wrong_last, unavailable};
use crate::members::Members;
use crate::storage::Bucket;

/// Age at which the bucket drops entries. It exceeds the maximum time of an activation.
const ENTRY_AGE_MAX: Duration = Duration::from_secs(2 * 3600);

/// Time for which a worker keeps a loaded version beyond the time of the activation.
const KEPT_BEYOND: Duration = Duration::from_secs(30);

/// Pause before a step is repeated.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Number of repetitions of a step while the servers do not answer.
const RETRIES_MAX: u32 = 50;

/// Maximum length of a reason in an answer, in bytes.
const REASON_BYTES_MAX: usize = 4096;

/// A version that workers load.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StagedVersion {
    /// Id of the tenant.
    pub tenant: i64,
    /// Id of the plugin.
    pub plugin: i64,
    /// Name of the plugin.
    pub name: String,
    /// Number of the version.
    pub version: u32,
}

/// A worker's functions that load versions.
pub trait StageVersions: Send + Sync + 'static {
    /// Loads a version without using it, and keeps it until [`end`](Self::end). The error is a message for the plugin's
    /// author.
    fn stage(&self, version: StagedVersion) -> BoxFuture<'static, Result<(), String>>;

    /// Applies the changes of the catalog, one of which may have activated the version, and drops it if it is not in use.
    fn end(&self, version: StagedVersion) -> BoxFuture<'static, ()>;
}

/// Reason why a version was not staged. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StagingError {
    /// Another worker stages a version of the plugin.
    #[error("worker '{0}' is activating a version of this plugin; activate again when it has ended")]
    Busy(String),
    /// A worker cannot load the version.
    #[error("worker '{worker}' cannot load it: {reason}")]
    Failed {
        /// Name of the worker.
        worker: String,
        /// Reason.
        reason: String,
    },
    /// Live workers have not answered in time.
    #[error(
        "no answer from {} within {} s; look at its log, stop it if it hangs, or raise \
         cluster.nats.activation-secs, and activate again; or activate without waiting (--no-wait)",
        .workers.iter().map(|worker| format!("worker '{worker}'")).collect::<Vec<_>>().join(", "), .time_max.as_secs_f64()
    )]
    Late {
        /// Names of the workers.
        workers: Vec<String>,
        /// Maximum time of an activation.
        time_max: Duration,
    },
    /// Another worker took the reservation, because this one seemed to be dead.
    #[error("another worker took over the activation of this plugin; activate again")]
    Lost,
    /// The servers did not answer. A retry may succeed.
    #[error("NATS cannot be used: {0}")]
    Unavailable(String),
}

/// A reservation in the bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Request {
    /// Random number, which distinguishes reservations of a plugin.
    id: u64,
    /// Log of the worker that serves the activation.
    log: String,
    /// Epoch of that worker.
    epoch: u64,
    /// Maximum time of the activation.
    millis_max: u64,
    /// The version to load; nothing until it is chosen.
    version: Option<StagedVersion>,
}

/// An answer in the bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Answer {
    /// Id of the reservation.
    id: u64,
    /// Epoch of the worker.
    epoch: u64,
    /// Reason why the worker cannot load the version.
    failed: Option<String>,
}

fn read<T: serde::de::DeserializeOwned>(value: &[u8]) -> Option<T> {
    serde_json::from_slice(value).ok()
}

fn write(value: &impl Serialize) -> Bytes {
    // Neither texts nor numbers fail to serialize.
    serde_json::to_vec(value).map(Bytes::from).unwrap_or_default()
}

fn request_key(tenant: i64, plugin: i64) -> String {
    format!("request.{tenant}.{plugin}")
}

fn answer_key(version: &StagedVersion, log: &str) -> String {
    format!("answer.{}.{}.{log}", version.tenant, version.plugin)
}

/// A worker's part in staged activations. Cheap to clone.
#[derive(Clone)]
pub struct Staging(Arc<Inner>);

struct Inner {
    cluster: Cluster,
    bucket: kv::Store,
    members: Arc<Members>,
    log: String,
    epoch: u64,
    time_max: Duration,
}

impl Cluster {
    /// Returns the part of the worker with this log in staged activations. Creates the bucket if it does not exist.
    pub async fn staging(
        &self,
        claimed: &ClaimedLog,
        members: Arc<Members>,
    ) -> Result<Staging, ClusterError> {
        let cluster = self.clone();
        let bucket = self.run(async move { open_bucket(&cluster).await }).await??;
        let (log, epoch) = (claimed.log().to_owned(), claimed.epoch());
        let (cluster, time_max) = (self.clone(), self.settings().activation());
        Ok(Staging(Arc::new(Inner { cluster, bucket, members, log, epoch, time_max })))
    }
}

async fn open_bucket(cluster: &Cluster) -> Result<kv::Store, ClusterError> {
    let (settings, jetstream) = (&cluster.0.settings, &cluster.0.jetstream);
    let description = "Staged activations of rollout-host";
    let bucket = Bucket { name: settings.activations_bucket(), description, age_max: ENTRY_AGE_MAX };
    bucket.open(jetstream, settings).await
}

impl Inner {
    /// Returns whether the worker of a reservation is dead, so that the reservation is over.
    fn is_orphaned(&self, request: &Request) -> bool {
        !self.members.is_live(&request.log, request.epoch)
    }

    /// Reads an entry, which is there even if the reservation was removed.
    async fn entry(&self, key: &str) -> Result<Option<kv::Entry>, String> {
        self.bucket.entry(key).await.map_err(|error| chain(&error))
    }

    /// Reads a reservation and its revision.
    async fn request(&self, key: &str) -> Result<Option<(Option<Request>, u64)>, String> {
        let found = self.entry(key).await?.filter(|entry| entry.operation == kv::Operation::Put);
        Ok(found.map(|entry| (read(&entry.value), entry.revision)))
    }

    /// Replaces a reservation with this revision.
    async fn replace(&self, key: &str, request: &Request, revision: u64) -> Result<u64, StagingError> {
        let mut retries = 0;
        loop {
            let why = match self.bucket.update(key, write(request), revision).await {
                Ok(revision) => return Ok(revision),
                Err(error) if is_wrong_last(&error) => match self.entry(key).await {
                    // An update that was not answered.
                    Ok(Some(found)) if read::<Request>(&found.value).as_ref() == Some(request) => {
                        return Ok(found.revision);
                    }
                    Ok(found) if age(found.as_ref().map(|found| found.revision), revision) == Age::Newer => {
                        return Err(StagingError::Lost);
                    }
                    Ok(_) => BEHIND.to_owned(),
                    Err(why) => why,
                },
                Err(error) => chain(&error),
            };
            pause(&mut retries, why).await?;
        }
    }

    /// Removes an entry if it has this revision.
    async fn remove(&self, key: &str, revision: u64) {
        let mut retries = 0;
        loop {
            let why = match self.bucket.purge_expect_revision(key, Some(revision)).await {
                Ok(()) => return,
                // Another worker has replaced or removed it.
                Err(error) if is_wrong_last(&error) => return,
                Err(error) => chain(&error),
            };
            if pause(&mut retries, why).await.is_err() {
                // Workers find out that its time is over, and the bucket drops it.
                return tracing::warn!(key, "an entry of an activation was not removed");
            }
        }
    }
}

/// Reason for reading an entry again.
const BEHIND: &str = "its answer does not have the newest reservation";

/// Age of the revision that a server has answered, compared with one that this worker knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Age {
    /// The server does not know the entry yet.
    Older,
    Same,
    /// The entry was replaced or removed.
    Newer,
}

fn age(found: Option<u64>, revision: u64) -> Age {
    match found.unwrap_or(0).cmp(&revision) {
        Ordering::Less => Age::Older,
        Ordering::Equal => Age::Same,
        Ordering::Greater => Age::Newer,
    }
}

/// Waits before a repetition, or gives up.
async fn pause(retries: &mut u32, why: String) -> Result<(), StagingError> {
    *retries += 1;
    if *retries > RETRIES_MAX {
        return Err(StagingError::Unavailable(why));
    }
    tokio::time::sleep(RETRY_PAUSE).await;
    Ok(())
}

/// A worker's exclusive right to activate a version of a plugin. It ends when this is dropped.
#[must_use]
pub struct Reservation {
    inner: Arc<Inner>,
    key: String,
    request: Request,
    revision: u64,
    /// Time at which the activation is abandoned.
    until: Instant,
    /// Answers of workers that died before they removed them, with their revisions.
    old_answers: Vec<(String, u64)>,
}

impl Staging {
    /// Returns the name of this worker.
    pub fn worker(&self) -> &str {
        &self.0.log
    }

    /// Returns the time at which an activation that begins now is abandoned.
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.0.time_max
    }

    /// Reserves a plugin for an activation that begins now. See [`Self::reserve_until`].
    pub async fn reserve(&self, tenant: i64, plugin: i64) -> Result<Reservation, StagingError> {
        self.reserve_until(tenant, plugin, self.deadline()).await
    }

    /// Reserves a plugin for an activation that is abandoned at a time. Waits for the activations of other workers, and fails if
    /// they have not ended until then. The caller reserves a plugin once at a time.
    pub async fn reserve_until(
        &self,
        tenant: i64,
        plugin: i64,
        until: Instant,
    ) -> Result<Reservation, StagingError> {
        let (inner, key) = (self.0.clone(), request_key(tenant, plugin));
        let request = Request {
            id: RandomState::new().build_hasher().finish(),
            log: inner.log.clone(),
            epoch: inner.epoch,
            millis_max: u64::try_from(inner.time_max.as_millis()).unwrap_or(u64::MAX),
            version: None,
        };
        let (mut holder, mut retries) = (inner.log.clone(), 0);
        loop {
            let reserved = |revision| {
                let (inner, key, request) = (inner.clone(), key.clone(), request.clone());
                Reservation { inner, key, request, revision, until, old_answers: Vec::new() }
            };
            match inner.bucket.create(&key, write(&request)).await {
                Ok(revision) => return Ok(reserved(revision)),
                Err(error) if error.kind() == CreateErrorKind::AlreadyExists || is_wrong_last(&error) => {}
                Err(error) => {
                    pause(&mut retries, chain(&error)).await?;
                    continue;
                }
            }
            match inner.request(&key).await {
                Ok(Some((Some(found), revision))) if found.id == request.id => return Ok(reserved(revision)),
                Ok(Some((found, revision))) => {
                    let is_own = |found: &Request| (&found.log, found.epoch) == (&request.log, request.epoch);
                    match found.filter(|found| !is_own(found) && !inner.is_orphaned(found)) {
                        Some(found) => holder = found.log,
                        None => match inner.replace(&key, &request, revision).await {
                            Ok(revision) => return Ok(reserved(revision)),
                            Err(StagingError::Lost) => {}
                            Err(error) => return Err(error),
                        },
                    }
                }
                Ok(None) => {}
                Err(why) => {
                    pause(&mut retries, why).await?;
                    continue;
                }
            }
            if Instant::now() >= until {
                return Err(StagingError::Busy(holder));
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }
}

impl Reservation {
    /// Publishes the version, and waits until all live workers have loaded it, or until the activation is abandoned. A worker
    /// whose lease expires no longer counts.
    pub async fn stage(&mut self, version: StagedVersion) -> Result<(), StagingError> {
        let inner = self.inner.clone();
        let away = |error: ClusterError| StagingError::Unavailable(error.to_string());
        let answers = answer_key(&version, "*");
        // Begun before any worker can answer.
        let mut watch = inner.watch(&answers).await.map_err(away)?;
        self.request.version = Some(version);
        self.revision = inner.replace(&self.key, &self.request, self.revision).await?;
        let mut own = inner.watch(&self.key).await.map_err(away)?;
        let mut changes = inner.members.changes();
        let mut given = BTreeMap::new();
        loop {
            let missing = self.missing(&given)?;
            if missing.is_empty() {
                return Ok(());
            }
            tokio::select! {
                entry = watch.next() => {
                    let Some(entry) = inner.received(entry, &mut watch, &answers).await else { continue };
                    let log = entry.key.rsplit('.').next().unwrap_or_default().to_owned();
                    let is_set = entry.operation == kv::Operation::Put;
                    match read::<Answer>(&entry.value).filter(|answer| answer.id == self.request.id) {
                        Some(answer) => drop(given.insert(log, answer)),
                        None if is_set => self.old_answers.push((entry.key, entry.revision)),
                        None => {}
                    }
                }
                entry = own.next() => {
                    let entry = inner.received(entry, &mut own, &self.key).await;
                    if age(entry.map(|entry| entry.revision), self.revision) == Age::Newer {
                        return Err(StagingError::Lost);
                    }
                }
                _ = changes.changed() => {}
                () = tokio::time::sleep_until(self.until) => {
                    return Err(StagingError::Late { workers: missing, time_max: inner.time_max });
                }
            }
        }
    }

    /// Returns the live workers that have not answered. Fails if one of them cannot load the version.
    fn missing(&self, given: &BTreeMap<String, Answer>) -> Result<Vec<String>, StagingError> {
        let mut missing = Vec::new();
        for (worker, epoch) in self.inner.members.staging() {
            match given.get(&worker).filter(|answer| answer.epoch == epoch) {
                None => missing.push(worker),
                Some(Answer { failed: None, .. }) => {}
                Some(Answer { failed: Some(reason), .. }) => {
                    return Err(StagingError::Failed { worker, reason: reason.clone() });
                }
            }
        }
        Ok(missing)
    }

    /// Checks that the reservation still belongs to this worker. Call it immediately before the catalog is changed.
    pub async fn confirm(&self) -> Result<(), StagingError> {
        let mut retries = 0;
        loop {
            let found = self.inner.entry(&self.key).await;
            let why = match found.map(|found| age(found.map(|found| found.revision), self.revision)) {
                Ok(Age::Same) => return Ok(()),
                Ok(Age::Newer) => return Err(StagingError::Lost),
                Ok(Age::Older) => BEHIND.to_owned(),
                Err(why) => why,
            };
            pause(&mut retries, why).await?;
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let (inner, key, revision) = (self.inner.clone(), std::mem::take(&mut self.key), self.revision);
        let old_answers = std::mem::take(&mut self.old_answers);
        let handle = inner.cluster.handle();
        handle.spawn(async move {
            inner.remove(&key, revision).await;
            for (key, revision) in old_answers {
                inner.remove(&key, revision).await;
            }
        });
    }
}

/// A version that this worker loads or has loaded.
struct Running {
    id: u64,
    /// Cancelled when the reservation has ended.
    end: CancellationToken,
    task: JoinHandle<()>,
}

impl Inner {
    /// Begins to watch the entries with such keys, including those that exist.
    async fn watch(&self, keys: &str) -> Result<kv::Watch, ClusterError> {
        self.bucket.watch_with_history(keys).await.map_err(unavailable)
    }

    /// Returns the entry that a watch has received. If it has received an error or has ended, begins the watch again after a
    /// pause, and returns none.
    async fn received(
        &self,
        entry: Option<Result<kv::Entry, kv::WatcherError>>,
        watch: &mut kv::Watch,
        keys: &str,
    ) -> Option<kv::Entry> {
        let why = match entry {
            Some(Ok(entry)) => return Some(entry),
            Some(Err(error)) => chain(&error),
            None => "it has ended".to_owned(),
        };
        tracing::warn!(why, keys, "the watch of activations has failed; beginning again");
        tokio::time::sleep(RETRY_PAUSE).await;
        if let Ok(again) = self.watch(keys).await {
            *watch = again;
        }
        None
    }
}

/// Keys of all reservations.
const REQUESTS: &str = "request.>";

impl Staging {
    /// Loads the versions that workers stage, until the returned handle is dropped. Returns when this worker would see a new
    /// one. Must be called within the runtime.
    pub async fn serve(&self, stages: Arc<dyn StageVersions>) -> Result<AbortOnDropHandle<()>, ClusterError> {
        let watch = self.0.watch(REQUESTS).await?;
        Ok(AbortOnDropHandle::new(tokio::spawn(self.clone().run(watch, stages))))
    }

    async fn run(self, mut watch: kv::Watch, stages: Arc<dyn StageVersions>) {
        let mut running = HashMap::new();
        loop {
            let entry = watch.next().await;
            if let Some(entry) = self.0.received(entry, &mut watch, REQUESTS).await {
                self.take(&entry, &mut running, &stages);
            }
        }
    }

    /// Begins to load the version of a new reservation, and ends the earlier one of its plugin.
    fn take(
        &self,
        entry: &kv::Entry,
        running: &mut HashMap<String, Running>,
        stages: &Arc<dyn StageVersions>,
    ) {
        running.retain(|_, one| !one.task.is_finished());
        let is_set = entry.operation == kv::Operation::Put;
        let request = if is_set { read::<Request>(&entry.value) } else { None };
        if let Some(one) = running.get(&entry.key) {
            if request.as_ref().is_some_and(|request| request.id == one.id) {
                return;
            }
            one.end.cancel();
        }
        let Some((request, version)) = request.and_then(|request| Some((request.clone(), request.version?)))
        else {
            return;
        };
        let (id, end) = (request.id, CancellationToken::new());
        let before = running.remove(&entry.key).map(|one| one.task);
        let one = StageOne {
            inner: self.0.clone(),
            key: entry.key.clone(),
            revision: entry.revision,
            request,
            version,
            end: end.clone(),
            stages: stages.clone(),
        };
        let task = tokio::spawn(async move {
            if let Some(before) = before {
                let _ = before.await;
            }
            one.run().await;
        });
        running.insert(entry.key.clone(), Running { id, end, task });
    }
}

/// The task of a worker for one reservation.
struct StageOne {
    inner: Arc<Inner>,
    key: String,
    revision: u64,
    request: Request,
    version: StagedVersion,
    end: CancellationToken,
    stages: Arc<dyn StageVersions>,
}

impl StageOne {
    async fn run(self) {
        // A process that has just started sees reservations of dead workers.
        if self.inner.is_orphaned(&self.request) {
            return self.inner.remove(&self.key, self.revision).await;
        }
        // It ended while an earlier version of the plugin was loaded.
        if self.end.is_cancelled() {
            return;
        }
        let time_max = Duration::from_millis(self.request.millis_max).min(ENTRY_AGE_MAX);
        let until = Instant::now() + time_max + KEPT_BEYOND;
        let staged = self.stages.stage(self.version.clone()).await;
        let StagedVersion { tenant, name, version, .. } = &self.version;
        match &staged {
            Ok(()) => {
                tracing::info!(tenant, plugin = name, version, by = self.request.log, "a version is staged");
            }
            Err(reason) => tracing::warn!(
                tenant,
                plugin = name,
                version,
                by = self.request.log,
                reason,
                "a version cannot be staged, and is not activated"
            ),
        }
        let answered = self.answer(staged.err(), until).await;
        self.ended(until).await;
        self.stages.end(self.version.clone()).await;
        if let Some(revision) = answered {
            self.inner.remove(&answer_key(&self.version, &self.inner.log), revision).await;
        }
    }

    /// Stores the answer of this worker, and returns its revision. Gives up when the reservation has ended.
    async fn answer(&self, failed: Option<String>, until: Instant) -> Option<u64> {
        let failed = failed.map(|mut reason| {
            reason.truncate(reason.floor_char_boundary(REASON_BYTES_MAX));
            reason
        });
        let answer = Answer { id: self.request.id, epoch: self.inner.epoch, failed };
        let key = answer_key(&self.version, &self.inner.log);
        while !self.end.is_cancelled() && Instant::now() < until {
            match self.inner.bucket.put(&key, write(&answer)).await {
                Ok(revision) => return Some(revision),
                Err(error) => tracing::warn!(%error, "the answer to a staged version was not stored"),
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
        None
    }

    /// Waits until the reservation has ended, or its worker is dead, or its time is over.
    async fn ended(&self, until: Instant) {
        let mut changes = self.inner.members.changes();
        loop {
            if self.inner.is_orphaned(&self.request) {
                return self.inner.remove(&self.key, self.revision).await;
            }
            tokio::select! {
                () = self.end.cancelled() => return,
                () = tokio::time::sleep_until(until) => return,
                _ = changes.changed() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_that_a_server_does_not_know_yet_is_not_lost() {
        assert_eq!(age(None, 5), Age::Older);
        assert_eq!(age(Some(4), 5), Age::Older);
        assert_eq!(age(Some(5), 5), Age::Same);
        assert_eq!(age(Some(6), 5), Age::Newer);
    }
}
