//! `/components`: what is uploaded before it is pushed.

use axum::Json;
use axum::extract::{Request, State};

use super::Admin;
use super::error::ApiError;
use super::extract::{Author, Chunks, Path, Viewer};
use super::places::Place;
use super::wire::{Component, OfTenant};
use rollout_catalog::{ComponentUpload, Digest};
use rollout_core::budget::{Charge, Use};

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
    let place = admin.0.uploads.begin(tenant)?;
    let bytes_max = admin.0.settings.component_bytes_max;
    let no_room = |_| ApiError::NoRoom("the server has no memory for it now; retry later".to_owned());
    let charge = admin.0.settings.budget.charge(Use::Request, PIECE_BYTES).map_err(no_room)?;
    let upload = admin.on_disk(move |catalog| catalog.upload(tenant, digest, bytes_max)).await?;
    let mut upload = Held { upload, _place: place, _charge: charge };
    let mut chunks = Chunks::of(request);
    let mut piece = Vec::with_capacity(PIECE_BYTES);
    while let Some(chunk) = chunks.next().await? {
        if piece.len() + chunk.len() > PIECE_BYTES {
            upload = written(upload, std::mem::take(&mut piece)).await?;
        }
        piece.extend_from_slice(&chunk);
    }
    let upload = written(upload, piece).await?;
    let finish = move |_: &_| {
        let Held { upload, _place, _charge } = upload;
        upload.finish()
    };
    Ok(Json(admin.on_disk(finish).await?.into()))
}

/// An upload with its place among the tenant's and the charge for one piece. They stay with the piece while it is
/// written, which goes on where the caller leaves.
struct Held {
    upload: ComponentUpload,
    _place: Place,
    _charge: Charge,
}

async fn written(held: Held, piece: Vec<u8>) -> Result<Held, ApiError> {
    let write = move || {
        let mut held = held;
        held.upload.write(&piece).map(|()| held)
    };
    Ok(tokio::task::spawn_blocking(write).await.map_err(ApiError::panicked)??)
}

fn parsed(digest: &str) -> Result<Digest, ApiError> {
    digest.parse().map_err(|error: rollout_catalog::InvalidDigest| ApiError::Invalid(error.to_string()))
}
