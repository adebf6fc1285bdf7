//! The database and its lock.

use std::fs::{DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::DateTime;
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior};
use rusqlite_migration::{Error as MigrationError, MigrationDefinitionError};
use rustix::fs::{FlockOperation, flock};

use crate::error::{CatalogError, OpenError, Stop, StorageError, What, at};
use crate::model::{TenantId, Time};
use crate::noted::Noted;
use crate::{Clock, Settings, schema};

/// How long a statement waits for somebody else who reads the database, who makes a copy of it for instance.
const BUSY_TIME_MAX: Duration = Duration::from_secs(10);

/// The database, and what there is one of in a catalog.
pub(crate) struct Store {
    pub path: PathBuf,
    pub noted: Mutex<Noted>,
    /// Signalled when there is usage to write, and when the catalog is being closed.
    pub noted_changed: Condvar,
    clock: Clock,
    connection: Mutex<Connection>,
    _lock: File,
}

impl Store {
    pub(crate) fn open(settings: Settings) -> Result<Self, OpenError> {
        let path = settings.path;
        // Nobody else has a reason to look into it.
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
        let (noted, noted_changed) = Default::default();
        Ok(Self { path, noted, noted_changed, clock: settings.clock, connection, _lock: lock })
    }

    /// The time, to the second, as all of the catalog is.
    pub(crate) fn now(&self) -> Time {
        DateTime::from_timestamp((self.clock)().timestamp(), 0).unwrap_or_default()
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.path.join("catalog.db")
    }

    /// Reads in one transaction.
    pub(crate) fn read<T>(
        &self,
        read: impl FnOnce(&Transaction<'_>) -> Result<T, Stop>,
    ) -> Result<T, CatalogError> {
        self.locked().read(read)
    }

    /// Changes the catalog in one transaction. What was changed is on the disk when this returns.
    pub(crate) fn write<T>(
        &self,
        change: impl FnOnce(&Transaction<'_>) -> Result<T, Stop>,
    ) -> Result<T, CatalogError> {
        self.locked().write(change)
    }

    /// Nobody else writes until what is returned is dropped, neither the database nor files.
    pub(crate) fn locked(&self) -> Locked<'_> {
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        Locked { store: self, connection }
    }
}

/// The one who writes.
pub(crate) struct Locked<'a> {
    store: &'a Store,
    connection: MutexGuard<'a, Connection>,
}

impl Locked<'_> {
    pub(crate) fn read<T>(
        &mut self,
        read: impl FnOnce(&Transaction<'_>) -> Result<T, Stop>,
    ) -> Result<T, CatalogError> {
        self.transact(TransactionBehavior::Deferred, read)
    }

    pub(crate) fn write<T>(
        &mut self,
        change: impl FnOnce(&Transaction<'_>) -> Result<T, Stop>,
    ) -> Result<T, CatalogError> {
        self.transact(TransactionBehavior::Immediate, change)
    }

    /// Changes the catalog in one transaction that outlives the process, but maybe not a crash of the machine.
    pub(crate) fn write_without_sync<T>(
        &mut self,
        change: impl FnOnce(&Transaction<'_>) -> Result<T, Stop>,
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
        work: impl FnOnce(&Transaction<'_>) -> Result<T, Stop>,
    ) -> Result<T, CatalogError> {
        let sql = |error| CatalogError::from(StorageError::new(self.store.database(), error));
        let transaction = self.connection.transaction_with_behavior(behavior).map_err(sql)?;
        let done = work(&transaction).map_err(|stop| match stop {
            Stop::Sql(error) => sql(error),
            Stop::Refused(error) => error,
        })?;
        transaction.commit().map_err(sql)?;
        Ok(done)
    }
}

fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY_TIME_MAX)?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    // The log is synced with each transaction: what was answered outlives the machine.
    connection.pragma_update(None, "synchronous", "full")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_update(None, "trusted_schema", false)
}

fn lock(folder: &Path) -> Result<File, OpenError> {
    let path = folder.join("lock");
    let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(at(&path))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(OpenError::Taken(folder.to_owned())),
        Err(error) => Err(at(&path)(std::io::Error::from(error)).into()),
    }
}

/// Brings names in a folder to the disk.
pub(crate) fn sync_folder(path: &Path) -> Result<(), StorageError> {
    File::open(path).and_then(|folder| folder.sync_all()).map_err(at(path))
}

/// Names what was in a column.
pub(crate) fn no_value(
    column: usize,
    error: impl std::error::Error + Send + Sync + 'static,
) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, Box::new(error))
}

/// A moment of a column.
pub(crate) fn time(seconds: i64) -> Time {
    DateTime::from_timestamp(seconds, 0).unwrap_or_default()
}

/// Whether the tenant is there, and not being deleted.
pub(crate) fn require_tenant(transaction: &Transaction<'_>, tenant: TenantId) -> Result<(), Stop> {
    let found = transaction
        .query_row("SELECT 1 FROM tenants WHERE id = ?1 AND NOT deleting", [tenant.0], |_| Ok(()))
        .optional()?;
    found.ok_or_else(|| CatalogError::not_found(What::Tenant, tenant).into())
}
