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

/// A module that a wheel is made of.
const TWICE: &str = "def twice(n):\\n    return 2 * n\\n";

/// Creates a wheel of one module, with or without native code.
async fn wheel(dir: &Path, name: &str, native: bool) -> PathBuf {
    wheel_of(dir, name, TWICE, native).await
}

/// A wheel of a module with this text, which is in a literal of Python.
async fn wheel_of(dir: &Path, name: &str, module: &str, native: bool) -> PathBuf {
    let script = format!(
        r#"
import sys, zipfile
path = sys.argv[1] + "/{name}-1.0-py3-none-any.whl"
info = "{name}-1.0.dist-info/"
files = {{
    "{name}/__init__.py": "{module}",
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

/// A package that depends on what the project did before it was imported, and reads a table.
const ORDERED: &str = "import os\\nMODE = os.environ.get('ORDERED_MODE')\\ntry:\\n    import of_the_author\\n\
                       except ImportError:\\n    of_the_author = None\\ndef check():\\n    return 'function'\\n\
                       def table():\\n    with open(os.path.dirname(__file__) + '/table.txt') as file:\\n        \
                       return len(file.read())\\n";

#[tokio::test]
async fn dependencies_find_their_files_and_what_the_project_did_before_while_its_modules_are_imported() {
    let dir = temporary();
    let wheel = wheel_of(dir.path(), "ordered", ORDERED, false).await;
    let add = "import sys, zipfile\nwith zipfile.ZipFile(sys.argv[1], 'a') as wheel:\n    \
               wheel.writestr('ordered/table.txt', 'x' * (2 << 20))\n    \
               wheel.writestr('ordered/check.py', '')\n";
    let added = Command::new(python_program("python")).args(["-c", add]).arg(&wheel).status().await.unwrap();
    assert!(added.success());
    let entry = r#"
import logging
import os
import sys

os.environ["ORDERED_MODE"] = "set"

import ordered
from ordered import check
import of_the_author

from rollout_sdk import *

assert ordered.MODE == "set" and ordered.of_the_author is of_the_author and check() == "function"
assert ordered.table() == 2 << 20 and "table.txt" in os.listdir(os.path.dirname(ordered.__file__))
HERE = os.path.dirname(__file__)
sys.stderr.buffer.write(b"bytes, ")
sys.stdout.writelines(["lines\n"])
logging.StreamHandler(sys.__stderr__).emit(logging.makeLogRecord({"msg": "logged"}))


class Reading(AgentWorkflow):
    async def run(self, ctx):
        ctx.sample.push(message.assistant(str(sorted(os.listdir(HERE + "/inner")))))
        print("and later")


class Files(Grader):
    async def grade(self, ctx):
        table = os.path.join(os.path.dirname(ordered.__file__), "table.txt")
        return float(os.path.isfile(HERE + "/data/tasks.json") and not os.path.exists(table))
"#;
    let dependencies = format!("dependencies = [\"ordered @ file://{}\"]\n", wheel.display());
    let project = project(entry, &(dependencies + "[tool.rollout-host]\nimports = [\"of_the_author\"]\n"));
    for (place, name, text) in [
        ("", "__init__.py", ""),
        ("", "of_the_author.py", "X = 1\n"),
        ("data", "tasks.json", "[]"),
        ("inner", "__init__.py", ""),
        ("inner", ".env", "KEY=secret"),
        ("inner", "notes.txt", "packaged"),
    ] {
        let place = project.path().join(place);
        std::fs::create_dir_all(&place).expect("it can be made");
        write(&place, name, text);
    }

    let ran = build(project.path()).await;

    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    for text in ["bytes, ", "lines", "logged"] {
        assert!(ran.stderr.contains(text), "{text}: {}", ran.stderr);
    }
    let controller = Controller::start().await;
    let host = TestHost::of_component(project.path().join("made.wasm")).start().await;
    let result = host.run(&asking(&controller, "anything")).await;
    assert_eq!(result["status"], "success", "{result:#}");
    assert_eq!(last_text(&result), "['__init__.py', 'notes.txt']");
    assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
}

#[tokio::test]
async fn a_slow_import_in_a_function_is_measured_and_the_build_says_how_to_have_it_done_at_the_build() {
    let dir = temporary();
    // A second in a component or more, and well over the third of a second from which on a line is worth it.
    let slow =
        wheel_of(dir.path(), "slow_thing", "TOTAL = sum(n % 7 for n in range(8_000_000))\\n", false).await;
    let quick = wheel(dir.path(), "quick_thing", false).await;
    let dependencies = format!(
        "dependencies = [\"slow-thing @ file://{}\", \"quick-thing @ file://{}\"]\n",
        slow.display(),
        quick.display()
    );
    let entry = r#"
from rollout_sdk import *

class Made(AgentWorkflow):
    async def run(self, ctx):
        await ctx.agent().run()

class Rated(Grader):
    async def grade(self, ctx):
        import quick_thing
        from slow_thing import TOTAL
        return quick_thing.twice(TOTAL) > 0
"#;
    let project = project(entry, &dependencies);

    let offered = build(project.path()).await;

    assert_eq!(offered.code, Some(0), "{}", offered.stderr);
    let seconds = "made_up.py:11 imports `slow_thing` in a function: each rollout that calls it spends some ";
    assert!(offered.stderr.contains(seconds), "{}", offered.stderr);
    let advice = "write in pyproject.toml: [tool.rollout-host] imports = [\"slow_thing\"]";
    assert!(offered.stderr.contains(advice), "{}", offered.stderr);
    assert!(!offered.stderr.contains("`quick_thing`"), "{}", offered.stderr);

    let about = format!(
        "[project]\nname = \"made-up\"\n{dependencies}[tool.rollout-host]\nimports = [\"slow_thing\"]\n"
    );
    write(project.path(), "pyproject.toml", &about);
    let taken = build(project.path()).await;
    assert_eq!(taken.code, Some(0), "{}", taken.stderr);
    assert!(!taken.stderr.contains("`slow_thing`"), "{}", taken.stderr);
}

#[tokio::test]
async fn a_package_that_probes_while_it_is_imported_is_noted_by_the_build_and_counted_in_no_rollout() {
    let dir = temporary();
    let probe =
        "import socket\\ntry:\\n    socket.socket().bind(('127.0.0.1', 0))\\nexcept OSError:\\n    pass\\n";
    let early = wheel_of(dir.path(), "early_thing", probe, false).await;
    let late = wheel_of(dir.path(), "late_thing", probe, false).await;
    let dependencies = format!(
        "dependencies = [\"early-thing @ file://{}\", \"late-thing @ file://{}\"]\n",
        early.display(),
        late.display()
    );
    let entry = r#"
import early_thing
from rollout_sdk import *

class Made(AgentWorkflow):
    async def run(self, ctx):
        await ctx.agent().run()

class Rated(Grader):
    async def grade(self, ctx):
        import late_thing
        try:
            if ctx.label == "probe":
                early_thing.socket.socket()
        except OSError:
            pass
        return 1.0
"#;
    let project = project(entry, &dependencies);
    write(
        project.path(),
        "rows.jsonl",
        "{\"user_prompt\": \"1 + 1\", \"ground_truth\": \"2\"}\n{\"user_prompt\": \"1 + 1\", \"ground_truth\": \"probe\"}\n",
    );

    let built = build(project.path()).await;
    assert_eq!(built.code, Some(0), "{}", built.stderr);
    let noted = "note: early_thing/__init__.py:3 tried to use the network while it was imported";
    assert!(built.stderr.contains(noted), "{}", built.stderr);

    let ran = rollout_host(["eval", "made.wasm", "--data", "rows.jsonl", "--model", "mock", "--out", "out"])
        .current_dir(project.path())
        .start()
        .ended_within(COMMAND)
        .await;
    let results =
        std::fs::read_to_string(project.path().join("out/results.jsonl")).expect("results are written");
    let mut results_by_row: Vec<Value> =
        results.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect();
    results_by_row.sort_by_key(|result| result["row"].as_u64());
    let refused: Vec<&Value> = results_by_row.iter().map(|result| &result["refused_uses"]).collect();
    assert_eq!(refused[0], &Value::Null, "{}{results}", ran.stderr);
    // Of the author's own code, one socket.
    assert_eq!(refused[1]["network"]["count"], 1, "{}{results}", ran.stderr);
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
