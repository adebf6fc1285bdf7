//! The command `test`, which runs one rollout and shows its conversation.

mod play;
mod prompt;
mod style;
mod transcript;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::Args;
use tokio_util::sync::CancellationToken;

use super::build::{javascript, python, quick};
use super::data::DataOptions;
use super::model::ModelOptions;
use super::options::HostOptions;
use super::print::errln;
use super::watch::Watch;
use super::{DATA, Exit, OUTPUT, setup};
pub(super) use prompt::Prompt;
use rollout_assembly::config::RawConfig;
use rollout_assembly::{Options, Sources};
use rollout_core::error::Fault;
use rollout_eval as eval;
use rollout_eval::rows::Row;
use rollout_eval::run::Model;
use rollout_rollout::{FailureKind, Finished, Host, Outcome};
pub(super) use style::{Style, When};
pub(super) use transcript::Transcript;

/// Runs one row of a data set and shows the conversation as it happens.
///
/// With --interactive it stops after every reply of the model, before the plugin receives it. Commands: n (or
/// Enter) continues to the next reply, c continues to the end, m shows the conversation, t the tools, e TEXT
/// replaces the reply, q quits.
///
/// An environment is played by the model. With --interactive and without --model a person plays: each line is an
/// action, and /help lists what may be entered. Lines may come from a file: `… --interactive < answers.txt`.
#[derive(Debug, Args)]
#[command(
    override_usage = "rollout-host test [OPTIONS] --data <FILE> --model <NAME> <PLUGIN>\n       \
    rollout-host test [OPTIONS] --interactive <PLUGIN>",
    mut_arg("data", |data| data.required(false).required_unless_present_any(["interactive", "split"])),
    // Empty if a person plays.
    mut_arg("name", |name| name.required(false).required_unless_present("interactive").default_value("").hide_default_value(true)),
    after_help = "Exit codes: 0 the rollout has a reward; 1 it has none and the plugin is at fault; 2 it has none and\n\
    the model or the host is at fault, or the rollout was quit.\n\nExamples:\n  \
    rollout-host test my_agent.wasm --data rows.jsonl --model mock --interactive\n  \
    rollout-host test my_agent.py --data rows.jsonl --model mock --watch\n  \
    rollout-host test my_environment.wasm --split train --row 1 --interactive\n  \
    rollout-host test my_agent.wasm --data rows.jsonl --row 7 --model gpt-x --base-url https://HOST/v1 --api-key-env KEY"
)]
pub(super) struct Test {
    /// Component with the workflow or environment; or a Python, TypeScript or JavaScript project, or the entry module of a Python
    /// project, which run without a build, within one or two seconds of an edit.
    plugin: PathBuf,
    /// Runs the row again after every change to a file of the project, until Ctrl-C.
    #[arg(long, conflicts_with = "interactive")]
    watch: bool,
    /// Stops after every reply of the model and asks what to do; without --model, asks for actions in an environment.
    #[arg(short, long)]
    interactive: bool,
    #[command(flatten)]
    data: DataOptions,
    /// Number of the row, from 0.
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = DATA)]
    row: usize,
    #[command(flatten)]
    model: ModelOptions,
    /// Directory of trajectory, artifacts and log. [default: not written]
    #[arg(long, value_name = "DIR", help_heading = OUTPUT)]
    out: Option<PathBuf>,
    /// When to use colours; `auto` means on a terminal, unless NO_COLOR is set.
    #[arg(long, value_enum, default_value_t = When::Auto, help_heading = OUTPUT)]
    color: When,
    #[command(flatten)]
    python: python::Tool,
    #[command(flatten)]
    javascript: javascript::Tools,
    #[command(flatten)]
    host: HostOptions,
}

/// Notice that a project runs without a build.
const QUICK: &str = "quick mode: each instance imports the project when it starts; a server runs the component that \
                     `rollout-host build` creates";

impl Test {
    pub(crate) fn run(mut self) -> Result<Exit> {
        self.host.rollout.pull(&mut self.plugin)?;
        if self.watch {
            Watch::new(&self.plugin, self.out.as_deref())?.repeat(|| self.once())
        } else {
            self.once()
        }
    }

    /// Runs the row once and shows its conversation.
    fn once(&self) -> Result<Exit> {
        let is_person = self.interactive && self.model.name.is_empty();
        let key = if is_person { None } else { self.model.key()? };
        let config = RawConfig { max_concurrent: Some(1), ..self.host.raw_config()? }.resolve()?;
        // A person may play without a row.
        let has_no_row = is_person && self.data.is_standard_input();
        if has_no_row && self.row > 0 {
            bail!("--row {}: there are no rows; give --data FILE or --split NAME", self.row);
        }
        if self.interactive && self.data.is_standard_input() && !is_person {
            bail!("--interactive reads commands from standard input; give --data a file");
        }
        let loaded = if has_no_row { None } else { self.data.load_file()? };
        let out = self.out.as_deref().map(std::path::absolute).transpose().context("--out is invalid")?;
        let runtime = setup::runtime()?;
        let model = match is_person {
            true => None,
            false => Some(runtime.block_on(self.model.endpoint(key, config.judge.as_ref()))?),
        };
        let quit = CancellationToken::new();
        let prompt = (self.interactive && !is_person).then(|| Prompt::new(quit.clone()));
        let transcript = Arc::new(Transcript::new(Style::new(self.color), prompt));
        let prepare = || quick::prepare(&self.plugin, &self.python, &self.javascript);
        let quick = quick::is_source(&self.plugin).then(prepare).transpose()?;
        let sources = self.host.rollout.sources(&self.plugin);
        let options =
            Options { artifact_root: out, observer: Some(transcript.clone()), ..Options::default() };
        let (sources, options) = match &quick {
            Some(quick) => {
                errln!("{}", QUICK);
                let options = Options { plugin_input: quick.input.clone(), ..options };
                (Sources { plugin: &quick.component, ..sources }, options)
            }
            None => (sources, options),
        };
        let assembled = self.host.rollout.host(&runtime, sources, &config, options).map_err(|error| {
            let exact = quick.as_ref().and_then(|_| quick::build_error(&self.plugin, &self.javascript));
            exact.unwrap_or(error)
        })?;
        setup::print_judge(&assembled);
        let host = &assembled.host;
        let row = || match &loaded {
            Some(loaded) => self.chosen(&loaded.rows),
            // The other tasks of a split are not read.
            None => runtime.block_on(self.data.task(host, self.row)),
        };
        let Some((model, _mock)) = model else {
            if !host.has_environment() {
                bail!(
                    "the plugin has no environment that a person could play; give --model NAME and --data FILE"
                );
            }
            let row = if has_no_row { None } else { Some(row()?) };
            let played =
                runtime.block_on(play::play(host, config.sessions, row.as_ref(), Style::new(self.color)));
            runtime.shutdown_background();
            return played;
        };
        let row = row()?;
        let exit = runtime.block_on(async {
            let clock = assembled.host.deployment().id().clock_begins;
            transcript.begin(&self.plugin, &self.data.name(), self.row, &self.model.name, clock);
            self.watch(&assembled.host, row, model, &transcript, quit).await
        });
        // A thread that waits for a line of input is not awaited.
        runtime.shutdown_background();
        exit
    }

    /// Returns the row that the options choose.
    fn chosen(&self, rows: &[Row]) -> Result<Row> {
        let Some(row) = rows.get(self.row) else {
            bail!("--row {}: {} has {} rows, counted from 0", self.row, self.data.name(), rows.len());
        };
        Ok(row.clone())
    }

    /// Runs a row and shows it until it ends, the user quits or a stop signal arrives.
    async fn watch(
        &self,
        host: &Host,
        row: Row,
        model: Model,
        transcript: &Arc<Transcript>,
        quit: CancellationToken,
    ) -> Result<Exit> {
        let rollout = eval::run::admit(host, &row, 0, &model)?;
        let shown = transcript.clone();
        rollout.watch_log(move |entry| shown.logged(entry));
        let handle = rollout.handle();
        let mut signals = setup::StopSignal::new()?;
        let stopper = tokio::spawn(async move {
            tokio::select! {
                () = quit.cancelled() => {}
                () = signals.next() => {}
            }
            handle.cancel();
        });
        let finished = eval::run::complete(rollout).await;
        stopper.abort();
        let finished = finished.map_err(|failure| anyhow::anyhow!("{failure}"))?;
        transcript.end(&finished).await;
        Ok(exit(&finished))
    }
}

fn exit(finished: &Finished) -> Exit {
    match &finished.outcome {
        Outcome::Scored { .. } => Exit::Done,
        // Without a grader, a rollout that runs to its end succeeds.
        Outcome::Unscored(failure) if failure.kind == FailureKind::NotGraded => Exit::Done,
        Outcome::Unscored(failure) if failure.fault == Fault::Plugin => Exit::Plugin,
        Outcome::Unscored(_) => Exit::NotDone,
    }
}
