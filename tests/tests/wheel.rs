//! Tests that the wheel, installed without a compiler and an index, works as described in the README.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use rollout_tests::{Controller, TestHost, project_root, python_program, target_dir};
use serde_json::Value;
use tokio::process::Command;
use tokio::sync::Mutex;

/// The timeout of a command. One of them builds a component.
const COMMAND: Duration = Duration::from_secs(300);

async fn run(command: &mut Command) -> Output {
    let running = command.kill_on_drop(true).output();
    let ran = tokio::time::timeout(COMMAND, running).await.expect("the command ends").expect("it can be run");
    let (stdout, stderr) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{command:?}:\n{stdout}\n{stderr}");
    ran
}

/// Returns a directory of wheels that the tests' setup built.
fn wheels(name: &str) -> PathBuf {
    let venvs = std::env::var_os("ROLLOUT_VENVS").map_or_else(|| target_dir().join("venvs"), PathBuf::from);
    let dir = venvs.join(name);
    assert!(dir.is_dir(), "there is no {dir:?}; run: tests/clients/setup {}", venvs.display());
    dir
}

/// Returns the supported Pythons on this machine, the tests' own first.
async fn pythons() -> Vec<PathBuf> {
    let mut found = vec![python_program("python")];
    for minor in 10..=14 {
        let name = format!("python3.{minor}");
        let of_pyenv = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".pyenv/versions"));
        let versions = of_pyenv.and_then(|dir| std::fs::read_dir(dir).ok()).into_iter().flatten().flatten();
        let pyenv = versions.map(|version| version.path().join("bin").join(&name));
        let path = std::env::var_os("PATH").unwrap_or_default();
        let on_path: Vec<PathBuf> = std::env::split_paths(&path).map(|dir| dir.join(&name)).collect();
        for python in on_path.into_iter().chain(pyenv).filter(|python| python.is_file()) {
            let check = format!("import sys, venv; sys.exit(sys.version_info[:2] != (3, {minor}))");
            if Command::new(&python).args(["-c", &check]).output().await.is_ok_and(|ran| ran.status.success())
            {
                found.push(python);
                break;
            }
        }
    }
    found
}

/// Builds the wheel from the tests' build: cargo has nothing to compile.
async fn make_wheel(dir: &Path) -> PathBuf {
    // The script uses a directory in the project for files beside the program.
    static SCRIPT: Mutex<()> = Mutex::const_new(());
    let _alone = SCRIPT.lock().await;
    let mut script = Command::new(project_root().join("scripts/wheel"));
    let made = script
        .kill_on_drop(true)
        .arg(dir)
        .args(["--profile", "dev", "--no-default-features"])
        .env("MATURIN", python_program("maturin"))
        .env("ROLLOUT_WHEELS", wheels("native-wheels"));
    // Cargo sets variables about the tests' package. With them, build scripts would run again.
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO") && name != "CARGO_HOME" && !name.starts_with("CARGO_PROFILE_") {
            made.env_remove(&*name);
        }
    }
    // maturin moves the program from cargo's target directory, so it gets a separate one.
    let place = tempfile::tempdir().unwrap();
    made.env("CARGO_BUILD_BUILD_DIR", target_dir()).env("CARGO_TARGET_DIR", place.path());
    let ran = run(made).await;
    let stderr = String::from_utf8_lossy(&ran.stderr);
    // Otherwise building a wheel takes as long as compiling the engine.
    assert!(!stderr.contains("Compiling wasmtime"), "{stderr}");
    let mut wheels = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    wheels.next().expect("there is a wheel")
}

/// Creates an environment with only the wheel and its dependencies.
async fn install(python: &Path, wheel: &Path, dir: &Path) -> PathBuf {
    run(Command::new(python).args(["-m", "venv"]).arg(dir)).await;
    let mut pip = Command::new(dir.join("bin/python"));
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-index",
        "--find-links",
    ]);
    run(pip.arg(wheels("wheels")).arg(wheel)).await;
    dir.join("bin")
}

/// Checks the bill of materials and the licences that `scripts/release` writes beside a wheel.
async fn lists_of_a_release_name_what_is_in_it(wheel: &Path) {
    let script = project_root().join("scripts/release.d/dependencies.py");
    let list = async |kind: &str| {
        let ran = run(Command::new(python_program("python")).arg(&script).arg(kind).arg(wheel)).await;
        String::from_utf8(ran.stdout).unwrap()
    };
    let sbom: Value = serde_json::from_str(&list("wheel-sbom").await).unwrap();
    assert_eq!(sbom["metadata"]["component"]["purl"], "pkg:pypi/rollout-host@0.1.0", "{sbom:#}");
    let components = sbom["components"].as_array().unwrap();
    let named = |name: &str| {
        let found = components.iter().find(|each| each["name"] == name);
        found.unwrap_or_else(|| panic!("there is no {name} in {sbom:#}"))
    };
    for bundled in ["numpy", "lxml", "componentize-qjs"] {
        assert_eq!(named(bundled)["hashes"][0]["content"].as_str().map(str::len), Some(64), "{bundled}");
    }
    assert_eq!(named("componentize-py")["scope"], "required");

    let licences = list("wheel-licences").await;
    let line = licences.lines().find(|line| line.starts_with("Levenshtein ")).expect("it is in the wheel");
    assert!(line.contains(": GPL-2.0-or-later; source: "), "{line}");
    assert!(licences.contains("Redistribution and use in source and binary forms"), "the texts are there");
}

/// Returns a command that finds only the environment's own programs.
fn alone(program: &Path, bin: &Path, home: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", bin).env("HOME", home);
    command
}

/// Returns the README's commands for a first workflow, in Python and with the mock model.
fn first_page() -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(project_root().join("README.md")).unwrap();
    let section = text.split_once("\n## A first workflow\n").expect("there is one").1;
    let block = section.split("```sh\n").nth(1).and_then(|rest| rest.split("\n```").next()).expect("a block");
    let lines = block.lines().map(|line| line.split('#').next().unwrap_or(line).trim());
    let commands: Vec<Vec<String>> = lines
        .filter(|line| !line.contains("--base-url") && !line.contains(" serve "))
        .map(|line| line.trim_end_matches(" && cd my-agent").replace(" --interactive", ""))
        .map(|line| line.replace("new my-agent", "new my-agent --lang python"))
        .map(|line| line.split_whitespace().map(str::to_owned).collect())
        .collect();
    let verbs: Vec<&str> = commands.iter().map(|command| command[1].as_str()).collect();
    assert_eq!(verbs, ["new", "build", "validate", "test", "eval"]);
    commands
}

#[tokio::test]
async fn the_readme_works_in_an_environment_with_the_wheel_and_no_compiler() {
    let dir = tempfile::tempdir().unwrap();
    let wheel = make_wheel(&dir.path().join("wheels")).await;
    let name = wheel.file_name().unwrap().to_string_lossy().into_owned();
    assert!(name.contains("-py3-none-manylinux_"), "{name}");
    lists_of_a_release_name_what_is_in_it(&wheel).await;
    let bin = install(&python_program("python"), &wheel, &dir.path().join("environment")).await;
    let program = bin.join("rollout-host");
    let home = dir.path().join("home");
    std::fs::create_dir(&home).unwrap();

    let mut project = dir.path().to_owned();
    for command in first_page() {
        let ran = run(alone(&program, &bin, &home).args(&command[1..]).current_dir(&project)).await;
        let stdout = String::from_utf8_lossy(&ran.stdout);
        match command[1].as_str() {
            "new" => project.push("my-agent"),
            "build" => assert!(stdout.contains("my_agent.wasm: workflow and grader"), "{stdout}"),
            "test" => assert!(stdout.contains("reward 1"), "{stdout}"),
            _ => {}
        }
    }

    // A package with native code can be installed as well, without an index and a compiler.
    let native = dir.path().join("native");
    std::fs::create_dir(&native).unwrap();
    let settings = "[project]\nname = \"native\"\nversion = \"1\"\ndependencies = [\"regex\"]\n";
    std::fs::write(native.join("pyproject.toml"), settings).unwrap();
    std::fs::write(native.join("native.py"), WITH_REGEX).unwrap();
    let mut build = alone(&program, &bin, &home);
    let build = build.env("PIP_NO_INDEX", "1").args(["build", "--output", "native.wasm"]);
    run(build.current_dir(&native)).await;
    let controller = Controller::start().await;
    let serve = TestHost::of_component(native.join("native.wasm")).program(program.clone());
    let result = serve.start().await.run(&controller.rollout("What is 2 + 3?").label("5")).await;
    assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");

    let serve = TestHost::of_component(project.join("my_agent.wasm")).program(program.clone());
    let result = serve.start().await.run(&controller.rollout("What is 2 + 3?").label("5")).await;
    assert_eq!(result["status"], "success", "{result:#}");
    assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
}

/// A program that requires the package.
const WITH_REGEX: &str = r#"
import regex
from rollout_sdk import AgentWorkflow, Grader

class OneTurn(AgentWorkflow):
    async def run(self, ctx):
        await ctx.agent().run()

class Same(Grader):
    async def grade(self, ctx):
        found = regex.findall(r'\p{N}+', ctx.sample.answer_after('####') or '')
        return found == [ctx.require_label()]
"#;

/// An author's test.
const AUTHORS_TEST: &str = "
import asyncio, pathlib, sys
import rollout_host.rows
import rollout_sdk
from rollout_sdk import *
from rollout_sdk.testing import calls, grade, run_workflow

@tool
def add(a: int, b: int) -> int:
    'Adds.'
    return a + b

class Adds(AgentWorkflow):
    async def run(self, ctx):
        await ctx.agent(tools=[add]).run()

class SameNumber(Grader):
    async def grade(self, ctx):
        return same_number(ctx.sample.answer_after('####') or '', ctx.require_label())

ran = run_workflow(Adds, 'What is 2 + 2?', replies=[calls('add', a=2, b=2), 'It is #### 4'])
assert ran.sample.messages[2]['content'] == '4', ran.sample.messages
assert grade(SameNumber, ran, label='4').reward == 1.0
assert pathlib.Path(rollout_sdk.__file__).with_name('py.typed').is_file()
assert sys.prefix in rollout_sdk.__file__
print(rollout_sdk.__name__)
";

#[tokio::test]
async fn one_wheel_supports_every_python() {
    let dir = tempfile::tempdir().unwrap();
    let wheel = make_wheel(&dir.path().join("wheels")).await;
    for (at, python) in pythons().await.into_iter().enumerate() {
        let place = dir.path().join(at.to_string());
        let bin = install(&python, &wheel, &place).await;

        let ran = run(alone(&bin.join("python"), &bin, dir.path()).args(["-c", AUTHORS_TEST])).await;
        assert_eq!(String::from_utf8_lossy(&ran.stdout).trim(), "rollout_sdk", "{}", python.display());

        // Errors in a project are found before componentize-py starts.
        let mut build = alone(&bin.join("rollout-host"), &bin, dir.path());
        std::fs::write(place.join("pyproject.toml"), "[tool.rollout-host]\nentri = \"x\"\n").unwrap();
        let ran = build.arg("build").arg(&place).output().await.unwrap();
        let stderr = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(1), "{}: {stderr}", python.display());
        assert!(stderr.contains("[tool.rollout-host] has no `entri`"), "{}: {stderr}", python.display());
        std::fs::remove_dir_all(&place).unwrap();
    }
}
