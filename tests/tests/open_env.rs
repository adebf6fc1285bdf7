//! Environments over OpenEnv, played by the clients of the published packages, which `clients/setup` installs.

use std::path::PathBuf;
use std::time::Duration;

use rollout_tests::{
    OPERATOR, TestCatalog, TestHost, example, guest, has_javascript, in_time, javascript_guest, project_root,
    python_guest, rollout_host, trainer_python,
};
use serde_json::{Value, json};
use tokio::process::Command;

/// A published client.
struct Client {
    python: PathBuf,
}

impl Client {
    /// Returns the clients of both packages.
    async fn both() -> [Self; 2] {
        [Self::of("openenv-0.10.0").await, Self::of("openenv-core-0.3.0").await]
    }

    async fn of(package: &str) -> Self {
        Self { python: trainer_python(package).await }
    }

    /// Plays at this address, and returns the result or the error of each command.
    async fn play(&self, kind: &str, url: &str, commands: Value, key: Option<&str>) -> Vec<Value> {
        let mut command = Command::new(&self.python);
        command.arg(project_root().join("tests/clients/open_env.py"));
        command.args([kind, url, &commands.to_string()]).args(key).kill_on_drop(true);
        let ran = in_time("the client", command.output()).await.unwrap();
        let errors = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{errors}");
        let last = String::from_utf8_lossy(&ran.stdout).lines().last().map(str::to_owned);
        serde_json::from_str(&last.unwrap_or_default()).unwrap_or_else(|error| panic!("{error}: {errors}"))
    }
}

/// Returns the address of a host's environment.
fn base(host: &TestHost) -> String {
    format!("{}/openenv", host.url())
}

/// Returns the part of an error that a client's user sees.
fn error_of(result: &Value) -> &str {
    result["error"].as_str().unwrap_or_else(|| panic!("no error but {result}"))
}

#[tokio::test]
async fn an_episode_keeps_its_state_over_the_turns_of_one_socket() {
    let host = TestHost::of_component(example("example-number-hunt")).start().await;
    plays_the_hunt(&host).await;
}

#[tokio::test]
async fn an_environment_in_python_behaves_as_the_one_in_rust() {
    behaves_as_the_one_in_rust(python_guest("examples/number-hunt/python")).await;
}

#[tokio::test]
async fn an_environment_in_typescript_behaves_as_the_one_in_rust() {
    if has_javascript() {
        behaves_as_the_one_in_rust(javascript_guest("examples/number-hunt/js")).await;
    }
}

async fn behaves_as_the_one_in_rust(component: PathBuf) {
    let host = TestHost::of_component(component).start().await;
    plays_the_hunt(&host).await;
    let rust = TestHost::of_component(example("example-number-hunt")).start().await;
    for path in ["/openenv/number-hunt/splits", "/openenv/number-hunt/tasks"] {
        assert_eq!(host.get(path).await.body, rust.get(path).await.body, "{path}");
    }
    let task = json!({"split": "test", "index": 3});
    let other = host.post("/openenv/number-hunt/task", &task).await;
    let rust = rust.post("/openenv/number-hunt/task", &task).await;
    assert_eq!(other.body, rust.body);
}

/// Plays episodes of the hunt with both clients, up to the mistakes that its actions may have.
async fn plays_the_hunt(host: &TestHost) {
    for client in Client::both().await {
        let played = client
            .play(
                "generic",
                &base(host),
                json!([
                    ["step", {"number": 1}],
                    ["reset", {"split": "train", "index": 1, "episode_id": "e1"}],
                    ["step", {"number": 0}],
                    ["step", {"number": -500}],
                    ["state"],
                    ["step", {"number": -230}],
                    ["step", {"number": -230}],
                    ["reset", {"user_prompt": "1 + 1?", "ground_truth": "2"}],
                    ["step", {"number": 2}],
                    ["reset", {"split": "none"}],
                    ["reset", {"split": "test", "index": 4}],
                    ["reset", {"split": "train", "seed": 13}],
                    ["step", {"number": "x"}],
                    ["step", {"number": 1, "more": 2}],
                ]),
                None,
            )
            .await;

        assert!(error_of(&played[0]).contains("send a reset first (code: EXECUTION_ERROR)"), "{}", played[0]);
        let first = &played[1];
        assert_eq!(first["observation"]["text"], "Calculate ( -232 - -438 / 219 ).");
        assert_eq!((&first["reward"], &first["done"]), (&Value::Null, &json!(false)));
        assert_eq!(played[2]["observation"]["text"], "The number is lower.");
        assert_eq!(played[3]["observation"]["text"], "The number is higher.");
        let state = &played[4];
        assert_eq!((&state["episode_id"], &state["step_count"]), (&json!("e1"), &json!(2)), "{state}");
        // JavaScript writes whole numbers without a fraction.
        let guesses: Vec<_> = state["guesses"].as_array().unwrap().iter().map(Value::as_f64).collect();
        assert_eq!(guesses, [Some(0.0), Some(-500.0)], "{state}");
        assert_eq!((&played[5]["reward"], &played[5]["done"]), (&json!(1.0 / 3.0), &json!(true)));
        assert!(error_of(&played[6]).contains("the episode has ended; send a reset"), "{}", played[6]);
        assert_eq!(played[7]["observation"]["guesses_left"], 8);
        assert_eq!(played[8]["reward"], 1.0);
        assert!(
            error_of(&played[9]).contains("there is no split 'none'; there are: train, test"),
            "{}",
            played[9]
        );
        assert!(error_of(&played[10]).contains("the split 'test' has no task 4; it has 4"), "{}", played[10]);
        assert_eq!(played[11]["observation"]["text"], "Calculate ( -232 - -438 / 219 ).");
        assert!(error_of(&played[12]).contains("the action: field `number`"), "{}", played[12]);
        assert!(
            error_of(&played[13]).contains("data.more: Extra inputs are not permitted"),
            "{}",
            played[13]
        );
    }
    host.idle().await;
}

#[tokio::test]
async fn the_label_goes_to_the_grader_and_never_to_the_environment() {
    let host = TestHost::start("environment").await;
    let [client, older] = Client::both().await;
    let play = json!([
        ["reset", {"ground_truth": "5", "answer": "5", "x": 1, "metadata": {"ground_truth": "5", "id": "r"}}],
        ["step", {"what": "on"}],
        ["step", {"type": "call_tool", "tool_name": "add", "arguments": {"number": 5}}],
        ["step", {"what": "end"}],
        ["reset", {"ground_truth": "6"}],
        ["step", {"what": "end"}],
        ["reset"],
        ["step", {"what": "end"}],
    ]);
    for client in [&client, &older] {
        let played = client.play("generic", &base(&host), play.clone(), None).await;

        assert_eq!(played[0]["observation"]["arguments"], json!({"x": 1, "metadata": {"id": "r"}}));
        // With a grader, its verdict is the only reward.
        assert_eq!(played[1]["reward"], Value::Null);
        assert_eq!(played[2]["observation"]["result"], 5);
        assert_eq!((&played[3]["reward"], &played[3]["done"]), (&json!(1.0), &json!(true)));
        assert_eq!((&played[5]["reward"], &played[5]["done"]), (&json!(0.0), &json!(true)));
        // A failed grader does not lead to a reward of 0.
        assert!(error_of(&played[7]).contains("the grader "), "{}", played[7]);
    }
}

#[tokio::test]
async fn what_does_not_fit_and_what_fails_reaches_the_clients_user() {
    let host = TestHost::of("environment").config("[sessions]\ncall-secs-max = 0.3\n").start().await;
    let client = Client::of("openenv-0.10.0").await;
    let played = client
        .play(
            "generic",
            &base(&host),
            json!([
                ["reset", {"fail": true}],
                ["reset", {"seed": -1}],
                ["reset"],
                ["step", {"wat": "x"}],
                ["step", {"what": "x", "more": 1}],
                ["step", {"what": 1}],
                ["step", {"what": "fail"}],
                ["step", {"what": "still here"}],
                ["step", {"what": "panic"}],
                ["step", {"what": "x"}],
                ["reset"],
                ["step", {"what": "spin"}],
                ["reset"],
                ["step", {"what": "nan"}],
                ["reset"],
                ["step", {"type": "call_tool", "tool_name": "halve", "arguments": {}}],
                ["step", {"type": "call_tool", "tool_name": "add", "arguments": {"number": "x"}}],
            ]),
            None,
        )
        .await;

    let check = |at: usize, part: &str| assert!(error_of(&played[at]).contains(part), "{at}: {}", played[at]);
    check(0, "it should fail (code: VALIDATION_ERROR)");
    check(1, "data.seed: Input should be a whole number of at least 0");
    check(3, "data.what: Field required (code: VALIDATION_ERROR)");
    check(4, "data.more: Extra inputs are not permitted");
    check(5, "the action: field `what`: invalid type");
    check(6, "told to fail (code: EXECUTION_ERROR)");
    assert_eq!(played[7]["observation"]["text"], "still here");
    check(8, "told to panic");
    check(8, "the episode has ended, send a reset");
    check(9, "send a reset first");
    check(11, "the environment ran past its deadline");
    check(13, "the environment gave the reward NaN, which is not a finite number");
    assert_eq!(played[15]["observation"]["error"]["error_type"], "tool_not_found");
    assert_eq!(played[16]["observation"]["error"]["error_type"], "invalid_args");
}

#[tokio::test]
async fn tool_clients_list_and_call_tools_in_their_session() {
    let host = TestHost::start("environment").await;
    let commands =
        json!([["tools"], ["reset"], ["call", "add", {"number": 2}], ["call", "add", {"number": 3}]]);
    for client in Client::both().await {
        let played = client.play("tools", &base(&host), commands.clone(), None).await;

        assert_eq!(played[0], json!(["add"]));
        assert_eq!((&played[2], &played[3]), (&json!(2), &json!(5)));
    }
    host.idle().await;
}

#[tokio::test]
async fn a_plugin_without_an_environment_says_so() {
    let host = TestHost::start("spin").await;
    let refusal = "this plugin has no environment; ";
    for client in Client::both().await {
        let played = client.play("generic", &base(&host), json!([["reset"]]), None).await;

        assert!(error_of(&played[0]).contains(refusal), "{}", played[0]);
    }
    let schema = host.get("/openenv/schema").await;
    assert_eq!(schema.status, 501);
    assert!(schema.body["detail"].as_str().unwrap().starts_with(refusal), "{}", schema.text);
}

#[tokio::test]
async fn sessions_are_limited_and_idle_ones_end() {
    let options = TestHost::of("environment").option("--max-concurrent", 1);
    let host = options.config("[sessions]\nqueue-secs-max = 0.2\nidle-secs = 2\n").start().await;
    let create = json!({"jsonrpc": "2.0", "id": 1, "method": "openenv/session/create"});
    let created = host.post("/openenv/mcp", &create).await;
    assert!(created.body["result"]["session_id"].is_string(), "{}", created.text);

    let refused = host.post("/openenv/mcp", &create).await;
    let [client, older] = Client::both().await;
    let full = "Server at capacity: 1/1 sessions active";
    assert_eq!(refused.body["error"]["code"], -32000, "{}", refused.text);
    assert!(refused.body["error"]["message"].as_str().unwrap().contains(full), "{}", refused.text);

    // The session without requests ends, and its slot is free.
    host.idle().await;
    for client in [&client, &older] {
        let played = client.play("generic", &base(&host), json!([["reset"]]), None).await;
        assert_eq!(played[0]["observation"]["text"], "ready");
    }
}

#[tokio::test]
async fn a_full_server_reports_its_capacity_to_both_clients() {
    let options = TestHost::of("environment").option("--max-concurrent", 1);
    let host = options.config("[sessions]\nqueue-secs-max = 0.2\n").start().await;
    let create = json!({"jsonrpc": "2.0", "id": 1, "method": "openenv/session/create"});
    host.post("/openenv/mcp", &create).await;

    for client in Client::both().await {
        let played = client.play("generic", &base(&host), json!([["reset"]]), None).await;
        let error = error_of(&played[0]);
        assert!(error.contains("1/1 sessions active") && error.contains("CAPACITY_REACHED"), "{error}");
    }
}

#[tokio::test]
async fn the_task_api_and_the_validator_find_what_they_need() {
    let host = TestHost::of_component(example("example-number-hunt")).start().await;
    let splits = host.get("/openenv/number-hunt/splits").await;
    assert_eq!(splits.body, json!([{"name": "train", "type": "train"}, {"name": "test", "type": "test"}]));
    let count = host.post("/openenv/Number-Hunt/num_tasks", &json!({"split": "test"})).await;
    assert_eq!(count.body, json!({"num_tasks": 4}));
    let task = host.post("/openenv/number-hunt/task", &json!({"split": "train", "index": 1})).await;
    assert_eq!(task.body["task"]["user_prompt"], "Calculate ( -232 - -438 / 219 ).");
    assert!(!task.text.contains("-230"), "the label is not in a task: {}", task.text);
    let range = json!({"split": "train", "start": -2, "stop": null});
    let range = host.post("/openenv/number-hunt/task_range", &range).await;
    assert_eq!(range.body["tasks"].as_array().map(Vec::len), Some(2), "{}", range.text);
    let beyond = host.post("/openenv/number-hunt/task", &json!({"split": "train", "index": 12})).await;
    assert_eq!((beyond.status, &beyond.body), (400, &json!({"detail": "Invalid task index"})));
    let other = host.get("/openenv/other/splits").await;
    assert_eq!((other.status, &other.body["detail"]), (404, &json!("unknown environment 'other'")));

    let python = trainer_python("openenv-0.10.0").await;
    let mut validate = Command::new(python);
    validate.args(["-m", "openenv.cli", "validate", "--url", &base(&host)]).kill_on_drop(true);
    let ran = in_time("the validator", validate.output()).await.unwrap();
    let report = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(ran.status.success() && report.contains("Verdict: PASS"), "{report}");
    assert_eq!(report.lines().filter(|line| line.trim().starts_with("PASS ")).count(), 6, "{report}");
}

#[tokio::test]
async fn a_tenants_plugin_is_an_environment_below_its_path_and_needs_the_key() {
    let catalog = TestCatalog::start().await;
    let tenant = catalog.tenant("a", json!({})).await;
    catalog.serve(&tenant, "acts", "environment", "").await;
    let url = format!("{}/p/acts/openenv", catalog.url());
    let client = Client::of("openenv-0.10.0").await;

    let played = client
        .play("generic", &url, json!([["reset"], ["step", {"what": "on"}]]), Some(&tenant.caller))
        .await;

    assert_eq!(played[1]["observation"]["text"], "on");
    let refused = catalog.get_open("/p/acts/openenv/schema").await;
    assert_eq!(refused.status, 401);
    let other = catalog.tenant("b", json!({})).await;
    let hidden = catalog.plugin_with(&other.caller, "acts").get("/openenv/schema").await;
    assert_eq!(hidden.status, 404);
    assert_ne!(OPERATOR, other.caller);
}

#[tokio::test]
async fn a_stop_ends_sessions_without_an_episode_at_once() {
    let host = TestHost::of("environment").config("drain-secs = 50\n").start().await;
    let create = json!({"jsonrpc": "2.0", "id": 1, "method": "openenv/session/create"});
    host.post("/openenv/mcp", &create).await;

    let stopped = tokio::time::timeout(Duration::from_secs(30), host.stop()).await;

    assert_eq!(stopped.expect("it does not wait for the drain time").code, Some(0));
}

#[tokio::test]
async fn inspect_shows_the_environment() {
    let shown = rollout_host(["inspect"]).arg(guest("environment")).output().await.unwrap();
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(text.contains("an environment"), "{text}");
}

#[tokio::test]
async fn the_client_of_the_page_plays_its_first_episode() {
    let page = std::fs::read_to_string(project_root().join("docs/serve/openenv.md")).unwrap();
    let block = |beginning: &str| {
        let text = page.split_once(beginning).and_then(|(_, rest)| rest.split_once("\n```"));
        text.unwrap_or_else(|| panic!("the page has no block {beginning:?}")).0.to_owned()
    };
    let start = block("```sh\n");
    let dir = start.split_whitespace().nth(2).unwrap();
    assert!(start.starts_with("rollout-host build "), "{start}");
    assert!(project_root().join(dir).join("Cargo.toml").is_file(), "{start}");

    let host = TestHost::of_component(example("example-number-hunt")).start().await;
    let script = block("```python\n").replace("http://127.0.0.1:9000/openenv", &base(&host));
    assert!(script.contains(&base(&host)), "{script}");
    let mut command = Command::new(Client::of("openenv-0.10.0").await.python);
    command.args(["-c", &script]).kill_on_drop(true);
    let ran = in_time("the client", command.output()).await.unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{stderr}");
    let lines: Vec<&str> = stdout.lines().collect();
    // The second guess is right.
    assert_eq!(lines.last(), Some(&"0.5"), "{stdout}");
    assert!(lines.len() >= 3, "{stdout}");
}

/// Sends messages over a socket to `/mcp`, and prints the answers as a JSON list.
const RPC_OVER_A_SOCKET: &str = r#"
import json, sys
from websockets.sync.client import connect
with connect(sys.argv[1]) as socket:
    answers = []
    for message in json.loads(sys.argv[2]):
        socket.send(message)
        answers.append(json.loads(socket.recv()))
print(json.dumps(answers))
"#;

#[tokio::test]
async fn a_socket_of_json_rpc_is_a_session() {
    let host = TestHost::start("environment").await;
    let call = |id: u32, method: &str, params: Value| {
        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
    };
    let add = |id: u32, number: u32| {
        call(id, "tools/call", json!({"name": "add", "arguments": {"number": number}}))
    };
    let messages = json!([
        call(1, "tools/list", json!({})),
        add(2, 2),
        "{",
        call(3, "tools/call", json!({"name": "halve"})),
        add(4, 3),
        call(5, "initialize", json!({})),
        "[]",
    ]);
    let url = format!("{}/openenv/mcp", host.url()).replace("http://", "ws://");
    let mut command = Command::new(Client::of("openenv-0.10.0").await.python);
    command.args(["-c", RPC_OVER_A_SOCKET, &url, &messages.to_string()]).kill_on_drop(true);
    let ran = in_time("the client", command.output()).await.unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let answers: Vec<Value> = serde_json::from_slice(&ran.stdout).unwrap();

    assert_eq!(answers[0]["result"]["tools"][0]["name"], "add", "{}", answers[0]);
    assert_eq!((&answers[1]["id"], &answers[1]["result"]["data"]), (&json!(2), &json!(2)), "{}", answers[1]);
    assert_eq!(answers[2]["error"]["code"], -32700, "{}", answers[2]);
    assert_eq!(answers[3]["error"]["code"], -32603, "{}", answers[3]);
    assert_eq!(answers[4]["result"]["data"], 5, "the session keeps its state: {}", answers[4]);
    assert_eq!(answers[5]["error"]["code"], -32601, "{}", answers[5]);
    assert_eq!(answers[6]["error"]["code"], -32600, "{}", answers[6]);
    // The session ended with its socket.
    host.idle().await;

    let full = TestHost::start("spin").await;
    let url = format!("{}/openenv/mcp", full.url()).replace("http://", "ws://");
    let mut command = Command::new(Client::of("openenv-0.10.0").await.python);
    command.args(["-c", RPC_OVER_A_SOCKET, &url, &json!([add(1, 1)]).to_string()]).kill_on_drop(true);
    let ran = in_time("the client", command.output()).await.unwrap();
    let answers: Vec<Value> = serde_json::from_slice(&ran.stdout).unwrap();
    let message = answers[0]["error"]["message"].as_str().unwrap_or_default();
    assert!(message.starts_with("this plugin has no environment; "), "{}", answers[0]);
}
