//! A rollout as it is in a journal, to be made again or read.

use std::io;
use std::path::Path;

use rollout_journal as store;
use serde_json::value::RawValue;

use super::unfinished::{UnreadableRollout, read_admission, split_line};
use super::{DeploymentId, RanByLine, events_of, kind, outcome};
use crate::id::RolloutId;
use crate::imports::{ArtifactFile, LogEntry, Role, read_log};
use crate::rollout::model::{Finished, RolloutRequest};
use rollout_transcript::Event;

/// A rollout that is in a journal, of which nothing was read.
pub struct FoundRollout(pub(super) store::Found);

impl FoundRollout {
    /// Whether it is known what came of it.
    pub fn is_over(&self) -> bool {
        self.0.has(kind::OUTCOME)
    }

    /// Whether nobody goes on with it any more.
    pub fn has_ended(&self) -> bool {
        self.0.has_ended()
    }

    /// The bytes that it takes in files, which is what to charge for before it is read. Reads files.
    pub fn bytes(&self) -> io::Result<u64> {
        self.0.bytes()
    }

    /// The rollout; none where it was deleted meanwhile, because it is old. Reads files.
    pub fn read(&self) -> io::Result<Option<StoredRollout>> {
        self.0.read()?.map(|written| StoredRollout::read(&written)).transpose()
    }
}

/// A rollout with all that happened in it, but for its secrets.
#[derive(Debug)]
pub struct StoredRollout {
    /// What was asked for.
    pub request: RolloutRequest,
    /// What it ran.
    pub deployment: DeploymentId,
    /// What happened in its workflow's run.
    pub workflow: Vec<Event>,
    /// What happened in its grader's.
    pub grader: Vec<Event>,
    /// What came of it, where it is over.
    pub outcome: Option<Box<Finished>>,
    /// Its driver.
    pub driver: String,
    /// What its driver noted, in order.
    pub notes: Vec<Box<RawValue>>,
    /// Its files, sorted by name.
    pub(in crate::rollout) artifacts: Vec<ArtifactFile>,
    /// Its log.
    pub(in crate::rollout) log: Vec<LogEntry>,
    /// Log entries that were dropped at the limit.
    pub(in crate::rollout) log_dropped: u64,
    /// Who ran it to its end, where that is known.
    pub(in crate::rollout) ran_by: Option<RanBy>,
}

/// Who ran a rollout to its end.
#[derive(Debug)]
pub(in crate::rollout) struct RanBy {
    /// The version of the host.
    pub host: String,
    /// The digest of the component with the agent.
    pub workflow: Option<String>,
    /// That of the one that graded.
    pub grader: Option<String>,
}

impl StoredRollout {
    /// The last rollout of this id in the journal in a directory, whoever has it open. Reads files.
    pub fn find(journal: &Path, id: &RolloutId) -> io::Result<Option<Self>> {
        let found = store::find_in(journal, id.as_str())?;
        let Some(found) = found.into_iter().next() else { return Ok(None) };
        found.read()?.map(|written| Self::read(&written)).transpose()
    }

    /// All rollouts in the journal in a directory that are over, each once, in the order in which they
    /// ended, whoever has it open. Reads files as it goes and keeps none of what it gave, so that
    /// it takes no more memory for a journal of millions.
    pub fn all(journal: &Path) -> io::Result<impl Iterator<Item = io::Result<Self>> + use<>> {
        let is_over = |found: &io::Result<store::Found>| match found {
            Ok(found) => found.has(kind::OUTCOME),
            Err(_) => true,
        };
        let read = |found: io::Result<store::Found>| -> io::Result<Option<Self>> {
            found?.read()?.map(|written| Self::read(&written)).transpose()
        };
        Ok(store::all_in(journal)?.filter(is_over).map(read).filter_map(Result::transpose))
    }

    pub(super) fn read(written: &store::Written) -> io::Result<Self> {
        let unreadable = |reason: String| UnreadableRollout::of(&written.name, reason);
        let admitted =
            written.events.first().ok_or_else(|| unreadable("nothing is known of it".to_owned()))?;
        let (line, _sealed) = read_admission(&admitted.payload).map_err(unreadable)?;
        let run = |role| events_of(&written.events, role).map_err(|error| unreadable(error.to_string()));
        let mut stored = Self {
            workflow: run(Role::Workflow)?,
            grader: run(Role::Grader)?,
            outcome: outcome::read(&written.events)
                .map_err(|error| unreadable(error.to_string()))?
                .map(Box::new),
            request: line.request.into_owned(),
            deployment: line.deployment,
            driver: line.driver.into_owned(),
            notes: Vec::new(),
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
            // If an earlier process died between this and the outcome, everything from here on is stored again.
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
            // Its beginning was read, what happened in its runs, and its outcome.
            _ => {}
        }
        Ok(())
    }

    /// The same up to one of its workflow's calls, from 1, which is not made any more.
    pub fn until(mut self, call: u32) -> Self {
        let is_it = |event: &Event| matches!(event, Event::Started { call: asked, .. } if *asked >= call);
        if let Some(end) = self.workflow.iter().position(is_it) {
            self.workflow.truncate(end);
        }
        self.grader.clear();
        self.outcome = None;
        self
    }
}
