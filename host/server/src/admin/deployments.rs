//! `/plugins/{name}/deployments`: the versions of a plugin.

use axum::Json;
use axum::extract::{FromRequest, Request, State};
use axum::http::StatusCode;
use serde_json::value::RawValue;

use super::error::ApiError;
use super::extract::{Author, JsonBody, NewName, Params, Path, Viewer};
use super::plugins::Which;
use super::wire::{Deployment, List, NewDeployment, OfTenant, Page, PushedDeployment, WholeDeployment};
use super::{Admin, CheckReport, Pushed};
use rollout_catalog::{self as catalog, CatalogError, Digest, KeyId, TenantId};

/// The deployments of a plugin, the newest first.
#[utoipa::path(get, path = "/plugins/{name}/deployments", tag = "deployments",
    params(("name" = String, Path), OfTenant, Page), responses((status = 200, body = List<Deployment>)))]
pub(super) async fn list(
    State(admin): State<Admin>,
    Viewer(tenant): Viewer,
    Path(name): Path<String>,
    Params(page): Params<Page>,
) -> Result<Json<List<Deployment>>, ApiError> {
    let before = page.after.as_deref().map(str::parse).transpose();
    let before = before.map_err(|_| ApiError::Invalid("after: a version is a number".to_owned()))?;
    let limit = page.limit();
    let found = admin.on_disk(move |catalog| catalog.deployments(tenant, &name, before, limit)).await?;
    let found = found.into_iter().map(Deployment::from).collect();
    Ok(Json(List::of(found, &page, |deployment| deployment.version.to_string())))
}

/// One deployment, with its configuration and what its checks found.
#[utoipa::path(get, path = "/plugins/{name}/deployments/{version}", tag = "deployments",
    params(("name" = String, Path), ("version" = u32, Path), OfTenant),
    responses((status = 200, body = WholeDeployment)))]
pub(super) async fn show(
    State(admin): State<Admin>,
    Viewer(tenant): Viewer,
    Path((name, version)): Path<(String, u32)>,
) -> Result<Json<WholeDeployment>, ApiError> {
    let found = admin.on_disk(move |catalog| catalog.deployment(tenant, &name, version)).await?;
    let catalog::Deployment { info, config, report } = found;
    Ok(Json(WholeDeployment { deployment: info.into(), config, report: as_json(report)? }))
}

/// Checks a deployment of components that were uploaded, and adds it as the plugin's next version. What
/// failed its checks is added, too, and can never be active.
#[utoipa::path(post, path = "/plugins/{name}/deployments", tag = "deployments",
    params(("name" = String, Path), OfTenant), request_body = NewDeployment,
    responses((status = 201, body = PushedDeployment)))]
pub(super) async fn push(
    State(admin): State<Admin>,
    author: Author,
    NewName(plugin): NewName,
    request: Request,
) -> Result<(StatusCode, Json<PushedDeployment>), ApiError> {
    let invalid = |error: String| ApiError::Invalid(error);
    let place = admin.0.pushes.begin(author.tenant)?;
    let JsonBody { value, charge } = JsonBody::from_request(request, &admin).await?;
    let NewDeployment { component, grader, config, activate } = value;
    let component = component.parse().map_err(|error| invalid(format!("component: {error}")))?;
    let grader = grader.map(|grader| grader.parse()).transpose();
    let grader = grader.map_err(|error| invalid(format!("grader: {error}")))?;
    let Author { tenant, key } = author;
    let pushed = Pushed { tenant, plugin, component, grader, config };
    let done = Admin::to_the_end(async move {
        // The push goes on where its caller leaves, and so do its place and its charge.
        let _held = (place, charge);
        admin.pushed(pushed, key, activate).await
    });
    let done = done.await?;
    Ok((StatusCode::CREATED, Json(done)))
}

impl Admin {
    async fn pushed(&self, pushed: Pushed, key: KeyId, activate: bool) -> Result<PushedDeployment, ApiError> {
        let (tenant, plugin, by) = (pushed.tenant, pushed.plugin.clone(), self.prefix_of(key).await?);
        self.require_components(tenant, [Some(pushed.component), pushed.grader]).await?;
        let CheckReport { passed, report } = {
            let _turn = self.0.checks.take(tenant).await;
            self.0.settings.deployments.check(pushed.clone()).await?
        };
        let new = catalog::NewDeployment {
            component: pushed.component,
            grader: pushed.grader,
            config: pushed.config,
            passed,
            report: report.clone(),
            created_by: by.clone(),
        };
        let name = plugin.clone();
        let mut added = self.on_disk(move |catalog| catalog.add_deployment(tenant, &name, &new)).await?;
        let mut activation_error = None;
        if activate && passed {
            match self.made_active(tenant, plugin.clone(), Which::Version(added.version), by).await {
                Ok(_) => added.active = true,
                Err(ApiError::Conflict(why)) => activation_error = Some(why),
                Err(error) => return Err(error),
            }
        }
        let in_use = self.0.settings.deployments.in_use(tenant, &plugin);
        // What went wrong is in the log, and the push is done. A plugin that was removed meanwhile has nothing.
        let _ = self.on_disk(move |catalog| catalog.prune(tenant, &plugin, &in_use)).await;
        Ok(PushedDeployment { deployment: added.into(), report: as_json(report)?, activation_error })
    }

    /// The tenant has these components; that is known before anything is compiled.
    async fn require_components(
        &self,
        tenant: TenantId,
        digests: [Option<Digest>; 2],
    ) -> Result<(), ApiError> {
        self.on_disk(move |catalog| {
            for digest in digests.into_iter().flatten() {
                if catalog.component(tenant, digest)?.is_none() {
                    return Err(CatalogError::UnknownComponent(digest));
                }
            }
            Ok(())
        })
        .await
    }
}

fn as_json(report: String) -> Result<Box<RawValue>, ApiError> {
    RawValue::from_string(report).map_err(|error| {
        tracing::error!(%error, "the report of a deployment is no JSON");
        ApiError::Internal
    })
}
