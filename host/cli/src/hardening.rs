//! What a server gives up before it serves.

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
    /// Keeps this process to the files that its settings name, where the kernel has Landlock.
    /// Not together with on-start, on-stop and tool servers that are started, which would
    /// be kept to them as well.
    #[arg(long)]
    pub landlock: bool,
    /// Keeps the capabilities that this process was started with, and lets programs that it
    /// starts get more, such as sudo does.
    #[arg(long)]
    pub keep_privileges: bool,
}

impl HardeningOptions {
    /// Once the address is taken, which may need a privilege, and before there are threads, a
    /// runtime or a component.
    pub(crate) fn apply<'a>(
        &self,
        config: &Config,
        read: impl IntoIterator<Item = &'a PathBuf>,
        written: [Option<PathBuf>; 3],
    ) -> Result<()> {
        if !self.keep_privileges {
            drop_privileges().context("--keep-privileges goes on with them")?;
        }
        if !config.landlock {
            return Ok(());
        }
        if config.on_start.is_some() || config.on_stop.is_some() {
            bail!(
                "landlock would hold for the commands on-start and on-stop too; leave out one or the other"
            );
        }
        let started = |server: &&rollout_guest::toolbox::ServerSettings| {
            matches!(server.reach, McpSettings::Process { .. })
        };
        if let Some(server) = config.tools.servers.iter().find(started) {
            bail!(
                "landlock would hold for the tool server of {} too; start that apart and give its url here, or \
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
            // Only what is there can be opened later. Whoever needs it says what is wrong with it.
            let _ = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
        }
        let enforced = restrict_files(&folders)?;
        let list = |paths: &[PathBuf]| {
            paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
        };
        let (read, write) = (list(&folders.read), list(&folders.write));
        tracing::info!(rules = %enforced, read, write, "files are kept to what the settings name");
        Ok(())
    }
}
