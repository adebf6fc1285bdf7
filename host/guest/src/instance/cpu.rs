//! What guests use of the processor: all of it, against a budget, and lately, which decides
//! where they are polled.
//!
//! A guest's recent use is an account that decays. Where it is polled follows from the account
//! and not from what one poll looked like: a guest that computes a little less than a turn
//! between two short waits, or that has the host compute for it, uses as much of the machine
//! as one that never waits.

use std::cell::RefCell;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use wasmtime::UpdateDeadline;

use super::Ticker;
use super::memory::StackCharge;
use crate::imports::Record;

/// The future of a running guest.
pub(super) type Run<R> = Pin<Box<dyn Future<Output = R> + Send>>;

/// What was used this long ago counts for a third, and what was used five times as long ago
/// for nothing. Long enough to add up what a guest does between many short waits, and
/// short enough that one that has computed a second is like the others soon after.
const DECAY: Duration = Duration::from_millis(100);

/// Recent use, in seconds, from which a guest is polled on the busy threads: 1 % of a core.
/// Most guests compute less than this from one answer of the model to the next.
const HEAVY_SECS: f64 = 1e-3;

/// What guests may have of the runtime's threads lately, as a share of them. The nearer they
/// are, the less makes a guest heavy, so that many guests that each use little leave the
/// other half to connections as well.
const RUNTIME_SHARE_MAX: f64 = 0.5;

/// How long a turn on the busy threads is. Longer than what most guests compute between
/// two waits, so that those that compute much do not take turns at being nearly done.
const TURN: Duration = Duration::from_millis(5);

/// Ticks of the engine until it asks about a guest again.
pub(super) const TICKS: u64 = 1;

/// CPU time that decays.
#[derive(Clone, Copy, Debug)]
struct Usage {
    secs: f64,
    at: Instant,
}

impl Usage {
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

    /// Compares accounts: the one that has more at any time has more at every time, because all
    /// decay alike.
    fn rank(&self) -> Rank {
        static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
        let since = self.at.saturating_duration_since(*ORIGIN).div_duration_f64(DECAY);
        Rank(self.secs.max(f64::MIN_POSITIVE).ln() + since)
    }
}

/// A guest's place among those that wait for a turn: who used less lately is less.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rank(f64);

impl Rank {
    pub(super) fn cmp(self, other: Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// What all guests together had of the runtime's threads lately.
pub(super) struct RuntimeShare {
    used: Mutex<Usage>,
    threads: f64,
}

impl RuntimeShare {
    pub(super) fn new(threads: usize) -> Self {
        Self { used: Mutex::new(Usage::none()), threads: threads as f64 }
    }

    fn add(&self, now: Instant, took: Duration) {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).add(now, took);
    }

    /// Recent use, in seconds, from which a guest is heavy now.
    fn heavy_secs(&self, now: Instant) -> f64 {
        let used = self.used.lock().unwrap_or_else(PoisonError::into_inner).secs(now);
        let share = used / (self.threads * DECAY.as_secs_f64());
        HEAVY_SECS * (1.0 - share / RUNTIME_SHARE_MAX).max(0.0)
    }
}

/// Counts the CPU time of one run against its budget, and what it used lately.
pub(super) struct CpuMeter {
    record: Arc<Record>,
    stack: StackCharge,
    used: Duration,
    budget: Duration,
    lately: Usage,
}

/// What one poll came to.
pub(super) enum Step<R> {
    /// The run is over.
    Over(Result<R, Exhausted>),
    /// The guest waits.
    Waits,
    /// The guest was interrupted and has more to do.
    Goes,
}

/// Why a guest was stopped in the middle of its work: its CPU time is used up.
#[derive(Debug)]
pub(super) struct Exhausted;

/// Where a guest is polled.
#[derive(Clone, Copy)]
pub(super) enum PolledOn<'a> {
    /// On a thread of the runtime.
    Runtime(&'a RuntimeShare),
    /// On a busy thread, until somebody says that it is to stop.
    Busy(&'a Arc<AtomicBool>),
}

/// The poll of a guest that is under way on a thread.
struct UnderWay {
    began: Instant,
    /// How long it may take.
    turn: Duration,
    /// Set when nobody waits for the guest any more; only on a busy thread.
    stopped: Option<Arc<AtomicBool>>,
    /// Whether a tick ended it.
    interrupted: bool,
}

thread_local! {
    static UNDER_WAY: RefCell<Option<UnderWay>> = const { RefCell::new(None) };
}

/// What the engine is to do with a guest that a tick finds at work.
pub(super) fn at_tick() -> UpdateDeadline {
    crate::stack::note_place();
    let goes_on = UNDER_WAY.with_borrow_mut(|poll| {
        let Some(poll) = poll else { return false };
        if let Some(stopped) = &poll.stopped {
            if stopped.load(Ordering::SeqCst) {
                return false;
            }
            std::thread::yield_now();
        }
        // On the runtime the tick may be one that passed while the guest waited, so a guest that
        // has just begun goes on to the next.
        poll.began.elapsed() < poll.turn
    });
    if goes_on {
        return UpdateDeadline::Continue(TICKS);
    }
    UpdateDeadline::YieldCustom(TICKS, Box::pin(interruption()))
}

/// Ends the poll of a guest, and lets [`CpuMeter::poll`] know that the guest does not wait.
pub(super) async fn interruption() {
    UNDER_WAY.with_borrow_mut(|poll| {
        if let Some(poll) = poll {
            poll.interrupted = true;
        }
    });
    tokio::task::yield_now().await;
}

impl CpuMeter {
    pub(super) fn new(record: Arc<Record>, budget: Duration, stack: StackCharge) -> Self {
        Self { record, stack, used: Duration::ZERO, budget, lately: Usage::none() }
    }

    /// Whether the guest has used so much lately that it is to give way to others.
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
        place: PolledOn<'_>,
        ticker: &Ticker,
    ) -> Step<R> {
        let _watched = ticker.watch();
        let began = Instant::now();
        let (turn, stopped) = match place {
            PolledOn::Runtime(share) => {
                let left = share.heavy_secs(began) - self.lately.secs(began);
                (Duration::from_secs_f64(left.max(0.0)), None)
            }
            PolledOn::Busy(stopped) => (TURN, Some(stopped.clone())),
        };
        UNDER_WAY.set(Some(UnderWay { began, turn, stopped, interrupted: false }));
        crate::stack::forget_place();
        let before = thread_cpu_time();
        let polled = run.as_mut().poll(cx);
        let took = thread_cpu_time().saturating_sub(before);
        let interrupted = UNDER_WAY.take().is_some_and(|poll| poll.interrupted);
        self.used += took;
        self.record.meter().add_cpu(took);
        let now = Instant::now();
        self.lately.add(now, took);
        if let PolledOn::Runtime(share) = place {
            share.add(now, took);
        }
        if polled.is_pending() {
            self.stack.look(&self.record);
        }
        match polled {
            Poll::Ready(result) => Step::Over(Ok(result)),
            Poll::Pending if self.used > self.budget => Step::Over(Err(Exhausted)),
            Poll::Pending if interrupted => Step::Goes,
            Poll::Pending => Step::Waits,
        }
    }
}

/// CPU time of this thread so far. Within one poll it is the guest's, whatever else the
/// machine is busy with.
pub(super) fn thread_cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn what_was_used_counts_for_less_the_longer_ago_it_was() {
        let start = Instant::now();
        let mut usage = Usage { secs: 0.0, at: start };
        usage.add(start, 10 * MS);
        let after = |time| usage.secs(start + time);
        assert!((after(Duration::ZERO) - 0.010).abs() < 1e-9);
        assert!((0.003..0.004).contains(&after(DECAY)), "{}", after(DECAY));
        assert!(after(5 * DECAY) < 0.0001);
    }

    #[test]
    fn short_stints_between_short_waits_add_up() {
        let start = Instant::now();
        let mut usage = Usage { secs: 0.0, at: start };
        for stint in 1..=20 {
            usage.add(start + stint * 2 * MS, Duration::from_micros(900));
        }
        assert!(usage.secs(start + 40 * MS) > 10.0 * HEAVY_SECS, "{usage:?}");
    }

    #[test]
    fn who_used_less_lately_ranks_before_who_used_more_and_before_who_used_it_later() {
        let start = Instant::now();
        let rank = |secs, later| Usage { secs, at: start + later }.rank();
        let before = |a: Rank, b: Rank| a.cmp(b).is_lt();
        assert!(before(rank(0.0, MS), rank(0.001, MS)));
        assert!(before(rank(0.001, MS), rank(0.002, MS)));
        assert!(before(rank(0.001, MS), rank(0.001, 2 * MS)));
        // Nobody waits for ever: who waited for a second comes before who comes now.
        assert!(before(rank(0.1, MS), rank(0.001, 1000 * MS)));
    }

    #[test]
    fn the_more_guests_have_of_the_runtime_the_less_makes_one_heavy() {
        let share = RuntimeShare::new(2);
        let now = Instant::now();
        assert!((share.heavy_secs(now) - HEAVY_SECS).abs() < 1e-9);
        // A quarter of two threads.
        share.add(now, DECAY / 2);
        let lower = share.heavy_secs(Instant::now());
        assert!((0.4 * HEAVY_SECS..0.8 * HEAVY_SECS).contains(&lower), "{lower}");
        share.add(now, DECAY);
        assert!(share.heavy_secs(now) <= 0.0);
    }
}
