//! Fuzz targets: a segment whose tail is truncated or overwritten, as after a loss of power, and a segment
//! with damage anywhere. A target takes any bytes and panics if an invariant does not hold.
//!
//! This module is compiled only in tests and with the feature `fuzzing`, which released builds do not enable.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use bytes::Bytes;

use crate::OpenError;
use crate::frame::Stamp;
use crate::record::Kind;
use crate::recover::{self, Reader};
use crate::segment::{self, Folder, HEADER_BYTES, Progress};

/// A fuzz target.
pub type Target = fn(&[u8]);

/// The crate's targets with the names of their programs and corpora.
pub const TARGETS: [(&str, Target); 1] = [("journal", torn)];

const SEGMENT_BYTES: u64 = 16 << 10;

const STAMP: Stamp = Stamp { salt: 0x5a17_5a17_5a17_5a17, segment: 1 };

/// Id of the current boot.
const BOOT: u64 = 7;

/// A written record and its offset in the segment.
#[derive(Clone)]
struct Record {
    rollout: u64,
    sequence: u32,
    kind: Kind,
    payload: Bytes,
    start: usize,
    end: usize,
}

/// Interprets the bytes as operations of a journal, one byte each. Returns the segment and the records in it.
fn written(doings: &[u8], progress: Progress) -> (Vec<u8>, Vec<Record>) {
    let mut bytes = [segment::stamp_bytes(STAMP), segment::progress_bytes(progress)].concat();
    let mut records: Vec<Record> = Vec::new();
    let (mut live, mut next) = (Vec::new(), 0);
    let mut counts: HashMap<u64, u32> = HashMap::new();
    for (at, doing) in doings.iter().enumerate() {
        let owner = usize::from(doing >> 3).checked_rem(live.len()).and_then(|at| live.get(at).copied());
        let (rollout, kind, payload) = match (doing % 8, owner) {
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
            // Zeros, which unwritten space contains too.
            (3, Some(rollout)) => (rollout, Kind::Event(1), Bytes::from(vec![0; usize::from(*doing)])),
            // A guest that knows the format and imitates a record in its payload.
            (4, Some(rollout)) => {
                let last = records.last().map_or(0, |last| last.start);
                (rollout, Kind::Event(1), Bytes::copy_from_slice(&bytes[last.max(HEADER_BYTES as usize)..]))
            }
            // A copy of an existing record, as made before a segment is deleted.
            (5, Some(rollout)) if *doing > 128 => {
                let of_it = records.iter().filter(|record| record.rollout == rollout);
                let copied = of_it.last().cloned().expect("an unfinished rollout has a record");
                let start = bytes.len();
                let head = (rollout, copied.sequence, copied.kind);
                STAMP.write(&mut bytes, start as u64, head, std::slice::from_ref(&copied.payload));
                records.push(Record { start, end: bytes.len(), ..copied });
                continue;
            }
            (_, Some(rollout)) => (rollout, Kind::Event(2), Bytes::from(vec![*doing; at % 70])),
        };
        let count = counts.entry(rollout).or_default();
        let (start, sequence) = (bytes.len(), *count);
        *count += 1;
        STAMP.write(&mut bytes, start as u64, (rollout, sequence, kind), std::slice::from_ref(&payload));
        records.push(Record { rollout, sequence, kind, payload, start, end: bytes.len() });
    }
    (bytes, records)
}

fn folder(path: &Path) -> Folder {
    Folder { path: path.to_owned(), segment_bytes: SEGMENT_BYTES, faults: None, salt: STAMP.salt, boot: BOOT }
}

/// Returns a temporary directory, in memory if possible, because each input syncs a few files.
fn temporary() -> tempfile::TempDir {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    dir.expect("a temporary directory can be made")
}

fn torn(input: &[u8]) {
    let [place, place_high, how, rest @ ..] = input else { return };
    let place = usize::from(u16::from_le_bytes([*place, *place_high]));
    let (doings, garbage) = rest.split_at(rest.len().min(100));
    match how % 8 {
        0..4 => is_cut(place, *how, doings, garbage),
        4 => is_damaged(place, *how, doings, false),
        5 => is_damaged(place, *how, doings, true),
        _ => check_lost_blocks(place, doings),
    }
}

/// Checks that a torn tail is truncated, that every record before it is read as written, and that later
/// records survive the next start.
fn is_cut(place: usize, how: u8, doings: &[u8], garbage: &[u8]) {
    let (mut bytes, records) = written(doings, Progress { boot: BOOT, ..Progress::default() });
    let cut = HEADER_BYTES as usize + place % (bytes.len() - HEADER_BYTES as usize + 1);
    let was = bytes.clone();
    bytes.truncate(cut);
    match how % 4 {
        // The file is truncated.
        0 => {}
        // The rest is unwritten space.
        1 => bytes.extend([0; 4096]),
        // A later block was written, an earlier one was not.
        2 => bytes.extend([&[0; 512], garbage].concat()),
        _ => bytes.extend(garbage),
    }
    // A fuzzer that observes comparisons can learn a mark. A guest, which does not know the salt, cannot.
    if STAMP.find(&bytes, cut).is_some() {
        return;
    }
    // A record whose missing part was zeros is intact.
    let is_whole = |record: &&Record| bytes.get(..record.end) == was.get(..record.end);
    let whole: Vec<&Record> = records.iter().take_while(is_whole).collect();
    let dir = temporary();
    std::fs::write(folder(dir.path()).segment(1), &bytes).expect("it can be written");
    check_continues(dir.path(), &whole);
}

/// Checks that damage to durable records is reported and that a repair saves the readable ones.
fn is_damaged(place: usize, how: u8, doings: &[u8], is_synced: bool) {
    let synced = if is_synced { written(doings, Progress::default()).0.len() as u64 } else { 0 };
    let (mut bytes, records) = written(doings, Progress { synced, previous_end: 0, boot: BOOT });
    let at = place % bytes.len();
    bytes[at] ^= 1 << (how >> 5);
    let (dir, hit) = (temporary(), records.iter().position(|record| record.end > at));
    std::fs::write(folder(dir.path()).segment(1), &bytes).expect("it can be written");
    let is_header = at < HEADER_BYTES as usize;
    // Damage to the progress loses no records.
    let loses_nothing = records.is_empty() || (32..HEADER_BYTES as usize).contains(&at);
    let is_last = !is_header && hit == records.len().checked_sub(1);
    if loses_nothing || (is_last && !is_synced) {
        let whole: Vec<&Record> =
            records.iter().take(if is_last { records.len() - 1 } else { records.len() }).collect();
        return check_continues(dir.path(), &whole);
    }
    let opened = recover::open(&mut folder(dir.path()));
    assert!(matches!(opened, Err(OpenError::Damaged { .. })), "damage at byte {at} is not reported");
    assert!(crate::all_in(dir.path()).expect("there is a segment").any(|found| found.is_err()));
    drop(opened);
    let repaired = crate::repair(dir.path()).expect("it can be repaired");
    assert!(!repaired.damage.is_empty());
    let lost = if is_header { None } else { hit };
    let lost = lost.map(|at| (records[at].rollout, records[at].sequence));
    let whole: Vec<&Record> = records
        .iter()
        .enumerate()
        .filter(|(at, _)| is_header || Some(*at) != hit)
        .map(|(_, record)| record)
        .collect();
    // A copy of the lost record may be intact.
    let is_gone = |(rollout, sequence): (u64, u32)| {
        !whole.iter().any(|record| (record.rollout, record.sequence) == (rollout, sequence))
    };
    let of_lost = lost.filter(|lost| is_gone(*lost));
    let behind = |rollout, sequence| {
        whole.iter().any(|record| record.rollout == rollout && record.sequence > sequence)
    };
    let left_out =
        of_lost.filter(|(rollout, sequence)| behind(*rollout, *sequence)).map(|(rollout, _)| rollout);
    assert_eq!(repaired.left_out.len(), usize::from(left_out.is_some()), "{:?}", repaired.left_out);
    let whole: Vec<&Record> = whole.into_iter().filter(|record| Some(record.rollout) != left_out).collect();
    let dir_of = folder(dir.path());
    let opened = recover::open(&mut dir_of.clone()).expect("it was repaired");
    check(&dir_of, &opened.tables.index.live, &whole);
    drop(opened);
    assert!(crate::repair(dir.path()).expect("it is whole").damage.is_empty());
}

/// Checks that unsynced blocks may be lost in any order.
fn check_lost_blocks(place: usize, doings: &[u8]) {
    let (bytes, records) = written(doings, Progress::default());
    let from = HEADER_BYTES as usize + place % (bytes.len() - HEADER_BYTES as usize + 1);
    let synced = records.iter().map(|record| record.end).take_while(|end| *end <= from).last();
    let progress = Progress { synced: synced.unwrap_or(0) as u64, previous_end: 0, boot: BOOT + 1 };
    let (mut bytes, records) = written(doings, progress);
    let was = bytes.clone();
    let to = (from + 300).min(bytes.len());
    bytes[from..to].fill(0);
    let is_whole = |record: &&Record| bytes.get(..record.end) == was.get(..record.end);
    let whole: Vec<&Record> = records.iter().take_while(is_whole).collect();
    let dir = temporary();
    std::fs::write(folder(dir.path()).segment(1), &bytes).expect("it can be written");
    check_continues(dir.path(), &whole);
}

/// Opens the journal, compares its records with these, and appends more.
fn check_continues(path: &Path, whole: &[&Record]) {
    let mut folder = folder(path);
    let mut opened = recover::open(&mut folder).expect("no durable record is missing");
    let end = whole.last().map_or(HEADER_BYTES as usize, |record| record.end);
    assert_eq!(opened.current.end, end as u64, "the journal continues after the last intact record");
    check(&folder, &opened.tables.index.live, whole);

    let mut more = Vec::new();
    let begin = (1 << 40, 0, Kind::Begin);
    opened.current.stamp.write(&mut more, end as u64, begin, &[Bytes::from_static(b"new")]);
    opened.current.write(&more).expect("there is room");
    drop(opened);
    let again = recover::open(&mut folder).expect("the journal was repaired");
    assert_eq!(again.current.end, (end + more.len()) as u64);
    assert!(again.tables.index.live.contains_key(&(1 << 40)), "later records survive");
    check_all_of(path);
}

/// Checks that unfinished rollouts have exactly the records that were written.
fn check(folder: &Folder, live: &HashMap<u64, crate::index::Records>, whole: &[&Record]) {
    let mut expected: BTreeMap<u64, Vec<&Record>> = BTreeMap::new();
    for record in whole {
        let of_it = expected.entry(record.rollout).or_default();
        let is_copy = of_it.iter().any(|known| known.sequence == record.sequence);
        match record.kind {
            Kind::End => drop(expected.remove(&record.rollout)),
            Kind::Begin | Kind::Event(_) if !is_copy => of_it.push(record),
            Kind::Begin | Kind::Event(_) => {}
        }
    }
    expected.values_mut().for_each(|records| records.sort_by_key(|record| record.sequence));
    let numbers: Vec<u64> = expected.keys().copied().collect();
    let mut found: Vec<u64> = live.keys().copied().collect();
    found.sort_unstable();
    assert_eq!(found, numbers);
    let mut reader = Reader::new(folder);
    for (number, records) in expected {
        let read = reader.read(number, &live[&number].places).expect("its records are intact");
        assert_eq!(read.name, records[0].payload);
        let events: Vec<(Kind, &Bytes)> =
            read.events.iter().map(|event| (Kind::Event(event.kind), &event.payload)).collect();
        let wrote: Vec<(Kind, &Bytes)> =
            records[1..].iter().map(|record| (record.kind, &record.payload)).collect();
        assert_eq!(events, wrote);
    }
}

/// Checks that readers that do not open the journal reach its end.
fn check_all_of(path: &Path) {
    for found in crate::all_in(path).expect("it can be read") {
        let found = found.expect("a complete rollout is found");
        assert!(found.read().expect("and read").is_some());
    }
}

#[cfg(test)]
mod tests {
    /// Runs the targets on a fixed set of inputs.
    #[test]
    fn any_damage_is_refused_and_repaired_and_any_torn_tail_is_cut() {
        let inputs = std::env::var("ROLLOUT_TEST_INPUTS").map_or(1500, |inputs| inputs.parse().unwrap());
        let mut random = 1_u64;
        let mut next = || {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (random >> 56) as u8
        };
        for _ in 0..inputs {
            let length = 3 + usize::from(next()) % 120;
            let input: Vec<u8> = (0..length).map(|_| next()).collect();
            let harm = std::panic::catch_unwind(|| super::torn(&input));
            assert!(harm.is_ok(), "{input:?}");
        }
    }
}

#[cfg(test)]
#[path = "../../../fuzz/corpus.rs"]
mod corpus;
