//! A process of the host, with its output.

use std::ffi::OsStr;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::{TIMEOUT, host_program, in_time, target_dir};

/// A running process. It is killed when this is dropped; if the test failed, its standard error is printed.
pub struct Process {
    child: Child,
    stdout: Output,
    stderr: Output,
}

/// A process that has ended.
#[derive(Debug)]
pub struct Ran {
    /// Its exit code; none if a signal ended it.
    pub code: Option<i32>,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

/// Starts a command as a [`Process`].
pub trait Start {
    /// Starts it with captured output and no input.
    fn start(&mut self) -> Process;

    /// Starts it with captured output and this input.
    fn start_with(&mut self, input: Stdio) -> Process;

    /// Starts it with captured output and piped input.
    fn start_with_input(&mut self) -> (Process, ChildStdin);
}

/// Returns a command of the host's binary with these arguments, to be [started](Start::start), without variables of the
/// test's own environment that it would use. Compiled code is cached among the builds.
pub fn rollout_host<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(host_program());
    command.args(arguments).env("XDG_CACHE_HOME", target_dir().join("test-cache"));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("_OSMOSIS_") || name.starts_with("OSMOSIS_") || name.starts_with("ROLLOUT_") {
            command.env_remove(&*name);
        }
    }
    command
}

/// Returns the same, in a process with a limited number of open files.
pub fn rollout_host_with_open_files<A: AsRef<OsStr>>(
    max: u32,
    arguments: impl IntoIterator<Item = A>,
) -> Command {
    confined(rollout_host(arguments), &format!("ulimit -n {max}"))
}

/// Returns a command that runs this shell code first, in the process that becomes `plain`.
pub(crate) fn confined(plain: Command, by: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{by} && exec \"$0\" \"$@\"")]);
    command.arg(plain.as_std().get_program()).args(plain.as_std().get_args());
    for (name, value) in plain.as_std().get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    if let Some(dir) = plain.as_std().get_current_dir() {
        command.current_dir(dir);
    }
    command
}

impl Start for Command {
    fn start(&mut self) -> Process {
        self.start_with(Stdio::null())
    }

    fn start_with(&mut self, input: Stdio) -> Process {
        keep(self.stdin(input))
    }

    fn start_with_input(&mut self) -> (Process, ChildStdin) {
        let mut process = keep(self.stdin(Stdio::piped()));
        let input = process.child.stdin.take().expect("it is piped");
        (process, input)
    }
}

fn keep(command: &mut Command) -> Process {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
    let stdout = Output::keep(child.stdout.take().expect("it is piped"));
    let stderr = Output::keep(child.stderr.take().expect("it is piped"));
    Process { child, stdout, stderr }
}

impl Process {
    /// Returns its id while it runs.
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        if let Some(id) = self.child.id() {
            let id = i32::try_from(id).ok().and_then(Pid::from_raw).expect("a process has an id");
            // An error means that it ended meanwhile, which waiting will show.
            let _ = kill_process(id, signal);
        }
    }

    /// Terminates it with SIGTERM, as an operator does, and waits for its end.
    pub async fn terminate(self) -> Ran {
        self.signal(Signal::TERM);
        self.ended().await
    }

    /// Kills it, as a crash does, and waits for its end.
    pub async fn kill(self) -> Ran {
        self.signal(Signal::KILL);
        self.ended().await
    }

    /// Waits until it ends.
    pub async fn ended(self) -> Ran {
        self.ended_within(TIMEOUT).await
    }

    /// Waits until it ends, for at most this time.
    pub async fn ended_within(mut self, time: Duration) -> Ran {
        let status = match tokio::time::timeout(time, self.child.wait()).await {
            Ok(status) => status.expect("a child can be waited for"),
            Err(_) => {
                panic!("waited {time:?} for a process to end; its output so far: {}", self.stdout.so_far())
            }
        };
        let stdout = in_time("the end of its output", self.stdout.all()).await;
        let stderr = in_time("the end of its errors", self.stderr.all()).await;
        Ran { code: status.code(), stdout, stderr }
    }

    /// Waits for a line of standard output with this beginning; returns the rest of it.
    pub async fn line(&self, beginning: &str) -> String {
        let line = in_time(&format!("a line '{beginning}…'"), self.stdout.line(beginning)).await;
        line.unwrap_or_else(|| {
            panic!("the process ended without a line '{beginning}…': {}", self.stderr.so_far())
        })
    }

    /// Waits for such a line. Returns the standard error if the process ends without one.
    pub async fn line_or_error(&self, beginning: &str) -> Result<String, String> {
        match in_time(&format!("a line '{beginning}…'"), self.stdout.line(beginning)).await {
            Some(line) => Ok(line),
            None => Err(in_time("the end of its errors", self.stderr.all()).await),
        }
    }

    /// Returns its standard error so far.
    pub fn stderr(&self) -> String {
        self.stderr.so_far()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- standard error of the host\n{}---", self.stderr());
        }
    }
}

/// One stream, read until it ends.
struct Output {
    kept: Arc<Mutex<Vec<u8>>>,
    /// The number of bytes so far; closed at the end.
    length: watch::Receiver<usize>,
    _reader: JoinHandle<()>,
}

impl Output {
    fn keep(mut stream: impl AsyncRead + Unpin + Send + 'static) -> Self {
        let kept = Arc::<Mutex<Vec<u8>>>::default();
        let (sender, length) = watch::channel(0);
        let into = kept.clone();
        let reader = tokio::spawn(async move {
            let mut buffer = vec![0; 16 << 10];
            while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                let mut kept = into.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend_from_slice(&buffer[..read]);
                sender.send_replace(kept.len());
            }
        });
        Self { kept, length, _reader: reader }
    }

    fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.kept.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }

    /// Waits for the end and returns everything.
    async fn all(&self) -> String {
        let mut length = self.length.clone();
        while length.changed().await.is_ok() {}
        self.so_far()
    }

    /// Waits for a whole line with this beginning; returns `None` if the stream ends first.
    async fn line(&self, beginning: &str) -> Option<String> {
        let mut length = self.length.clone();
        loop {
            length.mark_unchanged();
            let text = self.so_far();
            let mut whole = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
            if let Some(rest) = whole.find_map(|line| line.strip_prefix(beginning)) {
                return Some(rest.trim_end().to_owned());
            }
            length.changed().await.ok()?;
        }
    }
}
