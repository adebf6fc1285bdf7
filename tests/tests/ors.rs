//! Environments over ORS, played by the client of the published package, which `clients/setup` installs.

use std::process::Stdio;
use std::sync::Arc;

use rollout_tests::{TestCatalog, TestHost, example, in_time, project_root, trainer_python};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;

/// Returns the client's command line.
async fn client(url: &str, name: &str, commands: &Value, key: Option<&str>) -> Command {
    let mut command = Command::new(trainer_python("openreward-0.1.167").await);
    command.arg(project_root().join("tests/clients/ors.py"));
    command.args([url, name, &commands.to_string()]).args(key).kill_on_drop(true);
    command
}

/// Plays at this address, and returns the result or the error of each command.
async fn play(url: &str, name: &str, commands: Value, key: Option<&str>) -> Vec<Value> {
    let mut command = client(url, name, &commands, key).await;
    let ran = in_time("the client", command.output()).await.unwrap();
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{errors}");
    let last = String::from_utf8_lossy(&ran.stdout).lines().last().map(str::to_owned);
    serde_json::from_str(&last.unwrap_or_default()).unwrap_or_else(|error| panic!("{error}: {errors}"))
}

/// Returns the part of an error that a client's user sees.
fn error_of(result: &Value) -> &str {
    result["error"].as_str().unwrap_or_else(|| panic!("no error but {result}"))
}

#[tokio::test]
async fn a_task_is_played_by_calls_of_tools_with_a_reward_each() {
    let host = TestHost::of_component(example("example-number-hunt")).start().await;
    let played = play(
        host.url(),
        "number-hunt",
        json!([
            ["splits"],
            ["num_tasks", "test"],
            ["tasks", "test"],
            ["range", "train", -2],
            ["environment_tools"],
            ["open", "train", 1],
            ["tools"],
            ["prompt"],
            ["messages"],
            ["call", "step", {"number": 0}],
            ["call", "step", {"number": "x"}],
            ["call", "jump", {}],
            ["call", "step", {"number": -230}],
            ["call", "step", {"number": -230}],
            ["close"],
            ["open", "none", 0],
            ["open", "train", 1000],
            ["open_task", {"user_prompt": "1 + 1?", "ground_truth": "2"}, "number-hunt"],
            ["call", "step", {"number": 2}],
            ["close"],
            ["open_task", {}, "another"],
        ]),
        None,
    )
    .await;

    assert_eq!((&played[0], &played[1]), (&json!(["train", "test"]), &json!(4)));
    assert_eq!(played[2].as_array().map(Vec::len), Some(4), "{}", played[2]);
    assert_eq!(played[3].as_array().map(Vec::len), Some(2), "{}", played[3]);
    assert!(!played[2].to_string().contains("ground_truth"), "the label is not in a task: {}", played[2]);
    assert_eq!((&played[4], &played[6]), (&json!(["step"]), &json!(["step"])));
    assert!(played[7].as_str().unwrap().contains("Calculate ( -232 - -438 / 219 )."), "{}", played[7]);
    assert_eq!(played[8], json!([["user", played[7]]]));
    assert_eq!(
        (&played[9]["reward"], &played[9]["finished"]),
        (&Value::Null, &json!(false)),
        "{}",
        played[9]
    );
    assert!(
        error_of(&played[10]).contains("Tool input validation error: the action: field `number`"),
        "{}",
        played[10]
    );
    assert!(error_of(&played[11]).contains("'jump' is not a valid tool; there are: step"), "{}", played[11]);
    assert_eq!(
        (&played[12]["reward"], &played[12]["finished"]),
        (&json!(0.5), &json!(true)),
        "{}",
        played[12]
    );
    assert!(error_of(&played[13]).contains("the episode has ended"), "{}", played[13]);
    assert!(error_of(&played[15]).contains("unknown split 'none'; there are: train, test"), "{}", played[15]);
    assert!(error_of(&played[16]).contains("Invalid index"), "{}", played[16]);
    assert_eq!(played[18]["reward"], 1.0, "{}", played[18]);
    assert!(error_of(&played[20]).contains("unknown environment 'another'"), "{}", played[20]);
    host.idle().await;
}

#[tokio::test]
async fn the_verdict_of_the_grader_is_the_reward_of_the_last_call() {
    let host = TestHost::start("environment").await;
    let long = "x".repeat(20_000);
    let played = play(
        host.url(),
        "acts",
        json!([
            ["open_task", {"ground_truth": "5", "x": 1}, "acts"],
            ["prompt"],
            ["tools"],
            ["call", "add", {"number": 5}],
            ["call", "step", {"what": format!("{long} {long}")}],
            ["call", "step", {"what": "end"}],
            ["close"],
            ["open_task", {"fail": true}, "acts"],
            ["open_task", {}, "acts"],
            ["call", "step", {"what": "panic"}],
        ]),
        None,
    )
    .await;

    // The label does not reach the environment.
    assert!(played[1].as_str().unwrap().contains(r#""arguments":{"x":1}"#), "{}", played[1]);
    assert_eq!(played[2], json!(["add", "step"]));
    assert_eq!((&played[3]["text"], &played[3]["reward"]), (&json!("5"), &Value::Null));
    assert!(
        played[4]["text"].as_str().unwrap().contains(&format!("{long} {long}")),
        "a long answer is whole"
    );
    assert_eq!((&played[5]["reward"], &played[5]["finished"]), (&json!(1.0), &json!(true)), "{}", played[5]);
    assert!(error_of(&played[7]).contains("it should fail"), "{}", played[7]);
    assert!(error_of(&played[9]).contains("told to panic"), "{}", played[9]);
    host.idle().await;
}

#[tokio::test]
async fn a_plugin_without_an_environment_and_a_full_server_say_so() {
    let host = TestHost::start("spin").await;
    let played = play(host.url(), "spin", json!([["splits"], ["open_task", {}, "spin"]]), None).await;
    for refused in &played {
        assert!(error_of(refused).contains("this plugin has no environment; "), "{refused}");
    }

    let options = TestHost::of("environment").option("--max-concurrent", 1);
    let host = options.config("[sessions]\nqueue-secs-max = 0.2\n").start().await;
    let create = json!({"jsonrpc": "2.0", "id": 1, "method": "openenv/session/create"});
    host.post("/openenv/mcp", &create).await;
    let played = play(host.url(), "acts", json!([["open_task", {}, "acts"]]), None).await;
    assert!(error_of(&played[0]).contains("Server at capacity: 1/1 sessions active"), "{}", played[0]);
}

#[tokio::test]
async fn a_tenants_plugin_is_found_by_its_name_and_needs_the_key() {
    let catalog = TestCatalog::start().await;
    let tenant = catalog.tenant("a", json!({})).await;
    catalog.serve(&tenant, "one", "environment", "").await;
    catalog.serve(&tenant, "two", "environment", "").await;
    let commands =
        json!([["open_task", {"ground_truth": "0"}, "acts"], ["call", "step", {"what": "end"}], ["close"]]);

    for name in ["two", "a/one"] {
        let played = play(&catalog.url(), name, commands.clone(), Some(&tenant.caller)).await;
        let plugin = name.rsplit('/').next().unwrap();
        assert!(played[0].as_str().unwrap().starts_with(&format!("{plugin}.")), "{}", played[0]);
        assert_eq!(played[1]["reward"], 1.0, "{}", played[1]);
    }
    let refused = play(&catalog.url(), "two", commands.clone(), Some("wrong")).await;
    assert!(
        error_of(&refused[0]).contains("pass the server's key as the client's api_key"),
        "{}",
        refused[0]
    );
    let other = catalog.tenant("b", json!({})).await;
    let hidden = play(&catalog.url(), "two", commands, Some(&other.caller)).await;
    assert!(hidden[0]["error"].is_string(), "{}", hidden[0]);
}

#[tokio::test]
async fn a_session_goes_on_after_the_host_was_killed() {
    let socket = Arc::new(std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let serve = TestHost::of("environment").config("[journal]\ndir = 'journal'\n").passed(&socket);
    let host = serve.clone().start().await;
    let commands = json!([
        ["open_task", {"ground_truth": "5", "x": 1}, "acts"],
        ["call", "add", {"number": 2}],
        ["pause"],
        ["prompt"],
        ["call", "add", {"number": 3}],
        ["call", "step", {"what": "end"}],
    ]);
    let mut command = client(host.url(), "acts", &commands, None).await;
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let paused = in_time("the client", lines.next_line()).await.unwrap();
    assert_eq!(paused.as_deref(), Some("paused"));
    let host = host.killed(&serve).await;
    child.stdin.take().unwrap().write_all(b"\n").await.unwrap();
    let line = in_time("the client", lines.next_line()).await.unwrap().unwrap();
    let played: Vec<Value> = serde_json::from_str(&line).unwrap();

    assert!(played[3].as_str().unwrap().contains(r#""arguments":{"x":1}"#), "{played:#?}");
    assert_eq!(played[4]["text"], "5", "{}", played[4]);
    assert_eq!((&played[5]["reward"], &played[5]["finished"]), (&json!(1.0), &json!(true)), "{}", played[5]);
    host.idle().await;
}

#[tokio::test]
async fn the_client_of_the_page_plays_its_first_episode() {
    let page = std::fs::read_to_string(project_root().join("docs/serve/ors.md")).unwrap();
    let (_, script) = page.split_once("```python\n").unwrap();
    let (script, _) = script.split_once("\n```").unwrap();
    let host = TestHost::of_component(example("example-number-hunt")).start().await;
    assert!(script.contains("http://127.0.0.1:9000"), "{script}");
    let script = script.replace("http://127.0.0.1:9000", host.url());
    let mut command = Command::new(trainer_python("openreward-0.1.167").await);
    command.args(["-c", &script]).kill_on_drop(true);
    let ran = in_time("the client", command.output()).await.unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{stderr}");
    let lines: Vec<&str> = stdout.lines().collect();
    // The second guess is right.
    assert_eq!(lines.last(), Some(&"0.5"), "{stdout}");
    assert!(lines.contains(&"['step']"), "{stdout}");
}
