//! MCP servers, started as child processes or reached over HTTP.
//!
//! The host connects to a server and lists its tools once, when it starts. Afterwards a task watches the connection.
//! When the connection is lost, the task restarts the server or reconnects, with a delay that grows with each failure.
//! In the meantime, calls wait for a short time.

#![expect(clippy::disallowed_types, reason = "the protocol's library has trees in its interface")]

mod process;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryFutureExt;
use reqwest::header::{HeaderName, HeaderValue};
use reqwest::{Client, Url};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ResourceContents, Tool,
};
use rmcp::service::{ClientInitializeError, RoleClient, RunningService, ServiceError};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{Peer, ServiceExt};
use serde_json::{Map, Value};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::environment::{SecretText, variable};
use super::http_tool::RemoteFailure;
use super::network::{CheckedResolver, NetworkRules};
use super::secrets::Secrets;
use process::{Process, Start};
use rollout_wire::text::beginning;

/// Timeout for starting a server, its initialization, and the list of its tools.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(30);

/// Delay before a lost server is restarted, doubled with each failure.
const RESTART_DELAY_MIN: Duration = Duration::from_millis(200);
const RESTART_DELAY_MAX: Duration = Duration::from_secs(30);

/// Uptime after which the delay is reset to its minimum.
const STABLE: Duration = Duration::from_secs(30);

/// Time that a call waits for a server that is down.
const DOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Placeholder for content of an unknown kind.
const UNKNOWN: &str = "[content of an unknown kind, not shown]";

/// Maximum size of a reported error, in bytes.
const REASON_BYTES_MAX: usize = 2048;

/// Configuration of an MCP server.
#[derive(Clone, Debug)]
pub enum McpSettings {
    /// A program that is started and communicates through pipes.
    Process {
        /// The program and its arguments.
        command: Vec<String>,
        /// Variables of the host's environment that the process inherits.
        environment: Vec<String>,
        /// Further variables, which may contain secrets.
        variables: Vec<(String, SecretText)>,
    },
    /// A URL for streamable HTTP.
    Http {
        /// The URL.
        url: String,
        /// Headers of every request, which may contain secrets.
        headers: Vec<(HeaderName, SecretText)>,
        /// Network rules for the URL.
        network: Arc<NetworkRules>,
    },
}

/// A function of a server.
#[derive(Clone, Debug)]
pub struct McpFunction {
    /// The function's name.
    pub name: String,
    /// The function's description.
    pub description: Option<String>,
    /// JSON Schema of the arguments.
    pub parameters: Value,
}

/// A server that is kept running. Dropping this stops it.
#[derive(Debug)]
pub struct McpServer {
    state: watch::Receiver<State>,
    secrets: Secrets,
    _supervisor: AbortOnDropHandle<()>,
}

/// Connection state of a server.
#[derive(Clone, Debug)]
enum State {
    Up(Peer<RoleClient>),
    Down(String),
}

/// Parameters of a connection, with values from the environment filled in.
enum Reach {
    Process(Start),
    Http { client: Client, config: StreamableHttpClientTransportConfig },
}

/// A connection to a server. Dropping this closes it and kills the process.
struct Connection {
    service: RunningService<RoleClient, ()>,
    process: Option<Process>,
}

impl McpServer {
    /// Starts a server or connects to it, and lists its functions. `about` names it in logs. Every problem names its
    /// field or the server's failure.
    pub async fn start(
        about: String,
        settings: &McpSettings,
    ) -> Result<(Self, Vec<McpFunction>), Vec<String>> {
        let mut secrets = Secrets::default();
        let reach = Reach::new(settings, &mut secrets)?;
        let one = |reason: String| vec![secrets.cut_from(reason)];
        let mut connection = connect(&reach, &about).await.map_err(one)?;
        let functions = connection.list().await.map_err(one)?;
        let (sender, state) = watch::channel(State::Up(connection.service.peer().clone()));
        let supervisor = tokio::spawn(supervise(about, reach, connection, sender, secrets.clone()));
        let server = Self { state, secrets, _supervisor: AbortOnDropHandle::new(supervisor) };
        Ok((server, functions))
    }

    /// Calls a function with the model's arguments. Dropping the future sends the server a cancellation.
    pub async fn call(&self, name: &str, arguments: &str) -> Result<String, RemoteFailure> {
        let arguments = read(arguments).map_err(RemoteFailure::Failed)?;
        let params = CallToolRequestParams::new(Cow::Owned(name.to_owned())).with_arguments(arguments);
        let called = self.peer().await?.call_tool_once(params).await;
        match called {
            Ok(CallToolResponse::Complete(result)) => {
                let text = self.secrets.cut_from(text_of(&result));
                if result.is_error == Some(true) { Err(RemoteFailure::Failed(text)) } else { Ok(text) }
            }
            Ok(_) => Err(RemoteFailure::Unavailable(
                "the server requests something that this host does not offer".to_owned(),
            )),
            Err(error) => Err(self.failure(error)),
        }
    }

    /// Returns the server's peer as soon as it is connected.
    async fn peer(&self) -> Result<Peer<RoleClient>, RemoteFailure> {
        let mut state = self.state.clone();
        let up = timeout(DOWN_TIMEOUT, state.wait_for(|state| matches!(state, State::Up(_)))).await;
        if let Ok(Ok(state)) = up
            && let State::Up(peer) = &*state
        {
            return Ok(peer.clone());
        }
        let reason = match &*self.state.borrow() {
            State::Down(reason) => reason.clone(),
            State::Up(_) => "it was lost".to_owned(),
        };
        Err(RemoteFailure::Unavailable(self.secrets.cut_from(format!("the server is down: {reason}"))))
    }

    fn failure(&self, error: ServiceError) -> RemoteFailure {
        match error {
            ServiceError::McpError(error) => {
                let text = beginning(&error.message, REASON_BYTES_MAX);
                RemoteFailure::Failed(self.secrets.cut_from(text))
            }
            error => {
                // The error may contain an address, which guests must not see.
                let error = self.secrets.cut_from(error.to_string());
                tracing::warn!(error, "call of a tool server failed");
                let reason = "the connection to its server was lost before a response";
                RemoteFailure::Unavailable(reason.to_owned())
            }
        }
    }
}

impl Reach {
    fn new(settings: &McpSettings, secrets: &mut Secrets) -> Result<Self, Vec<String>> {
        let mut problems = Vec::new();
        let reach = match settings {
            McpSettings::Process { command, environment, variables } => {
                let mut set = Vec::new();
                for (index, name) in environment.iter().enumerate() {
                    match variable(name) {
                        Ok(value) => set.push((name.clone(), value)),
                        Err(what) => problems.push(format!("environment[{index}]: {what}")),
                    }
                }
                for (name, text) in variables {
                    match text.resolve(secrets) {
                        Ok(value) => set.push((name.clone(), value)),
                        Err(what) => problems.push(format!("variables.{name}: {what}")),
                    }
                }
                Self::Process(Start { command: command.clone(), environment: set, secrets: secrets.clone() })
            }
            McpSettings::Http { url, headers, network } => {
                let mut config = StreamableHttpClientTransportConfig::with_uri(url.as_str());
                config.custom_headers = http_headers(headers, secrets, &mut problems);
                let client = http_client(url, network).map_err(|what| vec![format!("url: {what}")])?;
                Self::Http { client, config }
            }
        };
        if problems.is_empty() { Ok(reach) } else { Err(problems) }
    }
}

/// Creates a client for a URL, if the network rules allow it.
fn http_client(url: &str, network: &Arc<NetworkRules>) -> Result<Client, String> {
    let url = Url::parse(url).map_err(|error| error.to_string())?;
    network.check(&url).map_err(|forbidden| forbidden.to_string())?;
    let port = url.port_or_known_default().unwrap_or_default();
    let resolver = CheckedResolver { rules: network.clone(), port };
    super::client_builder().dns_resolver(resolver).build().map_err(super::describe)
}

fn http_headers(
    headers: &[(HeaderName, SecretText)],
    secrets: &mut Secrets,
    problems: &mut Vec<String>,
) -> HashMap<HeaderName, HeaderValue> {
    let mut set = HashMap::new();
    for (name, text) in headers {
        match text.resolve(secrets).map(|value| HeaderValue::from_str(&value)) {
            Ok(Ok(mut value)) => {
                value.set_sensitive(true);
                set.insert(name.clone(), value);
            }
            Ok(Err(_)) => problems.push(format!("headers.{name}: its value cannot be sent in a header")),
            Err(what) => problems.push(format!("headers.{name}: {what}")),
        }
    }
    set
}

/// Connects to a server. Starts it first if it is a process.
async fn connect(reach: &Reach, about: &str) -> Result<Connection, String> {
    match reach {
        Reach::Process(start) => {
            let program = start.command.first().map_or("", String::as_str);
            let started = Process::start(start, about).await;
            let (mut process, stdin, stdout) =
                started.map_err(|error| format!("'{program}' cannot be started: {error}"))?;
            match initialized(().serve((stdout, stdin))).await {
                Ok(service) => Ok(Connection { service, process: Some(process) }),
                Err(reason) => Err(process.explained(reason).await),
            }
        }
        Reach::Http { client, config } => {
            let transport = StreamableHttpClientTransport::with_client(client.clone(), config.clone());
            let service = initialized(().serve(transport)).await?;
            Ok(Connection { service, process: None })
        }
    }
}

/// Waits for the initialization of the protocol.
async fn initialized<T>(step: impl Future<Output = Result<T, ClientInitializeError>>) -> Result<T, String> {
    let step = step.map_err(|error| match error {
        ClientInitializeError::TransportError { error, .. } => error.error.to_string(),
        error => error.to_string(),
    });
    in_time(step).await
}

/// Waits for a step of the server, with a timeout.
async fn in_time<T, E: std::fmt::Display>(step: impl Future<Output = Result<T, E>>) -> Result<T, String> {
    match timeout(CONNECT_TIME_MAX, step).await {
        Ok(result) => result.map_err(|error| beginning(&error.to_string(), REASON_BYTES_MAX)),
        Err(_) => {
            Err(format!("the server did not answer within {}", rollout_wire::text::time(CONNECT_TIME_MAX)))
        }
    }
}

impl Connection {
    async fn list(&mut self) -> Result<Vec<McpFunction>, String> {
        let listed = in_time(self.service.peer().list_all_tools()).await;
        let tools = match (listed, &mut self.process) {
            (Ok(tools), _) => tools,
            (Err(reason), None) => return Err(format!("its tools cannot be listed: {reason}")),
            (Err(reason), Some(process)) => {
                let reason = process.explained(reason).await;
                return Err(format!("its tools cannot be listed: {reason}"));
            }
        };
        let function = |tool: Tool| McpFunction {
            name: tool.name.into_owned(),
            description: tool.description.map(Cow::into_owned),
            parameters: Value::Object((*tool.input_schema).clone()),
        };
        Ok(tools.into_iter().map(function).collect())
    }

    /// Waits until the connection is lost, and returns the reason.
    async fn lost(self) -> String {
        let Self { service, process } = self;
        let Some(mut process) = process else {
            return match service.waiting().await {
                Ok(rmcp::service::QuitReason::Cancelled) => "the connection was closed".to_owned(),
                Ok(_) => "the connection was lost".to_owned(),
                Err(error) => format!("the connection was lost: {error}"),
            };
        };
        let reason = tokio::select! {
            _ = service.waiting() => "its output ended".to_owned(),
            reason = process.ended() => reason,
        };
        process.explained(reason).await
    }
}

/// Reconnects a server until its state has no receivers.
async fn supervise(
    about: String,
    reach: Reach,
    mut connection: Connection,
    state: watch::Sender<State>,
    secrets: Secrets,
) {
    let mut delay = RESTART_DELAY_MIN;
    loop {
        let up_since = Instant::now();
        let reason = secrets.cut_from(connection.lost().await);
        if up_since.elapsed() >= STABLE {
            delay = RESTART_DELAY_MIN;
        }
        tracing::warn!(
            server = about,
            reason,
            delay_secs = delay.as_secs_f64(),
            "lost the connection to a tool server; reconnecting after a delay"
        );
        state.send_replace(State::Down(reason));
        connection = loop {
            sleep(delay).await;
            delay = (delay * 2).min(RESTART_DELAY_MAX);
            match connect(&reach, &about).await {
                Ok(connection) => break connection,
                Err(reason) => {
                    let reason = secrets.cut_from(reason);
                    tracing::warn!(
                        server = about,
                        reason,
                        delay_secs = delay.as_secs_f64(),
                        "cannot start or reach a tool server; retrying after a delay"
                    );
                    state.send_replace(State::Down(reason));
                }
            }
        };
        tracing::info!(server = about, "reconnected to a tool server");
        state.send_replace(State::Up(connection.service.peer().clone()));
    }
}

/// Parses the arguments, which must be an object.
fn read(arguments: &str) -> Result<Map<String, Value>, String> {
    if arguments.trim().is_empty() {
        return Ok(Map::new());
    }
    match serde_json::from_str(arguments) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err("the arguments are not a JSON object".to_owned()),
        Err(error) => Err(format!("the arguments are not valid JSON: {error}")),
    }
}

/// Returns a result as text for the model: its texts, and placeholders for other content. If there is no content,
/// returns the structured data.
fn text_of(result: &CallToolResult) -> String {
    if result.content.is_empty()
        && let Some(data) = &result.structured_content
    {
        return data.to_string();
    }
    let texts: Vec<String> = result.content.iter().map(block_text).collect();
    texts.join("\n")
}

fn block_text(block: &ContentBlock) -> String {
    match block {
        ContentBlock::Text(text) => text.text.clone(),
        ContentBlock::Image(image) => format!("[image: {}, not shown]", image.mime_type),
        ContentBlock::Audio(audio) => format!("[audio: {}, not shown]", audio.mime_type),
        ContentBlock::Resource(resource) => match &resource.resource {
            ResourceContents::TextResourceContents { text, .. } => text.clone(),
            ResourceContents::BlobResourceContents { uri, .. } => format!("[resource: {uri}, not shown]"),
            _ => UNKNOWN.to_owned(),
        },
        ContentBlock::ResourceLink(link) => format!("[resource: {}]", link.uri),
        _ => UNKNOWN.to_owned(),
    }
}
