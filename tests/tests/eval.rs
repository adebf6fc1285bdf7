//! Tests of `rollout-host eval`: rows in, results and an exit code out.

use std::path::Path;

use rollout_tests::{Answer, Controller, Evaluation, guest, read_json, rollout_host, sums, until};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

#[tokio::test]
async fn every_row_has_a_result_and_a_trajectory_and_the_summary_counts_them() {
    let controller = Controller::start().await;
    let evaluation = Evaluation::of("conform", &sums(4)).model(&controller).options(["--n", "2"]);

    let ran = evaluation.run().await;

    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let results = evaluation.results();
    let places: Vec<_> = results.iter().map(|line| (line["row"].as_u64(), line["run"].as_u64())).collect();
    let expected: Vec<_> = (0..4).flat_map(|row| (0..2).map(move |run| (Some(row), Some(run)))).collect();
    assert_eq!(places, expected);
    for line in &results {
        assert_eq!(line["outcome"], "scored", "{line:#}");
        assert_eq!(line["reward"], if line["row"] == 3 { 0.0 } else { 1.0 }, "{line:#}");
        assert_eq!(line["chat_calls"], 1, "{line:#}");
        assert_eq!((&line["prompt_tokens"], &line["completion_tokens"]), (&json!(7), &json!(3)), "{line:#}");
        let trajectory = read_json(&evaluation.path("out").join(line["trajectory"].as_str().unwrap()));
        assert_eq!(trajectory["session_id"], line["rollout_id"]);
    }
    let summary = evaluation.summary();
    assert_eq!(summary["rollouts"], 8, "{summary:#}");
    assert_eq!(summary["scored"], 8, "{summary:#}");
    assert_eq!(summary["passed"], 6, "{summary:#}");
    assert_eq!(summary["reward"]["mean"], 0.75, "{summary:#}");
    assert_eq!(summary["pass_at_k"]["1"]["estimate"], 0.75, "{summary:#}");
    assert_eq!(summary["pass_at_k"]["1"]["standard_error"], 0.25, "{summary:#}");
    assert_eq!(summary["reward"]["standard_error"], 0.25, "by row, of which there are four: {summary:#}");
    assert!(ran.stdout.contains("Pass@k") && ran.stdout.contains("results.jsonl"), "{}", ran.stdout);
}

#[tokio::test]
async fn a_chat_call_names_its_rollout_and_sample_and_carries_the_key() {
    let controller = Controller::start().await;
    let evaluation =
        Evaluation::of("conform", &sums(3)).model(&controller).options(["--api-key-env", "KEY_OF_THE_MODEL"]);

    let ran = evaluation.run().await;

    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let results = evaluation.results();
    let chats = controller.chats();
    assert_eq!(chats.len(), 3);
    for chat in &chats {
        assert_eq!(chat.header("authorization"), Some("Bearer secret-of-the-model"));
        assert_eq!(chat.body["model"], "a-model");
        let id = chat.header("x-rollout-id").expect("it names its rollout");
        let line = results.iter().find(|line| line["rollout_id"] == id).expect("the rollout has a result");
        assert_eq!(line["samples"][0]["id"], chat.header("x-sample-id").unwrap_or_default(), "{line:#}");
    }
    let written = everything_below(&evaluation.path("out"));
    assert!(!written.contains("secret-of-the-model"), "the key is written down");
}

/// Returns the contents of every file below a directory.
fn everything_below(dir: &Path) -> String {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.path() {
            path if path.is_dir() => everything_below(&path),
            path => String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned(),
        })
        .collect()
}

#[tokio::test]
async fn the_label_is_in_nothing_that_a_workflow_sees_or_sends() {
    const CANARY: &str = "canary-7f3a";
    let controller = Controller::start().await;
    let row = json!({"user_prompt": "Calculate 2 + 3.", "ground_truth": CANARY, "metadata": {"difficulty": "easy"}});
    let evaluation = Evaluation::of("show_everything", &[row]).model(&controller);

    let ran = evaluation.run().await;

    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let line = &evaluation.results()[0];
    assert_eq!(line["reward"], CANARY.len() as f64, "the grader received it: {line:#}");
    let sent = format!("{:?}", controller.chats());
    let trajectory = evaluation.path("out").join(line["trajectory"].as_str().unwrap());
    let seen = std::fs::read_to_string(trajectory.with_file_name("artifacts").join("seen.json")).unwrap();
    for text in [sent, seen] {
        assert!(text.contains("difficulty"), "{text}");
        assert!(!text.contains(CANARY), "{text}");
    }
}

#[tokio::test]
async fn several_samples_of_a_rollout_are_graded_and_averaged() {
    let controller = Controller::start().await;
    let evaluation = Evaluation::of("two_samples", &sums(1)).model(&controller);

    let ran = evaluation.run().await;

    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let line = &evaluation.results()[0];
    assert_eq!(line["reward"], 0.5, "{line:#}");
    let samples: Vec<_> =
        line["samples"].as_array().unwrap().iter().map(|sample| (&sample["id"], &sample["reward"])).collect();
    let (first, second, one, zero) = (json!("first"), json!("second"), json!(1.0), json!(0.0));
    assert_eq!(samples, [(&first, &one), (&second, &zero)]);
    let chats = controller.chats();
    let mut named: Vec<_> = chats.iter().filter_map(|chat| chat.header("x-sample-id")).collect();
    named.sort_unstable();
    assert_eq!(named, ["first", "second"]);
}

#[tokio::test]
async fn a_killed_run_continues_without_repeating_a_row() {
    let controller = Controller::start().await;
    let rows = sums(6);
    let evaluation = Evaluation::of("conform", &rows).model(&controller).options(["--concurrency", "2"]);
    // The first calls are answered; the model holds the others.
    controller.hold_after(2);
    let process = evaluation.start();
    until("two results", async || (evaluation.results().len() == 2).then_some(())).await;
    let killed = process.kill().await;
    let before = evaluation.results();
    controller.release();
    controller.chats_open(0).await;
    let asked_before = controller.chats().len();

    let ran = evaluation.run().await;

    assert_eq!(killed.code, None);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let results = evaluation.results();
    assert_eq!(results.len(), rows.len());
    let mut places: Vec<_> = results.iter().map(|line| line["row"].as_u64()).collect();
    places.sort_unstable();
    assert_eq!(places, (0..6).map(Some).collect::<Vec<_>>(), "each once");
    for line in &before {
        assert!(results.contains(line), "a result that was there is there: {line:#}");
    }
    assert_eq!(controller.chats().len() - asked_before, rows.len() - before.len());
    assert_eq!(evaluation.summary()["rollouts"], rows.len());
}

#[tokio::test]
async fn an_interrupted_run_is_reported_and_can_continue() {
    let controller = Controller::start().await;
    controller.hold();
    let evaluation = Evaluation::of("conform", &sums(3)).model(&controller);
    let process = evaluation.start();
    controller.chats_open(3).await;

    process.signal(Signal::INT);
    let interrupted = process.ended().await;
    let none = evaluation.results();
    controller.release();
    let ran = evaluation.run().await;

    assert_eq!(interrupted.code, Some(2), "{}", interrupted.stderr);
    assert_eq!(none, Vec::<Value>::new(), "a stopped rollout has no result");
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(evaluation.results().len(), 3);
}

#[tokio::test]
async fn results_are_not_mixed_with_those_of_other_data_or_another_plugin() {
    let controller = Controller::start().await;
    let mut evaluation = Evaluation::of("conform", &sums(2)).model(&controller);
    assert_eq!(evaluation.run().await.code, Some(0));
    let before = evaluation.results();

    evaluation.write_rows(&sums(3));
    let other_data = evaluation.run().await;
    evaluation.write_rows(&sums(2));
    evaluation.guest = guest("two_samples");
    let other_plugin = evaluation.run().await;

    for (ran, named) in [(other_data, "data"), (other_plugin, "plugin")] {
        assert_eq!(ran.code, Some(2), "{}", ran.stderr);
        assert!(ran.stderr.contains("were made with other settings"), "{}", ran.stderr);
        assert!(ran.stderr.contains(named), "{}", ran.stderr);
    }
    assert_eq!(evaluation.results(), before);
    assert_eq!(controller.chats().len(), 2);
}

#[tokio::test]
async fn a_new_start_keeps_the_old_results_beside_it() {
    let controller = Controller::start().await;
    let evaluation = Evaluation::of("conform", &sums(2)).model(&controller);
    assert_eq!(evaluation.run().await.code, Some(0));
    evaluation.write_rows(&sums(3));
    let evaluation = evaluation.options(["--fresh"]);

    let ran = evaluation.run().await;

    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(evaluation.results().len(), 3);
    let old = std::fs::read_to_string(evaluation.path("out.old-1/results.jsonl")).unwrap();
    assert_eq!(old.lines().count(), 2);
}

#[tokio::test]
async fn an_unavailable_model_leaves_rollouts_unscored_and_the_run_unfinished() {
    let controller = Controller::start().await;
    controller.answer_chats([Answer::Soon(503), Answer::Soon(503)]);
    let evaluation = Evaluation::of("conform", &sums(3))
        .model(&controller)
        .config("[model]\nattempts-max = 2\n")
        .options(["--concurrency", "1"]);

    let ran = evaluation.run().await;

    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    let unscored = &evaluation.results()[0];
    assert_eq!(unscored["outcome"], "unscored", "{unscored:#}");
    assert_eq!(unscored["reward"], Value::Null, "{unscored:#}");
    assert_eq!((&unscored["fault"], &unscored["kind"]), (&json!("model"), &json!("model")), "{unscored:#}");
    let summary = evaluation.summary();
    assert_eq!((&summary["scored"], &summary["unscored"]), (&json!(2), &json!(1)), "{summary:#}");
    assert_eq!(summary["unscored_by_kind"]["model"]["faults"]["model"], 1, "{summary:#}");
    assert_eq!(summary["reward"]["mean"], 0.5, "of the scored rollouts: {summary:#}");

    let again = evaluation.options(["--retry-unscored"]);
    let ran = again.run().await;

    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(again.results().len(), 3);
    assert_eq!(again.summary()["scored"], 3);
    assert_eq!(controller.chats().len(), 2 + 2 + 1, "only rollouts without a reward run again");
}

#[tokio::test]
async fn a_plugin_that_fails_leaves_rollouts_unscored_and_the_exit_code_blames_it() {
    let controller = Controller::start().await;
    let rows = ["Calculate 2 + 3.", "please fail", "please trap", "please refuse", "please return nothing"]
        .map(|text| json!({"user_prompt": text, "ground_truth": "5"}));
    let evaluation = Evaluation::of("conform", &rows).model(&controller);

    let ran = evaluation.run().await;

    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let results = evaluation.results();
    let failures: Vec<_> = results
        .iter()
        .map(|line| (line["kind"].as_str(), line["fault"].as_str(), line["stage"].as_str()))
        .collect();
    let expected = [
        (None, None, None),
        (Some("error"), Some("plugin"), Some("workflow")),
        (Some("trap"), Some("plugin"), Some("workflow")),
        (Some("invalid"), Some("plugin"), Some("workflow")),
        (Some("no_sample"), Some("plugin"), Some("grader")),
    ];
    assert_eq!(failures, expected);
    assert!(results[1..].iter().all(|line| line.get("reward").is_none()), "there is no invented reward");
    assert_eq!(evaluation.summary()["reward"]["mean"], 1.0);
}

#[tokio::test]
async fn the_mock_model_answers_inside_the_process() {
    let rows = ["2 + 3", "6 * 7", "(1 + 1) / 4"]
        .into_iter()
        .zip(["5", "42", "0.5"])
        .map(|(sum, label)| json!({"user_prompt": format!("Calculate {sum}."), "ground_truth": label}));
    let rows: Vec<_> = rows.collect();
    let evaluation = Evaluation::of("conform", &rows).options(["--model", "mock"]);

    let ran = evaluation.run().await;

    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let summary = evaluation.summary();
    assert_eq!(summary["reward"]["mean"], 1.0, "{summary:#}");
    assert!(ran.stderr.contains("stand-in"), "the output names it as a stand-in: {}", ran.stderr);
}

#[tokio::test]
async fn an_invalid_evaluation_is_refused_before_any_model_call() {
    let controller = Controller::start().await;
    let no_grader = Evaluation::of("only_workflow", &sums(2)).model(&controller);
    let no_workflow = Evaluation::of("only_grader", &sums(2)).model(&controller);
    let no_rows = Evaluation::of("conform", &[json!({"question": "2 + 3"})]).model(&controller);
    let no_model = Evaluation::of("conform", &sums(2)).options(["--model", "a-model"]);
    let no_key = Evaluation::of("conform", &sums(2)).model(&controller).options(["--api-key-env", "NOT_SET"]);
    let typing_error =
        Evaluation::of("conform", &sums(2)).model(&controller).config("[limits]\nsample-max = 3\n");

    for (evaluation, code, named) in [
        (no_grader, 2, "--grader"),
        (no_workflow, 1, "exports no workflow"),
        (no_rows, 2, "user_prompt"),
        (no_model, 2, "--base-url"),
        (no_key, 2, "NOT_SET"),
        (typing_error, 2, "sample-max"),
    ] {
        let ran = evaluation.run().await;

        assert_eq!(ran.code, Some(code), "{}", ran.stderr);
        assert!(ran.stderr.contains(named), "{}", ran.stderr);
    }
    assert_eq!(controller.chats().len(), 0);
}

#[tokio::test]
async fn rows_that_pass_at_k_leaves_out_are_counted_in_the_table_and_the_summary() {
    let controller = Controller::start().await;
    // Rows 0, 1 and 2 run twice; the first run of row 0 gets no answer.
    controller.answer_chats([Answer::Status(503, json!({"error": "overloaded"}))]);
    let evaluation = Evaluation::of("conform", &sums(3))
        .model(&controller)
        .config("[model]\nattempts-max = 1\n")
        .options(["--concurrency", "1", "--n", "2"]);

    let ran = evaluation.run().await;

    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    let summary = evaluation.summary();
    let (once, twice) = (&summary["pass_at_k"]["1"], &summary["pass_at_k"]["2"]);
    assert_eq!((&once["rows"], &once["rows_left_out"]), (&json!(3), &json!(0)), "{summary:#}");
    assert_eq!((&twice["rows"], &twice["rows_left_out"]), (&json!(2), &json!(1)), "{summary:#}");
    assert_eq!((&twice["estimate"], &twice["standard_error"]), (&json!(0.5), &json!(0.5)), "{summary:#}");
    let as_failed = &twice["unscored_as_failed"];
    assert_eq!(as_failed["rows"], 3, "{summary:#}");
    assert!((as_failed["estimate"].as_f64().unwrap() - 2.0 / 3.0).abs() < 1e-9, "{summary:#}");
    for words in [
        "50.0% ± 50.0",
        "of 2 rows",
        "1 more row has fewer than 2 scored runs",
        "without a reward as failures",
    ] {
        assert!(ran.stdout.contains(words), "{words}: {}", ran.stdout);
    }
    assert!(ran.stderr.contains("1 rollout has no reward; the same command with --out"), "{}", ran.stderr);
    assert!(ran.stderr.contains("--retry-unscored"), "{}", ran.stderr);
}

#[tokio::test]
async fn an_evaluation_continues_when_its_output_is_not_read() {
    let controller = Controller::start().await;
    controller.answer_chats([Answer::Soon(503)]);
    let evaluation = Evaluation::of("conform", &sums(4)).model(&controller);
    let closed = || {
        let (reader, writer) = std::io::pipe().expect("there are pipes");
        drop(reader);
        writer
    };
    let mut command = evaluation.command(rollout_host(["eval"]));
    let status = command.stdout(closed()).stderr(closed()).kill_on_drop(true).status();

    let status = rollout_tests::in_time("its end", status).await.expect("it can be started");

    assert_eq!(status.code(), Some(0));
    assert_eq!(evaluation.summary()["scored"], 4);
}

#[tokio::test]
async fn the_end_of_a_long_reason_is_shown() {
    let controller = Controller::start().await;
    let text =
        format!("{}: ask for a smaller context", "this request is far too long for the model ".repeat(12));
    controller.answer_chats([Answer::Status(400, json!({"error": {"message": text}}))]);
    let evaluation = Evaluation::of("conform", &sums(1)).model(&controller);

    let ran = evaluation.run().await;

    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    let shown = ran.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(shown.contains("this request is far too long"), "{}", ran.stdout);
    assert!(shown.contains("ask for a smaller context"), "{}", ran.stdout);
    assert!(evaluation.results()[0]["reason"].as_str().unwrap().contains(&text), "the file has all of it");
}

#[tokio::test]
async fn an_unreachable_server_is_reported_before_any_rollout() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let gone = format!("http://{free}/v1");
    let controller = Controller::start().await;
    let no_model = Evaluation::of("conform", &sums(2)).options(["--model", "m", "--base-url", &gone]);
    let no_name = Evaluation::of("conform", &sums(2)).options([
        "--model",
        "m",
        "--base-url",
        "http://no-such-host.invalid/v1",
    ]);
    let no_judge = Evaluation::of("conform", &sums(2)).model(&controller).options([
        "--judge-url",
        &gone,
        "--judge-model",
        "j",
    ]);

    for (evaluation, named) in [
        (no_model, ["the model's server", "refused", "--base-url"]),
        (no_name, ["the model's server", "no-such-host.invalid", "--base-url"]),
        (no_judge, ["the judge's server", "refused", "--judge-url"]),
    ] {
        let ran = evaluation.run().await;

        assert_eq!(ran.code, Some(2), "{}", ran.stderr);
        for named in named {
            assert!(ran.stderr.contains(named), "{named}: {}", ran.stderr);
        }
        assert!(!evaluation.path("out").exists(), "nothing is left behind");
    }
    assert_eq!(controller.chats().len(), 0);
}

/// Starts a server that answers every request with this status.
async fn answering(status: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
    let url = format!("http://{}/v1", listener.local_addr().expect("it is bound"));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    match stream.read_u8().await {
                        Ok(byte) => head.push(byte),
                        Err(_) => return,
                    }
                }
                let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
                // The client may have disconnected.
                let _ = stream.write_all(answer.as_bytes()).await;
            });
        }
    });
    url
}

#[tokio::test]
async fn a_server_that_rejects_the_key_is_reported_before_any_rollout() {
    let closed = answering("401 Unauthorized").await;
    let without = Evaluation::of("conform", &sums(2)).options(["--model", "m", "--base-url", &closed]);
    let with = Evaluation::of("conform", &sums(2)).options([
        "--model",
        "m",
        "--base-url",
        &closed,
        "--api-key-env",
        "KEY_OF_THE_MODEL",
    ]);

    for (evaluation, named) in [(without, "with --api-key-env VAR"), (with, "is the key that")] {
        let ran = evaluation.run().await;

        assert_eq!(ran.code, Some(2), "{}", ran.stderr);
        assert!(ran.stderr.contains("401") && ran.stderr.contains(named), "{}", ran.stderr);
        assert!(!ran.stderr.contains("secret-of-the-model"), "{}", ran.stderr);
        assert!(!evaluation.path("out").exists(), "nothing is left behind");
    }
}

#[tokio::test]
async fn a_model_that_never_answers_is_abandoned_and_its_retries_are_reported() {
    let controller = Controller::start().await;
    controller.answer_chats(std::iter::repeat_with(|| Answer::Soon(503)).take(200));
    let evaluation = Evaluation::of("conform", &sums(20)).model(&controller).options(["--concurrency", "1"]);

    let ran = evaluation.run().await;

    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    // Each failed call has eight attempts.
    assert_eq!(evaluation.results().len(), 3, "{}", ran.stderr);
    assert_eq!(controller.chats().len(), 24);
    assert_eq!(evaluation.results()[0]["chat_retries"], 7);
    assert_eq!(evaluation.summary()["chat_retries"], 21);
    for words in
        ["retrying (1 of 8): it answered 503", "stopped after 3 of 20 rollouts", "no completion in 24 tries"]
    {
        assert!(ran.stderr.contains(words), "{words}: {}", ran.stderr);
    }
}

#[tokio::test]
async fn an_interrupted_run_reports_the_number_of_rollouts_behind_its_figures() {
    let controller = Controller::start().await;
    controller.hold_after(1);
    let evaluation =
        Evaluation::of("conform", &sums(3)).model(&controller).options(["--concurrency", "1", "--n", "2"]);
    let process = evaluation.start();
    until("a result", async || (evaluation.results().len() == 1).then_some(())).await;

    process.signal(Signal::INT);
    let ran = process.ended().await;

    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stdout.starts_with("1 of 6 rollouts: 1 of 3 rows, of up to 2 runs each\n"), "{}", ran.stdout);
    assert!(ran.stderr.contains("stopped after 1 of 6 rollouts"), "{}", ran.stderr);
    let summary = evaluation.summary();
    assert_eq!((&summary["rows"], &summary["rows_planned"]), (&json!(1), &json!(3)), "{summary:#}");
    assert_eq!((&summary["rollouts"], &summary["rollouts_planned"]), (&json!(1), &json!(6)), "{summary:#}");
    controller.release();
}

#[tokio::test]
async fn a_directory_with_other_files_is_left_unchanged() {
    let controller = Controller::start().await;
    let evaluation = Evaluation::of("conform", &sums(1)).model(&controller);
    std::fs::create_dir(evaluation.path("out")).unwrap();
    std::fs::write(evaluation.path("out/thesis.tex"), "…").unwrap();

    let ran = evaluation.run().await;

    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("is not the output of an evaluation"), "{}", ran.stderr);
    let left = std::fs::read_dir(evaluation.path("out")).unwrap().count();
    assert_eq!(left, 1, "nothing is left there");
}
