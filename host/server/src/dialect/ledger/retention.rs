//! Retention of finished rollouts: statuses, results and first answers, each with a time and a limit.

use std::collections::VecDeque;
use std::time::Duration;

/// Maximum number of finished rollouts with a stored status. With the longest ids and messages they take 8 MiB.
const STATUSES_MAX: usize = 4096;

/// Time for which a result is stored after it was read, in case the response was lost. If the host has no room for new work,
/// the oldest results are dropped sooner.
const READ_KEPT: Duration = Duration::from_secs(60);

/// Maximum number of bytes of these results together. If thousands are read per second, or if they are large, each stays
/// only for seconds. That is enough, because a caller repeats a lost request at once.
pub(super) const READ_BYTES_MAX: usize = 16 << 20;

/// Maximum number of bytes of all copies of results in the journal.
pub(super) const COPIES_BYTES_MAX: usize = 32 << 20;

/// Number of intervals into which the time of a [`RecentCount`] is divided. An interval expires as a whole.
const PARTS_OF_COUNT: u32 = 60;

/// The parts of an entry that expire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expiring {
    /// The status of a finished rollout.
    Status,
    /// A result that is in memory only, read or not.
    Result,
    /// A result that is in memory only and was read.
    Read,
    /// A copy of a result in the journal.
    Copy,
    /// The first answer, for repeated requests.
    Answer,
}

impl Expiring {
    /// All parts, in the order of their retentions.
    pub(super) const ALL: [Self; 5] = [Self::Status, Self::Result, Self::Read, Self::Copy, Self::Answer];

    /// Parts that are dropped, in this order, if the host has no room for new work.
    pub(super) const DROPPED_WHEN_FULL: [Self; 3] = [Self::Copy, Self::Read, Self::Answer];
}

/// Times of a ledger.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LedgerTimes {
    /// Maximum time for which a poll waits for a change.
    pub result_wait: Duration,
    /// Time after which a rollout without polls is cancelled.
    pub lease: Duration,
    /// Time for which results and statuses are stored.
    pub result_ttl: Duration,
    /// Time for which first answers are stored after the end of their rollouts.
    pub answer_ttl: Duration,
    /// Interval at which expired answers are removed.
    pub answer_interval: Duration,
}

impl LedgerTimes {
    /// Returns the times of a protocol without polls and leases, in which a status is stored for `ttl`.
    pub(crate) fn without_polls(ttl: Duration) -> Self {
        Self {
            result_wait: Duration::ZERO,
            lease: Duration::ZERO,
            result_ttl: ttl,
            answer_ttl: ttl,
            answer_interval: ttl,
        }
    }
}

/// The order in which one part of all entries expires, and its limits.
#[derive(Debug)]
pub(super) struct Retention {
    time: Option<Duration>,
    interval: Duration,
    count_max: usize,
    bytes_max: usize,
    swept_at: Duration,
    /// Start of the retention of an entry's part, its bytes, and the entry's number.
    queue: VecDeque<(Duration, usize, u64)>,
    bytes: usize,
}

impl Retention {
    pub(super) fn new(part: Expiring, times: &LedgerTimes) -> Self {
        let unlimited = Self {
            time: Some(times.result_ttl),
            interval: Duration::ZERO,
            count_max: usize::MAX,
            bytes_max: usize::MAX,
            swept_at: Duration::ZERO,
            queue: VecDeque::new(),
            bytes: 0,
        };
        match part {
            Expiring::Status => Self { count_max: STATUSES_MAX, ..unlimited },
            Expiring::Result => unlimited,
            Expiring::Read => Self { time: Some(READ_KEPT), bytes_max: READ_BYTES_MAX, ..unlimited },
            Expiring::Copy => Self { time: None, bytes_max: COPIES_BYTES_MAX, ..unlimited },
            Expiring::Answer => {
                Self { time: Some(times.answer_ttl), interval: times.answer_interval, ..unlimited }
            }
        }
    }

    /// Starts the retention of an entry's part.
    pub(super) fn push(&mut self, now: Duration, bytes: usize, number: u64) {
        self.queue.push_back((now, bytes, number));
        self.bytes += bytes;
    }

    /// Removes the oldest part and returns the number of its entry.
    pub(super) fn pop(&mut self) -> Option<u64> {
        let (_, bytes, number) = self.queue.pop_front()?;
        self.bytes -= bytes;
        Some(number)
    }

    /// Removes the oldest part if a limit is exceeded, and returns the number of its entry. The newest part stays,
    /// however large it is.
    pub(super) fn pop_excess(&mut self) -> Option<u64> {
        let is_over = self.queue.len() > self.count_max || self.bytes > self.bytes_max;
        if is_over && self.queue.len() > 1 { self.pop() } else { None }
    }

    /// Removes the oldest part if it has expired, and returns the number of its entry.
    pub(super) fn pop_due(&mut self, now: Duration) -> Option<u64> {
        let time = self.time?;
        let is_due = self.queue.front().is_some_and(|(since, ..)| *since + time <= now);
        if is_due { self.pop() } else { None }
    }

    /// Returns whether expired parts may be removed now, and stores the time of the sweep.
    pub(super) fn begin_sweep(&mut self, now: Duration) -> bool {
        let is_time = now.saturating_sub(self.swept_at) >= self.interval;
        if is_time {
            self.swept_at = now;
        }
        is_time
    }
}

/// Counter of events in the recent past.
pub(super) struct RecentCount {
    time: Duration,
    /// Start of each interval, and the number of events in it.
    parts: VecDeque<(Duration, u64)>,
}

impl RecentCount {
    pub(super) fn new(time: Duration) -> Self {
        Self { time, parts: VecDeque::new() }
    }

    pub(super) fn add(&mut self, now: Duration) {
        self.forget(now);
        match self.parts.back_mut() {
            Some((began, count)) if now.saturating_sub(*began) < self.time / PARTS_OF_COUNT => *count += 1,
            _ => self.parts.push_back((now, 1)),
        }
    }

    pub(super) fn count(&mut self, now: Duration) -> u64 {
        self.forget(now);
        self.parts.iter().map(|(_, count)| count).sum()
    }

    fn forget(&mut self, now: Duration) {
        let is_due = |began: &Duration| now.saturating_sub(*began) >= self.time;
        while self.parts.front().is_some_and(|(began, _)| is_due(began)) {
            self.parts.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_counted_for_their_time_in_few_intervals() {
        let secs = Duration::from_secs;
        let mut count = RecentCount::new(secs(60));
        for at in 0..120 {
            count.add(secs(at) / 2);
        }
        assert_eq!(count.count(secs(59)), 120);
        assert_eq!(count.parts.len(), 60);
        assert_eq!(count.count(secs(60)), 118, "the events of the first second are no longer counted");
        assert_eq!(count.count(secs(90)), 58);
        assert_eq!(count.count(secs(200)), 0);
        assert!(count.parts.is_empty());
    }
}
