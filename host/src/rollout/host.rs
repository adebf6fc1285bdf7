//! What runs rollouts: the plugins, what each rollout may use, and the clients it is given.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::model::{AgentForm, LoopOptions, RolloutRequest};
use super::slots::{AdmitError, Entered, Handle, Load, Slots};
use crate::budget::{Budget, Holder, Use};
use crate::id::RolloutId;
use crate::imports::{Imports, LentTools, ModelAccess, Record, Role, RunContext};
use crate::instance::{self, Bounds, LoopRequest, Permit, RunError};
use crate::limits::Limits;
use crate::outbound::ChatClient;
use crate::plugin::Plugin;
use crate::telemetry::{Busy, LineBudget, Metrics};

/// Lines about unscored rollouts that are logged in a second, unless everything is asked
/// for. A plugin that fails every time would write thousands, each saying the same.
const UNSCORED_LINES_PER_SECOND: u32 = 10;

/// The host of one workflow and, perhaps, its grader. Cheap to clone.
#[derive(Clone)]
pub struct Host(pub(super) Arc<Inner>);

/// What a host is made of.
pub struct HostSettings {
    /// The plugin with the agent loop.
    pub workflow: Plugin,
    /// A plugin with the reward function, in place of the workflow's own.
    pub grader: Option<Plugin>,
    /// Rollouts that run at once.
    pub max_concurrent: u32,
    /// Rollouts that may wait for one of those to end.
    pub queue_max: u32,
    /// What each rollout may use.
    pub limits: Limits,
    /// The configuration of the workflow's plugin, a JSON object.
    pub plugin_config: Option<Box<RawValue>>,
    /// The tools that are lent to the workflow.
    pub tools: Option<Arc<dyn LentTools>>,
    /// The configuration of the grader where that is a component of its own.
    pub grader_config: Option<Box<RawValue>>,
    /// The client that reaches the models.
    pub chat: ChatClient,
    /// The model that judges for graders, where there is one.
    pub judge: Option<ModelAccess>,
    /// Where trajectories and artifacts go; none keeps none.
    pub artifact_root: Option<PathBuf>,
    /// Where guests' events go, a file a rollout; none writes none.
    pub event_log: Option<PathBuf>,
    /// What the host counts; its clients count in the same.
    pub metrics: Arc<Metrics>,
    /// The bytes that may be held for all rollouts together.
    pub budget: Budget,
}

/// What instances need before they do anything.
#[derive(Clone, Copy, Debug)]
pub struct Started {
    /// The time that the workflow's took to start.
    pub took: Duration,
    /// The memory, in bytes, that the larger of workflow and grader has then.
    pub memory_bytes: usize,
}

impl HostSettings {
    /// Makes an instance of every plugin and drops it, so that one that cannot start is
    /// known before the first rollout.
    pub async fn try_start(&self) -> Result<Started, (Role, RunError)> {
        let limits = Arc::new(self.limits.clone());
        let mut all = Started { took: Duration::ZERO, memory_bytes: 0 };
        let plugins = [(Role::Grader, self.grader.as_ref()), (Role::Workflow, Some(&self.workflow))];
        for (role, plugin) in plugins {
            let Some(plugin) = plugin else { continue };
            let record = Arc::new(Record::of_no_rollout(self.holder()));
            let made = self.of_no_rollout("try-start", role, &limits, record.clone());
            let (imports, bounds) = made.map_err(|error| (role, error))?;
            let started = instance::try_start(plugin.linked(), imports, bounds).await;
            all.took = started.map_err(|error| (role, error))?;
            all.memory_bytes = all.memory_bytes.max(record.spent().memory_bytes_peak);
        }
        Ok(all)
    }

    /// What an instance needs that belongs to no rollout.
    fn of_no_rollout(
        &self,
        id: &str,
        role: Role,
        limits: &Arc<Limits>,
        record: Arc<Record>,
    ) -> Result<(Imports, Bounds), RunError> {
        let id = RolloutId::parse(id).map_err(|error| RunError::Host(error.to_string()))?;
        let config = self.plugin_config.clone().map(Into::into);
        let run = RunContext::of_no_rollout(id, config, self.metrics.clone());
        let deadline = Some(Instant::now() + limits.workflow_time_max);
        // They are made before the host has rollouts.
        let permit = Permit::alone();
        let bounds = Bounds { memory_bytes_max: limits.memory_bytes_max, deadline, permit };
        let imports = Imports::bare(role, Arc::new(run), limits.clone(), deadline, record);
        Ok((imports, bounds))
    }

    /// The same, for an instance that says what a plugin is.
    fn declaration(&self, limits: &Arc<Limits>) -> Result<(Imports, Bounds), RunError> {
        let record = Record::of_no_rollout(self.holder());
        self.of_no_rollout("declaration", Role::Declaration, limits, Arc::new(record))
    }

    /// Holds what an instance of no rollout takes.
    fn holder(&self) -> Holder {
        self.budget.holder(CancellationToken::new())
    }
}

/// Why there is no host.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// The plugin has no agent loop.
    #[error(
        "the plugin exports no workflow and no agent loop; give the component with one of them, and a \
         component that only grades by --grader"
    )]
    NoWorkflow,
    /// The grader's plugin has no reward function.
    #[error("the component given by --grader exports no grader")]
    NoGrader,
}

pub(super) struct Inner {
    pub settings: HostSettings,
    pub plugin_config: Option<Arc<RawValue>>,
    pub grader_config: Option<Arc<RawValue>>,
    pub limits: Arc<Limits>,
    pub slots: Slots,
    pub unscored_lines: LineBudget,
}

impl Host {
    /// A host of these plugins.
    pub fn new(settings: HostSettings) -> Result<Self, HostError> {
        if !settings.workflow.about().workflow && !settings.workflow.about().agent_loop {
            return Err(HostError::NoWorkflow);
        }
        if settings.grader.as_ref().is_some_and(|grader| !grader.about().grader) {
            return Err(HostError::NoGrader);
        }
        Ok(Self(Arc::new(Inner {
            plugin_config: settings.plugin_config.clone().map(Into::into),
            grader_config: settings.grader_config.clone().map(Into::into),
            limits: Arc::new(settings.limits.clone()),
            slots: Slots::new(settings.max_concurrent, settings.queue_max),
            unscored_lines: LineBudget::new(UNSCORED_LINES_PER_SECOND),
            settings,
        })))
    }

    /// The plugin that grades: the one given for it, or the workflow's own.
    pub fn grader(&self) -> Option<&Plugin> {
        let settings = &self.0.settings;
        settings.grader.as_ref().or_else(|| Some(&settings.workflow).filter(|plugin| plugin.about().grader))
    }

    /// The form of agent that it runs.
    pub fn form(&self) -> AgentForm {
        match self.0.settings.workflow.about().agent_loop {
            true => AgentForm::AgentLoop,
            false => AgentForm::Workflow,
        }
    }

    /// Asks an agent loop for its name; a workflow has none.
    pub async fn agent_name(&self) -> Result<Option<String>, RunError> {
        if self.form() == AgentForm::Workflow {
            return Ok(None);
        }
        let (imports, bounds) = self.0.settings.declaration(&self.0.limits)?;
        instance::agent_loop_name(self.0.settings.workflow.linked(), imports, bounds).await.map(Some)
    }

    /// Asks an agent loop which tools it offers to a request that asks for nothing in
    /// particular; a workflow has none to tell.
    pub async fn usual_tools(&self) -> Result<Vec<String>, RunError> {
        if self.form() == AgentForm::Workflow {
            return Ok(Vec::new());
        }
        let (imports, bounds) = self.0.settings.declaration(&self.0.limits)?;
        let LoopOptions { max_turns, max_tokens_total, completion_params: _ } = LoopOptions::default();
        let request = LoopRequest {
            messages: vec![r#"{"role":"user","content":"Which tools are there?"}"#.to_owned()],
            max_turns,
            max_tokens_total,
            completion_params: "{}".to_owned(),
        };
        instance::agent_loop_tools(self.0.settings.workflow.linked(), imports, bounds, request).await
    }

    /// Lets a rollout in, if there is room for what it will do. Its request is charged already.
    pub(super) fn enter(&self, request: &RolloutRequest) -> Result<Entered, AdmitError> {
        self.budget().check_new_work(0)?;
        self.0.slots.enter(&request.id)
    }

    /// A live rollout.
    pub fn find(&self, id: &RolloutId) -> Option<Handle> {
        self.0.slots.find(id)
    }

    /// The ids of the live rollouts that the test holds for.
    pub fn live_ids(&self, matches: impl Fn(&RolloutId) -> bool) -> Vec<RolloutId> {
        self.0.slots.live_ids(matches)
    }

    /// How busy it is.
    pub fn load(&self) -> Load {
        self.0.slots.load()
    }

    /// What may be held for all rollouts together.
    pub fn budget(&self) -> &Budget {
        &self.0.settings.budget
    }

    /// What is counted, for whoever has something to add.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.0.settings.metrics
    }

    /// What was counted, and how busy the host is, in Prometheus' text format. Reads
    /// files.
    pub fn metrics_text(&self) -> String {
        let Load { max_concurrent, queued, running, accepting: _ } = self.load();
        let budget = self.budget();
        self.metrics().text(Busy {
            running,
            queued,
            running_max: max_concurrent,
            held_bytes: Use::ALL.map(|use_| (use_.as_str(), budget.used_for(use_))),
            held_bytes_max: budget.total(),
        })
    }

    /// Takes no more rollouts.
    pub fn close(&self) {
        self.0.slots.close();
    }

    /// Cancels every live rollout.
    pub fn cancel_all(&self) {
        self.0.slots.cancel_all();
    }

    /// Waits until no rollout is alive.
    pub async fn idle(&self) {
        self.0.slots.idle().await;
    }
}
