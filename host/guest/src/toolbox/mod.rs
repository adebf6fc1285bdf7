//! The tools that an operator provides to one plugin. They are created from the configuration and live as long as the
//! host.
//!
//! A tool is implemented by a component, with an instance for each call; by an MCP server; or by an HTTP endpoint. This
//! module has the part that they share: names, the queue of calls, the deadline and the maximum size of a result. The
//! imports module accounts for a rollout's budget and record.
//!
//! This module opens no connections and starts no processes; `outbound` does.

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
use crate::plugin::Plugin;
pub use component::ComponentTools;
use rollout_core::telemetry::{Limit, Metrics, ToolKind};
use rollout_outbound::{HttpTool, HttpToolSettings, McpFunction, McpServer, McpSettings, RemoteFailure};
use rollout_transcript::{ToolAnswer, error_text};
use rollout_wire::function::FunctionTool;

/// Maximum number of functions of one entry. Models choose badly among more, and every request contains all of them.
const FUNCTIONS_MAX: usize = 256;

/// Timeout for listing the functions of an entry. A server may have to be started first.
const LISTING_TIME_MAX: Duration = Duration::from_secs(60);

/// Default memory limit of one call of a component's tool. A Python guest needs 30 MiB.
const MEMORY_BYTES_MAX: usize = 64 << 20;

/// Default CPU time limit of one call of a component's tool.
const CPU_TIME_MAX: Duration = Duration::from_secs(5);

/// The tools that the operator provides to one plugin, as configured. Every field is validated, but not the files and
/// servers that they name.
#[derive(Clone, Debug, Default)]
pub struct ToolSettings {
    /// Components.
    pub components: Vec<ComponentSettings>,
    /// MCP servers.
    pub servers: Vec<ServerSettings>,
    /// HTTP endpoints.
    pub addresses: Vec<AddressSettings>,
}

/// Limits on each call of an entry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CallLimits {
    /// Time from the call to its result, including the wait in the queue.
    pub deadline: Duration,
    /// Maximum size of a result in bytes.
    pub result_bytes_max: usize,
    /// Maximum number of calls of the entry in progress at once, over all rollouts. Further calls wait.
    pub concurrent_max: u32,
    /// Maximum number of calls of each of its functions in one rollout.
    pub calls_max: u32,
}

/// Configuration of a component whose tools are provided.
#[derive(Clone, Debug)]
pub struct ComponentSettings {
    /// Position of the entry in the configuration, for messages.
    pub at: String,
    /// Path of the component.
    pub path: PathBuf,
    /// Prefix of its functions' names.
    pub prefix: String,
    /// The component's configuration, a JSON object.
    pub config: Option<Arc<RawValue>>,
    /// The date that its clocks start with.
    pub clock_begins: ClockStart,
    /// Memory of one call, in bytes.
    pub memory_bytes_max: usize,
    /// CPU time of one call.
    pub cpu_time_max: Duration,
    /// The limits of each call.
    pub limits: CallLimits,
}

/// Configuration of a server whose tools are provided.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// Position of the entry in the configuration, for messages.
    pub at: String,
    /// The server's address or command.
    pub reach: McpSettings,
    /// Prefix of its functions' names.
    pub prefix: String,
    /// The functions to provide. `None` provides all.
    pub only: Option<Vec<String>>,
    /// The limits of each call.
    pub limits: CallLimits,
}

/// Configuration of an HTTP endpoint that is provided as one function.
#[derive(Clone, Debug)]
pub struct AddressSettings {
    /// Position of the entry in the configuration, for messages.
    pub at: String,
    /// The function as the model sees it.
    pub function: FunctionTool,
    /// The request to send.
    pub ask: HttpToolSettings,
    /// The limits of each call.
    pub limits: CallLimits,
}

/// Lists the tools of a component that exports `tool`, with the checks of a served one. Returns an error for each
/// invalid tool.
pub async fn describe(
    plugin: Plugin,
    config: Option<Arc<RawValue>>,
) -> Result<Vec<FunctionTool>, Vec<String>> {
    let settings = ComponentSettings { config, ..ComponentSettings::default() };
    let entry = ToolEntry::component(settings, plugin, &Arc::default());
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
            // The model reads the result, and the rollout's record stores it.
            result_bytes_max: 256 << 10,
            concurrent_max: 16,
            calls_max: 200,
        }
    }
}

impl ToolSettings {
    /// Returns whether no tools are provided.
    pub fn is_empty(&self) -> bool {
        self.components.is_empty() && self.servers.is_empty() && self.addresses.is_empty()
    }

    /// Returns the maximum number of instances of components alive at once.
    pub fn instances_max(&self) -> u32 {
        self.components.iter().fold(0, |sum, entry| sum.saturating_add(entry.limits.concurrent_max))
    }

    /// Returns the largest memory limit of a component, in bytes.
    pub fn memory_bytes_max(&self) -> usize {
        self.components.iter().map(|entry| entry.memory_bytes_max).max().unwrap_or(0)
    }
}

impl CallLimits {
    /// Returns the answer for a call without a result in time.
    fn late(&self) -> ToolAnswer {
        let secs = self.deadline.as_secs_f64();
        ToolAnswer::over_limit(Limit::ToolTime, format!("no result within deadline-secs, {secs} s"))
    }

    /// Returns the answer for a call that waited too long for other calls.
    fn busy(&self) -> ToolAnswer {
        let max = self.concurrent_max;
        let reason = format!("busy: concurrent-max of {max} calls at once, and none ended in time");
        ToolAnswer::over_limit(Limit::ToolConcurrent, reason)
    }

    /// Waits for a call and returns its answer, or [`late`](Self::late) if the deadline passes first.
    async fn in_time(
        &self,
        deadline: Instant,
        called: impl Future<Output = Result<String, RemoteFailure>>,
    ) -> ToolAnswer {
        match timeout_at(deadline, called).await {
            Ok(Ok(content)) => ToolAnswer::answered(content),
            Ok(Err(RemoteFailure::Failed(reason))) => ToolAnswer::failed(failure_text(reason)),
            Ok(Err(RemoteFailure::Unavailable(reason))) => ToolAnswer::unavailable(reason),
            Ok(Err(RemoteFailure::TooLong)) => {
                let max = self.result_bytes_max;
                let reason = format!("the result is longer than result-bytes-max, {max} bytes");
                ToolAnswer::over_limit(Limit::ToolResultBytes, reason)
            }
            Err(_) => self.late(),
        }
    }

    /// Replaces an answer that is too long.
    fn capped(&self, answer: ToolAnswer) -> ToolAnswer {
        let (bytes, max) = (answer.content.len(), self.result_bytes_max);
        if bytes <= max {
            return answer;
        }
        let reason = format!("the result has {bytes} bytes, more than result-bytes-max, {max} bytes");
        ToolAnswer::over_limit(Limit::ToolResultBytes, reason)
    }
}

/// All reasons why the tools cannot be provided, each with the name of its entry.
#[derive(Debug, thiserror::Error)]
#[error("the tools cannot be provided:{}", .0.iter().map(|problem| format!("\n  - {problem}")).collect::<String>())]
pub struct UnusableTools(pub Vec<String>);

/// The host-provided tools of one plugin.
pub struct Toolbox {
    entries: Vec<ToolEntry>,
    functions: Vec<Function>,
    by_name: BTreeMap<String, usize>,
    schemas: Vec<String>,
}

/// An entry of the configuration, ready for calls.
struct ToolEntry {
    at: String,
    prefix: String,
    limits: CallLimits,
    turns: Arc<Semaphore>,
    source: Source,
}

/// The implementation of an entry.
enum Source {
    Component(ComponentTools),
    /// A server, the functions that it listed when it started, and the names of those to provide.
    Server(McpServer, Vec<McpFunction>, Option<Vec<String>>),
    Address(Box<HttpTool>, FunctionTool),
}

/// A provided function.
struct Function {
    entry: usize,
    /// Its name without the prefix.
    own_name: String,
}

impl Toolbox {
    /// Starts all entries of the settings and lists their functions. `components` are the loaded components in the
    /// order of the settings.
    pub async fn start(
        settings: ToolSettings,
        components: Vec<Plugin>,
        metrics: &Arc<Metrics>,
    ) -> Result<Arc<Self>, UnusableTools> {
        let (mut entries, mut problems) = (Vec::new(), Vec::new());
        for (settings, plugin) in settings.components.into_iter().zip(components) {
            entries.push(ToolEntry::component(settings, plugin, metrics));
        }
        let servers = join_all(settings.servers.into_iter().map(ToolEntry::server)).await;
        for entry in servers.into_iter().chain(settings.addresses.into_iter().map(ToolEntry::address)) {
            match entry {
                Ok(entry) => entries.push(entry),
                Err(reasons) => problems.extend(reasons),
            }
        }
        let deadline = Instant::now() + LISTING_TIME_MAX;
        let listings = join_all(entries.iter().map(|entry| entry.list(deadline))).await;
        let mut toolbox =
            Self { entries, functions: Vec::new(), by_name: BTreeMap::new(), schemas: Vec::new() };
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
            if let Some(taken) = self.by_name.get(&name) {
                let other = &self.entries[self.functions[*taken].entry].at;
                problems
                    .push(format!("{at}: provides '{name}', and so does {other}; `prefix` tells them apart"));
                continue;
            }
            self.by_name.insert(name, self.functions.len());
            self.functions.push(Function { entry, own_name });
            self.schemas.push(function.text());
        }
    }

    async fn make(&self, request: ToolRequest) -> ToolAnswer {
        let function = &self.functions[request.place];
        let entry = &self.entries[function.entry];
        let deadline = Instant::now() + entry.limits.deadline;
        // A permit that arrives in the last hundredth of the time is useless: the call that held it hit the same
        // deadline, and the rest of the time is too short.
        let latest_start = deadline - entry.limits.deadline / 100;
        let turn = match timeout_at(deadline, entry.turns.clone().acquire_owned()).await {
            Ok(Ok(turn)) if Instant::now() < latest_start => turn,
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

impl ToolEntry {
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

    /// Starts a server or connects to it.
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

    /// Lists the functions that the source reports.
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

    /// Lists the functions to provide: each function's own name, and its schema for the model.
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
                Err(problem) => problems.push(format!("{at}: its tool number {number} is {problem}")),
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

/// Marks a tool's own message as an error, unless the message starts with the word "error".
fn failure_text(reason: String) -> String {
    let start = reason.get(.."error".len()).unwrap_or_default();
    if start.eq_ignore_ascii_case("error") { reason } else { error_text(reason) }
}

impl HostTools for Toolbox {
    fn schemas(&self) -> &[String] {
        &self.schemas
    }

    fn find(&self, name: &str) -> Option<HostTool> {
        let index = *self.by_name.get(name)?;
        let entry = &self.entries[self.functions[index].entry];
        Some(HostTool { place: index, kind: entry.kind(), calls_max: entry.limits.calls_max })
    }

    fn call(self: Arc<Self>, request: ToolRequest) -> BoxFuture<'static, ToolAnswer> {
        async move { self.make(request).await }.boxed()
    }
}

impl std::fmt::Debug for Toolbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Toolbox").field("functions", &self.by_name.keys()).finish_non_exhaustive()
    }
}
