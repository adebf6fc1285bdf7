//! Write-behind of the last use of keys and of the usage of tenants.
//!
//! A process that is killed loses the usage since its last write, at most that of [`WRITE_EVERY`]. In return, no
//! rollout waits for the disk. No reply depends on these updates.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use chrono::{Days, NaiveDate};
use rusqlite::{Transaction, params};

use crate::error::{Abort, CatalogError, StorageError};
use crate::model::{KeyId, TenantId, Time};
use crate::pending::{PendingUpdates, TenantUsage, Used};
use crate::store::Store;
use crate::{Catalog, LIST_MAX};

/// Time between two writes of usage. A killed process loses at most the usage of that time.
const WRITE_EVERY: Duration = Duration::from_millis(50);

/// Interval at which the writer checks whether the last uses of keys are due, and at which it retries a failed write.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Interval between writes of the last use of keys.
const TOUCHES_EVERY: Duration = Duration::from_secs(60);

/// Number of days for which usage is stored.
const USAGE_DAYS_MAX: i64 = 400;

/// A day in UTC.
pub type Day = NaiveDate;

fn pending(store: &Store) -> MutexGuard<'_, PendingUpdates> {
    store.pending.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the number of days since 1970.
fn number(time: Time) -> i64 {
    time.timestamp().div_euclid(24 * 60 * 60)
}

fn day_number(day: Day) -> i64 {
    (day - Day::default()).num_days()
}

fn day_of(number: i64) -> Day {
    let days = Days::new(number.unsigned_abs());
    Day::default().checked_add_days(days).unwrap_or_default()
}

pub(crate) fn touch(store: &Store, key: KeyId) {
    let now = store.now().timestamp();
    pending(store).touched.insert(key, now);
}

/// Returns the last uses that are not written yet. Call it before reading the database: an update that has
/// left the memory by then is in the database.
pub(crate) fn unwritten_uses(store: &Store) -> HashMap<KeyId, i64> {
    pending(store).touched.clone()
}

pub(crate) fn forget_tenant(store: &Store, tenant: TenantId) {
    pending(store).usage.retain(|(_, owner), _| *owner != tenant);
}

impl Catalog {
    /// Adds to today's usage of a tenant. The sum is written within 50 ms.
    pub fn add_usage(&self, tenant: TenantId, usage: TenantUsage) {
        let today = number(self.0.store.now());
        let mut pending = pending(&self.0.store);
        let used = pending.usage.entry((today, tenant)).or_default();
        used.total.add(usage);
        used.written = false;
        pending.has_new_usage = true;
        drop(pending);
        self.0.store.pending_changed.notify_one();
    }

    /// Returns today and the tenant's usage of today. Reads nothing from the disk.
    pub fn usage_today(&self, tenant: TenantId) -> (Day, TenantUsage) {
        let today = number(self.0.store.now());
        let pending = pending(&self.0.store);
        let used = pending.usage.get(&(today, tenant)).copied().unwrap_or_default();
        (day_of(today), used.total)
    }

    /// Returns the usage of all tenants in a day.
    pub fn usage_of_all(&self, day: Day) -> Result<Vec<(TenantId, TenantUsage)>, CatalogError> {
        let (store, is_today, day) = (&self.0.store, day == self.today(), day_number(day));
        // Read before the database: a total that has left the memory by then is in the database.
        let unwritten: Vec<_> = {
            let pending = pending(store);
            let of_day = pending.usage.iter().filter(|((of, _), _)| *of == day);
            of_day.map(|((_, tenant), used)| (*tenant, used.total)).collect()
        };
        // The totals of today are all in memory.
        if is_today {
            return Ok(unwritten);
        }
        let select = "SELECT tenant, model_tokens, guest_cpu_nanos FROM usage WHERE day = ?1";
        let mut all = store.read(|transaction| {
            let mut statement = transaction.prepare(select)?;
            let rows = statement.query_map([day], |row| Ok((TenantId(row.get(0)?), used(row, 1)?)))?;
            Ok(rows.collect::<rusqlite::Result<BTreeMap<TenantId, TenantUsage>>>()?)
        })?;
        all.extend(unwritten);
        Ok(all.into_iter().collect())
    }

    /// Returns the random name of the count of usage in this database. It is lost with the usage.
    pub fn usage_count_name(&self) -> Result<String, CatalogError> {
        let select = "SELECT name FROM usage_count";
        self.0.store.read(|transaction| Ok(transaction.query_row(select, [], |row| row.get(0))?))
    }

    /// Returns today, by UTC.
    pub fn today(&self) -> Day {
        day_of(number(self.0.store.now()))
    }

    /// Returns the usage of a tenant in a day.
    pub fn usage(&self, tenant: TenantId, day: Day) -> Result<TenantUsage, CatalogError> {
        Ok(self.usage_since(tenant, day)?.into_iter().find(|(date, _)| *date == day).unwrap_or_default().1)
    }

    /// Returns the usage of a tenant since a day, the newest day first. Days without usage are left out.
    pub fn usage_since(&self, tenant: TenantId, day: Day) -> Result<Vec<(Day, TenantUsage)>, CatalogError> {
        let select = "SELECT day, model_tokens, guest_cpu_nanos FROM usage WHERE tenant = ?1 AND day >= ?2";
        let first = day_number(day);
        let mut days = self.0.store.read(|transaction| {
            let mut statement = transaction.prepare(select)?;
            let rows =
                statement.query_map(params![tenant.0, first], |row| Ok((row.get(0)?, used(row, 1)?)))?;
            Ok(rows.collect::<rusqlite::Result<BTreeMap<i64, TenantUsage>>>()?)
        })?;
        let pending = pending(&self.0.store);
        // The totals in memory cover the whole day.
        let ours = pending.usage.iter().filter(|((day, owner), _)| *owner == tenant && *day >= first);
        days.extend(ours.map(|((day, _), used)| (*day, used.total)));
        Ok(days.into_iter().rev().take(LIST_MAX as usize).map(|(day, usage)| (day_of(day), usage)).collect())
    }
}

fn used(row: &rusqlite::Row<'_>, column: usize) -> rusqlite::Result<TenantUsage> {
    let count = |column| Ok::<_, rusqlite::Error>(row.get::<_, i64>(column)?.max(0).unsigned_abs());
    Ok(TenantUsage { model_tokens: count(column)?, guest_cpu_nanos: count(column + 1)? })
}

/// Reads today's usage and deletes old usage.
pub(crate) fn load(store: &Store) -> Result<(), StorageError> {
    let today = number(store.now());
    let select = "SELECT day, tenant, model_tokens, guest_cpu_nanos FROM usage WHERE day >= ?1";
    let read = store.locked().write_own(|transaction| {
        transaction.execute("DELETE FROM usage WHERE day < ?1", [today - USAGE_DAYS_MAX])?;
        let mut statement = transaction.prepare(select)?;
        let rows = statement.query_map([today], |row| {
            let total = used(row, 2)?;
            Ok(((row.get(0)?, TenantId(row.get(1)?)), Used { total, written: true }))
        })?;
        Ok(rows.collect::<rusqlite::Result<BTreeMap<_, _>>>()?)
    });
    pending(store).usage = read.map_err(|error| storage(store, error))?;
    Ok(())
}

fn storage(store: &Store, error: CatalogError) -> StorageError {
    match error {
        CatalogError::Storage(error) => error,
        error => StorageError::new(store.database(), error),
    }
}

/// Writes the updates in memory. The last uses of keys wait for their interval unless `all` is set.
pub(crate) fn write(store: &Store, all: bool) -> Result<(), StorageError> {
    // Lock order: the database first, then the updates in memory.
    let mut locked = store.locked();
    let (touched, usage) = {
        let mut pending = pending(store);
        pending.has_new_usage = false;
        let due = all || pending.touches_written.is_none_or(|at| at.elapsed() >= TOUCHES_EVERY);
        let touched = if due { pending.touched.clone() } else { HashMap::new() };
        let unwritten = pending.usage.iter().filter(|(_, used)| !used.written);
        let usage: Vec<_> = unwritten.map(|(key, used)| (*key, used.total)).collect();
        (touched, usage)
    };
    if touched.is_empty() && usage.is_empty() {
        return Ok(());
    }
    let write = |transaction: &Transaction<'_>| write_all(transaction, &touched, &usage);
    // The kernel keeps the data that a killed process wrote. Only a crash of the machine may lose the last usage.
    let written = if all { locked.write_own(write) } else { locked.write_without_sync(write) };
    let today = number(store.now());
    let mut pending = pending(store);
    if let Err(error) = written {
        return Err(storage(store, error));
    }
    if !touched.is_empty() {
        // The written uses stayed in memory until the database had them. Later ones stay for the next write.
        pending.touched.retain(|key, at| touched.get(key) != Some(at));
        pending.touches_written = Some(Instant::now());
    }
    for (key, total) in usage {
        if let Some(used) = pending.usage.get_mut(&key) {
            used.written = used.total == total;
        }
    }
    pending.usage.retain(|(day, _), used| *day >= today || !used.written);
    Ok(())
}

fn write_all(
    transaction: &Transaction<'_>,
    touched: &HashMap<KeyId, i64>,
    usage: &[((i64, TenantId), TenantUsage)],
) -> Result<(), Abort> {
    let mut update = transaction.prepare("UPDATE keys SET last_used_at = ?2 WHERE id = ?1")?;
    for (key, at) in touched {
        update.execute(params![key.0, at])?;
    }
    // A deleted tenant has no row; its usage is skipped.
    let mut insert = transaction.prepare(
        "INSERT OR REPLACE INTO usage (tenant, day, model_tokens, guest_cpu_nanos)
         SELECT id, ?2, ?3, ?4 FROM tenants WHERE id = ?1",
    )?;
    for ((day, tenant), used) in usage {
        let saturate = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        insert.execute(params![
            tenant.0,
            day,
            saturate(used.model_tokens),
            saturate(used.guest_cpu_nanos)
        ])?;
    }
    Ok(())
}

/// Background thread that writes the updates. Dropping it writes the rest.
pub(crate) struct Writer {
    store: Arc<Store>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub(crate) fn start(store: Arc<Store>) -> Result<Self, StorageError> {
        let path = store.path.clone();
        let writing = Arc::clone(&store);
        let thread = std::thread::Builder::new().name("catalog".to_owned());
        let thread = thread.spawn(move || run(&writing)).map_err(crate::error::at(&path))?;
        Ok(Self { store, thread: Some(thread) })
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        pending(&self.store).is_closing = true;
        self.store.pending_changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // The thread has logged its own errors.
            let _ = thread.join();
        }
    }
}

/// Waits until there is new usage or the catalog is being closed, but no longer than `LOOK_EVERY`.
fn wait_for_usage(store: &Store) {
    let is_idle = |pending: &mut PendingUpdates| !pending.is_closing && !pending.has_new_usage;
    drop(store.pending_changed.wait_timeout_while(pending(store), LOOK_EVERY, is_idle));
}

/// Waits for this time, or until the catalog is being closed. Returns whether it is.
fn pause(store: &Store, time: Duration) -> bool {
    let waited =
        store.pending_changed.wait_timeout_while(pending(store), time, |pending| !pending.is_closing);
    waited.unwrap_or_else(PoisonError::into_inner).0.is_closing
}

fn run(store: &Store) {
    let mut is_closing = false;
    while !is_closing {
        wait_for_usage(store);
        let mut time = WRITE_EVERY;
        if let Err(error) = write(store, false) {
            let reason = std::error::Error::source(&error).map(ToString::to_string);
            tracing::error!(%error, reason, "cannot write usage and last uses of keys");
            time = LOOK_EVERY;
        }
        is_closing = pause(store, time);
    }
    if let Err(error) = write(store, true) {
        let reason = std::error::Error::source(&error).map(ToString::to_string);
        tracing::error!(%error, reason, "cannot write the last usage and last uses of keys");
    }
}
