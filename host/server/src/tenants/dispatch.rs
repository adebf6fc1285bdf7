//! Dispatches requests to tenants and plugins, by the head of a request and before its body is read.

use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderName, HeaderValue, Method, Uri, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use tower::ServiceExt;

use super::plugin::LoadedPlugin;
use super::viewed::ViewedTenants;
use super::{TenantError, Tenants};
use crate::access::{given_key, key_for};
use crate::admin;
use crate::admin::Admin;
use crate::connection::{Below, Caller, Crowded, Owner};
use crate::dialect::ors;
use crate::dialect::osmosis::a;
use crate::error::RequestRefused;
use crate::{readiness, ui, worker};
use rollout_catalog::{Identity, Right, TenantId};
use rollout_core::telemetry::{Metrics, TEXT_FORMAT};

/// Prefix of the paths of plugins. The plugin's name follows it.
const PLUGINS: &str = "/p/";

/// Prefix of the paths of the admin API.
const ADMIN: &str = "/admin/";

/// Header with which an operator selects a tenant.
const TENANT_HEADER: &str = "x-rollout-host-tenant";

/// Cheap routes that must work on a full server.
const SHORT: [(Method, &str); 5] = [
    (Method::GET, "/health"),
    (Method::GET, "/metrics"),
    (Method::GET, "/platform/health"),
    (Method::POST, "/rollout/cancel"),
    (Method::GET, "/ready"),
];

/// State of the dispatcher.
#[derive(Clone)]
struct Dispatcher {
    tenants: Tenants,
    admin: Router,
    pages: Router,
}

impl Tenants {
    /// Returns all routes of a server of many tenants. `admin` is the admin API.
    pub fn router(&self, admin: &Admin) -> Router {
        let is_encrypted = self.0.config.tls.is_some();
        let pages = ui::router(ViewedTenants { tenants: self.clone(), admin: admin.clone(), is_encrypted });
        Router::new().fallback(dispatch).with_state(Dispatcher {
            tenants: self.clone(),
            admin: admin.router(),
            pages,
        })
    }
}

async fn dispatch(State(dispatcher): State<Dispatcher>, request: Request) -> Response {
    let worker = dispatcher.tenants.0.worker.as_ref();
    let is_gateway = worker.is_some_and(|worker| worker.is_gateway(request.headers()));
    let mut owner = None;
    let answered = dispatcher.dispatch(request, &mut owner).await;
    let mut response = answered.unwrap_or_else(IntoResponse::into_response);
    if let Some(owner) = owner.filter(|_| is_gateway) {
        let owner = owner.map_or(HeaderValue::from_static(worker::OPERATOR), |tenant| tenant.0.into());
        response.headers_mut().insert(HeaderName::from_static(worker::OWNER_HEADER), owner);
    }
    response
}

/// The path of a request, split into plugin and route.
struct Target<'a> {
    /// The plugin's name; `None` for the tenant's default plugin.
    plugin: Option<&'a str>,
    /// The path below the plugin.
    path: &'a str,
}

impl<'a> Target<'a> {
    /// Splits a path.
    fn parse(path: &'a str) -> Self {
        let Some(rest) = path.strip_prefix(PLUGINS) else { return Self { plugin: None, path } };
        let end = rest.find('/').unwrap_or(rest.len());
        let (name, path) = rest.split_at(end);
        Self { plugin: Some(name), path: if path.is_empty() { "/" } else { path } }
    }

    /// Returns the protocol's error text for a missing or wrong key.
    fn refusal(&self) -> &'static str {
        if a::has_path(self.path) {
            a::KEY_REFUSAL
        } else if ors::has_path(self.path) {
            ors::KEY_REFUSAL
        } else {
            "unauthorized"
        }
    }

    /// Returns the right that the request needs. Polling for a result takes the lease, and opening or continuing a session
    /// takes a slot and acts in an environment, so they need more than viewing.
    fn right(&self, method: &Method) -> Right {
        let last = self.path.rsplit('/').next().unwrap_or_default();
        let acts = match last {
            "result" | "ws" | "mcp" | "state" => true,
            "prompt" | "messages" | "task_tools" => ors::has_path(self.path),
            _ => false,
        };
        if method == Method::GET && !acts { Right::View } else { Right::Call }
    }
}

impl Dispatcher {
    /// Answers a request, and stores the owner of its key in `owner`: a tenant, or `Some(None)` for operators.
    async fn dispatch(
        self,
        mut request: Request,
        owner: &mut Option<Option<TenantId>>,
    ) -> Result<Response, RequestRefused> {
        let inner = &self.tenants.0;
        let checked = match &inner.worker {
            // The gateway has checked the names.
            Some(worker) if worker.is_gateway(request.headers()) => Ok(()),
            Some(worker) => worker.check_probe(&request).and_then(|()| inner.access.check_names(&request)),
            None => inner.access.check_names(&request),
        };
        if let Err(reason) = checked {
            inner.metrics.unauthorized();
            return Err(RequestRefused::Forbidden(reason));
        }
        let path = request.uri().path().to_owned();
        if inner.worker.is_some() && path == worker::STATUS_PATH {
            return Ok(Json(self.tenants.worker_status()).into_response());
        }
        let mut target = Target::parse(&path);
        // Clients of ORS cannot put a prefix before the protocol's own paths.
        let is_ors = target.plugin.is_none() && ors::has_path(target.path);
        let plugin = is_ors.then(|| ors::plugin_of(request.headers())).flatten();
        target.plugin = target.plugin.or(plugin.as_deref());
        let is_short = SHORT.iter().any(|(method, path)| request.method() == method && target.path == *path);
        if request.extensions().get::<Crowded>().is_some() && !is_short {
            return Err(RequestRefused::Crowded);
        }
        if ui::has_path(&path) {
            // Browsers have a session instead of a key in each request, and gateways send the key of theirs.
            if let Some(key) = given_key(request.headers()).filter(|_| inner.worker.is_some()) {
                *owner = self.tenants.authenticate(&key).await.map(|identity| identity.tenant);
            }
            return Ok(infallible(self.pages.oneshot(request).await));
        }
        let key = key_for(target.path, request.headers());
        let identity = match key {
            Some(key) => self.tenants.authenticate(&key).await,
            None => None,
        };
        if request.method() == Method::GET && path == "/ready" {
            let is_operator = identity.as_ref().is_some_and(|identity| identity.tenant.is_none());
            return Ok(readiness(self.tenants.refusal(), is_operator));
        }
        let Some(identity) = identity else {
            return self.answer_without_key(request, &target).await;
        };
        *owner = Some(identity.tenant);
        if let Some(caller) = request.extensions().get::<Caller>() {
            caller.set_owner(identity.tenant.map_or(Owner::Operators, |tenant| Owner::Tenant(tenant.0)));
        }
        inner.catalog.touch(identity.key);
        if path.starts_with(ADMIN) {
            // A change that another process has reported must apply here, too.
            self.tenants.refresh().await;
            request.extensions_mut().insert(identity);
            return Ok(infallible(self.admin.oneshot(request).await));
        }
        if target.plugin.is_none() && path == "/metrics" {
            return self.metrics(identity).await;
        }
        if !identity.rights.allows(target.right(request.method())) {
            let detail = format!("a key with the rights of a {} may not do this", identity.rights);
            return Err(RequestRefused::Forbidden(detail));
        }
        let name = request.headers().get(TENANT_HEADER).and_then(|name| name.to_str().ok());
        let tenant = self.tenant_of(identity, name.map(str::to_owned)).await?;
        let plugin = match self.plugin(tenant, target.plugin).await {
            // Another process may have pushed the plugin a moment ago.
            Err(_) if inner.catalog.is_shared() && self.tenants.refresh().await => {
                self.plugin(tenant, target.plugin).await?
            }
            found => found?,
        };
        let path_and_query = match request.uri().query() {
            Some(query) => format!("{}?{query}", target.path),
            None => target.path.to_owned(),
        };
        let below = path_and_query.parse::<PathAndQuery>().map_err(|_| RequestRefused::NoRoute)?;
        *request.uri_mut() = Uri::from(below);
        if let Some(name) = target.plugin {
            request.extensions_mut().insert(Below(format!("{PLUGINS}{name}")));
        }
        let response = infallible(plugin.router().oneshot(request).await);
        // The plugin is not unloaded while a request holds it.
        drop(plugin);
        Ok(response)
    }

    /// Answers a request without a valid key.
    ///
    /// `/health` answers without a key, because generation A's callers have none for it. `/p/NAME/health` answers the same
    /// whether or not any tenant has such a plugin, and refuses only a wrong key.
    async fn answer_without_key(
        self,
        request: Request,
        target: &Target<'_>,
    ) -> Result<Response, RequestRefused> {
        let is_open = target.plugin.is_none() || !request.headers().contains_key(header::AUTHORIZATION);
        if request.method() == Method::GET && target.path == "/health" && is_open {
            return Ok(Json(json!({"status": "ok"})).into_response());
        }
        let path = request.uri().path();
        if path != admin::DESCRIPTION {
            self.tenants.0.metrics.unauthorized();
        }
        // The admin API has its own error bodies.
        if path.starts_with(ADMIN) {
            return Ok(infallible(self.admin.oneshot(request).await));
        }
        Err(RequestRefused::Unauthorized(target.refusal()))
    }

    /// Returns the tenant of the key, or the one whose name an operator passes.
    async fn tenant_of(&self, identity: Identity, name: Option<String>) -> Result<TenantId, RequestRefused> {
        if let Some(tenant) = identity.tenant {
            return Ok(tenant);
        }
        let Some(name) = name else {
            return Err(RequestRefused::Forbidden(format!(
                "an operator's key belongs to no tenant; select one with the header {TENANT_HEADER}"
            )));
        };
        let catalog = self.tenants.0.catalog.clone();
        let found = tokio::task::spawn_blocking(move || catalog.tenant_named(&name)).await;
        match found {
            Ok(Ok(tenant)) => Ok(tenant.id),
            Ok(Err(error)) => Err(RequestRefused::from(TenantError::from(error))),
            Err(_) => Err(RequestRefused::Internal),
        }
    }

    /// Returns a plugin of a tenant, or its default plugin. Loads it if it is not loaded.
    async fn plugin(&self, id: TenantId, name: Option<&str>) -> Result<Arc<LoadedPlugin>, RequestRefused> {
        let tenant = self.tenants.tenant(id).await?;
        let name = match name {
            Some(name) => name.to_owned(),
            None => tenant.default_plugin().ok_or_else(|| {
                let detail =
                    "this tenant has no default plugin; use the paths below /p/NAME for the plugin NAME";
                RequestRefused::NotFound(detail.to_owned())
            })?,
        };
        Ok(tenant.plugin(&self.tenants, &name).await?)
    }

    /// Answers `GET /metrics`: an operator receives the metrics of the process and all plugins, a tenant those of its plugins.
    async fn metrics(self, identity: Identity) -> Result<Response, RequestRefused> {
        let text = match identity.tenant {
            None => {
                let tenants = self.tenants.clone();
                let text = tokio::task::spawn_blocking(move || tenants.metrics_text()).await;
                text.map_err(|_| RequestRefused::Internal)?
            }
            Some(tenant) => {
                let tenant = self.tenants.tenant(tenant).await?;
                Metrics::text_of(&tenant.metrics())
            }
        };
        Ok(([(header::CONTENT_TYPE, TEXT_FORMAT)], text).into_response())
    }
}

fn infallible(result: Result<Response, std::convert::Infallible>) -> Response {
    result.unwrap_or_else(|never| match never {})
}

impl From<TenantError> for RequestRefused {
    /// Converts the error to a response. A missing item looks like an unknown route, so that a tenant learns nothing about
    /// others. A tenant receives errors in its configuration and a lack of open files; other errors are only logged.
    fn from(error: TenantError) -> Self {
        match error {
            TenantError::NotFound(_) => Self::NoRoute,
            TenantError::Config(error) => Self::NoRoom(error.to_string()),
            TenantError::NoRoom(reason) => Self::NoRoom(reason),
            error => {
                tracing::error!(%error, "a plugin cannot be used");
                let detail = "this plugin cannot be used at present; the operator's log has the reason";
                Self::NoRoom(detail.to_owned())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_split_into_plugin_and_route() {
        let check = |path: &str, plugin: Option<&str>, below: &str| {
            let target = Target::parse(path);
            assert_eq!((target.plugin, target.path), (plugin, below), "{path}");
        };
        check("/rollout", None, "/rollout");
        check("/p/calc/rollout/r1/result", Some("calc"), "/rollout/r1/result");
        check("/p/calc", Some("calc"), "/");
        check("/p//rollout", Some(""), "/rollout");
        check("/p/", Some(""), "/");
        check("/pp/calc", None, "/pp/calc");
        fn right(path: &str, method: Method) -> Right {
            Target::parse(path).right(&method)
        }
        assert_eq!(right("/rollout", Method::POST), Right::Call);
        assert_eq!(right("/p/c/rollout/r/result", Method::GET), Right::Call, "a poll takes the lease");
        assert_eq!(right("/p/c/rollout/r/trajectory", Method::GET), Right::View);
        for acts in
            ["openenv/ws", "openenv/mcp", "openenv/state", "openenv/sessions/s/ws", "e/prompt", "task_tools"]
        {
            assert_eq!(right(&format!("/p/c/{acts}"), Method::GET), Right::Call, "{acts} acts in a session");
        }
        assert_eq!(right("/p/c/openenv/schema", Method::GET), Right::View);
        assert_eq!(right("/p/c/e/splits", Method::GET), Right::View);
    }
}
