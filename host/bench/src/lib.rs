//! A load generator: trainer, model endpoint and callback receiver in one process.
//!
//! `run` drives any server that speaks generation C or D of the Osmosis protocol, by URL, and
//! says how many rollouts a second it finished, how long they took, what they cost and what
//! went wrong. Two servers are measured in turn (A B A B), so that what else the machine does
//! falls on both; so is one server beside rollouts that never stop, and alone. Every result is
//! checked against the one right answer.
//!
//! The bench must cost less than what it measures. It speaks HTTP by itself (`http1`), and
//! wants one thread: [`run_blocking`] gives it a runtime of its own with just that.
//!
//! It knows nothing of plugins, instances or this host: whatever answers is measured.

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
mod soak;
mod stats;
#[cfg(test)]
mod tests;
mod trainer;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use background::Company;
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
pub use soak::{Growth, Look, SoakReport};

/// Why there is no report. What goes wrong in single rollouts is in the report instead.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// Settings that make no sense; all of them.
    #[error("{}", .0.join("; "))]
    Invalid(Vec<String>),
    /// So many in flight need more descriptors than this process may have.
    #[error("{wanted} open files are needed and {max} allowed; run 'ulimit -n {wanted}' first")]
    Descriptors {
        /// For all connections.
        wanted: u64,
        /// The limit.
        max: u64,
    },
    /// A server's address cannot be used.
    #[error("'{url}' is not of the form http://HOST[:PORT][/BASE] (TLS is not measured)")]
    Url {
        /// As given.
        url: String,
    },
    /// A server's name is not known.
    #[error("cannot find the host of '{url}'")]
    Resolve {
        /// As given.
        url: String,
        /// What the resolver said.
        source: io::Error,
    },
    /// The stub model cannot listen.
    #[error("cannot listen on {listen} for chat calls and callbacks")]
    Listen {
        /// As given.
        listen: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// A server was not started.
    #[error("cannot start {name}")]
    Start {
        /// The target's name.
        name: String,
        /// Why.
        source: StartError,
    },
    /// The first rollout, before anything is measured, did not end right.
    #[error("{name} did not do a first rollout right ({kind}): {detail}")]
    FirstRollout {
        /// The target's name.
        name: String,
        /// In what way.
        kind: ErrorKind,
        /// What was seen.
        detail: String,
    },
    /// The rollouts to go on beside those measured were not begun, or not cancelled.
    #[error("the rollouts beside those measured: {kind}: {detail}")]
    Background {
        /// In what way.
        kind: ErrorKind,
        /// What was seen.
        detail: String,
    },
    /// Rollouts that were to go on did not.
    #[error(
        "{ended} of the {rollouts} rollouts beside those measured ended by themselves; their prompt must make \
         the guest go on, and the server's limits must let it"
    )]
    BesideEnded {
        /// How many.
        ended: usize,
        /// Of how many.
        rollouts: usize,
    },
    /// A server's process could not be looked at; it may have ended.
    #[error("cannot measure the process of {name}")]
    Process {
        /// The target's name.
        name: String,
        /// Why.
        source: ProcError,
    },
    /// The report cannot be drawn.
    #[error("cannot draw the report: {0}")]
    Plot(String),
    /// The runtime did not start.
    #[error("cannot start a runtime for the bench")]
    Runtime(#[source] io::Error),
    /// SIGINT or SIGTERM.
    #[error("interrupted")]
    Interrupted,
}

/// What goes on, for a person who waits. `Display` gives one line.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Progress {
    /// A command is run.
    Starting {
        /// The target's name.
        name: String,
    },
    /// A server answered a first rollout right.
    Ready {
        /// The target.
        target: TargetSeen,
    },
    /// A measurement begins.
    Measuring {
        /// The target's name.
        name: String,
        /// Rollouts under way at a time.
        in_flight: usize,
        /// Which measurement of all, from 1.
        step: usize,
        /// All measurements.
        steps: usize,
    },
    /// A measurement ended.
    Measured {
        /// The target's name.
        name: String,
        /// Rollouts under way at a time.
        in_flight: usize,
        /// Which measurement of all, from 1.
        step: usize,
        /// All measurements.
        steps: usize,
        /// What it gave.
        figures: Box<Figures>,
    },
    /// A soak looked at the server's process.
    Soaking {
        /// Rollouts that ended.
        done: usize,
        /// Rollouts in all.
        rollouts: usize,
        /// Seconds since the first look.
        secs: f64,
        /// What was seen.
        look: Look,
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
                let Look { rss_mib, mappings, fds, .. } = look;
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

/// `run` in a runtime of its own, with one thread, ended by SIGINT and SIGTERM. Not to be
/// called from asynchronous code.
pub fn run_blocking(settings: BenchSettings, progress: impl FnMut(Progress)) -> Result<Report, BenchError> {
    blocking(run(settings, progress))
}

/// `soak` likewise.
pub fn soak_blocking(
    settings: BenchSettings,
    rollouts: usize,
    progress: impl FnMut(Progress),
) -> Result<SoakReport, BenchError> {
    blocking(soak(settings, rollouts, progress))
}

/// The report as an SVG document.
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

/// Starts what is to be started, measures, and ends what was started, also on an error and
/// when the future is dropped. In a runtime with more than one thread it works as well, and
/// costs more.
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

/// Runs so many rollouts at one number in flight on one server, and sees whether it grows.
/// Starts and ends what [`run`] does.
pub(crate) async fn soak(
    settings: BenchSettings,
    rollouts: usize,
    mut progress: impl FnMut(Progress),
) -> Result<SoakReport, BenchError> {
    settings.check()?;
    let ([_], [in_flight]) = (settings.targets.as_slice(), settings.in_flight.as_slice()) else {
        return Err(BenchError::Invalid(vec![
            "a soak is of one server at one number in flight, such as --in-flight 64".to_owned(),
        ]));
    };
    if rollouts < *in_flight {
        return Err(BenchError::Invalid(vec![
            "a soak of fewer rollouts than are to be in flight".to_owned(),
        ]));
    }
    let mut servers = Vec::new();
    let outcome = async {
        let mut stands = prepare(&settings, &mut servers, &mut progress).await?;
        let Stand { seen, context, .. } = stands.remove(0);
        soak::soak(seen, &context, *in_flight, rollouts, &mut progress).await
    }
    .await;
    for server in servers {
        server.stop().await;
    }
    outcome
}

/// A server that is ready to be measured, and in what company.
#[derive(Clone)]
struct Stand {
    seen: TargetSeen,
    context: Arc<TrainerContext>,
    background: Option<Background>,
}

async fn prepare_and_measure(
    settings: &BenchSettings,
    servers: &mut Vec<Server>,
    progress: &mut impl FnMut(Progress),
) -> Result<Report, BenchError> {
    let mut stands = prepare(settings, servers, progress).await?;
    if let (Some(background), [only]) = (&settings.background, stands.as_mut_slice()) {
        let mut alone = only.clone();
        "alone".clone_into(&mut alone.seen.name);
        only.seen.name = format!("with {} in background", background.rollouts);
        only.background = Some(background.clone());
        stands.push(alone);
    }
    let levels = measure_all(settings, &stands, progress).await?;
    Ok(Report {
        generation: settings.generation,
        model_latency_ms: settings.model_latency.as_secs_f64() * 1e3,
        turns: settings.turns,
        tool_bytes: settings.tool_bytes,
        wave: settings.wave,
        rounds: settings.rounds,
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        targets: stands.into_iter().map(|stand| stand.seen).collect(),
        levels,
    })
}

/// Starts the stub model and what is to be started, and has each server do one rollout.
async fn prepare(
    settings: &BenchSettings,
    servers: &mut Vec<Server>,
    progress: &mut impl FnMut(Progress),
) -> Result<Vec<Stand>, BenchError> {
    let listen = settings.listen;
    let endpoint = Endpoint::start(listen, settings.model_latency, Script::of(settings))
        .map_err(|source| BenchError::Listen { listen, source })?;
    let endpoint = Arc::new(endpoint);
    let mut stands = Vec::new();
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
        stands.push(Stand { seen, context, background: None });
    }
    Ok(stands)
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

/// A B A B at one number in flight, then the next.
async fn measure_all(
    settings: &BenchSettings,
    stands: &[Stand],
    progress: &mut impl FnMut(Progress),
) -> Result<Vec<Level>, BenchError> {
    let steps = settings.in_flight.len() * settings.rounds * stands.len();
    let mut step = 0;
    let mut levels = Vec::new();
    for &in_flight in &settings.in_flight {
        let (warm_up, amount) = settings.amounts(in_flight);
        let mut rounds = vec![Vec::new(); stands.len()];
        for _ in 0..settings.rounds {
            for (Stand { seen, context, background }, rounds) in stands.iter().zip(&mut rounds) {
                step += 1;
                let name = seen.name.clone();
                progress(Progress::Measuring { name: name.clone(), in_flight, step, steps });
                // New connections each time: the server closes them while the other one is measured.
                let mut workers = Workers::new(context, in_flight, settings.wave);
                let company = match background {
                    Some(background) => Some(Company::begin(context, background).await?),
                    None => None,
                };
                let measured = measure::measure(context, seen.pid, &mut workers, warm_up, amount).await;
                if let Some(company) = company {
                    company.end().await?;
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
