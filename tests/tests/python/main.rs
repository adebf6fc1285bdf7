//! Tests of workflows and graders in Python: builds, error messages, and concurrency.

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

/// The timeout of a command. One of them builds a component.
const COMMAND: Duration = Duration::from_secs(300);

fn temporary() -> TempDir {
    tempfile::tempdir().expect("a temporary directory can be made")
}

/// Creates a project with this entry module and additional lines of `pyproject.toml`.
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

/// Starts a host for the guest whose prompt selects its behaviour.
async fn host() -> TestHost {
    TestHost::of_component(python_guest(PARITY)).start().await
}

/// Returns a request for a behaviour, with a label so that it is graded.
fn asking(controller: &Controller, what: &str) -> RolloutRequest {
    controller.rollout(what).label("0")
}

/// Returns the text of a rollout's last message.
fn last_text(result: &Value) -> String {
    let messages = result["sample"]["messages"].as_array().unwrap_or_else(|| panic!("{result:#}"));
    messages.last().and_then(|message| message["content"].as_str()).unwrap_or_default().to_owned()
}
