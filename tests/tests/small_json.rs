//! Tests of JSON with very many tiny parts, from guests, models and callers: the host's memory is proportional to the
//! received bytes, and it stores the bytes that it received.

use rollout_tests::{Answer, Controller, RolloutRequest, Serve, TestHost};
use serde_json::{Value, json};

/// The memory of the host in addition to the bytes: a guest's memory, buffers, and the allocator's reserve.
const REST_MIB: usize = 64;

/// Returns a value of the process's status, in KiB.
fn status_kib(host: &TestHost, name: &str) -> usize {
    let path = format!("/proc/{}/status", host.process().id().expect("it runs"));
    let status = std::fs::read_to_string(path).expect("this is a Linux");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a process has memory");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("it is a number")
}

/// Returns the maximum growth of the process's memory during some work, in MiB.
async fn growth_mib<T>(host: &TestHost, work: impl Future<Output = T>) -> (T, usize) {
    let clear = format!("/proc/{}/clear_refs", host.process().id().expect("it runs"));
    std::fs::write(clear, "5").expect("the peak of a child process can be reset");
    let before = status_kib(host, "VmRSS");
    let done = work.await;
    (done, status_kib(host, "VmHWM").saturating_sub(before) >> 10)
}

fn of(guest: &str) -> Serve {
    TestHost::of(guest).config("[model]\nattempts-max = 1\n")
}

/// Returns a request for a rollout without grading.
fn ungraded(controller: &Controller, text: &str) -> RolloutRequest {
    controller.rollout(text).with("grade", false)
}

fn code(result: &Value) -> (&str, &str) {
    (result["status"].as_str().unwrap_or(""), result["err_message"].as_str().unwrap_or(""))
}

#[tokio::test]
async fn half_a_million_messages_of_a_guest_take_about_their_bytes() {
    let controller = Controller::start().await;
    let host = of("small_json").start().await;
    // Instances allocate their memory when they are first created.
    host.run(&ungraded(&controller, "2 + 3")).await;
    for what in ["push", "return"] {
        let request = ungraded(&controller, what);

        let (result, mib) = growth_mib(&host, host.run(&request)).await;

        assert_eq!(result["status"], "success", "{:?}", code(&result));
        assert_eq!(result["sample"]["messages"].as_array().map(Vec::len), Some(500_000));
        assert!(mib < REST_MIB + 4 * 17, "{what}: 17 MiB, with a reference for each message, took {mib} MiB");
        let document = host.trajectory(request.rollout_id()).await;
        assert_eq!(document["final_metrics"]["total_steps"], 500_000);
    }
}

#[tokio::test]
async fn a_message_and_a_field_of_half_a_million_parts_take_about_their_bytes() {
    let controller = Controller::start().await;
    let host = of("small_json").start().await;
    host.run(&ungraded(&controller, "2 + 3")).await;
    for (what, bytes_mib) in [("calls", 2), ("field", 12)] {
        let request = ungraded(&controller, what);

        let (result, mib) = growth_mib(&host, host.run(&request)).await;

        assert_eq!(result["status"], "success", "{:?}", code(&result));
        // The guest builds its text from parts, and its memory doubles when it grows.
        assert!(mib < REST_MIB + 8 * bytes_mib, "{what}: {bytes_mib} MiB took {mib} MiB");
        let path = host.kept().join(request.rollout_id()).join("trajectory.json");
        let file_mib = std::fs::metadata(path).expect("it is written").len() as usize >> 20;
        assert!(file_mib <= 4 * bytes_mib, "{what}: {bytes_mib} MiB are {file_mib} MiB on disk");
    }
}

#[tokio::test]
async fn a_reply_of_very_many_tool_calls_is_the_models_fault_and_takes_about_its_bytes() {
    let controller = Controller::start().await;
    let host = of("conform").start().await;
    host.run(&ungraded(&controller, "2 + 3")).await;
    let reply = |calls: usize| {
        let calls = vec!["{}"; calls].join(",");
        let reply = format!(r#"{{"choices":[{{"message":{{"role":"assistant","tool_calls":[{calls}]}}}}]}}"#);
        // The answer is leaked, because it must be static.
        Answer::Text(Box::leak(reply.into_boxed_str()))
    };
    controller.answer_chats([reply(700_000), reply(1024)]);

    let (result, mib) = growth_mib(&host, host.run(&ungraded(&controller, "2 + 3"))).await;

    let (status, why) = code(&result);
    assert_eq!((status, &result["err_category"]), ("failure", &json!("http_error")), "{result}");
    assert!(why.contains("more than 1024 tool calls"), "{why}");
    assert!(mib < REST_MIB + 4 * 2, "2 MiB took {mib} MiB");
    let result = host.run(&ungraded(&controller, "2 + 3")).await;
    assert_eq!(result["sample"]["messages"][1]["tool_calls"].as_array().map(Vec::len), Some(1024));
}

#[tokio::test]
async fn a_reply_of_many_other_parts_takes_about_its_bytes() {
    let controller = Controller::start().await;
    let host = of("conform").start().await;
    host.run(&ungraded(&controller, "2 + 3")).await;
    let many = |part: &str| vec![part; 700_000].join(",");
    let reply = format!(
        r#"{{"choices":[{{"message":{{"role":"assistant","content":"x","other":[{}]}},"logprobs":[{}]}},{}],"usage":{{"prompt_tokens":7}}}}"#,
        many("{}"),
        many("{}"),
        many("0")
    );
    controller.answer_chats([Answer::Text(Box::leak(reply.into_boxed_str()))]);
    let request = ungraded(&controller, "2 + 3");

    let (result, mib) = growth_mib(&host, host.run(&request)).await;

    assert_eq!(result["status"], "success", "{:?}", code(&result));
    // The guest stores the message as parsed values.
    assert!(mib < 2 * REST_MIB + 4 * 6, "6 MiB took {mib} MiB");
    let document = host.trajectory(request.rollout_id()).await;
    let observed = &document["extra"]["rollout_host"]["observed"][0];
    assert_eq!(observed["reply"]["choices"].as_array().map(Vec::len), Some(700_001));
}

#[tokio::test]
async fn too_many_sampling_parameters_are_refused_with_the_limit() {
    let controller = Controller::start().await;
    let host = of("small_json").start().await;
    host.run(&ungraded(&controller, "2 + 3")).await;

    let (result, mib) = growth_mib(&host, host.run(&ungraded(&controller, "params"))).await;

    let error = result["sample"]["messages"][0]["content"].as_str().unwrap_or_default();
    assert!(error.contains("more than 256 members"), "{result}");
    assert!(mib < REST_MIB + 8 * 5, "5 MiB took {mib} MiB");
}

#[tokio::test]
async fn a_report_of_very_many_calls_takes_about_its_bytes() {
    let controller = Controller::start().await;
    let host = of("conform").start().await;
    host.run(&ungraded(&controller, "2 + 3")).await;
    let calls = vec!["{}"; 1_000_000].join(",");
    let report = format!(r#"{{"trajectory":{{"samples":{{"s":{{"llm_call_metrics":[{calls}]}}}}}}}}"#);
    let report = Answer::Text(Box::leak(report.into_boxed_str()));
    controller.answer_callbacks([report, Answer::Status(200, json!({}))]);
    let request = controller.rollout("2 + 3").label("5").with_callbacks("k");

    let work = async {
        host.ask(&request).await;
        controller.callbacks_arrived(2).await;
        host.idle().await;
    };
    let ((), mib) = growth_mib(&host, work).await;

    assert!(mib < REST_MIB + 4 * 3, "3 MiB took {mib} MiB");
    let document = host.trajectory(request.rollout_id()).await;
    let unmatched = &document["extra"]["osmosis"]["unmatched_llm_call_metrics"];
    assert_eq!(unmatched.as_array().map(Vec::len), Some(1_000_000));
}

#[tokio::test]
async fn a_guest_that_is_stopped_within_a_call_of_samples_ends_alone() {
    let controller = Controller::start().await;
    let host = TestHost::start("small_json").await;
    for _ in 0..3 {
        let result = host.run(&ungraded(&controller, "for ever").agent_secs(0.5)).await;
        assert_eq!(result["err_category"], "timeout", "{result}");
        // The guest's last call continues for a moment; an honest rollout runs after it.
        assert_eq!(host.run(&ungraded(&controller, "2 + 3")).await["status"], "success");
    }
    let ran = host.stop().await;
    assert!(!ran.stderr.contains("panicked"), "{}", ran.stderr);
}

#[tokio::test]
async fn samples_with_similar_names_have_separate_trajectories() {
    let controller = Controller::start().await;
    let host = TestHost::of("small_json").start().await;
    let request = controller.rollout("names").as_b();
    host.ask(&request).await;
    controller.callbacks_arrived(2).await;

    for (name, file) in [
        ("a_b", "a_b"),
        ("a/b", "a%2Fb"),
        ("a%2Fb", "a%252Fb"),
        ("A_B", "A_B"),
        ("..", "%2E."),
        ("%2E.", "%252E."),
    ] {
        let document = host.document(request.rollout_id(), &format!("trajectory-{file}.json")).await;
        assert_eq!(document["steps"][0]["message"], name, "{file}");
    }
}

#[tokio::test]
async fn the_calls_of_an_agents_own_tools_are_in_its_usage() {
    let controller = Controller::start().await;
    let host = TestHost::start("small_json").await;
    let (with_tools, without) = (ungraded(&controller, "tools"), ungraded(&controller, "2 + 3"));
    host.run(&with_tools).await;
    host.run(&without).await;

    let usage = async |request: &RolloutRequest| {
        host.trajectory(request.rollout_id()).await["extra"]["rollout_host"]["usage"]["tool_calls"].clone()
    };
    assert_eq!(usage(&with_tools).await, 2);
    assert_eq!(usage(&without).await, 0);
}

#[tokio::test]
async fn an_event_cannot_claim_to_belong_to_another_rollout() {
    let controller = Controller::start().await;
    let host = TestHost::of("small_json").option("--log", "events").start().await;
    let request = controller.rollout("event");
    host.run(&request).await;

    let folder = std::fs::read_dir(host.dir().join("events")).unwrap().flatten().next().unwrap();
    let file = folder.path().join(format!("{}.jsonl", request.rollout_id()));
    let text = std::fs::read_to_string(file).unwrap();
    assert_eq!(
        text,
        format!("{{\"event\":\"forged\",\"rollout_id\":\"{}\",\"x\":1}}\n", request.rollout_id())
    );
}

#[tokio::test]
async fn an_id_and_a_reason_cannot_inject_lines_into_the_log() {
    let controller = Controller::start().await;
    let host = TestHost::start("conform").await;
    let id = "r\nERROR forged\u{1b}[2J\u{2028}x";
    // A refused callback is logged.
    controller.answer_callbacks([Answer::Status(400, json!({})), Answer::Status(400, json!({}))]);
    let request = controller.rollout("2 + 3").label("5").with_callbacks("k").id(id);
    host.ask(&request).await;
    controller.callbacks_arrived(2).await;
    let ran = host.stop().await;

    let about: Vec<&str> = ran.stderr.lines().filter(|line| line.contains("forged")).collect();
    assert!(!about.is_empty(), "{}", ran.stderr);
    let shown = r"r\nERROR forged\u{1b}[2J\u{2028}x";
    assert!(about.iter().all(|line| line.contains(shown)), "{about:#?}");
}
