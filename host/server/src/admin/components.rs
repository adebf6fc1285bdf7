//! `/components`: uploads of components, which a push refers to.

use axum::Json;
use axum::extract::{Request, State};

use super::Admin;
use super::error::ApiError;
use super::extract::{Author, BodyChunks, Path, Viewer};
use super::request_limits::RequestPermit;
use super::wire::{Component, TenantParam};
use rollout_catalog::ComponentUpload;
use rollout_core::budget::{Charge, Use};
use rollout_wire::digest::Digest;

/// Number of bytes of a body that are written to disk at once.
const PIECE_BYTES: usize = 1 << 20;

/// Returns a component that the tenant has uploaded.
#[utoipa::path(get, path = "/components/{sha256}", tag = "components",
    params(("sha256" = String, Path), TenantParam), responses((status = 200, body = Component)))]
pub(super) async fn show(
    State(admin): State<Admin>,
    Viewer(tenant): Viewer,
    Path(digest): Path<String>,
) -> Result<Json<Component>, ApiError> {
    let digest = parse_digest(&digest)?;
    let component = admin.on_disk(move |catalog| catalog.component(tenant, digest)).await?;
    component
        .map(|component| Json(component.into()))
        .ok_or_else(|| ApiError::NotFound(format!("there is no component {digest}")))
}

/// Uploads a component. The body must have the SHA-256 of the path.
#[utoipa::path(put, path = "/components/{sha256}", tag = "components",
    params(("sha256" = String, Path), TenantParam),
    request_body(content = Vec<u8>, content_type = "application/wasm"),
    responses((status = 200, body = Component)))]
pub(super) async fn upload(
    State(admin): State<Admin>,
    Author { tenant, .. }: Author,
    Path(digest): Path<String>,
    request: Request,
) -> Result<Json<Component>, ApiError> {
    let digest = parse_digest(&digest)?;
    let permit = admin.0.uploads.acquire(tenant)?;
    let bytes_max = admin.0.settings.component_bytes_max;
    let no_room = |_| ApiError::NoRoom("the server has no memory for the upload; retry later".to_owned());
    let charge = admin.0.settings.budget.charge(Use::Request, PIECE_BYTES).map_err(no_room)?;
    let upload = admin.on_disk(move |catalog| catalog.upload(tenant, digest, bytes_max)).await?;
    let mut upload = UploadInProgress { upload, _permit: permit, _charge: charge };
    let mut chunks = BodyChunks::new(request);
    let mut piece = Vec::with_capacity(PIECE_BYTES);
    while let Some(chunk) = chunks.next().await? {
        if piece.len() + chunk.len() > PIECE_BYTES {
            upload = write_piece(upload, std::mem::take(&mut piece)).await?;
        }
        piece.extend_from_slice(&chunk);
    }
    let upload = write_piece(upload, piece).await?;
    let finish = move |_: &_| {
        let UploadInProgress { upload, _permit, _charge } = upload;
        upload.finish()
    };
    Ok(Json(admin.on_disk(finish).await?.into()))
}

/// An upload with its permit and the charge for one piece. Both live until a piece is written, even if the caller
/// disconnects meanwhile.
struct UploadInProgress {
    upload: ComponentUpload,
    _permit: RequestPermit,
    _charge: Charge,
}

/// Writes a piece on a blocking thread.
async fn write_piece(upload: UploadInProgress, piece: Vec<u8>) -> Result<UploadInProgress, ApiError> {
    let write = move || {
        let mut upload = upload;
        upload.upload.write(&piece).map(|()| upload)
    };
    Ok(tokio::task::spawn_blocking(write).await.map_err(ApiError::panicked)??)
}

fn parse_digest(digest: &str) -> Result<Digest, ApiError> {
    digest.parse().map_err(|error: rollout_wire::digest::InvalidDigest| ApiError::Invalid(error.to_string()))
}
