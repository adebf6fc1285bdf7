//! Kernel limits that a process sets for itself and cannot raise again.

use std::io;

use rustix::process::{Resource, Rlimit, setrlimit};

/// Number of standard streams: input, output and error.
pub(super) const STANDARD_STREAMS: u64 = 3;

pub(super) fn set(resource: Resource, current: u64, maximum: u64) -> io::Result<()> {
    Ok(setrlimit(resource, Rlimit { current: Some(current), maximum: Some(maximum) })?)
}

/// Closes every inherited descriptor except the standard streams.
pub(super) fn close_others() -> io::Result<()> {
    const FIRST: libc::c_uint = STANDARD_STREAMS as libc::c_uint;
    // SAFETY: no code owns the descriptors that are closed here: the process has just started and opened none that it
    // uses later.
    match unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, 0) } {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            // A kernel before 5.9. The host's own descriptors are not inherited anyway.
            error if error.raw_os_error() == Some(libc::ENOSYS) => Ok(()),
            error => Err(error),
        },
    }
}
