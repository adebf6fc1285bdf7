//! What a sealed segment says of itself, in a file beside it: the rollouts that ended in it,
//! found by name, and those that were alive at its end, from which a start goes on.
//!
//! ```text
//! magic | next number | count | count × (hash of name, first place, places) | count | all places of these
//!       | count | count × (number, hash of name, places, its places) | CRC-32
//! ```
//!
//! A place is two words: a record's segment with its kind above it, and its offset. All words are
//! u64, little-endian; the table is sorted by hash, so that one name is found without reading the
//! rest. A file that is lost or wrong is made again of its segment, and of the index before it, when
//! the journal is opened.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::Location;
use crate::record::Kind;

const MAGIC: &[u8; 8] = b"ROLLIDX2";

/// Magic, next number, count of the table.
const TABLE_AT: u64 = 24;

/// One row of the table.
const ROW_BYTES: u64 = 24;

const PLACE_BYTES: u64 = 16;

/// One rollout's records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Records {
    /// A hash of its name.
    pub(crate) name: u64,
    /// Where its records are, in order.
    pub places: Vec<Location>,
}

/// What is known at the end of a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Index {
    /// The next rollout's number.
    pub next: u64,
    /// Rollouts that ended in this segment, in the order in which they did.
    pub ended: Vec<Records>,
    /// Rollouts that were alive, by number.
    pub live: HashMap<u64, Records>,
}

/// The hash by which a rollout is found by its name: FNV-1a, the same in every process.
pub(crate) fn hash(name: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    name.iter().fold(0xcbf2_9ce4_8422_2325, step)
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
    /// A record was placed.
    pub(crate) fn note(&mut self, rollout: u64, kind: Kind, name: &[u8], place: Location) {
        self.next = self.next.max(rollout + 1);
        match kind {
            Kind::Begin => {
                self.live.insert(rollout, Records { name: hash(name), places: vec![place] });
            }
            Kind::Event(_) => {
                if let Some(records) = self.live.get_mut(&rollout) {
                    records.places.push(place);
                }
            }
            Kind::End => {
                if let Some(mut records) = self.live.remove(&rollout) {
                    records.places.push(place);
                    records.places.shrink_to_fit();
                    self.ended.push(records);
                }
            }
        }
    }

    /// What ended in the segment that ends here. This goes on with those that are alive, which may be many.
    pub(crate) fn take_sealed(&mut self) -> Self {
        Self { next: self.next, ended: std::mem::take(&mut self.ended), live: HashMap::new() }
    }

    /// The oldest segment that a live rollout has records in.
    pub(crate) fn oldest_live(&self) -> u64 {
        let first = |records: &Records| records.places.first().map(|place| place.segment());
        self.live.values().filter_map(first).min().unwrap_or(u64::MAX)
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        // The order of equal names is that in which they ended.
        let mut ended: Vec<&Records> = self.ended.iter().collect();
        ended.sort_by_key(|records| records.name);
        word(&mut bytes, self.next);
        word(&mut bytes, ended.len() as u64);
        let mut first = 0;
        for records in &ended {
            word(&mut bytes, records.name);
            word(&mut bytes, first);
            word(&mut bytes, records.places.len() as u64);
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
        let checksum = crc32fast::hash(&bytes);
        word(&mut bytes, checksum.into());
        bytes
    }

    /// What was written, but for what ended, which is found by [`find`]; none where that is not
    /// what this is.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let (_, _, mut words, next) = Self::parts(bytes)?;
        let live = (0..words.next()?).map(|_| Some((words.next()?, words.records()?)));
        let live = live.collect::<Option<_>>()?;
        words.0.is_empty().then_some(Self { next, ended: Vec::new(), live })
    }

    /// The same with what ended, in the order in which it did.
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

    /// The rollouts that ended whose first event is of such a kind, in the order in which they did; none where this is no
    /// index. What it holds besides is not taken apart.
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
            let kind = Location::of_words([second.next()?, second.next()?]).kind();
            if matches!(kind, Kind::Event(kind) if wanted(kind)) {
                ended.push(Records { name, places: places.places(count)? });
            }
        }
        ended.sort_by_key(|records| records.places.last().map(|end| (end.segment(), end.offset)));
        Some(ended)
    }

    /// The table of what ended, where its records are, what follows, and the next number.
    fn parts(bytes: &[u8]) -> Option<(&[u8], &[u8], Words<'_>, u64)> {
        let (body, checksum) = bytes.split_last_chunk::<8>()?;
        if u64::from_le_bytes(*checksum) != u64::from(crc32fast::hash(body)) {
            return None;
        }
        let mut words = Words(body.strip_prefix(MAGIC)?);
        let next = words.next()?;
        let rows = words.next()?;
        let table = words.skip(rows.checked_mul(ROW_BYTES)?)?;
        let of_ended = words.next()?;
        let places = words.skip(of_ended.checked_mul(PLACE_BYTES)?)?;
        Some((table, places, words, next))
    }

    /// Where the rollouts are that ended, in the order in which they did.
    pub(crate) fn take_ended(&mut self) -> Vec<Vec<Location>> {
        std::mem::take(&mut self.ended).into_iter().map(|records| records.places).collect()
    }

    /// Where those are that did not, the oldest first.
    pub(crate) fn take_live(&mut self) -> Vec<Vec<Location>> {
        let mut live: Vec<_> = std::mem::take(&mut self.live).into_iter().collect();
        live.sort_unstable_by_key(|(number, _)| *number);
        live.into_iter().map(|(_, records)| records.places).collect()
    }
}

/// Where the records of a rollout are that ended in a segment, by the hash of its name: those
/// of the last one first, for different rollouts may have the same name or hash. A journal may have
/// hundreds of such files, so that no more of each is read than is looked at.
pub(crate) fn find(index: &File, name: u64) -> io::Result<Vec<Vec<Location>>> {
    let mut head = [0; TABLE_AT as usize];
    index.read_exact_at(&mut head, 0)?;
    let rows = u64::from_le_bytes(head[16..24].try_into().unwrap_or_default());
    if !head.starts_with(MAGIC) || rows.saturating_mul(ROW_BYTES) > index.metadata()?.len() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let row_at = |at: u64| -> io::Result<[u64; 3]> {
        let mut row = [0; ROW_BYTES as usize];
        index.read_exact_at(&mut row, TABLE_AT + at * ROW_BYTES)?;
        let mut words = Words(&row);
        Ok([0; 3].map(|_| words.next().unwrap_or(0)))
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

    /// Skips bytes, and gives them.
    fn skip(&mut self, bytes: u64) -> Option<&'a [u8]> {
        let (skipped, rest) = self.0.split_at_checked(usize::try_from(bytes).ok()?)?;
        self.0 = rest;
        Some(skipped)
    }

    fn places(&mut self, count: u64) -> Option<Vec<Location>> {
        (0..count).map(|_| Some(Location::of_words([self.next()?, self.next()?]))).collect()
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
