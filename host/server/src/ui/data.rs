//! The data of pages as JSON, for programs such as `rollout-host top`.
//!
//! A program sends its key with each request, as `Authorization: Bearer KEY`, instead of signing in. Browsers add no such
//! header to the requests of other sites' pages.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Request, State};
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::{
    NotShown, PageRequest, Seen, Ui, host_source_of, page_query, page_request_of, read_within, scope_and_id,
};
use crate::error::RequestRefused;
use rollout_outbound::Secret;
use rollout_page::{EndedFilter, HostData, PageOfTurns};

/// Returns the key of a request after `Bearer `. A key may have any text, and `HeaderValue::to_str` accepts only ASCII.
pub(super) fn bearer_key(headers: &HeaderMap) -> Option<&str> {
    std::str::from_utf8(headers.get(AUTHORIZATION)?.as_bytes()).ok()?.strip_prefix("Bearer ")
}

/// Returns the query of a request and its rights.
fn data_request(ui: &Ui, request: &Request) -> Result<PageRequest, RequestRefused> {
    let seen = match bearer_key(request.headers()) {
        Some(key) if ui.viewed.is_keyed() => {
            ui.viewed.viewer(key).map(|viewer| Seen { viewer, key: Some(Secret::new(key)) }).ok_or(
                RequestRefused::Unauthorized("the key is not valid: it is mistyped, revoked or expired"),
            )
        }
        _ => ui.seen(request.headers()).ok_or(RequestRefused::Unauthorized(
            "this server needs a key: send it as Authorization: Bearer KEY",
        )),
    };
    let seen = seen.inspect_err(|_| ui.viewed.metrics().unauthorized())?;
    Ok(page_request_of(ui, request, seen, page_query(request)))
}

fn refused(error: NotShown) -> RequestRefused {
    match error {
        NotShown::Missing { reason, .. } => RequestRefused::NotFound(reason),
        NotShown::Forbidden(reason) => RequestRefused::Forbidden(reason),
        NotShown::Refused(reason) => RequestRefused::NotReady(reason),
        NotShown::NoRoom(reason) => RequestRefused::NoRoom(reason),
        NotShown::Failed => RequestRefused::Internal,
    }
}

fn answer(data: Result<impl Serialize, RequestRefused>) -> Response {
    match data {
        Ok(data) => Json(data).into_response(),
        Err(refused) => refused.into_response(),
    }
}

/// Returns the data of the first page.
pub(super) async fn host(State(ui): State<Arc<Ui>>, request: Request) -> Response {
    let page_request = match data_request(&ui, &request) {
        Ok(page_request) => page_request,
        Err(refused) => return refused.into_response(),
    };
    let source = host_source_of(&ui, &page_request, 1, EndedFilter::default()).await;
    answer(source.map(|source| HostData::new(ui.viewed.name(), &source)).map_err(refused))
}

/// Returns the data of a rollout's page.
pub(super) async fn rollout(State(ui): State<Arc<Ui>>, Path(id): Path<String>, request: Request) -> Response {
    let page_request = match data_request(&ui, &request) {
        Ok(page_request) => page_request,
        Err(refused) => return refused.into_response(),
    };
    // Without a number, the newest turns.
    let turns = PageOfTurns { number: page_request.query.page.unwrap_or(0) };
    let read = async {
        let (scope, id) = scope_and_id(&ui, &page_request, id).await?;
        read_within(&ui, &scope, id, move |source| source.data(turns)).await
    };
    answer(read.await.map_err(refused))
}
