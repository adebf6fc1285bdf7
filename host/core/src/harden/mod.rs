//! What a process gives up so that whoever takes it over has little.
//!
//! Two processes do: the one that compiles a component, which nobody vouches for, needs nothing
//! but processor and memory and is left with those ([`compiler`]); the one that serves needs
//! files, connections and children and gives up the rest ([`server`]). Both are given what they
//! may have and know nothing of components or rollouts. `docs/understand/threat-model.md` says against
//! whom this is.

pub mod compiler;
mod files;
mod filter;
mod limits;
mod probe;
pub mod server;

pub use files::Folders;
pub use probe::{Part, probe};

use std::io;

/// Keeps this process, and all that it starts, from getting rights by a program that has more:
/// set-user-ID programs and files with capabilities give none.
fn no_new_privileges() -> io::Result<()> {
    // SAFETY: the arguments are numbers.
    match unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
