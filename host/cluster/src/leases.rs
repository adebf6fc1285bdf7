//! Leases of the workers on parts of a tenant's quota of running rollouts.
//!
//! A bucket has a key for each tenant, with the part that each worker holds. A worker takes more, and returns what it does
//! not use, by a compare-and-set of the key's revision, so that the parts together never exceed the quota. It
//! stores a larger part before it uses it, and stops using a part before it stores a smaller one.
//!
//! A part belongs to a log and the epoch of its owner. If the owner dies, the part stays with the log: the process that
//! continues the log's rollouts takes over the part, too, and returns it when they have ended. Nothing else frees it, because
//! only a claim proves that the former owner runs no rollouts any more.
//!
//! While NATS does not answer, a worker uses what it holds.

mod plan;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use async_nats::jetstream::kv;
use async_nats::jetstream::stream::LastRawMessageErrorKind;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::AbortOnDropHandle;

use crate::claim::ClaimedLog;
use crate::connect::Cluster;
use crate::error::{ClusterError, chain, is_wrong_last, unavailable};
use crate::members::Members;
use crate::storage::Bucket;
use plan::{Holder, Own, Plan, QuotaEntry, plan};

/// Interval at which unused parts are looked for.
const TICK: Duration = Duration::from_secs(1);

/// Number of ticks after which a part that was not used is returned. It may be twice as many.
const UNUSED_TICKS: u32 = 3;

/// Maximum number of keys that are written at once.
const WRITES_MAX: usize = 64;

/// Pause after a server knew nothing newer than a refused write.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Pause after a request without an answer, or before a watch that has ended is begun again.
const AWAY_PAUSE: Duration = Duration::from_secs(1);

/// Time for which a worker leaves a slot that it has returned for others to them.
const LEFT_TIME: Duration = Duration::from_secs(1);

/// Time for which a part is kept after the rollouts of an earlier process were resumed, so that they ask for slots.
const RESUMED_TIME: Duration = Duration::from_secs(3);

/// Number of entries of the watch that wait to be applied.
const WATCHED_MAX: usize = 256;

/// Demand of a tenant on a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotDemand {
    /// The tenant's quota of running rollouts.
    pub quota: u32,
    /// Number of running rollouts.
    pub running: u32,
    /// Largest number of running rollouts since the last call.
    pub peak: u32,
    /// Number of rollouts that wait for a lease only.
    pub waiting: u32,
}

/// The slots of a worker that are leased.
pub trait LeasedSlots: Send + Sync + 'static {
    /// Waits until demands may have changed, and returns their tenants. Cancel-safe.
    fn changed(&self) -> BoxFuture<'_, BTreeSet<i64>>;

    /// Returns the demand of a tenant; none if it is not open or has no quota.
    fn demand(&self, tenant: i64) -> Option<SlotDemand>;

    /// Returns whether the rollouts of a tenant that an earlier process admitted have been resumed.
    fn is_resumed(&self, tenant: i64) -> bool;

    /// Sets the numbers of rollouts of a tenant that may run, and that could run with all that is free. Returns the number
    /// that runs. If it is larger, it only decreases.
    fn set(&self, tenant: i64, granted: u32, reachable: u32) -> u32;

    /// Sets the number of workers.
    fn set_workers(&self, count: u32);
}

/// The leases of a worker, which are renewed until this is dropped.
pub struct QuotaLeases {
    leave: oneshot::Sender<BTreeSet<i64>>,
    task: AbortOnDropHandle<()>,
    time_max: Duration,
}

impl QuotaLeases {
    /// Returns the leases of tenants, except of those in `kept`: these stay with the log, for the process that continues their
    /// rollouts. To be called when no rollout of the others runs any more.
    pub async fn release(self, kept: BTreeSet<i64>) -> Result<(), ClusterError> {
        let Self { leave, task, time_max, .. } = self;
        let _ = leave.send(kept);
        match tokio::time::timeout(time_max, task).await {
            Ok(ended) => ended.map_err(unavailable),
            Err(_) => Err(ClusterError::Unavailable("leased quotas were not returned".to_owned())),
        }
    }
}

/// The quotas of tenants, of which the owner of a log may hold parts.
pub struct SharedQuotas {
    cluster: Cluster,
    bucket: kv::Store,
    members: Members,
    own: String,
    epoch: u64,
}

impl ClaimedLog {
    /// Returns the quotas for this log's owner. Creates their bucket if it does not exist.
    pub async fn quotas(&self) -> Result<SharedQuotas, ClusterError> {
        let (cluster, own, epoch) = (self.cluster().clone(), self.log().to_owned(), self.epoch());
        let members = cluster.members().await?;
        let of_cluster = cluster.clone();
        let bucket = cluster.run(async move { open(&of_cluster).await }).await??;
        Ok(SharedQuotas { cluster, bucket, members, own, epoch })
    }
}

impl SharedQuotas {
    /// Starts to lease quotas for these slots.
    pub fn lease(self, slots: impl LeasedSlots) -> QuotaLeases {
        let Self { cluster, bucket, members, own, epoch } = self;
        let (leave, leaves) = oneshot::channel();
        let time_max = cluster.settings().lease();
        let leasing = Leasing {
            workers_bucket: cluster.0.bucket.clone(),
            bucket,
            own,
            epoch,
            slots,
            members,
            alive: BTreeSet::new(),
            tenants: BTreeMap::new(),
            gone: BTreeMap::new(),
            checked: BTreeSet::new(),
            dirty: BTreeSet::new(),
            requests: FuturesUnordered::new(),
            leaving: None,
        };
        let task = AbortOnDropHandle::new(cluster.handle().spawn(leasing.run(leaves)));
        QuotaLeases { leave, task, time_max }
    }
}

/// Opens the bucket, which is created if it does not exist.
async fn open(cluster: &Cluster) -> Result<kv::Store, ClusterError> {
    let (settings, jetstream) = (&cluster.0.settings, &cluster.0.jetstream);
    let description = "Parts of tenants' quotas that workers of rollout-host hold";
    let bucket = Bucket { name: settings.quotas_bucket(), description, age_max: Duration::ZERO };
    bucket.open(jetstream, settings).await
}

/// An entry as a server knows it.
struct Found {
    tenant: i64,
    entry: QuotaEntry,
    revision: u64,
}

/// Reads an entry; none if its key or value is of another program.
fn read(found: &kv::Entry) -> Option<Found> {
    let tenant = found.key.parse().ok()?;
    let entry = match found.operation {
        kv::Operation::Put => QuotaEntry::read(&found.value)?,
        kv::Operation::Delete | kv::Operation::Purge => QuotaEntry::default(),
    };
    Some(Found { tenant, entry, revision: found.revision })
}

/// Sends all entries, and later each change. Begins again when the watch ends.
async fn watch(bucket: kv::Store, entries: mpsc::Sender<Found>) {
    loop {
        match bucket.watch_with_history(">").await {
            Ok(mut watch) => {
                while let Some(Ok(entry)) = watch.next().await {
                    let Some(found) = read(&entry) else {
                        tracing::warn!(key = entry.key, "a leased quota cannot be read");
                        continue;
                    };
                    if entries.send(found).await.is_err() {
                        return;
                    }
                }
            }
            Err(error) => tracing::warn!(%error, "leased quotas cannot be watched; trying again"),
        }
        tokio::time::sleep(AWAY_PAUSE).await;
    }
}

/// State of a tenant's leases.
#[derive(Default)]
struct TenantLease {
    /// The entry with the newest revision that this worker knows.
    entry: QuotaEntry,
    revision: u64,
    /// Largest number of slots that were needed in the current period and in the one before.
    used: [u32; 2],
    /// The last time at which rollouts of an earlier process were not resumed yet.
    resuming_at: Option<Instant>,
    is_writing: bool,
    /// The number to which a write without an answer may have reduced the part.
    ceiling: Option<u32>,
    /// Revision and time at which a slot was left to others.
    left: Option<(u64, Instant)>,
}

impl TenantLease {
    /// Replaces the entry by a newer one. Returns whether it is newer.
    fn update(&mut self, entry: QuotaEntry, revision: u64, (own, epoch): (&str, u64)) -> bool {
        let is_newer = revision > self.revision;
        if self.revision == 0 {
            // The part of an earlier process, whose rollouts this one is about to continue.
            let holder = entry.holders.get(own);
            let held = holder.map_or(0, |holder| holder.slots);
            self.used = self.used.map(|used| used.max(held));
            if holder.is_some_and(|holder| holder.epoch < epoch) {
                self.resuming_at = Some(Instant::now());
            }
        }
        if is_newer {
            (self.entry, self.revision, self.ceiling) = (entry, revision, None);
        }
        is_newer
    }
}

/// A finished request.
enum Done {
    Stored {
        tenant: i64,
        entry: QuotaEntry,
        revision: u64,
        plan: Plan,
    },
    /// Another worker was faster. The entry that a server has now, if it was read.
    Refused {
        tenant: i64,
        found: Option<Found>,
    },
    /// The servers did not answer, and the write may have been stored.
    Unknown {
        tenant: i64,
        granted: u32,
    },
    /// A log has no owner, or it could not be determined.
    Checked {
        log: String,
        epoch: Option<u64>,
    },
}

struct Leasing<S> {
    workers_bucket: kv::Store,
    bucket: kv::Store,
    own: String,
    epoch: u64,
    slots: S,
    members: Members,
    /// Logs whose owners send heartbeats.
    alive: BTreeSet<String>,
    tenants: BTreeMap<i64, TenantLease>,
    /// Logs that were retired, and the epoch up to which their parts are free.
    gone: BTreeMap<String, u64>,
    /// Logs whose owner is being read.
    checked: BTreeSet<String>,
    dirty: BTreeSet<i64>,
    requests: FuturesUnordered<BoxFuture<'static, Done>>,
    /// The tenants whose parts stay with the log, once this worker leaves.
    leaving: Option<BTreeSet<i64>>,
}

impl<S: LeasedSlots> Leasing<S> {
    async fn run(mut self, mut leaves: oneshot::Receiver<BTreeSet<i64>>) {
        let (sender, mut entries) = mpsc::channel(WATCHED_MAX);
        let _watching = AbortOnDropHandle::new(tokio::spawn(watch(self.bucket.clone(), sender)));
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut count = 0_u32;
        self.count_workers();
        loop {
            tokio::select! {
                left = &mut leaves, if self.leaving.is_none() => match left {
                    Ok(kept) => {
                        self.leaving = Some(kept);
                        self.dirty.extend(self.held_tenants());
                    }
                    // The leases stay with the log.
                    Err(_) => return,
                },
                changed = self.slots.changed() => self.dirty.extend(changed),
                Some(found) = entries.recv() => self.note(found),
                Some(done) = self.requests.next() => self.finish(done),
                _ = ticks.tick() => {
                    count += 1;
                    self.tick(count.is_multiple_of(UNUSED_TICKS));
                }
            }
            self.advance();
            if self.leaving.is_some() && self.held_tenants().is_empty() && self.requests.is_empty() {
                return;
            }
        }
    }

    /// Returns whether the part of a tenant stays as it is, because this worker leaves.
    fn is_kept(&self, tenant: i64) -> bool {
        self.leaving.as_ref().is_some_and(|kept| kept.contains(&tenant))
    }

    /// Returns the tenants of which this worker holds a part that it may change.
    fn held_tenants(&self) -> Vec<i64> {
        let is_held = |(tenant, lease): &(&i64, &TenantLease)| {
            lease.entry.holders.contains_key(&self.own) && !self.is_kept(**tenant)
        };
        self.tenants.iter().filter(is_held).map(|(tenant, _)| *tenant).collect()
    }

    fn note(&mut self, found: Found) {
        let Found { tenant, entry, revision } = found;
        if self.tenants.entry(tenant).or_default().update(entry, revision, (&self.own, self.epoch)) {
            self.dirty.insert(tenant);
        }
    }

    fn count_workers(&mut self) {
        self.alive = self.members.live_logs();
        self.slots.set_workers(self.workers());
    }

    fn workers(&self) -> u32 {
        u32::try_from(self.alive.len().max(1)).unwrap_or(u32::MAX)
    }

    /// Counts the workers. Looks for parts that are not used, and for parts of logs without an owner.
    fn tick(&mut self, is_new_period: bool) {
        self.count_workers();
        let held = self.held_tenants();
        if is_new_period {
            for lease in self.tenants.values_mut() {
                lease.used = [0, lease.used[0]];
            }
        }
        self.dirty.extend(held);
        if self.members.is_reachable() {
            self.check_owners();
        }
    }

    /// Asks for the owners of logs that hold parts and are not in the list of workers.
    fn check_owners(&mut self) {
        let unknown: BTreeMap<String, u64> = self
            .tenants
            .values()
            .flat_map(|lease| &lease.entry.holders)
            .filter(|(log, holder)| {
                let is_known =
                    **log == self.own || self.gone.get(*log).is_some_and(|gone| *gone >= holder.epoch);
                !is_known && !self.checked.contains(*log) && self.members.get(log).is_none()
            })
            .map(|(log, holder)| (log.clone(), holder.epoch))
            .collect();
        for (log, epoch) in unknown.into_iter().take(WRITES_MAX) {
            self.checked.insert(log.clone());
            let bucket = self.workers_bucket.clone();
            self.requests.push(Box::pin(async move {
                // Answered by the leader, which has the entry of a new owner before that one can store a part.
                let subject = format!("{}{log}", bucket.prefix);
                let found = bucket.stream.get_last_raw_message_by_subject(&subject).await;
                let is_gone = match found {
                    Ok(message) => message.headers.get("KV-Operation").is_some(),
                    Err(error) => error.kind() == LastRawMessageErrorKind::NoMessageFound,
                };
                Done::Checked { log, epoch: is_gone.then_some(epoch) }
            }));
        }
    }

    fn finish(&mut self, done: Done) {
        let tenant = match done {
            Done::Checked { log, epoch } => {
                self.checked.remove(&log);
                let Some(epoch) = epoch else { return };
                tracing::info!(log, epoch, "leased quotas of a worker that has left are free");
                let holds = |(_, lease): &(&i64, &TenantLease)| lease.entry.holders.contains_key(&log);
                let tenants: Vec<i64> =
                    self.tenants.iter().filter(holds).map(|(tenant, _)| *tenant).collect();
                self.dirty.extend(tenants);
                self.gone.insert(log, epoch);
                return;
            }
            Done::Stored { tenant, .. } | Done::Refused { tenant, .. } | Done::Unknown { tenant, .. } => {
                tenant
            }
        };
        self.dirty.insert(tenant);
        let Some(lease) = self.tenants.get_mut(&tenant) else { return };
        lease.is_writing = false;
        match done {
            Done::Stored {
                entry,
                revision,
                plan: Plan { slots, is_waiting, granted, reachable, stored },
                ..
            } => {
                lease.update(entry, revision, (&self.own, self.epoch));
                let is_left = slots < stored && is_waiting;
                lease.left = is_left.then(|| (revision, Instant::now()));
                // The next plan may leave what was taken to others, but only after rollouts have used it.
                self.slots.set(tenant, granted, reachable);
            }
            Done::Refused { found: Some(found), .. } => {
                lease.update(found.entry, found.revision, (&self.own, self.epoch));
            }
            Done::Unknown { granted, .. } => {
                lease.ceiling = Some(lease.ceiling.map_or(granted, |ceiling| ceiling.min(granted)));
            }
            Done::Refused { found: None, .. } | Done::Checked { .. } => {}
        }
    }

    /// Plans the parts of all tenants that have changed.
    fn advance(&mut self) {
        let mut postponed = BTreeSet::new();
        while let Some(tenant) = self.dirty.pop_first() {
            if self.requests.len() >= WRITES_MAX {
                postponed.insert(tenant);
                break;
            }
            self.plan(tenant);
        }
        self.dirty.append(&mut postponed);
    }

    fn plan(&mut self, tenant: i64) {
        if self.is_kept(tenant) {
            return;
        }
        let (workers, is_leaving) = (self.workers(), self.leaving.is_some());
        let demand = if is_leaving { None } else { self.slots.demand(tenant) };
        let lease = match demand {
            Some(_) => self.tenants.entry(tenant).or_default(),
            None => match self.tenants.get_mut(&tenant) {
                Some(lease) => lease,
                None => return,
            },
        };
        if let Some(demand) = demand {
            let needed = demand.peak.max(demand.running.saturating_add(demand.waiting));
            lease.used[0] = lease.used[0].max(needed.min(demand.quota));
        }
        if !self.slots.is_resumed(tenant) {
            lease.resuming_at = Some(Instant::now());
        }
        // Planned again when the write has ended.
        if lease.is_writing {
            return;
        }
        let mut entry = lease.entry.clone();
        entry.holders.retain(|log, holder| self.gone.get(log).is_none_or(|gone| *gone < holder.epoch));
        let may_take =
            lease.left.is_none_or(|(revision, at)| lease.revision > revision || at.elapsed() >= LEFT_TIME);
        let own = Own {
            log: &self.own,
            epoch: self.epoch,
            demand,
            used: if is_leaving { 0 } else { lease.used[0].max(lease.used[1]) },
            is_resuming: !is_leaving && lease.resuming_at.is_some_and(|at| at.elapsed() < RESUMED_TIME),
            may_take,
            workers,
        };
        let is_alive = |log: &str| self.alive.contains(log);
        // A log with another owner: this process is about to end.
        let Some(plan) = plan(&entry, own, is_alive) else { return };
        let Plan { slots, is_waiting, granted, reachable, stored } = plan;
        let now = granted.min(stored).min(lease.ceiling.unwrap_or(u32::MAX));
        let running = self.slots.set(tenant, now, if lease.ceiling.is_some() { now } else { reachable });
        let slots = slots.max(running);
        let next = entry.with(&self.own, Holder { epoch: self.epoch, slots, is_waiting });
        if next == lease.entry && lease.ceiling.is_none() {
            return;
        }
        lease.is_writing = true;
        let write = Write { tenant, next, revision: lease.revision, now, plan: Plan { slots, ..plan } };
        self.requests.push(Box::pin(write.run(self.bucket.clone())));
    }
}

/// The write of an entry.
struct Write {
    tenant: i64,
    next: QuotaEntry,
    revision: u64,
    /// Number of rollouts that may run until it is stored.
    now: u32,
    plan: Plan,
}

impl Write {
    async fn run(self, bucket: kv::Store) -> Done {
        let Self { tenant, next, revision, now, plan } = self;
        let key = tenant.to_string();
        match bucket.update(&key, next.write(), revision).await {
            Ok(revision) => Done::Stored { tenant, entry: next, revision, plan },
            Err(error) if is_wrong_last(&error) => {
                let found = bucket.entry(&key).await.ok().flatten();
                let found = found.as_ref().and_then(read).filter(|found| found.revision > revision);
                if found.is_none() {
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
                Done::Refused { tenant, found }
            }
            Err(error) => {
                let error = chain(&error);
                tracing::warn!(tenant, error, "a leased quota was not stored; trying again");
                tokio::time::sleep(AWAY_PAUSE).await;
                Done::Unknown { tenant, granted: now.min(plan.granted) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_part_of_an_earlier_process_waits_for_rollouts_that_are_resumed() {
        let entry = |epoch| QuotaEntry::default().with("w1", Holder { epoch, slots: 3, is_waiting: false });
        for (first, is_resuming) in [(1, true), (2, false)] {
            let mut lease = TenantLease::default();
            assert!(lease.update(entry(first), 5, ("w1", 2)));
            assert_eq!((lease.resuming_at.is_some(), lease.used), (is_resuming, [3, 3]));
            lease.resuming_at = None;
            assert!(!lease.update(entry(1), 4, ("w1", 2)));
            assert_eq!((lease.resuming_at, lease.revision), (None, 5));
        }
    }
}
