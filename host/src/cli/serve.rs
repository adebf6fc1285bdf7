//! `serve`: a plugin for trainers, over HTTP.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result};
use axum::serve::ListenerExt;
use clap::Args;
use tokio::net::{TcpListener, TcpSocket};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::plugin_file::CacheOptions;
use super::{Exit, setup};
use crate::config::{Config, RawLimits};
use crate::dialect::osmosis::{Osmosis, Settings};
use crate::outbound::CallbackClient;
use crate::rollout::{AgentForm, Host};

/// Serves a plugin to trainers over HTTP: the Osmosis protocol, generations D (polling
/// under a lease) and C (callbacks), told apart by the request.
///
/// Prints `listening on http://ADDR` when it is ready. SIGTERM or Ctrl-C drains: no
/// new rollouts, running ones may end and be told; a second signal ends it at once.
#[derive(Debug, Args)]
pub(super) struct Serve {
    /// The component with the workflow or agent loop.
    plugin: PathBuf,
    /// A component with the grader, in place of the plugin's own.
    #[arg(long, value_name = "FILE")]
    grader: Option<PathBuf>,
    /// Address to listen on; port 0 takes a free one. [default: 127.0.0.1:9000]
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Rollouts that run at once. [default: 1024]
    #[arg(long, value_name = "N")]
    max_concurrent: Option<u32>,
    /// Rollouts that may wait for one of those to end; beyond, the answer is 429.
    /// [default: 4 × max-concurrent]
    #[arg(long, value_name = "N")]
    queue_max: Option<u32>,
    /// Settings in TOML; what is given here goes before what is there.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where trajectories and artifacts go. [default: ./rollouts]
    #[arg(long, value_name = "DIR", env = "_OSMOSIS_ROLLOUT_ARTIFACT_ROOT", hide_env = true)]
    artifact_root: Option<PathBuf>,
    #[command(flatten)]
    cache: CacheOptions,
    /// Environment variable with the key that every request must carry.
    #[arg(long, value_name = "VAR")]
    server_key_env: Option<String>,
    #[command(flatten)]
    limits: RawLimits,
    /// Port that an evaluator who started this process wants.
    #[arg(long, hide = true, env = "_OSMOSIS_ROLLOUT_PORT", hide_env = true)]
    evaluator_port: Option<u16>,
    /// What `/health` repeats to that evaluator.
    #[arg(long, hide = true, env = "_OSMOSIS_ROLLOUT_INSTANCE_ID", hide_env = true)]
    instance_id: Option<String>,
}

impl Serve {
    fn config(&self) -> Result<Config> {
        let mut raw = setup::raw_config(self.config.as_deref())?;
        let evaluator = self.evaluator_port.map(|port| SocketAddr::from(([127, 0, 0, 1], port)).to_string());
        if let Some(listen) = self.listen.clone().or(evaluator) {
            raw.listen = Some(listen);
        }
        raw.limits = self.limits.clone().or(raw.limits);
        raw.max_concurrent = self.max_concurrent.or(raw.max_concurrent);
        raw.queue_max = self.queue_max.or(raw.queue_max);
        raw.artifact_root = self.artifact_root.clone().or(raw.artifact_root);
        raw.server_key_env = self.server_key_env.clone().or(raw.server_key_env);
        Ok(raw.resolve()?)
    }

    pub fn run(self) -> Result<Exit> {
        let config = self.config()?;
        let artifact_root = config.artifact_root.clone().unwrap_or_else(|| PathBuf::from("rollouts"));
        std::fs::create_dir_all(&artifact_root)
            .with_context(|| format!("cannot make the artifact root {}", artifact_root.display()))?;
        let server_key = setup::key_from_env("server-key-env", config.server_key_env.as_deref())?;
        if server_key.is_none() && !config.listen.ip().is_loopback() {
            tracing::warn!(listen = %config.listen, "whoever reaches this address can run rollouts; --server-key-env asks for a key");
        }
        let runtime = setup::runtime()?;
        let loaded = setup::host(
            &runtime,
            &self.plugin,
            self.grader.as_deref(),
            &config,
            &self.cache,
            Some(artifact_root.clone()),
        )?;
        if loaded.grader_digest.is_none() {
            match loaded.host.form() {
                AgentForm::Workflow => tracing::warn!(
                    "the plugin has no grader and none is given by --grader: no rollout will have a reward"
                ),
                AgentForm::AgentLoop => tracing::info!(
                    "the plugin has no grader and none is given by --grader: rewards are the agent loop's own"
                ),
            }
        }
        let osmosis = Osmosis::new(Settings {
            host: loaded.host.clone(),
            callbacks: CallbackClient::new(
                loaded.http.clone(),
                config.callback.clone(),
                loaded.host.metrics().clone(),
            ),
            times: config.osmosis,
            server_key,
            instance_id: self.instance_id.clone(),
        });
        tracing::info!(
            plugin = %self.plugin.display(),
            digest = loaded.plugin_digest,
            max_concurrent = config.max_concurrent,
            queue_max = config.queue_max,
            artifact_root = %artifact_root.display(),
            "plugin loaded"
        );
        let exit = runtime.block_on(serve(&config, &loaded.host, &osmosis));
        // What is left, such as a slow write, is not waited for.
        runtime.shutdown_background();
        exit
    }
}

/// Connections that may wait to be accepted. A trainer opens thousands at once, and one
/// that finds no place is tried again seconds later. The kernel caps it.
const BACKLOG: u32 = 16_384;

/// Listens on an address.
fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A restarted server takes its port over from connections that are still closing.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

async fn serve(config: &Config, host: &Host, osmosis: &Osmosis) -> Result<Exit> {
    let listener = listen(config.listen)
        .with_context(|| format!("cannot listen on {}; --listen takes another address", config.listen))?;
    let address = listener.local_addr().context("cannot tell the address that is listened on")?;
    let listener = listener.tap_io(|stream| {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY not set");
        }
    });
    let drained = CancellationToken::new();
    let server =
        axum::serve(listener, osmosis.router()).with_graceful_shutdown(drained.clone().cancelled_owned());
    let server = tokio::spawn(server.into_future());
    let mut stop = setup::StopSignal::new()?;
    println!("listening on http://{address}");

    stop.next().await;
    tracing::info!(drain_secs = config.drain.as_secs_f64(), load = ?host.load(), "draining");
    let exit = tokio::select! {
        exit = drain(config, host, osmosis) => exit,
        () = stop.next() => {
            tracing::warn!(load = ?host.load(), "stopped by a second signal");
            return Ok(Exit::NotDone);
        }
    };
    drained.cancel();
    // Connections that are idle close at once; one that hangs is not waited for.
    match tokio::time::timeout(config.drain, server).await {
        Ok(joined) => joined.context("the server panicked")?.context("the server failed")?,
        Err(_) => tracing::debug!("connections still open"),
    }
    Ok(exit)
}

/// Lets running rollouts end and be told, then cancels what is left.
async fn drain(config: &Config, host: &Host, osmosis: &Osmosis) -> Exit {
    host.close();
    if osmosis.drain(Instant::now() + config.drain).await {
        tracing::info!("drained");
        return Exit::Done;
    }
    let load = host.load();
    tracing::warn!(?load, "the drain time is over; cancelling what still runs");
    host.cancel_all();
    osmosis.drain(Instant::now() + config.drain).await;
    if load.queued + load.running == 0 { Exit::Done } else { Exit::NotDone }
}
