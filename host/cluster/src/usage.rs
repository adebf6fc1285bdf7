//! Usage of tenants by day, of all workers together.
//!
//! A bucket has a key for each tenant and day, `TENANT.YYYY-MM-DD`, with what each count of usage has. A worker stores the part of its
//! own count with each heartbeat if it has grown, by a compare-and-set of the key's revision, and watches the keys of the day. A
//! part only grows, so a write that is repeated changes nothing.
//!
//! A count is a database with a random name. A worker that has lost its disk, and a process that continues the log of another
//! worker, begin a count of their own, and the part of the former one stays.
//!
//! While NATS does not answer, a worker counts its own usage and what it last knew of the others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use async_nats::jetstream::kv;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{StreamExt, stream};
use rollout_catalog::{Day, TenantUsage};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

use crate::claim::ClaimedLog;
use crate::connect::Cluster;
use crate::error::{ClusterError, chain, is_wrong_last, unavailable};
use crate::storage::Bucket;

/// Age at which the bucket drops entries: some more than the days that a catalog keeps.
const ENTRY_AGE_MAX: Duration = Duration::from_secs(402 * 24 * 3600);

/// Number of days before the start whose usage may not be stored yet.
const LATE_DAYS: usize = 7;

/// Maximum number of keys that are read or written at once.
const REQUESTS_MAX: usize = 16;

/// Number of times that a write is repeated at once while others write the same key.
const RETRIES_MAX: u32 = 8;

/// Pause before a write is repeated, multiplied by the number of tries. A server may know an older entry for a moment.
const RETRY_PAUSE: Duration = Duration::from_millis(10);

/// Pause before a watch that has ended is begun again.
const WATCH_PAUSE: Duration = Duration::from_secs(1);

/// The tenants of a worker, whose usage is counted.
pub trait MeteredTenants: Send + Sync + 'static {
    /// Returns today, by UTC.
    fn today(&self) -> Day;

    /// Returns the usage of all tenants in a day by this worker's count. It never shrinks.
    fn usage(&self, day: Day) -> BoxFuture<'_, Vec<(i64, TenantUsage)>>;

    /// Sets the usage of a tenant in a day by all other counts.
    fn set_elsewhere(&self, tenant: i64, day: Day, usage: TenantUsage);
}

/// The usage of tenants that workers share. Cheap to clone.
#[derive(Clone)]
pub struct SharedUsage {
    cluster: Cluster,
    bucket: kv::Store,
    /// Name of this worker's count.
    own: String,
}

/// The exchange of usage with other workers, which goes on until this is dropped.
pub struct UsageExchange {
    leave: oneshot::Sender<()>,
    storing: AbortOnDropHandle<()>,
    _watching: AbortOnDropHandle<()>,
    time_max: Duration,
}

impl UsageExchange {
    /// Stores the last usage and ends the exchange.
    pub async fn end(self) -> Result<(), ClusterError> {
        let Self { leave, storing, time_max, .. } = self;
        let _ = leave.send(());
        match tokio::time::timeout(time_max, storing).await {
            Ok(ended) => ended.map_err(unavailable),
            Err(_) => Err(ClusterError::Unavailable("the last usage was not stored".to_owned())),
        }
    }
}

impl ClaimedLog {
    /// Returns the usage of tenants for a worker whose count has this name. Creates the bucket if it does not exist.
    pub async fn usage(&self, count: String) -> Result<SharedUsage, ClusterError> {
        let cluster = self.cluster().clone();
        let of_cluster = cluster.clone();
        let bucket = cluster.run(async move { open(&of_cluster).await }).await??;
        Ok(SharedUsage { cluster, bucket, own: count })
    }
}

async fn open(cluster: &Cluster) -> Result<kv::Store, ClusterError> {
    let (settings, jetstream) = (&cluster.0.settings, &cluster.0.jetstream);
    let description = "Usage of tenants of rollout-host by day";
    let bucket = Bucket { name: settings.usage_bucket(), description, age_max: ENTRY_AGE_MAX };
    bucket.open(jetstream, settings).await
}

impl SharedUsage {
    /// Returns the usage of a tenant by all counts in each of these days. `own` is the usage by this worker's count, which may not
    /// be stored yet. Days without usage are left out.
    pub async fn days(
        &self,
        tenant: i64,
        days: impl Iterator<Item = Day>,
        mut own: BTreeMap<Day, TenantUsage>,
    ) -> Result<BTreeMap<Day, TenantUsage>, ClusterError> {
        let (bucket, count) = (self.bucket.clone(), self.own.clone());
        let days: Vec<Day> = days.collect();
        let read = async move {
            let mut entries = stream::iter(days)
                .map(|day| {
                    let bucket = &bucket;
                    async move { (day, current(bucket, &key(tenant, day)).await) }
                })
                .buffer_unordered(REQUESTS_MAX);
            while let Some((day, found)) = entries.next().await {
                let (mut entry, _) = found?;
                entry.raise(&count, own.remove(&day).unwrap_or_default());
                let total = entry.total();
                if total != TenantUsage::default() {
                    own.insert(day, total);
                }
            }
            Ok(own)
        };
        self.cluster.run(read).await?
    }

    /// Starts to store the usage of these tenants and to watch that of other workers.
    pub fn exchange(self, tenants: impl MeteredTenants + Clone) -> UsageExchange {
        let Self { cluster, bucket, own } = self;
        let (leave, leaves) = oneshot::channel();
        let (interval, time_max) = (cluster.settings().heartbeat(), cluster.settings().lease());
        let watching =
            Watching { bucket: bucket.clone(), own: own.clone(), tenants: tenants.clone(), interval };
        let storing = Storing { bucket, own, tenants, interval, stored: BTreeMap::new(), is_away: false };
        let spawn = |task| AbortOnDropHandle::new(cluster.handle().spawn(task));
        let _watching = AbortOnDropHandle::new(cluster.handle().spawn(watching.run()));
        UsageExchange { leave, storing: spawn(storing.run(leaves)), _watching, time_max }
    }
}

fn key(tenant: i64, day: Day) -> String {
    format!("{tenant}.{day}")
}

/// The value of a key: the usage by each count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct UsageEntry {
    counts: BTreeMap<String, TenantUsage>,
}

impl UsageEntry {
    /// Raises the part of a count to this usage. Returns whether it was less.
    fn raise(&mut self, count: &str, usage: TenantUsage) -> bool {
        let part = self.part(count);
        let larger = larger(part, usage);
        if larger == part {
            return false;
        }
        self.counts.insert(count.to_owned(), larger);
        true
    }

    fn part(&self, count: &str) -> TenantUsage {
        self.counts.get(count).copied().unwrap_or_default()
    }

    fn total(&self) -> TenantUsage {
        self.sum(|_| true)
    }

    /// Returns the usage by all other counts.
    fn others(&self, count: &str) -> TenantUsage {
        self.sum(|other| other != count)
    }

    fn sum(&self, is_summed: impl Fn(&str) -> bool) -> TenantUsage {
        let mut sum = TenantUsage::default();
        self.counts.iter().filter(|(count, _)| is_summed(count)).for_each(|(_, part)| sum.add(*part));
        sum
    }
}

fn larger(one: TenantUsage, other: TenantUsage) -> TenantUsage {
    TenantUsage {
        model_tokens: one.model_tokens.max(other.model_tokens),
        guest_cpu_nanos: one.guest_cpu_nanos.max(other.guest_cpu_nanos),
    }
}

/// Reason why a part was not stored.
enum NotStored {
    /// The servers did not answer.
    Away(ClusterError),
    /// The entry cannot be read, or others write it too often. The parts of other keys can be stored.
    Key(String),
}

impl From<NotStored> for ClusterError {
    fn from(reason: NotStored) -> Self {
        match reason {
            NotStored::Away(error) => error,
            NotStored::Key(reason) => Self::Unavailable(reason),
        }
    }
}

fn away(error: &(impl std::error::Error + 'static)) -> NotStored {
    NotStored::Away(ClusterError::Unavailable(chain(error)))
}

/// Reads the entry of a key and its revision.
async fn current(bucket: &kv::Store, key: &str) -> Result<(UsageEntry, u64), NotStored> {
    match bucket.entry(key).await {
        Ok(Some(found)) => Ok((read(&found).map_err(NotStored::Key)?, found.revision)),
        Ok(None) => Ok((UsageEntry::default(), 0)),
        Err(error) => Err(away(&error)),
    }
}

fn read(found: &kv::Entry) -> Result<UsageEntry, String> {
    if found.operation != kv::Operation::Put {
        return Ok(UsageEntry::default());
    }
    let read = serde_json::from_slice(&found.value);
    read.map_err(|error| format!("the usage in key {} cannot be read: {error}", found.key))
}

/// Raises the part of a count in an entry. Returns the part that is stored then.
async fn store(
    bucket: &kv::Store,
    key: &str,
    count: &str,
    usage: TenantUsage,
) -> Result<TenantUsage, NotStored> {
    let mut retries = 0;
    loop {
        let (mut entry, revision) = current(bucket, key).await?;
        if !entry.raise(count, usage) {
            return Ok(entry.part(count));
        }
        // Neither texts nor numbers fail to serialize.
        let value = serde_json::to_vec(&entry).map(Bytes::from).unwrap_or_default();
        match bucket.update(key, value, revision).await {
            Ok(_) => return Ok(entry.part(count)),
            Err(error) if !is_wrong_last(&error) => return Err(away(&error)),
            Err(_) if retries == RETRIES_MAX => {
                return Err(NotStored::Key(format!("other workers write key {key} too often")));
            }
            Err(_) => retries += 1,
        }
        tokio::time::sleep(RETRY_PAUSE * retries).await;
    }
}

/// Watches the usage of today at other workers.
struct Watching<T> {
    bucket: kv::Store,
    own: String,
    tenants: T,
    interval: Duration,
}

impl<T: MeteredTenants> Watching<T> {
    /// Never returns.
    async fn run(self) {
        loop {
            let day = self.tenants.today();
            match self.bucket.watch_with_history(format!("*.{day}")).await {
                Ok(watch) => self.follow(day, watch).await,
                Err(error) => tracing::warn!(%error, "the usage of tenants cannot be watched; trying again"),
            }
            if self.tenants.today() == day {
                tokio::time::sleep(WATCH_PAUSE).await;
            }
        }
    }

    /// Applies changes until the watch or the day ends.
    async fn follow(&self, day: Day, mut watch: kv::Watch) {
        let mut ticks = tokio::time::interval(self.interval);
        loop {
            tokio::select! {
                _ = ticks.tick() => if self.tenants.today() != day { return },
                found = watch.next() => match found {
                    Some(Ok(found)) => self.apply(day, &found),
                    _ => return,
                },
            }
        }
    }

    fn apply(&self, day: Day, found: &kv::Entry) {
        let tenant = found.key.split('.').next().and_then(|tenant| tenant.parse().ok());
        match tenant
            .ok_or_else(|| format!("{} is no key of a tenant", found.key))
            .and_then(|tenant| Ok((tenant, read(found)?)))
        {
            Ok((tenant, entry)) => self.tenants.set_elsewhere(tenant, day, entry.others(&self.own)),
            Err(error) => tracing::warn!(error, "the usage of a tenant at other workers is not counted"),
        }
    }
}

/// Stores the usage at this worker.
struct Storing<T> {
    bucket: kv::Store,
    own: String,
    tenants: T,
    interval: Duration,
    /// Parts that are stored.
    stored: BTreeMap<(Day, i64), TenantUsage>,
    /// Whether the last request had no answer.
    is_away: bool,
}

impl<T: MeteredTenants> Storing<T> {
    async fn run(mut self, mut leaves: oneshot::Receiver<()>) {
        let mut last = self.tenants.today();
        // The last usage of a day is stored on the next one. An earlier process may have ended before it could store its usage.
        let mut days: BTreeSet<Day> = last.iter_days().rev().take(LATE_DAYS + 1).collect();
        let mut ticks = tokio::time::interval(self.interval);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let left = tokio::select! {
                left = &mut leaves => Some(left),
                _ = ticks.tick() => None,
            };
            if matches!(left, Some(Err(_))) {
                return;
            }
            let today = self.tenants.today();
            days.insert(today);
            for day in days.clone() {
                // A day is over if it was before its usage was read, at the last time, too.
                let is_stored = self.store_all(day).await;
                if is_stored && day < today.min(last) {
                    days.remove(&day);
                }
            }
            last = today;
            self.stored.retain(|(day, _), _| days.contains(day));
            if left.is_some() {
                return;
            }
        }
    }

    /// Stores the usage of a day that is not stored yet. Returns whether all is.
    async fn store_all(&mut self, day: Day) -> bool {
        let mut grown = self.tenants.usage(day).await;
        grown.retain(|(tenant, usage)| {
            let stored = self.stored.get(&(day, *tenant)).copied().unwrap_or_default();
            larger(stored, *usage) != stored
        });
        let (bucket, own) = (self.bucket.clone(), self.own.clone());
        let mut writes = stream::iter(grown)
            .map(|(tenant, usage)| {
                let (bucket, own) = (&bucket, &own);
                async move { (tenant, store(bucket, &key(tenant, day), own, usage).await) }
            })
            .buffer_unordered(REQUESTS_MAX);
        let mut is_stored = true;
        while let Some((tenant, written)) = writes.next().await {
            match written {
                Ok(part) => {
                    self.stored.insert((day, tenant), part);
                    if std::mem::take(&mut self.is_away) {
                        tracing::info!("the usage of tenants is stored again");
                    }
                }
                Err(NotStored::Key(error)) => {
                    is_stored = false;
                    tracing::warn!(tenant, %day, error, "the usage of a tenant was not stored; trying again");
                }
                Err(NotStored::Away(error)) => {
                    if !std::mem::replace(&mut self.is_away, true) {
                        tracing::warn!(%error, "the usage of tenants was not stored; trying again");
                    }
                    return false;
                }
            }
        }
        is_stored
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(model_tokens: u64, guest_cpu_nanos: u64) -> TenantUsage {
        TenantUsage { model_tokens, guest_cpu_nanos }
    }

    #[test]
    fn a_part_only_grows_and_the_others_are_summed() {
        let mut entry = UsageEntry::default();
        assert!(!entry.raise("w1", usage(0, 0)) && entry.counts.is_empty());
        assert!(entry.raise("w1", usage(5, 1)) && entry.raise("w2", usage(2, 9)));
        assert!(!entry.raise("w1", usage(4, 1)));
        assert!(entry.raise("w1", usage(4, 3)));
        assert_eq!((entry.part("w1"), entry.total()), (usage(5, 3), usage(7, 12)));
        assert_eq!((entry.others("w1"), entry.others("w3")), (usage(2, 9), usage(7, 12)));
    }
}
