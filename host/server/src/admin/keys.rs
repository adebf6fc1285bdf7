//! `/keys`: for operators.

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

/// Whose keys.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Whose {
    /// A tenant; all keys if not given.
    tenant: Option<String>,
}

/// Keys, in the order in which they were made.
#[utoipa::path(get, path = "/keys", tag = "keys", params(Whose, Page),
    responses((status = 200, body = List<Key>)))]
pub(super) async fn list(
    State(admin): State<Admin>,
    _: Operator,
    Params(Whose { tenant }): Params<Whose>,
    Params(page): Params<Page>,
) -> Result<Json<List<Key>>, ApiError> {
    let after = page.after.as_deref().map(|after| after.parse().map(KeyId)).transpose();
    let after = after.map_err(|_| ApiError::Invalid("after: a key's id is a number".to_owned()))?;
    let limit = page.limit();
    let keys = admin
        .on_disk(move |catalog| {
            let tenant = tenant.map(|name| catalog.tenant_named(&name)).transpose()?;
            let keys = catalog.keys(tenant.map(|tenant| tenant.id), after, limit)?;
            let mut names: HashMap<TenantId, Option<String>> = HashMap::new();
            let mut named = Vec::with_capacity(keys.len());
            for key in keys {
                let tenant = key.tenant.and_then(|id| {
                    // One that was deleted since has no name.
                    let name = names.entry(id);
                    name.or_insert_with(|| catalog.tenant(id).ok().map(|tenant| tenant.name.into())).clone()
                });
                named.push(Key::new(key, tenant));
            }
            Ok(named)
        })
        .await?;
    Ok(Json(List::of(keys, &page, |key| key.id.to_string())))
}

/// Makes a key. The answer is the only place where it is shown.
#[utoipa::path(post, path = "/keys", tag = "keys", request_body = NewKey,
    responses((status = 201, body = CreatedKey)))]
pub(super) async fn create(
    State(admin): State<Admin>,
    _: Operator,
    body: JsonBody<NewKey>,
) -> Result<(StatusCode, Json<CreatedKey>), ApiError> {
    let NewKey { name, rights, tenant, expires_at } = body.value;
    if expires_at.is_some_and(|end| end <= Utc::now()) {
        return Err(ApiError::Invalid("expires_at: that is over already".to_owned()));
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

/// Revokes a key. It is refused from then on.
#[utoipa::path(delete, path = "/keys/{id}", tag = "keys", params(("id" = i64, Path)),
    responses((status = 204, description = "It is good for nothing any more.")))]
pub(super) async fn revoke(
    State(admin): State<Admin>,
    _: Operator,
    Path(id): Path<i64>,
) -> Result<StatusCode, ApiError> {
    admin.on_disk(move |catalog| catalog.revoke_key(KeyId(id))).await?;
    Ok(StatusCode::NO_CONTENT)
}
