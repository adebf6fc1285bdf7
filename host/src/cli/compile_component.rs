//! `compile-component`: what the host starts to compile a component. Not for people.

use crate::cli::print::errln;
use std::io::{Read, Write};

use anyhow::{Context, Result};
use clap::Args;

use crate::engine::{self, INVALID_EXIT_CODE, MemoryPlan};

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
}

impl CompileComponent {
    pub fn run(self) -> Result<super::Exit> {
        engine::confine(self.memory_bytes_max, self.cpu_secs_max).context("cannot set limits")?;
        let mut component = Vec::new();
        std::io::stdin().lock().read_to_end(&mut component).context("cannot read the component")?;
        match engine::compile(self.plan, &component) {
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
