//! Meters for the CPU time, memory, host calls and wall time of guests.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Counters of the machine's resources that the guests of one rollout use.
#[derive(Debug, Default)]
pub struct Meter {
    pub(super) cpu_nanos: AtomicU64,
    pub(super) memory_bytes_peak: AtomicUsize,
    pub(super) host_calls: AtomicU64,
    wall_nanos: AtomicU64,
}

/// Counts the wall time of an instance until it is dropped.
pub(crate) struct WallTime<'a> {
    meter: &'a Meter,
    since: std::time::Instant,
}

impl Drop for WallTime<'_> {
    fn drop(&mut self) {
        self.meter.wall_nanos.fetch_add(nanos(self.since.elapsed()), Ordering::Relaxed);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Meter {
    /// Counts wall time until the returned guard is dropped.
    pub(crate) fn wall_time(&self) -> WallTime<'_> {
        WallTime { meter: self, since: std::time::Instant::now() }
    }

    /// Returns the wall time of all instances that have ended.
    pub fn wall(&self) -> Duration {
        Duration::from_nanos(self.wall_nanos.load(Ordering::Relaxed))
    }

    /// Adds CPU time.
    pub(crate) fn add_cpu(&self, time: Duration) {
        self.cpu_nanos.fetch_add(nanos(time), Ordering::Relaxed);
    }

    /// Raises the peak to an instance's current memory, if that is higher.
    pub(crate) fn note_memory(&self, bytes: usize) {
        self.memory_bytes_peak.fetch_max(bytes, Ordering::Relaxed);
    }

    /// Counts a call of an import.
    pub(super) fn add_host_call(&self) {
        self.host_calls.fetch_add(1, Ordering::Relaxed);
    }
}
