//! Environments that the host has a model or a person play: `eval`, `test`, `validate` and served rollouts.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rollout_tests::{
    Answer, Controller, Ran, Start, TestHost, example, guest, has_javascript, javascript_guest,
    javascript_host, project_root, python_guest, python_program, read_json, rollout_host,
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The timeout of a command that may load a Python component.
const COMMAND: Duration = Duration::from_secs(300);

fn temporary() -> TempDir {
    tempfile::tempdir().expect("a temporary directory can be made")
}

/// Returns the word walk in each language.
fn word_walks() -> Vec<PathBuf> {
    let mut plugins = vec![example("example-word-walk"), python_guest("examples/word-walk/python")];
    if has_javascript() {
        plugins.push(javascript_guest("examples/word-walk/js"));
    }
    plugins
}

fn file(name: &str) -> PathBuf {
    project_root().join("examples/word-walk").join(name)
}

/// Runs a command of the program with lines on standard input.
async fn ran(arguments: &[&str], plugin: &Path, input: Option<&Path>, dir: &Path) -> Ran {
    let mut command = rollout_host([arguments[0]]);
    command.arg(plugin).args(&arguments[1..]).current_dir(dir);
    let started = match input {
        Some(input) => command.start_with(std::fs::File::open(input).unwrap().into()),
        None => command.start(),
    };
    started.ended_within(COMMAND).await
}

fn results(out: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(out.join("results.jsonl")).unwrap();
    let mut lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    lines.sort_by_key(|line| line["row"].as_u64());
    lines
}

#[tokio::test]
async fn a_model_plays_the_tasks_of_a_split_and_the_rows_have_the_graders_rewards() {
    let dir = temporary();
    let replies = file("replies.jsonl").display().to_string();
    for (place, plugin) in word_walks().iter().enumerate() {
        let out = dir.path().join(format!("out-{place}"));
        let shown = out.display().to_string();
        let options =
            ["eval", "--split", "test", "--model", "mock", "--mock-script", &replies, "--out", &shown];
        let evaluated = ran(&options, plugin, None, dir.path()).await;

        assert_eq!(evaluated.code, Some(0), "{}{}", evaluated.stdout, evaluated.stderr);
        let lines = results(&out);
        assert_eq!(lines.len(), 8);
        for line in &lines {
            // The model of the script answers 2 to each.
            let reward = if line["label"] == "2" { 1.0 } else { 0.0 };
            assert_eq!((&line["outcome"], &line["reward"]), (&json!("scored"), &json!(reward)), "{line}");
            assert_eq!((&line["metrics"]["steps"], &line["chat_calls"]), (&json!(5.0), &json!(4)), "{line}");
            assert!(line["prompt"].as_str().unwrap().starts_with("How many times"), "{line}");
        }
        assert_eq!(lines.iter().filter(|line| line["reward"] == 1.0).count(), 1, "both rewards occur");
        let summary = read_json(&out.join("summary.json"));
        assert_eq!(summary["reward"]["mean"], 0.125, "{summary:#}");

        let trajectory = read_json(&out.join(lines[0]["trajectory"].as_str().unwrap()));
        let steps = trajectory["steps"].as_array().unwrap();
        assert_eq!(steps[0]["source"], "system");
        assert!(steps[1]["message"].as_str().unwrap().contains("Read its words one by one."), "{}", steps[1]);
        assert!(!steps[1].to_string().contains("ground_truth"), "{}", steps[1]);
        let observed = &steps[2]["observation"]["results"];
        assert!(observed[1]["content"].as_str().unwrap().contains("\"place\":1"), "{observed}");

        // The journal has the model's answers, and the same actions give the same episode.
        let journal = out.join("journal").display().to_string();
        let mut replay = rollout_host(["replay", "row-00007-run-0", "--journal", &journal]);
        let replayed = replay.start().ended_within(COMMAND).await;
        assert_eq!(replayed.code, Some(0), "{}{}", replayed.stdout, replayed.stderr);
        assert!(replayed.stdout.contains("the same: reward 1"), "{}", replayed.stdout);
    }
}

#[tokio::test]
async fn an_episode_is_played_by_lines_of_standard_input() {
    let dir = temporary();
    for plugin in word_walks() {
        let played = ran(
            &["test", "--split", "train", "--interactive"],
            &plugin,
            Some(&file("lines.txt")),
            dir.path(),
        )
        .await;

        assert_eq!(played.code, Some(0), "{}{}", played.stdout, played.stderr);
        for line in [
            "observation  {\"text\":\"How many times does the letter \\\"p\\\" appear in the text? Read its words one by one.\",\"words\":9}",
            "tool         go place=INTEGER  Goes to a word and reads it.",
            "observation  {\"place\":2,\"word\":\"poles\",\"note\":1}",
            "> sum\nobservation  2",
            "error        there is no word 99; the text has 9",
            "reward       1",
            "done         after 13 steps, with the reward 1",
        ] {
            assert!(played.stdout.contains(line), "{line:?} in {}", played.stdout);
        }
        let state = played.stdout.lines().find(|line| line.starts_with("state")).unwrap();
        assert!(state.contains("\"letter\":\"p\"") && !state.contains("ground_truth"), "{state}");
    }
}

#[tokio::test]
async fn a_project_in_python_is_played_without_a_build() {
    let dir = temporary();
    let componentize = python_program("componentize-py").display().to_string();
    let options = ["test", "--split", "train", "--interactive", "--componentize-py", &componentize];
    let project = project_root().join("examples/word-walk/python");

    let played = ran(&options, &project, Some(&file("lines.txt")), dir.path()).await;

    assert_eq!(played.code, Some(0), "{}{}", played.stdout, played.stderr);
    assert!(played.stderr.contains("quick mode"), "{}", played.stderr);
    assert!(played.stdout.contains("after 13 steps, with the reward 1"), "{}", played.stdout);
}

#[tokio::test]
async fn a_project_in_typescript_is_played_without_a_build() {
    if !has_javascript() {
        return;
    }
    let mut test = tokio::process::Command::from(javascript_host("test"));
    test.arg(project_root().join("examples/word-walk/js")).args(["--split", "train", "--interactive"]);
    let lines = std::fs::File::open(file("lines.txt")).unwrap();

    let played = test.start_with(lines.into()).ended_within(COMMAND).await;

    assert_eq!(played.code, Some(0), "{}{}", played.stdout, played.stderr);
    assert!(played.stderr.contains("quick mode"), "{}", played.stderr);
    assert!(played.stdout.contains("after 13 steps, with the reward 1"), "{}", played.stdout);
}

#[tokio::test]
async fn the_end_of_the_input_and_lines_that_fit_nothing_are_explained() {
    let dir = temporary();
    let input = dir.path().join("lines.txt");
    std::fs::write(&input, "/wat\nnumber=x\n\n3\n").unwrap();
    let plugin = example("example-number-hunt");

    let played = ran(&["test", "--interactive"], &plugin, Some(&input), dir.path()).await;

    assert_eq!(played.code, Some(2), "{}{}", played.stdout, played.stderr);
    for line in [
        "action       number=NUMBER",
        "error        there is no command /wat; /help lists them",
        "error        the action: field `number`: invalid type",
        "the input ended before the episode did",
    ] {
        assert!(played.stdout.contains(line), "{line:?} in {}", played.stdout);
    }
}

#[tokio::test]
async fn a_model_plays_one_task_and_its_own_environment_rates_it() {
    let dir = temporary();
    let act = |call: u32, number: i32| {
        let function = json!({"name": "step", "arguments": json!({"number": number}).to_string()});
        json!({"when": {"call": call}, "message": {"tool_calls": [{"id": format!("c{call}"), "type": "function", "function": function}]}})
    };
    let talk = json!({"when": {"call": 2}, "message": {"content": "Let me think."}});
    let wrong = json!({"when": {"call": 3}, "message": {"tool_calls": [
        {"id": "w", "type": "function", "function": {"name": "fly", "arguments": "{}"}},
        {"id": "v", "type": "function", "function": {"name": "step", "arguments": "[1"}},
    ]}});
    let script: String =
        [act(1, 0), talk, wrong, act(4, -230)].iter().map(|line| format!("{line}\n")).collect();
    std::fs::write(dir.path().join("replies.jsonl"), script).unwrap();
    let options =
        ["test", "--split", "train", "--row", "1", "--model", "mock", "--mock-script", "replies.jsonl"];

    let played = ran(&options, &example("example-number-hunt"), None, dir.path()).await;

    assert_eq!(played.code, Some(0), "{}{}", played.stdout, played.stderr);
    for line in [
        "Act by calling the tools, one step after the other, until the episode ends.",
        "→ step({\"number\":0})",
        "The number is lower.",
        "Act by calling one of the tools.",
        "error: there is no tool 'fly'; there are: step",
        "error: the arguments are not valid JSON",
        "reward     0.5",
    ] {
        assert!(played.stdout.contains(line), "{line:?} in {}", played.stdout);
    }
}

#[tokio::test]
async fn a_model_that_does_not_act_leaves_an_episode_without_a_reward() {
    let dir = temporary();
    let out = dir.path().join("out");
    let shown = out.display().to_string();
    let options = ["eval", "--split", "test", "--limit", "1", "--model", "mock", "--out", &shown];

    let evaluated = ran(&options, &example("example-number-hunt"), None, dir.path()).await;

    assert_eq!(evaluated.code, Some(2), "{}{}", evaluated.stdout, evaluated.stderr);
    let line = &results(&out)[0];
    assert_eq!((&line["kind"], &line["fault"]), (&json!("no_reward"), &json!("model")), "{line}");
    assert!(line["reason"].as_str().unwrap().contains("calling no tool"), "{line}");
    assert_eq!(line["chat_calls"], 3, "{line}");
}

#[tokio::test]
async fn only_the_selected_tasks_of_a_split_are_read() {
    let dir = temporary();
    let plugin = guest("many_tasks");
    let run = async |choice: &[&str]| {
        let mut options = vec!["eval", "--split", "all", "--model", "mock", "--out", "out"];
        options.extend(choice);
        ran(&options, &plugin, None, dir.path()).await
    };

    let first = run(&["--limit", "2"]).await;
    assert_eq!(results(&dir.path().join("out")).len(), 2, "{}{}", first.stdout, first.stderr);
    // A raised limit reads the rest, and the results before it stay.
    let raised = run(&["--limit", "3"]).await;
    assert!(raised.stderr.contains("task 2 was read"), "{}", raised.stderr);
    for choice in [&[][..], &["--limit", "1", "--shuffle"]] {
        let refused = run(choice).await;
        assert!(refused.stderr.contains("has 10000000 tasks, and at most 1000000"), "{}", refused.stderr);
    }
}

#[tokio::test]
async fn options_that_do_not_fit_the_plugin_name_what_does() {
    let dir = temporary();
    let hunt = example("example-number-hunt");
    let workflow = guest("conform");
    for (plugin, options, text) in [
        (
            &hunt,
            &["eval", "--split", "all", "--model", "mock"][..],
            "has no split 'all'; there are: train, test",
        ),
        (
            &workflow,
            &["eval", "--split", "all", "--model", "mock"],
            "the plugin has no environment; give rows with --data",
        ),
        (&workflow, &["test", "--interactive"], "no environment that a person could play; give --model NAME"),
        (&hunt, &["test", "--split", "test", "--row", "4", "--interactive"], "--row 4: test has 4 rows"),
        (&hunt, &["test", "--split", "test", "--data", "x.jsonl", "--model", "mock"], "cannot be used with"),
        (&hunt, &["test", "--model", "mock"], "--data <FILE>"),
    ] {
        let refused = ran(options, plugin, None, dir.path()).await;

        assert_eq!(refused.code, Some(2), "{options:?}: {}{}", refused.stdout, refused.stderr);
        assert!(refused.stderr.contains(text), "{options:?}: {}", refused.stderr);
    }
}

#[tokio::test]
async fn a_rollout_of_an_environment_is_served_as_any_other() {
    let controller = Controller::start().await;
    let host = TestHost::of_component(example("example-word-walk")).start().await;
    let prompt = "How many times does the letter \"p\" appear in the text: \"up the poles\"?";
    let request = controller.rollout(prompt).label("2").as_b();
    let call = |name: &str, arguments: Value| {
        let function = json!({"name": name, "arguments": arguments.to_string()});
        let message = json!({"role": "assistant", "content": null, "tool_calls": [{"id": "c", "type": "function", "function": function}]});
        Answer::Json(json!({"choices": [{"message": message, "finish_reason": "tool_calls"}]}).to_string())
    };
    controller.answer_chats([call("go", json!({"place": 2})), call("answer", json!({"count": 2}))]);

    let callbacks = host.all_callbacks(&controller, &request).await;

    assert_eq!(callbacks[1].body["sample"]["reward"], 1.0, "{:#}", callbacks[1].body);
    let chats = controller.chats();
    let tools = chats[0].body["tools"].as_array().unwrap();
    assert_eq!(tools.len(), 5, "{tools:#?}");
    assert!(!chats[1].body["messages"].to_string().contains("ground_truth"));
}

/// Returns the report of `validate`.
async fn validated(plugin: &Path, more: &[&str]) -> (Value, Option<i32>) {
    let mut command = rollout_host(["validate", "--json"]);
    let ran = command.arg(plugin).args(more).start().ended_within(COMMAND).await;
    let report = serde_json::from_str(&ran.stdout);
    (report.unwrap_or_else(|error| panic!("{error} in {}{}", ran.stdout, ran.stderr)), ran.code)
}

/// Returns outcome and detail of each check of a name.
fn checks(report: &Value, name: &str) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let listed = report["checks"].as_array().unwrap().iter().filter(|check| check["name"] == name);
    listed.map(|check| (text(&check["outcome"]), text(&check["detail"]))).collect()
}

#[tokio::test]
async fn validate_describes_an_environment_and_plays_it_twice() {
    for plugin in word_walks() {
        let (report, code) = validated(&plugin, &[]).await;

        assert_eq!(code, Some(0), "{report:#}");
        for (name, part) in [
            ("environment", "word-walk"),
            ("tools", "go, spell, note, sum, answer"),
            ("observation", "Opening with text, words"),
            ("splits", "train (16 tasks), test (8 tasks)"),
            ("tasks", "the label of a task goes to the grader"),
            ("reset", "with the first task: {\"text\":\"How many times"),
            ("step", "spell: "),
            ("deterministic", "two episodes with the same actions were identical"),
        ] {
            let found = checks(&report, name);
            assert!(
                found.iter().any(|(outcome, detail)| outcome == "passed" && detail.contains(part)),
                "{name}: {found:?}"
            );
        }
    }
    // A row in place of a task.
    let dir = temporary();
    let rows = dir.path().join("rows.jsonl");
    std::fs::write(&rows, json!({"user_prompt": "1 + 1?", "ground_truth": "two"}).to_string()).unwrap();
    let (report, code) =
        validated(&example("example-number-hunt"), &["--data", &rows.display().to_string()]).await;
    assert_eq!(code, Some(1), "{report:#}");
    let reset = checks(&report, "reset");
    assert!(reset[0].1.contains("with the row: ground_truth: it is not a number"), "{reset:?}");
}

#[tokio::test]
async fn validate_warns_of_labels_that_a_caller_sees_and_of_chance() {
    let dir = temporary();
    let code = r#"
import random
from typing import Any
from rollout_sdk import *

class Leaks(Environment):
    def reset(self, task: dict[str, Any]) -> dict[str, Any]:
        self.task = task
        return {"task": task, "chance": random.random()}

    def guess(self, number: int) -> Turn[str]:
        """Guesses."""
        return Turn("no", done=True)

    @classmethod
    def splits(cls) -> list[Split]:
        return [Split("train", 1)]

    @classmethod
    def task(cls, split: str, index: int) -> dict[str, Any]:
        return {"question": "What?", "answer": "forty-two"}
"#;
    std::fs::write(dir.path().join("pyproject.toml"), "[project]\nname = \"leaks\"\n").unwrap();
    std::fs::write(dir.path().join("leaks.py"), code).unwrap();
    let made = dir.path().join("made.wasm");
    let mut build = rollout_host(["build"]);
    build
        .arg(dir.path())
        .arg("-o")
        .arg(&made)
        .arg("--componentize-py")
        .arg(python_program("componentize-py"));
    let built = build.start().ended_within(COMMAND).await;
    assert_eq!(built.code, Some(0), "{}", built.stderr);

    let (report, code) = validated(&made, &[]).await;

    assert_eq!(code, Some(1), "{report:#}");
    for (name, outcome, part) in [
        ("description", "warned", "it is empty"),
        ("observation", "warned", "its schema names no fields"),
        ("tasks", "warned", "a task of the split 'train' has its label"),
        ("label", "warned", "contains the label, forty-two"),
        ("step", "passed", "guess: no, done"),
        ("deterministic", "failed", "first {"),
    ] {
        let found = checks(&report, name);
        assert!(
            found.iter().any(|(each, detail)| each == outcome && detail.contains(part)),
            "{name}: {found:?}"
        );
    }
}

#[tokio::test]
async fn the_commands_of_the_page_work_for_each_language() {
    let page = std::fs::read_to_string(project_root().join("docs/write/environments.md")).unwrap();
    let block = page.split_once("## Try it\n").and_then(|(_, rest)| rest.split_once("```sh\n"));
    let block = block.and_then(|(_, rest)| rest.split_once("\n```")).expect("the page has commands").0;
    let (build, rest) = block.split_once('\n').unwrap();
    assert!(build.starts_with("rollout-host build examples/word-walk/python -o word-walk.wasm"), "{build}");
    let programs = rollout_tests::host_program().parent().unwrap().to_owned();
    for plugin in word_walks() {
        let dir = temporary();
        std::os::unix::fs::symlink(project_root().join("examples"), dir.path().join("examples")).unwrap();
        std::fs::copy(plugin, dir.path().join("word-walk.wasm")).unwrap();
        let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
        let mut bash = tokio::process::Command::new("bash");
        bash.args(["-euo", "pipefail", "-c", rest])
            .current_dir(dir.path())
            .env("PATH", path)
            .kill_on_drop(true);
        let ran = tokio::time::timeout(COMMAND, bash.output()).await.unwrap().unwrap();

        let stdout = String::from_utf8_lossy(&ran.stdout).into_owned();
        assert!(ran.status.success(), "{stdout}{}", String::from_utf8_lossy(&ran.stderr));
        for text in ["deterministic  two episodes", "after 13 steps, with the reward 1", "0.125 mean"] {
            assert!(stdout.contains(text), "{text:?} in {stdout}");
        }
    }
}
