//! Search for finished rollouts without reading their events, for owners that store data about them.

use std::fs::File;
use std::io;
use std::ops::RangeInclusive;

use crate::index::{self, Index, Records};
use crate::jobs::{Errand, Job, Level, Waiting};
use crate::record::Kind;
use crate::recover::{self, Located, Reader};
use crate::{Entry, Event, JournalStore, LocatedRollout, Location, found};

/// Hashes a rollout's name as in [`IndexedRollout`].
pub fn name_hash(name: &str) -> u64 {
    index::hash(name.as_bytes())
}

/// A finished rollout according to the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexedRollout {
    /// [Hash](name_hash) of the rollout's name.
    pub name: u64,
    /// Kind of the rollout's first event, if it has one.
    pub first_event: Option<u8>,
    /// First segment with one of its records.
    pub first_segment: u64,
    /// Segment in which it ended.
    pub last_segment: u64,
}

impl IndexedRollout {
    fn of(records: &Records) -> Option<Self> {
        // A copied record may be in a later segment than those after it.
        let first_segment = records.places.iter().map(|place| place.segment()).min()?;
        let last = records.places.last()?;
        let event = |place: &Location| match place.kind() {
            Kind::Event(kind) => Some(kind),
            Kind::Begin | Kind::End => None,
        };
        Some(Self {
            name: records.name,
            first_event: records.places.iter().find_map(event),
            first_segment,
            last_segment: last.segment(),
        })
    }
}

impl JournalStore {
    /// Starts a rollout even if the disk has no room for new ones. The new rollout is a note on an admitted one.
    pub fn begin_note(&self, name: &str) -> Entry {
        self.start(name)
    }

    /// Returns the number of the segment that was written last.
    pub fn position(&self) -> u64 {
        self.0.shared.tables().flushed.0
    }

    /// Retains this segment and later ones regardless of the limits.
    pub fn hold_from(&self, segment: u64) {
        let shared = &self.0.shared;
        let was_held = {
            let mut pins = shared.pins();
            let was_held = pins.first() == 0;
            pins.hold_from(segment);
            was_held
        };
        // The owner knows for the first time which segments it needs.
        if was_held {
            shared.add([Job::Notify(Level::Written, Waiting::Errand(Errand::Retain))]);
        }
    }

    /// Calls a function with each rollout that ended in this segment or a later one and whose first event has
    /// a wanted kind, in the order in which they ended. The function can read their events. Reads the indexes of
    /// sealed segments one after the other.
    pub fn for_each_ended(
        &self,
        from: u64,
        wanted: impl Fn(u8) -> bool,
        is_read: impl Fn(&IndexedRollout) -> bool,
        mut each: impl FnMut(IndexedRollout, Vec<Event>),
    ) -> io::Result<()> {
        let shared = &self.0.shared;
        let mut pass_on = |records: &[Records]| -> io::Result<()> {
            for records in records {
                let Some(ended) = IndexedRollout::of(records) else { continue };
                if !ended.first_event.is_some_and(&wanted) {
                    continue;
                }
                let events = match is_read(&ended) {
                    true => Reader::new(&shared.folder).read_any(&records.places)?.events,
                    false => Vec::new(),
                };
                each(ended, events);
            }
            Ok(())
        };
        for number in shared.folder.numbers()?.into_iter().filter(|number| *number >= from) {
            match std::fs::read(shared.folder.index(number)) {
                Ok(bytes) => match Index::read_ended(&bytes, &wanted) {
                    Some(ended) => pass_on(&ended)?,
                    // Without an index, finished rollouts are found by scanning the records.
                    None => {
                        let mut index = Index::default();
                        recover::scan_unsealed(&shared.folder, number, &[], &mut index)?;
                        pass_on(&index.ended)?;
                    }
                },
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        let in_memory: Vec<Records> = {
            let tables = shared.tables();
            let sealed = tables.unwritten.iter().flat_map(|(_, index)| index.ended.iter());
            sealed.chain(&tables.index.ended).cloned().collect()
        };
        pass_on(&in_memory)
    }

    /// Finds the rollout of this name that ended last in these segments. Reads files.
    pub fn find_ended(
        &self,
        name: &str,
        segments: RangeInclusive<u64>,
    ) -> io::Result<Option<LocatedRollout>> {
        let shared = &self.0.shared;
        let hash = name_hash(name);
        let is_it = |records: &&Records| records.name == hash;
        let in_memory: Vec<Located> = {
            let tables = shared.tables();
            let sealed = tables.unwritten.iter().rev().map(|(_, index)| &**index);
            let all = std::iter::once(&tables.index).chain(sealed).flat_map(|index| index.ended.iter().rev());
            all.filter(is_it).map(|records| Located::ended(tables.readable(&records.places))).collect()
        };
        if let Some(found) = found::named(&shared.folder, in_memory, name)?.into_iter().next() {
            return Ok(Some(found));
        }
        for number in segments.rev() {
            let places = match File::open(shared.folder.index(number)) {
                Ok(file) => index::find(&file, hash)?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            let places = places.into_iter().map(Located::ended).collect();
            if let Some(found) = found::named(&shared.folder, places, name)?.into_iter().next() {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

impl Entry {
    /// Returns the first segment with a record of this rollout, while it is unfinished.
    pub fn first_segment(&self) -> Option<u64> {
        let tables = self.journal.0.shared.tables();
        // A copied record may be in a later segment than those after it.
        tables.index.live.get(&self.number)?.places.iter().map(|place| place.segment()).min()
    }

    /// Returns the size of the events of the wanted kinds, while the rollout is unfinished. Reads files.
    pub fn bytes_of(&self, wanted: impl Fn(u8) -> bool) -> io::Result<u64> {
        let shared = &self.journal.0.shared;
        let places: Vec<Location> = {
            let tables = shared.tables();
            let records = tables.index.live.get(&self.number);
            let places = records.map_or(&[][..], |records| &records.places).iter();
            places
                .filter(|place| matches!(place.kind(), Kind::Event(kind) if wanted(kind)))
                .copied()
                .collect()
        };
        let mut reader = Reader::new(&shared.folder);
        places.into_iter().map(|place| reader.bytes_at(place)).sum()
    }
}
