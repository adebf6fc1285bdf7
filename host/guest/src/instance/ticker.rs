//! The thread that advances the engine's epoch, which makes running guests yield.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::Thread;
use std::time::Duration;

/// Time between two ticks. At a tick the host can interrupt a guest, so this is the time that other work waits for a
/// guest that computes.
const TICK: Duration = Duration::from_millis(1);

/// Number of ticks without a running guest after which ticks become [less frequent](SLOW_TICK).
const QUICK_TICKS: u32 = 4;

/// Time between two ticks if guests run only briefly, so that a tick rarely finds a running guest: each useless tick
/// costs as much as waking a guest. The first turn of a guest that computes may be longer by this time.
const SLOW_TICK: Duration = Duration::from_millis(8);

/// Number of ticks without a running guest after which the ticker sleeps. The number is large, so that waking the
/// ticker costs the guests of an almost idle host next to nothing.
const IDLE_TICKS: u32 = 30;

/// Time that the ticker sleeps before it checks whether the engine still exists.
const SLEEP: Duration = Duration::from_secs(1);

/// The thread that ticks. It is separate, because guests on the runtime's threads could keep it from running. It lives
/// exactly as long as the engine, which a plugin may hold longer than the host's `Engine`: such a plugin must still be
/// interruptible. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Ticker {
    shared: Arc<Shared>,
    thread: Thread,
}

#[derive(Default)]
struct Shared {
    /// Number of polls of guests in progress.
    at_work: AtomicUsize,
    asleep: AtomicBool,
}

/// Marks a guest as running until it is dropped.
pub(crate) struct AtWork<'a>(&'a Shared);

impl Ticker {
    pub(crate) fn start(engine: &wasmtime::Engine) -> std::io::Result<Self> {
        let engine = engine.weak();
        let shared = Arc::<Shared>::default();
        let ticker = shared.clone();
        let thread = std::thread::Builder::new().name("epoch-ticker".to_owned()).spawn(move || {
            let mut idle_ticks: u32 = 0;
            while let Some(engine) = engine.upgrade() {
                engine.increment_epoch();
                drop(engine);
                idle_ticks = if ticker.is_any_running() { 0 } else { idle_ticks.saturating_add(1) };
                if idle_ticks < IDLE_TICKS {
                    std::thread::sleep(if idle_ticks < QUICK_TICKS { TICK } else { SLOW_TICK });
                } else if ticker.sleep() {
                    idle_ticks = 0;
                }
            }
        })?;
        Ok(Self { shared, thread: thread.thread().clone() })
    }

    /// Marks a guest as running. To be called before a guest is polled.
    pub(crate) fn watch(&self) -> AtWork<'_> {
        self.shared.at_work.fetch_add(1, Ordering::SeqCst);
        if self.shared.asleep.load(Ordering::SeqCst) && self.shared.asleep.swap(false, Ordering::SeqCst) {
            self.thread.unpark();
        }
        AtWork(&self.shared)
    }
}

impl Shared {
    fn is_any_running(&self) -> bool {
        self.at_work.load(Ordering::SeqCst) > 0
    }

    /// Sleeps until a guest runs, for a limited time. Returns whether a guest woke it. The flag is set before the count
    /// is read, and `watch` increments the count before it reads the flag, so one of the two sees the other.
    fn sleep(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        if !self.is_any_running() {
            std::thread::park_timeout(SLEEP);
        }
        !self.asleep.swap(false, Ordering::SeqCst)
    }
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.at_work.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use wasmtime::{Config, Engine, Module, Store, Trap};

    use super::*;

    #[test]
    fn a_ticker_that_sleeps_is_woken_by_a_guest() {
        let mut config = Config::new();
        config.epoch_interruption(true);
        let engine = Engine::new(&config).unwrap();
        let spinning = Module::new(&engine, SPIN).unwrap();
        let ticker = Ticker::start(&engine).unwrap();
        while !ticker.shared.asleep.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }

        let watched = ticker.watch();
        let mut store = Store::new(&engine, ());
        store.set_epoch_deadline(u64::from(IDLE_TICKS) + 1);
        let ended = wasmtime::Instance::new(&mut store, &spinning, &[]).unwrap_err();

        assert_eq!(ended.downcast_ref(), Some(&Trap::Interrupt));
        drop(watched);
        assert!(!ticker.shared.is_any_running());
    }

    /// A module with a start function that never ends: `(module (func loop br 0 end) (start 0))`.
    const SPIN: &[u8] = b"\0asm\x01\0\0\0\x01\x04\x01\x60\0\0\x03\x02\x01\0\x08\x01\0\x0a\x09\x01\x07\0\x03\x40\x0c\0\x0b\x0b";
}
