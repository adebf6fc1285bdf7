//! `[[tools.component]]` and its siblings: what the operator lends the plugin.

use std::path::PathBuf;
use std::time::Duration;

use super::secs;
use crate::toolbox::{CallLimits, ComponentSettings, ToolSettings};

/// `[tools]`.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct RawTools {
    /// `[[tools.component]]`: components that export `tool`.
    pub component: Vec<RawComponent>,
}

/// `[[tools.component]]`.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct RawComponent {
    /// The component's file.
    pub path: Option<PathBuf>,
    /// What is put before the names of its tools.
    pub prefix: Option<String>,
    /// Its own configuration, handed to it as it is.
    pub config: Option<toml::Table>,
    /// Memory of one call.
    pub memory_bytes_max: Option<usize>,
    /// CPU time of one call.
    pub cpu_secs_max: Option<f64>,
    /// Wall time of one call, with the wait for its turn.
    pub deadline_secs: Option<f64>,
    /// The longest result.
    pub result_bytes_max: Option<usize>,
    /// Calls at once, over all rollouts.
    pub concurrent_max: Option<u32>,
    /// Calls of each tool in one rollout.
    pub calls_max: Option<u32>,
}

/// What every kind of entry has, and where it is in the file.
struct Common<'a> {
    at: String,
    problems: &'a mut Vec<String>,
}

/// Limits as they were written.
struct RawCallLimits {
    deadline_secs: Option<f64>,
    result_bytes_max: Option<usize>,
    concurrent_max: Option<u32>,
    calls_max: Option<u32>,
}

/// What a result may be at the most; beyond, no model's server takes it.
const RESULT_BYTES_MAX: usize = 16 << 20;
/// An entry may have so many calls at once. For a component, each is a place in memory.
const CONCURRENT_MAX: u32 = 1024;
/// A prefix leaves the names their room.
const PREFIX_BYTES_MAX: usize = 32;

impl RawTools {
    /// Fills defaults and checks every field.
    pub(super) fn resolve(self, problems: &mut Vec<String>) -> ToolSettings {
        let component = |(place, raw): (usize, RawComponent)| {
            let at = format!("tools.component[{place}]");
            raw.resolve(Common { at, problems: &mut *problems })
        };
        ToolSettings { components: self.component.into_iter().enumerate().map(component).collect() }
    }
}

impl RawComponent {
    fn resolve(self, mut common: Common<'_>) -> ComponentSettings {
        if self.path.is_none() {
            common.wrong("path", "missing; it names the component's file");
        }
        let default = ComponentSettings::default();
        let memory_bytes_max = self.memory_bytes_max.unwrap_or(default.memory_bytes_max);
        if !(1 << 20..=4 << 30).contains(&memory_bytes_max) {
            common.wrong("memory-bytes-max", "not between 1 MiB and 4 GiB");
        }
        let limits = RawCallLimits {
            deadline_secs: self.deadline_secs,
            result_bytes_max: self.result_bytes_max,
            concurrent_max: self.concurrent_max,
            calls_max: self.calls_max,
        };
        ComponentSettings {
            path: self.path.unwrap_or_default(),
            prefix: common.prefix(self.prefix),
            config: self.config.and_then(|table| match serde_json::value::to_raw_value(&table) {
                Ok(raw) => Some(raw.into()),
                Err(error) => {
                    common.wrong("config", &error.to_string());
                    None
                }
            }),
            memory_bytes_max,
            cpu_time_max: common.time("cpu-secs-max", self.cpu_secs_max, default.cpu_time_max),
            limits: common.limits(limits),
            at: common.at,
        }
    }
}

impl Common<'_> {
    fn wrong(&mut self, field: &str, what: &str) {
        self.problems.push(format!("{}.{field}: {what}", self.at));
    }

    /// A time that is more than none.
    fn time(&mut self, field: &str, value: Option<f64>, default: Duration) -> Duration {
        let time = secs(&format!("{}.{field}", self.at), value, default, self.problems);
        if time.is_zero() {
            self.wrong(field, "0 leaves no time for anything");
        }
        time
    }

    fn prefix(&mut self, prefix: Option<String>) -> String {
        let prefix = prefix.unwrap_or_default();
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if prefix.len() > PREFIX_BYTES_MAX || !prefix.chars().all(is_part) {
            self.wrong("prefix", &format!("not up to {PREFIX_BYTES_MAX} letters, digits, '_' and '-'"));
        }
        prefix
    }

    fn limits(&mut self, raw: RawCallLimits) -> CallLimits {
        let default = CallLimits::default();
        let limits = CallLimits {
            deadline: self.time("deadline-secs", raw.deadline_secs, default.deadline),
            result_bytes_max: raw.result_bytes_max.unwrap_or(default.result_bytes_max),
            concurrent_max: raw.concurrent_max.unwrap_or(default.concurrent_max),
            calls_max: raw.calls_max.unwrap_or(default.calls_max),
        };
        if !(1..=RESULT_BYTES_MAX).contains(&limits.result_bytes_max) {
            self.wrong("result-bytes-max", "not between 1 and 16 MiB");
        }
        if !(1..=CONCURRENT_MAX).contains(&limits.concurrent_max) {
            self.wrong("concurrent-max", &format!("not between 1 and {CONCURRENT_MAX}"));
        }
        if limits.calls_max == 0 {
            self.wrong("calls-max", "0 lends nothing; leave the entry out");
        }
        limits
    }
}
