//! Resources that all deployments of a plugin share. Many of them exist once for each process or tenant.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use super::groups::Groups;
use super::journal::Journal;
use super::slots::{AdmissionQuotas, OverQuota, Slots};
use super::trajectory::ArtifactRoot;
use rollout_core::budget::Budget;
use rollout_core::storage::StorageQuota;
use rollout_core::telemetry::{Busy, LineBudget, Metrics};
use rollout_guest::engine::Engine;
use rollout_outbound::{ChatClient, Transport};

/// Maximum number of log lines about unscored rollouts in a second, at the default log level. A plugin that always
/// fails would otherwise write thousands of identical lines.
const UNSCORED_LINES_PER_SECOND: u32 = 10;

/// Parts of a runtime.
pub struct RuntimeSettings {
    /// The tenant, for the log. `None` in a process with one plugin.
    pub tenant: Option<Arc<str>>,
    /// The engine that compiles and runs guests.
    pub engine: Engine,
    /// The connections to models, judges and callers.
    pub transport: Transport,
    /// The client for models, over these connections.
    pub chat: ChatClient,
    /// The metrics, which the clients share.
    pub metrics: Arc<Metrics>,
    /// The memory budget of all rollouts together.
    pub budget: Budget,
    /// The slots and the queue.
    pub slots: Slots,
    /// Quotas over time, each of which must have room for a rollout.
    pub quotas: Vec<Arc<AdmissionQuotas>>,
    /// Root of the folders for trajectories and artifacts. `None` writes none.
    pub artifact_root: Option<Arc<ArtifactRoot>>,
    /// Folder of the event logs of guests. `None` writes none.
    pub event_log: Option<PathBuf>,
    /// The journal, with which rollouts survive a crash. `None` has no journal.
    pub journal: Option<Arc<Journal>>,
}

/// Resources that rollouts share: engine, outbound clients, slots, budget, metrics, and destinations of files.
pub struct Runtime {
    pub(super) settings: RuntimeSettings,
    pub(super) unscored_lines: LineBudget,
    journal: OnceLock<Arc<Journal>>,
    pub(super) groups: Arc<Groups>,
}

impl Runtime {
    /// Creates a runtime.
    pub fn new(mut settings: RuntimeSettings) -> Arc<Self> {
        if let Some(root) = &settings.artifact_root {
            root.keep_bounded();
        }
        let journal = settings.journal.take().map_or_else(OnceLock::new, OnceLock::from);
        let unscored_lines = LineBudget::new(UNSCORED_LINES_PER_SECOND);
        let groups = Groups::new(journal.get().map(|journal| journal.resumed()));
        Arc::new(Self { settings, unscored_lines, journal, groups })
    }

    /// Sets the journal for rollouts that are admitted from here on, unless there is one. This is for hosts that know
    /// their journal only after loading components.
    pub fn keep_in(&self, journal: Arc<Journal>) {
        // An existing journal may have rollouts already.
        let _ = self.journal.set(journal);
    }

    /// Returns the journal, if there is one.
    pub(super) fn journal(&self) -> Option<&Arc<Journal>> {
        self.journal.get()
    }

    /// Returns the slots and the queue.
    pub fn slots(&self) -> &Slots {
        &self.settings.slots
    }

    /// Checks that the quotas over time have room for one more rollout.
    pub(super) fn check_quotas(&self) -> Result<(), OverQuota> {
        self.settings.quotas.iter().try_for_each(|quotas| quotas.check())
    }

    /// Returns the quota of bytes on disk that running rollouts are charged to, if there is one.
    pub(super) fn storage(&self) -> Option<&Arc<StorageQuota>> {
        self.settings.quotas.iter().find_map(|quotas| quotas.storage())
    }

    /// Returns the engine.
    pub fn engine(&self) -> &Engine {
        &self.settings.engine
    }

    /// Returns the connections to models, judges and callers.
    pub fn transport(&self) -> &Transport {
        &self.settings.transport
    }

    /// Returns the memory budget of all rollouts together.
    pub fn budget(&self) -> &Budget {
        &self.settings.budget
    }

    /// Returns the metrics.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.settings.metrics
    }

    /// Returns the metrics, including the load, in Prometheus' text format. Reads files.
    pub fn metrics_text(&self) -> String {
        let load = self.slots().load();
        self.metrics().text(Busy::now(load.running, load.queued, load.max_concurrent, self.budget()))
    }
}
