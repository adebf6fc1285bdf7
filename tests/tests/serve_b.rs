//! Tests of generation B: many samples, each with a reward, and the two callbacks.
//!
//! The outcome of each rollout is computed like in B's only published controller ([`Controller::outcome_of_b`]), and
//! the model is as strict as that controller's.

use std::collections::BTreeMap;

use rollout_tests::{Answer, Controller, KEY_OF_B, Received, RolloutRequest, Serve, TestHost, project_root};
use serde_json::{Value, json};

const BRANCH: &str = "please branch: Calculate 2 + 3.";

/// Returns options of a host for callers of B only.
fn of_b(guest: &str) -> Serve {
    TestHost::of(guest).option("--osmosis-generation", "b")
}

/// Returns the kinds in the callbacks' paths: `rollout` or `grader`.
fn kinds(callbacks: &[Received]) -> Vec<&str> {
    callbacks.iter().filter_map(|callback| callback.path.split('/').nth(2)).collect()
}

/// Runs a rollout and returns its two callbacks, which must be the completion and the grader's, in this order.
async fn both(host: TestHost, controller: &Controller, request: &RolloutRequest) -> (Value, Value) {
    let callbacks = host.all_callbacks(controller, request).await;
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
async fn every_sample_is_returned_under_its_name_with_a_reward() {
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

    let callbacks = host.all_callbacks(&controller, &one).await;

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
async fn a_caller_that_looks_like_c_also_gets_the_map_but_only_one_sample() {
    let controller = Controller::start().await;
    let host = TestHost::start("conform").await;
    // A request like 0.3.0's: the id is in the addresses, and the model has no key of its own.
    let like_c = |text| controller.rollout(text).label("5").with_callbacks("k").without("llm_api_key");
    assert_eq!(host.ask(&like_c(BRANCH)).await.status, 202);
    controller.callbacks_arrived(2).await;

    let callbacks = host.all_callbacks(&controller, &like_c("2 + 3")).await;

    assert_eq!(callbacks[0].body["status"], "failure");
    assert_eq!(
        callbacks[0].body["err_message"],
        "this rollout takes 1 samples at the most (samples-max of the host, or less where its caller takes fewer)"
    );
    assert_eq!(callbacks[1].body["sample"], Value::Null);
    assert_eq!(callbacks[1].body["samples"], json!({}));
    assert_eq!(callbacks[3].body["sample"]["reward"], 1.0);
    assert_eq!(callbacks[3].body["samples"].as_object().map(|samples| samples.len()), Some(1));
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
async fn a_grader_that_fails_is_reported_with_the_samples_and_no_reward() {
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
async fn workflow_and_grader_are_stopped_at_the_callers_timeouts() {
    let controller = Controller::start().await;
    let host = of_b("conform").start().await;
    let slow = controller.rollout("please spin").label("5").as_b().agent_secs(0.3);
    let slow_grading = controller.rollout(BRANCH).label("please spin").as_b().with("grader_timeout_sec", 0.3);
    host.ask(&slow).await;
    controller.callbacks_arrived(2).await;

    let callbacks = host.all_callbacks(&controller, &slow_grading).await;

    let timeout = json!("timeout");
    let why = json!("workflow exceeded its 0.3s deadline");
    assert_eq!(brief(&callbacks[0].body), (json!("failure"), why, timeout.clone()));
    assert_eq!(brief(&callbacks[1].body), (json!("failure"), Value::Null, Value::Null));
    assert_eq!(callbacks[2].body["status"], "success");
    let why = json!("grader exceeded its 0.3s deadline");
    assert_eq!(brief(&callbacks[3].body), (json!("failure"), why, timeout));
}

#[tokio::test]
async fn a_cancelled_rollout_sends_no_more_callbacks() {
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

    let callbacks = host.all_callbacks(&controller, &request).await;

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

    let callbacks = host.all_callbacks(&controller, &request).await;

    assert_eq!(kinds(&callbacks), ["rollout", "grader", "grader"]);
    assert_eq!(callbacks[2].body["samples"], json!({}));
    assert_eq!(callbacks[2].body["status"], "failure");
}

#[tokio::test]
async fn without_a_grader_url_there_is_one_callback() {
    let controller = Controller::start().await;
    let host = of_b("conform").start().await;
    let request = controller.rollout(BRANCH).label("5").as_b().with("grader_callback_url", Value::Null);

    let callbacks = host.all_callbacks(&controller, &request).await;

    assert_eq!(kinds(&callbacks), ["rollout"]);
}

#[tokio::test]
async fn without_a_key_no_request_carries_one() {
    let controller = Controller::start().await;
    for key in [Value::Null, json!("")] {
        let host = of_b("conform").start().await;
        let request = controller.rollout("please return nothing").label("5").as_b();

        let callbacks = host.all_callbacks(&controller, &request.with("controller_api_key", key)).await;

        assert!(callbacks.iter().all(|callback| callback.header("authorization").is_none()));
    }
}

#[tokio::test]
async fn the_operators_generation_overrides_the_form_of_a_request() {
    let controller = Controller::start().await;
    let host = TestHost::of("conform").config("[osmosis]\ngeneration = \"b\"\n").start().await;
    // B ignores C's own field, and C's key is not the model's.
    let odd = controller.rollout("2 + 3").label("5").as_b().with("llm_api_key", "");
    assert_eq!(host.ask(&odd).await.status, 200);
    let graded = controller.callbacks_arrived(2).await[1].body.clone();
    assert!(graded.get("sample").is_none() && graded["samples"].is_object(), "{graded:#}");
    for field in ["rollout_id", "completion_callback_url"] {
        let refused = host.ask(&controller.rollout("2 + 3").as_b().without(field)).await;
        assert_eq!(refused.status, 422, "{refused:?}");
        assert_eq!(refused.body["detail"][0]["loc"], json!(["body", field]));
    }

    let host = TestHost::of("conform").option("--osmosis-generation", "c").start().await;
    host.ask(&controller.rollout("2 + 3").label("5").as_b()).await;
    let graded = controller.callbacks_arrived(4).await[3].body.clone();
    assert!(graded.get("samples").is_none(), "{graded:#}");
    assert_eq!(graded["sample"]["reward"], 1.0);

    let host = TestHost::of("conform").option("--osmosis-generation", "d").start().await;
    let request = controller.rollout("2 + 3").label("5").as_b().with("llm_api_key", KEY_OF_B);
    let result = host.run(&request).await;
    assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
    assert_eq!(controller.callbacks().len(), 4, "D sends no callbacks");
}

#[tokio::test]
async fn an_active_id_is_refused_and_its_rollout_continues() {
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
async fn samples_whose_ids_map_to_the_same_file_name_have_separate_trajectories() {
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
async fn a_repeated_rollout_replaces_the_earlier_trajectories() {
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

/// The messages of the published controller of B with the published server were recorded; see `clients/README.md`. The
/// host gets the same requests, and must send the same messages.
#[tokio::test]
async fn rows_of_the_published_controller_have_the_outcomes_of_the_published_server() {
    let recorded = project_root().join("tests/clients/recorded_b.json");
    let recorded = std::fs::read_to_string(recorded).unwrap().replace("\"KEY\"", &format!("{KEY_OF_B:?}"));
    let recorded = recorded.replace("Bearer KEY", &format!("Bearer {KEY_OF_B}"));
    for generation in ["auto", "b"] {
        let controller = Controller::start().await;
        let host = TestHost::of("conform").option("--osmosis-generation", generation).start().await;
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
    // An additional field for callers that may be of C.
    body.as_object_mut().unwrap().remove("sample");
    assert_eq!(body, expected["body"]);
}
