//! Tests of `validate`, by the names of its checks.

use std::path::{Path, PathBuf};

use rollout_tests::{Ran, Start, TestTerminal, guest, host_program, rollout_host};
use serde_json::{Value, json};
use tempfile::TempDir;

async fn validate(plugin: &Path, more: &[&str]) -> Ran {
    rollout_host(["validate"]).arg(plugin).args(more).start().ended().await
}

/// Returns the report and the exit code.
async fn report(plugin: &Path, more: &[&str]) -> (Value, Option<i32>) {
    let ran = validate(plugin, &[more, &["--json"]].concat()).await;
    let report = serde_json::from_str(&ran.stdout);
    (report.unwrap_or_else(|error| panic!("{error} in {}{}", ran.stdout, ran.stderr)), ran.code)
}

/// Returns the result of a check; empty if it was not made.
fn result_of<'a>(report: &'a Value, name: &str) -> &'a str {
    let checks = report["checks"].as_array().expect("a report has checks");
    let check = checks.iter().find(|check| check["name"] == name);
    check.and_then(|check| check["outcome"].as_str()).unwrap_or_default()
}

fn detail<'a>(report: &'a Value, name: &str) -> &'a str {
    let checks = report["checks"].as_array().expect("a report has checks");
    let check = checks.iter().find(|check| check["name"] == name).unwrap_or(&Value::Null);
    check["detail"].as_str().unwrap_or_default()
}

fn row(dir: &TempDir, prompt: &str, label: &str) -> String {
    let path: PathBuf = dir.path().join("rows.jsonl");
    let row = json!({"user_prompt": prompt, "ground_truth": label});
    std::fs::write(&path, row.to_string()).expect("it can be written");
    path.display().to_string()
}

#[tokio::test]
async fn a_plugin_that_conforms_passes_every_check_that_applies() {
    for (name, more) in [
        ("conform", &["runs", "sample", "reward"][..]),
        ("tunable", &["settings", "configuration", "reward"]),
        ("judged", &["reward"]),
        ("two_samples", &["sample", "reward"]),
        ("only_workflow", &["sample"]),
        ("agent_loop", &["name", "tools", "sample"]),
        ("rated_loop", &["name", "tools", "sample", "reward"]),
    ] {
        let (report, code) = report(&guest(name), &[]).await;

        assert_eq!((code, &report["valid"]), (Some(0), &json!(true)), "{name}: {report:#}");
        for check in
            ["component", "contract", "exports", "imports", "starts", "deterministic"].iter().chain(more)
        {
            assert_eq!(result_of(&report, check), "passed", "{name}: {check} in {report:#}");
        }
    }
}

#[tokio::test]
async fn a_grader_alone_is_checked_with_an_invented_conversation() {
    let (report, code) = report(&guest("only_grader"), &[]).await;

    assert_eq!(code, Some(0), "{report:#}");
    assert_eq!((result_of(&report, "reward"), result_of(&report, "deterministic")), ("passed", "passed"));
    assert_eq!(result_of(&report, "sample"), "skipped");
}

#[tokio::test]
async fn a_problem_in_a_run_fails_its_check_with_advice() {
    let dir = tempfile::tempdir().unwrap();
    for (prompt, label, failed, named, skipped) in [
        ("register nothing", "1", "sample", "registered no sample", &["reward"][..]),
        ("fail", "1", "runs", "told to fail", &["sample", "reward"]),
        ("trap", "1", "runs", "told to trap", &["sample", "reward"]),
        ("1 + 1", "rate nothing", "reward", "no reward", &[]),
        ("1 + 1", "rate without end", "reward", "not a finite number", &[]),
        ("tell the time", "1", "deterministic", "differs at byte", &[]),
        ("write another file", "1", "deterministic", "artifact 'looks.txt' differs", &[]),
    ] {
        let data = row(&dir, prompt, label);
        // The remaining time decreases in steps, which are longer if more time is left.
        let options = ["--data", &data, "--limit-workflow-secs-max", "4"];

        let (report, code) = report(&guest("unfit"), &options).await;

        assert_eq!(code, Some(1), "{prompt}: {report:#}");
        assert_eq!(result_of(&report, failed), "failed", "{prompt}: {report:#}");
        assert!(detail(&report, failed).contains(named), "{prompt}: {report:#}");
        for check in skipped {
            assert_eq!(result_of(&report, check), "skipped", "{prompt}: {report:#}");
        }
        let others = report["checks"].as_array().unwrap().iter().filter(|check| check["outcome"] == "failed");
        assert_eq!(others.count(), 1, "{prompt}: {report:#}");
        let text = validate(&guest("unfit"), &options).await.stdout;
        assert!(text.contains("FAILED  ") && text.contains("→ "), "{prompt}: {text}");
    }
}

#[tokio::test]
async fn a_withdrawn_sample_is_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let (report, code) = report(&guest("unfit"), &["--data", &row(&dir, "1 + 1", "withdraw")]).await;

    assert_eq!(code, Some(0), "{report:#}");
    assert_eq!(result_of(&report, "reward"), "warned", "{report:#}");
}

#[tokio::test]
async fn refused_uses_and_a_sample_without_a_reply_are_warnings_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let data = row(&dir, "misbehave", "5");
    let grader = guest("noisy").display().to_string();
    let options = ["--data", &data, "--grader", &grader];

    let (found, code) = report(&guest("refused_uses"), &options).await;

    assert_eq!((code, &found["valid"]), (Some(0), &json!(true)), "{found:#}");
    let warned: Vec<(&str, &str, &str)> = found["checks"]
        .as_array()
        .expect("a report has checks")
        .iter()
        .filter(|check| check["outcome"] == "warned")
        .map(|check| ["name", "detail", "advice"].map(|key| check[key].as_str().unwrap_or_default()).into())
        .collect();
    let expected = [
        ("sample", "without a reply of the model", "await the agent before"),
        (
            "refused",
            "tried to start a process, 500000 times: made.py:0, in grade: subprocess.run",
            "cannot start processes",
        ),
        (
            "refused",
            "a file that a component does not have, 3 times: \\u{1b}[31mmade.py",
            "keep generated data in memory",
        ),
        (
            "refused",
            "tried to reach the network, 70000 times",
            "call the model, the judge or a tool of the host",
        ),
        ("refused", "set an alarm, which interrupts no computation", "limit of CPU time"),
    ];
    assert_eq!(warned.len(), expected.len(), "{found:#}");
    for ((name, detail, advice), expected) in warned.iter().zip(expected) {
        assert_eq!(*name, expected.0, "{found:#}");
        assert!(detail.contains(expected.1), "{}: {found:#}", expected.1);
        assert!(advice.contains(expected.2), "{}: {found:#}", expected.2);
    }
    let text = validate(&guest("refused_uses"), &options).await.stdout;
    assert!(text.contains("warned   refused        it tried to start a process"), "{text}");
}

#[tokio::test]
async fn an_agent_that_asks_the_model_and_refuses_nothing_is_warned_of_nothing() {
    let (report, code) = report(&guest("noisy"), &[]).await;

    assert_eq!(
        (code, result_of(&report, "sample"), result_of(&report, "refused")),
        (Some(0), "passed", ""),
        "{report:#}"
    );
}

#[tokio::test]
async fn tools_are_checked_with_the_protocols_error_codes() {
    let dir = tempfile::tempdir().unwrap();
    let (loose, code) = report(&guest("unfit"), &["--data", &row(&dir, "offer bad tools", "1")]).await;
    assert_eq!(code, Some(1), "{loose:#}");
    for (name, outcome) in [
        ("MISSING_FUNCTION_NAME", "failed"),
        ("UNKNOWN_TOOL_TYPE", "warned"),
        ("INVALID_FUNCTION_NAME", "failed"),
        ("MISSING_FUNCTION_DESCRIPTION", "warned"),
        ("INVALID_PARAMETERS_TYPE", "failed"),
    ] {
        assert_eq!(result_of(&loose, name), outcome, "{name}: {loose:#}");
    }

    for (prompt, name) in [
        ("nameless tools", "MISSING_FUNCTION_NAME"),
        ("no tools today", "GET_TOOLS_EXCEPTION"),
        ("trap over tools", "GET_TOOLS_EXCEPTION"),
    ] {
        let (report, code) = report(&guest("agent_loop"), &["--data", &row(&dir, prompt, "1")]).await;

        assert_eq!(code, Some(1), "{report:#}");
        assert_eq!(result_of(&report, name), "failed", "{report:#}");
    }
}

#[tokio::test]
async fn an_error_in_the_component_itself_ends_the_checks() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("made.wasm");
    for (bytes, failed) in [
        (b"no wasm".to_vec(), "component"),
        (wat::parse_str("(component)").unwrap(), "exports"),
        (wat::parse_str(r#"(component (import "vendor:gpu/kernels" (instance)))"#).unwrap(), "imports"),
        (
            wat::parse_str(r#"(component (import "rollout:plugin/models@0.2.0" (instance)))"#).unwrap(),
            "contract",
        ),
    ] {
        std::fs::write(&path, bytes).unwrap();

        let (report, code) = report(&path, &[]).await;

        assert_eq!(code, Some(1), "{report:#}");
        assert_eq!(result_of(&report, failed), "failed", "{report:#}");
        assert_eq!(result_of(&report, "runs"), "", "{report:#}");
    }
    let missing = validate(&dir.path().join("nowhere.wasm"), &[]).await;
    assert_eq!(missing.code, Some(2), "{}", missing.stderr);
}

#[tokio::test]
async fn a_wrong_declaration_and_a_wrong_configuration_have_different_exit_codes() {
    let (declared, code) = report(&guest("wrong_settings"), &[]).await;
    assert_eq!((code, result_of(&declared, "settings")), (Some(1), "failed"), "{declared:#}");
    assert_eq!(result_of(&declared, "runs"), "skipped", "{declared:#}");

    let (report, code) = report(&guest("tunable"), &["--set", "max_turn=3"]).await;
    assert_eq!((code, result_of(&report, "configuration")), (Some(2), "failed"), "{report:#}");
    assert!(detail(&report, "configuration").contains("did you mean max_turns?"), "{report:#}");
}

#[tokio::test]
async fn replies_may_come_from_a_script() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("script.jsonl");
    std::fs::write(&script, r#####"{"message": {"content": "#### 7"}}"#####).unwrap();
    let script = script.display().to_string();
    let data = row(&dir, "Which number?", "7");

    let (report, code) = report(&guest("conform"), &["--data", &data, "--script", &script]).await;

    assert_eq!((code, detail(&report, "reward")), (Some(0), "1"), "{report:#}");
}

#[tokio::test]
async fn checks_that_take_longer_than_a_second_show_that_they_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let data = row(&dir, "misbehave", "5");
    let (program, plugin) = (host_program(), guest("spin"));
    let command = format!("'{}' validate '{}' --data '{data}'", program.display(), plugin.display());

    // These checks do not end.
    let terminal = TestTerminal::start(&command).await;
    terminal.shows(" checking ").await;
    drop(terminal);

    // After the last check, the line is gone.
    let terminal = TestTerminal::start(&format!("{command} --secs-max 2")).await;
    let screen = terminal.shows("did not end within 2 s").await;
    assert!(!screen.contains(" checking "), "{screen}");
}
