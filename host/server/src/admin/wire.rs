//! What goes over the wire, as JSON and as its description.

use std::borrow::Cow;

use rollout_catalog::{self as catalog, Time};
use rollout_core::wire::quota::{Quota, Quotas, QuotasChange};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::openapi::path::Operation;
use utoipa::openapi::schema::{AdditionalProperties, SchemaType};
use utoipa::openapi::{ContentBuilder, ObjectBuilder, OpenApi, Ref, RefOr, ResponseBuilder, Schema, Type};
use utoipa::{IntoParams, PartialSchema, ToSchema};

/// What a list has at most where nothing is said.
const LIMIT_DEFAULT: u32 = 100;

/// An error.
#[derive(Serialize, ToSchema)]
pub(super) struct ErrorBody {
    pub error: ErrorDetail,
}

/// What went wrong.
#[derive(Serialize, ToSchema)]
pub(super) struct ErrorDetail {
    /// One word for each status.
    #[schema(example = "not-found")]
    pub kind: String,
    /// What was wrong, and what to do about it.
    pub message: String,
}

/// Says of every operation how it answers what it refuses.
pub(super) fn describe_refusals(api: &mut OpenApi) {
    for item in api.paths.paths.values_mut() {
        let operations: [&mut Option<Operation>; 5] =
            [&mut item.get, &mut item.put, &mut item.post, &mut item.patch, &mut item.delete];
        for operation in operations.into_iter().flatten() {
            let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("ErrorBody"))).build();
            let refused = ResponseBuilder::new()
                .description("Refused: the error says why.")
                .content("application/json", content);
            operation.responses.responses.insert("default".to_owned(), refused.build().into());
        }
    }
}

/// Whom a request is about.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "described; `extract` reads it")]
pub(super) struct OfTenant {
    /// The tenant. An operator has to say whom; every other key has one.
    tenant: Option<String>,
}

/// Which part of a list.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Page {
    /// Those behind this one: the `next` of the part before.
    pub after: Option<String>,
    /// How many at most, up to 1000.
    limit: Option<u32>,
}

impl Page {
    /// How many there are to be.
    pub(super) fn limit(&self) -> u32 {
        self.limit.unwrap_or(LIMIT_DEFAULT).clamp(1, catalog::LIST_MAX)
    }
}

/// Part of a list.
#[derive(Serialize, ToSchema)]
pub(super) struct List<T> {
    /// The elements.
    pub items: Vec<T>,
    /// What to give as `after` for the rest, where there may be one.
    pub next: Option<String>,
}

impl<T> List<T> {
    /// A part that was asked for by its limit.
    pub(super) fn of(items: Vec<T>, page: &Page, name: impl Fn(&T) -> String) -> Self {
        let is_full = items.len() as u64 >= u64::from(page.limit());
        let next = items.last().filter(|_| is_full).map(name);
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

/// Where a tenant's requests may go. Private addresses are closed but for those that are listed.
#[derive(ToSchema)]
#[schema(as = NetworkRules)]
#[expect(dead_code, reason = "describes `rollout_catalog::NetworkRules`")]
pub(super) struct NetworkRulesSchema {
    /// Hosts (`model.internal`, `*.internal`), addresses and networks (`10.1.0.0/16`), each perhaps with a port.
    allow: Vec<String>,
    /// Whether public addresses are open without being listed: `open` or `listed`.
    #[schema(example = "open")]
    public: String,
}

/// A tenant.
#[derive(Serialize, ToSchema)]
pub(super) struct Tenant {
    /// Never that of another tenant.
    pub id: i64,
    pub name: String,
    #[schema(value_type = QuotasSchema)]
    pub quotas: Quotas,
    #[schema(value_type = NetworkRulesSchema)]
    pub network: catalog::NetworkRules,
    /// The plugin that answers at the root.
    pub default_plugin: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Time,
}

impl From<catalog::Tenant> for Tenant {
    fn from(tenant: catalog::Tenant) -> Self {
        let catalog::Tenant { id, name, quotas, network, default_plugin, created_at } = tenant;
        let (name, default_plugin) = (name.into(), default_plugin.map(Into::into));
        Self { id: id.0, name, quotas, network, default_plugin, created_at }
    }
}

/// A tenant to be made.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewTenant {
    /// 1 to 64 lower-case letters, digits, `-` and `_`, a letter or digit first.
    pub name: String,
    #[serde(default)]
    #[schema(value_type = Option<QuotasSchema>)]
    pub quotas: Quotas,
    #[serde(default)]
    #[schema(value_type = Option<NetworkRulesSchema>)]
    pub network: catalog::NetworkRules,
}

/// What of a tenant changes.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TenantChange {
    #[serde(default)]
    #[schema(value_type = QuotasChangeSchema)]
    pub quotas: QuotasChange,
    #[serde(default)]
    pub network: NetworkChange,
}

/// Network rules that change; what is left out stays.
#[derive(Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct NetworkChange {
    /// Takes the place of the list there is.
    pub allow: Option<Vec<String>>,
    /// `open` or `listed`.
    #[schema(value_type = Option<String>)]
    public: Option<catalog::Public>,
}

impl NetworkChange {
    pub(super) fn apply(self, rules: &mut catalog::NetworkRules) {
        rules.allow = self.allow.unwrap_or(std::mem::take(&mut rules.allow));
        rules.public = self.public.unwrap_or(rules.public);
    }
}

/// What a tenant has, and used.
#[derive(Serialize, ToSchema)]
pub(super) struct TenantUsage {
    /// Bytes of components together.
    pub component_bytes: u64,
    /// The newest day first; days without use are left out.
    pub days: Vec<UsageOfDay>,
}

/// What a tenant used in a day, as UTC has them.
#[derive(Serialize, ToSchema)]
pub(super) struct UsageOfDay {
    #[schema(example = "2026-11-23")]
    pub day: String,
    pub model_tokens: u64,
    pub guest_cpu_seconds: f64,
}

/// What is shown of a key.
#[derive(Serialize, ToSchema)]
pub(super) struct Key {
    pub id: i64,
    /// Its first characters.
    pub prefix: String,
    pub name: String,
    /// `operator`, `author`, `caller` or `viewer`.
    #[schema(value_type = String)]
    pub rights: catalog::Rights,
    /// The tenant that it belongs to; an operator's belongs to none.
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

/// A key to be made.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewKey {
    /// What people call it.
    #[serde(default)]
    pub name: String,
    /// `operator`, `author`, `caller` or `viewer`.
    #[schema(value_type = String)]
    pub rights: catalog::Rights,
    /// The tenant that it belongs to; left out for an operator's.
    pub tenant: Option<String>,
    /// When it ends, if ever.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Time>,
}

/// A key that was made.
#[derive(Serialize, ToSchema)]
pub(super) struct CreatedKey {
    /// The key itself. It is shown here and nowhere else.
    pub key: String,
    #[serde(flatten)]
    pub info: Key,
}

/// A plugin.
#[derive(Serialize, ToSchema)]
pub(super) struct Plugin {
    pub name: String,
    /// The version that new rollouts get.
    pub active: Option<u32>,
    /// The newest version.
    pub newest: Option<u32>,
    /// Whether it answers at the tenant's root.
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

/// What of a plugin changes.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PluginChange {
    #[serde(default)]
    #[schema(value_type = QuotasChangeSchema)]
    pub quotas: QuotasChange,
    /// Whether it answers at the tenant's root. Where another one did it does no more.
    pub default: Option<bool>,
}

/// A version to activate.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Activate {
    pub version: u32,
}

/// A version was activated.
#[derive(Serialize, ToSchema)]
pub(super) struct Activation {
    /// What new rollouts get now.
    pub version: u32,
    /// What they got before.
    pub before: Option<u32>,
    #[schema(value_type = String, format = DateTime)]
    pub at: Time,
}

impl From<catalog::Activation> for Activation {
    fn from(done: catalog::Activation) -> Self {
        Self { version: done.version, before: done.before, at: done.at }
    }
}

/// A deployment: one version of a plugin.
#[derive(Serialize, ToSchema)]
pub(super) struct Deployment {
    pub version: u32,
    /// The SHA-256 of the component with the workflow.
    pub component: String,
    /// That of the component with the grader, where it is another one.
    pub grader: Option<String>,
    /// Whether it passed its checks, and so may be active.
    pub passed: bool,
    pub active: bool,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Time,
    /// The beginning of the key that it was pushed with.
    pub created_by: String,
}

impl From<catalog::DeploymentInfo> for Deployment {
    fn from(info: catalog::DeploymentInfo) -> Self {
        Self {
            version: info.version,
            component: info.component.to_string(),
            grader: info.grader.map(|grader| grader.to_string()),
            passed: info.passed,
            active: info.active,
            created_at: info.created_at,
            created_by: info.created_by,
        }
    }
}

/// A deployment with its texts.
#[derive(Serialize, ToSchema)]
pub(super) struct WholeDeployment {
    #[serde(flatten)]
    pub deployment: Deployment,
    /// Its configuration, as it was written.
    pub config: Option<String>,
    /// What its checks found, as `validate --json` says it.
    #[schema(value_type = Object)]
    pub report: Box<RawValue>,
}

/// A deployment to be checked, of components that were uploaded.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewDeployment {
    /// The SHA-256 of the component with the workflow.
    pub component: String,
    /// That of the component with the grader, where it is another one.
    pub grader: Option<String>,
    /// Its configuration: `[plugin]`, `[grader]`, `[limits]`, `[model]` and `[judge]` of a TOML file as `serve --config` reads it.
    pub config: Option<String>,
    /// Whether it is to be active if it passes.
    #[serde(default)]
    pub activate: bool,
}

/// A deployment that was checked.
#[derive(Serialize, ToSchema)]
pub(super) struct PushedDeployment {
    #[serde(flatten)]
    pub deployment: Deployment,
    /// What its checks found, as `validate --json` says it.
    #[schema(value_type = Object)]
    pub report: Box<RawValue>,
    /// Why it is not active, where it was to be and passed.
    pub activation_error: Option<String>,
}

/// A component that the tenant has.
#[derive(Serialize, ToSchema)]
pub(super) struct Component {
    /// Its SHA-256.
    pub digest: String,
    pub bytes: u64,
}

impl From<catalog::Component> for Component {
    fn from(component: catalog::Component) -> Self {
        Self { digest: component.digest.to_string(), bytes: component.bytes }
    }
}

/// A secret to be kept.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewSecret {
    /// It is sealed, and never given back.
    pub value: String,
}

/// The names of secrets.
#[derive(Serialize, ToSchema)]
pub(super) struct Secrets {
    pub items: Vec<String>,
}
