//! What is in a directory when it is opened, and records read back.

use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use bytes::Bytes;
use rustix::fs::{FlockOperation, flock, ftruncate};

use crate::frame::{FRAME_BYTES, Found, Stamp};
use crate::index::{self, Index};
use crate::record::Kind;
use crate::segment::{self, Folder, HEADER_BYTES, Header, NotOurs, Segment, Tail, scan};
use crate::writer::Tables;
use crate::{Event, Location, OpenError, SEGMENT_BYTES, Written};

/// Files that a reader keeps open. Rollouts that ran at the same time lie in the same few.
const OPEN_FILES_MAX: usize = 8;

/// A journal's directory, ready to be written to.
pub(crate) struct Opened {
    pub tables: Tables,
    pub current: Segment,
    pub lock: File,
}

/// Opens a journal's directory. The folder gets the salt that the journal's segments have.
pub(crate) fn open(folder: &mut Folder) -> Result<Opened, OpenError> {
    let path = folder.path.clone();
    let io = |error| OpenError::Io(path.clone(), error);
    std::fs::create_dir_all(&folder.path).map_err(io)?;
    let lock = lock(folder)?;
    folder.salt = salt(folder).map_err(io)?;
    let (mut index, last) = loop {
        if let Some(found) = look(folder)? {
            break found;
        }
    };
    let current = match last {
        Some((number, end)) => folder.resume(number, end),
        None => folder.create(folder.numbers().map_err(io)?.last().copied().unwrap_or(0) + 1),
    };
    let left_out = index.drop_incomplete();
    if left_out > 0 {
        tracing::error!(left_out, "rollouts whose records were lost are not gone on with");
    }
    Ok(Opened { tables: Tables { index, ..Tables::default() }, current: current.map_err(io)?, lock })
}

/// The salt of the journal: that of a segment, or a new one.
fn salt(folder: &Folder) -> io::Result<u64> {
    for number in folder.numbers()?.into_iter().rev() {
        if let Some((header, _)) = folder.look_at(number)
            && header.stamp.salt != 0
        {
            return Ok(header.stamp.salt);
        }
    }
    let mut random = [0; 8];
    io::Read::read_exact(&mut File::open("/dev/urandom")?, &mut random)?;
    Ok(u64::from_le_bytes(random))
}

/// What is known of the segments behind one, before that is looked at.
pub(crate) struct Later {
    /// Whether any of them has records, so that nothing is added to this one any more.
    pub is_begun: bool,
    /// Whether any of them was synced, which was after this one was.
    pub is_synced: bool,
    /// Where this one ends, as the next one says.
    pub end: Option<u64>,
}

impl Later {
    /// The segments that are behind this one and may be written to; `sealed_to` is the last with an index.
    pub(crate) fn of(folder: &Folder, number: u64, rest: &[u64], sealed_to: u64) -> Self {
        let mut later = Self { is_begun: number < sealed_to, is_synced: number < sealed_to, end: None };
        for next in rest.iter().copied() {
            let Some((header, has_records)) = folder.look_at(next) else { continue };
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

/// What the records of a segment without an index are worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// They are all there.
    Whole,
    /// The last thing that was written is not whole, and was never promised.
    Torn,
    /// Something is missing before what follows, in this segment or a later one.
    Missing,
}

/// Says what the end of a segment's records means.
pub(crate) fn verdict(header: &Header, (end, tail): (u64, Tail), later: &Later) -> Verdict {
    let is_as_promised = end >= header.synced();
    match (later.is_begun, tail) {
        (false, Tail::Clean) if is_as_promised => Verdict::Whole,
        (false, Tail::Torn) if is_as_promised => Verdict::Torn,
        // A segment is left only for a record that it has no room for.
        (true, Tail::Clean)
            if is_as_promised && end > HEADER_BYTES && later.end.is_none_or(|expected| expected == end) =>
        {
            Verdict::Whole
        }
        _ => Verdict::Missing,
    }
}

/// What is known at the end of the journal, and which segment goes on from where. A sealed segment
/// without an index gets one. Nothing where an index was wrong, which is removed: then it is to be
/// looked again.
#[expect(clippy::type_complexity, reason = "it is taken apart where it is given")]
fn look(folder: &Folder) -> Result<Option<(Index, Option<(u64, u64)>)>, OpenError> {
    let io = |error| OpenError::Io(folder.path.clone(), error);
    let numbers = folder.numbers().map_err(io)?;
    let indexed = indexed(folder, &numbers).map_err(io)?;
    let sealed_to = indexed.last().copied().unwrap_or(0);
    // What was known at the end of the segment before, or whose index says so.
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
            Err(NotOurs::Version(version)) => return Err(OpenError::Version { path, version }),
            // It was being made ahead.
            Err(NotOurs::Empty) if !later.is_begun => {
                std::fs::remove_file(&path).map_err(io)?;
                before = Ok(index);
                continue;
            }
            Err(NotOurs::Empty | NotOurs::Damaged) => return Err(OpenError::Damaged { path, at: 0 }),
        };
        let found = scan(&bytes, header.stamp, |record, offset| {
            let place = Location::new(number, record.kind, offset);
            let name = index::hash_of(record.kind, record.payload);
            index.note(record.rollout, record.sequence, record.kind, name, place);
        });
        let end = found.0;
        let verdict = verdict(&header, found, &later);
        if verdict == Verdict::Missing {
            let may_be_lost = end >= header.synced() && !later.is_synced && folder.may_have_stopped(&header);
            if !may_be_lost {
                return Err(OpenError::Damaged { path, at: end });
            }
            tracing::warn!(
                segment = number,
                at = end,
                "the machine stopped before all that was written was on the disk; what follows was not promised, and is cut"
            );
            for next in &numbers[at + 1..] {
                std::fs::remove_file(folder.segment(*next)).map_err(io)?;
            }
            return Ok(Some((index, Some((number, end)))));
        }
        if verdict == Verdict::Torn {
            let bytes = bytes.len() as u64 - end;
            tracing::warn!(segment = number, at = end, bytes, "the journal's tail was torn, and is cut");
        }
        if later.is_begun {
            seal(folder, number, end, &index).map_err(io)?;
            index.take_sealed();
        } else if end == HEADER_BYTES && last.is_some() {
            // It was made ahead and is not begun.
            std::fs::remove_file(&path).map_err(io)?;
        } else {
            last = Some((number, end));
        }
        before = Ok(index);
    }
    Ok(known(folder, before)?.map(|index| (index, last)))
}

impl Folder {
    /// Whether the machine may have stopped since a segment was written to, and lost what was not synced.
    fn may_have_stopped(&self, header: &Header) -> bool {
        let boot = header.progress.map_or(self.boot, |progress| progress.boot);
        boot != self.boot || boot == 0
    }
}

/// The segments that have an index. One that was not written to its end is removed.
fn indexed(folder: &Folder, numbers: &[u64]) -> io::Result<BTreeSet<u64>> {
    let mut indexed = BTreeSet::new();
    for number in numbers.iter().copied() {
        let path = folder.index(number);
        match File::open(&path) {
            Ok(file) if index::is_whole(&file) => drop(indexed.insert(number)),
            Ok(_) => {
                tracing::warn!(
                    segment = number,
                    "the index of a journal's segment is wrong, and is made again"
                );
                std::fs::remove_file(path)?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(indexed)
}

/// Seals a segment that a process before did not come to seal.
fn seal(folder: &Folder, number: u64, end: u64, index: &Index) -> io::Result<()> {
    let file = File::options().write(true).open(folder.segment(number))?;
    ftruncate(&file, end)?;
    // Its index says that it is on the disk.
    file.sync_all()?;
    folder.write_index(number, &index.write())
}

/// What an index says that is at hand or in the file of this segment. A wrong file is removed.
fn known(folder: &Folder, index: Result<Index, u64>) -> Result<Option<Index>, OpenError> {
    let number = match index {
        Ok(index) => return Ok(Some(index)),
        Err(number) => number,
    };
    let (path, io) = (folder.index(number), |error| OpenError::Io(folder.path.clone(), error));
    let read = Index::read(&std::fs::read(&path).map_err(io)?);
    if read.is_none() {
        tracing::warn!(segment = number, "the index of a journal's segment is wrong, and is made again");
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

/// The directory of a journal that is not opened to be written.
pub(crate) fn unopened(path: &Path) -> Folder {
    Folder { path: path.to_owned(), segment_bytes: SEGMENT_BYTES, faults: None, salt: 0, boot: 0 }
}

/// A rollout by where its records are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lies {
    pub places: Vec<Location>,
    /// Its number and the hash of its name while it is alive, for then its records may be copied elsewhere.
    pub live: Option<(u64, u64)>,
}

impl Lies {
    pub(crate) fn ended(places: Vec<Location>) -> Self {
        Self { places, live: None }
    }
}

/// Where the records are of rollouts that ended in sealed segments, the last one first.
pub(crate) fn find_sealed(folder: &Folder, name: u64) -> io::Result<Vec<Vec<Location>>> {
    let mut found = Vec::new();
    for number in folder.numbers()?.into_iter().rev() {
        match File::open(folder.index(number)) {
            Ok(file) => found.extend(index::find(&file, name)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Where the records are of rollouts by this name, the last one first, in a journal that another
/// process may be writing to.
pub(crate) fn find_unopened(folder: &Folder, name: u64) -> io::Result<Vec<Lies>> {
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
    let ended: Vec<Lies> = index
        .ended
        .iter()
        .rev()
        .filter(|records| records.name == name)
        .map(|records| Lies::ended(records.places.clone()))
        .collect();
    let mut found: Vec<Lies> = Vec::new();
    for (number, records) in index.take_live().into_iter().rev().filter(|(_, records)| records.name == name) {
        found.push(Lies { places: records.places, live: Some((number, name)) });
    }
    found.extend(ended);
    found.extend(find_sealed(folder, name)?.into_iter().map(Lies::ended));
    Ok(found)
}

/// Where the records are now of a rollout that was alive when it was found.
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

/// Notes what is in a segment that has no index, of which another process may be writing the last.
/// Says whether those after it may have more: what is written to one after another was looked at is
/// not the end of that one. Damage is an error, and notes nothing.
pub(crate) fn scan_unsealed(
    folder: &Folder,
    number: u64,
    rest: &[u64],
    index: &mut Index,
) -> io::Result<bool> {
    // What was seen wrong, which may be what was read while it was written: then it is no longer so in what is read
    // after that.
    let mut wrong = None;
    loop {
        // Before it is read: where a later one has records, nothing is added to this one any more.
        let sealed_to = rest.iter().rev().copied().find(|later| folder.index(*later).exists());
        let later = Later::of(folder, number, rest, sealed_to.unwrap_or(0));
        let bytes = match std::fs::read(folder.segment(number)) {
            Ok(bytes) => bytes,
            // It is no longer kept.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(later.is_begun),
            Err(error) => return Err(error),
        };
        let mut records = Vec::new();
        let at = match segment::header(&bytes, number) {
            Err(NotOurs::Empty) if !later.is_begun => return Ok(false),
            Err(NotOurs::Version(version)) => {
                return Err(io::Error::other(OpenError::Version { path: folder.segment(number), version }));
            }
            Err(NotOurs::Empty | NotOurs::Damaged) => 0,
            Ok(header) => {
                let found = scan(&bytes, header.stamp, |record, offset| {
                    let name = index::hash_of(record.kind, record.payload);
                    records.push((record.rollout, record.sequence, record.kind, name, offset));
                });
                // What is torn is being written.
                if verdict(&header, found, &later) != Verdict::Missing {
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

/// Reads records, and keeps a few files open.
pub(crate) struct Reader<'a> {
    folder: &'a Folder,
    files: VecDeque<(Stamp, File)>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(folder: &'a Folder) -> Self {
        Self { folder, files: VecDeque::new() }
    }

    /// The records at these places, which are one rollout's.
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

    /// The same, of this rollout.
    pub(crate) fn read(&mut self, number: u64, places: &[Location]) -> io::Result<Written> {
        if let Some(place) = places.first()
            && self.record(*place)?.0 != number
        {
            return Err(damaged(self.folder, *place));
        }
        self.read_any(places)
    }

    /// The bytes of the record at this place.
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

    /// A record's rollout, kind and payload.
    pub(crate) fn record(&mut self, place: Location) -> io::Result<(u64, Kind, Bytes)> {
        let mut bytes = vec![0; self.length(place)?];
        let (stamp, file) = self.file(place)?;
        let stamp = *stamp;
        file.read_exact_at(&mut bytes, place.offset).map_err(|error| cut(self.folder, place, error))?;
        let Found::Record(read, _) = stamp.read(&bytes, place.offset) else {
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

/// One record is damaged, and with it one rollout. An [`OpenError`] says that others may be missing, too.
fn damaged(folder: &Folder, place: Location) -> io::Error {
    let damaged = OpenError::Damaged { path: folder.segment(place.segment()), at: place.offset };
    io::Error::new(io::ErrorKind::InvalidData, damaged.to_string())
}

/// A file that ends before a record does is damaged.
fn cut(folder: &Folder, place: Location, error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::UnexpectedEof { damaged(folder, place) } else { error }
}
