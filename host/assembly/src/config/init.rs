//! Settings of the Osmosis protocol's generation A, also readable from that generation's environment
//! variables.

use std::str::FromStr;
use std::time::Duration;

use super::setting::settings;
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

settings! {
    /// `[osmosis.init]`. The ranges are those of other servers of this generation.
    RawOsmosisInit, "osmosis.init" => OsmosisInit {
        /// Timeout in seconds of a call to the caller's server.
        client_timeout: Duration, "client-timeout-secs", secs(1)..=secs(3600);
        /// Maximum number of retries of a model call.
        client_max_retries: u32, "client-max-retries", 0..=10;
        /// Maximum number of retries of posting a result.
        client_complete_rollout_retries: u32, "client-complete-rollout-retries", 0..=10;
        /// Seconds before the first retry; doubled for each further one.
        client_retry_base_delay: Duration, "client-retry-base-delay-secs", Duration::from_millis(100)..=secs(60);
        /// Maximum number of seconds before a retry.
        client_retry_max_delay: Duration, "client-retry-max-delay-secs", secs(1)..=secs(300);
        /// Maximum number of concurrent model calls of a rollout.
        client_max_connections: u32, "client-max-connections", 1..=1000;
        /// Seconds for which the answer to a request is stored after its rollout ended.
        record_ttl: Duration, "record-ttl-secs", secs(60)..=secs(86_400);
        /// Seconds between two removals of expired answers.
        cleanup_interval: Duration, "cleanup-interval-secs", secs(10)..=secs(3600);
        /// Maximum number of bytes of a request's metadata.
        metadata_bytes_max: usize, "metadata-bytes-max", 1024..=100 << 20;
        /// Whether only this generation is served.
        alone: bool, "alone", ..;
    }
}

const fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
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
    /// Timeout of a call to the caller's server.
    pub client_timeout: Duration,
    /// Maximum number of retries of a model call.
    pub client_max_retries: u32,
    /// Maximum number of retries of posting a result.
    pub client_complete_rollout_retries: u32,
    /// Time before the first retry; doubled for each further one.
    pub client_retry_base_delay: Duration,
    /// Maximum time before a retry.
    pub client_retry_max_delay: Duration,
    /// Maximum number of concurrent model calls of a rollout.
    pub client_max_connections: u32,
    /// Time for which an answer is stored after its rollout ended.
    pub record_ttl: Duration,
    /// Time between two removals of expired answers.
    pub cleanup_interval: Duration,
    /// Maximum number of bytes of a request's metadata.
    pub metadata_bytes_max: usize,
    /// Whether only this generation is served.
    pub alone: bool,
}

impl Default for OsmosisInit {
    fn default() -> Self {
        Self {
            client_timeout: secs(300),
            client_max_retries: 3,
            client_complete_rollout_retries: 2,
            client_retry_base_delay: secs(1),
            client_retry_max_delay: secs(30),
            client_max_connections: 100,
            record_ttl: secs(3600),
            cleanup_interval: secs(60),
            metadata_bytes_max: 1 << 20,
            alone: false,
        }
    }
}

impl OsmosisInit {
    /// Returns the retries of model calls.
    pub fn chat(&self) -> RetryPolicy {
        self.policy(self.client_max_retries, Statuses::ClosedChat)
    }

    /// Returns the retries of posting a result.
    pub fn completed(&self) -> RetryPolicy {
        self.policy(self.client_complete_rollout_retries, Statuses::StrictCallback)
    }

    fn policy(&self, retries: u32, statuses: Statuses) -> RetryPolicy {
        RetryPolicy {
            attempts_max: retries + 1,
            attempt_time_max: self.client_timeout,
            budget: Duration::MAX,
            delay_base: self.client_retry_base_delay,
            delay_max: self.client_retry_max_delay,
            statuses,
        }
    }
}

impl OsmosisEnvironment {
    /// Reads the variables through `get`.
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Self {
        let mut variables = Variables { get, problems: Vec::new() };
        let init = RawOsmosisInit {
            client_timeout: variables.value("CLIENT_TIMEOUT_SECONDS"),
            client_max_retries: variables.value("CLIENT_MAX_RETRIES"),
            client_complete_rollout_retries: variables.value("CLIENT_COMPLETE_ROLLOUT_RETRIES"),
            client_retry_base_delay: variables.value("CLIENT_RETRY_BASE_DELAY"),
            client_retry_max_delay: variables.value("CLIENT_RETRY_MAX_DELAY"),
            client_max_connections: variables.value("CLIENT_MAX_CONNECTIONS"),
            record_ttl: variables.value("SERVER_RECORD_TTL_SECONDS"),
            cleanup_interval: variables.value("SERVER_CLEANUP_INTERVAL_SECONDS"),
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
        let init = environment.init.or(file).resolve_over(OsmosisInit::default(), &mut problems);
        assert!(problems.is_empty(), "{problems:?}");
        let chat = init.chat();
        assert_eq!((chat.attempts_max, init.completed().attempts_max), (2, 1));
        assert_eq!(chat.attempt_time_max, secs(20));
        assert_eq!(chat.delay_base, Duration::from_millis(100));
        assert_eq!(chat.delay_max, Duration::from_millis(2500));
        assert_eq!((init.record_ttl, init.cleanup_interval), (secs(60), secs(10)));
        assert_eq!((init.client_max_connections, init.metadata_bytes_max), (7, 2048));
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
        let raw = RawOsmosisInit { client_timeout: Some(f64::NAN), ..RawOsmosisInit::default() };
        RawOsmosisInit { record_ttl: Some(1.0), ..raw }.resolve_over(OsmosisInit::default(), &mut problems);
        assert_eq!(
            problems,
            [
                "osmosis.init.client-timeout-secs: NaN is not between 0 and 31536000 seconds",
                "osmosis.init.record-ttl-secs: must be between 60 and 86400, not 1",
            ]
        );
    }
}
