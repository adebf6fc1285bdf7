//! When to try again, and after how long.

use std::time::Duration;

use reqwest::header::{HeaderMap, RETRY_AFTER};

/// How a call is repeated.
#[derive(Clone, Debug, PartialEq)]
pub struct RetryPolicy {
    /// Tries in all, the first among them.
    pub attempts_max: u32,
    /// One try, from connecting to the last byte of the answer.
    pub attempt_time_max: Duration,
    /// Time from the first failure after which no further try begins.
    pub budget: Duration,
    /// The wait before the second try; it doubles with each.
    pub delay_base: Duration,
    /// The longest wait, unless the server asks for more.
    pub delay_max: Duration,
    /// Which answers are worth another try.
    pub repeated: Repeated,
}

/// Which answers are worth another try; trouble with the connection always is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeated {
    /// Those by which servers say that they are overloaded or restarting, 429 among them.
    Transient,
    /// Every 5xx and nothing else. What the server asks for by `Retry-After` does not
    /// count.
    ServerErrors,
}

impl RetryPolicy {
    /// For the model: patient, because a rollout that fails here is lost work.
    pub fn model() -> Self {
        Self {
            attempts_max: 8,
            attempt_time_max: Duration::from_secs(600),
            budget: Duration::from_secs(120),
            delay_base: Duration::from_millis(500),
            delay_max: Duration::from_secs(16),
            repeated: Repeated::Transient,
        }
    }

    /// For callbacks, as the protocol's own server does it: five tries of ten
    /// seconds, half a second apart and doubling.
    pub fn callback() -> Self {
        Self {
            attempts_max: 5,
            attempt_time_max: Duration::from_secs(10),
            budget: Duration::from_secs(120),
            delay_base: Duration::from_millis(500),
            delay_max: Duration::from_secs(8),
            repeated: Repeated::Transient,
        }
    }

    /// The wait before the next try after `failures` failures, the first of them
    /// `since_first` ago; none where it is time to give up. What a server asks for by
    /// `Retry-After` counts, unless it is past the budget: then waiting is useless.
    pub fn next_delay(
        &self,
        failures: u32,
        since_first: Duration,
        asked: Option<Duration>,
    ) -> Option<Duration> {
        if failures >= self.attempts_max {
            return None;
        }
        let doubled = self.delay_base.saturating_mul(1 << (failures - 1).min(16));
        let delay = asked.unwrap_or(doubled.min(self.delay_max));
        (since_first + delay <= self.budget).then_some(delay)
    }
}

/// What a server asks for in whole or fractional seconds. Dates are not read: a wrong
/// clock would turn them into hours.
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let secs: f64 = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    (secs.is_finite() && secs >= 0.0).then(|| Duration::from_secs_f64(secs.min(86_400.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_end_with_their_number_or_with_the_budget() {
        let policy = RetryPolicy { budget: Duration::from_secs(10), ..RetryPolicy::callback() };
        let check = |failures, since: u64, asked: Option<u64>, expected: Option<u64>| {
            let got = policy.next_delay(failures, Duration::from_secs(since), asked.map(Duration::from_secs));
            assert_eq!(got, expected.map(Duration::from_millis), "{failures} {since} {asked:?}");
        };
        check(1, 0, None, Some(500));
        check(2, 0, None, Some(1000));
        check(4, 0, None, Some(4000));
        check(5, 0, None, None);
        check(1, 0, Some(3), Some(3000));
        check(1, 0, Some(0), Some(0));
        check(1, 0, Some(11), None);
        check(3, 9, None, None);
    }
}
