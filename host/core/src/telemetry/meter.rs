//! Daily usage of a tenant.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Usage on one day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DayUse {
    /// The day, in days since 1970-01-01 UTC.
    pub day: u64,
    /// Tokens of prompts and completions.
    pub model_tokens: u64,
    /// CPU time of guests.
    pub guest_cpu: Duration,
}

/// Counts the usage of a day. Only the last day is stored.
#[derive(Debug, Default)]
pub struct Meter(Mutex<DayUse>);

const DAY_SECS: u64 = 24 * 60 * 60;

fn today() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "days begin by the calendar")]
    let now = SystemTime::now();
    now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / DAY_SECS
}

impl DayUse {
    /// Returns the usage on `day`, which is zero for any day except the stored one.
    fn on(self, day: u64) -> Self {
        if self.day == day { self } else { Self { day, ..Self::default() } }
    }

    /// Returns this usage and that of `other`, which counts only if it is of the same day.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let other = other.on(self.day);
        Self {
            day: self.day,
            model_tokens: self.model_tokens.saturating_add(other.model_tokens),
            guest_cpu: self.guest_cpu.saturating_add(other.guest_cpu),
        }
    }
}

impl Meter {
    fn lock(&self) -> MutexGuard<'_, DayUse> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the usage of today.
    pub fn today(&self) -> DayUse {
        self.usage_on(today())
    }

    /// Returns the usage on a day, if it is the last one with any usage.
    pub fn usage_on(&self, day: u64) -> DayUse {
        self.lock().on(day)
    }

    /// Sets the usage that an earlier process has counted.
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
    fn a_new_day_begins_without_usage() {
        let meter = Meter::default();
        meter.add_tokens_on(3, 5);
        meter.add_tokens_on(3, u64::MAX);
        assert_eq!(meter.usage_on(3).model_tokens, u64::MAX);
        assert_eq!(meter.usage_on(4), DayUse { day: 4, ..DayUse::default() });
        meter.add_cpu(Duration::from_millis(20));
        meter.add_tokens(7);
        let today = meter.today();
        assert_eq!((today.model_tokens, today.guest_cpu), (7, Duration::from_millis(20)));
    }
}
