//! Generation C: the result is posted back in two callbacks, the completion when the
//! workflow is done and the grader's when all is. The grader's is the terminal one.

use std::panic::AssertUnwindSafe;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use futures_util::FutureExt;
use serde::Serialize;
use serde_json::{Value, json};
use tracing::Instrument;

use super::error::ApiError;
use super::request::{Asked, CalledBack};
use super::sample::{WireSample, category};
use super::{Osmosis, id_in_path};
use crate::id::RolloutId;
use crate::outbound::{Secret, Undelivered};
use crate::rollout::{Failure, FailureKind, Finished, Outcome, Phase, Rollout};

/// Posted when the workflow is done.
#[derive(Serialize)]
struct Completion<'a> {
    status: &'static str,
    rollout_id: &'a RolloutId,
    extra_fields: Option<()>,
    err_message: Option<&'a str>,
    err_category: Option<&'static str>,
}

impl<'a> Completion<'a> {
    fn success(rollout_id: &'a RolloutId) -> Self {
        Self { status: "success", rollout_id, extra_fields: None, err_message: None, err_category: None }
    }

    fn failure(rollout_id: &'a RolloutId, message: &'a str, category: Option<&'static str>) -> Self {
        let (err_message, err_category) = (Some(message), category);
        Self { status: "failure", err_message, err_category, ..Self::success(rollout_id) }
    }
}

/// Posted when all is done.
#[derive(Serialize)]
struct Graded<'a> {
    status: &'static str,
    rollout_id: &'a RolloutId,
    sample: Option<WireSample<'a>>,
    err_message: Option<&'a str>,
    err_category: Option<&'static str>,
}

impl<'a> Graded<'a> {
    /// A failure whose reason is on the completion, or nowhere.
    fn bare(rollout_id: &'a RolloutId) -> Self {
        Self { status: "failure", rollout_id, sample: None, err_message: None, err_category: None }
    }
}

/// Takes a rollout on and leaves it to a task of its own.
pub(super) fn start(osmosis: &Osmosis, request: CalledBack) -> Result<(), ApiError> {
    let CalledBack { asked: Asked { rollout, gradable, label }, completion_url, grader_url, controller_key } =
        request;
    let id = rollout.id.clone();
    let rollout = osmosis.0.host.admit(rollout)?;
    let gradable = gradable && osmosis.0.host.grader().is_some();
    let task = Task {
        osmosis: osmosis.clone(),
        id,
        completion_url,
        grader_url,
        key: controller_key,
        gradable,
        label,
    };
    let span = rollout.span();
    osmosis.0.tasks.spawn(task.run(rollout).instrument(span));
    Ok(())
}

/// One rollout that is being run and told of.
struct Task {
    osmosis: Osmosis,
    id: RolloutId,
    completion_url: String,
    grader_url: Option<String>,
    key: Option<Secret>,
    gradable: bool,
    label: Option<String>,
}

/// What the steps before the terminal callback came to.
enum Came {
    /// The caller hears nothing more: it cancelled.
    Cancelled,
    /// The terminal callback says only that it failed.
    Bare,
    /// The rollout is over and its terminal callback says how.
    Finished(Box<Finished>),
}

impl Task {
    /// Runs the rollout and sends its one terminal callback.
    async fn run(self, rollout: Rollout) {
        let came = match AssertUnwindSafe(self.steps(rollout)).catch_unwind().await {
            Ok(came) => came,
            Err(_) => {
                tracing::error!("the host panicked in a rollout, which ends unscored");
                let failure = Completion::failure(&self.id, "rollout task crashed", Some("agent_error"));
                self.post_completion(&failure).await.ok();
                Came::Bare
            }
        };
        let Some(url) = &self.grader_url else { return };
        let body = match &came {
            Came::Cancelled => return,
            Came::Bare => Graded::bare(&self.id),
            Came::Finished(finished) => self.graded(finished),
        };
        let Err(undelivered) = self.post(url, &body).await else { return };
        // A caller that refused the result may still take the word that there is none.
        if !matches!(came, Came::Bare) {
            self.post(url, &Graded::bare(&self.id)).await.ok();
        }
        tracing::warn!(%undelivered, "grader callback not delivered");
    }

    async fn steps(&self, mut rollout: Rollout) -> Came {
        let ran = rollout.run_workflow().await;
        let completion = match &ran {
            Err(failure) if failure.kind == FailureKind::Cancelled => {
                rollout.finish().await;
                return Came::Cancelled;
            }
            Err(failure) => Completion::failure(&self.id, &failure.reason, Some(category(failure))),
            Ok(()) => Completion::success(&self.id),
        };
        if self.post_completion(&completion).await.is_err() {
            let failure = Completion::failure(&self.id, "Internal server error", None);
            self.post_completion(&failure).await.ok();
            rollout.finish().await;
            return Came::Bare;
        }
        if ran.is_err() || self.grader_url.is_none() || !self.gradable {
            let finished = rollout.finish().await;
            return match finished.outcome {
                // An agent loop may have rated itself.
                Outcome::Scored { .. } => Came::Finished(Box::new(finished)),
                Outcome::Unscored(_) => Came::Bare,
            };
        }
        let graded = rollout.grade().await;
        let finished = rollout.finish().await;
        match graded {
            Err(Failure { kind: FailureKind::Cancelled, .. }) => Came::Cancelled,
            _ => Came::Finished(Box::new(finished)),
        }
    }

    fn graded<'a>(&'a self, finished: &'a Finished) -> Graded<'a> {
        let sample = |graded| WireSample::of(finished, self.label.as_deref(), graded);
        match &finished.outcome {
            Outcome::Scored { .. } => {
                Graded { status: "success", sample: sample(true), ..Graded::bare(&self.id) }
            }
            Outcome::Unscored(failure) if failure.kind == FailureKind::Withdrawn => {
                Graded { status: "success", sample: sample(true), ..Graded::bare(&self.id) }
            }
            Outcome::Unscored(failure) => Graded {
                sample: sample(false),
                err_message: Some(&failure.reason),
                err_category: Some(category(failure)),
                ..Graded::bare(&self.id)
            },
        }
    }

    async fn post_completion(&self, completion: &Completion<'_>) -> Result<(), Undelivered> {
        let posted = self.post(&self.completion_url, completion).await;
        if let Err(undelivered) = &posted {
            tracing::warn!(%undelivered, "completion callback not delivered");
        }
        posted
    }

    async fn post(&self, url: &str, body: &impl Serialize) -> Result<(), Undelivered> {
        // Text, numbers that were checked, and JSON that was parsed before.
        let body = serde_json::to_vec(body).map(Bytes::from).unwrap_or_default();
        self.osmosis.0.callbacks.post(url, self.key.as_ref(), body).await.map(drop)
    }
}

/// Says how far a rollout is; always answered, an unknown id among others.
pub(super) async fn status(State(osmosis): State<Osmosis>, path: Path<String>) -> Json<Value> {
    let asked = path.0.clone();
    let handle = id_in_path(path).and_then(|id| osmosis.0.host.find(&id));
    let status = match handle.map(|handle| handle.phase()) {
        None => "unknown",
        Some(Phase::Queued) => "queued",
        Some(Phase::Running) => "running",
        Some(Phase::Grading) => "grading",
    };
    Json(json!({"rollout_id": asked, "status": status, "reward": null, "err_message": null}))
}
