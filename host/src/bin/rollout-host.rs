//! Arguments in, exit code out.

fn main() -> std::process::ExitCode {
    rollout_host::cli::main()
}
