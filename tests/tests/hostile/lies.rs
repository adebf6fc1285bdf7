//! Tests of guests that make false claims, or search for data of others.

use rollout_tests::{Start, rollout_host};

use super::*;

#[tokio::test]
async fn invalid_json_is_refused_in_every_argument() {
    let controller = Controller::start().await;
    let host = misuse("").start().await;
    let request = controller.rollout("no json: anywhere").label("5");

    let result = host.run(&request).await;

    let answers: Value = serde_json::from_str(answer_in(&result)).expect("it reports in JSON");
    for (place, answer) in answers.as_object().expect("an object") {
        let text = answer.as_str().unwrap_or_default();
        assert_ne!(text, "taken", "{place}");
        assert!(text.contains("nvalid") || text.contains("not"), "{place}: {text}");
    }
    assert_eq!(controller.chats().len(), 0, "none of it was sent");
    let trajectory = host.trajectory(request.rollout_id()).await;
    assert!(trajectory.is_object(), "it can be read all the same");
    check_still_works(&host, &controller).await;
}

#[tokio::test]
async fn a_field_that_is_nested_too_deeply_is_refused() {
    let controller = Controller::start().await;
    let host = misuse("").start().await;
    let request = controller.rollout("other: deep field").label("5");

    let result = host.run(&request).await;

    let answers: Value = serde_json::from_str(answer_in(&result)).expect("it reports in JSON");
    assert_eq!(answers["deepest"], "taken");
    for place in ["deeper", "deep"] {
        let answer = answers[place].as_str().unwrap_or_default();
        assert!(answer.contains("nested more than 100 deep") || answer.contains("recursion"), "{answer}");
    }
    assert!(host.trajectory(request.rollout_id()).await.is_object(), "it can be read all the same");
    check_still_works(&host, &controller).await;
}

#[tokio::test]
async fn a_second_sample_cannot_have_the_same_name() {
    let rows = [serde_json::json!({"user_prompt": "other: same name twice", "ground_truth": "5"})];
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let lines: String = rows.iter().map(|row| format!("{row}\n")).collect();
    std::fs::write(dir.path().join("rows.jsonl"), lines).expect("it can be written");
    let mut command = rollout_host(["eval"]);
    command.arg(rollout_tests::guest("misuse")).args(["--data", "rows.jsonl", "--model", "mock"]);
    command.args(["--out", "out"]).current_dir(dir.path()).start().ended().await;

    let path = dir.path().join("out/rollouts/row-00000-run-0/trajectory.json");
    let text = std::fs::read_to_string(path).expect("it was written");
    assert!(text.contains("Taken(\\\"twin\\\")"), "{text}");
}

#[tokio::test]
async fn too_many_random_bytes_end_the_guest_with_the_limits_name_and_are_counted() {
    let controller = Controller::start().await;
    let host = misuse("").start().await;
    let request = controller.rollout("other: random bytes").label("5");

    let result = host.run(&request).await;

    check_fails(
        &result,
        "agent_error",
        "2097152 random bytes in one call, more than random-bytes-max, 65536",
    );
    let trajectory = host.trajectory(request.rollout_id()).await;
    let limit = &trajectory["extra"]["rollout_host"]["limits"]["random-bytes-max"];
    assert_eq!(*limit, serde_json::json!({"max": 65536, "hits": 1, "asked": 2_097_152}));
    let hits = host.metrics().await.get("rollout_host_limit_hits_total{limit=\"random-bytes-max\"}");
    assert_eq!(hits, Some(1.0));
    check_still_works(&host, &controller).await;
}

#[tokio::test]
async fn invalid_utf8_cannot_be_passed_as_text() {
    let controller = Controller::start().await;
    let host = misuse("").start().await;
    for place in ["line", "sample name", "message", "artifact name", "request"] {
        let result = host.run(&controller.rollout(&format!("no text: {place}")).label("5")).await;

        check_fails(&result, "agent_error", "utf-8");
    }
    assert_eq!(controller.chats().len(), 0, "none of it was sent");
    check_still_works(&host, &controller).await;
}

#[tokio::test]
async fn a_grader_sees_nothing_of_another_rollout() {
    let controller = Controller::start().await;
    let host = TestHost::start("misuse_grading").await;
    let other = host.run(&controller.rollout("Calculate 2 + 3.").label("observe nobody")).await;
    let other = other["err_message"].as_str().unwrap_or_default();
    let (other, _) = other.split_once(" saw 1 and 0").unwrap_or_else(|| panic!("{other}"));

    let result = host.run(&controller.rollout("Calculate 2 + 3.").label(&format!("observe {other}"))).await;

    let message = result["err_message"].as_str().unwrap_or_default();
    assert!(message.contains("saw 1 and 0") && !message.contains(other), "{message}");
    host.idle().await;
}

#[tokio::test]
async fn a_grader_that_exits_or_traps_fails_its_rollout_only() {
    check_grader_ended("", "exit", "grader called exit(0)").await;
    check_grader_ended("", "panic", "this grader traps").await;
}

#[tokio::test]
async fn a_guests_clocks_and_random_numbers_are_its_rollouts_own() {
    let controller = Controller::start().await;
    let request = |id: &str| controller.rollout("other: clocks").id(id).label("5");
    let (one, two) = (misuse("").start().await, misuse("").start().await);

    let first = one.run(&request("clocks-1")).await;
    let again = two.run(&request("clocks-1")).await;
    let sibling = one.run(&request("clocks-2")).await;

    assert_eq!(answer_in(&first), answer_in(&again), "a run can be repeated");
    let seen = |result: &Value| serde_json::from_str::<Value>(answer_in(result)).expect("it reports in JSON");
    let (first, sibling) = (seen(&first), seen(&sibling));
    for clock in ["today", "elapsed"] {
        assert_eq!(first[clock], sibling[clock], "no clock shows the load of the machine");
    }
    for random in ["random", "sample"] {
        assert_ne!(first[random], sibling[random], "siblings differ");
    }
}
