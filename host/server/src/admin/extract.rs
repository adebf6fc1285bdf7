//! What handlers take out of a request: who asks and about whom, bodies, parameters.

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

/// The largest body of JSON.
const JSON_BYTES_MAX: usize = 1 << 20;

/// An operator asks.
pub(super) struct Operator;

/// A tenant's plugins are looked at.
pub(super) struct Viewer(pub TenantId);

/// A tenant's plugins are changed.
pub(super) struct Author {
    pub tenant: TenantId,
    pub key: KeyId,
}

/// Whom a request of an operator is about.
#[derive(Deserialize)]
struct About {
    tenant: Option<String>,
}

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
        "this takes {needed}, and yours has the rights of a {}",
        identity.rights
    )))
}

/// The tenant that a request is about. What others are called nobody finds out: a name is compared with
/// the key's own tenant's, and not looked up.
async fn tenant(parts: &mut Parts, admin: &Admin, identity: Identity) -> Result<TenantId, ApiError> {
    let Params(About { tenant: named }) = Params::from_request_parts(parts, admin).await?;
    match (identity.tenant, named) {
        (Some(own), None) => Ok(own),
        (Some(own), Some(named)) => {
            let tenant = admin.on_disk(move |catalog| catalog.tenant(own)).await?;
            if *tenant.name == *named { Ok(own) } else { Err(no_tenant(&named)) }
        }
        (None, Some(named)) => Ok(admin.on_disk(move |catalog| Ok(catalog.tenant_named(&named)?.id)).await?),
        (None, None) => {
            Err(ApiError::Invalid("an operator's key is no tenant's; say whose by ?tenant=NAME".to_owned()))
        }
    }
}

fn no_tenant(name: &str) -> ApiError {
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

/// Parameters behind the `?`.
pub(super) struct Params<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<Admin> for Params<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, admin: &Admin) -> Result<Self, ApiError> {
        let read = Query::from_request_parts(parts, admin).await;
        read.map(|Query(given)| Self(given)).map_err(|error| ApiError::Invalid(error.body_text()))
    }
}

/// Parts of the path.
pub(super) struct Path<T>(pub T);

impl<T: DeserializeOwned + Send> FromRequestParts<Admin> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, admin: &Admin) -> Result<Self, ApiError> {
        let read = axum::extract::Path::from_request_parts(parts, admin).await;
        read.map(|axum::extract::Path(given)| Self(given))
            .map_err(|error| ApiError::Invalid(error.body_text()))
    }
}

/// The name in the path of what is to be made. It is checked before the body is read.
pub(super) struct NewName(pub Name);

impl FromRequestParts<Admin> for NewName {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, admin: &Admin) -> Result<Self, ApiError> {
        let Path(name) = Path::<String>::from_request_parts(parts, admin).await?;
        Name::new(name).map(Self).map_err(|error| ApiError::Invalid(error.to_string()))
    }
}

/// A body of JSON, and the charge for it, which has to live as long as what is made of the body.
pub(super) struct JsonBody<T> {
    pub value: T,
    pub charge: Charge,
}

impl<T: DeserializeOwned> FromRequest<Admin> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, admin: &Admin) -> Result<Self, ApiError> {
        let no_room = |_| ApiError::NoRoom("the server has no memory for it now; retry later".to_owned());
        let mut charge = admin.0.settings.budget.charge(Use::Request, 0).map_err(no_room)?;
        let mut bytes = Vec::new();
        let mut chunks = Chunks::of(request);
        while let Some(chunk) = chunks.next().await? {
            if bytes.len() + chunk.len() > JSON_BYTES_MAX {
                return Err(ApiError::TooLarge(format!("the body is larger than {JSON_BYTES_MAX} bytes")));
            }
            // Twice, because what is made of it is about as large.
            charge.grow(2 * chunk.len()).map_err(no_room)?;
            bytes.extend_from_slice(&chunk);
        }
        let value = serde_json::from_slice(&bytes)
            .map_err(|error| ApiError::Invalid(format!("the body is not as it should be: {error}")))?;
        Ok(Self { value, charge })
    }
}

/// A body, as it comes.
pub(super) struct Chunks(axum::body::BodyDataStream);

impl Chunks {
    pub(super) fn of(request: Request<Body>) -> Self {
        Self(request.into_body().into_data_stream())
    }

    pub(super) async fn next(&mut self) -> Result<Option<axum::body::Bytes>, ApiError> {
        self.0.next().await.transpose().map_err(|error| broken(&error))
    }
}

fn broken(error: &axum::Error) -> ApiError {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = cause {
        if let Some(slow @ BodyError::TooSlow { .. }) = error.downcast_ref() {
            return ApiError::Slow(slow.to_string());
        }
        cause = error.source();
    }
    ApiError::Invalid("the body broke off".to_owned())
}
