//! `/keys`: the keys of tenants and operators. Needs an operator's key.

use std::collections::HashMap;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use chrono::Utc;
use serde::Deserialize;
use utoipa::IntoParams;

use super::Admin;
use super::error::ApiError;
use super::extract::{JsonBody, Operator, Params, Path};
use super::wire::{CreatedKey, Key, List, NewKey, Page};
use rollout_catalog::{KeyId, TenantId};

/// Filter of a list of keys.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct KeyFilter {
    /// The tenant whose keys are listed; without it, all keys are listed.
    tenant: Option<String>,
}

/// Lists keys in the order of their creation.
#[utoipa::path(get, path = "/keys", tag = "keys", params(KeyFilter, Page),
    responses((status = 200, body = List<Key>)))]
pub(super) async fn list(
    State(admin): State<Admin>,
    _: Operator,
    Params(KeyFilter { tenant }): Params<KeyFilter>,
    Params(page): Params<Page>,
) -> Result<Json<List<Key>>, ApiError> {
    let after = page.after.as_deref().map(|after| after.parse().map(KeyId)).transpose();
    let after = after.map_err(|_| {
        ApiError::Invalid("invalid parameter after: it must be the number of a key".to_owned())
    })?;
    let limit = page.limit();
    let keys = admin
        .on_disk(move |catalog| {
            let tenant = tenant.map(|name| catalog.tenant_named(&name)).transpose()?;
            let keys = catalog.keys(tenant.map(|tenant| tenant.id), after, limit)?;
            let mut names: HashMap<TenantId, Option<String>> = HashMap::new();
            let mut with_names = Vec::with_capacity(keys.len());
            for key in keys {
                let tenant = key.tenant.and_then(|id| {
                    // A tenant that was deleted meanwhile has no name.
                    let name = names.entry(id);
                    name.or_insert_with(|| catalog.tenant(id).ok().map(|tenant| tenant.name.into())).clone()
                });
                with_names.push(Key::new(key, tenant));
            }
            Ok(with_names)
        })
        .await?;
    Ok(Json(List::page(keys, &page, |key| key.id.to_string())))
}

/// Creates a key. Only this response contains the key itself.
#[utoipa::path(post, path = "/keys", tag = "keys", request_body = NewKey,
    responses((status = 201, body = CreatedKey)))]
pub(super) async fn create(
    State(admin): State<Admin>,
    _: Operator,
    body: JsonBody<NewKey>,
) -> Result<(StatusCode, Json<CreatedKey>), ApiError> {
    let NewKey { name, rights, tenant, expires_at } = body.value;
    if expires_at.is_some_and(|end| end <= Utc::now()) {
        return Err(ApiError::Invalid("invalid expires_at: it must be in the future".to_owned()));
    }
    let created = admin
        .on_disk(move |catalog| {
            let id = tenant.as_deref().map(|name| catalog.tenant_named(name)).transpose()?;
            let id = id.map(|tenant| tenant.id);
            let new = rollout_catalog::NewKey { name, rights, tenant: id, expires_at };
            let created = catalog.create_key(new)?;
            Ok(CreatedKey { key: created.key, info: Key::new(created.info, tenant) })
        })
        .await?;
    Ok((StatusCode::CREATED, Json(created)))
}

/// Revokes a key. Requests with it are refused from then on.
#[utoipa::path(delete, path = "/keys/{id}", tag = "keys", params(("id" = i64, Path)),
    responses((status = 204, description = "The key is revoked.")))]
pub(super) async fn revoke(
    State(admin): State<Admin>,
    _: Operator,
    Path(id): Path<i64>,
) -> Result<StatusCode, ApiError> {
    admin.on_disk(move |catalog| catalog.revoke_key(KeyId(id))).await?;
    Ok(StatusCode::NO_CONTENT)
}
