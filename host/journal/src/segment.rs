//! The files of a journal: segments, each with an index once it is sealed.
//!
//! ```text
//! "ROLLSEG2" | u64 number | u64 salt | u32 CRC-32 of these | u32 zero
//!            | u64 synced | u64 end of the segment before | u64 boot | u32 CRC-32 of these three | u32 zero
//! records
//! ```
//!
//! The first half is written once. The second half, the [`Progress`], says how far the segment was synced, so that
//! damage of what was promised is told apart from what the machine's end left half-written.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, ftruncate, seek};
use rustix::io::Errno;

use crate::frame::{Found, OF_JOURNAL, Record, Stamp};

/// What every segment begins with, but for the version.
const MAGIC: &[u8; 7] = b"ROLLSEG";

/// The version of the form. Another one is not read.
pub(crate) const VERSION: u8 = b'2';

/// Both halves of the header.
pub(crate) const HEADER_BYTES: u64 = 64;

/// Where the progress is.
const PROGRESS_AT: u64 = 32;

/// What may go wrong on a disk, for tests that make it go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Space is allocated for a segment.
    Allocate,
    /// Records are written.
    Write,
    /// What was written is brought to the disk.
    Sync,
}

/// Says before each operation whether it fails.
pub type Faults = Arc<dyn Fn(Operation) -> io::Result<()> + Send + Sync>;

/// A journal's directory.
#[derive(Clone)]
pub(crate) struct Folder {
    pub path: PathBuf,
    pub segment_bytes: u64,
    pub faults: Option<Faults>,
    /// Goes into the marks of the segments that are made here.
    pub salt: u64,
    /// Identifies this start of the machine; 0 if unknown.
    pub boot: u64,
}

/// How far a segment got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// All before this offset was on the disk once.
    pub synced: u64,
    /// Where the records of the segment before end; 0 if there is none.
    pub previous_end: u64,
    /// The start of the machine in which it was written.
    pub boot: u64,
}

/// What a segment's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub stamp: Stamp,
    /// None if it is damaged, which loses nothing.
    pub progress: Option<Progress>,
}

impl Header {
    pub(crate) fn synced(&self) -> u64 {
        self.progress.map_or(0, |progress| progress.synced)
    }

    /// Where the records of the segment before end, if that is known.
    pub(crate) fn previous_end(&self) -> Option<u64> {
        self.progress.map(|progress| progress.previous_end).filter(|end| *end > 0)
    }
}

/// Why a file is not the segment that its name says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotOurs {
    /// It was being made ahead: nothing was written to it.
    Empty,
    /// Its form is that of another version.
    Version(u8),
    /// Its header is damaged, and something is behind it.
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

/// The salt that a header has.
fn salt_in(bytes: &[u8]) -> u64 {
    word(bytes, 16)
}

/// The salts that a damaged header may have had: its own, and that with which its checksum is right where one bit was
/// flipped.
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

/// Reads the header of a segment that has this number, from the bytes of its file.
pub(crate) fn header(bytes: &[u8], number: u64) -> Result<Header, NotOurs> {
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
    // The first version had no checksum, and is two bits away from this one.
    if bytes.starts_with(MAGIC) && (version == b'1' || (version != VERSION && is_whole())) {
        return Err(NotOurs::Version(version));
    }
    let rest = bytes.get(HEADER_BYTES as usize..).unwrap_or_default();
    Err(if is_zero(rest) { NotOurs::Empty } else { NotOurs::Damaged })
}

pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<16>();
    words.iter().all(|word| *word == [0; 16]) && rest.iter().all(|byte| *byte == 0)
}

/// Identifies this start of the machine; 0 if the system does not say.
pub(crate) fn boot() -> u64 {
    let id = std::fs::read("/proc/sys/kernel/random/boot_id");
    id.map_or(0, |id| crate::index::hash(&id))
}

/// A segment that records are written to.
pub(crate) struct Segment {
    pub number: u64,
    /// Where the next record goes.
    pub end: u64,
    /// What is allocated for it.
    pub capacity: u64,
    pub stamp: Stamp,
    progress: Progress,
    file: Arc<File>,
    folder: Folder,
    is_named: bool,
}

/// The same for the thread that syncs it.
#[derive(Clone)]
pub(crate) struct SyncHandle {
    pub number: u64,
    progress: Progress,
    file: Arc<File>,
    folder: Folder,
    /// Whether its name and size are on the disk.
    pub is_named: bool,
}

impl Folder {
    pub(crate) fn segment(&self, number: u64) -> PathBuf {
        self.path.join(format!("{number:020}.seg"))
    }

    pub(crate) fn index(&self, number: u64) -> PathBuf {
        self.path.join(format!("{number:020}.idx"))
    }

    /// The numbers of its segments, in order.
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

    /// Makes a segment and allocates it. Where that fails nothing of it is left. Its first sync brings its name to
    /// the disk.
    pub(crate) fn create(&self, number: u64) -> io::Result<Segment> {
        let path = self.segment(number);
        let made = self.make(number, &path);
        if made.is_err() {
            let _ = std::fs::remove_file(&path);
        }
        made
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

    /// Opens a segment to go on at this place. What is behind it is gone, and what is before it is synced.
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

    /// Brings the names of files to the disk.
    pub(crate) fn sync_names(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    /// Writes an index whole or not at all, unless the machine dies: then it is made again.
    pub(crate) fn write_index(&self, number: u64, bytes: &[u8]) -> io::Result<()> {
        let path = self.index(number);
        let new = path.with_extension("new");
        std::fs::write(&new, bytes)?;
        std::fs::rename(&new, path)
    }

    /// The header of a segment, and whether anything is behind it; none if it is not there.
    pub(crate) fn look_at(&self, number: u64) -> Option<(Header, bool)> {
        let file = File::open(self.segment(number)).ok()?;
        let mut bytes = vec![0; 64 << 10];
        let mut read = file.read_at(&mut bytes, 0).ok()?;
        // Without a header it counts as one that was never synced; what is behind it is found damaged.
        let unknown = Header { stamp: Stamp { salt: 0, segment: number }, progress: None };
        let found = header(bytes.get(..read)?, number).unwrap_or(unknown);
        let (mut at, mut from) = (0, HEADER_BYTES as usize);
        loop {
            if bytes.get(from..read).is_some_and(|bytes| !is_zero(bytes)) {
                return Some((found, true));
            }
            // What was allocated and not written is not read.
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

/// Sets a file's size and space. Where a file system cannot promise space, the size is all.
fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Ok(()) => Ok(()),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(ftruncate(file, bytes)?),
        Err(error) => Err(error.into()),
    }
}

impl Segment {
    /// Notes where the segment before ends, before anything is written to this one.
    pub(crate) fn begin(&mut self, previous_end: u64) -> io::Result<()> {
        self.progress.previous_end = previous_end;
        self.file.write_all_at(&progress_bytes(self.progress), PROGRESS_AT)
    }

    /// Writes at its end, and moves that. What failed may be tried again.
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
    /// Brings what was written to the disk.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.folder.may(Operation::Sync)?;
        if self.is_named {
            return self.file.sync_data();
        }
        self.file.sync_all()?;
        self.folder.sync_names()
    }

    /// Notes that all up to here was synced. It is on the disk with the next sync, or when the kernel likes.
    pub(crate) fn note_synced(&self, synced: u64) -> io::Result<()> {
        let progress = Progress { synced, ..self.progress };
        self.file.write_all_at(&progress_bytes(progress), PROGRESS_AT)
    }

    /// Gives back what was allocated and not used.
    pub(crate) fn shrink(&self, end: u64) -> io::Result<()> {
        Ok(ftruncate(&self.file, end)?)
    }
}

/// How a segment's records end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tail {
    /// Where nothing more was written.
    Clean,
    /// With something that is no whole record, and no record follows.
    Torn,
    /// With something that is no whole record, and a record follows at this offset.
    Hole(u64),
}

/// Gives each record of a segment's bytes with its offset, and where they end.
pub(crate) fn scan(bytes: &[u8], stamp: Stamp, mut take: impl FnMut(Record<'_>, u64)) -> (u64, Tail) {
    let mut at = HEADER_BYTES as usize;
    loop {
        let rest = bytes.get(at..).unwrap_or_default();
        match stamp.read(rest, at as u64) {
            Found::Record(record, length) => {
                if record.rollout != OF_JOURNAL {
                    take(record, at as u64);
                }
                at += length;
            }
            Found::WrongBody(_) | Found::Nothing => {
                if is_zero(rest) {
                    return (at as u64, Tail::Clean);
                }
                let next = stamp.find(bytes, at + 1);
                return (at as u64, next.map_or(Tail::Torn, |next| Tail::Hole(next as u64)));
            }
        }
    }
}
