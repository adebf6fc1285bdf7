//! Takeover of the logs of dead workers, each by a process of its own.
//!
//! A log is continued by a child process with the same arguments, and with the log in its environment: it claims the
//! log, writes the journal from it, resumes the rollouts, answers their polls, and ends when all of them are over and
//! read. A takeover is therefore the same start that every worker makes, and a log that cannot be continued affects
//! nothing else. The kernel kills the child with its parent, and another worker then takes over the log.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::Result;
use rollout_assembly::config::RawConfig;
use rollout_cluster::{Claim, Cluster, Member, Members};
use rollout_core::budget::{Budget, Charge, Use};
use rollout_core::child::OwnedChild;
use rollout_core::telemetry::Replication;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{ChildStdout, Command};

use crate::print::outln;
use crate::{Exit, plugin_file};

/// Maximum number of logs that one worker continues. Further logs are left to other workers, or wait until one is
/// finished.
const ADOPTED_MAX: usize = 2;

/// Divisor of the memory budget for the process of each log.
const MEMORY_PART: usize = 4;

/// Smallest memory budget of a process, in bytes.
const MEMORY_MIN: usize = 64 << 20;

/// Interval between checks whether an adopted log is finished.
const OVER_INTERVAL: Duration = Duration::from_secs(1);

/// Pause before this worker retries a log that it failed to continue. It doubles up to the maximum, because a damaged
/// log stays damaged.
const FAILED_PAUSE: Duration = Duration::from_secs(5);
const FAILED_PAUSE_MAX: Duration = Duration::from_secs(300);

/// Returns the folder of the journals of adopted logs, beside a worker's own journal.
pub(super) fn folder(journal: &Path) -> PathBuf {
    journal.join("adopted")
}

/// Changes the configuration of a worker to that of a process for another worker's log. With a catalog, journals and
/// artifacts are in its folder.
pub(super) fn change_config(raw: &mut RawConfig, log: &str, has_catalog: bool) {
    let ip = raw.listen.as_deref().and_then(|listen| listen.parse::<SocketAddr>().ok());
    let ip = ip.map_or(Ipv4Addr::LOCALHOST.into(), |address| address.ip());
    let root = raw.artifact_root.clone().unwrap_or_else(|| "rollouts".into());
    let journal = raw.journal.dir.clone().unwrap_or_else(|| root.join(".journal"));
    raw.listen = Some(SocketAddr::from((ip, 0)).to_string());
    if !has_catalog {
        raw.journal.dir = Some(folder(&journal).join(log));
        raw.artifact_root = Some(root.join("adopted").join(log));
    }
    raw.cluster.worker_name = Some(log.to_owned());
    // The child listens on another port.
    if let Some(advertise) = &mut raw.cluster.advertise
        && let Ok(mut url) = advertise.parse::<reqwest::Url>()
        && url.set_port(None).is_ok()
    {
        *advertise = url.to_string();
    }
    (raw.on_start, raw.on_stop) = (None, None);
    if let Some(bytes) = std::env::var(MEMORY_VARIABLE).ok().and_then(|bytes| bytes.parse().ok()) {
        raw.memory_budget_bytes = Some(bytes);
    }
}

/// Environment variable with the log that a child process continues.
const LOG_VARIABLE: &str = "ROLLOUT_HOST_ADOPTED_LOG";

/// Returns the log that this process continues; `None` if it is an ordinary worker.
pub(super) fn adopted_log() -> Option<String> {
    std::env::var(LOG_VARIABLE).ok().filter(|log| !log.is_empty())
}

/// Environment variable with the epoch in which its parent claimed the log for it.
const EPOCH_VARIABLE: &str = "ROLLOUT_HOST_ADOPTED_EPOCH";

/// Returns the claim that this process makes: that of its own log, or of the one that its parent claimed for it.
pub(super) fn claim(log: &str) -> Claim<'_> {
    let epoch = std::env::var(EPOCH_VARIABLE).ok().and_then(|epoch| epoch.parse().ok());
    epoch.map_or(Claim::Own(log), |epoch| Claim::Handed { log, epoch })
}

/// Environment variable with the memory budget of a child process.
const MEMORY_VARIABLE: &str = "ROLLOUT_HOST_ADOPTED_MEMORY_BYTES";

/// Takes over the logs of dead workers.
pub(super) struct Adopter {
    budget: Budget,
    memory_bytes: usize,
}

/// A log that this worker continues.
struct Adopted {
    child: OwnedChild,
    /// The child's memory, which this process does not use meanwhile.
    _charge: Charge,
}

impl Adopter {
    /// Creates the adopter of a worker with this memory budget.
    pub(super) fn new(budget: Budget) -> Self {
        Self { memory_bytes: (budget.total() / MEMORY_PART).max(MEMORY_MIN), budget }
    }

    /// Watches the leases of all workers and never returns.
    pub(super) async fn run(self, cluster: Cluster, own: String, replication: Replication) {
        let mut members = match cluster.members().await {
            Ok(members) => members,
            Err(error) => {
                tracing::error!(%error, "no log of a dead worker is taken over by this one");
                return;
            }
        };
        let mut adopted: HashMap<String, Adopted> = HashMap::new();
        // Number of consecutive failures of each log, and the time of the last one.
        let mut failures: HashMap<String, (u32, Instant)> = HashMap::new();
        let note = |failures: &mut HashMap<String, (u32, Instant)>, log: &str| {
            let (count, at) = failures.entry(log.to_owned()).or_insert((0, Instant::now()));
            (*count, *at) = (*count + 1, Instant::now());
        };
        loop {
            members.changed().await;
            adopted.retain(|log, one| match one.child.child.try_wait() {
                Ok(None) => true,
                Ok(Some(status)) if status.success() => {
                    tracing::info!(log, "the log of another worker is over");
                    failures.remove(log);
                    false
                }
                Ok(Some(status)) => {
                    tracing::warn!(log, %status, "the process for the log of another worker has failed");
                    replication.takeover_failed();
                    note(&mut failures, log);
                    false
                }
                Err(error) => {
                    tracing::warn!(log, %error, "the process for the log of another worker is lost");
                    note(&mut failures, log);
                    false
                }
            });
            for member in expired(&members, &own) {
                let is_paused = failures.get(&member.log).is_some_and(|(count, at)| {
                    let pause = FAILED_PAUSE * 2_u32.saturating_pow(count.saturating_sub(1).min(6));
                    at.elapsed() < pause.min(FAILED_PAUSE_MAX)
                });
                if is_paused || adopted.contains_key(&member.log) || adopted.len() >= ADOPTED_MAX {
                    continue;
                }
                // Without room, the log is left to another worker or to a later attempt.
                let Ok(charge) = self.budget.charge(Use::Guest, self.memory_bytes) else { continue };
                match self.adopt(&cluster, &member).await {
                    Ok(Some(mut child)) => {
                        if let Some(output) = child.child.stdout.take() {
                            tokio::spawn(count_continued(output, replication.clone()));
                        }
                        adopted.insert(member.log.clone(), Adopted { child, _charge: charge });
                    }
                    Ok(None) => {}
                    Err(error) => {
                        tracing::error!(log = member.log, %error, "a log cannot be taken over");
                        replication.takeover_failed();
                        note(&mut failures, &member.log);
                    }
                }
            }
        }
    }

    /// Starts the process for a log, unless another worker was faster.
    async fn adopt(&self, cluster: &Cluster, member: &Member) -> Result<Option<OwnedChild>> {
        // The process that continues the log sets its own address when it claims the log in turn.
        let epoch = match cluster.claim(Claim::Expired(member), &member.owner).await {
            Ok(claimed) => claimed.epoch(),
            Err(rollout_cluster::ClaimError::Lost { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        tracing::warn!(log = member.log, owner = member.owner.url, "taking over the log of a dead worker");
        let mut command = Command::new(plugin_file::this_program()?);
        command
            .args(std::env::args_os().skip(1))
            .env(LOG_VARIABLE, &member.log)
            .env(EPOCH_VARIABLE, epoch.to_string())
            .env(MEMORY_VARIABLE, self.memory_bytes.to_string())
            .env_remove("NOTIFY_SOCKET")
            .env_remove("WATCHDOG_USEC")
            .env_remove("LISTEN_FDS")
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        Ok(Some(OwnedChild::start(command).await?))
    }
}

/// Reads the output of the process for a log, and counts its rollouts when they continue.
async fn count_continued(output: ChildStdout, replication: Replication) {
    let began = Instant::now();
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if let Some(count) = line.strip_prefix(CONTINUING).and_then(|count| count.parse().ok()) {
            replication.taken_over(began.elapsed(), count);
        }
    }
}

/// Returns the logs of other workers whose leases have expired.
fn expired(members: &Members, own: &str) -> Vec<Member> {
    members.expired().into_iter().filter(|member| member.log != own).collect()
}

/// Beginning of the line with which the process for a log reports to its parent how many rollouts continue.
const CONTINUING: &str = "continuing rollouts: ";

/// Serves until the adopted log has no live rollouts and no unread results.
pub(super) async fn until_over(
    serving: impl Future<Output = Result<Exit>>,
    resumed: impl Fn() -> Option<usize>,
    is_idle: impl Fn() -> bool,
) -> Result<Exit> {
    let over = async {
        let mut ticks = tokio::time::interval(OVER_INTERVAL);
        let mut is_reported = false;
        loop {
            ticks.tick().await;
            if let Some(count) = resumed().filter(|_| !is_reported) {
                is_reported = true;
                outln!("{CONTINUING}{count}");
            }
            if is_idle() {
                return;
            }
        }
    };
    tokio::select! {
        exit = serving => exit,
        () = over => Ok(Exit::Done),
    }
}
