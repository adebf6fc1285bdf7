//! JSON types of the admin API. Their doc comments are the descriptions in OpenAPI.

use std::borrow::Cow;

use rollout_catalog::{self as catalog, Time};
use rollout_registry::evidence::Evidence;
use rollout_wire::quota::{Quota, Quotas, QuotasChange};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::openapi::path::Operation;
use utoipa::openapi::schema::{AdditionalProperties, SchemaType};
use utoipa::openapi::{ContentBuilder, ObjectBuilder, OpenApi, Ref, RefOr, ResponseBuilder, Schema, Type};
use utoipa::{IntoParams, PartialSchema, ToSchema};

/// Default maximum number of items in a page of a list.
const LIMIT_DEFAULT: u32 = 100;

/// The body of an error response.
#[derive(Serialize, ToSchema)]
pub(super) struct ErrorBody {
    pub error: ErrorDetail,
}

/// An error.
#[derive(Serialize, ToSchema)]
pub(super) struct ErrorDetail {
    /// The kind of error: one word for each status code.
    #[schema(example = "not-found")]
    pub kind: String,
    /// The reason, and a remedy if there is one.
    pub message: String,
}

/// Adds the error response to the description of every operation.
pub(super) fn add_error_responses(api: &mut OpenApi) {
    for item in api.paths.paths.values_mut() {
        let operations: [&mut Option<Operation>; 5] =
            [&mut item.get, &mut item.put, &mut item.post, &mut item.patch, &mut item.delete];
        for operation in operations.into_iter().flatten() {
            let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("ErrorBody"))).build();
            let response = ResponseBuilder::new()
                .description("The request failed; the body has the reason.")
                .content("application/json", content);
            operation.responses.responses.insert("default".to_owned(), response.build().into());
        }
    }
}

/// The tenant to which a request refers.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "described in OpenAPI; `extract` reads it")]
pub(super) struct TenantParam {
    /// The tenant's name. Required with an operator's key; every other key belongs to a tenant.
    tenant: Option<String>,
}

/// A page of a list.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Page {
    /// Cursor: lists the items after this one. Pass the `next` of the previous page.
    pub after: Option<String>,
    /// Maximum number of items, from 1 to 1000; the default is 100.
    limit: Option<u32>,
}

impl Page {
    /// Returns the maximum number of items.
    pub(super) fn limit(&self) -> u32 {
        self.limit.unwrap_or(LIMIT_DEFAULT).clamp(1, catalog::LIST_MAX)
    }
}

/// A page of a list.
#[derive(Serialize, ToSchema)]
pub(super) struct List<T> {
    /// The items of the page.
    pub items: Vec<T>,
    /// The `after` of the next page, if there may be one.
    pub next: Option<String>,
}

impl<T> List<T> {
    /// Creates a page from at most `page.limit()` items. `cursor` returns the cursor of an item.
    pub(super) fn page(items: Vec<T>, page: &Page, cursor: impl Fn(&T) -> String) -> Self {
        let is_full = items.len() as u64 >= u64::from(page.limit());
        let next = items.last().filter(|_| is_full).map(cursor);
        Self { items, next }
    }
}

/// Schema of [`rollout_wire::quota::Quotas`].
pub(super) struct QuotasSchema;

impl ToSchema for QuotasSchema {
    fn name() -> Cow<'static, str> {
        "Quotas".into()
    }
}

impl PartialSchema for QuotasSchema {
    fn schema() -> RefOr<Schema> {
        quotas_schema(
            "Quotas of a tenant, or of a plugin within it. A missing quota means unlimited.",
            Type::Integer.into(),
        )
    }
}

/// Schema of [`QuotasChange`].
pub(super) struct QuotasChangeSchema;

impl ToSchema for QuotasChangeSchema {
    fn name() -> Cow<'static, str> {
        "QuotasChange".into()
    }
}

impl PartialSchema for QuotasChangeSchema {
    fn schema() -> RefOr<Schema> {
        quotas_schema(
            "New values of quotas: a number sets one, `null` removes it, a missing one stays as it is.",
            SchemaType::from_iter([Type::Integer, Type::Null]),
        )
    }
}

/// Returns the schema of an object with a property for each quota.
fn quotas_schema(description: &str, value: SchemaType) -> RefOr<Schema> {
    let object = ObjectBuilder::new()
        .description(Some(description))
        .additional_properties(Some(AdditionalProperties::FreeForm(false)));
    let object = Quota::ALL.into_iter().fold(object, |object, quota| {
        let property = ObjectBuilder::new()
            .schema_type(value.clone())
            .description(Some(quota.description()))
            .minimum(Some(quota.value_min() as usize));
        object.property(quota.as_str(), property)
    });
    Schema::from(object).into()
}

/// Rules for the connections of a tenant's rollouts. Private addresses must be listed.
#[derive(ToSchema)]
#[schema(as = NetworkRules)]
#[expect(dead_code, reason = "describes `rollout_catalog::NetworkRules`")]
pub(super) struct NetworkRulesSchema {
    /// Allowed hosts (`model.internal`, `*.internal`), addresses and networks (`10.1.0.0/16`), with or without a port.
    allow: Vec<String>,
    /// Access to public addresses: `open` allows all, `listed` only those in `allow`.
    #[schema(example = "open")]
    public: String,
}

/// A public key of a trusted signer.
#[derive(ToSchema)]
#[schema(as = TrustedKey)]
#[expect(dead_code, reason = "describes `rollout_catalog::TrustedKey`")]
pub(super) struct TrustedKeySchema {
    /// The beginning of the key's SHA-256.
    id: String,
    /// The key in PEM.
    pem: String,
}

/// A tenant.
#[derive(Serialize, ToSchema)]
pub(super) struct Tenant {
    /// The tenant's number, which is never used again.
    pub id: i64,
    pub name: String,
    #[schema(value_type = QuotasSchema)]
    pub quotas: Quotas,
    #[schema(value_type = NetworkRulesSchema)]
    pub network: catalog::NetworkRules,
    /// The keys of trusted signers. If there are any, only components that one of them signed can be deployed.
    #[schema(value_type = Vec<TrustedKeySchema>)]
    pub trusted_keys: Vec<catalog::TrustedKey>,
    /// The name of the plugin that answers at the tenant's root.
    pub default_plugin: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Time,
}

impl From<catalog::TenantInfo> for Tenant {
    fn from(tenant: catalog::TenantInfo) -> Self {
        let catalog::TenantInfo { id, name, quotas, network, trusted_keys, default_plugin, created_at } =
            tenant;
        let (name, default_plugin) = (name.into(), default_plugin.map(Into::into));
        Self { id: id.0, name, quotas, network, trusted_keys, default_plugin, created_at }
    }
}

/// A tenant to create.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewTenant {
    /// The tenant's name: 1 to 64 lower-case letters, digits, `-` and `_`; the first is a letter or a digit.
    pub name: String,
    #[serde(default)]
    #[schema(value_type = Option<QuotasSchema>)]
    pub quotas: Quotas,
    #[serde(default)]
    #[schema(value_type = Option<NetworkRulesSchema>)]
    pub network: catalog::NetworkRules,
    /// The keys of trusted signers (ECDSA with P-256), in PEM.
    #[serde(default)]
    pub trusted_keys: Vec<String>,
}

/// Changes of a tenant.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TenantChange {
    #[serde(default)]
    #[schema(value_type = QuotasChangeSchema)]
    pub quotas: QuotasChange,
    #[serde(default)]
    pub network: NetworkChange,
    /// The new list of keys of trusted signers, in PEM, which replaces the old one.
    pub trusted_keys: Option<Vec<String>>,
}

/// Changes of network rules. A missing field keeps its value.
#[derive(Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct NetworkChange {
    /// The new list, which replaces the old one.
    pub allow: Option<Vec<String>>,
    /// Access to public addresses: `open` or `listed`.
    #[schema(value_type = Option<String>)]
    public: Option<catalog::Public>,
}

impl NetworkChange {
    /// Applies the changes.
    pub(super) fn apply(&self, rules: &mut catalog::NetworkRules) {
        if let Some(allow) = &self.allow {
            rules.allow.clone_from(allow);
        }
        rules.public = self.public.unwrap_or(rules.public);
    }
}

/// The usage of a tenant.
#[derive(Serialize, ToSchema)]
pub(super) struct TenantUsage {
    /// Number of bytes of all components together.
    pub component_bytes: u64,
    /// Usage by day, newest first. Days without usage are left out.
    pub days: Vec<DayUsage>,
}

/// The usage of a tenant in a day.
#[derive(Serialize, ToSchema)]
#[schema(as = UsageOfDay)]
pub(super) struct DayUsage {
    /// The day in UTC.
    #[schema(example = "2026-11-23")]
    pub day: String,
    pub model_tokens: u64,
    pub guest_cpu_seconds: f64,
}

/// A key, without the key itself.
#[derive(Serialize, ToSchema)]
pub(super) struct Key {
    pub id: i64,
    /// The first characters of the key.
    pub prefix: String,
    pub name: String,
    /// The rights of the key: `operator`, `author`, `caller` or `viewer`.
    #[schema(value_type = String)]
    pub rights: catalog::Rights,
    /// The name of the key's tenant. An operator's key has none.
    pub tenant: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Time,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Time>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub revoked_at: Option<Time>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last_used_at: Option<Time>,
}

impl Key {
    /// Creates the JSON form of a key. `tenant` is the name of its tenant.
    pub(super) fn new(key: catalog::KeyInfo, tenant: Option<String>) -> Self {
        Self {
            id: key.id.0,
            prefix: key.prefix,
            name: key.name,
            rights: key.rights,
            tenant,
            created_at: key.created_at,
            expires_at: key.expires_at,
            revoked_at: key.revoked_at,
            last_used_at: key.last_used_at,
        }
    }
}

/// A key to create.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewKey {
    /// A name by which people recognize the key.
    #[serde(default)]
    pub name: String,
    /// The rights of the key: `operator`, `author`, `caller` or `viewer`.
    #[schema(value_type = String)]
    pub rights: catalog::Rights,
    /// The name of the key's tenant. An operator's key has none.
    pub tenant: Option<String>,
    /// The time after which the key is invalid. Without it, the key does not expire.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Time>,
}

/// A created key.
#[derive(Serialize, ToSchema)]
pub(super) struct CreatedKey {
    /// The key itself. No other response contains it.
    pub key: String,
    #[serde(flatten)]
    pub info: Key,
}

/// A plugin.
#[derive(Serialize, ToSchema)]
pub(super) struct Plugin {
    pub name: String,
    /// The active version, which new rollouts use.
    pub active: Option<u32>,
    /// The newest version.
    pub newest: Option<u32>,
    /// Whether it is the default plugin, which answers at the tenant's root.
    pub default: bool,
    #[schema(value_type = QuotasSchema)]
    pub quotas: Quotas,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Time,
}

impl From<catalog::PluginInfo> for Plugin {
    fn from(plugin: catalog::PluginInfo) -> Self {
        let catalog::PluginInfo { id: _, tenant: _, name, quotas, active, newest, default, created_at } =
            plugin;
        Self { name: name.into(), active, newest, default, quotas, created_at }
    }
}

/// Changes of a plugin.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PluginChange {
    #[serde(default)]
    #[schema(value_type = QuotasChangeSchema)]
    pub quotas: QuotasChange,
    /// Whether it is the default plugin, which answers at the tenant's root. It replaces the previous one.
    pub default: Option<bool>,
}

/// Request to activate a version.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Activate {
    pub version: u32,
}

/// Whether an activation waits.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Waiting {
    /// Whether to wait until all workers that share the catalog have loaded the version; the default is true. With false it
    /// becomes active at once, even if a worker does not answer or cannot load it.
    wait: Option<bool>,
}

impl Waiting {
    pub(super) fn waits(&self) -> bool {
        self.wait.unwrap_or(true)
    }
}

/// An activation of a version.
#[derive(Serialize, ToSchema)]
pub(super) struct Activation {
    /// The active version, which new rollouts use.
    pub version: u32,
    /// The version that was active before.
    pub before: Option<u32>,
    #[schema(value_type = String, format = DateTime)]
    pub at: Time,
}

impl From<catalog::Activation> for Activation {
    fn from(activation: catalog::Activation) -> Self {
        Self { version: activation.version, before: activation.before, at: activation.at }
    }
}

/// The origin of a component that came from a registry.
#[derive(ToSchema)]
#[schema(as = Origin)]
#[expect(dead_code, reason = "describes `rollout_catalog::Origin`")]
pub(super) struct OriginSchema {
    /// The reference with the digest of the component's manifest.
    reference: String,
    /// The ids of the tenant's trusted keys that had signed the manifest when the component was deployed.
    signers: Vec<String>,
}

/// The evidence of where a component comes from and who signed it.
#[derive(ToSchema)]
#[schema(as = Evidence)]
#[expect(dead_code, reason = "describes `rollout_registry::evidence::Evidence`")]
pub(super) struct EvidenceSchema {
    /// The reference `oci://HOST/REPOSITORY@sha256:DIGEST`.
    reference: String,
    /// The manifest with that digest, verbatim.
    manifest: String,
    /// The signatures of the manifest, as cosign makes them with keys.
    signatures: Vec<SignedPayloadSchema>,
}

/// A payload and its signature.
#[derive(ToSchema)]
#[schema(as = SignedPayload)]
#[expect(dead_code, reason = "describes `rollout_registry::signature::SignedPayload`")]
pub(super) struct SignedPayloadSchema {
    /// The payload, verbatim.
    payload: String,
    /// The signature in base64.
    signature: String,
}

/// A deployment: one version of a plugin.
#[derive(Serialize, ToSchema)]
pub(super) struct Deployment {
    pub version: u32,
    /// The SHA-256 of the component with the workflow.
    pub component: String,
    /// The SHA-256 of the component with the grader, if it is another one.
    pub grader: Option<String>,
    /// The origin of the component, if it came from a registry.
    #[schema(value_type = Option<OriginSchema>)]
    pub component_origin: Option<catalog::Origin>,
    /// The origin of the grader's component, if it is another one and came from a registry.
    #[schema(value_type = Option<OriginSchema>)]
    pub grader_origin: Option<catalog::Origin>,
    /// Whether it passed its checks and so may be activated.
    pub passed: bool,
    pub active: bool,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Time,
    /// The first characters of the key with which it was pushed.
    pub created_by: String,
}

impl From<catalog::DeploymentInfo> for Deployment {
    fn from(info: catalog::DeploymentInfo) -> Self {
        Self {
            version: info.version,
            component: info.component.to_string(),
            grader: info.grader.map(|grader| grader.to_string()),
            component_origin: info.component_origin,
            grader_origin: info.grader_origin,
            passed: info.passed,
            active: info.active,
            created_at: info.created_at,
            created_by: info.created_by,
        }
    }
}

/// A deployment with its configuration and the report of its checks.
#[derive(Serialize, ToSchema)]
pub(super) struct WholeDeployment {
    #[serde(flatten)]
    pub deployment: Deployment,
    /// The configuration as it was written.
    pub config: Option<String>,
    /// The report of its checks, as `validate --json` prints it.
    #[schema(value_type = Object)]
    pub report: Box<RawValue>,
}

/// A deployment to check and add. Its components must have been uploaded.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewDeployment {
    /// The SHA-256 of the component with the workflow.
    pub component: String,
    /// The SHA-256 of the component with the grader, if it is another one.
    pub grader: Option<String>,
    /// The evidence for the component. Required if the tenant has trusted keys.
    #[schema(value_type = Option<EvidenceSchema>)]
    pub component_evidence: Option<Evidence>,
    /// The evidence for the grader's component, if it is another one.
    #[schema(value_type = Option<EvidenceSchema>)]
    pub grader_evidence: Option<Evidence>,
    /// The configuration in TOML: the sections `[plugin]`, `[grader]`, `[limits]`, `[model]` and `[judge]` of a file for
    /// `serve --config`.
    pub config: Option<String>,
    /// Whether to activate it if it passes its checks.
    #[serde(default)]
    pub activate: bool,
}

/// A deployment that was checked and added.
#[derive(Serialize, ToSchema)]
pub(super) struct PushedDeployment {
    #[serde(flatten)]
    pub deployment: Deployment,
    /// The report of its checks, as `validate --json` prints it.
    #[schema(value_type = Object)]
    pub report: Box<RawValue>,
    /// The reason why it passed its checks but could not be activated as requested.
    pub activation_error: Option<String>,
}

/// A component that the tenant has uploaded.
#[derive(Serialize, ToSchema)]
pub(super) struct Component {
    /// The component's SHA-256.
    pub digest: String,
    pub bytes: u64,
}

impl From<catalog::Component> for Component {
    fn from(component: catalog::Component) -> Self {
        Self { digest: component.digest.to_string(), bytes: component.bytes }
    }
}

/// A secret to store.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewSecret {
    /// The secret, which is encrypted and never returned.
    pub value: String,
}

/// The secrets of a tenant.
#[derive(Serialize, ToSchema)]
pub(super) struct Secrets {
    /// The names of the secrets.
    pub items: Vec<String>,
}
