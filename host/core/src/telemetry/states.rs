//! Gauges of a worker's state, which are read when metrics are requested.

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntGauge, Result};

/// A state that metrics show as gauges.
pub trait GaugedState: 'static {
    /// Name and help text of each gauge.
    const GAUGES: &'static [(&'static str, &'static str)];

    /// Returns the values of the gauges, in the same order.
    fn values(&self) -> Vec<u64>;
}

/// State of a worker's copy of a shared catalog, as of the last time when the log was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyState {
    /// Sequence of the last change that the copy has applied.
    pub applied: u64,
    /// Sequence of the first change in the log.
    pub first: u64,
    /// Sequence of the last change in the log.
    pub last: u64,
}

impl GaugedState for CopyState {
    const GAUGES: &'static [(&'static str, &'static str)] = &[
        (
            "rollout_host_catalog_change",
            "Number of the last change of the shared catalog that this worker has applied.",
        ),
        (
            "rollout_host_catalog_changes_behind",
            "Changes of the shared catalog that were in its log when this worker last read it, and are not applied.",
        ),
        (
            "rollout_host_catalog_log_changes",
            "Changes in the log of the shared catalog. A snapshot has replaced earlier ones.",
        ),
    ];

    fn values(&self) -> Vec<u64> {
        let Self { applied, first, last } = *self;
        vec![applied, last.saturating_sub(applied), (last + 1).saturating_sub(first.max(1))]
    }
}

/// Slots that a worker has leased from the quotas of tenants, for all tenants together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeasedCount {
    /// Number of slots that the worker holds.
    pub held: u64,
    /// Number of these slots without a running rollout.
    pub free: u64,
}

impl GaugedState for LeasedCount {
    const GAUGES: &'static [(&'static str, &'static str)] = &[
        (
            "rollout_host_leased_slots",
            "Slots that this worker has leased from the quotas of all tenants together.",
        ),
        ("rollout_host_leased_slots_free", "Leased slots without a running rollout."),
    ];

    fn values(&self) -> Vec<u64> {
        vec![self.held, self.free]
    }
}

/// Versions that a worker has for activations that are in progress, for all tenants together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StagedCount {
    /// Number of versions that are being loaded or have been loaded.
    pub versions: u64,
    /// Size of the code of those that have been loaded, in bytes.
    pub code_bytes: u64,
}

impl GaugedState for StagedCount {
    const GAUGES: &'static [(&'static str, &'static str)] = &[
        (
            "rollout_host_staged_versions",
            "Versions that this worker loads or has loaded for activations in progress, of all tenants.",
        ),
        ("rollout_host_staged_code_bytes", "Size of the code of the staged versions that have been loaded."),
    ];

    fn values(&self) -> Vec<u64> {
        vec![self.versions, self.code_bytes]
    }
}

/// The gauges of a state, with the function that reads it.
pub(super) struct StateGauges<R> {
    gauges: Vec<IntGauge>,
    read: R,
}

impl<S: GaugedState, R: Fn() -> S> StateGauges<R> {
    pub(super) fn new(read: R) -> Result<Self> {
        let gauges = S::GAUGES.iter().map(|(name, help)| IntGauge::new(*name, *help));
        Ok(Self { gauges: gauges.collect::<Result<_>>()?, read })
    }
}

impl<S: GaugedState, R: Fn() -> S + Send + Sync> Collector for StateGauges<R> {
    fn desc(&self) -> Vec<&Desc> {
        self.gauges.iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        for (gauge, value) in self.gauges.iter().zip((self.read)().values()) {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        }
        self.gauges.iter().flat_map(Collector::collect).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::telemetry::Metrics;

    fn check<S: GaugedState + Clone + Send + Sync>(state: &S, lines: &[&str]) {
        let metrics = Arc::new(Metrics::new());
        let read = state.clone();
        metrics.add_state(move || read.clone());
        let text = Metrics::text_of(&[metrics]);
        for line in lines {
            assert!(text.lines().any(|found| found == *line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn the_lag_of_a_copy_is_read_when_metrics_are() {
        let check_copy = |[applied, first, last]: [u64; 3], [change, behind, in_log]: [u64; 3]| {
            let lines = [
                format!("rollout_host_catalog_change {change}"),
                format!("rollout_host_catalog_changes_behind {behind}"),
                format!("rollout_host_catalog_log_changes {in_log}"),
            ];
            check(&CopyState { applied, first, last }, &lines.each_ref().map(String::as_str));
        };
        check_copy([7, 5, 9], [7, 2, 5]);
        // A change of this worker is applied before the log is read again.
        check_copy([10, 5, 9], [10, 0, 5]);
        check_copy([0; 3], [0, 0, 0]);
    }

    #[test]
    fn leased_slots_and_staged_versions_have_gauges() {
        let leased = LeasedCount { held: 5, free: 2 };
        check(&leased, &["rollout_host_leased_slots 5", "rollout_host_leased_slots_free 2"]);
        let staged = StagedCount { versions: 3, code_bytes: 700 };
        check(&staged, &["rollout_host_staged_versions 3", "rollout_host_staged_code_bytes 700"]);
    }
}
