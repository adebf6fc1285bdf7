//! Keys: who may do what.
//!
//! A key is 32 random bytes, and what is stored of it is its SHA-256. Nothing slower is needed: a slow hash
//! protects what people make up and what can be guessed, and nobody guesses 256 random bits. That is why
//! a key that an operator brings along has to be of the same form.
//!
//! Keys are looked up by their digests in memory. How long that takes depends on digests of what was sent,
//! which say nothing about the digests that are there.

use std::collections::HashMap;
use std::fmt;
use std::sync::{PoisonError, RwLock};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rusqlite::{OptionalExtension, Row, Transaction, params};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::{CatalogError, Stop, StorageError, What};
use crate::model::{TenantId, Time};
use crate::store::{Store, require_tenant, time};
use crate::{Catalog, LIST_MAX, noted};

/// What every key begins with, so that one that got somewhere is known as such.
const KEY_PREFIX: &str = "rh_";

/// The random bytes of a key.
const KEY_BYTES: usize = 32;

/// What is shown of a key, in characters.
const SHOWN_CHARS: usize = 11;

/// The keys of a tenant, or of operators. Those that are over count for [`OVER_DAYS_KEPT`] days.
const KEYS_MAX: u64 = 10_000;

/// How long keys that were revoked, or expired, are listed, in days.
const OVER_DAYS_KEPT: i64 = 90;

/// Longer names of keys are cut.
const NAME_CHARS_MAX: usize = 100;

/// Names a key, for as long as there is a catalog.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KeyId(pub i64);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a key is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rights {
    /// Everything, for every tenant.
    Operator,
    /// To push and activate plugins of a tenant, and what a caller may.
    Author,
    /// To run rollouts of a tenant, and what a viewer may.
    Caller,
    /// To read what a tenant has.
    Viewer,
}

/// What somebody is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// Tenants, keys, quotas.
    Operate,
    /// Plugins of a tenant.
    Author,
    /// Rollouts of a tenant.
    Call,
    /// To look.
    View,
}

impl Rights {
    /// Whether a key with these rights is enough.
    pub fn allows(self, right: Right) -> bool {
        match right {
            Right::Operate => self == Self::Operator,
            Right::Author => matches!(self, Self::Operator | Self::Author),
            Right::Call => self != Self::Viewer,
            Right::View => true,
        }
    }

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Author => "author",
            Self::Caller => "caller",
            Self::Viewer => "viewer",
        }
    }

    fn of(name: &str) -> Option<Self> {
        [Self::Operator, Self::Author, Self::Caller, Self::Viewer].into_iter().find(|r| r.as_str() == name)
    }
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a key proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The key.
    pub key: KeyId,
    /// The tenant that it belongs to; an operator's belongs to none.
    pub tenant: Option<TenantId>,
    /// What it may.
    pub rights: Rights,
}

/// A key to be made.
#[derive(Clone, Debug)]
pub struct NewKey {
    /// What it is called, for people.
    pub name: String,
    /// What it may.
    pub rights: Rights,
    /// The tenant that it belongs to; an operator's belongs to none.
    pub tenant: Option<TenantId>,
    /// When it ends, if ever.
    pub expires_at: Option<Time>,
}

/// What is shown of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeyInfo {
    /// What it is revoked by.
    pub id: KeyId,
    /// Its first characters.
    pub prefix: String,
    /// What it is called.
    pub name: String,
    /// What it may.
    pub rights: Rights,
    /// The tenant that it belongs to.
    #[serde(skip)]
    pub tenant: Option<TenantId>,
    /// When it was made.
    pub created_at: Time,
    /// When it ends, if ever.
    pub expires_at: Option<Time>,
    /// When it was revoked, if it was.
    pub revoked_at: Option<Time>,
    /// When it was last used, if it was.
    pub last_used_at: Option<Time>,
}

/// A key that was made.
#[derive(Clone, Debug)]
pub struct CreatedKey {
    /// The key itself, which is nowhere else.
    pub key: String,
    /// What is shown of it.
    pub info: KeyInfo,
}

/// The keys that are good, by the digests of their texts.
#[derive(Default)]
pub(crate) struct Keys(RwLock<HashMap<[u8; 32], Good>>);

#[derive(Clone, Copy)]
struct Good {
    identity: Identity,
    expires_at: Option<i64>,
}

impl Keys {
    pub(crate) fn load(store: &Store) -> Result<Self, StorageError> {
        let select = "SELECT k.digest, k.id, k.tenant, k.rights, k.expires_at FROM keys k
            LEFT JOIN tenants t ON t.id = k.tenant
            WHERE k.revoked_at IS NULL AND NOT coalesce(t.deleting, 0)";
        let read = store.read(|transaction| {
            let mut statement = transaction.prepare(select)?;
            let keys = statement.query_map([], |row| {
                let identity = Identity {
                    key: KeyId(row.get(1)?),
                    tenant: row.get::<_, Option<i64>>(2)?.map(TenantId),
                    rights: rights_of(row, 3)?,
                };
                Ok((row.get(0)?, Good { identity, expires_at: row.get(4)? }))
            })?;
            Ok(keys.collect::<rusqlite::Result<HashMap<_, _>>>()?)
        });
        match read {
            Ok(keys) => Ok(Self(RwLock::new(keys))),
            Err(CatalogError::Storage(error)) => Err(error),
            Err(error) => Err(StorageError::new(store.database(), error)),
        }
    }

    fn find(&self, digest: &[u8; 32]) -> Option<Good> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(digest).copied()
    }

    fn add(&self, digest: [u8; 32], good: Good) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(digest, good);
    }

    pub(crate) fn retain(&self, keep: impl Fn(&Identity) -> bool) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).retain(|_, good| keep(&good.identity));
    }
}

impl Catalog {
    /// Who has this key, if it is good now. Nothing is read from the disk.
    pub fn authenticate(&self, key: &str) -> Option<Identity> {
        let good = self.0.keys.find(&digest(key))?;
        let expired = good.expires_at.is_some_and(|end| end <= self.0.store.now().timestamp());
        (!expired).then_some(good.identity)
    }

    /// Notes that a key was used. Written later.
    pub fn touch(&self, key: KeyId) {
        noted::touch(&self.0.store, key);
    }

    /// Makes a key.
    pub fn create_key(&self, new: NewKey) -> Result<CreatedKey, CatalogError> {
        let mut bytes = [0; KEY_BYTES];
        getrandom::fill(&mut bytes)
            .map_err(|error| StorageError::new("/dev/urandom", std::io::Error::from(error)))?;
        let key = format!("{KEY_PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes));
        let info = self.add_key(&key, new)?;
        Ok(CreatedKey { key, info })
    }

    /// Sees to it that this key, which an operator brought along, is an operator's.
    pub fn ensure_operator_key(&self, key: &str, name: &str) -> Result<KeyInfo, CatalogError> {
        let random = key.strip_prefix(KEY_PREFIX).and_then(|key| URL_SAFE_NO_PAD.decode(key).ok());
        if random.is_none_or(|bytes| bytes.len() != KEY_BYTES) {
            return Err(CatalogError::NoKey);
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
                self.add_key(key, NewKey { name, rights: Rights::Operator, tenant: None, expires_at: None })
            }
        }
    }

    /// Whether there is an operator's key that is good now.
    pub fn has_operator_key(&self) -> bool {
        let now = self.0.store.now().timestamp();
        let keys = self.0.keys.0.read().unwrap_or_else(PoisonError::into_inner);
        keys.values().any(|good| {
            good.identity.rights == Rights::Operator && good.expires_at.is_none_or(|end| end > now)
        })
    }

    fn add_key(&self, key: &str, new: NewKey) -> Result<KeyInfo, CatalogError> {
        if (new.rights == Rights::Operator) != new.tenant.is_none() {
            return Err(CatalogError::RightsAndTenant);
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
            forget_old(transaction, now)?;
            require_room(transaction, new.tenant)?;
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
        // Still locked: nobody can have deleted the tenant in between.
        self.0.keys.add(digest, Good { identity, expires_at });
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

    /// Keys in the order in which they were made, those behind `after`: a tenant's, or all of them.
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
        let touches = noted::touches(&self.0.store);
        let mut keys = self.0.store.read(|transaction| {
            let mut statement = transaction.prepare(&select)?;
            let keys = statement.query_map(params![after, tenant.map(|id| id.0), limit], key_info)?;
            Ok(keys.collect::<rusqlite::Result<Vec<_>>>()?)
        })?;
        noted::add_touches(&touches, &mut keys);
        Ok(keys)
    }

    /// What is shown of a key.
    pub fn key(&self, key: KeyId) -> Result<KeyInfo, CatalogError> {
        let select = format!("{SELECT} WHERE id = ?1");
        let found = self
            .0
            .store
            .read(|transaction| Ok(transaction.query_row(&select, [key.0], key_info).optional()?))?;
        found.ok_or_else(|| CatalogError::not_found(What::Key, key))
    }

    /// Revokes a key. It is refused from now on. Revoking it again changes nothing.
    pub fn revoke_key(&self, key: KeyId) -> Result<(), CatalogError> {
        let now = self.0.store.now().timestamp();
        let update = "UPDATE keys SET revoked_at = coalesce(revoked_at, ?2) WHERE id = ?1
            AND NOT EXISTS (SELECT 1 FROM tenants t WHERE t.id = tenant AND t.deleting)";
        let mut locked = self.0.store.locked();
        locked.write(|transaction| match transaction.execute(update, params![key.0, now])? {
            0 => Err(CatalogError::not_found(What::Key, key).into()),
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

fn rights_of(row: &Row<'_>, column: usize) -> rusqlite::Result<Rights> {
    let name: String = row.get(column)?;
    Rights::of(&name).ok_or_else(|| {
        let what = std::io::Error::other(format!("'{name}' are no rights"));
        crate::store::no_value(column, what)
    })
}

/// Removes keys that have been over for long.
fn forget_old(transaction: &Transaction<'_>, now: Time) -> Result<(), Stop> {
    let before = now.timestamp() - OVER_DAYS_KEPT * 24 * 60 * 60;
    transaction.execute("DELETE FROM keys WHERE coalesce(revoked_at, expires_at) < ?1", [before])?;
    Ok(())
}

fn require_room(transaction: &Transaction<'_>, tenant: Option<TenantId>) -> Result<(), Stop> {
    let count = "SELECT count(*) FROM keys WHERE tenant IS ?1";
    let count: u64 = transaction.query_row(count, [tenant.map(|id| id.0)], |row| row.get(0))?;
    if count >= KEYS_MAX {
        return Err(CatalogError::TooMany { what: What::Key, count_max: KEYS_MAX }.into());
    }
    Ok(())
}

fn digest(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}
