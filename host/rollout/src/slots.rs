//! Admission to slots and the queue, quotas, and ids in use.

mod demand;
mod family;
mod lease;
mod pool;
mod quota;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio_util::sync::CancellationToken;

pub use demand::LeaseDemand;
pub use family::{ForkMember, ForkState};
use pool::{PluginMembership, QueueKind, Slot, TenantMembership};
pub use pool::{Share, SlotPool};
pub use quota::{AdmissionQuotas, OverQuota, QuotaOwner, StoredBytes};

use super::activity::{Activity, LiveFacts, LiveRollout};
use super::groups::GroupRefused;
use super::journal::{self, RolloutLog};
use super::model::Phase;
use rollout_core::budget::OverBudget;
use rollout_core::telemetry::Refusal;
use rollout_wire::id::RolloutId;

/// Maximum number of instances at once that describe an agent loop. They have no slot, because a caller waits for their
/// result while its rollout waits for a slot; the engine has room for a few instances beyond the slots.
const DECLARATIONS_MAX: usize = 4;

/// Error of a rollout that was not admitted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdmitError {
    /// All slots and the queue are full; a retry may succeed.
    #[error("full: {running_max} rollouts run and {queue_max} wait")]
    Full {
        /// Maximum number of running rollouts.
        running_max: u32,
        /// Maximum number of queued rollouts.
        queue_max: u32,
    },
    /// A quota is used up.
    #[error(transparent)]
    Quota(#[from] OverQuota),
    /// The memory budget is used up; a retry may succeed.
    #[error(transparent)]
    NoMemory(#[from] OverBudget),
    /// A rollout with this id is alive.
    #[error("a rollout with this id is alive")]
    Duplicate,
    /// It cannot take its seat in a group.
    #[error(transparent)]
    Group(#[from] GroupRefused),
    /// The journal cannot store it.
    #[error(transparent)]
    NotKept(#[from] journal::JournalRefused),
    /// The host admits no more rollouts.
    #[error("the host is shutting down")]
    Closed,
}

impl From<&AdmitError> for Refusal {
    fn from(error: &AdmitError) -> Self {
        match error {
            AdmitError::Full { .. } => Self::Full,
            AdmitError::Quota(_) => Self::Quota,
            AdmitError::NoMemory(_) => Self::Memory,
            AdmitError::Duplicate => Self::Duplicate,
            AdmitError::Group(_) => Self::Invalid,
            AdmitError::NotKept(_) => Self::NotKept,
            AdmitError::Closed => Self::Closed,
        }
    }
}

/// Load of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Maximum number of running rollouts.
    pub max_concurrent: u32,
    /// Rollouts that wait for a slot.
    pub queued: u32,
    /// Running rollouts.
    pub running: u32,
    /// Whether rollouts are admitted.
    pub accepting: bool,
}

/// A handle to a live rollout.
#[derive(Clone, Debug)]
pub struct Handle {
    pub(super) cancel: CancellationToken,
    phase: watch::Receiver<Phase>,
    log: Arc<OnceLock<RolloutLog>>,
    facts: Arc<OnceLock<LiveFacts>>,
}

impl Handle {
    /// Stops the guest. The rollout ends as cancelled.
    pub fn cancel(&self) {
        if let Some(log) = self.log.get()
            && !self.cancel.is_cancelled()
        {
            log.cancelled();
        }
        self.cancel.cancel();
    }

    /// Stops the guest in this process. If the rollout is in a journal, another process resumes it.
    pub(super) fn stop(&self) {
        self.cancel.cancel();
    }

    /// Returns the rollout's log in the journal, if there is one.
    pub fn log(&self) -> Option<&RolloutLog> {
        self.log.get()
    }

    pub(super) fn set_log(&self, log: RolloutLog) {
        // Called once, at admission.
        let _ = self.log.set(log);
    }

    /// Returns the facts of the rollout for pages; `None` until its admission is complete.
    pub fn facts(&self) -> Option<&LiveFacts> {
        self.facts.get()
    }

    pub(super) fn set_facts(&self, facts: LiveFacts) {
        // Called once, at admission.
        let _ = self.facts.set(facts);
    }

    /// Returns the current phase.
    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Waits until the rollout has ended and its id is free.
    pub async fn wait_for_end(&self) {
        let mut phases = self.phase.clone();
        while phases.changed().await.is_ok() {}
    }

    /// Returns a receiver of the phases, which is closed when the rollout has ended.
    pub(crate) fn phases(&self) -> watch::Receiver<Phase> {
        self.phase.clone()
    }
}

impl SlotPool {
    /// Adds a tenant with its share of the slots.
    pub fn tenant(&self, share: Share) -> TenantSlots {
        TenantSlots(Arc::new(TenantSlotsInner {
            stop: self.0.stop.child_token(),
            membership: Arc::new(self.add_tenant(share)),
            live: Mutex::default(),
            live_count: watch::Sender::new(0),
            closed: AtomicBool::new(false),
            sessions: AtomicU32::new(0),
            activity: Activity::new(self.0.ended_total.clone()),
        }))
    }

    /// Returns the load of the whole pool.
    pub fn load(&self) -> Load {
        let (running, queued) = self.busy();
        Load {
            max_concurrent: self.0.running_max,
            queued: count(queued),
            running: count(running),
            accepting: !self.0.closed.load(Ordering::Relaxed),
        }
    }

    /// Returns the number of further rollouts that would have a slot. Negative if rollouts wait.
    pub fn room(&self) -> i64 {
        self.0.room()
    }

    /// Stops admitting rollouts.
    pub fn close(&self) {
        self.0.closed.store(true, Ordering::SeqCst);
    }

    /// Cancels every live rollout.
    pub fn cancel_all(&self) {
        self.0.stop.cancel();
    }
}

/// A tenant's share of the slots, and its live rollouts, with ids that are unique within the tenant. Cheap to clone.
#[derive(Clone, Debug)]
pub struct TenantSlots(Arc<TenantSlotsInner>);

#[derive(Debug)]
struct TenantSlotsInner {
    membership: Arc<TenantMembership>,
    live: Mutex<HashMap<RolloutId, Live>>,
    live_count: watch::Sender<usize>,
    closed: AtomicBool,
    /// Number of open sessions.
    sessions: AtomicU32,
    stop: CancellationToken,
    activity: Arc<Activity>,
}

#[derive(Debug)]
struct Live {
    handle: Handle,
    /// The number of the rollout's plugin.
    plugin: u64,
}

impl TenantSlotsInner {
    fn live(&self) -> MutexGuard<'_, HashMap<RolloutId, Live>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TenantSlots {
    /// Adds a plugin with its share of the tenant's slots.
    pub fn plugin(&self, share: Share) -> Slots {
        Slots(Arc::new(SlotsInner {
            stop: self.0.stop.child_token(),
            membership: Arc::new(self.0.membership.add_plugin(share)),
            tenant: self.clone(),
            closed: AtomicBool::new(false),
        }))
    }

    /// Returns the maximum number of live rollouts of the process.
    pub(super) fn places(&self) -> u64 {
        self.0.membership.places()
    }

    /// Changes the share from here on.
    pub fn set_share(&self, share: Share) {
        self.0.membership.set_share(share);
    }

    /// Sets the key of the tenant's lease: it then runs only as many rollouts as [`SlotPool::set_lease`] allows. `None`
    /// means that it needs no lease.
    pub fn set_lease_key(&self, key: Option<i64>) {
        self.0.membership.set_lease(key);
    }

    /// Returns the number of further rollouts of the tenant that would have a slot.
    pub fn room(&self) -> i64 {
        self.0.membership.room()
    }

    /// Stops admitting rollouts of the tenant.
    pub fn close(&self) {
        // The lock is held, so that all rollouts that were admitted before are counted.
        let _live = self.0.live();
        self.0.closed.store(true, Ordering::Relaxed);
    }

    /// Cancels every live rollout of the tenant.
    pub fn cancel_all(&self) {
        self.0.stop.cancel();
    }

    /// Returns the summaries of the tenant's rollouts that have ended.
    pub fn activity(&self) -> &Arc<Activity> {
        &self.0.activity
    }

    /// Returns a live rollout of any plugin of the tenant.
    pub fn find(&self, id: &RolloutId) -> Option<Handle> {
        self.0.live().get(id).map(|live| live.handle.clone())
    }

    /// Returns the tenant's numbers of running and queued rollouts.
    pub fn busy(&self) -> [usize; 2] {
        let live = self.0.live();
        let queued = live.values().filter(|live| live.handle.phase() == Phase::Queued).count();
        [live.len() - queued, queued]
    }

    /// Returns a page of the live rollouts whose phase matches, the earliest admitted first, and the number of all of
    /// them.
    pub fn live_page(
        &self,
        skip: usize,
        limit: usize,
        matches: impl Fn(Phase) -> bool,
    ) -> (Vec<LiveRollout>, usize) {
        let live = self.0.live();
        let mut all: Vec<_> = live.iter().filter(|(_, live)| matches(live.handle.phase())).collect();
        let admitted_at = |live: &Live| live.handle.facts().map(|facts| facts.admitted_at);
        let found = all.len();
        let end = skip.saturating_add(limit).min(found);
        if end > 0 && end < found {
            // Only the page is sorted; a tenant may have ten thousand live rollouts.
            all.select_nth_unstable_by_key(end - 1, |(id, live)| (admitted_at(live), *id));
        }
        all.truncate(end);
        all.sort_unstable_by_key(|(id, live)| (admitted_at(live), *id));
        let page = all.into_iter().skip(skip).map(|(id, live)| LiveRollout {
            id: id.clone(),
            phase: live.handle.phase(),
            facts: live.handle.facts().cloned(),
        });
        (page.collect(), found)
    }

    /// Returns the numbers of open sessions and of sessions that the tenant may have, if sessions have at most this
    /// share of the slots.
    pub(super) fn sessions(&self, share: f64) -> (u32, u32) {
        (self.0.sessions.load(Ordering::Relaxed), self.0.membership.running_max_of(share))
    }

    /// Counts another session until the result is dropped. Returns `None` if the tenant has as many as it may have.
    pub(super) fn add_session(&self, share: f64) -> Option<SessionCount> {
        let (_, max) = self.sessions(share);
        let more = |count: u32| (count < max).then_some(count + 1);
        self.0.sessions.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(SessionCount(self.clone()))
    }

    /// Waits until the tenant has no live rollouts.
    pub async fn idle(&self) {
        let mut count = self.0.live_count.subscribe();
        // `self` holds the sender, so it cannot be dropped.
        let _ = count.wait_for(|count| *count == 0).await;
    }
}

/// Counts as an open session of its tenant until it is dropped.
#[derive(Debug)]
pub(super) struct SessionCount(TenantSlots);

impl Drop for SessionCount {
    fn drop(&mut self) {
        self.0.0.sessions.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A plugin's share of the slots, and its queue. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Slots(Arc<SlotsInner>);

#[derive(Debug)]
struct SlotsInner {
    membership: Arc<PluginMembership>,
    tenant: TenantSlots,
    closed: AtomicBool,
    stop: CancellationToken,
}

/// Membership of a rollout among the live ones, released when it is dropped.
pub(super) struct SlotGuard {
    slots: Arc<SlotsInner>,
    id: RolloutId,
    waiting: bool,
}

impl SlotGuard {
    /// Records that the rollout has a slot and left the queue.
    pub(super) fn leave_queue(&mut self) {
        if std::mem::take(&mut self.waiting) {
            self.slots.membership.leave_queue();
        }
    }
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        self.leave_queue();
        let tenant = &self.slots.tenant.0;
        // Dropped after the lock is released, because the handle takes a lock of its own.
        let (_gone, live) = {
            let mut live = tenant.live();
            (live.remove(&self.id), live.len())
        };
        self.slots.membership.leave();
        tenant.live_count.send_replace(live);
        tenant.activity.changed();
    }
}

/// A rollout that was admitted to the queue.
pub(super) struct Entered {
    pub guard: SlotGuard,
    pub handle: Handle,
    pub phase: watch::Sender<Phase>,
}

fn count(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

impl Slots {
    /// Creates the slots of a process with one plugin.
    pub fn alone(running_max: u32, queue_max: u32) -> Self {
        SlotPool::new(running_max, queue_max).tenant(Share::default()).plugin(Share::default())
    }

    /// Returns the slots of the tenant.
    pub fn tenant(&self) -> &TenantSlots {
        &self.0.tenant
    }

    /// Changes the share from here on.
    pub fn set_share(&self, share: Share) {
        self.0.membership.set_share(share);
    }

    /// Returns the number of further rollouts that would have a slot.
    pub(super) fn room(&self) -> i64 {
        self.0.membership.room()
    }

    /// Checks whether a rollout with this id would be admitted to the queue.
    pub(super) fn check(&self, id: &RolloutId) -> Result<(), AdmitError> {
        self.check_id(id, &self.0.tenant.0.live())?;
        self.0.membership.check()
    }

    /// Checks that a rollout with this id may be added to the live ones.
    fn check_id(&self, id: &RolloutId, live: &HashMap<RolloutId, Live>) -> Result<(), AdmitError> {
        if !self.is_open() {
            return Err(AdmitError::Closed);
        }
        if live.contains_key(id) { Err(AdmitError::Duplicate) } else { Ok(()) }
    }

    /// Admits a rollout with this id to the queue or fails immediately. One that an earlier process admitted needs no
    /// room in the queue.
    pub(super) fn enter(&self, id: &RolloutId, has_place: bool) -> Result<Entered, AdmitError> {
        let inner = &self.0;
        let tenant = &inner.tenant.0;
        let (sender, phase) = watch::channel(Phase::Queued);
        let handle =
            Handle { cancel: inner.stop.child_token(), phase, log: Arc::default(), facts: Arc::default() };
        let mut live = tenant.live();
        self.check_id(id, &live)?;
        inner.membership.enter(has_place)?;
        live.insert(id.clone(), Live { handle: handle.clone(), plugin: inner.membership.number() });
        tenant.live_count.send_replace(live.len());
        drop(live);
        tenant.activity.changed();
        let guard = SlotGuard { slots: inner.clone(), id: id.clone(), waiting: true };
        Ok(Entered { guard, handle, phase: sender })
    }

    /// Waits in the queue for a slot.
    pub(super) async fn first(&self) -> Option<Slot> {
        self.0.membership.slot(QueueKind::New).await
    }

    /// Waits for a slot ahead of the queue, for a rollout that has released its own slot. The queue does not starve,
    /// because each such rollout has waited in it before and returns only once.
    pub(super) async fn next(&self) -> Option<Slot> {
        self.0.membership.slot(QueueKind::Returning).await
    }

    /// Waits for a permit to create an instance that describes an agent loop or an environment.
    pub(super) async fn declaration(&self) -> Option<OwnedSemaphorePermit> {
        self.0.membership.pool().declarations.clone().acquire_owned().await.ok()
    }

    /// Returns a live rollout.
    pub(super) fn find(&self, id: &RolloutId) -> Option<Handle> {
        let live = self.0.tenant.0.live();
        let is_own = |live: &&Live| live.plugin == self.0.membership.number();
        live.get(id).filter(is_own).map(|live| live.handle.clone())
    }

    /// Returns the ids of the live rollouts that match.
    pub(super) fn live_ids(&self, matches: impl Fn(&RolloutId) -> bool) -> Vec<RolloutId> {
        let number = self.0.membership.number();
        let live = self.0.tenant.0.live();
        let own = live.iter().filter(|(id, live)| live.plugin == number && matches(id));
        own.map(|(id, _)| id.clone()).collect()
    }

    fn is_open(&self) -> bool {
        let closed = [&self.0.membership.pool().closed, &self.0.tenant.0.closed, &self.0.closed];
        closed.iter().all(|closed| !closed.load(Ordering::SeqCst))
    }

    /// Returns the current load.
    pub fn load(&self) -> Load {
        let (running, queued) = self.0.membership.load();
        Load {
            max_concurrent: self.0.membership.running_max(),
            queued: count(queued),
            running: count(running),
            accepting: self.is_open(),
        }
    }

    /// Stops admitting rollouts.
    pub fn close(&self) {
        // The lock is held, so that all rollouts that were admitted before are counted.
        let _live = self.0.tenant.0.live();
        self.0.closed.store(true, Ordering::SeqCst);
    }

    /// Cancels every live rollout.
    pub fn cancel_all(&self) {
        self.0.stop.cancel();
    }

    /// Waits until the tenant has no live rollouts.
    pub(super) async fn idle(&self) {
        self.0.tenant.idle().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_wire::quota::Quota;

    #[tokio::test]
    async fn an_id_is_taken_while_its_rollout_is_alive() {
        let slots = Slots::alone(1, 1);
        let id = |text: &str| RolloutId::parse(text).unwrap();
        let mut first = slots.enter(&id("a"), false).unwrap();
        let _second = slots.enter(&id("b"), false).unwrap();
        let refused = |name: &str| slots.enter(&id(name), false).err().unwrap();
        assert_eq!(refused("a"), AdmitError::Duplicate);
        assert_eq!(refused("c"), AdmitError::Full { running_max: 1, queue_max: 1 });
        drop(slots.enter(&id("c"), true).unwrap());
        first.guard.leave_queue();
        let load = slots.load();
        assert_eq!((load.running, load.queued), (1, 1));

        drop(first);
        slots.enter(&id("a"), false).unwrap();

        slots.close();
        assert_eq!(refused("a"), AdmitError::Closed);
        drop(_second);
        slots.idle().await;
    }

    fn share(weight: u32) -> Share {
        Share { weight, ..Share::default() }
    }

    fn id(text: impl ToString) -> RolloutId {
        RolloutId::parse(text.to_string()).unwrap()
    }

    /// Starts the given number of rollouts that wait for a slot, each in its own task.
    fn waiting(slots: &Slots, count: usize) -> Vec<tokio::task::JoinHandle<(Slot, SlotGuard)>> {
        let one = |n: usize| {
            let (slots, mut entered) = (slots.clone(), slots.enter(&id(n), false).unwrap());
            tokio::spawn(async move {
                let slot = slots.first().await.unwrap();
                entered.guard.leave_queue();
                (slot, entered.guard)
            })
        };
        (0..count).map(one).collect()
    }

    async fn settled() {
        for _ in 0..200 {
            tokio::task::yield_now().await;
        }
    }

    fn running(slots: &[&Slots]) -> Vec<u32> {
        slots.iter().map(|slots| slots.load().running).collect()
    }

    #[tokio::test]
    async fn a_lone_busy_tenant_has_all_slots_but_the_reserve_and_shares_them_as_they_turn_over() {
        let pool = SlotPool::new(8, 100);
        let (one, two) = (pool.tenant(share(1)), pool.tenant(share(3)));
        let (first, second) = (one.plugin(share(1)), two.plugin(share(1)));
        let mut first_waiting = waiting(&first, 20);
        settled().await;
        assert_eq!(running(&[&first, &second]), [7, 0]);
        let _second_waiting = waiting(&second, 20);
        settled().await;
        assert_eq!(
            running(&[&first, &second]),
            [7, 1],
            "the reserve is available at once, and running rollouts continue"
        );
        for expected in [[6, 2], [5, 3], [4, 4], [3, 5], [2, 6], [2, 6]] {
            let over = first_waiting.iter().position(|wait| wait.is_finished()).unwrap();
            drop(first_waiting.remove(over).await.unwrap());
            settled().await;
            assert_eq!(running(&[&first, &second]), expected, "one to three");
        }
    }

    #[tokio::test]
    async fn a_tenant_with_endless_rollouts_leaves_the_reserve_to_tenants_below_their_share() {
        let pool = SlotPool::new(32, 1000);
        let tenants = [(); 3].map(|()| pool.tenant(share(1)));
        let [endless, second, third] =
            [&tenants[0], &tenants[1], &tenants[2]].map(|tenant| tenant.plugin(share(1)));
        let _endless = waiting(&endless, 100);
        settled().await;
        assert_eq!(running(&[&endless, &second, &third]), [28, 0, 0], "an eighth is left");
        let second_waiting = waiting(&second, 3);
        settled().await;
        assert_eq!(running(&[&endless, &second, &third]), [28, 3, 0]);
        let _third_waiting = waiting(&third, 3);
        settled().await;
        assert_eq!(running(&[&endless, &second, &third]), [28, 3, 1]);
        // Slots of the reserve that the second releases go to the third, not to the one above its share.
        for wait in second_waiting {
            drop(wait.await.unwrap());
        }
        settled().await;
        assert_eq!(running(&[&endless, &second, &third]), [28, 0, 3]);
    }

    #[tokio::test]
    async fn the_only_tenant_has_all_slots() {
        let pool = SlotPool::new(8, 100);
        let (one, two) = (pool.tenant(share(1)).plugin(share(1)), pool.tenant(share(1)));
        let _waiting = waiting(&one, 20);
        settled().await;
        assert_eq!(running(&[&one]), [7]);
        drop(two);
        settled().await;
        assert_eq!(running(&[&one]), [8]);
    }

    #[tokio::test]
    async fn a_tenants_plugins_share_its_slots_within_their_limits() {
        let pool = SlotPool::new(6, 100);
        let tenant = pool.tenant(Share { running_max: 4, ..share(1) });
        let (many, few) = (tenant.plugin(share(1)), tenant.plugin(Share { running_max: 1, ..share(1) }));
        let _many = waiting(&many, 10);
        // Ids are unique within a tenant.
        assert_eq!(few.enter(&id(3), false).err(), Some(AdmitError::Duplicate));
        let mut entered = few.enter(&id("few"), false).unwrap();
        settled().await;
        assert_eq!(running(&[&many, &few]), [4, 0], "the tenant's limit is four of six");
        let mut first = Box::pin(few.first());
        assert!(futures_util::future::poll_immediate(&mut first).await.is_none());
        tenant.set_share(Share { running_max: 6, ..share(1) });
        let slot = first.await.unwrap();
        entered.guard.leave_queue();
        settled().await;
        assert_eq!(running(&[&many, &few]), [5, 1]);
        assert!(few.find(&id(3)).is_none() && many.find(&id(3)).is_some());
        drop((slot, entered));
        settled().await;
        assert_eq!(running(&[&many, &few]), [6, 0]);
    }

    #[tokio::test]
    async fn a_rollout_that_stops_waiting_leaves_the_queue() {
        let slots = Slots::alone(1, 100);
        let held = slots.first().await.unwrap();
        for _ in 0..3 {
            assert!(futures_util::future::poll_immediate(Box::pin(slots.first())).await.is_none());
        }
        let mut again = Box::pin(slots.next());
        let mut first = Box::pin(slots.first());
        assert!(futures_util::future::poll_immediate(&mut first).await.is_none());
        assert!(futures_util::future::poll_immediate(&mut again).await.is_none());
        drop(held);
        let slot = again.await.unwrap();
        assert!(
            futures_util::future::poll_immediate(&mut first).await.is_none(),
            "the rollout waits behind the other one"
        );
        drop(slot);
        // A slot that was granted to a dropped waiter goes to the next one.
        drop(first);
        drop(slots.first().await.unwrap());
    }

    #[test]
    fn a_tenant_that_fills_the_queue_leaves_room_for_others() {
        let pool = SlotPool::new(2, 98);
        let (greedy, other) = (pool.tenant(share(1)).plugin(share(1)), pool.tenant(share(1)));
        let mut held = Vec::new();
        let over = loop {
            match greedy.enter(&id(held.len()), false) {
                Ok(entered) => held.push(entered),
                Err(error) => break error,
            }
        };
        assert_eq!(held.len(), 50, "half of all places");
        let AdmitError::Quota(over) = over else { panic!("{over}") };
        assert_eq!(
            (over.quota, over.owner, over.used, over.max),
            (Quota::Queued, QuotaOwner::Tenant, 50, 50)
        );
        let other = other.plugin(Share { running_max: 3, queue_max: 1, ..share(1) });
        let entered: Vec<_> = (0..3).map(|n| other.enter(&id(n), false).unwrap()).collect();
        let over = other.enter(&id("one more"), false).err().unwrap();
        assert_eq!(over.to_string(), "the quota queued of this plugin is used up: 3 of 3; try again in 5 s");
        drop(entered);
        assert_eq!(other.load().queued, 0);
    }
}
