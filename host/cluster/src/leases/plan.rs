//! The parts of a quota that workers hold, and the decision of a worker about its own part.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::SlotDemand;

/// Divisor of a quota for each worker: a worker takes this part of its share at a time.
const BLOCKS: u32 = 4;

/// The value of a tenant in the bucket: the holders of its quota, by their logs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct QuotaEntry {
    pub holders: BTreeMap<String, Holder>,
}

/// The part of a quota that the owner of a log holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Holder {
    /// Epoch of the owner. The next owner of the log takes over the part with the rollouts.
    pub epoch: u64,
    /// Number of rollouts that it may run, and at least the number that it runs.
    pub slots: u32,
    /// Whether rollouts wait for more.
    #[serde(default)]
    pub is_waiting: bool,
}

impl QuotaEntry {
    pub(super) fn read(value: &[u8]) -> Option<Self> {
        serde_json::from_slice(value).ok()
    }

    pub(super) fn write(&self) -> Bytes {
        // Neither texts nor numbers fail to serialize.
        serde_json::to_vec(self).map(Bytes::from).unwrap_or_default()
    }

    /// Returns the entry with another part of one holder, who is removed if it has none and does not wait.
    pub(super) fn with(&self, log: &str, holder: Holder) -> Self {
        let mut entry = self.clone();
        if holder.slots == 0 && !holder.is_waiting {
            entry.holders.remove(log);
        } else {
            entry.holders.insert(log.to_owned(), holder);
        }
        entry
    }
}

/// Facts of a worker that determine its part.
#[derive(Clone, Copy, Debug)]
pub(super) struct Own<'a> {
    pub log: &'a str,
    pub epoch: u64,
    /// Its demand; none if the tenant is not open here or has no quota.
    pub demand: Option<SlotDemand>,
    /// Largest number of slots that it needed in the last seconds.
    pub used: u32,
    /// Whether rollouts of an earlier process may still ask for the part that it holds, which it keeps until then.
    pub is_resuming: bool,
    /// Whether it may take what is free, even though it has just left that to others.
    pub may_take: bool,
    /// Number of workers.
    pub workers: u32,
}

/// The part that a worker should hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// The part to be stored, if no more rollouts run.
    pub slots: u32,
    pub is_waiting: bool,
    /// Number of rollouts that may run once that is stored.
    pub granted: u32,
    /// The same with all that is free.
    pub reachable: u32,
    /// Number that is in the bucket already in this epoch: so many may run at most until another one is stored.
    pub stored: u32,
}

/// Returns the part that a worker should hold, or none if its log has another owner. `is_alive` returns whether the owner of a
/// log sends heartbeats.
pub(super) fn plan(entry: &QuotaEntry, own: Own<'_>, is_alive: impl Fn(&str) -> bool) -> Option<Plan> {
    let holder = entry.holders.get(own.log).copied();
    let holder = holder.unwrap_or(Holder { epoch: own.epoch, slots: 0, is_waiting: false });
    if holder.epoch > own.epoch {
        return None;
    }
    let held = holder.slots;
    let stored = if holder.epoch == own.epoch { held } else { 0 };
    let least = if own.is_resuming { held } else { 0 };
    let Some(demand) = own.demand else {
        let slots = held.min(own.used.max(least));
        return Some(Plan { slots, is_waiting: false, granted: slots, reachable: slots, stored });
    };
    let others = || entry.holders.iter().filter(|(log, _)| *log != own.log);
    let of_others: u64 = others().map(|(_, other)| u64::from(other.slots)).sum();
    let needed = demand.running.saturating_add(demand.waiting).min(demand.quota);
    let quota = u64::from(demand.quota);
    let total = of_others + u64::from(held);
    if total > quota {
        // The quota was reduced. Every holder gives back what its rollouts leave, until the rest is within it.
        let beyond = u32::try_from(total - quota).unwrap_or(u32::MAX);
        let slots = held.saturating_sub(beyond);
        let is_waiting = demand.waiting > 0;
        return Some(Plan { slots, is_waiting, granted: slots, reachable: slots, stored });
    }
    let free = u32::try_from(quota - total).unwrap_or(u32::MAX);
    if needed > held && free > 0 && own.may_take {
        let block = (demand.quota / BLOCKS / own.workers.max(1)).max(1);
        let slots = held + block.min(free);
        return Some(Plan { slots, is_waiting: false, granted: slots, reachable: held + free, stored });
    }
    let waits = |other: &Holder, log: &str| other.is_waiting && is_alive(log);
    let other_waits = others().any(|(log, other)| waits(other, log));
    // The unused part is returned at once if another worker waits for it, and otherwise after a while.
    let kept = if other_waits { needed } else { needed.max(own.used) };
    let mut slots = held.min(kept.max(least));
    let has_less = |other: &Holder| other.slots + 1 < held || (other.slots == 0 && held > 0);
    let must_share = others().any(|(log, other)| waits(other, log) && has_less(other));
    if slots == held && slots > least && free == 0 && must_share {
        slots = held - 1;
    }
    let is_waiting = demand.waiting > 0 && needed > slots;
    let reachable = if slots < held { slots } else { held + free };
    Some(Plan { slots, is_waiting, granted: slots, reachable, stored })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(holders: &[(&str, u64, u32, bool)]) -> QuotaEntry {
        let holder = |&(log, epoch, slots, is_waiting): &(&str, _, _, _)| {
            (log.to_owned(), Holder { epoch, slots, is_waiting })
        };
        QuotaEntry { holders: holders.iter().map(holder).collect() }
    }

    fn demand(quota: u32, running: u32, waiting: u32) -> Option<SlotDemand> {
        Some(SlotDemand { quota, running, peak: running, waiting })
    }

    fn own(demand: Option<SlotDemand>) -> Own<'static> {
        Own { log: "a", epoch: 1, demand, used: 0, is_resuming: false, may_take: true, workers: 2 }
    }

    #[test]
    fn a_worker_takes_blocks_and_returns_what_it_does_not_use() {
        let check = |entry: &QuotaEntry, own: Own<'_>, (slots, is_waiting, granted, reachable)| {
            let plan = plan(entry, own, |log| log != "dead").unwrap();
            assert_eq!(
                (plan.slots, plan.is_waiting, plan.granted, plan.reachable),
                (slots, is_waiting, granted, reachable),
                "{entry:?} {own:?}"
            );
        };
        check(&entry(&[]), own(demand(16, 0, 9)), (2, false, 2, 16));
        check(&entry(&[]), own(demand(1, 0, 9)), (1, false, 1, 1));
        check(&entry(&[("b", 1, 15, false)]), own(demand(16, 0, 9)), (1, false, 1, 1));
        // Nothing is free.
        check(&entry(&[("b", 1, 16, false)]), own(demand(16, 0, 9)), (0, true, 0, 0));
        check(&entry(&[("b", 1, 9, false)]), own(demand(16, 0, 0)), (0, false, 0, 7));
        // Unused parts are returned after a while, and at once if another worker waits that is alive.
        let idle = Own { used: 3, ..own(demand(16, 1, 0)) };
        check(&entry(&[("a", 1, 4, false)]), idle, (3, false, 3, 3));
        check(&entry(&[("a", 1, 4, false), ("b", 1, 12, true)]), idle, (1, false, 1, 1));
        check(&entry(&[("a", 1, 4, false), ("dead", 1, 12, true)]), idle, (3, false, 3, 3));
        // A worker with more leaves one to a worker with less, as long as nothing is free.
        let busy = own(demand(4, 3, 5));
        check(&entry(&[("a", 1, 3, false), ("b", 1, 1, true)]), busy, (2, true, 2, 2));
        check(&entry(&[("a", 1, 2, false), ("b", 1, 2, true)]), own(demand(4, 2, 5)), (2, true, 2, 2));
        check(&entry(&[("a", 1, 1, false), ("b", 1, 0, true)]), own(demand(1, 1, 5)), (0, true, 0, 0));
        let left = Own { may_take: false, ..own(demand(1, 0, 5)) };
        check(&entry(&[("b", 1, 0, true)]), left, (0, true, 0, 1));
        // A quota that was reduced, or that is new.
        check(&entry(&[("a", 1, 6, false), ("b", 1, 4, false)]), own(demand(2, 6, 1)), (0, true, 0, 0));
        check(&entry(&[("a", 1, 6, false), ("b", 1, 4, false)]), own(demand(8, 6, 0)), (4, false, 4, 4));
        // A tenant that is not open here.
        check(&entry(&[("a", 1, 6, false)]), Own { used: 6, ..own(None) }, (6, false, 6, 6));
        check(&entry(&[("a", 1, 6, false)]), own(None), (0, false, 0, 0));
    }

    #[test]
    fn the_next_owner_of_a_log_takes_over_its_part_once_that_is_stored() {
        let before = entry(&[("a", 1, 4, false)]);
        let next = plan(&before, Own { epoch: 2, ..own(demand(4, 0, 4)) }, |_| true).unwrap();
        assert_eq!((next.slots, next.granted, next.stored), (4, 4, 0));
        let after = before.with("a", Holder { epoch: 2, slots: 4, is_waiting: false });
        assert_eq!(plan(&after, own(demand(4, 4, 4)), |_| true), None, "the former owner");
        let next = plan(&after, Own { epoch: 2, ..own(demand(4, 0, 4)) }, |_| true).unwrap();
        assert_eq!(next.stored, 4);
        assert_eq!(QuotaEntry::read(&after.write()), Some(after));
    }

    #[test]
    fn the_next_owner_keeps_a_part_until_the_rollouts_of_the_former_one_ask_for_it() {
        let full = entry(&[("a", 1, 3, false), ("b", 1, 1, true)]);
        let slots = |demand, is_resuming| {
            let own = Own { epoch: 2, is_resuming, ..own(demand) };
            plan(&full, own, |_| true).unwrap().slots
        };
        // The tenant is not open yet, its rollouts do not wait yet, and some of them do.
        for demand in [None, demand(4, 0, 0), demand(4, 0, 1)] {
            assert_eq!(slots(demand, true), 3, "{demand:?}");
            assert!(slots(demand, false) < 3, "{demand:?}");
        }
        // It leaves nothing to a worker with less before its rollouts run.
        assert_eq!((slots(demand(4, 0, 3), true), slots(demand(4, 3, 0), false)), (3, 2));
    }

    /// A worker of the simulation: the rollouts that run and wait, and the entry that it read last.
    #[derive(Default)]
    struct Simulated {
        running: u32,
        waiting: u32,
        granted: u32,
        known: (u64, QuotaEntry),
        yielded_at: Option<u64>,
    }

    impl Simulated {
        fn start_rollouts(&mut self) {
            let started = self.granted.saturating_sub(self.running).min(self.waiting);
            (self.running, self.waiting) = (self.running + started, self.waiting - started);
        }

        /// Plans with what it knows and tries to store it.
        fn step(&mut self, log: &str, quota: u32, workers: u32, bucket: &mut (u64, QuotaEntry)) {
            let demand = demand(quota, self.running, self.waiting);
            let may_take = self.yielded_at.is_none_or(|revision| self.known.0 > revision);
            let own = Own { log, epoch: 1, demand, used: 0, is_resuming: false, may_take, workers };
            let plan = plan(&self.known.1, own, |_| true).unwrap();
            self.granted = plan.granted.min(plan.stored);
            self.start_rollouts();
            let slots = plan.slots.max(self.running);
            let next = self.known.1.with(log, Holder { epoch: 1, slots, is_waiting: plan.is_waiting });
            if next == self.known.1 {
                self.granted = plan.granted;
            } else if bucket.0 == self.known.0 {
                *bucket = (bucket.0 + 1, next);
                self.known = bucket.clone();
                self.granted = plan.granted;
                self.yielded_at = (slots < plan.stored && plan.is_waiting).then_some(bucket.0);
            } else {
                self.known = bucket.clone();
            }
            self.start_rollouts();
        }
    }

    #[test]
    fn workers_in_any_order_stay_within_a_quota_and_none_of_them_starves() {
        // A small generator of numbers is enough, and repeats failures.
        let mut seed = 1_u64;
        let mut random = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(seed >> 33).unwrap() % below
        };
        for (quota, workers) in [(1, 3), (2, 3), (4, 2), (5, 3), (40, 4)] {
            let logs: Vec<String> = (0..workers).map(|number| format!("w{number}")).collect();
            let mut all: Vec<Simulated> = logs.iter().map(|_| Simulated::default()).collect();
            let mut bucket = (0, QuotaEntry::default());
            let mut ended = vec![0; workers];
            for _ in 0..40_000 {
                let at = random(workers);
                match random(4) {
                    0 => all[at].waiting = (all[at].waiting + 1).min(2 * quota),
                    1 if all[at].running > 0 => {
                        all[at].running -= 1;
                        ended[at] += 1;
                        all[at].start_rollouts();
                    }
                    2 => all[at].known = bucket.clone(),
                    _ => all[at].step(&logs[at], quota, u32::try_from(workers).unwrap(), &mut bucket),
                }
                let running: u32 = all.iter().map(|worker| worker.running).sum();
                assert!(running <= quota, "{running} of {quota} run");
                let held: u32 = bucket.1.holders.values().map(|holder| holder.slots).sum();
                assert!(held <= quota, "{held} of {quota} are held");
            }
            let (least, most) = (ended.iter().min().unwrap(), ended.iter().max().unwrap());
            assert!(least * 3 > *most, "{ended:?} with {quota} for {workers}");
            // One worker alone reaches all of it.
            for worker in &mut all {
                (worker.running, worker.waiting) = (0, 0);
            }
            all[0].waiting = quota;
            for _ in 0..8 * workers * 4 {
                for (worker, log) in all.iter_mut().zip(&logs) {
                    worker.known = bucket.clone();
                    worker.step(log, quota, u32::try_from(workers).unwrap(), &mut bucket);
                }
            }
            assert_eq!(all[0].running, quota);
        }
    }
}
