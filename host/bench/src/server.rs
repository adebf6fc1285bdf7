//! A server that the bench starts itself, and ends: on success, on error and when dropped.

use std::collections::VecDeque;
use std::io;
use std::process::{Command as SyncCommand, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::proc_fs::{self, ProcError};

/// A server may compile its plugin first, which takes half a minute for the largest.
const START_TIMEOUT: Duration = Duration::from_secs(180);
/// A server that says that it listens does so by then.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(2);
/// Time to end after SIGTERM; servers drain for up to 10 s.
const STOP_TIMEOUT: Duration = Duration::from_secs(12);
/// How often it is looked whether a process did what it was asked.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Of what the server prints, the last lines are kept to explain an error.
const LINES_KEPT: usize = 12;
const LINE_BYTES_MAX: usize = 1000;
const READY: &str = "listening on http://";

/// Why a command did not become a server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// No shell to run it with.
    #[error("cannot run a shell for the command")]
    Spawn(#[source] io::Error),
    /// It ended.
    #[error("the command ended before it said '{READY}…'; it printed:\n{0}")]
    Ended(String),
    /// It goes on, but does not say that it listens.
    #[error("the command has not said '{READY}…' after {time}; it printed:\n{0}", time = rollout_core::text::time(START_TIMEOUT))]
    Silent(String),
    /// Its process is not known.
    #[error("no process of this machine listens on port {0}, which the command named")]
    NoListener(u16),
    /// It said where it listens, without a port.
    #[error("the command says that it listens on {0}, where no port is named")]
    NoPort(String),
    /// The processes of this machine cannot be read.
    #[error(transparent)]
    Proc(#[from] ProcError),
}

/// A server, and all that its command started. Dropped, it is killed.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    /// The process group: the shell's, and of all that it starts.
    group: u32,
    readers: Vec<AbortHandle>,
    stopped: bool,
    pub(super) url: String,
    /// The process that listens, which need not be the one that was started.
    pub(super) pid: u32,
}

type Tail = Arc<Mutex<VecDeque<String>>>;

impl Server {
    /// Runs `command` in a shell and waits until it says where it listens, on either stream.
    pub(super) async fn start(command: &str) -> Result<Self, StartError> {
        let mut shell = Command::new("/bin/sh");
        shell.arg("-c").arg(command).process_group(0).kill_on_drop(true);
        shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = shell.spawn().map_err(StartError::Spawn)?;
        let group = child.id().ok_or_else(|| StartError::Spawn(io::ErrorKind::NotFound.into()))?;
        let tail = Tail::default();
        let (said, mut ready) = mpsc::channel(1);
        let mut readers = Vec::new();
        if let Some(stream) = child.stdout.take() {
            readers.push(tokio::spawn(read(stream, tail.clone(), said.clone())).abort_handle());
        }
        if let Some(stream) = child.stderr.take() {
            readers.push(tokio::spawn(read(stream, tail.clone(), said)).abort_handle());
        }
        // From here on an early return kills what was started.
        let mut server = Self { child, group, readers, stopped: false, url: String::new(), pid: group };
        server.url = match timeout(START_TIMEOUT, ready.recv()).await {
            Ok(Some(url)) => url,
            Ok(None) => return Err(StartError::Ended(printed(&tail))),
            Err(_) => return Err(StartError::Silent(printed(&tail))),
        };
        server.pid = server.listener().await?;
        Ok(server)
    }

    async fn listener(&self) -> Result<u32, StartError> {
        let port = port_of(&self.url).ok_or_else(|| StartError::NoPort(self.url.clone()))?;
        let deadline = Instant::now() + LISTEN_TIMEOUT;
        loop {
            match proc_fs::listener_on(port, self.group)? {
                Some(pid) => return Ok(pid),
                None if Instant::now() > deadline => return Err(StartError::NoListener(port)),
                None => sleep(LOOK_EVERY).await,
            }
        }
    }

    /// Asks the whole group to end and, if it does not, ends it.
    pub(super) async fn stop(mut self) {
        signal("TERM", self.group);
        let ended = async {
            while proc_fs::group_lives(self.group) {
                sleep(LOOK_EVERY).await;
            }
        };
        if timeout(STOP_TIMEOUT, ended).await.is_err() {
            signal("KILL", self.group);
        }
        // Only now may the number of the group be given to another.
        let _ = timeout(STOP_TIMEOUT, self.child.wait()).await;
        self.stopped = true;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.stopped {
            signal("KILL", self.group);
        }
        self.readers.iter().for_each(AbortHandle::abort);
    }
}

/// By the shell, for there is no safe call for it in the standard library. A group that has
/// ended already is no error.
fn signal(name: &str, group: u32) {
    let mut shell = SyncCommand::new("/bin/sh");
    shell.arg("-c").arg(format!("kill -s {name} -- -{group}"));
    let _ = shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
}

/// Reads a stream to its end, so that the server never waits for a reader.
async fn read(mut stream: impl AsyncRead + Unpin, tail: Tail, said: mpsc::Sender<String>) {
    // Kept until the end of the stream only if the server is not ready before.
    let mut said = Some(said);
    let mut line = Vec::new();
    let mut bytes = [0; 4096];
    while let Ok(length @ 1..) = stream.read(&mut bytes).await {
        for &byte in &bytes[..length] {
            if byte != b'\n' {
                if line.len() < LINE_BYTES_MAX {
                    line.push(byte);
                }
                continue;
            }
            let text = String::from_utf8_lossy(&line).into_owned();
            line.clear();
            if let Some(url) = said.as_ref().and_then(|_| ready_url(&text)) {
                // Nobody listens any more if the other stream said it first.
                let _ = said.take().map(|said| said.try_send(url));
            }
            keep(&tail, text);
        }
    }
    if !line.is_empty() {
        keep(&tail, String::from_utf8_lossy(&line).into_owned());
    }
}

fn keep(tail: &Tail, line: String) {
    let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
    if tail.len() == LINES_KEPT {
        tail.pop_front();
    }
    tail.push_back(line);
}

fn printed(tail: &Tail) -> String {
    let tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
    if tail.is_empty() {
        return "nothing".to_owned();
    }
    let clean = |line: &String| line.replace(|c: char| c.is_control(), " ");
    tail.iter().map(clean).collect::<Vec<_>>().join("\n")
}

/// The URL in a line that says where the server listens.
fn ready_url(line: &str) -> Option<String> {
    let begin = line.find(READY)? + READY.len();
    let ends = |c: char| c.is_whitespace() || c.is_control() || "\"'<>,;".contains(c);
    let rest = &line[begin..];
    let address = rest[..rest.find(ends).unwrap_or(rest.len())].trim_end_matches(['.', '/']);
    (!address.is_empty()).then(|| format!("http://{address}"))
}

fn port_of(url: &str) -> Option<u16> {
    let host = url.strip_prefix("http://")?.split('/').next()?;
    host.rsplit_once(':')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_may_be_a_log_line() {
        fn check(line: &str, expected: Option<&str>) {
            assert_eq!(ready_url(line).as_deref(), expected, "{line:?}");
        }
        check("listening on http://127.0.0.1:80", Some("http://127.0.0.1:80"));
        check("12:00 INFO listening on http://[::1]:80/ (D)", Some("http://[::1]:80"));
        check(r#"{"message":"listening on http://h:8080"}"#, Some("http://h:8080"));
        check("listening on http://h:1.\u{1b}[0m", Some("http://h:1"));
        check("listening on http://", None);
        check("listening on port 80", None);
        assert_eq!(port_of("http://[::1]:80/x"), Some(80));
        assert_eq!(port_of("http://host"), None);
    }

    #[tokio::test]
    async fn a_command_that_ends_is_quoted() {
        let error = Server::start("echo hello; echo trouble >&2; exit 3").await.unwrap_err();
        let StartError::Ended(printed) = error else { panic!("{error}") };
        assert!(printed.contains("hello") && printed.contains("trouble"), "{printed}");
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_started_group_ends_with_its_server() {
        // A shell with a child; this process listens for it.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let command = format!("sleep 1000 & echo 'listening on {url}'; wait");

        let server = Server::start(&command).await.unwrap();
        assert_eq!((server.url.as_str(), server.pid), (url.as_str(), std::process::id()));
        let group = server.group;
        assert!(proc_fs::group_lives(group));
        server.stop().await;
        assert!(!proc_fs::group_lives(group));

        let server = Server::start(&command).await.unwrap();
        let group = server.group;
        drop(server);
        let ended = async {
            while proc_fs::group_lives(group) {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(10), ended).await.unwrap();
    }
}
