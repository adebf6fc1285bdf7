//! Sends requests to workers and passes their answers on.

use std::sync::{Arc, OnceLock};

use axum::body::{Body, Bytes};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use futures_util::TryStreamExt;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use rollout_core::budget::Charge;
use rollout_outbound::{Secret, describe};

use super::workers::Worker;
use crate::error::RequestRefused;
use crate::worker::{
    ADMISSION_HEADER, CHOOSE_HEADER, KEY_HEADER, OWNER_HEADER, PLACE_HEADER, REPEATED_HEADER, placed_path,
};

/// Headers that belong to one connection, and those that only a gateway may send.
const NOT_FORWARDED: [HeaderName; 13] = [
    header::CONNECTION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::EXPECT,
    HeaderName::from_static("keep-alive"),
    header::CONTENT_LENGTH,
    HeaderName::from_static(OWNER_HEADER),
    HeaderName::from_static(PLACE_HEADER),
    HeaderName::from_static(CHOOSE_HEADER),
];

/// Error of sending a request to a worker.
#[derive(Debug)]
pub(super) enum SendError {
    /// The worker was not reached, so it knows nothing of the request.
    NotSent(String),
    /// The worker may have received the request.
    NoAnswer(String),
}

/// A request that can be sent to several workers, one after the other.
pub(super) struct Forwarded {
    method: Method,
    path_and_query: String,
    headers: HeaderMap,
    body: Bytes,
    /// The upgrade of the caller's connection to another protocol, if the caller requests one.
    pub upgrade: Option<OnUpgrade>,
    /// The body's share of the memory budget.
    _charge: Option<Charge>,
}

impl Forwarded {
    /// Creates the request to forward from a caller's request, whose body was read.
    pub(super) fn new(parts: &mut Parts, body: Bytes, charge: Option<Charge>) -> Self {
        let upgrade =
            parts.headers.contains_key(header::UPGRADE).then(|| parts.extensions.remove::<OnUpgrade>());
        let mut headers = HeaderMap::with_capacity(parts.headers.len() + 2);
        for (name, value) in &parts.headers {
            let is_upgrade = upgrade.is_some() && (name == header::UPGRADE || name == header::CONNECTION);
            let is_own = [KEY_HEADER, ADMISSION_HEADER, REPEATED_HEADER].contains(&name.as_str());
            if is_upgrade || !(NOT_FORWARDED.contains(name) || is_own) {
                headers.append(name.clone(), value.clone());
            }
        }
        let path_and_query = parts.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        let upgrade = upgrade.flatten();
        Self { method: parts.method.clone(), path_and_query, headers, body, upgrade, _charge: charge }
    }

    /// Sets the token of the lease that the rollout will have.
    pub(super) fn set_admission(&mut self, token: &str) {
        if let Ok(token) = token.parse() {
            self.headers.insert(HeaderName::from_static(ADMISSION_HEADER), token);
        }
    }

    /// Sets the worker that takes the rollout if the receiving one has no room. `None` removes it.
    pub(super) fn set_other(&mut self, worker: Option<&str>) {
        match worker.and_then(|worker| worker.parse().ok()) {
            Some(worker) => self.headers.insert(HeaderName::from_static(PLACE_HEADER), worker),
            None => self.headers.remove(PLACE_HEADER),
        };
    }

    /// Returns the path.
    pub(super) fn path(&self) -> &str {
        self.path_and_query.split('?').next().unwrap_or_default()
    }

    /// Returns the path and the query.
    pub(super) fn uri(&self) -> Option<Uri> {
        self.path_and_query.parse().ok()
    }

    /// Returns a request that confirms the place of the rollout that this request has started.
    pub(super) fn confirmation(&self, id: &str, place: &str) -> Self {
        let mut headers = self.headers.clone();
        // The confirmation has no body.
        headers.remove(header::CONTENT_TYPE);
        headers.remove(header::CONTENT_ENCODING);
        let mut confirmation = Self {
            method: Method::PUT,
            path_and_query: placed_path(self.path(), &rollout_page::path_segment(id)),
            headers,
            body: Bytes::new(),
            upgrade: None,
            _charge: None,
        };
        confirmation.set_other(Some(place));
        confirmation
    }

    /// Returns whether the caller requests another protocol on its connection.
    pub(super) fn is_upgrade(&self) -> bool {
        self.upgrade.is_some()
    }

    /// Adds the key that a caller sent.
    pub(super) fn set_key(&mut self, headers: &HeaderMap) {
        if let Some(key) = headers.get(header::AUTHORIZATION) {
            self.headers.insert(header::AUTHORIZATION, key.clone());
        }
    }

    /// Sets whether the request was sent to the worker before, with an answer that was lost.
    pub(super) fn set_repeated(&mut self, is_repeated: bool) {
        let name = HeaderName::from_static(REPEATED_HEADER);
        if is_repeated {
            self.headers.insert(name, HeaderValue::from_static("1"));
        } else {
            self.headers.remove(name);
        }
    }

    /// Returns the headers that are sent.
    pub(super) fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// Returns the body.
    pub(super) fn body(&self) -> &Bytes {
        &self.body
    }

    /// Sends the request to a worker and returns its answer, whose body is still to be read.
    pub(super) async fn send(
        &self,
        client: &reqwest::Client,
        key: &Secret,
        worker: &Arc<Worker>,
    ) -> Result<reqwest::Response, SendError> {
        let url = format!("{}{}", worker.base, self.path_and_query);
        let request = client
            .request(self.method.clone(), url)
            .headers(self.headers.clone())
            .header(KEY_HEADER, key.expose())
            .body(self.body.clone());
        request.send().await.map_err(|error| {
            let is_sent = !error.is_connect();
            let why = describe(error);
            if is_sent { SendError::NoAnswer(why) } else { SendError::NotSent(why) }
        })
    }
}

/// Error of forwarding a body while it arrives.
#[derive(Debug)]
pub(super) enum StreamError {
    /// The caller's body broke off or was too slow.
    Caller(String),
    /// The worker was not reached, or gave no answer.
    Worker(String),
}

impl Forwarded {
    /// Sends the request with a body that is read no faster than the worker receives it. Returns the worker's answer.
    pub(super) async fn stream(
        &self,
        client: &reqwest::Client,
        key: &Secret,
        worker: &Arc<Worker>,
        (body, length): (Body, Option<HeaderValue>),
    ) -> Result<reqwest::Response, StreamError> {
        let broken = Arc::new(OnceLock::new());
        let noted = broken.clone();
        let chunks = body.into_data_stream().inspect_err(move |error| {
            // The first error is the cause of the others.
            let _ = noted.set(error.to_string());
        });
        let mut request = client
            .request(self.method.clone(), format!("{}{}", worker.base, self.path_and_query))
            .headers(self.headers.clone())
            .header(KEY_HEADER, key.expose());
        // Without a length, the worker cannot refuse a body that is too large before it arrives.
        if let Some(length) = length {
            request = request.header(header::CONTENT_LENGTH, length);
        }
        let sent = request.body(reqwest::Body::wrap_stream(chunks)).send().await;
        sent.map_err(|error| match broken.get() {
            Some(why) => StreamError::Caller(why.clone()),
            None => StreamError::Worker(describe(error)),
        })
    }
}

/// Passes a worker's answer on, as it arrives. A connection that the worker upgrades is joined with the caller's.
///
/// The status 421 has its meaning only between gateways and workers; the caller receives one after which it retries.
pub(super) fn pass_on(answer: reqwest::Response, upgrade: Option<OnUpgrade>) -> Response {
    match answer.status() {
        StatusCode::MISDIRECTED_REQUEST => {
            let detail = "another worker may have this rollout, and does not name it yet; retry later";
            RequestRefused::NotAdmitted(detail.to_owned()).into_response()
        }
        status => passed_on(status, answer, upgrade),
    }
}

/// Passes a worker's answer on with another status.
pub(super) fn pass_on_as(status: StatusCode, answer: reqwest::Response) -> Response {
    passed_on(status, answer, None)
}

fn passed_on(status: StatusCode, answer: reqwest::Response, upgrade: Option<OnUpgrade>) -> Response {
    let mut headers = HeaderMap::with_capacity(answer.headers().len());
    let is_upgraded = status == StatusCode::SWITCHING_PROTOCOLS;
    for (name, value) in answer.headers() {
        let is_kept = name == header::CONTENT_LENGTH
            || is_upgraded && (name == header::UPGRADE || name == header::CONNECTION);
        if is_kept || !NOT_FORWARDED.contains(name) {
            headers.append(name.clone(), value.clone());
        }
    }
    let body = if is_upgraded {
        let Some(upgrade) = upgrade else { return StatusCode::BAD_GATEWAY.into_response() };
        tokio::spawn(join(upgrade, answer));
        Body::empty()
    } else {
        Body::from_stream(answer.bytes_stream())
    };
    (status, headers, body).into_response()
}

/// Copies bytes between an upgraded connection of a caller and that of a worker until one of them ends.
async fn join(caller: OnUpgrade, answer: reqwest::Response) {
    let (caller, worker) = match tokio::join!(caller, answer.upgrade()) {
        (Ok(caller), Ok(worker)) => (caller, worker),
        (Err(error), _) => return tracing::debug!(%error, "a caller's connection was not upgraded"),
        (_, Err(error)) => return tracing::debug!(%error, "a worker's connection was not upgraded"),
    };
    let (mut caller, mut worker) = (TokioIo::new(caller), worker);
    if let Err(error) = tokio::io::copy_bidirectional(&mut caller, &mut worker).await {
        tracing::debug!(%error, "an upgraded connection broke");
    }
}
