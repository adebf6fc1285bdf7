//! Drives a rollout from its admission to its end. This is the only way in which one is driven:
//! protocols, evaluations and checks say by [`Steps`] what they do at which step of it.
//!
//! Here are the order of the steps, what a cancelled rollout skips, the guard that makes a panic
//! the end of one rollout, and the watch over it from outside.

use std::ops::ControlFlow;
use std::panic::AssertUnwindSafe;
use std::pin::pin;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tracing::Instrument;

use super::model::{Failure, FailureKind, Finished, Outcome, Phase, Stage};
use super::run::Rollout;

/// What is done at the steps of a rollout.
pub trait Steps: Send + Sync {
    /// What is made of a rollout that is over.
    type End: Send;

    /// Before the workflow runs. A rollout that is not to run at all ends here.
    fn before_workflow(&self, rollout: &mut Rollout) -> impl Future<Output = ControlFlow<()>> + Send {
        let _ = rollout;
        std::future::ready(ControlFlow::Continue(()))
    }

    /// The workflow ended, and was not cancelled. Says what comes next, at once or after the
    /// caller was notified.
    fn after_workflow<'a>(&'a self, ran: Result<(), &'a Failure>) -> AfterWorkflow<'a>;

    /// The rollout is in another phase.
    fn entered(&self, phase: Phase) {
        let _ = phase;
    }

    /// Ends when nobody wants the rollout any more, which is then cancelled.
    fn abandoned(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// The rollout is over.
    fn finished(self: Box<Self>, ended: Ended) -> impl Future<Output = Self::End> + Send;
}

/// What comes after the workflow.
pub enum AfterWorkflow<'a> {
    /// This.
    Go(Next),
    /// The caller is notified, which needs no guest, and says then.
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
    /// Whether the grader runs.
    pub fn graded(is_graded: bool) -> Self {
        if is_graded { Self::Grade } else { Self::Finish }
    }
}

/// How a rollout ended, for whoever asked for it.
pub enum Ended {
    /// It went through its steps.
    Finished(Box<Finished>),
    /// It was cancelled before it was through. What its workflow or grader made of it until
    /// then is in the outcome.
    Cancelled(Box<Finished>),
    /// The host panicked in it, and nothing else is known of it.
    Crashed(Failure),
}

impl Ended {
    /// How a rollout ended that a process before came to the end with.
    pub fn of(finished: Box<Finished>) -> Self {
        match &finished.outcome {
            Outcome::Unscored(Failure { kind: FailureKind::Cancelled, .. }) => Self::Cancelled(finished),
            _ => Self::Finished(finished),
        }
    }
}

/// Drives a rollout to its end and makes of that what the steps say.
pub async fn drive<S: Steps>(rollout: Box<Rollout>, steps: Box<S>) -> S::End {
    let span = rollout.span();
    let driven = async move {
        let ended = watched(rollout, &*steps).await;
        // In a box: a rollout that waits is not at this step, and would hold its size as well.
        Box::pin(steps.finished(ended)).await
    };
    driven.instrument(span).await
}

/// Takes the rollout through its steps, and sees meanwhile to who asks how far it is.
async fn watched<S: Steps>(rollout: Box<Rollout>, steps: &S) -> Ended {
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
        tracing::error!("the host panicked in a rollout, which ends unscored");
        Ended::Crashed(Failure::host(Stage::Workflow, "rollout task crashed"))
    })
}

async fn run<S: Steps>(mut rollout: Box<Rollout>, steps: &S) -> Ended {
    let through = steps_of(&mut rollout, steps).await;
    let finished = Box::new(rollout.finish().await);
    match through {
        Err(Failure { kind: FailureKind::Cancelled, .. }) => Ended::Cancelled(finished),
        Ok(()) | Err(_) => Ended::Finished(finished),
    }
}

/// The steps up to the end. The error is in the outcome too.
async fn steps_of<S: Steps>(rollout: &mut Rollout, steps: &S) -> Result<(), Failure> {
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
