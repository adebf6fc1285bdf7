//! `[artifacts]`: limits on the files of rollouts.

use std::time::Duration;

use super::secs;
use rollout_rollout::ArtifactBounds;

/// `[artifacts]` as written by the operator.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct RawArtifacts {
    /// Maximum number of bytes of all rollouts together.
    pub bytes_max: Option<u64>,
    /// Maximum age of a rollout's files in seconds.
    pub age_secs_max: Option<f64>,
}

/// Default number of bytes. By default the age is unlimited.
const BYTES_MAX: u64 = 64 << 30;

/// Smallest configurable number of bytes. It may be too small for a single rollout.
const BYTES_MIN: u64 = 1 << 20;

impl RawArtifacts {
    pub(super) fn resolve(self, problems: &mut Vec<String>) -> ArtifactBounds {
        let Self { bytes_max, age_secs_max } = self;
        if bytes_max.is_some_and(|bytes| bytes < BYTES_MIN) {
            problems.push(format!("artifacts.bytes-max: must be at least {} MiB", BYTES_MIN >> 20));
        }
        let age_max = secs("artifacts.age-secs-max", age_secs_max, Duration::MAX, problems);
        ArtifactBounds {
            bytes_max: Some(bytes_max.unwrap_or(BYTES_MAX)),
            age_max: age_secs_max.map(|_| age_max),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::RawConfig;
    use super::*;

    #[test]
    fn files_are_limited_in_bytes_and_if_configured_in_age() {
        let bounds = |text: &str| RawConfig::parse(text, "c.toml").resolve().unwrap().artifacts;
        assert_eq!(bounds(""), ArtifactBounds { bytes_max: Some(64 << 30), age_max: None });
        let given = "[artifacts]\nbytes-max = 1073741824\nage-secs-max = 60.0";
        let age_max = Some(Duration::from_secs(60));
        assert_eq!(bounds(given), ArtifactBounds { bytes_max: Some(1 << 30), age_max });
        let wrong = RawConfig::parse("[artifacts]\nbytes-max = 1\nage-secs-max = -1.0", "c.toml").resolve();
        let error = wrong.unwrap_err().to_string();
        assert!(error.contains("artifacts.bytes-max") && error.contains("artifacts.age-secs-max"), "{error}");
    }
}
