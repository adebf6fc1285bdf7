//! One plugin that is in use: its slots, its protocols, and the deployment that new rollouts get.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use axum::Router;
use tokio::time::Instant;

use super::tenant::{Tenant, allowance, share};
use super::{Tenants, Unusable};
use crate::Server;
use crate::admin::opened_secrets;
use crate::serving::Serving;
use rollout_assembly::{Deployed, NotLoaded, Placed, Sources};
use rollout_catalog::{Deployment, Quotas as CatalogQuotas};
use rollout_core::error::Fault;
use rollout_core::telemetry::{Meter, Metrics};
use rollout_outbound::Secret;
use rollout_rollout::{Host, Quotas, Runtime, RuntimeSettings, ServedAs, Share, Slots, Whose};

/// See above.
pub(super) struct Plugin {
    name: String,
    tenant: Weak<Tenant>,
    parts: Parts,
    server: Server,
    router: Router,
    state: Mutex<State>,
    last_used: AtomicU64,
}

/// What all deployments of a plugin have in common.
struct Parts {
    slots: Slots,
    quotas: Arc<Quotas>,
    metrics: Arc<Metrics>,
}

struct State {
    version: u32,
    code_bytes: u64,
    /// What the active deployment says of how many run at once.
    running_max: u32,
    quotas: CatalogQuotas,
    /// Deployments besides the active one, which are there for as long as rollouts run on them.
    others: Vec<(u32, Weak<rollout_rollout::Deployment>)>,
}

/// A deployment as it was brought in.
struct Loaded {
    host: Host,
    agent_name: String,
    running_max: u32,
    code_bytes: u64,
}

impl State {
    /// Rollouts run on this deployment that new ones do not get. One version may be there several times.
    fn leave(&mut self, version: u32, deployment: Weak<rollout_rollout::Deployment>) {
        self.others.retain(|(_, deployment)| deployment.strong_count() > 0);
        self.others.push((version, deployment));
    }
}

/// What counts who was used last.
static CLOCK: AtomicU64 = AtomicU64::new(1);

impl Plugin {
    /// Brings in a plugin's active version, or this one.
    pub(super) async fn load(
        tenants: &Tenants,
        tenant: &Arc<Tenant>,
        name: &str,
        version: Option<u32>,
    ) -> Result<Arc<Self>, Unusable> {
        let (catalog, id, asked) = (tenants.0.catalog.clone(), tenant.id, name.to_owned());
        let about = blocking(move || Ok(catalog.plugin(id, &asked)?)).await?;
        let Some(version) = version.or(about.active) else {
            return Err(Unusable::NotThere(format!("no version of plugin '{name}' is active")));
        };
        let labels = [("tenant", tenant.name.to_string()), ("plugin", name.to_owned())];
        let labels = labels.map(|(label, value)| (label.to_owned(), value));
        let meter = Arc::new(Meter::default());
        let meters = vec![tenant.quotas.meter().clone(), meter.clone()];
        let parts = Parts {
            slots: tenant.slots.plugin(share(&about.quotas)),
            quotas: Arc::new(Quotas::new(Whose::Plugin, allowance(&about.quotas), meter)),
            metrics: Arc::new(Metrics::of(HashMap::from(labels), meters)),
        };
        if let Some(traces) = tenants.0.traces.get() {
            parts.metrics.trace_with(traces.clone());
        }
        let Loaded { host, agent_name, running_max, code_bytes } =
            deployed(tenants, tenant, &parts, name, version).await?;
        let server = Server::of_plugin(Serving::new(host, agent_name), &tenants.0.config);
        let plugin = Self {
            name: name.to_owned(),
            tenant: Arc::downgrade(tenant),
            router: server.plugin_router(),
            server,
            state: Mutex::new(State {
                version,
                code_bytes,
                running_max,
                quotas: about.quotas,
                others: Vec::new(),
            }),
            parts,
            last_used: AtomicU64::new(CLOCK.fetch_add(1, Ordering::Relaxed)),
        };
        plugin.share_anew();
        tracing::info!(tenant = %tenant.name, plugin = name, version, "plugin brought in");
        Ok(Arc::new(plugin))
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn server(&self) -> Server {
        self.server.clone()
    }

    pub(super) fn router(&self) -> Router {
        self.router.clone()
    }

    /// What is counted of it, with how busy it is now.
    pub(super) fn counted(&self) -> Arc<Metrics> {
        let load = self.parts.slots.load();
        self.parts.metrics.is_busy(load.running, load.queued, load.max_concurrent);
        self.parts.metrics.clone()
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn code_bytes(&self) -> u64 {
        self.state().code_bytes
    }

    /// It was used just now.
    pub(super) fn is_used(&self) {
        self.last_used.store(CLOCK.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    }

    pub(super) fn last_used(&self) -> u64 {
        self.last_used.load(Ordering::Relaxed)
    }

    /// From now on new rollouts get this version.
    pub(super) async fn become_version(
        &self,
        tenants: &Tenants,
        tenant: &Arc<Tenant>,
        version: u32,
    ) -> Result<(), Unusable> {
        let Loaded { host, agent_name, running_max, code_bytes } =
            deployed(tenants, tenant, &self.parts, &self.name, version).await?;
        let before = {
            let mut state = self.state();
            (state.code_bytes, state.running_max) = (code_bytes, running_max);
            let before = std::mem::replace(&mut state.version, version);
            let left = Arc::downgrade(self.server.serving().host().deployment());
            state.leave(before, left);
            self.server.become_host(host, agent_name);
            before
        };
        self.share_anew();
        tracing::info!(tenant = %tenant.name, plugin = self.name, before, version, "another version is active");
        Ok(())
    }

    /// The host of a version, for rollouts that began with it.
    pub(super) async fn host_of(
        &self,
        tenants: &Tenants,
        tenant: &Arc<Tenant>,
        version: u32,
    ) -> Result<Host, Unusable> {
        {
            let state = self.state();
            if state.version == version {
                return Ok(self.server.serving().host());
            }
        }
        let Loaded { host, .. } = deployed(tenants, tenant, &self.parts, &self.name, version).await?;
        self.state().leave(version, Arc::downgrade(host.deployment()));
        Ok(host)
    }

    /// The versions that new rollouts get, or that rollouts still run on.
    pub(super) fn versions(&self) -> Vec<u32> {
        let state = self.state();
        let others = state.others.iter().filter(|(_, deployment)| deployment.strong_count() > 0);
        others.map(|(version, _)| *version).chain([state.version]).collect()
    }

    /// Its quotas are these now.
    pub(super) fn read_again(&self, quotas: &CatalogQuotas) {
        self.state().quotas = quotas.clone();
        self.parts.quotas.set(allowance(quotas));
        self.share_anew();
    }

    fn share_anew(&self) {
        let state = self.state();
        let share = share(&state.quotas);
        self.parts.slots.set_share(Share { running_max: share.running_max.min(state.running_max), ..share });
    }

    /// Lets go of it where nobody uses it, and says whether it is gone.
    pub(super) fn unload(&self) -> bool {
        let Some(tenant) = self.tenant.upgrade() else { return false };
        let goes = tenant.unload(self, || self.server.is_idle());
        if goes {
            tracing::debug!(tenant = %tenant.name, plugin = self.name, "a plugin that nobody uses was let go of");
        }
        goes
    }

    /// Cancels what runs of it, and waits until its callers have heard, or until then.
    pub(super) async fn end(&self, until: Instant) {
        self.parts.slots.close();
        self.parts.slots.cancel_all();
        self.server.report_cancelled(until).await;
    }
}

/// Does what waits for the disk apart.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Unusable> + Send + 'static,
) -> Result<T, Unusable> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(Unusable::Other(error.to_string())))
}

/// Brings a deployment in.
async fn deployed(
    tenants: &Tenants,
    tenant: &Arc<Tenant>,
    parts: &Parts,
    name: &str,
    version: u32,
) -> Result<Loaded, Unusable> {
    let closed = |_| Unusable::Other("this server ends".to_owned());
    let _own_turn = tenant.turn.lock().await;
    let _turn = tenants.0.starting.acquire().await.map_err(closed)?;
    let (own, of_tenant, metrics) = (tenants.clone(), tenant.clone(), parts.metrics.clone());
    let (slots, quotas, name) = (parts.slots.clone(), parts.quotas.clone(), name.to_owned());
    let runtime = tokio::runtime::Handle::current();
    blocking(move || {
        let (inner, tenant) = (&own.0, &of_tenant);
        let found = inner.catalog.deployment(tenant.id, &name, version)?;
        let Deployment { info, config, report: _ } = found;
        let at = format!("the configuration of version {version} of {name}");
        let config = inner.operators.for_tenant(config.as_deref().unwrap_or_default(), &at)?;
        let component = inner.catalog.component_path(info.component);
        let grader: Option<PathBuf> = info.grader.map(|grader| inner.catalog.component_path(grader));
        let shown = PathBuf::from(&name);
        let sources = Sources { plugin: &component, shown: &shown, grader: grader.as_deref() };
        let judge = config.judge.as_ref().and_then(|judge| judge.api_key_env.as_deref());
        let placed = Placed {
            transport: &tenant.transport,
            metrics: &metrics,
            judge_key: judge.map(|secret| secret_of(&own, tenant, secret)).transpose()?,
            served_as: ServedAs { plugin: name.clone(), version },
        };
        let no_files = OnceLock::new();
        let deploying = inner.platform.deploy(&config, sources, placed, |engine, path| {
            let component = {
                // Only what is loaded takes this turn. A guest that is started after that, and waits, holds up no loading.
                let _turn = inner.loading.take();
                (inner.load)(engine, path)?
            };
            let held = own.take_plugin_files(tenant.id, component.open_files()).map_err(|why| {
                let reason = no_files.get_or_init(|| why).to_string();
                NotLoaded { fault: Fault::Host, reason }
            })?;
            Ok(component.holding(Arc::new(held)))
        });
        let deployed = runtime.block_on(deploying);
        let Deployed { deployment, chat, settings, .. } = match no_files.get() {
            Some(why) => return Err(Unusable::NoRoom(why.to_string())),
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
        let agent_name = agent_name
            .map_err(|error| Unusable::Other(format!("the agent loop does not say its name: it {error}")))?;
        let running_max = settings.max_concurrent.unwrap_or(u32::MAX);
        Ok(Loaded { host, agent_name: agent_name.unwrap_or(name), running_max, code_bytes })
    })
    .await
}

/// A key that a tenant's configuration names. It is the tenant's own, never the host's.
fn secret_of(tenants: &Tenants, tenant: &Tenant, name: &str) -> Result<Secret, Unusable> {
    let all = opened_secrets(&tenants.0.catalog, &tenants.0.seal, tenant.id)?;
    let found = all.into_iter().find(|(found, _)| &**found == name);
    let missing = || {
        format!(
            "judge.api-key-env names the secret '{name}', which this tenant does not have; rollout-host secret set \
             {name} stores it"
        )
    };
    found.map(|(_, secret)| secret).ok_or_else(|| Unusable::Other(missing()))
}
