//! Packages of npm in JavaScript guests: frameworks with the SDK's adapters, built-in modules of Node, and globals of
//! the web.

use std::path::Path;
use std::process::Command;

use rollout_tests::{
    environments, framework_packages, has_javascript, host_program, javascript_guest, javascript_host,
    project_root, rollout_host,
};
use serde_json::{Value, json};

/// Runs a component on these rows with the mock model, and returns each row's result and the text of its last message.
fn evaluate(component: &Path, rows: &str) -> Vec<(Value, String)> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("rows.jsonl"), rows).unwrap();
    let ran = rollout_host(["eval"])
        .into_std()
        .arg(component)
        .args(["--data", "rows.jsonl", "--out", "out", "--model", "mock"])
        .current_dir(dir.path())
        .output()
        .unwrap();
    let results = std::fs::read_to_string(dir.path().join("out/results.jsonl"));
    let results = results.unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&ran.stderr)));
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
    results.iter().map(|result| (result.clone(), last(result))).collect()
}

/// Runs an example with a framework's real package on its first four rows. Each row has to be solved by two calls of the
/// model, the first of which calls the calculator.
fn example_is_solved(example: &str) {
    if !has_javascript() {
        return;
    }
    let path = project_root().join(format!("examples/{example}/rows.jsonl"));
    let rows = std::fs::read_to_string(path).unwrap();
    let rows: Vec<&str> = rows.lines().take(4).collect();
    let results = evaluate(&javascript_guest(&format!("examples/{example}/js")), &rows.join("\n"));

    assert_eq!(results.len(), rows.len());
    for (result, last) in results {
        assert_eq!(result["reward"], 1.0, "{example}: {result:#}");
        assert_eq!(result["chat_calls"], 2, "{example}: {result:#}");
        assert!(last.contains("####"), "{example}: {last}");
    }
}

#[test]
fn the_vercel_ai_sdk_earns_its_reward() {
    example_is_solved("ai-sdk");
}

#[test]
fn the_client_openai_earns_its_reward() {
    example_is_solved("openai-client");
}

#[test]
fn openai_agents_earn_their_reward() {
    example_is_solved("openai-agents");
}

#[test]
fn a_graph_of_langgraph_earns_its_reward() {
    example_is_solved("langgraph");
}

#[test]
fn an_mcp_server_in_memory_earns_its_reward() {
    example_is_solved("mcp");
}

#[test]
fn built_in_modules_and_globals_return_the_same_as_in_node() {
    if !has_javascript() {
        return;
    }
    let groups = ["url", "fetch", "streams", "context", "buffer", "crypto", "modules"];
    let guest = "tests/guests/js/builtins";
    let rows: Vec<String> = groups.iter().map(|group| json!({"user_prompt": group}).to_string()).collect();

    let results = evaluate(&javascript_guest(guest), &rows.join("\n"));

    for (group, (result, last)) in groups.iter().zip(results) {
        assert_eq!(result["outcome"], "scored", "{group}: {result:#}");
        let node = Command::new("node")
            .arg(project_root().join(guest).join("src/node.js"))
            .arg(group)
            .output()
            .expect("node can be run; npm, which tests/clients/setup runs, comes with it");
        assert!(node.status.success(), "{group}: {}", String::from_utf8_lossy(&node.stderr));
        let in_node: Value = serde_json::from_slice(&node.stdout).unwrap();
        let in_component: Value = serde_json::from_str(&last).unwrap();
        let (found, expected) = (in_component.as_array().unwrap(), in_node.as_array().unwrap());
        assert_eq!(found.len(), expected.len(), "{group}");
        for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
            assert_eq!(found, expected, "{group} {index}");
        }
    }
}

#[test]
fn a_module_that_a_component_cannot_have_fails_when_it_is_used() {
    if !has_javascript() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("package.json", r#"{"dependencies": {"old": "1.0.0"}}"#);
    write("node_modules/old/package.json", r#"{"main": "index.js"}"#);
    write(
        "node_modules/old/index.js",
        "const fs = require('fs'), net = require('net'), { Readable } = require('stream'), zlib = require('node:zlib');
class Source extends Readable {}
exports.uses = {
  harmless: () => fs.existsSync('/etc/passwd') ? 'found' : 'no file',
  socket: () => net.connect(80, 'example.com'),
  stream: () => new Source(),
  file: () => fs.readFileSync('/etc/passwd'),
  nested: () => zlib.brotli.compress('x'),
  exit: () => process.exit(1),
  encoding: () => new TextDecoder('shift_jis'),
};
",
    );
    write(
        "src/index.ts",
        "import { defineGrader, defineWorkflow } from 'rollout-sdk';
import { uses } from 'old';
export const workflow = defineWorkflow((ctx) => [...ctx.prompt, { role: 'assistant', content: uses[String(ctx.prompt.at(-1)!.content)]() }]);
export const grader = defineGrader(() => 1);
",
    );
    let made = dir.path().join("made.wasm");
    let ran = javascript_host("build").arg(dir.path()).arg("-o").arg(&made).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let cases = [
        ("socket", "node:net.connect is not in a component: there is no network; the host calls the model"),
        (
            "stream",
            "node:stream.Readable is not in a component: there are no streams of Node; use ReadableStream",
        ),
        (
            "file",
            "no such file or directory, readFile '/etc/passwd': a component has no files; import data as a module",
        ),
        ("nested", "node:zlib.brotli.compress is not in a component: there is no compression"),
        ("exit", "process.exit is not in a component: throw Failed"),
        ("encoding", "the encoding 'shift_jis' is not in a component, which has utf-8"),
    ];
    let names = ["harmless"].into_iter().chain(cases.iter().map(|(name, _)| *name));
    let rows: Vec<String> = names.map(|name| json!({"user_prompt": name}).to_string()).collect();

    let results = evaluate(&made, &rows.join("\n"));

    assert_eq!(results[0].1, "no file");
    for ((name, expected), (result, _)) in cases.iter().zip(&results[1..]) {
        let reason = result["reason"].as_str().unwrap_or_else(|| panic!("{name}: {result:#}"));
        assert!(reason.contains(expected), "{name}: {reason}");
    }
}

#[cfg(unix)]
#[test]
fn a_typescript_plugin_is_tested_with_vitest() {
    use std::os::unix::fs::symlink;

    if !has_javascript() {
        return;
    }
    let root = project_root().canonicalize().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let modules = dir.path().join("node_modules");
    std::fs::create_dir_all(dir.path().join("src")).unwrap();
    std::fs::create_dir(&modules).unwrap();
    for entry in std::fs::read_dir(framework_packages()).unwrap() {
        let entry = entry.unwrap();
        symlink(entry.path(), modules.join(entry.file_name())).unwrap();
    }
    symlink(root.join("guest-sdk/js"), modules.join("rollout-sdk")).unwrap();
    for file in ["index.ts", "expression.ts"] {
        let from = root.join("examples/calculator/js/src").join(file);
        std::fs::copy(from, dir.path().join("src").join(file)).unwrap();
    }
    std::fs::write(dir.path().join("package.json"), r#"{"type": "module"}"#).unwrap();
    std::fs::write(
        dir.path().join("src/index.test.ts"),
        "import { runRollout } from 'rollout-sdk/testing';
import { expect, test } from 'vitest';
import * as plugin from './index.ts';

test('the calculator is used', async () => {
  const result = await runRollout(plugin, {
    prompt: 'What is 2 * (3 + 4)?',
    label: '14',
    replies: [{ toolCalls: [{ name: 'calculator', arguments: { expression: '2 * (3 + 4)' } }] }, '#### 14'],
  });
  expect(result.reward).toBe(1);
  expect(result.samples[0].messages[3].content).toBe('14');
  expect(new TextDecoder().decode(result.artifacts['calculations.txt'])).toBe('2 * (3 + 4) = 14\\n');
});
",
    )
    .unwrap();

    let ran = Command::new(framework_packages().join(".bin/vitest"))
        .args(["run", "--root"])
        .arg(dir.path())
        .current_dir(dir.path())
        .env("CI", "1")
        .output()
        .unwrap();

    let output = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{output}{}", String::from_utf8_lossy(&ran.stderr));
    assert!(output.contains("1 passed"), "{output}");
}

#[test]
fn the_page_of_packages_says_what_they_do() {
    if !has_javascript() {
        return;
    }
    let setup = environments();
    if !setup.join("npm-packages/node_modules").is_dir() {
        eprintln!(
            "NOT TESTED: npm packages, which tests/clients/setup installs with ROLLOUT_TEST_NPM_PACKAGES=1"
        );
        return;
    }
    let ran = Command::new(project_root().join("scripts/npm-packages"))
        .arg(setup)
        .arg("--check")
        .env("ROLLOUT_HOST_BIN", host_program())
        .output()
        .unwrap();

    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}

#[test]
fn the_page_of_packages_has_the_releases_of_the_lock_file() {
    let root = project_root();
    let json = |path: &str| -> Value {
        serde_json::from_slice(&std::fs::read(root.join(path)).unwrap()).unwrap_or_default()
    };
    let page = std::fs::read_to_string(root.join("docs/write/javascript-packages.md")).unwrap();
    let locked = json("tests/clients/npm-packages/package-lock.json");
    let manifest = json("tests/clients/npm-packages/package.json");
    let packages = manifest["dependencies"].as_object().unwrap();

    assert!(packages.len() > 40, "{}", packages.len());
    for (name, release) in packages.iter().filter(|(name, _)| *name != "ajv-formats") {
        let release = release.as_str().unwrap();
        assert_eq!(locked["packages"][format!("node_modules/{name}")]["version"], release, "{name}");
        assert!(page.contains(&format!("\n| {name} | {release} | ")), "{name} is not on the page");
    }
}
