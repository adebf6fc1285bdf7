//! The memory budget of the process: every byte that it holds on behalf of others, counted in one place.
//!
//! Limits on each rollout do not limit all of them together. All that the host holds for others (requests, records,
//! results, guests' memory) is charged to one [`Budget`] before it is copied or grown. Dropping the [`Charge`] releases
//! it.
//!
//! Three thresholds keep the kernel from having to kill the process:
//!
//! 1. Above `NEW_WORK_PERCENT` new work is refused, and above `START_PERCENT` no further guest starts while others run.
//! 2. If a running rollout asks for more than the total, the rollout that holds most is evicted. It may be the same
//!    one.
//! 3. The bytes that evicted rollouts still hold are an overdraft for a moment. It is limited, too, to
//!    `OVERDRAFT_PERCENT`; a request beyond it evicts the rollout that makes it.
//!
//! Tenants are groups of one budget. A group within its share (the total divided by the number of groups) is never
//! refused because of other groups: the first threshold does not apply to it, and if the total is used up, its requests
//! evict rollouts as the growth of a rollout does. Requests of all groups together are limited to `REQUESTS_PERCENT`,
//! and each group leaves as many of these bytes to the others as it uses itself.
//!
//! This module counts bytes and knows nothing about rollouts: each holder supplies a token that cancels it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Percentage of the total that may be in use for new work to be accepted.
const NEW_WORK_PERCENT: usize = 75;

/// Percentage of the total that new work of any usual size needs.
const ROOM_PERCENT: usize = 6;

/// Percentage of the total that may be in use for a further guest to start while others run.
const START_PERCENT: usize = 87;

/// Percentage of the total for requests of several groups together. It is below the threshold for new work.
const REQUESTS_PERCENT: usize = 50;

/// Percentage of the total above which the results of one group, among several, keep it from getting new work.
const RESULTS_PERCENT: usize = 20;

/// Percentages of the total for results that are in a journal, too: those of all groups, and those of one group.
const COPIES_PERCENT: usize = 10;
const OWN_COPIES_PERCENT: usize = 3;

/// Percentages of the total for results that callers read: those of all groups, and those of one group.
const READ_PERCENT: usize = 35;
const OWN_READ_PERCENT: usize = 15;

/// Percentage by which running rollouts may exceed the total until evicted ones have released theirs.
const OVERDRAFT_PERCENT: usize = 12;

/// Purpose of charged bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// A request that is not answered yet or waits in a queue.
    Request,
    /// A result that a caller may still fetch after its rollout has ended.
    Result,
    /// Data that the imports hold for a rollout.
    Record,
    /// Memory of guests.
    Guest,
}

impl Use {
    /// All purposes, in the order of their values.
    pub(crate) const ALL: [Self; 4] = [Self::Request, Self::Result, Self::Record, Self::Guest];

    /// Returns the word for metrics.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Result => "result",
            Self::Record => "record",
            Self::Guest => "guest",
        }
    }
}

/// Error of a charge that the budget has no room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the host's memory budget of {total} bytes is used up: {used} are in use and {asked} more were requested; \
     memory-budget-bytes raises it"
)]
pub struct OverBudget {
    /// The requested bytes.
    pub asked: usize,
    /// The bytes in use.
    pub used: usize,
    /// The total.
    pub total: usize,
}

/// The memory budget of the process. Clones share it.
#[derive(Clone, Debug)]
pub struct Budget {
    shared: Arc<Shared>,
    group: Arc<Group>,
}

/// Holders that are counted together, such as the rollouts of a tenant.
#[derive(Debug, Default)]
struct Group {
    bytes: AtomicUsize,
    /// Bytes of results among them.
    results: AtomicUsize,
    /// Bytes of requests among them.
    requests: AtomicUsize,
    /// Number of groups that share the budget, including this one. `None` for the budget's own group.
    several: Option<Arc<AtomicUsize>>,
}

impl Group {
    /// Creates one of several groups and counts it in `several` until it is dropped.
    fn one_of(several: &Arc<AtomicUsize>) -> Self {
        several.fetch_add(1, Ordering::Relaxed);
        let mut group = Self::default();
        group.several = Some(several.clone());
        group
    }

    /// Returns the count of the group's bytes for a purpose that is counted separately.
    fn counter_for(&self, use_: Use) -> Option<&AtomicUsize> {
        match use_ {
            Use::Request => Some(&self.requests),
            Use::Result => Some(&self.results),
            Use::Record | Use::Guest => None,
        }
    }

    /// Returns the number of groups if there are several.
    fn count(&self) -> Option<usize> {
        let count = self.several.as_ref()?.load(Ordering::Relaxed);
        (count > 1).then_some(count)
    }

    /// Returns whether this is one of several groups and would stay within its share of the total with `bytes` more.
    fn is_within_share(&self, bytes: usize, total: usize) -> bool {
        self.count()
            .is_some_and(|count| self.bytes.load(Ordering::Relaxed).saturating_add(bytes) <= total / count)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(several) = &self.several {
            several.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[derive(Debug)]
struct Shared {
    total: usize,
    used: AtomicUsize,
    by_use: [AtomicUsize; Use::ALL.len()],
    holders: Mutex<Holders>,
    /// Number of rollouts whose guest has started and still exists.
    started: AtomicUsize,
    freed: Notify,
    /// Number of groups besides the budget's own.
    groups: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct Holders {
    next: u64,
    all: HashMap<u64, Arc<HolderUsage>>,
}

/// Bytes that one rollout holds.
#[derive(Debug)]
struct HolderUsage {
    bytes: AtomicUsize,
    group: Arc<Group>,
    evicted: AtomicBool,
    end: CancellationToken,
}

impl Default for Budget {
    /// Creates a budget without a limit.
    fn default() -> Self {
        Self::new(usize::MAX)
    }
}

fn percent(total: usize, percent: usize) -> usize {
    // Divides first, because the total may be `usize::MAX`.
    (total / 100).saturating_mul(percent)
}

impl Budget {
    /// Creates a budget of `total` bytes.
    pub fn new(total: usize) -> Self {
        let shared = Arc::new(Shared {
            total,
            used: AtomicUsize::new(0),
            by_use: Default::default(),
            holders: Mutex::default(),
            started: AtomicUsize::new(0),
            freed: Notify::new(),
            groups: Arc::default(),
        });
        Self { shared, group: Arc::default() }
    }

    /// Returns the same budget for another group. If the budget is used up, rollouts of the group that holds most are
    /// evicted first.
    #[must_use]
    pub fn for_others(&self) -> Self {
        Self { shared: self.shared.clone(), group: Arc::new(Group::one_of(&self.shared.groups)) }
    }

    /// Returns the total in bytes.
    pub fn total(&self) -> usize {
        self.shared.total
    }

    /// Returns the bytes in use.
    pub fn used(&self) -> usize {
        self.shared.used.load(Ordering::Relaxed)
    }

    /// Returns the bytes in use for one purpose.
    pub(crate) fn used_for(&self, use_: Use) -> usize {
        self.shared.by_use[use_ as usize].load(Ordering::Relaxed)
    }

    /// Checks that there is room for new work of `bytes` bytes.
    pub fn check_new_work(&self, bytes: usize) -> Result<(), OverBudget> {
        self.check_results(bytes)?;
        match self.group.is_within_share(bytes, self.shared.total) {
            true => Ok(()),
            false => self.check_total(bytes),
        }
    }

    /// Fails if no group gets new work, not even one within its share.
    pub fn check_any_group(&self) -> Result<(), OverBudget> {
        let used = self.used();
        match self.shared.groups.load(Ordering::Relaxed) > 1 && used <= self.shared.total {
            true => Ok(()),
            false => self.check_total(0),
        }
    }

    /// Checks that the bytes in use by all groups leave room for new work of `bytes` bytes.
    fn check_total(&self, bytes: usize) -> Result<(), OverBudget> {
        let used = self.used();
        match used.saturating_add(bytes) <= percent(self.shared.total, NEW_WORK_PERCENT) {
            true => Ok(()),
            false => Err(OverBudget { asked: bytes, used, total: self.shared.total }),
        }
    }

    /// Returns whether there is room for new work of any usual size. If not, the host drops data that it holds for
    /// speed only.
    pub fn has_room(&self) -> bool {
        self.check_total(percent(self.shared.total, ROOM_PERCENT)).is_ok()
    }

    /// Charges bytes that belong to no running rollout. [`Use::Request`] is refused first; other purposes may use the
    /// whole budget.
    pub fn charge(&self, use_: Use, bytes: usize) -> Result<Charge, OverBudget> {
        if use_ == Use::Request {
            self.check_results(bytes)?;
        }
        let mut charge = self.nothing(use_);
        charge.grow(bytes)?;
        Ok(charge)
    }

    /// Charges a result. There is always room for one: its rollout held as much until now, and losing a result is worse
    /// than growing.
    pub fn charge_result(&self, bytes: usize) -> Charge {
        self.charge_anyway(Use::Result, bytes)
    }

    /// Charges data that is stored already, even without room. New work is refused until there is room again.
    pub fn charge_anyway(&self, use_: Use, bytes: usize) -> Charge {
        let mut charge = self.nothing(use_);
        charge.add(bytes);
        charge
    }

    /// Returns an empty charge that can grow.
    pub(crate) fn nothing(&self, use_: Use) -> Charge {
        let group = Some(self.group.clone());
        Charge { shared: self.shared.clone(), account: None, group, use_, bytes: 0 }
    }

    /// Checks that the results of this group are within its share of the total. Otherwise the group gets no new work,
    /// so that its results do not keep other groups from theirs.
    fn check_results(&self, asked: usize) -> Result<(), OverBudget> {
        let (used, total) = (self.results(), percent(self.shared.total, RESULTS_PERCENT));
        match self.group.count().is_none() || used <= total {
            true => Ok(()),
            false => Err(OverBudget { asked, used, total }),
        }
    }

    /// Returns the bytes of this group's results.
    fn results(&self) -> usize {
        self.group.results.load(Ordering::Relaxed)
    }

    /// Charges a result that is stored in the journal, too, and stays in memory to save reading it. Returns `None` if
    /// the results of this group or of all groups use much memory already.
    pub fn charge_copy(&self, bytes: usize) -> Option<Charge> {
        let all = self.used_for(Use::Result).saturating_add(bytes);
        let has_room = all <= percent(self.shared.total, COPIES_PERCENT)
            && self.results().saturating_add(bytes) <= percent(self.shared.total, OWN_COPIES_PERCENT);
        has_room.then(|| self.charge_result(bytes))
    }

    /// Charges a result that a caller reads. Each group has a share of the results that are read at once. One result
    /// always has room, unless the results of all groups use too much.
    pub fn charge_read(&self, bytes: usize) -> Result<Charge, OverBudget> {
        let (own, all) = (self.results(), self.used_for(Use::Result));
        let share = percent(self.shared.total, OWN_READ_PERCENT);
        if self.group.count().is_some() && own > share / 2 && own.saturating_add(bytes) > share {
            return Err(OverBudget { asked: bytes, used: own, total: share });
        }
        let max = percent(self.shared.total, READ_PERCENT);
        if all > max / 2 && all.saturating_add(bytes) > max {
            return Err(OverBudget { asked: bytes, used: all, total: max });
        }
        self.charge(Use::Result, bytes)
    }

    /// Registers a rollout. `end` is cancelled if the budget is used up and this rollout holds most.
    pub fn holder(&self, end: CancellationToken) -> Holder {
        let account = Arc::new(HolderUsage {
            bytes: AtomicUsize::new(0),
            group: self.group.clone(),
            evicted: AtomicBool::new(false),
            end,
        });
        let mut holders = self.shared.holders();
        let id = holders.next;
        holders.next += 1;
        holders.all.insert(id, account.clone());
        drop(holders);
        Holder(Arc::new(Held { shared: self.shared.clone(), account, id, started: AtomicBool::new(false) }))
    }
}

impl Shared {
    fn holders(&self) -> std::sync::MutexGuard<'_, Holders> {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes bytes if at most `max` are in use afterwards.
    fn take(&self, bytes: usize, max: usize) -> Result<(), OverBudget> {
        let within = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= max);
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, within)
            .map(|_| ())
            .map_err(|used| OverBudget { asked: bytes, used, total: self.total })
    }

    /// Takes bytes for a running rollout, evicting the one that holds most if there is no room.
    fn take_for(&self, bytes: usize, account: &HolderUsage) -> Result<(), OverBudget> {
        let over = |used| OverBudget { asked: bytes, used, total: self.total };
        if account.evicted.load(Ordering::Relaxed) {
            return Err(over(self.used.load(Ordering::Relaxed)));
        }
        let evict = |holders: &Holders, used| {
            let largest = holders.all.values().filter(|held| !held.evicted()).max_by_key(|held| held.rank());
            match largest {
                Some(largest) if largest.pays_for(account, bytes) => largest.evict(),
                _ => return Err(over(used)),
            }
            Ok(())
        };
        self.take_by_eviction(bytes, evict).inspect_err(|_| account.evict())
    }

    /// Takes bytes that there may be no room for. If the bytes of rollouts that are already evicted are not enough,
    /// evicts one more. The bytes are taken immediately; the budget may be overdrawn until evicted rollouts have
    /// released theirs.
    fn take_by_eviction(
        &self,
        bytes: usize,
        evict: impl FnOnce(&Holders, usize) -> Result<(), OverBudget>,
    ) -> Result<(), OverBudget> {
        if self.take(bytes, self.total).is_ok() {
            return Ok(());
        }
        let holders = self.holders();
        let leaving: usize =
            holders.all.values().filter(|held| held.evicted()).map(|held| held.bytes()).sum();
        let used = self.used.load(Ordering::Relaxed);
        if used.saturating_sub(leaving).saturating_add(bytes) > self.total {
            evict(&holders, used)?;
        }
        drop(holders);
        self.take(bytes, self.total.saturating_add(percent(self.total, OVERDRAFT_PERCENT)))
    }

    /// Takes bytes for a request of a group.
    fn take_for_request(&self, bytes: usize, group: &Arc<Group>) -> Result<(), OverBudget> {
        if group.count().is_some() {
            let max = percent(self.total, REQUESTS_PERCENT);
            let all = self.by_use[Use::Request as usize].load(Ordering::Relaxed);
            let own = group.requests.load(Ordering::Relaxed);
            // A group leaves as many bytes to the others as it uses itself.
            let left = max.saturating_sub(all.saturating_add(bytes));
            if own.saturating_add(bytes) > left {
                return Err(OverBudget { asked: bytes, used: all, total: max });
            }
        }
        if !group.is_within_share(bytes, self.total) {
            return self.take(bytes, percent(self.total, NEW_WORK_PERCENT));
        }
        self.take_by_eviction(bytes, |holders, used| {
            let is_over =
                |held: &&Arc<HolderUsage>| !held.evicted() && !held.group.is_within_share(0, self.total);
            let largest = holders.all.values().filter(is_over).max_by_key(|held| held.rank());
            largest.ok_or(OverBudget { asked: bytes, used, total: self.total })?.evict();
            Ok(())
        })
    }

    fn release(&self, bytes: usize) {
        if bytes > 0 {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
            self.freed.notify_waiters();
        }
    }
}

impl HolderUsage {
    fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the sort key for the largest holder: the bytes of its group, then its own.
    fn rank(&self) -> (usize, usize) {
        (self.group.bytes.load(Ordering::Relaxed), self.bytes())
    }

    /// Returns whether this rollout is evicted so that another one gets `bytes` more.
    fn pays_for(&self, other: &Self, bytes: usize) -> bool {
        let others = other.group.bytes.load(Ordering::Relaxed).saturating_add(bytes);
        if Arc::ptr_eq(&self.group, &other.group) {
            self.bytes() > other.bytes().saturating_add(bytes)
        } else {
            self.rank().0 > others
        }
    }

    fn evicted(&self) -> bool {
        self.evicted.load(Ordering::Relaxed)
    }

    fn evict(&self) {
        self.evicted.store(true, Ordering::Relaxed);
        self.end.cancel();
    }
}

/// A rollout that holds bytes. Clones are the same rollout.
#[derive(Clone, Debug)]
pub struct Holder(Arc<Held>);

#[derive(Debug)]
struct Held {
    shared: Arc<Shared>,
    account: Arc<HolderUsage>,
    id: u64,
    started: AtomicBool,
}

impl Holder {
    /// Returns an empty charge that can grow by evicting the rollout that holds most.
    pub fn nothing(&self, use_: Use) -> Charge {
        let account = Some(self.0.account.clone());
        Charge { shared: self.0.shared.clone(), account, group: None, use_, bytes: 0 }
    }

    /// Returns whether the rollout was evicted because the budget was used up.
    pub fn evicted(&self) -> bool {
        self.0.account.evicted()
    }

    /// Returns the reason of an eviction for the rollout's outcome.
    pub fn why_evicted(&self) -> String {
        format!(
            "the host ran out of memory and ended the rollouts that held most of it; all together may hold \
             memory-budget-bytes, {} bytes",
            self.0.shared.total
        )
    }

    /// Waits until a guest may start. A guest that starts when much is in use and others run would only evict one of
    /// them.
    pub async fn may_start(&self) {
        let shared = &self.0.shared;
        loop {
            let freed = shared.freed.notified();
            let roomy = shared.used.load(Ordering::Relaxed) <= percent(shared.total, START_PERCENT)
                || self.0.account.group.is_within_share(0, shared.total);
            // With no other guest running, no memory would be released.
            if roomy || shared.started.load(Ordering::Relaxed) == 0 {
                break;
            }
            freed.await;
        }
        if !self.0.started.swap(true, Ordering::Relaxed) {
            shared.started.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shared.holders().all.remove(&self.id);
        if *self.started.get_mut() {
            self.shared.started.fetch_sub(1, Ordering::Relaxed);
            self.shared.freed.notify_waiters();
        }
    }
}

/// Charged bytes. Dropping the charge releases them.
#[derive(Debug)]
pub struct Charge {
    shared: Arc<Shared>,
    account: Option<Arc<HolderUsage>>,
    /// The group of a request or a result.
    group: Option<Arc<Group>>,
    use_: Use,
    bytes: usize,
}

impl Charge {
    /// Returns the charged bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Charges `bytes` more, or fails and changes nothing.
    pub fn grow(&mut self, bytes: usize) -> Result<(), OverBudget> {
        match (&self.account, &self.group) {
            (Some(account), _) => self.shared.take_for(bytes, account)?,
            (None, Some(group)) if self.use_ == Use::Request => self.shared.take_for_request(bytes, group)?,
            (None, _) => self.shared.take(bytes, self.shared.total)?,
        }
        self.note(bytes);
        Ok(())
    }

    /// Charges `bytes` more, even without room.
    pub fn add(&mut self, bytes: usize) {
        self.shared.used.fetch_add(bytes, Ordering::Relaxed);
        self.note(bytes);
    }

    fn note(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.shared.by_use[self.use_ as usize].fetch_add(bytes, Ordering::Relaxed);
        if let Some(account) = &self.account {
            account.bytes.fetch_add(bytes, Ordering::Relaxed);
            account.group.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        if let Some(group) = &self.group {
            group.bytes.fetch_add(bytes, Ordering::Relaxed);
            if let Some(counter) = group.counter_for(self.use_) {
                counter.fetch_add(bytes, Ordering::Relaxed);
            }
        }
    }

    /// Releases all but `bytes` bytes.
    pub fn shrink_to(&mut self, bytes: usize) {
        let back = self.bytes.saturating_sub(bytes);
        self.bytes -= back;
        self.shared.by_use[self.use_ as usize].fetch_sub(back, Ordering::Relaxed);
        if let Some(account) = &self.account {
            account.bytes.fetch_sub(back, Ordering::Relaxed);
            account.group.bytes.fetch_sub(back, Ordering::Relaxed);
        }
        if let Some(group) = &self.group {
            group.bytes.fetch_sub(back, Ordering::Relaxed);
            if let Some(counter) = group.counter_for(self.use_) {
                counter.fetch_sub(back, Ordering::Relaxed);
            }
        }
        self.shared.release(back);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(budget: &Budget) -> (Holder, CancellationToken) {
        let end = CancellationToken::new();
        (budget.holder(end.clone()), end)
    }

    #[test]
    fn new_work_is_refused_before_anything_else() {
        let budget = Budget::new(1000);
        let first = budget.charge(Use::Request, 700).unwrap();
        let over = budget.charge(Use::Request, 51).unwrap_err();
        assert_eq!(over, OverBudget { asked: 51, used: 700, total: 1000 });
        assert!(budget.check_new_work(50).is_ok() && budget.check_new_work(51).is_err());
        assert!(!budget.has_room(), "sixty more would be too many");
        let result = budget.charge(Use::Result, 300).unwrap();
        assert_eq!((budget.used(), budget.used_for(Use::Result)), (1000, 300));
        assert!(budget.charge(Use::Result, 1).is_err());
        assert_eq!(budget.charge_result(5).bytes(), 5, "a result always has room");
        drop((first, result));
        assert_eq!((budget.used(), budget.used_for(Use::Request)), (0, 0));
    }

    #[test]
    fn a_charge_releases_the_bytes_that_it_no_longer_needs() {
        let budget = Budget::new(100);
        let mut charge = budget.charge(Use::Record, 80).unwrap();
        assert!(charge.grow(21).is_err());
        assert_eq!(charge.bytes(), 80);
        charge.shrink_to(10);
        charge.shrink_to(50);
        assert_eq!((charge.bytes(), budget.used()), (10, 10));
    }

    #[test]
    fn the_rollout_that_holds_most_is_evicted_when_the_budget_is_used_up() {
        let budget = Budget::new(1000);
        let (small, small_end) = holder(&budget);
        let (large, large_end) = holder(&budget);
        let mut small_charge = small.nothing(Use::Guest);
        let mut large_charge = large.nothing(Use::Guest);
        large_charge.grow(900).unwrap();
        small_charge.grow(100).unwrap();
        small_charge.grow(50).unwrap();
        assert!(large.evicted() && large_end.is_cancelled());
        assert!(!small.evicted() && !small_end.is_cancelled());
        assert!(large_charge.grow(1).is_err(), "an evicted rollout gets nothing");
        // The bytes of the evicted rollout count as free, up to the limit of the overdraft.
        small_charge.grow(70).unwrap();
        assert_eq!(budget.used(), 1120);
        assert!(small_charge.grow(1).is_err());
        assert!(small.evicted());
        drop((large_charge, small_charge));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn the_group_that_holds_most_is_evicted_from_before_the_largest_rollout_of_another() {
        let budget = Budget::new(1000);
        let (alone, alone_end) = holder(&budget.for_others());
        let many = budget.for_others();
        let mut large = alone.nothing(Use::Guest);
        large.grow(300).unwrap();
        let held: Vec<_> = (0..3).map(|_| holder(&many)).collect();
        let mut charges: Vec<_> = held.iter().map(|(holder, _)| holder.nothing(Use::Guest)).collect();
        charges.iter_mut().for_each(|charge| charge.grow(200).unwrap());
        charges[0].grow(50).unwrap();
        // The rollout that holds most is in the group that holds less.
        large.grow(100).unwrap();
        assert!(held[0].1.is_cancelled() && !alone_end.is_cancelled());
        drop(charges.remove(0));
        // The group that holds most pays for its own growth.
        assert_eq!(budget.used(), 800);
        assert!(charges[0].grow(250).is_err());
        assert!(held[1].1.is_cancelled() && !alone_end.is_cancelled());
    }

    #[test]
    fn requests_of_one_group_leave_as_much_to_others_as_it_has() {
        let budget = Budget::new(1000);
        let (greedy, other) = (budget.for_others(), budget.for_others());
        let held: Vec<_> = std::iter::from_fn(|| greedy.charge(Use::Request, 10).ok()).collect();
        assert_eq!(held.len(), 25, "half of what requests may take together");
        let refused = greedy.charge(Use::Request, 10).unwrap_err();
        assert_eq!(refused, OverBudget { asked: 10, used: 250, total: 500 });
        let of_other: Vec<_> = std::iter::from_fn(|| other.charge(Use::Request, 10).ok()).collect();
        assert_eq!(of_other.len(), 12, "half of what is left");
        assert!(greedy.check_new_work(0).is_ok() && other.check_new_work(0).is_ok());
    }

    #[test]
    fn a_group_within_its_share_is_not_refused_because_of_another_group() {
        let budget = Budget::new(1000);
        let (large, small) = (budget.for_others(), budget.for_others());
        let (holder, end) = holder(&large);
        let mut guest = holder.nothing(Use::Guest);
        guest.grow(1000).unwrap();
        assert!(large.check_new_work(1).is_err() && large.charge(Use::Request, 1).is_err());
        assert!(small.check_new_work(100).is_ok() && budget.check_any_group().is_ok());
        let request = small.charge(Use::Request, 100).unwrap();
        assert!(end.is_cancelled(), "the group above its share makes room");
        assert_eq!(budget.used(), 1100, "until the evicted rollout releases its bytes");
        drop((guest, holder, large));
        drop(request);
        // The only group left is refused above the general threshold.
        let (_last, _) = self::holder(&small);
        let result = small.charge_result(760);
        assert!(small.check_new_work(0).is_err());
        drop(result);
    }

    #[tokio::test]
    async fn a_group_within_its_share_starts_guests_while_another_holds_nearly_all() {
        let budget = Budget::new(1000);
        let (large, small) = (budget.for_others(), budget.for_others());
        let (first, _) = holder(&large);
        first.may_start().await;
        let mut guest = first.nothing(Use::Guest);
        guest.grow(950).unwrap();
        let (own, _) = holder(&large);
        let mut started = Box::pin(own.may_start());
        assert!(futures_util::future::poll_immediate(&mut started).await.is_none());
        let (other, _) = holder(&small);
        other.may_start().await;
    }

    #[test]
    fn the_largest_rollout_is_evicted_itself_when_it_asks_for_more() {
        let budget = Budget::new(1000);
        let (small, _) = holder(&budget);
        let (large, large_end) = holder(&budget);
        let mut small_charge = small.nothing(Use::Record);
        small_charge.grow(100).unwrap();
        let mut charge = large.nothing(Use::Guest);
        charge.grow(800).unwrap();
        assert!(charge.grow(200).is_err());
        assert!(large.evicted() && large_end.is_cancelled() && !small.evicted());
        assert!(large.why_evicted().contains("memory-budget-bytes, 1000 bytes"));
    }

    #[tokio::test]
    async fn a_guest_starts_when_there_is_room_or_no_other_guest_runs() {
        let budget = Budget::new(1000);
        let waiting = budget.charge(Use::Result, 950).unwrap();
        let (first, _) = holder(&budget);
        first.may_start().await;
        let (second, _) = holder(&budget);
        let mut started = Box::pin(second.may_start());
        assert!(futures_util::future::poll_immediate(&mut started).await.is_none());
        drop(waiting);
        started.await;

        let _much = budget.charge(Use::Result, 950).unwrap();
        let (third, _) = holder(&budget);
        let mut started = Box::pin(third.may_start());
        assert!(futures_util::future::poll_immediate(&mut started).await.is_none());
        drop((first, second));
        started.await;
    }
}
