//! Quotas of tenants and plugins over time: requests per second, usage per day and bytes on disk.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::telemetry::Meter;
use crate::wire::quota::{Quota, Quotas};

/// Who may use no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// All plugins of a tenant together.
    Tenant,
    /// One plugin.
    Plugin,
}

/// A quota is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub struct OverQuota {
    /// Which.
    pub quota: Quota,
    /// Whose.
    pub whose: Whose,
    /// What is in use.
    pub used: u64,
    /// What may be.
    pub max: u64,
    /// When to come again, where waiting helps.
    pub retry_after: Option<Duration>,
}

/// How long those should wait who wait for others to be done.
const UNTIL_LESS: Duration = Duration::from_secs(5);

impl OverQuota {
    /// It will be less when something of it is over.
    pub(super) fn until_less(quota: Quota, whose: Whose, used: u64, max: u64) -> Self {
        let retry_after = (max > 0).then_some(UNTIL_LESS);
        Self { quota, whose, used, max, retry_after }
    }
}

impl fmt::Display for OverQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { quota, whose, used, max, retry_after } = self;
        let whose = match whose {
            Whose::Tenant => "this tenant",
            Whose::Plugin => "this plugin",
        };
        write!(f, "the quota {} of {whose} is used up: {used} of {max}; ", quota.as_str())?;
        match retry_after {
            Some(time) => write!(f, "try again in {} s", time.as_secs().max(1)),
            None => write!(f, "waiting does not help, the operator can raise it"),
        }
    }
}

/// Seconds for which unused requests are kept, so that a burst passes.
const BURST_SECS: f64 = 2.0;

const DAY_SECS: u64 = 24 * 60 * 60;

/// Checks the quotas over time of a tenant or plugin when a rollout is admitted.
#[derive(Debug)]
pub struct AdmissionQuotas {
    whose: Whose,
    meter: Arc<Meter>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    quotas: Quotas,
    /// Requests that may come now, and when that was so.
    tokens: f64,
    at: Instant,
    /// The size on disk, and the largest that is permitted.
    stored: Option<(StoredBytes, u64)>,
}

/// Size of a tenant's files: counted once, and from then on changed by what is added and deleted.
pub struct StoredBytes {
    counted: u64,
    growth: Box<dyn Fn() -> i64 + Send + Sync>,
}

impl StoredBytes {
    /// Creates the size of files that were counted. `growth` returns by how many bytes they have grown since.
    pub fn new(counted: u64, growth: impl Fn() -> i64 + Send + Sync + 'static) -> Self {
        Self { counted, growth: Box::new(growth) }
    }

    /// Returns the size at present.
    pub fn now(&self) -> u64 {
        self.counted.saturating_add_signed((self.growth)())
    }
}

impl fmt::Debug for StoredBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StoredBytes").field(&self.now()).finish()
    }
}

impl AdmissionQuotas {
    /// Creates a check of these quotas against the usage that a meter counts.
    pub fn new(whose: Whose, quotas: Quotas, meter: Arc<Meter>) -> Self {
        let tokens = burst(&quotas);
        Self { whose, meter, state: Mutex::new(State { quotas, tokens, at: Instant::now(), stored: None }) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was used.
    pub fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    /// Replaces the quotas.
    pub fn set(&self, quotas: Quotas) {
        let mut state = self.lock();
        state.tokens = state.tokens.min(burst(&quotas));
        state.quotas = quotas;
    }

    /// Sets the size on disk and the largest that is permitted. `None` means unlimited.
    pub fn set_stored(&self, stored: Option<(StoredBytes, u64)>) {
        self.lock().stored = stored;
    }

    /// Whether one more rollout may be asked for.
    pub(in crate::rollout) fn check(&self) -> Result<(), OverQuota> {
        self.check_at(Instant::now(), now_secs())
    }

    fn check_at(&self, now: Instant, now_secs: u64) -> Result<(), OverQuota> {
        let mut state = self.lock();
        if let Some((stored, max)) = &state.stored {
            let (used, max) = (stored.now(), *max);
            if used >= max {
                let quota = Quota::StoredBytes;
                return Err(OverQuota { quota, whose: self.whose, used, max, retry_after: None });
            }
        }
        let used = self.meter.of_day(now_secs / DAY_SECS);
        let tomorrow = Duration::from_secs(DAY_SECS - now_secs % DAY_SECS);
        let daily = [
            (Quota::ModelTokensPerDay, used.model_tokens),
            (Quota::GuestCpuSecondsPerDay, used.guest_cpu.as_secs()),
        ];
        for (quota, used) in daily {
            if let Some(max) = state.quotas.get(quota).filter(|max| used >= *max) {
                let retry_after = (max > 0).then_some(tomorrow);
                return Err(OverQuota { quota, whose: self.whose, used, max, retry_after });
            }
        }
        let Some(max) = state.quotas.get_u32(Quota::RequestsPerSecond) else { return Ok(()) };
        let rate = f64::from(max);
        let elapsed = now.saturating_duration_since(state.at).as_secs_f64();
        state.tokens = (state.tokens + elapsed * rate).min(burst(&state.quotas));
        state.at = now;
        if state.tokens >= 1.0 {
            state.tokens -= 1.0;
            return Ok(());
        }
        let wait = (1.0 - state.tokens) / rate;
        let retry_after = Duration::try_from_secs_f64(wait).ok();
        let max = u64::from(max);
        Err(OverQuota { quota: Quota::RequestsPerSecond, whose: self.whose, used: max, max, retry_after })
    }
}

/// Returns the number of requests that may arrive at once.
fn burst(quotas: &Quotas) -> f64 {
    quotas.get_u32(Quota::RequestsPerSecond).map_or(0.0, |rate| (f64::from(rate) * BURST_SECS).max(1.0))
}

/// Seconds since the beginning of 1970.
fn now_secs() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "days begin by the clock of the world")]
    let now = SystemTime::now();
    now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use super::*;
    use crate::telemetry::DayUse;

    fn checked(quotas: Quotas) -> AdmissionQuotas {
        AdmissionQuotas::new(Whose::Tenant, quotas, Arc::default())
    }

    fn one(quota: Quota, max: u64) -> Quotas {
        let mut quotas = Quotas::default();
        quotas.set(quota, max).unwrap();
        quotas
    }

    #[test]
    fn requests_pass_at_their_rate_and_a_burst_of_two_seconds_at_once() {
        let quotas = checked(one(Quota::RequestsPerSecond, 2));
        let start = Instant::now();
        let after = |secs: f64| quotas.check_at(start + Duration::from_secs_f64(secs), 0);
        for _ in 0..4 {
            after(0.0).unwrap();
        }
        let over = after(0.25).unwrap_err();
        assert_eq!(
            (over.quota, over.retry_after),
            (Quota::RequestsPerSecond, Some(Duration::from_millis(250)))
        );
        after(0.5).unwrap();
        assert!(after(0.5).is_err());
        quotas.set(Quotas::default());
        after(0.5).unwrap();
        quotas.set(one(Quota::RequestsPerSecond, 0));
        assert_eq!(after(9.0).unwrap_err().retry_after, None, "no wait helps");
    }

    #[test]
    fn what_a_day_allows_is_there_again_on_the_next() {
        let quotas = checked(one(Quota::ModelTokensPerDay, 10));
        let now = Instant::now();
        let noon = 5 * DAY_SECS + DAY_SECS / 2;
        quotas.meter().set(DayUse { day: 5, model_tokens: 9, guest_cpu: Duration::ZERO });
        quotas.check_at(now, noon).unwrap();
        quotas.meter().add_tokens_on(5, 4);
        let over = quotas.check_at(now, noon).unwrap_err();
        assert_eq!(
            (over.used, over.max, over.retry_after),
            (13, 10, Some(Duration::from_secs(DAY_SECS / 2)))
        );
        assert_eq!(
            over.to_string(),
            "the quota model-tokens-per-day of this tenant is used up: 13 of 10; try again in 43200 s"
        );
        quotas.check_at(now, 6 * DAY_SECS).unwrap();
    }

    #[test]
    fn a_quota_of_nothing_is_not_worth_waiting_for() {
        let over = checked(one(Quota::GuestCpuSecondsPerDay, 0)).check_at(Instant::now(), 7).unwrap_err();
        assert_eq!(over.retry_after, None);
        assert!(over.to_string().ends_with("waiting does not help, the operator can raise it"), "{over}");
        let quotas = checked(Quotas::default());
        quotas.set_stored(Some((StoredBytes::new(5, || 0), 5)));
        assert_eq!(quotas.check().unwrap_err().quota, Quota::StoredBytes);
        quotas.set_stored(Some((StoredBytes::new(4, || 0), 5)));
        quotas.check().unwrap();
    }

    #[test]
    fn what_the_files_have_grown_since_they_were_counted_is_in_use() {
        let quotas = checked(Quotas::default());
        let growth = Arc::new(AtomicI64::new(0));
        let its_growth = growth.clone();
        let stored = StoredBytes::new(4, move || its_growth.load(Ordering::Relaxed));
        quotas.set_stored(Some((stored, 5)));
        quotas.check().unwrap();
        growth.store(1, Ordering::Relaxed);
        let over = quotas.check().unwrap_err();
        assert_eq!((over.quota, over.used, over.max), (Quota::StoredBytes, 5, 5));
        growth.store(-9, Ordering::Relaxed);
        quotas.check().unwrap();
    }
}
