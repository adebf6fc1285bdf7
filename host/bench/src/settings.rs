//! Settings of a measurement.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use rollout_core::capacity;
use serde::Serialize;

use super::BenchError;
use super::tally::Amount;

/// Maximum number of concurrent requests in generation C, where responses do not wait for the rollout. Equals
/// the connection limit of a trainer's own pool.
pub(super) const REQUESTS_AT_ONCE_C: usize = 256;

/// Generation of the Osmosis protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, clap::ValueEnum)]
pub enum Generation {
    /// Callbacks, one sample.
    C,
    /// Polling under a lease.
    #[default]
    D,
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::C => "C",
            Self::D => "D",
        })
    }
}

/// A server to measure.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// Name in the report.
    pub name: String,
    /// Address of the server or command to start it.
    pub source: ServerSource,
}

/// Address of a server or command to start it.
#[derive(Clone, Debug, PartialEq)]
pub enum ServerSource {
    /// The server is already running.
    Running {
        /// `http://HOST[:PORT][/BASE]`.
        url: String,
        /// Its process on this machine, for CPU time and memory (Linux only).
        pid: Option<u32>,
    },
    /// Shell command that starts the server in its own process group, which the bench stops at the end. The
    /// command must print `listening on http://HOST:PORT` on a line. The process that listens there is
    /// measured (Linux only).
    Command(String),
}

/// Rollouts that run in the background of a measurement until the bench cancels them.
#[derive(Clone, Debug, PartialEq)]
pub struct Background {
    /// Number of rollouts.
    pub rollouts: usize,
    /// User message, which must keep the guest busy until it is cancelled.
    pub prompt: String,
}

/// Settings of a measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchSettings {
    /// One server, or two servers to compare.
    pub targets: Vec<Target>,
    /// Measures the server with and without these rollouts in the background.
    pub background: Option<Background>,
    /// Generation that the servers speak.
    pub generation: Generation,
    /// Numbers of concurrent rollouts, each measured separately.
    pub in_flight: Vec<usize>,
    /// Ends a measurement after this many rollouts.
    pub rollouts: Option<usize>,
    /// Ends a measurement after this time; unfinished rollouts are completed. With `rollouts`, the first
    /// limit applies; without either, the time is 5 s.
    pub time: Option<Duration>,
    /// Delay before each answer of the stub model, to the millisecond.
    pub model_latency: Duration,
    /// Number of chat calls per rollout. The stub model calls the first offered tool in all but the last.
    pub turns: u32,
    /// Length of a tool result that is requested, in bytes; `None` requests none.
    pub tool_bytes: Option<usize>,
    /// Starts the next rollouts together when all have ended, instead of one by one.
    pub wave: bool,
    /// Number of measurements of each server at each number in flight. The report has their medians.
    pub rounds: usize,
    /// API key of the servers, sent as `Authorization: Bearer`.
    pub api_key: Option<String>,
    /// Time after which a rollout counts as lost and is cancelled.
    pub rollout_timeout: Duration,
    /// Address of the stub model and the callback receiver. The servers must be able to reach it, so it
    /// cannot be `0.0.0.0`. Port 0 means any free port.
    pub listen: SocketAddr,
}

impl BenchSettings {
    /// Returns the default settings.
    #[must_use]
    pub(crate) fn new(targets: Vec<Target>) -> Self {
        Self {
            targets,
            background: None,
            generation: Generation::D,
            in_flight: vec![1, 64, 512],
            rollouts: None,
            time: None,
            model_latency: Duration::ZERO,
            turns: 1,
            tool_bytes: None,
            wave: false,
            rounds: 2,
            api_key: None,
            rollout_timeout: Duration::from_secs(60),
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        }
    }

    /// Checks the settings. Raises the limit of open files, which must suffice for all connections.
    pub(crate) fn check(&self) -> Result<(), BenchError> {
        let mut mistakes = Vec::new();
        let mut require = |holds: bool, mistake: &str| {
            if !holds {
                mistakes.push(mistake.to_owned());
            }
        };
        let most = self.in_flight.iter().copied().max().unwrap_or(0);
        require(matches!(self.targets.len(), 1 | 2), "give one server, or two to compare");
        if let Some(background) = &self.background {
            require(self.targets.len() == 1, "background rollouts need a single server to measure");
            require(self.generation == Generation::D, "background rollouts need generation D");
            require(background.rollouts > 0, "the number of background rollouts cannot be 0");
        }
        require(
            most > 0 && !self.in_flight.contains(&0),
            "give at least one number in flight, none of them 0",
        );
        require(
            self.rollouts.is_none_or(|rollouts| rollouts >= most),
            "the number in flight exceeds the number of rollouts, so it would never be reached",
        );
        require(self.rounds > 0, "at least one round must be measured");
        require(self.turns > 0, "a rollout has at least one turn");
        require(
            self.tool_bytes.is_none() || self.turns > 1,
            "a single turn calls no tool: --tool-bytes needs more --turns",
        );
        require(!self.rollout_timeout.is_zero(), "the rollout timeout cannot be zero");
        require(!self.listen.ip().is_unspecified(), "the servers need an address to call, not 0.0.0.0 or ::");
        let fits = |key: &String| !key.is_empty() && key.bytes().all(|b| b.is_ascii_graphic());
        require(self.api_key.as_ref().is_none_or(fits), "the server key must be printable, without spaces");
        if !mistakes.is_empty() {
            return Err(BenchError::Invalid(mistakes));
        }
        // Each rollout in flight has one incoming connection, and one outgoing if its request blocks until it
        // ends. Otherwise there are as many outgoing ones as a trainer has, plus concurrent callbacks.
        let out = match self.generation {
            Generation::D => most as u64,
            Generation::C => REQUESTS_AT_ONCE_C as u64 + most as u64 / 4,
        };
        let wanted = most as u64 + out + 100;
        let max = capacity::raise_descriptors();
        if max < wanted { Err(BenchError::Descriptors { wanted, max }) } else { Ok(()) }
    }

    /// Returns the amounts of a measurement and of its warm-up, which opens every connection.
    pub(crate) fn amounts(&self, in_flight: usize) -> (Amount, Amount) {
        const TIME: Duration = Duration::from_secs(5);
        const WARM_UP_MAX: Duration = Duration::from_secs(1);
        let measured = match (self.rollouts, self.time) {
            (Some(rollouts), None) => Amount { at_least: rollouts, at_most: rollouts, time: Duration::ZERO },
            (rollouts, time) => Amount {
                at_least: in_flight,
                at_most: rollouts.unwrap_or(usize::MAX),
                time: time.unwrap_or(TIME),
            },
        };
        let warm_up = Amount {
            at_least: in_flight,
            at_most: in_flight.max(self.rollouts.map_or(usize::MAX, |rollouts| rollouts / 10)),
            time: WARM_UP_MAX.min(self.time.unwrap_or(TIME) / 5),
        };
        (warm_up, measured)
    }
}
