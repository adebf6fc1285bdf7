//! Tests of guests that each misbehave in one way: the caller receives the expected failure, and the host continues.
//! They use generation D, because its results have every detail.

use rollout_tests::{Controller, Start, TestHost, guest, rollout_host};
use serde_json::{Value, json};

/// The expected result of a failed rollout.
#[derive(Debug)]
struct Failure<'a> {
    category: &'a str,
    /// Texts in the message.
    message: &'a [&'a str],
}

fn check_failure(result: &Value, expected: &Failure<'_>) {
    assert_eq!(result["status"], "failure", "{result:#}");
    assert_eq!(result["err_category"], expected.category, "{result:#}");
    let message = result["err_message"].as_str().unwrap_or_default();
    for part in expected.message {
        assert!(message.contains(part), "{message:?} does not hold {part:?}");
    }
    assert_eq!(result["sample"]["reward"], Value::Null, "there is no invented reward: {result:#}");
}

/// Checks that the next ordinary rollout succeeds, and that nothing is left running.
async fn check_still_works(host: &TestHost, controller: &Controller) {
    let result = host.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    assert_eq!(result["status"], "success", "{result:#}");
    assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
    host.idle().await;
}

/// Runs a guest that misbehaves if its prompt requests it.
async fn check_workflow(guest: &str, text: &str, expected: Failure<'_>) {
    let controller = Controller::start().await;
    let host = TestHost::start(guest).await;

    let result = host.run(&controller.rollout(text).label("5")).await;

    check_failure(&result, &expected);
    assert_eq!(result["sample"], Value::Null, "{result:#}");
    check_still_works(&host, &controller).await;
}

/// Runs a guest whose grader misbehaves if the label requests it. The sample is reported.
async fn check_grader(guest: &str, label: &str, expected: Failure<'_>) {
    let controller = Controller::start().await;
    let host = TestHost::start(guest).await;

    let result = host.run(&controller.rollout("Calculate 2 + 3.").label(label)).await;

    check_failure(&result, &expected);
    assert_eq!(result["sample"]["messages"][1]["role"], "assistant", "{result:#}");
    check_still_works(&host, &controller).await;
}

/// Returns the report in the guest's sample.
fn report(result: &Value) -> Value {
    let messages = result["sample"]["messages"].as_array().map_or(&[][..], Vec::as_slice);
    let text = messages.last().and_then(|message| message["content"].as_str());
    let text = text.unwrap_or_else(|| panic!("there is no report: {result:#}"));
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[tokio::test]
async fn a_guest_that_traps_fails_its_rollout_only() {
    let expected =
        Failure { category: "agent_error", message: &["workflow panicked at", "this guest traps"] };
    check_workflow("trap", "misbehave", expected).await;
}

#[tokio::test]
async fn a_grader_that_traps_fails_its_rollout_only() {
    let expected = Failure { category: "agent_error", message: &["grader panicked at", "this grader traps"] };
    check_grader("trap_grading", "misbehave", expected).await;
}

#[tokio::test]
async fn a_guest_that_never_returns_is_stopped_at_its_deadline() {
    let controller = Controller::start().await;
    let host = TestHost::start("spin").await;

    let result = host.run(&controller.rollout("misbehave").label("5").agent_secs(0.3)).await;

    let expected = Failure { category: "timeout", message: &["workflow exceeded its 0.3s deadline"] };
    check_failure(&result, &expected);
    check_still_works(&host, &controller).await;
}

#[tokio::test]
async fn a_guest_that_spins_leaves_cpu_time_to_others() {
    let controller = Controller::start().await;
    let host = TestHost::start("spin").await;
    let mut spinning = Vec::new();
    for _ in 0..8 {
        spinning.push(host.admit(&controller.rollout("misbehave")).await);
    }

    let neighbour = host.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;

    assert_eq!(neighbour["sample"]["reward"], 1.0, "{neighbour:#}");
    for spinner in &spinning {
        assert_eq!(host.cancel(&spinner.id).await, "cancelled_running");
        assert_eq!(host.result(spinner).await["status"], "cancelled");
    }
    check_still_works(&host, &controller).await;
}

#[tokio::test]
async fn a_guest_is_stopped_at_the_hosts_own_limit_if_its_caller_sets_none() {
    let controller = Controller::start().await;
    let limits = "[limits]\nworkflow-secs-max = 2.0\n";
    let host = TestHost::of("spin").config(limits).start().await;

    let result = host.run(&controller.rollout("misbehave").label("5")).await;

    check_failure(&result, &Failure { category: "timeout", message: &["2.0s", "workflow-secs-max"] });
    check_still_works(&host, &controller).await;
}

#[tokio::test]
async fn a_grader_that_never_returns_is_stopped_at_its_deadline() {
    let controller = Controller::start().await;
    let host = TestHost::start("spin_grading").await;
    let request = controller.rollout("Calculate 2 + 3.").label("misbehave").with("grader_timeout_sec", 0.3);

    let result = host.run(&request).await;

    check_failure(&result, &Failure { category: "timeout", message: &["grader exceeded its 0.3s deadline"] });
    check_still_works(&host, &controller).await;
}

#[tokio::test]
async fn the_calls_of_a_stopped_guest_are_abandoned() {
    let controller = Controller::start().await;
    controller.hold();
    let host = TestHost::start("spin_with_calls").await;
    let rollout = host.admit(&controller.rollout("misbehave")).await;
    controller.chats_open(2).await;

    host.cancel(&rollout.id).await;

    assert_eq!(host.result(&rollout).await["status"], "cancelled");
    controller.chats_open(0).await;
    controller.release();
    check_still_works(&host, &controller).await;
}

#[tokio::test]
async fn a_guest_that_waits_forever_is_stopped_at_its_deadline() {
    let controller = Controller::start().await;
    let host = TestHost::start("sleep").await;

    let result = host.run(&controller.rollout("misbehave").label("5").agent_secs(0.3)).await;

    check_failure(&result, &Failure { category: "timeout", message: &["0.3s deadline"] });
    check_still_works(&host, &controller).await;
}

#[tokio::test]
async fn a_guest_that_takes_too_much_memory_is_reported_with_its_limit() {
    let controller = Controller::start().await;
    let host = TestHost::of("over_allocate").config("[limits]\nmemory-bytes-max = 33554432\n").start().await;

    let result = host.run(&controller.rollout("misbehave").label("5")).await;

    let expected = Failure { category: "agent_error", message: &["memory-bytes-max of 33554432 bytes"] };
    check_failure(&result, &expected);
    check_still_works(&host, &controller).await;
}

#[tokio::test]
async fn a_guest_that_recurses_endlessly_fails_its_rollout_only() {
    let expected = Failure { category: "agent_error", message: &["workflow trapped"] };
    check_workflow("recurse", "misbehave", expected).await;
}

#[tokio::test]
async fn a_guests_own_error_is_reported_unchanged() {
    let expected = Failure { category: "agent_error", message: &["this guest gives up"] };
    check_workflow("give_up", "misbehave", expected).await;
}

#[tokio::test]
async fn messages_that_are_not_json_objects_fail_the_rollout() {
    let controller = Controller::start().await;
    let host = TestHost::start("nonsense_messages").await;

    for nonsense in ["no json", "[1, 2]", "{\"role\": \"assistant\"", ""] {
        let result = host.run(&controller.rollout(&format!("say <{nonsense}>")).label("5")).await;

        let expected =
            Failure { category: "validation_error", message: &["workflow returned messages[1] that is"] };
        check_failure(&result, &expected);
    }
    check_still_works(&host, &controller).await;
}

#[tokio::test]
async fn a_guest_that_exits_without_an_error_has_failed_nevertheless() {
    let expected = Failure { category: "agent_error", message: &["workflow called exit(0)"] };
    check_workflow("exit", "exit 0", expected).await;
}

#[tokio::test]
async fn a_guest_that_exits_ends_no_other_process() {
    // The guest's standard library passes on only whether the code means success.
    let expected = Failure { category: "agent_error", message: &["workflow called exit(1)"] };
    check_workflow("exit", "exit 3", expected).await;
}

#[tokio::test]
async fn an_invalid_verdict_leaves_the_rollout_without_a_reward() {
    let controller = Controller::start().await;
    let host = TestHost::start("wrong_verdicts").await;

    for (label, message) in [
        ("nan", "the reward NaN, which is not a finite number"),
        ("infinity", "the reward inf, which is not a finite number"),
        ("minus infinity", "the reward -inf, which is not a finite number"),
        ("unknown sample", "grader rated a sample 'nobody' that it was not given"),
        ("two verdicts", "grader gave two verdicts of sample"),
        ("nan metric", "grader gave metric 'height' the value NaN"),
        ("no verdict", "Sample has no reward after grading"),
    ] {
        let result = host.run(&controller.rollout("Calculate 2 + 3.").label(label)).await;

        check_failure(&result, &Failure { category: "validation_error", message: &[message] });
        assert_eq!(result["sample"]["metrics"], json!({}), "no part of it is used: {result:#}");
    }
    check_still_works(&host, &controller).await;
}

#[tokio::test]
async fn parameters_of_the_host_are_refused_by_name() {
    let controller = Controller::start().await;
    let host = TestHost::start("reserved_param").await;

    let result = host.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;

    let answers = report(&result);
    let answers = answers.as_object().unwrap();
    assert_eq!(answers.len(), 20, "{answers:?}");
    for (name, answer) in answers {
        let answer = answer.as_str().unwrap_or_default();
        match name.as_str() {
            "temperature" | "seed" => assert_eq!(answer, "sent", "{name}"),
            _ => assert!(
                answer.contains("wrong chat request")
                    && answer.contains(&format!("'{name}', which the host")),
                "{answer}"
            ),
        }
    }
    let chats = controller.chats();
    assert_eq!(chats.len(), 2, "{chats:?}");
    assert_eq!(chats[0].body["model"], "osmosis-rollout");
    assert_eq!(chats[0].body["temperature"], 1);
    host.idle().await;
}

#[tokio::test]
async fn the_operator_can_restrict_parameters() {
    let controller = Controller::start().await;
    let listed = TestHost::of("reserved_param").config("[model]\nparams = ['temperature']\n").start().await;
    let none = TestHost::of("reserved_param").option("--model-params", "").start().await;

    let answers = report(&listed.run(&controller.rollout("Calculate 2 + 3.").label("5")).await);
    let told_none = report(&none.run(&controller.rollout("Calculate 2 + 3.").label("5")).await);

    assert_eq!(answers["temperature"], "sent");
    for answer in [&answers["seed"], &told_none["temperature"]] {
        let answer = answer.as_str().unwrap_or_default();
        assert!(answer.contains("which the operator does not allow"), "{answer}");
    }
    assert_eq!(controller.chats().len(), 1);
}

#[tokio::test]
async fn an_invalid_list_of_parameters_is_named_at_the_start() {
    let config = "[model]\nparams = ['api_base']\n[judge]\nurl = 'http://h'\nmodel = 'j'\nparams = ['a b']\n";
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.toml"), config).unwrap();

    let ran = rollout_host(["serve", "--config", "config.toml"])
        .arg(guest("conform"))
        .current_dir(dir.path())
        .start()
        .ended()
        .await;

    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    for part in [
        "model.params: 'api_base' can be set by the host only",
        "judge.params: 'a b' is not a valid parameter name",
    ] {
        assert!(ran.stderr.contains(part), "{}", ran.stderr);
    }
}

#[tokio::test]
async fn a_sample_name_that_is_invalid_in_a_header_is_refused() {
    let controller = Controller::start().await;
    let host = TestHost::start("sample_names").await;

    let result = host.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;

    let answers = report(&result);
    let answers = answers.as_array().expect("a list");
    assert_eq!(answers.len(), 8);
    for answer in answers {
        let text = answer["answer"].as_str().unwrap_or_default();
        assert!(text.starts_with("not a sample name: "), "{answer}");
    }
    let chats = controller.chats();
    assert_eq!(chats.len(), 1, "{chats:?}");
    assert_eq!(chats[0].header("x-sample-id"), Some(&*"x".repeat(128)));
    assert_eq!(chats[0].header("x-injected"), None);
    host.idle().await;
}

#[tokio::test]
async fn artifacts_stay_in_the_directory_of_their_rollout() {
    let controller = Controller::start().await;
    let host = TestHost::start("artifact_names").await;
    let request = controller.rollout("Calculate 2 + 3.").label("5");

    let result = host.run(&request).await;

    let answers = report(&result);
    assert_eq!(answers["names"], json!(["deep/down.txt", "kept"]));
    for answer in answers["answers"].as_array().expect("a list") {
        let write = answer["write"].as_str().unwrap_or_default();
        assert!(write.starts_with("not a name of an artifact: "), "{answer}");
        assert!(answer["read"].is_string(), "{answer}");
    }
    host.trajectory(request.rollout_id()).await;
    let kept = host.kept().join(request.rollout_id()).join("artifacts");
    assert_eq!(std::fs::read_to_string(kept.join("kept")).unwrap(), "kept by the guest");
    assert_eq!(std::fs::read_to_string(kept.join("deep/down.txt")).unwrap(), "and below");
    let everywhere = files_below(host.dir());
    assert!(
        !everywhere.iter().any(|path| path.contains("escaped") || path.contains("hidden")),
        "{everywhere:?}"
    );
}

fn files_below(dir: &std::path::Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .flat_map(|entry| match entry.path() {
            path if path.is_dir() => files_below(&path),
            path => vec![path.to_string_lossy().into_owned()],
        })
        .collect()
}

#[tokio::test]
async fn a_second_sample_is_refused_if_the_caller_accepts_one() {
    let controller = Controller::start().await;
    let host = TestHost::start("two_samples").await;

    let result = host.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;

    let expected = Failure {
        category: "agent_error",
        message: &[
            "this rollout takes 1 samples at the most (samples-max of the host, or less where its caller takes fewer)",
        ],
    };
    check_failure(&result, &expected);
    assert_eq!(controller.chats().len(), 0);
    host.idle().await;
}

#[tokio::test]
async fn calls_that_a_guest_does_not_wait_for_are_abandoned_when_it_returns() {
    let controller = Controller::start().await;
    controller.hold();
    let host = TestHost::start("drop_calls").await;

    let result = host.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;

    assert_eq!(result["status"], "success", "{result:#}");
    assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
    controller.chats_open(0).await;
    host.idle().await;
}

#[tokio::test]
async fn the_output_of_a_guest_is_bounded_and_has_no_terminal_escapes() {
    let controller = Controller::start().await;
    let host = TestHost::of("noisy").config("[limits]\nlog-lines-max = 100\n").start().await;
    let request = controller.rollout("misbehave").label("5");
    controller.answer_chats([rollout_tests::Answer::Say("#### 5")]);

    let result = host.run(&request).await;

    assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
    host.trajectory(request.rollout_id()).await;
    check_still_works(&host, &controller).await;
    for path in files_below(&host.kept()) {
        let content = std::fs::read(&path).unwrap();
        assert!(!content.contains(&0x1b), "{path} holds an escape character");
        assert!(content.len() < 200_000, "{path} has {} bytes", content.len());
    }
    let ran = host.stop().await;
    assert!(!ran.stderr.contains('\u{1b}'), "the host's log holds an escape character");
    assert!(!ran.stdout.contains("to stdout"), "{}", ran.stdout);
}

#[tokio::test]
async fn a_workflow_that_calls_a_graders_import_is_ended() {
    let expected = Failure {
        category: "agent_error",
        message: &["broke the contract", "a workflow called observations.exchanges"],
    };
    check_workflow("observe", "misbehave", expected).await;
}

#[tokio::test]
async fn a_grader_that_calls_a_workflows_import_is_ended() {
    let expected = Failure {
        category: "agent_error",
        message: &["broke the contract", "a grader called samples.sample.open"],
    };
    check_grader("grade_with_chat", "misbehave", expected).await;
}

#[tokio::test]
async fn a_guest_finds_nothing_of_the_machine_that_it_runs_on() {
    let controller = Controller::start().await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let host = TestHost::of("look_around").variable("CANARY", "in the environment").start().await;
    let port = listener.local_addr().unwrap().port();
    let request =
        || controller.rollout("Calculate 2 + 3.").label("5").with("metadata", json!({"port": port}));

    let result = host.run(&request()).await;
    let other = host.run(&request()).await;

    assert_eq!(report(&result)["found"], json!([]));
    assert_ne!(report(&result)["random"], report(&other)["random"], "siblings differ");
    let again = TestHost::start("look_around").await;
    let repeated = again.run(&request().id(result["rollout_id"].as_str().unwrap())).await;
    assert_eq!(report(&result)["random"], report(&repeated)["random"], "a run can be repeated");
    assert_eq!(
        listener.accept().unwrap_err().kind(),
        std::io::ErrorKind::WouldBlock,
        "there was no connection"
    );
}

#[tokio::test]
async fn a_guest_that_calls_the_model_endlessly_gets_the_error_of_a_spent_budget() {
    let controller = Controller::start().await;
    let host = TestHost::of("greedy").config("[limits]\nchat-calls-max = 5\n").start().await;

    let result = host.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;

    let report = report(&result);
    assert_eq!(report["answered"], 5);
    let text = report["answer"].as_str().unwrap_or_default();
    assert!(text.contains("a budget is spent") && text.contains("chat-calls-max of 5"), "{text}");
    assert_eq!(controller.chats().len(), 5);
    host.idle().await;
}

#[tokio::test]
async fn data_that_a_guest_stores_is_bounded_and_the_error_names_the_limit() {
    let controller = Controller::start().await;
    let limits = "[limits]\nartifact-bytes-max = 4194304\nrecord-bytes-max = 4194304\n";
    let host = TestHost::of("keep_too_much").config(limits).start().await;

    let result = host.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;

    let report = report(&result);
    assert!(report["artifacts"].as_str().unwrap_or_default().contains("artifact-bytes-max"), "{report}");
    assert!(report["messages"].as_str().unwrap_or_default().contains("record-bytes-max"), "{report}");
    host.idle().await;
}

#[tokio::test]
async fn a_workflow_that_fails_because_of_the_model_is_not_at_fault() {
    let controller = Controller::start().await;
    let host = TestHost::start("conform").await;
    controller.answer_chats([rollout_tests::Answer::Status(400, json!({"error": "no such model"}))]);

    let result = host.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;

    let expected = Failure { category: "http_error", message: &["refused with 400", "no such model"] };
    check_failure(&result, &expected);
    check_still_works(&host, &controller).await;
}

#[tokio::test]
async fn an_invalid_configuration_fails_the_rollout_and_names_the_field() {
    let controller = Controller::start().await;
    let host = TestHost::of("configured").config("[plugin]\nanswer = 'five'\n").start().await;

    let result = host.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;

    check_failure(&result, &Failure { category: "validation_error", message: &["config: field `answer`"] });
    host.idle().await;
}

#[tokio::test]
async fn a_configuration_reaches_the_plugin() {
    let controller = Controller::start().await;
    let host = TestHost::of("configured").config("[plugin]\nanswer = 5\ngreeting = 'Ahoy.'\n").start().await;

    let result = host.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;

    assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
    assert_eq!(result["sample"]["messages"][1]["content"], "Ahoy. #### 5");
}
