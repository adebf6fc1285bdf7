//! `journal`: what is done to a journal as a whole.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};

use super::print::outln;
use super::{Exit, journal};
use rollout_rollout::{JournalDamage, RepairedJournal, repair_journal};

/// Repairs a journal that is damaged.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  rollout-host journal repair /var/lib/rollouts/.journal/9000")]
pub(super) struct Journal {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Keeps what is readable of a damaged journal, and lists what is not.
    ///
    /// No server may have the journal open. Each segment that is changed is kept as it was beside it, under its name with
    /// `.damaged`. A rollout that lost a record before its last one is left out; one that lost its last ones goes on
    /// from where they were. A journal that is whole stays as it is.
    #[command(after_help = "Exit codes: 0 the journal is whole, now or before; 2 it cannot be repaired.")]
    Repair {
        /// The journal, or the results of an evaluation.
        dir: PathBuf,
    },
}

impl Journal {
    pub(crate) fn run(self) -> Result<Exit> {
        let Command::Repair { dir } = self.command;
        let dir = journal::of_results(&dir);
        if !dir.is_dir() || !journal::is_one(&dir)? {
            bail!("there is no journal in {}", dir.display());
        }
        let RepairedJournal { damage, left_out } =
            repair_journal(&dir).context("the journal stays as it is")?;
        for JournalDamage { segment, from, to } in &damage {
            outln!("{}: bytes {from} to {to} were not readable", segment.display());
        }
        for rollout in &left_out {
            outln!("rollout {rollout} lost records and is left out");
        }
        if damage.is_empty() {
            outln!("the journal is whole");
        } else {
            outln!("the rest is as it was; the segments as they were end in .damaged");
        }
        Ok(Exit::Done)
    }
}
