//! Usage of tenants by day, of all workers together.
//!
//! A bucket has a key for each tenant, day and count of usage: `TENANT.YYYY-MM-DD.COUNT`. A worker stores its own parts with each
//! heartbeat if they have grown, and watches those of others for today. A part only grows, so a write that is repeated changes
//! nothing.
//!
//! A count is a database with a random name, which one process at a time uses. A worker that has lost its disk, and a process that
//! continues the log of another worker, begin a count of their own, and the parts of the former one stay.
//!
//! While NATS does not answer, a worker counts its own usage and what it last knew of the others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use async_nats::jetstream::kv;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{StreamExt, TryStreamExt, stream};
use rollout_catalog::{Day, TenantUsage};
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

use crate::claim::ClaimedLog;
use crate::connect::Cluster;
use crate::error::{ClusterError, chain, unavailable};
use crate::storage::Bucket;

/// Age at which the bucket drops entries: some more than the days that a catalog keeps.
const ENTRY_AGE_MAX: Duration = Duration::from_secs(402 * 24 * 3600);

/// Number of days before the start whose usage may not be stored yet.
const LATE_DAYS: usize = 7;

/// Maximum number of keys that are read or written at once.
const REQUESTS_MAX: usize = 16;

/// Maximum number of parts of a tenant's usage in a day whose size a worker remembers: several for each of the most workers that a
/// cluster can have.
const PARTS_MAX: usize = 1 << 14;

/// Pause before a watch that has ended is begun again.
const WATCH_PAUSE: Duration = Duration::from_secs(1);

/// The tenants of a worker, whose usage is counted.
pub trait MeteredTenants: Send + Sync + 'static {
    /// Returns today, by UTC.
    fn today(&self) -> Day;

    /// Returns the usage of all tenants in a day by this worker's count; nothing if it cannot be read now.
    fn usage(&self, day: Day) -> BoxFuture<'_, Option<Vec<(i64, TenantUsage)>>>;

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
    storing: AbortOnDropHandle<Result<(), ClusterError>>,
    _watching: AbortOnDropHandle<()>,
    time_max: Duration,
}

impl UsageExchange {
    /// Stores the last usage and ends the exchange.
    pub async fn end(self) -> Result<(), ClusterError> {
        let Self { leave, storing, time_max, .. } = self;
        let _ = leave.send(());
        match tokio::time::timeout(time_max, storing).await {
            Ok(ended) => ended.map_err(unavailable)?,
            Err(_) => Err(ClusterError::Unavailable("the servers did not answer".to_owned())),
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
    ///
    /// # Errors
    ///
    /// NATS does not answer, or a part cannot be read, so that the sum would be too small.
    pub async fn days(
        &self,
        tenant: i64,
        days: impl Iterator<Item = Day>,
        mut own: BTreeMap<Day, TenantUsage>,
    ) -> Result<BTreeMap<Day, TenantUsage>, ClusterError> {
        let (bucket, count) = (self.bucket.clone(), self.own.clone());
        let days: BTreeSet<Day> = days.collect();
        let read = async move {
            let found = bucket.stream.info_with_subjects(format!("{}{tenant}.*.*", bucket.prefix)).await;
            let subjects = found.map_err(|error| away(&error))?.map_ok(|(subject, _)| subject);
            let subjects: Vec<String> = subjects.try_collect().await.map_err(|error| away(&error))?;
            let keys = subjects.iter().filter_map(|subject| Key::read(subject.strip_prefix(&bucket.prefix)?));
            let wanted: Vec<Key> = keys.filter(|key| days.contains(&key.day) && key.count != count).collect();
            let mut parts = stream::iter(wanted)
                .map(|key| {
                    let bucket = &bucket;
                    async move { Ok::<_, ClusterError>((key.day, part(bucket, &key.write()).await?)) }
                })
                .buffer_unordered(REQUESTS_MAX);
            while let Some((day, usage)) = parts.try_next().await? {
                own.entry(day).or_default().add(usage);
            }
            drop(parts);
            own.retain(|_, usage| *usage != TenantUsage::default());
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
        let storing = AbortOnDropHandle::new(cluster.handle().spawn(storing.run(leaves)));
        let _watching = AbortOnDropHandle::new(cluster.handle().spawn(watching.run()));
        UsageExchange { leave, storing, _watching, time_max }
    }
}

/// A key of the bucket.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    tenant: i64,
    day: Day,
    count: String,
}

impl Key {
    fn read(key: &str) -> Option<Self> {
        let mut parts = key.splitn(3, '.');
        let (tenant, day) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some(Self { tenant, day, count: parts.next()?.to_owned() })
    }

    fn write(&self) -> String {
        format!("{}.{}.{}", self.tenant, self.day, self.count)
    }
}

fn larger(one: TenantUsage, other: TenantUsage) -> TenantUsage {
    TenantUsage {
        model_tokens: one.model_tokens.max(other.model_tokens),
        guest_cpu_nanos: one.guest_cpu_nanos.max(other.guest_cpu_nanos),
    }
}

fn away(error: &(impl std::error::Error + 'static)) -> ClusterError {
    ClusterError::Unavailable(chain(error))
}

/// Reads a part, which is nothing if it is not there.
async fn part(bucket: &kv::Store, key: &str) -> Result<TenantUsage, ClusterError> {
    let found = bucket.entry(key).await.map_err(|error| away(&error))?;
    Ok(found.as_ref().map(read).transpose()?.flatten().unwrap_or_default())
}

/// Returns the usage in an entry, unless the entry was removed.
fn read(found: &kv::Entry) -> Result<Option<TenantUsage>, ClusterError> {
    if found.operation != kv::Operation::Put {
        return Ok(None);
    }
    serde_json::from_slice(&found.value).map(Some).map_err(|error| ClusterError::Unreadable {
        bucket: found.bucket.clone(),
        key: found.key.clone(),
        reason: error.to_string(),
    })
}

/// Watches the usage of today at other workers.
struct Watching<T> {
    bucket: kv::Store,
    own: String,
    tenants: T,
    interval: Duration,
}

/// The usage of a day at other workers.
struct Elsewhere {
    day: Day,
    tenants: BTreeMap<i64, Parts>,
}

/// The usage of a tenant in a day at other workers, by count.
#[derive(Default)]
struct Parts {
    known: BTreeMap<String, TenantUsage>,
    sum: TenantUsage,
    /// Whether there are more parts than are remembered.
    has_others: bool,
}

impl Elsewhere {
    fn new(day: Day) -> Self {
        Self { day, tenants: BTreeMap::new() }
    }

    /// Replaces a part, and returns the sum of its tenant.
    fn replace(&mut self, tenant: i64, count: String, part: TenantUsage) -> TenantUsage {
        let parts = self.tenants.entry(tenant).or_default();
        if parts.known.len() < PARTS_MAX || parts.known.contains_key(&count) {
            let before = parts.known.insert(count, part).unwrap_or_default();
            parts.sum.model_tokens = parts.sum.model_tokens.saturating_sub(before.model_tokens);
            parts.sum.guest_cpu_nanos = parts.sum.guest_cpu_nanos.saturating_sub(before.guest_cpu_nanos);
        } else if !std::mem::replace(&mut parts.has_others, true) {
            tracing::error!(
                tenant,
                parts = PARTS_MAX,
                "the usage of a tenant today has too many parts; others are counted anew each time that they grow, so the tenant may be \
                 refused before its quota is reached. A worker begins a part each time that it starts without its disk"
            );
        }
        parts.sum.add(part);
        parts.sum
    }
}

impl<T: MeteredTenants> Watching<T> {
    /// Never returns.
    async fn run(self) {
        let mut is_away = false;
        let mut elsewhere = Elsewhere::new(self.tenants.today());
        loop {
            let today = self.tenants.today();
            if elsewhere.day != today {
                elsewhere = Elsewhere::new(today);
            }
            match self.bucket.watch_with_history(format!("*.{today}.*")).await {
                Ok(watch) => {
                    is_away = false;
                    self.follow(&mut elsewhere, watch).await;
                }
                Err(error) if !std::mem::replace(&mut is_away, true) => {
                    tracing::warn!(%error, "the usage at other workers cannot be watched; trying again");
                }
                Err(_) => {}
            }
            if self.tenants.today() == elsewhere.day {
                tokio::time::sleep(WATCH_PAUSE).await;
            }
        }
    }

    /// Applies changes until the watch or the day ends.
    async fn follow(&self, elsewhere: &mut Elsewhere, mut watch: kv::Watch) {
        let mut ticks = tokio::time::interval(self.interval);
        loop {
            tokio::select! {
                _ = ticks.tick() => if self.tenants.today() != elsewhere.day { return },
                found = watch.next() => match found {
                    Some(Ok(found)) => self.apply(elsewhere, &found),
                    _ => return,
                },
            }
        }
    }

    fn apply(&self, elsewhere: &mut Elsewhere, found: &kv::Entry) {
        let Some(key) = Key::read(&found.key) else { return };
        if key.count == self.own || key.day != elsewhere.day {
            return;
        }
        let part = match read(found) {
            Ok(Some(part)) => part,
            Ok(None) => return,
            Err(error) => {
                tracing::error!(%error, "what was known of this usage at another worker remains");
                return;
            }
        };
        let sum = elsewhere.replace(key.tenant, key.count, part);
        self.tenants.set_elsewhere(key.tenant, key.day, sum);
    }
}

/// Stores the usage at this worker.
struct Storing<T> {
    bucket: kv::Store,
    own: String,
    tenants: T,
    interval: Duration,
    /// Parts that are stored.
    stored: BTreeMap<Key, TenantUsage>,
    /// Whether the last usage was not stored.
    is_away: bool,
}

impl<T: MeteredTenants> Storing<T> {
    /// Returns whether everything was stored at the end.
    async fn run(mut self, mut leaves: oneshot::Receiver<()>) -> Result<(), ClusterError> {
        let mut last = self.tenants.today();
        // The last usage of a day is stored on the next one. An earlier process may have ended before it could store its usage.
        let mut days: BTreeSet<Day> = last.iter_days().rev().take(LATE_DAYS + 1).collect();
        let mut ticks = tokio::time::interval(self.interval);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let left = tokio::select! {
                biased;
                left = &mut leaves => Some(left),
                _ = ticks.tick() => None,
            };
            if matches!(left, Some(Err(_))) {
                return Ok(());
            }
            let today = self.tenants.today();
            days.insert(today);
            // This pass and the one before began after the end of such a day.
            let is_over = |day: &Day| *day < today.min(last);
            let stored = self.store_days(&mut days, is_over).await;
            last = today;
            self.stored.retain(|key, _| days.contains(&key.day));
            if left.is_some() {
                return stored;
            }
            self.note(stored.err());
        }
    }

    /// Stores the usage of these days that is not stored yet, and removes those that are over.
    async fn store_days(
        &mut self,
        days: &mut BTreeSet<Day>,
        is_over: impl Fn(&Day) -> bool,
    ) -> Result<(), ClusterError> {
        for day in days.clone().into_iter().rev() {
            let unread =
                || ClusterError::Unavailable(format!("the usage of {day} cannot be read from the catalog"));
            let usage = self.tenants.usage(day).await.ok_or_else(unread)?;
            self.store_day(day, usage).await?;
            if is_over(&day) {
                days.remove(&day);
            }
        }
        Ok(())
    }

    async fn store_day(&mut self, day: Day, usage: Vec<(i64, TenantUsage)>) -> Result<(), ClusterError> {
        let (bucket, count) = (self.bucket.clone(), self.own.clone());
        let keys =
            usage.into_iter().map(|(tenant, usage)| (Key { tenant, day, count: count.clone() }, usage));
        let parts = keys.map(|(key, usage)| (self.stored.get(&key).copied(), key, usage));
        let grown =
            parts.filter(|(stored, _, usage)| stored.is_none_or(|stored| larger(stored, *usage) != stored));
        let grown: Vec<_> = grown.collect();
        let mut writes = stream::iter(grown)
            .map(|(stored, key, usage)| {
                let bucket = &bucket;
                async move { store(bucket, key, stored, usage).await }
            })
            .buffer_unordered(REQUESTS_MAX);
        while let Some((key, part)) = writes.try_next().await? {
            self.stored.insert(key, part);
        }
        Ok(())
    }

    /// Logs the first failure, and the first success after it.
    fn note(&mut self, error: Option<ClusterError>) {
        let is_away = error.is_some();
        match error {
            Some(error) if !self.is_away => {
                tracing::warn!(%error, "the usage of tenants was not stored; trying again");
            }
            None if self.is_away => tracing::info!("the usage of tenants is stored again"),
            _ => {}
        }
        self.is_away = is_away;
    }
}

/// Stores a part, unless a larger one is stored. `stored` is what is known to be. Returns what is stored then.
async fn store(
    bucket: &kv::Store,
    key: Key,
    stored: Option<TenantUsage>,
    usage: TenantUsage,
) -> Result<(Key, TenantUsage), ClusterError> {
    let name = key.write();
    // An earlier process with this database may have stored more than the database has after a crash of the machine.
    let before = match stored {
        Some(before) => Some(before),
        None => match part(bucket, &name).await {
            Err(error @ ClusterError::Unreadable { .. }) => {
                tracing::error!(%error, "it is replaced by the usage that this worker knows");
                None
            }
            stored => Some(stored?),
        },
    };
    let part = larger(before.unwrap_or_default(), usage);
    if before != Some(part) {
        // Numbers do not fail to serialize.
        let value = serde_json::to_vec(&part).map(Bytes::from).unwrap_or_default();
        bucket.put(&name, value).await.map_err(|error| away(&error))?;
    }
    Ok((key, part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(model_tokens: u64, guest_cpu_nanos: u64) -> TenantUsage {
        TenantUsage { model_tokens, guest_cpu_nanos }
    }

    #[test]
    fn the_parts_of_a_tenant_are_summed_and_a_new_one_replaces_the_old_one() {
        let mut elsewhere = Elsewhere::new(Day::default());
        let mut replace = |tenant, count: &str, part| elsewhere.replace(tenant, count.to_owned(), part);
        assert_eq!(replace(1, "a", usage(5, 1)), usage(5, 1));
        assert_eq!(replace(2, "a", usage(7, 7)), usage(7, 7));
        assert_eq!(replace(1, "b", usage(2, 9)), usage(7, 10));
        assert_eq!(replace(1, "a", usage(6, 1)), usage(8, 10));
        assert_eq!(larger(usage(1, 9), usage(2, 3)), usage(2, 9));
    }

    #[test]
    fn parts_beyond_those_that_are_remembered_count_too() {
        let mut elsewhere = Elsewhere::new(Day::default());
        for count in 0..PARTS_MAX {
            elsewhere.replace(1, count.to_string(), usage(1, 0));
        }
        let known = PARTS_MAX as u64;
        assert_eq!(elsewhere.replace(1, "another".to_owned(), usage(1, 0)), usage(known + 1, 0));
        assert_eq!(elsewhere.replace(1, "another".to_owned(), usage(2, 0)), usage(known + 3, 0));
        assert_eq!(elsewhere.replace(1, "7".to_owned(), usage(3, 0)), usage(known + 5, 0));
        assert_eq!(elsewhere.tenants[&1].known.len(), PARTS_MAX);
        assert_eq!(elsewhere.replace(2, "another".to_owned(), usage(1, 0)), usage(1, 0));
    }

    #[test]
    fn a_key_is_read_as_it_was_written() {
        let key = Key { tenant: 7, day: "2026-11-29".parse().unwrap(), count: "ab01".to_owned() };
        assert_eq!(key.write(), "7.2026-11-29.ab01");
        assert_eq!(Key::read(&key.write()), Some(key));
        for other in ["", "7", "7.2026-11-29", "x.2026-11-29.a", "7.2026-13-29.a"] {
            assert_eq!(Key::read(other), None, "{other}");
        }
    }
}
