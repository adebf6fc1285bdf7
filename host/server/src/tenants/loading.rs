//! A limit on the number of components that are loaded at once.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A semaphore for threads that load a component. Loading blocks the thread, and so does waiting for a permit.
pub(super) struct LoadPermits {
    free: Mutex<u32>,
    freed: Condvar,
}

/// A thread's permit, which is returned when it is dropped.
pub(super) struct LoadPermit<'a>(&'a LoadPermits);

impl LoadPermits {
    pub(super) fn new(max: u32) -> Self {
        Self { free: Mutex::new(max), freed: Condvar::new() }
    }

    fn free(&self) -> MutexGuard<'_, u32> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a permit. Blocks the thread.
    pub(super) fn acquire(&self) -> LoadPermit<'_> {
        let free = self.freed.wait_while(self.free(), |free| *free == 0);
        *free.unwrap_or_else(PoisonError::into_inner) -= 1;
        LoadPermit(self)
    }
}

impl Drop for LoadPermit<'_> {
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
    fn a_returned_permit_goes_to_a_waiting_thread() {
        let permits = LoadPermits::new(2);
        let (first, _second) = (permits.acquire(), permits.acquire());
        let (acquired, third) = mpsc::channel();
        std::thread::scope(|scope| {
            let permits = &permits;
            scope.spawn(move || {
                let _permit = permits.acquire();
                acquired.send(()).unwrap();
            });
            assert_eq!(*permits.free(), 0);
            assert!(third.try_recv().is_err());
            drop(first);
            third.recv().unwrap();
        });
        assert_eq!(*permits.free(), 1);
    }
}
