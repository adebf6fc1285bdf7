//! One tenant that is in use.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::time::Instant;

use super::plugin::Plugin;
use super::{Inner, Tenants, Unusable};
use crate::admin::{Deployments, network_rules};
use rollout_catalog::{Catalog, CatalogError, Name, TenantId, TenantUsage};
use rollout_core::budget::Budget;
use rollout_core::outbound::Transport;
use rollout_core::rollout::{
    AdmissionQuotas, ArtifactRoot, Host, Journal, JournalSettings, Share, StoredBytes, TenantSlots,
    Unfinished, Whose,
};
use rollout_core::telemetry::{DayUse, Meter, Metrics};
use rollout_core::wire::quota::{Quota, Quotas};

/// The segments of a tenant's journal, in bytes: smaller than those of a server's own, because two of them
/// are there ahead for each tenant.
const SEGMENT_BYTES: u64 = 8 << 20;

/// What a plugin may be besides there: in use, or about to be.
type Place = Arc<tokio::sync::Mutex<()>>;

/// See above.
pub(super) struct Tenant {
    pub(super) id: TenantId,
    pub(super) name: Name,
    pub(super) slots: TenantSlots,
    pub(super) quotas: Arc<AdmissionQuotas>,
    pub(super) transport: Transport,
    pub(super) budget: Budget,
    pub(super) journal: Option<Arc<Journal>>,
    pub(super) artifact_root: Option<Arc<ArtifactRoot>>,
    operators: StorageBounds,
    folder: PathBuf,
    settings: Mutex<Settings>,
    /// What of today's use is in the catalog.
    noted: Mutex<DayUse>,
    plugins: Mutex<HashMap<String, Arc<Plugin>>>,
    /// Whose turn it is to have a deployment brought in: none keeps more than one of the process's turns.
    pub(super) turn: tokio::sync::Mutex<()>,
    /// Who brings a plugin in, so that it is brought in once.
    loading: Mutex<HashMap<String, Place>>,
}

/// What the catalog says of a tenant, besides what others here were told of it.
struct Settings {
    stored_bytes_max: Option<u64>,
    default_plugin: Option<String>,
}

impl Settings {
    fn of(tenant: &rollout_catalog::Tenant) -> Self {
        let default_plugin = tenant.default_plugin.as_ref().map(ToString::to_string);
        Self { stored_bytes_max: tenant.quotas.get(Quota::StoredBytes), default_plugin }
    }
}

/// Largest sizes of what is kept of finished rollouts, in bytes, by the operator's configuration. A quota reduces them.
struct StorageBounds {
    journal_bytes_max: u64,
    artifact_bytes_max: Option<u64>,
}

/// Where a tenant's journal is.
pub(super) fn journal_folder(catalog: &Catalog, id: TenantId) -> PathBuf {
    catalog.tenant_folder(id).join("journal")
}

/// Returns the share of slots that quotas permit.
pub(super) fn share(quotas: &Quotas) -> Share {
    Share {
        weight: quotas.weight(),
        running_max: quotas.get_u32(Quota::Running).unwrap_or(u32::MAX),
        queue_max: quotas.get_u32(Quota::Queued).unwrap_or(u32::MAX),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tenant {
    /// Opens a tenant, and goes on with what a process before admitted. Reads files, and blocks.
    pub(super) fn open(tenants: &Tenants, id: TenantId, runtime: &Handle) -> Result<Arc<Self>, Unusable> {
        let inner = &tenants.0;
        let of_catalog = inner.catalog.tenant(id)?;
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
        let tenant = Arc::new(Self {
            id,
            slots: inner.pool.tenant(share(&of_catalog.quotas)),
            quotas: Arc::new(AdmissionQuotas::new(Whose::Tenant, of_catalog.quotas.clone(), meter)),
            transport: inner.transport.for_tenant(network_rules(&of_catalog.network)),
            budget: inner.platform.budget().for_others(),
            journal,
            artifact_root: writes_files.then(|| ArtifactRoot::new(folder.join("rollouts"), artifacts)),
            operators: StorageBounds { journal_bytes_max, artifact_bytes_max: artifacts.bytes_max },
            folder,
            settings: Mutex::new(Settings::of(&of_catalog)),
            noted: Mutex::new(noted),
            plugins: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            loading: Mutex::default(),
            name: of_catalog.name,
        });
        tenant.bound_stored(of_catalog.quotas.get(Quota::StoredBytes));
        tenant.look_at_stored();
        if let Some(unfinished) = unfinished {
            tenant.resume(tenants, unfinished, runtime)?;
        }
        Ok(tenant)
    }

    /// Goes on with what a process before admitted: each rollout on the deployment that it began with. They are read one
    /// after the other.
    fn resume(
        self: &Arc<Self>,
        tenants: &Tenants,
        unfinished: Unfinished,
        runtime: &Handle,
    ) -> Result<(), Unusable> {
        /// Who goes on with rollouts of a deployment; none where it cannot be brought in.
        type Resumes = HashMap<(String, u32), Option<(Arc<Plugin>, Host)>>;
        let mut by_deployment: Resumes = HashMap::new();
        let (mut found, mut resumed) = (0, 0);
        let _within = runtime.enter();
        for rollout in unfinished {
            let rollout = rollout.map_err(|error| Unusable::Other(error.to_string()))?;
            found += 1;
            let Some(served) = rollout.served_as() else {
                tracing::error!(
                    tenant = %self.name, rollout_id = %rollout.request.id,
                    "a rollout of the journal is left there: it does not say of which plugin it is"
                );
                continue;
            };
            let (plugin, version) = (served.plugin.clone(), served.version);
            let by = by_deployment.entry((plugin, version)).or_insert_with_key(|(plugin, version)| {
                let by = runtime.block_on(self.deployment(tenants, plugin, *version));
                by.inspect_err(|error| {
                    tracing::error!(
                        tenant = %self.name, plugin, version, %error,
                        "the rollouts of a plugin are left in the journal"
                    );
                })
                .ok()
            });
            let by = by.as_ref().is_some_and(|(plugin, host)| plugin.server().resume_by(host, rollout));
            resumed += usize::from(by);
        }
        if found > 0 {
            tracing::info!(tenant = %self.name, found, resumed, "going on with the rollouts of the process before");
        }
        Ok(())
    }

    async fn deployment(
        self: &Arc<Self>,
        tenants: &Tenants,
        name: &str,
        version: u32,
    ) -> Result<(Arc<Plugin>, Host), Unusable> {
        let plugin = self.plugin(tenants, name).await?;
        let host = plugin.host_of(tenants, self, version).await?;
        Ok((plugin, host))
    }

    /// A plugin that is active, brought in where it was not.
    pub(super) async fn plugin(
        self: &Arc<Self>,
        tenants: &Tenants,
        name: &str,
    ) -> Result<Arc<Plugin>, Unusable> {
        if let Some(plugin) = self.in_use(name) {
            return Ok(plugin);
        }
        let place = lock(&self.loading).entry(name.to_owned()).or_default().clone();
        let _one = place.lock().await;
        if let Some(plugin) = self.in_use(name) {
            return Ok(plugin);
        }
        let loaded = Plugin::load(tenants, self, name, None).await;
        self.keep(tenants, name, loaded, &place)
    }

    fn in_use(&self, name: &str) -> Option<Arc<Plugin>> {
        let plugin = lock(&self.plugins).get(name).cloned()?;
        plugin.is_used();
        Some(plugin)
    }

    /// What was brought in is in use from now on. The place of one that nobody waits for goes.
    fn keep(
        &self,
        tenants: &Tenants,
        name: &str,
        loaded: Result<Arc<Plugin>, Unusable>,
        place: &Place,
    ) -> Result<Arc<Plugin>, Unusable> {
        let mut loading = lock(&self.loading);
        // This one, the map's, and nobody else's.
        if Arc::strong_count(place) <= 2 {
            loading.remove(name);
        }
        let plugin = loaded?;
        lock(&self.plugins).insert(name.to_owned(), plugin.clone());
        // Its quotas may have been changed since they were read.
        tenants.tenant_changed(self.id);
        Ok(plugin)
    }

    /// From now on new rollouts get this version.
    pub(super) async fn activate(
        self: &Arc<Self>,
        tenants: &Tenants,
        name: &str,
        version: u32,
    ) -> Result<(), Unusable> {
        let place = lock(&self.loading).entry(name.to_owned()).or_default().clone();
        let _one = place.lock().await;
        match self.in_use(name) {
            Some(plugin) => plugin.become_version(tenants, self, version).await,
            None => {
                let loaded = Plugin::load(tenants, self, name, Some(version)).await;
                self.keep(tenants, name, loaded, &place).map(|_| ())
            }
        }
    }

    /// The plugin that answers at the root.
    pub(super) fn default_plugin(&self) -> Option<String> {
        lock(&self.settings).default_plugin.clone()
    }

    pub(super) fn plugin_in_use(&self, name: &str) -> Option<Arc<Plugin>> {
        lock(&self.plugins).get(name).cloned()
    }

    /// What is counted of its plugins. Nobody holds them meanwhile, which would keep them from being let go
    /// of wherever metrics are asked for often.
    pub(super) fn counted(&self) -> Vec<Arc<Metrics>> {
        lock(&self.plugins).values().map(|plugin| plugin.counted()).collect()
    }

    pub(super) fn plugins_in_use(&self) -> Vec<Arc<Plugin>> {
        lock(&self.plugins).values().cloned().collect()
    }

    /// Lets go of a plugin, unless somebody has just begun to use it.
    pub(super) fn unload(&self, plugin: &Plugin, may_go: impl FnOnce() -> bool) -> bool {
        let mut plugins = lock(&self.plugins);
        // The map's, and that of whoever asks: a request holds it until it is answered.
        let is_only = plugins.get(plugin.name()).is_some_and(|found| Arc::strong_count(found) <= 2);
        let goes = is_only && may_go();
        let gone = if goes { plugins.remove(plugin.name()) } else { None };
        drop(plugins);
        gone.is_some()
    }

    /// Unloads the plugin that has been idle for longest, if one is idle.
    pub(super) fn unload_idlest(&self) -> bool {
        let mut plugins = self.plugins_in_use();
        plugins.sort_by_key(|plugin| plugin.last_used());
        plugins.into_iter().any(|plugin| plugin.unload())
    }

    /// Cancels what runs of a plugin, and lets go of it.
    pub(super) async fn remove(&self, name: &str) {
        let plugin = {
            // Who is about to bring it in has to be through: from then on it is not in the catalog.
            let place = lock(&self.loading).entry(name.to_owned()).or_default().clone();
            let _one = place.lock().await;
            lock(&self.loading).remove(name);
            lock(&self.plugins).remove(name)
        };
        if let Some(plugin) = plugin {
            plugin.end(Instant::now() + super::ENDING_TIME_MAX).await;
        }
    }

    /// Ends all of it.
    pub(super) async fn end(&self, until: Instant) {
        self.slots.close();
        self.slots.cancel_all();
        let plugins: Vec<_> = lock(&self.plugins).drain().map(|(_, plugin)| plugin).collect();
        for plugin in &plugins {
            plugin.end(until).await;
        }
        if tokio::time::timeout_at(until, self.slots.idle()).await.is_err() {
            tracing::warn!(tenant = %self.name, "rollouts of a tenant that is deleted are not over");
        }
        self.close_journal();
    }

    pub(super) fn close_journal(&self) {
        if let Some(journal) = &self.journal {
            journal.close();
        }
    }

    /// What was changed of it in the catalog holds from now on.
    pub(super) fn read_again(&self, catalog: &Catalog) -> Result<(), Unusable> {
        // One after the other, so that what was read last is what holds.
        let mut settings = lock(&self.settings);
        let now = catalog.tenant(self.id)?;
        self.slots.set_share(share(&now.quotas));
        self.quotas.set(now.quotas.clone());
        self.transport.set_rules(network_rules(&now.network));
        *settings = Settings::of(&now);
        self.bound_stored(settings.stored_bytes_max);
        for plugin in self.plugins_in_use() {
            match catalog.plugin(self.id, plugin.name()) {
                Ok(about) => plugin.read_again(&about.quotas),
                // It is being removed.
                Err(CatalogError::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        drop(settings);
        self.look_at_stored();
        Ok(())
    }

    /// Notes in the catalog what was used since the last time.
    pub(super) fn note_usage(&self, catalog: &Catalog) {
        // One at a time, so that nothing is noted twice.
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

    /// Finds out whether its files have more than they may. Reads its folders.
    pub(super) fn look_at_stored(&self) {
        let max = lock(&self.settings).stored_bytes_max;
        self.quotas.set_stored(max.map(|max| (self.count_stored(), max)));
    }

    /// Counts the files. A file that is written meanwhile is counted twice rather than not at all.
    fn count_stored(&self) -> StoredBytes {
        let (journal, artifacts) = (self.journal.clone(), self.artifact_root.clone());
        let size = move || {
            let of_journal = journal.as_ref().map_or(0, |journal| journal.bytes());
            let of_artifacts = artifacts.as_ref().map_or(0, |root| root.change_bytes());
            of_artifacts.saturating_add_unsigned(of_journal)
        };
        let before = size();
        StoredBytes::new(stored_bytes(&self.folder), move || size().saturating_sub(before))
    }

    /// Bounds what is kept of finished rollouts, so that they do not use up this quota. Within the runtime.
    fn bound_stored(&self, quota: Option<u64>) {
        let [in_journal, in_files] = kept_bytes(quota, self.artifact_root.is_some());
        if let Some(journal) = &self.journal {
            journal.set_bytes_max(self.operators.journal_bytes_max.min(in_journal.unwrap_or(u64::MAX)));
        }
        if let Some(root) = &self.artifact_root {
            root.set_bytes_max([self.operators.artifact_bytes_max, in_files].into_iter().flatten().min());
        }
    }
}

fn nanos(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The bytes of the files in a folder and in those below it. What goes meanwhile is not counted.
fn stored_bytes(folder: &std::path::Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let of = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(about) if about.is_dir() => stored_bytes(&entry.path()),
        Ok(about) => about.len(),
        Err(_) => 0,
    };
    entries.flatten().map(of).sum()
}

/// What may be kept of rollouts that are over, in a journal and in files, so that the quota is never used up
/// by that: the oldest go before.
fn kept_bytes(stored_bytes_max: Option<u64>, writes_files: bool) -> [Option<u64>; 2] {
    let Some(max) = stored_bytes_max else { return [None; 2] };
    // A journal has a segment to write and two ahead, whatever is kept.
    let kept = max.saturating_sub(3 * SEGMENT_BYTES);
    if writes_files { [Some(kept / 4), Some(kept / 4 * 3)] } else { [Some(kept), None] }
}

/// Opens the journal of a tenant if there is to be one, with its largest size in bytes and its unfinished rollouts.
fn open_journal(inner: &Inner, id: TenantId) -> Result<Option<(Arc<Journal>, u64, Unfinished)>, Unusable> {
    // Of the operator's settings only where it is is the tenant's own.
    let Some(settings) = inner.config.journal.settings(std::path::Path::new("")) else {
        return Ok(None);
    };
    let path = journal_folder(&inner.catalog, id);
    let cannot = |error: std::io::Error| Unusable::Other(format!("{}: {error}", path.display()));
    std::fs::create_dir_all(&path).map_err(cannot)?;
    let settings = JournalSettings { path, segment_bytes: SEGMENT_BYTES, segments_ahead: 1, ..settings };
    let bytes_max = settings.retention.bytes_max;
    let results_ttl = inner.config.osmosis.result_ttl;
    let (journal, unfinished) = Journal::open(settings, inner.seal.clone(), results_ttl)?;
    Ok(Some((journal, bytes_max, unfinished)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_of_rollouts_that_are_over_leaves_room_within_the_quota() {
        assert_eq!(kept_bytes(None, true), [None; 2]);
        assert_eq!(kept_bytes(Some(1), false), [Some(0), None]);
        for max in [64 << 20, 1 << 30] {
            assert!(kept_bytes(Some(max), false)[0].unwrap() + 3 * SEGMENT_BYTES <= max);
            let both: u64 = kept_bytes(Some(max), true).into_iter().flatten().sum();
            assert!(both + 3 * SEGMENT_BYTES <= max && both > 0);
        }
    }
}
