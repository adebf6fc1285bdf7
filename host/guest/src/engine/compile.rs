//! Compilation of untrusted components in a separate process, which has limits and an empty environment and ends after
//! one component.
//!
//! [`Compiler`] is the host's side. It starts the same program with the command `compile-component`, which
//! [confines] itself and calls [`compile`]: the component arrives on standard input, and the code is written to
//! standard output.
//!
//! [confines]: rollout_core::harden::compiler

use std::io::{self, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::Signal;
use wasmparser::Validator;

use super::plan::{self, FEATURES, MemoryPlan};
use rollout_core::error::Fault;
use rollout_core::harden::compiler::confinement_said;
use rollout_core::limits::LoadLimits;
use rollout_wire::text::{both_ends, printable};

/// Exit code of the process for an invalid component. The reason is on its standard error.
pub const INVALID_EXIT_CODE: u8 = 3;

/// Maximum number of cores that compile one component. More cores would save little time, and each needs memory for a
/// stack and an arena of the allocator.
const THREADS_MAX: usize = 8;

/// Maximum size of the process's standard error that is stored, in bytes.
const STDERR_BYTES_MAX: u64 = 16 << 10;

/// Maximum size of the standard error in an error message, in bytes.
const SHOWN_BYTES_MAX: usize = 1000;

/// Maximum number of bytes of code for each byte of the component. Usual values are 3 to 5.
const CODE_PER_COMPONENT_MAX: u64 = 64;

/// Number of bytes of code that a component of any size may have.
const CODE_BYTES_FREE: u64 = 1 << 20;

/// Starts compiler processes.
#[derive(Clone, Debug)]
pub struct Compiler {
    program: PathBuf,
    limits: LoadLimits,
}

/// Error of compiling a component.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// The component is invalid or exceeds a limit of the compiler.
    #[error("not a valid component: {0}")]
    Invalid(String),
    /// Compiling took too long.
    #[error(
        "compiling it took longer than [limits] compile-secs-max of {} s, which the configuration can raise", .0.as_secs_f64()
    )]
    Time(Duration),
    /// Compiling took too much memory.
    #[error(
        "compiling it took more memory than [limits] compile-memory-bytes-max of {0} bytes, which the configuration can raise"
    )]
    Memory(usize),
    /// The code is suspiciously large.
    #[error("compiling it produced more than {0} bytes of code")]
    Code(u64),
    /// The compiler process crashed.
    #[error("the compiler process ended by {how}: {stderr}")]
    Died {
        /// The signal or exit code.
        how: String,
        /// Its standard error.
        stderr: String,
    },
    /// The process cannot be started.
    #[error("cannot start the compiler process")]
    Start(#[source] io::Error),
}

impl CompileError {
    /// Returns the party that must act.
    pub(crate) fn fault(&self) -> Fault {
        match self {
            Self::Invalid(_) | Self::Time(_) | Self::Memory(_) | Self::Code(_) | Self::Died { .. } => {
                Fault::Plugin
            }
            Self::Start(_) => Fault::Host,
        }
    }
}

impl Compiler {
    /// Creates a compiler that runs `program`, which must be a `rollout-host` of the same version, under the given
    /// limits.
    pub fn new(program: PathBuf, limits: LoadLimits) -> Self {
        Self { program, limits }
    }

    /// Validates and compiles a component in a separate process. Blocks until the process has ended.
    pub(super) fn run(&self, plan: MemoryPlan, component: &[u8]) -> Result<Vec<u8>, CompileError> {
        let mut child = self.start(plan).map_err(CompileError::Start)?;
        let code_bytes_max = CODE_BYTES_FREE + CODE_PER_COMPONENT_MAX * component.len() as u64;
        let output = converse(&mut child, component, code_bytes_max, self.limits.compile_time_max);
        // Reaped even if it was killed, so that no zombie is left.
        let status = child.wait().map_err(CompileError::Start)?;
        let Some(output) = output else { return Err(CompileError::Time(self.limits.compile_time_max)) };
        if output.code.len() as u64 > code_bytes_max {
            return Err(CompileError::Code(code_bytes_max));
        }
        let (confined, stderr) = confinement_said(&output.stderr);
        match confined {
            Some((confined, true)) => tracing::debug!(confined, "component compiled in a confined process"),
            Some((confined, false)) => {
                tracing::warn!(confined, "components are compiled without a filter of system calls");
            }
            // The process ended before it was confined, and reports the reason.
            None => {}
        }
        if status.success() { Ok(output.code) } else { Err(self.failed(status, stderr)) }
    }

    fn start(&self, plan: MemoryPlan) -> io::Result<Child> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
        let cpu_secs = self.limits.compile_time_max.as_secs_f64().ceil() as u64 * threads as u64;
        Command::new(&self.program)
            .arg("compile-component")
            .args(["--plan", plan.name()])
            .arg(format!("--memory-bytes-max={}", self.limits.compile_memory_bytes_max))
            .arg(format!("--cpu-secs-max={cpu_secs}"))
            .env_clear()
            .env("RAYON_NUM_THREADS", threads.to_string())
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
    }

    fn failed(&self, status: ExitStatus, stderr: &str) -> CompileError {
        let stderr_shown = both_ends(&printable(stderr.trim()), SHOWN_BYTES_MAX);
        if status.code() == Some(INVALID_EXIT_CODE.into()) {
            return CompileError::Invalid(stderr_shown);
        }
        // The standard library's message for a failed allocation.
        if stderr.contains("memory allocation of") {
            return CompileError::Memory(self.limits.compile_memory_bytes_max);
        }
        match status.signal() {
            Some(signal) if signal == Signal::XCPU.as_raw() => {
                CompileError::Time(self.limits.compile_time_max)
            }
            Some(signal) => CompileError::Died { how: format!("signal {signal}"), stderr: stderr_shown },
            None => {
                let code = status.code().unwrap_or_default();
                CompileError::Died { how: format!("exit code {code}"), stderr: stderr_shown }
            }
        }
    }
}

/// Output of a process.
struct Output {
    code: Vec<u8>,
    stderr: String,
}

/// Feeds the process and reads its output. Returns `None` after a timeout.
fn converse(child: &mut Child, component: &[u8], code_bytes_max: u64, time: Duration) -> Option<Output> {
    let (mut stdin, stdout, stderr) = (child.stdin.take()?, child.stdout.take()?, child.stderr.take()?);
    let (sender, ended) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let stderr = std::thread::spawn(move || read(stderr, STDERR_BYTES_MAX));
        let code = read(stdout, code_bytes_max + 1);
        let stderr = stderr.join().unwrap_or_default();
        let output = Output { code, stderr: String::from_utf8_lossy(&stderr).into_owned() };
        // There is no receiver after a timeout.
        let _ = sender.send(output);
    });
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // A process that ended early has reported the reason.
            let _ = stdin.write_all(component);
        });
        let output = ended.recv_timeout(time).ok();
        if output.is_none() {
            // Unblocks the threads that read and write its pipes.
            let _ = child.kill();
        }
        // The thread panics only if memory is exhausted, and then there is nothing to report.
        let _ = reader.join();
        output
    })
}

fn read(stream: impl Read, bytes_max: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Bytes read before an error are used; the exit code shows whether the process failed.
    let _ = stream.take(bytes_max).read_to_end(&mut bytes);
    bytes
}

/// Validates the whole component, then compiles it for engines with this memory plan.
pub fn compile(plan: MemoryPlan, component: &[u8]) -> Result<Vec<u8>, wasmtime::Error> {
    Validator::new_with_features(FEATURES).validate_all(component)?;
    wasmtime::Engine::new(&plan::code(plan))?.precompile_component(component)
}
