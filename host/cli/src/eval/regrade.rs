//! `eval --replay`: grades an evaluation again.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, bail};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::watch::Watch;
use super::{CONCURRENCY, Eval, absolute, seconds_now};
use crate::print::{counted, errln, out, outln};
use crate::{Exit, journal, setup};
use rollout_assembly::config::Config;
use rollout_assembly::{Assembled, Options, Sources};
use rollout_core::error::Fault;
use rollout_eval::regrade::{self, Evaluated};
use rollout_eval::rewards::Rewards;
use rollout_eval::run::End;
use rollout_eval::{Manifest, Opened, ResultLine, ResultsDir, Resume, Tally};
use rollout_rollout::Host;

/// Files of the components that take part in grading again.
struct Components {
    plugin: PathBuf,
    grader: Option<PathBuf>,
}

impl Eval {
    /// Grades the evaluation with results in `dir` again.
    pub(super) fn regrade(&self, dir: &Path) -> Result<Exit> {
        let started = Instant::now();
        let evaluated = evaluation(dir)?;
        let components = self.components(&evaluated);
        let config = self.config_of(&evaluated, &components)?;
        check_judge(&config, &evaluated, &components)?;
        let out = self.out.clone().unwrap_or_else(|| default_out(dir));
        if absolute(&out)? == absolute(dir)? || same_file(&out, dir) {
            bail!("--out is the directory of --replay, whose results are not overwritten; give another one");
        }
        let runtime = setup::runtime()?;
        let stop = CancellationToken::new();
        let watch = Arc::new(Watch::new(stop.clone()));
        let rollouts = if self.no_trajectories { None } else { Some(absolute(&out.join("rollouts"))?) };
        let options =
            Options { artifact_root: rollouts, observer: Some(watch.clone()), ..Options::default() };
        let sources = Sources::of(&components.plugin, components.grader.as_deref());
        let assembled = self.host.rollout.host(&runtime, sources, &config, options)?;
        if assembled.host.grader().is_none() {
            bail!("the plugin has no grader; give one with --grader FILE");
        }
        setup::print_judge(&assembled);
        let manifest = self.manifest_of_regraded(dir, &config, &evaluated, &components, &assembled)?;
        let resume = Resume { retry_unscored: self.retry_unscored, fresh: self.fresh };
        let opened = ResultsDir::open(&out, &manifest, resume)?;
        let traces = self.traces.start(&runtime, assembled.host.metrics())?;
        runtime.block_on(async {
            let concurrency = config.max_concurrent.min(assembled.host.load().max_concurrent) as usize;
            let exit = self.grade(&assembled.host, &evaluated, opened, concurrency, &watch, stop, started);
            let exit = exit.await;
            setup::flush(traces).await;
            exit
        })
    }

    /// Returns the components from the options, or those of the evaluation.
    fn components(&self, evaluated: &Evaluated) -> Components {
        let stored = |digest: &str| journal::stored_component(&evaluated.journal, digest);
        let Manifest { plugin_digest, grader_digest, .. } = &evaluated.manifest;
        // If the plugin is its own grader, both digests are equal.
        let own_grader = grader_digest.as_ref().filter(|digest| *digest != plugin_digest);
        let given = self.host.rollout.grader.clone();
        Components {
            plugin: self.plugin.clone().unwrap_or_else(|| stored(plugin_digest)),
            grader: given.or_else(|| own_grader.map(|digest| stored(digest))),
        }
    }

    /// Returns the configuration from the options. If they do not configure the plugin, plugin and grader are
    /// configured as in the evaluation.
    fn config_of(&self, evaluated: &Evaluated, components: &Components) -> Result<Config> {
        let mut raw = self.host.raw_config()?;
        let requested = self.concurrency.or(raw.max_concurrent);
        raw.max_concurrent = requested.or(Some(CONCURRENCY));
        let mut config = Config { max_concurrent_is_set: requested.is_some(), ..raw.resolve()? };
        let earlier = |name: &str| match evaluated.manifest.settings.get(name) {
            Some(Value::Object(values)) => values.clone(),
            _ => Map::new(),
        };
        if config.plugin.is_none() {
            config.plugin = Some(earlier("plugin_config"));
            if components.grader.is_some() && config.grader.is_none() {
                let is_new = self.host.rollout.grader.is_some();
                config.grader = Some(if is_new { Map::new() } else { earlier("grader_config") });
            }
        }
        Ok(config)
    }

    fn manifest_of_regraded(
        &self,
        dir: &Path,
        config: &Config,
        evaluated: &Evaluated,
        components: &Components,
        assembled: &Assembled,
    ) -> Result<Manifest> {
        let earlier = &evaluated.manifest;
        let mut settings = earlier.settings.clone();
        settings.insert("graded_again".to_owned(), json!(absolute(dir)?));
        settings.insert("pass_threshold".to_owned(), self.pass_threshold.into());
        self.set_host_settings(&mut settings, config, assembled);
        let deployment = assembled.host.deployment();
        Ok(Manifest {
            host_version: env!("CARGO_PKG_VERSION").to_owned(),
            plugin_digest: deployment.digest().to_owned(),
            plugin_file: components.plugin.display().to_string(),
            grader_digest: deployment.grader_digest().map(str::to_owned),
            grader_file: components.grader.as_ref().map(|path| path.display().to_string()),
            settings,
            ..earlier.clone()
        })
    }

    /// Grades the remaining rollouts with a progress bar, then writes the summary and the rewards, and prints the
    /// comparison of the rewards.
    #[expect(clippy::too_many_arguments, reason = "all of an evaluation, once")]
    async fn grade(
        &self,
        host: &Host,
        evaluated: &Evaluated,
        opened: Opened,
        concurrency: usize,
        watch: &Watch,
        stop: CancellationToken,
        started: Instant,
    ) -> Result<Exit> {
        let Opened { mut results, finished, .. } = opened;
        if !finished.is_empty() {
            errln!("continuing after {}", counted(finished.len(), "graded rollout"));
        }
        let n = evaluated.manifest.settings.get("n").and_then(Value::as_u64).unwrap_or(1);
        let mut tally = Tally::new(usize::try_from(n).unwrap_or(usize::MAX), self.pass_threshold);
        finished.iter().for_each(|line| tally.add(line));
        watch.begin(evaluated.lines.len(), &tally);
        let mut signals = setup::StopSignal::new()?;
        let stopping = stop.clone();
        let signal = tokio::spawn(async move {
            signals.next().await;
            stopping.cancel();
        });
        let show = |tally: &Tally| watch.show(tally);
        let ran = regrade::run(host, evaluated, concurrency, &mut results, &mut tally, stop, show).await;
        signal.abort();
        watch.end();
        let (end, new) = ran?;
        let lines: Vec<ResultLine> = finished.into_iter().chain(new).collect();
        let mut summary = tally.summary();
        summary.wall_secs = Some((started.elapsed().as_secs_f64() * 1e3).round() / 1e3);
        results.write_summary(&summary)?;
        let rewards = evaluated.rewards(&lines);
        results.write_rewards(&rewards)?;
        out!("{}", rewards.render());
        outln!("\nrewards       {}", results.dir().join("rewards.json").display());
        outln!("results       {}", results.dir().join("results.jsonl").display());
        if let Some(why) = watch.unavailable() {
            errln!("stopped: {why}");
        }
        if end == End::Stopped {
            errln!("stopped; the same command with --out {} continues", results.dir().display());
            return Ok(Exit::NotDone);
        }
        Ok(exit(evaluated, &rewards, &lines))
    }
}

/// Reads the evaluation with results in `dir`.
fn evaluation(dir: &Path) -> Result<Evaluated> {
    if !dir.join("manifest.json").is_file() {
        bail!("{} has no manifest.json, so it is not the output of an evaluation", dir.display());
    }
    let journal = dir.join(journal::EVALUATION_DIR);
    if !journal.is_dir() {
        bail!(
            "the evaluation in {} has no journal, without which it cannot be graded again; run it with --journal on",
            dir.display()
        );
    }
    Ok(Evaluated::read(dir, journal)?)
}

/// Checks that there is a judge if the grader is the same and used one.
fn check_judge(config: &Config, evaluated: &Evaluated, components: &Components) -> Result<()> {
    let Some(judge) = evaluated.manifest.settings.get("judge") else { return Ok(()) };
    let same = evaluated.manifest.grader_digest.as_deref();
    let is_same_grader =
        components.grader.as_ref().map_or(same == Some(evaluated.manifest.plugin_digest.as_str()), |path| {
            same.is_some_and(|digest| *path == journal::stored_component(&evaluated.journal, digest))
        });
    if config.judge.is_none() && is_same_grader {
        let model = judge.get("model").and_then(Value::as_str).unwrap_or("?");
        bail!(
            "the grader used the judge '{model}' and needs one again; give --judge-model (with --judge-url) or \
             [judge] in --config, or another grader with --grader"
        );
    }
    Ok(())
}

/// Returns the default output directory, beside that of the evaluation.
fn default_out(dir: &Path) -> PathBuf {
    let name = dir.file_name().unwrap_or(dir.as_os_str()).to_string_lossy();
    dir.with_file_name(format!("{name}-graded-{}", seconds_now()))
}

fn same_file(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| std::fs::canonicalize(path).ok();
    real(one).is_some_and(|one| Some(one) == real(other))
}

/// Returns the exit code. Rollouts that could not be graded because their workflow had not finished are
/// ignored.
fn exit(evaluated: &Evaluated, rewards: &Rewards, lines: &[ResultLine]) -> Exit {
    let is_unchanged = |line: &ResultLine| {
        let same = |earlier: &&ResultLine| (earlier.row, earlier.run) == (line.row, line.run);
        line.stage.as_deref() != Some("grader")
            && line.kind.as_deref() != Some("nondeterministic")
            && evaluated.lines.iter().find(same).is_some_and(|earlier| earlier.kind == line.kind)
    };
    let new = lines.iter().filter(|line| line.reward.is_none() && !is_unchanged(line));
    let faults: Vec<&str> = new.filter_map(|line| line.fault.as_deref()).collect();
    let at_fault = |fault: Fault| faults.contains(&fault.as_str());
    if rewards.not_in_journal > 0 || at_fault(Fault::Model) || at_fault(Fault::Host) {
        Exit::NotDone
    } else if !faults.is_empty() {
        Exit::Plugin
    } else {
        Exit::Done
    }
}
