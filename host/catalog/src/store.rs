//! The database and its lock.

use std::fs::{DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use chrono::DateTime;
use rusqlite::{Connection, OpenFlags, OptionalExtension, Row, Transaction, TransactionBehavior};
use rusqlite_migration::{Error as MigrationError, MigrationDefinitionError};
use rustix::fs::{FlockOperation, flock};

use crate::error::{Abort, AppendError, CatalogError, OpenError, ResourceKind, StorageError, at};
use crate::model::{TenantId, Time};
use crate::name::Name;
use crate::pending::PendingUpdates;
use crate::shared::{
    self, Applied, Chained, Change, ChangeKind, NotApplied, Position, Preparation, SharedLog, Snapshot,
};
use crate::{CatalogSettings, Clock, schema};
use rollout_wire::digest::Digest;

/// Maximum time for which a statement waits for another reader, such as a backup.
pub(crate) const BUSY_TIME_MAX: Duration = Duration::from_secs(10);

/// Maximum number of runs of a transaction while other processes change a shared catalog.
const RUNS_MAX: u32 = 50;

/// Function that carries out the effects of applied changes outside the database.
pub(crate) type Effects = dyn Fn(&mut Locked<'_>, &Applied) -> Result<(), CatalogError> + Send + Sync;

/// The database, its lock and the state that exists once per catalog.
pub(crate) struct Store {
    pub path: PathBuf,
    pub pending: Mutex<PendingUpdates>,
    /// Signalled when there is usage to write, and when the catalog is being closed.
    pub pending_changed: Condvar,
    /// The log and the components that several processes share, if the catalog is shared.
    pub shared: Option<Arc<dyn SharedLog>>,
    /// Set once, when the catalog is open.
    pub effects: OnceLock<Box<Effects>>,
    /// Effects of changes that were applied since the catalog's owner last requested them.
    pub applied: Mutex<Applied>,
    /// Effects of applied changes that are not carried out yet.
    owed: Mutex<Applied>,
    /// Sequence of the last change that this copy has.
    sequence: AtomicU64,
    /// The beginning of the log whose snapshot this process has read or written.
    pub beginning: AtomicU64,
    /// The last checkpoint that this process has seen, and the time when it saw it.
    pub checkpoint: Mutex<Option<(u64, Time)>>,
    clock: Clock,
    connection: Mutex<Connection>,
    _lock: File,
}

impl Store {
    pub(crate) fn open(settings: CatalogSettings) -> Result<Self, OpenError> {
        let path = settings.path;
        // Only this process has a reason to read the folder.
        DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(at(&path))?;
        let lock = lock(&path)?;
        let file = path.join("catalog.db");
        let mut connection = Connection::open(&file).map_err(at(&file))?;
        prepare(&connection).map_err(at(&file))?;
        schema::migrations().to_latest(&mut connection).map_err(|error| match error {
            MigrationError::MigrationDefinition(MigrationDefinitionError::DatabaseTooFarAhead) => {
                OpenError::Newer(path.clone())
            }
            error => at(&file)(error).into(),
        })?;
        sync_folder(&path)?;
        let sequence = position(&connection).map_err(at(&file))?.sequence;
        let is_copy = sequence > 0;
        match &settings.shared {
            None if is_copy => return Err(OpenError::Shared(path)),
            Some(_) if !is_copy && has_rows(&connection).map_err(at(&file))? => {
                return Err(OpenError::NotShared(path));
            }
            None => {}
            Some(_) => shared::install(&connection).map_err(at(&file))?,
        }
        let connection = Mutex::new(connection);
        let (pending, pending_changed, effects, applied, owed) = Default::default();
        let (clock, shared) = (settings.clock, settings.shared);
        let (sequence, beginning, checkpoint) =
            (AtomicU64::new(sequence), AtomicU64::default(), Mutex::default());
        Ok(Self {
            path,
            pending,
            pending_changed,
            shared,
            effects,
            applied,
            owed,
            sequence,
            beginning,
            checkpoint,
            clock,
            connection,
            _lock: lock,
        })
    }

    /// Returns the current time, truncated to seconds like every time in the catalog.
    pub(crate) fn now(&self) -> Time {
        DateTime::from_timestamp((self.clock)().timestamp(), 0).unwrap_or_default()
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.path.join("catalog.db")
    }

    /// Reads in one transaction.
    pub(crate) fn read<T>(
        &self,
        read: impl FnOnce(&Transaction<'_>) -> Result<T, Abort>,
    ) -> Result<T, CatalogError> {
        self.locked().read(read)
    }

    /// Changes the catalog in one transaction. The change is on disk, and in the shared log if there is one, when this
    /// function returns. With a shared log the work may run several times.
    pub(crate) fn write<T>(
        &self,
        change: impl FnMut(&Transaction<'_>) -> Result<T, Abort>,
    ) -> Result<T, CatalogError> {
        self.locked().write(change)
    }

    /// Applies the changes of other processes.
    pub(crate) fn catch_up(&self) -> Result<(), CatalogError> {
        let Some(log) = &self.shared else { return Ok(()) };
        loop {
            // The log is read without holding the lock.
            let position = self.locked().position()?;
            let changes = log.read(position.sequence)?;
            if changes.is_empty() {
                return self.locked().make_effects();
            }
            let prepared = self.needed_snapshot(&**log, position, &changes)?;
            let Preparation::Ready(snapshot) = prepared else { continue };
            self.locked().apply(snapshot.as_ref(), &changes)?;
        }
    }

    /// Returns the sequence of the last change that this copy has.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence.load(Ordering::Relaxed)
    }

    /// Records that this copy has a change.
    fn note_change(&self, sequence: u64, is_checkpoint: bool) {
        self.sequence.fetch_max(sequence, Ordering::Relaxed);
        if is_checkpoint {
            *self.checkpoint.lock().unwrap_or_else(PoisonError::into_inner) = Some((sequence, self.now()));
        }
    }

    /// Locks the database and the files against other writers until the guard is dropped. [`Locked::catch_up`], which
    /// [`Locked::write`] calls before its transaction, may unlock them for a while.
    pub(crate) fn locked(&self) -> Locked<'_> {
        Locked { store: self, connection: Some(self.lock_connection()) }
    }

    fn lock_connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Guard of the writer's lock.
pub(crate) struct Locked<'a> {
    store: &'a Store,
    /// `None` while a snapshot is downloaded.
    connection: Option<MutexGuard<'a, Connection>>,
}

impl<'a> Locked<'a> {
    /// Returns the connection. Locks it again if it was unlocked.
    fn connection(&mut self) -> &mut MutexGuard<'a, Connection> {
        let store = self.store;
        self.connection.get_or_insert_with(|| store.lock_connection())
    }

    pub(crate) fn read<T>(
        &mut self,
        read: impl FnOnce(&Transaction<'_>) -> Result<T, Abort>,
    ) -> Result<T, CatalogError> {
        self.transact(TransactionBehavior::Deferred, read)
    }

    pub(crate) fn write<T>(
        &mut self,
        change: impl FnMut(&Transaction<'_>) -> Result<T, Abort>,
    ) -> Result<T, CatalogError> {
        match self.store.shared.clone() {
            None => self.write_own(change),
            Some(log) => self.append(&*log, ChangeKind::Rows, change),
        }
    }

    /// Makes the last change of a log that begins with this sequence a checkpoint: appends one, unless the last change
    /// is one already, whose snapshot is missing. So a full log gets one checkpoint, however often its snapshot cannot
    /// be stored. Returns false if another process has just done that.
    pub(crate) fn end_with_checkpoint(&mut self, first: u64) -> Result<bool, CatalogError> {
        let store = self.store;
        let Some(log) = &store.shared else { return Ok(false) };
        self.catch_up(&**log)?;
        if store.is_snapshot_expected(first) {
            return Ok(false);
        }
        let position = self.position()?;
        if position.sequence > first && is_checkpoint(&**log, position)? {
            // The next try waits as after a new checkpoint.
            store.note_change(position.sequence, true);
            return Ok(true);
        }
        let mut is_expected = false;
        let appended = self.append(&**log, ChangeKind::Checkpoint, |_| {
            is_expected = store.is_snapshot_expected(first);
            if is_expected {
                return Err(CatalogError::Unavailable("another process stores a snapshot".to_owned()).into());
            }
            Ok(())
        });
        if is_expected { Ok(false) } else { appended.map(|()| true) }
    }

    /// Applies the changes of other processes. Unlocks the database and the files while a snapshot is downloaded, which may
    /// be large; afterwards the snapshot is applied only if it is still needed.
    pub(crate) fn catch_up(&mut self, log: &dyn SharedLog) -> Result<(), CatalogError> {
        self.catch_up_with(log, true)
    }

    fn catch_up_with(&mut self, log: &dyn SharedLog, may_unlock: bool) -> Result<(), CatalogError> {
        loop {
            let position = self.position()?;
            let changes = log.read(position.sequence)?;
            if changes.is_empty() {
                return Ok(());
            }
            if may_unlock && changes.first().is_some_and(|(first, _)| *first > position.sequence + 1) {
                self.connection = None;
            }
            let prepared = self.store.needed_snapshot(log, position, &changes)?;
            let Preparation::Ready(snapshot) = prepared else { continue };
            self.apply(snapshot.as_ref(), &changes)?;
        }
    }

    /// Appends a change to the shared log, and applies it here when the log has it. A checkpoint has no rows.
    fn append<T>(
        &mut self,
        log: &dyn SharedLog,
        kind: ChangeKind,
        mut change: impl FnMut(&Transaction<'_>) -> Result<T, Abort>,
    ) -> Result<T, CatalogError> {
        let is_checkpoint = kind == ChangeKind::Checkpoint;
        for run in 0..RUNS_MAX {
            // An earlier run may have made files whose rows are not there yet, so they stay locked. That this run needs a
            // snapshot is rare.
            self.catch_up_with(log, run == 0)?;
            let (mut is_behind, mut appended) = (false, None);
            let written = self.transact(TransactionBehavior::Immediate, |transaction| {
                shared::clear(transaction)?;
                let done = change(transaction)?;
                let rows = shared::rows(transaction)?;
                if rows.is_empty() && !is_checkpoint {
                    return Ok(done);
                }
                let position = position(transaction)?;
                let (bytes, digest) = Change { before: position.digest, rows }.encode();
                match log.append(position.sequence, &bytes, kind) {
                    Ok(sequence) => {
                        set_position(transaction, position.after(sequence, digest))?;
                        appended = Some(sequence);
                    }
                    Err(AppendError::Behind) => {
                        is_behind = true;
                        return Err(CatalogError::Unavailable("another process was faster".to_owned()).into());
                    }
                    Err(AppendError::Failed(error)) => return Err(CatalogError::from(error).into()),
                }
                Ok(done)
            });
            if !is_behind {
                if let Some(sequence) = appended.filter(|_| written.is_ok()) {
                    self.store.note_change(sequence, is_checkpoint);
                }
                return written;
            }
        }
        Err(CatalogError::Unavailable("other processes change it all the time".to_owned()))
    }

    /// Changes rows and columns that are not shared.
    pub(crate) fn write_own<T>(
        &mut self,
        change: impl FnOnce(&Transaction<'_>) -> Result<T, Abort>,
    ) -> Result<T, CatalogError> {
        let is_shared = self.store.shared.is_some();
        self.transact(TransactionBehavior::Immediate, |transaction| {
            let done = change(transaction)?;
            if is_shared {
                shared::clear(transaction)?;
            }
            Ok(done)
        })
    }

    pub(crate) fn position(&mut self) -> Result<Position, CatalogError> {
        self.read(|transaction| Ok(position(transaction)?))
    }

    /// Applies a snapshot, unless this copy already has its checkpoint.
    fn apply_snapshot(&mut self, snapshot: &Snapshot) -> Result<(), CatalogError> {
        let (store, checkpoint) = (self.store, snapshot.checkpoint());
        let applied = self.write_own(|transaction| {
            if checkpoint.sequence <= position(transaction)?.sequence {
                return Ok(None);
            }
            let applied = snapshot.apply(transaction).map_err(|error| store.snapshot_error(error))?;
            set_position(transaction, checkpoint)?;
            Ok(Some(applied))
        })?;
        if let Some(applied) = applied {
            tracing::info!(change = checkpoint.sequence, "a snapshot of the shared catalog was applied");
            self.note(checkpoint.sequence, true, &applied);
        }
        Ok(())
    }

    /// Records an applied change, and carries out its effects.
    fn note(&mut self, sequence: u64, is_checkpoint: bool, applied: &Applied) {
        self.store.note_change(sequence, is_checkpoint);
        self.store.owed.lock().unwrap_or_else(PoisonError::into_inner).add(applied.clone());
        self.store.applied.lock().unwrap_or_else(PoisonError::into_inner).add(applied.clone());
        // The change is applied. Effects that fail are retried later.
        if let Err(error) = self.make_effects() {
            tracing::error!(%error, sequence, "effects of a change of the shared catalog are missing");
        }
    }

    /// Applies a snapshot, and then changes of the shared log, in order. Changes that were applied before are skipped.
    fn apply(&mut self, snapshot: Option<&Snapshot>, changes: &[(u64, Vec<u8>)]) -> Result<(), CatalogError> {
        if let Some(snapshot) = snapshot {
            self.apply_snapshot(snapshot)?;
        }
        for (sequence, bytes) in changes {
            let damaged = |what: String| CatalogError::Damaged(format!("change {sequence}: {what}"));
            let Chained { change, digest } = Change::decode(bytes).map_err(damaged)?;
            let applied = self.write_own(|transaction| {
                let position = position(transaction)?;
                if *sequence <= position.sequence {
                    return Ok(None);
                }
                if change.before != position.digest {
                    let what = "it does not follow the last change of this copy; another log has its name"
                        .to_owned();
                    return Err(damaged(what).into());
                }
                let applied = shared::apply(transaction, &change.rows).map_err(|error| match error {
                    NotApplied::Sql(error) => Abort::Sql(error),
                    NotApplied::Unknown(what) => {
                        let what = format!("{what} is not of this version of the program; use a later one");
                        damaged(what).into()
                    }
                })?;
                set_position(transaction, position.after(*sequence, digest))?;
                Ok(Some(applied))
            })?;
            if let Some(applied) = applied {
                self.note(*sequence, change.rows.is_empty(), &applied);
            }
        }
        Ok(())
    }

    /// Carries out the pending effects of applied changes. Effects that fail stay pending.
    fn make_effects(&mut self) -> Result<(), CatalogError> {
        let store = self.store;
        let owed = || store.owed.lock().unwrap_or_else(PoisonError::into_inner);
        let now = std::mem::take(&mut *owed());
        // Without a function, the catalog is being opened, and everything is read and swept afterwards.
        let Some(effects) = store.effects.get().filter(|_| now != Applied::default()) else { return Ok(()) };
        effects(self, &now).inspect_err(|_| owed().add(now))
    }

    /// Changes data that is not shared, in one transaction that survives a crash of the process, but possibly not of
    /// the machine.
    pub(crate) fn write_without_sync<T>(
        &mut self,
        change: impl FnOnce(&Transaction<'_>) -> Result<T, Abort>,
    ) -> Result<T, CatalogError> {
        let store = self.store;
        let sql = |error| StorageError::new(store.database(), error);
        self.connection().pragma_update(None, "synchronous", "normal").map_err(sql)?;
        let written = self.write_own(change);
        self.connection().pragma_update(None, "synchronous", "full").map_err(sql)?;
        written
    }

    fn transact<T>(
        &mut self,
        behavior: TransactionBehavior,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, Abort>,
    ) -> Result<T, CatalogError> {
        let store = self.store;
        let sql = |error| CatalogError::from(StorageError::new(store.database(), error));
        let transaction = self.connection().transaction_with_behavior(behavior).map_err(sql)?;
        let done = work(&transaction).map_err(|stop| match stop {
            Abort::Sql(error) => sql(error),
            Abort::Catalog(error) => error,
        })?;
        transaction.commit().map_err(sql)?;
        Ok(done)
    }
}

/// Returns whether the last change that a copy has is a checkpoint.
fn is_checkpoint(log: &dyn SharedLog, last: Position) -> Result<bool, CatalogError> {
    let changes = log.read(last.sequence.saturating_sub(1))?;
    let Some((_, bytes)) = changes.first().filter(|(sequence, _)| *sequence == last.sequence) else {
        return Ok(false);
    };
    let damaged = |what: String| CatalogError::Damaged(format!("change {}: {what}", last.sequence));
    let Chained { change, digest } = Change::decode(bytes).map_err(damaged)?;
    Ok(change.rows.is_empty() && Some(digest) == last.digest)
}

/// Keeps all processes from opening a catalog until the lock is dropped.
#[derive(Debug)]
#[must_use]
pub struct CopyLock(#[expect(dead_code, reason = "closing the file unlocks it")] File);

/// Locks an existing folder, and checks that it may hold a copy of a shared catalog: it holds one already, or no
/// catalog, or a catalog without tenants and keys. Drop the lock before the catalog is opened.
///
/// # Errors
///
/// [`OpenError::NotShared`] if the folder has a catalog of its own, [`OpenError::Interrupted`] if the catalog was being shared, and
/// [`OpenError::Locked`] if a process has opened it.
pub fn lock_copy(folder: &Path) -> Result<CopyLock, OpenError> {
    let lock = lock(folder)?;
    let file = folder.join("catalog.db");
    if !file.try_exists().map_err(at(&file))? {
        return Ok(CopyLock(lock));
    }
    let flags = OpenFlags::default().difference(OpenFlags::SQLITE_OPEN_CREATE);
    let connection = Connection::open_with_flags(&file, flags).map_err(at(&file))?;
    if is_own(&connection).map_err(at(&file))? {
        return Err(OpenError::NotShared(folder.to_owned()));
    }
    if sharing_marker(folder).exists() {
        return Err(OpenError::Interrupted(folder.to_owned()));
    }
    Ok(CopyLock(lock))
}

/// Returns the path of the file that exists while the catalog in a folder is being shared.
pub(crate) fn sharing_marker(folder: &Path) -> PathBuf {
    folder.join("sharing")
}

/// Returns whether a database of any version is a copy of a shared catalog.
pub(crate) fn is_copy(connection: &Connection) -> rusqlite::Result<bool> {
    let select = "SELECT EXISTS (SELECT 1 FROM shared WHERE sequence > 0)";
    Ok(connection.table_exists(None, "shared")? && connection.query_row(select, [], |row| row.get(0))?)
}

/// Returns whether a database of any version has tenants or keys and is no copy of a shared one.
fn is_own(connection: &Connection) -> rusqlite::Result<bool> {
    connection.busy_timeout(BUSY_TIME_MAX)?;
    if is_copy(connection)? {
        return Ok(false);
    }
    for table in ["tenants", "keys"] {
        let select = format!("SELECT EXISTS (SELECT 1 FROM {table})");
        if connection.table_exists(None, table)? && connection.query_row(&select, [], |row| row.get(0))? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY_TIME_MAX)?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    // The log is synced with each transaction, so that a reported change survives a crash of the machine.
    connection.pragma_update(None, "synchronous", "full")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_update(None, "trusted_schema", false)
}

/// Returns the position of a copy.
pub(crate) fn position(connection: &Connection) -> rusqlite::Result<Position> {
    let read = |row: &Row<'_>| {
        let digest = |at: usize| {
            let text: Option<String> = row.get(at)?;
            text.map(|text| text.parse().map_err(|error| no_value(at, error))).transpose()
        };
        Ok(Position { sequence: row.get(0)?, digest: digest(1)?, origin: digest(2)? })
    };
    let found = connection.query_row("SELECT sequence, digest, origin FROM shared", [], read).optional()?;
    Ok(found.unwrap_or_default())
}

pub(crate) fn set_position(connection: &Connection, position: Position) -> rusqlite::Result<()> {
    let Position { sequence, digest, origin } = position;
    let upsert = "INSERT INTO shared (id, sequence, digest, origin) VALUES (1, ?1, ?2, ?3)
        ON CONFLICT (id) DO UPDATE SET sequence = excluded.sequence, digest = excluded.digest, origin = excluded.origin";
    let text = |digest: Option<Digest>| digest.map(|digest| digest.to_string());
    connection.execute(upsert, rusqlite::params![sequence, text(digest), text(origin)]).map(drop)
}

/// Returns whether the database has tenants or keys.
fn has_rows(connection: &Connection) -> rusqlite::Result<bool> {
    let select = "SELECT EXISTS (SELECT 1 FROM tenants) OR EXISTS (SELECT 1 FROM keys)";
    connection.query_row(select, [], |row| row.get(0))
}

pub(crate) fn lock(folder: &Path) -> Result<File, OpenError> {
    let path = folder.join("lock");
    let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(at(&path))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(OpenError::Locked(folder.to_owned())),
        Err(error) => Err(at(&path)(std::io::Error::from(error)).into()),
    }
}

/// Syncs a folder, so that the names in it survive a crash.
pub(crate) fn sync_folder(path: &Path) -> Result<(), StorageError> {
    File::open(path).and_then(|folder| folder.sync_all()).map_err(at(path))
}

/// Returns the error for a column whose value cannot be parsed.
pub(crate) fn no_value(
    column: usize,
    error: impl std::error::Error + Send + Sync + 'static,
) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, Box::new(error))
}

/// Parses the name in a column.
pub(crate) fn name_of(row: &Row<'_>, column: usize) -> rusqlite::Result<Name> {
    Name::new(row.get::<_, String>(column)?).map_err(|error| no_value(column, error))
}

/// Parses the JSON in a column.
pub(crate) fn parsed<T: serde::de::DeserializeOwned>(row: &Row<'_>, column: usize) -> rusqlite::Result<T> {
    serde_json::from_str(&row.get::<_, String>(column)?).map_err(|error| no_value(column, error))
}

/// Parses the JSON in a column that may be null.
pub(crate) fn optional<T: serde::de::DeserializeOwned>(
    row: &Row<'_>,
    column: usize,
) -> rusqlite::Result<Option<T>> {
    let text: Option<String> = row.get(column)?;
    text.map(|text| serde_json::from_str(&text).map_err(|error| no_value(column, error))).transpose()
}

/// Encodes a value as JSON for a column.
pub(crate) fn json<T: serde::Serialize>(value: &T) -> rusqlite::Result<String> {
    serde_json::to_string(value).map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))
}

/// Converts the seconds in a column to a time.
pub(crate) fn time(seconds: i64) -> Time {
    DateTime::from_timestamp(seconds, 0).unwrap_or_default()
}

/// Fails unless the tenant exists and is not being deleted.
pub(crate) fn require_tenant(transaction: &Transaction<'_>, tenant: TenantId) -> Result<(), Abort> {
    let found = transaction
        .query_row("SELECT 1 FROM tenants WHERE id = ?1 AND NOT deleting", [tenant.0], |_| Ok(()))
        .optional()?;
    found.ok_or_else(|| CatalogError::not_found(ResourceKind::Tenant, tenant).into())
}
