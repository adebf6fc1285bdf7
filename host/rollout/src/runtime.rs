//! What the rollouts of a plugin have in common, whichever of its deployments runs them. Much of it is
//! what a process has once, or a tenant.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use super::journal::Journal;
use super::slots::{AdmissionQuotas, OverQuota, Slots};
use super::trajectory::ArtifactRoot;
use rollout_core::budget::Budget;
use rollout_core::telemetry::{Busy, LineBudget, Metrics};
use rollout_guest::engine::Engine;
use rollout_outbound::{ChatClient, Transport};

/// Lines about unscored rollouts that are logged in a second, unless everything is asked
/// for. A plugin that fails every time would write thousands, each saying the same.
const UNSCORED_LINES_PER_SECOND: u32 = 10;

/// What a runtime is made of.
pub struct RuntimeSettings {
    /// Whose it is, for the log; none where a process has one plugin.
    pub tenant: Option<Arc<str>>,
    /// What compiles and runs guests.
    pub engine: Engine,
    /// The connections to models, judges and callers.
    pub transport: Transport,
    /// The client that reaches the models, over these connections.
    pub chat: ChatClient,
    /// What is counted; the clients count in the same.
    pub metrics: Arc<Metrics>,
    /// The bytes that may be held for all rollouts together.
    pub budget: Budget,
    /// Who of its rollouts runs and who waits.
    pub slots: Slots,
    /// What they may use over time, each of which has to have room: none has no bound.
    pub quotas: Vec<Arc<AdmissionQuotas>>,
    /// Where trajectories and artifacts go; none keeps none.
    pub artifact_root: Option<Arc<ArtifactRoot>>,
    /// Where guests' events go, a file a rollout; none writes none.
    pub event_log: Option<PathBuf>,
    /// Where rollouts are kept, so that none that was admitted is lost; none keeps none.
    pub journal: Option<Arc<Journal>>,
}

/// What rollouts have in common: engine, outbound clients, slots, budget, metrics, and where is
/// written.
pub struct Runtime {
    pub(super) settings: RuntimeSettings,
    pub(super) unscored_lines: LineBudget,
    journal: OnceLock<Arc<Journal>>,
}

impl Runtime {
    /// A runtime with nothing in it.
    pub fn new(mut settings: RuntimeSettings) -> Arc<Self> {
        if let Some(root) = &settings.artifact_root {
            root.keep_bounded();
        }
        let journal = settings.journal.take().map_or_else(OnceLock::new, OnceLock::from);
        let unscored_lines = LineBudget::new(UNSCORED_LINES_PER_SECOND);
        Arc::new(Self { settings, unscored_lines, journal })
    }

    /// Keeps rollouts that are admitted from here on in this journal, where they are in none yet. For
    /// whoever knows only after components were loaded where its journal is.
    pub fn keep_in(&self, journal: Arc<Journal>) {
        // One that is there has rollouts in it already.
        let _ = self.journal.set(journal);
    }

    /// Where rollouts are kept, if they are.
    pub(super) fn journal(&self) -> Option<&Arc<Journal>> {
        self.journal.get()
    }

    /// Who of its rollouts runs and who waits.
    pub fn slots(&self) -> &Slots {
        &self.settings.slots
    }

    /// Whether one more rollout may be asked for, by what may be used over time.
    pub(super) fn check_quotas(&self) -> Result<(), OverQuota> {
        self.settings.quotas.iter().try_for_each(|quotas| quotas.check())
    }

    /// What compiles and runs guests.
    pub fn engine(&self) -> &Engine {
        &self.settings.engine
    }

    /// The connections to models, judges and callers.
    pub fn transport(&self) -> &Transport {
        &self.settings.transport
    }

    /// What may be held for all rollouts together.
    pub fn budget(&self) -> &Budget {
        &self.settings.budget
    }

    /// What is counted, for whoever has something to add.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.settings.metrics
    }

    /// What was counted, and how busy the runtime is, in Prometheus' text format. Reads
    /// files.
    pub fn metrics_text(&self) -> String {
        let load = self.slots().load();
        self.metrics().text(Busy::now(load.running, load.queued, load.max_concurrent, self.budget()))
    }
}
