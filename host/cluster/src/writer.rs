//! The writer of a claimed log.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_nats::HeaderMap;
use async_nats::header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE;
use async_nats::jetstream::context::Context;
use async_nats::jetstream::stream::LastRawMessageErrorKind;
use bytes::Bytes;
use rollout_journal::{Acknowledge, Replica, ReplicaError, ReplicaSettings};
use tokio::sync::{mpsc, watch};
use tokio_util::task::AbortOnDropHandle;

use crate::connect::Cluster;
use crate::error::{chain, is_wrong_last};
use crate::message::{self, Draft, Head, NAME_BYTES_MAX, Outgoing};
use crate::storage::Stream;

/// Pause before an append is repeated. It doubles with each repetition, up to the maximum.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(2);

/// Time for which servers may answer with an older end of the log than they have acknowledged, as a newly elected server
/// may. After this time, the acknowledged messages count as lost.
const OLDER_TIME_MAX: Duration = Duration::from_secs(60);

/// Number of unacknowledged bytes of each journal above which its writer waits. A process has many journals.
const JOURNAL_BYTES_MAX: usize = 8 << 20;

/// Number of unacknowledged bytes of all journals above which their writers wait.
const LOG_BYTES_MAX: usize = 64 << 20;

/// Number of batches from which the size of the next message is computed. A message with more batches grows.
const BATCHES_COUNTED_MAX: usize = 256;

/// The position of a log's end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) epoch: u64,
    /// Number of the last message.
    pub(crate) number: u64,
    /// Sequence of the last message in the stream.
    pub(crate) sequence: u64,
    /// Time of the last message, in milliseconds since 1970.
    pub(crate) time: u64,
}

/// Appends to a claimed log. The records of all journals are in one sequence of messages, one of which is in progress
/// at a time; records that arrive in the meantime are in the next one.
pub struct LogWriter {
    records: mpsc::UnboundedSender<Appended>,
    budget: Arc<Budget>,
    fenced: watch::Sender<Option<ReplicaError>>,
    refresh_every: Duration,
    /// The end of the acknowledged messages.
    end: watch::Receiver<End>,
    _task: AbortOnDropHandle<()>,
    /// Keeps the connection open.
    _cluster: Cluster,
}

/// Unacknowledged bytes of all journals.
#[derive(Default)]
struct Budget {
    held: Mutex<Held>,
    changed: Condvar,
}

/// Batches of records that are not acknowledged, and their bytes.
#[derive(Clone, Copy, Default)]
struct Held {
    batches: usize,
    bytes: usize,
}

impl Budget {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, bytes: usize) {
        let mut held = self.held();
        held.batches += 1;
        held.bytes += bytes;
    }

    fn release(&self, bytes: usize) {
        let mut held = self.held();
        held.batches -= 1;
        held.bytes -= bytes;
        drop(held);
        self.changed.notify_all();
    }

    /// Waits at most this time until there is room, and returns whether there is.
    fn wait(&self, time_max: Duration) -> bool {
        let is_full = |held: &mut Held| held.bytes > LOG_BYTES_MAX;
        let waited = self.changed.wait_timeout_while(self.held(), time_max, is_full);
        let (held, _) = waited.unwrap_or_else(PoisonError::into_inner);
        held.bytes <= LOG_BYTES_MAX
    }
}

struct Appended {
    journal: Arc<str>,
    records: Bytes,
    pending: Pending,
}

/// A batch that waits to be stored. Its journal is always notified, if only by `Drop`.
struct Pending {
    done: Option<Acknowledge>,
    bytes: usize,
    budget: Arc<Budget>,
}

impl Pending {
    fn finish(mut self, result: Result<(), ReplicaError>) {
        if let Some(done) = self.done.take() {
            done(result);
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.budget.release(self.bytes);
        if let Some(done) = self.done.take() {
            done(Err(ReplicaError::Failed("its writer has ended".to_owned())));
        }
    }
}

impl LogWriter {
    pub(crate) fn start(
        cluster: &Cluster,
        log: &str,
        ends: watch::Sender<End>,
        fenced: watch::Sender<Option<ReplicaError>>,
    ) -> Self {
        let (records, appended) = mpsc::unbounded_channel();
        let settings = &cluster.0.settings;
        let refresh_every = settings.log_age() / 4;
        let (end, end_now) = (*ends.borrow(), ends.subscribe());
        let task = Task {
            jetstream: cluster.0.jetstream.clone(),
            stream: cluster.0.stream.clone(),
            subject: settings.subject(log),
            end,
            ends,
            appended,
            waiting: VecDeque::new(),
            idle_max: refresh_every,
            fenced: fenced.clone(),
        };
        let task = AbortOnDropHandle::new(cluster.handle().spawn(task.run()));
        let budget = Arc::default();
        Self { records, budget, fenced, refresh_every, end: end_now, _task: task, _cluster: cluster.clone() }
    }

    /// Returns the settings of a journal's replica. The name, of at most 255 bytes, identifies the journal in the log,
    /// so each journal of a process needs a name of its own.
    pub fn replica(&self, journal: &str) -> ReplicaSettings {
        debug_assert!(journal.len() <= NAME_BYTES_MAX, "the name of a journal is too long");
        let (records, budget) = (self.records.clone(), self.budget.clone());
        let replica = JournalReplica { journal: journal.into(), records, budget };
        ReplicaSettings {
            bytes_max: JOURNAL_BYTES_MAX,
            refresh_every: self.refresh_every,
            ..ReplicaSettings::new(Arc::new(replica))
        }
    }

    /// Waits until another process has claimed the log, or until the log cannot be continued. No record is stored from then
    /// on: the caller stops its guests and exits.
    pub async fn fenced(&self) -> ReplicaError {
        let mut fenced = self.fenced.subscribe();
        let found = fenced.wait_for(Option::is_some).await.ok().and_then(|why| why.clone());
        match found {
            Some(why) => why,
            None => std::future::pending().await,
        }
    }

    /// Returns the number of batches of records that are not acknowledged, and their bytes.
    pub fn unacknowledged(&self) -> (usize, usize) {
        let Held { batches, bytes } = *self.budget.held();
        (batches, bytes)
    }

    /// Returns the number of messages in the log so far, dropped ones included.
    pub fn messages(&self) -> u64 {
        self.end.borrow().number
    }
}

/// The part of a log that belongs to one journal.
struct JournalReplica {
    journal: Arc<str>,
    records: mpsc::UnboundedSender<Appended>,
    budget: Arc<Budget>,
}

impl Replica for JournalReplica {
    fn append(&self, records: Bytes, done: Acknowledge) {
        self.budget.take(records.len());
        let pending = Pending { done: Some(done), bytes: records.len(), budget: self.budget.clone() };
        // If the writer has ended, dropping the batch notifies its journal.
        let _ = self.records.send(Appended { journal: self.journal.clone(), records, pending });
    }

    fn wait_for_room(&self, time_max: Duration) -> bool {
        self.budget.wait(time_max)
    }
}

struct Task {
    jetstream: Context,
    stream: Stream,
    subject: String,
    end: End,
    ends: watch::Sender<End>,
    appended: mpsc::UnboundedReceiver<Appended>,
    waiting: VecDeque<(Outgoing, Pending)>,
    /// Time without records after which an empty message is appended, so that a log is never empty.
    idle_max: Duration,
    fenced: watch::Sender<Option<ReplicaError>>,
}

impl Task {
    async fn run(mut self) {
        loop {
            if self.waiting.is_empty() {
                match tokio::time::timeout(self.idle_max, self.appended.recv()).await {
                    Ok(Some(appended)) => self.queue(appended),
                    Ok(None) => return,
                    Err(_) => {}
                }
            }
            while let Ok(appended) = self.appended.try_recv() {
                self.queue(appended);
            }
            let (draft, done) = self.next_message();
            match self.append(draft).await {
                Ok(()) => done.into_iter().for_each(|pending| pending.finish(Ok(()))),
                Err(error) => {
                    tracing::error!(%error, subject = self.subject, "the log is not continued");
                    self.fenced.send_replace(Some(error.clone()));
                    done.into_iter().for_each(|pending| pending.finish(Err(error.clone())));
                    return self.refuse(&error).await;
                }
            }
        }
    }

    fn queue(&mut self, Appended { journal, records, pending }: Appended) {
        self.waiting.push_back((Outgoing::new(journal, records), pending));
    }

    /// Returns the next message, and the waiters to notify when it is stored.
    fn next_message(&mut self) -> (Draft, Vec<Pending>) {
        let first = self.waiting.iter().take(BATCHES_COUNTED_MAX);
        let bytes = first.map(|(outgoing, _)| outgoing.message_bytes()).sum();
        let (mut draft, mut done) = (Draft::new(bytes), Vec::new());
        while let Some((outgoing, _)) = self.waiting.front_mut() {
            let is_full = outgoing.fill(&mut draft);
            if is_full || !outgoing.is_empty() {
                break;
            }
            done.extend(self.waiting.pop_front().map(|(_, pending)| pending));
        }
        (draft, done)
    }

    /// Refuses all records from now on.
    async fn refuse(mut self, error: &ReplicaError) {
        for (_, pending) in self.waiting.drain(..) {
            pending.finish(Err(error.clone()));
        }
        while let Some(Appended { pending, .. }) = self.appended.recv().await {
            pending.finish(Err(error.clone()));
        }
    }

    /// Appends a message and waits until it is stored, for as long as that takes.
    async fn append(&mut self, draft: Draft) -> Result<(), ReplicaError> {
        let End { epoch, number, time, .. } = self.end;
        let head = Head { is_fence: false, epoch, number: number + 1, time_before: time };
        let message = draft.finish(head);
        let (mut was_reported, mut pause) = (false, RETRY_PAUSE);
        // Time of the first of the consecutive answers that are older than the last acknowledged message.
        let mut older_since = None;
        loop {
            if let Some(error) = self.fenced.borrow().clone() {
                return Err(error);
            }
            let time = now();
            let stored = match publish(&self.jetstream, &self.subject, self.end.sequence, &message).await {
                Ok(sequence) => Some(sequence),
                Err(Publish::WrongLast) => match self.resolve(head).await? {
                    Resolved::Stored(sequence) => Some(sequence),
                    Resolved::NotStored => {
                        older_since = None;
                        None
                    }
                    Resolved::Unknown => None,
                    Resolved::Older(what) => {
                        let since = older_since.get_or_insert_with(Instant::now);
                        if since.elapsed() > OLDER_TIME_MAX {
                            return Err(ReplicaError::Failed(format!("the servers lost its end: {what}")));
                        }
                        tracing::warn!(what, subject = self.subject, "the log ends too early; retrying");
                        None
                    }
                },
                Err(Publish::Unknown(why)) => {
                    if !std::mem::replace(&mut was_reported, true) {
                        tracing::warn!(why, subject = self.subject, "the log does not answer; retrying");
                    }
                    None
                }
            };
            if let Some(sequence) = stored {
                if was_reported {
                    tracing::info!(subject = self.subject, "the log answers again");
                }
                self.end = End { epoch, number: head.number, sequence, time };
                self.ends.send_replace(self.end);
                return Ok(());
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY_PAUSE_MAX);
        }
    }

    /// Reads the last message of the log, to find out whether the refused one is stored.
    async fn resolve(&mut self, wanted: Head) -> Result<Resolved, ReplicaError> {
        let End { number, sequence, .. } = self.end;
        let last = match last_message(&self.stream, &self.subject).await {
            Ok(Some(last)) => last,
            Ok(None) => {
                let what = format!("{} has no messages, and number {number} was acknowledged", self.subject);
                return Ok(Resolved::Older(what));
            }
            Err(LastError::Unavailable(_)) => return Ok(Resolved::Unknown),
            Err(LastError::Damaged { sequence, what }) => {
                let why = format!("message {sequence} of {} is damaged: {what}", self.subject);
                return Err(ReplicaError::Failed(why));
            }
        };
        if last.head == wanted {
            return Ok(Resolved::Stored(last.sequence));
        }
        if last.head.epoch > wanted.epoch {
            return Err(ReplicaError::Fenced(format!("its epoch is {}", last.head.epoch)));
        }
        // The server does not have the message, or is still storing the copy that was sent before.
        if last.sequence == sequence && last.head.number == number {
            return Ok(Resolved::NotStored);
        }
        if last.head.number < number && last.sequence < sequence {
            let what = format!(
                "the last message of {} has number {}, and number {number} was acknowledged",
                self.subject, last.head.number
            );
            return Ok(Resolved::Older(what));
        }
        let why = format!(
            "message {} of {} has epoch {} and number {}, which this process did not append",
            last.sequence, self.subject, last.head.epoch, last.head.number
        );
        Err(ReplicaError::Failed(why))
    }
}

/// State of a message whose append was refused because of the sequence that it expects.
enum Resolved {
    /// It is stored with this sequence.
    Stored(u64),
    /// It is not stored, and the message before it is the last one.
    NotStored,
    /// The server has an older end of the log, as the text says. Another server may have the newer one.
    Older(String),
    /// No server has answered.
    Unknown,
}

/// Returns the time in milliseconds since 1970.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Failure of publishing a message.
pub(crate) enum Publish {
    /// The last message of the subject is another one.
    WrongLast,
    /// The message may or may not have been stored.
    Unknown(String),
}

/// Publishes a message that must follow the one with sequence `after`, and returns its own sequence.
pub(crate) async fn publish(
    jetstream: &Context,
    subject: &str,
    after: u64,
    message: &Bytes,
) -> Result<u64, Publish> {
    let mut headers = HeaderMap::new();
    headers.insert(NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, after.to_string());
    publish_with(jetstream, subject, headers, message).await
}

/// Publishes a message with headers, and returns its sequence.
pub(crate) async fn publish_with(
    jetstream: &Context,
    subject: &str,
    headers: HeaderMap,
    message: &Bytes,
) -> Result<u64, Publish> {
    let sent = jetstream.publish_with_headers(subject.to_owned(), headers, message.clone()).await;
    let acknowledged = match sent {
        Ok(acknowledgement) => acknowledgement.await,
        Err(error) => Err(error),
    };
    match acknowledged {
        Ok(acknowledged) => Ok(acknowledged.sequence),
        Err(error) if is_wrong_last(&error) => Err(Publish::WrongLast),
        Err(error) => Err(Publish::Unknown(chain(&error))),
    }
}

/// The last message of a log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Last {
    pub(crate) head: Head,
    pub(crate) sequence: u64,
    /// Time when the server stored it, in milliseconds since 1970.
    pub(crate) time: u64,
}

/// Error of reading the last message.
pub(crate) enum LastError {
    Unavailable(String),
    Damaged { sequence: u64, what: &'static str },
}

/// Reads the last message of a log from the stream's leader. Other servers may be behind.
pub(crate) async fn last_message(stream: &Stream, subject: &str) -> Result<Option<Last>, LastError> {
    let message = match stream.get_last_raw_message_by_subject(subject).await {
        Ok(message) => message,
        Err(error) if matches!(error.kind(), LastRawMessageErrorKind::NoMessageFound) => return Ok(None),
        Err(error) => return Err(LastError::Unavailable(chain(&error))),
    };
    let sequence = message.sequence;
    let (head, _) =
        message::decode(&message.payload).map_err(|what| LastError::Damaged { sequence, what })?;
    let time = u64::try_from(message.time.unix_timestamp_nanos() / 1_000_000).unwrap_or(0);
    Ok(Some(Last { head, sequence, time }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journals_share_a_limit_and_a_batch_that_is_dropped_is_reported_and_released() {
        let (records, appended) = mpsc::unbounded_channel();
        let budget = Arc::<Budget>::default();
        let replica = |journal: &str| JournalReplica {
            journal: journal.into(),
            records: records.clone(),
            budget: budget.clone(),
        };
        let (a, b) = (replica("a"), replica("b"));
        let (results, ended) = std::sync::mpsc::channel();
        let done = move |result| results.send(result).unwrap();
        a.append(Bytes::from(vec![0; LOG_BYTES_MAX + 1]), Box::new(done));
        assert!(!b.wait_for_room(Duration::ZERO));
        let waiting = std::thread::spawn(move || b.wait_for_room(Duration::from_secs(60)));
        drop(appended);
        assert!(waiting.join().unwrap());
        assert_eq!(ended.recv().unwrap(), Err(ReplicaError::Failed("its writer has ended".to_owned())));
    }
}
