//! A bound on components that are loaded at once.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Turns of threads that load a component. Loading blocks, so waiting for a turn does, too.
pub(super) struct LoadTurns {
    free: Mutex<u32>,
    freed: Condvar,
}

/// The turn of a thread, over when it is dropped.
pub(super) struct LoadTurn<'a>(&'a LoadTurns);

impl LoadTurns {
    pub(super) fn new(max: u32) -> Self {
        Self { free: Mutex::new(max), freed: Condvar::new() }
    }

    fn free(&self) -> MutexGuard<'_, u32> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a turn, and blocks the thread until then.
    pub(super) fn take(&self) -> LoadTurn<'_> {
        let waited = self.freed.wait_while(self.free(), |free| *free == 0);
        *waited.unwrap_or_else(PoisonError::into_inner) -= 1;
        LoadTurn(self)
    }
}

impl Drop for LoadTurn<'_> {
    fn drop(&mut self) {
        *self.0.free() += 1;
        self.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_turn_that_is_over_goes_to_a_thread_that_waits() {
        let turns = LoadTurns::new(2);
        let (first, _second) = (turns.take(), turns.take());
        let (taken, third) = mpsc::channel();
        std::thread::scope(|scope| {
            let turns = &turns;
            scope.spawn(move || {
                let _turn = turns.take();
                taken.send(()).unwrap();
            });
            assert_eq!(*turns.free(), 0);
            assert!(third.try_recv().is_err());
            drop(first);
            third.recv().unwrap();
        });
        assert_eq!(*turns.free(), 1);
    }
}
