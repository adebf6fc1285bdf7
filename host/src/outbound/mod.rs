//! The only place that opens connections: to the model's server, to a caller that wants
//! results posted, and to the tools that an operator lends, some of them processes that
//! are started here.
//!
//! Models and callers are reached by one HTTP client with TLS and by a leaner one without
//! (`plain`), and each tool has one of its own. None follows redirects, because a key must
//! not travel to where nobody sent it, and none uses a proxy of the environment.

mod address;
mod callback;
mod chat;
mod environment;
mod http_tool;
mod mcp;
mod observer;
mod plain;
mod retry;
mod url_template;

pub use callback::{Acknowledged, CallbackClient, Taken, Undelivered};
pub use chat::{ChatClient, ChatFailure, ChatReply, InvalidEndpoint, Manner, ModelEndpoint, RoutingHeaders};
pub use environment::{SecretText, is_variable};
pub use http_tool::{AllowedHost, HttpTool, HttpToolSettings, RemoteFailure};
pub use mcp::{McpFunction, McpServer, McpSettings};
pub use observer::{Observer, Watched};
pub use retry::{Repeated, RetryPolicy};
pub use url_template::UrlTemplate;

use std::fmt;
use std::time::Duration;

/// A key. It shows itself to nobody but the header that carries it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a key.
    pub fn new(key: impl Into<String>) -> Self {
        Self(key.into())
    }

    /// The key, for the header or for comparing.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// What the host calls itself.
const USER_AGENT: &str = concat!("rollout-host/", env!("CARGO_PKG_VERSION"));

/// Why there is no HTTP client.
#[derive(Debug, thiserror::Error)]
#[error("cannot set up the HTTP client")]
pub struct ClientError(#[source] reqwest::Error);

/// Builds the process's HTTP client.
pub fn http_client() -> Result<reqwest::Client, ClientError> {
    client_builder()
        // Thousands of rollouts wait on one server; its connections are worth keeping.
        .pool_max_idle_per_host(4096)
        .build()
        .map_err(ClientError)
}

/// What every client has in common.
fn client_builder() -> reqwest::ClientBuilder {
    // Another user of the library may have installed a provider already; any will do.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .tcp_nodelay(true)
        .connect_timeout(Duration::from_secs(10))
        .pool_idle_timeout(Duration::from_secs(60))
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
