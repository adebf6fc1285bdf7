//! The time in which this process ran.
//!
//! A process may be stopped for a while (by a signal, a debugger, a machine that is moved or has
//! no core for it). The callers that poll cannot be heard meanwhile, and their requests wait in
//! its sockets. Leases and results must not run out by such a time, so they are measured by a
//! clock that stands still then.

use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How often the process notes that it runs.
const TICK: Duration = Duration::from_millis(500);

/// A tick that is later than this was not late for a busy machine: the process stood still.
const LATE: Duration = Duration::from_secs(2);

/// See above. It ticks from the first time it is [started](RunClock::start).
pub struct RunClock {
    began: Instant,
    ticks: Mutex<Ticks>,
    started: Once,
}

#[derive(Clone, Copy)]
struct Ticks {
    last: Instant,
    stood: Duration,
}

impl Ticks {
    fn stood_until(&self, now: Instant) -> Duration {
        let since = now.saturating_duration_since(self.last);
        if since > LATE { self.stood + (since - TICK) } else { self.stood }
    }
}

impl RunClock {
    /// A clock that has not begun to tick.
    pub fn new() -> Arc<Self> {
        let now = Instant::now();
        let ticks = Mutex::new(Ticks { last: now, stood: Duration::ZERO });
        Arc::new(Self { began: now, ticks, started: Once::new() })
    }

    /// Begins to tick, within the runtime. Until then nothing is measured that could be lost.
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
            ticks.stood = ticks.stood_until(now);
        }
        ticks.last = now;
    }

    /// The time that the process has run.
    pub fn now(&self) -> Duration {
        self.at(Instant::now())
    }

    fn at(&self, now: Instant) -> Duration {
        let ticks = *self.ticks.lock().unwrap_or_else(PoisonError::into_inner);
        let is_ticking = self.started.is_completed();
        let stood = if is_ticking { ticks.stood_until(now) } else { ticks.stood };
        now.saturating_duration_since(self.began).saturating_sub(stood)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn time_in_which_nothing_ticks_does_not_count() {
        let clock = RunClock::new();
        clock.start();
        let at = |secs: f64| clock.began + Duration::from_secs_f64(secs);
        let close = |now: Duration, secs: f64| assert!((now.as_secs_f64() - secs).abs() < 0.1, "{now:?}");
        clock.tick(at(0.0), true);
        clock.tick(at(0.5), false);
        close(clock.at(at(1.0)), 1.0);
        close(clock.at(at(2.4)), 2.4);
        // It stood still for an hour after half a second, whoever notes it first.
        close(clock.at(at(3600.5)), 1.0);
        clock.tick(at(3600.6), false);
        close(clock.at(at(3600.6)), 1.0);
        clock.tick(at(3601.1), false);
        close(clock.at(at(3601.2)), 1.6);
    }
}
