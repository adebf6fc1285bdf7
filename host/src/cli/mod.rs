//! The commands: arguments in, exit code out. One file a command.

mod bench;
mod build;
mod compile_component;
mod config;
mod connections;
mod eval;
mod hooks;
mod inspect;
mod mock_model;
mod model;
mod new;
mod plugin_file;
mod serve;
mod setup;
mod test;
mod validate;

use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};

/// Runs other people's agent code: workflows and graders as WebAssembly components.
#[derive(Debug, Parser)]
#[command(name = "rollout-host", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = "Exit codes: 0 done, 1 the plugin is at fault, 2 not done.\n\
    Logs go to standard error; ROLLOUT_HOST_LOG=debug (or a tracing filter) shows more of them.")]
struct Arguments {
    /// How log lines are written.
    #[arg(long, value_enum, default_value_t = LogFormat::Text, global = true)]
    log_format: LogFormat,
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    /// For a person.
    Text,
    /// One JSON object a line.
    Json,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compiles a Rust or Python workflow or grader to a component and checks it.
    Build(build::Build),
    /// Says what a component exports and imports, and whether it can be served.
    Inspect(inspect::Inspect),
    /// Writes a project to begin with.
    New(new::New),
    /// Checks everything about a plugin that can be checked without a model.
    Validate(validate::Validate),
    /// Runs one row of a data set and shows everything that is said, step by step if asked.
    Test(test::Test),
    /// Says what a plugin lets its operator configure, and with which values it would run.
    Config(config::Config),
    /// Runs a plugin over a data set and sums up the rewards.
    Eval(eval::Eval),
    /// Serves a plugin to trainers over HTTP.
    Serve(serve::Serve),
    /// Drives a running server with load and measures it, perhaps beside another.
    Bench(bench::Bench),
    /// Serves an OpenAI-compatible endpoint that stands in for a model.
    MockModel(mock_model::MockModelCommand),
    #[command(hide = true)]
    CompileComponent(compile_component::CompileComponent),
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exit {
    /// What was asked for is done.
    Done,
    /// The plugin is at fault.
    Plugin,
    /// It is not done, or not all of it.
    NotDone,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Done => 0,
            Exit::Plugin => 1,
            Exit::NotDone => 2,
        })
    }
}

/// An error for which the plugin's author has to act.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct PluginFault(String);

/// Runs the command that the arguments name.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    setup::logs(arguments.log_format, matches!(arguments.command, Command::Serve(_)));
    let result = match arguments.command {
        Command::Build(command) => command.run(),
        Command::Inspect(command) => command.run(),
        Command::New(command) => command.run(),
        Command::Validate(command) => command.run(),
        Command::Test(command) => command.run(),
        Command::Config(command) => command.run(),
        Command::Eval(command) => command.run(),
        Command::Serve(command) => command.run(),
        Command::Bench(command) => command.run(),
        Command::MockModel(command) => command.run(),
        Command::CompileComponent(command) => command.run(),
    };
    match result {
        Ok(exit) => exit.into(),
        Err(error) => {
            eprintln!("error: {error:#}");
            if error.downcast_ref::<PluginFault>().is_some() { Exit::Plugin } else { Exit::NotDone }.into()
        }
    }
}
