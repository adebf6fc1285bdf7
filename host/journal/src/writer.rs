//! The only thread that writes records. A separate thread syncs, so that writing continues in the meantime.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::frame::framed_bytes;
use crate::index;
use crate::jobs::{Errand, Job, Level, Waiting};
use crate::record::Kind;
use crate::replica::{self, Half};
use crate::retain::{self, NO_ROOM_PAUSE, Refresh};
use crate::segment::{HEADER_BYTES, Segment};
use crate::sync;
use crate::{Failed, Location, Shared, Sync};

/// Maximum size of one write, in bytes.
pub(crate) const BATCH_BYTES_MAX: usize = 2 << 20;

/// Time for which records without a waiting caller are batched. Waking the writer for each event would cost more than
/// writing the event.
const GATHERED: Duration = Duration::from_millis(20);

/// Duration of a write to the page cache above which a warning is logged: a kill in that time loses records.
const SLOW_WRITE: Duration = Duration::from_millis(50);

/// A copied record.
struct Copied {
    rollout: u64,
    sequence: u32,
    from: Location,
    to: Location,
}

pub(crate) struct Writer {
    shared: Arc<Shared>,
    current: Segment,
    buffer: Vec<u8>,
    /// The same records for the replica, if there is one.
    replicated: Vec<u8>,
    /// Copies in the buffer. Readers use the originals until the buffer is written.
    copied: Vec<Copied>,
    errands: mpsc::Sender<Errand>,
    segments_ahead: u64,
    spare: mpsc::Receiver<Segment>,
    broken: Option<Failed>,
    files: JoinHandle<()>,
    syncs: JoinHandle<()>,
}

impl Writer {
    /// Starts all threads.
    pub(crate) fn start(
        shared: Arc<Shared>,
        current: Segment,
        segments_ahead: u64,
    ) -> io::Result<JoinHandle<()>> {
        let (errands, todo) = mpsc::channel();
        let (made, spare) = mpsc::channel();
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let (owned, sealed) = (shared.clone(), current.number - 1);
        let refresh = Refresh::new(&shared);
        let files =
            thread("journal-files").spawn(move || retain::run(&owned, sealed, refresh, &todo, &made))?;
        let (owned, owned_errands) = (shared.clone(), errands.clone());
        let syncs = thread("journal-sync").spawn(move || sync::run(&owned, &owned_errands));
        let syncs = syncs?;
        for ahead in 1..=segments_ahead {
            let _ = errands.send(Errand::Allocate(current.number + ahead));
        }
        let writer = Self {
            shared,
            current,
            buffer: Vec::with_capacity(BATCH_BYTES_MAX),
            replicated: Vec::new(),
            copied: Vec::new(),
            errands,
            segments_ahead,
            spare,
            broken: None,
            files,
            syncs,
        };
        thread("journal-writer").spawn(move || writer.run())
    }

    /// Executes jobs until the journal is closed, then ends the other threads.
    fn run(mut self) {
        while let Some(jobs) = self.next() {
            let bytes: usize = jobs.iter().map(Job::bytes).sum();
            for job in jobs {
                match job {
                    Job::Append { rollout, kind, payload } => self.append(rollout, kind, &payload),
                    Job::Copy { rollout, sequence, kind, payload, from } => {
                        self.copy(rollout, (sequence, kind), payload, from);
                    }
                    Job::Refresh { rollout, sequence, kind, payload } => {
                        self.refresh((rollout, sequence, kind), payload);
                    }
                    Job::Notify(level, who) => self.notify(level, who),
                }
            }
            self.flush();
            self.shared.queue().bytes -= bytes;
            self.shared.room.notify_waiters();
        }
        self.flush();
        self.finish_replication();
        self.shared.syncs().close(self.current.end);
        self.shared.to_sync.notify_all();
        // The last sync releases the unused space of the current segment.
        let _ = self.syncs.join();
        drop(self.errands);
        let _ = self.files.join();
        for ahead in self.spare.try_iter() {
            let _ = std::fs::remove_file(self.shared.folder.segment(ahead.number));
        }
    }

    /// Returns the queued jobs, or `None` once the journal is closed.
    fn next(&mut self) -> Option<VecDeque<Job>> {
        let shared = self.shared.clone();
        let mut queue = shared.queue();
        // The writer polls once before it sleeps, because more jobs often follow soon, and waking the writer costs the
        // caller time.
        let mut since = Instant::now();
        loop {
            let left = GATHERED.saturating_sub(since.elapsed());
            if queue.jobs.is_empty() {
                if queue.closed {
                    return None;
                }
                if left.is_zero() {
                    queue.is_idle = true;
                    queue = shared.todo.wait(queue).unwrap_or_else(PoisonError::into_inner);
                    queue.is_idle = false;
                    since = Instant::now();
                    continue;
                }
            } else if queue.is_urgent || queue.closed || queue.bytes >= BATCH_BYTES_MAX || left.is_zero() {
                queue.is_urgent = false;
                return Some(std::mem::take(&mut queue.jobs));
            }
            let waited = shared.todo.wait_timeout(queue, left);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Appends a record to the buffer, and to the replica if there is one.
    fn append(&mut self, rollout: u64, kind: Kind, payload: &[Bytes]) {
        let sequence = match kind {
            Kind::Begin => Some(0),
            Kind::Event(_) | Kind::End => {
                self.shared.tables().index.live.get(&rollout).map(|records| records.places.len())
            }
        };
        // Nothing is appended to a finished rollout.
        let Some(sequence) = sequence.and_then(|places| u32::try_from(places).ok()) else { return };
        let place = self.put((rollout, sequence, kind), payload);
        if self.shared.replication.is_some() {
            replica::write(&mut self.replicated, (rollout, sequence, kind), payload);
        }
        let name = payload.first().map_or(0, |name| index::hash_of(kind, name));
        self.shared.tables().index.note(rollout, sequence, kind, name, place);
        self.flush_if_full();
    }

    /// Copies a record, unless its rollout has ended.
    fn copy(&mut self, rollout: u64, (sequence, kind): (u32, Kind), payload: Bytes, from: Location) {
        let is_there = {
            let tables = self.shared.tables();
            let places = tables.index.live.get(&rollout).map(|records| &records.places);
            places.is_some_and(|places| places.get(sequence as usize) == Some(&from))
        };
        if is_there {
            let to = self.put((rollout, sequence, kind), &[payload]);
            self.copied.push(Copied { rollout, sequence, from, to });
            self.flush_if_full();
        }
    }

    /// Appends a record to the replica again, unless its rollout has ended.
    fn refresh(&mut self, record: (u64, u32, Kind), payload: Bytes) {
        if self.shared.tables().index.live.contains_key(&record.0) {
            replica::write(&mut self.replicated, record, &[payload]);
            if self.replicated.len() >= BATCH_BYTES_MAX {
                self.flush();
            }
        }
    }

    /// Waits for the replica's acknowledgements at the end.
    fn finish_replication(&self) {
        let Some(replication) = &self.shared.replication else { return };
        let left = replication.finish(|| self.shared.broken().is_some());
        if left > 0 && self.shared.broken().is_none() {
            tracing::warn!(
                bytes = left,
                "the journal was closed before its replica acknowledged all records"
            );
        }
    }

    /// Appends a record to the buffer, in the next segment if this one has no room.
    fn put(&mut self, record: (u64, u32, Kind), payload: &[Bytes]) -> Location {
        let bytes = framed_bytes(payload.iter().map(Bytes::len).sum());
        let is_fresh = self.current.end == HEADER_BYTES && self.buffer.is_empty();
        // A record that is larger than a segment gets a longer segment.
        if self.current.end + (self.buffer.len() + bytes) as u64 > self.current.capacity && !is_fresh {
            self.flush();
            self.roll();
        }
        let offset = self.current.end + self.buffer.len() as u64;
        self.current.stamp.write(&mut self.buffer, offset, record, payload);
        Location::new(self.current.number, record.2, offset)
    }

    fn flush_if_full(&mut self) {
        if self.buffer.len() >= BATCH_BYTES_MAX {
            self.flush();
        }
    }

    /// Notifies a caller when all records so far have reached the level, and the replica has acknowledged them.
    fn notify(&mut self, level: Level, who: Waiting) {
        self.flush();
        let who = match (who, &self.shared.replication) {
            (Waiting::Caller(who), Some(replication)) => {
                let half = Half::new(who);
                replication.wait_for(&self.shared, half.clone());
                Waiting::Half(half)
            }
            (who, _) => who,
        };
        match (level, &self.broken) {
            (_, Some(failed)) => who.notify(Err(failed.clone()), &self.errands),
            (Level::Written, None) => who.notify(Ok(()), &self.errands),
            (Level::Synced, None) => {
                self.shared.syncs().wait_for(self.current.end, who);
                self.shared.to_sync.notify_one();
            }
        }
    }

    /// Writes the buffer, waiting for room if necessary.
    fn flush(&mut self) {
        if self.broken.is_none() {
            self.broken = self.shared.broken();
        }
        if self.buffer.is_empty() {
            self.replicate();
            return;
        }
        let began = Instant::now();
        while self.broken.is_none() {
            match self.current.write(&self.buffer) {
                Ok(()) => break,
                // Closing the journal does not wait for room.
                Err(error) if is_full(&error) && !self.shared.is_closed() => {
                    self.shared.set_full(Some(error.to_string()));
                    std::thread::sleep(NO_ROOM_PAUSE);
                }
                Err(error) => self.broken = Some(self.shared.fail("write", &error)),
            }
        }
        if self.broken.is_some() {
            // Offsets advance even on failure, so that the locations stay in order.
            self.current.end += self.buffer.len() as u64;
        } else {
            let mut tables = self.shared.tables();
            tables.flushed = (self.current.number, self.current.end);
            for Copied { rollout, sequence, from, to } in self.copied.drain(..) {
                tables.index.relocate(rollout, sequence, from, to);
            }
        }
        let took = began.elapsed();
        if took >= SLOW_WRITE {
            tracing::warn!(
                took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
                bytes = self.buffer.len(),
                "a write to the journal was slow"
            );
        }
        self.copied.clear();
        self.buffer.clear();
        self.replicate();
    }

    /// Hands written records to the replica, waiting while it is slow.
    fn replicate(&mut self) {
        let records = std::mem::take(&mut self.replicated);
        if let Some(replication) = &self.shared.replication
            && !records.is_empty()
            && self.broken.is_none()
        {
            replication.append(&self.shared, records.into());
        }
    }

    /// Switches to the next segment. The old one is synced and sealed in the background.
    fn roll(&mut self) {
        if self.broken.is_some() {
            return;
        }
        let (number, end) = (self.current.number, self.current.end);
        let mut tables = self.shared.tables();
        let index = tables.index.write();
        let ended = tables.index.take_sealed();
        tables.unwritten.push((number, ended.into()));
        drop(tables);
        self.shared.sealed_bytes.fetch_add(end, Ordering::Relaxed);
        self.shared.pins().sealed(number, end);
        self.shared.syncs().seal(end, index);
        self.shared.to_sync.notify_one();
        let begun = self.spare.recv().map_err(|_| io::Error::other("the allocating thread has ended"));
        let begun = begun.and_then(|mut next| next.begin(end).map(|()| next));
        match begun {
            Ok(next) => self.current = next,
            Err(error) => {
                self.broken = Some(self.shared.fail("begin the next segment", &error));
                return;
            }
        }
        self.shared.syncs().begin(&self.current);
        // Cannot fail: the thread runs until the journal is closed.
        let _ = self.errands.send(Errand::Allocate(self.current.number + self.segments_ahead));
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl Sync {
    pub(crate) fn level(self, of_admission: bool) -> Level {
        match self {
            Self::Every => Level::Synced,
            Self::Admission if of_admission => Level::Synced,
            Self::Admission | Self::Never => Level::Written,
        }
    }
}
