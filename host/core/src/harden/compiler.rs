//! The process that compiles a component: it is left with the processor, memory, and the three
//! streams that it was given.
//!
//! Whoever takes it over by a component that harms the compiler has a process that can open
//! nothing, connect to nothing, start nothing and run no code that was not in the program; it
//! ends with the work, and what it hands over is all that it can do harm with.

use std::fmt;
use std::io;

use rustix::process::{Resource, Signal};

use super::files::Enforced;
use super::limits::{STANDARD_STREAMS, close_others, set};
use super::{files, filter, server};

/// What begins the line that says what is enforced.
const BEGINNING: &str = "confined: ";

/// What compiling one component may take.
#[derive(Clone, Copy, Debug)]
pub struct CompilerLimits {
    /// Memory that can be written to, in bytes. Not address space that is only reserved: how
    /// much of that an allocator takes depends on the machine.
    pub memory_bytes_max: u64,
    /// CPU time of all threads together.
    pub cpu_secs_max: u64,
}

/// What holds a process that compiles.
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

/// What a process that compiles said of its confinement, and the rest of what it said. Whether
/// its calls were filtered, which is the one thing that every kernel can do.
pub(crate) fn confinement_said(stderr: &str) -> (Option<(&str, bool)>, &str) {
    let Some((line, rest)) = stderr.strip_prefix(BEGINNING).and_then(|text| text.split_once('\n')) else {
        return (None, stderr);
    };
    (Some((line, line.ends_with(FILTERED))), rest)
}

/// Binds this process for ever. To be called before it has threads and before it has read
/// anything; starts those that compile.
pub fn confine(limits: CompilerLimits) -> io::Result<Confinement> {
    bound(limits)?;
    let files = files::allow_nothing().map_err(|error| error.to_string());
    // Kept from nothing where it has no privileges.
    server::drop_all_capabilities().map_err(io::Error::other)?;
    start_threads()?;
    no_more()?;
    let calls = filter::apply().map_err(|error| error.to_string());
    Ok(Confinement { files, calls })
}

/// The limits that hold from the first moment.
fn bound(limits: CompilerLimits) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    super::no_new_privileges()?;
    close_others()?;
    set(Resource::Core, 0, 0)?;
    // Should memory run out, the kernel ends this process before the host. A host that may not write there has to do
    // without.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    set(Resource::Fsize, 0, 0)?;
    set(Resource::Data, limits.memory_bytes_max, limits.memory_bytes_max)?;
    // It is asked to end at the first number and made to at the second.
    set(Resource::Cpu, limits.cpu_secs_max, limits.cpu_secs_max + 1)
}

/// Starts the threads that compile, as many as the parent says in the environment, so that
/// starting threads can be forbidden.
fn start_threads() -> io::Result<()> {
    rayon::ThreadPoolBuilder::new().build_global().map_err(io::Error::other)
}

/// Files and processes: those that there are.
pub(super) fn no_more() -> io::Result<()> {
    set(Resource::Nofile, STANDARD_STREAMS, STANDARD_STREAMS)?;
    set(Resource::Nproc, 0, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_enforced_is_told_apart_from_what_went_wrong() {
        fn check(confinement: &Confinement, filtered: bool) {
            let stderr = format!("{confinement}\nunknown opcode\n");
            let (said, rest) = confinement_said(&stderr);
            assert_eq!(said.map(|(_, filtered)| filtered), Some(filtered), "{stderr}");
            assert_eq!(rest, "unknown opcode\n");
        }
        check(&Confinement { files: Ok(Enforced::Fully), calls: Ok(()) }, true);
        check(&Confinement { files: Err("no".to_owned()), calls: Ok(()) }, true);
        check(&Confinement { files: Ok(Enforced::No), calls: Err("no".to_owned()) }, false);
        assert_eq!(confinement_said("error: x\n"), (None, "error: x\n"));
    }
}
