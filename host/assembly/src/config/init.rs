//! Settings of the Osmosis protocol's generation A, also readable from that generation's environment
//! variables.

use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use rollout_outbound::{RetryPolicy, Statuses};

/// Prefix of the variables' names.
const PREFIX: &str = "OSMOSIS_ROLLOUT_";

/// Variables that other servers of this generation support and this host ignores.
const WITHOUT_EFFECT: [&str; 5] = [
    // One client with persistent connections serves all rollouts.
    "CLIENT_MAX_KEEPALIVE_CONNECTIONS",
    // Other servers ignore it, too.
    "SERVER_REQUEST_TIMEOUT_SECONDS",
    // This host does not register itself.
    "SERVER_REGISTRATION_READINESS_TIMEOUT_SECONDS",
    "SERVER_REGISTRATION_READINESS_POLL_INTERVAL_SECONDS",
    "SERVER_REGISTRATION_SHUTDOWN_TIMEOUT_SECONDS",
];

/// `[osmosis.init]`.
#[derive(Clone, Debug, Default, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct RawOsmosisInit {
    /// Timeout in seconds of a call to the caller's server.
    pub client_timeout_secs: Option<f64>,
    /// Maximum number of retries of a model call.
    pub client_max_retries: Option<u32>,
    /// Maximum number of retries of posting a result.
    pub client_complete_rollout_retries: Option<u32>,
    /// Seconds before the first retry; doubled for each further one.
    pub client_retry_base_delay_secs: Option<f64>,
    /// Maximum number of seconds before a retry.
    pub client_retry_max_delay_secs: Option<f64>,
    /// Maximum number of concurrent model calls of a rollout.
    pub client_max_connections: Option<u32>,
    /// Seconds for which the answer to a request is stored after its rollout ended.
    pub record_ttl_secs: Option<f64>,
    /// Seconds between two removals of expired answers.
    pub cleanup_interval_secs: Option<f64>,
    /// Maximum number of bytes of a request's metadata.
    pub metadata_bytes_max: Option<u64>,
    /// Whether only this generation is served.
    pub alone: Option<bool>,
}

/// Settings from the environment: those of this generation, and those of the host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OsmosisEnvironment {
    /// Settings of this generation.
    pub init: RawOsmosisInit,
    /// Maximum number of concurrent rollouts.
    pub max_concurrent: Option<u32>,
    /// Variables that are set but ignored.
    pub without_effect: Vec<String>,
    /// Mistakes in the other variables.
    pub mistakes: Vec<String>,
}

/// Checked settings of generation A.
#[derive(Clone, Debug, PartialEq)]
pub struct OsmosisInit {
    /// Retries of model calls.
    pub chat: RetryPolicy,
    /// Retries of posting a result.
    pub completed: RetryPolicy,
    /// Maximum number of concurrent model calls of a rollout.
    pub connections_max: u32,
    /// Time for which an answer is stored after its rollout ended.
    pub record_ttl: Duration,
    /// Time between two removals of expired answers.
    pub cleanup_interval: Duration,
    /// Maximum number of bytes of a request's metadata.
    pub metadata_bytes_max: usize,
    /// Whether only this generation is served.
    pub alone: bool,
}

impl OsmosisEnvironment {
    /// Reads the variables through `get`.
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Self {
        let mut variables = Variables { get, problems: Vec::new() };
        let init = RawOsmosisInit {
            client_timeout_secs: variables.value("CLIENT_TIMEOUT_SECONDS"),
            client_max_retries: variables.value("CLIENT_MAX_RETRIES"),
            client_complete_rollout_retries: variables.value("CLIENT_COMPLETE_ROLLOUT_RETRIES"),
            client_retry_base_delay_secs: variables.value("CLIENT_RETRY_BASE_DELAY"),
            client_retry_max_delay_secs: variables.value("CLIENT_RETRY_MAX_DELAY"),
            client_max_connections: variables.value("CLIENT_MAX_CONNECTIONS"),
            record_ttl_secs: variables.value("SERVER_RECORD_TTL_SECONDS"),
            cleanup_interval_secs: variables.value("SERVER_CLEANUP_INTERVAL_SECONDS"),
            metadata_bytes_max: variables.value("MAX_METADATA_SIZE_BYTES"),
            alone: None,
        };
        let asked = variables.value("SERVER_MAX_CONCURRENT_ROLLOUTS");
        let max_concurrent = asked.filter(|count: &u32| (1..=10_000).contains(count));
        if max_concurrent != asked {
            let name = "SERVER_MAX_CONCURRENT_ROLLOUTS";
            variables.problems.push(format!("{PREFIX}{name}: must be between 1 and 10000"));
        }
        let is_set = |name: &&str| (variables.get)(&format!("{PREFIX}{name}")).is_some();
        let without_effect =
            WITHOUT_EFFECT.iter().filter(|name| is_set(name)).map(|name| format!("{PREFIX}{name}")).collect();
        Self { init, max_concurrent, without_effect, mistakes: variables.problems }
    }
}

struct Variables<G> {
    get: G,
    problems: Vec<String>,
}

impl<G: Fn(&str) -> Option<String>> Variables<G> {
    fn value<T: FromStr>(&mut self, name: &str) -> Option<T> {
        let name = format!("{PREFIX}{name}");
        let text = (self.get)(&name)?;
        let value = text.trim().parse().ok();
        if value.is_none() {
            self.problems.push(format!("{name}: '{text}' is not a valid number"));
        }
        value
    }
}

impl RawOsmosisInit {
    /// Fills in missing settings from `other`.
    pub fn or(self, other: Self) -> Self {
        Self {
            client_timeout_secs: self.client_timeout_secs.or(other.client_timeout_secs),
            client_max_retries: self.client_max_retries.or(other.client_max_retries),
            client_complete_rollout_retries: self
                .client_complete_rollout_retries
                .or(other.client_complete_rollout_retries),
            client_retry_base_delay_secs: self
                .client_retry_base_delay_secs
                .or(other.client_retry_base_delay_secs),
            client_retry_max_delay_secs: self
                .client_retry_max_delay_secs
                .or(other.client_retry_max_delay_secs),
            client_max_connections: self.client_max_connections.or(other.client_max_connections),
            record_ttl_secs: self.record_ttl_secs.or(other.record_ttl_secs),
            cleanup_interval_secs: self.cleanup_interval_secs.or(other.cleanup_interval_secs),
            metadata_bytes_max: self.metadata_bytes_max.or(other.metadata_bytes_max),
            alone: self.alone.or(other.alone),
        }
    }

    /// Fills in defaults and checks every field. The bounds are those of other servers of this generation.
    pub(super) fn resolve(self, problems: &mut Vec<String>) -> OsmosisInit {
        let mut bounds = Bounds(problems);
        let mut secs = |key, value, default, range| {
            let secs = bounds.check(key, value, default, range);
            Duration::try_from_secs_f64(secs).unwrap_or_default()
        };
        let delay_base =
            secs("client-retry-base-delay-secs", self.client_retry_base_delay_secs, 1.0, 0.1..=60.0);
        let delay_max =
            secs("client-retry-max-delay-secs", self.client_retry_max_delay_secs, 30.0, 1.0..=300.0);
        let attempt_time_max = secs("client-timeout-secs", self.client_timeout_secs, 300.0, 1.0..=3600.0);
        let record_ttl = secs("record-ttl-secs", self.record_ttl_secs, 3600.0, 60.0..=86_400.0);
        let cleanup_interval = secs("cleanup-interval-secs", self.cleanup_interval_secs, 60.0, 10.0..=3600.0);
        let policy = |retries: u32, statuses| RetryPolicy {
            attempts_max: retries + 1,
            attempt_time_max,
            budget: Duration::MAX,
            delay_base,
            delay_max,
            statuses,
        };
        let chat_retries = bounds.check("client-max-retries", self.client_max_retries, 3, 0..=10);
        let completed_retries =
            bounds.check("client-complete-rollout-retries", self.client_complete_rollout_retries, 2, 0..=10);
        OsmosisInit {
            chat: policy(chat_retries, Statuses::ClosedChat),
            completed: policy(completed_retries, Statuses::StrictCallback),
            alone: self.alone.unwrap_or(false),
            connections_max: bounds.check(
                "client-max-connections",
                self.client_max_connections,
                100,
                1..=1000,
            ),
            record_ttl,
            cleanup_interval,
            metadata_bytes_max: usize::try_from(bounds.check(
                "metadata-bytes-max",
                self.metadata_bytes_max,
                1 << 20,
                1024..=100 << 20,
            ))
            .unwrap_or(usize::MAX),
        }
    }
}

struct Bounds<'a>(&'a mut Vec<String>);

impl Bounds<'_> {
    fn check<T: PartialOrd + std::fmt::Display>(
        &mut self,
        key: &str,
        value: Option<T>,
        default: T,
        range: RangeInclusive<T>,
    ) -> T {
        match value {
            None => default,
            Some(value) if range.contains(&value) => value,
            Some(value) => {
                let (from, to) = range.into_inner();
                self.0.push(format!("osmosis.init.{key}: {value} is not between {from} and {to}"));
                default
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> OsmosisEnvironment {
        OsmosisEnvironment::read(|name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn every_variable_is_read_and_overrides_the_file() {
        let environment = read(&[
            ("OSMOSIS_ROLLOUT_CLIENT_TIMEOUT_SECONDS", "20"),
            ("OSMOSIS_ROLLOUT_CLIENT_MAX_RETRIES", "1"),
            ("OSMOSIS_ROLLOUT_CLIENT_COMPLETE_ROLLOUT_RETRIES", "0"),
            ("OSMOSIS_ROLLOUT_CLIENT_RETRY_BASE_DELAY", "0.1"),
            ("OSMOSIS_ROLLOUT_CLIENT_RETRY_MAX_DELAY", "2.5"),
            ("OSMOSIS_ROLLOUT_CLIENT_MAX_CONNECTIONS", "7"),
            ("OSMOSIS_ROLLOUT_CLIENT_MAX_KEEPALIVE_CONNECTIONS", "7"),
            ("OSMOSIS_ROLLOUT_SERVER_MAX_CONCURRENT_ROLLOUTS", "12"),
            ("OSMOSIS_ROLLOUT_SERVER_RECORD_TTL_SECONDS", "60"),
            ("OSMOSIS_ROLLOUT_SERVER_CLEANUP_INTERVAL_SECONDS", "10"),
            ("OSMOSIS_ROLLOUT_MAX_METADATA_SIZE_BYTES", "2048"),
        ]);
        assert_eq!(environment.mistakes, Vec::<String>::new());
        assert_eq!(environment.max_concurrent, Some(12));
        assert_eq!(environment.without_effect, ["OSMOSIS_ROLLOUT_CLIENT_MAX_KEEPALIVE_CONNECTIONS"]);

        let file = RawOsmosisInit { client_max_retries: Some(9), ..RawOsmosisInit::default() };
        let mut problems = Vec::new();
        let init = environment.init.or(file).resolve(&mut problems);
        assert!(problems.is_empty(), "{problems:?}");
        let secs = Duration::from_secs;
        assert_eq!((init.chat.attempts_max, init.completed.attempts_max), (2, 1));
        assert_eq!(init.chat.attempt_time_max, secs(20));
        assert_eq!(init.chat.delay_base, Duration::from_millis(100));
        assert_eq!(init.chat.delay_max, Duration::from_millis(2500));
        assert_eq!((init.record_ttl, init.cleanup_interval), (secs(60), secs(10)));
        assert_eq!((init.connections_max, init.metadata_bytes_max), (7, 2048));
    }

    #[test]
    fn malformed_numbers_and_numbers_out_of_bounds_are_reported() {
        let environment = read(&[
            ("OSMOSIS_ROLLOUT_CLIENT_MAX_RETRIES", "many"),
            ("OSMOSIS_ROLLOUT_SERVER_MAX_CONCURRENT_ROLLOUTS", "0"),
        ]);
        assert_eq!(environment.max_concurrent, None, "an invalid number is reported once");
        assert_eq!(
            environment.mistakes,
            [
                "OSMOSIS_ROLLOUT_CLIENT_MAX_RETRIES: 'many' is not a valid number",
                "OSMOSIS_ROLLOUT_SERVER_MAX_CONCURRENT_ROLLOUTS: must be between 1 and 10000",
            ]
        );
        let mut problems = Vec::new();
        let raw = RawOsmosisInit { client_timeout_secs: Some(f64::NAN), ..RawOsmosisInit::default() };
        RawOsmosisInit { record_ttl_secs: Some(1.0), ..raw }.resolve(&mut problems);
        assert_eq!(
            problems,
            [
                "osmosis.init.client-timeout-secs: NaN is not between 1 and 3600",
                "osmosis.init.record-ttl-secs: 1 is not between 60 and 86400",
            ]
        );
    }
}
