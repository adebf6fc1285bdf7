//! A server that speaks the Model Context Protocol, started here or reached over HTTP.
//!
//! It is connected to and asked for its tools once, when the host starts. From then on a
//! task watches the connection: when it is lost, the server is started or reached again,
//! later each time it fails. A call that comes meanwhile waits a little.

#![expect(clippy::disallowed_types, reason = "the library of the protocol takes and gives trees")]

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

/// How long a server may take to start, to introduce itself and to list its tools.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(30);

/// The wait before a lost server is started again, doubled each time it fails.
const RESTART_DELAY_MIN: Duration = Duration::from_millis(200);
const RESTART_DELAY_MAX: Duration = Duration::from_secs(30);

/// A server that was up for so long starts over with the shortest wait.
const STABLE: Duration = Duration::from_secs(30);

/// How long a call waits for a server that is down.
const DOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// What stands for content of a kind that came up after this was written.
const UNKNOWN: &str = "[content of an unknown kind, not shown]";

/// How much of what went wrong is reported.
const REASON_BYTES_MAX: usize = 2048;

/// Where a server is, as the operator says it.
#[derive(Clone, Debug)]
pub enum McpSettings {
    /// A program that is started and spoken to through its pipes.
    Process {
        /// The program and its arguments.
        command: Vec<String>,
        /// Variables of the host's environment that it gets.
        environment: Vec<String>,
        /// Variables that it gets besides, perhaps with secrets in them.
        variables: Vec<(String, SecretText)>,
    },
    /// An address that is spoken to over streamable HTTP.
    Http {
        /// The address.
        url: String,
        /// Headers of every request, perhaps with secrets.
        headers: Vec<(HeaderName, SecretText)>,
        /// Where the address may lead.
        network: Arc<NetworkRules>,
    },
}

/// A function that a server has.
#[derive(Clone, Debug)]
pub struct McpFunction {
    /// Its name.
    pub name: String,
    /// What it says of itself.
    pub description: Option<String>,
    /// The JSON Schema of its arguments.
    pub parameters: Value,
}

/// A server that is kept running. Dropping this ends it.
#[derive(Debug)]
pub struct McpServer {
    state: watch::Receiver<State>,
    secrets: Secrets,
    _supervisor: AbortOnDropHandle<()>,
}

/// Whether a server can be asked.
#[derive(Clone, Debug)]
enum State {
    Up(Peer<RoleClient>),
    Down(String),
}

/// How a server is reached, with everything that was in the environment.
enum Reach {
    Process(Start),
    Http { client: Client, config: StreamableHttpClientTransportConfig },
}

/// A server that is connected. Dropping this ends the connection and the process.
struct Connection {
    service: RunningService<RoleClient, ()>,
    process: Option<Process>,
}

impl McpServer {
    /// Connects to a server, or starts it, and asks what it has. `about` names it in logs.
    /// Every problem names its field or says what the server did.
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

    /// Calls a function with the arguments that the model wrote. Dropping the future notifies
    /// the server that nobody waits any more.
    pub async fn call(&self, name: &str, arguments: &str) -> Result<String, RemoteFailure> {
        let arguments = read(arguments).map_err(RemoteFailure::Failed)?;
        let params = CallToolRequestParams::new(Cow::Owned(name.to_owned())).with_arguments(arguments);
        let called = self.peer().await?.call_tool_once(params).await;
        match called {
            Ok(CallToolResponse::Complete(result)) => {
                let text = self.secrets.cut_from(text_of(&result));
                if result.is_error == Some(true) { Err(RemoteFailure::Failed(text)) } else { Ok(text) }
            }
            Ok(_) => {
                Err(RemoteFailure::Unavailable("the server asks for what it cannot be given here".to_owned()))
            }
            Err(error) => Err(self.failure(error)),
        }
    }

    /// The server, as soon as it is up.
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
                // What it says may hold an address, which is not for a guest.
                let error = self.secrets.cut_from(error.to_string());
                tracing::warn!(error, "call of a tool server failed");
                let reason = "the connection to its server was lost before there was an answer";
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
                for (place, name) in environment.iter().enumerate() {
                    match variable(name) {
                        Ok(value) => set.push((name.clone(), value)),
                        Err(what) => problems.push(format!("environment[{place}]: {what}")),
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

/// A client for this address, if it may be asked.
fn http_client(url: &str, network: &Arc<NetworkRules>) -> Result<Client, String> {
    let url = Url::parse(url).map_err(|error| error.to_string())?;
    network.check(&url).map_err(|why| why.to_string())?;
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

/// Connects, and starts the server first where it is a process.
async fn connect(reach: &Reach, about: &str) -> Result<Connection, String> {
    match reach {
        Reach::Process(start) => {
            let program = start.command.first().map_or("", String::as_str);
            let started = Process::start(start, about).await;
            let (mut process, stdin, stdout) =
                started.map_err(|error| format!("'{program}' cannot be started: {error}"))?;
            match introduced(().serve((stdout, stdin))).await {
                Ok(service) => Ok(Connection { service, process: Some(process) }),
                Err(reason) => Err(process.explained(reason).await),
            }
        }
        Reach::Http { client, config } => {
            let transport = StreamableHttpClientTransport::with_client(client.clone(), config.clone());
            let service = introduced(().serve(transport)).await?;
            Ok(Connection { service, process: None })
        }
    }
}

/// The server, once the two know each other.
async fn introduced<T>(step: impl Future<Output = Result<T, ClientInitializeError>>) -> Result<T, String> {
    let step = step.map_err(|error| match error {
        ClientInitializeError::TransportError { error, .. } => error.error.to_string(),
        error => error.to_string(),
    });
    in_time(step).await
}

/// What the server does, unless it takes too long.
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

    /// Waits until the connection is lost; says why.
    async fn lost(self) -> String {
        let Self { service, process } = self;
        let Some(mut process) = process else {
            return match service.waiting().await {
                Ok(rmcp::service::QuitReason::Cancelled) => "the connection was ended".to_owned(),
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

/// Keeps a server connected for as long as somebody looks at its state.
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
            "tool server lost; it is started again"
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
                        "tool server not started; it is tried again"
                    );
                    state.send_replace(State::Down(reason));
                }
            }
        };
        tracing::info!(server = about, "tool server is back");
        state.send_replace(State::Up(connection.service.peer().clone()));
    }
}

/// The arguments, which the protocol wants to be an object.
fn read(arguments: &str) -> Result<Map<String, Value>, String> {
    if arguments.trim().is_empty() {
        return Ok(Map::new());
    }
    match serde_json::from_str(arguments) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err("the arguments are no JSON object".to_owned()),
        Err(error) => Err(format!("the arguments are not valid JSON: {error}")),
    }
}

/// What the model reads of a result: its texts, and of everything else what it is. A
/// server that gives data and no text has its data read.
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
