//! Tests of limits where operators and callers look for them: in the log, in the outcome, and in an evaluation's files.

use std::path::Path;

use rollout_tests::{Controller, Ran, Start, TestHost, guest, rollout_host};
use serde_json::{Value, json};

/// The limits of a rollout, by their names in `[limits]`.
const OF_A_ROLLOUT: [&str; 23] = [
    "memory-bytes-max",
    "guest-cpu-secs-max",
    "workflow-secs-max",
    "grader-secs-max",
    "host-calls-max",
    "host-call-bytes-max",
    "handles-max",
    "samples-max",
    "chat-calls-max",
    "chat-tokens-max",
    "chat-bytes-max",
    "judge-calls-max",
    "judge-tokens-max",
    "concurrent-calls-max",
    "message-bytes-max",
    "record-bytes-max",
    "artifacts-max",
    "artifact-bytes-max",
    "log-lines-max",
    "log-bytes-max",
    "refused-uses-max",
    "random-bytes-max",
    "reply-bytes-max",
];

#[tokio::test]
async fn a_server_logs_its_limits_at_the_start_and_each_is_an_option() {
    let host = TestHost::of("sleep")
        .option("--limit-memory-bytes-max", 9_437_184)
        .option("--log-format", "json")
        .start()
        .await;
    let ran = host.stop().await;
    let logged: Value = ran
        .stderr
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .find_map(|line: Value| line["fields"]["limits"].as_str()?.parse().ok())
        .unwrap_or_else(|| panic!("no line has the limits:\n{}", ran.stderr));
    assert_eq!(logged["memory-bytes-max"], 9_437_184);
    assert_eq!(logged["guest-cpu-secs-max"], 60.0);
    let help = rollout_host(["serve", "--help"]).start().ended().await.stdout;
    let loading = ["component-bytes-max", "compile-secs-max", "compile-memory-bytes-max"];
    for name in OF_A_ROLLOUT.iter().chain(&loading) {
        assert!(logged[*name].is_number(), "{name} is not in {logged}");
        assert!(help.contains(&format!("--limit-{name} ")), "{name} is not an option");
    }
    assert_eq!(logged.as_object().map(serde_json::Map::len), Some(OF_A_ROLLOUT.len() + loading.len()));
}

#[tokio::test]
async fn an_outcome_has_every_limit_with_its_usage_and_hits() {
    let controller = Controller::start().await;
    let lines = "[limits]\nguest-cpu-secs-max = 0.2\nhandles-max = 500\n";
    let host = TestHost::of("spin").config(lines).start().await;
    let (scored, stopped) =
        (controller.rollout("Calculate 2 + 3.").label("5"), controller.rollout("misbehave").label("5"));

    host.run(&scored).await;
    host.run(&stopped).await;

    let rollout = async |id: &str| host.trajectory(id).await["extra"]["rollout_host"].clone();
    let scored = rollout(scored.rollout_id()).await;
    for name in OF_A_ROLLOUT {
        assert!(scored["limits"][name]["max"].is_number(), "{name} is not in {scored:#}");
        assert_eq!(scored["limits"][name]["hits"], Value::Null, "{name} was not hit");
    }
    assert_eq!(scored["limits"]["handles-max"], json!({"max": 500}));
    assert_eq!(scored["limits"]["samples-max"], json!({"max": 1, "used": 1}), "the caller's maximum");
    assert_eq!(scored["limits"]["chat-calls-max"], json!({"max": 1000, "used": 1}));
    assert_eq!(scored["limits"]["chat-tokens-max"]["used"], 10);
    assert!(scored["limits"]["record-bytes-max"]["used"].as_u64() > Some(50), "{scored:#}");
    assert_eq!(scored["limits"]["memory-bytes-max"]["used"], scored["usage"]["memory_bytes_peak"]);
    assert!(scored["limits"]["workflow-secs-max"]["used"].as_f64() > Some(0.0), "{scored:#}");
    assert!(scored["limits"]["grader-secs-max"]["used"].as_f64() > Some(0.0), "{scored:#}");

    let stopped = rollout(stopped.rollout_id()).await;
    let cpu = &stopped["limits"]["guest-cpu-secs-max"];
    assert_eq!((&cpu["max"], &cpu["hits"]), (&json!(0.2), &json!(1)), "{stopped:#}");
    let used = cpu["used"].as_f64().expect("it is measured");
    assert!((0.2..1.0).contains(&used), "{used} s");
    let hits = OF_A_ROLLOUT.iter().filter(|name| stopped["limits"][**name]["hits"].is_number());
    assert_eq!(hits.collect::<Vec<_>>(), [&"guest-cpu-secs-max"]);
}

async fn evaluate(dir: &Path, guest_name: &str, options: &[&str]) -> (Ran, Value, Value) {
    std::fs::write(dir.join("rows.jsonl"), "{\"user_prompt\":\"misbehave\",\"ground_truth\":\"5\"}\n")
        .expect("it can be written");
    let mut command = rollout_host(["eval"]);
    command.arg(guest(guest_name)).args(["--data", "rows.jsonl", "--model", "mock", "--out", "out"]);
    let ran = command.args(options).current_dir(dir).start().ended().await;
    let read = |name: &str| std::fs::read(dir.join("out").join(name)).unwrap_or_default();
    let line = serde_json::from_slice(&read("results.jsonl"));
    let manifest = serde_json::from_slice(&read("manifest.json"));
    (ran, line.expect("one result"), manifest.expect("a manifest"))
}

#[tokio::test]
async fn an_evaluation_has_its_limits_in_the_manifest_and_those_that_fired_with_each_result() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let (_, line, manifest) =
        evaluate(dir.path(), "over_allocate", &["--limit-memory-bytes-max", "4194304"]).await;

    for name in OF_A_ROLLOUT {
        assert!(manifest["settings"]["limits"][name].is_number(), "{name} is not in {manifest:#}");
    }
    assert_eq!(manifest["settings"]["limits"]["memory-bytes-max"], 4_194_304);
    assert_eq!(line["kind"], "memory", "{line:#}");
    let memory = &line["limits_hit"]["memory-bytes-max"];
    assert_eq!((&memory["max"], &memory["times"]), (&json!(4_194_304), &json!(1)), "{line:#}");
    assert!(memory["asked"].as_u64() > Some(4_194_304), "{line:#}");
    assert!(memory["used"].as_u64() <= Some(4_194_304), "{line:#}");
}

#[tokio::test]
async fn the_waiting_time_of_a_guest_is_separate_from_its_cpu_time() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let (ran, line, _) = evaluate(dir.path(), "misuse", &["--mock-latency", "300"]).await;

    let ms =
        |field: &str| line[field].as_f64().unwrap_or_else(|| panic!("no {field}: {line:#}\n{}", ran.stderr));
    assert!(ms("waited_ms") >= 300.0, "{line:#}");
    assert!(ms("model_ms") >= 300.0, "{line:#}");
    assert!(ms("guest_cpu_ms") < 300.0, "waiting does not count: {line:#}");
    assert!(ms("waited_ms") <= ms("duration_ms"), "{line:#}");
}

#[tokio::test]
async fn a_request_without_the_key_is_counted() {
    let host =
        TestHost::of("sleep").option("--server-key-env", "A_KEY").variable("A_KEY", "sesame").start().await;
    assert_eq!(host.get("/health").await.status, 401);
    assert_eq!(host.post("/rollout", &json!({})).await.status, 401);

    let host = host.with_key("sesame");

    let unauthorized = host.metrics().await.get("rollout_host_requests_unauthorized_total");
    assert_eq!(unauthorized, Some(2.0));
}

#[tokio::test]
async fn build_applies_the_limits_of_a_configuration() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let config = dir.path().join("config.toml");
    std::fs::write(&config, "[limits]\ncomponent-bytes-max = 1000\n").expect("it can be written");
    let project = rollout_tests::project_root().join("examples/one-turn/rust");
    let mut command = rollout_host(["build"]);
    command.arg(project).arg("--config").arg(config).arg("-o").arg(dir.path().join("out.wasm"));

    let ran = command.env("CARGO_TARGET_DIR", rollout_tests::target_dir()).start().ended().await;

    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("component-bytes-max"), "{}", ran.stderr);
}
