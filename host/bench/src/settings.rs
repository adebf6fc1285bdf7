//! What is measured, and how.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use rollout_core::capacity;
use serde::Serialize;

use super::load::Amount;
use super::{BenchError, trainer};

/// The generation to speak.
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
    /// What the report calls it.
    pub name: String,
    /// Where it is, or how to start it.
    pub source: ServerSource,
}

/// Where a server is.
#[derive(Clone, Debug, PartialEq)]
pub enum ServerSource {
    /// It runs already.
    Running {
        /// `http://HOST[:PORT][/BASE]`.
        url: String,
        /// Its process on this machine, for processor time and memory (Linux only).
        pid: Option<u32>,
    },
    /// The bench starts it by this shell command, in a process group of its own, and ends the
    /// group when it is done. It must print `listening on http://HOST:PORT` on a line. The
    /// process that listens there is the one that is measured (Linux only).
    Command(String),
}

/// Rollouts that go on while others are measured, until the bench cancels them.
#[derive(Clone, Debug, PartialEq)]
pub struct Background {
    /// How many.
    pub rollouts: usize,
    /// What the user says in them, which is to keep the guest busy for as long as it may run.
    pub prompt: String,
}

/// What to measure, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchSettings {
    /// One server, or two that are measured in turn and compared.
    pub targets: Vec<Target>,
    /// Measures the one server twice, in turn: beside these rollouts, and alone.
    pub background: Option<Background>,
    /// What they speak.
    pub generation: Generation,
    /// Rollouts under way at a time; one measurement for each.
    pub in_flight: Vec<usize>,
    /// Ends a measurement after so many rollouts.
    pub rollouts: Option<usize>,
    /// Ends a measurement after this time; rollouts under way are finished. With `rollouts`,
    /// whichever is first; without either, 5 s.
    pub time: Option<Duration>,
    /// What the stub model waits before each answer, to the millisecond.
    pub model_latency: Duration,
    /// Chat calls after which the stub model gives its final answer. Until then it calls the
    /// first tool that it is offered.
    pub turns: u32,
    /// How long a result the tool is asked for, in bytes; none asks for no length.
    pub tool_bytes: Option<usize>,
    /// All in flight begin together, when all have ended, instead of each on its own.
    pub wave: bool,
    /// How often each server is measured at each number in flight. Medians are quoted.
    pub rounds: usize,
    /// The servers' key, sent as `Authorization: Bearer`.
    pub api_key: Option<String>,
    /// After this a rollout counts as lost, and is cancelled.
    pub rollout_timeout: Duration,
    /// Where the stub model and the callbacks are received. The servers must reach it by this
    /// address, so it cannot be `0.0.0.0`. Port 0 picks a free one.
    pub listen: SocketAddr,
}

impl BenchSettings {
    /// The measurement that is made when nothing else is said.
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

    pub(crate) fn check(&self) -> Result<(), BenchError> {
        let mut wrong = Vec::new();
        let mut demand = |holds: bool, what: &str| {
            if !holds {
                wrong.push(what.to_owned());
            }
        };
        let most = self.in_flight.iter().copied().max().unwrap_or(0);
        demand(matches!(self.targets.len(), 1 | 2), "give one server, or two to compare");
        if let Some(background) = &self.background {
            demand(self.targets.len() == 1, "beside other rollouts one server is measured, not two");
            demand(self.generation == Generation::D, "beside other rollouts generation D is measured");
            demand(background.rollouts > 0, "beside no rollouts there is nothing to compare");
        }
        demand(
            most > 0 && !self.in_flight.contains(&0),
            "give at least one number in flight, none of them 0",
        );
        demand(
            self.rollouts.is_none_or(|rollouts| rollouts >= most),
            "fewer rollouts than are to be in flight: that number would never be reached",
        );
        demand(self.rounds > 0, "at least one round must be measured");
        demand(self.turns > 0, "a rollout has at least one turn");
        demand(
            self.tool_bytes.is_none() || self.turns > 1,
            "in one turn no tool is called: --tool-bytes wants more --turns",
        );
        demand(!self.rollout_timeout.is_zero(), "the rollout timeout cannot be zero");
        demand(!self.listen.ip().is_unspecified(), "the servers need an address to call, not 0.0.0.0 or ::");
        let fits = |key: &String| !key.is_empty() && key.bytes().all(|b| b.is_ascii_graphic());
        demand(self.api_key.as_ref().is_none_or(fits), "the server key must be printable, without spaces");
        if !wrong.is_empty() {
            return Err(BenchError::Invalid(wrong));
        }
        // A connection in for each, and one out where a request waits for its rollout; else
        // as many as a trainer has and the callbacks that come at once.
        let out = match self.generation {
            Generation::D => most as u64,
            Generation::C => trainer::REQUESTS_AT_ONCE_C as u64 + most as u64 / 4,
        };
        let wanted = most as u64 + out + 100;
        let max = capacity::raise_descriptors();
        if max < wanted { Err(BenchError::Descriptors { wanted, max }) } else { Ok(()) }
    }

    /// Of a measurement, and of the warm-up before it, in which every connection is opened.
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
