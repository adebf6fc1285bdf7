//! Tests of `rollout-host eval` with data sets in other formats.

use std::process::Stdio;

use rollout_tests::{Controller, Evaluation, Start, read_json, rollout_host, sums};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// Returns rows in the shape of GSM8K.
fn word_problems() -> Vec<Value> {
    let row = |sum: &str, answer: &str| json!({"question": format!("Calculate {sum}."), "answer": format!("It is {sum} = {answer}.\n#### {answer}"), "source": {"id": sum}});
    vec![row("40 + 32", "72"), row("7 + 8", "15")]
}

#[tokio::test]
async fn columns_with_other_names_are_mapped_to_prompt_label_and_metadata() {
    let controller = Controller::start().await;
    let evaluation = Evaluation::of("conform", &word_problems()).model(&controller).options([
        "--map",
        "prompt=question,label=answer",
        "--map",
        "metadata.id=/source/id",
        "--label-after",
        "####",
        "--system-prompt",
        "Give the answer after ####.",
    ]);

    let ran = evaluation.run().await;

    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let results = evaluation.results();
    let prompt_of = |line: &Value| {
        ["prompt", "label", "answer"].map(|name| line[name].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(prompt_of(&results[0])[..2], ["Calculate 40 + 32.", "72"], "{results:#?}");
    assert_eq!(prompt_of(&results[1])[..2], ["Calculate 7 + 8.", "15"], "{results:#?}");
    assert!(prompt_of(&results[1])[2].contains("15"), "{results:#?}");
    assert_eq!(evaluation.summary()["reward"]["mean"], 1.0);
    let first = &controller.chats()[0].body["messages"];
    assert_eq!(first[0], json!({"role": "system", "content": "Give the answer after ####."}), "{first}");
    let trajectory = read_json(&evaluation.path("out").join(results[0]["trajectory"].as_str().unwrap()));
    assert_eq!(trajectory["session_id"], results[0]["rollout_id"]);
}

#[tokio::test]
async fn a_missing_field_of_a_row_is_reported_with_the_option_that_helps() {
    let controller = Controller::start().await;
    let unnamed = Evaluation::of("conform", &word_problems()).model(&controller);
    let misnamed = Evaluation::of("conform", &word_problems())
        .model(&controller)
        .options(["--map", "prompt=question,label=anwser"]);
    let empty =
        Evaluation::of("conform", &[sums(1)[0].clone(), json!({"user_prompt": ""})]).model(&controller);
    let no_mark = Evaluation::of("conform", &sums(1)).model(&controller).options(["--label-after", "####"]);
    let no_target = Evaluation::of("conform", &sums(1)).model(&controller).options(["--map", "answer=label"]);
    let nothing_left = Evaluation::of("conform", &sums(2)).model(&controller).options(["--offset", "2"]);

    for (evaluation, named) in [
        (unnamed, "name the column of the prompt with `--map prompt=question,label=answer`"),
        (misnamed, "--map names `anwser`, which no row has (columns found: question, answer, source)"),
        (empty, "line 2: `user_prompt` is empty; fill it in or remove the row"),
        (no_mark, "line 1: the label does not contain `####`"),
        (no_target, "unknown target 'answer'"),
        (nothing_left, "--offset 2"),
    ] {
        let ran = evaluation.run().await;

        assert_eq!(ran.code, Some(2), "{}", ran.stderr);
        assert!(ran.stderr.contains(named), "{}", ran.stderr);
        assert!(!evaluation.path("out").exists(), "nothing is begun");
    }
    assert_eq!(controller.chats().len(), 0);
}

/// Compresses bytes with `gzip`.
async fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = Command::new("gzip")
        .arg("-c")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("gzip is there");
    let mut input = gzip.stdin.take().expect("it is piped");
    input.write_all(bytes).await.expect("gzip reads it");
    drop(input);
    gzip.wait_with_output().await.expect("gzip ends").stdout
}

#[tokio::test]
async fn rows_come_from_standard_input_compressed_and_with_tabs() {
    let controller = Controller::start().await;
    let evaluation = Evaluation::of("conform", &[]).model(&controller).options(["--data", "-"]);
    let rows = b"user_prompt\tground_truth\nCalculate 2 + 3.\t5\nCalculate 2 + 4.\t6\n";

    let unsaid = evaluation.command(rollout_host(["eval"])).start().ended().await;
    let evaluation = evaluation.options(["--data-format", "tsv"]);
    let (process, mut input) = evaluation.command(rollout_host(["eval"])).start_with_input();
    input.write_all(&packed(rows).await).await.expect("it reads its rows");
    drop(input);
    let ran = process.ended().await;

    assert_eq!(unsaid.code, Some(2), "{}", unsaid.stderr);
    assert!(
        unsaid.stderr.contains("standard input") && unsaid.stderr.contains("--data-format"),
        "{}",
        unsaid.stderr
    );
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(evaluation.summary()["reward"]["mean"], 1.0);
    assert_eq!(evaluation.results().len(), 2);
}

#[tokio::test]
async fn a_seed_selects_the_same_rows_again_and_more_with_a_higher_limit() {
    let controller = Controller::start().await;
    let evaluation = Evaluation::of("conform", &sums(6)).model(&controller).options([
        "--shuffle",
        "--seed",
        "7",
        "--offset",
        "1",
    ]);
    let rows = |evaluation: &Evaluation| -> Vec<u64> {
        evaluation.results().iter().filter_map(|line| line["row"].as_u64()).collect()
    };

    let three = evaluation.options(["--limit", "3"]);
    let first = three.run().await;
    let selected = rows(&three);
    let more = three.without("--limit").options(["--limit", "4"]);
    let second = more.run().await;
    let selected_later = rows(&more);
    let fewer = more.without("--limit").options(["--limit", "2"]);
    let third = fewer.run().await;

    assert_eq!((first.code, second.code), (Some(0), Some(0)), "{}{}", first.stderr, second.stderr);
    // Sorted by the SHA-256 of "7-0", "7-1" and so on, the rows are 1, 2, 5, 0, 3, 4.
    assert_eq!(selected, [0, 2, 5]);
    assert_eq!(selected_later, [0, 2, 3, 5]);
    assert_eq!(controller.chats().len(), 4, "rows with a result do not run again");
    assert_eq!(third.code, Some(2), "{}", third.stderr);
    assert!(
        third.stderr.contains("settings.limit: was 4, is now 2; it may only be raised"),
        "{}",
        third.stderr
    );
}

#[tokio::test]
async fn an_evaluation_continues_with_more_runs_at_another_address() {
    let (one, other) = (Controller::start().await, Controller::start().await);
    let evaluation = Evaluation::of("conform", &sums(2)).model(&one);
    let first = evaluation.run().await;

    let more = evaluation.without("--base-url").options(["--n", "3", "--base-url", &other.model_url()]);
    let second = more.run().await;

    assert_eq!((first.code, second.code), (Some(0), Some(0)), "{}{}", first.stderr, second.stderr);
    assert_eq!((one.chats().len(), other.chats().len()), (2, 4));
    assert_eq!(more.results().len(), 6);
    assert_eq!(more.summary()["pass_at_k"]["3"]["rows"], 2);
    let fewer = more.without("--n").run().await;
    assert_eq!(fewer.code, Some(2), "{}", fewer.stderr);
    assert!(fewer.stderr.contains("settings.n: was 3, is now 1; it may only be raised"), "{}", fewer.stderr);
}

#[tokio::test]
async fn without_trajectories_and_journal_there_are_only_results() {
    let controller = Controller::start().await;
    let evaluation = Evaluation::of("conform", &sums(2)).model(&controller);
    let evaluation = evaluation.options(["--no-trajectories", "--journal", "off"]);

    let ran = evaluation.run().await;

    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let mut files: Vec<_> = std::fs::read_dir(evaluation.path("out"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort_unstable();
    assert_eq!(files, ["lock", "manifest.json", "results.jsonl", "summary.json"]);
    assert!(evaluation.results().iter().all(|line| line.get("trajectory").is_none()));
    assert!(!ran.stdout.contains("trajectories"), "{}", ran.stdout);
}

#[tokio::test]
async fn the_largest_numbers_have_a_mean_and_a_deviation() {
    let row = |label: &str| json!({"user_prompt": "u", "ground_truth": label});
    let controller = Controller::start().await;
    let evaluation = Evaluation::of("large_numbers", &[row("1.7e308"), row("1.7e308"), row("-1.7e308")])
        .model(&controller);

    let ran = evaluation.run().await;

    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let results = evaluation.results();
    assert_eq!(results[0]["reward"], 1.7e308, "{results:#?}");
    assert_eq!(results[2]["metrics"]["size"], -1.7e308, "{results:#?}");
    let text = std::fs::read_to_string(evaluation.path("out/summary.json")).unwrap();
    assert!(!text.contains("null"), "{text}");
    let summary = evaluation.summary();
    for name in ["mean", "standard_error", "std", "min", "median", "max"] {
        assert!(summary["reward"][name].is_f64(), "{name} in {summary:#}");
    }
    assert!((summary["reward"]["mean"].as_f64().unwrap() / 1.7e308 - 1.0 / 3.0).abs() < 1e-9, "{summary:#}");
    assert!((summary["metrics"]["size"].as_f64().unwrap() / 1.7e308 - 1.0 / 3.0).abs() < 1e-9, "{summary:#}");
}
