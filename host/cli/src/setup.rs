//! What several commands set up: logs, the runtime, signals, the host.

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
use rollout_core::engine::{Engine, Loader};
use rollout_core::error::Fault;
use rollout_core::outbound::Secret;
use rollout_core::plugin::{self, Declaration, Plugin};
use rollout_core::telemetry::{OneLineFields, Traces};

/// Sends logs to standard error. A server reports what it does; other commands speak up
/// only where something is wrong.
pub(super) fn logs(format: LogFormat, server: bool) {
    // The library of tool servers reports every connection, and that of the catalog's form what it did to it;
    // what matters of it, the host says itself.
    let default = if server { "info" } else { "warn" };
    let default = format!("{default},rmcp=off,rusqlite_migration=warn");
    let asked = std::env::var("ROLLOUT_HOST_LOG").ok();
    let filter = asked.and_then(|asked| EnvFilter::try_new(of_each_crate(&asked)).ok());
    let filter = filter.unwrap_or_else(|| EnvFilter::new(default));
    let colour = std::io::stderr().is_terminal();
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| LogWriter).with_ansi(colour);
    match format {
        LogFormat::Text => logs.fmt_fields(OneLineFields).with_target(false).init(),
        // The innermost span is the rollout; a list of all spans would say it twice.
        LogFormat::Json => logs.json().with_span_list(false).init(),
    }
}

/// The crates whose log lines are this program's own.
const CRATES: [&str; 13] = [
    "rollout_host",
    "rollout_assembly",
    "rollout_bench",
    "rollout_catalog",
    "rollout_core",
    "rollout_eval",
    "rollout_export",
    "rollout_fuse",
    "rollout_journal",
    "rollout_mock_model",
    "rollout_server",
    "rollout_transcript",
    "rollout_wire",
];

/// A filter in which the program's name stands for each of its crates: `rollout_host=debug` is
/// about all of them.
fn of_each_crate(filter: &str) -> String {
    let directives = filter.split(',').flat_map(|directive| match directive.trim().split_once('=') {
        Some(("rollout_host", level)) => CRATES.map(|name| format!("{name}={level}")).to_vec(),
        None if directive.trim() == "rollout_host" => CRATES.map(str::to_owned).to_vec(),
        _ => vec![directive.to_owned()],
    });
    directives.collect::<Vec<_>>().join(",")
}

/// How long the end waits for a collector of traces: less than an export may take, so that
/// one that hangs does not hold it up.
pub(super) const FLUSH_TIME_MAX: Duration = Duration::from_secs(5);

/// Sends what traces there still are.
pub(super) async fn flush(traces: Option<Traces>) {
    flush_within(FLUSH_TIME_MAX, traces).await;
}

/// The same, where there is a time for it.
pub(super) async fn flush_within(time_max: Duration, traces: Option<Traces>) {
    if let Some(traces) = traces
        && !traces.flush(time_max).await
    {
        tracing::warn!("some traces were not sent: the collector did not take them in time");
    }
}

/// The runtime that guests and connections share.
pub(super) fn runtime() -> Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the runtime")
}

/// Ctrl-C and the termination signal. Made before a command says that it is ready, so
/// that a signal sent on that word is not lost.
pub(super) struct StopSignal {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignal {
    /// Takes the signals over from here on; within the runtime.
    pub(crate) fn new() -> Result<Self> {
        let take = |kind| signal(kind).context("cannot take over the stop signals");
        Ok(Self { interrupt: take(SignalKind::interrupt())?, terminate: take(SignalKind::terminate())? })
    }

    /// Waits for the next of them.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// The key in an environment variable that the operator named.
pub(super) fn key_from_env(option: &str, variable: Option<&str>) -> Result<Option<Secret>> {
    let Some(variable) = variable else { return Ok(None) };
    match std::env::var(variable) {
        Ok(key) if !key.is_empty() => Ok(Some(Secret::new(key))),
        _ => anyhow::bail!("{option} names the environment variable {variable}, which is not set"),
    }
}

/// Says that no model judges, where that is so.
pub(super) fn say_who_judges(assembled: &Assembled) {
    if assembled.judge_stand_in.is_some() {
        print::errln!(
            "the judge is the built-in stand-in, which looks for the truth in the answer and reads no rubric"
        );
    }
}

/// Asks a plugin what it declares, and puts the operator's values over that.
pub(super) fn settings(
    runtime: &Runtime,
    path: &Path,
    plugin: &Plugin,
    config: &Config,
) -> Result<(Option<Declaration>, plugin::Settings)> {
    let settings = assembly::settings(path, plugin, config, config.plugin.as_ref());
    runtime.block_on(settings).map_err(at_fault)
}

/// Compiles the components, makes the host and sees that instances can start.
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

/// The error, with whose move it is.
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
        let of_all = of_each_crate("warn,rollout_host=debug");
        assert!(of_all.starts_with("warn,rollout_host=debug,"), "{of_all}");
        assert!(
            of_all.contains(",rollout_core=debug,") && of_all.contains(",rollout_server=debug"),
            "{of_all}"
        );
        assert!(of_each_crate("rollout_host").ends_with(",rollout_wire"));
        assert_eq!(
            of_each_crate("debug,hyper=off,rollout_core::engine=trace"),
            "debug,hyper=off,rollout_core::engine=trace"
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
