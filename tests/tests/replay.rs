//! `replay`: a rollout that a server kept is made again, with nobody to ask.

use std::path::Path;

use rollout_tests::{Controller, Ran, Start, TestHost, guest, rollout_host};
use serde_json::Value;

/// A server of the guest that takes a long way, with its tool and its judge, and a rollout of it
/// that is over.
async fn kept_rollout(controller: &Controller, prompt: &str) -> (TestHost, String, Value) {
    let tools = guest("tool_kit");
    let config = format!(
        "[journal]\ndir = 'journal'\n[judge]\nmodel = 'mock'\n[[tools.component]]\npath = '{}'\n",
        tools.display()
    );
    let host = TestHost::of("long_way").config(&config).start().await;
    let request = controller.rollout(prompt).label("x").with("agent_timeout_sec", 60.0);
    let admitted = host.admit(&request).await;
    let result = host.result(&admitted).await;
    assert_eq!(result["status"], "success", "{result:#}");
    (host, admitted.id, result)
}

async fn replay(dir: &Path, arguments: &[&str]) -> Ran {
    let mut command = rollout_host(["replay", "--journal", "journal", "--config", "config.toml"]);
    command.args(arguments).current_dir(dir).start().ended().await
}

#[tokio::test]
async fn a_finished_rollout_is_the_same_again_with_nobody_to_ask() {
    let controller = Controller::start().await;
    let (host, id, result) = kept_rollout(&controller, "3").await;
    let chats = controller.chats().len();

    // While the server has the journal open.
    let ran = replay(host.dir(), &[&id]).await;

    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stdout, ran.stderr);
    let reward = result["sample"]["reward"].as_f64().unwrap();
    assert!(ran.stdout.contains(&format!("the same: reward {reward}")), "{}", ran.stdout);
    assert!(ran.stdout.contains("workflow call 1, move ") && ran.stdout.contains("upper("), "{}", ran.stdout);
    assert!(ran.stdout.contains("grader call 1"), "{}", ran.stdout);
    assert_eq!(controller.chats().len(), chats, "no model was asked");
}

#[tokio::test]
async fn another_component_differs_and_the_first_difference_is_shown() {
    let controller = Controller::start().await;
    let (host, id, _) = kept_rollout(&controller, "3").await;

    let ran = replay(host.dir(), &[&id, "--plugin", &guest("conform").display().to_string()]).await;

    assert_eq!(ran.code, Some(1), "{}\n{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("not the same: in the workflow, call 1"), "{}", ran.stdout);
    assert!(ran.stdout.contains("then -") && ran.stdout.contains("turn 0, one"), "{}", ran.stdout);
}

#[tokio::test]
async fn it_can_end_before_a_call() {
    let controller = Controller::start().await;
    let (host, id, _) = kept_rollout(&controller, "3").await;

    let ran = replay(host.dir(), &[&id, "--until", "4"]).await;

    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("the same up to call 4"), "{}", ran.stdout);
    assert!(ran.stdout.contains("workflow call 3,") && !ran.stdout.contains("call 4,"), "{}", ran.stdout);
}

#[tokio::test]
async fn a_guest_that_looks_without_end_is_the_same_again_and_leaves_little_behind() {
    let controller = Controller::start().await;
    let (host, id, _) = kept_rollout(&controller, "3 restless").await;

    let ran = replay(host.dir(), &[&id]).await;

    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stdout, ran.stderr);
    let segment = std::fs::read(host.dir().join("journal/00000000000000000001.seg")).unwrap();
    let written = segment.iter().rposition(|byte| *byte != 0).unwrap();
    assert!(written < 64 << 10, "{written} bytes for three turns");
}

#[tokio::test]
async fn what_is_not_there_is_said() {
    let controller = Controller::start().await;
    let (host, id, _) = kept_rollout(&controller, "3").await;

    let nobody = replay(host.dir(), &["nobody"]).await;
    let nowhere = replay(host.dir(), &["--journal", "nowhere", &id]).await;

    assert_eq!((nobody.code, nowhere.code), (Some(2), Some(2)));
    assert!(nobody.stderr.contains("there is no rollout 'nobody'"), "{}", nobody.stderr);
    assert!(nowhere.stderr.contains("there is no journal in nowhere"), "{}", nowhere.stderr);
}
