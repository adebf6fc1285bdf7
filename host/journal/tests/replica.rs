//! Tests of a journal with a replica: the waits of callers, limits, failures, and rebuilding.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use rollout_journal::{
    Acknowledge, JournalRefused, JournalSettings, JournalStore, LocatedRollout, Rebuild, Replica,
    ReplicaError, ReplicaSettings, Written, all_in, read_record,
};
use tokio::sync::watch;

/// A replica in memory that acknowledges batches on the test's request.
struct Fake {
    state: Mutex<State>,
    batches: watch::Sender<usize>,
}

#[derive(Default)]
struct State {
    records: Vec<Bytes>,
    pending: Vec<Acknowledge>,
    acknowledges: bool,
    fails: Option<ReplicaError>,
}

impl Fake {
    fn new(acknowledges: bool) -> Arc<Self> {
        let state = State { acknowledges, ..State::default() };
        Arc::new(Self { state: Mutex::new(state), batches: watch::Sender::new(0) })
    }

    /// Acknowledges all batches so far and all later ones.
    fn acknowledge(&self) {
        let pending = {
            let mut state = self.state.lock().unwrap();
            state.acknowledges = true;
            std::mem::take(&mut state.pending)
        };
        pending.into_iter().for_each(|done| done(Ok(())));
    }

    fn fail(&self, error: &ReplicaError) {
        let pending = std::mem::take(&mut self.state.lock().unwrap().pending);
        pending.into_iter().for_each(|done| done(Err(error.clone())));
    }

    /// Waits until this number of batches was appended.
    async fn has(&self, batches: usize) {
        let mut news = self.batches.subscribe();
        let wait = news.wait_for(|appended| *appended >= batches);
        tokio::time::timeout(Duration::from_secs(60), wait).await.unwrap().unwrap();
    }

    /// Rebuilds a directory from everything that was appended.
    fn rebuild(&self, path: &Path) -> u64 {
        let mut rebuild = Rebuild::begin(path, 4096).unwrap();
        for batch in &self.state.lock().unwrap().records {
            let mut rest = &batch[..];
            while !rest.is_empty() {
                let (record, bytes) = read_record(rest).unwrap();
                rebuild.append(record).unwrap();
                rest = &rest[bytes..];
            }
        }
        rebuild.finish().unwrap()
    }
}

impl Replica for Fake {
    fn append(&self, records: Bytes, done: Acknowledge) {
        let done = {
            let mut state = self.state.lock().unwrap();
            if let Some(error) = state.fails.clone() {
                drop(state);
                return done(Err(error));
            }
            state.records.push(records);
            if state.acknowledges {
                Some(done)
            } else {
                state.pending.push(done);
                None
            }
        };
        self.batches.send_modify(|batches| *batches += 1);
        if let Some(done) = done {
            done(Ok(()));
        }
    }
}

fn settings(path: &Path, fake: &Arc<Fake>) -> JournalSettings {
    let replica = Some(ReplicaSettings::new(fake.clone()));
    JournalSettings { segment_bytes: 4096, segments_ahead: 1, replica, ..JournalSettings::new(path) }
}

fn read(found: impl Iterator<Item = LocatedRollout>) -> Vec<Written> {
    found.map(|found| found.read().unwrap().unwrap()).collect()
}

/// Returns all rollouts in a directory.
fn all(path: &Path) -> Vec<Written> {
    read(all_in(path).unwrap().map(Result::unwrap))
}

#[tokio::test]
async fn a_caller_waits_for_the_disk_and_the_replica() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::new(false);
    let (journal, _) = JournalStore::open(settings(dir.path(), &fake)).unwrap();
    let entry = journal.begin("a").unwrap();
    let mut admitted = Box::pin(entry.admitted());
    tokio::select! {
        biased;
        result = &mut admitted => panic!("the replica has acknowledged nothing: {result:?}"),
        () = fake.has(1) => {}
    }
    // On the disk it can be found.
    assert_eq!(all(dir.path()).len(), 1);
    assert!(futures_are_pending(&mut admitted).await);
    fake.acknowledge();
    admitted.await.unwrap();
    entry.end();
    entry.written().await.unwrap();
}

/// Returns whether a future is pending after it was polled.
async fn futures_are_pending<T>(future: &mut (impl Future<Output = T> + Unpin)) -> bool {
    tokio::select! {
        biased;
        _ = future => false,
        () = std::future::ready(()) => true,
    }
}

#[tokio::test]
async fn a_late_replica_refuses_new_rollouts_and_running_ones_wait_until_it_is_back() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::new(false);
    let mut settings = settings(dir.path(), &fake);
    settings.replica.as_mut().unwrap().late_after = Duration::from_millis(20);
    let (journal, _) = JournalStore::open(settings).unwrap();
    let entry = journal.begin("a").unwrap();
    fake.has(1).await;
    let mut pause = tokio::time::interval(Duration::from_millis(2));
    let refused = loop {
        if let Err(refused) = journal.check() {
            break refused;
        }
        pause.tick().await;
    };
    assert!(matches!(refused, JournalRefused::Late(age) if age > Duration::from_millis(20)), "{refused}");
    assert!(matches!(journal.begin("b"), Err(JournalRefused::Late(_))));
    let mut room = Box::pin(entry.room());
    assert!(futures_are_pending(&mut room).await);
    fake.acknowledge();
    room.await;
    journal.check().unwrap();
    journal.begin("b").unwrap().admitted().await.unwrap();
}

#[tokio::test]
async fn the_bytes_that_a_slow_replica_has_not_acknowledged_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::new(false);
    let mut settings = settings(dir.path(), &fake);
    let replica = settings.replica.as_mut().unwrap();
    replica.bytes_max = 1000;
    replica.late_after = Duration::from_secs(3600);
    let (journal, _) = JournalStore::open(settings).unwrap();
    let entry = journal.begin("a").unwrap();
    entry.append(1, vec![Bytes::from(vec![b'x'; 2000])]).unwrap();
    fake.has(1).await;
    // The writer waits with this batch.
    entry.append(2, vec![Bytes::from_static(b"y")]).unwrap();
    let mut written = Box::pin(entry.written());
    assert!(futures_are_pending(&mut written).await);
    assert!(futures_are_pending(&mut Box::pin(entry.room())).await);
    assert_eq!(fake.state.lock().unwrap().records.len(), 1);
    fake.acknowledge();
    written.await.unwrap();
    entry.room().await;
    assert_eq!(fake.state.lock().unwrap().records.len(), 2);
}

#[tokio::test]
async fn a_fenced_replica_fails_the_journal_with_its_own_reason() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::new(false);
    let (journal, _) = JournalStore::open(settings(dir.path(), &fake)).unwrap();
    let entry = journal.begin("a").unwrap();
    let mut failed = Box::pin(journal.failed());
    assert!(futures_are_pending(&mut failed).await);
    let mut admitted = Box::pin(entry.admitted());
    assert!(futures_are_pending(&mut admitted).await);
    fake.has(1).await;
    fake.fail(&ReplicaError::Fenced("epoch 2".to_owned()));
    let why = failed.await;
    assert!(why.is_fenced());
    assert_eq!(why.to_string(), "another process has taken the journal's log over: epoch 2");
    assert_eq!(admitted.await.unwrap_err(), why);
    assert_eq!(entry.written().await.unwrap_err(), why);
    assert_eq!(journal.check().unwrap_err(), JournalRefused::Failed(why));
    entry.room().await;
}

#[tokio::test]
async fn a_replica_that_fails_at_once_is_not_taken_for_one_that_has_stored_everything() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::new(true);
    let (journal, _) = JournalStore::open(settings(dir.path(), &fake)).unwrap();
    let entry = journal.begin("a").unwrap();
    entry.admitted().await.unwrap();
    fake.state.lock().unwrap().fails = Some(ReplicaError::Failed("full".to_owned()));
    entry.append(1, vec![]).unwrap();
    let why = entry.written().await.unwrap_err();
    assert!(!why.is_fenced());
    assert_eq!(why.to_string(), "the journal's replicated log cannot be continued: full");
    assert_eq!(entry.admitted().await.unwrap_err(), why);
}

#[tokio::test]
async fn a_directory_that_is_rebuilt_from_the_replica_has_every_record() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::new(true);
    let original = dir.path().join("original");
    let (journal, _) = JournalStore::open(settings(&original, &fake)).unwrap();
    let mut running = Vec::new();
    for number in 0..60_u8 {
        let entry = journal.begin(&format!("rollout {}", number % 50)).unwrap();
        for kind in 1..=3 {
            let payload = vec![number; usize::from(number) * 40];
            entry.append(kind, vec![Bytes::from(payload), Bytes::from_static(b"end")]).unwrap();
        }
        if number % 3 == 0 {
            running.push(entry);
        } else {
            entry.end();
        }
    }
    // Larger than a segment.
    running[0].append(9, vec![Bytes::from(vec![7; 20_000])]).unwrap();
    running[0].written().await.unwrap();
    running.clear();
    drop(journal);

    let rebuilt = dir.path().join("rebuilt");
    assert_eq!(fake.rebuild(&rebuilt), 60 * 4 + 40 + 1);
    assert_eq!(all(&rebuilt), all(&original));
    let open = |path: &Path| JournalStore::open(JournalSettings::new(path)).unwrap();
    let ((_keep, of_original), (_keep_too, of_rebuilt)) = (open(&original), open(&rebuilt));
    let numbers = |entries: &[rollout_journal::Entry]| -> Vec<_> {
        entries.iter().map(|entry| (entry.number(), entry.read(|_| true).unwrap())).collect()
    };
    assert_eq!(numbers(&of_rebuilt), numbers(&of_original));
    assert!(Rebuild::begin(&rebuilt, 4096).is_err(), "the directory exists");
}

#[tokio::test]
async fn records_of_long_rollouts_are_appended_again_so_that_old_batches_may_be_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::new(true);
    let mut settings = settings(&dir.path().join("original"), &fake);
    settings.replica.as_mut().unwrap().refresh_every = Duration::from_millis(20);
    let (journal, _) = JournalStore::open(settings).unwrap();
    let long = journal.begin("long").unwrap();
    for kind in 1..=3 {
        long.append(kind, vec![Bytes::from(vec![kind; 3000])]).unwrap();
    }
    let over = journal.begin("over").unwrap();
    over.end();
    long.written().await.unwrap();
    fake.state.lock().unwrap().records.clear();
    // Two passes after this one, everything was appended again.
    let batches = *fake.batches.borrow();
    fake.has(batches + 2).await;
    long.append(4, vec![]).unwrap();
    long.written().await.unwrap();
    drop(over);

    let rebuilt = dir.path().join("rebuilt");
    fake.rebuild(&rebuilt);
    let (_journal, unfinished) = JournalStore::open(JournalSettings::new(&rebuilt)).unwrap();
    assert_eq!(unfinished.len(), 1);
    assert_eq!(unfinished[0].read(|_| true).unwrap(), long.read(|_| true).unwrap());
}
