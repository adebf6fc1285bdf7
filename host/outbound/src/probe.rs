//! Check that a model's server is reachable and accepts the key, before it is used.

use std::time::Duration;

use reqwest::header::AUTHORIZATION;
use reqwest::{StatusCode, Url};
use tokio::net::TcpStream;

use super::describe;
use super::endpoint::bearer;
use super::secrets::Secret;
use rollout_wire::text::time;

/// Timeout for resolving the server's name and connecting to it.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// Timeout for the server's response. A server that accepts the connection without responding may be busy.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);

/// Error of a server that is not usable.
#[derive(Debug, thiserror::Error)]
pub enum Unreachable {
    /// The connection failed.
    #[error("no connection to {address}: {reason}")]
    NoConnection {
        /// Scheme, host and port.
        address: String,
        /// The error of the system.
        reason: String,
    },
    /// The server refuses the key or requires one.
    #[error("{address} answered {status}")]
    Unauthorized {
        /// Scheme, host and port.
        address: String,
        /// 401 or 403.
        status: StatusCode,
    },
}

/// Requests the list of models from a chat completion server. Any response shows that the server is there; only an
/// error about the key is a failure.
pub async fn probe(
    http: &reqwest::Client,
    base_url: &str,
    api_key: Option<&Secret>,
) -> Result<(), Unreachable> {
    // Invalid URLs and keys are reported when an endpoint is created.
    let Ok(mut url) = Url::parse(base_url) else { return Ok(()) };
    let address = url.origin().ascii_serialization();
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().push("models");
    }
    let no_connection = |reason| Unreachable::NoConnection { address: address.clone(), reason };
    // Connects separately, because the client does not tell which step timed out.
    connect(&url).await.map_err(no_connection)?;
    let mut request = http.get(url).timeout(ANSWER_TIME_MAX);
    if let Some(Ok(key)) = api_key.map(bearer) {
        request = request.header(AUTHORIZATION, key);
    }
    match request.send().await.map(|response| response.status()) {
        Ok(status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)) => {
            Err(Unreachable::Unauthorized { address, status })
        }
        Ok(_) => Ok(()),
        // For example, an error of TLS.
        Err(error) if error.is_connect() && !error.is_timeout() => Err(no_connection(describe(error))),
        Err(error) => {
            tracing::debug!(
                reason = describe(error),
                "the model's server is reachable but returned no list of models"
            );
            Ok(())
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "checks a server for the operator")]
async fn connect(url: &Url) -> Result<(), String> {
    let host = url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let port = url.port_or_known_default().unwrap_or_default();
    match tokio::time::timeout(CONNECT_TIME_MAX, TcpStream::connect((host, port))).await {
        Ok(connected) => connected.map(drop).map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer within {}", time(CONNECT_TIME_MAX))),
    }
}
