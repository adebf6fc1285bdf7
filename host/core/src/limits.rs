//! Limits on the resources of a rollout and on loading a component. Each limit has its unit in its name and a default
//! here.

use std::fmt;
use std::time::Duration;

/// Wall time of an instance that belongs to no rollout: one that is started as a test or that describes its plugin.
pub const DECLARE_TIME_MAX: Duration = Duration::from_secs(10);

/// The limits of one rollout and of its two instances.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Linear memories and tables of one instance together, in bytes.
    pub memory_bytes_max: usize,
    /// Wall time of the workflow if the request gives none or more than this.
    pub workflow_time_max: Duration,
    /// Wall time of the grader if the request gives none or more than this.
    pub grader_time_max: Duration,
    /// CPU time of one instance, including the host's work in its calls. Waiting does not count.
    pub guest_cpu_time_max: Duration,
    /// Calls of the contract's imports by one instance.
    pub host_calls_max: u64,
    /// Bytes that a guest may pass in one host call.
    pub host_call_bytes_max: usize,
    /// Handles that a guest may hold at once.
    pub handles_max: usize,
    /// Samples of one rollout, if the caller accepts several.
    pub samples_max: u32,
    /// Calls of the model in one rollout, without retries.
    pub chat_calls_max: u32,
    /// Tokens of all requests and replies in one rollout, as the model's server counts them. The call that exceeds it
    /// is the last.
    pub chat_tokens_max: u64,
    /// Bytes of all requests to models in one rollout, as sent: a request carries the whole conversation, at no cost to
    /// the guest.
    pub chat_bytes_max: u64,
    /// Calls of the model in progress at once in one rollout.
    pub concurrent_calls_max: u32,
    /// Calls of the judge in one rollout, without retries.
    pub judge_calls_max: u32,
    /// Tokens of all requests to the judge and its replies in one rollout, as its server counts them. The call that
    /// exceeds it is the last.
    pub judge_tokens_max: u64,
    /// One message of a sample or of a request, in bytes.
    pub message_bytes_max: usize,
    /// Messages, fields and observed exchanges stored for one rollout, in bytes.
    pub record_bytes_max: usize,
    /// Number of artifacts of one rollout.
    pub artifacts_max: usize,
    /// Artifacts of one rollout together, in bytes.
    pub artifact_bytes_max: usize,
    /// Log lines and events of one rollout; further ones are counted and dropped.
    pub log_lines_max: usize,
    /// Log lines and events of one rollout together, in bytes.
    pub log_bytes_max: usize,
    /// Uses that the guest's own language runtime refused in one rollout; alarms do not count. With 0, a rollout gets
    /// no reward after any refused use, even if the guest handled the error.
    pub refused_uses_max: u64,
    /// Random bytes that a guest may request in one call.
    pub random_bytes_max: u64,
    /// A reply of the model's server, in bytes.
    pub reply_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        const MIB: usize = 1 << 20;
        Self {
            memory_bytes_max: 256 * MIB,
            workflow_time_max: Duration::from_secs(3600),
            grader_time_max: Duration::from_secs(600),
            guest_cpu_time_max: Duration::from_secs(60),
            host_calls_max: 1_000_000,
            host_call_bytes_max: 64 * MIB,
            handles_max: 10_000,
            samples_max: 64,
            chat_calls_max: 1000,
            chat_tokens_max: 100_000_000,
            chat_bytes_max: 1 << 30,
            concurrent_calls_max: 64,
            judge_calls_max: 64,
            judge_tokens_max: 10_000_000,
            message_bytes_max: 16 * MIB,
            record_bytes_max: 256 * MIB,
            artifacts_max: 64,
            artifact_bytes_max: 16 * MIB,
            log_lines_max: 10_000,
            log_bytes_max: MIB,
            refused_uses_max: 1_000_000,
            random_bytes_max: 64 << 10,
            reply_bytes_max: 32 * MIB,
        }
    }
}

/// Limits of a session of an environment, besides those of its instances.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SessionLimits {
    /// Time without a request after which a session ends. Trainers are silent for minutes while a model is trained.
    pub idle_time_max: Duration,
    /// Wall time of one call. The official client of OpenEnv waits for 60 seconds.
    pub call_time_max: Duration,
    /// Time for which a new session waits for a slot.
    pub queue_time_max: Duration,
    /// One request, in bytes.
    pub message_bytes_max: usize,
    /// Share of all slots that the sessions of one tenant may hold.
    pub slots_share: f64,
}

impl Default for SessionLimits {
    fn default() -> Self {
        Self {
            idle_time_max: Duration::from_secs(3600),
            call_time_max: Duration::from_secs(55),
            queue_time_max: Duration::from_secs(2),
            message_bytes_max: 1 << 20,
            slots_share: 1.0,
        }
    }
}

/// Amount of a limit, or of the usage that counts towards it, in the unit of the limit's name.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(untagged)]
pub enum Amount {
    /// Number of bytes, calls or other things.
    Count(u64),
    /// Time in seconds.
    Secs(f64),
}

impl Amount {
    /// Returns whether this amount is larger than another one of the same kind.
    pub fn is_more_than(self, other: Self) -> bool {
        match (self, other) {
            (Self::Count(one), Self::Count(other)) => one > other,
            (Self::Secs(one), Self::Secs(other)) => one > other,
            _ => false,
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => count.fmt(f),
            Self::Secs(secs) => secs.fmt(f),
        }
    }
}

impl From<usize> for Amount {
    fn from(count: usize) -> Self {
        Self::Count(count as u64)
    }
}

impl From<u32> for Amount {
    fn from(count: u32) -> Self {
        Self::Count(count.into())
    }
}

impl From<u64> for Amount {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

impl From<Duration> for Amount {
    fn from(time: Duration) -> Self {
        Self::Secs((time.as_secs_f64() * 1e6).round() / 1e6)
    }
}

impl Limits {
    /// Returns every limit under its name in `[limits]`.
    pub fn table(&self) -> [(&'static str, Amount); 23] {
        // Destructured so that a new limit cannot be forgotten here.
        let Self {
            memory_bytes_max,
            workflow_time_max,
            grader_time_max,
            guest_cpu_time_max,
            host_calls_max,
            host_call_bytes_max,
            handles_max,
            samples_max,
            chat_calls_max,
            chat_tokens_max,
            chat_bytes_max,
            judge_calls_max,
            judge_tokens_max,
            concurrent_calls_max,
            message_bytes_max,
            record_bytes_max,
            artifacts_max,
            artifact_bytes_max,
            log_lines_max,
            log_bytes_max,
            refused_uses_max,
            random_bytes_max,
            reply_bytes_max,
        } = *self;
        [
            ("memory-bytes-max", memory_bytes_max.into()),
            ("guest-cpu-secs-max", guest_cpu_time_max.into()),
            ("workflow-secs-max", workflow_time_max.into()),
            ("grader-secs-max", grader_time_max.into()),
            ("host-calls-max", host_calls_max.into()),
            ("host-call-bytes-max", host_call_bytes_max.into()),
            ("handles-max", handles_max.into()),
            ("samples-max", samples_max.into()),
            ("chat-calls-max", chat_calls_max.into()),
            ("chat-tokens-max", chat_tokens_max.into()),
            ("chat-bytes-max", chat_bytes_max.into()),
            ("judge-calls-max", judge_calls_max.into()),
            ("judge-tokens-max", judge_tokens_max.into()),
            ("concurrent-calls-max", concurrent_calls_max.into()),
            ("message-bytes-max", message_bytes_max.into()),
            ("record-bytes-max", record_bytes_max.into()),
            ("artifacts-max", artifacts_max.into()),
            ("artifact-bytes-max", artifact_bytes_max.into()),
            ("log-lines-max", log_lines_max.into()),
            ("log-bytes-max", log_bytes_max.into()),
            ("refused-uses-max", refused_uses_max.into()),
            ("random-bytes-max", random_bytes_max.into()),
            ("reply-bytes-max", reply_bytes_max.into()),
        ]
    }
}

/// Limits on loading one component, whose author is not trusted.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadLimits {
    /// Size of the component's file, in bytes.
    pub component_bytes_max: usize,
    /// Time of compiling: wall time, and CPU time for each core that compiles.
    pub compile_time_max: Duration,
    /// Memory of the compiler process, in bytes.
    pub compile_memory_bytes_max: usize,
}

impl Default for LoadLimits {
    fn default() -> Self {
        const MIB: usize = 1 << 20;
        Self {
            // Six times the size of a Python guest with its interpreter, which is 20 MB. Packages make such a guest
            // larger, but are data that the compiler only copies: with SymPy, a guest has 80 MB.
            component_bytes_max: 128 * MIB,
            // A Python guest takes 25 s on two cores.
            compile_time_max: Duration::from_secs(120),
            compile_memory_bytes_max: 4096 * MIB,
        }
    }
}

impl LoadLimits {
    /// Returns every limit under its name in `[limits]`.
    pub fn table(&self) -> [(&'static str, Amount); 3] {
        let Self { component_bytes_max, compile_time_max, compile_memory_bytes_max } = *self;
        [
            ("component-bytes-max", component_bytes_max.into()),
            ("compile-secs-max", compile_time_max.into()),
            ("compile-memory-bytes-max", compile_memory_bytes_max.into()),
        ]
    }
}
