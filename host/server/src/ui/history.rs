//! Samples of the load of the last hour, of the process and of each tenant.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior};

use super::Ui;
use rollout_page::LoadSample;

/// Time between two samples.
const INTERVAL: Duration = Duration::from_secs(30);

/// Maximum number of samples of a tenant or the process: one hour.
const SAMPLES_MAX: usize = 120;

/// The samples of the process and of each tenant, by number.
pub(super) struct Histories {
    began: Instant,
    samples: Mutex<HashMap<i64, VecDeque<LoadSample>>>,
}

impl Histories {
    pub(super) fn new() -> Self {
        Self { began: Instant::now(), samples: Mutex::default() }
    }

    /// Adds a sample of the process and of each tenant. Removes the samples of tenants that are gone.
    fn add(&self, now: Instant, loads: Vec<(i64, LoadSample)>) {
        let at = now.saturating_duration_since(self.began);
        let mut before = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let mut samples = HashMap::with_capacity(loads.len());
        for (number, load) in loads {
            let mut own: VecDeque<LoadSample> = before.remove(&number).unwrap_or_default();
            own.push_back(LoadSample { at, ..load });
            if own.len() > SAMPLES_MAX {
                own.pop_front();
            }
            samples.insert(number, own);
        }
        *before = samples;
    }

    /// Returns the samples of a tenant or the process, with its present load as the last one.
    pub(super) fn with_now(&self, number: i64, now: Instant, load: LoadSample) -> Vec<LoadSample> {
        let at = now.saturating_duration_since(self.began);
        let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let mut own: Vec<LoadSample> = samples.get(&number).into_iter().flatten().copied().collect();
        if own.first().is_none_or(|first| first.at > INTERVAL) && own.len() < SAMPLES_MAX {
            // A tenant that was opened later had no load before.
            let none = LoadSample { memory_bytes: load.memory_bytes.map(|_| 0), ..LoadSample::default() };
            own.insert(0, none);
        }
        own.push(LoadSample { at, ..load });
        own
    }
}

/// Takes samples as long as the pages exist.
pub(super) fn start(ui: &Arc<Ui>) {
    // Routes that are made without a runtime are never served.
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    let ui: Weak<Ui> = Arc::downgrade(ui);
    runtime.spawn(async move {
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let Some(ui) = ui.upgrade() else { return };
            ui.histories.add(Instant::now(), ui.viewed.loads());
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_of_samples_is_kept_for_each_existing_tenant() {
        let histories = Histories::new();
        let load = |running| LoadSample { running, ..LoadSample::default() };
        for at in 0..SAMPLES_MAX as u64 + 5 {
            let now = histories.began + INTERVAL * at as u32;
            histories.add(now, vec![(1, load(at)), (2, load(0))]);
        }
        let now = histories.began + INTERVAL * 200;
        let samples = histories.with_now(1, now, load(9));
        assert_eq!(samples.len(), SAMPLES_MAX + 1);
        assert_eq!((samples[0].running, samples[0].at), (5, INTERVAL * 5));
        assert_eq!((samples[SAMPLES_MAX].running, samples[SAMPLES_MAX].at), (9, INTERVAL * 200));
        histories.add(now, vec![(1, load(0))]);
        let gone: Vec<u64> =
            histories.with_now(2, now, load(3)).iter().map(|sample| sample.running).collect();
        assert_eq!(gone, [0, 3], "the tenant is gone");
    }
}
