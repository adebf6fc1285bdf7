//! What a tenant uses in a day.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What was used on one day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DayUse {
    /// The day, counted from the beginning of 1970, by UTC.
    pub day: u64,
    /// Tokens that models took and gave.
    pub model_tokens: u64,
    /// CPU time of guests.
    pub guest_cpu: Duration,
}

/// Counts what is used on each day. It is asked for the last of them only.
#[derive(Debug, Default)]
pub struct Meter(Mutex<DayUse>);

const DAY_SECS: u64 = 24 * 60 * 60;

fn today() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "days begin by the clock of the world")]
    let now = SystemTime::now();
    now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / DAY_SECS
}

impl DayUse {
    /// The same, on a day that may have begun since.
    fn on(self, day: u64) -> Self {
        if self.day == day { self } else { Self { day, ..Self::default() } }
    }
}

impl Meter {
    fn lock(&self) -> MutexGuard<'_, DayUse> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was used today.
    pub fn today(&self) -> DayUse {
        self.of_day(today())
    }

    /// What was used on this day, where it is the last one on which anything was.
    pub fn of_day(&self, day: u64) -> DayUse {
        self.lock().on(day)
    }

    /// Begins with what was used in a process before.
    pub fn set(&self, used: DayUse) {
        *self.lock() = used;
    }

    pub(crate) fn add_tokens(&self, tokens: u64) {
        self.add_tokens_on(today(), tokens);
    }

    /// Adds tokens of models on a day, counted in days since 1970.
    pub fn add_tokens_on(&self, day: u64, tokens: u64) {
        let mut used = self.lock();
        *used = used.on(day);
        used.model_tokens = used.model_tokens.saturating_add(tokens);
    }

    pub(crate) fn add_cpu(&self, time: Duration) {
        let mut used = self.lock();
        *used = used.on(today());
        used.guest_cpu = used.guest_cpu.saturating_add(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_day_begins_with_nothing() {
        let meter = Meter::default();
        meter.add_tokens_on(3, 5);
        meter.add_tokens_on(3, u64::MAX);
        assert_eq!(meter.of_day(3).model_tokens, u64::MAX);
        assert_eq!(meter.of_day(4), DayUse { day: 4, ..DayUse::default() });
        meter.add_cpu(Duration::from_millis(20));
        meter.add_tokens(7);
        let today = meter.today();
        assert_eq!((today.model_tokens, today.guest_cpu), (7, Duration::from_millis(20)));
    }
}
