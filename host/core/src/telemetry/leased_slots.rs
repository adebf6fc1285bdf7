//! Metrics of the slots that a worker has leased from the quotas of tenants.

use std::sync::Arc;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntGauge, Result};

/// Slots that a worker has leased, for all tenants together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeasedCount {
    /// Number of slots that the worker holds.
    pub held: u64,
    /// Number of these slots without a running rollout.
    pub free: u64,
}

/// The metrics of leased slots. Cheap to clone.
#[derive(Clone)]
pub struct LeasedSlots(Arc<Series>);

struct Series {
    count: Box<dyn Fn() -> LeasedCount + Send + Sync>,
    held: IntGauge,
    free: IntGauge,
}

impl LeasedSlots {
    /// Creates the metrics of slots, which are counted when the metrics are read.
    pub fn new(count: impl Fn() -> LeasedCount + Send + Sync + 'static) -> Self {
        let series = Series::new(Box::new(count));
        Self(Arc::new(series.unwrap_or_else(|error| unreachable!("names are constants: {error}"))))
    }
}

impl Series {
    fn new(count: Box<dyn Fn() -> LeasedCount + Send + Sync>) -> Result<Self> {
        Ok(Self {
            count,
            held: IntGauge::new(
                "rollout_host_leased_slots",
                "Slots that this worker has leased from the quotas of all tenants together.",
            )?,
            free: IntGauge::new("rollout_host_leased_slots_free", "Leased slots without a running rollout.")?,
        })
    }

    fn all(&self) -> [&dyn Collector; 2] {
        [&self.held, &self.free]
    }
}

impl Collector for LeasedSlots {
    fn desc(&self) -> Vec<&Desc> {
        self.0.all().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let LeasedCount { held, free } = (self.0.count)();
        let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        self.0.held.set(number(held));
        self.0.free.set(number(free));
        self.0.all().into_iter().flat_map(Collector::collect).collect()
    }
}
