//! Compiling a component that nobody vouches for: in a process apart, which has limits
//! and an empty environment and ends with the work.
//!
//! [`Compiler`] is the side that asks. [`compile`] is what the process does that it starts,
//! the same program under the name `compile-component`, once it has [confined] itself:
//! the component arrives on standard input, code leaves on standard output.
//!
//! [confined]: rollout_core::harden::compiler

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

/// How the process says that the component is not valid; why, it says on standard error.
pub const INVALID_EXIT_CODE: u8 = 3;

/// Cores that compile one component. More would need more memory than they save time,
/// and a stack and an arena of the allocator each.
const THREADS_MAX: usize = 8;

/// What the process says on standard error, as far as it is kept, in bytes.
const STDERR_BYTES_MAX: u64 = 16 << 10;

/// What is shown of it, in bytes.
const SHOWN_BYTES_MAX: usize = 1000;

/// Code in bytes for a byte of component, at the most: it is usually 3 to 5.
const CODE_PER_COMPONENT_MAX: u64 = 64;

/// Code in bytes that a component may have whatever its size.
const CODE_BYTES_FREE: u64 = 1 << 20;

/// Starts processes that compile.
#[derive(Clone, Debug)]
pub struct Compiler {
    program: PathBuf,
    limits: LoadLimits,
}

/// Why there is no code.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// The component does not validate, or is more than the compiler takes.
    #[error("not a valid component: {0}")]
    Invalid(String),
    /// It took too long.
    #[error(
        "compiling it took longer than [limits] compile-secs-max of {} s, which the configuration can raise", .0.as_secs_f64()
    )]
    Time(Duration),
    /// It took too much memory.
    #[error(
        "compiling it took more memory than [limits] compile-memory-bytes-max of {0} bytes, which the configuration can raise"
    )]
    Memory(usize),
    /// What came of it is too large to be honest.
    #[error("compiling it made more than {0} bytes of code")]
    Code(u64),
    /// The compiler failed on it.
    #[error("the process that compiles ended by {how}: {said}")]
    Died {
        /// The signal or exit code.
        how: String,
        /// What it said.
        said: String,
    },
    /// There is no such process.
    #[error("cannot start the process that compiles components")]
    Start(#[source] io::Error),
}

impl CompileError {
    /// Whose move it is.
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
    /// A compiler that runs this program, which must be a `rollout-host` of the same
    /// version, under these limits.
    pub fn new(program: PathBuf, limits: LoadLimits) -> Self {
        Self { program, limits }
    }

    /// Validates and compiles in a process of its own. Blocks until that has ended.
    pub(super) fn run(&self, plan: MemoryPlan, component: &[u8]) -> Result<Vec<u8>, CompileError> {
        let mut child = self.start(plan).map_err(CompileError::Start)?;
        let code_bytes_max = CODE_BYTES_FREE + CODE_PER_COMPONENT_MAX * component.len() as u64;
        let said = converse(&mut child, component, code_bytes_max, self.limits.compile_time_max);
        // Killed or not, it is waited for, so that nothing is left of it.
        let status = child.wait().map_err(CompileError::Start)?;
        let Some(said) = said else { return Err(CompileError::Time(self.limits.compile_time_max)) };
        if said.code.len() as u64 > code_bytes_max {
            return Err(CompileError::Code(code_bytes_max));
        }
        let (confined, stderr) = confinement_said(&said.stderr);
        match confined {
            Some((confined, true)) => tracing::debug!(confined, "component compiled apart"),
            Some((confined, false)) => {
                tracing::warn!(confined, "components are compiled with less protection");
            }
            // It did not come that far, and says why.
            None => {}
        }
        if status.success() { Ok(said.code) } else { Err(self.failed(status, stderr)) }
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
        let said = both_ends(&printable(stderr.trim()), SHOWN_BYTES_MAX);
        if status.code() == Some(INVALID_EXIT_CODE.into()) {
            return CompileError::Invalid(said);
        }
        // How the standard library says that an allocation failed.
        if stderr.contains("memory allocation of") {
            return CompileError::Memory(self.limits.compile_memory_bytes_max);
        }
        match status.signal() {
            Some(signal) if signal == Signal::XCPU.as_raw() => {
                CompileError::Time(self.limits.compile_time_max)
            }
            Some(signal) => CompileError::Died { how: format!("signal {signal}"), said },
            None => {
                let code = status.code().unwrap_or_default();
                CompileError::Died { how: format!("exit code {code}"), said }
            }
        }
    }
}

/// What a process said until it ended.
struct Said {
    code: Vec<u8>,
    stderr: String,
}

/// Feeds the process and listens to it, and gives up after some time.
fn converse(child: &mut Child, component: &[u8], code_bytes_max: u64, time: Duration) -> Option<Said> {
    let (mut stdin, stdout, stderr) = (child.stdin.take()?, child.stdout.take()?, child.stderr.take()?);
    let (sender, ended) = mpsc::channel();
    let listener = std::thread::spawn(move || {
        let stderr = std::thread::spawn(move || read(stderr, STDERR_BYTES_MAX));
        let code = read(stdout, code_bytes_max + 1);
        let stderr = stderr.join().unwrap_or_default();
        let said = Said { code, stderr: String::from_utf8_lossy(&stderr).into_owned() };
        // Nobody waits any more where the time is over.
        let _ = sender.send(said);
    });
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // A process that ended early has said why.
            let _ = stdin.write_all(component);
        });
        let said = ended.recv_timeout(time).ok();
        if said.is_none() {
            // Frees the threads, which hang on its pipes.
            let _ = child.kill();
        }
        // It only panics where memory is out, and then there is nothing to report.
        let _ = listener.join();
        said
    })
}

fn read(stream: impl Read, bytes_max: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    // What was read before an error is what there is; the exit code says the rest.
    let _ = stream.take(bytes_max).read_to_end(&mut bytes);
    bytes
}

/// Validates a component as a whole, then compiles it for engines of this plan.
pub fn compile(plan: MemoryPlan, component: &[u8]) -> Result<Vec<u8>, wasmtime::Error> {
    Validator::new_with_features(FEATURES).validate_all(component)?;
    wasmtime::Engine::new(&plan::code(plan))?.precompile_component(component)
}
