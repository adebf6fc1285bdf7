//! Random numbers and clocks that do not depend on the machine, so that a run can be
//! repeated: numbers are seeded by the rollout's id and attempt, so that two siblings
//! differ, and time passes by what a guest does, not by what the host is busy with.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use chacha20::ChaCha8Rng;
use rand_core::{SeedableRng, TryRng};
use wasmtime_wasi::{HostMonotonicClock, HostWallClock, WasiCtxBuilder};

use super::{Role, RunContext};
use crate::digest::sha256_parts;

/// The seed of one use within one role of one try of one rollout: of the one whose a workflow's past
/// is, where that is a fork, until it has passed so many.
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

/// Gives the guest's random sources their seeds.
pub(super) fn seed(builder: &mut WasiCtxBuilder, run: &Arc<RunContext>, role: Role, era: Arc<AtomicUsize>) {
    let seed = seed_of(run, 0, role, "random");
    let mut hash_seed = [0; 16];
    hash_seed.copy_from_slice(&seed[16..]);
    builder.insecure_random_seed(u128::from_le_bytes(hash_seed));
    let source = |mask| Source { run: run.clone(), role, mask, era: era.clone(), current: None };
    builder.secure_random(source(0)).insecure_random(source(1));
}

/// Random numbers of a rollout, and where it is a fork of others, first of those.
struct Source {
    run: Arc<RunContext>,
    role: Role,
    /// Over the first byte of the seed.
    mask: u8,
    /// How many forks the run has passed by now.
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

/// The day on which every run begins: 2025-01-01T00:00:00Z.
const EPOCH: Duration = Duration::from_secs(1_735_689_600);

/// The same day for a person.
pub const CLOCK_BEGINS: &str = "2025-01-01 00:00 UTC";

/// What a look at the clock takes, so that a guest that waits in a loop gets on.
const LOOK: Duration = Duration::from_micros(1);

/// What an answer of the model takes.
pub(super) const ANSWER: Duration = Duration::from_millis(1);

/// The clock of one instance, wall clock and monotonic clock in one.
#[derive(Clone, Debug, Default)]
pub(super) struct GuestClock(Arc<AtomicU64>);

impl GuestClock {
    /// Lets time pass; gives the time since the run began.
    pub(super) fn pass(&self, time: Duration) -> Duration {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(self.0.fetch_add(nanos, Ordering::Relaxed).saturating_add(nanos))
    }
}

impl HostWallClock for GuestClock {
    fn resolution(&self) -> Duration {
        LOOK
    }

    fn now(&self) -> Duration {
        EPOCH + self.pass(LOOK)
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
