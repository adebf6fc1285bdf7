//! When to try again, and after how long: the one way in which calls of models and judges and
//! callbacks are repeated. Each use has its own rules of which answers are worth it.

use std::time::{Duration, Instant};

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
    /// What each answer means.
    pub statuses: Statuses,
}

/// What the status of an answer means, by what was asked for. Trouble with the connection is
/// always worth another try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statuses {
    /// A model or a judge: 200 is a reply. Repeated where servers say that they are overloaded
    /// or restarting.
    Chat,
    /// The model of a closed body: 200 is a reply, every 5xx is repeated and nothing else, and
    /// what the server asks for by `Retry-After` does not count.
    ClosedChat,
    /// A callback: any 2xx takes it.
    Callback,
    /// A callback that 200 alone takes and any 4xx refuses. All others are repeated, and
    /// `Retry-After` does not count.
    StrictCallback,
}

/// What an answer means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// What was asked for.
    Taken,
    /// Not now.
    Again,
    /// Not at all.
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

    /// Whether what was asked for came with an answer that nobody can read: is that worth
    /// another try?
    pub(super) fn repeats_unreadable(self) -> bool {
        self == Self::Chat
    }

    fn heeds_retry_after(self) -> bool {
        matches!(self, Self::Chat | Self::Callback)
    }
}

/// The tries of one call, and when the next may begin.
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

    /// Tries that failed.
    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    /// One failed, with this wait asked for by the server. Gives the wait before the next, or
    /// none where it is time to give up.
    pub(super) fn failed(&mut self, asked: Option<Duration>) -> Option<Duration> {
        self.failures += 1;
        let since_first = self.first_failure.get_or_insert_with(Instant::now).elapsed();
        self.policy.next_delay(self.failures, since_first, asked, jitter())
    }
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
            statuses: Statuses::Chat,
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
            statuses: Statuses::Callback,
        }
    }

    /// The wait before the next try after `failures` failures, the first of them
    /// `since_first` ago; none where it is time to give up. What a server asks for by
    /// `Retry-After` counts, unless it is past the budget: then waiting is useless.
    ///
    /// `jitter`, from 0 to 1, spreads those who failed together: over the second half of a wait
    /// of their own choice, and over a tenth more than the server asked for.
    fn next_delay(
        &self,
        failures: u32,
        since_first: Duration,
        asked: Option<Duration>,
        jitter: f64,
    ) -> Option<Duration> {
        if failures >= self.attempts_max {
            return None;
        }
        let (delay, spread) = match asked.filter(|_| self.statuses.heeds_retry_after()) {
            Some(asked) => (asked, 1.0 + jitter / 10.0),
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

/// A number from 0 to 1, or no jitter where the system has no random numbers.
fn jitter() -> f64 {
    getrandom::u32().map_or(0.0, |number| f64::from(number) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_end_with_their_number_or_with_the_budget() {
        let policy = RetryPolicy { budget: Duration::from_secs(10), ..RetryPolicy::callback() };
        let check = |failures, since: u64, asked: Option<u64>, expected: Option<u64>| {
            let asked = asked.map(Duration::from_secs);
            let got = policy.next_delay(failures, Duration::from_secs(since), asked, 0.0);
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

    #[test]
    fn those_who_failed_together_do_not_come_back_together() {
        let policy = RetryPolicy::callback();
        let delay = |asked: Option<u64>, jitter| {
            policy
                .next_delay(3, Duration::ZERO, asked.map(Duration::from_secs), jitter)
                .unwrap()
                .as_secs_f64()
        };
        assert_eq!((delay(None, 0.0), delay(None, 0.5), delay(None, 1.0)), (2.0, 1.5, 1.0));
        // Nobody comes before the server wants.
        assert_eq!((delay(Some(10), 0.0), delay(Some(10), 1.0), delay(Some(0), 1.0)), (10.0, 11.0, 0.0));
        assert!((0..100).all(|_| (0.0..=1.0).contains(&jitter())));
        assert!((0..100).any(|_| jitter() != jitter()));
        let forever = RetryPolicy { budget: Duration::MAX, ..policy };
        assert!(forever.next_delay(1, Duration::MAX, None, 0.5).is_some());
    }

    #[test]
    fn an_answer_means_what_its_use_says() {
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
    fn what_a_strict_caller_asks_for_does_not_count() {
        let policy = RetryPolicy { statuses: Statuses::StrictCallback, ..RetryPolicy::callback() };
        let asked = Some(Duration::from_secs(7));
        assert_eq!(policy.next_delay(1, Duration::ZERO, asked, 0.0), Some(Duration::from_millis(500)));
    }
}
