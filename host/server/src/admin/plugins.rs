//! `/plugins`: a tenant's plugins and their active versions.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use tokio::time::Instant;

use super::Admin;
use super::error::ApiError;
use super::extract::{Author, JsonBody, Params, Path, Viewer};
use super::wire::{Activate, Activation, List, Page, Plugin, PluginChange, TenantParam, Waiting};
use rollout_catalog::{self as catalog, CatalogError, KeyId, Name, ResourceKind, TenantId};
use rollout_cluster::{Reservation, StagedVersion, Staging, StagingError};

/// Lists the plugins of a tenant by name.
#[utoipa::path(get, path = "/plugins", tag = "plugins", params(TenantParam, Page),
    responses((status = 200, body = List<Plugin>)))]
pub(super) async fn list(
    State(admin): State<Admin>,
    Viewer(tenant): Viewer,
    Params(page): Params<Page>,
) -> Result<Json<List<Plugin>>, ApiError> {
    let (after, limit) = (page.after.clone(), page.limit());
    let plugins = admin.on_disk(move |catalog| catalog.plugins(tenant, after.as_deref(), limit)).await?;
    let plugins = plugins.into_iter().map(Plugin::from).collect();
    Ok(Json(List::page(plugins, &page, |plugin| plugin.name.clone())))
}

/// Returns a plugin.
#[utoipa::path(get, path = "/plugins/{name}", tag = "plugins", params(("name" = String, Path), TenantParam),
    responses((status = 200, body = Plugin)))]
pub(super) async fn show(
    State(admin): State<Admin>,
    Viewer(tenant): Viewer,
    Path(name): Path<String>,
) -> Result<Json<Plugin>, ApiError> {
    Ok(Json(admin.on_disk(move |catalog| catalog.plugin(tenant, &name)).await?.into()))
}

/// Changes a plugin's quotas, and whether it is the tenant's default plugin.
#[utoipa::path(patch, path = "/plugins/{name}", tag = "plugins",
    params(("name" = String, Path), TenantParam), request_body = PluginChange,
    responses((status = 200, body = Plugin)))]
pub(super) async fn change(
    State(admin): State<Admin>,
    Author { tenant, .. }: Author,
    Path(name): Path<String>,
    body: JsonBody<PluginChange>,
) -> Result<Json<Plugin>, ApiError> {
    let PluginChange { quotas, default } = body.value;
    if let Some(quota) = quotas.tenant_only() {
        let message = format!("invalid quotas: {quota} can be set for a tenant only");
        return Err(ApiError::Invalid(message));
    }
    let plugin = admin
        .on_disk(move |catalog| {
            let plugin = catalog.update_plugin(tenant, &name, |current| current.apply(&quotas))?;
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
#[utoipa::path(delete, path = "/plugins/{name}", tag = "plugins", params(("name" = String, Path), TenantParam),
    responses((status = 204, description = "The plugin is removed.")))]
pub(super) async fn remove(
    State(admin): State<Admin>,
    Author { tenant, .. }: Author,
    Path(name): Path<String>,
) -> Result<StatusCode, ApiError> {
    let name = plugin_name(name)?;
    let permit = admin.0.changes.acquire(tenant)?;
    Admin::run_detached(async move {
        let _permit = permit;
        let _activating = admin.0.activations.lock((tenant, name.to_string())).await;
        let _guard = admin.0.active.lock((tenant, name.to_string())).await;
        let removed = name.clone();
        admin.on_disk(move |catalog| catalog.remove_plugin(tenant, &removed)).await?;
        admin.0.settings.deployments.plugin_removed(tenant, &name).await;
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

/// Activates a version that passed its checks. New rollouts use it; running rollouts end on the version they began with.
#[utoipa::path(post, path = "/plugins/{name}/activate", tag = "plugins",
    params(("name" = String, Path), TenantParam, Waiting), request_body = Activate,
    responses((status = 200, body = Activation)))]
pub(super) async fn activate(
    State(admin): State<Admin>,
    Author { tenant, key }: Author,
    Path(name): Path<String>,
    Params(waiting): Params<Waiting>,
    body: JsonBody<Activate>,
) -> Result<Json<Activation>, ApiError> {
    let (name, by) = (plugin_name(name)?, admin.prefix_of(key).await?);
    let target = ActivationTarget::Version(body.value.version);
    admin.activate_detached(tenant, name, WantedActivation { target, waits: waiting.waits(), by }).await
}

/// Activates the previously active version. A second rollback undoes the first.
#[utoipa::path(post, path = "/plugins/{name}/rollback", tag = "plugins",
    params(("name" = String, Path), TenantParam, Waiting), responses((status = 200, body = Activation)))]
pub(super) async fn rollback(
    State(admin): State<Admin>,
    Author { tenant, key }: Author,
    Path(name): Path<String>,
    Params(waiting): Params<Waiting>,
) -> Result<Json<Activation>, ApiError> {
    let (name, by) = (plugin_name(name)?, admin.prefix_of(key).await?);
    let wanted = WantedActivation { target: ActivationTarget::Previous, waits: waiting.waits(), by };
    admin.activate_detached(tenant, name, wanted).await
}

impl Admin {
    /// Activates a version for a page, or the previously active one. The caller has checked the key's rights.
    pub(crate) async fn activate_for_page(
        &self,
        tenant: TenantId,
        key: KeyId,
        name: String,
        version: Option<u32>,
    ) -> Result<(), PageRefusal> {
        let target = version.map_or(ActivationTarget::Previous, ActivationTarget::Version);
        let wanted = WantedActivation::waiting(target, self.prefix_of(key).await?);
        let activated = self.clone().activate_detached(tenant, plugin_name(name)?, wanted).await;
        Ok(activated.map(|_| ())?)
    }

    /// Activates a version in a task of its own, which completes even if the caller disconnects.
    async fn activate_detached(
        self,
        tenant: TenantId,
        name: Name,
        wanted: WantedActivation,
    ) -> Result<Json<Activation>, ApiError> {
        let permit = if wanted.waits { &self.0.changes } else { &self.0.at_once }.acquire(tenant)?;
        Self::run_detached(async move {
            let _permit = permit;
            self.activate(tenant, name, wanted).await.map(Json)
        })
        .await
    }
}

/// Parses the name of an existing plugin. No plugin has an invalid name, so the error is that of a missing one.
fn plugin_name(name: String) -> Result<Name, ApiError> {
    let not_found = catalog::CatalogError::NotFound { kind: ResourceKind::Plugin, name: name.clone() };
    Name::new(name).map_err(|_| not_found.into())
}

/// The reason why a page's request was refused.
pub(crate) enum PageRefusal {
    /// There is no such plugin or version.
    NotFound(String),
    /// The state of the catalog or of the server does not allow it.
    Refused(String),
    /// The server has no room at present.
    NoRoom(String),
    /// The server failed; the log has the reason.
    Failed,
}

impl From<ApiError> for PageRefusal {
    fn from(error: ApiError) -> Self {
        match error {
            ApiError::NotFound(message) => Self::NotFound(message),
            ApiError::Conflict(message) | ApiError::Invalid(message) | ApiError::Forbidden(message) => {
                Self::Refused(message)
            }
            ApiError::TooMany(message) | ApiError::NoRoom(message) => Self::NoRoom(message),
            _ => Self::Failed,
        }
    }
}

/// An activation as it was requested.
pub(super) struct WantedActivation {
    pub target: ActivationTarget,
    /// Whether to wait until all workers that share the catalog have loaded the version.
    pub waits: bool,
    /// Beginning of the caller's key.
    pub by: String,
}

impl WantedActivation {
    /// Returns an activation that waits for the other workers.
    pub(super) fn waiting(target: ActivationTarget, by: String) -> Self {
        Self { target, waits: true, by }
    }
}

/// The version to activate.
pub(super) enum ActivationTarget {
    /// A version by its number.
    Version(u32),
    /// The version that was active before the current one.
    Previous,
}

impl ActivationTarget {
    /// Returns the number of the version; none if it is the previous one.
    fn version(&self) -> Option<u32> {
        match self {
            Self::Version(version) => Some(*version),
            Self::Previous => None,
        }
    }
}

impl Admin {
    /// Activates a version in the catalog and then in the server. If the server cannot load it, undoes the activation in the
    /// catalog.
    pub(super) async fn activate(
        &self,
        tenant: TenantId,
        name: Name,
        WantedActivation { target, waits, by }: WantedActivation,
    ) -> Result<Activation, ApiError> {
        let Some(staging) = self.0.settings.deployments.staging().filter(|_| waits) else {
            let plugin = name.clone();
            let activate = move |catalog: &catalog::Catalog| match target {
                ActivationTarget::Version(version) => catalog.activate(tenant, &plugin, version, &by),
                ActivationTarget::Previous => catalog.rollback(tenant, &plugin, &by),
            };
            let _changing = self.0.active.lock((tenant, name.to_string())).await;
            return self.change_active(tenant, &name, activate).await;
        };
        let (until, target) = (staging.deadline(), target.version());
        let locking = self.0.activations.lock((tenant, name.to_string()));
        // The time in which this worker activates another version counts, too.
        let _guard = tokio::time::timeout_at(until, locking)
            .await
            .map_err(|_| not_staged(&name, target, StagingError::Busy(staging.worker().to_owned())))?;
        // The other workers keep the version loaded until the reservation is dropped.
        let (planned, reservation) = self.stage((&staging, until), tenant, &name, target).await?;
        let _changing = self.0.active.lock((tenant, name.to_string())).await;
        let refused = |error| not_staged(&name, Some(planned.version), error);
        reservation.confirm().await.map_err(refused)?;
        let plugin = name.clone();
        let activate =
            move |catalog: &catalog::Catalog| catalog.activate_planned(tenant, &plugin, &planned, &by);
        self.change_active(tenant, &name, activate).await
    }

    /// Changes the active version in the catalog and then in the server, or in neither. The caller holds the lock of the active
    /// version.
    async fn change_active(
        &self,
        tenant: TenantId,
        name: &Name,
        activate: impl FnOnce(&catalog::Catalog) -> Result<catalog::Activation, CatalogError> + Send + 'static,
    ) -> Result<Activation, ApiError> {
        let activation = self.on_disk(activate).await?;
        let version = activation.version;
        let loaded = self.0.settings.deployments.activate(tenant, name, version).await;
        let Err(reason) = loaded else { return Ok(activation.into()) };
        self.on_disk(move |catalog| catalog.undo(&activation)).await?;
        Err(ApiError::Conflict(format!("version {version} of plugin '{name}' cannot be loaded: {reason}")))
    }

    /// Has all workers that share the catalog load a version: that with this number, or the previous one. The activation is
    /// planned, and the plugin is reserved for it.
    async fn stage(
        &self,
        (staging, until): (&Staging, Instant),
        tenant: TenantId,
        name: &Name,
        target: Option<u32>,
    ) -> Result<(catalog::PlannedActivation, Reservation), ApiError> {
        let plugin = name.to_string();
        let plan = {
            let plugin = plugin.clone();
            move |catalog: &catalog::Catalog| {
                catalog.catch_up()?;
                catalog.plan_activation(tenant, &plugin, target)
            }
        };
        let id = self.on_disk(plan.clone()).await?.plugin;
        let reserved = staging.reserve_until(tenant.0, id, until).await;
        let mut reservation = reserved.map_err(|error| not_staged(name, target, error))?;
        // Another worker may have activated a version before.
        let planned = self.on_disk(plan).await?;
        let version = planned.version;
        if planned.plugin != id {
            return Err(CatalogError::ActivatedMeanwhile { plugin, version }.into());
        }
        let staged = StagedVersion { tenant: tenant.0, plugin: planned.plugin, name: plugin, version };
        let refused = |error| not_staged(name, Some(version), error);
        reservation.stage(staged).await.map_err(refused)?;
        Ok((planned, reservation))
    }
}

/// Returns the error of a version that is not activated because not all workers have loaded it.
fn not_staged(plugin: &Name, version: Option<u32>, error: StagingError) -> ApiError {
    let what = version.map_or("the previous version".to_owned(), |version| format!("version {version}"));
    let message = format!("{what} of plugin '{plugin}' is not activated: {error}");
    match error {
        StagingError::Unavailable(_) => ApiError::NoRoom(message),
        _ => ApiError::Conflict(message),
    }
}
