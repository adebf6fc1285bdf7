//! Locations of records, for readers.

use std::sync::Arc;

use crate::Location;
use crate::index::Index;

/// Locations of records while records are written.
#[derive(Default)]
pub(crate) struct Tables {
    pub(crate) index: Index,
    /// Indexes of sealed segments by number, until they are in files.
    pub(crate) unwritten: Vec<(u64, Arc<Index>)>,
    /// End of the readable records, by segment and offset. Later records are still to be written.
    pub(crate) flushed: (u64, u64),
}

impl Tables {
    /// Returns the locations that can be read.
    pub(crate) fn readable(&self, places: &[Location]) -> Vec<Location> {
        let is_there = |place: &&Location| (place.segment(), place.offset) < self.flushed;
        places.iter().take_while(is_there).copied().collect()
    }
}
