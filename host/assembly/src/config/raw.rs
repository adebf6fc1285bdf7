//! The file and the options as the operator wrote them, without defaults and checks.

use std::path::PathBuf;
use std::time::Duration;

#[cfg(test)]
use super::setting::Documented;
use super::setting::{self, AboveZero, Setting, settings};
use super::{
    Assignment, OsmosisGeneration, OsmosisTimes, RawArtifacts, RawCatalog, RawCluster, RawJournal,
    RawNemoGym, RawNetwork, RawOsmosisInit, RawTools, TlsFiles, TrajectoriesIn,
};
use rollout_core::limits::{Limits, LoadLimits, SessionLimits};
use rollout_outbound::RetryPolicy;

/// The configuration as the operator wrote it. Mirrors the file.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct RawConfig {
    /// Address that `serve` listens on.
    pub listen: Option<String>,
    /// Maximum number of concurrent rollouts.
    pub max_concurrent: Option<u32>,
    /// Maximum number of rollouts that wait for a slot; further ones are refused and may be retried.
    pub queue_max: Option<u32>,
    /// Memory budget for all rollouts and callers together.
    pub memory_budget_bytes: Option<usize>,
    /// Directory of trajectories and artifacts.
    pub artifact_root: Option<PathBuf>,
    /// Limits of that directory.
    pub artifacts: RawArtifacts,
    /// Directory of compiled code, for later starts.
    pub cache_dir: Option<PathBuf>,
    /// Certificate of the server.
    pub tls: RawTls,
    /// Environment variable with the key that every request must carry.
    pub server_key_env: Option<String>,
    /// Names, besides those of this machine, by which clients may address `serve`.
    pub allowed_hosts: Option<Vec<String>>,
    /// Origins of web pages that may make requests.
    pub allowed_origins: Option<Vec<String>>,
    /// Maximum duration of a graceful stop in seconds.
    pub drain_secs: Option<f64>,
    /// Command that runs before `serve` accepts connections.
    pub on_start: Option<String>,
    /// Command that runs after `serve` has drained.
    pub on_stop: Option<String>,
    /// Directory of guests' events.
    pub log: Option<PathBuf>,
    /// Journal of rollouts, from which they are resumed after a crash.
    pub journal: RawJournal,
    /// Storage of the trajectories of a server's rollouts.
    pub trajectories: Option<TrajectoriesIn>,
    /// Options of a server of many tenants.
    pub catalog: RawCatalog,
    /// Role of the server in a cluster.
    pub cluster: RawCluster,
    /// Restrictions that a server imposes on itself.
    pub hardening: RawHardening,
    /// Rules for addresses that come from callers.
    pub network: RawNetwork,
    /// Date at which guests' clocks begin.
    pub clock_begins: Option<String>,
    /// Limits of a rollout.
    pub limits: RawLimits,
    /// Retries of model calls.
    pub model: RawModel,
    /// Retries of callbacks.
    pub callback: RawRetry,
    /// The judge model, for graders.
    pub judge: RawJudge,
    /// Generation and times of the Osmosis protocol.
    pub osmosis: RawOsmosis,
    /// The NeMo Gym protocol.
    pub nemo_gym: RawNemoGym,
    /// Sessions of environments.
    pub sessions: RawSessions,
    /// The plugin's own configuration.
    pub plugin: Option<toml::Table>,
    /// Tools that are provided to the plugin.
    pub tools: RawTools,
    /// Configuration of a separate grader, in place of the plugin's.
    pub grader: Option<toml::Table>,
    /// Values of the plugin's configuration from the command line.
    #[serde(skip)]
    pub set: Vec<Assignment>,
    /// Mistakes found while parsing; [`RawConfig::resolve`] adds its own.
    #[serde(skip)]
    pub mistakes: Vec<String>,
}

/// Declares [`RawLimits`] from the table of all limits, with a field and an option for each.
macro_rules! raw_limits {
    ($($(#[doc = $about:literal])* $group:ident {
        $($(#[doc = $doc:literal])* $field:ident: $type:ty = $default:expr, $name:literal, $range:expr;)*
    })*) => {
        /// `[limits]` in the file, `--limit-…` on the command line.
        #[derive(Clone, Debug, Default, serde::Deserialize, clap::Args)]
        #[serde(deny_unknown_fields, default)]
        #[command(next_help_heading = "Limits, in the file [limits]")]
        pub struct RawLimits {
            $($($(#[doc = $doc])*
            #[serde(rename = $name)]
            #[arg(
                long = concat!("limit-", $name),
                value_name = setting::value_name($name),
                help = setting::help(&[$($doc),*], &$group::default().$field, $name),
                // Otherwise all paragraphs, without the default.
                long_help = None::<&str>,
                hide_short_help = true
            )]
            pub $field: Option<<$type as Setting>::Written>,)*)*
        }

        impl RawLimits {
            /// Fills in missing limits from `other`.
            pub fn or(self, other: Self) -> Self {
                Self { $($($field: self.$field.or(other.$field),)*)* }
            }

            /// Fills in the defaults, and checks every limit.
            pub(super) fn resolve(self, problems: &mut Vec<String>) -> ($($group,)*) {
                ($({
                    let default = $group::default();
                    $group {
                        $($field: setting::value(
                            ("limits", $name),
                            self.$field,
                            default.$field,
                            $range,
                            problems,
                        ),)*
                    }
                },)*)
            }

            /// Lists all limits and their defaults.
            #[cfg(test)]
            pub(super) fn documented() -> Vec<Documented> {
                vec![$($(Documented {
                    table: "limits",
                    key: $name,
                    default: $group::default().$field.shown($name),
                },)*)*]
            }
        }
    };
}

rollout_core::for_each_limit!(raw_limits);

/// Declares a table with the retries of calls.
macro_rules! retry_settings {
    ($(#[$about:meta])* $raw:ident, $table:literal $(and $others:tt)?) => {
        settings! {
            $(#[$about])*
            $raw, $table => RetryPolicy {
                /// Maximum number of tries, including the first, which is the only one with 1.
                attempts_max: u32, "attempts-max", 1..;
                /// Timeout of a try in seconds.
                attempt_time_max: Duration, "attempt-secs-max", ..;
                /// Seconds from the first failure after which no further try begins.
                budget: Duration, "budget-secs", ..;
                /// Seconds before the second try.
                delay_base: Duration, "delay-base-secs", ..;
                /// Maximum number of seconds before a try.
                delay_max: Duration, "delay-max-secs", ..;
            } $(and $others)?
        }
    };
}

retry_settings! {
    /// `[model]`.
    RawModel, "model" and {
        /// Sampling parameters that workflows may set; no others are permitted.
        params: Option<Vec<String>>, "params";
    }
}

retry_settings! {
    /// `[callback]`.
    RawRetry, "callback"
}

settings! {
    /// `[judge]`: a model for graders, with its own key. Its retries default to those of the model.
    RawJudge, "judge" => RetryPolicy {
        /// Maximum number of tries, including the first, which is the only one with 1.
        attempts_max: u32, "attempts-max", 1..;
        /// Timeout of a try in seconds.
        attempt_time_max: Duration, "attempt-secs-max", ..;
        /// Seconds from the first failure after which no further try begins.
        budget: Duration, "budget-secs", ..;
    } and {
        /// Address of its server without `/chat/completions`.
        url: Option<String>, "url";
        /// Name of the model.
        model: Option<String>, "model";
        /// Environment variable with the key of its server.
        api_key_env: Option<String>, "api-key-env";
        /// Sampling parameters that graders may set; no others are permitted.
        params: Option<Vec<String>>, "params";
    }
}

/// `[tls]`.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct RawTls {
    /// File with the certificate, followed by the certificates of its chain.
    pub cert: Option<PathBuf>,
    /// File with the key.
    pub key: Option<PathBuf>,
}

impl RawTls {
    /// Returns both files, if configured.
    pub(super) fn resolve(self, problems: &mut Vec<String>) -> Option<TlsFiles> {
        match (self.cert, self.key) {
            (Some(certificate), Some(key)) => Some(TlsFiles { certificate, key }),
            (None, None) => None,
            (cert, _) => {
                let missing = if cert.is_none() { "cert" } else { "key" };
                problems.push(format!("tls.{missing}: missing; give both the certificate and its key"));
                None
            }
        }
    }
}

/// `[hardening]`.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct RawHardening {
    /// Whether `serve` restricts itself to the files that its settings name.
    pub landlock: Option<bool>,
}

settings! {
    /// `[sessions]`.
    RawSessions, "sessions" => SessionLimits {
        /// Seconds without a request after which a session ends.
        idle_time_max: Duration, "idle-secs", AboveZero;
        /// Seconds that a reset, a step or a request of the state may take.
        call_time_max: Duration, "call-secs-max", AboveZero;
        /// Seconds that a new session waits for a slot.
        queue_time_max: Duration, "queue-secs-max", AboveZero;
        /// Bytes of a request.
        message_bytes_max: usize, "message-bytes-max", ..;
        /// Share of the slots that the sessions of one tenant may hold, more than 0 and at most 1.
        slots_share: f64, "slots-share", setting::SHARE;
    }
}

settings! {
    /// `[osmosis]`.
    RawOsmosis, "osmosis" => OsmosisTimes {
        /// Seconds for which a request for a result waits.
        result_wait: Duration, "result-wait-secs", ..;
        /// Seconds without such a request after which a rollout is abandoned.
        lease: Duration, "lease-secs", ..;
        /// Seconds for which a result is stored.
        result_ttl: Duration, "result-ttl-secs", ..;
    } and {
        /// Generation of requests.
        generation: Option<OsmosisGeneration>, "generation";
        /// Settings of generation A.
        init: RawOsmosisInit, "init";
    }
}
