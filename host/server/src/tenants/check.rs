//! Checks of what was pushed: `validate`, in a process of its own, which compiles in another one.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::process::Command;

use super::Tenants;
use crate::admin::{CheckError, CheckReport, Pushed};
use rollout_assembly::config::Config;
use rollout_core::child::OwnedChild;
use rollout_wire::text::beginning;

/// How deployments that were pushed are checked.
#[derive(Clone, Debug)]
pub struct Checks {
    /// The program that has `validate`.
    pub program: PathBuf,
    /// Options of it that say where compiled code is kept.
    pub cache: Vec<OsString>,
    /// The longest that a check may take once the component is compiled.
    pub time_max: Duration,
    /// The longest that compiling may take.
    pub compile_time_max: Duration,
    /// Checks that run at once.
    pub at_once: u32,
}

/// The bytes of what a check says in error that are logged.
const SAID_BYTES_MAX: usize = 2000;

/// The bytes that a check's process may hold for the guests that it runs.
const MEMORY_BUDGET_BYTES: usize = 1 << 30;

/// Checks a deployment that was pushed.
pub(super) async fn check(tenants: &Tenants, pushed: Pushed) -> Result<CheckReport, CheckError> {
    let inner = &tenants.0;
    let text = pushed.config.as_deref().unwrap_or_default();
    let at = format!("the configuration of {}", pushed.plugin);
    let config = match inner.operators.for_tenant(text, &at) {
        Ok(config) => config,
        // That is its author's, as everything is that a check finds.
        Err(error) => return Ok(not_passed(&pushed.plugin, "settings", &error.to_string())),
    };
    let Ok(_turn) = inner.checking.acquire().await else {
        return Err(CheckError::Busy("this server ends".to_owned()));
    };
    let failed = |what: &str, error: std::io::Error| {
        tracing::error!(%error, "a pushed deployment cannot be checked: {what}");
        CheckError::Failed("this host cannot check it at present; its log says why".to_owned())
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
    let file = file.map_err(|error| failed("its configuration", error))?;
    let mut command = Command::new(&inner.checks.program);
    command.arg("validate").arg(inner.catalog.component_path(pushed.component)).arg("--json");
    if let Some(grader) = pushed.grader {
        command.arg("--grader").arg(inner.catalog.component_path(grader));
    }
    command.arg("--config").arg(file.path()).args(&inner.checks.cache).args(limits(&config));
    command.arg("--secs-max").arg(inner.checks.time_max.as_secs_f64().to_string());
    // Nothing of the host's environment is the tenant's.
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let ran = tokio::time::timeout(inner.checks.ended_after(), output_of(command)).await;
    let Ok(ran) = ran else {
        let secs = inner.checks.ended_after().as_secs();
        return Ok(not_passed(&pushed.plugin, "runs", &format!("its checks took more than {secs} s")));
    };
    let output = ran.map_err(|error| failed("its process", error))?;
    let report = String::from_utf8_lossy(&output.stdout);
    // Where this host keeps it is not its author's.
    let report = [Some(pushed.component), pushed.grader]
        .into_iter()
        .flatten()
        .fold(report.trim().to_owned(), |said, digest| {
            said.replace(&*inner.catalog.component_path(digest).to_string_lossy(), &pushed.plugin)
        });
    match judged(&report) {
        Some(passed) if output.status.code().is_some() => Ok(CheckReport { passed, report }),
        _ => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = beginning(said.trim(), SAID_BYTES_MAX);
            Err(failed(
                "its process ended otherwise",
                std::io::Error::other(format!("{}: {said}", output.status)),
            ))
        }
    }
}

impl Checks {
    /// The time after which a check is ended that did not end by itself.
    fn ended_after(&self) -> Duration {
        const STARTING: Duration = Duration::from_secs(5);
        self.time_max.saturating_add(self.compile_time_max).saturating_add(STARTING)
    }
}

/// Runs a process that ends with this one, and gives all that it wrote.
async fn output_of(command: Command) -> std::io::Result<std::process::Output> {
    let mut owned = OwnedChild::start(command).await?;
    let gone = || std::io::Error::other("its pipes cannot be had");
    let mut stdout = owned.child.stdout.take().ok_or_else(gone)?;
    let mut stderr = owned.child.stderr.take().ok_or_else(gone)?;
    let (mut written, mut said) = (Vec::new(), Vec::new());
    let (written_to_the_end, said_to_the_end, status) =
        tokio::join!(stdout.read_to_end(&mut written), stderr.read_to_end(&mut said), owned.child.wait());
    written_to_the_end?;
    said_to_the_end?;
    Ok(std::process::Output { status: status?, stdout: written, stderr: said })
}

/// Whether all passed, if that is what the report says: one in which this host is at fault says nothing of
/// what was pushed.
fn judged(report: &str) -> Option<bool> {
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
    let is_ours = report.checks.iter().any(|check| check.fault == Some("host"));
    (!is_ours).then_some(report.valid)
}

/// What is reported where no check came that far.
fn not_passed(plugin: &str, check: &str, why: &str) -> CheckReport {
    let report = json!({
        "plugin": plugin,
        "valid": false,
        "checks": [{"name": check, "outcome": "failed", "detail": why, "fault": "plugin"}],
    });
    CheckReport { passed: false, report: report.to_string() }
}

/// The limits that it will have, as options.
fn limits(config: &Config) -> Vec<OsString> {
    let all = config.limits.table().into_iter().chain(config.load_limits.table());
    all.flat_map(|(name, max)| [format!("--limit-{name}").into(), max.to_string().into()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_about_what_was_pushed_unless_the_host_is_at_fault() {
        let check = |report: &str, expected| assert_eq!(judged(report), expected, "{report}");
        check(
            r#"{"plugin": "p", "valid": true, "checks": [{"name": "runs", "outcome": "passed"}]}"#,
            Some(true),
        );
        check(r#"{"valid": false, "checks": [{"name": "settings", "fault": "caller"}]}"#, Some(false));
        check(r#"{"valid": false, "checks": [{"fault": "plugin"}, {"fault": "host"}]}"#, None);
        check("", None);
    }
}
