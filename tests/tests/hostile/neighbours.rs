//! Tests of the effects of hostile guests on the host and on other rollouts.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rollout_tests::{Answer, RolloutRequest, in_time};

use super::*;

/// The resources of a process.
#[derive(Clone, Copy, Debug)]
struct Footprint {
    mappings: usize,
    descriptors: usize,
    resident_kib: usize,
}

fn footprint(host: &TestHost) -> Footprint {
    let dir = PathBuf::from(format!("/proc/{}", host.process().id().expect("it runs")));
    let read = |name: &str| std::fs::read_to_string(dir.join(name)).expect("this is a Linux");
    let status = read("status");
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let resident = resident.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    Footprint {
        mappings: read("maps").lines().count(),
        descriptors: std::fs::read_dir(dir.join("fd")).expect("it is there").count(),
        resident_kib: resident.expect("a process has memory"),
    }
}

/// Runs many concurrent rollouts with every kind of misuse, and cancels some.
async fn onslaught(host: &TestHost, controller: &Controller, count: usize) {
    const TEXTS: [&str; 14] = [
        "Calculate 2 + 3.",
        "handle: forgotten chat calls",
        "handle: forgotten tool calls",
        "handle: forgotten samples",
        "handle: made up",
        "handle: dropped twice",
        "large: message",
        "large: artifact",
        "large: line",
        "many: waits",
        "no json: anywhere",
        "no text: message",
        "other: trap",
        "other: exit",
    ];
    let rollouts: Vec<RolloutRequest> = (0..count)
        .map(|number| match number % 20 {
            19 => controller.rollout("other: spin when dropped"),
            _ => controller.rollout(TEXTS[number % TEXTS.len()]),
        })
        .collect();
    for some in rollouts.chunks(40) {
        let mut admitted = Vec::new();
        for request in some {
            admitted.push(host.admit(&request.clone().label("5")).await);
        }
        for rollout in admitted.iter().step_by(7) {
            host.cancel(&rollout.id).await;
        }
        for rollout in &admitted {
            host.result(rollout).await;
        }
    }
    host.idle().await;
}

#[tokio::test]
async fn hundreds_of_hostile_rollouts_leave_nothing_behind() {
    let controller = Controller::start().await;
    let lines = "[limits]\nguest-cpu-secs-max = 0.1\n[osmosis]\nresult-ttl-secs = 10\n";
    let host = misuse(lines).option("--max-concurrent", 8).option("--queue-max", 100).start().await;
    onslaught(&host, &controller, 200).await;
    controller.chats_open(0).await;
    let before = footprint(&host);

    onslaught(&host, &controller, 200).await;

    controller.chats_open(0).await;
    let after = footprint(&host);
    assert!(after.mappings < before.mappings + 200, "{before:?} became {after:?}");
    // Idle connections are not a leak: one for each concurrent rollout.
    assert!(after.descriptors < before.descriptors + 64, "{before:?} became {after:?}");
    assert!(after.resident_kib < before.resident_kib + (64 << 10), "{before:?} became {after:?}");
    check_still_works(&host, &controller).await;
}

#[tokio::test]
async fn spinning_guests_delay_no_other_rollout() {
    const SPINNING: usize = 4;
    const NEIGHBOURS: usize = 100;
    let controller = Controller::start().await;
    let host = TestHost::start("spin").await;
    let alone = slowest(&host, &controller, NEIGHBOURS).await;
    let mut spinning = Vec::new();
    for _ in 0..SPINNING {
        spinning.push(host.admit(&controller.rollout("misbehave")).await);
    }

    let contended = slowest(&host, &controller, NEIGHBOURS).await;

    println!("slowest of {NEIGHBOURS}: alone {alone:?}, with {SPINNING} spinning guests {contended:?}");
    assert!(contended < Duration::from_secs(5), "alone {alone:?}, with spinning guests {contended:?}");
    for spinner in &spinning {
        assert_eq!(host.cancel(&spinner.id).await, "cancelled_running");
    }
    check_still_works(&host, &controller).await;
}

/// Runs ordinary rollouts one after the other; returns the 99th percentile of their durations.
async fn slowest(host: &TestHost, controller: &Controller, count: usize) -> Duration {
    let running = async {
        let mut times = Vec::new();
        for _ in 0..count {
            controller.answer_chats([Answer::Say("#### 5")]);
            let started = Instant::now();
            let result = host.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;
            times.push(started.elapsed());
            assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
        }
        times.sort();
        times[count * 99 / 100 - 1]
    };
    in_time("the neighbours", running).await
}
