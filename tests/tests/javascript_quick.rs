//! Tests of `test` for TypeScript and JavaScript projects, which run without a build.

use std::path::Path;
use std::time::{Duration, Instant};

use rollout_tests::{Start, has_javascript, javascript_host, project_root, until, with_frameworks};
use tempfile::TempDir;

const AGENT: &str = "import { defineGrader, defineWorkflow, sameNumber } from 'rollout-sdk';
const caf\u{e9}: string = 'caf\u{e9} \u{1f600}';
export const workflow = defineWorkflow(async (ctx) => {
  const run = await ctx.agent().run();
  run.sample.field('name', caf\u{e9});
});
export const grader = defineGrader((ctx) => {
  return Number(sameNumber(ctx.sample.answerAfter('####'), ctx.requireLabel()));
});
";

const ROW: &str = r#"{"user_prompt": "What is 2 + 3?", "ground_truth": "5"}"#;

fn project(source: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("src")).unwrap();
    write(&dir, "package.json", "{\"exports\": \"./src/index.ts\"}");
    write(&dir, "rows.jsonl", ROW);
    write(&dir, "src/index.ts", source);
    dir
}

fn write(dir: &TempDir, file: &str, text: &str) {
    std::fs::write(dir.path().join(file), text).unwrap();
}

fn test(dir: &Path, rows: &Path) -> tokio::process::Command {
    let mut command = javascript_host("test");
    command.arg(".").arg("--data").arg(rows).args(["--model", "mock"]).current_dir(dir);
    command.into()
}

fn prepared(cache: &Path) -> usize {
    std::fs::read_dir(cache.join("rollout-host/javascript")).map_or(0, Iterator::count)
}

#[tokio::test]
async fn an_edit_is_tested_within_a_second_and_prepares_no_component() {
    if !has_javascript() {
        return;
    }
    let dir = project(AGENT);
    let cache = tempfile::tempdir().unwrap();
    let command = || {
        let mut command = test(dir.path(), Path::new("rows.jsonl"));
        command.env("XDG_CACHE_HOME", cache.path());
        command
    };
    // Preparing the component compiles the engine, whose duration depends on the load of the machine.
    let ran = command().output().await.unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let running = command().arg("--watch").start();
    running.line("reward     1").await;
    assert_eq!(prepared(cache.path()), 1);

    let mut fastest = Duration::MAX;
    for tenths in 2..7 {
        let edited = AGENT.replace("return Number", &format!("return 0.{tenths} * Number"));
        let began = Instant::now();
        write(&dir, "src/index.ts", &edited);
        // Only the new source gives this reward.
        running.line(&format!("reward     0.{tenths}")).await;
        fastest = fastest.min(began.elapsed());
    }

    assert_eq!(prepared(cache.path()), 1);
    println!("from the edit to the result: {} ms", fastest.as_millis());
    assert!(fastest < Duration::from_secs(1), "the fastest of five edits took {fastest:?}");
    // An edit that cannot be bundled is reported, and the next one is tried.
    write(&dir, "src/index.ts", "export const workflow = (;");
    until("the error", async || running.stderr().contains("src/index.ts:1:25").then_some(())).await;
    write(&dir, "src/index.ts", &AGENT.replace("return Number", "return 0.75 * Number"));
    running.line("reward     0.75").await;
    assert_eq!(running.terminate().await.code, Some(0));
}

#[tokio::test]
async fn an_error_names_the_authors_file_and_line() {
    if !has_javascript() {
        return;
    }
    let early = "import { defineSettings } from 'rollout-sdk';\nfunction first(): void {\n  throw new RangeError('too early');\n}\n";
    let settings = "export const settings = defineSettings({ type: 'object', properties: {} });\n";
    for (source, expected) in [
        (
            AGENT.replace(
                "  const run",
                "\n  if (ctx.prompt.length > 0) throw new RangeError('none');\n  const run",
            ),
            "RangeError: none (src/index.ts:5)",
        ),
        (
            format!("{early}first();\n{AGENT}"),
            "the modules cannot be evaluated: RangeError: too early (src/index.ts:3)",
        ),
        // The host reads settings before any rollout, so the component cannot be loaded.
        (format!("{early}first();\n{settings}{AGENT}"), "    at first (src/index.ts:3)"),
        (
            AGENT.replace("defineGrader((ctx) =>", "((ctx: any) =>"),
            "the export `grader` is not what defineGrader",
        ),
    ] {
        let dir = project(&source);

        let ran = test(dir.path(), Path::new("rows.jsonl")).start().ended().await;

        let output = format!("{}{}", ran.stdout, ran.stderr);
        assert_ne!(ran.code, Some(0), "{output}");
        assert!(output.contains(expected), "{expected}: {output}");
    }
}

#[tokio::test]
async fn examples_have_the_same_reward_as_built() {
    if !has_javascript() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for example in
        ["one-turn", "calculator", "parallel", "agent-loop", "ai-sdk", "openai-agents", "langgraph", "mcp"]
    {
        let source = project_root().join("examples").join(example).canonicalize().unwrap();
        let project = dir.path().join(example);
        with_frameworks(&source.join("js"), &project);

        let ran = test(&project, &source.join("rows.jsonl")).start().ended().await;

        assert_eq!(ran.code, Some(0), "{example}: {}{}", ran.stdout, ran.stderr);
        assert!(ran.stdout.contains("reward     1\n"), "{example}: {}{}", ran.stdout, ran.stderr);
    }
}
