//! An OpenAI-compatible chat endpoint that stands in for a model, and says so.
//!
//! It understands arithmetic well enough to call an offered calculator tool and to answer,
//! with seeded mistakes, so that a demonstration shows real tool calls and a mixed reward; and
//! it stands in for a judge where a schema asks for a score with an explanation. For tests it
//! plays a script. Every response carries `x-rollout-host-mock`, and every
//! completion says in `system_fingerprint` that no model made it.
//!
//! | file | what it does |
//! |---|---|
//! | `http` | routes; what a call leads to |
//! | `connection` | accepted connections, which can be cut |
//! | `request` | what the client asked: last user text, tool result, calculator |
//! | `reply` | what is said |
//! | `completion`, `sse` | how it is said, whole and streamed |
//! | `rubric` | the rating that a judge would give |
//! | `arithmetic` | expressions in prose, worked out exactly |
//! | `chance` | seeded dice and bounded counters |
//! | `script` | scripted replies |
//!
//! It owns its listener and its connections. It knows nothing of
//! rollouts, except that two headers name them.

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

/// How long [`MockModel::run_until`] waits for requests under way to be answered. They are
/// cut off at once where they hang or wait, so only a client that reads slowly takes time.
const DRAIN_MAX: Duration = Duration::from_secs(5);

/// How the stand-in behaves.
#[derive(Clone, Debug, Default)]
pub struct MockModelSettings {
    /// Waited before each chat call is answered.
    pub latency: Duration,
    /// How likely a reply has a mistake in it, 0 to 1. The same rollout id, sample id and
    /// question make the same mistakes under the same seed.
    pub error_rate: f64,
    /// How likely a chat call is answered by 503 with `Retry-After`, 0 to 1.
    pub failure_rate: f64,
    /// Decides which replies have mistakes and which calls fail.
    pub seed: u64,
    /// Replies to give before arithmetic is tried.
    pub script: Option<Script>,
}

/// Why the stand-in did not start. The operator must change a setting.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The address is taken, or not this machine's.
    #[error("cannot listen on {address}")]
    Listen {
        /// Where it was to listen.
        address: SocketAddr,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A rate that is no probability.
    #[error("the {name} must be between 0 and 1, not {value}")]
    Rate {
        /// Which rate, as in `error rate`.
        name: &'static str,
        /// What it was set to.
        value: f64,
    },
}

/// A running stand-in. When this is dropped it listens no longer, calls that hang or wait are cut
/// off, and every connection ends with the request it is on.
#[derive(Debug)]
pub struct MockModel {
    address: SocketAddr,
    app: Arc<http::App>,
    stop: CancellationToken,
    server: Option<JoinHandle<()>>,
}

impl MockModel {
    /// Listens, and serves on the current runtime. Port 0 takes any free port.
    ///
    /// # Errors
    ///
    /// The address cannot be listened on, or a rate is not a probability.
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
                tracing::error!(%error, "the stand-in model's server ended");
            }
        });
        Ok(Self { address, app, stop, server: Some(server) })
    }

    /// What a client is given as its base URL, as in `http://127.0.0.1:8000/v1`.
    pub fn base_url(&self) -> String {
        let mut address = self.address;
        // A client cannot connect to "every address".
        if address.ip().is_unspecified() {
            address.set_ip(match address.ip() {
                IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            });
        }
        format!("http://{address}/v1")
    }

    /// Where it listens, with the port it got.
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// Chat calls taken so far, whatever became of them; one that hangs is counted.
    pub fn calls(&self) -> u64 {
        self.app.calls()
    }

    /// Serves until `shutdown` is ready, then answers what can be answered at once and ends.
    /// Calls that hang or wait for their latency are cut off.
    pub async fn run_until(mut self, shutdown: impl Future<Output = ()>) {
        shutdown.await;
        self.stop.cancel();
        if let Some(server) = self.server.take()
            && tokio::time::timeout(DRAIN_MAX, server).await.is_err()
        {
            tracing::warn!("the stand-in model ended with requests under way");
        }
    }
}

impl Drop for MockModel {
    fn drop(&mut self) {
        // Frees the port and ends the waits; each connection ends by itself after that.
        self.stop.cancel();
    }
}

fn check_rate(name: &'static str, value: f64) -> Result<(), StartError> {
    if (0.0..=1.0).contains(&value) { Ok(()) } else { Err(StartError::Rate { name, value }) }
}
