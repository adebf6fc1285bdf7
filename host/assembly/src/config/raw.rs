//! The first step: the file and the options as they were written, before anything is decided.

use std::path::PathBuf;

use super::{
    Assignment, OsmosisGeneration, RawArtifacts, RawCatalog, RawJournal, RawNetwork, RawOsmosisInit,
    RawTools, TlsFiles, TrajectoriesIn,
};

/// What the operator wrote. Mirrors the file and decides nothing.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct RawConfig {
    /// Address that `serve` listens on.
    pub listen: Option<String>,
    /// Rollouts that run at once.
    pub max_concurrent: Option<u32>,
    /// Rollouts that may wait for a slot; more are asked to come again.
    pub queue_max: Option<u32>,
    /// Bytes that may be held for all rollouts and callers together.
    pub memory_budget_bytes: Option<usize>,
    /// Where trajectories and artifacts go.
    pub artifact_root: Option<PathBuf>,
    /// How much of rollouts' files is kept.
    pub artifacts: RawArtifacts,
    /// Where compiled code is kept from one start to the next.
    pub cache_dir: Option<PathBuf>,
    /// The certificate that callers are shown.
    pub tls: RawTls,
    /// The environment variable with the key that every request must carry.
    pub server_key_env: Option<String>,
    /// Names, besides those of this machine, under which `serve` may be asked.
    pub allowed_hosts: Option<Vec<String>>,
    /// Origins of web pages that may ask.
    pub allowed_origins: Option<Vec<String>>,
    /// Seconds that stopping takes, from the signal to the end.
    pub drain_secs: Option<f64>,
    /// A command that runs before `serve` accepts.
    pub on_start: Option<String>,
    /// A command that runs after `serve` drained.
    pub on_stop: Option<String>,
    /// Where guests' events go.
    pub log: Option<PathBuf>,
    /// Where rollouts are kept, so that none that was admitted is lost.
    pub journal: RawJournal,
    /// Where the trajectories of a server's rollouts are.
    pub trajectories: Option<TrajectoriesIn>,
    /// What a server of many tenants has of each at hand.
    pub catalog: RawCatalog,
    /// What a server gives up.
    pub hardening: RawHardening,
    /// Where requests that callers ask for may go.
    pub network: RawNetwork,
    /// The date that guests' clocks begin at.
    pub clock_begins: Option<String>,
    /// What one rollout may use.
    pub limits: RawLimits,
    /// How calls of the model are repeated.
    pub model: RawModel,
    /// How callbacks are repeated.
    pub callback: RawRetry,
    /// The model that judges, for graders.
    pub judge: RawJudge,
    /// Generation and times of the Osmosis protocol.
    pub osmosis: RawOsmosis,
    /// The plugin's own configuration.
    pub plugin: Option<toml::Table>,
    /// Tools that are provided to the plugin.
    pub tools: RawTools,
    /// The configuration of a grader that is a component of its own, in place of the
    /// plugin's.
    pub grader: Option<toml::Table>,
    /// What the command line sets of the plugin's configuration.
    #[serde(skip)]
    pub set: Vec<Assignment>,
    /// What is wrong already with what was written; [`RawConfig::resolve`] adds the rest.
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
            /// These limits, and where they say nothing, the others.
            pub fn or(self, other: Self) -> Self {
                Self { $($field: self.$field.or(other.$field),)* }
            }
        }
    };
}

raw_limits! {
    /// Linear memories and tables of one instance. [default: 256 MiB]
    memory_bytes_max: usize, "limit-memory-bytes-max", "BYTES";
    /// CPU time of one instance, waiting not counted. [default: 60]
    guest_cpu_secs_max: f64, "limit-guest-cpu-secs-max", "SECS";
    /// Wall time of the workflow. [default: 3600]
    workflow_secs_max: f64, "limit-workflow-secs-max", "SECS";
    /// Wall time of the grader. [default: 600]
    grader_secs_max: f64, "limit-grader-secs-max", "SECS";
    /// Calls of the host by one instance. [default: 1000000]
    host_calls_max: u64, "limit-host-calls-max", "N";
    /// Bytes that a guest hands over in one call of the host. [default: 64 MiB]
    host_call_bytes_max: usize, "limit-host-call-bytes-max", "BYTES";
    /// Handles that a guest holds at once. [default: 10000]
    handles_max: usize, "limit-handles-max", "N";
    /// Samples. [default: 64]
    samples_max: u32, "limit-samples-max", "N";
    /// Calls of the model. [default: 1000]
    chat_calls_max: u32, "limit-chat-calls-max", "N";
    /// Tokens of all calls of the model. [default: 100000000]
    chat_tokens_max: u64, "limit-chat-tokens-max", "N";
    /// Bytes of all requests to models, each with the whole conversation. [default: 1 GiB]
    chat_bytes_max: u64, "limit-chat-bytes-max", "BYTES";
    /// Calls of the model under way at once. [default: 64]
    concurrent_calls_max: u32, "limit-concurrent-calls-max", "N";
    /// Calls of the judge. [default: 64]
    judge_calls_max: u32, "limit-judge-calls-max", "N";
    /// Tokens of all calls of the judge. [default: 10000000]
    judge_tokens_max: u64, "limit-judge-tokens-max", "N";
    /// One message. [default: 16 MiB]
    message_bytes_max: usize, "limit-message-bytes-max", "BYTES";
    /// All messages, fields and exchanges that are kept. [default: 256 MiB]
    record_bytes_max: usize, "limit-record-bytes-max", "BYTES";
    /// Artifacts. [default: 64]
    artifacts_max: usize, "limit-artifacts-max", "N";
    /// All artifacts together. [default: 16 MiB]
    artifact_bytes_max: usize, "limit-artifact-bytes-max", "BYTES";
    /// Log lines and events. [default: 10000]
    log_lines_max: usize, "limit-log-lines-max", "N";
    /// Log lines and events together. [default: 1 MiB]
    log_bytes_max: usize, "limit-log-bytes-max", "BYTES";
    /// Uses that a guest's own runtime refuses (processes, files, network, threads); 0 fails every rollout with
    /// one. [default: 1000000]
    refused_uses_max: u64, "limit-refused-uses-max", "N";
    /// Random bytes in one call. [default: 64 KiB]
    random_bytes_max: u64, "limit-random-bytes-max", "BYTES";
    /// One reply of the model's server. [default: 32 MiB]
    reply_bytes_max: usize, "limit-reply-bytes-max", "BYTES";
    /// A component's file. [default: 128 MiB]
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
    /// Tries in all.
    pub attempts_max: Option<u32>,
    /// Seconds of one try.
    pub attempt_secs_max: Option<f64>,
    /// Seconds from the first failure after which no further try begins.
    pub budget_secs: Option<f64>,
    /// Seconds before the second try.
    pub delay_base_secs: Option<f64>,
    /// The longest wait in seconds.
    pub delay_max_secs: Option<f64>,
    /// Sampling parameters that workflows may set, and no others.
    pub params: Option<Vec<String>>,
}

/// `[callback]`.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct RawRetry {
    /// Tries in all.
    pub attempts_max: Option<u32>,
    /// Seconds of one try.
    pub attempt_secs_max: Option<f64>,
    /// Seconds from the first failure after which no further try begins.
    pub budget_secs: Option<f64>,
    /// Seconds before the second try.
    pub delay_base_secs: Option<f64>,
    /// The longest wait in seconds.
    pub delay_max_secs: Option<f64>,
}

/// `[judge]`: a model for graders, with a key of its own. How its calls are repeated is
/// as for the model, unless it says otherwise.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct RawJudge {
    /// Its server, up to and without `/chat/completions`.
    pub url: Option<String>,
    /// Its name there.
    pub model: Option<String>,
    /// The environment variable with its server's key.
    pub api_key_env: Option<String>,
    /// Tries in all.
    pub attempts_max: Option<u32>,
    /// Seconds of one try.
    pub attempt_secs_max: Option<f64>,
    /// Seconds from the first failure after which no further try begins.
    pub budget_secs: Option<f64>,
    /// Sampling parameters that graders may set, and no others.
    pub params: Option<Vec<String>>,
}

/// `[tls]`.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct RawTls {
    /// The file with the certificate, and those that vouch for it behind it.
    pub cert: Option<PathBuf>,
    /// The file with its key.
    pub key: Option<PathBuf>,
}

impl RawTls {
    /// The pair, where there is one.
    pub(super) fn resolve(self, problems: &mut Vec<String>) -> Option<TlsFiles> {
        match (self.cert, self.key) {
            (Some(certificate), Some(key)) => Some(TlsFiles { certificate, key }),
            (None, None) => None,
            (cert, _) => {
                let missing = if cert.is_none() { "cert" } else { "key" };
                problems.push(format!("tls.{missing}: missing; a certificate and its key are needed"));
                None
            }
        }
    }
}

/// `[hardening]`.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct RawHardening {
    /// Whether `serve` keeps itself to the files that its settings name.
    pub landlock: Option<bool>,
}

/// `[osmosis]`.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct RawOsmosis {
    /// The generation that requests are of.
    pub generation: Option<OsmosisGeneration>,
    /// Seconds that a request for a result waits for news.
    pub result_wait_secs: Option<f64>,
    /// Seconds without such a request after which a rollout is given up.
    pub lease_secs: Option<f64>,
    /// Seconds that a result is kept.
    pub result_ttl_secs: Option<f64>,
    /// Settings of generation A.
    pub init: RawOsmosisInit,
}
