//! Checks of pushed deployments: runs `validate` in a process of its own, which compiles in yet another one.

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
use rollout_core::child::OwnedChild;
use rollout_wire::text::beginning;

/// Settings of the checks of pushed deployments.
#[derive(Clone, Debug)]
pub struct Checks {
    /// The program with the command `validate`.
    pub program: PathBuf,
    /// Options of the program that select the cache of compiled code.
    pub cache: Vec<OsString>,
    /// Maximum time of a check, without compiling.
    pub time_max: Duration,
    /// Maximum time of compiling.
    pub compile_time_max: Duration,
    /// Maximum number of checks that run at once.
    pub at_once: u32,
}

/// Maximum number of bytes of a check's stderr that are logged.
const STDERR_BYTES_MAX: usize = 2000;

/// Memory budget in bytes of the guests in a check's process.
const MEMORY_BUDGET_BYTES: usize = 1 << 30;

/// Checks a pushed deployment.
pub(super) async fn check(tenants: &Tenants, pushed: CheckRequest) -> Result<CheckReport, CheckError> {
    let inner = &tenants.0;
    let text = pushed.config.as_deref().unwrap_or_default();
    let at = format!("the configuration of {}", pushed.plugin);
    let config = match inner.operators.for_tenant(text, &at) {
        Ok(config) => config,
        // An invalid configuration is the author's fault, as any result of a check.
        Err(error) => return Ok(failed_report(&pushed.plugin, "settings", &error.to_string())),
    };
    let Ok(_permit) = inner.checking.acquire().await else {
        return Err(CheckError::Busy("the server is shutting down".to_owned()));
    };
    let host_failed = |problem: &str, error: std::io::Error| {
        tracing::error!(%error, "a pushed deployment cannot be checked: {problem}");
        let detail = "this host cannot check the deployment at present; its log has the reason";
        CheckError::Failed(detail.to_owned())
    };
    let file = tokio::task::spawn_blocking({
        let text = format!("memory-budget-bytes = {MEMORY_BUDGET_BYTES}\n{text}");
        let folder = inner.catalog.path().to_owned();
        move || {
            let file = tempfile::Builder::new().prefix("check-").suffix(".toml").tempfile_in(folder)?;
            std::fs::write(file.path(), text)?;
            Ok(file)
        }
    });
    let file = file.await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
    let file = file.map_err(|error| host_failed("its configuration cannot be written", error))?;
    let mut command = Command::new(&inner.checks.program);
    command.arg("validate").arg(inner.catalog.component_path(pushed.component)).arg("--json");
    if let Some(grader) = pushed.grader {
        command.arg("--grader").arg(inner.catalog.component_path(grader));
    }
    command.arg("--config").arg(file.path()).args(&inner.checks.cache).args(limits(&config));
    command.arg("--secs-max").arg(inner.checks.time_max.as_secs_f64().to_string());
    // The process runs a tenant's guests, so it receives nothing of the host's environment.
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let timeout = inner.checks.timeout();
    let Ok(output) = tokio::time::timeout(timeout, output_of(command)).await else {
        let detail = format!("the checks took more than {} s", timeout.as_secs());
        return Ok(failed_report(&pushed.plugin, "runs", &detail));
    };
    let output = output.map_err(|error| host_failed("its process failed", error))?;
    let report = String::from_utf8_lossy(&output.stdout);
    // The author must not see the host's paths.
    let report = [Some(pushed.component), pushed.grader].into_iter().flatten().fold(
        report.trim().to_owned(),
        |report, digest| {
            report.replace(&*inner.catalog.component_path(digest).to_string_lossy(), &pushed.plugin)
        },
    );
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

/// Returns whether all checks of a report passed. Returns `None` if the text is no report, or if the host is at fault, which
/// is no verdict on the deployment.
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
