//! Tests that the start date of guests' clocks is a setting, which a rollout keeps.

use rollout_tests::{Evaluation, Start, guest, rollout_host};
use serde_json::json;

/// Returns an evaluation of a rollout that reads its clock, with these options.
fn look(options: &[&str]) -> Evaluation {
    let row = json!({"user_prompt": "look", "ground_truth": "5", "metadata": {"port": 9}});
    Evaluation::of("look_around", &[row]).options(["--model", "mock"]).options(options.iter().copied())
}

#[tokio::test]
async fn a_clock_starts_at_the_configured_date_and_a_replay_repeats_it_without_the_option() {
    let evaluation = look(&["--clock-begins", "2026-11-23T09:30:00Z"]);

    let ran = evaluation.run().await;

    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    let trajectory =
        std::fs::read_to_string(evaluation.path("out/rollouts/row-00000-run-0/trajectory.json")).unwrap();
    assert!(trajectory.contains(r#"now\":1795426200"#), "{trajectory}");
    let manifest = std::fs::read_to_string(evaluation.path("out/manifest.json")).unwrap();
    assert!(manifest.contains("2026-11-23 09:30 UTC"), "{manifest}");
    for more in [&[][..], &["--clock-begins", "1999-01-01"]] {
        let mut again = rollout_host(["replay", "row-00000-run-0", "--journal", "out/journal"]);
        let again = again.args(more).current_dir(evaluation.path(".")).start().ended().await;

        assert_eq!(again.code, Some(0), "{more:?}: {}{}", again.stdout, again.stderr);
        assert!(again.stdout.contains("the same: "), "{}", again.stdout);
    }
}

#[tokio::test]
async fn a_plugin_declares_its_settings_at_the_configured_date() {
    let file = tempfile::NamedTempFile::new().expect("a temporary file can be made");
    for (text, seconds) in [("", 1_735_689_600), ("clock-begins = '2026-11-23T09:30:00Z'", 1_795_426_200)] {
        std::fs::write(file.path(), text).expect("a file can be written");
        let mut command = rollout_host(["config"]);
        command.arg(guest("dated")).arg("--json").arg("--config").arg(file.path());
        let ran = command.start().ended().await;

        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let about: serde_json::Value = serde_json::from_str(&ran.stdout).expect("it is JSON");
        assert_eq!(about["defaults"]["since"], seconds, "{about:#}");
    }
}

#[tokio::test]
async fn a_clock_starts_in_2025_by_default_and_an_invalid_date_is_named() {
    let (usual, wrong) = (look(&[]), look(&["--clock-begins", "tomorrow"]));

    let (usually, refused) = (usual.run().await, wrong.run().await);

    assert_eq!(usually.code, Some(0), "{}{}", usually.stdout, usually.stderr);
    let trajectory =
        std::fs::read_to_string(usual.path("out/rollouts/row-00000-run-0/trajectory.json")).unwrap();
    assert!(trajectory.contains(r#"now\":1735689600"#), "{trajectory}");
    assert_eq!(refused.code, Some(2), "{}{}", refused.stdout, refused.stderr);
    assert!(
        refused.stderr.contains("clock-begins: 'tomorrow' is neither a date such as 2026-11-23"),
        "{}",
        refused.stderr
    );
}
