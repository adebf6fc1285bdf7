//! The command `doctor`, which checks whether this machine can build, run and serve plugins.

use std::fmt;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::json;

use super::plugin_file::{default_dir, this_program};
use super::print::outln;
use super::registry::{AccessOptions, in_runtime};
use super::{Exit, OUTPUT, SETTINGS, build, options};
use rollout_assembly::config::{ClusterSettings, Config};
use rollout_cluster::{Finding, Severity};
use rollout_core::capacity::Machine;
use rollout_core::limits::LoadLimits;
use rollout_guest::engine::MemoryPlan;
use rollout_registry::{Reference, RepositoryState};

/// Number of open files below which a server runs few rollouts at once.
const OPEN_FILES_FEW: u64 = 4_096;
/// Number of bytes of memory below which a server runs few rollouts at once.
const MEMORY_FEW: u64 = 1 << 30;
/// Number of free bytes on a disk below which a journal may soon be full.
const DISK_FEW: u64 = 1 << 30;
/// Number of writes whose time is measured.
const SYNCS: u32 = 5;
/// Time of a write to the disk in milliseconds above which a journal slows down the admission of rollouts.
const SYNC_SLOW_MILLIS: u128 = 100;

/// Checks the machine, the directories, the tools for builds and the access to registries.
///
/// Nothing is changed: a check of the right to push begins an upload and cancels it. With --config, the
/// directories that the file names are checked, too. The exit code is 2 if a check failed; a warning is no
/// failure.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  rollout-host doctor\n  rollout-host doctor --config rollout-host.toml\n  \
    rollout-host doctor oci://registry.example/team/calc --push"
)]
pub(super) struct Doctor {
    /// Repositories of registries: oci://HOST/REPOSITORY.
    #[arg(value_name = "REFERENCE")]
    repositories: Vec<Reference>,
    /// Checks the right to push to the repositories, too.
    #[arg(long, requires = "repositories")]
    push: bool,
    /// Configuration file of a server.
    #[arg(long, value_name = "FILE", help_heading = SETTINGS)]
    config: Option<PathBuf>,
    #[command(flatten)]
    access: AccessOptions,
    /// Prints one JSON object a line: check, state, finding and advice.
    #[arg(long, help_heading = OUTPUT)]
    json: bool,
}

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Good,
    /// The machine is usable, but with fewer rollouts, slower, or not for every purpose.
    Warning,
    Failed,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Warning => "warning",
            Self::Failed => "failed",
        }
    }
}

/// Prints findings and counts failures.
struct Report {
    is_json: bool,
    failed: u32,
    warnings: u32,
}

impl Report {
    fn add(&mut self, check: &str, state: State, finding: impl fmt::Display, advice: Option<&str>) {
        match state {
            State::Good => {}
            State::Warning => self.warnings += 1,
            State::Failed => self.failed += 1,
        }
        let finding = finding.to_string();
        if self.is_json {
            let state = state.name();
            outln!("{}", json!({"check": check, "state": state, "finding": finding, "advice": advice}));
            return;
        }
        outln!("{:<8} {check}: {finding}", state.name());
        if let Some(advice) = advice {
            outln!("         {advice}");
        }
    }

    fn good(&mut self, check: &str, finding: impl fmt::Display) {
        self.add(check, State::Good, finding, None);
    }

    fn failed(&mut self, check: &str, error: &anyhow::Error) {
        self.add(check, State::Failed, format!("{error:#}"), None);
    }
}

impl Doctor {
    pub(crate) fn run(self) -> Result<Exit> {
        let mut report = Report { is_json: self.json, failed: 0, warnings: 0 };
        machine(&mut report);
        compilers(&mut report);
        self.directories(&mut report);
        for (language, tools) in build::tools() {
            let check = format!("builds in {language}");
            match tools {
                Ok(found) => report.good(&check, found),
                Err(error) => report.add(
                    &check,
                    State::Warning,
                    format!("{error:#}"),
                    Some("Only needed on machines that build plugins."),
                ),
            }
        }
        for repository in &self.repositories {
            self.repository(&mut report, repository);
        }
        if !report.is_json {
            outln!();
            match (report.failed, report.warnings) {
                (0, 0) => outln!("all checks passed"),
                (0, warnings) => outln!("nothing failed; warnings: {warnings}"),
                (failed, warnings) => outln!("failed: {failed}; warnings: {warnings}"),
            }
        }
        Ok(if report.failed == 0 { Exit::Done } else { Exit::NotDone })
    }

    fn directories(&self, report: &mut Report) {
        if let Some(dir) = default_dir() {
            match writable(&dir) {
                Ok(()) => report.good("compiled code", format_args!("{} can be written", dir.display())),
                Err(error) => report.add(
                    "compiled code",
                    State::Warning,
                    format!("{error:#}"),
                    Some("Without it every start compiles again; choose a directory with --cache-dir."),
                ),
            }
        }
        let Some(file) = &self.config else { return };
        let config = options::raw_config(Some(file)).and_then(|raw| Ok(raw.resolve()?));
        match config {
            Ok(config) => {
                report.good("configuration", format_args!("{} has no mistakes", file.display()));
                configured_directories(report, &config);
                if let Some(nats) = &config.cluster.nats {
                    replicated_logs(report, nats);
                }
            }
            Err(error) => report.failed("configuration", &error),
        }
    }

    /// Checks the access to a repository of a registry.
    fn repository(&self, report: &mut Report, reference: &Reference) {
        let name = format!("oci://{}/{}", reference.host, reference.repository);
        let check = format!("pulls from {name}");
        let found = in_runtime(async {
            let registry = self.access.registry(reference).await?;
            let credentials =
                if registry.has_credentials() { "with credentials" } else { "without credentials" };
            let state = match registry.repository_state().await? {
                RepositoryState::Readable => format!("permitted {credentials}"),
                RepositoryState::Missing => {
                    format!("the registry answers {credentials}, and has no such repository yet")
                }
            };
            Ok(state)
        });
        match found {
            Ok(found) => report.good(&check, found),
            Err(error) => return report.failed(&check, &error),
        }
        if !self.push {
            return;
        }
        let check = format!("pushes to {name}");
        let permitted = in_runtime(async { Ok(self.access.registry(reference).await?.try_upload().await?) });
        match permitted {
            Ok(()) => report.good(&check, "permitted"),
            Err(error) => report.failed(&check, &error),
        }
    }
}

/// Checks the NATS servers on which logs of workers are replicated.
fn replicated_logs(report: &mut Report, nats: &ClusterSettings) {
    let checked = in_runtime(async { Ok(rollout_cluster::check(nats).await) });
    match checked {
        Ok(findings) => {
            for Finding { check, severity, finding, advice } in findings {
                let state = match severity {
                    Severity::Good => State::Good,
                    Severity::Warning => State::Warning,
                    Severity::Failure => State::Failed,
                };
                report.add(check, state, finding, advice.as_deref());
            }
        }
        Err(error) => report.failed("nats", &error),
    }
}

/// Checks the limits of this machine and process.
fn machine(report: &mut Report) {
    let machine = Machine::read_again();
    let (free, files) = (machine.memory_bytes_free, machine.descriptors_max);
    let of = match machine.memory_group_bytes_max {
        Some(max) => format!("of the {} MiB that a control group permits", max >> 20),
        None => "of this machine".to_owned(),
    };
    let state = |few: bool| if few { State::Warning } else { State::Good };
    let is_low = free < MEMORY_FEW;
    let advice = is_low.then_some("A server runs few rollouts at once with less than 1,024 MiB.");
    let budget = machine.memory_budget() >> 20;
    let memory = format!("{} MiB {of} are free; the default budget of rollouts is {budget} MiB", free >> 20);
    report.add("memory", state(is_low), memory, advice);
    let few = files < OPEN_FILES_FEW;
    let advice = few.then_some("'ulimit -n', or LimitNOFILE of the service, raises the limit.");
    report.add("open files", state(few), format!("at most {files}"), advice);
    let mappings = MemoryPlan::within(1, machine.guest_mappings_max()).mappings_per_instance();
    let instances = machine.guest_mappings_max() / mappings.max(1);
    let finding = format!("vm.max_map_count permits {instances} instances at once");
    report.good("memory mappings", finding);
}

/// Runs a compiler process that attempts to break out of its confinement.
fn compilers(report: &mut Report) {
    const CHECK: &str = "confined compilers";
    let attempts = (|| {
        let bytes_max = LoadLimits::default().compile_memory_bytes_max;
        let output = Command::new(this_program()?)
            .arg(super::COMPILE_COMPONENT)
            .args(["--plan", MemoryPlan::within(1, u64::MAX).name(), "--cpu-secs-max=10", "--probe=all"])
            .arg(format!("--memory-bytes-max={bytes_max}"))
            .env_clear()
            .current_dir("/")
            .output()
            .context("cannot start a compiler process")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        anyhow::ensure!(
            output.status.success(),
            "a compiler process ends with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(text)
    })();
    let attempts = match attempts {
        Ok(attempts) => attempts,
        Err(error) => return report.failed(CHECK, &error),
    };
    let mut lines = attempts.lines().filter_map(|line| line.split_once(": "));
    let enforced =
        lines.next().map(|(_, enforced)| enforced.trim_start_matches("confined: ")).unwrap_or_default();
    let succeeded: Vec<&str> =
        lines.filter(|(_, result)| *result == SUCCEEDED).map(|(name, _)| name).collect();
    if succeeded.is_empty() {
        report.good(CHECK, enforced);
        return;
    }
    report.add(
        CHECK,
        State::Failed,
        format!("a compiler process can {}; {enforced}", succeeded.join(", ")),
        Some("Components of strangers should not be compiled here: this kernel or container does not enforce seccomp filters."),
    );
}

/// Result of an attempt of the probe that was not prevented.
const SUCCEEDED: &str = "done";

/// Checks the directories of a server.
fn configured_directories(report: &mut Report, config: &Config) {
    let artifact_root = config.artifact_root.clone().unwrap_or_else(|| PathBuf::from("rollouts"));
    if config.writes_files() {
        directory(report, "artifacts", &artifact_root);
    }
    let Some(dir) = config.journal.dir(&artifact_root) else { return };
    directory(report, "journal", &dir);
    match sync_time(&dir) {
        Ok(millis) => {
            let slow = millis > SYNC_SLOW_MILLIS;
            let state = if slow { State::Warning } else { State::Good };
            let advice =
                slow.then_some("Requests are answered after their rollout is on the disk; use a faster one.");
            report.add(
                "journal's disk",
                state,
                format!("a write takes {millis} ms (median of {SYNCS})"),
                advice,
            );
        }
        Err(error) => report.failed("journal's disk", &error),
    }
}

fn directory(report: &mut Report, check: &str, dir: &Path) {
    if let Err(error) = writable(dir) {
        return report.failed(check, &error);
    }
    let shown = dir.display();
    match rustix::fs::statvfs(existing(dir)) {
        Ok(disk) => {
            let free = disk.f_bavail.saturating_mul(disk.f_frsize);
            let few = free < DISK_FEW;
            let state = if few { State::Warning } else { State::Good };
            let advice = few.then_some("A full disk stops the admission of rollouts.");
            report.add(check, state, format!("{shown} can be written; {} MiB are free", free >> 20), advice);
        }
        Err(error) => report.failed(
            check,
            &anyhow::Error::new(error).context(format!("cannot determine the free space of {shown}")),
        ),
    }
}

/// Returns the directory, or the closest one above it that exists.
fn existing(dir: &Path) -> &Path {
    dir.ancestors().find(|dir| dir.is_dir()).unwrap_or_else(|| Path::new("."))
}

/// Checks that a directory can be written, or created, by a file that is removed again.
fn writable(dir: &Path) -> Result<()> {
    let at = existing(dir);
    tempfile::tempfile_in(at).with_context(|| format!("{} cannot be written", at.display()))?;
    Ok(())
}

/// Returns the median time that a small write takes to reach the disk, in milliseconds.
fn sync_time(dir: &Path) -> Result<u128> {
    let at = existing(dir);
    let measure = || -> std::io::Result<u128> {
        let mut file: fs::File = tempfile::tempfile_in(at)?;
        let mut times = Vec::new();
        for _ in 0..SYNCS {
            let begun = Instant::now();
            file.write_all(&[0; 4_096])?;
            file.sync_data()?;
            times.push(begun.elapsed().as_millis());
        }
        times.sort_unstable();
        Ok(times[times.len() / 2])
    };
    measure().with_context(|| format!("cannot write to {}", at.display()))
}
