//! The command `fork`, which runs new rollouts that continue from a recorded one.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use tokio::task::JoinSet;

use super::model::ModelOptions;
use super::options::HostOptions;
use super::print::outln;
use super::replay::{check_exists, line, outcome};
use super::{Exit, OUTPUT, PluginFault, journal, setup};
use rollout_assembly::config::RawConfig;
use rollout_assembly::{Options, Sources};
use rollout_core::error::Fault;
use rollout_core::moments::Moments;
use rollout_eval as eval;
use rollout_rollout::{FailureKind, Finished, Outcome, StoredRollout};
use rollout_wire::id::RolloutId;

/// Runs new rollouts that share the first calls of a recorded one and then continue on their own, with new
/// calls of the model and their own random numbers.
///
/// Shared calls receive the recorded answers. The component is the one stored in the journal. If `serve` had
/// a --config with tools, limits or a judge, give the same one.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 every fork has a reward; 1 some have none and the plugin is at fault; 2 some have none and\n\
    the model or the host is at fault.\n\nExamples:\n  \
    rollout-host fork r1 --turn 2 --count 8 --model gpt-x --base-url https://HOST/v1 --api-key-env KEY\n  \
    rollout-host fork row-00007-run-0 --turn 1 --journal evals/my_agent-rows-1700000000 --model mock"
)]
pub(super) struct Fork {
    /// Id of the rollout; of the last one if several have this id.
    id: String,
    /// Number of calls of the model that the forks share with the rollout.
    #[arg(long, value_name = "K")]
    turn: u32,
    /// Number of forks.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    count: u32,
    /// Directory of the journal or of an evaluation's results, even while another process has it open.
    /// [default: the journal of a `serve` with the same --config]
    #[arg(long, value_name = "DIR", overrides_with = "journal")]
    journal: Option<PathBuf>,
    /// Component to run instead of the one that is stored in the journal. It must make the same shared calls.
    #[arg(long, value_name = "FILE")]
    plugin: Option<PathBuf>,
    #[command(flatten)]
    model: ModelOptions,
    /// Directory of trajectories, artifacts and logs. [default: not written]
    #[arg(long, value_name = "DIR", help_heading = OUTPUT)]
    out: Option<PathBuf>,
    #[command(flatten)]
    host: HostOptions,
}

impl Fork {
    pub(crate) fn run(self) -> Result<Exit> {
        let key = self.model.key()?;
        let raw: RawConfig = self.host.raw_config()?;
        let config = raw.resolve()?;
        let dir = journal::find(self.journal.as_deref(), &config)?;
        let parent = self.parent(&dir)?;
        let stored = |digest: &String| journal::stored_component(&dir, digest);
        let plugin = self.plugin.clone().unwrap_or_else(|| stored(&parent.deployment.workflow));
        check_exists(&plugin, "--plugin")?;
        let grader =
            self.host.rollout.grader.clone().or_else(|| parent.deployment.grader.as_ref().map(stored));
        let out = self.out.as_deref().map(std::path::absolute).transpose().context("--out is invalid")?;
        let runtime = setup::runtime()?;
        let (model, _mock) = runtime.block_on(self.model.endpoint(key, config.judge.as_ref()))?;
        let sources = Sources::of(&plugin, grader.as_deref());
        let options = Options { artifact_root: out, ..Options::default() };
        let assembled = self.host.rollout.host(&runtime, sources, &config, options)?;
        setup::print_judge(&assembled);
        let slots = assembled.host.load().max_concurrent.max(1) as usize;
        runtime.block_on(async {
            let (mut running, mut forks) = (JoinSet::new(), Forks::default());
            for number in 0..self.count {
                if running.len() == slots
                    && let Some(ended) = running.join_next().await
                {
                    forks.add(ended.context("a fork panicked")??);
                }
                // The parent is read for each fork, so that it is not held in memory.
                let id = RolloutId::parse(format!("{}-turn-{}-fork-{number}", self.id, self.turn));
                let (id, model) = (id.context("cannot create the id of a fork")?, model.parts());
                let rollout = assembled.host.fork_stored(self.parent(&dir)?, self.turn, id, model);
                let rollout = rollout
                    .with_context(|| format!("'{}' cannot be forked at turn {}", self.id, self.turn))?;
                running.spawn(async move {
                    let finished = eval::run::complete(rollout).await;
                    finished.map_err(|failure| anyhow::Error::from(PluginFault(failure.reason)))
                });
            }
            while let Some(ended) = running.join_next().await {
                forks.add(ended.context("a fork panicked")??);
            }
            outln!("{}", forks.summary(&self.id, self.turn));
            Ok(forks.exit())
        })
    }

    fn parent(&self, dir: &std::path::Path) -> Result<StoredRollout> {
        let id = RolloutId::parse(self.id.as_str())
            .with_context(|| format!("invalid rollout id '{}'", self.id))?;
        let found = StoredRollout::find(dir, &id);
        let found = found.with_context(|| format!("the journal in {} cannot be read", dir.display()))?;
        found
            .with_context(|| format!("there is no rollout '{}' in the journal in {}", self.id, dir.display()))
    }
}

/// Results of the forks.
#[derive(Default)]
struct Forks {
    count: u32,
    rewards: Moments,
    scored: u32,
    worst: Option<Fault>,
}

impl Forks {
    /// Counts a fork and prints its outcome.
    fn add(&mut self, finished: Box<Finished>) {
        self.count += 1;
        outln!("{}: {}", finished.id, outcome(&finished));
        let messages = finished.samples.iter().flat_map(|sample| sample.record.messages.iter().last());
        messages.for_each(|last| outln!("  {}", line(last)));
        match &finished.outcome {
            Outcome::Scored { reward } => {
                self.scored += 1;
                self.rewards.add(*reward);
            }
            Outcome::Unscored(failure) if failure.kind == FailureKind::NotGraded => {}
            Outcome::Unscored(failure) if failure.fault == Fault::Plugin => self.worst = Some(Fault::Plugin),
            Outcome::Unscored(failure) => drop(self.worst.get_or_insert(failure.fault)),
        }
    }

    fn summary(&self, parent: &str, turn: u32) -> String {
        let Self { count, scored, .. } = self;
        let mean = self.rewards.mean().map_or(String::new(), |mean| format!(", mean {mean:.4}"));
        let spread = self.rewards.std().map_or(String::new(), |by| format!(", deviation {by:.4}"));
        format!("\n{count} forks of {parent} at turn {turn}: {scored} with a reward{mean}{spread}")
    }

    fn exit(&self) -> Exit {
        match self.worst {
            None => Exit::Done,
            Some(Fault::Plugin) => Exit::Plugin,
            Some(_) => Exit::NotDone,
        }
    }
}
