//! A look at whether a model's server is there and takes the key, before much is asked of
//! it.

use std::time::Duration;

use reqwest::header::AUTHORIZATION;
use reqwest::{StatusCode, Url};
use tokio::net::TcpStream;

use super::describe;
use super::endpoint::bearer;
use super::secrets::Secret;
use rollout_wire::text::time;

/// How long it may take to find the server and to connect to it.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// How long the server may take over an answer. One that is connected to and says nothing
/// for so long may be busy with others.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);

/// Why there is no sense in asking a server anything.
#[derive(Debug, thiserror::Error)]
pub enum Unreachable {
    /// There is no connection.
    #[error("no connection to {address}: {reason}")]
    NoConnection {
        /// Scheme, host and port.
        address: String,
        /// What the system said.
        reason: String,
    },
    /// The server does not take the key, or wants one.
    #[error("{address} answered {status}")]
    Unauthorized {
        /// Scheme, host and port.
        address: String,
        /// 401 or 403.
        status: StatusCode,
    },
}

/// Asks a server of chat completions for its list of models. Whatever it answers shows
/// that it is there; only that a key is wrong counts as no.
pub async fn probe(
    http: &reqwest::Client,
    base_url: &str,
    api_key: Option<&Secret>,
) -> Result<(), Unreachable> {
    // What is no address or key is said by whoever makes an endpoint of it.
    let Ok(mut url) = Url::parse(base_url) else { return Ok(()) };
    let address = url.origin().ascii_serialization();
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().push("models");
    }
    let no_connection = |reason| Unreachable::NoConnection { address: address.clone(), reason };
    // By itself, because the client does not say which of the two took too long.
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
        // Of TLS, for one.
        Err(error) if error.is_connect() && !error.is_timeout() => Err(no_connection(describe(error))),
        Err(error) => {
            tracing::debug!(reason = describe(error), "the model's server is there and gave no list");
            Ok(())
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the operator asks whether it can be reached")]
async fn connect(url: &Url) -> Result<(), String> {
    let host = url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let port = url.port_or_known_default().unwrap_or_default();
    match tokio::time::timeout(CONNECT_TIME_MAX, TcpStream::connect((host, port))).await {
        Ok(connected) => connected.map(drop).map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer within {}", time(CONNECT_TIME_MAX))),
    }
}
