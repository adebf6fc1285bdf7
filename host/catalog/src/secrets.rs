//! Sealed secrets of tenants. This crate cannot unseal them.

use rusqlite::params;

use crate::Catalog;
use crate::error::{CatalogError, ResourceKind};
use crate::model::TenantId;
use crate::name::Name;
use crate::store::require_tenant;

/// Maximum number of secrets of a tenant.
const SECRETS_MAX: u64 = 200;

/// Maximum length of a secret's name, in bytes.
pub const SECRET_NAME_BYTES_MAX: usize = Name::LEN_MAX;

impl Catalog {
    /// Stores a secret, replacing the one with the same name.
    pub fn set_secret(&self, tenant: TenantId, name: &Name, sealed: &[u8]) -> Result<(), CatalogError> {
        let upsert = "INSERT OR REPLACE INTO secrets (tenant, name, sealed) VALUES (?1, ?2, ?3)";
        self.0.store.write(|transaction| {
            require_tenant(transaction, tenant)?;
            let count = "SELECT count(*) FROM secrets WHERE tenant = ?1 AND name <> ?2";
            let count: u64 = transaction.query_row(count, params![tenant.0, &**name], |row| row.get(0))?;
            if count >= SECRETS_MAX {
                return Err(
                    CatalogError::TooMany { kind: ResourceKind::Secret, count_max: SECRETS_MAX }.into()
                );
            }
            transaction.execute(upsert, params![tenant.0, &**name, sealed])?;
            Ok(())
        })
    }

    /// Returns all secrets of a tenant, still sealed, ordered by name.
    pub fn secrets(&self, tenant: TenantId) -> Result<Vec<(Name, Vec<u8>)>, CatalogError> {
        let select = "SELECT name, sealed FROM secrets WHERE tenant = ?1 ORDER BY name";
        self.0.store.read(|transaction| {
            require_tenant(transaction, tenant)?;
            let mut statement = transaction.prepare(select)?;
            let secrets =
                statement.query_map([tenant.0], |row| Ok((crate::store::name_of(row, 0)?, row.get(1)?)))?;
            Ok(secrets.collect::<rusqlite::Result<_>>()?)
        })
    }

    /// Deletes a secret.
    pub fn remove_secret(&self, tenant: TenantId, name: &str) -> Result<(), CatalogError> {
        let delete = "DELETE FROM secrets WHERE tenant = ?1 AND name = ?2";
        self.0.store.write(|transaction| match transaction.execute(delete, params![tenant.0, name])? {
            0 => Err(CatalogError::not_found(ResourceKind::Secret, name).into()),
            _ => Ok(()),
        })
    }
}
