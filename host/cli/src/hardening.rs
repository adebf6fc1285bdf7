//! Privileges and access to files that a server drops before it serves.

use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;

use rollout_assembly::config::Config;
use rollout_core::harden::Folders;
use rollout_core::harden::server::{drop_privileges, restrict_files};
use rollout_outbound::McpSettings;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Hardening")]
pub(super) struct HardeningOptions {
    /// Restricts this process to the files that its settings name, if the kernel has Landlock. Cannot be
    /// combined with on-start, on-stop or tool servers that the host starts: the restriction would apply to
    /// them too.
    #[arg(long)]
    pub landlock: bool,
    /// Keeps the capabilities that this process was started with, and lets the programs that it starts gain
    /// privileges, as sudo does.
    #[arg(long)]
    pub keep_privileges: bool,
}

impl HardeningOptions {
    /// Drops privileges and restricts files.
    ///
    /// Must be called after binding the address, which may need a privilege, and before threads, the runtime
    /// or a component exist.
    pub(crate) fn apply<'a>(
        &self,
        config: &Config,
        read: impl IntoIterator<Item = &'a PathBuf>,
        written: [Option<PathBuf>; 3],
    ) -> Result<()> {
        if !self.keep_privileges {
            drop_privileges().context("cannot drop privileges; --keep-privileges keeps them")?;
        }
        if !config.landlock {
            return Ok(());
        }
        if config.on_start.is_some() || config.on_stop.is_some() {
            bail!(
                "landlock would apply to the commands on-start and on-stop too; leave out one or the other"
            );
        }
        let started = |server: &&rollout_guest::toolbox::ServerSettings| {
            matches!(server.reach, McpSettings::Process { .. })
        };
        if let Some(server) = config.tools.servers.iter().find(started) {
            bail!(
                "landlock would apply to the tool server of {} too; start it separately and configure its url, or \
                 leave out landlock",
                server.at
            );
        }
        let mut folders = Folders::default();
        folders.read.extend(read.into_iter().cloned());
        folders.read.extend(config.tools.components.iter().map(|tool| tool.path.clone()));
        folders.write.extend(written.into_iter().flatten());
        folders.write.extend(config.log.clone());
        for folder in &folders.write {
            // Only an existing folder can be opened later. Its user reports an error.
            let _ = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
        }
        let enforced = restrict_files(&folders)?;
        let list = |paths: &[PathBuf]| {
            paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
        };
        let (read, write) = (list(&folders.read), list(&folders.write));
        tracing::info!(rules = %enforced, read, write, "access to files is restricted to those that the settings name");
        Ok(())
    }
}
