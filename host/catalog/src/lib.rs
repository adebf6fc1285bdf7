//! Tenants, their keys, quotas, plugins and components, on disk before anybody is answered.
//!
//! A catalog is a folder: a database, components by their digests, and a folder for each tenant.
//!
//! ```text
//! DIR/catalog.db                    everything but files
//! DIR/components/ab/<sha256>.wasm   what was uploaded, once whoever uploaded it
//! DIR/tenants/<id>/                 what others keep for a tenant; made and removed here
//! DIR/lock                          held by the process that has the catalog
//! ```
//!
//! What an operation has returned survives the death of the process and of the machine. Who may do what
//! is asked of [`Catalog::authenticate`], in memory; it knows of a key that was revoked before
//! [`Catalog::revoke_key`] returns.
//!
//! This crate knows SQL and files. What a component is, how a deployment is checked and who asks, it does
//! not know. Everything here waits for the disk, except [`authenticate`](Catalog::authenticate),
//! [`touch`](Catalog::touch), [`add_usage`](Catalog::add_usage) and [`usage_today`](Catalog::usage_today).

mod components;
mod error;
mod keys;
mod model;
mod name;
mod noted;
mod plugins;
mod schema;
mod secrets;
mod store;
mod tenants;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use keys::Keys;
use store::Store;

pub use components::{Component, ComponentUpload, Digest, InvalidDigest};
pub use error::{CatalogError, OpenError, QuotaExceeded, StorageError, What};
pub use keys::{CreatedKey, Identity, KeyId, KeyInfo, NewKey, Right, Rights};
pub use model::{
    Activation, Deployment, DeploymentInfo, NetworkRules, NewDeployment, PluginInfo, Public, Quotas, Tenant,
    TenantId, TenantSettings, Time,
};
pub use name::{InvalidName, Name};
pub use noted::{Day, Usage};
pub use plugins::VERSIONS_KEPT;
pub use secrets::SECRET_NAME_BYTES_MAX;

/// What one list has at most. The next one goes on behind its last element.
pub const LIST_MAX: u32 = 1000;

/// Says what time it is.
pub type Clock = Arc<dyn Fn() -> Time + Send + Sync>;

/// Where a catalog is.
#[derive(Clone)]
pub struct Settings {
    /// Its folder, made where there is none.
    pub path: PathBuf,
    /// What time it is; for tests another time.
    pub clock: Clock,
}

impl Settings {
    /// A catalog in this folder.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), clock: Arc::new(chrono::Utc::now) }
    }
}

/// A catalog that is open. Clones are the same catalog, which is closed when the last one is dropped.
#[derive(Clone)]
pub struct Catalog(Arc<Inner>);

struct Inner {
    keys: Keys,
    store: Arc<Store>,
    // Dropped last of all that writes: it ends the thread and lets go of the lock.
    _writer: noted::Writer,
}

impl Catalog {
    /// Opens the catalog in a folder, or makes one there. What a process that died left half done is
    /// cleared away; tenants that it was deleting are [`deleting`](Self::deleting), and their deletion is
    /// the caller's to finish.
    pub fn open(settings: Settings) -> Result<Self, OpenError> {
        let store = Arc::new(Store::open(settings)?);
        let keys = Keys::load(&store)?;
        noted::load(&store)?;
        tenants::sweep(&store)?;
        components::sweep_all(&store)?;
        let writer = noted::Writer::start(Arc::clone(&store))?;
        Ok(Self(Arc::new(Inner { keys, store, _writer: writer })))
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.0.store.path
    }

    /// Writes what is noted in memory: when keys were last used, and usage. Done every second and at
    /// the end anyway.
    pub fn flush(&self) -> Result<(), StorageError> {
        noted::write(&self.0.store, true)
    }
}
