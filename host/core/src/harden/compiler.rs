//! Confinement of the compiler process: it may use only the processor, memory, and the three standard streams.
//!
//! A component may exploit a bug of the compiler. The attacker then has a process that can open no file, connect to
//! nothing, start no process and run no new machine code. The process ends with its work, so its output is the only
//! means to do harm.

use std::fmt;
use std::io;

use rustix::process::{Resource, Signal};

use super::files::Enforced;
use super::kernel_limits::{STANDARD_STREAMS, close_others, set};
use super::{files, filter, server};

/// Prefix of the line that reports the confinement.
const BEGINNING: &str = "confined: ";

/// Limits on compiling one component.
#[derive(Clone, Copy, Debug)]
pub struct CompilerLimits {
    /// Writable memory in bytes. Address space that is only reserved does not count: how much of it an allocator takes
    /// depends on the machine.
    pub memory_bytes_max: u64,
    /// CPU time of all threads together, in seconds.
    pub cpu_secs_max: u64,
}

/// Restrictions that apply to a compiler process.
#[derive(Debug)]
pub struct Confinement {
    files: Result<Enforced, String>,
    calls: Result<(), String>,
}

impl fmt::Display for Confinement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(BEGINNING)?;
        match &self.files {
            Ok(enforced) => write!(f, "rules for files {enforced}; ")?,
            Err(error) => write!(f, "rules for files not enforced: {error}; ")?,
        }
        match &self.calls {
            Ok(()) => write!(f, "{FILTERED}"),
            Err(error) => write!(f, "system calls not filtered: {error}"),
        }
    }
}

const FILTERED: &str = "system calls filtered";

/// Splits the report of the confinement off the output of a compiler process. Returns the report, whether system calls
/// are filtered (the one restriction that every kernel supports), and the rest of the output.
pub fn confinement_said(stderr: &str) -> (Option<(&str, bool)>, &str) {
    let Some((line, rest)) = stderr.strip_prefix(BEGINNING).and_then(|text| text.split_once('\n')) else {
        return (None, stderr);
    };
    (Some((line, line.ends_with(FILTERED))), rest)
}

/// Confines this process irrevocably and starts the threads that compile. Must be called before the process has other
/// threads and before it reads anything.
pub fn confine(limits: CompilerLimits) -> io::Result<Confinement> {
    bound(limits)?;
    let files = files::allow_nothing().map_err(|error| error.to_string());
    // Has no effect without privileges.
    server::drop_all_capabilities().map_err(io::Error::other)?;
    start_threads()?;
    no_more()?;
    let calls = filter::apply().map_err(|error| error.to_string());
    Ok(Confinement { files, calls })
}

/// Sets the limits that apply from the start.
fn bound(limits: CompilerLimits) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    super::no_new_privileges()?;
    close_others()?;
    set(Resource::Core, 0, 0)?;
    // If memory runs out, the kernel kills this process before the host. Compiling works without the setting, too.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    set(Resource::Fsize, 0, 0)?;
    set(Resource::Data, limits.memory_bytes_max, limits.memory_bytes_max)?;
    // The kernel sends SIGXCPU at the first number and kills the process at the second.
    set(Resource::Cpu, limits.cpu_secs_max, limits.cpu_secs_max + 1)
}

/// Starts the threads that compile, as many as the parent set in the environment, so that starting threads can be
/// forbidden.
fn start_threads() -> io::Result<()> {
    rayon::ThreadPoolBuilder::new().build_global().map_err(io::Error::other)
}

/// Forbids opening further descriptors and starting further processes.
pub(super) fn no_more() -> io::Result<()> {
    set(Resource::Nofile, STANDARD_STREAMS, STANDARD_STREAMS)?;
    set(Resource::Nproc, 0, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_of_the_confinement_is_split_from_the_errors() {
        fn check(confinement: &Confinement, filtered: bool) {
            let stderr = format!("{confinement}\nunknown opcode\n");
            let (report, rest) = confinement_said(&stderr);
            assert_eq!(report.map(|(_, filtered)| filtered), Some(filtered), "{stderr}");
            assert_eq!(rest, "unknown opcode\n");
        }
        check(&Confinement { files: Ok(Enforced::Fully), calls: Ok(()) }, true);
        check(&Confinement { files: Err("no".to_owned()), calls: Ok(()) }, true);
        check(&Confinement { files: Ok(Enforced::No), calls: Err("no".to_owned()) }, false);
        assert_eq!(confinement_said("error: x\n"), (None, "error: x\n"));
    }
}
