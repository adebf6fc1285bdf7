//! The operator's commands, which run before a server accepts requests and after it is drained.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::process::Command;

/// Maximum run time of a command. Warming up may take minutes, but a command that hangs must not block the
/// start or the stop of a server forever.
const TIME_MAX: Duration = Duration::from_secs(600);

/// Runs a shell command and waits for it. Its output goes to standard error, because standard output is for
/// the server's own output.
pub(super) async fn run(when: &str, command: &str) -> Result<()> {
    let mut child = Command::new("sh")
        .arg("-c")
        .arg(command)
        .stdin(Stdio::null())
        .stdout(std::io::stderr())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("cannot run the command {when}, '{command}'"))?;
    match tokio::time::timeout(TIME_MAX, child.wait()).await {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => bail!("the command {when} failed with {status}: '{command}'"),
        Ok(Err(error)) => Err(error).with_context(|| format!("cannot wait for the command {when}")),
        Err(_) => {
            bail!(
                "the command {when} did not finish within {}: '{command}'",
                rollout_wire::text::time(TIME_MAX)
            )
        }
    }
}
