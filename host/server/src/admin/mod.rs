//! The admin API: changes tenants, keys, plugins and deployments while the server runs.
//!
//! [`Admin::router`] has all routes, below `/admin/v1`, with their description in OpenAPI. The dispatcher authenticates
//! requests and adds the [`Identity`](rollout_catalog::Identity) as an extension. The API changes the catalog, and reaches
//! the running server through [`Deployments`].
//!
//! To a tenant, items of other tenants do not exist: names and digests are looked up among the tenant's own, so neither the
//! answer nor the work reveals them.

mod components;
mod deployments;
mod error;
mod extract;
mod keyed_locks;
mod keys;
mod plugins;
mod request_limits;
mod secrets;
mod tenants;
#[cfg(test)]
mod tests;
mod wire;

use std::sync::Arc;

use axum::routing::get;
use axum::{Json, Router};
use futures_util::future::BoxFuture;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use error::ApiError;
use keyed_locks::KeyedLocks;
use request_limits::RequestLimits;
use rollout_catalog::{Catalog, CatalogError, KeyId, Name, TenantId};
use rollout_cluster::{SharedUsage, Staging};
use rollout_core::budget::Budget;
use rollout_outbound::{NetworkRules, Reach};
use rollout_rollout::seal::Seal;
use rollout_wire::digest::Digest;

pub(crate) use plugins::PageRefusal;
pub use secrets::{open_all as open_secrets, seal_again};

/// Prefix of all routes.
const BASE: &str = "/admin/v1";

/// Path of the API's description, which needs no key.
pub(crate) const DESCRIPTION: &str = "/admin/v1/openapi.json";

/// A deployment to be checked.
#[derive(Clone, Debug)]
pub struct CheckRequest {
    /// The tenant that pushed it.
    pub tenant: TenantId,
    /// The plugin's name.
    pub plugin: Name,
    /// The component with the workflow, which is in the catalog.
    pub component: Digest,
    /// The component with the grader, if it is another one.
    pub grader: Option<Digest>,
    /// The configuration as it was written.
    pub config: Option<String>,
}

/// Maximum number of concurrent uploads of a tenant. Their bytes are on the disk before the quota counts them.
const UPLOADS_MAX: usize = 4;

/// Maximum number of concurrent uploads of all tenants.
const UPLOADS_OF_ALL_MAX: usize = 64;

/// Maximum number of pushes of a tenant that are checked or wait for a check. Each holds its configuration.
const PUSHES_MAX: usize = 8;

/// Maximum number of such pushes of all tenants.
const PUSHES_OF_ALL_MAX: usize = 64;

/// Maximum number of activations and removals of a tenant's plugins that run or wait for a lock.
const CHANGES_MAX: usize = 32;

/// Maximum number of such changes of all tenants.
const CHANGES_OF_ALL_MAX: usize = 256;

/// The same for activations that do not wait for other workers, which those that wait must not keep out.
const AT_ONCE_MAX: usize = 8;
const AT_ONCE_OF_ALL_MAX: usize = 64;

/// Result of the checks of a deployment.
#[derive(Clone, Debug)]
pub struct CheckReport {
    /// Whether the deployment may be active.
    pub passed: bool,
    /// The report of `validate --json`, one JSON object.
    pub report: String,
}

/// Reason why a deployment was not checked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The host has no room for a check at present.
    #[error("{0}")]
    Busy(String),
    /// The host failed; the log has the reason. The result says nothing about the deployment.
    #[error("{0}")]
    Failed(String),
}

/// The running server's interface for the admin API.
pub trait Deployments: Send + Sync + 'static {
    /// Compiles and checks a pushed deployment in another process.
    fn check(&self, request: CheckRequest) -> BoxFuture<'static, Result<CheckReport, CheckError>>;

    /// Loads a version that became active in the catalog; new rollouts use it from then on. The error is a message for the
    /// plugin's author; the API then undoes the activation in the catalog. Activations and removals of a plugin are called
    /// one after the other.
    fn activate(
        &self,
        tenant: TenantId,
        plugin: &Name,
        version: u32,
    ) -> BoxFuture<'static, Result<(), String>>;

    /// Returns this worker's part in staged activations, if other workers share the catalog. [`activate`](Self::activate) is then
    /// called for a version that all of them have loaded, unless the activation does not wait for them.
    fn staging(&self) -> Option<Staging> {
        None
    }

    /// Returns the usage of tenants at all workers, if other workers share the catalog.
    fn shared_usage(&self) -> Option<SharedUsage> {
        None
    }

    /// Returns the active version of a loaded plugin and those on which rollouts still run.
    fn in_use(&self, tenant: TenantId, plugin: &Name) -> Vec<u32>;

    /// Adds a tenant's usage until now to the catalog.
    fn note_usage(&self, tenant: TenantId);

    /// Cancels the rollouts of a plugin that was removed from the catalog, and unloads it.
    fn plugin_removed(&self, tenant: TenantId, plugin: &Name) -> BoxFuture<'static, ()>;

    /// Applies changes of a tenant in the catalog: quotas, network rules, the default plugin, and secrets.
    fn tenant_changed(&self, tenant: TenantId);

    /// Ends all rollouts of a tenant that is being deleted, and closes its files. Its folder is removed afterwards.
    fn tenant_deleted(&self, tenant: TenantId) -> BoxFuture<'static, ()>;
}

/// The parts of the admin API.
pub struct AdminSettings {
    /// The catalog that the API changes.
    pub catalog: Catalog,
    /// The server that runs the catalog's plugins.
    pub deployments: Arc<dyn Deployments>,
    /// Encrypts the secrets of tenants.
    pub seal: Arc<Seal>,
    /// The budget to which request bodies are charged.
    pub budget: Budget,
    /// Maximum number of bytes of an uploaded component.
    pub component_bytes_max: u64,
}

/// The admin API. Cheap to clone.
#[derive(Clone)]
pub struct Admin(Arc<Inner>);

struct Inner {
    settings: AdminSettings,
    /// Held while a version of a plugin is activated, also while the other workers load it.
    activations: KeyedLocks<(TenantId, String)>,
    /// Held while a plugin's active version changes.
    active: KeyedLocks<(TenantId, String)>,
    /// Held while a deployment is checked: one of each tenant at a time.
    checks: KeyedLocks<TenantId>,
    uploads: RequestLimits,
    pushes: RequestLimits,
    changes: RequestLimits,
    at_once: RequestLimits,
}

/// The general part of the API's description.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "rollout-host admin API",
        version = "1",
        description = "Tenants, keys, plugins and their deployments. Every request except for this description needs a \
            key: `Authorization: Bearer rh_…`. Routes of a tenant refer to the tenant of the key; an operator selects one \
            with `?tenant=NAME`. Items of other tenants are reported as not found."
    ),
    components(schemas(wire::ErrorBody))
)]
struct Description;

impl Admin {
    /// Creates the API.
    pub fn new(settings: AdminSettings) -> Self {
        Self(Arc::new(Inner {
            settings,
            activations: KeyedLocks::default(),
            active: KeyedLocks::default(),
            checks: KeyedLocks::default(),
            uploads: RequestLimits::new("uploads of components", UPLOADS_MAX, UPLOADS_OF_ALL_MAX),
            pushes: RequestLimits::new("pushes", PUSHES_MAX, PUSHES_OF_ALL_MAX),
            changes: RequestLimits::new("changes of plugins", CHANGES_MAX, CHANGES_OF_ALL_MAX),
            at_once: RequestLimits::new("activations without waiting", AT_ONCE_MAX, AT_ONCE_OF_ALL_MAX),
        }))
    }

    /// Returns all routes.
    pub fn router(&self) -> Router {
        let (router, description) = documented();
        let description = Arc::new(description);
        let show_description = get(move || {
            let description = Arc::clone(&description);
            async move { Json(description.as_ref().clone()) }
        });
        router
            .route(DESCRIPTION, show_description)
            .fallback(async || ApiError::NoRoute)
            .method_not_allowed_fallback(async || ApiError::NoMethod)
            .with_state(self.clone())
    }

    /// Runs work on the catalog on a blocking thread.
    async fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Catalog) -> Result<T, CatalogError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let catalog = self.0.settings.catalog.clone();
        let result = tokio::task::spawn_blocking(move || work(&catalog)).await;
        Ok(result.map_err(ApiError::panicked)??)
    }

    /// Runs work of several steps in a task of its own, which completes even if the caller disconnects.
    async fn run_detached<T: Send + 'static>(
        work: impl Future<Output = Result<T, ApiError>> + Send + 'static,
    ) -> Result<T, ApiError> {
        tokio::spawn(work).await.map_err(ApiError::panicked)?
    }

    /// Returns the first characters of a key, by which lists identify it.
    async fn prefix_of(&self, key: KeyId) -> Result<String, ApiError> {
        self.on_disk(move |catalog| Ok(catalog.key(key)?.prefix)).await
    }
}

/// Returns the description of the API in OpenAPI.
pub fn description() -> utoipa::openapi::OpenApi {
    documented().1
}

/// Returns all routes and their description.
fn documented() -> (Router<Admin>, utoipa::openapi::OpenApi) {
    let routes = OpenApiRouter::new()
        .routes(routes!(tenants::list, tenants::create))
        .routes(routes!(tenants::show, tenants::change, tenants::delete))
        .routes(routes!(tenants::usage))
        .routes(routes!(keys::list, keys::create))
        .routes(routes!(keys::revoke))
        .routes(routes!(plugins::list))
        .routes(routes!(plugins::show, plugins::change, plugins::remove))
        .routes(routes!(plugins::activate))
        .routes(routes!(plugins::rollback))
        .routes(routes!(deployments::list, deployments::push))
        .routes(routes!(deployments::show))
        .routes(routes!(components::show, components::upload))
        .routes(routes!(secrets::list))
        .routes(routes!(secrets::set, secrets::remove));
    let (router, mut description) =
        OpenApiRouter::with_openapi(Description::openapi()).nest(BASE, routes).split_for_parts();
    wire::add_error_responses(&mut description);
    (router, description)
}

/// Converts a tenant's network rules in the catalog to those of the transport. Private addresses must be listed. An invalid
/// entry, which the API does not accept, allows nothing.
pub fn network_rules(rules: &rollout_catalog::NetworkRules) -> NetworkRules {
    let public = match rules.public {
        rollout_catalog::Public::Open => Reach::Open,
        rollout_catalog::Public::Listed => Reach::Listed,
    };
    let allow = rules.allow.iter().filter_map(|entry| entry.parse().ok()).collect();
    NetworkRules { public, private: Reach::Listed, allow }
}
