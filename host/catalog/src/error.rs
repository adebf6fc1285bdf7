//! Errors of the catalog.

use std::path::{Path, PathBuf};

use rollout_wire::digest::Digest;
use rollout_wire::quota::Quota;

/// Error of opening a catalog.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has locked the catalog.
    #[error("the catalog in {} is locked by another process; stop it or choose another folder", .0.display())]
    Locked(PathBuf),
    /// A later version of this program wrote the catalog.
    #[error("the catalog in {} was written by a later version of this program; use that version", .0.display())]
    Newer(PathBuf),
    /// The folder has a catalog that no other process shares, and the settings have a shared log.
    #[error(
        "the folder {} has a catalog of its own; give a process that shares one an empty folder, or share this catalog with \
         `rollout-host cluster share-catalog`", .0.display()
    )]
    NotShared(PathBuf),
    /// The folder has a copy of a shared catalog, and the settings have no shared log.
    #[error("the folder {} has a copy of a catalog that several processes share; serve it with their [cluster.nats]", .0.display())]
    Shared(PathBuf),
    /// The catalog was being shared when the process ended.
    #[error(
        "the catalog in {} was being shared when that was interrupted; run `rollout-host cluster share-catalog` again", .0.display()
    )]
    Interrupted(PathBuf),
    /// The shared catalog cannot be read.
    #[error("the shared catalog cannot be used: {0}")]
    Log(SharedError),
    /// A file of the catalog cannot be read or created.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// Error of reading or writing a file of the catalog.
#[derive(Debug, thiserror::Error)]
#[error("{} cannot be read or written", .path.display())]
pub struct StorageError {
    /// The file.
    pub path: PathBuf,
    /// Error of the operating system or of the database.
    source: Box<dyn std::error::Error + Send + Sync>,
}

impl StorageError {
    pub(crate) fn new(
        path: impl Into<PathBuf>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self { path: path.into(), source: source.into() }
    }
}

/// Returns a function for `map_err` that turns any error into a [`StorageError`] of `path`.
pub(crate) fn at<E>(path: &Path) -> impl FnOnce(E) -> StorageError + use<'_, E>
where
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    move |source| StorageError::new(path, source)
}

/// Error of the log or of the store that all copies share.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SharedError {
    /// The servers did not answer. A retry may succeed.
    #[error("{0}")]
    Unavailable(String),
    /// Data is missing or wrong. An operator has to repair it.
    #[error("{0}")]
    Damaged(String),
}

/// Error of appending a change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// Another change was appended after the expected one.
    #[error("another process has changed the catalog")]
    Behind,
    /// Another error. The change may have been stored nevertheless if the servers did not answer.
    #[error(transparent)]
    Failed(#[from] SharedError),
}

/// A kind of resource in the catalog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the word that it displays")]
pub enum ResourceKind {
    Tenant,
    Key,
    Plugin,
    Deployment,
    Secret,
}

impl std::fmt::Display for ResourceKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Tenant => "tenant",
            Self::Key => "key",
            Self::Plugin => "plugin",
            Self::Deployment => "deployment",
            Self::Secret => "secret",
        })
    }
}

/// Error of an operation that would exceed a quota of the tenant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("quota {quota} is {limit}: {used} in use, {requested} more requested")]
pub struct QuotaExceeded {
    /// The quota.
    pub quota: Quota,
    /// The quota's value.
    pub limit: u64,
    /// Amount in use.
    pub used: u64,
    /// Amount that the operation would have added.
    pub requested: u64,
}

/// Error of an operation on the catalog. A failed operation has changed nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CatalogError {
    /// The resource does not exist or belongs to another tenant; the caller cannot tell which.
    #[error("there is no {kind} '{name}'")]
    NotFound {
        /// Kind of the resource.
        kind: ResourceKind,
        /// Name that was looked up.
        name: String,
    },
    /// The name is in use.
    #[error("a {kind} '{name}' exists already")]
    Exists {
        /// Kind of the resource that has the name.
        kind: ResourceKind,
        /// The name.
        name: String,
    },
    /// The plugin is not as it was when the activation of the version was planned.
    #[error("plugin '{plugin}' was changed while version {version} was loaded; activate it again")]
    ActivatedMeanwhile {
        /// Name of the plugin.
        plugin: String,
        /// The version.
        version: u32,
    },
    /// A quota of the tenant is exceeded.
    #[error(transparent)]
    Quota(#[from] QuotaExceeded),
    /// A fixed limit of the catalog is reached. Retrying later does not help.
    #[error("there are {count_max} {kind}s, which is the maximum; remove one first")]
    TooMany {
        /// Kind of the resource.
        kind: ResourceKind,
        /// The limit.
        count_max: u64,
    },
    /// The deployment failed its checks.
    #[error("version {version} of plugin '{plugin}' failed its checks and cannot be activated")]
    ChecksFailed {
        /// The plugin.
        plugin: String,
        /// The version.
        version: u32,
    },
    /// No trusted key of the tenant signed a component of the deployment.
    #[error(
        "version {version} of plugin '{plugin}' has a component that no trusted key of the tenant signed, and cannot be activated; deploy it again from a registry where a trusted key signed it"
    )]
    Untrusted {
        /// The plugin.
        plugin: String,
        /// The version.
        version: u32,
    },
    /// The plugin has no earlier active version.
    #[error("plugin '{0}' has no earlier active version; activate a version by its number")]
    NoEarlierVersion(String),
    /// A deployment names a component that the tenant has not uploaded.
    #[error("component {0} was not uploaded")]
    UnknownComponent(Digest),
    /// The uploaded bytes do not have the announced digest.
    #[error("the uploaded component has digest {found}, not the announced {expected}")]
    DigestMismatch {
        /// Announced digest.
        expected: Digest,
        /// Digest of the uploaded bytes.
        found: Digest,
    },
    /// The upload is larger than a component may be.
    #[error("the component is larger than {bytes_max} bytes")]
    TooLarge {
        /// The limit.
        bytes_max: u64,
    },
    /// A key that an operator supplied is malformed.
    #[error("malformed key: expected rh_ followed by 43 characters of base64url (32 random bytes)")]
    MalformedKey,
    /// A key that an operator supplied has been revoked.
    #[error("key {0} was revoked; use another one")]
    Revoked(String),
    /// The key's rights need a tenant and none is given, or the other way round.
    #[error("a key for an operator must have no tenant, and any other key must have one")]
    TenantMismatch,
    /// The servers of a shared catalog did not answer, or other processes change it all the time.
    #[error(
        "the shared catalog cannot be changed at present, and it is not known whether the change was made: {0}; retry later"
    )]
    Unavailable(String),
    /// The shared catalog is damaged.
    #[error("the shared catalog is damaged: {0}")]
    Damaged(String),
    /// Storage failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

impl From<SharedError> for CatalogError {
    fn from(error: SharedError) -> Self {
        match error {
            SharedError::Unavailable(why) => Self::Unavailable(why),
            SharedError::Damaged(what) => Self::Damaged(what),
        }
    }
}

impl CatalogError {
    pub(crate) fn not_found(kind: ResourceKind, name: impl ToString) -> Self {
        Self::NotFound { kind, name: name.to_string() }
    }
}

/// Reason to roll back a transaction: an error of the database or of the catalog.
pub(crate) enum Abort {
    Sql(rusqlite::Error),
    Catalog(CatalogError),
}

impl From<rusqlite::Error> for Abort {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<CatalogError> for Abort {
    fn from(error: CatalogError) -> Self {
        Self::Catalog(error)
    }
}

impl From<QuotaExceeded> for Abort {
    fn from(error: QuotaExceeded) -> Self {
        Self::Catalog(error.into())
    }
}

impl From<StorageError> for Abort {
    fn from(error: StorageError) -> Self {
        Self::Catalog(error.into())
    }
}
