//! Why the catalog does not do what it is asked.

use std::path::{Path, PathBuf};

use crate::components::Digest;

/// Why there is no catalog.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has it.
    #[error("the catalog in {} is another process's; stop that one, or name another folder", .0.display())]
    Taken(PathBuf),
    /// A later host wrote it.
    #[error("the catalog in {} was written by a later version of this program; use that one", .0.display())]
    Newer(PathBuf),
    /// Its files cannot be read or made.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// A file of the catalog could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{} cannot be read or written", .path.display())]
pub struct StorageError {
    /// The file.
    pub path: PathBuf,
    /// What the system or the database says.
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

/// For `map_err`: an error of this path.
pub(crate) fn at<E>(path: &Path) -> impl FnOnce(E) -> StorageError + use<'_, E>
where
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    move |source| StorageError::new(path, source)
}

/// What is looked for by a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the word that it displays")]
pub enum What {
    Tenant,
    Key,
    Plugin,
    Deployment,
    Secret,
}

impl std::fmt::Display for What {
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

/// A quota of a tenant would be exceeded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("quota {quota} is {limit}: {used} in use, {asked} more asked for")]
pub struct QuotaExceeded {
    /// Its name, as in [`Quotas`](crate::Quotas).
    pub quota: &'static str,
    /// What it allows.
    pub limit: u64,
    /// What is in use.
    pub used: u64,
    /// What would have been added.
    pub asked: u64,
}

/// Why an operation was not done. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CatalogError {
    /// It is not there, or not this tenant's, which is the same to who asks.
    #[error("there is no {what} '{name}'")]
    NotFound {
        /// What was looked for.
        what: What,
        /// By which name.
        name: String,
    },
    /// The name is in use.
    #[error("there is a {what} '{name}' already")]
    Exists {
        /// What has the name.
        what: What,
        /// The name.
        name: String,
    },
    /// A quota of the tenant's.
    #[error(transparent)]
    Quota(#[from] QuotaExceeded),
    /// A limit of every catalog, which waiting does not change.
    #[error("there are {count_max} {what}s, which is as many as there may be; remove one first")]
    TooMany {
        /// Of what.
        what: What,
        /// How many there may be.
        count_max: u64,
    },
    /// The deployment failed its checks.
    #[error("version {version} of plugin '{plugin}' did not pass its checks and cannot be activated")]
    NotPassed {
        /// The plugin.
        plugin: String,
        /// The version.
        version: u32,
    },
    /// There is nothing to go back to.
    #[error("plugin '{0}' had no other version active before; activate one by its number")]
    NothingBefore(String),
    /// A deployment names a component that the tenant has not uploaded.
    #[error("component {0} was not uploaded")]
    NoComponent(Digest),
    /// What was uploaded is something else.
    #[error("the component has the digest {found}, and {expected} was announced")]
    OtherDigest {
        /// What was announced.
        expected: Digest,
        /// What came.
        found: Digest,
    },
    /// What is uploaded is larger than a component may be.
    #[error("the component is larger than {bytes_max} bytes")]
    TooLarge {
        /// The limit.
        bytes_max: u64,
    },
    /// A key that an operator brought along is none.
    #[error("a key is rh_ and 43 characters of base64url, which are 32 random bytes")]
    NoKey,
    /// A key that an operator brought along was revoked.
    #[error("key {0} was revoked; use another one")]
    Revoked(String),
    /// A key's rights and its tenant do not go together.
    #[error("an operator's key belongs to no tenant, every other key to one")]
    RightsAndTenant,
    /// The disk.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

impl CatalogError {
    pub(crate) fn not_found(what: What, name: impl ToString) -> Self {
        Self::NotFound { what, name: name.to_string() }
    }
}

/// Why a transaction is not committed: the database's reason, or ours.
pub(crate) enum Stop {
    Sql(rusqlite::Error),
    Refused(CatalogError),
}

impl From<rusqlite::Error> for Stop {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<CatalogError> for Stop {
    fn from(error: CatalogError) -> Self {
        Self::Refused(error)
    }
}

impl From<QuotaExceeded> for Stop {
    fn from(error: QuotaExceeded) -> Self {
        Self::Refused(error.into())
    }
}

impl From<StorageError> for Stop {
    fn from(error: StorageError) -> Self {
        Self::Refused(error.into())
    }
}
