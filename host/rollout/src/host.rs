//! A deployment on a runtime: what admits rollouts and answers for them.

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

/// A deployment that runs on a runtime. Cheap to clone.
#[derive(Clone)]
pub struct Host(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub runtime: Arc<Runtime>,
    pub deployment: Arc<Deployment>,
}

impl Host {
    /// A host of this deployment. Deployments of one runtime share its slots and its budget.
    pub fn new(runtime: Arc<Runtime>, deployment: Arc<Deployment>) -> Self {
        Self(Arc::new(Inner { runtime, deployment }))
    }

    /// What it runs on.
    pub fn runtime(&self) -> &Arc<Runtime> {
        &self.0.runtime
    }

    /// What it runs.
    pub fn deployment(&self) -> &Arc<Deployment> {
        &self.0.deployment
    }

    /// The plugin that grades: the one given for it, or the workflow's own.
    pub fn grader(&self) -> Option<&Plugin> {
        self.0.deployment.grader()
    }

    /// The form of agent that it runs.
    pub fn form(&self) -> AgentForm {
        self.0.deployment.form()
    }

    /// What an instance needs that says what the plugin is.
    fn declaration(&self) -> Result<(Imports, Bounds), RunError> {
        let holder = self.budget().holder(CancellationToken::new());
        let record = Arc::new(Record::of_no_rollout(holder));
        self.0.deployment.of_no_rollout("declaration", Role::Declaration, self.metrics(), record)
    }

    /// Asks an agent loop for its name; a workflow has none.
    pub async fn agent_name(&self) -> Result<Option<String>, RunError> {
        if self.form() == AgentForm::Workflow {
            return Ok(None);
        }
        let (imports, bounds) = self.declaration()?;
        instance::agent_loop_name(self.0.deployment.workflow.linked(), imports, bounds).await.map(Some)
    }

    /// Asks an agent loop which tools it offers to a request that asks for nothing in
    /// particular; a workflow has none to tell.
    pub async fn usual_tools(&self) -> Result<Vec<String>, RunError> {
        if self.form() == AgentForm::Workflow {
            return Ok(Vec::new());
        }
        let (imports, bounds) = self.declaration()?;
        let LoopOptions { max_turns, max_tokens_total, completion_params: _ } = LoopOptions::default();
        let request = LoopRequest {
            messages: vec![r#"{"role":"user","content":"Which tools are there?"}"#.to_owned()],
            max_turns,
            max_tokens_total,
            completion_params: "{}".to_owned(),
        };
        instance::agent_loop_tools(self.0.deployment.workflow.linked(), imports, bounds, request).await
    }

    /// Lets a rollout in, if there is room for what it will do. Its request is charged already.
    pub(super) fn enter(&self, request: &RolloutRequest) -> Result<Entered, AdmitError> {
        self.0.runtime.check_quotas()?;
        self.enter_within_quotas(request)
    }

    /// The same for one whose quotas were asked already: that of requests counts those that ask.
    pub(super) fn enter_within_quotas(&self, request: &RolloutRequest) -> Result<Entered, AdmitError> {
        self.budget().check_new_work(0)?;
        self.check_journal()?;
        self.0.runtime.slots().enter(&request.id, false)
    }

    /// Whether this rollout would be let in at present, before what it begins with is read. It may still
    /// be refused once it was.
    pub(super) fn check_entry(&self, request: &RolloutRequest) -> Result<(), AdmitError> {
        self.check_journal()?;
        self.0.runtime.check_quotas()?;
        self.budget().check_new_work(0)?;
        self.0.runtime.slots().check(&request.id)
    }

    /// Whether a rollout would be let in, as far as that is no matter of how many there are. Nothing is
    /// counted by asking.
    pub fn takes_rollouts(&self) -> Result<(), AdmitError> {
        if !self.load().accepting {
            return Err(AdmitError::Closed);
        }
        self.budget().check_new_work(0)?;
        self.check_journal()
    }

    /// Whether what is admitted can be kept.
    fn check_journal(&self) -> Result<(), AdmitError> {
        let journal = self.0.runtime.journal();
        journal.map_or(Ok(()), |journal| journal.check()).map_err(AdmitError::from)
    }

    /// The same, for a driver that has another reason to refuse, which would say less: that of an id
    /// whose rollout could not be kept, and which is taken for that.
    pub fn may_keep(&self) -> Result<(), AdmitError> {
        self.check_journal().inspect_err(|error| self.metrics().refused(error.into()))
    }

    /// A live rollout.
    pub fn find(&self, id: &RolloutId) -> Option<Handle> {
        self.0.runtime.slots().find(id)
    }

    /// The ids of the live rollouts that the test holds for.
    pub fn live_ids(&self, matches: impl Fn(&RolloutId) -> bool) -> Vec<RolloutId> {
        self.0.runtime.slots().live_ids(matches)
    }

    /// How busy it is.
    pub fn load(&self) -> Load {
        self.0.runtime.slots().load()
    }

    /// Waits until no rollout is alive.
    pub async fn idle(&self) {
        self.0.runtime.slots().idle().await;
    }

    /// What may be held for all rollouts together.
    pub fn budget(&self) -> &Budget {
        self.0.runtime.budget()
    }

    /// What is counted, for whoever has something to add.
    pub fn metrics(&self) -> &Arc<Metrics> {
        self.0.runtime.metrics()
    }

    /// What was counted, and how busy the host is, in Prometheus' text format. Reads
    /// files.
    pub fn metrics_text(&self) -> String {
        self.0.runtime.metrics_text()
    }

    /// Takes no more rollouts.
    pub fn close(&self) {
        self.0.runtime.slots().close();
    }

    /// Where rollouts are kept, if they are.
    pub fn journal(&self) -> Option<&Arc<Journal>> {
        self.0.runtime.journal()
    }

    /// Whether rollouts are in a journal, so that another process goes on with what this one leaves.
    pub fn is_kept(&self) -> bool {
        self.0.runtime.journal().is_some()
    }

    /// Cancels every live rollout.
    pub fn cancel_all(&self) {
        self.0.runtime.slots().cancel_all();
    }
}
