//! Guests in TypeScript and JavaScript: builds, behaviour and error messages.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rollout_tests::{
    has_javascript, javascript_guest, javascript_host, npm_packages, project_root, rollout_host,
    with_frameworks,
};
use serde_json::{Value, json};
use tempfile::TempDir;

const AGENT: &str = "import { defineGrader, defineWorkflow, sameNumber } from 'rollout-sdk';
export const workflow = defineWorkflow(async (ctx) => ctx.agent().run());
export const grader = defineGrader((ctx) => sameNumber(ctx.sample.answerAfter('####'), ctx.requireLabel()));
";

const ROW: &str = r#"{"user_prompt": "What is 2 + 3?", "ground_truth": "5"}"#;

/// Creates a project of these files.
fn project(files: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    for (name, text) in files {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    dir
}

fn build(dir: &Path) -> Output {
    javascript_host("build").arg(dir).arg("-o").arg(dir.join("made.wasm")).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Builds a project that cannot be built, and returns the error message.
fn failed_build(files: &[(&str, &str)]) -> String {
    let dir = project(files);
    let ran = build(dir.path());
    assert!(!ran.status.success(), "it was built");
    assert!(!dir.path().join("made.wasm").exists());
    text(&ran.stderr)
}

/// Runs a component on these rows, and returns each row's result and the text of its last message.
fn evaluate(component: &Path, rows: &str, options: &[&str]) -> Vec<(Value, String)> {
    let dir = project(&[("rows.jsonl", rows)]);
    let mut eval: Command = rollout_host(["eval"]).into_std();
    let ran = eval
        .arg(component)
        .args(["--data", "rows.jsonl", "--out", "out"])
        .args(options)
        .current_dir(dir.path())
        .output()
        .unwrap();
    let results = std::fs::read_to_string(dir.path().join("out/results.jsonl"));
    let results = results.unwrap_or_else(|error| panic!("{error}: {}", text(&ran.stderr)));
    let mut results: Vec<Value> = results.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    results.sort_by_key(|line| line["row"].as_u64());
    let last = |result: &Value| {
        let id = result["rollout_id"].as_str().unwrap();
        let path = dir.path().join("out/rollouts").join(id).join("trajectory.json");
        let trajectory: Value =
            serde_json::from_slice(&std::fs::read(path).unwrap_or_default()).unwrap_or_default();
        let steps = trajectory["steps"].as_array().cloned().unwrap_or_default();
        steps.last().map_or_else(String::new, |step| step["message"].as_str().unwrap_or_default().to_owned())
    };
    results.into_iter().map(|result| (result.clone(), last(&result))).collect()
}

/// Runs behaviours that only the parity guest in TypeScript has.
fn behaviours(names: &[&str]) -> Vec<(Value, String)> {
    behaviours_within(names, &[])
}

/// Runs such behaviours under these limits.
fn behaviours_within(names: &[&str], limits: &[&str]) -> Vec<(Value, String)> {
    let rows: Vec<String> =
        names.iter().map(|name| json!({"user_prompt": format!("js: {name}")}).to_string()).collect();
    let options = [&["--model", "mock"], limits].concat();
    evaluate(&javascript_guest("tests/guests/js/parity"), &rows.join("\n"), &options)
}

#[test]
fn the_same_source_makes_the_same_bytes_in_any_directory() {
    if !has_javascript() {
        return;
    }
    let example = project_root().join("examples/calculator/js");
    let copy = |dir: PathBuf| {
        std::fs::create_dir_all(dir.join("src")).unwrap();
        for file in ["package.json", "src/index.ts", "src/expression.ts"] {
            std::fs::copy(example.join(file), dir.join(file)).unwrap();
        }
        let ran = build(&dir);
        assert!(ran.status.success(), "{}", text(&ran.stderr));
        std::fs::read(dir.join("made.wasm")).unwrap()
    };
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());

    let first = copy(one.path().join("a"));
    let second = copy(other.path().join("another/directory/with/a/long/name"));

    assert!(first == second, "the components differ");
    // The component contains no path of this machine.
    let place = one.path().file_name().unwrap().to_string_lossy().into_owned();
    assert!(!first.windows(place.len()).any(|window| window == place.as_bytes()));
}

#[test]
fn a_component_imports_the_interfaces_that_it_uses_and_exports_its_parts() {
    if !has_javascript() {
        return;
    }
    let names = |component: &Path, direction: &str| -> Vec<String> {
        let ran = rollout_host(["inspect", "--json"]).into_std().arg(component).output().unwrap();
        let report: Value = serde_json::from_slice(&ran.stdout).unwrap();
        let items = report[direction].as_array().unwrap_or_else(|| panic!("{report:#}"));
        items.iter().map(|item| item["name"].as_str().unwrap().to_owned()).collect()
    };
    let of_contract = |component: &Path| -> Vec<String> {
        let imports = names(component, "imports").into_iter();
        imports.filter_map(|name| Some(name.strip_prefix("rollout:plugin/")?.replace("@0.1.0", ""))).collect()
    };
    let agent_loop = javascript_guest("examples/agent-loop/js");
    let host_tools = javascript_guest("examples/host-tools/js");

    let mut imported = of_contract(&agent_loop);
    imported.sort();
    assert_eq!(imported, ["calls", "context", "log", "models", "samples", "types"]);
    assert!(of_contract(&host_tools).contains(&"tools".to_owned()));
    assert!(!of_contract(&host_tools).contains(&"artifacts".to_owned()));
    // `init` belongs to the engine and evaluated the program.
    assert_eq!(names(&agent_loop, "exports"), ["init", "rollout:plugin/agent-loop@0.1.0"]);
    assert!(!names(&agent_loop, "imports").iter().any(|name| name.starts_with("local:")));
}

#[test]
fn each_example_has_its_expected_reward() {
    if !has_javascript() {
        return;
    }
    let mean = |example: &str, options: &[&str]| {
        let rows =
            std::fs::read_to_string(project_root().join(format!("examples/{example}/rows.jsonl"))).unwrap();
        let results = evaluate(&javascript_guest(&format!("examples/{example}/js")), &rows, options);
        let rewards: Vec<f64> = results
            .iter()
            .map(|(result, _)| result["reward"].as_f64().unwrap_or_else(|| panic!("{result:#}")))
            .collect();
        rewards.iter().sum::<f64>() / rewards.len() as f64
    };
    for example in ["one-turn", "calculator", "parallel", "agent-loop", "host-tools"] {
        assert_eq!(mean(example, &["--model", "mock"]), 1.0, "{example}");
    }
    let script = project_root().join("examples/rubric/answers.jsonl");
    let script = script.to_string_lossy();
    let judged = mean("rubric", &["--model", "mock", "--judge-model", "mock", "--mock-script", &script]);
    assert!((judged - 5.0 / 6.0).abs() < 1e-9, "{judged}");
}

#[test]
fn an_error_is_reported_with_the_authors_file_and_line() {
    if !has_javascript() {
        return;
    }
    let seen = behaviours(&["thrown", "not an error", "fetch", "deadlock", "wrong name"]);
    let source =
        std::fs::read_to_string(project_root().join("tests/guests/js/parity/src/parity.ts")).unwrap();
    let line = |text: &str| source.lines().position(|line| line.contains(text)).unwrap() + 1;
    let check = |place: usize, kind: &str, reason: &str| {
        let (result, _) = &seen[place];
        assert_eq!(result["kind"], kind, "{result:#}");
        let found = result["reason"].as_str().unwrap();
        assert!(found.contains(reason), "{found}");
    };

    check(0, "error", &format!("RangeError: no such thing (src/parity.ts:{})", line("new RangeError")));
    check(1, "error", "a text was thrown, which is not an Error");
    check(
        2,
        "error",
        "fetch(\"https://example.com/x\") has no network: a component reaches its model by ctx.agent(",
    );
    check(3, "error", "the code waits for a promise that nothing can settle");
    check(
        4,
        "invalid",
        &format!("has to be a string, not 7 (src/parity.ts:{})", line("ctx.openSample(wrong(7))")),
    );
}

#[test]
fn a_value_of_the_wrong_type_is_an_error_that_names_it() {
    if !has_javascript() {
        return;
    }
    let cases = [
        ("returns a number", "a workflow has to return messages or nothing, not 3"),
        ("returns a text", "the returned messages[1] has to be a message, an object, not \"text\""),
        ("wrong metric", "metric `height` has to be a number, not \"tall\""),
        ("wrong name", "the name of a sample has to be a string, not 7"),
        ("wrong messages", "messages has to be a list, not {"),
        ("wrong message", "messages[0] has to be a message, an object, not a function"),
        ("wrong tool", "tools[0] has to be made by tool(…), not {\"name\":\"x\"}"),
        ("wrong field", "field `f` has to be a JSON value, not undefined"),
        ("wrong artifact", "the content of an artifact has to be a string or bytes, not 5"),
    ];
    let seen = behaviours(&cases.map(|(name, _)| name));

    for ((name, expected), (result, _)) in cases.iter().zip(&seen) {
        assert_eq!(result["kind"], "invalid", "{name}: {result:#}");
        let reason = result["reason"].as_str().unwrap();
        assert!(reason.starts_with(expected), "{name}: {reason}");
    }
}

#[test]
fn timers_signals_and_globals_work() {
    if !has_javascript() {
        return;
    }
    let seen = behaviours(&["timers", "globals", "random", "random", "pollution", "surrogate", "unhandled"]);
    let found = |place: usize| -> Value { serde_json::from_str(&seen[place].1).unwrap() };

    assert_eq!(found(0), json!([["ten", "thirty", "a", "b"], 3, true, "first"]));
    assert_eq!(found(1), json!(["caf\u{e9} \u{1f600}", 1, "x", true, 1, "number", "YQ==", "object"]));
    // Two rollouts have different random numbers, and clocks that begin on the same day.
    assert_ne!(found(2)[0], found(3)[0]);
    assert_ne!(found(2)[1], found(3)[1]);
    assert_eq!(found(2)[2], "2025-01-01T00:00:00.000Z");
    for (place, (result, _)) in seen.iter().enumerate() {
        assert_eq!(result["outcome"], "scored", "{place}: {result:#}");
    }
}

#[test]
fn limits_stop_a_misbehaving_program_without_harm_to_others() {
    if !has_javascript() {
        return;
    }
    let cases = [
        ("endless microtasks", &["memory", "cpu", "error"][..]),
        ("endless timers", &["cpu"]),
        ("regex bomb", &["cpu"]),
        ("memory", &["error", "memory"]),
        ("deep", &["trap"]),
        ("replaced", &["error"]),
        ("endless generator", &["cpu"]),
        ("deep and caught", &["trap", "cpu"]),
        ("deep text", &["error", "trap"]),
        ("deep value", &["error", "invalid", "trap"]),
        ("long text", &["error", "memory"]),
        ("large buffer", &["error", "memory"]),
        ("thenable", &["error", "invalid"]),
    ];
    let names: Vec<&str> = cases.iter().map(|(name, _)| *name).chain(["pollution", "frozen"]).collect();
    let limits = ["--limit-guest-cpu-secs-max", "2", "--limit-memory-bytes-max", "67108864"];
    let seen = behaviours_within(&names, &limits);

    for ((name, kinds), (result, _)) in cases.iter().zip(&seen) {
        assert_eq!(result["outcome"], "unscored", "{name}: {result:#}");
        assert!(kinds.contains(&result["kind"].as_str().unwrap()), "{name}: {result:#}");
    }
    for (result, _) in &seen[cases.len()..] {
        assert_eq!(result["reward"], 1.0, "{result:#}");
    }
}

#[test]
fn data_cannot_change_prototypes_and_rollouts_share_no_state() {
    if !has_javascript() {
        return;
    }
    let metadata: Value = serde_json::from_str(r#"{"__proto__": {"polluted": 1}, "a": 1}"#).unwrap();
    let rows = ["pollution by data", "mark", "look"]
        .map(|name| json!({"user_prompt": format!("js: {name}"), "metadata": metadata}).to_string());
    let options = ["--model", "mock", "--concurrency", "1"];

    let seen = evaluate(&javascript_guest("tests/guests/js/parity"), &rows.join("\n"), &options);

    let found = |place: usize| -> Value {
        serde_json::from_str(&seen[place].1).unwrap_or_else(|error| panic!("{error}: {:#}", seen[place].0))
    };
    assert_eq!(found(0), json!(["A", true, 2]));
    assert_eq!(found(1), "marked");
    assert_eq!(found(2), json!([false, false]));
}

/// An environment whose model acts as its task says, and ends the episode with `end`.
const MISBEHAVING: &str = r#"
import { defineEnvironment, tool, turn } from 'rollout-sdk';

let marked = false;
const kept = [];
const loop = () => Promise.resolve().then(loop);
const deep = (value) => deep({ value }) + 1;

const acts = {
  spin: () => { for (;;); },
  microtasks: () => loop(),
  waits: () => new Promise((resolve) => setTimeout(() => resolve('waited'), 5)),
  regex: () => /^(a+)+$/.test('a'.repeat(64) + 'b'),
  recursion: () => deep(0),
  memory: () => { for (;;) kept.push(new Array(65536).fill(kept.length)); },
  prototypes: () => {
    Object.prototype.reward = 9;
    Object.prototype.done = true;
    Array.prototype.map = () => { throw new Error('replaced'); };
    Promise.prototype.then = () => {};
    JSON.stringify = () => '{"reward":9}';
    Object.defineProperty(globalThis, 'Promise', { value: undefined });
    return 'changed';
  },
  mark: () => {
    const was = marked;
    marked = true;
    return was;
  },
  promise: () => new Promise(() => {}),
  circular: () => {
    const value = {};
    value.value = value;
    return value;
  },
  throws: () => { throw { tag: 'failed', val: 7 }; },
  nan: () => turn('', { reward: NaN }),
};

export const environment = defineEnvironment({
  name: 'misbehaving',
  description: 'Does what its task says.',
  reset: (start) => ({ episode: { act: start.arguments.act }, turn: start.arguments.act }),
  tools: [
    tool({ name: 'act', description: 'Acts.', execute: (_, episode) => acts[episode.act]() }),
    tool({ name: 'end', description: 'Ends the episode.', execute: () => turn('over', { reward: 0.5, done: true }) }),
  ],
});
"#;

#[test]
fn limits_stop_a_misbehaving_environment_without_harm_to_other_episodes() {
    if !has_javascript() {
        return;
    }
    let dir = project(&[("package.json", "{}"), ("index.js", MISBEHAVING)]);
    let ran = build(dir.path());
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let call = |call: u32, name: &str| {
        let function = json!({"name": name, "arguments": "{}"});
        let message =
            json!({"tool_calls": [{"id": format!("c{call}"), "type": "function", "function": function}]});
        json!({"when": {"call": call}, "message": message}).to_string()
    };
    let script = dir.path().join("script.jsonl");
    std::fs::write(&script, [call(1, "act"), call(2, "end")].join("\n")).unwrap();
    // The first ones leave the episode without a reward, and the others are reported to the model, which goes on.
    let stopped = [
        ("spin", &["cpu"][..]),
        // The memory stays full, so that no later step works either.
        ("microtasks", &["cpu", "memory", "no_reward"]),
        ("regex", &["cpu"]),
        ("recursion", &["trap"]),
        ("nan", &["invalid"]),
        // A program may replace functions of the language that the SDK uses, for itself only.
        ("prototypes", &["no_reward", "trap"]),
    ];
    let reported = ["waits", "memory", "promise", "circular", "throws", "mark", "mark"];
    let acts = stopped.iter().map(|(act, _)| *act).chain(reported);
    let rows: Vec<String> =
        acts.map(|act| json!({"user_prompt": act, "metadata": {"act": act}}).to_string()).collect();
    let script = script.to_string_lossy();
    let options = ["--model", "mock", "--mock-script", &script, "--limit-guest-cpu-secs-max", "2"];
    let limits = ["--limit-memory-bytes-max", "67108864"];

    let seen = evaluate(&dir.path().join("made.wasm"), &rows.join("\n"), &[&options[..], &limits].concat());

    for ((act, kinds), (result, _)) in stopped.iter().zip(&seen) {
        assert_eq!(result["outcome"], "unscored", "{act}: {result:#}");
        assert!(kinds.contains(&result["kind"].as_str().unwrap()), "{act}: {result:#}");
    }
    for (act, (result, _)) in reported.iter().zip(&seen[stopped.len()..]) {
        assert_eq!(result["reward"], 0.5, "{act}: {result:#}");
    }
}

#[test]
fn the_build_reports_a_mistake_and_its_remedy() {
    if !has_javascript() {
        return;
    }
    let check = |files: &[(&str, &str)], expected: &[&str]| {
        let message = failed_build(files);
        for part in expected {
            assert!(message.contains(part), "{part} is missing in: {message}");
        }
        assert!(!message.contains("panicked"), "{message}");
    };
    let entry = |source: &'static str| [("package.json", "{}"), ("src/index.ts", source)];

    check(
        &entry("export const work = 1;"),
        &["exports no workflow", "it exports work", "defineWorkflow(async (ctx)"],
    );
    check(
        &entry("export const workflow = async () => {};"),
        &["the export `workflow` is not what defineWorkflow(…) returns"],
    );
    check(
        &entry("import fs from 'node:fs';\nexport const workflow = fs;"),
        &["src/index.ts:1", "node:fs", "has no files"],
    );
    check(&entry("import { z } from 'zod';\nexport const workflow = z;"), &["zod", "npm ci"]);
    check(&entry("export const workflow = (;"), &["src/index.ts:1", "Unexpected"]);
    check(
        &entry(
            "import { defineWorkflow } from 'rollout-sdk';\nfunction first(): never {\n  throw new Error('too early');\n}\nfirst();\nexport const workflow = defineWorkflow(() => {});",
        ),
        &["the modules cannot be evaluated: Error: too early", "src/index.ts:3", "src/index.ts:5"],
    );
    check(
        &entry(
            "import { defineWorkflow, log } from 'rollout-sdk';\nlog.info('x');\nexport const workflow = defineWorkflow(() => {});",
        ),
        &["log.info belongs to a rollout", "src/index.ts:2"],
    );
    check(
        &[("package.json", "{\"dependencies\": {\"left-pad\": \"1\"}}"), ("src/index.ts", AGENT)],
        &["left-pad is not installed", "npm ci"],
    );
    check(
        &entry(
            "import { defineEnvironment } from 'rollout-sdk';\nconst reset = () => ({ episode: 1, turn: 'x' });\nexport const environment = defineEnvironment({ name: 'x', description: 'X.', reset });",
        ),
        &["an environment needs `tools`, or `action` and `step`", "src/index.ts:3"],
    );
    check(
        &entry("export const environment = {};"),
        &["the export `environment` is not what defineEnvironment(…) returns"],
    );
    check(&[("package.json", "{\"main\": \"lib/x.js\"}")], &["the entry module lib/x.js is not in"]);
    check(&[("package.json", "{")], &["package.json is invalid"]);
}

#[test]
fn a_project_is_found_by_its_manifest_and_test_builds_it() {
    if !has_javascript() {
        return;
    }
    for manifest in ["package.json", "deno.json"] {
        let dir = project(&[
            (manifest, "{\"name\": \"agent\", \"exports\": \"./agent.ts\"}"),
            ("agent.ts", AGENT),
            ("rows.jsonl", ROW),
        ]);

        let mut test = javascript_host("test");
        let ran = test
            .arg(".")
            .args(["--data", "rows.jsonl", "--model", "mock"])
            .current_dir(dir.path())
            .output()
            .unwrap();

        assert!(ran.status.success(), "{manifest}: {}{}", text(&ran.stdout), text(&ran.stderr));
        assert!(text(&ran.stdout).contains("reward"), "{}", text(&ran.stdout));
    }
}

#[test]
fn new_projects_build_are_valid_and_have_the_right_types() {
    if !has_javascript() {
        return;
    }
    for lang in ["ts", "js"] {
        for template in ["one-turn", "tools", "agent-loop", "grader", "environment"] {
            let dir = tempfile::tempdir().unwrap();
            let made = rollout_host(["new", "my-agent", "--lang", lang, "--template", template])
                .into_std()
                .current_dir(dir.path())
                .output()
                .unwrap();
            assert!(made.status.success(), "{}", text(&made.stderr));
            assert!(text(&made.stdout).contains("npm install"), "{}", text(&made.stdout));
            let project = dir.path().join("my-agent");
            let ran = build(&project);
            assert!(ran.status.success(), "{lang} {template}: {}", text(&ran.stderr));
            let ran = rollout_host(["validate"]).into_std().arg(project.join("made.wasm")).output().unwrap();
            assert!(ran.status.success(), "{lang} {template}: {}{}", text(&ran.stdout), text(&ran.stderr));
            if template == "environment" {
                is_played(&project);
            }
            if lang == "ts" {
                // `npm install` creates this link.
                std::fs::create_dir(project.join("node_modules")).unwrap();
                std::os::unix::fs::symlink("../vendor/rollout-sdk", project.join("node_modules/rollout-sdk"))
                    .unwrap();
                check_types(&project.join("tsconfig.json"));
            }
        }
    }
}

/// Plays the first task of a new environment by lines on standard input.
fn is_played(project: &Path) {
    let lines = project.join("lines.txt");
    std::fs::write(&lines, "add number=90\nadd 4\n/state\nmultiply {\"number\": 2}\n").unwrap();
    let ran = rollout_host(["test"])
        .into_std()
        .arg(project.join("made.wasm"))
        .args(["--split", "train", "--interactive"])
        .stdin(std::fs::File::open(&lines).unwrap())
        .current_dir(project)
        .output()
        .unwrap();
    let played = text(&ran.stdout);
    assert!(ran.status.success(), "{played}{}", text(&ran.stderr));
    for line in [
        "90 is not from -9 to 9",
        "The number is 5. Make it 10.",
        "\"number\":5",
        "after 2 steps, with the reward 0.5",
    ] {
        assert!(played.contains(line), "{line}: {played}");
    }
}

#[test]
fn the_sdk_passes_its_own_tests() {
    if !has_javascript() {
        return;
    }
    let sdk = project_root().join("guest-sdk/js");
    // Each file is named, because releases of Node run different files of a directory.
    let entries = std::fs::read_dir(sdk.join("tests")).unwrap();
    let files = entries.map(|entry| entry.unwrap().path());
    let files: Vec<PathBuf> = files.filter(|path| path.to_string_lossy().ends_with(".test.mjs")).collect();
    assert!(!files.is_empty(), "there are no tests in {sdk:?}");
    let ran = Command::new("node").arg("--test").args(files).current_dir(sdk).output();
    let ran = ran.expect("node can be run; npm, which tests/clients/setup runs, comes with it");
    assert!(ran.status.success(), "{}{}", text(&ran.stdout), text(&ran.stderr));
}

#[test]
fn the_examples_and_the_guests_have_the_right_types() {
    if !has_javascript() {
        return;
    }
    let root = project_root().canonicalize().unwrap();
    let dir = tempfile::tempdir().unwrap();
    // Adapters and examples resolve the frameworks from their own place.
    with_frameworks(&root.join("guest-sdk/js"), &dir.path().join("sdk"));
    for kind in ["examples", "tests/guests/js"] {
        for entry in std::fs::read_dir(root.join(kind)).unwrap() {
            let entry = entry.unwrap();
            let source = if kind == "examples" { entry.path().join("js") } else { entry.path() };
            if source.is_dir() {
                with_frameworks(&source, &dir.path().join("projects").join(entry.file_name()));
            }
        }
    }
    let sdk = dir.path().join("sdk/src");
    let config = json!({
        "compilerOptions": {
            "target": "es2024", "lib": ["es2024", "dom", "dom.asynciterable"], "module": "preserve",
            "moduleResolution": "bundler", "allowImportingTsExtensions": true, "strict": true, "noEmit": true,
            "types": [], "skipLibCheck": true,
            "paths": {
                "rollout-sdk": [sdk.join("index.d.ts")],
                "rollout-sdk/*": [sdk.join("*.d.ts")],
            },
        },
        "include": ["projects/*/src"],
    });
    std::fs::write(dir.path().join("tsconfig.json"), config.to_string()).unwrap();

    check_types(&dir.path().join("tsconfig.json"));
}

fn check_types(config: &Path) {
    let ran = Command::new(npm_packages().join(".bin/tsc")).arg("-p").arg(config).output().unwrap();
    assert!(ran.status.success(), "{}{}", text(&ran.stdout), text(&ran.stderr));
}
