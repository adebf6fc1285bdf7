//! `/tenants`: the tenants of the server. Needs an operator's key.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use chrono::Days;
use serde::Deserialize;
use utoipa::IntoParams;

use super::Admin;
use super::error::ApiError;
use super::extract::{JsonBody, Operator, Params, Path};
use super::wire::{DayUsage, List, NewTenant, Page, Tenant, TenantChange, TenantUsage};
use rollout_catalog::{Day, Name, TenantSettings, TrustedKey};
use rollout_cluster::ClusterError;
use rollout_outbound::NetworkEntry;
use rollout_registry::signature::{KeyError, PublicKey};

/// Default number of days of usage.
const DAYS_DEFAULT: u32 = 30;

/// Maximum number of trusted keys of a tenant.
const TRUSTED_KEYS_MAX: usize = 20;

/// Maximum number of entries in the network rules of a tenant.
const ALLOW_MAX: usize = 1000;

/// Lists all tenants by name.
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
    Ok(Json(List::page(tenants, &page, |tenant| tenant.name.clone())))
}

/// Creates a tenant.
#[utoipa::path(post, path = "/tenants", tag = "tenants", request_body = NewTenant,
    responses((status = 201, body = Tenant)))]
pub(super) async fn create(
    State(admin): State<Admin>,
    _: Operator,
    body: JsonBody<NewTenant>,
) -> Result<(StatusCode, Json<Tenant>), ApiError> {
    let NewTenant { name, quotas, network, trusted_keys } = body.value;
    let name = Name::new(name).map_err(|error| ApiError::Invalid(error.to_string()))?;
    check_allow_list(&network.allow)?;
    let settings = TenantSettings { quotas, network, trusted_keys: parse_keys(&trusted_keys)? };
    let tenant = admin.on_disk(move |catalog| catalog.create_tenant(&name, &settings)).await?;
    Ok((StatusCode::CREATED, Json(tenant.into())))
}

/// Returns a tenant.
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

/// Changes a tenant's quotas, network rules and trusted keys. A version that is active stays active.
#[utoipa::path(patch, path = "/tenants/{tenant}", tag = "tenants", params(("tenant" = String, Path)),
    request_body = TenantChange, responses((status = 200, body = Tenant)))]
pub(super) async fn change(
    State(admin): State<Admin>,
    _: Operator,
    Path(name): Path<String>,
    body: JsonBody<TenantChange>,
) -> Result<Json<Tenant>, ApiError> {
    let TenantChange { quotas, network, trusted_keys } = body.value;
    check_allow_list(network.allow.as_deref().unwrap_or_default())?;
    let trusted_keys = trusted_keys.map(|keys| parse_keys(&keys)).transpose()?;
    let change = move |settings: &mut TenantSettings| {
        settings.quotas.apply(&quotas);
        network.apply(&mut settings.network);
        if let Some(keys) = &trusted_keys {
            settings.trusted_keys.clone_from(keys);
        }
    };
    let tenant = admin.on_disk(move |catalog| catalog.update_tenant(&name, change)).await?;
    admin.0.settings.deployments.tenant_changed(tenant.id);
    Ok(Json(tenant.into()))
}

/// Deletes a tenant: its keys at once, then its rollouts, its plugins and all its files.
#[utoipa::path(delete, path = "/tenants/{tenant}", tag = "tenants", params(("tenant" = String, Path)),
    responses((status = 204, description = "The tenant is deleted.")))]
pub(super) async fn delete(
    State(admin): State<Admin>,
    _: Operator,
    Path(name): Path<String>,
) -> Result<StatusCode, ApiError> {
    Admin::run_detached(async move {
        let id = admin.on_disk(move |catalog| catalog.delete_tenant(&name)).await?;
        admin.0.settings.deployments.tenant_deleted(id).await;
        admin.on_disk(move |catalog| catalog.finish_deleting(id)).await?;
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

/// Period of a tenant's usage.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct UsagePeriod {
    /// Number of days including today, from 1 to 400; the default is 30.
    days: Option<u32>,
}

/// Returns the size of a tenant's components and its usage by day, at all workers.
#[utoipa::path(get, path = "/tenants/{tenant}/usage", tag = "tenants",
    params(("tenant" = String, Path), UsagePeriod), responses((status = 200, body = TenantUsage)))]
pub(super) async fn usage(
    State(admin): State<Admin>,
    _: Operator,
    Path(name): Path<String>,
    Params(UsagePeriod { days }): Params<UsagePeriod>,
) -> Result<Json<TenantUsage>, ApiError> {
    let count = days.unwrap_or(DAYS_DEFAULT).clamp(1, 400);
    let deployments = admin.0.settings.deployments.clone();
    let shared = deployments.shared_usage();
    let (id, component_bytes, since, days) = admin
        .on_disk(move |catalog| {
            let id = catalog.tenant_named(&name)?.id;
            deployments.note_usage(id);
            let today = catalog.today();
            let since = today.checked_sub_days(Days::new(u64::from(count) - 1)).unwrap_or(today);
            Ok((id, catalog.component_bytes(id)?, since, catalog.usage_since(id, since)?))
        })
        .await?;
    let mut days: BTreeMap<Day, _> = days.into_iter().collect();
    if let Some(shared) = shared {
        let all = since.iter_days().take(count as usize);
        days = shared.days(id.0, all, days).await.map_err(|error| match error {
            ClusterError::Unreadable { .. } => {
                tracing::error!(%error, "the usage of a tenant is not known");
                ApiError::Internal
            }
            _ => ApiError::NoRoom(format!("the usage at other workers cannot be read: {error}; retry later")),
        })?;
    }
    let days = days.into_iter().rev().map(|(day, usage)| DayUsage {
        day: day.to_string(),
        model_tokens: usage.model_tokens,
        guest_cpu_seconds: usage.guest_cpu_nanos as f64 / 1e9,
    });
    Ok(Json(TenantUsage { component_bytes, days: days.collect() }))
}

/// Parses the keys of trusted signers.
fn parse_keys(keys: &[String]) -> Result<Vec<TrustedKey>, ApiError> {
    if keys.len() > TRUSTED_KEYS_MAX {
        return Err(ApiError::Invalid(format!("trusted_keys has more than {TRUSTED_KEYS_MAX} keys")));
    }
    let parse = |text: &String| {
        let key = PublicKey::from_pem(text)?;
        Ok(TrustedKey { id: key.id(), pem: key.to_pem() })
    };
    let parsed: Result<_, KeyError> = keys.iter().map(parse).collect();
    parsed.map_err(|error| ApiError::Invalid(format!("trusted_keys: {error}")))
}

/// Checks the list of allowed destinations in network rules.
fn check_allow_list(allow: &[String]) -> Result<(), ApiError> {
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
