//! Arguments in, exit code out.

use tikv_jemallocator::Jemalloc;

/// Thousands of rollouts in flight cost more of the processor with the system's
/// (`ARCHITECTURE.md` has how much).
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

fn main() -> std::process::ExitCode {
    rollout_host::cli::main()
}
