//! `serve --role`, a server among several machines.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};
use rollout_assembly::config::{Config, Role};
use rollout_core::capacity::{Machine, raise_descriptors};
use rollout_outbound::Secret;
use rollout_server::WorkerIdentity;
use rollout_server::gateway::{Gateway, GatewaySettings};

use super::Serve;
use crate::setup;

/// File with the name of a journal's log.
const LOG_FILE: &str = "log-name";

/// Number of open files that a gateway does not use for callers.
const OTHER_FILES: u64 = 64;

/// Maximum number of callers' connections of a gateway.
const CALLERS_MAX: u64 = 65_536;

impl Serve {
    /// Refuses options that do not fit the role.
    pub(super) fn refuse_for_role(&self, config: &Config) -> Result<()> {
        match config.cluster.role {
            Role::Both => Ok(()),
            Role::Gateway if self.plugin.is_some() || self.catalog.is_some() => {
                bail!("--role gateway: a gateway runs no rollouts; give the plugin to the workers")
            }
            Role::Worker if self.catalog.is_some() => {
                bail!("--role worker: a worker serves one plugin; a catalog is for a server alone")
            }
            Role::Worker if self.plugin.is_none() => {
                bail!("--role worker: a worker needs the plugin that it serves")
            }
            Role::Gateway | Role::Worker => Ok(()),
        }
    }
}

/// Returns the key that gateways and workers share. The configuration was checked to name one.
fn cluster_key(config: &Config) -> Result<Secret> {
    let key = setup::key_from_env("cluster.key-env", config.cluster.key_env.as_deref())?;
    key.context("cluster.key-env: gateways and workers need a common key")
}

/// Returns a gateway to the configured workers.
pub(super) fn gateway(config: &Config, server_key: Option<Secret>) -> Result<Gateway> {
    let memory_budget_bytes = config.memory_budget_bytes.map(|bytes| bytes as u64);
    let machine = Machine { memory_budget_bytes, ..Machine::read() };
    let memory_bytes = usize::try_from(machine.memory_budget()).unwrap_or(usize::MAX);
    let workers = config.cluster.workers.clone();
    let settings = GatewaySettings::of(config, workers, cluster_key(config)?, server_key, memory_bytes);
    let addresses: Vec<&str> = settings.workers.iter().map(|url| url.as_str()).collect();
    tracing::info!(?addresses, "passing requests to workers");
    Ok(Gateway::new(settings)?)
}

/// Returns the maximum number of callers' connections of a gateway, which has one to a worker for each.
pub(super) fn callers_max() -> usize {
    let descriptors = raise_descriptors().saturating_sub(OTHER_FILES) / 2;
    usize::try_from(descriptors.clamp(1, CALLERS_MAX)).unwrap_or(usize::MAX)
}

/// Returns the identity of this server as a worker; none if it is alone.
pub(super) fn worker_identity(config: &Config, journal: Option<&Path>) -> Result<Option<WorkerIdentity>> {
    if config.cluster.role != Role::Worker {
        return Ok(None);
    }
    let name = config.cluster.worker_name.clone().map_or_else(machine_name, Ok)?;
    let log = match journal {
        Some(dir) => log_name(dir, &name)?,
        None => new_log(&name)?,
    };
    tracing::info!(worker = name, log, "running rollouts for gateways");
    Ok(Some(WorkerIdentity { name, log, key: cluster_key(config)? }))
}

/// Returns the name of the machine, as far as it can be the name of a worker.
fn machine_name() -> Result<String> {
    let full = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .context("cannot read the name of this machine")?;
    let full = full.trim().to_ascii_lowercase();
    let label = full.split('.').next().unwrap_or_default();
    let is_name = !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if !is_name {
        bail!("the name of this machine, '{full}', cannot be that of a worker; give one with --worker-name");
    }
    Ok(label.to_owned())
}

/// Returns a new name of a log.
fn new_log(worker: &str) -> Result<String> {
    let mut bytes = [0; 4];
    getrandom::fill(&mut bytes).context("the operating system provides no random bytes")?;
    Ok(format!("{worker}-{:08x}", u32::from_be_bytes(bytes)))
}

/// Returns the name of a journal's log, which is written into the journal when the first worker opens it. A worker that is
/// started again with the journal serves the rollouts of the same log.
fn log_name(journal: &Path, worker: &str) -> Result<String> {
    let path = journal.join(LOG_FILE);
    match std::fs::read_to_string(&path) {
        Ok(name) => {
            let name = name.trim();
            let is_name =
                !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
            if !is_name {
                bail!("{} is damaged: it has not the name of a log", path.display());
            }
            return Ok(name.to_owned());
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
    let name = new_log(worker)?;
    let write = || {
        let mut file = tempfile::NamedTempFile::new_in(journal)?;
        file.write_all(name.as_bytes())?;
        file.as_file().sync_all()?;
        file.persist(&path).map_err(|error| error.error)?;
        std::fs::File::open(journal)?.sync_all()
    };
    write().with_context(|| format!("cannot write {}", path.display()))?;
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_keeps_the_name_of_its_log() {
        let dir = tempfile::tempdir().unwrap();
        let name = log_name(dir.path(), "w1").unwrap();
        assert!(name.starts_with("w1-") && name.len() == "w1-".len() + 8, "{name}");
        assert_eq!(log_name(dir.path(), "w2").unwrap(), name);
        let other = tempfile::tempdir().unwrap();
        assert_ne!(log_name(other.path(), "w1").unwrap(), name);
        std::fs::write(other.path().join(LOG_FILE), "").unwrap();
        let error = log_name(other.path(), "w1").unwrap_err().to_string();
        assert!(error.contains("log-name is damaged"), "{error}");
    }
}
