//! Tests of graders that call a judge: its own server, key, budget and record, and no reward without it.

use rollout_tests::{Answer, Controller, Ran, Start, TestHost, guest, project_root, rollout_host};
use serde_json::{Value, json};

/// Starts a host whose graders have a judge on another server than the model's.
async fn host_with(judge: &Controller, more: &[(&str, &str)]) -> TestHost {
    let mut serve = TestHost::of("judged")
        .config(&format!(
            "[model]\ndelay-base-secs = 0.01\nattempts-max = 2\n[judge]\nurl = '{}'\nmodel = 'a-judge'\n\
             api-key-env = 'JUDGE_KEY'\nattempts-max = 3\n",
            judge.model_url()
        ))
        .variable("JUDGE_KEY", "key-of-the-judge");
    for (option, value) in more {
        serve = serve.option(option, value);
    }
    serve.start().await
}

const GOOD: &str = r#"{"score": 8, "explanation": "Nearly."}"#;

fn failure(trajectory: &Value) -> (&str, &str, &str) {
    let outcome = &trajectory["extra"]["rollout_host"]["outcome"];
    let word = |key: &str| outcome[key].as_str().unwrap_or_default();
    (word("stage"), word("kind"), word("fault"))
}

#[tokio::test]
async fn a_rubric_calls_the_judge_once_and_its_score_is_the_reward() {
    let (model, judge) = (Controller::start().await, Controller::start().await);
    judge.answer_chats([Answer::Say(
        "<think>hm</think>\n```json\n{\"score\": 80, \"explanation\": \"Good.\"}\n```",
    )]);
    let host = host_with(&judge, &[]).await;
    let request = model.rollout("1 + 2").label("3");

    let result = host.run(&request).await;

    assert_eq!(result["sample"]["reward"], 10.0, "80 is put at the end of the range: {result:#}");
    assert_eq!(model.chats().len(), 1);
    let calls = judge.chats();
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0].header("authorization"), Some("Bearer key-of-the-judge"));
    assert_eq!(calls[0].header("x-rollout-id"), Some(request.rollout_id()));
    assert_eq!(calls[0].header("x-sample-id"), None, "a call of the judge belongs to no sample");
    let body = &calls[0].body;
    assert_eq!((&body["model"], &body["temperature"]), (&json!("a-judge"), &json!(0.0)));
    let schema = &body["response_format"]["json_schema"]["schema"];
    assert_eq!(schema["required"], json!(["score", "explanation"]));
    assert_eq!(schema["properties"]["score"]["maximum"], 10.0);
    let text = body["messages"][1]["content"].as_str().unwrap();
    for part in [
        "<<<BEGIN_RUBRIC>>>\nIs the answer right?\n<<<END_RUBRIC>>>",
        "<<<BEGIN_GROUND_TRUTH>>>\n3\n<<<END_GROUND_TRUTH>>>",
        "<<<BEGIN_ORIGINAL_INPUT>>>\nthe question\n",
        "<<<BEGIN_METADATA>>>\n{\"row\":7}\n",
        "<<<BEGIN_CANDIDATE>>>\nThe sum is #### 3\n<<<END_CANDIDATE>>>",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}

#[tokio::test]
async fn calls_of_the_judge_are_recorded_separately_from_the_samples() {
    let (model, judge) = (Controller::start().await, Controller::start().await);
    judge.answer_chats([Answer::Say(GOOD)]);
    let host = host_with(&judge, &[]).await;
    let request = model.rollout("1 + 2").label("3");
    host.run(&request).await;

    let trajectory = host.trajectory(request.rollout_id()).await;

    let ours = &trajectory["extra"]["rollout_host"];
    assert_eq!(ours["judged"].as_array().map(Vec::len), Some(1), "{ours:#}");
    assert_eq!(ours["judged"][0]["request"]["model"], "a-judge");
    assert_eq!(ours["judged"][0]["reply"]["choices"][0]["message"]["content"], GOOD);
    assert_eq!((&ours["usage"]["judge_calls"], &ours["usage"]["judge_tokens"]), (&json!(1), &json!(10)));
    assert_eq!((&ours["usage"]["chat_calls"], &ours["usage"]["prompt_tokens"]), (&json!(1), &json!(7)));
    assert_eq!(ours["observed"].as_array().map(Vec::len), Some(1), "{ours:#}");
    assert!(!trajectory.to_string().contains("key-of-the-judge"));
    let metrics = host.metrics().await;
    for (series, value) in [
        ("rollout_host_judge_calls_total{outcome=\"replied\"}", 1.0),
        ("rollout_host_model_calls_total{outcome=\"replied\"}", 1.0),
        ("rollout_host_judge_tokens_total{kind=\"prompt\"}", 7.0),
        ("rollout_host_tokens_total{kind=\"prompt\"}", 7.0),
        ("rollout_host_judge_call_seconds_count", 1.0),
        ("rollout_host_judge_calls_in_flight", 0.0),
    ] {
        assert_eq!(metrics.get(series), Some(value), "{series}");
    }
}

#[tokio::test]
async fn a_judge_that_fails_leaves_the_rollout_unscored_and_is_to_blame() {
    let (model, judge) = (Controller::start().await, Controller::start().await);
    let host = host_with(&judge, &[]).await;
    let bad_key = json!({"error": "no such key: key-of-the-judge"});
    for (answers, named) in [
        (vec![Answer::Status(401, bad_key)], "401"),
        (vec![Answer::Soon(503), Answer::Soon(503), Answer::Soon(503)], "unavailable"),
        (vec![Answer::Text("<html>"), Answer::Text("<html>"), Answer::Text("<html>")], "unavailable"),
    ] {
        judge.answer_chats(answers);
        let request = model.rollout("1 + 2").label("3");

        let result = host.run(&request).await;

        assert_eq!(result["status"], "failure", "{result:#}");
        assert!(result["sample"]["reward"].is_null(), "{result:#}");
        let trajectory = host.trajectory(request.rollout_id()).await;
        assert_eq!(failure(&trajectory), ("grader", "judge", "model"), "{result:#}");
        let reason = trajectory["extra"]["rollout_host"]["outcome"]["reason"].as_str().unwrap();
        assert!(reason.contains(named), "{reason}");
        assert!(!reason.contains("key-of-the-judge"), "{reason}");
        assert!(!trajectory["extra"]["rollout_host"]["judged"][0]["error"].is_null());
    }
}

#[tokio::test]
async fn an_invalid_rating_leaves_the_rollout_unscored() {
    let (model, judge) = (Controller::start().await, Controller::start().await);
    let host = host_with(&judge, &[]).await;
    for (reply, named) in [
        ("I would say 8.", "not JSON"),
        (r#"{"score": "8", "explanation": "x"}"#, "finite number"),
        (r#"{"score": 8, "explanation": ""}"#, "empty"),
        (r#"{"score": 8}"#, "explanation"),
    ] {
        judge.answer_chats([Answer::Say(reply)]);
        let request = model.rollout("1 + 2").label("3");

        let result = host.run(&request).await;

        assert!(result["sample"]["reward"].is_null(), "{result:#}");
        let trajectory = host.trajectory(request.rollout_id()).await;
        assert_eq!(failure(&trajectory), ("grader", "error", "plugin"), "{reply}");
        let reason = trajectory["extra"]["rollout_host"]["outcome"]["reason"].as_str().unwrap();
        assert!(reason.contains("no rating") && reason.contains(named), "{reason}");
    }
}

#[tokio::test]
async fn a_server_without_schema_support_gets_a_request_for_plain_json() {
    let (model, judge) = (Controller::start().await, Controller::start().await);
    let refusal = json!({"error": {"message": "response_format json_schema is not supported"}});
    judge.answer_chats([Answer::Status(400, refusal), Answer::Say(GOOD)]);
    let host = host_with(&judge, &[]).await;

    let result = host.run(&model.rollout("1 + 2").label("3")).await;

    assert_eq!(result["sample"]["reward"], 8.0, "{result:#}");
    assert_eq!(judge.chats()[1].body["response_format"], json!({"type": "json_object"}));
}

#[tokio::test]
async fn without_a_judge_there_is_no_reward_and_the_operator_is_to_blame() {
    let model = Controller::start().await;
    let host = TestHost::start("judged").await;
    let request = model.rollout("1 + 2").label("3");

    let result = host.run(&request).await;

    assert!(result["sample"]["reward"].is_null(), "{result:#}");
    let trajectory = host.trajectory(request.rollout_id()).await;
    assert_eq!(failure(&trajectory), ("grader", "judge", "host"));
    assert!(trajectory.to_string().contains("--judge-url"), "{trajectory:#}");
}

#[tokio::test]
async fn calls_and_tokens_of_the_judge_have_separate_budgets() {
    let (model, judge) = (Controller::start().await, Controller::start().await);
    for (limits, answered) in [
        (&[("--limit-judge-calls-max", "3"), ("--limit-chat-calls-max", "1")][..], 3.0),
        // Each call of the mock judge costs 10 tokens; the one that exceeds the budget is the last.
        (&[("--limit-judge-tokens-max", "15")], 2.0),
    ] {
        let host = host_with(&judge, limits).await;
        let request = model.rollout("1 + 2").label("ask until it is enough");

        let result = host.run(&request).await;

        assert_eq!(result["sample"]["reward"], answered, "{result:#}");
        let hits = format!("rollout_host_limit_hits_total{{limit=\"{}\"}}", &limits[0].0[8..]);
        assert_eq!(host.metrics().await.get(&hits), Some(1.0), "{hits}");
    }
}

#[tokio::test]
async fn several_judgements_may_be_in_progress_at_once() {
    let (model, judge) = (Controller::start().await, Controller::start().await);
    judge.hold();
    let host = host_with(&judge, &[]).await;
    let admitted = host.admit(&model.rollout("1 + 2").label("ask three at once")).await;

    judge.chats_open(3).await;
    judge.release();

    assert_eq!(host.result(&admitted).await["sample"]["reward"], 3.0);
}

#[tokio::test]
async fn an_earlier_failure_of_the_judge_is_not_blamed() {
    let (model, judge) = (Controller::start().await, Controller::start().await);
    judge.answer_chats([Answer::Status(400, json!({})), Answer::Say("yes")]);
    let host = host_with(&judge, &[]).await;
    let request = model.rollout("1 + 2").label("give up after a good answer");

    host.run(&request).await;

    let trajectory = host.trajectory(request.rollout_id()).await;
    assert_eq!(failure(&trajectory), ("grader", "error", "plugin"));
    assert!(trajectory.to_string().contains("after a failure: true"));
}

#[tokio::test]
async fn a_grader_does_not_choose_the_judge_and_a_workflow_has_none() {
    let (model, judge) = (Controller::start().await, Controller::start().await);
    let host = host_with(&judge, &[]).await;
    for (prompt, label, expected) in [
        ("1 + 2", "send a model", ("grader", "error", "plugin")),
        ("ask the judge", "3", ("workflow", "contract", "plugin")),
    ] {
        let request = model.rollout(prompt).label(label);

        host.run(&request).await;

        assert_eq!(failure(&host.trajectory(request.rollout_id()).await), expected, "{prompt} {label}");
    }
    assert_eq!(judge.chats().len(), 0);
}

async fn eval(plugin: &std::path::Path, more: &[&str]) -> Ran {
    rollout_host(["eval"]).arg(plugin).args(more).start().ended().await
}

#[tokio::test]
async fn an_incomplete_judge_is_an_error_that_names_the_missing_option() {
    let dir = tempfile::tempdir().unwrap();
    let data = project_root().join("examples/rubric/rows.jsonl").display().to_string();
    let out = dir.path().join("out").display().to_string();
    let common = ["--data", &data, "--model", "mock", "--out", &out];
    for (options, named) in [
        (&["--judge-url", "http://127.0.0.1:1/v1"][..], "judge.model: missing"),
        (&["--judge-model", "m"], "judge.url: missing"),
        (&["--judge-api-key-env", "K"], "judge.url, judge.model: missing"),
        (&["--judge-url", "nowhere", "--judge-model", "m"], "not an http or https URL"),
        (&["--judge-model", "mock", "--judge-api-key-env", "NOT_SET"], "NOT_SET"),
    ] {
        let ran = eval(&guest("judged"), &[&common[..], options].concat()).await;

        assert_eq!(ran.code, Some(2), "{options:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(named), "{options:?}: {}", ran.stderr);
    }
}

#[tokio::test]
async fn the_example_is_graded_by_the_mock_judge() {
    let dir = tempfile::tempdir().unwrap();
    let wasm = dir.path().join("rubric.wasm");
    let example = project_root().join("examples/rubric");
    let built = rollout_host(["build"])
        .arg(example.join("rust"))
        .arg("-o")
        .arg(&wasm)
        .start()
        .ended_within(std::time::Duration::from_secs(300))
        .await;
    assert_eq!(built.code, Some(0), "{}", built.stderr);
    let path = |name: &str| example.join(name).display().to_string();
    let out = dir.path().join("out").display().to_string();

    let (data, script) = (path("rows.jsonl"), path("answers.jsonl"));
    let ran = eval(
        &wasm,
        &[
            "--data",
            &data,
            "--model",
            "mock",
            "--mock-script",
            &script,
            "--judge-model",
            "mock",
            "--out",
            &out,
        ],
    )
    .await;

    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let lines = std::fs::read_to_string(dir.path().join("out/results.jsonl")).unwrap();
    let mut rewards: Vec<(u64, f64)> = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .map(|line| (line["row"].as_u64().unwrap(), line["reward"].as_f64().unwrap()))
        .collect();
    rewards.sort_by_key(|(row, _)| *row);
    let rewards: Vec<f64> = rewards.into_iter().map(|(_, reward)| reward).collect();
    assert_eq!(rewards, [1.0, 1.0, 1.0, 0.0, 1.0, 1.0]);
}
