//! A clock of the time in which this process ran.
//!
//! A process may be stopped for a while, by a signal, a debugger, or a machine that is migrated or overloaded.
//! Meanwhile the polls of callers wait in its sockets. Leases and results must not expire because of that time, so they
//! are measured by a clock that stops with the process.

use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Interval between ticks.
const TICK: Duration = Duration::from_millis(500);

/// Time between two ticks above which the process is considered stopped. A busy machine delays ticks by less.
const LATE: Duration = Duration::from_secs(2);

/// A clock that measures the time in which the process ran. It ticks after it is [started](RunClock::start).
pub struct RunClock {
    began: Instant,
    ticks: Mutex<Ticks>,
    started: Once,
}

#[derive(Clone, Copy)]
struct Ticks {
    last: Instant,
    /// Total time for which the process was stopped.
    stopped: Duration,
}

impl Ticks {
    /// Returns the total time for which the process was stopped until `now`.
    fn stopped_until(&self, now: Instant) -> Duration {
        let since = now.saturating_duration_since(self.last);
        if since > LATE { self.stopped + (since - TICK) } else { self.stopped }
    }
}

impl RunClock {
    /// Creates a clock that does not tick yet.
    pub fn new() -> Arc<Self> {
        let now = Instant::now();
        let ticks = Mutex::new(Ticks { last: now, stopped: Duration::ZERO });
        Arc::new(Self { began: now, ticks, started: Once::new() })
    }

    /// Starts a task on the current runtime that ticks.
    pub fn start(self: &Arc<Self>) {
        self.started.call_once(|| {
            self.tick(Instant::now(), true);
            let clock = Arc::downgrade(self);
            tokio::spawn(async move {
                loop {
                    tokio::time::sleep(TICK).await;
                    let Some(clock) = clock.upgrade() else { return };
                    clock.tick(Instant::now(), false);
                }
            });
        });
    }

    fn tick(&self, now: Instant, is_first: bool) {
        let mut ticks = self.ticks.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_first {
            ticks.stopped = ticks.stopped_until(now);
        }
        ticks.last = now;
    }

    /// Returns the time for which the process has run.
    pub fn now(&self) -> Duration {
        self.at(Instant::now())
    }

    fn at(&self, now: Instant) -> Duration {
        let ticks = *self.ticks.lock().unwrap_or_else(PoisonError::into_inner);
        let is_ticking = self.started.is_completed();
        let stopped = if is_ticking { ticks.stopped_until(now) } else { ticks.stopped };
        now.saturating_duration_since(self.began).saturating_sub(stopped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn time_without_ticks_does_not_count() {
        let clock = RunClock::new();
        clock.start();
        let at = |secs: f64| clock.began + Duration::from_secs_f64(secs);
        let close = |now: Duration, secs: f64| assert!((now.as_secs_f64() - secs).abs() < 0.1, "{now:?}");
        clock.tick(at(0.0), true);
        clock.tick(at(0.5), false);
        close(clock.at(at(1.0)), 1.0);
        close(clock.at(at(2.4)), 2.4);
        // The process was stopped for an hour, half a second after the start. Either method may notice it first.
        close(clock.at(at(3600.5)), 1.0);
        clock.tick(at(3600.6), false);
        close(clock.at(at(3600.6)), 1.0);
        clock.tick(at(3601.1), false);
        close(clock.at(at(3601.2)), 1.6);
    }
}
