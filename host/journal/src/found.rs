//! Search for rollouts in a journal: by name, or one after the other with bounded memory. The events are read
//! on demand.

use std::collections::VecDeque;
use std::io;
use std::path::Path;

use bytes::Bytes;

use crate::index::{self, Index};
use crate::record::Kind;
use crate::recover::{self, Located, Reader};
use crate::segment::Folder;
use crate::{Event, Location, Written};

/// A rollout that was found in a journal. Its events have not been read yet.
pub struct LocatedRollout {
    folder: Folder,
    located: Located,
    name: Bytes,
}

impl LocatedRollout {
    /// Returns the rollout with records at these locations, or `None` if its first record was deleted.
    fn at(folder: &Folder, located: Located) -> io::Result<Option<Self>> {
        let first = |located: &Located| {
            let first = located.places.get(..1).unwrap_or_default();
            Ok((Reader::new(folder).read_any(first)?.name, located.clone()))
        };
        let began = with_places(folder, &located, first)?;
        Ok(began.map(|(name, located)| Self { folder: folder.clone(), located, name }))
    }

    /// Returns the rollout's name.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Returns whether the rollout has an event of this kind.
    pub fn has(&self, kind: u8) -> bool {
        self.located.places.iter().any(|place| place.kind() == Kind::Event(kind))
    }

    /// Returns whether the rollout ended.
    pub fn has_ended(&self) -> bool {
        self.located.places.last().is_some_and(|last| last.kind() == Kind::End)
    }

    /// Returns the size of all records, which is the memory that reading needs. Reads files.
    pub fn bytes(&self) -> io::Result<u64> {
        let lengths = |located: &Located| {
            let mut reader = Reader::new(&self.folder);
            located.places.iter().map(|place| reader.bytes_at(*place)).sum()
        };
        Ok(with_places(&self.folder, &self.located, lengths)?.unwrap_or(0))
    }

    /// Reads the rollout, or returns `None` if a part was deleted. Reads files.
    pub fn read(&self) -> io::Result<Option<Written>> {
        with_places(&self.folder, &self.located, |located| {
            Reader::new(&self.folder).read_any(&located.places)
        })
    }
}

/// Reads from the rollout's locations, or returns `None` if a segment was deleted. The records of an
/// unfinished rollout may be copied to another segment in the meantime, so they are located a second time.
fn with_places<T>(
    folder: &Folder,
    located: &Located,
    read: impl Fn(&Located) -> io::Result<T>,
) -> io::Result<Option<T>> {
    let mut located = located.clone();
    loop {
        if let Some(read) = if_exists(read(&located))? {
            return Ok(Some(read));
        }
        let Some(live) = located.live else { return Ok(None) };
        match recover::find_again(folder, live)? {
            Some(places) if places != located.places => located.places = places,
            Some(_) | None => return Ok(None),
        }
    }
}

impl LocatedRollout {
    /// Returns the size of the events of the wanted kinds. Reads files.
    pub fn bytes_of(&self, wanted: impl Fn(u8) -> bool) -> io::Result<u64> {
        let lengths = |located: &Located| {
            let mut reader = Reader::new(&self.folder);
            events_of(located, &wanted).map(|place| reader.bytes_at(place)).sum()
        };
        Ok(with_places(&self.folder, &self.located, lengths)?.unwrap_or(0))
    }

    /// Reads the events of the wanted kinds, or returns `None` if a part was deleted. Reads files.
    pub fn events(&self, wanted: impl Fn(u8) -> bool) -> io::Result<Option<Vec<Event>>> {
        let read = |located: &Located| {
            let places: Vec<Location> = events_of(located, &wanted).collect();
            Ok(Reader::new(&self.folder).read_any(&places)?.events)
        };
        with_places(&self.folder, &self.located, read)
    }
}

/// Returns the locations of the events of the wanted kinds.
fn events_of(located: &Located, wanted: impl Fn(u8) -> bool) -> impl Iterator<Item = Location> {
    let is_wanted = move |place: &&Location| matches!(place.kind(), Kind::Event(kind) if wanted(kind));
    located.places.iter().filter(is_wanted).copied()
}

/// Converts the error of a file that does not exist, such as that of a deleted segment, to `None`.
fn if_exists<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the rollouts with this name. Others may have the same hash.
pub(crate) fn named(folder: &Folder, all: Vec<Located>, name: &str) -> io::Result<Vec<LocatedRollout>> {
    let found = all.into_iter().map(|located| LocatedRollout::at(folder, located));
    let found = found.filter_map(Result::transpose);
    found.filter(|found| found.as_ref().map_or(true, |found| found.name() == name.as_bytes())).collect()
}

/// Returns the rollouts of this name in the journal in a directory, the latest first. Another process may
/// have the journal open. Reads files and changes none.
pub fn find_in(path: &Path, name: &str) -> io::Result<Vec<LocatedRollout>> {
    let folder = recover::unopened(path);
    let places = recover::find_unopened(&folder, index::hash(name.as_bytes()))?;
    named(&folder, places, name)
}

/// Returns all rollouts in the journal in a directory, each once: finished ones in the order in which they ended,
/// then unfinished ones. Another process may have the journal open; records that it writes in the meantime
/// may be included. Reads one segment's index at a time and changes no files.
pub fn all_in(path: &Path) -> io::Result<impl Iterator<Item = io::Result<LocatedRollout>> + use<>> {
    let folder = recover::unopened(path);
    let segments = folder.numbers()?.into();
    let all = All { folder, segments, known: Index::default(), found: VecDeque::new(), is_over: false };
    Ok(all.filter_map(Result::transpose))
}

/// Iterator of [`all_in`].
struct All {
    folder: Folder,
    /// Segments that remain to be searched.
    segments: VecDeque<u64>,
    /// Index at the end of the previous segment.
    known: Index,
    /// Locations of rollouts that were found but not returned yet.
    found: VecDeque<Located>,
    is_over: bool,
}

impl All {
    /// Finds the rollouts that ended in the next segment, or the unfinished ones after the last segment.
    fn read_next_segment(&mut self) -> io::Result<()> {
        let Some(number) = self.segments.pop_front() else {
            self.is_over = true;
            let live = self.known.take_live().into_iter();
            let live = live.map(|(number, records)| Located {
                places: records.places,
                live: Some((number, records.name)),
            });
            self.found = live.collect();
            return Ok(());
        };
        match if_exists(std::fs::read(self.folder.index(number)))?.and_then(|bytes| Index::read_whole(&bytes))
        {
            Some(index) => self.known = index,
            None => {
                let rest = self.segments.make_contiguous();
                if !recover::scan_unsealed(&self.folder, number, rest, &mut self.known)? {
                    self.segments.clear();
                }
            }
        }
        self.found = self.known.take_ended().into_iter().map(Located::ended).collect();
        Ok(())
    }
}

impl Iterator for All {
    type Item = io::Result<Option<LocatedRollout>>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(located) = self.found.pop_front() {
                return Some(LocatedRollout::at(&self.folder, located));
            }
            if self.is_over {
                return None;
            }
            if let Err(error) = self.read_next_segment() {
                self.is_over = true;
                return Some(Err(error));
            }
        }
    }
}
