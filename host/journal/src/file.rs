//! A single rollout in a file, for use without its journal.
//!
//! ```text
//! ROLLONE3 | a record with the name | a record for each event | a last record
//! ```
//!
//! Records have the format of [`record`](crate::record), with checksums. The last record has the number of
//! events and whether the rollout ended, so that truncation is detected.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use crate::record::{self, FRAME_BYTES, Kind, Parsed};
use crate::{Event, Written};

/// Beginning of every file, followed by the version.
const MAGIC: &[u8; 7] = b"ROLLONE";

/// Version of the format. Other versions are rejected.
const VERSION: u8 = b'3';

/// Rollout number of all records in a file.
const ROLLOUT: u64 = 0;

/// Error of reading a rollout from a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The file cannot be read.
    #[error("{} cannot be read", .0.display())]
    Io(PathBuf, #[source] io::Error),
    /// The file has another format.
    #[error("{} is not a rollout file: its beginning is wrong", .0.display())]
    Another(PathBuf),
    /// Another version of the host wrote the file.
    #[error("{} is of version '{}', and this host reads '{}'", path.display(), char::from(*version), char::from(VERSION))]
    Version {
        /// Path of the file.
        path: PathBuf,
        /// Version of the file.
        version: u8,
    },
    /// The file is damaged.
    #[error("{} is damaged at byte {at}: {what}", path.display())]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// Offset of the damage.
        at: usize,
        /// Description of the damage.
        what: &'static str,
    },
}

/// Writes a rollout to a new file, completely or not at all. Fails if the file exists.
pub fn write_file(path: &Path, rollout: &Written) -> io::Result<()> {
    let mut bytes = MAGIC.to_vec();
    bytes.push(VERSION);
    record::write(&mut bytes, ROLLOUT, Kind::Begin, std::slice::from_ref(&rollout.name));
    for Event { kind, payload } in &rollout.events {
        record::write(&mut bytes, ROLLOUT, Kind::Event(*kind), std::slice::from_ref(payload));
    }
    let mut end = (rollout.events.len() as u64).to_le_bytes().to_vec();
    end.push(u8::from(rollout.ended));
    record::write(&mut bytes, ROLLOUT, Kind::End, &[end.into()]);
    // Each writer of a file, in this process or in another one, needs a temporary file of its own.
    static WRITERS: AtomicU64 = AtomicU64::new(0);
    let mut temporary = path.as_os_str().to_owned();
    let writer = WRITERS.fetch_add(1, Ordering::Relaxed);
    temporary.push(format!(".{}-{writer}.part", std::process::id()));
    let temporary = PathBuf::from(temporary);
    // Linking fails if the target exists; renaming would replace it.
    let linked = std::fs::write(&temporary, bytes).and_then(|()| std::fs::hard_link(&temporary, path));
    let removed = std::fs::remove_file(&temporary);
    linked.and(removed)
}

/// Reads a rollout from a file. Any damage is an error with its offset.
pub fn read_file(path: &Path) -> Result<Written, FileError> {
    let bytes = std::fs::read(path).map_err(|error| FileError::Io(path.to_owned(), error))?;
    match bytes.strip_prefix(MAGIC) {
        Some([VERSION, ..]) => {}
        Some([version, ..]) => return Err(FileError::Version { path: path.to_owned(), version: *version }),
        Some([]) | None => return Err(FileError::Another(path.to_owned())),
    }
    read_records(&Bytes::from(bytes)).map_err(|(at, what)| FileError::Damaged {
        path: path.to_owned(),
        at,
        what,
    })
}

/// Parses the records of a file. The error has the offset and a description of the damage.
fn read_records(bytes: &Bytes) -> Result<Written, (usize, &'static str)> {
    let mut at = MAGIC.len() + 1;
    let mut written = Written { name: Bytes::new(), events: Vec::new(), ended: false };
    loop {
        let rest = bytes.get(at..).unwrap_or_default();
        let (kind, payload, length) = match record::read(rest) {
            Parsed::Record(read, length) => (read.kind, bytes.slice_ref(read.payload), length),
            Parsed::Torn => return Err((at, wrong(rest))),
            Parsed::End => return Err((at, "the file ends before its last record")),
        };
        let is_first = at == MAGIC.len() + 1;
        match kind {
            Kind::Begin if is_first => written.name = payload,
            Kind::Event(kind) if !is_first => written.events.push(Event { kind, payload }),
            Kind::End if !is_first => {
                let Some((count, [ended @ (0 | 1)])) = payload.split_first_chunk::<8>() else {
                    return Err((at, "the last record is invalid"));
                };
                if u64::from_le_bytes(*count) != written.events.len() as u64 {
                    return Err((at, "records before this are missing"));
                }
                if at + length != bytes.len() {
                    return Err((at + length, "bytes follow the last record"));
                }
                written.ended = *ended == 1;
                return Ok(written);
            }
            Kind::Begin | Kind::Event(_) | Kind::End => {
                return Err((at, "a record of this kind is not allowed here"));
            }
        }
        at += length;
    }
}

/// Describes bytes that are not a complete record.
fn wrong(rest: &[u8]) -> &'static str {
    let length = rest.first_chunk::<4>().map(|length| u32::from_le_bytes(*length) as usize);
    match length {
        Some(length) if length <= rest.len().saturating_sub(FRAME_BYTES) => {
            "the checksum of the record that begins here is wrong"
        }
        _ => "the record that begins here exceeds the file",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rollout() -> Written {
        let event = |kind, text: &'static str| Event { kind, payload: Bytes::from_static(text.as_bytes()) };
        let events = vec![event(1, "admitted\n"), event(16, "asked"), event(16, "")];
        Written { name: Bytes::from_static(b"r 1"), events, ended: true }
    }

    #[test]
    fn a_rollout_is_read_as_written_and_existing_files_are_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("one");
        write_file(&path, &rollout()).unwrap();
        assert_eq!(read_file(&path).unwrap(), rollout());
        assert_eq!(write_file(&path, &rollout()).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn of_many_writers_of_one_file_one_writes_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("one");
        let written = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..16).map(|_| scope.spawn(|| write_file(&path, &rollout()))).collect();
            writers.into_iter().map(|writer| writer.join().unwrap()).filter(Result::is_ok).count()
        });
        assert_eq!(written, 1);
        assert_eq!(read_file(&path).unwrap(), rollout());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn truncation_and_changes_are_reported_with_their_offset() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("one");
        write_file(&path, &rollout()).unwrap();
        let whole = std::fs::read(&path).unwrap();
        let error = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            read_file(&path).unwrap_err()
        };
        for end in 0..whole.len() {
            let is_reported = match error(&whole[..end]) {
                FileError::Another(_) => end < 8,
                FileError::Damaged { at, .. } => at <= end && end >= 8,
                _ => false,
            };
            assert!(is_reported, "cut at {end}");
        }
        for at in 8..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 0x20;
            let FileError::Damaged { at: reported, .. } = error(&changed) else { panic!("changed at {at}") };
            assert!(reported <= at, "changed at {at}, reported {reported}");
        }
        let more = [&whole[..], b"x"].concat();
        assert!(
            error(&more)
                .to_string()
                .ends_with(&format!("damaged at byte {}: bytes follow the last record", whole.len()))
        );
        let mut later = whole.clone();
        later[7] = b'4';
        assert!(error(&later).to_string().contains("is of version '4', and this host reads '3'"));
        assert!(error(b"{}").to_string().contains("its beginning is wrong"));
        // Two complete events in a row, of which the first is removed.
        let first = 8 + record::framed_bytes(3);
        let second = first + record::framed_bytes(9);
        let without = [&whole[..first], &whole[second..]].concat();
        assert!(error(&without).to_string().contains("records before this are missing"));
    }
}
