//! `/components`: what is uploaded before it is pushed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Json;
use axum::extract::{Request, State};

use super::Admin;
use super::error::ApiError;
use super::extract::{Author, Chunks, Path, Viewer};
use super::wire::{Component, OfTenant};
use rollout_catalog::{ComponentUpload, Digest, TenantId};
use rollout_core::budget::Use;

/// Uploads of a tenant at once. What they bring is on the disk before its quota knows of it.
const UPLOADS_MAX: usize = 4;

/// What is gathered of a body before it is written.
const PIECE_BYTES: usize = 1 << 20;

/// Says whether the tenant has a component.
#[utoipa::path(get, path = "/components/{sha256}", tag = "components",
    params(("sha256" = String, Path), OfTenant), responses((status = 200, body = Component)))]
pub(super) async fn show(
    State(admin): State<Admin>,
    Viewer(tenant): Viewer,
    Path(digest): Path<String>,
) -> Result<Json<Component>, ApiError> {
    let digest = parsed(&digest)?;
    let found = admin.on_disk(move |catalog| catalog.component(tenant, digest)).await?;
    found
        .map(|component| Json(component.into()))
        .ok_or_else(|| ApiError::NotFound(format!("there is no component {digest}")))
}

/// Takes the bytes of a component, whose SHA-256 they have to have.
#[utoipa::path(put, path = "/components/{sha256}", tag = "components",
    params(("sha256" = String, Path), OfTenant),
    request_body(content = Vec<u8>, content_type = "application/wasm"),
    responses((status = 200, body = Component)))]
pub(super) async fn upload(
    State(admin): State<Admin>,
    Author { tenant, .. }: Author,
    Path(digest): Path<String>,
    request: Request,
) -> Result<Json<Component>, ApiError> {
    let digest = parsed(&digest)?;
    let _one = admin.0.uploads.begin(tenant)?;
    let bytes_max = admin.0.settings.component_bytes_max;
    let no_room = |_| ApiError::NoRoom("the server has no memory for it now; retry later".to_owned());
    let _charge = admin.0.settings.budget.charge(Use::Request, PIECE_BYTES).map_err(no_room)?;
    let mut upload = admin.on_disk(move |catalog| catalog.upload(tenant, digest, bytes_max)).await?;
    let mut chunks = Chunks::of(request);
    let mut piece = Vec::with_capacity(PIECE_BYTES);
    while let Some(chunk) = chunks.next().await? {
        if piece.len() + chunk.len() > PIECE_BYTES {
            upload = written(upload, std::mem::take(&mut piece)).await?;
        }
        piece.extend_from_slice(&chunk);
    }
    let upload = written(upload, piece).await?;
    Ok(Json(admin.on_disk(move |_| upload.finish()).await?.into()))
}

async fn written(upload: ComponentUpload, piece: Vec<u8>) -> Result<ComponentUpload, ApiError> {
    let write = move || {
        let mut upload = upload;
        upload.write(&piece).map(|()| upload)
    };
    Ok(tokio::task::spawn_blocking(write).await.map_err(ApiError::panicked)??)
}

fn parsed(digest: &str) -> Result<Digest, ApiError> {
    digest.parse().map_err(|error: rollout_catalog::InvalidDigest| ApiError::Invalid(error.to_string()))
}

/// The uploads that are under way, by tenant.
#[derive(Clone, Default)]
pub(super) struct Uploads(Arc<Mutex<HashMap<TenantId, usize>>>);

/// One of them.
pub(super) struct Upload {
    uploads: Uploads,
    tenant: TenantId,
}

impl Uploads {
    fn begin(&self, tenant: TenantId) -> Result<Upload, ApiError> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(tenant).or_default();
        if *count >= UPLOADS_MAX {
            let what =
                format!("{UPLOADS_MAX} components are being uploaded; retry when one of them is there");
            return Err(ApiError::TooMany(what));
        }
        *count += 1;
        Ok(Upload { uploads: self.clone(), tenant })
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let mut counts = self.uploads.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_uploads_a_few_at_once_and_others_do_not_wait_for_it() {
        let uploads = Uploads::default();
        let (a, b) = (TenantId(1), TenantId(2));
        let mut begun: Vec<_> = (0..UPLOADS_MAX).map(|_| uploads.begin(a).ok().unwrap()).collect();
        assert!(matches!(uploads.begin(a), Err(ApiError::TooMany(_))));
        drop(uploads.begin(b).ok().unwrap());
        begun.pop();
        begun.push(uploads.begin(a).ok().unwrap());
        drop(begun);
        assert!(uploads.0.lock().unwrap().is_empty());
    }
}
