//! Outbound connections: to models' servers, to callers' callback addresses, and to the tools that an operator
//! provides, some of which are child processes. No other module opens connections.
//!
//! Models, judges and callers share one [`Transport`] and one mechanism of retries (`retry`); each tool has its own
//! client. None follows redirects by itself, because a key must not reach another server, and none uses a proxy that is
//! configured in the environment.

mod address;
mod callback;
mod chat;
mod endpoint;
mod environment;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod http1;
mod http_tool;
mod mcp;
mod network;
mod observer;
mod probe;
mod retry;
mod secrets;
mod service;
mod tls;
mod transport;
mod url_template;

pub use callback::{Acknowledged, CallbackClient, Undelivered};
pub use chat::{ChatClient, RequestBody};
pub use endpoint::{InvalidEndpoint, ModelEndpoint, PauseSign, RequestProfile, RoutingHeaders};
pub use environment::{SecretText, is_variable};
pub use http_tool::{AllowedHost, HttpTool, HttpToolSettings, RemoteFailure};
pub use mcp::{McpFunction, McpServer, McpSettings};
pub use network::{Forbidden, InvalidEntry, NetworkEntry, NetworkRules, Reach};
pub use observer::{Observer, Retry, Watched};
pub use probe::{Unreachable, probe};
pub use retry::{RetryPolicy, Statuses};
pub use rollout_transcript::{ChatFailure, ChatReply};
pub use secrets::{Secret, Secrets};
pub use service::{InvalidService, ServiceClient, ServiceError, ServiceReply};
pub use transport::{Transport, TransportError};
pub use url_template::UrlTemplate;

use std::time::Duration;

/// Value of the `User-Agent` header.
const USER_AGENT: &str = concat!("rollout-host/", env!("CARGO_PKG_VERSION"));

/// Error of creating an HTTP client.
#[derive(Debug, thiserror::Error)]
#[error("cannot set up the HTTP client")]
pub struct ClientError(#[source] reqwest::Error);

/// Maximum number of idle connections of a tool's or a collector's client to each host that the operator configured.
/// They are part of the descriptors that the process reserves for itself.
const TOOL_IDLE_MAX: usize = 4;

/// Creates a client for the few servers in the operator's configuration.
pub fn http_client() -> Result<reqwest::Client, ClientError> {
    build(client_builder)
}

/// Error of a client for an address that rules permit.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckedClientError {
    /// The rules forbid the address.
    #[error(transparent)]
    Forbidden(#[from] Forbidden),
    /// The client cannot be set up.
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// Returns a client for requests of a gateway to its workers, whose addresses the operator gives, with at most `idle_max`
/// idle connections to each.
pub fn cluster_client(idle_max: usize) -> Result<reqwest::Client, ClientError> {
    build(|| {
        let builder = client_builder().http1_only().connect_timeout(Duration::from_secs(3));
        builder.pool_max_idle_per_host(idle_max)
    })
}

/// Returns a client for requests to the host and port of a URL. The client connects only to addresses that the rules
/// permit, and follows no redirects.
///
/// # Errors
///
/// Fails if the URL has an address that the rules forbid.
pub fn checked_client(
    rules: &std::sync::Arc<NetworkRules>,
    url: &reqwest::Url,
) -> Result<reqwest::Client, CheckedClientError> {
    rules.check(url)?;
    let port = url.port_or_known_default().unwrap_or_default();
    let resolver = || network::CheckedResolver { rules: rules.clone(), port };
    Ok(build(|| client_builder().dns_resolver(resolver()))?)
}

/// Builds a client. On a system without certificates of authorities, its encrypted connections fail.
fn build(settings: impl Fn() -> reqwest::ClientBuilder) -> Result<reqwest::Client, ClientError> {
    settings().build().map_err(ClientError).or_else(|error| {
        let Ok(config) = tls::without_authorities() else { return Err(error) };
        settings().tls_backend_preconfigured(config.with_no_client_auth()).build().map_err(ClientError)
    })
}

/// Returns the settings of all clients.
#[expect(clippy::disallowed_methods, reason = "the only place that creates clients")]
fn client_builder() -> reqwest::ClientBuilder {
    // Another user of the library may have installed a provider before, which serves as well.
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

/// Formats an error of the client with its causes and without the URL.
pub fn describe(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
