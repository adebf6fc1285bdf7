//! Rollouts that run in the background of a measurement, such as guests that compute forever.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Deserialize;

use super::outcome::{ErrorKind, Failure};
use super::trainer::{TrainerContext, Worker};
use super::{Background, BenchError};

/// Running background rollouts. They must be cancelled with [`end`](Self::end), because the server otherwise
/// runs them until their leases expire.
#[must_use]
pub(super) struct BackgroundRollouts {
    worker: Worker,
    ids: Vec<String>,
}

#[derive(Deserialize)]
struct Cancelled {
    dispositions: HashMap<String, String>,
}

impl BackgroundRollouts {
    /// Starts all background rollouts.
    pub(super) async fn begin(
        context: &Arc<TrainerContext>,
        background: &Background,
    ) -> Result<Self, BenchError> {
        let mut background_rollouts =
            Self { worker: Worker::with_prompt(context.clone(), &background.prompt), ids: Vec::new() };
        for _ in 0..background.rollouts {
            match background_rollouts.worker.begin().await {
                Ok(id) => background_rollouts.ids.push(id),
                Err(failure) => {
                    let _ = background_rollouts.cancel().await;
                    return Err(refused(failure));
                }
            }
        }
        Ok(background_rollouts)
    }

    /// Cancels all background rollouts. Fails if one ended earlier, because the measurement then ran without
    /// it.
    pub(super) async fn end(mut self) -> Result<(), BenchError> {
        let cancelled = self.cancel().await.map_err(refused)?;
        let went_on =
            |id: &&String| cancelled.dispositions.get(*id).is_some_and(|it| it == "cancelled_running");
        let rollouts = self.ids.len();
        match rollouts - self.ids.iter().filter(went_on).count() {
            0 => Ok(()),
            ended => Err(BenchError::BackgroundEnded { ended, rollouts }),
        }
    }

    async fn cancel(&mut self) -> Result<Cancelled, Failure> {
        let answer = self.worker.cancel(&self.ids).await?;
        match answer.status()? {
            200 => serde_json::from_slice(answer.body())
                .map_err(|_| Failure::from_body(ErrorKind::Malformed, answer.body())),
            other => Err(Failure::from_body(ErrorKind::Result(other), answer.body())),
        }
    }
}

fn refused(failure: Failure) -> BenchError {
    BenchError::Background { kind: failure.kind, detail: failure.detail }
}
