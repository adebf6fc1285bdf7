//! Serves the pages of a command on loopback, without keys.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use tokio::sync::Semaphore;

use crate::access::{Access, Gate, check_head};
use crate::error::RequestRefused;
use crate::ui;
use rollout_core::telemetry::Metrics;
use rollout_page::SentArtifact;

/// Maximum number of pages that are made at once. Each has a thread and may read files.
const MAKERS_MAX: usize = 4;

/// A page of a command.
#[derive(Debug)]
pub enum MadePage {
    /// A page as HTML.
    Html(String),
    /// A text.
    Text(String),
    /// An artifact.
    Artifact(SentArtifact),
    /// A page as HTML that says that there is no such page.
    Missing(String),
}

/// Makes the pages of a command.
pub trait PageMaker: Send + Sync + 'static {
    /// Makes the page at a path with a query. Reads files and blocks.
    fn page(&self, path: &str, query: &str) -> MadePage;
}

/// Returns the routes of a command's pages. Like a server without a key, they answer under the names of this machine only, so
/// that no web page can read them by another name.
pub fn pages(maker: Arc<dyn PageMaker>) -> Router {
    let makers = Arc::new(Semaphore::new(MAKERS_MAX));
    let access =
        Access { server_key: None, is_keyed: false, allowed_hosts: None, allowed_origins: Vec::new() };
    let gate =
        Gate { worker: None, access: Arc::new(access), short: Vec::new(), metrics: Arc::new(Metrics::new()) };
    Router::new()
        .route("/assets/{name}", get(ui::asset))
        .route("/{evaluation}/assets/{name}", get(ui::asset_of))
        .fallback(move |request: Request| {
            let (maker, makers) = (maker.clone(), makers.clone());
            let (method, uri) = (request.method().clone(), request.uri().clone());
            async move { answer(&method, &uri, maker, &makers).await }
        })
        .layer(from_fn(async |request: Request, next: Next| ui::protected(next.run(request).await)))
        .layer(from_fn_with_state(Arc::new(gate), check_head))
}

async fn answer(method: &Method, uri: &Uri, maker: Arc<dyn PageMaker>, makers: &Semaphore) -> Response {
    if *method != Method::GET {
        return RequestRefused::NoMethod.into_response();
    }
    let Ok(_permit) = makers.acquire().await else { return RequestRefused::Internal.into_response() };
    let path = uri.path().to_owned();
    let query = uri.query().unwrap_or_default().to_owned();
    match tokio::task::spawn_blocking(move || maker.page(&path, &query)).await {
        Ok(MadePage::Html(text)) => Html(text).into_response(),
        Ok(MadePage::Text(text)) => ([(CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response(),
        Ok(MadePage::Artifact(artifact)) => ui::artifact_response(artifact),
        Ok(MadePage::Missing(text)) => (StatusCode::NOT_FOUND, Html(text)).into_response(),
        // A panic is in the log already.
        Err(_) => RequestRefused::Internal.into_response(),
    }
}
