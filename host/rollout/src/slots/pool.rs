//! The slots of a process, and who gets the next one that is free.
//!
//! Tenants share them by weighted max-min fairness, and within a tenant its plugins do: a free slot goes to
//! the tenant that waits and has the fewest for its weight, so that no tenant waits while another one is above
//! its share and slots turn over. A tenant above its share leaves the [reserve](RESERVE_PART) to the others, whose
//! rollouts therefore start even where its own never end. A tenant that is alone has all slots.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Semaphore, oneshot};
use tokio_util::sync::CancellationToken;

use super::quota::{OverQuota, Whose};
use super::{AdmitError, DECLARATIONS_MAX};
use rollout_wire::quota::Quota;

/// The reserve is one of this many slots. A tenant that has its share of all slots takes none of the reserve.
const RESERVE_PART: u32 = 8;

/// How much somebody may have of what is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Its part of the slots, beside the weights of the others. At least 1.
    pub weight: u32,
    /// Rollouts that run at once, at the most.
    pub running_max: u32,
    /// Rollouts that wait for one of those to end, at the most.
    pub queue_max: u32,
}

impl Default for Share {
    /// A usual one, without limits of its own.
    fn default() -> Self {
        Self { weight: 1, running_max: u32::MAX, queue_max: u32::MAX }
    }
}

impl Share {
    /// Rollouts that run or wait, at the most.
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
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// All slots.
    total: u32,
    free: u32,
    /// Rollouts that run or wait.
    live: u64,
    /// Rollouts that wait for their first slot.
    queued: u64,
    /// The number of the next thing that has one.
    next: u64,
    /// Those who wait for a slot now.
    waiting: usize,
    tenants: BTreeMap<u64, Tenant>,
}

/// What is counted of a tenant, and of a plugin of it.
#[derive(Debug)]
struct Counts {
    share: Share,
    running: u32,
    live: u64,
    queued: u64,
    /// Those who wait for a slot now.
    waiting: usize,
    /// The grant that it had last.
    served: u64,
}

impl Counts {
    fn new(share: Share) -> Self {
        Self { share, running: 0, live: 0, queued: 0, waiting: 0, served: 0 }
    }

    fn can_run_one(&self) -> bool {
        self.waiting > 0 && self.running < self.share.running_max
    }

    /// Whether it has fewer slots for its weight than the other, or as many and had its last one earlier.
    fn goes_before(&self, other: &Self) -> bool {
        let of = |one: &Self, beside: &Self| u64::from(one.running) * u64::from(beside.share.weight.max(1));
        let (own, others) = (of(self, other), of(other, self));
        (own, self.served) < (others, other.served)
    }
}

#[derive(Debug)]
struct Tenant {
    counts: Counts,
    plugins: BTreeMap<u64, Plugin>,
}

#[derive(Debug)]
struct Plugin {
    counts: Counts,
    /// Those who had a slot before, who go first, and those who have not, in the order in which they came.
    lines: [BTreeMap<u64, Waiter>; 2],
}

#[derive(Debug)]
struct Waiter {
    place: Arc<PluginPlace>,
    granted: oneshot::Sender<Slot>,
}

/// In which line somebody waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// Of those who had a slot before.
    Again = 0,
    /// Of those who have not.
    First = 1,
}

/// A tenant's place in the pool, gone when it is dropped.
#[derive(Debug)]
pub(super) struct TenantPlace {
    pub pool: Arc<Pool>,
    number: u64,
}

/// A plugin's place in its tenant, gone when it is dropped.
#[derive(Debug)]
pub(super) struct PluginPlace {
    pub tenant: Arc<TenantPlace>,
    number: u64,
}

/// The right to run one rollout, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Slot(Arc<PluginPlace>);

impl SlotPool {
    /// So many slots for rollouts that run, and so many places to wait.
    pub fn new(running_max: u32, queue_max: u32) -> Self {
        Self(Arc::new(Pool {
            running_max,
            queue_max,
            declarations: Arc::new(Semaphore::new(DECLARATIONS_MAX)),
            closed: AtomicBool::new(false),
            stop: CancellationToken::new(),
            state: Mutex::new(State { total: running_max, free: running_max, ..State::default() }),
        }))
    }

    /// How many rollouts run, and how many wait.
    pub(super) fn busy(&self) -> (u64, u64) {
        let state = self.0.lock();
        (state.live - state.queued, state.queued)
    }

    pub(super) fn place_of_tenant(&self, share: Share) -> TenantPlace {
        let mut state = self.0.lock();
        let number = state.number();
        let served = number;
        let counts = Counts { served, ..Counts::new(share) };
        state.tenants.insert(number, Tenant { counts, plugins: BTreeMap::new() });
        TenantPlace { pool: self.0.clone(), number }
    }
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what is counted, and gives slots to whom they are due then.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let (result, unwanted) = {
            let mut state = self.lock();
            let result = change(&mut state);
            (result, state.grant())
        };
        // Their owners have gone meanwhile; each gives its slot back and so to the next.
        drop(unwanted);
        result
    }
}

impl State {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// A plugin, with the counts that it is in.
    fn of(&mut self, place: &PluginPlace) -> Option<(&mut Counts, &mut Plugin)> {
        let tenant = self.tenants.get_mut(&place.tenant.number)?;
        Some((&mut tenant.counts, tenant.plugins.get_mut(&place.number)?))
    }

    /// Gives the free slots away. What it gives back are those that nobody was there for any more, to be
    /// dropped without the lock.
    fn grant(&mut self) -> Vec<Slot> {
        let mut unwanted = Vec::new();
        while self.free > 0 && self.waiting > 0 {
            let Some(waiter) = self.take_next() else { break };
            if let Err(slot) = waiter.granted.send(Slot(waiter.place)) {
                unwanted.push(slot);
            }
        }
        unwanted
    }

    /// Whose turn it is, with a slot counted for it.
    fn take_next(&mut self) -> Option<Waiter> {
        let turn = self.number();
        let all = AllSlots::of(self);
        let may_have_one = |tenant: &Tenant| tenant.can_run_one() && all.may_go_to(&tenant.counts);
        let (_, tenant) =
            self.tenants.iter_mut().filter(|(_, tenant)| may_have_one(tenant)).reduce(|first, other| {
                if other.1.counts.goes_before(&first.1.counts) { other } else { first }
            })?;
        let (_, plugin) =
            tenant.plugins.iter_mut().filter(|(_, plugin)| plugin.counts.can_run_one()).reduce(
                |first, other| if other.1.counts.goes_before(&first.1.counts) { other } else { first },
            )?;
        let [again, first] = &mut plugin.lines;
        let (_, waiter) = again.pop_first().or_else(|| first.pop_first())?;
        for counts in [&mut tenant.counts, &mut plugin.counts] {
            counts.waiting -= 1;
            counts.running += 1;
            counts.served = turn;
        }
        self.waiting -= 1;
        self.free -= 1;
        Some(waiter)
    }

    /// Whether there is a place for one more rollout.
    fn check(&mut self, pool: &Pool, place: &PluginPlace) -> Result<(), AdmitError> {
        let places = u64::from(pool.running_max) + u64::from(pool.queue_max);
        let left = places.saturating_sub(self.live);
        let is_alone = self.tenants.len() == 1;
        let Some((tenant, plugin)) = self.of(place) else { return Err(AdmitError::Closed) };
        tenant.check(Whose::Tenant, pool.running_max)?;
        plugin.counts.check(Whose::Plugin, pool.running_max)?;
        if left == 0 {
            return Err(AdmitError::Full { running_max: pool.running_max, queue_max: pool.queue_max });
        }
        // Whoever waits leaves room for others: for its weight as many places as it has.
        let waits_max = left.saturating_mul(tenant.share.weight.max(1).into());
        if !is_alone && tenant.queued >= waits_max {
            let (used, max) = (tenant.queued, waits_max);
            return Err(OverQuota::until_less(Quota::Queued, Whose::Tenant, used, max).into());
        }
        Ok(())
    }

    /// The place of one more rollout, to wait in. `has_place` is of one that was admitted before.
    fn enter(&mut self, pool: &Pool, place: &PluginPlace, has_place: bool) -> Result<(), AdmitError> {
        if !has_place {
            self.check(pool, place)?;
        }
        let Some((tenant, plugin)) = self.of(place) else { return Err(AdmitError::Closed) };
        for counts in [tenant, &mut plugin.counts] {
            counts.live += 1;
            counts.queued += 1;
        }
        self.live += 1;
        self.queued += 1;
        Ok(())
    }
}

/// What decides whether a free slot may go to a tenant.
#[derive(Clone, Copy, Debug)]
struct AllSlots {
    total: u32,
    /// Whether no more than the reserve is free.
    only_reserve: bool,
    /// The weights of all tenants together; 0 where there is but one tenant, to which no reserve applies.
    weights: u64,
}

impl AllSlots {
    fn of(state: &State) -> Self {
        let weights = state.tenants.values().map(|tenant| u64::from(tenant.counts.share.weight.max(1))).sum();
        let only_reserve = state.free <= state.total / RESERVE_PART;
        Self { total: state.total, only_reserve, weights: if state.tenants.len() > 1 { weights } else { 0 } }
    }

    /// Whether a free slot may go to this tenant: one of the reserve only while it has less than its share.
    fn may_go_to(self, tenant: &Counts) -> bool {
        let share = u64::from(self.total) * u64::from(tenant.share.weight.max(1));
        !self.only_reserve || u64::from(tenant.running) * self.weights < share
    }
}

impl Counts {
    /// Whether one more may run or wait.
    fn check(&self, whose: Whose, running_max: u32) -> Result<(), AdmitError> {
        let max = self.share.live_max(running_max);
        if self.live < max {
            return Ok(());
        }
        // Without a bound of its own on those that wait, all that there are run.
        let quota = if self.share.queue_max == 0 { Quota::Running } else { Quota::Queued };
        Err(OverQuota::until_less(quota, whose, self.live, max).into())
    }
}

impl Tenant {
    fn can_run_one(&self) -> bool {
        self.counts.can_run_one() && self.plugins.values().any(|plugin| plugin.counts.can_run_one())
    }
}

impl TenantPlace {
    pub(super) fn place_of_plugin(self: &Arc<Self>, share: Share) -> PluginPlace {
        let mut state = self.pool.lock();
        let number = state.number();
        let counts = Counts { served: number, ..Counts::new(share) };
        if let Some(tenant) = state.tenants.get_mut(&self.number) {
            tenant.plugins.insert(number, Plugin { counts, lines: Default::default() });
        }
        drop(state);
        PluginPlace { tenant: self.clone(), number }
    }

    pub(super) fn set_share(&self, share: Share) {
        self.pool.change(|state| {
            if let Some(tenant) = state.tenants.get_mut(&self.number) {
                tenant.counts.share = share;
            }
        });
    }
}

impl Drop for TenantPlace {
    fn drop(&mut self) {
        // Those that are left have larger shares.
        self.pool.change(|state| state.tenants.remove(&self.number));
    }
}

impl PluginPlace {
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

    /// What may run and wait of it at once, as far as its own limits and the pool's go.
    pub(super) fn running_max(&self) -> u32 {
        let mut state = self.pool().lock();
        let own = state
            .of(self)
            .map_or(0, |(tenant, plugin)| tenant.share.running_max.min(plugin.counts.share.running_max));
        own.min(self.pool().running_max)
    }

    /// How many of it run, and how many wait.
    pub(super) fn load(&self) -> (u64, u64) {
        let mut state = self.pool().lock();
        state
            .of(self)
            .map_or((0, 0), |(_, plugin)| (plugin.counts.live - plugin.counts.queued, plugin.counts.queued))
    }

    /// Whether there is a place for one more rollout.
    pub(super) fn check(&self) -> Result<(), AdmitError> {
        self.pool().lock().check(self.pool(), self)
    }

    /// Takes a place for one more rollout, or says why there is none.
    pub(super) fn enter(&self, has_place: bool) -> Result<(), AdmitError> {
        self.pool().lock().enter(self.pool(), self, has_place)
    }

    /// One that waited has a slot.
    pub(super) fn leave_queue(&self) {
        let mut state = self.pool().lock();
        state.queued -= 1;
        if let Some((tenant, plugin)) = state.of(self) {
            tenant.queued -= 1;
            plugin.counts.queued -= 1;
        }
    }

    /// One is over.
    pub(super) fn leave(&self) {
        let mut state = self.pool().lock();
        state.live -= 1;
        if let Some((tenant, plugin)) = state.of(self) {
            tenant.live -= 1;
            plugin.counts.live -= 1;
        }
    }

    /// Waits for a slot.
    pub(super) async fn slot(self: &Arc<Self>, line: Line) -> Option<Slot> {
        let (granted, slot) = oneshot::channel();
        let number = self.pool().change(|state| {
            let number = state.number();
            let (tenant, plugin) = state.of(self)?;
            let waiter = Waiter { place: self.clone(), granted };
            plugin.lines[line as usize].insert(number, waiter);
            tenant.waiting += 1;
            plugin.counts.waiting += 1;
            state.waiting += 1;
            Some(number)
        })?;
        let _waits = Waits { place: self, line, number };
        slot.await.ok()
    }
}

impl Drop for PluginPlace {
    fn drop(&mut self) {
        if let Some(tenant) = self.pool().lock().tenants.get_mut(&self.tenant.number) {
            tenant.plugins.remove(&self.number);
        }
    }
}

/// Somebody who waits for a slot, and leaves the line when it is dropped.
struct Waits<'a> {
    place: &'a Arc<PluginPlace>,
    line: Line,
    number: u64,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let mut state = self.place.pool().lock();
        let Some((tenant, plugin)) = state.of(self.place) else { return };
        let left = plugin.lines[self.line as usize].remove(&self.number);
        if left.is_some() {
            tenant.waiting -= 1;
            plugin.counts.waiting -= 1;
            state.waiting -= 1;
        }
        drop(state);
        // It holds the place, which takes the lock when it goes.
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
            }
        });
    }
}
