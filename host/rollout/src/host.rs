//! A host: a deployment on a runtime, which admits rollouts and reports on them.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::deployment::Deployment;
use super::journal::Journal;
use super::model::{AgentForm, LoopOptions, RolloutRequest};
use super::runtime::Runtime;
use super::slots::{AdmitError, Entered, Handle, Load};
use rollout_core::budget::Budget;
use rollout_core::telemetry::Metrics;
use rollout_guest::imports::{Imports, Record, Role};
use rollout_guest::instance::{self, Bounds, LoopRequest, RunError};
use rollout_guest::plugin::Plugin;
use rollout_wire::id::RolloutId;

/// A deployment on a runtime. Cheap to clone.
#[derive(Clone)]
pub struct Host(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub runtime: Arc<Runtime>,
    pub deployment: Arc<Deployment>,
}

impl Host {
    /// Creates a host. Deployments of one runtime share its slots and its budget.
    pub fn new(runtime: Arc<Runtime>, deployment: Arc<Deployment>) -> Self {
        Self(Arc::new(Inner { runtime, deployment }))
    }

    /// Returns its runtime.
    pub fn runtime(&self) -> &Arc<Runtime> {
        &self.0.runtime
    }

    /// Returns its deployment.
    pub fn deployment(&self) -> &Arc<Deployment> {
        &self.0.deployment
    }

    /// Returns the plugin that grades: the separate grader, or the workflow's own.
    pub fn grader(&self) -> Option<&Plugin> {
        self.0.deployment.grader()
    }

    /// Returns the form of its agent.
    pub fn form(&self) -> AgentForm {
        self.0.deployment.form()
    }

    /// Returns imports and bounds for an instance that describes the plugin.
    fn declaration(&self) -> Result<(Imports, Bounds), RunError> {
        let holder = self.budget().holder(CancellationToken::new());
        let record = Arc::new(Record::without_rollout(holder));
        self.0.deployment.imports_without_rollout("declaration", Role::Declaration, self.metrics(), record)
    }

    /// Asks an agent loop for its name. Returns `None` for other forms of an agent.
    pub async fn agent_name(&self) -> Result<Option<String>, RunError> {
        if self.form() != AgentForm::AgentLoop {
            return Ok(None);
        }
        let (imports, bounds) = self.declaration()?;
        instance::agent_loop_name(self.0.deployment.workflow.linked(), imports, bounds).await.map(Some)
    }

    /// Asks an agent loop for the tools that it offers to a request without options. Returns none for other forms
    /// of an agent.
    pub async fn usual_tools(&self) -> Result<Vec<String>, RunError> {
        if self.form() != AgentForm::AgentLoop {
            return Ok(Vec::new());
        }
        let (imports, bounds) = self.declaration()?;
        let LoopOptions { max_turns, max_tokens_total, turns_max: _, completion_params: _ } =
            LoopOptions::default();
        let request = LoopRequest {
            messages: vec![r#"{"role":"user","content":"Which tools are there?"}"#.to_owned()],
            max_turns,
            max_tokens_total,
            completion_params: "{}".to_owned(),
        };
        instance::agent_loop_tools(self.0.deployment.workflow.linked(), imports, bounds, request).await
    }

    /// Admits a rollout to the queue if there is room for it. Its request is charged already.
    pub(super) fn enter(&self, request: &RolloutRequest) -> Result<Entered, AdmitError> {
        self.0.runtime.check_quotas()?;
        self.enter_within_quotas(request)
    }

    /// Admits a rollout to the queue whose quotas were checked before, because each check of the quota of requests
    /// counts as one.
    pub(super) fn enter_within_quotas(&self, request: &RolloutRequest) -> Result<Entered, AdmitError> {
        self.budget().check_new_work(0)?;
        self.check_journal()?;
        self.0.runtime.slots().enter(&request.id, false)
    }

    /// Checks whether a rollout would be admitted, before its history is read. It may still be refused afterwards.
    pub(super) fn check_entry(&self, request: &RolloutRequest) -> Result<(), AdmitError> {
        self.check_journal()?;
        self.0.runtime.check_quotas()?;
        self.budget().check_new_work(0)?;
        self.0.runtime.slots().check(&request.id)
    }

    /// Checks whether rollouts are admitted, apart from their number. The check does not count as a request.
    pub fn check_admission(&self) -> Result<(), AdmitError> {
        if !self.load().accepting {
            return Err(AdmitError::Closed);
        }
        self.budget().check_new_work(0)?;
        self.check_journal()
    }

    /// Checks whether the journal can store admitted rollouts.
    fn check_journal(&self) -> Result<(), AdmitError> {
        let journal = self.0.runtime.journal();
        journal.map_or(Ok(()), |journal| journal.check()).map_err(AdmitError::from)
    }

    /// Checks the journal for a driver that is about to refuse a rollout for another, less informative reason: its id
    /// may seem taken because its rollout could not be stored.
    pub fn check_journal_for_refusal(&self) -> Result<(), AdmitError> {
        self.check_journal().inspect_err(|error| self.metrics().refused(error.into()))
    }

    /// Returns a live rollout.
    pub fn find(&self, id: &RolloutId) -> Option<Handle> {
        self.0.runtime.slots().find(id)
    }

    /// Returns the ids of the live rollouts that match.
    pub fn live_ids(&self, matches: impl Fn(&RolloutId) -> bool) -> Vec<RolloutId> {
        self.0.runtime.slots().live_ids(matches)
    }

    /// Returns the current load.
    pub fn load(&self) -> Load {
        self.0.runtime.slots().load()
    }

    /// Returns the number of further rollouts that would have a slot. Negative if rollouts wait.
    pub fn room(&self) -> i64 {
        self.0.runtime.slots().room()
    }

    /// Returns the maximum time of a rollout in its slot.
    pub fn time_max(&self) -> std::time::Duration {
        let limits = &self.0.deployment.limits;
        limits.workflow_time_max.saturating_add(limits.grader_time_max)
    }

    /// Waits until there are no live rollouts.
    pub async fn idle(&self) {
        self.0.runtime.slots().idle().await;
    }

    /// Returns the budget of all rollouts together.
    pub fn budget(&self) -> &Budget {
        self.0.runtime.budget()
    }

    /// Returns the metrics.
    pub fn metrics(&self) -> &Arc<Metrics> {
        self.0.runtime.metrics()
    }

    /// Returns the metrics, including the load, in Prometheus' text format. Reads files.
    pub fn metrics_text(&self) -> String {
        self.0.runtime.metrics_text()
    }

    /// Stops admitting rollouts.
    pub fn close(&self) {
        self.0.runtime.slots().close();
    }

    /// Returns the journal, if there is one.
    pub fn journal(&self) -> Option<&Arc<Journal>> {
        self.0.runtime.journal()
    }

    /// Returns whether rollouts are in a journal, so that another process resumes those that this one leaves.
    pub fn is_kept(&self) -> bool {
        self.0.runtime.journal().is_some()
    }

    /// Cancels every live rollout.
    pub fn cancel_all(&self) {
        self.0.runtime.slots().cancel_all();
    }
}
