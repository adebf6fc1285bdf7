//! A stand-in for a model: an OpenAI-compatible chat endpoint that is clearly marked as a mock.
//!
//! The mock evaluates arithmetic. It calls a calculator tool if the request offers one and answers with
//! seeded mistakes, so that a demonstration shows real tool calls and mixed rewards. If a schema asks for a
//! score with an explanation, the mock answers as a judge. For tests it plays a script. Every response has
//! the header `x-rollout-host-mock`, and every completion names the mock in `system_fingerprint`.
//!
//! | file | contents |
//! |---|---|
//! | `http` | routes and the planning of a call |
//! | `connection` | accepted connections, which a script can cut |
//! | `request` | parsing: last user text, tool result, calculator tool |
//! | `reply` | the assistant message |
//! | `completion`, `sse` | the response body, whole and streamed |
//! | `rubric` | the rating of a judge |
//! | `arithmetic` | exact evaluation of expressions in prose |
//! | `chance` | seeded dice and bounded counters |
//! | `script` | scripted replies |
//!
//! The mock owns its listener and its connections. It knows rollouts only by two request headers.

mod arithmetic;
mod chance;
mod completion;
mod connection;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod http;
mod reply;
mod request;
mod rubric;
mod script;
mod sse;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub use script::{Script, ScriptError};

/// Longest wait of [`MockModel::run_until`] for requests in flight. Calls that hang or wait for their latency
/// are aborted at once, so only a client that reads slowly takes time.
const DRAIN_MAX: Duration = Duration::from_secs(5);

/// Settings of the mock.
#[derive(Clone, Debug, Default)]
pub struct MockModelSettings {
    /// Delay before each chat call is answered.
    pub latency: Duration,
    /// Probability of a mistake in a reply, 0 to 1. The same seed, rollout id, sample id and question give
    /// the same mistakes.
    pub error_rate: f64,
    /// Probability that a chat call fails with 503 and `Retry-After`, 0 to 1.
    pub failure_rate: f64,
    /// Seed of mistakes and failures.
    pub seed: u64,
    /// Scripted replies, which take precedence over arithmetic.
    pub script: Option<Script>,
}

/// Error of starting the mock. The operator must change a setting.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The address is in use or not an address of this machine.
    #[error("cannot listen on {address}")]
    Listen {
        /// The requested address.
        address: SocketAddr,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// A rate is not a probability.
    #[error("the {name} must be between 0 and 1, not {value}")]
    Rate {
        /// Name of the rate, such as `error rate`.
        name: &'static str,
        /// Value of the rate.
        value: f64,
    },
}

/// A running mock. Dropping it closes the listener, aborts calls that hang or wait, and closes every
/// connection after its current request.
#[derive(Debug)]
pub struct MockModel {
    address: SocketAddr,
    app: Arc<http::App>,
    stop: CancellationToken,
    server: Option<JoinHandle<()>>,
}

impl MockModel {
    /// Listens on an address and serves on the current runtime. Port 0 means any free port.
    ///
    /// # Errors
    ///
    /// Fails if the address cannot be listened on or a rate is not a probability.
    pub async fn start(listen: SocketAddr, settings: MockModelSettings) -> Result<Self, StartError> {
        check_rate("error rate", settings.error_rate)?;
        check_rate("failure rate", settings.failure_rate)?;
        let cannot_listen = |source| StartError::Listen { address: listen, source };
        let listener = TcpListener::bind(listen).await.map_err(cannot_listen)?;
        let address = listener.local_addr().map_err(cannot_listen)?;
        let stop = CancellationToken::new();
        let app = Arc::new(http::App::new(settings, stop.clone()));
        let router = http::router(Arc::clone(&app));
        let service = router.into_make_service_with_connect_info::<connection::Cut>();
        let server = axum::serve(connection::Accept(listener), service)
            .with_graceful_shutdown(stop.clone().cancelled_owned());
        let server = tokio::spawn(async move {
            if let Err(error) = server.await {
                tracing::error!(%error, "the mock model's server failed");
            }
        });
        Ok(Self { address, app, stop, server: Some(server) })
    }

    /// Returns the base URL for clients, such as `http://127.0.0.1:8000/v1`.
    pub fn base_url(&self) -> String {
        let mut address = self.address;
        // A client cannot connect to the unspecified address.
        if address.ip().is_unspecified() {
            address.set_ip(match address.ip() {
                IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            });
        }
        format!("http://{address}/v1")
    }

    /// Returns the address with the actual port.
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of chat calls received so far, including those that failed or hang.
    pub fn calls(&self) -> u64 {
        self.app.calls()
    }

    /// Serves until `shutdown` completes, then finishes requests in flight. Calls that hang or wait for their
    /// latency are aborted.
    pub async fn run_until(mut self, shutdown: impl Future<Output = ()>) {
        shutdown.await;
        self.stop.cancel();
        if let Some(server) = self.server.take()
            && tokio::time::timeout(DRAIN_MAX, server).await.is_err()
        {
            tracing::warn!("the mock model stopped with requests in flight");
        }
    }
}

impl Drop for MockModel {
    fn drop(&mut self) {
        // Frees the port and ends the waits. Each connection then closes by itself.
        self.stop.cancel();
    }
}

fn check_rate(name: &'static str, value: f64) -> Result<(), StartError> {
    if (0.0..=1.0).contains(&value) { Ok(()) } else { Err(StartError::Rate { name, value }) }
}
