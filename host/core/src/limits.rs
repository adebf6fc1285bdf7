//! Limits on the resources of a rollout and on loading a component. Each limit has its unit in its name and a default
//! here.

use std::fmt;
use std::time::Duration;

/// Wall time of an instance that belongs to no rollout: one that is started as a test or that describes its plugin.
pub const DECLARE_TIME_MAX: Duration = Duration::from_secs(10);

/// Calls a macro with all limits of `[limits]`, so that each of them is declared once: here. The fields, the defaults, the
/// keys of the configuration file, the command-line options, and their help texts follow from it.
///
/// An entry has the text about the limit, whose first paragraph is the help; its field, type, and default; its key in
/// `[limits]`; and the range of permitted values.
#[macro_export]
macro_rules! for_each_limit {
    ($then:ident) => {
        $then! {
            /// The limits of one rollout and of its two instances.
            Limits {
                /// Bytes of linear memories and tables of an instance.
                memory_bytes_max: usize = 256 << 20, "memory-bytes-max", 1 << 20..=4 << 30;
                /// CPU time of an instance, excluding waits.
                ///
                /// It includes the host's work in the instance's calls.
                guest_cpu_time_max: Duration = Duration::from_secs(60), "guest-cpu-secs-max", ..;
                /// Wall time of the workflow.
                ///
                /// It applies if the request gives none or more than this.
                workflow_time_max: Duration = Duration::from_secs(3600), "workflow-secs-max", ..;
                /// Wall time of the grader.
                ///
                /// It applies if the request gives none or more than this.
                grader_time_max: Duration = Duration::from_secs(600), "grader-secs-max", ..;
                /// Calls of the host by an instance.
                ///
                /// These are the calls of the contract's imports.
                host_calls_max: u64 = 1_000_000, "host-calls-max", ..;
                /// Bytes that a guest passes in one call of the host.
                host_call_bytes_max: usize = 64 << 20, "host-call-bytes-max", ..;
                /// Open handles of a guest.
                handles_max: usize = 10_000, "handles-max", ..;
                /// Samples of a rollout.
                ///
                /// It applies if the caller accepts several.
                samples_max: u32 = 64, "samples-max", 1..;
                /// Model calls of a rollout.
                ///
                /// Retries do not count.
                chat_calls_max: u32 = 1000, "chat-calls-max", ..;
                /// Tokens of all model calls together.
                ///
                /// They are those of requests and replies, as the model's server counts them. The call that exceeds it is the last.
                chat_tokens_max: u64 = 100_000_000, "chat-tokens-max", ..;
                /// Bytes of all requests to models, each with its whole conversation.
                ///
                /// They count as sent, and cost the guest nothing.
                chat_bytes_max: u64 = 1 << 30, "chat-bytes-max", ..;
                /// Concurrent model calls.
                concurrent_calls_max: u32 = 64, "concurrent-calls-max", ..;
                /// Judge calls of a rollout.
                ///
                /// Retries do not count.
                judge_calls_max: u32 = 64, "judge-calls-max", ..;
                /// Tokens of all judge calls together.
                ///
                /// They count as those of model calls do.
                judge_tokens_max: u64 = 10_000_000, "judge-tokens-max", ..;
                /// Bytes of a message.
                ///
                /// The message is one of a sample or of a request.
                message_bytes_max: usize = 16 << 20, "message-bytes-max", ..;
                /// Bytes of all recorded messages, fields and exchanges.
                record_bytes_max: usize = 256 << 20, "record-bytes-max", ..;
                /// Artifacts of a rollout.
                artifacts_max: usize = 64, "artifacts-max", ..;
                /// Bytes of all artifacts together.
                artifact_bytes_max: usize = 16 << 20, "artifact-bytes-max", ..;
                /// Log lines and events of a rollout.
                ///
                /// Further ones are counted and dropped.
                log_lines_max: usize = 10_000, "log-lines-max", ..;
                /// Bytes of all log lines and events together.
                log_bytes_max: usize = 1 << 20, "log-bytes-max", ..;
                /// Uses that a guest's own runtime refuses (processes, files, network, threads); 0 fails every rollout with one.
                ///
                /// Alarms do not count. A rollout fails even if the guest handled the error.
                refused_uses_max: u64 = 1_000_000, "refused-uses-max", ..;
                /// Random bytes returned by one call.
                random_bytes_max: u64 = 64 << 10, "random-bytes-max", ..;
                /// Bytes of a reply of the model's server.
                reply_bytes_max: usize = 32 << 20, "reply-bytes-max", ..;
            }

            /// Limits on loading one component, whose author is not trusted.
            LoadLimits {
                // Six times the size of a Python guest with its interpreter, which is 20 MB. Packages make such a guest
                // larger, but are data that the compiler only copies: with SymPy, a guest has 80 MB.
                /// Bytes of a component's file.
                component_bytes_max: usize = 128 << 20, "component-bytes-max", ..;
                // A Python guest takes 25 s on two cores.
                /// CPU and wall time of compiling a component.
                ///
                /// The CPU time is that of each core that compiles.
                compile_time_max: Duration = Duration::from_secs(120), "compile-secs-max", AboveZero;
                // The compiler cannot start with less than 64 MiB.
                /// Memory of compiling a component.
                ///
                /// It is that of the compiler's process, in bytes.
                compile_memory_bytes_max: usize = 4 << 30, "compile-memory-bytes-max", 64 << 20..;
            }
        }
    };
}

/// Declares the structs of limits from their table.
macro_rules! limits {
    ($($(#[doc = $about:literal])* $group:ident {
        $($(#[doc = $doc:literal])* $field:ident: $type:ty = $default:expr, $name:literal, $range:expr;)*
    })*) => {$(
        $(#[doc = $about])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $group {
            $($(#[doc = $doc])* pub $field: $type,)*
        }

        impl Default for $group {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl $group {
            /// Returns every limit under its name in `[limits]`.
            pub fn table(&self) -> [(&'static str, Amount); [$($name),*].len()] {
                [$(($name, self.$field.into()),)*]
            }
        }
    )*};
}

for_each_limit!(limits);

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
