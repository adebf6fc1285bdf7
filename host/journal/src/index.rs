//! Index of a sealed segment, in a file next to it: the rollouts that ended in the segment, found by name,
//! and those that were unfinished at its end, with which the next start continues.
//!
//! ```text
//! magic | bytes of the file | next number | rollouts that ended | checksum of these
//!       | for each: hash of name, index of its first location, number of locations, checksum
//!       | number of locations | the locations of these rollouts
//!       | unfinished rollouts | for each: number, hash of name, number of locations, its locations
//!       | CRC-32
//! ```
//!
//! A location is two words: the segment with the kind in the upper bits, and the offset. All words are u64,
//! little-endian. The table is sorted by hash, so that a name is found without reading the rest. A missing or
//! damaged file is rebuilt from its segment and the previous index when the journal is opened.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::Location;
use crate::record::Kind;

const MAGIC: &[u8; 8] = b"ROLLIDX3";

/// Size of magic, length, next number, count and checksum.
const TABLE_AT: u64 = 40;

/// Size of a row in the table.
const ROW_BYTES: u64 = 32;

const PLACE_BYTES: u64 = 16;

/// Locations of a rollout's records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Records {
    /// Hash of the rollout's name.
    pub(crate) name: u64,
    /// Locations in order.
    pub places: Vec<Location>,
}

impl Records {
    /// Returns whether all records are located. A rollout whose segments were deleted or damaged is
    /// incomplete.
    pub(crate) fn is_complete(&self) -> bool {
        self.places.iter().all(|place| *place != Location::MISSING)
    }

    /// Returns whether all records before this one are located.
    pub(crate) fn is_before(&self, sequence: u32) -> bool {
        self.places.len() == sequence as usize && self.is_complete()
    }

    /// Sets the location of a record, which was written or copied.
    fn put(&mut self, sequence: u32, place: Location) {
        let at = sequence as usize;
        if at >= self.places.len() {
            self.places.resize(at + 1, Location::MISSING);
        }
        self.places[at] = place;
    }
}

/// Index of the journal at the end of a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Index {
    /// Number of the next rollout.
    pub next: u64,
    /// Rollouts that ended in this segment, in order.
    pub ended: Vec<Records>,
    /// Unfinished rollouts by number.
    pub live: HashMap<u64, Records>,
}

/// Hashes a rollout's name with FNV-1a, which is the same in every process.
pub(crate) fn hash(name: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    name.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Returns the hash of the name in the first record of a rollout, and 0 for other records.
pub(crate) fn hash_of(kind: Kind, payload: &[u8]) -> u64 {
    if kind == Kind::Begin { hash(payload) } else { 0 }
}

fn word(bytes: &mut Vec<u8>, word: u64) {
    bytes.extend_from_slice(&word.to_le_bytes());
}

fn places(bytes: &mut Vec<u8>, places: &[Location]) {
    for place in places {
        place.words().into_iter().for_each(|part| word(bytes, part));
    }
}

impl Index {
    /// Adds a record. It may be a copy of a record of an unfinished rollout.
    pub(crate) fn note(&mut self, rollout: u64, sequence: u32, kind: Kind, name: u64, place: Location) {
        self.next = self.next.max(rollout + 1);
        if kind == Kind::End {
            if let Some(mut records) = self.live.remove(&rollout) {
                records.put(sequence, place);
                records.places.shrink_to_fit();
                // Some records of an incomplete rollout were deleted.
                if records.is_complete() {
                    self.ended.push(records);
                }
            }
            return;
        }
        // The first record may be a copy that follows this record.
        let records = self.live.entry(rollout).or_default();
        if kind == Kind::Begin {
            records.name = name;
        }
        records.put(sequence, place);
    }

    /// Updates the location of a record that was copied.
    pub(crate) fn relocate(&mut self, rollout: u64, sequence: u32, from: Location, to: Location) {
        let places = self.live.get_mut(&rollout).map(|records| &mut records.places);
        if let Some(place) = places.and_then(|places| places.get_mut(sequence as usize))
            && *place == from
        {
            *place = to;
        }
    }

    /// Removes rollouts that lost records and returns their number.
    pub(crate) fn drop_incomplete(&mut self) -> usize {
        let before = self.live.len();
        self.live.retain(|_, records| records.is_complete());
        before - self.live.len()
    }

    /// Takes the finished rollouts, as the index of the segment that ends here. This index continues with the
    /// unfinished rollouts, which may be many.
    pub(crate) fn take_sealed(&mut self) -> Self {
        Self { next: self.next, ended: std::mem::take(&mut self.ended), live: HashMap::new() }
    }

    /// Encodes the index.
    pub(crate) fn write(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        // Rollouts with equal hashes stay in the order in which they ended.
        let mut ended: Vec<&Records> = self.ended.iter().collect();
        ended.sort_by_key(|records| records.name);
        word(&mut bytes, 0);
        word(&mut bytes, self.next);
        word(&mut bytes, ended.len() as u64);
        word(&mut bytes, 0);
        let mut first = 0;
        for records in &ended {
            let row = bytes.len();
            word(&mut bytes, records.name);
            word(&mut bytes, first);
            word(&mut bytes, records.places.len() as u64);
            let check = hash(&bytes[row..]);
            word(&mut bytes, check);
            first += records.places.len() as u64;
        }
        word(&mut bytes, first);
        ended.iter().for_each(|records| places(&mut bytes, &records.places));
        let mut live: Vec<_> = self.live.iter().collect();
        live.sort_unstable_by_key(|(number, _)| **number);
        word(&mut bytes, live.len() as u64);
        for (number, records) in live {
            word(&mut bytes, *number);
            word(&mut bytes, records.name);
            word(&mut bytes, records.places.len() as u64);
            places(&mut bytes, &records.places);
        }
        let length = bytes.len() as u64 + 8;
        bytes[8..16].copy_from_slice(&length.to_le_bytes());
        let check = hash(&bytes[..32]);
        bytes[32..40].copy_from_slice(&check.to_le_bytes());
        let checksum = crc32fast::hash(&bytes);
        word(&mut bytes, checksum.into());
        bytes
    }

    /// Decodes an index without the finished rollouts, which [`find`] looks up. Returns `None` for invalid
    /// bytes.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let (_, _, mut words, next) = Self::parts(bytes)?;
        let live = (0..words.next()?).map(|_| Some((words.next()?, words.records()?)));
        let live = live.collect::<Option<_>>()?;
        words.0.is_empty().then_some(Self { next, ended: Vec::new(), live })
    }

    /// Decodes an index including the finished rollouts, in the order in which they ended.
    pub(crate) fn read_whole(bytes: &[u8]) -> Option<Self> {
        let (table, of_ended, ..) = Self::parts(bytes)?;
        let (rows, _) = table.as_chunks::<{ ROW_BYTES as usize }>();
        let ended = rows.iter().map(|row| {
            let mut row = Words(row);
            let (name, first, count) = (row.next()?, row.next()?, row.next()?);
            let mut places = Words(of_ended);
            places.skip(first.checked_mul(PLACE_BYTES)?)?;
            Some(Records { name, places: places.places(count)? })
        });
        let mut ended = ended.collect::<Option<Vec<_>>>()?;
        ended.sort_by_key(|records| records.places.last().map(|end| (end.segment(), end.offset)));
        Some(Self { ended, ..Self::read(bytes)? })
    }

    /// Decodes the finished rollouts whose first event has a wanted kind, in the order in which they ended. Returns
    /// `None` for invalid bytes.
    pub(crate) fn read_ended(bytes: &[u8], wanted: impl Fn(u8) -> bool) -> Option<Vec<Records>> {
        let (table, of_ended, ..) = Self::parts(bytes)?;
        let (rows, _) = table.as_chunks::<{ ROW_BYTES as usize }>();
        let mut ended = Vec::new();
        for row in rows {
            let mut row = Words(row);
            let (name, first, count) = (row.next()?, row.next()?, row.next()?);
            let mut places = Words(of_ended);
            places.skip(first.checked_mul(PLACE_BYTES)?)?;
            let mut second = Words(places.0);
            second.skip(PLACE_BYTES)?;
            let kind = Location::from_words([second.next()?, second.next()?]).kind();
            if matches!(kind, Kind::Event(kind) if wanted(kind)) {
                ended.push(Records { name, places: places.places(count)? });
            }
        }
        ended.sort_by_key(|records| records.places.last().map(|end| (end.segment(), end.offset)));
        Some(ended)
    }

    /// Splits an index into its table, the locations of finished rollouts, the rest and the next number.
    fn parts(bytes: &[u8]) -> Option<(&[u8], &[u8], Words<'_>, u64)> {
        let (body, checksum) = bytes.split_last_chunk::<8>()?;
        if u64::from_le_bytes(*checksum) != u64::from(crc32fast::hash(body)) {
            return None;
        }
        let mut words = Words(body.strip_prefix(MAGIC)?);
        let _length = words.next()?;
        let next = words.next()?;
        let rows = words.next()?;
        let _check = words.next()?;
        let table = words.skip(rows.checked_mul(ROW_BYTES)?)?;
        let of_ended = words.next()?;
        let places = words.skip(of_ended.checked_mul(PLACE_BYTES)?)?;
        Some((table, places, words, next))
    }

    /// Takes the locations of finished rollouts, in the order in which they ended.
    pub(crate) fn take_ended(&mut self) -> Vec<Vec<Location>> {
        std::mem::take(&mut self.ended).into_iter().map(|records| records.places).collect()
    }

    /// Takes the unfinished rollouts with their numbers, the oldest first. Drops incomplete ones.
    pub(crate) fn take_live(&mut self) -> Vec<(u64, Records)> {
        self.drop_incomplete();
        let mut live: Vec<_> = std::mem::take(&mut self.live).into_iter().collect();
        live.sort_unstable_by_key(|(number, _)| *number);
        live
    }
}

/// Returns whether a file has the length in its header. Index files are not synced, so a crash of the machine
/// may truncate them.
pub(crate) fn is_whole(index: &File) -> bool {
    let mut head = [0; 16];
    let read = index.read_exact_at(&mut head, 0).and_then(|()| index.metadata());
    let length = u64::from_le_bytes(head[8..].try_into().unwrap_or_default());
    head.starts_with(MAGIC) && read.is_ok_and(|about| about.len() == length)
}

/// Finds the locations of finished rollouts in a segment by the hash of their name, the latest first, because
/// several rollouts may have the same name or hash. Reads only the rows that it compares, because a journal
/// may have hundreds of index files.
pub(crate) fn find(index: &File, name: u64) -> io::Result<Vec<Vec<Location>>> {
    let wrong = || io::Error::new(io::ErrorKind::InvalidData, "the index of a journal's segment is damaged");
    let mut head = [0; TABLE_AT as usize];
    index.read_exact_at(&mut head, 0)?;
    let mut words = Words(&head[24..]);
    let (rows, check) = (words.next().unwrap_or(0), words.next());
    if !head.starts_with(MAGIC) || check != Some(hash(&head[..32])) {
        return Err(wrong());
    }
    // The checksum keeps a damaged row from being mistaken for the row of another name.
    let row_at = |at: u64| -> io::Result<[u64; 3]> {
        let mut row = [0; ROW_BYTES as usize];
        index.read_exact_at(&mut row, TABLE_AT + at * ROW_BYTES)?;
        let mut words = Words(&row);
        let parts = [0; 3].map(|_| words.next().unwrap_or(0));
        if words.next() == Some(hash(&row[..24])) { Ok(parts) } else { Err(wrong()) }
    };
    let (mut from, mut to) = (0, rows);
    while from < to {
        let middle = from + (to - from) / 2;
        if row_at(middle)?[0] < name { from = middle + 1 } else { to = middle }
    }
    let places_at = TABLE_AT + rows * ROW_BYTES + 8;
    let mut found = Vec::new();
    for at in from..rows {
        let [hash, first, count] = row_at(at)?;
        if hash != name {
            break;
        }
        let mut bytes = vec![0; usize::try_from(count * PLACE_BYTES).map_err(io::Error::other)?];
        index.read_exact_at(&mut bytes, places_at + first * PLACE_BYTES)?;
        found.push(Words(&bytes).places(count).ok_or(io::ErrorKind::InvalidData)?);
    }
    found.reverse();
    Ok(found)
}

struct Words<'a>(&'a [u8]);

impl<'a> Words<'a> {
    fn next(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word))
    }

    /// Skips bytes and returns them.
    fn skip(&mut self, bytes: u64) -> Option<&'a [u8]> {
        let (skipped, rest) = self.0.split_at_checked(usize::try_from(bytes).ok()?)?;
        self.0 = rest;
        Some(skipped)
    }

    fn places(&mut self, count: u64) -> Option<Vec<Location>> {
        (0..count).map(|_| Some(Location::from_words([self.next()?, self.next()?]))).collect()
    }

    fn records(&mut self) -> Option<Records> {
        let (name, count) = (self.next()?, self.next()?);
        Some(Records { name, places: self.places(count)? })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn an_index_is_read_as_it_was_written_and_a_wrong_one_not_at_all() {
        let place = |offset| Location::new(3, Kind::Event(7), offset);
        let records = |name: &[u8], places: &[u64]| Records {
            name: hash(name),
            places: places.iter().map(|offset| place(*offset)).collect(),
        };
        let index = Index {
            next: 9,
            ended: vec![records(b"a", &[40]), records(b"b", &[16, 90]), records(b"b", &[100])],
            live: HashMap::from([(8, records(b"c", &[200, 300]))]),
        };
        let bytes = index.write();
        let read = Index::read(&bytes).unwrap();
        assert_eq!((read.next, &read.live), (9, &index.live));
        assert!((0..bytes.len()).all(|end| Index::read(&bytes[..end]).is_none()));
        assert_eq!(Index::read_whole(&bytes).unwrap(), index, "in the order in which they ended");

        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        let find = |name| find(&file, hash(name)).unwrap();
        assert_eq!(find(b"a"), [vec![place(40)]]);
        assert_eq!(find(b"b"), [vec![place(100)], vec![place(16), place(90)]], "the last one first");
        assert!(find(b"c").is_empty());
    }
}
