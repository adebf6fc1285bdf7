//! The initial memory of a Python component and the addresses in it that componentize-py names.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use wasmparser::{
    BinaryReader, DataKind, DataSectionReader, ExportSectionReader, ExternalKind, GlobalSectionReader,
    Operator,
};

use super::error::{Result, unknown};
use super::sections::{CORE_MODULE, EXPORTS, GLOBALS, sections};

/// Mark at the beginning of the list of objects. The number of addresses, the addresses and their sum follow it.
pub(super) const MARK: &[u8] = b"ROLLOUT-OBJECTS:";

/// Reference count of an object whose references CPython 3.14 does not count, on platforms with 32-bit addresses; and the
/// smallest count that has this effect.
pub(super) const UNCOUNTED: u32 = 5 << 28;
pub(super) const UNCOUNTED_MIN: u32 = 1 << 30;

/// Maximum number of consecutive zeros inside a segment. A new segment takes as many bytes.
const GAP_BYTES: usize = 32;

/// Maximum number of segments of an image. A module with more than 100,000 is not valid, and merging the core modules adds
/// the segments of native packages.
const SEGMENTS_MAX: usize = 80_000;

/// A name that each component of componentize-py has.
const STACK: &str = "__stack_low";

/// Maximum size of a component's initial memory.
const IMAGE_BYTES_MAX: usize = 1 << 30;

/// A memory before any code runs.
#[derive(Clone, PartialEq)]
pub(super) struct Image(Vec<u8>);

/// Addresses that componentize-py names: those of each library's memory, of the stack, and of variables that libraries
/// share. They are the same in a component that was made of the one that names them.
pub struct Places(HashMap<String, u32>);

impl Places {
    /// Reads the names from a component as componentize-py makes it, before its modules are joined.
    ///
    /// # Errors
    ///
    /// The component is invalid or has no such names.
    pub fn of(component: &[u8]) -> Result<Self> {
        for (_, range) in sections(component)?.into_iter().filter(|(id, _)| *id == CORE_MODULE) {
            let places = Self::read(&component[range])?;
            if places.0.contains_key(STACK) {
                return Ok(places);
            }
        }
        Err(unknown(format!(
            "no module of the component names `{STACK}`; was it made by another componentize-py?"
        )))
    }

    /// Reads the names of a module's constant globals.
    fn read(module: &[u8]) -> Result<Self> {
        let (mut constants, mut named) = (Vec::new(), HashMap::new());
        for (id, range) in sections(module)? {
            let reader = BinaryReader::new(&module[range], 0);
            if id == GLOBALS {
                for global in GlobalSectionReader::new(reader)? {
                    let value = global?.init_expr.get_operators_reader().read()?;
                    constants.push(match value {
                        Operator::I32Const { value } => Some(value.cast_unsigned()),
                        _ => None,
                    });
                }
            } else if id == EXPORTS {
                // Sections are in order, so the globals have been read already.
                for export in ExportSectionReader::new(reader)? {
                    let export = export?;
                    let value = constants.get(export.index as usize).copied().flatten();
                    if let (ExternalKind::Global, Some(value)) = (export.kind, value) {
                        named.insert(export.name.to_owned(), value);
                    }
                }
            }
        }
        Ok(Self(named))
    }

    /// Returns the address with this name.
    pub(super) fn named(&self, name: &str) -> Result<u32> {
        self.0.get(name).copied().ok_or_else(|| {
            unknown(format!(
                "the component's memory has no `{name}`; was it made by another componentize-py?"
            ))
        })
    }
}

/// The list of objects and its position in the image.
pub(super) struct List {
    pub(super) place: Range<usize>,
    pub(super) addresses: Vec<u32>,
}

impl Image {
    /// Reads the data segments of a module.
    pub(super) fn read(data: &[u8]) -> Result<Self> {
        let mut image = Vec::new();
        for segment in DataSectionReader::new(BinaryReader::new(data, 0))? {
            let segment = segment?;
            // Left of a segment that an instance was begun with, whose contents are in the others.
            if segment.data.is_empty() && matches!(segment.kind, DataKind::Passive) {
                continue;
            }
            let DataKind::Active { memory_index: 0, offset_expr } = segment.kind else {
                return Err(unknown("a data segment does not belong to the initial memory"));
            };
            let Operator::I32Const { value } = offset_expr.get_operators_reader().read()? else {
                return Err(unknown("a data segment's offset is not a constant"));
            };
            let begin = value.cast_unsigned() as usize;
            let end = begin + segment.data.len();
            if end > IMAGE_BYTES_MAX {
                return Err(unknown(format!("a data segment ends at {end} bytes")));
            }
            if image.len() < end {
                image.resize(end, 0);
            }
            image[begin..end].copy_from_slice(segment.data);
        }
        Ok(Self(image))
    }

    /// Sets the bytes of the part of a range that is in the image.
    pub(super) fn fill(&mut self, place: Range<usize>, with: u8) {
        let end = place.end.min(self.0.len());
        if let Some(bytes) = self.0.get_mut(place.start..end) {
            bytes.fill(with);
        }
    }

    /// Writes bytes to an address of the image.
    pub(super) fn write(&mut self, address: u32, bytes: &[u8]) {
        let at = address as usize;
        if let Some(there) = self.0.get_mut(at..at + bytes.len()) {
            there.copy_from_slice(bytes);
        }
    }

    /// Returns the bytes at an address of the image.
    pub(super) fn bytes_at(&self, address: u32, count: usize) -> Option<&[u8]> {
        let at = address as usize;
        self.0.get(at..at.checked_add(count)?)
    }

    /// Finds these bytes, and returns the addresses that are multiples of four.
    pub(super) fn find(&self, bytes: &[u8]) -> impl Iterator<Item = u32> {
        let starts = (0..self.len()).step_by(4);
        starts.filter(move |at| self.0[*at as usize..].starts_with(bytes))
    }

    #[cfg(test)]
    pub(super) fn zeroed(bytes: usize) -> Self {
        Self(vec![0; bytes])
    }

    /// Returns the number of bytes. An address has 32 bits because an image has a maximum size.
    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    /// Returns the word at an address, if it is in the image.
    pub(super) fn word_at(&self, address: u32) -> Option<u32> {
        self.word(address as usize)
    }

    /// Writes a word at an address of the image. Memory beyond the image stays zero.
    pub(super) fn set_word(&mut self, address: u32, word: u32) {
        self.write(address, &word.to_le_bytes());
    }

    fn word(&self, at: usize) -> Option<u32> {
        let bytes = self.0.get(at..at.checked_add(4)?)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    }

    /// Finds the list of objects: a mark, followed by the number of addresses, the addresses and their sum.
    pub(super) fn find_list(&self) -> Option<List> {
        (0..self.0.len()).step_by(4).find_map(|mark| {
            self.0[mark..].strip_prefix(MARK)?;
            let count = self.word(mark + MARK.len())? as usize;
            let begin = mark + MARK.len() + 4;
            let end = begin.checked_add(count.checked_mul(4)?)?;
            let addresses: Vec<u32> =
                (begin..end).step_by(4).map(|at| self.word(at)).collect::<Option<_>>()?;
            let sum = addresses.iter().fold(0, |sum: u32, address| sum.wrapping_add(*address));
            (count > 0 && self.word(end)? == sum).then_some(List { place: mark..end + 4, addresses })
        })
    }

    /// Sets the reference counts of the objects that still exist.
    ///
    /// An object begins with its count and the address of its type. An object that was freed after it was listed has a
    /// count of zero, has the address of another freed object instead of a count, or has no type.
    pub(super) fn stop_counting(&mut self, addresses: &[u32]) {
        let objects: HashSet<u32> = addresses.iter().copied().collect();
        let Some(first) = addresses.iter().copied().min() else { return };
        for address in addresses {
            let at = *address as usize;
            let (Some(count), Some(kind)) = (self.word(at), self.word(at + 4)) else { continue };
            let counted = 0 < count && count < first.min(UNCOUNTED_MIN);
            if counted && objects.contains(&kind) {
                self.0[at..at + 4].copy_from_slice(&UNCOUNTED.to_le_bytes());
            }
        }
    }

    /// Returns the bytes that are not zero with their offsets, in at most as many segments as a module may have.
    pub(super) fn segments(&self) -> Vec<(usize, &[u8])> {
        self.segments_at_most(SEGMENTS_MAX)
    }

    /// Returns the bytes that are not zero with their offsets. If there are more segments than `count_max`, those with the
    /// fewest zeros between them are joined.
    fn segments_at_most(&self, count_max: usize) -> Vec<(usize, &[u8])> {
        let mut found: Vec<Range<usize>> = Vec::new();
        for (at, _) in self.0.iter().enumerate().filter(|(_, byte)| **byte != 0) {
            join_or_push(&mut found, at..at + 1, GAP_BYTES);
        }
        if let Some(excess) = found.len().checked_sub(count_max).filter(|excess| *excess > 0) {
            let mut gaps: Vec<usize> = found.windows(2).map(|pair| pair[1].start - pair[0].end).collect();
            let (_, widest, _) = gaps.select_nth_unstable(excess - 1);
            let widest = *widest;
            let mut joined = Vec::new();
            found.into_iter().for_each(|range| join_or_push(&mut joined, range, widest));
            found = joined;
        }
        found.into_iter().map(|range| (range.start, &self.0[range])).collect()
    }
}

/// Extends the last range to the end of this one if no more than `gap` bytes are between them.
fn join_or_push(ranges: &mut Vec<Range<usize>>, range: Range<usize>, gap: usize) {
    match ranges.last_mut() {
        Some(last) if range.start - last.end <= gap => last.end = range.end,
        _ => ranges.push(range),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_with_the_least_between_them_are_joined_until_there_are_few_enough() {
        let mut image = Image(vec![0; 2000]);
        for (at, length) in [(0, 3), (100, 1), (140, 2), (200, 5), (1000, 4)] {
            image.fill(at..at + length, 7);
        }
        let places = |count_max| -> Vec<_> {
            image.segments_at_most(count_max).iter().map(|(at, bytes)| (*at, bytes.len())).collect()
        };

        assert_eq!(places(5), [(0, 3), (100, 1), (140, 2), (200, 5), (1000, 4)]);
        assert_eq!(places(4), [(0, 3), (100, 42), (200, 5), (1000, 4)]);
        assert_eq!(places(2), [(0, 205), (1000, 4)]);
        assert_eq!(places(1), [(0, 1004)]);
        for (at, bytes) in image.segments_at_most(1) {
            assert_eq!(bytes, &image.0[at..at + bytes.len()]);
        }
    }
}
