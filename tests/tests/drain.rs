//! A host that is asked to end, and one that is full.

use rollout_tests::{Admitted, Controller, TestHost, until};
use rustix::process::Signal;
use serde_json::json;

/// Asks the host to end, and waits until it takes no more.
async fn ask_to_end(host: &TestHost) {
    host.process().signal(Signal::TERM);
    let closed = async || (host.health().await["lifecycle"]["accepting_rollouts"] == false).then_some(());
    until("the host to close", closed).await;
}

#[tokio::test]
async fn a_host_that_is_asked_to_end_lets_its_rollouts_end_first() {
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
async fn a_host_that_is_asked_to_end_sends_its_callbacks_first() {
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
async fn a_second_signal_ends_the_host_at_once() {
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
async fn a_host_that_is_full_says_when_to_come_again_and_takes_what_it_took() {
    let controller = Controller::start().await;
    controller.hold();
    let host = TestHost::of("conform").option("--max-concurrent", 2).option("--queue-max", 1).start().await;
    let mut taken: Vec<Admitted> = Vec::new();
    for _ in 0..3 {
        taken.push(host.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await);
    }
    controller.chats_open(2).await;

    let refused = host.ask(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    let health = host.health().await;

    assert_eq!(refused.status, 429, "{:?}", refused.body);
    assert_eq!(refused.headers.get("retry-after").and_then(|value| value.to_str().ok()), Some("5"));
    assert_eq!(health["concurrency"], json!({"max_concurrent": 2, "queued": 1, "running": 2}));
    controller.release();
    for rollout in &taken {
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
    assert_eq!(controller.chats().len(), 2, "what was late never asked the model");
}

#[tokio::test]
async fn a_rollout_that_waits_can_be_cancelled_and_leaves_its_place() {
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
