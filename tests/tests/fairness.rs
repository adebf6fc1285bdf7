//! Tests of the cost of CPU-bound guests to other guests.

use std::time::{Duration, Instant};

use rollout_tests::{Admitted, Answer, Controller, TestHost, until};

/// Number of a host's slots. Filling them is a matter of a moment.
const SLOTS: usize = 64;

/// Number of slots that guests use one after another.
const CONTESTED: usize = 32;

async fn spin(host: &TestHost, controller: &Controller, count: usize) -> Vec<Admitted> {
    let mut spinning = Vec::new();
    for _ in 0..count {
        spinning.push(host.admit(&controller.rollout("misbehave")).await);
    }
    spinning
}

#[tokio::test]
async fn guests_stopped_during_a_computation_free_their_slots() {
    let controller = Controller::start().await;
    let host = TestHost::of("spin").option("--max-concurrent", SLOTS).start().await;
    // These guests occupy the busy threads, so that others wait long for their turns.
    let spinning = spin(&host, &controller, SLOTS - CONTESTED).await;
    let mut stopped = Vec::new();
    for _ in 0..CONTESTED {
        stopped.push(host.admit(&controller.rollout("misbehave").agent_secs(0.5)).await);
    }
    let mut neighbours = Vec::new();
    for _ in 0..3 * CONTESTED {
        controller.answer_chats([Answer::Say("#### 5")]);
        neighbours.push(host.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await);
    }

    for neighbour in &neighbours {
        let result = host.result(neighbour).await;
        assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
    }
    for stopped in &stopped {
        let result = host.result(stopped).await;
        assert_eq!(
            (&result["status"], &result["err_category"]),
            (&"failure".into(), &"timeout".into()),
            "{result:#}"
        );
    }
    for spinner in &spinning {
        assert_eq!(host.cancel(&spinner.id).await, "cancelled_running");
    }
    host.idle().await;
}

/// Returns the median latency of the health report while guests misbehave.
async fn health_latency(guest: &str, count: usize) -> Duration {
    const UNMEASURED: usize = 100;
    const MEASURED: usize = 300;
    // Long enough for every guest to have run several times.
    const MEASURED_FOR: Duration = Duration::from_secs(4);
    let controller = Controller::start().await;
    let host = TestHost::start(guest).await;
    let guests = spin(&host, &controller, count).await;
    until("the guests at work", async || {
        (host.health().await["concurrency"]["running"] == count).then_some(())
    })
    .await;
    let began = Instant::now();
    let mut times = Vec::new();
    while times.len() < UNMEASURED + MEASURED || began.elapsed() < MEASURED_FOR {
        let started = Instant::now();
        host.health().await;
        times.push(started.elapsed());
    }
    times.drain(..UNMEASURED);
    for guest in &guests {
        host.cancel(&guest.id).await;
    }
    times.sort();
    times[times.len() / 2]
}

/// Checks that guests that evade the rule for spinning guests cost others no more than spinning ones.
async fn check_as_cheap_as_spinning(guest: &str, count: usize) {
    // On a busy machine the measurements vary by as much.
    const RATIO_MAX: u32 = 6;
    const LEAST: Duration = Duration::from_millis(2);
    let spinning = health_latency("spin", count).await;

    let slipping = health_latency(guest, count).await;

    println!("/health with {count}: spinning {spinning:?}, {guest} {slipping:?}");
    assert!(slipping < spinning.max(LEAST) * RATIO_MAX, "spinning {spinning:?}, {guest} {slipping:?}");
}

#[tokio::test]
async fn guests_that_compute_in_short_bursts_delay_no_connection() {
    check_as_cheap_as_spinning("busy_stints", 128).await;
}

#[tokio::test]
async fn guests_that_make_the_host_work_delay_no_connection() {
    check_as_cheap_as_spinning("busy_logs", 16).await;
}
