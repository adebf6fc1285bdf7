//! Setup that several commands share: logs, the runtime, signals, the host.

use std::io::IsTerminal;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

use super::plugin_file;
use super::print::{self, LogWriter};
use super::{LogFormat, PluginFault};
use rollout_assembly as assembly;
use rollout_assembly::config::Config;
use rollout_assembly::{Assembled, AssemblyError, NotLoaded, Options, Sources};
use rollout_core::error::Fault;
use rollout_core::telemetry::{OneLineFields, Traces};
use rollout_guest::engine::{Engine, Loader};
use rollout_guest::plugin::{self, Declaration, Plugin};
use rollout_outbound::Secret;

/// Sends logs to standard error: from level `info` for a server, from `warn` for other commands.
pub(super) fn logs(format: LogFormat, server: bool) {
    // rmcp logs every connection and rusqlite_migration every migration; the host itself logs the important events of
    // both. The verifier of certificates logs what the error of the connection says, and what a system without any lacks.
    let default = if server { "info" } else { "warn" };
    let default = format!("{default},rmcp=off,rusqlite_migration=warn,rustls_platform_verifier=off");
    let requested = std::env::var("ROLLOUT_HOST_LOG").ok();
    let filter = requested.and_then(|filter| EnvFilter::try_new(expand_program_name(&filter)).ok());
    let filter = filter.unwrap_or_else(|| EnvFilter::new(format!("{default},async_nats=warn")));
    let colour = std::io::stderr().is_terminal();
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| LogWriter).with_ansi(colour);
    match format {
        LogFormat::Text => logs.fmt_fields(OneLineFields).with_target(false).init(),
        // The innermost span is the rollout; a list of all spans would repeat it.
        LogFormat::Json => logs.json().with_span_list(false).init(),
    }
}

/// Crates of this program, as they appear in log targets.
const CRATES: [&str; 21] = [
    "rollout_host",
    "rollout_assembly",
    "rollout_bench",
    "rollout_catalog",
    "rollout_cluster",
    "rollout_core",
    "rollout_eval",
    "rollout_export",
    "rollout_fuse",
    "rollout_guest",
    "rollout_journal",
    "rollout_mock_model",
    "rollout_outbound",
    "rollout_page",
    "rollout_quickjs",
    "rollout_registry",
    "rollout_rollout",
    "rollout_server",
    "rollout_snapshot",
    "rollout_transcript",
    "rollout_wire",
];

/// Expands the program's name in a log filter to all of its crates: `rollout_host=debug` sets the level of
/// each.
fn expand_program_name(filter: &str) -> String {
    let directives = filter.split(',').flat_map(|directive| match directive.trim().split_once('=') {
        Some(("rollout_host", level)) => CRATES.map(|name| format!("{name}={level}")).to_vec(),
        None if directive.trim() == "rollout_host" => CRATES.map(str::to_owned).to_vec(),
        _ => vec![directive.to_owned()],
    });
    directives.collect::<Vec<_>>().join(",")
}

/// Maximum time that the program waits for the collector of traces when it exits. Less than the timeout of an
/// export, so that a collector that hangs does not delay the exit.
pub(super) const FLUSH_TIME_MAX: Duration = Duration::from_secs(5);

/// Sends the remaining traces.
pub(super) async fn flush(traces: Option<Traces>) {
    flush_within(FLUSH_TIME_MAX, traces).await;
}

/// Sends the remaining traces within `time_max`.
pub(super) async fn flush_within(time_max: Duration, traces: Option<Traces>) {
    if let Some(traces) = traces
        && !traces.flush(time_max).await
    {
        tracing::warn!("some traces were not sent: the collector did not accept them in time");
    }
}

/// Creates the runtime of guests and connections.
pub(super) fn runtime() -> Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the runtime")
}

/// Handler of Ctrl-C and the termination signal.
///
/// Create it before the command reports that it is ready, so that no signal sent after that is lost.
pub(super) struct StopSignal {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignal {
    /// Installs the handler. Must be called within the runtime.
    pub(crate) fn new() -> Result<Self> {
        let install = |kind| signal(kind).context("cannot install the handlers of stop signals");
        Ok(Self {
            interrupt: install(SignalKind::interrupt())?,
            terminate: install(SignalKind::terminate())?,
        })
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Reads a key from the environment variable that an option names.
pub(super) fn key_from_env(option: &str, variable: Option<&str>) -> Result<Option<Secret>> {
    let Some(variable) = variable else { return Ok(None) };
    match std::env::var(variable) {
        Ok(key) if !key.is_empty() => Ok(Some(Secret::new(key))),
        _ => anyhow::bail!("{option} names the environment variable {variable}, which is not set"),
    }
}

/// Prints a notice if the judge is the built-in stand-in.
pub(super) fn print_judge(assembled: &Assembled) {
    if assembled.judge_stand_in.is_some() {
        print::errln!(
            "the judge is the built-in stand-in, which looks for the truth in the answer and ignores the rubric"
        );
    }
}

/// Reads the settings that a plugin declares and applies the operator's values.
pub(super) fn settings(
    runtime: &Runtime,
    path: &Path,
    plugin: &Plugin,
    config: &Config,
) -> Result<(Option<Declaration>, plugin::PluginSettings)> {
    let settings = assembly::settings(path, plugin, config, config.plugin.as_ref());
    runtime.block_on(settings).map_err(at_fault)
}

/// Compiles the components, creates the host and checks that instances can start.
pub(super) fn host(
    runtime: &Runtime,
    sources: Sources<'_>,
    config: &Config,
    loader: &Loader,
    options: Options,
) -> Result<Assembled> {
    let load = |engine: &Engine, path: &Path| {
        plugin_file::load(loader, engine, path, &config.load_limits).map_err(|error| NotLoaded {
            fault: if error.is::<PluginFault>() { Fault::Plugin } else { Fault::Host },
            reason: format!("{error:#}"),
        })
    };
    let judge = config.judge.as_ref().and_then(|judge| judge.api_key_env.as_deref());
    let judge_key = key_from_env("judge.api-key-env", judge)?;
    let options = Options { judge_key, ..options };
    runtime.block_on(assembly::assemble(config, sources, options, load)).map_err(at_fault)
}

/// Converts an assembly error; errors of the plugin become a [`PluginFault`].
fn at_fault(error: AssemblyError) -> anyhow::Error {
    match error.fault() {
        Fault::Plugin => PluginFault(error.to_string()).into(),
        _ => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_name_in_a_filter_stands_for_its_crates() {
        let expanded = expand_program_name("warn,rollout_host=debug");
        assert!(expanded.starts_with("warn,rollout_host=debug,"), "{expanded}");
        assert!(
            expanded.contains(",rollout_core=debug,") && expanded.contains(",rollout_server=debug"),
            "{expanded}"
        );
        assert!(expand_program_name("rollout_host").ends_with(",rollout_wire"));
        assert_eq!(
            expand_program_name("debug,hyper=off,rollout_guest::engine=trace"),
            "debug,hyper=off,rollout_guest::engine=trace"
        );
    }

    #[test]
    fn every_crate_of_the_program_is_in_the_list() {
        let host = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut names: Vec<String> = std::fs::read_dir(host)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap().replace('-', "_"))
            .map(|name| if name == "cli" { "rollout_host".to_owned() } else { format!("rollout_{name}") })
            .collect();
        names.sort();
        let mut listed = CRATES.to_vec();
        listed.sort_unstable();
        assert_eq!(names, listed);
    }
}
