//! Attempts at operations that the compiler process must not be able to do, with their results. They serve tests, and
//! operators who want to know what a kernel enforces.

use std::ffi::CStr;
use std::io;
use std::net::TcpStream;
use std::ptr;

use super::compiler::{CompilerLimits, confine, no_more};
use super::files;

/// The part of the confinement to test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    All,
    /// The rules for files alone.
    Files,
    /// The limits on files and processes alone.
    Limits,
}

impl Part {
    /// Returns the part with a name.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "all" => Some(Self::All),
            "files" => Some(Self::Files),
            "limits" => Some(Self::Limits),
            _ => None,
        }
    }
}

/// Name of an operation, and the function that attempts it.
type Attempt = (&'static str, fn() -> io::Result<()>);

/// Number of attempts at the beginning of the list that need a new descriptor.
const NEED_A_DESCRIPTOR: usize = 4;

/// Confines this process and attempts to break out. Returns the enforced confinement, followed by each attempt and its
/// error.
pub fn probe(part: Part, limits: CompilerLimits) -> io::Result<Vec<(&'static str, String)>> {
    let enforced = match part {
        Part::All => confine(limits)?.to_string(),
        Part::Files => files::allow_nothing().map_err(io::Error::other)?.to_string(),
        Part::Limits => no_more().map(|()| "enforced".to_owned())?,
    };
    let attempts: [Attempt; 9] = [
        ("read a file", || std::fs::File::open("/etc/passwd").map(drop)),
        ("list a folder", || std::fs::read_dir("/").map(drop)),
        ("make a file", || std::fs::File::create("/tmp/rollout-host-probe").map(drop)),
        ("connect", || TcpStream::connect(("127.0.0.1", 9)).map(drop)),
        ("start a thread", || std::thread::Builder::new().spawn(|| {}).map(drop)),
        ("signal the parent", || check(unsafe_calls::signal_parent())),
        ("make code", || unsafe_calls::map_code()),
        ("fork", || check(unsafe_calls::fork())),
        ("exec", || check(unsafe_calls::exec(c"/bin/true"))),
    ];
    // The limits apply to descriptors and processes; a program that replaces this one needs none.
    let number = if part == Part::Limits { NEED_A_DESCRIPTOR } else { attempts.len() };
    let results = attempts.into_iter().take(number).map(|(what, attempt)| (what, name(attempt())));
    Ok([("confinement", enforced)].into_iter().chain(results).collect())
}

fn check(result: i32) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns the symbolic name of an error, as in manual pages.
fn name(result: io::Result<()>) -> String {
    match result.map_err(|error| (error.raw_os_error(), error)) {
        Ok(()) => "done".to_owned(),
        Err((Some(libc::EPERM), _)) => "EPERM".to_owned(),
        Err((Some(libc::EACCES), _)) => "EACCES".to_owned(),
        Err((Some(libc::EMFILE), _)) => "EMFILE".to_owned(),
        Err((Some(libc::EAGAIN), _)) => "EAGAIN".to_owned(),
        Err((Some(libc::ECONNREFUSED), _)) => "ECONNREFUSED".to_owned(),
        Err((_, error)) => error.to_string(),
    }
}

/// System calls without a safe form in the standard library.
mod unsafe_calls {
    use super::{CStr, io, ptr};

    pub(super) fn signal_parent() -> i32 {
        // SAFETY: signal 0 only checks whether a signal could be sent.
        unsafe { libc::kill(libc::getppid(), 0) }
    }

    pub(super) fn map_code() -> io::Result<()> {
        const LENGTH: usize = 4096;
        let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, at an address that the kernel chooses, overlaps no other memory.
        let mapped = unsafe { libc::mmap(ptr::null_mut(), LENGTH, protection, flags, -1, 0) };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the memory was mapped just now, and nothing refers to it.
        unsafe { libc::munmap(mapped, LENGTH) };
        Ok(())
    }

    pub(super) fn fork() -> i32 {
        // SAFETY: the child only exits.
        unsafe {
            match libc::fork() {
                0 => libc::_exit(0),
                child => child,
            }
        }
    }

    pub(super) fn exec(program: &CStr) -> i32 {
        let arguments = [program.as_ptr(), ptr::null()];
        // SAFETY: both are terminated by a zero; on success this process's memory is replaced.
        unsafe { libc::execv(program.as_ptr(), arguments.as_ptr()) }
    }
}
