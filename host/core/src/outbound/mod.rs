//! The only place that opens connections: to the model's server, to a caller that wants
//! results posted, and to the tools that an operator provides, some of them processes that
//! are started here.
//!
//! Models, judges and callers are reached by one [`Transport`], repeated by one policy
//! (`retry`), and each tool has a client of its own. None follows redirects, because a key must
//! not travel to where nobody sent it, and none uses a proxy of the environment.

mod address;
mod callback;
mod chat;
mod endpoint;
mod environment;
mod http_tool;
mod mcp;
mod network;
mod observer;
mod probe;
mod retry;
mod secrets;
mod tls;
mod transport;
mod url_template;

pub use callback::{Acknowledged, CallbackClient, Undelivered};
pub use chat::{ChatClient, RequestBody};
pub use endpoint::{InvalidEndpoint, ModelEndpoint, RequestProfile, RoutingHeaders};
pub use environment::{SecretText, is_variable};
pub use http_tool::{AllowedHost, HttpTool, HttpToolSettings, RemoteFailure};
pub use mcp::{McpFunction, McpServer, McpSettings};
pub use network::{Forbidden, InvalidEntry, NetworkEntry, NetworkRules, Reach};
pub use observer::{Observer, Retry, Watched};
pub use probe::{Unreachable, probe};
pub use retry::{RetryPolicy, Statuses};
pub use rollout_transcript::{ChatFailure, ChatReply};
pub use secrets::{Secret, Secrets};
pub use transport::{Transport, TransportError};
pub use url_template::UrlTemplate;

use std::time::Duration;

/// What the host calls itself.
const USER_AGENT: &str = concat!("rollout-host/", env!("CARGO_PKG_VERSION"));

/// Why there is no HTTP client.
#[derive(Debug, thiserror::Error)]
#[error("cannot set up the HTTP client")]
pub struct ClientError(#[source] reqwest::Error);

/// Idle connections that a client of a tool or a collector keeps to each host that the operator
/// named. They are among those descriptors that the process has for itself.
const TOOL_IDLE_MAX: usize = 4;

/// A client for the few servers that the operator's own settings name.
pub fn http_client() -> Result<reqwest::Client, ClientError> {
    client_builder().build().map_err(ClientError)
}

/// What every client has in common.
#[expect(clippy::disallowed_methods, reason = "the room in which clients are made")]
fn client_builder() -> reqwest::ClientBuilder {
    // Another user of the library may have installed a provider already; any will do.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .tcp_nodelay(true)
        .connect_timeout(Duration::from_secs(10))
        .pool_idle_timeout(Duration::from_secs(60))
        .pool_max_idle_per_host(TOOL_IDLE_MAX)
        .user_agent(USER_AGENT)
}

/// An error of the client without the address it was for, and with its causes.
fn describe(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
