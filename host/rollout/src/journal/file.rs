//! A rollout of a journal in a file of its own, to be given to somebody else: with all that happened, and
//! without what is sealed.

use std::io;
use std::path::Path;

use rollout_journal as store;

use super::unfinished::{UnreadableRollout, split_line};
use super::{StoredRollout, kind};
use rollout_wire::id::RolloutId;

impl StoredRollout {
    /// Writes the last rollout of this id in the journal in a directory to a file, and gives it; none
    /// where there is none. A file that is there already is an error.
    pub fn save(journal: &Path, id: &RolloutId, to: &Path) -> io::Result<Option<Self>> {
        let found = store::find_in(journal, id.as_str())?.into_iter().next();
        let Some(mut written) = found.map(|found| found.read()).transpose()?.flatten() else {
            return Ok(None);
        };
        for event in written.events.iter_mut().filter(|event| event.kind == kind::ADMITTED) {
            let sealed = split_line(&event.payload).map(|(_, sealed)| sealed.len());
            let sealed = sealed.ok_or_else(|| {
                UnreadableRollout::of(&written.name, "its admission has no line".to_owned())
            })?;
            event.payload.truncate(event.payload.len() - sealed);
        }
        let stored = Self::read(&written)?;
        store::write_file(to, &written)?;
        Ok(Some(stored))
    }

    /// The rollout in a file that [`Self::save`] wrote.
    pub fn load(file: &Path) -> io::Result<Self> {
        let written = store::read_file(file).map_err(io::Error::other)?;
        Self::read(&written)
    }
}
