//! The command `bench`, which load-tests a server.

use crate::print::{err, out, outln};
use std::io::IsTerminal;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;

use super::{Exit, OUTPUT};
use rollout_bench as bench;

/// Load-tests a server, or compares two.
///
/// The command is trainer, stub model and callback receiver in one cheap process. It speaks generation D or C
/// of the Osmosis protocol and checks every result. Two servers are measured in turn (A B A B) and compared
/// by their medians.
#[derive(Debug, Args)]
#[command(after_help = "Example, a comparison with the Python package's own server:\n  rollout-host bench \
    --command 'rollout-host serve one-turn.wasm --listen 127.0.0.1:0' \\\n    --vs-command 'python \
    tests/clients/baseline_d.py --port 0 --max-concurrent 64'")]
pub(super) struct Bench {
    #[command(flatten)]
    args: bench::Args,
    /// Prints one JSON object instead of the table.
    #[arg(long, help_heading = OUTPUT)]
    json: bool,
    /// Draws throughput and latency by number in flight, as SVG.
    #[arg(long, value_name = "FILE.svg", conflicts_with = "soak", help_heading = OUTPUT)]
    plot: Option<PathBuf>,
    /// Runs a soak test of N rollouts at one --in-flight and reports whether the server's process grows.
    ///
    /// In generation D the server stores results for `osmosis.result-ttl-secs`; configure a short time, or
    /// the growth is that of the stored results.
    #[arg(long, value_name = "N", help_heading = "Measurement", conflicts_with_all = ["vs", "vs_command", "background", "rollouts", "seconds", "rounds", "wave"])]
    soak: Option<usize>,
}

impl Bench {
    pub(crate) fn run(self) -> Result<Exit> {
        let settings = self.args.clone().try_into()?;
        let terminal = std::io::stderr().is_terminal();
        let progress = |progress| {
            if terminal {
                err!("\r\x1b[K{progress}");
            }
        };
        let done = || {
            if terminal {
                err!("\r\x1b[K");
            }
        };
        if let Some(rollouts) = self.soak {
            let report = bench::soak_blocking(settings, rollouts, progress);
            done();
            let report = report?;
            return self.show(&report, &report.render(), report.is_clean());
        }
        let report = bench::run_blocking(settings, progress);
        done();
        let report = report?;
        if let Some(path) = &self.plot {
            let drawn = bench::plot(&report)?;
            std::fs::write(path, drawn).with_context(|| format!("cannot write {}", path.display()))?;
        }
        self.show(&report, &report.render(), report.is_clean())
    }

    fn show(&self, report: &impl serde::Serialize, table: &str, is_clean: bool) -> Result<Exit> {
        if self.json {
            outln!("{}", serde_json::to_string_pretty(report).context("cannot encode the report as JSON")?);
        } else {
            out!("{table}");
        }
        Ok(if is_clean { Exit::Done } else { Exit::NotDone })
    }
}
