//! Deployments of a plugin, by version.

use rusqlite::{OptionalExtension, Row, Transaction, params};

use super::{find_or_create, named};
use crate::components;
use crate::error::{Abort, CatalogError, ResourceKind};
use crate::model::{Deployment, DeploymentInfo, NewDeployment, TenantId};
use crate::name::Name;
use crate::store::{json, name_of, no_value, optional, time};
use crate::{Catalog, LIST_MAX};
use rollout_wire::digest::Digest;

/// Number of newest versions that [`Catalog::prune`] leaves, besides those that are in use.
pub const VERSIONS_MAX: u32 = 20;

/// Selects the deployments of one plugin.
const SELECT: &str = "SELECT d.id, p.name, d.version, d.component, d.grader, d.passed,
    coalesce(d.version = p.active, 0), d.created_at, d.created_by, d.config, d.report,
    d.component_origin, d.grader_origin
    FROM deployments d JOIN plugins p ON p.id = d.plugin WHERE d.plugin = ?1";

impl Catalog {
    /// Adds a checked deployment as the next version of a plugin. Creates the plugin if it is new.
    pub fn add_deployment(
        &self,
        tenant: TenantId,
        plugin: &Name,
        new: &NewDeployment,
    ) -> Result<DeploymentInfo, CatalogError> {
        let now = self.0.store.now();
        self.0.store.write(|transaction| {
            let id = find_or_create(transaction, tenant, plugin, now.timestamp())?;
            require_component(transaction, tenant, new.component)?;
            if let Some(grader) = new.grader {
                require_component(transaction, tenant, grader)?;
            }
            let next =
                "UPDATE plugins SET version_next = version_next + 1 WHERE id = ?1 RETURNING version_next - 1";
            let version: u32 = transaction.query_row(next, [id], |row| row.get(0))?;
            let created_by = new.created_by.clone();
            transaction.execute(
                "INSERT INTO deployments
                 (plugin, version, tenant, component, grader, config, passed, report, created_at, created_by,
                  component_origin, grader_origin)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
                params![
                    id,
                    version,
                    tenant.0,
                    new.component.to_string(),
                    new.grader.map(|grader| grader.to_string()),
                    new.config,
                    new.passed,
                    new.report,
                    now.timestamp(),
                    created_by,
                    new.component_origin.as_ref().map(json).transpose()?,
                    new.grader_origin.as_ref().map(json).transpose()?,
                ],
            )?;
            Ok(DeploymentInfo {
                id: transaction.last_insert_rowid(),
                plugin: plugin.clone(),
                version,
                component: new.component,
                grader: new.grader,
                component_origin: new.component_origin.clone(),
                grader_origin: new.grader_origin.clone(),
                passed: new.passed,
                active: false,
                created_at: now,
                created_by,
            })
        })
    }

    /// Lists deployments of a plugin, the newest first, starting below version `before`.
    pub fn deployments(
        &self,
        tenant: TenantId,
        plugin: &str,
        before: Option<u32>,
        limit: u32,
    ) -> Result<Vec<DeploymentInfo>, CatalogError> {
        let select = format!("{SELECT} AND (?2 IS NULL OR d.version < ?2) ORDER BY d.version DESC LIMIT ?3");
        self.0.store.read(|transaction| {
            let id = named(transaction, tenant, plugin)?.id;
            let mut statement = transaction.prepare(&select)?;
            let rows = statement.query_map(params![id, before, limit.min(LIST_MAX)], info)?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
    }

    /// Returns a deployment with its configuration and report.
    pub fn deployment(
        &self,
        tenant: TenantId,
        plugin: &str,
        version: u32,
    ) -> Result<Deployment, CatalogError> {
        let select = format!("{SELECT} AND d.version = ?2");
        self.0.store.read(|transaction| {
            let id = named(transaction, tenant, plugin)?.id;
            let found = transaction
                .query_row(&select, params![id, version], |row| {
                    Ok(Deployment { info: info(row)?, config: row.get(9)?, report: row.get(10)? })
                })
                .optional()?;
            found.ok_or_else(|| CatalogError::not_found(ResourceKind::Deployment, version).into())
        })
    }

    /// Removes old deployments and the components that no other deployment of the tenant refers to. Returns
    /// the removed versions.
    ///
    /// Leaves the newest [`VERSIONS_MAX`], the active version, the previously active one and those
    /// `in_use`.
    pub fn prune(&self, tenant: TenantId, plugin: &str, in_use: &[u32]) -> Result<Vec<u32>, CatalogError> {
        let select = "SELECT version FROM deployments WHERE plugin = ?1 ORDER BY version DESC
            LIMIT -1 OFFSET ?2";
        let store = &self.0.store;
        let now = store.now().timestamp();
        let mut locked = store.locked();
        let (removed, disowned) = locked.write(|transaction| {
            let plugin = named(transaction, tenant, plugin)?;
            let before = super::activation::before(transaction, &plugin)?;
            let mut statement = transaction.prepare(select)?;
            let old = statement.query_map(params![plugin.id, VERSIONS_MAX], |row| row.get(0))?;
            let mut old = old.collect::<rusqlite::Result<Vec<u32>>>()?;
            old.retain(|version| {
                Some(*version) != plugin.active && Some(*version) != before && !in_use.contains(version)
            });
            for version in &old {
                let delete = "DELETE FROM deployments WHERE plugin = ?1 AND version = ?2";
                transaction.execute(delete, params![plugin.id, version])?;
            }
            Ok((old, components::disown_unused(transaction, now)?))
        })?;
        components::remove_everywhere(store, &mut locked, &disowned)?;
        Ok(removed)
    }
}

fn require_component(transaction: &Transaction<'_>, tenant: TenantId, digest: Digest) -> Result<(), Abort> {
    let mut statement = transaction.prepare("SELECT 1 FROM components WHERE tenant = ?1 AND digest = ?2")?;
    if statement.exists(params![tenant.0, digest.to_string()])? {
        Ok(())
    } else {
        Err(CatalogError::UnknownComponent(digest).into())
    }
}

fn info(row: &Row<'_>) -> rusqlite::Result<DeploymentInfo> {
    let digest = |text: String| text.parse::<Digest>().map_err(|error| no_value(3, error));
    Ok(DeploymentInfo {
        id: row.get(0)?,
        plugin: name_of(row, 1)?,
        version: row.get(2)?,
        component: digest(row.get(3)?)?,
        grader: row.get::<_, Option<String>>(4)?.map(digest).transpose()?,
        component_origin: optional(row, 11)?,
        grader_origin: optional(row, 12)?,
        passed: row.get(5)?,
        active: row.get(6)?,
        created_at: time(row.get(7)?),
        created_by: row.get(8)?,
    })
}
