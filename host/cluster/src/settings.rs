//! Settings of a process that is part of a cluster.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

/// Settings of the connection and its limits. They are the same in all processes of a cluster, except for paths.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct ClusterSettings {
    /// Addresses of NATS servers: `nats://HOST:PORT` or `tls://HOST:PORT`.
    pub urls: Vec<String>,
    /// Credentials file of a NATS account: a JWT and the seed of its key.
    pub credentials: Option<PathBuf>,
    /// Name of the user, if there is no credentials file.
    pub user: Option<String>,
    /// File with the user's password.
    pub password_file: Option<PathBuf>,
    /// Certificates of the authorities that the servers' certificates are checked against, in PEM.
    pub ca_certificates: Option<PathBuf>,
    /// Certificate of this client, in PEM.
    pub client_certificate: Option<PathBuf>,
    /// Key of that certificate, in PEM.
    pub client_key: Option<PathBuf>,
    /// Prefix of subjects, and of the names of stream and bucket.
    pub prefix: String,
    /// Number of servers that store each record.
    pub replicas: usize,
    /// Age in seconds at which records are dropped.
    pub log_age_secs: u64,
    /// Maximum size of all logs together, in bytes. Appending waits when it is reached.
    pub log_bytes_max: u64,
    /// Number of changes in the log of a shared catalog above which a worker stores a snapshot and removes them.
    pub catalog_changes_max: u64,
    /// Time in which all workers have to load a version before it becomes active, in seconds.
    pub activation_secs: f64,
    /// Time between two heartbeats of a worker, in seconds.
    pub heartbeat_secs: f64,
    /// Time after a worker's last heartbeat after which its log may be claimed, in seconds.
    pub lease_secs: f64,
    /// The operator's statement that every NATS server has `sync_interval: always`, which a client cannot check.
    pub servers_sync_always: bool,
    /// Accepts fewer than three replicas without `sync_interval: always`, so that acknowledged records may be lost.
    pub accept_weak_durability: bool,
}

impl Default for ClusterSettings {
    fn default() -> Self {
        Self {
            urls: Vec::new(),
            credentials: None,
            user: None,
            password_file: None,
            ca_certificates: None,
            client_certificate: None,
            client_key: None,
            prefix: "rollout".to_owned(),
            replicas: 3,
            log_age_secs: 24 * 3600,
            log_bytes_max: 64 << 30,
            catalog_changes_max: 10_000,
            activation_secs: 300.0,
            heartbeat_secs: 5.0,
            lease_secs: 30.0,
            servers_sync_always: false,
            accept_weak_durability: false,
        }
    }
}

/// Error of a setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cluster.nats.{name}: {problem}")]
pub struct WrongSetting {
    /// Name of the setting.
    pub name: &'static str,
    /// Description of the problem and of its solution.
    pub problem: String,
}

/// Shortest age of records. The server checks ages every few seconds only.
const LOG_AGE_SECS_MIN: u64 = 10;

impl ClusterSettings {
    /// Checks the values.
    pub fn check(&self) -> Result<(), WrongSetting> {
        let wrong = |name, problem: &str| Err(WrongSetting { name, problem: problem.to_owned() });
        if self.urls.is_empty() {
            return wrong("urls", "name at least one server, such as nats://nats.example:4222");
        }
        // Addresses are logged, and the client does not use a password in them.
        if self.urls.iter().any(|url| url.contains('@')) {
            return wrong("urls", "an address has no user and no password; set user and password-file");
        }
        if self.user.is_some() != self.password_file.is_some() {
            return wrong("user", "needs password-file, and password-file needs user");
        }
        if self.user.is_some() && self.credentials.is_some() {
            return wrong("user", "set either credentials or user and password-file");
        }
        if !is_token(&self.prefix) {
            return wrong("prefix", "use 1 to 64 letters, digits, '-' and '_'");
        }
        if !matches!(self.replicas, 1 | 3 | 5) {
            return wrong("replicas", "must be 1, 3 or 5");
        }
        if self.log_age_secs < LOG_AGE_SECS_MIN {
            return wrong("log-age-secs", "must be at least 10");
        }
        if self.log_bytes_max < 1 << 20 || i64::try_from(self.log_bytes_max).is_err() {
            return wrong("log-bytes-max", "must be at least 1048576");
        }
        if self.catalog_changes_max == 0 {
            return wrong("catalog-changes-max", "must be at least 1");
        }
        if !(1.0..=3600.0).contains(&self.activation_secs) {
            return wrong("activation-secs", "must be from 1 to 3600");
        }
        if !(0.05..=3600.0).contains(&self.heartbeat_secs) {
            return wrong("heartbeat-secs", "must be from 0.05 to 3600");
        }
        // With fewer, one lost heartbeat would be a takeover.
        if !(3.0 * self.heartbeat_secs..=86_400.0).contains(&self.lease_secs) {
            return wrong("lease-secs", "must be at least three times heartbeat-secs");
        }
        if self.client_certificate.is_some() != self.client_key.is_some() {
            return wrong("client-certificate", "needs client-key, and client-key needs client-certificate");
        }
        Ok(())
    }

    /// Returns the age at which records are dropped.
    pub fn log_age(&self) -> Duration {
        Duration::from_secs(self.log_age_secs)
    }

    pub(crate) fn activation(&self) -> Duration {
        Duration::from_secs_f64(self.activation_secs)
    }

    pub(crate) fn heartbeat(&self) -> Duration {
        Duration::from_secs_f64(self.heartbeat_secs)
    }

    /// Returns the time without a heartbeat after which a log may be claimed.
    pub fn lease(&self) -> Duration {
        Duration::from_secs_f64(self.lease_secs)
    }

    pub(crate) fn stream(&self) -> String {
        format!("{}-log", self.prefix)
    }

    pub(crate) fn bucket(&self) -> String {
        format!("{}-workers", self.prefix)
    }

    pub(crate) fn quotas_bucket(&self) -> String {
        format!("{}-quotas", self.prefix)
    }

    pub(crate) fn usage_bucket(&self) -> String {
        format!("{}-usage", self.prefix)
    }

    pub(crate) fn activations_bucket(&self) -> String {
        format!("{}-activations", self.prefix)
    }

    /// Returns the subject of a log.
    pub(crate) fn subject(&self, log: &str) -> String {
        format!("{}.log.{log}", self.prefix)
    }
}

/// Returns whether a text may be a part of subjects, keys and names.
pub(crate) fn is_token(text: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    (1..=64).contains(&text.len()) && text.chars().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_of_a_file_fills_the_settings_and_unknown_names_are_errors() {
        let read = |text: &str| serde_json::from_str::<ClusterSettings>(text);
        let settings =
            read(r#"{"urls": ["nats://a:1"], "log-age-secs": 60, "servers-sync-always": true}"#).unwrap();
        assert_eq!((settings.log_age_secs, settings.replicas, settings.servers_sync_always), (60, 3, true));
        assert!(read(r#"{"urls": [], "log-age": 60}"#).unwrap_err().to_string().contains("log-age"));
    }

    #[test]
    fn wrong_settings_are_named() {
        let good = || ClusterSettings { urls: vec!["nats://a:1".to_owned()], ..ClusterSettings::default() };
        let check = |change: fn(&mut ClusterSettings), name: &str| {
            let mut settings = good();
            change(&mut settings);
            assert_eq!(settings.check().unwrap_err().name, name);
        };
        good().check().unwrap();
        check(|settings| settings.urls.clear(), "urls");
        check(|settings| settings.urls.push("nats://user:abc@b:1".to_owned()), "urls");
        check(|settings| settings.user = Some("host".to_owned()), "user");
        check(|settings| settings.prefix = "a.b".to_owned(), "prefix");
        check(|settings| settings.replicas = 2, "replicas");
        check(|settings| settings.log_age_secs = 9, "log-age-secs");
        check(|settings| settings.log_bytes_max = u64::MAX, "log-bytes-max");
        check(|settings| settings.catalog_changes_max = 0, "catalog-changes-max");
        check(|settings| settings.activation_secs = 0.5, "activation-secs");
        check(|settings| settings.heartbeat_secs = f64::NAN, "heartbeat-secs");
        check(|settings| settings.lease_secs = 14.0, "lease-secs");
        check(|settings| settings.client_key = Some("key.pem".into()), "client-certificate");
    }
}
