//! Memory of guests that wait for long.
//!
//! A guest writes to a few words of many pages, and the kernel copies each of these pages from the component's initial
//! memory. While the guest waits for a model, it needs none of them. So a thread [returns](Scratch::take) the private
//! pages of each guest that has waited for [`DELAY`] to the kernel and keeps only the words that differ from the initial
//! memory. They are written back before the guest is polled again.
//!
//! [`Run`] is the only way to poll a guest, and it hands out an [`Awake`] guest only. A guest whose model replies earlier
//! pays for two uncontended locks a poll.

mod difference;
mod pages;
mod place;

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::task::AtomicWaker;

use difference::{Difference, Scratch};
use pages::PageMap;
pub(super) use place::Placed;
use place::{Noting, Place};

/// Minimum time that a guest waits before its memory is put to rest. The maximum is twice as long.
const DELAY: Duration = Duration::from_secs(1);

/// Time between two rounds of the thread, so that thousands of guests do not wake it thousands of times a second.
const ROUND: Duration = Duration::from_millis(50);

/// Minimum number of private pages for which putting a guest to rest is worth the work.
const PAGES_MIN: usize = 8;

/// Maximum number of pages of one guest that rest. Each is copied by the kernel when the guest is woken, on a thread for
/// which others wait.
const PAGES_MAX: usize = 512;

/// The thread that puts memory to rest. Cheap to clone; it ends when the last clone is dropped.
#[derive(Clone)]
pub(crate) struct Rester(Option<Arc<Owner>>);

struct Owner(Arc<Queue>);

struct Queue {
    pages: PageMap,
    delay: Duration,
    state: Mutex<QueueState>,
    pushed: Condvar,
}

#[derive(Default)]
struct QueueState {
    /// Guests that began to wait, and the time at which each is checked, in order.
    due: VecDeque<(Instant, Weak<WaitingMemory>)>,
    closed: bool,
}

impl Rester {
    /// Starts the thread. If the kernel lacks a feature that it needs, no memory is put to rest.
    pub(crate) fn start() -> std::io::Result<Self> {
        Self::after(DELAY)
    }

    fn after(delay: Duration) -> std::io::Result<Self> {
        let Some(pages) = PageMap::open() else {
            tracing::debug!("the kernel does not tell which pages are private; waiting guests keep theirs");
            return Ok(Self::off());
        };
        let queue = Arc::new(Queue { pages, delay, state: Mutex::default(), pushed: Condvar::new() });
        let owner = Owner(queue.clone());
        std::thread::Builder::new().name("memory-rest".to_owned()).spawn(move || queue.work())?;
        Ok(Self(Some(Arc::new(owner))))
    }

    /// Returns a `Rester` that puts no memory to rest: for an engine whose memory is not mapped from a file, or may move.
    pub(crate) fn off() -> Self {
        Self(None)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.pushed.notify_all();
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, memory: Weak<WaitingMemory>) {
        let mut state = self.lock();
        state.due.push_back((Instant::now() + self.delay, memory));
        if state.due.len() == 1 {
            self.pushed.notify_one();
        }
    }

    fn work(&self) {
        let mut scratch = Scratch::default();
        while let Some(memory) = self.next() {
            let Some(memory) = memory.upgrade() else { continue };
            if memory.look(&self.pages, &mut scratch, self.delay) == Look::Later {
                self.push(Arc::downgrade(&memory));
            }
            std::thread::yield_now();
        }
    }

    /// Waits for the next guest that is due. Returns `None` once the queue is closed.
    fn next(&self) -> Option<Weak<WaitingMemory>> {
        let mut state = self.lock();
        loop {
            if state.closed {
                return None;
            }
            let now = Instant::now();
            state = match state.due.front() {
                None => self.pushed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some((due, _)) if *due > now => {
                    let time = (*due - now).max(ROUND);
                    self.pushed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0
                }
                Some(_) => return state.due.pop_front().map(|(_, memory)| memory),
            };
        }
    }
}

/// Result of looking at a guest that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    /// The guest has not waited for long enough.
    Later,
    /// The memory is at rest, or there is nothing to gain.
    Done,
}

/// The memory of one guest, shared by its [`Run`] and the thread.
#[derive(Default)]
struct WaitingMemory {
    state: Mutex<MemoryState>,
    /// Set while the guest is to be polled and the thread has the lock.
    wanted: AtomicBool,
    /// Woken when the thread has released the lock.
    released: AtomicWaker,
}

#[derive(Default)]
struct MemoryState {
    /// The memories from which an import's parameters were read, in the order of their addresses.
    places: Vec<Place>,
    /// Start of the guest's current wait. `None` while it is polled, and once it is being dropped.
    since: Option<Instant>,
    at_rest: Option<Difference>,
    /// Whether it is in the thread's queue.
    queued: bool,
}

impl WaitingMemory {
    fn lock(&self) -> MutexGuard<'_, MemoryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, MemoryState>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Puts the memory to rest if its guest has waited for `delay`.
    fn look(&self, pages: &PageMap, scratch: &mut Scratch, delay: Duration) -> Look {
        let look = match self.try_lock() {
            Some(mut state) if state.at_rest.is_some() => {
                state.queued = false;
                Look::Done
            }
            Some(mut state) if state.since.is_some_and(|since| since.elapsed() >= delay) => {
                state.queued = false;
                // SAFETY: the guest waits, and is neither polled nor dropped without this lock.
                let done = unsafe { state.put_to_rest(pages, scratch, || self.is_wanted()) };
                if let Err(error) = done {
                    tracing::debug!(%error, "cannot read which pages of a waiting guest are private");
                }
                Look::Done
            }
            _ => Look::Later,
        };
        self.released.wake();
        look
    }

    fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::SeqCst)
    }
}

impl MemoryState {
    /// # Safety
    ///
    /// Nothing uses the memories until [`Self::wake`] has been called.
    unsafe fn put_to_rest(
        &mut self,
        pages: &PageMap,
        scratch: &mut Scratch,
        is_wanted: impl Fn() -> bool,
    ) -> std::io::Result<()> {
        let runs = &mut scratch.runs;
        runs.clear();
        for Place { start, bytes } in &self.places {
            pages.private(*start..start + bytes, PAGES_MAX, runs)?;
        }
        let private: usize = runs.iter().map(|run| run.len() / pages.page_bytes()).sum();
        if private < PAGES_MIN {
            return Ok(());
        }
        // SAFETY: the caller guarantees it; all pages of these memories are mapped and writable.
        let (difference, taken) = unsafe { scratch.take(pages, is_wanted) };
        let (pages, dense_pages, bytes) = (taken.pages, taken.dense_pages, difference.bytes());
        tracing::trace!(pages, dense_pages, bytes, "put the memory of a waiting guest to rest");
        self.at_rest = Some(difference);
        Ok(())
    }

    fn wake(&mut self) {
        if let Some(difference) = self.at_rest.take() {
            // SAFETY: the memories exist as long as the run, and nothing uses them while the guest waits.
            unsafe { difference.restore() };
        }
    }

    fn note(&mut self, place: Place) {
        match self.places.binary_search_by_key(&place.start, |known| known.start) {
            Ok(known) => self.places[known] = place,
            Err(at) => self.places.insert(at, place),
        }
    }
}

/// The run of a guest: the future in which its store is, and its memory's state.
pub(super) struct Run<R> {
    // First, so that the thread leaves the memory before the future drops it.
    memory: MemoryOfRun,
    future: Pin<Box<dyn Future<Output = R> + Send>>,
}

struct MemoryOfRun {
    rester: Rester,
    /// Exists once the guest has waited in an import.
    waiting: Option<Arc<WaitingMemory>>,
}

impl Drop for MemoryOfRun {
    fn drop(&mut self) {
        let Some(waiting) = &self.waiting else { return };
        waiting.wanted.store(true, Ordering::SeqCst);
        let mut state = waiting.lock();
        state.since = None;
        // The memory is never used again.
        state.at_rest = None;
    }
}

impl<R> Run<R> {
    pub(super) fn new(future: Pin<Box<dyn Future<Output = R> + Send>>, rester: &Rester) -> Self {
        Self { memory: MemoryOfRun { rester: rester.clone(), waiting: None }, future }
    }

    /// Writes back the memory of a guest at rest. Returns `None` if the thread has it at this moment; then the task is
    /// woken soon.
    pub(super) fn awake(&mut self, cx: &mut Context<'_>) -> Option<Awake<'_, R>> {
        if let Some(waiting) = &self.memory.waiting {
            let mut state = waiting.try_lock();
            if state.is_none() {
                waiting.wanted.store(true, Ordering::SeqCst);
                waiting.released.register(cx.waker());
                state = waiting.try_lock();
            }
            let mut state = state?;
            waiting.wanted.store(false, Ordering::SeqCst);
            state.since = None;
            state.wake();
        }
        Some(Awake(self))
    }
}

/// A guest whose memory is in place, so that it can be polled.
pub(super) struct Awake<'a, R>(&'a mut Run<R>);

impl<R> Awake<'_, R> {
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<R> {
        let noting = Noting::begin();
        let polled = self.0.future.as_mut().poll(cx);
        let noted = noting.end();
        let MemoryOfRun { rester: Rester(rester), waiting } = &mut self.0.memory;
        if let (Poll::Pending, Some(_), Some(place)) = (&polled, rester, noted) {
            waiting.get_or_insert_default().lock().note(place);
        }
        polled
    }

    /// Marks the guest as waiting. Its memory is put to rest if it waits for long.
    pub(super) fn mark_waiting(self) {
        let MemoryOfRun { rester: Rester(rester), waiting } = &self.0.memory;
        let (Some(rester), Some(waiting)) = (rester, waiting) else { return };
        let mut state = waiting.lock();
        state.since = Some(Instant::now());
        if !std::mem::replace(&mut state.queued, true) {
            rester.0.push(Arc::downgrade(waiting));
        }
    }
}

#[cfg(test)]
mod tests;
