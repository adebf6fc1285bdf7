//! `compile-component`: what the host starts to compile a component. Not for people.

use std::io::{Read, Write};

use anyhow::{Context, Result};
use clap::Args;

use super::print::{errln, outln};
use rollout_core::harden::compiler::{CompilerLimits, confine};
use rollout_core::harden::{Part, probe};
use rollout_guest::engine::{self, INVALID_EXIT_CODE, MemoryPlan};

/// Compiles the component on standard input, under limits, to standard output.
#[derive(Debug, Args)]
pub(super) struct CompileComponent {
    /// The plan of the engine that the code is for.
    #[arg(long, value_parser = |name: &str| MemoryPlan::from_name(name).ok_or("no such plan"))]
    plan: MemoryPlan,
    /// Memory that may be written to.
    #[arg(long)]
    memory_bytes_max: u64,
    /// CPU time of all threads together.
    #[arg(long)]
    cpu_secs_max: u64,
    /// Compiles nothing; tries to get out of the confinement, or of one part of it, and says
    /// what came of each attempt.
    #[arg(long, value_name = "PART", value_parser = |name: &str| Part::from_name(name).ok_or("no such part"))]
    probe: Option<Part>,
}

impl CompileComponent {
    /// Before anything else in this process, logs among it: it must have no threads yet.
    pub(crate) fn run(self) -> Result<super::Exit> {
        let Self { plan, memory_bytes_max, cpu_secs_max, probe: part } = self;
        let limits = CompilerLimits { memory_bytes_max, cpu_secs_max };
        if let Some(part) = part {
            for (what, came) in probe(part, limits).context("cannot confine this process")? {
                outln!("{what}: {came}");
            }
            return Ok(super::Exit::Done);
        }
        errln!("{}", confine(limits).context("cannot confine this process")?);
        let mut component = Vec::new();
        std::io::stdin().lock().read_to_end(&mut component).context("cannot read the component")?;
        match engine::compile(plan, &component) {
            Ok(code) => {
                std::io::stdout().lock().write_all(&code).context("cannot hand over the code")?;
                Ok(super::Exit::Done)
            }
            Err(error) => {
                errln!("{error:#}");
                // A code of its own, which no other command has.
                std::process::exit(INVALID_EXIT_CODE.into())
            }
        }
    }
}
