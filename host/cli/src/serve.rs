//! `serve`: a plugin for trainers, or those of many tenants, over HTTP.

mod catalog;

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
    Config, EvaluatorEnvironment, OsmosisEnvironment, OsmosisGeneration, RawConfig, RawJournal,
    TrajectoriesIn,
};
use rollout_assembly::{Assembled, Options};
use rollout_core::capacity::Slots;
use rollout_core::telemetry::Traces;
use rollout_outbound::Secret;
use rollout_rollout::{AgentForm, Host, Journal, Unfinished};
use rollout_server as server;
use rollout_server::dialect::osmosis::a;
use rollout_server::{AnyServer, Bound, Listening, Server, ServerIdentity, ServerTls, ShutdownDeadlines};

/// Topics of the options.
const REACHING: &str = "Reaching it";
const CAPACITY: &str = "Capacity";
const HOOKS: &str = "Start and stop";

/// Serves a plugin to trainers over HTTP: the Osmosis protocol, generations D (polling
/// under a lease), C and B (callbacks), distinguished by the request, and A (tools at the start,
/// one post at the end), which has a path of its own.
///
/// Prints `listening on http://ADDR` when it is ready. SIGTERM or Ctrl-C drains: no
/// new rollouts, running ones may end and be reported; a second signal ends it at once.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  rollout-host serve my_agent.wasm\n  \
    rollout-host serve my_agent.wasm --listen 0.0.0.0:9000 --server-key-env SERVER_KEY --config host.toml")]
pub(super) struct Serve {
    /// The component with the workflow or agent loop.
    #[arg(required_unless_present = "catalog", conflicts_with = "catalog")]
    plugin: Option<PathBuf>,
    /// Serves the plugins of many tenants, which are in this catalog: each below /p/NAME, under keys of
    /// its tenant's. It is made where there is none, and changed while it is served, by the commands
    /// tenant, key, push and plugin.
    #[arg(long, value_name = "DIR")]
    catalog: Option<PathBuf>,
    /// Environment variable with an operator's key of a catalog. Without, the first one is made and
    /// printed once.
    #[arg(long, value_name = "VAR", requires = "catalog", help_heading = REACHING)]
    operator_key_env: Option<String>,
    /// Address to listen on; port 0 takes a free one. [default: 127.0.0.1:9000]
    #[arg(long, value_name = "ADDR", help_heading = REACHING)]
    listen: Option<String>,
    /// Rollouts that run at once. [default: 1024]
    #[arg(long, value_name = "N", help_heading = CAPACITY)]
    max_concurrent: Option<u32>,
    /// Rollouts that may wait for one of those to end; beyond, the answer is 429.
    /// [default: 4 × max-concurrent]
    #[arg(long, value_name = "N", help_heading = CAPACITY)]
    queue_max: Option<u32>,
    /// Bytes that may be held for all rollouts and callers together: memory of guests,
    /// records, requests, results. [default: 70 % of what is free at start]
    #[arg(long, value_name = "BYTES", help_heading = CAPACITY)]
    memory_budget_bytes: Option<usize>,
    /// Where trajectories and artifacts go, where they are files. [default: ./rollouts]
    #[arg(long, value_name = "DIR", env = "_OSMOSIS_ROLLOUT_ARTIFACT_ROOT", hide_env = true, help_heading = OUTPUT)]
    artifact_root: Option<PathBuf>,
    /// Where admitted rollouts are kept, so that none is lost when this process dies: started
    /// again with the same directory, it goes on with them. 'off' keeps none.
    /// [default: .journal/PORT in the artifact root; off on port 0]
    #[arg(long, value_name = "DIR", overrides_with = "journal", help_heading = OUTPUT)]
    journal: Option<PathBuf>,
    /// Where trajectories, artifacts and logs of guests are: 'files', a folder a rollout in the artifact
    /// root, or the journal, which gives them to whoever asks. [default: journal, where there is one]
    #[arg(long, value_name = "WHERE", help_heading = OUTPUT)]
    trajectories: Option<TrajectoriesIn>,
    #[command(flatten)]
    traces: TraceOptions,
    /// The certificate that callers are shown, in PEM, with those that vouch for it behind it; without,
    /// connections are not encrypted. Read again on SIGHUP, as is its key.
    #[arg(long, value_name = "FILE", requires = "tls_key", help_heading = REACHING)]
    tls_cert: Option<PathBuf>,
    /// The certificate's key, in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = REACHING)]
    tls_key: Option<PathBuf>,
    /// Environment variable with the key that every request must carry.
    #[arg(long, value_name = "VAR", help_heading = REACHING)]
    server_key_env: Option<String>,
    /// Generation that requests are of. Left to the request, one that may be of B or of C
    /// is called back in a form that both take. [default: auto]
    #[arg(long, value_name = "G", help_heading = REACHING)]
    osmosis_generation: Option<OsmosisGeneration>,
    /// A name, besides those of this machine, under which this server may be asked, such as
    /// rollouts.example, or *.example; may be given several times. With a server key, and
    /// without this option, every name may be used.
    #[arg(long, value_name = "NAME", help_heading = REACHING)]
    allow_host: Vec<String>,
    /// An origin of web pages that may ask this server, such as https://board.example; may be
    /// given several times. Otherwise none may.
    #[arg(long, value_name = "ORIGIN", help_heading = REACHING)]
    allow_origin: Vec<String>,
    /// The key itself; whoever may list this machine's processes can read it here.
    #[arg(long, value_name = "KEY", conflicts_with = "server_key_env", help_heading = REACHING)]
    api_key: Option<String>,
    /// Where guests' events go, one JSON object a line: a file a rollout, in a folder for
    /// this start.
    #[arg(long, value_name = "DIR", help_heading = OUTPUT)]
    log: Option<PathBuf>,
    /// A command that the shell runs before requests are accepted. If it fails, none are.
    #[arg(long, value_name = "COMMAND", help_heading = HOOKS)]
    on_start: Option<String>,
    /// A command that the shell runs after the last rollout is over.
    #[arg(long, value_name = "COMMAND", help_heading = HOOKS)]
    on_stop: Option<String>,
    #[command(flatten)]
    hardening: HardeningOptions,
    #[command(flatten)]
    host: HostOptions,
}

impl Serve {
    fn raw_config(&self, evaluator: &EvaluatorEnvironment, passed: Option<SocketAddr>) -> Result<RawConfig> {
        let mut raw = self.host.raw_config()?;
        raw.mistakes.extend_from_slice(&evaluator.mistakes);
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port)).to_string();
        let passed = passed.map(|address| address.to_string());
        if let Some(listen) = passed.or_else(|| self.listen.clone()).or(evaluator.port.map(at)) {
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
            // Whoever is started by an evaluator ends with it, and nobody comes back for its rollouts.
            None if evaluator.is_there() && raw.journal.dir.is_none() => {
                raw.journal.off.get_or_insert(true);
            }
            None => {}
        }
        raw.trajectories = self.trajectories.or(raw.trajectories);
        if evaluator.wants_files() {
            // They are its own, to be looked at when it is over.
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
        raw.hardening.landlock = self.hardening.landlock.then_some(true).or(raw.hardening.landlock);
        Ok(raw)
    }

    /// `start_threads` is called once this process has no privileges that threads could go on
    /// with.
    pub(crate) fn run(self, start_threads: impl FnOnce()) -> Result<Exit> {
        let evaluator = EvaluatorEnvironment::read(|name| std::env::var(name).ok());
        let passed = lifecycle::passed_socket()?;
        let address = passed.as_ref().and_then(|socket| socket.local_addr().ok());
        let mut raw = self.raw_config(&evaluator, address)?;
        if self.catalog.is_some() {
            catalog::refuse_options_of_one(&self)?;
            raw = catalog::operators(raw, self.journal.as_deref());
        }
        let config = raw.clone().resolve()?;
        let artifact_root = config.artifact_root.clone().unwrap_or_else(|| PathBuf::from("rollouts"));
        if self.catalog.is_none() {
            std::fs::create_dir_all(&artifact_root)
                .with_context(|| format!("cannot make the artifact root {}", artifact_root.display()))?;
        }
        let server_key = self.server_key(&config)?;
        let socket = match passed {
            Some(socket) => Bound::Passed(socket),
            None => server::bind(config.listen).with_context(|| taken(&config))?,
        };
        self.harden(&config, &artifact_root)?;
        start_threads();
        let runtime = setup::runtime()?;
        // Once it has the rights with which it will be read again.
        let tls = config.tls.as_ref().map(|files| ServerTls::load(&files.certificate, &files.key));
        let tls = tls.transpose().context("--tls-cert, --tls-key")?;
        runtime.spawn(lifecycle::reload_at_hangups(tls.clone()));
        runtime.spawn(lifecycle::keep_watchdog_quiet());
        let here = Here { evaluator, config, raw, artifact_root, server_key, at: (socket, tls) };
        let exit = match (&self.catalog, &self.plugin) {
            (Some(dir), _) => self.serve_many(&runtime, dir, here),
            (None, Some(plugin)) => self.serve_one(&runtime, plugin, here),
            (None, None) => bail!("neither a plugin nor a catalog is given"),
        };
        // What is left, such as a slow write, is not waited for.
        runtime.shutdown_background();
        exit
    }

    /// Gives up what serving does not take.
    fn harden(&self, config: &Config, artifact_root: &Path) -> Result<()> {
        let rollout = &self.host.rollout;
        let tls = config.tls.as_ref().map(|files| [&files.certificate, &files.key]);
        let tls: Vec<PathBuf> = tls.iter().flatten().flat_map(|file| lifecycle::folders_of(file)).collect();
        let read = [self.plugin.as_ref(), rollout.grader.as_ref()].into_iter().flatten().chain(&tls);
        let cache = rollout.plugin.load.cache_dir(config);
        let written = match &self.catalog {
            Some(catalog) => [Some(catalog.clone()), cache, None],
            None => [Some(artifact_root.to_owned()), cache, config.journal.dir(artifact_root)],
        };
        self.hardening.apply(config, read, written)
    }

    fn serve_one(&self, runtime: &Runtime, plugin: &Path, here: Here) -> Result<Exit> {
        let Here { evaluator, config, raw: _, artifact_root, server_key, at } = here;
        let rollout = &self.host.rollout;
        let (journal, unfinished) = open_journal(&config, &artifact_root)?;
        let kept = journal.clone();
        let options = Options {
            artifact_root: config.writes_files().then(|| artifact_root.clone()),
            artifact_bounds: config.artifacts,
            descriptors_for_callers: Server::descriptors_per_rollout(&config),
            journal,
            ..Options::default()
        };
        let assembled = rollout.host(runtime, rollout.sources(plugin), &config, options)?;
        let host = &assembled.host;
        // Before anything goes on that a process before admitted under other rules.
        host.runtime().transport().set_rules(config.network.clone());
        say_who_rates(host);
        let name = runtime.block_on(host.agent_name());
        let name =
            name.map_err(|error| PluginFault(format!("the agent loop does not say its name: it {error}")))?;
        setup::say_who_judges(&assembled);
        let identity = ServerIdentity {
            agent_name: name.unwrap_or_else(|| file_stem(plugin)),
            instance_id: evaluator.instance_id,
            server_key,
        };
        let server = Server::of_host(host, &config, identity);
        if let Some(why) = runtime.block_on(a::cannot_carry(host)) {
            if config.osmosis_init.alone {
                return Err(PluginFault(format!("{}: {why}", plugin.display())).into());
            }
            tracing::warn!(why, "generation A cannot serve this plugin; the others can");
        }
        say_loaded(plugin, &assembled, &config, &artifact_root);
        if let Some(dir) = config.journal.dir(&artifact_root) {
            journal::keep_components(&dir, host, plugin, rollout.grader.as_deref())?;
        }
        let traces = self.traces.begin(runtime, host.metrics())?;
        resume(runtime, &server, unfinished)?;
        let callers_max = callers_max(&assembled.slots);
        let exit = runtime.block_on(serve(&config, &AnyServer::One(server), callers_max, at, traces));
        if let Some(journal) = kept {
            journal.close();
        }
        exit
    }

    fn serve_many(&self, runtime: &Runtime, dir: &Path, here: Here) -> Result<Exit> {
        let Here { config, raw, at, .. } = here;
        let (tenants, admin) = {
            let _within = runtime.enter();
            self.tenants(dir, raw, &config)?
        };
        let traces = self.traces.begin(runtime, tenants.metrics())?;
        if let Some(traces) = &traces {
            tenants.trace_to(traces.clone());
        }
        tracing::info!(limits = %limits(&config), "no rollout has limits above these");
        let going_on = tenants.clone();
        runtime.spawn(async move { going_on.run().await });
        let callers_max = callers_max(tenants.slots());
        let serves = AnyServer::Many(tenants.clone(), admin);
        let exit = runtime.block_on(serve(&config, &serves, callers_max, at, traces));
        tenants.close();
        exit
    }

    /// The key that callers have to give, if they have to.
    fn server_key(&self, config: &Config) -> Result<Option<Secret>> {
        if self.catalog.is_some() {
            return Ok(None);
        }
        let key = match &self.api_key {
            Some(key) if key.is_empty() => bail!("--api-key is empty; leave it out to ask for none"),
            Some(key) => Some(Secret::new(key.as_str())),
            None => setup::key_from_env("server-key-env", config.server_key_env.as_deref())?,
        };
        if key.is_none() && !config.listen.ip().is_loopback() {
            tracing::warn!(listen = %config.listen, "whoever reaches this address can run rollouts; --server-key-env asks for a key");
        }
        Ok(key)
    }
}

/// What a process that serves has settled before it knows whom.
struct Here {
    evaluator: EvaluatorEnvironment,
    config: Config,
    /// The same as it was written.
    raw: RawConfig,
    artifact_root: PathBuf,
    server_key: Option<Secret>,
    at: (Bound, Option<ServerTls>),
}

fn say_loaded(plugin: &Path, assembled: &Assembled, config: &Config, artifact_root: &Path) {
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
    tracing::info!(limits = %limits(config), "every rollout has these limits");
}

/// The journal of this server, where there is to be one, and what is to be gone on with.
fn open_journal(config: &Config, artifact_root: &Path) -> Result<(Option<Arc<Journal>>, Option<Unfinished>)> {
    let Some(settings) = config.journal.settings(artifact_root) else { return Ok((None, None)) };
    let (journal, unfinished) = journal::open(settings, config)?;
    Ok((Some(journal), Some(unfinished)))
}

/// Goes on with what a process before admitted.
fn resume(runtime: &Runtime, server: &Server, unfinished: Option<Unfinished>) -> Result<()> {
    let Some(unfinished) = unfinished.filter(|unfinished| unfinished.count_max() > 0) else { return Ok(()) };
    let found = unfinished.count_max();
    let _within = runtime.enter();
    let resumed = server.resume(unfinished).context("a rollout of the journal cannot be read")?;
    tracing::info!(found, resumed, "going on with the rollouts of the process before");
    Ok(())
}

/// Where rewards come from, as far as that may surprise.
fn say_who_rates(host: &Host) {
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
    }
}

/// What the last traces have, however little time is left.
const TRACES_MIN: Duration = Duration::from_secs(1);

/// Connections of callers at once: one for each rollout, and as many besides as there are
/// descriptors for. Past this number they cost memory for nothing.
fn callers_max(slots: &Slots) -> usize {
    const BESIDES_MAX: usize = 16_384;
    let rollouts = slots.running_max as usize + slots.queue_max as usize;
    slots.connections.callers_max.min(rollouts + BESIDES_MAX)
}

/// All of `[limits]` as they hold, as one JSON object.
fn limits(config: &Config) -> serde_json::Value {
    let all = config.limits.table().into_iter().chain(config.load_limits.table());
    serde_json::Value::Object(all.map(|(name, max)| (name.to_owned(), serde_json::json!(max))).collect())
}

/// A component's name where it says none itself.
fn file_stem(path: &Path) -> String {
    path.file_stem().map_or_else(|| "workflow".to_owned(), |stem| stem.to_string_lossy().into_owned())
}

fn taken(config: &Config) -> String {
    format!("cannot listen on {}; --listen takes another address", config.listen)
}

/// How long callers that are connected have for another request when this process leaves the socket to
/// the next. It is answered, and ends its connection; one that was silent for so long is closed.
const LEAVING_TIME: Duration = Duration::from_secs(1);

async fn serve(
    config: &Config,
    server: &AnyServer,
    callers_max: usize,
    (socket, tls): (Bound, Option<ServerTls>),
    traces: Option<Traces>,
) -> Result<Exit> {
    let mut stop = setup::StopSignal::new()?;
    hook("on-start", config.on_start.as_deref(), &mut stop).await?;
    // What is in a journal goes on in the next process, which has the same socket.
    let is_handed_over = matches!(socket, Bound::Passed(_)) && server.has_journal();
    let scheme = if tls.is_some() { "https" } else { "http" };
    let listener = server::listen(socket).with_context(|| taken(config))?;
    let address = listener.local_addr().context("cannot tell the address that is listened on")?;
    let leaving = Leaving { is_handed_over, ..Leaving::default() };
    let listening = Listening::from(listener).with_tls(tls).until_left(leaving.left.clone());
    let serving = server::serve(listening, server.router(), callers_max, leaving.drained.clone());
    let mut serving = tokio::spawn(serving);
    outln!("listening on {scheme}://{address}");
    lifecycle::ready(&format!("listening on {scheme}://{address}"));

    stop.next().await;
    let stopping = ShutdownDeadlines::within(config.drain);
    lifecycle::stopping(config.drain);
    let load = server.load();
    let drain_secs = config.drain.as_secs_f64();
    tracing::info!(drain_secs, running = load.running, queued = load.queued, "draining");
    let exit = tokio::select! {
        is_done = leaving.drain(server, &stopping, &mut serving) => if is_done { Exit::Done } else { Exit::NotDone },
        () = stop.next() => {
            let load = server.load();
            tracing::warn!(running = load.running, queued = load.queued, "stopped by a second signal");
            server.log_unreported();
            return Ok(Exit::NotDone);
        }
    };
    leaving.drained.cancel();
    let traces_time =
        stopping.end_at.saturating_duration_since(Instant::now()).clamp(TRACES_MIN, setup::FLUSH_TIME_MAX);
    let (closed, ()) =
        tokio::join!(closed(serving, stopping.end_at), setup::flush_within(traces_time, traces));
    closed?;
    hook("on-stop", config.on_stop.as_deref(), &mut stop).await?;
    Ok(exit)
}

/// How a server stops to serve.
#[derive(Default)]
struct Leaving {
    /// Whether the next process has the same socket.
    is_handed_over: bool,
    /// No connection is taken any more.
    left: CancellationToken,
    /// No request is, either.
    drained: CancellationToken,
}

impl Leaving {
    /// Waits for what runs, as long as there is time. Says whether all of it is done.
    async fn drain(
        &self,
        server: &AnyServer,
        stopping: &ShutdownDeadlines,
        serving: &mut JoinHandle<()>,
    ) -> bool {
        if !self.is_handed_over {
            return server.drain(stopping).await;
        }
        self.left.cancel();
        server.answer_waiting();
        let _ = tokio::time::timeout(LEAVING_TIME, serving).await;
        self.drained.cancel();
        // Results are read in the next process, so that it is enough that nothing runs.
        tokio::select! {
            biased;
            is_done = server.drain(stopping) => is_done,
            () = server.idle() => true,
        }
    }
}

/// Runs the operator's command for this moment, unless the process is to stop meanwhile.
async fn hook(moment: &'static str, command: Option<&str>, stop: &mut setup::StopSignal) -> Result<()> {
    let Some(command) = command else { return Ok(()) };
    tokio::select! {
        ran = hooks::run(moment, command) => ran,
        () = stop.next() => bail!("stopped while the command {moment} ran"),
    }
}

/// Waits until connections are closed. Those that are idle close at once; one that hangs is not waited
/// for.
async fn closed(serving: JoinHandle<()>, until: Instant) -> Result<()> {
    if serving.is_finished() {
        return Ok(());
    }
    match tokio::time::timeout_at(until, serving).await {
        Ok(joined) => joined.context("the server panicked"),
        Err(_) => {
            tracing::debug!("connections still open");
            Ok(())
        }
    }
}
