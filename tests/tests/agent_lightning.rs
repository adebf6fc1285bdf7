//! `work` claims rollouts from the server of the published package `agentlightning` 1.0.2, which `clients/setup` installs.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use reqwest::Method;
use rollout_tests::{
    Answer, Controller, Process, Ran, Start, guest, in_time, project_root, rollout_host, trainer_python,
    until,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::Command;

/// The key of the gateway.
const KEY: &str = "secret-of-the-gateway";

/// The package's own server, with a model behind it.
struct Gateway {
    _process: Process,
    url: String,
    http: reqwest::Client,
}

impl Gateway {
    async fn start() -> Self {
        let python = trainer_python("agentlightning-1.0.2").await;
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let mut server = Command::new(python.with_file_name("agl-server"));
        server.args(["host=127.0.0.1", &format!("port={port}"), &format!("key={KEY}")]);
        let dir = std::env::temp_dir();
        let process = server.current_dir(dir).start();
        let url = format!("http://127.0.0.1:{port}");
        let http = rollout_outbound::http_client().unwrap();
        let healthy = async || http.get(format!("{url}/healthz")).send().await.ok();
        until("the gateway's health", healthy).await;
        Self { _process: process, url, http }
    }

    /// Starts a gateway whose model is this controller.
    async fn with_model(controller: &Controller) -> Self {
        let gateway = Self::start().await;
        gateway.register(controller).await;
        gateway
    }

    async fn register(&self, controller: &Controller) {
        let model =
            json!([{"model": "Qwen/Qwen2.5-7B-Instruct", "endpoint": controller.model_url(), "version": 1}]);
        self.call(Method::POST, "/api/models", Some(model)).await;
    }

    async fn send(&self, method: Method, path: &str, body: Option<Value>) -> (u16, Value) {
        let mut request = self.http.request(method, format!("{}{path}", self.url)).bearer_auth(KEY);
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        let answer = in_time("the gateway's answer", request.send()).await.unwrap();
        let status = answer.status().as_u16();
        let text = answer.text().await.unwrap();
        (status, serde_json::from_str(&text).unwrap_or_default())
    }

    async fn call(&self, method: Method, path: &str, body: Option<Value>) -> Value {
        let (status, answer) = self.send(method, path, body).await;
        assert!((200..300).contains(&status), "{path}: {status} {answer}");
        answer
    }

    /// Enqueues rollouts, as the trainer does.
    async fn enqueue(&self, rollouts: Value) {
        self.call(Method::POST, "/api/rollouts", Some(rollouts)).await;
    }

    /// Returns a rollout's status, if it exists.
    async fn status(&self, id: &str) -> Option<Value> {
        let (status, answer) = self.send(Method::GET, &format!("/api/rollouts/{id}"), None).await;
        (status == 200).then(|| answer["rollout"]["status"].clone())
    }

    async fn reaches(&self, id: &str, state: &str) -> Value {
        until(&format!("{id} to be {state}"), async || {
            self.status(id).await.filter(|status| status["state"] == state)
        })
        .await
    }

    /// Waits until a rollout ended, and returns its status.
    async fn ended(&self, id: &str) -> Value {
        until(&format!("the end of {id}"), async || {
            let status = self.status(id).await?;
            ["succeeded", "failed"].contains(&status["state"].as_str()?).then_some(status)
        })
        .await
    }

    /// Returns the data of a rollout's events of one type.
    async fn events(&self, id: &str, kind: &str) -> Vec<Value> {
        let events =
            self.call(Method::GET, &format!("/api/rollouts/{id}/events?event_type={kind}"), None).await;
        events.as_array().unwrap().iter().map(|event| event["data"].clone()).collect()
    }
}

fn row(id: &str, input: Value) -> Value {
    json!({"rollout_id": id, "input": input})
}

fn sum(id: &str, label: &str) -> Value {
    row(id, json!({"prompt": "Calculate 2 + 3.", "ground_truth": label, "data_id": "d"}))
}

/// The host at work, in its own directory.
struct Worker {
    dir: TempDir,
    url: String,
    guest: &'static str,
    options: Vec<String>,
    config: String,
}

impl Worker {
    fn of(gateway: &Gateway) -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            url: gateway.url.clone(),
            guest: "conform",
            options: Vec::new(),
            config: String::new(),
        }
    }

    fn guest(self, guest: &'static str) -> Self {
        Self { guest, ..self }
    }

    fn config(self, config: &str) -> Self {
        Self { config: config.to_owned(), ..self }
    }

    fn option(mut self, name: &str, value: &str) -> Self {
        self.options.extend([name.to_owned(), value.to_owned()]);
        self
    }

    fn command(&self) -> Command {
        let config = self.dir.path().join("config.toml");
        std::fs::write(&config, &self.config).unwrap();
        let mut command =
            rollout_host(["work", "--agl", &self.url, "--key-env", "AGL_KEY", "--poll-secs", "0.1"]);
        command.arg(guest(self.guest)).args(&self.options).arg("--config").arg(config);
        command
            .env("AGL_KEY", KEY)
            .env("ROLLOUT_HOST_LOG", "rollout_host=debug")
            .current_dir(self.dir.path());
        command
    }

    async fn start(&self) -> Process {
        let process = self.command().start();
        process.line("working for ").await;
        process
    }

    /// Runs the command, which must end by itself.
    async fn fails(&self) -> Ran {
        self.command().start().ended().await
    }
}

async fn logs(process: &Process, text: &str) {
    until(&format!("'{text}' in the log"), async || process.stderr().contains(text).then_some(())).await;
}

#[tokio::test]
async fn waiting_rollouts_are_claimed_run_and_rewarded() {
    let controller = Controller::start().await;
    let gateway = Gateway::with_model(&controller).await;
    gateway
        .enqueue(json!([
            sum("right", "5"),
            sum("wrong", "6"),
            {"rollout_id": "val", "is_train": false, "input": {"question": "Calculate 1 + 1.", "answer": 2}},
            row("verl", json!({
                "prompt": [{"role": "user", "content": "Calculate 3 + 4."}],
                "reward_model": {"ground_truth": "7", "style": "rule"}, "data_source": "sums",
            })),
        ]))
        .await;
    let worker = Worker::of(&gateway);

    let process = worker.start().await;

    for (id, reward) in [("right", 1.0), ("wrong", 0.0), ("val", 1.0), ("verl", 1.0)] {
        let status = gateway.ended(id).await;
        assert_eq!(status["state"], "succeeded", "{id}: {status}");
        assert_eq!(status["last_attempt_id"], "0", "{id}: {status}");
        let rewards = gateway.events(id, "reward").await;
        assert_eq!(rewards, [json!({"value": reward, "source": "grader"})], "{id}");
        assert_eq!(gateway.events(id, "model_request").await.len(), 1, "the gateway recorded the call");
    }
    // Later ones are found as well.
    gateway.enqueue(json!([sum("later", "5")])).await;
    assert_eq!(gateway.ended("later").await["state"], "succeeded");
    let ran = process.terminate().await;
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
}

#[tokio::test]
async fn a_rollout_without_a_reward_is_failed_with_the_reason_and_without_an_event() {
    let controller = Controller::start().await;
    let gateway = Gateway::with_model(&controller).await;
    gateway
        .enqueue(json!([
            row("number", json!(7)),
            row("no-prompt", json!({"text": "x"})),
            row("workflow", json!({"prompt": "please fail"})),
            row("trap", json!({"prompt": "please trap"})),
            row("grader", json!({"prompt": "Calculate 2 + 3.", "answer": "please fail"})),
            row("withdrawn", json!({"prompt": "Calculate 2 + 3.", "answer": "please remove"})),
            {"rollout_id": "late", "input": "please spin", "config": {"timeout_seconds": 1}},
            {"rollout_id": "late-grader", "input": {"prompt": "Calculate 2 + 3.", "answer": "please spin"},
             "config": {"timeout_seconds": 2}},
        ]))
        .await;
    let worker = Worker::of(&gateway);
    let _process = worker.start().await;

    for (id, reason) in [
        ("number", "the row must be an object or a text, not a number"),
        ("no-prompt", "the row has no prompt"),
        ("workflow", "the workflow was told to fail"),
        ("trap", "trap: "),
        ("grader", "the grader was told to fail"),
        ("withdrawn", "withdrawn: "),
        ("late", "timeout: "),
        ("late-grader", "timeout: the rollout took longer than its timeout_seconds, 2 s"),
    ] {
        let status = gateway.ended(id).await;
        assert_eq!(status["state"], "failed", "{id}: {status}");
        let message = status["error_message"].as_str().unwrap_or_default();
        assert!(message.contains(reason), "{id}: {message}");
        assert!(gateway.events(id, "reward").await.is_empty(), "{id}: a failure is no reward");
    }
}

#[tokio::test]
async fn a_paused_gateway_and_one_without_a_model_are_waited_for() {
    let controller = Controller::start().await;
    let gateway = Gateway::start().await;
    gateway.enqueue(json!([sum("early", "5")])).await;
    // Any failed attempt would be one too many.
    let worker = Worker::of(&gateway).config("[model]\nattempts-max = 1\n");
    let process = worker.start().await;
    gateway.reaches("early", "running").await;
    logs(&process, "the model's server pauses").await;
    gateway.register(&controller).await;
    assert_eq!(gateway.ended("early").await["state"], "succeeded");

    let pause = json!({"retry_after_seconds": 1, "reason": "weights"});
    gateway.call(Method::POST, "/proxy/pause", Some(pause)).await;
    gateway.enqueue(json!([sum("paused", "5")])).await;
    gateway.reaches("paused", "running").await;
    let seen = process.stderr().matches("the model's server pauses").count();
    until("a call during the pause", async || {
        (process.stderr().matches("the model's server pauses").count() > seen).then_some(())
    })
    .await;
    gateway.call(Method::POST, "/proxy/resume", None).await;
    assert_eq!(gateway.ended("paused").await["state"], "succeeded");
}

#[tokio::test]
async fn a_deleted_rollout_is_stopped_and_others_continue() {
    let controller = Controller::start().await;
    let gateway = Gateway::with_model(&controller).await;
    let worker = Worker::of(&gateway).option("--max-concurrent", "1");
    let process = worker.start().await;
    gateway.enqueue(json!([row("deleted", json!("please spin"))])).await;
    gateway.reaches("deleted", "running").await;
    gateway.enqueue(json!([sum("next", "5")])).await;

    gateway.call(Method::DELETE, "/api/rollouts/deleted", None).await;

    // The only slot is free again.
    assert_eq!(gateway.ended("next").await["state"], "succeeded");
    assert!(gateway.status("deleted").await.is_none());
    logs(&process, "the trainer no longer waits for this rollout").await;
}

#[tokio::test]
async fn an_orderly_stop_fails_what_is_open_and_leaves_what_waits() {
    let controller = Controller::start().await;
    controller.hold();
    let gateway = Gateway::with_model(&controller).await;
    let worker = Worker::of(&gateway).option("--max-concurrent", "1").config("drain-secs = 2.0\n");
    gateway.enqueue(json!([sum("open", "5"), sum("waiting", "5")])).await;
    let process = worker.start().await;
    controller.chats_arrived(1).await;

    let ran = process.terminate().await;

    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    let status = gateway.status("open").await.unwrap();
    assert_eq!(
        (&status["state"], &status["error_message"]),
        (&json!("failed"), &json!("controller shutdown"))
    );
    assert_eq!(gateway.status("waiting").await.unwrap()["state"], "queuing");
}

#[tokio::test]
async fn rollouts_of_a_killed_process_continue_in_the_next_one() {
    let controller = Controller::start().await;
    controller.hold();
    let gateway = Gateway::with_model(&controller).await;
    gateway.enqueue(json!([sum("kept", "5"), sum("deleted", "5"), sum("taken", "5")])).await;
    let worker = Worker::of(&gateway);
    let process = worker.start().await;
    controller.chats_arrived(3).await;
    process.kill().await;
    gateway.call(Method::DELETE, "/api/rollouts/deleted", None).await;
    let failed = json!({"status": {"state": "failed", "error_message": "by another"}});
    gateway.call(Method::PATCH, "/api/rollouts/taken", Some(failed)).await;
    controller.release();

    let process = worker.start().await;

    assert_eq!(gateway.ended("kept").await["state"], "succeeded");
    assert_eq!(gateway.events("kept", "reward").await, [json!({"value": 1.0, "source": "grader"})]);
    assert_eq!(gateway.status("taken").await.unwrap()["error_message"], "by another");
    assert!(gateway.events("taken", "reward").await.is_empty());
    let ran = process.terminate().await;
    assert_eq!(ran.code, Some(0), "nothing is left: {}", ran.stderr);
    let log = worker.start().await.terminate().await.stderr;
    assert!(!log.contains("resumed rollouts of an earlier process"), "nothing is left in the journal: {log}");
}

#[tokio::test]
async fn two_workers_share_a_queue_and_run_each_rollout_once() {
    const COUNT: usize = 60;
    let controller = Controller::start().await;
    let gateway = Gateway::with_model(&controller).await;
    let workers = [Worker::of(&gateway), Worker::of(&gateway)];
    let _processes = [workers[0].start().await, workers[1].start().await];
    let ids: Vec<String> = (0..COUNT).map(|at| format!("r{at}")).collect();

    gateway.enqueue(ids.iter().map(|id| sum(id, "5")).collect()).await;

    for id in &ids {
        assert_eq!(gateway.ended(id).await["state"], "succeeded", "{id}");
        assert_eq!(gateway.events(id, "reward").await.len(), 1, "{id}");
    }
    assert_eq!(controller.chats().len(), COUNT);
}

#[tokio::test]
async fn fields_of_rows_are_configurable_and_an_agent_may_rate_itself() {
    let controller = Controller::start().await;
    controller.answer_chats([Answer::Say("#### 5")]);
    let gateway = Gateway::with_model(&controller).await;
    let worker =
        Worker::of(&gateway).option("--prompt-field", "task.text").option("--label-field", "task.result");
    let _process = worker.start().await;
    gateway
        .enqueue(json!([
            row("nested", json!({"task": {"text": "How many?", "result": 5}, "answer": "no label"})),
            row("missing", json!({"task": {"text": "How many?"}})),
        ]))
        .await;

    assert_eq!(gateway.ended("nested").await["state"], "succeeded");
    assert_eq!(gateway.events("nested", "reward").await[0]["value"], 1.0);
    let status = gateway.ended("missing").await;
    assert_eq!(status["error_message"], "the row has no 'task.result', the field of the label");
}

/// Returns the shell commands of the page, block by block.
fn page_commands() -> Vec<String> {
    let page = std::fs::read_to_string(project_root().join("docs/serve/agent-lightning.md")).unwrap();
    let blocks = page.split("```sh\n").skip(1);
    blocks.map(|rest| rest.split("\n```").next().unwrap_or(rest).to_owned()).collect()
}

#[tokio::test]
async fn the_commands_of_the_page_lead_to_the_first_batch() {
    let blocks = page_commands();
    let [start, enqueue, work, events] = blocks.as_slice() else { panic!("{} blocks", blocks.len()) };
    for line in ["pip install agentlightning==1.0.2", "agl-server host=127.0.0.1 port=8080 key=secret"] {
        assert!(start.contains(line), "{start}");
    }
    let gateway = Gateway::start().await;
    let model = rollout_host(["mock-model", "--listen", "127.0.0.1:0"]).start();
    let model_url = model.line("listening on ").await;
    let worker = Worker::of(&gateway);
    let here = |script: &str| {
        script
            .replace("http://127.0.0.1:8080", &gateway.url)
            .replace("http://127.0.0.1:9100/v1", &model_url)
            .replace("AGL_KEY=secret", &format!("AGL_KEY={KEY}"))
    };
    let shell = |script: String| {
        let mut bash = Command::new("bash");
        bash.args(["-euo", "pipefail", "-c", &script]).env("AGL_KEY", KEY).current_dir(worker.dir.path());
        bash.start().ended()
    };
    let ran = shell(here(enqueue)).await;
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);

    let words = shell_words(&here(work));
    assert_eq!(words[0], "rollout-host", "{work}");
    let arguments = words[1..].iter().filter(|word| *word != "my_agent.wasm");
    let mut command = rollout_host(arguments);
    command.arg(guest("conform")).env("AGL_KEY", KEY).current_dir(worker.dir.path());
    let _process = command.start();

    for id in ["a", "b"] {
        assert_eq!(gateway.ended(id).await["state"], "succeeded", "{id}");
    }
    let ran = shell(here(events)).await;
    let shown: Value =
        serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{}{}", ran.stdout, ran.stderr));
    assert_eq!(shown[0]["data"], json!({"value": 1.0, "source": "grader"}), "{shown}");
}

/// Returns the words of a command without quotes.
fn shell_words(command: &str) -> Vec<String> {
    command.split_whitespace().map(str::to_owned).collect()
}

#[tokio::test]
async fn a_gateway_or_plugin_that_cannot_be_used_ends_the_command_with_the_reason() {
    let controller = Controller::start().await;
    let gateway = Gateway::start().await;
    let refused = async |worker: &Worker, code: i32, texts: &[&str]| {
        let ran = worker.fails().await;
        assert_eq!(ran.code, Some(code), "{}", ran.stderr);
        for text in texts {
            assert!(ran.stderr.contains(text), "'{text}' is not in: {}", ran.stderr);
        }
        assert!(!ran.stderr.contains(KEY), "{}", ran.stderr);
    };
    let mut worker = Worker::of(&gateway);
    worker.url = format!("{}/wrong", gateway.url);
    refused(&worker, 2, &["cannot be used: it answered 404", "/wrong"]).await;
    worker.url = controller.base_url();
    refused(&worker, 2, &["cannot be used: it answered 404"]).await;
    worker.url = "nowhere".to_owned();
    refused(&worker, 2, &["--agl: 'nowhere' is not an http or https URL"]).await;
    refused(&Worker::of(&gateway).guest("only_workflow"), 1, &["it has no grader", "--grader"]).await;

    let worker = Worker::of(&gateway);
    let ran = worker.command().env("AGL_KEY", "another-key").start().ended().await;
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("it answered 401: Invalid or missing API key"), "{}", ran.stderr);
    assert!(!ran.stderr.contains("another-key"), "{}", ran.stderr);
}

/// Forwards connections to a gateway. The answer to the first `count` requests that add an event is lost.
async fn losing_answers(gateway: &Gateway, count: usize) -> String {
    let target = gateway.url.strip_prefix("http://").unwrap().to_owned();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let to_lose = Arc::new(AtomicUsize::new(count));
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (target, to_lose) = (target.clone(), to_lose.clone());
            tokio::spawn(async move {
                let server = TcpStream::connect(target).await.expect("the gateway runs");
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) = server.into_split();
                let is_event = AtomicBool::new(false);
                let requests = async {
                    let mut buffer = vec![0; 64 << 10];
                    while let Ok(read @ 1..) = from_client.read(&mut buffer).await {
                        let head = String::from_utf8_lossy(&buffer[..read]);
                        let head = head.lines().next().unwrap_or_default();
                        if head.starts_with("POST ") && head.contains("/events") {
                            is_event.store(true, Ordering::Relaxed);
                        }
                        if to_server.write_all(&buffer[..read]).await.is_err() {
                            return;
                        }
                    }
                };
                let answers = async {
                    let mut buffer = vec![0; 64 << 10];
                    while let Ok(read @ 1..) = from_server.read(&mut buffer).await {
                        let loses = |left: usize| left.checked_sub(1);
                        if is_event.swap(false, Ordering::Relaxed)
                            && to_lose.fetch_update(Ordering::Relaxed, Ordering::Relaxed, loses).is_ok()
                        {
                            return;
                        }
                        if to_client.write_all(&buffer[..read]).await.is_err() {
                            return;
                        }
                    }
                };
                tokio::select! {
                    () = requests => {}
                    () = answers => {}
                }
            });
        }
    });
    url
}

#[tokio::test]
async fn an_event_whose_answer_was_lost_is_posted_once() {
    let controller = Controller::start().await;
    let gateway = Gateway::with_model(&controller).await;
    gateway.enqueue(json!([sum("r1", "5")])).await;
    let mut worker = Worker::of(&gateway);
    worker.url = losing_answers(&gateway, 2).await;

    let _process = worker.start().await;

    assert_eq!(gateway.ended("r1").await["state"], "succeeded");
    assert_eq!(gateway.events("r1", "reward").await, [json!({"value": 1.0, "source": "grader"})]);
    assert!(gateway.events("r1", "metrics").await.len() <= 1);
}

#[tokio::test]
async fn a_gateway_that_is_away_is_waited_for() {
    let controller = Controller::start().await;
    let gateway = Gateway::with_model(&controller).await;
    let mut worker = Worker::of(&gateway);
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    worker.url = format!("http://{address}");
    let process = worker.start().await;
    logs(&process, "the service with the work does not answer").await;
    let ran = tokio::time::timeout(Duration::from_secs(30), process.terminate()).await.unwrap();
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
}
