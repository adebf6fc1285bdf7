//! Whose a request is, and which plugin it is for: found out from its head, before anything of its body is
//! read.

use std::borrow::Cow;
use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, Method, Uri, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use tower::ServiceExt;

use super::plugin::Plugin;
use super::{Tenants, Unusable};
use crate::access::given_key;
use crate::admin;
use crate::connection::{Caller, Crowded, Owner};
use crate::dialect::osmosis::a;
use crate::error::Refused;
use crate::readiness;
use rollout_catalog::{Identity, Right, TenantId};
use rollout_core::telemetry::{Metrics, TEXT_FORMAT};

/// Below this, and a name, are the paths of a plugin.
const PLUGINS: &str = "/p/";

/// Where the administration is.
const ADMIN: &str = "/admin/";

/// The header by which an operator says whose plugin is meant.
const TENANT_HEADER: &str = "x-rollout-host-tenant";

/// What takes no time, and has to work on a server that is full.
const SHORT: [(Method, &str); 5] = [
    (Method::GET, "/health"),
    (Method::GET, "/metrics"),
    (Method::GET, "/platform/health"),
    (Method::POST, "/rollout/cancel"),
    (Method::GET, "/ready"),
];

/// What serves requests.
#[derive(Clone)]
struct Served {
    tenants: Tenants,
    admin: Router,
}

impl Tenants {
    /// All that it answers, with this administration.
    pub fn router(&self, admin: Router) -> Router {
        Router::new().fallback(answer).with_state(Served { tenants: self.clone(), admin })
    }
}

async fn answer(State(served): State<Served>, request: Request) -> Response {
    served.answer(request).await.unwrap_or_else(IntoResponse::into_response)
}

/// A path, and which plugin it is of.
struct Asked<'a> {
    /// The plugin's name; none is the tenant's default.
    plugin: Option<&'a str>,
    /// The path below.
    path: &'a str,
}

impl<'a> Asked<'a> {
    fn of(path: &'a str) -> Self {
        let Some(rest) = path.strip_prefix(PLUGINS) else { return Self { plugin: None, path } };
        let end = rest.find('/').unwrap_or(rest.len());
        let (name, path) = rest.split_at(end);
        Self { plugin: Some(name), path: if path.is_empty() { "/" } else { path } }
    }

    /// The key that a request for this gives, in the way of its protocol.
    fn key<'h>(&self, headers: &'h HeaderMap) -> Option<Cow<'h, str>> {
        if a::has_path(self.path) {
            std::str::from_utf8(a::given_key(headers)).ok().map(Cow::Borrowed)
        } else {
            given_key(headers)
        }
    }

    /// What is said where there is none.
    fn refusal(&self) -> &'static str {
        if a::has_path(self.path) { a::KEY_REFUSAL } else { "unauthorized" }
    }

    /// What somebody has to be allowed who asks this.
    fn right(&self, method: &Method) -> Right {
        let reads = method == Method::GET && !self.path.ends_with("/result");
        if reads { Right::View } else { Right::Call }
    }
}

impl Served {
    async fn answer(self, mut request: Request) -> Result<Response, Refused> {
        let inner = &self.tenants.0;
        if let Err(why) = inner.access.names(&request) {
            inner.metrics.unauthorized();
            return Err(Refused::Forbidden(why));
        }
        let path = request.uri().path().to_owned();
        let asked = Asked::of(&path);
        let is_short = SHORT.iter().any(|(method, short)| request.method() == method && asked.path == *short);
        if request.extensions().get::<Crowded>().is_some() && !is_short {
            return Err(Refused::Crowded);
        }
        let key = asked.key(request.headers());
        let identity = key.and_then(|key| inner.catalog.authenticate(&key));
        if request.method() == Method::GET && path == "/ready" {
            let is_operators = identity.as_ref().is_some_and(|identity| identity.tenant.is_none());
            return Ok(readiness(self.tenants.takes_none(), is_operators));
        }
        let Some(identity) = identity else {
            return self.without_key(request, &asked).await;
        };
        if let Some(caller) = request.extensions().get::<Caller>() {
            caller.belongs_to(identity.tenant.map_or(Owner::Operators, |tenant| Owner::Tenant(tenant.0)));
        }
        inner.catalog.touch(identity.key);
        if path.starts_with(ADMIN) {
            request.extensions_mut().insert(identity);
            return Ok(infallible(self.admin.oneshot(request).await));
        }
        if asked.plugin.is_none() && path == "/metrics" {
            return self.metrics(identity).await;
        }
        if !identity.rights.allows(asked.right(request.method())) {
            let what = format!("a key with the rights of a {} may not do this", identity.rights);
            return Err(Refused::Forbidden(what));
        }
        let named = request.headers().get(TENANT_HEADER).and_then(|name| name.to_str().ok());
        let tenant = self.tenant_of(identity, named.map(str::to_owned)).await?;
        let plugin = self.plugin(tenant, asked.plugin).await?;
        let path_and_query = match request.uri().query() {
            Some(query) => format!("{}?{query}", asked.path),
            None => asked.path.to_owned(),
        };
        let below = path_and_query.parse::<PathAndQuery>().map_err(|_| Refused::NoRoute)?;
        *request.uri_mut() = Uri::from(below);
        let response = infallible(plugin.router().oneshot(request).await);
        // Until here it is held, and so not let go of.
        drop(plugin);
        Ok(response)
    }

    /// What those are answered who prove nothing.
    ///
    /// `/health` answers without a key, because generation A's callers have none for it. Below the name of a
    /// plugin it answers the same, whether any tenant has such a plugin or not; only a wrong key is refused there.
    async fn without_key(self, request: Request, asked: &Asked<'_>) -> Result<Response, Refused> {
        let is_open = asked.plugin.is_none() || !request.headers().contains_key(header::AUTHORIZATION);
        if request.method() == Method::GET && asked.path == "/health" && is_open {
            return Ok(Json(json!({"status": "ok"})).into_response());
        }
        let path = request.uri().path();
        if path != admin::DESCRIPTION {
            self.tenants.0.metrics.unauthorized();
        }
        // It refuses in its own words.
        if path.starts_with(ADMIN) {
            return Ok(infallible(self.admin.oneshot(request).await));
        }
        Err(Refused::Unauthorized(asked.refusal()))
    }

    /// The tenant whose plugins are asked for: that of the key, or the one that an operator names.
    async fn tenant_of(&self, identity: Identity, named: Option<String>) -> Result<TenantId, Refused> {
        if let Some(tenant) = identity.tenant {
            return Ok(tenant);
        }
        let Some(name) = named else {
            return Err(Refused::Forbidden(format!(
                "an operator's key is of no tenant; the header {TENANT_HEADER} says whose plugin is meant"
            )));
        };
        let catalog = self.tenants.0.catalog.clone();
        let found = tokio::task::spawn_blocking(move || catalog.tenant_named(&name)).await;
        match found {
            Ok(Ok(tenant)) => Ok(tenant.id),
            Ok(Err(error)) => Err(Refused::from(Unusable::from(error))),
            Err(_) => Err(Refused::Unreadable),
        }
    }

    async fn plugin(&self, id: TenantId, name: Option<&str>) -> Result<Arc<Plugin>, Refused> {
        let tenant = self.tenants.tenant(id).await?;
        let name = match name {
            Some(name) => name.to_owned(),
            None => tenant.default_plugin().ok_or_else(|| {
                let what = "this tenant has no default plugin; below /p/NAME are the paths of plugin NAME";
                Refused::NotFound(what.to_owned())
            })?,
        };
        Ok(tenant.plugin(&self.tenants, &name).await?)
    }

    /// What was counted: of everything for operators, of its plugins for a tenant.
    async fn metrics(self, identity: Identity) -> Result<Response, Refused> {
        let text = match identity.tenant {
            None => {
                let tenants = self.tenants.clone();
                let text = tokio::task::spawn_blocking(move || tenants.metrics_text()).await;
                text.map_err(|_| Refused::Unreadable)?
            }
            Some(tenant) => {
                let tenant = self.tenants.tenant(tenant).await?;
                Metrics::text_of(&tenant.counted())
            }
        };
        Ok(([(header::CONTENT_TYPE, TEXT_FORMAT)], text).into_response())
    }
}

fn infallible(answered: Result<Response, std::convert::Infallible>) -> Response {
    answered.unwrap_or_else(|never| match never {})
}

impl From<Unusable> for Refused {
    /// What is not there is not there, whoever it is not there for. The rest is the host's trouble, which its
    /// log has; a tenant is told what is its own.
    fn from(why: Unusable) -> Self {
        match why {
            Unusable::NotThere(_) => Self::NoRoute,
            Unusable::Config(error) => Self::NoRoom(error.to_string()),
            Unusable::NoRoom(why) => Self::NoRoom(why),
            why => {
                tracing::error!(error = %why, "a plugin cannot be used");
                Self::NoRoom("this plugin cannot be used at present; the operator's log says why".to_owned())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_below_a_plugins_name_is_the_plugins() {
        let check = |path: &str, plugin: Option<&str>, below: &str| {
            let asked = Asked::of(path);
            assert_eq!((asked.plugin, asked.path), (plugin, below), "{path}");
        };
        check("/rollout", None, "/rollout");
        check("/p/calc/rollout/r1/result", Some("calc"), "/rollout/r1/result");
        check("/p/calc", Some("calc"), "/");
        check("/p//rollout", Some(""), "/rollout");
        check("/p/", Some(""), "/");
        check("/pp/calc", None, "/pp/calc");
        assert_eq!(Asked::of("/rollout").right(&Method::POST), Right::Call);
        assert_eq!(Asked::of("/p/c/rollout/r/result").right(&Method::GET), Right::Call, "it takes a lease");
        assert_eq!(Asked::of("/p/c/rollout/r/trajectory").right(&Method::GET), Right::View);
    }
}
