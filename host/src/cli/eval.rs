//! `eval`: a plugin over a data set.

use crate::cli::print::{errln, out, outln};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::Exit;
use super::model::ModelOptions;
use super::plugin_file::CacheOptions;
use super::setup::{self, JudgeOptions, Loaded};
use crate::config::{Assignment, Config, RawLimits};
use crate::error::Fault;
use crate::eval::run::{End, Work};
use crate::eval::{self, DataSet, Journal, Manifest, Opened, Resume, Summary, Tally};
use crate::outbound::Secret;
use crate::rollout::AgentForm;

/// Runs a plugin over a data set and sums up the rewards.
///
/// Every rollout leaves one line in OUT/results.jsonl and a trajectory below
/// OUT/rollouts. Stopped by Ctrl-C or killed, the same command goes on where it was.
/// A failure of model or host leaves a rollout unscored; no reward is ever made up.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 every rollout has a reward; 1 some have none through the plugin's fault;\n\
    2 not done, or some have none through the fault of model or host (--retry-unscored runs those again).\n\n\
    Examples:\n  rollout-host eval my_agent.wasm --data rows.jsonl --model mock\n  \
    rollout-host eval my_agent.wasm --data rows.jsonl --n 4 --model gpt-x --base-url https://HOST/v1 --api-key-env KEY"
)]
pub(super) struct Eval {
    /// The component with the workflow or agent loop.
    plugin: PathBuf,
    /// A component with the grader, in place of the plugin's own.
    #[arg(long, value_name = "FILE")]
    grader: Option<PathBuf>,
    /// Rows: .jsonl, .json, .csv or .parquet with user_prompt (or prompt), and
    /// system_prompt, ground_truth, metadata as far as there are any.
    #[arg(long, value_name = "FILE")]
    data: PathBuf,
    #[command(flatten)]
    model: ModelOptions,
    /// Times that every row is run.
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    n: u32,
    /// Rollouts at once.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    concurrency: u32,
    /// Runs only so many rows from the beginning.
    #[arg(long, value_name = "ROWS")]
    limit: Option<usize>,
    /// Reward from which a rollout counts as passed, for pass@k.
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pass_threshold: f64,
    /// Settings in TOML: [plugin] for the plugin, [limits] and [model] for the host.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Collector of traces, by OTLP over HTTP: a trace a rollout, a span a phase. Without
    /// a path, /v1/traces is added.
    #[arg(long, value_name = "URL")]
    otlp: Option<String>,
    /// Sets one value of the plugin's configuration, over what [plugin] says; nested keys
    /// are joined by dots. `rollout-host config PLUGIN` lists what there is.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<Assignment>,
    #[command(flatten)]
    cache: CacheOptions,
    /// Where results go. [default: evals/PLUGIN-DATA-TIME]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Runs again what has no reward.
    #[arg(long)]
    retry_unscored: bool,
    /// Starts anew; what is in OUT is kept beside it.
    #[arg(long)]
    fresh: bool,
    #[command(flatten)]
    params: setup::ParamOptions,
    #[command(flatten)]
    judge: JudgeOptions,
    #[command(flatten)]
    limits: RawLimits,
}

impl Eval {
    pub fn run(self) -> Result<Exit> {
        if !self.pass_threshold.is_finite() {
            bail!("--pass-threshold is {}, not a finite number", self.pass_threshold);
        }
        let key = self.model.key()?;
        let mut raw = setup::raw_config(self.config.as_deref())?;
        raw.set.clone_from(&self.set);
        self.params.put_over(&mut raw.model);
        self.judge.put_over(&mut raw.judge);
        raw.limits = self.limits.clone().or(raw.limits);
        raw.max_concurrent = Some(self.concurrency);
        let config = raw.resolve()?;
        let mut data = eval::rows::load(&self.data)?;
        if let Some(limit) = self.limit {
            data.rows.truncate(limit);
        }
        let out = self.out.clone().unwrap_or_else(|| self.default_out());
        let rollouts = out.join("rollouts");
        let runtime = setup::runtime()?;
        let loaded = setup::host(
            &runtime,
            &self.plugin,
            self.grader.as_deref(),
            &config,
            &self.cache,
            Some(absolute(&rollouts)?),
        )?;
        // An agent loop may rate itself; what it does not rate ends unscored.
        if loaded.grader_digest.is_none() && loaded.host.form() == AgentForm::Workflow {
            bail!("the plugin has no grader; give one by --grader FILE");
        }
        loaded.say_who_judges();
        let manifest = self.manifest(&config, &data, &loaded);
        let resume = Resume { retry_unscored: self.retry_unscored, fresh: self.fresh };
        let opened = Journal::open(&out, &manifest, resume)?;
        let traces = setup::traces(&runtime, self.otlp.as_deref(), &loaded)?;
        runtime.block_on(async {
            let exit = self.evaluate(opened, data, &loaded, key).await;
            setup::flush(traces).await;
            exit
        })
    }

    async fn evaluate(
        &self,
        opened: Opened,
        data: DataSet,
        loaded: &Loaded,
        key: Option<Secret>,
    ) -> Result<Exit> {
        let (endpoint, _mock) = self.model.endpoint(key).await?;
        let Opened { mut journal, finished, dropped, torn: _, moved_to } = opened;
        if let Some(old) = moved_to {
            errln!("what was there is kept in {}", old.display());
        }
        if dropped > 0 {
            errln!("running {dropped} unscored rollouts again");
        }
        let runs_per_row = self.n as usize;
        let mut tally = Tally::new(runs_per_row, self.pass_threshold);
        finished.iter().for_each(|line| tally.add(line));
        if !finished.is_empty() {
            errln!("going on after {} finished rollouts", finished.len());
        }
        let bar = progress(data.rows.len() * runs_per_row, &tally);
        let stop = CancellationToken::new();
        let stopping = stop.clone();
        let mut signals = setup::StopSignal::new()?;
        let signal = tokio::spawn(async move {
            signals.next().await;
            stopping.cancel();
        });
        let work = Work {
            rows: data.rows,
            runs_per_row,
            // The machine, or the plugin itself, may have room for fewer.
            concurrency: self.concurrency.min(loaded.host.load().max_concurrent) as usize,
            endpoint: Arc::new(endpoint),
        };
        let end =
            eval::run::run(&loaded.host, work, &mut journal, &mut tally, stop, |tally| show(&bar, tally))
                .await;
        signal.abort();
        bar.finish_and_clear();
        let end = end?;
        let summary = tally.summary();
        journal.write_summary(&summary)?;
        out!("{}", eval::table::render(&summary));
        let dir = journal.dir();
        outln!(
            "\nresults       {}\ntrajectories  {}",
            dir.join("results.jsonl").display(),
            dir.join("rollouts").display()
        );
        if end == End::Stopped {
            errln!("stopped; the same command with --out {} goes on from here", dir.display());
            return Ok(Exit::NotDone);
        }
        Ok(exit(&summary))
    }

    fn manifest(&self, config: &Config, data: &DataSet, loaded: &Loaded) -> Manifest {
        let mut settings = Map::new();
        let mut set = |name: &str, value: Value| settings.insert(name.to_owned(), value);
        set("n", self.n.into());
        set("limit", json!(self.limit));
        set("model", self.model.name.as_str().into());
        set("base_url", json!(self.model.base_url));
        set("pass_threshold", self.pass_threshold.into());
        if let Some(judge) = &config.judge {
            set("judge", json!({"url": judge.url, "model": judge.model}));
        }
        set("plugin_config", json!(loaded.settings.values));
        if let Some(grader) = &loaded.grader_settings {
            set("grader_config", json!(grader.values));
        }
        let limits = config.limits.table().map(|(name, max)| (name.to_owned(), json!(max)));
        set("limits", Value::Object(limits.into_iter().collect()));
        if let Some(digest) = &loaded.tools_digest {
            set("tools_digest", digest.as_str().into());
        }
        if self.model.base_url.is_none() {
            set("mock_error_rate", self.model.mock_error_rate.into());
            set("mock_seed", self.model.mock_seed.into());
        }
        Manifest {
            format: eval::manifest::FORMAT,
            host_version: env!("CARGO_PKG_VERSION").to_owned(),
            plugin_digest: loaded.plugin_digest.clone(),
            plugin_file: self.plugin.display().to_string(),
            grader_digest: loaded.grader_digest.clone(),
            grader_file: self.grader.as_ref().map(|path| path.display().to_string()),
            data_digest: data.digest.clone(),
            data_file: self.data.display().to_string(),
            settings,
        }
    }

    fn default_out(&self) -> PathBuf {
        let stem = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        PathBuf::from("evals").join(format!("{}-{}-{now}", stem(&self.plugin), stem(&self.data)))
    }
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("cannot tell where {} is", path.display()))
}

fn progress(rollouts: usize, tally: &Tally) -> ProgressBar {
    let style =
        ProgressStyle::with_template("{bar:30} {pos}/{len} rollouts  {msg}  {elapsed} elapsed, {eta} to go");
    let bar = ProgressBar::new(rollouts as u64);
    // The template is fixed; were it wrong, the default one would do.
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.reset_eta();
    show(&bar, tally);
    bar
}

fn show(bar: &ProgressBar, tally: &Tally) {
    bar.set_position(tally.rollouts() as u64);
    let unscored = match tally.unscored() {
        0 => String::new(),
        unscored => format!(", {unscored} unscored"),
    };
    bar.set_message(match tally.reward_mean() {
        Some(mean) => format!("mean reward {mean:.3}{unscored}"),
        None => format!("no reward yet{unscored}"),
    });
}

/// Whose fault it is that some rollouts have no reward. Trouble that is over when the
/// evaluation is run again counts before trouble that is not.
fn exit(summary: &Summary) -> Exit {
    let at_fault = |fault: Fault| {
        summary
            .unscored_by_kind
            .values()
            .any(|kind| kind.faults.get(fault.as_str()).is_some_and(|count| *count > 0))
    };
    if summary.unscored_by_kind.is_empty() {
        Exit::Done
    } else if at_fault(Fault::Model) || at_fault(Fault::Host) {
        Exit::NotDone
    } else {
        Exit::Plugin
    }
}
