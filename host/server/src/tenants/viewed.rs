//! A server of many tenants, as its pages show it.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::tenant::OpenTenant;
use super::{TenantError, Tenants};
use crate::admin::{Admin, PageRefusal};
use crate::ui::{NotShown, PROCESS, Scope, Viewed, Viewer};
use rollout_catalog::{Catalog, CatalogError, Right, TenantId};
use rollout_core::telemetry::Metrics;
use rollout_outbound::Secret;
use rollout_page::{
    DeploymentSource, Gauge, LoadSample, PluginLine, PluginSource, TenantLine, bytes, number,
};
use rollout_wire::quota::{Quota, Quotas};

/// Number of deployments on the page of a plugin.
const DEPLOYMENTS_MAX: u32 = 20;

/// A server of many tenants, as the source of its pages.
pub(super) struct ViewedTenants {
    pub tenants: Tenants,
    /// The admin API, which activates versions.
    pub admin: Admin,
    /// Whether browsers connect with TLS.
    pub is_encrypted: bool,
}

impl Viewed for ViewedTenants {
    fn name(&self) -> String {
        "rollout-host".to_owned()
    }

    fn is_keyed(&self) -> bool {
        true
    }

    fn is_encrypted(&self) -> bool {
        self.is_encrypted
    }

    fn is_behind_gateway(&self) -> bool {
        self.tenants.0.worker.is_some()
    }

    fn viewer(&self, key: &str) -> Option<Viewer> {
        let identity = self.tenants.0.catalog.authenticate(key)?;
        Some(Viewer {
            tenant: identity.tenant.map(|tenant| tenant.0),
            is_operator: identity.tenant.is_none(),
            rights: identity.rights.to_string(),
            may_activate: identity.rights.allows(Right::Author),
        })
    }

    fn anyone(&self) -> Viewer {
        // A browser without a key sees no tenant.
        Viewer { tenant: None, is_operator: false, rights: String::new(), may_activate: false }
    }

    fn scope(&self, viewer: Viewer, tenant: Option<String>) -> BoxFuture<'_, Result<Scope, NotShown>> {
        async move {
            let id = self.selected(&viewer, tenant).await?;
            let tenant = self.tenants.tenant(id).await.map_err(not_shown)?;
            let catalog = self.tenants.0.catalog.clone();
            let quotas =
                tokio::task::spawn_blocking(move || catalog.tenant(id).map(|tenant| tenant.quotas)).await;
            let quotas = quotas.map_err(|_| NotShown::Failed)?.map_err(|error| not_shown(error.into()))?;
            let [running, _] = tenant.slots.busy();
            let all_slots = u64::from(self.tenants.0.slots.running_max);
            let running_max = quotas.get(Quota::Running).unwrap_or(all_slots).min(all_slots);
            Ok(Scope {
                number: id.0,
                slots: tenant.slots.clone(),
                journal: tenant.journal.clone(),
                budget: tenant.budget.clone(),
                plugins: plugin_lines(&tenant),
                gauges: vec![Gauge::new("running", running as u64, running_max, number)],
                quotas: quota_gauges(&tenant, &quotas),
                load: load_of(&tenant),
            })
        }
        .boxed()
    }

    fn tenants(&self) -> Vec<TenantLine> {
        let line = |tenant: Arc<OpenTenant>| {
            let [running, queued] = tenant.slots.busy();
            let counts = tenant.slots.activity().counts();
            TenantLine {
                name: tenant.name.to_string(),
                running,
                queued,
                ended: counts.scored + counts.unscored,
                unscored: counts.unscored,
                tokens: counts.tokens,
            }
        };
        let mut lines: Vec<TenantLine> = self.tenants.open_tenants().into_iter().map(line).collect();
        lines.sort_by(|one, other| one.name.cmp(&other.name));
        lines
    }

    fn process_gauges(&self) -> Vec<Gauge> {
        let (load, budget) = (self.tenants.load(), self.tenants.budget());
        vec![
            Gauge::new("running", load.running.into(), load.max_concurrent.into(), number),
            Gauge::new("queued", load.queued.into(), self.tenants.0.slots.queue_max.into(), number),
            Gauge::new("memory", budget.used() as u64, budget.total() as u64, bytes),
        ]
    }

    fn loads(&self) -> Vec<(i64, LoadSample)> {
        let tenants = self.tenants.open_tenants();
        let mut loads: Vec<_> = tenants.iter().map(|tenant| (tenant.id.0, load_of(tenant))).collect();
        let process = LoadSample {
            running: self.tenants.load().running.into(),
            memory_bytes: Some(self.tenants.budget().used() as u64),
            ended: loads.iter().map(|(_, load)| load.ended).sum(),
            tokens: loads.iter().map(|(_, load)| load.tokens).sum(),
            guest_cpu: loads.iter().map(|(_, load)| load.guest_cpu).sum(),
            ..LoadSample::default()
        };
        loads.push((PROCESS, process));
        loads
    }

    fn plugin(
        &self,
        viewer: Viewer,
        tenant: Option<String>,
        plugin: String,
    ) -> BoxFuture<'_, Result<PluginSource, NotShown>> {
        async move {
            let id = self.selected(&viewer, tenant).await?;
            let catalog = self.tenants.0.catalog.clone();
            let may_activate = viewer.may_activate;
            let read = move || plugin_source(&catalog, id, plugin, may_activate);
            let read = tokio::task::spawn_blocking(read).await.map_err(|_| NotShown::Failed)?;
            read.map_err(|error| match error {
                CatalogError::NotFound { .. } => {
                    NotShown::Missing { title: "No such plugin", reason: error.to_string() }
                }
                error => not_shown(error.into()),
            })
        }
        .boxed()
    }

    fn activate(
        &self,
        key: Secret,
        tenant: Option<String>,
        plugin: String,
        version: Option<u32>,
    ) -> BoxFuture<'_, Result<(), NotShown>> {
        async move {
            let forbidden = || NotShown::Forbidden("This key may not activate plugins.".to_owned());
            let identity = self.tenants.0.catalog.authenticate(key.expose()).ok_or_else(forbidden)?;
            if !identity.rights.allows(Right::Author) {
                return Err(forbidden());
            }
            let viewer = self.viewer(key.expose()).ok_or_else(forbidden)?;
            let id = self.selected(&viewer, tenant).await?;
            let activated = self.admin.activate_for_page(id, identity.key, plugin, version).await;
            activated.map_err(|refusal| match refusal {
                PageRefusal::NotFound(reason) => NotShown::Missing { title: "No such version", reason },
                PageRefusal::Refused(reason) => NotShown::Refused(reason),
                PageRefusal::NoRoom(reason) => NotShown::NoRoom(reason),
                PageRefusal::Failed => NotShown::Failed,
            })
        }
        .boxed()
    }

    fn is_accepting(&self) -> bool {
        self.tenants.load().accepting
    }

    fn metrics(&self) -> &Arc<Metrics> {
        self.tenants.metrics()
    }
}

impl ViewedTenants {
    /// Returns the viewer's tenant, or the one that an operator names.
    async fn selected(&self, viewer: &Viewer, tenant: Option<String>) -> Result<TenantId, NotShown> {
        match (viewer.tenant, tenant) {
            (Some(id), _) => Ok(TenantId(id)),
            (None, Some(name)) if viewer.is_operator => self.tenant_named(name).await,
            (None, _) => Err(missing("This page needs a tenant in its address.".to_owned())),
        }
    }

    async fn tenant_named(&self, name: String) -> Result<TenantId, NotShown> {
        let catalog = self.tenants.0.catalog.clone();
        let found =
            tokio::task::spawn_blocking(move || catalog.tenant_named(&name).map(|tenant| tenant.id)).await;
        found.map_err(|_| NotShown::Failed)?.map_err(|error: CatalogError| not_shown(error.into()))
    }
}

/// Returns a tenant's load now.
fn load_of(tenant: &OpenTenant) -> LoadSample {
    let [running, _] = tenant.slots.busy();
    let counts = tenant.slots.activity().counts();
    LoadSample {
        running: running as u64,
        ended: counts.scored + counts.unscored,
        tokens: counts.tokens,
        guest_cpu: counts.guest_cpu,
        ..LoadSample::default()
    }
}

/// Returns a gauge for each quota of a tenant whose use is measured.
fn quota_gauges(tenant: &OpenTenant, quotas: &Quotas) -> Vec<Gauge> {
    let ([running, queued], used) = (tenant.slots.busy(), tenant.quotas.used_today());
    let secs = |secs| format!("{} s", number(secs));
    let gauge = |quota: Quota, used: u64, shown: fn(u64) -> String| {
        quotas.get(quota).map(|max| Gauge::new(quota.as_str(), used, max, shown))
    };
    let gauges = [
        gauge(Quota::Running, running as u64, number),
        gauge(Quota::Queued, queued as u64, number),
        gauge(Quota::ModelTokensPerDay, used.model_tokens, number),
        gauge(Quota::GuestCpuSecondsPerDay, used.guest_cpu.as_secs(), secs),
        tenant.quotas.stored().map(|(used, max)| Gauge::new(Quota::StoredBytes.as_str(), used, max, bytes)),
    ];
    gauges.into_iter().flatten().collect()
}

/// Reads the latest deployments of a plugin from the catalog. Blocks.
fn plugin_source(
    catalog: &Catalog,
    tenant: TenantId,
    plugin: String,
    may_activate: bool,
) -> Result<PluginSource, CatalogError> {
    let mut infos = catalog.deployments(tenant, &plugin, None, DEPLOYMENTS_MAX + 1)?;
    let has_more = infos.len() > DEPLOYMENTS_MAX as usize;
    infos.truncate(DEPLOYMENTS_MAX as usize);
    let mut deployments = Vec::with_capacity(infos.len());
    for info in infos {
        let report = catalog.deployment(tenant, &plugin, info.version)?.report;
        deployments.push(DeploymentSource {
            version: info.version,
            is_active: info.active,
            passed: info.passed,
            created_at: info.created_at.to_string(),
            created_by: info.created_by,
            component: info.component.to_string(),
            report,
        });
    }
    Ok(PluginSource { name: plugin, deployments, has_more, may_activate })
}

/// Returns a tenant's loaded plugins.
fn plugin_lines(tenant: &OpenTenant) -> Vec<PluginLine> {
    let mut lines: Vec<PluginLine> = tenant
        .loaded_plugins()
        .iter()
        .map(|plugin| {
            let load = plugin.current_load();
            let counts = tenant.slots.activity().counts_of(plugin.name());
            PluginLine {
                name: plugin.name().to_owned(),
                version: plugin.versions().last().map(ToString::to_string).unwrap_or_default(),
                running: load.running,
                queued: load.queued,
                running_max: load.max_concurrent,
                ended: counts.scored + counts.unscored,
                unscored: counts.unscored,
                tokens: counts.tokens,
            }
        })
        .collect();
    lines.sort_by(|one, other| one.name.cmp(&other.name));
    lines
}

fn missing(reason: String) -> NotShown {
    NotShown::Missing { title: "No such tenant", reason }
}

fn not_shown(error: TenantError) -> NotShown {
    match error {
        TenantError::NotFound(reason) => missing(reason),
        error => {
            tracing::error!(%error, "a tenant cannot be shown");
            NotShown::Failed
        }
    }
}
