//! What happened in rollouts, in the order in which it did, on disk before anybody is notified.
//!
//! A journal is a directory of segment files. [`Journal::begin`] begins a rollout, its
//! [`Entry`] takes events and their end; all of them go to one thread, which writes them in
//! batches. An event that was [written](Entry::written) outlives the process, one that was
//! synced the machine. [`Journal::open`] finds what was there: a tail that is torn is cut, and the
//! rollouts that did not end are given back with their events.
//!
//! What events say is their owner's business. This crate knows bytes, files and numbers.

mod ended;
mod file;
mod found;
mod frame;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod index;
mod record;
mod recover;
mod repair;
mod retain;
mod segment;
mod sync;
mod writer;

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, oneshot};

use index::Records;
use record::{Kind, PAYLOAD_BYTES_MAX};
use recover::Lies;
use segment::Folder;
use sync::{Syncs, Waiting};
use writer::{Job, Level, Queue, Tables, Writer};

pub use ended::{Ended, name_hash};
pub use file::{FileError, read_file, write_file};
pub use found::{Found, all_in, find_in};
pub use repair::{Damage, RepairError, Repaired, repair};
pub use segment::{Faults, Operation};

/// What a segment has unless its operator says otherwise: deleting is by segment, a start
/// reads one whole, and where the records are that the last one has is in memory.
const SEGMENT_BYTES: u64 = 16 << 20;

/// How many are allocated ahead: on a disk that becomes full, what runs is finished in them.
const SEGMENTS_AHEAD: u64 = 4;

/// What waits to be written before whoever writes more waits too, in bytes.
const QUEUE_BYTES_MAX: usize = 64 << 20;

/// When what was written is brought to the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sync {
    /// Before a rollout is admitted.
    #[default]
    Admission,
    /// Whenever somebody waits for it to be written.
    Every,
    /// Whenever the kernel likes: a process that dies loses nothing, a machine may.
    Never,
}

/// How much is kept of rollouts that are over. What the last segment has is kept in any case, and
/// all of those that are not over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// All segments together, in bytes.
    pub bytes_max: u64,
    /// Since a segment was last written to.
    pub age_max: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        Self { bytes_max: u64::MAX, age_max: Duration::MAX }
    }
}

/// Where a journal is, and what it promises.
#[derive(Clone)]
pub struct Settings {
    /// Its directory, made where there is none.
    pub path: PathBuf,
    /// When it syncs.
    pub sync: Sync,
    /// What it keeps.
    pub retention: Retention,
    /// The size of a segment in bytes.
    pub segment_bytes: u64,
    /// How many segments are allocated ahead, at least 1. New rollouts are refused once there is no room for one more;
    /// those that run have the others.
    pub segments_ahead: u64,
    /// For tests: operations that fail.
    pub faults: Option<Faults>,
}

impl Settings {
    /// A journal in this directory, with defaults.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            sync: Sync::default(),
            retention: Retention::default(),
            segment_bytes: SEGMENT_BYTES,
            segments_ahead: SEGMENTS_AHEAD,
            faults: None,
        }
    }
}

/// Why there is no journal.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has it.
    #[error("the journal in {} is another process's", .0.display())]
    Taken(PathBuf),
    /// Its files cannot be read or made.
    #[error("the journal in {} cannot be opened", .0.display())]
    Io(PathBuf, #[source] io::Error),
    /// A part of it is not what was written, and not at its end.
    #[error(
        "{} is damaged at byte {at}: what was written there was whole once. `rollout-host journal repair` keeps what \
         is readable of the journal and lists what is not",
        .path.display()
    )]
    Damaged {
        /// The segment.
        path: PathBuf,
        /// Where.
        at: u64,
    },
    /// Another version of the host wrote it.
    #[error(
        "{} is of version '{}', and this host reads '{}': let the host that wrote it finish its rollouts, then begin \
         with an empty directory",
        path.display(), char::from(*version), char::from(segment::VERSION)
    )]
    Version {
        /// The segment.
        path: PathBuf,
        /// Its version.
        version: u8,
    },
}

/// The journal does not take what it is given any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Failed(pub(crate) Arc<str>);

impl Failed {
    /// For this reason.
    pub fn new(reason: impl Into<Arc<str>>) -> Self {
        Self(reason.into())
    }
}

/// Why no rollout can begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// There is no room for more than what runs.
    #[error("the journal's disk is full: {0}")]
    Full(Arc<str>),
    /// It failed.
    #[error(transparent)]
    Failed(#[from] Failed),
}

/// Where a record is, and of which kind. A live rollout has one for each of its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    /// The segment, and above its bits the kind.
    kind_and_segment: u64,
    pub offset: u64,
}

impl Location {
    const KIND_AT: u32 = 56;

    /// Stands for a record that was not found.
    pub(crate) const MISSING: Self = Self { kind_and_segment: u64::MAX, offset: u64::MAX };

    pub(crate) fn new(segment: u64, kind: Kind, offset: u64) -> Self {
        Self { kind_and_segment: u64::from(kind.byte()) << Self::KIND_AT | segment, offset }
    }

    pub(crate) fn segment(self) -> u64 {
        self.kind_and_segment & ((1 << Self::KIND_AT) - 1)
    }

    pub(crate) fn kind(self) -> Kind {
        let [.., kind] = self.kind_and_segment.to_le_bytes();
        Kind::of(kind)
    }

    /// As it is in an index.
    pub(crate) fn words(self) -> [u64; 2] {
        [self.kind_and_segment, self.offset]
    }

    pub(crate) fn of_words([kind_and_segment, offset]: [u64; 2]) -> Self {
        Self { kind_and_segment, offset }
    }
}

/// An event, as it was appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its owner's word for what it is.
    pub kind: u8,
    /// What it says.
    pub payload: Bytes,
}

/// A rollout with all that was written of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Its name, as it began.
    pub name: Bytes,
    /// Its events, in order.
    pub events: Vec<Event>,
    /// Whether it ended.
    pub ended: bool,
}

pub(crate) struct Shared {
    folder: Folder,
    sync: Sync,
    retention: Retention,
    queue: Mutex<Queue>,
    todo: Condvar,
    room: Notify,
    syncs: Mutex<Syncs>,
    to_sync: Condvar,
    tables: Mutex<Tables>,
    /// What sealed segments and their indexes take on disk.
    sealed_bytes: AtomicU64,
    /// What is allocated ahead.
    ahead_bytes: u64,
    state: Mutex<State>,
    next: AtomicU64,
    /// What is kept from this segment on, whatever the retention says.
    held_from: AtomicU64,
    /// Held for as long as the journal is open.
    _lock: File,
}

#[derive(Default)]
struct State {
    full: Option<Arc<str>>,
    broken: Option<Failed>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves plain data.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        locked(&self.queue)
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        locked(&self.tables)
    }

    fn syncs(&self) -> MutexGuard<'_, Syncs> {
        locked(&self.syncs)
    }

    fn is_closed(&self) -> bool {
        self.queue().closed
    }

    /// Adds to what is to be written, and wakes the writer where that is due.
    fn add(&self, jobs: impl IntoIterator<Item = Job>) {
        let mut queue = self.queue();
        let mut became_urgent = false;
        for job in jobs {
            became_urgent |= job.is_urgent() && !std::mem::replace(&mut queue.is_urgent, true);
            queue.bytes += job.bytes();
            queue.jobs.push_back(job);
        }
        let was_idle = std::mem::take(&mut queue.is_idle);
        let wakes = became_urgent || was_idle || queue.bytes >= writer::BATCH_BYTES_MAX;
        drop(queue);
        if wakes {
            self.todo.notify_one();
        }
    }

    /// Why nothing is written any more.
    fn broken(&self) -> Option<Failed> {
        locked(&self.state).broken.clone()
    }

    /// What cannot be done any more, which is final.
    fn breaks(&self, what: &'static str, error: &io::Error) -> Failed {
        let failed = Failed(format!("the journal cannot {what}: {error}").into());
        tracing::error!(%error, "the journal cannot {what}; no rollout is admitted any more");
        self.set_broken(failed.clone());
        failed
    }

    fn set_full(&self, why: Option<String>) {
        let mut state = locked(&self.state);
        if why.is_some() != state.full.is_some() {
            match &why {
                Some(reason) => tracing::error!(reason, "the journal's disk is full; no rollout is admitted"),
                None => tracing::info!("the journal has room again"),
            }
        }
        state.full = why.map(Into::into);
    }

    fn set_broken(&self, failed: Failed) {
        locked(&self.state).broken = Some(failed);
    }
}

/// An open journal. Cheap to clone.
#[derive(Clone)]
pub struct Journal(Arc<Open>);

struct Open {
    shared: Arc<Shared>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl Open {
    /// What was appended is written, and synced where anybody waits for it. Waits for that.
    fn close(&self) {
        self.shared.queue().closed = true;
        self.shared.todo.notify_all();
        if let Some(writer) = locked(&self.writer).take() {
            let _ = writer.join();
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.close();
    }
}

impl Journal {
    /// Opens a journal, and gives the rollouts in it that are not over, the oldest first: where each
    /// goes on, and what [was written](Entry::read) of it. Reads files, and cuts a torn tail.
    pub fn open(settings: Settings) -> Result<(Self, Vec<Entry>), OpenError> {
        let Settings { path, sync, retention, segment_bytes, segments_ahead, faults } = settings;
        let mut folder = Folder { path, segment_bytes, faults, salt: 0, boot: segment::boot() };
        let mut opened = recover::open(&mut folder)?;
        opened.tables.flushed = (opened.current.number, opened.current.end);
        let next = AtomicU64::new(opened.tables.index.next);
        let mut live: Vec<u64> = opened.tables.index.live.keys().copied().collect();
        live.sort_unstable();
        let segments_ahead = segments_ahead.max(1);
        let sealed = retain::sealed_bytes(&folder, opened.current.number);
        let sealed = sealed.map_err(|error| OpenError::Io(folder.path.clone(), error))?;
        let shared = Arc::new(Shared {
            folder,
            sync,
            retention,
            queue: Mutex::default(),
            todo: Condvar::new(),
            room: Notify::new(),
            syncs: Mutex::new(Syncs::of(&opened.current)),
            to_sync: Condvar::new(),
            tables: Mutex::new(opened.tables),
            sealed_bytes: AtomicU64::new(sealed),
            ahead_bytes: segments_ahead * segment_bytes,
            state: Mutex::default(),
            next,
            held_from: AtomicU64::new(u64::MAX),
            _lock: opened.lock,
        });
        let io = |error| OpenError::Io(shared.folder.path.clone(), error);
        let writer = Writer::start(shared.clone(), opened.current, segments_ahead).map_err(io)?;
        let journal = Self(Arc::new(Open { shared, writer: Mutex::new(Some(writer)) }));
        let entry = |number| Entry { journal: journal.clone(), number };
        let unfinished = live.into_iter().map(entry).collect();
        Ok((journal, unfinished))
    }

    /// Begins a rollout, unless there is no room for it. That it did is safe once
    /// [`Entry::admitted`] says so.
    pub fn begin(&self, name: &str) -> Result<Entry, Refused> {
        self.check()?;
        Ok(self.start(name))
    }

    fn start(&self, name: &str) -> Entry {
        let number = self.0.shared.next.fetch_add(1, Ordering::Relaxed);
        let entry = Entry { journal: self.clone(), number };
        entry.push(Kind::Begin, vec![Bytes::copy_from_slice(name.as_bytes())]);
        entry
    }

    /// Closes it at the end of its process: what was appended is written, which this waits for. What
    /// is appended later is not, and whoever waits for that waits as long as the process lives.
    pub fn close(&self) {
        self.0.close();
    }

    async fn reaches(&self, level: Level) -> Result<(), Failed> {
        let (tell, told) = oneshot::channel();
        self.0.shared.add([Job::Tell(level, Waiting::Caller(tell))]);
        let gone = |_| Failed("the journal is closed".into());
        told.await.map_err(gone)?
    }

    /// Waits until all that was added so far can be found.
    pub async fn written(&self) -> Result<(), Failed> {
        self.reaches(Level::Written).await
    }

    /// Waits while more is to be written than there should be.
    pub async fn room(&self) {
        let shared = &self.0.shared;
        loop {
            let news = shared.room.notified();
            if shared.queue().bytes <= QUEUE_BYTES_MAX {
                return;
            }
            news.await;
        }
    }

    /// What the journal takes on disk, those segments among it that are allocated ahead: as of what was written by now.
    pub fn bytes(&self) -> u64 {
        let shared = &self.0.shared;
        let current = shared.tables().flushed.1.max(shared.folder.segment_bytes);
        shared.sealed_bytes.load(Ordering::Relaxed) + current + shared.ahead_bytes
    }

    /// Whether rollouts can begin.
    pub fn check(&self) -> Result<(), Refused> {
        let state = locked(&self.0.shared.state);
        if let Some(failed) = &state.broken {
            return Err(failed.clone().into());
        }
        state.full.clone().map_or(Ok(()), |why| Err(Refused::Full(why)))
    }

    /// The rollouts of this name that are in the journal, the last one first. Reads files.
    pub fn find(&self, name: &str) -> io::Result<Vec<Found>> {
        let shared = &self.0.shared;
        let hash = index::hash(name.as_bytes());
        let mut found: Vec<Lies> = Vec::new();
        {
            let tables = shared.tables();
            let is_it = |records: &&Records| records.name == hash;
            let mut live: Vec<_> = tables.index.live.iter().filter(|(_, records)| is_it(records)).collect();
            live.sort_unstable_by_key(|(number, _)| std::cmp::Reverse(**number));
            let readable = |(number, records): (&u64, &Records)| Lies {
                places: tables.readable(&records.places),
                live: Some((*number, hash)),
            };
            found.extend(live.into_iter().map(readable));
            let sealed = tables.unwritten.iter().rev().map(|(_, index)| &**index);
            let ended =
                std::iter::once(&tables.index).chain(sealed).flat_map(|index| index.ended.iter().rev());
            found.extend(ended.filter(is_it).map(|records| Lies::ended(tables.readable(&records.places))));
            found.retain(|lies| !lies.places.is_empty());
        }
        for places in recover::find_sealed(&shared.folder, hash)? {
            // An index may have come to be in its file meanwhile.
            if !found.iter().any(|known| known.places == places) {
                found.push(Lies::ended(places));
            }
        }
        found::named(&shared.folder, found, name)
    }
}

/// One rollout in a journal. Dropped, it is as it was left: not over, unless it was
/// [ended](Self::end).
pub struct Entry {
    journal: Journal,
    number: u64,
}

/// A payload that no record has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event of {0} bytes is longer than a journal takes, {PAYLOAD_BYTES_MAX}")]
pub struct TooLong(pub usize);

impl Entry {
    /// Its number, which no other rollout in this journal ever has.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The kinds of its events that were written, in order, while it is not over.
    pub fn kinds(&self) -> Vec<u8> {
        let tables = self.journal.0.shared.tables();
        let places = tables.index.live.get(&self.number).map_or(&[][..], |records| &records.places);
        let kind = |place: &Location| match place.kind() {
            Kind::Event(kind) => Some(kind),
            Kind::Begin | Kind::End => None,
        };
        places.iter().filter_map(kind).collect()
    }

    /// What was written of it, while it is not over: its events of these kinds. Reads files.
    pub fn read(&self, wanted: impl Fn(u8) -> bool) -> io::Result<Written> {
        let shared = &self.journal.0.shared;
        let is_wanted = |place: &Location| match place.kind() {
            Kind::Event(kind) => wanted(kind),
            Kind::Begin | Kind::End => true,
        };
        let mut before = Vec::new();
        loop {
            let places = shared.tables().index.live.get(&self.number).map(|records| records.places.clone());
            let places: Vec<Location> = places.unwrap_or_default().into_iter().filter(is_wanted).collect();
            match recover::Reader::new(&shared.folder).read(self.number, &places) {
                // They were copied to another segment meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound && places != before => before = places,
                read => return read,
            }
        }
    }

    /// Adds an event, of a kind from 1 to 254, in as many parts as there are. It is written soon;
    /// whoever needs to know waits for [`Entry::written`].
    pub fn append(&self, kind: u8, payload: Vec<Bytes>) -> Result<(), TooLong> {
        debug_assert!(matches!(Kind::of(kind), Kind::Event(_)), "a kind of the journal's own");
        let bytes = payload.iter().map(Bytes::len).fold(0, usize::saturating_add);
        if bytes > PAYLOAD_BYTES_MAX {
            return Err(TooLong(bytes));
        }
        self.push(Kind::Event(kind), payload);
        Ok(())
    }

    /// The rollout is over. Nothing may be added after this.
    pub fn end(&self) {
        self.push(Kind::End, Vec::new());
    }

    fn push(&self, kind: Kind, payload: Vec<Bytes>) {
        self.journal.0.shared.add([Job::Append { rollout: self.number, kind, payload }]);
    }

    /// Waits until the rollout's beginning is as safe as an admission has to be.
    pub async fn admitted(&self) -> Result<(), Failed> {
        self.reaches(self.journal.0.shared.sync.level(true)).await
    }

    /// Waits until all that was added so far outlives the process, and the machine where every
    /// write is synced.
    pub async fn written(&self) -> Result<(), Failed> {
        self.reaches(self.journal.0.shared.sync.level(false)).await
    }

    async fn reaches(&self, level: Level) -> Result<(), Failed> {
        self.journal.reaches(level).await
    }

    /// Waits while more is to be written than there should be. Whoever adds many events asks before
    /// each: adding itself never waits.
    pub async fn room(&self) {
        self.journal.room().await;
    }
}
