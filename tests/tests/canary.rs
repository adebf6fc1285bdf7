//! Tests that the label reaches only the grader: a guest searches for a canary in everything that a workflow can see,
//! down to the bytes of its memory, and the tests search in everything that leaves the workflow.

use rollout_tests::{
    Controller, InitRequest, RolloutRequest, Start, TestHost, check_completed, guest, rollout_host,
};
use serde_json::{Value, json};

/// The label's two halves. The guest receives them separately.
const CANARY: [&str; 2] = ["canary-", "5d1c0e7fb2"];

/// A text that the guest must find, which proves that it searches.
const PLANTED: [&str; 2] = ["planted-", "91ab44"];

/// Number of consecutive rollouts in the same slot, so that a workflow gets memory that a grader with the label had
/// before.
const ROUNDS: usize = 3;

fn canary() -> String {
    CANARY.concat()
}

/// Returns metadata with the label under its usual names and likely other ones.
fn metadata() -> Value {
    let truth = canary();
    json!({
        "secret": CANARY, "ground_truth": truth, "planted": PLANTED,
        "row": {"Ground_Truth": truth, "n": 1}, "rows": [[{"ground_truth": [truth]}]],
    })
}

/// Returns a body that also has the label under escaped names.
fn with_escapes(body: &Value) -> String {
    let metadata = body["metadata"].to_string();
    let again = format!(r#"{{"ground\u005ftruth":"{0}","\u0047round_truth":"{0}","#, canary());
    body.to_string().replace(&metadata, &metadata.replacen('{', &again, 1))
}

fn request(controller: &Controller) -> RolloutRequest {
    controller
        .rollout(&format!("Calculate 2 + 3. {}", PLANTED.concat()))
        .label(&canary())
        .with("metadata", metadata())
        .with("extra_fields", json!({"row_index": 3}))
}

/// Checks that the guest searched everywhere, and found the planted text but not the label.
fn check_report(text: &str) {
    let report: Value = serde_json::from_str(text).unwrap_or_else(|_| panic!("no report: {text}"));
    let places: Vec<&str> = report["places"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    for place in [
        "prompt",
        "config",
        "metadata",
        "a reply",
        "a finished reply",
        "host-provided tools",
        "tool results",
        "artifact names",
        "environment",
        "arguments",
        "directory /",
        "standard input",
        "random bytes",
        "wall clock",
        "memory",
    ] {
        assert!(places.contains(&place), "{place} was not searched: {places:?}");
    }
    assert_eq!(report["secret"], json!([]), "the label was found");
    assert_eq!(report["planted"], json!(["prompt", "memory"]), "the search finds existing texts");
    assert!(report["scanned_bytes"].as_u64() > Some(5 << 20), "{report:#}");
}

/// Returns the text of the last message.
fn last_message(messages: &Value) -> &str {
    let last = messages.as_array().and_then(|messages| messages.last());
    last.and_then(|message| message["content"].as_str()).unwrap_or_default()
}

/// Checks that the label is neither in the requests to the model nor in the rollout's files that the workflow wrote.
fn check_left(sent: &str, rollout: &std::path::Path) {
    assert!(sent.contains("Calculate 2 + 3."), "{sent}");
    assert!(!sent.contains(&canary()), "the label was sent to the model: {sent}");
    for name in ["log.jsonl", "artifacts/seen.txt"] {
        let text = std::fs::read_to_string(rollout.join(name)).expect("the workflow wrote it");
        assert!(!text.contains(&canary()), "the label is in {name}: {text}");
    }
    let text = std::fs::read(rollout.join("trajectory.json")).expect("it was written");
    let trajectory: Value = serde_json::from_slice(&text).expect("it is JSON");
    for part in [&trajectory["steps"], &trajectory["extra"]["rollout_host"]["observed"]] {
        assert!(part.is_array(), "{trajectory:#}");
        assert!(!part.to_string().contains(&canary()), "the label is in the observations: {part:#}");
    }
}

async fn host() -> TestHost {
    let config = "[plugin]\ngreeting = 'ahoy'\n";
    TestHost::of("search").config(config).option("--max-concurrent", 1).start().await
}

#[tokio::test]
async fn the_label_is_nowhere_that_a_workflow_sees_in_generation_d() {
    let controller = Controller::start().await;
    let host = host().await;
    for _ in 0..ROUNDS {
        let request = request(&controller);
        let result = host.run(&request).await;

        assert_eq!(result["sample"]["reward"], canary().len() as f64, "the grader received it: {result:#}");
        check_report(last_message(&result["sample"]["messages"]));
        host.trajectory(request.rollout_id()).await;
        check_left(&format!("{:?}", controller.chats()), &host.kept().join(request.rollout_id()));
    }
}

#[tokio::test]
async fn the_label_is_nowhere_that_a_workflow_sees_in_generation_c() {
    let controller = Controller::start().await;
    let host = host().await;
    for round in 1..=ROUNDS {
        let request = request(&controller).with_callbacks("key");
        assert_eq!(host.ask(&request).await.status, 202);
        let callbacks = controller.callbacks_arrived(2 * round).await;
        let (completion, graded) = (&callbacks[2 * round - 2].body, &callbacks[2 * round - 1].body);

        assert!(!completion.to_string().contains(&canary()), "the grader has not run: {completion:#}");
        let sample = &graded["sample"];
        assert_eq!(sample["reward"], canary().len() as f64, "the grader received it: {graded:#}");
        check_report(last_message(&sample["messages"]));
        host.trajectory(request.rollout_id()).await;
        check_left(&format!("{:?}", controller.chats()), &host.kept().join(request.rollout_id()));
    }
}

#[tokio::test]
async fn the_label_is_nowhere_that_a_workflow_sees_in_generation_b() {
    let controller = Controller::start().await;
    let host = host().await;
    for round in 1..=ROUNDS {
        let request = request(&controller).as_b();
        assert!(
            [200, 202].contains(&host.post_text("/rollout", &with_escapes(&request.body())).await.status)
        );
        let callbacks = controller.callbacks_arrived(2 * round).await;
        let (completion, graded) = (&callbacks[2 * round - 2].body, &callbacks[2 * round - 1].body);

        assert!(!completion.to_string().contains(&canary()), "the grader has not run: {completion:#}");
        let samples = graded["samples"].as_object().expect("it has samples");
        let sample = samples.values().next().expect("it has one");
        assert_eq!(sample["reward"], canary().len() as f64, "the grader received it: {graded:#}");
        host.trajectory(request.rollout_id()).await;
        check_left(&format!("{:?}", controller.chats()), &host.kept().join(request.rollout_id()));
    }
}

/// Returns a request of generation A, in which only the metadata can have a label.
fn init(controller: &Controller) -> InitRequest {
    let prompt = format!("Calculate 2 + 3. {}", PLANTED.concat());
    InitRequest::new(controller, &prompt).with("metadata", metadata())
}

#[tokio::test]
async fn the_label_is_nowhere_that_a_workflow_sees_in_generation_a() {
    let controller = Controller::start().await;
    let host = host().await;
    for round in 1..=ROUNDS {
        let request = init(&controller);
        let accepted = host.post_text("/v1/rollout/init", &with_escapes(&request.body())).await;
        assert_eq!(accepted.status, 202, "{}", accepted.text);
        assert!(!accepted.text.contains(&canary()), "{}", accepted.text);
        let callbacks = controller.callbacks_arrived(round).await;
        let completed = &callbacks[round - 1];

        check_completed(completed, request.id());
        assert_eq!(completed.body["reward"], canary().len() as f64, "the grader received it: {completed:?}");
        check_report(last_message(&completed.body["final_messages"]));
        host.trajectory(request.id()).await;
        check_left(&format!("{:?}", controller.chats()), &host.kept().join(request.id()));
    }
}

#[tokio::test]
async fn the_label_is_nowhere_in_the_input_of_an_agent_loop() {
    let controller = Controller::start().await;
    let host = TestHost::start("search_loop").await;
    let request = init(&controller);

    let accepted = host.post_text("/v1/rollout/init", &with_escapes(&request.body())).await;

    assert_eq!(accepted.status, 202, "{}", accepted.text);
    let completed = controller.callbacks_arrived(1).await[0].clone();
    check_completed(&completed, request.id());
    assert_eq!(completed.body["reward"], canary().len() as f64, "the grader received it: {completed:?}");
    let chats = format!("{:?}", controller.chats());
    for (what, text) in [
        ("its tools", accepted.text),
        ("its requests to the model", chats),
        ("its conversation", completed.body["final_messages"].to_string()),
    ] {
        assert!(text.contains(CANARY[0]), "{what} show the metadata: {text}");
        assert!(!text.contains(&canary()), "the label is in {what}: {text}");
    }
}

#[tokio::test]
async fn the_label_is_nowhere_that_a_workflow_sees_in_an_evaluation() {
    let controller = Controller::start().await;
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let prompt = format!("Calculate 2 + 3. {}", PLANTED.concat());
    let row = json!({"user_prompt": prompt, "ground_truth": canary(), "metadata": metadata()});
    std::fs::write(dir.path().join("rows.jsonl"), format!("{row}\n")).expect("it can be written");
    let mut command = rollout_host(["eval"]);
    command.arg(guest("search")).args(["--data", "rows.jsonl", "--out", "out", "--concurrency", "1"]);
    command.args(["--n", "3", "--model", "a-model", "--base-url", &controller.model_url()]);

    let ran = command.current_dir(dir.path()).start().ended().await;

    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    for run in 0..ROUNDS {
        let rollout = dir.path().join(format!("out/rollouts/row-00000-run-{run}"));
        let text = std::fs::read(rollout.join("trajectory.json")).expect("it was written");
        let trajectory: Value = serde_json::from_slice(&text).expect("it is JSON");
        let steps = trajectory["steps"].as_array().expect("it has steps");
        check_report(steps.last().and_then(|step| step["message"].as_str()).unwrap_or_default());
        check_left(&format!("{:?}", controller.chats()), &rollout);
    }
}

#[tokio::test]
async fn the_label_is_not_in_the_error_of_a_refused_workflow() {
    let controller = Controller::start().await;
    let host = host().await;
    let mut metadata = metadata();
    metadata["then"] = "observe".into();

    let result = host.run(&request(&controller).with("metadata", metadata)).await;

    let message = result["err_message"].as_str().unwrap_or_default();
    assert!(message.contains("observations.exchanges, which only a grader may"), "{result:#}");
    assert!(!message.contains(&canary()), "{message}");
}
