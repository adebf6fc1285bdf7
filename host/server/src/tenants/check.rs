//! Checks pushed deployments: runs `validate` in a process of its own, which compiles in another one.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::process::Command;

use super::Tenants;
use crate::admin::{CheckError, CheckReport, CheckRequest};
use rollout_assembly::config::Config;
use rollout_catalog::CatalogError;
use rollout_core::child::OwnedChild;
use rollout_wire::text::beginning;

/// Settings of the checks of pushed deployments.
#[derive(Clone, Debug)]
pub struct Checks {
    /// The program with the command `validate`.
    pub program: PathBuf,
    /// The program's options that select the cache of compiled code.
    pub cache: Vec<OsString>,
    /// Maximum time of a check, without the compilation.
    pub time_max: Duration,
    /// Maximum time of a compilation.
    pub compile_time_max: Duration,
    /// Maximum number of checks that run at once.
    pub at_once: u32,
    /// Maximum memory of each check and of each compiler.
    pub memory: CheckMemory,
}

/// Maximum memory of the processes that check and compile. It is a part of the memory outside the memory budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckMemory {
    /// Maximum bytes of the guests in a check and of their records.
    pub guest_bytes_max: usize,
    /// Maximum bytes of compiling one component.
    pub compile_bytes_max: usize,
}

/// The largest and the smallest [`CheckMemory::guest_bytes_max`]. The smallest is enough for a simple guest in Python.
const GUEST_BYTES_MAX: u64 = 1 << 30;
const GUEST_BYTES_MIN: u64 = 128 << 20;

/// The smallest [`CheckMemory::compile_bytes_max`]: a small component of a Python project takes 340 MiB.
const COMPILE_BYTES_MIN: u64 = 384 << 20;

/// Bytes of memory of a check's process in addition to its guests.
const PROCESS_BYTES: u64 = 48 << 20;

/// Divisor of [`CheckMemory::guest_bytes_max`] that gives the part for the records.
const RECORD_PART: usize = 4;

impl CheckMemory {
    /// Divides the memory outside the budget among all checks and compilers that run at once.
    pub fn of(bytes_outside_budget: u64, checks_at_once: u32) -> Self {
        let checks = u64::from(checks_at_once.max(1));
        let compilers = checks + u64::from(super::LOADING_MAX);
        let guest = (bytes_outside_budget / checks).saturating_sub(PROCESS_BYTES);
        let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let compile = (bytes_outside_budget / compilers).max(COMPILE_BYTES_MIN);
        Self {
            guest_bytes_max: bytes(guest.clamp(GUEST_BYTES_MIN, GUEST_BYTES_MAX)),
            compile_bytes_max: bytes(compile),
        }
    }

    /// Returns the maximum memory of one instance in a check, in bytes.
    fn instance_bytes_max(&self) -> usize {
        self.guest_bytes_max - self.guest_bytes_max / RECORD_PART
    }
}

/// Maximum number of bytes of a check's stderr that are logged.
const STDERR_BYTES_MAX: usize = 2000;

/// Checks a pushed deployment.
pub(super) async fn check(tenants: &Tenants, pushed: CheckRequest) -> Result<CheckReport, CheckError> {
    let inner = &tenants.0;
    let text = pushed.config.as_deref().unwrap_or_default();
    let at = format!("the configuration of {}", pushed.plugin);
    let memory = inner.checks.memory;
    let mut config = match inner.operators.for_tenant(text, &at) {
        Ok(config) => config,
        // An invalid configuration is the author's fault, so it is a result of the check.
        Err(error) => return Ok(failed_report(&pushed.plugin, "settings", &error.to_string())),
    };
    let instance_bytes_max = memory.instance_bytes_max();
    let is_reduced = instance_bytes_max < config.limits.memory_bytes_max;
    config.limits.memory_bytes_max = config.limits.memory_bytes_max.min(instance_bytes_max);
    let compile_bytes_max = &mut config.load_limits.compile_memory_bytes_max;
    *compile_bytes_max = memory.compile_bytes_max.min(*compile_bytes_max);
    let Ok(_permit) = inner.checking.acquire().await else {
        return Err(CheckError::Busy("the server is shutting down".to_owned()));
    };
    let host_failed = |problem: &str, error: std::io::Error| {
        tracing::error!(%error, "a pushed deployment cannot be checked: {problem}");
        let detail = "this host cannot check the deployment at present; its log has the reason";
        CheckError::Failed(detail.to_owned())
    };
    let file = tokio::task::spawn_blocking({
        let text = format!("memory-budget-bytes = {}\n{text}", memory.guest_bytes_max);
        let folder = inner.catalog.path().to_owned();
        move || {
            let file = tempfile::Builder::new().prefix("check-").suffix(".toml").tempfile_in(folder)?;
            std::fs::write(file.path(), text)?;
            Ok(file)
        }
    });
    let file = file.await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
    let file = file.map_err(|error| host_failed("its configuration cannot be written", error))?;
    let (catalog, component, grader) = (inner.catalog.clone(), pushed.component, pushed.grader);
    let paths = tokio::task::spawn_blocking(move || {
        let grader = grader.map(|grader| catalog.component_path(grader)).transpose()?;
        Ok::<_, CatalogError>((catalog.component_path(component)?, grader))
    });
    let paths = paths.await.map_err(std::io::Error::other);
    let paths = paths.and_then(|paths| paths.map_err(std::io::Error::other));
    let (component, grader) = paths.map_err(|error| host_failed("its components cannot be read", error))?;
    let mut command = Command::new(&inner.checks.program);
    command.arg("validate").arg(&component).arg("--json");
    if let Some(grader) = &grader {
        command.arg("--grader").arg(grader);
    }
    command.arg("--config").arg(file.path()).args(&inner.checks.cache).args(limits(&config));
    command.arg("--secs-max").arg(inner.checks.time_max.as_secs_f64().to_string());
    // The process runs a tenant's guests, so it does not inherit the host's environment.
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let timeout = inner.checks.timeout();
    let Ok(output) = tokio::time::timeout(timeout, output_of(command)).await else {
        let detail = format!("the checks took more than {} s", timeout.as_secs());
        return Ok(failed_report(&pushed.plugin, "runs", &detail));
    };
    let output = output.map_err(|error| host_failed("its process failed", error))?;
    let report = String::from_utf8_lossy(&output.stdout);
    // The author must not see the host's paths.
    let report =
        [Some(component), grader].into_iter().flatten().fold(report.trim().to_owned(), |report, path| {
            report.replace(&*path.to_string_lossy(), &pushed.plugin)
        });
    let report = if is_reduced { with_reduced_limit(&report, instance_bytes_max) } else { report };
    match verdict(&report) {
        Some(passed) if output.status.code().is_some() => Ok(CheckReport { passed, report }),
        _ => {
            let stderr = String::from_utf8_lossy(&output.stderr);
            let stderr = beginning(stderr.trim(), STDERR_BYTES_MAX);
            Err(host_failed(
                "its process returned no verdict",
                std::io::Error::other(format!("{}: {stderr}", output.status)),
            ))
        }
    }
}

impl Checks {
    /// Returns the time after which a check's process is killed.
    fn timeout(&self) -> Duration {
        const STARTING: Duration = Duration::from_secs(5);
        self.time_max.saturating_add(self.compile_time_max).saturating_add(STARTING)
    }
}

/// Runs a process that ends with this one, and returns its output.
async fn output_of(command: Command) -> std::io::Result<std::process::Output> {
    let mut owned = OwnedChild::start(command).await?;
    prefer_for_kill(owned.child.id());
    let missing = || std::io::Error::other("the process has no pipes");
    let mut stdout = owned.child.stdout.take().ok_or_else(missing)?;
    let mut stderr = owned.child.stderr.take().ok_or_else(missing)?;
    let (mut stdout_bytes, mut stderr_bytes) = (Vec::new(), Vec::new());
    let (stdout_read, stderr_read, status) = tokio::join!(
        stdout.read_to_end(&mut stdout_bytes),
        stderr.read_to_end(&mut stderr_bytes),
        owned.child.wait()
    );
    stdout_read?;
    stderr_read?;
    Ok(std::process::Output { status: status?, stdout: stdout_bytes, stderr: stderr_bytes })
}

/// Makes the kernel kill a process and its children before all others if memory runs out.
fn prefer_for_kill(process: Option<u32>) {
    let Some(process) = process else { return };
    if let Err(error) = std::fs::write(format!("/proc/{process}/oom_score_adj"), "1000") {
        tracing::debug!(%error, "cannot make the kernel kill a check before this server if memory runs out");
    }
}

/// Explains in a report why a memory limit is smaller than the configured one.
fn with_reduced_limit(report: &str, bytes: usize) -> String {
    let limit = format!("memory-bytes-max of {bytes} bytes");
    let origin = "which is what this server's memory leaves to an instance in a check";
    report.replace(&limit, &format!("{limit}, {origin}"))
}

/// Returns whether all checks of a report passed. Returns `None` if the text is not a report, or if the host is at
/// fault, because neither is a verdict on the deployment.
fn verdict(report: &str) -> Option<bool> {
    #[derive(serde::Deserialize)]
    struct Report<'a> {
        valid: bool,
        #[serde(borrow)]
        checks: Vec<Check<'a>>,
    }
    #[derive(serde::Deserialize)]
    struct Check<'a> {
        fault: Option<&'a str>,
    }
    let report: Report<'_> = serde_json::from_str(report).ok()?;
    let is_host_at_fault = report.checks.iter().any(|check| check.fault == Some("host"));
    (!is_host_at_fault).then_some(report.valid)
}

/// Returns the report of a deployment for which `validate` produced none.
fn failed_report(plugin: &str, check: &str, detail: &str) -> CheckReport {
    let report = json!({
        "plugin": plugin,
        "valid": false,
        "checks": [{"name": check, "outcome": "failed", "detail": detail, "fault": "plugin"}],
    });
    CheckReport { passed: false, report: report.to_string() }
}

/// Returns the deployment's limits as options of `validate`.
fn limits(config: &Config) -> Vec<OsString> {
    let all = config.limits.table().into_iter().chain(config.load_limits.table());
    all.flat_map(|(name, max)| [format!("--limit-{name}").into(), max.to_string().into()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_and_compilers_share_what_the_memory_budget_leaves() {
        let check = |mib: u64, checks: u32, guest: usize, compile: usize| {
            let memory = CheckMemory::of(mib << 20, checks);
            let [guest_mib, compile_mib] =
                [memory.guest_bytes_max, memory.compile_bytes_max].map(|bytes| bytes >> 20);
            assert_eq!((guest_mib, compile_mib), (guest, compile), "{mib} MiB, {checks} checks");
        };
        check(400, 2, 152, 384);
        check(0, 2, 128, 384);
        check(2000, 2, 952, 500);
        check(2000, 6, 285, 384);
        check(8000, 2, 1024, 2000);
        assert_eq!(CheckMemory::of(400 << 20, 2).instance_bytes_max() >> 20, 114);
    }

    #[test]
    fn a_memory_limit_that_a_check_reduces_is_explained_in_its_report() {
        let report =
            r#"{"detail": "memory: it needed more memory than memory-bytes-max of 100 bytes; use less"}"#;
        let explained = with_reduced_limit(report, 100);
        assert!(explained.contains("of 100 bytes, which is what this server's memory leaves"), "{explained}");
        assert_eq!(with_reduced_limit(report, 10), report);
    }

    #[test]
    fn a_report_has_a_verdict_unless_the_host_is_at_fault() {
        let check = |report: &str, expected| assert_eq!(verdict(report), expected, "{report}");
        check(
            r#"{"plugin": "p", "valid": true, "checks": [{"name": "runs", "outcome": "passed"}]}"#,
            Some(true),
        );
        check(r#"{"valid": false, "checks": [{"name": "settings", "fault": "caller"}]}"#, Some(false));
        check(r#"{"valid": false, "checks": [{"fault": "plugin"}, {"fault": "host"}]}"#, None);
        check("", None);
    }
}
