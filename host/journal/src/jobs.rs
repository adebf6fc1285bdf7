//! Work that the threads of a journal pass to each other.

use std::collections::VecDeque;
use std::sync::mpsc;

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::frame::framed_bytes;
use crate::record::Kind;
use crate::replica::Half;
use crate::{Failed, Location};

/// A job of the writer. Jobs are executed in order.
pub(crate) enum Job {
    Append {
        rollout: u64,
        kind: Kind,
        payload: Vec<Bytes>,
    },
    /// Copies the record of an unfinished rollout from this location, which will be deleted.
    Copy {
        rollout: u64,
        sequence: u32,
        kind: Kind,
        payload: Bytes,
        from: Location,
    },
    /// Appends a record of an unfinished rollout to the replica again.
    Refresh {
        rollout: u64,
        sequence: u32,
        kind: Kind,
        payload: Bytes,
    },
    /// Notifies a caller or runs an errand once the records before it reach this level.
    Notify(Level, Waiting),
}

impl Job {
    /// Returns the size of a queued job, which is never zero.
    pub(crate) fn bytes(&self) -> usize {
        let payload = match self {
            Self::Append { payload, .. } => framed_bytes(payload.iter().map(Bytes::len).sum()),
            Self::Copy { payload, .. } | Self::Refresh { payload, .. } => framed_bytes(payload.len()),
            Self::Notify(..) => 0,
        };
        size_of::<Self>() + payload
    }

    /// Returns whether a caller waits for the job.
    pub(crate) fn is_urgent(&self) -> bool {
        matches!(self, Self::Notify(_, Waiting::Caller(_)))
    }
}

/// Durability that a caller waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// Written to the kernel: survives a crash of the process.
    Written,
    /// Synced to disk: survives a crash of the machine.
    Synced,
}

/// Queue of the writer.
#[derive(Default)]
pub(crate) struct Queue {
    pub jobs: VecDeque<Job>,
    /// Whether a caller waits for a queued job.
    pub is_urgent: bool,
    /// Whether the writer waits for a job.
    pub is_idle: bool,
    /// Size of the queued jobs, including those being written.
    pub bytes: usize,
    pub closed: bool,
}

/// Work for the thread that allocates and deletes segments.
pub(crate) enum Errand {
    /// Allocates this segment.
    Allocate(u64),
    /// Writes a sealed segment's index, then deletes old segments.
    Sealed { number: u64, index: Vec<u8> },
    /// Deletes old segments after the maximum size was reduced.
    Retain,
    /// Continues after copies have been written.
    Copied,
    /// Continues after records were appended to the replica again.
    Refreshed,
    /// Deletes these segments: they have no record of an unfinished rollout, and all copies are synced.
    Delete(Vec<u64>),
}

/// Callers that wait for a write or a sync.
pub(crate) enum Waiting {
    Caller(oneshot::Sender<Result<(), Failed>>),
    /// One half of a caller's wait, for the disk. The other half is for the replica.
    Half(Half),
    /// Job to run afterwards; skipped after a failure.
    Errand(Errand),
}

impl Waiting {
    pub(crate) fn notify(self, result: Result<(), Failed>, errands: &mpsc::Sender<Errand>) {
        match (self, result) {
            (Self::Caller(who), result) => drop(who.send(result)),
            (Self::Half(who), result) => who.notify(result),
            (Self::Errand(errand), Ok(())) => drop(errands.send(errand)),
            (Self::Errand(_), Err(_)) => {}
        }
    }
}
