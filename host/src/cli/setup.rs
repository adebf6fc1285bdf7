//! What several commands set up: logs, the runtime, signals, configuration, the host.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use bytes::Bytes;
use clap::Args;
use serde_json::{Map, Value};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

use super::LogFormat;
use super::plugin_file::{self, CacheOptions};
use super::print::{self, LogWriter};
use crate::budget::Budget;
use crate::capacity::{Bound, GuestCost, Machine, Slots};
use crate::config::{Config, Judge, RawConfig, RawJudge, RawModel};
use crate::dialect::osmosis;
use crate::digest::sha256_hex;
use crate::engine::{Engine, MemoryPlan};
use crate::error::Fault;
use crate::imports::{LentTools, ModelAccess};
use crate::mock_model::{MockModel, Settings};
use crate::outbound::{self, ChatClient, ModelEndpoint, Observer, Secret, Transport};
use crate::plugin::{self, Declaration, DeclareError, Plugin};
use crate::rollout::{Host, HostSettings};
use crate::telemetry::{Metrics, OneLineFields, Traces};
use crate::toolbox::{ComponentSettings, ToolSettings, Toolbox, Unlendable};

/// Sends logs to standard error. A server tells what it does; other commands speak up
/// only where something is wrong.
pub(super) fn logs(format: LogFormat, server: bool) {
    // The library of tool servers tells of every connection; what matters of it, the host
    // says itself.
    let default = if server { "info,rmcp=off" } else { "warn,rmcp=off" };
    let filter = EnvFilter::try_from_env("ROLLOUT_HOST_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let colour = std::io::stderr().is_terminal();
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| LogWriter).with_ansi(colour);
    match format {
        LogFormat::Text => logs.fmt_fields(OneLineFields).with_target(false).init(),
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

/// How long the end waits for a collector of traces: less than an export may take, so that
/// one that hangs does not hold it up.
pub(super) const FLUSH_TIME_MAX: Duration = Duration::from_secs(5);

/// Sends what traces there still are.
pub(super) async fn flush(traces: Option<Traces>) {
    flush_within(FLUSH_TIME_MAX, traces).await;
}

/// The same, where there is a time for it.
pub(super) async fn flush_within(time_max: Duration, traces: Option<Traces>) {
    if let Some(traces) = traces
        && !traces.flush(time_max).await
    {
        tracing::warn!("some traces were not sent: the collector did not take them in time");
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

/// Reads a configuration file, or gives an empty one. What is wrong in it, `resolve` says.
pub(super) fn raw_config(path: Option<&Path>) -> Result<RawConfig> {
    let Some(path) = path else { return Ok(RawConfig::default()) };
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(RawConfig::parse(&text, &path.display().to_string()))
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
    /// The connections to models, judges and callback addresses.
    pub transport: Transport,
    pub plugin_digest: String,
    pub grader_digest: Option<String>,
    pub slots: Slots,
    pub plan: MemoryPlan,
    pub tools_digest: Option<String>,
    /// The workflow's configuration.
    pub settings: plugin::Settings,
    /// That of a grader which is a component of its own.
    pub grader_settings: Option<plugin::Settings>,
    /// Serves for as long as this is held.
    judge_stand_in: Option<MockModel>,
}

impl Loaded {
    /// Says that no model judges, where that is so.
    pub fn say_who_judges(&self) {
        if self.judge_stand_in.is_some() {
            print::errln!(
                "the judge is the built-in stand-in, which looks for the truth in the answer and reads no rubric"
            );
        }
    }
}

/// Where the judge of graders is.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Judge, for graders that ask one")]
pub(super) struct JudgeOptions {
    /// The judge's server, up to and without /chat/completions.
    #[arg(long, value_name = "URL")]
    judge_url: Option<String>,
    /// The judge's name at its server; `mock` without --judge-url runs the built-in
    /// stand-in.
    #[arg(long, value_name = "NAME")]
    judge_model: Option<String>,
    /// Environment variable with the key of the judge's server.
    #[arg(long, value_name = "VAR")]
    judge_api_key_env: Option<String>,
}

impl JudgeOptions {
    /// Puts these options over what the file says.
    pub fn put_over(&self, raw: &mut RawJudge) {
        if let Some(url) = &self.judge_url {
            // The key that the file names is for the server that it names.
            (raw.url, raw.api_key_env) = (Some(url.clone()), None);
        }
        raw.model = self.judge_model.clone().or(raw.model.take());
        raw.api_key_env = self.judge_api_key_env.clone().or(raw.api_key_env.take());
    }
}

/// Which sampling parameters guests may set.
#[derive(Clone, Debug, Args)]
pub(super) struct ParamOptions {
    /// Sampling parameters that workflows may set, by name; any other is refused. Without
    /// this, all pass that do not decide which model answers, or where.
    #[arg(
        long,
        value_name = "NAME,…",
        value_delimiter = ',',
        help_heading = "What guests may set",
        hide_short_help = true
    )]
    model_params: Option<Vec<String>>,
}

impl ParamOptions {
    /// Puts these options over what the file says.
    pub fn put_over(&self, raw: &mut RawModel) {
        let given = self.model_params.as_ref();
        // An empty text is an empty list.
        let names = given.map(|names| names.iter().filter(|name| !name.is_empty()).cloned().collect());
        raw.params = names.or(raw.params.take());
    }
}

/// The judge, and its stand-in where that is asked for.
async fn judge_access(judge: &Judge, chat: &ChatClient) -> Result<(ModelAccess, Option<MockModel>)> {
    let key = key_from_env("judge.api-key-env", judge.api_key_env.as_deref())?;
    let client = chat.for_judges(judge.retry.clone(), judge.params.clone());
    let (url, stand_in) = match &judge.url {
        Some(url) => (url.clone(), None),
        None => {
            let mock = MockModel::start(SocketAddr::from(([127, 0, 0, 1], 0)), Settings::default()).await?;
            (mock.base_url(), Some(mock))
        }
    };
    let endpoint = ModelEndpoint::new(&url, &judge.model, key).context("judge.url")?;
    Ok((ModelAccess { client, endpoint: Arc::new(endpoint) }, stand_in))
}

/// Asks a plugin what it declares, and puts the operator's values over that.
pub(super) fn settings(
    runtime: &Runtime,
    path: &Path,
    plugin: &Plugin,
    config: &Config,
    given: Option<&Map<String, Value>>,
) -> Result<(Option<Declaration>, plugin::Settings)> {
    let declared = runtime.block_on(plugin.declaration(&config.limits, &Arc::new(Metrics::new())));
    let declared = declared.map_err(|error| match &error {
        DeclareError::Run(run) if run.fault() != Fault::Plugin => {
            anyhow::Error::new(error).context(path.display().to_string())
        }
        _ => super::PluginFault(format!("{}: {error}", path.display())).into(),
    })?;
    let resolved = plugin::resolve(declared.as_ref(), given).with_context(|| path.display().to_string())?;
    Ok((declared, resolved))
}

/// Compiles the plugins, makes the host and sees that instances can start.
pub(super) fn host(
    runtime: &Runtime,
    plugin_path: &Path,
    grader_path: Option<&Path>,
    config: &Config,
    cache: &CacheOptions,
    artifact_root: Option<PathBuf>,
) -> Result<Loaded> {
    watched_host(runtime, plugin_path, grader_path, config, cache, artifact_root, None)
}

/// A component's file, and what its instances find on standard input.
pub(super) struct Workflow<'a> {
    pub path: &'a Path,
    /// What it is called in texts.
    pub shown: &'a Path,
    pub input: Bytes,
}

impl<'a> From<&'a Path> for Workflow<'a> {
    fn from(path: &'a Path) -> Self {
        Self { path, shown: path, input: Bytes::new() }
    }
}

impl<'a> From<&'a PathBuf> for Workflow<'a> {
    fn from(path: &'a PathBuf) -> Self {
        Self::from(path.as_path())
    }
}

/// The same, with somebody who watches the calls of its models.
pub(super) fn watched_host<'a>(
    runtime: &Runtime,
    plugin: impl Into<Workflow<'a>>,
    grader_path: Option<&Path>,
    config: &Config,
    cache: &CacheOptions,
    artifact_root: Option<PathBuf>,
    observer: Option<Arc<dyn Observer>>,
) -> Result<Loaded> {
    let memory_budget_bytes = config.memory_budget_bytes.map(|bytes| bytes as u64);
    let machine = Machine { memory_budget_bytes, ..Machine::read() };
    let budget = Budget::new(usize::try_from(machine.memory_budget()).unwrap_or(usize::MAX));
    let tools_max = config.tools.instances_max();
    let instances_max = config.max_concurrent.saturating_add(tools_max);
    let plan = MemoryPlan::within(instances_max, machine.guest_mappings_max());
    let for_callers = osmosis::descriptors_per_rollout(config.dialect, config.osmosis_init.alone);
    let cost = GuestCost {
        // One is the rollout's own, to its model.
        descriptors: 1 + for_callers,
        mappings: plan.mappings_per_instance(),
        memory_bytes: 0,
    };
    let slots = machine.slots(config.max_concurrent, config.queue_max, cost);
    let memory_bytes_max = config.limits.memory_bytes_max.max(config.tools.memory_bytes_max());
    let engine = Engine::planned(plan, slots.running_max.saturating_add(tools_max), memory_bytes_max)?;
    let loader = cache.loader(config.cache_dir.as_deref(), &config.load_limits)?;
    let load = |path: &Path| plugin_file::load(&loader, &engine, path, &config.load_limits);
    let Workflow { path, shown, input } = plugin.into();
    let workflow = load(path)?.with_input(input);
    let grader = grader_path.map(load).transpose()?;
    let plugin_digest = workflow.about().digest.clone();
    let (_, plugin_settings) = settings(runtime, shown, &workflow, config, config.plugin.as_ref())?;
    let grader_settings = match (&grader, grader_path) {
        (Some(grader), Some(path)) => {
            let given = config.grader.as_ref().or(config.plugin.as_ref());
            Some(settings(runtime, path, grader, config, given)?.1)
        }
        _ if config.grader.is_some() => {
            anyhow::bail!(
                "[grader] configures the component of --grader, and none is given; [plugin] is for the plugin's own"
            )
        }
        _ => None,
    };
    // A plugin may ask for fewer rollouts at once than there are slots, and not for more.
    let max_concurrent = plugin_settings.max_concurrent.unwrap_or(u32::MAX).min(config.max_concurrent);
    let http = outbound::http_client()?;
    let metrics = Arc::new(Metrics::new());
    let connections = machine.slots(max_concurrent, config.queue_max, cost).connections;
    let transport = Transport::new(connections.outbound_max)?;
    let (policy, reply_bytes_max) = (config.model.clone(), config.limits.reply_bytes_max);
    let chat = ChatClient::new(transport.clone(), policy, reply_bytes_max, metrics.clone())
        .allowing(config.model_params.clone());
    let chat = match observer {
        Some(observer) => chat.watched_by(observer),
        None => chat,
    };
    let (judge, judge_stand_in) = match &config.judge {
        Some(judge) => {
            runtime.block_on(judge_access(judge, &chat)).map(|(judge, mock)| (Some(judge), mock))?
        }
        None => (None, None),
    };
    let tools = lent_tools(runtime, &config.tools, load, &metrics)?;
    let tools_digest = tools.as_ref().map(|(_, digest)| digest.clone());
    let mut host_settings = HostSettings {
        tools: tools.map(|(tools, _)| tools as Arc<dyn LentTools>),
        workflow,
        grader,
        max_concurrent,
        queue_max: config.queue_max,
        limits: config.limits.clone(),
        plugin_config: plugin_settings.to_raw(),
        grader_config: grader_settings.as_ref().and_then(plugin::Settings::to_raw),
        chat,
        judge,
        artifact_root,
        event_log: config.log.as_deref().map(event_log).transpose()?,
        metrics,
        budget,
    };
    let started = runtime.block_on(host_settings.try_start()).map_err(|(role, error)| {
        let reason = format!("no instance of the {} can be started: it {error}", role.as_str());
        match error.fault() {
            Fault::Plugin => anyhow::Error::new(super::PluginFault(reason)),
            _ => anyhow::Error::msg(reason),
        }
    })?;
    let slots = machine.slots(
        max_concurrent,
        config.queue_max,
        GuestCost { memory_bytes: started.memory_bytes as u64, ..cost },
    );
    (host_settings.max_concurrent, host_settings.queue_max) = (slots.running_max, slots.queue_max);
    if slots.bound_by != Bound::Asked && config.max_concurrent_is_set {
        tracing::warn!(
            asked = config.max_concurrent,
            slots = slots.running_max,
            bound_by = %slots.bound_by,
            "this machine has not room for as many rollouts at once as were asked for"
        );
    }
    let host = Host::new(host_settings).map_err(|error| super::PluginFault(error.to_string()))?;
    let grader_digest = host.grader().map(|grader| grader.about().digest.clone());
    Ok(Loaded {
        host,
        http,
        transport,
        plugin_digest,
        grader_digest,
        tools_digest,
        settings: plugin_settings,
        grader_settings,
        judge_stand_in,
        slots,
        plan,
    })
}

/// The tools that the configuration lends, ready to be called, with a digest of all that
/// decides on what they do and is known here.
fn lent_tools(
    runtime: &Runtime,
    settings: &ToolSettings,
    load: impl Fn(&Path) -> Result<Plugin>,
    metrics: &Arc<Metrics>,
) -> Result<Option<(Arc<Toolbox>, String)>> {
    if settings.is_empty() {
        return Ok(None);
    }
    let (mut components, mut problems) = (Vec::new(), Vec::new());
    for ComponentSettings { at, path, .. } in &settings.components {
        match load(path) {
            Ok(plugin) if plugin.about().tool => components.push(plugin),
            Ok(_) => problems.push(format!("{at}.path: {} exports no tool", path.display())),
            Err(error) => problems.push(format!("{at}.path: {error:#}")),
        }
    }
    if !problems.is_empty() {
        return Err(Unlendable(problems).into());
    }
    // For the digest; nobody reads it.
    let mut about = format!("{settings:?}"); // not shown
    about.extend(components.iter().map(|plugin| plugin.about().digest.as_str()));
    let toolbox = runtime.block_on(Toolbox::start(settings.clone(), components, metrics))?;
    Ok(Some((toolbox, sha256_hex(about.as_bytes()))))
}
