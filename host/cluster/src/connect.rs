//! The connection of a process to its cluster.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::context::ContextBuilder;
use async_nats::jetstream::{self, kv};
use async_nats::{Client, ConnectOptions};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio_util::task::AbortOnDropHandle;

use crate::error::{ClusterError, unavailable};
use crate::finding::{Severity, durability};
use crate::settings::{ClusterSettings, WrongSetting};
use crate::storage::{self, Stream};

/// Time after which an unanswered request is repeated.
pub(crate) const REQUEST_TIME_MAX: Duration = Duration::from_secs(3);

/// Longest pause between two attempts to connect again.
const RECONNECT_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Interval of the client's pings, by which it finds a dead connection.
const PING_INTERVAL: Duration = Duration::from_secs(5);

/// A connection to the NATS servers of a cluster. Cheap to clone. Reconnects on its own after the first connection.
#[derive(Clone)]
pub struct Cluster(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) settings: ClusterSettings,
    pub(crate) jetstream: jetstream::Context,
    pub(crate) stream: Stream,
    pub(crate) bucket: kv::Store,
    thread: ClusterThread,
}

/// Connection, stream and bucket of a process.
pub(crate) struct Parts {
    pub(crate) jetstream: jetstream::Context,
    pub(crate) stream: Stream,
    pub(crate) bucket: kv::Store,
}

impl Parts {
    async fn connect(settings: &ClusterSettings) -> Result<Self, ClusterError> {
        let jetstream = context(client(settings).await?);
        let stream = storage::stream(&jetstream, settings).await?;
        let bucket = storage::bucket(&jetstream, settings).await?;
        Ok(Self { jetstream, stream, bucket })
    }
}

/// A runtime with a thread of its own, so that a worker that computes, or waits for its journal to close, does not delay
/// heartbeats and acknowledgements.
pub(crate) struct ClusterThread(Option<Runtime>);

impl ClusterThread {
    pub(crate) fn start() -> io::Result<Self> {
        let mut builder = Builder::new_multi_thread();
        Ok(Self(Some(builder.worker_threads(1).thread_name("cluster").enable_all().build()?)))
    }

    pub(crate) fn handle(&self) -> Handle {
        // The runtime is present until `drop`.
        self.0.as_ref().map_or_else(Handle::current, |runtime| runtime.handle().clone())
    }

    /// Runs a future on the thread, and stops it if the caller is dropped.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, ClusterError> {
        AbortOnDropHandle::new(self.handle().spawn(future)).await.map_err(unavailable)
    }
}

impl Drop for ClusterThread {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // Dropping a runtime blocks, which is not allowed in a task.
            runtime.shutdown_background();
        }
    }
}

impl Cluster {
    /// Connects, and creates the stream and the bucket if they do not exist. Existing ones are checked, not changed.
    /// Settings with which acknowledged records may be lost are refused unless they accept that.
    pub async fn connect(settings: ClusterSettings) -> Result<Self, ClusterError> {
        settings.check()?;
        let durability = durability(&settings);
        if durability.severity == Severity::Failure {
            let advice = durability.advice.unwrap_or_default();
            let problem = format!("{}; {advice}", durability.finding);
            return Err(WrongSetting { name: "replicas", problem }.into());
        }
        let thread = ClusterThread::start()?;
        let of_thread = settings.clone();
        let parts = thread.run(async move { Parts::connect(&of_thread).await }).await??;
        Ok(Self::of(settings, thread, parts))
    }

    /// Creates a cluster from the parts that were connected on this thread.
    pub(crate) fn of(settings: ClusterSettings, thread: ClusterThread, parts: Parts) -> Self {
        let Parts { jetstream, stream, bucket } = parts;
        Self(Arc::new(Inner { settings, jetstream, stream, bucket, thread }))
    }

    /// Returns the settings.
    pub fn settings(&self) -> &ClusterSettings {
        &self.0.settings
    }

    /// Returns the JetStream context, for data other than workers' logs.
    pub fn jetstream(&self) -> &jetstream::Context {
        &self.0.jetstream
    }

    /// Returns the runtime on which the connection lives.
    pub(crate) fn handle(&self) -> Handle {
        self.0.thread.handle()
    }

    /// Runs a future on the cluster's thread.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, ClusterError> {
        self.0.thread.run(future).await
    }
}

/// Returns a JetStream context with the timeouts of this crate.
pub(crate) fn context(client: Client) -> jetstream::Context {
    ContextBuilder::new().timeout(REQUEST_TIME_MAX).build(client)
}

/// Connects a client.
pub(crate) async fn client(settings: &ClusterSettings) -> Result<Client, ClusterError> {
    let mut options = ConnectOptions::new()
        .name("rollout-host")
        .ping_interval(PING_INTERVAL)
        .request_timeout(Some(REQUEST_TIME_MAX))
        .reconnect_delay_callback(|attempts| {
            let millis = 50_u64.saturating_mul(1 << attempts.min(8));
            Duration::from_millis(millis).min(RECONNECT_PAUSE_MAX)
        })
        .event_callback(|event| async move {
            match event {
                async_nats::Event::Connected => tracing::info!("connected to NATS"),
                async_nats::Event::Disconnected => tracing::warn!("the connection to NATS is lost"),
                // The client was dropped.
                async_nats::Event::Closed => tracing::debug!("the connection to NATS is closed"),
                event => tracing::warn!(%event, "NATS reports a problem"),
            }
        });
    if let Some(path) = &settings.credentials {
        options = options.credentials_file(path).await.map_err(|error| wrong_file(path, error))?;
    }
    if let (Some(user), Some(path)) = (&settings.user, &settings.password_file) {
        let password = tokio::fs::read_to_string(path).await.map_err(|error| wrong_file(path, error))?;
        options = options.user_and_password(user.clone(), password.trim_end().to_owned());
    }
    if let Some(path) = &settings.ca_certificates {
        readable(path).await?;
        options = options.add_root_certificates(path.clone());
    }
    if let (Some(certificate), Some(key)) = (&settings.client_certificate, &settings.client_key) {
        readable(certificate).await?;
        readable(key).await?;
        options = options.add_client_certificate(certificate.clone(), key.clone());
    }
    let connected = options.connect(settings.urls.clone()).await;
    connected.map_err(|error| {
        let why = crate::error::chain(&error);
        ClusterError::Unavailable(format!("cannot connect to {}: {why}", settings.urls.join(", ")))
    })
}

/// Checks that a file can be read, because the client's own error does not name the file.
async fn readable(path: &Path) -> Result<(), ClusterError> {
    tokio::fs::read(path).await.map(drop).map_err(|error| wrong_file(path, error))
}

fn wrong_file(path: &Path, source: io::Error) -> ClusterError {
    ClusterError::Credentials { path: path.display().to_string(), source }
}
