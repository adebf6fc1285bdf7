//! Guests that burn CPU give way to those that do not.
//!
//! A rollout is polled on the runtime's threads for as long as its guest waits for
//! something soon. A tick of the engine that finds it computing moves it to
//! [`BusyThreads`], where guests of its kind take turns at a lower priority until it waits;
//! then it comes back. At each tick within a turn the thread offers its core to whoever
//! wants it, because the kernel by itself may let a neighbour wait for its own tick, which
//! is longer. So a neighbour that has a little to do hardly stands in line behind a guest
//! that computes, of which there may be more than cores.

use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tracing::Span;
use wasmtime::UpdateDeadline;

use super::Ticker;
use crate::imports::Record;

/// A guest that has computed for less than this may be one that waits again at once.
const BUSY: Duration = Duration::from_millis(1);

/// How long a turn on the busy threads is. Longer than what most guests compute between
/// two waits, so that those that compute much do not take turns at being nearly done.
const TURN: Duration = Duration::from_millis(5);

/// Ticks of the engine until it asks about a guest again.
pub(super) const TICKS: u64 = 1;

/// How much lower the priority of these threads is, in the kernel's steps of niceness.
/// Low enough that a thread of the runtime takes the core as soon as it has something to
/// do, and high enough that a guest with much to compute gets on beside a full machine.
const NICENESS: i32 = 10;

/// A guest at work.
pub(super) type Run<R> = Pin<Box<dyn Future<Output = R> + Send>>;

/// Why a guest was stopped in the middle of its work: its CPU time is used up.
#[derive(Debug)]
pub(super) struct Spent;

/// Counts the CPU time of one run against its budget.
pub(super) struct CpuMeter {
    record: Arc<Record>,
    used: Duration,
    budget: Duration,
}

/// What one poll came to.
enum Step<R> {
    /// The run is over.
    Over(Result<R, Spent>),
    /// The guest waits.
    Waits,
    /// The guest was interrupted and has more to do.
    Goes {
        /// CPU time that it had.
        took: Duration,
    },
}

/// Where a guest is being polled.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    /// On a thread of the runtime.
    Runtime,
    /// On a busy thread.
    Busy,
}

thread_local! {
    /// The last poll of a guest on this thread: where it is, and since when.
    static POLL: Cell<Option<(Place, Instant)>> = const { Cell::new(None) };
    /// Whether a tick ended that poll.
    static INTERRUPTED: Cell<bool> = const { Cell::new(false) };
}

/// What the engine is to do with a guest that a tick finds at work.
pub(super) fn at_tick() -> UpdateDeadline {
    if let Some((place, began)) = POLL.get() {
        let turn = match place {
            Place::Busy => {
                std::thread::yield_now();
                TURN
            }
            // The tick may be one that passed while the guest waited.
            Place::Runtime => BUSY,
        };
        if began.elapsed() < turn {
            return UpdateDeadline::Continue(TICKS);
        }
    }
    UpdateDeadline::YieldCustom(TICKS, Box::pin(interruption()))
}

/// Ends the poll of a guest, and lets [`CpuMeter::poll`] know that the guest does not wait.
async fn interruption() {
    INTERRUPTED.set(true);
    tokio::task::yield_now().await;
}

impl CpuMeter {
    pub fn new(record: Arc<Record>, budget: Duration) -> Self {
        Self { record, used: Duration::ZERO, budget }
    }

    fn poll<R>(&mut self, run: &mut Run<R>, cx: &mut Context<'_>, place: Place, ticker: &Ticker) -> Step<R> {
        let _watched = ticker.watch();
        INTERRUPTED.set(false);
        POLL.set(Some((place, Instant::now())));
        let before = thread_cpu_time();
        let polled = run.as_mut().poll(cx);
        let took = thread_cpu_time().saturating_sub(before);
        self.used += took;
        self.record.meter().add_cpu(took);
        match polled {
            Poll::Ready(result) => Step::Over(Ok(result)),
            Poll::Pending if self.used > self.budget => Step::Over(Err(Spent)),
            Poll::Pending if INTERRUPTED.take() => Step::Goes { took },
            Poll::Pending => Step::Waits,
        }
    }
}

/// CPU time of this thread so far. Within one poll it is the guest's, whatever else the
/// machine is busy with.
fn thread_cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Runs a guest to its end or to the end of its budget: here, and on the busy threads
/// while it computes. Dropping what this gives stops the guest, at once where it waits
/// and within one turn where it computes.
pub(super) async fn run<R: Send + 'static>(
    threads: &BusyThreads,
    mut meter: CpuMeter,
    mut run: Run<R>,
) -> Result<R, Spent> {
    loop {
        let step = std::future::poll_fn(|cx| {
            match meter.poll(&mut run, cx, Place::Runtime, threads.ticker()) {
                Step::Waits => Poll::Pending,
                // It was the thread that was interrupted, more than the guest, which is
                // polled again soon.
                Step::Goes { took } if took < BUSY => Poll::Pending,
                step => Poll::Ready(step),
            }
        });
        if let Step::Over(result) = step.await {
            return result;
        }
        let (back, waits) = oneshot::channel();
        threads.push(Box::new(Turns {
            going: Some((meter, run)),
            back: Some(back),
            runtime: Handle::current(),
            span: Span::current(),
        }));
        match waits.await {
            Ok(Back::Waits(its_meter, its_run)) => (meter, run) = (its_meter, its_run),
            Ok(Back::Over(result)) => return result,
            Ok(Back::Panicked(payload)) => std::panic::resume_unwind(payload),
            // The threads live as long as any plugin does, and a run holds its plugin.
            Err(_) => unreachable!("a busy thread gives back every run that somebody waits for"),
        }
    }
}

/// What comes back from the busy threads.
enum Back<R> {
    /// The guest waits, and is to be polled by whoever waits for it.
    Waits(CpuMeter, Run<R>),
    Over(Result<R, Spent>),
    Panicked(Box<dyn std::any::Any + Send>),
}

/// A run among the busy ones.
struct Turns<R> {
    going: Option<(CpuMeter, Run<R>)>,
    back: Option<oneshot::Sender<Back<R>>>,
    runtime: Handle,
    span: Span,
}

/// Something that takes turns.
trait TakesTurns: Send {
    /// One turn. Gives whether there are more.
    fn turn(&mut self, ticker: &Ticker) -> bool;
}

impl<R: Send + 'static> TakesTurns for Turns<R> {
    fn turn(&mut self, ticker: &Ticker) -> bool {
        // What a guest is dropped with, and what it starts, belongs to the runtime.
        let _runtime = self.runtime.enter();
        let _span = self.span.enter();
        let (Some((mut meter, mut run)), Some(back)) = (self.going.take(), self.back.take()) else {
            return false;
        };
        if back.is_closed() {
            return false;
        }
        // Nobody is woken by it: a run that waits is polled again where it came from.
        let mut cx = Context::from_waker(Waker::noop());
        let polled = catch_unwind(AssertUnwindSafe(|| meter.poll(&mut run, &mut cx, Place::Busy, ticker)));
        let told = match polled {
            Ok(Step::Goes { .. }) => {
                self.going = Some((meter, run));
                self.back = Some(back);
                return true;
            }
            Ok(Step::Waits) => Back::Waits(meter, run),
            Ok(Step::Over(result)) => {
                drop(run);
                Back::Over(result)
            }
            Err(payload) => {
                // What is left of it may panic again.
                let _ = catch_unwind(AssertUnwindSafe(|| drop(run)));
                Back::Panicked(payload)
            }
        };
        // Whoever waited may have gone just now; the run goes with what it is told.
        let _ = back.send(told);
        false
    }
}

/// The threads on which guests compute. Cheap to clone; the threads end with the last of
/// it.
#[derive(Clone)]
pub(crate) struct BusyThreads(Arc<Owner>);

struct Owner(Arc<Queue>);

struct Queue {
    ticker: Ticker,
    state: Mutex<State>,
    pushed: Condvar,
}

#[derive(Default)]
struct State {
    runs: VecDeque<Box<dyn TakesTurns>>,
    closed: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut more: Option<Box<dyn TakesTurns>> = None;
        loop {
            let mut run = {
                let mut state = self.lock();
                state.runs.extend(more.take());
                loop {
                    if let Some(run) = state.runs.pop_front() {
                        break run;
                    }
                    if state.closed {
                        return;
                    }
                    state = self.pushed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            };
            // A destructor that panics takes nobody else's turn.
            let turn = AssertUnwindSafe(|| run.turn(&self.ticker).then_some(run));
            more = catch_unwind(turn).ok().flatten();
            std::thread::yield_now();
        }
    }
}

impl BusyThreads {
    /// One thread a core.
    pub fn start(ticker: Ticker) -> std::io::Result<Self> {
        let queue = Arc::new(Queue { ticker, state: Mutex::default(), pushed: Condvar::new() });
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let owner = Owner(queue.clone());
        for _ in 0..threads {
            let queue = queue.clone();
            std::thread::Builder::new().name("busy-guests".to_owned()).spawn(move || {
                // On Linux this is the thread's own. Where it is refused, guests that
                // compute are as important as the others.
                if let Err(error) = rustix::process::nice(NICENESS) {
                    tracing::debug!(%error, "priority not lowered");
                }
                queue.work();
            })?;
        }
        Ok(Self(Arc::new(owner)))
    }

    fn ticker(&self) -> &Ticker {
        &self.0.0.ticker
    }

    fn push(&self, run: Box<dyn TakesTurns>) {
        self.0.0.lock().runs.push_back(run);
        self.0.0.pushed.notify_one();
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
    use super::*;

    /// Which thread does this.
    fn here() -> String {
        std::thread::current().name().unwrap_or_default().to_owned()
    }

    fn compute(time: Duration) {
        let before = thread_cpu_time();
        while thread_cpu_time() - before < time {
            std::hint::spin_loop();
        }
    }

    /// One that computes `first`, is interrupted three times, and waits. Gives the threads
    /// that it was on: at its start, after each interruption, and at its end.
    fn run_of(first: Duration) -> Run<Vec<String>> {
        Box::pin(async move {
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

    async fn threads_of(first: Duration) -> Vec<String> {
        let engine = wasmtime::Engine::default();
        let threads = BusyThreads::start(Ticker::start(&engine).unwrap()).unwrap();
        let meter = CpuMeter::new(Arc::default(), Duration::from_secs(60));
        run(&threads, meter, run_of(first)).await.unwrap()
    }

    #[tokio::test]
    async fn a_guest_that_computes_stays_on_the_busy_threads_until_it_waits() {
        let threads = threads_of(BUSY).await;

        let [first, busy @ .., last] = &threads[..] else { panic!("{threads:?}") };
        assert!(busy.iter().all(|thread| thread == "busy-guests"), "{threads:?}");
        assert_eq!((first, last), (&here(), &here()), "{threads:?}");
    }

    #[tokio::test]
    async fn a_guest_that_was_interrupted_at_its_begin_stays_where_it_is() {
        let threads = threads_of(Duration::ZERO).await;

        assert_eq!(threads, vec![here(); 5]);
    }
}
