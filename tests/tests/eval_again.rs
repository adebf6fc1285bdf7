//! Tests of `eval --replay`, which grades an evaluation again without calling the model for its workflows.

use std::path::Path;

use rollout_tests::{
    Answers, Controller, Evaluation, Oracle, Ran, Start, guest, read_json, rollout_host, sums,
};
use serde_json::{Value, json};

/// Grades an evaluation again, with output in the directory `again`.
async fn graded_again(evaluation: &Evaluation, options: &[&str]) -> Ran {
    let mut command = rollout_host(["eval", "--replay"]);
    command.arg(evaluation.path("out")).arg("--out").arg(evaluation.path("again")).args(options);
    command.start().ended().await
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    let mut lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    lines.sort_by_key(|line| (line["row"].as_u64(), line["run"].as_u64()));
    lines
}

#[tokio::test]
async fn another_grader_gives_other_rewards_without_model_calls() {
    let controller = Controller::start().await;
    let evaluation = Evaluation::of("conform", &sums(4)).model(&controller).options(["--n", "2"]);
    assert_eq!(evaluation.run().await.code, Some(0));
    let (before, calls) = (evaluation.results(), controller.chats().len());
    let grader = guest("only_grader").display().to_string();

    let ran = graded_again(&evaluation, &["--grader", &grader]).await;

    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stdout, ran.stderr);
    assert_eq!(controller.chats().len(), calls, "no model was called");
    assert_eq!(evaluation.results(), before, "the old results are as they were");
    let again = lines(&evaluation.path("again/results.jsonl"));
    assert_eq!(again.len(), 8);
    for (then, now) in before.iter().zip(&again) {
        assert_eq!(now["reward"], 0.25, "{now:#}");
        for same in ["row", "run", "rollout_id", "prompt", "label", "answer", "chat_calls", "prompt_tokens"] {
            assert_eq!(now[same], then[same], "{same}");
        }
        let trajectory = read_json(&evaluation.path("again").join(now["trajectory"].as_str().unwrap()));
        assert_eq!(trajectory["session_id"], now["rollout_id"]);
    }
    let rewards = read_json(&evaluation.path("again/rewards.json"));
    assert_eq!((&rewards["mean_before"], &rewards["mean_after"]), (&json!(0.75), &json!(0.25)));
    assert_eq!(rewards["changed"], 8);
    assert!(ran.stdout.contains("     0    0            1         0.25  *"), "{}", ran.stdout);
    assert!(ran.stdout.contains("8 of 8 rewards changed"), "{}", ran.stdout);
    // Once more with the original grader, from the journal.
    std::fs::remove_dir_all(evaluation.path("again")).unwrap();
    let same = graded_again(&evaluation, &[]).await;
    assert_eq!(same.code, Some(0), "{}\n{}", same.stdout, same.stderr);
    assert!(same.stdout.contains("0 of 8 rewards changed"), "{}", same.stdout);
    let once_more = graded_again(&evaluation, &[]).await;
    assert!(once_more.stderr.contains("continuing after 8 graded rollouts"), "{}", once_more.stderr);
    assert_eq!(lines(&evaluation.path("again/results.jsonl")).len(), 8, "none is doubled");
    let over_itself = rollout_host(["eval", "--replay", "out", "--out", "out"])
        .current_dir(evaluation.path("."))
        .start()
        .ended()
        .await;
    assert_eq!(over_itself.code, Some(2));
    assert!(over_itself.stderr.contains("--out is the directory of --replay"), "{}", over_itself.stderr);
}

#[tokio::test]
async fn the_judge_is_called_again_and_a_missing_judge_is_an_error() {
    let oracle = Oracle::start(Answers::ByRequest).await;
    let config = format!(
        "[judge]\nurl = '{}'\nmodel = 'judge'\n[[tools.component]]\npath = '{}'\n",
        oracle.url(),
        guest("tool_kit").display()
    );
    let rows = [json!({"user_prompt": "3 steady", "ground_truth": "x"})];
    let evaluation = Evaluation::of("long_way", &rows).config(&config);
    let evaluation = evaluation.options(["--model", "a-model", "--base-url", &oracle.url()]);
    let ran = evaluation.run().await;
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let calls = oracle.count();
    let path = evaluation.path("config.toml").display().to_string();

    let judged = graded_again(&evaluation, &["--config", &path]).await;
    let without_judge = graded_again(&evaluation, &[]).await;

    assert_eq!(judged.code, Some(0), "{}\n{}", judged.stdout, judged.stderr);
    assert!(judged.stdout.contains("0 of 1 rewards changed"), "{}", judged.stdout);
    assert_eq!(oracle.count(), calls + 1, "the judge, once");
    assert_eq!(without_judge.code, Some(2), "{}", without_judge.stderr);
    assert!(without_judge.stderr.contains("the grader used the judge 'judge'"), "{}", without_judge.stderr);
}

#[tokio::test]
async fn a_workflow_that_behaves_differently_is_reported_and_has_no_reward() {
    let controller = Controller::start().await;
    let evaluation = Evaluation::of("conform", &sums(2)).model(&controller);
    assert_eq!(evaluation.run().await.code, Some(0));
    let calls = controller.chats().len();

    let ran = graded_again(&evaluation, &[&guest("two_samples").display().to_string()]).await;

    assert_eq!(ran.code, Some(1), "{}\n{}", ran.stdout, ran.stderr);
    assert_eq!(controller.chats().len(), calls);
    for line in lines(&evaluation.path("again/results.jsonl")) {
        assert_eq!(line["kind"], "nondeterministic", "{line:#}");
        assert!(line["reason"].as_str().unwrap().contains("call 1"), "{line:#}");
    }
    assert!(ran.stdout.contains("none  *  nondeterministic"), "{}", ran.stdout);
    assert!(ran.stdout.contains("2 have no reward now because"), "{}", ran.stdout);
}

#[tokio::test]
async fn rollouts_with_a_failed_workflow_stay_and_a_missing_journal_is_an_error() {
    let controller = Controller::start().await;
    let mut rows = sums(2);
    rows.push(json!({"user_prompt": "misbehave", "ground_truth": "x"}));
    let evaluation = Evaluation::of("give_up", &rows).model(&controller);
    assert_eq!(evaluation.run().await.code, Some(1));

    let ran = graded_again(&evaluation, &[]).await;

    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("none         none  error: this guest gives up"), "{}", ran.stdout);
    std::fs::remove_dir_all(evaluation.path("out/journal")).unwrap();
    let ran = graded_again(&evaluation, &[]).await;
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("has no journal"), "{}", ran.stderr);
}
