//! Results of checks, and the check of durability, which needs only the settings.

use crate::settings::ClusterSettings;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// There is nothing to do.
    Good,
    /// The cluster works, with a disadvantage.
    Warning,
    /// The server refuses to start.
    Failure,
}

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Name of the check.
    pub check: &'static str,
    /// Severity.
    pub severity: Severity,
    /// Description.
    pub finding: String,
    /// Advice, if there is something to do.
    pub advice: Option<String>,
}

impl Finding {
    pub(crate) fn new(check: &'static str, severity: Severity, finding: impl Into<String>) -> Self {
        Self { check, severity, finding: finding.into(), advice: None }
    }

    pub(crate) fn with(self, advice: impl Into<String>) -> Self {
        Self { advice: Some(advice.into()), ..self }
    }
}

/// Checks by the settings alone whether acknowledged records survive. A client cannot ask a server for its
/// `sync_interval`, so the operator states it.
pub(crate) fn durability(settings: &ClusterSettings) -> Finding {
    const CHECK: &str = "nats durability";
    let ClusterSettings { replicas, servers_sync_always, accept_weak_durability, .. } = *settings;
    if servers_sync_always {
        let finding =
            format!("{replicas} replicas, and every server syncs each write, as the configuration states");
        return Finding::new(CHECK, Severity::Good, finding);
    }
    if replicas >= 3 {
        let finding =
            format!("{replicas} replicas; servers sync after they acknowledge, by default every 2 minutes");
        let advice = "run them in failure domains of their own: a power failure of most of them at once loses \
                      acknowledged records";
        return Finding::new(CHECK, Severity::Good, finding).with(advice);
    }
    let finding = format!(
        "{replicas} replica without `sync_interval: always`: a power failure loses acknowledged records"
    );
    if accept_weak_durability {
        return Finding::new(CHECK, Severity::Warning, finding)
            .with("accepted by accept-weak-durability = true");
    }
    Finding::new(CHECK, Severity::Failure, finding).with(
        "set replicas = 3, or set `sync_interval: always` in every server's configuration and servers-sync-always = \
         true here, or accept it with accept-weak-durability = true",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weak_durability_is_refused_unless_it_is_accepted() {
        let settings = |replicas, servers_sync_always, accept_weak_durability| ClusterSettings {
            replicas,
            servers_sync_always,
            accept_weak_durability,
            ..ClusterSettings::default()
        };
        let severity = |settings: ClusterSettings| durability(&settings).severity;
        assert_eq!(severity(settings(3, false, false)), Severity::Good);
        assert_eq!(severity(settings(1, true, false)), Severity::Good);
        assert_eq!(severity(settings(1, false, true)), Severity::Warning);
        assert_eq!(severity(settings(1, false, false)), Severity::Failure);
    }
}
