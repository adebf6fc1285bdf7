//! Tests of a plugin's declared configuration and the operator's values.

use std::path::{Path, PathBuf};

use rollout_tests::{Controller, Ran, Start, TestHost, guest, rollout_host};
use serde_json::{Value, json};
use tempfile::TempDir;

async fn run(command: &str, plugin: &Path, more: &[&str]) -> Ran {
    rollout_host([command]).arg(plugin).args(more).start().ended().await
}

fn file(dir: &TempDir, name: &str, text: &str) -> PathBuf {
    let path = dir.path().join(name);
    std::fs::write(&path, text).expect("it can be written");
    path
}

/// Returns the configuration that the guest `tunable` received.
fn received(result: &Value) -> Value {
    let messages = result["sample"]["messages"].as_array().expect("there is a sample");
    let text = messages.last().and_then(|message| message["content"].as_str()).expect("it is text");
    serde_json::from_str(text).expect("it is JSON")
}

#[tokio::test]
async fn the_command_line_overrides_the_file_which_overrides_a_guests_defaults() {
    let controller = Controller::start().await;
    let host = TestHost::of("tunable")
        .config("[plugin]\nmax_turns = 3\ngreeting = 'Ahoy.'\n[plugin.search]\ndepth = 2\n")
        .option("--set", "greeting=null")
        .option("--set", "search.places=[\"there\"]")
        .start()
        .await;

    let result = host.run(&controller.rollout("1 + 1").label("2")).await;

    assert_eq!(
        received(&result),
        json!({
            "name": "tunable",
            "max_turns": 3,
            "greeting": null,
            "search": {"depth": 2.0, "places": ["there"]},
            "concurrency": {"max_concurrent": null},
        })
    );
    assert_eq!(result["sample"]["reward"], 3.0, "the grader received the same: {result:#}");
}

#[tokio::test]
async fn without_configuration_the_guest_gets_its_defaults() {
    let controller = Controller::start().await;
    let host = TestHost::start("tunable").await;

    let result = host.run(&controller.rollout("1 + 1").label("2")).await;

    assert_eq!(received(&result)["max_turns"], 8);
    assert_eq!(received(&result)["search"]["places"], json!(["here"]));
}

#[tokio::test]
async fn every_invalid_value_is_named_before_the_server_starts() {
    let dir = tempfile::tempdir().unwrap();
    let config =
        file(&dir, "c.toml", "[plugin]\nmax_turns = 'eight'\nmax_turn = 3\n[plugin.search]\ndeep = 1\n");
    let data = file(&dir, "d.jsonl", "{\"user_prompt\": \"1 + 1\", \"ground_truth\": \"2\"}\n");
    let (config, data) = (config.display().to_string(), data.display().to_string());
    let out = dir.path().join("out").display().to_string();
    let values = ["--config", &config, "--set", "search.depth=[1]", "--set", "concurrency.max_concurrent=0"];
    let kept = dir.path().join("kept").display().to_string();
    for (command, more) in [
        ("serve", &["--listen", "127.0.0.1:0", "--artifact-root", &*kept][..]),
        ("eval", &["--data", &*data, "--model", "mock", "--out", &*out]),
        ("config", &[]),
    ] {
        let ran = run(command, &guest("tunable"), &[&values, more].concat()).await;

        assert_eq!(ran.code, Some(2), "{command}: {}", ran.stderr);
        assert_eq!(ran.stdout, "", "{command}");
        for named in [
            "max_turns: the string \"eight\", and it has to be integer, at least 1",
            "max_turn: there is no such setting; did you mean max_turns?",
            "search.deep: there is no such setting; ",
            "search.depth: the array [1], and it has to be number",
            "concurrency.max_concurrent: 0",
        ] {
            assert!(ran.stderr.contains(named), "{command}: {named} is not in {}", ran.stderr);
        }
    }
}

#[tokio::test]
async fn a_plugin_that_declares_nonsense_or_never_declares_is_at_fault() {
    for (name, more, named) in [
        ("wrong_settings", &[][..], "default of max_turns: the string \"eight\""),
        ("spin_declaring", &["--limit-guest-cpu-secs-max", "0.2"], "guest-cpu-secs-max"),
    ] {
        let ran = run("serve", &guest(name), &[&["--listen", "127.0.0.1:0"], more].concat()).await;

        assert_eq!(ran.code, Some(1), "{name}: {}", ran.stderr);
        assert!(ran.stderr.contains(named), "{name}: {}", ran.stderr);
        assert!(ran.stderr.contains("settings"), "{name}: {}", ran.stderr);
    }
}

#[tokio::test]
async fn a_plugin_runs_no_more_concurrent_rollouts_than_its_configuration_allows() {
    let controller = Controller::start().await;
    controller.hold();
    let host = TestHost::of("tunable").option("--set", "concurrency.max_concurrent=1").start().await;
    let first = host.admit(&controller.rollout("1 + 1").label("2")).await;
    let second = host.admit(&controller.rollout("2 + 2").label("4")).await;

    controller.chats_arrived(1).await;
    let health = host.health().await;

    assert_eq!(health["concurrency"]["running"], 1, "{health:#}");
    assert_eq!(health["concurrency"]["queued"], 1, "{health:#}");
    assert_eq!(controller.chats().len(), 1);
    controller.release();
    assert_eq!(host.result(&first).await["status"], "success");
    assert_eq!(host.result(&second).await["status"], "success");
}

#[tokio::test]
async fn a_plugin_cannot_use_more_slots_than_the_operator_allows() {
    let host = TestHost::of("tunable")
        .option("--max-concurrent", 2)
        .option("--set", "concurrency.max_concurrent=1000000")
        .start()
        .await;

    assert_eq!(host.health().await["concurrency"]["max_concurrent"], 2);
}

#[tokio::test]
async fn a_separate_grader_has_a_separate_configuration() {
    let controller = Controller::start().await;
    let grader = guest("tunable").display().to_string();
    // The workflow declares nothing, so it would not notice the grader's configuration if it received it.
    let host = TestHost::of("only_workflow")
        .option("--grader", &grader)
        .config("[plugin]\nfor = 'the workflow'\n[grader]\nmax_turns = 5\n")
        .start()
        .await;

    let result = host.run(&controller.rollout("1 + 1").label("2")).await;

    assert_eq!(result["sample"]["reward"], 5.0, "{result:#}");

    let dir = tempfile::tempdir().unwrap();
    let config = file(&dir, "c.toml", "[grader]\nmax_turns = 5\n").display().to_string();
    let ran = run("serve", &guest("tunable"), &["--listen", "127.0.0.1:0", "--config", &config]).await;
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("[grader] configures the component of --grader"), "{}", ran.stderr);
}

#[tokio::test]
async fn config_shows_the_settings_and_their_effective_values() {
    let ran = run("config", &guest("tunable"), &["--set", "search.depth=2.5"]).await;

    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    for line in [
        "has 6 settings",
        "  max_turns                   integer, at least 1          8",
        "      The most calls of the model.",
        "  search.depth                number                       1.5        2.5",
        "  concurrency.max_concurrent  integer, at least 1 or null  null",
        "  [plugin.search]",
        "  depth = 2.5",
        "  # greeting is null",
    ] {
        assert!(ran.stdout.lines().any(|found| found.ends_with(line)), "{line:?} is not in\n{}", ran.stdout);
    }

    let ran = run("config", &guest("tunable"), &["--set", "name=mine", "--json"]).await;
    let about: Value = serde_json::from_str(&ran.stdout).expect("it is JSON");
    assert_eq!(about["name"], "mine");
    assert_eq!(about["values"]["max_turns"], 8);
    assert_eq!(about["defaults"]["name"], "tunable");
    assert_eq!(about["schema"]["properties"]["max_turns"]["type"], "integer");
    assert_eq!(about["fields"][1]["key"], "max_turns");

    let ran = run("config", &guest("conform"), &[]).await;
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.contains("declares no settings"), "{}", ran.stdout);
}

#[tokio::test]
async fn an_evaluation_continues_only_with_the_same_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let data = file(&dir, "d.jsonl", "{\"user_prompt\": \"1 + 1\", \"ground_truth\": \"2\"}\n");
    let (data, out) = (data.display().to_string(), dir.path().join("out").display().to_string());
    let eval = ["--data", &data, "--model", "mock", "--out", &out];

    let ran = run("eval", &guest("tunable"), &[&eval[..], &["--set", "max_turns=7"]].concat()).await;
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let line: Value =
        serde_json::from_slice(&std::fs::read(dir.path().join("out/results.jsonl")).unwrap()).unwrap();
    assert_eq!(line["reward"], 7.0, "{line:#}");

    let ran = run("eval", &guest("tunable"), &[&eval[..], &["--set", "max_turns=6"]].concat()).await;
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("plugin_config"), "{}", ran.stderr);
}

#[tokio::test]
async fn a_malformed_set_option_is_an_error_of_the_command_line() {
    for wrong in ["max_turns", "=3", "search..depth=1"] {
        let ran = run("config", &guest("tunable"), &["--set", wrong]).await;

        assert_eq!(ran.code, Some(2), "{wrong}: {}", ran.stderr);
        assert!(ran.stderr.contains("--set"), "{wrong}: {}", ran.stderr);
    }
}
