//! `bench`: load for a server, and what it makes of it.

use std::io::IsTerminal;

use anyhow::{Context, Result};
use clap::Args;

use super::Exit;
use crate::bench;

/// Drives a server with load and measures it, perhaps beside another.
///
/// One process plays trainer, model and callback receiver, so the server is all that
/// costs. It speaks generation D or C and checks every result. Two servers are
/// measured in turn, A B A B, and compared by the medians.
#[derive(Debug, Args)]
#[command(after_help = "Example, our server beside the Python package's own:\n  rollout-host bench \
    --command 'rollout-host serve one-turn.wasm --listen 127.0.0.1:0' \\\n    --vs-command 'python \
    tests/clients/baseline_d.py --port 0 --max-concurrent 64'")]
pub(super) struct Bench {
    #[command(flatten)]
    args: bench::Args,
    /// Writes one JSON object in place of the table.
    #[arg(long)]
    json: bool,
}

impl Bench {
    pub fn run(self) -> Result<Exit> {
        let settings = self.args.try_into()?;
        let terminal = std::io::stderr().is_terminal();
        let report = bench::run_blocking(settings, |progress| {
            if terminal {
                eprint!("\r\x1b[K{progress}");
            }
        });
        if terminal {
            eprint!("\r\x1b[K");
        }
        let report = report?;
        if self.json {
            println!("{}", serde_json::to_string_pretty(&report).context("the report is no JSON")?);
        } else {
            print!("{}", report.render());
        }
        Ok(if report.is_clean() { Exit::Done } else { Exit::NotDone })
    }
}
