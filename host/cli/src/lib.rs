//! The command-line program: one module per command.

mod admin;
mod bench;
mod build;
mod cluster_command;
mod compile_component;
mod completions;
mod config;
mod data;
mod doctor;
mod eval;
mod export;
mod fork;
mod hardening;
mod hooks;
mod inspect;
mod journal;
mod journal_command;
mod lifecycle;
mod man;
mod mock_model;
mod model;
mod new;
mod options;
mod plugin_file;
mod print;
mod progress;
mod registry;
mod replay;
mod serve;
mod setup;
mod signing;
mod test;
mod top;
mod trajectory;
mod validate;
mod view;
mod watch;
mod work;

#[cfg(test)]
mod documents;
#[cfg(test)]
mod help;

use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};

/// Runs other people's agent code: workflows and graders as WebAssembly components.
#[derive(Debug, Parser)]
#[command(name = "rollout-host", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = "Exit codes: 0 done, 1 the plugin is at fault, 2 not done.\n\
    Logs go to standard error; ROLLOUT_HOST_LOG=debug (or a tracing filter) shows more of them.\n\n\
    Getting started:\n  \
    rollout-host new my-agent && cd my-agent\n  \
    rollout-host build . -o my_agent.wasm\n  \
    rollout-host test my_agent.wasm --data rows.jsonl --model mock")]
struct Arguments {
    /// Format of log lines.
    #[arg(long, value_enum, default_value_t = LogFormat::Text, global = true, help_heading = "Logs")]
    log_format: LogFormat,
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    /// Text for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// The commands, in the order in which a new user needs them. `about` is the line in the list of commands; the help of a
/// command is the documentation of its type.
#[derive(Debug, Subcommand)]
enum Command {
    #[command(about = "Creates a project from a template")]
    New(new::New),
    #[command(
        about = "Compiles a workflow or grader in Rust, Python, TypeScript or JavaScript to a component and checks it"
    )]
    Build(build::Build),
    #[command(about = "Shows the exports and imports of a component and whether it can be served")]
    Inspect(inspect::Inspect),
    #[command(about = "Shows the settings of a plugin and the values that it would run with")]
    Config(config::Config),
    #[command(about = "Checks everything about a plugin that can be checked without a model")]
    Validate(validate::Validate),
    #[command(about = "Runs one row of a data set and shows the conversation, step by step on request")]
    Test(test::Test),
    #[command(about = "Runs a plugin over a data set and summarises the rewards")]
    Eval(eval::Eval),
    #[command(about = "Shows the results of an evaluation in a browser, or compares two")]
    View(view::View),
    #[command(about = "Writes training rows of finished rollouts as Parquet or JSON Lines")]
    Export(export::Export),
    #[command(about = "Serves a plugin to trainers over HTTP")]
    Serve(serve::Serve),
    #[command(about = "Shows the rollouts of a running server in the terminal")]
    Top(top::Top),
    #[command(about = "Runs the rollouts of a trainer's queue, which it claims")]
    Work(work::Work),
    #[command(
        about = "Uploads a component to a server with a catalog, which checks and optionally activates it"
    )]
    Push(admin::push::Push),
    #[command(about = "Signs a component in a registry")]
    Sign(signing::Sign),
    #[command(about = "Verifies who signed a component, or that a project builds it")]
    Verify(signing::Verify),
    #[command(about = "Lists, activates, rolls back and removes plugins of a server with a catalog")]
    Plugin(admin::plugin::PluginCommand),
    #[command(about = "Manages secrets that plugin configurations refer to")]
    Secret(admin::secret::SecretCommand),
    #[command(about = "Creates, changes and deletes tenants")]
    Tenant(admin::tenant::TenantCommand),
    #[command(about = "Creates, lists and revokes keys")]
    Key(admin::key::KeyCommand),
    #[command(about = "Replays a recorded rollout and reports whether it behaves the same")]
    Replay(replay::Replay),
    #[command(about = "Runs new rollouts that share the first calls of a recorded one")]
    Fork(fork::Fork),
    #[command(about = "Writes the trajectories of finished rollouts in a journal")]
    Trajectory(trajectory::Trajectory),
    #[command(about = "Repairs a damaged journal")]
    Journal(journal_command::JournalCommand),
    #[command(about = "Prepares and repairs a cluster of workers")]
    Cluster(cluster_command::ClusterCommand),
    #[command(about = "Load-tests a server, or compares two")]
    Bench(bench::Bench),
    #[command(about = "Serves an OpenAI-compatible endpoint that stands in for a model")]
    MockModel(mock_model::MockModelCommand),
    #[command(
        about = "Updates the SDK in a Rust, TypeScript or JavaScript project to the version in this program"
    )]
    UpdateSdk(new::UpdateSdk),
    #[command(about = "Checks this machine, its tools for builds, and the access to registries")]
    Doctor(doctor::Doctor),
    #[command(about = "Writes a completion script for a shell")]
    Completions(completions::Completions),
    #[command(about = "Writes the manual pages")]
    Man(man::Man),
}

// Arguments of the internal command that compiles a component in a process of its own. It is not part of
// `Command`, so that help, suggestions, completions and manual pages leave it out.
#[derive(Debug, Parser)]
#[command(name = COMPILE_COMPONENT)]
struct CompileArguments {
    #[command(flatten)]
    command: compile_component::CompileComponent,
}

const COMPILE_COMPONENT: &str = "compile-component";

/// Headings of options that several commands share.
const DATA: &str = "Data";
const OUTPUT: &str = "Output";
const SETTINGS: &str = "Settings";

/// Result of a command, which decides the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exit {
    /// The command did its work.
    Done,
    /// The plugin is at fault.
    Plugin,
    /// The work is not done, or only in part.
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

/// An error that the plugin's author must fix.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct PluginFault(String);

/// Exit code that a shell reports when the reader of a pipe is gone: 128 plus the number of SIGPIPE.
const READER_GONE: u8 = 141;

impl Command {
    /// Returns whether the command is useful even if its standard output is not read.
    fn is_useful_unread(&self) -> bool {
        match self {
            Self::Serve(_)
            | Self::Work(_)
            | Self::Eval(_)
            | Self::View(_)
            | Self::Fork(_)
            | Self::MockModel(_)
            | Self::Build(_)
            | Self::New(_)
            | Self::Push(_)
            | Self::Sign(_)
            | Self::Plugin(_)
            | Self::Secret(_)
            | Self::Tenant(_)
            | Self::UpdateSdk(_)
            | Self::Man(_) => true,
            Self::Inspect(_)
            | Self::Top(_)
            | Self::Verify(_)
            | Self::Validate(_)
            | Self::Test(_)
            | Self::Config(_)
            | Self::Bench(_)
            | Self::Export(_)
            | Self::Replay(_)
            | Self::Trajectory(_)
            | Self::Journal(_)
            | Self::Cluster(_)
            // A new key is printed once and useless if it was not read.
            | Self::Key(_)
            | Self::Doctor(_)
            | Self::Completions(_) => false,
        }
    }
}

/// Runs the command that the arguments select and returns the exit code.
///
/// `start_allocator_threads` is called as soon as the process may have threads: a thread keeps the
/// privileges that the process has when the thread starts.
pub fn main(start_allocator_threads: fn()) -> ExitCode {
    let code = if std::env::args_os().nth(1).is_some_and(|first| first == COMPILE_COMPONENT) {
        // It writes only a few lines, and threads would escape its confinement.
        let arguments = CompileArguments::parse_from(std::env::args_os().skip(1));
        report(arguments.command.run(), false)
    } else {
        let arguments = Arguments::parse();
        let is_server = matches!(arguments.command, Command::Serve(_) | Command::Work(_));
        let when_full = if is_server { print::WhenFull::LeaveOut } else { print::WhenFull::Wait };
        let start_threads = move || {
            start_allocator_threads();
            if let Err(error) = print::queue_errors(when_full) {
                print::errln!(
                    "cannot start the thread that writes standard error, which is now written directly: {error}"
                );
            }
        };
        setup::logs(arguments.log_format, is_server);
        let is_useful_unread = arguments.command.is_useful_unread();
        report(arguments.command.run(start_threads), is_useful_unread)
    };
    print::flush_errors();
    code
}

/// Reports the error of a command, if any, and returns the exit code.
fn report(result: anyhow::Result<Exit>, is_useful_unread: bool) -> ExitCode {
    match result {
        Ok(exit) => output_exit_code(exit, is_useful_unread),
        Err(error) => {
            print::errln!("error: {error:#}");
            if error.downcast_ref::<PluginFault>().is_some() { Exit::Plugin } else { Exit::NotDone }.into()
        }
    }
}

/// Returns the exit code of a command without an error, considering failures of standard output.
fn output_exit_code(exit: Exit, is_useful_unread: bool) -> ExitCode {
    match print::output_status() {
        print::OutputStatus::Failed(error) if !is_useful_unread => {
            print::errln!("error: cannot write to standard output: {error}");
            Exit::NotDone.into()
        }
        print::OutputStatus::ReaderGone if !is_useful_unread => ExitCode::from(READER_GONE),
        _ => exit.into(),
    }
}

impl Command {
    fn run(self, start_threads: impl FnOnce()) -> anyhow::Result<Exit> {
        let command = match self {
            // Both drop privileges before threads start.
            Self::Serve(command) => return command.run(start_threads),
            Self::Work(command) => return command.run(start_threads),
            command => command,
        };
        start_threads();
        match command {
            Self::New(command) => command.run(),
            Self::Build(command) => command.run(),
            Self::Inspect(command) => command.run(),
            Self::Config(command) => command.run(),
            Self::Validate(command) => command.run(),
            Self::Test(command) => command.run(),
            Self::Eval(command) => command.run(),
            Self::View(command) => command.run(),
            Self::Export(command) => command.run(),
            Self::Serve(command) => command.run(|| {}),
            Self::Top(command) => command.run(),
            Self::Work(command) => command.run(|| {}),
            Self::Push(command) => command.run(),
            Self::Sign(command) => command.run(),
            Self::Verify(command) => command.run(),
            Self::Plugin(command) => command.run(),
            Self::Secret(command) => command.run(),
            Self::Tenant(command) => command.run(),
            Self::Key(command) => command.run(),
            Self::Replay(command) => command.run(),
            Self::Fork(command) => command.run(),
            Self::Trajectory(command) => command.run(),
            Self::Journal(command) => command.run(),
            Self::Cluster(command) => command.run(),
            Self::Bench(command) => command.run(),
            Self::MockModel(command) => command.run(),
            Self::UpdateSdk(command) => command.run(),
            Self::Doctor(command) => command.run(),
            Self::Completions(command) => command.run(),
            Self::Man(command) => command.run(),
        }
    }
}
