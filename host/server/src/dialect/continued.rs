//! Rollouts of an earlier process: each is run to its end, or its stored outcome is delivered.

use std::io;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;

use super::driver::{Driver, Renderer};
use rollout_core::budget::{Budget, Charge};
use rollout_outbound::ModelEndpoint;
use rollout_rollout::{Host, Rollout, RolloutEnd, RolloutLog, Steps, UnfinishedRollout, drive};
use rollout_wire::id::RolloutId;

/// Maximum memory of the stored outcomes that are read at once: a fraction of the budget, and a number of bytes.
const OUTCOMES_PART: usize = 16;
const OUTCOMES_BYTES_MAX: usize = 64 << 20;

/// Number of bytes for which a permit of the semaphore stands.
const TURN_BYTES: usize = 1 << 10;

/// Number of copies of an outcome in memory at once: the stored bytes and the parsed outcome.
const COPIES: usize = 2;

/// Continues rollouts of an earlier process. Outcomes are read and reported in turns. Cheap to clone.
#[derive(Clone)]
pub(super) struct Continued {
    budget: Budget,
    turns: Arc<Semaphore>,
    count: usize,
}

/// The turn of an outcome that is being reported.
struct OutcomeTurn {
    _turn: Option<OwnedSemaphorePermit>,
    _charge: Charge,
}

impl Continued {
    pub(super) fn of(budget: &Budget) -> Self {
        let count = ((budget.total() / OUTCOMES_PART).min(OUTCOMES_BYTES_MAX) / TURN_BYTES).max(1);
        Self { budget: budget.clone(), turns: Arc::new(Semaphore::new(count)), count }
    }

    /// Runs a rollout of an earlier process to its end, or delivers its stored outcome. `name` is the name that the
    /// caller gave the rollout, `with_profile` adds the request profile of its caller to the model, and `driver`
    /// creates its driver, with the rollout if it still runs.
    pub(super) fn continue_rollout<R: Renderer>(
        &self,
        (tasks, host): (&TaskTracker, &Host),
        unfinished: UnfinishedRollout,
        name: &str,
        with_profile: impl FnOnce(ModelEndpoint) -> Result<ModelEndpoint, String>,
        driver: impl FnOnce(Option<&Rollout>) -> Box<Driver<R>>,
    ) -> Result<(), String> {
        let id = unfinished.request.id.clone();
        if unfinished.is_over {
            let (continued, log) = (self.clone(), unfinished.log().clone());
            let driver = driver(None);
            driver.entry.begin(id.clone(), name, None);
            tasks.spawn(async move {
                if let Some((ended, _held)) = continued.outcome(&id, &log).await {
                    driver.finished(ended).await;
                }
            });
            return Ok(());
        }
        let secrets = &unfinished.secrets.request;
        let model = secrets.endpoint(&unfinished.request.model).map_err(|error| error.to_string())?;
        let rollout =
            host.resume(unfinished, Arc::new(with_profile(model)?)).map_err(|error| error.to_string())?;
        let driver = driver(Some(&rollout));
        driver.entry.begin(id, name, Some(rollout.handle()));
        tasks.spawn(drive(rollout, driver));
        Ok(())
    }

    /// Waits for a turn, and reads the stored outcome of an earlier process's rollout. Short outcomes are read
    /// together, long ones one after the other.
    async fn outcome(&self, id: &RolloutId, log: &RolloutLog) -> Option<(RolloutEnd, OutcomeTurn)> {
        let read = async {
            let of = log.clone();
            let bytes =
                tokio::task::spawn_blocking(move || of.outcome_bytes()).await.map_err(io::Error::other)??;
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).saturating_mul(COPIES);
            let count = (bytes / TURN_BYTES).clamp(1, self.count);
            let turn =
                self.turns.clone().acquire_many_owned(u32::try_from(count).unwrap_or(u32::MAX)).await.ok();
            let held = OutcomeTurn { _turn: turn, _charge: self.budget.charge_result(bytes) };
            let of = log.clone();
            let finished =
                tokio::task::spawn_blocking(move || of.read_outcome()).await.map_err(io::Error::other)??;
            let finished =
                finished.ok_or_else(|| io::Error::other("the journal has no outcome of the rollout"))?;
            Ok::<_, io::Error>((RolloutEnd::from_finished(Box::new(finished)), held))
        };
        match read.await {
            Ok(read) => Some(read),
            Err(error) => {
                tracing::error!(rollout_id = %id, %error, "an outcome in the journal cannot be read and stays there");
                None
            }
        }
    }
}
