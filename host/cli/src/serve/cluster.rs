//! `serve --role`, a server among several machines.

use std::collections::BTreeSet;
use std::fs::{DirBuilder, File, TryLockError};
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures_util::future::OptionFuture;
use rollout_assembly::config::{Advertised, ClusterSettings, Config, Role, is_worker_name};
use rollout_catalog::SharedLog;
use rollout_cluster::{
    CatalogChanges, CatalogLog, ClaimedLog, Cluster, Finding, Heartbeats, LogWriter, Members, QuotaLeases,
    Severity, SharedQuotas, Staging, UsageExchange, WorkerState,
};
use rollout_core::capacity::{Machine, raise_descriptors};
use rollout_core::telemetry::{Lag, LeasedCount, Metrics, Replication};
use rollout_outbound::Secret;
use rollout_rollout::{Journal, JournalRest, JournalSettings, Unfinished};
use rollout_server::gateway::{Gateway, GatewaySettings};
use rollout_server::tenants::{self, Replicas, Tenants};
use rollout_server::{Access, WorkerIdentity};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::task::AbortOnDropHandle;

use super::Serve;
use super::adopt::{self, Adopter};
use super::leases::TenantsSlots;
use super::usage::TenantsUsage;
use crate::{journal, setup};

/// File with the name of a journal's log.
const LOG_FILE: &str = "log-name";

/// Number of open files that a gateway does not use for callers.
const OTHER_FILES: u64 = 64;

/// Maximum number of callers' connections of a gateway.
const CALLERS_MAX: u64 = 65_536;

/// Divisor of the number of connections that gives the maximum of idle connections to each worker, which use open
/// files, too.
const IDLE_PART: usize = 8;
const IDLE_MIN: usize = 4;
const IDLE_MAX: usize = 256;

impl Serve {
    /// Refuses options that do not fit the role.
    pub(super) fn refuse_for_role(&self, config: &Config) -> Result<()> {
        match config.cluster.role {
            Role::Both if self.plugin.is_none() && self.catalog.is_none() => {
                bail!("there is nothing to serve: give a plugin, --catalog, or --role gateway")
            }
            Role::Both => Ok(()),
            Role::Gateway if self.plugin.is_some() || self.catalog.is_some() => {
                bail!("--role gateway: a gateway runs no rollouts; give the plugin to the workers")
            }
            Role::Worker if self.catalog.is_some() && config.cluster.nats.is_none() => {
                bail!("--role worker: workers share a catalog on NATS servers; name them in [cluster.nats]")
            }
            Role::Worker if self.plugin.is_none() && self.catalog.is_none() => {
                bail!("--role worker: a worker needs the plugin that it serves, or --catalog")
            }
            Role::Gateway | Role::Worker => Ok(()),
        }
    }
}

/// Returns the key that gateways and workers share. The configuration was checked to name one.
fn cluster_key(config: &Config) -> Result<Secret> {
    let key = setup::key_from_env("cluster.key-env", config.cluster.key_env.as_deref())?;
    key.context("cluster.key-env: gateways and workers need a common key")
}

/// Returns a gateway to the configured workers.
pub(super) fn gateway(config: &Config, server_key: Option<Secret>) -> Result<Gateway> {
    let memory_budget_bytes = config.memory_budget_bytes.map(|bytes| bytes as u64);
    let machine = Machine { memory_budget_bytes, ..Machine::read() };
    let memory_bytes = usize::try_from(machine.memory_budget()).unwrap_or(usize::MAX);
    let settings = GatewaySettings {
        workers: config.cluster.workers.clone(),
        key: cluster_key(config)?,
        access: Access::new(config, server_key.is_some(), server_key),
        lost_after: config.cluster.lost_after,
        result_wait: config.osmosis.result_wait,
        memory_bytes,
        is_encrypted: config.tls.is_some(),
        idle_max: (callers_max() / IDLE_PART).clamp(IDLE_MIN, IDLE_MAX),
    };
    let addresses: Vec<&str> = settings.workers.iter().map(|url| url.as_str()).collect();
    tracing::info!(addresses = addresses.join(" "), "passing requests to workers");
    Ok(Gateway::new(settings)?)
}

/// Returns the maximum number of callers' connections of a gateway, which has one to a worker for each.
pub(super) fn callers_max() -> usize {
    let descriptors = raise_descriptors().saturating_sub(OTHER_FILES) / 2;
    usize::try_from(descriptors.clamp(1, CALLERS_MAX)).unwrap_or(usize::MAX)
}

/// Returns the identity of this server as a worker; `None` if the server is alone.
pub(super) fn worker_identity(
    config: &Config,
    artifact_root: &Path,
    own_log: Option<&OwnLog>,
) -> Result<Option<WorkerIdentity>> {
    if config.cluster.role != Role::Worker {
        return Ok(None);
    }
    let name = worker_name(config)?;
    let (log, epoch) = match (own_log, config.journal.dir(artifact_root)) {
        (Some(log), _) => (log.claimed.log().to_owned(), log.claimed.epoch()),
        (None, Some(dir)) => (log_name(&dir, &name)?, 0),
        (None, None) => (new_log(&name)?, 0),
    };
    tracing::info!(worker = name, log, epoch, "running rollouts for gateways");
    Ok(Some(WorkerIdentity { name, log, epoch, key: cluster_key(config)? }))
}

/// Returns the name of this worker.
fn worker_name(config: &Config) -> Result<String> {
    config.cluster.worker_name.clone().map_or_else(machine_name, Ok)
}

/// Subfolder of the journal's directory for the files that are written from the replicated log at each start.
const REBUILT: &str = "replicated";

/// Name of the journal in the replicated log.
const JOURNAL: &str = "journal";

/// The replicated log of this worker.
pub(super) struct OwnLog {
    claimed: ClaimedLog,
    writer: Arc<LogWriter>,
    journal: PathBuf,
    heartbeats: Heartbeats,
    cluster: Cluster,
    lock: File,
    /// The file with the number of times that the log was lost.
    lost: PathBuf,
}

/// Connects to NATS, and refuses weak settings unless the operator accepts them.
pub(crate) async fn connect(settings: &ClusterSettings) -> Result<Cluster> {
    let (findings, cluster) = rollout_cluster::connect_checked(settings).await;
    for finding in findings {
        let Finding { check, severity, finding, advice } = finding;
        let advice = advice.map(|advice| format!("; {advice}")).unwrap_or_default();
        match severity {
            Severity::Good => tracing::info!("{check}: {finding}"),
            Severity::Warning => tracing::warn!("{check}: {finding}{advice}"),
            Severity::Failure => bail!("{check}: {finding}{advice}"),
        }
    }
    cluster.context("NATS cannot be used")
}

/// Claims the log of this worker and writes its journal from it. Returns `None` if logs are not replicated. An earlier
/// process with this worker's name is fenced.
pub(super) async fn claim_log(
    config: &Config,
    artifact_root: &Path,
    listen: SocketAddr,
) -> Result<Option<OwnLog>> {
    let Some(nats) = config.cluster.nats.as_ref().filter(|_| config.cluster.role == Role::Worker) else {
        return Ok(None);
    };
    let Some(settings) = config.journal.settings(artifact_root) else {
        bail!("cluster.nats: a replicated log needs a journal; give its directory with --journal");
    };
    if config.journal.key_env().is_none() {
        bail!(
            "cluster.nats: another worker cannot take over rollouts whose keys are sealed by a file of this one; set \
             journal.key-env to the environment variable with a key that all workers share"
        );
    }
    let lock = lock(&settings.path)?;
    refuse_own_journal(&settings)?;
    // Reading the log may take longer than a lease.
    let Claimed { name, cluster, claimed, heartbeats } = claim(config, nats, listen).await?;
    // Logs of others that an earlier process with this name continued are in NATS.
    let adopted = adopt::folder(&settings.path);
    remove(&adopted).with_context(|| format!("cannot remove {}", adopted.display()))?;
    let root = settings.path.join(REBUILT);
    remove(&root).with_context(|| format!("cannot remove {}", root.display()))?;
    std::fs::create_dir_all(&root).with_context(|| format!("cannot create {}", root.display()))?;
    let place = root.clone();
    let rebuilt = claimed.rebuild(settings.segment_bytes, move |journal| place.join(journal)).await?;
    let records: u64 = rebuilt.iter().map(|journal| journal.records).sum();
    tracing::info!(log = name, epoch = claimed.epoch(), records, "the log was claimed");
    let writer = Arc::new(claimed.writer());
    let journal = root.join(JOURNAL);
    let lost = settings.path.join(TIMES_LOST_FILE);
    Ok(Some(OwnLog { writer, journal, claimed, heartbeats, cluster, lock, lost }))
}

/// Refuses a journal that a server without a replicated log has left, if callers still expect something of its rollouts: they
/// are in no log, and would never be continued.
fn refuse_own_journal(settings: &JournalSettings) -> Result<()> {
    let dir = &settings.path;
    if !journal::is_journal(dir)? {
        return Ok(());
    }
    let rest = JournalRest::of(settings.clone()).with_context(|| format!("cannot read {}", dir.display()))?;
    if rest.is_empty() {
        return Ok(());
    }
    bail!(
        "{} has the journal of a server without [cluster.nats], with {rest}; serve it without [cluster.nats] until their results are \
         read, or give another directory with --journal",
        dir.display()
    )
}

/// A claimed log, with its heartbeats.
struct Claimed {
    name: String,
    cluster: Cluster,
    claimed: ClaimedLog,
    heartbeats: Heartbeats,
}

/// Connects to NATS and claims the log of this worker.
async fn claim(config: &Config, nats: &ClusterSettings, listen: SocketAddr) -> Result<Claimed> {
    let name = worker_name(config)?;
    let url = advertised(config, listen)?;
    let cluster = connect(nats).await?;
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let claimed = cluster.claim(adopt::claim(&name), &WorkerState { url, version }).await?;
    let heartbeats = claimed.announce();
    Ok(Claimed { name, cluster, claimed, heartbeats })
}

/// Interval at which the catalog is read even if no change was reported, because reports may be lost.
const CATALOG_INTERVAL: Duration = Duration::from_secs(5);

/// This worker's part in a catalog that all workers share, and its replicated log.
pub(super) struct CatalogShare {
    log: CatalogLog,
    changes: CatalogChanges,
    staging: Staging,
    quotas: SharedQuotas,
    cluster: Cluster,
    claimed: ClaimedLog,
    heartbeats: Heartbeats,
    writer: Arc<LogWriter>,
    lock: File,
    /// The file with the number of times that the log was lost.
    lost: PathBuf,
}

/// Claims the log of a worker with a catalog, writes the tenants' journals from it, and returns it with the log of the
/// catalog. Returns `None` if this server is alone.
pub(super) async fn share_catalog(
    config: &Config,
    dir: &Path,
    listen: SocketAddr,
) -> Result<Option<CatalogShare>> {
    let Some(nats) = config.cluster.nats.as_ref().filter(|_| config.cluster.role == Role::Worker) else {
        return Ok(None);
    };
    if config.journal.key_env().is_none() {
        bail!(
            "cluster.nats: workers that share a catalog seal its secrets and their journals with one key; set \
             journal.key-env to the environment variable with a key that all workers share"
        );
    }
    // Only this process has a reason to read the folder.
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.with_context(|| format!("cannot create {}", dir.display()))?;
    let lock = lock(dir)?;
    // The lock refuses a folder with a catalog of its own, whose journals are in no log. It is held until the
    // journals are written, so that no other server uses them meanwhile.
    let _copy = rollout_catalog::lock_copy(dir)?;
    // Reading the log may take longer than a lease.
    let Claimed { name, cluster, claimed, heartbeats } = claim(config, nats, listen).await?;
    // Logs of others that an earlier process with this name continued are in NATS. Their last usage is not (docs/adr/0162).
    let adopted = adopt::folder(dir);
    remove(&adopted).with_context(|| format!("cannot remove {}", adopted.display()))?;
    let tenants = dir.join("tenants");
    remove_journals(&tenants).with_context(|| format!("cannot remove journals in {}", tenants.display()))?;
    let place = tenants.clone();
    let rebuilt =
        claimed.rebuild(tenants::SEGMENT_BYTES, move |tenant| place.join(tenant).join(JOURNAL)).await?;
    if let Some(journal) = rebuilt.iter().find(|journal| journal.name.parse::<i64>().is_err()) {
        bail!(
            "the log '{name}' has the journal '{}' of a worker without a catalog; give this worker another name \
             (--worker-name)",
            journal.name
        );
    }
    let records: u64 = rebuilt.iter().map(|journal| journal.records).sum();
    tracing::info!(log = name, epoch = claimed.epoch(), records, "the log was claimed");
    let log = cluster.catalog().await?;
    // Before the catalog is read, so that no change is missed.
    let changes = log.changes().await?;
    let members = Arc::new(cluster.members().await?);
    let staging = cluster.staging(&claimed, members).await?;
    let quotas = claimed.quotas().await?;
    let writer = Arc::new(claimed.writer());
    let lost = dir.join(TIMES_LOST_FILE);
    Ok(Some(CatalogShare { log, changes, staging, quotas, cluster, claimed, heartbeats, writer, lock, lost }))
}

/// Removes the journals of all tenants, which are written from the log.
fn remove_journals(tenants: &Path) -> std::io::Result<()> {
    let folders = match std::fs::read_dir(tenants) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        folders => folders?,
    };
    for folder in folders {
        remove(&folder?.path().join(JOURNAL))?;
    }
    Ok(())
}

impl CatalogShare {
    /// Returns the log of the catalog.
    pub(super) fn log(&self) -> Arc<dyn SharedLog> {
        Arc::new(self.log.clone())
    }

    /// Returns the identity of this worker.
    pub(super) fn identity(&self, config: &Config) -> Result<WorkerIdentity> {
        let (name, log) = (worker_name(config)?, self.claimed.log().to_owned());
        tracing::info!(
            worker = name,
            log,
            epoch = self.claimed.epoch(),
            "running rollouts of tenants for gateways"
        );
        Ok(WorkerIdentity { name, log, epoch: self.claimed.epoch(), key: cluster_key(config)? })
    }

    /// Returns the replicas of the tenants' journals.
    pub(super) fn replicas(&self) -> Box<Replicas> {
        let writer = self.writer.clone();
        Box::new(move |tenant| writer.replica(&tenant.to_string()))
    }

    /// Follows the changes of other workers, stops this process when its log is taken over, and takes over the logs of dead
    /// workers if there is an adopter. Returns when this worker takes part in staged activations, unless it only continues the
    /// rollouts of another one. Must be called within the runtime, and before requests are accepted.
    pub(super) async fn follow(self, tenants: Tenants, adopter: Option<Adopter>) -> Result<Announced> {
        let Self { log: _, mut changes, staging, quotas, cluster, claimed, heartbeats, writer, lock, lost } =
            self;
        let replication = watch_log(writer.clone(), lost);
        tenants.metrics().add_replication(&replication);
        tenants.metrics().add_state(tenants.copy_state());
        tenants.metrics().add_state(tenants.staged_count());
        let pool = tenants.pool();
        tenants.metrics().add_state(move || {
            let (held, free) = pool.leased();
            LeasedCount { held, free }
        });
        let serving = tenants.take_part(staging).await?;
        let followed = tenants.clone();
        tokio::spawn(async move {
            loop {
                changes.next(CATALOG_INTERVAL).await;
                if followed.refresh().await {
                    followed.shorten_log().await;
                }
            }
        });
        let usage = claimed.usage(tenants.usage_count_name()?).await?;
        tenants.share_usage(usage.clone());
        let exchange = usage.exchange(TenantsUsage(tenants.clone()));
        let leases = Some(quotas.lease(TenantsSlots::new(tenants)));
        let own = claimed.log().to_owned();
        let adopting = adopter.map(|adopter| tokio::spawn(adopter.run(cluster, own, replication)));
        // A process that only continues the rollouts of another one admits none, so no activation waits for it.
        if adopt::adopted_log().is_none() {
            heartbeats.set_staging(true).await;
        }
        let staging = Some(serving);
        Ok(Announced {
            heartbeats,
            leases,
            exchange: Some(exchange),
            adopting,
            staging,
            _writer: writer,
            _lock: lock,
        })
    }
}

/// Ends this process when its log is taken over, and returns the metrics of the log. Must be called within the runtime.
fn watch_log(writer: Arc<LogWriter>, lost: PathBuf) -> Replication {
    let lag_of = writer.clone();
    let lag = move || {
        let (batches, bytes) = lag_of.unacknowledged();
        Lag { batches, bytes }
    };
    let replication = Replication::new(lag, times_lost(&lost));
    tokio::spawn(async move {
        let why = writer.fenced().await;
        tracing::error!(%why, "this worker's log was taken over or cannot be continued; stopping all rollouts");
        exit_fenced(&lost);
    });
    replication
}

/// File beside the journals with the number of times that this worker has lost its log. The process ends each time.
const TIMES_LOST_FILE: &str = "times-log-lost";

/// Returns the number of times that earlier processes have lost the log.
fn times_lost(file: &Path) -> u64 {
    std::fs::read_to_string(file).ok().and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

/// Locks the directory in which the journal is written from the log, so that no other worker writes there.
fn lock(dir: &Path) -> Result<File> {
    let path = dir.join("replicated-lock");
    std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            bail!("another worker uses the journal directory {}; give each worker its own", dir.display())
        }
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock {}", path.display()))
        }
    }
}

/// Removes a folder and everything in it, if it exists.
pub(super) fn remove(folder: &Path) -> std::io::Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Returns the address under which gateways reach this worker.
fn advertised(config: &Config, listen: SocketAddr) -> Result<String> {
    let Some(url) = &config.cluster.advertise else {
        if listen.ip().is_unspecified() {
            bail!(
                "cluster.advertise: gateways cannot reach {listen}; give the address of this machine with --advertise \
                 http://ADDRESS"
            );
        }
        let scheme = if config.tls.is_some() { "https" } else { "http" };
        return Ok(format!("{scheme}://{listen}"));
    };
    let Advertised { url, has_port } = url;
    let mut url = url.clone();
    if !has_port {
        let _ = url.set_port(Some(listen.port()));
    }
    Ok(url.as_str().trim_end_matches('/').to_owned())
}

impl OwnLog {
    /// Returns the directory of the journal that was written from the log.
    pub(super) fn journal_dir(&self) -> &Path {
        &self.journal
    }

    /// Opens the journal, whose records go to the log, too.
    pub(super) fn open_journal(
        &self,
        config: &Config,
        artifact_root: &Path,
    ) -> Result<(Option<Arc<Journal>>, Option<Unfinished>)> {
        let settings = config.journal.settings(artifact_root).context("the journal is off")?;
        let path = self.journal.clone();
        let replica = Some(self.writer.replica(JOURNAL));
        let (journal, unfinished) =
            crate::journal::open(JournalSettings { path, replica, ..settings }, config)?;
        Ok((Some(journal), Some(unfinished)))
    }

    /// Stops this process when its log is taken over, and takes over the logs of dead workers if there is an adopter. Must
    /// be called within the runtime.
    pub(super) fn announce(self, adopter: Option<Adopter>, metrics: &Metrics) -> Announced {
        let Self { claimed, heartbeats, writer, cluster, lock, lost, journal: _ } = self;
        let own = claimed.log().to_owned();
        let replication = watch_log(writer.clone(), lost);
        metrics.add_replication(&replication);
        let adopting = adopter.map(|adopter| tokio::spawn(adopter.run(cluster, own, replication)));
        Announced {
            heartbeats,
            leases: None,
            exchange: None,
            adopting,
            staging: None,
            _writer: writer,
            _lock: lock,
        }
    }
}

/// Exit code of a worker whose log was taken over or cannot be continued.
const EXIT_FENCED: i32 = 3;

/// Maximum time in which a worker that ends announces that it loads no more versions.
const LEAVING_TIME_MAX: Duration = Duration::from_secs(2);

/// Maximum time for the last lines of the log.
const LAST_LINES_TIME_MAX: Duration = Duration::from_secs(1);

/// Ends this process immediately: another process owns its rollouts now, so this one must send nothing more.
fn exit_fenced(lost: &Path) -> ! {
    if let Err(error) = std::fs::write(lost, (times_lost(lost) + 1).to_string()) {
        tracing::warn!(%error, "this loss of the log will be missing in the metrics");
    }
    let (flushed, is_flushed) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        crate::print::flush_errors();
        let _ = flushed.send(());
    });
    let _ = is_flushed.recv_timeout(LAST_LINES_TIME_MAX);
    std::process::exit(EXIT_FENCED)
}

/// A worker that sends heartbeats.
pub(super) struct Announced {
    heartbeats: Heartbeats,
    /// The leased quotas of a worker with tenants.
    leases: Option<QuotaLeases>,
    /// The exchange of the usage of a worker with tenants.
    exchange: Option<UsageExchange>,
    adopting: Option<JoinHandle<()>>,
    /// Loads staged versions until it is dropped.
    staging: Option<AbortOnDropHandle<()>>,
    _writer: Arc<LogWriter>,
    _lock: File,
}

impl Announced {
    /// Ends the heartbeats. A log without live rollouts and unread results is removed from the list; another one is
    /// continued by the next process of this name, or by another worker after the lease. `is_idle` says which, as it was
    /// before the journal was closed: rollouts end when it is, and none of them is over. Parts of quotas stay with the log for the
    /// `unfinished` tenants, or for all if these are not known.
    pub(super) async fn leave(mut self, is_idle: bool, unfinished: Option<BTreeSet<i64>>) {
        if let Some(adopting) = self.adopting.take() {
            adopting.abort();
        }
        let leases = self.leases.take().zip(unfinished);
        let releasing = OptionFuture::from(leases.map(|(leases, unfinished)| leases.release(unfinished)));
        let storing = OptionFuture::from(self.exchange.take().map(UsageExchange::end));
        let (released, stored) = tokio::join!(releasing, storing);
        if let Some(Err(error)) = released {
            tracing::warn!(%error, "leased quotas are free only when other workers find that this one has left");
        }
        if let Some(Err(error)) = stored {
            tracing::warn!(%error, "other workers know the last usage of tenants when this one runs again");
        }
        if is_idle {
            if let Err(error) = self.heartbeats.retire().await {
                tracing::warn!(%error, "the log stays in the list of workers");
            }
        } else {
            self.stop_staging().await;
        }
    }

    /// Announces that this worker loads no more versions. Otherwise activations wait for it until its lease expires.
    pub(super) async fn stop_staging(&self) {
        if self.staging.is_some() {
            let leaving = self.heartbeats.set_staging(false);
            let _ = tokio::time::timeout(LEAVING_TIME_MAX, leaving).await;
        }
    }
}

/// Updates the addresses of a gateway's workers from NATS. Returns the task that does so, if there is one.
pub(super) async fn watch_members(config: &Config, gateway: &Gateway) -> Result<Option<JoinHandle<()>>> {
    let Some(nats) = &config.cluster.nats else { return Ok(None) };
    let mut members = connect(nats).await?.members().await?;
    let urls = |members: &Members| members.list().into_iter().map(|member| member.owner.url).collect();
    let (list, receiver) = watch::channel::<BTreeSet<String>>(urls(&members));
    let gateway = gateway.clone();
    tokio::spawn(async move { gateway.watch_list(receiver).await });
    Ok(Some(tokio::spawn(async move {
        loop {
            members.changed().await;
            let now = urls(&members);
            list.send_if_modified(|before| {
                let is_changed = *before != now;
                *before = now;
                is_changed
            });
        }
    })))
}

/// Returns the name of the machine, as far as it can be the name of a worker.
fn machine_name() -> Result<String> {
    let full = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .context("cannot read the name of this machine")?;
    let full = full.trim().to_ascii_lowercase();
    let label = full.split('.').next().unwrap_or_default();
    if !is_worker_name(label) {
        bail!("the name of this machine, '{full}', cannot be that of a worker; give one with --worker-name");
    }
    Ok(label.to_owned())
}

/// Returns a new name of a log.
fn new_log(worker: &str) -> Result<String> {
    let mut bytes = [0; 4];
    getrandom::fill(&mut bytes).context("the operating system provides no random bytes")?;
    Ok(format!("{worker}-{:08x}", u32::from_be_bytes(bytes)))
}

/// Returns the name of a journal's log, which is written into the journal when the first worker opens it. A worker that is
/// started again with the journal serves the rollouts of the same log.
fn log_name(journal: &Path, worker: &str) -> Result<String> {
    let path = journal.join(LOG_FILE);
    match std::fs::read_to_string(&path) {
        Ok(name) => {
            let name = name.trim();
            let is_log = name.rsplit_once('-').is_some_and(|(worker, _)| is_worker_name(worker));
            if !is_log {
                bail!("{} is damaged: it has not the name of a log", path.display());
            }
            return Ok(name.to_owned());
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
    let name = new_log(worker)?;
    let write = || {
        let mut file = tempfile::NamedTempFile::new_in(journal)?;
        file.write_all(name.as_bytes())?;
        file.as_file().sync_all()?;
        file.persist(&path).map_err(|error| error.error)?;
        File::open(journal)?.sync_all()
    };
    write().with_context(|| format!("cannot write {}", path.display()))?;
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_keeps_the_name_of_its_log() {
        let dir = tempfile::tempdir().unwrap();
        let name = log_name(dir.path(), "w1").unwrap();
        assert!(name.starts_with("w1-") && name.len() == "w1-".len() + 8, "{name}");
        assert_eq!(log_name(dir.path(), "w2").unwrap(), name);
        let other = tempfile::tempdir().unwrap();
        assert_ne!(log_name(other.path(), "w1").unwrap(), name);
        std::fs::write(other.path().join(LOG_FILE), "").unwrap();
        let error = log_name(other.path(), "w1").unwrap_err().to_string();
        assert!(error.contains("log-name is damaged"), "{error}");
    }
}
