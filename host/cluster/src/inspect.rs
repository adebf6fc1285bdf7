//! Checks of the account's limits, and of the replicas and the room of each stream on the servers.

use async_nats::jetstream::account::Account;
use async_nats::jetstream::context::{Context, GetStreamErrorKind};
use async_nats::jetstream::stream::{ClusterInfo, Info};

use crate::catalog::{CHANGES_BYTES_MAX, snapshot_name};
use crate::error::chain;
use crate::finding::{Finding, Severity};
use crate::settings::ClusterSettings;

/// Fill level above which a stream is nearly full, in percent of its maximum size.
const NEARLY_FULL_PERCENT: u64 = 80;

/// Number of streams that workers with a shared catalog have: logs, owners, changes, quotas, usage, components, activations.
const STREAMS: usize = 7;

/// Checks the account and all streams. A shared catalog is checked if there is one.
pub(crate) async fn inspect(jetstream: &Context, settings: &ClusterSettings) -> Vec<Finding> {
    let mut findings = Vec::new();
    match jetstream.query_account().await {
        Ok(account) => findings.extend(of_account(&account, settings)),
        Err(error) => {
            findings.push(Finding::new(
                "nats account",
                Severity::Warning,
                format!("cannot be read: {error}"),
            ));
        }
    }
    let logs = (settings.stream(), "nats log replicas", true);
    let owners = (format!("KV_{}", settings.bucket()), "nats bucket replicas", true);
    let changes = (format!("{}-catalog", settings.prefix), CATALOG, false);
    let quotas = (format!("KV_{}", settings.quotas_bucket()), "nats quotas", false);
    let usage = (format!("KV_{}", settings.usage_bucket()), "nats usage", false);
    let components = (format!("OBJ_{}-components", settings.prefix), "nats components", false);
    let activations = (format!("KV_{}", settings.activations_bucket()), "nats activations", false);
    for (name, check, is_needed) in [logs, owners, changes, quotas, usage, components, activations] {
        match jetstream.get_stream(&name).await {
            Ok(stream) => {
                findings.push(of_stream(check, stream.cached_info(), settings));
                if check == CATALOG {
                    findings.extend(of_snapshot(jetstream, stream.cached_info(), settings).await);
                }
            }
            Err(error) if !is_needed && is_missing(&error.kind()) => {
                let finding =
                    format!("stream {name} does not exist; the first worker with --catalog creates it");
                findings.push(Finding::new(check, Severity::Good, finding));
            }
            Err(error) => {
                let finding = format!("stream {name}: {error}");
                findings.push(Finding::new(check, Severity::Failure, finding));
            }
        }
    }
    findings
}

/// Checks that the snapshot at the beginning of a catalog's log exists. A log that was never cut has none.
async fn of_snapshot(jetstream: &Context, log: &Info, settings: &ClusterSettings) -> Option<Finding> {
    const CHECK: &str = "nats catalog snapshot";
    let first = log.state.first_sequence;
    if first <= 1 {
        return None;
    }
    let name = snapshot_name(first);
    let found = match jetstream.get_object_store(&format!("{}-components", settings.prefix)).await {
        Ok(objects) => match objects.info(&name).await {
            Ok(object) if object.deleted => Err("it was deleted".to_owned()),
            found => found.map_err(|error| chain(&error)),
        },
        Err(error) => Err(chain(&error)),
    };
    Some(match found {
        Ok(object) => {
            let finding =
                format!("the log begins with change {first}, whose snapshot has {} bytes", object.size);
            Finding::new(CHECK, Severity::Good, finding)
        }
        Err(error) => {
            let finding = format!(
                "the log begins with change {first}, and its snapshot cannot be read: {error}; new workers and workers \
                 that are behind cannot start"
            );
            Finding::new(CHECK, Severity::Failure, finding).with(format!(
                "keep a worker running that has all changes: it stores a new snapshot. Without one, restore the stream and \
                 the object {name} from a backup"
            ))
        }
    })
}

/// Name of the check of a catalog's log.
const CATALOG: &str = "nats catalog";

/// Error code of the servers for a stream that does not exist.
const STREAM_NOT_FOUND: u64 = 10059;

fn is_missing(kind: &GetStreamErrorKind) -> bool {
    matches!(kind, GetStreamErrorKind::JetStream(error) if error.error_code().0 == STREAM_NOT_FOUND)
}

/// Checks that the account's limits allow all streams, each at its maximum size.
fn of_account(account: &Account, settings: &ClusterSettings) -> Vec<Finding> {
    const CHECK: &str = "nats account";
    let limits = &account.limits;
    let needed = settings.log_bytes_max.saturating_add(CHANGES_BYTES_MAX.unsigned_abs());
    let mut findings = Vec::new();
    let storage_max = limits.max_storage.and_then(|max| u64::try_from(max).ok());
    if let Some(max) = storage_max.filter(|max| *max < needed) {
        let finding = format!("it may store {max} bytes, and logs and catalog may have {needed}");
        findings.push(Finding::new(CHECK, Severity::Warning, finding).with(
            "raise the account's max_file_store, or lower cluster.nats.log-bytes-max; components need room beside them",
        ));
    }
    let streams = limits.max_streams.and_then(|max| usize::try_from(max).ok()).unwrap_or(usize::MAX);
    if streams < STREAMS {
        let finding = format!("it may have {streams} streams");
        findings.push(
            Finding::new(CHECK, Severity::Failure, finding)
                .with(format!("workers need {STREAMS}: raise max_streams")),
        );
    }
    if findings.is_empty() {
        let finding = format!("{} bytes in {} streams", account.storage, account.streams);
        findings.push(Finding::new(CHECK, Severity::Good, finding));
    }
    findings
}

fn of_stream(check: &'static str, info: &Info, settings: &ClusterSettings) -> Finding {
    let (name, state, config) = (&info.config.name, &info.state, &info.config);
    let finding = format!("stream {name}: {} bytes, replicas {}", state.bytes, config.num_replicas);
    if config.num_replicas < settings.replicas {
        return Finding::new(
            check,
            Severity::Failure,
            format!("{finding}, and should have {}", settings.replicas),
        )
        .with(format!("nats stream edit {name} --replicas {}", settings.replicas));
    }
    if let Some(problem) = info.cluster.as_ref().and_then(of_replicas) {
        return Finding::new(check, Severity::Warning, format!("{finding}; {problem}"))
            .with("start the missing servers: another failure may stop all rollouts");
    }
    let max = u64::try_from(config.max_bytes).unwrap_or(0);
    if max > 0 && state.bytes > max / 100 * NEARLY_FULL_PERCENT {
        return Finding::new(check, Severity::Warning, format!("{finding} of at most {max}"))
            .with("raise its limit; a full stream refuses new messages");
    }
    Finding::new(check, Severity::Good, finding)
}

/// Returns the problem of a stream's replicas, if there is one.
fn of_replicas(cluster: &ClusterInfo) -> Option<String> {
    if cluster.leader.as_ref().is_none_or(String::is_empty) {
        return Some("it has no leader".to_owned());
    }
    let behind = cluster.replicas.iter().filter(|peer| peer.offline || !peer.current);
    let names: Vec<&str> = behind.map(|peer| peer.name.as_str()).collect();
    (!names.is_empty()).then(|| format!("these servers are away or behind: {}", names.join(", ")))
}
