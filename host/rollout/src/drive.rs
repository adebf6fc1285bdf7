//! Drives a rollout from its admission to its end. All rollouts use this driver: protocols, evaluations and checks
//! implement [`Steps`] to act at each step.
//!
//! The driver defines the order of the steps, the steps that a cancelled rollout skips, the guard that limits a panic
//! to one rollout, and the reports of its phase.

use std::ops::ControlFlow;
use std::panic::AssertUnwindSafe;
use std::pin::pin;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tracing::Instrument;

use super::model::{Failure, FailureKind, Finished, Outcome, Phase, Stage};
use super::run::Rollout;

/// Actions at the steps of a rollout.
pub trait Steps: Send + Sync {
    /// The result of a rollout that has ended.
    type End: Send;

    /// Called before the workflow runs. Returns `Break` for a rollout that should not run at all.
    fn before_workflow(&self, rollout: &mut Rollout) -> impl Future<Output = ControlFlow<()>> + Send {
        let _ = rollout;
        std::future::ready(ControlFlow::Continue(()))
    }

    /// Called when the workflow has ended without being cancelled. Returns the next step, immediately or after the
    /// caller was notified.
    fn after_workflow<'a>(&'a self, ran: Result<(), &'a Failure>) -> AfterWorkflow<'a>;

    /// Called when the rollout enters a phase.
    fn entered(&self, phase: Phase) {
        let _ = phase;
    }

    /// Completes when the rollout is no longer wanted; it is then cancelled.
    fn abandoned(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// Called when the guests are gone, before the record is written.
    fn ending(&self, rollout: &Rollout) {
        let _ = rollout;
    }

    /// Called when the rollout has ended.
    fn finished(self: Box<Self>, ended: RolloutEnd) -> impl Future<Output = Self::End> + Send;
}

/// The next step after the workflow, possibly after a notification.
pub enum AfterWorkflow<'a> {
    /// The next step.
    Go(Next),
    /// A notification of the caller, which needs no guest and returns the next step.
    Notify(BoxFuture<'a, Next>),
}

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The grader runs, if the workflow succeeded.
    Grade,
    /// The rollout ends.
    Finish,
}

impl Next {
    /// Returns the next step, with or without a grader.
    pub fn graded(is_graded: bool) -> Self {
        if is_graded { Self::Grade } else { Self::Finish }
    }
}

/// The end of a driven rollout.
pub enum RolloutEnd {
    /// The rollout completed its steps.
    Finished(Box<Finished>),
    /// The rollout was cancelled. The outcome has the results of its workflow or grader up to then.
    Cancelled(Box<Finished>),
    /// The host panicked in the rollout, so nothing else is known about it.
    Crashed(Failure),
}

impl RolloutEnd {
    /// Returns the end of a rollout that an earlier process finished.
    pub fn from_finished(finished: Box<Finished>) -> Self {
        match &finished.outcome {
            Outcome::Unscored(Failure { kind: FailureKind::Cancelled, .. }) => Self::Cancelled(finished),
            _ => Self::Finished(finished),
        }
    }
}

/// Drives a rollout to its end and returns the result of the steps.
pub async fn drive<S: Steps>(rollout: Box<Rollout>, steps: Box<S>) -> S::End {
    let span = rollout.span();
    let driven = async move {
        let ended = watched(rollout, &*steps).await;
        // Boxed, so that the memory of this future is allocated only now, and not while the rollout waits in earlier
        // steps.
        Box::pin(steps.finished(ended)).await
    };
    driven.instrument(span).await
}

/// Takes the rollout through its steps, and reports its phases meanwhile.
async fn watched<S: Steps>(rollout: Box<Rollout>, steps: &S) -> RolloutEnd {
    let handle = rollout.handle();
    let mut phases = handle.phases();
    let mut run = pin!(AssertUnwindSafe(run(rollout, steps)).catch_unwind());
    let mut abandoned = pin!(steps.abandoned());
    let mut is_abandoned = false;
    let ended = loop {
        tokio::select! {
            ended = &mut run => break ended,
            Ok(()) = phases.changed() => steps.entered(*phases.borrow_and_update()),
            () = &mut abandoned, if !is_abandoned => {
                is_abandoned = true;
                handle.cancel();
            }
        }
    };
    ended.unwrap_or_else(|_| {
        tracing::error!("the host panicked in a rollout, which ends without a reward");
        RolloutEnd::Crashed(Failure::host(Stage::Workflow, "rollout task crashed"))
    })
}

async fn run<S: Steps>(mut rollout: Box<Rollout>, steps: &S) -> RolloutEnd {
    let through = run_steps(&mut rollout, steps).await;
    let through = Box::pin(rollout.settle_group(through)).await;
    steps.ending(&rollout);
    let finished = Box::new(rollout.finish().await);
    match through {
        Err(Failure { kind: FailureKind::Cancelled, .. }) => RolloutEnd::Cancelled(finished),
        Ok(()) | Err(_) => RolloutEnd::Finished(finished),
    }
}

/// Runs the steps except the last. The error is also a part of the rollout's outcome.
async fn run_steps<S: Steps>(rollout: &mut Rollout, steps: &S) -> Result<(), Failure> {
    if steps.before_workflow(rollout).await.is_break() {
        return Ok(());
    }
    let ran = rollout.run_workflow().await;
    if let Err(Failure { kind: FailureKind::Cancelled, .. }) = &ran {
        return ran;
    }
    let next = match steps.after_workflow(ran.as_ref().copied()) {
        AfterWorkflow::Go(next) => next,
        AfterWorkflow::Notify(notice) => rollout.notify(notice).await?,
    };
    match next {
        Next::Grade if ran.is_ok() => rollout.grade().await,
        Next::Grade | Next::Finish => Ok(()),
    }
}
