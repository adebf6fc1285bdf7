//! The thread that syncs: what was written is brought to the disk while the writer goes on writing.
//!
//! A caller is told only by a sync that began after its bytes were written, and those of a segment only once the
//! segments before it are on the disk whole. So a segment that was synced proves that all before it were.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::sync::{PoisonError, mpsc};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::retain::Errand;
use crate::segment::{Segment, SyncHandle};
use crate::{Failed, Shared};

/// Two syncs are this far apart at least, so that those who come between share one.
const SYNC_INTERVAL: Duration = Duration::from_millis(2);

/// Who is to hear that something is written or synced.
pub(crate) enum Waiting {
    Caller(oneshot::Sender<Result<(), Failed>>),
    /// This is to be done then; never if it fails.
    Errand(Errand),
}

impl Waiting {
    pub(crate) fn hears(self, how: Result<(), Failed>, errands: &mpsc::Sender<Errand>) {
        match (self, how) {
            (Self::Caller(who), how) => drop(who.send(how)),
            (Self::Errand(errand), Ok(())) => drop(errands.send(errand)),
            (Self::Errand(_), Err(_)) => {}
        }
    }
}

/// A segment that may have more than was synced.
struct Unsynced {
    handle: SyncHandle,
    /// How much of it was written when somebody last waited for it, or it was left.
    end: u64,
    waiting: Vec<Waiting>,
    /// Its index, once nothing is added to it any more.
    index: Option<Vec<u8>>,
}

impl Unsynced {
    fn of(segment: &Segment) -> Self {
        Self { handle: segment.sync_handle(), end: segment.end, waiting: Vec::new(), index: None }
    }
}

/// What there is to sync, the oldest segment first; the last one is being written to.
#[derive(Default)]
pub(crate) struct Syncs {
    segments: VecDeque<Unsynced>,
    is_closed: bool,
}

impl Syncs {
    pub(crate) fn of(current: &Segment) -> Self {
        Self { segments: [Unsynced::of(current)].into(), is_closed: false }
    }

    /// Waits for a sync of the current segment, of which so much is written.
    pub(crate) fn wait_for(&mut self, end: u64, who: Waiting) {
        if let Some(current) = self.segments.back_mut() {
            current.end = end;
            current.waiting.push(who);
        }
    }

    /// Nothing is added to the current segment any more.
    pub(crate) fn seal(&mut self, end: u64, index: Vec<u8>) {
        if let Some(current) = self.segments.back_mut() {
            current.end = end;
            current.index = Some(index);
        }
    }

    /// The next segment is about to be written to.
    pub(crate) fn begin(&mut self, segment: &Segment) {
        self.segments.push_back(Unsynced::of(segment));
    }

    /// Nothing is written any more.
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
    /// Its index where the segment is sealed.
    index: Option<Vec<u8>>,
    is_last: bool,
}

/// Syncs until the journal is closed.
pub(crate) fn run(shared: &Shared, errands: &mpsc::Sender<Errand>) {
    let mut synced_at = Instant::now();
    loop {
        let Some(Step { handle, end, waiting, index, is_last }) = next(shared, synced_at) else { return };
        let is_whole = index.is_some() || is_last;
        // A sync that failed is final: the kernel may have forgotten what it could not write.
        let how = match shared.broken() {
            Some(failed) => Err(failed),
            None => sync(&handle, end, is_whole).map_err(|error| shared.breaks("sync", &error)),
        };
        synced_at = Instant::now();
        if how.is_ok() {
            named(shared, handle.number);
        }
        for who in waiting {
            who.hears(how.clone(), errands);
        }
        if let (Some(index), Ok(())) = (index, &how) {
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

/// The name of this segment is on the disk.
fn named(shared: &Shared, number: u64) {
    if let Some(first) = shared.syncs().segments.front_mut().filter(|first| first.handle.number == number) {
        first.handle.is_named = true;
    }
}

/// Waits for what is to be synced next; nothing more once the journal is closed.
fn next(shared: &Shared, synced_at: Instant) -> Option<Step> {
    let mut syncs = shared.syncs();
    loop {
        let is_closed = syncs.is_closed;
        let Some(first) = syncs.segments.front_mut() else {
            // The next segment is not begun.
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
