//! A rollout as it is in a journal, to be made again or read.

use std::io;
use std::path::Path;

use rollout_journal as store;

use super::unfinished::{UnreadableRollout, read_admission};
use super::{DeploymentId, base, kind};
use crate::id::RolloutId;
use crate::imports::{Role, RunEvent};
use crate::rollout::model::{Finished, RolloutRequest};

/// A rollout with all that happened in it, but for its secrets.
#[derive(Debug)]
pub struct StoredRollout {
    /// What was asked for.
    pub request: RolloutRequest,
    /// What it ran.
    pub deployment: DeploymentId,
    /// What happened in its workflow's run.
    pub workflow: Vec<RunEvent>,
    /// What happened in its grader's.
    pub grader: Vec<RunEvent>,
    /// What came of it, where it is over.
    pub outcome: Option<Box<Finished>>,
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

    fn read(written: &store::Written) -> io::Result<Self> {
        let unreadable = |reason: String| UnreadableRollout::of(&written.name, reason);
        let admitted =
            written.events.first().ok_or_else(|| unreadable("nothing is known of it".to_owned()))?;
        let (line, _sealed) = read_admission(&admitted.payload).map_err(unreadable)?;
        let run = |role| -> io::Result<Vec<RunEvent>> {
            let base = base(role);
            let of_run =
                written.events.iter().filter(|event| (base..base + RunEvent::KINDS).contains(&event.kind));
            let read = |event: &store::Event| RunEvent::read(event.kind - base, &event.payload);
            of_run.map(read).collect::<Result<_, _>>().map_err(|error| unreadable(error.to_string()))
        };
        let outcome = written.events.iter().rfind(|event| event.kind == kind::OUTCOME);
        let outcome = outcome.map(|event| serde_json::from_slice(&event.payload)).transpose();
        Ok(Self {
            workflow: run(Role::Workflow)?,
            grader: run(Role::Grader)?,
            outcome: outcome.map_err(|error| unreadable(error.to_string()))?,
            request: line.request.into_owned(),
            deployment: line.deployment,
        })
    }

    /// The same up to one of its workflow's calls, from 1, which is not made any more.
    pub fn until(mut self, call: u32) -> Self {
        let is_it = |event: &RunEvent| matches!(event, RunEvent::Asked { call: asked, .. } if *asked >= call);
        if let Some(end) = self.workflow.iter().position(is_it) {
            self.workflow.truncate(end);
        }
        self.grader.clear();
        self.outcome = None;
        self
    }
}
