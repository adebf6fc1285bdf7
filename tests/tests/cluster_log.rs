//! A worker's log on real NATS servers: every acknowledged record is there, one process at a time appends, and damage is
//! an error.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use rollout_cluster::{
    Claim, ClaimError, ClaimedLog, Cluster, ClusterError, ClusterSettings, Finding, LogWriter, Severity,
    WorkerState, check,
};
use rollout_journal::{Entry, JournalRefused, JournalSettings, JournalStore, ReplicaError};
use rollout_tests::{
    EmbeddedJournal, JournalPlace, TestNats, in_time, log_contract, project_root, rollouts_in, small, until,
};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast;

/// Size of the journals' segments.
const SEGMENT_BYTES: u64 = 64 << 10;

fn settings(nats: &TestNats) -> ClusterSettings {
    ClusterSettings { heartbeat_secs: 0.2, lease_secs: 1.5, log_bytes_max: 512 << 20, ..nats.settings() }
}

/// Connects as soon as the servers have elected a leader.
async fn connect(nats: &TestNats) -> Cluster {
    connect_with(settings(nats)).await
}

async fn connect_with(settings: ClusterSettings) -> Cluster {
    until("the cluster to answer", async || match Cluster::connect(settings.clone()).await {
        Ok(cluster) => Some(cluster),
        Err(ClusterError::Unavailable(_)) => None,
        Err(error) => panic!("{error}"),
    })
    .await
}

fn owner(name: &str) -> WorkerState {
    WorkerState { url: format!("http://{name}.example"), version: "0.1.0".to_owned() }
}

async fn claim(cluster: &Cluster, by: &str) -> ClaimedLog {
    in_time("the claim", cluster.claim(Claim::Own("w1"), &owner(by))).await.unwrap()
}

/// Opens a journal whose records go to a log.
fn open(path: &Path, writer: &LogWriter, journal: &str) -> (JournalStore, Vec<Entry>) {
    let replica = Some(writer.replica(journal));
    JournalStore::open(JournalSettings { replica, ..small(path) }).unwrap()
}

/// Rebuilds all journals of a log below a directory.
async fn rebuild(claimed: &ClaimedLog, root: &Path) -> Result<Vec<PathBuf>, ClusterError> {
    let root = root.to_owned();
    let journals = in_time("the log", claimed.rebuild(SEGMENT_BYTES, move |name| root.join(name))).await?;
    Ok(journals.into_iter().map(|journal| journal.path).collect())
}

/// A journal that every process rebuilds from its log.
struct Replicated {
    cluster: Cluster,
    dir: TempDir,
    processes: usize,
    writer: Option<LogWriter>,
}

impl JournalPlace for Replicated {
    async fn open(&mut self) -> (JournalStore, Vec<Entry>) {
        self.processes += 1;
        let root = self.dir.path().join(self.processes.to_string());
        let claimed = claim(&self.cluster, "a").await;
        rebuild(&claimed, &root).await.unwrap();
        let writer = self.writer.insert(claimed.writer());
        open(&root.join("journal"), writer, "journal")
    }

    async fn close(&mut self) {
        self.writer = None;
    }
}

#[tokio::test]
async fn an_embedded_journal_keeps_the_contract() {
    let dir = tempfile::tempdir().unwrap();
    log_contract(EmbeddedJournal { path: dir.path().join("journal") }).await;
}

#[tokio::test]
async fn a_journal_on_nats_keeps_the_contract() {
    let nats = TestNats::start().await;
    let dir = tempfile::tempdir().unwrap();
    log_contract(Replicated { cluster: connect(&nats).await, dir, processes: 0, writer: None }).await;
}

#[tokio::test]
async fn a_journal_on_a_cluster_of_three_keeps_the_contract() {
    let nats = TestNats::start_cluster().await;
    let dir = tempfile::tempdir().unwrap();
    log_contract(Replicated { cluster: connect(&nats).await, dir, processes: 0, writer: None }).await;
}

#[tokio::test]
async fn rebuilt_journals_equal_the_originals() {
    let nats = TestNats::start().await;
    let dir = tempfile::tempdir().unwrap();
    let cluster = connect(&nats).await;
    let claimed = claim(&cluster, "a").await;
    let writer = claimed.writer();
    let names = ["tenant-a", "tenant-b"];
    let originals = names.map(|name| dir.path().join("originals").join(name));
    let journals: Vec<_> =
        names.iter().zip(&originals).map(|(name, path)| open(path, &writer, name).0).collect();
    let mut live = Vec::new();
    for number in 0..40_usize {
        for journal in &journals {
            let entry = journal.begin(&format!("rollout {}", number % 30)).unwrap();
            for kind in 1..4 {
                // Some are larger than a message, and some fill it exactly or nearly.
                let bytes = if number % 13 == 5 { 500_000 * usize::from(kind) } else { number * 97 };
                let payload = vec![u8::try_from(number).unwrap(); bytes];
                entry.append(kind, vec![Bytes::from(payload)]).unwrap();
                entry.room().await;
            }
            if number % 4 == 0 {
                live.push(entry);
            } else {
                entry.end();
            }
        }
    }
    for journal in &journals {
        in_time("the records to be stored", journal.written()).await.unwrap();
    }
    let numbers: Vec<_> = live.iter().map(Entry::number).collect();
    drop((live, journals, writer));

    let next = claim(&cluster, "b").await;
    assert_eq!((claimed.epoch(), next.epoch()), (1, 2));
    let rebuilt = rebuild(&next, &dir.path().join("rebuilt")).await.unwrap();
    assert_eq!(rebuilt.len(), 2);
    let mut rebuilt_numbers = Vec::new();
    for (original, rebuilt) in originals.iter().zip(&rebuilt) {
        assert_eq!(rebuilt.file_name(), original.file_name());
        assert_eq!(rollouts_in(rebuilt), rollouts_in(original));
        let (_, unfinished) = JournalStore::open(small(rebuilt)).unwrap();
        rebuilt_numbers.extend(unfinished.iter().map(Entry::number));
    }
    rebuilt_numbers.sort_unstable();
    let mut numbers = numbers;
    numbers.sort_unstable();
    assert_eq!(rebuilt_numbers, numbers);
}

#[tokio::test]
async fn the_old_owner_of_a_log_is_fenced_and_nothing_it_appends_is_stored() {
    let nats = TestNats::start().await;
    let dir = tempfile::tempdir().unwrap();
    let cluster = connect(&nats).await;
    let old = claim(&cluster, "a").await;
    let old_writer = old.writer();
    let (old_journal, _) = open(&dir.path().join("old"), &old_writer, "journal");
    let entry = old_journal.begin("a").unwrap();
    entry.admitted().await.unwrap();

    // The old owner is not asked, as if it were stopped, and appends after it wakes.
    let other = connect(&nats).await;
    let new = claim(&other, "b").await;
    let rebuilt = rebuild(&new, &dir.path().join("new")).await.unwrap();
    entry.append(1, vec![Bytes::from_static(b"too late")]).unwrap();
    let why = in_time("the journal to fail", entry.written()).await.unwrap_err();
    assert!(why.is_fenced(), "{why}");
    let fenced = in_time("the notification", old_writer.fenced()).await;
    assert!(matches!(&fenced, ReplicaError::Fenced(why) if why.contains("its epoch is 2")), "{fenced}");
    assert!(in_time("the notification", old_journal.failed()).await.is_fenced());
    assert!(matches!(old_journal.begin("b"), Err(JournalRefused::Failed(_))));

    let new_writer = new.writer();
    let (journal, unfinished) = open(&rebuilt[0], &new_writer, "journal");
    assert!(unfinished[0].read(|_| true).unwrap().events.is_empty());
    unfinished[0].append(2, vec![]).unwrap();
    in_time("the new owner's record", unfinished[0].written()).await.unwrap();
    drop((unfinished, journal, new_writer));
    let third = claim(&other, "c").await;
    let rebuilt = rebuild(&third, &dir.path().join("third")).await.unwrap();
    let events = &rollouts_in(&rebuilt[0])[0].events;
    assert_eq!(events.iter().map(|event| event.kind).collect::<Vec<_>>(), [2]);
}

#[tokio::test]
async fn of_two_that_claim_a_log_at_once_one_owns_it() {
    let nats = TestNats::start().await;
    let (one, other) = (connect(&nats).await, connect(&nats).await);
    let members = one.members().await.unwrap();
    drop(claim(&one, "dead").await);
    let dead = until("the log", async || members.get("w1")).await;
    let (a, b) = (owner("a"), owner("b"));
    let dead = &dead;
    let (a, b) = tokio::join!(one.claim(Claim::Expired(dead), &a), other.claim(Claim::Expired(dead), &b));
    let (won, lost): (Vec<_>, Vec<_>) = [a, b].into_iter().partition(Result::is_ok);
    assert_eq!(won.len(), 1);
    assert_eq!(won[0].as_ref().unwrap().epoch(), 2);
    let lost = lost.into_iter().next().unwrap().err().unwrap();
    assert!(matches!(lost, ClaimError::Lost { .. }), "{lost}");
}

#[tokio::test]
async fn a_kill_of_the_leader_loses_no_acknowledged_record() {
    let nats = TestNats::start_cluster().await;
    let dir = tempfile::tempdir().unwrap();
    let cluster = connect(&nats).await;
    let claimed = claim(&cluster, "a").await;
    let writer = claimed.writer();
    let (journal, _) = open(&dir.path().join("original"), &writer, "journal");
    let entry = journal.begin("long").unwrap();
    let mut acknowledged = 0_u64;
    for kill in 0..2 {
        let mut stream = cluster.jetstream().get_stream("rollout-log").await.unwrap();
        let info = stream.info().await.unwrap();
        let leader = nats.named(info.cluster.as_ref().unwrap().leader.as_ref().unwrap());
        let goal = acknowledged + 20;
        let append = async {
            while acknowledged < goal + 20 {
                entry.append(1, vec![Bytes::copy_from_slice(&acknowledged.to_le_bytes())]).unwrap();
                in_time("an acknowledgement", entry.written()).await.unwrap();
                acknowledged += 1;
            }
        };
        // Killed while records are being appended.
        let killed = async {
            let end = writer.messages() + 10;
            until("records", async || (writer.messages() >= end).then_some(())).await;
            nats.kill(leader).await;
        };
        tokio::join!(append, killed);
        assert!(kill < 2);
        nats.restart(leader).await;
        until("the stream to be whole again", async || {
            let info = stream.info().await.ok()?;
            let cluster = info.cluster.as_ref()?;
            let is_whole = cluster.leader.is_some() && cluster.replicas.iter().all(|replica| replica.current);
            is_whole.then_some(())
        })
        .await;
    }
    drop((entry, journal, writer));
    let next = claim(&cluster, "b").await;
    let rebuilt = rebuild(&next, &dir.path().join("rebuilt")).await.unwrap();
    let events = &rollouts_in(&rebuilt[0])[0].events;
    let numbers: Vec<u64> =
        events.iter().map(|event| u64::from_le_bytes(event.payload[..].try_into().unwrap())).collect();
    assert_eq!(numbers, (0..acknowledged).collect::<Vec<_>>(), "each once, in order");
}

#[tokio::test]
async fn while_nats_is_away_new_rollouts_are_refused_and_running_ones_continue_afterwards() {
    let nats = TestNats::start().await;
    let dir = tempfile::tempdir().unwrap();
    let cluster = connect(&nats).await;
    let claimed = claim(&cluster, "a").await;
    let writer = claimed.writer();
    let (journal, _) = open(&dir.path().join("original"), &writer, "journal");
    let entry = journal.begin("a").unwrap();
    entry.admitted().await.unwrap();
    nats.kill(0).await;
    entry.append(1, vec![]).unwrap();
    let late = until("the journal to refuse rollouts", async || journal.check().err()).await;
    assert!(matches!(late, JournalRefused::Late(age) if age >= Duration::from_secs(2)), "{late}");
    assert!(matches!(journal.begin("b"), Err(JournalRefused::Late(_))));
    let room = entry.room();
    let written = entry.written();
    let back = async { nats.restart(0).await };
    let (written, (), ()) = in_time("the servers", async { tokio::join!(written, room, back) }).await;
    written.unwrap();
    in_time("a new rollout", async { journal.begin("b").unwrap().admitted().await }).await.unwrap();
    drop((entry, journal, writer));

    let next = claim(&cluster, "b").await;
    let rebuilt = rebuild(&next, &dir.path().join("rebuilt")).await.unwrap();
    assert_eq!(rollouts_in(&rebuilt[0]), rollouts_in(&dir.path().join("original")));
}

/// Returns the damage that reading a log reports.
async fn damage(claimed: &ClaimedLog) -> String {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("rebuilt");
    match rebuild(claimed, &root).await {
        Err(ClusterError::Damaged(damage)) => {
            let whole = std::fs::read_dir(&root).into_iter().flatten().filter_map(Result::ok);
            let whole: Vec<_> = whole.filter(|entry| !entry.path().ends_with("journal.rebuilding")).collect();
            assert!(whole.is_empty(), "no directory looks whole: {whole:?}");
            damage.to_string()
        }
        other => panic!("the damage was not found: {other:?}"),
    }
}

/// Appends this number of records, one a message, and returns the number of messages of the log. The begin of the rollout
/// shares the message of the first record, or has one of its own.
async fn append(claimed: &ClaimedLog, records: usize) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let writer = claimed.writer();
    let (journal, _) = open(dir.path(), &writer, "journal");
    let entry = journal.begin("a").unwrap();
    for _ in 0..records {
        entry.append(1, vec![Bytes::from_static(b"a payload that can be found in a file")]).unwrap();
        in_time("a record", entry.written()).await.unwrap();
    }
    let messages = writer.messages();
    assert!((1..=2).contains(&(messages - records as u64)), "{messages} messages");
    messages
}

#[tokio::test]
async fn a_missing_message_and_a_foreign_one_are_damage() {
    let nats = TestNats::start().await;
    let cluster = connect(&nats).await;
    let stored = append(&claim(&cluster, "a").await, 5).await;
    // The configuration denies deletes for ever, so the log is damaged by a message of another program.
    let mut stream = cluster.jetstream().get_stream("rollout-log").await.unwrap();
    let mut config = stream.info().await.unwrap().config.clone();
    let state = stream.info().await.unwrap().state.clone();
    assert_eq!(state.messages, stored, "a fence, and the rollout's begin with its first record or before it");
    config.deny_delete = false;
    let refused = cluster.jetstream().update_stream(config).await;
    assert!(refused.is_err(), "a stream that denies deletes does so for ever");
    let foreign = Bytes::from_static(b"not a message of a log");
    let sent = cluster.jetstream().publish("rollout.log.w1", foreign).await.unwrap();
    let sequence = sent.await.unwrap().sequence;
    let error = cluster.claim(Claim::Own("w1"), &owner("b")).await.err().unwrap().to_string();
    let expected =
        format!("the log 'w1' is damaged at sequence {sequence}: it is too short for a message of a log");
    assert_eq!(error, expected);
}

#[tokio::test]
async fn a_log_that_was_lost_is_damage_and_never_empty() {
    let nats = TestNats::start().await;
    let cluster = connect(&nats).await;
    append(&claim(&cluster, "a").await, 3).await;
    cluster.jetstream().delete_stream("rollout-log").await.unwrap();
    // The next process finds no stream and creates it.
    let cluster = connect(&nats).await;
    let error = cluster.claim(Claim::Own("w1"), &owner("b")).await.err().unwrap().to_string();
    assert_eq!(error, "the log 'w1' is damaged at its subject: it has no messages, although it had some");
}

#[tokio::test]
async fn a_log_that_ends_before_an_acknowledged_message_is_damage() {
    let nats = TestNats::start().await;
    let cluster = connect(&nats).await;
    let claimed = claim(&cluster, "a").await;
    let beats = claimed.announce();
    let stored = append(&claimed, 5).await;
    let bucket = cluster.jetstream().get_key_value("rollout-workers").await.unwrap();
    until("a heartbeat with the last message", async || {
        let entry = bucket.get("w1").await.unwrap().unwrap();
        let entry: serde_json::Value = serde_json::from_slice(&entry).unwrap();
        (entry["acknowledged"] == stored).then_some(())
    })
    .await;
    drop(beats);
    // The servers come back with a part of the log, as from an older copy of their disks.
    let stream = cluster.jetstream().get_stream("rollout-log").await.unwrap();
    let mut older = Vec::new();
    for sequence in 1..=stored - 2 {
        older.push(stream.get_raw_message(sequence).await.unwrap().payload);
    }
    cluster.jetstream().delete_stream("rollout-log").await.unwrap();
    let cluster = connect(&nats).await;
    for message in older {
        cluster.jetstream().publish("rollout.log.w1", message).await.unwrap().await.unwrap();
    }
    let error = cluster.claim(Claim::Own("w1"), &owner("b")).await.err().unwrap().to_string();
    let expected = format!(
        "the log 'w1' is damaged at sequence {}: it ends with number {}, and number {stored} was acknowledged; the servers \
         lost the rest",
        stored - 2,
        stored - 2
    );
    assert_eq!(error, expected);
}

#[tokio::test]
async fn an_older_end_of_the_log_is_waited_out() {
    let nats = TestNats::start().await;
    let cluster = connect(&nats).await;
    let claimed = claim(&cluster, "a").await;
    let writer = claimed.writer();
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = open(dir.path(), &writer, "journal");
    let entry = journal.begin("a").unwrap();
    entry.append(1, vec![]).unwrap();
    in_time("a record", entry.written()).await.unwrap();
    // Messages of the log disappear, and come back after the next append was refused, as with a server that was elected
    // before it had all of them.
    let stored = writer.messages();
    let stream = cluster.jetstream().get_stream("rollout-log").await.unwrap();
    let mut messages = Vec::new();
    for sequence in 1..=stored {
        messages.push(stream.get_raw_message(sequence).await.unwrap().payload);
    }
    cluster.jetstream().delete_stream("rollout-log").await.unwrap();
    let other = connect(&nats).await;
    let last = messages.pop().unwrap();
    for message in messages {
        other.jetstream().publish("rollout.log.w1", message).await.unwrap().await.unwrap();
    }
    entry.append(1, vec![]).unwrap();
    let written = entry.written();
    let refused = async {
        until("the log to be late", async || journal.check().err()).await;
        other.jetstream().publish("rollout.log.w1", last).await.unwrap().await.unwrap();
    };
    let (written, ()) = in_time("the record", async { tokio::join!(written, refused) }).await;
    written.unwrap();
    assert_eq!(writer.messages(), stored + 1);
}

#[tokio::test]
async fn the_end_of_a_process_leaves_its_log_to_others() {
    let nats = TestNats::start().await;
    let cluster = connect(&nats).await;
    let members = cluster.members().await.unwrap();
    for epoch in 1..=20 {
        // Heartbeats end with their process, at any time, and no order to remove the log was given.
        let process = connect(&nats).await;
        let claimed = claim(&process, "a").await;
        assert_eq!(claimed.epoch(), epoch);
        let beats = claimed.announce();
        if epoch % 2 == 0 {
            until("a heartbeat", async || members.get("w1").filter(|member| member.epoch == epoch)).await;
        }
        drop((beats, claimed, process));
    }
    let expired = until("the lease to expire", async || members.expired().into_iter().next()).await;
    assert_eq!((&expired.log[..], expired.epoch), ("w1", 20));
}

#[tokio::test]
async fn a_hole_and_a_flipped_bit_are_found() {
    let nats = TestNats::start().await;
    let cluster = connect(&nats).await;
    // Written by a process whose stream could be changed.
    append(&claim(&cluster, "a").await, 5).await;
    let copy = |sequence: u64, change: fn(&mut Vec<u8>)| {
        let stream = cluster.jetstream().clone();
        async move {
            let stream = stream.get_stream("rollout-log").await.unwrap();
            let mut payload = stream.get_raw_message(sequence).await.unwrap().payload.to_vec();
            change(&mut payload);
            Bytes::from(payload)
        }
    };
    // Other logs are made of the messages of the first one, as a damaged store would return them.
    let publish = async |log: &str, message: Bytes| {
        let subject = format!("rollout.log.{log}");
        cluster.jetstream().publish(subject, message).await.unwrap().await.unwrap().sequence
    };
    for sequence in [1, 2, 4, 5] {
        publish("hole", copy(sequence, |_| {}).await).await;
    }
    let hole = cluster.claim(Claim::Own("hole"), &owner("b")).await.unwrap();
    let found = damage(&hole).await;
    assert!(found.ends_with("its number is 4 and the previous one is 2"), "{found}");

    publish("bit", copy(1, |_| {}).await).await;
    publish("bit", copy(2, |bytes| bytes[60] ^= 4).await).await;
    publish("bit", copy(3, |_| {}).await).await;
    let bit = cluster.claim(Claim::Own("bit"), &owner("b")).await.unwrap();
    let found = damage(&bit).await;
    assert!(found.ends_with("its checksum is wrong"), "{found}");
    assert!(found.starts_with("the log 'bit' is damaged at sequence "), "{found}");

    // The first messages are missing and were not old enough to be dropped.
    publish("young", copy(3, |_| {}).await).await;
    let young = cluster.claim(Claim::Own("young"), &owner("b")).await.unwrap();
    let found = damage(&young).await;
    assert!(found.contains("it is the first one and has number 3"), "{found}");
}

#[tokio::test]
async fn heartbeats_keep_a_log_and_the_log_of_a_dead_worker_is_claimed() {
    let nats = TestNats::start().await;
    let cluster = connect(&nats).await;
    let (alive, dead) = (connect(&nats).await, connect(&nats).await);
    let mut members = cluster.members().await.unwrap();
    assert!(members.list().is_empty());
    let claimed = alive.claim(Claim::Own("alive"), &owner("alive")).await.unwrap();
    let beats = claimed.announce();
    let dead_claim = dead.claim(Claim::Own("dead"), &owner("dead")).await.unwrap();
    let writer = dead_claim.writer();
    let dead_beats = dead_claim.announce();
    in_time("the owners", async {
        while members.list().len() < 2 {
            members.changed().await;
        }
    })
    .await;
    assert_eq!(members.get("alive").unwrap().owner, owner("alive"));
    assert!(members.is_reachable());
    drop(dead_beats);
    let expired = until("the lease to expire", async || members.expired().into_iter().next()).await;
    assert_eq!((&expired.log[..], expired.epoch), ("dead", 1));
    let claimed = cluster.claim(Claim::Expired(&expired), &owner("heir")).await.unwrap();
    assert_eq!(claimed.epoch(), 2);
    let again = cluster.claim(Claim::Expired(&expired), &owner("late")).await.err().unwrap();
    assert_eq!(again.to_string(), "the log 'dead' belongs to http://heir.example");
    drop(writer);
    // The living one kept its log all the time.
    assert_eq!(members.get("alive").unwrap().epoch, 1);
    assert!(members.expired().iter().all(|member| member.log != "alive"));

    in_time("the end of the log", beats.retire()).await.unwrap();
    until("the log to be removed", async || members.get("alive").is_none().then_some(())).await;
}

#[tokio::test]
async fn an_owner_whose_log_is_claimed_is_notified_by_its_heartbeat() {
    let nats = TestNats::start().await;
    let (one, other) = (connect(&nats).await, connect(&nats).await);
    let claimed = claim(&one, "a").await;
    let writer = claimed.writer();
    let _beats = claimed.announce();
    let claimed = claim(&other, "b").await;
    assert_eq!(claimed.epoch(), 2);
    let why = in_time("the notification", writer.fenced()).await;
    assert_eq!(
        why.to_string(),
        "another process has taken the journal's log over: it belongs to http://b.example in epoch 2"
    );
}

#[tokio::test]
async fn a_process_claims_the_log_with_its_own_name_despite_heartbeats_of_the_one_before() {
    let nats = TestNats::start().await;
    let cluster = connect_with(ClusterSettings { heartbeat_secs: 0.05, ..settings(&nats) }).await;
    let mut owners = Vec::new();
    for epoch in 1..=10 {
        let claimed = claim(&cluster, "a").await;
        assert_eq!(claimed.epoch(), epoch);
        let beats = claimed.announce();
        owners.push((claimed.writer(), beats));
    }
    let (last, _beats) = owners.pop().unwrap();
    for (writer, _) in &owners {
        in_time("the notification", writer.fenced()).await;
    }
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = open(dir.path(), &last, "journal");
    in_time("the last owner's record", journal.begin("a").unwrap().admitted()).await.unwrap();
}

#[tokio::test]
async fn no_log_is_lost_because_nats_was_away() {
    let nats = TestNats::start().await;
    let cluster = connect(&nats).await;
    let members = cluster.members().await.unwrap();
    let claimed = claim(&cluster, "a").await;
    let _beats = claimed.announce();
    until("the log", async || members.get("w1")).await;
    nats.kill(0).await;
    until("the outage to be noticed", async || (!members.is_reachable()).then_some(())).await;
    assert!(members.expired().is_empty());
    nats.restart(0).await;
    let before = members.get("w1").unwrap();
    until("the next heartbeat", async || {
        assert!(members.expired().is_empty(), "the lease did not run while NATS was away");
        (members.get("w1").unwrap() != before).then_some(())
    })
    .await;
    assert!(members.is_reachable());
}

#[tokio::test]
async fn a_full_log_refuses_rollouts_and_nothing_is_dropped_for_it() {
    let nats = TestNats::start().await;
    let dir = tempfile::tempdir().unwrap();
    let cluster = connect_with(ClusterSettings { log_bytes_max: 2 << 20, ..settings(&nats) }).await;
    let claimed = claim(&cluster, "a").await;
    let writer = claimed.writer();
    let (journal, _) = open(&dir.path().join("original"), &writer, "journal");
    let entry = journal.begin("a").unwrap();
    let mut stored = 0;
    let late = loop {
        entry.append(1, vec![Bytes::from(vec![1; 300_000])]).unwrap();
        tokio::select! {
            written = entry.written() => written.unwrap(),
            late = until("the log to be full", async || journal.check().err()) => break late,
        }
        stored += 1;
    };
    assert!(matches!(late, JournalRefused::Late(_)), "{late}");
    assert!((4..7).contains(&stored), "{stored} records of 300 kB are in 2 MiB");
    let mut stream = cluster.jetstream().get_stream("rollout-log").await.unwrap();
    assert_eq!(stream.info().await.unwrap().state.first_sequence, 1);
}

#[tokio::test]
async fn a_stream_that_differs_from_the_settings_is_refused_and_not_changed() {
    let nats = TestNats::start().await;
    drop(connect(&nats).await);
    let other = ClusterSettings { log_age_secs: 3600, ..settings(&nats) };
    let error = Cluster::connect(other).await.err().unwrap().to_string();
    assert_eq!(
        error,
        "the stream rollout-log differs from the configuration: max_age is 86400 s and should be 3600 s. Change the \
         configuration of all processes, or edit it with the tool nats"
    );
    drop(connect(&nats).await);
}

#[tokio::test]
async fn the_check_of_nats_says_what_is_wrong_and_what_to_do() {
    let of =
        |findings: &[Finding], name: &str| findings.iter().find(|finding| finding.check == name).cloned();
    let nats = TestNats::start().await;
    let accepted = settings(&nats);
    let refused = ClusterSettings { accept_weak_durability: false, ..settings(&nats) };
    let findings = check(&refused).await;
    let durability = of(&findings, "nats durability").unwrap();
    assert_eq!(durability.severity, Severity::Failure);
    assert!(durability.advice.unwrap().contains("servers-sync-always = true"));
    assert!(of(&findings, "nats connection").unwrap().finding.contains("version 2.15.1"));
    assert_eq!(of(&findings, "nats stream").unwrap().severity, Severity::Good);
    assert_eq!(of(&findings, "nats bucket").unwrap().severity, Severity::Good);

    let error = Cluster::connect(refused).await.err().unwrap().to_string();
    assert!(error.starts_with("cluster.nats.replicas: 1 replica without `sync_interval: always`"), "{error}");
    let findings = check(&accepted).await;
    assert_eq!(of(&findings, "nats durability").unwrap().severity, Severity::Warning);
    for what in ["nats log replicas", "nats bucket replicas", "nats catalog", "nats components"] {
        assert_eq!(of(&findings, what).unwrap().severity, Severity::Good, "{findings:#?}");
    }
    let wrong = ClusterSettings { replicas: 3, ..settings(&nats) };
    let finding = of(&check(&wrong).await, "nats stream").unwrap();
    assert_eq!(finding.severity, Severity::Failure);
    assert!(finding.finding.contains("replicas is 1 and should be 3"), "{}", finding.finding);
    nats.kill(0).await;
    let finding = of(&check(&accepted).await, "nats connection").unwrap();
    assert_eq!(finding.severity, Severity::Failure);
    assert!(finding.advice.unwrap().contains("cluster.nats.urls"));
}

#[tokio::test]
async fn servers_that_ask_for_credentials_refuse_a_process_without_and_take_one_with_them() {
    let users = "authorization { users: [ {user: host, password: 'abc'} ] }";
    let nats = TestNats::start_configured(users).await;
    let error = Cluster::connect(settings(&nats)).await.err().unwrap().to_string();
    assert!(error.starts_with("NATS cannot be used: cannot connect to nats://127.0.0.1:"), "{error}");
    assert!(error.contains("authorization violation"), "{error}");
    let dir = tempfile::tempdir().unwrap();
    let password = dir.path().join("password");
    std::fs::write(&password, "abc\n").unwrap();
    let of_user =
        ClusterSettings { user: Some("host".to_owned()), password_file: Some(password), ..settings(&nats) };
    Cluster::connect(of_user).await.unwrap();

    let accounts =
        std::fs::read_to_string(project_root().join("tests/certificates/nats-accounts.conf")).unwrap();
    let nats = TestNats::start_configured(&accounts).await;
    let credentials = Some(project_root().join("tests/certificates/nats.creds"));
    assert!(Cluster::connect(settings(&nats)).await.is_err());
    let cluster = Cluster::connect(ClusterSettings { credentials, ..settings(&nats) }).await.unwrap();
    claim(&cluster, "a").await;
    let missing = ClusterSettings { credentials: Some("missing.creds".into()), ..settings(&nats) };
    let error = Cluster::connect(missing).await.err().unwrap().to_string();
    assert_eq!(error, "the NATS credentials in missing.creds cannot be used");
}

#[tokio::test]
async fn a_connection_with_tls_is_checked_by_both_sides() {
    let certificates = project_root().join("tests/certificates");
    let file = |name: &str| certificates.join(name);
    let tls = format!(
        "tls {{ cert_file: '{}', key_file: '{}', ca_file: '{}', verify: true }}",
        file("server.pem").display(),
        file("server.key").display(),
        file("client.pem").display()
    );
    let nats = TestNats::start_configured(&tls).await;
    let with = |ca: Option<PathBuf>, client: bool| ClusterSettings {
        urls: nats.urls().iter().map(|url| url.replace("nats://", "tls://")).collect(),
        ca_certificates: ca,
        client_certificate: client.then(|| file("client.pem")),
        client_key: client.then(|| file("client.key")),
        ..settings(&nats)
    };
    Cluster::connect(with(Some(file("ca.pem")), true)).await.unwrap();
    for wrong in [with(None, true), with(Some(file("ca.pem")), false)] {
        let error = Cluster::connect(wrong).await.err().unwrap();
        assert!(matches!(error, ClusterError::Unavailable(_)), "{error}");
    }
}

/// A connection to a server whose answers can be lost.
struct LossyProxy {
    port: u16,
    loses: Arc<AtomicBool>,
    /// Breaks all connections.
    breaks: broadcast::Sender<()>,
}

impl LossyProxy {
    async fn start(to: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (loses, breaks) = (Arc::new(AtomicBool::new(false)), broadcast::Sender::new(1));
        let (loses_too, breaks_too) = (loses.clone(), breaks.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&to).await.unwrap();
                let (mut broken, loses) = (breaks_too.subscribe(), loses_too.clone());
                // Without answers, a client could not connect again.
                let is_new = loses.load(Ordering::SeqCst);
                tokio::spawn(async move {
                    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
                        (client.into_split(), server.into_split());
                    let answers = async {
                        let mut buffer = vec![0; 64 << 10];
                        while let Ok(bytes @ 1..) = from_server.read(&mut buffer).await {
                            if (is_new || !loses.load(Ordering::SeqCst))
                                && to_client.write_all(&buffer[..bytes]).await.is_err()
                            {
                                break;
                            }
                        }
                    };
                    tokio::select! {
                        () = answers => {}
                        _ = tokio::io::copy(&mut from_client, &mut to_server) => {}
                        _ = broken.recv() => {}
                    }
                });
            }
        });
        Self { port, loses, breaks }
    }
}

#[tokio::test]
async fn a_message_whose_acknowledgement_was_lost_is_stored_once() {
    let nats = TestNats::start().await;
    let direct = connect(&nats).await;
    let proxy = LossyProxy::start(nats.urls()[0].replace("nats://", "")).await;
    let urls = vec![format!("nats://127.0.0.1:{}", proxy.port)];
    let cluster = connect_with(ClusterSettings { urls, ..settings(&nats) }).await;
    let claimed = claim(&cluster, "a").await;
    let writer = claimed.writer();
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = open(&dir.path().join("original"), &writer, "journal");
    let entry = journal.begin("a").unwrap();
    entry.admitted().await.unwrap();
    let mut stream = direct.jetstream().get_stream("rollout-log").await.unwrap();
    for loss in 0..3 {
        // The rollout's begin may have a message of its own, or two with its admission.
        let before = writer.messages();
        proxy.loses.store(true, Ordering::SeqCst);
        entry.append(1, vec![Bytes::from(vec![loss; 10])]).unwrap();
        let written = entry.written();
        let lost = async {
            until("the message to be stored", async || {
                (stream.info().await.ok()?.state.messages > before).then_some(())
            })
            .await;
            proxy.loses.store(false, Ordering::SeqCst);
            proxy.breaks.send(()).unwrap();
        };
        let (written, ()) = in_time("the record", async { tokio::join!(written, lost) }).await;
        written.unwrap();
        assert_eq!(writer.messages(), before + 1, "the record is in one message");
    }
    assert_eq!(stream.info().await.unwrap().state.messages, writer.messages(), "none was stored twice");
    drop((entry, journal, writer));
    let next = claim(&direct, "b").await;
    let rebuilt = rebuild(&next, &dir.path().join("rebuilt")).await.unwrap();
    assert_eq!(rollouts_in(&rebuilt[0]), rollouts_in(&dir.path().join("original")));
}

#[tokio::test]
async fn records_of_live_rollouts_outlive_the_age_of_the_log_and_an_idle_log_is_not_empty() {
    let nats = TestNats::start().await;
    let cluster = connect_with(ClusterSettings { log_age_secs: 10, ..settings(&nats) }).await;
    let dir = tempfile::tempdir().unwrap();
    let claimed = claim(&cluster, "a").await;
    let idle = cluster.claim(Claim::Own("idle"), &owner("a")).await.unwrap();
    let (writer, idle_writer) = (claimed.writer(), idle.writer());
    let (journal, _) = open(&dir.path().join("original"), &writer, "journal");
    let live = journal.begin("live").unwrap();
    live.append(1, vec![Bytes::from(vec![1; 1_000_000])]).unwrap();
    let ended = journal.begin("ended").unwrap();
    ended.end();
    in_time("the records", journal.written()).await.unwrap();
    let last = claimed_messages(&cluster).await;
    // Everything that was written so far is dropped.
    until("the first records to be dropped", async || {
        let mut stream = cluster.jetstream().get_stream("rollout-log").await.ok()?;
        (stream.info().await.ok()?.state.first_sequence > last).then_some(())
    })
    .await;
    live.append(2, vec![]).unwrap();
    in_time("the last record", live.written()).await.unwrap();
    let written = live.read(|_| true).unwrap();
    drop((live, ended, journal, writer, idle_writer));

    let next = claim(&cluster, "b").await;
    let rebuilt = rebuild(&next, &dir.path().join("rebuilt")).await.unwrap();
    let (_journal, unfinished) = JournalStore::open(small(&rebuilt[0])).unwrap();
    assert_eq!(unfinished.len(), 1);
    assert_eq!(unfinished[0].read(|_| true).unwrap(), written);
    let idle = cluster.claim(Claim::Own("idle"), &owner("b")).await.unwrap();
    assert_eq!(rebuild(&idle, dir.path()).await.unwrap(), Vec::<PathBuf>::new());
}

/// Returns the number of messages that the stream has ever had.
async fn claimed_messages(cluster: &Cluster) -> u64 {
    let mut stream = cluster.jetstream().get_stream("rollout-log").await.unwrap();
    stream.info().await.unwrap().state.last_sequence
}

#[tokio::test]
async fn a_kill_of_all_servers_loses_no_acknowledged_record() {
    let nats = TestNats::start_cluster().await;
    let dir = tempfile::tempdir().unwrap();
    let cluster = connect(&nats).await;
    let claimed = claim(&cluster, "a").await;
    let writer = claimed.writer();
    let (journal, _) = open(&dir.path().join("original"), &writer, "journal");
    let rollouts = async {
        let mut stored = Vec::new();
        for number in 0..200_u32 {
            // Some are refused while the servers are away, as a caller would see.
            let entry = until("the journal to take a rollout", async || {
                journal.begin(&format!("rollout {number}")).ok()
            })
            .await;
            entry.append(1, vec![Bytes::from(vec![1; 3000])]).unwrap();
            in_time("the admission", entry.admitted()).await.unwrap();
            entry.end();
            stored.push(format!("rollout {number}"));
        }
        in_time("the last records", journal.written()).await.unwrap();
        stored
    };
    let kills = async {
        for messages in [30, 90] {
            until("records", async || (writer.messages() >= messages).then_some(())).await;
            nats.kill_all().await;
            nats.restart_all().await;
        }
    };
    let (stored, ()) = tokio::join!(rollouts, kills);
    drop((journal, writer));
    let next = claim(&cluster, "b").await;
    let rebuilt = rebuild(&next, &dir.path().join("rebuilt")).await.unwrap();
    let rebuilt = rollouts_in(&rebuilt[0]);
    let names: Vec<_> =
        rebuilt.iter().map(|rollout| String::from_utf8_lossy(&rollout.name).into_owned()).collect();
    assert_eq!(names, stored);
    assert!(rebuilt.iter().all(|rollout| rollout.ended && rollout.events.len() == 1));
}

#[tokio::test]
async fn reading_of_a_log_continues_after_the_connection_was_lost() {
    let nats = TestNats::start().await;
    let proxy = LossyProxy::start(nats.urls()[0].replace("nats://", "")).await;
    let urls = vec![format!("nats://127.0.0.1:{}", proxy.port)];
    let cluster = connect_with(ClusterSettings { urls, ..settings(&nats) }).await;
    let dir = tempfile::tempdir().unwrap();
    let original = dir.path().join("original");
    let writer = claim(&cluster, "a").await.writer();
    let (journal, _) = open(&original, &writer, "journal");
    let entry = journal.begin("a").unwrap();
    for number in 0..200 {
        entry.append(1, vec![Bytes::from(vec![number; 500_000])]).unwrap();
        in_time("room", entry.room()).await;
    }
    in_time("the records", entry.written()).await.unwrap();
    drop((entry, journal, writer));

    let next = claim(&cluster, "b").await;
    let root = dir.path().join("rebuilt");
    let begun = root.join("journal.rebuilding/00000000000000000003.seg");
    let interrupt = async {
        until("the first segments", async || begun.exists().then_some(())).await;
        proxy.loses.store(true, Ordering::SeqCst);
        proxy.breaks.send(()).unwrap();
        proxy.loses.store(false, Ordering::SeqCst);
    };
    let (rebuilt, ()) = tokio::join!(rebuild(&next, &root), interrupt);
    let connects = cluster.jetstream().client().statistics().connects.load(Ordering::SeqCst);
    assert!(connects > 1, "the connection was lost while the log was read");
    assert_eq!(rollouts_in(&rebuilt.unwrap()[0]), rollouts_in(&original));
}
