//! `/plugins/{name}/deployments`: the versions of a plugin.

use axum::Json;
use axum::extract::{FromRequest, Request, State};
use axum::http::StatusCode;
use serde_json::value::RawValue;

use super::error::ApiError;
use super::extract::{Author, JsonBody, NewName, Params, Path, Viewer};
use super::plugins::{ActivationTarget, WantedActivation};
use super::wire::{Deployment, List, NewDeployment, Page, PushedDeployment, TenantParam, WholeDeployment};
use super::{Admin, CheckReport, CheckRequest};
use rollout_catalog::{self as catalog, CatalogError, KeyId, Origin, TenantId};
use rollout_registry::evidence::{Checked, Evidence};
use rollout_registry::signature::PublicKey;
use rollout_wire::digest::Digest;

/// Lists the deployments of a plugin, newest first.
#[utoipa::path(get, path = "/plugins/{name}/deployments", tag = "deployments",
    params(("name" = String, Path), TenantParam, Page), responses((status = 200, body = List<Deployment>)))]
pub(super) async fn list(
    State(admin): State<Admin>,
    Viewer(tenant): Viewer,
    Path(name): Path<String>,
    Params(page): Params<Page>,
) -> Result<Json<List<Deployment>>, ApiError> {
    let before = page.after.as_deref().map(str::parse).transpose();
    let before = before
        .map_err(|_| ApiError::Invalid("invalid parameter after: it must be a version number".to_owned()))?;
    let limit = page.limit();
    let deployments = admin.on_disk(move |catalog| catalog.deployments(tenant, &name, before, limit)).await?;
    let deployments = deployments.into_iter().map(Deployment::from).collect();
    Ok(Json(List::page(deployments, &page, |deployment| deployment.version.to_string())))
}

/// Returns a deployment with its configuration and the report of its checks.
#[utoipa::path(get, path = "/plugins/{name}/deployments/{version}", tag = "deployments",
    params(("name" = String, Path), ("version" = u32, Path), TenantParam),
    responses((status = 200, body = WholeDeployment)))]
pub(super) async fn show(
    State(admin): State<Admin>,
    Viewer(tenant): Viewer,
    Path((name, version)): Path<(String, u32)>,
) -> Result<Json<WholeDeployment>, ApiError> {
    let deployment = admin.on_disk(move |catalog| catalog.deployment(tenant, &name, version)).await?;
    let catalog::Deployment { info, config, report } = deployment;
    Ok(Json(WholeDeployment { deployment: info.into(), config, report: as_json(report)? }))
}

/// Checks a deployment of uploaded components, and adds it as the plugin's next version. A deployment that fails its
/// checks is added, too, but can never be activated.
#[utoipa::path(post, path = "/plugins/{name}/deployments", tag = "deployments",
    params(("name" = String, Path), TenantParam), request_body = NewDeployment,
    responses((status = 201, body = PushedDeployment)))]
pub(super) async fn push(
    State(admin): State<Admin>,
    author: Author,
    NewName(plugin): NewName,
    request: Request,
) -> Result<(StatusCode, Json<PushedDeployment>), ApiError> {
    let invalid = |error: String| ApiError::Invalid(error);
    let permit = admin.0.pushes.acquire(author.tenant)?;
    let JsonBody { value, charge } = JsonBody::from_request(request, &admin).await?;
    let NewDeployment { component, grader, component_evidence, grader_evidence, config, activate } = value;
    let component = component.parse().map_err(|error| invalid(format!("component: {error}")))?;
    let grader = grader.map(|grader| grader.parse()).transpose();
    let grader = grader.map_err(|error| invalid(format!("grader: {error}")))?;
    if grader.is_none() && grader_evidence.is_some() {
        return Err(invalid("grader_evidence: there is no grader".to_owned()));
    }
    let Author { tenant, key } = author;
    let origins = admin.check_origins(
        tenant,
        (component, component_evidence),
        grader.map(|grader| (grader, grader_evidence)),
    );
    let origins = origins.await?;
    let request = CheckRequest { tenant, plugin, component, grader, config };
    let pushed = Admin::run_detached(async move {
        // Held by the task, which continues after the caller disconnects.
        let _held = (permit, charge);
        admin.push(request, origins, key, activate).await
    });
    Ok((StatusCode::CREATED, Json(pushed.await?)))
}

/// Origins of a deployment's component and of its grader.
type Origins = (Option<Origin>, Option<Origin>);

/// A component and the evidence that was sent for it.
type Proven = (Digest, Option<Evidence>);

impl Admin {
    /// Checks the evidence of a deployment's components. If the tenant has trusted keys, one of them has to have signed
    /// each component.
    async fn check_origins(
        &self,
        tenant: TenantId,
        component: Proven,
        grader: Option<Proven>,
    ) -> Result<Origins, ApiError> {
        let tenant = self.on_disk(move |catalog| catalog.tenant(tenant)).await?;
        // Signatures of a large list take a while.
        let checked = tokio::task::spawn_blocking(move || {
            let keys: Result<Vec<PublicKey>, _> =
                tenant.trusted_keys.iter().map(|key| PublicKey::from_pem(&key.pem)).collect();
            let keys = keys.map_err(|error| {
                tracing::error!(%error, "a trusted key in the catalog is not valid");
                ApiError::Internal
            })?;
            let grader = match grader {
                Some(grader) => check_origin("grader", grader, &keys)?,
                None => None,
            };
            Ok((check_origin("component", component, &keys)?, grader))
        });
        checked.await.map_err(ApiError::panicked)?
    }

    /// Checks a deployment, adds it to the catalog, and activates it if it is to be active.
    async fn push(
        &self,
        request: CheckRequest,
        (component_origin, grader_origin): Origins,
        key: KeyId,
        activate: bool,
    ) -> Result<PushedDeployment, ApiError> {
        let (tenant, plugin, by) = (request.tenant, request.plugin.clone(), self.prefix_of(key).await?);
        self.require_components(tenant, [Some(request.component), request.grader]).await?;
        let CheckReport { passed, report } = {
            let _guard = self.0.checks.lock(tenant).await;
            self.0.settings.deployments.check(request.clone()).await?
        };
        let new = catalog::NewDeployment {
            component: request.component,
            grader: request.grader,
            component_origin,
            grader_origin,
            config: request.config,
            passed,
            report: report.clone(),
            created_by: by.clone(),
        };
        let name = plugin.clone();
        let mut added = self.on_disk(move |catalog| catalog.add_deployment(tenant, &name, &new)).await?;
        let mut activation_error = None;
        if activate && passed {
            let wanted = WantedActivation::waiting(ActivationTarget::Version(added.version), by);
            match self.activate(tenant, plugin.clone(), wanted).await {
                Ok(_) => added.active = true,
                Err(ApiError::Conflict(message)) => activation_error = Some(message),
                Err(error) => return Err(error),
            }
        }
        let in_use = self.0.settings.deployments.in_use(tenant, &plugin);
        // The push succeeded even if pruning fails, which is logged, or if the plugin was removed meanwhile.
        let _ = self.on_disk(move |catalog| catalog.prune(tenant, &plugin, &in_use)).await;
        Ok(PushedDeployment { deployment: added.into(), report: as_json(report)?, activation_error })
    }

    /// Checks that the tenant has uploaded these components, before they are compiled.
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

/// Checks the evidence of a component.
fn check_origin(
    what: &str,
    (component, evidence): Proven,
    keys: &[PublicKey],
) -> Result<Option<Origin>, ApiError> {
    let Some(evidence) = evidence else {
        if keys.is_empty() {
            return Ok(None);
        }
        return Err(ApiError::Conflict(format!(
            "the {what} has no signature, and the tenant takes only components that a trusted key signed; deploy it from a \
             registry: rollout-host plugin add NAME --from oci://HOST/REPOSITORY:TAG"
        )));
    };
    let checked = evidence.check(component, keys);
    let Checked { reference, signers, signature_count } =
        checked.map_err(|error| ApiError::Invalid(format!("{what}_evidence: {error}")))?;
    if signers.is_empty() && !keys.is_empty() {
        let trusted = keys.iter().map(PublicKey::id).collect::<Vec<_>>().join(", ");
        let found = match signature_count {
            0 => "no signature".to_owned(),
            count => format!("{count} signature(s), none of a trusted key"),
        };
        return Err(ApiError::Conflict(format!(
            "the {what} {reference} has {found}; the tenant takes only components that one of these keys signed: {trusted}"
        )));
    }
    Ok(Some(Origin { reference: reference.to_string(), signers }))
}

fn as_json(report: String) -> Result<Box<RawValue>, ApiError> {
    RawValue::from_string(report).map_err(|error| {
        tracing::error!(%error, "the report of a deployment is not valid JSON");
        ApiError::Internal
    })
}
