//! Tests of a host that is terminated, and of one that is full.

use std::time::{Duration, Instant};

use rollout_tests::{Admitted, Answer, Controller, TestHost, in_time, until};
use rustix::process::Signal;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Terminates the host, and waits until it accepts no more rollouts.
async fn ask_to_end(host: &TestHost) {
    host.process().signal(Signal::TERM);
    let closed = async || (host.health().await["lifecycle"]["accepting_rollouts"] == false).then_some(());
    until("the host to close", closed).await;
}

#[tokio::test]
async fn a_host_that_is_terminated_finishes_its_rollouts_first() {
    let controller = Controller::start().await;
    controller.hold();
    let host = TestHost::start("conform").await;
    let rollout = host.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    controller.chats_open(1).await;

    ask_to_end(&host).await;
    let refused = host.ask(&controller.rollout("Calculate 3 + 3.").label("6")).await;
    controller.release();
    let result = host.result(&rollout).await;

    assert_eq!(refused.status, 503, "{:?}", refused.body);
    assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
    let ran = host.ended().await;
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
}

#[tokio::test]
async fn a_host_that_is_terminated_sends_its_callbacks_first() {
    let controller = Controller::start().await;
    controller.hold();
    let host = TestHost::start("conform").await;
    let request = controller.rollout("Calculate 2 + 3.").label("5").with_callbacks("key");
    assert_eq!(host.ask(&request).await.status, 202);
    controller.chats_open(1).await;

    ask_to_end(&host).await;
    controller.release();
    let ran = host.ended().await;

    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let callbacks = controller.callbacks();
    assert_eq!(callbacks.len(), 2, "{callbacks:?}");
    assert_eq!(callbacks[1].body["sample"]["reward"], 1.0);
}

#[tokio::test]
async fn a_rollout_that_outlasts_the_drain_is_cancelled_and_the_exit_code_says_so() {
    let controller = Controller::start().await;
    controller.hold();
    let host = TestHost::of("conform").config("drain-secs = 0.3\n").start().await;
    host.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    controller.chats_open(1).await;

    let ran = host.stop().await;

    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    controller.chats_open(0).await;
}

#[tokio::test]
async fn a_second_signal_ends_the_host_immediately() {
    let controller = Controller::start().await;
    controller.hold();
    let host = TestHost::of("conform").config("drain-secs = 3600.0\n").start().await;
    host.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    controller.chats_open(1).await;

    ask_to_end(&host).await;
    let ran = host.stop().await;

    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
}

#[tokio::test]
async fn a_full_host_refuses_with_a_retry_time_and_finishes_admitted_rollouts() {
    let controller = Controller::start().await;
    controller.hold();
    let host = TestHost::of("conform").option("--max-concurrent", 2).option("--queue-max", 1).start().await;
    let mut admitted: Vec<Admitted> = Vec::new();
    for _ in 0..3 {
        admitted.push(host.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await);
    }
    controller.chats_open(2).await;

    let refused = host.ask(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    let health = host.health().await;

    assert_eq!(refused.status, 429, "{:?}", refused.body);
    assert_eq!(refused.headers.get("retry-after").and_then(|value| value.to_str().ok()), Some("5"));
    assert_eq!(health["concurrency"], json!({"max_concurrent": 2, "queued": 1, "running": 2}));
    controller.release();
    for rollout in &admitted {
        assert_eq!(host.result(rollout).await["sample"]["reward"], 1.0);
    }
    host.idle().await;
    let after = host.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    assert_eq!(after["sample"]["reward"], 1.0, "{after:#}");
}

#[tokio::test]
async fn time_in_the_queue_counts_for_the_workflow_and_not_for_the_grader() {
    let controller = Controller::start().await;
    controller.hold();
    let host = TestHost::of("conform").option("--max-concurrent", 1).start().await;
    let first = host.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    controller.chats_open(1).await;
    let patient = controller.rollout("Calculate 2 + 3.").label("5").with("grader_timeout_sec", 30.0);
    let patient = host.admit(&patient).await;

    let late = host.run(&controller.rollout("Calculate 2 + 3.").label("5").agent_secs(0.3)).await;

    assert_eq!(late["err_category"], "timeout", "{late:#}");
    let message = late["err_message"].as_str().unwrap_or_default();
    assert!(
        message.starts_with("workflow exceeded its 0.3s deadline (")
            && message.ends_with("s of it spent queued)"),
        "{message}"
    );
    controller.release();
    for rollout in [&first, &patient] {
        assert_eq!(host.result(rollout).await["sample"]["reward"], 1.0);
    }
    assert_eq!(controller.chats().len(), 2, "the late rollout never called the model");
}

#[tokio::test]
async fn a_queued_rollout_can_be_cancelled_and_frees_its_place() {
    let controller = Controller::start().await;
    controller.hold();
    let host = TestHost::of("conform").option("--max-concurrent", 1).option("--queue-max", 1).start().await;
    let first = host.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    controller.chats_open(1).await;
    let second = host.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await;

    let disposition = host.cancel(&second.id).await;
    let result = host.result(&second).await;

    assert_eq!(disposition, "cancelled_queued");
    assert_eq!(result["status"], "cancelled", "{result:#}");
    let third = host.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    controller.release();
    for rollout in [&first, &third] {
        assert_eq!(host.result(rollout).await["sample"]["reward"], 1.0);
    }
}

#[tokio::test]
async fn stopping_takes_the_drain_time_once_and_names_what_was_not_reported() {
    const DRAIN: Duration = Duration::from_secs(6);
    let controller = Controller::start().await;
    controller.hold();
    let host = TestHost::of("conform").config("drain-secs = 6.0\n").start().await;
    let polled = host.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    let called_back = controller.rollout("Calculate 2 + 3.").label("5").with_callbacks("key");
    assert_eq!(host.ask(&called_back).await.status, 202);
    controller.chats_open(2).await;
    // The host does not wait for a silent connection either.
    let _silent = host.connect().await.expect("it listens");

    let started = Instant::now();
    let ran = host.stop().await;
    let took = started.elapsed();

    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(took > DRAIN / 2 && took < DRAIN + DRAIN / 2, "{took:?}\n{}", ran.stderr);
    for id in [polled.id.as_str(), called_back.rollout_id()] {
        let named = ran.stderr.lines().filter(|line| line.contains("not reported") && line.contains(id));
        assert_eq!(named.count(), 1, "{id}: {}", ran.stderr);
    }
}

#[tokio::test]
async fn an_unread_result_is_named_and_changes_the_exit_code() {
    let controller = Controller::start().await;
    let host = TestHost::of("conform").config("drain-secs = 1.0\n").start().await;
    let read = controller.rollout("Calculate 2 + 3.").label("5");
    assert_eq!(host.run(&read).await["sample"]["reward"], 1.0);
    controller.hold();
    let cancelled = host.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    controller.chats_open(1).await;
    host.cancel(&cancelled.id).await;
    controller.release();
    let unread = host.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    host.idle().await;

    let ran = host.stop().await;

    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    let named: Vec<&str> = ran.stderr.lines().filter(|line| line.contains("not reported")).collect();
    assert!(matches!(&named[..], [line] if line.contains(&unread.id)), "{named:?}");
}

#[tokio::test]
async fn an_unacknowledged_callback_is_named_when_the_host_ends() {
    let controller = Controller::start().await;
    let lines = "drain-secs = 30.0\n[callback]\nattempts-max = 2\ndelay-base-secs = 0.0\n";
    let host = TestHost::of("conform").config(lines).start().await;
    controller.hold();
    let request = controller.rollout("Calculate 2 + 3.").label("5").with_callbacks("key");
    assert_eq!(host.ask(&request).await.status, 202);
    controller.chats_open(1).await;
    ask_to_end(&host).await;

    controller.answer_callbacks((0..8).map(|_| Answer::Soon(503)));
    controller.release();
    let ran = host.ended().await;

    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    let is_named = |line: &str| line.contains("not reported") && line.contains(request.rollout_id());
    assert!(ran.stderr.lines().any(is_named), "{}", ran.stderr);
}

#[tokio::test]
async fn a_result_whose_transfer_broke_off_can_be_read_again_before_the_host_ends() {
    let controller = Controller::start().await;
    let host = TestHost::of("conform").config("drain-secs = 50.0\n").start().await;
    // More than sockets buffer, so that a part of it cannot have left the host.
    let long = "x".repeat(15 << 20) + "\n#### 5";
    let message = json!({"role": "assistant", "content": long});
    let completion = json!({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]});
    controller.answer_chats([Answer::Status(200, completion)]);
    let rollout = host.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    let head = format!(
        "GET /rollout/{}/result HTTP/1.1\r\nhost: localhost\r\nx-osmosis-rollout-lease: {}\r\n\r\n",
        rollout.id, rollout.lease
    );
    // Before the result exists, polls get shorter answers.
    let broken = async {
        loop {
            let mut connection = host.connect().await.expect("it listens");
            connection.write_all(head.as_bytes()).await.expect("it reads");
            let mut beginning = [0; 1000];
            let length = connection.read(&mut beginning).await.expect("it answers");
            if String::from_utf8_lossy(&beginning[..length]).contains("\"success\"") {
                break connection;
            }
        }
    };
    let broken = in_time("the beginning of the result", broken).await;
    drop(broken);

    ask_to_end(&host).await;
    let result = host.result(&rollout).await;

    assert_eq!(result["sample"]["reward"], 1.0);
    let ran = host.ended().await;
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
}

#[tokio::test]
async fn a_host_that_was_stopped_for_longer_than_a_lease_keeps_polled_rollouts() {
    let controller = Controller::start().await;
    controller.hold();
    let times = "[osmosis]\nresult-wait-secs = 1.0\nlease-secs = 4.0\n";
    let host = TestHost::of("conform").config(times).start().await;
    let rollout = host.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    // A second host, which is not stopped, shows when twice the time of a lease has passed.
    let other = TestHost::of("conform").config(times).start().await;
    controller.chats_open(1).await;
    host.poll(&rollout).await;

    host.process().signal(Signal::STOP);
    for _ in 0..2 {
        let abandoned = other.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await;
        let path = format!("/rollout/{}/status", abandoned.id);
        let is_over = async || {
            let status = other.get(&path).await.body["status"].clone();
            ["failure", "cancelled"].iter().any(|over| status == *over).then_some(())
        };
        until("the lease to expire", is_over).await;
    }
    host.process().signal(Signal::CONT);

    for _ in 0..3 {
        let reply = host.poll(&rollout).await;
        assert_eq!(reply.body["status"], "running", "{:?}", reply.body);
    }
    controller.release();
    assert_eq!(host.result(&rollout).await["sample"]["reward"], 1.0);
}

#[tokio::test]
async fn a_hangup_is_logged_and_ends_nothing() {
    let controller = Controller::start().await;
    let host = TestHost::start("conform").await;

    host.process().signal(Signal::HUP);
    until("the log line about the signal", async || host.process().stderr().contains("SIGHUP").then_some(()))
        .await;

    let result = host.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
    assert_eq!(host.stop().await.code, Some(0));
}
