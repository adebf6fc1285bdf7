//! `rollout_host`, the Python package for trainers, against real servers: its client, its harness for verifiers driven by
//! `vf-eval`, and its `rollout_func` in TRL's `GRPOTrainer`.
//!
//! verifiers and TRL are large. Their tests run if `ROLLOUT_TEST_VERIFIERS` and `ROLLOUT_TEST_TRL` are set, or if
//! `tests/clients/setup` has created their environments.

use std::path::PathBuf;
use std::time::Duration;

use rollout_tests::{Ran, Start, example, guest, host_program, project_root, target_dir};
use serde_json::Value;
use tokio::process::Command;
use tokio::sync::{Mutex, MutexGuard};

/// The timeout of all scenarios of a driver. Each has its own deadline.
const DRIVER: Duration = Duration::from_secs(900);

fn environments() -> PathBuf {
    std::env::var_os("ROLLOUT_VENVS").map_or_else(|| target_dir().join("venvs"), PathBuf::from)
}

/// Runs one driver at a time: scenarios have deadlines of seconds.
async fn alone() -> MutexGuard<'static, ()> {
    static MACHINE: Mutex<()> = Mutex::const_new(());
    MACHINE.lock().await
}

/// Returns the Python of an environment.
fn python(environment: &str) -> PathBuf {
    let python = environments().join(environment).join("bin/python");
    assert!(
        python.is_file(),
        "there is no {python:?}; run: tests/clients/setup {}",
        environments().display()
    );
    python
}

/// Returns the Python of a trainer's environment, or `None` if the trainer is not to be tested.
fn requested(variable: &str, environment: &str) -> Option<PathBuf> {
    let is_made = environments().join(environment).join("bin/python").is_file();
    if !is_made && std::env::var_os(variable).is_none() {
        eprintln!("SKIPPED: {environment} is not set up; run: {variable}=1 tests/clients/setup");
        return None;
    }
    Some(python(environment))
}

/// Runs the scenarios of a driver, which must all succeed.
async fn drive(python: PathBuf, driver: &str, at_least: usize) {
    let _alone = alone().await;
    let _components = (
        guest("conform"),
        guest("grouped"),
        example("example-one-turn"),
        example("example-calculator"),
        example("example-train-grpo"),
    );
    let guests = guest("conform").parent().expect("a guest is in a folder").to_owned();
    let mut command = Command::new(python);
    command
        .arg(project_root().join("tests/clients/trainers").join(driver))
        .env("ROLLOUT_HOST_BIN", host_program())
        .env("ROLLOUT_GUESTS_DIR", guests);

    let ran: Ran = command.start().ended_within(DRIVER).await;

    let scenarios: Vec<Value> = ran
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}")))
        .collect();
    let failed: Vec<_> = scenarios.iter().filter(|scenario| scenario["ok"] != true).collect();
    assert!(failed.is_empty(), "{failed:#?}\n{}", ran.stderr);
    assert!(scenarios.len() >= at_least, "only {} scenarios: {}", scenarios.len(), ran.stderr);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
}

#[tokio::test]
async fn the_python_client_gets_each_reward_once_and_reports_failures_as_errors() {
    drive(python("osmosis-0.3.7"), "drive_client.py", 16).await;
}

#[tokio::test]
async fn verifiers_evaluates_a_plugin() {
    if let Some(python) = requested("ROLLOUT_TEST_VERIFIERS", "verifiers") {
        drive(python, "drive_verifiers.py", 3).await;
    }
}

#[tokio::test]
async fn trl_trains_with_a_plugin() {
    if let Some(python) = requested("ROLLOUT_TEST_TRL", "trl") {
        drive(python, "drive_trl.py", 8).await;
    }
}
