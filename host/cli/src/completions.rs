//! The command `completions`, which writes completion scripts for shells.

use crate::print::out;
use anyhow::Result;
use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::{Arguments, Exit};

/// Writes a completion script for a shell to standard output.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    rollout-host completions bash > ~/.local/share/bash-completion/completions/rollout-host\n  \
    rollout-host completions zsh > \"${fpath[1]}/_rollout-host\"\n  \
    rollout-host completions fish > ~/.config/fish/completions/rollout-host.fish")]
pub(super) struct Completions {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self) -> Result<Exit> {
        // `generate` panics if it cannot write, for example to a closed pipe, so it writes to a buffer.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Arguments::command(), "rollout-host", &mut script);
        out!("{}", String::from_utf8_lossy(&script));
        Ok(Exit::Done)
    }
}
