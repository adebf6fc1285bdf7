//! The admin API: tenants, keys, plugins and their deployments, changed while the server runs.
//!
//! [`Admin::router`] has all of it, below `/admin/v1`, and each route with its description in OpenAPI. Who
//! asks is an [`Identity`](rollout_catalog::Identity) among the request's extensions, put there by the dispatcher. What the API
//! needs of the server that runs is [`Deployments`]; whatever else it does, it does to the catalog.
//!
//! A tenant that asks for what is another's is answered as if it were not there, with the same work: names
//! and digests are looked up among the tenant's own.

mod components;
mod deployments;
mod error;
mod extract;
mod keys;
mod places;
mod plugins;
mod secrets;
mod tenants;
#[cfg(test)]
mod tests;
mod turns;
mod wire;

use std::sync::Arc;

use axum::routing::get;
use axum::{Json, Router};
use futures_util::future::BoxFuture;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use error::ApiError;
use places::Places;
use rollout_catalog::{Catalog, CatalogError, Digest, KeyId, Name, TenantId};
use rollout_core::budget::Budget;
use rollout_outbound::{NetworkRules, Reach};
use rollout_rollout::seal::Seal;
use turns::Turns;

pub use secrets::opened as opened_secrets;

/// Where all of it is.
const BASE: &str = "/admin/v1";

/// Where its description is, which asks for no key.
pub(crate) const DESCRIPTION: &str = "/admin/v1/openapi.json";

/// A deployment that is to be checked.
#[derive(Clone, Debug)]
pub struct Pushed {
    /// Whose it is.
    pub tenant: TenantId,
    /// The plugin that it would be a version of.
    pub plugin: Name,
    /// The component with the workflow, which the catalog has.
    pub component: Digest,
    /// The component with the grader, where it is another one.
    pub grader: Option<Digest>,
    /// Its configuration, as it was written.
    pub config: Option<String>,
}

/// Uploads of a tenant at once, and of all tenants: what they bring is on the disk before a quota knows of it.
const UPLOADS_MAX: usize = 4;
const UPLOADS_OF_ALL_MAX: usize = 64;

/// Pushes of a tenant that are checked or wait for that, and those of all tenants. Each holds its configuration.
const PUSHES_MAX: usize = 8;
const PUSHES_OF_ALL_MAX: usize = 64;

/// Activations and removals of a tenant's plugins that are under way or wait for their turn, and those of all tenants.
const CHANGES_MAX: usize = 32;
const CHANGES_OF_ALL_MAX: usize = 256;

/// What checks found.
#[derive(Clone, Debug)]
pub struct CheckReport {
    /// Whether the deployment may be active.
    pub passed: bool,
    /// The report of `validate --json`, one JSON object.
    pub report: String,
}

/// Why a deployment was not checked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// There is no room for it now.
    #[error("{0}")]
    Busy(String),
    /// This machine's trouble, which the log has. The deployment may be good or bad.
    #[error("{0}")]
    Failed(String),
}

/// What the admin API needs of the server that runs.
pub trait Deployments: Send + Sync + 'static {
    /// Compiles and checks a deployment that was pushed, apart from this process.
    fn check(&self, pushed: Pushed) -> BoxFuture<'static, Result<CheckReport, CheckError>>;

    /// A version was made active in the catalog: loads it, and gives it to new rollouts. An error says why
    /// it cannot be loaded, in words for its author; the catalog goes back to what was active before. One
    /// plugin is activated, and removed, by one at a time.
    fn activate(
        &self,
        tenant: TenantId,
        plugin: &Name,
        version: u32,
    ) -> BoxFuture<'static, Result<(), String>>;

    /// The versions of a plugin that rollouts still run on, or would go on with after a restart.
    fn in_use(&self, tenant: TenantId, plugin: &Name) -> Vec<u32>;

    /// Notes in the catalog what a tenant used until now.
    fn note_usage(&self, tenant: TenantId);

    /// A plugin was removed from the catalog.
    fn plugin_removed(&self, tenant: TenantId, plugin: &Name) -> BoxFuture<'static, ()>;

    /// Quotas, network rules, the default plugin or secrets of a tenant changed in the catalog.
    fn tenant_changed(&self, tenant: TenantId);

    /// A tenant is being deleted: ends all of its rollouts and closes its files. Its folder is removed after
    /// this.
    fn tenant_deleted(&self, tenant: TenantId) -> BoxFuture<'static, ()>;
}

/// What the admin API is made of.
pub struct Settings {
    /// What it changes.
    pub catalog: Catalog,
    /// Who runs what is in it.
    pub deployments: Arc<dyn Deployments>,
    /// What seals secrets of tenants.
    pub seal: Arc<Seal>,
    /// What bodies are charged to.
    pub budget: Budget,
    /// The largest component that may be uploaded.
    pub component_bytes_max: u64,
}

/// The admin API. Cheap to clone.
#[derive(Clone)]
pub struct Admin(Arc<Inner>);

struct Inner {
    settings: Settings,
    /// Whose turn it is to change what of a plugin is active.
    activations: Turns<(TenantId, String)>,
    /// Whose turn it is to have a deployment checked: one of a tenant's at a time.
    checks: Turns<TenantId>,
    uploads: Places,
    pushes: Places,
    changes: Places,
}

/// What the description says before any route.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "rollout-host admin API",
        version = "1",
        description = "Tenants, keys, plugins and their deployments. Every request but this one carries a key, \
            as `Authorization: Bearer rh_…`. Routes of a tenant are about the key's own; an operator names one by \
            `?tenant=`. What may not be seen is answered as what is not there."
    ),
    components(schemas(wire::ErrorBody))
)]
struct Description;

impl Admin {
    /// The API over this catalog.
    pub fn new(settings: Settings) -> Self {
        Self(Arc::new(Inner {
            settings,
            activations: Turns::default(),
            checks: Turns::default(),
            uploads: Places::new("uploads of components", UPLOADS_MAX, UPLOADS_OF_ALL_MAX),
            pushes: Places::new("pushes", PUSHES_MAX, PUSHES_OF_ALL_MAX),
            changes: Places::new("changes of plugins", CHANGES_MAX, CHANGES_OF_ALL_MAX),
        }))
    }

    /// All that it answers, below `/admin/v1`.
    pub fn router(&self) -> Router {
        let (router, described) = documented();
        let described = Arc::new(described);
        let describe = get(move || {
            let described = Arc::clone(&described);
            async move { Json(described.as_ref().clone()) }
        });
        router
            .route(&format!("{BASE}/openapi.json"), describe)
            .fallback(async || ApiError::NoRoute)
            .method_not_allowed_fallback(async || ApiError::NoMethod)
            .with_state(self.clone())
    }

    /// Does something to the catalog, which waits for the disk.
    async fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Catalog) -> Result<T, CatalogError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let catalog = self.0.settings.catalog.clone();
        let done = tokio::task::spawn_blocking(move || work(&catalog)).await;
        Ok(done.map_err(ApiError::panicked)??)
    }

    /// Does something of several steps, to its end even where its caller goes away.
    async fn to_the_end<T: Send + 'static>(
        work: impl Future<Output = Result<T, ApiError>> + Send + 'static,
    ) -> Result<T, ApiError> {
        tokio::spawn(work).await.map_err(ApiError::panicked)?
    }

    /// How lists call a key: by its beginning.
    async fn prefix_of(&self, key: KeyId) -> Result<String, ApiError> {
        self.on_disk(move |catalog| Ok(catalog.key(key)?.prefix)).await
    }
}

/// The description of the API, as `/admin/v1/openapi.json` has it.
pub fn description() -> utoipa::openapi::OpenApi {
    documented().1
}

/// Every route, and the description of all.
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
    let (router, mut described) =
        OpenApiRouter::with_openapi(Description::openapi()).nest(BASE, routes).split_for_parts();
    wire::describe_refusals(&mut described);
    (router, described)
}

/// A tenant's rules as connections are opened by: what is private is closed but for what is listed.
/// An entry that is none, which no catalog takes, opens nothing.
pub fn network_rules(rules: &rollout_catalog::NetworkRules) -> NetworkRules {
    let public = match rules.public {
        rollout_catalog::Public::Open => Reach::Open,
        rollout_catalog::Public::Listed => Reach::Listed,
    };
    let allow = rules.allow.iter().filter_map(|entry| entry.parse().ok()).collect();
    NetworkRules { public, private: Reach::Listed, allow }
}
