//! Advances the engine's epoch, which is how running guests come to yield.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two ticks. A guest yields at every tick, so this is how long it may
/// keep a worker thread, and how late a deadline may be noticed.
const TICK: Duration = Duration::from_millis(5);

/// A thread of its own: on the runtime's threads, the guests it is to interrupt could
/// keep it from running.
pub(super) struct Ticker {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Ticker {
    pub fn start(engine: &wasmtime::Engine) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, engine) = (stop.clone(), engine.weak());
        let thread = std::thread::Builder::new().name("epoch-ticker".to_owned()).spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                std::thread::park_timeout(TICK);
                let Some(engine) = engine.upgrade() else { return };
                engine.increment_epoch();
            }
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The thread does nothing that could panic.
            let _ = thread.join();
        }
    }
}
