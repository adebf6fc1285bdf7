//! Tests of agent loops under other protocols than their own: with polling, callbacks, and in evaluations.

use rollout_tests::{Answer, Controller, Start, TestHost, example, guest, project_root, rollout_host};
use serde_json::{Value, json};

/// Returns a reply that calls the guest's tool.
fn calls_add() -> Answer {
    let call = json!({
        "id": "c1", "type": "function", "function": {"name": "add", "arguments": "{\"a\": 2, \"b\": 3}"},
    });
    Answer::Status(
        200,
        json!({"choices": [{"message": {"role": "assistant", "content": null, "tool_calls": [call]}}]}),
    )
}

#[tokio::test]
async fn a_polled_loop_returns_its_messages_and_its_own_reward() {
    let controller = Controller::start().await;
    let host = TestHost::start("agent_loop").await;
    controller.answer_chats([calls_add(), Answer::Say("It is #### 5")]);

    let request = controller.rollout("Add 2 and 3.").with("metadata", json!({"ground_truth": "5"}));
    let result = host.run(&request).await;

    assert_eq!(result["status"], "success", "{result:#}");
    assert_eq!(result["sample"]["reward"], 1.0);
    assert_eq!(result["sample"]["metrics"], json!({"turns": 2.0}));
    let messages = result["sample"]["messages"].as_array().unwrap();
    let roles: Vec<&Value> = messages.iter().map(|message| &message["role"]).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "assistant"]);
    assert_eq!(messages[2], json!({"role": "tool", "content": "5.0", "tool_call_id": "c1"}));
    let chats = controller.chats();
    assert!(chats.iter().all(|chat| chat.body["tools"][0]["function"]["name"] == "add"), "{chats:?}");
    assert!(chats.iter().all(|chat| chat.header("x-sample-id") == Some("main")), "{chats:?}");
}

#[tokio::test]
async fn a_loop_gets_defaults_if_the_protocol_has_no_values() {
    let controller = Controller::start().await;
    let host = TestHost::start("agent_loop").await;
    let request = controller.rollout("report the request").id("told").with("grade", false);
    let request = request.with("metadata", json!({"row": 7}));

    let result = host.run(&request).await;

    let last = result["sample"]["messages"][1]["content"].as_str().unwrap().to_owned();
    let expected = json!({
        "rollout_id": "told", "max_turns": 10, "max_tokens_total": 8192, "completion_params": {},
        "metadata": {"row": 7}, "tools": 1,
    });
    assert_eq!(serde_json::from_str::<Value>(&last).unwrap(), expected);
}

#[tokio::test]
async fn a_graders_reward_overrides_the_loops_own() {
    let controller = Controller::start().await;
    let host = TestHost::start("rated_loop").await;

    let request =
        controller.rollout("2 + 3").label("5").with("metadata", json!({"ground_truth": "something else"}));
    let result = host.run(&request).await;

    assert_eq!(result["sample"]["reward"], 0.25, "{result:#}");
}

#[tokio::test]
async fn without_grading_the_loops_own_reward_stays() {
    let controller = Controller::start().await;
    let host = TestHost::start("rated_loop").await;

    let request = controller.rollout("2 + 3").with("metadata", json!({"expected": "5"})).with("grade", false);
    let result = host.run(&request).await;

    assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
}

#[tokio::test]
async fn a_loop_without_a_reward_of_its_own_has_none() {
    let controller = Controller::start().await;
    let host = TestHost::start("agent_loop").await;

    let result = host.run(&controller.rollout("2 + 3").with("grade", false)).await;

    assert_eq!(result["status"], "success", "{result:#}");
    assert_eq!(result["sample"]["reward"], Value::Null);
}

#[tokio::test]
async fn a_loop_that_fails_is_reported_with_its_reason_and_no_reward() {
    let controller = Controller::start().await;
    let host = TestHost::start("agent_loop").await;
    for (text, reason, category) in [
        ("please fail", "the loop was told to fail", "agent_error"),
        ("please refuse", "the loop was told to refuse", "validation_error"),
        ("declare an error", "the loop gave up", "agent_error"),
        (
            "reward of no number",
            "agent loop gave itself the reward NaN, which is not a finite number",
            "validation_error",
        ),
    ] {
        let result = host.run(&controller.rollout(text)).await;
        let failure = (&result["status"], &result["err_message"], &result["err_category"]);
        assert_eq!(failure, (&json!("failure"), &json!(reason), &json!(category)), "{text}");
        assert_eq!(result["sample"], Value::Null, "{text}");
    }
}

#[tokio::test]
async fn messages_of_a_failed_loop_are_in_its_trajectory() {
    let controller = Controller::start().await;
    let host = TestHost::start("agent_loop").await;
    let request = controller.rollout("declare an error");

    host.run(&request).await;

    let trajectory = host.trajectory(request.rollout_id()).await;
    assert!(trajectory["steps"].to_string().contains("I give up."), "{trajectory:#}");
}

#[tokio::test]
async fn a_loops_own_reward_is_posted_back() {
    let controller = Controller::start().await;
    let host = TestHost::start("agent_loop").await;
    let request =
        controller.rollout("2 + 3").with("metadata", json!({"ground_truth": "5"})).with_callbacks("key");
    assert_eq!(host.ask(&request).await.status, 202);

    let ran = host.stop().await;

    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let callbacks = controller.callbacks();
    let statuses: Vec<&Value> = callbacks.iter().map(|callback| &callback.body["status"]).collect();
    assert_eq!(statuses, ["success", "success"]);
    assert_eq!(callbacks[1].body["sample"]["reward"], 1.0);
}

#[tokio::test]
async fn an_evaluation_uses_a_loops_own_rewards_and_invents_none() {
    let dir = tempfile::tempdir().unwrap();
    let rows = dir.path().join("rows.jsonl");
    let line =
        |prompt: &str, metadata: Value| json!({"user_prompt": prompt, "metadata": metadata}).to_string();
    let text = [
        line("Calculate 2 + 3. Answer after ####.", json!({"ground_truth": "5"})),
        line("Calculate 2 + 3. Answer after ####.", json!({"ground_truth": "6"})),
        line("Calculate 2 + 3. Answer after ####.", json!({})),
    ];
    std::fs::write(&rows, text.join("\n")).unwrap();
    let out = dir.path().join("out");

    let mut command = rollout_host(["eval"]);
    command.arg(guest("agent_loop")).args(["--model", "mock", "--data"]).arg(rows).arg("--out").arg(&out);
    let ran = command.start().ended().await;

    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let results = std::fs::read_to_string(out.join("results.jsonl")).unwrap();
    let mut lines: Vec<Value> = results.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    lines.sort_by_key(|line| line["row"].as_u64());
    let rewards: Vec<&Value> = lines.iter().map(|line| &line["reward"]).collect();
    assert_eq!(rewards, [&json!(1.0), &json!(0.0), &Value::Null], "{results}");
    assert_eq!((&lines[2]["kind"], &lines[2]["fault"]), (&json!("no_reward"), &json!("plugin")));
}

#[tokio::test]
async fn the_example_loops_get_the_rewards_of_their_scripts() {
    for (name, expected) in
        [("search", &[1.0, 1.0, 1.0, 0.6, 0.0][..]), ("calculator-loop", &[1.0, 1.0, 1.0, 0.0][..])]
    {
        let dir = tempfile::tempdir().unwrap();
        let files = project_root().join("examples").join(name);
        let mut command = rollout_host(["eval"]);
        command
            .arg(example(&format!("example-{name}")))
            .args(["--model", "mock", "--mock-script"])
            .arg(files.join("replies.jsonl"));
        command.arg("--data").arg(files.join("rows.jsonl")).arg("--out").arg(dir.path().join("out"));

        let ran = command.start().ended().await;

        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let results = std::fs::read_to_string(dir.path().join("out/results.jsonl")).unwrap();
        let mut lines: Vec<Value> = results.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        lines.sort_by_key(|line| line["row"].as_u64());
        let rewards: Vec<f64> = lines.iter().map(|line| line["reward"].as_f64().unwrap()).collect();
        assert_eq!(rewards, expected, "{name}: {results}");
    }
}

#[tokio::test]
async fn inspect_names_the_form() {
    for (name, expected) in [("agent_loop", "an agent loop"), ("rated_loop", "an agent loop and a grader")] {
        let mut command = rollout_host(["inspect"]);
        let ran = command.arg(guest(name)).start().ended().await;
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        assert!(ran.stdout.lines().next().unwrap_or_default().ends_with(expected), "{}", ran.stdout);
    }
}
