//! The database and its lock.

use std::fs::{DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::DateTime;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, TransactionBehavior};
use rusqlite_migration::{Error as MigrationError, MigrationDefinitionError};
use rustix::fs::{FlockOperation, flock};

use crate::error::{Abort, CatalogError, OpenError, ResourceKind, StorageError, at};
use crate::model::{TenantId, Time};
use crate::name::Name;
use crate::pending::PendingUpdates;
use crate::{CatalogSettings, Clock, schema};

/// Maximum time for which a statement waits for another reader, such as a backup.
const BUSY_TIME_MAX: Duration = Duration::from_secs(10);

/// The database, its lock and the state that exists once per catalog.
pub(crate) struct Store {
    pub path: PathBuf,
    pub pending: Mutex<PendingUpdates>,
    /// Signalled when there is usage to write, and when the catalog is being closed.
    pub pending_changed: Condvar,
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
        let connection = Mutex::new(connection);
        let (pending, pending_changed) = Default::default();
        Ok(Self { path, pending, pending_changed, clock: settings.clock, connection, _lock: lock })
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

    /// Changes the catalog in one transaction. The change is on disk when this function returns.
    pub(crate) fn write<T>(
        &self,
        change: impl FnOnce(&Transaction<'_>) -> Result<T, Abort>,
    ) -> Result<T, CatalogError> {
        self.locked().write(change)
    }

    /// Locks the database and the files against other writers until the guard is dropped.
    pub(crate) fn locked(&self) -> Locked<'_> {
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        Locked { store: self, connection }
    }
}

/// Guard of the writer's lock.
pub(crate) struct Locked<'a> {
    store: &'a Store,
    connection: MutexGuard<'a, Connection>,
}

impl Locked<'_> {
    pub(crate) fn read<T>(
        &mut self,
        read: impl FnOnce(&Transaction<'_>) -> Result<T, Abort>,
    ) -> Result<T, CatalogError> {
        self.transact(TransactionBehavior::Deferred, read)
    }

    pub(crate) fn write<T>(
        &mut self,
        change: impl FnOnce(&Transaction<'_>) -> Result<T, Abort>,
    ) -> Result<T, CatalogError> {
        self.transact(TransactionBehavior::Immediate, change)
    }

    /// Changes the catalog in one transaction, which survives a crash of the process, but possibly not of the machine.
    pub(crate) fn write_without_sync<T>(
        &mut self,
        change: impl FnOnce(&Transaction<'_>) -> Result<T, Abort>,
    ) -> Result<T, CatalogError> {
        let sql = |error| StorageError::new(self.store.database(), error);
        self.connection.pragma_update(None, "synchronous", "normal").map_err(sql)?;
        let written = self.write(change);
        let sql = |error| StorageError::new(self.store.database(), error);
        self.connection.pragma_update(None, "synchronous", "full").map_err(sql)?;
        written
    }

    fn transact<T>(
        &mut self,
        behavior: TransactionBehavior,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, Abort>,
    ) -> Result<T, CatalogError> {
        let sql = |error| CatalogError::from(StorageError::new(self.store.database(), error));
        let transaction = self.connection.transaction_with_behavior(behavior).map_err(sql)?;
        let done = work(&transaction).map_err(|stop| match stop {
            Abort::Sql(error) => sql(error),
            Abort::Catalog(error) => error,
        })?;
        transaction.commit().map_err(sql)?;
        Ok(done)
    }
}

fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY_TIME_MAX)?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    // The log is synced with each transaction, so that a reported change survives a crash of the machine.
    connection.pragma_update(None, "synchronous", "full")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_update(None, "trusted_schema", false)
}

fn lock(folder: &Path) -> Result<File, OpenError> {
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
