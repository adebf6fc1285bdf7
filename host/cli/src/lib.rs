//! The commands: arguments in, exit code out. One file a command.

mod admin;
mod bench;
mod build;
mod compile_component;
mod completions;
mod config;
mod data;
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
mod replay;
mod serve;
mod setup;
mod test;
mod trajectory;
mod validate;
mod watch;

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
    To begin with:\n  \
    rollout-host new my-agent && cd my-agent\n  \
    rollout-host build . -o my_agent.wasm\n  \
    rollout-host test my_agent.wasm --data rows.jsonl --model mock")]
struct Arguments {
    /// How log lines are written.
    #[arg(long, value_enum, default_value_t = LogFormat::Text, global = true, help_heading = "Logs")]
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

/// In the order in which a person comes to need them.
#[derive(Debug, Subcommand)]
enum Command {
    /// Writes a project to begin with.
    New(new::New),
    /// Compiles a workflow or grader in Rust, Python or TypeScript to a component and checks it.
    Build(build::Build),
    /// Says what a component exports and imports, and whether it can be served.
    Inspect(inspect::Inspect),
    /// Says what a plugin lets its operator configure, and with which values it would run.
    Config(config::Config),
    /// Checks everything about a plugin that can be checked without a model.
    Validate(validate::Validate),
    /// Runs one row of a data set and shows everything that is said, step by step if asked.
    Test(test::Test),
    /// Runs a plugin over a data set and sums up the rewards.
    Eval(eval::Eval),
    /// Writes training rows of rollouts that are over, as Parquet or JSON Lines.
    Export(export::Export),
    /// Serves a plugin to trainers over HTTP.
    Serve(serve::Serve),
    /// Uploads a component to a server with a catalog, which checks it, and perhaps activates it.
    Push(admin::push::Push),
    /// Lists, activates, rolls back and removes plugins of such a server.
    Plugin(admin::plugin::Plugin),
    /// Keeps secrets that plugins' configurations name.
    Secret(admin::secret::Secret),
    /// Makes, changes and deletes tenants.
    Tenant(admin::tenant::Tenant),
    /// Makes, lists and revokes keys.
    Key(admin::key::Key),
    /// Makes a rollout of a server's journal again and says whether it is the same.
    Replay(replay::Replay),
    /// Runs new rollouts that share the first calls of one in a journal.
    Fork(fork::Fork),
    /// Writes the trajectory of a rollout of a journal, or of all that are over.
    Trajectory(trajectory::Trajectory),
    /// Repairs a journal that is damaged.
    Journal(journal_command::Journal),
    /// Drives a running server with load and measures it, perhaps beside another.
    Bench(bench::Bench),
    /// Serves an OpenAI-compatible endpoint that stands in for a model.
    MockModel(mock_model::MockModelCommand),
    /// Brings the SDK within a Rust or TypeScript project to the one that is in this program.
    UpdateSdk(new::UpdateSdk),
    /// Writes what a shell needs to complete these commands.
    Completions(completions::Completions),
    /// Writes the manual's pages.
    Man(man::Man),
}

// What the host starts to compile a component. It is no command of `Command`, so no help,
// tip, completion or page names it.
#[derive(Debug, Parser)]
#[command(name = COMPILE_COMPONENT)]
struct CompileArguments {
    #[command(flatten)]
    command: compile_component::CompileComponent,
}

const COMPILE_COMPONENT: &str = "compile-component";

/// Topics of the options, which several commands have.
const DATA: &str = "Data";
const OUTPUT: &str = "Output";
const SETTINGS: &str = "Settings";

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

/// What a shell reports of a program whose reader went away: 128 and the number of SIGPIPE.
const READER_GONE: u8 = 141;

impl Command {
    /// Whether what it does is more than what it writes to standard output.
    fn goes_on_unread(&self) -> bool {
        match self {
            Self::Serve(_)
            | Self::Eval(_)
            | Self::Fork(_)
            | Self::MockModel(_)
            | Self::Build(_)
            | Self::New(_)
            | Self::Push(_)
            | Self::Plugin(_)
            | Self::Secret(_)
            | Self::Tenant(_)
            | Self::UpdateSdk(_)
            | Self::Man(_) => true,
            Self::Inspect(_)
            | Self::Validate(_)
            | Self::Test(_)
            | Self::Config(_)
            | Self::Bench(_)
            | Self::Export(_)
            | Self::Replay(_)
            | Self::Trajectory(_)
            | Self::Journal(_)
            // A key that nobody read was made for nothing.
            | Self::Key(_)
            | Self::Completions(_) => false,
        }
    }
}

/// Runs the command that the arguments name. `start_allocator_threads` is called once this
/// process may have threads: they go on with the privileges that there are when they start.
pub fn main(start_allocator_threads: fn()) -> ExitCode {
    let code = if std::env::args_os().nth(1).is_some_and(|first| first == COMPILE_COMPONENT) {
        // It has a few lines to say, and threads would escape its confinement.
        let arguments = CompileArguments::parse_from(std::env::args_os().skip(1));
        ended(arguments.command.run(), false)
    } else {
        let arguments = Arguments::parse();
        let is_server = matches!(arguments.command, Command::Serve(_));
        let when_full = if is_server { print::WhenFull::LeaveOut } else { print::WhenFull::Wait };
        let start_threads = move || {
            start_allocator_threads();
            if let Err(error) = print::queue_errors(when_full) {
                print::errln!("standard error is written without a thread of its own: {error}");
            }
        };
        setup::logs(arguments.log_format, is_server);
        let goes_on_unread = arguments.command.goes_on_unread();
        ended(arguments.command.run(start_threads), goes_on_unread)
    };
    print::flush_errors();
    code
}

/// The exit code of what came of a command, which is said where it is an error.
fn ended(result: anyhow::Result<Exit>, goes_on_unread: bool) -> ExitCode {
    match result {
        Ok(exit) => code_as_read(exit, goes_on_unread),
        Err(error) => {
            print::errln!("error: {error:#}");
            if error.downcast_ref::<PluginFault>().is_some() { Exit::Plugin } else { Exit::NotDone }.into()
        }
    }
}

/// The exit code of a command that came to its end, by what standard output took of it.
fn code_as_read(exit: Exit, goes_on_unread: bool) -> ExitCode {
    match print::written() {
        print::Written::Failed(error) if !goes_on_unread => {
            print::errln!("error: cannot write to standard output: {error}");
            Exit::NotDone.into()
        }
        print::Written::ReaderGone if !goes_on_unread => ExitCode::from(READER_GONE),
        _ => exit.into(),
    }
}

impl Command {
    fn run(self, start_threads: impl FnOnce()) -> anyhow::Result<Exit> {
        let command = match self {
            // It has something to do before there are threads.
            Self::Serve(command) => return command.run(start_threads),
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
            Self::Export(command) => command.run(),
            Self::Serve(command) => command.run(|| {}),
            Self::Push(command) => command.run(),
            Self::Plugin(command) => command.run(),
            Self::Secret(command) => command.run(),
            Self::Tenant(command) => command.run(),
            Self::Key(command) => command.run(),
            Self::Replay(command) => command.run(),
            Self::Fork(command) => command.run(),
            Self::Trajectory(command) => command.run(),
            Self::Journal(command) => command.run(),
            Self::Bench(command) => command.run(),
            Self::MockModel(command) => command.run(),
            Self::UpdateSdk(command) => command.run(),
            Self::Completions(command) => command.run(),
            Self::Man(command) => command.run(),
        }
    }
}
