//! Makes a host of a configuration and components, the same for every command: what a process
//! has once, one deployment on it, and as many slots as the machine has room for.
//!
//! Nothing here reads options, environment variables or terminals. Whoever asks says how a
//! component is brought in, because that is where processes, caches and files differ.

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
use rollout_core::digest::sha256_hex;
use rollout_core::engine::{Engine, EngineError, MemoryPlan};
use rollout_core::error::Fault;
use rollout_core::imports::{HostTools, ModelAccess, Role};
use rollout_core::instance::RunError;
use rollout_core::outbound::{
    ChatClient, InvalidEndpoint, ModelEndpoint, NetworkRules, Observer, Secret, Transport, TransportError,
};
use rollout_core::plugin::{self, Declaration, DeclareError, InvalidSettings, Plugin};
use rollout_core::rollout::{
    ArtifactBounds, ArtifactRoot, Deployment, DeploymentError, DeploymentSettings, Host, Journal, Runtime,
    RuntimeSettings, ServedAs,
};
use rollout_core::telemetry::Metrics;
use rollout_core::toolbox::{ComponentSettings, Toolbox, UnusableTools};
use rollout_mock_model as mock_model;
use rollout_mock_model::MockModel;

pub use platform::{Besides, Placed, Platform};

/// What of a host is not in its configuration.
#[derive(Default)]
pub struct Options {
    /// Where trajectories and artifacts go; none keeps none.
    pub artifact_root: Option<PathBuf>,
    /// How much is kept there.
    pub artifact_bounds: ArtifactBounds,
    /// Descriptors that a rollout holds on the side of its callers, at the most.
    pub descriptors_for_callers: u64,
    /// The key of the judge's server.
    pub judge_key: Option<Secret>,
    /// Who watches the calls of the models.
    pub observer: Option<Arc<dyn Observer>>,
    /// What the plugin's instances find on standard input.
    pub plugin_input: Bytes,
    /// Where rollouts are kept, so that none that was admitted is lost; none keeps none.
    pub journal: Option<Arc<Journal>>,
}

/// The components of a deployment, where they are.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    /// The one with the agent.
    pub plugin: &'a Path,
    /// What it is called in texts, where it was made of that.
    pub shown: &'a Path,
    /// One with the grader, in place of the plugin's own.
    pub grader: Option<&'a Path>,
}

impl<'a> Sources<'a> {
    /// Components that are called by their own names.
    pub fn of(plugin: &'a Path, grader: Option<&'a Path>) -> Self {
        Self { plugin, shown: plugin, grader }
    }
}

/// A component that was not brought in: why, and whose move it is.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct NotLoaded {
    /// Who has to act.
    pub fault: Fault,
    /// What happened.
    pub reason: String,
}

/// Why there is no host.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AssemblyError {
    /// A component could not be brought in.
    #[error(transparent)]
    NotLoaded(#[from] NotLoaded),
    /// A component does not say what can be configured.
    #[error("{}: {why}", path.display())]
    Declares {
        /// The component.
        path: PathBuf,
        /// What went wrong.
        why: DeclareError,
    },
    /// The operator's values do not fit what a component declares.
    #[error("{}: {why}", path.display())]
    Settings {
        /// The component.
        path: PathBuf,
        /// What is wrong.
        why: InvalidSettings,
    },
    /// There are values for a grader of its own, and there is none.
    #[error(
        "[grader] configures the component of --grader, and none is given; [plugin] is for the plugin's own"
    )]
    NoGraderToConfigure,
    /// The components are not what a deployment needs.
    #[error(transparent)]
    Deployment(#[from] DeploymentError),
    /// No instance of a component can be started.
    #[error("no instance of the {} can be started: it {why}", role.as_str())]
    CannotStart {
        /// Whose component.
        role: Role,
        /// What went wrong.
        why: RunError,
    },
    /// The judge cannot be asked.
    #[error("judge.url")]
    Judge(#[source] InvalidEndpoint),
    /// The judge's stand-in does not start.
    #[error(transparent)]
    StandIn(#[from] mock_model::StartError),
    /// There is no engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// There are no connections to models.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// Tools cannot be provided.
    #[error(transparent)]
    Tools(#[from] UnusableTools),
    /// The folder for events cannot be made.
    #[error("cannot make {}", path.display())]
    EventLog {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl AssemblyError {
    /// Whose move it is.
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

/// A host, and what is known of how it came to be.
pub struct Assembled {
    /// The host.
    pub host: Host,
    /// How many rollouts and connections there is room for.
    pub slots: Slots,
    /// Where the memory of guests comes from.
    pub plan: MemoryPlan,
    /// The workflow's configuration.
    pub settings: plugin::Settings,
    /// That of a grader which is a component of its own.
    pub grader_settings: Option<plugin::Settings>,
    /// A digest of all that decides on what the host-provided tools do and is known here.
    pub tools_digest: Option<String>,
    /// What judges in place of a model. It serves for as long as this is held.
    pub judge_stand_in: Option<MockModel>,
}

/// The components of a deployment, with their configuration.
pub(crate) struct Components {
    workflow: Plugin,
    pub settings: plugin::Settings,
    grader: Option<(Plugin, plugin::Settings)>,
}

impl Components {
    /// Brings them in and asks them what they declare.
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
                let given = match &config.grader {
                    Some(own) => Given::Own(Some(own)),
                    None => Given::Shared(plugin),
                };
                let (_, settings) = given_settings(path, &grader, config, given).await?;
                Some((grader, settings))
            }
            _ if config.grader.is_some() => return Err(AssemblyError::NoGraderToConfigure),
            _ => None,
        };
        Ok(Self { workflow, settings, grader })
    }

    /// A deployment of them.
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
            grader_config: grader_settings.as_ref().and_then(plugin::Settings::to_raw),
            tools: tools.map(|tools| tools as Arc<dyn HostTools>),
            judge,
            served_as,
            clock_begins: config.clock_begins,
        })?;
        Ok(Deployed { deployment, chat, settings, grader_settings, tools_digest, judge_stand_in })
    }
}

/// What deployed components reach others by.
pub(crate) struct Connections<'a> {
    pub transport: &'a Transport,
    pub metrics: &'a Arc<Metrics>,
    pub observer: Option<Arc<dyn Observer>>,
    pub judge_key: Option<Secret>,
    /// Those to the judge.
    pub judge: Transport,
    /// What the deployment is called among several.
    pub served_as: Option<ServedAs>,
}

/// A deployment, and what is known of how it came to be.
pub struct Deployed {
    /// The deployment.
    pub deployment: Deployment,
    /// The client that reaches its rollouts' models.
    pub chat: ChatClient,
    /// The workflow's configuration.
    pub settings: plugin::Settings,
    /// That of a grader which is a component of its own.
    pub grader_settings: Option<plugin::Settings>,
    /// A digest of all that decides on what the host-provided tools do and is known here.
    pub tools_digest: Option<String>,
    /// What judges in place of a model. It serves for as long as this is held.
    pub judge_stand_in: Option<MockModel>,
}

/// Brings the components in, asks them what they declare, and makes a host of them that is known
/// to start. `load` blocks for as long as compiling takes.
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
    // A plugin may ask for fewer at once than there are slots, and not for more.
    let asked = components.settings.max_concurrent.unwrap_or(u32::MAX).min(config.max_concurrent);
    let room = |memory_bytes| platform.room(asked, config.queue_max, memory_bytes);
    let transport = Transport::new(room(0).connections.outbound_max)?;
    let metrics = Arc::new(Metrics::new());
    // The operator's own address, which rules for callers do not concern.
    let judge = transport.for_tenant(NetworkRules::open());
    let connections =
        Connections { transport: &transport, metrics: &metrics, observer, judge_key, judge, served_as: None };
    let deployed = components.deploy(config, connections, load).await?;
    let event_log = config.log.as_deref().map(event_log).transpose()?;
    let slots = room(platform.memory_of(&deployed.deployment, &metrics).await?);
    warn_of_little_room(config, &slots);
    let Deployed { deployment, chat, settings, grader_settings, tools_digest, judge_stand_in } = deployed;
    let runtime = Runtime::new(RuntimeSettings {
        tenant: None,
        engine: platform.engine().clone(),
        transport,
        chat,
        metrics,
        budget: platform.budget().clone(),
        slots: rollout_core::rollout::Slots::alone(slots.running_max, slots.queue_max),
        quotas: Vec::new(),
        artifact_root: artifact_root.map(|path| ArtifactRoot::new(path, artifact_bounds)),
        event_log,
        journal,
    });
    let host = Host::new(runtime, Arc::new(deployment));
    let plan = platform.plan();
    Ok(Assembled { host, slots, plan, settings, grader_settings, tools_digest, judge_stand_in })
}

/// Says so where the operator asked for more rollouts at once than there is room for.
fn warn_of_little_room(config: &Config, slots: &Slots) {
    if slots.bound_by != Bound::Asked && config.max_concurrent_is_set {
        tracing::warn!(
            asked = config.max_concurrent,
            slots = slots.running_max,
            bound_by = %slots.bound_by,
            "this machine has not room for as many rollouts at once as were asked for"
        );
    }
}

/// Asks a plugin what it declares, and puts the operator's values over that.
pub async fn settings(
    path: &Path,
    plugin: &Plugin,
    config: &Config,
    given: Option<&Map<String, Value>>,
) -> Result<(Option<Declaration>, plugin::Settings), AssemblyError> {
    given_settings(path, plugin, config, Given::Own(given)).await
}

/// An operator's values for a component.
#[derive(Clone, Copy)]
enum Given<'a> {
    /// Values for this component: a key that it does not have is a mistake.
    Own(Option<&'a Map<String, Value>>),
    /// Values for another component, of which this one takes the keys that it has.
    Shared(Option<&'a Map<String, Value>>),
}

async fn given_settings(
    path: &Path,
    plugin: &Plugin,
    config: &Config,
    given: Given<'_>,
) -> Result<(Option<Declaration>, plugin::Settings), AssemblyError> {
    let path = || path.to_owned();
    let declared = plugin.declaration(&config.limits, config.clock_begins, &Arc::new(Metrics::new())).await;
    let declared = declared.map_err(|why| AssemblyError::Declares { path: path(), why })?;
    let own = match (given, &declared) {
        (Given::Shared(Some(shared)), Some(declared)) => Some(declared.own_of(shared)),
        _ => None,
    };
    let (Given::Own(given) | Given::Shared(given)) = given;
    let given = own.as_ref().or(given);
    if let Some(given) = given
        && !given.is_empty()
        && declared.as_ref().is_none_or(Declaration::declares_nothing)
    {
        let keys: Vec<&str> = given.keys().map(String::as_str).collect();
        tracing::warn!(
            component = %path().display(),
            keys = keys.join(", "),
            "the component declares no settings: its configuration is not checked, and a misspelt key goes unnoticed"
        );
    }
    let resolved = plugin::resolve(declared.as_ref(), given);
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

/// The judge, and its stand-in where that is asked for.
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
            let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
            let mock = MockModel::start(anywhere, mock_model::MockModelSettings::default()).await?;
            (mock.base_url(), Some(mock))
        }
    };
    let endpoint = ModelEndpoint::new(&url, &judge.model, key).map_err(AssemblyError::Judge)?;
    Ok((ModelAccess { client, endpoint: Arc::new(endpoint) }, stand_in))
}

/// The host-provided tools of the configuration, ready to be called, with a digest of all that
/// decides on what they do and is known here.
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
    // For the digest; nobody reads it.
    let mut about = format!("{settings:?}"); // not shown
    about.extend(components.iter().map(|plugin| plugin.about().digest.as_str()));
    let toolbox = Toolbox::start(settings.clone(), components, metrics).await?;
    Ok(Some((toolbox, sha256_hex(about.as_bytes()))))
}

/// The folder of this start in the directory for events.
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
