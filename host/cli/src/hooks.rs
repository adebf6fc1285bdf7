//! Commands of the operator's that run before a server accepts and after it drained.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::process::Command;

/// How long a hook may take. One that warms something up may need minutes; one that hangs
/// must not keep a server from starting or ending for ever.
const TIME_MAX: Duration = Duration::from_secs(600);

/// Runs a command by the shell and waits for it. What it writes goes to standard error,
/// because standard output is for what the server says.
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
                "the command {when} was not done within {}: '{command}'",
                rollout_wire::text::time(TIME_MAX)
            )
        }
    }
}
