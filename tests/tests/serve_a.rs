//! Tests of generation A: immediate tools, calls of its own model, one completion.

use rollout_tests::{
    Answer, Controller, InitRequest, Received, Reply, Serve, Start, TestHost, check_chat, check_completed,
    guest, rollout_host, until,
};
use rustix::process::Signal;
use serde_json::{Value, json};

const INIT: &str = "/v1/rollout/init";

/// Returns options of a host that retries after a tenth of a second.
fn quick(guest_name: &str) -> Serve {
    TestHost::of(guest_name).variable("OSMOSIS_ROLLOUT_CLIENT_RETRY_BASE_DELAY", "0.1")
}

async fn ask(host: &TestHost, request: &InitRequest) -> Reply {
    host.post(INIT, &request.body()).await
}

/// Runs a rollout and stops the host, so that all posts have arrived.
async fn all_completions(host: TestHost, controller: &Controller, request: &InitRequest) -> Vec<Received> {
    let reply = ask(&host, request).await;
    assert_eq!(reply.status, 202, "{}", reply.text);
    let ran = host.stop().await;
    // If the caller did not accept a post, the host reports it and exits with 2.
    let expected = if ran.stderr.contains("was not reported") { 2 } else { 0 };
    assert_eq!(ran.code, Some(expected), "{}", ran.stderr);
    for chat in controller.chats() {
        check_chat(&chat, request.id());
    }
    let completions = controller.callbacks();
    for completed in &completions {
        check_completed(completed, request.id());
    }
    completions
}

/// Runs `all_completions`, and returns the only completion.
async fn completion(host: TestHost, controller: &Controller, request: &InitRequest) -> Value {
    let completions = all_completions(host, controller, request).await;
    assert_eq!(completions.len(), 1, "{completions:?}");
    completions[0].body.clone()
}

/// Returns a reply that calls the guest's tool.
fn calls_add() -> Answer {
    let call = json!({
        "id": "c1", "type": "function", "function": {"name": "add", "arguments": "{\"a\": 2, \"b\": 3}"},
    });
    let message = json!({"role": "assistant", "content": null, "tool_calls": [call], "reasoning": "?"});
    Answer::Status(
        200,
        json!({
            "choices": [{"message": message, "finish_reason": "tool_calls"}],
            "usage": {"prompt_tokens": 5, "completion_tokens": 4},
            "token_ids": [1, 2], "logprobs": [-0.5], "prompt_token_ids": [3],
        }),
    )
}

#[tokio::test]
async fn a_loop_runs_from_its_tools_to_its_one_completion() {
    let controller = Controller::start().await;
    let host = TestHost::start("agent_loop").await;
    controller.answer_chats([calls_add(), Answer::Say("It is #### 5")]);
    let request =
        InitRequest::new(&controller, "Add 2 and 3.").with("metadata", json!({"ground_truth": "5"}));

    let reply = ask(&host, &request).await;

    assert_eq!(reply.status, 202, "{}", reply.text);
    let number = json!({"type": "number", "description": "A number.", "enum": null});
    let tool = json!({"type": "function", "function": {
        "name": "add", "description": "Adds two numbers up.", "strict": false,
        "parameters": {"type": "object", "properties": {"a": number, "b": number}, "required": ["a", "b"]},
    }});
    assert_eq!(reply.body, json!({"rollout_id": request.id(), "tools": [tool]}));

    assert_eq!(host.stop().await.code, Some(0));
    let (chats, completions) = (controller.chats(), controller.callbacks());
    assert_eq!((chats.len(), completions.len()), (2, 1));
    chats.iter().for_each(|chat| check_chat(chat, request.id()));
    check_completed(&completions[0], request.id());
    let expected = json!({
        "model": "default", "messages": [{"role": "user", "content": "Add 2 and 3."}], "rollout_id": request.id(),
        "temperature": 1.0, "top_p": 1.0, "max_tokens": 512, "logprobs": true,
    });
    assert_eq!(chats[0].body, expected, "tools are never sent, and nothing is unlimited");
    let body = &completions[0].body;
    assert_eq!(
        (&body["status"], &body["finish_reason"], &body["reward"]),
        (&json!("COMPLETED"), &json!("stop"), &json!(1.0))
    );
    let messages = body["final_messages"].as_array().unwrap();
    assert_eq!(messages.len(), 4);
    assert_eq!(messages[1]["reasoning"], "?", "messages are opaque");
    assert_eq!(messages[2], json!({"role": "tool", "content": "5.0", "tool_call_id": "c1"}));
    let metrics = &body["metrics"];
    assert_eq!((&metrics["num_llm_calls"], &metrics["num_tool_calls"]), (&json!(2), &json!(1)));
    assert_eq!((&metrics["prompt_tokens"], &metrics["response_tokens"]), (&json!(12), &json!(7)));
    assert_eq!((&metrics["tool_latency_ms"], &metrics["max_context_tokens"]), (&json!(2.0), &json!(0)));
    let latency = |name: &str| metrics[name].as_f64().unwrap();
    assert!(latency("total_latency_ms") >= latency("llm_latency_ms") && latency("llm_latency_ms") > 0.0);
}

#[tokio::test]
async fn the_callers_parameters_reach_loop_and_model_if_their_protocols_have_them() {
    let controller = Controller::start().await;
    let host = TestHost::start("agent_loop").await;
    let params = json!({
        "temperature": 0.25, "top_p": 0.5, "max_tokens": 64, "stop": "END", "logprobs": false, "model": "policy-7",
        "seed": 3, "tools": [{}], "tool_choice": "auto", "stream": true,
    });
    let request = InitRequest::new(&controller, "2 + 3").with("completion_params", params.clone());

    completion(host, &controller, &request).await;

    let chat = &controller.chats()[0].body;
    let expected = json!({
        "model": "policy-7", "messages": [{"role": "user", "content": "2 + 3"}], "rollout_id": request.id(),
        "temperature": 0.25, "top_p": 0.5, "max_tokens": 64, "stop": ["END"], "logprobs": false,
    });
    assert_eq!(chat, &expected);

    let host = TestHost::start("agent_loop").await;
    let request = InitRequest::new(&controller, "report the request")
        .with("completion_params", params.clone())
        .with("max_turns", "3")
        .with("max_tokens_total", 77.0)
        .with("metadata", json!({"row": 1}));
    assert_eq!(ask(&host, &request).await.status, 202);
    host.stop().await;
    let body = &controller.callbacks()[1].body;
    assert_eq!((&body["status"], &body["finish_reason"]), (&json!("COMPLETED"), &json!("told")));
    let seen: Value = serde_json::from_str(body["final_messages"][1]["content"].as_str().unwrap()).unwrap();
    let expected = json!({
        "rollout_id": request.id(), "max_turns": 3, "max_tokens_total": 77, "completion_params": params,
        "metadata": {"row": 1}, "tools": 1,
    });
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn a_loop_may_pass_on_the_callers_parameters_under_any_name() {
    let params = json!({
        "temperature": 0.25, "top_p": 0.5, "max_tokens": 64, "stop": "END", "logprobs": false, "model": "policy-7",
        "seed": 3, "tools": [{}], "n": 2, "stream": true, "api_base": "http://127.0.0.1:9",
    });
    for config in ["", "[model]\nparams = ['temperature']\n"] {
        let controller = Controller::start().await;
        let host = TestHost::of("agent_loop").config(config).start().await;
        let request =
            InitRequest::new(&controller, "pass the parameters on").with("completion_params", params.clone());

        let completed = completion(host, &controller, &request).await;

        assert_eq!(completed["status"], "COMPLETED", "{completed:#}");
        let expected = json!({
            "model": "policy-7", "messages": [{"role": "user", "content": "pass the parameters on"}],
            "rollout_id": request.id(), "temperature": 0.25, "top_p": 0.5, "max_tokens": 64, "stop": ["END"],
            "logprobs": false,
        });
        assert_eq!(controller.chats()[0].body, expected);
    }
}

#[tokio::test]
async fn trap_5_nulls_are_sent_in_tool_schemas_and_omitted_from_completions() {
    let controller = Controller::start().await;
    let host = TestHost::start("agent_loop").await;
    let request = InitRequest::new(&controller, "rich tools");

    let reply = ask(&host, &request).await;

    let parameters = &reply.body["tools"][0]["function"]["parameters"];
    let expected = json!({
        "a": {"type": "integer", "description": null, "enum": ["1", "2"]},
        "b": {"type": "array", "description": null, "enum": null},
    });
    assert_eq!(parameters["properties"], expected, "unknown parts of the schema are dropped");
    host.stop().await;
    let completions = controller.callbacks();
    check_completed(&completions[0], request.id());
    assert_eq!(completions[0].body.get("reward"), None, "neither the loop nor a grader gave one");
}

#[tokio::test]
async fn trap_6_a_chat_call_that_is_answered_429_is_final() {
    let controller = Controller::start().await;
    let host = quick("agent_loop").start().await;
    controller.answer_chats([Answer::Soon(429)]);
    let request = InitRequest::new(&controller, "2 + 3");

    let body = completion(host, &controller, &request).await;

    assert_eq!(controller.chats().len(), 1);
    assert_eq!((&body["status"], &body["finish_reason"]), (&json!("ERROR"), &json!("error")));
    assert_eq!(body["final_messages"], json!([]));
    assert!(body["error_message"].as_str().unwrap().contains("429"), "{body:#}");
    let metrics = &body["metrics"];
    assert_eq!((&metrics["total_latency_ms"], &metrics["num_llm_calls"]), (&json!(0.0), &json!(0)));
}

#[tokio::test]
async fn a_chat_call_is_retried_after_5xx_as_often_as_configured() {
    for (stumbles, status, calls) in [(3, "COMPLETED", 4), (4, "ERROR", 4)] {
        let controller = Controller::start().await;
        let host = quick("agent_loop").start().await;
        controller.answer_chats((0..stumbles).map(|_| Answer::Status(501, json!({}))));
        let request = InitRequest::new(&controller, "2 + 3");

        let body = completion(host, &controller, &request).await;

        assert_eq!((&body["status"], controller.chats().len()), (&json!(status), calls), "{stumbles}");
    }
}

#[tokio::test]
async fn a_chat_answer_without_choices_or_with_another_success_is_final() {
    for answer in [
        Answer::Status(200, json!({"ok": true})),
        Answer::Status(204, json!({})),
        Answer::Status(302, json!({})),
    ] {
        let controller = Controller::start().await;
        let host = quick("agent_loop").start().await;
        controller.answer_chats([answer.clone()]);
        let request = InitRequest::new(&controller, "2 + 3");

        let body = completion(host, &controller, &request).await;

        assert_eq!((&body["status"], controller.chats().len()), (&json!("ERROR"), 1), "{answer:?}");
    }
}

#[tokio::test]
async fn only_200_acknowledges_a_completion_and_a_repetition_never_differs() {
    for (answers, posts) in [(vec![204, 204, 204], 3), (vec![500, 302], 3), (vec![404], 1), (vec![429], 1)] {
        let controller = Controller::start().await;
        let host = quick("agent_loop").start().await;
        controller.answer_callbacks(answers.iter().map(|status| Answer::Status(*status, json!({}))));
        let request = InitRequest::new(&controller, "2 + 3");

        let completions = all_completions(host, &controller, &request).await;

        assert_eq!(completions.len(), posts, "{answers:?}");
        assert!(completions.iter().all(|completed| completed.body == completions[0].body), "{completions:?}");
        assert_eq!(completions[0].body["status"], "COMPLETED");
    }
}

#[tokio::test]
async fn trap_12_the_key_is_checked_before_the_body_and_malformed_json_is_422() {
    let controller = Controller::start().await;
    let host = TestHost::of("agent_loop").option("--api-key", "osm_rollout_k").start().await;
    let request = InitRequest::new(&controller, "2 + 3");

    for reply in [host.post(INIT, &json!({})).await, ask(&host, &request).await] {
        assert_eq!((reply.status, reply.body), (401, json!({"detail": "Invalid or missing API key"})));
    }
    let host = host.with_key("osm_rollout_k");
    let missing = host.post(INIT, &json!({})).await;
    let authorised = ask(&host, &request).await;
    let no_object = host.post(INIT, &json!([])).await;

    assert_eq!(missing.status, 422, "{}", missing.text);
    assert_eq!(authorised.status, 202, "{}", authorised.text);
    assert_eq!(no_object.status, 422, "{}", no_object.text);
}

#[tokio::test]
async fn the_platforms_health_exists_only_with_a_key_and_checks_it() {
    let host = TestHost::start("agent_loop").await;
    assert_eq!(host.get("/platform/health").await.status, 404, "there is no key to check");

    let host = TestHost::of("agent_loop").variable("A_KEY", "k").option("--server-key-env", "A_KEY");
    let host = host.start().await;
    let refused = host.get("/platform/health").await;
    assert_eq!((refused.status, refused.body), (401, json!({"detail": "Invalid or missing API key"})));
    let host = host.with_key("k");
    let health = host.get("/platform/health").await;
    let expected =
        json!({"status": "healthy", "agent_loop": "looping", "active_rollouts": 0, "completed_rollouts": 0});
    assert_eq!((health.status, health.body), (200, expected));
}

#[tokio::test]
async fn health_counts_running_and_finished_rollouts() {
    let controller = Controller::start().await;
    controller.hold();
    let host = TestHost::of("agent_loop").option("--max-concurrent", "1").start().await;
    for _ in 0..2 {
        assert_eq!(ask(&host, &InitRequest::new(&controller, "2 + 3")).await.status, 202);
    }
    controller.chats_open(1).await;
    let counts = async || {
        let health = host.health().await;
        assert_eq!(health["agent_loop"], "looping");
        (health["active_rollouts"].clone(), health["completed_rollouts"].clone())
    };
    assert_eq!(counts().await, (json!(2), json!(0)), "one that waits for a slot is active");
    controller.release();
    until("both to end", async || (counts().await == (json!(0), json!(2))).then_some(())).await;
}

#[tokio::test]
async fn health_counts_rollouts_of_other_generations_too() {
    let controller = Controller::start().await;
    controller.hold();
    let host = TestHost::start("agent_loop").await;
    let polled =
        host.admit(&controller.rollout("2 + 3").with("metadata", json!({"ground_truth": "5"}))).await;
    let called_back = controller.rollout("2 + 3").with_callbacks("k");
    assert_eq!(host.ask(&called_back).await.status, 202);
    controller.chats_open(2).await;
    let counts = async || {
        let health = host.health().await;
        (health["active_rollouts"].clone(), health["completed_rollouts"].clone())
    };
    assert_eq!(counts().await, (json!(2), json!(0)));

    controller.release();
    host.result(&polled).await;
    until("both to end", async || (counts().await == (json!(0), json!(2))).then_some(())).await;
    host.admit(&controller.rollout("2 + 3")).await;
    until("one more", async || (counts().await == (json!(0), json!(3))).then_some(())).await;
}

#[tokio::test]
async fn errors_in_a_request_are_reported_for_each_field() {
    let controller = Controller::start().await;
    let host = TestHost::start("agent_loop").await;
    let good = || InitRequest::new(&controller, "2 + 3");
    let check = async |request: InitRequest, field: &str, r#type: &str| {
        let reply = ask(&host, &request).await;
        assert_eq!(reply.status, 422, "{field}: {}", reply.text);
        let problem = &reply.body["detail"][0];
        let found = (&problem["loc"], &problem["type"]);
        assert_eq!(found, (&json!(["body", field]), &json!(r#type)), "{}", reply.text);
    };
    for field in ["rollout_id", "server_url", "messages", "completion_params"] {
        check(good().without(field), field, "missing").await;
    }
    check(good().with("rollout_id", ""), "rollout_id", "string_too_short").await;
    check(good().with("rollout_id", "x".repeat(257)), "rollout_id", "string_too_long").await;
    check(good().with("rollout_id", " \t"), "rollout_id", "value_error").await;
    check(good().with("server_url", "ftp://h"), "server_url", "value_error").await;
    check(good().with("server_url", "http://"), "server_url", "value_error").await;
    check(good().with("messages", Value::Null), "messages", "list_type").await;
    check(good().with("completion_params", Value::Null), "completion_params", "dict_type").await;
    check(good().with("metadata", Value::Null), "metadata", "dict_type").await;
    check(good().with("metadata", json!({"x": "y".repeat(1 << 20)})), "metadata", "value_error").await;
    check(good().with("max_turns", 3.5), "max_turns", "int_from_float").await;
    check(good().with("max_turns", "three"), "max_turns", "int_parsing").await;
    check(good().with("max_tokens_total", Value::Null), "max_tokens_total", "int_type").await;
    check(good().with("api_key", 3), "api_key", "string_type").await;
    check(good().with("api_key", "a\nb"), "api_key", "value_error").await;

    let all =
        ask(&host, &InitRequest::new(&controller, "").with("rollout_id", 1).with("max_turns", "x")).await;
    assert_eq!(all.body["detail"].as_array().map(Vec::len), Some(2), "{}", all.text);
    assert!(controller.chats().is_empty());
}

#[tokio::test]
async fn a_repeated_request_gets_the_first_answer_and_starts_no_rollout() {
    let controller = Controller::start().await;
    controller.hold();
    let host = TestHost::start("agent_loop").await;
    let first = InitRequest::new(&controller, "2 + 3").with("idempotency_key", "once");
    let second = InitRequest::new(&controller, "rich tools").with("idempotency_key", "once");
    let same_id = InitRequest::new(&controller, "rich tools").with("rollout_id", "twice");

    let (a, b) = tokio::join!(ask(&host, &first), ask(&host, &first));
    let later = ask(&host, &second).await;
    controller.chats_open(1).await;
    controller.release();
    let over = async || (host.health().await["completed_rollouts"] == 1).then_some(());
    until("the rollout to end", over).await;
    let after = ask(&host, &second).await;

    for reply in [&a, &b, &later, &after] {
        assert_eq!((reply.status, &reply.body["rollout_id"]), (202, &json!(first.id())), "{}", reply.text);
        assert_eq!(reply.text, a.text);
    }
    let other = same_id.clone().with("metadata", json!({}));
    let (one, two) = tokio::join!(ask(&host, &same_id), ask(&host, &other));
    assert_eq!((one.status, one.text), (202, two.text), "without a key, the id is the key");
    host.stop().await;
    assert_eq!(controller.callbacks().len(), 2);
}

#[tokio::test]
async fn an_active_id_is_not_run_twice_under_another_key() {
    let controller = Controller::start().await;
    controller.hold();
    let host = TestHost::start("agent_loop").await;
    let request = InitRequest::new(&controller, "2 + 3").with("idempotency_key", "one");
    assert_eq!(ask(&host, &request).await.status, 202);

    let reply = ask(&host, &request.with("idempotency_key", "two")).await;

    assert_eq!(reply.status, 409, "{}", reply.text);
}

#[tokio::test]
async fn a_failure_to_list_tools_is_500_without_a_rollout_and_leaves_the_key_free() {
    let controller = Controller::start().await;
    let host = TestHost::start("agent_loop").await;
    let good = InitRequest::new(&controller, "2 + 3");
    for (text, reason) in [
        ("no tools today", "the shop is closed"),
        ("trap over tools", "told to trap"),
        ("nameless tools", "generation A cannot carry the tool at index 0: function: 'name' is missing"),
    ] {
        let request = InitRequest::new(&controller, text).with("rollout_id", good.id());
        let reply = ask(&host, &request).await;
        assert_eq!(reply.status, 500, "{text}: {}", reply.text);
        assert!(reply.body["detail"].as_str().unwrap().contains(reason), "{}", reply.text);
    }

    let completed = completion(host, &controller, &good).await;

    assert_eq!(completed["status"], "COMPLETED");
    assert_eq!(controller.chats().len(), 1, "only the last ran");
}

#[tokio::test]
async fn a_loop_that_crashes_has_no_messages_and_one_that_returns_an_error_keeps_them() {
    for (text, reason, messages) in [
        ("please fail", "the loop was told to fail", 0),
        ("please refuse", "the loop was told to refuse", 0),
        ("please trap", "told to trap", 0),
        ("declare an error", "the loop gave up", 2),
        ("reward of no number", "which is not a finite number", 0),
    ] {
        let controller = Controller::start().await;
        let host = TestHost::start("agent_loop").await;
        let request = InitRequest::new(&controller, text);

        let body = completion(host, &controller, &request).await;

        assert_eq!((&body["status"], &body["finish_reason"]), (&json!("ERROR"), &json!("error")), "{text}");
        assert!(body["error_message"].as_str().unwrap().contains(reason), "{text}: {body:#}");
        assert_eq!(body["final_messages"].as_array().map(Vec::len), Some(messages), "{text}");
        let total = body["metrics"]["total_latency_ms"].as_f64().unwrap();
        assert_eq!(total > 0.0, messages > 0, "{text}: {body:#}");
    }
}

#[tokio::test]
async fn a_workflow_runs_without_tools_and_with_its_graders_reward() {
    let controller = Controller::start().await;
    let host = TestHost::start("conform").await;
    let request = InitRequest::new(&controller, "2 + 3").with("metadata", json!({"ground_truth": 5}));

    let reply = ask(&host, &request).await;
    assert_eq!((reply.status, &reply.body["tools"]), (202, &json!([])));
    host.stop().await;

    check_chat(&controller.chats()[0], request.id());
    let completed = &controller.callbacks()[0];
    check_completed(completed, request.id());
    let body = &completed.body;
    assert_eq!(
        (&body["status"], &body["finish_reason"], &body["reward"]),
        (&json!("COMPLETED"), &json!("stop"), &json!(1.0))
    );
}

#[tokio::test]
async fn a_workflow_without_a_ground_truth_is_not_graded_and_a_failed_grader_is_an_error() {
    let controller = Controller::start().await;
    let host = TestHost::start("conform").await;
    let body = completion(host, &controller, &InitRequest::new(&controller, "2 + 3")).await;
    assert_eq!((&body["status"], body.get("reward")), (&json!("COMPLETED"), None));

    let controller = Controller::start().await;
    let host = TestHost::start("trap_grading").await;
    let request =
        InitRequest::new(&controller, "2 + 3").with("metadata", json!({"ground_truth": "misbehave"}));
    let body = completion(host, &controller, &request).await;
    assert_eq!((&body["status"], body.get("reward")), (&json!("ERROR"), None));
    assert_eq!(body["final_messages"].as_array().map(Vec::len), Some(2), "the workflow ended normally");
}

#[tokio::test]
async fn a_chat_call_with_undeclared_tools_is_not_sent() {
    let controller = Controller::start().await;
    let host = TestHost::start("workflow_tools").await;
    let request = InitRequest::new(&controller, "2 + 3");

    let body = completion(host, &controller, &request).await;

    assert!(controller.chats().is_empty());
    assert_eq!(body["status"], "ERROR");
    assert!(body["error_message"].as_str().unwrap().contains("export an agent loop"), "{body:#}");
}

#[tokio::test]
async fn events_are_logged_in_a_file_for_each_rollout_and_no_id_escapes_the_directory() {
    let controller = Controller::start().await;
    let host = TestHost::of("agent_loop").option("--log", "events").start().await;
    let request = InitRequest::new(&controller, "2 + 3").with("rollout_id", "../../x");
    assert_eq!(ask(&host, &request).await.status, 202);
    let completed = controller.callbacks_arrived(1).await;
    check_completed(&completed[0], "../../x");
    check_chat(&controller.chats()[0], "../../x");

    let folders: Vec<_> = std::fs::read_dir(host.dir().join("events")).unwrap().flatten().collect();
    assert_eq!(folders.len(), 1);
    let started: u64 = folders[0].file_name().to_str().unwrap().parse().unwrap();
    assert!(started > 1_700_000_000, "{started} is in seconds");
    let files: Vec<_> = std::fs::read_dir(folders[0].path()).unwrap().flatten().collect();
    assert_eq!(files.len(), 1, "{files:?}");
    let lines = std::fs::read_to_string(files[0].path()).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let expected = [
        json!({"event": "pre_llm", "rollout_id": "../../x", "turn": 0, "messages": 1}),
        json!({"event": "rollout_complete", "rollout_id": "../../x", "finish_reason": "stop"}),
    ];
    assert_eq!(lines, expected);
    assert!(!host.dir().join("x.jsonl").exists() && !host.dir().join("events/x.jsonl").exists());
}

#[tokio::test]
async fn a_stopped_host_posts_rollouts_that_end_in_time_and_not_those_that_it_cancels() {
    let controller = Controller::start().await;
    controller.hold();
    let host = TestHost::start("agent_loop").await;
    assert_eq!(ask(&host, &InitRequest::new(&controller, "2 + 3")).await.status, 202);
    controller.chats_open(1).await;
    host.process().signal(Signal::TERM);
    controller.release();
    assert_eq!(host.ended().await.code, Some(0));
    assert_eq!(controller.callbacks().len(), 1);

    controller.hold();
    let host = TestHost::of("agent_loop").config("drain-secs = 0.3\n").start().await;
    assert_eq!(ask(&host, &InitRequest::new(&controller, "2 + 3")).await.status, 202);
    controller.chats_open(1).await;
    assert_eq!(host.stop().await.code, Some(2));
    assert_eq!(controller.callbacks().len(), 1);
}

#[tokio::test]
async fn hooks_run_before_the_host_accepts_and_after_it_drained() {
    let controller = Controller::start().await;
    let host = TestHost::of("agent_loop")
        .config("on-start = 'echo said by the hook; echo started >> hooks.txt'\n")
        .option("--on-stop", "echo stopped >> hooks.txt")
        .start()
        .await;
    let kept = host.dir().join("hooks.txt");
    assert_eq!(std::fs::read_to_string(&kept).unwrap(), "started\n", "it listens, so the hook has run");
    let other = tempfile::tempdir().unwrap();
    let copy = other.path().join("hooks.txt");
    std::fs::hard_link(&kept, &copy).unwrap();
    assert_eq!(ask(&host, &InitRequest::new(&controller, "2 + 3")).await.status, 202);

    let ran = host.stop().await;

    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(std::fs::read_to_string(copy).unwrap(), "started\nstopped\n");
    assert!(!ran.stdout.contains("said by the hook") && ran.stderr.contains("said by the hook"));
}

#[tokio::test]
async fn a_host_whose_start_hook_fails_or_whose_settings_are_wrong_does_not_start() {
    let dir = tempfile::tempdir().unwrap();
    let serve = |arguments: &[&str], variable: Option<(&str, &str)>| {
        let mut command = rollout_host(["serve"]);
        command.arg(guest("agent_loop")).args(["--listen", "127.0.0.1:0"]).args(arguments);
        command.current_dir(dir.path()).envs(variable);
        command.start()
    };
    let check = async |process: rollout_tests::Process, reason: &str| {
        let ran = process.ended().await;
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{}", ran.stderr);
        assert!(ran.stderr.contains(reason), "{}", ran.stderr);
    };
    check(serve(&["--on-start", "exit 3"], None), "the command on-start failed with exit status: 3").await;
    check(serve(&["--api-key", ""], None), "--api-key is empty").await;
    let variable = ("OSMOSIS_ROLLOUT_CLIENT_MAX_RETRIES", "11");
    check(serve(&[], Some(variable)), "osmosis.init.client-max-retries: must be between 0 and 10, not 11")
        .await;
    let variable = ("OSMOSIS_ROLLOUT_CLIENT_TIMEOUT_SECONDS", "soon");
    check(serve(&[], Some(variable)), "OSMOSIS_ROLLOUT_CLIENT_TIMEOUT_SECONDS: 'soon' is not a valid number")
        .await;
}

#[tokio::test]
async fn alone_this_generation_has_its_own_health_without_a_key_and_no_other_routes() {
    let controller = Controller::start().await;
    let host = TestHost::of("agent_loop").config("osmosis.init.alone = true\n").option("--api-key", "k");
    let host = host.start().await;

    let health = host.get("/health").await;
    let metrics = host.get("/metrics").await;
    let host = host.with_key("k");
    let others = host.ask(&controller.rollout("2 + 3")).await;

    let expected =
        json!({"status": "healthy", "agent_loop": "looping", "active_rollouts": 0, "completed_rollouts": 0});
    assert_eq!((health.status, health.body), (200, expected));
    assert_eq!((others.status, metrics.status), (404, 401), "{}", others.text);
    assert_eq!(ask(&host, &InitRequest::new(&controller, "2 + 3")).await.status, 202);
}

#[tokio::test]
async fn a_plugin_that_this_generation_cannot_represent_is_not_served_with_it_alone() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config.toml");
    std::fs::write(&config, "osmosis.init.alone = true\n").unwrap();
    let mut command = rollout_host(["serve"]);
    command.arg(guest("odd_tools_loop")).args(["--listen", "127.0.0.1:0", "--config"]).arg(&config);

    let ran = command.current_dir(dir.path()).start().ended().await;

    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{}", ran.stderr);
    let why = "generation A cannot carry the tool 'odd': parameter 'x': 'type' is missing or not a string";
    assert!(ran.stderr.contains(why), "{}", ran.stderr);
}

#[tokio::test]
async fn a_plugin_that_this_generation_cannot_represent_is_named_and_served_to_others() {
    let controller = Controller::start().await;
    let host = TestHost::start("odd_tools_loop").await;
    let why = "generation A cannot carry the tool 'odd': parameter 'x': 'type' is missing or not a string";
    until("the warning", async || host.process().stderr().contains(why).then_some(())).await;

    let refused = ask(&host, &InitRequest::new(&controller, "2 + 3")).await;
    let result = host.run(&controller.rollout("2 + 3")).await;

    assert_eq!((refused.status, &refused.body["detail"]), (500, &json!(why)));
    assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
}
