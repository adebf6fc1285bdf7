//! The command `man`, which writes the manual pages.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, CommandFactory};

use super::{Arguments, Exit};

/// Writes the manual pages: rollout-host.1 and one for each command.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  rollout-host man ~/.local/share/man/man1 && man rollout-host-serve")]
pub(super) struct Man {
    /// Directory to write to; created if it does not exist.
    dir: PathBuf,
}

impl Man {
    pub(crate) fn run(self) -> Result<Exit> {
        let about = || format!("cannot write to {}", self.dir.display());
        std::fs::create_dir_all(&self.dir).with_context(about)?;
        clap_mangen::generate_to(Arguments::command(), &self.dir).with_context(about)?;
        Ok(Exit::Done)
    }
}
