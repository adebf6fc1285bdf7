//! Usage of tenants by day, of all workers together.
//!
//! A bucket has a key for each tenant and day, `TENANT.YYYY-MM-DD`, with the usage at each worker by the name of its log. A worker
//! stores its own part with each heartbeat if it has grown, by a compare-and-set of the key's revision, and watches the keys of
//! the day. A part only grows, so a write that is repeated changes nothing.
//!
//! A part belongs to a log. A process that continues the log, on this disk or another one, adds to the part.
//!
//! While NATS does not answer, a worker counts its own usage and what it last knew of the others.

use std::collections::BTreeMap;
use std::time::Duration;

use async_nats::jetstream::kv;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{StreamExt, stream};
use rollout_catalog::{Day, TenantUsage};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::AbortOnDropHandle;

use crate::claim::ClaimedLog;
use crate::connect::Cluster;
use crate::error::{ClusterError, chain, is_wrong_last, unavailable};
use crate::storage::Bucket;

/// Age at which the bucket drops entries: some more than the days that a catalog keeps.
const ENTRY_AGE_MAX: Duration = Duration::from_secs(402 * 24 * 3600);

/// Maximum number of keys that are read or written at once.
const REQUESTS_MAX: usize = 16;

/// Number of times that a write is tried while other workers write the same key.
const TRIES_MAX: u32 = 8;

/// Number of entries of the watch that wait to be applied.
const WATCHED_MAX: usize = 256;

/// Pause before a watch that has ended is begun again.
const WATCH_PAUSE: Duration = Duration::from_secs(1);

/// The tenants of a worker, whose usage is counted.
pub trait MeteredTenants: Send + Sync + 'static {
    /// Returns today, by UTC.
    fn today(&self) -> Day;

    /// Returns the usage of all tenants at this worker in a day.
    fn usage(&self, day: Day) -> BoxFuture<'_, Vec<(i64, TenantUsage)>>;

    /// Sets the usage of a tenant in a day that this worker has not counted itself.
    fn set_elsewhere(&self, tenant: i64, day: Day, usage: TenantUsage);
}

/// The usage of tenants that workers share. Cheap to clone.
#[derive(Clone)]
pub struct SharedUsage {
    cluster: Cluster,
    bucket: kv::Store,
    own: String,
}

/// The exchange of usage with other workers, which goes on until this is dropped.
pub struct UsageExchange {
    leave: oneshot::Sender<()>,
    task: AbortOnDropHandle<()>,
    time_max: Duration,
}

impl UsageExchange {
    /// Stores the last usage and ends the exchange.
    pub async fn end(self) -> Result<(), ClusterError> {
        let Self { leave, task, time_max } = self;
        let _ = leave.send(());
        match tokio::time::timeout(time_max, task).await {
            Ok(ended) => ended.map_err(unavailable),
            Err(_) => Err(ClusterError::Unavailable("the last usage was not stored".to_owned())),
        }
    }
}

impl ClaimedLog {
    /// Returns the usage of tenants for this log's owner. Creates its bucket if it does not exist.
    pub async fn usage(&self) -> Result<SharedUsage, ClusterError> {
        let (cluster, own) = (self.cluster().clone(), self.log().to_owned());
        let of_cluster = cluster.clone();
        let bucket = cluster.run(async move { open(&of_cluster).await }).await??;
        Ok(SharedUsage { cluster, bucket, own })
    }
}

async fn open(cluster: &Cluster) -> Result<kv::Store, ClusterError> {
    let (settings, jetstream) = (&cluster.0.settings, &cluster.0.jetstream);
    let description = "Usage of tenants of rollout-host by day";
    let bucket = Bucket { name: settings.usage_bucket(), description, age_max: ENTRY_AGE_MAX };
    bucket.open(jetstream, settings).await
}

impl SharedUsage {
    /// Returns the usage of a tenant at all workers in each of these days. `own` is the usage at this worker, which may not be
    /// stored yet. Days without usage are left out.
    pub async fn days(
        &self,
        tenant: i64,
        days: impl Iterator<Item = Day>,
        mut own: BTreeMap<Day, TenantUsage>,
    ) -> Result<BTreeMap<Day, TenantUsage>, ClusterError> {
        let (bucket, log) = (self.bucket.clone(), self.own.clone());
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
                entry.raise(&log, own.remove(&day).unwrap_or_default());
                let total = entry.total();
                if total != TenantUsage::default() {
                    own.insert(day, total);
                }
            }
            Ok(own)
        };
        self.cluster.run(read).await?
    }

    /// Starts to store the usage of these tenants and to watch that of other workers. To be called before rollouts run.
    pub async fn exchange(self, tenants: impl MeteredTenants) -> UsageExchange {
        let Self { cluster, bucket, own } = self;
        let (leave, leaves) = oneshot::channel();
        let time_max = cluster.settings().lease();
        let day = tenants.today();
        let started =
            tenants.usage(day).await.into_iter().map(|(tenant, usage)| ((day, tenant), usage)).collect();
        let interval = cluster.settings().heartbeat();
        let known = BTreeMap::new();
        let exchange = Exchange { bucket, own, tenants, interval, started, known, is_away: false };
        let task = AbortOnDropHandle::new(cluster.handle().spawn(exchange.run(day, leaves)));
        UsageExchange { leave, task, time_max }
    }
}

fn key(tenant: i64, day: Day) -> String {
    format!("{tenant}.{day}")
}

/// The value of a key: the usage at each worker, by its log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct UsageEntry {
    logs: BTreeMap<String, TenantUsage>,
}

impl UsageEntry {
    /// Raises the part of a log to this usage. Returns whether it was less.
    fn raise(&mut self, log: &str, usage: TenantUsage) -> bool {
        let part = self.part(log);
        let larger = larger(part, usage);
        if larger == part {
            return false;
        }
        self.logs.insert(log.to_owned(), larger);
        true
    }

    fn part(&self, log: &str) -> TenantUsage {
        self.logs.get(log).copied().unwrap_or_default()
    }

    fn total(&self) -> TenantUsage {
        let mut total = TenantUsage::default();
        self.logs.values().for_each(|part| total.add(*part));
        total
    }

    /// Returns the usage at all other workers.
    fn others(&self, log: &str) -> TenantUsage {
        let mut total = TenantUsage::default();
        self.logs.iter().filter(|(other, _)| *other != log).for_each(|(_, part)| total.add(*part));
        total
    }
}

fn larger(one: TenantUsage, other: TenantUsage) -> TenantUsage {
    TenantUsage {
        model_tokens: one.model_tokens.max(other.model_tokens),
        guest_cpu_nanos: one.guest_cpu_nanos.max(other.guest_cpu_nanos),
    }
}

/// Returns how much `one` is larger than `other`.
fn beyond(one: TenantUsage, other: TenantUsage) -> TenantUsage {
    TenantUsage {
        model_tokens: one.model_tokens.saturating_sub(other.model_tokens),
        guest_cpu_nanos: one.guest_cpu_nanos.saturating_sub(other.guest_cpu_nanos),
    }
}

/// Reads the entry of a key and its revision.
async fn current(bucket: &kv::Store, key: &str) -> Result<(UsageEntry, u64), ClusterError> {
    match bucket.entry(key).await {
        Ok(Some(found)) => Ok((read(&found)?, found.revision)),
        Ok(None) => Ok((UsageEntry::default(), 0)),
        Err(error) => Err(ClusterError::Unavailable(chain(&error))),
    }
}

fn read(found: &kv::Entry) -> Result<UsageEntry, ClusterError> {
    if found.operation != kv::Operation::Put {
        return Ok(UsageEntry::default());
    }
    serde_json::from_slice(&found.value).map_err(|error| {
        ClusterError::Unavailable(format!("the usage in key {} cannot be read: {error}", found.key))
    })
}

/// Raises the part of a log in an entry. Returns the entry and its revision.
async fn store(
    bucket: &kv::Store,
    key: &str,
    log: &str,
    usage: TenantUsage,
) -> Result<(UsageEntry, u64), ClusterError> {
    let mut tries = 0;
    loop {
        let (mut entry, revision) = current(bucket, key).await?;
        if !entry.raise(log, usage) {
            return Ok((entry, revision));
        }
        // Neither texts nor numbers fail to serialize.
        let value = serde_json::to_vec(&entry).map(Bytes::from).unwrap_or_default();
        match bucket.update(key, value, revision).await {
            Ok(revision) => return Ok((entry, revision)),
            Err(error) if is_wrong_last(&error) && tries < TRIES_MAX => tries += 1,
            Err(error) => return Err(ClusterError::Unavailable(chain(&error))),
        }
    }
}

/// What is known of a tenant's usage in a day.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// Revision of the newest entry that this worker has seen; 0 if there is none.
    revision: u64,
    /// Part of this worker in that entry.
    stored: TenantUsage,
    /// Usage in this worker's part that it has not counted itself: an earlier process with another disk has.
    base: TenantUsage,
}

struct Exchange<T> {
    bucket: kv::Store,
    own: String,
    tenants: T,
    /// Interval at which the usage is stored: that of heartbeats.
    interval: Duration,
    /// Usage by day and tenant that this worker had counted when it started.
    started: BTreeMap<(Day, i64), TenantUsage>,
    known: BTreeMap<(Day, i64), Known>,
    /// Whether the last requests had no answer.
    is_away: bool,
}

/// Sends all entries of a day, and later each change. Begins again when the watch ends.
async fn watch(bucket: kv::Store, day: Day, entries: mpsc::Sender<(i64, UsageEntry, u64)>) {
    loop {
        match bucket.watch_with_history(format!("*.{day}")).await {
            Ok(mut watch) => {
                while let Some(Ok(found)) = watch.next().await {
                    let tenant = found.key.split('.').next().and_then(|tenant| tenant.parse().ok());
                    let Some((tenant, entry)) = tenant.zip(read(&found).ok()) else {
                        tracing::warn!(key = found.key, "the usage of a tenant cannot be read");
                        continue;
                    };
                    if entries.send((tenant, entry, found.revision)).await.is_err() {
                        return;
                    }
                }
            }
            Err(error) => tracing::warn!(%error, "the usage of tenants cannot be watched; trying again"),
        }
        tokio::time::sleep(WATCH_PAUSE).await;
    }
}

impl<T: MeteredTenants> Exchange<T> {
    async fn run(mut self, mut day: Day, mut leaves: oneshot::Receiver<()>) {
        loop {
            let (sender, mut entries) = mpsc::channel(WATCHED_MAX);
            let _watching = AbortOnDropHandle::new(tokio::spawn(watch(self.bucket.clone(), day, sender)));
            let mut ticks = tokio::time::interval(self.interval);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    left = &mut leaves => {
                        if left.is_ok() {
                            self.store_all(day).await;
                        }
                        return;
                    }
                    Some((tenant, entry, revision)) = entries.recv() => self.note(day, tenant, &entry, revision),
                    _ = ticks.tick() => {
                        // The last usage of a day is stored on the next one.
                        self.store_all(day).await;
                        if self.tenants.today() != day {
                            break;
                        }
                    }
                }
            }
            day = self.tenants.today();
            self.known.retain(|(of, _), _| *of >= day);
            self.started.clear();
        }
    }

    /// Applies an entry, unless a newer one is known.
    fn note(&mut self, day: Day, tenant: i64, entry: &UsageEntry, revision: u64) {
        let part = entry.part(&self.own);
        let started = self.started.get(&(day, tenant)).copied().unwrap_or_default();
        // This process has not stored a part yet, so the part is that of earlier ones.
        let first = Known { revision, stored: part, base: beyond(part, started) };
        let known = self.known.entry((day, tenant)).or_insert(first);
        if revision < known.revision {
            return;
        }
        (known.revision, known.stored) = (revision, part);
        let mut elsewhere = entry.others(&self.own);
        elsewhere.add(known.base);
        self.tenants.set_elsewhere(tenant, day, elsewhere);
    }

    /// Stores the usage of a day that is not stored yet.
    async fn store_all(&mut self, day: Day) {
        let mut grown = Vec::new();
        for (tenant, usage) in self.tenants.usage(day).await {
            let mut part = usage;
            match self.known.get(&(day, tenant)) {
                Some(known) => {
                    part.add(known.base);
                    if larger(part, known.stored) != known.stored {
                        grown.push((tenant, part));
                    }
                }
                // Whether an earlier process has stored a part is not known before the entry is read.
                None if usage != TenantUsage::default() => match current(&self.bucket, &key(tenant, day))
                    .await
                {
                    Ok((entry, revision)) => {
                        self.note(day, tenant, &entry, revision);
                        part.add(self.known.get(&(day, tenant)).map(|known| known.base).unwrap_or_default());
                        grown.push((tenant, part));
                    }
                    Err(error) => return self.note_answer(Some(&error)),
                },
                None => {}
            }
        }
        let (bucket, own) = (self.bucket.clone(), self.own.clone());
        let mut writes = stream::iter(grown)
            .map(|(tenant, part)| {
                let (bucket, own) = (&bucket, &own);
                async move { (tenant, store(bucket, &key(tenant, day), own, part).await) }
            })
            .buffer_unordered(REQUESTS_MAX);
        while let Some((tenant, stored)) = writes.next().await {
            match stored {
                Ok((entry, revision)) => {
                    self.note(day, tenant, &entry, revision);
                    self.note_answer(None);
                }
                Err(error) => return self.note_answer(Some(&error)),
            }
        }
    }

    /// Logs the first request without an answer, and the first one with an answer after it.
    fn note_answer(&mut self, error: Option<&ClusterError>) {
        match error {
            Some(error) if !self.is_away => {
                tracing::warn!(%error, "the usage of tenants was not stored; trying again");
            }
            None if self.is_away => tracing::info!("the usage of tenants is stored again"),
            _ => {}
        }
        self.is_away = error.is_some();
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
        assert!(!entry.raise("w1", usage(0, 0)) && entry.logs.is_empty());
        assert!(entry.raise("w1", usage(5, 1)) && entry.raise("w2", usage(2, 9)));
        assert!(!entry.raise("w1", usage(4, 1)));
        assert!(entry.raise("w1", usage(4, 3)));
        assert_eq!((entry.part("w1"), entry.total()), (usage(5, 3), usage(7, 12)));
        assert_eq!((entry.others("w1"), entry.others("w3")), (usage(2, 9), usage(7, 12)));
    }
}
