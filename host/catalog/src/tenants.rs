//! Tenants and their folders.

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::path::{Path, PathBuf};

use rollout_wire::quota::Quotas;
use rusqlite::{OptionalExtension, Row, Transaction, params};

use crate::components;
use crate::error::{Abort, CatalogError, ResourceKind, StorageError, at};
use crate::model::{NetworkRules, TenantId, TenantInfo, TenantSettings, TrustedKey};
use crate::name::Name;
use crate::sharing::JOURNALS_BEFORE_SHARING;
use crate::store::{Locked, Store, json, name_of, parsed, sync_folder, time};
use crate::{Catalog, LIST_MAX, write_behind};

const SELECT: &str = "SELECT t.id, t.name, t.quotas, t.network, t.created_at, p.name, t.trusted_keys
    FROM tenants t LEFT JOIN plugins p ON p.id = t.default_plugin WHERE NOT t.deleting";

impl Catalog {
    /// Creates a tenant and its folder.
    pub fn create_tenant(&self, name: &Name, settings: &TenantSettings) -> Result<TenantInfo, CatalogError> {
        let store = &self.0.store;
        let now = store.now();
        let insert = "INSERT INTO tenants (name, quotas, network, created_at, trusted_keys)
            VALUES (?1, ?2, ?3, ?4, ?5)";
        let id = store.write(|transaction| {
            if find(transaction, name)?.is_some() {
                return Err(
                    CatalogError::Exists { kind: ResourceKind::Tenant, name: name.to_string() }.into()
                );
            }
            let (quotas, network) = (json(&settings.quotas)?, json(&settings.network)?);
            let trusted_keys = json(&settings.trusted_keys)?;
            transaction.execute(insert, params![&**name, quotas, network, now.timestamp(), trusted_keys])?;
            let id = TenantId(transaction.last_insert_rowid());
            // If the transaction is not committed, the next sweep removes the folder.
            let folder = folder(&store.path, id);
            std::fs::create_dir_all(&folder).map_err(at(&folder))?;
            sync_folder(&tenants(&store.path))?;
            Ok(id)
        })?;
        let TenantSettings { quotas, network, trusted_keys } = settings.clone();
        let (name, default_plugin) = (name.clone(), None);
        Ok(TenantInfo { id, name, quotas, network, trusted_keys, default_plugin, created_at: now })
    }

    /// Lists tenants by name, starting after `after`.
    pub fn tenants(&self, after: Option<&str>, limit: u32) -> Result<Vec<TenantInfo>, CatalogError> {
        let select = format!("{SELECT} AND t.name > ?1 ORDER BY t.name LIMIT ?2");
        self.0.store.read(|transaction| {
            let mut statement = transaction.prepare(&select)?;
            let tenants = statement.query_map(params![after.unwrap_or(""), limit.min(LIST_MAX)], tenant)?;
            Ok(tenants.collect::<rusqlite::Result<_>>()?)
        })
    }

    /// Returns the tenant with this name.
    pub fn tenant_named(&self, name: &str) -> Result<TenantInfo, CatalogError> {
        self.0.store.read(|transaction| named(transaction, name))
    }

    /// Returns the tenant with this id.
    pub fn tenant(&self, id: TenantId) -> Result<TenantInfo, CatalogError> {
        let select = format!("{SELECT} AND t.id = ?1");
        let found = self
            .0
            .store
            .read(|transaction| Ok(transaction.query_row(&select, [id.0], tenant).optional()?))?;
        found.ok_or_else(|| CatalogError::not_found(ResourceKind::Tenant, id))
    }

    /// Changes a tenant. Concurrent changes wait for each other.
    pub fn update_tenant(
        &self,
        name: &str,
        change: impl Fn(&mut TenantSettings),
    ) -> Result<TenantInfo, CatalogError> {
        self.0.store.write(|transaction| {
            let mut tenant = named(transaction, name)?;
            let mut settings = TenantSettings {
                quotas: tenant.quotas,
                network: tenant.network,
                trusted_keys: tenant.trusted_keys,
            };
            change(&mut settings);
            let TenantSettings { quotas, network, trusted_keys } = settings;
            let update = "UPDATE tenants SET quotas = ?2, network = ?3, trusted_keys = ?4 WHERE id = ?1";
            let values = [json(&quotas)?, json(&network)?, json(&trusted_keys)?];
            transaction.execute(update, params![tenant.id.0, values[0], values[1], values[2]])?;
            (tenant.quotas, tenant.network, tenant.trusted_keys) = (quotas, network, trusted_keys);
            Ok(tenant)
        })
    }

    /// Begins to delete a tenant: the tenant is no longer listed, its keys are invalid and its name is free.
    /// Its rows and files stay until [`finish_deleting`](Self::finish_deleting).
    pub fn delete_tenant(&self, name: &str) -> Result<TenantId, CatalogError> {
        let mut locked = self.0.store.locked();
        let id = locked.write(|transaction| {
            let id = named(transaction, name)?.id;
            transaction.execute("UPDATE tenants SET deleting = 1 WHERE id = ?1", [id.0])?;
            Ok(id)
        })?;
        self.0.keys.retain(|identity| identity.tenant != Some(id));
        Ok(id)
    }

    /// Returns the tenants that are being deleted. After opening a catalog, the caller must finish them.
    pub fn tenants_being_deleted(&self) -> Result<Vec<TenantId>, CatalogError> {
        self.0.store.read(|transaction| {
            let mut statement = transaction.prepare("SELECT id FROM tenants WHERE deleting ORDER BY id")?;
            let ids = statement.query_map([], |row| Ok(TenantId(row.get(0)?)))?;
            Ok(ids.collect::<rusqlite::Result<_>>()?)
        })
    }

    /// Deletes the data of a tenant that is being deleted: first its folder, then its rows and the
    /// components that no other tenant has. All files in the folder must be closed.
    pub fn finish_deleting(&self, id: TenantId) -> Result<(), CatalogError> {
        let store = &self.0.store;
        if !self.tenants_being_deleted()?.contains(&id) {
            return Err(CatalogError::not_found(ResourceKind::Tenant, id));
        }
        remove_folders(&store.path, id)?;
        let mut locked = store.locked();
        let digests = locked.write(|transaction| {
            let digests = components::digests_of_tenant(transaction, id)?;
            // Rows that refer to other rows go first.
            transaction.execute("UPDATE plugins SET active = NULL WHERE tenant = ?1", [id.0])?;
            transaction.execute("DELETE FROM plugins WHERE tenant = ?1", [id.0])?;
            transaction.execute("DELETE FROM tenants WHERE id = ?1", [id.0])?;
            Ok(digests)
        })?;
        write_behind::forget_tenant(store, id);
        components::remove_everywhere(store, &mut locked, &digests)
    }

    /// Removes the folder of a tenant that another process has deleted. All files in it must be closed.
    pub fn remove_folder(&self, id: TenantId) -> Result<(), CatalogError> {
        Ok(remove_folders(&self.0.store.path, id)?)
    }

    /// Returns the folder for the tenant's files, which other crates write.
    pub fn tenant_folder(&self, id: TenantId) -> PathBuf {
        folder(&self.0.store.path, id)
    }
}

/// Creates the folders of these tenants, as far as they exist.
pub(crate) fn create_folders(
    path: &Path,
    locked: &mut Locked<'_>,
    ids: &BTreeSet<TenantId>,
) -> Result<(), CatalogError> {
    for id in ids {
        let is_there = locked.read(|transaction| {
            Ok(transaction.prepare("SELECT 1 FROM tenants WHERE id = ?1")?.exists([id.0])?)
        })?;
        if is_there {
            let folder = folder(path, *id);
            std::fs::create_dir_all(&folder).map_err(at(&folder))?;
        }
    }
    Ok(())
}

fn tenants(catalog: &Path) -> PathBuf {
    catalog.join("tenants")
}

fn folder(catalog: &Path, id: TenantId) -> PathBuf {
    tenants(catalog).join(id.to_string())
}

/// Removes the folders of a tenant: that of its files, and its journal from before the catalog was shared.
fn remove_folders(catalog: &Path, id: TenantId) -> Result<(), StorageError> {
    remove_folder(&folder(catalog, id))?;
    remove_folder(&catalog.join(JOURNALS_BEFORE_SHARING).join(id.to_string()))
}

fn remove_folder(path: &Path) -> Result<(), StorageError> {
    match std::fs::remove_dir_all(path) {
        Ok(()) => path.parent().map_or(Ok(()), sync_folder),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(at(path)(error)),
    }
}

/// Removes folders of tenants that do not exist, and creates missing folders of those that do.
pub(crate) fn sweep(store: &Store) -> Result<(), StorageError> {
    let read = store.read(|transaction| {
        let mut statement = transaction.prepare("SELECT id FROM tenants")?;
        let ids = statement.query_map([], |row| row.get::<_, i64>(0))?;
        Ok(ids.collect::<rusqlite::Result<HashSet<i64>>>()?)
    });
    let ids = read.map_err(|error| match error {
        CatalogError::Storage(error) => error,
        error => StorageError::new(store.database(), error),
    })?;
    let all = tenants(&store.path);
    std::fs::create_dir_all(&all).map_err(at(&all))?;
    remove_others(&all, &ids)?;
    remove_others(&store.path.join(JOURNALS_BEFORE_SHARING), &ids)?;
    for id in ids {
        let folder = folder(&store.path, TenantId(id));
        std::fs::create_dir_all(&folder).map_err(at(&folder))?;
    }
    sync_folder(&all)
}

/// Removes the folders of other tenants than these.
fn remove_others(all: &Path, ids: &HashSet<i64>) -> Result<(), StorageError> {
    let entries = match std::fs::read_dir(all) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(at(all))?,
    };
    for entry in entries {
        let path = entry.map_err(at(all))?.path();
        let id = path.file_name().and_then(|name| name.to_str()?.parse::<i64>().ok());
        if id.is_some_and(|id| !ids.contains(&id)) {
            remove_folder(&path)?;
        }
    }
    Ok(())
}

fn find(transaction: &Transaction<'_>, name: &str) -> rusqlite::Result<Option<TenantInfo>> {
    transaction.query_row(&format!("{SELECT} AND t.name = ?1"), [name], tenant).optional()
}

fn named(transaction: &Transaction<'_>, name: &str) -> Result<TenantInfo, Abort> {
    find(transaction, name)?.ok_or_else(|| CatalogError::not_found(ResourceKind::Tenant, name).into())
}

fn tenant(row: &Row<'_>) -> rusqlite::Result<TenantInfo> {
    Ok(TenantInfo {
        id: TenantId(row.get(0)?),
        name: name_of(row, 1)?,
        quotas: parsed::<Quotas>(row, 2)?,
        network: parsed::<NetworkRules>(row, 3)?,
        trusted_keys: parsed::<Vec<TrustedKey>>(row, 6)?,
        default_plugin: row.get::<_, Option<String>>(5)?.map(|_| name_of(row, 5)).transpose()?,
        created_at: time(row.get(4)?),
    })
}
