//! Cuts the log of a shared catalog, and finds the snapshot for a copy that needs changes that were cut off.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use rusqlite::{Connection, OpenFlags};

use crate::components::new_part;
use crate::error::{CatalogError, StorageError, at};
use crate::shared::{self, Chained, Change, Position, Preparation, SharedLog, Snapshot, SnapshotError};
use crate::store::{BUSY_TIME_MAX, Store, position};

/// Time in seconds after which a process cuts the log if the one that appended a checkpoint has stored no snapshot.
const SNAPSHOT_SECS_MAX: i64 = 60;

impl Store {
    /// Fetches the snapshot that a copy needs before it applies changes that do not follow its last one.
    pub(crate) fn needed_snapshot(
        &self,
        log: &dyn SharedLog,
        position: Position,
        changes: &[(u64, Vec<u8>)],
    ) -> Result<Preparation, CatalogError> {
        let Some((first, bytes)) = changes.first().filter(|(first, _)| *first > position.sequence + 1) else {
            return Ok(Preparation::Ready(None));
        };
        let damaged = |what: String| {
            CatalogError::Damaged(format!(
                "its log begins with change {first}, this copy has change {}, and {what}; start a worker whose copy has \
                 change {} or a later one, which repairs the log, or else restore its stream and the store of \
                 components from a backup",
                position.sequence,
                first - 1
            ))
        };
        let Chained { change, digest } = Change::decode(bytes).map_err(damaged)?;
        if !change.rows.is_empty() {
            return Err(damaged("the changes between are missing".to_owned()));
        }
        let fetched = self.fetch_snapshot(log, *first);
        let snapshot = fetched.map_err(|error| match error {
            CatalogError::Damaged(what) => damaged(what),
            error => error,
        })?;
        let Some(snapshot) = snapshot else {
            // Another process may have replaced the snapshot by a later one.
            let again = log.read(position.sequence)?;
            if again.first().is_some_and(|(now, _)| now != first) {
                return Ok(Preparation::ReadAgain);
            }
            return Err(damaged("the snapshot of the change is missing".to_owned()));
        };
        let found = snapshot.checkpoint();
        if (found.sequence, found.digest) != (*first, Some(digest)) {
            return Err(damaged("the snapshot of the change is that of another change".to_owned()));
        }
        if position.origin.zip(found.origin).is_some_and(|(own, of_log)| own != of_log) {
            let what = "the log does not begin like the log of this copy; another log has its name";
            return Err(CatalogError::Damaged(what.to_owned()));
        }
        self.beginning.store(*first, Ordering::Relaxed);
        Ok(Preparation::Ready(Some(snapshot)))
    }

    /// Fetches the snapshot of a checkpoint, and checks everything that can be checked without the log. Returns
    /// `None` if there is no snapshot.
    fn fetch_snapshot(&self, log: &dyn SharedLog, checkpoint: u64) -> Result<Option<Snapshot>, CatalogError> {
        let part = TemporaryFile::in_catalog(&self.path)?;
        if !log.fetch_snapshot(checkpoint, &part.0)? {
            return Ok(None);
        }
        Snapshot::open(&part.0).map(Some).map_err(|error| self.snapshot_error(error))
    }

    /// Returns whether a new copy can read the log, which begins with this change.
    fn is_whole(&self, log: &dyn SharedLog, first: u64) -> Result<bool, CatalogError> {
        if first <= 1 {
            return Ok(true);
        }
        if self.beginning.load(Ordering::Relaxed) == first {
            return Ok(log.has_snapshot(first)?);
        }
        let is_whole = match self.fetch_snapshot(log, first) {
            Ok(snapshot) => snapshot.is_some_and(|snapshot| snapshot.checkpoint().sequence == first),
            Err(CatalogError::Damaged(_)) => false,
            Err(error) => return Err(error),
        };
        if is_whole {
            self.beginning.store(first, Ordering::Relaxed);
        }
        Ok(is_whole)
    }

    pub(crate) fn snapshot_error(&self, error: SnapshotError) -> CatalogError {
        match error {
            SnapshotError::Sql(error) => StorageError::new(self.database(), error).into(),
            SnapshotError::Io(error) => StorageError::new(&self.path, error).into(),
            SnapshotError::Damaged(what) => {
                CatalogError::Damaged(format!("the snapshot of the change is damaged: {what}"))
            }
            SnapshotError::Unknown(what) => CatalogError::Damaged(format!(
                "the snapshot of the change is not of this version of the program, use a later one: {what}"
            )),
        }
    }

    /// Cuts the shared log if it is long or its beginning is damaged: appends a checkpoint, stores a snapshot of this
    /// copy at the checkpoint, and removes the changes before it. Returns whether the log was cut. To be called after
    /// [`Self::catch_up`].
    pub(crate) fn shorten_log(&self) -> Result<bool, CatalogError> {
        let Some(log) = &self.shared else { return Ok(false) };
        let extent = log.extent();
        let is_whole = self.is_whole(&**log, extent.first)?;
        if is_whole && !extent.is_long {
            return Ok(false);
        }
        self.cut_log(&**log, is_whole)
    }

    /// Cuts the shared log, whatever its length. Returns false if another process has just done that. To be called after
    /// [`Self::catch_up`].
    pub(crate) fn cut_log(&self, log: &dyn SharedLog, is_whole: bool) -> Result<bool, CatalogError> {
        let first = log.extent().first;
        let mut locked = self.locked();
        if !locked.end_with_checkpoint(first)? {
            return Ok(false);
        }
        // Logged only now: if the checkpoint cannot be appended, another process may just have cut the log.
        if !is_whole {
            tracing::error!(
                change = first,
                "the log of the shared catalog has lost the snapshot of its beginning; storing a new one"
            );
        }
        let checkpoint = locked.position()?;
        let file = self.database();
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut connection = Connection::open_with_flags(&file, flags).map_err(at(&file))?;
        connection.busy_timeout(BUSY_TIME_MAX).map_err(at(&file))?;
        let transaction = connection.transaction().map_err(at(&file))?;
        // From the first statement on, the transaction reads the rows as they are now.
        let read = position(&transaction).map_err(at(&file))?;
        drop(locked);
        debug_assert_eq!(read, checkpoint, "the lock was held");
        let part = TemporaryFile::in_catalog(&self.path)?;
        let to = File::create(&part.0).map_err(at(&part.0))?;
        shared::write_snapshot(&transaction, checkpoint, to).map_err(|error| self.snapshot_error(error))?;
        drop(transaction);
        log.put_snapshot(checkpoint.sequence, &part.0)?;
        log.cut(checkpoint.sequence)?;
        self.beginning.store(checkpoint.sequence, Ordering::Relaxed);
        tracing::info!(change = checkpoint.sequence, "the log of the shared catalog was cut");
        Ok(true)
    }

    /// Returns whether another process may be storing the snapshot of a checkpoint of a log that begins with this sequence.
    pub(crate) fn is_snapshot_expected(&self, first: u64) -> bool {
        let checkpoint = *self.checkpoint.lock().unwrap_or_else(PoisonError::into_inner);
        checkpoint.is_some_and(|(sequence, seen)| {
            // The clock may be set back.
            first < sequence && (0..SNAPSHOT_SECS_MAX).contains(&(self.now() - seen).num_seconds())
        })
    }
}

/// A file that is removed when this is dropped, and by the next start if this process is killed.
struct TemporaryFile(PathBuf);

impl TemporaryFile {
    fn in_catalog(catalog: &Path) -> Result<Self, StorageError> {
        let path = new_part(catalog);
        // A new copy has no folder yet.
        let folder = path.parent().unwrap_or(catalog);
        std::fs::create_dir_all(folder).map_err(at(folder))?;
        Ok(Self(path))
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // If it fails, the next start tries again.
        let _ = std::fs::remove_file(&self.0);
    }
}
