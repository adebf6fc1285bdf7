//! Sessions of environments that are in the journal, and their real clients, over the end of the host's process.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::extract::State;
use axum::routing::any;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use rollout_tests::{Serve, TestHost, example, in_time, project_root, trainer_python};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::Notify;

/// Settings with a journal.
const JOURNAL: &str = "[journal]\ndir = 'journal'\n";

/// A tool whose every answer is another one, and which answers when it may.
#[derive(Clone, Default)]
struct Counter {
    asked: Arc<AtomicUsize>,
    arrived: Arc<Notify>,
    is_held: Arc<std::sync::atomic::AtomicBool>,
    released: Arc<Notify>,
}

impl Counter {
    /// Starts the tool, and returns it with options of a host of the test's environment that has it.
    async fn start() -> (Self, Serve) {
        let counter = Self::default();
        let routes = Router::new().fallback(any(count)).with_state(counter.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
        let tool = format!(
            "[[tools.http]]\nname = 'ask'\ndescription = 'Asks.'\nurl = 'http://{address}/'\nprivate-addresses = \
             true\n{JOURNAL}"
        );
        (counter, TestHost::of("environment").config(&tool))
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    /// Holds requests from here on.
    fn hold(&self) {
        self.is_held.store(true, Ordering::SeqCst);
    }

    /// Answers the one request that is held, and those that follow.
    fn release(&self) {
        self.is_held.store(false, Ordering::SeqCst);
        self.released.notify_one();
    }
}

async fn count(State(counter): State<Counter>) -> String {
    let number = counter.asked.fetch_add(1, Ordering::SeqCst) + 1;
    counter.arrived.notify_one();
    if counter.is_held.load(Ordering::SeqCst) {
        counter.released.notified().await;
    }
    format!("answer {number}")
}

/// A client that plays, and pauses.
struct Player {
    child: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Player {
    async fn start(package: &str, kind: &str, url: &str, commands: Value) -> Self {
        let python: PathBuf = trainer_python(package).await;
        let mut command = Command::new(python);
        command.arg(project_root().join("tests/clients/open_env.py"));
        command.args([kind, url, &commands.to_string()]).kill_on_drop(true);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, input, lines }
    }

    async fn line(&mut self) -> String {
        let line = in_time("a line of the client", self.lines.next_line()).await;
        line.unwrap().expect("the client goes on")
    }

    /// Waits until the client has paused.
    async fn paused(&mut self) {
        assert_eq!(self.line().await, "paused");
    }

    async fn go_on(&mut self) {
        self.input.write_all(b"\n").await.unwrap();
    }

    /// Returns the results of all commands.
    async fn results(mut self) -> Vec<Value> {
        let line = self.line().await;
        assert!(in_time("the client", self.child.wait()).await.unwrap().success());
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }
}

/// Returns a host whose address stays the same in its next process.
async fn with_address(serve: Serve) -> (Serve, TestHost) {
    let socket = Arc::new(std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let serve = serve.passed(&socket);
    let host = serve.clone().start().await;
    (serve, host)
}

fn text(result: &Value) -> &str {
    result["observation"]["text"].as_str().unwrap_or_else(|| panic!("no observation but {result}"))
}

#[tokio::test]
async fn a_named_session_goes_on_where_it_was_after_a_kill() {
    let (counter, serve) = Counter::start().await;
    let (serve, mut host) = with_address(serve).await;
    let url = format!("{}/openenv/sessions/mine", host.url());
    let commands = json!([
        ["reset", {"ground_truth": "5", "seed": 7, "episode_id": "e"}],
        ["step", {"what": "draw"}],
        ["step", {"type": "call_tool", "tool_name": "add", "arguments": {"number": 2}}],
        ["pause"],
        ["state"],
        ["step", {"what": "draw"}],
        ["step", {"type": "call_tool", "tool_name": "add", "arguments": {"number": 3}}],
        ["state"],
        ["pause"],
        ["state"],
        ["state"],
        ["step", {"what": "end"}],
    ]);
    let mut player = Player::start("openenv-0.10.0", "generic", &url, commands).await;
    player.paused().await;
    assert_eq!(counter.asked(), 1);
    host = host.killed(&serve).await;
    player.go_on().await;
    player.paused().await;
    host = host.killed(&serve).await;
    player.go_on().await;
    let played = player.results().await;

    // The client connects again, by itself or after an error at its next request, which reads the state.
    let first = text(&played[1]).to_owned();
    assert!(first.ends_with("answer 1"), "{first}");
    let second = text(&played[5]);
    assert!(second.starts_with(&format!("{first}, ")) && second.ends_with("answer 2"), "{second}");
    assert_eq!(played[7], json!({"episode_id": "e", "step_count": 4, "total": 5}));
    assert_eq!(played[10], played[7]);
    assert_eq!((&played[11]["reward"], &played[11]["done"]), (&json!(1.0), &json!(true)), "{}", played[11]);
    assert_eq!(counter.asked(), 2, "no request was repeated");
    // The client closed its session.
    host.idle().await;
}

#[tokio::test]
async fn a_session_over_http_is_found_by_its_id_after_a_kill_and_after_a_stop() {
    let (_counter, serve) = Counter::start().await;
    let (serve, mut host) = with_address(serve).await;
    let commands = json!([
        ["reset"],
        ["call", "add", {"number": 2}],
        ["pause"],
        ["call", "add", {"number": 3}],
        ["pause"],
        ["call", "add", {"number": 4}],
    ]);
    let url = format!("{}/openenv", host.url());
    let mut player = Player::start("openenv-0.10.0", "tools", &url, commands).await;
    player.paused().await;
    host = host.killed(&serve).await;
    player.go_on().await;
    player.paused().await;
    let (ran, host) = host.stopped(&serve).await;
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    player.go_on().await;
    let played = player.results().await;
    assert_eq!([&played[1], &played[3], &played[5]], [&json!(2), &json!(5), &json!(9)], "{played:#?}");
    host.idle().await;
}

/// Makes a call by JSON-RPC.
async fn rpc(host: &TestHost, method: &str, params: Value) -> Value {
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    host.post("/openenv/mcp", &request).await.body
}

#[tokio::test]
async fn a_session_that_was_closed_is_not_found_again() {
    let serve = TestHost::of("environment").config(JOURNAL);
    let host = serve.clone().start().await;
    let mut ids = Vec::new();
    for _ in 0..2 {
        let created = rpc(&host, "openenv/session/create", json!({})).await;
        ids.push(created["result"]["session_id"].as_str().unwrap().to_owned());
    }
    let add = |id: &str| json!({"session_id": id, "name": "add", "arguments": {"number": 1}});
    for id in &ids {
        assert_eq!(rpc(&host, "tools/call", add(id)).await["result"]["data"], 1);
    }
    let closed = rpc(&host, "openenv/session/close", json!({"session_id": ids[0]})).await;
    assert_eq!(closed["result"]["closed"], true);

    let host = host.killed(&serve).await;

    let unknown = rpc(&host, "tools/call", add(&ids[0])).await;
    assert_eq!(unknown["error"]["code"], -32602, "{unknown}");
    assert_eq!(rpc(&host, "tools/call", add(&ids[1])).await["result"]["data"], 2);
}

#[tokio::test]
async fn a_call_that_the_host_died_in_is_answered_to_the_caller_that_repeats_it() {
    let (counter, serve) = Counter::start().await;
    let (serve, host) = with_address(serve).await;
    counter.is_held.store(true, Ordering::SeqCst);
    let url = format!("{}/openenv/sessions/one", host.url());
    let commands = json!([
        ["reset"],
        ["step", {"type": "call_tool", "tool_name": "add", "arguments": {"number": 1}}],
        ["step", {"what": "draw"}],
        ["pause"],
        ["state"],
        ["step", {"what": "draw"}],
        ["state"],
        ["step", {"what": "draw"}],
    ]);
    let mut player = Player::start("openenv-0.10.0", "generic", &url, commands).await;
    in_time("the tool", counter.arrived.notified()).await;
    counter.is_held.store(false, Ordering::SeqCst);
    let host = host.killed(&serve).await;
    player.paused().await;
    player.go_on().await;
    let played = player.results().await;

    assert!(played[2]["error"].is_string(), "{}", played[2]);
    // The request without an answer was sent again, and only that one.
    let drawn = text(&played[5]);
    assert!(drawn.ends_with("answer 2") && !drawn.contains(", "), "{drawn}");
    assert_eq!((&played[6]["step_count"], &played[6]["total"]), (&json!(2), &json!(1)), "{}", played[6]);
    assert_eq!(text(&played[7]).matches("answer").count(), 2, "{}", played[7]);
    assert_eq!(counter.asked(), 3);
    host.idle().await;
}

#[tokio::test]
async fn a_session_of_another_plugin_says_so_after_a_kill() {
    let serve = TestHost::of("environment").config(JOURNAL);
    let host = serve.clone().start().await;
    let created = rpc(&host, "openenv/session/create", json!({})).await;
    let id = created["result"]["session_id"].as_str().unwrap().to_owned();
    let add = json!({"session_id": id, "name": "add", "arguments": {"number": 1}});
    assert_eq!(rpc(&host, "tools/call", add).await["result"]["data"], 1);

    let other = TestHost::of_component(example("example-word-walk")).config(JOURNAL);
    let host = host.killed(&other).await;

    let spell = json!({"session_id": id, "name": "spell", "arguments": {}});
    let answer = rpc(&host, "tools/call", spell).await.to_string();
    assert!(answer.contains("the plugin is another one"), "{answer}");
    let created = rpc(&host, "openenv/session/create", json!({})).await;
    assert!(created["result"]["session_id"].is_string(), "new sessions are opened: {created}");
}

/// A client that sends requests of NeMo Gym and ORS by hand.
struct ByHand<'a> {
    host: &'a TestHost,
    http: reqwest::Client,
}

impl<'a> ByHand<'a> {
    fn of(host: &'a TestHost) -> Self {
        Self { host, http: rollout_outbound::http_client().unwrap() }
    }

    fn request(&self, path: &str, headers: &[(&'static str, &str)], body: &Value) -> reqwest::RequestBuilder {
        let request = self.http.post(format!("{}{path}", self.host.url())).json(body);
        headers.iter().fold(request, |request, (name, value)| request.header(*name, *value))
    }

    /// Returns status and text of the answer.
    async fn post(&self, path: &str, headers: &[(&'static str, &str)], body: &Value) -> (u16, String) {
        let answer = in_time("an answer", self.request(path, headers, body).send()).await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }

    /// Begins an episode of NeMo Gym, and returns its cookie.
    async fn seed(&self) -> String {
        let row = json!({"responses_create_params": {"input": "x"}});
        let answer = in_time("a session", self.request("/seed_session", &[], &row).send()).await.unwrap();
        let cookie = answer.headers()["set-cookie"].to_str().unwrap().to_owned();
        cookie.split(';').next().unwrap().to_owned()
    }
}

#[tokio::test]
async fn a_gym_step_whose_caller_hangs_up_is_completed_and_is_the_same_step_when_it_is_repeated() {
    let (counter, serve) = Counter::start().await;
    let host = serve.start().await;
    let gym = ByHand::of(&host);
    let cookie = gym.seed().await;
    let draw = json!({"what": "draw"});
    counter.hold();
    let address = host.url().trim_start_matches("http://");
    let mut caller = TcpStream::connect(address).await.unwrap();
    let body = draw.to_string();
    let request = format!(
        "POST /step HTTP/1.1\r\nHost: {address}\r\nCookie: {cookie}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    caller.write_all(request.as_bytes()).await.unwrap();
    in_time("the step", counter.arrived.notified()).await;
    caller.shutdown().await.unwrap();
    let mut rest = Vec::new();
    // The server sees the end before it answers.
    in_time("the end of the connection", caller.read_to_end(&mut rest)).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&rest), "", "there was no answer");
    counter.release();

    let headers = [("cookie", cookie.as_str())];
    let (status, first) = gym.post("/step", &headers, &draw).await;

    assert_eq!(status, 200, "{first}");
    assert!(first.contains("answer 1") && !first.contains("answer 2"), "{first}");
    // The same request after an answer that was received is another step.
    let (_, second) = gym.post("/step", &headers, &draw).await;
    assert!(second.contains("answer 1") && second.contains("answer 2"), "{second}");
    assert_eq!(counter.asked(), 2);
}

#[tokio::test]
async fn the_grader_does_not_run_at_the_end_of_a_gym_episode() {
    let host = TestHost::start("environment").await;
    let gym = ByHand::of(&host);
    let cookie = gym.seed().await;

    // There is no label, without which the grader fails.
    let ended = gym.post("/step", &[("cookie", &cookie)], &json!({"what": "end"})).await;

    assert_eq!(ended.0, 200, "{}", ended.1);
    assert!(ended.1.contains("total 0") && !ended.1.starts_with("error"), "{}", ended.1);
    let row = json!({
        "responses_create_params": {"input": "x"}, "expected_answer": "0",
        "response": {"output": [
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "total 0"}]},
        ]},
    });
    let (_, rated) = gym.post("/verify", &[("cookie", &cookie)], &row).await;
    let rated: Value = serde_json::from_str(&rated).unwrap();
    assert_eq!(rated["reward"], 1.0, "{rated}");
}

#[tokio::test]
async fn few_calls_of_a_session_run_or_wait() {
    let (counter, serve) = Counter::start().await;
    let host = serve.start().await;
    let client = ByHand::of(&host);
    counter.hold();
    let draw = json!({"name": "step", "input": {"what": "draw"}});
    let (_, created) = client.post("/create_session", &[], &json!({})).await;
    let id = created.split("data: ").nth(1).unwrap().lines().next().unwrap().to_owned();
    let session = [("x-session-id", id.as_str())];
    let (status, text) =
        client.post("/create", &session, &json!({"env_name": "acts", "task_spec": {}})).await;
    assert_eq!(status, 200, "{text}");
    let mut calls = Vec::new();
    for _ in 0..16 {
        let call = client.request("/acts/call", &session, &draw).send();
        calls.push(in_time("a stream", call).await.unwrap());
        assert_eq!(calls[calls.len() - 1].status(), 200);
    }

    let (status, text) = client.post("/acts/call", &session, &draw).await;

    assert_eq!(status, 503, "{text}");
    assert!(text.contains("16 calls of this session run or wait"), "{text}");
    in_time("the first call", counter.arrived.notified()).await;
    counter.release();
    for (number, call) in calls.into_iter().enumerate() {
        let text = in_time("an answer", call.text()).await.unwrap();
        assert!(text.contains("event: end"), "{number}: {text}");
    }
    assert_eq!(counter.asked(), 16);
    assert_eq!(client.post("/acts/call", &session, &draw).await.0, 200);

    // The same limit of NeMo Gym.
    let cookie = client.seed().await;
    counter.hold();
    let headers = [("cookie", cookie.as_str())];
    let body = json!({"what": "draw"});
    let mut steps: FuturesUnordered<_> = (0..17).map(|_| client.post("/step", &headers, &body)).collect();
    let (status, text) = steps.next().await.unwrap();
    assert_eq!(status, 429, "{text}");
    assert!(text.contains("16 calls of this session are in progress"), "{text}");
    counter.release();
    while let Some((status, text)) = steps.next().await {
        assert_eq!(status, 200, "{text}");
    }
}
