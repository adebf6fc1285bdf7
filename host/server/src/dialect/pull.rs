//! The pull client: takes work from a service that is polled, while this host has free slots.
//!
//! A [`WorkSource`] is the protocol of one service: it lists the available work and takes it. The loop is the same for
//! all services, and requests no more work than can run. While the service has work, the next request follows as soon as a
//! slot is free; otherwise it follows after an interval. If a service does not answer, the request is repeated after growing
//! pauses.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use rollout_rollout::Host;

/// The first pause after a service did not answer; it doubles each time.
const OUTAGE_DELAY: Duration = Duration::from_millis(500);

/// The maximum pause.
const OUTAGE_DELAY_MAX: Duration = Duration::from_secs(10);

/// A service that has work.
pub(super) trait WorkSource: Send + Sync {
    /// Work that the service lists.
    type Offer: Send;

    /// Lists at most `max` offers, the oldest first.
    fn offers(&self, max: usize) -> impl Future<Output = Result<Vec<Self::Offer>, SourceError>> + Send;

    /// Takes offers. Returns once each was taken or refused, so that the next list has none of them. The work itself
    /// continues in the background. Returns false if this host has no room for more.
    fn take(&self, offers: Vec<Self::Offer>) -> impl Future<Output = bool> + Send;
}

/// Error of a request for work.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum SourceError {
    /// The service is unavailable and may become available again.
    #[error("{0}")]
    Away(String),
    /// The service refuses this host permanently, because of a wrong key or address.
    #[error("{0}")]
    Refused(String),
}

/// Pauses and limits of the loop.
#[derive(Clone, Debug)]
pub(super) struct PullSettings {
    /// Interval of requests while there is no work.
    pub interval: Duration,
    /// Maximum number of offers of one request.
    pub offers_max: usize,
}

/// Takes work until `stop` is cancelled. The error is the service's refusal.
///
/// `ended` is notified whenever work ends.
pub(super) async fn pull<S: WorkSource>(
    source: &S,
    host: impl Fn() -> Host,
    settings: &PullSettings,
    ended: &Arc<Notify>,
    stop: &CancellationToken,
) -> Result<(), SourceError> {
    let mut failures = 0;
    while !stop.is_cancelled() {
        let room = room(&host());
        let next = match room.min(settings.offers_max) {
            0 => Wait::ForRoom,
            max => match source.offers(max).await {
                Ok(offers) => {
                    if std::mem::take(&mut failures) > 0 {
                        tracing::info!("the service with the work answers again");
                    }
                    let is_full = offers.len() >= max;
                    match source.take(offers).await {
                        false => Wait::ForRoom,
                        true if is_full => Wait::None,
                        true => Wait::Interval(settings.interval),
                    }
                }
                Err(SourceError::Refused(why)) => return Err(SourceError::Refused(why)),
                Err(SourceError::Away(why)) => {
                    failures += 1;
                    if failures == 1 {
                        tracing::warn!(
                            why,
                            "the service with the work does not answer; the request is repeated"
                        );
                    }
                    Wait::Interval(outage_delay(failures))
                }
            },
        };
        let waiting = async {
            match next {
                Wait::None => {}
                Wait::Interval(time) => tokio::time::sleep(time).await,
                // A resource other than slots may be exhausted, such as memory, and `ended` does not announce its
                // release.
                Wait::ForRoom => {
                    let _ = tokio::time::timeout(settings.interval, ended.notified()).await;
                }
            }
        };
        tokio::select! {
            () = waiting => {}
            () = stop.cancelled() => {}
        }
    }
    Ok(())
}

/// The wait before the next request.
enum Wait {
    None,
    Interval(Duration),
    ForRoom,
}

/// Returns the number of rollouts that could start at once.
fn room(host: &Host) -> usize {
    let load = host.load();
    match host.check_admission() {
        Ok(()) => load.max_concurrent.saturating_sub(load.running + load.queued) as usize,
        Err(_) => 0,
    }
}

/// Returns the pause after this many failures.
pub(super) fn outage_delay(failures: u32) -> Duration {
    OUTAGE_DELAY.saturating_mul(1 << failures.saturating_sub(1).min(8)).min(OUTAGE_DELAY_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_maximum() {
        let millis = |failures| outage_delay(failures).as_millis();
        assert_eq!([1, 2, 3, 6, 100].map(millis), [500, 1000, 2000, 10_000, 10_000]);
    }
}
