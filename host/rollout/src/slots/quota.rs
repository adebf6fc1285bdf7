//! Quotas of tenants and plugins over time: requests per second, usage per day and bytes on disk.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rollout_core::storage::{OverStorage, StorageQuota};
use rollout_core::telemetry::{DayUse, Meter};
use rollout_wire::quota::{Quota, Quotas};

/// Owner of a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaOwner {
    /// A tenant, with all its plugins.
    Tenant,
    /// One plugin.
    Plugin,
}

/// Error of a quota that is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub struct OverQuota {
    /// The quota.
    pub quota: Quota,
    /// The owner.
    pub owner: QuotaOwner,
    /// The usage.
    pub used: u64,
    /// The limit.
    pub max: u64,
    /// Time after which a retry may succeed, or `None` if waiting does not help.
    pub retry_after: Option<Duration>,
}

/// Retry delay if another rollout has to end first.
const UNTIL_LESS: Duration = Duration::from_secs(5);

impl OverQuota {
    /// Creates the error of a quota that is freed when rollouts end.
    pub(super) fn until_less(quota: Quota, owner: QuotaOwner, used: u64, max: u64) -> Self {
        let retry_after = (max > 0).then_some(UNTIL_LESS);
        Self { quota, owner, used, max, retry_after }
    }
}

impl fmt::Display for OverQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { quota, owner, used, max, retry_after } = self;
        let owner = match owner {
            QuotaOwner::Tenant => "this tenant",
            QuotaOwner::Plugin => "this plugin",
        };
        write!(f, "the quota {} of {owner} is used up: {used} of {max}; ", quota.as_str())?;
        match retry_after {
            Some(time) => write!(f, "try again in {} s", time.as_secs().max(1)),
            None => write!(f, "waiting does not help, the operator can raise it"),
        }
    }
}

/// Seconds for which unused requests accumulate, so that a burst passes.
const BURST_SECS: f64 = 2.0;

const DAY_SECS: u64 = 24 * 60 * 60;

/// Checks the quotas over time of a tenant or plugin when a rollout is admitted.
#[derive(Debug)]
pub struct AdmissionQuotas {
    owner: QuotaOwner,
    meter: Arc<Meter>,
    /// Usage that the meter does not count: that of other workers.
    elsewhere: Arc<Meter>,
    state: Mutex<State>,
    /// The quota of bytes on disk that running rollouts are charged to.
    storage: Option<Arc<StorageQuota>>,
}

#[derive(Debug)]
struct State {
    quotas: Quotas,
    /// Requests that may be made now, as of `at`.
    tokens: f64,
    at: Instant,
    /// The size on disk, and its limit.
    stored: Option<(StoredBytes, u64)>,
}

/// Size of a tenant's files: measured once, and then updated by the bytes that are written and deleted.
pub struct StoredBytes {
    measured: u64,
    /// Returns the growth in bytes since the measurement.
    growth: Box<dyn Fn() -> i64 + Send + Sync>,
}

impl StoredBytes {
    /// Creates the size of files with this measured size. `growth` returns the bytes by which they have grown since.
    pub fn new(measured: u64, growth: impl Fn() -> i64 + Send + Sync + 'static) -> Self {
        Self { measured, growth: Box::new(growth) }
    }

    /// Returns the current size.
    pub fn now(&self) -> u64 {
        self.measured.saturating_add_signed((self.growth)())
    }
}

impl fmt::Debug for StoredBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StoredBytes").field(&self.now()).finish()
    }
}

impl AdmissionQuotas {
    /// Creates a check of these quotas against the usage that a meter counts.
    pub fn new(owner: QuotaOwner, quotas: Quotas, meter: Arc<Meter>) -> Self {
        let tokens = burst(&quotas);
        let state = State { quotas, tokens, at: Instant::now(), stored: None };
        Self { owner, meter, elsewhere: Arc::default(), state: state.into(), storage: None }
    }

    /// Adds the usage at other workers.
    #[must_use]
    pub fn with_elsewhere(self, elsewhere: Arc<Meter>) -> Self {
        Self { elsewhere, ..self }
    }

    /// Adds the quota of bytes on disk that running rollouts are charged to.
    #[must_use]
    pub fn with_storage(self, storage: Arc<StorageQuota>) -> Self {
        Self { storage: Some(storage), ..self }
    }

    /// Returns the quota of bytes on disk that running rollouts are charged to, if there is one.
    pub fn storage(&self) -> Option<&Arc<StorageQuota>> {
        self.storage.as_ref()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the meter.
    pub fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    /// Returns the size on disk and its limit, if there is one.
    pub fn stored(&self) -> Option<(u64, u64)> {
        self.lock().stored.as_ref().map(|(stored, max)| (stored.now(), *max))
    }

    /// Replaces the quotas.
    pub fn set(&self, quotas: Quotas) {
        let mut state = self.lock();
        state.tokens = state.tokens.min(burst(&quotas));
        state.quotas = quotas;
    }

    /// Sets the size on disk and its limit. `None` means unlimited.
    pub fn set_stored(&self, stored: Option<(StoredBytes, u64)>) {
        self.lock().stored = stored;
    }

    /// Returns the usage of today, here and at other workers.
    pub fn used_today(&self) -> DayUse {
        self.meter.today().plus(self.elsewhere.today())
    }

    /// Checks whether one more rollout may be requested, and counts the request.
    pub(crate) fn check(&self) -> Result<(), OverQuota> {
        self.check_at(Instant::now(), now_secs())
    }

    fn check_at(&self, now: Instant, now_secs: u64) -> Result<(), OverQuota> {
        let mut state = self.lock();
        if let Some((stored, max)) = &state.stored {
            let (used, max) = (stored.now(), *max);
            if used >= max {
                let quota = Quota::StoredBytes;
                return Err(OverQuota { quota, owner: self.owner, used, max, retry_after: None });
            }
        }
        if let Some(Err(OverStorage { used, max })) = self.storage.as_ref().map(|storage| storage.check_new())
        {
            let quota = Quota::StoredBytes;
            return Err(OverQuota::until_less(quota, self.owner, used, max));
        }
        let day = now_secs / DAY_SECS;
        let used = self.meter.usage_on(day).plus(self.elsewhere.usage_on(day));
        let tomorrow = Duration::from_secs(DAY_SECS - now_secs % DAY_SECS);
        let daily = [
            (Quota::ModelTokensPerDay, used.model_tokens),
            (Quota::GuestCpuSecondsPerDay, used.guest_cpu.as_secs()),
        ];
        for (quota, used) in daily {
            if let Some(max) = state.quotas.get(quota).filter(|max| used >= *max) {
                let retry_after = (max > 0).then_some(tomorrow);
                return Err(OverQuota { quota, owner: self.owner, used, max, retry_after });
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
        Err(OverQuota { quota: Quota::RequestsPerSecond, owner: self.owner, used: max, max, retry_after })
    }
}

/// Returns the number of requests that may be made at once.
fn burst(quotas: &Quotas) -> f64 {
    quotas.get_u32(Quota::RequestsPerSecond).map_or(0.0, |rate| (f64::from(rate) * BURST_SECS).max(1.0))
}

/// Returns the seconds since 1970.
fn now_secs() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "days are those of the calendar")]
    let now = SystemTime::now();
    now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use super::*;

    fn checked(quotas: Quotas) -> AdmissionQuotas {
        AdmissionQuotas::new(QuotaOwner::Tenant, quotas, Arc::default())
    }

    fn one(quota: Quota, max: u64) -> Quotas {
        let mut quotas = Quotas::default();
        quotas.set(quota, max).unwrap();
        quotas
    }

    #[test]
    fn requests_pass_at_their_rate_after_a_burst_of_two_seconds() {
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
    fn daily_quotas_are_reset_on_the_next_day() {
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
    fn usage_at_other_workers_counts_on_its_day() {
        let elsewhere = Arc::new(Meter::default());
        let quotas = checked(one(Quota::ModelTokensPerDay, 10)).with_elsewhere(elsewhere.clone());
        let now = Instant::now();
        quotas.meter().set(DayUse { day: 5, model_tokens: 4, guest_cpu: Duration::ZERO });
        elsewhere.set(DayUse { day: 5, model_tokens: 5, guest_cpu: Duration::ZERO });
        quotas.check_at(now, 5 * DAY_SECS).unwrap();
        quotas.meter().add_tokens_on(5, 1);
        assert_eq!(quotas.check_at(now, 5 * DAY_SECS).unwrap_err().used, 10);
        elsewhere.set(DayUse { day: 4, model_tokens: 5, guest_cpu: Duration::ZERO });
        quotas.check_at(now, 5 * DAY_SECS).unwrap();
    }

    #[test]
    fn waiting_does_not_help_for_a_quota_of_nothing() {
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
    fn growth_of_the_files_since_their_measurement_counts() {
        let quotas = checked(Quotas::default());
        let growth = Arc::new(AtomicI64::new(0));
        let current = growth.clone();
        let stored = StoredBytes::new(4, move || current.load(Ordering::Relaxed));
        quotas.set_stored(Some((stored, 5)));
        quotas.check().unwrap();
        growth.store(1, Ordering::Relaxed);
        let over = quotas.check().unwrap_err();
        assert_eq!((over.quota, over.used, over.max), (Quota::StoredBytes, 5, 5));
        growth.store(-9, Ordering::Relaxed);
        quotas.check().unwrap();
    }
}
