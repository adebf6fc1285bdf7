//! A loaded plugin: its slots, its server, and the active deployment.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use axum::Router;
use tokio::time::Instant;

use super::parts::{TenantParts, share};
use super::{TenantError, Tenants};
use crate::Server;
use crate::admin::open_secrets;
use crate::dialect::nemo_gym;
use crate::serving::Serving;
use rollout_assembly::{Deployed, NotLoaded, Placed, Sources};
use rollout_catalog::Deployment;
use rollout_core::error::Fault;
use rollout_core::telemetry::{Meter, Metrics};
use rollout_outbound::Secret;
use rollout_rollout::{AdmissionQuotas, Host, QuotaOwner, Runtime, RuntimeSettings, ServedAs, Share, Slots};
use rollout_wire::quota::Quotas;

/// A plugin in memory, with the server of its routes.
pub(super) struct LoadedPlugin {
    /// Id in the catalog.
    id: i64,
    name: String,
    shared: SharedParts,
    server: Server,
    router: Router,
    state: Mutex<PluginState>,
    last_used: AtomicU64,
}

/// The parts that all deployments of a plugin share.
struct SharedParts {
    slots: Slots,
    quotas: Arc<AdmissionQuotas>,
    metrics: Arc<Metrics>,
}

/// The active deployment, and the state that changes with it.
struct PluginState {
    version: u32,
    code_bytes: u64,
    /// Maximum number of concurrent rollouts that the active deployment allows.
    running_max: u32,
    quotas: Quotas,
    /// Inactive deployments, which exist as long as rollouts run on them. A version may occur more than once.
    others: Vec<(u32, Weak<rollout_rollout::Deployment>)>,
}

/// A version that is loaded and not active yet.
pub(super) enum StagedCode {
    /// The next version of a loaded plugin.
    Next(Arc<LoadedPlugin>, Box<LoadedDeployment>),
    /// A plugin that was not loaded.
    New(Arc<LoadedPlugin>),
}

impl StagedCode {
    pub(super) fn code_bytes(&self) -> u64 {
        match self {
            Self::Next(_, deployment) => deployment.code_bytes,
            Self::New(plugin) => plugin.code_bytes(),
        }
    }
}

/// Purpose for which a deployment is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Rollouts wait for it, or it becomes active.
    Use,
    /// It may become active. Loads of the tenant that rollouts wait for do not wait for it.
    Staging,
}

/// A deployment in memory.
pub(super) struct LoadedDeployment {
    host: Host,
    agent_name: String,
    running_max: u32,
    code_bytes: u64,
    nemo_gym: nemo_gym::Settings,
}

impl PluginState {
    /// Adds an inactive deployment, and removes those without rollouts.
    fn add_inactive(&mut self, version: u32, deployment: Weak<rollout_rollout::Deployment>) {
        self.others.retain(|(_, deployment)| deployment.strong_count() > 0);
        self.others.push((version, deployment));
    }
}

/// A logical clock: the number of uses of all plugins.
static CLOCK: AtomicU64 = AtomicU64::new(1);

impl LoadedPlugin {
    /// Loads a version of a plugin, by default the active one.
    pub(super) async fn load(
        tenants: &Tenants,
        tenant: &Arc<TenantParts>,
        name: &str,
        version: Option<u32>,
        purpose: Purpose,
    ) -> Result<Arc<Self>, TenantError> {
        let (catalog, id, plugin) = (tenants.0.catalog.clone(), tenant.id, name.to_owned());
        let mut info = spawn_blocking(move || Ok(catalog.plugin(id, &plugin)?)).await?;
        info.quotas = tenants.own_part(&info.quotas);
        let Some(version) = version.or(info.active) else {
            return Err(TenantError::NotFound(format!("no version of plugin '{name}' is active")));
        };
        let labels = [("tenant", tenant.name.to_string()), ("plugin", name.to_owned())];
        let labels = labels.map(|(label, value)| (label.to_owned(), value));
        let meter = Arc::new(Meter::default());
        let meters = vec![tenant.quotas.meter().clone(), meter.clone()];
        let shared = SharedParts {
            slots: tenant.slots.plugin(share(&info.quotas)),
            quotas: Arc::new(AdmissionQuotas::new(QuotaOwner::Plugin, info.quotas.clone(), meter)),
            metrics: Arc::new(Metrics::of(HashMap::from(labels), meters)),
        };
        if let Some(traces) = tenants.0.traces.get() {
            shared.metrics.trace_with(traces.clone());
        }
        let LoadedDeployment { host, agent_name, running_max, code_bytes, nemo_gym } =
            deploy(tenants, tenant, &shared, name, version, purpose).await?;
        let log = tenants.0.worker.as_ref().map(|worker| worker.log.clone());
        let server = Server::for_plugin(Serving::new(host, agent_name), &tenants.0.config, nemo_gym, log);
        let plugin = Self {
            id: info.id,
            name: name.to_owned(),
            router: server.plugin_router(),
            server,
            state: Mutex::new(PluginState {
                version,
                code_bytes,
                running_max,
                quotas: info.quotas,
                others: Vec::new(),
            }),
            shared,
            last_used: AtomicU64::new(CLOCK.fetch_add(1, Ordering::Relaxed)),
        };
        plugin.update_share();
        Ok(Arc::new(plugin))
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the id in the catalog, which no other plugin has, not even a later one with the same name.
    pub(super) fn id(&self) -> i64 {
        self.id
    }

    /// Returns the active version.
    pub(super) fn version(&self) -> u32 {
        self.state().version
    }

    pub(super) fn server(&self) -> Server {
        self.server.clone()
    }

    pub(super) fn router(&self) -> Router {
        self.router.clone()
    }

    /// Updates the gauges of the plugin's load and returns its metrics.
    pub(super) fn metrics(&self) -> Arc<Metrics> {
        let load = self.shared.slots.load();
        self.shared.metrics.is_busy(load.running, load.queued, load.max_concurrent);
        self.shared.metrics.clone()
    }

    /// Returns the load of the plugin.
    pub(super) fn current_load(&self) -> rollout_rollout::Load {
        self.shared.slots.load()
    }

    fn state(&self) -> std::sync::MutexGuard<'_, PluginState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn code_bytes(&self) -> u64 {
        self.state().code_bytes
    }

    /// Records a use.
    pub(super) fn touch(&self) {
        self.last_used.store(CLOCK.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Returns the time of the last use on the logical clock.
    pub(super) fn last_used(&self) -> u64 {
        self.last_used.load(Ordering::Relaxed)
    }

    /// Makes a version the active one, which new rollouts use.
    pub(super) async fn activate(
        &self,
        tenants: &Tenants,
        tenant: &Arc<TenantParts>,
        version: u32,
    ) -> Result<(), TenantError> {
        let deployment = deploy(tenants, tenant, &self.shared, &self.name, version, Purpose::Use).await?;
        self.replace(tenant, version, deployment);
        Ok(())
    }

    /// Loads a version without using it.
    pub(super) async fn stage(
        self: Arc<Self>,
        tenants: &Tenants,
        tenant: &Arc<TenantParts>,
        version: u32,
    ) -> Result<StagedCode, TenantError> {
        let deployment = deploy(tenants, tenant, &self.shared, &self.name, version, Purpose::Staging).await?;
        Ok(StagedCode::Next(self, Box::new(deployment)))
    }

    /// Makes a loaded version of this plugin the active one.
    pub(super) fn replace(&self, tenant: &TenantParts, version: u32, deployment: LoadedDeployment) {
        let LoadedDeployment { host, agent_name, running_max, code_bytes, nemo_gym } = deployment;
        let before = {
            let mut state = self.state();
            (state.code_bytes, state.running_max) = (code_bytes, running_max);
            let before = std::mem::replace(&mut state.version, version);
            let previous = Arc::downgrade(self.server.serving().host().deployment());
            state.add_inactive(before, previous);
            self.server.set_host(host, agent_name, nemo_gym);
            before
        };
        self.update_share();
        tracing::info!(tenant = %tenant.name, plugin = self.name, before, version, "another version was activated");
    }

    /// Returns the host of a version, for rollouts that began with it. Loads the version if it is not the active one.
    pub(super) async fn host_of(
        &self,
        tenants: &Tenants,
        tenant: &Arc<TenantParts>,
        version: u32,
    ) -> Result<Host, TenantError> {
        {
            let state = self.state();
            if state.version == version {
                return Ok(self.server.serving().host());
            }
        }
        let LoadedDeployment { host, .. } =
            deploy(tenants, tenant, &self.shared, &self.name, version, Purpose::Use).await?;
        self.state().add_inactive(version, Arc::downgrade(host.deployment()));
        Ok(host)
    }

    /// Returns the active version and the versions on which rollouts still run.
    pub(super) fn versions(&self) -> Vec<u32> {
        let state = self.state();
        let others = state.others.iter().filter(|(_, deployment)| deployment.strong_count() > 0);
        others.map(|(version, _)| *version).chain([state.version]).collect()
    }

    /// Applies changed quotas.
    pub(super) fn set_quotas(&self, quotas: &Quotas) {
        self.state().quotas = quotas.clone();
        self.shared.quotas.set(quotas.clone());
        self.update_share();
    }

    /// Updates the plugin's share of slots from its quotas and its active deployment.
    fn update_share(&self) {
        let state = self.state();
        let share = share(&state.quotas);
        self.shared.slots.set_share(Share { running_max: share.running_max.min(state.running_max), ..share });
    }

    /// Returns whether no rollout runs and no result waits for its caller.
    pub(super) fn is_idle(&self) -> bool {
        self.server.is_idle()
    }

    /// Cancels the plugin's rollouts and waits, at most until `until`, until they are reported.
    pub(super) async fn shut_down(&self, until: Instant) {
        self.shared.slots.close();
        self.shared.slots.cancel_all();
        self.server.report_cancelled(until).await;
    }
}

/// Runs work on a blocking thread.
async fn spawn_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, TenantError> + Send + 'static,
) -> Result<T, TenantError> {
    let result = tokio::task::spawn_blocking(work).await;
    result.unwrap_or_else(|error| Err(TenantError::Other(error.to_string())))
}

/// Loads a deployment.
async fn deploy(
    tenants: &Tenants,
    tenant: &Arc<TenantParts>,
    shared: &SharedParts,
    name: &str,
    version: u32,
    purpose: Purpose,
) -> Result<LoadedDeployment, TenantError> {
    let closed = |_| TenantError::Other("the server is shutting down".to_owned());
    let of_tenant = match purpose {
        Purpose::Use => &tenant.deploying,
        Purpose::Staging => &tenant.staging,
    };
    let _tenant_lock = of_tenant.lock().await;
    let _permit = tenants.0.starting.acquire().await.map_err(closed)?;
    let (tenants, tenant, metrics) = (tenants.clone(), tenant.clone(), shared.metrics.clone());
    let (slots, quotas, name) = (shared.slots.clone(), shared.quotas.clone(), name.to_owned());
    let runtime = tokio::runtime::Handle::current();
    spawn_blocking(move || {
        let inner = &tenants.0;
        let found = inner.catalog.deployment(tenant.id, &name, version)?;
        let Deployment { info, config, report: _ } = found;
        let at = format!("the configuration of version {version} of {name}");
        let config = inner.operators.for_tenant(config.as_deref().unwrap_or_default(), &at)?;
        let component = inner.catalog.component_path(info.component)?;
        let grader: Option<PathBuf> =
            info.grader.map(|grader| inner.catalog.component_path(grader)).transpose()?;
        let shown = PathBuf::from(&name);
        let sources = Sources { plugin: &component, shown: &shown, grader: grader.as_deref() };
        let judge = config.judge.as_ref().and_then(|judge| judge.api_key_env.as_deref());
        let placed = Placed {
            transport: &tenant.transport,
            metrics: &metrics,
            judge_key: judge
                .map(|secret| find_secret(&tenants, &tenant, "judge.api-key-env", secret))
                .transpose()?,
            served_as: ServedAs { plugin: name.clone(), version },
        };
        let nemo_gym = match &config.nemo_gym {
            Some(gym) => {
                let key = gym.model_key_env.as_deref();
                let key = key.map(|secret| find_secret(&tenants, &tenant, "nemo-gym.model-key-env", secret));
                let settings = nemo_gym::Settings::new(gym, key.transpose()?);
                settings.map_err(|error| TenantError::Other(format!("nemo-gym.model-url: {error}")))?
            }
            None => nemo_gym::Settings::default(),
        };
        let no_files = OnceLock::new();
        let deploying = inner.platform.deploy(&config, sources, placed, |engine, path| {
            let component = {
                // The permit covers loading only: a guest that starts afterwards may wait without blocking other loads.
                let _permit = inner.loading.acquire();
                (inner.load)(engine, path)?
            };
            let files = tenants.reserve_plugin_files(tenant.id, component.open_files());
            let held = files.map_err(|error| {
                let reason = no_files.get_or_init(|| error).to_string();
                NotLoaded { fault: Fault::Host, reason }
            })?;
            Ok(component.holding(Arc::new(held)))
        });
        let deployed = runtime.block_on(deploying);
        let Deployed { deployment, chat, settings, .. } = match no_files.get() {
            Some(error) => return Err(TenantError::NoRoom(error.to_string())),
            None => deployed?,
        };
        let code_bytes = deployment.code_bytes();
        let host = Host::new(
            Runtime::new(RuntimeSettings {
                tenant: Some(Arc::from(&*tenant.name)),
                engine: inner.platform.engine().clone(),
                transport: tenant.transport.clone(),
                chat,
                metrics,
                budget: tenant.budget.clone(),
                slots,
                quotas: vec![tenant.quotas.clone(), quotas],
                artifact_root: tenant.artifact_root.clone(),
                event_log: None,
                journal: tenant.journal.clone(),
            }),
            Arc::new(deployment),
        );
        let agent_name = runtime.block_on(host.agent_name());
        let agent_name = agent_name.map_err(|error| {
            TenantError::Other(format!("cannot get the name of the agent loop: it {error}"))
        })?;
        let running_max = settings.max_concurrent.unwrap_or(u32::MAX);
        Ok(LoadedDeployment {
            host,
            agent_name: agent_name.unwrap_or(name),
            running_max,
            code_bytes,
            nemo_gym,
        })
    })
    .await
}

/// Returns the secret that a tenant's configuration names. It is one of the tenant's own secrets, never one of the
/// host's.
fn find_secret(
    tenants: &Tenants,
    tenant: &TenantParts,
    setting: &str,
    name: &str,
) -> Result<Secret, TenantError> {
    let all = open_secrets(&tenants.0.catalog, &tenants.0.seal, tenant.id)?;
    let found = all.into_iter().find(|(found, _)| &**found == name);
    let missing = || {
        format!(
            "{setting} names the secret '{name}', which this tenant does not have; store it with 'rollout-host \
             secret set {name}'"
        )
    };
    found.map(|(_, secret)| secret).ok_or_else(|| TenantError::Other(missing()))
}
