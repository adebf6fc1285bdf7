//! Who gets in: slots, the queue, and ids in use.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::value::RawValue;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::RolloutRequest;
use super::account::UNSCORED_LINES_PER_SECOND;
use super::run::{AgentForm, LoopOptions, Rollout};
use crate::budget::{Budget, Holder, OverBudget, Use};
use crate::id::RolloutId;
use crate::imports::{Imports, LentTools, ModelAccess, Record, Role, RunContext};
use crate::instance::{self, Bounds, LoopRequest, Permit, RunError};
use crate::limits::Limits;
use crate::outbound::ChatClient;
use crate::plugin::Plugin;
use crate::telemetry::{Busy, LineBudget, Metrics, Refusal};

/// Instances that say what an agent loop offers, at once. They have no slot, because a
/// caller waits for the answer while its rollout waits for one; the engine has room for
/// a few beyond the slots.
const DECLARATIONS_MAX: usize = 4;

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

/// Why a rollout was not taken on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AdmitError {
    /// Every slot and every place in the queue is taken; try again later.
    #[error("full: {running_max} rollouts run and {queue_max} wait")]
    Full {
        /// Rollouts that run at once.
        running_max: u32,
        /// Rollouts that may wait.
        queue_max: u32,
    },
    /// Too much is held for others; try again later.
    #[error(transparent)]
    NoMemory(#[from] OverBudget),
    /// A rollout of this id is alive.
    #[error("a rollout of this id is alive")]
    Duplicate,
    /// The host takes no more rollouts.
    #[error("the host is shutting down")]
    Closed,
}

impl From<&AdmitError> for Refusal {
    fn from(error: &AdmitError) -> Self {
        match error {
            AdmitError::Full { .. } => Self::Full,
            AdmitError::NoMemory(_) => Self::Memory,
            AdmitError::Duplicate => Self::Duplicate,
            AdmitError::Closed => Self::Closed,
        }
    }
}

/// Where a live rollout stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It waits for a slot.
    Queued,
    /// Its workflow runs, or what came of that is being told.
    Running,
    /// Its grader runs, or what came of all is being written down.
    Grading,
}

/// How busy a host is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Rollouts that run at once, at the most.
    pub max_concurrent: u32,
    /// Rollouts that wait for a slot.
    pub queued: u32,
    /// Rollouts that have one.
    pub running: u32,
    /// Whether it takes rollouts.
    pub accepting: bool,
}

/// A view of a live rollout from outside.
#[derive(Clone, Debug)]
pub struct Handle {
    pub(super) cancel: CancellationToken,
    pub(super) phase: watch::Receiver<Phase>,
}

impl Handle {
    /// Stops the guest where it is. The rollout ends as cancelled.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Where it stands.
    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Waits until it is over and its id is free.
    pub async fn over(&self) {
        let mut phases = self.phase.clone();
        while phases.changed().await.is_ok() {}
    }

    /// Its phases as they come; closed when it is over.
    pub fn phases(&self) -> watch::Receiver<Phase> {
        self.phase.clone()
    }
}

pub(super) struct Inner {
    pub settings: HostSettings,
    pub plugin_config: Option<Arc<RawValue>>,
    pub grader_config: Option<Arc<RawValue>>,
    pub limits: Arc<Limits>,
    slots: Arc<Semaphore>,
    /// Held by the one rollout of the queue that waits for a slot, so that a rollout that had
    /// a slot before waits behind no more than one that has not.
    head_of_queue: tokio::sync::Mutex<()>,
    /// Instances at once that say what an agent loop offers, beside those with a slot.
    pub declarations: Arc<Semaphore>,
    pub unscored_lines: LineBudget,
    live: Mutex<HashMap<RolloutId, Handle>>,
    live_count: watch::Sender<usize>,
    queued: AtomicUsize,
    closed: AtomicBool,
    stop: CancellationToken,
}

impl Inner {
    /// Waits for a slot in the queue. None when the host is shutting down.
    pub async fn first_slot(&self) -> Option<OwnedSemaphorePermit> {
        let _head = self.head_of_queue.lock().await;
        self.next_slot().await
    }

    /// Waits for a slot before those in the queue, for a rollout that gave its own back. That
    /// starves nobody: each has come through the queue, and comes back once.
    pub async fn next_slot(&self) -> Option<OwnedSemaphorePermit> {
        self.slots.clone().acquire_owned().await.ok()
    }

    fn live(&self) -> MutexGuard<'_, HashMap<RolloutId, Handle>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place among the live rollouts, given back when it is dropped.
pub(super) struct Place {
    host: Arc<Inner>,
    id: RolloutId,
    waiting: bool,
}

impl Place {
    /// It has a slot now and waits no longer.
    pub fn leaves_queue(&mut self) {
        if std::mem::take(&mut self.waiting) {
            self.host.queued.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.leaves_queue();
        let count = {
            let mut live = self.host.live();
            live.remove(&self.id);
            live.len()
        };
        self.host.live_count.send_replace(count);
    }
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
            slots: Arc::new(Semaphore::new(settings.max_concurrent as usize)),
            head_of_queue: tokio::sync::Mutex::default(),
            declarations: Arc::new(Semaphore::new(DECLARATIONS_MAX)),
            unscored_lines: LineBudget::new(UNSCORED_LINES_PER_SECOND),
            live: Mutex::default(),
            live_count: watch::Sender::new(0),
            queued: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            stop: CancellationToken::new(),
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

    /// Takes a rollout on, or says at once why not. In a box, because every future that it
    /// is handed through would have its size again, for as long as it waits.
    pub fn admit(&self, request: RolloutRequest) -> Result<Box<Rollout>, AdmitError> {
        let admitted = self.take_on(request);
        match &admitted {
            Ok(_) => self.metrics().accepted(),
            Err(error) => self.metrics().refused(error.into()),
        }
        admitted
    }

    fn take_on(&self, request: RolloutRequest) -> Result<Box<Rollout>, AdmitError> {
        let inner = &self.0;
        let settings = &inner.settings;
        // Its request is charged already; whether there is room for what it will do is
        // asked without one.
        settings.budget.check_new_work(0)?;
        let (phase_sender, phase) = watch::channel(Phase::Queued);
        let handle = Handle { cancel: inner.stop.child_token(), phase };
        {
            let mut live = inner.live();
            if inner.closed.load(Ordering::Relaxed) {
                return Err(AdmitError::Closed);
            }
            if live.contains_key(&request.id) {
                return Err(AdmitError::Duplicate);
            }
            if live.len() >= settings.max_concurrent as usize + settings.queue_max as usize {
                let (running_max, queue_max) = (settings.max_concurrent, settings.queue_max);
                return Err(AdmitError::Full { running_max, queue_max });
            }
            live.insert(request.id.clone(), handle.clone());
            inner.queued.fetch_add(1, Ordering::Relaxed);
            inner.live_count.send_replace(live.len());
        }
        let place = Place { host: inner.clone(), id: request.id.clone(), waiting: true };
        Ok(Box::new(Rollout::new(self.clone(), request, place, handle, phase_sender)))
    }

    /// A live rollout.
    pub fn find(&self, id: &RolloutId) -> Option<Handle> {
        self.0.live().get(id).cloned()
    }

    /// The ids of the live rollouts that the test holds for.
    pub fn live_ids(&self, matches: impl Fn(&RolloutId) -> bool) -> Vec<RolloutId> {
        self.0.live().keys().filter(|id| matches(id)).cloned().collect()
    }

    /// How busy it is.
    pub fn load(&self) -> Load {
        let live = self.0.live().len();
        let queued = self.0.queued.load(Ordering::Relaxed).min(live);
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Load {
            max_concurrent: self.0.settings.max_concurrent,
            queued: count(queued),
            running: count(live - queued),
            accepting: !self.0.closed.load(Ordering::Relaxed),
        }
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
        // Under the lock, so that no admission that saw it open is still to be counted.
        let _live = self.0.live();
        self.0.closed.store(true, Ordering::Relaxed);
    }

    /// Cancels every live rollout.
    pub fn cancel_all(&self) {
        self.0.stop.cancel();
    }

    /// Waits until no rollout is alive.
    pub async fn idle(&self) {
        let mut count = self.0.live_count.subscribe();
        // The sender is in `self`, so it cannot be gone.
        let _ = count.wait_for(|count| *count == 0).await;
    }
}
