//! `completions`: what a shell needs to complete the commands and their options.

use crate::print::out;
use anyhow::Result;
use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::{Arguments, Exit};

/// Writes what a shell needs to complete these commands, to standard output.
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
        // To a buffer first: it panics where it cannot write, as into a pipe that is closed.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Arguments::command(), "rollout-host", &mut script);
        out!("{}", String::from_utf8_lossy(&script));
        Ok(Exit::Done)
    }
}
