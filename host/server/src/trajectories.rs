//! Trajectories of a rollout in the journal, completed with the report of the rollout's caller. The dialect reads the
//! report.

use std::io::{self, Write};
use std::path::Path;

use crate::dialect::osmosis::report::Report;
use crate::dialect::osmosis::reported;
use rollout_rollout::{
    Finished, NoTrajectory, StoredDocument, StoredRollout, StoredTrajectories, TrajectoryFile,
};
use rollout_wire::id::SampleId;

/// The trajectories of a rollout, with its caller's report.
pub struct Trajectories {
    stored: StoredTrajectories,
    report: Option<Report>,
}

impl Trajectories {
    /// Reads the trajectories of a stored rollout.
    pub fn of(stored: StoredRollout) -> Result<Self, NoTrajectory> {
        let report = reported(&stored.driver, &stored.notes);
        Ok(Self { stored: stored.trajectories()?, report })
    }

    /// Returns the finished rollout.
    pub fn finished(&self) -> &Finished {
        self.stored.finished()
    }

    /// Returns the documents: one, or one per sample if there are several samples.
    pub fn documents(&self) -> Vec<StoredDocument<'_>> {
        self.stored.documents()
    }

    /// Writes the document at an index.
    pub fn write(
        &self,
        documents: &[StoredDocument<'_>],
        index: usize,
        to: &mut impl Write,
    ) -> io::Result<()> {
        let Some(document) = documents.get(index) else { return Err(io::ErrorKind::NotFound.into()) };
        let Some(report) = &self.report else { return document.write(to) };
        let ids: Vec<Option<&str>> =
            documents.iter().map(|document| document.sample().map(SampleId::as_str)).collect();
        report.for_samples(&ids).amend(index, &document.amendable(to)?)
    }

    /// Writes the documents at some indices: a single one as it is, several as a JSON array.
    pub fn write_selected(
        &self,
        documents: &[StoredDocument<'_>],
        indices: &[usize],
        to: &mut impl Write,
    ) -> io::Result<()> {
        if let [index] = indices {
            return self.write(documents, *index, to);
        }
        for (position, index) in indices.iter().enumerate() {
            to.write_all(if position == 0 { b"[" } else { b",\n" })?;
            self.write(documents, *index, to)?;
        }
        to.write_all(b"]")
    }

    /// Writes documents, artifacts and log below `<root>/<rollout>/`, as a server without a journal writes them.
    pub fn write_files(&self, root: &Path) -> io::Result<()> {
        let files = self.stored.write_files(root)?;
        let Some(report) = &self.report else { return Ok(()) };
        let amendable = files.iter().map(TrajectoryFile::amendable).collect::<io::Result<Vec<_>>>()?;
        report.apply(&amendable)
    }
}
