//! Tests of difficult callers: silent, slow, with large requests, without the key, from a web page.

use std::time::{Duration, Instant};

use rollout_tests::{Controller, InitRequest, TestHost, in_time, until};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const POSTS: [&str; 3] = ["/rollout", "/rollout/cancel", "/v1/rollout/init"];

/// Raises the test's own limit of open files.
fn raise_open_files() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).expect("a limit may be raised");
}

/// Sends a text on a new connection; returns the head of the answer and the connection.
async fn exchange(host: &TestHost, text: &str) -> (String, TcpStream) {
    let mut stream = host.connect().await.expect("it listens");
    stream.write_all(text.as_bytes()).await.expect("the host reads it");
    let head = in_time("a head", head(&mut stream)).await;
    (head, stream)
}

/// Reads the next head, or a part of it if the connection ends.
async fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&head).into_owned()
}

fn status(head: &str) -> &str {
    head.split(' ').nth(1).unwrap_or("none")
}

fn post(path: &str, more: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{more}\r\n")
}

/// The header of a body that is never sent.
const LARGE: &str = "content-length: 60000000\r\n";

#[tokio::test]
async fn silent_connections_block_no_other_caller() {
    raise_open_files();
    let controller = Controller::start().await;
    let host = TestHost::of("conform").open_files(400).start().await;
    let mut silent = Vec::new();
    for at in 0..600 {
        let mut stream = in_time("a connection", host.connect()).await.expect("it is accepted");
        if at % 3 == 0 {
            // An incomplete head counts as no request.
            stream.write_all(b"GET /health HTTP/1.1\r\n").await.ok();
        }
        silent.push(stream);
    }

    assert_eq!(host.health().await["status"], "ok");
    for _ in 0..8 {
        let result = host.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;
        assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
    }
    let mut closed = 0;
    for stream in &mut silent {
        let mut byte = [0];
        // No wait: connections that are still open send nothing.
        if let Ok(0) | Err(_) =
            tokio::time::timeout(Duration::ZERO, stream.read(&mut byte)).await.unwrap_or(Ok(1))
        {
            closed += 1;
        }
    }
    assert!(closed >= 400, "only {closed} of 600 were closed");
}

#[tokio::test]
async fn a_connection_that_says_nothing_is_closed_long_before_an_idle_one() {
    let host = TestHost::start("conform").await;
    let mut never = host.connect().await.expect("it listens");
    let (answer, mut idle) = exchange(&host, "GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    assert_eq!(status(&answer), "200");
    let length = answer.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("it has one");
    let mut body = vec![0; length.trim().parse().expect("a number")];
    idle.read_exact(&mut body).await.expect("it comes");

    let mut byte = [0];
    assert_eq!(in_time("the end of a silent connection", never.read(&mut byte)).await.unwrap_or(0), 0);

    idle.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("it is open");
    assert_eq!(status(&in_time("a second answer", head(&mut idle)).await), "200");
}

#[tokio::test]
async fn without_the_key_no_body_is_requested_or_awaited() {
    let host = TestHost::of("agent_loop").option("--api-key", "the-key").start().await;
    for path in POSTS {
        for more in
            [LARGE, "content-length: 60000000\r\nexpect: 100-continue\r\n", "transfer-encoding: chunked\r\n"]
        {
            let (refused, _open) = exchange(&host, &post(path, more)).await;
            assert_eq!(status(&refused), "401", "{path} {more}: {refused}");
        }
        let head = format!("{LARGE}expect: 100-continue\r\nauthorization: Bearer the-key\r\n");
        let (answer, _open) = exchange(&host, &post(path, &head)).await;
        let expected = if path == "/rollout/cancel" { "413" } else { "100" };
        assert_eq!(status(&answer), expected, "{path}: {answer}");
    }
}

#[tokio::test]
async fn a_refusal_is_read_by_callers_that_are_still_writing() {
    let host = TestHost::of("conform").option("--api-key", "the-key").start().await;
    for _ in 0..10 {
        let mut stream = host.connect().await.expect("it listens");
        stream.write_all(post("/rollout", "content-length: 500000\r\n").as_bytes()).await.expect("it reads");
        let body = vec![b'x'; 500_000];
        stream.write_all(&body).await.expect("the host reads the rest");
        let refused = in_time("a head", head(&mut stream)).await;
        assert_eq!(status(&refused), "401", "{refused}");
    }
}

#[tokio::test]
async fn a_body_that_announces_too_much_is_refused_before_it_comes() {
    let host = TestHost::start("agent_loop").await;
    for (path, length) in
        [("/rollout", 64 << 20), ("/v1/rollout/init", 64 << 20), ("/rollout/cancel", 4 << 20)]
    {
        let more = format!("content-length: {}\r\nexpect: 100-continue\r\n", length + 1);
        let (refused, _open) = exchange(&host, &post(path, &more)).await;
        assert_eq!(status(&refused), "413", "{path}: {refused}");
        let more = format!("content-length: {length}\r\nexpect: 100-continue\r\n");
        let (answer, _open) = exchange(&host, &post(path, &more)).await;
        assert_eq!(status(&answer), "100", "{path}: {answer}");
    }
    // A body of unknown length is read up to the limit.
    let mut stream = host.connect().await.expect("it listens");
    stream
        .write_all(post("/rollout/cancel", "transfer-encoding: chunked\r\n").as_bytes())
        .await
        .expect("it reads");
    let chunk = format!("100000\r\n{}\r\n", " ".repeat(1 << 20));
    for _ in 0..6 {
        if stream.write_all(chunk.as_bytes()).await.is_err() {
            break;
        }
    }
    assert_eq!(status(&in_time("a head", head(&mut stream)).await), "413");
}

#[tokio::test]
async fn a_body_that_stops_arriving_is_abandoned() {
    let controller = Controller::start().await;
    let host = TestHost::start("agent_loop").await;
    let mut unfinished = Vec::new();
    for path in POSTS {
        for more in ["content-length: 4000000\r\n", "transfer-encoding: chunked\r\n"] {
            let beginning = match more.starts_with("content") {
                true => "{\"rollout_id\": \"",
                false => "10\r\n{\"rollout_id\": \"\r\n",
            };
            let mut stream = host.connect().await.expect("it listens");
            stream.write_all((post(path, more) + beginning).as_bytes()).await.expect("it reads");
            unfinished.push((path, stream));
        }
    }

    // A body that arrives byte by byte is rejected, too.
    let mut slow = host.connect().await.expect("it listens");
    slow.write_all(post("/rollout", "content-length: 4000000\r\n").as_bytes()).await.expect("it reads");
    let (mut reading, mut writing) = slow.into_split();
    let dripping = tokio::spawn(async move {
        let mut pause = tokio::time::interval(Duration::from_millis(300));
        while writing.write_all(b" ").await.is_ok() {
            pause.tick().await;
        }
    });

    for (path, stream) in &mut unfinished {
        let answer = in_time("the end of waiting", head(stream)).await;
        assert_eq!(status(&answer), "408", "{path}: {answer}");
    }
    let mut answer = [0; 12];
    in_time("the end of dripping", reading.read_exact(&mut answer)).await.expect("it is answered");
    assert_eq!(&answer, b"HTTP/1.1 408");
    dripping.abort();
    let reply = host.post("/v1/rollout/init", &InitRequest::new(&controller, "2 + 3").body()).await;
    assert_eq!(reply.status, 202, "{}", reply.text);
}

#[tokio::test]
async fn web_pages_and_foreign_host_names_are_refused_with_the_option_that_allows_them() {
    let routes = [
        "POST /rollout",
        "POST /rollout/cancel",
        "POST /v1/rollout/init",
        "GET /health",
        "GET /metrics",
        "GET /platform/health",
        "GET /rollout/r/result",
        "GET /rollout/r/status",
        "GET /nowhere",
    ];
    let host = TestHost::start("agent_loop").await;
    for route in routes {
        for (header, option) in [
            ("host: evil.example:9000\r\n", "--allow-host evil.example"),
            ("host: localhost\r\norigin: http://evil.example\r\n", "--allow-origin http://evil.example"),
            ("host: localhost\r\norigin: null\r\n", "--allow-origin"),
        ] {
            let request = format!(
                "{route} HTTP/1.1\r\n{header}content-length: 60000000\r\nexpect: 100-continue\r\n\r\n"
            );
            let (refused, mut rest) = exchange(&host, &request).await;
            assert_eq!(status(&refused), "403", "{route} {header}: {refused}");
            let mut why = String::new();
            in_time("the reason", rest.read_to_string(&mut why)).await.ok();
            assert!(why.contains(option), "{route} {header}: {why}");
        }
    }
    for name in ["localhost", "127.0.0.1", "[::1]", "10.1.2.3", "a.localhost:1"] {
        let (answer, _) = exchange(&host, &format!("GET /health HTTP/1.1\r\nhost: {name}\r\n\r\n")).await;
        assert_eq!(status(&answer), "200", "{name}: {answer}");
    }
}

#[tokio::test]
async fn host_names_and_pages_that_the_operator_allows_are_served() {
    let ask = async |host: &TestHost, headers: &str| {
        let (answer, _) = exchange(host, &format!("GET /health HTTP/1.1\r\n{headers}\r\n")).await;
        status(&answer).to_owned()
    };
    let service = "host: rollouts.svc.local:9000\r\n";
    let page = "host: localhost\r\norigin: https://board.example\r\n";
    let by_option = TestHost::of("conform")
        .option("--allow-host", "rollouts.svc.local")
        .option("--allow-origin", "https://board.example");
    let by_file = "allowed-hosts = ['*.svc.local']\nallowed-origins = ['https://board.example', 'http://localhost:3000']\n";
    for host in [by_option.start().await, TestHost::of("conform").config(by_file).start().await] {
        assert_eq!(ask(&host, service).await, "200");
        assert_eq!(ask(&host, page).await, "200");
        assert_eq!(ask(&host, "host: other.local\r\n").await, "403");
    }
    // With the key, any host name is accepted.
    let keyed = TestHost::of("conform").option("--api-key", "k").start().await;
    assert_eq!(ask(&keyed, &format!("{service}authorization: Bearer k\r\n")).await, "200");
    assert_eq!(ask(&keyed, service).await, "401");
    assert_eq!(ask(&keyed, &format!("{page}authorization: Bearer k\r\n")).await, "403");
}

#[tokio::test]
async fn a_request_to_cancel_tens_of_thousands_delays_no_other() {
    let controller = Controller::start().await;
    controller.hold();
    let host = TestHost::start("conform").await;
    let mut live = Vec::new();
    for _ in 0..20 {
        live.push(host.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await.id);
    }
    controller.chats_open(20).await;
    let mut ids: Vec<String> = (0..60_000).map(|at| format!("nobody-{at:06}")).collect();
    ids.extend(live.iter().cloned());
    ids.extend(ids[..1000].to_vec());
    let body = json!({ "ids": ids });

    let mut slowest = Duration::ZERO;
    let cancelling = host.post("/rollout/cancel", &body);
    tokio::pin!(cancelling);
    let reply = loop {
        let started = Instant::now();
        tokio::select! {
            reply = &mut cancelling => break reply,
            _ = host.health() => slowest = slowest.max(started.elapsed()),
        }
    };

    assert_eq!(reply.status, 200, "{}", reply.text);
    let dispositions = reply.body["dispositions"].as_object().expect("an object");
    assert_eq!(dispositions.len(), 60_020);
    for id in &live {
        assert_eq!(dispositions[id], "cancelled_running");
    }
    assert_eq!(dispositions["nobody-000000"], "not_found");
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    let too_many: Vec<Value> = (0..100_001).map(|at| json!(format!("{at}"))).collect();
    let refused = host.post("/rollout/cancel", &json!({ "ids": too_many })).await;
    assert_eq!(refused.status, 422, "{}", refused.text);
    assert!(refused.text.contains("100000"), "{}", refused.text);
}

#[tokio::test]
async fn polls_of_one_lease_block_no_other_caller() {
    raise_open_files();
    let controller = Controller::start().await;
    controller.hold();
    let lines = "[osmosis]\nresult-wait-secs = 50.0\n";
    let host = TestHost::of("conform").open_files(400).config(lines).start().await;
    let rollout = host.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    controller.chats_open(1).await;
    host.poll(&rollout).await;
    let poll = format!(
        "GET /rollout/{}/result HTTP/1.1\r\nhost: localhost\r\nx-osmosis-rollout-lease: {}\r\n\r\n",
        rollout.id, rollout.lease
    );
    let mut waiting = Vec::new();
    // More polls than connections: only the last one waits.
    for _ in 0..300 {
        let mut stream = in_time("a connection", host.connect()).await.expect("it is accepted");
        stream.write_all(poll.as_bytes()).await.expect("it reads");
        waiting.push(stream);
    }

    let request = controller.rollout("Calculate 2 + 3.").label("5").body().to_string();
    let admitted = post("/rollout", &format!("content-length: {}\r\n", request.len())) + &request;
    assert_eq!(status(&exchange(&host, &admitted).await.0), "202");
    for _ in 0..40 {
        let (health, _) = exchange(&host, "GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
        assert_eq!(status(&health), "200", "{health}");
    }
    let body = json!({"ids": [rollout.id]}).to_string();
    let request = post("/rollout/cancel", &format!("content-length: {}\r\n", body.len())) + &body;
    assert_eq!(status(&exchange(&host, &request).await.0), "200");
    let (mut answered, mut crowded) = (0, 0);
    for stream in &mut waiting {
        match status(&in_time("an answer", head(stream)).await) {
            "200" => answered += 1,
            // The request arrived before the earlier connections were closed.
            "503" => crowded += 1,
            other => panic!("{other}"),
        }
    }
    assert!(answered > crowded, "{answered} polls are answered, and {crowded} refused");
}

#[tokio::test]
async fn bodies_are_charged_to_the_memory_budget_on_arrival_and_with_their_rollout() {
    const MIB: usize = 1 << 20;
    let controller = Controller::start().await;
    let host =
        TestHost::of("conform").option("--memory-budget-bytes", 100 * MIB).option("--max-concurrent", 1);
    let host = host.start().await;
    let held =
        async || host.metrics().await.get("rollout_host_held_bytes{use=\"request\"}").expect("it is counted");

    // A body without room is refused before it is sent.
    let (answer, _open) = exchange(
        &host,
        &post("/rollout", &format!("content-length: {}\r\nexpect: 100-continue\r\n", 40 * MIB)),
    )
    .await;
    assert_eq!(status(&answer), "100", "{answer}");
    assert_eq!(held().await, 0.0, "announcing costs nothing");
    let mut unfinished = Vec::new();
    let chunk = vec![b' '; 30 * MIB];
    for _ in 0..2 {
        let mut stream = host.connect().await.expect("it listens");
        stream
            .write_all(post("/rollout", &format!("content-length: {}\r\n", 31 * MIB)).as_bytes())
            .await
            .expect("it reads");
        stream.write_all(&chunk).await.expect("it reads");
        unfinished.push(stream);
    }
    until("the bodies to be charged", async || (held().await >= (60 * MIB) as f64).then_some(())).await;
    let (refused, _open) = exchange(
        &host,
        &post("/rollout", &format!("content-length: {}\r\nexpect: 100-continue\r\n", 40 * MIB)),
    )
    .await;
    assert_eq!(status(&refused), "429", "{refused}");
    assert!(refused.contains("retry-after: "), "{refused}");
    drop(unfinished);
    until("the memory of the bodies to be released", async || (held().await == 0.0).then_some(())).await;

    // A prompt is charged from its admission to its end, also while it is queued.
    controller.hold();
    let first = host.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    controller.chats_open(1).await;
    let long =
        json!([{"role": "user", "content": "x".repeat(8 * MIB)}, {"role": "user", "content": "2 + 3"}]);
    let queued = host.admit(&controller.rollout("").with("initial_messages", long).label("5")).await;
    let charged = held().await;
    assert!((8.0..10.0).contains(&(charged / MIB as f64)), "{charged}");
    host.cancel(&queued.id).await;
    until("the memory of the prompt to be released", async || (held().await < 100_000.0).then_some(())).await;
    controller.release();
    assert_eq!(host.result(&first).await["sample"]["reward"], 1.0);
    until("all memory to be released", async || (held().await == 0.0).then_some(())).await;
}
