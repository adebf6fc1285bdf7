//! The slots of a process, and the order in which free slots are granted.
//!
//! Tenants share slots by weighted max-min fairness, and so do the plugins within a tenant: a free slot goes to the
//! waiting tenant with the fewest slots relative to its weight. A tenant thus waits only until slots of tenants above
//! their share become free. A tenant above its share leaves the [reserve](RESERVE_PART) to the others, so their
//! rollouts start even if its own never end. The only tenant of a process may use all slots.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Semaphore, oneshot};
use tokio_util::sync::CancellationToken;

use super::lease::{Lease, LeaseChanges};
use super::quota::{OverQuota, QuotaOwner};
use super::{AdmitError, DECLARATIONS_MAX};
use crate::activity::EndedTotal;
use rollout_wire::quota::Quota;

/// Divisor of the number of slots: this part of them is the reserve. A tenant that has its share of all slots gets none
/// of the reserve.
pub(super) const RESERVE_PART: u32 = 8;

/// Share of a tenant or plugin in the slots and the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Weight relative to the others, at least 1.
    pub weight: u32,
    /// Maximum number of running rollouts.
    pub running_max: u32,
    /// Maximum number of queued rollouts.
    pub queue_max: u32,
}

impl Default for Share {
    /// The usual share, without limits of its own.
    fn default() -> Self {
        Self { weight: 1, running_max: u32::MAX, queue_max: u32::MAX }
    }
}

impl Share {
    /// Returns the maximum number of running and queued rollouts together.
    fn live_max(self, running_max: u32) -> u64 {
        u64::from(self.running_max.min(running_max)).saturating_add(self.queue_max.into())
    }
}

/// The slots of a process. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SlotPool(pub(super) Arc<Pool>);

#[derive(Debug)]
pub(super) struct Pool {
    pub running_max: u32,
    pub queue_max: u32,
    pub declarations: Arc<Semaphore>,
    pub closed: AtomicBool,
    pub stop: CancellationToken,
    pub ended_total: Arc<EndedTotal>,
    pub lease_changes: LeaseChanges,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// Number of all slots.
    total: u32,
    pub free: u32,
    /// Number of running and queued rollouts.
    live: u64,
    /// Number of rollouts that wait for their first slot.
    queued: u64,
    /// The number of the next tenant, plugin, waiter or grant.
    next: u64,
    /// Number of waiters for a slot.
    waiting: usize,
    pub tenants: BTreeMap<u64, TenantQueue>,
    /// Tenants with a lease, by its key.
    pub leases: BTreeMap<i64, u64>,
}

/// Counts of a tenant or a plugin.
#[derive(Debug)]
pub(super) struct Counts {
    pub share: Share,
    /// The part of a tenant's quota that this process has leased; none if it needs no lease.
    pub lease: Option<Lease>,
    pub running: u32,
    live: u64,
    queued: u64,
    /// Number of waiters for a slot.
    pub waiting: usize,
    /// Number of its last grant.
    served: u64,
}

impl Counts {
    fn new(share: Share) -> Self {
        Self { share, lease: None, running: 0, live: 0, queued: 0, waiting: 0, served: 0 }
    }

    /// Returns the number of rollouts that could run here, with leases that nothing else uses.
    fn running_max(&self) -> u32 {
        self.lease.map_or(u32::MAX, |lease| lease.reachable).min(self.share.running_max)
    }

    fn room(&self) -> i64 {
        room(self.running_max(), self.live)
    }

    fn can_run_one(&self) -> bool {
        let leased = self.lease.map_or(u32::MAX, |lease| lease.granted);
        self.waiting > 0 && self.running < self.share.running_max.min(leased)
    }

    /// Returns whether it has fewer slots relative to its weight than the other, or as many and an older last grant.
    fn precedes(&self, other: &Self) -> bool {
        let weighted =
            |one: &Self, other: &Self| u64::from(one.running) * u64::from(other.share.weight.max(1));
        let (own, others) = (weighted(self, other), weighted(other, self));
        (own, self.served) < (others, other.served)
    }
}

#[derive(Debug)]
pub(super) struct TenantQueue {
    pub counts: Counts,
    plugins: BTreeMap<u64, PluginQueue>,
}

#[derive(Debug)]
struct PluginQueue {
    counts: Counts,
    /// Waiters that had a slot before, which go first, and waiters for their first slot, in the order of their arrival.
    waiters: [BTreeMap<u64, Waiter>; 2],
}

#[derive(Debug)]
struct Waiter {
    membership: Arc<PluginMembership>,
    granted: oneshot::Sender<Slot>,
}

/// The queue of a plugin in which a rollout waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueKind {
    /// For rollouts that had a slot before.
    Returning = 0,
    /// For rollouts without a slot so far.
    New = 1,
}

/// Membership of a tenant in the pool, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct TenantMembership {
    pub pool: Arc<Pool>,
    number: u64,
}

/// Membership of a plugin in its tenant, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct PluginMembership {
    pub tenant: Arc<TenantMembership>,
    number: u64,
}

/// The permit to run one rollout, released when it is dropped.
#[derive(Debug)]
pub(crate) struct Slot(Arc<PluginMembership>);

impl SlotPool {
    /// Creates a pool with slots for running rollouts and a queue.
    pub fn new(running_max: u32, queue_max: u32) -> Self {
        Self(Arc::new(Pool {
            running_max,
            queue_max,
            declarations: Arc::new(Semaphore::new(DECLARATIONS_MAX)),
            closed: AtomicBool::new(false),
            stop: CancellationToken::new(),
            ended_total: Arc::default(),
            lease_changes: LeaseChanges::default(),
            state: Mutex::new(State { total: running_max, free: running_max, ..State::default() }),
        }))
    }

    /// Returns the numbers of running and queued rollouts.
    pub(super) fn busy(&self) -> (u64, u64) {
        let state = self.0.lock();
        (state.live - state.queued, state.queued)
    }

    pub(super) fn add_tenant(&self, share: Share) -> TenantMembership {
        let mut state = self.0.lock();
        let number = state.number();
        let served = number;
        let counts = Counts { served, ..Counts::new(share) };
        state.tenants.insert(number, TenantQueue { counts, plugins: BTreeMap::new() });
        TenantMembership { pool: self.0.clone(), number }
    }
}

/// Returns the number of free slots that nothing waits for. Negative if rollouts wait.
fn room(running_max: u32, live: u64) -> i64 {
    i64::from(running_max).saturating_sub_unsigned(live)
}

impl Pool {
    /// Returns the maximum number of live rollouts.
    fn places(&self) -> u64 {
        u64::from(self.running_max) + u64::from(self.queue_max)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of further rollouts that would have a slot.
    pub(super) fn room(&self) -> i64 {
        room(self.running_max, self.lock().live)
    }

    /// Changes the counts, and grants slots that may be granted afterwards.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let (result, unwanted) = {
            let mut state = self.lock();
            let result = change(&mut state);
            let unwanted = state.grant();
            state.note_blocked(&self.lease_changes);
            (result, unwanted)
        };
        // The waiters of these slots are gone. Dropping a slot grants it to the next waiter.
        drop(unwanted);
        result
    }
}

impl State {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Returns a plugin with the counts of its tenant.
    fn of(&mut self, membership: &PluginMembership) -> Option<(&mut Counts, &mut PluginQueue)> {
        let tenant = self.tenants.get_mut(&membership.tenant.number)?;
        Some((&mut tenant.counts, tenant.plugins.get_mut(&membership.number)?))
    }

    /// Grants the free slots. Returns slots whose waiters are gone, to be dropped without the lock.
    fn grant(&mut self) -> Vec<Slot> {
        let mut unwanted = Vec::new();
        while self.free > 0 && self.waiting > 0 {
            let Some(waiter) = self.take_next() else { break };
            if let Err(slot) = waiter.granted.send(Slot(waiter.membership)) {
                unwanted.push(slot);
            }
        }
        unwanted
    }

    /// Notes the tenants with rollouts that wait for a lease only.
    fn note_blocked(&self, changes: &LeaseChanges) {
        if self.leases.is_empty() || self.free == 0 {
            return;
        }
        let all = AllSlots::of(self);
        for (key, number) in &self.leases {
            let Some(tenant) = self.tenants.get(number).filter(|tenant| tenant.counts.waiting > 0) else {
                continue;
            };
            let is_news = |lease: Lease| !lease.is_waiting_known && tenant.counts.running >= lease.granted;
            let may_run = || tenant.runnable() > 0 && all.may_use_slot(&tenant.counts);
            if tenant.counts.lease.is_some_and(is_news) && may_run() {
                changes.note(*key);
            }
        }
    }

    /// Removes the next waiter and counts a slot for it.
    fn take_next(&mut self) -> Option<Waiter> {
        let turn = self.number();
        let all = AllSlots::of(self);
        let may_have_one = |tenant: &TenantQueue| tenant.can_run_one() && all.may_use_slot(&tenant.counts);
        let (_, tenant) =
            self.tenants.iter_mut().filter(|(_, tenant)| may_have_one(tenant)).reduce(|first, other| {
                if other.1.counts.precedes(&first.1.counts) { other } else { first }
            })?;
        let (_, plugin) =
            tenant.plugins.iter_mut().filter(|(_, plugin)| plugin.counts.can_run_one()).reduce(
                |first, other| if other.1.counts.precedes(&first.1.counts) { other } else { first },
            )?;
        let [returning, new] = &mut plugin.waiters;
        let (_, waiter) = returning.pop_first().or_else(|| new.pop_first())?;
        for counts in [&mut tenant.counts, &mut plugin.counts] {
            counts.waiting -= 1;
            counts.running += 1;
            counts.served = turn;
            counts.note_running();
        }
        self.waiting -= 1;
        self.free -= 1;
        Some(waiter)
    }

    /// Checks that one more rollout may run or wait.
    fn check(&mut self, pool: &Pool, membership: &PluginMembership) -> Result<(), AdmitError> {
        let left = pool.places().saturating_sub(self.live);
        let is_alone = self.tenants.len() == 1;
        let Some((tenant, plugin)) = self.of(membership) else { return Err(AdmitError::Closed) };
        tenant.check(QuotaOwner::Tenant, pool.running_max)?;
        plugin.counts.check(QuotaOwner::Plugin, pool.running_max)?;
        if left == 0 {
            return Err(AdmitError::Full { running_max: pool.running_max, queue_max: pool.queue_max });
        }
        // A tenant in the queue leaves room for others: as many places as it has, divided by its weight.
        let waits_max = left.saturating_mul(tenant.share.weight.max(1).into());
        if !is_alone && tenant.queued >= waits_max {
            let (used, max) = (tenant.queued, waits_max);
            return Err(OverQuota::until_less(Quota::Queued, QuotaOwner::Tenant, used, max).into());
        }
        Ok(())
    }

    /// Counts one more rollout in the queue. `has_place` skips the check for one that was admitted before.
    fn enter(
        &mut self,
        pool: &Pool,
        membership: &PluginMembership,
        has_place: bool,
    ) -> Result<(), AdmitError> {
        if !has_place {
            self.check(pool, membership)?;
        }
        let Some((tenant, plugin)) = self.of(membership) else { return Err(AdmitError::Closed) };
        for counts in [tenant, &mut plugin.counts] {
            counts.live += 1;
            counts.queued += 1;
        }
        self.live += 1;
        self.queued += 1;
        Ok(())
    }
}

/// The facts that determine which free slots may go to a tenant.
#[derive(Clone, Copy, Debug)]
pub(super) struct AllSlots {
    total: u32,
    free: u32,
    /// The sum of all tenants' weights. 0 if there is only one tenant, to which no reserve applies.
    weights: u64,
}

impl AllSlots {
    pub(super) fn of(state: &State) -> Self {
        let weights = state.tenants.values().map(|tenant| u64::from(tenant.counts.share.weight.max(1))).sum();
        let weights = if state.tenants.len() > 1 { weights } else { 0 };
        Self { total: state.total, free: state.free, weights }
    }

    /// Returns whether a free slot may go to a tenant.
    fn may_use_slot(self, tenant: &Counts) -> bool {
        self.usable(tenant) > 0
    }

    /// Returns the number of free slots that may go to a tenant: those of the reserve only as long as it is below its share.
    pub(super) fn usable(self, tenant: &Counts) -> u32 {
        if self.weights == 0 {
            return self.free;
        }
        let share = (u64::from(self.total) * u64::from(tenant.share.weight.max(1))).div_ceil(self.weights);
        let of_share = u32::try_from(share.saturating_sub(tenant.running.into())).unwrap_or(u32::MAX);
        let beyond_reserve = self.free.saturating_sub(self.total / RESERVE_PART);
        self.free.min(beyond_reserve.max(of_share))
    }
}

impl Counts {
    /// Checks that one more rollout may run or wait.
    fn check(&self, owner: QuotaOwner, running_max: u32) -> Result<(), AdmitError> {
        let max = self.share.live_max(running_max.min(self.running_max()));
        if self.live < max {
            return Ok(());
        }
        // Without a queue of its own, the limit is on running rollouts.
        let quota = if self.share.queue_max == 0 { Quota::Running } else { Quota::Queued };
        // Other processes have leased the rest.
        let elsewhere = u64::from(self.share.running_max.saturating_sub(self.running_max()));
        let (used, max) = (self.live.saturating_add(elsewhere), max.saturating_add(elsewhere));
        Err(OverQuota::until_less(quota, owner, used, max).into())
    }

    /// Records the number of running rollouts of a lease.
    fn note_running(&mut self) {
        if let Some(lease) = &mut self.lease {
            lease.peak = lease.peak.max(self.running);
        }
    }
}

impl TenantQueue {
    /// Returns the number of waiters that only a slot and a lease prevent from running.
    pub(super) fn runnable(&self) -> u32 {
        let of_plugin = |plugin: &PluginQueue| {
            let room = plugin.counts.share.running_max.saturating_sub(plugin.counts.running);
            room.min(u32::try_from(plugin.counts.waiting).unwrap_or(u32::MAX))
        };
        self.plugins.values().map(of_plugin).fold(0, u32::saturating_add)
    }

    fn can_run_one(&self) -> bool {
        self.counts.can_run_one() && self.plugins.values().any(|plugin| plugin.counts.can_run_one())
    }
}

impl TenantMembership {
    pub(super) fn add_plugin(self: &Arc<Self>, share: Share) -> PluginMembership {
        let mut state = self.pool.lock();
        let number = state.number();
        let counts = Counts { served: number, ..Counts::new(share) };
        if let Some(tenant) = state.tenants.get_mut(&self.number) {
            tenant.plugins.insert(number, PluginQueue { counts, waiters: Default::default() });
        }
        drop(state);
        PluginMembership { tenant: self.clone(), number }
    }

    /// Returns the maximum number of live rollouts of the pool.
    pub(super) fn places(&self) -> u64 {
        self.pool.places()
    }

    /// Returns the maximum number of running rollouts, given its own limit and a share of the pool.
    pub(super) fn running_max_of(&self, share: f64) -> u32 {
        let own =
            self.pool.lock().tenants.get(&self.number).map_or(0, |tenant| tenant.counts.share.running_max);
        let shared = (f64::from(self.pool.running_max) * share).floor().max(1.0);
        // A float is rounded to the nearest number in the range.
        own.min(shared as u32)
    }

    /// Returns the number of further rollouts of the tenant that would have a slot, by its own share and the pool.
    pub(super) fn room(&self) -> i64 {
        let state = self.pool.lock();
        let of_all = room(self.pool.running_max, state.live);
        let own = state.tenants.get(&self.number).map(|tenant| tenant.counts.room());
        own.map_or(0, |own| own.min(of_all))
    }

    pub(super) fn set_share(&self, share: Share) {
        self.pool.change(|state| {
            if let Some(tenant) = state.tenants.get_mut(&self.number) {
                tenant.counts.share = share;
                tenant.counts.lease.inspect(|lease| self.pool.lease_changes.note(lease.key));
            }
        });
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for TenantMembership {
    fn drop(&mut self) {
        self.set_lease(None);
        // The shares of the remaining tenants grow.
        self.pool.change(|state| state.tenants.remove(&self.number));
    }
}

impl PluginMembership {
    pub(super) fn pool(&self) -> &Pool {
        &self.tenant.pool
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn set_share(&self, share: Share) {
        self.pool().change(|state| {
            if let Some((_, plugin)) = state.of(self) {
                plugin.counts.share = share;
            }
        });
    }

    /// Returns the maximum number of running rollouts, given its own limit and those of the tenant and the pool.
    pub(super) fn running_max(&self) -> u32 {
        let mut state = self.pool().lock();
        let own = state
            .of(self)
            .map_or(0, |(tenant, plugin)| tenant.share.running_max.min(plugin.counts.share.running_max));
        own.min(self.pool().running_max)
    }

    /// Returns the number of further rollouts that would have a slot, by its own share, its tenant's and the pool.
    pub(super) fn room(&self) -> i64 {
        let mut state = self.pool().lock();
        let of_all = room(self.pool().running_max, state.live);
        let own = state.of(self).map(|(tenant, plugin)| tenant.room().min(plugin.counts.room()));
        own.map_or(0, |own| own.min(of_all))
    }

    /// Returns the numbers of its running and queued rollouts.
    pub(super) fn load(&self) -> (u64, u64) {
        let mut state = self.pool().lock();
        state
            .of(self)
            .map_or((0, 0), |(_, plugin)| (plugin.counts.live - plugin.counts.queued, plugin.counts.queued))
    }

    /// Checks that one more rollout may run or wait.
    pub(super) fn check(&self) -> Result<(), AdmitError> {
        self.pool().lock().check(self.pool(), self)
    }

    /// Counts one more rollout in the queue, or fails if there is no room.
    pub(super) fn enter(&self, has_place: bool) -> Result<(), AdmitError> {
        self.pool().lock().enter(self.pool(), self, has_place)
    }

    /// Records that a queued rollout has a slot.
    pub(super) fn leave_queue(&self) {
        let mut state = self.pool().lock();
        state.queued -= 1;
        if let Some((tenant, plugin)) = state.of(self) {
            tenant.queued -= 1;
            plugin.counts.queued -= 1;
        }
    }

    /// Records that a rollout has ended.
    pub(super) fn leave(&self) {
        let mut state = self.pool().lock();
        state.live -= 1;
        if let Some((tenant, plugin)) = state.of(self) {
            tenant.live -= 1;
            plugin.counts.live -= 1;
        }
    }

    /// Waits for a slot.
    pub(super) async fn slot(self: &Arc<Self>, queue: QueueKind) -> Option<Slot> {
        let (granted, slot) = oneshot::channel();
        let number = self.pool().change(|state| {
            let number = state.number();
            let (tenant, plugin) = state.of(self)?;
            let waiter = Waiter { membership: self.clone(), granted };
            plugin.waiters[queue as usize].insert(number, waiter);
            tenant.waiting += 1;
            plugin.counts.waiting += 1;
            state.waiting += 1;
            Some(number)
        })?;
        let _waits = Waits { membership: self, queue, number };
        slot.await.ok()
    }
}

impl Drop for PluginMembership {
    fn drop(&mut self) {
        if let Some(tenant) = self.pool().lock().tenants.get_mut(&self.tenant.number) {
            tenant.plugins.remove(&self.number);
        }
    }
}

/// A waiter for a slot, which leaves its queue when it is dropped.
struct Waits<'a> {
    membership: &'a Arc<PluginMembership>,
    queue: QueueKind,
    number: u64,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let mut state = self.membership.pool().lock();
        let Some((tenant, plugin)) = state.of(self.membership) else { return };
        let left = plugin.waiters[self.queue as usize].remove(&self.number);
        if left.is_some() {
            tenant.waiting -= 1;
            plugin.counts.waiting -= 1;
            state.waiting -= 1;
        }
        drop(state);
        // The waiter holds a [`PluginMembership`], which takes the lock when it is dropped.
        drop(left);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.pool().change(|state| {
            state.free += 1;
            if let Some((tenant, plugin)) = state.of(&self.0) {
                tenant.running -= 1;
                plugin.counts.running -= 1;
                let is_beyond = |lease: &Lease| tenant.running >= lease.granted;
                let returned = tenant.lease.filter(is_beyond).map(|lease| lease.key);
                returned.inspect(|key| self.0.pool().lease_changes.note(*key));
            }
        });
    }
}
