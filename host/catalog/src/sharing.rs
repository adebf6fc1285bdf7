//! Makes the catalog of one process a copy of a shared catalog, by storing all of its contents in an empty log.

use std::error::Error;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use rollout_wire::digest::Digest;
use rusqlite::{Connection, Transaction, params};

use crate::CatalogSettings;
use crate::components;
use crate::error::{Abort, AppendError, CatalogError, OpenError, at};
use crate::model::TenantId;
use crate::name::Name;
use crate::shared::{self, Change, ChangeKind, Position, SharedLog};
use crate::store::{Locked, Store, lock, name_of, set_position, sharing_marker, sync_folder};

/// Error of a step of the caller.
pub type StepError = Box<dyn Error + Send + Sync>;

/// Error of sharing a catalog. The catalog is unchanged, unless the error says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShareError {
    /// The catalog cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The folder has no catalog, or one without tenants and keys.
    #[error("the folder has no tenants and keys to share; workers may begin with empty folders")]
    Empty,
    /// The folder has a copy of a shared catalog.
    #[error("the catalog is shared already; start a worker with the folder")]
    Already,
    /// The log has changes.
    #[error("the shared catalog has contents already")]
    NotEmpty,
    /// The caller has refused it.
    #[error(transparent)]
    Refused(StepError),
    /// These secrets cannot be sealed with the key of all workers.
    #[error("these secrets were sealed with another key: {}", listed(.0))]
    Secrets(Vec<(TenantId, Name)>),
    /// A file or the log cannot be read or written.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The log may have the contents, and the folder is as before.
    #[error("it is not known whether the shared catalog has the contents: {0}")]
    Uncertain(CatalogError),
    /// The catalog is shared, and one of the last steps has failed. Sharing it again repeats them.
    #[error("the catalog is shared, but not ready for a worker: {0}")]
    NotReady(StepError),
}

/// Returns the names of secrets for a message.
fn listed(secrets: &[(TenantId, Name)]) -> String {
    const SHOWN_MAX: usize = 20;
    let shown = secrets.iter().take(SHOWN_MAX).map(|(tenant, name)| format!("'{name}' of tenant {tenant}"));
    let more = secrets.len().saturating_sub(SHOWN_MAX);
    let more = (more > 0).then(|| format!("and {more} more"));
    shown.chain(more).collect::<Vec<_>>().join(", ")
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

/// The caller's part in sharing a catalog. All functions are called while no other process can open the catalog.
pub trait ShareSteps {
    /// Checks whether the catalog may be shared, before anything is stored.
    ///
    /// # Errors
    ///
    /// The reason why it may not.
    fn check(&self) -> Result<(), StepError>;

    /// Seals a secret with the key of all workers. Returns `None` if the secret cannot be opened.
    fn seal_again(&self, tenant: TenantId, name: &Name, sealed: &[u8]) -> Option<Vec<u8>>;

    /// Prepares the folder for a worker, when the catalog is shared. May be repeated after an interruption.
    ///
    /// # Errors
    ///
    /// The reason why the folder is not ready.
    fn prepare(&self) -> Result<(), StepError>;
}

/// Folder in a catalog with the journals that its tenants had before it was shared, by tenant.
pub const JOURNALS_BEFORE_SHARING: &str = "journals-before-sharing";

/// Stores the catalog of one process in an empty shared log, so that the folder becomes a copy of the shared catalog. The
/// process must have ended. Completes an attempt that was interrupted when the folder was a copy already. Blocks on the disk and on
/// the servers.
///
/// # Errors
///
/// [`ShareError::NotEmpty`] also after an attempt whose acknowledgement was lost.
pub fn share(
    path: &Path,
    log: &Arc<dyn SharedLog>,
    steps: &dyn ShareSteps,
) -> Result<SharedContents, ShareError> {
    if !path.join("catalog.db").exists() {
        return Err(ShareError::Empty);
    }
    let marker = sharing_marker(path);
    // No other process may be at work on the folder.
    let held = lock(path)?;
    let is_copy = is_copy(path)?;
    drop(held);
    match (is_copy, marker.exists()) {
        (true, true) => {}
        (true, false) => return Err(ShareError::Already),
        (false, _) => store_contents(path, &**log, (&marker, steps))?,
    }
    complete(path, log, (&marker, steps))
}

/// Stores the contents of a catalog that is no copy.
fn store_contents(
    path: &Path,
    log: &dyn SharedLog,
    (marker, steps): (&Path, &dyn ShareSteps),
) -> Result<(), ShareError> {
    if !log.read(0).map_err(CatalogError::from)?.is_empty() {
        return Err(ShareError::NotEmpty);
    }
    let store = Store::open(CatalogSettings::new(path))?;
    let contents = store.read(contents)?;
    if contents.tenants == 0 && contents.keys == 0 {
        return Err(ShareError::Empty);
    }
    steps.check().map_err(ShareError::Refused)?;
    // Stored before the rows that refer to them, as uploads are.
    for digest in store.read(components::all_digests)? {
        put_component(&store, log, digest)?;
    }
    File::create(marker)
        .and_then(|file| file.sync_all())
        .map_err(|error| CatalogError::from(at(marker)(error)))?;
    sync_folder(path).map_err(CatalogError::from)?;
    store_rows(&mut store.locked(), log, steps)
}

/// Prepares the folder of a copy for a worker, and cuts the log: new copies learn from the snapshot the ids that must not be used
/// again.
fn complete(
    path: &Path,
    log: &Arc<dyn SharedLog>,
    (marker, steps): (&Path, &dyn ShareSteps),
) -> Result<SharedContents, ShareError> {
    let not_ready = |error: StepError| ShareError::NotReady(error);
    let settings = CatalogSettings { shared: Some(log.clone()), ..CatalogSettings::new(path) };
    let store = Store::open(settings).map_err(|error| not_ready(error.into()))?;
    steps.prepare().map_err(not_ready)?;
    let done = || -> Result<SharedContents, StepError> {
        store.catch_up()?;
        if log.extent().first <= 1 {
            store.cut_log(&**log, true)?;
        }
        let contents = store.read(contents)?;
        std::fs::remove_file(marker)?;
        Ok(contents)
    };
    done().map_err(not_ready)
}

fn is_copy(path: &Path) -> Result<bool, OpenError> {
    let file = path.join("catalog.db");
    let connection = Connection::open(&file).map_err(at(&file))?;
    Ok(crate::store::is_copy(&connection).map_err(at(&file))?)
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
    components::open_checked(&path, digest)?;
    Ok(log.put_component(digest, &path)?)
}

/// Appends all rows as the first change of the log.
fn store_rows(
    locked: &mut Locked<'_>,
    log: &dyn SharedLog,
    steps: &dyn ShareSteps,
) -> Result<(), ShareError> {
    let (mut refused, mut is_sent) = (None, false);
    let stop = || Abort::from(CatalogError::Unavailable("the catalog was not shared".to_owned()));
    let written = locked.write(|transaction| {
        let unknown = seal_secrets(transaction, steps)?;
        if !unknown.is_empty() {
            refused = Some(ShareError::Secrets(unknown));
            return Err(stop());
        }
        let mut rows = Vec::new();
        shared::each_row(transaction, |row| {
            rows.push(row);
            Ok::<_, Abort>(())
        })?;
        let (bytes, digest) = Change { before: None, rows }.encode();
        is_sent = true;
        let sequence = log.append(0, &bytes, ChangeKind::Rows).map_err(|error| match error {
            AppendError::Behind => {
                refused = Some(ShareError::NotEmpty);
                stop()
            }
            AppendError::Failed(error) => CatalogError::from(error).into(),
        })?;
        Ok(set_position(transaction, Position::default().after(sequence, digest))?)
    });
    written.map_err(|error| match refused {
        Some(refused) => refused,
        None if is_sent => ShareError::Uncertain(error),
        None => error.into(),
    })
}

/// Seals all secrets with the key of all workers. Returns those that cannot be opened.
fn seal_secrets(
    transaction: &Transaction<'_>,
    steps: &dyn ShareSteps,
) -> rusqlite::Result<Vec<(TenantId, Name)>> {
    let mut statement = transaction.prepare("SELECT tenant, name, sealed FROM secrets")?;
    let read = |row: &rusqlite::Row<'_>| Ok((TenantId(row.get(0)?), name_of(row, 1)?, row.get(2)?));
    let secrets = statement.query_map([], read)?.collect::<rusqlite::Result<Vec<(_, _, Vec<u8>)>>>()?;
    let mut unknown = Vec::new();
    for (tenant, name, sealed) in secrets {
        let Some(sealed) = steps.seal_again(tenant, &name, &sealed) else {
            unknown.push((tenant, name));
            continue;
        };
        let update = "UPDATE secrets SET sealed = ?3 WHERE tenant = ?1 AND name = ?2";
        transaction.execute(update, params![tenant.0, &*name, sealed])?;
    }
    Ok(unknown)
}
