//! Opening of a journal's directory, and reading of records.

use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use bytes::Bytes;
use rustix::fs::{FlockOperation, flock, ftruncate};

use crate::frame::{FRAME_BYTES, Parsed, Stamp};
use crate::index::{self, Index};
use crate::record::Kind;
use crate::segment::{self, Folder, HEADER_BYTES, Header, InvalidSegment, Segment, Tail, scan};
use crate::tables::Tables;
use crate::{Event, Location, OpenError, SEGMENT_BYTES, Written};

/// Maximum number of open files of a reader. Rollouts that ran concurrently share few segments.
const OPEN_FILES_MAX: usize = 8;

/// A journal's directory that is ready for writing.
pub(crate) struct Opened {
    pub tables: Tables,
    pub current: Segment,
    pub lock: File,
}

/// Opens a journal's directory. Sets the folder's salt to that of the journal's segments.
pub(crate) fn open(folder: &mut Folder) -> Result<Opened, OpenError> {
    let path = folder.path.clone();
    let io = |error| OpenError::Io(path.clone(), error);
    std::fs::create_dir_all(&folder.path).map_err(io)?;
    let lock = lock(folder)?;
    folder.salt = salt(folder).map_err(io)?;
    let (mut index, last) = loop {
        if let Some(found) = try_index(folder)? {
            break found;
        }
    };
    let current = match last {
        Some((number, end)) => folder.resume(number, end),
        None => folder.create(folder.numbers().map_err(io)?.last().copied().unwrap_or(0) + 1),
    };
    let left_out = index.drop_incomplete();
    if left_out > 0 {
        tracing::error!(left_out, "rollouts that lost records cannot be resumed");
    }
    Ok(Opened { tables: Tables { index, ..Tables::default() }, current: current.map_err(io)?, lock })
}

/// Returns the salt of the journal: that of a segment, or a new one.
pub(crate) fn salt(folder: &Folder) -> io::Result<u64> {
    for number in folder.numbers()?.into_iter().rev() {
        if let Some((header, _)) = folder.inspect(number)
            && header.stamp.salt != 0
        {
            return Ok(header.stamp.salt);
        }
    }
    let mut random = [0; 8];
    io::Read::read_exact(&mut File::open("/dev/urandom")?, &mut random)?;
    Ok(u64::from_le_bytes(random))
}

/// Facts about later segments that are known before a segment is scanned.
pub(crate) struct Later {
    /// Whether a later segment has records, so that this one is complete.
    pub is_begun: bool,
    /// Whether a later segment was synced, which happens only after this one was.
    pub is_synced: bool,
    /// End of this segment's records, according to the next segment.
    pub end: Option<u64>,
}

impl Later {
    /// Returns the facts about later segments that may be written; `sealed_to` is the last segment with an
    /// index.
    pub(crate) fn of(folder: &Folder, number: u64, rest: &[u64], sealed_to: u64) -> Self {
        let mut later = Self { is_begun: number < sealed_to, is_synced: number < sealed_to, end: None };
        for next in rest.iter().copied() {
            let Some((header, has_records)) = folder.inspect(next) else { continue };
            let is_begun = has_records || header.previous_end().is_some();
            later.is_begun |= is_begun;
            later.is_synced |= header.synced() > HEADER_BYTES;
            if next == number + 1 && is_begun {
                later.end = header.previous_end();
            }
            if later.is_begun && later.is_synced {
                break;
            }
        }
        later
    }
}

/// State of the records in a segment without an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// All records are intact.
    Whole,
    /// The last record is incomplete and was never acknowledged.
    Torn,
    /// A record before others is missing, in this segment or a later one.
    Missing,
}

/// Interprets the end of a segment's records.
pub(crate) fn judge_end(header: &Header, (end, tail): (u64, Tail), later: &Later) -> Verdict {
    let has_all_synced = end >= header.synced();
    match (later.is_begun, tail) {
        (false, Tail::Clean) if has_all_synced => Verdict::Whole,
        (false, Tail::Torn) if has_all_synced => Verdict::Torn,
        // The writer switches segments only for a record that does not fit.
        (true, Tail::Clean)
            if has_all_synced && end > HEADER_BYTES && later.end.is_none_or(|expected| expected == end) =>
        {
            Verdict::Whole
        }
        _ => Verdict::Missing,
    }
}

/// Builds the index at the end of the journal and returns the segment and offset to continue at. Writes
/// missing indexes of sealed segments. Returns `None` after removing a damaged index; the caller then
/// retries.
#[expect(clippy::type_complexity, reason = "the only caller destructures it")]
fn try_index(folder: &Folder) -> Result<Option<(Index, Option<(u64, u64)>)>, OpenError> {
    let io = |error| OpenError::Io(folder.path.clone(), error);
    let numbers = folder.numbers().map_err(io)?;
    let indexed = indexed(folder, &numbers).map_err(io)?;
    let sealed_to = indexed.last().copied().unwrap_or(0);
    // The index at the end of the previous segment, or the segment whose file has it.
    let mut before = Ok(Index::default());
    let mut last = None;
    for (at, number) in numbers.iter().copied().enumerate() {
        if indexed.contains(&number) {
            before = Err(number);
            continue;
        }
        let Some(mut index) = known(folder, before)? else { return Ok(None) };
        let path = folder.segment(number);
        let later = Later::of(folder, number, &numbers[at + 1..], sealed_to);
        let bytes = std::fs::read(&path).map_err(io)?;
        let header = match segment::header(&bytes, number) {
            Ok(header) => header,
            Err(InvalidSegment::Version(version)) => return Err(OpenError::Version { path, version }),
            // The segment was being allocated in advance.
            Err(InvalidSegment::Empty) if !later.is_begun => {
                std::fs::remove_file(&path).map_err(io)?;
                before = Ok(index);
                continue;
            }
            Err(InvalidSegment::Empty | InvalidSegment::Damaged) => {
                return Err(OpenError::Damaged { path, at: 0 });
            }
        };
        let found = scan(&bytes, header.stamp, |record, offset| {
            let place = Location::new(number, record.kind, offset);
            let name = index::hash_of(record.kind, record.payload);
            index.note(record.rollout, record.sequence, record.kind, name, place);
        });
        let end = found.0;
        let verdict = judge_end(&header, found, &later);
        if verdict == Verdict::Missing {
            let may_be_lost = end >= header.synced() && !later.is_synced && folder.may_have_stopped(&header);
            if !may_be_lost {
                return Err(OpenError::Damaged { path, at: end });
            }
            tracing::warn!(
                segment = number,
                at = end,
                "the machine stopped before all writes were on the disk; removing writes that were not synced"
            );
            for next in &numbers[at + 1..] {
                std::fs::remove_file(folder.segment(*next)).map_err(io)?;
            }
            return Ok(Some((index, Some((number, end)))));
        }
        if verdict == Verdict::Torn {
            let bytes = bytes.len() as u64 - end;
            tracing::warn!(
                segment = number,
                at = end,
                bytes,
                "the last write to the journal is incomplete; removing it"
            );
        }
        if later.is_begun {
            seal(folder, number, end, &index).map_err(io)?;
            index.take_sealed();
        } else if end == HEADER_BYTES && last.is_some() {
            // The segment was allocated in advance and has no records.
            std::fs::remove_file(&path).map_err(io)?;
        } else {
            last = Some((number, end));
        }
        before = Ok(index);
    }
    Ok(known(folder, before)?.map(|index| (index, last)))
}

impl Folder {
    /// Returns whether the machine may have crashed since a segment was written and lost unsynced bytes.
    fn may_have_stopped(&self, header: &Header) -> bool {
        let boot = header.progress.map_or(self.boot, |progress| progress.boot);
        boot != self.boot || boot == 0
    }
}

/// Returns the segments with an index. Removes incomplete indexes.
fn indexed(folder: &Folder, numbers: &[u64]) -> io::Result<BTreeSet<u64>> {
    let mut indexed = BTreeSet::new();
    for number in numbers.iter().copied() {
        let path = folder.index(number);
        match File::open(&path) {
            Ok(file) if index::is_whole(&file) => drop(indexed.insert(number)),
            Ok(_) => {
                tracing::warn!(
                    segment = number,
                    "the index of a journal's segment is wrong; building it again"
                );
                std::fs::remove_file(path)?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(indexed)
}

/// Seals a segment that an earlier process did not seal.
fn seal(folder: &Folder, number: u64, end: u64, index: &Index) -> io::Result<()> {
    let file = File::options().write(true).open(folder.segment(number))?;
    ftruncate(&file, end)?;
    // An index implies that its segment is synced.
    file.sync_all()?;
    folder.write_index(number, &index.write())
}

/// Returns an index from memory or from the file of this segment. Removes a damaged file.
fn known(folder: &Folder, index: Result<Index, u64>) -> Result<Option<Index>, OpenError> {
    let number = match index {
        Ok(index) => return Ok(Some(index)),
        Err(number) => number,
    };
    let (path, io) = (folder.index(number), |error| OpenError::Io(folder.path.clone(), error));
    let read = Index::read(&std::fs::read(&path).map_err(io)?);
    if read.is_none() {
        tracing::warn!(segment = number, "the index of a journal's segment is wrong; building it again");
        std::fs::remove_file(&path).map_err(io)?;
    }
    Ok(read)
}

pub(crate) fn lock(folder: &Folder) -> Result<File, OpenError> {
    let path = folder.path.join("lock");
    let file = File::options().create(true).truncate(false).write(true).open(path);
    let file = file.map_err(|error| OpenError::Io(folder.path.clone(), error))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(OpenError::Taken(folder.path.clone())),
        Err(error) => Err(OpenError::Io(folder.path.clone(), error.into())),
    }
}

/// Directory of a journal that is opened for reading only.
pub(crate) fn unopened(path: &Path) -> Folder {
    Folder { path: path.to_owned(), segment_bytes: SEGMENT_BYTES, faults: None, salt: 0, boot: 0 }
}

/// Locations of a rollout's records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Located {
    pub places: Vec<Location>,
    /// Number and hash of the name while the rollout is unfinished, because its records may be copied.
    pub live: Option<(u64, u64)>,
}

impl Located {
    pub(crate) fn ended(places: Vec<Location>) -> Self {
        Self { places, live: None }
    }
}

/// Returns the locations of finished rollouts in sealed segments up to this one, the latest first.
pub(crate) fn find_sealed(folder: &Folder, name: u64, last: u64) -> io::Result<Vec<Vec<Location>>> {
    let mut found = Vec::new();
    for number in folder.numbers()?.into_iter().rev().filter(|number| *number <= last) {
        match File::open(folder.index(number)) {
            Ok(file) => found.extend(index::find(&file, name)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Returns the locations of rollouts with this name, the latest first, in a journal that another process may
/// be writing.
pub(crate) fn find_unopened(folder: &Folder, name: u64) -> io::Result<Vec<Located>> {
    let numbers = folder.numbers()?;
    let sealed = numbers.iter().copied().filter(|number| folder.index(*number).exists()).max();
    let mut index = Index::default();
    if let Some(sealed) = sealed {
        let known = Index::read(&std::fs::read(folder.index(sealed))?);
        index = known.ok_or_else(|| io::Error::other("the index of a segment is wrong"))?;
    }
    let unsealed = numbers.iter().position(|number| sealed.is_none_or(|sealed| *number > sealed));
    let mut unsealed = unsealed.map_or(&[][..], |from| &numbers[from..]);
    while let Some((number, rest)) = unsealed.split_first() {
        unsealed = if scan_unsealed(folder, *number, rest, &mut index)? { rest } else { &[] };
    }
    let ended: Vec<Located> = index
        .ended
        .iter()
        .rev()
        .filter(|records| records.name == name)
        .map(|records| Located::ended(records.places.clone()))
        .collect();
    let mut found: Vec<Located> = Vec::new();
    for (number, records) in index.take_live().into_iter().rev().filter(|(_, records)| records.name == name) {
        found.push(Located { places: records.places, live: Some((number, name)) });
    }
    found.extend(ended);
    // The rollouts of later segments were found above, also if the segments have been sealed since.
    found.extend(find_sealed(folder, name, sealed.unwrap_or(0))?.into_iter().map(Located::ended));
    Ok(found)
}

/// Returns the current locations of a rollout that was unfinished when it was found.
pub(crate) fn find_again(folder: &Folder, (number, name): (u64, u64)) -> io::Result<Option<Vec<Location>>> {
    for found in find_unopened(folder, name)? {
        let Some(first) = found.places.first() else { continue };
        match Reader::new(folder).record(*first) {
            Ok((rollout, ..)) if rollout == number => return Ok(Some(found.places)),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Indexes a segment without an index. Another process may be writing the last one. Returns whether later
/// segments may have more records; records that are written after the scan are not included. Damage is an
/// error, and nothing is indexed then.
pub(crate) fn scan_unsealed(
    folder: &Folder,
    number: u64,
    rest: &[u64],
    index: &mut Index,
) -> io::Result<bool> {
    // Apparent damage may be a concurrent write; then a second read of the segment is intact.
    let mut wrong = None;
    loop {
        // Checked before the scan: if a later segment has records, this one is complete.
        let sealed_to = rest.iter().rev().copied().find(|later| folder.index(*later).exists());
        let later = Later::of(folder, number, rest, sealed_to.unwrap_or(0));
        let bytes = match std::fs::read(folder.segment(number)) {
            Ok(bytes) => bytes,
            // The segment was deleted.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(later.is_begun),
            Err(error) => return Err(error),
        };
        let mut records = Vec::new();
        let at = match segment::header(&bytes, number) {
            Err(InvalidSegment::Empty) if !later.is_begun => return Ok(false),
            Err(InvalidSegment::Version(version)) => {
                return Err(io::Error::other(OpenError::Version { path: folder.segment(number), version }));
            }
            Err(InvalidSegment::Empty | InvalidSegment::Damaged) => 0,
            Ok(header) => {
                let found = scan(&bytes, header.stamp, |record, offset| {
                    let name = index::hash_of(record.kind, record.payload);
                    records.push((record.rollout, record.sequence, record.kind, name, offset));
                });
                // The incomplete record is being written.
                if judge_end(&header, found, &later) != Verdict::Missing {
                    for (rollout, sequence, kind, name, offset) in records {
                        index.note(rollout, sequence, kind, name, Location::new(number, kind, offset));
                    }
                    return Ok(later.is_begun);
                }
                found.0
            }
        };
        if wrong.replace(at) == Some(at) {
            let damaged = OpenError::Damaged { path: folder.segment(number), at };
            return Err(io::Error::new(io::ErrorKind::InvalidData, damaged));
        }
    }
}

/// Reader of records with a few open files.
pub(crate) struct Reader<'a> {
    folder: &'a Folder,
    files: VecDeque<(Stamp, File)>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(folder: &'a Folder) -> Self {
        Self { folder, files: VecDeque::new() }
    }

    /// Reads the records at these locations, which belong to one rollout.
    pub(crate) fn read_any(&mut self, places: &[Location]) -> io::Result<Written> {
        let mut written = Written { name: Bytes::new(), events: Vec::new(), ended: false };
        let mut owner = None;
        for place in places {
            let (rollout, kind, payload) = self.record(*place)?;
            if *owner.get_or_insert(rollout) != rollout || kind != place.kind() {
                return Err(damaged(self.folder, *place));
            }
            match kind {
                Kind::Begin => written.name = payload,
                Kind::Event(kind) => written.events.push(Event { kind, payload }),
                Kind::End => written.ended = true,
            }
        }
        Ok(written)
    }

    /// Reads the records of this rollout.
    pub(crate) fn read(&mut self, number: u64, places: &[Location]) -> io::Result<Written> {
        if let Some(place) = places.first()
            && self.record(*place)?.0 != number
        {
            return Err(damaged(self.folder, *place));
        }
        self.read_any(places)
    }

    /// Reads the bytes of the record at this location.
    pub(crate) fn bytes_at(&mut self, place: Location) -> io::Result<u64> {
        Ok(self.length(place)? as u64)
    }

    fn length(&mut self, place: Location) -> io::Result<usize> {
        let mut frame = [0; FRAME_BYTES];
        let (stamp, file) = self.file(place)?;
        let stamp = *stamp;
        file.read_exact_at(&mut frame, place.offset).map_err(|error| cut(self.folder, place, error))?;
        stamp.length_at(&frame, place.offset).ok_or_else(|| damaged(self.folder, place))
    }

    /// Reads a record's rollout, kind and payload.
    pub(crate) fn record(&mut self, place: Location) -> io::Result<(u64, Kind, Bytes)> {
        let mut bytes = vec![0; self.length(place)?];
        let (stamp, file) = self.file(place)?;
        let stamp = *stamp;
        file.read_exact_at(&mut bytes, place.offset).map_err(|error| cut(self.folder, place, error))?;
        let Parsed::Record(read, _) = stamp.read(&bytes, place.offset) else {
            return Err(damaged(self.folder, place));
        };
        let (rollout, kind, from) = (read.rollout, read.kind, bytes.len() - read.payload.len());
        Ok((rollout, kind, Bytes::from(bytes).slice(from..)))
    }

    fn file(&mut self, place: Location) -> io::Result<&(Stamp, File)> {
        let number = place.segment();
        let at = match self.files.iter().position(|(known, _)| known.segment == number) {
            Some(at) => at,
            None => {
                if self.files.len() == OPEN_FILES_MAX {
                    self.files.pop_front();
                }
                let file = File::open(self.folder.segment(number))?;
                let mut bytes = [0; HEADER_BYTES as usize];
                let start = Location::new(number, place.kind(), 0);
                file.read_exact_at(&mut bytes, 0).map_err(|error| cut(self.folder, start, error))?;
                let header = segment::header(&bytes, number).map_err(|_| damaged(self.folder, start))?;
                self.files.push_back((header.stamp, file));
                self.files.len() - 1
            }
        };
        Ok(&self.files[at])
    }
}

/// Returns the error of a damaged record, which affects one rollout. An [`OpenError`] may affect others too.
fn damaged(folder: &Folder, place: Location) -> io::Error {
    let damaged = OpenError::Damaged { path: folder.segment(place.segment()), at: place.offset };
    io::Error::new(io::ErrorKind::InvalidData, damaged.to_string())
}

/// Converts an unexpected end of file to the error of a damaged record.
fn cut(folder: &Folder, place: Location, error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::UnexpectedEof { damaged(folder, place) } else { error }
}
