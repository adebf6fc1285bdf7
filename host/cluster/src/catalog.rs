//! The log of a catalog that several processes share, and its components.

use std::future::Future;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::Subscriber;
use async_nats::jetstream::stream::{
    Config, DiscardPolicy, Info, LastRawMessageErrorKind, RetentionPolicy, StorageType, Stream,
};
use bytes::Bytes;
use futures_util::StreamExt;
use rollout_catalog::{AppendError, ChangeKind, LogExtent, SharedError, SharedLog};
use rollout_wire::digest::Digest;
use tokio::time::Instant;

use crate::connect::Cluster;
use crate::error::{ClusterError, chain, unavailable};
use crate::message::MESSAGE_BYTES_MAX;
use crate::objects::{Objects, away};
use crate::storage;
use crate::writer::{Publish, publish};

/// Maximum size of all changes together. A full log refuses changes instead of dropping old ones.
pub(crate) const CHANGES_BYTES_MAX: i64 = 256 << 20;

/// Size of the log above which it is cut, whatever the number of changes.
const LONG_BYTES: u64 = 32 << 20;

/// Part of the maximum size that is reserved for checkpoints, so that a full log can still be cut.
const RESERVED_BYTES: u64 = 1 << 20;

/// Number of bytes of changes that are read at once.
const READ_BYTES_MAX: usize = 8 << 20;

/// Time after which a request for changes fails.
const TIME_MAX: Duration = Duration::from_secs(8);

/// Time after which the transfer of a component or a snapshot fails.
const OBJECT_TIME_MAX: Duration = Duration::from_secs(600);

/// Pause before a step is repeated.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Beginning of a message that stands for a change in the object store, because the change is larger than a message. The
/// change's digest follows.
const REFERENCE: &[u8] = b"ROLLREF1";

/// The shared log of a catalog, on NATS. Cheap to clone.
#[derive(Clone)]
pub struct CatalogLog(Arc<Inner>);

struct Inner {
    cluster: Cluster,
    stream: Stream<Info>,
    objects: Objects,
    subject: String,
    /// State and size in bytes of the log when it was last read.
    extent: Mutex<(LogExtent, u64)>,
}

/// Notifications of changes of a catalog.
pub struct CatalogChanges(Subscriber);

impl CatalogChanges {
    /// Waits for the next change, but at most this time. Notifications may be lost.
    pub async fn next(&mut self, time_max: Duration) {
        let next = tokio::time::timeout(time_max, self.0.next()).await;
        // The client has ended.
        if let Ok(None) = next {
            tokio::time::sleep(time_max).await;
        }
    }
}

impl Cluster {
    /// Returns the shared log of the catalog. Creates the stream and the object store if they do not exist.
    pub async fn catalog(&self) -> Result<CatalogLog, ClusterError> {
        let cluster = self.clone();
        self.run(async move {
            let settings = &cluster.0.settings;
            let subject = format!("{}.catalog", settings.prefix);
            let wanted = Config {
                name: format!("{}-catalog", settings.prefix),
                description: Some("Changes of the catalog of rollout-host".to_owned()),
                subjects: vec![subject.clone()],
                max_bytes: CHANGES_BYTES_MAX,
                max_age: Duration::ZERO,
                max_messages: -1,
                max_messages_per_subject: -1,
                discard: DiscardPolicy::New,
                retention: RetentionPolicy::Limits,
                storage: StorageType::File,
                num_replicas: settings.replicas,
                deny_delete: true,
                // Purging removes the changes before a snapshot.
                deny_purge: false,
                ..Config::default()
            };
            let jetstream = &cluster.0.jetstream;
            let stream = jetstream.get_or_create_stream(&wanted).await.map_err(unavailable)?;
            let differences = storage::differences(&wanted, &stream.cached_info().config);
            if !differences.is_empty() {
                return Err(ClusterError::Differs { what: format!("stream {}", wanted.name), differences });
            }
            let bucket = format!("{}-components", settings.prefix);
            let objects = Objects::open(jetstream, bucket, settings.replicas).await?;
            let (cluster, extent) = (cluster.clone(), Mutex::default());
            Ok(CatalogLog(Arc::new(Inner { cluster, stream, objects, subject, extent })))
        })
        .await?
    }
}

impl CatalogLog {
    /// Returns notifications of the changes from now on.
    pub async fn changes(&self) -> Result<CatalogChanges, ClusterError> {
        let client = self.0.cluster.0.jetstream.client();
        Ok(CatalogChanges(client.subscribe(self.0.subject.clone()).await.map_err(unavailable)?))
    }

    /// Runs a future on the cluster's thread, and blocks the calling thread until it has ended.
    fn block<T: Send + 'static, E: From<SharedError> + Send + 'static>(
        &self,
        time_max: Duration,
        future: impl Future<Output = Result<T, E>> + Send + 'static,
    ) -> Result<T, E> {
        let (done, is_done) = std::sync::mpsc::sync_channel(1);
        self.0.cluster.handle().spawn(async move {
            let _ = done.send(tokio::time::timeout(time_max, future).await);
        });
        match is_done.recv() {
            Ok(Ok(result)) => result,
            Ok(Err(_)) | Err(_) => {
                Err(SharedError::Unavailable("NATS did not answer in time".to_owned()).into())
            }
        }
    }

    /// Stores a file as an object.
    fn put_file(&self, name: String, file: &Path) -> Result<(), SharedError> {
        let (inner, file) = (self.0.clone(), file.to_owned());
        self.block(OBJECT_TIME_MAX, async move {
            let mut contents = tokio::fs::File::open(&file).await.map_err(away)?;
            inner.objects.put(&name, &mut contents).await
        })
    }

    /// Writes an object to a file. Returns false if there is none with this name.
    fn fetch_file(&self, name: String, file: &Path) -> Result<bool, SharedError> {
        let (inner, file) = (self.0.clone(), file.to_owned());
        self.block(OBJECT_TIME_MAX, async move {
            let mut to = tokio::fs::File::create(&file).await.map_err(away)?;
            inner.objects.get(&name, &mut to).await
        })
    }
}

/// Prefixes of the names of objects that belong to a sequence of the log, which follows. Such an object is needed until the
/// log begins after the sequence.
const CHANGE_NAME: &str = "change-";
const SNAPSHOT_NAME: &str = "snapshot-";

/// Returns whether a change of this length fits into a log of this many bytes. Only checkpoints may use the reserve.
fn has_room(bytes: u64, length: usize, kind: ChangeKind) -> bool {
    let reserved = match kind {
        ChangeKind::Rows => RESERVED_BYTES,
        ChangeKind::Checkpoint => 0,
    };
    bytes + length as u64 <= CHANGES_BYTES_MAX.unsigned_abs() - reserved
}

/// Returns the name of an object with a change.
fn change_name(sequence: u64, digest: &str) -> String {
    format!("{CHANGE_NAME}{sequence}-{digest}")
}

/// Returns the name of the object with the snapshot of a checkpoint.
pub(crate) fn snapshot_name(checkpoint: u64) -> String {
    format!("{SNAPSHOT_NAME}{checkpoint}")
}

/// Returns the sequence of the change or checkpoint that an object belongs to, or `None` for a component.
fn sequence_of(object: &str) -> Option<u64> {
    let rest = object.strip_prefix(CHANGE_NAME).or_else(|| object.strip_prefix(SNAPSHOT_NAME))?;
    rest.split('-').next()?.parse().ok()
}

impl Inner {
    /// Reads the extent of the log from the stream's leader.
    async fn read_extent(&self) -> Result<LogExtent, String> {
        let info = self.stream.get_info().await.map_err(|error| chain(&error))?;
        let state = info.state;
        let extent = LogExtent {
            first: state.first_sequence,
            last: state.last_sequence,
            is_long: state.messages > self.cluster.0.settings.catalog_changes_max || state.bytes > LONG_BYTES,
        };
        *self.extent.lock().unwrap_or_else(PoisonError::into_inner) = (extent, state.bytes);
        Ok(extent)
    }

    async fn append(&self, after: u64, change: Vec<u8>, kind: ChangeKind) -> Result<u64, AppendError> {
        let (_, bytes) = *self.extent.lock().unwrap_or_else(PoisonError::into_inner);
        if !has_room(bytes, change.len(), kind) {
            let why = format!("its log has {bytes} bytes, which is the maximum, and no worker could cut it");
            return Err(SharedError::Unavailable(why).into());
        }
        let message: Bytes = if change.len() <= MESSAGE_BYTES_MAX {
            change.into()
        } else {
            let digest = Digest::of(&change).to_string();
            self.objects.put(&change_name(after + 1, &digest), &mut &change[..]).await?;
            [REFERENCE, digest.as_bytes()].concat().into()
        };
        let until = Instant::now() + TIME_MAX / 2;
        loop {
            let why = match publish(&self.cluster.0.jetstream, &self.subject, after, &message).await {
                Ok(sequence) => return Ok(sequence),
                // It may be this change, whose acknowledgement was lost.
                Err(Publish::WrongLast) => match self.stream.get_raw_message(after + 1).await {
                    Ok(found) if found.payload == message => return Ok(after + 1),
                    Ok(_) => return Err(AppendError::Behind),
                    Err(error) => chain(&error),
                },
                Err(Publish::Unknown(why)) => why,
            };
            if Instant::now() > until {
                return Err(SharedError::Unavailable(why).into());
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    /// Reads changes until the deadline, but at least one if there is one.
    async fn read(&self, after: u64) -> Result<Vec<(u64, Vec<u8>)>, SharedError> {
        let until = Instant::now() + TIME_MAX / 2;
        let extent = loop {
            let why = match self.read_extent().await {
                Ok(LogExtent { last, .. }) if last < after => Err(format!(
                    "the log of the catalog ends with change {last}, and change {after} was applied here"
                )),
                Ok(LogExtent { first, last, .. }) if first > last && last > 0 => {
                    Err(format!("the log of the catalog is empty, and had {last} changes; it was purged"))
                }
                Ok(extent) => break extent,
                Err(error) => Ok(error),
            };
            // A server that has just been elected may be behind.
            if Instant::now() > until {
                return Err(why.map_or_else(SharedError::Damaged, SharedError::Unavailable));
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        };
        let (mut changes, mut bytes) = (Vec::new(), 0);
        for sequence in extent.first.max(after + 1)..=extent.last {
            let reading = self.read_one(sequence);
            let change = if changes.is_empty() {
                reading.await
            } else {
                // The changes that were read are returned, so that several calls can read a long log.
                match tokio::time::timeout_at(until, reading).await {
                    Ok(Err(SharedError::Unavailable(_))) | Err(_) => break,
                    Ok(change) => change,
                }
            };
            let change = match change {
                Ok(change) => change,
                // Another process may have cut the log meanwhile.
                Err(error @ SharedError::Damaged(_)) => {
                    let now = self.read_extent().await.map_err(SharedError::Unavailable)?;
                    if now.first <= sequence {
                        return Err(error);
                    }
                    if changes.is_empty() {
                        return Box::pin(self.read(after)).await;
                    }
                    break;
                }
                Err(error) => return Err(error),
            };
            bytes += change.len();
            changes.push((sequence, change));
            if bytes > READ_BYTES_MAX {
                break;
            }
        }
        Ok(changes)
    }

    /// Reads the change with this sequence.
    async fn read_one(&self, sequence: u64) -> Result<Vec<u8>, SharedError> {
        let missing = |what: &str| SharedError::Damaged(format!("change {sequence} of the catalog {what}"));
        let message = self.stream.get_raw_message(sequence).await.map_err(|error| match error.kind() {
            LastRawMessageErrorKind::NoMessageFound => missing("is missing"),
            _ => away(error),
        })?;
        let Some(digest) = message.payload.strip_prefix(REFERENCE) else {
            return Ok(message.payload.to_vec());
        };
        let mut bytes = Vec::new();
        let name = change_name(sequence, &String::from_utf8_lossy(digest));
        if self.objects.get(&name, &mut bytes).await? {
            return Ok(bytes);
        }
        Err(missing(&format!("is missing in the object store ({name})")))
    }

    /// Removes the changes before a checkpoint, and the objects of all changes and checkpoints that the log no longer has.
    async fn cut(&self, checkpoint: u64) -> Result<(), SharedError> {
        let purged = self.stream.purge().sequence(checkpoint).await;
        purged.map_err(away)?;
        let LogExtent { first, .. } = self.read_extent().await.map_err(SharedError::Unavailable)?;
        // A change that is not yet in the log can no longer be stored with a sequence before the checkpoint.
        let is_unneeded = |name: &str| sequence_of(name).is_some_and(|sequence| sequence < first);
        self.objects.remove_all(is_unneeded).await
    }
}

impl SharedLog for CatalogLog {
    fn append(&self, after: u64, change: &[u8], kind: ChangeKind) -> Result<u64, AppendError> {
        let (inner, change) = (self.0.clone(), change.to_vec());
        self.block(TIME_MAX, async move { inner.append(after, change, kind).await })
    }

    fn read(&self, after: u64) -> Result<Vec<(u64, Vec<u8>)>, SharedError> {
        let inner = self.0.clone();
        self.block(TIME_MAX, async move { inner.read(after).await })
    }

    fn extent(&self) -> LogExtent {
        self.0.extent.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    fn put_snapshot(&self, checkpoint: u64, file: &Path) -> Result<(), SharedError> {
        self.put_file(snapshot_name(checkpoint), file)
    }

    fn has_snapshot(&self, checkpoint: u64) -> Result<bool, SharedError> {
        let inner = self.0.clone();
        self.block(TIME_MAX, async move { inner.objects.has(&snapshot_name(checkpoint)).await })
    }

    fn fetch_snapshot(&self, checkpoint: u64, file: &Path) -> Result<bool, SharedError> {
        self.fetch_file(snapshot_name(checkpoint), file)
    }

    fn cut(&self, checkpoint: u64) -> Result<(), SharedError> {
        let inner = self.0.clone();
        self.block(OBJECT_TIME_MAX, async move { inner.cut(checkpoint).await })
    }

    fn put_component(&self, digest: Digest, file: &Path) -> Result<(), SharedError> {
        let (inner, name) = (self.0.clone(), digest.to_string());
        if self.block(TIME_MAX, async move { inner.objects.touch(&name).await })? {
            return Ok(());
        }
        self.put_file(digest.to_string(), file)
    }

    fn component_version(&self, digest: Digest) -> Result<Option<u64>, SharedError> {
        let inner = self.0.clone();
        self.block(TIME_MAX, async move { inner.objects.version(&digest.to_string()).await })
    }

    fn remove_component(&self, digest: Digest, version: u64) -> Result<(), SharedError> {
        let inner = self.0.clone();
        self.block(TIME_MAX, async move { inner.objects.remove(&digest.to_string(), version).await })
    }

    fn fetch_component(&self, digest: Digest, file: &Path) -> Result<(), SharedError> {
        if self.fetch_file(digest.to_string(), file)? {
            return Ok(());
        }
        Err(SharedError::Unavailable(format!("the component {digest} is not in the object store")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_checkpoints_may_use_the_reserve_of_the_log_however_short_a_change_is() {
        let full = CHANGES_BYTES_MAX.unsigned_abs() - RESERVED_BYTES;
        assert!(has_room(full - 1, 1, ChangeKind::Rows));
        assert!(!has_room(full, 1, ChangeKind::Rows));
        assert!(has_room(full, 200, ChangeKind::Checkpoint));
        assert!(!has_room(CHANGES_BYTES_MAX.unsigned_abs(), 1, ChangeKind::Checkpoint));
    }
}
