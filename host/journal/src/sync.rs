//! The thread that syncs written records while the writer continues.
//!
//! A caller is notified only by a sync that began after its bytes were written. The bytes of a segment count
//! as synced only when all earlier segments are, so a synced segment proves that all earlier ones are
//! complete.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::sync::{PoisonError, mpsc};
use std::time::{Duration, Instant};

use crate::Shared;
use crate::jobs::{Errand, Waiting};
use crate::segment::{Segment, SyncHandle};

/// Minimum interval between syncs, so that concurrent callers share one.
const SYNC_INTERVAL: Duration = Duration::from_millis(2);

/// A segment with bytes that may not be synced.
struct Unsynced {
    handle: SyncHandle,
    /// End of the bytes for which a caller waits, or of the segment.
    end: u64,
    waiting: Vec<Waiting>,
    /// The segment's index, once the segment is sealed.
    index: Option<Vec<u8>>,
}

impl Unsynced {
    fn of(segment: &Segment) -> Self {
        Self { handle: segment.sync_handle(), end: segment.end, waiting: Vec::new(), index: None }
    }
}

/// Segments to sync, the oldest first; the last one is being written.
#[derive(Default)]
pub(crate) struct Syncs {
    segments: VecDeque<Unsynced>,
    is_closed: bool,
}

impl Syncs {
    pub(crate) fn of(current: &Segment) -> Self {
        Self { segments: [Unsynced::of(current)].into(), is_closed: false }
    }

    /// Requests a sync of the current segment up to this offset.
    pub(crate) fn wait_for(&mut self, end: u64, who: Waiting) {
        if let Some(current) = self.segments.back_mut() {
            current.end = end;
            current.waiting.push(who);
        }
    }

    /// Seals the current segment.
    pub(crate) fn seal(&mut self, end: u64, index: Vec<u8>) {
        if let Some(current) = self.segments.back_mut() {
            current.end = end;
            current.index = Some(index);
        }
    }

    /// Starts the next segment.
    pub(crate) fn begin(&mut self, segment: &Segment) {
        self.segments.push_back(Unsynced::of(segment));
    }

    /// Marks the end of all writing.
    pub(crate) fn close(&mut self, end: u64) {
        if let Some(current) = self.segments.back_mut() {
            current.end = end;
        }
        self.is_closed = true;
    }
}

/// One sync.
struct Step {
    handle: SyncHandle,
    end: u64,
    waiting: Vec<Waiting>,
    /// The segment's index, if the segment is sealed.
    index: Option<Vec<u8>>,
    is_last: bool,
}

/// Syncs until the journal is closed.
pub(crate) fn run(shared: &Shared, errands: &mpsc::Sender<Errand>) {
    let mut synced_at = Instant::now();
    loop {
        let Some(Step { handle, end, waiting, index, is_last }) = next(shared, synced_at) else { return };
        let is_whole = index.is_some() || is_last;
        // A failed sync is final, because the kernel may have dropped the pages that it could not write.
        let result = match shared.broken() {
            Some(failed) => Err(failed),
            None => sync(&handle, end, is_whole).map_err(|error| shared.fail("sync", &error)),
        };
        synced_at = Instant::now();
        if result.is_ok() {
            named(shared, handle.number);
        }
        for who in waiting {
            who.notify(result.clone(), errands);
        }
        if let (Some(index), Ok(())) = (index, &result) {
            let _ = errands.send(Errand::Sealed { number: handle.number, index });
        }
        if is_last {
            return;
        }
    }
}

fn sync(handle: &SyncHandle, end: u64, is_whole: bool) -> io::Result<()> {
    if is_whole {
        handle.shrink(end)?;
    }
    handle.sync()?;
    handle.note_synced(end)
}

/// Records that the segment's name is durable.
fn named(shared: &Shared, number: u64) {
    if let Some(first) = shared.syncs().segments.front_mut().filter(|first| first.handle.number == number) {
        first.handle.is_named = true;
    }
}

/// Waits for the next sync, or returns `None` once the journal is closed.
fn next(shared: &Shared, synced_at: Instant) -> Option<Step> {
    let mut syncs = shared.syncs();
    loop {
        let is_closed = syncs.is_closed;
        let Some(first) = syncs.segments.front_mut() else {
            // The next segment has not started.
            if is_closed {
                return None;
            }
            syncs = shared.to_sync.wait(syncs).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        let (handle, end) = (first.handle.clone(), first.end);
        if first.index.is_some() {
            let (waiting, index) = (mem::take(&mut first.waiting), first.index.take());
            syncs.segments.pop_front();
            return Some(Step { handle, end, waiting, index, is_last: false });
        }
        let left = SYNC_INTERVAL.saturating_sub(synced_at.elapsed());
        if is_closed || (!first.waiting.is_empty() && left.is_zero()) {
            let waiting = mem::take(&mut first.waiting);
            return Some(Step { handle, end, waiting, index: None, is_last: is_closed });
        }
        syncs = if first.waiting.is_empty() {
            shared.to_sync.wait(syncs).unwrap_or_else(PoisonError::into_inner)
        } else {
            shared.to_sync.wait_timeout(syncs, left).unwrap_or_else(PoisonError::into_inner).0
        };
    }
}
