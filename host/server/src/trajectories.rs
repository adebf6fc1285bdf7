//! The trajectories of a rollout of a journal, as whoever asks is given them: with what its caller
//! reported, which is its protocol's to read.

use std::io::{self, Write};
use std::path::Path;

use crate::dialect::osmosis::report::Report;
use crate::dialect::osmosis::reported;
use rollout_rollout::{
    Finished, NoTrajectory, StoredDocument, StoredRollout, StoredTrajectories, TrajectoryFile,
};
use rollout_wire::id::SampleId;

/// See above.
pub struct Trajectories {
    stored: StoredTrajectories,
    report: Option<Report>,
}

impl Trajectories {
    /// Those of this rollout.
    pub fn of(stored: StoredRollout) -> Result<Self, NoTrajectory> {
        let report = reported(&stored.driver, &stored.notes);
        Ok(Self { stored: stored.trajectories()?, report })
    }

    /// What came of the rollout.
    pub fn finished(&self) -> &Finished {
        self.stored.finished()
    }

    /// The documents: one, or one a sample where there are several.
    pub fn documents(&self) -> Vec<StoredDocument<'_>> {
        self.stored.documents()
    }

    /// Writes the document at this place.
    pub fn write(
        &self,
        documents: &[StoredDocument<'_>],
        place: usize,
        to: &mut impl Write,
    ) -> io::Result<()> {
        let Some(document) = documents.get(place) else { return Err(io::ErrorKind::NotFound.into()) };
        let Some(report) = &self.report else { return document.write(to) };
        let ids: Vec<Option<&str>> =
            documents.iter().map(|document| document.sample().map(SampleId::as_str)).collect();
        report.of_samples(&ids).amend(place, &document.amendable(to)?)
    }

    /// Writes the documents at these places: one as it is, others as a JSON array.
    pub fn write_places(
        &self,
        documents: &[StoredDocument<'_>],
        places: &[usize],
        to: &mut impl Write,
    ) -> io::Result<()> {
        if let [place] = places {
            return self.write(documents, *place, to);
        }
        for (at, place) in places.iter().enumerate() {
            to.write_all(if at == 0 { b"[" } else { b",\n" })?;
            self.write(documents, *place, to)?;
        }
        to.write_all(b"]")
    }

    /// Writes documents, artifacts and log below `<root>/<rollout>/`, where a server writes them.
    pub fn write_files(&self, root: &Path) -> io::Result<()> {
        let files = self.stored.write_files(root)?;
        let Some(report) = &self.report else { return Ok(()) };
        let amendable = files.iter().map(TrajectoryFile::amendable).collect::<io::Result<Vec<_>>>()?;
        report.apply(&amendable)
    }
}
