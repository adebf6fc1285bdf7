//! Extractors of handlers: identity and tenant, parameters, and bodies.

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::request::Parts;
use futures_util::StreamExt;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::Admin;
use super::error::ApiError;
use crate::connection::BodyError;
use rollout_catalog::{Identity, KeyId, Name, ResourceKind, Right, TenantId};
use rollout_core::budget::{Charge, Use};

/// Maximum number of bytes of a JSON body.
const JSON_BYTES_MAX: usize = 1 << 20;

/// Requires the right to operate the server.
pub(super) struct Operator;

/// Requires the right to view a tenant's plugins. Contains the tenant.
pub(super) struct Viewer(pub TenantId);

/// Requires the right to change a tenant's plugins. Contains the tenant and the key of the request.
pub(super) struct Author {
    pub tenant: TenantId,
    pub key: KeyId,
}

/// The parameter that selects a tenant.
#[derive(Deserialize)]
struct TenantQuery {
    tenant: Option<String>,
}

/// Returns the identity of a request if it has a right.
fn identity(parts: &Parts, right: Right) -> Result<Identity, ApiError> {
    let identity = parts.extensions.get::<Identity>().copied().ok_or(ApiError::Unauthorized)?;
    if identity.rights.allows(right) {
        return Ok(identity);
    }
    let needed = match right {
        Right::Operate => "an operator's key",
        Right::Author => "an author's key",
        Right::Call | Right::View => "another key",
    };
    Err(ApiError::Forbidden(format!(
        "this route needs {needed}; this key has the rights of a {}",
        identity.rights
    )))
}

/// Returns the tenant that a request refers to. A tenant's key never reveals other names: the parameter is compared
/// with the name of the key's tenant, and not looked up.
async fn tenant(parts: &mut Parts, admin: &Admin, identity: Identity) -> Result<TenantId, ApiError> {
    let Params(TenantQuery { tenant: name }) = Params::from_request_parts(parts, admin).await?;
    match (identity.tenant, name) {
        (Some(own), None) => Ok(own),
        (Some(own), Some(name)) => {
            let tenant = admin.on_disk(move |catalog| catalog.tenant(own)).await?;
            if *tenant.name == *name { Ok(own) } else { Err(tenant_not_found(&name)) }
        }
        (None, Some(name)) => Ok(admin.on_disk(move |catalog| Ok(catalog.tenant_named(&name)?.id)).await?),
        (None, None) => {
            let message = "an operator's key belongs to no tenant; select one with ?tenant=NAME";
            Err(ApiError::Invalid(message.to_owned()))
        }
    }
}

fn tenant_not_found(name: &str) -> ApiError {
    ApiError::NotFound(format!("there is no {} '{name}'", ResourceKind::Tenant))
}

impl FromRequestParts<Admin> for Operator {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &Admin) -> Result<Self, ApiError> {
        identity(parts, Right::Operate).map(|_| Self)
    }
}

impl FromRequestParts<Admin> for Viewer {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, admin: &Admin) -> Result<Self, ApiError> {
        let identity = identity(parts, Right::View)?;
        tenant(parts, admin, identity).await.map(Self)
    }
}

impl FromRequestParts<Admin> for Author {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, admin: &Admin) -> Result<Self, ApiError> {
        let identity = identity(parts, Right::Author)?;
        let tenant = tenant(parts, admin, identity).await?;
        Ok(Self { tenant, key: identity.key })
    }
}

/// The parameters of the query.
pub(super) struct Params<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<Admin> for Params<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, admin: &Admin) -> Result<Self, ApiError> {
        let params = Query::from_request_parts(parts, admin).await;
        params.map(|Query(params)| Self(params)).map_err(|error| ApiError::Invalid(error.body_text()))
    }
}

/// The parameters of the path.
pub(super) struct Path<T>(pub T);

impl<T: DeserializeOwned + Send> FromRequestParts<Admin> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, admin: &Admin) -> Result<Self, ApiError> {
        let params = axum::extract::Path::from_request_parts(parts, admin).await;
        params
            .map(|axum::extract::Path(params)| Self(params))
            .map_err(|error| ApiError::Invalid(error.body_text()))
    }
}

/// The name of a new item in the path. It is checked before the body is read.
pub(super) struct NewName(pub Name);

impl FromRequestParts<Admin> for NewName {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, admin: &Admin) -> Result<Self, ApiError> {
        let Path(name) = Path::<String>::from_request_parts(parts, admin).await?;
        Name::new(name).map(Self).map_err(|error| ApiError::Invalid(error.to_string()))
    }
}

/// A JSON body with its memory charge, which must live as long as the value.
pub(super) struct JsonBody<T> {
    pub value: T,
    pub charge: Charge,
}

impl<T: DeserializeOwned> FromRequest<Admin> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, admin: &Admin) -> Result<Self, ApiError> {
        let no_room = |_| ApiError::NoRoom("the server has no memory for the body; retry later".to_owned());
        let mut charge = admin.0.settings.budget.charge(Use::Request, 0).map_err(no_room)?;
        let mut bytes = Vec::new();
        let mut chunks = BodyChunks::new(request);
        while let Some(chunk) = chunks.next().await? {
            if bytes.len() + chunk.len() > JSON_BYTES_MAX {
                return Err(ApiError::TooLarge(format!("the body is larger than {JSON_BYTES_MAX} bytes")));
            }
            // Charged twice, because the value is about as large as the body.
            charge.grow(2 * chunk.len()).map_err(no_room)?;
            bytes.extend_from_slice(&chunk);
        }
        let value = serde_json::from_slice(&bytes)
            .map_err(|error| ApiError::Invalid(format!("invalid body: {error}")))?;
        Ok(Self { value, charge })
    }
}

/// The chunks of a body as they arrive.
pub(super) struct BodyChunks(axum::body::BodyDataStream);

impl BodyChunks {
    pub(super) fn new(request: Request<Body>) -> Self {
        Self(request.into_body().into_data_stream())
    }

    /// Waits for the next chunk. Returns `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<axum::body::Bytes>, ApiError> {
        self.0.next().await.transpose().map_err(|error| body_error(&error))
    }
}

/// Converts the error of a body that did not arrive completely.
fn body_error(error: &axum::Error) -> ApiError {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = cause {
        if let Some(slow @ BodyError::TooSlow { .. }) = error.downcast_ref() {
            return ApiError::Slow(slow.to_string());
        }
        cause = error.source();
    }
    ApiError::Invalid("the body broke off".to_owned())
}
