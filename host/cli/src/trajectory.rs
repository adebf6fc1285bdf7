//! `trajectory`: what is written of rollouts, out of a journal.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;

use super::print::{OutWriter, errln};
use super::{Exit, OUTPUT, journal, options};
use rollout_rollout::{StoredDocument, StoredRollout};
use rollout_server::Trajectories;
use rollout_wire::id::{RolloutId, SampleId};

/// What is written to standard output at once.
const BUFFER_BYTES: usize = 64 << 10;

/// Writes the trajectory of a rollout that is over, out of a journal, whoever has it open: the same
/// document as a server gives and writes.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    rollout-host trajectory r1\n  \
    rollout-host trajectory --all --journal /var/lib/rollouts/journal --out rollouts")]
pub(super) struct Trajectory {
    /// The rollout's id; of several with the same, the last one.
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    id: Option<String>,
    /// Every rollout in the journal that is over.
    #[arg(long)]
    all: bool,
    /// The sample, where a rollout has several; otherwise all of them, as a JSON array.
    #[arg(long, value_name = "ID", conflicts_with_all = ["all", "out"])]
    sample: Option<String>,
    /// The journal, whoever has it open. [default: that of a `serve` with the same --config]
    #[arg(long, value_name = "DIR", overrides_with = "journal")]
    journal: Option<PathBuf>,
    /// Settings in TOML, for where the journal is.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where it goes, with artifacts and log, in a folder a rollout. [default: standard output, and
    /// the documents alone]
    #[arg(long, value_name = "DIR", help_heading = OUTPUT)]
    out: Option<PathBuf>,
}

impl Trajectory {
    pub(crate) fn run(self) -> Result<Exit> {
        let config = options::raw_config(self.config.as_deref())?.resolve()?;
        let journal = journal::to_read(self.journal.as_deref(), &config)?;
        let unreadable = || format!("the journal in {} cannot be read", journal.display());
        let Some(id) = &self.id else { return self.write_all(&journal).with_context(unreadable) };
        let found = RolloutId::parse(id.as_str()).context("the id")?;
        let Some(stored) = StoredRollout::find(&journal, &found).with_context(unreadable)? else {
            bail!("there is no rollout '{id}' in the journal in {}", journal.display());
        };
        self.write(stored)?;
        Ok(Exit::Done)
    }

    /// Writes one after the other, and holds no more than one.
    fn write_all(&self, journal: &Path) -> Result<Exit> {
        let (mut written, mut wrong) = (0_u64, 0_u64);
        for stored in StoredRollout::all(journal)? {
            match stored.map_err(Into::into).and_then(|stored| self.write(stored)) {
                Ok(()) => written += 1,
                Err(error) => {
                    errln!("error: {error:#}");
                    wrong += 1;
                }
            }
            if OutWriter::has_failed() {
                break;
            }
        }
        if let Some(out) = &self.out {
            errln!("{written} rollouts are written to {}", out.display());
        }
        Ok(if wrong == 0 { Exit::Done } else { Exit::NotDone })
    }

    fn write(&self, stored: StoredRollout) -> Result<()> {
        let id = stored.request.id.clone();
        let trajectories = Trajectories::of(stored)?;
        if let Some(out) = &self.out {
            return trajectories
                .write_files(out)
                .with_context(|| format!("cannot write rollout {id} to {}", out.display()));
        }
        let documents = trajectories.documents();
        let mut places: Vec<usize> = (0..documents.len()).collect();
        if let Some(sample) = &self.sample {
            places.retain(|place| documents[*place].sample().is_some_and(|id| id.as_str() == sample));
            if places.is_empty() {
                let ids: Vec<&str> =
                    documents.iter().filter_map(StoredDocument::sample).map(SampleId::as_str).collect();
                bail!("rollout {id} has no sample '{sample}'; it has: {}", ids.join(", "));
            }
        }
        let mut to = BufWriter::with_capacity(BUFFER_BYTES, OutWriter);
        match trajectories.write_selected(&documents, &places, &mut to).and_then(|()| to.write_all(b"\n")) {
            Ok(()) => {}
            // What standard output did not take is said at the end, of which it makes the exit code.
            Err(_) if OutWriter::has_failed() => {}
            Err(error) => return Err(error).with_context(|| format!("cannot write rollout {id}")),
        }
        let _ = to.flush();
        Ok(())
    }
}
