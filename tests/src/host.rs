//! A `rollout-host serve` process, and generation D's client side of it.

use std::any::Any;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use reqwest::header::{CONTENT_TYPE, HeaderMap};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::{
    Controller, Exposition, Process, Ran, Received, RolloutRequest, Start, guest, in_time, project_root,
    rollout_host, rollout_host_with_open_files, target_dir, until,
};

/// The header that carries a lease.
const LEASE: &str = "x-osmosis-rollout-lease";

/// What a host is started with.
#[derive(Clone, Debug)]
pub struct Serve {
    plugin: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    config: String,
    open_files_max: Option<u32>,
    program: Option<PathBuf>,
    passed: Option<Arc<TcpListener>>,
}

/// A host that serves. It ends with the test.
pub struct TestHost {
    running: Running,
    url: String,
    key: Option<String>,
    http: reqwest::Client,
    dir: TempDir,
}

/// Where a host runs.
enum Running {
    Process(Box<Process>),
    /// In the process of the test, for as long as this is held.
    Here(#[expect(dead_code, reason = "dropped with the host")] Box<dyn Any + Send + Sync>),
}

/// An answer of the host.
#[derive(Debug)]
pub struct Reply {
    /// Its status code.
    pub status: u16,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body; null where that is no JSON.
    pub body: Value,
    /// Its body as text.
    pub text: String,
}

/// A rollout that was admitted.
#[derive(Clone, Debug)]
pub struct Admitted {
    /// Its id.
    pub id: String,
    /// What the result is asked for with.
    pub lease: String,
}

impl Reply {
    /// The rollout that it admits, which it has to.
    pub fn admitted(&self) -> Admitted {
        assert_eq!(self.status, 202, "{:?}", self.body);
        let text = |field: &str| self.body[field].as_str().expect("an admission has it").to_owned();
        Admitted { id: text("rollout_id"), lease: text("polling_lease_token") }
    }
}

impl Serve {
    /// Adds an option and its value.
    pub fn option(mut self, name: &str, value: impl ToString) -> Self {
        self.arguments.extend([name.to_owned(), value.to_string()]);
        self
    }

    /// Adds an option without a value.
    pub fn flag(mut self, name: &str) -> Self {
        self.arguments.push(name.to_owned());
        self
    }

    /// Sets a variable of its environment.
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Gives it a configuration file with these lines.
    pub fn config(mut self, lines: &str) -> Self {
        self.config.push_str(lines);
        self
    }

    /// Lets it have so many open files and no more.
    pub fn open_files(mut self, max: u32) -> Self {
        self.open_files_max = Some(max);
        self
    }

    /// Has it be this program instead of the one that was built for the tests.
    pub fn program(mut self, program: PathBuf) -> Self {
        self.program = Some(program);
        self
    }

    /// Passes it this socket, as a service manager does that listens in its place.
    pub fn passed(mut self, socket: &Arc<TcpListener>) -> Self {
        self.passed = Some(socket.clone());
        self
    }

    /// Starts it, and waits until it listens.
    pub async fn start(self) -> TestHost {
        self.start_in(tempfile::tempdir().expect("a temporary directory can be made")).await
    }

    async fn start_in(self, dir: TempDir) -> TestHost {
        let config = dir.path().join("config.toml");
        std::fs::write(&config, &self.config).expect("it can be written");
        let mut command = match (self.open_files_max, &self.program) {
            (Some(max), _) => rollout_host_with_open_files(max, ["serve"]),
            (None, Some(program)) => {
                let mut command = Command::new(program);
                command.arg("serve").env("XDG_CACHE_HOME", target_dir().join("test-cache"));
                command
            }
            (None, None) => rollout_host(["serve"]),
        };
        command.arg(&self.plugin).args(["--listen", "127.0.0.1:0"]).args(&self.arguments);
        command.arg("--artifact-root").arg(dir.path().join("kept"));
        command.arg("--config").arg(config);
        command.envs(self.environment).current_dir(dir.path());
        let process = match &self.passed {
            Some(socket) => start_with_socket(&command, socket),
            None => command.start(),
        };
        let url = process.line("listening on ").await;
        TestHost { running: Running::Process(Box::new(process)), url, key: None, http: client(), dir }
    }
}

impl TestHost {
    /// A host of this guest, to be set up.
    pub fn of(guest_name: &str) -> Serve {
        Self::of_component(guest(guest_name))
    }

    /// A host of this component, to be set up.
    pub fn of_component(path: PathBuf) -> Serve {
        Serve {
            plugin: path,
            arguments: Vec::new(),
            environment: Vec::new(),
            config: String::new(),
            open_files_max: None,
            program: None,
            passed: None,
        }
    }

    /// A host of this guest, with defaults.
    pub async fn start(guest_name: &str) -> Self {
        Self::of(guest_name).start().await
    }

    /// A host that listens here, and runs in this process for as long as `kept` is held.
    pub(crate) fn in_this_process(url: String, dir: TempDir, kept: Box<dyn Any + Send + Sync>) -> Self {
        Self { running: Running::Here(kept), url, key: None, http: client(), dir }
    }

    /// The same host, asked with this key from now on.
    pub fn with_key(mut self, key: &str) -> Self {
        self.key = Some(key.to_owned());
        self
    }

    /// Its base URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Opens a connection to it, on which nothing is said yet.
    pub async fn connect(&self) -> std::io::Result<TcpStream> {
        TcpStream::connect(self.url.split("://").last().unwrap_or_default()).await
    }

    /// Where it keeps trajectories and artifacts.
    pub fn kept(&self) -> PathBuf {
        self.dir.path().join("kept")
    }

    /// The directory that it was started in.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Its process.
    pub fn process(&self) -> &Process {
        match &self.running {
            Running::Process(process) => process,
            Running::Here(_) => panic!("it runs in the process of the test"),
        }
    }

    fn into_process(self) -> (Process, TempDir) {
        match self.running {
            Running::Process(process) => (*process, self.dir),
            Running::Here(_) => panic!("it runs in the process of the test"),
        }
    }

    /// Kills it where it is, and starts one in its place that finds what it left.
    pub async fn killed(self, then: &Serve) -> Self {
        let (process, dir) = self.into_process();
        process.kill().await;
        then.clone().start_in(dir).await
    }

    /// Asks it to end, waits until it has, and starts one in its place that finds what it left.
    pub async fn stopped(self, then: &Serve) -> (Ran, Self) {
        let (process, dir) = self.into_process();
        let ran = process.terminate().await;
        (ran, then.clone().start_in(dir).await)
    }

    /// Kills it where it is, and waits until it is gone.
    pub async fn kill(self) -> Ran {
        let (process, _dir) = self.into_process();
        process.kill().await
    }

    /// Asks it to end, and waits until it has.
    pub async fn stop(self) -> Ran {
        let (process, _dir) = self.into_process();
        process.terminate().await
    }

    /// Runs a rollout of a caller that is called back and stops, so that every callback that
    /// is to come has come: those that the controller had then.
    pub async fn all_callbacks(self, controller: &Controller, request: &RolloutRequest) -> Vec<Received> {
        let reply = self.ask(request).await;
        assert!([200, 202].contains(&reply.status), "{reply:?}");
        assert_eq!(reply.body, json!({}));
        let ran = self.stop().await;
        // A caller that does not take it is named, and all has not been done then.
        let expected = if ran.stderr.contains("was not reported") { 2 } else { 0 };
        assert_eq!(ran.code, Some(expected), "{}", ran.stderr);
        controller.callbacks()
    }

    /// Asks it to end, waits until it has, and gives a JSON file that it kept of a rollout.
    pub async fn stop_for_document(self, id: &str, file: &str) -> Value {
        let path = self.kept().join(id).join(file);
        let (process, _dir) = self.into_process();
        let ran = process.terminate().await;
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let text = std::fs::read(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{path:?}: {error}"))
    }

    /// Waits until it has ended by itself, or by an earlier signal.
    pub async fn ended(self) -> Ran {
        let (process, _dir) = self.into_process();
        process.ended().await
    }

    /// Posts a JSON body.
    pub async fn post(&self, path: &str, body: &Value) -> Reply {
        self.post_text(path, &body.to_string()).await
    }

    /// Posts a body that is called JSON, whatever it is.
    pub async fn post_text(&self, path: &str, body: &str) -> Reply {
        let request = self.request(Method::POST, path).header(CONTENT_TYPE, "application/json");
        send(request.body(body.to_owned())).await
    }

    /// Gets.
    pub async fn get(&self, path: &str) -> Reply {
        send(self.request(Method::GET, path)).await
    }

    /// Asks for a rollout.
    pub async fn ask(&self, request: &RolloutRequest) -> Reply {
        self.post("/rollout", &request.body()).await
    }

    /// Asks for a rollout in generation D, which has to be admitted.
    pub async fn admit(&self, request: &RolloutRequest) -> Admitted {
        self.ask(request).await.admitted()
    }

    /// Asks once for the result of a rollout, which may take as long as it changes nothing.
    pub async fn poll(&self, admitted: &Admitted) -> Reply {
        let path = format!("/rollout/{}/result", admitted.id);
        send(self.request(Method::GET, &path).header(LEASE, &admitted.lease)).await
    }

    /// Waits for the result of a rollout.
    pub async fn result(&self, admitted: &Admitted) -> Value {
        let polling = async {
            loop {
                let reply = self.poll(admitted).await;
                assert_eq!(reply.status, 200, "{:?}", reply.body);
                if ["success", "failure", "cancelled"].iter().any(|end| reply.body["status"] == *end) {
                    return reply.body;
                }
            }
        };
        in_time("a result", polling).await
    }

    /// Runs a rollout in generation D from request to result.
    pub async fn run(&self, request: &RolloutRequest) -> Value {
        let admitted = self.admit(request).await;
        self.result(&admitted).await
    }

    /// Cancels a rollout; gives what the host says of it.
    pub async fn cancel(&self, id: &str) -> Value {
        let reply = self.post("/rollout/cancel", &json!({"ids": [id]})).await;
        assert_eq!(reply.status, 200, "{:?}", reply.body);
        reply.body["dispositions"][id].clone()
    }

    /// What it says of itself.
    pub async fn health(&self) -> Value {
        let reply = self.get("/health").await;
        assert_eq!(reply.status, 200, "{:?}", reply.body);
        reply.body
    }

    /// What it has counted.
    pub async fn metrics(&self) -> Exposition {
        let reply = self.get("/metrics").await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        Exposition::parse(&reply.text).unwrap_or_else(|wrong| panic!("{wrong} in\n{}", reply.text))
    }

    /// Waits until it says that nothing runs and nothing waits.
    pub async fn idle(&self) {
        let idle = async || {
            let health = self.health().await;
            let load = &health["concurrency"];
            (load["running"] == 0 && load["queued"] == 0).then_some(())
        };
        until("nothing to run", idle).await;
    }

    /// The trajectory of a rollout that is over, out of its journal.
    pub async fn given_trajectory(&self, id: &str) -> Value {
        let reply = self.get(&format!("/rollout/{id}/trajectory")).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        reply.body
    }

    /// The trajectory of a rollout that is over, which is written as a file.
    pub async fn trajectory(&self, id: &str) -> Value {
        self.document(id, "trajectory.json").await
    }

    /// A JSON file that is kept of a rollout that is over.
    pub async fn document(&self, id: &str, file: &str) -> Value {
        let path = self.kept().join(id).join(file);
        until(&format!("{path:?}"), async || serde_json::from_slice(&std::fs::read(&path).ok()?).ok()).await
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.url));
        match &self.key {
            Some(key) => request.header("authorization", format!("Bearer {key}")),
            None => request,
        }
    }
}

/// A client of HTTP/1.1, without the environment's proxies.
/// Starts a command as a service manager does that passes a socket: at its place, with variables that name
/// the process itself.
pub(crate) fn start_with_socket(command: &Command, socket: &TcpListener) -> Process {
    let command = command.as_std();
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" \"$@\""]);
    shell.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    if let Some(dir) = command.get_current_dir() {
        shell.current_dir(dir);
    }
    let socket = socket.try_clone().expect("a socket can be shared");
    shell.start_with(Stdio::from(OwnedFd::from(socket)))
}

/// The authority that vouches for the certificates of tests.
fn authority() -> reqwest::Certificate {
    let file = project_root().join("tests/certificates/ca.pem");
    let text = std::fs::read(file).expect("the tests have a certificate");
    reqwest::Certificate::from_pem(&text).expect("it is one")
}

pub(crate) fn client() -> reqwest::Client {
    // Another test may have installed one already; they are the same.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = reqwest::Client::builder().no_proxy().http1_only().tls_certs_only([authority()]);
    builder.build().expect("a client can be made")
}

pub(crate) async fn send(request: RequestBuilder) -> Reply {
    let exchange = async {
        let response = request.send().await.expect("the host answers");
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = response.bytes().await.expect("the host answers in full");
        let text = String::from_utf8_lossy(&body).into_owned();
        Reply { status, headers, body: serde_json::from_slice(&body).unwrap_or_default(), text }
    };
    in_time("an answer of the host", exchange).await
}
