//! Segment files and their headers.
//!
//! ```text
//! "ROLLSEG8" | u64 number | u64 salt | u32 CRC-32 of these | u32 zero
//!            | u64 synced | u64 end of the segment before | u64 boot | u32 CRC-32 of these three | u32 zero
//! records
//! ```
//!
//! The first half of the header is written once. The second half, the [`Progress`], records how far the
//! segment was synced. It distinguishes damage of durable records from records that a crash left incomplete.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, ftruncate, seek};
use rustix::io::Errno;

use crate::frame::{JOURNAL_ROLLOUT, Parsed, Record, Stamp};

/// Beginning of every segment, followed by the version.
const MAGIC: &[u8; 7] = b"ROLLSEG";

/// Version of the format. Other versions are rejected. It differs from versions 1, 4 and 7 in at least two bits, so
/// that one flipped bit is damage and not another version.
pub(crate) const VERSION: u8 = b'8';

/// Size of the header.
pub(crate) const HEADER_BYTES: u64 = 64;

/// Offset of the progress.
const PROGRESS_AT: u64 = 32;

/// Operation on a disk that tests can make fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Allocation of a segment.
    Allocate,
    /// Writing of records.
    Write,
    /// Syncing of written records.
    Sync,
}

/// Function that is called before each operation and may make it fail.
pub type Faults = Arc<dyn Fn(Operation) -> io::Result<()> + Send + Sync>;

/// Directory of a journal.
#[derive(Clone)]
pub(crate) struct Folder {
    pub path: PathBuf,
    pub segment_bytes: u64,
    pub faults: Option<Faults>,
    /// Salt for the marks of new segments.
    pub salt: u64,
    /// Id of the current boot of the machine; 0 if unknown.
    pub boot: u64,
}

/// Synced part of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// All bytes before this offset were synced.
    pub synced: u64,
    /// End of the records in the previous segment; 0 if there is none.
    pub previous_end: u64,
    /// Id of the boot in which the progress was written.
    pub boot: u64,
}

/// Parsed header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub stamp: Stamp,
    /// `None` if the progress is damaged, which loses no records.
    pub progress: Option<Progress>,
}

impl Header {
    pub(crate) fn synced(&self) -> u64 {
        self.progress.map_or(0, |progress| progress.synced)
    }

    /// Returns the end of the records in the previous segment, if it is known.
    pub(crate) fn previous_end(&self) -> Option<u64> {
        self.progress.map(|progress| progress.previous_end).filter(|end| *end > 0)
    }
}

/// Reason why a file is not the expected segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InvalidSegment {
    /// The file was allocated in advance and not written.
    Empty,
    /// Another version of the host wrote the file.
    Version(u8),
    /// The header is damaged, and bytes follow it.
    Damaged,
}

pub(crate) fn stamp_bytes(stamp: Stamp) -> [u8; PROGRESS_AT as usize] {
    let mut bytes = [0; PROGRESS_AT as usize];
    bytes[..7].copy_from_slice(MAGIC);
    bytes[7] = VERSION;
    bytes[8..16].copy_from_slice(&stamp.segment.to_le_bytes());
    bytes[16..24].copy_from_slice(&stamp.salt.to_le_bytes());
    let checksum = crc32fast::hash(&bytes[..24]);
    bytes[24..28].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

pub(crate) fn progress_bytes(progress: Progress) -> [u8; PROGRESS_AT as usize] {
    let mut bytes = [0; PROGRESS_AT as usize];
    bytes[..8].copy_from_slice(&progress.synced.to_le_bytes());
    bytes[8..16].copy_from_slice(&progress.previous_end.to_le_bytes());
    bytes[16..24].copy_from_slice(&progress.boot.to_le_bytes());
    let checksum = crc32fast::hash(&bytes[..24]);
    bytes[24..28].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..at + 8).and_then(|word| word.try_into().ok());
    word.map_or(0, u64::from_le_bytes)
}

/// Returns the salt in a header.
fn salt_in(bytes: &[u8]) -> u64 {
    word(bytes, 16)
}

/// Returns the possible salts of a damaged header: its own, and the salt for which the checksum holds after
/// one flipped bit.
pub(crate) fn salts_in(bytes: &[u8]) -> Vec<u64> {
    let mut salts = vec![salt_in(bytes)];
    if let Some(mut head) = bytes.first_chunk::<28>().copied() {
        let salt = head[16..24].to_vec();
        for bit in 0..64 {
            head[16 + bit / 8] ^= 1 << (bit % 8);
            if head[24..] == crc32fast::hash(&head[..24]).to_le_bytes() {
                salts.push(salt_in(&head));
            }
            head[16..24].copy_from_slice(&salt);
        }
    }
    salts
}

/// Parses the header of the segment with this number.
pub(crate) fn header(bytes: &[u8], number: u64) -> Result<Header, InvalidSegment> {
    let stamp = Stamp { salt: salt_in(bytes), segment: number };
    if bytes.get(..PROGRESS_AT as usize) == Some(&stamp_bytes(stamp)[..]) {
        let second = bytes.get(PROGRESS_AT as usize..HEADER_BYTES as usize).unwrap_or_default();
        let progress =
            Progress { synced: word(second, 0), previous_end: word(second, 8), boot: word(second, 16) };
        let progress = (second == progress_bytes(progress)).then_some(progress);
        return Ok(Header { stamp, progress });
    }
    let version = bytes.get(7).copied().unwrap_or(VERSION);
    let is_whole = || word(bytes, 24) == u64::from(crc32fast::hash(bytes.get(..24).unwrap_or_default()));
    // Version 1 had no checksum.
    if bytes.starts_with(MAGIC) && (version == b'1' || (version != VERSION && is_whole())) {
        return Err(InvalidSegment::Version(version));
    }
    let rest = bytes.get(HEADER_BYTES as usize..).unwrap_or_default();
    Err(if is_zero(rest) { InvalidSegment::Empty } else { InvalidSegment::Damaged })
}

pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<16>();
    words.iter().all(|word| *word == [0; 16]) && rest.iter().all(|byte| *byte == 0)
}

/// Returns the id of the current boot of the machine, or 0 if it is unknown.
pub(crate) fn boot() -> u64 {
    let id = std::fs::read("/proc/sys/kernel/random/boot_id");
    id.map_or(0, |id| crate::index::hash(&id))
}

/// A segment open for writing.
pub(crate) struct Segment {
    pub number: u64,
    /// Offset of the next record.
    pub end: u64,
    /// Allocated size.
    pub capacity: u64,
    pub stamp: Stamp,
    progress: Progress,
    file: Arc<File>,
    folder: Folder,
    is_named: bool,
}

/// Handle of a segment for the thread that syncs it.
#[derive(Clone)]
pub(crate) struct SyncHandle {
    pub number: u64,
    progress: Progress,
    file: Arc<File>,
    folder: Folder,
    /// Whether the file's name and size are durable.
    pub is_named: bool,
}

impl Folder {
    pub(crate) fn segment(&self, number: u64) -> PathBuf {
        self.path.join(format!("{number:020}.seg"))
    }

    pub(crate) fn index(&self, number: u64) -> PathBuf {
        self.path.join(format!("{number:020}.idx"))
    }

    /// Returns the numbers of the segments, in order.
    pub(crate) fn numbers(&self) -> io::Result<Vec<u64>> {
        let mut numbers = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let path = entry?.path();
            if path.extension().is_some_and(|ending| ending == "seg")
                && let Some(number) = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok())
            {
                numbers.push(number);
            }
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn may(&self, operation: Operation) -> io::Result<()> {
        self.faults.as_ref().map_or(Ok(()), |faults| faults(operation))
    }

    /// Creates and allocates a segment. A failure leaves no file behind. The first sync makes the name
    /// durable.
    pub(crate) fn create(&self, number: u64) -> io::Result<Segment> {
        let path = self.segment(number);
        let created = self.make(number, &path);
        if created.is_err() {
            let _ = std::fs::remove_file(&path);
        }
        created
    }

    fn make(&self, number: u64, path: &Path) -> io::Result<Segment> {
        self.may(Operation::Allocate)?;
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
        allocate(&file, self.segment_bytes)?;
        let stamp = Stamp { salt: self.salt, segment: number };
        let progress = Progress { boot: self.boot, ..Progress::default() };
        file.write_all_at(&[stamp_bytes(stamp), progress_bytes(progress)].concat(), 0)?;
        Ok(Segment {
            number,
            end: HEADER_BYTES,
            capacity: self.segment_bytes,
            stamp,
            progress,
            file: Arc::new(file),
            folder: self.clone(),
            is_named: false,
        })
    }

    /// Opens a segment for appending at an offset. Truncates it there and syncs the part before.
    pub(crate) fn resume(&self, number: u64, end: u64) -> io::Result<Segment> {
        let file = OpenOptions::new().read(true).write(true).open(self.segment(number))?;
        let mut bytes = [0; HEADER_BYTES as usize];
        file.read_exact_at(&mut bytes, 0)?;
        let header = header(&bytes, number).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        ftruncate(&file, end)?;
        let capacity = self.segment_bytes.max(end);
        allocate(&file, capacity)?;
        file.sync_all()?;
        self.sync_names()?;
        let previous_end = header.previous_end().unwrap_or(0);
        let progress = Progress { synced: end, previous_end, boot: self.boot };
        file.write_all_at(&progress_bytes(progress), PROGRESS_AT)?;
        Ok(Segment {
            number,
            end,
            capacity,
            stamp: header.stamp,
            progress,
            file: Arc::new(file),
            folder: self.clone(),
            is_named: true,
        })
    }

    /// Syncs the directory, so that the names of files are durable.
    pub(crate) fn sync_names(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    /// Writes an index atomically, but without a sync. After a crash of the machine it is rebuilt.
    pub(crate) fn write_index(&self, number: u64, bytes: &[u8]) -> io::Result<()> {
        let path = self.index(number);
        let new = path.with_extension("new");
        std::fs::write(&new, bytes)?;
        std::fs::rename(&new, path)
    }

    /// Returns the header of a segment and whether bytes follow it, or `None` if there is no such segment.
    pub(crate) fn inspect(&self, number: u64) -> Option<(Header, bool)> {
        let file = File::open(self.segment(number)).ok()?;
        let mut bytes = vec![0; 64 << 10];
        let mut read = file.read_at(&mut bytes, 0).ok()?;
        // Without a valid header the segment counts as never synced; the scan reports the damage.
        let unknown = Header { stamp: Stamp { salt: 0, segment: number }, progress: None };
        let found = header(bytes.get(..read)?, number).unwrap_or(unknown);
        let (mut at, mut from) = (0, HEADER_BYTES as usize);
        loop {
            if bytes.get(from..read).is_some_and(|bytes| !is_zero(bytes)) {
                return Some((found, true));
            }
            // Skips space that was allocated and not written.
            let rest = at + read as u64;
            at = match seek(&file, SeekFrom::Data(rest)) {
                Ok(at) => at,
                Err(Errno::NXIO) => return Some((found, false)),
                Err(_) => rest,
            };
            read = file.read_at(&mut bytes, at).ok()?;
            from = 0;
            if read == 0 {
                return Some((found, false));
            }
        }
    }
}

/// Allocates space for a file. If the file system does not support that, only sets the size.
fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Ok(()) => Ok(()),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(ftruncate(file, bytes)?),
        Err(error) => Err(error.into()),
    }
}

impl Segment {
    /// Stores the end of the previous segment before the first record is written.
    pub(crate) fn begin(&mut self, previous_end: u64) -> io::Result<()> {
        self.progress.previous_end = previous_end;
        self.file.write_all_at(&progress_bytes(self.progress), PROGRESS_AT)
    }

    /// Appends bytes. A failed call may be repeated.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.folder.may(Operation::Write)?;
        self.file.write_all_at(bytes, self.end)?;
        self.end += bytes.len() as u64;
        Ok(())
    }

    pub(crate) fn sync_handle(&self) -> SyncHandle {
        let Self { number, progress, ref file, ref folder, is_named, .. } = *self;
        SyncHandle { number, progress, file: file.clone(), folder: folder.clone(), is_named }
    }
}

impl SyncHandle {
    /// Syncs the written records.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.folder.may(Operation::Sync)?;
        if self.is_named {
            return self.file.sync_data();
        }
        self.file.sync_all()?;
        self.folder.sync_names()
    }

    /// Stores the synced offset. The next sync, or the kernel, makes it durable.
    pub(crate) fn note_synced(&self, synced: u64) -> io::Result<()> {
        let progress = Progress { synced, ..self.progress };
        self.file.write_all_at(&progress_bytes(progress), PROGRESS_AT)
    }

    /// Releases unused allocated space.
    pub(crate) fn shrink(&self, end: u64) -> io::Result<()> {
        Ok(ftruncate(&self.file, end)?)
    }
}

/// State at the end of a segment's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tail {
    /// Only unwritten space follows.
    Clean,
    /// An incomplete or damaged record follows, and no further record.
    Torn,
    /// An incomplete or damaged record follows, and a further record at this offset.
    Hole(u64),
}

/// Calls a function with each record in a segment's bytes and its offset. Returns the end of the records.
pub(crate) fn scan(bytes: &[u8], stamp: Stamp, mut take: impl FnMut(Record<'_>, u64)) -> (u64, Tail) {
    let mut at = HEADER_BYTES as usize;
    loop {
        let rest = bytes.get(at..).unwrap_or_default();
        match stamp.read(rest, at as u64) {
            Parsed::Record(record, length) => {
                if record.rollout != JOURNAL_ROLLOUT {
                    take(record, at as u64);
                }
                at += length;
            }
            Parsed::WrongBody(_) | Parsed::Nothing => {
                if is_zero(rest) {
                    return (at as u64, Tail::Clean);
                }
                let next = stamp.find(bytes, at + 1);
                return (at as u64, next.map_or(Tail::Torn, |next| Tail::Hole(next as u64)));
            }
        }
    }
}
