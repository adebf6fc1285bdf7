//! Configuration in two steps: [`RawConfig`] as the operator wrote it, and [`Config`] with defaults, checked.

mod access;
mod artifacts;
mod catalog;
mod cluster;
mod evaluator;
mod init;
mod journal;
mod nemo_gym;
mod network;
mod raw;
mod reading;
mod setting;
mod tenant;
mod tools;
mod values;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value};

use rollout_core::limits::{Limits, LoadLimits, SessionLimits};
use rollout_guest::imports::ClockStart;
use rollout_guest::toolbox::ToolSettings;
use rollout_outbound::{NetworkRules, RetryPolicy};
use rollout_rollout::ArtifactBounds;
use rollout_wire::params::AllowedParams;
pub use tools::{RawAddress, RawComponent, RawServer, RawTools};

pub use access::{AllowedHost, AllowedOrigin};
pub use artifacts::RawArtifacts;
pub use catalog::{CatalogOptions, RawCatalog};
pub use cluster::{Advertised, ClusterOptions, RawCluster, Role, is_worker_name};
pub use evaluator::EvaluatorEnvironment;
pub use init::{OsmosisEnvironment, OsmosisInit, RawOsmosisInit};
pub use journal::{JournalConfig, JournalOptions, RawJournal, SyncWhen};
pub use nemo_gym::{NemoGymConfig, RawNemoGym};
pub use network::RawNetwork;
pub use raw::{
    RawConfig, RawHardening, RawJudge, RawLimits, RawModel, RawOsmosis, RawRetry, RawSessions, RawTls,
};
pub use rollout_cluster::ClusterSettings;
pub use values::Assignment;

/// Determines the protocol generation of a request to `POST /rollout`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum OsmosisGeneration {
    /// Detected from the request; if it may be B or C, both are served.
    #[default]
    Auto,
    /// Generation B for all requests: callbacks, a map of samples.
    B,
    /// Generation C for all requests: callbacks, one sample.
    C,
    /// Generation D for all requests: polling, one sample.
    D,
}

/// Storage of the trajectories of a server's rollouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum TrajectoriesIn {
    /// Files, in a directory for each rollout, in addition to a journal.
    Files,
    /// The journal, from which the server returns them on request.
    Journal,
}

/// The checked configuration of a host.
#[derive(Clone, Debug)]
pub struct Config {
    /// Address that `serve` listens on.
    pub listen: SocketAddr,
    /// Maximum number of concurrent rollouts.
    pub max_concurrent: u32,
    /// Whether this number was configured.
    pub max_concurrent_is_set: bool,
    /// Maximum number of rollouts that wait for a slot.
    pub queue_max: u32,
    /// Memory budget for all rollouts and callers together; by default a share of the free memory.
    pub memory_budget_bytes: Option<usize>,
    /// Directory of trajectories and artifacts, if configured.
    pub artifact_root: Option<PathBuf>,
    /// Limits of that directory on a server.
    pub artifacts: ArtifactBounds,
    /// Directory of compiled code, if configured.
    pub cache_dir: Option<PathBuf>,
    /// Certificate of the server; without it, connections are not encrypted.
    pub tls: Option<TlsFiles>,
    /// Environment variable with the server's key.
    pub server_key_env: Option<String>,
    /// Names by which clients may address the server, if configured.
    pub allowed_hosts: Option<Vec<AllowedHost>>,
    /// Origins of web pages that may make requests.
    pub allowed_origins: Vec<AllowedOrigin>,
    /// Maximum duration of a graceful stop.
    pub drain: Duration,
    /// Date at which guests' clocks begin.
    pub clock_begins: ClockStart,
    /// Limits of a rollout.
    pub limits: Limits,
    /// Limits of loading a component.
    pub load_limits: LoadLimits,
    /// Retries of model calls.
    pub model: RetryPolicy,
    /// Sampling parameters that workflows may set.
    pub model_params: AllowedParams,
    /// Retries of callbacks.
    pub callback: RetryPolicy,
    /// Generation of the Osmosis protocol.
    pub osmosis_generation: OsmosisGeneration,
    /// Times of the Osmosis protocol.
    pub osmosis: OsmosisTimes,
    /// Limits of sessions of environments.
    pub sessions: SessionLimits,
    /// Settings of the Osmosis protocol's generation A.
    pub osmosis_init: OsmosisInit,
    /// Settings of the NeMo Gym protocol, if it is enabled.
    pub nemo_gym: Option<NemoGymConfig>,
    /// Command that runs before the server accepts connections.
    pub on_start: Option<String>,
    /// Command that runs after the server has drained.
    pub on_stop: Option<String>,
    /// Directory of guests' events: a subdirectory for each start, a file for each rollout.
    pub log: Option<PathBuf>,
    /// Journal of rollouts, from which they are resumed after a crash.
    pub journal: JournalConfig,
    /// Storage of trajectories, if configured.
    pub trajectories: Option<TrajectoriesIn>,
    /// Whether a server restricts itself to the files that its settings name.
    pub landlock: bool,
    /// Options of a server of many tenants.
    pub catalog: CatalogOptions,
    /// Role of the server in a cluster, and the cluster's options.
    pub cluster: ClusterOptions,
    /// Rules for addresses that come from callers.
    pub network: NetworkRules,
    /// Tools that are provided to the plugin.
    pub tools: ToolSettings,
    /// `[tools]` as it was configured. An evaluation is identified by its digest.
    pub tools_source: String,
    /// The judge model, if there is one.
    pub judge: Option<Judge>,
    /// The operator's values for the plugin.
    pub plugin: Option<Map<String, Value>>,
    /// The operator's values for a separate grader; without them, it gets the plugin's.
    pub grader: Option<Map<String, Value>>,
}

/// A certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// File with the certificate.
    pub certificate: PathBuf,
    /// File with the key.
    pub key: PathBuf,
}

/// The judge model.
#[derive(Clone, Debug, PartialEq)]
pub struct Judge {
    /// Address of its server; `None` for the built-in stand-in.
    pub url: Option<String>,
    /// Name of the model.
    pub model: String,
    /// Environment variable with the key of its server.
    pub api_key_env: Option<String>,
    /// Retries of its calls.
    pub retry: RetryPolicy,
    /// Sampling parameters that graders may set.
    pub params: AllowedParams,
}

impl Judge {
    /// Name of the built-in stand-in.
    pub const STAND_IN: &str = "mock";
}

/// Times of the Osmosis protocol's polling generation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OsmosisTimes {
    /// Time for which a request for a result waits.
    pub result_wait: Duration,
    /// Time after which a rollout without such a request is abandoned.
    pub lease: Duration,
    /// Time for which a result is stored.
    pub result_ttl: Duration,
}

impl Default for OsmosisTimes {
    fn default() -> Self {
        Self {
            result_wait: Duration::from_secs(30),
            lease: Duration::from_secs(120),
            result_ttl: Duration::from_secs(900),
        }
    }
}

/// Default address. It is a loopback address, because a server without a key must not be reachable from other machines.
const LISTEN: &str = "127.0.0.1:9000";
/// Default number of concurrent rollouts. A waiting one takes tens of kilobytes, so the model's server is full long
/// before the host is.
const MAX_CONCURRENT: u32 = 1024;
/// Maximum number of concurrent rollouts. Larger numbers have never been measured. The machine usually has room for
/// fewer; the host determines how many when it starts.
const MAX_CONCURRENT_MAX: u32 = 20_000;
/// Minimum of the memory budget. With less, a guest of the usual size would end as soon as it grows.
const MEMORY_BUDGET_BYTES_MIN: usize = 64 << 20;
/// Default length of the queue, as a multiple of the number of concurrent rollouts.
const QUEUE_PER_SLOT: u32 = 4;

/// All mistakes in a configuration.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("configuration:{}", .0.iter().map(|problem| format!("\n  - {problem}")).collect::<String>())]
pub struct InvalidConfig(pub Vec<String>);

impl Config {
    /// Returns whether trajectories and artifacts are written to files: if configured, or if there is no
    /// journal that has them.
    pub fn writes_files(&self) -> bool {
        match self.trajectories {
            Some(place) => place == TrajectoriesIn::Files,
            None => self.journal == JournalConfig::Off,
        }
    }
}

impl RawConfig {
    /// Parses the text of the file called `name`. [`RawConfig::resolve`] reports the mistakes in it, together
    /// with its own.
    pub fn parse(text: &str, name: &str) -> Self {
        reading::read(text, name)
    }

    /// Fills in defaults and checks every field.
    pub fn resolve(self) -> Result<Config, InvalidConfig> {
        let mut problems = self.mistakes;
        let listen = self.listen.as_deref().unwrap_or(LISTEN);
        let listen = listen.parse().unwrap_or_else(|_| {
            problems.push(format!("listen: '{listen}' is not an address with a port, such as {LISTEN}"));
            SocketAddr::from(([127, 0, 0, 1], 0))
        });
        let max_concurrent = self.max_concurrent.unwrap_or(MAX_CONCURRENT);
        if !(1..=MAX_CONCURRENT_MAX).contains(&max_concurrent) {
            problems
                .push(format!("max-concurrent: {max_concurrent} is not between 1 and {MAX_CONCURRENT_MAX}"));
        }
        if self.memory_budget_bytes.is_some_and(|bytes| bytes < MEMORY_BUDGET_BYTES_MIN) {
            problems
                .push(format!("memory-budget-bytes: must be at least {} MiB", MEMORY_BUDGET_BYTES_MIN >> 20));
        }
        let osmosis_generation = self.osmosis.generation.unwrap_or_default();
        let osmosis_init = self.osmosis.init.resolve_over(OsmosisInit::default(), &mut problems);
        let osmosis = osmosis_times(&self.osmosis, &mut problems);
        let cluster = self.cluster.resolve(&mut problems);
        if cluster.nats.as_ref().is_some_and(|nats| nats.log_age() <= 2 * osmosis.result_ttl) {
            problems.push(
                "cluster.nats.log-age-secs: must be more than twice osmosis.result-ttl-secs, or unread results are dropped"
                    .to_owned(),
            );
        }
        let sessions = self.sessions.resolve_over(SessionLimits::default(), &mut problems);
        let (limits, load_limits) = self.limits.resolve(&mut problems);
        let model_params = allowed("model", self.model.params.as_deref(), &mut problems);
        let model = self.model.resolve_over(RetryPolicy::model(), &mut problems);
        let judge = self.judge.resolve(&model, &mut problems);
        let journal = self.journal.resolve(listen, &mut problems);
        if journal == JournalConfig::Off && self.trajectories == Some(TrajectoriesIn::Journal) {
            problems.push("trajectories: needs a journal; give its directory with --journal".to_owned());
        }
        let clock_begins = self.clock_begins.as_deref().map_or(Ok(ClockStart::default()), str::parse);
        let clock_begins = clock_begins.unwrap_or_else(|wrong| {
            problems.push(format!("clock-begins: {wrong}"));
            ClockStart::default()
        });
        let tools_source = self.tools.source().unwrap_or_else(|error| {
            problems.push(format!("tools: {error}"));
            String::new()
        });
        let mut tools = self.tools.resolve(&mut problems);
        tools.components.iter_mut().for_each(|component| component.clock_begins = clock_begins);
        let config = Config {
            listen,
            max_concurrent,
            max_concurrent_is_set: self.max_concurrent.is_some(),
            queue_max: self.queue_max.unwrap_or(max_concurrent.saturating_mul(QUEUE_PER_SLOT)),
            memory_budget_bytes: self.memory_budget_bytes,
            artifact_root: self.artifact_root,
            artifacts: self.artifacts.resolve_over(artifacts::DEFAULT, &mut problems),
            cache_dir: self.cache_dir,
            tls: self.tls.resolve(&mut problems),
            server_key_env: self.server_key_env,
            allowed_hosts: access::all("allowed-hosts", self.allowed_hosts, &mut problems),
            allowed_origins: access::all("allowed-origins", self.allowed_origins, &mut problems)
                .unwrap_or_default(),
            drain: setting::value(
                ("", "drain-secs"),
                self.drain_secs,
                Duration::from_secs(10),
                ..,
                &mut problems,
            ),
            load_limits,
            clock_begins,
            limits,
            model,
            model_params,
            judge,
            callback: self.callback.resolve_over(RetryPolicy::callback(), &mut problems),
            osmosis_generation,
            osmosis,
            sessions,
            osmosis_init,
            nemo_gym: self.nemo_gym.resolve(&mut problems),
            on_start: self.on_start,
            on_stop: self.on_stop,
            log: self.log,
            journal,
            trajectories: self.trajectories,
            landlock: self.hardening.landlock.unwrap_or_default(),
            catalog: self.catalog.resolve_over(CatalogOptions::default(), &mut problems),
            cluster,
            network: self.network.resolve(&mut problems),
            tools,
            tools_source,
            plugin: values::assigned(self.plugin, &self.set, "plugin", &mut problems),
            grader: values::assigned(self.grader, &[], "grader", &mut problems),
        };
        if problems.is_empty() { Ok(config) } else { Err(InvalidConfig(problems)) }
    }
}

/// Returns the sampling parameters that a table permits; all if it has no list.
fn allowed(table: &str, names: Option<&[String]>, problems: &mut Vec<String>) -> AllowedParams {
    AllowedParams::of(names).unwrap_or_else(|what| {
        problems.push(format!("{table}.params: {what}"));
        AllowedParams::default()
    })
}

impl RawJudge {
    fn resolve(self, of_the_model: &RetryPolicy, problems: &mut Vec<String>) -> Option<Judge> {
        let model = match (self.model.clone(), &self.url) {
            (Some(model), Some(_)) => model,
            (Some(model), None) if model == Judge::STAND_IN => model,
            (Some(model), None) => {
                problems.push(format!("judge.url: missing; give the address of the server of '{model}'"));
                return None;
            }
            (None, Some(_)) => {
                problems.push("judge.model: missing; give the name of the judge model".to_owned());
                return None;
            }
            (None, None) if self.api_key_env.is_some() => {
                problems.push(
                    "judge.url, judge.model: missing, although there is a key for the judge".to_owned(),
                );
                return None;
            }
            (None, None) => return None,
        };
        let retry = self.resolve_over(of_the_model.clone(), problems);
        let params = allowed("judge", self.params.as_deref(), problems);
        Some(Judge { url: self.url, model, api_key_env: self.api_key_env, retry, params })
    }
}

/// Returns the times of the Osmosis protocol. A caller that waits must not lose its lease meanwhile.
fn osmosis_times(raw: &RawOsmosis, problems: &mut Vec<String>) -> OsmosisTimes {
    let times = raw.resolve_over(OsmosisTimes::default(), problems);
    if times.lease <= times.result_wait {
        problems.push(format!(
            "osmosis.lease-secs: {} must be more than result-wait-secs ({}), or a waiting caller loses its lease",
            times.lease.as_secs_f64(),
            times.result_wait.as_secs_f64()
        ));
    }
    times
}

#[cfg(test)]
mod tests {
    use super::setting::{Documented, Setting};
    use super::*;

    #[test]
    fn every_mistake_is_reported_at_once() {
        let text = "
            listen = 'here'
            max-concurrent = 0
            [limits]
            grader-secs-max = -1.0
            [model]
            attempts-max = 0
            [osmosis]
            lease-secs = 5.0
        ";
        let InvalidConfig(problems) = RawConfig::parse(text, "c.toml").resolve().unwrap_err();
        let keys: Vec<&str> = problems.iter().filter_map(|problem| problem.split(':').next()).collect();
        assert_eq!(
            keys,
            [
                "listen",
                "max-concurrent",
                "osmosis.lease-secs",
                "limits.grader-secs-max",
                "model.attempts-max"
            ]
        );
    }

    #[test]
    fn an_unknown_key_is_reported_with_its_name() {
        let text = "max-concurent = 3\n[model]\nattempts-max = 0";
        let error = RawConfig::parse(text, "c.toml").resolve().unwrap_err().to_string();
        let named = ["c.toml:1:1: max-concurent: ", "model.attempts-max: must be"];
        named.iter().for_each(|named| assert!(error.contains(named), "{error}"));
    }

    #[test]
    fn assignments_override_the_plugins_table() {
        let mut raw = RawConfig::parse("[plugin]\nname = 'x'\nn = 3\n[plugin.deep]\nf = 0.5", "c.toml");
        raw.set = vec!["deep.g=null".parse().unwrap(), "n=4".parse().unwrap()];
        let plugin = Value::from(raw.resolve().unwrap().plugin.unwrap());
        assert_eq!(plugin, serde_json::json!({"deep": {"f": 0.5, "g": null}, "n": 4, "name": "x"}));
    }

    /// Returns a file of the documents.
    fn page(name: &str) -> String {
        let path = format!("{}/../../docs/operate/{name}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    #[test]
    fn the_configuration_reference_shows_every_default() {
        let page = page("configuration.md");
        let file = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next());
        let file: toml::Table = file.expect("the file with all settings").parse().unwrap();
        let tables = [
            RawArtifacts::documented(&artifacts::DEFAULT),
            RawJournal::documented(&journal::RETENTION),
            RawCatalog::documented(&CatalogOptions::default()),
            RawModel::documented(&RetryPolicy::model()),
            RawRetry::documented(&RetryPolicy::callback()),
            RawOsmosis::documented(&OsmosisTimes::default()),
            RawOsmosisInit::documented(&OsmosisInit::default()),
            RawSessions::documented(&SessionLimits::default()),
        ];
        for setting in tables.into_iter().flatten() {
            let Documented { table, key, default } = &setting;
            let mut path = table.split('.').chain([*key]);
            let first = path.next().and_then(|first| file.get(first));
            let value = path.fold(first, |value, key| value.and_then(|value| value.get(key)));
            let shown = match value {
                Some(toml::Value::Integer(count)) => (*count as u64).shown(key),
                Some(toml::Value::Float(secs)) => secs.shown(key),
                Some(toml::Value::Boolean(truth)) => truth.shown(key),
                _ => panic!("configuration.md has no number or truth value for {setting:?}: {value:?}"),
            };
            // A setting without a default has an example.
            assert!(default == "none" || shown == *default, "configuration.md: {shown} for {setting:?}");
        }
    }

    #[test]
    fn the_page_on_limits_shows_every_default() {
        let page = page("limits.md");
        for setting in RawLimits::documented() {
            let name = format!("`{}`", setting.key);
            let row = page.lines().find(|line| line.starts_with('|') && line.contains(&name));
            let row = row.unwrap_or_else(|| panic!("limits.md has no row of {setting:?}"));
            // Thousands are separated by commas, but so are the defaults of several limits in a row.
            let cell: String = row.split('|').nth(2).unwrap_or_default().replace(", ", "; ").replace(',', "");
            let words: Vec<&str> = cell.split([';', '(']).map(str::trim).collect();
            let is_shown = words.iter().any(|words| {
                words
                    .strip_prefix(setting.default.as_str())
                    .is_some_and(|rest| !rest.starts_with(char::is_numeric))
            });
            assert!(is_shown, "limits.md does not show the default of {setting:?}: {row}");
        }
    }
}
