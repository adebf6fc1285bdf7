//! The pages of a gateway: its workers and the rollouts of all of them, and the workers' pages of rollouts and plugins.
//!
//! A browser signs in at the gateway, which sends the key of its session to the workers. They check it with each request.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use futures_util::future::join_all;
use serde::Deserialize;
use tokio::time::Instant;

use super::forward::{Forwarded, pass_on};
use super::workers::Worker;
use super::{Gateway, REQUEST_BYTES, decoded, headers_bytes, own_headers};
use crate::access::given_key;
use crate::connection::{Caller, Owner};
use crate::error::RequestRefused;
use crate::ui::events::{self, News};
use crate::ui::shares::Shares;
use crate::ui::{
    self, EVENT_INTERVAL, INTERVALS_PER_TIME, ROOT, STREAMS_MAX, Sessions, asset, form, html, local,
    protected,
};
use crate::worker::OWNER_HEADER;
use rollout_core::budget::{Charge, Use};
use rollout_outbound::Secret;
use rollout_page::{
    ClusterPage, Frame, Gauge, HostData, Links, NoticePage, SignInPage, WorkerLine, merged, number,
    path_segment,
};
use rollout_wire::digest::sha256_hex;

/// Maximum time of a page's events for a key that is in no session. The browser or program requests them again.
const STREAM_TIME_MAX: Duration = Duration::from_secs(600);

/// Maximum number of bytes of a form.
const FORM_BYTES_MAX: usize = 8 << 10;

/// The query of a page.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PageQuery {
    tenant: Option<String>,
    next: Option<String>,
}

/// A worker's answer to a key: the data of its first page.
struct Answered {
    data: HostData,
    /// Whether the key is an operator's.
    is_operator: bool,
    /// The memory of the data.
    charge: Charge,
}

/// The numbers of a worker, by which a change is noticed.
#[derive(PartialEq)]
struct Numbers {
    /// Whether it admits rollouts; `None` if it does not answer.
    is_accepting: Option<bool>,
    /// Number of its rollouts that run or wait.
    busy: u32,
    health: serde_json::Map<String, serde_json::Value>,
}

/// The answers of all workers.
struct AllAnswered {
    answered: Vec<Answered>,
    missing: usize,
    /// The first refusal, such as that of a wrong key.
    refused: Option<StatusCode>,
}

/// The state of the pages.
pub(super) struct Pages {
    sessions: Sessions,
    /// Permits of open pages that show changes.
    streams: Arc<Shares>,
}

impl Default for Pages {
    fn default() -> Self {
        let [each_max, all_max] = STREAMS_MAX;
        Self { sessions: Sessions::default(), streams: Shares::new(each_max, all_max) }
    }
}

/// Returns the digest under which the owner of a key is known.
fn key_digest(key: &Secret) -> String {
    sha256_hex(key.expose().as_bytes())
}

impl Gateway {
    /// Answers a request for a page.
    pub(super) async fn page(&self, request: Request) -> Response {
        protected(self.unprotected_page(request).await)
    }

    async fn unprotected_page(&self, request: Request) -> Response {
        let (parts, body) = request.into_parts();
        let query =
            Query::<PageQuery>::try_from_uri(&parts.uri).map(|Query(query)| query).unwrap_or_default();
        let path = parts.uri.path().to_owned();
        let below = path.strip_prefix(ROOT).unwrap_or_default();
        if let Some(name) = below.strip_prefix("/assets/") {
            return asset(Path(name.to_owned())).await;
        }
        match (&parts.method, below) {
            (&Method::GET, "") => return Redirect::permanent(&format!("{ROOT}/")).into_response(),
            _ if !self.knows_checks() => return self.no_checks(below),
            (&Method::GET, "/sign-in") => return self.sign_in_page(None, local(query.next)),
            (&Method::POST, "/sign-in") => return self.sign_in(&parts.headers, body).await,
            (&Method::POST, "/sign-out") => return self.sign_out(&parts.headers),
            _ => {}
        }
        let key = match self.key_of(&parts.headers) {
            Ok(key) => key,
            Err(()) if below == "/data" || below.ends_with("/data") || below.ends_with("/events") => {
                return RequestRefused::Unauthorized(
                    "this server needs a key: send it as Authorization: Bearer KEY",
                )
                .into_response();
            }
            Err(()) => {
                let to = parts.uri.path_and_query().map_or(ROOT, |to| to.as_str());
                return Redirect::to(&format!("{ROOT}/sign-in?next={}", path_segment(to))).into_response();
            }
        };
        let caller = parts.extensions.get::<Caller>().cloned();
        if let Some((caller, key)) = caller.as_ref().zip(key.as_ref()) {
            self.count_for(caller, self.0.owners.tenant(Some(&key_digest(key))));
        }
        match (&parts.method, below) {
            (&Method::GET, "/") => self.home(key, query.tenant, &path, &parts.headers).await,
            (&Method::GET, "/events") => self.events(key, query.tenant, &parts.headers, caller).await,
            (&Method::GET, "/data") => self.data(key, query.tenant).await,
            (_, below) if below.starts_with("/rollouts/") || below.starts_with("/plugins/") => {
                self.worker_page(parts, body, key.as_ref(), below).await
            }
            _ => {
                let reason = "This gateway has no such page.".to_owned();
                self.notice(StatusCode::NOT_FOUND, "No such page", reason, key.is_some())
            }
        }
    }

    /// Counts a connection for a tenant, if it is known.
    fn count_for(&self, caller: &Caller, tenant: Option<i64>) {
        if let Some(tenant) = tenant.filter(|_| self.has_tenants()) {
            caller.set_owner(Owner::Tenant(tenant));
        }
    }

    /// Refuses a page while the gateway does not know whether workers check keys.
    fn no_checks(&self, below: &str) -> Response {
        let reason = "no worker has answered this gateway yet, so it cannot check keys; retry later";
        let refused = RequestRefused::NoRoom(reason.to_owned()).into_response();
        if below.ends_with("/data") || below.ends_with("/events") {
            return refused;
        }
        let (title, reason) = ("No worker has answered", "This gateway cannot check keys yet.");
        let mut response = self.notice(StatusCode::SERVICE_UNAVAILABLE, title, reason.to_owned(), false);
        response.headers_mut().extend(
            refused.headers().get(header::RETRY_AFTER).map(|after| (header::RETRY_AFTER, after.clone())),
        );
        response
    }

    /// Returns whether browsers must sign in.
    fn is_keyed(&self) -> bool {
        self.0.settings.access.server_key.is_some() || self.has_tenants()
    }

    /// Returns the key of a request or of its session. Workers with tenants check it.
    fn key_of(&self, headers: &HeaderMap) -> Result<Option<Secret>, ()> {
        if !self.is_keyed() {
            return Ok(None);
        }
        let given = given_key(headers).map(|key| Secret::new(&*key));
        let of_session = || self.0.pages.sessions.key(&ui::token_of(headers)?, Instant::now());
        let key = given.or_else(of_session).ok_or(())?;
        match &self.0.settings.access.server_key {
            Some(right) if !is_same(right, &key) => Err(()),
            _ => Ok(Some(key)),
        }
    }

    fn frame(&self, tenant: Option<String>, signed_in_as: Option<&str>) -> Frame {
        Frame {
            links: Links { root: ROOT, tenant },
            name: "gateway".to_owned(),
            signed_in_as: signed_in_as.map(str::to_owned),
            events: None,
        }
    }

    fn notice(&self, status: StatusCode, title: &str, reason: String, is_signed_in: bool) -> Response {
        let frame = self.frame(None, is_signed_in.then_some("signed in"));
        let advice = "Reload the page in a few seconds, or go to the first page.".to_owned();
        html(status, &NoticePage { frame, title: title.to_owned(), reason, advice })
    }

    fn sign_in_page(&self, error: Option<String>, next: String) -> Response {
        let status = if error.is_some() { StatusCode::UNAUTHORIZED } else { StatusCode::OK };
        html(status, &SignInPage { frame: self.frame(None, None), error, next })
    }

    async fn sign_in(&self, headers: &HeaderMap, body: Body) -> Response {
        let form = match form(body).await {
            Ok(form) => form,
            Err(status) => return status.into_response(),
        };
        let field = |name: &str| form.get(name).cloned();
        let (key, next) = (Secret::new(field("key").unwrap_or_default().trim()), local(field("next")));
        if !self.is_keyed() {
            return Redirect::to(&next).into_response();
        }
        let wrong = || {
            let error = "This key is not valid: it is mistyped, revoked or expired.".to_owned();
            self.sign_in_page(Some(error), next.clone())
        };
        let tenant = match &self.0.settings.access.server_key {
            Some(right) if is_same(right, &key) => None,
            Some(_) => return wrong(),
            None => match self.owner_of(&key).await {
                Ok(Some(tenant)) => tenant,
                Ok(None) => return wrong(),
                Err(response) => return *response,
            },
        };
        let token = self.0.pages.sessions.begin(key.expose(), tenant, Instant::now());
        let cookie = ui::set_cookie(headers, Some(&token), self.0.settings.is_encrypted);
        ([(header::SET_COOKIE, cookie)], Redirect::to(&next)).into_response()
    }

    fn sign_out(&self, headers: &HeaderMap) -> Response {
        if let Some(token) = ui::token_of(headers) {
            self.0.pages.sessions.end(&token);
        }
        let cookie = ui::set_cookie(headers, None, self.0.settings.is_encrypted);
        ([(header::SET_COOKIE, cookie)], Redirect::to(&format!("{ROOT}/sign-in"))).into_response()
    }

    /// Asks a worker for the owner of a key: a tenant, or none for operators. Returns `None` if the key is not valid.
    async fn owner_of(&self, key: &Secret) -> Result<Option<Option<i64>>, Box<Response>> {
        let request = Forwarded::get("/ui/data", Some(key));
        for candidate in self.0.workers.candidates(None) {
            let Ok(answer) = self.send_while_up(&request, &candidate.worker).await else { continue };
            if answer.status() == StatusCode::UNAUTHORIZED {
                return Ok(None);
            }
            self.0.owners.learn(Some(key_digest(key)), answer.headers());
            let owner = answer.headers().get(OWNER_HEADER).and_then(|owner| owner.to_str().ok());
            return Ok(owner.map(|owner| owner.parse().ok()));
        }
        let reason = "No worker answers, and a gateway has no keys of its own.".to_owned();
        Err(Box::new(self.notice(StatusCode::SERVICE_UNAVAILABLE, "No worker answers", reason, false)))
    }

    /// Reads the data of the first page from all workers.
    async fn ask_all(
        &self,
        key: Option<&Secret>,
        tenant: Option<&str>,
    ) -> Result<AllAnswered, RequestRefused> {
        let busy = || RequestRefused::NoRoom("many requests to all workers wait; retry later".to_owned());
        let _permit = self.combined().await.ok_or_else(busy)?;
        let path = match tenant {
            Some(tenant) => format!("/ui/data?tenant={}", path_segment(tenant)),
            None => "/ui/data".to_owned(),
        };
        let request = Forwarded::get(&path, key);
        let ask = |worker: Arc<Worker>| {
            let request = &request;
            async move {
                let answer = self.send_while_up(request, &worker).await.ok()?;
                if !answer.status().is_success() {
                    return Some(Err(answer.status()));
                }
                let is_operator =
                    answer.headers().get(OWNER_HEADER).is_none_or(|owner| owner == crate::worker::OPERATOR);
                let (bytes, mut charge) = self.read(answer).await?;
                // For the texts of the parsed data and the page made of them, each about as large as the bytes.
                charge.grow(2 * bytes.len()).ok()?;
                let data = serde_json::from_slice(&bytes).ok()?;
                Some(Ok(Answered { data, is_operator, charge }))
            }
        };
        let all = self.0.workers.all().len();
        let candidates = self.0.workers.candidates(None);
        let mut found = AllAnswered { answered: Vec::new(), missing: all, refused: None };
        for answer in join_all(candidates.into_iter().map(|one| ask(one.worker))).await.into_iter().flatten()
        {
            match answer {
                Ok(answer) => {
                    found.missing = found.missing.saturating_sub(1);
                    found.answered.push(answer);
                }
                Err(status) => found.refused = found.refused.or(Some(status)),
            }
        }
        Ok(found)
    }

    fn merge(&self, all: AllAnswered) -> (HostData, Vec<WorkerLine>, usize, Vec<Charge>) {
        let AllAnswered { answered, missing, .. } = all;
        // Without an answer, no worker has checked the key.
        let is_checked = !answered.is_empty() || !self.has_tenants();
        let is_operator = is_checked && answered.iter().all(|answered| answered.is_operator);
        let workers: Vec<WorkerLine> = if is_operator { self.worker_lines() } else { Vec::new() };
        let gauges = match is_operator {
            true => {
                let sum =
                    |part: fn(&WorkerLine) -> u32| workers.iter().map(|worker| u64::from(part(worker))).sum();
                vec![Gauge::new("running", sum(|one| one.running), sum(|one| one.slots), number)]
            }
            false => Vec::new(),
        };
        let (data, charges) = answered.into_iter().map(|one| (one.data, one.charge)).unzip();
        (merged("gateway".to_owned(), gauges, data), workers, missing, charges)
    }

    fn worker_lines(&self) -> Vec<WorkerLine> {
        let line = |worker: Arc<Worker>| {
            let (status, is_up) = worker.status();
            let status = status.filter(|_| is_up);
            let state = match &status {
                None => "away",
                Some(status) if !status.accepting => "draining",
                Some(status) if status.room.is_some_and(|room| room <= 0) => "full",
                Some(_) => "up",
            };
            WorkerLine {
                name: worker.name(),
                state,
                running: status.as_ref().map_or(0, |status| status.running),
                queued: status.as_ref().map_or(0, |status| status.queued),
                slots: status.as_ref().map_or(0, |status| status.max_concurrent),
                version: status.map(|status| status.version.clone()).unwrap_or_default(),
                problem: worker.problem().unwrap_or_default(),
            }
        };
        self.0.workers.all().into_iter().map(line).collect()
    }

    async fn home(
        &self,
        key: Option<Secret>,
        tenant: Option<String>,
        path: &str,
        headers: &HeaderMap,
    ) -> Response {
        let tenant = tenant.filter(|tenant| !tenant.is_empty());
        let all = match self.ask_all(key.as_ref(), tenant.as_deref()).await {
            Ok(all) => all,
            Err(refused) => return refused.into_response(),
        };
        if all.answered.is_empty() && all.refused == Some(StatusCode::UNAUTHORIZED) {
            // The key was revoked since the sign-in.
            let mut response = self.sign_out(headers);
            if let Ok(to) = format!("{ROOT}/sign-in?next={}", path_segment(path)).parse() {
                response.headers_mut().insert(header::LOCATION, to);
            }
            return response;
        }
        if all.answered.is_empty() && all.refused == Some(StatusCode::NOT_FOUND) {
            let reason = "There is no such tenant.".to_owned();
            return self.notice(StatusCode::NOT_FOUND, "No such tenant", reason, true);
        }
        let (data, workers, missing, _charges) = self.merge(all);
        let rights = if workers.is_empty() { "tenant" } else { "operator" };
        let mut frame = self.frame(tenant, key.is_some().then_some(rights));
        frame.events = Some(frame.links.with_query(format!("{ROOT}/events"), ""));
        html(StatusCode::OK, &ClusterPage::new(frame, workers, missing, data))
    }

    /// Answers with the events of the first page. The gateway knows nothing of a tenant's rollouts, so a tenant's
    /// page is requested again at intervals, and the page of all tenants if a worker is busy or its numbers have
    /// changed.
    async fn events(
        &self,
        key: Option<Secret>,
        tenant: Option<String>,
        headers: &HeaderMap,
        caller: Option<Caller>,
    ) -> Response {
        // A page too many costs no request to a worker.
        let known = key.as_ref().and_then(|key| self.0.owners.tenant(Some(&key_digest(key))));
        let streams = &self.0.pages.streams;
        let early = known.map(|tenant| streams.take(tenant));
        if matches!(early, Some(None)) {
            return events::full();
        }
        let owner = match &key {
            Some(key) if self.has_tenants() => match self.owner_of(key).await {
                Ok(Some(owner)) => owner,
                Ok(None) => return StatusCode::UNAUTHORIZED.into_response(),
                Err(response) => return *response,
            },
            _ => None,
        };
        if let Some(caller) = caller {
            self.count_for(&caller, owner);
        }
        let early = early.flatten().filter(|_| known == owner);
        let Some(held) = early.or_else(|| streams.take(owner.unwrap_or(ui::PROCESS))) else {
            return events::full();
        };
        let is_of_tenant = owner.is_some() || tenant.is_some_and(|tenant| !tenant.is_empty());
        // A key in the request itself is checked once, so its stream ends after a while.
        let session = ui::token_of(headers).filter(|_| given_key(headers).is_none());
        let (gateway, began) = (self.clone(), Instant::now());
        let (mut interval, mut shown) = (0_u32, gateway.numbers());
        events::response(held, EVENT_INTERVAL, move || {
            interval = interval.wrapping_add(1);
            let is_signed_in = match (&key, &session) {
                (None, _) => !gateway.is_keyed(),
                (Some(_), Some(token)) => gateway.0.pages.sessions.key(token, Instant::now()).is_some(),
                (Some(_), None) => began.elapsed() < STREAM_TIME_MAX,
            };
            if gateway.0.stopping.is_cancelled() || !is_signed_in {
                return News::Closed;
            }
            if !interval.is_multiple_of(INTERVALS_PER_TIME) {
                return News::None;
            }
            let now = gateway.numbers();
            let is_changed = is_of_tenant || now != shown || now.iter().any(|worker| worker.busy > 0);
            shown = now;
            if is_changed { News::Changed } else { News::None }
        })
    }

    /// Returns the numbers of all workers that the page shows.
    fn numbers(&self) -> Vec<Numbers> {
        let of = |worker: Arc<Worker>| {
            let (status, is_up) = worker.status();
            let status = status.filter(|_| is_up);
            Numbers {
                is_accepting: status.as_ref().map(|status| status.accepting),
                busy: status.as_ref().map_or(0, |status| status.running.saturating_add(status.queued)),
                health: status.map(|status| status.health.clone()).unwrap_or_default(),
            }
        };
        self.0.workers.all().into_iter().map(of).collect()
    }

    /// Answers with the data of all workers, for programs.
    async fn data(&self, key: Option<Secret>, tenant: Option<String>) -> Response {
        match self.ask_all(key.as_ref(), tenant.as_deref()).await {
            Ok(all) if all.answered.is_empty() => match all.refused {
                Some(StatusCode::UNAUTHORIZED) => {
                    RequestRefused::Unauthorized("the key is not valid: it is mistyped, revoked or expired")
                        .into_response()
                }
                Some(status) => status.into_response(),
                None => self.not_all("none is left"),
            },
            Ok(all) => Json(self.merge(all).0).into_response(),
            Err(refused) => refused.into_response(),
        }
    }

    /// Passes a page of a rollout from the worker that has it, and a page of a plugin from any worker.
    async fn worker_page(&self, mut parts: Parts, body: Body, key: Option<&Secret>, below: &str) -> Response {
        let room = self
            .0
            .budget
            .charge(Use::Request, REQUEST_BYTES + FORM_BYTES_MAX + headers_bytes(&parts.headers));
        let Ok(charge) = room else {
            return RequestRefused::NoRoom(
                "the gateway has no memory for more requests; retry later".to_owned(),
            )
            .into_response();
        };
        let Ok(body) = axum::body::to_bytes(body, FORM_BYTES_MAX).await else {
            return StatusCode::PAYLOAD_TOO_LARGE.into_response();
        };
        // The cookie is for the gateway.
        parts.headers.remove(header::COOKIE);
        parts.headers.remove(header::AUTHORIZATION);
        parts.headers.extend(own_headers(key));
        let request = Forwarded::new(&mut parts, body, Some(charge));
        let id = below.strip_prefix("/rollouts/").map(|rest| rest.split('/').next().unwrap_or_default());
        match id {
            Some(id) => self.find(&decoded(id), &request).await,
            None => {
                for candidate in self.0.workers.candidates(None) {
                    if let Ok(answer) = self.send_while_up(&request, &candidate.worker).await {
                        return pass_on(answer, None);
                    }
                }
                self.not_all("none is left")
            }
        }
    }
}

fn is_same(right: &Secret, given: &Secret) -> bool {
    use subtle::ConstantTimeEq;
    right.expose().as_bytes().ct_eq(given.expose().as_bytes()).into()
}
