//! Tests of tools from MCP servers: a real server, made with the official Python package, over both transports of the
//! protocol.
//!
//! `ROLLOUT_VENVS` names the directory of its environment, which `clients/setup` makes.

use std::path::{Path, PathBuf};

use rollout_tests::{
    Process, Serve, Start, TestHost, call, example, project_root, providing, rollout_host, target_dir, until,
};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::sync::OnceCell;

/// Returns the directory of the environments, which are created if necessary.
async fn environments() -> &'static Path {
    static VENVS: OnceCell<PathBuf> = OnceCell::const_new();
    let made = async || {
        let dir = std::env::var_os("ROLLOUT_VENVS").map_or_else(|| target_dir().join("venvs"), PathBuf::from);
        let setup = project_root().join("tests/clients/setup");
        let made = Command::new(setup).arg(&dir).output().await.expect("it can be run");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        dir
    };
    VENVS.get_or_init(made).await
}

/// Returns the Python with the package.
async fn python() -> PathBuf {
    environments().await.join("mcp/bin/python")
}

fn server_file() -> PathBuf {
    project_root().join("tests/clients/mcp_server.py")
}

/// Returns options of a host that starts the server, with additional lines of its entry.
async fn over_stdio(lines: &str) -> Serve {
    let command = [python().await, server_file(), "stdio".into()];
    let command: Vec<String> = command.iter().map(|part: &PathBuf| part.display().to_string()).collect();
    providing(&format!("[[tools.mcp]]\ncommand = {command:?}\n{lines}\n"))
}

/// Starts the server on a port, or on a free one for 0.
async fn listening(port: u16) -> (Process, u16) {
    let mut command = Command::new(python().await);
    let process = command.arg(server_file()).args(["http", &port.to_string()]).start();
    let port = process.line("ready on ").await.parse().expect("it prints its port");
    (process, port)
}

fn over_http(port: u16, lines: &str) -> Serve {
    providing(&format!("[[tools.mcp]]\nurl = 'http://127.0.0.1:{port}/mcp'\n{lines}\n"))
}

/// Checks the behaviour that both transports share.
async fn check_server(host: &TestHost) {
    let called = call(
        host,
        json!([
            ["test_add", {"a": 2, "b": 40}],
            ["test_fail", {"why": "because"}],
            ["test_add", {"a": "two"}],
            ["test_add", "{no json"],
            ["test_large", {"bytes": 2000}],
        ]),
    )
    .await;

    assert!(called.offered().contains(&"test_add") && !called.offered().contains(&"test_end"), "{called:#?}");
    let results = called.results();
    assert_eq!(results[0], ("42", false));
    for (place, expected) in
        [(1, "because"), (2, "a"), (3, "not valid JSON"), (4, "result-bytes-max, 1000 bytes")]
    {
        assert!(results[place].0.contains(expected) && results[place].1, "{:?}", results[place]);
    }
    let outcomes: Vec<&Value> = called.observed().iter().map(|call| &call["outcome"]).collect();
    assert_eq!(outcomes, ["answered", "failed", "failed", "failed", "over-limit"]);
    assert_eq!(called.observed()[0]["kind"], "mcp");
    let metrics = host.metrics().await;
    assert_eq!(metrics.get(r#"rollout_host_tool_calls_total{kind="mcp",outcome="answered"}"#), Some(1.0));
}

const LINES: &str =
    "prefix = 'test_'\nresult-bytes-max = 1000\nonly = ['add', 'fail', 'large', 'pid', 'wait']";

#[tokio::test]
async fn a_server_that_is_started_is_listed_and_called() {
    check_server(&over_stdio(LINES).await.start().await).await;
}

#[tokio::test]
async fn a_server_at_an_address_is_listed_and_called() {
    let (_server, port) = listening(0).await;
    check_server(&over_http(port, LINES).start().await).await;
}

/// Checks that a call without an answer ends at its deadline, and that the server continues.
async fn check_deadline(host: Serve) {
    let host = host.start().await;
    let called = call(&host, json!([["wait", {}]])).await;
    assert!(called.results()[0].0.contains("no result within deadline-secs, 1 s"), "{called:#?}");
    let again = call(&host, json!([["add", {"a": 1, "b": 1}]])).await;
    assert_eq!(again.results(), [("2", false)]);
}

#[tokio::test]
async fn a_call_that_is_not_answered_ends_at_its_deadline() {
    check_deadline(over_stdio("deadline-secs = 1.0").await).await;
    let (_server, port) = listening(0).await;
    check_deadline(over_http(port, "deadline-secs = 1.0")).await;
}

#[tokio::test]
async fn a_server_has_the_environment_that_the_operator_names_and_no_other() {
    let lines = "environment = ['NAMED']\nvariables = { TEST_SECRET = '${THE_SECRET}' }";
    let host = over_stdio(lines).await.variable("NAMED", "x").variable("THE_SECRET", "s3cret/value");

    let called = call(&host.start().await, json!([["environment", {}], ["secret", {}]])).await;

    let (environment, _) = called.results()[0];
    // The interpreter sets this variable itself if there is no locale.
    let names: Vec<String> = serde_json::from_str(environment).unwrap();
    let names: Vec<&str> = names.iter().map(String::as_str).filter(|name| *name != "LC_CTYPE").collect();
    assert_eq!(names, ["NAMED", "TEST_SECRET"]);
    assert_eq!(called.results()[1], ("it is (secret)", false), "a repeated secret is removed");
}

async fn pid(host: &TestHost) -> Pid {
    let called = call(host, json!([["pid", {}]])).await;
    let (text, is_error) = called.results()[0];
    assert!(!is_error, "{text}");
    Pid::from_raw(text.parse().expect("it is a number")).expect("it is not 0")
}

async fn gone(process: Pid) {
    until("the end of a process", async || test_kill_process(process).is_err().then_some(())).await;
}

#[tokio::test]
async fn a_server_that_is_killed_is_started_again() {
    let host = over_stdio("").await.start().await;
    let first = pid(&host).await;

    kill_process(first, Signal::KILL).unwrap();
    gone(first).await;
    let second = pid(&host).await;

    assert_ne!(first, second);
}

#[tokio::test]
async fn a_server_that_ends_within_a_call_is_an_error_and_is_started_again() {
    let host = over_stdio("").await.start().await;

    let called = call(&host, json!([["end", {}]])).await;
    let again = call(&host, json!([["add", {"a": 1, "b": 1}]])).await;

    assert!(called.results()[0].0.contains("lost before a response"), "{called:#?}");
    assert_eq!(called.observed()[0]["outcome"], "unavailable");
    assert_eq!(again.results(), [("2", false)]);
}

#[tokio::test]
async fn a_server_at_an_address_is_found_again_after_an_outage() {
    let (server, port) = listening(0).await;
    let host = over_http(port, "deadline-secs = 10.0").start().await;
    assert_eq!(call(&host, json!([["add", {"a": 1, "b": 1}]])).await.results(), [("2", false)]);

    server.kill().await;
    let away = call(&host, json!([["add", {"a": 1, "b": 1}]])).await;
    let (_server, _) = listening(port).await;
    let back = async || {
        let called = call(&host, json!([["add", {"a": 1, "b": 2}]])).await;
        (called.results() == [("3", false)]).then_some(())
    };
    until("the server is called again", back).await;

    let (text, is_error) = away.results()[0];
    assert!(is_error && !text.contains("127.0.0.1"), "{text}");
}

#[tokio::test]
async fn a_started_server_ends_with_the_host() {
    let host = over_stdio("").await.start().await;
    let server = pid(&host).await;
    assert_eq!(host.stop().await.code, Some(0));
    gone(server).await;

    let host = over_stdio("").await.start().await;
    let server = pid(&host).await;
    host.process().signal(Signal::KILL);
    host.ended().await;
    gone(server).await;
}

/// Checks that the host does not start, and prints all of these texts.
async fn check_refused(config: &str, expected: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.toml");
    std::fs::write(&path, config).unwrap();
    let mut command = rollout_host(["serve"]);
    command
        .arg(rollout_tests::guest("call_host_tools"))
        .args(["--listen", "127.0.0.1:0", "--config"])
        .arg(&path);
    let ran = command.current_dir(dir.path()).start().ended().await;
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    for part in expected {
        assert!(ran.stderr.contains(part), "{part:?} is not in\n{}", ran.stderr);
    }
}

#[tokio::test]
async fn servers_that_do_not_start_are_named_with_their_output() {
    let python = python().await;
    let python = Path::new(&python).display();
    let file = server_file();
    let config = format!(
        "[[tools.mcp]]\ncommand = ['/no/such/program']\n\
         [[tools.mcp]]\ncommand = ['{python}', '-c', 'import sys; sys.exit(\"this server has no wish to start\")']\n\
         [[tools.mcp]]\nurl = 'http://127.0.0.1:9/mcp'\n\
         [[tools.mcp]]\ncommand = ['{python}', '{}', 'stdio']\nonly = ['add', 'subtract']\n",
        file.display()
    );
    let expected = [
        "tools.mcp[0]: '/no/such/program' cannot be started: No such file",
        "tools.mcp[1]: ",
        "this server has no wish to start",
        "tools.mcp[2]: ",
        "tools.mcp[3]: only: the server has no tool 'subtract'",
    ];
    check_refused(&config, &expected).await;
}

#[tokio::test]
async fn the_example_uses_tools_of_a_published_server_and_of_a_component() {
    let dir = tempfile::tempdir().unwrap();
    let host_tools = project_root().join("examples/host-tools");
    // The setup of the example's page, with its configuration and rows.
    std::os::unix::fs::symlink(environments().await.join("host-tools"), dir.path().join("mcp-venv")).unwrap();
    std::fs::copy(example("example-tool-component"), dir.path().join("numbers.wasm")).unwrap();
    let mut command = rollout_host(["eval"]);
    command.arg(example("example-host-tools")).args(["--model", "mock", "--out", "out", "--data"]);
    command.arg(host_tools.join("rows.jsonl")).arg("--config").arg(host_tools.join("tools.toml"));

    let ran = command.current_dir(dir.path()).start().ended().await;

    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let read = |name: &str| -> Value {
        serde_json::from_slice(&std::fs::read(dir.path().join("out").join(name)).unwrap()).unwrap()
    };
    assert_eq!(read("summary.json")["reward"]["mean"], 1.0);
    let trajectory = read("rollouts/row-00000-run-0/trajectory.json");
    let calls = trajectory["extra"]["rollout_host"]["observed_tool_calls"].as_array().unwrap();
    let calls: Vec<_> =
        calls.iter().map(|call| (&call["function_name"], &call["kind"], &call["outcome"])).collect();
    let (mcp, component, answered) = (json!("mcp"), json!("component"), json!("answered"));
    let (calculate, plain) = (json!("calculator_calculate"), json!("number_plain"));
    assert_eq!(calls, [(&calculate, &mcp, &answered), (&plain, &component, &answered)]);
}
