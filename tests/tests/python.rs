//! Workflows and graders in Python: how they are built, what they are told where they
//! are wrong, and that what they wait for goes on side by side.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rollout_tests::{
    Answer, Controller, InitRequest, Ran, RolloutRequest, Start, TestHost, check_completed, project_root,
    python_guest, python_program, rollout_host,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

const PARITY: &str = "tests/guests/python/parity";

/// How long a command may take. One of them builds a component.
const COMMAND: Duration = Duration::from_secs(300);

fn temporary() -> TempDir {
    tempfile::tempdir().expect("a temporary directory can be made")
}

/// A project with this entry module and these lines of `pyproject.toml`.
fn project(entry: &str, more: &str) -> TempDir {
    let dir = temporary();
    write(dir.path(), "pyproject.toml", &format!("[project]\nname = \"made-up\"\n{more}"));
    write(dir.path(), "made_up.py", entry);
    dir
}

fn write(dir: &Path, name: &str, text: &str) {
    std::fs::write(dir.join(name), text).expect("it can be written");
}

async fn build(dir: &Path) -> Ran {
    build_with(dir, "made.wasm", &[]).await
}

async fn build_with(dir: &Path, made: &str, options: &[&str]) -> Ran {
    let mut command = rollout_host(["build"]);
    command.arg(dir).arg("-o").arg(dir.join(made)).args(options);
    command.arg("--componentize-py").arg(python_program("componentize-py"));
    command.start().ended_within(COMMAND).await
}

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
async fn a_project_file_that_is_wrong_is_told_where() {
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
async fn without_the_tool_one_command_is_said_that_installs_it() {
    let dir = project("", "");
    let mut command = rollout_host(["build"]);
    command.arg(dir.path()).env_remove("VIRTUAL_ENV").env_remove("COMPONENTIZE_PY").env("PATH", dir.path());

    let ran = command.start().ended().await;

    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("run: python3 -m pip install componentize-py=="), "{}", ran.stderr);
}

/// A wheel of one module, with native code beside it or not.
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
        // Half of its rows are word problems, which the stand-in for a model cannot solve.
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

/// What the interpreter, its libraries and the host's functions do together, when they are
/// one module and when they are many.
#[tokio::test]
async fn a_component_of_one_module_does_what_it_does_in_many() {
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
    for (what, said) in
        [("answers", "12 passed"), ("raises", "ValueError: as it was written"), ("traps", "unreachable")]
    {
        let validate = async |made: &str| {
            let mut command = rollout_host(["validate"]);
            command.arg(dir.path().join(made)).args(["--set", &format!("what={what}")]);
            let ran = command.start().ended_within(COMMAND).await;
            // The file and its size are on lines of their own.
            let lines = ran.stdout.lines().filter(|line| !line.contains(".wasm") && !line.contains(" KiB"));
            (ran.code, lines.map(str::to_owned).collect::<Vec<_>>(), ran.stderr)
        };

        let (code, lines, stderr) = validate("fused.wasm").await;

        assert!(lines.join("\n").contains(said), "{what}: {lines:#?}");
        assert_eq!((code, lines, stderr), validate("apart.wasm").await, "{what}");
    }
}

const UNCHANGED: &str = "guest-sdk/python/tests/unchanged";

/// What a model's server answers to have a tool called.
fn calls(name: &str, arguments: &Value) -> Answer {
    let function = json!({"name": name, "arguments": arguments.to_string()});
    let call = json!({"id": format!("call-{name}"), "type": "function", "function": function});
    let message = json!({"role": "assistant", "content": null, "tool_calls": [call]});
    let choice = json!({"message": message, "finish_reason": "tool_calls"});
    let usage = json!({"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7});
    Answer::Status(200, json!({"choices": [choice], "usage": usage}))
}

/// The published packages' names, their distributions among the dependencies, and not a line of the
/// programs changed: one of each shape.
#[tokio::test]
async fn programs_for_the_published_packages_are_built_and_rewarded_as_they_are() {
    let double = || calls("double", &json!({"number": 2}));
    for (program, answers) in [
        ("strands_tool", vec![double(), Answer::Say("It is #### 4")]),
        ("strands_sync", vec![double(), Answer::Say("It is #### 4")]),
        (
            "strands_structured",
            vec![
                calls("double", &json!({"number": 200})),
                double(),
                Answer::Say("It is 4."),
                calls("Answer", &json!({"value": 4})),
            ],
        ),
        ("openai_session", vec![double(), Answer::Say("It is #### 4")]),
        (
            "openai_handoff",
            vec![
                calls("transfer_to_sums", &json!({"reason": "a sum"})),
                double(),
                Answer::Say("{\"value\": 4}"),
            ],
        ),
        ("config_tools", vec![double(), Answer::Say("It is #### 4")]),
        ("loop_schemas", vec![double(), Answer::Say("It is #### 4")]),
    ] {
        let asked = answers.len();
        let controller = Controller::start().await;
        let host = TestHost::of_component(python_guest(&format!("{UNCHANGED}/{program}"))).start().await;
        controller.answer_chats(answers);
        let request =
            controller.rollout("Double 2.").label("4").with("metadata", json!({"ground_truth": "4"}));

        let result = host.run(&request).await;

        assert_eq!(result["status"], "success", "{program}: {result:#}");
        assert_eq!(result["sample"]["reward"], 1.0, "{program}: {result:#}");
        assert_eq!(controller.chats().len(), asked, "{program}");
    }
}

#[tokio::test]
async fn a_reward_function_of_the_published_package_grades_another_program() {
    let (agent, reward) = ("examples/one-turn/python", format!("{UNCHANGED}/reward_function"));
    for (said, earned) in [("so #### 4", 1.0), ("so #### 5", 0.0)] {
        let controller = Controller::start().await;
        let serve = TestHost::of_component(python_guest(agent));
        let host = serve.option("--grader", python_guest(&reward).display()).start().await;
        controller.answer_chats([Answer::Say(said)]);

        let result = host.run(&controller.rollout("Double 2.").label("4")).await;

        assert_eq!(result["sample"]["reward"], earned, "{result:#}");
    }
}

#[tokio::test]
async fn a_backend_of_the_published_package_has_its_sample_its_files_and_the_operators_judge() {
    let (controller, judge) = (Controller::start().await, Controller::start().await);
    let config = format!("[judge]\nmodel = 'j'\nurl = '{}'\n", judge.model_url());
    let serve = TestHost::of_component(python_guest(&format!("{UNCHANGED}/served_backend"))).config(&config);
    let host = serve.start().await;
    judge.answer_chats([Answer::Say("```json\n{\"score\": 7.5, \"explanation\": \"right\"}\n```")]);

    let result = host.run(&controller.rollout("Recite.").label("4")).await;

    assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
    assert_eq!(result["sample"]["messages"][1]["content"], "#### 4", "{result:#}");
    assert_eq!(result["sample"]["metrics"]["length"], 2.0, "{result:#}");
    let asked = judge.chats().remove(0).body;
    assert_eq!(asked["model"], "j", "{asked:#}");
    assert!(asked["messages"][1]["content"].as_str().unwrap().contains("Is it right?"), "{asked:#}");
}

const SAYS: &str = r#"
import logging
import warnings

from rollout_sdk import *

warnings.warn("old at import", UserWarning)


class Config(AgentWorkflowConfig):
    depth: int = 3
    """How deep to look.

    Deeper is slower."""
    name_of_tool: str = "find"


def inner(value):
    return {}["missing"]


class Says(AgentWorkflow[Config]):
    async def run(self, ctx):
        print("printed")
        logging.getLogger("mine").warning("logged %s", 1)
        warnings.warn("old in a rollout", RuntimeWarning)
        await ctx.agent().run()
        try:
            inner(1)
        except KeyError as error:
            raise RuntimeError("outer") from error
"#;

#[tokio::test]
async fn what_a_program_says_is_shown_as_cpython_shows_it() {
    let dir = project(SAYS, "version = \"1\"\n");

    let built = build(dir.path()).await;

    assert_eq!(built.code, Some(0), "{}", built.stderr);
    let place = dir.path().canonicalize().unwrap().join("made_up.py");
    let warning = format!("{}:7: UserWarning: old at import\n  warnings.warn(", place.display());
    assert!(built.stderr.contains(&warning), "{}", built.stderr);

    let mut config = rollout_host(["config", "made.wasm"]);
    let shown = config.current_dir(dir.path()).start().ended_within(COMMAND).await;
    let docs = "depth          integer  3\n      How deep to look.\n      \n      Deeper is slower.\n";
    let table: Vec<String> =
        shown.stdout.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let expected: Vec<String> =
        docs.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert!(table.windows(expected.len()).any(|lines| lines == expected), "{}", shown.stdout);

    write(dir.path(), "rows.jsonl", "{\"user_prompt\": \"2 + 3?\", \"ground_truth\": \"5\"}\n");
    let mut test =
        rollout_host(["test", "made.wasm", "--data", "rows.jsonl", "--model", "mock", "--out", "out"]);
    let ran = test.current_dir(dir.path()).start().ended_within(COMMAND).await;
    assert_eq!(ran.code, Some(1), "{}{}", ran.stdout, ran.stderr);
    let log = std::fs::read_to_string(dir.path().join("out/row-00000-run-0/log.jsonl")).unwrap();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let lines: Vec<String> = lines
        .iter()
        .map(|line| format!("{}: {}", line["level"].as_str().unwrap(), line["text"].as_str().unwrap()))
        .collect();
    assert_eq!(
        lines,
        [
            "info: printed",
            "warn: logged 1",
            "warn: made_up.py:26: RuntimeWarning: old in a rollout",
            "warn:   warnings.warn(\"old in a rollout\", RuntimeWarning)",
            "error: Traceback (most recent call last):",
            "error:   File \"made_up.py\", line 29, in run",
            "error:     inner(1)",
            "error:   File \"made_up.py\", line 19, in inner",
            "error:     return {}[\"missing\"]",
            "error: KeyError: 'missing'",
            "error: The above exception was the direct cause of the following exception:",
            "error: Traceback (most recent call last):",
            "error:   File \"made_up.py\", line 31, in run",
            "error:     raise RuntimeError(\"outer\") from error",
            "error: RuntimeError: outer",
        ]
    );
}

/// A host of the guest that does what its prompt asks for.
async fn host() -> TestHost {
    TestHost::of_component(python_guest(PARITY)).start().await
}

/// A rollout that does what this says, with a label, without which none is graded.
fn asking(controller: &Controller, what: &str) -> RolloutRequest {
    controller.rollout(what).label("0")
}

/// Text of the last message that a rollout gave back.
fn last_text(result: &Value) -> String {
    let messages = result["sample"]["messages"].as_array().unwrap_or_else(|| panic!("{result:#}"));
    messages.last().and_then(|message| message["content"].as_str()).unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_failure_is_told_with_file_and_line_of_the_authors_code() {
    let controller = Controller::start().await;
    let host = host().await;
    for (what, named) in [
        ("divide", vec!["ZeroDivisionError: ", "(only_python.py:", ", in divide)"]),
        ("recurse", vec!["RecursionError: ", "only_python.py:", "in deep"]),
        ("exit", vec!["called sys.exit(3)", "only_python.py:"]),
        ("import", vec!["ModuleNotFoundError: ", "neither in the project", "only_python.py:"]),
        ("deadlock", vec!["waits for another thread", "only_python.py:"]),
        ("wait for nothing", vec!["nothing will bring about", "only_python.py:"]),
        ("group", vec!["told to refuse"]),
        ("object", vec!["message 0 is not JSON", "object is not JSON serializable"]),
        ("be left alone", vec!["nobody knows how to be left alone"]),
    ] {
        let request = asking(&controller, &format!("python: {what}"));

        let result = host.run(&request).await;

        assert_eq!(result["status"], "failure", "{what}: {result:#}");
        let told = result.to_string();
        for text in named {
            assert!(told.contains(text), "{what}: {result:#}");
        }
        assert!(!told.contains("/0/") && !told.contains("/tmp"), "{what}: {result:#}");
    }
    let request = asking(&controller, "python: divide");
    host.run(&request).await;
    let log = std::fs::read_to_string(host.kept().join(request.rollout_id()).join("log.jsonl")).unwrap();
    assert!(log.contains("Traceback (most recent call last):"), "{log}");
    assert!(log.contains(r#"File \"only_python.py\", line"#), "{log}");
    assert!(log.contains("return a / b"), "{log}");
    assert!(!log.contains("rollout_sdk/"), "{log}");
}

#[tokio::test]
async fn an_exception_is_filed_under_the_protocols_word_for_it() {
    let controller = Controller::start().await;
    let host = host().await;
    for (what, category) in [
        ("divide", "agent_error"),
        ("value", "validation_error"),
        ("type", "validation_error"),
        ("be left alone", "validation_error"),
        ("own timeout", "timeout"),
    ] {
        let result = host.run(&asking(&controller, &format!("python: {what}"))).await;

        assert_eq!(result["err_category"], category, "{what}: {result:#}");
    }
}

#[tokio::test]
async fn what_is_written_to_a_samples_metrics_is_recorded() {
    let controller = Controller::start().await;

    let result = host().await.run(&asking(&controller, "python: metrics")).await;

    assert_eq!(result["sample"]["metrics"]["height"], 1.5, "{result:#}");
    assert_eq!(result["sample"]["metrics"]["depth"], 2.0, "{result:#}");
}

#[tokio::test]
async fn what_was_not_imported_while_building_is_imported_late() {
    let controller = Controller::start().await;

    let result = host().await.run(&asking(&controller, "python: late")).await;

    let expected = r"[0.5, 'scheduler', 42, True, 'one\ntwo', ['inner'], b'\x80', b'\x82\xa0', 6]";
    assert_eq!(last_text(&result), expected, "{result:#}");
}

/// What would otherwise be wrong without anybody noticing.
#[tokio::test]
async fn what_libraries_probe_for_is_true_or_raises() {
    let controller = Controller::start().await;
    let host = host().await;
    let look = "[True, True, True, True, False, ['table.txt'], ['table.txt'], 1, (True, False), \
                'run_docstring_examples', True]";
    let processes = "[[[1, 2], 2.0, [3], [4.0], False, 5], ['NoProcesses', 'NoProcesses', 'NoProcesses', 'OSError', \
                     'ProcessLookupError', '[Errno 58] asyncio.create_subprocess_exec']]";
    let elsewhere = "['Error', 'C', 'None', 'NotImplementedError', 'OSError', True, True, True, None, 'OSError', '', \
         (True, '/nonexistent')]";
    for (what, expected) in [("look", look), ("processes", processes), ("elsewhere", elsewhere)] {
        let result = host.run(&asking(&controller, &format!("python: {what}"))).await;

        assert_eq!(last_text(&result), expected, "{what}: {result:#}");
    }
}

#[tokio::test]
async fn threads_timers_and_alarms_do_their_work_in_the_one_thread() {
    let controller = Controller::start().await;
    let host = host().await;
    let threads = "['worker', False, True, 'begun', 1, 2, 3, 'ZeroDivisionError', 'NoneType', (1, 3), 4, 5, \
                   False, False, 'empty']";
    for (what, expected) in [
        ("threads", threads),
        ("alarm", "[100, 'alarm', True]"),
        ("timer", "[True, 'came', False, 'joined']"),
    ] {
        let result = host.run(&asking(&controller, &format!("python: {what}"))).await;

        assert_eq!(last_text(&result), expected, "{what}: {result:#}");
    }
}

/// A reply that calls the tool of the example of an agent loop.
fn calls_calculator(expression: &str) -> Answer {
    let arguments = json!({"expression": expression}).to_string();
    let call =
        json!({"id": "c1", "type": "function", "function": {"name": "calculator", "arguments": arguments}});
    Answer::Status(
        200,
        json!({"choices": [{"message": {"role": "assistant", "content": null, "tool_calls": [call]}}]}),
    )
}

/// The messages of that loop, whatever protocol carried them.
fn check_looped(messages: &Value) {
    let messages = messages.as_array().unwrap_or_else(|| panic!("{messages:#}"));
    let roles: Vec<&Value> = messages.iter().map(|message| &message["role"]).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "assistant"]);
    assert_eq!((&messages[2]["content"], &messages[2]["tool_call_id"]), (&json!("5"), &json!("c1")));
    assert_eq!(messages[3]["content"], "It is #### 5");
}

#[tokio::test]
async fn an_agent_loop_is_carried_by_its_own_protocol() {
    let controller = Controller::start().await;
    let host = TestHost::of_component(python_guest("examples/agent-loop/python")).start().await;
    controller.answer_chats([calls_calculator("2 + 3"), Answer::Say("It is #### 5")]);
    let request =
        InitRequest::new(&controller, "Add 2 and 3.").with("metadata", json!({"ground_truth": "5"}));

    let reply = host.post("/v1/rollout/init", &request.body()).await;

    assert_eq!(reply.status, 202, "{}", reply.text);
    let tool = &reply.body["tools"][0]["function"];
    assert_eq!(tool["name"], "calculator");
    assert_eq!(tool["parameters"]["required"], json!(["expression"]));
    assert_eq!(host.stop().await.code, Some(0));
    let [completed] = &controller.callbacks()[..] else { panic!("{:?}", controller.callbacks()) };
    check_completed(completed, request.id());
    let told = (&completed.body["status"], &completed.body["finish_reason"], &completed.body["reward"]);
    assert_eq!(told, (&json!("COMPLETED"), &json!("stop"), &json!(1.0)));
    check_looped(&completed.body["final_messages"]);
    let metrics = &completed.body["metrics"];
    assert_eq!((&metrics["num_llm_calls"], &metrics["num_tool_calls"]), (&json!(2), &json!(1)));
}

#[tokio::test]
async fn an_agent_loop_is_polled_and_called_back_as_a_workflow_is() {
    let host = TestHost::of_component(python_guest("examples/agent-loop/python")).start().await;
    for callbacks in [false, true] {
        let controller = Controller::start().await;
        controller.answer_chats([calls_calculator("10 - 5"), Answer::Say("It is #### 5")]);
        let request = controller.rollout("Work it out.").with("metadata", json!({"ground_truth": "5"}));

        let told = if callbacks {
            let request = request.with_callbacks("key");
            assert_eq!(host.ask(&request).await.status, 202);
            controller.callbacks_arrived(2).await;
            controller.callbacks()[1].body.clone()
        } else {
            host.run(&request).await
        };

        assert_eq!(told["status"], "success", "{told:#}");
        assert_eq!(told["sample"]["reward"], 1.0, "{told:#}");
        if !callbacks {
            check_looped(&told["sample"]["messages"]);
        }
        assert_eq!(controller.chats().len(), 2);
    }
}

/// What is not counted is not written to, and stays shared by all instances.
#[tokio::test]
async fn references_to_what_was_there_at_build_time_are_not_counted() {
    let controller = Controller::start().await;
    let host = host().await;

    let result = host.run(&asking(&controller, "python: count")).await;

    assert_eq!(last_text(&result), "[False, False, False, False, False, True]", "{result:#}");
}

#[tokio::test]
async fn calls_of_one_gather_are_under_way_at_the_same_time() {
    let controller = Controller::start().await;
    let host = host().await;
    controller.hold();

    let admitted = host.admit(&asking(&controller, "parallel")).await;
    controller.chats_open(3).await;
    controller.release();

    let result = host.result(&admitted).await;
    assert_eq!(result["status"], "success", "{result:#}");
    assert_eq!(last_text(&result), "The sum is #### 11\nThe sum is #### 12\nThe sum is #### 13");
}

#[tokio::test]
async fn a_timeout_ends_a_call_and_a_cancelled_task_abandons_its_own() {
    let controller = Controller::start().await;
    let host = host().await;
    controller.hold();

    let result = host.run(&asking(&controller, "python: timeout")).await;

    assert_eq!(last_text(&result), "timed out", "{result:#}");
    assert_eq!(controller.chats().len(), 2);
    controller.chats_open(0).await;
}

#[tokio::test]
async fn sleeping_takes_its_time_and_sleeps_of_one_gather_take_it_once() {
    let controller = Controller::start().await;
    let host = host().await;
    // The first rollout may have to wait for its component's pages.
    host.run(&asking(&controller, "nothing")).await;
    let started = Instant::now();

    let result = host.run(&asking(&controller, "python: sleep")).await;

    assert_eq!(last_text(&result), "slept", "{result:#}");
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(300) && took < Duration::from_millis(1400), "{took:?}");
}

#[tokio::test]
async fn what_has_no_place_in_a_component_is_done_in_the_one_thread_or_cleaned_up() {
    let controller = Controller::start().await;
    let host = host().await;
    for (what, told) in
        [("leave", "left a task behind"), ("thread", "3"), ("surrogate", "half \u{fffd} of a pair")]
    {
        let result = host.run(&asking(&controller, &format!("python: {what}"))).await;

        assert_eq!(last_text(&result), told, "{result:#}");
    }
}

#[tokio::test]
async fn random_numbers_are_the_rollouts_own_and_not_those_of_the_build() {
    let controller = Controller::start().await;
    let host = host().await;
    let draw = async |id: &str| last_text(&host.run(&asking(&controller, "python: random").id(id)).await);
    let (first, second) = (draw("first").await, draw("second").await);
    let again = host_of_another_process(&controller, "first").await;

    assert_ne!(first, second);
    assert_eq!(first, again);
}

async fn host_of_another_process(controller: &Controller, id: &str) -> String {
    last_text(&host().await.run(&asking(controller, "python: random").id(id)).await)
}

#[tokio::test]
async fn a_guest_that_spins_in_python_is_stopped_at_its_deadline() {
    let controller = Controller::start().await;
    let host = host().await;
    controller.hold();

    let result = host.run(&asking(&controller, "unhandled").agent_secs(0.3)).await;

    assert_eq!(result["status"], "failure", "{result:#}");
    assert_eq!(result["err_category"], "timeout", "{result:#}");
    controller.chats_open(0).await;
}

/// The messages that a grader sees, of one turn with one call of a tool.
async fn messages_of(example: &str) -> (Value, Vec<Value>) {
    let controller = Controller::start().await;
    let host = TestHost::of_component(python_guest(&format!("examples/{example}/python"))).start().await;
    let call = json!({"id": "call-1", "type": "function", "function": {"name": "calculator", "arguments": "{\"expression\": \"2 + 3\"}"}});
    let completion = json!({
        "id": "c", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": null, "tool_calls": [call]}, "finish_reason": "tool_calls"}],
    });
    controller.answer_chats([Answer::Status(200, completion), Answer::Say("#### 5")]);

    let result = host.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;

    assert_eq!(result["status"], "success", "{result:#}");
    assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
    let asked = controller.chats().into_iter().map(|chat| chat.body).collect();
    (result["sample"]["messages"].clone(), asked)
}

#[tokio::test]
async fn a_strands_agent_keeps_blocks_and_asks_in_parts() {
    let (messages, asked) = messages_of("strands-agent").await;

    let tool_use = json!({"toolUseId": "call-1", "name": "calculator", "input": {"expression": "2 + 3"}});
    let tool_result = json!({"toolUseId": "call-1", "status": "success", "content": [{"text": "5"}]});
    assert_eq!(
        messages,
        json!([
            {"role": "user", "content": [{"text": "Calculate 2 + 3."}]},
            {"role": "assistant", "content": [{"toolUse": tool_use}]},
            {"role": "user", "content": [{"toolResult": tool_result}]},
            {"role": "assistant", "content": [{"text": "#### 5"}]},
        ])
    );
    let last = &asked[1]["messages"];
    assert_eq!(last[0]["content"], json!([{"type": "text", "text": "Calculate 2 + 3."}]), "{last:#}");
    assert!(last[1].get("content").is_none(), "{last:#}");
    assert_eq!(last[2], json!({"role": "tool", "tool_call_id": "call-1", "content": "5"}), "{last:#}");
    let function = &asked[0]["tools"][0]["function"];
    assert!(function.get("strict").is_none(), "{function:#}");
    assert!(function["parameters"].get("additionalProperties").is_none(), "{function:#}");
    assert_eq!(asked[0]["temperature"], 0.7);
}

#[tokio::test]
async fn an_openai_agents_session_keeps_items_and_asks_in_plain_text() {
    let (messages, asked) = messages_of("openai-agents").await;

    assert_eq!(messages[0], json!({"role": "user", "content": "Calculate 2 + 3."}));
    let call = &messages[1];
    assert_eq!(
        (&call["type"], &call["call_id"], &call["name"]),
        (&json!("function_call"), &json!("call-1"), &json!("calculator")),
        "{call:#}"
    );
    assert_eq!(call["arguments"], "{\"expression\": \"2 + 3\"}", "{call:#}");
    assert_eq!(messages[2], json!({"type": "function_call_output", "call_id": "call-1", "output": "5"}));
    assert_eq!(messages[3]["type"], "message", "{messages:#}");
    assert_eq!(messages[3]["content"][0]["text"], "#### 5", "{messages:#}");
    assert_eq!(messages[3]["id"], "__fake_id__", "{messages:#}");
    let last = &asked[1]["messages"];
    assert_eq!(last[0]["role"], "system", "{last:#}");
    assert_eq!(last[1], json!({"role": "user", "content": "Calculate 2 + 3."}), "{last:#}");
    assert!(last[2].get("content").is_none(), "{last:#}");
    let tools = &asked[0]["tools"];
    assert_eq!(tools[0]["function"]["strict"], true, "{tools:#}");
    assert_eq!(tools[0]["function"]["parameters"]["additionalProperties"], false, "{tools:#}");
    assert_eq!(tools[1]["function"]["name"], "transfer_to_words", "{tools:#}");
}

/// Bindings as the SDK is checked against.
async fn bindings(dir: &Path) -> PathBuf {
    let world = dir.join("world");
    std::fs::create_dir_all(world.join("deps/plugin")).unwrap();
    std::fs::copy(project_root().join("wit/plugin.wit"), world.join("deps/plugin/plugin.wit")).unwrap();
    let worlds = ["workflow-plugin", "agent-loop-plugin", "grader-plugin", "with-settings"];
    let included: String =
        worlds.iter().map(|world| format!("include rollout:plugin/{world}@0.1.0;\n")).collect();
    write(
        &world,
        "component.wit",
        &format!("package rollout:component;\nworld component {{\n{included}}}\n"),
    );
    let stubs = dir.join("bindings");
    let made = Command::new(python_program("componentize-py"))
        .arg("-d")
        .arg(&world)
        .args(["-w", "component", "--world-module", "_rollout_wit", "bindings"])
        .arg(&stubs)
        .output()
        .await
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    stubs
}

#[tokio::test]
async fn the_sdk_and_its_examples_pass_a_strict_type_checker() {
    let dir = temporary();
    let path = format!(
        "{}:{}",
        bindings(dir.path()).await.display(),
        project_root().join("guest-sdk/python/src").display()
    );
    for (place, what) in [
        ("guest-sdk/python", vec!["src/rollout_sdk"]),
        ("examples/one-turn/python", vec!["one_turn.py"]),
        ("examples/calculator/python", vec!["calculator.py", "expression.py"]),
        ("examples/parallel/python", vec!["parallel.py"]),
        ("examples/strands-agent/python", vec!["strands_agent.py"]),
        ("examples/openai-agents/python", vec!["arithmetic.py"]),
        ("examples/agent-loop/python", vec!["agent_loop.py"]),
        (PARITY, vec!["parity.py", "only_python.py"]),
    ] {
        let checked = Command::new(python_program("mypy"))
            .args(["--strict", "--cache-dir"])
            .arg(dir.path().join("cache"))
            .args(&what)
            .env("MYPYPATH", &path)
            .current_dir(project_root().join(place))
            .output()
            .await
            .unwrap();

        assert!(checked.status.success(), "{place}:\n{}", String::from_utf8_lossy(&checked.stdout));
    }
}

#[tokio::test]
async fn the_sdk_passes_the_other_strict_type_checker_too() {
    let dir = temporary();
    let place = dir.path().join("checked");
    std::fs::create_dir(&place).unwrap();
    // It takes no path to what it checks that is not within.
    std::os::unix::fs::symlink(project_root().join("guest-sdk/python/src"), place.join("src")).unwrap();
    let config = json!({
        "include": ["src/rollout_sdk"],
        // Generated, and checked by nobody.
        "extraPaths": [bindings(dir.path()).await, "src"],
        "typeCheckingMode": "strict",
        "pythonVersion": "3.14",
    });
    write(&place, "pyrightconfig.json", &config.to_string());

    let checked = Command::new(python_program("pyright")).arg("-p").arg(&place).arg("--outputjson").output();
    let checked = checked.await.unwrap();

    let said: Value = serde_json::from_slice(&checked.stdout).expect("it writes JSON");
    let found = said["generalDiagnostics"].as_array().expect("a list");
    assert!(found.is_empty(), "{found:#?}");
    assert!(said["summary"]["filesAnalyzed"].as_u64() > Some(30), "{said:#}");
}

#[tokio::test]
async fn the_sdk_passes_its_own_tests() {
    let ran = Command::new(python_program("python"))
        .args(["-B", "-W", "error", "-m", "unittest", "discover", "-s", "tests"])
        .env("PYTHONPATH", "src")
        .current_dir(project_root().join("guest-sdk/python"))
        .output()
        .await
        .unwrap();

    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    assert!(!said.contains("Ran 0 tests"), "{said}");
}
