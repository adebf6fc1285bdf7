//! The rollouts of many tenants, as their pages show them.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::tenant::OpenTenant;
use super::{TenantError, Tenants};
use crate::ui::{NotShown, Scope, Viewed, Viewer};
use rollout_catalog::{CatalogError, TenantId};
use rollout_core::telemetry::Metrics;
use rollout_page::{Gauge, PluginLine, TenantLine, bytes, number};
use rollout_wire::quota::Quota;

/// A server of many tenants whose pages are shown.
pub(super) struct ViewedTenants {
    pub tenants: Tenants,
    /// Whether browsers connect by TLS.
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

    fn viewer(&self, key: &str) -> Option<Viewer> {
        let identity = self.tenants.0.catalog.authenticate(key)?;
        Some(Viewer {
            tenant: identity.tenant.map(|tenant| tenant.0),
            is_operator: identity.tenant.is_none(),
            rights: identity.rights.to_string(),
        })
    }

    fn anyone(&self) -> Viewer {
        // A browser without a key sees no tenant.
        Viewer { tenant: None, is_operator: false, rights: String::new() }
    }

    fn scope(&self, viewer: Viewer, tenant: Option<String>) -> BoxFuture<'_, Result<Scope, NotShown>> {
        async move {
            let id = match (viewer.tenant, tenant) {
                (Some(id), _) => TenantId(id),
                (None, Some(name)) if viewer.is_operator => self.tenant_named(name).await?,
                (None, _) => {
                    return Err(missing("The page of a rollout needs a tenant in its address.".to_owned()));
                }
            };
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

    fn is_accepting(&self) -> bool {
        self.tenants.load().accepting
    }

    fn metrics(&self) -> &Arc<Metrics> {
        self.tenants.metrics()
    }
}

impl ViewedTenants {
    async fn tenant_named(&self, name: String) -> Result<TenantId, NotShown> {
        let catalog = self.tenants.0.catalog.clone();
        let found =
            tokio::task::spawn_blocking(move || catalog.tenant_named(&name).map(|tenant| tenant.id)).await;
        found.map_err(|_| NotShown::Failed)?.map_err(|error: CatalogError| not_shown(error.into()))
    }
}

/// Returns a tenant's plugins that are loaded.
fn plugin_lines(tenant: &OpenTenant) -> Vec<PluginLine> {
    let mut lines: Vec<PluginLine> = tenant
        .loaded_plugins()
        .iter()
        .map(|plugin| {
            let load = plugin.load_now();
            PluginLine {
                name: plugin.name().to_owned(),
                version: plugin.versions().last().map(ToString::to_string).unwrap_or_default(),
                running: load.running,
                queued: load.queued,
                running_max: load.max_concurrent,
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
