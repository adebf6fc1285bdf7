//! The log of a catalog that several processes share, and its components.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_nats::Subscriber;
use async_nats::jetstream::object_store::{self, ObjectStore};
use async_nats::jetstream::stream::{
    Config, DiscardPolicy, Info, LastRawMessageErrorKind, RetentionPolicy, StorageType, Stream,
};
use bytes::Bytes;
use futures_util::StreamExt;
use rollout_catalog::{AppendError, SharedError, SharedLog};
use rollout_wire::digest::Digest;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use crate::connect::Cluster;
use crate::error::{ClusterError, chain, unavailable};
use crate::message::MESSAGE_BYTES_MAX;
use crate::storage;
use crate::writer::{Publish, publish};

/// Maximum size of all changes together. A full log refuses changes; nothing is dropped.
pub(crate) const CHANGES_BYTES_MAX: i64 = 256 << 20;

/// Number of bytes of changes that are read at once.
const READ_BYTES_MAX: usize = 8 << 20;

/// Time after which a request for changes fails.
const TIME_MAX: Duration = Duration::from_secs(8);

/// Time after which the transfer of a component fails.
const COMPONENT_TIME_MAX: Duration = Duration::from_secs(600);

/// Pause before a step is repeated.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Beginning of a message whose change is too large for it, and in the object store. Its digest follows.
const REFERENCE: &[u8] = b"ROLLREF1";

/// The shared log of a catalog, on NATS. Cheap to clone.
#[derive(Clone)]
pub struct CatalogLog(Arc<Inner>);

struct Inner {
    cluster: Cluster,
    stream: Stream<Info>,
    objects: ObjectStore,
    subject: String,
}

/// Notifications of changes of a catalog.
pub struct CatalogChanges(Subscriber);

impl CatalogChanges {
    /// Waits for the next change, or until this time is over. Notifications may be lost.
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
                deny_purge: true,
                ..Config::default()
            };
            let jetstream = &cluster.0.jetstream;
            let stream = jetstream.get_or_create_stream(&wanted).await.map_err(unavailable)?;
            let differences = storage::differences(&wanted, &stream.cached_info().config);
            if !differences.is_empty() {
                return Err(ClusterError::Differs { what: format!("stream {}", wanted.name), differences });
            }
            let bucket = format!("{}-components", settings.prefix);
            let objects = match jetstream.get_object_store(&bucket).await {
                Ok(objects) => objects,
                // Creating it fails if it is there and could not be read.
                Err(_) => {
                    let config = object_store::Config {
                        bucket,
                        description: Some("Components of rollout-host by their SHA-256".to_owned()),
                        storage: StorageType::File,
                        num_replicas: settings.replicas,
                        ..object_store::Config::default()
                    };
                    jetstream.create_object_store(config).await.map_err(unavailable)?
                }
            };
            Ok(CatalogLog(Arc::new(Inner { cluster: cluster.clone(), stream, objects, subject })))
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

    /// Runs a future on the cluster's thread, and blocks this one until it has ended.
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
            Ok(Err(_)) | Err(_) => Err(away("NATS did not answer in time".to_owned()).into()),
        }
    }
}

fn away(why: String) -> SharedError {
    SharedError::Unavailable(why)
}

/// Returns the name of an object with a change.
fn change_name(digest: &str) -> String {
    format!("change-{digest}")
}

impl Inner {
    async fn append(&self, after: u64, change: Vec<u8>) -> Result<u64, AppendError> {
        let message: Bytes = if change.len() <= MESSAGE_BYTES_MAX {
            change.into()
        } else {
            let digest = Digest::of(&change).to_string();
            self.put(&change_name(&digest), &mut &change[..]).await?;
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
                return Err(away(why).into());
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    /// Reads changes until the deadline, but at least one if there is one.
    async fn read(&self, after: u64) -> Result<Vec<(u64, Vec<u8>)>, SharedError> {
        let until = Instant::now() + TIME_MAX / 2;
        let last = loop {
            let why = match self.stream.get_last_raw_message_by_subject(&self.subject).await {
                Ok(message) if message.sequence >= after => break message.sequence,
                Ok(message) => Err(format!(
                    "the log of the catalog ends with change {}, and change {after} was applied here",
                    message.sequence
                )),
                Err(error) if matches!(error.kind(), LastRawMessageErrorKind::NoMessageFound) => {
                    if after == 0 {
                        return Ok(Vec::new());
                    }
                    Err(format!("the log of the catalog is empty, and change {after} was applied here"))
                }
                Err(error) => Ok(chain(&error)),
            };
            // A server that has just been elected may be behind.
            if Instant::now() > until {
                return Err(why.map_or_else(SharedError::Damaged, away));
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        };
        let (mut changes, mut bytes) = (Vec::new(), 0);
        for sequence in after + 1..=last {
            let reading = self.read_one(sequence);
            let change = if changes.is_empty() {
                reading.await?
            } else {
                // What was read is kept, so that a long log is read in several calls.
                match tokio::time::timeout_at(until, reading).await {
                    Ok(Ok(change)) => change,
                    Ok(Err(SharedError::Unavailable(_))) | Err(_) => break,
                    Ok(Err(error)) => return Err(error),
                }
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
        let message = self.stream.get_raw_message(sequence).await.map_err(|error| match error.kind() {
            LastRawMessageErrorKind::NoMessageFound => {
                SharedError::Damaged(format!("change {sequence} of the catalog is missing"))
            }
            _ => away(chain(&error)),
        })?;
        match message.payload.strip_prefix(REFERENCE) {
            None => Ok(message.payload.to_vec()),
            Some(digest) => self.get(&change_name(&String::from_utf8_lossy(digest))).await,
        }
    }

    /// Stores an object, unless there is one with this name. Names have the digest of the contents.
    async fn put(
        &self,
        name: &str,
        contents: &mut (impl tokio::io::AsyncRead + Unpin),
    ) -> Result<(), SharedError> {
        if self.objects.info(name).await.is_ok() {
            return Ok(());
        }
        self.objects.put(name, contents).await.map(drop).map_err(|error| away(chain(&error)))
    }

    async fn get(&self, name: &str) -> Result<Vec<u8>, SharedError> {
        let mut object = self.objects.get(name).await.map_err(|error| away(chain(&error)))?;
        let mut bytes = Vec::new();
        object.read_to_end(&mut bytes).await.map_err(|error| away(chain(&error)))?;
        Ok(bytes)
    }
}

impl SharedLog for CatalogLog {
    fn append(&self, after: u64, change: &[u8]) -> Result<u64, AppendError> {
        let (inner, change) = (self.0.clone(), change.to_vec());
        self.block(TIME_MAX, async move { inner.append(after, change).await })
    }

    fn read(&self, after: u64) -> Result<Vec<(u64, Vec<u8>)>, SharedError> {
        let inner = self.0.clone();
        self.block(TIME_MAX, async move { inner.read(after).await })
    }

    fn put_component(&self, digest: Digest, file: &Path) -> Result<(), SharedError> {
        let (inner, file) = (self.0.clone(), file.to_owned());
        self.block(COMPONENT_TIME_MAX, async move {
            let mut contents = tokio::fs::File::open(&file).await.map_err(|error| away(chain(&error)))?;
            inner.put(&digest.to_string(), &mut contents).await
        })
    }

    fn remove_component(&self, digest: Digest) -> Result<(), SharedError> {
        let inner = self.0.clone();
        self.block(TIME_MAX, async move {
            let removed = inner.objects.delete(digest.to_string()).await;
            removed.map_err(|error| away(chain(&error)))
        })
    }

    fn fetch_component(&self, digest: Digest, file: &Path) -> Result<(), SharedError> {
        let (inner, file) = (self.0.clone(), file.to_owned());
        self.block(COMPONENT_TIME_MAX, async move {
            let io = |error: std::io::Error| away(chain(&error));
            let name = digest.to_string();
            let mut object = inner.objects.get(&name).await.map_err(|error| away(chain(&error)))?;
            let mut file = tokio::fs::File::create(&file).await.map_err(io)?;
            tokio::io::copy(&mut object, &mut file).await.map_err(io)?;
            file.flush().await.map_err(io)
        })
    }
}
