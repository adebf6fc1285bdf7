//! A load generator: trainer, model endpoint and callback receiver in one process.
//!
//! `run` drives any server that speaks generation C or D of the Osmosis protocol and reports throughput,
//! latency, cost and errors. Two servers are measured in turn (A B A B), so that other load of the machine
//! affects both alike; a single server can be measured with and without rollouts in the background. Every
//! result is checked against the only right answer.
//!
//! The bench must cost less than the server it measures. It has its own HTTP client (`http1`) and needs one
//! thread: [`run_blocking`] creates a runtime with exactly that.
//!
//! The bench knows neither plugins nor instances nor this host; it measures any server.

mod args;
mod background;
mod endpoint;
mod load;
mod measure;
mod outcome;
mod plot;
mod proc_fs;
mod report;
mod server;
mod settings;
pub mod simulation;
mod soak;
mod stats;
mod tally;
#[cfg(test)]
mod tests;
mod trainer;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use background::BackgroundRollouts;
use endpoint::{Endpoint, Script};
use load::Workers;
use server::Server;
use trainer::{Address, Connections, TrainerContext};

pub use args::Args;
pub use outcome::ErrorKind;
pub use proc_fs::ProcError;
pub use report::{
    ErrorCount, Errors, Figures, Level, Ratios, Report, ServerFigures, ServerLevel, TargetSeen,
};
pub use server::StartError;
pub use settings::{Background, BenchSettings, Generation, ServerSource, Target};
pub use soak::{Growth, Reading, SoakReport};

/// Error that prevents a report. Failures of single rollouts are part of the report instead.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The settings contradict each other; all contradictions are listed.
    #[error("{}", .0.join("; "))]
    Invalid(Vec<String>),
    /// The process may not open enough descriptors.
    #[error("{wanted} open files are needed but only {max} allowed; run 'ulimit -n {wanted}' first")]
    Descriptors {
        /// Number needed for all connections.
        wanted: u64,
        /// The limit.
        max: u64,
    },
    /// A server's URL has an unsupported form.
    #[error("'{url}' is not of the form http://HOST[:PORT][/BASE] (TLS is not supported)")]
    Url {
        /// The URL.
        url: String,
    },
    /// A server's host name cannot be resolved.
    #[error("cannot resolve the host of '{url}'")]
    Resolve {
        /// The URL.
        url: String,
        /// Error of the resolver.
        source: io::Error,
    },
    /// The stub model cannot listen.
    #[error("cannot listen on {listen} for chat calls and callbacks")]
    Listen {
        /// The requested address.
        listen: SocketAddr,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A server cannot be started.
    #[error("cannot start {name}")]
    Start {
        /// The target's name.
        name: String,
        /// Cause.
        source: StartError,
    },
    /// The first rollout failed, before any measurement.
    #[error("the first rollout of {name} failed ({kind}): {detail}")]
    FirstRollout {
        /// The target's name.
        name: String,
        /// Kind of the failure.
        kind: ErrorKind,
        /// Description of the failure, for people.
        detail: String,
    },
    /// The background rollouts cannot be started or cancelled.
    #[error("cannot start or cancel the background rollouts ({kind}): {detail}")]
    Background {
        /// Kind of the failure.
        kind: ErrorKind,
        /// Description of the failure, for people.
        detail: String,
    },
    /// Background rollouts ended before they were cancelled.
    #[error(
        "{ended} of the {rollouts} background rollouts ended by themselves; their prompt must keep \
         the guest busy, and the server's limits must allow that"
    )]
    BackgroundEnded {
        /// Number of rollouts that ended.
        ended: usize,
        /// Number of background rollouts.
        rollouts: usize,
    },
    /// A server's process cannot be read; it may have ended.
    #[error("cannot read the process of {name}")]
    Process {
        /// The target's name.
        name: String,
        /// Cause.
        source: ProcError,
    },
    /// The chart cannot be drawn.
    #[error("cannot draw the report: {0}")]
    Plot(String),
    /// The runtime cannot be started.
    #[error("cannot start a runtime for the bench")]
    Runtime(#[source] io::Error),
    /// SIGINT or SIGTERM was received.
    #[error("interrupted")]
    Interrupted,
}

/// Progress of a bench. `Display` formats it as one line.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Progress {
    /// A command starts.
    Starting {
        /// The target's name.
        name: String,
    },
    /// A server finished its first rollout.
    Ready {
        /// The target.
        target: TargetSeen,
    },
    /// A measurement starts.
    Measuring {
        /// The target's name.
        name: String,
        /// Number of concurrent rollouts.
        in_flight: usize,
        /// Number of this measurement, from 1.
        step: usize,
        /// Number of measurements.
        steps: usize,
    },
    /// A measurement ended.
    Measured {
        /// The target's name.
        name: String,
        /// Number of concurrent rollouts.
        in_flight: usize,
        /// Number of this measurement, from 1.
        step: usize,
        /// Number of measurements.
        steps: usize,
        /// Result of the measurement.
        figures: Box<Figures>,
    },
    /// A soak test read the server's process.
    Soaking {
        /// Number of rollouts that ended.
        done: usize,
        /// Number of all rollouts.
        rollouts: usize,
        /// Seconds since the first reading.
        secs: f64,
        /// The reading.
        look: Reading,
    },
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Starting { name } => write!(f, "starting {name}"),
            Self::Ready { target } => write!(f, "{} answers on {}", target.name, target.url),
            Self::Measuring { name, in_flight, step, steps } => {
                write!(f, "[{step}/{steps}] {name}, {in_flight} in flight")
            }
            Self::Soaking { done, rollouts, secs, look } => {
                let Reading { rss_mib, mappings, fds, .. } = look;
                let rate = *done as f64 / secs.max(f64::EPSILON);
                write!(
                    f,
                    "{done} of {rollouts} rollouts, {rate:.0}/s, {rss_mib:.1} MiB, {mappings} mappings, {fds} descriptors"
                )
            }
            Self::Measured { name, in_flight, step, steps, figures } => {
                let Figures { rollouts_per_sec, errors, .. } = &**figures;
                write!(
                    f,
                    "[{step}/{steps}] {name}, {in_flight} in flight: {rollouts_per_sec:.0} rollouts/s"
                )?;
                match errors.count() {
                    0 => Ok(()),
                    count => write!(f, ", {count} errors"),
                }
            }
        }
    }
}

/// Runs the bench in a runtime with one thread until it ends or SIGINT or SIGTERM arrives. Must not be called
/// from asynchronous code.
pub fn run_blocking(settings: BenchSettings, progress: impl FnMut(Progress)) -> Result<Report, BenchError> {
    blocking(run(settings, progress))
}

/// Runs a soak test in the same way.
pub fn soak_blocking(
    settings: BenchSettings,
    rollouts: usize,
    progress: impl FnMut(Progress),
) -> Result<SoakReport, BenchError> {
    blocking(soak(settings, rollouts, progress))
}

/// Draws the report as an SVG document.
pub fn plot(report: &Report) -> Result<String, BenchError> {
    plot::svg(report).map_err(|error| BenchError::Plot(error.to_string()))
}

fn blocking<T>(work: impl Future<Output = Result<T, BenchError>>) -> Result<T, BenchError> {
    use tokio::signal::unix::{SignalKind, signal};

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(BenchError::Runtime)?.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt()).map_err(BenchError::Runtime)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(BenchError::Runtime)?;
        tokio::select! {
            done = work => done,
            _ = interrupt.recv() => Err(BenchError::Interrupted),
            _ = terminate.recv() => Err(BenchError::Interrupted),
        }
    })
}

/// Starts servers, measures, and stops the servers, also after an error and when the future is dropped. A
/// runtime with more threads works too, at a higher cost.
pub(crate) async fn run(
    settings: BenchSettings,
    mut progress: impl FnMut(Progress),
) -> Result<Report, BenchError> {
    settings.check()?;
    let mut servers = Vec::new();
    let outcome = prepare_and_measure(&settings, &mut servers, &mut progress).await;
    for server in servers {
        server.stop().await;
    }
    outcome
}

/// Runs rollouts at one number in flight on one server and measures whether its process grows.
pub(crate) async fn soak(
    settings: BenchSettings,
    rollouts: usize,
    mut progress: impl FnMut(Progress),
) -> Result<SoakReport, BenchError> {
    settings.check()?;
    let ([_], [in_flight]) = (settings.targets.as_slice(), settings.in_flight.as_slice()) else {
        return Err(BenchError::Invalid(vec![
            "a soak test takes one server and one number in flight, such as --in-flight 64".to_owned(),
        ]));
    };
    if rollouts < *in_flight {
        return Err(BenchError::Invalid(vec![
            "a soak test needs at least as many rollouts as are in flight".to_owned(),
        ]));
    }
    let mut servers = Vec::new();
    let outcome = async {
        let mut prepared = prepare(&settings, &mut servers, &mut progress).await?;
        let PreparedServer { seen, context, .. } = prepared.remove(0);
        soak::soak(seen, &context, *in_flight, rollouts, &mut progress).await
    }
    .await;
    for server in servers {
        server.stop().await;
    }
    outcome
}

/// A server that is ready to be measured, with its background rollouts.
#[derive(Clone)]
struct PreparedServer {
    seen: TargetSeen,
    context: Arc<TrainerContext>,
    background: Option<Background>,
}

async fn prepare_and_measure(
    settings: &BenchSettings,
    servers: &mut Vec<Server>,
    progress: &mut impl FnMut(Progress),
) -> Result<Report, BenchError> {
    let mut prepared = prepare(settings, servers, progress).await?;
    if let (Some(background), [only]) = (&settings.background, prepared.as_mut_slice()) {
        let mut alone = only.clone();
        "alone".clone_into(&mut alone.seen.name);
        only.seen.name = format!("with {} in background", background.rollouts);
        only.background = Some(background.clone());
        prepared.push(alone);
    }
    let levels = measure_all(settings, &prepared, progress).await?;
    Ok(Report {
        generation: settings.generation,
        model_latency_ms: settings.model_latency.as_secs_f64() * 1e3,
        turns: settings.turns,
        tool_bytes: settings.tool_bytes,
        wave: settings.wave,
        rounds: settings.rounds,
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        targets: prepared.into_iter().map(|server| server.seen).collect(),
        levels,
    })
}

/// Starts the stub model and the servers, and runs one rollout on each server.
async fn prepare(
    settings: &BenchSettings,
    servers: &mut Vec<Server>,
    progress: &mut impl FnMut(Progress),
) -> Result<Vec<PreparedServer>, BenchError> {
    let listen = settings.listen;
    let endpoint = Endpoint::start(listen, settings.model_latency, Script::of(settings))
        .map_err(|source| BenchError::Listen { listen, source })?;
    let endpoint = Arc::new(endpoint);
    let mut prepared = Vec::new();
    for target in &settings.targets {
        let seen = find(target, servers, progress).await?;
        let context = Arc::new(TrainerContext {
            connections: Connections::new(settings.generation),
            address: Address::resolve(&seen.url).await?,
            generation: settings.generation,
            api_key: settings.api_key.clone(),
            rollout_timeout: settings.rollout_timeout,
            endpoint: endpoint.clone(),
        });
        measure::try_one(&context).await.map_err(|failure| BenchError::FirstRollout {
            name: seen.name.clone(),
            kind: failure.kind,
            detail: failure.detail,
        })?;
        progress(Progress::Ready { target: seen.clone() });
        prepared.push(PreparedServer { seen, context, background: None });
    }
    Ok(prepared)
}

async fn find(
    target: &Target,
    servers: &mut Vec<Server>,
    progress: &mut impl FnMut(Progress),
) -> Result<TargetSeen, BenchError> {
    let name = target.name.clone();
    match &target.source {
        ServerSource::Running { url, pid } => {
            Ok(TargetSeen { name, url: url.clone(), pid: *pid, command: None })
        }
        ServerSource::Command(command) => {
            progress(Progress::Starting { name: name.clone() });
            let started = Server::start(command).await;
            let server = started.map_err(|source| BenchError::Start { name: name.clone(), source })?;
            let (url, pid) = (server.url.clone(), Some(server.pid));
            servers.push(server);
            Ok(TargetSeen { name, url, pid, command: Some(command.clone()) })
        }
    }
}

/// Measures all servers in turn (A B A B) at one number in flight, then at the next.
async fn measure_all(
    settings: &BenchSettings,
    servers: &[PreparedServer],
    progress: &mut impl FnMut(Progress),
) -> Result<Vec<Level>, BenchError> {
    let steps = settings.in_flight.len() * settings.rounds * servers.len();
    let mut step = 0;
    let mut levels = Vec::new();
    for &in_flight in &settings.in_flight {
        let (warm_up, amount) = settings.amounts(in_flight);
        let mut rounds = vec![Vec::new(); servers.len()];
        for _ in 0..settings.rounds {
            for (PreparedServer { seen, context, background }, rounds) in servers.iter().zip(&mut rounds) {
                step += 1;
                let name = seen.name.clone();
                progress(Progress::Measuring { name: name.clone(), in_flight, step, steps });
                // Each round opens new connections, because the server closes idle ones meanwhile.
                let mut workers = Workers::new(context, in_flight, settings.wave);
                let background_rollouts = match background {
                    Some(background) => Some(BackgroundRollouts::begin(context, background).await?),
                    None => None,
                };
                let measured = measure::measure(context, seen.pid, &mut workers, warm_up, amount).await;
                if let Some(background_rollouts) = background_rollouts {
                    background_rollouts.end().await?;
                }
                let figures =
                    measured.map_err(|source| BenchError::Process { name: name.clone(), source })?;
                rounds.push(figures.clone());
                let figures = Box::new(figures);
                progress(Progress::Measured { name, in_flight, step, steps, figures });
            }
        }
        levels.push(Level::new(in_flight, rounds));
    }
    Ok(levels)
}
