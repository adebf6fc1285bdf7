//! Trajectories of a rollout in a journal: byte for byte the documents that are written when a rollout finishes.

use std::cell::RefCell;
use std::io::{self, Write};
use std::path::Path;

use super::document::{Document, Written};
use super::{AmendedDocument, Amendment, Job, Plugins, WrittenFolder, documents, layout, store};
use crate::journal::{RanBy, StoredRollout};
use crate::model::{Finished, HOST_VERSION, Layout, TrajectoryFile};
use rollout_guest::imports::Recorded;
use rollout_transcript::Transcript;
use rollout_wire::id::{RolloutId, SampleId};

/// Error of a rollout in a journal that has no trajectory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoTrajectory {
    /// The rollout is not finished.
    #[error("rollout {0} has not finished")]
    NotOver(RolloutId),
    /// The stored parts of the rollout do not belong together.
    #[error("rollout {0} in the journal cannot be turned into a trajectory: {1}")]
    Unreadable(RolloutId, String),
}

/// Files of a finished rollout, generated from its journal.
pub struct StoredTrajectories {
    job: Job,
    finished: Finished,
}

impl StoredRollout {
    /// Returns the data of the trajectories.
    pub fn trajectories(self) -> Result<StoredTrajectories, NoTrajectory> {
        let Self {
            request, deployment, workflow, grader, outcome, artifacts, log, log_dropped, ran_by, ..
        } = self;
        let Some(finished) = outcome else { return Err(NoTrajectory::NotOver(request.id)) };
        let transcript = Transcript::read(&workflow, &grader)
            .map_err(|reason| NoTrajectory::Unreadable(request.id.clone(), reason))?;
        let recorded = Recorded { transcript, artifacts, log, log_dropped, charge: None };
        // The rollout started before hosts stored this.
        let unknown = RanBy { host: HOST_VERSION.to_owned(), workflow: None, grader: deployment.grader };
        let ran_by = ran_by.unwrap_or(unknown);
        let job = Job {
            prompt: request.prompt,
            label: request.label,
            samples_max: request.samples_max,
            model: request.model.name,
            extra: request.trajectory_extra,
            metadata: request.metadata,
            attempt: request.attempt,
            fork: request.fork.as_ref().map(|fork| fork.point.clone()),
            recorded,
            host: ran_by.host.into(),
            plugins: Plugins {
                workflow: ran_by.workflow.unwrap_or(deployment.workflow),
                grader: ran_by.grader,
            },
        };
        Ok(StoredTrajectories { job, finished: *finished })
    }
}

impl StoredTrajectories {
    /// Returns the outcome of the rollout.
    pub fn finished(&self) -> &Finished {
        &self.finished
    }

    /// Returns the documents: one, or one for each of several samples.
    pub fn documents(&self) -> Vec<StoredDocument<'_>> {
        documents(&self.job, &self.finished).into_iter().map(StoredDocument).collect()
    }

    /// Writes documents, artifacts and log below `<root>/<rollout>/`, as for a rollout that finishes, and returns the
    /// documents.
    pub fn write_files(&self, root: &Path) -> io::Result<Vec<TrajectoryFile>> {
        let folder = WrittenFolder::open(root.join(self.finished.id.dir_name()))?;
        store::write_all(&folder, &self.job, &self.finished)
    }
}

/// A trajectory of a rollout in a journal.
pub struct StoredDocument<'a>(Document<'a>);

impl StoredDocument<'_> {
    /// Returns the name of the file.
    pub fn file_name(&self) -> &str {
        &self.0.file_name
    }

    /// Returns the sample, if there is one.
    pub fn sample(&self) -> Option<&SampleId> {
        self.0.sample_id()
    }

    /// Writes the document, part by part.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        self.write_with_offsets(to).map(drop)
    }

    /// Returns the document for an amendment, which is written together with it; without an amendment nothing is
    /// written. Holds the document in memory.
    pub fn amendable<'t, W: Write>(
        &self,
        to: &'t mut W,
    ) -> io::Result<impl AmendedDocument + use<'_, 't, W>> {
        let mut text = Vec::new();
        let layout = self.write_with_offsets(&mut text)?;
        Ok(InMemory { sample: self.sample(), text, layout, to: RefCell::new(to) })
    }

    fn write_with_offsets(&self, to: &mut impl Write) -> io::Result<Layout> {
        layout::write(to, |marks| Written { document: &self.0, marks })
    }
}

/// A document that is written when it is amended.
struct InMemory<'a, 't, W> {
    sample: Option<&'a SampleId>,
    text: Vec<u8>,
    layout: Layout,
    to: RefCell<&'t mut W>,
}

impl<W: Write> AmendedDocument for InMemory<'_, '_, W> {
    fn sample(&self) -> Option<&SampleId> {
        self.sample
    }

    fn agent_steps(&self) -> usize {
        self.layout.agent_steps.len()
    }

    fn amend(&self, amendment: &Amendment<'_>) -> io::Result<()> {
        layout::amended(self.text.as_slice(), &mut **self.to.borrow_mut(), &self.layout, amendment)
    }
}
