//! History of rollouts that ran before: in an earlier process, or in a record to be rerun.

use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

use tokio::time::Instant;

use super::Rollout;
use crate::journal::Started;
use crate::model::{Failure, FailureKind, Phase, Stage};
use rollout_core::error::Fault;
use rollout_guest::imports::{Boundary, ClockStart, Diverged, Past, Role, Then};
use rollout_guest::instance::RunError;
use rollout_transcript::{Event, Run};

/// Facts about a rollout that an earlier process started or that is rerun.
pub(crate) struct Resumed {
    pub admitted_at: SystemTime,
    pub started: Started,
    /// The difference between its deployment and the one that it was admitted to, if there is one.
    pub differs: Option<String>,
    /// The date that its clocks start with.
    pub clock_begins: ClockStart,
    /// The recorded history of its runs.
    pub past: PastLocation,
}

/// Location of the history of a rollout's runs.
pub(crate) enum PastLocation {
    /// In its own journal, to which the rollout continues to write.
    Journal,
    /// In memory.
    Here {
        /// The events of the workflow's run, and of the grader's.
        events: Mutex<[Vec<Event>; 2]>,
        /// The continuation after the end of each history.
        then: [Then; 2],
        end: Arc<OnceLock<ReplayEnd>>,
    },
}

impl PastLocation {
    /// Returns whether this is a rerun that was cut. A fork, which continues after its history, is not.
    pub(super) fn is_cut(&self) -> bool {
        match self {
            Self::Journal | Self::Here { then: [Then::Continues, _], .. } => false,
            Self::Here { end, .. } => end.get().is_some(),
        }
    }
}

/// Reason why a rerun rollout did not end on its own.
#[derive(Clone, Debug)]
pub enum ReplayEnd {
    /// It diverged from its recorded history.
    Diverged(Role, Diverged),
    /// It reached the end of its recorded history.
    PastOver(Role),
}

impl Rollout {
    /// Returns the time when a run first started. If no earlier process started it, returns the current time, which the
    /// journal records.
    #[expect(clippy::disallowed_methods, reason = "another process measures from this time")]
    pub(super) fn record_start(&self, role: Role) -> Instant {
        let started = self.resumed.as_ref().map(|resumed| resumed.started).unwrap_or_default();
        let began = if role == Role::Grader { started.grader } else { started.workflow };
        if let (None, Some(log)) = (began, self.handle.log()) {
            log.started(role, SystemTime::now());
        }
        began.map_or_else(Instant::now, ago)
    }

    /// Creates the boundary of a run, with its recorded history.
    pub(super) async fn boundary(&mut self, role: Role) -> Result<Arc<Boundary>, Failure> {
        let boundary = self.make_boundary(role).await?;
        self.boundaries[usize::from(role == Role::Grader)] = Some(boundary.clone());
        Ok(boundary)
    }

    /// Appends an end for each call without one, so that journal and record have the same calls. If this process did
    /// not repeat a run of an earlier process, all calls of that run are cut, because the record has none of them.
    pub(super) fn close_calls(&self) {
        let Some(log) = self.handle.log() else { return };
        for (role, boundary) in [Role::Workflow, Role::Grader].into_iter().zip(&self.boundaries) {
            match boundary {
                Some(boundary) => boundary.close_calls(&self.record),
                None if self.resumed.is_some() => {
                    log.run_log(role, None).append(&Event::Cut { at: 0, calls: 0 });
                }
                None => {}
            }
        }
    }

    async fn make_boundary(&self, role: Role) -> Result<Arc<Boundary>, Failure> {
        let of = if role == Role::Grader { Run::Grader } else { Run::Workflow };
        if let Some(Resumed { past: PastLocation::Here { events, then, .. }, .. }) = &self.resumed {
            let mut both = events.lock().unwrap_or_else(PoisonError::into_inner);
            let run = usize::from(role == Role::Grader);
            let events = std::mem::take(&mut both[run]);
            return Ok(Arc::new(Boundary::new(of, None, self.make_past(role, events, then[run]))));
        }
        let Some(log) = self.handle.log().cloned() else {
            return Ok(Arc::new(Boundary::new(of, None, Past::default())));
        };
        let of_run = log.run_log(role, self.storage.clone());
        let past = match self.resumed {
            None => Past::default(),
            Some(_) => {
                // A fork's history is still being written to the journal.
                let read = match log.written().await {
                    Ok(()) => tokio::task::spawn_blocking(move || log.run_events(role)).await,
                    Err(error) => Ok(Err(io::Error::other(error))),
                };
                let events = read.map_err(io::Error::from).and_then(|events| events);
                let stage = if role == Role::Grader { Stage::Grader } else { Stage::Workflow };
                let events = events.map_err(|error| {
                    let reason = format!("its recorded history cannot be read: {error}");
                    Failure::new(stage, FailureKind::Resume, Fault::Host, reason)
                })?;
                self.make_past(role, events, Then::Continues)
            }
        };
        Ok(Arc::new(Boundary::new(of, Some(of_run), past)))
    }

    fn make_past(&self, role: Role, events: Vec<Event>, then: Then) -> Past {
        let fork = self.request.fork.as_ref().filter(|_| role == Role::Workflow);
        let ancestors = fork.map(|fork| fork.ancestors.as_slice()).unwrap_or_default();
        let past = Past::new(events, then).charged_to(&self.holder);
        past.forked_at(ancestors.iter().map(|ancestor| ancestor.events))
    }

    /// Ends a run, and stores the answers that have arrived. A run that ended on its own must have consumed its whole
    /// history; otherwise it diverged.
    pub(super) fn end_run<T>(&self, boundary: &Boundary, ran: Result<T, RunError>) -> Result<T, RunError> {
        boundary.end(&self.record, &self.host.0.deployment.limits);
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
        if let (Err(error), Some(Resumed { past: PastLocation::Here { end, .. }, .. })) =
            (&ran, &self.resumed)
        {
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

/// Converts a time to this process's clock. A time before the machine's start becomes the earliest possible one.
#[expect(clippy::disallowed_methods, reason = "an earlier process measured from this time")]
pub(super) fn ago(then: SystemTime) -> Instant {
    let now = Instant::now();
    let since = SystemTime::now().duration_since(then).unwrap_or_default();
    now.checked_sub(since).unwrap_or(now)
}
