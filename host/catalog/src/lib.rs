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
//! This crate knows SQL and files. It knows neither the contents of components, nor the checks of a
//! deployment, nor HTTP. All operations block on the disk, except [`authenticate`](Catalog::authenticate),
//! [`touch`](Catalog::touch), [`add_usage`](Catalog::add_usage) and [`usage_today`](Catalog::usage_today).

mod components;
mod error;
mod keys;
mod model;
mod name;
mod pending;
mod plugins;
mod schema;
mod secrets;
mod store;
mod tenants;
#[cfg(test)]
mod tests;
mod write_behind;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use keys::Keys;
use store::Store;

pub use components::{Component, ComponentUpload};
pub use error::{CatalogError, OpenError, QuotaExceeded, ResourceKind, StorageError};
pub use keys::{CreatedKey, Identity, KeyInfo, NewKey, Right, Rights};
pub use model::{
    Activation, Deployment, DeploymentInfo, KeyId, NetworkRules, NewDeployment, Origin, PluginInfo, Public,
    TenantId, TenantInfo, TenantSettings, Time, TrustedKey,
};
pub use name::{InvalidName, Name};
pub use pending::TenantUsage;
pub use plugins::VERSIONS_MAX;
pub use secrets::SECRET_NAME_BYTES_MAX;
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
}

impl CatalogSettings {
    /// Returns the settings for a catalog in this folder.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), clock: Arc::new(chrono::Utc::now) }
    }
}

/// An open catalog. Clones share it; dropping the last clone closes it.
#[derive(Clone)]
pub struct Catalog(Arc<Inner>);

struct Inner {
    keys: Keys,
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
        let keys = Keys::load(&store)?;
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

    /// Writes the updates in memory: last uses of keys and usage. A background thread also writes them, at intervals
    /// and when the catalog closes.
    pub fn flush(&self) -> Result<(), StorageError> {
        write_behind::write(&self.0.store, true)
    }
}
