//! Tries what a process that compiles must not be able to do, and says what came of it. For
//! tests, and for whoever wants to know what a kernel enforces.

use std::ffi::CStr;
use std::io;
use std::net::TcpStream;
use std::ptr;

use super::compiler::{CompilerLimits, confine, no_more};
use super::files;

/// Which part of the confinement is tried.
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
    /// The part of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "all" => Some(Self::All),
            "files" => Some(Self::Files),
            "limits" => Some(Self::Limits),
            _ => None,
        }
    }
}

/// What is tried, and how.
type Attempt = (&'static str, fn() -> io::Result<()>);

/// How many of the attempts, from the first, need a new descriptor.
const NEED_A_DESCRIPTOR: usize = 4;

/// Confines this process and tries to get out. Gives what is enforced, and what was tried with
/// the error that it met.
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
    // The limits are about descriptors, which a program that is run in place of this needs none of.
    let number = if part == Part::Limits { NEED_A_DESCRIPTOR } else { attempts.len() };
    let came = attempts.into_iter().take(number).map(|(what, attempt)| (what, name(attempt())));
    Ok([("confinement", enforced)].into_iter().chain(came).collect())
}

fn check(result: i32) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// An error by the name that manuals have for it.
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

/// Calls that the standard library has no safe form of.
mod unsafe_calls {
    use super::{CStr, io, ptr};

    pub(super) fn signal_parent() -> i32 {
        // SAFETY: signal 0 only asks whether one could be sent.
        unsafe { libc::kill(libc::getppid(), 0) }
    }

    pub(super) fn map_code() -> io::Result<()> {
        const LENGTH: usize = 4096;
        let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, at an address of the kernel's choice, is nobody's memory.
        let mapped = unsafe { libc::mmap(ptr::null_mut(), LENGTH, protection, flags, -1, 0) };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it was mapped just now and nobody has it.
        unsafe { libc::munmap(mapped, LENGTH) };
        Ok(())
    }

    pub(super) fn fork() -> i32 {
        // SAFETY: the child does nothing but end.
        unsafe {
            match libc::fork() {
                0 => libc::_exit(0),
                child => child,
            }
        }
    }

    pub(super) fn exec(program: &CStr) -> i32 {
        let arguments = [program.as_ptr(), ptr::null()];
        // SAFETY: both are ended by a zero; where it succeeds, nothing of this is left.
        unsafe { libc::execv(program.as_ptr(), arguments.as_ptr()) }
    }
}
