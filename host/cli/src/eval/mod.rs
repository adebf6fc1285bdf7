//! `eval`: runs a plugin over a data set.

mod regrade;
mod watch;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::data::DataOptions;
use super::model::ModelOptions;
use super::options::{HostOptions, TraceOptions};
use super::print::{counted, errln, out, outln};
use super::view::View;
use super::{DATA, Exit, OUTPUT, journal, setup};
use rollout_assembly::config::{Config, RawConfig, RawJournal, SyncWhen};
use rollout_assembly::{Assembled, Options};
use rollout_core::error::Fault;
use rollout_eval as eval;
use rollout_eval::rows::Selection;
use rollout_eval::run::{End, Work};
use rollout_eval::{DataSet, Manifest, Opened, ResultsDir, Resume, RolloutJournal, Row, Summary, Tally};
use rollout_rollout::{AgentForm, Host, JournalRetention, JournalSettings};
use watch::Watch;

/// Default number of concurrent rollouts.
const CONCURRENCY: u32 = 64;

/// Size of a journal's segment. An evaluation needs less than a server.
const SEGMENT_BYTES: u64 = 8 << 20;

/// Runs a plugin over a data set and summarises the rewards.
///
/// An environment is played by the model, which is offered its tools. --split plays the tasks of one of its splits.
/// Every rollout writes one line to OUT/results.jsonl and a trajectory below OUT/rollouts. After
/// Ctrl-C or a crash, the same command with --out OUT continues, also within rollouts: OUT/journal
/// has the answers of models. --n and --limit may then be raised and --base-url may change.
/// A failure of the model or the host leaves a rollout unscored; rewards are never invented.
#[derive(Debug, Args)]
#[command(
    override_usage = "rollout-host eval [OPTIONS] --data <FILE> --model <NAME> <PLUGIN>\n       \
    rollout-host eval [OPTIONS] --replay <DIR> [PLUGIN]",
    // Unused when an evaluation is graded again.
    mut_arg("data", |data| data.required(false).required_unless_present_any(["replay", "split"])),
    mut_arg("name", |name| name.required(false).required_unless_present("replay").default_value("mock").hide_default_value(true)),
    after_help = "Exit codes: 0 every rollout has a reward; 1 some have none and the plugin is at fault;\n\
    2 not done, or some have none and the model or the host is at fault (--retry-unscored runs those again).\n\n\
    Examples:\n  rollout-host eval my_agent.wasm --data rows.jsonl --model mock\n  \
    rollout-host eval my_agent.wasm --data rows.jsonl --n 4 --model gpt-x --base-url https://HOST/v1 --api-key-env KEY\n  \
    rollout-host eval --replay evals/my_agent-rows-1700000000 --grader stricter.wasm"
)]
pub(super) struct Eval {
    /// The component with the workflow, agent loop or environment. [default with --replay: that of the evaluation]
    #[arg(required_unless_present = "replay")]
    plugin: Option<PathBuf>,
    /// Grades the evaluation with results in DIR again and writes to another directory. Workflows are
    /// replayed from its journal without calling a model; graders run again.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["data", "split", "name", "n", "limit", "offset", "shuffle"])]
    replay: Option<PathBuf>,
    /// Number of rollouts of each row.
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    n: u32,
    /// Maximum number of concurrent rollouts; fewer if the machine has no room. [default:
    /// max-concurrent of --config, or 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    concurrency: Option<u32>,
    #[command(flatten)]
    data: DataOptions,
    #[command(flatten)]
    choice: Choice,
    #[command(flatten)]
    model: ModelOptions,
    /// Directory of the results. [default: evals/PLUGIN-DATA-TIME]
    #[arg(long, value_name = "DIR", help_heading = OUTPUT)]
    out: Option<PathBuf>,
    /// Serves pages with the results at the end, as the command view does, until the program is stopped.
    #[arg(long, help_heading = OUTPUT, hide_short_help = true)]
    view: bool,
    /// Writes no trajectories, artifacts or logs.
    #[arg(long, help_heading = OUTPUT)]
    no_trajectories: bool,
    /// Whether OUT/journal records requests and answers, so that rollouts continue after a crash and
    /// can be replayed. [default: on, unless journal.off is true in --config]
    #[arg(long, value_name = "on|off", hide_possible_values = true, help_heading = OUTPUT)]
    journal: Option<Whether>,
    /// Runs rollouts without a reward again.
    #[arg(long, help_heading = OUTPUT)]
    retry_unscored: bool,
    /// Starts over; earlier results are moved to OUT.old-1 and so on.
    #[arg(long, help_heading = OUTPUT)]
    fresh: bool,
    /// Minimum reward of a rollout that counts as passed, for pass@k.
    #[arg(long, value_name = "X", default_value_t = 1.0, help_heading = OUTPUT)]
    pass_threshold: f64,
    #[command(flatten)]
    traces: TraceOptions,
    #[command(flatten)]
    host: HostOptions,
}

/// Value of `--journal`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Whether {
    /// Writes a journal.
    On,
    /// Writes no journal.
    Off,
}

/// Selection of rows.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = DATA)]
struct Choice {
    /// Shuffles the rows, seeded by --seed.
    #[arg(long)]
    shuffle: bool,
    /// Seed of --shuffle.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "shuffle")]
    seed: u64,
    /// Skips this number of rows at the beginning.
    #[arg(long, value_name = "ROWS", default_value_t = 0)]
    offset: usize,
    /// Runs at most this number of rows.
    #[arg(long, value_name = "ROWS")]
    limit: Option<usize>,
}

impl Choice {
    fn selection(self) -> Selection {
        let Self { shuffle, seed, offset, limit } = self;
        Selection { seed: shuffle.then_some(seed), offset, limit }
    }

    /// Checks that some of `count` rows are selected.
    fn check(self, selected: &[Row], count: u64) -> Result<()> {
        if selected.is_empty() {
            let Self { offset, limit, .. } = self;
            let limit = limit.map_or(String::new(), |limit| format!(" and --limit {limit}"));
            bail!("--offset {offset}{limit} select none of the {count} rows; lower --offset");
        }
        Ok(())
    }
}

impl Eval {
    pub(crate) fn run(mut self) -> Result<Exit> {
        if let Some(plugin) = &mut self.plugin {
            self.host.rollout.pull(plugin)?;
        }
        if !self.pass_threshold.is_finite() {
            bail!("--pass-threshold is {}, not a finite number", self.pass_threshold);
        }
        match (&self.replay, &self.plugin) {
            (Some(dir), _) => self.regrade(dir),
            (None, Some(plugin)) => self.run_rows(plugin),
            (None, None) => bail!("no component to evaluate; give <PLUGIN> or --replay DIR"),
        }
    }

    /// Runs the rows of the data set, or continues an earlier run in the same directory.
    fn run_rows(&self, plugin: &Path) -> Result<Exit> {
        let started = Instant::now();
        let key = self.model.key()?;
        let out = self.out.clone().unwrap_or_else(|| self.default_out(plugin));
        let config = self.resolved_config(&out)?;
        let loaded = self.data.load_file()?;
        let runtime = setup::runtime()?;
        // Checked before the component is compiled, which may take long.
        let (model, _mock) = runtime.block_on(self.model.endpoint(key, config.judge.as_ref()))?;
        let stop = CancellationToken::new();
        let watch = Arc::new(Watch::new(stop.clone()));
        let rollouts = if self.no_trajectories { None } else { Some(absolute(&out.join("rollouts"))?) };
        let sources = self.host.rollout.sources(plugin);
        let options =
            Options { artifact_root: rollouts, observer: Some(watch.clone()), ..Options::default() };
        let assembled = self.host.rollout.host(&runtime, sources, &config, options)?;
        let host = &assembled.host;
        let selected = self.choice.selection();
        let (data, count) = runtime.block_on(self.data.or_tasks(loaded, host, selected))?;
        self.choice.check(&data.rows, count)?;
        // An agent loop and an environment may rate themselves. A rollout of a workflow would end unscored.
        if host.grader().is_none() && host.form() == AgentForm::Workflow {
            bail!("the plugin has no grader; give one with --grader FILE");
        }
        setup::print_judge(&assembled);
        let manifest = self.manifest(plugin, &config, &data, &assembled)?;
        let resume = Resume { retry_unscored: self.retry_unscored, fresh: self.fresh };
        let opened = ResultsDir::open(&out, &manifest, resume)?;
        let journal = self.open_journal(plugin, &config, host, &opened.results)?;
        let traces = self.traces.start(&runtime, host.metrics())?;
        let work = Work {
            rows: data.rows,
            runs_per_row: self.n as usize,
            // The machine or the plugin's limits may allow fewer.
            concurrency: config.max_concurrent.min(host.load().max_concurrent) as usize,
            model,
            journal,
        };
        runtime.block_on(async {
            let exit = self.evaluate(opened, work, host, &watch, stop, started).await;
            setup::flush(traces).await;
            exit
        })
    }

    fn resolved_config(&self, out: &Path) -> Result<Config> {
        let mut raw = self.host.raw_config()?;
        raw.journal = self.raw_journal(&raw, out);
        let requested = self.concurrency.or(raw.max_concurrent);
        raw.max_concurrent = requested.or(Some(CONCURRENCY));
        let max_concurrent_is_set = requested.is_some();
        Ok(Config { max_concurrent_is_set, ..raw.resolve()? })
    }

    /// Returns the settings of the journal beside the results. It stores everything except keys. Written
    /// data survives a crash of the process, so by default it is not synced.
    fn raw_journal(&self, raw: &RawConfig, out: &Path) -> RawJournal {
        let RawJournal { off, sync, .. } = raw.journal;
        match (self.journal, off) {
            (Some(Whether::Off), _) | (None, Some(true)) => {
                RawJournal { off: Some(true), ..RawJournal::default() }
            }
            _ => RawJournal {
                dir: Some(out.join(journal::EVALUATION_DIR)),
                sync: sync.or(Some(SyncWhen::Never)),
                ..RawJournal::default()
            },
        }
    }

    /// Opens the journal beside the results, unless it is switched off, and has the host write to it.
    fn open_journal(
        &self,
        plugin: &Path,
        config: &Config,
        host: &Host,
        results: &ResultsDir,
    ) -> Result<Option<RolloutJournal>> {
        let Some(settings) = config.journal.settings(results.dir()) else { return Ok(None) };
        let (retention, segment_bytes) = (JournalRetention::default(), SEGMENT_BYTES);
        let (rollouts, unfinished) = journal::open(
            JournalSettings { retention, segment_bytes, segments_ahead: 1, ..settings },
            config,
        )?;
        let dir = results.dir().join(journal::EVALUATION_DIR);
        journal::store_components(&dir, host, plugin, self.host.rollout.grader.as_deref())?;
        host.runtime().keep_in(rollouts.clone());
        let journal = RolloutJournal::new(rollouts, unfinished, results, self.retry_unscored);
        Ok(Some(journal.with_context(|| format!("cannot read the journal {}", dir.display()))?))
    }

    /// Runs the remaining attempts with a progress bar, then writes and prints the summary.
    async fn evaluate(
        &self,
        opened: Opened,
        work: Work,
        host: &Host,
        watch: &Watch,
        stop: CancellationToken,
        started: Instant,
    ) -> Result<Exit> {
        let mut tally = self.tally(&opened, &work);
        let Opened { mut results, .. } = opened;
        watch.begin(work.rows.len() * work.runs_per_row, &tally);
        let mut signals = setup::StopSignal::new()?;
        let stopping = stop.clone();
        let signal = tokio::spawn(async move {
            signals.next().await;
            stopping.cancel();
        });
        let end = eval::run::run(host, work, &mut results, &mut tally, stop, |tally| watch.show(tally));
        let end = end.await;
        signal.abort();
        watch.end();
        let end = end?;
        let mut summary = tally.summary();
        summary.wall_secs = Some((started.elapsed().as_secs_f64() * 1e3).round() / 1e3);
        results.write_summary(&summary)?;
        self.report(&summary, results.dir());
        self.advise(end, &summary, results.dir(), watch.unavailable());
        // A rollout in which the host panicked has no result.
        let is_whole = end == End::Complete && summary.rollouts >= summary.rollouts_planned;
        if self.view && end != End::Stopped {
            View::of(results.dir()).serve().await?;
        }
        Ok(if is_whole { exit(&summary) } else { Exit::NotDone })
    }

    /// Reports the earlier results and returns their tally.
    fn tally(&self, opened: &Opened, work: &Work) -> Tally {
        let Opened { finished, dropped, moved_to, .. } = opened;
        if let Some(old) = moved_to {
            errln!("moved the earlier results to {}", old.display());
        }
        if *dropped > 0 {
            errln!("running {} without a reward again", counted(*dropped, "rollout"));
        }
        if !finished.is_empty() {
            errln!("continuing after {}", counted(finished.len(), "finished rollout"));
        }
        let unfinished = work.journal.as_ref().map(RolloutJournal::unfinished_count);
        if let Some(unfinished) = unfinished.filter(|count| *count > 0) {
            errln!("continuing within {}", counted(unfinished, "rollout"));
        }
        let mut tally = Tally::new(work.runs_per_row, self.pass_threshold).with_rows_planned(work.rows.len());
        finished.iter().for_each(|line| tally.add(line));
        tally
    }

    fn report(&self, summary: &Summary, dir: &Path) {
        // Standard output may be closed; the results are on disk.
        let width =
            console::Term::stdout().size_checked().map_or(eval::table::WIDTH, |(_, width)| width.into());
        out!("{}", eval::table::render(summary, width));
        outln!("\nresults       {}", dir.join("results.jsonl").display());
        if !self.no_trajectories {
            outln!("trajectories  {}", dir.join("rollouts").display());
        }
        outln!("in a browser  rollout-host view {}", dir.display());
    }

    /// Prints advice on the next step if work is left.
    fn advise(&self, end: End, summary: &Summary, dir: &Path, unavailable: Option<String>) {
        let again = format!("the same command with --out {}", dir.display());
        let Summary { rollouts, rollouts_planned, unscored, .. } = summary;
        if let Some(why) = unavailable {
            errln!("stopped after {rollouts} of {rollouts_planned} rollouts: {why}");
        } else if end == End::Stopped {
            errln!("stopped after {rollouts} of {rollouts_planned} rollouts; {again} continues");
        }
        if *unscored > 0 {
            let what = if *unscored == 1 { "1 rollout has" } else { &format!("{unscored} rollouts have") };
            let them = if *unscored == 1 { "it" } else { "them" };
            errln!("{what} no reward; {again} --retry-unscored runs {them} again");
            if dir.join(journal::EVALUATION_DIR).is_dir() {
                self.advise_replay(summary, dir);
            }
        }
    }

    /// Prints the command that replays a rollout, for each kind of failure.
    fn advise_replay(&self, summary: &Summary, dir: &Path) {
        let firsts = summary.unscored_by_kind.iter();
        for (kind, id) in firsts.filter_map(|(kind, of_it)| Some((kind, of_it.first_rollout.as_ref()?))) {
            let config = self.host.config_path().map(|path| format!(" --config {}", path.display()));
            let config = config.unwrap_or_default();
            errln!(
                "to replay one with '{kind}' (add the same options): rollout-host replay {id} --journal {}{config}",
                dir.display()
            );
        }
    }

    /// Returns the manifest of the run: digests of plugin, grader and data, and all settings that results
    /// depend on.
    fn manifest(
        &self,
        plugin: &Path,
        config: &Config,
        data: &DataSet,
        assembled: &Assembled,
    ) -> Result<Manifest> {
        let mut settings = Map::new();
        let mut set = |name: &str, value: Value| settings.insert(name.to_owned(), value);
        set("n", self.n.into());
        set("limit", json!(self.choice.limit));
        if self.choice.shuffle {
            set("seed", self.choice.seed.into());
        }
        if self.choice.offset > 0 {
            set("offset", self.choice.offset.into());
        }
        for (name, value) in self.data.settings()? {
            set(name, value);
        }
        set("model", self.model.name.as_str().into());
        set("base_url", json!(self.model.base_url));
        set("pass_threshold", self.pass_threshold.into());
        if self.model.base_url.is_none() {
            set("mock_error_rate", self.model.mock_error_rate.into());
            set("mock_seed", self.model.mock_seed.into());
        }
        self.set_host_settings(&mut settings, config, assembled);
        Ok(Manifest {
            format: eval::manifest::FORMAT,
            host_version: env!("CARGO_PKG_VERSION").to_owned(),
            plugin_digest: assembled.host.deployment().digest().to_owned(),
            plugin_file: plugin.display().to_string(),
            grader_digest: assembled.host.deployment().grader_digest().map(str::to_owned),
            grader_file: self.host.rollout.grader.as_ref().map(|path| path.display().to_string()),
            data_digest: data.digest.clone(),
            data_file: self.data.name(),
            settings,
        })
    }

    /// Sets the settings of the host that results depend on.
    fn set_host_settings(&self, settings: &mut Map<String, Value>, config: &Config, assembled: &Assembled) {
        let judge = config.judge.as_ref().map(|judge| json!({"url": judge.url, "model": judge.model}));
        let limits = config.limits.table().map(|(name, max)| (name.to_owned(), json!(max)));
        let all = [
            ("judge", judge),
            ("plugin_config", Some(json!(assembled.settings.values))),
            ("grader_config", assembled.grader_settings.as_ref().map(|grader| json!(grader.values))),
            ("limits", Some(Value::Object(limits.into_iter().collect()))),
            (
                "clock_begins",
                (!config.clock_begins.is_default()).then(|| json!(config.clock_begins.to_string())),
            ),
            ("tools_digest", assembled.tools_digest.as_deref().map(Value::from)),
        ];
        for (name, value) in all {
            match value {
                Some(value) => drop(settings.insert(name.to_owned(), value)),
                None => drop(settings.remove(name)),
            }
        }
    }

    fn default_out(&self, plugin: &Path) -> PathBuf {
        let stem = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        PathBuf::from("evals").join(format!("{}-{}-{}", stem(plugin), self.data.stem(), seconds_now()))
    }
}

/// Returns the Unix time, which is part of the names of directories.
fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("cannot tell where {} is", path.display()))
}

/// Returns the exit code. A fault of the model or the host, which a retry may solve, takes precedence over
/// one of the plugin.
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
