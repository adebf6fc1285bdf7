//! Tests of malicious guests, in addition to those of `misbehaving.rs`: how each is stopped, what its caller receives,
//! and that neither the host nor other rollouts are affected.

mod lies;
mod made;
mod memory;
mod neighbours;

use std::time::Duration;

use rollout_tests::{Controller, Serve, TestHost};
use serde_json::Value;

/// A small budget of CPU time. The deadline is far.
const LITTLE_CPU: &str = "[limits]\nguest-cpu-secs-max = 0.2\n";
const LITTLE_CPU_IS_NAMED: &str = "used more CPU time than guest-cpu-secs-max, 0.2 s";

/// Guests with large values pass 2 MiB.
const SMALL_CALLS: &str = "[limits]\nhost-call-bytes-max = 1048576\n";
const SMALL_CALLS_ARE_NAMED: &str = "passed more than host-call-bytes-max, 1048576 bytes";

fn check_fails(result: &Value, category: &str, part: &str) {
    assert_eq!(result["status"], "failure", "{part}: {result:#}");
    assert_eq!(result["err_category"], category, "{part}: {result:#}");
    let message = result["err_message"].as_str().unwrap_or_default();
    assert!(message.contains(part), "{message:?} does not hold {part:?}");
    assert!(message.len() < 20_000, "a guest's message is bounded: {} bytes", message.len());
    assert_eq!(result["sample"]["reward"], Value::Null, "there is no invented reward: {result:#}");
}

/// Checks that the next ordinary rollout succeeds, and that nothing is left running.
async fn check_still_works(host: &TestHost, controller: &Controller) {
    let result = host.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    assert_eq!(result["status"], "success", "{result:#}");
    host.idle().await;
}

/// Runs a workflow that misbehaves as its prompt says, and checks that the host ends it.
async fn check_ended(host: Serve, text: &str, part: &str) {
    let controller = Controller::start().await;
    let host = host.start().await;

    let result = host.run(&controller.rollout(text).label("5")).await;

    check_fails(&result, "agent_error", part);
    check_still_works(&host, &controller).await;
}

/// Runs a grader that misbehaves as its label says, and checks that the host ends it.
async fn check_grader_ended(lines: &str, label: &str, part: &str) {
    let controller = Controller::start().await;
    let host = TestHost::of("misuse_grading").config(lines).start().await;

    let result = host.run(&controller.rollout("Calculate 2 + 3.").label(label)).await;

    check_fails(&result, "agent_error", part);
    check_still_works(&host, &controller).await;
}

fn misuse(lines: &str) -> Serve {
    TestHost::of("misuse").config(lines)
}

/// Returns the answer that the guest reports in its sample.
fn answer_in(result: &Value) -> &str {
    let messages = result["sample"]["messages"].as_array().map_or(&[][..], Vec::as_slice);
    let text = messages.last().and_then(|message| message["content"].as_str());
    text.unwrap_or_else(|| panic!("there is no answer: {result:#}"))
}

/// Runs a workflow that reports the host's answer.
async fn answer_to(host: &TestHost, controller: &Controller, text: &str) -> String {
    let result = host.run(&controller.rollout(text).label("5")).await;
    answer_in(&result).to_owned()
}

/// Runs a workflow that misbehaves as its prompt says, and checks that it gets an error about a limit.
async fn check_limit_error(lines: &str, text: &str, part: &str) {
    let controller = Controller::start().await;
    let host = misuse(lines).start().await;

    let answer = answer_to(&host, &controller, text).await;

    assert!(answer.contains(part), "{answer:?} does not hold {part:?}");
    check_still_works(&host, &controller).await;
}

#[tokio::test]
async fn a_workflow_that_spins_is_stopped_when_its_cpu_time_is_spent() {
    check_ended(TestHost::of("spin").config(LITTLE_CPU), "misbehave", LITTLE_CPU_IS_NAMED).await;
}

#[tokio::test]
async fn a_grader_that_spins_is_stopped_when_its_cpu_time_is_spent() {
    check_grader_ended(LITTLE_CPU, "spin", LITTLE_CPU_IS_NAMED).await;
}

#[tokio::test]
async fn a_guest_that_spins_in_a_destructor_is_stopped_when_its_cpu_time_is_spent() {
    check_ended(misuse(LITTLE_CPU), "other: spin when dropped", LITTLE_CPU_IS_NAMED).await;
}

#[tokio::test]
async fn a_guest_that_waits_spends_no_cpu_time() {
    let controller = Controller::start().await;
    let host = misuse(LITTLE_CPU).start().await;
    controller.hold();
    let rollout = host.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    controller.chats_open(1).await;

    // No event shows that time has passed.
    tokio::time::sleep(Duration::from_secs(1)).await;
    controller.release();

    let result = host.result(&rollout).await;
    assert_eq!(result["status"], "success", "{result:#}");
    assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
}

#[tokio::test]
async fn a_guest_that_calls_the_host_endlessly_is_ended_at_its_limit_of_calls() {
    let host = misuse("[limits]\nhost-calls-max = 5000\n");
    check_ended(host, "many: host calls", "called the host more often than host-calls-max, 5000 times").await;
}

#[tokio::test]
async fn a_storm_of_host_calls_is_stopped_when_its_cpu_time_is_spent() {
    let lines = "[limits]\nguest-cpu-secs-max = 0.2\nhost-calls-max = 18446744073709551\n";
    check_ended(misuse(lines), "many: host calls", LITTLE_CPU_IS_NAMED).await;
}
