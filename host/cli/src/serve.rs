//! The command `serve`, which serves a plugin, or the plugins of many tenants, over HTTP.

mod adopt;
mod catalog;
pub(super) mod cluster;
mod leases;
mod usage;

use crate::print::outln;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::hardening::HardeningOptions;
use super::options::{HostOptions, TraceOptions};
use super::{Exit, OUTPUT, PluginFault, hooks, journal, lifecycle, setup};
use rollout_assembly::config::{
    Config, EvaluatorEnvironment, OsmosisEnvironment, OsmosisGeneration, RawConfig, RawJournal, Role,
    TrajectoriesIn,
};
use rollout_assembly::{Assembled, Options};
use rollout_core::capacity::Slots;
use rollout_core::telemetry::Traces;
use rollout_outbound::Secret;
use rollout_rollout::{AgentForm, Host, Journal, Unfinished};
use rollout_server as server;
use rollout_server::dialect::nemo_gym;
use rollout_server::dialect::osmosis::a;
use rollout_server::{AnyServer, Bound, Listening, Server, ServerIdentity, ServerTls, ShutdownDeadlines};

/// Headings of the options.
const CONNECTIONS: &str = "Connections";
const CAPACITY: &str = "Capacity";
const HOOKS: &str = "Start and stop";
const CLUSTER: &str = "Several machines";

/// Serves a plugin to trainers over HTTP.
///
/// Speaks the Osmosis protocol: generations D (polling under a lease), C and B (callbacks), distinguished by
/// the request, and A (tools at the start, one post at the end), which has a path of its own.
///
/// Prints `listening on http://ADDR` when it is ready. SIGTERM or Ctrl-C drains: new rollouts are refused,
/// running ones may finish and be reported. A second signal stops the server immediately.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  rollout-host serve my_agent.wasm\n  \
    rollout-host serve my_agent.wasm --listen 0.0.0.0:9000 --server-key-env SERVER_KEY --config host.toml")]
pub(super) struct Serve {
    /// Component with the workflow or agent loop.
    #[arg(required_unless_present_any = ["catalog", "role", "config"], conflicts_with = "catalog")]
    plugin: Option<PathBuf>,
    /// Serves the plugins of many tenants from this catalog, each below /p/NAME with the keys of its tenant.
    /// The catalog is created if it does not exist; the commands tenant, key, push and plugin change it while
    /// the server runs.
    #[arg(long, value_name = "DIR")]
    catalog: Option<PathBuf>,
    /// Environment variable with an operator key of the catalog. If the catalog has no operator key and none
    /// is given, one is created and printed once.
    #[arg(long, value_name = "VAR", requires = "catalog", help_heading = CONNECTIONS)]
    operator_key_env: Option<String>,
    /// Address to listen on; port 0 selects a free port. [default: 127.0.0.1:9000]
    #[arg(long, value_name = "ADDR", help_heading = CONNECTIONS)]
    listen: Option<String>,
    /// Maximum number of concurrent rollouts. [default: 1024]
    #[arg(long, value_name = "N", help_heading = CAPACITY)]
    max_concurrent: Option<u32>,
    /// Maximum number of rollouts that wait for a slot; further requests are answered with 429.
    /// [default: 4 × max-concurrent]
    #[arg(long, value_name = "N", help_heading = CAPACITY)]
    queue_max: Option<u32>,
    /// Maximum number of bytes held for all rollouts and callers together: guest memory, records, requests
    /// and results. [default: 70 % of the memory that is free at the start]
    #[arg(long, value_name = "BYTES", help_heading = CAPACITY)]
    memory_budget_bytes: Option<usize>,
    /// Directory of trajectories and artifacts that are written as files. [default: ./rollouts]
    #[arg(long, value_name = "DIR", env = "_OSMOSIS_ROLLOUT_ARTIFACT_ROOT", hide_env = true, help_heading = OUTPUT)]
    artifact_root: Option<PathBuf>,
    /// Directory of the journal, which stores admitted rollouts so that a crash loses none: a server that is
    /// started again with the same directory resumes them. 'off' writes no journal. [default: .journal/PORT
    /// in the artifact root; off on port 0]
    #[arg(long, value_name = "DIR", overrides_with = "journal", help_heading = OUTPUT)]
    journal: Option<PathBuf>,
    /// Storage of trajectories, artifacts and guests' logs: 'files', in a folder per rollout in the artifact
    /// root, or 'journal', from which the server returns them on request. [default: journal, if there is one]
    #[arg(long, value_name = "WHERE", help_heading = OUTPUT)]
    trajectories: Option<TrajectoriesIn>,
    #[command(flatten)]
    traces: TraceOptions,
    /// Certificate of the server in PEM, followed by its intermediate certificates; without it, connections
    /// are not encrypted. Certificate and key are reloaded on SIGHUP.
    #[arg(long, value_name = "FILE", requires = "tls_key", help_heading = CONNECTIONS)]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate, in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = CONNECTIONS)]
    tls_key: Option<PathBuf>,
    /// Environment variable with the key that every request must carry.
    #[arg(long, value_name = "VAR", help_heading = CONNECTIONS)]
    server_key_env: Option<String>,
    /// Generation of the Osmosis protocol that callers speak. With 'auto' the request decides, and a callback
    /// that may be for B or C has a form that both accept. [default: auto]
    #[arg(long, value_name = "G", help_heading = CONNECTIONS)]
    osmosis_generation: Option<OsmosisGeneration>,
    /// Host name by which callers may address this server in addition to the machine's own names, such as
    /// rollouts.example or *.example; may be repeated. With a server key and without this option, every name
    /// is accepted.
    #[arg(long, value_name = "NAME", help_heading = CONNECTIONS)]
    allow_host: Vec<String>,
    /// Origin of web pages that may send requests to this server, such as https://board.example; may be
    /// repeated. [default: none]
    #[arg(long, value_name = "ORIGIN", help_heading = CONNECTIONS)]
    allow_origin: Vec<String>,
    /// The key that every request must carry. Users who can list this machine's processes can read it.
    #[arg(long, value_name = "KEY", conflicts_with = "server_key_env", help_heading = CONNECTIONS)]
    api_key: Option<String>,
    /// Directory of guests' log events as JSON Lines: a file per rollout, in a folder for this start of the
    /// server.
    #[arg(long, value_name = "DIR", help_heading = OUTPUT)]
    log: Option<PathBuf>,
    /// Role of this server among several machines: a 'gateway' passes requests to workers, a 'worker' runs
    /// rollouts for gateways, and 'both' is a server alone. [default: both]
    #[arg(long, value_name = "ROLE", help_heading = CLUSTER)]
    role: Option<Role>,
    /// Environment variable with the key that gateways and workers share.
    #[arg(long, value_name = "VAR", help_heading = CLUSTER)]
    cluster_key_env: Option<String>,
    /// Address of a worker, for a gateway; may be repeated. A name that resolves to several machines stands for
    /// a worker on each of them.
    #[arg(long, value_name = "URL", help_heading = CLUSTER)]
    worker: Vec<String>,
    /// Name of this worker. [default: the name of the machine]
    #[arg(long, value_name = "NAME", help_heading = CLUSTER, hide_short_help = true)]
    worker_name: Option<String>,
    /// Address under which gateways reach this worker, such as http://10.0.0.1; without a port it has that of
    /// --listen. [default: the address of --listen]
    #[arg(long, value_name = "URL", help_heading = CLUSTER, hide_short_help = true)]
    advertise: Option<String>,
    /// Seconds after which the rollouts of a worker that does not answer are reported as lost, for a gateway.
    /// [default: they are waited for]
    #[arg(long, value_name = "SECONDS", help_heading = CLUSTER, hide_short_help = true)]
    lost_after_secs: Option<f64>,
    /// Shell command that runs before requests are accepted. If it fails, the server does not start.
    #[arg(long, value_name = "COMMAND", help_heading = HOOKS)]
    on_start: Option<String>,
    /// Shell command that runs after the last rollout has ended.
    #[arg(long, value_name = "COMMAND", help_heading = HOOKS)]
    on_stop: Option<String>,
    #[command(flatten)]
    hardening: HardeningOptions,
    #[command(flatten)]
    host: HostOptions,
}

impl Serve {
    /// Returns the configuration from the file, the options, an evaluator's environment and the address of a
    /// passed socket.
    fn raw_config(&self, evaluator: &EvaluatorEnvironment, passed: Option<SocketAddr>) -> Result<RawConfig> {
        let mut raw = self.host.raw_config()?;
        raw.mistakes.extend_from_slice(&evaluator.mistakes);
        let local = |port| SocketAddr::from(([127, 0, 0, 1], port)).to_string();
        let passed = passed.map(|address| address.to_string());
        if let Some(listen) = passed.or_else(|| self.listen.clone()).or(evaluator.port.map(local)) {
            raw.listen = Some(listen);
        }
        raw.tls.cert = self.tls_cert.clone().or(raw.tls.cert);
        raw.tls.key = self.tls_key.clone().or(raw.tls.key);
        let environment = OsmosisEnvironment::read(|name| std::env::var(name).ok());
        raw.mistakes.extend_from_slice(&environment.mistakes);
        for name in &environment.without_effect {
            tracing::warn!(name, "this variable is set and has no effect here");
        }
        raw.osmosis.init = environment.init.or(raw.osmosis.init);
        raw.max_concurrent = self.max_concurrent.or(environment.max_concurrent).or(raw.max_concurrent);
        raw.log = self.log.clone().or(raw.log);
        raw.on_start = self.on_start.clone().or(raw.on_start);
        raw.on_stop = self.on_stop.clone().or(raw.on_stop);
        raw.memory_budget_bytes = self.memory_budget_bytes.or(raw.memory_budget_bytes);
        raw.queue_max = self.queue_max.or(raw.queue_max);
        raw.artifact_root = self.artifact_root.clone().or(raw.artifact_root);
        match &self.journal {
            Some(off) if off.as_os_str() == "off" => {
                raw.journal = RawJournal { off: Some(true), ..RawJournal::default() };
            }
            Some(dir) => raw.journal = RawJournal { dir: Some(dir.clone()), off: None, ..raw.journal },
            // A server that an evaluator started stops with it, and no later process resumes its rollouts.
            None if evaluator.is_there() && raw.journal.dir.is_none() => {
                raw.journal.off.get_or_insert(true);
            }
            None => {}
        }
        raw.trajectories = self.trajectories.or(raw.trajectories);
        if evaluator.wants_files() {
            // The evaluator reads the files after the run.
            raw.artifacts.bytes_max.get_or_insert(u64::MAX);
            raw.trajectories.get_or_insert(TrajectoriesIn::Files);
        }
        raw.server_key_env = self.server_key_env.clone().or(raw.server_key_env);
        if !self.allow_host.is_empty() {
            raw.allowed_hosts = Some(self.allow_host.clone());
        }
        if !self.allow_origin.is_empty() {
            raw.allowed_origins = Some(self.allow_origin.clone());
        }
        raw.osmosis.generation = self.osmosis_generation.or(raw.osmosis.generation);
        raw.cluster.role = self.role.or(raw.cluster.role);
        raw.cluster.key_env = self.cluster_key_env.clone().or(raw.cluster.key_env);
        raw.cluster.worker_name = self.worker_name.clone().or(raw.cluster.worker_name);
        raw.cluster.advertise = self.advertise.clone().or(raw.cluster.advertise);
        raw.cluster.lost_after_secs = self.lost_after_secs.or(raw.cluster.lost_after_secs);
        if !self.worker.is_empty() {
            raw.cluster.workers = self.worker.clone();
        }
        if let Some(log) = adopt::adopted_log() {
            adopt::change_config(&mut raw, &log, self.catalog.is_some());
        }
        raw.hardening.landlock = self.hardening.landlock.then_some(true).or(raw.hardening.landlock);
        Ok(raw)
    }

    /// Serves until a stop signal. `start_threads` is called after privileges are dropped, because threads
    /// keep the privileges that they start with.
    pub(crate) fn run(mut self, start_threads: impl FnOnce()) -> Result<Exit> {
        if let Some(plugin) = &mut self.plugin {
            self.host.rollout.pull(plugin)?;
        }
        if let (Some(log), Some(dir)) = (adopt::adopted_log(), &mut self.catalog) {
            // Another copy of the catalog, with the journals of the log.
            *dir = adopt::folder(dir).join(log);
        }
        let evaluator = EvaluatorEnvironment::read(|name| std::env::var(name).ok());
        let passed = lifecycle::passed_socket()?;
        let address = passed.as_ref().and_then(|socket| socket.local_addr().ok());
        let mut raw = self.raw_config(&evaluator, address)?;
        if self.catalog.is_some() {
            catalog::refuse_plugin_options(&self)?;
            raw = catalog::operator_config(raw, self.journal.as_deref());
        }
        let config = raw.clone().resolve()?;
        let artifact_root = config.artifact_root.clone().unwrap_or_else(|| PathBuf::from("rollouts"));
        self.refuse_for_role(&config)?;
        let is_gateway = config.cluster.role == Role::Gateway;
        if self.catalog.is_none() && !is_gateway {
            std::fs::create_dir_all(&artifact_root)
                .with_context(|| format!("cannot create the artifact root {}", artifact_root.display()))?;
        }
        let server_key = self.server_key(&config)?;
        let socket = match passed {
            Some(socket) => Bound::Passed(socket),
            None => server::bind(config.listen).with_context(|| listen_error(&config))?,
        };
        self.harden(&config, &artifact_root)?;
        start_threads();
        let runtime = setup::runtime()?;
        // The TLS files are read after privileges are dropped, with the same rights as at a later reload.
        let tls = config.tls.as_ref().map(|files| ServerTls::load(&files.certificate, &files.key));
        let tls = tls.transpose().context("--tls-cert, --tls-key")?;
        runtime.spawn(lifecycle::reload_at_hangups(tls.clone()));
        runtime.spawn(lifecycle::feed_watchdog());
        let prepared = Prepared { evaluator, config, raw, artifact_root, server_key, socket: (socket, tls) };
        let exit = match (&self.catalog, &self.plugin) {
            _ if is_gateway => serve_gateway(&runtime, prepared),
            (Some(dir), _) => self.serve_many(&runtime, dir, prepared),
            (None, Some(plugin)) => self.serve_one(&runtime, plugin, prepared),
            (None, None) => bail!("neither a plugin nor --catalog is given"),
        };
        // Remaining work, such as a slow write, is not awaited.
        runtime.shutdown_background();
        exit
    }

    /// Drops the privileges and the access to files that serving does not need.
    fn harden(&self, config: &Config, artifact_root: &Path) -> Result<()> {
        let rollout = &self.host.rollout;
        let tls = config.tls.as_ref().map(|files| [&files.certificate, &files.key]);
        let tls: Vec<PathBuf> = tls.iter().flatten().flat_map(|file| lifecycle::folders_of(file)).collect();
        let read = [self.plugin.as_ref(), rollout.grader.as_ref()].into_iter().flatten().chain(&tls);
        let cache = rollout.plugin.load.cache_dir(config);
        let written = match &self.catalog {
            _ if config.cluster.role == Role::Gateway => [None, None, None],
            Some(catalog) => [Some(catalog.clone()), cache, None],
            None => [Some(artifact_root.to_owned()), cache, config.journal.dir(artifact_root)],
        };
        self.hardening.apply(config, read, written)
    }

    /// Serves one plugin.
    fn serve_one(&self, runtime: &Runtime, plugin: &Path, prepared: Prepared) -> Result<Exit> {
        let Prepared { evaluator, config, raw: _, artifact_root, server_key, socket } = prepared;
        let rollout = &self.host.rollout;
        let address = socket.0.local_addr().context("cannot determine the server's address")?;
        let own_log = runtime.block_on(cluster::claim_log(&config, &artifact_root, address))?;
        let (journal, unfinished) = match &own_log {
            Some(log) => log.open_journal(&config, &artifact_root)?,
            None => open_journal(&config, &artifact_root)?,
        };
        let journal_handle = journal.clone();
        let options = Options {
            artifact_root: config.writes_files().then(|| artifact_root.clone()),
            artifact_bounds: config.artifacts,
            descriptors_for_callers: Server::descriptors_per_rollout(&config),
            journal,
            ..Options::default()
        };
        let assembled = rollout.host(runtime, rollout.sources(plugin), &config, options)?;
        let host = &assembled.host;
        // The rules must be set before rollouts resume that an earlier process admitted under other rules.
        host.runtime().transport().set_rules(config.network.clone());
        log_reward_source(host);
        let name = runtime.block_on(host.agent_name());
        let name =
            name.map_err(|error| PluginFault(format!("cannot read the name of the agent loop: it {error}")))?;
        setup::print_judge(&assembled);
        let identity = ServerIdentity {
            agent_name: name.unwrap_or_else(|| file_stem(plugin)),
            instance_id: evaluator.instance_id,
            server_key,
            worker: cluster::worker_identity(&config, &artifact_root, own_log.as_ref())?,
        };
        let server = Server::for_host(host, &config, identity, gym_settings(&config)?);
        if let Some(why) = runtime.block_on(a::incompatibility(host)) {
            if config.osmosis_init.alone {
                return Err(PluginFault(format!("{}: {why}", plugin.display())).into());
            }
            tracing::warn!(why, "generation A cannot serve this plugin; the others can");
        }
        log_loaded(plugin, &assembled, &config, &artifact_root);
        let own_dir = own_log.as_ref().map(|log| log.journal_dir().to_owned());
        if let Some(dir) = own_dir.or_else(|| config.journal.dir(&artifact_root)) {
            journal::store_components(&dir, host, plugin, rollout.grader.as_deref())?;
        }
        let traces = self.traces.start(runtime, host.metrics())?;
        let resumed = resume(runtime, &server, unfinished)?;
        let callers_max = callers_max(&assembled.slots);
        let is_adopted = adopt::adopted_log().is_some();
        let worker = own_log.map(|log| {
            let adopter = (!is_adopted).then(|| adopt::Adopter::new(host.budget().clone()));
            let _within = runtime.enter();
            log.announce(adopter, host.metrics())
        });
        let any = AnyServer::One(server.clone());
        let serving = serve(&config, &any, callers_max, socket, traces, worker.as_ref());
        let exit = if is_adopted {
            runtime.block_on(adopt::until_over(serving, || Some(resumed), || server.is_idle()))
        } else {
            runtime.block_on(serving)
        };
        // Rollouts that are left to the next process end with the journal, and are not over.
        let is_idle = server.is_idle();
        if let Some(journal) = journal_handle {
            journal.close();
        }
        if let Some(worker) = worker {
            runtime.block_on(worker.leave(is_idle, None));
            if is_adopted
                && is_idle
                && let Some(dir) = config.journal.dir(&artifact_root)
            {
                cluster::remove(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
            }
        }
        exit
    }

    fn serve_many(&self, runtime: &Runtime, dir: &Path, prepared: Prepared) -> Result<Exit> {
        let Prepared { config, raw, socket, .. } = prepared;
        let address = socket.0.local_addr().context("cannot determine the server's address")?;
        let share = runtime.block_on(cluster::share_catalog(&config, dir, address))?;
        let is_adopted = adopt::adopted_log().is_some();
        let (tenants, admin) = {
            let _within = runtime.enter();
            self.tenants(dir, raw, &config, share.as_ref())?
        };
        let traces = self.traces.start(runtime, tenants.metrics())?;
        if let Some(traces) = &traces {
            tenants.trace_to(traces.clone());
        }
        tracing::info!(limits = %limits(&config), "maximum limits of a rollout");
        let resumed = tenants.clone();
        runtime.spawn(async move { resumed.run().await });
        let callers_max = callers_max(tenants.slots());
        let worker = share.map(|share| {
            let adopter = (!is_adopted).then(|| adopt::Adopter::new(tenants.budget().clone()));
            runtime.block_on(share.follow(tenants.clone(), adopter))
        });
        let worker = worker.transpose()?;
        let serves = AnyServer::Many(tenants.clone(), admin);
        let serving = serve(&config, &serves, callers_max, socket, traces, worker.as_ref());
        let exit = if is_adopted {
            runtime.block_on(adopt::until_over(serving, || tenants.resumed(), || tenants.is_over()))
        } else {
            runtime.block_on(serving)
        };
        let (is_idle, left) = (tenants.is_idle(), tenants.count_left());
        let unfinished = tenants.unfinished();
        tenants.close();
        if let Some(worker) = worker {
            runtime.block_on(worker.leave(is_idle, unfinished));
            if is_adopted && is_idle {
                cluster::remove(dir).with_context(|| format!("cannot remove {}", dir.display()))?;
            }
        }
        if is_adopted && left > 0 {
            exit?;
            bail!("{left} rollouts or tenants of the log cannot be continued here; they stay in the log");
        }
        exit
    }

    /// Returns the key that callers must send, if one is configured.
    fn server_key(&self, config: &Config) -> Result<Option<Secret>> {
        if self.catalog.is_some() {
            return Ok(None);
        }
        let key = match &self.api_key {
            Some(key) if key.is_empty() => {
                bail!("--api-key is empty; leave the option out to serve without a key")
            }
            Some(key) => Some(Secret::new(key.as_str())),
            None => setup::key_from_env("server-key-env", config.server_key_env.as_deref())?,
        };
        if key.is_none() && !config.listen.ip().is_loopback() {
            tracing::warn!(listen = %config.listen, "everyone who can reach this address can run rollouts; --server-key-env requires a key");
        }
        Ok(key)
    }
}

/// Serves as a gateway.
fn serve_gateway(runtime: &Runtime, prepared: Prepared) -> Result<Exit> {
    let Prepared { config, server_key, socket, .. } = prepared;
    let gateway = cluster::gateway(&config, server_key)?;
    let watching = gateway.clone();
    runtime.spawn(async move { watching.watch().await });
    let _members = runtime.block_on(cluster::watch_members(&config, &gateway))?;
    runtime.block_on(serve(&config, &AnyServer::Gateway(gateway), cluster::callers_max(), socket, None, None))
}

/// Returns the settings for NeMo Gym, with the key of its model.
fn gym_settings(config: &Config) -> Result<nemo_gym::Settings> {
    let Some(gym) = &config.nemo_gym else { return Ok(nemo_gym::Settings::default()) };
    let key = setup::key_from_env("nemo-gym.model-key-env", gym.model_key_env.as_deref())?;
    nemo_gym::Settings::new(gym, key).context("nemo-gym.model-url")
}

/// State that is prepared before a plugin or a catalog is opened.
struct Prepared {
    evaluator: EvaluatorEnvironment,
    config: Config,
    /// The configuration as it was written.
    raw: RawConfig,
    artifact_root: PathBuf,
    server_key: Option<Secret>,
    socket: (Bound, Option<ServerTls>),
}

pub(super) fn log_loaded(plugin: &Path, assembled: &Assembled, config: &Config, artifact_root: &Path) {
    let Assembled { host, slots, .. } = assembled;
    tracing::info!(
        plugin = %plugin.display(),
        name = assembled.settings.name,
        digest = host.deployment().digest(),
        slots = slots.running_max,
        queue_max = slots.queue_max,
        bound_by = %slots.bound_by,
        memory_budget_bytes = host.budget().total(),
        memory = assembled.plan.name(),
        artifact_root = %artifact_root.display(),
        trajectories = if config.writes_files() { "files" } else { "journal" },
        "plugin loaded"
    );
    tracing::info!(limits = %limits(config), "limits of every rollout");
}

/// Opens the journal of this server, if one is configured, and returns it with its unfinished rollouts.
pub(super) fn open_journal(
    config: &Config,
    artifact_root: &Path,
) -> Result<(Option<Arc<Journal>>, Option<Unfinished>)> {
    let Some(settings) = config.journal.settings(artifact_root) else { return Ok((None, None)) };
    let (journal, unfinished) = journal::open(settings, config)?;
    Ok((Some(journal), Some(unfinished)))
}

/// Resumes the rollouts of the journal that an earlier process did not finish, and returns their number.
pub(super) fn resume(runtime: &Runtime, server: &Server, unfinished: Option<Unfinished>) -> Result<usize> {
    let Some(unfinished) = unfinished.filter(|unfinished| unfinished.count_max() > 0) else { return Ok(0) };
    let found = unfinished.count_max();
    let _within = runtime.enter();
    let resumed = server.resume(unfinished).context("a rollout of the journal cannot be read")?;
    tracing::info!(found, resumed, "resumed rollouts of an earlier process");
    Ok(resumed)
}

/// Logs the source of rewards if there is no grader.
fn log_reward_source(host: &Host) {
    if host.grader().is_some() {
        return;
    }
    match host.form() {
        AgentForm::Workflow => {
            tracing::warn!(
                "the plugin has no grader and none is given by --grader: no rollout will have a reward"
            );
        }
        AgentForm::AgentLoop => tracing::info!(
            "the plugin has no grader and none is given by --grader: rewards are the agent loop's own"
        ),
        AgentForm::Environment => tracing::info!(
            "the plugin has no grader and none is given by --grader: rewards are the environment's own"
        ),
    }
}

/// Minimum time for sending the last traces, however little time is left for stopping.
const TRACES_MIN: Duration = Duration::from_secs(1);

/// Returns the maximum number of callers' connections: one for each rollout plus a fixed number, as far as
/// there are descriptors.
fn callers_max(slots: &Slots) -> usize {
    const EXTRA_MAX: usize = 16_384;
    let rollouts = slots.running_max as usize + slots.queue_max as usize;
    slots.connections.callers_max.min(rollouts + EXTRA_MAX)
}

/// Returns the effective `[limits]` as one JSON object.
fn limits(config: &Config) -> serde_json::Value {
    let all = config.limits.table().into_iter().chain(config.load_limits.table());
    serde_json::Value::Object(all.map(|(name, max)| (name.to_owned(), serde_json::json!(max))).collect())
}

/// Returns the file's stem, the name of a component that declares none.
pub(super) fn file_stem(path: &Path) -> String {
    path.file_stem().map_or_else(|| "workflow".to_owned(), |stem| stem.to_string_lossy().into_owned())
}

fn listen_error(config: &Config) -> String {
    format!("cannot listen on {}; choose another address with --listen", config.listen)
}

/// Time for connected callers to send another request after this process has handed its socket to the next.
/// Such a request is answered and its connection closed; a connection without a request is closed after this
/// time.
const HANDOVER_TIME: Duration = Duration::from_secs(1);

/// Runs a server from its start command to its stop command: accepts connections until a stop signal, then
/// drains.
async fn serve(
    config: &Config,
    server: &AnyServer,
    callers_max: usize,
    (socket, tls): (Bound, Option<ServerTls>),
    traces: Option<Traces>,
    worker: Option<&cluster::Announced>,
) -> Result<Exit> {
    let mut stop = setup::StopSignal::new()?;
    hook("on-start", config.on_start.as_deref(), &mut stop).await?;
    // Rollouts in a journal continue in the next process, which has the same socket.
    let is_handed_over = matches!(socket, Bound::Passed(_)) && server.has_journal();
    let scheme = if tls.is_some() { "https" } else { "http" };
    let listener = server::listen(socket).with_context(|| listen_error(config))?;
    let address = listener.local_addr().context("cannot determine the server's address")?;
    let shutdown = Shutdown { is_handed_over, ..Shutdown::default() };
    let listening = Listening::from(listener).with_tls(tls).until_left(shutdown.stop_accepting.clone());
    let serving = server::serve(listening, server.router(), callers_max, shutdown.stop_serving.clone());
    let mut serving = tokio::spawn(serving);
    outln!("listening on {scheme}://{address}");
    lifecycle::ready(&format!("listening on {scheme}://{address}"));

    stop.next().await;
    let stopping = ShutdownDeadlines::within(config.drain);
    lifecycle::stopping(config.drain);
    let load = server.load();
    let drain_secs = config.drain.as_secs_f64();
    tracing::info!(drain_secs, running = load.running, queued = load.queued, "draining");
    let draining = async {
        let leaving = async {
            if let Some(worker) = worker {
                worker.stop_staging().await;
            }
        };
        // A worker that admits nothing more is not waited for by activations.
        tokio::join!(shutdown.drain(server, &stopping, &mut serving), leaving).0
    };
    let exit = tokio::select! {
        is_done = draining => if is_done { Exit::Done } else { Exit::NotDone },
        () = stop.next() => {
            let load = server.load();
            tracing::warn!(running = load.running, queued = load.queued, "stopped by a second signal");
            server.log_unreported();
            return Ok(Exit::NotDone);
        }
    };
    shutdown.stop_serving.cancel();
    let traces_time =
        stopping.end_at.saturating_duration_since(Instant::now()).clamp(TRACES_MIN, setup::FLUSH_TIME_MAX);
    let (closed, ()) =
        tokio::join!(wait_closed(serving, stopping.end_at), setup::flush_within(traces_time, traces));
    closed?;
    hook("on-stop", config.on_stop.as_deref(), &mut stop).await?;
    Ok(exit)
}

/// Shutdown of a server.
#[derive(Default)]
struct Shutdown {
    /// Whether the next process continues with the same socket and the same journal.
    is_handed_over: bool,
    /// Cancelled to accept no further connections.
    stop_accepting: CancellationToken,
    /// Cancelled to accept no further requests.
    stop_serving: CancellationToken,
}

impl Shutdown {
    /// Waits for running rollouts until the deadline. Returns whether they are done.
    async fn drain(
        &self,
        server: &AnyServer,
        stopping: &ShutdownDeadlines,
        serving: &mut JoinHandle<()>,
    ) -> bool {
        if !self.is_handed_over {
            return server.drain(stopping).await;
        }
        self.stop_accepting.cancel();
        server.answer_waiting();
        let _ = tokio::time::timeout(HANDOVER_TIME, serving).await;
        self.stop_serving.cancel();
        // Callers read results from the next process, so it is enough that no rollout runs.
        tokio::select! {
            biased;
            is_done = server.drain(stopping) => is_done,
            () = server.idle() => true,
        }
    }
}

/// Runs the operator's command for this moment and fails if a stop signal comes while it runs.
pub(super) async fn hook(
    moment: &'static str,
    command: Option<&str>,
    stop: &mut setup::StopSignal,
) -> Result<()> {
    let Some(command) = command else { return Ok(()) };
    tokio::select! {
        ran = hooks::run(moment, command) => ran,
        () = stop.next() => bail!("stopped while the command {moment} ran"),
    }
}

/// Waits until all connections are closed, but no longer than until the deadline.
async fn wait_closed(serving: JoinHandle<()>, until: Instant) -> Result<()> {
    if serving.is_finished() {
        return Ok(());
    }
    match tokio::time::timeout_at(until, serving).await {
        Ok(joined) => joined.context("the server panicked"),
        Err(_) => {
            tracing::debug!("some connections are still open");
            Ok(())
        }
    }
}
