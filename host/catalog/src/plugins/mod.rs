//! Plugins of tenants, by name.

mod activation;
mod deployments;

use rollout_wire::quota::{Quota, Quotas};
use rusqlite::{OptionalExtension, Row, Transaction, params};

use crate::components;
use crate::error::{Abort, CatalogError, QuotaExceeded, ResourceKind};
use crate::model::{PluginInfo, TenantId};
use crate::name::Name;
use crate::store::{json, name_of, parsed, require_tenant, time};
use crate::{Catalog, LIST_MAX};

pub use activation::PlannedActivation;
pub use deployments::VERSIONS_MAX;

/// Maximum number of plugins of a tenant, whatever its quota.
const PLUGINS_MAX: u64 = 10_000;

const SELECT: &str = "SELECT p.id, p.tenant, p.name, p.quotas, p.active, p.created_at,
    (SELECT max(version) FROM deployments d WHERE d.plugin = p.id),
    EXISTS (SELECT 1 FROM tenants t WHERE t.id = p.tenant AND t.default_plugin = p.id)
    FROM plugins p WHERE p.tenant = ?1";

impl Catalog {
    /// Lists plugins of a tenant by name, starting after `after`.
    pub fn plugins(
        &self,
        tenant: TenantId,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<PluginInfo>, CatalogError> {
        let select = format!("{SELECT} AND p.name > ?2 ORDER BY p.name LIMIT ?3");
        self.0.store.read(|transaction| {
            require_tenant(transaction, tenant)?;
            let mut statement = transaction.prepare(&select)?;
            let given = params![tenant.0, after.unwrap_or(""), limit.min(LIST_MAX)];
            let plugins = statement.query_map(given, plugin)?;
            Ok(plugins.collect::<rusqlite::Result<_>>()?)
        })
    }

    /// Returns a plugin of a tenant.
    pub fn plugin(&self, tenant: TenantId, name: &str) -> Result<PluginInfo, CatalogError> {
        self.0.store.read(|transaction| named(transaction, tenant, name))
    }

    /// Changes the quotas of a plugin. Concurrent changes wait for each other.
    pub fn update_plugin(
        &self,
        tenant: TenantId,
        name: &str,
        change: impl Fn(&mut Quotas),
    ) -> Result<PluginInfo, CatalogError> {
        self.0.store.write(|transaction| {
            let mut plugin = named(transaction, tenant, name)?;
            change(&mut plugin.quotas);
            let update = "UPDATE plugins SET quotas = ?2 WHERE id = ?1";
            transaction.execute(update, params![plugin.id, json(&plugin.quotas)?])?;
            Ok(plugin)
        })
    }

    /// Sets the plugin that answers at a tenant's root URL, or none.
    pub fn set_default_plugin(&self, tenant: TenantId, name: Option<&str>) -> Result<(), CatalogError> {
        self.0.store.write(|transaction| {
            require_tenant(transaction, tenant)?;
            let plugin = name.map(|name| named(transaction, tenant, name)).transpose()?;
            let update = "UPDATE tenants SET default_plugin = ?2 WHERE id = ?1";
            transaction.execute(update, params![tenant.0, plugin.map(|plugin| plugin.id)])?;
            Ok(())
        })
    }

    /// Removes a plugin with its deployments and the components that no other deployment of the tenant refers
    /// to.
    pub fn remove_plugin(&self, tenant: TenantId, name: &str) -> Result<(), CatalogError> {
        let store = &self.0.store;
        let now = store.now().timestamp();
        let mut locked = store.locked();
        let disowned = locked.write(|transaction| {
            let id = named(transaction, tenant, name)?.id;
            transaction.execute("UPDATE plugins SET active = NULL WHERE id = ?1", [id])?;
            transaction.execute("DELETE FROM plugins WHERE id = ?1", [id])?;
            components::disown_unused(transaction, now)
        })?;
        components::remove_everywhere(store, &mut locked, &disowned)
    }
}

fn find(transaction: &Transaction<'_>, tenant: TenantId, name: &str) -> Result<Option<PluginInfo>, Abort> {
    require_tenant(transaction, tenant)?;
    let select = format!("{SELECT} AND p.name = ?2");
    Ok(transaction.query_row(&select, params![tenant.0, name], plugin).optional()?)
}

fn named(transaction: &Transaction<'_>, tenant: TenantId, name: &str) -> Result<PluginInfo, Abort> {
    find(transaction, tenant, name)?.ok_or_else(|| CatalogError::not_found(ResourceKind::Plugin, name).into())
}

/// Returns the id of a plugin, which is created if the quota allows.
fn find_or_create(
    transaction: &Transaction<'_>,
    tenant: TenantId,
    name: &Name,
    now: i64,
) -> Result<i64, Abort> {
    if let Some(plugin) = find(transaction, tenant, name)? {
        return Ok(plugin.id);
    }
    let select = "SELECT quotas, (SELECT count(*) FROM plugins WHERE tenant = ?1) FROM tenants WHERE id = ?1";
    let (quotas, used): (Quotas, u64) =
        transaction.query_row(select, [tenant.0], |row| Ok((parsed(row, 0)?, row.get(1)?)))?;
    if let Some(limit) = quotas.get(Quota::Plugins)
        && used >= limit
    {
        return Err(QuotaExceeded { quota: Quota::Plugins, limit, used, requested: 1 }.into());
    }
    if used >= PLUGINS_MAX {
        return Err(CatalogError::TooMany { kind: ResourceKind::Plugin, count_max: PLUGINS_MAX }.into());
    }
    let insert = "INSERT INTO plugins (tenant, name, quotas, created_at) VALUES (?1, ?2, '{}', ?3)";
    transaction.execute(insert, params![tenant.0, &**name, now])?;
    Ok(transaction.last_insert_rowid())
}

fn plugin(row: &Row<'_>) -> rusqlite::Result<PluginInfo> {
    Ok(PluginInfo {
        id: row.get(0)?,
        tenant: TenantId(row.get(1)?),
        name: name_of(row, 2)?,
        quotas: parsed(row, 3)?,
        active: row.get(4)?,
        newest: row.get(6)?,
        default: row.get(7)?,
        created_at: time(row.get(5)?),
    })
}
