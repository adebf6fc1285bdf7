//! Metrics of a worker's copy of a shared catalog.

use std::sync::Arc;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntGauge, Result};

/// State of a copy, as of the last time when the log was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyState {
    /// Sequence of the last change that the copy has applied.
    pub applied: u64,
    /// Sequence of the first change in the log.
    pub first: u64,
    /// Sequence of the last change in the log.
    pub last: u64,
}

/// The metrics of a copy. Cheap to clone.
#[derive(Clone)]
pub struct SharedCopy(Arc<Series>);

struct Series {
    state: Box<dyn Fn() -> CopyState + Send + Sync>,
    change: IntGauge,
    behind: IntGauge,
    in_log: IntGauge,
}

impl SharedCopy {
    /// Creates the metrics of a copy, whose state is read when the metrics are.
    pub fn new(state: impl Fn() -> CopyState + Send + Sync + 'static) -> Self {
        let series = Series::new(Box::new(state));
        Self(Arc::new(series.unwrap_or_else(|error| unreachable!("names are constants: {error}"))))
    }
}

impl Series {
    fn new(state: Box<dyn Fn() -> CopyState + Send + Sync>) -> Result<Self> {
        Ok(Self {
            state,
            change: IntGauge::new(
                "rollout_host_catalog_change",
                "Number of the last change of the shared catalog that this worker has applied.",
            )?,
            behind: IntGauge::new(
                "rollout_host_catalog_changes_behind",
                "Changes of the shared catalog that were in its log when this worker last read it, and are not applied.",
            )?,
            in_log: IntGauge::new(
                "rollout_host_catalog_log_changes",
                "Changes in the log of the shared catalog. A snapshot has replaced earlier ones.",
            )?,
        })
    }

    fn all(&self) -> [&dyn Collector; 3] {
        [&self.change, &self.behind, &self.in_log]
    }
}

impl Collector for SharedCopy {
    fn desc(&self) -> Vec<&Desc> {
        self.0.all().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let CopyState { applied, first, last } = (self.0.state)();
        let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        self.0.change.set(number(applied));
        self.0.behind.set(number(last.saturating_sub(applied)));
        self.0.in_log.set(number((last + 1).saturating_sub(first.max(1))));
        self.0.all().into_iter().flat_map(Collector::collect).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::Metrics;

    #[test]
    fn the_lag_of_a_copy_is_read_when_metrics_are() {
        let check = |state: CopyState, [change, behind, in_log]: [u64; 3]| {
            let metrics = Arc::new(Metrics::new());
            metrics.add_shared_copy(&SharedCopy::new(move || state));
            let text = Metrics::text_of(&[metrics]);
            for line in [
                format!("rollout_host_catalog_change {change}"),
                format!("rollout_host_catalog_changes_behind {behind}"),
                format!("rollout_host_catalog_log_changes {in_log}"),
            ] {
                assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
            }
        };
        check(CopyState { applied: 7, first: 5, last: 9 }, [7, 2, 5]);
        // A change of this worker is applied before the log is read again.
        check(CopyState { applied: 10, first: 5, last: 9 }, [10, 0, 5]);
        check(CopyState::default(), [0, 0, 0]);
    }
}
