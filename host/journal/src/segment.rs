//! The files of a journal: segments, each with an index once it is sealed.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate, ftruncate};
use rustix::io::Errno;

use crate::record::{self, Found};

/// What every segment begins with; its number follows.
pub(crate) const MAGIC: &[u8; 8] = b"ROLLSEG1";

/// Magic and number.
pub(crate) const HEADER_BYTES: u64 = 16;

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
pub type Faults = std::sync::Arc<dyn Fn(Operation) -> io::Result<()> + Send + Sync>;

/// A journal's directory.
#[derive(Clone)]
pub(crate) struct Folder {
    pub path: PathBuf,
    pub segment_bytes: u64,
    pub faults: Option<Faults>,
}

/// A segment that records are written to.
pub(crate) struct Segment {
    pub number: u64,
    /// Where the next record goes.
    pub end: u64,
    /// What is allocated for it.
    pub capacity: u64,
    file: File,
    faults: Option<Faults>,
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

    /// Makes a segment and allocates it. Where that fails nothing of it is left.
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
        file.write_all_at(MAGIC, 0)?;
        file.write_all_at(&number.to_le_bytes(), 8)?;
        file.sync_all()?;
        self.sync_names()?;
        Ok(Segment {
            number,
            end: HEADER_BYTES,
            capacity: self.segment_bytes,
            file,
            faults: self.faults.clone(),
        })
    }

    /// Opens a segment to go on at this place. What is behind it is gone.
    pub(crate) fn resume(&self, number: u64, end: u64) -> io::Result<Segment> {
        let file = OpenOptions::new().read(true).write(true).open(self.segment(number))?;
        ftruncate(&file, end)?;
        let capacity = self.segment_bytes.max(end);
        allocate(&file, capacity)?;
        file.sync_all()?;
        Ok(Segment { number, end, capacity, file, faults: self.faults.clone() })
    }

    /// Brings the names of files to the disk.
    pub(crate) fn sync_names(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    /// Writes a file whole or not at all.
    pub(crate) fn write_whole(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let beside = path.with_extension("new");
        std::fs::write(&beside, bytes)?;
        File::open(&beside)?.sync_all()?;
        std::fs::rename(&beside, path)?;
        self.sync_names()
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
    /// Writes at its end, and moves that. What failed may be tried again.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.may(Operation::Write)?;
        self.file.write_all_at(bytes, self.end)?;
        self.end += bytes.len() as u64;
        Ok(())
    }

    pub(crate) fn sync(&self) -> io::Result<()> {
        self.may(Operation::Sync)?;
        self.file.sync_data()
    }

    /// Gives back what was allocated and not used. It may be resumed.
    pub(crate) fn shrink(&self) -> io::Result<()> {
        Ok(ftruncate(&self.file, self.end)?)
    }

    /// The same for good.
    pub(crate) fn seal(&self) -> io::Result<()> {
        self.shrink()?;
        self.sync()
    }

    fn may(&self, operation: Operation) -> io::Result<()> {
        self.faults.as_ref().map_or(Ok(()), |faults| faults(operation))
    }
}

/// How a segment's records end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tail {
    /// Where nothing more was written.
    Clean,
    /// With something that is no whole record.
    Torn,
}

/// Gives each record of a segment's bytes with its offset, and where they end.
pub(crate) fn scan(bytes: &[u8], mut take: impl FnMut(record::Read<'_>, u64)) -> (u64, Tail) {
    let mut at = HEADER_BYTES as usize;
    loop {
        match record::read(bytes.get(at..).unwrap_or_default()) {
            Found::Record(record, length) => {
                take(record, at as u64);
                at += length;
            }
            Found::End => return (at as u64, Tail::Clean),
            Found::Torn => return (at as u64, Tail::Torn),
        }
    }
}

/// Whether these are the bytes of this segment.
pub(crate) fn is_segment(bytes: &[u8], number: u64) -> bool {
    bytes.starts_with(MAGIC) && bytes.get(8..16).is_some_and(|bytes| bytes == number.to_le_bytes())
}
