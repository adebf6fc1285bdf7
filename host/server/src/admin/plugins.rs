//! `/plugins`: those of a tenant, and which version of each is active.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use super::Admin;
use super::error::ApiError;
use super::extract::{Author, JsonBody, Params, Path, Viewer};
use super::wire::{Activate, Activation, List, OfTenant, Page, Plugin, PluginChange};
use rollout_catalog::{self as catalog, Name, ResourceKind, TenantId};

/// The plugins of a tenant, by name.
#[utoipa::path(get, path = "/plugins", tag = "plugins", params(OfTenant, Page),
    responses((status = 200, body = List<Plugin>)))]
pub(super) async fn list(
    State(admin): State<Admin>,
    Viewer(tenant): Viewer,
    Params(page): Params<Page>,
) -> Result<Json<List<Plugin>>, ApiError> {
    let (after, limit) = (page.after.clone(), page.limit());
    let plugins = admin.on_disk(move |catalog| catalog.plugins(tenant, after.as_deref(), limit)).await?;
    let plugins = plugins.into_iter().map(Plugin::from).collect();
    Ok(Json(List::of(plugins, &page, |plugin| plugin.name.clone())))
}

/// One plugin.
#[utoipa::path(get, path = "/plugins/{name}", tag = "plugins", params(("name" = String, Path), OfTenant),
    responses((status = 200, body = Plugin)))]
pub(super) async fn show(
    State(admin): State<Admin>,
    Viewer(tenant): Viewer,
    Path(name): Path<String>,
) -> Result<Json<Plugin>, ApiError> {
    Ok(Json(admin.on_disk(move |catalog| catalog.plugin(tenant, &name)).await?.into()))
}

/// Changes a plugin's quotas, and whether it answers at the tenant's root.
#[utoipa::path(patch, path = "/plugins/{name}", tag = "plugins",
    params(("name" = String, Path), OfTenant), request_body = PluginChange,
    responses((status = 200, body = Plugin)))]
pub(super) async fn change(
    State(admin): State<Admin>,
    Author { tenant, .. }: Author,
    Path(name): Path<String>,
    body: JsonBody<PluginChange>,
) -> Result<Json<Plugin>, ApiError> {
    let PluginChange { quotas, default } = body.value;
    if let Some(quota) = quotas.tenant_only() {
        let message = format!("quotas: {quota} is a quota of tenants, not of plugins; set it for the tenant");
        return Err(ApiError::Invalid(message));
    }
    let plugin = admin
        .on_disk(move |catalog| {
            let plugin = catalog.update_plugin(tenant, &name, |of| of.apply(&quotas))?;
            match default {
                Some(true) => catalog.set_default_plugin(tenant, Some(&name))?,
                Some(false) if plugin.default => catalog.set_default_plugin(tenant, None)?,
                _ => {}
            }
            catalog.plugin(tenant, &name)
        })
        .await?;
    admin.0.settings.deployments.tenant_changed(tenant);
    Ok(Json(plugin.into()))
}

/// Removes a plugin with all of its deployments.
#[utoipa::path(delete, path = "/plugins/{name}", tag = "plugins", params(("name" = String, Path), OfTenant),
    responses((status = 204, description = "It is not there any more.")))]
pub(super) async fn remove(
    State(admin): State<Admin>,
    Author { tenant, .. }: Author,
    Path(name): Path<String>,
) -> Result<StatusCode, ApiError> {
    let name = known(name)?;
    let place = admin.0.changes.begin(tenant)?;
    Admin::to_the_end(async move {
        let _place = place;
        let _turn = admin.0.activations.take((tenant, name.to_string())).await;
        let removed = name.clone();
        admin.on_disk(move |catalog| catalog.remove_plugin(tenant, &removed)).await?;
        admin.0.settings.deployments.plugin_removed(tenant, &name).await;
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

/// Makes a version active that passed its checks. Rollouts that run end on what they began with.
#[utoipa::path(post, path = "/plugins/{name}/activate", tag = "plugins",
    params(("name" = String, Path), OfTenant), request_body = Activate,
    responses((status = 200, body = Activation)))]
pub(super) async fn activate(
    State(admin): State<Admin>,
    Author { tenant, key }: Author,
    Path(name): Path<String>,
    body: JsonBody<Activate>,
) -> Result<Json<Activation>, ApiError> {
    let (name, by) = (known(name)?, admin.prefix_of(key).await?);
    let which = Which::Version(body.value.version);
    admin.activated(tenant, name, which, by).await
}

/// Makes active what was active before. Done twice, it is as it was.
#[utoipa::path(post, path = "/plugins/{name}/rollback", tag = "plugins",
    params(("name" = String, Path), OfTenant), responses((status = 200, body = Activation)))]
pub(super) async fn rollback(
    State(admin): State<Admin>,
    Author { tenant, key }: Author,
    Path(name): Path<String>,
) -> Result<Json<Activation>, ApiError> {
    let (name, by) = (known(name)?, admin.prefix_of(key).await?);
    admin.activated(tenant, name, Which::Before, by).await
}

impl Admin {
    /// Makes a version active, to the end even where the caller leaves.
    async fn activated(
        self,
        tenant: TenantId,
        name: Name,
        which: Which,
        by: String,
    ) -> Result<Json<Activation>, ApiError> {
        let place = self.0.changes.begin(tenant)?;
        Self::to_the_end(async move {
            let _place = place;
            self.made_active(tenant, name, which, by).await.map(Json)
        })
        .await
    }
}

/// A name that may be a plugin's. Another one is none's.
fn known(name: String) -> Result<Name, ApiError> {
    let not_found = catalog::CatalogError::NotFound { kind: ResourceKind::Plugin, name: name.clone() };
    Name::new(name).map_err(|_| not_found.into())
}

/// Which version is to be active.
pub(super) enum Which {
    Version(u32),
    Before,
}

impl Admin {
    /// Makes a version active, in the catalog and then in the server. Where the server cannot load it, the
    /// catalog goes back.
    pub(super) async fn made_active(
        &self,
        tenant: TenantId,
        name: Name,
        which: Which,
        by: String,
    ) -> Result<Activation, ApiError> {
        let _turn = self.0.activations.take((tenant, name.to_string())).await;
        let plugin = name.clone();
        let done = self
            .on_disk(move |catalog| match which {
                Which::Version(version) => catalog.activate(tenant, &plugin, version, &by),
                Which::Before => catalog.rollback(tenant, &plugin, &by),
            })
            .await?;
        let loaded = self.0.settings.deployments.activate(tenant, &name, done.version).await;
        let Err(why) = loaded else { return Ok(done.into()) };
        let version = done.version;
        self.on_disk(move |catalog| catalog.undo(&done)).await?;
        Err(ApiError::Conflict(format!("version {version} of plugin '{name}' cannot be loaded: {why}")))
    }
}
