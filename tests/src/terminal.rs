//! A terminal of 80 columns and 24 lines, Debian's tmux.

use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tokio::process::Command;

use crate::{Process, Start, environments, until};

/// A terminal in which a command runs in a shell, until it is dropped.
pub struct TestTerminal {
    /// The server of the terminal.
    process: Process,
    folder: TempDir,
}

impl TestTerminal {
    /// Starts a shell that runs this command line in an empty folder. The terminal stays after it.
    pub async fn start(command_line: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory can be created");
        // Without -D, the server would outlive a test that is killed. With -N, the session starts no server of its own.
        let process = tmux(folder.path(), &["-D", "-f", "/dev/null"]).start();
        let terminal = Self { process, folder };
        let shell = format!("{command_line}; exec cat");
        let start = ["-N", "new-session", "-d", "-x", "80", "-y", "24", "--", "sh", "-c", &shell];
        until("tmux", async || {
            let started = tmux(terminal.folder.path(), &start).start().ended().await;
            (started.code == Some(0)).then_some(())
        })
        .await;
        terminal
    }

    /// Returns the folder in which the command runs.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Presses keys by their names in tmux, such as `Down` or `q`.
    pub async fn press(&self, keys: &[&str]) {
        self.tell(&[&["send-keys"], keys].concat()).await;
    }

    /// Changes the size of the terminal.
    pub async fn resize(&self, columns: u32, lines: u32) {
        let size = [columns.to_string(), lines.to_string()];
        self.tell(&["resize-window", "-x", &size[0], "-y", &size[1]]).await;
    }

    /// Returns the text on the screen.
    pub async fn screen(&self) -> String {
        self.tell(&["capture-pane", "-p"]).await
    }

    /// Waits until the screen contains a text, and returns the screen.
    pub async fn shows(&self, text: &str) -> String {
        until(&format!("{text:?} on the screen"), async || {
            let screen = self.screen().await;
            screen.contains(text).then_some(screen)
        })
        .await
    }

    async fn tell(&self, arguments: &[&str]) -> String {
        let ran = tmux(self.folder.path(), arguments).start().ended().await;
        assert_eq!(ran.code, Some(0), "tmux {arguments:?}: {}{}", ran.stderr, self.process.stderr());
        ran.stdout
    }
}

impl Drop for TestTerminal {
    /// Prints the screen if the test has failed.
    fn drop(&mut self) {
        if std::thread::panicking() {
            let screen = tmux(self.folder.path(), &["capture-pane", "-p"]).into_std().output();
            let screen = screen.map(|screen| String::from_utf8_lossy(&screen.stdout).into_owned());
            println!("the screen:\n{}", screen.unwrap_or_else(|error| error.to_string()));
        }
    }
}

/// Returns a command of the terminal in this folder.
fn tmux(folder: &Path, arguments: &[&str]) -> Command {
    let unpacked = environments().join("tmux");
    let program = unpacked.join("usr/bin/tmux");
    assert!(
        program.is_file(),
        "there is no {program:?}; run: tests/clients/setup {}",
        environments().display()
    );
    let libraries: PathBuf = unpacked.join("usr/lib").join(format!("{}-linux-gnu", std::env::consts::ARCH));
    let mut command = Command::new(program);
    command.arg("-S").arg(folder.join("tmux")).args(arguments).current_dir(folder);
    command
        .env("LD_LIBRARY_PATH", libraries)
        .env("LC_ALL", "C.UTF-8")
        .env_remove("TMUX")
        .env("TERM", "xterm-256color");
    command
}
