//! NATS servers with JetStream on temporary stores: a single one, or a cluster on loopback.

use std::sync::Mutex;

use rollout_cluster::ClusterSettings;
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::process::Command;

use crate::{Process, Start, trainer_python, until};

/// Servers that run until they are dropped. Each may be killed and started again with its store.
pub struct TestNats {
    servers: Vec<Server>,
}

struct Server {
    dir: TempDir,
    port: u16,
    process: Mutex<Option<Process>>,
}

impl TestNats {
    /// Starts a single server.
    pub async fn start() -> Self {
        Self::start_with(1, "").await
    }

    /// Starts a cluster of three servers.
    pub async fn start_cluster() -> Self {
        Self::start_with(3, "").await
    }

    /// Starts a single server with more lines in its configuration. `DIR` in them is its directory.
    pub async fn start_configured(more: &str) -> Self {
        Self::start_with(1, more).await
    }

    async fn start_with(count: usize, more: &str) -> Self {
        // All listeners are open at the same time, so that the system assigns each port once.
        let listeners: Vec<_> = (0..2 * count)
            .map(|_| std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free"))
            .collect();
        let ports: Vec<u16> =
            listeners.iter().map(|listener| listener.local_addr().expect("it is bound").port()).collect();
        drop(listeners);
        let (clients, routes) = ports.split_at(count);
        let urls: Vec<String> = routes.iter().map(|port| format!("nats://127.0.0.1:{port}")).collect();
        let servers = (0..count).map(|at| {
            let dir = tempfile::tempdir().expect("a temporary directory can be created");
            let cluster = if count == 1 {
                String::new()
            } else {
                format!("cluster {{ name: test, listen: '127.0.0.1:{}', routes: {urls:?} }}\n", routes[at])
            };
            let config = format!(
                "server_name: server-{at}\nlisten: '127.0.0.1:{}'\n\
                 jetstream {{ store_dir: 'DIR/store', max_memory_store: 64MB, max_file_store: 2GB }}\n{cluster}{more}\n",
                clients[at]
            );
            let config = config.replace("DIR", &dir.path().to_string_lossy());
            std::fs::write(dir.path().join("nats.conf"), config).expect("the configuration can be written");
            Server { dir, port: clients[at], process: Mutex::new(None) }
        });
        let nats = Self { servers: servers.collect() };
        nats.restart_all().await;
        nats
    }

    /// Starts all servers after they were killed, and waits until they accept connections.
    pub async fn restart_all(&self) {
        for at in 0..self.servers.len() {
            self.start_server(at).await;
        }
        for at in 0..self.servers.len() {
            self.is_ready(at).await;
        }
    }

    /// Starts a server that was killed, and waits until it accepts connections.
    pub async fn restart(&self, at: usize) {
        self.start_server(at).await;
        self.is_ready(at).await;
    }

    async fn start_server(&self, at: usize) {
        let python = trainer_python("nats-server-2.15.1").await;
        let server = &self.servers[at];
        let config = server.dir.path().join("nats.conf");
        let process = Command::new(python.with_file_name("nats-server")).arg("-c").arg(config).start();
        *server.process.lock().expect("no test panics with it") = Some(process);
    }

    async fn is_ready(&self, at: usize) {
        until("the NATS server to be ready", async || {
            let process = self.servers[at].process.lock().expect("no test panics with it");
            let log = process.as_ref().expect("it was started").stderr();
            log.contains("Server is ready").then_some(())
        })
        .await;
    }

    /// Kills a server, as a crash does, and waits for its end.
    pub async fn kill(&self, at: usize) {
        let process = self.servers[at].process.lock().expect("no test panics with it").take();
        process.expect("it runs").kill().await;
    }

    /// Removes the store of a server that was killed.
    pub fn lose_disk(&self, at: usize) {
        let store = self.servers[at].dir.path().join("store");
        std::fs::remove_dir_all(store).expect("the server does not run");
    }

    /// Sends a signal to all servers.
    pub fn signal_all(&self, signal: Signal) {
        for server in &self.servers {
            let process = server.process.lock().expect("no test panics with it");
            process.as_ref().expect("it runs").signal(signal);
        }
    }

    /// Kills all servers.
    pub async fn kill_all(&self) {
        for at in 0..self.servers.len() {
            self.kill(at).await;
        }
    }

    /// Returns the settings of a cluster of workers on these servers, with a replica on each.
    pub fn settings(&self) -> ClusterSettings {
        ClusterSettings {
            urls: self.urls(),
            replicas: self.servers.len(),
            log_bytes_max: 256 << 20,
            accept_weak_durability: true,
            ..ClusterSettings::default()
        }
    }

    /// Returns the URLs of all servers.
    pub fn urls(&self) -> Vec<String> {
        self.servers.iter().map(|server| format!("nats://127.0.0.1:{}", server.port)).collect()
    }

    /// Returns the index of the server with this name, as the servers report it.
    pub fn named(&self, name: &str) -> usize {
        let number = name.strip_prefix("server-").and_then(|number| number.parse().ok());
        number
            .filter(|at| *at < self.servers.len())
            .unwrap_or_else(|| panic!("no server has the name {name}"))
    }
}
