//! Tests of the protocol's traps for servers, in generations B, C and D. `tests/README.md` lists all of them, with
//! those that are tested elsewhere.

use std::collections::BTreeMap;

use rollout_tests::{Answer, Controller, KEY_OF_B, Received, RolloutRequest, Serve, TestHost};
use serde_json::{Value, json};

const BRANCH: &str = "please branch: Calculate 2 + 3.";

/// Returns options of a host for callers of B only.
fn of_b(guest: &str) -> Serve {
    TestHost::of(guest).option("--osmosis-generation", "b")
}

/// Returns the bodies of a rollout's completion and grader callback.
async fn both(host: TestHost, controller: &Controller, request: &RolloutRequest) -> (Value, Value) {
    let callbacks = host.all_callbacks(controller, request).await;
    let [completion, graded] = &*callbacks else { panic!("two callbacks, not {callbacks:?}") };
    (completion.body.clone(), graded.body.clone())
}

fn brief(callback: &Value) -> (Value, Value, Value) {
    (callback["status"].clone(), callback["err_message"].clone(), callback["err_category"].clone())
}

#[tokio::test]
async fn trap_1_a_request_without_callbacks_is_polled_and_one_with_them_is_called_back() {
    let controller = Controller::start().await;
    let host = TestHost::start("conform").await;

    let polled = host.ask(&controller.rollout("2 + 3").label("5")).await;
    let of_b = host.ask(&controller.rollout("2 + 3").label("5").as_b()).await;
    let of_c = host.ask(&controller.rollout("2 + 3").label("5").with_callbacks("k")).await;

    assert!(polled.body["polling_lease_token"].is_string(), "{polled:?}");
    assert_eq!((of_b.body, of_c.body), (json!({}), json!({})));
    let callbacks = controller.callbacks_arrived(4).await;
    let has = |field: &str| callbacks.iter().filter(|callback| callback.body.get(field).is_some()).count();
    assert_eq!((has("sample"), has("samples")), (2, 1), "C is certain, B is not");
}

#[tokio::test]
async fn trap_2_a_workflow_that_fails_is_reported_and_ends_in_a_bare_grader_callback() {
    for (text, message, category) in [
        ("please fail", "the workflow was told to fail", "agent_error"),
        ("please refuse", "the workflow was told to refuse", "validation_error"),
    ] {
        let controller = Controller::start().await;
        let host = of_b("conform").start().await;
        let request = controller.rollout(text).label("5").as_b();

        let (completion, graded) = both(host, &controller, &request).await;

        assert_eq!(brief(&completion), (json!("failure"), json!(message), json!(category)));
        let bare = json!({
            "status": "failure", "rollout_id": request.rollout_id(), "samples": {},
            "err_message": null, "err_category": null,
        });
        assert_eq!(graded, bare);
    }
}

#[tokio::test]
async fn trap_3_b_gets_rewards_that_c_and_d_do_not() {
    let controller = Controller::start().await;
    let host = of_b("conform").start().await;
    let request = controller.rollout(BRANCH).label("please remove the second").as_b();

    let (_, graded) = both(host, &controller, &request).await;

    assert_eq!(graded["status"], "success");
    let second = &graded["samples"]["second"];
    assert_eq!((&second["remove_sample"], &second["reward"]), (&json!(true), &json!(0.5)));
    assert_eq!(graded["samples"]["first"]["remove_sample"], false);

    let host = TestHost::start("conform").await;
    let removed = controller.rollout("2 + 3").label("please remove");
    let of_c = removed.clone().id("of-c").with_callbacks("k");
    host.ask(&of_c).await;
    let of_c = controller.callbacks_arrived(4).await[3].body.clone();
    let of_d = host.run(&removed).await;
    for result in [of_c, of_d] {
        assert_eq!(
            (&result["status"], &result["sample"]["remove_sample"]),
            (&json!("success"), &json!(true))
        );
        assert_eq!(result["sample"]["reward"], Value::Null);
    }
}

#[tokio::test]
async fn trap_4_an_accepted_rollout_is_answered_202_and_200_only_if_the_operator_sets_b() {
    async fn check(generation: &str, of: fn(RolloutRequest) -> RolloutRequest, expected: u16) {
        let controller = Controller::start().await;
        let host = TestHost::of("conform").option("--osmosis-generation", generation).start().await;
        let reply = host.ask(&of(controller.rollout("2 + 3").label("5"))).await;
        assert_eq!(reply.status, expected, "{generation}: {reply:?}");
    }
    check("auto", RolloutRequest::as_b, 202).await;
    check("auto", |request| request.with_callbacks("k"), 202).await;
    check("auto", |request| request, 202).await;
    check("b", RolloutRequest::as_b, 200).await;
    check("c", |request| request.with_callbacks("k"), 202).await;
    check("d", |request| request, 202).await;
}

#[tokio::test]
async fn trap_5_an_empty_field_is_null_and_not_omitted() {
    let controller = Controller::start().await;
    let host = TestHost::start("conform").await;
    for request in [
        controller.rollout("please fail").label("5").as_b(),
        controller.rollout("please fail").label("5").with_callbacks("k"),
    ] {
        host.ask(&request).await;
    }
    for callback in controller.callbacks_arrived(4).await {
        let body = callback.body.as_object().unwrap();
        let is_completion = body.contains_key("extra_fields");
        let expected: &[&str] =
            if is_completion { &["extra_fields"] } else { &["err_message", "err_category"] };
        for field in expected {
            assert_eq!(body.get(*field), Some(&Value::Null), "{field} in {callback:?}");
        }
        if !is_completion {
            assert_eq!(body.get("sample"), Some(&Value::Null), "{callback:?}");
        }
    }
}

#[tokio::test]
async fn trap_6_an_unacknowledged_callback_is_sent_again_unchanged_also_after_429() {
    let controller = Controller::start().await;
    let host = of_b("conform").config("[callback]\ndelay-base-secs = 0.0\n").start().await;
    let stumbles = [500, 502, 503].map(|status| Answer::Status(status, json!({})));
    let again = [Answer::Soon(429), Answer::Status(204, Value::Null), Answer::Soon(429), Answer::Soon(504)];
    controller.answer_callbacks(stumbles.into_iter().chain(again));

    let request = controller.rollout(BRANCH).label("5").as_b();
    let callbacks = host.all_callbacks(&controller, &request).await;

    let (completions, graders) = callbacks.split_at(5);
    assert!(completions.iter().all(|callback| callback.path == "/v1/rollout/completed"));
    assert!(graders.iter().all(|callback| callback.path == "/v1/grader/completed"));
    assert_eq!(graders.len(), 3);
    assert!(completions.iter().all(|callback| callback.body == completions[0].body));
    assert!(graders.iter().all(|callback| callback.body == graders[0].body));
    assert!(controller.outcome_of_b(request.rollout_id()).is_ok());
}

#[tokio::test]
async fn trap_7_an_empty_metadata_object_is_graded_and_a_missing_ground_truth_is_a_failure() {
    let controller = Controller::start().await;
    let host = TestHost::start("conform").await;
    let ask = |metadata: Value| controller.rollout("2 + 3").with("metadata", metadata);

    let (with_b, without_b) = (ask(json!({})).as_b(), ask(Value::Null).as_b());
    let (with_c, without_c) = (ask(json!({})).with_callbacks("k"), ask(Value::Null).with_callbacks("k"));
    for request in [&with_b, &without_b, &with_c, &without_c] {
        host.ask(request).await;
    }
    let with_d = host.run(&ask(json!({}))).await;
    let without_d = host.run(&ask(Value::Null)).await;

    let callbacks = controller.callbacks_arrived(8).await;
    let graded = |request: &RolloutRequest| {
        let id = request.rollout_id();
        let of_it = |callback: &&Received| callback.body["rollout_id"] == id;
        let last = callbacks.iter().rfind(of_it).expect("two callbacks a rollout");
        last.body.clone()
    };
    for graded in [graded(&with_b), graded(&with_c), with_d] {
        assert_eq!((&graded["status"], &graded["sample"]["reward"]), (&json!("success"), &json!(0.0)));
    }
    for bare in [graded(&without_b), graded(&without_c), without_d] {
        assert_eq!(brief(&bare), (json!("failure"), Value::Null, Value::Null));
        assert_eq!(bare["sample"], Value::Null);
    }
}

#[tokio::test]
async fn trap_9_without_an_operators_limit_more_than_four_run_concurrently() {
    let controller = Controller::start().await;
    controller.hold();
    let host = TestHost::start("conform").await;
    let requests: Vec<_> = (0..12).map(|_| controller.rollout("2 + 3").label("5").as_b()).collect();
    for request in &requests {
        host.ask(request).await;
    }

    controller.chats_open(12).await;
    controller.release();

    controller.callbacks_arrived(24).await;
    for request in &requests {
        assert!(controller.outcome_of_b(request.rollout_id()).is_ok());
    }
}

#[tokio::test]
async fn trap_10_every_chat_call_is_routed_and_disables_streaming() {
    let controller = Controller::start().await;
    let host = of_b("conform").start().await;
    let request = controller.rollout(BRANCH).label("5").as_b();

    let callbacks = host.all_callbacks(&controller, &request).await;

    let chats = controller.chats();
    let samples: Vec<_> = chats.iter().filter_map(|chat| chat.header("x-sample-id")).collect();
    assert_eq!(samples, ["first", "second"]);
    for chat in &chats {
        assert_eq!(chat.path, "/chat/completions");
        assert_eq!(chat.header("x-rollout-id"), Some(request.rollout_id()));
        assert_eq!(chat.header("authorization"), Some(&*format!("Bearer {KEY_OF_B}")));
        assert_eq!(chat.body["stream"], false);
    }
    for callback in &callbacks {
        assert_eq!(callback.header("authorization"), Some(&*format!("Bearer {KEY_OF_B}")));
    }
}

#[tokio::test]
async fn trap_10_a_sample_without_a_model_call_is_not_reported() {
    let controller = Controller::start().await;
    for host in [TestHost::of("conform"), of_b("conform")] {
        let host = host.start().await;
        let request = controller.rollout("please half branch: 2 + 3").label("5").as_b();

        host.all_callbacks(&controller, &request).await;

        assert_eq!(
            controller.outcome_of_b(request.rollout_id()),
            Ok(BTreeMap::from([("first".to_owned(), Some(1.0))]))
        );
    }
}

#[tokio::test]
async fn trap_10_a_rollout_without_a_model_call_has_no_reward() {
    let controller = Controller::start().await;
    let host = of_b("conform").start().await;
    let request = controller.rollout("please stay silent").label("5").as_b();

    let (completion, graded) = both(host, &controller, &request).await;

    assert_eq!(completion["status"], "success");
    assert_eq!((&graded["status"], &graded["samples"]), (&json!("failure"), &json!({})));
    assert_eq!(graded["err_category"], "validation_error");
    let message = graded["err_message"].as_str().unwrap_or_default();
    assert!(message.starts_with("No sample to grade."), "{message}");
}

#[tokio::test]
async fn trap_11_the_label_is_returned_only_in_c_and_only_with_returned_messages() {
    async fn label_of(text: &str) -> Value {
        let controller = Controller::start().await;
        let host = TestHost::start("conform").await;
        host.ask(&controller.rollout(text).label("5").with_callbacks("k")).await;
        let graded = controller.callbacks_arrived(2).await[1].body.clone();
        assert_eq!(graded["sample"]["reward"], 1.0, "{graded:#}");
        graded["sample"]["label"].clone()
    }
    assert_eq!(label_of("2 + 3").await, "5");
    assert_eq!(label_of("please push: 2 + 3").await, Value::Null);

    let controller = Controller::start().await;
    let request = controller.rollout("2 + 3").label("5").as_b();
    let (_, graded) = both(TestHost::start("conform").await, &controller, &request).await;
    let sample = graded["samples"].as_object().and_then(|samples| samples.values().next());
    assert_eq!(sample.map(|sample| &sample["label"]), Some(&Value::Null));
}

#[tokio::test]
async fn trap_12_invalid_json_is_422_and_the_key_is_checked_first() {
    let controller = Controller::start().await;
    let host = TestHost::of("conform")
        .variable("KEY_OF_THE_SERVER", "secret-of-the-server")
        .option("--server-key-env", "KEY_OF_THE_SERVER")
        .start()
        .await;
    let request = controller.rollout("2 + 3").label("5").as_b();

    let without_key = host.post_text("/rollout", "{").await;
    let host = host.with_key("secret-of-the-server");
    let no_json = host.post_text("/rollout", "{").await;
    let wrong_id = host.ask(&request.clone().with("rollout_id", "a/b")).await;

    assert_eq!((without_key.status, no_json.status, wrong_id.status), (401, 422, 422));
    assert_eq!(no_json.body["detail"][0]["type"], "json_invalid");
    assert_eq!(wrong_id.body["detail"][0]["loc"], json!(["body", "rollout_id"]));
    assert_eq!(host.ask(&request).await.status, 202);
}

#[tokio::test]
async fn trap_13_the_trajectories_exist_when_the_grader_callback_is_sent() {
    for (text, files) in [
        ("please fail", &["trajectory.json"][..]),
        ("Calculate 2 + 3.", &["trajectory.json"]),
        (BRANCH, &["trajectory-first.json", "trajectory-second.json"]),
    ] {
        let controller = Controller::start().await;
        let host = of_b("conform").start().await;
        let request = controller.rollout(text).label("5").as_b();
        host.ask(&request).await;
        let folder = host.kept().join(request.rollout_id());

        controller.callbacks_arrived(2).await;

        for file in files {
            let text = std::fs::read(folder.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
            let document: Value = serde_json::from_slice(&text).unwrap();
            assert_eq!(document["session_id"], request.rollout_id(), "{document:#}");
        }
    }
}

#[tokio::test]
async fn trap_14_messages_of_any_shape_are_returned_unchanged() {
    let controller = Controller::start().await;
    let host = of_b("conform").start().await;
    let prompt = json!([
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": "t", "name": "f", "input": {}}}], "tracking_id": 7},
        {"role": "user", "content": [{"toolResult": {"toolUseId": "t", "content": [{"text": "42"}]}}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "provider_data": null},
        {"type": "function_call_output", "call_id": "c", "output": "1.50"},
        {"role": "user", "content": BRANCH},
    ]);
    let request = controller.rollout("").label("5").with("initial_messages", prompt.clone()).as_b();

    let (_, graded) = both(host, &controller, &request).await;

    for chat in controller.chats() {
        assert_eq!(chat.body["messages"], prompt);
    }
    for name in ["first", "second"] {
        let messages = graded["samples"][name]["messages"].as_array().unwrap();
        assert_eq!(json!(messages[..5]), prompt);
    }
}

#[tokio::test]
async fn trap_15_health_repeats_the_evaluators_instance_id() {
    let host = of_b("conform").variable("_OSMOSIS_ROLLOUT_INSTANCE_ID", "instance-7").start().await;

    let health = host.health().await;

    assert_eq!(health["instance_id"], "instance-7", "{health:#}");
    let load = json!({"max_concurrent": 1024, "queued": 0, "running": 0});
    assert_eq!((&health["status"], &health["concurrency"]), (&json!("ok"), &load));
}
