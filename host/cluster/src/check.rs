//! Checks of NATS and of the settings, for the command `doctor`.

use std::time::Instant;

use crate::connect::{client, context};
use crate::error::ClusterError;
use crate::finding::{Finding, Severity, durability};
use crate::message::MESSAGE_BYTES_MAX;
use crate::settings::ClusterSettings;
use crate::storage;

/// Room for headers beside the largest message.
const HEADERS_BYTES: usize = 16 << 10;

/// Time of a request above which admissions are slow, in milliseconds.
const ROUND_TRIP_SLOW_MILLIS: u128 = 20;

/// Checks the settings, the connection, the servers' limits, and the stream and the bucket. Creates the last two if
/// they do not exist, as the server does.
pub async fn check(settings: &ClusterSettings) -> Vec<Finding> {
    if let Err(error) = settings.check() {
        return vec![Finding::new("nats settings", Severity::Failure, error.to_string())];
    }
    let mut findings = vec![durability(settings)];
    let client = match client(settings).await {
        Ok(client) => client,
        Err(error) => {
            let advice = "check cluster.nats.urls, the credentials and that the servers run";
            findings.push(of_error("nats connection", &error).with(advice));
            return findings;
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
    match storage::stream(&jetstream, settings).await {
        Ok(stream) => {
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
            findings.push(Finding::new("nats stream", severity, finding));
        }
        Err(error) => findings.push(of_error("nats stream", &error)),
    }
    match storage::bucket(&jetstream, settings).await {
        Ok(_) => {
            let finding = format!("bucket {}", settings.bucket());
            findings.push(Finding::new("nats bucket", Severity::Good, finding));
        }
        Err(error) => findings.push(of_error("nats bucket", &error)),
    }
    findings
}

fn of_error(check: &'static str, error: &ClusterError) -> Finding {
    Finding::new(check, Severity::Failure, crate::error::chain(error))
}
