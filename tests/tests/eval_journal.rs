//! Tests that a killed evaluation resumes its rollouts, from the journal beside its results.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rollout_tests::{
    Answers, Controller, Evaluation, Oracle, OracleRequest, Start, guest, rollout_host, sums, until,
};
use rustix::process::Signal;
use serde_json::{Value, json};

const ROWS: usize = 6;
const TURNS: usize = 20;

/// Returns an evaluation of rows with several turns, in which every request depends on the answers before it, with a
/// tool and a judge.
fn long_way(oracle: &Oracle) -> Evaluation {
    let rows: Vec<Value> = (0..ROWS)
        .map(|row| json!({"user_prompt": format!("{TURNS} steady {row}"), "ground_truth": "x"}))
        .collect();
    let config = format!(
        "[judge]\nurl = '{}'\nmodel = 'judge'\n[[tools.component]]\npath = '{}'\n",
        oracle.url(),
        guest("tool_kit").display()
    );
    Evaluation::of("long_way", &rows).config(&config).options([
        "--model",
        "a-model",
        "--base-url",
        &oracle.url(),
        "--concurrency",
        "2",
    ])
}

/// Removes times from the results.
fn without_times(results: Vec<Value>) -> Vec<Value> {
    const TIMES: [&str; 6] =
        ["guest_cpu_ms", "waited_ms", "model_ms", "duration_ms", "queued_ms", "host_calls"];
    let strip = |mut line: Value| {
        let members = line.as_object_mut().expect("a line is an object");
        members.retain(|name, _| !TIMES.contains(&name.as_str()));
        line
    };
    results.into_iter().map(strip).collect()
}

#[tokio::test]
async fn a_killed_evaluation_resumes_its_rollouts() {
    let oracle = Oracle::start(Answers::ByRequest).await;
    let whole = long_way(&oracle);
    let ran = whole.run().await;
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let oracle = Oracle::start(Answers::ByRequest).await;
    let evaluation = long_way(&oracle);
    let mut ended = Vec::new();
    for (further, signal) in
        [(2, Signal::KILL), (9, Signal::KILL), (8, Signal::INT), (13, Signal::KILL), (5, Signal::INT)]
    {
        let before = oracle.count();
        let process = evaluation.start();
        until("it has come further", async || (oracle.count() >= before + further).then_some(())).await;
        ended.push(Instant::now());
        process.signal(signal);
        process.ended().await;
    }

    let ran = evaluation.run().await;

    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stderr.contains("continuing within "), "{}", ran.stderr);
    assert_eq!(without_times(evaluation.results()), without_times(whole.results()));
    assert_eq!(evaluation.summary()["reward"], whole.summary()["reward"]);
    let mut questions: HashMap<String, Vec<OracleRequest>> = HashMap::new();
    for request in oracle.requests() {
        questions.entry(request.messages.clone()).or_default().push(request);
    }
    assert_eq!(questions.len(), ROWS * (2 * TURNS + 1), "each question of each row, and its judge's");
    for again in questions.values() {
        for before in &again[..again.len() - 1] {
            // A call is repeated only if its answer was missing or in transit when the process died.
            let lost = before.answered.is_none_or(|at| {
                ended.iter().any(|ended| {
                    at + Duration::from_millis(50) > *ended && at < *ended + Duration::from_secs(1)
                })
            });
            assert!(lost, "a call was repeated long after its answer: {}", before.messages);
        }
    }
}

/// The size of a rollout's last record in a journal, its end.
const RECORD_OF_END: u64 = 29;

/// The place in a segment for its synced length, which a process writes on a normal exit.
const SYNCED: std::ops::Range<u64> = 32..64;

#[tokio::test]
async fn a_finished_rollout_gets_its_row_from_the_journal() {
    let controller = Controller::start().await;
    let evaluation = Evaluation::of("conform", &sums(1)).model(&controller);
    assert_eq!(evaluation.run().await.code, Some(0));
    let before = evaluation.results();
    // Restores the state of a process that died before it wrote the row.
    let segment = evaluation.path("out/journal/00000000000000000001.seg");
    let file = std::fs::File::options().write(true).open(&segment).unwrap();
    let bytes = file.metadata().unwrap().len();
    assert!(bytes < 64 << 10, "the preallocated space was released: {bytes}");
    file.set_len(bytes - RECORD_OF_END).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0; 32], SYNCED.start).unwrap();
    std::fs::write(evaluation.path("out/results.jsonl"), "{\"row\":0,\"run").unwrap();

    let ran = evaluation.run().await;

    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(evaluation.results(), before, "to the last figure");
    assert_eq!(controller.chats().len(), 1);
    let again = evaluation.run().await;
    assert_eq!((again.code, evaluation.results()), (Some(0), before));
}

#[tokio::test]
async fn time_in_which_no_process_ran_does_not_count() {
    let controller = Controller::start().await;
    let limits = "[limits]\nworkflow-secs-max = 2.0\n";
    let evaluation = Evaluation::of("conform", &sums(1)).model(&controller).config(limits);
    controller.hold();
    let process = evaluation.start();
    controller.chats_arrived(1).await;
    // The journal may lag a moment behind the requests.
    let segment = evaluation.path("out/journal/00000000000000000001.seg");
    let is_kept =
        || String::from_utf8_lossy(&std::fs::read(&segment).unwrap_or_default()).contains("Calculate");
    until("the prompt to be in the journal", async || is_kept().then_some(())).await;
    process.kill().await;
    // Meanwhile, another rollout with the same limit times out.
    let other = Evaluation::of("conform", &sums(1)).model(&controller).config(limits);
    assert_eq!(other.run().await.code, Some(1));
    assert_eq!(other.results()[0]["kind"], "timeout", "{:?}", other.results());
    controller.release();

    let ran = evaluation.run().await;

    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stderr.contains("continuing within 1 rollout"), "{}", ran.stderr);
    assert_eq!(evaluation.results()[0]["outcome"], "scored");
}

#[tokio::test]
async fn rollouts_without_a_reward_are_repeated_on_request() {
    let controller = Controller::start().await;
    let rows = [json!({"user_prompt": "misbehave", "ground_truth": "x"})];
    let evaluation = Evaluation::of("give_up", &rows).model(&controller);
    let ran = evaluation.run().await;
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let hint = "rollout-host replay row-00000-run-0 --journal ";
    assert!(ran.stderr.contains(hint), "{}", ran.stderr);

    let retried = evaluation.options(["--retry-unscored"]);
    let ran = retried.run().await;

    assert!(ran.stderr.contains("running 1 rollout without a reward again"), "{}", ran.stderr);
    assert_eq!(retried.results().len(), 1);
}

#[tokio::test]
async fn without_a_journal_no_journal_is_written() {
    let controller = Controller::start().await;
    for options in [vec!["--journal", "off"], vec![]] {
        let mut evaluation = Evaluation::of("conform", &sums(1)).model(&controller).options(options.clone());
        if options.is_empty() {
            evaluation = evaluation.config("[journal]\noff = true\n");
        }

        let ran = evaluation.run().await;

        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        assert!(!evaluation.path("out/journal").exists());
    }
}

#[tokio::test]
async fn a_row_can_be_replayed() {
    let oracle = Oracle::start(Answers::ByRequest).await;
    let evaluation = long_way(&oracle);
    assert_eq!(evaluation.run().await.code, Some(0));
    let calls = oracle.count();
    let config = evaluation.path("config.toml");
    let mut replay = rollout_host(["replay", "row-00002-run-0", "--journal"]);

    let ran = replay.arg(evaluation.path("out")).arg("--config").arg(config).start().ended().await;

    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stdout, ran.stderr);
    let reward = &evaluation.results()[2]["reward"];
    assert!(ran.stdout.contains(&format!("the same: reward {}", reward.as_f64().unwrap())), "{}", ran.stdout);
    assert_eq!(oracle.count(), calls, "no model was called");
}
