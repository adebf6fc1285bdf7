//! Many tenants in one process: each plugin has its protocols below `/p/NAME`, and all share slots.
//!
//! The catalog lists tenants and plugins; this module has those in use. The first request of a tenant opens the tenant with
//! its journal, and continues the rollouts that an earlier process admitted. The first request for a plugin loads it. Activation
//! replaces its deployment. An idle plugin is unloaded when its memory or its files are needed.
//!
//! A tenant's `OpenTenant` owns all its state. Only the key of a request selects the tenant: for its requests, ids, names and
//! leases of other tenants do not exist.

mod check;
mod descriptors;
mod dispatch;
mod leased;
mod loading;
mod parts;
mod plugin;
mod refresh;
mod staged;
mod staging;
mod tenant;
mod viewed;

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{self, StreamExt};
use tokio::sync::Semaphore;
use tokio::time::{Instant, MissedTickBehavior};

use crate::access::Access;
use crate::admin::{CheckError, CheckReport, CheckRequest, Deployments};
use crate::{Server, ShutdownDeadlines, WorkerIdentity};
use rollout_assembly::config::{Config, JournalConfig, RawConfig};
use rollout_assembly::{AssemblyError, Besides, NotLoaded, Platform};
use rollout_catalog::{Catalog, CatalogError, Name, TenantId};
use rollout_cluster::{SharedUsage, Staging};
use rollout_core::budget::Budget;
use rollout_core::capacity::{Slots, raise_descriptors};
use rollout_core::telemetry::{Meter, Metrics, Traces};
use rollout_guest::engine::{Engine, EngineError};
use rollout_guest::plugin::Plugin as Component;
use rollout_outbound::{Transport, TransportError};
use rollout_rollout::seal::Seal;
use rollout_rollout::{JournalError, Load, ReplicaSettings, SlotPool};
use rollout_wire::quota::Quotas;

pub use check::{CheckMemory, Checks};
use descriptors::{HeldFiles, NoFiles, PluginFiles};
use loading::LoadPermits;
use plugin::{LoadedPlugin, StagedCode};
use staged::StagedVersions;
use tenant::OpenTenant;
pub use tenant::SEGMENT_BYTES;

/// Maximum number of components that are loaded at once. Loading a component may compile it.
const LOADING_MAX: u32 = 2;

/// Maximum number of deployments that are started at once, one per tenant. Each start runs the guest, which may wait.
const STARTING_MAX: u32 = 8;

/// Maximum number of tenants that are opened at once when a process starts, each on a thread. It exceeds [`STARTING_MAX`], so
/// that some tenants are opened while others wait for their plugins.
const OPENING_MAX: usize = 16;

/// Number of open files of a tenant: its journal's lock and two segments.
const DESCRIPTORS_PER_TENANT: u64 = 3;

/// Divisor of the number of open files that gives the part for the memories of loaded plugins.
const PLUGIN_FILES_PART: u64 = 8;

/// Maximum number of open files reserved for the memories of loaded plugins.
const PLUGIN_FILES_MAX: u64 = 16 << 10;

/// Number of tenants that may be added before the next start without exceeding the planned number of open files.
const NEW_TENANTS_MAX: u64 = 16;

/// Interval at which the tenants' usage is added up. The catalog writes each sum within another 50 ms.
const USAGE_INTERVAL: Duration = Duration::from_millis(50);

/// Number of such intervals after which stored files are counted and idle plugins are unloaded.
const INTERVALS_PER_SWEEP: u32 = 100;

/// Maximum time until the rollouts of a removed tenant or plugin are over.
const REMOVAL_TIME_MAX: Duration = Duration::from_secs(10);

/// Loads a component. Blocks the thread.
pub type LoadComponent = dyn Fn(&Engine, &Path) -> Result<Component, NotLoaded> + Send + Sync;

/// The parts of a server of many tenants.
pub struct TenantsSettings {
    /// The catalog of tenants and plugins.
    pub catalog: Catalog,
    /// The operator's configuration in its written form, which the configurations of authors extend.
    pub operators: RawConfig,
    /// The operator's configuration, resolved.
    pub config: Config,
    /// Loads components.
    pub load: Arc<LoadComponent>,
    /// Encrypts secrets on disk.
    pub seal: Arc<Seal>,
    /// Settings of the checks of pushed deployments.
    pub checks: Checks,
    /// The server's identity as a worker of a cluster, if it is one.
    pub worker: Option<WorkerIdentity>,
    /// Function that returns the replica of a tenant's journal, if journals are replicated.
    pub replicas: Option<Box<Replicas>>,
}

/// Function that returns the replica of a tenant's journal.
pub type Replicas = dyn Fn(TenantId) -> ReplicaSettings + Send + Sync;

/// Error of starting a server of many tenants.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The engine cannot be created.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The transport cannot be created.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The catalog cannot be read.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

/// Error of opening a tenant or loading its plugin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TenantError {
    /// The item does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The catalog failed.
    #[error(transparent)]
    Catalog(CatalogError),
    /// The journal cannot be opened.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] rollout_assembly::config::InvalidConfig),
    /// The components cannot be loaded.
    #[error(transparent)]
    Assembly(#[from] AssemblyError),
    /// Loaded plugins use all open files reserved for them.
    #[error("{0}")]
    NoRoom(String),
    /// Another error, with its message.
    #[error("{0}")]
    Other(String),
}

impl From<CatalogError> for TenantError {
    fn from(error: CatalogError) -> Self {
        match error {
            CatalogError::NotFound { .. } => Self::NotFound(error.to_string()),
            error => Self::Catalog(error),
        }
    }
}

/// The tenants that a process serves. Cheap to clone.
#[derive(Clone)]
pub struct Tenants(Arc<Inner>);

struct Inner {
    catalog: Catalog,
    platform: Platform,
    slots: Slots,
    pool: SlotPool,
    transport: Transport,
    operators: RawConfig,
    config: Config,
    load: Arc<LoadComponent>,
    seal: Arc<Seal>,
    checks: Checks,
    /// The server's identity as a worker of a cluster, if it is one.
    worker: Option<WorkerIdentity>,
    /// Number of workers that share the quotas of tenants.
    workers: AtomicU32,
    replicas: Option<Box<Replicas>>,
    /// Whether the rollouts of an earlier process were resumed.
    is_resumed: AtomicBool,
    /// Numbers of rollouts that stay in the journals of tenants and may continue in another process. A tenant that cannot be
    /// opened counts as one; `None` stands for tenants that cannot be listed.
    left: Mutex<HashMap<Option<TenantId>, usize>>,
    /// Start of the last refresh of a shared catalog, and whether the servers answered. Locked during a refresh.
    refreshed: tokio::sync::Mutex<Option<(Instant, bool)>>,
    /// Versions that other workers or this one are about to activate.
    staged: StagedVersions<StagedCode>,
    /// This worker's part in staged activations, if other workers share the catalog.
    staging: std::sync::OnceLock<Staging>,
    /// The usage of tenants at other workers.
    elsewhere: Mutex<HashMap<TenantId, Arc<Meter>>>,
    /// The usage of tenants at all workers, if other workers share the catalog.
    shared_usage: std::sync::OnceLock<SharedUsage>,
    loading: LoadPermits,
    starting: Semaphore,
    checking: Semaphore,
    plugin_files: PluginFiles,
    access: Access,
    metrics: Arc<Metrics>,
    traces: std::sync::OnceLock<Traces>,
    /// The tenants that are open or being opened.
    open: Mutex<HashMap<TenantId, TenantCell>>,
}

/// The cell of a tenant, which is empty until the tenant is open.
type TenantCell = Arc<tokio::sync::OnceCell<Arc<OpenTenant>>>;

impl Tenants {
    /// Creates a server of a catalog's tenants. Tenants and plugins are loaded on their first request.
    pub fn start(settings: TenantsSettings) -> Result<Self, StartError> {
        let TenantsSettings { catalog, operators, config, load, seal, checks, worker, replicas } = settings;
        let tenants = all_tenants(&catalog)?.len() as u64 + NEW_TENANTS_MAX;
        // At least one file per tenant, so that each can have a loaded plugin.
        let plugin_files = (raise_descriptors() / PLUGIN_FILES_PART).min(PLUGIN_FILES_MAX).max(tenants);
        let descriptors = DESCRIPTORS_PER_TENANT * tenants + plugin_files;
        let reserved = Besides { tools: 0, loading: STARTING_MAX, descriptors };
        let memory_bytes_max = config.limits.memory_bytes_max;
        let descriptors_per_rollout = Server::descriptors_per_rollout(&config);
        let platform = Platform::new(&config, descriptors_per_rollout, reserved, memory_bytes_max)?;
        let slots = platform.room(config.max_concurrent, config.queue_max, 0);
        for id in catalog.tenants_being_deleted()? {
            match catalog.finish_deleting(id) {
                // Another process that shares the catalog has finished the deletion.
                Err(CatalogError::NotFound { .. }) => {}
                finished => finished?,
            }
        }
        let checks_at_once = checks.at_once as usize;
        let access = Access::new(&config, true, None);
        let staged = StagedVersions::new(config.catalog.code_bytes_max);
        Ok(Self(Arc::new(Inner {
            pool: SlotPool::new(slots.running_max, slots.queue_max),
            transport: Transport::new(slots.connections.outbound_max)?,
            catalog,
            platform,
            slots,
            operators,
            config,
            load,
            seal,
            checks,
            worker,
            workers: AtomicU32::new(1),
            replicas,
            is_resumed: AtomicBool::new(false),
            left: Mutex::default(),
            refreshed: tokio::sync::Mutex::default(),
            staged,
            staging: std::sync::OnceLock::new(),
            elsewhere: Mutex::default(),
            shared_usage: std::sync::OnceLock::new(),
            loading: LoadPermits::new(LOADING_MAX),
            starting: Semaphore::new(STARTING_MAX as usize),
            checking: Semaphore::new(checks_at_once),
            plugin_files: PluginFiles::new(plugin_files),
            access,
            metrics: Arc::new(Metrics::new()),
            traces: std::sync::OnceLock::new(),
            open: Mutex::default(),
        })))
    }

    /// Returns the catalog.
    pub fn catalog(&self) -> &Catalog {
        &self.0.catalog
    }

    /// Returns the maximum numbers of rollouts and connections.
    pub fn slots(&self) -> &Slots {
        &self.0.slots
    }

    /// Returns the memory budget of all tenants together.
    pub fn budget(&self) -> &Budget {
        self.0.platform.budget()
    }

    /// Returns the metrics of the process and of requests without a tenant.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.0.metrics
    }

    /// Exports traces of the rollouts of all plugins that are loaded from now on.
    pub fn trace_to(&self, traces: Traces) {
        let _ = self.0.traces.set(traces);
    }

    /// Returns the load of all tenants together.
    pub fn load(&self) -> Load {
        self.0.pool.load()
    }

    /// Returns the reason why no tenant's rollouts are admitted, if there is one. Quotas and shares of a single tenant do not
    /// count.
    pub(super) fn refusal(&self) -> Option<String> {
        if !self.load().accepting {
            return Some("the host is shutting down".to_owned());
        }
        let room = self.0.platform.budget().check_any_group();
        room.err().map(|error| error.to_string())
    }

    fn lock_open(&self) -> MutexGuard<'_, HashMap<TenantId, TenantCell>> {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a tenant. Opens it if it is not open.
    async fn tenant(&self, id: TenantId) -> Result<Arc<OpenTenant>, TenantError> {
        let cell = self.lock_open().entry(id).or_default().clone();
        if let Some(tenant) = cell.get() {
            return Ok(tenant.clone());
        }
        let tenants = self.clone();
        // A separate task opens the tenant, because it must be in the table even if the caller disconnects meanwhile: an open
        // tenant runs rollouts and has files.
        let opening = tokio::spawn(async move {
            let opened = cell.get_or_try_init(|| tenants.clone().open_tenant(id)).await.cloned();
            if opened.is_err() {
                tenants.forget_if_empty(id, &cell);
            }
            opened
        });
        opening.await.unwrap_or_else(|error| Err(TenantError::Other(error.to_string())))
    }

    async fn open_tenant(self, id: TenantId) -> Result<Arc<OpenTenant>, TenantError> {
        let runtime = tokio::runtime::Handle::current();
        let tenants = self.clone();
        let opened = tokio::task::spawn_blocking(move || OpenTenant::open(&tenants, id, &runtime)).await;
        let opened = opened.unwrap_or_else(|error| Err(TenantError::Other(error.to_string())));
        match &opened {
            // The tenant has recorded the number itself.
            Ok(_) => {}
            Err(TenantError::NotFound(_)) => self.note_left(Some(id), 0),
            Err(_) => self.note_left(Some(id), 1),
        }
        opened
    }

    fn lock_left(&self) -> MutexGuard<'_, HashMap<Option<TenantId>, usize>> {
        self.0.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records how many rollouts of a tenant stay in its journal.
    fn note_left(&self, id: Option<TenantId>, count: usize) {
        let mut left = self.lock_left();
        match count {
            0 => left.remove(&id),
            count => left.insert(id, count),
        };
    }

    /// Removes the cell of a tenant that could not be opened.
    fn forget_if_empty(&self, id: TenantId, cell: &TenantCell) {
        let mut open = self.lock_open();
        if open.get(&id).is_some_and(|found| Arc::ptr_eq(found, cell)) && !cell.initialized() {
            open.remove(&id);
        }
    }

    /// Returns a tenant if it is open.
    fn find_open(&self, id: TenantId) -> Option<Arc<OpenTenant>> {
        self.lock_open().get(&id).and_then(|cell| cell.get().cloned())
    }

    /// Returns all open tenants.
    fn open_tenants(&self) -> Vec<Arc<OpenTenant>> {
        self.lock_open().values().filter_map(|cell| cell.get().cloned()).collect()
    }

    /// Returns the loaded plugins of all tenants.
    fn loaded_plugins(&self) -> Vec<Arc<LoadedPlugin>> {
        self.open_tenants().iter().flat_map(|tenant| tenant.loaded_plugins()).collect()
    }

    /// Continues the rollouts that an earlier process admitted, for all tenants with a journal. Then adds usage to
    /// the catalog, counts stored files and unloads idle plugins at intervals. Never returns.
    pub async fn run(&self) {
        let tenants = self.clone();
        let listed = tokio::task::spawn_blocking(move || tenants.tenants_with_journal()).await;
        let listed = listed.unwrap_or_else(|error| Err(TenantError::Other(error.to_string())));
        let all = listed.unwrap_or_else(|error| {
            tracing::error!(%error, "tenants cannot be listed, and their rollouts are not continued");
            self.note_left(None, 1);
            Vec::new()
        });
        // Tenants are opened concurrently, so that a tenant with slow plugins does not delay the others.
        let opening = stream::iter(all).for_each_concurrent(OPENING_MAX, |id| async move {
            if let Err(error) = self.tenant(id).await {
                tracing::error!(tenant = %id, %error, "a tenant cannot be opened, and its rollouts are not continued");
            }
        });
        opening.await;
        self.0.is_resumed.store(true, Ordering::Release);
        let mut interval = tokio::time::interval(USAGE_INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for tick in (0..INTERVALS_PER_SWEEP).cycle() {
            interval.tick().await;
            for tenant in self.open_tenants() {
                tenant.note_usage(&self.0.catalog);
            }
            if tick > 0 {
                continue;
            }
            let tenants = self.clone();
            // A sweep reads folders and drops plugins, both of which may take a while.
            let _ = tokio::task::spawn_blocking(move || tenants.sweep()).await;
        }
    }

    /// Counts the stored files of all tenants and unloads idle plugins beyond the limit of code.
    fn sweep(&self) {
        for tenant in self.open_tenants() {
            tenant.count_stored_bytes();
        }
        // Versions that are about to become active have precedence over idle plugins, but leave them half of the room.
        let code_bytes_max = self.0.config.catalog.code_bytes_max;
        let staged = self.0.staged.count().code_bytes.min(code_bytes_max / 2);
        self.unload_beyond(code_bytes_max - staged);
    }

    /// Returns the tenants with a journal on disk.
    fn tenants_with_journal(&self) -> Result<Vec<TenantId>, TenantError> {
        let has_journal = |id: &TenantId| tenant::journal_folder(&self.0.catalog, *id).is_dir();
        Ok(all_tenants(&self.0.catalog)?.into_iter().filter(has_journal).collect())
    }

    /// Unloads idle plugins until the rest have at most `bytes_max` bytes of code. The next one is always the plugin of the
    /// tenant with the most code that has been idle for longest, so a tenant never loses plugins to a tenant with more code.
    fn unload_beyond(&self, bytes_max: u64) {
        let mut by_tenant: Vec<(u64, Arc<OpenTenant>, Vec<Arc<LoadedPlugin>>)> = Vec::new();
        for tenant in self.open_tenants() {
            let mut plugins = tenant.loaded_plugins();
            plugins.sort_by_key(|plugin| std::cmp::Reverse(plugin.last_used()));
            by_tenant.push((plugins.iter().map(|plugin| plugin.code_bytes()).sum(), tenant, plugins));
        }
        let mut bytes: u64 = by_tenant.iter().map(|(bytes, ..)| bytes).sum();
        while bytes > bytes_max {
            let with_plugins = by_tenant.iter_mut().filter(|(.., plugins)| !plugins.is_empty());
            let Some((own_bytes, tenant, plugins)) = with_plugins.max_by_key(|(own_bytes, ..)| *own_bytes)
            else {
                return;
            };
            let Some(plugin) = plugins.pop() else { return };
            let plugin_bytes = plugin.code_bytes();
            if tenant.unload(&plugin) {
                *own_bytes = own_bytes.saturating_sub(plugin_bytes);
                bytes = bytes.saturating_sub(plugin_bytes);
            }
        }
    }

    /// Reserves open files for a component of a tenant. If too few are left, unloads idle plugins: first those of
    /// tenants with more files than this one, then its own.
    fn reserve_plugin_files(&self, id: TenantId, count: u64) -> Result<HeldFiles, NoFiles> {
        let files = &self.0.plugin_files;
        loop {
            let no_files = match files.take(id, count) {
                Ok(held) => return Ok(held),
                Err(error) => error,
            };
            let mut tenants = self.open_tenants();
            tenants.retain(|tenant| tenant.id == id || files.held_by(tenant.id) > no_files.own);
            tenants.sort_by_key(|tenant| std::cmp::Reverse((files.held_by(tenant.id), tenant.id != id)));
            if !tenants.iter().any(|tenant| tenant.unload_longest_idle()) {
                return Err(no_files);
            }
        }
    }

    /// Closes admission and drains the servers of all plugins; see [`Server::drain`].
    pub async fn drain(&self, deadlines: &ShutdownDeadlines) -> bool {
        self.0.pool.close();
        let servers: Vec<Server> = self.loaded_plugins().iter().map(|plugin| plugin.server()).collect();
        let all = servers.iter().map(|server| server.drain(deadlines));
        futures_util::future::join_all(all).await.into_iter().all(|is_done| is_done)
    }

    /// Returns whether no rollout is alive, not even one of an earlier process, and nothing is stored for callers.
    pub fn is_idle(&self) -> bool {
        self.count_left() == 0 && self.is_over()
    }

    /// Returns the number of rollouts that stay in journals and that another process may continue, for example because their
    /// plugins could not be loaded here. A tenant that could not be opened counts as one.
    pub fn count_left(&self) -> usize {
        self.lock_left().values().sum()
    }

    /// Returns whether all rollouts of an earlier process that this process can continue are over, no other is alive, and
    /// nothing is stored for callers. Journals may have further rollouts; see [`Self::count_left`].
    pub fn is_over(&self) -> bool {
        let is_resumed = self.0.is_resumed.load(Ordering::Acquire);
        is_resumed && self.loaded_plugins().iter().all(|plugin| plugin.server().is_idle())
    }

    /// Returns the tenants with rollouts or unread results that another process may continue; none if they are not known.
    pub fn unfinished(&self) -> Option<BTreeSet<i64>> {
        if !self.0.is_resumed.load(Ordering::Acquire) {
            return None;
        }
        let left = self.lock_left().keys().map(|id| id.map(|id| id.0)).collect::<Option<BTreeSet<_>>>()?;
        let is_idle = |plugin: &Arc<LoadedPlugin>| plugin.server().is_idle();
        let open = self.open_tenants().into_iter();
        let busy = open.filter(|tenant| !tenant.loaded_plugins().iter().all(is_idle));
        Some(busy.map(|tenant| tenant.id.0).chain(left).collect())
    }

    /// Returns the number of live rollouts once those of an earlier process have been resumed.
    pub fn resumed(&self) -> Option<usize> {
        let load = self.load();
        self.0.is_resumed.load(Ordering::Acquire).then_some(load.running as usize + load.queued as usize)
    }

    /// Returns this process's part of quotas that the workers of a cluster share.
    fn own_part(&self, quotas: &Quotas) -> Quotas {
        quotas.divided(self.0.workers.load(Ordering::Relaxed))
    }

    /// Sets the number of workers that share the quotas of tenants.
    pub fn set_workers(&self, count: u32) {
        if self.0.workers.swap(count, Ordering::Relaxed) != count {
            self.open_tenants().iter().for_each(|tenant| self.tenant_changed(tenant.id));
        }
    }

    /// Waits until no rollout is alive.
    pub async fn idle(&self) {
        for tenant in self.open_tenants() {
            tenant.slots.idle().await;
        }
    }

    /// Returns whether rollouts are in journals, so that the next process continues them.
    pub fn has_journal(&self) -> bool {
        self.0.config.journal != JournalConfig::Off
    }

    /// Answers all waiting polls at once; their callers poll again.
    pub fn answer_waiting(&self) {
        self.loaded_plugins().iter().for_each(|plugin| plugin.server().answer_waiting());
    }

    /// Logs the rollouts whose callers have not received the result, and returns their number.
    pub fn log_unreported(&self) -> usize {
        self.loaded_plugins().iter().map(|plugin| plugin.server().log_unreported()).sum()
    }

    /// Adds the last usage to the catalog and closes the journals. To be called at the end of the process.
    pub fn close(&self) {
        for tenant in self.open_tenants() {
            tenant.note_usage(&self.0.catalog);
            tenant.close_journal();
        }
        if let Err(error) = self.0.catalog.flush() {
            tracing::error!(%error, "the last usage cannot be written to the catalog");
        }
    }

    /// Returns the metrics of the process and of all loaded plugins in the text format of Prometheus.
    fn metrics_text(&self) -> String {
        let load = self.load();
        let budget = self.0.platform.budget();
        self.0.metrics.process_is_busy([load.running, load.queued, load.max_concurrent], budget);
        let of_plugins = self.open_tenants().into_iter().flat_map(|tenant| tenant.metrics());
        Metrics::text_of(&of_plugins.chain([self.0.metrics.clone()]).collect::<Vec<_>>())
    }
}

/// Changes of the catalog while the server runs.
impl Deployments for Tenants {
    fn check(&self, pushed: CheckRequest) -> BoxFuture<'static, Result<CheckReport, CheckError>> {
        let tenants = self.clone();
        Box::pin(async move { check::check(&tenants, pushed).await })
    }

    fn activate(&self, id: TenantId, plugin: &Name, version: u32) -> BoxFuture<'static, Result<(), String>> {
        let (tenants, plugin) = (self.clone(), plugin.to_string());
        Box::pin(async move {
            let tenant = tenants.tenant(id).await.map_err(|error| error.to_string())?;
            tenant.activate(&tenants, &plugin, version).await.map_err(|error| error.to_string())
        })
    }

    fn shared_usage(&self) -> Option<SharedUsage> {
        self.0.shared_usage.get().cloned()
    }

    fn staging(&self) -> Option<Staging> {
        self.0.staging.get().cloned()
    }

    fn in_use(&self, id: TenantId, plugin: &Name) -> Vec<u32> {
        let loaded = self.find_open(id).and_then(|tenant| tenant.loaded_plugin(plugin));
        loaded.map(|plugin| plugin.versions()).unwrap_or_default()
    }

    fn note_usage(&self, id: TenantId) {
        if let Some(tenant) = self.find_open(id) {
            tenant.note_usage(&self.0.catalog);
        }
    }

    fn plugin_removed(&self, id: TenantId, plugin: &Name) -> BoxFuture<'static, ()> {
        let (tenant, plugin) = (self.find_open(id), plugin.to_string());
        Box::pin(async move {
            if let Some(tenant) = tenant {
                tenant.remove(&plugin).await;
            }
        })
    }

    fn tenant_changed(&self, id: TenantId) {
        let (cell, tenants) = (self.lock_open().get(&id).cloned(), self.clone());
        let Some(cell) = cell else { return };
        tokio::spawn(async move {
            // Waits for a tenant that is being opened, which may have been read before the change.
            let not_open = async || Err(());
            let Ok(tenant) = cell.get_or_try_init(not_open).await.cloned() else { return };
            let reloaded = tokio::task::spawn_blocking(move || tenant.reload(&tenants)).await;
            if let Ok(Err(error)) = reloaded {
                tracing::error!(tenant = %id, %error, "changes of a tenant apply only after a restart: they cannot be read");
            }
        });
    }

    fn tenant_deleted(&self, id: TenantId) -> BoxFuture<'static, ()> {
        let cell = self.lock_open().remove(&id);
        self.note_left(Some(id), 0);
        self.forget_usage_elsewhere(id);
        Box::pin(async move {
            let Some(cell) = cell else { return };
            // Waits for a tenant that is being opened, which may continue rollouts already.
            let not_open = async || Err(());
            if let Ok(tenant) = cell.get_or_try_init(not_open).await {
                tenant.shut_down(Instant::now() + REMOVAL_TIME_MAX).await;
            }
        })
    }
}

/// Returns all tenants of a catalog.
fn all_tenants(catalog: &Catalog) -> Result<Vec<TenantId>, CatalogError> {
    let (mut all, mut after) = (Vec::new(), None::<String>);
    loop {
        let page = catalog.tenants(after.as_deref(), rollout_catalog::LIST_MAX)?;
        let Some(last) = page.last() else { return Ok(all) };
        after = Some(last.name.to_string());
        all.extend(page.iter().map(|tenant| tenant.id));
    }
}
