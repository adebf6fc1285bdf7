//! A second copy of a journal's records, on other machines.
//!
//! The writer hands every batch that it has written to a [`Replica`], too, in order. Callers that wait for
//! records wait until the replica has acknowledged them. A directory can be [rebuilt](crate::Rebuild) from a
//! replica's records.
//!
//! ```text
//! u32 length of the body | u32 CRC-32 of the body | u32 sequence | body: u64 rollout | u8 kind | payload
//! ```
//!
//! Numbers are little-endian. The sequence is the index of the record within its rollout. Records of
//! unfinished rollouts are appended again from time to time, because a replica drops old records by their age;
//! the sequence identifies such a copy.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::record::{HEAD_BYTES, Kind, PAYLOAD_BYTES_MAX};
use crate::{Failed, Shared, locked};

/// Size of length, checksum and sequence.
const FRAME_BYTES: usize = 12;

/// Default number of unacknowledged bytes above which the writer waits.
const BYTES_MAX: usize = 32 << 20;

/// Default age of an unacknowledged batch above which no rollout starts.
const LATE_AFTER: Duration = Duration::from_secs(2);

/// Default time that closing a journal waits for acknowledgements.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(10);

/// Time after which the writer, waiting for room, looks whether the journal was closed.
const ROOM_TIME: Duration = Duration::from_millis(50);

/// Permanent failure of a replica.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplicaError {
    /// Another process has taken the log over, and nothing that this one appends is stored any more.
    #[error("another process has taken the journal's log over: {0}")]
    Fenced(String),
    /// The log cannot be continued.
    #[error("the journal's replicated log cannot be continued: {0}")]
    Failed(String),
}

/// Function that a replica calls once with the result of an append.
pub type Acknowledge = Box<dyn FnOnce(Result<(), ReplicaError>) + Send>;

/// A replicated log for the records of one journal.
///
/// Implementations retry until a batch is stored or can never be. They acknowledge batches in the order in
/// which they were appended.
pub trait Replica: Send + Sync {
    /// Appends a batch of framed records after all earlier ones, without blocking. `done` is called when the
    /// batch is stored on the replica, or after a permanent failure.
    fn append(&self, records: Bytes, done: Acknowledge);

    /// Waits until there is room for more than the bytes that are unacknowledged, for at most this time. Returns
    /// whether there is room. Several journals may share a limit.
    fn wait_for_room(&self, time_max: Duration) -> bool {
        let _ = time_max;
        true
    }
}

/// Settings of a journal's replica.
#[derive(Clone)]
pub struct ReplicaSettings {
    /// The replica.
    pub replica: Arc<dyn Replica>,
    /// Number of unacknowledged bytes above which the writer waits, and with it everything that awaits
    /// [room](crate::Entry::room).
    pub bytes_max: usize,
    /// Age of the oldest unacknowledged batch above which no rollout starts and running ones wait.
    pub late_after: Duration,
    /// Interval at which the records of unfinished rollouts are appended again: a quarter of the age at which
    /// the replica drops records.
    pub refresh_every: Duration,
    /// Time that closing the journal waits for acknowledgements.
    pub close_time_max: Duration,
}

impl ReplicaSettings {
    /// Returns the default settings for a replica that drops no records by their age.
    pub fn new(replica: Arc<dyn Replica>) -> Self {
        Self {
            replica,
            bytes_max: BYTES_MAX,
            late_after: LATE_AFTER,
            refresh_every: Duration::MAX,
            close_time_max: CLOSE_TIME_MAX,
        }
    }
}

/// A record of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaRecord<'a> {
    /// Number of the rollout.
    pub rollout: u64,
    /// Index of the record within its rollout.
    pub sequence: u32,
    pub(crate) kind: Kind,
    pub(crate) payload: &'a [u8],
}

/// Error of reading a replica's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the record at byte {at} is damaged")]
pub struct WrongRecord {
    /// Offset of the record.
    pub at: usize,
}

/// Appends a framed record.
pub(crate) fn write(to: &mut Vec<u8>, (rollout, sequence, kind): (u64, u32, Kind), payload: &[Bytes]) {
    let start = to.len();
    to.extend_from_slice(&[0; FRAME_BYTES]);
    to.extend_from_slice(&rollout.to_le_bytes());
    to.push(kind.byte());
    for part in payload {
        to.extend_from_slice(part);
    }
    // The checksum covers the sequence, too.
    to[start + 8..start + FRAME_BYTES].copy_from_slice(&sequence.to_le_bytes());
    let (length, checksum) = (to.len() - start - FRAME_BYTES, crc32fast::hash(&to[start + 8..]));
    // `append` has checked the length against `PAYLOAD_BYTES_MAX`.
    to[start..start + 4].copy_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
    to[start + 4..start + 8].copy_from_slice(&checksum.to_le_bytes());
}

/// Returns the size of the framed record at the beginning of the bytes, or `None` if there are too few bytes to
/// tell. An impossible size is an error.
pub fn record_bytes(bytes: &[u8]) -> Result<Option<usize>, WrongRecord> {
    let Some(length) = bytes.first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_le_bytes(*length) as usize;
    if (HEAD_BYTES..=HEAD_BYTES + PAYLOAD_BYTES_MAX).contains(&length) {
        Ok(Some(FRAME_BYTES + length))
    } else {
        Err(WrongRecord { at: 0 })
    }
}

/// Parses the framed record at the beginning of the bytes and returns it with its size.
pub fn read_record(bytes: &[u8]) -> Result<(ReplicaRecord<'_>, usize), WrongRecord> {
    let wrong = WrongRecord { at: 0 };
    let end = record_bytes(bytes)?.ok_or(wrong)?;
    let whole = bytes.get(..end).ok_or(wrong)?;
    let word = |at: usize| u32::from_le_bytes([whole[at], whole[at + 1], whole[at + 2], whole[at + 3]]);
    if crc32fast::hash(&whole[8..]) != word(4) {
        return Err(wrong);
    }
    let (rollout, rest) = whole[FRAME_BYTES..].split_first_chunk::<8>().ok_or(wrong)?;
    let (kind, payload) = rest.split_first().ok_or(wrong)?;
    let (rollout, sequence) = (u64::from_le_bytes(*rollout), word(8));
    Ok((ReplicaRecord { rollout, sequence, kind: Kind::of(*kind), payload }, end))
}

/// The batches that a replica has not acknowledged, and the callers that wait for them.
pub(crate) struct Replication {
    pub(crate) settings: ReplicaSettings,
    state: Mutex<Unacknowledged>,
    changed: Condvar,
}

#[derive(Default)]
struct Unacknowledged {
    /// Size of each batch and the time when it was appended, the oldest first.
    batches: VecDeque<(usize, Instant)>,
    bytes: usize,
    /// Number of batches that were acknowledged.
    acknowledged: u64,
    /// Callers, each with the number of batches that it waits for.
    waiting: VecDeque<(u64, Half)>,
}

impl Unacknowledged {
    fn appended(&self) -> u64 {
        self.acknowledged + self.batches.len() as u64
    }
}

impl Replication {
    pub(crate) fn new(settings: ReplicaSettings) -> Self {
        Self { settings, state: Mutex::default(), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, Unacknowledged> {
        locked(&self.state)
    }

    /// Returns the age of the oldest unacknowledged batch if it is above the limit.
    pub(crate) fn late(&self) -> Option<Duration> {
        let (_, since) = *self.state().batches.front()?;
        Some(since.elapsed()).filter(|age| *age > self.settings.late_after)
    }

    /// Returns whether writers of records continue.
    pub(crate) fn has_room(&self) -> bool {
        let bytes = self.state().bytes;
        bytes <= self.settings.bytes_max && self.late().is_none()
    }

    /// Appends a batch, after waiting while too many bytes are unacknowledged.
    pub(crate) fn append(&self, shared: &Arc<Shared>, records: Bytes) {
        let is_over = || shared.is_closed() || shared.broken().is_some();
        while !self.settings.replica.wait_for_room(ROOM_TIME) && !is_over() {}
        let mut state = self.state();
        while state.bytes > self.settings.bytes_max && !is_over() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.batches.push_back((records.len(), Instant::now()));
        state.bytes += records.len();
        let number = state.appended();
        drop(state);
        // A weak reference, because a replica that never acknowledges must not keep the journal in memory.
        let shared: Weak<Shared> = Arc::downgrade(shared);
        let done = move |result: Result<(), ReplicaError>| {
            if let Some(shared) = shared.upgrade() {
                shared.acknowledged(number, result);
            }
        };
        self.settings.replica.append(records, Box::new(done));
    }

    /// Notifies a caller when all batches so far are acknowledged.
    pub(crate) fn wait_for(&self, shared: &Shared, who: Half) {
        let mut state = self.state();
        // The failure is read while the state is locked: after a failure, no acknowledgement of the remaining batches
        // comes, so no caller may wait for one.
        match shared.broken() {
            Some(failed) => who.notify(Err(failed)),
            None if state.batches.is_empty() => who.notify(Ok(())),
            None => {
                let number = state.appended();
                state.waiting.push_back((number, who));
            }
        }
    }

    /// Wakes the writer, which may wait for acknowledgements.
    pub(crate) fn wake(&self) {
        // Locked, so that the writer is either before its check or waits.
        let _state = self.state();
        self.changed.notify_all();
    }

    /// Waits until all batches are acknowledged, for a limited time. Returns the number of bytes that are not.
    pub(crate) fn finish(&self, is_broken: impl Fn() -> bool) -> usize {
        let until = Instant::now() + self.settings.close_time_max;
        let mut state = self.state();
        while !state.batches.is_empty() && !is_broken() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.bytes
    }
}

impl Shared {
    /// Records the acknowledgement of all batches up to this one, or the failure of the replica.
    fn acknowledged(&self, number: u64, result: Result<(), ReplicaError>) {
        let Some(replication) = &self.replication else { return };
        let failed = result.err().map(|error| self.replica_failed(&error));
        let mut done = Vec::new();
        {
            let mut state = replication.state();
            while failed.is_some() || state.acknowledged < number {
                let Some((bytes, _)) = state.batches.pop_front() else { break };
                state.bytes -= bytes;
                state.acknowledged += 1;
            }
            while let Some((wanted, _)) = state.waiting.front()
                && (failed.is_some() || *wanted <= state.acknowledged)
            {
                done.extend(state.waiting.pop_front());
            }
            replication.changed.notify_all();
        }
        for (_, who) in done {
            who.notify(failed.clone().map_or(Ok(()), Err));
        }
        self.room.notify_waiters();
    }

    fn replica_failed(&self, error: &ReplicaError) -> Failed {
        if let Some(failed) = self.broken() {
            return failed;
        }
        tracing::error!(%error, "the journal's replica has failed; no rollout is admitted any more");
        let failed = match error {
            ReplicaError::Fenced(_) => Failed::fenced(error.to_string()),
            ReplicaError::Failed(_) => Failed::new(error.to_string()),
        };
        self.set_broken(failed.clone());
        failed
    }
}

/// One of two parties that a caller waits for: the disk and the replica. The caller is notified when both are
/// done, or when one fails.
#[derive(Clone)]
pub(crate) struct Half(Arc<Mutex<Halves>>);

struct Halves {
    who: Option<oneshot::Sender<Result<(), Failed>>>,
    is_half_done: bool,
}

impl Half {
    pub(crate) fn new(who: oneshot::Sender<Result<(), Failed>>) -> Self {
        Self(Arc::new(Mutex::new(Halves { who: Some(who), is_half_done: false })))
    }

    pub(crate) fn notify(self, result: Result<(), Failed>) {
        let mut halves = locked(&self.0);
        let is_over = result.is_err() || std::mem::replace(&mut halves.is_half_done, true);
        if is_over && let Some(who) = halves.who.take() {
            let _ = who.send(result);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_written_and_no_other_bytes_are() {
        let mut bytes = Vec::new();
        let parts = [Bytes::from_static(b"ab"), Bytes::from_static(b"c")];
        write(&mut bytes, (7, 2, Kind::Event(3)), &parts);
        let record = ReplicaRecord { rollout: 7, sequence: 2, kind: Kind::Event(3), payload: b"abc" };
        assert_eq!(read_record(&bytes), Ok((record, bytes.len())));
        assert_eq!(record_bytes(&bytes), Ok(Some(bytes.len())));
        assert_eq!(record_bytes(&bytes[..3]), Ok(None));
        for end in 0..bytes.len() {
            assert!(read_record(&bytes[..end]).is_err(), "cut at {end}");
        }
        for bit in 0..8 * bytes.len() {
            let mut wrong = bytes.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert!(read_record(&wrong).is_err(), "bit {bit} changed");
        }
    }
}
