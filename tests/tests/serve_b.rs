//! Generation B from outside: many samples, each with a reward, and the two callbacks.
//!
//! The controller here makes of each rollout what B's only published one made of it
//! ([`Controller::outcome_of_b`]), and its model is as strict as that one's.

use std::collections::BTreeMap;

use rollout_tests::{Answer, Controller, KEY_OF_B, Received, RolloutRequest, Serve, TestHost, project_root};
use serde_json::{Value, json};

const BRANCH: &str = "please branch: Calculate 2 + 3.";

/// A host that is told that all its callers are of B.
fn of_b(guest: &str) -> Serve {
    TestHost::of(guest).option("--dialect", "b")
}

/// `rollout` or `grader`, the words in the callbacks' paths.
fn kinds(callbacks: &[Received]) -> Vec<&str> {
    callbacks.iter().filter_map(|callback| callback.path.split('/').nth(2)).collect()
}

/// Runs a rollout and stops the host, so that every callback that is to come has come.
async fn all_callbacks(host: TestHost, controller: &Controller, request: &RolloutRequest) -> Vec<Received> {
    let reply = host.ask(request).await;
    assert!([200, 202].contains(&reply.status), "{reply:?}");
    assert_eq!(reply.body, json!({}));
    let ran = host.stop().await;
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    controller.callbacks()
}

/// Runs a rollout and gives its two callbacks, which have to be the completion and the
/// grader's, in this order.
async fn both(host: TestHost, controller: &Controller, request: &RolloutRequest) -> (Value, Value) {
    let callbacks = all_callbacks(host, controller, request).await;
    assert_eq!(kinds(&callbacks), ["rollout", "grader"]);
    (callbacks[0].body.clone(), callbacks[1].body.clone())
}

fn brief(callback: &Value) -> (Value, Value, Value) {
    (callback["status"].clone(), callback["err_message"].clone(), callback["err_category"].clone())
}

fn rewards(expected: &[(&str, Option<f64>)]) -> BTreeMap<String, Option<f64>> {
    expected.iter().map(|(id, reward)| ((*id).to_owned(), *reward)).collect()
}

#[tokio::test]
async fn every_sample_comes_back_under_its_name_with_a_reward() {
    let controller = Controller::start().await;
    let host = of_b("conform").start().await;
    let request = controller.rollout(BRANCH).label("5").as_b();
    let id = request.rollout_id();

    let (completion, graded) = both(host, &controller, &request).await;

    let expected = json!({
        "status": "success", "rollout_id": id, "extra_fields": null, "err_message": null, "err_category": null,
    });
    assert_eq!(completion, expected);
    let sample = |name: &str| {
        json!({
            "id": name,
            "messages": [
                {"role": "user", "content": BRANCH},
                {"role": "assistant", "content": "The sum is #### 5"},
            ],
            "label": null,
            "reward": 1.0,
            "remove_sample": false,
            "metrics": {},
            "extra_fields": {},
        })
    };
    let expected = json!({
        "status": "success",
        "rollout_id": id,
        "samples": {"first": sample("first"), "second": sample("second")},
        "err_message": null,
        "err_category": null,
    });
    assert_eq!(graded, expected);
    assert_eq!(controller.outcome_of_b(id), Ok(rewards(&[("first", Some(1.0)), ("second", Some(1.0))])));
}

#[tokio::test]
async fn a_caller_that_may_be_of_b_or_of_c_is_served_in_both_forms() {
    let controller = Controller::start().await;
    let host = TestHost::start("conform").await;
    let one = controller.rollout("Calculate 2 + 3.").label("5").as_b();
    let many = controller.rollout(BRANCH).label("5").as_b();
    assert_eq!(host.ask(&many).await.status, 202);
    controller.callbacks_arrived(2).await;

    let callbacks = all_callbacks(host, &controller, &one).await;

    let (of_many, of_one) = (&callbacks[1].body, &callbacks[3].body);
    assert_eq!(of_many["sample"], Value::Null, "two are not one");
    assert_eq!(of_many["samples"].as_object().map(|samples| samples.len()), Some(2));
    let samples = of_one["samples"].as_object().unwrap();
    let (id, in_map) = samples.iter().next().unwrap();
    assert_eq!(samples.len(), 1);
    assert_eq!(in_map["id"], id.as_str());
    assert_eq!(in_map["messages"], of_one["sample"]["messages"]);
    assert_eq!((&in_map["reward"], &of_one["sample"]["reward"]), (&json!(1.0), &json!(1.0)));
    for request in [&one, &many] {
        assert!(controller.outcome_of_b(request.rollout_id()).is_ok());
    }
}

#[tokio::test]
async fn a_caller_that_looks_like_c_gets_the_map_besides_but_one_sample_only() {
    let controller = Controller::start().await;
    let host = TestHost::start("conform").await;
    // As plain 0.3.0 asks: the id in the addresses, and no key of the model's own.
    let like_c = |text| controller.rollout(text).label("5").with_callbacks("k").without("llm_api_key");
    assert_eq!(host.ask(&like_c(BRANCH)).await.status, 202);
    controller.callbacks_arrived(2).await;

    let callbacks = all_callbacks(host, &controller, &like_c("2 + 3")).await;

    assert_eq!(callbacks[0].body["status"], "failure");
    assert_eq!(callbacks[0].body["err_message"], "this rollout's caller takes 1 samples");
    assert_eq!(callbacks[1].body["sample"], Value::Null);
    assert_eq!(callbacks[1].body["samples"], json!({}));
    assert_eq!(callbacks[3].body["sample"]["reward"], 1.0);
    assert_eq!(callbacks[3].body["samples"].as_object().map(|samples| samples.len()), Some(1));
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
async fn trap_2_a_workflow_that_fails_is_told_and_ends_in_a_bare_grader_callback() {
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
async fn trap_3_b_is_told_rewards_that_c_and_d_are_not() {
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
    for told in [of_c, of_d] {
        assert_eq!((&told["status"], &told["sample"]["remove_sample"]), (&json!("success"), &json!(true)));
        assert_eq!(told["sample"]["reward"], Value::Null);
    }
}

#[tokio::test]
async fn trap_4_an_accepted_rollout_is_answered_202_and_200_only_where_the_operator_says_b() {
    async fn check(dialect: &str, of: fn(RolloutRequest) -> RolloutRequest, expected: u16) {
        let controller = Controller::start().await;
        let host = TestHost::of("conform").option("--dialect", dialect).start().await;
        let reply = host.ask(&of(controller.rollout("2 + 3").label("5"))).await;
        assert_eq!(reply.status, expected, "{dialect}: {reply:?}");
    }
    check("auto", RolloutRequest::as_b, 202).await;
    check("auto", |request| request.with_callbacks("k"), 202).await;
    check("auto", |request| request, 202).await;
    check("b", RolloutRequest::as_b, 200).await;
    check("c", |request| request.with_callbacks("k"), 202).await;
    check("d", |request| request, 202).await;
}

#[tokio::test]
async fn trap_5_what_there_is_nothing_to_say_of_is_null_and_not_left_out() {
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
async fn trap_6_a_callback_that_is_not_taken_is_sent_again_as_it_was_after_429_too() {
    let controller = Controller::start().await;
    let host = of_b("conform").config("[callback]\ndelay-base-secs = 0.0\n").start().await;
    let stumbles = [500, 502, 503].map(|status| Answer::Status(status, json!({})));
    let again = [Answer::Soon(429), Answer::Status(204, Value::Null), Answer::Soon(429), Answer::Soon(504)];
    controller.answer_callbacks(stumbles.into_iter().chain(again));

    let request = controller.rollout(BRANCH).label("5").as_b();
    let callbacks = all_callbacks(host, &controller, &request).await;

    let (completions, graders) = callbacks.split_at(5);
    assert_eq!(kinds(completions), ["rollout"; 5]);
    assert_eq!(kinds(graders), ["grader"; 3]);
    assert!(completions.iter().all(|callback| callback.body == completions[0].body));
    assert!(graders.iter().all(|callback| callback.body == graders[0].body));
    assert!(controller.outcome_of_b(request.rollout_id()).is_ok());
}

#[tokio::test]
async fn trap_7_an_empty_metadata_object_is_graded_and_no_truth_at_all_is_a_failure() {
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
async fn trap_9_without_a_limit_of_the_operators_more_than_four_run_at_once() {
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
async fn trap_10_every_chat_call_is_routed_and_asks_for_no_stream() {
    let controller = Controller::start().await;
    let host = of_b("conform").start().await;
    let request = controller.rollout(BRANCH).label("5").as_b();

    let callbacks = all_callbacks(host, &controller, &request).await;

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
async fn trap_10_a_sample_that_never_asked_the_model_is_not_told() {
    let controller = Controller::start().await;
    for host in [TestHost::of("conform"), of_b("conform")] {
        let host = host.start().await;
        let request = controller.rollout("please half branch: 2 + 3").label("5").as_b();

        all_callbacks(host, &controller, &request).await;

        assert_eq!(controller.outcome_of_b(request.rollout_id()), Ok(rewards(&[("first", Some(1.0))])));
    }
}

#[tokio::test]
async fn trap_10_a_rollout_that_never_asked_the_model_has_no_reward() {
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
async fn trap_11_the_label_goes_back_only_in_c_and_only_with_messages_that_were_returned() {
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
async fn trap_12_what_is_no_json_is_422_and_the_key_is_asked_for_first() {
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
async fn trap_13_the_trajectories_are_there_when_the_grader_callback_is() {
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
async fn trap_14_messages_of_any_shape_come_back_as_they_were() {
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
async fn trap_15_health_repeats_the_instance_id_that_the_evaluator_gave() {
    let host = of_b("conform").variable("_OSMOSIS_ROLLOUT_INSTANCE_ID", "instance-7").start().await;

    let health = host.health().await;

    assert_eq!(health["instance_id"], "instance-7", "{health:#}");
    let load = json!({"max_concurrent": 1024, "queued": 0, "running": 0});
    assert_eq!((&health["status"], &health["concurrency"]), (&json!("ok"), &load));
}

#[tokio::test]
async fn a_sample_without_a_reward_fails_the_rollout_and_the_others_keep_theirs() {
    let controller = Controller::start().await;
    let host = of_b("conform").start().await;
    let request = controller.rollout(BRANCH).label("please rate the first").as_b();

    let (completion, graded) = both(host, &controller, &request).await;

    assert_eq!(completion["status"], "success");
    let why = json!("Sample second has no reward after grading");
    assert_eq!(brief(&graded), (json!("failure"), why, json!("validation_error")));
    let reward = |id: &str| graded["samples"][id]["reward"].clone();
    assert_eq!((reward("first"), reward("second")), (json!(1.0), Value::Null));
}

#[tokio::test]
async fn a_grader_that_fails_is_told_with_the_samples_and_no_reward() {
    let controller = Controller::start().await;
    let host = of_b("conform").start().await;
    let request = controller.rollout(BRANCH).label("please fail").as_b();

    let (completion, graded) = both(host, &controller, &request).await;

    assert_eq!(completion["status"], "success");
    let why = json!("the grader was told to fail");
    assert_eq!(brief(&graded), (json!("failure"), why, json!("agent_error")));
    let samples = graded["samples"].as_object().unwrap();
    assert_eq!(samples.keys().collect::<Vec<_>>(), ["first", "second"]);
    for sample in samples.values() {
        assert_eq!(sample["reward"], Value::Null);
        assert_eq!(sample["messages"][1]["content"], "The sum is #### 5");
    }
}

#[tokio::test]
async fn workflow_and_grader_are_stopped_at_the_callers_times() {
    let controller = Controller::start().await;
    let host = of_b("conform").start().await;
    let slow = controller.rollout("please spin").label("5").as_b().agent_secs(0.3);
    let slow_grading = controller.rollout(BRANCH).label("please spin").as_b().with("grader_timeout_sec", 0.3);
    host.ask(&slow).await;
    controller.callbacks_arrived(2).await;

    let callbacks = all_callbacks(host, &controller, &slow_grading).await;

    let timeout = json!("timeout");
    let why = json!("workflow exceeded its 0.3s deadline");
    assert_eq!(brief(&callbacks[0].body), (json!("failure"), why, timeout.clone()));
    assert_eq!(brief(&callbacks[1].body), (json!("failure"), Value::Null, Value::Null));
    assert_eq!(callbacks[2].body["status"], "success");
    let why = json!("grader exceeded its 0.3s deadline");
    assert_eq!(brief(&callbacks[3].body), (json!("failure"), why, timeout));
}

#[tokio::test]
async fn a_rollout_that_is_cancelled_is_told_of_no_more() {
    let controller = Controller::start().await;
    controller.hold();
    let host = of_b("conform").start().await;
    let request = controller.rollout(BRANCH).label("5").as_b();
    host.ask(&request).await;
    controller.chats_open(1).await;

    let disposition = host.cancel(request.rollout_id()).await;
    controller.chats_open(0).await;

    assert_eq!(disposition, "cancelled_running");
    assert_eq!(host.stop().await.code, Some(0));
    assert_eq!(controller.callbacks().len(), 0);
}

#[tokio::test]
async fn a_completion_that_is_refused_ends_in_one_failure_and_a_bare_grader_callback() {
    let controller = Controller::start().await;
    let host = of_b("conform").start().await;
    controller.answer_callbacks([Answer::Status(404, json!({}))]);
    let request = controller.rollout(BRANCH).label("5").as_b();

    let callbacks = all_callbacks(host, &controller, &request).await;

    assert_eq!(kinds(&callbacks), ["rollout", "rollout", "grader"]);
    let refused = (json!("failure"), json!("Internal server error"), Value::Null);
    assert_eq!(brief(&callbacks[1].body), refused);
    assert_eq!(brief(&callbacks[2].body), (json!("failure"), Value::Null, Value::Null));
    assert_eq!(callbacks[2].body["samples"], json!({}));
}

#[tokio::test]
async fn samples_that_are_refused_end_in_a_bare_failure_and_no_second_completion() {
    let controller = Controller::start().await;
    let host = of_b("conform").start().await;
    controller.answer_callbacks([Answer::Status(200, json!({})), Answer::Status(422, json!({}))]);
    let request = controller.rollout(BRANCH).label("5").as_b();

    let callbacks = all_callbacks(host, &controller, &request).await;

    assert_eq!(kinds(&callbacks), ["rollout", "grader", "grader"]);
    assert_eq!(callbacks[2].body["samples"], json!({}));
    assert_eq!(callbacks[2].body["status"], "failure");
}

#[tokio::test]
async fn without_a_grader_url_there_is_one_callback() {
    let controller = Controller::start().await;
    let host = of_b("conform").start().await;
    let request = controller.rollout(BRANCH).label("5").as_b().with("grader_callback_url", Value::Null);

    let callbacks = all_callbacks(host, &controller, &request).await;

    assert_eq!(kinds(&callbacks), ["rollout"]);
}

#[tokio::test]
async fn without_a_key_nothing_carries_one() {
    let controller = Controller::start().await;
    for key in [Value::Null, json!("")] {
        let host = of_b("conform").start().await;
        let request = controller.rollout("please return nothing").label("5").as_b();

        let callbacks = all_callbacks(host, &controller, &request.with("controller_api_key", key)).await;

        assert!(callbacks.iter().all(|callback| callback.header("authorization").is_none()));
    }
}

#[tokio::test]
async fn an_operators_word_on_the_generation_goes_before_what_a_request_looks_like() {
    let controller = Controller::start().await;
    let host = TestHost::of("conform").config("[osmosis]\ndialect = \"b\"\n").start().await;
    // C's own field means nothing to B, and its key is not the model's.
    let odd = controller.rollout("2 + 3").label("5").as_b().with("llm_api_key", "");
    assert_eq!(host.ask(&odd).await.status, 200);
    let graded = controller.callbacks_arrived(2).await[1].body.clone();
    assert!(graded.get("sample").is_none() && graded["samples"].is_object(), "{graded:#}");
    for field in ["rollout_id", "completion_callback_url"] {
        let refused = host.ask(&controller.rollout("2 + 3").as_b().without(field)).await;
        assert_eq!(refused.status, 422, "{refused:?}");
        assert_eq!(refused.body["detail"][0]["loc"], json!(["body", field]));
    }

    let host = TestHost::of("conform").option("--dialect", "c").start().await;
    host.ask(&controller.rollout("2 + 3").label("5").as_b()).await;
    let graded = controller.callbacks_arrived(4).await[3].body.clone();
    assert!(graded.get("samples").is_none(), "{graded:#}");
    assert_eq!(graded["sample"]["reward"], 1.0);

    let host = TestHost::of("conform").option("--dialect", "d").start().await;
    let request = controller.rollout("2 + 3").label("5").as_b().with("llm_api_key", KEY_OF_B);
    let result = host.run(&request).await;
    assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
    assert_eq!(controller.callbacks().len(), 4, "D calls nobody back");
}

#[tokio::test]
async fn an_id_that_is_alive_is_refused_and_its_rollout_goes_on() {
    let controller = Controller::start().await;
    controller.hold();
    let host = of_b("conform").start().await;
    let request = controller.rollout("2 + 3").label("5").as_b();
    host.ask(&request).await;
    controller.chats_open(1).await;

    let repeated = host.ask(&request).await;
    controller.release();

    assert_eq!(repeated.status, 409);
    controller.callbacks_arrived(2).await;
    assert_eq!(host.stop().await.code, Some(0));
    assert_eq!(kinds(&controller.callbacks()), ["rollout", "grader"]);
}

#[tokio::test]
async fn metadata_and_extra_fields_reach_the_grader_and_the_trajectories() {
    let controller = Controller::start().await;
    let host = of_b("conform").start().await;
    let request = controller
        .rollout(BRANCH)
        .with("metadata", json!({"ground_truth": "5"}))
        .with("extra_fields", json!({"row_index": 3}))
        .as_b();
    host.ask(&request).await;
    controller.callbacks_arrived(2).await;

    let id = request.rollout_id();
    assert_eq!(controller.outcome_of_b(id), Ok(rewards(&[("first", Some(1.0)), ("second", Some(1.0))])));
    for name in ["first", "second"] {
        let document = host.document(id, &format!("trajectory-{name}.json")).await;
        assert_eq!(document["trajectory_id"], format!("{id}/{name}"));
        let extra = &document["extra"]["osmosis"];
        assert_eq!(extra["sample_id"], name);
        assert_eq!(extra["reward"], 1.0);
        assert_eq!(extra["request_metadata"], json!({"ground_truth": "5"}));
        assert_eq!(extra["request_extra_fields"], json!({"row_index": 3}));
    }
}

#[tokio::test]
async fn samples_whose_ids_make_the_same_file_name_have_a_trajectory_each() {
    let controller = Controller::start().await;
    let host = of_b("conform").start().await;
    let request = controller.rollout("please name alike: 2 + 3").label("5").as_b();
    host.ask(&request).await;
    controller.callbacks_arrived(2).await;

    let id = request.rollout_id();
    assert_eq!(controller.outcome_of_b(id), Ok(rewards(&[("a/b", Some(1.0)), ("a_b", Some(1.0))])));
    let mut samples: Vec<String> = trajectory_files(&host, id)
        .into_iter()
        .map(|file| std::fs::read(host.kept().join(id).join(file)).unwrap())
        .map(|text| serde_json::from_slice::<Value>(&text).unwrap()["trajectory_id"].to_string())
        .collect();
    samples.sort();
    assert_eq!(samples, [format!("\"{id}/a/b\""), format!("\"{id}/a_b\"")]);
}

#[tokio::test]
async fn a_rollout_that_is_repeated_leaves_no_trajectory_of_the_one_before() {
    let controller = Controller::start().await;
    let host = of_b("conform").start().await;
    let first = controller.rollout(BRANCH).label("5").as_b();
    let again = controller.rollout("2 + 3").id(first.rollout_id()).label("5").as_b();
    host.ask(&first).await;
    controller.callbacks_arrived(2).await;
    let files = trajectory_files(&host, first.rollout_id());
    host.idle().await;
    assert_eq!(host.ask(&again).await.status, 200);
    controller.callbacks_arrived(4).await;

    assert_eq!(files, ["trajectory-first.json", "trajectory-second.json"]);
    assert_eq!(trajectory_files(&host, first.rollout_id()), ["trajectory.json"]);
}

fn trajectory_files(host: &TestHost, id: &str) -> Vec<String> {
    let folder = std::fs::read_dir(host.kept().join(id)).unwrap();
    let names = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut files: Vec<_> = names.filter(|name| name.starts_with("trajectory")).collect();
    files.sort();
    files
}

/// The published controller of B, with the published server, was recorded; see
/// `clients/README.md`. The host is asked the same, and what arrives has to be the same.
#[tokio::test]
async fn rows_of_the_published_controller_go_as_they_went_with_the_published_server() {
    let recorded = project_root().join("tests/clients/recorded_b.json");
    let recorded = std::fs::read_to_string(recorded).unwrap().replace("\"KEY\"", &format!("{KEY_OF_B:?}"));
    let recorded = recorded.replace("Bearer KEY", &format!("Bearer {KEY_OF_B}"));
    for dialect in ["auto", "b"] {
        let controller = Controller::start().await;
        let host = TestHost::of("conform").option("--dialect", dialect).start().await;
        let rows: Vec<Value> =
            serde_json::from_str(&recorded.replace("CONTROLLER", &controller.base_url())).unwrap();
        for row in &rows {
            let of_row = |path: fn(&str) -> bool| {
                let arrived = row["arrived"].as_array().unwrap().iter();
                arrived.filter(|each| path(each["path"].as_str().unwrap())).cloned().collect::<Vec<_>>()
            };
            let (chats, callbacks) =
                (of_row(|path| path.contains("/chat/")), of_row(|path| path.contains("/v1/")));
            controller.answer_chats(chats.iter().map(|chat| Answer::Status(200, chat["answer"].clone())));
            let before = (controller.chats().len(), controller.callbacks().len());

            let reply = host.post("/rollout", &row["request"]).await;

            assert_eq!((reply.status / 100, reply.body), (2, json!({})), "{row:#}");
            let called = controller.callbacks_arrived(before.1 + callbacks.len()).await;
            for (got, expected) in controller.chats()[before.0..].iter().zip(&chats) {
                check_arrived(got, expected);
            }
            assert_eq!(controller.chats().len(), before.0 + chats.len(), "{row:#}");
            for (got, expected) in called[before.1..].iter().zip(&callbacks) {
                check_arrived(got, expected);
            }
            let outcome = controller.outcome_of_b(row["request"]["rollout_id"].as_str().unwrap());
            assert_eq!(outcome.is_ok(), row["outcome"]["status"] == "success", "{outcome:?}");
        }
        assert_eq!(host.stop().await.code, Some(0));
        let calls: usize = rows.len() * 2;
        assert_eq!(controller.callbacks().len(), calls, "two a row and no more");
    }
}

fn check_arrived(got: &Received, expected: &Value) {
    assert_eq!(got.path, expected["path"]);
    for (name, value) in expected["headers"].as_object().unwrap() {
        assert_eq!(got.header(name), value.as_str(), "{name}");
    }
    let mut body = got.body.clone();
    // What a caller that may be of C gets besides.
    body.as_object_mut().unwrap().remove("sample");
    assert_eq!(body, expected["body"]);
}
