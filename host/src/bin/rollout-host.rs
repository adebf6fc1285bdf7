//! Arguments in, exit code out.

use tikv_jemallocator::Jemalloc;

/// Thousands of rollouts in flight cost a third more of the processor with the system's.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

fn main() -> std::process::ExitCode {
    rollout_host::cli::main()
}
