//! Random numbers and clocks that do not depend on the machine, so that a run can be repeated. Random numbers
//! are seeded with the rollout's id and attempt, so that siblings differ. Time passes by the guest's actions,
//! not by the host's load.

use std::convert::Infallible;
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use chacha20::ChaCha8Rng;
use chrono::{DateTime, NaiveDate, NaiveTime};
use rand_core::{SeedableRng, TryRng};
use serde::{Deserialize, Serialize};
use wasmtime_wasi::{HostMonotonicClock, HostWallClock, WasiCtxBuilder};

use super::{Role, RunContext};
use rollout_wire::digest::sha256_parts;
use rollout_wire::text::{beginning, printable};

/// Returns the seed for one purpose in one role of a run. A fork uses the identity of an ancestor until it
/// has passed that ancestor's events.
pub(super) fn seed_of(run: &RunContext, era: usize, role: Role, purpose: &str) -> [u8; 32] {
    let (id, attempt) = run.identity(role, era);
    sha256_parts(&[
        b"rollout-host guest randomness 1",
        id.as_str().as_bytes(),
        &attempt.to_le_bytes(),
        role.as_str().as_bytes(),
        purpose.as_bytes(),
    ])
}

/// Seeds the guest's random sources.
pub(super) fn seed(builder: &mut WasiCtxBuilder, run: &Arc<RunContext>, role: Role, era: Arc<AtomicUsize>) {
    let seed = seed_of(run, 0, role, "random");
    let mut hash_seed = [0; 16];
    hash_seed.copy_from_slice(&seed[16..]);
    builder.insecure_random_seed(u128::from_le_bytes(hash_seed));
    let source = |mask| Source { run: run.clone(), role, mask, era: era.clone(), current: None };
    builder.secure_random(source(0)).insecure_random(source(1));
}

/// Random numbers of a rollout; a fork first draws those of its ancestors.
struct Source {
    run: Arc<RunContext>,
    role: Role,
    /// Mask over the first byte of the seed.
    mask: u8,
    /// Number of forks that the run has passed so far.
    era: Arc<AtomicUsize>,
    current: Option<(usize, ChaCha8Rng)>,
}

impl Source {
    fn numbers(&mut self) -> &mut ChaCha8Rng {
        let era = self.era.load(Ordering::Relaxed);
        let current = self.current.take().filter(|(of, _)| *of == era);
        let current = current.unwrap_or_else(|| {
            let mut seed = seed_of(&self.run, era, self.role, "random");
            seed[0] ^= self.mask;
            (era, ChaCha8Rng::from_seed(seed))
        });
        &mut self.current.insert(current).1
    }
}

impl TryRng for Source {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        self.numbers().try_next_u32()
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        self.numbers().try_next_u64()
    }

    fn try_fill_bytes(&mut self, to: &mut [u8]) -> Result<(), Infallible> {
        self.numbers().try_fill_bytes(to)
    }
}

/// The date and time at which a rollout's clocks start, in whole seconds. The default is 2025-01-01 00:00
/// UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClockStart(i64);

/// Error of a text that is neither a date nor a date and time.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "'{0}' is neither a date such as 2026-11-23 nor a time such as 2026-11-23T09:30:00Z, from 1970 to 2199"
)]
pub struct InvalidClockStart(String);

impl ClockStart {
    /// The latest start, exclusive: 2200-01-01. Guests count nanoseconds since 1970 in 64 bits, which
    /// overflow in 2262.
    const END: i64 = 7_258_118_400;

    /// Returns whether this is the default.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    fn since_1970(self) -> Duration {
        Duration::from_secs(self.0.try_into().unwrap_or_default())
    }
}

impl Default for ClockStart {
    fn default() -> Self {
        Self(1_735_689_600)
    }
}

impl FromStr for ClockStart {
    type Err = InvalidClockStart;

    fn from_str(text: &str) -> Result<Self, InvalidClockStart> {
        let date = || text.parse::<NaiveDate>().ok().map(|date| date.and_time(NaiveTime::MIN).and_utc());
        let time = DateTime::parse_from_rfc3339(text).map(|time| time.to_utc()).ok().or_else(date);
        let seconds = time.map(|time| time.timestamp()).filter(|seconds| (0..Self::END).contains(seconds));
        seconds.map(Self).ok_or_else(|| InvalidClockStart(printable(&beginning(text, SHOWN_BYTES))))
    }
}

/// Number of bytes of an invalid date that an error shows.
const SHOWN_BYTES: usize = 64;

impl Display for ClockStart {
    fn fmt(&self, to: &mut Formatter<'_>) -> fmt::Result {
        let time = DateTime::from_timestamp(self.0, 0).unwrap_or_default();
        let seconds = if self.0 % 60 == 0 { "%Y-%m-%d %H:%M UTC" } else { "%Y-%m-%d %H:%M:%S UTC" };
        write!(to, "{}", time.format(seconds))
    }
}

/// Virtual time that passes when a guest reads the clock, so that a guest that waits in a loop makes
/// progress.
const LOOK: Duration = Duration::from_micros(1);

/// Virtual time that passes when a guest takes answers of a model or of tools.
pub(super) const ANSWER: Duration = Duration::from_millis(1);

/// The clock of one instance, wall clock and monotonic clock in one.
#[derive(Clone, Debug)]
pub(super) struct GuestClock {
    begins: ClockStart,
    passed: Arc<AtomicU64>,
}

impl GuestClock {
    /// Creates a clock that starts at this date.
    pub(super) fn new(begins: ClockStart) -> Self {
        Self { begins, passed: Arc::default() }
    }

    /// Advances the clock; returns the time since the run began.
    pub(super) fn pass(&self, time: Duration) -> Duration {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(self.passed.fetch_add(nanos, Ordering::Relaxed).saturating_add(nanos))
    }
}

impl HostWallClock for GuestClock {
    fn resolution(&self) -> Duration {
        LOOK
    }

    fn now(&self) -> Duration {
        self.begins.since_1970() + self.pass(LOOK)
    }
}

impl HostMonotonicClock for GuestClock {
    fn resolution(&self) -> u64 {
        LOOK.as_nanos() as u64
    }

    fn now(&self) -> u64 {
        self.pass(LOOK).as_nanos() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_begins_at_a_date_or_a_time_and_says_so() {
        let check = |text: &str, expected: Option<&str>| {
            let start = text.parse::<ClockStart>().ok();
            assert_eq!(start.map(|start| start.to_string()).as_deref(), expected, "{text}");
        };
        check("2026-11-23", Some("2026-11-23 00:00 UTC"));
        check("2026-11-23T09:30:00Z", Some("2026-11-23 09:30 UTC"));
        check("2026-11-23T09:30:07+02:00", Some("2026-11-23 07:30:07 UTC"));
        check("1970-01-01", Some("1970-01-01 00:00 UTC"));
        check("2199-12-31", Some("2199-12-31 00:00 UTC"));
        for wrong in ["", "today", "2026-02-30", "1969-12-31", "2200-01-01", "23.11.2026", "\u{1b}[31m"] {
            check(wrong, None);
        }
        assert_eq!(ClockStart::default().to_string(), "2025-01-01 00:00 UTC");
    }

    #[test]
    fn time_passes_from_where_a_clock_begins() {
        let clock = GuestClock::new("2026-11-23".parse().unwrap());
        clock.pass(Duration::from_secs(60));

        let now = HostWallClock::now(&clock);

        assert_eq!(now, clock.begins.since_1970() + Duration::from_secs(60) + LOOK);
        assert_eq!(HostMonotonicClock::now(&clock), (Duration::from_secs(60) + 2 * LOOK).as_nanos() as u64);
    }
}
