//! The command `work`, which claims rollouts from a trainer's queue and runs them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use tokio::runtime::Runtime;

use super::hardening::HardeningOptions;
use super::options::{HostOptions, TraceOptions};
use super::print::outln;
use super::{Exit, OUTPUT, PluginFault, journal, lifecycle, serve, setup};
use rollout_assembly::Options;
use rollout_assembly::config::{Config, RawConfig, RawJournal};
use rollout_core::telemetry::Traces;
use rollout_outbound::Secret;
use rollout_rollout::AgentForm;
use rollout_server::dialect::agent_lightning::{
    AgentLightning, AgentLightningSettings, FieldPath, RowFields,
};
use rollout_server::{Access, Server, ServerSettings, Serving, ShutdownDeadlines};

/// Headings of the options.
const QUEUE: &str = "Queue";
const ROWS: &str = "Rows";
const CAPACITY: &str = "Capacity";

/// Folder of the journal in the artifact root.
const JOURNAL_DIR: &str = ".journal/work";

/// Minimum and maximum of --poll-secs.
const POLL_SECS_MIN: f64 = 0.05;
const POLL_SECS_MAX: f64 = 3600.0;

/// Claims rollouts from the gateway of an Agent Lightning trainer, runs them against the model behind it, and
/// reports their rewards.
///
/// A rollout that gets no reward is ended as failed, with the reason. SIGTERM or Ctrl-C drains: no more rollouts
/// are claimed, running ones may finish, and the rest is ended as failed. After a crash, rollouts continue when the
/// command is started again with the same journal. Do not run the official controller beside it, which ends all
/// rollouts that it did not start.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    rollout-host work --agl http://127.0.0.1:8080 --key-env AGL_KEY my_agent.wasm\n  \
    rollout-host work --agl http://trainer:8080 --prompt-field question --label-field answer my_agent.wasm")]
pub(super) struct Work {
    /// Component with the workflow or agent loop.
    plugin: PathBuf,
    /// URL of the Agent Lightning server, version 1.
    #[arg(long, value_name = "URL", help_heading = QUEUE)]
    agl: String,
    /// Environment variable with the server's key.
    #[arg(long, value_name = "VAR", help_heading = QUEUE)]
    key_env: Option<String>,
    /// Seconds between two requests for rollouts while there are none.
    #[arg(long, value_name = "SECS", default_value_t = 0.5, value_parser = poll_secs, help_heading = QUEUE)]
    poll_secs: f64,
    /// Field of a row with the prompt, a text or a list of messages; names in it are joined by dots.
    /// [default: the first of prompt, messages, question and problem]
    #[arg(long, value_name = "PATH", help_heading = ROWS)]
    prompt_field: Option<FieldPath>,
    /// Field of a row with the label, which only the grader receives. [default: the first of ground_truth,
    /// reward_model.ground_truth, expected_answer, answer and label]
    #[arg(long, value_name = "PATH", help_heading = ROWS)]
    label_field: Option<FieldPath>,
    /// Maximum number of concurrent rollouts. [default: 1024]
    #[arg(long, value_name = "N", help_heading = CAPACITY)]
    max_concurrent: Option<u32>,
    /// Maximum number of bytes held for all rollouts together. [default: 70 % of the memory that is free at
    /// the start]
    #[arg(long, value_name = "BYTES", help_heading = CAPACITY)]
    memory_budget_bytes: Option<usize>,
    /// Directory of trajectories and artifacts that are written as files. [default: ./rollouts]
    #[arg(long, value_name = "DIR", help_heading = OUTPUT)]
    artifact_root: Option<PathBuf>,
    /// Directory of the journal, from which rollouts continue after a crash; 'off' writes none. [default:
    /// .journal/work in the artifact root]
    #[arg(long, value_name = "DIR", overrides_with = "journal", help_heading = OUTPUT)]
    journal: Option<PathBuf>,
    #[command(flatten)]
    traces: TraceOptions,
    #[command(flatten)]
    hardening: HardeningOptions,
    #[command(flatten)]
    host: HostOptions,
}

fn poll_secs(text: &str) -> Result<f64, String> {
    let secs: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    match (POLL_SECS_MIN..=POLL_SECS_MAX).contains(&secs) {
        true => Ok(secs),
        false => Err(format!("must be from {POLL_SECS_MIN} to {POLL_SECS_MAX}")),
    }
}

impl Work {
    fn raw_config(&self, artifact_root: &Path) -> Result<RawConfig> {
        let mut raw = self.host.raw_config()?;
        raw.max_concurrent = self.max_concurrent.or(raw.max_concurrent);
        raw.memory_budget_bytes = self.memory_budget_bytes.or(raw.memory_budget_bytes);
        raw.hardening.landlock = self.hardening.landlock.then_some(true).or(raw.hardening.landlock);
        match &self.journal {
            Some(off) if off.as_os_str() == "off" => {
                raw.journal = RawJournal { off: Some(true), ..RawJournal::default() };
            }
            Some(dir) => raw.journal = RawJournal { dir: Some(dir.clone()), off: None, ..raw.journal },
            None if raw.journal.off != Some(true) => {
                raw.journal.dir.get_or_insert_with(|| artifact_root.join(JOURNAL_DIR));
            }
            None => {}
        }
        Ok(raw)
    }

    /// Works until a stop signal. `start_threads` is called after privileges are dropped.
    pub(crate) fn run(mut self, start_threads: impl FnOnce()) -> Result<Exit> {
        self.host.rollout.pull(&mut self.plugin)?;
        let artifact_root = match &self.artifact_root {
            Some(root) => Some(root.clone()),
            None => self.host.raw_config()?.artifact_root,
        };
        let artifact_root = artifact_root.unwrap_or_else(|| PathBuf::from("rollouts"));
        let config = self.raw_config(&artifact_root)?.resolve()?;
        let key = setup::key_from_env("--key-env", self.key_env.as_deref())?;
        std::fs::create_dir_all(&artifact_root)
            .with_context(|| format!("cannot create the artifact root {}", artifact_root.display()))?;
        self.harden(&config, &artifact_root)?;
        start_threads();
        let runtime = setup::runtime()?;
        runtime.spawn(lifecycle::feed_watchdog());
        let exit = self.work(&runtime, &config, &artifact_root, key);
        // Remaining work, such as a slow write, is not awaited.
        runtime.shutdown_background();
        exit
    }

    /// Drops the privileges and the access to files that the work does not need.
    fn harden(&self, config: &Config, artifact_root: &Path) -> Result<()> {
        let rollout = &self.host.rollout;
        let read = [Some(&self.plugin), rollout.grader.as_ref()].into_iter().flatten();
        let cache = rollout.plugin.load.cache_dir(config);
        let written = [Some(artifact_root.to_owned()), cache, config.journal.dir(artifact_root)];
        self.hardening.apply(config, read, written)
    }

    fn work(
        &self,
        runtime: &Runtime,
        config: &Config,
        artifact_root: &Path,
        key: Option<Secret>,
    ) -> Result<Exit> {
        let rollout = &self.host.rollout;
        let (journal, unfinished) = serve::open_journal(config, artifact_root)?;
        let journal_handle = journal.clone();
        let options = Options {
            artifact_root: config.writes_files().then(|| artifact_root.to_owned()),
            artifact_bounds: config.artifacts,
            journal,
            ..Options::default()
        };
        let assembled = rollout.host(runtime, rollout.sources(&self.plugin), config, options)?;
        let host = &assembled.host;
        // The rules must be set before rollouts resume that an earlier process claimed under other rules.
        host.runtime().transport().set_rules(config.network.clone());
        if host.grader().is_none() && host.form() == AgentForm::Workflow {
            let why =
                "it has no grader and none is given by --grader, so that no rollout would have a reward";
            return Err(PluginFault(format!("{}: {why}", self.plugin.display())).into());
        }
        setup::print_judge(&assembled);
        let _within = runtime.enter();
        let serving = Serving::new(host.clone(), serve::file_stem(&self.plugin));
        let dialect = AgentLightning::new(AgentLightningSettings {
            serving: serving.clone(),
            url: self.agl.clone(),
            key,
            fields: RowFields { prompt: self.prompt_field.clone(), label: self.label_field.clone() },
            interval: Duration::from_secs_f64(self.poll_secs),
        })
        .context("--agl")?;
        let access =
            Access { server_key: None, is_keyed: false, allowed_hosts: None, allowed_origins: Vec::new() };
        let dialects: Vec<std::sync::Arc<dyn rollout_server::dialect::Dialect>> =
            vec![std::sync::Arc::new(dialect.clone())];
        let server = Server::new(ServerSettings {
            serving,
            dialects,
            access,
            instance_id: None,
            worker: None,
            is_encrypted: false,
        });
        serve::log_loaded(&self.plugin, &assembled, config, artifact_root);
        if let Some(dir) = config.journal.dir(artifact_root) {
            journal::store_components(&dir, host, &self.plugin, rollout.grader.as_deref())?;
        }
        let traces = self.traces.start(runtime, host.metrics())?;
        serve::resume(runtime, &server, unfinished)?;
        let exit = runtime.block_on(work(config, &dialect, &server, traces));
        if let Some(journal) = journal_handle {
            journal.close();
        }
        exit
    }
}

async fn work(
    config: &Config,
    dialect: &AgentLightning,
    server: &Server,
    traces: Option<Traces>,
) -> Result<Exit> {
    let mut stop = setup::StopSignal::new()?;
    serve::hook("on-start", config.on_start.as_deref(), &mut stop).await?;
    let claiming = dialect.clone();
    let mut claiming = tokio::spawn(async move { claiming.run().await });
    let status = format!("working for {}", dialect.gateway());
    outln!("{status}");
    lifecycle::ready(&status);

    let refused = tokio::select! {
        () = stop.next() => None,
        ended = &mut claiming => ended.context("the loop that claims rollouts panicked")?.err(),
    };
    lifecycle::stopping(config.drain);
    let load = server.load();
    tracing::info!(
        drain_secs = config.drain.as_secs_f64(),
        running = load.running,
        queued = load.queued,
        "draining"
    );
    let deadlines = ShutdownDeadlines::within(config.drain);
    let is_done = tokio::select! {
        is_done = server.drain_completely(&deadlines) => is_done,
        () = stop.next() => {
            let load = server.load();
            tracing::warn!(running = load.running, queued = load.queued, "stopped by a second signal");
            server.log_unreported();
            false
        }
    };
    setup::flush(traces).await;
    serve::hook("on-stop", config.on_stop.as_deref(), &mut stop).await?;
    match refused {
        Some(refused) => Err(refused.into()),
        None if is_done => Ok(Exit::Done),
        None => Ok(Exit::NotDone),
    }
}
