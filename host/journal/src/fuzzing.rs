//! What is fuzzed here: a segment whose tail is cut or overwritten, as it is after a loss of power. The
//! target takes any bytes and panics where something that has to hold does not.
//!
//! Only in tests and with the feature `fuzzing`, which no build that is shipped has.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;

use crate::record::{self, Kind};
use crate::recover::{self, Reader};
use crate::segment::{Folder, HEADER_BYTES, MAGIC};

/// A target: what any bytes are given to.
pub type Target = fn(&[u8]);

/// The targets of this crate, by the names of their programs and of the directories of their corpora.
pub const TARGETS: [(&str, Target); 1] = [("journal", torn)];

const SEGMENT_BYTES: u64 = 16 << 10;

/// A record that was written, and where it ends in the segment.
struct Record {
    rollout: u64,
    kind: Kind,
    payload: Bytes,
    end: usize,
}

/// What a run of the journal wrote, as the bytes say: what it does, one byte each.
fn written(doings: &[u8]) -> (Vec<u8>, Vec<Record>) {
    let mut bytes = [MAGIC.as_slice(), &1_u64.to_le_bytes()].concat();
    let (mut records, mut live, mut next) = (Vec::new(), Vec::new(), 0);
    for (at, doing) in doings.iter().enumerate() {
        let whose = usize::from(doing >> 3).checked_rem(live.len()).and_then(|at| live.get(at).copied());
        let (rollout, kind, payload) = match (doing % 8, whose) {
            (0, _) | (_, None) => {
                next += 1;
                live.push(next - 1);
                (next - 1, Kind::Begin, Bytes::from(format!("r{}", next - 1)))
            }
            (1, Some(rollout)) => {
                live.retain(|one| *one != rollout);
                (rollout, Kind::End, Bytes::new())
            }
            (2, Some(rollout)) => (rollout, Kind::Event(*doing), Bytes::new()),
            // Zeros, which are also what was never written.
            (3, Some(rollout)) => (rollout, Kind::Event(1), Bytes::from(vec![0; usize::from(*doing)])),
            (_, Some(rollout)) => (rollout, Kind::Event(2), Bytes::from(vec![*doing; at % 70])),
        };
        record::write(&mut bytes, rollout, kind, std::slice::from_ref(&payload));
        records.push(Record { rollout, kind, payload, end: bytes.len() });
    }
    (bytes, records)
}

/// A tail that was torn is cut, and every record before it is read as it was written. What is written
/// then is there at the next start.
fn torn(input: &[u8]) {
    let [place, place_high, how, rest @ ..] = input else { return };
    let (doings, garbage) = rest.split_at(rest.len().min(100));
    let (mut bytes, records) = written(doings);
    let cut = HEADER_BYTES as usize
        + usize::from(u16::from_le_bytes([*place, *place_high])) % (bytes.len() - HEADER_BYTES as usize + 1);
    let was = bytes.clone();
    bytes.truncate(cut);
    let mut behind = match how % 4 {
        // The file ends there.
        0 => Vec::new(),
        // It is as it was allocated.
        1 => vec![0; 4096],
        // A block came to the disk, and the one before it did not.
        2 => [&[0; 512], garbage].concat(),
        _ => garbage.to_vec(),
    };
    // Nothing that follows is a whole record by chance: a checksum is no proof against one who makes it.
    if let record::Found::Record(..) = record::read(&behind) {
        behind.clear();
    }
    bytes.append(&mut behind);
    // One whose rest was zeros is whole where there are zeros.
    let is_whole = |record: &&Record| bytes.get(..record.end) == was.get(..record.end);
    let whole: Vec<&Record> = records.iter().take_while(is_whole).collect();

    // In memory where that can be: each input is a few files that are synced.
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let dir = dir.expect("a temporary directory can be made");
    let folder = Folder { path: dir.path().to_owned(), segment_bytes: SEGMENT_BYTES, faults: None };
    std::fs::write(folder.segment(1), &bytes).expect("it can be written");
    let mut opened = recover::open(&folder).expect("a torn tail is no damage");
    let end = whole.last().map_or(HEADER_BYTES as usize, |record| record.end);
    assert_eq!(opened.current.end, end as u64, "it goes on behind the last whole record");
    check(&folder, &opened.tables.index.live, &whole);

    let mut more = Vec::new();
    record::write(&mut more, 1 << 40, Kind::Begin, &[Bytes::from_static(b"new")]);
    opened.current.write(&more).expect("there is room");
    drop(opened);
    let again = recover::open(&folder).expect("it was mended");
    assert_eq!(again.current.end, (end + more.len()) as u64);
    assert!(again.tables.index.live.contains_key(&(1 << 40)), "what was written since is there");
    check_all_of(dir.path());
}

/// The rollouts that are alive have the records that were written of them, and no others.
fn check(folder: &Folder, live: &std::collections::HashMap<u64, crate::index::Records>, whole: &[&Record]) {
    let mut expected: BTreeMap<u64, Vec<&Record>> = BTreeMap::new();
    for record in whole {
        match record.kind {
            Kind::End => drop(expected.remove(&record.rollout)),
            Kind::Begin | Kind::Event(_) => expected.entry(record.rollout).or_default().push(record),
        }
    }
    let numbers: Vec<u64> = expected.keys().copied().collect();
    let mut found: Vec<u64> = live.keys().copied().collect();
    found.sort_unstable();
    assert_eq!(found, numbers);
    let mut reader = Reader::new(folder);
    for (number, records) in expected {
        let read = reader.read(number, &live[&number].places).expect("its records are whole");
        assert_eq!(read.name, records[0].payload);
        let events: Vec<(Kind, &Bytes)> =
            read.events.iter().map(|event| (Kind::Event(event.kind), &event.payload)).collect();
        let wrote: Vec<(Kind, &Bytes)> =
            records[1..].iter().map(|record| (record.kind, &record.payload)).collect();
        assert_eq!(events, wrote);
    }
}

/// Whoever reads it without opening it reads it to the end.
fn check_all_of(path: &Path) {
    for found in crate::all_in(path).expect("it can be read") {
        let found = found.expect("a rollout that is whole is found");
        assert!(found.read().expect("and read").is_some());
    }
}

#[cfg(test)]
#[path = "../../../fuzz/corpus.rs"]
mod corpus;
