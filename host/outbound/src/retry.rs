//! Retries of calls of models and judges and of callbacks. Each use has its own rules for the responses that are worth
//! a retry.

use std::time::{Duration, Instant};

/// Retry policy of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct RetryPolicy {
    /// Maximum number of attempts, including the first.
    pub attempts_max: u32,
    /// Timeout of one attempt, from connecting to the last byte of the response.
    pub attempt_time_max: Duration,
    /// Time after the first failure within which the last attempt must start.
    pub budget: Duration,
    /// Delay before the second attempt; it doubles with each.
    pub delay_base: Duration,
    /// Maximum delay, unless the server requests a longer one.
    pub delay_max: Duration,
    /// Meaning of the statuses of responses.
    pub statuses: Statuses,
}

/// Meaning of a response's status for each kind of request. Errors of the connection are always worth a retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statuses {
    /// A model or a judge: 200 is a reply. Statuses of overloaded or restarting servers are retried.
    Chat,
    /// A model with a closed body: 200 is a reply and every 5xx is retried. `Retry-After` is ignored.
    ClosedChat,
    /// A callback: any 2xx accepts it.
    Callback,
    /// A callback that only 200 accepts and any 4xx refuses. Others are retried. `Retry-After` is ignored.
    StrictCallback,
}

/// Meaning of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// Success.
    Taken,
    /// A temporary failure.
    Again,
    /// A permanent failure.
    Refused,
}

impl Statuses {
    pub(super) fn meaning(self, status: u16) -> Meaning {
        match (self, status) {
            (Self::Chat | Self::ClosedChat | Self::StrictCallback, 200) | (Self::Callback, 200..=299) => {
                Meaning::Taken
            }
            (Self::Chat, 408 | 425 | 429 | 500 | 502 | 503 | 504 | 529)
            | (Self::ClosedChat, 500..=599)
            | (Self::Callback, 429 | 500 | 502 | 503 | 504) => Meaning::Again,
            (Self::StrictCallback, 400..=499) => Meaning::Refused,
            (Self::StrictCallback, _) => Meaning::Again,
            (Self::Chat | Self::ClosedChat | Self::Callback, _) => Meaning::Refused,
        }
    }

    /// Returns whether a successful response with an unreadable body is worth a retry.
    pub(super) fn repeats_unreadable(self) -> bool {
        self == Self::Chat
    }

    fn heeds_retry_after(self) -> bool {
        matches!(self, Self::Chat | Self::Callback)
    }
}

/// The attempts of one call.
#[derive(Debug)]
pub(super) struct Tries<'a> {
    policy: &'a RetryPolicy,
    failures: u32,
    first_failure: Option<Instant>,
}

impl<'a> Tries<'a> {
    pub(super) fn of(policy: &'a RetryPolicy) -> Self {
        Self { policy, failures: 0, first_failure: None }
    }

    /// Returns the number of failed attempts.
    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    /// Counts a failed attempt. `retry_after` is the delay that the server requested. Returns the delay before the next
    /// attempt, or `None` after the last one.
    pub(super) fn failed(&mut self, retry_after: Option<Duration>) -> Option<Duration> {
        self.failures += 1;
        let since_first = self.first_failure.get_or_insert_with(Instant::now).elapsed();
        self.policy.next_delay(self.failures, since_first, retry_after, jitter())
    }
}

impl RetryPolicy {
    /// Returns the policy for models. It has many attempts, because a failed rollout is lost work.
    pub fn model() -> Self {
        Self {
            attempts_max: 8,
            attempt_time_max: Duration::from_secs(600),
            budget: Duration::from_secs(120),
            delay_base: Duration::from_millis(500),
            delay_max: Duration::from_secs(16),
            statuses: Statuses::Chat,
        }
    }

    /// Returns the policy for callbacks, the same as in the protocol's own server: five attempts of ten seconds each,
    /// with delays of half a second, doubling.
    pub fn callback() -> Self {
        Self {
            attempts_max: 5,
            attempt_time_max: Duration::from_secs(10),
            budget: Duration::from_secs(120),
            delay_base: Duration::from_millis(500),
            delay_max: Duration::from_secs(8),
            statuses: Statuses::Callback,
        }
    }

    /// Returns the delay before the next attempt after `failures` failures, the first of them `since_first` ago.
    /// Returns `None` if there is no further attempt. A delay that the server requested with `Retry-After` counts,
    /// unless it exceeds the budget: then waiting is useless.
    ///
    /// `jitter`, from 0 to 1, spreads callers that failed at the same time: over the second half of the policy's delay,
    /// and over a tenth more than the server requested.
    fn next_delay(
        &self,
        failures: u32,
        since_first: Duration,
        retry_after: Option<Duration>,
        jitter: f64,
    ) -> Option<Duration> {
        if failures >= self.attempts_max {
            return None;
        }
        let (delay, spread) = match retry_after.filter(|_| self.statuses.heeds_retry_after()) {
            Some(requested) => (requested, 1.0 + jitter / 10.0),
            None => {
                let doubled = self.delay_base.saturating_mul(1 << (failures - 1).min(16));
                (doubled.min(self.delay_max), 1.0 - jitter / 2.0)
            }
        };
        let in_budget = since_first.saturating_add(delay) <= self.budget;
        let spread = Duration::try_from_secs_f64(delay.as_secs_f64() * spread).unwrap_or(delay);
        in_budget.then_some(spread)
    }
}

/// Returns a random number from 0 to 1, or 0 if the system has no random numbers.
fn jitter() -> f64 {
    getrandom::u32().map_or(0.0, |number| f64::from(number) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_end_with_their_number_or_with_the_budget() {
        let policy = RetryPolicy { budget: Duration::from_secs(10), ..RetryPolicy::callback() };
        let check = |failures, since: u64, retry_after: Option<u64>, expected: Option<u64>| {
            let retry_after = retry_after.map(Duration::from_secs);
            let got = policy.next_delay(failures, Duration::from_secs(since), retry_after, 0.0);
            assert_eq!(got, expected.map(Duration::from_millis), "{failures} {since} {retry_after:?}");
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

    #[test]
    fn jitter_spreads_simultaneous_failures() {
        let policy = RetryPolicy::callback();
        let delay = |retry_after: Option<u64>, jitter| {
            policy
                .next_delay(3, Duration::ZERO, retry_after.map(Duration::from_secs), jitter)
                .unwrap()
                .as_secs_f64()
        };
        assert_eq!((delay(None, 0.0), delay(None, 0.5), delay(None, 1.0)), (2.0, 1.5, 1.0));
        // Never earlier than the server requested.
        assert_eq!((delay(Some(10), 0.0), delay(Some(10), 1.0), delay(Some(0), 1.0)), (10.0, 11.0, 0.0));
        assert!((0..100).all(|_| (0.0..=1.0).contains(&jitter())));
        assert!((0..100).any(|_| jitter() != jitter()));
        let forever = RetryPolicy { budget: Duration::MAX, ..policy };
        assert!(forever.next_delay(1, Duration::MAX, None, 0.5).is_some());
    }

    #[test]
    fn each_use_has_its_own_meaning_of_statuses() {
        fn check(statuses: Statuses, expected: &str) {
            let word = |status: u16| match statuses.meaning(status) {
                Meaning::Taken => 't',
                Meaning::Again => 'a',
                Meaning::Refused => 'r',
            };
            let all = [200, 201, 204, 301, 400, 404, 408, 429, 500, 501, 503, 529].map(word);
            assert_eq!(all.into_iter().collect::<String>(), expected, "{statuses:?}");
        }
        check(Statuses::Chat, "trrrrraaaraa");
        check(Statuses::ClosedChat, "trrrrrrraaaa");
        check(Statuses::Callback, "tttrrrraarar");
        check(Statuses::StrictCallback, "taaarrrraaaa");
    }

    #[test]
    fn strict_callbacks_ignore_retry_after() {
        let policy = RetryPolicy { statuses: Statuses::StrictCallback, ..RetryPolicy::callback() };
        let retry_after = Some(Duration::from_secs(7));
        assert_eq!(policy.next_delay(1, Duration::ZERO, retry_after, 0.0), Some(Duration::from_millis(500)));
    }
}
