//! A gateway: the entrance to several workers, without state of its own.
//!
//! Any gateway answers any request. A new rollout goes to the worker that its id prefers (`placement`). If that
//! worker has no free slot, it decides which other one takes the rollout, and remembers the decision. Requests
//! without an id go to the worker with the most room. Members of a group go to the worker that the group's id
//! prefers, and forks to the worker of their parent. The lease of a rollout and the id of a session name the log of
//! their worker, so requests find them even after a restart. While a worker is away, its polls wait within the
//! protocol's long poll instead of failing, because a missing rollout is final for clients.
//!
//! A gateway knows neither plugins nor the keys of tenants. Workers check keys, and `owners` remembers their answers.

mod combined;
mod forward;
mod owners;
mod pages;
mod placement;
mod sessions;
mod target;
mod workers;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{FromRequest, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use futures_util::future::join_all;
use reqwest::{Client, Url};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::access::{Access, given_key, is_given};
use crate::connection::{Caller, Crowded, Owner};
use crate::dialect::body::{Bodies, Body, HoldsBodies};
use crate::dialect::ors;
use crate::dialect::osmosis::{self, a};
use crate::error::RequestRefused;
use crate::{random, readiness, ui, worker};
use forward::{Forwarded, SendError, StreamError, pass_on};
use owners::Owners;
use pages::Pages;
use placement::Candidate;
use sessions::SessionName;
use target::Target;
use workers::{LogPlace, Worker, Workers};

use rollout_core::budget::{Budget, Charge, Use};
use rollout_core::telemetry::TEXT_FORMAT;
use rollout_outbound::{ClientError, Secret, cluster_client};
use rollout_wire::id::RolloutId;
use rollout_wire::stream;

/// Maximum size of a request in bytes: the largest limit of all protocols.
const BODY_BYTES_MAX: usize = 64 << 20;

/// Maximum size of an answer that is combined with others, in bytes.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// Maximum time for an answer that is combined with others.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// Time that an admitted rollout's answer waits until its place is confirmed.
const CONFIRM_TIME_MAX: Duration = Duration::from_secs(2);

/// Maximum number of requests to all workers at once, such as cancellations. More wait.
const COMBINED_MAX: usize = 16;

/// Prefix of the paths of uploads, whose bodies are passed on as they arrive. Workers limit their size.
const UPLOADS: &str = "/admin/v1/components/";

/// Memory of an upload besides that of a request: the parts of its body that are in progress.
const UPLOAD_BYTES: usize = 512 << 10;

/// Maximum number of workers that a request to start a rollout is sent to, one after the other, while they have no
/// room or cannot be reached.
const TRIED_MAX: usize = 8;

/// Memory of a request besides its headers and its body: its tasks, and the buffers of its connection to a worker.
const REQUEST_BYTES: usize = 16 << 10;

/// Settings of a gateway.
pub struct GatewaySettings {
    /// Addresses of the workers. A name that resolves to several machines stands for a worker on each of them.
    pub workers: Vec<Url>,
    /// The key that gateways and workers share.
    pub key: Secret,
    /// The rules that every request is checked against.
    pub access: Access,
    /// Time after which the rollouts of a worker that does not answer count as lost. Without it, polls wait for the
    /// worker.
    pub lost_after: Option<Duration>,
    /// Maximum time for which a poll waits.
    pub result_wait: Duration,
    /// Memory budget of requests in bytes.
    pub memory_bytes: usize,
    /// Whether browsers connect by TLS.
    pub is_encrypted: bool,
    /// Maximum number of idle connections to each worker.
    pub idle_max: usize,
}

/// A gateway. Cheap to clone.
#[derive(Clone)]
pub struct Gateway(Arc<Inner>);

struct Inner {
    settings: GatewaySettings,
    client: Client,
    workers: Arc<Workers>,
    owners: Owners,
    pages: Pages,
    /// Whether the last workers that have answered served tenants; none before the first answer.
    served_tenants: Mutex<Option<bool>>,
    /// Number of rollouts that a worker has left to another one, and of those that none has taken.
    placed_elsewhere: AtomicU64,
    not_admitted: AtomicU64,
    budget: Budget,
    bodies: Bodies,
    /// Permits for requests to all workers, whose answers are held together.
    combined: Semaphore,
    /// Cancelled when the gateway stops: waiting polls are answered and no rollout is admitted.
    stopping: CancellationToken,
}

/// The limits of a request whose body is being read.
struct Reading<'a> {
    /// The budget of its owner.
    budget: &'a Budget,
    bodies: &'a Bodies,
}

impl HoldsBodies for Reading<'_> {
    fn budget(&self) -> &Budget {
        self.budget
    }

    fn bodies(&self) -> &Bodies {
        self.bodies
    }
}

impl Gateway {
    /// Creates a gateway. It knows no worker until [`Gateway::watch`] runs.
    pub fn new(settings: GatewaySettings) -> Result<Self, ClientError> {
        let client = cluster_client(settings.idle_max)?;
        let budget = Budget::new(settings.memory_bytes);
        Ok(Self(Arc::new(Inner {
            workers: Arc::new(Workers::new(client.clone(), settings.key.clone())),
            client,
            owners: Owners::new(&budget),
            budget,
            bodies: Bodies::default(),
            pages: Pages::default(),
            served_tenants: Mutex::default(),
            placed_elsewhere: AtomicU64::default(),
            not_admitted: AtomicU64::default(),
            combined: Semaphore::new(COMBINED_MAX),
            stopping: CancellationToken::new(),
            settings,
        })))
    }

    /// Watches the configured workers. Returns only if none are configured.
    pub async fn watch(&self) {
        self.0.workers.watch(&self.0.settings.workers).await;
    }

    /// Watches the workers whose addresses are in a list that changes. Returns when the list's sender is dropped.
    pub async fn watch_list(&self, list: watch::Receiver<BTreeSet<String>>) {
        self.0.workers.watch_list(list).await;
    }

    /// Returns all routes.
    pub fn router(&self) -> Router {
        Router::new().fallback(answer).with_state(self.clone())
    }

    /// Refuses further rollouts, and answers waiting polls at once; their callers continue at another gateway.
    pub fn close(&self) {
        self.0.stopping.cancel();
    }
}

async fn answer(State(gateway): State<Gateway>, request: Request) -> Response {
    gateway.answer(request).await.unwrap_or_else(IntoResponse::into_response)
}

/// Refuses a new rollout.
fn not_admitted(detail: &str) -> Response {
    RequestRefused::NotAdmitted(detail.to_owned()).into_response()
}

/// Returns a worker's refusal of a rollout with the status after which callers repeat their request.
fn refusal(answer: reqwest::Response, detail: &str) -> Response {
    match answer.status() {
        StatusCode::TOO_MANY_REQUESTS => pass_on(answer, None),
        _ => not_admitted(detail),
    }
}

/// Returns whether a worker has refused a request that another one may take.
fn is_refusal(status: StatusCode) -> bool {
    status == StatusCode::TOO_MANY_REQUESTS || status == StatusCode::SERVICE_UNAVAILABLE
}

/// Returns whether a caller must repeat a request, because the worker refused it or has sent it elsewhere.
fn must_be_repeated(status: StatusCode) -> bool {
    is_refusal(status) || status == StatusCode::MISDIRECTED_REQUEST
}

/// Returns whether a URL parser would change this path, because one of its segments is `.` or `..`.
fn has_dot_segments(path: &str) -> bool {
    let plain = path.replace("%2e", ".").replace("%2E", ".");
    plain.split(['/', '\\']).any(|segment| segment == "." || segment == "..")
}

/// Answers a request that a worker may have taken.
fn not_known(name: &str, why: &str) -> Response {
    let detail =
        format!("the worker {name} did not answer ({why}), so it is not known whether it took the request");
    (StatusCode::BAD_GATEWAY, Json(json!({ "detail": detail }))).into_response()
}

/// Returns whether a path starts rollouts of the Osmosis protocol.
fn starts_rollouts(path: &str) -> bool {
    path == "/rollout" || a::has_path(path)
}

/// Returns the series with the number of workers.
fn workers_series(count: usize) -> String {
    format!(
        "# HELP rollout_host_gateway_workers Number of workers that answer.\n\
         # TYPE rollout_host_gateway_workers gauge\nrollout_host_gateway_workers {count}\n"
    )
}

impl Gateway {
    /// Checks the head of a request, then reads the body and answers.
    async fn answer(&self, request: Request) -> Result<Response, RequestRefused> {
        let access = &self.0.settings.access;
        access.check_names(&request).map_err(RequestRefused::Forbidden)?;
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        if !path.starts_with('/') || has_dot_segments(&path) {
            // `OPTIONS *` belongs to no worker, and a worker would get another path than the one that is checked here.
            return Err(RequestRefused::NoRoute);
        }
        let route = target::below(&path);
        let target = Target::of(&method, route);
        let is_short = ["/health", "/ready", "/metrics"].contains(&&*path) || target == Target::Cancel;
        if request.extensions().get::<Crowded>().is_some() && !is_short {
            return Err(RequestRefused::Crowded);
        }
        if path == "/ready" {
            return Ok(self.ready());
        }
        if ui::has_path(&path) {
            return Ok(self.page(request).await);
        }
        if let Some(key) = &access.server_key {
            let (is_right, refusal) = match (a::has_path(&path), ors::has_path(&path)) {
                (true, _) => (a::is_authorised(key, request.headers()), a::KEY_REFUSAL),
                (_, true) => (ors::is_given(key, request.headers()), ors::KEY_REFUSAL),
                _ => (is_given(key, request.headers()), "unauthorized"),
            };
            if !is_right {
                return Err(RequestRefused::Unauthorized(refusal));
            }
        }
        if method == Method::GET
            && let Some(answer) = self.without_workers(&path, request.headers())
        {
            return answer;
        }
        // Workers with tenants check the keys, and only they know which keys belong to operators.
        let has_tenants = access.server_key.is_none() && self.has_tenants();
        let caller = request.extensions().get::<Caller>().cloned();
        // Tenants share connections and memory. Without tenants, all callers have the server's key.
        let (budget, owner) = match has_tenants {
            true => {
                let digest = owners::digest_of(route, request.headers());
                (self.0.owners.budget(digest.as_deref()), self.0.owners.tenant(digest.as_deref()))
            }
            false => (self.0.budget.clone(), None),
        };
        if let (Some(caller), Some(tenant)) = (&caller, owner) {
            caller.set_owner(Owner::Tenant(tenant));
        }
        match (&method, &*path) {
            (&Method::GET, "/health") if has_tenants => {
                return Ok(self.health_of_tenants(request.headers(), &path).await);
            }
            (&Method::GET, below) if has_tenants && below.starts_with("/p/") && route == "/health" => {
                return Ok(self.health_of_tenants(request.headers(), &path).await);
            }
            (&Method::PUT, path) if path.starts_with(UPLOADS) => return self.upload(request, &budget).await,
            (&Method::GET, "/health") => {
                return Ok(Json(combined::health(&self.0.workers.all())).into_response());
            }
            (&Method::GET, "/metrics") => return self.metrics(request.headers(), has_tenants).await,
            (_, worker::STATUS_PATH) => return Err(RequestRefused::NoRoute),
            _ => {}
        }
        let (mut parts, body) = request.into_parts();
        let reading = Reading { budget: &budget, bodies: &self.0.bodies };
        let request = Request::from_parts(parts.clone(), body);
        let read = Body::<BODY_BYTES_MAX>::from_request(request, &reading);
        let (body, mut charge) = match read.await {
            Ok(body) => body.into_parts(),
            Err(refused) => return Ok(osmosis::body_refused(refused)),
        };
        // A poll holds all of this memory while it waits.
        if charge.grow(REQUEST_BYTES + headers_bytes(&parts.headers)).is_err() {
            return Ok(no_memory(&target, route));
        }
        let request = Forwarded::new(&mut parts, body.into(), Some(charge));
        if matches!(target, Target::New | Target::Any)
            && let Some(name) = SessionName::of(route, &request)
        {
            return Ok(self.in_session(name, request).await);
        }
        Ok(match target {
            Target::New => {
                let answer = self.start(route, request).await;
                if answer.status() == StatusCode::TOO_MANY_REQUESTS {
                    self.0.not_admitted.fetch_add(1, Ordering::Relaxed);
                }
                answer
            }
            Target::Poll(id) => self.poll(&decoded(id), &request, caller).await,
            Target::Rollout(id) => self.find(&decoded(id), &request).await,
            Target::Cancel => self.cancel(&request).await,
            Target::Any => self.any(request).await,
        })
    }

    /// Returns whether the gateway knows which side checks keys: the gateway has a key of its own, or a worker has
    /// answered.
    fn knows_checks(&self) -> bool {
        self.0.settings.access.server_key.is_some() || self.served_tenants().is_some()
    }

    /// Returns whether the workers serve tenants.
    fn has_tenants(&self) -> bool {
        self.served_tenants() == Some(true)
    }

    /// Returns whether the workers serve tenants, or did so when they were there. Returns `None` before the first answer of a
    /// worker.
    fn served_tenants(&self) -> Option<bool> {
        let workers = self.0.workers.all();
        let mut known = workers.iter().filter_map(|worker| Some(worker.status().0?.has_tenants)).peekable();
        let now = known.peek().is_some().then(|| known.any(|has_tenants| has_tenants));
        let mut served = self.0.served_tenants.lock().unwrap_or_else(PoisonError::into_inner);
        *served = now.or(*served);
        *served
    }

    /// Answers requests for health and metrics as long as no worker can check the caller's key: with the gateway's own facts
    /// that need no protection. Returns `None` if workers answer, or if keys are not theirs to check.
    fn without_workers(&self, path: &str, headers: &HeaderMap) -> Option<Result<Response, RequestRefused>> {
        if !["/health", "/metrics"].contains(&path) {
            return None;
        }
        let served_tenants = self.served_tenants();
        let is_checked = self.0.settings.access.server_key.is_some() || served_tenants == Some(false);
        if is_checked || !self.0.workers.candidates(None).is_empty() {
            return None;
        }
        match path {
            "/health" => {
                let lifecycle = json!({"accepting_rollouts": false, "active_rollouts": 0});
                Some(Ok(Json(json!({"status": combined::NO_WORKERS, "lifecycle": lifecycle, "workers": []}))
                    .into_response()))
            }
            "/metrics" if served_tenants == Some(true) && given_key(headers).is_none() => {
                Some(Err(RequestRefused::Unauthorized("unauthorized")))
            }
            "/metrics" => {
                let text = workers_series(0);
                Some(Ok(([(header::CONTENT_TYPE, TEXT_FORMAT)], text).into_response()))
            }
            _ => None,
        }
    }

    /// Answers `GET /ready`: whether one of the workers admits rollouts.
    fn ready(&self) -> Response {
        let is_stopping = self.0.stopping.is_cancelled();
        let accepts = |worker: &Arc<Worker>| {
            let (status, is_up) = worker.status();
            is_up && status.is_some_and(|status| status.accepting)
        };
        let is_ready = !is_stopping && self.0.workers.all().iter().any(accepts);
        let reason = if is_stopping { "the gateway is stopping" } else { "no worker admits rollouts" };
        readiness((!is_ready).then(|| reason.to_owned()), true)
    }

    async fn send(&self, request: &Forwarded, worker: &Arc<Worker>) -> Result<reqwest::Response, SendError> {
        let sent = request.send(&self.0.client, &self.0.settings.key, worker).await;
        match &sent {
            Ok(answer) => {
                let digest = owners::digest_of(target::below(request.path()), request.headers());
                self.0.owners.learn(digest, answer.headers());
            }
            Err(SendError::NotSent(why) | SendError::NoAnswer(why)) => self.0.workers.suspect(worker, why),
        }
        sent
    }

    /// Sends a request that may start a rollout to the worker that its id prefers, or to another one with room.
    async fn start(&self, path: &str, mut request: Forwarded) -> Response {
        if self.0.stopping.is_cancelled() {
            return not_admitted("this gateway is stopping; retry at another one");
        }
        request.set_admission(&random::token());
        let tenant = self.0.owners.tenant(owners::digest_of(path, request.headers()).as_deref());
        let candidates = self.0.workers.candidates(tenant);
        let place = Place::of(path, request.body());
        let mut order = match place.id() {
            Some(id) => placement::order(id, candidates),
            None => placement::by_room(candidates),
        };
        match place {
            Place::Own(Some(id)) if path == "/rollout" => {
                return self.place(&mut request, (&id, &order), tenant).await;
            }
            Place::Own(_) => order.truncate(TRIED_MAX),
            // Another worker would wait for the members at this one.
            Place::Group(_) => order.truncate(1),
            // The worker of the parent may be any of them.
            Place::Parent(_) => {}
        }
        self.start_in_order(path, request, &order, tenant).await
    }

    /// Sends a request for a rollout with an id to the worker that the id prefers, or to the next one if that one cannot be
    /// reached.
    async fn place(
        &self,
        request: &mut Forwarded,
        (id, order): (&str, &[Candidate<Arc<Worker>>]),
        tenant: Option<i64>,
    ) -> Response {
        for first in 0..order.len().min(TRIED_MAX) {
            if let Some(answer) = self.place_by_first(request, (id, &order[first..]), tenant).await {
                return answer;
            }
        }
        not_admitted("no worker can be reached at present; retry later")
    }

    /// Sends a request for a rollout to the first of these workers. That worker takes the rollout or names another one, and
    /// receives a confirmation if the other one has taken it. If it does neither, the request is refused: another worker
    /// might have the rollout already. Returns `None` if the first worker cannot be reached.
    async fn place_by_first(
        &self,
        request: &mut Forwarded,
        (id, order): (&str, &[Candidate<Arc<Worker>>]),
        tenant: Option<i64>,
    ) -> Option<Response> {
        const NO_ROOM: &str = "the worker of this rollout has no room at present; retry later";
        let (first, rest) = order.split_first()?;
        let home = &first.worker;
        let mut others = placement::others(order);
        let mut were_named = !others.is_empty();
        let mut refused = Vec::new();
        loop {
            let other = others.first().cloned();
            request.set_other(other.as_deref());
            let answer = match self.start_at("/rollout", request, home, tenant).await {
                Ok(answer) => answer,
                Err(SendError::NotSent(_)) => return None,
                Err(SendError::NoAnswer(why)) => return Some(not_known(&home.name(), &why)),
            };
            let place = answer.headers().get(worker::PLACE_HEADER);
            let place = place.and_then(|place| place.to_str().ok()).unwrap_or_default().to_owned();
            match answer.status() {
                StatusCode::MISDIRECTED_REQUEST if place.is_empty() => {
                    return Some(not_admitted(
                        "another request for this rollout is being placed; retry later",
                    ));
                }
                StatusCode::MISDIRECTED_REQUEST => {}
                status if is_refusal(status) => {
                    // Its queue is full, or it lacks memory, for example. The rollout may wait at another worker.
                    others = match std::mem::replace(&mut were_named, true) {
                        true => Vec::new(),
                        false => placement::most_room(rest, i64::MIN),
                    };
                    if others.is_empty() {
                        return Some(refusal(answer, NO_ROOM));
                    }
                    continue;
                }
                _ => return Some(pass_on(answer, None)),
            }
            let may_choose = answer.headers().contains_key(worker::CHOOSE_HEADER);
            let placed = order.iter().find(|candidate| candidate.name == place);
            others.retain(|other| *other != place);
            if placed.is_none() && may_choose && !refused.contains(&place) {
                // The other worker is away, and may never have taken the rollout.
                refused.push(place);
                continue;
            }
            let Some(placed) = placed.filter(|_| !refused.contains(&place)) else {
                return Some(not_admitted(
                    "the worker of this rollout has no room or cannot be reached; retry later",
                ));
            };
            request.set_other(None);
            match self.start_at("/rollout", request, &placed.worker, tenant).await {
                Ok(answer) if !must_be_repeated(answer.status()) => {
                    let is_taken = answer.status().is_success();
                    self.0.placed_elsewhere.fetch_add(u64::from(is_taken), Ordering::Relaxed);
                    if is_taken || answer.status() == StatusCode::CONFLICT {
                        self.confirm(request, id, &place, home).await;
                    }
                    return Some(pass_on(answer, None));
                }
                // Another request has placed the rollout at this worker, so no other one is tried.
                Ok(answer) if !may_choose => return Some(refusal(answer, NO_ROOM)),
                Ok(_) | Err(SendError::NotSent(_)) => refused.push(place),
                Err(SendError::NoAnswer(why)) => return Some(not_known(&placed.name, &why)),
            }
        }
    }

    /// Confirms to the worker that an id prefers that another one has the rollout. Without the confirmation, later requests for
    /// the id are sent there one at a time.
    async fn confirm(&self, request: &Forwarded, id: &str, place: &str, home: &Arc<Worker>) {
        let confirmation = request.confirmation(id, place);
        let sent = tokio::time::timeout(CONFIRM_TIME_MAX, self.send_while_up(&confirmation, home)).await;
        match sent {
            Ok(Ok(answer)) if answer.status().is_success() => {}
            Ok(Ok(answer)) => {
                tracing::debug!(status = %answer.status(), worker = home.name(), "a place was not confirmed");
            }
            Ok(Err(_)) | Err(_) => tracing::debug!(worker = home.name(), "a place was not confirmed in time"),
        }
    }

    /// Sends a request that may start a rollout to one worker after the other, until one has room.
    async fn start_in_order(
        &self,
        path: &str,
        mut request: Forwarded,
        order: &[Candidate<Arc<Worker>>],
        tenant: Option<i64>,
    ) -> Response {
        request.set_other(None);
        let (mut refused, mut without_parent) = (None, None);
        for candidate in order {
            match self.start_at(path, &mut request, &candidate.worker, tenant).await {
                Ok(answer) if is_refusal(answer.status()) => refused = Some(answer),
                Ok(answer) if answer.status() == StatusCode::MISDIRECTED_REQUEST => {
                    if answer.headers().contains_key(worker::PLACE_HEADER) {
                        return not_admitted("another worker may have this rollout; retry later");
                    }
                    without_parent = Some(answer);
                }
                Ok(answer) => return pass_on(answer, request.upgrade.take()),
                Err(SendError::NotSent(_)) => {}
                Err(SendError::NoAnswer(why)) => return not_known(&candidate.name, &why),
            }
        }
        match (refused, without_parent) {
            (None, Some(answer)) => {
                let away = self.0.workers.unreachable().join(", ");
                if !away.is_empty() {
                    let why = "do not answer, and the rollout to continue may be there";
                    return not_admitted(&format!("these workers {why}: {away}; retry later"));
                }
                forward::pass_on_as(StatusCode::UNPROCESSABLE_ENTITY, answer)
            }
            (Some(answer), _)
                if answer.status() == StatusCode::TOO_MANY_REQUESTS || !starts_rollouts(path) =>
            {
                pass_on(answer, None)
            }
            _ if starts_rollouts(path) => {
                not_admitted("no worker can be reached and has room at present; retry later")
            }
            _ => RequestRefused::NoRoom("no worker can be reached at present; retry later".to_owned())
                .into_response(),
        }
    }

    /// Sends a request to a worker, and stops waiting for the answer when the worker no longer answers its probes: a machine
    /// that is stopped or cut off closes no connection.
    async fn send_while_up(
        &self,
        request: &Forwarded,
        worker: &Arc<Worker>,
    ) -> Result<reqwest::Response, SendError> {
        let mut changes = self.0.workers.changes();
        let went_down = async {
            while worker.is_up() {
                // `self` holds the sender, so it cannot be dropped.
                let _ = changes.changed().await;
            }
        };
        tokio::select! {
            answer = self.send(request, worker) => answer,
            () = went_down => Err(SendError::NoAnswer("it does not answer probes".to_owned())),
        }
    }

    /// Sends a request that starts a rollout to one worker. An admission whose answer was lost is repeated once the
    /// worker is back, with the same token, by which the worker recognizes it.
    async fn start_at(
        &self,
        path: &str,
        request: &mut Forwarded,
        worker: &Arc<Worker>,
        tenant: Option<i64>,
    ) -> Result<reqwest::Response, SendError> {
        worker.sent(tenant);
        let sent = self.send_until_answered(path, request, worker).await;
        match sent.as_ref().map(reqwest::Response::status) {
            Ok(status) if is_refusal(status) => worker.refused(tenant),
            Ok(status) if !status.is_success() => worker.not_taken(tenant),
            _ => {}
        }
        sent
    }

    async fn send_until_answered(
        &self,
        path: &str,
        request: &mut Forwarded,
        worker: &Arc<Worker>,
    ) -> Result<reqwest::Response, SendError> {
        let until = Instant::now() + self.0.settings.result_wait;
        let mut is_repeated = false;
        // The mark of a repetition that an earlier worker received is removed.
        request.set_repeated(false);
        loop {
            let mut changes = self.0.workers.changes();
            // Other requests that start a rollout are answered only when the rollout is over.
            let sent = match path {
                "/rollout" => self.send_while_up(request, worker).await,
                _ => self.send(request, worker).await,
            };
            let why = match sent {
                // The worker may have admitted the first copy, and this answer does not say whether it did.
                Ok(answer)
                    if is_repeated
                        && (answer.status() == StatusCode::CONFLICT || is_refusal(answer.status())) =>
                {
                    return Err(SendError::NoAnswer("its answer was lost".to_owned()));
                }
                Err(SendError::NoAnswer(why)) if path == "/rollout" => why,
                Err(SendError::NotSent(why)) if is_repeated => why,
                sent => return sent,
            };
            is_repeated = true;
            request.set_repeated(true);
            let has_changed = tokio::time::timeout_at(until, changes.changed());
            if self.0.stopping.is_cancelled() || has_changed.await.is_err() {
                return Err(SendError::NoAnswer(why));
            }
        }
    }

    /// Passes a poll to the worker whose log the lease names. Waits for the worker while it is away.
    async fn poll(&self, id: &str, request: &Forwarded, caller: Option<Caller>) -> Response {
        let lease = request.headers().get(osmosis::LEASE_HEADER).and_then(|lease| lease.to_str().ok());
        let log = lease.and_then(worker::log_of);
        let (Some(log), Ok(rollout)) = (log, RolloutId::parse(id)) else {
            // A worker answers with the problem of the lease or the id.
            return self.find(id, request).await;
        };
        let unfinished = || osmosis::unfinished(&rollout);
        let polling = async {
            tokio::select! {
                answer = self.poll_log(&rollout, log, request) => answer,
                () = self.0.stopping.cancelled() => unfinished(),
            }
        };
        match caller {
            // The wait may end early, because the connection is needed for another caller.
            Some(caller) => caller.wait(polling).await.unwrap_or_else(unfinished),
            None => polling.await,
        }
    }

    async fn poll_log(&self, id: &RolloutId, log: &str, request: &Forwarded) -> Response {
        let until = Instant::now() + self.0.settings.result_wait;
        loop {
            let mut changes = self.0.workers.changes();
            let mut next = until;
            match self.0.workers.find(log) {
                LogPlace::At(worker) => {
                    if let Ok(answer) = self.send_while_up(request, &worker).await {
                        return pass_on(answer, None);
                    }
                }
                LogPlace::Nowhere { since } => {
                    if let Some(lost_after) = self.0.settings.lost_after {
                        if since >= lost_after {
                            let why = format!(
                                "the worker that ran this rollout was lost, and with it its log {log}"
                            );
                            return osmosis::lost(id, &why);
                        }
                        next = next.min(Instant::now() + (lost_after - since));
                    }
                }
            }
            let is_over = tokio::time::timeout_at(next, changes.changed()).await.is_err();
            if is_over && Instant::now() >= until {
                return osmosis::unfinished(id);
            }
        }
    }

    /// Passes a request to the worker that has this rollout.
    async fn find(&self, id: &str, request: &Forwarded) -> Response {
        let mut missing = None;
        for candidate in placement::order(id, self.0.workers.candidates(None)) {
            match self.send_while_up(request, &candidate.worker).await {
                Ok(answer) if answer.status() == StatusCode::NOT_FOUND => missing = Some(answer),
                Ok(answer) => return pass_on(answer, None),
                Err(_) => {}
            }
        }
        match missing {
            Some(answer) if self.0.workers.unreachable().is_empty() => pass_on(answer, None),
            _ => self.not_all("the rollout may be there"),
        }
    }

    /// Refuses a request that needs all workers.
    fn not_all(&self, consequence: &str) -> Response {
        let names = self.0.workers.unreachable().join(", ");
        let detail = if names.is_empty() {
            "not all workers have answered; retry later".to_owned()
        } else {
            format!("these workers do not answer, and {consequence}: {names}; retry later")
        };
        RequestRefused::NoRoom(detail).into_response()
    }

    /// Passes a request to any worker.
    async fn any(&self, mut request: Forwarded) -> Response {
        let order = match request.is_upgrade() {
            // A session takes a slot.
            true => placement::by_room(self.0.workers.candidates(None)),
            false => placement::order(&random::id(), self.0.workers.candidates(None)),
        };
        for candidate in order {
            if let Ok(answer) = self.send_while_up(&request, &candidate.worker).await {
                return pass_on(answer, request.upgrade.take());
            }
        }
        self.not_all("none is left")
    }

    /// Waits for a permit for a request to all workers. Returns `None` if that takes too long.
    async fn combined(&self) -> Option<SemaphorePermit<'_>> {
        tokio::time::timeout(ANSWER_TIME_MAX, self.0.combined.acquire()).await.ok()?.ok()
    }

    /// Reads an answer that is combined with others, within the memory budget. Returns `None` if it is too long or breaks
    /// off.
    async fn read(&self, mut answer: reqwest::Response) -> Option<(Vec<u8>, Charge)> {
        let reading = async {
            let mut bytes = Vec::new();
            let mut charge = self.0.budget.charge(Use::Request, 0).ok()?;
            while let Some(chunk) = answer.chunk().await.ok()? {
                charge.grow(chunk.len()).ok()?;
                bytes.extend_from_slice(&chunk);
                if bytes.len() > ANSWER_BYTES_MAX {
                    return None;
                }
            }
            Some((bytes, charge))
        };
        tokio::time::timeout(ANSWER_TIME_MAX, reading).await.ok().flatten()
    }

    /// Passes a cancellation to all workers.
    async fn cancel(&self, request: &Forwarded) -> Response {
        let Some(_permit) = self.combined().await else {
            return self.not_all("many requests to all workers wait, and the rollouts may not be cancelled");
        };
        let candidates = self.0.workers.candidates(None);
        let asked = candidates.len();
        let send = |worker: Arc<Worker>| async move {
            let answer = self.send_while_up(request, &worker).await.ok()?;
            let status = answer.status();
            Some((status, self.read(answer).await?))
        };
        let answers = join_all(candidates.into_iter().map(|candidate| send(candidate.worker))).await;
        let mut values = Vec::new();
        for (status, (body, _charge)) in answers.into_iter().flatten() {
            if status != StatusCode::OK {
                return (status, [(header::CONTENT_TYPE, "application/json")], body).into_response();
            }
            values.extend(serde_json::from_slice::<Value>(&body));
        }
        let dispositions = combined::dispositions(&values);
        let names_all = member(request.body(), "ids").is_some();
        let has_all =
            names_all && dispositions.values().all(|disposition| disposition != combined::NOT_FOUND);
        let all_answered = values.len() == asked && self.0.workers.unreachable().is_empty();
        if values.is_empty() || !(has_all || all_answered) {
            return self.not_all("rollouts there may not be cancelled");
        }
        Json(json!({ "dispositions": dispositions })).into_response()
    }

    /// Answers `GET /metrics` with the metrics of all workers, which have the label `worker`, and those of the gateway. Workers
    /// with tenants check the key that the caller sent.
    async fn metrics(&self, headers: &HeaderMap, has_tenants: bool) -> Result<Response, RequestRefused> {
        let mut request = Forwarded::get("/metrics", self.0.settings.access.server_key.as_ref());
        if has_tenants {
            request.set_key(headers);
        }
        let read_one = |worker: Arc<Worker>| {
            let request = &request;
            async move {
                let answer = self.send_while_up(request, &worker).await.ok()?;
                let is_success = answer.status().is_success();
                let is_operator =
                    answer.headers().get(worker::OWNER_HEADER).is_some_and(|owner| owner == worker::OPERATOR);
                let (text, _charge) = self.read(answer).await.filter(|_| is_success)?;
                Some((is_operator, (worker.name(), String::from_utf8_lossy(&text).into_owned())))
            }
        };
        // Without a permit, no worker is read. The gateway's own series need no permit, but for tenants only workers
        // check keys.
        let Some(_permit) = self.combined().await else {
            return match has_tenants {
                true => Err(RequestRefused::NoRoom("too many requests for metrics; retry later".to_owned())),
                false => Ok(([(header::CONTENT_TYPE, TEXT_FORMAT)], self.own_metrics()).into_response()),
            };
        };
        let candidates = self.0.workers.candidates(None);
        let texts = join_all(candidates.into_iter().map(|candidate| read_one(candidate.worker))).await;
        let (are_operator, texts): (Vec<bool>, Vec<(String, String)>) = texts.into_iter().flatten().unzip();
        if has_tenants && texts.is_empty() {
            return Err(RequestRefused::Unauthorized("unauthorized"));
        }
        // The gateway's own series count the requests of all callers at all workers, so only operators receive them.
        let mut text = match has_tenants && !are_operator.contains(&true) {
            true => String::new(),
            false => self.own_metrics(),
        };
        text += &combined::metrics(&texts);
        Ok(([(header::CONTENT_TYPE, TEXT_FORMAT)], text).into_response())
    }

    /// Returns the gateway's own series.
    fn own_metrics(&self) -> String {
        let mut text = workers_series(self.0.workers.candidates(None).len());
        text.push_str(
            "# HELP rollout_host_gateway_worker_up Shows whether a worker answers (1) or not (0).\n\
             # TYPE rollout_host_gateway_worker_up gauge\n",
        );
        for worker in &self.0.workers.all() {
            let series = format!("rollout_host_gateway_worker_up {}", u8::from(worker.is_up()));
            text += &combined::labelled(&series, &worker.name());
            text.push('\n');
        }
        let mut gauge = |name: &str, help: &str, value: fn(&worker::WorkerStatus) -> Option<i64>| {
            text += &format!("# HELP {name} {help}\n# TYPE {name} gauge\n");
            for worker in &self.0.workers.all() {
                let (status, is_up) = worker.status();
                if let Some(value) = status.filter(|_| is_up).and_then(|status| value(&status)) {
                    text += &combined::labelled(&format!("{name} {value}"), &worker.name());
                    text.push('\n');
                }
            }
        };
        gauge(
            "rollout_host_gateway_worker_room",
            "Number of further rollouts of a worker that would have a slot; negative if rollouts wait.",
            |status| status.room,
        );
        gauge("rollout_host_gateway_worker_queued", "Rollouts of a worker that wait for a slot.", |status| {
            Some(status.queued.into())
        });
        gauge("rollout_host_gateway_worker_slots", "Slots of a worker.", |status| {
            Some(status.max_concurrent.into())
        });
        let mut counter = |name: &str, help: &str, value: &AtomicU64| {
            let value = value.load(Ordering::Relaxed);
            text += &format!("# HELP {name} {help}\n# TYPE {name} counter\n{name} {value}\n");
        };
        counter(
            "rollout_host_gateway_placed_elsewhere_total",
            "Rollouts that a worker without room has left to another one.",
            &self.0.placed_elsewhere,
        );
        counter(
            "rollout_host_gateway_not_admitted_total",
            "Rollouts that no worker has taken, answered 429.",
            &self.0.not_admitted,
        );
        let used = self.0.budget.used();
        text += &format!(
            "# HELP rollout_host_gateway_request_bytes Memory of requests that are passed on, in bytes.\n\
             # TYPE rollout_host_gateway_request_bytes gauge\nrollout_host_gateway_request_bytes {used}\n"
        );
        text
    }

    /// Answers a request for the health of a tenant's plugin with the sums of all workers. An operator's key gets the list of
    /// workers; without a key the answer says only that the gateway answers.
    async fn health_of_tenants(&self, headers: &HeaderMap, path: &str) -> Response {
        if !headers.contains_key(header::AUTHORIZATION) {
            return match path {
                "/health" => Json(json!({"status": "ok"})).into_response(),
                _ => self.any(self.own_request(path, headers)).await,
            };
        }
        let Some(_permit) = self.combined().await else {
            return RequestRefused::NoRoom("many requests to all workers wait; retry later".to_owned())
                .into_response();
        };
        let request = self.own_request(path, headers);
        let ask = |worker: Arc<Worker>| {
            let request = &request;
            async move {
                let answer = self.send_while_up(request, &worker).await.ok()?;
                let owner = answer.headers().get(worker::OWNER_HEADER).cloned();
                let status = answer.status();
                Some((status, owner, self.read(answer).await?))
            }
        };
        let candidates = self.0.workers.candidates(None);
        let answers: Vec<_> =
            join_all(candidates.into_iter().map(|one| ask(one.worker))).await.into_iter().flatten().collect();
        if path == "/health"
            && answers
                .iter()
                .any(|(_, owner, _)| owner.as_ref().is_some_and(|owner| owner == worker::OPERATOR))
        {
            return Json(combined::health(&self.0.workers.all())).into_response();
        }
        let mut sum = serde_json::Map::new();
        for (_, _, (body, _charge)) in answers.iter().filter(|(status, ..)| status.is_success()) {
            combined::add(&mut sum, serde_json::from_slice(body).unwrap_or_default());
        }
        match answers.into_iter().next() {
            _ if !sum.is_empty() => Json(sum).into_response(),
            Some((status, _, (body, _charge))) => {
                (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
            }
            None => self.not_all("none is left"),
        }
    }

    /// Returns a request of the gateway with the key of a caller.
    fn own_request(&self, path: &str, headers: &HeaderMap) -> Forwarded {
        let mut request = Forwarded::get(path, None);
        request.set_key(headers);
        request
    }

    /// Passes an upload to any worker as it arrives, so that no component is held here.
    async fn upload(&self, request: Request, budget: &Budget) -> Result<Response, RequestRefused> {
        let no_room =
            |_| RequestRefused::NoRoom("the gateway has no memory for more uploads; retry later".to_owned());
        let bytes = REQUEST_BYTES + UPLOAD_BYTES + headers_bytes(request.headers());
        let _charge = budget.charge(Use::Request, bytes).map_err(no_room)?;
        let (mut parts, body) = request.into_parts();
        let length = parts.headers.get(header::CONTENT_LENGTH).cloned();
        let request = Forwarded::new(&mut parts, Default::default(), None);
        let mut order = placement::order(&random::id(), self.0.workers.candidates(None)).into_iter();
        let Some(candidate) = order.next() else { return Ok(self.not_all("none is left")) };
        let mut changes = self.0.workers.changes();
        let went_down = async {
            while candidate.worker.is_up() {
                let _ = changes.changed().await;
            }
        };
        // The body is read once, so no other worker can be tried.
        let sent = tokio::select! {
            sent = request.stream(&self.0.client, &self.0.settings.key, &candidate.worker, (body, length)) => sent,
            () = went_down => Err(StreamError::Worker("it does not answer probes".to_owned())),
        };
        match sent {
            Ok(answer) => Ok(pass_on(answer, None)),
            Err(StreamError::Caller(why)) => {
                let detail = format!("the body could not be read: {why}");
                Ok((StatusCode::BAD_REQUEST, Json(json!({ "detail": detail }))).into_response())
            }
            Err(StreamError::Worker(why)) => {
                self.0.workers.suspect(&candidate.worker, &why);
                let name = &candidate.name;
                Err(RequestRefused::NoRoom(format!(
                    "the worker {name} did not answer ({why}); send the upload again"
                )))
            }
        }
    }
}

/// Returns the percent-decoded id of a path.
fn decoded(id: &str) -> Cow<'_, str> {
    percent_encoding::percent_decode_str(id).decode_utf8_lossy()
}

/// Returns the size of headers as a caller sends them and as they are passed on.
fn headers_bytes(headers: &HeaderMap) -> usize {
    2 * headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum::<usize>()
}

/// Refuses a request for which there is no memory. A poll is answered at once, because an error may be final for its caller.
fn no_memory(target: &Target<'_>, path: &str) -> Response {
    const DETAIL: &str = "the gateway has no memory for more requests at present; retry later";
    match target {
        Target::Poll(id) => match RolloutId::parse(decoded(id)) {
            Ok(rollout) => osmosis::unfinished(&rollout),
            Err(_) => RequestRefused::NoRoute.into_response(),
        },
        Target::New if starts_rollouts(path) => not_admitted(DETAIL),
        _ => RequestRefused::NoRoom(DETAIL.to_owned()).into_response(),
    }
}

/// Returns a member of a body that is a JSON object. The body is read in place, because it may have millions of members.
fn member<'a>(body: &'a [u8], wanted: &str) -> Option<&'a RawValue> {
    let mut found = None;
    let take = |name: Cow<'_, str>, value: &'a RawValue| {
        if name == wanted {
            found = Some(value);
        }
        Ok::<_, Infallible>(())
    };
    stream::members(std::str::from_utf8(body).ok()?, take).ok()?;
    found
}

/// The id by which a request that may start a rollout is placed.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    /// The rollout's, if the request has one.
    Own(Option<String>),
    /// That of its group, whose members are all at one worker.
    Group(String),
    /// That of the rollout that it continues.
    Parent(String),
}

impl Place {
    /// Reads the id from a JSON body, which workers validate.
    fn of(path: &str, body: &[u8]) -> Self {
        #[derive(Deserialize)]
        struct Group {
            id: String,
        }
        #[derive(Deserialize)]
        struct ForkOf {
            rollout_id: String,
        }
        let (mut own, mut group, mut parent) = (None, None, None);
        let take = |name: Cow<'_, str>, value: &RawValue| {
            match &*name {
                "rollout_id" => own = serde_json::from_str(value.get()).ok(),
                "group" => group = serde_json::from_str(value.get()).ok(),
                "fork_of" => parent = serde_json::from_str(value.get()).ok(),
                _ => {}
            }
            Ok::<_, Infallible>(())
        };
        // A body that breaks off is refused by every worker.
        let _ = std::str::from_utf8(body).map(|text| stream::members(text, take));
        match (parent, group) {
            (Some(ForkOf { rollout_id }), _) if path == "/rollout" => Self::Parent(rollout_id),
            (_, Some(Group { id })) if path == "/rollout" => Self::Group(id),
            _ => Self::Own(own),
        }
    }

    fn id(&self) -> Option<&str> {
        match self {
            Self::Own(id) => id.as_deref(),
            Self::Group(id) | Self::Parent(id) => Some(id),
        }
    }
}

/// Returns the headers of a request by the gateway itself.
fn own_headers(server_key: Option<&Secret>) -> HeaderMap {
    let bearer = server_key.and_then(|key| HeaderValue::from_str(&format!("Bearer {}", key.expose())).ok());
    bearer.map(|bearer| (header::AUTHORIZATION, bearer)).into_iter().collect()
}

impl Forwarded {
    /// Creates a request without a body by the gateway itself.
    fn get(path: &str, server_key: Option<&Secret>) -> Self {
        let request = Request::builder().uri(path).body(()).unwrap_or_default();
        let (mut parts, ()) = request.into_parts();
        parts.headers = own_headers(server_key);
        Self::new(&mut parts, Default::default(), None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_memory_a_poll_is_answered_and_others_are_refused() {
        let check = |target: Target<'_>, path: &str, expected: u16| {
            assert_eq!(no_memory(&target, path).status(), expected, "{path}");
        };
        check(Target::Poll("r"), "/rollout/r/result", 200);
        check(Target::Poll("a%2Fb"), "/rollout/a%2Fb/result", 404);
        check(Target::New, "/rollout", 429);
        check(Target::New, "/run", 503);
        check(Target::Cancel, "/rollout/cancel", 503);
    }

    #[test]
    fn paths_that_a_url_would_change_are_found() {
        for path in ["/x/../cluster/status", "/%2e%2E/a", "/a/.", "/.%2e", "/a\\..\\b"] {
            assert!(has_dot_segments(path), "{path}");
            let url: reqwest::Url = format!("http://h{path}").parse().unwrap();
            assert_ne!(url.path(), path);
        }
        for path in ["/", "/rollout/a..b/result", "/.well-known/x", "/a/...", "/a%2f..%2fb"] {
            assert!(!has_dot_segments(path), "{path}");
            let url: reqwest::Url = format!("http://h{path}").parse().unwrap();
            assert_eq!(url.path(), path);
        }
    }

    #[test]
    fn a_request_is_placed_by_the_ids_in_its_body() {
        let check =
            |body: &str, expected: Place| assert_eq!(Place::of("/rollout", body.as_bytes()), expected);
        let own = Place::Own(Some("r1".to_owned()));
        check(r#"{"a": {"rollout_id": "x"}, "rollout_id": "r\u0031"}"#, own);
        let group = r#"{"rollout_id": "r1", "group": {"id": "g", "size": 2, "member": 0}}"#;
        check(group, Place::Group("g".to_owned()));
        let fork = r#"{"fork_of": {"rollout_id": "p", "turn": 1}, "rollout_id": "r1", "continuations": 2}"#;
        check(fork, Place::Parent("p".to_owned()));
        assert_eq!(
            Place::of("/run", group.as_bytes()),
            Place::Own(Some("r1".to_owned())),
            "of another protocol"
        );
        for body in [&br#"{"rollout_id": 7, "group": 8, "fork_of": []}"#[..], b"rollout_id=r1", b"", b"\xff"]
        {
            assert!(matches!(Place::of("/rollout", body), Place::Own(None)));
        }
    }
}
