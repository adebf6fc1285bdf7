//! A server of one plugin, as its pages show it.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use subtle::ConstantTimeEq;

use crate::Server;
use crate::ui::{NotShown, Scope, Viewed, Viewer};
use rollout_core::telemetry::Metrics;
use rollout_outbound::Secret;
use rollout_page::{Gauge, LoadSample, PluginSource, TenantLine, bytes, number};

/// A server of one plugin whose pages are shown.
pub(super) struct ViewedServer {
    pub server: Server,
    /// Whether browsers connect by TLS.
    pub is_encrypted: bool,
    pub metrics: Arc<Metrics>,
}

impl Viewed for ViewedServer {
    fn name(&self) -> String {
        self.server.0.serving.now().agent_name.clone()
    }

    fn is_keyed(&self) -> bool {
        self.server.0.access.is_keyed
    }

    fn is_encrypted(&self) -> bool {
        self.is_encrypted
    }

    fn is_behind_gateway(&self) -> bool {
        self.server.0.worker.is_some()
    }

    fn viewer(&self, key: &str) -> Option<Viewer> {
        let server_key = self.server.0.access.server_key.as_ref()?;
        let is_valid: bool = server_key.expose().as_bytes().ct_eq(key.as_bytes()).into();
        is_valid.then(|| Viewer {
            tenant: None,
            is_operator: false,
            rights: "server key".to_owned(),
            may_activate: false,
        })
    }

    fn anyone(&self) -> Viewer {
        Viewer { tenant: None, is_operator: false, rights: String::new(), may_activate: false }
    }

    fn scope(&self, _: Viewer, _: Option<String>) -> BoxFuture<'_, Result<Scope, NotShown>> {
        let host = self.server.0.serving.host();
        let scope = Scope {
            number: 0,
            slots: host.runtime().slots().tenant().clone(),
            journal: host.journal().cloned(),
            budget: host.budget().clone(),
            plugins: Vec::new(),
            gauges: self.process_gauges(),
            quotas: Vec::new(),
            load: self.load(),
        };
        async { Ok(scope) }.boxed()
    }

    fn tenants(&self) -> Vec<TenantLine> {
        Vec::new()
    }

    fn process_gauges(&self) -> Vec<Gauge> {
        let host = self.server.0.serving.host();
        let (load, budget) = (host.load(), host.budget());
        vec![
            Gauge::new("running", load.running.into(), load.max_concurrent.into(), number),
            Gauge::new("memory", budget.used() as u64, budget.total() as u64, bytes),
        ]
    }

    fn loads(&self) -> Vec<(i64, LoadSample)> {
        vec![(0, self.load())]
    }

    fn plugin(
        &self,
        _: Viewer,
        _: Option<String>,
        _: String,
    ) -> BoxFuture<'_, Result<PluginSource, NotShown>> {
        async { Err(no_plugins()) }.boxed()
    }

    fn activate(
        &self,
        _: Secret,
        _: Option<String>,
        _: String,
        _: Option<u32>,
    ) -> BoxFuture<'_, Result<(), NotShown>> {
        async { Err(no_plugins()) }.boxed()
    }

    fn is_accepting(&self) -> bool {
        self.server.load().accepting
    }

    fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }
}

impl ViewedServer {
    fn load(&self) -> LoadSample {
        let host = self.server.0.serving.host();
        let counts = host.runtime().slots().tenant().activity().counts();
        LoadSample {
            running: host.load().running.into(),
            memory_bytes: Some(host.budget().used() as u64),
            ended: counts.scored + counts.unscored,
            tokens: counts.tokens,
            guest_cpu: counts.guest_cpu,
            ..LoadSample::default()
        }
    }
}

fn no_plugins() -> NotShown {
    let reason = "This server has one plugin, which is chosen when it starts.".to_owned();
    NotShown::Missing { title: "No such plugin", reason }
}
