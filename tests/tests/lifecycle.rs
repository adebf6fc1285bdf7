//! Tests of a server under a service manager: its passed socket, its notifications, and a server that replaces another
//! while callers keep sending requests.

use std::net::TcpListener;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rollout_tests::{
    Controller, Serve, ServeCatalog, Start, TestCatalog, TestHost, in_time, rollout_host, until,
};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::task::JoinSet;

fn socket() -> Arc<TcpListener> {
    Arc::new(TcpListener::bind("127.0.0.1:0").unwrap())
}

/// Returns options of a server that continues with the journal of another.
fn keeping(socket: &Arc<TcpListener>, journal: &std::path::Path) -> Serve {
    TestHost::of("conform").passed(socket).option("--journal", journal.display())
}

/// Returns a client that opens a connection for each request, or keeps one.
fn caller(keeps: bool) -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(60));
    builder.pool_max_idle_per_host(if keeps { 4 } else { 0 }).build().unwrap()
}

/// Runs a rollout of generation D to its end, like a trainer that knows nothing of the servers.
async fn run(http: &reqwest::Client, url: &str, body: &Value) -> Value {
    let id = body["rollout_id"].as_str().unwrap();
    let admitted = http.post(format!("{url}/rollout")).json(body).send().await.expect("it is answered");
    assert_eq!(admitted.status(), 202, "{id}");
    let admitted: Value = admitted.json().await.unwrap();
    let lease = admitted["polling_lease_token"].as_str().unwrap();
    loop {
        let polled = http.get(format!("{url}/rollout/{id}/result")).header("x-osmosis-rollout-lease", lease);
        let polled = polled.send().await.expect("a poll is answered");
        assert_eq!(polled.status(), 200, "{id}");
        let result: Value = polled.json().await.unwrap();
        if matches!(result["status"].as_str(), Some("success" | "failure" | "cancelled")) {
            return result;
        }
    }
}

#[tokio::test]
async fn a_server_replaces_another_and_no_request_fails() {
    const CALLERS: usize = 12;
    let (socket, journal) = (socket(), tempfile::tempdir().unwrap());
    let url = format!("http://{}", socket.local_addr().unwrap());
    let controller = Controller::start().await;
    let mut host = keeping(&socket, journal.path()).start().await;
    assert_eq!(host.url(), url);

    let stop = Arc::<AtomicBool>::default();
    let mut callers = JoinSet::new();
    for n in 0..CALLERS {
        let (stop, url) = (stop.clone(), url.clone());
        let request = controller.rollout("Calculate 2 + 3.").label("5");
        callers.spawn(async move {
            let (http, mut count) = (caller(n % 2 == 0), 0);
            while !stop.load(Ordering::SeqCst) {
                let body = request.clone().id(&format!("caller-{n}-{count}")).body();
                let result = run(&http, &url, &body).await;
                assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
                count += 1;
            }
            count
        });
    }
    for restart in 1..=3 {
        let expected = CALLERS * 3 * restart;
        let enough = async || (controller.chats().len() >= expected).then_some(());
        until("rollouts in this server", enough).await;
        let (ran, next) = host.stopped(&keeping(&socket, journal.path())).await;
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        host = next;
    }
    let calls = controller.chats().len();
    until("rollouts in the last server", async || (controller.chats().len() > calls + CALLERS).then_some(()))
        .await;
    stop.store(true, Ordering::SeqCst);
    let counts = in_time("the last rollouts", callers.join_all()).await;
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
}

#[tokio::test]
async fn a_rollout_that_runs_when_its_server_is_replaced_ends_in_the_next() {
    let (socket, journal) = (socket(), tempfile::tempdir().unwrap());
    let url = format!("http://{}", socket.local_addr().unwrap());
    let controller = Controller::start().await;
    controller.hold();
    let first = keeping(&socket, journal.path()).config("drain-secs = 2.0\n").start().await;
    let body = controller.rollout("Calculate 2 + 3.").label("5").body();
    let polling = tokio::spawn(async move { run(&caller(true), &url, &body).await });
    controller.chats_open(1).await;

    let (ran, _second) = first.stopped(&keeping(&socket, journal.path())).await;
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    controller.release();

    let result = in_time("the result", polling).await.unwrap();
    assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
}

#[tokio::test]
async fn a_passed_descriptor_that_is_no_listening_socket_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let file = std::fs::File::open("/dev/null").unwrap();
    let mut command = tokio::process::Command::new("sh");
    let program = rollout_host(["serve"]);
    command.args(["-c", "exec 3<&0; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" \"$@\""]);
    command.arg(program.as_std().get_program()).args(program.as_std().get_args());
    command.arg(rollout_tests::guest("conform")).current_dir(dir.path());
    let ran = command.start_with(file.into()).ended().await;
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("LISTEN_FDS: the passed descriptor is not a listening network socket"),
        "{}",
        ran.stderr
    );
}

/// A service manager's socket for notifications.
struct Manager {
    socket: tokio::net::UnixDatagram,
    dir: tempfile::TempDir,
}

impl Manager {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(dir.path().join("notify")).unwrap();
        socket.set_nonblocking(true).unwrap();
        Self { socket: tokio::net::UnixDatagram::from_std(socket).unwrap(), dir }
    }

    fn path(&self) -> String {
        self.dir.path().join("notify").display().to_string()
    }

    /// Waits for a message with this line; returns the whole message.
    async fn hears(&self, line: &str) -> String {
        let hearing = async {
            loop {
                let mut message = [0; 4096];
                let length = self.socket.recv(&mut message).await.unwrap();
                let text = String::from_utf8_lossy(&message[..length]).into_owned();
                if text.lines().any(|its| its == line) {
                    return text;
                }
            }
        };
        in_time(line, hearing).await
    }
}

#[tokio::test]
async fn a_service_manager_is_notified_of_a_servers_state() {
    let manager = Manager::start();
    let serve = TestHost::of("conform").variable("NOTIFY_SOCKET", &manager.path());
    let host = serve.variable("WATCHDOG_USEC", "200000").start().await;

    let ready = manager.hears("READY=1").await;
    assert!(ready.contains(&format!("STATUS=listening on {}", host.url())), "{ready}");
    for _ in 0..3 {
        manager.hears("WATCHDOG=1").await;
    }
    host.process().signal(Signal::HUP);
    let reloading = manager.hears("RELOADING=1").await;
    assert!(reloading.contains("MONOTONIC_USEC="), "{reloading}");
    manager.hears("READY=1").await;

    let stopping = tokio::spawn(host.stop());
    let text = manager.hears("STOPPING=1").await;
    assert!(text.contains("EXTEND_TIMEOUT_USEC=40000000"), "{text}");
    assert_eq!(in_time("its end", stopping).await.unwrap().code, Some(0));
}

#[tokio::test]
async fn a_server_without_a_service_manager_sends_no_notifications() {
    let host = TestHost::start("conform").await;
    host.process().signal(Signal::HUP);
    assert_eq!(host.health().await["status"], "ok");
    let stderr = host.stop().await.stderr;
    assert!(!stderr.contains("service manager"), "{stderr}");
}

#[tokio::test]
async fn ready_reports_readiness_and_the_reason_only_with_the_key() {
    let controller = Controller::start().await;
    controller.hold();
    let host = TestHost::of("conform")
        .variable("SERVER_KEY", "k3y-of-the-server")
        .option("--server-key-env", "SERVER_KEY");
    let host = host.start().await;
    let ready = host.get("/ready").await;
    assert_eq!((ready.status, &ready.body), (200, &json!({"ready": true})));
    assert_eq!(host.get("/health").await.status, 401);

    let host = host.with_key("k3y-of-the-server");
    host.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    controller.chats_open(1).await;
    host.process().signal(Signal::TERM);
    let draining = async || Some(host.get("/ready").await).filter(|ready| ready.status == 503);
    let reply = until("the server to drain", draining).await;
    assert_eq!(reply.body["reason"], "the host is shutting down", "{}", reply.text);
    let http = caller(false);
    let without_key: Value =
        http.get(format!("{}/ready", host.url())).send().await.unwrap().json().await.unwrap();
    assert_eq!(without_key, json!({"ready": false}));
    controller.release();
}

#[tokio::test]
async fn a_server_of_many_tenants_is_replaced_and_no_request_fails() {
    const CALLERS: usize = 6;
    let controller = Controller::start().await;
    let mut catalog = ServeCatalog::default().passed().start().await;
    let tenant = catalog.tenant("t", json!({})).await;
    catalog.serve(&tenant, "p", "conform", "").await;
    let stop = Arc::<AtomicBool>::default();
    let mut callers = JoinSet::new();
    for n in 0..CALLERS {
        let (stop, plugin) = (stop.clone(), catalog.plugin(&tenant, "p"));
        let request = controller.rollout("Calculate 2 + 3.").label("5");
        callers.spawn(async move {
            let mut count = 0;
            while !stop.load(Ordering::SeqCst) {
                let result = plugin.run(&request.clone().id(&format!("caller-{n}-{count}"))).await;
                assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
                count += 1;
            }
            count
        });
    }
    for _ in 0..2 {
        let expected = controller.chats().len() + CALLERS * 3;
        until("rollouts in this server", async || (controller.chats().len() >= expected).then_some(())).await;
        let (ran, next) = catalog.replaced().await;
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        catalog = next;
    }
    let expected = controller.chats().len() + CALLERS;
    until("rollouts in the last server", async || (controller.chats().len() >= expected).then_some(())).await;
    stop.store(true, Ordering::SeqCst);
    let counts = in_time("the last rollouts", callers.join_all()).await;
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
}

#[tokio::test]
async fn a_server_of_many_tenants_reports_its_readiness() {
    let controller = Controller::start().await;
    controller.hold();
    let catalog = TestCatalog::start().await;
    let tenant = catalog.tenant("t", json!({})).await;
    catalog.serve(&tenant, "p", "conform", "").await;
    let ready = catalog.get_open("/ready").await;
    assert_eq!((ready.status, &ready.body), (200, &json!({"ready": true})));

    catalog.plugin(&tenant, "p").admit(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    controller.chats_open(1).await;
    catalog.process().signal(Signal::TERM);
    let draining = async || Some(catalog.get_open("/ready").await).filter(|ready| ready.status == 503);
    assert_eq!(until("the server to drain", draining).await.body, json!({"ready": false}));
    let reply = catalog.as_operator(reqwest::Method::GET, "/ready", Value::Null).await;
    assert_eq!(reply.body["reason"], "the host is shutting down", "{}", reply.text);
    controller.release();
}
