//! A `rollout-host serve --catalog` process, with tenants and plugins.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{MemoryGroup, Process, Ran, Reply, Serve, Start, TestHost, guest, rollout_host};

/// The operator's key of every test catalog.
pub const OPERATOR: &str = "rh_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

/// Options of a multi-tenant server.
#[derive(Clone, Debug, Default)]
pub struct ServeCatalog {
    arguments: Vec<String>,
    config: String,
    environment: Vec<(String, String)>,
    passed: Option<Arc<TcpListener>>,
    open_files_max: Option<u32>,
    memory_group: Option<Arc<MemoryGroup>>,
}

/// A multi-tenant server. It ends with the test.
pub struct TestCatalog {
    process: Process,
    at: String,
    dir: TempDir,
    serve: ServeCatalog,
    /// Base URL of another process that passes requests to it.
    front: Option<String>,
    http: reqwest::Client,
}

/// The folder and the address of a multi-tenant server that has ended.
pub struct LeftCatalog {
    dir: TempDir,
    at: String,
}

impl LeftCatalog {
    /// Returns the directory of the catalog.
    pub fn folder(&self) -> PathBuf {
        self.dir.path().join("catalog")
    }

    /// Starts a server with these options there.
    pub async fn start(self, serve: ServeCatalog) -> TestCatalog {
        serve.start_in(self.dir, self.at).await
    }
}

/// A tenant with a key for each right.
#[derive(Clone, Debug)]
pub struct TestTenant {
    /// Its name.
    pub name: String,
    /// A key that may push and activate.
    pub author: String,
    /// A key that may run rollouts.
    pub caller: String,
    /// A key that may only read.
    pub viewer: String,
}

/// The key that gateways and workers share.
const CLUSTER_KEY: &str = "the-key-of-the-cluster";

impl ServeCatalog {
    /// Returns options of a worker of a cluster, with the configuration of its NATS servers.
    pub fn worker(name: &str, nats: &str) -> Self {
        Self::default()
            .option("--role", "worker")
            .option("--worker-name", name)
            .option("--cluster-key-env", "CLUSTER_KEY")
            .variable("CLUSTER_KEY", CLUSTER_KEY)
            .variable("JOURNAL_KEY", "the-key-of-all-journals")
            .config(&format!("[journal]\nkey-env = 'JOURNAL_KEY'\n{nats}"))
    }

    /// Returns options of a gateway to such workers.
    pub fn gateway() -> Serve {
        TestHost::of_gateway()
            .option("--role", "gateway")
            .option("--cluster-key-env", "CLUSTER_KEY")
            .variable("CLUSTER_KEY", CLUSTER_KEY)
    }

    /// Adds an option and its value.
    pub fn option(mut self, name: &str, value: impl ToString) -> Self {
        self.arguments.extend([name.to_owned(), value.to_string()]);
        self
    }

    /// Adds lines to its configuration file.
    pub fn config(mut self, lines: &str) -> Self {
        self.config.push_str(lines);
        self
    }

    /// Sets a variable of its environment.
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Passes it a listening socket, as a service manager does.
    pub fn passed(mut self) -> Self {
        self.passed = Some(Arc::new(TcpListener::bind("127.0.0.1:0").expect("a port is free")));
        self
    }

    /// Limits the number of open files of its process.
    pub fn open_files_max(mut self, max: u32) -> Self {
        self.open_files_max = Some(max);
        self
    }

    /// Starts its process in this control group.
    pub fn memory_group(mut self, group: Arc<MemoryGroup>) -> Self {
        self.memory_group = Some(group);
        self
    }

    /// Returns the shell commands that run before the process becomes the server, if any.
    fn confinement(&self) -> Option<String> {
        let files = self.open_files_max.map(|max| format!("ulimit -n {max}"));
        let enters = |group: &Arc<MemoryGroup>| format!("echo $$ > {}", group.processes_file().display());
        let steps: Vec<String> = files.into_iter().chain(self.memory_group.as_ref().map(enters)).collect();
        (!steps.is_empty()).then(|| steps.join(" && "))
    }

    /// Starts it on a new catalog, and waits until it listens.
    pub async fn start(self) -> TestCatalog {
        // After a restart it must have the same address.
        let free = match &self.passed {
            Some(socket) => socket.local_addr(),
            None => TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()),
        };
        let at = free.expect("a port is free").to_string();
        self.start_in(tempfile::tempdir().expect("a temporary directory can be made"), at).await
    }

    async fn start_in(self, dir: TempDir, at: String) -> TestCatalog {
        let config = dir.path().join("config.toml");
        std::fs::write(&config, &self.config).expect("it can be written");
        let mut command =
            rollout_host(["serve", "--listen", &at, "--operator-key-env", "KEY_OF_THE_OPERATOR"]);
        command.arg("--catalog").arg(dir.path().join("catalog")).arg("--config").arg(config);
        command.args(&self.arguments).env("KEY_OF_THE_OPERATOR", OPERATOR).current_dir(dir.path());
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        if let Some(by) = self.confinement() {
            command = crate::process::confined(command, &by);
        }
        let process = match &self.passed {
            Some(socket) => crate::host::start_with_socket(&command, socket),
            None => command.start(),
        };
        process.line("listening on ").await;
        TestCatalog { process, at, dir, serve: self, front: None, http: crate::host::client() }
    }
}

impl TestCatalog {
    /// Starts a server with default options.
    pub async fn start() -> Self {
        ServeCatalog::default().start().await
    }

    /// Returns its base URL, or that of the process that passes requests to it.
    pub fn url(&self) -> String {
        self.front.clone().unwrap_or_else(|| self.own_url())
    }

    /// Returns its own base URL.
    pub fn own_url(&self) -> String {
        format!("http://{}", self.at)
    }

    /// Sends all requests to another process, which passes them on.
    pub fn behind(mut self, url: &str) -> Self {
        self.front = Some(url.to_owned());
        self
    }

    /// Returns the directory of its catalog.
    pub fn folder(&self) -> PathBuf {
        self.dir.path().join("catalog")
    }

    /// Returns its process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Kills it, and starts another one on the same catalog.
    pub async fn killed(self) -> Self {
        let Self { process, at, dir, serve, front, .. } = self;
        process.kill().await;
        Self { front, ..serve.start_in(dir, at).await }
    }

    /// Terminates it, waits for its end, and starts another one on the same catalog.
    pub async fn replaced(self) -> (Ran, Self) {
        let Self { process, at, dir, serve, front, .. } = self;
        let ran = process.terminate().await;
        (ran, Self { front, ..serve.start_in(dir, at).await })
    }

    /// Terminates it, waits for its end, and returns the options with which another server starts on the same folder.
    pub async fn left(self) -> LeftCatalog {
        let Self { process, at, dir, .. } = self;
        process.terminate().await;
        LeftCatalog { dir, at }
    }

    /// Kills it and waits for its end.
    pub async fn stop_at_once(self) -> Ran {
        self.process.kill().await
    }

    /// Terminates it and waits for its end.
    pub async fn stop(self) -> Ran {
        self.process.terminate().await
    }

    /// Sends a GET request without a key.
    pub async fn get_open(&self, path: &str) -> Reply {
        crate::host::send(self.http.get(format!("{}{path}", self.url()))).await
    }

    /// Sends a request with this key, with a body unless that is null.
    pub async fn ask(&self, key: &str, method: Method, path: &str, body: Value) -> Reply {
        let request = self.http.request(method, format!("{}{path}", self.url()));
        let request = request.header("authorization", format!("Bearer {key}"));
        crate::host::send(if body.is_null() { request } else { request.json(&body) }).await
    }

    /// Sends a request of the operator to the administration API, which must succeed.
    pub async fn operate(&self, method: Method, path: &str, body: Value) -> Value {
        let reply = self.ask(OPERATOR, method, &format!("/admin/v1{path}"), body).await;
        assert!((200..300).contains(&reply.status), "{path}: {reply:?}");
        reply.body
    }

    /// Sends a request of the operator to any path.
    pub async fn as_operator(&self, method: Method, path: &str, body: Value) -> Reply {
        self.ask(OPERATOR, method, path, body).await
    }

    /// Returns the operator's key.
    pub fn operator_key(&self) -> &'static str {
        OPERATOR
    }

    /// Creates a tenant with these quotas, whose requests may go to this machine.
    pub async fn tenant(&self, name: &str, quotas: Value) -> TestTenant {
        let network = json!({"allow": ["127.0.0.0/8"]});
        self.tenant_within(name, quotas, network).await
    }

    /// Creates a tenant with these quotas and network rules.
    pub async fn tenant_within(&self, name: &str, quotas: Value, network: Value) -> TestTenant {
        let tenant = json!({"name": name, "quotas": quotas, "network": network});
        self.operate(Method::POST, "/tenants", tenant).await;
        let key = async |rights: &str| self.key(name, rights).await;
        TestTenant {
            author: key("author").await,
            caller: key("caller").await,
            viewer: key("viewer").await,
            name: name.to_owned(),
        }
    }

    /// Creates a key of a tenant.
    pub async fn key(&self, tenant: &str, rights: &str) -> String {
        let key = json!({"tenant": tenant, "rights": rights, "name": format!("{rights} of a test")});
        let made = self.operate(Method::POST, "/keys", key).await;
        made["key"].as_str().expect("it is shown").to_owned()
    }

    /// Uploads a component for a tenant; returns its digest.
    pub async fn upload(&self, tenant: &TestTenant, component: &Path) -> String {
        let bytes = std::fs::read(component).expect("a guest can be read");
        let digest = rollout_wire::digest::sha256_hex(&bytes);
        let request = self.http.put(format!("{}/admin/v1/components/{digest}", self.url()));
        let request = request.header("authorization", format!("Bearer {}", tenant.author)).body(bytes);
        let reply = crate::host::send(request).await;
        assert!((200..300).contains(&reply.status), "{reply:?}");
        digest
    }

    /// Pushes a component as the next version of a plugin, with this configuration, and returns the reply.
    pub async fn push(
        &self,
        tenant: &TestTenant,
        plugin: &str,
        component: &Path,
        config: &str,
        activate: bool,
    ) -> Reply {
        let digest = self.upload(tenant, component).await;
        let deployment = json!({"component": digest, "config": config, "activate": activate});
        let path = format!("/admin/v1/plugins/{plugin}/deployments");
        self.ask(&tenant.author, Method::POST, &path, deployment).await
    }

    /// Pushes and activates a guest, which must pass its checks.
    pub async fn serve(&self, tenant: &TestTenant, plugin: &str, guest_name: &str, config: &str) {
        let reply = self.push(tenant, plugin, &guest(guest_name), config, true).await;
        assert!(reply.status < 300 && reply.body["active"] == true, "{}", reply.text);
    }

    /// Returns the host that a caller of the tenant sees at a plugin's address.
    pub fn plugin(&self, tenant: &TestTenant, plugin: &str) -> TestHost {
        self.plugin_with(&tenant.caller, plugin)
    }

    /// Returns the host that the owner of this key sees at a plugin's address.
    pub fn plugin_with(&self, key: &str, plugin: &str) -> TestHost {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let url = format!("{}/p/{plugin}", self.url());
        TestHost::in_this_process(url, dir, Box::new(Arc::new(()))).with_key(key)
    }
}
