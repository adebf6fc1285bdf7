//! Tests of builds of Python projects.

use std::path::PathBuf;

use rollout_tests::project_root;
use tokio::process::Command;

use super::*;

#[tokio::test]
async fn a_project_without_exactly_one_workflow_is_not_built_and_the_classes_are_named() {
    let workflow = |name: &str| format!("class {name}(AgentWorkflow):\n    async def run(self, ctx): ...\n");
    let grader = |name: &str| format!("class {name}(Grader):\n    async def grade(self, ctx): ...\n");
    let imports = "from rollout_sdk import *\n";
    for (entry, named) in [
        (String::new(), vec!["module `made_up` has no workflow", "derives from `AgentWorkflow`"]),
        (workflow("One") + &workflow("Two") + &grader("A"), vec!["has 2 workflows: `One`, `Two`"]),
    ] {
        let dir = project(&format!("{imports}{entry}"), "");

        let ran = build(dir.path()).await;

        assert_eq!(ran.code, Some(1), "{entry}: {}", ran.stderr);
        for text in named {
            assert!(ran.stderr.contains(text), "{entry}: {}", ran.stderr);
        }
        assert!(!dir.path().join("made.wasm").exists());
    }
}

#[tokio::test]
async fn a_project_that_cannot_be_imported_shows_its_own_traceback() {
    let dir = project("import json\n\nimport nosuch\n", "");

    let ran = build(dir.path()).await;

    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("made_up.py\", line 3"), "{}", ran.stderr);
    assert!(ran.stderr.contains("No module named 'nosuch'"), "{}", ran.stderr);
    assert!(!ran.stderr.contains("_build.py"), "{}", ran.stderr);
}

#[tokio::test]
async fn an_error_in_a_project_file_has_its_location() {
    for (more, named) in [
        ("[tool.rollout-host]\nentri = \"x\"\n", "[tool.rollout-host] has no `entri`"),
        ("[tool.rollout-host]\nentry = \"nowhere\"\n", "looked for nowhere.py"),
        ("[tool.rollout-host]\nonly-grader = 1\n", "only-grader is true or false"),
        ("dependencies = \"one\"\n", "[project] dependencies is a list of texts"),
        ("name = \n", "pyproject.toml: "),
    ] {
        let ran = build(project("", more).path()).await;

        assert_eq!(ran.code, Some(1), "{more}: {}", ran.stderr);
        assert!(ran.stderr.contains(named), "{more}: {}", ran.stderr);
    }
}

#[tokio::test]
async fn without_componentize_py_the_command_that_installs_it_is_shown() {
    let dir = project("", "");
    let mut command = rollout_host(["build"]);
    command.arg(dir.path()).env_remove("VIRTUAL_ENV").env_remove("COMPONENTIZE_PY").env("PATH", dir.path());

    let ran = command.start().ended().await;

    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("run: python3 -m pip install componentize-py=="), "{}", ran.stderr);
}

/// Creates a wheel of one module, with or without native code.
async fn wheel(dir: &Path, name: &str, native: bool) -> PathBuf {
    let script = format!(
        r#"
import sys, zipfile
path = sys.argv[1] + "/{name}-1.0-py3-none-any.whl"
info = "{name}-1.0.dist-info/"
files = {{
    "{name}/__init__.py": "def twice(n):\n    return 2 * n\n",
    info + "METADATA": "Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
    info + "WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
}}
if {native}:
    files["{name}/_speedups.so"] = "native"
files[info + "RECORD"] = "".join(f"{{name}},,\n" for name in [*files, info + "RECORD"])
with zipfile.ZipFile(path, "w") as wheel:
    for name, text in files.items():
        wheel.writestr(name, text)
print(path)
"#,
        native = if native { "True" } else { "False" },
    );
    let made = Command::new(python_program("python")).args(["-c", &script]).arg(dir).output().await.unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    PathBuf::from(String::from_utf8(made.stdout).unwrap().trim())
}

#[tokio::test]
async fn a_native_dependency_is_named_with_what_to_do() {
    let dir = temporary();
    let wheel = wheel(dir.path(), "quick_thing", true).await;
    let dependencies = format!("dependencies = [\"quick-thing @ file://{}\"]\n", wheel.display());
    let project = project("from quick_thing import twice\n", &dependencies);

    let ran = build(project.path()).await;

    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    for text in ["quick-thing (quick_thing/_speedups.so)", "without-native", "leave-out"] {
        assert!(ran.stderr.contains(text), "{}", ran.stderr);
    }
}

#[tokio::test]
async fn every_example_in_python_is_built_and_earns_its_rewards() {
    for (example, mean) in [
        ("one-turn", 1.0),
        ("calculator", 1.0),
        ("parallel", 1.0),
        ("strands-agent", 1.0),
        ("openai-agents", 1.0),
        ("agent-loop", 1.0),
        // Half of its rows are word problems, which the mock model cannot solve.
        ("math-verify", 0.5),
    ] {
        let dir = temporary();
        let example_dir = project_root().join("examples").join(example);
        let component = python_guest(&format!("examples/{example}/python"));

        let ran = rollout_host(["eval"])
            .arg(component)
            .arg("--data")
            .arg(example_dir.join("rows.jsonl"))
            .args(["--model", "mock", "--out"])
            .arg(dir.path().join("out"))
            .start()
            .ended_within(COMMAND)
            .await;

        assert_eq!(ran.code, Some(0), "{example}: {}\n{}", ran.stdout, ran.stderr);
        let summary: Value =
            serde_json::from_slice(&std::fs::read(dir.path().join("out/summary.json")).unwrap()).unwrap();
        assert_eq!(summary["scored"], summary["rollouts"], "{example}: {summary:#}");
        assert_eq!(summary["reward"]["mean"], mean, "{example}: {summary:#}");
    }
}

/// Tests the interplay of the interpreter, its libraries and the host's functions, as one core module and as many.
#[tokio::test]
async fn a_component_fused_into_one_module_behaves_the_same() {
    let dir = project(
        r#"
import os
from rollout_sdk import *

class Config(AgentWorkflowConfig):
    what: str = "answers"

class Made(AgentWorkflow[Config]):
    async def run(self, ctx):
        @tool
        def twice(number: int) -> int:
            """Twice a number."""
            return 2 * number

        match ctx.config.what:
            case "answers":
                await ctx.agent("Calculate.", tools=[twice]).run()
            case "raises":
                raise ValueError("as it was written")
            case "traps":
                os.abort()

class Rated(Grader):
    async def grade(self, ctx):
        return 0.5
"#,
        "",
    );
    let fused = build_with(dir.path(), "fused.wasm", &[]).await;
    let apart = build_with(dir.path(), "apart.wasm", &["--no-fuse"]).await;

    assert_eq!((fused.code, apart.code), (Some(0), Some(0)), "{}\n{}", fused.stderr, apart.stderr);
    assert!(fused.stderr.contains("core modules into one"), "{}", fused.stderr);
    assert!(!apart.stderr.contains("fuse"), "{}", apart.stderr);
    for (what, expected) in
        [("answers", "12 passed"), ("raises", "ValueError: as it was written"), ("traps", "unreachable")]
    {
        let validate = async |made: &str| {
            let mut command = rollout_host(["validate"]);
            command.arg(dir.path().join(made)).args(["--set", &format!("what={what}")]);
            let ran = command.start().ended_within(COMMAND).await;
            // The file and its size have separate lines.
            let lines = ran.stdout.lines().filter(|line| !line.contains(".wasm") && !line.contains(" KiB"));
            (ran.code, lines.map(str::to_owned).collect::<Vec<_>>(), ran.stderr)
        };

        let (code, lines, stderr) = validate("fused.wasm").await;

        assert!(lines.join("\n").contains(expected), "{what}: {lines:#?}");
        assert_eq!((code, lines, stderr), validate("apart.wasm").await, "{what}");
    }
}
