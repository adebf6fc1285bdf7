//! Tests of `test`, which shows one rollout as it runs, optionally step by step.

use rollout_tests::{Answer, Controller, Ran, Start, guest, in_time, rollout_host};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

struct Bench {
    dir: TempDir,
    controller: Controller,
}

impl Bench {
    async fn start() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let rows = ["What is 1 + 2?", "What is 20 + 3?"]
            .map(|prompt| json!({"user_prompt": prompt, "ground_truth": "3"}));
        let rows: String = rows.iter().map(|row| format!("{row}\n")).collect();
        std::fs::write(dir.path().join("rows.jsonl"), rows).expect("it can be written");
        Self { dir, controller: Controller::start().await }
    }

    fn command(&self, plugin: &str, more: &[&str]) -> Command {
        let mut command = rollout_host(["test"]);
        command.arg(guest(plugin)).arg("--data").arg(self.dir.path().join("rows.jsonl"));
        command.args(["--model", "a-model", "--base-url", &self.controller.model_url()]).args(more);
        command.current_dir(self.dir.path());
        command
    }

    /// Runs `test` interactively with these lines as input.
    async fn typed(&self, plugin: &str, lines: &str) -> Ran {
        let (process, mut input) = self.command(plugin, &["--interactive"]).start_with_input();
        input.write_all(lines.as_bytes()).await.expect("it reads");
        drop(input);
        process.ended().await
    }
}

#[tokio::test]
async fn the_whole_conversation_is_shown_with_the_reward_and_the_usage() {
    let bench = Bench::start().await;

    let ran = bench.command("conform", &["--row", "0", "--out", "kept"]).start().ended().await;

    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    for shown in [
        "user       What is 1 + 2?",
        "assistant  The sum is #### 3",
        "           stop, 7 + 3 tokens, ",
        "reward     1",
        "used       1 call of the model (7 + 3 tokens), ",
        "trajectory ",
    ] {
        assert!(
            ran.stdout.lines().any(|line| line.starts_with(shown)),
            "{shown:?} is not in\n{}",
            ran.stdout
        );
    }
    assert!(!ran.stdout.contains('\u{1b}'), "no colours without a terminal");
    assert!(bench.dir.path().join("kept/row-00000-run-0/trajectory.json").is_file());
}

#[tokio::test]
async fn lines_that_the_plugin_prints_and_logs_are_shown_while_the_rollout_runs() {
    let bench = Bench::start().await;
    let row = json!({"user_prompt": "print", "ground_truth": "3"});
    std::fs::write(bench.dir.path().join("rows.jsonl"), row.to_string()).expect("it can be written");
    bench.controller.hold();
    let process = bench.command("noisy", &[]).start();
    bench.controller.chats_arrived(1).await;

    // The guest waits for a reply that is held, so the rollout cannot have ended.
    for line in ["printed to stdout", "printed to stderr", "logged"] {
        process.line(&format!("log        {line}")).await;
    }

    bench.controller.release();
    let ran = process.ended().await;
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    let at = |text: &str| ran.stdout.find(text).unwrap_or_else(|| panic!("no {text:?} in {}", ran.stdout));
    assert!(at("logged") < at("assistant  "), "{}", ran.stdout);
}

#[tokio::test]
async fn colours_are_optional_and_no_message_can_control_the_terminal() {
    let bench = Bench::start().await;
    bench.controller.answer_chats([Answer::Say("\u{1b}[2J#### 3")]);

    let ran = bench.command("conform", &["--color", "always"]).env("NO_COLOR", "1").start().ended().await;

    assert!(ran.stdout.contains("\u{1b}[32massistant"), "{:?}", ran.stdout);
    assert!(ran.stdout.contains("\\u{1b}[2J#### 3"), "{:?}", ran.stdout);
    assert!(!ran.stdout.contains("\u{1b}[2J"), "{:?}", ran.stdout);
}

#[tokio::test]
async fn the_cause_of_a_missing_reward_decides_the_exit_code() {
    let bench = Bench::start().await;
    let refusal = json!({"error": "no"});
    bench.controller.answer_chats([Answer::Status(401, refusal)]);
    let refused = bench.command("conform", &[]).start().ended().await;
    assert_eq!(refused.code, Some(2), "{}", refused.stdout);
    assert!(refused.stdout.contains("why        workflow, model, at fault: model"), "{}", refused.stdout);

    let no_label = bench.command("judged", &[]).start().ended().await;
    assert_eq!(no_label.code, Some(2), "{}", no_label.stdout);
    assert!(no_label.stdout.contains("grader, judge, at fault: host"), "{}", no_label.stdout);

    let ungraded = bench.command("only_workflow", &[]).start().ended().await;
    assert_eq!(ungraded.code, Some(0), "{}", ungraded.stdout);
    assert!(ungraded.stdout.contains("the plugin has no grader"), "{}", ungraded.stdout);

    let missing = bench.command("conform", &["--row", "2"]).start().ended().await;
    assert_eq!(missing.code, Some(2), "{}", missing.stderr);
    assert!(missing.stderr.contains("has 2 rows"), "{}", missing.stderr);
}

#[tokio::test]
async fn the_judge_is_shown_as_well() {
    let bench = Bench::start().await;
    let ran = bench.command("judged", &["--judge-model", "mock"]).start().ended().await;

    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("of the judge"), "{}", ran.stdout);
    assert!(ran.stdout.lines().any(|line| line.starts_with("judge      {\"score\":10")), "{}", ran.stdout);
    assert!(ran.stdout.contains("1 of the judge ("), "{}", ran.stdout);
}

#[tokio::test]
async fn step_by_step_the_guest_waits_for_each_command() {
    let bench = Bench::start().await;
    let rating = r#"{"score": 8, "explanation": "Nearly."}"#;
    bench.controller.answer_chats([Answer::Say("It is #### 3"), Answer::Say(rating)]);
    let url = bench.controller.model_url();
    let judge = ["--interactive", "--judge-model", "a-judge", "--judge-url", url.as_str()];
    let (process, mut input) = bench.command("judged", &judge).start_with_input();

    bench.controller.chats_arrived(1).await;
    process.line("assistant  ").await;
    assert_eq!(bench.controller.chats().len(), 1, "the judge waits until the guest has the reply");
    input.write_all(b"n\n").await.unwrap();
    bench.controller.chats_arrived(2).await;
    input.write_all(b"c\nc\n").await.unwrap();

    let ran = process.ended().await;
    assert_eq!(ran.code, Some(0), "{}", ran.stdout);
}

#[tokio::test]
async fn an_edited_reply_reaches_the_guest() {
    let bench = Bench::start().await;
    for (typed, reward) in [
        ("e The sum is #### 4\nn\nc\n", "reward     0"),
        ("e\nThe sum\nis #### 3\n.\nn\nc\n", "reward     1"),
        ("edit {\"content\": \"#### 5\", \"mood\": \"grim\"}\nc\n", "reward     0"),
        ("n\nc\n", "reward     1"),
    ] {
        let ran = bench.typed("conform", typed).await;

        assert_eq!(ran.code, Some(0), "{typed:?}: {}", ran.stdout);
        assert!(ran.stdout.lines().any(|line| line == reward), "{typed:?}: {}", ran.stdout);
    }
}

#[tokio::test]
async fn messages_and_tools_are_shown_on_request_and_after_the_result_only_messages() {
    let bench = Bench::start().await;

    let ran = bench.typed("conform", "m\nt\nwhat\n\nt\nm\nc\n").await;

    assert_eq!(ran.code, Some(0), "{}", ran.stdout);
    let shown = ran.stdout.matches("user       What is 1 + 2?").count();
    assert_eq!(shown, 3, "once in the conversation, once for each m: {}", ran.stdout);
    assert!(ran.stdout.contains("offers no tools"), "{}", ran.stdout);
    assert!(ran.stdout.contains("unknown command 'what'"), "{}", ran.stdout);
    assert!(ran.stdout.contains("the rollout has ended: m shows messages"), "{}", ran.stdout);
}

#[tokio::test]
async fn quitting_and_the_end_of_input_stop_the_rollout() {
    let bench = Bench::start().await;
    for typed in ["q\n", "quit\n", "exit\n", "", "m\n"] {
        let ran = bench.typed("conform", typed).await;

        assert_eq!(ran.code, Some(2), "{typed:?}: {}", ran.stdout);
        assert!(ran.stdout.contains("rollout cancelled"), "{typed:?}: {}", ran.stdout);
    }
}

#[tokio::test]
async fn an_interrupt_stops_a_rollout_during_a_model_call() {
    let bench = Bench::start().await;
    bench.controller.hold();
    let process = bench.command("conform", &[]).start();
    bench.controller.chats_arrived(1).await;

    let ran = in_time("its end", process.terminate()).await;

    assert_eq!(ran.code, Some(2), "{}", ran.stdout);
    bench.controller.chats_open(0).await;
}

#[tokio::test]
async fn the_row_runs_with_the_id_and_configuration_of_an_evaluation() {
    let bench = Bench::start().await;
    let ran = bench.command("tunable", &["--row", "1", "--set", "max_turns=4"]).start().ended().await;

    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    assert_eq!(bench.controller.chats()[0].header("x-rollout-id"), Some("row-00001-run-0"));
    assert!(ran.stdout.lines().any(|line| line == "reward     4"), "{}", ran.stdout);
    assert_eq!(bench.controller.chats()[0].body["model"], Value::from("a-model"));
}
