//! A version of a plugin, ready to run.

use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;
use tokio::sync::OnceCell;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::journal::{DeploymentId, ServedAs};
use super::model::{AgentForm, EnvironmentFacts};
use rollout_core::budget::Budget;
use rollout_core::limits::{DECLARE_TIME_MAX, Limits};
use rollout_core::telemetry::Metrics;
use rollout_guest::imports::{ClockStart, HostTools, Imports, Live, ModelAccess, Record, Role, RunContext};
use rollout_guest::instance::{self, Bounds, Permit, RunError};
use rollout_guest::plugin::Plugin;
use rollout_wire::digest::{hex, sha256_parts};
use rollout_wire::id::RolloutId;

/// Components and configuration of a deployment.
pub struct DeploymentSettings {
    /// The plugin with the agent or the environment.
    pub workflow: Plugin,
    /// A separate plugin with the reward function, instead of the workflow's own.
    pub grader: Option<Plugin>,
    /// Limits of each rollout.
    pub limits: Limits,
    /// The configuration of the workflow's plugin, a JSON object.
    pub plugin_config: Option<Box<RawValue>>,
    /// The configuration of a separate grader.
    pub grader_config: Option<Box<RawValue>>,
    /// The host-provided tools of the workflow.
    pub tools: Option<Arc<dyn HostTools>>,
    /// The model that graders may use as a judge.
    pub judge: Option<ModelAccess>,
    /// Name of the deployment, if several plugins are served.
    pub served_as: Option<ServedAs>,
    /// The date that the clocks of rollouts start with.
    pub clock_begins: ClockStart,
}

/// A version of a plugin with everything that determines what its rollouts do: components, configuration, limits,
/// host-provided tools, judge. It is immutable; another version is another deployment.
pub struct Deployment {
    pub(super) workflow: Plugin,
    grader: Option<Plugin>,
    pub(super) limits: Arc<Limits>,
    pub(super) plugin_config: Option<Arc<RawValue>>,
    grader_config: Option<Arc<RawValue>>,
    pub(super) tools: Option<Arc<dyn HostTools>>,
    pub(super) judge: Option<ModelAccess>,
    id: DeploymentId,
    plugin_name: Option<Arc<str>>,
    /// The description of the environment, once a caller has requested it.
    pub(super) environment: OnceCell<Arc<EnvironmentFacts>>,
}

/// Returns a digest of the configurations and tools that guests see.
fn settings_digest(configs: [&Option<Box<RawValue>>; 2], tools: Option<&dyn HostTools>) -> String {
    let config =
        |config: &'_ Option<Box<RawValue>>| config.as_ref().map_or("", |config| config.get()).to_owned();
    let configs = configs.map(config);
    let schemas = tools.map(HostTools::schemas).unwrap_or_default();
    let parts: Vec<&[u8]> = configs.iter().chain(schemas).map(String::as_bytes).collect();
    hex(&sha256_parts(&parts))
}

/// Error of components that cannot form a deployment.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeploymentError {
    /// The plugin has no agent and no environment.
    #[error(
        "the plugin exports no workflow, no agent loop and no environment; give the component with one of them, and \
         a component that only grades by --grader"
    )]
    NoWorkflow,
    /// The grader's plugin has no reward function.
    #[error("the component given by --grader exports no grader")]
    NoGrader,
}

/// The time and the memory that instances needed to start.
#[derive(Clone, Copy, Debug)]
pub struct Started {
    /// Time that the workflow's instance took to start.
    pub took: Duration,
    /// Initial memory of the larger of workflow and grader, in bytes.
    pub memory_bytes: usize,
}

impl Deployment {
    /// Creates a deployment, if its components have the required exports.
    pub fn new(settings: DeploymentSettings) -> Result<Self, DeploymentError> {
        let DeploymentSettings {
            workflow,
            grader,
            limits,
            plugin_config,
            grader_config,
            tools,
            judge,
            served_as,
            clock_begins,
        } = settings;
        let about = workflow.about();
        if !about.workflow && !about.agent_loop && !about.environment {
            return Err(DeploymentError::NoWorkflow);
        }
        if grader.as_ref().is_some_and(|grader| !grader.about().grader) {
            return Err(DeploymentError::NoGrader);
        }
        let id = DeploymentId {
            workflow: workflow.about().digest.clone(),
            grader: grader.as_ref().map(|grader| grader.about().digest.clone()),
            settings: settings_digest([&plugin_config, &grader_config], tools.as_deref()),
            served_as,
            clock_begins,
        };
        Ok(Self {
            workflow,
            grader,
            limits: Arc::new(limits),
            plugin_config: plugin_config.map(Into::into),
            grader_config: grader_config.map(Into::into),
            tools,
            judge,
            environment: OnceCell::new(),
            plugin_name: id.served_as.as_ref().map(|served| served.plugin.as_str().into()),
            id,
        })
    }

    /// Returns the plugin's name, if the process serves several.
    pub(super) fn plugin_name(&self) -> Option<Arc<str>> {
        self.plugin_name.clone()
    }

    /// Returns the identity of the deployment, which another process compares with its own.
    pub fn id(&self) -> &DeploymentId {
        &self.id
    }

    /// Returns the plugin that grades: the separate grader, or the workflow's own.
    pub(crate) fn grader(&self) -> Option<&Plugin> {
        self.grader.as_ref().or_else(|| Some(&self.workflow).filter(|plugin| plugin.about().grader))
    }

    /// Returns the plugin that rates groups: the separate grader, or the workflow's own if there is none.
    pub(crate) fn group_grader(&self) -> Option<&Plugin> {
        let plugin = self.grader.as_ref().unwrap_or(&self.workflow);
        Some(plugin).filter(|plugin| plugin.about().group_grader)
    }

    /// Returns the digest of the component with the agent.
    pub fn digest(&self) -> &str {
        &self.workflow.about().digest
    }

    /// Returns the size of the compiled code of its components in bytes.
    pub fn code_bytes(&self) -> u64 {
        self.workflow.code_bytes() + self.grader.as_ref().map_or(0, Plugin::code_bytes)
    }

    /// Returns the digest of the component that grades, if there is one.
    pub fn grader_digest(&self) -> Option<&str> {
        self.grader().map(|grader| grader.about().digest.as_str())
    }

    /// Returns the form of its agent.
    pub(crate) fn form(&self) -> AgentForm {
        let about = self.workflow.about();
        match (about.workflow, about.agent_loop) {
            (_, true) => AgentForm::AgentLoop,
            (false, false) if about.environment => AgentForm::Environment,
            (_, false) => AgentForm::Workflow,
        }
    }

    /// Returns the configuration for the grader, which is the workflow's if they are one component.
    pub(super) fn config_of_grader(&self) -> Option<&Arc<RawValue>> {
        match self.grader {
            None => self.plugin_config.as_ref(),
            Some(_) => self.grader_config.as_ref(),
        }
    }

    /// Creates and drops an instance of every component, so that one that cannot start is detected before the first
    /// rollout.
    pub async fn try_start(
        &self,
        budget: &Budget,
        metrics: &Arc<Metrics>,
    ) -> Result<Started, (Role, RunError)> {
        let mut all = Started { took: Duration::ZERO, memory_bytes: 0 };
        let plugins = [(Role::Grader, self.grader.as_ref()), (Role::Workflow, Some(&self.workflow))];
        for (role, plugin) in plugins {
            let Some(plugin) = plugin else { continue };
            let record = Arc::new(Record::without_rollout(budget.holder(CancellationToken::new())));
            let parts = self.imports_without_rollout("try-start", role, metrics, record.clone());
            let (imports, bounds) = parts.map_err(|error| (role, error))?;
            let started = instance::try_start(plugin.linked(), imports, bounds).await;
            all.took = started.map_err(|error| (role, error))?;
            all.memory_bytes = all.memory_bytes.max(record.usage().memory_bytes_peak);
        }
        Ok(all)
    }

    /// Returns imports and bounds for an instance that belongs to no rollout.
    pub(super) fn imports_without_rollout(
        &self,
        id: &str,
        role: Role,
        metrics: &Arc<Metrics>,
        record: Arc<Record>,
    ) -> Result<(Imports, Bounds), RunError> {
        let id = RolloutId::parse(id).map_err(|error| RunError::Host(error.to_string()))?;
        let run = RunContext {
            clock_begins: self.id.clock_begins,
            ..RunContext::without_rollout(id, self.plugin_config.clone(), metrics.clone())
        };
        let deadline = Some(Instant::now() + self.limits.workflow_time_max.min(DECLARE_TIME_MAX));
        // Such instances have no slot.
        let permit = Permit::alone();
        let bounds = Bounds { memory_bytes_max: self.limits.memory_bytes_max, deadline, permit };
        let imports = Imports::new(role, Arc::new(run), self.limits.clone(), Live::until(deadline), record);
        Ok((imports, bounds))
    }
}
