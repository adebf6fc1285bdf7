//! A catalog that several workers share: applies the changes of other processes to the running tenants.

use std::sync::Arc;

use tokio::time::Instant;

use super::Tenants;
use super::plugin::LoadedPlugin;
use super::staged::StagedName;
use super::tenant::OpenTenant;
use crate::admin::Deployments;
use crate::worker::{ServedLog, TENANTS_MAX, TenantRoom, WorkerStatus};
use rollout_catalog::{CatalogError, Identity, PluginInfo, TenantId};
use rollout_core::telemetry::{CopyState, StagedCount};
use serde_json::json;

impl Tenants {
    /// Applies the changes that other processes have made to a shared catalog before this call. Concurrent calls share one
    /// request to the servers. Returns whether the servers answered, and true if the catalog is not shared.
    pub async fn refresh(&self) -> bool {
        if !self.0.catalog.is_shared() {
            return true;
        }
        let called = Instant::now();
        let mut refreshed = self.0.refreshed.lock().await;
        if let Some((_, is_current)) = refreshed.filter(|(started, _)| *started >= called) {
            return is_current;
        }
        let started = Instant::now();
        let catalog = self.0.catalog.clone();
        let caught_up = tokio::task::spawn_blocking(move || catalog.catch_up()).await;
        let is_current = matches!(caught_up, Ok(Ok(())));
        match caught_up {
            Ok(Ok(())) => {}
            Ok(Err(error @ CatalogError::Unavailable(_))) => {
                tracing::warn!(%error, "this copy of the catalog may be outdated");
            }
            Ok(Err(error)) => tracing::error!(%error, "this copy of the catalog is outdated"),
            Err(error) => tracing::error!(%error, "the catalog was not read"),
        }
        *refreshed = Some((started, is_current));
        drop(refreshed);
        for id in self.0.catalog.changed() {
            let tenants = self.clone();
            tokio::spawn(async move { tenants.apply_catalog(id).await });
        }
        is_current
    }

    /// Cuts the log of a shared catalog if it is long. A failure is logged, and the next call tries again.
    pub async fn shorten_log(&self) {
        let catalog = self.0.catalog.clone();
        match tokio::task::spawn_blocking(move || catalog.shorten_log()).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the log of the shared catalog was not cut"),
            Err(error) => tracing::error!(%error, "the log of the shared catalog was not cut"),
        }
    }

    /// Returns a function that returns the state of this copy of a shared catalog when its log was last read. The
    /// function does not keep the catalog open.
    pub fn copy_state(&self) -> impl Fn() -> CopyState + Send + Sync + 'static {
        let tenants = Arc::downgrade(&self.0);
        move || {
            let position = tenants.upgrade().and_then(|tenants| tenants.catalog.log_position());
            let (applied, extent) = position.unwrap_or_default();
            CopyState { applied, first: extent.first, last: extent.last }
        }
    }

    /// Returns a function that counts the staged versions. The function does not keep the catalog open.
    pub fn staged_count(&self) -> impl Fn() -> StagedCount + Send + Sync + 'static {
        let tenants = Arc::downgrade(&self.0);
        move || tenants.upgrade().map(|tenants| tenants.staged.count()).unwrap_or_default()
    }

    /// Returns the identity that a key proves. Refreshes the catalog first if the key is unknown, because another process may
    /// have created it.
    pub(super) async fn authenticate(&self, key: &str) -> Option<Identity> {
        let catalog = &self.0.catalog;
        if let Some(identity) = catalog.authenticate(key) {
            return Some(identity);
        }
        if !catalog.is_shared() {
            return None;
        }
        self.refresh().await;
        catalog.authenticate(key)
    }

    /// Brings a running tenant to its state in the catalog.
    pub(super) async fn apply_catalog(&self, id: TenantId) {
        let catalog = self.0.catalog.clone();
        let found = tokio::task::spawn_blocking(move || catalog.tenant(id)).await;
        match found {
            Ok(Ok(_)) => {}
            Ok(Err(CatalogError::NotFound { .. })) => {
                self.tenant_deleted(id).await;
                let catalog = self.0.catalog.clone();
                let removed = tokio::task::spawn_blocking(move || catalog.remove_folder(id)).await;
                if let Ok(Err(error)) = removed {
                    tracing::error!(tenant = %id, %error, "files of a deleted tenant stay until the next start");
                }
                return;
            }
            Ok(Err(error)) => return tracing::error!(tenant = %id, %error, "a tenant cannot be read"),
            Err(error) => return tracing::error!(tenant = %id, %error, "a tenant was not read"),
        }
        self.tenant_changed(id);
        let Some(tenant) = self.find_open(id) else { return };
        for plugin in tenant.loaded_plugins() {
            // The active version may change again while one is loaded.
            while self.apply_catalog_to_plugin(&tenant, &plugin).await {}
        }
        self.use_staged(&tenant).await;
    }

    /// Uses the staged versions that are active in the catalog, of plugins that are not loaded.
    async fn use_staged(&self, tenant: &Arc<OpenTenant>) {
        for StagedName { plugin, name, version } in self.0.staged.of(tenant.id) {
            let (catalog, id, found) = (self.0.catalog.clone(), tenant.id, name.clone());
            let found = tokio::task::spawn_blocking(move || catalog.plugin(id, &found)).await;
            let is_active = |info: &PluginInfo| info.id == plugin && info.active == Some(version);
            if let Ok(Ok(info)) = found
                && is_active(&info)
                && let Err(error) = tenant.follow_active(self, &name, version).await
            {
                tracing::error!(tenant = %tenant.name, plugin = name, version, %error, "a staged version cannot be used");
            }
        }
    }

    /// Loads the version of a loaded plugin that is active in the catalog. Returns whether it was another version.
    async fn apply_catalog_to_plugin(&self, tenant: &Arc<OpenTenant>, plugin: &LoadedPlugin) -> bool {
        let (catalog, id, name) = (self.0.catalog.clone(), tenant.id, plugin.name().to_owned());
        let found = tokio::task::spawn_blocking(move || catalog.plugin(id, &name)).await;
        let active = match found {
            Ok(Ok(info)) if info.id == plugin.id() => info.active,
            // The plugin was deleted, and another one may have its name and version. That one is loaded for its first
            // request.
            Ok(Ok(_) | Err(CatalogError::NotFound { .. })) => {
                tenant.remove(plugin.name()).await;
                None
            }
            Ok(Err(error)) => {
                tracing::error!(tenant = %tenant.name, %error, "a plugin cannot be read");
                None
            }
            Err(error) => {
                tracing::error!(tenant = %tenant.name, %error, "a plugin was not read");
                None
            }
        };
        let Some(version) = active.filter(|version| *version != plugin.version()) else { return false };
        let activated = tenant.follow_active(self, plugin.name(), version).await;
        if let Err(error) = &activated {
            tracing::error!(
                tenant = %tenant.name, plugin = plugin.name(), version, %error,
                "a version that another worker activated cannot be loaded; the previous one stays active"
            );
        }
        activated.is_ok()
    }

    /// Returns this worker's status for gateways.
    pub(super) fn worker_status(&self) -> WorkerStatus {
        let load = self.load();
        let worker = self.0.worker.as_ref();
        let log =
            |worker: &crate::WorkerIdentity| ServedLog { name: worker.log.clone(), epoch: worker.epoch };
        let health = json!({
            "concurrency": {"max_concurrent": load.max_concurrent, "queued": load.queued, "running": load.running},
        });
        let room = self.0.pool.room();
        let of = |tenant: Arc<OpenTenant>| TenantRoom { tenant: tenant.id.0, room: tenant.slots.room() };
        let mut tenants: Vec<TenantRoom> =
            self.open_tenants().into_iter().map(of).filter(|tenant| tenant.room < room).collect();
        // Tenants with the least room come first, because the choice of a worker matters most for them.
        tenants.sort_unstable_by_key(|tenant| tenant.room);
        tenants.truncate(TENANTS_MAX);
        WorkerStatus {
            worker: worker.map(|worker| worker.name.clone()).unwrap_or_default(),
            logs: worker.map(log).into_iter().collect(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            accepting: self.refusal().is_none(),
            running: load.running,
            queued: load.queued,
            max_concurrent: load.max_concurrent,
            has_tenants: true,
            room: Some(room),
            tenants,
            health: health.as_object().cloned().unwrap_or_default(),
        }
    }
}
