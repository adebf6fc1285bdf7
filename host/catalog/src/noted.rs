//! What is noted in memory and written now and then: when keys were last used, and what tenants used.
//!
//! A process that is killed loses what was noted in the last [`WRITE_EVERY`]. That is the price of not
//! waiting for the disk at each rollout; nobody was answered by it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use chrono::{Days, NaiveDate};
use rusqlite::{Transaction, params};

use crate::error::{CatalogError, Stop, StorageError};
use crate::keys::{KeyId, KeyInfo};
use crate::model::{TenantId, Time};
use crate::store::{Store, time};
use crate::{Catalog, LIST_MAX};

/// Time between two writes of usage. A kill loses at most what was used in that time.
const WRITE_EVERY: Duration = Duration::from_millis(50);

/// Time between two looks for last uses of keys that are due, and between two attempts of a write that failed.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How often the last uses of keys are written.
const TOUCHES_EVERY: Duration = Duration::from_secs(60);

/// How long usage is kept, in days.
const DAYS_KEPT: i64 = 400;

/// A day, as UTC has them.
pub type Day = NaiveDate;

/// What a tenant used in a day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Usage {
    /// Tokens of models, prompts and completions together.
    pub model_tokens: u64,
    /// CPU time of guests.
    pub guest_cpu_nanos: u64,
}

impl Usage {
    fn add(&mut self, more: Self) {
        self.model_tokens = self.model_tokens.saturating_add(more.model_tokens);
        self.guest_cpu_nanos = self.guest_cpu_nanos.saturating_add(more.guest_cpu_nanos);
    }
}

/// What is noted.
#[derive(Default)]
pub(crate) struct Noted {
    /// When keys were last used, where that is not written yet.
    touched: HashMap<KeyId, i64>,
    touches_written: Option<Instant>,
    /// What was used in a day in all, of today and of days that are not written yet.
    usage: BTreeMap<(i64, TenantId), Used>,
    /// Whether usage was added since the last write began.
    has_new_usage: bool,
    /// Whether the catalog is being closed.
    is_closing: bool,
}

#[derive(Clone, Copy, Default)]
struct Used {
    total: Usage,
    written: bool,
}

fn noted(store: &Store) -> MutexGuard<'_, Noted> {
    store.noted.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number of a day, from 1970.
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
    noted(store).touched.insert(key, now);
}

/// The last uses that are not written yet. To be asked for before the database is read: what is not here any more is
/// there then.
pub(crate) fn touches(store: &Store) -> HashMap<KeyId, i64> {
    noted(store).touched.clone()
}

pub(crate) fn add_touches(touches: &HashMap<KeyId, i64>, keys: &mut [KeyInfo]) {
    for key in keys {
        let touched = touches.get(&key.id).copied().map(time);
        key.last_used_at = key.last_used_at.max(touched);
    }
}

pub(crate) fn forget_tenant(store: &Store, tenant: TenantId) {
    noted(store).usage.retain(|(_, of), _| *of != tenant);
}

impl Catalog {
    /// Adds to what a tenant used today. It is written within 50 ms.
    pub fn add_usage(&self, tenant: TenantId, usage: Usage) {
        let today = number(self.0.store.now());
        let mut noted = noted(&self.0.store);
        let used = noted.usage.entry((today, tenant)).or_default();
        used.total.add(usage);
        used.written = false;
        noted.has_new_usage = true;
        drop(noted);
        self.0.store.noted_changed.notify_one();
    }

    /// What a tenant used today, and which day that is. Nothing is read from the disk.
    pub fn usage_today(&self, tenant: TenantId) -> (Day, Usage) {
        let today = number(self.0.store.now());
        let noted = noted(&self.0.store);
        let used = noted.usage.get(&(today, tenant)).copied().unwrap_or_default();
        (day_of(today), used.total)
    }

    /// What a tenant used in a day.
    pub fn usage(&self, tenant: TenantId, day: Day) -> Result<Usage, CatalogError> {
        Ok(self.usage_since(tenant, day)?.into_iter().find(|(of, _)| *of == day).unwrap_or_default().1)
    }

    /// What a tenant used from this day on, the newest day first; days without use are not listed.
    pub fn usage_since(&self, tenant: TenantId, day: Day) -> Result<Vec<(Day, Usage)>, CatalogError> {
        let select = "SELECT day, model_tokens, guest_cpu_nanos FROM usage WHERE tenant = ?1 AND day >= ?2";
        let first = day_number(day);
        let mut days = self.0.store.read(|transaction| {
            let mut statement = transaction.prepare(select)?;
            let rows =
                statement.query_map(params![tenant.0, first], |row| Ok((row.get(0)?, used(row, 1)?)))?;
            Ok(rows.collect::<rusqlite::Result<BTreeMap<i64, Usage>>>()?)
        })?;
        let noted = noted(&self.0.store);
        // What is in memory is the whole day's.
        let ours = noted.usage.iter().filter(|((day, of), _)| *of == tenant && *day >= first);
        days.extend(ours.map(|((day, _), used)| (*day, used.total)));
        Ok(days.into_iter().rev().take(LIST_MAX as usize).map(|(day, usage)| (day_of(day), usage)).collect())
    }
}

fn used(row: &rusqlite::Row<'_>, column: usize) -> rusqlite::Result<Usage> {
    let of = |column| Ok::<_, rusqlite::Error>(row.get::<_, i64>(column)?.max(0).unsigned_abs());
    Ok(Usage { model_tokens: of(column)?, guest_cpu_nanos: of(column + 1)? })
}

/// Reads what was used today, and removes what was used long ago.
pub(crate) fn load(store: &Store) -> Result<(), StorageError> {
    let today = number(store.now());
    let select = "SELECT day, tenant, model_tokens, guest_cpu_nanos FROM usage WHERE day >= ?1";
    let read = store.write(|transaction| {
        transaction.execute("DELETE FROM usage WHERE day < ?1", [today - DAYS_KEPT])?;
        let mut statement = transaction.prepare(select)?;
        let rows = statement.query_map([today], |row| {
            let total = used(row, 2)?;
            Ok(((row.get(0)?, TenantId(row.get(1)?)), Used { total, written: true }))
        })?;
        Ok(rows.collect::<rusqlite::Result<BTreeMap<_, _>>>()?)
    });
    noted(store).usage = read.map_err(|error| storage(store, error))?;
    Ok(())
}

fn storage(store: &Store, error: CatalogError) -> StorageError {
    match error {
        CatalogError::Storage(error) => error,
        error => StorageError::new(store.database(), error),
    }
}

/// Writes what is noted. The last uses of keys wait for their time, unless `all` is to be written.
pub(crate) fn write(store: &Store, all: bool) -> Result<(), StorageError> {
    // Whoever writes to the database has its lock first and then this one, never the other way around.
    let mut locked = store.locked();
    let (touched, usage) = {
        let mut noted = noted(store);
        noted.has_new_usage = false;
        let due = all || noted.touches_written.is_none_or(|at| at.elapsed() >= TOUCHES_EVERY);
        let touched = if due { noted.touched.clone() } else { HashMap::new() };
        let unwritten = noted.usage.iter().filter(|(_, used)| !used.written);
        let usage: Vec<_> = unwritten.map(|(of, used)| (*of, used.total)).collect();
        (touched, usage)
    };
    if touched.is_empty() && usage.is_empty() {
        return Ok(());
    }
    let write = |transaction: &Transaction<'_>| write_all(transaction, &touched, &usage);
    // A process that is killed leaves what it wrote to the kernel. Only a machine that stops may lose the last usage.
    let written = if all { locked.write(write) } else { locked.write_without_sync(write) };
    let today = number(store.now());
    let mut noted = noted(store);
    if let Err(error) = written {
        return Err(storage(store, error));
    }
    if !touched.is_empty() {
        // They were known here for as long as they were not to be read there.
        noted.touched.retain(|key, at| touched.get(key) != Some(at));
        noted.touches_written = Some(Instant::now());
    }
    for (of, total) in usage {
        if let Some(used) = noted.usage.get_mut(&of) {
            used.written = used.total == total;
        }
    }
    noted.usage.retain(|(day, _), used| *day >= today || !used.written);
    Ok(())
}

fn write_all(
    transaction: &Transaction<'_>,
    touched: &HashMap<KeyId, i64>,
    usage: &[((i64, TenantId), Usage)],
) -> Result<(), Stop> {
    let mut update = transaction.prepare("UPDATE keys SET last_used_at = ?2 WHERE id = ?1")?;
    for (key, at) in touched {
        update.execute(params![key.0, at])?;
    }
    // A tenant that is gone has no row, and nothing else fails because of it.
    let mut insert = transaction.prepare(
        "INSERT OR REPLACE INTO usage (tenant, day, model_tokens, guest_cpu_nanos)
         SELECT id, ?2, ?3, ?4 FROM tenants WHERE id = ?1",
    )?;
    for ((day, tenant), used) in usage {
        let of = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        insert.execute(params![tenant.0, day, of(used.model_tokens), of(used.guest_cpu_nanos)])?;
    }
    Ok(())
}

/// The thread that writes. Dropping it writes the rest.
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
        noted(&self.store).is_closing = true;
        self.store.noted_changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // The thread logs its own errors.
            let _ = thread.join();
        }
    }
}

/// Waits until there is new usage or the catalog is being closed, but no longer than `LOOK_EVERY`.
fn wait_for_usage(store: &Store) {
    let is_idle = |noted: &mut Noted| !noted.is_closing && !noted.has_new_usage;
    drop(store.noted_changed.wait_timeout_while(noted(store), LOOK_EVERY, is_idle));
}

/// Waits for this time, or until the catalog is being closed. Returns whether it is.
fn pause(store: &Store, time: Duration) -> bool {
    let waited = store.noted_changed.wait_timeout_while(noted(store), time, |noted| !noted.is_closing);
    waited.unwrap_or_else(PoisonError::into_inner).0.is_closing
}

fn run(store: &Store) {
    let mut is_closing = false;
    while !is_closing {
        wait_for_usage(store);
        let mut time = WRITE_EVERY;
        if let Err(error) = write(store, false) {
            let reason = std::error::Error::source(&error).map(ToString::to_string);
            tracing::error!(%error, reason, "usage and last uses of keys are not written");
            time = LOOK_EVERY;
        }
        is_closing = pause(store, time);
    }
    if let Err(error) = write(store, true) {
        let reason = std::error::Error::source(&error).map(ToString::to_string);
        tracing::error!(%error, reason, "the last usage and last uses of keys are not written");
    }
}
