//! Repair of a damaged journal.
//!
//! Readable records keep their offsets: a damaged range of a segment is covered by a record of the journal's
//! own. The original segment is saved with the suffix `.damaged`. The indexes from there on are rebuilt when
//! the journal is opened. Rollouts that lost a record before their last one are dropped.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;

use crate::frame::{JOURNAL_ROLLOUT, Parsed, Stamp, framed_bytes};
use crate::index::{self, Index};
use crate::record::Kind;
use crate::recover::{self, Later, Reader, Verdict};
use crate::segment::{self, Folder, HEADER_BYTES, Header, InvalidSegment, Progress, Tail};
use crate::{Location, OpenError};

/// A damaged range of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Path of the segment.
    pub segment: PathBuf,
    /// Offset of the first byte.
    pub from: u64,
    /// Offset after the last byte.
    pub to: u64,
}

/// Report of a repair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Damaged ranges in order. Empty for an intact journal.
    pub damage: Vec<Damage>,
    /// Names of dropped rollouts, or numbers if the name is lost too.
    pub left_out: Vec<String>,
}

/// Error of repairing a journal.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RepairError {
    /// The journal is locked by another process or has another version.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A file cannot be read or written.
    #[error("the journal in {} cannot be repaired", .0.display())]
    Io(PathBuf, #[source] io::Error),
}

/// Repairs the journal in a directory, which must not be open. Does nothing to an intact journal.
pub fn repair(path: &Path) -> Result<Repaired, RepairError> {
    let folder = Folder { boot: segment::boot(), ..recover::unopened(path) };
    let _lock = recover::lock(&folder)?;
    let mut repair = Repair { folder: &folder, salts: Vec::new(), damage: Vec::new() };
    let first = repair.all()?;
    let damage = repair.damage;
    let io = |error| RepairError::Io(path.to_owned(), error);
    let left_out = first.map(|first| lost_rollouts(&folder, first)).transpose().map_err(io)?;
    Ok(Repaired { damage, left_out: left_out.unwrap_or_default() })
}

struct Repair<'a> {
    folder: &'a Folder,
    /// Salts of intact headers, for segments with damaged ones.
    salts: Vec<u64>,
    damage: Vec<Damage>,
}

impl Repair<'_> {
    /// Repairs all segments and returns the first damaged one.
    fn all(&mut self) -> Result<Option<u64>, RepairError> {
        let folder = self.folder;
        let io = |error| RepairError::Io(folder.path.clone(), error);
        let numbers = folder.numbers().map_err(io)?;
        let known = numbers.iter().filter_map(|number| folder.inspect(*number));
        self.salts = known.map(|(header, _)| header.stamp.salt).filter(|salt| *salt != 0).collect();
        self.salts.dedup();
        let indexed = numbers.iter().copied().filter(|number| folder.index(*number).exists());
        let sealed_to = indexed.max().unwrap_or(0);
        let mut first = None;
        for (at, number) in numbers.iter().copied().enumerate() {
            let later = Later::of(folder, number, &numbers[at + 1..], sealed_to);
            if self.one(number, &later)? {
                first.get_or_insert(number);
            }
        }
        if let Some(first) = first {
            for number in numbers.into_iter().filter(|number| *number >= first) {
                match std::fs::remove_file(folder.index(number)) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io(error)),
                    Ok(()) | Err(_) => {}
                }
            }
            folder.sync_names().map_err(io)?;
        }
        Ok(first)
    }

    /// Repairs a segment and returns whether it was damaged.
    fn one(&mut self, number: u64, later: &Later) -> Result<bool, RepairError> {
        let path = self.folder.segment(number);
        let io = |error| RepairError::Io(path.clone(), error);
        let mut bytes = std::fs::read(&path).map_err(io)?;
        let was = self.damage.len();
        let header = match segment::header(&bytes, number) {
            Ok(header) => header,
            Err(InvalidSegment::Version(version)) => return Err(OpenError::Version { path, version }.into()),
            Err(InvalidSegment::Empty) if !later.is_begun => return Ok(false),
            Err(InvalidSegment::Empty | InvalidSegment::Damaged) => {
                let salts = self.salts.iter().copied().chain(segment::salts_in(&bytes));
                let mut stamps = salts.map(|salt| Stamp { salt, segment: number });
                let found = stamps.find(|stamp| stamp.find(&bytes, HEADER_BYTES as usize).is_some());
                let Some(stamp) = found else {
                    self.add_damage(&path, 0, bytes.len());
                    std::fs::rename(&path, damaged_name(&path)).map_err(io)?;
                    return Ok(true);
                };
                self.add_damage(&path, 0, HEADER_BYTES as usize);
                Header { stamp, progress: None }
            }
        };
        let end = self.cover(&mut bytes, &path, (&header, later));
        if self.damage.len() == was {
            return Ok(false);
        }
        std::fs::copy(&path, damaged_name(&path)).map_err(io)?;
        bytes.truncate(end);
        let progress = Progress { synced: end as u64, previous_end: 0, boot: self.folder.boot };
        let head = [segment::stamp_bytes(header.stamp), segment::progress_bytes(progress)].concat();
        bytes[..HEADER_BYTES as usize].copy_from_slice(&head);
        let new = path.with_extension("new");
        let write = || -> io::Result<()> {
            let mut file = File::create(&new)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            std::fs::rename(&new, &path)
        };
        write().map_err(io)?;
        Ok(true)
    }

    fn add_damage(&mut self, path: &Path, from: usize, to: usize) {
        self.damage.push(Damage { segment: path.to_owned(), from: from as u64, to: to as u64 });
    }

    /// Covers damaged ranges and returns the end of the records.
    fn cover(&mut self, bytes: &mut Vec<u8>, path: &Path, (header, later): (&Header, &Later)) -> usize {
        let stamp = header.stamp;
        let mut at = HEADER_BYTES as usize;
        loop {
            while let Parsed::Record(_, length) = stamp.read(&bytes[at.min(bytes.len())..], at as u64) {
                at += length;
            }
            let next = stamp.find(bytes, at + 1);
            let Some(next) = next.filter(|next| next - at >= framed_bytes(0)) else { break };
            self.add_damage(path, at, next);
            cover(bytes, stamp, at, next);
            at = next;
        }
        let rest = bytes.get(at..).unwrap_or_default();
        let written = rest.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        let tail = if written == 0 { Tail::Clean } else { Tail::Torn };
        if recover::judge_end(header, (at as u64, tail), later) == Verdict::Missing {
            let durable = later.end.unwrap_or(0).max(header.synced()) as usize;
            let to = (at + written).max(durable);
            self.add_damage(path, at, to.max(at + 1));
            // The next segment continues at the recorded end.
            if let Some(end) = later.end.map(|end| end as usize).filter(|end| *end >= at + framed_bytes(0)) {
                bytes.resize(end.max(bytes.len()), 0);
                cover(bytes, stamp, at, end);
                return end;
            }
        }
        at
    }
}

/// Overwrites a range with a record that belongs to the journal itself.
fn cover(bytes: &mut [u8], stamp: Stamp, from: usize, to: usize) {
    let payload = Bytes::from(vec![0; to - from - framed_bytes(0)]);
    let mut cover = Vec::new();
    stamp.write(&mut cover, from as u64, (JOURNAL_ROLLOUT, 0, Kind::Event(1)), &[payload]);
    bytes[from..to].copy_from_slice(&cover);
}

fn damaged_name(path: &Path) -> PathBuf {
    path.with_extension("seg.damaged")
}

/// Returns the rollouts that lost records, in segments from this one on.
fn lost_rollouts(folder: &Folder, first: u64) -> io::Result<Vec<String>> {
    let numbers = folder.numbers()?;
    let before = numbers.iter().rev().find(|number| **number < first && folder.index(**number).exists());
    let known = before.map(|number| std::fs::read(folder.index(*number))).transpose()?;
    let known = known.and_then(|bytes| Index::read(&bytes));
    let (mut index, known) = (known.clone().unwrap_or_default(), known.is_some());
    let first_number = numbers.first().copied();
    let mut lost: Vec<(u64, Vec<Location>)> = Vec::new();
    let from = before.copied().unwrap_or(0);
    for number in numbers.into_iter().filter(|number| *number > from) {
        let bytes = std::fs::read(folder.segment(number))?;
        let Ok(header) = segment::header(&bytes, number) else { continue };
        segment::scan(&bytes, header.stamp, |record, offset| {
            let place = Location::new(number, record.kind, offset);
            let name = index::hash_of(record.kind, record.payload);
            if record.kind == Kind::End {
                let records = index.live.get(&record.rollout).cloned().unwrap_or_default();
                if !records.is_before(record.sequence) {
                    lost.push((record.rollout, records.places));
                }
            }
            index.note(record.rollout, record.sequence, record.kind, name, place);
        });
    }
    let live = index.live.iter().filter(|(_, records)| !records.is_complete());
    lost.extend(live.map(|(number, records)| (*number, records.places.clone())));
    // If earlier segments are unknown, a rollout without its first record may just be old.
    let is_known = known || first_number == Some(1);
    let has_begun = |places: &[Location]| places.first().is_some_and(|first| *first != Location::MISSING);
    lost.retain(|(_, places)| is_known || has_begun(places));
    lost.sort_unstable_by_key(|(number, _)| *number);
    let mut seen = HashSet::new();
    lost.retain(|(number, _)| seen.insert(*number));
    let mut reader = Reader::new(folder);
    let mut name = |(number, places): (u64, Vec<Location>)| {
        let first = places.first().filter(|first| **first != Location::MISSING);
        match first.map(|first| reader.record(*first)) {
            Some(Ok((_, Kind::Begin, name))) => String::from_utf8_lossy(&name).into_owned(),
            _ => format!("number {number}"),
        }
    };
    Ok(lost.into_iter().map(&mut name).collect())
}
