//! A `rollout-host serve` process, with a client of generation D.

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

/// Options of a host.
#[derive(Clone, Debug)]
pub struct Serve {
    plugin: Option<PathBuf>,
    listen: String,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    config: String,
    open_files_max: Option<u32>,
    program: Option<PathBuf>,
    passed: Option<Arc<TcpListener>>,
}

/// A running host. It ends with the test.
pub struct TestHost {
    running: Running,
    url: String,
    key: Option<String>,
    http: reqwest::Client,
    dir: TempDir,
}

/// The place where a host runs.
enum Running {
    Process(Box<Process>),
    /// In the process of the test, until this is dropped.
    Here(#[expect(dead_code, reason = "dropped with the host")] Box<dyn Any + Send + Sync>),
}

/// An answer of the host.
#[derive(Debug)]
pub struct Reply {
    /// Its status code.
    pub status: u16,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body; null if that is not JSON.
    pub body: Value,
    /// Its body as text.
    pub text: String,
}

/// A rollout that was admitted.
#[derive(Clone, Debug)]
pub struct Admitted {
    /// Its id.
    pub id: String,
    /// The lease, with which the result is requested.
    pub lease: String,
}

impl Reply {
    /// Returns the admitted rollout. Panics if none was admitted.
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

    /// Lets it listen on this address instead of a free port.
    pub fn listen(mut self, address: impl ToString) -> Self {
        self.listen = address.to_string();
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

    /// Adds lines to its configuration file.
    pub fn config(mut self, lines: &str) -> Self {
        self.config.push_str(lines);
        self
    }

    /// Limits its number of open files.
    pub fn open_files(mut self, max: u32) -> Self {
        self.open_files_max = Some(max);
        self
    }

    /// Runs this program instead of the one that was built for the tests.
    pub fn program(mut self, program: PathBuf) -> Self {
        self.program = Some(program);
        self
    }

    /// Passes it this listening socket, as a service manager does.
    pub fn passed(mut self, socket: &Arc<TcpListener>) -> Self {
        self.passed = Some(socket.clone());
        self
    }

    /// Starts it, and waits until it listens.
    pub async fn start(self) -> TestHost {
        self.start_in(tempfile::tempdir().expect("a temporary directory can be made")).await
    }

    /// Starts it, and returns its standard error if it ends instead of listening.
    pub async fn try_start(self) -> Result<TestHost, String> {
        self.try_start_in(tempfile::tempdir().expect("a temporary directory can be made")).await
    }

    async fn start_in(self, dir: TempDir) -> TestHost {
        self.try_start_in(dir).await.unwrap_or_else(|error| panic!("the host ended: {error}"))
    }

    async fn try_start_in(self, dir: TempDir) -> Result<TestHost, String> {
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
        command.args(&self.plugin).args(["--listen", &self.listen]).args(&self.arguments);
        command.arg("--artifact-root").arg(dir.path().join("kept"));
        command.arg("--config").arg(config);
        command.envs(self.environment).current_dir(dir.path());
        let process = match &self.passed {
            Some(socket) => start_with_socket(&command, socket),
            None => command.start(),
        };
        let url = process.line_or_error("listening on ").await?;
        Ok(TestHost { running: Running::Process(Box::new(process)), url, key: None, http: client(), dir })
    }
}

impl TestHost {
    /// Returns options of a host for this guest.
    pub fn of(guest_name: &str) -> Serve {
        Self::of_component(guest(guest_name))
    }

    /// Returns options of a host for this component.
    pub fn of_component(path: PathBuf) -> Serve {
        Serve { plugin: Some(path), ..Self::of_gateway() }
    }

    /// Returns options of a host without a plugin, which is a gateway.
    pub fn of_gateway() -> Serve {
        Serve {
            plugin: None,
            listen: "127.0.0.1:0".to_owned(),
            arguments: Vec::new(),
            environment: Vec::new(),
            config: String::new(),
            open_files_max: None,
            program: None,
            passed: None,
        }
    }

    /// Returns options of a host whose guest takes many turns, each with two concurrent calls and a tool, and has a judge.
    pub fn long_way(judge_url: &str) -> Serve {
        Self::of("long_way").config(&format!(
            "[judge]\nurl = '{judge_url}'\nmodel = 'judge'\n[[tools.component]]\npath = '{}'\n",
            guest("tool_kit").display()
        ))
    }

    /// Starts a host for this guest, with default options.
    pub async fn start(guest_name: &str) -> Self {
        Self::of(guest_name).start().await
    }

    /// Wraps a host that runs in this process, until `kept` is dropped.
    pub(crate) fn in_this_process(url: String, dir: TempDir, kept: Box<dyn Any + Send + Sync>) -> Self {
        Self { running: Running::Here(kept), url, key: None, http: client(), dir }
    }

    /// Uses this key from now on.
    pub fn with_key(mut self, key: &str) -> Self {
        self.key = Some(key.to_owned());
        self
    }

    /// Returns its base URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Opens a connection to it, without sending anything.
    pub async fn connect(&self) -> std::io::Result<TcpStream> {
        TcpStream::connect(self.url.split("://").last().unwrap_or_default()).await
    }

    /// Returns its directory of trajectories and artifacts.
    pub fn kept(&self) -> PathBuf {
        self.dir.path().join("kept")
    }

    /// Returns the directory that it was started in.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns its process.
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

    /// Kills it, and starts another one on the same directory.
    pub async fn killed(self, then: &Serve) -> Self {
        let (process, dir) = self.into_process();
        process.kill().await;
        then.clone().start_in(dir).await
    }

    /// Terminates it, waits for its end, and starts another one on the same directory.
    pub async fn stopped(self, then: &Serve) -> (Ran, Self) {
        let (process, dir) = self.into_process();
        let ran = process.terminate().await;
        (ran, then.clone().start_in(dir).await)
    }

    /// Kills it and waits for its end.
    pub async fn kill(self) -> Ran {
        let (process, _dir) = self.into_process();
        process.kill().await
    }

    /// Terminates it and waits for its end.
    pub async fn stop(self) -> Ran {
        let (process, _dir) = self.into_process();
        process.terminate().await
    }

    /// Runs a rollout with callbacks and stops the host, so that all callbacks have arrived. Returns those that the
    /// controller received.
    pub async fn all_callbacks(self, controller: &Controller, request: &RolloutRequest) -> Vec<Received> {
        let reply = self.ask(request).await;
        assert!([200, 202].contains(&reply.status), "{reply:?}");
        assert_eq!(reply.body, json!({}));
        let ran = self.stop().await;
        // If the caller did not accept a callback, the host reports it and exits with 2.
        let expected = if ran.stderr.contains("was not reported") { 2 } else { 0 };
        assert_eq!(ran.code, Some(expected), "{}", ran.stderr);
        controller.callbacks()
    }

    /// Terminates it, waits for its end, and returns a JSON file that it stored for a rollout.
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

    /// Waits until it has ended by itself, and starts another one on the same directory.
    pub async fn ended_and_started(self, then: &Serve) -> (Ran, Self) {
        let (process, dir) = self.into_process();
        let ran = process.ended().await;
        (ran, then.clone().start_in(dir).await)
    }

    /// Posts a JSON body.
    pub async fn post(&self, path: &str, body: &Value) -> Reply {
        self.post_text(path, &body.to_string()).await
    }

    /// Posts any text with the content type of JSON.
    pub async fn post_text(&self, path: &str, body: &str) -> Reply {
        let request = self.request(Method::POST, path).header(CONTENT_TYPE, "application/json");
        send(request.body(body.to_owned())).await
    }

    /// Sends a GET request.
    pub async fn get(&self, path: &str) -> Reply {
        send(self.request(Method::GET, path)).await
    }

    /// Requests a rollout.
    pub async fn ask(&self, request: &RolloutRequest) -> Reply {
        self.post("/rollout", &request.body()).await
    }

    /// Requests a rollout in generation D, which must be admitted.
    pub async fn admit(&self, request: &RolloutRequest) -> Admitted {
        self.ask(request).await.admitted()
    }

    /// Requests the result of a rollout once. The reply comes when the state changes.
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

    /// Cancels a rollout; returns the host's reply.
    pub async fn cancel(&self, id: &str) -> Value {
        let reply = self.post("/rollout/cancel", &json!({"ids": [id]})).await;
        assert_eq!(reply.status, 200, "{:?}", reply.body);
        reply.body["dispositions"][id].clone()
    }

    /// Returns its health report.
    pub async fn health(&self) -> Value {
        let reply = self.get("/health").await;
        assert_eq!(reply.status, 200, "{:?}", reply.body);
        reply.body
    }

    /// Returns its metrics.
    pub async fn metrics(&self) -> Exposition {
        let reply = self.get("/metrics").await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        Exposition::parse(&reply.text).unwrap_or_else(|wrong| panic!("{wrong} in\n{}", reply.text))
    }

    /// Waits until its health report shows no running and no waiting rollouts.
    pub async fn idle(&self) {
        let idle = async || {
            let health = self.health().await;
            let load = &health["concurrency"];
            (load["running"] == 0 && load["queued"] == 0).then_some(())
        };
        until("nothing to run", idle).await;
    }

    /// Returns the trajectory of a finished rollout over HTTP, from its journal.
    pub async fn served_trajectory(&self, id: &str) -> Value {
        let reply = self.get(&format!("/rollout/{id}/trajectory")).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        reply.body
    }

    /// Returns the trajectory of a finished rollout from its file.
    pub async fn trajectory(&self, id: &str) -> Value {
        self.document(id, "trajectory.json").await
    }

    /// Returns a JSON file that is stored for a finished rollout.
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

/// Starts a command with a passed socket, as a service manager does: under its descriptor number, with variables that
/// contain the process id.
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

/// Returns the authority of the tests' certificates.
fn authority() -> reqwest::Certificate {
    let file = project_root().join("tests/certificates/ca.pem");
    let text = std::fs::read(file).expect("the tests have a certificate");
    reqwest::Certificate::from_pem(&text).expect("it is one")
}

/// Returns a client of HTTP/1.1 without the environment's proxies.
pub(crate) fn client() -> reqwest::Client {
    // Another test may have installed the same one already.
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
