//! Tests of quick builds, which run a Python project from its source.

use std::path::Path;
use std::time::Duration;

use rollout_tests::{Ran, Start, project_root, python_program, rollout_host, until};
use tempfile::TempDir;
use tokio::process::Command;
use tokio::sync::OnceCell;

/// The timeout of a command. The first one prepares a component.
const COMMAND: Duration = Duration::from_secs(300);

const AGENT: &str = "
from rollout_sdk import *

class OneTurn(AgentWorkflow):
    async def run(self, ctx):
        await ctx.agent().run()

class SameNumber(Grader):
    async def grade(self, ctx):
        return same_number(ctx.sample.answer_after('####') or '', ctx.require_label())
";

/// Creates a directory with an entry module and no project file.
fn project(entry: &str) -> TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    write(dir.path(), "agent.py", entry);
    write(dir.path(), "rows.jsonl", "{\"user_prompt\": \"What is 2 + 3?\", \"ground_truth\": \"5\"}\n");
    dir
}

fn write(dir: &Path, name: &str, text: &str) {
    std::fs::write(dir.join(name), text).expect("it can be written");
}

/// Returns the command for a project or file in the directory.
fn test(dir: &Path, what: &str) -> Command {
    let mut command = rollout_host(["test"]);
    command.arg(what).args(["--data", "rows.jsonl", "--model", "mock"]).current_dir(dir);
    command.arg("--componentize-py").arg(python_program("componentize-py"));
    command
}

/// Prepares the component of these projects once, which takes time.
async fn prepared() {
    static PREPARED: OnceCell<()> = OnceCell::const_new();
    PREPARED
        .get_or_init(async || {
            let dir = project(AGENT);
            let ran = tested(dir.path()).await;
            assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
        })
        .await;
}

async fn tested(dir: &Path) -> Ran {
    test(dir, "agent.py").start().ended_within(COMMAND).await
}

#[tokio::test]
async fn an_edit_is_tested_without_a_build() {
    prepared().await;
    let dir = project(AGENT);
    let ran = tested(dir.path()).await;
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("reward     1\n"), "{}", ran.stdout);
    assert!(ran.stderr.contains("quick mode: "), "{}", ran.stderr);

    // The edit adds a module, a file that it reads during its import, a setting, and other rewards.
    write(
        dir.path(),
        "rates.py",
        "from pathlib import Path\nREWARD = float(Path(__file__).with_name('reward.txt').read_text())\n",
    );
    write(dir.path(), "reward.txt", "0.25");
    write(dir.path(), "pyproject.toml", "[project]\nname = \"agent\"\nversion = \"1\"\n");
    let graded = "return rates.REWARD * ctx.config.times";
    let settings = "import rates\nfrom rollout_sdk import *\n\nclass Config(GraderConfig):\n    times: int = 2\n\n\
                    config = Config()\n";
    let edited = AGENT.replace("from rollout_sdk import *", settings);
    let edited = edited
        .replace("return same_number(ctx.sample.answer_after('####') or '', ctx.require_label())", graded);
    write(dir.path(), "agent.py", &edited);

    let again = test(dir.path(), ".").args(["--set", "times=3"]).start().ended_within(COMMAND).await;

    assert_eq!(again.code, Some(0), "{}{}", again.stdout, again.stderr);
    assert!(again.stdout.contains("reward     0.75\n"), "{}", again.stdout);
    assert!(!again.stderr.contains("preparing"), "{}", again.stderr);

    // An undeclared setting, on the command line and in a file.
    write(dir.path(), "c.toml", "[plugin]\ntime = 3\n");
    for option in [["--set", "time=3"], ["--config", "c.toml"]] {
        let refused = test(dir.path(), ".").args(option).start().ended_within(COMMAND).await;

        assert_eq!(refused.code, Some(2), "{}{}", refused.stdout, refused.stderr);
        let expected = "time: there is no such setting; did you mean times?";
        assert!(refused.stderr.contains(expected), "{}", refused.stderr);
    }
}

#[tokio::test]
async fn undeclared_values_lead_to_a_warning() {
    prepared().await;
    let dir = project(AGENT);

    let ran = test(dir.path(), "agent.py").args(["--set", "max_turn=6"]).start().ended_within(COMMAND).await;

    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stderr.contains("declares no settings"), "{}", ran.stderr);
    assert!(ran.stderr.contains("max_turn"), "{}", ran.stderr);
}

#[tokio::test]
async fn errors_are_the_same_as_those_of_a_build() {
    prepared().await;
    for (entry, expected) in [
        (format!("import json\n\nimport nosuch\n{AGENT}"), vec!["No module named 'nosuch'", "agent.py:3"]),
        (
            format!("{AGENT}\nclass Two(AgentWorkflow):\n    async def run(self, ctx): ...\n"),
            vec!["module `agent` has 2 workflows: `OneTurn`, `Two`"],
        ),
        (
            AGENT.replace("await ctx.agent().run()", "return 1 / 0"),
            vec!["ZeroDivisionError", "agent.py:6, in run"],
        ),
        // A component can read files only during imports.
        (
            AGENT.replace("await ctx.agent().run()", "open('/0/rows.jsonl')"),
            vec!["FileNotFoundError", "agent.py:6"],
        ),
    ] {
        let dir = project(&entry);
        write(dir.path(), "pyproject.toml", "[project]\nname = \"agent\"\nversion = \"1\"\n");

        let ran = tested(dir.path()).await;

        assert_eq!(ran.code, Some(1), "{entry}: {}{}", ran.stdout, ran.stderr);
        for text in expected {
            assert!(ran.stdout.contains(text), "{entry}: {}{}", ran.stdout, ran.stderr);
        }
    }
}

/// Runs the first row of the data, from the project's directory.
async fn tried(dir: &Path, what: &str, rows: &Path) -> Ran {
    let mut command = rollout_host(["test"]);
    command.arg(what).arg("--data").arg(rows).args(["--model", "mock"]).current_dir(dir);
    command.arg("--componentize-py").arg(python_program("componentize-py"));
    command.start().ended_within(COMMAND).await
}

#[tokio::test]
async fn each_template_in_python_runs_the_quick_way() {
    for (template, reward) in
        [("one-turn", Some("1")), ("tools", Some("1")), ("agent-loop", Some("1")), ("grader", None)]
    {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let mut new = rollout_host(["new", "made", "--lang", "python", "--template", template]);
        let made = new.current_dir(dir.path()).start().ended().await;
        assert_eq!(made.code, Some(0), "{template}: {}", made.stderr);
        let project = dir.path().join("made");
        // Run it both by its directory and by its entry module.
        for what in [".", "made.py"] {
            let ran = tried(&project, what, &project_root().join("examples/one-turn/rows.jsonl")).await;

            match reward {
                Some(reward) => {
                    assert_eq!(ran.code, Some(0), "{template}, {what}: {}{}", ran.stdout, ran.stderr);
                    assert!(
                        ran.stdout.contains(&format!("reward     {reward}\n")),
                        "{template}: {}",
                        ran.stdout
                    );
                }
                None => {
                    assert_eq!(ran.code, Some(1), "{template}, {what}: {}{}", ran.stdout, ran.stderr);
                    assert!(ran.stderr.contains("only grades"), "{template}: {}", ran.stderr);
                }
            }
        }
    }
}

#[tokio::test]
async fn each_example_in_python_runs_the_quick_way() {
    let mut tried_examples = 0;
    for example in std::fs::read_dir(project_root().join("examples")).expect("there are examples") {
        let example = example.expect("a directory can be read").path();
        let project = example.join("python");
        // The built-in model cannot play environments; `environments.rs` plays these with scripted replies.
        if !project.is_dir() || ["number-hunt", "word-walk"].iter().any(|name| example.ends_with(name)) {
            continue;
        }
        tried_examples += 1;
        let rows = match example.ends_with("agent-loop") {
            // The loop computes its own reward from its metadata.
            true => example.join("rows.jsonl"),
            false => project_root().join("examples/one-turn/rows.jsonl"),
        };

        let ran = tried(&project, ".", &rows).await;

        assert_eq!(ran.code, Some(0), "{}: {}{}", example.display(), ran.stdout, ran.stderr);
        assert!(ran.stdout.contains("reward     1\n"), "{}: {}", example.display(), ran.stdout);
    }
    assert!(tried_examples >= 7, "only {tried_examples} examples were found");
}

#[tokio::test]
async fn a_saved_file_is_tested_again() {
    prepared().await;
    let dir = project(AGENT);
    let running = test(dir.path(), "agent.py").arg("--watch").start();
    running.line("reward     1").await;

    write(dir.path(), "agent.py", &AGENT.replace("return same_number", "return 0.5 * same_number"));

    running.line("reward     0.5").await;
    assert_eq!(running.terminate().await.code, Some(0));
}

#[tokio::test]
async fn a_build_is_repeated_when_a_file_is_saved() {
    let dir = project(AGENT);
    write(dir.path(), "pyproject.toml", "[project]\nname = \"agent\"\nversion = \"1\"\nnonsense = [\n");
    let mut build = rollout_host(["build", ".", "-o", "made.wasm", "--watch"]);
    build.arg("--componentize-py").arg(python_program("componentize-py")).current_dir(dir.path());
    let building = build.start();
    until("the error", async || building.stderr().contains("waiting for a change").then_some(())).await;
    assert!(building.stderr().contains("pyproject.toml: "), "{}", building.stderr());

    let wrong = "[project]\nname = \"agent\"\n[tool.rollout-host]\nentri = \"x\"\n";
    write(dir.path(), "pyproject.toml", wrong);

    until("the next error", async || building.stderr().contains("has no `entri`").then_some(())).await;
    assert_eq!(building.terminate().await.code, Some(0));
}

#[tokio::test]
async fn only_a_component_is_served() {
    let dir = project(AGENT);
    for what in ["agent.py", "."] {
        let ran = rollout_host(["serve", what]).current_dir(dir.path()).start().ended().await;

        assert_eq!(ran.code, Some(1), "{what}: {}", ran.stderr);
        assert!(ran.stderr.contains(&format!("rollout-host build {what}")), "{what}: {}", ran.stderr);
    }
    let rust = project_root().join("examples/one-turn/rust");
    let ran = test(dir.path(), &rust.display().to_string()).start().ended().await;
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("is a Rust project"), "{}", ran.stderr);
}
