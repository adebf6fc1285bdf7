//! Data types of the catalog.

use std::fmt;

use chrono::{DateTime, Utc};
use rollout_wire::quota::Quotas;
use serde::{Deserialize, Serialize};

use crate::name::Name;
use rollout_wire::digest::Digest;

/// A time, truncated to seconds.
pub type Time = DateTime<Utc>;

/// Id of a key. Ids are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KeyId(pub i64);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Id of a tenant. Ids are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TenantId(pub i64);

impl fmt::Display for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Destinations that a tenant's requests may reach. The caller validates the texts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct NetworkRules {
    /// Hosts and networks.
    pub allow: Vec<String>,
    /// Access to public addresses.
    pub public: Public,
}

/// Access to public addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Public {
    /// All public addresses are reachable.
    #[default]
    Open,
    /// Only listed addresses are reachable.
    Listed,
}

/// A public key of a signer whose components a tenant may deploy. The caller validates it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrustedKey {
    /// Short id, which tells keys apart.
    pub id: String,
    /// The key in PEM.
    pub pem: String,
}

/// Origin of a component that came from a registry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// Reference with the digest of the component's manifest.
    pub reference: String,
    /// Ids of the tenant's trusted keys that had signed the manifest when the component was deployed.
    pub signers: Vec<String>,
}

/// A tenant: the owner of plugins, keys, quotas, rollouts and files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TenantInfo {
    /// Id, which names the tenant's files.
    pub id: TenantId,
    /// Name for people and URLs.
    pub name: Name,
    /// Quotas of the tenant.
    pub quotas: Quotas,
    /// Destinations that the tenant's requests may reach.
    pub network: NetworkRules,
    /// Keys of trusted signers. If there are any, only components that one of them signed can be deployed.
    pub trusted_keys: Vec<TrustedKey>,
    /// The plugin that answers at the root URL.
    pub default_plugin: Option<Name>,
    /// Time of creation.
    pub created_at: Time,
}

/// The part of a tenant that can be changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantSettings {
    /// Quotas of the tenant.
    pub quotas: Quotas,
    /// Destinations that the tenant's requests may reach.
    pub network: NetworkRules,
    /// Keys of trusted signers.
    pub trusted_keys: Vec<TrustedKey>,
}

/// A plugin: a name within a tenant for a sequence of deployments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PluginInfo {
    /// Id of the plugin. Ids are never reused, not even by a plugin with the same name.
    pub id: i64,
    /// The tenant that owns the plugin.
    #[serde(skip)]
    pub tenant: TenantId,
    /// Name within the tenant.
    pub name: Name,
    /// Quotas within those of the tenant.
    pub quotas: Quotas,
    /// Version that runs new rollouts.
    pub active: Option<u32>,
    /// Newest version, unless all were removed.
    pub newest: Option<u32>,
    /// Whether the plugin answers at the tenant's root URL.
    pub default: bool,
    /// Time of creation.
    pub created_at: Time,
}

/// A deployment: one immutable version of a plugin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeploymentInfo {
    /// Id of the deployment. Ids are never reused.
    pub id: i64,
    /// The plugin's name.
    pub plugin: Name,
    /// Version number within the plugin, from 1.
    pub version: u32,
    /// The component with the workflow.
    pub component: Digest,
    /// The component with the grader, if it is a separate one.
    pub grader: Option<Digest>,
    /// Origin of the component, if it came from a registry.
    pub component_origin: Option<Origin>,
    /// Origin of the grader's component, if it is a separate one and came from a registry.
    pub grader_origin: Option<Origin>,
    /// Whether the deployment passed its checks, which activation requires.
    pub passed: bool,
    /// Whether this is the active version.
    pub active: bool,
    /// Time of creation.
    pub created_at: Time,
    /// First characters of the key that pushed the deployment.
    pub created_by: String,
}

/// A deployment with its configuration and its report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deployment {
    /// Summary of the deployment.
    pub info: DeploymentInfo,
    /// Configuration file, verbatim.
    pub config: Option<String>,
    /// Report of the checks, as JSON.
    pub report: String,
}

/// A checked deployment to be added.
#[derive(Clone, Debug)]
pub struct NewDeployment {
    /// The component with the workflow, uploaded by the tenant.
    pub component: Digest,
    /// The component with the grader, if it is a separate one.
    pub grader: Option<Digest>,
    /// Origin of the component, if it came from a registry.
    pub component_origin: Option<Origin>,
    /// Origin of the grader's component, if it is a separate one and came from a registry.
    pub grader_origin: Option<Origin>,
    /// Configuration file, verbatim.
    pub config: Option<String>,
    /// Whether the deployment passed its checks.
    pub passed: bool,
    /// Report of the checks, as JSON.
    pub report: String,
    /// First characters of the key that pushes the deployment.
    pub created_by: String,
}

/// An activation of a deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Activation {
    /// Id of the activation. Ids are never reused.
    pub id: i64,
    /// Id of the plugin.
    pub plugin: i64,
    /// Version that became active.
    pub version: u32,
    /// Version that was active before.
    pub before: Option<u32>,
    /// Time of the activation.
    pub at: Time,
    /// First characters of the key that requested the activation.
    pub by: String,
}
