//! The command `trajectory`, which writes trajectories from a journal.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;

use super::print::{OutWriter, errln};
use super::progress::Working;
use super::{Exit, OUTPUT, journal, options};
use rollout_rollout::{StoredDocument, StoredRollout};
use rollout_server::Trajectories;
use rollout_wire::id::{RolloutId, SampleId};

/// Size of the buffer for standard output.
const BUFFER_BYTES: usize = 64 << 10;

/// Writes the trajectory of a finished rollout in a journal, even while another process has the journal open.
/// The document is the same as the server's.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    rollout-host trajectory r1\n  \
    rollout-host trajectory --all --journal /var/lib/rollouts/journal --out rollouts")]
pub(super) struct Trajectory {
    /// Id of the rollout; of the last one if several have this id.
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    id: Option<String>,
    /// Writes every finished rollout in the journal.
    #[arg(long)]
    all: bool,
    /// Sample to write. [default: all samples, as a JSON array if there are several]
    #[arg(long, value_name = "ID", conflicts_with_all = ["all", "out"])]
    sample: Option<String>,
    /// Directory of the journal, even while another process has it open. [default: the journal of a `serve`
    /// with the same --config]
    #[arg(long, value_name = "DIR", overrides_with = "journal")]
    journal: Option<PathBuf>,
    /// Configuration file in TOML, which determines the default of --journal.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Directory to write to, with artifacts and logs, in a folder per rollout. [default: standard output,
    /// without artifacts and logs]
    #[arg(long, value_name = "DIR", help_heading = OUTPUT)]
    out: Option<PathBuf>,
}

impl Trajectory {
    pub(crate) fn run(self) -> Result<Exit> {
        let config = options::raw_config(self.config.as_deref())?.resolve()?;
        let journal = journal::find(self.journal.as_deref(), &config)?;
        let unreadable = || format!("the journal in {} cannot be read", journal.display());
        let Some(id) = &self.id else { return self.write_all(&journal).with_context(unreadable) };
        let found = RolloutId::parse(id.as_str()).with_context(|| format!("invalid rollout id '{id}'"))?;
        let Some(stored) = StoredRollout::find(&journal, &found).with_context(unreadable)? else {
            bail!("there is no rollout '{id}' in the journal in {}", journal.display());
        };
        self.write(stored)?;
        Ok(Exit::Done)
    }

    /// Writes all finished rollouts, one at a time to bound memory.
    fn write_all(&self, journal: &Path) -> Result<Exit> {
        let (mut written, mut wrong) = (0_u64, 0_u64);
        // Without a directory, the documents themselves are the progress.
        let working = self.out.as_ref().map(|out| Working::on(format!("writing to {}", out.display())));
        for stored in StoredRollout::all(journal)? {
            match stored.map_err(Into::into).and_then(|stored| self.write(stored)) {
                Ok(()) => written += 1,
                Err(error) => {
                    let print = || errln!("error: {error:#}");
                    working.as_ref().map_or_else(print, |working| working.pause(print));
                    wrong += 1;
                }
            }
            if OutWriter::has_failed() {
                break;
            }
        }
        drop(working);
        if let Some(out) = &self.out {
            errln!("{written} rollouts written to {}", out.display());
        }
        Ok(if wrong == 0 { Exit::Done } else { Exit::NotDone })
    }

    /// Writes the trajectories of a rollout to the directory, or to standard output.
    fn write(&self, stored: StoredRollout) -> Result<()> {
        let id = stored.request.id.clone();
        let trajectories = Trajectories::of(stored)?;
        if let Some(out) = &self.out {
            return trajectories
                .write_files(out)
                .with_context(|| format!("cannot write rollout {id} to {}", out.display()));
        }
        let documents = trajectories.documents();
        let mut indices: Vec<usize> = (0..documents.len()).collect();
        if let Some(sample) = &self.sample {
            indices.retain(|index| documents[*index].sample().is_some_and(|id| id.as_str() == sample));
            if indices.is_empty() {
                let ids: Vec<&str> =
                    documents.iter().filter_map(StoredDocument::sample).map(SampleId::as_str).collect();
                bail!("rollout {id} has no sample '{sample}'; it has: {}", ids.join(", "));
            }
        }
        let mut to = BufWriter::with_capacity(BUFFER_BYTES, OutWriter);
        match trajectories.write_selected(&documents, &indices, &mut to).and_then(|()| to.write_all(b"\n")) {
            Ok(()) => {}
            // A failure of standard output is reported when the program exits.
            Err(_) if OutWriter::has_failed() => {}
            Err(error) => return Err(error).with_context(|| format!("cannot write rollout {id}")),
        }
        let _ = to.flush();
        Ok(())
    }
}
