//! Activations of deployments and their history.

use rusqlite::{OptionalExtension, Transaction, params};

use super::named;
use crate::error::{Abort, CatalogError, ResourceKind};
use crate::model::{Activation, Origin, PluginInfo, TenantId, Time, TrustedKey};
use crate::store::{optional, parsed, time};
use crate::{Catalog, LIST_MAX};

/// Maximum number of activations in a plugin's history.
const ACTIVATIONS_MAX: u32 = 1000;

/// An activation as it was planned, which other workers prepare before the catalog is changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedActivation {
    /// Id of the plugin.
    pub plugin: i64,
    /// Version that becomes active.
    pub version: u32,
    /// Id of the newest activation, whose version is active now.
    newest: Option<i64>,
}

impl Catalog {
    /// Checks an activation of a version, by default of the previously active one, without making it.
    pub fn plan_activation(
        &self,
        tenant: TenantId,
        plugin: &str,
        version: Option<u32>,
    ) -> Result<PlannedActivation, CatalogError> {
        self.0.store.read(|transaction| {
            let plugin = named(transaction, tenant, plugin)?;
            let version = match version {
                Some(version) => version,
                None => previous(transaction, &plugin)?,
            };
            check(transaction, &plugin, version)?;
            Ok(PlannedActivation { plugin: plugin.id, version, newest: newest(transaction, plugin.id)? })
        })
    }

    /// Makes a planned activation. Fails if any version was activated since, or if another plugin has the name.
    pub fn activate_planned(
        &self,
        tenant: TenantId,
        plugin: &str,
        planned: &PlannedActivation,
        by: &str,
    ) -> Result<Activation, CatalogError> {
        let now = self.0.store.now();
        self.0.store.write(|transaction| {
            let plugin = named(transaction, tenant, plugin)?;
            if (plugin.id, newest(transaction, plugin.id)?) != (planned.plugin, planned.newest) {
                let (plugin, version) = (plugin.name.to_string(), planned.version);
                return Err(CatalogError::ActivatedMeanwhile { plugin, version }.into());
            }
            activate(transaction, &plugin, planned.version, now, by)
        })
    }

    /// Activates a version that passed its checks.
    pub fn activate(
        &self,
        tenant: TenantId,
        plugin: &str,
        version: u32,
        by: &str,
    ) -> Result<Activation, CatalogError> {
        let now = self.0.store.now();
        self.0.store.write(|transaction| {
            let plugin = named(transaction, tenant, plugin)?;
            activate(transaction, &plugin, version, now, by)
        })
    }

    /// Activates the previously active version. Two rollbacks in a row cancel each other.
    pub fn rollback(&self, tenant: TenantId, plugin: &str, by: &str) -> Result<Activation, CatalogError> {
        let now = self.0.store.now();
        self.0.store.write(|transaction| {
            let plugin = named(transaction, tenant, plugin)?;
            let version = previous(transaction, &plugin)?;
            activate(transaction, &plugin, version, now, by)
        })
    }

    /// Reverts an activation and removes it from the history. Does nothing if it is not the newest.
    pub fn undo(&self, activation: &Activation) -> Result<(), CatalogError> {
        self.0.store.write(|transaction| {
            if newest(transaction, activation.plugin)? == Some(activation.id) {
                let update = "UPDATE plugins SET active = ?2 WHERE id = ?1";
                transaction.execute(update, params![activation.plugin, activation.before])?;
                transaction.execute("DELETE FROM activations WHERE id = ?1", [activation.id])?;
            }
            Ok(())
        })
    }

    /// Lists a plugin's activations, the newest first.
    pub fn activations(
        &self,
        tenant: TenantId,
        plugin: &str,
        limit: u32,
    ) -> Result<Vec<Activation>, CatalogError> {
        let select = "SELECT id, plugin, version, before, at, by FROM activations
            WHERE plugin = ?1 ORDER BY id DESC LIMIT ?2";
        self.0.store.read(|transaction| {
            let id = named(transaction, tenant, plugin)?.id;
            let mut statement = transaction.prepare(select)?;
            let rows = statement.query_map(params![id, limit.min(LIST_MAX)], |row| {
                Ok(Activation {
                    id: row.get(0)?,
                    plugin: row.get(1)?,
                    version: row.get(2)?,
                    before: row.get(3)?,
                    at: time(row.get(4)?),
                    by: row.get(5)?,
                })
            })?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
    }
}

/// Returns the id of a plugin's newest activation, if it has any.
fn newest(transaction: &Transaction<'_>, plugin: i64) -> rusqlite::Result<Option<i64>> {
    transaction.query_row("SELECT max(id) FROM activations WHERE plugin = ?1", [plugin], |row| row.get(0))
}

/// Returns the version that was active before the current one.
fn previous(transaction: &Transaction<'_>, plugin: &PluginInfo) -> Result<u32, Abort> {
    let before = before(transaction, plugin)?;
    before.ok_or_else(|| CatalogError::NoEarlierVersion(plugin.name.to_string()).into())
}

/// Checks that a version may become active.
fn check(transaction: &Transaction<'_>, plugin: &PluginInfo, version: u32) -> Result<(), Abort> {
    let select = "SELECT passed, component_origin, grader IS NOT NULL, grader_origin
        FROM deployments WHERE plugin = ?1 AND version = ?2";
    let found = transaction.query_row(select, params![plugin.id, version], |row| {
        let grader: Option<Option<Origin>> = if row.get(2)? { Some(optional(row, 3)?) } else { None };
        Ok((row.get::<_, bool>(0)?, optional::<Origin>(row, 1)?, grader))
    });
    let Some((passed, component, grader)) = found.optional()? else {
        return Err(CatalogError::not_found(ResourceKind::Deployment, version).into());
    };
    let name = plugin.name.to_string();
    if !passed {
        return Err(CatalogError::ChecksFailed { plugin: name, version }.into());
    }
    let select = "SELECT trusted_keys FROM tenants WHERE id = ?1";
    let keys: Vec<TrustedKey> = transaction.query_row(select, [plugin.tenant.0], |row| parsed(row, 0))?;
    let is_signed = |origin: &Option<Origin>| {
        let signers = origin.iter().flat_map(|origin| &origin.signers);
        signers.into_iter().any(|signer| keys.iter().any(|key| key.id == *signer))
    };
    let are_signed = is_signed(&component) && grader.as_ref().is_none_or(is_signed);
    if !keys.is_empty() && !are_signed {
        return Err(CatalogError::Untrusted { plugin: name, version }.into());
    }
    Ok(())
}

fn activate(
    transaction: &Transaction<'_>,
    plugin: &PluginInfo,
    version: u32,
    now: Time,
    by: &str,
) -> Result<Activation, Abort> {
    check(transaction, plugin, version)?;
    transaction.execute("UPDATE plugins SET active = ?2 WHERE id = ?1", params![plugin.id, version])?;
    transaction.execute(
        "INSERT INTO activations (plugin, version, before, at, by) VALUES (?1, ?2, ?3, ?4, ?5)",
        params![plugin.id, version, plugin.active, now.timestamp(), by],
    )?;
    let id = transaction.last_insert_rowid();
    transaction.execute(
        "DELETE FROM activations WHERE plugin = ?1 AND id <=
         (SELECT id FROM activations WHERE plugin = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)",
        params![plugin.id, ACTIVATIONS_MAX],
    )?;
    Ok(Activation { id, plugin: plugin.id, version, before: plugin.active, at: now, by: by.to_owned() })
}

/// Returns the version that was active before the current one, among those that still exist.
pub(super) fn before(transaction: &Transaction<'_>, plugin: &PluginInfo) -> Result<Option<u32>, Abort> {
    let select = "SELECT a.version FROM activations a
        JOIN deployments d ON d.plugin = a.plugin AND d.version = a.version
        WHERE a.plugin = ?1 AND a.version IS NOT ?2 ORDER BY a.id DESC LIMIT 1";
    Ok(transaction.query_row(select, params![plugin.id, plugin.active], |row| row.get(0)).optional()?)
}
