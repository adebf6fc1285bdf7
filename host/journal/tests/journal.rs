//! Tests of a journal through its public interface: acknowledged records survive every kind of crash.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use rollout_journal::{
    Entry, Event, JournalRefused, JournalSettings, JournalStore, LocatedRollout, OpenError, Operation,
    Retention, Sync, Written,
};

fn event(kind: u8, payload: &str) -> Event {
    Event { kind, payload: Bytes::copy_from_slice(payload.as_bytes()) }
}

fn written(name: &str, events: &[Event], ended: bool) -> Written {
    Written { name: Bytes::copy_from_slice(name.as_bytes()), events: events.to_vec(), ended }
}

fn all_written(unfinished: &[Entry]) -> Vec<Written> {
    unfinished.iter().map(|entry| entry.read(|_| true).unwrap()).collect()
}

/// Returns the rollouts of a name in a journal, the latest first.
fn found(journal: &JournalStore, name: &str) -> Vec<Written> {
    read(journal.find(name).unwrap())
}

fn read(found: Vec<LocatedRollout>) -> Vec<Written> {
    found.into_iter().map(|found| found.read().unwrap().unwrap()).collect()
}

/// Size of a segment's header.
const HEADER: usize = 64;

/// Size of a record without its payload.
const FRAME: usize = 29;

fn small(path: &Path) -> JournalSettings {
    JournalSettings { segment_bytes: 4096, segments_ahead: 1, ..JournalSettings::new(path) }
}

/// Returns the segments of a journal, in order.
fn segments(path: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    let mut all: Vec<_> = entries.filter(|path| path.extension().is_some_and(|it| it == "seg")).collect();
    all.sort();
    all
}

#[tokio::test]
async fn written_rollouts_survive_a_restart_and_ended_ones_are_not_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, unfinished) = JournalStore::open(JournalSettings::new(dir.path())).unwrap();
    assert!(unfinished.is_empty());
    let a = journal.begin("a").unwrap();
    let b = journal.begin("b").unwrap();
    a.append(1, vec![Bytes::from_static(b"x"), Bytes::from_static(b"y")]).unwrap();
    b.append(2, vec![]).unwrap();
    a.append(3, vec![Bytes::from_static(b"z")]).unwrap();
    b.end();
    a.admitted().await.unwrap();
    assert_eq!(found(&journal, "b"), [written("b", &[event(2, "")], true)]);
    drop((a, b, journal));

    let (journal, unfinished) = JournalStore::open(JournalSettings::new(dir.path())).unwrap();
    let all_of_a = [event(1, "xy"), event(3, "z")];
    assert_eq!(all_written(&unfinished), [written("a", &all_of_a, false)]);
    let again = &unfinished[0];
    again.append(4, vec![]).unwrap();
    again.end();
    again.written().await.unwrap();
    let all = [event(1, "xy"), event(3, "z"), event(4, "")];
    assert_eq!(found(&journal, "a"), [written("a", &all, true)]);
    assert!(found(&journal, "c").is_empty());
}

#[tokio::test]
async fn a_tail_truncated_at_any_byte_loses_only_the_records_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("whole");
    let (journal, _) = JournalStore::open(small(&path)).unwrap();
    let mut ends = vec![HEADER];
    let a = journal.begin("a").unwrap();
    let mut events = Vec::new();
    for n in 0..6_u8 {
        let payload = "p".repeat(usize::from(n) * 7);
        a.append(n + 1, vec![Bytes::from(payload.clone())]).unwrap();
        events.push(event(n + 1, &payload));
    }
    a.written().await.unwrap();
    drop((a, journal));
    let segment = segments(&path).remove(0);
    let mut bytes = std::fs::read(&segment).unwrap();
    // The state after a kill before the first sync.
    bytes[32..HEADER].fill(0);
    ends.push(HEADER + FRAME + 1);
    for event in &events {
        ends.push(ends.last().unwrap() + FRAME + event.payload.len());
    }
    let end = *ends.last().unwrap();
    assert!(bytes[end..].iter().all(|byte| *byte == 0), "the records end where they should");

    let cut = dir.path().join("cut");
    for at in HEADER..=end {
        for garbage in [&b""[..], &[0; 64], &[0xa5; 64]] {
            let _ = std::fs::remove_dir_all(&cut);
            std::fs::create_dir(&cut).unwrap();
            let name = segment.file_name().unwrap();
            std::fs::write(cut.join(name), [&bytes[..at], garbage].concat()).unwrap();
            let (journal, unfinished) = JournalStore::open(small(&cut)).unwrap();
            let whole = ends.iter().filter(|end| **end <= at).count();
            let expected = match whole.checked_sub(2) {
                None => Vec::new(),
                Some(events_whole) => vec![written("a", &events[..events_whole], false)],
            };
            assert_eq!(all_written(&unfinished), expected, "cut at {at}, then {garbage:?}");
            let b = journal.begin("b").unwrap();
            b.written().await.unwrap();
            drop((b, unfinished, journal));
            let (_, unfinished) = JournalStore::open(small(&cut)).unwrap();
            assert_eq!(all_written(&unfinished).last(), Some(&written("b", &[], false)), "cut at {at}");
            assert_eq!(unfinished.len(), expected.len() + 1);
        }
    }
}

#[tokio::test]
async fn rollouts_are_found_across_segments_and_old_ones_are_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = JournalStore::open(small(dir.path())).unwrap();
    let long = journal.begin("long").unwrap();
    for n in 0..50 {
        let name = format!("r{n}");
        let entry = journal.begin(&name).unwrap();
        entry.append(1, vec![Bytes::from(vec![b'x'; 600])]).unwrap();
        long.append(2, vec![Bytes::from(name)]).unwrap();
        entry.end();
    }
    // An event larger than a segment.
    long.append(3, vec![Bytes::from(vec![b'y'; 10_000])]).unwrap();
    long.written().await.unwrap();
    assert!(segments(dir.path()).len() > 8);
    assert_eq!(found(&journal, "r0"), [written("r0", &[event(1, &"x".repeat(600))], true)]);
    let of_long = found(&journal, "long").remove(0);
    assert_eq!((of_long.events.len(), of_long.ended), (51, false));
    drop((long, journal));

    let keep = Retention { bytes_max: 10_000, age_max: Duration::MAX };
    let settings = || JournalSettings { retention: keep, ..small(dir.path()) };
    let (journal, mut unfinished) = JournalStore::open(settings()).unwrap();
    assert_eq!(all_written(&unfinished), std::slice::from_ref(&of_long));
    let long = unfinished.remove(0);
    let fill = async |from: u32| {
        for n in from..from + 20 {
            let entry = journal.begin(&format!("s{n}")).unwrap();
            entry.append(1, vec![Bytes::from(vec![b'x'; 600])]).unwrap();
            entry.end();
            entry.written().await.unwrap();
        }
    };
    fill(0).await;
    assert_eq!(
        found(&journal, "long"),
        [of_long],
        "an unfinished rollout is retained, however old its start"
    );
    long.end();
    fill(20).await;
    fill(40).await;
    drop((long, unfinished, journal));
    let (journal, unfinished) = JournalStore::open(settings()).unwrap();
    assert!(unfinished.is_empty());
    assert!(found(&journal, "r0").is_empty(), "too old");
    assert!(found(&journal, "long").is_empty(), "its first records were deleted");
    assert_eq!(found(&journal, "s59").len(), 1);
    let bytes: u64 = segments(dir.path()).iter().map(|path| path.metadata().unwrap().len()).sum();
    assert!(bytes < 30_000, "{bytes}");
}

#[tokio::test]
async fn numbers_are_unique_and_names_may_repeat() {
    let dir = tempfile::tempdir().unwrap();
    let mut numbers = Vec::new();
    for round in 0..3_u8 {
        let (journal, unfinished) = JournalStore::open(small(dir.path())).unwrap();
        assert!(unfinished.is_empty());
        let entry = journal.begin("same").unwrap();
        entry.append(round + 1, vec![]).unwrap();
        entry.end();
        entry.written().await.unwrap();
        numbers.push(entry.number());
        let found = found(&journal, "same");
        assert_eq!(found.len(), usize::from(round) + 1);
        assert_eq!(found[0].events, [event(round + 1, "")], "the latest first");
    }
    numbers.dedup();
    assert_eq!(numbers.len(), 3);
}

#[tokio::test]
async fn a_full_disk_refuses_new_rollouts_and_running_ones_finish() {
    let dir = tempfile::tempdir().unwrap();
    let full = Arc::new(AtomicBool::new(false));
    let is_full = full.clone();
    let faults = move |operation| match operation {
        Operation::Allocate if is_full.load(Ordering::SeqCst) => Err(io::ErrorKind::StorageFull.into()),
        _ => Ok(()),
    };
    let settings = JournalSettings { faults: Some(Arc::new(faults)), ..small(dir.path()) };
    let (journal, _) = JournalStore::open(settings).unwrap();
    let running = journal.begin("running").unwrap();
    let mut pause = tokio::time::interval(Duration::from_millis(2));
    while segments(dir.path()).len() < 2 {
        pause.tick().await;
    }
    full.store(true, Ordering::SeqCst);
    // The fourth starts the segment that was allocated in advance, and the next cannot be allocated.
    let mut turns = 0;
    while turns < 4 {
        running.append(1, vec![Bytes::from(vec![b'x'; 1000])]).unwrap();
        running.written().await.unwrap();
        turns += 1;
    }
    let why = loop {
        match journal.check() {
            Err(JournalRefused::Full(why)) => break why,
            other => other.unwrap(),
        }
        pause.tick().await;
    };
    assert!(why.contains("no room"), "{why}");
    assert!(matches!(journal.begin("new"), Err(JournalRefused::Full(_))));
    running.append(2, vec![]).unwrap();
    running.end();
    running.written().await.unwrap();
    let finished = found(&journal, "running").remove(0);
    assert_eq!((finished.events.len(), finished.ended), (turns + 1, true));

    full.store(false, Ordering::SeqCst);
    while journal.check().is_err() {
        pause.tick().await;
    }
    journal.begin("new").unwrap().admitted().await.unwrap();
}

#[tokio::test]
async fn a_write_without_room_waits_and_a_failed_write_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let mode = Arc::new(std::sync::Mutex::new(None::<io::ErrorKind>));
    let now = mode.clone();
    let faults = move |operation| match (*now.lock().unwrap(), operation) {
        (Some(kind), Operation::Write) => Err(kind.into()),
        _ => Ok(()),
    };
    let settings = JournalSettings { faults: Some(Arc::new(faults)), ..JournalSettings::new(dir.path()) };
    let (journal, _) = JournalStore::open(settings).unwrap();
    let entry = journal.begin("a").unwrap();
    entry.written().await.unwrap();
    *mode.lock().unwrap() = Some(io::ErrorKind::StorageFull);
    entry.append(1, vec![]).unwrap();
    let mut told = Box::pin(entry.written());
    assert!(
        tokio::time::timeout(Duration::from_millis(300), &mut told).await.is_err(),
        "no caller is notified"
    );
    *mode.lock().unwrap() = None;
    told.as_mut().await.unwrap();
    drop(told);
    assert_eq!(found(&journal, "a")[0].events, [event(1, "")]);

    *mode.lock().unwrap() = Some(io::ErrorKind::Other);
    entry.append(2, vec![]).unwrap();
    entry.written().await.unwrap_err();
    assert!(matches!(journal.begin("b"), Err(JournalRefused::Failed(_))));
    drop((entry, journal));
    *mode.lock().unwrap() = None;
    let (_, unfinished) = JournalStore::open(JournalSettings::new(dir.path())).unwrap();
    assert_eq!(
        all_written(&unfinished),
        [written("a", &[event(1, "")], false)],
        "acknowledged records are durable"
    );
}

#[tokio::test]
async fn a_failed_sync_is_final() {
    let dir = tempfile::tempdir().unwrap();
    let once = AtomicBool::new(true);
    let faults = move |operation| match operation {
        Operation::Sync if once.swap(false, Ordering::SeqCst) => Err(io::Error::other("gone")),
        _ => Ok(()),
    };
    let settings = JournalSettings { faults: Some(Arc::new(faults)), ..JournalSettings::new(dir.path()) };
    let (journal, _) = JournalStore::open(settings).unwrap();
    let entry = journal.begin("a").unwrap();
    let failed = entry.admitted().await.unwrap_err().to_string();
    assert!(failed.contains("cannot sync: gone"), "{failed}");
    entry.admitted().await.unwrap_err();
    assert!(matches!(journal.begin("b"), Err(JournalRefused::Failed(_))));
}

#[tokio::test]
async fn only_one_process_opens_a_journal_and_damage_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = JournalStore::open(small(dir.path())).unwrap();
    assert!(matches!(JournalStore::open(small(dir.path())), Err(OpenError::Taken(_))));
    for n in 0..20 {
        let entry = journal.begin(&format!("r{n}")).unwrap();
        entry.append(1, vec![Bytes::from(vec![b'x'; 600])]).unwrap();
        entry.written().await.unwrap();
    }
    drop(journal);
    // Without its index a segment is scanned, and a hole in it is not a torn tail.
    let all = segments(dir.path());
    let damaged = &all[1];
    for index in &all[..all.len() - 1] {
        let _ = std::fs::remove_file(index.with_extension("idx"));
    }
    let mut bytes = std::fs::read(damaged).unwrap();
    bytes[700] ^= 1;
    std::fs::write(damaged, bytes).unwrap();
    let Err(OpenError::Damaged { path, .. }) = JournalStore::open(small(dir.path())) else {
        panic!("not noticed")
    };
    assert_eq!(&path, damaged);
}

#[tokio::test]
async fn a_missing_or_damaged_index_is_rebuilt() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = JournalStore::open(small(dir.path())).unwrap();
    let long = journal.begin("long").unwrap();
    for n in 0..40 {
        let entry = journal.begin(&format!("r{n}")).unwrap();
        entry.append(1, vec![Bytes::from(vec![b'x'; 600])]).unwrap();
        entry.end();
        entry.written().await.unwrap();
        assert_eq!(
            found(&journal, &format!("r{n}")).len(),
            1,
            "a rollout is found while its segment is being sealed"
        );
    }
    long.end();
    long.written().await.unwrap();
    drop((long, journal));
    let indexes: Vec<_> = segments(dir.path()).iter().map(|path| path.with_extension("idx")).collect();
    let indexes: Vec<_> = indexes.into_iter().filter(|path| path.exists()).collect();
    assert!(indexes.len() > 5);
    let before: Vec<_> = indexes.iter().map(|path| std::fs::read(path).unwrap()).collect();
    let all_are_found = || {
        let (journal, unfinished) = JournalStore::open(small(dir.path())).unwrap();
        assert!(unfinished.is_empty());
        for name in (0..40).map(|n| format!("r{n}")).chain(["long".to_owned()]) {
            assert_eq!(found(&journal, &name).len(), 1, "{name}");
        }
        drop(journal);
        let after: Vec<_> = indexes.iter().map(|path| std::fs::read(path).unwrap()).collect();
        assert!(after == before, "the rebuilt indexes equal the originals");
    };
    std::fs::remove_file(&indexes[0]).unwrap();
    std::fs::remove_file(&indexes[3]).unwrap();
    all_are_found();
    let last = indexes.last().unwrap();
    std::fs::write(last, &before.last().unwrap()[..40]).unwrap();
    all_are_found();
    indexes.iter().for_each(|path| std::fs::remove_file(path).unwrap());
    all_are_found();
}

#[tokio::test]
async fn a_writer_waits_while_too_many_events_are_queued_however_small() {
    let dir = tempfile::tempdir().unwrap();
    let full = Arc::new(AtomicBool::new(false));
    let is_full = full.clone();
    let faults = move |operation| match operation {
        Operation::Write if is_full.load(Ordering::SeqCst) => Err(io::ErrorKind::StorageFull.into()),
        _ => Ok(()),
    };
    let settings = JournalSettings { faults: Some(Arc::new(faults)), ..JournalSettings::new(dir.path()) };
    let (journal, _) = JournalStore::open(settings).unwrap();
    let entry = journal.begin("a").unwrap();
    entry.written().await.unwrap();
    entry.room().await;
    full.store(true, Ordering::SeqCst);
    for _ in 0..2_000_000 {
        entry.append(1, vec![]).unwrap();
    }
    let mut room = Box::pin(entry.room());
    assert!(tokio::time::timeout(Duration::from_millis(50), &mut room).await.is_err());
    full.store(false, Ordering::SeqCst);
    room.await;
}

#[tokio::test]
async fn only_necessary_syncs_are_made() {
    for (sync, expected) in [(Sync::Never, 0), (Sync::Admission, 1), (Sync::Every, 2)] {
        let dir = tempfile::tempdir().unwrap();
        let syncs = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let count = syncs.clone();
        let faults = move |operation| {
            count.fetch_add(u32::from(operation == Operation::Sync), Ordering::SeqCst);
            Ok(())
        };
        let settings =
            JournalSettings { sync, faults: Some(Arc::new(faults)), ..JournalSettings::new(dir.path()) };
        let (journal, _) = JournalStore::open(settings).unwrap();
        let entry = journal.begin("a").unwrap();
        entry.admitted().await.unwrap();
        entry.append(1, vec![]).unwrap();
        entry.written().await.unwrap();
        assert_eq!(syncs.load(Ordering::SeqCst), expected, "{sync:?}");
    }
}

#[tokio::test]
async fn written_rollouts_are_found_while_another_process_has_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = JournalStore::open(small(dir.path())).unwrap();
    let mut expected = Vec::new();
    for number in 0..40 {
        let entry = journal.begin("r").unwrap();
        entry.append(1, vec![Bytes::from(format!("{number} {}", "x".repeat(200)))]).unwrap();
        entry.end();
        entry.written().await.unwrap();
        expected.insert(0, format!("{number} "));
    }
    let live = journal.begin("r").unwrap();
    live.append(1, vec![Bytes::from_static(b"live")]).unwrap();
    live.written().await.unwrap();
    expected.insert(0, "live".to_owned());

    let found = read(rollout_journal::find_in(dir.path(), "r").unwrap());

    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(&expected) {
        assert!(found.events[0].payload.starts_with(expected.as_bytes()), "{found:?}, not {expected}");
    }
    assert!(rollout_journal::find_in(dir.path(), "nobody").unwrap().is_empty());
    assert_eq!(found, read(journal.find("r").unwrap()));
}

/// Returns the names of the rollouts in a journal with their numbers of events.
fn all(path: &Path) -> Vec<(String, usize)> {
    let all = rollout_journal::all_in(path).unwrap().map(|found| {
        let found = found.unwrap();
        let written = found.read().unwrap().unwrap();
        assert_eq!(written.name, found.name());
        let payloads: usize = written.events.iter().map(|event| event.payload.len()).sum();
        assert!(found.bytes().unwrap() > payloads as u64);
        (String::from_utf8(written.name.to_vec()).unwrap(), written.events.len())
    });
    all.collect()
}

#[tokio::test]
async fn every_rollout_is_returned_once_while_another_process_writes() {
    let dir = tempfile::tempdir().unwrap();
    assert!(rollout_journal::all_in(&dir.path().join("nowhere")).is_err());
    let (journal, _) = JournalStore::open(small(dir.path())).unwrap();
    assert_eq!(all(dir.path()), []);
    // Spans all segments and ends last.
    let long = journal.begin("long").unwrap();
    let mut expected = Vec::new();
    for n in 0..40 {
        let entry = journal.begin(&format!("r{n}")).unwrap();
        entry.append(1, vec![Bytes::from(vec![b'x'; 600])]).unwrap();
        long.append(1, vec![]).unwrap();
        entry.end();
        entry.written().await.unwrap();
        expected.push((format!("r{n}"), 1));
        let live = [("long".to_owned(), n + 1)];
        assert_eq!(all(dir.path()), [&expected[..], &live].concat(), "after {n}");
    }
    let begun = rollout_journal::all_in(dir.path()).unwrap();
    let mut begun = begun.map(|found| String::from_utf8(found.unwrap().name().to_vec()).unwrap());
    let first = begun.next();
    long.end();
    for n in 40..80 {
        let entry = journal.begin(&format!("r{n}")).unwrap();
        entry.append(1, vec![Bytes::from(vec![b'x'; 600])]).unwrap();
        entry.end();
        expected.push((format!("r{n}"), 1));
    }
    journal.begin("last").unwrap().written().await.unwrap();
    expected.insert(40, ("long".to_owned(), 40));
    expected.push(("last".to_owned(), 0));

    let seen: Vec<String> = first.into_iter().chain(begun).collect();

    let names: Vec<String> = expected.iter().map(|(name, _)| name.clone()).collect();
    assert!(seen.len() >= 41 && names.starts_with(&seen), "{seen:?} were written in the meantime");
    assert_eq!(all(dir.path()), expected);
    drop(journal);
    assert_eq!(all(dir.path()), expected);
    // Damaged indexes are rebuilt.
    for path in segments(dir.path()) {
        std::fs::write(path.with_extension("idx"), b"wrong").unwrap();
    }
    assert_eq!(all(dir.path()), expected);
}

#[tokio::test]
async fn iteration_skips_rollouts_whose_records_were_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = JournalStore::open(small(dir.path())).unwrap();
    let long = journal.begin("long").unwrap();
    for n in 0..40 {
        let entry = journal.begin(&format!("r{n}")).unwrap();
        entry.append(1, vec![Bytes::from(vec![b'x'; 600])]).unwrap();
        entry.end();
    }
    long.end();
    long.written().await.unwrap();
    drop((long, journal));
    let first = segments(dir.path()).remove(0);
    std::fs::remove_file(first.with_extension("idx")).unwrap();
    std::fs::remove_file(first).unwrap();

    let names: Vec<String> = all(dir.path()).into_iter().map(|(name, _)| name).collect();

    assert!((20..40).contains(&names.len()), "{names:?}");
    assert!(!names.contains(&"long".to_owned()), "its first records were deleted");
    assert!(names.ends_with(&["r38".to_owned(), "r39".to_owned()]), "{names:?}");
}

/// Syncs that block until the test releases them and report their start.
struct Gate {
    begun: std::sync::mpsc::Receiver<()>,
    go_on: std::sync::mpsc::Sender<()>,
    is_closed: Arc<AtomicBool>,
}

impl Gate {
    fn new() -> (Self, rollout_journal::Faults) {
        let (tell, begun) = std::sync::mpsc::channel();
        let (go_on, wait) = std::sync::mpsc::channel();
        let wait = std::sync::Mutex::new(wait);
        let is_closed = Arc::new(AtomicBool::new(true));
        let its = is_closed.clone();
        let faults = move |operation| {
            if operation == Operation::Sync && its.load(Ordering::SeqCst) {
                let _ = tell.send(());
                let _ = wait.lock().unwrap().recv();
            }
            Ok(())
        };
        (Self { begun, go_on, is_closed }, Arc::new(faults))
    }

    /// Releases all further syncs.
    fn open(&self) {
        self.is_closed.store(false, Ordering::SeqCst);
        let _ = self.go_on.send(());
    }
}

#[tokio::test]
async fn events_during_a_sync_are_written_at_once_across_segments() {
    let dir = tempfile::tempdir().unwrap();
    let (gate, faults) = Gate::new();
    let (journal, _) =
        JournalStore::open(JournalSettings { faults: Some(faults), ..small(dir.path()) }).unwrap();
    let first = journal.begin("first").unwrap();
    let mut admitted = Box::pin(first.admitted());
    assert!(futures_poll(&mut admitted).await.is_pending());
    gate.begun.recv().unwrap();
    // The sync has started and blocks. Twelve thousand bytes fill three segments.
    let second = journal.begin("second").unwrap();
    for n in 0..20_u8 {
        first.append(1, vec![Bytes::from(vec![n; 600])]).unwrap();
        first.written().await.unwrap();
    }
    let mut later = Box::pin(second.admitted());
    assert!(futures_poll(&mut later).await.is_pending());
    let copy = tempfile::tempdir().unwrap();
    copy_to(dir.path(), copy.path());
    gate.go_on.send(()).unwrap();
    admitted.await.unwrap();
    // A sync does not acknowledge records that were written after it started.
    gate.begun.recv().unwrap();
    assert!(futures_poll(&mut later).await.is_pending());
    gate.open();
    later.await.unwrap();
    drop((first, second, journal));

    // The state after a kill during the first sync.
    let (_, unfinished) = JournalStore::open(small(copy.path())).unwrap();
    let names: Vec<Bytes> = all_written(&unfinished).into_iter().map(|written| written.name).collect();
    assert_eq!(names, ["first", "second"]);
    assert_eq!(all_written(&unfinished)[0].events.len(), 20);
}

/// Polls a future once.
async fn futures_poll<F: Future + Unpin>(future: &mut F) -> std::task::Poll<F::Output> {
    std::future::poll_fn(|context| std::task::Poll::Ready(std::pin::Pin::new(&mut *future).poll(context)))
        .await
}

fn copy_to(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

#[tokio::test]
async fn copying_records_out_of_old_segments_neither_loses_nor_duplicates_any_when_killed_at_any_byte() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = JournalStore::open(small(dir.path())).unwrap();
    let long = journal.begin("long").unwrap();
    let mut events = Vec::new();
    for n in 0..6 {
        long.append(2, vec![Bytes::from(format!("event {n}"))]).unwrap();
        events.push(event(2, &format!("event {n}")));
        let entry = journal.begin(&format!("r{n}")).unwrap();
        entry.append(1, vec![Bytes::from(vec![b'x'; 2500])]).unwrap();
        entry.end();
    }
    long.written().await.unwrap();
    drop((long, journal));
    let before = segments(dir.path());
    assert!(before.len() > 5);
    let last_end = |path: &Path| std::fs::metadata(segments(path).last().unwrap()).unwrap().len() as usize;
    let begins = last_end(dir.path());

    let (gate, faults) = Gate::new();
    let keep = Retention { bytes_max: 1, age_max: Duration::MAX };
    let settings = JournalSettings { retention: keep, faults: Some(faults), ..small(dir.path()) };
    let (journal, unfinished) = JournalStore::open(settings).unwrap();
    // The copies are written and their sync starts: the originals still exist.
    gate.begun.recv().unwrap();
    assert!(before.iter().all(|path| path.exists()));
    let (copied, cut) = (dir.path().join("copied"), dir.path().join("cut"));
    std::fs::create_dir(&copied).unwrap();
    for path in before.iter().chain(segments(dir.path()).last()) {
        std::fs::copy(path, copied.join(path.file_name().unwrap())).unwrap();
    }
    let of_copies =
        segments(&copied).into_iter().find(|path| path.metadata().unwrap().len() == 4096).unwrap();
    let bytes = std::fs::read(&of_copies).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    assert!(end > begins, "at least one record was copied");
    for at in begins..=end {
        copy_to(&copied, &cut);
        std::fs::write(cut.join(of_copies.file_name().unwrap()), &bytes[..at]).unwrap();
        let (_, unfinished) = JournalStore::open(small(&cut)).unwrap();
        assert_eq!(all_written(&unfinished), [written("long", &events, false)], "cut at {at}");
    }
    gate.open();
    let mut pause = tokio::time::interval(Duration::from_millis(2));
    while before[..before.len() - 1].iter().any(|path| path.exists()) {
        pause.tick().await;
    }
    // The rollout is read from its new location and continues there.
    assert_eq!(all_written(&unfinished), [written("long", &events, false)]);
    assert_eq!(found(&journal, "long"), [written("long", &events, false)]);
    assert_eq!(
        read(rollout_journal::find_in(dir.path(), "long").unwrap()),
        [written("long", &events, false)]
    );
    unfinished[0].append(3, vec![]).unwrap();
    unfinished[0].written().await.unwrap();
    events.push(event(3, ""));
    drop((unfinished, journal));
    let (_, unfinished) = JournalStore::open(small(dir.path())).unwrap();
    assert_eq!(all_written(&unfinished), [written("long", &events, false)]);
}

#[tokio::test]
async fn an_idle_rollout_does_not_retain_the_records_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let keep = Retention { bytes_max: 64 << 10, age_max: Duration::MAX };
    let (journal, _) = JournalStore::open(JournalSettings { retention: keep, ..small(dir.path()) }).unwrap();
    let waiting = journal.begin("waits").unwrap();
    waiting.append(1, vec![Bytes::from_static(b"its beginning")]).unwrap();
    let mut most = 0;
    for n in 0..1000 {
        let entry = journal.begin(&format!("r{n}")).unwrap();
        entry.append(1, vec![Bytes::from(vec![b'x'; 1500])]).unwrap();
        entry.end();
        entry.admitted().await.unwrap();
        let on_disk = |ending: &str| {
            let files = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
            files
                .filter(|path| path.extension().is_some_and(|it| it == ending))
                .filter_map(|path| Some(path.metadata().ok()?.len()))
                .sum::<u64>()
        };
        most = most.max(on_disk("seg"));
        let (said, is) = (journal.bytes(), on_disk("seg") + on_disk("idx"));
        assert!(said.abs_diff(is) <= 8 * 4096, "{said} bytes are reported, and {is} are on disk");
    }
    // The test wrote 1.5 MB.
    assert!(most < 128 << 10, "{most} bytes were retained");
    waiting.append(2, vec![]).unwrap();
    waiting.end();
    waiting.written().await.unwrap();
    let all = [event(1, "its beginning"), event(2, "")];
    assert_eq!(found(&journal, "waits"), [written("waits", &all, true)]);
}

#[tokio::test]
async fn a_held_journal_deletes_no_segment_before_its_owner_names_those_that_it_needs() {
    let dir = tempfile::tempdir().unwrap();
    let segments = || {
        let files = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
        let segments = files.filter(|path| path.extension().is_some_and(|it| it == "seg"));
        segments.map(|path| path.file_stem().unwrap().to_str().unwrap().parse::<u64>().unwrap()).min()
    };
    let (journal, _) = JournalStore::open(small(dir.path())).unwrap();
    for n in 0..100 {
        let entry = journal.begin(&format!("r{n}")).unwrap();
        entry.append(1, vec![Bytes::from(vec![b'x'; 1500])]).unwrap();
        entry.end();
        entry.admitted().await.unwrap();
    }
    drop(journal);
    assert_eq!(segments(), Some(1));
    let retention = Retention { bytes_max: 1, age_max: Duration::MAX };
    let held = || JournalSettings { is_held: true, retention, ..small(dir.path()) };

    // Closing a journal deletes the segments that are due.
    drop(JournalStore::open(held()).unwrap());
    assert_eq!(segments(), Some(1));
    let (journal, _) = JournalStore::open(held()).unwrap();
    journal.hold_from(10);
    drop(journal);
    assert_eq!(segments(), Some(10));
    let (journal, _) = JournalStore::open(held()).unwrap();
    assert_eq!(found(&journal, "r99").len(), 1);
}

#[tokio::test]
async fn a_smaller_maximum_size_deletes_old_segments_of_an_open_journal() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = JournalStore::open(small(dir.path())).unwrap();
    let waiting = journal.begin("waits").unwrap();
    waiting.append(1, vec![Bytes::from_static(b"its beginning")]).unwrap();
    for n in 0..200 {
        let entry = journal.begin(&format!("r{n}")).unwrap();
        entry.append(1, vec![Bytes::from(vec![b'x'; 1500])]).unwrap();
        entry.end();
        entry.admitted().await.unwrap();
    }
    let before = journal.bytes();
    assert!(before > 200 * 1500);

    journal.set_bytes_max(64 << 10);

    // Nothing more is written.
    let mut pause = tokio::time::interval(Duration::from_millis(2));
    while journal.bytes() > 96 << 10 || !found(&journal, "r0").is_empty() {
        pause.tick().await;
    }
    assert_eq!(found(&journal, "r199").len(), 1, "the latest are retained");
    let events = [event(1, "its beginning")];
    assert_eq!(found(&journal, "waits"), [written("waits", &events, false)], "unfinished ones are retained");
}

#[tokio::test]
async fn a_flipped_bit_in_a_durable_record_is_an_error_anywhere_and_repair_saves_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = JournalStore::open(JournalSettings::new(dir.path())).unwrap();
    for n in 0..100 {
        let entry = journal.begin(&format!("r{n}")).unwrap();
        entry.append(1, vec![Bytes::from(vec![b'x'; 200])]).unwrap();
        entry.admitted().await.unwrap();
    }
    let (was, killed) = (dir.path().join("was"), dir.path().join("killed"));
    copy_segments(dir.path(), &was);
    copy_segments(&was, &killed);
    drop(journal);
    let segment = segments(&killed).remove(0);
    let bytes = std::fs::read(&segment).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    for (at, expected) in [(3, 0), (10, 0), (20, 0), (end / 10, HEADER), (end / 2, HEADER), (end - 1, HEADER)]
    {
        let mut flipped = bytes.clone();
        flipped[at] ^= 4;
        std::fs::write(&segment, flipped).unwrap();
        let Err(OpenError::Damaged { path, at: said }) = JournalStore::open(JournalSettings::new(&killed))
        else {
            panic!("a flip at {at} is not noticed")
        };
        assert!(path == segment && (expected as u64..=at as u64).contains(&said), "{said}, not {at}");
        let error = rollout_journal::all_in(&killed).unwrap().find_map(Result::err).unwrap();
        assert!(error.to_string().contains("is damaged at byte"), "{error}");
        assert!(rollout_journal::find_in(&killed, "r99").is_err());
        let repaired = rollout_journal::repair(&killed).unwrap();
        assert_eq!(repaired.damage.len(), 1, "{repaired:?}");
        let (journal, unfinished) = JournalStore::open(JournalSettings::new(&killed)).unwrap();
        let lost = usize::from(!repaired.left_out.is_empty());
        assert_eq!(unfinished.len() + lost, 100, "a flip at {at}: {repaired:?}");
        drop((journal, unfinished));
        copy_segments(&was, &killed);
    }
    // After the end there is nothing to lose.
    let mut flipped = bytes.clone();
    flipped[end + 700] ^= 4;
    std::fs::write(&segment, flipped).unwrap();
    assert_eq!(JournalStore::open(JournalSettings::new(&killed)).unwrap().1.len(), 100);
}

fn copy_segments(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    std::fs::create_dir(to).unwrap();
    for path in segments(from) {
        std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

#[test]
fn a_journal_of_another_version_is_rejected_with_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let old = [&b"ROLLSEG1\x01\0\0\0\0\0\0\0"[..], &[9; 200]].concat();
    std::fs::write(dir.path().join("00000000000000000001.seg"), old).unwrap();
    let Err(refused) = JournalStore::open(small(dir.path())) else { panic!("it was opened") };
    let text = refused.to_string();
    assert!(
        text.contains("is of version '1', and this host reads '8'") && text.contains("empty directory"),
        "{text}"
    );
}
