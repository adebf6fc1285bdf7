//! A durable log of rollouts.
//!
//! A journal is a directory of segment files. [`JournalStore::begin`] starts a rollout and returns an [`Entry`],
//! which appends events and ends the rollout. One thread writes the records of all rollouts in batches. An
//! event that was [written](Entry::written) survives a crash of the process, a synced event also a crash of
//! the machine. [`JournalStore::open`] truncates a torn tail and returns the unfinished rollouts with their
//! events.
//!
//! The meaning of events is up to their owner. This crate knows bytes, files and numbers.

mod ended;
mod file;
mod found;
mod frame;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod index;
mod jobs;
mod pins;
mod rebuild;
mod record;
mod recover;
mod repair;
mod replica;
mod retain;
mod segment;
mod sync;
mod tables;
mod writer;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, oneshot};

use frame::framed_bytes;
use index::Records;
use jobs::{Errand, Job, Level, Queue, Waiting};
use pins::Pins;
use record::{Kind, PAYLOAD_BYTES_MAX};
use recover::Located;
use replica::Replication;
use segment::Folder;
use sync::Syncs;
use tables::Tables;
use writer::Writer;

pub use ended::{IndexedRollout, name_hash};
pub use file::{FileError, read_file, write_file};
pub use found::{LocatedRollout, all_in, find_in};
pub use rebuild::Rebuild;
pub use repair::{Damage, RepairError, Repaired, repair};
pub use replica::{
    Acknowledge, Replica, ReplicaError, ReplicaRecord, ReplicaSettings, WrongRecord, read_record,
    record_bytes,
};
pub use segment::{Faults, Operation};

/// Default size of a segment. Deletion works by segment, a start reads a whole segment, and the index of the
/// last segment is in memory.
const SEGMENT_BYTES: u64 = 16 << 20;

/// Default number of segments that are allocated in advance, so that running rollouts can finish on a full
/// disk.
const SEGMENTS_AHEAD: u64 = 4;

/// Number of unwritten bytes above which writers wait.
const QUEUE_BYTES_MAX: usize = 64 << 20;

/// Policy for syncing records to disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sync {
    /// Syncs before a rollout is admitted.
    #[default]
    Admission,
    /// Syncs whenever a caller waits for a write.
    Every,
    /// Leaves syncing to the kernel: a crash of the process loses nothing, a crash of the machine may.
    Never,
}

/// Limits on the records of finished rollouts. The last segment and the records of unfinished rollouts are
/// always retained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Maximum size of all segments together, in bytes.
    pub bytes_max: u64,
    /// Maximum time since the last write to a segment.
    pub age_max: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        Self { bytes_max: u64::MAX, age_max: Duration::MAX }
    }
}

/// Settings of a journal.
#[derive(Clone)]
pub struct JournalSettings {
    /// Directory, created if it does not exist.
    pub path: PathBuf,
    /// Policy for syncing.
    pub sync: Sync,
    /// Limits on finished rollouts.
    pub retention: Retention,
    /// Size of a segment in bytes.
    pub segment_bytes: u64,
    /// Number of segments that are allocated in advance, at least 1. New rollouts are refused when another
    /// one cannot be allocated; running rollouts use the remaining ones.
    pub segments_ahead: u64,
    /// Whether all segments are retained until [`hold_from`](JournalStore::hold_from) is called, for an owner that first
    /// has to find out which ones it needs.
    pub is_held: bool,
    /// Log on other machines that stores every record, too.
    pub replica: Option<ReplicaSettings>,
    /// Injected failures, for tests.
    pub faults: Option<Faults>,
}

impl JournalSettings {
    /// Returns the default settings for a journal in this directory.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            sync: Sync::default(),
            retention: Retention::default(),
            segment_bytes: SEGMENT_BYTES,
            segments_ahead: SEGMENTS_AHEAD,
            is_held: false,
            replica: None,
            faults: None,
        }
    }
}

/// Error of opening a journal.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has locked the journal.
    #[error("the journal in {} is locked by another process", .0.display())]
    Taken(PathBuf),
    /// A file cannot be read or created.
    #[error("the journal in {} cannot be opened", .0.display())]
    Io(PathBuf, #[source] io::Error),
    /// Bytes before the end of the records are damaged.
    #[error(
        "{} is damaged at byte {at}: the records there were complete once. `rollout-host journal repair` keeps the \
         readable records and lists the lost rollouts",
        .path.display()
    )]
    Damaged {
        /// Path of the segment.
        path: PathBuf,
        /// Offset of the damage.
        at: u64,
    },
    /// Another version of the host wrote the journal.
    #[error(
        "{} is of version '{}', and this host reads '{}': let the host that wrote it finish its rollouts, then begin \
         with an empty directory",
        path.display(), char::from(*version), char::from(segment::VERSION)
    )]
    Version {
        /// Path of the segment.
        path: PathBuf,
        /// Version of the segment.
        version: u8,
    },
}

/// Permanent failure of the journal, which accepts no more records.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Failed {
    reason: Arc<str>,
    is_fenced: bool,
}

impl Failed {
    /// Creates a failure with this reason.
    pub fn new(reason: impl Into<Arc<str>>) -> Self {
        Self { reason: reason.into(), is_fenced: false }
    }

    /// Creates the failure of a journal whose log another process has taken over.
    pub(crate) fn fenced(reason: impl Into<Arc<str>>) -> Self {
        Self { reason: reason.into(), is_fenced: true }
    }

    /// Returns whether another process has taken the journal's log over and continues its rollouts.
    pub fn is_fenced(&self) -> bool {
        self.is_fenced
    }
}

/// Reason why no rollout can start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JournalRefused {
    /// The disk has no room for more than the running rollouts.
    #[error("the journal's disk is full: {0}")]
    Full(Arc<str>),
    /// The replicated log has not acknowledged records for this time; a retry may succeed.
    #[error("the replicated log has not acknowledged records for {} ms; retry later", .0.as_millis())]
    Late(Duration),
    /// The journal has failed.
    #[error(transparent)]
    Failed(#[from] Failed),
}

/// Position and kind of a record. Memory holds one for each record of an unfinished rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    /// Number of the segment, with the kind in the upper bits.
    kind_and_segment: u64,
    pub offset: u64,
}

impl Location {
    const KIND_AT: u32 = 56;

    /// Placeholder for a record that was not found.
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

    /// Encodes the location for an index.
    pub(crate) fn words(self) -> [u64; 2] {
        [self.kind_and_segment, self.offset]
    }

    pub(crate) fn from_words([kind_and_segment, offset]: [u64; 2]) -> Self {
        Self { kind_and_segment, offset }
    }
}

/// An event of a rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Kind, as chosen by the owner.
    pub kind: u8,
    /// Contents, as chosen by the owner.
    pub payload: Bytes,
}

/// A rollout with all its written records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Name of the rollout.
    pub name: Bytes,
    /// Events in order.
    pub events: Vec<Event>,
    /// Whether the rollout ended.
    pub ended: bool,
}

pub(crate) struct Shared {
    folder: Folder,
    sync: Sync,
    /// Maximum size of the segments, in bytes. It can be changed.
    bytes_max: AtomicU64,
    /// Maximum size of the segments together with room for copies of the records of unfinished rollouts, in bytes. It
    /// can be changed.
    total_bytes_max: AtomicU64,
    /// Maximum time since the last write to a segment.
    age_max: Duration,
    queue: Mutex<Queue>,
    todo: Condvar,
    room: Notify,
    syncs: Mutex<Syncs>,
    to_sync: Condvar,
    tables: Mutex<Tables>,
    /// Size of sealed segments and their indexes on disk.
    sealed_bytes: AtomicU64,
    /// Size of the segments that are allocated in advance.
    ahead_bytes: u64,
    state: Mutex<State>,
    next: AtomicU64,
    /// Size of the records of unfinished rollouts, including queued ones.
    live_bytes: AtomicU64,
    /// Segments that are retained regardless of the limits.
    pins: Mutex<Pins>,
    replication: Option<Replication>,
    /// Notifies waiting tasks of a permanent failure.
    broken_news: Notify,
    /// Lock file, held while the journal is open.
    _lock: File,
}

#[derive(Default)]
struct State {
    full: Option<Arc<str>>,
    broken: Option<Failed>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The data is consistent after every step, so a poisoned lock is safe to use.
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

    fn pins(&self) -> MutexGuard<'_, Pins> {
        locked(&self.pins)
    }

    fn is_closed(&self) -> bool {
        self.queue().closed
    }

    /// Queues records and wakes the writer if necessary.
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

    /// Returns the permanent failure, if there is one.
    fn broken(&self) -> Option<Failed> {
        locked(&self.state).broken.clone()
    }

    /// Records and logs a permanent failure.
    fn fail(&self, what: &'static str, error: &io::Error) -> Failed {
        let failed = Failed::new(format!("the journal cannot {what}: {error}"));
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
        self.broken_news.notify_waiters();
        self.room.notify_waiters();
        if let Some(replication) = &self.replication {
            replication.wake();
        }
    }
}

/// An open journal. Cheap to clone.
#[derive(Clone)]
pub struct JournalStore(Arc<Open>);

struct Open {
    shared: Arc<Shared>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl Open {
    /// Writes all queued records, and syncs them if a caller waits for that. Blocks until it is done.
    fn close(&self) {
        self.shared.queue().closed = true;
        self.shared.todo.notify_all();
        if let Some(replication) = &self.shared.replication {
            replication.wake();
        }
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

impl JournalStore {
    /// Opens a journal and returns its unfinished rollouts, the oldest first. Their events can be
    /// [read](Entry::read). Truncates a torn tail.
    pub fn open(settings: JournalSettings) -> Result<(Self, Vec<Entry>), OpenError> {
        let JournalSettings {
            path,
            sync,
            retention,
            segment_bytes,
            segments_ahead,
            is_held,
            replica,
            faults,
        } = settings;
        let mut folder = Folder { path, segment_bytes, faults, salt: 0, boot: segment::boot() };
        let mut opened = recover::open(&mut folder)?;
        opened.tables.flushed = (opened.current.number, opened.current.end);
        let next = AtomicU64::new(opened.tables.index.next);
        let mut live: Vec<u64> = opened.tables.index.live.keys().copied().collect();
        live.sort_unstable();
        let segments_ahead = segments_ahead.max(1);
        let pins = retain::sealed_sizes(&folder, opened.current.number).map(Pins::new);
        let mut pins = pins.map_err(|error| OpenError::Io(folder.path.clone(), error))?;
        if is_held {
            pins.hold_from(0);
        }
        let live_bytes: HashMap<u64, u64> = {
            let mut reader = recover::Reader::new(&folder);
            // A record that cannot be read fails when its rollout is read.
            let mut bytes = |places: &[Location]| -> u64 {
                places.iter().filter_map(|place| reader.bytes_at(*place).ok()).sum()
            };
            let live = opened.tables.index.live.iter();
            live.map(|(number, records)| (*number, bytes(&records.places))).collect()
        };
        let shared = Arc::new(Shared {
            folder,
            sync,
            bytes_max: AtomicU64::new(retention.bytes_max),
            total_bytes_max: AtomicU64::new(u64::MAX),
            age_max: retention.age_max,
            queue: Mutex::default(),
            todo: Condvar::new(),
            room: Notify::new(),
            syncs: Mutex::new(Syncs::of(&opened.current)),
            to_sync: Condvar::new(),
            tables: Mutex::new(opened.tables),
            sealed_bytes: AtomicU64::new(pins.sealed_bytes()),
            ahead_bytes: segments_ahead * segment_bytes,
            state: Mutex::default(),
            next,
            live_bytes: AtomicU64::new(live_bytes.values().sum()),
            pins: Mutex::new(pins),
            replication: replica.map(Replication::new),
            broken_news: Notify::new(),
            _lock: opened.lock,
        });
        let io = |error| OpenError::Io(shared.folder.path.clone(), error);
        let writer = Writer::start(shared.clone(), opened.current, segments_ahead).map_err(io)?;
        let journal = Self(Arc::new(Open { shared, writer: Mutex::new(Some(writer)) }));
        let entry = |number| Entry {
            journal: journal.clone(),
            number,
            bytes: AtomicU64::new(live_bytes.get(&number).copied().unwrap_or_default()),
        };
        let unfinished = live.into_iter().map(entry).collect();
        Ok((journal, unfinished))
    }

    /// Starts a rollout, unless there is no room for it. [`Entry::admitted`] waits until its start is
    /// durable.
    pub fn begin(&self, name: &str) -> Result<Entry, JournalRefused> {
        self.check()?;
        Ok(self.start(name))
    }

    fn start(&self, name: &str) -> Entry {
        let number = self.0.shared.next.fetch_add(1, Ordering::Relaxed);
        let entry = Entry { journal: self.clone(), number, bytes: AtomicU64::new(0) };
        entry.push(Kind::Begin, vec![Bytes::copy_from_slice(name.as_bytes())]);
        entry
    }

    /// Closes the journal at the end of the process and blocks until all queued records are written. Records
    /// that are appended later are never written, and waiting for them never ends.
    pub fn close(&self) {
        self.0.close();
    }

    async fn wait_for(&self, level: Level) -> Result<(), Failed> {
        let (sender, receiver) = oneshot::channel();
        self.0.shared.add([Job::Notify(level, Waiting::Caller(sender))]);
        let closed = |_| Failed::new("the journal is closed");
        receiver.await.map_err(closed)?
    }

    /// Waits until all records that were appended so far can be found.
    pub async fn written(&self) -> Result<(), Failed> {
        self.wait_for(Level::Written).await
    }

    /// Waits while too many bytes are queued, or while the replica is [late](JournalRefused::Late).
    pub async fn room(&self) {
        let shared = &self.0.shared;
        loop {
            let mut news = std::pin::pin!(shared.room.notified());
            news.as_mut().enable();
            // One lock after the other: the writer holds the replication's while it takes the others.
            let queued = shared.queue().bytes;
            let replica_has_room = shared.replication.as_ref().is_none_or(Replication::has_room);
            // A journal that has failed stores nothing, so nothing waits for it.
            if queued <= QUEUE_BYTES_MAX && (replica_has_room || shared.broken().is_some()) {
                return;
            }
            news.await;
        }
    }

    /// Waits until the journal fails permanently, such as when another process has
    /// [taken its log over](Failed::is_fenced).
    pub async fn failed(&self) -> Failed {
        let shared = &self.0.shared;
        loop {
            let mut news = std::pin::pin!(shared.broken_news.notified());
            news.as_mut().enable();
            if let Some(failed) = shared.broken() {
                return failed;
            }
            news.await;
        }
    }

    /// Returns the size of the journal on disk, including segments that are allocated in advance.
    pub fn bytes(&self) -> u64 {
        let shared = &self.0.shared;
        let current = shared.tables().flushed.1.max(shared.folder.segment_bytes);
        shared.sealed_bytes.load(Ordering::Relaxed) + current + shared.ahead_bytes
    }

    /// Returns an upper bound of the bytes of segments that are never deleted for new records: twice the records of
    /// unfinished rollouts, including queued ones, because segments of which they are more than half are not copied;
    /// and the segments that are [held](Self::hold_from).
    pub fn retained_bytes(&self) -> u64 {
        let shared = &self.0.shared;
        let live = shared.live_bytes.load(Ordering::Relaxed);
        live.saturating_mul(2).saturating_add(shared.pins().bytes())
    }

    /// Sets the maximum size of the sealed segments together with unfinished rollouts: finished rollouts are deleted
    /// as far as the records of unfinished ones need their room.
    pub fn set_total_bytes_max(&self, total_bytes_max: u64) {
        let shared = &self.0.shared;
        if shared.total_bytes_max.swap(total_bytes_max, Ordering::Relaxed) > total_bytes_max {
            shared.add([Job::Notify(Level::Written, Waiting::Errand(Errand::Retain))]);
        }
    }

    /// Changes the [maximum size](Retention::bytes_max) of the segments. Segments beyond a smaller size are deleted
    /// in the background.
    pub fn set_bytes_max(&self, bytes_max: u64) {
        let shared = &self.0.shared;
        if shared.bytes_max.swap(bytes_max, Ordering::Relaxed) > bytes_max {
            shared.add([Job::Notify(Level::Written, Waiting::Errand(Errand::Retain))]);
        }
    }

    /// Returns whether rollouts can start.
    pub fn check(&self) -> Result<(), JournalRefused> {
        let state = locked(&self.0.shared.state);
        if let Some(failed) = &state.broken {
            return Err(failed.clone().into());
        }
        if let Some(why) = &state.full {
            return Err(JournalRefused::Full(why.clone()));
        }
        drop(state);
        let late = self.0.shared.replication.as_ref().and_then(Replication::late);
        late.map_or(Ok(()), |age| Err(JournalRefused::Late(age)))
    }

    /// Returns the rollouts of this name, the latest first. Reads files.
    pub fn find(&self, name: &str) -> io::Result<Vec<LocatedRollout>> {
        let shared = &self.0.shared;
        let hash = index::hash(name.as_bytes());
        let mut found: Vec<Located> = Vec::new();
        {
            let tables = shared.tables();
            let is_it = |records: &&Records| records.name == hash;
            let mut live: Vec<_> = tables.index.live.iter().filter(|(_, records)| is_it(records)).collect();
            live.sort_unstable_by_key(|(number, _)| std::cmp::Reverse(**number));
            let readable = |(number, records): (&u64, &Records)| Located {
                places: tables.readable(&records.places),
                live: Some((*number, hash)),
            };
            found.extend(live.into_iter().map(readable));
            let sealed = tables.unwritten.iter().rev().map(|(_, index)| &**index);
            let ended =
                std::iter::once(&tables.index).chain(sealed).flat_map(|index| index.ended.iter().rev());
            found.extend(ended.filter(is_it).map(|records| Located::ended(tables.readable(&records.places))));
            found.retain(|located| !located.places.is_empty());
        }
        for places in recover::find_sealed(&shared.folder, hash, u64::MAX)? {
            // The index may have been written to its file in the meantime.
            if !found.iter().any(|known| known.places == places) {
                found.push(Located::ended(places));
            }
        }
        found::named(&shared.folder, found, name)
    }
}

/// One rollout in a journal. Dropping the entry leaves the rollout unfinished unless it was
/// [ended](Self::end).
pub struct Entry {
    journal: JournalStore,
    number: u64,
    /// Size of the records, including queued ones, until the rollout ends.
    bytes: AtomicU64,
}

/// Error of appending a payload that exceeds the maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event of {0} bytes exceeds the maximum of {PAYLOAD_BYTES_MAX} bytes")]
pub struct TooLong(pub usize);

impl Entry {
    /// Returns the number of the rollout, which is unique within the journal.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the kinds of the written events, in order, while the rollout is unfinished.
    pub fn kinds(&self) -> Vec<u8> {
        let tables = self.journal.0.shared.tables();
        let places = tables.index.live.get(&self.number).map_or(&[][..], |records| &records.places);
        let kind = |place: &Location| match place.kind() {
            Kind::Event(kind) => Some(kind),
            Kind::Begin | Kind::End => None,
        };
        places.iter().filter_map(kind).collect()
    }

    /// Reads the written events of the wanted kinds, while the rollout is unfinished. Reads files.
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
                // The records were copied to another segment in the meantime.
                Err(error) if error.kind() == io::ErrorKind::NotFound && places != before => before = places,
                read => return read,
            }
        }
    }

    /// Appends an event of a kind from 1 to 254, with a payload in parts. The event is written soon;
    /// [`Entry::written`] waits for that.
    pub fn append(&self, kind: u8, payload: Vec<Bytes>) -> Result<(), TooLong> {
        debug_assert!(matches!(Kind::of(kind), Kind::Event(_)), "the journal reserves this kind");
        let bytes = payload.iter().map(Bytes::len).fold(0, usize::saturating_add);
        if bytes > PAYLOAD_BYTES_MAX {
            return Err(TooLong(bytes));
        }
        self.push(Kind::Event(kind), payload);
        Ok(())
    }

    /// Ends the rollout. Nothing may be appended afterwards.
    pub fn end(&self) {
        self.push(Kind::End, Vec::new());
    }

    fn push(&self, kind: Kind, payload: Vec<Bytes>) {
        let live_bytes = &self.journal.0.shared.live_bytes;
        if kind == Kind::End {
            live_bytes.fetch_sub(self.bytes.swap(0, Ordering::AcqRel), Ordering::AcqRel);
        } else {
            let bytes = framed_bytes(payload.iter().map(Bytes::len).sum()) as u64;
            // In this order, so that an end at the same moment subtracts no more than was added.
            live_bytes.fetch_add(bytes, Ordering::AcqRel);
            self.bytes.fetch_add(bytes, Ordering::AcqRel);
        }
        self.journal.0.shared.add([Job::Append { rollout: self.number, kind, payload }]);
    }

    /// Waits until the start of the rollout is durable according to the policy for syncing.
    pub async fn admitted(&self) -> Result<(), Failed> {
        self.wait_for(self.journal.0.shared.sync.level(true)).await
    }

    /// Waits until all records that were appended so far survive a crash of the process, and of the machine
    /// if every write is synced.
    pub async fn written(&self) -> Result<(), Failed> {
        self.wait_for(self.journal.0.shared.sync.level(false)).await
    }

    async fn wait_for(&self, level: Level) -> Result<(), Failed> {
        self.journal.wait_for(level).await
    }

    /// Waits while too many bytes are queued. Appending never waits, so a caller that appends many events
    /// awaits this before each.
    pub async fn room(&self) {
        self.journal.room().await;
    }
}
