//! Writing of a journal's directory from the records of a replica.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use crate::frame::framed_bytes;
use crate::recover;
use crate::replica::ReplicaRecord;
use crate::segment::{self, Folder, HEADER_BYTES, Segment};

/// Number of bytes that are written at once.
const BATCH_BYTES: usize = 1 << 20;

/// A journal's directory that is being rebuilt. It gets its name when it is complete, so that no part of a
/// journal is taken for a whole one.
pub struct Rebuild {
    target: PathBuf,
    folder: Folder,
    current: Segment,
    buffer: Vec<u8>,
    records: u64,
    /// Held until the directory is complete.
    lock: File,
}

impl Rebuild {
    /// Begins to rebuild a directory, which must not exist. A part that an earlier attempt left is removed.
    pub fn begin(target: impl Into<PathBuf>, segment_bytes: u64) -> io::Result<Self> {
        let target = target.into();
        if target.exists() {
            let why = format!("{} exists; a journal is rebuilt in a new directory", target.display());
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
        }
        let path = partial(&target)?;
        if path.exists() {
            std::fs::remove_dir_all(&path)?;
        }
        std::fs::create_dir_all(&path)?;
        let mut folder = Folder { segment_bytes, boot: segment::boot(), ..recover::unopened(&path) };
        let lock = recover::lock(&folder).map_err(io::Error::other)?;
        folder.salt = recover::salt(&folder)?;
        let current = folder.create(1)?;
        Ok(Self { target, folder, current, buffer: Vec::new(), records: 0, lock })
    }

    /// Appends a record. Records of a rollout may be repeated, but none follows the rollout's end.
    pub fn append(&mut self, record: ReplicaRecord<'_>) -> io::Result<()> {
        let ReplicaRecord { rollout, sequence, kind, payload } = record;
        let bytes = framed_bytes(payload.len());
        let is_fresh = self.current.end == HEADER_BYTES && self.buffer.is_empty();
        // A record that is larger than a segment gets a longer segment, as in the writer.
        if self.current.end + (self.buffer.len() + bytes) as u64 > self.current.capacity && !is_fresh {
            self.flush()?;
            self.seal()?;
            let (number, end) = (self.current.number, self.current.end);
            self.current = self.folder.create(number + 1)?;
            self.current.begin(end)?;
        }
        let offset = self.current.end + self.buffer.len() as u64;
        let payload = [Bytes::copy_from_slice(payload)];
        self.current.stamp.write(&mut self.buffer, offset, (rollout, sequence, kind), &payload);
        self.records += 1;
        if self.buffer.len() >= BATCH_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.buffer.is_empty() {
            self.current.write(&self.buffer)?;
            self.buffer.clear();
        }
        Ok(())
    }

    /// Syncs the current segment and releases its unused space.
    fn seal(&self) -> io::Result<()> {
        let handle = self.current.sync_handle();
        handle.shrink(self.current.end)?;
        handle.sync()?;
        handle.note_synced(self.current.end)
    }

    /// Completes the directory and returns the number of records. [`JournalStore::open`](crate::JournalStore::open)
    /// opens it.
    pub fn finish(mut self) -> io::Result<u64> {
        self.flush()?;
        self.seal()?;
        drop(self.lock);
        std::fs::rename(&self.folder.path, &self.target)?;
        if let Some(parent) = self.target.parent() {
            File::open(if parent.as_os_str().is_empty() { Path::new(".") } else { parent })?.sync_all()?;
        }
        Ok(self.records)
    }
}

/// Returns the name of an incomplete directory.
fn partial(target: &Path) -> io::Result<PathBuf> {
    let name = target.file_name().ok_or_else(|| io::Error::other("a journal's directory has a name"))?;
    let mut name = name.to_owned();
    name.push(".rebuilding");
    Ok(target.with_file_name(name))
}
