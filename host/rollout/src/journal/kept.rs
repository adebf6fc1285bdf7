//! Results that callers may still fetch, stored in the journal instead of in memory.
//!
//! A rollout with a stored result has ended in the journal, so a new process does not read it at its start. Next to its
//! end, the journal has a note: a small separate entry, with a name derived from the rollout's, that contains the data
//! for rebuilding the result ([`KEPT`]). Batches record the results that were read ([`READ`]) and that are forgotten
//! ([`RELEASED`]).
//!
//! In memory a stored result is a hash and three numbers, which a new process finds in the journal's indexes alone. As
//! long as a result is unread, the journal keeps the segments that contain it.
//!
//! [`KEPT`]: kind::KEPT
//! [`READ`]: kind::READ
//! [`RELEASED`]: kind::RELEASED

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rollout_journal as store;
use serde::Serialize;
use tokio::sync::watch;

use super::run_clock::RunClock;
use super::{Failed, Journal, RolloutLog, json, kind, outcome};
use crate::model::Finished;
use rollout_core::budget::{Budget, Charge};
use rollout_wire::id::RolloutId;

/// Time for which a result is stored after it was read, in case the caller lost it.
const READ_KEPT: Duration = Duration::from_secs(60);

/// Maximum number of results that are forgotten at once, so that a million of them do not delay requests.
const FORGOTTEN_AT_ONCE: usize = 10_000;

/// Memory of a stored result in bytes: in the table and in the queue of expiry times.
const KEPT_BYTES: usize = 64;

/// Name of the notes with batches of read and forgotten results. No rollout has such a name.
const BATCH_NAME: &str = "\0results";

/// Key of a result: a rollout's id, and the plugin that ran it if there are several.
#[derive(Clone, Copy, Debug)]
pub struct ResultOf<'a> {
    /// The rollout.
    pub id: &'a RolloutId,
    /// The plugin.
    pub plugin: Option<&'a str>,
}

impl ResultOf<'_> {
    /// Returns the name of the note. No rollout has such a name.
    fn name(&self) -> String {
        format!("{}\0{}", self.id.as_str(), self.plugin.unwrap_or_default())
    }
}

/// A reference to a stored result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredResult {
    key: u64,
    serial: u32,
}

#[derive(Clone, Copy, Debug)]
struct ResultLocation {
    /// The first segment with records of the rollout.
    first: u32,
    /// The segment with the note, or the previous segment; `UNKNOWN` while the note is being written.
    last: u32,
    /// Distinguishes results with the same name; 0 for one of an earlier process.
    serial: u32,
    /// Whether it is unread and its caller may fetch it.
    is_awaited: bool,
}

/// A segment that is not known yet.
const UNKNOWN: u32 = u32::MAX;

#[derive(Default)]
struct Table {
    locations: BTreeMap<u64, ResultLocation>,
    /// Times when unread results expire, in tenths of a second, in order.
    unread: VecDeque<(u32, u32, u64)>,
    /// Times when read results expire.
    read: VecDeque<(u32, u32, u64)>,
    /// Number of awaited results by their first segment.
    pins: BTreeMap<u32, u32>,
    /// Number of results, awaited or not, by their first segment.
    begins: BTreeMap<u32, u32>,
    awaited: usize,
    /// Number of results of an earlier process that are not forgotten yet.
    found: usize,
    serials: u32,
    /// Results that were read since the last batch.
    were_read: Vec<u64>,
    released: HashSet<u64>,
    charge: Option<Charge>,
    /// The segment where results start, as it is stored in its file.
    stored_from: u64,
}

/// The stored results of a journal.
pub struct StoredResults {
    table: Mutex<Table>,
    clock: Arc<RunClock>,
    awaited: watch::Sender<usize>,
    /// Time for which results of an earlier process are stored after the start of this one.
    ttl: Duration,
    from_file: PathBuf,
}

fn tenths(time: Duration) -> u32 {
    u32::try_from(time.as_millis() / 100).unwrap_or(u32::MAX)
}

fn small(segment: u64) -> u32 {
    // Not reached before the journal has written 64 PiB.
    u32::try_from(segment).unwrap_or(UNKNOWN - 1)
}

fn count(counts: &mut BTreeMap<u32, u32>, segment: u32) {
    *counts.entry(segment).or_default() += 1;
}

fn uncount(counts: &mut BTreeMap<u32, u32>, segment: u32) {
    if let Some(count) = counts.get_mut(&segment) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&segment);
        }
    }
}

impl Table {
    /// Adds a result, replacing one with the same name. Looks the name up only once, because a start adds a million
    /// results.
    fn add(&mut self, key: u64, location: ResultLocation) {
        count(&mut self.begins, location.first);
        if location.is_awaited {
            count(&mut self.pins, location.first);
            self.awaited += 1;
        }
        self.found += usize::from(location.serial == 0);
        if let Some(replaced) = self.locations.insert(key, location) {
            self.removed(replaced);
        }
    }

    /// Updates the counts for a removed result. Returns whether it was awaited.
    fn removed(&mut self, location: ResultLocation) -> bool {
        uncount(&mut self.begins, location.first);
        self.found -= usize::from(location.serial == 0);
        if location.is_awaited {
            self.awaited -= 1;
            uncount(&mut self.pins, location.first);
        }
        location.is_awaited
    }

    /// Marks a result as no longer awaited. Returns whether it was awaited.
    fn settle(&mut self, key: u64) -> bool {
        let Some(location) = self.locations.get_mut(&key) else { return false };
        let (first, was_awaited) = (location.first, std::mem::take(&mut location.is_awaited));
        if was_awaited {
            self.awaited -= 1;
            uncount(&mut self.pins, first);
        }
        was_awaited
    }

    /// Removes a result. Returns whether it was awaited.
    fn remove(&mut self, key: u64) -> bool {
        self.locations.remove(&key).is_some_and(|location| self.removed(location))
    }

    /// Returns the first segment with an awaited result.
    fn pinned_from(&self) -> u64 {
        self.pins.keys().next().map_or(u64::MAX, |first| u64::from(*first))
    }

    /// Applies a batch of an earlier process.
    fn apply(&mut self, batch: &store::Event) {
        for key in batch.payload.as_chunks::<8>().0.iter().map(|key| u64::from_le_bytes(*key)) {
            match batch.kind {
                kind::READ => drop(self.settle(key)),
                _ => drop(self.remove(key)),
            }
        }
    }

    /// Charges the memory of the table.
    fn account(&mut self) {
        let bytes = self.locations.len() * KEPT_BYTES;
        if let Some(charge) = &mut self.charge {
            let more = bytes.saturating_sub(charge.bytes());
            charge.add(more);
            charge.shrink_to(bytes);
        }
    }
}

impl StoredResults {
    /// Finds the results that an earlier process stored in a journal. Reads files.
    pub(super) fn find(store: &store::JournalStore, dir: &Path, ttl: Duration) -> io::Result<Self> {
        let from_file = dir.join("results-from");
        let from = match std::fs::read_to_string(&from_file) {
            Ok(text) => text.trim().parse().unwrap_or(0),
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error),
        };
        let mut table = Table { stored_from: from, ..Table::default() };
        let batch = store::name_hash(BATCH_NAME);
        let is_batch = |ended: &store::IndexedRollout| {
            ended.name == batch && matches!(ended.first_event, Some(kind::READ | kind::RELEASED))
        };
        let is_note = |kind| matches!(kind, kind::KEPT | kind::READ | kind::RELEASED);
        store.for_each_ended(from, is_note, is_batch, |ended, events| match ended.first_event {
            Some(kind::KEPT) => {
                let (first, last) = (small(from), small(ended.last_segment));
                // Replaces one with the same name that was not forgotten yet.
                table.add(ended.name, ResultLocation { first, last, serial: 0, is_awaited: true });
            }
            _ => events.iter().for_each(|event| table.apply(event)),
        })?;
        store.hold_from(table.pinned_from());
        if table.found > 0 {
            let (results, unread) = (table.found, table.awaited);
            tracing::info!(results, unread, "found results of an earlier process");
        }
        let (awaited, _) = watch::channel(table.awaited);
        Ok(Self { table: Mutex::new(table), clock: RunClock::new(), awaited, ttl, from_file })
    }
}

impl StoredResults {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the clock for the expiry of results, which stops while the process is stopped.
    pub fn clock(&self) -> &Arc<RunClock> {
        &self.clock
    }

    /// Charges the memory of the table to a budget.
    pub fn charge_to(&self, budget: &Budget) {
        let mut table = self.table();
        if table.charge.is_none() {
            table.charge = Some(budget.charge_result(0));
            table.account();
        }
    }

    /// Returns the number of results that no caller has read.
    pub(super) fn unread(&self) -> usize {
        self.table().awaited
    }

    /// Waits until every result is read or forgotten.
    pub async fn all_read(&self) {
        // `self` holds the sender, so it cannot be dropped.
        let _ = self.awaited.subscribe().wait_for(|awaited| *awaited == 0).await;
    }

    /// Returns whether a result is still stored.
    pub fn has(&self, kept: StoredResult) -> bool {
        self.table().locations.get(&kept.key).is_some_and(|location| location.serial == kept.serial)
    }

    /// Returns the result of a rollout, if it is stored.
    pub fn of(&self, result: ResultOf<'_>) -> Option<StoredResult> {
        let key = store::name_hash(&result.name());
        let serial = self.table().locations.get(&key)?.serial;
        Some(StoredResult { key, serial })
    }

    /// Publishes a change of the table.
    fn publish(&self, table: &Table, store: &store::JournalStore) {
        store.hold_from(table.pinned_from());
        self.awaited.send_if_modified(|awaited| std::mem::replace(awaited, table.awaited) != table.awaited);
    }
}

/// The data of a stored result.
pub struct StoredOutcome {
    /// The driver's data for rebuilding the result.
    pub facts: Bytes,
    /// The outcome, which is not read yet.
    outcome: store::LocatedRollout,
}

impl StoredOutcome {
    /// Returns the size of the outcome in files, including the requests that it refers to. Reads files.
    pub fn bytes(&self) -> io::Result<u64> {
        self.outcome.bytes_of(outcome::is_part)
    }

    /// Reads the outcome of the rollout. Reads files.
    pub fn read(&self) -> io::Result<Finished> {
        let events = self.outcome.events(outcome::is_part)?;
        let events = events.ok_or(io::ErrorKind::NotFound)?;
        outcome::read(&events)?.ok_or_else(|| io::Error::other("a stored result has no outcome"))
    }
}

impl Journal {
    /// Returns the stored results.
    pub fn results(&self) -> &StoredResults {
        &self.results
    }

    /// Ends a rollout whose outcome is in its log, and stores the result for the given time. It is awaited only if a
    /// caller may fetch it. Waits until all of it survives a crash of the process.
    pub async fn store_result(
        &self,
        log: &RolloutLog,
        of: ResultOf<'_>,
        facts: &impl Serialize,
        (ttl, is_awaited): (Duration, bool),
    ) -> Result<StoredResult, Failed> {
        let results = &self.results;
        results.clock.start();
        let name = of.name();
        let key = store::name_hash(&name);
        let first = small(log.0.first_segment().unwrap_or_else(|| self.store.position()));
        let kept = {
            let mut table = results.table();
            if table.released.contains(&key) {
                self.note_changes(&mut table);
            }
            table.serials = table.serials.wrapping_add(1).max(1);
            let serial = table.serials;
            table.add(key, ResultLocation { first, last: UNKNOWN, serial, is_awaited });
            table.account();
            if !is_awaited {
                table.were_read.push(key);
            }
            table.unread.push_back((tenths(results.clock.now() + ttl), serial, key));
            results.publish(&table, &self.store);
            // The note must precede any batch that records the result as read.
            let note = self.store.begin_note(&name);
            // The facts are a few words and a label. A label fits in a request, and so in an event.
            let _ = note.append(kind::KEPT, vec![json(facts)]);
            note.end();
            StoredResult { key, serial }
        };
        log.end();
        log.written().await?;
        let last = small(self.store.position());
        if let Some(location) =
            results.table().locations.get_mut(&key).filter(|location| location.serial == kept.serial)
        {
            location.last = last;
        }
        Ok(kept)
    }

    /// Returns the data of a result, or `None` if it is forgotten. Fails if the data of an unread result is missing.
    /// Reads files and blocks.
    pub fn read_result(&self, kept: StoredResult, of: ResultOf<'_>) -> io::Result<Option<StoredOutcome>> {
        let location = self.results.table().locations.get(&kept.key).copied();
        let Some(location) = location.filter(|location| location.serial == kept.serial) else {
            return Ok(None);
        };
        let last = if location.last == UNKNOWN { self.store.position() } else { u64::from(location.last) };
        let first = u64::from(location.first);
        // The note may be at the end of one segment, and the rollout's end in the next.
        let find = |name: &str, last: u64| self.store.find_ended(name, first..=last);
        let note = find(&of.name(), last)?;
        let facts = note.as_ref().map(|note| note.events(|kind| kind == kind::KEPT)).transpose()?.flatten();
        let facts = facts.and_then(|events| events.into_iter().next());
        match (facts, find(of.id.as_str(), last + 1)?) {
            (Some(facts), Some(outcome)) => Ok(Some(StoredOutcome { facts: facts.payload, outcome })),
            // The segments of a read result may be deleted.
            _ if !location.is_awaited => Ok(None),
            _ => Err(io::Error::other("the journal has lost a stored result")),
        }
    }

    /// Records that a caller has read a result completely. Returns whether it is the first time.
    pub fn was_read(&self, kept: StoredResult) -> bool {
        let results = &self.results;
        let mut table = results.table();
        if table.locations.get(&kept.key).is_none_or(|location| location.serial != kept.serial) {
            return false;
        }
        let is_first = table.settle(kept.key);
        if is_first {
            table.were_read.push(kept.key);
            table.read.push_back((tenths(results.clock.now() + READ_KEPT), kept.serial, kept.key));
            results.publish(&table, &self.store);
        }
        is_first
    }

    /// Forgets expired results, a limited number of them.
    pub fn forget_results(&self) {
        let results = &self.results;
        let now = tenths(results.clock.now());
        let mut table = results.table();
        let mut unread = 0;
        let mut left = FORGOTTEN_AT_ONCE;
        let is_due = |(due, ..): &mut (u32, u32, u64)| *due <= now;
        while left > 0 {
            let due = table.read.pop_front_if(is_due).or_else(|| table.unread.pop_front_if(is_due));
            let Some((_, serial, key)) = due else { break };
            if table.locations.get(&key).is_some_and(|location| location.serial == serial) {
                unread += usize::from(table.remove(key));
                table.released.insert(key);
                left -= 1;
            }
        }
        if table.found > 0 && now >= tenths(results.ttl) {
            let found =
                table.locations.iter().filter(|(_, location)| location.serial == 0).map(|(key, _)| *key);
            for key in found.take(left).collect::<Vec<_>>() {
                unread += usize::from(table.remove(key));
                table.released.insert(key);
            }
        }
        table.account();
        results.publish(&table, &self.store);
        drop(table);
        if unread > 0 {
            tracing::info!(results = unread, "unread results have expired and are forgotten");
        }
    }

    /// Writes batches of the results that were read or forgotten since the last time, and the segment where results
    /// start. Writes a file and blocks.
    pub fn note_results(&self) {
        let results = &self.results;
        let mut table = results.table();
        self.note_changes(&mut table);
        let from =
            table.begins.keys().next().map_or_else(|| self.store.position(), |first| u64::from(*first));
        if from == table.stored_from {
            return;
        }
        table.stored_from = from;
        drop(table);
        let temporary = results.from_file.with_extension("new");
        let written = std::fs::write(&temporary, from.to_string());
        if let Err(error) = written.and_then(|()| std::fs::rename(&temporary, &results.from_file)) {
            tracing::debug!(%error, "cannot store the segment where results start");
        }
    }

    fn note_changes(&self, table: &mut Table) {
        let were_read = std::mem::take(&mut table.were_read);
        let released = std::mem::take(&mut table.released);
        let batches = [(kind::READ, were_read), (kind::RELEASED, released.into_iter().collect())];
        for (kind, keys) in batches.into_iter().filter(|(_, keys)| !keys.is_empty()) {
            let note = self.store.begin_note(BATCH_NAME);
            let keys: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
            let _ = note.append(kind, vec![keys.into()]);
            note.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::seal::Seal;
    use rollout_journal::JournalSettings;
    use rollout_outbound::Secret;

    const TTL: Duration = Duration::from_secs(900);

    fn open(dir: &Path) -> Arc<Journal> {
        let settings = JournalSettings { segment_bytes: 1 << 20, ..JournalSettings::new(dir) };
        Journal::open(settings, Seal::from_secret(&Secret::new("secret")), TTL).unwrap().0
    }

    /// Appends a short rollout with an outcome.
    fn append_rollout(journal: &Journal, id: &RolloutId) -> RolloutLog {
        let log = RolloutLog(Arc::new(journal.store.begin(id.as_str()).unwrap()));
        for event in 0..8 {
            log.append(kind::OF_WORKFLOW + event % 4, vec![Bytes::from_static(&[b'x'; 300])]);
        }
        log.append(kind::OUTCOME, vec![Bytes::from_static(b"[]\n{}")]);
        log
    }

    async fn keep(journal: &Journal, id: &RolloutId) -> StoredResult {
        let of = ResultOf { id, plugin: None };
        journal.store_result(&append_rollout(journal, id), of, &"facts", (TTL, true)).await.unwrap()
    }

    fn id(text: impl Into<String>) -> RolloutId {
        RolloutId::parse(text).unwrap()
    }

    /// Returns the resident memory of this process in bytes.
    fn rss() -> i64 {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        pages.split(' ').nth(1).unwrap().parse::<i64>().unwrap() * 4096
    }

    #[tokio::test]
    async fn a_stored_result_is_found_by_every_later_process_until_it_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let journal = open(dir.path());
        let [one, two, three, four] = ["one", "two", "three", "four"].map(id);
        for id in [&one, &two, &three] {
            keep(&journal, id).await;
        }
        let of = |id| ResultOf { id, plugin: None };
        let found = |journal: &Journal, id| {
            let kept = journal.results().of(ResultOf { id, plugin: None })?;
            let found = journal.read_result(kept, ResultOf { id, plugin: None }).unwrap()?;
            assert_eq!(
                (found.facts, found.outcome.name()),
                (Bytes::from_static(b"\"facts\""), id.as_str().as_bytes())
            );
            Some(())
        };
        assert!(found(&journal, &one).is_some() && journal.results().of(of(&four)).is_none());
        assert!(journal.results().of(ResultOf { id: &one, plugin: Some("p") }).is_none(), "another plugin's");
        assert!(journal.was_read(journal.results().of(of(&two)).unwrap()));
        assert!(!journal.was_read(journal.results().of(of(&two)).unwrap()), "not for the first time");
        {
            let mut table = journal.results.table();
            let key = store::name_hash(&of(&three).name());
            table.remove(key);
            table.released.insert(key);
        }
        journal.note_results();
        // From here on the name belongs to another rollout.
        keep(&journal, &three).await;
        drop(journal);
        for awaited in [2, 1] {
            let journal = open(dir.path());
            assert_eq!(journal.results.table().awaited, awaited);
            assert!([&one, &two, &three].into_iter().all(|id| found(&journal, id).is_some()));
            journal.was_read(journal.results().of(of(&three)).unwrap());
            // This result is recorded as read at the end of the process.
            journal.close();
        }
    }

    #[tokio::test]
    async fn an_unread_result_keeps_its_segments_and_a_read_one_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let mut settings = JournalSettings { segment_bytes: 64 << 10, ..JournalSettings::new(dir.path()) };
        settings.retention.bytes_max = 0;
        let journal = Journal::open(settings, Seal::from_secret(&Secret::new("secret")), TTL).unwrap().0;
        let kept = keep(&journal, &id("kept")).await;
        let first = dir.path().join("00000000000000000001.seg");
        let fill = async |from: usize| {
            for number in from..from + 200 {
                append_rollout(&journal, &id(format!("r-{number}"))).end();
            }
            journal.written().await.unwrap();
        };
        fill(0).await;
        assert!(first.exists() && journal.store.position() > 4);
        let of = id("kept");
        assert!(journal.read_result(kept, ResultOf { id: &of, plugin: None }).unwrap().is_some());
        journal.was_read(kept);
        fill(200).await;
        let gone = async {
            while first.exists() {
                fill(400).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), gone).await.unwrap();
        assert!(journal.read_result(kept, ResultOf { id: &of, plugin: None }).unwrap().is_none());
    }

    /// Number of results in the test below. `docs/understand/performance.md` has the figures for a million.
    #[expect(clippy::disallowed_methods, reason = "may be run by hand with more results")]
    fn count() -> usize {
        std::env::var("KEPT_RESULTS").map_or(5_000, |count| count.parse().unwrap())
    }

    #[tokio::test]
    #[expect(clippy::disallowed_methods, reason = "may be run by hand in two processes")]
    async fn a_start_takes_a_few_bytes_and_microseconds_for_each_stored_result() {
        let count = count();
        let own = tempfile::tempdir().unwrap();
        // To measure in a process that wrote none of it, run the test twice with a directory that is empty at first.
        let dir = std::env::var_os("KEPT_RESULTS_IN").map_or(own.path().to_owned(), PathBuf::from);
        if std::fs::read_dir(&dir).is_ok_and(|mut files| files.next().is_none()) {
            let settings = JournalSettings { sync: store::Sync::Never, ..JournalSettings::new(&dir) };
            let journal = Journal::open(settings, Seal::from_secret(&Secret::new("secret")), TTL).unwrap().0;
            for from in (0..count).step_by(1_000) {
                let ids: Vec<RolloutId> = (from..count.min(from + 1_000))
                    .map(|number| id(format!("rollout-{number:08}")))
                    .collect();
                futures_util::future::join_all(ids.iter().map(|id| keep(&journal, id))).await;
            }
            journal.close();
        }
        let (before, began) = (rss(), Instant::now());
        let settings = JournalSettings::new(&dir);
        let (journal, unfinished) =
            Journal::open(settings, Seal::from_secret(&Secret::new("secret")), TTL).unwrap();
        let opened = began.elapsed();
        let last = id(format!("rollout-{:08}", count - 1));
        let kept = journal.results().of(ResultOf { id: &last, plugin: None }).unwrap();
        let found = journal.read_result(kept, ResultOf { id: &last, plugin: None }).unwrap().unwrap();
        let (answered, more) = (began.elapsed(), rss() - before);
        let mib = more >> 20;
        println!(
            "{count} kept results: opened in {opened:?}, first found after {answered:?}, {mib} MiB more"
        );
        assert_eq!((found.bytes().unwrap() > 0, unfinished.count_max()), (true, 0));
        assert_eq!(journal.results.table().awaited, count);
        let allowed = (16 << 20) + 48 * i64::try_from(count).unwrap();
        assert!(more < allowed, "{mib} MiB more");
    }
}
