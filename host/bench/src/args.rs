//! The arguments of `rollout-host bench`.

use std::net::SocketAddr;
use std::time::Duration;

use super::{Background, BenchError, BenchSettings, Generation, ServerSource, Target};

const SERVER: &str = "The server";
const SECOND: &str = "A second server";
const MODEL: &str = "The stub model";

/// Options of the measurement. The caller adds the options of the report.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Measurement")]
pub struct Args {
    /// URL of the server to measure, as http://HOST:PORT
    #[arg(required_unless_present = "command", conflicts_with = "command")]
    pub url: Option<String>,
    /// Start the server with this shell command instead; it must print 'listening on http://HOST:PORT'
    #[arg(long, value_name = "COMMAND", help_heading = SERVER)]
    pub command: Option<String>,
    /// Process ID of the server on this machine, to report its CPU and memory
    #[arg(long, requires = "url", help_heading = SERVER)]
    pub pid: Option<u32>,
    /// Name of the server in the report
    #[arg(long, default_value = "server", help_heading = SERVER)]
    pub name: String,

    /// URL of a second server to compare with; the servers are measured in turn
    #[arg(long, value_name = "URL", conflicts_with = "vs_command", help_heading = SECOND)]
    pub vs: Option<String>,
    /// Start the second server with this shell command
    #[arg(long, value_name = "COMMAND", help_heading = SECOND)]
    pub vs_command: Option<String>,
    /// Process ID of the second server
    #[arg(long, value_name = "PID", requires = "vs", help_heading = SECOND)]
    pub vs_pid: Option<u32>,
    /// Name of the second server in the report
    #[arg(long, value_name = "NAME", default_value = "other", help_heading = SECOND)]
    pub vs_name: String,

    /// Compare the command's server with the same server without a journal
    #[arg(long, requires = "command", conflicts_with_all = ["vs", "vs_command", "background"])]
    pub journal_off: bool,

    /// Compare the server with and without N rollouts that run in the background
    #[arg(long, value_name = "N", requires = "background_prompt", conflicts_with_all = ["vs", "vs_command"])]
    pub background: Option<usize>,
    /// User message of the background rollouts; it must keep the guest busy until it is cancelled
    #[arg(long, value_name = "TEXT", requires = "background")]
    pub background_prompt: Option<String>,

    /// Generation of the Osmosis protocol to speak
    #[arg(long, value_enum, ignore_case = true, value_name = "G", default_value = "d")]
    pub osmosis_generation: Generation,
    /// Number of concurrent rollouts; several numbers are measured one after another
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,64,512")]
    pub in_flight: Vec<usize>,
    /// End each measurement after this many rollouts
    #[arg(long, value_name = "N")]
    pub rollouts: Option<usize>,
    /// End each measurement after this many seconds [default: 5, unless --rollouts is given]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub seconds: Option<Duration>,
    /// Number of rounds; the report has their medians
    #[arg(long, value_name = "N", default_value = "2")]
    pub rounds: usize,
    /// Delay before each answer of the stub model, in milliseconds
    #[arg(long, value_name = "MS", default_value = "0", help_heading = MODEL)]
    pub model_latency: u64,
    /// Number of chat calls per rollout; the stub model calls a tool in all but the last
    #[arg(long, value_name = "N", default_value = "1", help_heading = MODEL)]
    pub turns: u32,
    /// Value of the tool's argument 'bytes', for tools that return a result of that length
    #[arg(long, value_name = "BYTES", help_heading = MODEL)]
    pub tool_bytes: Option<usize>,
    /// Start the next rollouts together when all have ended, instead of one by one
    #[arg(long)]
    pub wave: bool,
    /// Count a rollout as lost after this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "60")]
    pub rollout_timeout: Duration,
    /// API key of the servers
    #[arg(long, value_name = "KEY", env = "ROLLOUT_BENCH_API_KEY", hide_env_values = true, help_heading = SERVER)]
    pub api_key: Option<String>,
    /// Address of the stub model, which the servers must be able to reach
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0", help_heading = MODEL)]
    pub model_listen: SocketAddr,
}

impl TryFrom<Args> for BenchSettings {
    type Error = BenchError;

    fn try_from(args: Args) -> Result<Self, BenchError> {
        let source = |url: Option<String>, pid, command: Option<String>| match (command, url) {
            (Some(command), _) => Some(ServerSource::Command(command)),
            (None, Some(url)) => Some(ServerSource::Running { url, pid }),
            (None, None) => None,
        };
        let without_journal = args.command.as_ref().filter(|_| args.journal_off);
        let without_journal = without_journal.map(|command| format!("{command} --journal off"));
        let first = source(args.url, args.pid, args.command);
        let vs_name = if args.journal_off { "journal off".to_owned() } else { args.vs_name };
        let second = source(args.vs, args.vs_pid, args.vs_command.or(without_journal));
        let first = first.map(|source| Target { name: args.name, source });
        let second = second.map(|source| Target { name: vs_name, source });
        let background = args.background.zip(args.background_prompt);
        let settings = Self {
            background: background.map(|(rollouts, prompt)| Background { rollouts, prompt }),
            generation: args.osmosis_generation,
            in_flight: args.in_flight,
            rollouts: args.rollouts,
            time: args.seconds,
            model_latency: Duration::from_millis(args.model_latency),
            turns: args.turns,
            tool_bytes: args.tool_bytes,
            wave: args.wave,
            rounds: args.rounds,
            api_key: args.api_key,
            rollout_timeout: args.rollout_timeout,
            listen: args.model_listen,
            ..Self::new(first.into_iter().chain(second).collect())
        };
        settings.check()?;
        Ok(settings)
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn settings(line: &str) -> Result<BenchSettings, String> {
        let words = std::iter::once("bench").chain(line.split(' ').filter(|word| !word.is_empty()));
        let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
        cli.args.try_into().map_err(|error: BenchError| error.to_string())
    }

    #[test]
    fn a_command_line_becomes_settings() {
        let one =
            settings("http://h:1 --pid 7 --seconds 0.5 --in-flight 1,2 --osmosis-generation C").unwrap();
        let source = ServerSource::Running { url: "http://h:1".to_owned(), pid: Some(7) };
        assert_eq!(one.targets, [Target { name: "server".to_owned(), source }]);
        assert_eq!((one.time, one.generation), (Some(Duration::from_millis(500)), Generation::C));
        assert_eq!(one.in_flight, [1, 2]);

        let background = settings("http://h:1 --background 4 --background-prompt spin").unwrap().background;
        assert_eq!(background, Some(Background { rollouts: 4, prompt: "spin".to_owned() }));

        let two = settings("--command serve --vs-command other --vs-name python").unwrap();
        let places: Vec<&ServerSource> = two.targets.iter().map(|target| &target.source).collect();
        assert_eq!(
            places,
            [&ServerSource::Command("serve".to_owned()), &ServerSource::Command("other".to_owned())]
        );
        assert_eq!(two.targets[1].name, "python");
        let journal = settings("--command serve --journal-off").unwrap();
        let source = ServerSource::Command("serve --journal off".to_owned());
        assert_eq!(journal.targets[1], Target { name: "journal off".to_owned(), source });
        assert_eq!(BenchSettings { targets: Vec::new(), ..two }, BenchSettings::new(Vec::new()));
    }

    #[test]
    fn all_mistakes_are_reported_together() {
        fn check(line: &str, parts: &[&str]) {
            let error = settings(line).unwrap_err();
            parts.iter().for_each(|part| assert!(error.contains(part), "{line}: {error}"));
        }
        check("", &["required"]);
        check("http://h --command x", &["cannot be used with"]);
        check("http://h --vs-pid 3", &["--vs"]);
        check("http://h --seconds=-1", &["--seconds"]);
        check(
            "http://h --in-flight 0 --rounds 0 --turns 0 --model-listen 0.0.0.0:0",
            &["in flight", "one round", "one turn", "0.0.0.0"],
        );
        check("http://h --in-flight 64 --rollouts 10", &["exceeds the number of rollouts"]);
        check("http://h --tool-bytes 9", &["--turns"]);
        check("http://h --background 4", &["--background-prompt"]);
        check("http://h --background-prompt spin", &["--background"]);
        check("http://h --vs http://i --background 4 --background-prompt spin", &["cannot be used with"]);
        check(
            "http://h --osmosis-generation c --background 0 --background-prompt spin",
            &["need generation D", "cannot be 0"],
        );
        check("http://h --in-flight 90000000", &["ulimit -n"]);
    }
}
