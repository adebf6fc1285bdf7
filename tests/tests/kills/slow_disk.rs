//! Tests that a slow disk loses no answers.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rollout_tests::{OracleRequest, Serve};
use tokio::task::JoinSet;

use super::{ALONE, Random, Trainer, check_log, check_results, from_env, long_way, until_free};

/// Number of kills, unless `ROLLOUT_TEST_SLOW_KILLS` sets it.
const KILLS: u64 = 10;

/// Number of rollouts in flight: few, so that the disk is the bottleneck.
const IN_FLIGHT: usize = 24;

/// Number of turns of a rollout, which take about a second.
const TURNS: u64 = 30;

/// Minimum lifetime of a server, and maximum random addition: a few syncs.
const LIFE: [Duration; 2] = [Duration::from_millis(500), Duration::from_millis(700)];

/// The age of answers before a kill from which no call is repeated. On a busy machine some are: the server may read an
/// answer late, or its journal's writer may wait for a core. So up to half of them may be, unless
/// `ROLLOUT_TEST_SLOW_KILLS` is set.
const KEPT_AFTER: Duration = Duration::from_millis(50);

/// Source of a library that delays every sync of a process by 300 ms.
const SLOW_SYNC: &str = r"
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void wait_for_the_disk(void) {
    struct timespec left = {0, 300 * 1000 * 1000};
    while (nanosleep(&left, &left) != 0) {}
}
int fdatasync(int fd) { wait_for_the_disk(); return syscall(SYS_fdatasync, fd); }
int fsync(int fd) { wait_for_the_disk(); return syscall(SYS_fsync, fd); }
";

/// Compiles the library with the C compiler that the host itself needs.
fn slow_sync(dir: &Path) -> PathBuf {
    let (source, library) = (dir.join("slow_sync.c"), dir.join("slow_sync.so"));
    std::fs::write(&source, SLOW_SYNC).unwrap();
    let compiled =
        Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source).status();
    assert!(compiled.expect("there is a C compiler").success());
    library
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_sync_loses_no_answers() {
    let _alone = ALONE.lock().await;
    let mut random = Random::of_env();
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("journal");
    let library = slow_sync(dir.path());
    let trainer = Trainer::start().await;
    let serve = long_way(&trainer.oracle.url(), &journal).variable("LD_PRELOAD", library.to_str().unwrap());
    let mut workers = JoinSet::new();
    for _ in 0..IN_FLIGHT {
        workers.spawn(keep_busy(trainer.clone()));
    }
    for _ in 0..from_env("ROLLOUT_TEST_SLOW_KILLS").unwrap_or(KILLS) {
        let life = LIFE[0] + random.time_below(LIFE[1]);
        live_and_die(&trainer, &serve, &journal, life).await;
        while let Some(worker) = workers.try_join_next() {
            worker.expect("a worker continues");
        }
    }
    let host = serve.clone().start().await;
    trainer.server.send_replace(Some(host.url().to_owned()));
    trainer.stops.store(true, Ordering::Relaxed);
    while let Some(worker) = workers.join_next().await {
        worker.expect("a worker ends");
    }
    check_log(&host.stop().await.stderr);
    check_results(&trainer, IN_FLIGHT / 3);
    check_ages(&trainer);
}

/// Runs rollouts, one after the other, until the trainer stops.
async fn keep_busy(trainer: Arc<Trainer>) {
    while !trainer.stops.load(Ordering::Relaxed) {
        let number = trainer.next.fetch_add(1, Ordering::Relaxed);
        let (id, is_polled) = (format!("k{number}"), number.is_multiple_of(2));
        let is_known = trainer.admit(&id, &format!("{TURNS} steady {id}"), is_polled).await;
        // The lease of a polled rollout may be lost with the answer to its admission.
        if is_known || !is_polled {
            trainer.end(&id, is_polled).await;
        }
    }
}

async fn live_and_die(trainer: &Trainer, serve: &Serve, journal: &Path, life: Duration) {
    let host = serve.clone().start().await;
    trainer.server.send_replace(Some(host.url().to_owned()));
    tokio::time::sleep(life).await;
    trainer.server.send_replace(None);
    let begins = Instant::now();
    let ran = host.kill().await;
    trainer.ledger().killed(begins);
    check_log(&ran.stderr);
    for line in ran.stderr.lines().filter(|line| line.contains("took long")) {
        println!("{line}");
    }
    until_free(journal).await;
}

/// Checks that most of the repeated calls were answered shortly before the kill.
fn check_ages(trainer: &Trainer) {
    let (requests, ledger) = (trainer.oracle.requests(), trainer.ledger());
    let mut calls: HashMap<(&str, &str), Vec<&OracleRequest>> = HashMap::new();
    // A rollout whose admission was lost may have ended before it was requested again, and ran twice.
    let runs_once = |one: &&OracleRequest| {
        let id = one.path.strip_prefix("/rollouts/").and_then(|rest| rest.split('/').next());
        id.is_some_and(|id| !ledger.asked_again.contains(id))
    };
    for one in requests.iter().filter(runs_once) {
        calls.entry((&one.path, &one.messages)).or_default().push(one);
    }
    let mut ages = Vec::new();
    for pair in calls.values().flat_map(|of_one| of_one.windows(2)) {
        let [before, after] = pair else { continue };
        let Some(answered) = before.answered else { continue };
        // The model may have answered a dead server.
        let Some(kill) = ledger.kills.iter().find(|kill| kill.age_of(before.at).is_some()) else { continue };
        let Some(age) = kill.age_of(answered).filter(|_| kill.age_of(after.at).is_none()) else { continue };
        ages.push(age);
    }
    ages.sort_unstable();
    let strictly = ages.iter().filter(|age| **age > KEPT_AFTER).count();
    println!(
        "{} calls, {} answered ones made again, {strictly} of them answered more than {KEPT_AFTER:?} before a kill; \
         the oldest {:?}",
        requests.len(),
        ages.len(),
        ages.last()
    );
    assert!(!ages.is_empty(), "no call was repeated, of {}", requests.len());
    // A run with a set number of kills has the machine to itself, and there none may be older.
    let strictly_max = if from_env("ROLLOUT_TEST_SLOW_KILLS").is_some() {
        0
    } else {
        // If syncs block the writer, most are at least that old: 153 of 219.
        ages.len().saturating_sub(1) / 2
    };
    assert!(strictly <= strictly_max, "answered long before a kill, and repeated: {ages:?}");
}
