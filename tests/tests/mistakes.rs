//! Tests that each mistake in `docs/write/python-mistakes.md` leads to the output on the page.

use std::path::Path;
use std::time::Duration;

use rollout_tests::{Ran, Start, project_root, python_program, rollout_host};
use tokio::task::JoinSet;

/// The timeout of a command. The first one prepares a component.
const COMMAND: Duration = Duration::from_secs(300);

/// The workflow of modules without their own.
const WORKFLOW: &str =
    "\n\nclass OneTurn(AgentWorkflow):\n    async def run(self, ctx):\n        await ctx.agent().run()\n";
const GRADER: &str = "\n\nclass SameNumber(Grader):\n    async def grade(self, ctx):\n        \
                      return same_number(ctx.sample.answer_after('####') or '', ctx.require_label())\n";

/// A mistake, and its expected output.
struct Mistake {
    title: String,
    code: String,
    /// The command after `rollout-host`.
    command: String,
    /// The exit code.
    exit: i32,
    seen: Vec<String>,
}

impl Mistake {
    /// Parses a section of the page.
    fn read(section: &str) -> Self {
        let title = section.lines().next().unwrap_or_default().to_owned();
        let block = |language: &str| {
            let (_, rest) =
                section.split_once(&format!("```{language}\n")).expect("a section has this block");
            rest.split_once("\n```").expect("a block has an end").0.to_owned()
        };
        let line = |exit: &(&str, i32)| {
            let found = section.lines().find(|line| line.starts_with(exit.0))?;
            Some((found.split('`').nth(1)?.to_owned(), exit.1))
        };
        let ends = [("Warned of, ", 0), ("Fails, ", 1), ("Refused, ", 2)];
        let (command, exit) =
            ends.iter().find_map(line).unwrap_or_else(|| panic!("{title}: how does it end?"));
        let seen = block("text").lines().map(str::to_owned).collect();
        Self { title, code: block("python"), command, exit, seen }
    }

    /// Returns the module with the mistake.
    fn module(&self) -> String {
        let mut module = format!("from rollout_sdk import *\n\n{}\n", self.code);
        // A class without a base, or code that cannot be parsed, replaces the workflow.
        for (name, part) in [("class Agent", WORKFLOW), ("class Rated", GRADER)] {
            if !self.code.contains(name) {
                module += part;
            }
        }
        module
    }

    async fn made(&self, dir: &Path) -> Ran {
        write(dir, "agent.py", &self.module());
        write(dir, "rows.jsonl", "{\"user_prompt\": \"What is 2 + 3?\", \"ground_truth\": \"5\"}\n");
        let mut words = self.command.split_whitespace();
        let mut command = rollout_host(words.next());
        command
            .arg("agent.py")
            .args(["--data", "rows.jsonl", "--model", "mock"])
            .args(words)
            .current_dir(dir);
        command.arg("--componentize-py").arg(python_program("componentize-py"));
        command.start().ended_within(COMMAND).await
    }
}

fn write(dir: &Path, name: &str, text: &str) {
    std::fs::write(dir.join(name), text).expect("it can be written");
}

/// Makes one mistake; returns an error message if the output is wrong.
async fn check(mistake: Mistake) -> Option<String> {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let ran = mistake.made(dir.path()).await;
    let seen = format!("{}{}", ran.stdout, ran.stderr);
    let missing = mistake.seen.iter().find(|text| !seen.contains(*text));
    // The output must show each mistake, beside the reward or instead of it.
    let is_silent = ran.code == Some(0)
        && !["warning ", "log  ", "the clock starts"].iter().any(|text| ran.stdout.contains(text));
    (ran.code != Some(mistake.exit) || missing.is_some() || is_silent).then(|| {
        format!("{}: exit {:?}, missing {missing:?}, silent {is_silent}:\n{seen}", mistake.title, ran.code)
    })
}

#[tokio::test]
async fn every_mistake_on_the_page_has_the_documented_output_and_no_silent_zero() {
    let page = std::fs::read_to_string(project_root().join("docs/write/python-mistakes.md"))
        .expect("there is the page");
    let mut mistakes: Vec<Mistake> = page.split("\n## ").skip(1).map(Mistake::read).collect();
    assert!(mistakes.len() >= 30, "only {} mistakes are on the page", mistakes.len());
    // The shared component is prepared once.
    let mut wrong: Vec<String> = check(mistakes.remove(0)).await.into_iter().collect();
    let mut checks = JoinSet::new();
    for mistake in mistakes {
        if checks.len() >= 2 {
            wrong.extend(
                checks.join_next().await.and_then(|checked| checked.expect("a check does not panic")),
            );
        }
        checks.spawn(check(mistake));
    }
    wrong.extend(checks.join_all().await.into_iter().flatten());
    assert!(wrong.is_empty(), "{} of the page are otherwise:\n{}", wrong.len(), wrong.join("\n\n"));
}
