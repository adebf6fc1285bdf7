//! `/tenants`: for operators.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use chrono::Days;
use serde::Deserialize;
use utoipa::IntoParams;

use super::Admin;
use super::error::ApiError;
use super::extract::{JsonBody, Operator, Params, Path};
use super::wire::{List, NewTenant, Page, Tenant, TenantChange, TenantUsage, UsageOfDay};
use rollout_catalog::{Name, TenantSettings};
use rollout_outbound::NetworkEntry;

/// How many days of usage are shown where nothing is said.
const DAYS_DEFAULT: u32 = 30;

/// What a tenant's rules may list.
const ALLOW_MAX: usize = 1000;

/// All tenants, by name.
#[utoipa::path(get, path = "/tenants", tag = "tenants", params(Page),
    responses((status = 200, body = List<Tenant>)))]
pub(super) async fn list(
    State(admin): State<Admin>,
    _: Operator,
    Params(page): Params<Page>,
) -> Result<Json<List<Tenant>>, ApiError> {
    let (after, limit) = (page.after.clone(), page.limit());
    let tenants = admin.on_disk(move |catalog| catalog.tenants(after.as_deref(), limit)).await?;
    let tenants = tenants.into_iter().map(Tenant::from).collect();
    Ok(Json(List::of(tenants, &page, |tenant| tenant.name.clone())))
}

/// Makes a tenant.
#[utoipa::path(post, path = "/tenants", tag = "tenants", request_body = NewTenant,
    responses((status = 201, body = Tenant)))]
pub(super) async fn create(
    State(admin): State<Admin>,
    _: Operator,
    body: JsonBody<NewTenant>,
) -> Result<(StatusCode, Json<Tenant>), ApiError> {
    let NewTenant { name, quotas, network } = body.value;
    let name = Name::new(name).map_err(|error| ApiError::Invalid(error.to_string()))?;
    check_list(&network.allow)?;
    let settings = TenantSettings { quotas, network };
    let tenant = admin.on_disk(move |catalog| catalog.create_tenant(&name, &settings)).await?;
    Ok((StatusCode::CREATED, Json(tenant.into())))
}

/// One tenant.
#[utoipa::path(get, path = "/tenants/{tenant}", tag = "tenants", params(("tenant" = String, Path)),
    responses((status = 200, body = Tenant)))]
pub(super) async fn show(
    State(admin): State<Admin>,
    _: Operator,
    Path(name): Path<String>,
) -> Result<Json<Tenant>, ApiError> {
    let tenant = admin.on_disk(move |catalog| catalog.tenant_named(&name)).await?;
    Ok(Json(tenant.into()))
}

/// Changes a tenant's quotas and network rules.
#[utoipa::path(patch, path = "/tenants/{tenant}", tag = "tenants", params(("tenant" = String, Path)),
    request_body = TenantChange, responses((status = 200, body = Tenant)))]
pub(super) async fn change(
    State(admin): State<Admin>,
    _: Operator,
    Path(name): Path<String>,
    body: JsonBody<TenantChange>,
) -> Result<Json<Tenant>, ApiError> {
    let TenantChange { quotas, network } = body.value;
    check_list(network.allow.as_deref().unwrap_or_default())?;
    let change = move |settings: &mut TenantSettings| {
        quotas.apply(&mut settings.quotas);
        network.apply(&mut settings.network);
    };
    let tenant = admin.on_disk(move |catalog| catalog.update_tenant(&name, change)).await?;
    admin.0.settings.deployments.tenant_changed(tenant.id);
    Ok(Json(tenant.into()))
}

/// Deletes a tenant: its keys at once, then its rollouts, its plugins and all of its files.
#[utoipa::path(delete, path = "/tenants/{tenant}", tag = "tenants", params(("tenant" = String, Path)),
    responses((status = 204, description = "Nothing of it is left.")))]
pub(super) async fn delete(
    State(admin): State<Admin>,
    _: Operator,
    Path(name): Path<String>,
) -> Result<StatusCode, ApiError> {
    Admin::to_the_end(async move {
        let id = admin.on_disk(move |catalog| catalog.delete_tenant(&name)).await?;
        admin.0.settings.deployments.tenant_deleted(id).await;
        admin.on_disk(move |catalog| catalog.finish_deleting(id)).await?;
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

/// Since when.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Since {
    /// How many days, today among them, up to 400; 30 if not given.
    days: Option<u32>,
}

/// What a tenant has in components, and what it used by day.
#[utoipa::path(get, path = "/tenants/{tenant}/usage", tag = "tenants",
    params(("tenant" = String, Path), Since), responses((status = 200, body = TenantUsage)))]
pub(super) async fn usage(
    State(admin): State<Admin>,
    _: Operator,
    Path(name): Path<String>,
    Params(Since { days }): Params<Since>,
) -> Result<Json<TenantUsage>, ApiError> {
    let before = Days::new(u64::from(days.unwrap_or(DAYS_DEFAULT).clamp(1, 400) - 1));
    let deployments = admin.0.settings.deployments.clone();
    let (component_bytes, days) = admin
        .on_disk(move |catalog| {
            let id = catalog.tenant_named(&name)?.id;
            deployments.note_usage(id);
            let (today, _) = catalog.usage_today(id);
            let since = today.checked_sub_days(before).unwrap_or(today);
            Ok((catalog.component_bytes(id)?, catalog.usage_since(id, since)?))
        })
        .await?;
    let days = days.into_iter().map(|(day, usage)| UsageOfDay {
        day: day.to_string(),
        model_tokens: usage.model_tokens,
        guest_cpu_seconds: usage.guest_cpu_nanos as f64 / 1e9,
    });
    Ok(Json(TenantUsage { component_bytes, days: days.collect() }))
}

fn check_list(allow: &[String]) -> Result<(), ApiError> {
    if allow.len() > ALLOW_MAX {
        return Err(ApiError::Invalid(format!("network.allow has more than {ALLOW_MAX} entries")));
    }
    for entry in allow {
        if let Err(error) = entry.parse::<NetworkEntry>() {
            return Err(ApiError::Invalid(format!("network.allow: {error}")));
        }
    }
    Ok(())
}
