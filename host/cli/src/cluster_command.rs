//! The command `cluster`, which prepares and repairs a cluster of workers.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use chrono::{DateTime, SecondsFormat, Utc};
use clap::{Args, Subcommand};
use serde_json::json;

use super::admin::table::Table;
use super::print::{counted, errln, out, outln};
use super::progress::Working;
use super::registry::in_runtime;
use super::serve::cluster::connect;
use super::{Exit, OUTPUT, SETTINGS, journal, options, setup};
use rollout_assembly::config::{ClusterSettings, Config, Role};
use rollout_catalog::{
    JOURNALS_BEFORE_SHARING, Name, ShareError, ShareSteps, SharedContents, SharedLog, StepError, TenantId,
};
use rollout_cluster::{Cluster, ListedLog, WorkerState};
use rollout_rollout::seal::Seal;
use rollout_rollout::{JournalRest, JournalSettings};
use rollout_server::admin::seal_again;
use rollout_server::tenants::SEGMENT_BYTES;

/// Folder of a tenant's journal.
const JOURNAL: &str = "journal";

/// Prepares and repairs a cluster of workers with [cluster.nats].
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    rollout-host cluster share-catalog /var/lib/rollout-host --config worker.toml\n  \
    rollout-host cluster logs --config gateway.toml\n  \
    rollout-host cluster forget-log w2 --config gateway.toml")]
pub(super) struct ClusterCommand {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Stores the catalog of a single server on NATS, so that the workers of a cluster share it.
    ///
    /// Tenants, keys, quotas, plugins and secrets become those of all workers. Stop the server before, and let it
    /// drain: its journals are not continued, and the command is refused while rollouts are unfinished or results unread.
    /// Then start the first worker with the folder, and others with empty ones. The folder is a copy of the shared
    /// catalog from then on, which a single server does not open. The journals of its tenants are moved to
    /// `journals-before-sharing` in it; their rollouts can be exported and replayed.
    #[command(
        after_help = "Exit codes: 0 the catalog is shared; 2 it is not, or not completely, as the message says."
    )]
    ShareCatalog(ShareCatalog),
    /// Lists the logs of all workers with their owners and last heartbeats.
    Logs(Logs),
    /// Abandons the log of a dead worker that no other worker can continue.
    ///
    /// Its rollouts are lost: gateways with --lost-after-secs report them as failures. Its parts of quotas are free, and no
    /// worker tries to continue it any more. Waits for cluster.nats.lease-secs, in which the log must have no heartbeat. A
    /// worker that is started with this name later continues what it can read of the log.
    #[command(after_help = "Exit codes: 0 the log is abandoned; 2 it is not.")]
    ForgetLog(ForgetLog),
}

#[derive(Debug, Args)]
struct Logs {
    /// Configuration file of a worker or gateway, with [cluster.nats].
    #[arg(long, value_name = "FILE", help_heading = SETTINGS)]
    config: PathBuf,
    /// Prints one JSON object a line: log, url, version, epoch, heartbeat and acknowledged.
    #[arg(long, help_heading = OUTPUT)]
    json: bool,
}

#[derive(Debug, Args)]
struct ForgetLog {
    /// Name of the log.
    log: String,
    /// Configuration file of a worker or gateway, with [cluster.nats].
    #[arg(long, value_name = "FILE", help_heading = SETTINGS)]
    config: PathBuf,
}

#[derive(Debug, Args)]
struct ShareCatalog {
    /// Folder of the catalog.
    folder: PathBuf,
    /// Configuration file of a worker, with [cluster.nats] and journal.key-env.
    #[arg(long, value_name = "FILE", help_heading = SETTINGS)]
    config: PathBuf,
    /// Shares the catalog although rollouts are unfinished or results unread, which are then lost to their callers.
    #[arg(long)]
    leave_rollouts: bool,
}

impl ClusterCommand {
    pub(crate) fn run(self) -> Result<Exit> {
        match self.command {
            Command::ShareCatalog(share) => share.run(),
            Command::Logs(logs) => logs.run(),
            Command::ForgetLog(forget) => forget.run(),
        }
    }
}

/// Returns the settings of NATS in a configuration file, and the configuration.
fn nats_in(file: &Path) -> Result<(ClusterSettings, Config)> {
    let config = options::raw_config(Some(file)).and_then(|raw| Ok(raw.resolve()?))?;
    let nats = config.cluster.nats.clone();
    Ok((nats.with_context(|| format!("{} has no [cluster.nats]", file.display()))?, config))
}

impl Logs {
    fn run(self) -> Result<Exit> {
        let (nats, _) = nats_in(&self.config)?;
        let logs = in_runtime(async { Ok(Cluster::connect(nats).await?.logs().await?) })?;
        let mut table = Table::new(["log", "owner", "version", "epoch", "last heartbeat"]);
        for ListedLog { log, owner, epoch, heartbeat, acknowledged, is_readable } in logs {
            if !is_readable {
                errln!("the entry of the log '{log}' cannot be read; `cluster forget-log` removes it");
                continue;
            }
            let at = DateTime::<Utc>::from(heartbeat).to_rfc3339_opts(SecondsFormat::Secs, true);
            let WorkerState { url, version } = owner;
            if self.json {
                outln!(
                    "{}",
                    json!({
                        "log": log, "url": url, "version": version, "epoch": epoch, "heartbeat": at,
                        "acknowledged": acknowledged,
                    })
                );
            }
            table.row([log, url, version, epoch.to_string(), at]);
        }
        if !self.json {
            out!("{}", table.text("there are no logs"));
        }
        Ok(Exit::Done)
    }
}

impl ForgetLog {
    fn run(self) -> Result<Exit> {
        let (nats, _) = nats_in(&self.config)?;
        let working = Working::on(format!("waiting {} s for heartbeats", nats.lease().as_secs_f64()));
        let forgotten = in_runtime(async { Ok(Cluster::connect(nats).await?.forget_log(&self.log).await?) });
        drop(working);
        forgotten.context("the log is not abandoned")?;
        outln!("the log '{}' is abandoned", self.log);
        Ok(Exit::Done)
    }
}

impl ShareCatalog {
    fn run(self) -> Result<Exit> {
        let (nats, config) = nats_in(&self.config)?;
        let seal = self.seal(&config)?;
        if !self.folder.join("catalog.db").is_file() {
            bail!("{} has no catalog; give the folder of serve --catalog", self.folder.display());
        }
        let log: Arc<dyn SharedLog> =
            in_runtime(async { Ok(Arc::new(connect(&nats).await?.catalog().await?)) })?;
        let own = self.folder.join("key");
        let own = own.is_file().then(|| {
            Seal::from_file(&own).with_context(|| format!("cannot use the catalog's key {}", own.display()))
        });
        let folder = Folder {
            path: &self.folder,
            seals: (own.transpose()?, seal),
            leaves_rollouts: self.leave_rollouts,
        };
        let working = Working::on("storing the catalog".to_owned());
        let shared = rollout_catalog::share(&self.folder, &log, &folder);
        drop(working);
        let SharedContents { tenants, keys, plugins, components } = shared.map_err(with_advice)?;
        let (tenants, keys) = (counted(tenants, "tenant"), counted(keys, "key"));
        let (plugins, components) = (counted(plugins, "plugin"), counted(components, "component"));
        outln!("shared: {tenants}, {keys}, {plugins} and {components}");
        outln!(
            "start the first worker with --catalog {}, and others with empty folders",
            self.folder.display()
        );
        Ok(Exit::Done)
    }

    /// Returns the key of all workers.
    fn seal(&self, config: &Config) -> Result<Seal> {
        let file = self.config.display();
        if config.cluster.role != Role::Worker {
            bail!("{file} is not the configuration of a worker: it has no role = \"worker\" in [cluster]");
        }
        let key = setup::key_from_env("journal.key-env", config.journal.key_env())?;
        let key = key.with_context(|| {
            format!(
                "{file}: workers seal secrets with one key; set journal.key-env to the environment variable that has it"
            )
        })?;
        Ok(Seal::from_secret(&key))
    }
}

/// Adds what to do about an error.
fn with_advice(error: ShareError) -> anyhow::Error {
    let advice = match &error {
        ShareError::NotEmpty => {
            "the catalog is not shared: give the cluster another [cluster.nats] prefix, or delete the stream of the catalog \
             if an earlier attempt was interrupted and no worker uses it"
        }
        ShareError::Uncertain(_) => {
            "the catalog may be shared, and the folder is as before: delete the stream of the catalog before the next attempt"
        }
        ShareError::Secrets(_) => {
            "the catalog is not shared: use the key of the single server as journal.key-env of the workers, or remove the \
             secrets and set them again in the cluster"
        }
        ShareError::NotReady(_) => "run the command again when the reason is removed",
        ShareError::Already => return error.into(),
        _ => "the catalog is not shared",
    };
    anyhow::Error::new(error).context(advice)
}

/// The folder of a catalog that is being shared.
struct Folder<'a> {
    path: &'a Path,
    /// The key of the folder, if it has one, and that of all workers.
    seals: (Option<Seal>, Seal),
    leaves_rollouts: bool,
}

impl Folder<'_> {
    /// Returns the tenants with a journal, and the journals.
    fn journals(&self) -> Result<Vec<(OsString, PathBuf)>> {
        let tenants = self.path.join("tenants");
        let unreadable = || format!("cannot read {}", tenants.display());
        if !tenants.is_dir() {
            return Ok(Vec::new());
        }
        let mut journals = Vec::new();
        for tenant in std::fs::read_dir(&tenants).with_context(unreadable)? {
            let tenant = tenant.with_context(unreadable)?;
            let dir = tenant.path().join(JOURNAL);
            if dir.is_dir() && journal::is_journal(&dir)? {
                journals.push((tenant.file_name(), dir));
            }
        }
        Ok(journals)
    }

    /// Refuses journals with rollouts whose callers still expect something.
    fn check_journals(&self) -> Result<()> {
        let journals = self.journals()?;
        let working = Working::on(format!("reading {} journals", journals.len()));
        let mut sum = JournalRest::default();
        for (tenant, dir) in &journals {
            let to = self.path.join(JOURNALS_BEFORE_SHARING).join(tenant);
            if to.exists() {
                bail!("{} exists, from an earlier sharing; move it away", to.display());
            }
            let settings = JournalSettings {
                segment_bytes: SEGMENT_BYTES,
                segments_ahead: 1,
                ..JournalSettings::new(dir)
            };
            let rest = JournalRest::of(settings).with_context(|| format!("cannot read {}", dir.display()))?;
            sum.unfinished += rest.unfinished;
            sum.unread += rest.unread;
        }
        drop(working);
        if sum.is_empty() {
            return Ok(());
        }
        if self.leaves_rollouts {
            errln!("the journals have {sum}, which are lost to their callers");
            return Ok(());
        }
        bail!(
            "the journals have {sum}. Start the server again until the rollouts have ended and the results are read, or have \
             expired after osmosis.result-ttl-secs, and stop it with a drain-secs that suffices; or give --leave-rollouts, and \
             they are lost to their callers"
        )
    }

    /// Moves the journals to a folder where workers do not write them, and where they do not count for the quotas.
    fn move_journals(&self) -> Result<()> {
        let before = self.path.join(JOURNALS_BEFORE_SHARING);
        for (tenant, from) in self.journals()? {
            std::fs::create_dir_all(&before)
                .with_context(|| format!("cannot create {}", before.display()))?;
            let to = before.join(tenant);
            std::fs::rename(&from, &to)
                .with_context(|| format!("cannot rename {} to {}", from.display(), to.display()))?;
        }
        Ok(())
    }
}

impl ShareSteps for Folder<'_> {
    fn check(&self) -> Result<(), StepError> {
        Ok(self.check_journals()?)
    }

    fn seal_again(&self, tenant: TenantId, name: &Name, sealed: &[u8]) -> Option<Vec<u8>> {
        let (own, of_workers) = &self.seals;
        seal_again(tenant, name, sealed, (own.as_ref(), of_workers))
    }

    fn prepare(&self) -> Result<(), StepError> {
        Ok(self.move_journals()?)
    }
}
