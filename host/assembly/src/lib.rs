//! Builds a host from a configuration and components, for every command: the process-wide engine, one
//! deployment on it, and as many slots as the machine has room for.
//!
//! The crate reads no options, environment variables or terminals. The caller passes a function that loads a
//! component, because commands differ in processes, caches and files.

pub mod config;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod platform;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde_json::{Map, Value};

use crate::config::{Config, Judge};
use rollout_core::capacity::{Bound, Slots};
use rollout_core::error::Fault;
use rollout_core::telemetry::Metrics;
use rollout_guest::engine::{Engine, EngineError, MemoryPlan};
use rollout_guest::imports::{HostTools, ModelAccess, Role};
use rollout_guest::instance::RunError;
use rollout_guest::plugin::{self, Declaration, DeclareError, InvalidSettings, Plugin};
use rollout_guest::toolbox::{ComponentSettings, Toolbox, UnusableTools};
use rollout_mock_model as mock_model;
use rollout_mock_model::MockModel;
use rollout_outbound::{
    ChatClient, InvalidEndpoint, ModelEndpoint, NetworkRules, Observer, Secret, Transport, TransportError,
};
use rollout_rollout::{
    ArtifactBounds, ArtifactRoot, Deployment, DeploymentError, DeploymentSettings, Host, Journal, Runtime,
    RuntimeSettings, ServedAs,
};
use rollout_wire::digest::sha256_hex;

pub use platform::{Besides, Placed, Platform};

/// Options of a host that are not in its configuration.
#[derive(Default)]
pub struct Options {
    /// Directory of trajectories and artifacts; without it, none are written.
    pub artifact_root: Option<PathBuf>,
    /// Limits of that directory.
    pub artifact_bounds: ArtifactBounds,
    /// Maximum number of descriptors that a rollout needs for connections of its caller.
    pub descriptors_for_callers: u64,
    /// Key of the judge's server.
    pub judge_key: Option<Secret>,
    /// Observer of model calls.
    pub observer: Option<Arc<dyn Observer>>,
    /// Standard input of the plugin's instances.
    pub plugin_input: Bytes,
    /// Journal of rollouts; without it, rollouts do not survive the process.
    pub journal: Option<Arc<Journal>>,
}

/// Files of the components of a deployment.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    /// The component with the agent.
    pub plugin: &'a Path,
    /// Path of the plugin in messages; differs from `plugin` if that was built from a source.
    pub shown: &'a Path,
    /// A component whose grader replaces the plugin's.
    pub grader: Option<&'a Path>,
}

impl<'a> Sources<'a> {
    /// Creates sources whose plugin is shown by its own path.
    pub fn of(plugin: &'a Path, grader: Option<&'a Path>) -> Self {
        Self { plugin, shown: plugin, grader }
    }
}

/// Error of loading a component.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct NotLoaded {
    /// Party that must act.
    pub fault: Fault,
    /// Description of the error.
    pub reason: String,
}

/// Error of assembling a host.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AssemblyError {
    /// A component could not be loaded.
    #[error(transparent)]
    NotLoaded(#[from] NotLoaded),
    /// A component failed to declare its settings.
    #[error("{}: {why}", path.display())]
    Declares {
        /// The component.
        path: PathBuf,
        /// The error.
        why: DeclareError,
    },
    /// The operator's values do not match the settings that a component declares.
    #[error("{}: {why}", path.display())]
    Settings {
        /// The component.
        path: PathBuf,
        /// The mistakes.
        why: InvalidSettings,
    },
    /// There is a configuration for a separate grader but no such grader.
    #[error(
        "[grader] configures the component of --grader, and none is given; use [plugin] for the plugin's own grader"
    )]
    NoGraderToConfigure,
    /// The components do not form a deployment.
    #[error(transparent)]
    Deployment(#[from] DeploymentError),
    /// No instance of a component can be started.
    #[error("no instance of the {} can be started: it {why}", role.as_str())]
    CannotStart {
        /// Role of the component.
        role: Role,
        /// The error.
        why: RunError,
    },
    /// The judge's address is invalid.
    #[error("judge.url")]
    Judge(#[source] InvalidEndpoint),
    /// The judge's built-in stand-in did not start.
    #[error(transparent)]
    StandIn(#[from] mock_model::StartError),
    /// The engine could not be created.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The client for connections to models could not be created.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// Host-provided tools are not usable.
    #[error(transparent)]
    Tools(#[from] UnusableTools),
    /// The directory of the event log cannot be created.
    #[error("cannot create the directory {} of --log", path.display())]
    EventLog {
        /// The directory.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
}

impl AssemblyError {
    /// Returns the party that must act.
    pub fn fault(&self) -> Fault {
        match self {
            Self::NotLoaded(NotLoaded { fault, .. }) => *fault,
            Self::Declares { why: DeclareError::Run(error), .. } => error.fault(),
            Self::Declares { .. } | Self::Deployment(_) => Fault::Plugin,
            Self::CannotStart { why, .. } => why.fault(),
            _ => Fault::Host,
        }
    }
}

/// A host with details of its assembly.
pub struct Assembled {
    /// The host.
    pub host: Host,
    /// Numbers of rollouts and connections that the machine has room for.
    pub slots: Slots,
    /// Source of the guests' memory.
    pub plan: MemoryPlan,
    /// Configuration of the workflow.
    pub settings: plugin::PluginSettings,
    /// Configuration of a separate grader.
    pub grader_settings: Option<plugin::PluginSettings>,
    /// Digest of the settings and components of the host-provided tools.
    pub tools_digest: Option<String>,
    /// Built-in stand-in for the judge. It serves until it is dropped.
    pub judge_stand_in: Option<MockModel>,
}

/// The loaded components of a deployment with their configuration.
pub(crate) struct Components {
    workflow: Plugin,
    pub settings: plugin::PluginSettings,
    grader: Option<(Plugin, plugin::PluginSettings)>,
}

impl Components {
    /// Loads the components and resolves their configuration.
    pub(crate) async fn load(
        config: &Config,
        sources: Sources<'_>,
        input: Bytes,
        load: impl Fn(&Path) -> Result<Plugin, NotLoaded>,
    ) -> Result<Self, AssemblyError> {
        let workflow = load(sources.plugin)?.with_input(input);
        let grader = sources.grader.map(&load).transpose()?;
        let plugin = config.plugin.as_ref();
        let (_, settings) = settings(sources.shown, &workflow, config, plugin).await?;
        let grader = match (grader, sources.grader) {
            (Some(grader), Some(path)) => {
                let values = match &config.grader {
                    Some(own) => ConfigValues::Own(Some(own)),
                    None => ConfigValues::Shared(plugin),
                };
                let (_, settings) = resolve_settings(path, &grader, config, values).await?;
                Some((grader, settings))
            }
            _ if config.grader.is_some() => return Err(AssemblyError::NoGraderToConfigure),
            _ => None,
        };
        Ok(Self { workflow, settings, grader })
    }

    /// Deploys the components.
    pub(crate) async fn deploy(
        self,
        config: &Config,
        connections: Connections<'_>,
        load: impl Fn(&Path) -> Result<Plugin, NotLoaded>,
    ) -> Result<Deployed, AssemblyError> {
        let Self { workflow, settings, grader } = self;
        let Connections { transport, metrics, observer, judge_key, judge: to_judge, served_as } = connections;
        let (grader, grader_settings) = grader.unzip();
        let chat = chat_client(config, transport, metrics, observer);
        let (judge, judge_stand_in) = match &config.judge {
            Some(judge) => {
                let (access, stand_in) = judge_access(judge, judge_key, to_judge, &chat).await?;
                (Some(access), stand_in)
            }
            None => (None, None),
        };
        let (tools, tools_digest) = provided_tools(config, load, metrics).await?.unzip();
        let deployment = Deployment::new(DeploymentSettings {
            workflow,
            grader,
            limits: config.limits.clone(),
            plugin_config: settings.to_raw(),
            grader_config: grader_settings.as_ref().and_then(plugin::PluginSettings::to_raw),
            tools: tools.map(|tools| tools as Arc<dyn HostTools>),
            judge,
            served_as,
            clock_begins: config.clock_begins,
        })?;
        Ok(Deployed { deployment, chat, settings, grader_settings, tools_digest, judge_stand_in })
    }
}

/// Clients and metrics of a deployment.
pub(crate) struct Connections<'a> {
    pub transport: &'a Transport,
    pub metrics: &'a Arc<Metrics>,
    pub observer: Option<Arc<dyn Observer>>,
    pub judge_key: Option<Secret>,
    /// Connections to the judge.
    pub judge: Transport,
    /// Name of the deployment on a server of several.
    pub served_as: Option<ServedAs>,
}

/// A deployment with details of its assembly.
pub struct Deployed {
    /// The deployment.
    pub deployment: Deployment,
    /// Client for the models of its rollouts.
    pub chat: ChatClient,
    /// Configuration of the workflow.
    pub settings: plugin::PluginSettings,
    /// Configuration of a separate grader.
    pub grader_settings: Option<plugin::PluginSettings>,
    /// Digest of the settings and components of the host-provided tools.
    pub tools_digest: Option<String>,
    /// Built-in stand-in for the judge. It serves until it is dropped.
    pub judge_stand_in: Option<MockModel>,
}

/// Loads the components, resolves their configuration, checks that instances start, and builds a host.
/// `load` blocks for as long as compiling takes.
pub async fn assemble(
    config: &Config,
    sources: Sources<'_>,
    options: Options,
    load: impl Fn(&Engine, &Path) -> Result<Plugin, NotLoaded>,
) -> Result<Assembled, AssemblyError> {
    let Options {
        artifact_root,
        artifact_bounds,
        descriptors_for_callers,
        judge_key,
        observer,
        plugin_input,
        journal,
    } = options;
    let besides = Besides { tools: config.tools.instances_max(), ..Besides::default() };
    let memory_bytes_max = config.limits.memory_bytes_max.max(config.tools.memory_bytes_max());
    let platform = Platform::new(config, descriptors_for_callers, besides, memory_bytes_max)?;
    let load = |path: &Path| load(platform.engine(), path);
    let components = Components::load(config, sources, plugin_input, load).await?;
    // A plugin may lower the number of concurrent rollouts but not raise it.
    let requested = components.settings.max_concurrent.unwrap_or(u32::MAX).min(config.max_concurrent);
    let room = |memory_bytes| platform.room(requested, config.queue_max, memory_bytes);
    let transport = Transport::new(room(0).connections.outbound_max)?;
    let metrics = Arc::new(Metrics::new());
    // The judge's address is the operator's, so the rules for callers do not apply.
    let judge = transport.for_tenant(NetworkRules::open());
    let connections =
        Connections { transport: &transport, metrics: &metrics, observer, judge_key, judge, served_as: None };
    let deployed = components.deploy(config, connections, load).await?;
    let event_log = config.log.as_deref().map(event_log).transpose()?;
    let slots = room(platform.memory_of(&deployed.deployment, &metrics).await?);
    warn_if_reduced(config, &slots);
    let Deployed { deployment, chat, settings, grader_settings, tools_digest, judge_stand_in } = deployed;
    let runtime = Runtime::new(RuntimeSettings {
        tenant: None,
        engine: platform.engine().clone(),
        transport,
        chat,
        metrics,
        budget: platform.budget().clone(),
        slots: rollout_rollout::Slots::alone(slots.running_max, slots.queue_max),
        quotas: Vec::new(),
        artifact_root: artifact_root.map(|path| ArtifactRoot::new(path, artifact_bounds)),
        event_log,
        journal,
    });
    let host = Host::new(runtime, Arc::new(deployment));
    let plan = platform.plan();
    Ok(Assembled { host, slots, plan, settings, grader_settings, tools_digest, judge_stand_in })
}

/// Logs a warning if the operator requested more concurrent rollouts than there is room for.
fn warn_if_reduced(config: &Config, slots: &Slots) {
    if slots.bound_by != Bound::Asked && config.max_concurrent_is_set {
        tracing::warn!(
            requested = config.max_concurrent,
            slots = slots.running_max,
            bound_by = %slots.bound_by,
            "this machine has no room for the requested number of concurrent rollouts"
        );
    }
}

/// Returns the settings that a plugin declares, and its configuration with the operator's values.
pub async fn settings(
    path: &Path,
    plugin: &Plugin,
    config: &Config,
    values: Option<&Map<String, Value>>,
) -> Result<(Option<Declaration>, plugin::PluginSettings), AssemblyError> {
    resolve_settings(path, plugin, config, ConfigValues::Own(values)).await
}

/// An operator's values for a component.
#[derive(Clone, Copy)]
enum ConfigValues<'a> {
    /// Values for this component; an undeclared key is an error.
    Own(Option<&'a Map<String, Value>>),
    /// Values for another component; this one uses the keys that it declares.
    Shared(Option<&'a Map<String, Value>>),
}

/// Returns the declaration of a component's settings, and its configuration with the operator's values. Warns if
/// there are values for a component that declares no settings.
async fn resolve_settings(
    path: &Path,
    plugin: &Plugin,
    config: &Config,
    values: ConfigValues<'_>,
) -> Result<(Option<Declaration>, plugin::PluginSettings), AssemblyError> {
    let path = || path.to_owned();
    let declared = plugin.declaration(&config.limits, config.clock_begins, &Arc::new(Metrics::new())).await;
    let declared = declared.map_err(|why| AssemblyError::Declares { path: path(), why })?;
    let own = match (values, &declared) {
        (ConfigValues::Shared(Some(shared)), Some(declared)) => Some(declared.own_of(shared)),
        _ => None,
    };
    let (ConfigValues::Own(values) | ConfigValues::Shared(values)) = values;
    let values = own.as_ref().or(values);
    if let Some(values) = values
        && !values.is_empty()
        && declared.as_ref().is_none_or(Declaration::declares_nothing)
    {
        let keys: Vec<&str> = values.keys().map(String::as_str).collect();
        tracing::warn!(
            component = %path().display(),
            keys = keys.join(", "),
            "the component declares no settings, so its configuration is not checked for misspelt keys"
        );
    }
    let resolved = plugin::resolve(declared.as_ref(), values);
    let resolved = resolved.map_err(|why| AssemblyError::Settings { path: path(), why })?;
    Ok((declared, resolved))
}

fn chat_client(
    config: &Config,
    transport: &Transport,
    metrics: &Arc<Metrics>,
    observer: Option<Arc<dyn Observer>>,
) -> ChatClient {
    let (policy, reply_bytes_max) = (config.model.clone(), config.limits.reply_bytes_max);
    let chat = ChatClient::new(transport.clone(), policy, reply_bytes_max, metrics.clone())
        .allowing(config.model_params.clone());
    match observer {
        Some(observer) => chat.watched_by(observer),
        None => chat,
    }
}

/// Returns the access to the judge, and its built-in stand-in if that was requested.
async fn judge_access(
    judge: &Judge,
    key: Option<Secret>,
    transport: Transport,
    chat: &ChatClient,
) -> Result<(ModelAccess, Option<MockModel>), AssemblyError> {
    let client = chat.for_judges(judge.retry.clone(), judge.params.clone()).over(transport);
    let (url, stand_in) = match &judge.url {
        Some(url) => (url.clone(), None),
        None => {
            let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
            let mock = MockModel::start(any_port, mock_model::MockModelSettings::default()).await?;
            (mock.base_url(), Some(mock))
        }
    };
    let endpoint = ModelEndpoint::new(&url, &judge.model, key).map_err(AssemblyError::Judge)?;
    Ok((ModelAccess { client, endpoint: Arc::new(endpoint) }, stand_in))
}

/// Starts the host-provided tools of the configuration. Also returns a digest of their settings and
/// components.
async fn provided_tools(
    config: &Config,
    load: impl Fn(&Path) -> Result<Plugin, NotLoaded>,
    metrics: &Arc<Metrics>,
) -> Result<Option<(Arc<Toolbox>, String)>, UnusableTools> {
    let settings = &config.tools;
    if settings.is_empty() {
        return Ok(None);
    }
    let (mut components, mut problems) = (Vec::new(), Vec::new());
    for ComponentSettings { at, path, .. } in &settings.components {
        match load(path) {
            Ok(plugin) if plugin.about().tool => components.push(plugin),
            Ok(_) => problems.push(format!("{at}.path: {} exports no tool", path.display())),
            Err(error) => problems.push(format!("{at}.path: {error}")),
        }
    }
    if !problems.is_empty() {
        return Err(UnusableTools(problems));
    }
    let mut about = format!("{}{}\n", config.tools_source, config.clock_begins);
    about.extend(components.iter().map(|plugin| plugin.about().digest.as_str()));
    let toolbox = Toolbox::start(settings.clone(), components, metrics).await?;
    Ok(Some((toolbox, sha256_hex(about.as_bytes()))))
}

/// Creates the directory for the events of this start.
fn event_log(dir: &Path) -> Result<PathBuf, AssemblyError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let path = dir.join(now.as_secs().to_string());
    match std::fs::create_dir_all(&path) {
        Ok(()) => Ok(path),
        Err(source) => Err(AssemblyError::EventLog { path, source }),
    }
}

#[cfg(test)]
mod tests;
