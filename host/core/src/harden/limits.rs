//! Limits of the kernel's for one process, which it cannot raise again.

use std::io;

use rustix::process::{Resource, Rlimit, setrlimit};

/// Standard input, output and error.
pub(super) const STANDARD_STREAMS: u64 = 3;

pub(super) fn set(resource: Resource, current: u64, maximum: u64) -> io::Result<()> {
    Ok(setrlimit(resource, Rlimit { current: Some(current), maximum: Some(maximum) })?)
}

/// Closes every descriptor but the standard streams, whoever left it open.
pub(super) fn close_others() -> io::Result<()> {
    const FIRST: libc::c_uint = STANDARD_STREAMS as libc::c_uint;
    // SAFETY: a descriptor that is closed here belongs to nobody: the process has just begun
    // and opened none of its own that it uses later.
    match unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, 0) } {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            // A kernel before 5.9; what the host opens is not passed on anyway.
            error if error.raw_os_error() == Some(libc::ENOSYS) => Ok(()),
            error => Err(error),
        },
    }
}
