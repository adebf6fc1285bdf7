//! Tests of `replay`, which repeats a stored rollout without calling a model.

use std::path::Path;

use rollout_tests::{Controller, Ran, Start, TestHost, guest, rollout_host};
use serde_json::Value;
use tokio::io::AsyncWriteExt;

/// Starts a server for the guest with many turns, with its tool and its judge, and finishes a rollout on it.
async fn kept_rollout(controller: &Controller, prompt: &str) -> (TestHost, String, Value) {
    let tools = guest("tool_kit");
    let config = format!(
        "[journal]\ndir = 'journal'\n[judge]\nmodel = 'mock'\n[[tools.component]]\npath = '{}'\n",
        tools.display()
    );
    let host = TestHost::of("long_way").config(&config).start().await;
    let request = controller.rollout(prompt).label("x").with("agent_timeout_sec", 60.0);
    let admitted = host.admit(&request).await;
    let result = host.result(&admitted).await;
    assert_eq!(result["status"], "success", "{result:#}");
    (host, admitted.id, result)
}

async fn replay(dir: &Path, arguments: &[&str]) -> Ran {
    let mut command = rollout_host(["replay", "--journal", "journal", "--config", "config.toml"]);
    command.args(arguments).current_dir(dir).start().ended().await
}

#[tokio::test]
async fn a_replay_of_a_finished_rollout_is_the_same_without_model_calls() {
    let controller = Controller::start().await;
    let (host, id, result) = kept_rollout(&controller, "3").await;
    let chats = controller.chats().len();

    // The server has the journal open meanwhile.
    let ran = replay(host.dir(), &[&id]).await;

    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stdout, ran.stderr);
    let reward = result["sample"]["reward"].as_f64().unwrap();
    assert!(ran.stdout.contains(&format!("the same: reward {reward}")), "{}", ran.stdout);
    assert!(ran.stdout.contains("workflow call 1, move ") && ran.stdout.contains("upper("), "{}", ran.stdout);
    assert!(ran.stdout.contains("grader call 1"), "{}", ran.stdout);
    assert_eq!(controller.chats().len(), chats, "no model was called");
}

#[tokio::test]
async fn another_component_differs_and_the_first_difference_is_shown() {
    let controller = Controller::start().await;
    let (host, id, _) = kept_rollout(&controller, "3").await;

    let ran = replay(host.dir(), &[&id, "--plugin", &guest("conform").display().to_string()]).await;

    assert_eq!(ran.code, Some(1), "{}\n{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("not the same: in the workflow, call 1"), "{}", ran.stdout);
    assert!(ran.stdout.contains("then -") && ran.stdout.contains("turn 0, one"), "{}", ran.stdout);
}

#[tokio::test]
async fn a_replay_can_end_before_a_call() {
    let controller = Controller::start().await;
    let (host, id, _) = kept_rollout(&controller, "3").await;

    let ran = replay(host.dir(), &[&id, "--until", "4"]).await;

    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("the same up to call 4"), "{}", ran.stdout);
    assert!(ran.stdout.contains("workflow call 3,") && !ran.stdout.contains("call 4,"), "{}", ran.stdout);
    assert!(!ran.stderr.contains("WARN") && !ran.stderr.contains("unscored"), "{}", ran.stderr);
}

#[tokio::test]
async fn a_guest_that_polls_endlessly_is_replayed_and_leaves_a_small_journal() {
    let controller = Controller::start().await;
    let (host, id, _) = kept_rollout(&controller, "3 restless").await;

    let ran = replay(host.dir(), &[&id]).await;

    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stdout, ran.stderr);
    let segment = std::fs::read(host.dir().join("journal/00000000000000000001.seg")).unwrap();
    let written = segment.iter().rposition(|byte| *byte != 0).unwrap();
    assert!(written < 64 << 10, "{written} bytes for three turns");
}

#[tokio::test]
async fn a_missing_rollout_or_journal_is_reported() {
    let controller = Controller::start().await;
    let (host, id, _) = kept_rollout(&controller, "3").await;

    let missing = replay(host.dir(), &["nobody"]).await;
    let nowhere = replay(host.dir(), &["--journal", "nowhere", &id]).await;

    assert_eq!((missing.code, nowhere.code), (Some(2), Some(2)));
    assert!(missing.stderr.contains("there is no rollout 'nobody'"), "{}", missing.stderr);
    assert!(nowhere.stderr.contains("there is no journal in nowhere"), "{}", nowhere.stderr);
}

#[tokio::test]
async fn a_rollout_file_can_be_replayed_with_the_component() {
    let controller = Controller::start().await;
    let (host, id, _) = kept_rollout(&controller, "3").await;
    let path = |name: &str| host.dir().join(name).display().to_string();

    let saved = replay(host.dir(), &[&id, "--save", "one.rollout"]).await;

    assert_eq!(saved.code, Some(0), "{}\n{}", saved.stdout, saved.stderr);
    assert!(saved.stdout.contains("without keys") && saved.stdout.contains("it ran "), "{}", saved.stdout);
    let bytes = std::fs::read(path("one.rollout")).unwrap();
    let twice = replay(host.dir(), &[&id, "--save", "one.rollout"]).await;
    assert_eq!(twice.code, Some(2), "a file that is there stays: {}", twice.stdout);
    // Another directory, without a journal.
    let elsewhere = tempfile::tempdir().unwrap();
    std::fs::write(elsewhere.path().join("one.rollout"), &bytes).unwrap();
    let (config, component) = (path("config.toml"), guest("long_way").display().to_string());
    let replay = async |arguments: &[&str]| {
        let mut command = rollout_host(["replay", "--config", &config]);
        command.args(arguments).current_dir(elsewhere.path()).start().ended().await
    };
    let without = replay(&["one.rollout"]).await;
    let with = replay(&["one.rollout", "--plugin", &component]).await;
    assert_eq!(without.code, Some(2), "{}", without.stdout);
    assert!(without.stderr.contains("give the component with --plugin"), "{}", without.stderr);
    assert_eq!(with.code, Some(0), "{}\n{}", with.stdout, with.stderr);
    assert!(with.stdout.contains("the same: reward "), "{}", with.stdout);
    for (bytes, says) in [
        (&bytes[..bytes.len() - 5], "is damaged at byte "),
        (b"ROLLONE9".as_slice(), "is of version '9'"),
        (b"something else".as_slice(), "is not a rollout file"),
    ] {
        std::fs::write(elsewhere.path().join("wrong"), bytes).unwrap();
        let wrong = replay(&["wrong"]).await;
        assert_eq!(wrong.code, Some(2), "{}", wrong.stdout);
        assert!(wrong.stderr.contains(says), "{}", wrong.stderr);
    }
}

#[tokio::test]
async fn a_rollout_file_contains_no_key() {
    let controller = Controller::start().await;
    let host = TestHost::of("conform").config("[journal]\ndir = 'journal'\n").start().await;
    let id = "a-rollout-with-keys";
    let request = controller
        .rollout("Calculate 2 + 3.")
        .id(id)
        .label("5")
        .with("llm_api_key", "s3cret-of-the-model")
        .with_callbacks("s3cret-of-the-caller");
    assert_eq!(host.ask(&request).await.status, 202);
    controller.callbacks_arrived(2).await;
    host.idle().await;
    // The sealed part of the journal must not be in the file.
    let journal = everything_in(&host.dir().join("journal"));
    let admitted = find(&journal, b"\"driver\"").expect("the admission is there");
    let line_end = admitted + find(&journal[admitted..], b"\n").expect("its line ends");
    let sealed = &journal[line_end + 1..line_end + 33];

    let saved = replay(host.dir(), &[id, "--save", "one.rollout"]).await;

    assert_eq!(saved.code, Some(0), "{}", saved.stderr);
    let file = std::fs::read(host.dir().join("one.rollout")).unwrap();
    assert!(find(&file, b"Calculate 2 ").is_some(), "the prompt is in the file");
    assert!(find(&file, sealed).is_none(), "the sealed part is not");
    for secret in [b"s3cret-of-the-model".as_slice(), b"s3cret-of-the-caller"] {
        assert!(find(&file, secret).is_none());
    }
}

/// Returns the contents of all segments of a journal.
fn everything_in(journal: &Path) -> Vec<u8> {
    let entries = std::fs::read_dir(journal).unwrap().map(|entry| entry.unwrap().path());
    let segments = entries.filter(|path| path.extension().is_some_and(|end| end == "seg"));
    segments.flat_map(|path| std::fs::read(path).unwrap()).collect()
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|part| part == what)
}

#[tokio::test]
async fn an_interactive_replay_stops_at_each_reply() {
    let controller = Controller::start().await;
    let (host, id, _) = kept_rollout(&controller, "3").await;
    let interactive = async |plugin: Option<&str>, typed: &str| {
        let mut command =
            rollout_host(["replay", "--journal", "journal", "--config", "config.toml", "-i", &id]);
        command.args(plugin.map(|plugin| format!("--plugin={plugin}"))).current_dir(host.dir());
        let (process, mut input) = command.start_with_input();
        input.write_all(typed.as_bytes()).await.unwrap();
        drop(input);
        process.ended().await
    };

    let whole = interactive(None, "n\nm\nt\ne no\nc\nc\n").await;

    assert_eq!(whole.code, Some(0), "{}\n{}", whole.stdout, whole.stderr);
    for shown in [
        "call 1, sample ",
        "turn 0, one",
        "→ upper(",
        "of the judge",
        "reward",
        "cannot be edited",
        "the same: reward ",
    ] {
        assert!(whole.stdout.contains(shown), "{shown}: {}", whole.stdout);
    }
    assert_eq!(whole.stdout.matches("[q]uit >").count(), 5, "it continues after c: {}", whole.stdout);
    let quit = interactive(None, "n\nq\n").await;
    assert_eq!(quit.code, Some(2), "{}", quit.stdout);
    assert!(quit.stdout.contains("the rollouts were not compared"), "{}", quit.stdout);
    let other = interactive(Some(&guest("conform").display().to_string()), "c\n").await;
    assert_eq!(other.code, Some(1), "{}", other.stdout);
    assert!(!other.stdout.contains("call 1, sample "), "it ends at the difference: {}", other.stdout);
    assert!(other.stdout.contains("not the same: in the workflow, call 1"), "{}", other.stdout);
}
