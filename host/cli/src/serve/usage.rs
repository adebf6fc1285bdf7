//! The usage of a worker's tenants, which it exchanges with other workers.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rollout_catalog::{Day, TenantUsage};
use rollout_cluster::MeteredTenants;
use rollout_server::tenants::Tenants;

/// The tenants of a worker.
#[derive(Clone)]
pub(super) struct TenantsUsage(pub Tenants);

impl MeteredTenants for TenantsUsage {
    fn today(&self) -> Day {
        self.0.today()
    }

    fn usage(&self, day: Day) -> BoxFuture<'_, Option<Vec<(i64, TenantUsage)>>> {
        let tenants = self.0.clone();
        async move {
            let used = tokio::task::spawn_blocking(move || tenants.usage_of_all(day)).await;
            let used = used.map_err(|error| error.to_string());
            match used.and_then(|used| used.map_err(|error| error.to_string())) {
                Ok(used) => Some(used.into_iter().map(|(tenant, usage)| (tenant.0, usage)).collect()),
                Err(error) => {
                    tracing::error!(error, %day, "the usage of tenants cannot be read from the catalog");
                    None
                }
            }
        }
        .boxed()
    }

    fn set_elsewhere(&self, tenant: i64, day: Day, usage: TenantUsage) {
        self.0.set_usage_elsewhere(tenant, day, usage);
    }
}
