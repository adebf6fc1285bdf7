//! Tests of metrics for Prometheus, and of log lines.

use rollout_tests::{Answer, Controller, Exposition, TestHost};
use serde_json::{Value, json};

/// Checks the series of a family that are not zero.
fn check_counted(metrics: &Exposition, family: &str, expected: &[(&str, f64)]) {
    let family = format!("rollout_host_{family}");
    assert_eq!(metrics.counted(&family), expected.iter().copied().collect(), "{family}");
}

fn check_value(metrics: &Exposition, series: &str, expected: f64) {
    assert_eq!(metrics.get(&format!("rollout_host_{series}")), Some(expected), "{series}");
}

#[tokio::test]
async fn the_counters_are_exact() {
    let controller = Controller::start().await;
    let host = TestHost::of("give_up").option("--max-concurrent", 2).option("--queue-max", 1).start().await;
    let ordinary = || controller.rollout("Calculate 2 + 3.").label("5");

    host.run(&ordinary()).await;
    host.run(&ordinary().label("6")).await;
    host.run(&controller.rollout("misbehave").label("5")).await;
    controller.answer_chats([Answer::Status(400, json!({"error": "no"}))]);
    host.run(&ordinary()).await;
    controller.answer_chats([Answer::Soon(503)]);
    host.run(&ordinary()).await;
    controller.answer_callbacks([Answer::Soon(503)]);
    assert_eq!(host.ask(&ordinary().with_callbacks("key")).await.status, 202);
    controller.callbacks_arrived(3).await;
    host.idle().await;

    controller.hold();
    host.run(&ordinary().agent_secs(0.3)).await;
    controller.chats_open(0).await;
    let first = ordinary();
    let running = [host.admit(&first).await, host.admit(&ordinary()).await];
    controller.chats_open(2).await;
    let waiting = host.admit(&ordinary()).await;
    assert_eq!(host.ask(&ordinary()).await.status, 429);
    assert_eq!(host.ask(&first).await.status, 409);
    assert_eq!(host.post("/rollout", &json!({})).await.status, 422);
    let busy = host.metrics().await;
    host.cancel(&waiting.id).await;
    host.cancel(&running[0].id).await;
    controller.release();
    host.result(&running[1]).await;
    host.idle().await;
    let metrics = host.metrics().await;

    check_value(&busy, "rollouts_running", 2.0);
    check_value(&busy, "rollouts_queued", 1.0);
    check_value(&busy, "rollouts_running_max", 2.0);
    check_value(&busy, "model_calls_in_flight", 2.0);
    for gauge in ["rollouts_running", "rollouts_queued", "model_calls_in_flight"] {
        check_value(&metrics, gauge, 0.0);
    }
    check_value(&metrics, "rollouts_accepted_total", 10.0);
    check_counted(
        &metrics,
        "rollouts_refused_total",
        &[(r#"reason="full""#, 1.0), (r#"reason="duplicate""#, 1.0), (r#"reason="invalid""#, 1.0)],
    );
    check_counted(
        &metrics,
        "rollouts_ended_total",
        &[
            (r#"fault="none",kind="none",outcome="scored",stage="none""#, 5.0),
            (r#"fault="plugin",kind="error",outcome="unscored",stage="workflow""#, 1.0),
            (r#"fault="model",kind="model",outcome="unscored",stage="workflow""#, 1.0),
            (r#"fault="plugin",kind="timeout",outcome="unscored",stage="workflow""#, 1.0),
            (r#"fault="caller",kind="cancelled",outcome="unscored",stage="workflow""#, 1.0),
            (r#"fault="caller",kind="cancelled",outcome="unscored",stage="queue""#, 1.0),
        ],
    );
    check_counted(
        &metrics,
        "model_calls_total",
        &[(r#"outcome="replied""#, 5.0), (r#"outcome="refused""#, 1.0), (r#"outcome="abandoned""#, 2.0)],
    );
    check_value(&metrics, "model_retries_total", 1.0);
    check_counted(&metrics, "tokens_total", &[(r#"kind="prompt""#, 35.0), (r#"kind="completion""#, 15.0)]);
    check_counted(&metrics, "callbacks_total", &[(r#"outcome="delivered""#, 2.0)]);
    check_value(&metrics, "callback_retries_total", 1.0);
    check_counted(&metrics, "limit_hits_total", &[(r#"limit="caller-deadline""#, 1.0)]);
    for (step, times) in [
        ("queue", 9.0),
        ("instance_start", 14.0),
        ("workflow", 9.0),
        ("model_call", 8.0),
        ("grader", 5.0),
        ("callback", 2.0),
        ("trajectory_write", 10.0),
        ("rollout", 10.0),
    ] {
        check_value(&metrics, &format!("{step}_seconds_count"), times);
    }
    check_value(&metrics, "guest_memory_peak_bytes_count", 10.0);
    let cpu = metrics.get("rollout_host_guest_cpu_seconds_total").unwrap();
    assert!(cpu > 0.0 && cpu < 60.0, "the guests used {cpu} s of CPU time");
    assert!(metrics.get("rollout_host_host_calls_total").unwrap() >= 9.0);
    let waited = metrics.get("rollout_host_model_call_seconds_sum").unwrap();
    assert!((0.25..60.0).contains(&waited), "a call was held for 0.3 s, and the sum is {waited} s");
}

#[tokio::test]
async fn an_unavailable_model_is_distinguished_from_one_that_refuses() {
    let controller = Controller::start().await;
    let host = TestHost::of("give_up").config("[model]\nattempts-max = 2\n").start().await;
    controller.answer_chats([Answer::Soon(503), Answer::Soon(503)]);

    host.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    host.idle().await;
    let metrics = host.metrics().await;

    check_counted(&metrics, "model_calls_total", &[(r#"outcome="unavailable""#, 1.0)]);
    check_value(&metrics, "model_retries_total", 1.0);
}

#[tokio::test]
async fn a_limit_that_fires_is_counted_under_its_name() {
    let check = async |guest: &str, limits: &str, text: &str, expected: &[&str]| {
        let controller = Controller::start().await;
        let host = TestHost::of(guest).config(&format!("[limits]\n{limits}")).start().await;
        host.run(&controller.rollout(text).label("5")).await;
        host.idle().await;
        let metrics = host.metrics().await;
        let hits: Vec<&str> = metrics.counted("rollout_host_limit_hits_total").into_keys().collect();
        let expected: Vec<String> = expected.iter().map(|name| format!("limit=\"{name}\"")).collect();
        assert_eq!(hits, expected, "{guest} with {limits}");
        metrics
    };
    check("over_allocate", "memory-bytes-max = 33554432\n", "misbehave", &["memory-bytes-max"]).await;
    check("spin", "workflow-secs-max = 0.5\n", "misbehave", &["workflow-secs-max"]).await;
    check("spin", "guest-cpu-secs-max = 0.3\n", "misbehave", &["guest-cpu-secs-max"]).await;
    check("greedy", "chat-tokens-max = 50\n", "Calculate 2 + 3.", &["chat-tokens-max"]).await;
    check("greedy", "host-calls-max = 20\n", "Calculate 2 + 3.", &["host-calls-max"]).await;
    check("give_up", "handles-max = 1\n", "Calculate 2 + 3.", &["handles-max"]).await;
    check("give_up", "host-call-bytes-max = 16\n", "Calculate 2 + 3.", &["host-call-bytes-max"]).await;
    check("give_up", "message-bytes-max = 16\n", "Calculate 2 + 3.", &["message-bytes-max"]).await;
    check("greedy", "chat-calls-max = 5\n", "Calculate 2 + 3.", &["chat-calls-max"]).await;
    check("spin_with_calls", "concurrent-calls-max = 1\n", "misbehave", &["concurrent-calls-max"]).await;
    check("two_samples", "samples-max = 1\n", "Calculate 2 + 3.", &["samples-max"]).await;
    check("give_up", "reply-bytes-max = 16\n", "Calculate 2 + 3.", &["reply-bytes-max"]).await;
    let kept = "artifact-bytes-max = 4194304\nrecord-bytes-max = 4194304\n";
    check("keep_too_much", kept, "Calculate 2 + 3.", &["artifact-bytes-max", "record-bytes-max"]).await;
    check(
        "keep_too_much",
        "artifacts-max = 2\nrecord-bytes-max = 4194304\n",
        "Calculate 2 + 3.",
        &["artifacts-max", "record-bytes-max"],
    )
    .await;
    let noisy = check("noisy", "log-lines-max = 100\n", "misbehave", &["log-lines-max"]).await;
    let dropped = noisy.get("rollout_host_log_entries_dropped_total").unwrap();
    assert!(dropped >= 3.0 * 20_000.0 - 100.0, "{dropped} log entries were dropped");
}

#[tokio::test]
async fn metrics_require_the_key_like_every_route() {
    let key = "the-key-of-this-server";
    let host = TestHost::of("give_up")
        .option("--server-key-env", "KEY_OF_THE_TEST")
        .variable("KEY_OF_THE_TEST", key)
        .start()
        .await;

    let without = host.get("/metrics").await;
    let host = host.with_key(key);
    let with = host.get("/metrics").await;

    assert_eq!(without.status, 401, "{}", without.text);
    assert!(!without.text.contains("rollout_host_"), "{}", without.text);
    assert_eq!(with.status, 200);
    let kind = with.headers.get("content-type").and_then(|value| value.to_str().ok());
    assert_eq!(kind, Some("text/plain; version=0.0.4; charset=utf-8"));
    assert!(!with.text.contains(key));
}

#[tokio::test]
async fn nothing_that_a_caller_or_guest_names_becomes_a_series() {
    let controller = Controller::start().await;
    let host = TestHost::start("give_up").await;
    let run = async |number: u32| {
        let id = format!("caller-chose-{number}");
        let request = controller.rollout(&format!("Calculate {number} + 3.")).label("a-label-41").id(&id);
        host.run(&request.with("metadata", json!({"a-metadata-key": "x"}))).await;
        host.run(&controller.rollout("misbehave").id(&format!("{id}-fails")).label("a-label-41")).await;
        host.idle().await;
    };

    run(0).await;
    let before = host.metrics().await;
    for number in 1..20 {
        run(number).await;
    }
    let after = host.get("/metrics").await.text;

    for named in ["caller-chose", "a-label-41", "a-metadata-key", "this guest gives up", "127.0.0.1"] {
        assert!(!after.contains(named), "{named} is in\n{after}");
    }
    let after = Exposition::parse(&after).unwrap();
    assert_eq!(after.names(), before.names());
    check_value(&after, "rollouts_accepted_total", 40.0);
    assert!(after.families().all(|family| family.starts_with("rollout_host_")));
}

#[tokio::test]
async fn the_process_reports_its_resources_and_version() {
    let host = TestHost::start("give_up").await;

    let metrics = host.metrics().await;

    for (gauge, least) in [("resident_memory_bytes", 1e6), ("open_fds", 3.0), ("memory_mappings", 10.0)] {
        let value = metrics.get(&format!("rollout_host_{gauge}"));
        assert!(value.is_some_and(|value| value >= least), "{gauge} is {value:?}");
    }
    let builds = metrics.counted("rollout_host_build_info");
    assert_eq!(builds.len(), 1, "{builds:?}");
    assert!(builds.keys().all(|labels| labels.starts_with("version=\"")), "{builds:?}");
}

/// Returns the JSON log lines with this message.
fn lines(log: &str, message: &str) -> Vec<Value> {
    log.lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|line| line["fields"]["message"] == message)
        .collect()
}

#[tokio::test]
async fn a_log_line_about_a_rollout_has_its_id() {
    let controller = Controller::start().await;
    let host = TestHost::of("spin_with_calls")
        .option("--log-format", "json")
        .variable("ROLLOUT_HOST_LOG", "rollout_host=debug")
        .start()
        .await;
    let spins = controller.rollout("misbehave").label("5").id("it-spins").agent_secs(0.5);
    let scored = controller.rollout("Calculate 2 + 3.").label("5").id("it-is-scored");
    let not_reached =
        controller.rollout("Calculate 2 + 3.").label("5").id("it-is-told").with_callbacks("key");
    // A separate task handles each call that the guest starts.
    controller.answer_chats([Answer::Soon(503), Answer::Soon(503)]);

    host.run(&spins).await;
    host.run(&scored).await;
    controller.answer_callbacks([Answer::Status(400, json!({}))]);
    host.ask(&not_reached).await;
    controller.callbacks_arrived(2).await;
    host.idle().await;
    let log = host.stop().await.stderr;

    let check = |message: &str, id: &str, level: &str| {
        let lines = lines(&log, message);
        assert!(!lines.is_empty(), "no line says {message:?}\n{log}");
        let right = |line: &Value| line["span"] == json!({"name": "rollout", "rollout_id": id});
        assert!(lines.iter().any(right), "{id}: {lines:#?}");
        assert!(lines.iter().any(|line| right(line) && line["level"] == level), "{level}: {lines:#?}");
    };
    check("retrying the call of the model", "it-spins", "DEBUG");
    assert_eq!(lines(&log, "retrying the call of the model").len(), 2, "{log}");
    assert!(
        lines(&log, "retrying the call of the model")
            .iter()
            .all(|line| line["span"]["rollout_id"] == "it-spins")
    );
    check("rollout unscored", "it-spins", "INFO");
    check("rollout scored", "it-is-scored", "DEBUG");
    check("completion callback not delivered", "it-is-told", "WARN");
}

#[tokio::test]
async fn rollouts_that_fail_by_the_hundred_do_not_fill_the_log() {
    let controller = Controller::start().await;
    let host = TestHost::of("give_up").option("--log-format", "json").start().await;

    let mut all = Vec::new();
    for _ in 0..200 {
        all.push(host.admit(&controller.rollout("misbehave").label("5")).await);
    }
    for rollout in &all {
        host.result(rollout).await;
    }
    let log = host.stop().await.stderr;

    let logged = lines(&log, "rollout unscored");
    assert!(!logged.is_empty() && logged.len() < 200, "{} lines", logged.len());
    assert_eq!(logged[0]["fields"]["reason"], "this guest gives up");
    assert_eq!(lines(&log, "rollout scored").len(), 0);
}
