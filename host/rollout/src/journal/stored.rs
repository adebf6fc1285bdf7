//! Rollouts in a journal, to be rerun or read.

use std::io;
use std::path::Path;
use std::time::SystemTime;

use rollout_journal as store;
use serde_json::value::RawValue;

use super::unfinished::{UnreadableRollout, read_admission, split_line};
use super::{DeploymentId, RanByLine, StartedLine, admission, events_of, kind, outcome};
use crate::model::{Finished, GroupDecision, GroupEvent, RolloutRequest};
use rollout_guest::imports::{ArtifactFile, LogEntry, Role, read_log};
use rollout_transcript::Event;
use rollout_wire::id::RolloutId;

/// A rollout in a journal that is not read yet.
pub struct FoundRollout(pub(super) store::LocatedRollout);

impl FoundRollout {
    /// Returns whether its outcome is stored.
    pub fn is_over(&self) -> bool {
        self.0.has(kind::OUTCOME)
    }

    /// Returns whether it has ended, so that no process resumes it.
    pub fn has_ended(&self) -> bool {
        self.0.has_ended()
    }

    /// Returns its size in files in bytes, to be charged before it is read. Reads files.
    pub fn bytes(&self) -> io::Result<u64> {
        self.0.bytes()
    }

    /// Reads the rollout. Returns `None` if it was deleted meanwhile because of its age. Reads files.
    pub fn read(&self) -> io::Result<Option<StoredRollout>> {
        self.0.read()?.map(|written| StoredRollout::read(&written)).transpose()
    }
}

/// A rollout with its whole history, without its secrets.
#[derive(Debug)]
pub struct StoredRollout {
    /// The request.
    pub request: RolloutRequest,
    /// Time of its admission.
    pub admitted_at: SystemTime,
    /// Time when its workflow started.
    pub workflow_started_at: Option<SystemTime>,
    /// Time when its grader started.
    pub grader_started_at: Option<SystemTime>,
    /// The deployment that it ran on.
    pub deployment: DeploymentId,
    /// The events of its workflow's run.
    pub workflow: Vec<Event>,
    /// The events of its grader's run.
    pub grader: Vec<Event>,
    /// The outcome, if it has one.
    pub outcome: Option<Box<Finished>>,
    /// Its driver.
    pub driver: String,
    /// The driver's notes, in order.
    pub notes: Vec<Box<RawValue>>,
    /// The decision of its group, if it was a member of one.
    pub(crate) group: Option<GroupDecision>,
    /// Its artifacts, sorted by name.
    pub(crate) artifacts: Vec<ArtifactFile>,
    /// Its log.
    pub(crate) log: Vec<LogEntry>,
    /// Number of log entries that were dropped at the limit.
    pub(crate) log_dropped: u64,
    /// The host and the components that finished it, if they are known.
    pub(crate) ran_by: Option<RanBy>,
}

/// The host and the components that finished a rollout.
#[derive(Debug)]
pub(crate) struct RanBy {
    /// Version of the host.
    pub host: String,
    /// Digest of the component with the agent.
    pub workflow: Option<String>,
    /// Digest of the component that graded.
    pub grader: Option<String>,
}

impl StoredRollout {
    /// Reads the last rollout with this id in a journal's directory, which another process may have open. Reads files.
    pub fn find(journal: &Path, id: &RolloutId) -> io::Result<Option<Self>> {
        let found = store::find_in(journal, id.as_str())?;
        let Some(found) = found.into_iter().next() else { return Ok(None) };
        found.read()?.map(|written| Self::read(&written)).transpose()
    }

    /// Iterates over all rollouts with an outcome in a journal's directory, which another process may have open, in the
    /// order in which they ended. Reads files on demand and holds one rollout at a time, so that a journal of millions
    /// takes no more memory.
    pub fn all(journal: &Path) -> io::Result<impl Iterator<Item = io::Result<Self>> + use<>> {
        let is_over = |found: &io::Result<store::LocatedRollout>| match found {
            Ok(found) => found.has(kind::OUTCOME),
            Err(_) => true,
        };
        let read = |found: io::Result<store::LocatedRollout>| -> io::Result<Option<Self>> {
            found?.read()?.map(|written| Self::read(&written)).transpose()
        };
        Ok(store::all_in(journal)?.filter(is_over).map(read).filter_map(Result::transpose))
    }

    pub(super) fn read(written: &store::Written) -> io::Result<Self> {
        let unreadable = |reason: String| UnreadableRollout::of(&written.name, reason);
        let admitted = written.events.first().ok_or_else(|| unreadable("it has no events".to_owned()))?;
        let (line, _sealed) = read_admission(&admitted.payload).map_err(unreadable)?;
        let run = |role| events_of(&written.events, role).map_err(|error| unreadable(error.to_string()));
        let mut stored = Self {
            workflow: run(Role::Workflow)?,
            grader: run(Role::Grader)?,
            outcome: outcome::read(&written.events)
                .map_err(|error| unreadable(error.to_string()))?
                .map(Box::new),
            request: line.request.into_owned(),
            admitted_at: admission::time(line.nanos),
            workflow_started_at: None,
            grader_started_at: None,
            deployment: line.deployment,
            driver: line.driver.into_owned(),
            notes: Vec::new(),
            group: None,
            artifacts: Vec::new(),
            log: Vec::new(),
            log_dropped: 0,
            ran_by: None,
        };
        for event in &written.events {
            stored.add(event).map_err(|error| unreadable(error.to_string()))?;
        }
        Ok(stored)
    }

    fn add(&mut self, event: &store::Event) -> Result<(), serde_json::Error> {
        let payload = &event.payload;
        match event.kind {
            kind::NOTED => self.notes.push(serde_json::from_slice(payload)?),
            kind::GROUP => {
                if let GroupEvent::Decided(decision) = serde_json::from_slice(payload)? {
                    self.group = Some(decision);
                }
            }
            kind::STARTED => {
                let StartedLine { of_grader, nanos } = serde_json::from_slice(payload)?;
                let began =
                    if of_grader { &mut self.grader_started_at } else { &mut self.workflow_started_at };
                began.get_or_insert(admission::time(nanos));
            }
            // Replaces the data of a process that crashed between this and the outcome.
            kind::RAN_BY => {
                let RanByLine { host, workflow, grader, log_dropped } = serde_json::from_slice(payload)?;
                let [workflow, grader] = [workflow, grader].map(|digest| digest.map(Into::into));
                self.ran_by = Some(RanBy { host: host.into_owned(), workflow, grader });
                (self.artifacts, self.log, self.log_dropped) = (Vec::new(), Vec::new(), log_dropped);
            }
            kind::ARTIFACT => {
                if let Some((name, content)) = split_line(payload) {
                    self.artifacts.push(ArtifactFile { name: serde_json::from_slice(&name)?, content });
                }
            }
            kind::LOGGED => self.log = read_log(payload)?,
            // Admission, events of runs and outcome were read above.
            _ => {}
        }
        Ok(())
    }

    /// Returns its log, once its guests have ended.
    pub fn log(&self) -> &[LogEntry] {
        &self.log
    }

    /// Returns the number of log entries that were dropped at the limit.
    pub fn log_dropped(&self) -> u64 {
        self.log_dropped
    }

    /// Returns its artifacts, sorted by name.
    pub fn artifacts(&self) -> &[ArtifactFile] {
        &self.artifacts
    }

    /// Returns the rollout up to, and without, one of its workflow's calls, counted from 1.
    pub fn until(mut self, call: u32) -> Self {
        let is_cut = |event: &Event| matches!(event, Event::Started { call: number, .. } if *number >= call);
        if let Some(end) = self.workflow.iter().position(is_cut) {
            self.workflow.truncate(end);
        }
        self.grader.clear();
        self.outcome = None;
        self
    }
}
