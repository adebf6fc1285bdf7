//! Tests of callbacks during delivery: the effect of a cancellation, and that a slow receiver does not delay others.
//! Also the host's status of finished rollouts.

use rollout_tests::{Controller, InitRequest, RolloutRequest, TestHost};
use serde_json::{Value, json};

async fn status(host: &TestHost, id: &str) -> Value {
    let mut body = host.get(&format!("/rollout/{id}/status")).await.body;
    let fields = body.as_object_mut().expect("a status is an object");
    assert_eq!(fields.remove("rollout_id"), Some(json!(id)));
    body
}

#[tokio::test]
async fn a_rollout_cancelled_during_the_delivery_of_its_completion_sends_no_more_callbacks() {
    for ask in [
        (|request: RolloutRequest| request.with_callbacks("k")) as fn(RolloutRequest) -> RolloutRequest,
        RolloutRequest::as_b,
    ] {
        let controller = Controller::start().await;
        let host = TestHost::start("conform").await;
        controller.hold_callbacks();
        let request = ask(controller.rollout("Calculate 2 + 3.").label("5"));
        host.ask(&request).await;
        controller.callbacks_arrived(1).await;

        let disposition = host.cancel(request.rollout_id()).await;

        assert_eq!(disposition, "cancelled_running");
        let cancelled = json!({"status": "cancelled", "reward": null, "err_message": null});
        assert_eq!(
            status(&host, request.rollout_id()).await,
            cancelled,
            "the rollout has ended when the answer arrives"
        );
        controller.callbacks_open(0).await;
        controller.release_callbacks();
        let trajectory = host.stop_for_document(request.rollout_id(), "trajectory.json").await;
        assert_eq!(trajectory["extra"]["rollout_host"]["outcome"]["kind"], "cancelled", "{trajectory:#}");
        assert_eq!(controller.callbacks().len(), 1, "{:?}", controller.callbacks());
    }
}

#[tokio::test]
async fn a_slow_receiver_holds_no_slot_and_the_grader_gets_one_again() {
    let controller = Controller::start().await;
    let host = TestHost::of("conform").option("--max-concurrent", 1).start().await;
    controller.hold_callbacks();
    let slow = controller.rollout("Calculate 2 + 3.").label("5").with_callbacks("k");
    host.ask(&slow).await;
    controller.callbacks_arrived(1).await;

    let other = host.run(&controller.rollout("Calculate 1 + 3.").label("4")).await;

    assert_eq!(other["sample"]["reward"], 1.0, "{other:#}");
    assert_eq!(controller.callbacks().len(), 1, "the completion is still on its way");
    controller.release_callbacks();
    let callbacks = controller.callbacks_arrived(2).await;
    assert_eq!(callbacks[1].body["sample"]["reward"], 1.0, "{callbacks:?}");
}

#[tokio::test]
async fn a_grader_after_a_delivery_gets_a_slot_before_the_queue() {
    let controller = Controller::start().await;
    let host = TestHost::of("conform").option("--max-concurrent", 1).option("--queue-max", 16).start().await;
    controller.hold_callbacks();
    controller.hold_after(1);
    let slow = controller.rollout("Calculate 2 + 3.").label("5").with_callbacks("k");
    host.ask(&slow).await;
    controller.callbacks_arrived(1).await;
    // One rollout takes the slot and waits for the model, the others are queued.
    for _ in 0..16 {
        host.admit(&controller.rollout("Calculate 1 + 3.")).await;
    }
    controller.chats_arrived(2).await;
    controller.release_callbacks();
    controller.callbacks_open(0).await;

    // Each rollout with the slot ends, until the grader runs, which is immediately after the host has read the answer
    // to its callback.
    let mut answered = 1;
    let callbacks = loop {
        answered += 1;
        controller.hold_after(answered);
        tokio::select! {
            biased;
            callbacks = controller.callbacks_arrived(2) => break callbacks,
            _ = controller.chats_arrived(answered + 1) => {}
        }
    };

    assert_eq!(callbacks[1].body["sample"]["reward"], 1.0, "{callbacks:?}");
    let load = &host.health().await["concurrency"];
    assert!(load["queued"].as_u64() >= Some(1), "others still wait: {load}");
    controller.release();
}

#[tokio::test]
async fn the_outcome_of_a_rollout_is_available_after_its_end_in_every_generation() {
    let controller = Controller::start().await;
    let host = TestHost::start("conform").await;
    let over = |status: &str, reward: Value, why: Value| json!({"status": status, "reward": reward, "err_message": why});

    let polled = controller.rollout("Calculate 2 + 3.").label("5");
    host.run(&polled).await;
    let without_lease = over("success", Value::Null, Value::Null);
    assert_eq!(status(&host, polled.rollout_id()).await, without_lease, "a reward of D is its lease's");
    let polled = controller.rollout("please fail").label("5");
    host.run(&polled).await;
    assert_eq!(status(&host, polled.rollout_id()).await, over("failure", Value::Null, Value::Null));

    let called_back = controller.rollout("Calculate 2 + 3.").label("5").with_callbacks("k");
    host.ask(&called_back).await;
    controller.callbacks_arrived(2).await;
    assert_eq!(status(&host, called_back.rollout_id()).await, over("success", 1.0.into(), Value::Null));
    let failing = controller.rollout("please fail").label("5").as_b();
    host.ask(&failing).await;
    let callbacks = controller.callbacks_arrived(4).await;
    let why = callbacks[2].body["err_message"].clone();
    assert_ne!(why, Value::Null);
    assert_eq!(status(&host, failing.rollout_id()).await, over("failure", Value::Null, why));

    let init = InitRequest::new(&controller, "2 + 3").with("metadata", json!({"ground_truth": 5}));
    assert_eq!(host.post("/v1/rollout/init", &init.body()).await.status, 202);
    controller.callbacks_arrived(5).await;
    assert_eq!(status(&host, init.id()).await, over("success", 1.0.into(), Value::Null));

    controller.hold();
    let cancelled = controller.rollout("Calculate 2 + 3.").label("5");
    host.admit(&cancelled).await;
    controller.chats_open(1).await;
    assert_eq!(status(&host, cancelled.rollout_id()).await["status"], "running");
    assert_eq!(host.cancel(cancelled.rollout_id()).await, "cancelled_running");
    assert_eq!(status(&host, cancelled.rollout_id()).await["status"], "cancelled");
    assert_eq!(status(&host, "nobody").await["status"], "unknown");
}
