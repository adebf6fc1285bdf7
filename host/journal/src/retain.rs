//! The thread for work outside of the writer: it allocates the next segment, writes indexes, and deletes old
//! segments.
//!
//! Unfinished rollouts keep their records, not their segments. If at most half of an old segment belongs to
//! unfinished rollouts, those records are copied to the end of the journal, and the segment is deleted once
//! the copies are synced. The journal's size is therefore bounded by its limit plus twice the records of
//! unfinished rollouts plus the segments that are allocated in advance; and copying writes at most as much as
//! it frees. With a maximum for all records together, the limit is reduced by twice the records of unfinished
//! rollouts.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

use crate::jobs::{Errand, Job, Level, Waiting};
use crate::recover::Reader;
use crate::segment::{Folder, Segment};
use crate::{Location, Shared};

/// Interval between attempts at an allocation for which there is no room.
pub(crate) const NO_ROOM_PAUSE: Duration = Duration::from_millis(200);

/// Maximum number of bytes that are copied at once. Other records wait in the meantime.
const COPIED_BYTES: u64 = 1 << 20;

/// A record of an unfinished rollout that is to be copied.
struct Live {
    rollout: u64,
    sequence: u32,
    place: Location,
}

/// The segment whose records are being copied.
struct Emptying {
    number: u64,
    todo: VecDeque<Live>,
}

struct Files<'a> {
    shared: &'a Shared,
    made: &'a mpsc::Sender<Segment>,
    /// Segments to be allocated.
    wanted: VecDeque<u64>,
    /// The last sealed segment.
    sealed: u64,
    /// The copying in progress, of at most one segment at a time.
    emptying: Option<Emptying>,
    is_deleting: bool,
    refresh: Option<Refresh>,
}

/// The records of unfinished rollouts that are appended to the replica again. Every pass takes the rollouts that
/// had started by the pass before, so that a record's last copy is never older than two intervals.
pub(crate) struct Refresh {
    every: Duration,
    /// Time of the next pass.
    due: Instant,
    /// Rollouts before this one had started by the last pass.
    started_before: u64,
    /// Rollouts of the pass in progress, with the index of the next record.
    todo: VecDeque<(u64, usize)>,
}

impl Refresh {
    /// Returns the passes of a journal that is being opened. Its first pass has the rollouts of earlier processes. To be
    /// called before a rollout can begin, whose records would be appended twice otherwise.
    pub(crate) fn new(shared: &Shared) -> Option<Self> {
        let every = shared.replication.as_ref()?.settings.refresh_every;
        // The first pass is due at once, because a process that ends before the interval has passed would make none.
        let due = Instant::now();
        // The longest interval belongs to a replica that drops no records by their age. It needs no pass.
        due.checked_add(every)?;
        let started_before = shared.next.load(Ordering::Relaxed);
        Some(Self { every, due, started_before, todo: VecDeque::new() })
    }
}

/// Returns the sizes of sealed segments before this segment, with their indexes.
pub(crate) fn sealed_sizes(folder: &Folder, current: u64) -> io::Result<BTreeMap<u64, u64>> {
    let sealed = folder.numbers()?.into_iter().filter(|number| *number < current);
    Ok(sealed.map(|number| (number, bytes_of(folder, number))).collect())
}

/// Returns the size of a segment and its index.
fn bytes_of(folder: &Folder, number: u64) -> u64 {
    let bytes = |path| std::fs::metadata(path).map_or(0, |about: std::fs::Metadata| about.len());
    bytes(folder.segment(number)) + bytes(folder.index(number))
}

/// Runs until the journal is closed.
pub(crate) fn run(
    shared: &Shared,
    sealed: u64,
    refresh: Option<Refresh>,
    todo: &mpsc::Receiver<Errand>,
    made: &mpsc::Sender<Segment>,
) {
    let mut files =
        Files { shared, made, wanted: VecDeque::new(), sealed, emptying: None, is_deleting: false, refresh };
    files.retain();
    loop {
        let errand = match files.pause() {
            None => todo.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(pause) => todo.recv_timeout(pause),
        };
        match errand {
            Ok(Errand::Allocate(number)) => files.wanted.push_back(number),
            Ok(Errand::Sealed { number, index }) => files.sealed(number, &index),
            Ok(Errand::Retain) => files.retain(),
            Ok(Errand::Copied) => files.copy(),
            Ok(Errand::Refreshed) => files.refresh(),
            Ok(Errand::Delete(numbers)) => files.delete(&numbers),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        files.allocate();
        files.begin_to_refresh();
    }
    files.close();
}

impl Files<'_> {
    /// Returns the time after which there is work without an errand.
    fn pause(&self) -> Option<Duration> {
        let refresh =
            self.refresh.as_ref().map(|refresh| refresh.due.saturating_duration_since(Instant::now()));
        let allocate = (!self.wanted.is_empty()).then_some(NO_ROOM_PAUSE);
        refresh.into_iter().chain(allocate).min()
    }

    /// Begins to append the records of unfinished rollouts to the replica again, if it is time.
    fn begin_to_refresh(&mut self) {
        let Some(refresh) = &mut self.refresh else { return };
        let now = Instant::now();
        if now < refresh.due {
            return;
        }
        refresh.due = now + refresh.every;
        // A pass that takes longer than the interval continues instead.
        if !refresh.todo.is_empty() {
            return;
        }
        let started_before =
            std::mem::replace(&mut refresh.started_before, self.shared.next.load(Ordering::Relaxed));
        {
            let tables = self.shared.tables();
            let live = tables.index.live.keys().copied().filter(|rollout| *rollout < started_before);
            refresh.todo = live.map(|rollout| (rollout, 0)).collect();
        }
        refresh.todo.make_contiguous().sort_unstable();
        self.refresh();
    }

    /// Appends the next records of the pass.
    fn refresh(&mut self) {
        let Some(refresh) = &mut self.refresh else { return };
        let mut reader = Reader::new(&self.shared.folder);
        let (mut jobs, mut bytes) = (Vec::new(), 0);
        while bytes < COPIED_BYTES
            && let Some((rollout, at)) = refresh.todo.front_mut()
        {
            let place = {
                let tables = self.shared.tables();
                let records = tables.index.live.get(rollout);
                let place = records.and_then(|records| records.places.get(*at)).copied();
                // Later records are being appended for the first time.
                place.filter(|place| (place.segment(), place.offset) < tables.flushed)
            };
            let Some(place) = place else {
                refresh.todo.pop_front();
                continue;
            };
            match reader.record(place) {
                Ok((rollout, kind, payload)) => {
                    bytes += payload.len() as u64;
                    let sequence = u32::try_from(*at).unwrap_or(u32::MAX);
                    jobs.push(Job::Refresh { rollout, sequence, kind, payload });
                    *at += 1;
                }
                Err(error) => {
                    tracing::error!(%error, "a live rollout's record cannot be appended to the replica again");
                    refresh.todo.pop_front();
                }
            }
        }
        if !jobs.is_empty() {
            jobs.push(Job::Notify(Level::Written, Waiting::Errand(Errand::Refreshed)));
            self.shared.add(jobs);
        }
    }

    /// Allocates segments while there is room.
    fn allocate(&mut self) {
        while let Some(number) = self.wanted.front().copied() {
            match self.shared.folder.create(number) {
                Ok(segment) => {
                    self.shared.set_full(None);
                    self.wanted.pop_front();
                    let _ = self.made.send(segment);
                }
                Err(error) => {
                    self.shared.set_full(Some(format!("no room for the next segment: {error}")));
                    return;
                }
            }
        }
    }

    fn sealed(&mut self, number: u64, index: &[u8]) {
        self.sealed = number;
        match self.shared.folder.write_index(number, index) {
            Ok(()) => {
                self.shared.sealed_bytes.fetch_add(index.len() as u64, Ordering::Relaxed);
                self.shared.tables().unwritten.retain(|(unwritten, _)| *unwritten != number);
            }
            Err(error) => {
                tracing::warn!(%error, number, "cannot write the index of a journal's segment");
            }
        }
        self.retain();
    }

    /// Begins to delete old segments.
    fn retain(&mut self) {
        if self.emptying.is_some() || self.is_deleting {
            return;
        }
        if let Err(error) = self.begin_to_delete() {
            tracing::warn!(%error, "cannot delete old segments of the journal");
        }
    }

    /// Requests the deletion of the segments that are due and have no record of an unfinished rollout. If there are none,
    /// begins to copy the records of unfinished rollouts out of the oldest due segment of which they are at most half.
    fn begin_to_delete(&mut self) -> io::Result<()> {
        let due = self.due()?;
        if due.is_empty() {
            return Ok(());
        }
        let mut live = self.live_in(&due);
        let free: Vec<u64> =
            due.iter().filter(|(number, _)| !live.contains_key(number)).map(|(number, _)| *number).collect();
        if !free.is_empty() {
            // The records that end the rollouts may be written but not yet synced.
            self.is_deleting = true;
            self.shared.add([Job::Notify(Level::Synced, Waiting::Errand(Errand::Delete(free)))]);
            return Ok(());
        }
        for (number, bytes) in due {
            let todo = live.remove(&number).unwrap_or_default();
            if self.bytes_up_to(&todo, bytes / 2)? {
                self.emptying = Some(Emptying { number, todo: todo.into() });
                self.copy();
                return Ok(());
            }
        }
        Ok(())
    }

    /// Returns the segments that may be deleted, the oldest first, with their sizes.
    fn due(&self) -> io::Result<Vec<(u64, u64)>> {
        let folder = &self.shared.folder;
        let live = self.shared.live_bytes.load(Ordering::Relaxed).saturating_mul(2);
        let within_total = self.shared.total_bytes_max.load(Ordering::Relaxed).saturating_sub(live);
        let bytes_max = self.shared.bytes_max.load(Ordering::Relaxed).min(within_total);
        let age_max = self.shared.age_max;
        let mut segments = Vec::new();
        for number in folder.numbers()?.into_iter().filter(|number| *number <= self.sealed) {
            let about = std::fs::metadata(folder.segment(number))?;
            segments.push((number, about.len(), about.modified()?));
        }
        let mut bytes: u64 = segments.iter().map(|(_, bytes, _)| bytes).sum();
        let now = SystemTime::now();
        let mut due = Vec::new();
        let held_from = self.shared.pins().first();
        for (number, size, modified) in segments {
            let age = now.duration_since(modified).unwrap_or_default();
            let is_kept = bytes <= bytes_max && age <= age_max;
            if is_kept || number >= held_from {
                break;
            }
            due.push((number, size));
            bytes -= size;
        }
        Ok(due)
    }

    /// Returns the records of unfinished rollouts in these segments.
    fn live_in(&self, segments: &[(u64, u64)]) -> HashMap<u64, Vec<Live>> {
        let mut found: HashMap<u64, Vec<Live>> = HashMap::new();
        let tables = self.shared.tables();
        for (rollout, records) in &tables.index.live {
            for (sequence, place) in records.places.iter().enumerate() {
                if segments.binary_search_by_key(&place.segment(), |(number, _)| *number).is_ok() {
                    let sequence = u32::try_from(sequence).unwrap_or(u32::MAX);
                    found.entry(place.segment()).or_default().push(Live {
                        rollout: *rollout,
                        sequence,
                        place: *place,
                    });
                }
            }
        }
        found
    }

    /// Returns whether these records have at most this size.
    fn bytes_up_to(&self, records: &[Live], max: u64) -> io::Result<bool> {
        let mut reader = Reader::new(&self.shared.folder);
        let mut bytes = 0;
        for record in records {
            bytes += reader.bytes_at(record.place)?;
            if bytes > max {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Requests copies of the next records of the segment. The segment is deleted after its last records are copied.
    fn copy(&mut self) {
        let Some(emptying) = &mut self.emptying else { return };
        let mut reader = Reader::new(&self.shared.folder);
        let (mut jobs, mut bytes) = (Vec::new(), 0);
        while bytes < COPIED_BYTES
            && let Some(Live { rollout, sequence, place }) = emptying.todo.pop_front()
        {
            match reader.record(place) {
                Ok((_, kind, payload)) => {
                    bytes += payload.len() as u64;
                    jobs.push(Job::Copy { rollout, sequence, kind, payload, from: place });
                }
                Err(error) => {
                    // The record stays where it is, and so does the segment.
                    tracing::error!(%error, "a live rollout's record cannot be copied");
                    self.emptying = None;
                    return;
                }
            }
        }
        let then = if emptying.todo.is_empty() {
            let number = emptying.number;
            self.emptying = None;
            self.is_deleting = true;
            Job::Notify(Level::Synced, Waiting::Errand(Errand::Delete(vec![number])))
        } else {
            Job::Notify(Level::Written, Waiting::Errand(Errand::Copied))
        };
        jobs.push(then);
        self.shared.add(jobs);
    }

    fn delete(&mut self, numbers: &[u64]) {
        self.is_deleting = false;
        let all: Vec<(u64, u64)> = numbers.iter().map(|number| (*number, 0)).collect();
        let live = self.live_in(&all);
        for number in numbers.iter().filter(|number| !live.contains_key(number)) {
            // A rollout with records in it may have ended since, and its owner may hold them.
            if *number >= self.shared.pins().first() {
                continue;
            }
            if let Err(error) = self.delete_one(*number) {
                tracing::warn!(%error, number, "cannot delete a segment of the journal");
                return;
            }
        }
        self.retain();
    }

    fn delete_one(&self, number: u64) -> io::Result<()> {
        let folder = &self.shared.folder;
        let bytes = bytes_of(folder, number);
        // Without the records the index is useless.
        std::fs::remove_file(folder.segment(number))?;
        let _ = std::fs::remove_file(folder.index(number));
        self.shared.sealed_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.shared.pins().deleted(number);
        Ok(())
    }

    /// Deletes segments without records of unfinished rollouts. Called when all records are synced and writing has
    /// ended.
    fn close(&self) {
        if self.shared.broken().is_some() {
            return;
        }
        let Ok(due) = self.due() else { return };
        let live = self.live_in(&due);
        for (number, _) in due.iter().filter(|(number, _)| !live.contains_key(number)) {
            let _ = self.delete_one(*number);
        }
    }
}
