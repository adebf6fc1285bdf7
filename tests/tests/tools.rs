//! Tests of tools from components, with a separate instance for each call.

use std::collections::BTreeSet;

use rollout_tests::{Serve, Start, call, call_as, guest, rollout_host};
use serde_json::{Value, json};

/// Returns options of a host that provides a component's tools, with additional lines of its entry.
fn providing(guest_name: &str, lines: &str) -> Serve {
    let path = guest(guest_name).display().to_string();
    rollout_tests::providing(&format!("[[tools.component]]\npath = {path:?}\n{lines}\n"))
}

#[tokio::test]
async fn a_components_tools_are_offered_called_and_recorded() {
    let host = providing("tool_kit", "prefix = 'kit_'\nconfig = { greeting = 'Good day.' }").start().await;

    let called =
        call(&host, json!([["kit_upper", {"text": "aé"}], ["kit_greet", {}], ["kit_refuse", {}]])).await;

    let offered = called.offered();
    assert!(offered.contains(&"kit_upper") && offered.len() == 9, "{offered:?}");
    assert_eq!(called.results(), [("AÉ", false), ("Good day.", false), ("Error: this tool refuses", true)]);
    let ids: Vec<&Value> =
        called.report["results"].as_array().unwrap().iter().map(|result| &result["id"]).collect();
    assert_eq!(ids, ["call_0", "call_1", "call_2"]);
    let [upper, _, refuse] = called.observed() else { panic!("{:#}", called.trajectory) };
    assert_eq!((&upper["function_name"], &upper["kind"]), (&json!("kit_upper"), &json!("component")));
    assert_eq!((&upper["arguments"], &upper["content"]), (&json!(r#"{"text":"aé"}"#), &json!("AÉ")));
    assert_eq!((&upper["outcome"], &upper["tool_call_id"]), (&json!("answered"), &json!("call_0")));
    assert!(
        upper["duration_ms"].as_f64().unwrap() > 0.0 && upper["started_at_unix_ms"].as_u64().unwrap() > 0
    );
    assert_eq!(
        (&refuse["outcome"], &refuse["error"]),
        (&json!("failed"), &json!("Error: this tool refuses"))
    );
    assert_eq!(called.trajectory["extra"]["rollout_host"]["usage"]["tool_calls"], 3);
    let metrics = host.metrics().await;
    assert_eq!(
        metrics.get(r#"rollout_host_tool_calls_total{kind="component",outcome="answered"}"#),
        Some(2.0)
    );
    assert_eq!(metrics.get(r#"rollout_host_tool_calls_total{kind="component",outcome="failed"}"#), Some(1.0));
    assert_eq!(metrics.get(r#"rollout_host_tool_seconds_count{kind="component"}"#), Some(3.0));
}

#[tokio::test]
async fn started_calls_can_be_collected_as_they_finish() {
    let host = providing("tool_kit", "").start().await;

    let calls = json!([["upper", {"text": "a"}], ["none", {}], ["upper", {"text": "b"}]]);
    let called = call_as(&host, json!({"calls": calls, "start": true})).await;

    let results: BTreeSet<(&str, bool)> = called.results().into_iter().collect();
    let expected = [("A", false), ("B", false), ("Error: no tool 'none' is provided to this plugin", true)];
    assert_eq!(results, BTreeSet::from(expected));
}

#[tokio::test]
async fn invalid_arguments_are_reported_to_the_model() {
    let host = providing("tool_kit", "").start().await;

    let called = call(&host, json!([["upper", "{no json"], ["upper", {"txt": "a"}], ["upper", ""]])).await;

    for (content, is_error) in called.results() {
        assert!(content.starts_with("Error: the arguments: ") && is_error, "{content}");
    }
}

#[tokio::test]
async fn every_call_has_a_new_instance_that_sees_nothing_of_the_rollout() {
    let host = providing("tool_kit", "").start().await;

    let called = call(&host, json!([["seen", {}], ["seen", {}]])).await;

    let seen: Vec<Value> =
        called.results().iter().map(|(content, _)| serde_json::from_str(content).unwrap()).collect();
    assert_eq!(seen[0]["environment"], json!([]));
    assert_ne!(seen[0]["random"], seen[1]["random"], "two calls draw the same numbers");
}

/// Checks that a call of a hostile tool ends in this error, and that the next call succeeds.
async fn check_hostile(lines: &str, call_of: Value, outcome: &str, expected: &str) {
    let host = providing("tool_kit", lines).start().await;

    let called = call(&host, json!([call_of, ["upper", {"text": "on"}]])).await;

    let results = called.results();
    let (content, is_error) = results[0];
    assert!(content.starts_with("Error: ") && content.contains(expected) && is_error, "{content}");
    assert_eq!(called.observed()[0]["outcome"], outcome, "{:#}", called.observed()[0]);
    assert_eq!(results[1], ("ON", false));
}

#[tokio::test]
async fn a_tool_that_spins_is_stopped_at_its_cpu_time() {
    check_hostile("cpu-secs-max = 0.2", json!(["never", {}]), "over-limit", "cpu-secs-max, 0.2 s").await;
}

#[tokio::test]
async fn a_tool_that_spins_is_stopped_at_its_deadline() {
    let lines = "deadline-secs = 0.5\ncpu-secs-max = 60.0";
    check_hostile(lines, json!(["never", {}]), "over-limit", "no result within deadline-secs, 0.5 s").await;
}

#[tokio::test]
async fn a_tool_that_panics_gives_an_error_with_its_message() {
    check_hostile("", json!(["panic", {}]), "unavailable", "this tool panics").await;
}

#[tokio::test]
async fn a_tool_that_takes_memory_is_stopped_at_its_own_limit() {
    let lines = "memory-bytes-max = 8388608";
    check_hostile(lines, json!(["grow", {}]), "over-limit", "memory-bytes-max, 8388608 bytes").await;
}

#[tokio::test]
async fn a_result_that_is_too_long_is_an_error() {
    let lines = "result-bytes-max = 1000";
    let expected = "1001 bytes, more than result-bytes-max, 1000 bytes";
    check_hostile(lines, json!(["large", {"bytes": 1001}]), "over-limit", expected).await;
    let expected = "far longer than result-bytes-max";
    check_hostile(lines, json!(["large", {"bytes": 10_000_000}]), "over-limit", expected).await;
}

#[tokio::test]
async fn a_tool_that_calls_the_host_endlessly_is_stopped() {
    check_hostile("", json!(["chatter", {}]), "over-limit", "made more than 10000 host calls").await;
}

#[tokio::test]
async fn one_rollout_calls_a_tool_as_often_as_its_budget_allows() {
    let host = providing("tool_kit", "calls-max = 2").start().await;
    let upper = json!(["upper", {"text": "a"}]);

    let called = call(&host, json!([upper, upper, upper, ["greet", {}]])).await;
    let again = call(&host, json!([upper])).await;

    let results = called.results();
    assert_eq!(results[1], ("A", false));
    assert!(results[2].0.contains("calls-max of 2 calls of this tool in one rollout"), "{}", results[2].0);
    assert_eq!(called.observed()[2]["outcome"], "over-limit");
    assert_eq!(results[3], ("", false), "another tool has a budget of its own");
    assert_eq!(again.results(), [("A", false)], "another rollout has a budget of its own");
    let metrics = host.metrics().await;
    assert_eq!(metrics.get(r#"rollout_host_limit_hits_total{limit="tools.calls-max"}"#), Some(1.0));
}

#[tokio::test]
async fn calls_beyond_the_concurrency_limit_wait_within_their_deadline() {
    let lines = "concurrent-max = 1\ndeadline-secs = 1.0\ncpu-secs-max = 60.0";
    let host = providing("tool_kit", lines).start().await;

    let called = call(&host, json!([["never", {}], ["never", {}]])).await;
    let in_turn = call(&host, json!([["upper", {"text": "a"}], ["upper", {"text": "b"}]])).await;

    let mut errors: Vec<&str> = called.results().iter().map(|(content, _)| *content).collect();
    errors.sort_unstable();
    assert!(errors[0].contains("busy: concurrent-max of 1 calls at once"), "{errors:?}");
    assert!(errors[1].contains("no result within deadline-secs"), "{errors:?}");
    assert_eq!(in_turn.results(), [("A", false), ("B", false)]);
}

#[tokio::test]
async fn the_number_of_a_rollouts_calls_in_progress_is_limited() {
    let host = providing("tool_kit", "").option("--limit-concurrent-calls-max", 2).start().await;
    let upper = json!(["upper", {"text": "a"}]);

    let called = call(&host, json!([upper, upper, upper])).await;

    let refused =
        called.results().iter().filter(|(content, _)| content.contains("concurrent-calls-max of 2")).count();
    assert_eq!(refused, 1, "{:?}", called.results());
}

#[tokio::test]
async fn results_of_tools_are_charged_to_the_rollout() {
    let host = providing("tool_kit", "").option("--limit-record-bytes-max", 20_000).start().await;

    let called = call(&host, json!([["large", {"bytes": 30_000}], ["upper", {"text": "a"}]])).await;

    assert!(called.results()[0].0.contains("record-bytes-max of 20000 bytes"), "{:?}", called.results());
    assert_eq!(called.results()[1], ("A", false));
}

/// Checks that the host does not start, and prints all of these texts.
async fn check_refused(config: &str, expected: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.toml");
    std::fs::write(&path, config).unwrap();
    let mut command = rollout_host(["serve"]);
    command.arg(guest("call_host_tools")).args(["--listen", "127.0.0.1:0", "--config"]).arg(&path);
    let ran = command.current_dir(dir.path()).start().ended().await;
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    for part in expected {
        assert!(ran.stderr.contains(part), "{part:?} is not in\n{}", ran.stderr);
    }
}

#[tokio::test]
async fn every_mistake_in_the_fields_is_reported_at_once() {
    let config = "
        [[tools.component]]
        prefix = 'a b'
        deadline-secs = 0.0
        [[tools.component]]
        path = 'x.wasm'
        concurrent-max = 0
        calls-max = 0
        result-bytes-max = 0
        memory-bytes-max = 5
        [[tools.mcp]]
        [[tools.mcp]]
        command = ['x']
        url = 'http://h/'
        [[tools.mcp]]
        command = []
        headers = { a = 'b' }
        [[tools.mcp]]
        url = 'h'
        variables = { 'a b' = '${' }
        [[tools.http]]
        [[tools.http]]
        name = 'a b'
        url = 'http://h/{x}'
        [[tools.http]]
        name = 'a'
        method = 'FETCH'
        url = '{url}'
        headers = { 'a b' = 'x', c = '${no name}' }
        parameters = { type = 'object', properties = {} }
        [[tools.http]]
        name = 'a'
        url = 'http://{host}/'
        hosts = ['a/b']
    ";
    let expected = [
        "tools.component[0].path: missing",
        "tools.component[0].prefix: must be at most 32 letters",
        "tools.component[0].deadline-secs: must be more than 0",
        "tools.component[1].concurrent-max: must be between 1 and 1024",
        "tools.component[1].calls-max: must be at least 1; to disable the tool",
        "tools.component[1].result-bytes-max: must be between 1 and 16 MiB",
        "tools.component[1].memory-bytes-max: must be between",
        "tools.mcp[0].command: missing, and so is url",
        "tools.mcp[1].url: contradicts command",
        "tools.mcp[2].command: is empty",
        "tools.mcp[2].headers: apply only to a server with a url",
        "tools.mcp[3].url: not an http or https address",
        "tools.mcp[3].variables.a b: '${' without its '}'",
        "tools.http[0].name: missing",
        "tools.http[0].url: missing",
        "tools.http[1]: it is named 'a b'",
        "tools.http[2].method: must be GET",
        "tools.http[2].hosts: missing",
        "tools.http[2].headers.a b: not the name of a header",
        "tools.http[2].headers.c: 'no name' is not the name of an environment variable",
        "tools.http[2].parameters: properties has no 'url'",
        "tools.http[3].url: a placeholder in the host",
        "tools.http[3].hosts[0]: 'a/b' is not a host",
    ];
    check_refused(config, &expected).await;
}

#[tokio::test]
async fn secrets_that_are_not_set_are_named_before_anything_starts() {
    let config = "
        [[tools.http]]
        name = 'a'
        url = 'http://h/?key=${ROLLOUT_TEST_URL}'
        headers = { authorization = 'Bearer ${ROLLOUT_TEST_HEADER}' }
        [[tools.mcp]]
        command = ['x']
        environment = ['ROLLOUT_TEST_ENVIRONMENT']
        variables = { KEY = '${ROLLOUT_TEST_VARIABLE}' }
    ";
    let expected = [
        "tools.http[0]: url: the environment variable ROLLOUT_TEST_URL is not set",
        "tools.http[0]: headers.authorization: the environment variable ROLLOUT_TEST_HEADER is not set",
        "tools.mcp[0]: environment[0]: the environment variable ROLLOUT_TEST_ENVIRONMENT is not set",
        "tools.mcp[0]: variables.KEY: the environment variable ROLLOUT_TEST_VARIABLE is not set",
    ];
    check_refused(config, &expected).await;
}

#[tokio::test]
async fn components_that_cannot_be_provided_are_named_before_anything_starts() {
    let conform = guest("conform").display().to_string();
    let config =
        format!("[[tools.component]]\npath = 'none.wasm'\n[[tools.component]]\npath = {conform:?}\n");
    let expected =
        ["tools.component[0].path: cannot read none.wasm", "tools.component[1].path: ", "exports no tool"];
    check_refused(&config, &expected).await;
}

#[tokio::test]
async fn tools_that_no_model_could_call_are_named_before_anything_starts() {
    let path = |name: &str| format!("[[tools.component]]\npath = {:?}\n", guest(name).display().to_string());
    let kit = path("tool_kit");
    let config = format!("{}{kit}{kit}{kit}config = {{ greeting = 'none' }}\n", path("tool_misnamed"));
    let expected = [
        "tools.component[0]: its tool number 2 is named 'not fine', which is not 1 to 64 letters",
        "tools.component[0]: its tool number 3 is named ''",
        "tools.component[2]: provides 'upper', and so does tools.component[1]; `prefix` tells them apart",
        "tools.component[3]: its tools cannot be listed",
        "a greeting is needed",
    ];
    check_refused(&config, &expected).await;
}

#[tokio::test]
async fn inspect_shows_a_components_tools() {
    let kit = guest("tool_kit");
    let text = rollout_host(["inspect"]).arg(&kit).start().ended().await;
    assert_eq!(text.code, Some(0), "{}", text.stderr);
    for part in ["tools for others", "upper: Writes a text in capitals.", "can be provided"] {
        assert!(text.stdout.contains(part), "{part:?} is not in\n{}", text.stdout);
    }
    let json = rollout_host(["inspect", "--json"]).arg(&kit).start().ended().await;
    let about: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!((&about["servable"], &about["tool"]), (&json!(true), &json!(true)));
    assert_eq!(about["tools"][0]["function"]["parameters"]["required"], json!(["text"]));

    let misnamed = rollout_host(["inspect"]).arg(guest("tool_misnamed")).start().ended().await;
    assert_eq!(misnamed.code, Some(1));
    assert!(
        misnamed.stdout.contains("cannot be provided:\n  - the component: its tool number 2"),
        "{}",
        misnamed.stdout
    );
}
