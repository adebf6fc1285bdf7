//! The one thread that writes, and one beside it that does what may take long: allocating the
//! next segment, writing indexes, deleting what nobody keeps.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::index::Index;
use crate::record::{self, Kind, framed_bytes};
use crate::segment::{Folder, Segment};
use crate::{Failed, Location, Retention, Shared, Sync};

/// What is written at once, at the most, in bytes.
pub(crate) const BATCH_BYTES_MAX: usize = 2 << 20;

/// Two syncs are this far apart at least, so that those who come between share one.
const SYNC_INTERVAL: Duration = Duration::from_millis(2);

/// How long what nobody waits for is gathered before it is written: waking the writer for each
/// event would cost more than writing it.
const GATHERED: Duration = Duration::from_millis(20);

/// How long a writer without room waits before it looks again.
const NO_ROOM_PAUSE: Duration = Duration::from_millis(200);

/// What a writer is to do, in order.
pub(crate) enum Job {
    Append { rollout: u64, kind: Kind, payload: Vec<Bytes> },
    Tell(Level, oneshot::Sender<Result<(), Failed>>),
}

impl Job {
    /// What it takes while it waits: an event may be as small as nothing.
    pub(crate) fn bytes(&self) -> usize {
        let payload = match self {
            Self::Append { payload, .. } => framed_bytes(payload.iter().map(Bytes::len).sum()),
            Self::Tell(..) => 0,
        };
        size_of::<Self>() + payload
    }
}

/// How far something is before its owner goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// The kernel has it: it outlives the process.
    Written,
    /// The disk has it: it outlives the machine.
    Synced,
}

/// What the writer waits for, and is asked to do.
#[derive(Default)]
pub(crate) struct Queue {
    pub jobs: VecDeque<Job>,
    /// Whether anybody waits for one of them to be done.
    pub is_urgent: bool,
    /// Whether the writer waits for the first job.
    pub is_idle: bool,
    /// What they take, those among it that are being written.
    pub bytes: usize,
    pub closed: bool,
}

/// What is left to the thread beside the writer.
enum Errand {
    /// Allocate this segment.
    Allocate(u64),
    /// Write a sealed segment's index, then see what need not be kept.
    Seal { number: u64, index: Vec<u8>, oldest_live: u64 },
}

pub(crate) struct Writer {
    shared: Arc<Shared>,
    current: Segment,
    buffer: Vec<u8>,
    errands: mpsc::Sender<Errand>,
    segments_ahead: u64,
    spare: mpsc::Receiver<Segment>,
    waiting: Vec<oneshot::Sender<Result<(), Failed>>>,
    synced_at: Instant,
    broken: Option<Failed>,
    helper: JoinHandle<()>,
}

impl Writer {
    /// Starts both threads.
    pub(crate) fn start(
        shared: Arc<Shared>,
        current: Segment,
        segments_ahead: u64,
    ) -> io::Result<JoinHandle<()>> {
        let (errands, todo) = mpsc::channel();
        let (made, spare) = mpsc::channel();
        let its = shared.clone();
        let helper = std::thread::Builder::new().name("journal-files".to_owned());
        let helper = helper.spawn(move || run_errands(&its, &todo, &made))?;
        for ahead in 1..=segments_ahead {
            let _ = errands.send(Errand::Allocate(current.number + ahead));
        }
        let writer = Self {
            shared,
            current,
            buffer: Vec::with_capacity(BATCH_BYTES_MAX),
            errands,
            segments_ahead,
            spare,
            waiting: Vec::new(),
            synced_at: Instant::now(),
            broken: None,
            helper,
        };
        std::thread::Builder::new().name("journal-writer".to_owned()).spawn(move || writer.run())
    }

    fn run(mut self) {
        while let Some(jobs) = self.next() {
            let bytes: usize = jobs.iter().map(Job::bytes).sum();
            for job in jobs {
                match job {
                    Job::Append { rollout, kind, payload } => self.append(rollout, kind, &payload),
                    Job::Tell(level, who) => self.tell(level, who),
                }
            }
            self.flush();
            self.shared.queue().bytes -= bytes;
            self.shared.room.notify_waiters();
            if !self.waiting.is_empty() && self.synced_at.elapsed() >= SYNC_INTERVAL {
                self.sync();
            }
        }
        self.flush();
        self.sync();
        drop(self.errands);
        let _ = self.helper.join();
        // What was allocated ahead is given back. Where that fails it is merely larger.
        if self.broken.is_none() {
            let _ = self.current.shrink();
        }
        for ahead in self.spare.try_iter() {
            let _ = std::fs::remove_file(self.shared.folder.segment(ahead.number));
        }
    }

    /// What there is to do; nothing more once the journal is closed. While somebody waits for a
    /// sync, no longer than until that is due.
    fn next(&mut self) -> Option<VecDeque<Job>> {
        let shared = self.shared.clone();
        let mut queue = shared.queue();
        // It looks once more by itself before it has to be woken: where there was something there is
        // more soon, and waking it costs whoever has it.
        let mut since = Instant::now();
        loop {
            let left = GATHERED.saturating_sub(since.elapsed());
            if !queue.jobs.is_empty() {
                let is_due = queue.is_urgent || queue.closed || queue.bytes >= BATCH_BYTES_MAX;
                if is_due || left.is_zero() {
                    queue.is_urgent = false;
                    return Some(std::mem::take(&mut queue.jobs));
                }
                let waited = shared.todo.wait_timeout(queue, left);
                queue = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            if queue.closed {
                return None;
            }
            if self.waiting.is_empty() {
                if !left.is_zero() {
                    let waited = shared.todo.wait_timeout(queue, left);
                    queue = waited.unwrap_or_else(PoisonError::into_inner).0;
                    continue;
                }
                queue.is_idle = true;
                queue = shared.todo.wait(queue).unwrap_or_else(PoisonError::into_inner);
                queue.is_idle = false;
                since = Instant::now();
                continue;
            }
            let left = SYNC_INTERVAL.saturating_sub(self.synced_at.elapsed());
            if left.is_zero() {
                drop(queue);
                self.sync();
                queue = shared.queue();
                continue;
            }
            let waited = shared.todo.wait_timeout(queue, left);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn append(&mut self, rollout: u64, kind: Kind, payload: &[Bytes]) {
        let bytes = framed_bytes(payload.iter().map(Bytes::len).sum());
        let is_fresh = self.current.end == crate::segment::HEADER_BYTES && self.buffer.is_empty();
        // A record that no segment has room for makes one of its own longer.
        if self.current.end + (self.buffer.len() + bytes) as u64 > self.current.capacity && !is_fresh {
            self.flush();
            self.roll();
        }
        let offset = self.current.end + self.buffer.len() as u64;
        record::write(&mut self.buffer, rollout, kind, payload);
        let place = Location::new(self.current.number, kind, offset);
        let mut tables = self.shared.tables();
        tables.index.note(rollout, kind, payload.first().map_or(&[][..], |name| name), place);
        drop(tables);
        if self.buffer.len() >= BATCH_BYTES_MAX {
            self.flush();
        }
    }

    fn tell(&mut self, level: Level, who: oneshot::Sender<Result<(), Failed>>) {
        self.flush();
        match (level, &self.broken) {
            (_, Some(failed)) => drop(who.send(Err(failed.clone()))),
            (Level::Written, None) => drop(who.send(Ok(()))),
            (Level::Synced, None) => self.waiting.push(who),
        }
    }

    /// Writes what is gathered, as soon as there is room for it.
    fn flush(&mut self) {
        if self.buffer.is_empty() {
            return;
        }
        while self.broken.is_none() {
            match self.current.write(&self.buffer) {
                Ok(()) => break,
                // Whoever closes it waits for no room.
                Err(error) if is_full(&error) && !self.shared.is_closed() => {
                    self.shared.set_full(Some(error.to_string()));
                    std::thread::sleep(NO_ROOM_PAUSE);
                }
                Err(error) => self.breaks("write", &error),
            }
        }
        if self.broken.is_some() {
            // Places go on, so that what is noted of them stays in order.
            self.current.end += self.buffer.len() as u64;
        } else {
            self.shared.tables().flushed = (self.current.number, self.current.end);
        }
        self.buffer.clear();
    }

    fn sync(&mut self) {
        // A sync that failed is final: the kernel may have forgotten what it could not write.
        if self.broken.is_none()
            && !self.waiting.is_empty()
            && let Err(error) = self.current.sync()
        {
            self.breaks("sync", &error);
        }
        self.synced_at = Instant::now();
        let told = self.broken.clone().map_or(Ok(()), Err);
        for who in self.waiting.drain(..) {
            let _ = who.send(told.clone());
        }
    }

    /// Goes on in the next segment. Whoever waits for a sync is notified before.
    fn roll(&mut self) {
        self.sync();
        if self.broken.is_some() {
            return;
        }
        if let Err(error) = self.current.seal() {
            return self.breaks("seal", &error);
        }
        let number = self.current.number;
        let mut tables = self.shared.tables();
        let (index, oldest_live) = (tables.index.write(), tables.index.oldest_live());
        let ended = tables.index.take_sealed();
        tables.unwritten.push((number, ended.into()));
        drop(tables);
        // Both end with the journal, and this is before that.
        let _ = self.errands.send(Errand::Seal { number, index, oldest_live });
        match self.spare.recv() {
            Ok(next) => self.current = next,
            Err(_) => return self.breaks("go on", &io::Error::other("its other thread is gone")),
        }
        let _ = self.errands.send(Errand::Allocate(self.current.number + self.segments_ahead));
    }

    fn breaks(&mut self, what: &'static str, error: &io::Error) {
        let failed = Failed(format!("the journal cannot {what}: {error}").into());
        tracing::error!(%error, "the journal cannot {what}; no rollout is admitted any more");
        self.shared.set_broken(failed.clone());
        self.broken = Some(failed);
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn run_errands(shared: &Shared, todo: &mpsc::Receiver<Errand>, made: &mpsc::Sender<Segment>) {
    let folder = &shared.folder;
    for errand in todo {
        match errand {
            Errand::Allocate(number) => {
                let segment = loop {
                    match folder.create(number) {
                        Ok(segment) => break segment,
                        Err(error) => {
                            shared.set_full(Some(format!("no room for the next segment: {error}")));
                            std::thread::sleep(NO_ROOM_PAUSE);
                        }
                    }
                    if shared.is_closed() {
                        return;
                    }
                };
                shared.set_full(None);
                if made.send(segment).is_err() {
                    return;
                }
            }
            Errand::Seal { number, index, oldest_live } => {
                match folder.write_whole(&folder.index(number), &index) {
                    Ok(()) => shared.tables().unwritten.retain(|(unwritten, _)| *unwritten != number),
                    Err(error) => {
                        tracing::warn!(%error, number, "the index of a journal's segment is not written");
                    }
                }
                if let Err(error) = retain(
                    folder,
                    &shared.retention,
                    number,
                    oldest_live.min(shared.held_from.load(Ordering::Relaxed)),
                ) {
                    tracing::warn!(%error, "old segments of the journal are not deleted");
                }
            }
        }
    }
}

/// Deletes segments that need not be kept, the oldest first, and none that has records of a live
/// rollout.
fn retain(folder: &Folder, keep: &Retention, sealed: u64, oldest_live: u64) -> io::Result<()> {
    let mut segments = Vec::new();
    for number in folder.numbers()?.into_iter().filter(|number| *number <= sealed) {
        let about = std::fs::metadata(folder.segment(number))?;
        segments.push((number, about.len(), about.modified()?));
    }
    let mut bytes: u64 = segments.iter().map(|(_, bytes, _)| bytes).sum();
    let now = SystemTime::now();
    for (number, of_it, modified) in segments {
        let age = now.duration_since(modified).unwrap_or_default();
        let is_kept = bytes <= keep.bytes_max && age <= keep.age_max;
        if is_kept || number >= oldest_live {
            break;
        }
        // Without the records the index is nothing.
        std::fs::remove_file(folder.segment(number))?;
        let _ = std::fs::remove_file(folder.index(number));
        bytes -= of_it;
    }
    Ok(())
}

/// What is known of rollouts while records are written.
#[derive(Default)]
pub(crate) struct Tables {
    pub(crate) index: Index,
    /// Of sealed segments, by their numbers, until they are in files.
    pub(crate) unwritten: Vec<(u64, Arc<Index>)>,
    /// To where records are in files, by segment and offset: what was placed behind is still to be
    /// written.
    pub(crate) flushed: (u64, u64),
}

impl Tables {
    /// Of these places those that can be read.
    pub(crate) fn readable(&self, places: &[Location]) -> Vec<Location> {
        let is_there = |place: &&Location| (place.segment(), place.offset) < self.flushed;
        places.iter().take_while(is_there).copied().collect()
    }
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
