//! What is in a directory when it is opened, and records read back.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use bytes::Bytes;
use rustix::fs::{FlockOperation, flock};

use crate::index::{self, Index};
use crate::record::{self, FRAME_BYTES, Found, Kind};
use crate::segment::{Folder, HEADER_BYTES, Segment, Tail, is_segment, scan};
use crate::writer::Tables;
use crate::{Event, Location, OpenError, Written};

/// Files that a reader keeps open. Rollouts that ran at the same time lie in the same few.
const OPEN_FILES_MAX: usize = 8;

/// A journal's directory, ready to be written to.
pub(crate) struct Opened {
    pub tables: Tables,
    pub current: Segment,
    pub lock: File,
}

pub(crate) fn open(folder: &Folder) -> Result<Opened, OpenError> {
    let io = |error| OpenError::Io(folder.path.clone(), error);
    std::fs::create_dir_all(&folder.path).map_err(io)?;
    let lock = lock(folder)?;
    let (index, last) = loop {
        if let Some(found) = look(folder)? {
            break found;
        }
    };
    let current = match last {
        Some((number, end)) => folder.resume(number, end),
        None => folder.create(folder.numbers().map_err(io)?.last().copied().unwrap_or(0) + 1),
    };
    Ok(Opened { tables: Tables { index, ..Tables::default() }, current: current.map_err(io)?, lock })
}

/// What is known at the end of the journal, and which segment goes on from where. A sealed segment
/// without an index gets one. Nothing where an index was wrong, which is removed: then it is to be
/// looked again.
#[expect(clippy::type_complexity, reason = "it is taken apart where it is given")]
fn look(folder: &Folder) -> Result<Option<(Index, Option<(u64, u64)>)>, OpenError> {
    let io = |error| OpenError::Io(folder.path.clone(), error);
    let numbers = folder.numbers().map_err(io)?;
    let has_index = |number: u64| folder.index(number).exists();
    let sealed_to = numbers.iter().copied().filter(|number| has_index(*number)).max().unwrap_or(0);
    // What was known at the end of the segment before, or whose index says so.
    let mut before = Ok(Index::default());
    let mut last = None;
    for (at, number) in numbers.iter().copied().enumerate() {
        if has_index(number) {
            before = Err(number);
            continue;
        }
        let Some(mut index) = known(folder, before)? else { return Ok(None) };
        let path = folder.segment(number);
        let bytes = std::fs::read(&path).map_err(io)?;
        let is_one = is_segment(&bytes, number);
        let (end, tail) = match is_one {
            true => scan(&bytes, |record, offset| {
                let place = Location::new(number, record.kind, offset);
                index.note(record.rollout, record.kind, record.payload, place);
            }),
            false => (HEADER_BYTES, Tail::Clean),
        };
        let is_sealed = number < sealed_to || numbers[at + 1..].iter().any(|next| has_records(folder, *next));
        match tail {
            Tail::Torn if is_sealed => return Err(OpenError::Damaged { path, at: end }),
            Tail::Torn => {
                let bytes = bytes.len() as u64 - end;
                tracing::warn!(segment = number, at = end, bytes, "the journal's tail was torn, and is cut");
            }
            Tail::Clean => {}
        }
        if !is_one || (end == HEADER_BYTES && last.is_some()) {
            // It was being made ahead, or was and is not begun.
            std::fs::remove_file(&path).map_err(io)?;
        } else if is_sealed {
            folder.write_whole(&folder.index(number), &index.write()).map_err(io)?;
            index.take_sealed();
        } else {
            last = Some((number, end));
        }
        before = Ok(index);
    }
    Ok(known(folder, before)?.map(|index| (index, last)))
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

/// Whether a segment has any record.
fn has_records(folder: &Folder, number: u64) -> bool {
    let first = || -> io::Result<[u8; FRAME_BYTES]> {
        let mut frame = [0; FRAME_BYTES];
        File::open(folder.segment(number))?.read_exact_at(&mut frame, HEADER_BYTES)?;
        Ok(frame)
    };
    first().is_ok_and(|frame| frame != [0; FRAME_BYTES])
}

fn lock(folder: &Folder) -> Result<File, OpenError> {
    let path = folder.path.join("lock");
    let file = File::options().create(true).truncate(false).write(true).open(path);
    let file = file.map_err(|error| OpenError::Io(folder.path.clone(), error))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(OpenError::Taken(folder.path.clone())),
        Err(error) => Err(OpenError::Io(folder.path.clone(), error.into())),
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
pub(crate) fn find_unopened(folder: &Folder, name: u64) -> io::Result<Vec<Vec<Location>>> {
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
    let mut found: Vec<_> = index.live.iter().filter(|(_, records)| records.name == name).collect();
    found.sort_unstable_by_key(|(number, _)| std::cmp::Reverse(**number));
    let live = found.into_iter().map(|(_, records)| records);
    let ended = index.ended.iter().rev().filter(|records| records.name == name);
    let mut places: Vec<Vec<Location>> = live.chain(ended).map(|records| records.places.clone()).collect();
    places.extend(find_sealed(folder, name)?);
    Ok(places)
}

/// Notes what is in a segment that has no index, of which another process may be writing the last.
/// Says whether those after it may have more: what is written to one after another was looked at is
/// not the end of that one.
pub(crate) fn scan_unsealed(
    folder: &Folder,
    number: u64,
    rest: &[u64],
    index: &mut Index,
) -> io::Result<bool> {
    // Before it is read: where a later one has records, nothing is added to this one any more.
    let goes_on = rest.iter().any(|later| folder.index(*later).exists() || has_records(folder, *later));
    let bytes = match std::fs::read(folder.segment(number)) {
        Ok(bytes) => bytes,
        // It is no longer kept.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(goes_on),
        Err(error) => return Err(error),
    };
    if is_segment(&bytes, number) {
        // What is torn here is being written.
        scan(&bytes, |record, offset| {
            let place = Location::new(number, record.kind, offset);
            index.note(record.rollout, record.kind, record.payload, place);
        });
    }
    Ok(goes_on)
}

/// Reads records, and keeps a few files open.
pub(crate) struct Reader<'a> {
    folder: &'a Folder,
    files: VecDeque<(u64, File)>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(folder: &'a Folder) -> Self {
        Self { folder, files: VecDeque::new() }
    }

    /// The records at these places, which are one rollout's.
    pub(crate) fn read_any(&mut self, places: &[Location]) -> io::Result<Written> {
        let mut written = Written { name: Bytes::new(), events: Vec::new(), ended: false };
        for place in places {
            let (_, kind, payload) = self.record(*place)?;
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
            return Err(damaged(*place));
        }
        self.read_any(places)
    }

    /// The bytes of the record at this place.
    pub(crate) fn bytes_at(&mut self, place: Location) -> io::Result<u64> {
        Ok(self.length(place)? as u64)
    }

    fn length(&mut self, place: Location) -> io::Result<usize> {
        let mut frame = [0; FRAME_BYTES];
        self.file(place.segment())?.read_exact_at(&mut frame, place.offset)?;
        let [a, b, c, d, ..] = frame;
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        if length > record::HEAD_BYTES + record::PAYLOAD_BYTES_MAX {
            return Err(damaged(place));
        }
        Ok(FRAME_BYTES + length)
    }

    fn record(&mut self, place: Location) -> io::Result<(u64, Kind, Bytes)> {
        let mut bytes = vec![0; self.length(place)?];
        self.file(place.segment())?.read_exact_at(&mut bytes, place.offset)?;
        let Found::Record(read, _) = record::read(&bytes) else { return Err(damaged(place)) };
        let (rollout, kind, from) = (read.rollout, read.kind, bytes.len() - read.payload.len());
        Ok((rollout, kind, Bytes::from(bytes).slice(from..)))
    }

    fn file(&mut self, number: u64) -> io::Result<&File> {
        let at = match self.files.iter().position(|(known, _)| *known == number) {
            Some(at) => at,
            None => {
                if self.files.len() == OPEN_FILES_MAX {
                    self.files.pop_front();
                }
                self.files.push_back((number, File::open(self.folder.segment(number))?));
                self.files.len() - 1
            }
        };
        Ok(&self.files[at].1)
    }
}

fn damaged(place: Location) -> io::Error {
    let (segment, offset) = (place.segment(), place.offset);
    let what = format!("segment {segment} of the journal has no such record at byte {offset}");
    io::Error::new(io::ErrorKind::InvalidData, what)
}
