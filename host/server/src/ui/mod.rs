//! The pages below `/ui`, for people who look at a running server.
//!
//! A [`Viewed`] is the server that the pages show: one plugin, or the plugins of many tenants. The pages are made by
//! `rollout-page`; this module has their routes, the sign-in, and the limits on the resources of open pages.

#[cfg(test)]
mod bench;
mod data;
pub(crate) mod events;
mod history;
mod read;
mod sessions;
pub(crate) mod shares;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use futures_util::future::BoxFuture;
use serde::Deserialize;
use tokio::time::Instant;

use crate::connection::{Caller, Owner};
use events::News;
use history::Histories;
use read::Source;
use rollout_core::budget::Budget;
use rollout_core::telemetry::Metrics;
use rollout_outbound::Secret;
use rollout_page::{
    ARTIFACT_POLICY, ASSETS, ENDED_PER_PAGE, EndedFilter, Frame, Gauge, HostPage, HostSource, LIVE_PER_PAGE,
    Links, LoadSample, NoticePage, PageOfTurns, PluginLine, PluginPage, PluginSource, SECURITY_POLICY,
    SentArtifact, SignInPage, Template, TenantLine, path_segment, visible,
};
use rollout_rollout::{Handle, Journal, Phase, TenantSlots};
use rollout_wire::id::RolloutId;
pub(crate) use sessions::{Sessions, set_cookie, token_of};
use shares::Shares;

/// The path of the first page.
pub(crate) const ROOT: &str = "/ui";

/// Returns whether a path is that of a page.
pub(crate) fn has_path(path: &str) -> bool {
    path.strip_prefix(ROOT).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Interval of a page's events.
pub(crate) const EVENT_INTERVAL: Duration = Duration::from_secs(1);

/// Number of intervals after which a page with running rollouts shows their times again.
pub(crate) const INTERVALS_PER_TIME: u32 = 5;

/// Maximum numbers of pages with events, of one tenant and of all.
pub(crate) const STREAMS_MAX: [usize; 2] = [32, 512];

/// Maximum numbers of rollouts that are read for pages at once, of one tenant and of all.
const READS_MAX: [usize; 2] = [2, 4];

/// The number of the process among those that have a load.
pub(crate) const PROCESS: i64 = -1;

/// Maximum number of bytes of a form.
const FORM_BYTES_MAX: usize = 8 << 10;

/// A server as its pages show it.
pub(crate) trait Viewed: Send + Sync + 'static {
    /// Returns the name of the server.
    fn name(&self) -> String;

    /// Returns whether a browser must sign in with a key.
    fn is_keyed(&self) -> bool;

    /// Returns whether browsers connect by TLS.
    fn is_encrypted(&self) -> bool;

    /// Returns whether a gateway has the sessions of browsers, and sends the key of each.
    fn is_behind_gateway(&self) -> bool;

    /// Returns the rights of a key, if the key is valid.
    fn viewer(&self, key: &str) -> Option<Viewer>;

    /// Returns the rights of a browser without a key, on a server that needs none.
    fn anyone(&self) -> Viewer;

    /// Returns the rollouts of a viewer. An operator names the tenant.
    fn scope(&self, viewer: Viewer, tenant: Option<String>) -> BoxFuture<'_, Result<Scope, NotShown>>;

    /// Returns the tenants, for an operator.
    fn tenants(&self) -> Vec<TenantLine>;

    /// Returns the load of the process, for an operator.
    fn process_gauges(&self) -> Vec<Gauge>;

    /// Returns the load of the process, with the number [`PROCESS`], and that of each tenant.
    fn loads(&self) -> Vec<(i64, LoadSample)>;

    /// Returns the deployments of a plugin.
    fn plugin(
        &self,
        viewer: Viewer,
        tenant: Option<String>,
        plugin: String,
    ) -> BoxFuture<'_, Result<PluginSource, NotShown>>;

    /// Activates a version of a plugin, or the one that was active before.
    fn activate(
        &self,
        key: Secret,
        tenant: Option<String>,
        plugin: String,
        version: Option<u32>,
    ) -> BoxFuture<'_, Result<(), NotShown>>;

    /// Returns whether rollouts are admitted.
    fn is_accepting(&self) -> bool;

    /// Returns the metrics of requests.
    fn metrics(&self) -> &Arc<Metrics>;
}

/// The rights of a browser.
#[derive(Clone, Debug)]
pub(crate) struct Viewer {
    /// The tenant; `None` for operators and on a server of one plugin.
    pub tenant: Option<i64>,
    /// Whether it may see all tenants.
    pub is_operator: bool,
    /// Its rights, for people.
    pub rights: String,
    /// Whether it may activate versions of plugins.
    pub may_activate: bool,
}

/// The rollouts of one tenant, or of a server of one plugin.
pub(crate) struct Scope {
    /// The number by which its share of pages is counted.
    pub number: i64,
    /// Its slots, with its rollouts.
    pub slots: TenantSlots,
    /// Its journal.
    pub journal: Option<Arc<Journal>>,
    /// The budget to which reading is charged.
    pub budget: Budget,
    /// Its plugins, if the process serves several.
    pub plugins: Vec<PluginLine>,
    /// Its load.
    pub gauges: Vec<Gauge>,
    /// Its quotas and their use.
    pub quotas: Vec<Gauge>,
    /// Its load now, for plots.
    pub load: LoadSample,
}

/// The reason why a page cannot be shown.
#[derive(Debug)]
pub(crate) enum NotShown {
    /// The subject of the page does not exist.
    Missing { title: &'static str, reason: String },
    /// The browser's key lacks a right, or another site sent the form.
    Forbidden(String),
    /// The state of the plugin does not allow it.
    Refused(String),
    /// The server has no room at present.
    NoRoom(String),
    /// The server failed; the log has the reason.
    Failed,
}

/// The pages of a server.
pub(crate) struct Ui {
    viewed: Box<dyn Viewed>,
    sessions: Sessions,
    streams: Arc<Shares>,
    reads: Arc<Shares>,
    histories: Histories,
}

/// The rights of a request, and the key that grants them.
struct Seen {
    viewer: Viewer,
    key: Option<Secret>,
}

/// Returns the routes of all pages.
pub(crate) fn router(viewed: impl Viewed) -> Router {
    let ui = Ui {
        viewed: Box::new(viewed),
        sessions: Sessions::default(),
        streams: Shares::new(STREAMS_MAX[0], STREAMS_MAX[1]),
        reads: Shares::new(READS_MAX[0], READS_MAX[1]),
        histories: Histories::new(),
    };
    let ui = Arc::new(ui);
    history::start(&ui);
    let routes = Router::new()
        .route("/ui", get(async || Redirect::permanent("/ui/")))
        .route("/ui/", get(home))
        .route("/ui/events", get(home_events))
        .route("/ui/data", get(data::host))
        .route("/ui/rollouts/{id}", get(rollout))
        .route("/ui/rollouts/{id}/events", get(rollout_events))
        .route("/ui/rollouts/{id}/data", get(data::rollout))
        .route("/ui/rollouts/{id}/text", get(text))
        .route("/ui/rollouts/{id}/artifact", get(artifact))
        .route("/ui/plugins/{name}", get(plugin))
        .route("/ui/plugins/{name}/activate", post(activate))
        .route("/ui/sign-in", get(sign_in_page).post(sign_in))
        .route("/ui/sign-out", post(sign_out))
        .route("/ui/assets/{name}", get(asset))
        .route("/ui/{*rest}", get(unknown))
        .with_state(ui);
    routes.layer(from_fn(async |request: Request, next: Next| protected(next.run(request).await)))
}

/// Adds the headers that isolate a page from other sites.
pub(crate) fn protected(mut response: Response) -> Response {
    let headers = response.headers_mut();
    let all: [(HeaderName, &'static str); 7] = [
        (header::CONTENT_SECURITY_POLICY, SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        // Without an origin, a browser would send a form with the origin "null".
        (header::REFERRER_POLICY, "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    for (name, value) in all {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

pub(crate) fn html(status: StatusCode, page: &impl Template) -> Response {
    match page.render() {
        Ok(text) => (status, Html(text)).into_response(),
        Err(error) => {
            tracing::error!(%error, "a page cannot be rendered");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

impl Ui {
    /// Returns the rights of a request; `None` if its browser must sign in.
    fn seen(&self, headers: &HeaderMap) -> Option<Seen> {
        if !self.viewed.is_keyed() {
            return Some(Seen { viewer: self.viewed.anyone(), key: None });
        }
        let key = match data::bearer_key(headers).filter(|_| self.viewed.is_behind_gateway()) {
            Some(key) => Secret::new(key),
            None => self.sessions.key(&sessions::token_of(headers)?, Instant::now())?,
        };
        Some(Seen { viewer: self.viewed.viewer(key.expose())?, key: Some(key) })
    }

    /// Returns whether a key, if one is needed, is still valid.
    fn is_valid(&self, key: Option<&Secret>) -> bool {
        match key {
            Some(key) => self.viewed.viewer(key.expose()).is_some(),
            None => !self.viewed.is_keyed(),
        }
    }

    fn frame(&self, seen: Option<&Seen>, tenant: Option<String>) -> Frame {
        let signed_in = seen.filter(|seen| seen.key.is_some());
        Frame {
            links: Links { root: ROOT, tenant },
            name: self.viewed.name(),
            signed_in_as: signed_in.map(|seen| seen.viewer.rights.clone()),
            events: None,
        }
    }

    /// Returns the response with the page of an error.
    fn notice(&self, seen: Option<&Seen>, error: NotShown) -> Response {
        let (status, title, reason, advice) = match error {
            NotShown::Missing { title, reason } => {
                (StatusCode::NOT_FOUND, title, reason, "Check the address, or look for it on the first page.")
            }
            NotShown::Forbidden(reason) => (
                StatusCode::FORBIDDEN,
                "Not allowed",
                reason,
                "Sign out, and sign in with a key that has the right 'author'.",
            ),
            NotShown::Refused(reason) => (
                StatusCode::CONFLICT,
                "Not activated",
                reason,
                "Go back to the plugin's page, and choose another version.",
            ),
            NotShown::NoRoom(reason) => (
                StatusCode::SERVICE_UNAVAILABLE,
                "No room at present",
                reason,
                "Reload the page in a few seconds.",
            ),
            NotShown::Failed => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "The server failed",
                "The page cannot be rendered.".to_owned(),
                "The operator's log has the reason.",
            ),
        };
        let frame = self.frame(seen, None);
        html(status, &NoticePage { frame, title: title.to_owned(), reason, advice: advice.to_owned() })
    }
}

/// The query of the pages.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PageQuery {
    tenant: Option<String>,
    page: Option<usize>,
    log: Option<usize>,
    outcome: Option<String>,
    id: Option<String>,
    turn: Option<usize>,
    message: Option<usize>,
    next: Option<String>,
    name: Option<String>,
}

/// A request for a page, with the rights of its browser.
struct PageRequest {
    seen: Seen,
    query: PageQuery,
    tenant: Option<String>,
}

/// Reads the query of a request and its rights. The error is a response that leads to the sign-in.
fn page_request(ui: &Ui, request: &Request, is_page: bool) -> Result<PageRequest, Box<Response>> {
    let Some(seen) = ui.seen(request.headers()) else {
        if !is_page {
            return Err(Box::new(StatusCode::UNAUTHORIZED.into_response()));
        }
        let to = request.uri().path_and_query().map_or(ROOT, |to| to.as_str());
        let sign_in = format!("{ROOT}/sign-in?next={}", path_segment(to));
        return Err(Box::new(Redirect::to(&sign_in).into_response()));
    };
    Ok(page_request_of(ui, request, seen, page_query(request)))
}

fn page_query(request: &Request) -> PageQuery {
    Query::<PageQuery>::try_from_uri(request.uri()).map(|Query(query)| query).unwrap_or_default()
}

/// Returns a request with its rights, and counts its connection for their owner.
fn page_request_of(ui: &Ui, request: &Request, seen: Seen, query: PageQuery) -> PageRequest {
    if let Some(caller) = request.extensions().get::<Caller>()
        && ui.viewed.is_keyed()
    {
        caller.set_owner(seen.viewer.tenant.map_or(Owner::Operators, Owner::Tenant));
    }
    // A tenant's key selects the tenant, even if the query names another one.
    let tenant = query.tenant.clone().filter(|name| seen.viewer.is_operator && !name.is_empty());
    PageRequest { seen, query, tenant }
}

async fn home(State(ui): State<Arc<Ui>>, request: Request) -> Response {
    let mut page_request = match page_request(&ui, &request, true) {
        Ok(page_request) => page_request,
        Err(response) => return *response,
    };
    let query = std::mem::take(&mut page_request.query);
    let mut frame = ui.frame(Some(&page_request.seen), page_request.tenant.clone());
    frame.events = Some(frame.links.with_query(format!("{ROOT}/events"), ""));
    let filter = EndedFilter { outcome: query.outcome.unwrap_or_default(), id: query.id.unwrap_or_default() };
    match host_source_of(&ui, &page_request, query.page.unwrap_or(1).max(1), filter).await {
        Ok(source) => html(StatusCode::OK, &HostPage::new(frame, source)),
        Err(error) => ui.notice(Some(&page_request.seen), error),
    }
}

/// Returns the data of the first page: the rollouts of a tenant, or for an operator who names none, all tenants.
async fn host_source_of(
    ui: &Ui,
    page_request: &PageRequest,
    page: usize,
    filter: EndedFilter,
) -> Result<HostSource, NotShown> {
    let PageRequest { seen, tenant, .. } = page_request;
    let tenants = if seen.viewer.is_operator { ui.viewed.tenants() } else { Vec::new() };
    if seen.viewer.is_operator && tenant.is_none() {
        return Ok(overview(ui, tenants));
    }
    let scope = ui.viewed.scope(seen.viewer.clone(), tenant.clone()).await?;
    Ok(host_source(ui, scope, tenants, page, filter))
}

fn now() -> SystemTime {
    SystemTime::now()
}

/// Returns the load of the process in the last hour.
fn process_load(ui: &Ui) -> Vec<LoadSample> {
    let now = ui.viewed.loads().into_iter().find(|(number, _)| *number == PROCESS);
    ui.histories.with_now(PROCESS, Instant::now(), now.map(|(_, load)| load).unwrap_or_default())
}

fn overview(ui: &Ui, tenants: Vec<TenantLine>) -> HostSource {
    HostSource {
        gauges: ui.viewed.process_gauges(),
        quotas: Vec::new(),
        load: process_load(ui),
        is_accepting: ui.viewed.is_accepting(),
        tenants,
        plugins: Vec::new(),
        running: Default::default(),
        queued: Default::default(),
        ended: Default::default(),
        ended_page: 1,
        filter: EndedFilter::default(),
        counts: Default::default(),
        failures: Vec::new(),
        has_journal: true,
        is_overview: true,
        now: now(),
    }
}

/// Returns the data of the page of a tenant or of a server of one plugin.
fn host_source(
    ui: &Ui,
    scope: Scope,
    tenants: Vec<TenantLine>,
    page: usize,
    filter: EndedFilter,
) -> HostSource {
    let Scope { number, slots, journal, plugins, gauges, quotas, load, .. } = scope;
    let activity = slots.activity();
    let (skip, limit) = (page.saturating_sub(1).saturating_mul(ENDED_PER_PAGE), ENDED_PER_PAGE);
    HostSource {
        gauges,
        quotas,
        load: ui.histories.with_now(number, Instant::now(), load),
        is_accepting: ui.viewed.is_accepting(),
        tenants,
        plugins,
        running: slots.live_page(0, LIVE_PER_PAGE, |phase| phase != Phase::Queued),
        queued: slots.live_page(0, LIVE_PER_PAGE, |phase| phase == Phase::Queued),
        ended: activity.ended_page(skip, limit, |rollout| filter.matches(rollout)),
        ended_page: page,
        filter,
        counts: activity.counts(),
        failures: activity.failures(),
        has_journal: journal.is_some(),
        is_overview: false,
        now: now(),
    }
}

/// Answers with the events of the first page.
async fn home_events(State(ui): State<Arc<Ui>>, request: Request) -> Response {
    let PageRequest { seen, tenant, .. } = match page_request(&ui, &request, false) {
        Ok(page_request) => page_request,
        Err(response) => return *response,
    };
    let is_overview = seen.viewer.is_operator && tenant.is_none();
    let scope = match is_overview {
        true => None,
        false => match ui.viewed.scope(seen.viewer.clone(), tenant).await {
            Ok(scope) => Some(scope),
            Err(error) => return ui.notice(Some(&seen), error),
        },
    };
    let Some(held) = ui.streams.take(scope.as_ref().map_or(-1, |scope| scope.number)) else {
        return events::full();
    };
    let mut changes = scope.as_ref().map(|scope| scope.slots.activity().changes());
    let slots = scope.map(|scope| scope.slots);
    let mut interval = 0_u32;
    events::response(held, EVENT_INTERVAL, move || {
        interval = interval.wrapping_add(1);
        if !ui.viewed.is_accepting() || !ui.is_valid(seen.key.as_ref()) {
            return News::Closed;
        }
        let is_time = interval.is_multiple_of(INTERVALS_PER_TIME);
        let is_changed = changes.as_mut().is_some_and(|changes| {
            let is_changed = changes.has_changed().unwrap_or(false);
            changes.mark_unchanged();
            is_changed
        });
        let is_running = || slots.as_ref().is_none_or(|slots| slots.busy() != [0, 0]);
        if is_changed || is_time && is_running() { News::Changed } else { News::None }
    })
}

async fn plugin(State(ui): State<Arc<Ui>>, Path(name): Path<String>, request: Request) -> Response {
    let PageRequest { seen, tenant, .. } = match page_request(&ui, &request, true) {
        Ok(page_request) => page_request,
        Err(response) => return *response,
    };
    match ui.viewed.plugin(seen.viewer.clone(), tenant.clone(), name).await {
        Ok(source) => html(StatusCode::OK, &PluginPage::new(ui.frame(Some(&seen), tenant), source)),
        Err(error) => ui.notice(Some(&seen), error),
    }
}

/// Returns whether a form was sent by a page of this server. The cookie is not sent by other sites' forms either; a
/// browser without that protection names the form's origin.
fn is_own_form(headers: &HeaderMap) -> bool {
    match headers.get("sec-fetch-site") {
        Some(site) => site == "same-origin",
        // The origin, if there is one, was compared with the server's name before.
        None => headers.contains_key(header::ORIGIN),
    }
}

/// Activates a version of a plugin from the form of its page.
async fn activate(State(ui): State<Arc<Ui>>, Path(name): Path<String>, request: Request) -> Response {
    let PageRequest { seen, tenant, .. } = match page_request(&ui, &request, true) {
        Ok(page_request) => page_request,
        Err(response) => return *response,
    };
    if !is_own_form(request.headers()) {
        let reason = "The form was not sent by a page of this server.".to_owned();
        return ui.notice(Some(&seen), NotShown::Forbidden(reason));
    }
    let Some(key) = seen.key.clone() else {
        let reason = "This server has no plugins that can be activated.".to_owned();
        return ui.notice(Some(&seen), NotShown::Missing { title: "No such plugin", reason });
    };
    let version = match form(request.into_body()).await {
        Ok(form) => form.get("version").map(|version| version.parse()).transpose(),
        Err(status) => return status.into_response(),
    };
    let Ok(version) = version else {
        return ui.notice(Some(&seen), NotShown::Refused("The form has no valid version.".to_owned()));
    };
    match ui.viewed.activate(key, tenant.clone(), name.clone(), version).await {
        Ok(()) => {
            let links = Links { root: ROOT, tenant };
            Redirect::to(&links.with_query(format!("{ROOT}/plugins/{}", path_segment(&name)), ""))
                .into_response()
        }
        Err(error) => ui.notice(Some(&seen), error),
    }
}

/// Returns the rollouts that a request may see, and the id in its path.
async fn scope_and_id(
    ui: &Ui,
    page_request: &PageRequest,
    id: String,
) -> Result<(Scope, RolloutId), NotShown> {
    let scope = ui.viewed.scope(page_request.seen.viewer.clone(), page_request.tenant.clone()).await?;
    let missing = |error: rollout_wire::id::InvalidRolloutId| NotShown::Missing {
        title: "No such rollout",
        reason: format!("The address has no valid id: {error}."),
    };
    let id = RolloutId::parse(id).map_err(missing)?;
    Ok((scope, id))
}

async fn rollout(State(ui): State<Arc<Ui>>, Path(id): Path<String>, request: Request) -> Response {
    let page_request = match page_request(&ui, &request, true) {
        Ok(page_request) => page_request,
        Err(response) => return *response,
    };
    let (scope, id) = match scope_and_id(&ui, &page_request, id).await {
        Ok(found) => found,
        Err(error) => return ui.notice(Some(&page_request.seen), error),
    };
    let mut frame = ui.frame(Some(&page_request.seen), page_request.tenant.clone());
    if let Some(handle) = scope.slots.find(&id) {
        frame.events = (!is_over(&handle)).then(|| frame.links.below_rollout(&id, "/events", ""));
    }
    let (turns, log) = (page_request.query.page, page_request.query.log);
    // While it runs, the newest turns and lines are shown; afterwards the first ones.
    let is_live = frame.events.is_some();
    let newest = usize::from(!is_live);
    let (turns, log) = (PageOfTurns { number: turns.unwrap_or(newest) }, log.unwrap_or(newest));
    let read = read_within(&ui, &scope, id, move |source| source.page(frame, turns, log)).await;
    match read {
        Ok(page) => html(StatusCode::OK, &page),
        Err(error) => ui.notice(Some(&page_request.seen), error),
    }
}

/// Reads a rollout on a blocking thread.
async fn read_within<T: Send + 'static>(
    ui: &Ui,
    scope: &Scope,
    id: RolloutId,
    make: impl FnOnce(Source<'_>) -> T + Send + 'static,
) -> Result<T, NotShown> {
    let busy = || NotShown::NoRoom("Other pages of rollouts are being read.".to_owned());
    let held = ui.reads.take(scope.number).ok_or_else(busy)?;
    let (slots, journal, budget) = (scope.slots.clone(), scope.journal.clone(), scope.budget.clone());
    let read = tokio::task::spawn_blocking(move || {
        let _held = held;
        read::read(&slots, journal.as_deref(), &budget, &id, make)
    });
    // A panic is in the log already.
    read.await.unwrap_or(Err(NotShown::Failed))
}

fn is_over(handle: &Handle) -> bool {
    handle.facts().is_none_or(|facts| facts.usage().is_none())
}

/// Answers with the events of the page of a rollout.
async fn rollout_events(State(ui): State<Arc<Ui>>, Path(id): Path<String>, request: Request) -> Response {
    let page_request = match page_request(&ui, &request, false) {
        Ok(page_request) => page_request,
        Err(response) => return *response,
    };
    let (scope, id) = match scope_and_id(&ui, &page_request, id).await {
        Ok(found) => found,
        Err(error) => return ui.notice(Some(&page_request.seen), error),
    };
    let Some(held) = ui.streams.take(scope.number) else { return events::full() };
    let mut last = None;
    events::response(held, EVENT_INTERVAL, move || {
        if !ui.is_valid(page_request.seen.key.as_ref()) {
            return News::Closed;
        }
        let now = scope.slots.find(&id).as_ref().and_then(read::progress);
        match (now, &last) {
            (None, _) => News::Over,
            (Some(now), Some(before)) if now == *before => News::None,
            (Some(now), _) => {
                last = Some(now);
                if ui.viewed.is_accepting() { News::Changed } else { News::Closed }
            }
        }
    })
}

async fn text(State(ui): State<Arc<Ui>>, Path(id): Path<String>, request: Request) -> Response {
    let page_request = match page_request(&ui, &request, true) {
        Ok(page_request) => page_request,
        Err(response) => return *response,
    };
    let (scope, id) = match scope_and_id(&ui, &page_request, id).await {
        Ok(found) => found,
        Err(error) => return ui.notice(Some(&page_request.seen), error),
    };
    let (turn, message) = (page_request.query.turn.unwrap_or(0), page_request.query.message.unwrap_or(0));
    let whole = read_within(&ui, &scope, id, move |source| source.whole_text(turn, message)).await;
    match whole {
        Ok(Some(text)) => ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response(),
        Ok(None) => {
            let reason = format!("The rollout has no such text at turn {turn}.");
            ui.notice(Some(&page_request.seen), NotShown::Missing { title: "No such text", reason })
        }
        Err(error) => ui.notice(Some(&page_request.seen), error),
    }
}

async fn artifact(State(ui): State<Arc<Ui>>, Path(id): Path<String>, request: Request) -> Response {
    let page_request = match page_request(&ui, &request, true) {
        Ok(page_request) => page_request,
        Err(response) => return *response,
    };
    let (scope, id) = match scope_and_id(&ui, &page_request, id).await {
        Ok(found) => found,
        Err(error) => return ui.notice(Some(&page_request.seen), error),
    };
    let name = page_request.query.name.unwrap_or_default();
    let shown = visible(&name);
    match read_within(&ui, &scope, id, move |source| source.artifact(&name)).await {
        Ok(Some(artifact)) => artifact_response(artifact),
        Ok(None) => {
            let reason = format!("The rollout has no artifact '{shown}'.");
            ui.notice(Some(&page_request.seen), NotShown::Missing { title: "No such artifact", reason })
        }
        Err(error) => ui.notice(Some(&page_request.seen), error),
    }
}

/// Returns an artifact with headers that keep a browser from running it or guessing its type.
pub(crate) fn artifact_response(artifact: SentArtifact) -> Response {
    // The value has visible ASCII only.
    let disposition = HeaderValue::try_from(artifact.disposition);
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(artifact.media_type)),
        (header::CONTENT_DISPOSITION, disposition.unwrap_or(HeaderValue::from_static("attachment"))),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(ARTIFACT_POLICY)),
    ];
    (headers, artifact.content).into_response()
}

/// Returns a path of this server's pages, or the first page for anything else: a sign-in leads to no other site.
pub(crate) fn local(next: Option<String>) -> String {
    let is_local = |next: &String| {
        next.starts_with(&format!("{ROOT}/"))
            && next.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\')
    };
    next.filter(is_local).unwrap_or_else(|| format!("{ROOT}/"))
}

async fn sign_in_page(State(ui): State<Arc<Ui>>, request: Request) -> Response {
    let query = page_query(&request);
    if ui.seen(request.headers()).is_some() {
        return Redirect::to(&local(query.next)).into_response();
    }
    let page = SignInPage { frame: ui.frame(None, None), error: None, next: local(query.next) };
    html(StatusCode::OK, &page)
}

/// Reads a form.
pub(crate) async fn form(body: Body) -> Result<HashMap<String, String>, StatusCode> {
    let form = axum::body::to_bytes(body, FORM_BYTES_MAX).await;
    let form = form.map_err(|_| StatusCode::PAYLOAD_TOO_LARGE)?;
    // A form is encoded as a query is.
    let url = format!("http://localhost/?{}", String::from_utf8_lossy(&form));
    let url = reqwest::Url::parse(&url).map_err(|_| StatusCode::BAD_REQUEST)?;
    Ok(url.query_pairs().into_owned().collect())
}

async fn sign_in(State(ui): State<Arc<Ui>>, headers: HeaderMap, body: Body) -> Response {
    let form = match form(body).await {
        Ok(form) => form,
        Err(status) => return status.into_response(),
    };
    let field = |name: &str| form.get(name).cloned();
    let (key, next) = (field("key").unwrap_or_default(), local(field("next")));
    if !ui.viewed.is_keyed() {
        return Redirect::to(&next).into_response();
    }
    let Some(viewer) = ui.viewed.viewer(key.trim()) else {
        ui.viewed.metrics().unauthorized();
        let error = "This key is not valid: it is mistyped, revoked or expired.".to_owned();
        let page = SignInPage { frame: ui.frame(None, None), error: Some(error), next };
        return html(StatusCode::UNAUTHORIZED, &page);
    };
    let token = ui.sessions.begin(key.trim(), viewer.tenant, Instant::now());
    let cookie = sessions::set_cookie(&headers, Some(&token), ui.viewed.is_encrypted());
    ([(header::SET_COOKIE, cookie)], Redirect::to(&next)).into_response()
}

async fn sign_out(State(ui): State<Arc<Ui>>, headers: HeaderMap) -> Response {
    if let Some(token) = sessions::token_of(&headers) {
        ui.sessions.end(&token);
    }
    let cookie = sessions::set_cookie(&headers, None, ui.viewed.is_encrypted());
    ([(header::SET_COOKIE, cookie)], Redirect::to("/ui/sign-in")).into_response()
}

/// Returns a file that pages need.
pub(crate) async fn asset(Path(name): Path<String>) -> Response {
    match ASSETS.iter().find(|asset| asset.name == name) {
        Some(asset) => {
            let headers = [(header::CONTENT_TYPE, asset.media_type), (header::CACHE_CONTROL, "no-cache")];
            (headers, asset.content).into_response()
        }
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

/// Returns a file that the pages below another folder need.
pub(crate) async fn asset_of(Path((_, name)): Path<(String, String)>) -> Response {
    asset(Path(name)).await
}

async fn unknown(State(ui): State<Arc<Ui>>, request: Request) -> Response {
    let page_request = match page_request(&ui, &request, true) {
        Ok(page_request) => page_request,
        Err(response) => return *response,
    };
    let reason = format!("This server has no page at {}.", visible(request.uri().path()));
    ui.notice(Some(&page_request.seen), NotShown::Missing { title: "No such page", reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_in_leads_to_pages_of_this_server_only() {
        fn check(next: &str, expected: &str) {
            assert_eq!(local(Some(next.to_owned())), expected, "{next}");
        }
        check("/ui/rollouts/a?page=2", "/ui/rollouts/a?page=2");
        for other in
            ["//evil.example", "https://evil.example/ui/", "/ui", "/metrics", "/ui/\\evil", "/ui/\r\nx: y"]
        {
            check(other, "/ui/");
        }
    }
}
