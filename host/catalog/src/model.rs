//! What the catalog knows, as data.

use std::fmt;
use std::num::NonZeroU16;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::components::Digest;
use crate::name::Name;

/// A moment, to the second.
pub type Time = DateTime<Utc>;

/// Names a tenant for as long as there is a catalog: one that was deleted does not come back with another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TenantId(pub i64);

impl fmt::Display for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a tenant, or a plugin within it, may have. What is not given is unlimited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[expect(missing_docs, reason = "each is named as the operator writes it, with its unit")]
pub struct Quotas {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queued: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_second: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_tokens_per_day: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest_cpu_seconds_per_day: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stored_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plugins: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub component_bytes: Option<u64>,
    /// The share of slots, against those of others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<NonZeroU16>,
}

impl Quotas {
    /// The share of slots; 1 unless it was given.
    pub fn weight(&self) -> u32 {
        self.weight.map_or(1, |weight| u32::from(weight.get()))
    }
}

/// Where a tenant's requests may go besides public addresses. Whoever writes it checks the texts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct NetworkRules {
    /// Hosts and networks.
    pub allow: Vec<String>,
    /// Whether public addresses are open without being listed.
    pub public: Public,
}

/// Whether public addresses are open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Public {
    /// Each of them.
    #[default]
    Open,
    /// Only those that are listed.
    Listed,
}

/// A tenant: whose plugins, keys, quotas, rollouts and files these are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Tenant {
    /// What names it in files.
    pub id: TenantId,
    /// What people call it.
    pub name: Name,
    /// What it may have.
    pub quotas: Quotas,
    /// Where its requests may go.
    pub network: NetworkRules,
    /// The plugin that answers at the root.
    pub default_plugin: Option<Name>,
    /// Since when it is there.
    pub created_at: Time,
}

/// What of a tenant can be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantSettings {
    /// What it may have.
    pub quotas: Quotas,
    /// Where its requests may go.
    pub network: NetworkRules,
}

/// A plugin: a tenant's name for a sequence of deployments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PluginInfo {
    /// Never that of another plugin, not even of one by the same name later.
    pub id: i64,
    /// Whose it is.
    #[serde(skip)]
    pub tenant: TenantId,
    /// Its name within the tenant.
    pub name: Name,
    /// What it may have of what the tenant has.
    pub quotas: Quotas,
    /// The version that new rollouts get.
    pub active: Option<u32>,
    /// The newest version there is, if all have not been removed.
    pub newest: Option<u32>,
    /// Whether it answers at the tenant's root.
    pub default: bool,
    /// Since when it is there.
    pub created_at: Time,
}

/// A deployment: one version of a plugin, which never changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeploymentInfo {
    /// Never that of another deployment.
    pub id: i64,
    /// The plugin.
    pub plugin: Name,
    /// Its number within the plugin, from 1.
    pub version: u32,
    /// The component with the workflow.
    pub component: Digest,
    /// The component with the grader, where it is another one.
    pub grader: Option<Digest>,
    /// Whether it passed its checks, and so may be active.
    pub passed: bool,
    /// Whether it is active.
    pub active: bool,
    /// Since when it is there.
    pub created_at: Time,
    /// The beginning of the key that it was pushed with.
    pub created_by: String,
}

/// A deployment with its texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deployment {
    /// All but the texts.
    pub info: DeploymentInfo,
    /// Its configuration, as it was written.
    pub config: Option<String>,
    /// What its checks found, as JSON.
    pub report: String,
}

/// A deployment that was checked.
#[derive(Clone, Debug)]
pub struct NewDeployment {
    /// The component with the workflow, which the tenant has uploaded.
    pub component: Digest,
    /// The component with the grader, where it is another one.
    pub grader: Option<Digest>,
    /// Its configuration, as it was written.
    pub config: Option<String>,
    /// Whether it passed its checks.
    pub passed: bool,
    /// What its checks found, as JSON.
    pub report: String,
    /// The beginning of the key that it was pushed with.
    pub created_by: String,
}

/// A deployment was made active.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Activation {
    /// Never that of another activation.
    pub id: i64,
    /// The plugin's id.
    pub plugin: i64,
    /// What is active now.
    pub version: u32,
    /// What was active until then.
    pub before: Option<u32>,
    /// When.
    pub at: Time,
    /// The beginning of the key that asked for it.
    pub by: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_are_written_as_they_are_read_and_refuse_what_they_do_not_know() {
        let text = r#"{"running":8,"model-tokens-per-day":5000000000,"weight":3}"#;
        let quotas: Quotas = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&quotas).unwrap(), text);
        assert_eq!((quotas.weight(), Quotas::default().weight()), (3, 1));
        for (wrong, said) in [
            (r#"{"runing":8}"#, "unknown field `runing`"),
            (r#"{"weight":0}"#, "nonzero"),
            (r#"{"running":-1}"#, "-1"),
        ] {
            let error = serde_json::from_str::<Quotas>(wrong).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
