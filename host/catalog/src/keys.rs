//! API keys.
//!
//! A key is 32 random bytes. The catalog stores its SHA-256. A slow hash is not needed, because it would only protect
//! secrets that can be guessed, and 256 random bits cannot be guessed. A key that an operator supplies must therefore
//! have the same form.
//!
//! Keys are looked up in memory by their digests. The time of a lookup depends on the digest of the presented
//! key and reveals nothing about the stored digests.

use std::collections::HashMap;
use std::fmt;
use std::sync::{PoisonError, RwLock};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rusqlite::{OptionalExtension, Row, Transaction, params};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::{Abort, CatalogError, ResourceKind, StorageError};
use crate::model::{KeyId, TenantId, Time};
use crate::store::{Locked, Store, require_tenant, time};
use crate::{Catalog, LIST_MAX, write_behind};

/// Prefix of every key, by which scanners recognise a leaked one.
const KEY_PREFIX: &str = "rh_";

/// Number of random bytes in a key.
const KEY_BYTES: usize = 32;

/// Number of leading characters that are shown of a key.
const SHOWN_CHARS: usize = 11;

/// Maximum number of keys of a tenant, or of operators. Expired and revoked keys count for
/// [`INACTIVE_DAYS_MAX`] days.
const KEYS_MAX: u64 = 10_000;

/// Number of days for which revoked and expired keys are listed.
const INACTIVE_DAYS_MAX: i64 = 90;

/// Maximum length of a key's name; longer names are truncated.
const NAME_CHARS_MAX: usize = 100;

/// Rights of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rights {
    /// Full access to every tenant.
    Operator,
    /// May push and activate plugins of one tenant, and do everything that a caller may.
    Author,
    /// May run rollouts of one tenant, and do everything that a viewer may.
    Caller,
    /// May read the data of one tenant.
    Viewer,
}

/// Right that an operation requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// To manage tenants, keys and quotas.
    Operate,
    /// To manage plugins of a tenant.
    Author,
    /// To run rollouts of a tenant.
    Call,
    /// To read.
    View,
}

impl Rights {
    /// Returns whether these rights include `right`.
    pub fn allows(self, right: Right) -> bool {
        match right {
            Right::Operate => self == Self::Operator,
            Right::Author => matches!(self, Self::Operator | Self::Author),
            Right::Call => self != Self::Viewer,
            Right::View => true,
        }
    }

    /// Returns the name of the rights.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Author => "author",
            Self::Caller => "caller",
            Self::Viewer => "viewer",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        [Self::Operator, Self::Author, Self::Caller, Self::Viewer].into_iter().find(|r| r.as_str() == name)
    }
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Identity that a key proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The key's id.
    pub key: KeyId,
    /// The tenant that the key belongs to; `None` for an operator.
    pub tenant: Option<TenantId>,
    /// The key's rights.
    pub rights: Rights,
}

/// Parameters of a new key.
#[derive(Clone, Debug)]
pub struct NewKey {
    /// Name for people.
    pub name: String,
    /// The key's rights.
    pub rights: Rights,
    /// The tenant that the key belongs to; `None` for an operator.
    pub tenant: Option<TenantId>,
    /// Time at which the key expires, if it does.
    pub expires_at: Option<Time>,
}

/// Public data of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeyInfo {
    /// Id by which the key is revoked.
    pub id: KeyId,
    /// The key's first characters.
    pub prefix: String,
    /// Name for people.
    pub name: String,
    /// The key's rights.
    pub rights: Rights,
    /// The tenant that the key belongs to; `None` for an operator.
    #[serde(skip)]
    pub tenant: Option<TenantId>,
    /// Time of creation.
    pub created_at: Time,
    /// Time at which the key expires, if it does.
    pub expires_at: Option<Time>,
    /// Time of revocation, if the key was revoked.
    pub revoked_at: Option<Time>,
    /// Time of the last use, if the key was used.
    pub last_used_at: Option<Time>,
}

/// A key that has just been created.
#[derive(Clone, Debug)]
pub struct CreatedKey {
    /// The key itself, which is stored nowhere.
    pub key: String,
    /// The key's public data.
    pub info: KeyInfo,
}

/// Valid keys by the digests of their texts.
#[derive(Default)]
pub(crate) struct Keys(RwLock<HashMap<[u8; 32], ValidKey>>);

#[derive(Clone, Copy)]
struct ValidKey {
    identity: Identity,
    expires_at: Option<i64>,
}

impl Keys {
    pub(crate) fn load(store: &Store) -> Result<Self, StorageError> {
        let keys = Self::default();
        keys.reload(&mut store.locked()).map_err(|error| match error {
            CatalogError::Storage(error) => error,
            error => StorageError::new(store.database(), error),
        })?;
        Ok(keys)
    }

    /// Reads all valid keys again. A key that cannot be read is not valid.
    pub(crate) fn reload(&self, locked: &mut Locked<'_>) -> Result<(), CatalogError> {
        let select = "SELECT k.digest, k.id, k.tenant, k.rights, k.expires_at FROM keys k
            LEFT JOIN tenants t ON t.id = k.tenant
            WHERE k.revoked_at IS NULL AND NOT coalesce(t.deleting, 0)";
        let keys = locked.read(|transaction| {
            let mut statement = transaction.prepare(select)?;
            let rows = statement.query_map([], |row| {
                let key = valid_key(row);
                let warn = |error: &rusqlite::Error| {
                    let id = row.get::<_, i64>(1).unwrap_or_default();
                    tracing::error!(key = id, %error, "a key cannot be read and is rejected");
                };
                Ok(key.inspect_err(warn).ok())
            })?;
            let rows = rows.collect::<rusqlite::Result<Vec<Option<_>>>>()?;
            Ok(rows.into_iter().flatten().collect::<HashMap<_, _>>())
        })?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = keys;
        Ok(())
    }

    fn find(&self, digest: &[u8; 32]) -> Option<ValidKey> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(digest).copied()
    }

    fn add(&self, digest: [u8; 32], good: ValidKey) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(digest, good);
    }

    pub(crate) fn retain(&self, keep: impl Fn(&Identity) -> bool) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).retain(|_, good| keep(&good.identity));
    }
}

impl Catalog {
    /// Returns the identity that a key proves, if the key is valid now. Reads nothing from the disk.
    pub fn authenticate(&self, key: &str) -> Option<Identity> {
        let good = self.0.keys.find(&digest(key))?;
        let expired = good.expires_at.is_some_and(|end| end <= self.0.store.now().timestamp());
        (!expired).then_some(good.identity)
    }

    /// Records in memory that a key was used. The time is written later.
    pub fn touch(&self, key: KeyId) {
        write_behind::touch(&self.0.store, key);
    }

    /// Creates a key.
    pub fn create_key(&self, new: NewKey) -> Result<CreatedKey, CatalogError> {
        let mut bytes = [0; KEY_BYTES];
        getrandom::fill(&mut bytes)
            .map_err(|error| StorageError::new("/dev/urandom", std::io::Error::from(error)))?;
        let key = format!("{KEY_PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes));
        let info = self.add_key(&key, new)?;
        Ok(CreatedKey { key, info })
    }

    /// Creates the operator key that an operator supplied, unless it exists already.
    pub fn ensure_operator_key(&self, key: &str, name: &str) -> Result<KeyInfo, CatalogError> {
        let random = key.strip_prefix(KEY_PREFIX).and_then(|key| URL_SAFE_NO_PAD.decode(key).ok());
        if random.is_none_or(|bytes| bytes.len() != KEY_BYTES) {
            return Err(CatalogError::MalformedKey);
        }
        let select = format!("{SELECT} WHERE digest = ?1 AND rights = 'operator'");
        let found = self
            .0
            .store
            .read(|transaction| Ok(transaction.query_row(&select, [digest(key)], key_info).optional()?))?;
        match found {
            Some(info) if info.revoked_at.is_some() => Err(CatalogError::Revoked(info.prefix)),
            Some(info) => Ok(info),
            None => {
                let name = name.to_owned();
                let new = NewKey { name, rights: Rights::Operator, tenant: None, expires_at: None };
                match self.add_key(key, new) {
                    // Another process of a shared catalog was faster.
                    Err(CatalogError::Exists { .. }) => self.ensure_operator_key(key, "given at the start"),
                    added => added,
                }
            }
        }
    }

    /// Returns whether an operator key is valid now.
    pub fn has_operator_key(&self) -> bool {
        let now = self.0.store.now().timestamp();
        let keys = self.0.keys.0.read().unwrap_or_else(PoisonError::into_inner);
        keys.values().any(|good| {
            good.identity.rights == Rights::Operator && good.expires_at.is_none_or(|end| end > now)
        })
    }

    fn add_key(&self, key: &str, new: NewKey) -> Result<KeyInfo, CatalogError> {
        if (new.rights == Rights::Operator) != new.tenant.is_none() {
            return Err(CatalogError::TenantMismatch);
        }
        let digest = digest(key);
        let now = self.0.store.now();
        let name: String = new.name.chars().filter(|c| !c.is_control()).take(NAME_CHARS_MAX).collect();
        let prefix: String = key.chars().take(SHOWN_CHARS).collect();
        let mut locked = self.0.store.locked();
        let id = locked.write(|transaction| {
            if let Some(tenant) = new.tenant {
                require_tenant(transaction, tenant)?;
            }
            delete_expired(transaction, now)?;
            require_room(transaction, new.tenant)?;
            if transaction.prepare("SELECT 1 FROM keys WHERE digest = ?1")?.exists([digest])? {
                return Err(CatalogError::Exists { kind: ResourceKind::Key, name: prefix.clone() }.into());
            }
            transaction.execute(
                "INSERT INTO keys (tenant, rights, digest, prefix, name, created_at, expires_at)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                params![
                    new.tenant.map(|tenant| tenant.0),
                    new.rights.as_str(),
                    digest,
                    prefix,
                    name,
                    now.timestamp(),
                    new.expires_at.map(|time| time.timestamp()),
                ],
            )?;
            Ok(KeyId(transaction.last_insert_rowid()))
        })?;
        let identity = Identity { key: id, tenant: new.tenant, rights: new.rights };
        let expires_at = new.expires_at.map(|end| end.timestamp());
        // The lock is still held, so the tenant cannot have been deleted in between.
        self.0.keys.add(digest, ValidKey { identity, expires_at });
        drop(locked);
        Ok(KeyInfo {
            id,
            prefix,
            name,
            rights: new.rights,
            tenant: new.tenant,
            created_at: now,
            expires_at: expires_at.map(time),
            revoked_at: None,
            last_used_at: None,
        })
    }

    /// Lists keys of a tenant, or all keys, in order of creation, starting after `after`.
    pub fn keys(
        &self,
        tenant: Option<TenantId>,
        after: Option<KeyId>,
        limit: u32,
    ) -> Result<Vec<KeyInfo>, CatalogError> {
        let select = format!(
            "{SELECT} WHERE id > ?1 AND (?2 IS NULL OR tenant = ?2)
             AND NOT EXISTS (SELECT 1 FROM tenants t WHERE t.id = tenant AND t.deleting)
             ORDER BY id LIMIT ?3"
        );
        let after = after.map_or(0, |id| id.0);
        let limit = limit.min(LIST_MAX);
        let touches = write_behind::unwritten_uses(&self.0.store);
        let mut keys = self.0.store.read(|transaction| {
            let mut statement = transaction.prepare(&select)?;
            let keys = statement.query_map(params![after, tenant.map(|id| id.0), limit], key_info)?;
            Ok(keys.collect::<rusqlite::Result<Vec<_>>>()?)
        })?;
        add_touches(&touches, &mut keys);
        Ok(keys)
    }

    /// Returns the public data of a key.
    pub fn key(&self, key: KeyId) -> Result<KeyInfo, CatalogError> {
        let select = format!("{SELECT} WHERE id = ?1");
        let found = self
            .0
            .store
            .read(|transaction| Ok(transaction.query_row(&select, [key.0], key_info).optional()?))?;
        found.ok_or_else(|| CatalogError::not_found(ResourceKind::Key, key))
    }

    /// Revokes a key. From now on the key is rejected. Revoking it again changes nothing.
    pub fn revoke_key(&self, key: KeyId) -> Result<(), CatalogError> {
        let now = self.0.store.now().timestamp();
        let update = "UPDATE keys SET revoked_at = coalesce(revoked_at, ?2) WHERE id = ?1
            AND NOT EXISTS (SELECT 1 FROM tenants t WHERE t.id = tenant AND t.deleting)";
        let mut locked = self.0.store.locked();
        locked.write(|transaction| match transaction.execute(update, params![key.0, now])? {
            0 => Err(CatalogError::not_found(ResourceKind::Key, key).into()),
            _ => Ok(()),
        })?;
        self.0.keys.retain(|identity| identity.key != key);
        Ok(())
    }
}

const SELECT: &str =
    "SELECT id, prefix, name, rights, tenant, created_at, expires_at, revoked_at, last_used_at
    FROM keys";

fn key_info(row: &Row<'_>) -> rusqlite::Result<KeyInfo> {
    let moment = |column| Ok::<_, rusqlite::Error>(row.get::<_, Option<i64>>(column)?.map(time));
    Ok(KeyInfo {
        id: KeyId(row.get(0)?),
        prefix: row.get(1)?,
        name: row.get(2)?,
        rights: rights_of(row, 3)?,
        tenant: row.get::<_, Option<i64>>(4)?.map(TenantId),
        created_at: time(row.get(5)?),
        expires_at: moment(6)?,
        revoked_at: moment(7)?,
        last_used_at: moment(8)?,
    })
}

/// Reads a valid key and its digest.
fn valid_key(row: &Row<'_>) -> rusqlite::Result<([u8; 32], ValidKey)> {
    let identity = Identity {
        key: KeyId(row.get(1)?),
        tenant: row.get::<_, Option<i64>>(2)?.map(TenantId),
        rights: rights_of(row, 3)?,
    };
    Ok((row.get(0)?, ValidKey { identity, expires_at: row.get(4)? }))
}

fn rights_of(row: &Row<'_>, column: usize) -> rusqlite::Result<Rights> {
    let name: String = row.get(column)?;
    Rights::from_name(&name).ok_or_else(|| {
        let error = std::io::Error::other(format!("unknown rights '{name}'"));
        crate::store::no_value(column, error)
    })
}

/// Deletes keys that were revoked or expired more than [`INACTIVE_DAYS_MAX`] days ago.
fn delete_expired(transaction: &Transaction<'_>, now: Time) -> Result<(), Abort> {
    let before = now.timestamp() - INACTIVE_DAYS_MAX * 24 * 60 * 60;
    transaction.execute("DELETE FROM keys WHERE coalesce(revoked_at, expires_at) < ?1", [before])?;
    Ok(())
}

fn require_room(transaction: &Transaction<'_>, tenant: Option<TenantId>) -> Result<(), Abort> {
    let count = "SELECT count(*) FROM keys WHERE tenant IS ?1";
    let count: u64 = transaction.query_row(count, [tenant.map(|id| id.0)], |row| row.get(0))?;
    if count >= KEYS_MAX {
        return Err(CatalogError::TooMany { kind: ResourceKind::Key, count_max: KEYS_MAX }.into());
    }
    Ok(())
}

fn digest(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

/// Adds the last uses that are not written yet.
fn add_touches(touches: &HashMap<KeyId, i64>, keys: &mut [KeyInfo]) {
    for key in keys {
        let touched = touches.get(&key.id).copied().map(time);
        key.last_used_at = key.last_used_at.max(touched);
    }
}
