//! What several commands set up: logs, the runtime, signals, configuration, the host.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

use super::LogFormat;
use super::plugin_file::{self, CacheOptions};
use crate::capacity::{Bound, GuestCost, Machine, Slots};
use crate::config::{Config, RawConfig};
use crate::engine::{Engine, MemoryPlan};
use crate::error::Fault;
use crate::outbound::{self, ChatClient, Secret};
use crate::rollout::{Host, HostSettings};
use crate::telemetry::{Metrics, Traces};

/// Sends logs to standard error. A server tells what it does; other commands speak up
/// only where something is wrong.
pub(super) fn logs(format: LogFormat, server: bool) {
    let default = if server { "info" } else { "warn" };
    let filter = EnvFilter::try_from_env("ROLLOUT_HOST_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let colour = std::io::stderr().is_terminal();
    let logs =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colour);
    match format {
        LogFormat::Text => logs.with_target(false).init(),
        // The innermost span is the rollout; a list of all spans would say it twice.
        LogFormat::Json => logs.json().with_span_list(false).init(),
    }
}

/// Begins to export the host's traces, where the operator says to where.
pub(super) fn traces(runtime: &Runtime, otlp: Option<&str>, loaded: &Loaded) -> Result<Option<Traces>> {
    let Some(url) = otlp else { return Ok(None) };
    let _runtime = runtime.enter();
    let traces = loaded.host.metrics().trace_to(url, loaded.http.clone()).context("--otlp")?;
    Ok(Some(traces))
}

/// Sends what traces there still are.
pub(super) async fn flush(traces: Option<Traces>) {
    /// A collector that is gone does not hold up the end.
    const TIME_MAX: Duration = Duration::from_secs(5);
    if let Some(traces) = traces
        && !traces.flush(TIME_MAX).await
    {
        tracing::warn!("some traces were not sent: the collector took too long");
    }
}

/// The runtime that guests and connections share.
pub(super) fn runtime() -> Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the runtime")
}

/// Ctrl-C and the termination signal. Made before a command says that it is ready, so
/// that a signal sent on that word is not lost.
pub(super) struct StopSignal {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignal {
    /// Takes the signals over from here on; within the runtime.
    pub fn new() -> Result<Self> {
        let take = |kind| signal(kind).context("cannot take over the stop signals");
        Ok(Self { interrupt: take(SignalKind::interrupt())?, terminate: take(SignalKind::terminate())? })
    }

    /// Waits for the next of them.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Reads a configuration file, or gives an empty one.
pub(super) fn raw_config(path: Option<&Path>) -> Result<RawConfig> {
    let Some(path) = path else { return Ok(RawConfig::default()) };
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    RawConfig::parse(&text).with_context(|| format!("{}", path.display()))
}

/// The folder of this start in the directory for events.
fn event_log(dir: &Path) -> Result<PathBuf> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let folder = dir.join(now.as_secs().to_string());
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}

/// The key in an environment variable that the operator named.
pub(super) fn key_from_env(option: &str, variable: Option<&str>) -> Result<Option<Secret>> {
    let Some(variable) = variable else { return Ok(None) };
    match std::env::var(variable) {
        Ok(key) if !key.is_empty() => Ok(Some(Secret::new(key))),
        _ => anyhow::bail!("{option} names the environment variable {variable}, which is not set"),
    }
}

/// A host of the plugin in a file, with the digests of what it runs.
pub(super) struct Loaded {
    pub host: Host,
    pub http: reqwest::Client,
    pub plugin_digest: String,
    pub grader_digest: Option<String>,
    pub slots: Slots,
    pub plan: MemoryPlan,
}

/// Compiles the plugins, makes the host and sees that instances can start.
pub(super) fn host(
    runtime: &Runtime,
    plugin: &Path,
    grader: Option<&Path>,
    config: &Config,
    cache: &CacheOptions,
    artifact_root: Option<PathBuf>,
) -> Result<Loaded> {
    let machine = Machine::read();
    let plan = MemoryPlan::within(config.max_concurrent, machine.guest_mappings_max());
    let cost = GuestCost { mappings: plan.mappings_per_instance(), memory_bytes: 0 };
    let slots = machine.slots(config.max_concurrent, config.queue_max, cost);
    let engine = Engine::planned(plan, slots.running_max, config.limits.memory_bytes_max)?;
    let loader = cache.loader(config.cache_dir.as_deref(), &config.load_limits)?;
    let load = |path: &Path| plugin_file::load(&loader, &engine, path, &config.load_limits);
    let workflow = load(plugin)?;
    let grader = grader.map(load).transpose()?;
    let plugin_digest = workflow.about().digest.clone();
    let http = outbound::http_client()?;
    let metrics = Arc::new(Metrics::new());
    let mut settings = HostSettings {
        workflow,
        grader,
        max_concurrent: config.max_concurrent,
        queue_max: config.queue_max,
        limits: config.limits.clone(),
        plugin_config: config.plugin.clone(),
        chat: ChatClient::new(
            http.clone(),
            config.model.clone(),
            config.limits.reply_bytes_max,
            metrics.clone(),
        ),
        artifact_root,
        event_log: config.log.as_deref().map(event_log).transpose()?,
        metrics,
    };
    let memory_bytes = runtime.block_on(settings.try_start()).map_err(|(role, error)| {
        let reason = format!("no instance of the {} can be started: it {error}", role.as_str());
        match error.fault() {
            Fault::Plugin => anyhow::Error::new(super::PluginFault(reason)),
            _ => anyhow::Error::msg(reason),
        }
    })?;
    let slots = machine.slots(
        config.max_concurrent,
        config.queue_max,
        GuestCost { memory_bytes: memory_bytes as u64, ..cost },
    );
    (settings.max_concurrent, settings.queue_max) = (slots.running_max, slots.queue_max);
    if slots.bound_by != Bound::Asked {
        tracing::warn!(
            asked = config.max_concurrent,
            slots = slots.running_max,
            bound_by = %slots.bound_by,
            "this machine has not room for as many rollouts at once as were asked for"
        );
    }
    let host = Host::new(settings).map_err(|error| super::PluginFault(error.to_string()))?;
    let grader_digest = host.grader().map(|grader| grader.about().digest.clone());
    Ok(Loaded { host, http, plugin_digest, grader_digest, slots, plan })
}
