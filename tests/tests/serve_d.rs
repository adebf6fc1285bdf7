//! Tests of generation D beyond the published client's requests (see `clients.rs`): the data that the host transfers,
//! and the data that it withholds.

use rollout_tests::{Answer, Controller, TestHost, guest, until};
use serde_json::{Value, json};

#[tokio::test]
async fn a_rollout_returns_its_messages_and_reward() {
    let controller = Controller::start().await;
    let host = TestHost::start("conform").await;
    let request = controller.rollout("Calculate 2 + 3.").label("5");

    let result = host.run(&request).await;

    let expected = json!({
        "rollout_id": request.rollout_id(),
        "status": "success",
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
    assert_eq!(result, expected);
}

#[tokio::test]
async fn a_chat_call_names_its_rollout_and_sample_and_carries_the_key() {
    let controller = Controller::start().await;
    let host = TestHost::start("conform").await;
    let request =
        controller.rollout("Calculate 2 + 3.").label("5").with("llm_api_key", "secret-of-the-model");

    host.run(&request).await;

    let chats = controller.chats();
    let [chat] = &*chats else { panic!("one chat call, not {chats:?}") };
    assert_eq!(chat.path, format!("/rollouts/{}/v1/chat/completions", request.rollout_id()));
    assert_eq!(chat.header("x-rollout-id"), Some(request.rollout_id()));
    assert!(chat.header("x-sample-id").is_some_and(|id| !id.is_empty()), "{:?}", chat.headers);
    assert_eq!(chat.header("authorization"), Some("Bearer secret-of-the-model"));
    assert_eq!(chat.body["model"], "osmosis-rollout");
    assert_eq!(chat.body["stream"], false);
    assert_eq!(chat.body["messages"], request.body()["initial_messages"]);
}

#[tokio::test]
async fn messages_keep_unknown_fields() {
    let controller = Controller::start().await;
    let host = TestHost::start("conform").await;
    let prompt =
        json!([{"role": "user", "content": [{"type": "text", "text": "2 + 3"}], "z": {"b": 1.50, "a": []}}]);
    let reply =
        json!({"role": "assistant", "content": "#### 5", "reasoning_content": "2, 3", "annotations": [{}]});
    let completion = json!({"choices": [{"index": 0, "message": reply, "finish_reason": "stop"}]});
    controller.answer_chats([Answer::Status(200, completion)]);

    let result = host.run(&controller.rollout("").with("initial_messages", prompt.clone()).label("5")).await;

    assert_eq!(controller.chats()[0].body["messages"], prompt);
    assert_eq!(result["sample"]["messages"], json!([prompt[0], reply]));
    assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
}

#[tokio::test]
async fn the_label_is_in_nothing_that_a_workflow_sees_or_sends() {
    const CANARY: &str = "canary-7f3a";
    let controller = Controller::start().await;
    let host = TestHost::of("show_everything").config("[plugin]\ngreeting = 'ahoy'\n").start().await;
    let request = controller
        .rollout("Calculate 2 + 3.")
        .label(CANARY)
        .with("metadata", json!({"difficulty": "easy"}))
        .with("extra_fields", json!({"row_index": 3}))
        .with("llm_api_key", "secret-of-the-model");

    let result = host.run(&request).await;

    assert_eq!(result["sample"]["reward"], CANARY.len() as f64, "the grader received it: {result:#}");
    let sent = format!("{:?}", controller.chats());
    let artifact = host.kept().join(request.rollout_id()).join("artifacts").join("seen.json");
    host.trajectory(request.rollout_id()).await;
    let seen = std::fs::read_to_string(artifact).unwrap();
    let registered = format!("{} {}", result["sample"]["messages"], result["sample"]["extra_fields"]);
    for (text, what) in [(&sent, "sent"), (&seen, "seen"), (&registered, "registered")] {
        assert!(text.contains("difficulty") && text.contains("ahoy"), "{what}: {text}");
        assert!(!text.contains(CANARY), "{what}: {text}");
    }
    for text in [&seen, &registered] {
        assert!(!text.contains("secret-of-the-model"), "no key reaches a guest: {text}");
        assert!(!text.contains("127.0.0.1"), "no address reaches a guest: {text}");
    }
}

#[tokio::test]
async fn a_failed_model_call_is_retried() {
    let controller = Controller::start().await;
    let host = TestHost::start("conform").await;
    controller.answer_chats([Answer::Soon(503), Answer::Soon(429), Answer::Soon(500)]);

    let result = host.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;

    assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
    let chats = controller.chats();
    assert_eq!(chats.len(), 4);
    assert!(chats.iter().all(|chat| chat.body == chats[0].body), "{chats:?}");
}

#[tokio::test]
async fn an_unavailable_model_is_at_fault_and_not_the_plugin() {
    let controller = Controller::start().await;
    let host =
        TestHost::of("conform").config("[model]\nattempts-max = 2\ndelay-base-secs = 0.0\n").start().await;
    for answers in [[Answer::Soon(503), Answer::Soon(503)], [Answer::Text("no JSON"), Answer::Text("<html>")]]
    {
        controller.answer_chats(answers);

        let result = host.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;

        assert_eq!(result["status"], "failure", "{result:#}");
        assert_eq!(result["err_category"], "http_error", "{result:#}");
        assert_eq!(result["sample"], Value::Null, "{result:#}");
    }
    assert_eq!(controller.chats().len(), 4);
    host.idle().await;
}

/// Returns whether a text has a part of the model's key, other than the placeholder for the key.
fn shows_key(text: &str) -> bool {
    text.replace("(secret)", "").contains("secret")
}

#[tokio::test]
async fn a_key_that_the_model_echoes_is_disclosed_nowhere() {
    let controller = Controller::start().await;
    let host = TestHost::of("conform").variable("ROLLOUT_HOST_LOG", "rollout_host=debug").start().await;
    let echo = "secret-of-the-model is not a key";
    // The text is cut off at some length, perhaps inside the key.
    for padding in [0, 1000, 2020, 2030, 4080, 8180] {
        let body = json!({"error": format!("{}{echo}", "x".repeat(padding))});
        controller.answer_chats([Answer::Status(401, body)]);
        let request =
            controller.rollout("Calculate 2 + 3.").label("5").with("llm_api_key", "secret-of-the-model");

        let result = host.run(&request).await;

        assert_eq!(result["err_category"], "http_error", "{result:#}");
        assert!(!shows_key(&result.to_string()), "{result:#}");
    }
    let ran = host.stop().await;
    assert!(!shows_key(&ran.stderr), "{}", ran.stderr);
}

#[tokio::test]
async fn a_rollout_has_the_status_grading_only_while_it_is_graded() {
    let controller = Controller::start().await;
    let host = TestHost::start("spin_grading").await;
    let graded = host.admit(&controller.rollout("Calculate 2 + 3.").label("misbehave")).await;
    until("the status grading", async || {
        (host.poll(&graded).await.body["status"] == "grading").then_some(())
    })
    .await;
    host.cancel(&graded.id).await;

    // A brief state may be missed, so the test polls many rollouts.
    for _ in 0..20 {
        let request =
            controller.rollout("2 + 3").label("5").with("chat_completions_url", "http://127.0.0.1:9/v1");
        let failing = host.admit(&request.agent_secs(0.0)).await;
        let mut statuses = Vec::new();
        while statuses.last() != Some(&json!("failure")) {
            statuses.push(host.poll(&failing).await.body["status"].clone());
        }
        assert!(!statuses.contains(&json!("grading")), "{statuses:?}");
    }
}

#[tokio::test]
async fn a_model_call_does_not_follow_a_redirect_with_its_key() {
    let controller = Controller::start().await;
    let host = TestHost::start("conform").await;
    controller.answer_chats([Answer::Status(307, json!({}))]);

    let result = host.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;

    assert_eq!(result["err_category"], "http_error", "{result:#}");
    assert_eq!(controller.chats().len(), 1);
}

#[tokio::test]
async fn a_separate_grader_component_replaces_the_plugins_grader() {
    let controller = Controller::start().await;
    let grader = guest("only_grader").display().to_string();
    for workflow in ["conform", "only_workflow"] {
        let host = TestHost::of(workflow).option("--grader", &grader).start().await;

        let result = host.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;

        assert_eq!(result["sample"]["reward"], 0.25, "{result:#}");
    }
}

#[tokio::test]
async fn without_a_grader_there_is_no_reward() {
    let controller = Controller::start().await;
    let host = TestHost::start("only_workflow").await;

    let graded = host.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    let ungraded = host.run(&controller.rollout("Calculate 2 + 3.").label("5").with("grade", false)).await;

    assert_eq!(graded["status"], "failure", "{graded:#}");
    assert_eq!(graded["sample"], Value::Null, "{graded:#}");
    assert_eq!(ungraded["status"], "success", "{ungraded:#}");
    assert_eq!(ungraded["sample"]["reward"], Value::Null, "{ungraded:#}");
}

#[tokio::test]
async fn without_the_servers_key_every_route_is_closed() {
    let controller = Controller::start().await;
    let host = TestHost::of("conform")
        .variable("KEY_OF_THE_SERVER", "secret-of-the-server")
        .option("--server-key-env", "KEY_OF_THE_SERVER")
        .start()
        .await;
    let request = controller.rollout("Calculate 2 + 3.").label("5");
    let refused = json!({"detail": "unauthorized"});

    for path in ["/health", "/rollout/r/result", "/rollout/r/status", "/nowhere"] {
        let reply = host.get(path).await;
        assert_eq!((reply.status, reply.body), (401, refused.clone()), "{path}");
    }
    for path in ["/rollout", "/rollout/cancel"] {
        let reply = host.post(path, &request.body()).await;
        assert_eq!((reply.status, reply.body), (401, refused.clone()), "{path}");
    }
    let host = host.with_key("secret-of-the-server");
    assert_eq!(host.run(&request).await["sample"]["reward"], 1.0);
}

#[tokio::test]
async fn a_rollout_that_is_not_polled_ends_with_its_lease() {
    let controller = Controller::start().await;
    controller.hold();
    let times = "[osmosis]\nresult-wait-secs = 0.1\nlease-secs = 0.4\n";
    let host = TestHost::of("conform").config(times).start().await;

    let rollout = host.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    controller.chats_open(1).await;
    controller.chats_open(0).await;
    host.idle().await;

    let result = host.result(&rollout).await;
    assert_eq!(result["status"], "failure", "{result:#}");
    assert_eq!(result["err_category"], "lease_expired", "{result:#}");
    assert_eq!(result["sample"], Value::Null, "{result:#}");
}

#[tokio::test]
async fn a_rollout_that_is_polled_outlives_its_lease() {
    let controller = Controller::start().await;
    controller.hold();
    let times = "[osmosis]\nresult-wait-secs = 0.25\nlease-secs = 3.0\n";
    let host = TestHost::of("conform").config(times).start().await;
    let rollout = host.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await;

    // Each poll waits for a twelfth of the lease.
    for _ in 0..15 {
        let reply = host.poll(&rollout).await;
        assert!(
            ["queued", "running"].iter().any(|status| reply.body["status"] == *status),
            "{:?}",
            reply.body
        );
    }
    controller.release();

    assert_eq!(host.result(&rollout).await["sample"]["reward"], 1.0);
}

#[tokio::test]
async fn a_result_expires_and_the_id_is_free_again() {
    let controller = Controller::start().await;
    let host = TestHost::of("conform").config("[osmosis]\nresult-ttl-secs = 2.0\n").start().await;
    let request = controller.rollout("Calculate 2 + 3.").label("5");
    let rollout = host.admit(&request).await;
    host.result(&rollout).await;

    until("the result to be forgotten", async || (host.poll(&rollout).await.status == 404).then_some(()))
        .await;

    assert_eq!(host.run(&request).await["sample"]["reward"], 1.0);
}

#[tokio::test]
async fn an_id_is_in_use_while_its_rollout_runs_and_while_its_result_is_stored() {
    let controller = Controller::start().await;
    controller.hold();
    let host = TestHost::start("conform").await;
    let request = controller.rollout("Calculate 2 + 3.").label("5");
    let rollout = host.admit(&request).await;

    let while_alive = host.ask(&request).await.status;
    controller.release();
    let result = host.result(&rollout).await;
    let while_kept = host.ask(&request).await.status;

    assert_eq!((while_alive, while_kept), (409, 409));
    assert_eq!(host.poll(&rollout).await.body, result, "the first one is unharmed");
    assert_eq!(controller.chats().len(), 1);
}

#[tokio::test]
async fn a_trajectory_has_the_claimed_and_the_observed_conversation() {
    let controller = Controller::start().await;
    let host = TestHost::start("conform").await;
    let request = controller.rollout("Calculate 2 + 3.").label("5");
    host.run(&request).await;

    let trajectory = host.trajectory(request.rollout_id()).await;

    assert_eq!(trajectory["schema_version"], "ATIF-v1.7", "{trajectory:#}");
    assert_eq!(trajectory["session_id"], request.rollout_id());
    let steps = trajectory["steps"].as_array().unwrap();
    let entries: Vec<_> =
        steps.iter().map(|step| (&step["step_id"], &step["source"], &step["message"])).collect();
    let (one, two) = (json!(1), json!(2));
    let (user, agent) = (json!("user"), json!("agent"));
    let (prompt, answered) = (json!("Calculate 2 + 3."), json!("The sum is #### 5"));
    assert_eq!(entries, [(&one, &user, &prompt), (&two, &agent, &answered)]);
    assert_eq!(steps[1]["metrics"]["prompt_tokens"], 7, "{trajectory:#}");
    assert_eq!(steps[1]["metrics"]["completion_tokens"], 3, "{trajectory:#}");
    assert_eq!(trajectory["extra"]["osmosis"]["reward"], 1.0, "{trajectory:#}");
    assert_eq!(trajectory["extra"]["osmosis"]["label"], "5", "{trajectory:#}");
}

#[tokio::test]
async fn a_rollout_that_failed_has_a_trajectory_too() {
    let controller = Controller::start().await;
    let host = TestHost::start("conform").await;
    let request = controller.rollout("Calculate 2 + 3.").label("please fail");
    host.run(&request).await;

    let trajectory = host.trajectory(request.rollout_id()).await;

    assert_eq!(trajectory["steps"][1]["message"], "The sum is #### 5", "{trajectory:#}");
    assert_eq!(trajectory["extra"]["osmosis"]["reward"], Value::Null, "{trajectory:#}");
}
