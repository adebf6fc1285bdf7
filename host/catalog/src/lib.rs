//! A durable store of tenants with their keys, quotas, plugins and components.
//!
//! A catalog is a folder: a database, components by their digests, and a folder for each tenant.
//!
//! ```text
//! DIR/catalog.db                    everything but files
//! DIR/components/ab/<sha256>.wasm   uploaded components, each stored once
//! DIR/tenants/<id>/                 a tenant's files, written by other crates; created and removed here
//! DIR/lock                          held by the process that has opened the catalog
//! ```
//!
//! A change survives a crash of the process and of the machine once the operation has returned.
//! [`Catalog::authenticate`] checks a key in memory; it rejects a revoked key before
//! [`Catalog::revoke_key`] returns.
//!
//! Several processes may share a catalog: each has a folder with a copy, and all changes are in a [`SharedLog`].
//!
//! This crate knows SQL and files. It knows neither the contents of components, nor the checks of a
//! deployment, nor HTTP. All operations block on the disk, except [`authenticate`](Catalog::authenticate),
//! [`touch`](Catalog::touch), [`add_usage`](Catalog::add_usage) and [`usage_today`](Catalog::usage_today).

mod components;
mod cutting;
mod error;
mod keys;
mod model;
mod name;
mod pending;
mod plugins;
mod schema;
mod secrets;
mod shared;
mod sharing;
mod store;
mod tenants;
#[cfg(test)]
mod tests;
mod write_behind;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use keys::Keys;
use store::Store;

pub use components::{Component, ComponentUpload};
pub use error::{
    AppendError, CatalogError, OpenError, QuotaExceeded, ResourceKind, SharedError, StorageError,
};
pub use keys::{CreatedKey, Identity, KeyInfo, NewKey, Right, Rights};
pub use model::{
    Activation, Deployment, DeploymentInfo, KeyId, NetworkRules, NewDeployment, Origin, PluginInfo, Public,
    TenantId, TenantInfo, TenantSettings, Time, TrustedKey,
};
pub use name::{InvalidName, Name};
pub use pending::TenantUsage;
pub use plugins::{PlannedActivation, VERSIONS_MAX};
pub use secrets::SECRET_NAME_BYTES_MAX;
pub use shared::{ChangeKind, LogExtent, SharedLog};
pub use sharing::{JOURNALS_BEFORE_SHARING, ShareError, ShareSteps, SharedContents, StepError, share};
pub use store::{CopyLock, lock_copy};
pub use write_behind::Day;

/// Maximum length of a list. The next list starts after the last element.
pub const LIST_MAX: u32 = 1000;

/// A function that returns the current time.
pub type Clock = Arc<dyn Fn() -> Time + Send + Sync>;

/// Settings of a catalog.
#[derive(Clone)]
pub struct CatalogSettings {
    /// The catalog's folder, created if it does not exist.
    pub path: PathBuf,
    /// Source of the current time; tests replace it.
    pub clock: Clock,
    /// The log that all processes with the catalog share. Without it, the catalog belongs to one process.
    pub shared: Option<Arc<dyn SharedLog>>,
}

impl CatalogSettings {
    /// Returns the settings for a catalog in this folder.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), clock: Arc::new(chrono::Utc::now), shared: None }
    }
}

/// An open catalog. Clones share it; dropping the last clone closes it.
#[derive(Clone)]
pub struct Catalog(Arc<Inner>);

struct Inner {
    keys: Arc<Keys>,
    store: Arc<Store>,
    // Dropped last: ends the writer thread, which has another reference to the store and its lock.
    _writer: write_behind::Writer,
}

impl Catalog {
    /// Opens the catalog in a folder, creating it if necessary. Cleans up after a process that was killed.
    /// Tenants that the earlier process was deleting are listed by
    /// [`tenants_being_deleted`](Self::tenants_being_deleted); the caller must finish their deletion.
    pub fn open(settings: CatalogSettings) -> Result<Self, OpenError> {
        let store = Arc::new(Store::open(settings)?);
        store.catch_up().map_err(|error| match error {
            CatalogError::Unavailable(why) => OpenError::Log(SharedError::Unavailable(why)),
            CatalogError::Damaged(what) => OpenError::Log(SharedError::Damaged(what)),
            CatalogError::Storage(error) => error.into(),
            error => StorageError::new(store.database(), error).into(),
        })?;
        let keys = Arc::new(Keys::load(&store)?);
        let (keys_too, path) = (Arc::clone(&keys), store.path.clone());
        let _ = store.effects.set(Box::new(move |locked, applied| {
            if applied.has_keys {
                keys_too.reload(locked)?;
            }
            tenants::create_folders(&path, locked, &applied.tenants)?;
            components::remove_unowned(&path, locked, &applied.disowned).map(drop)
        }));
        write_behind::load(&store)?;
        tenants::sweep(&store)?;
        components::sweep_all(&store)?;
        let writer = write_behind::Writer::start(Arc::clone(&store))?;
        Ok(Self(Arc::new(Inner { keys, store, _writer: writer })))
    }

    /// Returns the catalog's folder.
    pub fn path(&self) -> &Path {
        &self.0.store.path
    }

    /// Returns whether other processes share the catalog.
    pub fn is_shared(&self) -> bool {
        self.0.store.shared.is_some()
    }

    /// Applies the changes that other processes have made to a shared catalog. Blocks on the servers. [`Self::changed`]
    /// then returns the changed tenants.
    pub fn catch_up(&self) -> Result<(), CatalogError> {
        self.0.store.catch_up()
    }

    /// Cuts the log of a shared catalog if it is long: stores a snapshot of this copy, and removes the changes before
    /// it from the log. Returns whether the log was cut. Blocks on the servers. To be called after
    /// [`Self::catch_up`].
    pub fn shorten_log(&self) -> Result<bool, CatalogError> {
        self.0.store.shorten_log()
    }

    /// Returns the sequence of the last change of a shared catalog that this copy has, and the extent of the log when
    /// it was last read. Returns `None` if no other process shares the catalog.
    pub fn log_position(&self) -> Option<(u64, LogExtent)> {
        let log = self.0.store.shared.as_ref()?;
        Some((self.0.store.sequence(), log.extent()))
    }

    /// Returns the tenants that other processes have changed or deleted since the last call.
    pub fn changed(&self) -> BTreeSet<TenantId> {
        let mut applied = self.0.store.applied.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *applied).tenants
    }

    /// Writes the updates in memory: last uses of keys and usage. A background thread also writes them, at intervals
    /// and when the catalog closes.
    pub fn flush(&self) -> Result<(), StorageError> {
        write_behind::write(&self.0.store, true)
    }
}
