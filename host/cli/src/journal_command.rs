//! The command `journal`, which repairs journals.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};

use super::print::outln;
use super::progress::Working;
use super::{Exit, journal};
use rollout_rollout::{JournalDamage, RepairedJournal, repair_journal};

/// Repairs a damaged journal.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  rollout-host journal repair /var/lib/rollouts/.journal/9000")]
pub(super) struct JournalCommand {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Keeps the readable parts of a damaged journal and lists the others.
    ///
    /// No server may have the journal open. The original of each changed segment is kept next to it, with
    /// `.damaged` appended to its name. A rollout that lost a record before its last one is removed; one that
    /// lost its last records resumes before them. An undamaged journal is not changed.
    #[command(
        after_help = "Exit codes: 0 the journal was undamaged or is repaired; 2 it cannot be repaired."
    )]
    Repair {
        /// Directory of the journal or of an evaluation's results.
        dir: PathBuf,
    },
}

impl JournalCommand {
    pub(crate) fn run(self) -> Result<Exit> {
        let Command::Repair { dir } = self.command;
        let dir = journal::resolve(&dir);
        if !dir.is_dir() || !journal::is_journal(&dir)? {
            bail!(
                "there is no journal in {}; give the directory of a journal or of an evaluation's results",
                dir.display()
            );
        }
        let working = Working::on(format!("reading {}", dir.display()));
        let RepairedJournal { damage, left_out } =
            repair_journal(&dir).context("the journal is not changed")?;
        drop(working);
        for JournalDamage { segment, from, to } in &damage {
            outln!("{}: bytes {from} to {to} were not readable", segment.display());
        }
        for rollout in &left_out {
            outln!("rollout {rollout} lost records and is removed");
        }
        if damage.is_empty() {
            outln!("the journal is undamaged");
        } else {
            outln!("the journal is repaired; the original segments have names ending in .damaged");
        }
        Ok(Exit::Done)
    }
}
