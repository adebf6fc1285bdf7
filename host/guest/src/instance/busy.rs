//! Separate threads for guests that use much CPU time, so that they yield to others.
//!
//! A rollout is polled on the runtime's threads while its guest uses little CPU time. A guest that has used more
//! lately, in one long period or in many short ones, is polled on [`BusyThreads`], where such guests take turns at a
//! lower priority. The guest with the least recent use is first. A guest moves back to the runtime's threads once its
//! recent use has decayed. At each tick within a turn the thread yields its core, because the kernel alone may let
//! another thread wait for the kernel's own tick, which is longer. A rollout with little to do thus hardly waits for
//! guests that compute, even if there are more of them than cores.

use std::cmp::Ordering::Equal;
use std::collections::BinaryHeap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tracing::Span;

use super::Ticker;
use super::cpu::{CpuMeter, Exhausted, PolledOn, Rank, RuntimeShare, Step};
use super::rest::{Rester, Run};

/// Niceness of these threads, relative to the others. High enough that a thread of the runtime gets a core as soon as
/// it has work, and low enough that a busy guest progresses on a fully loaded machine.
const NICENESS: i32 = 10;

/// Runs a guest until it ends or its CPU budget is used up: on this thread, and on the busy threads while it is heavy.
/// Dropping the future stops the guest: immediately, or at the next tick if it is in the middle of a turn.
pub(super) async fn run<R: Send + 'static>(
    threads: &BusyThreads,
    mut meter: CpuMeter,
    mut run: Run<R>,
) -> Result<R, Exhausted> {
    loop {
        let step = std::future::poll_fn(|cx| {
            if meter.is_heavy(threads.share()) {
                return Poll::Ready(Step::Interrupted);
            }
            match meter.poll(&mut run, cx, PolledOn::Runtime(threads.share()), threads.ticker()) {
                Step::Waiting => Poll::Pending,
                // The interruption has woken its task.
                Step::Interrupted if !meter.is_heavy(threads.share()) => Poll::Pending,
                step => Poll::Ready(step),
            }
        });
        if let Step::Ended(result) = step.await {
            return result;
        }
        while meter.is_heavy(threads.share()) {
            let link = Arc::<Link>::default();
            (meter, run) = match threads.take_turns(meter, run, &link).await {
                Back::Waits(meter, run) => (meter, run),
                Back::Over(result) => return result,
                Back::Panicked(payload) => std::panic::resume_unwind(payload),
            };
            link.woken().await;
        }
    }
}

/// Connects a guest on the busy threads with the task that waits for it: wakes the task when the guest can continue,
/// and stops the guest when the task is gone.
#[derive(Default)]
struct Link {
    woken: AtomicBool,
    waiting: AtomicWaker,
    stopped: Arc<AtomicBool>,
}

impl Link {
    /// Waits until the guest can continue.
    async fn woken(&self) {
        std::future::poll_fn(|cx| {
            self.waiting.register(cx.waker());
            if self.woken.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

impl Wake for Link {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        self.waiting.wake();
    }
}

/// Result of taking turns on the busy threads.
enum Back<R> {
    /// The guest waits until its link is woken.
    Waits(CpuMeter, Run<R>),
    Over(Result<R, Exhausted>),
    Panicked(Box<dyn std::any::Any + Send>),
}

/// The place of a run on the busy threads. It is empty during a turn and after the run has ended.
struct Seat<R> {
    going: Mutex<Option<Going<R>>>,
    link: Arc<Link>,
    runtime: Handle,
    span: Span,
}

struct Going<R> {
    meter: CpuMeter,
    run: Run<R>,
    back: oneshot::Sender<Back<R>>,
}

impl<R> Seat<R> {
    fn lock(&self) -> MutexGuard<'_, Option<Going<R>>> {
        self.going.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops a run. Destructors of a guest's futures need the runtime, and may panic.
    fn discard(&self, going: Going<R>) {
        let _runtime = self.runtime.enter();
        let _span = self.span.enter();
        let _ = catch_unwind(AssertUnwindSafe(|| drop(going)));
    }
}

/// Stops the run in a seat when it is dropped. The drop does not wait for the run's next turn, because the guest would
/// keep its memory until then.
struct Stopper<R>(Arc<Seat<R>>);

impl<R> Drop for Stopper<R> {
    fn drop(&mut self) {
        let Self(seat) = self;
        // Set before the lock: a turn in progress checks in the other order.
        seat.link.stopped.store(true, Ordering::SeqCst);
        let going = seat.lock().take();
        if let Some(going) = going {
            seat.discard(going);
        }
    }
}

/// A run that takes turns.
trait TakesTurns: Send + Sync {
    /// Takes one turn. Returns its rank if it needs more turns.
    fn turn(&self, ticker: &Ticker) -> Option<Rank>;
}

impl<R: Send + 'static> TakesTurns for Seat<R> {
    fn turn(&self, ticker: &Ticker) -> Option<Rank> {
        let Going { mut meter, mut run, back } = self.lock().take()?;
        // Tasks that a guest spawns belong to the runtime.
        let _runtime = self.runtime.enter();
        let _span = self.span.enter();
        self.link.woken.store(false, Ordering::SeqCst);
        let waker = Waker::from(self.link.clone());
        let polled_on = PolledOn::Busy(&self.link.stopped);
        let polled = catch_unwind(AssertUnwindSafe(|| {
            meter.poll(&mut run, &mut Context::from_waker(&waker), polled_on, ticker)
        }));
        let result = match polled {
            Ok(Step::Interrupted) => {
                let (rank, going) = (meter.rank(), Going { meter, run, back });
                let mut seat = self.lock();
                if !self.link.stopped.load(Ordering::SeqCst) {
                    *seat = Some(going);
                    return Some(rank);
                }
                drop(seat);
                self.discard(going);
                return None;
            }
            Ok(Step::Waiting) => Back::Waits(meter, run),
            Ok(Step::Ended(result)) => {
                drop(run);
                Back::Over(result)
            }
            Err(payload) => {
                // Dropping the rest of it may panic again.
                let _ = catch_unwind(AssertUnwindSafe(|| drop(run)));
                Back::Panicked(payload)
            }
        };
        // The waiting task may be gone by now; the run is dropped with its result.
        let _ = back.send(result);
        None
    }
}

/// The threads that busy guests run on. Cheap to clone; the threads end when the last clone is dropped.
#[derive(Clone)]
pub(crate) struct BusyThreads(Arc<Owner>);

struct Owner(Arc<Queue>);

struct Queue {
    ticker: Ticker,
    rester: Rester,
    share: RuntimeShare,
    state: Mutex<State>,
    pushed: Condvar,
}

#[derive(Default)]
struct State {
    runs: BinaryHeap<Waiting>,
    /// Number of runs pushed so far, which orders runs of the same rank.
    count: u64,
    closed: bool,
}

/// A run that waits for its turn. The greatest is next.
struct Waiting {
    rank: Rank,
    number: u64,
    run: Arc<dyn TakesTurns>,
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.rank.cmp(self.rank).then(other.number.cmp(&self.number))
    }
}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Equal
    }
}

impl Eq for Waiting {}

impl State {
    fn push(&mut self, rank: Rank, run: Arc<dyn TakesTurns>) {
        self.count += 1;
        self.runs.push(Waiting { rank, number: self.count, run });
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut more: Option<(Rank, Arc<dyn TakesTurns>)> = None;
        loop {
            let run = {
                let mut state = self.lock();
                if let Some((rank, run)) = more.take() {
                    state.push(rank, run);
                }
                loop {
                    if let Some(waiting) = state.runs.pop() {
                        break waiting.run;
                    }
                    if state.closed {
                        return;
                    }
                    state = self.pushed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            };
            // A destructor that panics must not end the thread.
            let turn = AssertUnwindSafe(|| run.turn(&self.ticker).map(|rank| (rank, run)));
            more = catch_unwind(turn).ok().flatten();
            std::thread::yield_now();
        }
    }
}

impl BusyThreads {
    /// Starts one thread for each core.
    pub(crate) fn start(ticker: Ticker, rester: Rester) -> std::io::Result<Self> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        // The runtime has as many threads.
        let share = RuntimeShare::new(threads);
        let queue =
            Arc::new(Queue { ticker, rester, share, state: Mutex::default(), pushed: Condvar::new() });
        let owner = Owner(queue.clone());
        for _ in 0..threads {
            let queue = queue.clone();
            std::thread::Builder::new().name("busy-guests".to_owned()).spawn(move || {
                // On Linux the niceness belongs to the thread. If lowering it fails, busy guests run at the same
                // priority as others.
                if let Err(error) = rustix::process::nice(NICENESS) {
                    tracing::debug!(%error, "cannot lower the priority of a thread for busy guests");
                }
                queue.work();
            })?;
        }
        Ok(Self(Arc::new(owner)))
    }

    fn ticker(&self) -> &Ticker {
        &self.0.0.ticker
    }

    /// Returns the thread that puts the memory of waiting guests to rest.
    pub(super) fn rester(&self) -> &Rester {
        &self.0.0.rester
    }

    fn share(&self) -> &RuntimeShare {
        &self.0.0.share
    }

    /// Lets a run take turns until it waits or has ended.
    async fn take_turns<R: Send + 'static>(&self, meter: CpuMeter, run: Run<R>, link: &Arc<Link>) -> Back<R> {
        let (back, result) = oneshot::channel();
        let rank = meter.rank();
        let seat = Arc::new(Seat {
            going: Mutex::new(Some(Going { meter, run, back })),
            link: link.clone(),
            runtime: Handle::current(),
            span: Span::current(),
        });
        let _stopper = Stopper(seat.clone());
        self.0.0.lock().push(rank, seat);
        self.0.0.pushed.notify_one();
        // The threads live as long as any plugin, and a run holds its plugin.
        result.await.unwrap_or_else(|_| unreachable!("a busy thread returns every run that is waited for"))
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.pushed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::cpu::{interruption, thread_cpu_time};
    use super::super::memory::{MemoryCharge, StackCharge};
    use super::*;
    use crate::imports::Record;

    /// Returns the name of the current thread.
    fn here() -> String {
        std::thread::current().name().unwrap_or_default().to_owned()
    }

    fn compute(time: Duration) {
        let before = thread_cpu_time();
        while thread_cpu_time() - before < time {
            std::hint::spin_loop();
        }
    }

    fn guest<R>(future: impl Future<Output = R> + Send + 'static) -> Run<R> {
        Run::new(Box::pin(future), &Rester::off())
    }

    fn busy_threads() -> BusyThreads {
        BusyThreads::start(Ticker::start(&wasmtime::Engine::default()).unwrap(), Rester::off()).unwrap()
    }

    fn meter() -> CpuMeter {
        let record = Arc::<Record>::default();
        let stack = StackCharge::new(MemoryCharge::new(&record));
        CpuMeter::new(record, Duration::from_secs(60), stack)
    }

    /// Returns a run that computes for `first`, is interrupted three times, and waits. Its result is the threads that
    /// it ran on: at its start, after each interruption, and at its end.
    fn run_of(first: Duration) -> Run<Vec<String>> {
        guest(async move {
            let mut threads = vec![here()];
            compute(first);
            for _ in 0..3 {
                interruption().await;
                threads.push(here());
            }
            tokio::task::yield_now().await;
            threads.push(here());
            threads
        })
    }

    #[tokio::test]
    async fn a_guest_that_computed_much_is_polled_on_the_busy_threads_even_after_a_wait() {
        let threads = run(&busy_threads(), meter(), run_of(Duration::from_millis(20))).await.unwrap();

        let [first, busy @ ..] = &threads[..] else { panic!("{threads:?}") };
        assert!(busy.iter().all(|thread| thread == "busy-guests"), "{threads:?}");
        assert_eq!(*first, here(), "{threads:?}");
    }

    #[tokio::test]
    async fn a_guest_interrupted_at_its_start_stays_on_its_thread() {
        let threads = run(&busy_threads(), meter(), run_of(Duration::ZERO)).await.unwrap();

        assert_eq!(threads, vec![here(); 5]);
    }

    #[tokio::test]
    async fn a_guest_that_computes_in_short_stints_moves_and_comes_back_after_a_rest() {
        let stints: Run<(usize, String)> = guest(async {
            let mut stints = 0;
            while here() != "busy-guests" {
                compute(Duration::from_micros(300));
                stints += 1;
                tokio::time::sleep(Duration::from_micros(100)).await;
            }
            // Far longer than the decay.
            tokio::time::sleep(Duration::from_secs(2)).await;
            (stints, here())
        });

        let (stints, at_last) = run(&busy_threads(), meter(), stints).await.unwrap();

        assert!((2..100).contains(&stints), "{stints}");
        assert_eq!(at_last, here());
    }

    /// Sends a message when it is dropped.
    struct Dropped(Option<oneshot::Sender<Instant>>);

    impl Drop for Dropped {
        fn drop(&mut self) {
            if let Some(dropped) = self.0.take() {
                let _ = dropped.send(Instant::now());
            }
        }
    }

    #[tokio::test]
    async fn a_stopped_guest_is_dropped_even_if_others_hold_the_busy_threads() {
        let threads = busy_threads();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let (release, released) = std::sync::mpsc::channel::<()>();
        let released = Arc::new(Mutex::new(released));
        let (taken, mut take) = tokio::sync::mpsc::unbounded_channel();
        // These occupy the busy threads and ignore ticks.
        let hogs = (0..cores).map(|_| {
            let (threads, released, taken) = (threads.clone(), released.clone(), taken.clone());
            let hog: Run<()> = guest(async move {
                compute(Duration::from_millis(20));
                interruption().await;
                taken.send(()).unwrap();
                let _ = released.lock().unwrap().recv();
            });
            tokio::spawn(async move { run(&threads, meter(), hog).await })
        });
        let hogs: Vec<_> = hogs.collect();
        for _ in 0..cores {
            take.recv().await.unwrap();
        }
        let (dropped, gone) = oneshot::channel();
        let dropped = Dropped(Some(dropped));
        let (moved, moves) = oneshot::channel();
        let stopped: Run<()> = guest(async move {
            let _dropped = dropped;
            compute(Duration::from_millis(20));
            moved.send(()).unwrap();
            interruption().await;
            unreachable!("no thread is free for it")
        });
        let stopped = tokio::spawn(async move { run(&threads, meter(), stopped).await });
        moves.await.unwrap();

        stopped.abort();

        gone.await.unwrap();
        drop(release);
        for hog in hogs {
            hog.await.unwrap().unwrap();
        }
    }
}
