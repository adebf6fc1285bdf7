//! An open tenant: its journal, its quotas, and its loaded plugins.

use std::collections::HashMap;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::time::Instant;

use super::parts::{TenantParts, share};
use super::plugin::{LoadedPlugin, Purpose, StagedCode};
use super::{Inner, TenantError, Tenants};
use crate::admin::{Deployments, network_rules};
use rollout_catalog::{Catalog, CatalogError, TenantId, TenantUsage};
use rollout_core::storage::StorageQuota;
use rollout_core::telemetry::{DayUse, Meter, Metrics};
use rollout_rollout::{
    AdmissionQuotas, ArtifactRoot, Host, Journal, JournalSettings, QuotaOwner, StoredBytes, Unfinished,
};
use rollout_wire::quota::Quota;

/// Number of bytes of a segment of a tenant's journal. Smaller than in a server of one plugin, because each tenant has
/// at least two segments on disk.
pub const SEGMENT_BYTES: u64 = 8 << 20;

/// The lock under which a plugin is loaded.
type LoadingLock = Arc<tokio::sync::Mutex<()>>;

/// The lock of a plugin that a task holds.
type LoadingGuard = tokio::sync::OwnedMutexGuard<()>;

/// A tenant in memory.
pub(super) struct OpenTenant {
    parts: Arc<TenantParts>,
    retention: RetentionBounds,
    folder: PathBuf,
    state: Mutex<TenantState>,
    /// The part of today's usage that is in the catalog.
    noted: Mutex<DayUse>,
    plugins: Mutex<HashMap<String, Arc<LoadedPlugin>>>,
    /// A lock for each plugin that is being loaded, so that it is loaded once.
    loading: Mutex<HashMap<String, LoadingLock>>,
}

impl Deref for OpenTenant {
    type Target = TenantParts;

    fn deref(&self) -> &TenantParts {
        &self.parts
    }
}

/// The tenant's settings from the catalog that are in no other field.
struct TenantState {
    stored_bytes_max: Option<u64>,
    default_plugin: Option<String>,
}

impl TenantState {
    fn of(tenant: &rollout_catalog::TenantInfo) -> Self {
        let default_plugin = tenant.default_plugin.as_ref().map(ToString::to_string);
        Self { stored_bytes_max: tenant.quotas.get(Quota::StoredBytes), default_plugin }
    }
}

/// Maximum bytes of finished rollouts in the operator's configuration. A tenant's quota may reduce them.
struct RetentionBounds {
    journal_bytes_max: u64,
    artifact_bytes_max: Option<u64>,
}

/// Returns the folder of a tenant's journal.
pub(super) fn journal_folder(catalog: &Catalog, id: TenantId) -> PathBuf {
    catalog.tenant_folder(id).join("journal")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl OpenTenant {
    /// Opens a tenant and continues the rollouts that an earlier process admitted. Blocks on files.
    pub(super) fn open(tenants: &Tenants, id: TenantId, runtime: &Handle) -> Result<Arc<Self>, TenantError> {
        let inner = &tenants.0;
        let mut info = inner.catalog.tenant(id)?;
        info.quotas = tenants.own_part_of_tenant(&info.quotas);
        let folder = inner.catalog.tenant_folder(id);
        let writes_files = inner.config.writes_files();
        let (journal, journal_bytes_max, unfinished) = match open_journal(inner, id)? {
            Some((journal, bytes_max, unfinished)) => (Some(journal), bytes_max, Some(unfinished)),
            None => (None, u64::MAX, None),
        };
        let artifacts = inner.config.artifacts;
        let meter = Arc::new(Meter::default());
        let (_, used) = inner.catalog.usage_today(id);
        let noted = DayUse {
            model_tokens: used.model_tokens,
            guest_cpu: std::time::Duration::from_nanos(used.guest_cpu_nanos),
            ..meter.today()
        };
        meter.set(noted);
        let kept_in = journal.clone();
        let storage =
            StorageQuota::new(move || kept_in.as_ref().map_or(0, |journal| journal.retained_bytes()));
        let quotas = AdmissionQuotas::new(QuotaOwner::Tenant, info.quotas.clone(), meter);
        let parts = TenantParts {
            id,
            slots: inner.pool.tenant(share(&info.quotas)),
            quotas: Arc::new(quotas.with_storage(storage).with_elsewhere(tenants.usage_elsewhere(id))),
            transport: inner.transport.for_tenant(network_rules(&info.network)),
            budget: inner.platform.budget().for_others(),
            journal,
            artifact_root: writes_files.then(|| ArtifactRoot::new(folder.join("rollouts"), artifacts)),
            deploying: tokio::sync::Mutex::default(),
            staging: tokio::sync::Mutex::default(),
            name: info.name.clone(),
        };
        let tenant = Arc::new(Self {
            parts: Arc::new(parts),
            retention: RetentionBounds { journal_bytes_max, artifact_bytes_max: artifacts.bytes_max },
            folder,
            state: Mutex::new(TenantState::of(&info)),
            noted: Mutex::new(noted),
            plugins: Mutex::default(),
            loading: Mutex::default(),
        });
        tenant.slots.set_lease_key(tenants.lease_key(id, &info.quotas));
        tenant.set_retention(info.quotas.get(Quota::StoredBytes));
        tenant.count_stored_bytes();
        let left = match unfinished {
            Some(unfinished) => tenant.resume(tenants, unfinished, runtime)?,
            None => 0,
        };
        tenants.note_left(Some(id), left);
        Ok(tenant)
    }

    /// Continues the rollouts that an earlier process admitted, each on the deployment on which it began. Reads them one after
    /// the other. Returns the number of rollouts that stay in the journal, except those of removed plugins.
    fn resume(
        self: &Arc<Self>,
        tenants: &Tenants,
        unfinished: Unfinished,
        runtime: &Handle,
    ) -> Result<usize, TenantError> {
        /// Reason why a deployment cannot be loaded.
        enum NoHost {
            /// The plugin or the version was removed.
            Removed,
            Failed,
        }
        type Hosts = HashMap<(String, u32), Result<(Arc<LoadedPlugin>, Host), NoHost>>;
        let mut hosts: Hosts = HashMap::new();
        let (mut found, mut resumed, mut left) = (0, 0, 0);
        let _within = runtime.enter();
        for rollout in unfinished {
            let rollout = rollout.map_err(|error| TenantError::Other(error.to_string()))?;
            found += 1;
            let Some(served) = rollout.served_as() else {
                left += 1;
                tracing::error!(
                    tenant = %self.name, rollout_id = %rollout.request.id,
                    "a rollout stays in the journal: its plugin is not recorded"
                );
                continue;
            };
            let (plugin, version) = (served.plugin.clone(), served.version);
            let host = hosts.entry((plugin, version)).or_insert_with_key(|(plugin, version)| {
                let loaded = runtime.block_on(self.host_of(tenants, plugin, *version));
                loaded.map_err(|error| {
                    tracing::error!(
                        tenant = %self.name, plugin, version, %error,
                        "a plugin cannot be loaded, and its rollouts stay in the journal"
                    );
                    if matches!(error, TenantError::NotFound(_)) { NoHost::Removed } else { NoHost::Failed }
                })
            });
            match host {
                Ok((plugin, host)) if plugin.server().resume_by(host, rollout) => resumed += 1,
                Err(NoHost::Removed) => {}
                Ok(_) | Err(NoHost::Failed) => left += 1,
            }
        }
        if found > 0 {
            tracing::info!(tenant = %self.name, found, resumed, "continuing the rollouts of the previous process");
        }
        Ok(left)
    }

    /// Returns a plugin and the host of one of its versions. Loads both if they are not loaded.
    async fn host_of(
        self: &Arc<Self>,
        tenants: &Tenants,
        name: &str,
        version: u32,
    ) -> Result<(Arc<LoadedPlugin>, Host), TenantError> {
        let plugin = self.plugin(tenants, name).await?;
        let host = plugin.host_of(tenants, &self.parts, version).await?;
        Ok((plugin, host))
    }

    /// Returns a plugin. Loads its active version if it is not loaded.
    pub(super) async fn plugin(
        self: &Arc<Self>,
        tenants: &Tenants,
        name: &str,
    ) -> Result<Arc<LoadedPlugin>, TenantError> {
        if let Some(plugin) = self.use_loaded(name) {
            return Ok(plugin);
        }
        let guard = self.lock_plugin(name).await;
        if let Some(plugin) = self.use_loaded(name) {
            return Ok(plugin);
        }
        let loaded = match self.take_staged(tenants, name).await {
            Some(plugin) => Ok(plugin),
            None => LoadedPlugin::load(tenants, &self.parts, name, None, Purpose::Use).await,
        };
        self.add_loaded(tenants, name, loaded, &guard)
    }

    /// Waits until no other task loads, activates or removes a plugin.
    async fn lock_plugin(&self, name: &str) -> LoadingGuard {
        let own = lock(&self.loading).entry(name.to_owned()).or_default().clone();
        own.lock_owned().await
    }

    /// Returns a loaded plugin and records its use.
    fn use_loaded(&self, name: &str) -> Option<Arc<LoadedPlugin>> {
        let plugin = lock(&self.plugins).get(name).cloned()?;
        plugin.touch();
        Some(plugin)
    }

    /// Adds a loaded plugin, and removes its lock if no other task waits for it.
    fn add_loaded(
        &self,
        tenants: &Tenants,
        name: &str,
        loaded: Result<Arc<LoadedPlugin>, TenantError>,
        guard: &LoadingGuard,
    ) -> Result<Arc<LoadedPlugin>, TenantError> {
        let mut loading = lock(&self.loading);
        // Two references: the guard's and the map's.
        if Arc::strong_count(LoadingGuard::mutex(guard)) <= 2 {
            loading.remove(name);
        }
        let plugin = loaded?;
        tracing::info!(tenant = %self.name, plugin = name, version = plugin.version(), "plugin loaded");
        lock(&self.plugins).insert(name.to_owned(), plugin.clone());
        // The plugin's quotas may have changed since they were read.
        tenants.tenant_changed(self.id);
        Ok(plugin)
    }

    /// Makes a version of a plugin the active one, which new rollouts use.
    pub(super) async fn activate(
        self: &Arc<Self>,
        tenants: &Tenants,
        name: &str,
        version: u32,
    ) -> Result<(), TenantError> {
        let guard = self.lock_plugin(name).await;
        self.activate_locked(tenants, name, version, &guard).await
    }

    /// Makes the version active here that is active in the catalog, unless it is.
    pub(super) async fn follow_active(
        self: &Arc<Self>,
        tenants: &Tenants,
        name: &str,
        version: u32,
    ) -> Result<(), TenantError> {
        let guard = self.lock_plugin(name).await;
        if self.loaded_plugin(name).is_some_and(|plugin| plugin.version() == version) {
            return Ok(());
        }
        self.activate_locked(tenants, name, version, &guard).await
    }

    /// Activates a version while the plugin's lock is held. A staged version is not loaded again.
    async fn activate_locked(
        self: &Arc<Self>,
        tenants: &Tenants,
        name: &str,
        version: u32,
        guard: &LoadingGuard,
    ) -> Result<(), TenantError> {
        let Some(plugin) = self.use_loaded(name) else {
            let loaded = match self.take_staged(tenants, name).await {
                Some(plugin) => Ok(plugin),
                None => LoadedPlugin::load(tenants, &self.parts, name, Some(version), Purpose::Use).await,
            };
            return self.add_loaded(tenants, name, loaded, guard).map(|_| ());
        };
        match tenants.0.staged.take(self.id, plugin.id(), version) {
            Some(StagedCode::Next(of, deployment)) if Arc::ptr_eq(&plugin, &of) => {
                plugin.replace(&self.parts, version, *deployment);
                Ok(())
            }
            // If the plugin was loaded meanwhile, its version is loaded again, normally from the cache.
            other => {
                drop(other);
                plugin.activate(tenants, &self.parts, version).await
            }
        }
    }

    /// Takes the staged version of a plugin that is not loaded, if it is active in the catalog.
    async fn take_staged(&self, tenants: &Tenants, name: &str) -> Option<Arc<LoadedPlugin>> {
        let staged = tenants.0.staged.of(self.id);
        if staged.iter().all(|staged| staged.name != name) {
            return None;
        }
        let (catalog, id, found) = (tenants.0.catalog.clone(), self.id, name.to_owned());
        let info = tokio::task::spawn_blocking(move || catalog.plugin(id, &found)).await.ok()?.ok()?;
        match tenants.0.staged.take(self.id, info.id, info.active?)? {
            StagedCode::New(plugin) => Some(plugin),
            // The plugin was removed.
            StagedCode::Next(..) => None,
        }
    }

    /// Loads a version of the plugin with this id without using it. Requests for the plugin do not wait for it.
    pub(super) async fn stage(
        self: &Arc<Self>,
        tenants: &Tenants,
        name: &str,
        id: i64,
        version: u32,
    ) -> Result<StagedCode, TenantError> {
        match self.loaded_plugin(name).filter(|plugin| plugin.id() == id) {
            Some(plugin) => plugin.stage(tenants, &self.parts, version).await,
            None => {
                let loaded =
                    LoadedPlugin::load(tenants, &self.parts, name, Some(version), Purpose::Staging).await;
                loaded.map(StagedCode::New)
            }
        }
    }

    /// Returns the name of the plugin that answers at the root.
    pub(super) fn default_plugin(&self) -> Option<String> {
        lock(&self.state).default_plugin.clone()
    }

    /// Returns a plugin if it is loaded.
    pub(super) fn loaded_plugin(&self, name: &str) -> Option<Arc<LoadedPlugin>> {
        lock(&self.plugins).get(name).cloned()
    }

    /// Returns the metrics of the loaded plugins. It does not hold the plugins, because frequent scrapes would then prevent
    /// unloading.
    pub(super) fn metrics(&self) -> Vec<Arc<Metrics>> {
        lock(&self.plugins).values().map(|plugin| plugin.metrics()).collect()
    }

    /// Returns all loaded plugins.
    pub(super) fn loaded_plugins(&self) -> Vec<Arc<LoadedPlugin>> {
        lock(&self.plugins).values().cloned().collect()
    }

    /// Unloads a plugin if it is idle and no request holds it. Returns whether it did.
    pub(super) fn unload(&self, plugin: &LoadedPlugin) -> bool {
        let mut plugins = lock(&self.plugins);
        // Two references: the map's and the caller's. A request holds another one until it is answered.
        let is_unused = plugins.get(plugin.name()).is_some_and(|found| Arc::strong_count(found) <= 2);
        let is_unloadable = is_unused && plugin.is_idle();
        let unloaded = if is_unloadable { plugins.remove(plugin.name()) } else { None };
        drop(plugins);
        if unloaded.is_some() {
            tracing::debug!(tenant = %self.name, plugin = plugin.name(), "idle plugin unloaded");
        }
        unloaded.is_some()
    }

    /// Unloads the plugin that has been idle for longest. Returns false if no plugin is idle.
    pub(super) fn unload_longest_idle(&self) -> bool {
        let mut plugins = self.loaded_plugins();
        plugins.sort_by_key(|plugin| plugin.last_used());
        plugins.into_iter().any(|plugin| self.unload(&plugin))
    }

    /// Cancels the rollouts of a removed plugin and unloads it.
    pub(super) async fn remove(&self, name: &str) {
        let plugin = {
            // Waits for a task that is loading it. Later tasks do not find it in the catalog.
            let _guard = self.lock_plugin(name).await;
            lock(&self.loading).remove(name);
            lock(&self.plugins).remove(name)
        };
        if let Some(plugin) = plugin {
            plugin.shut_down(Instant::now() + super::REMOVAL_TIME_MAX).await;
        }
    }

    /// Cancels the rollouts of a deleted tenant, waits for their end, at most until `until`, and closes the journal.
    pub(super) async fn shut_down(&self, until: Instant) {
        self.slots.close();
        self.slots.cancel_all();
        let plugins: Vec<_> = lock(&self.plugins).drain().map(|(_, plugin)| plugin).collect();
        for plugin in &plugins {
            plugin.shut_down(until).await;
        }
        if tokio::time::timeout_at(until, self.slots.idle()).await.is_err() {
            tracing::warn!(tenant = %self.name, "some rollouts of a deleted tenant have not ended yet");
        }
        self.close_journal();
    }

    pub(super) fn close_journal(&self) {
        if let Some(journal) = &self.journal {
            journal.close();
        }
    }

    /// Reads the tenant and its loaded plugins from the catalog and applies changes.
    pub(super) fn reload(&self, tenants: &Tenants) -> Result<(), TenantError> {
        let catalog = &tenants.0.catalog;
        // The lock is held, so that an older state never replaces a newer one.
        let mut state = lock(&self.state);
        let mut now = catalog.tenant(self.id)?;
        now.quotas = tenants.own_part_of_tenant(&now.quotas);
        self.slots.set_lease_key(tenants.lease_key(self.id, &now.quotas));
        self.slots.set_share(share(&now.quotas));
        self.quotas.set(now.quotas.clone());
        self.transport.set_rules(network_rules(&now.network));
        *state = TenantState::of(&now);
        self.set_retention(state.stored_bytes_max);
        for plugin in self.loaded_plugins() {
            match catalog.plugin(self.id, plugin.name()) {
                Ok(info) => plugin.set_quotas(&tenants.own_part(&info.quotas)),
                // The plugin is being removed.
                Err(CatalogError::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        drop(state);
        self.count_stored_bytes();
        Ok(())
    }

    /// Adds the usage since the last call to the catalog.
    pub(super) fn note_usage(&self, catalog: &Catalog) {
        // The lock is held, so that no usage is added twice.
        let mut noted = lock(&self.noted);
        let now = self.quotas.meter().today();
        let before = if noted.day == now.day { *noted } else { DayUse { day: now.day, ..DayUse::default() } };
        let more = TenantUsage {
            model_tokens: now.model_tokens.saturating_sub(before.model_tokens),
            guest_cpu_nanos: nanos(now.guest_cpu.saturating_sub(before.guest_cpu)),
        };
        *noted = now;
        if more != TenantUsage::default() {
            catalog.add_usage(self.id, more);
        }
    }

    /// Measures the tenant's files for the quota `stored-bytes`. Reads the tenant's folders.
    pub(super) fn count_stored_bytes(&self) {
        let max = lock(&self.state).stored_bytes_max;
        self.quotas.set_stored(max.map(|max| (self.measure_stored(), max)));
    }

    /// Measures the files. Bytes written meanwhile are counted twice rather than not at all.
    fn measure_stored(&self) -> StoredBytes {
        let (journal, artifacts) = (self.journal.clone(), self.artifact_root.clone());
        let size = move || {
            let journal_bytes = journal.as_ref().map_or(0, |journal| journal.bytes());
            let artifact_change = artifacts.as_ref().map_or(0, |root| root.change_bytes());
            artifact_change.saturating_add_unsigned(journal_bytes)
        };
        let before = size();
        StoredBytes::new(stored_bytes(&self.folder), move || size().saturating_sub(before))
    }

    /// Limits the bytes of unfinished rollouts, and those of finished ones so that they never use up this quota. Must be called
    /// within the runtime.
    fn set_retention(&self, quota: Option<u64>) {
        let [in_journal, in_files] = retained_bytes_max(quota, self.artifact_root.is_some());
        if let Some(journal) = &self.journal {
            journal.set_bytes_max(self.retention.journal_bytes_max.min(in_journal.unwrap_or(u64::MAX)));
        }
        let room = quota.zip(in_journal);
        if let Some(journal) = &self.journal {
            journal.set_total_bytes_max(room.map_or(u64::MAX, |(_, room)| room));
        }
        if let Some(storage) = self.quotas.storage() {
            storage.set(room);
        }
        if let Some(root) = &self.artifact_root {
            root.set_bytes_max([self.retention.artifact_bytes_max, in_files].into_iter().flatten().min());
        }
    }
}

fn nanos(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the number of bytes of the files in a folder and its subfolders. Files that are removed meanwhile do not
/// count.
fn stored_bytes(folder: &std::path::Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let bytes_of = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => stored_bytes(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    entries.flatten().map(bytes_of).sum()
}

/// Returns the maximum numbers of bytes of finished rollouts in the journal and in files. Beyond them the oldest rollouts are
/// removed, so finished rollouts never use up the quota.
fn retained_bytes_max(stored_bytes_max: Option<u64>, writes_files: bool) -> [Option<u64>; 2] {
    let Some(max) = stored_bytes_max else { return [None; 2] };
    // This leaves room for three segments: a journal always has the current one and the next one.
    let retained = max.saturating_sub(3 * SEGMENT_BYTES);
    if writes_files { [Some(retained / 4), Some(retained / 4 * 3)] } else { [Some(retained), None] }
}

/// Opens the journal of a tenant if journals are configured. Returns it with its configured maximum size in bytes and
/// its unfinished rollouts.
fn open_journal(inner: &Inner, id: TenantId) -> Result<Option<(Arc<Journal>, u64, Unfinished)>, TenantError> {
    // The operator's settings except the path apply to all tenants.
    let Some(settings) = inner.config.journal.settings(std::path::Path::new("")) else {
        return Ok(None);
    };
    let path = journal_folder(&inner.catalog, id);
    let failed =
        |error: std::io::Error| TenantError::Other(format!("cannot create {}: {error}", path.display()));
    std::fs::create_dir_all(&path).map_err(failed)?;
    let replica = inner.replicas.as_ref().map(|replica_of| replica_of(id));
    let settings =
        JournalSettings { path, segment_bytes: SEGMENT_BYTES, segments_ahead: 1, replica, ..settings };
    let bytes_max = settings.retention.bytes_max;
    let results_ttl = inner.config.osmosis.result_ttl;
    let (journal, unfinished) = Journal::open(settings, inner.seal.clone(), results_ttl)?;
    Ok(Some((journal, bytes_max, unfinished)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finished_rollouts_leave_room_for_journal_segments_within_the_quota() {
        assert_eq!(retained_bytes_max(None, true), [None; 2]);
        assert_eq!(retained_bytes_max(Some(1), false), [Some(0), None]);
        for max in [64 << 20, 1 << 30] {
            assert!(retained_bytes_max(Some(max), false)[0].unwrap() + 3 * SEGMENT_BYTES <= max);
            let both: u64 = retained_bytes_max(Some(max), true).into_iter().flatten().sum();
            assert!(both + 3 * SEGMENT_BYTES <= max && both > 0);
        }
    }
}
