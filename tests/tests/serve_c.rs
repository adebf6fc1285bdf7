//! Tests of generation C: two callbacks, in order, each once.

use rollout_tests::{Answer, Controller, Received, TestHost};
use serde_json::{Value, json};

const KEY: &str = "key-of-the-controller";

/// Returns the last segments of the callbacks' paths.
fn kinds(callbacks: &[Received]) -> Vec<&str> {
    callbacks.iter().filter_map(|callback| callback.path.rsplit('/').next()).collect()
}

fn brief_callback(callback: &Received) -> (Value, Value, Value) {
    let field = |name: &str| callback.body[name].clone();
    (field("status"), field("err_message"), field("err_category"))
}

#[tokio::test]
async fn the_completion_comes_first_and_then_the_reward_each_once() {
    let controller = Controller::start().await;
    let host = TestHost::start("conform").await;
    let request = controller.rollout("Calculate 2 + 3.").label("5").with_callbacks(KEY);

    let callbacks = host.all_callbacks(&controller, &request).await;

    assert_eq!(kinds(&callbacks), ["completion", "grader"]);
    let id = request.rollout_id();
    let completion = json!({
        "status": "success", "rollout_id": id, "extra_fields": null, "err_message": null, "err_category": null,
    });
    assert_eq!(callbacks[0].body, completion);
    let grader = json!({
        "status": "success",
        "rollout_id": id,
        "sample": {
            "messages": [
                {"role": "user", "content": "Calculate 2 + 3."},
                {"role": "assistant", "content": "The sum is #### 5"},
            ],
            "label": "5",
            "reward": 1.0,
            "remove_sample": false,
            "metrics": {},
            "extra_fields": {},
        },
        "err_message": null,
        "err_category": null,
    });
    assert_eq!(callbacks[1].body, grader);
}

#[tokio::test]
async fn callbacks_and_chat_calls_carry_a_key_each() {
    let controller = Controller::start().await;
    let host = TestHost::start("conform").await;
    let request = controller.rollout("Calculate 2 + 3.").label("5").with_callbacks(KEY);

    let callbacks = host.all_callbacks(&controller, &request).await;

    for callback in &callbacks {
        assert_eq!(callback.header("authorization"), Some(&*format!("Bearer {KEY}")));
    }
    let chats = controller.chats();
    assert_eq!(chats[0].header("authorization"), Some("Bearer key-of-the-model"));
    assert_eq!(chats[0].header("x-rollout-id"), Some(request.rollout_id()));
}

#[tokio::test]
async fn an_unacknowledged_callback_is_sent_again_unchanged() {
    let controller = Controller::start().await;
    let host = TestHost::of("conform").config("[callback]\ndelay-base-secs = 0.0\n").start().await;
    let stumbles = [500, 502, 503, 504].map(|status| Answer::Status(status, json!({})));
    let fine = Answer::Status(200, json!({}));
    controller.answer_callbacks(stumbles.into_iter().chain([fine, Answer::Soon(429)]));

    let request = controller.rollout("Calculate 2 + 3.").label("5").with_callbacks(KEY);
    let callbacks = host.all_callbacks(&controller, &request).await;

    let (completions, graders) = callbacks.split_at(5);
    assert_eq!(kinds(completions), ["completion"; 5]);
    assert_eq!(kinds(graders), ["grader"; 2]);
    assert!(completions.iter().all(|callback| callback.body == completions[0].body));
    assert_eq!(graders[0].body, graders[1].body);
    assert_eq!(graders[1].body["sample"]["reward"], 1.0);
}

#[tokio::test]
async fn a_completion_that_is_refused_ends_in_one_bare_failure_and_no_grading() {
    let controller = Controller::start().await;
    let host = TestHost::start("conform").await;
    controller.answer_callbacks([Answer::Status(404, json!({}))]);

    let request = controller.rollout("Calculate 2 + 3.").label("5").with_callbacks(KEY);
    let callbacks = host.all_callbacks(&controller, &request).await;

    assert_eq!(kinds(&callbacks), ["completion", "completion", "grader"]);
    assert_eq!(
        brief_callback(&callbacks[1]),
        (json!("failure"), json!("Internal server error"), Value::Null)
    );
    assert_eq!(brief_callback(&callbacks[2]), (json!("failure"), Value::Null, Value::Null));
    assert_eq!(callbacks[2].body["sample"], Value::Null);
}

#[tokio::test]
async fn a_reward_that_is_refused_ends_in_one_bare_failure_and_no_second_completion() {
    let controller = Controller::start().await;
    let host = TestHost::start("conform").await;
    controller.answer_callbacks([Answer::Status(200, json!({})), Answer::Status(422, json!({}))]);

    let request = controller.rollout("Calculate 2 + 3.").label("5").with_callbacks(KEY);
    let callbacks = host.all_callbacks(&controller, &request).await;

    assert_eq!(kinds(&callbacks), ["completion", "grader", "grader"]);
    assert_eq!(callbacks[1].body["sample"]["reward"], 1.0);
    assert_eq!(brief_callback(&callbacks[2]), (json!("failure"), Value::Null, Value::Null));
    assert_eq!(callbacks[2].body["sample"], Value::Null);
}

#[tokio::test]
async fn a_dead_controller_is_abandoned_and_the_host_continues() {
    let controller = Controller::start().await;
    let config = "[callback]\nattempts-max = 2\ndelay-base-secs = 0.0\n";
    let host = TestHost::of("conform").config(config).start().await;
    let nowhere = "http://127.0.0.1:9/callback";
    let gone = controller
        .rollout("Calculate 2 + 3.")
        .label("5")
        .with("completion_callback_url", nowhere)
        .with("grader_callback_url", nowhere);
    assert_eq!(host.ask(&gone).await.status, 202);

    let request = controller.rollout("Calculate 2 + 3.").label("5").with_callbacks(KEY);
    let callbacks = host.all_callbacks(&controller, &request).await;

    assert_eq!(kinds(&callbacks), ["completion", "grader"]);
    assert_eq!(callbacks[1].body["sample"]["reward"], 1.0);
}

#[tokio::test]
async fn a_workflow_that_fails_sends_its_completion_and_a_bare_grader_callback() {
    for (text, message, category) in [
        ("please fail", "the workflow was told to fail", "agent_error"),
        ("please refuse", "the workflow was told to refuse", "validation_error"),
        ("please take too long", "the workflow was told to take too long", "timeout"),
    ] {
        let controller = Controller::start().await;
        let host = TestHost::start("conform").await;
        let request = controller.rollout(text).label("5").with_callbacks(KEY);

        let callbacks = host.all_callbacks(&controller, &request).await;

        assert_eq!(kinds(&callbacks), ["completion", "grader"]);
        assert_eq!(brief_callback(&callbacks[0]), (json!("failure"), json!(message), json!(category)));
        assert_eq!(brief_callback(&callbacks[1]), (json!("failure"), Value::Null, Value::Null));
        assert_eq!(callbacks[1].body["sample"], Value::Null);
    }
}

#[tokio::test]
async fn a_grader_that_traps_sends_the_grader_callback_with_the_sample_and_no_reward() {
    let controller = Controller::start().await;
    let host = TestHost::start("trap_grading").await;
    let request = controller.rollout("Calculate 2 + 3.").label("misbehave").with_callbacks(KEY);

    let callbacks = host.all_callbacks(&controller, &request).await;

    assert_eq!(kinds(&callbacks), ["completion", "grader"]);
    assert_eq!(callbacks[0].body["status"], "success");
    assert_eq!(callbacks[1].body["status"], "failure");
    assert_eq!(callbacks[1].body["err_category"], "agent_error");
    assert_eq!(callbacks[1].body["sample"]["reward"], Value::Null);
    assert_eq!(callbacks[1].body["sample"]["messages"][1]["content"], "The sum is #### 5");
}

#[tokio::test]
async fn a_removed_sample_is_reported_without_its_reward() {
    let controller = Controller::start().await;
    let host = TestHost::start("conform").await;
    let request = controller.rollout("Calculate 2 + 3.").label("please remove").with_callbacks(KEY);

    let callbacks = host.all_callbacks(&controller, &request).await;

    let last = &callbacks[1].body;
    assert_eq!((&last["status"], &last["sample"]["remove_sample"]), (&json!("success"), &json!(true)));
    assert_eq!(last["sample"]["reward"], Value::Null);
}

#[tokio::test]
async fn without_a_grader_url_there_is_one_callback() {
    let controller = Controller::start().await;
    let host = TestHost::start("conform").await;
    let request =
        controller.rollout("2 + 3").label("5").with_callbacks(KEY).with("grader_callback_url", Value::Null);

    let callbacks = host.all_callbacks(&controller, &request).await;

    assert_eq!(kinds(&callbacks), ["completion"]);
}

#[tokio::test]
async fn a_cancelled_rollout_sends_no_more_callbacks() {
    let controller = Controller::start().await;
    controller.hold();
    let host = TestHost::start("conform").await;
    let request = controller.rollout("Calculate 2 + 3.").label("5").with_callbacks(KEY);
    host.ask(&request).await;
    controller.chats_open(1).await;

    let status = host.get(&format!("/rollout/{}/status", request.rollout_id())).await;
    let disposition = host.cancel(request.rollout_id()).await;
    controller.chats_open(0).await;

    assert_eq!(status.body["status"], "running");
    assert_eq!(disposition, "cancelled_running");
    assert_eq!(host.stop().await.code, Some(0));
    assert_eq!(controller.callbacks().len(), 0);
}

#[tokio::test]
async fn no_part_of_a_callbacks_key_is_logged() {
    let controller = Controller::start().await;
    let host = TestHost::of("conform").variable("ROLLOUT_HOST_LOG", "debug").start().await;
    controller.answer_callbacks([Answer::Status(401, json!({}))]);
    let request = controller.rollout("Calculate 2 + 3.").label("5").with_callbacks(KEY);
    host.ask(&request).await;

    let ran = host.stop().await;

    assert!(ran.stderr.contains("callback not delivered"), "{}", ran.stderr);
    assert!(!ran.stderr.contains(KEY), "{}", ran.stderr);
    assert!(!ran.stderr.contains("key-of-the-model"), "{}", ran.stderr);
}
