//! A server that the bench starts and stops.

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

/// Maximum time to start. A server may compile its plugin first, which takes half a minute for the largest.
const START_TIMEOUT: Duration = Duration::from_secs(180);
/// Maximum time between the line about listening and the listening socket.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum time to stop after SIGTERM. Servers drain for up to 10 s.
const STOP_TIMEOUT: Duration = Duration::from_secs(12);
/// Interval of polling the state of a process.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Number of last lines of output that are quoted in an error.
const TAIL_LINES_MAX: usize = 12;
const LINE_BYTES_MAX: usize = 1000;
const READY: &str = "listening on http://";

/// Error of starting a server with a command.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The shell cannot be started.
    #[error("cannot run a shell for the command")]
    Spawn(#[source] io::Error),
    /// The command ended.
    #[error("the command ended without printing '{READY}…'; its output:\n{0}")]
    Ended(String),
    /// The command runs without reporting an address.
    #[error("the command did not print '{READY}…' within {time}; its output:\n{0}", time = rollout_wire::text::time(START_TIMEOUT))]
    Silent(String),
    /// The listening process was not found.
    #[error("no process of this machine listens on port {0}, which the command printed")]
    NoListener(u16),
    /// The printed address has no port.
    #[error("the command printed the address {0}, which has no port")]
    NoPort(String),
    /// `/proc` cannot be read.
    #[error(transparent)]
    Proc(#[from] ProcError),
}

/// A running server and the processes that its command started. Dropping it kills them.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    /// Process group of the shell and everything it starts.
    group: u32,
    readers: Vec<AbortHandle>,
    stopped: bool,
    pub(super) url: String,
    /// The process that listens, which may be a child of the command.
    pub(super) pid: u32,
}

type Tail = Arc<Mutex<VecDeque<String>>>;

impl Server {
    /// Runs `command` in a shell and waits until it prints its address to stdout or stderr.
    pub(super) async fn start(command: &str) -> Result<Self, StartError> {
        let mut shell = Command::new("/bin/sh");
        shell.arg("-c").arg(command).process_group(0).kill_on_drop(true);
        shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = shell.spawn().map_err(StartError::Spawn)?;
        let group = child.id().ok_or_else(|| StartError::Spawn(io::ErrorKind::NotFound.into()))?;
        let tail = Tail::default();
        let (ready_sender, mut ready) = mpsc::channel(1);
        let mut readers = Vec::new();
        if let Some(stream) = child.stdout.take() {
            readers.push(tokio::spawn(read(stream, tail.clone(), ready_sender.clone())).abort_handle());
        }
        if let Some(stream) = child.stderr.take() {
            readers.push(tokio::spawn(read(stream, tail.clone(), ready_sender)).abort_handle());
        }
        // From here on an early return kills the process group.
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

    /// Stops the process group, first with SIGTERM, then with SIGKILL.
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
        // From here on the system may reuse the number of the group.
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

/// Sends a signal by running `kill` in a shell, because the standard library has no safe call for it. Ignores
/// a group that has ended already.
fn signal(name: &str, group: u32) {
    let mut shell = SyncCommand::new("/bin/sh");
    shell.arg("-c").arg(format!("kill -s {name} -- -{group}"));
    let _ = shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
}

/// Reads a stream to its end, so that the server never blocks on a full pipe.
async fn read(mut stream: impl AsyncRead + Unpin, tail: Tail, ready_sender: mpsc::Sender<String>) {
    // Dropped at the end of the stream, so that the receiver notices an early end.
    let mut ready_sender = Some(ready_sender);
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
            if let Some(url) = ready_sender.as_ref().and_then(|_| ready_url(&text)) {
                // The receiver is closed if the other stream reported first.
                let _ = ready_sender.take().map(|ready_sender| ready_sender.try_send(url));
            }
            append(&tail, text);
        }
    }
    if !line.is_empty() {
        append(&tail, String::from_utf8_lossy(&line).into_owned());
    }
}

fn append(tail: &Tail, line: String) {
    let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
    if tail.len() == TAIL_LINES_MAX {
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

/// Extracts the URL from a line that reports the listening address.
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
    fn the_address_may_be_part_of_a_log_line() {
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
    async fn the_output_of_a_command_that_ends_early_is_quoted() {
        let error = Server::start("echo hello; echo trouble >&2; exit 3").await.unwrap_err();
        let StartError::Ended(printed) = error else { panic!("{error}") };
        assert!(printed.contains("hello") && printed.contains("trouble"), "{printed}");
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn stopping_a_server_stops_its_process_group() {
        // The shell has a child; this process listens in its place.
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
