//! Privileges that a process drops, so that an attacker who controls it can do little.
//!
//! The process that compiles a component of unknown origin needs only the processor and memory ([`compiler`]). The
//! process that serves needs files, connections and child processes, and drops all other privileges ([`server`]). Both
//! modules receive the permissions as parameters and know no components and no rollouts.
//! `docs/understand/threat-model.md` describes the attackers.

pub mod compiler;
mod files;
mod filter;
mod kernel_limits;
mod probe;
pub mod server;

pub use files::Folders;
pub use probe::{Part, probe};

use std::io;

/// Keeps this process, and all that it starts, from gaining privileges by executing a program: set-user-ID bits and
/// file capabilities have no effect.
fn no_new_privileges() -> io::Result<()> {
    // SAFETY: the arguments are numbers.
    match unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
