//! The internal command `compile-component`, in which the host compiles a component in a confined process.

use std::io::{Read, Write};

use anyhow::{Context, Result};
use clap::Args;

use super::print::{errln, outln};
use rollout_core::harden::compiler::{CompilerLimits, confine};
use rollout_core::harden::{Part, probe};
use rollout_guest::engine::{self, INVALID_EXIT_CODE, MemoryPlan};

/// Compiles the component on standard input under limits and writes the code to standard output.
#[derive(Debug, Args)]
pub(super) struct CompileComponent {
    /// Memory plan of the engine that the code is for.
    #[arg(long, value_parser = |name: &str| MemoryPlan::from_name(name).ok_or("no such plan"))]
    plan: MemoryPlan,
    /// Maximum number of bytes of writable memory.
    #[arg(long)]
    memory_bytes_max: u64,
    /// Maximum CPU time of all threads together.
    #[arg(long)]
    cpu_secs_max: u64,
    /// Compiles nothing; tries to escape the confinement, or one part of it, and prints the result of each
    /// attempt.
    #[arg(long, value_name = "PART", value_parser = |name: &str| Part::from_name(name).ok_or("no such part"))]
    probe: Option<Part>,
}

impl CompileComponent {
    /// Runs the command. The process must not have any threads yet, and logging must not be set up.
    pub(crate) fn run(self) -> Result<super::Exit> {
        let Self { plan, memory_bytes_max, cpu_secs_max, probe: part } = self;
        let limits = CompilerLimits { memory_bytes_max, cpu_secs_max };
        if let Some(part) = part {
            for (attempt, result) in probe(part, limits).context("cannot confine this process")? {
                outln!("{attempt}: {result}");
            }
            return Ok(super::Exit::Done);
        }
        errln!("{}", confine(limits).context("cannot confine this process")?);
        let mut component = Vec::new();
        std::io::stdin().lock().read_to_end(&mut component).context("cannot read the component")?;
        match engine::compile(plan, &component) {
            Ok(code) => {
                std::io::stdout().lock().write_all(&code).context("cannot write the compiled code")?;
                Ok(super::Exit::Done)
            }
            Err(error) => {
                errln!("{error:#}");
                // No other command exits with this code.
                std::process::exit(INVALID_EXIT_CODE.into())
            }
        }
    }
}
