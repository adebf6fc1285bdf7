//! Tests of the host's connections to models and callback addresses: they are bounded, they close, they disclose
//! nothing, and a failure names its cause.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rollout_tests::{Answer, Controller, RawServer, Sends, Serve, TestHost, in_time, project_root, until};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// Settings with which every failed call is final.
const ONE_TRY: &str = "[model]\nattempts-max = 1\n[callback]\nattempts-max = 1\n";

/// Checks that a failure names the host as the cause.
fn check_is_hosts(result: &Value) {
    assert_eq!(result["status"], "failure", "{result:#}");
    let message = result["err_message"].as_str().unwrap_or_default();
    assert!(message.contains("host could not send") && message.contains("open files"), "{message}");
}

/// Requests `/health` over a new connection; returns the first line of the answer.
async fn new_caller(host: &TestHost) -> String {
    let asking = async {
        let address = host.url().trim_start_matches("http://").to_owned();
        let mut stream = TcpStream::connect(&address).await?;
        let request = format!("GET /health HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        std::io::Result::Ok(answer.lines().next().unwrap_or_default().to_owned())
    };
    in_time("an answer to a new caller", asking).await.expect("it is answered")
}

#[tokio::test]
async fn a_sequence_of_trainers_does_not_exhaust_the_hosts_connections() {
    const ROLLOUTS: usize = 100;
    let host =
        Arc::new(TestHost::of("conform").option("--max-concurrent", 1000).open_files(400).start().await);
    // Each trainer has its model at a separate port, and keeps running.
    let mut trainers = Vec::new();

    for _ in 0..5 {
        let trainer = Controller::start().await;
        trainer.hold();
        let mut results = JoinSet::new();
        for _ in 0..ROLLOUTS {
            let admitted = host.admit(&trainer.rollout("Calculate 2 + 3.").label("5")).await;
            let host = host.clone();
            results.spawn(async move { host.result(&admitted).await });
        }
        // All calls are concurrent, so that each has a connection.
        trainer.chats_open(ROLLOUTS).await;
        assert_eq!(new_caller(&host).await, "HTTP/1.1 200 OK");
        trainer.release();
        while let Some(result) = results.join_next().await {
            let result = result.unwrap();
            assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
        }
        assert_eq!(new_caller(&host).await, "HTTP/1.1 200 OK");
        trainers.push(trainer);
    }

    // No trainer is called again, and nevertheless all connections are closed, except those of the callers.
    let few = (ROLLOUTS + 60) as f64;
    let files = async || host.metrics().await.get("rollout_host_open_fds").filter(|files| *files < few);
    until("connections that rest to be closed", files).await;
}

#[tokio::test]
async fn a_new_connection_replaces_an_idle_one() {
    const RESTING: usize = 8;
    let (first, second) = (Controller::start().await, Controller::start().await);
    let host = TestHost::of("conform").config(ONE_TRY).start().await;
    first.hold();
    let mut admitted = Vec::new();
    for _ in 0..RESTING {
        admitted.push(host.admit(&first.rollout("Calculate 2 + 3.").label("5")).await);
    }
    let last = host.admit(&first.rollout("Calculate 2 + 3.").label("5")).await;
    first.chats_open(RESTING + 1).await;
    first.release();
    for admitted in admitted.iter().chain([&last]) {
        assert_eq!(host.result(admitted).await["status"], "success");
    }
    let files = OpenFiles::of(&host);

    files.limit_to(files.lowest_free());
    let result = host.run(&second.rollout("Calculate 2 + 3.").label("5")).await;
    files.limit_to(1024);

    assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
}

#[tokio::test]
async fn the_host_is_blamed_if_it_has_no_descriptors() {
    let controller = Controller::start().await;
    let host = TestHost::of("conform").config(ONE_TRY).start().await;
    host.idle().await;
    let files = OpenFiles::of(&host);

    files.limit_to(3);
    let result = host.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    files.limit_to(1024);

    check_is_hosts(&result);
    host.idle().await;
    let metrics = host.metrics().await;
    assert_eq!(metrics.get(r#"rollout_host_model_calls_total{outcome="host"}"#), Some(1.0));
    assert_eq!(metrics.get(r#"rollout_host_model_calls_total{outcome="unavailable"}"#), Some(0.0));
    let ended =
        r#"rollout_host_rollouts_ended_total{fault="host",kind="host",outcome="unscored",stage="workflow"}"#;
    assert_eq!(metrics.get(ended), Some(1.0));
    let result = host.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    assert_eq!(result["sample"]["reward"], 1.0, "free descriptors are used again: {result:#}");
}

#[tokio::test]
async fn a_callback_that_the_host_could_not_send_is_counted_as_its_fault() {
    let (model, receiver) = (Controller::start().await, Controller::start().await);
    let host = TestHost::of("conform").config(ONE_TRY).start().await;
    let request = model.rollout("Calculate 2 + 3.").label("5").with_callbacks("key");
    let request =
        request.with("completion_callback_url", format!("{}/callbacks/r/completion", receiver.base_url()));
    let request = request.with("grader_callback_url", format!("{}/callbacks/r/grader", receiver.base_url()));
    model.hold();
    assert_eq!(host.ask(&request).await.status, 202);
    model.chats_open(1).await;
    let files = OpenFiles::of(&host);

    files.limit_to(3);
    model.release();
    // No metrics are read meanwhile, because that takes a descriptor, too.
    let expected = "this host cannot open a connection";
    until("a callback that is not sent", async || host.process().stderr().contains(expected).then_some(()))
        .await;
    files.limit_to(1024);

    host.idle().await;
    let metrics = host.metrics().await;
    assert!(metrics.get(r#"rollout_host_callbacks_total{outcome="host"}"#) >= Some(1.0));
    assert_eq!(metrics.get(r#"rollout_host_callbacks_total{outcome="unavailable"}"#), Some(0.0));
}

/// The open files of a host, and their limit.
struct OpenFiles(Pid);

impl OpenFiles {
    fn of(host: &TestHost) -> Self {
        let id = host.process().id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        Self(id.expect("it runs"))
    }

    /// Returns the descriptor number of its next open file.
    fn lowest_free(&self) -> u64 {
        let dir = format!("/proc/{}/fd", self.0.as_raw_nonzero());
        let name = |entry: std::fs::DirEntry| entry.file_name().to_string_lossy().parse::<u64>().ok();
        let open: Vec<u64> =
            std::fs::read_dir(dir).unwrap().filter_map(|entry| name(entry.unwrap())).collect();
        (0..).find(|number| !open.contains(number)).unwrap()
    }

    fn limit_to(&self, files: u64) {
        let limit = Rlimit { current: Some(files), maximum: Some(1024) };
        prlimit(Some(self.0), Resource::Nofile, limit).unwrap();
    }
}

/// Returns endless responses of model servers.
fn without_end() -> Vec<Sends> {
    let forever = |first: &str, piece: &str| Sends::Forever(first.to_owned(), piece.to_owned());
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    vec![
        forever("", "HTTP/1.1 100 Continue\r\n\r\n"),
        forever("HTTP/1.1 200 OK\r\n", "a: b\r\n"),
        forever("HTTP/1.1 200 OK\r\na: ", "b"),
        forever(&format!("{chunked}0\r\n"), "a: b\r\n"),
        forever(&format!("{chunked}0\r\na: "), "b"),
        forever(&format!("{chunked}1;"), "x"),
        forever(chunked, "1;ext\r\nx\r\n"),
        forever(chunked, "1\r\nx\r\n"),
        forever("HTTP/1.1 200 OK\r\n\r\n", "{\"choices\":"),
        Sends::ByteByByte("HTTP/1.1 200 OK\r\na: bbbbbbbbb".to_owned()),
        Sends::ByteByByte("HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nretry-after: 0".to_owned()),
        Sends::ByteByByte(format!("{chunked}FFFFF\r\n{{\"")),
    ]
}

#[tokio::test]
async fn a_model_that_sends_endlessly_delays_no_other_rollout() {
    // Only the deadline ends these calls.
    let config = "[model]\nattempts-max = 1000000\ndelay-base-secs = 0.001\ndelay-max-secs = 0.001\n";
    let host = TestHost::of("conform").config(config).start().await;
    let controller = Controller::start().await;
    let mut servers = Vec::new();
    let mut admitted = Vec::new();
    for sends in without_end() {
        let server = RawServer::start(sends).await;
        let request = controller.rollout("Calculate 2 + 3.").label("5").agent_secs(4.0);
        admitted.push(host.admit(&request.with("chat_completions_url", server.model_url())).await);
        servers.push(server);
    }

    let begun = Instant::now();
    let mut answered = Vec::new();
    while begun.elapsed() < Duration::from_secs(3) {
        let started = Instant::now();
        host.health().await;
        answered.push(started.elapsed());
    }
    let mut ends = Vec::new();
    for admitted in &admitted {
        ends.push(in_time("a deadline", host.result(admitted)).await);
    }

    answered.sort();
    let median = answered[answered.len() / 2];
    // Everything may run on two cores or fewer; a blocked answer would take seconds.
    assert!(median < Duration::from_millis(250), "{median:?} of {}", answered.len());
    for (end, sends) in ends.iter().zip(without_end()) {
        // A body may have reached its size limit before the deadline.
        let is_too_long = end["err_message"].as_str().is_some_and(|text| text.contains("reply-bytes-max"));
        assert!(end["err_category"] == "timeout" || is_too_long, "{sends:?} {end:#}");
    }
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}

/// A key of a caller.
const KEY: &str = "sk-Live/0123+4567=89";

fn repeated() -> [&'static str; 8] {
    [
        KEY,
        r"sk-Live\/0123+4567=89",
        r"\u0073k-Live/0123\u002b4567=89",
        r"\u0073\u006b\u002d\u004c\u0069\u0076\u0065\u002f\u0030\u0031\u0032\u0033\u002b\u0034\u0035\u0036\u0037\u003d\u0038\u0039",
        r#"{\\\"key\\\":\\\"\\u0073k-Live\\/0123+4567=89\\\"}"#,
        "sk-Live%2F0123%2B4567%3D89",
        // Base64 and hex of `Bearer sk-Live/0123+4567=89`.
        "QmVhcmVyIHNrLUxpdmUvMDEyMys0NTY3PTg5",
        "42656172657220736b2d4c6976652f303132332b343536373d3839",
    ]
}

/// Parts of the key that must not appear, in each form.
const TRACES: [&str; 5] = ["0123+4567", "0123\\u002b", "0123%2B", "MDEyMys0NTY3", "303132332b34353637"];

fn check_holds_no_key(text: &str, what: &str) {
    for trace in TRACES {
        assert!(!text.contains(trace), "{what} has {trace}: {text}");
    }
}

/// Checks every file below a directory.
fn check_folder_holds_no_key(folder: &Path) -> usize {
    let mut files = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files += check_folder_holds_no_key(&path);
        } else {
            let text = String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned();
            check_holds_no_key(&text, &path.display().to_string());
            files += 1;
        }
    }
    files
}

#[tokio::test]
async fn a_key_that_a_models_server_repeats_is_disclosed_nowhere() {
    let controller = Controller::start().await;
    let serve = TestHost::of("conform")
        .variable("ROLLOUT_HOST_LOG", "debug,rmcp=off")
        .config("[model]\nattempts-max = 2\ndelay-base-secs = 0.001\n");
    let host = serve.start().await;
    let mut callbacks = 0;
    for text in repeated() {
        for sends in [
            Sends::completion(&format!("{text} #### 5")),
            Sends::response(401, &format!("{{\"error\":\"wrong key '{text}'\"}}")),
            Sends::response(503, &format!("try again with {text}")),
            Sends::response(200, &format!("{{\"choices\":\"{text}\"}}")),
        ] {
            let server = RawServer::start(sends).await;
            let request = controller.rollout("Calculate 2 + 3.").label("5").with_callbacks("key");
            let request = request.with("chat_completions_url", server.model_url()).with("llm_api_key", KEY);
            assert_eq!(host.ask(&request).await.status, 202);
            callbacks += 2;
            controller.callbacks_arrived(callbacks).await;
        }
    }
    host.idle().await;

    let mut cut = 0;
    for callback in controller.callbacks() {
        let text = callback.body.to_string();
        check_holds_no_key(&text, &callback.path);
        cut += usize::from(text.contains("(secret)"));
    }
    assert!(cut >= 3 * repeated().len(), "a refusal and a reply are shown without the key: {cut}");
    assert!(check_folder_holds_no_key(&host.kept()) >= 4 * repeated().len());
    check_holds_no_key(&host.stop().await.stderr, "the log");
}

#[tokio::test]
async fn a_key_that_a_judges_server_repeats_is_disclosed_nowhere() {
    let controller = Controller::start().await;
    for text in repeated() {
        for sends in [
            Sends::completion(&format!("SCORE: 1 {text}")),
            Sends::response(400, &format!("wrong key {text}")),
        ] {
            let server = RawServer::start(sends).await;
            let host = TestHost::of("judged")
                .variable("ROLLOUT_HOST_LOG", "debug")
                .variable("JUDGE_KEY", KEY)
                .config(&format!(
                    "[judge]\nurl = '{}'\nmodel = 'j'\napi-key-env = 'JUDGE_KEY'\n",
                    server.model_url()
                ))
                .start()
                .await;
            let admitted = host.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await;
            let result = host.result(&admitted).await;
            check_holds_no_key(&result.to_string(), "the result");
            let trajectory = host.trajectory(&admitted.id).await;
            assert!(trajectory.to_string().contains("(secret)"), "the judge was called: {trajectory:#}");
            check_holds_no_key(&trajectory.to_string(), "the trajectory");
            check_holds_no_key(&host.stop().await.stderr, "the log");
        }
    }
}

fn certificates() -> std::path::PathBuf {
    project_root().join("tests/certificates")
}

fn acceptor() -> TlsAcceptor {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let chain = CertificateDer::pem_file_iter(certificates().join("server.pem")).unwrap();
    let chain = chain.collect::<Result<Vec<_>, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_file(certificates().join("server.key")).unwrap();
    TlsAcceptor::from(Arc::new(config.with_no_client_auth().with_single_cert(chain, key).unwrap()))
}

fn trusting(serve: Serve) -> Serve {
    serve.variable("SSL_CERT_FILE", certificates().join("ca.pem").to_str().unwrap())
}

#[tokio::test]
async fn a_model_behind_tls_is_called_over_a_persistent_connection() {
    let server = RawServer::start_with_tls(Sends::completion("#### 5"), acceptor()).await;
    let controller = Controller::start().await;
    let host = trusting(TestHost::of("conform")).start().await;

    for _ in 0..3 {
        let request = controller.rollout("Calculate 2 + 3.").label("5");
        let result = host.run(&request.with("chat_completions_url", server.model_url())).await;
        assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
    }

    assert_eq!(server.accepted(), 1);
}

#[tokio::test]
async fn a_model_behind_tls_is_bounded_and_read_like_any_other() {
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\n";
    let sends = Sends::Forever(chunked.to_owned(), "{\r\n1\r\n".to_owned());
    let server = RawServer::start_with_tls(sends, acceptor()).await;
    let controller = Controller::start().await;
    let host = trusting(TestHost::of("conform").config("[limits]\nreply-bytes-max = 100000\n")).start().await;

    let request = controller.rollout("Calculate 2 + 3.").label("5");
    let result = host.run(&request.with("chat_completions_url", server.model_url())).await;

    let message = result["err_message"].as_str().unwrap_or_default();
    assert!(message.contains("longer than reply-bytes-max, 100000 bytes"), "{result:#}");
}

#[tokio::test]
async fn an_untrusted_certificate_is_named() {
    let server = RawServer::start_with_tls(Sends::completion("#### 5"), acceptor()).await;
    let controller = Controller::start().await;
    let host = TestHost::of("conform").config(ONE_TRY).start().await;

    let request = controller.rollout("Calculate 2 + 3.").label("5");
    let result = host.run(&request.with("chat_completions_url", server.model_url())).await;

    let message = result["err_message"].as_str().unwrap_or_default();
    assert!(message.contains("certificate"), "{result:#}");
}

#[tokio::test]
async fn callers_get_their_callbacks_while_models_hang() {
    let (hanging, receiver) = (Controller::start().await, Controller::start().await);
    // Open files for 20 rollouts.
    let host = TestHost::of("conform").option("--max-concurrent", 1000).open_files(128 + 40).start().await;
    let answering = Controller::start().await;
    answering.hold();
    let request = answering.rollout("Calculate 2 + 3.").label("5").with_callbacks("key");
    let request =
        request.with("completion_callback_url", format!("{}/callbacks/r/completion", receiver.base_url()));
    assert_eq!(
        host.ask(&request.with("grader_callback_url", format!("{}/callbacks/r/grader", receiver.base_url())))
            .await
            .status,
        202
    );
    answering.chats_open(1).await;
    hanging.hold();
    for _ in 0..19 {
        host.admit(&hanging.rollout("Calculate 2 + 3.").label("5")).await;
    }
    hanging.chats_open(19).await;

    answering.answer_chats([Answer::Say("#### 5")]);
    answering.release();

    let callbacks = receiver.callbacks_arrived(2).await;
    assert_eq!(callbacks[1].body["status"], "success", "{callbacks:?}");
}
