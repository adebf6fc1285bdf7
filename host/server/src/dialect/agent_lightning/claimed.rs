//! One claimed rollout: its claim, its report, and the checks for whether the trainer still wants it.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::oneshot;

use super::Inner;
use super::gateway::{Change, RolloutState, StatusChange};
use crate::dialect::delivery::{Delivery, Message};
use crate::dialect::driver::{Driver, Renderer, Source};
use crate::dialect::ledger::{LedgerEntry, PublicOutcome};
use crate::dialect::pull::{SourceError, outage_delay};
use rollout_core::error::Fault;
use rollout_outbound::{Acknowledged, Undelivered};
use rollout_rollout::{Failure, FailureKind, Finished, Outcome, Rollout};
use rollout_wire::text::{beginning, time};

/// Interval at which a running rollout is looked up at the gateway, to notice that the trainer deleted it. A model call notices
/// at once.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Maximum size of the text of a failure in bytes.
const ERROR_BYTES_MAX: usize = 2000;

/// A rollout of the gateway.
pub(super) struct Claimed {
    pub dialect: Arc<Inner>,
    /// The gateway's id of the rollout.
    pub id: String,
    /// The name under which it is claimed.
    pub owner: String,
    /// Maximum time from the claim to the end of the rollout.
    pub timeout: Option<Duration>,
    /// The party that rates rollouts: the grader or the agent itself.
    pub source: &'static str,
    pub claim: Claim,
    /// Whether its timeout has passed.
    pub is_late: AtomicBool,
}

/// The claim of a rollout.
pub(super) struct Claim {
    /// Whether an earlier process may have made the claim.
    pub is_resumed: bool,
    pub is_made: AtomicBool,
    /// Notified once the claim has succeeded or failed.
    pub decided: Mutex<Option<oneshot::Sender<()>>>,
}

/// The report of a rollout: events, and then the change of its status.
#[derive(Serialize, Deserialize)]
struct Report<'a> {
    #[serde(borrow)]
    events: Vec<&'a RawValue>,
    #[serde(borrow)]
    status: &'a RawValue,
}

/// The type of an event. A rollout has at most one event of each type.
#[derive(Deserialize)]
struct EventType<'a> {
    event_type: &'a str,
}

impl Claimed {
    /// Claims the rollout. Returns whether the claim succeeded.
    async fn claim(&self, driver: &Driver<Self>) -> bool {
        if let Some(log) = &driver.log
            && let Err(error) = log.admitted().await
        {
            tracing::error!(%error, "a rollout is not claimed, because the journal cannot store it");
            return false;
        }
        let gateway = &self.dialect.gateway;
        // The gateway may have carried out a request that it did not answer.
        let (mut may_be_claimed, mut failures) = (self.claim.is_resumed, 0);
        loop {
            let result = match may_be_claimed {
                true => match gateway.state(&self.id).await {
                    Ok(RolloutState::Running(owner)) => return owner.as_deref() == Some(&self.owner),
                    Ok(RolloutState::Ended | RolloutState::Deleted) => return false,
                    Ok(RolloutState::Queuing) => {
                        gateway.change(&self.id, StatusChange::claim(&self.owner).body()).await
                    }
                    Err(error) => Err(error),
                },
                false => gateway.change(&self.id, StatusChange::claim(&self.owner).body()).await,
            };
            match result {
                Ok(change) => return change == Change::Made,
                Err(SourceError::Refused(why)) => {
                    tracing::error!(why, "the gateway refuses the claim of a rollout");
                    return false;
                }
                Err(SourceError::Away(why)) => {
                    (may_be_claimed, failures) = (true, failures + 1);
                    tracing::debug!(why, failures, "the claim of a rollout is repeated");
                }
            }
            tokio::select! {
                () = tokio::time::sleep(outage_delay(failures)) => {}
                () = self.dialect.closing.cancelled() => return false,
            }
        }
    }

    /// Returns the report of an outcome.
    fn report(&self, source: &Source<'_>) -> (Vec<Box<RawValue>>, Bytes) {
        let failed = |reason: &str| StatusChange::failed(beginning(reason, ERROR_BYTES_MAX)).body();
        match source {
            Source::Finished(finished) => match &finished.outcome {
                Outcome::Scored { reward } => {
                    let metrics = finished.metrics();
                    let metrics = (!metrics.is_empty()).then(|| event("metrics", &metrics));
                    let reward = event("reward", &json!({"value": reward, "source": self.source}));
                    // The trainer may read the events as soon as it sees the end.
                    (metrics.into_iter().chain([reward]).collect(), StatusChange::succeeded().body())
                }
                Outcome::Unscored(failure) => (Vec::new(), failed(&self.reason(failure))),
            },
            Source::Crashed(crashed) => (Vec::new(), failed(&self.reason(crashed))),
            // Nothing is reported after the workflow.
            Source::Workflow(_) => (Vec::new(), Bytes::new()),
        }
    }

    /// Returns the text of a failure for the trainer.
    fn reason(&self, failure: &Failure) -> String {
        let kind = failure.kind.as_str();
        match failure.kind {
            FailureKind::Cancelled if self.is_late.load(Ordering::Relaxed) => {
                let timeout = time(self.timeout.unwrap_or_default());
                format!("timeout: the rollout took longer than its timeout_seconds, {timeout}")
            }
            FailureKind::Cancelled if self.dialect.ledger.is_cancelling() => "controller shutdown".to_owned(),
            _ => format!("{kind}: {}", failure.reason),
        }
    }

    /// Sends a request until the gateway answers it. `send` receives the number of attempts without an answer so far.
    async fn until_answered<F>(&self, send: impl Fn(u32) -> F) -> (u32, Result<Change, String>)
    where
        F: Future<Output = Result<Change, SourceError>>,
    {
        let mut failures = 0;
        loop {
            match send(failures).await {
                Ok(change) => return (failures + 1, Ok(change)),
                Err(SourceError::Refused(why)) => return (failures + 1, Err(why)),
                Err(SourceError::Away(why)) => {
                    failures += 1;
                    tracing::debug!(why, failures, "the report of a rollout is repeated");
                    tokio::time::sleep(outage_delay(failures)).await;
                }
            }
        }
    }

    async fn deliver(&self, body: &[u8]) -> (u32, Result<Change, String>) {
        let report: Report<'_> = match serde_json::from_slice(body) {
            Ok(report) => report,
            Err(error) => return (0, Err(format!("its report cannot be read: {error}"))),
        };
        let gateway = &self.dialect.gateway;
        for event in report.events {
            let body = Bytes::copy_from_slice(event.get().as_bytes());
            let EventType { event_type } = match serde_json::from_str(event.get()) {
                Ok(event_type) => event_type,
                Err(error) => return (0, Err(format!("an event of its report cannot be read: {error}"))),
            };
            let add = async |failures: u32| {
                // The gateway may have carried out a request that it did not answer, or one of an earlier process.
                let may_exist = failures > 0 || self.claim.is_resumed;
                if may_exist && gateway.has_event(&self.id, event_type).await? {
                    return Ok(Change::Made);
                }
                gateway.add_event(&self.id, body.clone()).await
            };
            let (attempts, added) = self.until_answered(add).await;
            if added != Ok(Change::Made) {
                return (attempts, added);
            }
        }
        let body = Bytes::copy_from_slice(report.status.get().as_bytes());
        self.until_answered(|_| gateway.change(&self.id, body.clone())).await
    }
}

fn event(kind: &str, data: &impl Serialize) -> Box<RawValue> {
    // Texts and finite numbers cannot fail to serialize.
    to_raw_value(&json!({"event_type": kind, "data": data})).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

impl Renderer for Claimed {
    type Form = ();

    async fn before_workflow(driver: &Driver<Self>, _rollout: &mut Rollout) -> ControlFlow<()> {
        let claimed = &driver.renderer;
        let is_made = claimed.claim(driver).await;
        claimed.claim.is_made.store(is_made, Ordering::Relaxed);
        let decided = claimed.claim.decided.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(decided) = decided {
            // The loop that claims may have stopped.
            let _ = decided.send(());
        }
        if is_made { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    fn is_known(&self) -> bool {
        self.claim.is_made.load(Ordering::Relaxed)
    }

    fn refuse(self, entry: LedgerEntry) {
        tracing::debug!(rollout = self.id, "a rollout belongs to another controller, or was deleted");
        entry.settle();
    }

    fn body(&self, _message: Message, source: &Source<'_>, _delivery: &Delivery) -> Bytes {
        let (events, status) = self.report(source);
        let Ok(status) = serde_json::from_slice::<&RawValue>(&status) else { return Bytes::new() };
        let report = Report { events: events.iter().map(|event| &**event).collect(), status };
        serde_json::to_vec(&report).map(Bytes::from).unwrap_or_default()
    }

    fn public_outcome(&self, finished: &Finished, _delivery: &Delivery) -> PublicOutcome {
        let is_scored = matches!(finished.outcome, Outcome::Scored { .. });
        PublicOutcome::of(if is_scored { "success" } else { "failure" }, &finished.outcome)
    }

    fn form(&self, _delivery: &Delivery) {}

    async fn send(
        driver: &Driver<Self>,
        _message: Message,
        body: Bytes,
    ) -> Result<Acknowledged, Undelivered> {
        let (attempts, sent) = driver.renderer.deliver(&body).await;
        match sent {
            Ok(change) => {
                if change != Change::Made {
                    tracing::info!("the trainer no longer waits for this rollout");
                }
                Ok(Acknowledged { status: 200, attempts, body: Bytes::new() })
            }
            Err(reason) => Err(Undelivered { attempts, reason, status: None, fault: Fault::Caller }),
        }
    }

    async fn abandoned(driver: &Driver<Self>) {
        let claimed = &driver.renderer;
        let deleted = async {
            loop {
                tokio::time::sleep(CHECK_INTERVAL).await;
                let state = claimed.dialect.gateway.state(&claimed.id).await;
                let reason = match state {
                    Ok(RolloutState::Deleted) => "deleted",
                    Ok(RolloutState::Ended) => "ended",
                    _ => continue,
                };
                tracing::info!(reason, "the trainer no longer waits for this rollout, which is cancelled");
                return;
            }
        };
        let late = async {
            match claimed.timeout {
                Some(timeout) => tokio::time::sleep(timeout).await,
                None => std::future::pending().await,
            }
            claimed.is_late.store(true, Ordering::Relaxed);
        };
        tokio::select! {
            () = deleted => {}
            () = late => {}
        }
    }
}
