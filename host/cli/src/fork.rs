//! `fork`: rollouts that go on from where one of a journal was.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use tokio::task::JoinSet;

use super::model::ModelOptions;
use super::options::HostOptions;
use super::print::outln;
use super::replay::{is_there, line, outcome};
use super::{Exit, OUTPUT, PluginFault, journal, setup};
use rollout_assembly::config::RawConfig;
use rollout_assembly::{Options, Sources};
use rollout_core::error::Fault;
use rollout_core::moments::Moments;
use rollout_eval as eval;
use rollout_rollout::{FailureKind, Finished, Outcome, StoredRollout};
use rollout_wire::id::RolloutId;

/// Runs new rollouts that have the first calls of another one, which is in a journal, and go on
/// from there by themselves: with the model asked anew and random numbers of their own.
///
/// What they share is not asked again. The component is the one that the journal keeps; it needs the
/// same --config as `serve` where that has tools, limits or a judge.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 all have a reward; 1 one has none through the plugin's fault; 2 one has none through\n\
    the fault of model or host.\n\nExamples:\n  \
    rollout-host fork r1 --turn 2 --count 8 --model gpt-x --base-url https://HOST/v1 --api-key-env KEY\n  \
    rollout-host fork row-00007-run-0 --turn 1 --journal evals/my_agent-rows-1700000000 --model mock"
)]
pub(super) struct Fork {
    /// The rollout's id; of several with the same, the last one.
    id: String,
    /// How many calls of the model they share with it.
    #[arg(long, value_name = "K")]
    turn: u32,
    /// How many there are to be.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    count: u32,
    /// The journal, or the results of an evaluation, whoever has it open. [default: that of a
    /// `serve` with the same --config]
    #[arg(long, value_name = "DIR", overrides_with = "journal")]
    journal: Option<PathBuf>,
    /// A component in the place of the one that the journal keeps. It must do the same until then.
    #[arg(long, value_name = "FILE")]
    plugin: Option<PathBuf>,
    #[command(flatten)]
    model: ModelOptions,
    /// Where trajectories, artifacts and logs go. [default: nowhere]
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
        let dir = journal::to_read(self.journal.as_deref(), &config)?;
        let parent = self.parent(&dir)?;
        let kept = |digest: &String| journal::kept_component(&dir, digest);
        let plugin = self.plugin.clone().unwrap_or_else(|| kept(&parent.deployment.workflow));
        is_there(&plugin, "--plugin")?;
        let grader = self.host.rollout.grader.clone().or_else(|| parent.deployment.grader.as_ref().map(kept));
        let out = self.out.as_deref().map(std::path::absolute).transpose().context("--out")?;
        let runtime = setup::runtime()?;
        let (model, _mock) = runtime.block_on(self.model.endpoint(key, config.judge.as_ref()))?;
        let sources = Sources::of(&plugin, grader.as_deref());
        let options = Options { artifact_root: out, ..Options::default() };
        let assembled = self.host.rollout.host(&runtime, sources, &config, options)?;
        setup::say_who_judges(&assembled);
        let slots = assembled.host.load().max_concurrent.max(1) as usize;
        runtime.block_on(async {
            let (mut running, mut forks) = (JoinSet::new(), Forks::default());
            for number in 0..self.count {
                if running.len() == slots
                    && let Some(ended) = running.join_next().await
                {
                    forks.add(ended.context("a fork")??);
                }
                // What they share is read for each: none of it is held for all.
                let id = RolloutId::parse(format!("{}-turn-{}-fork-{number}", self.id, self.turn));
                let (id, model) = (id.context("a fork's id")?, model.parts());
                let rollout = assembled.host.fork_stored(self.parent(&dir)?, self.turn, id, model);
                let rollout = rollout.with_context(|| format!("'{}' cannot be forked there", self.id))?;
                running.spawn(async move {
                    let finished = eval::run::complete(rollout).await;
                    finished.map_err(|failure| anyhow::Error::from(PluginFault(failure.reason)))
                });
            }
            while let Some(ended) = running.join_next().await {
                forks.add(ended.context("a fork")??);
            }
            outln!("{}", forks.summary(&self.id, self.turn));
            Ok(forks.exit())
        })
    }

    fn parent(&self, dir: &std::path::Path) -> Result<StoredRollout> {
        let id = RolloutId::parse(self.id.as_str()).context("the id")?;
        let found = StoredRollout::find(dir, &id);
        let found = found.with_context(|| format!("the journal in {} cannot be read", dir.display()))?;
        found
            .with_context(|| format!("there is no rollout '{}' in the journal in {}", self.id, dir.display()))
    }
}

/// What came of them.
#[derive(Default)]
struct Forks {
    count: u32,
    rewards: Moments,
    scored: u32,
    worst: Option<Fault>,
}

impl Forks {
    /// Counts one, and says how it ended.
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

    fn summary(&self, of: &str, turn: u32) -> String {
        let Self { count, scored, .. } = self;
        let mean = self.rewards.mean().map_or(String::new(), |mean| format!(", mean {mean:.4}"));
        let spread = self.rewards.std().map_or(String::new(), |by| format!(", deviation {by:.4}"));
        format!("\n{count} forks of {of} at turn {turn}: {scored} with a reward{mean}{spread}")
    }

    fn exit(&self) -> Exit {
        match self.worst {
            None => Exit::Done,
            Some(Fault::Plugin) => Exit::Plugin,
            Some(_) => Exit::NotDone,
        }
    }
}
