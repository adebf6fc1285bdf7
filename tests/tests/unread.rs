//! Tests of output that is not read: a closed pipe, and a full one.

use std::process::Stdio;
use std::time::Duration;

use rollout_tests::{Controller, guest, in_time, rollout_host};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};

/// A server whose output pipes the test holds.
struct Unread {
    child: Child,
    url: String,
    dir: tempfile::TempDir,
}

impl Unread {
    /// Starts the server, and reads its address from its output.
    async fn start(more: &[&str]) -> (Self, BufReader<tokio::process::ChildStdout>) {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let mut command: Command = rollout_host(["serve"]);
        command.arg(guest("conform")).args(["--listen", "127.0.0.1:0"]).args(more).current_dir(dir.path());
        command.env("ROLLOUT_HOST_LOG", "trace");
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().expect("it starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut line = String::new();
        // Its log is not read during the start either; the first lines fit into the pipe.
        in_time("its address", stdout.read_line(&mut line)).await.expect("it prints its address");
        let url = line.trim().strip_prefix("listening on ").expect("it prints its address").to_owned();
        (Self { child, url, dir }, stdout)
    }

    async fn run_rollouts(&self, controller: &Controller, count: usize) {
        // Another test may have installed the same one already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder().no_proxy().build().expect("a client can be made");
        for _ in 0..count {
            let request = controller.rollout("Calculate 2 + 3.").label("5").with_callbacks("key");
            let sent = http.post(format!("{}/rollout", self.url)).json(&request.body()).send();
            let reply = in_time("an answer", sent).await.expect("the host answers");
            assert_eq!(reply.status(), 202);
        }
        let callbacks = controller.callbacks_arrived(2 * count).await;
        let rewards = callbacks.iter().filter(|callback| callback.body["sample"]["reward"] == json!(1.0));
        assert_eq!(rewards.count(), count);
    }

    async fn stop(mut self) -> Option<i32> {
        let id = self.child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?)).expect("it runs");
        kill_process(id, Signal::TERM).expect("it is there");
        let ended = in_time("its end", self.child.wait()).await.expect("it can be waited for");
        drop(self.dir);
        ended.code()
    }
}

#[tokio::test]
async fn a_server_continues_if_its_output_pipes_are_closed() {
    let controller = Controller::start().await;
    let (mut server, stdout) = Unread::start(&[]).await;
    drop(stdout);
    drop(server.child.stderr.take());

    server.run_rollouts(&controller, 20).await;

    assert_eq!(server.stop().await, Some(0));
}

#[tokio::test]
async fn a_server_continues_if_its_log_is_not_read_and_reports_lost_lines_later() {
    let controller = Controller::start().await;
    let (mut server, _stdout) = Unread::start(&[]).await;
    let mut log = server.child.stderr.take().expect("it is piped");

    // Each rollout logs many lines at this level; a pipe holds 64 KiB.
    server.run_rollouts(&controller, 60).await;

    let reading = tokio::spawn(async move {
        let mut text = Vec::new();
        log.read_to_end(&mut text).await.map(|_| text)
    });
    assert_eq!(server.stop().await, Some(0));
    let text = in_time("the log", reading).await.expect("it is read").expect("it is read");
    assert!(text.len() > 64 << 10, "{} bytes", text.len());
    assert!(String::from_utf8_lossy(&text).contains("drained"), "the end of the log is there");
}

#[tokio::test]
async fn a_server_can_end_while_its_log_is_blocked() {
    let controller = Controller::start().await;
    let (server, _stdout) = Unread::start(&[]).await;
    server.run_rollouts(&controller, 60).await;

    assert_eq!(tokio::time::timeout(Duration::from_secs(50), server.stop()).await, Ok(Some(0)));
}

#[tokio::test]
async fn a_command_whose_output_pipe_is_closed_ends_like_other_programs() {
    for arguments in [&["inspect"][..], &["inspect", "--json"], &["config"]] {
        let (reader, writer) = std::io::pipe().expect("a pipe can be made");
        drop(reader);
        let mut command: Command = rollout_host(arguments);
        command.arg(guest("conform")).stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped());
        let child = command.spawn().expect("it starts");
        // The command also holds the writer.
        drop(command);
        let ran = in_time("its end", child.wait_with_output()).await.expect("it runs");

        assert_eq!(String::from_utf8_lossy(&ran.stderr), "", "{arguments:?}");
        assert_eq!(ran.status.code(), Some(141), "{arguments:?}");
    }
}
