//! Component files, addressed by digest, and their owners.
//!
//! Two tenants that upload the same bytes share a file without knowing it: each uploads and is charged for
//! all of the bytes, and each can refer to the component only through a row of its own.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rollout_wire::digest::Digest;
use rollout_wire::quota::{Quota, Quotas};
use rusqlite::{OptionalExtension, Row, Transaction, params};
use sha2::{Digest as _, Sha256};

use crate::Catalog;
use crate::error::{Abort, CatalogError, QuotaExceeded, StorageError, at};
use crate::model::TenantId;
use crate::shared::SharedLog;
use crate::store::{Locked, Store, no_value, parsed, require_tenant, sync_folder};

/// Time for which an uploaded component waits for a deployment that refers to it, in seconds.
const UNUSED_SECS_MAX: i64 = 60 * 60;

/// A component of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Component {
    /// SHA-256 of the file.
    pub digest: Digest,
    /// Size of the file.
    pub bytes: u64,
}

/// An upload in progress. Dropping it before [`finish`](Self::finish) removes the bytes that were written.
pub struct ComponentUpload {
    catalog: Catalog,
    tenant: TenantId,
    expected: Digest,
    file: File,
    part: PathBuf,
    hash: Sha256,
    bytes: u64,
    bytes_max: u64,
    quota: ComponentBytes,
}

/// The quota `component-bytes` of a tenant and the part in use.
#[derive(Clone, Copy)]
struct ComponentBytes {
    limit: Option<u64>,
    used: u64,
}

impl ComponentBytes {
    fn check(self, requested: u64) -> Result<(), QuotaExceeded> {
        let Self { limit, used } = self;
        match limit {
            Some(limit) if used.saturating_add(requested) > limit => {
                Err(QuotaExceeded { quota: Quota::ComponentBytes, limit, used, requested })
            }
            _ => Ok(()),
        }
    }
}

/// Number of the next file that is written.
static PART: AtomicU64 = AtomicU64::new(0);

/// Returns the path of a new file that has no owner yet.
pub(crate) fn new_part(catalog: &Path) -> PathBuf {
    folder(catalog).join(format!("{}.part", PART.fetch_add(1, Ordering::Relaxed)))
}

/// Fetches a component that was uploaded to another process, and checks its digest.
fn fetch(store: &Store, log: &dyn SharedLog, digest: Digest, to: &Path) -> Result<(), CatalogError> {
    let part = new_part(&store.path);
    let fetched = log.fetch_component(digest, &part).map_err(CatalogError::from).and_then(|()| {
        open_checked(&part, digest)?.sync_all().map_err(at(&part))?;
        Ok(put(&part, to)?)
    });
    if fetched.is_err() {
        remove(&part)?;
    }
    fetched
}

/// Opens the file of a component and checks its digest.
pub(crate) fn open_checked(path: &Path, digest: Digest) -> Result<File, CatalogError> {
    let mut file = File::open(path).map_err(at(path))?;
    let found = digest_of(&mut file).map_err(at(path))?;
    if found != digest {
        return Err(CatalogError::Damaged(format!("the component {digest} has digest {found}")));
    }
    Ok(file)
}

/// Returns the digest of a file's contents.
fn digest_of(file: &mut File) -> io::Result<Digest> {
    let (mut hash, mut piece) = (Sha256::new(), vec![0; 64 << 10]);
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(Digest::from_bytes(hash.finalize().into())),
            bytes => hash.update(&piece[..bytes]),
        }
    }
}

impl Catalog {
    /// Begins the upload of the component with digest `expected`. The upload fails once it exceeds
    /// `bytes_max` bytes or the tenant's quota.
    pub fn upload(
        &self,
        tenant: TenantId,
        expected: Digest,
        bytes_max: u64,
    ) -> Result<ComponentUpload, CatalogError> {
        let quota = self.0.store.read(|transaction| {
            require_tenant(transaction, tenant)?;
            quota(transaction, tenant, expected)
        })?;
        let part = new_part(&self.0.store.path);
        let file = OpenOptions::new().write(true).create_new(true).open(&part).map_err(at(&part))?;
        Ok(ComponentUpload {
            catalog: self.clone(),
            tenant,
            expected,
            file,
            part,
            hash: Sha256::new(),
            bytes: 0,
            bytes_max,
            quota,
        })
    }

    /// Returns a component if the tenant has it.
    pub fn component(&self, tenant: TenantId, digest: Digest) -> Result<Option<Component>, CatalogError> {
        let select = "SELECT bytes FROM components WHERE tenant = ?1 AND digest = ?2";
        let bytes = self.0.store.read(|transaction| {
            let bytes = transaction
                .query_row(select, params![tenant.0, digest.to_string()], |row| row.get(0))
                .optional()?;
            Ok(bytes)
        })?;
        Ok(bytes.map(|bytes| Component { digest, bytes }))
    }

    /// Returns the path of a component's file, whichever tenant owns the component. A component that was uploaded to
    /// another process is fetched first.
    pub fn component_path(&self, digest: Digest) -> Result<PathBuf, CatalogError> {
        let store = &self.0.store;
        let path = path(&store.path, digest);
        if let Some(log) = store.shared.as_ref().filter(|_| !path.exists()) {
            fetch(store, &**log, digest, &path)?;
        }
        Ok(path)
    }

    /// Returns the total size of a tenant's components.
    pub fn component_bytes(&self, tenant: TenantId) -> Result<u64, CatalogError> {
        self.0.store.read(|transaction| used(transaction, tenant))
    }
}

impl ComponentUpload {
    /// Appends the next bytes.
    pub fn write(&mut self, chunk: &[u8]) -> Result<(), CatalogError> {
        self.bytes = self.bytes.saturating_add(chunk.len() as u64);
        if self.bytes > self.bytes_max {
            return Err(CatalogError::TooLarge { bytes_max: self.bytes_max });
        }
        self.quota.check(self.bytes)?;
        self.hash.update(chunk);
        self.file.write_all(chunk).map_err(at(&self.part))?;
        Ok(())
    }

    /// Finishes the upload. Afterwards the tenant owns the component, provided that its digest is the announced one
    /// and the quota allows it.
    pub fn finish(self) -> Result<Component, CatalogError> {
        let found = Digest::from_bytes(self.hash.clone().finalize().into());
        if found != self.expected {
            return Err(CatalogError::DigestMismatch { expected: self.expected, found });
        }
        self.file.sync_all().map_err(at(&self.part))?;
        let store = &self.catalog.0.store;
        let to = path(&store.path, found);
        if let Some(log) = &store.shared {
            // Stored before its row, because other processes find the row at once.
            log.put_component(found, &self.part)?;
        }
        let (tenant, bytes) = (self.tenant, self.bytes);
        let upsert = "INSERT INTO components (tenant, digest, bytes, uploaded_at) VALUES (?1, ?2, ?3, ?4)
            ON CONFLICT (tenant, digest) DO UPDATE SET uploaded_at = excluded.uploaded_at";
        let mut locked = store.locked();
        let added = locked.write(|transaction| {
            require_tenant(transaction, tenant)?;
            quota(transaction, tenant, found)?.check(bytes)?;
            let now = store.now().timestamp();
            transaction.execute(upsert, params![tenant.0, found.to_string(), bytes, now])?;
            // The transaction may run several times.
            if self.part.exists() {
                put(&self.part, &to)?;
            }
            Ok(())
        });
        if let Err(error) = added {
            remove_everywhere(store, &mut locked, &[found.to_string()])?;
            return Err(error);
        }
        drop(locked);
        if let Some(log) = &store.shared {
            // Another process may have removed the component before it had an owner, or be about to remove it.
            log.put_component(found, &to)?;
        }
        Ok(Component { digest: found, bytes })
    }
}

impl Drop for ComponentUpload {
    fn drop(&mut self) {
        // The file of a finished upload has another name. If removal fails, the next start tries again.
        let _ = std::fs::remove_file(&self.part);
    }
}

/// Renames an uploaded file and syncs its folders.
fn put(part: &Path, to: &Path) -> Result<(), StorageError> {
    let Some(folder) = to.parent() else { return Ok(()) };
    std::fs::create_dir_all(folder).map_err(at(folder))?;
    std::fs::rename(part, to).map_err(at(to))?;
    sync_folder(folder)?;
    folder.parent().map_or(Ok(()), sync_folder)
}

fn folder(catalog: &Path) -> PathBuf {
    catalog.join("components")
}

pub(crate) fn path(catalog: &Path, digest: Digest) -> PathBuf {
    let digest = digest.to_string();
    folder(catalog).join(&digest[..2]).join(format!("{digest}.wasm"))
}

fn used(transaction: &Transaction<'_>, tenant: TenantId) -> Result<u64, Abort> {
    let sum = "SELECT coalesce(sum(bytes), 0) FROM components WHERE tenant = ?1";
    Ok(transaction.query_row(sum, [tenant.0], |row| row.get(0))?)
}

/// Returns the tenant's quota and the size of its components other than `digest`.
fn quota(transaction: &Transaction<'_>, tenant: TenantId, digest: Digest) -> Result<ComponentBytes, Abort> {
    let quotas: Quotas =
        transaction
            .query_row("SELECT quotas FROM tenants WHERE id = ?1", [tenant.0], |row| parsed(row, 0))?;
    let sum = "SELECT coalesce(sum(bytes), 0) FROM components WHERE tenant = ?1 AND digest <> ?2";
    let used = transaction.query_row(sum, params![tenant.0, digest.to_string()], |row| row.get(0))?;
    Ok(ComponentBytes { limit: quotas.get(Quota::ComponentBytes), used })
}

/// Returns the digests of the components of all tenants.
pub(crate) fn all_digests(transaction: &Transaction<'_>) -> Result<Vec<Digest>, Abort> {
    let mut statement = transaction.prepare("SELECT DISTINCT digest FROM components ORDER BY digest")?;
    let digest = |row: &Row<'_>| row.get::<_, String>(0)?.parse().map_err(|error| no_value(0, error));
    Ok(statement.query_map([], digest)?.collect::<rusqlite::Result<_>>()?)
}

/// Returns the digests of a tenant's components.
pub(crate) fn digests_of_tenant(
    transaction: &Transaction<'_>,
    tenant: TenantId,
) -> Result<Vec<String>, Abort> {
    let mut statement = transaction.prepare("SELECT digest FROM components WHERE tenant = ?1")?;
    let digests = statement.query_map([tenant.0], |row| row.get(0))?;
    Ok(digests.collect::<rusqlite::Result<_>>()?)
}

/// Removes from tenants the components that none of their deployments refers to and that were uploaded
/// more than [`UNUSED_SECS_MAX`] ago. Returns the digests.
pub(crate) fn disown_unused(transaction: &Transaction<'_>, now: i64) -> Result<Vec<String>, Abort> {
    let mut statement = transaction.prepare(
        "DELETE FROM components AS c WHERE uploaded_at < ?1
         AND NOT EXISTS (SELECT 1 FROM deployments d WHERE d.tenant = c.tenant AND d.component = c.digest)
         AND NOT EXISTS (SELECT 1 FROM deployments d WHERE d.tenant = c.tenant AND d.grader = c.digest)
         RETURNING digest",
    )?;
    let digests = statement.query_map([now - UNUSED_SECS_MAX], |row| row.get(0))?;
    Ok(digests.collect::<rusqlite::Result<_>>()?)
}

/// Removes the files of those components that no tenant owns, here and in the shared store.
///
/// A component may be uploaded to another process at the same time. That process stores the component once more after
/// its row, which changes the version. So this process either sees the row, or has read an outdated version and removes
/// nothing.
pub(crate) fn remove_everywhere(
    store: &Store,
    locked: &mut Locked<'_>,
    digests: &[String],
) -> Result<(), CatalogError> {
    let Some(log) = store.shared.as_ref().filter(|_| !digests.is_empty()) else {
        return remove_unowned(&store.path, locked, digests).map(drop);
    };
    let stays = |digest: &dyn std::fmt::Display, error: &dyn std::fmt::Display| {
        tracing::warn!(%digest, %error, "a component without an owner stays in the shared store");
    };
    let mut versions = HashMap::new();
    for digest in digests.iter().filter_map(|digest| digest.parse::<Digest>().ok()) {
        match log.component_version(digest) {
            Ok(Some(version)) => drop(versions.insert(digest, version)),
            Ok(None) => {}
            Err(error) => stays(&digest, &error),
        }
    }
    if let Err(error) = locked.catch_up(&**log) {
        stays(&digests.join(", "), &error);
        versions.clear();
    }
    for digest in remove_unowned(&store.path, locked, digests)? {
        let Some(version) = versions.get(&digest) else { continue };
        if let Err(error) = log.remove_component(digest, *version) {
            stays(&digest, &error);
        }
    }
    Ok(())
}

/// Removes the files of those components that no tenant owns, and returns their digests.
pub(crate) fn remove_unowned(
    catalog: &Path,
    locked: &mut Locked<'_>,
    digests: &[String],
) -> Result<Vec<Digest>, CatalogError> {
    let unowned = locked.read(|transaction| {
        let mut statement = transaction.prepare("SELECT 1 FROM components WHERE digest = ?1")?;
        let mut unowned = Vec::new();
        for digest in digests {
            if !statement.exists([digest])? {
                unowned.push(digest);
            }
        }
        Ok(unowned)
    })?;
    let unowned: Vec<Digest> = unowned.into_iter().filter_map(|digest| digest.parse().ok()).collect();
    for digest in &unowned {
        remove(&path(catalog, *digest))?;
    }
    Ok(unowned)
}

fn remove(path: &Path) -> Result<(), StorageError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(path)(error)),
        _ => Ok(()),
    }
}

/// Removes files without an owner. Called at start, when there are no uploads.
pub(crate) fn sweep_all(store: &Store) -> Result<(), StorageError> {
    let folder = folder(&store.path);
    std::fs::create_dir_all(&folder).map_err(at(&folder))?;
    let owned = store.locked().write_own(|transaction| {
        // In a shared catalog, the next push to any process does that.
        if store.shared.is_none() {
            disown_unused(transaction, store.now().timestamp())?;
        }
        let mut statement = transaction.prepare("SELECT DISTINCT digest FROM components")?;
        let digests = statement.query_map([], |row| row.get(0))?;
        Ok(digests.collect::<rusqlite::Result<HashSet<String>>>()?)
    });
    let owned = owned.map_err(|error| match error {
        CatalogError::Storage(error) => error,
        error => StorageError::new(store.database(), error),
    })?;
    for entry in std::fs::read_dir(&folder).map_err(at(&folder))? {
        let path = entry.map_err(at(&folder))?.path();
        if path.extension().is_some_and(|ending| ending == "part") {
            remove(&path)?;
        } else if path.is_dir() {
            sweep_folder(&path, &owned)?;
        }
    }
    Ok(())
}

fn sweep_folder(folder: &Path, owned: &HashSet<String>) -> Result<(), StorageError> {
    for entry in std::fs::read_dir(folder).map_err(at(folder))? {
        let path = entry.map_err(at(folder))?.path();
        let digest = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".wasm"));
        if digest.is_some_and(|digest| digest.parse::<Digest>().is_ok() && !owned.contains(digest)) {
            remove(&path)?;
        }
    }
    Ok(())
}
