//! Metrics of a worker's replicated log, and of the logs of other workers that it continues.

use std::sync::Arc;
use std::time::Duration;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Histogram, HistogramOpts, IntCounter, IntGauge, Result};

/// Upper bounds of the times of takeovers, in seconds.
const TAKEOVER_SECS: [f64; 8] = [1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 180.0, 600.0];

/// Records and bytes that were written and are not acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lag {
    /// Number of batches of records.
    pub batches: usize,
    /// Their bytes.
    pub bytes: usize,
}

/// The metrics of a replicated log. Cheap to clone.
#[derive(Clone)]
pub struct Replication(Arc<Series>);

struct Series {
    lag: Box<dyn Fn() -> Lag + Send + Sync>,
    lag_batches: IntGauge,
    lag_bytes: IntGauge,
    fenced: IntCounter,
    takeovers: IntCounter,
    takeovers_failed: IntCounter,
    rollouts_taken: IntCounter,
    takeover_secs: Histogram,
}

impl Replication {
    /// Creates the metrics of a log. `fenced` is the number of times that earlier processes of this worker have lost it.
    pub fn new(lag: impl Fn() -> Lag + Send + Sync + 'static, fenced: u64) -> Self {
        let series = Series::new(Box::new(lag));
        let series = series.unwrap_or_else(|error| unreachable!("names and buckets are constants: {error}"));
        series.fenced.inc_by(fenced);
        Self(Arc::new(series))
    }

    /// Counts the log of another worker whose rollouts go on here, the time since it was claimed, and its rollouts.
    pub fn taken_over(&self, time: Duration, rollouts: u64) {
        self.0.takeovers.inc();
        self.0.takeover_secs.observe(time.as_secs_f64());
        self.0.rollouts_taken.inc_by(rollouts);
    }

    /// Counts a log of another worker that could not be continued.
    pub fn takeover_failed(&self) {
        self.0.takeovers_failed.inc();
    }
}

impl Series {
    fn new(lag: Box<dyn Fn() -> Lag + Send + Sync>) -> Result<Self> {
        let secs = HistogramOpts::new(
            "rollout_host_log_takeover_seconds",
            "Time from the claim of a dead worker's log until its rollouts go on, in seconds.",
        );
        Ok(Self {
            lag,
            lag_batches: IntGauge::new(
                "rollout_host_log_unacknowledged_batches",
                "Batches of records that were written to the log and are not acknowledged by NATS.",
            )?,
            lag_bytes: IntGauge::new(
                "rollout_host_log_unacknowledged_bytes",
                "Bytes that were written to the log and are not acknowledged by NATS.",
            )?,
            fenced: IntCounter::new(
                "rollout_host_log_fenced_total",
                "Times that this worker has lost its log to another one, each of which ended its process.",
            )?,
            takeovers: IntCounter::new(
                "rollout_host_log_takeovers_total",
                "Logs of dead workers whose rollouts this worker has continued.",
            )?,
            takeovers_failed: IntCounter::new(
                "rollout_host_log_takeovers_failed_total",
                "Logs of dead workers that this worker could not continue.",
            )?,
            rollouts_taken: IntCounter::new(
                "rollout_host_log_takeover_rollouts_total",
                "Unfinished rollouts of dead workers that this worker has continued.",
            )?,
            takeover_secs: Histogram::with_opts(secs.buckets(TAKEOVER_SECS.to_vec()))?,
        })
    }

    fn all(&self) -> [&dyn Collector; 7] {
        [
            &self.lag_batches,
            &self.lag_bytes,
            &self.fenced,
            &self.takeovers,
            &self.takeovers_failed,
            &self.rollouts_taken,
            &self.takeover_secs,
        ]
    }
}

impl Collector for Replication {
    fn desc(&self) -> Vec<&Desc> {
        self.0.all().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Lag { batches, bytes } = (self.0.lag)();
        self.0.lag_batches.set(i64::try_from(batches).unwrap_or(i64::MAX));
        self.0.lag_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
        self.0.all().into_iter().flat_map(Collector::collect).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::Metrics;

    #[test]
    fn the_lag_is_read_when_metrics_are_and_takeovers_are_counted() {
        let metrics = Arc::new(Metrics::new());
        let replication = Replication::new(|| Lag { batches: 3, bytes: 700 }, 2);
        metrics.add_replication(&replication);
        replication.taken_over(Duration::from_secs(3), 5);
        replication.takeover_failed();
        let text = Metrics::text_of(&[metrics]);
        for line in [
            "rollout_host_log_unacknowledged_batches 3",
            "rollout_host_log_unacknowledged_bytes 700",
            "rollout_host_log_fenced_total 2",
            "rollout_host_log_takeovers_total 1",
            "rollout_host_log_takeovers_failed_total 1",
            "rollout_host_log_takeover_rollouts_total 5",
            "rollout_host_log_takeover_seconds_bucket{le=\"5\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }
}
