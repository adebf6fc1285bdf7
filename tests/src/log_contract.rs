//! The contract of a journal, which holds with and without a replica of its records.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use rollout_journal::{Entry, JournalSettings, JournalStore, LocatedRollout, Written, all_in};

/// A store of one journal, for [`log_contract`].
pub trait JournalPlace {
    /// Opens the journal as a starting process does, and returns its unfinished rollouts.
    fn open(&mut self) -> impl Future<Output = (JournalStore, Vec<Entry>)>;

    /// Ends the process that has the journal in an orderly way. The caller has dropped everything that belongs to the
    /// journal.
    fn close(&mut self) -> impl Future<Output = ()>;
}

/// A journal in a directory, without a replica.
pub struct EmbeddedJournal {
    /// The directory.
    pub path: PathBuf,
}

impl JournalPlace for EmbeddedJournal {
    async fn open(&mut self) -> (JournalStore, Vec<Entry>) {
        JournalStore::open(small(&self.path)).expect("the journal can be opened")
    }

    async fn close(&mut self) {}
}

/// Returns the settings of a journal with small segments.
pub fn small(path: &Path) -> JournalSettings {
    JournalSettings { segment_bytes: 64 << 10, segments_ahead: 1, ..JournalSettings::new(path) }
}

/// Returns all rollouts in a journal's directory.
pub fn rollouts_in(path: &Path) -> Vec<Written> {
    let all = all_in(path).expect("the directory can be read");
    all.map(|found| written(&found.expect("it can be read"))).collect()
}

fn written(found: &LocatedRollout) -> Written {
    found.read().expect("it can be read").expect("it is there")
}

/// Checks that a journal keeps its promises over three processes.
pub async fn log_contract(mut place: impl JournalPlace) {
    let (journal, unfinished) = place.open().await;
    assert!(unfinished.is_empty(), "a new journal is empty");
    let first = journal.begin("first").expect("it has room");
    first.append(1, vec![Bytes::from_static(b"a"), Bytes::from_static(b"b")]).expect("it is short");
    first.admitted().await.expect("it is stored");
    let second = journal.begin("second").expect("it has room");
    second.append(2, vec![Bytes::new()]).expect("it is short");
    second.end();
    second.written().await.expect("it is stored");
    // Larger than a segment and than a message.
    let large = Bytes::from(vec![7; 3 << 20]);
    first.append(3, vec![large.clone()]).expect("it is short enough");
    first.room().await;
    first.written().await.expect("it is stored");
    assert_eq!(written(&journal.find("first").expect("it can be read")[0]).events.len(), 2);
    let numbers = [first.number(), second.number()];
    drop((first, second, journal));
    place.close().await;

    let (journal, mut unfinished) = place.open().await;
    assert_eq!(unfinished.len(), 1, "the second one has ended");
    let first = unfinished.remove(0);
    assert_eq!(first.number(), numbers[0]);
    let read = first.read(|_| true).expect("it can be read");
    assert_eq!((&read.name[..], read.ended), (&b"first"[..], false));
    let events: Vec<_> = read.events.iter().map(|event| (event.kind, &event.payload[..])).collect();
    assert_eq!(events, [(1, &b"ab"[..]), (3, &large[..])]);
    let second = written(&journal.find("second").expect("it can be read")[0]);
    assert!(second.ended);
    let third = journal.begin("third").expect("it has room");
    assert!(third.number() > numbers[1], "no number comes again");
    third.append(4, vec![]).expect("it is short");
    first.append(4, vec![]).expect("it is short");
    first.end();
    journal.written().await.expect("it is stored");
    drop((first, third, journal));
    place.close().await;

    let (journal, unfinished) = place.open().await;
    assert_eq!(unfinished.len(), 1);
    assert_eq!(&unfinished[0].read(|_| true).expect("it can be read").name[..], b"third");
    assert_eq!(written(&journal.find("first").expect("it can be read")[0]).events.len(), 3);
    drop((unfinished, journal));
    place.close().await;
}
