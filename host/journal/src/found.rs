//! Rollouts that are found in a journal and read when somebody wants them: one by its name, or
//! all of them, one after the other, so that memory does not grow with the journal.

use std::collections::VecDeque;
use std::io;
use std::path::Path;

use bytes::Bytes;

use crate::index::{self, Index};
use crate::record::Kind;
use crate::recover::{self, Reader};
use crate::segment::Folder;
use crate::{Event, Location, SEGMENT_BYTES, Written};

/// A rollout that is in a journal, of which only the name was read.
pub struct Found {
    folder: Folder,
    places: Vec<Location>,
    name: Bytes,
}

impl Found {
    /// The rollout whose records are at these places; none where the first of them is no longer kept.
    fn at(folder: &Folder, places: Vec<Location>) -> io::Result<Option<Self>> {
        let first = places.get(..1).unwrap_or_default();
        let began = kept(Reader::new(folder).read_any(first))?;
        Ok(began.map(|began| Self { folder: folder.clone(), places, name: began.name }))
    }

    /// Its name, as it began.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Whether it has an event of this kind.
    pub fn has(&self, kind: u8) -> bool {
        self.places.iter().any(|place| place.kind() == Kind::Event(kind))
    }

    /// Whether it ended.
    pub fn has_ended(&self) -> bool {
        self.places.last().is_some_and(|last| last.kind() == Kind::End)
    }

    /// The bytes of its records, which is what it takes once it is read. Reads files.
    pub fn bytes(&self) -> io::Result<u64> {
        let mut reader = Reader::new(&self.folder);
        let lengths = self.places.iter().map(|place| reader.bytes_at(*place));
        Ok(kept(lengths.sum())?.unwrap_or(0))
    }

    /// All that was written of it; none where a part is no longer kept. Reads files.
    pub fn read(&self) -> io::Result<Option<Written>> {
        kept(Reader::new(&self.folder).read_any(&self.places))
    }
}

impl Found {
    /// Those of its records that have events of these kinds.
    fn only(&self, wanted: impl Fn(u8) -> bool) -> Self {
        let is_wanted = |place: &&Location| match place.kind() {
            Kind::Event(kind) => wanted(kind),
            Kind::Begin | Kind::End => false,
        };
        let places = self.places.iter().filter(is_wanted).copied().collect();
        Self { folder: self.folder.clone(), places, name: self.name.clone() }
    }

    /// The bytes of its events of these kinds. Reads files.
    pub fn bytes_of(&self, wanted: impl Fn(u8) -> bool) -> io::Result<u64> {
        self.only(wanted).bytes()
    }

    /// Its events of these kinds; none where a part is no longer kept. Reads files.
    pub fn events(&self, wanted: impl Fn(u8) -> bool) -> io::Result<Option<Vec<Event>>> {
        Ok(self.only(wanted).read()?.map(|written| written.events))
    }
}

/// What was read; none where it was in a segment that is no longer kept.
fn kept<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Those of the rollouts at these places that have this name. Others may have the same hash.
pub(crate) fn named(folder: &Folder, places: Vec<Vec<Location>>, name: &str) -> io::Result<Vec<Found>> {
    let found = places.into_iter().map(|places| Found::at(folder, places));
    let found = found.filter_map(Result::transpose);
    found.filter(|found| found.as_ref().map_or(true, |found| found.name() == name.as_bytes())).collect()
}

/// The rollouts of this name in the journal in a directory, the last one first, whoever has it open:
/// what was written by now. Reads files, and changes none.
pub fn find_in(path: &Path, name: &str) -> io::Result<Vec<Found>> {
    let folder = unopened(path);
    let places = recover::find_unopened(&folder, index::hash(name.as_bytes()))?;
    named(&folder, places, name)
}

/// All rollouts in the journal in a directory, each once, whoever has it open: those that are over in
/// the order in which they ended, then those that are not. What is written meanwhile may be
/// among them. Reads files as it goes, one segment's index at a time, and changes none.
pub fn all_in(path: &Path) -> io::Result<impl Iterator<Item = io::Result<Found>> + use<>> {
    let folder = unopened(path);
    let segments = folder.numbers()?.into();
    let all = All { folder, segments, known: Index::default(), places: VecDeque::new(), is_over: false };
    Ok(all.filter_map(Result::transpose))
}

fn unopened(path: &Path) -> Folder {
    Folder { path: path.to_owned(), segment_bytes: SEGMENT_BYTES, faults: None }
}

/// See [`all_in`].
struct All {
    folder: Folder,
    /// Those that were not looked at yet.
    segments: VecDeque<u64>,
    /// What is known at the end of those before.
    known: Index,
    /// Where rollouts are that were found.
    places: VecDeque<Vec<Location>>,
    is_over: bool,
}

impl All {
    /// Finds the rollouts that ended in the next segment; after the last one those that did not.
    fn look(&mut self) -> io::Result<()> {
        let Some(number) = self.segments.pop_front() else {
            self.is_over = true;
            self.places = self.known.take_live().into();
            return Ok(());
        };
        match kept(std::fs::read(self.folder.index(number)))?.and_then(|bytes| Index::read_whole(&bytes)) {
            Some(index) => self.known = index,
            None => {
                let rest = self.segments.make_contiguous();
                if !recover::scan_unsealed(&self.folder, number, rest, &mut self.known)? {
                    self.segments.clear();
                }
            }
        }
        self.places = self.known.take_ended().into();
        Ok(())
    }
}

impl Iterator for All {
    type Item = io::Result<Option<Found>>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(places) = self.places.pop_front() {
                return Some(Found::at(&self.folder, places));
            }
            if self.is_over {
                return None;
            }
            if let Err(error) = self.look() {
                self.is_over = true;
                return Some(Err(error));
            }
        }
    }
}
