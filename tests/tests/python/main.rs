//! Workflows and graders in Python: how they are built, what they are told where they
//! are wrong, and that what they wait for goes on side by side.

mod building;
mod published;
mod running;
mod sdk;

use std::path::Path;
use std::time::Duration;

use rollout_tests::{
    Controller, Ran, RolloutRequest, Start, TestHost, python_guest, python_program, rollout_host,
};
use serde_json::Value;
use tempfile::TempDir;

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
