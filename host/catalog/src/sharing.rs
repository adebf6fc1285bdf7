//! Makes the catalog of one process a copy of a shared catalog, by storing all of its contents in an empty log.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use rollout_wire::digest::Digest;
use rusqlite::{Transaction, params};

use crate::components;
use crate::error::{Abort, AppendError, CatalogError, OpenError, SharedError, at};
use crate::model::TenantId;
use crate::name::Name;
use crate::shared::{self, Change, ChangeKind, Position, SharedLog};
use crate::store::{Locked, Store, name_of, set_position};
use crate::{CatalogSettings, Clock};

/// Error of sharing a catalog. The catalog is unchanged, unless the log may have taken its contents.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShareError {
    /// The catalog cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The folder has no catalog, or one without tenants and keys.
    #[error("the folder has no tenants and keys to share; workers may begin with empty folders")]
    Empty,
    /// The log has changes.
    #[error("the shared catalog has contents already")]
    NotEmpty,
    /// A secret cannot be sealed with the key of all workers.
    #[error(
        "the secret '{name}' of tenant {tenant} was sealed with another key; set or remove it, and try again"
    )]
    Secret {
        /// Owner of the secret.
        tenant: TenantId,
        /// Its name.
        name: Name,
    },
    /// A file or the log cannot be read or written.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

/// Numbers of what was shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedContents {
    /// Tenants.
    pub tenants: u64,
    /// Keys of callers and operators.
    pub keys: u64,
    /// Plugins of all tenants.
    pub plugins: u64,
    /// Different components of all tenants.
    pub components: usize,
}

/// A function that seals a secret with another key. Returns `None` if the secret cannot be opened.
pub type Reseal<'a> = &'a dyn Fn(TenantId, &Name, &[u8]) -> Option<Vec<u8>>;

/// Stores the catalog of one process in an empty shared log, so that the folder becomes a copy of the shared catalog. The
/// process must have ended. The tenants' journals are left to the caller. Blocks on the disk and on the servers.
///
/// # Errors
///
/// [`ShareError::NotEmpty`] also after an attempt whose acknowledgement was lost.
pub fn share(
    path: &Path,
    log: &Arc<dyn SharedLog>,
    reseal: Reseal<'_>,
) -> Result<SharedContents, ShareError> {
    if !path.join("catalog.db").exists() {
        return Err(ShareError::Empty);
    }
    let unavailable = |error: SharedError| ShareError::from(CatalogError::from(error));
    let settings = CatalogSettings::new(path);
    let clock: Clock = settings.clock.clone();
    let store = Store::open(settings)?;
    if !log.read(0).map_err(unavailable)?.is_empty() {
        return Err(ShareError::NotEmpty);
    }
    let contents = store.read(contents)?;
    if contents.tenants == 0 && contents.keys == 0 {
        return Err(ShareError::Empty);
    }
    // Stored before the rows that refer to them, as uploads are.
    let digests = store.read(components::all_digests)?;
    for digest in digests {
        put_component(&store, &**log, digest)?;
    }
    store_rows(&mut store.locked(), &**log, reseal)?;
    drop(store);
    // New copies learn from the snapshot the ids that must not be used again.
    let settings = CatalogSettings { clock, shared: Some(log.clone()), ..CatalogSettings::new(path) };
    let cut = Store::open(settings).map_err(ShareError::from).and_then(|store| {
        store.catch_up()?;
        Ok(store.cut_log(&**log, true)?)
    });
    if let Err(error) = cut {
        tracing::warn!(%error, "the shared catalog has no snapshot yet: ids of deleted tenants may be used again");
    }
    Ok(contents)
}

fn contents(transaction: &Transaction<'_>) -> Result<SharedContents, Abort> {
    let count = |table: &str| {
        transaction.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get::<_, u64>(0))
    };
    Ok(SharedContents {
        tenants: count("tenants")?,
        keys: count("keys")?,
        plugins: count("plugins")?,
        components: components::all_digests(transaction)?.len(),
    })
}

/// Stores a component, whose digest is checked before.
fn put_component(store: &Store, log: &dyn SharedLog, digest: Digest) -> Result<(), CatalogError> {
    let path = components::path(&store.path, digest);
    let mut file = File::open(&path).map_err(at(&path))?;
    let found = components::digest_of(&mut file).map_err(at(&path))?;
    if found != digest {
        return Err(CatalogError::Damaged(format!("the component {digest} has digest {found}")));
    }
    Ok(log.put_component(digest, &path)?)
}

/// Appends all rows as the first change of the log.
fn store_rows(locked: &mut Locked<'_>, log: &dyn SharedLog, reseal: Reseal<'_>) -> Result<(), ShareError> {
    let mut refused = None;
    let written = locked.write(|transaction| {
        let stop = |error: ShareError, refused: &mut Option<ShareError>| {
            *refused = Some(error);
            Abort::from(CatalogError::Unavailable("the catalog was not shared".to_owned()))
        };
        if let Some((tenant, name)) = seal_secrets(transaction, reseal)? {
            return Err(stop(ShareError::Secret { tenant, name }, &mut refused));
        }
        let mut rows = Vec::new();
        shared::each_row(transaction, |row| {
            rows.push(row);
            Ok::<_, Abort>(())
        })?;
        let (bytes, digest) = Change { before: None, rows }.encode();
        let sequence = log.append(0, &bytes, ChangeKind::Rows).map_err(|error| match error {
            AppendError::Behind => stop(ShareError::NotEmpty, &mut refused),
            AppendError::Failed(error) => CatalogError::from(error).into(),
        })?;
        Ok(set_position(transaction, Position::default().after(sequence, digest))?)
    });
    written.map_err(|error| refused.unwrap_or(ShareError::Catalog(error)))
}

/// Seals all secrets with the key of all workers. Returns the owner and the name of a secret that cannot be opened.
fn seal_secrets(
    transaction: &Transaction<'_>,
    reseal: Reseal<'_>,
) -> rusqlite::Result<Option<(TenantId, Name)>> {
    let mut statement = transaction.prepare("SELECT tenant, name, sealed FROM secrets")?;
    let read = |row: &rusqlite::Row<'_>| Ok((TenantId(row.get(0)?), name_of(row, 1)?, row.get(2)?));
    let secrets = statement.query_map([], read)?.collect::<rusqlite::Result<Vec<(_, _, Vec<u8>)>>>()?;
    for (tenant, name, sealed) in secrets {
        let Some(sealed) = reseal(tenant, &name, &sealed) else { return Ok(Some((tenant, name))) };
        let update = "UPDATE secrets SET sealed = ?3 WHERE tenant = ?1 AND name = ?2";
        transaction.execute(update, params![tenant.0, &*name, sealed])?;
    }
    Ok(None)
}
