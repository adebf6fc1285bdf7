//! The process of a tool server. Its environment has only the variables that the operator configured, and it is killed
//! when the host ends for any reason.

use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncReadExt;
use tokio::process::{ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use crate::Secrets;
use rollout_core::child::OwnedChild;
use rollout_wire::text::printable;

/// Number of bytes at the end of a server's standard error that are stored for an error message.
const STDERR_END_BYTES: usize = 1024;

/// Size above which a line is logged in parts.
const LINE_BYTES_MAX: usize = 16 << 10;

/// Time to wait for a process that is about to end.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// Parameters for starting a server.
#[derive(Clone, Debug)]
pub(super) struct Start {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Its whole environment.
    pub environment: Vec<(String, String)>,
    /// Secrets to remove from its standard error.
    pub secrets: Secrets,
}

/// A server's process with its child processes. Dropping this kills them.
pub(super) struct Process {
    owned: OwnedChild,
    group: Option<Pid>,
    stderr_end: Arc<Mutex<String>>,
    listening: AbortOnDropHandle<()>,
}

impl Process {
    /// Starts a server. Returns the process with its standard input and output.
    pub(super) async fn start(
        start: &Start,
        about: &str,
    ) -> std::io::Result<(Self, ChildStdin, ChildStdout)> {
        let mut command = Command::new(start.command.first().map_or("", String::as_str));
        command
            .args(start.command.iter().skip(1))
            .env_clear()
            .envs(start.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        let mut owned = OwnedChild::start(command).await?;
        let child = &mut owned.child;
        let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let missing = || std::io::Error::other("the pipes of the process are missing");
        let stdin = child.stdin.take().ok_or_else(missing)?;
        let stdout = child.stdout.take().ok_or_else(missing)?;
        let stderr = child.stderr.take().ok_or_else(missing)?;
        let stderr_end = Arc::<Mutex<String>>::default();
        let listening =
            tokio::spawn(listen(stderr, about.to_owned(), stderr_end.clone(), start.secrets.clone()));
        let listening = AbortOnDropHandle::new(listening);
        Ok((Self { owned, group, stderr_end, listening }, stdin, stdout))
    }

    /// Waits until the process ends, and returns its status in words.
    pub(super) async fn ended(&mut self) -> String {
        match self.owned.child.wait().await {
            Ok(status) => format!("its process ended: {status}"),
            Err(error) => format!("its process ended with an unknown status: {error}"),
        }
    }

    /// Returns the exit status if the process ends soon, or else `reason`, followed by the end of its standard error.
    pub(super) async fn explained(&mut self, reason: String) -> String {
        let reason = timeout(END_TIMEOUT, self.ended()).await.unwrap_or(reason);
        // All output of an ended process can be read immediately.
        let _ = timeout(END_TIMEOUT, &mut self.listening).await;
        match self.stderr_end() {
            words if words.is_empty() => reason,
            words => format!("{reason}; the end of its standard error: {words}"),
        }
    }

    fn stderr_end(&self) -> String {
        self.stderr_end.lock().unwrap_or_else(PoisonError::into_inner).trim().to_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process group exists as long as the child is not reaped.
        if let Some(group) = self.group.filter(|_| self.owned.child.id().is_some()) {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// Logs a server's standard error line by line, so that no secret is missed because it is split in two.
async fn listen(mut stderr: ChildStderr, about: String, stderr_end: Arc<Mutex<String>>, secrets: Secrets) {
    let mut written = Vec::new();
    loop {
        let read = stderr.read_buf(&mut written).await.unwrap_or(0);
        let lines = match written.iter().rposition(|byte| *byte == b'\n') {
            _ if read == 0 || written.len() > LINE_BYTES_MAX => written.len(),
            Some(end) => end + 1,
            None => 0,
        };
        let text = String::from_utf8_lossy(&written[..lines]).into_owned();
        written.drain(..lines);
        let text = printable(&secrets.cut_from(text));
        for line in text.lines().filter(|line| !line.is_empty()) {
            tracing::debug!(server = about, line, "output of a tool server");
        }
        let mut end = stderr_end.lock().unwrap_or_else(PoisonError::into_inner);
        *end += &text;
        if end.len() > STDERR_END_BYTES {
            let from = (end.len() - STDERR_END_BYTES..end.len()).find(|at| end.is_char_boundary(*at));
            end.drain(..from.unwrap_or_default());
        }
        if read == 0 {
            return;
        }
    }
}
