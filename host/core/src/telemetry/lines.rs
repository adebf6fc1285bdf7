//! Rate limit for log lines of one kind.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A limit on lines per second, with a count of the omitted lines.
#[derive(Debug)]
pub struct LineBudget {
    per_second: u32,
    window: Mutex<Window>,
}

#[derive(Debug, Default)]
struct Window {
    since: Option<Instant>,
    written: u32,
    left_out: u64,
}

impl LineBudget {
    /// Creates a budget of `per_second` lines.
    pub fn new(per_second: u32) -> Self {
        Self { per_second, window: Mutex::default() }
    }

    /// Takes a line from the budget. Returns the number of lines omitted since the last one, or `None` if the budget is
    /// used up.
    pub fn take(&self) -> Option<u64> {
        self.take_at(Instant::now())
    }

    fn take_at(&self, now: Instant) -> Option<u64> {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let over = |since| now.saturating_duration_since(since) >= Duration::from_secs(1);
        if window.since.is_none_or(over) {
            window.since = Some(now);
            window.written = 0;
        }
        if window.written >= self.per_second {
            window.left_out += 1;
            return None;
        }
        window.written += 1;
        Some(std::mem::take(&mut window.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_the_budget_are_omitted_and_counted_later() {
        let budget = LineBudget::new(2);
        let start = Instant::now();
        let check = |ms, expected| {
            assert_eq!(budget.take_at(start + Duration::from_millis(ms)), expected, "at {ms} ms");
        };
        check(0, Some(0));
        check(10, Some(0));
        check(20, None);
        check(999, None);
        check(1000, Some(2));
        check(1001, Some(0));
        check(1002, None);
    }
}
