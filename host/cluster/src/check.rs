//! Checks of NATS and of the settings, for the command `doctor`.

use std::time::Instant;

use crate::connect::{Cluster, ClusterThread, Parts, client, context};
use crate::error::ClusterError;
use crate::finding::{Finding, Severity, durability};
use crate::inspect::inspect;
use crate::message::MESSAGE_BYTES_MAX;
use crate::settings::ClusterSettings;
use crate::storage::{self, Stream};

/// Bytes for headers in addition to the largest message.
const HEADERS_BYTES: usize = 16 << 10;

/// Round-trip time above which admissions are slow, in milliseconds.
const ROUND_TRIP_SLOW_MILLIS: u128 = 20;

/// Checks the settings, the connection, the servers' and the account's limits, the stream and the bucket with their replicas,
/// and those of a shared catalog if there is one. Creates stream and bucket if they do not exist, as the server does.
pub async fn check(settings: &ClusterSettings) -> Vec<Finding> {
    let (mut findings, cluster) = connect_checked(settings).await;
    let Some(cluster) = cluster else { return findings };
    let (jetstream, settings) = (cluster.0.jetstream.clone(), settings.clone());
    match cluster.run(async move { inspect(&jetstream, &settings).await }).await {
        Ok(more) => findings.extend(more),
        Err(error) => findings.push(of_error("nats account", &error)),
    }
    findings
}

/// Connects like [`Cluster::connect`], and also returns the findings of [`check`] over the same connection. The cluster is
/// `None` if the settings or the servers are refused; then one of the findings is a failure.
pub async fn connect_checked(settings: &ClusterSettings) -> (Vec<Finding>, Option<Cluster>) {
    let failure = |check, why: String| (vec![Finding::new(check, Severity::Failure, why)], None);
    if let Err(error) = settings.check() {
        return failure("nats settings", error.to_string());
    }
    let thread = match ClusterThread::start() {
        Ok(thread) => thread,
        Err(error) => return failure("nats connection", error.to_string()),
    };
    let of_thread = settings.clone();
    match thread.run(async move { found(&of_thread).await }).await {
        Ok((findings, parts)) => {
            let is_refused = findings.iter().any(|finding| finding.severity == Severity::Failure);
            let parts = parts.filter(|_| !is_refused);
            (findings, parts.map(|parts| Cluster::of(settings.clone(), thread, parts)))
        }
        Err(error) => failure("nats connection", crate::error::chain(&error)),
    }
}

/// Returns all findings, and the parts of the cluster if all of them can be used.
async fn found(settings: &ClusterSettings) -> (Vec<Finding>, Option<Parts>) {
    let mut findings = vec![durability(settings)];
    let client = match client(settings).await {
        Ok(client) => client,
        Err(error) => {
            let advice = "check cluster.nats.urls, the credentials and that the servers run";
            findings.push(of_error("nats connection", &error).with(advice));
            return (findings, None);
        }
    };
    let began = Instant::now();
    let round_trip = client.flush().await.is_ok().then(|| began.elapsed().as_millis());
    let server = client.server_info();
    let slow = round_trip.is_none_or(|millis| millis > ROUND_TRIP_SLOW_MILLIS);
    let finding = format!(
        "server {} of version {}, round trip {} ms",
        server.server_name,
        server.version,
        round_trip.map_or("of unknown".to_owned(), |millis| millis.to_string())
    );
    let severity = if slow { Severity::Warning } else { Severity::Good };
    findings.push(Finding::new("nats connection", severity, finding));
    if !client.is_server_compatible(2, 10, 0) {
        let finding = format!("version {} is too old", server.version);
        findings.push(Finding::new("nats version", Severity::Failure, finding).with("use 2.10 or newer"));
    }
    if server.max_payload < MESSAGE_BYTES_MAX + HEADERS_BYTES {
        let finding = format!("max_payload is {} bytes", server.max_payload);
        let advice = "leave max_payload at its default of 1MB";
        findings.push(Finding::new("nats limits", Severity::Failure, finding).with(advice));
    }
    let jetstream = context(client);
    let stream = storage::stream(&jetstream, settings).await;
    match &stream {
        Ok(stream) => findings.push(of_stream(settings, stream)),
        Err(error) => findings.push(of_error("nats stream", error)),
    }
    let bucket = storage::bucket(&jetstream, settings).await;
    match &bucket {
        Ok(_) => {
            let finding = format!("bucket {}", settings.bucket());
            findings.push(Finding::new("nats bucket", Severity::Good, finding));
        }
        Err(error) => findings.push(of_error("nats bucket", error)),
    }
    let parts = stream.ok().zip(bucket.ok()).map(|(stream, bucket)| Parts { jetstream, stream, bucket });
    (findings, parts)
}

fn of_stream(settings: &ClusterSettings, stream: &Stream) -> Finding {
    let state = &stream.cached_info().state;
    let finding = format!(
        "stream {}: {} messages, {} of at most {} bytes",
        settings.stream(),
        state.messages,
        state.bytes,
        settings.log_bytes_max
    );
    // When it is full, no rollout starts.
    let is_nearly_full = state.bytes > settings.log_bytes_max / 5 * 4;
    let severity = if is_nearly_full { Severity::Warning } else { Severity::Good };
    Finding::new("nats stream", severity, finding)
}

fn of_error(check: &'static str, error: &ClusterError) -> Finding {
    Finding::new(check, Severity::Failure, crate::error::chain(error))
}
