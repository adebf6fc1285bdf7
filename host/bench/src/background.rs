//! Rollouts that go on beside those that are measured, such as guests that compute for ever.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Deserialize;

use super::outcome::{ErrorKind, Failure};
use super::trainer::{TrainerContext, Worker};
use super::{Background, BenchError};

/// Rollouts under way. They are to be ended: a server goes on with those that are forgotten
/// until their lease is over.
#[must_use]
pub(super) struct Company {
    worker: Worker,
    ids: Vec<String>,
}

#[derive(Deserialize)]
struct Cancelled {
    dispositions: HashMap<String, String>,
}

impl Company {
    /// Has the server begin them all.
    pub(super) async fn begin(
        context: &Arc<TrainerContext>,
        background: &Background,
    ) -> Result<Self, BenchError> {
        let mut company =
            Self { worker: Worker::with_prompt(context.clone(), &background.prompt), ids: Vec::new() };
        for _ in 0..background.rollouts {
            match company.worker.begin().await {
                Ok(id) => company.ids.push(id),
                Err(failure) => {
                    let _ = company.cancel().await;
                    return Err(refused(failure));
                }
            }
        }
        Ok(company)
    }

    /// Cancels them all. An error if one had ended by itself: what was measured then was not
    /// measured beside it.
    pub(super) async fn end(mut self) -> Result<(), BenchError> {
        let cancelled = self.cancel().await.map_err(refused)?;
        let went_on =
            |id: &&String| cancelled.dispositions.get(*id).is_some_and(|it| it == "cancelled_running");
        let rollouts = self.ids.len();
        match rollouts - self.ids.iter().filter(went_on).count() {
            0 => Ok(()),
            ended => Err(BenchError::BesideEnded { ended, rollouts }),
        }
    }

    async fn cancel(&mut self) -> Result<Cancelled, Failure> {
        let answer = self.worker.cancel(&self.ids).await?;
        match answer.status()? {
            200 => serde_json::from_slice(answer.body())
                .map_err(|_| Failure::of_body(ErrorKind::Malformed, answer.body())),
            other => Err(Failure::of_body(ErrorKind::Result(other), answer.body())),
        }
    }
}

fn refused(failure: Failure) -> BenchError {
    BenchError::Background { kind: failure.kind, detail: failure.detail }
}
