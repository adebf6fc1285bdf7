//! The file and the options as the operator wrote them, without defaults and checks.

use std::path::PathBuf;

use super::{
    Assignment, OsmosisGeneration, RawArtifacts, RawCatalog, RawCluster, RawJournal, RawNemoGym, RawNetwork,
    RawOsmosisInit, RawTools, TlsFiles, TrajectoriesIn,
};

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

/// Declares [`RawLimits`] with one field and one option for each limit.
macro_rules! raw_limits {
    ($($(#[$doc:meta])* $field:ident: $type:ty, $option:literal, $value:literal;)*) => {
        /// `[limits]` in the file, `--limit-…` on the command line.
        #[derive(Clone, Debug, Default, serde::Deserialize, clap::Args)]
        #[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
        #[command(next_help_heading = "Limits, in the file [limits]")]
        pub struct RawLimits {
            $($(#[$doc])* #[arg(long = $option, value_name = $value, hide_short_help = true)] pub $field: Option<$type>,)*
        }

        impl RawLimits {
            /// Fills in missing limits from `other`.
            pub fn or(self, other: Self) -> Self {
                Self { $($field: self.$field.or(other.$field),)* }
            }
        }
    };
}

raw_limits! {
    /// Bytes of linear memories and tables of an instance. [default: 256 MiB]
    memory_bytes_max: usize, "limit-memory-bytes-max", "BYTES";
    /// CPU time of an instance, excluding waits. [default: 60]
    guest_cpu_secs_max: f64, "limit-guest-cpu-secs-max", "SECS";
    /// Wall time of the workflow. [default: 3600]
    workflow_secs_max: f64, "limit-workflow-secs-max", "SECS";
    /// Wall time of the grader. [default: 600]
    grader_secs_max: f64, "limit-grader-secs-max", "SECS";
    /// Calls of the host by an instance. [default: 1000000]
    host_calls_max: u64, "limit-host-calls-max", "N";
    /// Bytes that a guest passes in one call of the host. [default: 64 MiB]
    host_call_bytes_max: usize, "limit-host-call-bytes-max", "BYTES";
    /// Open handles of a guest. [default: 10000]
    handles_max: usize, "limit-handles-max", "N";
    /// Samples of a rollout. [default: 64]
    samples_max: u32, "limit-samples-max", "N";
    /// Model calls of a rollout. [default: 1000]
    chat_calls_max: u32, "limit-chat-calls-max", "N";
    /// Tokens of all model calls together. [default: 100000000]
    chat_tokens_max: u64, "limit-chat-tokens-max", "N";
    /// Bytes of all requests to models, each with its whole conversation. [default: 1 GiB]
    chat_bytes_max: u64, "limit-chat-bytes-max", "BYTES";
    /// Concurrent model calls. [default: 64]
    concurrent_calls_max: u32, "limit-concurrent-calls-max", "N";
    /// Judge calls of a rollout. [default: 64]
    judge_calls_max: u32, "limit-judge-calls-max", "N";
    /// Tokens of all judge calls together. [default: 10000000]
    judge_tokens_max: u64, "limit-judge-tokens-max", "N";
    /// Bytes of a message. [default: 16 MiB]
    message_bytes_max: usize, "limit-message-bytes-max", "BYTES";
    /// Bytes of all recorded messages, fields and exchanges. [default: 256 MiB]
    record_bytes_max: usize, "limit-record-bytes-max", "BYTES";
    /// Artifacts of a rollout. [default: 64]
    artifacts_max: usize, "limit-artifacts-max", "N";
    /// Bytes of all artifacts together. [default: 16 MiB]
    artifact_bytes_max: usize, "limit-artifact-bytes-max", "BYTES";
    /// Log lines and events of a rollout. [default: 10000]
    log_lines_max: usize, "limit-log-lines-max", "N";
    /// Bytes of all log lines and events together. [default: 1 MiB]
    log_bytes_max: usize, "limit-log-bytes-max", "BYTES";
    /// Uses that a guest's own runtime refuses (processes, files, network, threads); 0 fails every rollout with
    /// one. [default: 1000000]
    refused_uses_max: u64, "limit-refused-uses-max", "N";
    /// Random bytes returned by one call. [default: 64 KiB]
    random_bytes_max: u64, "limit-random-bytes-max", "BYTES";
    /// Bytes of a reply of the model's server. [default: 32 MiB]
    reply_bytes_max: usize, "limit-reply-bytes-max", "BYTES";
    /// Bytes of a component's file. [default: 128 MiB]
    component_bytes_max: usize, "limit-component-bytes-max", "BYTES";
    /// CPU and wall time of compiling a component. [default: 120]
    compile_secs_max: f64, "limit-compile-secs-max", "SECS";
    /// Memory of compiling a component. [default: 4 GiB]
    compile_memory_bytes_max: usize, "limit-compile-memory-bytes-max", "BYTES";
}

/// `[model]`.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct RawModel {
    /// Maximum number of tries, including the first.
    pub attempts_max: Option<u32>,
    /// Timeout of a try in seconds.
    pub attempt_secs_max: Option<f64>,
    /// Seconds from the first failure after which no further try begins.
    pub budget_secs: Option<f64>,
    /// Seconds before the second try.
    pub delay_base_secs: Option<f64>,
    /// Maximum number of seconds before a try.
    pub delay_max_secs: Option<f64>,
    /// Sampling parameters that workflows may set; no others are permitted.
    pub params: Option<Vec<String>>,
}

/// `[callback]`.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct RawRetry {
    /// Maximum number of tries, including the first.
    pub attempts_max: Option<u32>,
    /// Timeout of a try in seconds.
    pub attempt_secs_max: Option<f64>,
    /// Seconds from the first failure after which no further try begins.
    pub budget_secs: Option<f64>,
    /// Seconds before the second try.
    pub delay_base_secs: Option<f64>,
    /// Maximum number of seconds before a try.
    pub delay_max_secs: Option<f64>,
}

/// `[judge]`: a model for graders, with its own key. Its retries default to those of the model.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct RawJudge {
    /// Address of its server without `/chat/completions`.
    pub url: Option<String>,
    /// Name of the model.
    pub model: Option<String>,
    /// Environment variable with the key of its server.
    pub api_key_env: Option<String>,
    /// Maximum number of tries, including the first.
    pub attempts_max: Option<u32>,
    /// Timeout of a try in seconds.
    pub attempt_secs_max: Option<f64>,
    /// Seconds from the first failure after which no further try begins.
    pub budget_secs: Option<f64>,
    /// Sampling parameters that graders may set; no others are permitted.
    pub params: Option<Vec<String>>,
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

/// `[sessions]`.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct RawSessions {
    /// Seconds without a request after which a session ends.
    pub idle_secs: Option<f64>,
    /// Seconds that a reset, a step or a request of the state may take.
    pub call_secs_max: Option<f64>,
    /// Seconds that a new session waits for a slot.
    pub queue_secs_max: Option<f64>,
    /// Bytes of a request.
    pub message_bytes_max: Option<usize>,
    /// Share of the slots that the sessions of one tenant may hold, more than 0 and at most 1.
    pub slots_share: Option<f64>,
}

/// `[osmosis]`.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct RawOsmosis {
    /// Generation of requests.
    pub generation: Option<OsmosisGeneration>,
    /// Seconds for which a request for a result waits.
    pub result_wait_secs: Option<f64>,
    /// Seconds without such a request after which a rollout is abandoned.
    pub lease_secs: Option<f64>,
    /// Seconds for which a result is stored.
    pub result_ttl_secs: Option<f64>,
    /// Settings of generation A.
    pub init: RawOsmosisInit,
}
