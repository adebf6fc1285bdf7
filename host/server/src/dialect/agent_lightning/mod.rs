//! Agent Lightning, version 1: a queue of rollouts at a gateway, from which this host claims work.
//!
//! The host is both the controller and the agent. The pull client lists waiting rollouts; each is stored in the journal,
//! claimed, run against the model behind the gateway, and ended with its reward. A restarted process continues the rollouts
//! that are still its own.

mod claimed;
mod gateway;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use serde::{Deserialize, Serialize};
use serde_json::Map;
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::continued::Continued;
use super::delivery::Delivery;
use super::driver::{Addresses, Driver};
use super::ledger::{Ledger, LedgerEntry, LedgerTimes};
use super::pull::{self, PullSettings, SourceError, WorkSource};
pub use super::row::{FieldPath, InvalidFieldPath, RowFields};
use super::row::{MappedRow, TRAJECTORY_MEMBERS};
use super::{Health, Routes};
use crate::random;
use crate::serving::Serving;
use claimed::{Claim, Claimed};
use gateway::{Gateway, PAUSES, StatusChange, Waiting};
use rollout_assembly::config::Config;
use rollout_core::budget::Use;
use rollout_core::telemetry::RolloutTrace;
use rollout_outbound::{InvalidService, Secret};
use rollout_rollout::{
    AdmitError, Continuation, Host, LoopOptions, ModelAddress, Resources, RolloutLog, RolloutRequest,
    TrajectoryExtra, UnfinishedRollout, drive,
};
use rollout_wire::atif::SchemaVersion;
use rollout_wire::id::RolloutId;

/// The name of this protocol's driver.
const DRIVER: &str = "agent-lightning";

/// Name of the model in requests. The gateway replaces it.
const MODEL: &str = "agent-lightning";

/// Maximum number of rollouts that are claimed at once.
const OFFERS_MAX: usize = 256;

/// Time for which the status of a finished rollout is stored. No route reads it.
const STATUS_TTL: Duration = Duration::from_secs(60);

/// The parts of the dialect.
pub struct AgentLightningSettings {
    /// The host that runs the rollouts.
    pub serving: Serving,
    /// The address of the server with the rollouts.
    pub url: String,
    /// Its key.
    pub key: Option<Secret>,
    /// The fields of rows.
    pub fields: RowFields,
    /// Interval of requests to the server while there is no work.
    pub interval: Duration,
}

/// Error of a gateway that refuses this host.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the gateway at {url} cannot be used: {reason}")]
pub struct GatewayRefused {
    url: String,
    reason: String,
}

/// The dialect. Cheap to clone.
#[derive(Clone)]
pub struct AgentLightning(Arc<Inner>);

struct Inner {
    serving: Serving,
    gateway: Gateway,
    key: Option<Secret>,
    fields: RowFields,
    interval: Duration,
    /// The name of this controller in the rollouts that it claims.
    owner: String,
    ledger: Arc<Ledger>,
    /// One task for each rollout until its end is reported.
    tasks: TaskTracker,
    continued: Continued,
    /// Notified whenever a rollout ends.
    ended: Arc<Notify>,
    /// Cancelled when no more rollouts are claimed.
    closing: CancellationToken,
}

/// Facts that the journal stores with an admission.
#[derive(Serialize, Deserialize)]
struct Facts {
    /// The initial state of the delivery.
    delivery: Delivery,
    /// The address of the gateway.
    gateway: String,
    /// The gateway's id of the rollout.
    id: String,
    /// The name under which it is claimed.
    owner: String,
    timeout_secs: Option<f64>,
}

impl AgentLightning {
    /// Creates the dialect of a host.
    pub fn new(settings: AgentLightningSettings) -> Result<Self, InvalidService> {
        let AgentLightningSettings { serving, url, key, fields, interval } = settings;
        let host = serving.host();
        let times = LedgerTimes::without_polls(STATUS_TTL);
        let gateway = Gateway::new(&host.runtime().transport().rules(), &url, key.as_ref())?;
        Ok(Self(Arc::new(Inner {
            continued: Continued::of(host.budget()),
            ledger: Ledger::new(times, &host),
            serving,
            gateway,
            key,
            fields,
            interval,
            owner: format!("rollout-host-{}", random::id()),
            tasks: TaskTracker::new(),
            ended: Arc::default(),
            closing: CancellationToken::new(),
        })))
    }

    /// Returns the address of the gateway, without secrets.
    pub fn gateway(&self) -> &str {
        self.0.gateway.base()
    }

    /// Claims and runs rollouts until the dialect is closed.
    pub async fn run(&self) -> Result<(), GatewayRefused> {
        self.0.ledger.start();
        let settings = PullSettings { interval: self.0.interval, offers_max: OFFERS_MAX };
        let host = || self.0.serving.host();
        let pulled = pull::pull(self, host, &settings, &self.0.ended, &self.0.closing).await;
        pulled.map_err(|error| GatewayRefused {
            url: self.0.gateway.base().to_owned(),
            reason: error.to_string(),
        })
    }

    /// Starts a rollout, which claims itself. Returns a receiver that is notified once the claim has succeeded or
    /// failed.
    fn start(
        &self,
        offer: &Waiting,
        row: MappedRow,
        id: RolloutId,
    ) -> Result<oneshot::Receiver<()>, AdmitError> {
        let inner = &self.0;
        let host = inner.serving.host();
        let url = inner.gateway.model_url(&offer.id, offer.is_train);
        let (model, secrets) = ModelAddress::split(&url, MODEL, inner.key.clone());
        // The gateway's own address and key were checked.
        let endpoint = secrets.endpoint(&model).map_err(|_| AdmitError::Closed)?.pausing(PAUSES);
        let MappedRow { prompt, label, metadata } = row;
        let request = RolloutRequest {
            id: id.clone(),
            caller_id: None,
            attempt: 1,
            prompt,
            label,
            metadata,
            loop_options: LoopOptions::default(),
            model,
            samples_max: 1,
            samples_must_ask: false,
            workflow_secs: offer.timeout_secs,
            grader_secs: None,
            trajectory_extra: Some(TrajectoryExtra {
                schema_version: SchemaVersion::V1_7,
                key: "agent_lightning".into(),
                members: TRAJECTORY_MEMBERS.into(),
                request_fields: None,
            }),
            fork: None,
            conversation: None,
            group: None,
        };
        let facts = Facts {
            delivery: Delivery::always_posted(),
            gateway: inner.gateway.base().to_owned(),
            id: offer.id.clone(),
            owner: inner.owner.clone(),
            timeout_secs: offer.timeout_secs,
        };
        // Words, numbers and texts cannot fail to serialize.
        let stored = to_raw_value(&facts).unwrap_or_else(|_| RawValue::NULL.to_owned());
        let charge = host.budget().charge(Use::Request, request.memory_bytes() + secrets.memory_bytes())?;
        let resources = Resources {
            model: Arc::new(endpoint),
            secrets,
            charge: Some(charge),
            continuation: Some(Continuation { driver: DRIVER.into(), facts: stored, secret: None }),
            past: None,
        };
        let rollout = host.admit(request, resources)?;
        let entry = inner.ledger.open();
        entry.begin(id, &offer.id, Some(rollout.handle()));
        let (decided, decision) = oneshot::channel();
        let claim =
            Claim { is_resumed: false, is_made: AtomicBool::new(false), decided: Mutex::new(Some(decided)) };
        let work = (rollout.log().cloned(), rollout.traced_below(None));
        let driver = self.driver(&host, entry, &facts, work, claim);
        let ended = inner.ended.clone();
        inner.tasks.spawn(async move {
            drive(rollout, driver).await;
            ended.notify_one();
        });
        Ok(decision)
    }

    fn driver(
        &self,
        host: &Host,
        entry: LedgerEntry,
        facts: &Facts,
        (log, trace): (Option<RolloutLog>, RolloutTrace),
        claim: Claim,
    ) -> Box<Driver<Claimed>> {
        Box::new(Driver {
            entry,
            log,
            is_gradable: host.grader().is_some(),
            delivery: facts.delivery.clone().into(),
            client: None,
            addresses: Addresses::default(),
            trace,
            renderer: Claimed {
                dialect: self.0.clone(),
                id: facts.id.clone(),
                owner: facts.owner.clone(),
                timeout: facts.timeout_secs.and_then(|secs| Duration::try_from_secs_f64(secs).ok()),
                source: if host.grader().is_some() { "grader" } else { "agent" },
                claim,
                is_late: AtomicBool::new(false),
            },
        })
    }

    /// Ends a waiting rollout that this host cannot run.
    async fn refuse(&self, offer: &Waiting, reason: String) {
        tracing::warn!(
            rollout = offer.id,
            reason,
            "a rollout of the gateway cannot be run, and is ended as failed"
        );
        let change = StatusChange::failed(reason).body();
        if let Err(error) = self.0.gateway.change(&offer.id, change).await {
            // The gateway still lists the rollout, so it is refused again after the next list.
            tracing::warn!(rollout = offer.id, %error, "cannot report the end of a rollout");
        }
    }
}

impl WorkSource for AgentLightning {
    type Offer = Waiting;

    async fn offers(&self, max: usize) -> Result<Vec<Waiting>, SourceError> {
        self.0.gateway.waiting(max).await
    }

    async fn take(&self, offers: Vec<Waiting>) -> bool {
        let (mut has_room, mut decisions, mut refusals) = (true, Vec::new(), Vec::new());
        for offer in offers {
            let id = RolloutId::parse(&*offer.id).map_err(|error| error.to_string());
            let row = self.0.fields.read(offer.input.get());
            match id.and_then(|id| Ok((id, row?))) {
                Err(reason) => refusals.push((offer, reason)),
                Ok((id, row)) => match self.start(&offer, row, id) {
                    Ok(decision) => decisions.push(decision),
                    // The trainer has enqueued the rollout again. It waits until its previous run is reported.
                    Err(AdmitError::Duplicate) => {}
                    Err(error) => {
                        tracing::debug!(%error, "no more rollouts are claimed for now");
                        has_room = false;
                        break;
                    }
                },
            }
        }
        for (offer, reason) in refusals {
            self.refuse(&offer, reason).await;
        }
        // A rollout that is dropped before its claim is decided is not claimed.
        join_all(decisions).await;
        has_room
    }
}

impl super::Dialect for AgentLightning {
    fn routes(&self) -> Vec<Routes> {
        Vec::new()
    }

    fn health(&self) -> Health {
        let (active, completed) = self.0.ledger.counts();
        let fields = Map::from_iter([
            ("gateway".to_owned(), self.0.gateway.base().into()),
            ("active_rollouts".to_owned(), active.into()),
            ("completed_rollouts".to_owned(), completed.into()),
        ]);
        Health { fields, is_all: false }
    }

    /// Returns none: no caller connects to this host.
    fn descriptors_per_rollout(_config: &Config) -> u64 {
        0
    }

    fn drives(&self, driver: &str) -> bool {
        driver == DRIVER
    }

    fn resume(&self, host: &Host, unfinished: UnfinishedRollout) -> Result<(), String> {
        self.0.ledger.start();
        let facts: Facts = serde_json::from_str(unfinished.facts.get())
            .map_err(|error| format!("cannot parse the facts of its driver: {error}"))?;
        if facts.gateway != self.0.gateway.base() {
            return Err(format!("it belongs to the gateway at {}; start with that address", facts.gateway));
        }
        let log = unfinished.log().clone();
        let entry = self.0.ledger.open();
        let is_made = AtomicBool::new(unfinished.is_over);
        let claim = Claim { is_resumed: true, is_made, decided: Mutex::new(None) };
        let pausing = |model: rollout_outbound::ModelEndpoint| Ok(model.pausing(PAUSES));
        let id = facts.id.clone();
        self.0.continued.continue_rollout((&self.0.tasks, host), unfinished, &id, pausing, |rollout| {
            let trace = rollout.map(|rollout| rollout.traced_below(None)).unwrap_or_default();
            self.driver(host, entry, &facts, (Some(log), trace), claim)
        })
    }

    fn is_idle(&self) -> bool {
        self.0.tasks.is_empty() && self.0.ledger.is_empty()
    }

    fn close(&self) {
        self.0.closing.cancel();
        self.0.ledger.close();
    }

    fn drain(&self, until: Instant) -> BoxFuture<'_, bool> {
        self.0.tasks.close();
        let done = async {
            self.0.tasks.wait().await;
            self.0.ledger.all_settled().await;
        };
        Box::pin(async move { tokio::time::timeout_at(until, done).await.is_ok() })
    }

    fn announce_cancellation(&self) {
        self.0.ledger.cancel_rest();
    }

    fn unreported(&self) -> Vec<String> {
        self.0.ledger.unreported()
    }
}
