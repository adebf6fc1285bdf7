//! Export of spans to a collector, by OTLP over HTTP, in batches, in a background task.
//!
//! A span is dropped and counted if the queue is full or the collector did not accept its batch: a slow or missing
//! collector never delays a rollout.

use std::sync::Arc;
use std::time::{Duration, Instant};

use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use prometheus::IntCounter;
use reqwest::Url;
use tokio::sync::{mpsc, oneshot};

use super::RolloutTrace;

/// Maximum number of spans in the queue, each smaller than a few kilobytes.
const QUEUE_SPANS_MAX: usize = 8192;

/// Maximum number of spans in one request.
const BATCH_SPANS_MAX: usize = 512;

/// Time that a batch waits for more spans.
const BATCH_DELAY: Duration = Duration::from_secs(1);

/// Timeout of one request.
const EXPORT_TIME_MAX: Duration = Duration::from_secs(10);

/// Time between two log lines about a failing collector.
const COMPLAINT_PAUSE: Duration = Duration::from_secs(60);

/// Error of an address that traces cannot be exported to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidOtlp {
    /// The address is not a URL of a collector.
    #[error("'{0}' is not the http or https URL of an OTLP collector, such as http://127.0.0.1:4318")]
    Url(String),
    /// The exporter refused the address.
    #[error("cannot create the trace exporter")]
    Exporter(#[source] opentelemetry_otlp::ExporterBuildError),
}

/// Sender of spans to the export task.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    sender: mpsc::Sender<Message>,
    dropped: IntCounter,
}

#[derive(Debug)]
enum Message {
    Span(Box<SpanData>),
    /// Reports back when all earlier spans are sent.
    Flush(oneshot::Sender<()>),
}

impl Queue {
    pub(super) fn push(&self, span: Box<SpanData>) {
        if self.sender.try_send(Message::Span(span)).is_err() {
            self.dropped.inc();
        }
    }
}

/// Counters of spans.
#[derive(Clone, Debug)]
pub(in crate::telemetry) struct SpanCounts {
    pub exported: IntCounter,
    pub dropped: IntCounter,
}

/// A running export of traces.
#[derive(Clone, Debug)]
pub struct Traces(Queue);

impl Traces {
    /// Starts exporting to a collector, on the current runtime. A URL without a path is the collector's base URL, to
    /// which `/v1/traces` is appended.
    pub(in crate::telemetry) fn start(
        url: &str,
        http: reqwest::Client,
        counts: SpanCounts,
    ) -> Result<Self, InvalidOtlp> {
        let endpoint = endpoint(url)?;
        let mut exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(http)
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(endpoint)
            .with_timeout(EXPORT_TIME_MAX)
            .build()
            .map_err(InvalidOtlp::Exporter)?;
        let version = opentelemetry::KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        let resource = Resource::builder().with_service_name("rollout-host").with_attribute(version).build();
        exporter.set_resource(&resource);
        let (sender, messages) = mpsc::channel(QUEUE_SPANS_MAX);
        let queue = Queue { sender, dropped: counts.dropped.clone() };
        tokio::spawn(Export { exporter: Arc::new(exporter), counts, complained: None }.run(messages));
        Ok(Self(queue))
    }

    /// Starts the trace of a rollout that was just admitted.
    pub(in crate::telemetry) fn rollout(&self, rollout_id: &str) -> RolloutTrace {
        RolloutTrace::begin(self.0.clone(), rollout_id)
    }

    /// Waits until all spans that ended before are sent or dropped, at most for `time`. Returns whether all were sent.
    pub async fn flush(&self, time: Duration) -> bool {
        let dropped = self.0.dropped.get();
        let flushed = async {
            let (done, flushed) = oneshot::channel();
            self.0.sender.send(Message::Flush(done)).await.is_ok() && flushed.await.is_ok()
        };
        tokio::time::timeout(time, flushed).await.unwrap_or(false) && self.0.dropped.get() == dropped
    }
}

fn endpoint(url: &str) -> Result<String, InvalidOtlp> {
    let invalid = || InvalidOtlp::Url(url.to_owned());
    let mut parsed = Url::parse(url).map_err(|_| invalid())?;
    if !matches!(parsed.scheme(), "http" | "https") || !parsed.has_host() {
        return Err(invalid());
    }
    if parsed.path() == "/" {
        parsed.set_path("/v1/traces");
    }
    Ok(parsed.into())
}

/// The export task.
struct Export {
    exporter: Arc<SpanExporter>,
    counts: SpanCounts,
    complained: Option<Instant>,
}

impl Export {
    /// Exports spans until all senders are dropped.
    async fn run(mut self, mut messages: mpsc::Receiver<Message>) {
        let mut batch = Vec::new();
        while let Some(message) = messages.recv().await {
            let mut waiting = self.take(message, &mut batch).await;
            let until = tokio::time::Instant::now() + BATCH_DELAY;
            while waiting && batch.len() < BATCH_SPANS_MAX {
                let Ok(Some(message)) = tokio::time::timeout_at(until, messages.recv()).await else { break };
                waiting = self.take(message, &mut batch).await;
            }
            self.send(&mut batch).await;
        }
    }

    /// Handles a message. Returns whether the batch may wait for more.
    async fn take(&mut self, message: Message, batch: &mut Vec<SpanData>) -> bool {
        match message {
            Message::Span(span) => {
                batch.push(*span);
                true
            }
            Message::Flush(done) => {
                self.send(batch).await;
                // The receiver is gone after a timeout.
                let _ = done.send(());
                false
            }
        }
    }

    async fn send(&mut self, batch: &mut Vec<SpanData>) {
        let count = batch.len() as u64;
        if count == 0 {
            return;
        }
        let sent = self.exporter.export(std::mem::take(batch));
        let reason = match tokio::time::timeout(EXPORT_TIME_MAX, sent).await {
            Ok(Ok(())) => return self.counts.exported.inc_by(count),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {}", rollout_wire::text::time(EXPORT_TIME_MAX)),
        };
        self.counts.dropped.inc_by(count);
        if self.complained.is_none_or(|at| at.elapsed() > COMPLAINT_PAUSE) {
            self.complained = Some(Instant::now());
            let dropped = self.counts.dropped.get();
            tracing::warn!(reason, dropped, "the trace collector accepted no spans");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_url_gets_the_default_path_and_other_paths_stay() {
        fn check(url: &str, expected: Option<&str>) {
            assert_eq!(endpoint(url).ok().as_deref(), expected, "{url}");
        }
        check("http://h:4318", Some("http://h:4318/v1/traces"));
        check("http://h:4318/", Some("http://h:4318/v1/traces"));
        check("https://h/otlp/v1/traces", Some("https://h/otlp/v1/traces"));
        check("h:4318", None);
        check("grpc://h:4317", None);
    }
}
