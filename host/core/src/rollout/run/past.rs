//! What is known of a rollout that ran before: in a process that died, or to be made again.

use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

use tokio::time::Instant;

use super::Rollout;
use crate::error::Fault;
use crate::imports::{Boundary, ClockStart, Diverged, Past, Role, Then};
use crate::instance::RunError;
use crate::rollout::journal::Started;
use crate::rollout::model::{Failure, FailureKind, Phase, Stage};
use rollout_transcript::{Event, Run};

/// What is known of a rollout that a process before began.
pub(in crate::rollout) struct Resumed {
    pub admitted_at: SystemTime,
    pub started: Started,
    /// How its deployment differs from the one that it was admitted to, if it does.
    pub differs: Option<String>,
    /// The date that its clocks begin at.
    pub clock_begins: ClockStart,
    /// What happened in its runs.
    pub past: PastOf,
}

/// Where what happened in a rollout's runs is.
pub(in crate::rollout) enum PastOf {
    /// In its own journal, from which it goes on.
    Journal,
    /// Here.
    Here {
        /// The workflow's, and the grader's.
        events: Mutex<[Vec<Event>; 2]>,
        /// What comes after it, likewise.
        then: [Then; 2],
        end: Arc<OnceLock<ReplayEnd>>,
    },
}

impl PastOf {
    /// Whether this is a replay that did not come to an end of its own. A fork goes on after its past, and is none.
    pub(super) fn is_cut(&self) -> bool {
        match self {
            Self::Journal | Self::Here { then: [Then::GoesOn, _], .. } => false,
            Self::Here { end, .. } => end.get().is_some(),
        }
    }
}

/// Why a rollout that was made again did not come to an end of its own.
#[derive(Clone, Debug)]
pub enum ReplayEnd {
    /// It did not do what it did then.
    Diverged(Role, Diverged),
    /// It came to where its past ends.
    PastOver(Role),
}

impl Rollout {
    /// When a run of it began first, which is now unless a process before began it.
    #[expect(clippy::disallowed_methods, reason = "a time that another process measures from")]
    pub(super) fn begins(&self, role: Role) -> Instant {
        let started = self.resumed.as_ref().map(|resumed| resumed.started).unwrap_or_default();
        let began = if role == Role::Grader { started.grader } else { started.workflow };
        if let (None, Some(log)) = (began, self.handle.log()) {
            log.started(role, SystemTime::now());
        }
        began.map_or_else(Instant::now, ago)
    }

    /// Returns the boundary of a run, with what happened in the run in an earlier process.
    pub(super) async fn boundary(&mut self, role: Role) -> Result<Arc<Boundary>, Failure> {
        let boundary = self.make_boundary(role).await?;
        self.boundaries[usize::from(role == Role::Grader)] = Some(boundary.clone());
        Ok(boundary)
    }

    /// Gives each call that has no end one, so that the journal has the same calls as the record. A run that this process did
    /// not begin has none.
    pub(super) fn close_calls(&self) {
        let Some(log) = self.handle.log() else { return };
        for (role, boundary) in [Role::Workflow, Role::Grader].into_iter().zip(&self.boundaries) {
            match boundary {
                Some(boundary) => boundary.close_calls(&self.record),
                None if self.resumed.is_some() => log.of_run(role).append(&Event::Cut { at: 0, calls: 0 }),
                None => {}
            }
        }
    }

    async fn make_boundary(&self, role: Role) -> Result<Arc<Boundary>, Failure> {
        let of = if role == Role::Grader { Run::Grader } else { Run::Workflow };
        if let Some(Resumed { past: PastOf::Here { events, then, .. }, .. }) = &self.resumed {
            let mut of_runs = events.lock().unwrap_or_else(PoisonError::into_inner);
            let run = usize::from(role == Role::Grader);
            let events = std::mem::take(&mut of_runs[run]);
            return Ok(Arc::new(Boundary::new(of, None, self.past(role, events, then[run]))));
        }
        let Some(log) = self.handle.log().cloned() else {
            return Ok(Arc::new(Boundary::new(of, None, Past::default())));
        };
        let of_run = log.of_run(role);
        let past = match self.resumed {
            None => Past::default(),
            Some(_) => {
                // A fork's is on its way there.
                let read = match log.written().await {
                    Ok(()) => tokio::task::spawn_blocking(move || log.run_events(role)).await,
                    Err(error) => Ok(Err(io::Error::other(error))),
                };
                let events = read.map_err(io::Error::from).and_then(|events| events);
                let stage = if role == Role::Grader { Stage::Grader } else { Stage::Workflow };
                let events = events.map_err(|error| {
                    let reason = format!("what happened in it before cannot be read: {error}");
                    Failure::new(stage, FailureKind::Resume, Fault::Host, reason)
                })?;
                self.past(role, events, Then::GoesOn)
            }
        };
        Ok(Arc::new(Boundary::new(of, Some(of_run), past)))
    }

    fn past(&self, role: Role, events: Vec<Event>, then: Then) -> Past {
        let fork = self.request.fork.as_ref().filter(|_| role == Role::Workflow);
        let ancestors = fork.map(|fork| fork.ancestors.as_slice()).unwrap_or_default();
        let past = Past::new(events, then).charged_to(&self.holder);
        past.forked_at(ancestors.iter().map(|ancestor| ancestor.events))
    }

    /// A run is over: what arrived until then is kept. One that ended by itself has done all that
    /// it did before, or is not the same again.
    pub(super) fn ends<T>(&self, boundary: &Boundary, ran: Result<T, RunError>) -> Result<T, RunError> {
        boundary.ends(&self.record, &self.host.0.deployment.limits);
        let ended_by_itself = match &ran {
            Ok(_) => true,
            Err(error) => {
                error.fault() == Fault::Plugin && !matches!(error, RunError::Deadline | RunError::Cpu(_))
            }
        };
        let ran = match boundary.check_end() {
            Err(diverged) if ended_by_itself && !matches!(ran, Err(RunError::Diverged(_))) => {
                Err(RunError::Diverged(diverged))
            }
            Ok(()) | Err(_) => ran,
        };
        if let (Err(error), Some(Resumed { past: PastOf::Here { end, .. }, .. })) = (&ran, &self.resumed) {
            let role = if *self.phase.borrow() == Phase::Grading { Role::Grader } else { Role::Workflow };
            let _ = match error {
                RunError::Diverged(diverged) => end.set(ReplayEnd::Diverged(role, diverged.clone())),
                RunError::PastOver => end.set(ReplayEnd::PastOver(role)),
                _ => Ok(()),
            };
        }
        ran
    }
}

/// A time by this process' clock. One before the machine began is as long ago as can be said.
#[expect(clippy::disallowed_methods, reason = "a time that a process before measured from")]
pub(super) fn ago(then: SystemTime) -> Instant {
    let now = Instant::now();
    let since = SystemTime::now().duration_since(then).unwrap_or_default();
    now.checked_sub(since).unwrap_or(now)
}
