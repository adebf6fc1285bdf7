//! `serve` and the published package `nemo-gym` 0.7.0, which `clients/setup` installs if `ROLLOUT_TEST_NEMO_GYM` is set or
//! its environment exists: its collector, and its client for resources servers.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use reqwest::Method;
use rollout_tests::{
    Answer, Controller, Process, Ran, Start, TestCatalog, TestHost, example, guest, in_time, project_root,
    rollout_host, target_dir, trainer_python, until,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// Time for a collection. The package takes some seconds to start.
const COLLECTION: Duration = Duration::from_secs(240);

/// The environment of the package.
const PACKAGE: &str = "nemo-gym-0.7.0";

/// Returns the Python of the package, if its tests are requested or its environment exists. Elsewhere the tests do not
/// run, which `clients/setup` reports.
async fn package() -> Option<PathBuf> {
    let is_requested = std::env::var_os("ROLLOUT_TEST_NEMO_GYM").is_some();
    let venvs = std::env::var_os("ROLLOUT_VENVS").map_or_else(|| target_dir().join("venvs"), PathBuf::from);
    let exists = venvs.join(PACKAGE).join("bin/python").exists();
    if is_requested || exists { Some(trainer_python(PACKAGE).await) } else { None }
}

/// A server with the plugin, in its own directory and at its own address.
struct Gym {
    dir: TempDir,
    at: SocketAddr,
    guest: &'static str,
    config: String,
    options: Vec<&'static str>,
    http: reqwest::Client,
}

impl Gym {
    fn of(guest: &'static str, model: &Controller) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        Self {
            dir: tempfile::tempdir().unwrap(),
            at: free.local_addr().unwrap(),
            guest,
            config: format!("[nemo-gym]\nmodel-url = '{}'\n", model.model_url()),
            options: Vec::new(),
            http: rollout_outbound::http_client().unwrap(),
        }
    }

    async fn start(&self) -> Process {
        let config = self.dir.path().join("config.toml");
        std::fs::write(&config, &self.config).unwrap();
        let mut command = rollout_host(["serve", "--listen", &self.at.to_string(), "--config"]);
        command.arg(config).arg(guest(self.guest)).args(&self.options).current_dir(self.dir.path());
        let process = command.start();
        process.line("listening on ").await;
        process
    }

    async fn post(&self, path: &str, body: &Value) -> Value {
        let request = self.http.post(format!("http://{}{path}", self.at)).json(body);
        let answer = in_time("an answer", request.send()).await.unwrap();
        assert_eq!(answer.status(), 200, "{path}");
        serde_json::from_str(&answer.text().await.unwrap()).unwrap()
    }

    fn collection(&self, rows: &[Value]) -> Collection {
        let head = vec![
            format!("++head_server.host={}", self.at.ip()),
            format!("++head_server.port={}", self.at.port()),
        ];
        Collection::of(rows, head)
    }
}

/// A run of the package's collector, in a directory of its own.
struct Collection {
    dir: TempDir,
    arguments: Vec<String>,
}

impl Collection {
    fn of(rows: &[Value], head: Vec<String>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let text: String = rows.iter().map(|row| format!("{row}\n")).collect();
        std::fs::write(dir.path().join("rows.jsonl"), text).unwrap();
        let mut arguments = head;
        for argument in [
            "+agent_name=rollout_host_agent",
            "+environment_server_routes={sums: rollout_host}",
            "+input_jsonl_fpath=rows.jsonl",
            "+output_jsonl_fpath=out.jsonl",
        ] {
            arguments.push(argument.to_owned());
        }
        Self { dir, arguments }
    }

    fn start(&self, python: &Path) -> Process {
        let mut command = Command::new(python.with_file_name("ng_collect_rollouts"));
        command.args(&self.arguments).current_dir(self.dir.path()).start()
    }

    async fn run(&self, python: &Path) -> Ran {
        let ran = self.start(python).ended_within(COLLECTION).await;
        assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
        ran
    }

    /// Returns the lines of a file by the index of their row; the last one of each.
    fn lines(&self, file: &str) -> BTreeMap<u64, Value> {
        let text = std::fs::read_to_string(self.dir.path().join(file)).unwrap_or_default();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.map(|line| (line["_ng_task_index"].as_u64().unwrap(), line)).collect()
    }
}

fn flat(prompt: &str, label: &str) -> Value {
    json!({"responses_create_params": {"input": [{"role": "user", "content": prompt}]}, "expected_answer": label})
}

fn task(id: &str, input: Value) -> Value {
    json!({"task_id": {"taskset": "sums", "task_id": id}, "task_input": input})
}

#[tokio::test]
async fn the_collector_runs_rows_of_both_forms_and_a_failure_is_no_reward() {
    let Some(python) = package().await else { return };
    let controller = Controller::start().await;
    let gym = Gym::of("conform", &controller);
    let _process = gym.start().await;
    let mut extra = flat("Calculate 2 + 3.", "5");
    extra["level"] = json!(3);
    let collection = gym.collection(&[
        extra,
        flat("Calculate 2 + 3.", "6"),
        task("1", json!({"responses_create_params": {"input": "Calculate 1 + 1."}, "answer": "2"})),
        task(
            "2",
            json!({"responses_create_params": {"input": "Calculate 1 + 1."}, "task_data": {"label": "2"}}),
        ),
        flat("Calculate 2 + 3.", "please remove"),
        flat("please fail", "5"),
        flat("please trap", "5"),
        flat("Calculate 2 + 3.", "please fail"),
        json!({"responses_create_params": {"input": 7}, "expected_answer": "5"}),
        task("3", json!({"responses_create_params": {"input": "please fail"}, "answer": "2"})),
        task("4", json!({"responses_create_params": {"input": []}, "answer": "2"})),
    ]);

    let ran = collection.run(&python).await;

    let results = collection.lines("out.jsonl");
    for (row, reward, is_masked) in
        [(0, 1.0, false), (1, 0.0, false), (2, 1.0, false), (3, 1.0, false), (4, 1.0, true)]
    {
        let result = &results[&row];
        assert_eq!(
            (&result["reward"], &result["mask_sample"]),
            (&json!(reward), &json!(is_masked)),
            "{result}"
        );
        let output = &result["response"]["output"][0];
        assert_eq!((&output["role"], &output["type"]), (&json!("assistant"), &json!("message")), "{result}");
        assert!(output["content"][0]["text"].as_str().unwrap().contains("####"), "{result}");
        assert!(
            result["responses_create_params"]["input"] != Value::Null,
            "trainers read the prompt: {result}"
        );
        assert_eq!(result["_ng_result_type"], "rollout_host");
    }
    assert_eq!((results[&0]["level"].as_u64(), results.len()), (Some(3), 5));
    let failures = collection.lines("out_failures.jsonl");
    for (row, class, message, is_terminal) in [
        (5, "agent_run_error", "the workflow was told to fail", false),
        (6, "rollout_host:trap", "the workflow was told to trap", false),
        (7, "verifier_error", "the grader was told to fail", false),
        (8, "agent_request_failed", "'input' must be a text or a list of items, not a number", true),
        (9, "environment_server_failed", "the workflow was told to fail", false),
        (10, "environment_server_failed", "'input' has no message", true),
    ] {
        let failure = &failures[&row];
        assert_eq!(failure["_ng_failure_class"], class, "{failure}");
        assert_eq!(failure["_ng_failure_terminal"], is_terminal, "{failure}");
        assert!(failure["_ng_failure_message"].as_str().unwrap().contains(message), "{failure}");
        assert!(failure.get("reward").is_none(), "{failure}");
    }
    assert_eq!(failures.len(), 6);
    assert!(ran.stdout.contains("\"mean/reward\": 0.75"), "the masked row does not count: {}", ran.stdout);
    // The model sees the prompt and never the label.
    let chats = controller.chats();
    assert!(chats.iter().all(|chat| !chat.body.to_string().contains("expected_answer")));
    assert_eq!(chats[0].body["model"], "policy_model");

    let results: Vec<&Value> = results.values().collect();
    let rows: Vec<Value> = ["5", "6", "please fail"]
        .map(|label| {
            let mut row = flat("Calculate 2 + 3.", label);
            row["response"] = results[0]["response"].clone();
            row
        })
        .to_vec();
    let shown = agent(
        &python,
        &json!({
            "host": gym.at.ip().to_string(), "port": gym.at.port(), "results": results, "rows": rows,
        }),
    )
    .await;
    let verified = |at: usize| &shown["verified"][at];
    assert_eq!((&verified(0)["reward"], &verified(1)["reward"]), (&json!(1.0), &json!(0.0)), "{shown}");
    assert_eq!(verified(1)["mask_sample"], false);
    assert_eq!(
        (&verified(2)["mask_sample"], &verified(2)["failure_kind"]),
        (&json!(true), &json!("verifier_error"))
    );
    assert!(verified(2)["failure_reason"].as_str().unwrap().contains("the grader was told to fail"));
    assert_eq!(
        (&shown["session"]["resources_session_id"], &shown["mode"]),
        (&json!("s1"), &json!("stateless"))
    );
    assert_eq!(shown["closed"], json!({"resources_session_id": "s1"}));
    assert_eq!(controller.chats().len(), chats.len(), "a verification asks no model");
}

/// Calls a host as Gym's agents do, and returns the responses.
async fn agent(python: &Path, asked: &Value) -> Value {
    let script = project_root().join("tests/clients/drive_nemo_gym.py");
    // The package writes its logs into the directory in which it runs.
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(python);
    command.current_dir(dir.path());
    command.arg(script).stdin(Stdio::piped());
    let (process, mut input) = command.start_with_input();
    input.write_all(asked.to_string().as_bytes()).await.unwrap();
    drop(input);
    let ran = process.ended_within(COLLECTION).await;
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    serde_json::from_str(ran.stdout.lines().last().unwrap()).unwrap()
}

#[tokio::test]
async fn a_collection_goes_on_when_the_host_is_killed() {
    let Some(python) = package().await else { return };
    let controller = Controller::start().await;
    controller.hold();
    let gym = Gym::of("conform", &controller);
    let process = gym.start().await;
    let rows: Vec<Value> =
        (0..5).map(|at| flat(&format!("Calculate {at} + 1."), &format!("{}", at + 1))).collect();
    let collection = gym.collection(&rows);
    let collecting = collection.start(&python);
    in_time_of_collection(controller.chats_arrived(rows.len())).await;

    process.kill().await;
    controller.release();
    let process = gym.start().await;

    let ran = collecting.ended_within(COLLECTION).await;
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    let results = collection.lines("out.jsonl");
    assert_eq!(results.len(), rows.len());
    assert!(results.values().all(|result| result["reward"] == 1.0), "{results:?}");
    assert_eq!(controller.chats().len(), 2 * rows.len(), "each rollout continued and none began again");
    let ran = process.terminate().await;
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let log = gym.start().await.terminate().await.stderr;
    assert!(!log.contains("resumed rollouts of an earlier process"), "nothing is left in the journal: {log}");
}

async fn in_time_of_collection<T>(event: impl Future<Output = T>) -> T {
    tokio::time::timeout(COLLECTION, event).await.expect("the collection begins")
}

/// A chat completion of Gym's own model server, with the tokens of the call.
fn with_tokens(text: &str) -> Answer {
    let message = json!({
        "role": "assistant", "content": text,
        "prompt_token_ids": [1, 2, 3], "generation_token_ids": [4, 5], "generation_log_probs": [-0.5, -0.25],
    });
    Answer::Json(json!({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).to_string())
}

#[tokio::test]
async fn a_result_that_no_caller_has_received_outlives_two_crashes_with_its_tokens() {
    let controller = Controller::start().await;
    controller.answer_chats([with_tokens("#### 5"), with_tokens("#### 5")]);
    controller.hold();
    let gym = Gym::of("conform", &controller);
    let mut row = flat("Calculate 2 + 3.", "5");
    row["_ng_task_index"] = json!(0);
    let process = gym.start().await;
    let asking = gym.http.post(format!("http://{}/run", gym.at)).json(&row).send();
    let asking = tokio::spawn(asking);
    controller.chats_arrived(1).await;
    process.kill().await;
    assert!(asking.await.unwrap().is_err(), "the caller has no answer");
    controller.release();
    let process = gym.start().await;
    controller.chats_arrived(2).await;
    let health = || gym.http.get(format!("http://{}/health", gym.at)).send();
    until("the end of the rollout", async || {
        let health: Value = serde_json::from_str(&health().await.ok()?.text().await.ok()?).ok()?;
        (health["lifecycle"]["active_rollouts"] == 0).then_some(())
    })
    .await;
    process.kill().await;

    let process = gym.start().await;
    let result = gym.post("/run", &row).await;

    assert_eq!(result["reward"], 1.0, "{result}");
    let item = &result["response"]["output"][0];
    assert_eq!(item["prompt_token_ids"], json!([1, 2, 3]), "{result}");
    assert_eq!(item["generation_token_ids"], json!([4, 5]));
    assert_eq!(item["generation_log_probs"], json!([-0.5, -0.25]));
    assert_eq!(controller.chats().len(), 2, "the model was asked no more");
    // The same row of the next collection is another rollout.
    assert_eq!(gym.post("/run", &row).await["reward"], 1.0);
    assert_eq!(controller.chats().len(), 3);
    assert_eq!(process.terminate().await.code, Some(0));
}

#[tokio::test]
async fn a_caller_that_leaves_cancels_its_rollout_and_rows_wait_for_room() {
    let controller = Controller::start().await;
    controller.hold();
    let mut gym = Gym::of("conform", &controller);
    gym.options = vec!["--max-concurrent", "1", "--queue-max", "1"];
    let _process = gym.start().await;
    let ask = |prompt: &str| {
        let request = gym.http.post(format!("http://{}/run", gym.at)).json(&flat(prompt, "5"));
        tokio::spawn(async move { request.send().await.unwrap().text().await.unwrap() })
    };
    let left = ask("Calculate 1 + 1.");
    controller.chats_arrived(1).await;
    let waiting: Vec<_> = (0..4).map(|at| ask(&format!("Calculate 5 + {at}."))).collect();

    left.abort();

    // The only slot is free again.
    controller.chats_arrived(2).await;
    controller.release();
    for answer in waiting {
        let result: Value = serde_json::from_str(&in_time("a result", answer).await.unwrap()).unwrap();
        assert!(result["reward"].is_number(), "{result}");
    }
    assert_eq!(controller.chats().len(), 5);
}

/// Returns the row of a repetition of a task, whose model answers with this number.
fn repetition(task: u32, member: u32, answer: u32) -> Value {
    json!({
        "responses_create_params": {"input": format!("Calculate {answer} + 0.")},
        "expected_answer": "2", "_ng_task_index": task, "_ng_rollout_index": member,
    })
}

#[tokio::test]
async fn repetitions_of_a_task_are_rated_as_a_group() {
    let model = Controller::start().await;
    let mut gym = Gym::of("grouped", &model);
    gym.config.push_str("group-size = 3\n");
    let _server = gym.start().await;

    let rows = [repetition(4, 0, 7), repetition(4, 1, 8), repetition(4, 2, 9)];
    let [first, second, third] = rows.each_ref().map(|row| gym.post("/run", row));
    let results = tokio::join!(first, second, third);

    let rewards = [&results.0["reward"], &results.1["reward"], &results.2["reward"]];
    assert_eq!(rewards, [0.0, 0.5, 1.0], "{results:#?}");
    let refused = async |row: Value, reason: &str| {
        let failure = gym.post("/run", &row).await;
        assert_eq!(failure["_ng_failure_terminal"], true, "{failure:#}");
        assert!(failure["_ng_failure_message"].as_str().unwrap().contains(reason), "{failure:#}");
    };
    refused(repetition(4, 3, 1), "members of a group of 3 are numbered from 0 to 2, and member is 3").await;
    let mut unnumbered = repetition(4, 0, 1);
    unnumbered.as_object_mut().unwrap().remove("_ng_task_index");
    refused(unnumbered, "does not say which repetition of its task it is").await;
}

#[tokio::test]
async fn a_repeated_row_of_a_group_gets_the_result_of_the_first_one() {
    let model = Controller::start().await;
    let mut gym = Gym::of("grouped", &model);
    gym.config.push_str("group-size = 2\n");
    let _server = gym.start().await;
    let row = repetition(0, 0, 5);
    let first = gym.http.post(format!("http://{}/run", gym.at)).json(&row).send();
    let first = tokio::spawn(first);
    model.chats_arrived(1).await;

    // The first request still waits for the group, and keeps its seat.
    let second = repetition(0, 0, 5);
    let repeated = gym.post("/run", &second);
    let meanwhile = async {
        first.abort();
        let other = repetition(0, 1, 6);
        gym.post("/run", &other).await
    };
    let (repeated, other) = tokio::join!(repeated, meanwhile);

    assert_eq!((&repeated["reward"], &other["reward"]), (&json!(0.0), &json!(1.0)), "{repeated:#}");
    assert_eq!(model.chats().len(), 2, "the repeated request began no rollout");
}

#[tokio::test]
async fn collections_of_the_same_rows_are_groups_of_their_own() {
    let model = Controller::start().await;
    let mut gym = Gym::of("grouped", &model);
    gym.config.push_str("group-size = 2\n");
    let _server = gym.start().await;
    for _ in 0..2 {
        let (first, second) = (repetition(0, 0, 5), repetition(0, 1, 6));
        let (first, second) = tokio::join!(gym.post("/run", &first), gym.post("/run", &second));
        assert_eq!((&first["reward"], &second["reward"]), (&json!(0.0), &json!(1.0)), "{first:#}");
    }
    // At the same time, of another data set.
    let rows = [repetition(0, 0, 5), repetition(0, 1, 6), repetition(0, 0, 8), repetition(0, 1, 7)];
    let [a, b, c, d] = rows.each_ref().map(|row| gym.post("/run", row));
    let (a, b, c, d) = tokio::join!(a, b, c, d);
    let mut rewards = [a, b, c, d].map(|result| result["reward"].as_f64().unwrap());
    rewards.sort_by(f64::total_cmp);
    assert_eq!(rewards, [0.0, 0.0, 1.0, 1.0]);
    assert_eq!(model.chats().len(), 8);
}

#[tokio::test]
async fn what_a_server_lacks_is_a_failure_that_says_so() {
    let controller = Controller::start().await;
    let check = async |gym: &Gym, path: &str, row: &Value, field: &str, text: &str| {
        let answer = gym.post(path, row).await;
        assert!(answer[field].as_str().unwrap_or_default().contains(text), "{answer}");
        assert!(answer.get("reward").is_none_or(|_| answer["mask_sample"] == true), "{answer}");
    };
    let row = flat("Calculate 2 + 3.", "5");
    let mut graded = row.clone();
    graded["response"] = json!({"output": []});

    let mut gym = Gym::of("conform", &controller);
    gym.config = String::new();
    let process = gym.start().await;
    check(&gym, "/run", &row, "_ng_failure_message", "set model-url in the table [nemo-gym]").await;
    check(&gym, "/verify", &row, "failure_reason", "the row has no 'response.output'").await;
    process.terminate().await;

    let gym = Gym::of("only_workflow", &controller);
    let _process = gym.start().await;
    check(&gym, "/run", &row, "_ng_failure_message", "no grader").await;
    check(&gym, "/verify", &graded, "failure_reason", "no grader").await;
    let seeded = gym.http.post(format!("http://{}/seed_session", gym.at)).json(&row).send().await.unwrap();
    assert_eq!(seeded.status(), 500);
    assert!(seeded.text().await.unwrap().contains("a resources server needs one"));
}

#[tokio::test]
async fn a_tenant_collects_from_its_plugins_with_its_key() {
    let Some(python) = package().await else { return };
    let controller = Controller::start().await;
    let catalog = TestCatalog::start().await;
    let tenant = catalog.tenant("acme", json!({})).await;
    let secret = json!({"value": "key-of-the-model"});
    let reply = catalog.ask(&tenant.author, Method::PUT, "/admin/v1/secrets/policy", secret).await;
    assert!(reply.status < 300, "{reply:?}");
    let config = format!(
        "[nemo-gym]\nmodel-url = '{}'\nmodel = 'mine'\nmodel-key-env = 'policy'\n",
        controller.model_url()
    );
    catalog.serve(&tenant, "calc", "conform", &config).await;
    let at = catalog.url().replace("http://", "");
    let (host, port) = at.split_once(':').unwrap();
    // Gym's settings have a host and a port only, so the host has the key and the path, too.
    let head = |key: &str| {
        vec![
            format!("++head_server.host=\"rollout:{key}@{at}/p/calc/global_config_dict_yaml?\""),
            format!("++head_server.port={port}"),
        ]
    };
    assert_eq!(host, "127.0.0.1");
    let rows = [flat("Calculate 2 + 3.", "5"), flat("Calculate 2 + 3.", "6")];
    let collection = Collection::of(&rows, head(&tenant.caller));

    collection.run(&python).await;

    let results = collection.lines("out.jsonl");
    assert_eq!((&results[&0]["reward"], &results[&1]["reward"]), (&json!(1.0), &json!(0.0)));
    let chat = &controller.chats()[0];
    assert_eq!(
        (chat.header("authorization"), &chat.body["model"]),
        (Some("Bearer key-of-the-model"), &json!("mine"))
    );
    let reply = catalog.ask("wrong", Method::POST, "/p/calc/run", flat("Calculate 2 + 3.", "5")).await;
    assert_eq!(reply.status, 401);
    let viewed =
        catalog.ask(&tenant.viewer, Method::POST, "/p/calc/run", flat("Calculate 2 + 3.", "5")).await;
    assert_eq!(viewed.status, 403);
}

/// Returns the shell commands of the page, block by block.
fn page_commands() -> Vec<String> {
    let page = std::fs::read_to_string(project_root().join("docs/serve/nemo-gym.md")).unwrap();
    let blocks = page.split("```sh\n").skip(1);
    blocks.map(|rest| rest.split("\n```").next().unwrap_or(rest).to_owned()).collect()
}

#[tokio::test]
async fn the_commands_of_the_page_lead_to_the_first_batch() {
    let blocks = page_commands();
    let [start, serve, rows, collect, verify] = blocks.as_slice() else { panic!("{} blocks", blocks.len()) };
    for line in ["pip install nemo-gym==0.7.0", "rollout-host mock-model --listen 127.0.0.1:9100"] {
        assert!(start.contains(line), "{start}");
    }
    let Some(python) = package().await else { return };
    let model = rollout_host(["mock-model", "--listen", "127.0.0.1:0"]).start();
    let model_url = model.line("listening on ").await;
    let controller = Controller::start().await;
    let gym = Gym::of("conform", &controller);
    let here = |script: &str| {
        script
            .replace("127.0.0.1:9000", &gym.at.to_string())
            .replace("head_server.port=9000", &format!("head_server.port={}", gym.at.port()))
            .replace("http://127.0.0.1:9100/v1", &model_url)
            .replace("my_agent.wasm", guest("conform").to_str().unwrap())
    };
    let shell = |script: String| {
        let mut bash = Command::new("bash");
        let path = format!("{}:{}", python.parent().unwrap().display(), std::env::var("PATH").unwrap());
        let quiet = script.replace("rollout-host serve", "true");
        bash.args(["-euo", "pipefail", "-c", &quiet]).env("PATH", path).current_dir(gym.dir.path());
        bash.start().ended_within(COLLECTION)
    };
    let ran = shell(here(serve)).await;
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let command = here(serve).lines().last().unwrap().to_owned();
    let words: Vec<&str> = command.split_whitespace().collect();
    assert_eq!(words[..2], ["rollout-host", "serve"], "{command}");
    let mut host = rollout_host(&words[1..]);
    let host = host.args(["--listen", &gym.at.to_string()]).current_dir(gym.dir.path()).start();
    host.line("listening on ").await;
    for block in [rows, collect] {
        let ran = shell(here(block)).await;
        assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    }
    let text = std::fs::read_to_string(gym.dir.path().join("out.jsonl")).unwrap();
    let rewards: Vec<Value> =
        text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["reward"].clone()).collect();
    assert_eq!(rewards, [1.0, 1.0], "{text}");
    let ran = shell(here(verify)).await;
    let answer: Value =
        serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{}{}", ran.stdout, ran.stderr));
    assert_eq!(answer["reward"], 1.0, "{answer}");
}

/// An agent of Gym, as far as a resources server sees it.
struct GymAgent<'a> {
    host: &'a TestHost,
    http: reqwest::Client,
    cookie: Option<String>,
}

impl<'a> GymAgent<'a> {
    fn of(host: &'a TestHost) -> Self {
        Self { host, http: rollout_outbound::http_client().unwrap(), cookie: None }
    }

    /// Returns status and text of an answer. Cookies of other servers are sent beside the host's own.
    async fn post(&self, path: &str, body: &Value) -> (u16, String) {
        let mut request = self.http.post(format!("{}{path}", self.host.url())).json(body);
        if let Some(cookie) = &self.cookie {
            request = request.header("cookie", format!("other=1; {cookie}; another=2"));
        }
        let answer = in_time("an answer", request.send()).await.unwrap();
        let status = answer.status().as_u16();
        (status, answer.text().await.unwrap())
    }

    /// Opens a session and keeps its cookie.
    async fn seed(&mut self, row: &Value) {
        let request = self.http.post(format!("{}/seed_session", self.host.url())).json(row);
        let answer = in_time("a session", request.send()).await.unwrap();
        let cookie = answer.headers().get("set-cookie").map(|cookie| cookie.to_str().unwrap().to_owned());
        assert_eq!(answer.status(), 200, "{}", answer.text().await.unwrap());
        self.cookie = cookie.unwrap().split(';').next().map(str::to_owned);
    }

    async fn verify(&self, row: &Value, output: Value) -> Value {
        let mut row = row.clone();
        row["response"] = json!({"output": output});
        let (status, text) = self.post("/verify", &row).await;
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).unwrap()
    }
}

#[tokio::test]
async fn tools_that_the_operator_provides_are_called_without_a_rollout() {
    let path = guest("tool_kit").display().to_string();
    let tools = format!("[[tools.component]]\npath = {path:?}\nprefix = 'kit_'\n");
    let host = rollout_tests::providing(&tools).start().await;
    let agent = GymAgent::of(&host);

    for (path, arguments, status, text) in [
        ("/kit_upper", json!({"text": "aé"}), 200, "AÉ"),
        ("/kit_refuse", json!({}), 200, "Error: this tool refuses"),
        ("/kit_upper", json!([1]), 422, "not a JSON object"),
        ("/upper", json!({"text": "a"}), 404, "Not Found"),
    ] {
        let answer = agent.post(path, &arguments).await;
        assert!(answer.0 == status && answer.1.contains(text), "{path} {arguments}: {answer:?}");
    }
}

#[tokio::test]
async fn an_environment_is_played_by_its_tools_and_rates_the_episode() {
    let host = TestHost::of_component(example("example-number-hunt")).start().await;
    let row =
        json!({"responses_create_params": {"input": "Which number?"}, "expected_answer": "-230", "level": 3});
    let (mut agent, mut other) = (GymAgent::of(&host), GymAgent::of(&host));
    let (status, text) = agent.post("/step", &json!({"number": 0})).await;
    assert!(status == 404 && text.contains("post /seed_session first"), "{status} {text}");
    agent.seed(&row).await;
    other.seed(&row).await;

    for (path, arguments, status, text) in [
        ("/step", json!({"number": 0}), 200, r#"{"text":"The number is lower.","guesses_left":7}"#),
        ("/step", json!({"number": "x"}), 200, "error: the action: field `number`"),
        ("/step", json!([1]), 422, "not a JSON object"),
        ("/fly", json!({}), 404, "there is no tool 'fly'; there are: step"),
        ("/step", json!({"number": -230}), 200, r#"{"text":"That is it.","guesses_left":6}"#),
        ("/step", json!({"number": -230}), 200, "error: the episode has ended"),
    ] {
        let answer = agent.post(path, &arguments).await;
        assert!(answer.0 == status && answer.1.contains(text), "{path} {arguments}: {answer:?}");
    }
    let rated = agent.verify(&row, json!([])).await;
    assert_eq!((&rated["reward"], &rated["mask_sample"]), (&json!(0.5), &json!(false)), "{rated}");
    assert_eq!((&rated["level"], &rated["expected_answer"]), (&json!(3), &json!("-230")), "{rated}");
    // A repeated verification has the same reward, although the episode is over.
    assert_eq!(agent.verify(&row, json!([])).await["reward"], 0.5);
    let (status, text) = agent.post("/step", &json!({"number": 1})).await;
    assert!(status == 404 && text.contains("there is no such session"), "{status} {text}");

    let (_, text) = other.post("/step", &json!({"number": -300})).await;
    assert_eq!(text, r#"{"text":"The number is higher.","guesses_left":7}"#);
    let unrated = other.verify(&row, json!([])).await;
    assert_eq!((&unrated["mask_sample"], &unrated["failure_kind"]), (&json!(true), &json!("session_lost")));
    assert!(unrated["failure_reason"].as_str().unwrap().contains("no reward"), "{unrated}");
    let again = GymAgent::of(&host).verify(&row, json!([])).await;
    assert!(again["failure_reason"].as_str().unwrap().contains("has no session"), "{again}");
    assert_eq!(host.get("/reverify_mode").await.body, "unsupported");
    let mut wrong = row.clone();
    wrong["expected_answer"] = "two".into();
    let (status, text) = other.post("/seed_session", &wrong).await;
    assert!(status == 422 && text.contains("ground_truth: it is not a number"), "{status} {text}");
}

#[tokio::test]
async fn an_environment_with_a_grader_has_the_graders_reward() {
    let host = TestHost::of_component(example("example-word-walk")).start().await;
    let prompt = "How many times does the letter \"p\" appear in the text: \"up the poles\"?";
    let data = json!({"user_prompt": prompt, "ground_truth": "2"});
    let session = json!({"resources_session_id": "s1", "episode_id": {"rollout_id": "0-0", "attempt": 0}});
    let mut seed = session.clone();
    (seed["task_id"], seed["task_data"]) = (json!({"taskset": "t", "task_id": "1"}), data.clone());
    let mut agent = GymAgent::of(&host);
    agent.seed(&seed).await;

    let (_, word) = agent.post("/go", &json!({"place": 2})).await;
    assert_eq!(word, r#"{"place":2,"word":"poles","note":null}"#);
    let before = agent.cookie.clone();
    agent.seed(&seed).await;
    assert_eq!(agent.cookie, before, "a repeated seed is the same session");
    let (_, letters) = agent.post("/spell", &json!({})).await;
    assert_eq!(letters, r#"["p","o","l","e","s"]"#, "the episode goes on");
    let (_, answer) = agent.post("/answer", &json!({"count": 2})).await;
    let output = json!([
        {"type": "function_call", "call_id": "c", "name": "answer", "arguments": "{\"count\": 2}"},
        {"type": "function_call_output", "call_id": "c", "output": answer},
    ]);
    let mut row = data;
    row["responses_create_params"] = json!({"input": prompt});
    assert_eq!(agent.verify(&row, output).await["reward"], 1.0);
    assert_eq!(
        agent.post("/close_session", &session).await,
        (200, r#"{"resources_session_id":"s1"}"#.to_owned())
    );
    assert_eq!(agent.post("/go", &json!({"place": 0})).await.0, 404);
    assert_eq!(host.get("/reverify_mode").await.body, "stateless");
    assert_eq!(host.get("/go").await.status, 404);

    // Seeds of one session at the same time.
    let request = |seed: &Value| agent.http.post(format!("{}/seed_session", host.url())).json(seed).send();
    let (first, second) = tokio::join!(request(&seed), request(&seed));
    let cookie = |answer: reqwest::Response| answer.headers()["set-cookie"].to_str().unwrap().to_owned();
    assert_eq!(cookie(first.unwrap()), cookie(second.unwrap()));
    assert_eq!(host.health().await["concurrency"]["running"], 1, "one session was opened");

    let workflow = TestHost::of_component(guest("conform")).start().await;
    assert_eq!(GymAgent::of(&workflow).post("/go", &json!({})).await.0, 404);
}
