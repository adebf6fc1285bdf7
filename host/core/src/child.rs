//! Child processes that do not outlive this process.

use std::sync::mpsc;

use rustix::process::{Signal, set_parent_process_death_signal};
use tokio::process::{Child, Command};
use tokio::sync::oneshot;

/// A child process. The kernel kills it when this process dies, for whatever reason. Dropping this value kills it, too.
#[derive(Debug)]
pub struct OwnedChild {
    /// The process.
    pub child: Child,
    // The thread that started the process runs until this is dropped.
    _parent: mpsc::Sender<()>,
}

impl OwnedChild {
    /// Starts a process. Fails as [`Command::spawn`] does.
    ///
    /// A dedicated thread starts the process: the kernel kills a child when the thread that started it ends, and the
    /// runtime's threads come and go.
    pub async fn start(mut command: Command) -> std::io::Result<Self> {
        command.kill_on_drop(true);
        // SAFETY: between fork and exec one system call runs, which neither allocates nor takes a lock.
        unsafe {
            command.pre_exec(|| set_parent_process_death_signal(Some(Signal::KILL)).map_err(Into::into));
        }
        let (parent, until_dropped) = mpsc::channel::<()>();
        let (started, starting) = oneshot::channel();
        let runtime = tokio::runtime::Handle::current();
        std::thread::Builder::new().name("child".to_owned()).spawn(move || {
            let child = {
                let _runtime = runtime.enter();
                command.spawn()
            };
            // If the caller is gone, the child is dropped and thereby killed.
            if started.send(child).is_ok() {
                let _ = until_dropped.recv();
            }
        })?;
        let child = starting
            .await
            .map_err(|_| std::io::Error::other("the thread that starts the process ended"))??;
        Ok(Self { child, _parent: parent })
    }
}
