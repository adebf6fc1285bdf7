//! The tools that an operator provides one plugin, made from the configuration and alive as
//! long as the host.
//!
//! Three things can be behind a name: a component, whose every call gets an instance of
//! its own; a server that speaks the Model Context Protocol; an address that is asked
//! over HTTP. What they have in common is here: names, the wait for a turn, the deadline
//! and the cap of a result. A rollout's budget and its record are the imports' part.
//!
//! This module opens no connection and starts no process; `outbound` does.

mod component;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use serde_json::value::RawValue;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use crate::imports::{ClockStart, HostTool, HostTools, ToolRequest};
use crate::instance::Permit;
use crate::outbound::{HttpTool, HttpToolSettings, McpFunction, McpServer, McpSettings, RemoteFailure};
use crate::plugin::Plugin;
use crate::telemetry::{Limit, Metrics, ToolKind};
use crate::wire::function::FunctionTool;
pub use component::ComponentTools;
use rollout_transcript::{ToolAnswer, error_text};

/// Functions that one entry may provide. A model that is told of more uses none well, and
/// each is in every request.
const FUNCTIONS_MAX: usize = 256;

/// How long an entry may take to say what it provides: a server may have to be started.
const LISTING_TIME_MAX: Duration = Duration::from_secs(60);

/// Memory of one call of a component's tool: a Python guest has 30 MiB.
const MEMORY_BYTES_MAX: usize = 64 << 20;

/// CPU time of one call of a component's tool.
const CPU_TIME_MAX: Duration = Duration::from_secs(5);

/// What the operator provides one plugin, as the configuration says it. Every field is
/// checked; what they name is not.
#[derive(Clone, Debug, Default)]
pub struct ToolSettings {
    /// Components.
    pub components: Vec<ComponentSettings>,
    /// Servers that speak the Model Context Protocol.
    pub servers: Vec<ServerSettings>,
    /// Addresses that are asked over HTTP.
    pub addresses: Vec<AddressSettings>,
}

/// The limits of each call of an entry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CallLimits {
    /// From the call to its result, the wait for a turn included.
    pub deadline: Duration,
    /// The longest result in bytes.
    pub result_bytes_max: usize,
    /// Calls of the entry under way at once, over all rollouts. More wait.
    pub concurrent_max: u32,
    /// Calls of each of its functions in one rollout.
    pub calls_max: u32,
}

/// A component to provide the tools of.
#[derive(Clone, Debug)]
pub struct ComponentSettings {
    /// Where the entry is in the configuration, for messages.
    pub at: String,
    /// The component.
    pub path: PathBuf,
    /// What is put before its functions' names.
    pub prefix: String,
    /// Its configuration, a JSON object.
    pub config: Option<Arc<RawValue>>,
    /// The date that its clocks begin at.
    pub clock_begins: ClockStart,
    /// Memory of one call, in bytes.
    pub memory_bytes_max: usize,
    /// CPU time of one call.
    pub cpu_time_max: Duration,
    /// The limits of each call.
    pub limits: CallLimits,
}

/// A server to provide the tools of.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// Where the entry is in the configuration, for messages.
    pub at: String,
    /// Where the server is.
    pub reach: McpSettings,
    /// What is put before its functions' names.
    pub prefix: String,
    /// The functions that are provided; none provides all.
    pub only: Option<Vec<String>>,
    /// The limits of each call.
    pub limits: CallLimits,
}

/// An address to provide as one function.
#[derive(Clone, Debug)]
pub struct AddressSettings {
    /// Where the entry is in the configuration, for messages.
    pub at: String,
    /// What the model is told.
    pub function: FunctionTool,
    /// What is asked.
    pub ask: HttpToolSettings,
    /// The limits of each call.
    pub limits: CallLimits,
}

/// Asks a component that exports `tool` for its tools, as providing it would. The errors
/// say which is none, and why.
pub async fn describe(
    plugin: Plugin,
    config: Option<Arc<RawValue>>,
) -> Result<Vec<FunctionTool>, Vec<String>> {
    let settings = ComponentSettings { config, ..ComponentSettings::default() };
    let entry = Entry::component(settings, plugin, &Arc::default());
    let listed = entry.list(Instant::now() + LISTING_TIME_MAX).await?;
    Ok(listed.into_iter().map(|(_, function)| function).collect())
}

impl Default for ComponentSettings {
    fn default() -> Self {
        Self {
            at: "the component".to_owned(),
            path: PathBuf::new(),
            prefix: String::new(),
            config: None,
            clock_begins: ClockStart::default(),
            memory_bytes_max: MEMORY_BYTES_MAX,
            cpu_time_max: CPU_TIME_MAX,
            limits: CallLimits::default(),
        }
    }
}

impl Default for CallLimits {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(30),
            // The model reads it, and it is kept with the rollout.
            result_bytes_max: 256 << 10,
            concurrent_max: 16,
            calls_max: 200,
        }
    }
}

impl ToolSettings {
    /// Whether nothing is provided.
    pub fn is_empty(&self) -> bool {
        self.components.is_empty() && self.servers.is_empty() && self.addresses.is_empty()
    }

    /// Instances of components that may be alive at once.
    pub fn instances_max(&self) -> u32 {
        self.components.iter().fold(0, |sum, entry| sum.saturating_add(entry.limits.concurrent_max))
    }

    /// The most memory that one of them may have, in bytes.
    pub fn memory_bytes_max(&self) -> usize {
        self.components.iter().map(|entry| entry.memory_bytes_max).max().unwrap_or(0)
    }
}

impl CallLimits {
    /// There was no result in time.
    fn late(&self) -> ToolAnswer {
        let secs = self.deadline.as_secs_f64();
        ToolAnswer::over(Limit::ToolTime, format!("no result within deadline-secs, {secs} s"))
    }

    /// All who may call at once did so for too long.
    fn busy(&self) -> ToolAnswer {
        let max = self.concurrent_max;
        let reason = format!("busy: concurrent-max of {max} calls at once, and none ended in time");
        ToolAnswer::over(Limit::ToolConcurrent, reason)
    }

    /// What came of a call, if it comes in time.
    async fn in_time(
        &self,
        deadline: Instant,
        called: impl Future<Output = Result<String, RemoteFailure>>,
    ) -> ToolAnswer {
        match timeout_at(deadline, called).await {
            Ok(Ok(content)) => ToolAnswer::answered(content),
            Ok(Err(RemoteFailure::Failed(reason))) => ToolAnswer::failed(told(reason)),
            Ok(Err(RemoteFailure::Unavailable(reason))) => ToolAnswer::unavailable(reason),
            Ok(Err(RemoteFailure::TooLong)) => {
                let max = self.result_bytes_max;
                let reason = format!("the result is longer than result-bytes-max, {max} bytes");
                ToolAnswer::over(Limit::ToolResultBytes, reason)
            }
            Err(_) => self.late(),
        }
    }

    /// The answer, unless it is too long.
    fn capped(&self, answer: ToolAnswer) -> ToolAnswer {
        let (bytes, max) = (answer.content.len(), self.result_bytes_max);
        if bytes <= max {
            return answer;
        }
        let reason = format!("the result has {bytes} bytes, more than result-bytes-max, {max} bytes");
        ToolAnswer::over(Limit::ToolResultBytes, reason)
    }
}

/// Everything that keeps tools from being provided. Each names its entry.
#[derive(Debug, thiserror::Error)]
#[error("the tools cannot be provided:{}", .0.iter().map(|problem| format!("\n  - {problem}")).collect::<String>())]
pub struct UnusableTools(pub Vec<String>);

/// The host-provided tools of one plugin.
pub struct Toolbox {
    entries: Vec<Entry>,
    functions: Vec<Function>,
    places: BTreeMap<String, usize>,
    schemas: Vec<String>,
}

/// One entry of the configuration, ready to be called.
struct Entry {
    at: String,
    prefix: String,
    limits: CallLimits,
    turns: Arc<Semaphore>,
    source: Source,
}

/// What is behind an entry.
enum Source {
    Component(ComponentTools),
    /// With what it said of its functions when it started, and those that are provided.
    Server(McpServer, Vec<McpFunction>, Option<Vec<String>>),
    Address(Box<HttpTool>, FunctionTool),
}

/// One function that is provided.
struct Function {
    entry: usize,
    /// Its name without the prefix.
    own_name: String,
}

impl Toolbox {
    /// Makes everything ready that the settings name and asks each what it provides. The
    /// components were loaded, one for each in the settings and in their order.
    pub async fn start(
        settings: ToolSettings,
        components: Vec<Plugin>,
        metrics: &Arc<Metrics>,
    ) -> Result<Arc<Self>, UnusableTools> {
        let (mut entries, mut problems) = (Vec::new(), Vec::new());
        for (settings, plugin) in settings.components.into_iter().zip(components) {
            entries.push(Entry::component(settings, plugin, metrics));
        }
        let servers = join_all(settings.servers.into_iter().map(Entry::server)).await;
        for entry in servers.into_iter().chain(settings.addresses.into_iter().map(Entry::address)) {
            match entry {
                Ok(entry) => entries.push(entry),
                Err(reasons) => problems.extend(reasons),
            }
        }
        let deadline = Instant::now() + LISTING_TIME_MAX;
        let listings = join_all(entries.iter().map(|entry| entry.list(deadline))).await;
        let mut toolbox =
            Self { entries, functions: Vec::new(), places: BTreeMap::new(), schemas: Vec::new() };
        for (entry, listing) in listings.into_iter().enumerate() {
            match listing {
                Ok(functions) => toolbox.add(entry, functions, &mut problems),
                Err(reasons) => problems.extend(reasons),
            }
        }
        if problems.is_empty() { Ok(Arc::new(toolbox)) } else { Err(UnusableTools(problems)) }
    }

    fn add(&mut self, entry: usize, functions: Vec<(String, FunctionTool)>, problems: &mut Vec<String>) {
        let at = self.entries[entry].at.clone();
        for (own_name, function) in functions {
            let name = function.name().to_owned();
            if let Some(taken) = self.places.get(&name) {
                let other = &self.entries[self.functions[*taken].entry].at;
                problems
                    .push(format!("{at}: provides '{name}', and so does {other}; `prefix` tells them apart"));
                continue;
            }
            self.places.insert(name, self.functions.len());
            self.functions.push(Function { entry, own_name });
            self.schemas.push(function.text());
        }
    }

    async fn make(&self, request: ToolRequest) -> ToolAnswer {
        let function = &self.functions[request.place];
        let entry = &self.entries[function.entry];
        let deadline = Instant::now() + entry.limits.deadline;
        // A turn that comes with the last hundredth of the time is none: whoever had it was
        // stopped by the same deadline, and nothing can be done in what is left.
        let last = deadline - entry.limits.deadline / 100;
        let turn = match timeout_at(deadline, entry.turns.clone().acquire_owned()).await {
            Ok(Ok(turn)) if Instant::now() < last => turn,
            Ok(_) | Err(_) => return entry.limits.busy(),
        };
        let answer = match &entry.source {
            Source::Component(component) => {
                let ToolRequest { arguments, seed, holder, .. } = &request;
                let (name, holder) = (&function.own_name, holder.as_ref());
                let bounds = component.bounds(deadline, Permit::counted(turn));
                component.call(name, arguments, seed, holder, &entry.limits, bounds).await
            }
            Source::Server(server, ..) => {
                let called = server.call(&function.own_name, &request.arguments);
                let answer = entry.limits.in_time(deadline, called).await;
                drop(turn);
                answer
            }
            Source::Address(address, _) => {
                let called = address.call(&request.arguments, entry.limits.result_bytes_max);
                let answer = entry.limits.in_time(deadline, called).await;
                drop(turn);
                answer
            }
        };
        entry.limits.capped(answer)
    }
}

impl Entry {
    fn new(at: String, prefix: String, limits: CallLimits, source: Source) -> Self {
        Self { at, prefix, turns: Arc::new(Semaphore::new(limits.concurrent_max as usize)), limits, source }
    }

    fn component(settings: ComponentSettings, plugin: Plugin, metrics: &Arc<Metrics>) -> Self {
        let tools = ComponentTools::new(
            plugin,
            settings.config,
            settings.memory_bytes_max,
            settings.cpu_time_max,
            settings.limits.result_bytes_max,
            settings.clock_begins,
            metrics.clone(),
        );
        Self::new(settings.at, settings.prefix, settings.limits, Source::Component(tools))
    }

    /// Starts a server, or connects to it.
    async fn server(settings: ServerSettings) -> Result<Self, Vec<String>> {
        let ServerSettings { at, reach, prefix, only, limits } = settings;
        match McpServer::start(at.clone(), &reach).await {
            Ok((server, functions)) => {
                Ok(Self::new(at, prefix, limits, Source::Server(server, functions, only)))
            }
            Err(problems) => Err(problems.iter().map(|problem| format!("{at}: {problem}")).collect()),
        }
    }

    fn address(settings: AddressSettings) -> Result<Self, Vec<String>> {
        let AddressSettings { at, function, ask, limits } = settings;
        match HttpTool::new(ask) {
            Ok(tool) => Ok(Self::new(at, String::new(), limits, Source::Address(tool.into(), function))),
            Err(problems) => Err(problems.iter().map(|problem| format!("{at}: {problem}")).collect()),
        }
    }

    /// What the source says that it has, one function after the other.
    async fn described(&self, deadline: Instant) -> Result<Vec<Result<FunctionTool, String>>, Vec<String>> {
        let at = &self.at;
        match &self.source {
            Source::Component(component) => match component.describe(deadline, Permit::alone()).await {
                Ok(texts) => Ok(texts.iter().map(|text| FunctionTool::parse(text)).collect()),
                Err(reason) => Err(vec![format!("{at}: its tools cannot be listed: {reason}")]),
            },
            Source::Server(_, functions, only) => {
                let has = |name: &str| functions.iter().any(|function| function.name == name);
                let missing = only.iter().flatten().filter(|name| !has(name));
                let missing: Vec<String> =
                    missing.map(|name| format!("{at}: only: the server has no tool '{name}'")).collect();
                if !missing.is_empty() {
                    return Err(missing);
                }
                let is_provided = |name: &String| only.as_ref().is_none_or(|only| only.contains(name));
                let tool = |function: &McpFunction| {
                    let McpFunction { name, description, parameters } = function;
                    FunctionTool::new(name, description.as_deref(), parameters.clone())
                };
                Ok(functions.iter().filter(|function| is_provided(&function.name)).map(tool).collect())
            }
            Source::Address(_, function) => Ok(vec![Ok(function.clone())]),
        }
    }

    /// What it provides: each function's own name, and what the model is told.
    async fn list(&self, deadline: Instant) -> Result<Vec<(String, FunctionTool)>, Vec<String>> {
        let at = &self.at;
        let described = self.described(deadline).await?;
        if described.is_empty() {
            return Err(vec![format!("{at}: it has no tools")]);
        }
        if described.len() > FUNCTIONS_MAX {
            return Err(vec![format!("{at}: it has {} tools, more than {FUNCTIONS_MAX}", described.len())]);
        }
        let (mut functions, mut problems) = (Vec::new(), Vec::new());
        for (number, function) in (1..).zip(described) {
            let function = function
                .and_then(|function| Ok((function.name().to_owned(), function.prefixed(&self.prefix)?)));
            match function {
                Ok(function) => functions.push(function),
                Err(what) => problems.push(format!("{at}: its tool number {number} is {what}")),
            }
        }
        if problems.is_empty() { Ok(functions) } else { Err(problems) }
    }

    fn kind(&self) -> ToolKind {
        match self.source {
            Source::Component(_) => ToolKind::Component,
            Source::Server(..) => ToolKind::Mcp,
            Source::Address(..) => ToolKind::Http,
        }
    }
}

/// A tool's own words for what went wrong, which may call it an error themselves.
fn told(reason: String) -> String {
    let beginning = reason.get(.."error".len()).unwrap_or_default();
    if beginning.eq_ignore_ascii_case("error") { reason } else { error_text(reason) }
}

impl HostTools for Toolbox {
    fn schemas(&self) -> &[String] {
        &self.schemas
    }

    fn find(&self, name: &str) -> Option<HostTool> {
        let place = *self.places.get(name)?;
        let entry = &self.entries[self.functions[place].entry];
        Some(HostTool { place, kind: entry.kind(), calls_max: entry.limits.calls_max })
    }

    fn call(self: Arc<Self>, request: ToolRequest) -> BoxFuture<'static, ToolAnswer> {
        async move { self.make(request).await }.boxed()
    }
}

impl std::fmt::Debug for Toolbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Toolbox").field("functions", &self.places.keys()).finish_non_exhaustive()
    }
}
