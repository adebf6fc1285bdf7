//! The bytes that this process holds for others, counted in one place.
//!
//! Limits on each rollout are no limit on all of them. Whatever is held for somebody
//! else (requests, records, results, guests' memory) is charged to one [`Budget`]
//! before it is copied or grown, and given back when its [`Charge`] is dropped.
//!
//! Three lines keep the kernel from having to choose what ends:
//!
//! 1. From `NEW_WORK_PERCENT` on new work is refused, and from `START_PERCENT` on no
//!    further guest starts while others run.
//! 2. Where a running rollout asks for more than the total, the rollout that holds most
//!    is ended. That may be the one that asks.
//! 3. What the ended ones still hold is overdraft for a moment. It has an end of its
//!    own, `OVERDRAFT_PERCENT`, past which whoever asks is ended.
//!
//! Tenants are groups of one budget. A group that holds less than its share, which is the total divided by the number of
//! groups, is refused nothing because of what other groups hold: the first line does not apply to it, and where the total
//! is used up, its request is made room for as the growth of a rollout is. Requests of all groups together have a ceiling,
//! `REQUESTS_PERCENT`, of which each group leaves as much to the others as it has.
//!
//! This module knows bytes, and nothing of rollouts: it is handed a token that ends one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Of the total, how much may be in use for new work to be accepted.
const NEW_WORK_PERCENT: usize = 75;

/// Of the total, what new work of any usual size needs.
const ROOM_PERCENT: usize = 6;

/// Of the total, how much may be in use for a further guest to start beside others.
const START_PERCENT: usize = 87;

/// Of the total, what requests of several groups may take together: less than what keeps new work out.
const REQUESTS_PERCENT: usize = 50;

/// Of the total, what results of one group among several may take before it gets no new work.
const RESULTS_PERCENT: usize = 20;

/// Of the total, what results take that are in a journal, too: those of all, and those of a group.
const COPIES_PERCENT: usize = 10;
const OWN_COPIES_PERCENT: usize = 3;

/// Of the total, what results may take that are read for their callers: those of all, and those of a group.
const READ_PERCENT: usize = 35;
const OWN_READ_PERCENT: usize = 15;

/// How far past the total running rollouts may get, while those that were ended give
/// theirs back.
const OVERDRAFT_PERCENT: usize = 12;

/// What bytes are held for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// A request that was not answered yet, or waits for its turn.
    Request,
    /// What a caller may still ask for after its rollout is over.
    Result,
    /// What the imports keep for a rollout.
    Record,
    /// Memory of guests.
    Guest,
}

impl Use {
    /// All of them, in the order of their places.
    pub(crate) const ALL: [Self; 4] = [Self::Request, Self::Result, Self::Record, Self::Guest];

    /// The word for metrics.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Result => "result",
            Self::Record => "record",
            Self::Guest => "guest",
        }
    }
}

/// There is no room for these bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the host's memory budget of {total} bytes is used up: {used} are in use and {asked} more were asked for; \
     memory-budget-bytes raises it"
)]
pub struct OverBudget {
    /// The bytes that were asked for.
    pub asked: usize,
    /// Those in use.
    pub used: usize,
    /// The total.
    pub total: usize,
}

/// The process's budget. Clones share it.
#[derive(Clone, Debug)]
pub struct Budget {
    shared: Arc<Shared>,
    group: Arc<Group>,
}

/// Those who hold together, such as a tenant's rollouts.
#[derive(Debug, Default)]
struct Group {
    bytes: AtomicUsize,
    /// Of these, those of results.
    results: AtomicUsize,
    /// Of these, those of requests.
    requests: AtomicUsize,
    /// Number of groups that share the budget, this one among them; none for the budget's own group.
    several: Option<Arc<AtomicUsize>>,
}

impl Group {
    /// One of several groups, counted here for as long as it is there.
    fn one_of(several: &Arc<AtomicUsize>) -> Self {
        several.fetch_add(1, Ordering::Relaxed);
        let mut group = Self::default();
        group.several = Some(several.clone());
        group
    }

    /// The count of what is held for this, where that is counted apart.
    fn of_use(&self, use_: Use) -> Option<&AtomicUsize> {
        match use_ {
            Use::Request => Some(&self.requests),
            Use::Result => Some(&self.results),
            Use::Record | Use::Guest => None,
        }
    }

    /// Number of groups, where there are several.
    fn count(&self) -> Option<usize> {
        let count = self.several.as_ref()?.load(Ordering::Relaxed);
        (count > 1).then_some(count)
    }

    /// Whether it is one of several groups, and has no more than its share of the total with so many bytes more.
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
    /// Rollouts whose guest was started and is not gone.
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

/// What one rollout holds.
#[derive(Debug)]
struct HolderUsage {
    bytes: AtomicUsize,
    group: Arc<Group>,
    evicted: AtomicBool,
    end: CancellationToken,
}

impl Default for Budget {
    /// A budget without an end.
    fn default() -> Self {
        Self::new(usize::MAX)
    }
}

fn percent(total: usize, percent: usize) -> usize {
    // Divided first, because a total may be all there is.
    (total / 100).saturating_mul(percent)
}

impl Budget {
    /// A budget of so many bytes.
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

    /// The same budget for others: where it is used up, those who hold most together are ended before those
    /// who hold less.
    #[must_use]
    pub fn for_others(&self) -> Self {
        Self { shared: self.shared.clone(), group: Arc::new(Group::one_of(&self.shared.groups)) }
    }

    /// The bytes that there are.
    pub fn total(&self) -> usize {
        self.shared.total
    }

    /// Those in use.
    pub fn used(&self) -> usize {
        self.shared.used.load(Ordering::Relaxed)
    }

    /// Those in use for one thing.
    pub(crate) fn used_for(&self, use_: Use) -> usize {
        self.shared.by_use[use_ as usize].load(Ordering::Relaxed)
    }

    /// Whether there is room for new work of so many bytes.
    pub fn check_new_work(&self, bytes: usize) -> Result<(), OverBudget> {
        self.check_results(bytes)?;
        match self.group.is_within_share(bytes, self.shared.total) {
            true => Ok(()),
            false => self.check_total(bytes),
        }
    }

    /// Whether new work of no group is taken, because even what each may have is used up.
    pub fn check_any_group(&self) -> Result<(), OverBudget> {
        let used = self.used();
        match self.shared.groups.load(Ordering::Relaxed) > 1 && used <= self.shared.total {
            true => Ok(()),
            false => self.check_total(0),
        }
    }

    /// Whether so little is in use together that new work of so many bytes has room, whoever asks.
    fn check_total(&self, bytes: usize) -> Result<(), OverBudget> {
        let used = self.used();
        match used.saturating_add(bytes) <= percent(self.shared.total, NEW_WORK_PERCENT) {
            true => Ok(()),
            false => Err(OverBudget { asked: bytes, used, total: self.shared.total }),
        }
    }

    /// Whether there is room for new work of any usual size. What is only kept for comfort
    /// goes where there is none.
    pub fn has_room(&self) -> bool {
        self.check_total(percent(self.shared.total, ROOM_PERCENT)).is_ok()
    }

    /// Charges bytes that belong to no running rollout. [`Use::Request`] is refused
    /// first; the others may use the whole.
    pub fn charge(&self, use_: Use, bytes: usize) -> Result<Charge, OverBudget> {
        if use_ == Use::Request {
            self.check_results(bytes)?;
        }
        let mut charge = self.nothing(use_);
        charge.grow(bytes)?;
        Ok(charge)
    }

    /// Charges a result, for which there is always room: its rollout held as much until
    /// now, and a result that is lost is worse than a process that grows.
    pub fn charge_result(&self, bytes: usize) -> Charge {
        self.charge_anyway(Use::Result, bytes)
    }

    /// Charges what is there and is kept, whether there is room or not: what is new is refused until
    /// there is.
    pub fn charge_anyway(&self, use_: Use, bytes: usize) -> Charge {
        let mut charge = self.nothing(use_);
        charge.add(bytes);
        charge
    }

    /// A charge of nothing, which can grow.
    pub(crate) fn nothing(&self, use_: Use) -> Charge {
        let group = Some(self.group.clone());
        Charge { shared: self.shared.clone(), account: None, group, use_, bytes: 0 }
    }

    /// Whether these who hold together may have new work: not while their results take more than their share, so that
    /// nobody else's work is refused for them.
    fn check_results(&self, asked: usize) -> Result<(), OverBudget> {
        let (used, total) = (self.results(), percent(self.shared.total, RESULTS_PERCENT));
        match self.group.count().is_none() || used <= total {
            true => Ok(()),
            false => Err(OverBudget { asked, used, total }),
        }
    }

    /// The bytes of results that those hold together who have this budget.
    fn results(&self) -> usize {
        self.group.results.load(Ordering::Relaxed)
    }

    /// Charges a result that the journal has, too, and that is in memory so that it need not be read: none where results
    /// take much already, of these who hold together or of all.
    pub fn charge_copy(&self, bytes: usize) -> Option<Charge> {
        let of_all = self.used_for(Use::Result).saturating_add(bytes);
        let is_little = of_all <= percent(self.shared.total, COPIES_PERCENT)
            && self.results().saturating_add(bytes) <= percent(self.shared.total, OWN_COPIES_PERCENT);
        is_little.then(|| self.charge_result(bytes))
    }

    /// Charges a result that is read for its caller. Those who hold together have a share of what is read at once; one
    /// result there is room for in any case, unless those of all take too much.
    pub fn charge_read(&self, bytes: usize) -> Result<Charge, OverBudget> {
        let (own, all) = (self.results(), self.used_for(Use::Result));
        let share = percent(self.shared.total, OWN_READ_PERCENT);
        if self.group.count().is_some() && own > share / 2 && own.saturating_add(bytes) > share {
            return Err(OverBudget { asked: bytes, used: own, total: share });
        }
        let most = percent(self.shared.total, READ_PERCENT);
        if all > most / 2 && all.saturating_add(bytes) > most {
            return Err(OverBudget { asked: bytes, used: all, total: most });
        }
        self.charge(Use::Result, bytes)
    }

    /// A rollout, which is ended by this token where it holds most when all is used up.
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

    /// Takes bytes if no more than `max` are in use then.
    fn take(&self, bytes: usize, max: usize) -> Result<(), OverBudget> {
        let within = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= max);
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, within)
            .map(|_| ())
            .map_err(|used| OverBudget { asked: bytes, used, total: self.total })
    }

    /// Takes bytes for a running rollout, at the cost of the one that holds most.
    fn take_for(&self, bytes: usize, account: &HolderUsage) -> Result<(), OverBudget> {
        let over = |used| OverBudget { asked: bytes, used, total: self.total };
        if account.evicted.load(Ordering::Relaxed) {
            return Err(over(self.used.load(Ordering::Relaxed)));
        }
        let evict = |holders: &Holders, used| {
            let most = holders.all.values().filter(|held| !held.evicted()).max_by_key(|held| held.rank());
            match most {
                Some(most) if most.pays_for(account, bytes) => most.evict(),
                _ => return Err(over(used)),
            }
            Ok(())
        };
        self.take_by_eviction(bytes, evict).inspect_err(|_| account.evict())
    }

    /// Takes bytes that there may be no room for. Where what evicted rollouts still hold is not enough, one more is
    /// evicted. The bytes are taken at once, and the budget may be overdrawn until those of the evicted are back.
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
            let most = percent(self.total, REQUESTS_PERCENT);
            let all = self.by_use[Use::Request as usize].load(Ordering::Relaxed);
            let own = group.requests.load(Ordering::Relaxed);
            // As much as it has is left to others.
            let left = most.saturating_sub(all.saturating_add(bytes));
            if own.saturating_add(bytes) > left {
                return Err(OverBudget { asked: bytes, used: all, total: most });
            }
        }
        if !group.is_within_share(bytes, self.total) {
            return self.take(bytes, percent(self.total, NEW_WORK_PERCENT));
        }
        self.take_by_eviction(bytes, |holders, used| {
            let is_over =
                |held: &&Arc<HolderUsage>| !held.evicted() && !held.group.is_within_share(0, self.total);
            let most = holders.all.values().filter(is_over).max_by_key(|held| held.rank());
            most.ok_or(OverBudget { asked: bytes, used, total: self.total })?.evict();
            Ok(())
        })
    }

    fn give_back(&self, bytes: usize) {
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

    /// By what those who hold most are found: what they hold together, and alone.
    fn rank(&self) -> (usize, usize) {
        (self.group.bytes.load(Ordering::Relaxed), self.bytes())
    }

    /// Whether this one is ended so that another one has so many bytes more.
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

/// One rollout that holds bytes. Clones are the same one.
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
    /// A charge of nothing, which can grow at the cost of whoever holds most.
    pub fn nothing(&self, use_: Use) -> Charge {
        let account = Some(self.0.account.clone());
        Charge { shared: self.0.shared.clone(), account, group: None, use_, bytes: 0 }
    }

    /// Whether it was ended because all was used up.
    pub fn evicted(&self) -> bool {
        self.0.account.evicted()
    }

    /// Why it was ended, for whoever reads of it.
    pub fn why_evicted(&self) -> String {
        format!(
            "the host ran out of memory and ended the rollouts that held most of it; all together may hold \
             memory-budget-bytes, {} bytes",
            self.0.shared.total
        )
    }

    /// Waits until a guest may start: while much is in use and others run, it would only
    /// end one of them.
    pub async fn may_start(&self) {
        let shared = &self.0.shared;
        loop {
            let freed = shared.freed.notified();
            let roomy = shared.used.load(Ordering::Relaxed) <= percent(shared.total, START_PERCENT)
                || self.0.account.group.is_within_share(0, shared.total);
            // Where nobody runs nobody would give anything back.
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

/// Bytes that were charged, given back when this is dropped.
#[derive(Debug)]
pub struct Charge {
    shared: Arc<Shared>,
    account: Option<Arc<HolderUsage>>,
    /// The group whose request or result it is.
    group: Option<Arc<Group>>,
    use_: Use,
    bytes: usize,
}

impl Charge {
    /// The bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Charges so many more, or changes nothing.
    pub fn grow(&mut self, bytes: usize) -> Result<(), OverBudget> {
        match (&self.account, &self.group) {
            (Some(account), _) => self.shared.take_for(bytes, account)?,
            (None, Some(group)) if self.use_ == Use::Request => self.shared.take_for_request(bytes, group)?,
            (None, _) => self.shared.take(bytes, self.shared.total)?,
        }
        self.note(bytes);
        Ok(())
    }

    /// Charges so many more, whatever is in use.
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
            if let Some(of_use) = group.of_use(self.use_) {
                of_use.fetch_add(bytes, Ordering::Relaxed);
            }
        }
    }

    /// Gives back all but so many.
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
            if let Some(of_use) = group.of_use(self.use_) {
                of_use.fetch_sub(back, Ordering::Relaxed);
            }
        }
        self.shared.give_back(back);
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
    fn a_charge_gives_back_what_it_no_longer_needs() {
        let budget = Budget::new(100);
        let mut charge = budget.charge(Use::Record, 80).unwrap();
        assert!(charge.grow(21).is_err());
        assert_eq!(charge.bytes(), 80);
        charge.shrink_to(10);
        charge.shrink_to(50);
        assert_eq!((charge.bytes(), budget.used()), (10, 10));
    }

    #[test]
    fn where_all_is_used_the_one_that_holds_most_is_ended() {
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
        assert!(large_charge.grow(1).is_err(), "what was ended gets nothing");
        // What the ended one holds is as good as free, up to the overdraft's end.
        small_charge.grow(70).unwrap();
        assert_eq!(budget.used(), 1120);
        assert!(small_charge.grow(1).is_err());
        assert!(small.evicted());
        drop((large_charge, small_charge));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn those_who_hold_most_together_are_ended_before_one_who_holds_more_than_each_of_them() {
        let budget = Budget::new(1000);
        let (alone, alone_end) = holder(&budget.for_others());
        let many = budget.for_others();
        let mut large = alone.nothing(Use::Guest);
        large.grow(300).unwrap();
        let held: Vec<_> = (0..3).map(|_| holder(&many)).collect();
        let mut charges: Vec<_> = held.iter().map(|(holder, _)| holder.nothing(Use::Guest)).collect();
        charges.iter_mut().for_each(|charge| charge.grow(200).unwrap());
        charges[0].grow(50).unwrap();
        // The one who holds most of all alone is among those who hold least together.
        large.grow(100).unwrap();
        assert!(held[0].1.is_cancelled() && !alone_end.is_cancelled());
        drop(charges.remove(0));
        // Whoever holds most together pays for itself.
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
    fn a_group_within_its_share_is_refused_nothing_for_what_another_one_holds() {
        let budget = Budget::new(1000);
        let (large, small) = (budget.for_others(), budget.for_others());
        let (holder, end) = holder(&large);
        let mut guest = holder.nothing(Use::Guest);
        guest.grow(1000).unwrap();
        assert!(large.check_new_work(1).is_err() && large.charge(Use::Request, 1).is_err());
        assert!(small.check_new_work(100).is_ok() && budget.check_any_group().is_ok());
        let request = small.charge(Use::Request, 100).unwrap();
        assert!(end.is_cancelled(), "the one above its share makes room");
        assert_eq!(budget.used(), 1100, "until what it holds is given back");
        drop((guest, holder, large));
        drop(request);
        // A group that is alone is refused at the line for all.
        let (_last, _) = self::holder(&small);
        let result = small.charge_result(760);
        assert!(small.check_new_work(0).is_err());
        drop(result);
    }

    #[tokio::test]
    async fn a_group_within_its_share_starts_guests_beside_one_that_holds_nearly_all() {
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
    fn whoever_holds_most_and_asks_for_more_is_ended_itself() {
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
    async fn a_guest_starts_when_there_is_room_or_nobody_else_runs() {
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
