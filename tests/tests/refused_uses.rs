//! Tests that refused uses reported by guests' runtimes are counted beside the reward, even if reported very often.

use rollout_tests::{Evaluation, Start, guest, read_json, rollout_host};
use serde_json::{Value, json};

/// Returns an evaluation of two rollouts: one reports over half a million refused uses, the other an alarm.
fn evaluation() -> Evaluation {
    let rows = [
        json!({"user_prompt": "misbehave", "ground_truth": "5"}),
        json!({"user_prompt": "2 + 3", "ground_truth": "5"}),
    ];
    let grader = guest("noisy");
    Evaluation::of("refused_uses", &rows).options([
        "--model",
        "mock",
        "--grader",
        &grader.display().to_string(),
    ])
}

/// Returns the refused uses in a trajectory.
fn of_trajectory(path: std::path::PathBuf) -> Value {
    read_json(&path)["extra"]["rollout_host"]["refused_uses"].clone()
}

#[tokio::test]
async fn refused_uses_are_counted_by_kind_with_the_first_location() {
    let evaluation = evaluation();

    let ran = evaluation.run().await;

    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    for text in [
        "1 of 2 rollouts tried to start a process; its reward may mean nothing",
        "e.g. made.py:0, in grade: subprocess.run, row-00000-run-0",
        "2 of 2 rollouts set an alarm",
        "2 of 2 rollouts have a sample without a reply of the model",
    ] {
        // A line may be wrapped.
        let stdout = ran.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(stdout.contains(text), "{text}: {}", ran.stdout);
    }
    let results = evaluation.results();
    let refused = &results[0]["refused_uses"];
    let process = json!({"count": 500_000, "first": "made.py:0, in grade: subprocess.run"});
    assert_eq!(refused["process"], process);
    assert_eq!(refused["network"], json!({"count": 70_000, "first": ""}));
    assert_eq!(refused.get("thread"), None, "none were reported: {refused:#}");
    let first = refused["file"]["first"].as_str().expect("a location is a text");
    assert!(first.len() < 400 && !first.contains('\u{1b}'), "{first}");
    assert_eq!(results[1]["refused_uses"].as_object().map(serde_json::Map::len), Some(1), "{}", results[1]);
    let summary = evaluation.summary();
    assert_eq!(summary["refused_uses"]["process"]["rollouts"], 1, "{summary:#}");
    assert_eq!(summary["refused_uses"]["alarm"]["rollouts"], 2, "{summary:#}");

    let written = of_trajectory(evaluation.path("out/rollouts/row-00000-run-0/trajectory.json"));
    assert_eq!(&written, refused);
    // The journal has the same, without running a guest.
    let mut again = rollout_host(["trajectory", "--all", "--journal", "out/journal", "--out", "again"]);
    let again = again.current_dir(evaluation.path(".")).start().ended().await;
    assert_eq!(again.code, Some(0), "{}", again.stderr);
    assert_eq!(of_trajectory(evaluation.path("again/row-00000-run-0/trajectory.json")), written);
}

#[tokio::test]
async fn a_limit_of_zero_refused_uses_removes_the_reward_and_counts_no_alarm() {
    let evaluation = evaluation().options(["--limit-refused-uses-max", "0"]);

    let ran = evaluation.run().await;

    assert_eq!(ran.code, Some(1), "{}{}", ran.stdout, ran.stderr);
    let results = evaluation.results();
    assert_eq!((&results[0]["outcome"], &results[0]["kind"]), (&json!("unscored"), &json!("limit")));
    assert_eq!((&results[0]["stage"], &results[0]["fault"]), (&json!("workflow"), &json!("plugin")));
    let reason = results[0]["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("tried to start a process (made.py:0, in grade: subprocess.run)"), "{reason}");
    assert!(results[0]["limits_hit"].get("refused-uses-max").is_some(), "{}", results[0]);
    assert_eq!(results[1]["outcome"], "scored", "{}", results[1]);
}

#[tokio::test]
async fn the_host_counts_refused_sockets_and_host_names_and_a_rust_guest_reports_the_rest() {
    let row = json!({"user_prompt": "look around", "ground_truth": "5", "metadata": {"port": 9}});
    let evaluation = Evaluation::of("look_around", &[row]).options(["--model", "mock"]);

    let ran = evaluation.run().await;

    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    let refused = &evaluation.results()[0]["refused_uses"];
    assert_eq!(refused["network"], json!({"count": 4, "first": "a TCP socket"}), "{refused:#}");
    assert_eq!(refused["process"], json!({"count": 1, "first": "look_around: unsupported"}), "{refused:#}");
    assert!(refused.get("file").is_none(), "the guest's library does not report files: {refused:#}");
}
