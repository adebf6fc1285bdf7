//! `/secrets`: keys that a tenant's configurations refer to by name. The API stores them and never returns them.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use super::Admin;
use super::error::ApiError;
use super::extract::{Author, JsonBody, NewName, Path};
use super::wire::{NewSecret, Secrets, TenantParam};
use rollout_catalog::{Catalog, CatalogError, Name, TenantId};
use rollout_outbound::Secret;
use rollout_rollout::seal::Seal;

/// Maximum number of bytes of a secret.
const SECRET_BYTES_MAX: usize = 16 << 10;

/// Lists the names of a tenant's secrets.
#[utoipa::path(get, path = "/secrets", tag = "secrets", params(TenantParam),
    responses((status = 200, body = Secrets)))]
pub(super) async fn list(
    State(admin): State<Admin>,
    Author { tenant, .. }: Author,
) -> Result<Json<Secrets>, ApiError> {
    let secrets = admin.on_disk(move |catalog| catalog.secrets(tenant)).await?;
    Ok(Json(Secrets { items: secrets.into_iter().map(|(name, _)| name.into()).collect() }))
}

/// Stores a secret. Replaces an existing one with the name.
#[utoipa::path(put, path = "/secrets/{name}", tag = "secrets", params(("name" = String, Path), TenantParam),
    request_body = NewSecret, responses((status = 204, description = "The secret is stored.")))]
pub(super) async fn set(
    State(admin): State<Admin>,
    Author { tenant, .. }: Author,
    NewName(name): NewName,
    body: JsonBody<NewSecret>,
) -> Result<StatusCode, ApiError> {
    let NewSecret { value } = body.value;
    if value.is_empty() || value.len() > SECRET_BYTES_MAX {
        return Err(ApiError::Invalid(format!("invalid value: a secret has 1 to {SECRET_BYTES_MAX} bytes")));
    }
    let sealed = admin.0.settings.seal.seal(&purpose(tenant, &name), value.as_bytes());
    let sealed = sealed.map_err(|error| {
        tracing::error!(%error, "cannot encrypt a secret");
        ApiError::Internal
    })?;
    admin.on_disk(move |catalog| catalog.set_secret(tenant, &name, &sealed)).await?;
    admin.0.settings.deployments.tenant_changed(tenant);
    Ok(StatusCode::NO_CONTENT)
}

/// Removes a secret.
#[utoipa::path(delete, path = "/secrets/{name}", tag = "secrets", params(("name" = String, Path), TenantParam),
    responses((status = 204, description = "The secret is removed.")))]
pub(super) async fn remove(
    State(admin): State<Admin>,
    Author { tenant, .. }: Author,
    Path(name): Path<String>,
) -> Result<StatusCode, ApiError> {
    admin.on_disk(move |catalog| catalog.remove_secret(tenant, &name)).await?;
    admin.0.settings.deployments.tenant_changed(tenant);
    Ok(StatusCode::NO_CONTENT)
}

/// Decrypts all secrets of a tenant. A secret that was sealed with another key of the host is logged and left out. Blocks on
/// the disk.
pub fn open_all(
    catalog: &Catalog,
    seal: &Seal,
    tenant: TenantId,
) -> Result<Vec<(Name, Secret)>, CatalogError> {
    let mut opened = Vec::new();
    for (name, sealed) in catalog.secrets(tenant)? {
        let text = seal.open(&purpose(tenant, &name), &sealed).and_then(|text| String::from_utf8(text).ok());
        match text {
            Some(text) => opened.push((name, Secret::new(text))),
            None => {
                tracing::error!(%tenant, secret = %name, "a secret was sealed with another key; set it again");
            }
        }
    }
    Ok(opened)
}

/// Seals a secret with another key of the host. Returns `None` if the secret was sealed with neither key.
pub fn seal_again(
    tenant: TenantId,
    name: &Name,
    sealed: &[u8],
    (from, to): (Option<&Seal>, &Seal),
) -> Option<Vec<u8>> {
    let purpose = purpose(tenant, name);
    if to.open(&purpose, sealed).is_some() {
        return Some(sealed.to_owned());
    }
    let text = from?.open(&purpose, sealed)?;
    to.seal(&purpose, &text).inspect_err(|error| tracing::error!(%error, "cannot encrypt a secret")).ok()
}

/// Returns the purpose to which a sealed secret is bound: it opens only for the same tenant and name.
fn purpose(tenant: TenantId, name: &Name) -> Vec<u8> {
    format!("secret {tenant} {name}").into_bytes()
}
