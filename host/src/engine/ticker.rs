//! Advances the engine's epoch, which is how running guests come to yield.

use std::time::Duration;

/// Time between two ticks. A guest yields at every tick, so this is how long it may
/// keep a worker thread, and how late a deadline may be noticed.
const TICK: Duration = Duration::from_millis(5);

/// Starts the ticker: a thread of its own, because on the runtime's threads the guests
/// it is to interrupt could keep it from running. It lives exactly as long as the
/// engine, whoever holds that: a plugin that outlives the [`super::Engine`] that loaded
/// it must still be stoppable.
pub(super) fn start(engine: &wasmtime::Engine) -> std::io::Result<()> {
    let engine = engine.weak();
    std::thread::Builder::new().name("epoch-ticker".to_owned()).spawn(move || {
        while let Some(engine) = engine.upgrade() {
            engine.increment_epoch();
            drop(engine);
            std::thread::sleep(TICK);
        }
    })?;
    Ok(())
}
