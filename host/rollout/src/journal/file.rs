//! Export of a journaled rollout to a file that can be shared: with its whole history and without its secrets.

use std::io;
use std::path::Path;

use rollout_journal as store;

use super::unfinished::{UnreadableRollout, split_line};
use super::{StoredRollout, kind};
use rollout_wire::id::RolloutId;

impl StoredRollout {
    /// Writes the last rollout with this id in a journal's directory to a file and returns it. Returns `None` if there
    /// is no such rollout. Fails if the file exists.
    pub fn save(journal: &Path, id: &RolloutId, to: &Path) -> io::Result<Option<Self>> {
        let found = store::find_in(journal, id.as_str())?.into_iter().next();
        let Some(mut written) = found.map(|found| found.read()).transpose()?.flatten() else {
            return Ok(None);
        };
        for event in written.events.iter_mut().filter(|event| event.kind == kind::ADMITTED) {
            let sealed = split_line(&event.payload).map(|(_, sealed)| sealed.len());
            let sealed = sealed.ok_or_else(|| {
                UnreadableRollout::of(&written.name, "its admission is malformed".to_owned())
            })?;
            event.payload.truncate(event.payload.len() - sealed);
        }
        let stored = Self::read(&written)?;
        store::write_file(to, &written)?;
        Ok(Some(stored))
    }

    /// Reads a rollout from a file that [`Self::save`] wrote.
    pub fn load(file: &Path) -> io::Result<Self> {
        let written = store::read_file(file).map_err(io::Error::other)?;
        Self::read(&written)
    }
}
