//! Many tenants in one process: their plugins, each with its protocols below `/p/NAME`, on slots that they
//! share.
//!
//! What there is, the catalog says; here is what of it is in use. A tenant is opened when it is first asked
//! for, with its journal, and goes on with what a process before admitted. A plugin is brought in when it is
//! first asked for, becomes another deployment when that is activated, and goes when nobody uses it and its
//! room is wanted.
//!
//! What belongs to a tenant is below its `Tenant`, and the tenant is found by the key of a request and by
//! nothing else: ids, names and leases of others are not refused, they are not there.

mod check;
mod descriptors;
mod dispatch;
mod loading;
mod plugin;
mod tenant;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{self, StreamExt};
use tokio::sync::Semaphore;
use tokio::time::{Instant, MissedTickBehavior};

use crate::access::Access;
use crate::admin::{CheckError, CheckReport, Deployments, Pushed};
use crate::{Server, Stopping};
use rollout_assembly::config::{Config, JournalConfig, RawConfig};
use rollout_assembly::{AssemblyError, Besides, NotLoaded, Platform};
use rollout_catalog::{Catalog, CatalogError, Name, TenantId};
use rollout_core::budget::Budget;
use rollout_core::capacity::{Slots, raise_descriptors};
use rollout_core::engine::{Engine, EngineError};
use rollout_core::outbound::{Transport, TransportError};
use rollout_core::plugin::Plugin as Component;
use rollout_core::rollout::{JournalError, Load, SlotPool};
use rollout_core::seal::Seal;
use rollout_core::telemetry::{Metrics, Traces};

pub use check::{CheckMemory, Checks};
use descriptors::{HeldFiles, NoFiles, PluginFiles};
use loading::LoadTurns;
use plugin::Plugin;
use tenant::Tenant;

/// Components that are loaded at once, each of which may be compiled.
const LOADING_MAX: u32 = 2;

/// Deployments that are brought in at once, of as many tenants: each has an instance of its own, whose start may wait.
const STARTING_MAX: u32 = 8;

/// Tenants that are opened at once at the start of a process, each by a thread. More than may wait for their plugins.
const OPENING_MAX: usize = 16;

/// Open files of a tenant: its journal's lock and two segments.
const DESCRIPTORS_PER_TENANT: u64 = 3;

/// Of all open files, those for the memories of plugins in use: one of so many, and at the most.
const PLUGIN_FILES_PART: u64 = 8;
const PLUGIN_FILES_MAX: u64 = 16 << 10;

/// Tenants that may come before the next start without those files being missing elsewhere.
const TENANTS_TO_COME: u64 = 16;

/// Time between two sums of what tenants used. The catalog writes a sum within another 50 ms.
const NOTE_EVERY: Duration = Duration::from_millis(50);

/// Time between two counts of files and two searches for plugins that can be unloaded, in sums of usage.
const LOOK_EVERY: u32 = 100;

/// How long tenants that are deleted have until their rollouts are over.
const ENDING_TIME_MAX: Duration = Duration::from_secs(10);

/// Brings a component in. Blocks for as long as that takes.
pub type LoadComponent = dyn Fn(&Engine, &Path) -> Result<Component, NotLoaded> + Send + Sync;

/// What a server of many tenants is made of.
pub struct Settings {
    /// Who there is, and what they have.
    pub catalog: Catalog,
    /// The operator's configuration as it was written, which authors' add to.
    pub operators: RawConfig,
    /// The same, resolved.
    pub config: Config,
    /// What brings components in.
    pub load: Arc<LoadComponent>,
    /// What seals keys on disk.
    pub seal: Arc<Seal>,
    /// How a component is checked that was pushed: this program, with these arguments besides.
    pub checks: Checks,
}

/// Why a server of many tenants does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// There is no engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// There are no connections.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The catalog cannot be read.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

/// Why something of a tenant cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unusable {
    /// It is not there.
    #[error("{0}")]
    NotThere(String),
    /// The catalog says no.
    #[error(transparent)]
    Catalog(CatalogError),
    /// Its journal cannot be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// Its configuration is not right.
    #[error(transparent)]
    Config(#[from] rollout_assembly::config::InvalidConfig),
    /// Its components cannot be brought in.
    #[error(transparent)]
    Assembly(#[from] AssemblyError),
    /// Plugins in use take all open files that there are for them.
    #[error("{0}")]
    NoRoom(String),
    /// Something else, in words.
    #[error("{0}")]
    Other(String),
}

impl From<CatalogError> for Unusable {
    fn from(error: CatalogError) -> Self {
        match error {
            CatalogError::NotFound { .. } => Self::NotThere(error.to_string()),
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
    loading: LoadTurns,
    starting: Semaphore,
    checking: Semaphore,
    plugin_files: PluginFiles,
    access: Access,
    metrics: Arc<Metrics>,
    traces: std::sync::OnceLock<Traces>,
    open: Mutex<HashMap<TenantId, Arc<tokio::sync::OnceCell<Arc<Tenant>>>>>,
}

impl Tenants {
    /// Serves what is in this catalog. Nothing of it is brought in before it is asked for.
    pub fn start(settings: Settings) -> Result<Self, StartError> {
        let Settings { catalog, operators, config, load, seal, checks } = settings;
        let tenants = all_tenants(&catalog).len() as u64 + TENANTS_TO_COME;
        // Each tenant has a plugin in use, however few there are.
        let plugin_files = (raise_descriptors() / PLUGIN_FILES_PART).min(PLUGIN_FILES_MAX).max(tenants);
        let descriptors = DESCRIPTORS_PER_TENANT * tenants + plugin_files;
        let besides = Besides { tools: 0, loading: STARTING_MAX, descriptors };
        let memory_bytes_max = config.limits.memory_bytes_max;
        let of_rollout = Server::descriptors_per_rollout(&config);
        let platform = Platform::new(&config, of_rollout, besides, memory_bytes_max)?;
        let slots = platform.room(config.max_concurrent, config.queue_max, 0);
        for id in catalog.tenants_being_deleted()? {
            catalog.finish_deleting(id)?;
        }
        let checks_at_once = checks.at_once as usize;
        let access = Access {
            server_key: None,
            is_keyed: true,
            allowed_hosts: config.allowed_hosts.clone(),
            allowed_origins: config.allowed_origins.clone(),
        };
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
            loading: LoadTurns::new(LOADING_MAX),
            starting: Semaphore::new(STARTING_MAX as usize),
            checking: Semaphore::new(checks_at_once),
            plugin_files: PluginFiles::new(plugin_files),
            access,
            metrics: Arc::new(Metrics::new()),
            traces: std::sync::OnceLock::new(),
            open: Mutex::default(),
        })))
    }

    /// The catalog.
    pub fn catalog(&self) -> &Catalog {
        &self.0.catalog
    }

    /// How many rollouts and connections there is room for.
    pub fn slots(&self) -> &Slots {
        &self.0.slots
    }

    /// What may be held for all together.
    pub fn budget(&self) -> &Budget {
        self.0.platform.budget()
    }

    /// What is counted of the process, and of what belongs to no tenant.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.0.metrics
    }

    /// Sends traces of all rollouts there, from those on that are brought in later.
    pub fn trace_to(&self, traces: Traces) {
        let _ = self.0.traces.set(traces);
    }

    /// How busy all of them are.
    pub fn load(&self) -> Load {
        self.0.pool.load()
    }

    /// Why no tenant's rollouts are taken, where none are. What only one of them has too little of is no
    /// reason.
    pub(super) fn takes_none(&self) -> Option<String> {
        if !self.load().accepting {
            return Some("the host is shutting down".to_owned());
        }
        let room = self.0.platform.budget().check_any_group();
        room.err().map(|why| why.to_string())
    }

    fn open(&self) -> MutexGuard<'_, HashMap<TenantId, Arc<tokio::sync::OnceCell<Arc<Tenant>>>>> {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A tenant that is in use, opened where it was not.
    async fn tenant(&self, id: TenantId) -> Result<Arc<Tenant>, Unusable> {
        let place = self.open().entry(id).or_default().clone();
        if let Some(tenant) = place.get() {
            return Ok(tenant.clone());
        }
        let tenants = self.clone();
        // Whoever asks may go away; what was opened goes on with rollouts and has files, and must be found.
        let opening = tokio::spawn(async move {
            let opened = place.get_or_try_init(|| tenants.clone().opening(id)).await.cloned();
            if opened.is_err() {
                tenants.forget_if_new(id, &place);
            }
            opened
        });
        opening.await.unwrap_or_else(|error| Err(Unusable::Other(error.to_string())))
    }

    async fn opening(self, id: TenantId) -> Result<Arc<Tenant>, Unusable> {
        let runtime = tokio::runtime::Handle::current();
        let opened = tokio::task::spawn_blocking(move || Tenant::open(&self, id, &runtime)).await;
        opened.unwrap_or_else(|error| Err(Unusable::Other(error.to_string())))
    }

    /// A tenant that is not there leaves nothing behind.
    fn forget_if_new(&self, id: TenantId, place: &Arc<tokio::sync::OnceCell<Arc<Tenant>>>) {
        let mut open = self.open();
        if open.get(&id).is_some_and(|found| Arc::ptr_eq(found, place)) && !place.initialized() {
            open.remove(&id);
        }
    }

    /// A tenant, if it is in use.
    fn opened(&self, id: TenantId) -> Option<Arc<Tenant>> {
        self.open().get(&id).and_then(|place| place.get().cloned())
    }

    /// The tenants that are in use.
    fn all_opened(&self) -> Vec<Arc<Tenant>> {
        self.open().values().filter_map(|place| place.get().cloned()).collect()
    }

    /// The plugins that are in use.
    fn plugins_in_use(&self) -> Vec<Arc<Plugin>> {
        self.all_opened().iter().flat_map(|tenant| tenant.plugins_in_use()).collect()
    }

    /// Goes on with what a process before admitted, of every tenant that has a journal, and from then on
    /// notes what is used.
    pub async fn go_on(&self) {
        let tenants = self.clone();
        let all = tokio::task::spawn_blocking(move || tenants.with_journals()).await;
        // Side by side, so that a tenant whose plugins are slow to start delays no other one.
        let opening = stream::iter(all.unwrap_or_default()).for_each_concurrent(OPENING_MAX, |id| async move {
            if let Err(error) = self.tenant(id).await {
                tracing::error!(tenant = %id, %error, "a tenant cannot be opened, and its rollouts do not go on");
            }
        });
        opening.await;
        let mut note = tokio::time::interval(NOTE_EVERY);
        note.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for times in (0..LOOK_EVERY).cycle() {
            note.tick().await;
            for tenant in self.all_opened() {
                tenant.note_usage(&self.0.catalog);
            }
            if times > 0 {
                continue;
            }
            let tenants = self.clone();
            // It reads what files have, and drops what takes a while to drop.
            let _ = tokio::task::spawn_blocking(move || tenants.look()).await;
        }
    }

    fn look(&self) {
        for tenant in self.all_opened() {
            tenant.look_at_stored();
        }
        self.unload_beyond(self.0.config.catalog.code_bytes_max);
    }

    /// The tenants that have a journal on disk.
    fn with_journals(&self) -> Vec<TenantId> {
        let has_one = |id: &TenantId| tenant::journal_folder(&self.0.catalog, *id).is_dir();
        all_tenants(&self.0.catalog).into_iter().filter(has_one).collect()
    }

    /// Unloads plugins that are idle until what is left has no more than so many bytes of code: of the tenant that
    /// has most, the one that was idle for longest. So no tenant's plugins go for those of one that has more.
    fn unload_beyond(&self, bytes_max: u64) {
        let mut by_tenant: Vec<(u64, Vec<Arc<Plugin>>)> = Vec::new();
        for tenant in self.all_opened() {
            let mut plugins = tenant.plugins_in_use();
            plugins.sort_by_key(|plugin| std::cmp::Reverse(plugin.last_used()));
            by_tenant.push((plugins.iter().map(|plugin| plugin.code_bytes()).sum(), plugins));
        }
        let mut bytes: u64 = by_tenant.iter().map(|(bytes, _)| bytes).sum();
        while bytes > bytes_max {
            let some_left = by_tenant.iter_mut().filter(|(_, plugins)| !plugins.is_empty());
            let Some((own, plugins)) = some_left.max_by_key(|(own, _)| *own) else { return };
            let Some(plugin) = plugins.pop() else { return };
            let of = plugin.code_bytes();
            if plugin.unload() {
                (*own, bytes) = (own.saturating_sub(of), bytes.saturating_sub(of));
            }
        }
    }

    /// Takes open files for a component of a tenant. Where there are too few, plugins that are idle are unloaded, of
    /// tenants that have more than this one before its own.
    fn take_plugin_files(&self, id: TenantId, count: u64) -> Result<HeldFiles, NoFiles> {
        let files = &self.0.plugin_files;
        loop {
            let over = match files.take(id, count) {
                Ok(held) => return Ok(held),
                Err(over) => over,
            };
            let mut tenants = self.all_opened();
            tenants.retain(|tenant| tenant.id == id || files.of(tenant.id) > over.own);
            tenants.sort_by_key(|tenant| std::cmp::Reverse((files.of(tenant.id), tenant.id != id)));
            if !tenants.iter().any(|tenant| tenant.unload_idlest()) {
                return Err(over);
            }
        }
    }

    /// Lets no rollout in any more, and waits until those that are there are over, as one server does.
    pub async fn drain(&self, stopping: &Stopping) -> bool {
        self.0.pool.close();
        let servers: Vec<Server> = self.plugins_in_use().iter().map(|plugin| plugin.server()).collect();
        let all = servers.iter().map(|server| server.drain(stopping));
        futures_util::future::join_all(all).await.into_iter().all(|is_done| is_done)
    }

    /// Waits until no rollout is alive.
    pub async fn idle(&self) {
        for tenant in self.all_opened() {
            tenant.slots.idle().await;
        }
    }

    /// Whether what is left undone here goes on in the next process.
    pub fn is_kept(&self) -> bool {
        self.0.config.journal != JournalConfig::Off
    }

    /// Answers everybody who waits for news that there are none yet. They come again.
    pub fn answer_waiting(&self) {
        self.plugins_in_use().iter().for_each(|plugin| plugin.server().answer_waiting());
    }

    /// Says which rollouts' callers have not heard what came of them.
    pub fn name_unreported(&self) -> usize {
        self.plugins_in_use().iter().map(|plugin| plugin.server().name_unreported()).sum()
    }

    /// Notes what is to be noted at the end of the process, and closes files.
    pub fn close(&self) {
        for tenant in self.all_opened() {
            tenant.note_usage(&self.0.catalog);
            tenant.close_journal();
        }
        if let Err(error) = self.0.catalog.flush() {
            tracing::error!(%error, "the last usage is not in the catalog");
        }
    }

    /// What was counted, of all tenants.
    fn metrics_text(&self) -> String {
        let load = self.load();
        let budget = self.0.platform.budget();
        self.0.metrics.process_is_busy([load.running, load.queued, load.max_concurrent], budget);
        let of_plugins = self.all_opened().into_iter().flat_map(|tenant| tenant.counted());
        Metrics::text_of(&of_plugins.chain([self.0.metrics.clone()]).collect::<Vec<_>>())
    }
}

/// What changes while it serves.
impl Deployments for Tenants {
    fn check(&self, pushed: Pushed) -> BoxFuture<'static, Result<CheckReport, CheckError>> {
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

    fn in_use(&self, id: TenantId, plugin: &Name) -> Vec<u32> {
        let in_use = self.opened(id).and_then(|tenant| tenant.plugin_in_use(plugin));
        in_use.map(|plugin| plugin.versions()).unwrap_or_default()
    }

    fn note_usage(&self, id: TenantId) {
        if let Some(tenant) = self.opened(id) {
            tenant.note_usage(&self.0.catalog);
        }
    }

    fn plugin_removed(&self, id: TenantId, plugin: &Name) -> BoxFuture<'static, ()> {
        let (tenant, plugin) = (self.opened(id), plugin.to_string());
        Box::pin(async move {
            if let Some(tenant) = tenant {
                tenant.remove(&plugin).await;
            }
        })
    }

    fn tenant_changed(&self, id: TenantId) {
        let (place, catalog) = (self.open().get(&id).cloned(), self.0.catalog.clone());
        let Some(place) = place else { return };
        tokio::spawn(async move {
            // One that is being opened may have been read before the change.
            let nobody = async || Err(());
            let Ok(tenant) = place.get_or_try_init(nobody).await.cloned() else { return };
            let read = tokio::task::spawn_blocking(move || tenant.read_again(&catalog)).await;
            if let Ok(Err(error)) = read {
                tracing::error!(tenant = %id, %error, "what was changed of a tenant holds from the next start on");
            }
        });
    }

    fn tenant_deleted(&self, id: TenantId) -> BoxFuture<'static, ()> {
        let place = self.open().remove(&id);
        Box::pin(async move {
            let Some(place) = place else { return };
            // One that is being opened is waited for; it goes on with rollouts already.
            let nobody = async || Err(());
            if let Ok(tenant) = place.get_or_try_init(nobody).await {
                tenant.end(Instant::now() + ENDING_TIME_MAX).await;
            }
        })
    }
}

/// Every tenant of a catalog.
fn all_tenants(catalog: &Catalog) -> Vec<TenantId> {
    let (mut all, mut after) = (Vec::new(), None::<String>);
    loop {
        let page = catalog.tenants(after.as_deref(), rollout_catalog::LIST_MAX);
        let page = page.inspect_err(|error| tracing::error!(%error, "tenants cannot be listed"));
        let page = page.unwrap_or_default();
        let Some(last) = page.last() else { return all };
        after = Some(last.name.to_string());
        all.extend(page.iter().map(|tenant| tenant.id));
    }
}
