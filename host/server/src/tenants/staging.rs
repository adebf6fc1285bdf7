//! Staged activations of a worker: loads versions that any worker is about to activate, without using them.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use rollout_catalog::TenantId;
use rollout_cluster::{ClusterError, StageVersions, StagedVersion, Staging};
use tokio_util::task::AbortOnDropHandle;

use super::staged::StagedName;
use super::{TenantError, Tenants};

impl Tenants {
    /// Takes part in the staged activations of a cluster until the returned handle is dropped. Must be called within the
    /// runtime, and before requests are accepted.
    pub async fn take_part(&self, staging: Staging) -> Result<AbortOnDropHandle<()>, ClusterError> {
        let serving = staging.serve(Arc::new(self.clone())).await?;
        let _ = self.0.staging.set(staging);
        Ok(serving)
    }

    /// Loads a version without using it.
    async fn stage_version(&self, wanted: &StagedVersion) -> Result<(), TenantError> {
        let StagedVersion { tenant: id, plugin, name, version } = wanted.clone();
        let (id, catalog, found) = (TenantId(id), self.0.catalog.clone(), name.clone());
        // The version was added by another worker.
        if !self.refresh().await {
            return Err(TenantError::Other("its copy of the catalog may be outdated".to_owned()));
        }
        let info = tokio::task::spawn_blocking(move || catalog.plugin(id, &found)).await;
        let info = info.map_err(|error| TenantError::Other(error.to_string()))??;
        if info.id != plugin {
            return Err(TenantError::NotFound(format!("the plugin '{name}' was replaced by another one")));
        }
        let tenant = self.tenant(id).await?;
        let staged = StagedName { plugin, name: name.clone(), version };
        self.0.staged.begin(id, staged).map_err(TenantError::NoRoom)?;
        match tenant.stage(self, &name, plugin, version).await {
            Ok(code) => {
                let code_bytes = code.code_bytes();
                self.0.staged.complete(id, plugin, code, code_bytes).map_err(TenantError::NoRoom)
            }
            Err(error) => {
                self.0.staged.remove(id, plugin, version);
                Err(error)
            }
        }
    }

    /// Applies the catalog, and drops a version that it did not activate.
    async fn end_version(&self, wanted: &StagedVersion) {
        let id = TenantId(wanted.tenant);
        self.refresh().await;
        self.apply_catalog(id).await;
        let unused = self.0.staged.remove(id, wanted.plugin, wanted.version);
        // Unmapping code takes a while.
        let _ = tokio::task::spawn_blocking(move || drop(unused)).await;
    }
}

impl StageVersions for Tenants {
    fn stage(&self, version: StagedVersion) -> BoxFuture<'static, Result<(), String>> {
        let tenants = self.clone();
        Box::pin(async move { tenants.stage_version(&version).await.map_err(|error| error.to_string()) })
    }

    fn end(&self, version: StagedVersion) -> BoxFuture<'static, ()> {
        let tenants = self.clone();
        Box::pin(async move { tenants.end_version(&version).await })
    }
}
