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
use rollout_core::text::beginning;

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
    /// Memory of each check, and of each compiler.
    pub memory: CheckMemory,
}

/// Memory of the processes that check and compile, which is in no budget: a part of what the budget leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckMemory {
    /// Bytes of the guests in a check and of their records.
    pub guest_bytes_max: usize,
    /// Bytes of compiling one component.
    pub compile_bytes_max: usize,
}

/// The largest [`CheckMemory::guest_bytes_max`], and the smallest, which a simple guest in Python needs.
const GUEST_BYTES_MAX: u64 = 1 << 30;
const GUEST_BYTES_MIN: u64 = 128 << 20;

/// The smallest [`CheckMemory::compile_bytes_max`]: a small component of a Python project takes 340 MiB.
const COMPILE_BYTES_MIN: u64 = 384 << 20;

/// Memory of the process of a check besides its guests, in bytes.
const PROCESS_BYTES: u64 = 48 << 20;

/// Divisor of what the guests in a check may have for what their records may have.
const RECORD_PART: usize = 4;

impl CheckMemory {
    /// Divides what the memory budget leaves among all checks and compilers that run at once.
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

    /// Bytes of memory of one instance in a check.
    fn instance_bytes_max(&self) -> usize {
        self.guest_bytes_max - self.guest_bytes_max / RECORD_PART
    }
}

/// The bytes of what a check says in error that are logged.
const SAID_BYTES_MAX: usize = 2000;

/// Checks a deployment that was pushed.
pub(super) async fn check(tenants: &Tenants, pushed: Pushed) -> Result<CheckReport, CheckError> {
    let inner = &tenants.0;
    let text = pushed.config.as_deref().unwrap_or_default();
    let at = format!("the configuration of {}", pushed.plugin);
    let memory = inner.checks.memory;
    let mut config = match inner.operators.for_tenant(text, &at) {
        Ok(config) => config,
        // That is its author's, as everything is that a check finds.
        Err(error) => return Ok(not_passed(&pushed.plugin, "settings", &error.to_string())),
    };
    let instance_bytes_max = memory.instance_bytes_max();
    let is_reduced = instance_bytes_max < config.limits.memory_bytes_max;
    config.limits.memory_bytes_max = config.limits.memory_bytes_max.min(instance_bytes_max);
    let compile_bytes_max = &mut config.load_limits.compile_memory_bytes_max;
    *compile_bytes_max = memory.compile_bytes_max.min(*compile_bytes_max);
    let Ok(_turn) = inner.checking.acquire().await else {
        return Err(CheckError::Busy("this server ends".to_owned()));
    };
    let failed = |what: &str, error: std::io::Error| {
        tracing::error!(%error, "a pushed deployment cannot be checked: {what}");
        CheckError::Failed("this host cannot check it at present; its log says why".to_owned())
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
    let report = if is_reduced { with_reduced_limit(&report, instance_bytes_max) } else { report };
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
    ends_first(owned.child.id());
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

/// Has the kernel end this process and those that it starts before any other one, should memory run out.
fn ends_first(process: Option<u32>) {
    let Some(process) = process else { return };
    if let Err(error) = std::fs::write(format!("/proc/{process}/oom_score_adj"), "1000") {
        tracing::debug!(%error, "the kernel is not told to end a check before this server");
    }
}

/// Adds to a report the origin of a limit of memory that is smaller than the configured one.
fn with_reduced_limit(report: &str, bytes: usize) -> String {
    let limit = format!("memory-bytes-max of {bytes} bytes");
    let origin = "which is what this server's memory leaves to an instance in a check";
    report.replace(&limit, &format!("{limit}, {origin}"))
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
    fn checks_and_compilers_share_what_the_memory_budget_leaves() {
        let check = |mib: u64, checks: u32, guest: usize, compile: usize| {
            let memory = CheckMemory::of(mib << 20, checks);
            let [of_guest, of_compiler] =
                [memory.guest_bytes_max, memory.compile_bytes_max].map(|it| it >> 20);
            assert_eq!((of_guest, of_compiler), (guest, compile), "{mib} MiB, {checks} checks");
        };
        check(400, 2, 152, 384);
        check(0, 2, 128, 384);
        check(2000, 2, 952, 500);
        check(2000, 6, 285, 384);
        check(8000, 2, 1024, 2000);
        assert_eq!(CheckMemory::of(400 << 20, 2).instance_bytes_max() >> 20, 114);
    }

    #[test]
    fn a_limit_that_the_check_reduced_is_explained() {
        let report =
            r#"{"detail": "memory: it needed more memory than memory-bytes-max of 100 bytes; use less"}"#;
        let said = with_reduced_limit(report, 100);
        assert!(said.contains("of 100 bytes, which is what this server's memory leaves"), "{said}");
        assert_eq!(with_reduced_limit(report, 10), report);
    }

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
