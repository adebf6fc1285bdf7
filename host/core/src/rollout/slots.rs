//! Who gets in: slots, the queue, and ids in use.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::sync::CancellationToken;

use super::journal::{self, RolloutLog};
use super::model::Phase;
use crate::budget::OverBudget;
use crate::id::RolloutId;
use crate::telemetry::Refusal;

/// Instances that say what an agent loop offers, at once. They have no slot, because a
/// caller waits for the answer while its rollout waits for one; the engine has room for
/// a few beyond the slots.
const DECLARATIONS_MAX: usize = 4;

/// Why a rollout was not admitted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdmitError {
    /// Every slot and every place in the queue is taken; try again later.
    #[error("full: {running_max} rollouts run and {queue_max} wait")]
    Full {
        /// Rollouts that run at once.
        running_max: u32,
        /// Rollouts that may wait.
        queue_max: u32,
    },
    /// Too much is held for others; try again later.
    #[error(transparent)]
    NoMemory(#[from] OverBudget),
    /// A rollout of this id is alive.
    #[error("a rollout of this id is alive")]
    Duplicate,
    /// It cannot be kept.
    #[error(transparent)]
    NotKept(#[from] journal::Refused),
    /// The host takes no more rollouts.
    #[error("the host is shutting down")]
    Closed,
}

impl From<&AdmitError> for Refusal {
    fn from(error: &AdmitError) -> Self {
        match error {
            AdmitError::Full { .. } => Self::Full,
            AdmitError::NoMemory(_) => Self::Memory,
            AdmitError::Duplicate => Self::Duplicate,
            AdmitError::NotKept(_) => Self::NotKept,
            AdmitError::Closed => Self::Closed,
        }
    }
}

/// How busy a host is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Rollouts that run at once, at the most.
    pub max_concurrent: u32,
    /// Rollouts that wait for a slot.
    pub queued: u32,
    /// Rollouts that have one.
    pub running: u32,
    /// Whether it takes rollouts.
    pub accepting: bool,
}

/// A view of a live rollout from outside.
#[derive(Clone, Debug)]
pub struct Handle {
    pub(super) cancel: CancellationToken,
    phase: watch::Receiver<Phase>,
    log: Arc<OnceLock<RolloutLog>>,
}

impl Handle {
    /// Stops the guest where it is. The rollout ends as cancelled.
    pub fn cancel(&self) {
        if let Some(log) = self.log.get()
            && !self.cancel.is_cancelled()
        {
            log.cancelled();
        }
        self.cancel.cancel();
    }

    /// Stops it for now: where it is in a journal, another process goes on with it.
    pub(super) fn stop(&self) {
        self.cancel.cancel();
    }

    /// Where it is kept, if it is.
    pub fn log(&self) -> Option<&RolloutLog> {
        self.log.get()
    }

    pub(super) fn is_kept_in(&self, log: RolloutLog) {
        // It is said once, when it is admitted.
        let _ = self.log.set(log);
    }

    /// Where it stands.
    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Waits until it is over and its id is free.
    pub async fn over(&self) {
        let mut phases = self.phase.clone();
        while phases.changed().await.is_ok() {}
    }

    /// Its phases as they come; closed when it is over.
    pub(crate) fn phases(&self) -> watch::Receiver<Phase> {
        self.phase.clone()
    }
}

/// Slots for rollouts that run, the queue before them, and who is in either. Cheap to clone.
#[derive(Clone)]
pub(super) struct Slots(Arc<Inner>);

struct Inner {
    running_max: u32,
    queue_max: u32,
    free: Arc<Semaphore>,
    /// Held by the one rollout of the queue that waits for a slot, so that a rollout that had
    /// a slot before waits behind no more than one that has not.
    head_of_queue: tokio::sync::Mutex<()>,
    declarations: Arc<Semaphore>,
    live: Mutex<HashMap<RolloutId, Handle>>,
    live_count: watch::Sender<usize>,
    queued: AtomicUsize,
    closed: AtomicBool,
    stop: CancellationToken,
}

impl Inner {
    fn live(&self) -> MutexGuard<'_, HashMap<RolloutId, Handle>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A rollout's place among the live ones, given back when it is dropped.
pub(super) struct SlotGuard {
    slots: Arc<Inner>,
    id: RolloutId,
    waiting: bool,
}

impl SlotGuard {
    /// It has a slot now and waits no longer.
    pub(super) fn leaves_queue(&mut self) {
        if std::mem::take(&mut self.waiting) {
            self.slots.queued.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        self.leaves_queue();
        let count = {
            let mut live = self.slots.live();
            live.remove(&self.id);
            live.len()
        };
        self.slots.live_count.send_replace(count);
    }
}

/// A rollout that got in.
pub(super) struct Entered {
    pub place: SlotGuard,
    pub handle: Handle,
    pub phase: watch::Sender<Phase>,
}

impl Slots {
    /// So many for rollouts that run, and so many places to wait.
    pub(super) fn new(running_max: u32, queue_max: u32) -> Self {
        Self(Arc::new(Inner {
            running_max,
            queue_max,
            free: Arc::new(Semaphore::new(running_max as usize)),
            head_of_queue: tokio::sync::Mutex::default(),
            declarations: Arc::new(Semaphore::new(DECLARATIONS_MAX)),
            live: Mutex::default(),
            live_count: watch::Sender::new(0),
            queued: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            stop: CancellationToken::new(),
        }))
    }

    /// Lets a rollout of this id into the queue, or says at once why not. One that a process before
    /// admitted has its place, however many there are.
    pub(super) fn enter(&self, id: &RolloutId, has_place: bool) -> Result<Entered, AdmitError> {
        let inner = &self.0;
        let (sender, phase) = watch::channel(Phase::Queued);
        let handle = Handle { cancel: inner.stop.child_token(), phase, log: Arc::default() };
        let mut live = inner.live();
        if inner.closed.load(Ordering::Relaxed) {
            return Err(AdmitError::Closed);
        }
        if live.contains_key(id) {
            return Err(AdmitError::Duplicate);
        }
        let Inner { running_max, queue_max, .. } = **inner;
        if !has_place && live.len() >= running_max as usize + queue_max as usize {
            return Err(AdmitError::Full { running_max, queue_max });
        }
        live.insert(id.clone(), handle.clone());
        inner.queued.fetch_add(1, Ordering::Relaxed);
        inner.live_count.send_replace(live.len());
        drop(live);
        let place = SlotGuard { slots: inner.clone(), id: id.clone(), waiting: true };
        Ok(Entered { place, handle, phase: sender })
    }

    /// Waits for a slot in the queue. None when the host is shutting down.
    pub(super) async fn first(&self) -> Option<OwnedSemaphorePermit> {
        let _head = self.0.head_of_queue.lock().await;
        self.next().await
    }

    /// Waits for a slot before those in the queue, for a rollout that gave its own back. That
    /// starves nobody: each has come through the queue, and comes back once.
    pub(super) async fn next(&self) -> Option<OwnedSemaphorePermit> {
        self.0.free.clone().acquire_owned().await.ok()
    }

    /// Waits for the place of an instance that says what an agent loop offers.
    pub(super) async fn declaration(&self) -> Option<OwnedSemaphorePermit> {
        self.0.declarations.clone().acquire_owned().await.ok()
    }

    /// A live rollout.
    pub(super) fn find(&self, id: &RolloutId) -> Option<Handle> {
        self.0.live().get(id).cloned()
    }

    /// The ids of the live rollouts that the test holds for.
    pub(super) fn live_ids(&self, matches: impl Fn(&RolloutId) -> bool) -> Vec<RolloutId> {
        self.0.live().keys().filter(|id| matches(id)).cloned().collect()
    }

    /// How busy they are.
    pub(super) fn load(&self) -> Load {
        let live = self.0.live().len();
        let queued = self.0.queued.load(Ordering::Relaxed).min(live);
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Load {
            max_concurrent: self.0.running_max,
            queued: count(queued),
            running: count(live - queued),
            accepting: !self.0.closed.load(Ordering::Relaxed),
        }
    }

    /// Lets nobody in any more.
    pub(super) fn close(&self) {
        // Under the lock, so that no admission that saw it open is still to be counted.
        let _live = self.0.live();
        self.0.closed.store(true, Ordering::Relaxed);
    }

    /// Cancels every live rollout.
    pub(super) fn cancel_all(&self) {
        self.0.stop.cancel();
    }

    /// Waits until no rollout is alive.
    #[cfg(test)]
    pub(super) async fn idle(&self) {
        let mut count = self.0.live_count.subscribe();
        // The sender is in `self`, so it cannot be gone.
        let _ = count.wait_for(|count| *count == 0).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_id_is_taken_for_as_long_as_its_rollout_is_alive() {
        let slots = Slots::new(1, 1);
        let id = |text: &str| RolloutId::parse(text).unwrap();
        let mut first = slots.enter(&id("a"), false).unwrap();
        let _second = slots.enter(&id("b"), false).unwrap();
        let refused = |name: &str| slots.enter(&id(name), false).err().unwrap();
        assert_eq!(refused("a"), AdmitError::Duplicate);
        assert_eq!(refused("c"), AdmitError::Full { running_max: 1, queue_max: 1 });
        drop(slots.enter(&id("c"), true).unwrap());
        first.place.leaves_queue();
        let load = slots.load();
        assert_eq!((load.running, load.queued), (1, 1));

        drop(first);
        slots.enter(&id("a"), false).unwrap();

        slots.close();
        assert_eq!(refused("a"), AdmitError::Closed);
        drop(_second);
        slots.idle().await;
    }
}
