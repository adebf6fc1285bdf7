//! Reading of a claimed log, and rebuilding of journals from it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use bytes::Bytes;
use futures_util::StreamExt;
use rollout_journal::{Rebuild, read_record};
use tokio::sync::mpsc;

use crate::claim::ClaimedLog;
use crate::error::{ClusterError, LogDamage, unavailable};
use crate::message::{self, Chunk, Head, Joined};
use crate::writer;

/// Number of messages that the server sends at once. A message has at most 768 KiB.
const MESSAGES_AT_ONCE: usize = 32;

/// Time after which a request for messages ends with the messages delivered so far.
const BATCH_TIME_MAX: Duration = Duration::from_secs(1);

/// Pause before reading continues with another consumer.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Number of read messages that wait to be written to disk.
const MESSAGES_AHEAD: usize = 4;

/// Time without a message after which reading fails.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Largest difference between clocks that is tolerated where ages are compared.
const CLOCKS_DIFFER_MAX: Duration = Duration::from_secs(60);

/// A journal whose directory was written from the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RebuiltJournal {
    /// Name of the journal.
    pub name: String,
    /// Its directory.
    pub path: PathBuf,
    /// Number of its records.
    pub records: u64,
}

/// A message that was read and checked.
struct Read {
    sequence: u64,
    number: u64,
    is_fence: bool,
    chunks: Vec<Chunk>,
}

/// Position of reading.
struct Position {
    /// Head of the last message that was read.
    before: Option<Head>,
    /// Sequence from which reading continues.
    next: u64,
    /// Time when the last message was received.
    since: Instant,
}

impl ClaimedLog {
    /// Writes the directory of each journal that has records in the log. `path_of` returns its path, which must not
    /// exist. The log is read once, a few messages at a time. Damage is an error, and no directory is complete then.
    pub async fn rebuild(
        &self,
        segment_bytes: u64,
        path_of: impl Fn(&str) -> PathBuf + Send + 'static,
    ) -> Result<Vec<RebuiltJournal>, ClusterError> {
        let (sender, receiver) = mpsc::channel(MESSAGES_AHEAD);
        let log = self.log().to_owned();
        let write = move || write(receiver, &log, segment_bytes, path_of);
        let written = tokio::task::spawn_blocking(write);
        let read = self.read(&sender).await;
        drop(sender);
        let written = written.await.map_err(unavailable)?;
        // If writing ended first, its error is the reason.
        match (read, written) {
            (_, Err(error)) | (Err(error), Ok(_)) => Err(error),
            (Ok(()), Ok(journals)) => journals.finish(),
        }
    }

    fn damage(&self, sequence: u64, what: impl Into<String>) -> ClusterError {
        damage(self.log(), sequence, what)
    }

    fn subject(&self) -> String {
        self.cluster().0.settings.subject(self.log())
    }

    /// Reads all messages up to the fence of this claim.
    async fn read(&self, sender: &mpsc::Sender<Read>) -> Result<(), ClusterError> {
        let mut position = Position { before: None, next: 1, since: Instant::now() };
        loop {
            let why = match self.read_on(&mut position, sender).await {
                Ok(()) => return Ok(()),
                Err(ClusterError::Unavailable(why)) => why,
                Err(error) => return Err(error),
            };
            // A consumer is lost together with its server.
            if position.since.elapsed() > SILENCE_MAX {
                return Err(ClusterError::Unavailable(why));
            }
            tracing::debug!(why, log = self.log(), sequence = position.next, "reading the log continues");
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    /// Reads with one consumer, until the last message or the consumer's failure.
    async fn read_on(
        &self,
        position: &mut Position,
        sender: &mpsc::Sender<Read>,
    ) -> Result<(), ClusterError> {
        let config = pull::Config {
            filter_subject: self.subject(),
            deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: position.next },
            ack_policy: AckPolicy::None,
            inactive_threshold: SILENCE_MAX,
            memory_storage: true,
            num_replicas: 1,
            ..pull::Config::default()
        };
        let consumer = self.cluster().0.stream.create_consumer(config).await.map_err(unavailable)?;
        let mut delivered = 0;
        loop {
            let batch = consumer.batch().max_messages(MESSAGES_AT_ONCE).expires(BATCH_TIME_MAX);
            let mut batch = batch.messages().await.map_err(unavailable)?;
            let before = delivered;
            loop {
                // A dead server does not report that the request has expired.
                let next =
                    tokio::time::timeout(2 * BATCH_TIME_MAX, batch.next()).await.map_err(unavailable)?;
                let Some(message) = next else { break };
                let message = message.map_err(|error| ClusterError::Unavailable(error.to_string()))?;
                let about = message.info().map_err(|error| ClusterError::Unavailable(error.to_string()))?;
                delivered += 1;
                // A message that was lost in transit is not missing in the log.
                if about.consumer_sequence != delivered {
                    return Err(ClusterError::Unavailable("a message was lost in transit".to_owned()));
                }
                if self.take(position, about.stream_sequence, &message.payload, sender).await? {
                    return Ok(());
                }
            }
            if delivered == before {
                return Err(ClusterError::Unavailable("the servers deliver no more of the log".to_owned()));
            }
        }
    }

    /// Checks a message and sends it to the thread that writes. Returns whether it is the last one.
    async fn take(
        &self,
        position: &mut Position,
        sequence: u64,
        payload: &Bytes,
        sender: &mpsc::Sender<Read>,
    ) -> Result<bool, ClusterError> {
        let (head, body) = message::decode(payload).map_err(|what| self.damage(sequence, what))?;
        self.check(sequence, position.before, head)?;
        *position = Position { before: Some(head), next: sequence + 1, since: Instant::now() };
        let chunks = if head.is_fence { Vec::new() } else { self.chunks(sequence, body)? };
        let read = Read { sequence, number: head.number, is_fence: head.is_fence, chunks };
        // The receiver has failed, and its error is the reason.
        if sender.send(read).await.is_err() {
            return Ok(true);
        }
        let end = self.end();
        if sequence > end.sequence || (sequence == end.sequence && head.number != end.number) {
            return Err(self.damage(sequence, "it is not the fence that was appended"));
        }
        Ok(sequence == end.sequence)
    }

    fn chunks(&self, sequence: u64, body: Bytes) -> Result<Vec<Chunk>, ClusterError> {
        message::chunks(body).map_err(|what| self.damage(sequence, what))
    }

    /// Checks that a message follows the previous one.
    fn check(&self, sequence: u64, before: Option<Head>, head: Head) -> Result<(), ClusterError> {
        let Some(before) = before else { return self.check_first(sequence, head) };
        if head.number != before.number + 1 {
            let what = format!("its number is {} and the previous one is {}", head.number, before.number);
            return Err(self.damage(sequence, what));
        }
        let may_be = if head.is_fence { head.epoch > before.epoch } else { head.epoch == before.epoch };
        if !may_be {
            let what = format!("its epoch is {} and the previous one is {}", head.epoch, before.epoch);
            return Err(self.damage(sequence, what));
        }
        Ok(())
    }

    /// Checks that all messages before the first one were dropped because of their age.
    fn check_first(&self, sequence: u64, head: Head) -> Result<(), ClusterError> {
        if head.number == 1 {
            return Ok(());
        }
        let age_max = self.cluster().0.settings.log_age();
        let tolerance = CLOCKS_DIFFER_MAX.min(age_max / 10);
        let age = Duration::from_millis(writer::now().saturating_sub(head.time_before));
        if age + tolerance >= age_max {
            return Ok(());
        }
        let what = format!(
            "it is the first one and has number {}; the message before is {} s old and is missing, although messages \
             are kept for {} s",
            head.number,
            age.as_secs(),
            age_max.as_secs()
        );
        Err(self.damage(sequence, what))
    }
}

fn damage(log: &str, sequence: u64, what: impl Into<String>) -> ClusterError {
    let place = format!("sequence {sequence} of the stream");
    LogDamage { log: log.to_owned(), place, what: what.into() }.into()
}

/// Journals that are being rebuilt, by name.
#[derive(Default)]
struct Journals(BTreeMap<String, (PathBuf, Rebuild)>);

impl Journals {
    /// Completes the directories.
    fn finish(self) -> Result<Vec<RebuiltJournal>, ClusterError> {
        let finish = |(name, (path, rebuild)): (String, (PathBuf, Rebuild))| {
            Ok(RebuiltJournal { name, path, records: rebuild.finish()? })
        };
        self.0.into_iter().map(finish).collect()
    }
}

/// Writes the records of all messages that are received. Blocks.
fn write(
    mut messages: mpsc::Receiver<Read>,
    log: &str,
    segment_bytes: u64,
    path_of: impl Fn(&str) -> PathBuf,
) -> Result<Journals, ClusterError> {
    let (mut journals, mut joined) = (Journals::default(), Joined::default());
    let mut first = None;
    while let Some(Read { sequence, number, is_fence, chunks }) = messages.blocking_recv() {
        let was_dropped = *first.get_or_insert(number) > 1;
        if is_fence {
            joined.fence();
        }
        for chunk in chunks {
            let name = chunk.journal.clone();
            let records = joined.add(chunk, was_dropped).map_err(|what| damage(log, sequence, what))?;
            let records = records.unwrap_or_default();
            let mut rest = &records[..];
            while !rest.is_empty() {
                let (record, bytes) =
                    read_record(rest).map_err(|error| damage(log, sequence, error.to_string()))?;
                if !journals.0.contains_key(&name) {
                    let path = path_of(&name);
                    let rebuild = Rebuild::begin(&path, segment_bytes)?;
                    journals.0.insert(name.clone(), (path, rebuild));
                }
                if let Some((_, rebuild)) = journals.0.get_mut(&name) {
                    rebuild.append(record)?;
                }
                rest = &rest[bytes..];
            }
        }
    }
    Ok(journals)
}
