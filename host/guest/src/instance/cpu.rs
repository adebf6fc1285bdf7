//! CPU time of guests: the total, which has a budget, and the recent use, which determines the threads that they are
//! polled on.
//!
//! Recent use is a sum that decays exponentially. It determines the threads, instead of the length of one poll: a guest
//! that computes slightly less than a turn between two short waits, or lets the host compute for it, uses as much of
//! the machine as one that never waits.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use wasmtime::UpdateDeadline;

use super::Ticker;
use super::memory::StackCharge;
use super::rest::Run;
use crate::imports::Record;

/// Time after which use counts for a third; after five times as long it counts for nothing. It is long enough to add up
/// short computations between waits, and short enough that a guest that computed for a second is soon treated like the
/// others.
const DECAY: Duration = Duration::from_millis(100);

/// Recent use, in seconds, above which a guest is polled on the busy threads: 1 % of a core. Most guests compute less
/// between two replies of the model.
const HEAVY_SECS: f64 = 1e-3;

/// Maximum share of the runtime's threads for guests. The closer their recent use is to it, the less use makes a guest
/// heavy, so that many guests that use little each still leave half of the threads to connections.
const RUNTIME_SHARE_MAX: f64 = 0.5;

/// Length of a turn on the busy threads. It is longer than most guests compute between two waits, so that a guest
/// usually finishes within its turn.
const TURN: Duration = Duration::from_millis(5);

/// Number of ticks between two checks of a running guest.
pub(super) const TICKS: u64 = 1;

/// CPU time that decays.
#[derive(Clone, Copy, Debug)]
struct DecayingCpuTime {
    secs: f64,
    at: Instant,
}

impl DecayingCpuTime {
    fn none() -> Self {
        Self { secs: 0.0, at: Instant::now() }
    }

    fn secs(&self, now: Instant) -> f64 {
        self.secs * (-now.saturating_duration_since(self.at).div_duration_f64(DECAY)).exp()
    }

    fn add(&mut self, now: Instant, took: Duration) {
        self.secs = self.secs(now) + took.as_secs_f64();
        self.at = now;
    }

    /// Returns the rank. If one guest's use exceeds another's at any time, it exceeds it at all times, because all uses
    /// decay at the same rate.
    fn rank(&self) -> Rank {
        static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
        let since = self.at.saturating_duration_since(*ORIGIN).div_duration_f64(DECAY);
        Rank(self.secs.max(f64::MIN_POSITIVE).ln() + since)
    }
}

/// Order of guests that wait for a turn: the least recent use is less.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rank(f64);

impl Rank {
    pub(super) fn cmp(self, other: Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Recent use of the runtime's threads by all guests together.
pub(super) struct RuntimeShare {
    used: Mutex<DecayingCpuTime>,
    threads: f64,
}

impl RuntimeShare {
    pub(super) fn new(threads: usize) -> Self {
        Self { used: Mutex::new(DecayingCpuTime::none()), threads: threads as f64 }
    }

    fn add(&self, now: Instant, took: Duration) {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).add(now, took);
    }

    /// Returns the recent use, in seconds, above which a guest is heavy now.
    fn heavy_secs(&self, now: Instant) -> f64 {
        let used = self.used.lock().unwrap_or_else(PoisonError::into_inner).secs(now);
        let share = used / (self.threads * DECAY.as_secs_f64());
        HEAVY_SECS * (1.0 - share / RUNTIME_SHARE_MAX).max(0.0)
    }
}

/// Counts the CPU time of one run against its budget, and its recent use.
pub(super) struct CpuMeter {
    record: Arc<Record>,
    stack: StackCharge,
    used: Duration,
    budget: Duration,
    lately: DecayingCpuTime,
}

/// Result of one poll.
pub(super) enum Step<R> {
    /// The run has ended.
    Ended(Result<R, Exhausted>),
    /// The guest waits.
    Waiting,
    /// The guest was interrupted and has more work.
    Interrupted,
}

/// Error of a guest that used up its CPU time.
#[derive(Debug)]
pub(super) struct Exhausted;

/// Kind of thread that polls a guest.
#[derive(Clone, Copy)]
pub(super) enum PolledOn<'a> {
    /// A thread of the runtime.
    Runtime(&'a RuntimeShare),
    /// A busy thread, until the flag is set.
    Busy(&'a Arc<AtomicBool>),
}

/// The poll of a guest in progress on a thread.
struct CurrentPoll {
    began: Instant,
    /// Maximum length of the poll.
    turn: Duration,
    /// Set when no task waits for the guest any longer. Exists only on a busy thread.
    stopped: Option<Arc<AtomicBool>>,
    /// Whether a tick interrupted the poll.
    interrupted: bool,
}

thread_local! {
    static CURRENT_POLL: RefCell<Option<CurrentPoll>> = const { RefCell::new(None) };
}

/// Decides whether a guest that is running at a tick continues.
pub(super) fn at_tick() -> UpdateDeadline {
    crate::stack::note_place();
    let continues = CURRENT_POLL.with_borrow_mut(|poll| {
        let Some(poll) = poll else { return false };
        if let Some(stopped) = &poll.stopped {
            if stopped.load(Ordering::SeqCst) {
                return false;
            }
            std::thread::yield_now();
        }
        // On the runtime the tick may have passed while the guest waited, so a guest that has just started continues
        // until the next one.
        poll.began.elapsed() < poll.turn
    });
    if continues {
        return UpdateDeadline::Continue(TICKS);
    }
    UpdateDeadline::YieldCustom(TICKS, Box::pin(interruption()))
}

/// Interrupts the poll of a guest, and marks for [`CpuMeter::poll`] that the guest does not wait.
pub(super) async fn interruption() {
    CURRENT_POLL.with_borrow_mut(|poll| {
        if let Some(poll) = poll {
            poll.interrupted = true;
        }
    });
    tokio::task::yield_now().await;
}

impl CpuMeter {
    pub(super) fn new(record: Arc<Record>, budget: Duration, stack: StackCharge) -> Self {
        Self { record, stack, used: Duration::ZERO, budget, lately: DecayingCpuTime::none() }
    }

    /// Returns whether recent use is so high that the guest must yield to others.
    pub(super) fn is_heavy(&self, share: &RuntimeShare) -> bool {
        let now = Instant::now();
        self.lately.secs(now) >= share.heavy_secs(now)
    }

    pub(super) fn rank(&self) -> Rank {
        self.lately.rank()
    }

    pub(super) fn poll<R>(
        &mut self,
        run: &mut Run<R>,
        cx: &mut Context<'_>,
        polled_on: PolledOn<'_>,
        ticker: &Ticker,
    ) -> Step<R> {
        let Some(mut guest) = run.awake(cx) else { return Step::Waiting };
        let _watched = ticker.watch();
        let began = Instant::now();
        let (turn, stopped) = match polled_on {
            PolledOn::Runtime(share) => {
                let left = share.heavy_secs(began) - self.lately.secs(began);
                (Duration::from_secs_f64(left.max(0.0)), None)
            }
            PolledOn::Busy(stopped) => (TURN, Some(stopped.clone())),
        };
        CURRENT_POLL.set(Some(CurrentPoll { began, turn, stopped, interrupted: false }));
        crate::stack::forget_place();
        let before = thread_cpu_time();
        let polled = guest.poll(cx);
        let took = thread_cpu_time().saturating_sub(before);
        let interrupted = CURRENT_POLL.take().is_some_and(|poll| poll.interrupted);
        self.used += took;
        self.record.meter().add_cpu(took);
        let now = Instant::now();
        self.lately.add(now, took);
        if let PolledOn::Runtime(share) = polled_on {
            share.add(now, took);
        }
        if polled.is_pending() {
            self.stack.charge_growth(&self.record);
        }
        match polled {
            Poll::Ready(result) => Step::Ended(Ok(result)),
            Poll::Pending if self.used > self.budget => Step::Ended(Err(Exhausted)),
            Poll::Pending if interrupted => Step::Interrupted,
            Poll::Pending => {
                guest.mark_waiting();
                Step::Waiting
            }
        }
    }
}

/// Returns the CPU time of this thread so far. Within one poll all of it is the guest's.
pub(super) fn thread_cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn recent_use_decays() {
        let start = Instant::now();
        let mut usage = DecayingCpuTime { secs: 0.0, at: start };
        usage.add(start, 10 * MS);
        let after = |time| usage.secs(start + time);
        assert!((after(Duration::ZERO) - 0.010).abs() < 1e-9);
        assert!((0.003..0.004).contains(&after(DECAY)), "{}", after(DECAY));
        assert!(after(5 * DECAY) < 0.0001);
    }

    #[test]
    fn short_stints_between_short_waits_add_up() {
        let start = Instant::now();
        let mut usage = DecayingCpuTime { secs: 0.0, at: start };
        for stint in 1..=20 {
            usage.add(start + stint * 2 * MS, Duration::from_micros(900));
        }
        assert!(usage.secs(start + 40 * MS) > 10.0 * HEAVY_SECS, "{usage:?}");
    }

    #[test]
    fn a_guest_that_used_less_or_earlier_ranks_first() {
        let start = Instant::now();
        let rank = |secs, later| DecayingCpuTime { secs, at: start + later }.rank();
        let before = |a: Rank, b: Rank| a.cmp(b).is_lt();
        assert!(before(rank(0.0, MS), rank(0.001, MS)));
        assert!(before(rank(0.001, MS), rank(0.002, MS)));
        assert!(before(rank(0.001, MS), rank(0.001, 2 * MS)));
        // Every guest gets a turn: a guest that has waited for a second ranks before a new one.
        assert!(before(rank(0.1, MS), rank(0.001, 1000 * MS)));
    }

    #[test]
    fn the_more_guests_use_the_runtime_the_less_makes_one_heavy() {
        let share = RuntimeShare::new(2);
        let now = Instant::now();
        assert!((share.heavy_secs(now) - HEAVY_SECS).abs() < 1e-9);
        // A quarter of the two threads.
        share.add(now, DECAY / 2);
        let lower = share.heavy_secs(Instant::now());
        assert!((0.4 * HEAVY_SECS..0.8 * HEAVY_SECS).contains(&lower), "{lower}");
        share.add(now, DECAY);
        assert!(share.heavy_secs(now) <= 0.0);
    }
}
